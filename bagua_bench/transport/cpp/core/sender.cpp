#include "sender.h"

#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "crc.h"
#include "tuning.h"

namespace bagua {

namespace {

constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;

bool near(const Stream& s) { return s.pace.rtt > 0 && s.pace.rtt <= Tuning::kNearRoundTripSeconds; }

}  // namespace

Sender::Sender(Trunk& trunk, Connection* connection)
    : trunk_(trunk), window_(connection), schedule_(trunk.streams, trunk.settings.chunk, trunk.settings.streams == Settings::kAutomatic),
      may_lend_(trunk.settings.zero_copy) {}

Request* Sender::post(const void* data, uint32_t size, uint32_t tag) {
    Request* r = window_.post(const_cast<void*>(data), size, tag);
    if (!r) return nullptr;
    unwritten_ += size;
    wake_at_ = 0;
    // A small message should be under way on return; a large one is cut when it is known what else is to go.
    if (size <= Tuning::kSmallMessageBytes) pump();
    return r;
}

bool Sender::pump() {
    if (window_.pending() == 0) return false;
    bool moved = false;
    for (auto& s : trunk_.streams)
        if (s->out.request && s->writable) moved |= write(*s);
    if (moved) wake_at_ = 0;
    if (wake_at_ && now_ns() < wake_at_) return false;
    wake_at_ = 0;
    for (int i = 0; i < Tuning::kChunksPerCall && trunk_.status && cursor_ != window_.next(); ++i) {
        const Request& r = window_.at(cursor_);
        const Schedule::Choice choice = schedule_.choose(r.size - r.taken, unwritten_);
        if (!choice.stream) {
            wake_at_ = schedule_.room_at();
            break;
        }
        take(*choice.stream, choice.length);
        moved |= write(*choice.stream);
    }
    return moved;
}

bool Sender::delivered(uint32_t sequence) {
    Request& r = window_.at(sequence);
    if (r.state != Request::State::pending || r.sequence != sequence || !r.receipt || r.moved != r.size) return false;
    --awaited_;
    window_.finish(r);
    return true;
}

void Sender::nudge(Stream& s) {
    if (s.closed || !awaits_acknowledgements(s.socket.fd(), Tuning::nudge_after(s.pace.first_rtt))) return;
    if (!s.out.request) {
        s.out.request = &nothing_;
        s.out.done = 0;
        s.out.lend = false;
        s.out.head = kNothing;
    }
    write(s);
}

bool Sender::resting(int64_t now) const {
    const auto writing = [](const auto& s) { return s->out.request != nullptr; };
    const bool later = awaited_ == 0 && window_.pending() > 0 && now < wake_at_;
    return later && std::none_of(trunk_.streams.begin(), trunk_.streams.end(), writing);
}

bool Sender::lends() const {
    const auto lent = [](const Request& r) { return r.state == Request::State::pending && r.receipt; };
    return std::any_of(window_.requests().begin(), window_.requests().end(), lent);
}

// Bytes from which on a message is lent. Over a slow path the time of a receipt is hidden and that of a copy is not.
size_t Sender::least_lent(const Stream& s) const {
    return s.pace.slow ? Tuning::kMinLentMessageBytes : trunk_.settings.lent_from;
}

// Promise the next chunk to a stream.
void Sender::take(Stream& s, uint32_t length) {
    Request& r = window_.at(cursor_);
    assert(!s.out.request && length <= r.size - r.taken && (length > 0 || r.size == 0));
    s.out.request = &r;
    s.out.done = 0;
    if (r.taken == 0) r.receipt = may_lend_ && r.size >= least_lent(s) && near(s);
    s.out.lend = r.receipt && (!s.pace.fast || r.size <= Tuning::kCachedMessageBytes ||
                               ++turn_ % Tuning::kChunksPerLentChunk == 0);
    s.out.head = {r.sequence, r.taken, length, r.size, r.tag, 0, r.receipt, 0, {}};
    if (trunk_.settings.crc) s.out.head.crc = crc32c(0, r.data + r.taken, length);
    r.taken += length;
    unwritten_ -= length;
    if (r.taken == r.size) ++cursor_;
}

// Write the stream's chunk, as much of it as the kernel takes.
bool Sender::write(Stream& s) {
    Outgoing& out = s.out;
    const size_t whole = sizeof out.head + out.head.length;
    const size_t before = out.done;
    while (out.done < whole) {
        size_t lent = 0;
        const ssize_t n = push(s, &lent);
        if (n < 0 && errno == EINTR) continue;
        const bool full = n < 0 && (errno == EAGAIN || errno == ENOBUFS);
        if (n < 0 && !full) {
            trunk_.broke(s, errno);
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
    const bool moved = out.done > before;
    if (out.done == whole) written(s);
    return moved;
}

// The kernel has the whole chunk.
void Sender::written(Stream& s) {
    Outgoing& out = s.out;
    Request& r = *out.request;
    out.request = nullptr;
    if (&r == &nothing_) return;
    s.counters.bytes_sent += out.head.length;
    ++s.counters.chunks_sent;
    r.moved += out.head.length;
    if (r.moved < r.size || r.taken < r.size) return;
    if (r.receipt)
        ++awaited_;
    else
        window_.finish(r);
}

// Hand header and payload to the kernel, from `done` on; what it took, or -1. `lent`: bytes offered without a copy.
ssize_t Sender::push(const Stream& s, size_t* lent) {
    const Outgoing& out = s.out;
    const int fd = s.socket.fd();
    const auto* head = reinterpret_cast<const unsigned char*>(&out.head);
    unsigned char* data = out.request->data + out.head.offset;
    const size_t whole = sizeof out.head + out.head.length;
    if (whole <= Tuning::kCopiedTogetherBytes) {
        unsigned char piece[Tuning::kCopiedTogetherBytes];
        std::copy_n(data, out.head.length, std::copy_n(head, sizeof out.head, piece));
        return ::send(fd, piece + out.done, whole - out.done, kFlags);
    }
    const size_t header = std::min(out.done, sizeof out.head), payload = out.done - header;
    if (out.lend && out.head.length - payload >= Tuning::kMinLentRestBytes) {
        if (header < sizeof out.head) return ::send(fd, head + header, sizeof out.head - header, kFlags | MSG_MORE);
        const ssize_t n = pages_.lend(fd, data + payload, out.head.length - payload, lent);
        if (*lent > 0) return n;
        may_lend_ = false;  // no more receipts in vain
    }
    return push_parts(s, header, payload);
}

// The rest of the header and of the payload, with a copy.
ssize_t Sender::push_parts(const Stream& s, size_t header, size_t payload) {
    const Outgoing& out = s.out;
    auto* head = reinterpret_cast<unsigned char*>(const_cast<ChunkHeader*>(&out.head));
    iovec parts[2] = {{head + header, sizeof out.head - header},
                      {out.request->data + out.head.offset + payload, out.head.length - payload}};
    const int skip = parts[0].iov_len == 0;
    msghdr message{};
    message.msg_iov = parts + skip;
    message.msg_iovlen = size_t(2 - skip);
    return sendmsg(s.socket.fd(), &message, kFlags);
}

}  // namespace bagua
