// The other side of a server's interface, by packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "segments.h"

namespace emulator {

// Where packets are taken from (linux/if_packet.h, version 2).
struct Ring {
    uint8_t *memory = nullptr;
    size_t block = 0, frame = 0;  // bytes
    size_t frames_per_block = 0, blocks = 0;
};

// A TUN device, or, with a ring (linux/if_packet.h, version 2), the far end of a virtual Ethernet pair: its packets are
// read from there, because the queue of a plain socket holds only a handful and an ordinary user may not enlarge it.
// Whoever made it keeps the descriptor open and the ring mapped.
class Device {
   public:
    // header: bytes before the IP packet.
    Device(int descriptor, size_t header, Ring ring) : descriptor_(descriptor), header_(header), ring_(ring) {}

    int descriptor() const { return descriptor_; }
    size_t header() const { return header_; }

    // The next packet with its header, if there is one; std::system_error.
    std::optional<Packet> read();

    // Send a packet with its header; false if the queue is full; std::system_error.
    bool write(const Packet &packet);

    // How many packets so far came faster than they were read: none of TUN, which has a queue that stops TCP.
    int64_t drops();

   private:
    std::optional<Packet> from_ring();

    int descriptor_;
    size_t header_;
    Ring ring_;
    size_t next_ = 0;
    int64_t drops_ = 0;
};

}  // namespace emulator
