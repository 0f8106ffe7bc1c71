// One TCP connection of several: what is being written to it and read from it, how fast it drains, and its counters.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "socket.h"
#include "wire.h"

namespace bagua {

struct Request;

struct Counters {
    uint64_t bytes_sent = 0, bytes_zero_copy = 0, chunks_sent = 0, bytes_received = 0, chunks_received = 0;
    uint64_t stalls = 0;  // times that it had to wait: the kernel's queue was full, or it held as much as it may
    uint64_t parked = 0;  // chunks that arrived before their buffer was posted
    uint64_t queued_max = 0;
};

// A chunk on its way into the kernel; it stays with its stream until it is written.
struct Outgoing {
    ChunkHeader head{};
    Request* request = nullptr;  // null: nothing being written
    size_t done = 0;  // of header and payload
    bool lend = false;  // the payload, without a copy
};

// A chunk on its way out of the kernel.
struct Incoming {
    ChunkHeader head{};
    Request* request = nullptr;  // null: the next bytes are a header
    uint32_t left = 0;
    uint32_t crc = 0;
};

// How fast the stream drains and how much waits in it: see schedule.h.
struct Pace {
    double rate = 0;  // bytes/s while busy; 0 = not known yet
    double delivery = 0;  // bytes/s of the path, as the kernel sees it
    bool fast = false;  // the path is faster than what we write
    bool slow = false;  // the path is much slower than a core: a sample without a pause has shown it
    double rtt = 0;  // seconds, minimum; over a long path, the first one until there is a sample
    double first_rtt = 0, smooth_rtt = 0;  // seconds, mean: before anything was sent, and of late
    uint64_t written = 0;  // bytes handed to the kernel
    uint64_t queued = 0, written_then = 0;  // unacknowledged bytes when last looked at, and `written` at that time
    uint64_t acknowledged_then = 0;  // at the start of the running sample ...
    uint64_t limited_then = 0;  // ... and the microseconds for which the receiver had closed its window
    int64_t sample_began = 0;
    int64_t window_seen = 0;  // over a long path: when the kernel was asked for it last (ns)
    bool ran_dry = true;  // during the sample, so that it shows less than the stream could do
    int64_t looked = 0;  // when the kernel was asked last (ns)
    uint64_t most_queued() const { return queued + (written - written_then); }
};

struct Stream {
    // Room for one small message and to see that nothing follows: after a full read the kernel must be asked again.
    static constexpr size_t kStage = 8192 + 2 * sizeof(ChunkHeader);

    Socket socket;
    int index = 0;
    std::string where;  // the peer's address
    bool readable = true, writable = true;  // until the kernel says otherwise
    bool closed = false;  // by the peer; there may still be bytes to read
    bool ended = false;  // closed, and all bytes are read
    int awaited = 1;  // bytes that the kernel should have before it wakes us
    bool parked = false;  // the header at hand belongs to a message that was not posted when we looked last
    bool early = false;  // nor when it came, for which it was counted
    Outgoing out;
    Incoming in;
    Pace pace;
    Counters counters;
    // Bytes that were read ahead, because one system call should bring header and payload.
    size_t stage_begin = 0, stage_end = 0;
    unsigned char stage[kStage];
    size_t staged() const { return stage_end - stage_begin; }
};

using Streams = std::vector<std::unique_ptr<Stream>>;

// The shortest of their round trips before anything was sent (seconds); 0 if none is known.
inline double first_round_trip(const Streams& streams) {
    double least = 0;
    for (const auto& s : streams)
        if (const double one = s->pace.first_rtt; one > 0 && (least <= 0 || one < least)) least = one;
    return least;
}

}  // namespace bagua
