// Packets that stand for several TCP segments, cut as a network card does to which the kernel leaves that. The kernel
// describes such a packet in the header of virtio in front of it (linux/virtio_net.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulator {

using Packet = std::vector<uint8_t>;

// That header: linux/virtio_net.h is not C++.
struct Virtio {
    uint8_t flags, kind;
    uint16_t headers, segment;  // bytes of the headers and of a segment's payload
    uint16_t start, offset;     // where the checksum is
};
static_assert(sizeof(Virtio) == 10);

// How many segments a packet stands for that begins with virtio's header; its IPv4 header is at `header`.
int count(const Packet &packet, size_t header);

// The segments from `first` up to, without, `last` of a packet that stands for several, as a packet like it. Its TCP
// checksum is left to the receiver, as that of the packet was.
Packet cut(const Packet &packet, size_t header, int first, int last);

}  // namespace emulator
