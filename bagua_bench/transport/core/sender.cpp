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
constexpr size_t kOnePiece = 1024;  // bytes that are copied together sooner than the kernel gathers two pieces

// Hand header and payload to the kernel, from `done` on; what it took, or -1.
ssize_t push(int fd, const Outgoing& out) {
    constexpr int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    const auto* head = reinterpret_cast<const unsigned char*>(&out.head);
    unsigned char* data = out.request->data + out.head.offset;
    const size_t whole = sizeof out.head + out.head.length;
    if (whole <= kOnePiece) {
        unsigned char piece[kOnePiece];
        std::copy_n(data, out.head.length, std::copy_n(head, sizeof out.head, piece));
        return send(fd, piece + out.done, whole - out.done, flags);
    }
    const size_t header = std::min(out.done, sizeof out.head), payload = out.done - header;
    iovec parts[2] = {{const_cast<unsigned char*>(head) + header, sizeof out.head - header},
                      {data + payload, out.head.length - payload}};
    const int skip = parts[0].iov_len == 0;
    msghdr message{};
    message.msg_iov = parts + skip;
    message.msg_iovlen = size_t(2 - skip);
    return sendmsg(fd, &message, flags);
}

}  // namespace

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
    s.out.head = {r.sequence, r.taken, length, r.size, r.tag, 0, {}};
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
        const ssize_t n = push(s.socket.fd(), out);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
            s.writable = false;
            ++s.counters.stalls;
            break;
        }
        if (n < 0) {
            stream_failed(s, errno);
            return true;
        }
        out.done += size_t(n);
        s.pace.written += uint64_t(n);
    }
    if (out.done == whole) {
        Request& r = *out.request;
        out.request = nullptr;
        s.counters.bytes_sent += out.head.length;
        ++s.counters.chunks_sent;
        r.moved += out.head.length;
        if (r.moved == r.size && r.taken == r.size) finish(r);
    }
    return out.done > before;
}

}  // namespace bagua
