#include "device.h"

#include <linux/if_packet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace emulator {
namespace {

constexpr size_t kLongest = 70'000;  // bytes to read a packet into

bool is_full_or_empty() { return errno == EAGAIN || errno == EWOULDBLOCK; }

[[noreturn]] void fail(const char *what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

std::optional<Packet> Device::read() {
    if (ring_.memory) return from_ring();
    static thread_local std::array<uint8_t, kLongest> buffer;
    ssize_t got = ::read(descriptor_, buffer.data(), buffer.size());
    if (got >= 0) return Packet(buffer.begin(), buffer.begin() + got);
    if (is_full_or_empty()) return std::nullopt;
    fail("cannot read a packet");
}

std::optional<Packet> Device::from_ring() {
    size_t place = next_ / ring_.frames_per_block * ring_.block + next_ % ring_.frames_per_block * ring_.frame;
    auto *header = reinterpret_cast<tpacket2_hdr *>(ring_.memory + place);
    if (__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) == TP_STATUS_KERNEL) return std::nullopt;
    const uint8_t *frame = ring_.memory + place + header->tp_mac;
    Packet packet(frame - sizeof(Virtio), frame + header->tp_snaplen);
    __atomic_store_n(&header->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    next_ = (next_ + 1) % (ring_.blocks * ring_.frames_per_block);
    return packet;
}

bool Device::write(const Packet &packet) {
    if (::write(descriptor_, packet.data(), packet.size()) >= 0) return true;
    if (is_full_or_empty()) return false;
    fail("cannot send a packet");
}

int64_t Device::drops() {
    if (ring_.memory) {
        tpacket_stats stats{};
        socklen_t size = sizeof stats;
        if (getsockopt(descriptor_, SOL_PACKET, PACKET_STATISTICS, &stats, &size) != 0) fail("cannot count drops");
        drops_ += stats.tp_drops;
    }
    return drops_;
}

}  // namespace emulator
