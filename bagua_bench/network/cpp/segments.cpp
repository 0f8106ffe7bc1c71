#include "segments.h"

#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace emulator {
namespace {

constexpr uint8_t kWhole = 0, kTcp4 = 1, kCongestion = 0x80;  // kinds: no segments, of TCP over IPv4; a flag beside it
constexpr uint8_t kFin = 0x01, kPsh = 0x08, kCwr = 0x80;
constexpr size_t kFlags = 13;  // where in a TCP header they are

// Where in a packet its IP header, its TCP header and its payload begin, and bytes of a segment's payload.
struct Layout {
    size_t ip, tcp, payload, segment;
};

template <typename T>
T load(const Packet &packet, size_t where) {
    T value;
    std::memcpy(&value, packet.data() + where, sizeof value);
    return value;
}

template <typename T>
void store(Packet &packet, size_t where, const T &value) {
    std::memcpy(packet.data() + where, &value, sizeof value);
}

// Nothing of a packet that is one segment.
std::optional<Layout> layout_of(const Packet &packet, size_t header) {
    auto virtio = load<Virtio>(packet, 0);
    if ((virtio.kind & ~kCongestion) != kTcp4 || virtio.segment == 0) return std::nullopt;
    size_t tcp = header + 4 * (packet[header] & 0xF);
    return Layout{header, tcp, tcp + 4 * (packet[tcp + 12] >> 4), virtio.segment};
}

// The sum of 16-bit words of the Internet checksum (RFC 1071), of an even number of bytes.
uint32_t sum(const Packet &packet, size_t from, size_t to, uint32_t total = 0) {
    for (size_t k = from; k < to; k += 2) total += static_cast<uint32_t>(packet[k] << 8 | packet[k + 1]);
    while (total >> 16) total = (total & 0xFFFF) + (total >> 16);
    return total;
}

void write_ip(Packet &piece, const Layout &layout, int first) {
    auto ip = load<iphdr>(piece, layout.ip);
    ip.tot_len = htons(static_cast<uint16_t>(piece.size() - layout.ip));
    ip.id = htons(static_cast<uint16_t>(ntohs(ip.id) + first));
    ip.check = 0;
    store(piece, layout.ip, ip);
    ip.check = htons(static_cast<uint16_t>(0xFFFF ^ sum(piece, layout.ip, layout.tcp)));
    store(piece, layout.ip, ip);
}

void write_tcp(Packet &piece, const Layout &layout, int first, bool ends) {
    auto sequence = ntohl(load<uint32_t>(piece, layout.tcp + 4));
    store(piece, layout.tcp + 4, htonl(sequence + static_cast<uint32_t>(first * layout.segment)));
    uint8_t &flags = piece[layout.tcp + kFlags];
    if (!ends) flags &= static_cast<uint8_t>(~(kFin | kPsh));
    if (first) flags &= static_cast<uint8_t>(~kCwr);
    auto rest = static_cast<uint32_t>(IPPROTO_TCP + piece.size() - layout.tcp);  // of the pseudo header
    store(piece, layout.tcp + 16, htons(static_cast<uint16_t>(sum(piece, layout.ip + 12, layout.ip + 20, rest))));
}

}  // namespace

int count(const Packet &packet, size_t header) {
    std::optional<Layout> layout = layout_of(packet, header);
    if (!layout) return 1;
    return static_cast<int>((packet.size() - layout->payload + layout->segment - 1) / layout->segment);
}

Packet cut(const Packet &packet, size_t header, int first, int last) {
    Layout layout = layout_of(packet, header).value();
    size_t from = layout.payload + first * layout.segment;
    size_t to = std::min(packet.size(), layout.payload + last * layout.segment);
    Packet piece(packet.begin(), packet.begin() + static_cast<ptrdiff_t>(layout.payload));
    piece.insert(piece.end(), packet.data() + from, packet.data() + to);
    if (to - from <= layout.segment) {
        auto virtio = load<Virtio>(piece, 0);
        virtio.kind = kWhole;
        virtio.segment = 0;
        store(piece, 0, virtio);
    }
    write_ip(piece, layout, first);
    write_tcp(piece, layout, first, to == packet.size());
    return piece;
}

}  // namespace emulator
