// What travels between two processes: the chunk header, the messages of the handshake, the listener's handle.
// Little-endian, fixed sizes, no pointers. Every field read from here is checked before it is used.

#pragma once

#include <cstddef>
#include <cstdint>

namespace bagua {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little-endian");

constexpr uint64_t kMagic = 0x316e2d6175676162;  // "bagua-n1"
constexpr uint16_t kVersion = 8;
constexpr int kMaxStreams = 512;
constexpr int kOthers = 2;  // sockets of a connection that are not streams: receipts and pulse
constexpr int kMaxInterfaces = 3;  // as many addresses as a handle holds
constexpr uint32_t kMaxMessage = 1u << 30;
constexpr uint32_t kContinued = 1u << 31;  // in the tag of what is no message of its own, but the rest of a longer one
constexpr size_t kDigest = 32, kNonce = 32, kToken = 32, kId = 8;

// Goes in front of every chunk, on the chunk's own stream; the receiver needs nothing else to put it in place.
struct ChunkHeader {
    uint32_t sequence;  // number of the message on this connection and direction; wraps
    uint32_t offset, length;
    uint32_t total;  // size of the whole message
    uint32_t tag;
    uint32_t crc;  // CRC-32C of the payload; 0 on a connection without checksums
    uint32_t receipt;  // 1: the sender waits to hear that the whole message has arrived
    uint32_t nothing;  // 1: no chunk follows, and all other fields are 0; see nudge() in sender.h
    uint32_t unused[8];  // keeps payloads aligned as their buffers are: the kernel copies half as fast otherwise
};
static_assert(sizeof(ChunkHeader) == 64, "wire format");
constexpr ChunkHeader kNothing = {0, 0, 0, 0, 0, 0, 0, 1, {}};

// Goes back, on the socket for receipts.
struct Receipt {
    uint32_t sequence;  // of a message that has arrived
    uint32_t nothing;  // 1: of none, and the other field is 0
};
static_assert(sizeof(Receipt) == 8, "wire format");

// Flags of Hello: chunks have checksums; each side chooses how many of the streams it uses.
constexpr uint16_t kChecksums = 1, kChooses = 2;

// Sent first, by the connecting side: which stream of which connection this socket wants to be.
struct Hello {
    uint64_t magic;
    uint16_t version, flags, streams, index;  // index `streams` is the receipts, `streams` + 1 the pulse
    uint64_t name;  // chosen by the caller
    uint8_t id[kId];  // random, common to the sockets of one connection
    uint8_t nonce[kNonce];
};
static_assert(sizeof(Hello) == 64, "wire format");

// Both sides prove that they know the key, over the nonces of both, so that nothing recorded can be replayed.
struct Challenge {
    uint8_t nonce[kNonce], proof[kDigest];
};
struct Answer {
    uint8_t proof[kDigest];
};
struct Welcome {
    uint64_t magic;
};

struct WireAddress {
    uint16_t family, port;  // 4 or 6; 0 = unused
    uint32_t scope;
    uint8_t bytes[16];
};
static_assert(sizeof(WireAddress) == 24, "wire format");

// Carried to the connecting side by the job's rendezvous.
struct Handle {
    uint64_t magic;
    uint8_t token[kToken];
    WireAddress addresses[kMaxInterfaces];
    uint64_t attempt;  // used by the connecting side's copy only
    uint64_t most_streams;  // of a connection, that may be chosen
};
static_assert(sizeof(Handle) <= 128, "NCCL's limit");

}  // namespace bagua
