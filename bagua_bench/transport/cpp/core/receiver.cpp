#include "receiver.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "crc.h"
#include "tuning.h"

namespace bagua {

namespace {

std::string text_of(uint32_t tag) {
    if (tag & kContinued) return "the rest of one with tag " + std::to_string(tag & ~kContinued);
    return std::to_string(tag);
}

}  // namespace

Receiver::Receiver(Trunk& trunk, Receipts& receipts, Connection* connection)
    : trunk_(trunk), receipts_(receipts), window_(connection) {}

Request* Receiver::post(void* data, uint32_t size, uint32_t tag, bool exact) {
    Request* r = window_.post(data, size, tag, exact);
    if (!r) return nullptr;
    for (auto& s : trunk_.streams) s->parked = false;  // the header at hand may be this message's
    return r;
}

bool Receiver::has_next(uint32_t tag) const {
    return std::any_of(trunk_.streams.begin(), trunk_.streams.end(), [&](const auto& s) {
        if (!s->parked) return false;
        ChunkHeader h;
        std::memcpy(&h, s->stage + s->stage_begin, sizeof h);
        return h.sequence == window_.next() && h.tag == tag;
    });
}

bool Receiver::pump() {
    bool moved = false;
    const size_t count = trunk_.streams.size();
    // The stream of the last small message is tried without asking the kernel first: that saves a system call.
    for (size_t k = 0; k < count && trunk_.status; ++k) {
        const size_t i = (likely_ + k) % count;
        Stream& s = *trunk_.streams[i];
        const bool guess = k == 0 && window_.pending() > 0 && s.awaited == 1;
        if (s.parked || s.ended || !(s.readable || guess || s.staged() > 0)) continue;
        if (read(s, s.readable || guess)) {
            moved = true;
            if (k > 0 && !s.in.request) likely_ = i;
        }
    }
    return moved;
}

// Let the kernel wake us when the rest of the chunk is there, or much of it: a reader that takes every segment by
// itself spends its time on waking up. (Below the mark, the kernel acknowledges what nobody has read yet; it enlarges
// the window for that, and wakes us earlier if it has no memory for so much.)
void Receiver::await(Stream& s) {
    const uint32_t left = s.in.request ? s.in.left : 0;
    const int bytes = left > Tuning::kBulkRestBytes ? int(std::min(left, Tuning::kWakeUpBytes)) : 1;
    if (bytes == s.awaited) return;
    s.awaited = bytes;
    setsockopt(s.socket.fd(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

// `may_ask`: the kernel may have bytes.
bool Receiver::read(Stream& s, bool may_ask) {
    bool moved = false;
    for (int calls = 0; calls < Tuning::kReadsPerStream && trunk_.status && !s.parked && !s.ended;) {
        if (s.in.request && s.staged() > 0) {
            moved |= unpack(s);
        } else if (!s.in.request && s.staged() >= sizeof(ChunkHeader)) {
            moved |= open_chunk(s);
        } else if (may_ask) {
            moved |= s.in.request ? read_payload(s) : read_ahead(s);
            may_ask = s.readable;
            ++calls;
        } else {
            break;
        }
    }
    if (!s.readable && !s.ended) await(s);
    return moved;
}

// What a system call brought; true if it brought bytes, the end of the stream, or its failure.
bool Receiver::received(Stream& s, ssize_t got, size_t room) {
    if (got < 0 && errno == EINTR) return false;
    // Less than asked for: nothing is left (epoll(7), edge-triggered), except an end that was already reported.
    s.readable = got == ssize_t(room) || (got > 0 && s.closed);
    if (got < 0 && errno == EAGAIN) return false;
    if (got < 0) trunk_.broke(s, errno);
    if (got == 0) ended(s);
    return true;
}

// Read a header and whatever follows it closely.
bool Receiver::read_ahead(Stream& s) {
    std::memmove(s.stage, s.stage + s.stage_begin, s.staged());
    s.stage_end -= s.stage_begin;
    s.stage_begin = 0;
    const size_t room = Stream::kStage - s.stage_end;
    const ssize_t n = recv(s.socket.fd(), s.stage + s.stage_end, room, MSG_DONTWAIT);
    if (n > 0) s.stage_end += size_t(n);
    return received(s, n, room);
}

// Read payload straight into the posted buffer, and the next header with it.
bool Receiver::read_payload(Stream& s) {
    Incoming& in = s.in;
    s.stage_begin = s.stage_end = 0;
    unsigned char* to = in.request->data + in.head.offset + (in.head.length - in.left);
    const size_t ahead = in.left > Tuning::kBulkRestBytes ? sizeof(ChunkHeader) : Stream::kStage;
    iovec parts[2] = {{to, in.left}, {s.stage, ahead}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = recvmsg(s.socket.fd(), &message, MSG_DONTWAIT);
    const size_t got = n > 0 ? std::min<size_t>(size_t(n), in.left) : 0;
    if (n > 0) s.stage_end = size_t(n) - got;
    const bool moved = received(s, n, parts[0].iov_len + parts[1].iov_len);
    if (got > 0) arrived(s, to, uint32_t(got));
    return moved;
}

// Copy what was read ahead.
bool Receiver::unpack(Stream& s) {
    Incoming& in = s.in;
    unsigned char* to = in.request->data + in.head.offset + (in.head.length - in.left);
    const uint32_t got = uint32_t(std::min<size_t>(s.staged(), in.left));
    std::memcpy(to, s.stage + s.stage_begin, got);
    s.stage_begin += got;
    arrived(s, to, got);
    return true;
}

void Receiver::arrived(Stream& s, const unsigned char* bytes, uint32_t count) {
    Incoming& in = s.in;
    if (trunk_.settings.crc) in.crc = crc32c(in.crc, bytes, count);
    in.left -= count;
    in.request->moved += count;
    s.counters.bytes_received += count;
    if (in.left == 0) close_chunk(s);
}

// Check the header at hand and find the buffer it belongs to. True unless that is not posted yet.
bool Receiver::open_chunk(Stream& s) {
    ChunkHeader h;
    std::memcpy(&h, s.stage + s.stage_begin, sizeof h);
    if (h.nothing && std::memcmp(&h, &kNothing, sizeof h) == 0) {
        s.stage_begin += sizeof h;
        return true;
    }
    if (int32_t(h.sequence - window_.next()) >= 0) {
        s.counters.parked += !s.early;
        s.early = s.parked = true;
        return false;
    }
    if (!acceptable(s, h)) return true;
    s.early = false;
    Request& r = window_.at(h.sequence);
    r.opened = true;
    r.receipt = h.receipt != 0;
    r.size = h.total;
    r.taken += h.length;
    s.stage_begin += sizeof h;
    s.in = {h, &r, h.length, 0};
    if (h.length == 0) close_chunk(s);
    return true;
}

// Whether a header describes a part that its message still lacks; the connection fails if not.
bool Receiver::acceptable(const Stream& s, const ChunkHeader& h) {
    const Request& r = window_.at(h.sequence);
    const auto bad = [&](Code code, const std::string& what) {
        trunk_.fail(code, "stream " + std::to_string(s.index) + " from " + s.where + ": " + what);
        return false;
    };
    if (r.state != Request::State::pending || r.sequence != h.sequence)
        return bad(Code::remote, "chunk of message " + std::to_string(h.sequence) + " where " +
                                     std::to_string(window_.next()) + " are expected");
    if (h.total > r.size || (r.exact && h.total < r.size && !r.opened))
        return bad(Code::usage, "message of " + std::to_string(h.total) + " bytes for a buffer of " +
                                    std::to_string(r.size));
    if (h.tag != r.tag)
        return bad(Code::usage, "message with tag " + text_of(h.tag) + " where " + text_of(r.tag) + " is expected");
    if (r.opened && (h.total != r.size || h.receipt != uint32_t(r.receipt)))
        return bad(Code::remote, "chunks disagree about their message");
    if (h.receipt > 1 || h.nothing) return bad(Code::remote, "a header of an unknown kind");
    const bool fits = uint64_t(h.offset) + h.length <= h.total && uint64_t(r.taken) + h.length <= h.total;
    if (!fits || (h.length == 0 && h.total > 0)) return bad(Code::remote, "chunk outside its message");
    return true;
}

void Receiver::close_chunk(Stream& s) {
    Request& r = *s.in.request;
    s.in.request = nullptr;
    const bool remind = ++s.counters.chunks_received % Tuning::kChunksPerReminder == 0;
    if (remind && r.size <= Tuning::kSmallMessageBytes) save_acknowledgements(s.socket.fd());
    if (trunk_.settings.crc && s.in.crc != s.in.head.crc)
        return trunk_.fail(Code::remote, "stream " + std::to_string(s.index) + " from " + s.where + ": wrong checksum");
    if (r.moved < r.size) return;
    if (r.receipt)
        receipts_.owe(r);
    else
        window_.finish(r);
}

// The peer closed the stream, which is an error in the middle of a chunk. Whether others can bring the rest is for
// Connection::check_life() to see.
void Receiver::ended(Stream& s) {
    s.ended = s.closed = true;
    if (s.in.request || s.staged() > 0) trunk_.broke(Code::remote, "peer " + trunk_.peer + " closed the connection");
}

}  // namespace bagua
