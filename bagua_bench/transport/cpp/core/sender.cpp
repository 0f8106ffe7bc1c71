// The sending half of a connection: cuts messages into chunks, strictly in order, and gives each to a stream with room.

#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "connection.h"
#include "crc.h"

namespace bagua {

namespace {

constexpr int kChunksPerCall = 64;  // bounded work
constexpr size_t kWorthLending = 256 << 10;  // bytes of a message for which a receipt costs less than a copy
constexpr size_t kWorthSplicing = 16 << 10;  // of what is left of a chunk, for the same
constexpr uint32_t kCached = 1 << 20;  // of a message that is likely to be in a cache still
// What is larger comes from memory, and lending it leaves that to the receiver, who else finds in the cache what the
// sender has copied. On paths faster than a core one chunk of so many is lent, which keeps both cores busy.
constexpr unsigned kOneOf = 3;
constexpr double kNear = 1e-3;  // seconds of a round trip
constexpr size_t kOnePiece = 1024;  // bytes that are copied together sooner than the kernel gathers two pieces

// Waiting for a receipt from so near costs nothing that would be noticed.
bool near(const Stream& s) { return s.pace.rtt > 0 && s.pace.rtt <= kNear; }

}  // namespace

// Hand header and payload to the kernel, from `done` on; what it took, or -1. `lent`: bytes offered without a copy.
ssize_t Connection::push(const Stream& s, size_t* lent) {
    constexpr int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    const Outgoing& out = s.out;
    const int fd = s.socket.fd();
    const auto* head = reinterpret_cast<const unsigned char*>(&out.head);
    unsigned char* data = out.request->data + out.head.offset;
    const size_t whole = sizeof out.head + out.head.length;
    if (whole <= kOnePiece) {
        unsigned char piece[kOnePiece];
        std::copy_n(data, out.head.length, std::copy_n(head, sizeof out.head, piece));
        return ::send(fd, piece + out.done, whole - out.done, flags);
    }
    const size_t header = std::min(out.done, sizeof out.head), payload = out.done - header;
    if (out.lend && out.head.length - payload >= kWorthSplicing) {
        if (header < sizeof out.head) return ::send(fd, head + header, sizeof out.head - header, flags | MSG_MORE);
        const ssize_t n = pages_.lend(fd, data + payload, out.head.length - payload, lent);
        if (*lent > 0) return n;
        settings_.zero_copy = false;  // no more receipts in vain
    }
    iovec parts[2] = {{const_cast<unsigned char*>(head) + header, sizeof out.head - header},
                      {data + payload, out.head.length - payload}};
    const int skip = parts[0].iov_len == 0;
    msghdr message{};
    message.msg_iov = parts + skip;
    message.msg_iovlen = size_t(2 - skip);
    return sendmsg(fd, &message, flags);
}

bool Connection::pump_sends() {
    if (pending_sends_ == 0) return false;
    bool moved = false;
    for (auto& s : streams_)
        if (s->out.request && s->writable) moved |= write(*s);
    if (moved) wake_at_ = 0;
    if (wake_at_ && now_ns() < wake_at_) return false;
    wake_at_ = 0;
    for (int i = 0; i < kChunksPerCall && status_ && cursor_ != next_send_; ++i) {
        const Request& r = sends_[cursor_ % kWindow];
        const Schedule::Choice choice = schedule_.choose(streams_, r.size - r.taken, unwritten_);
        if (!choice.stream) {
            wake_at_ = schedule_.room_at();
            break;
        }
        take(*choice.stream, choice.length);
        moved |= write(*choice.stream);
    }
    return moved;
}

void Connection::take(Stream& s, uint32_t length) {
    Request& r = sends_[cursor_ % kWindow];
    assert(!s.out.request && length <= r.size - r.taken && (length > 0 || r.size == 0));
    s.out.request = &r;
    s.out.done = 0;
    if (r.taken == 0) r.receipt = settings_.zero_copy && r.size >= kWorthLending && near(s);
    s.out.lend = r.receipt && (!s.pace.fast || r.size <= kCached || ++turn_ % kOneOf == 0);
    s.out.head = {r.sequence, r.taken, length, r.size, r.tag, 0, r.receipt, {}};
    if (settings_.crc) s.out.head.crc = crc32c(0, r.data + r.taken, length);
    r.taken += length;
    unwritten_ -= length;
    if (r.taken == r.size) ++cursor_;
}

// Write the stream's chunk, as much as the kernel takes.
bool Connection::write(Stream& s) {
    Outgoing& out = s.out;
    const size_t whole = sizeof out.head + out.head.length;
    const size_t before = out.done;
    while (out.done < whole) {
        size_t lent = 0;
        const ssize_t n = push(s, &lent);
        if (n < 0 && errno == EINTR) continue;
        const bool full = n < 0 && (errno == EAGAIN || errno == ENOBUFS);
        if (n < 0 && !full) {
            stream_failed(s, errno);
            return true;
        }
        if (n > 0) {
            out.done += size_t(n);
            s.pace.written += uint64_t(n);
            if (lent > 0) s.counters.bytes_zero_copy += uint64_t(n);
        }
        if (full || size_t(n) < lent) {
            s.writable = false;
            ++s.counters.stalls;
            break;
        }
    }
    if (out.done == whole) {
        Request& r = *out.request;
        out.request = nullptr;
        s.counters.bytes_sent += out.head.length;
        ++s.counters.chunks_sent;
        r.moved += out.head.length;
        const bool written = r.moved == r.size && r.taken == r.size;
        if (written && r.receipt) ++awaited_;
        if (written && !r.receipt) finish(r);
    }
    return out.done > before;
}

}  // namespace bagua
