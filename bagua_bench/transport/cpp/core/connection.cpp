#include "connection.h"

#include <linux/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace bagua {

namespace {

constexpr unsigned kEventsEvery = 8;  // calls of progress() that moved something
constexpr int64_t kDense = 10 * kMicrosecond;  // a caller that spins asks for events only so often
constexpr int64_t kCheck = 250 * kMillisecond;  // between two looks for streams whose path is dead

}  // namespace

Connection::Connection(const Settings& settings, std::vector<Socket> sockets, const std::string& interfaces,
                       uint64_t caller)
    : name(caller), settings_(settings), sends_(kWindow), receives_(kWindow) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    pulse_ = watch_pulse(std::move(sockets.back()), settings.timeout);
    sockets.pop_back();
    receipts_.socket = std::move(sockets.back());
    sockets.pop_back();
    const auto watch = [this, &settings](int fd, Stream* stream) {
        tune(fd, settings.timeout);
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
        event.data.ptr = stream;
        epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    };
    watch(receipts_.socket.fd(), nullptr);
    peer_ = peer_text(sockets[0].fd());
    for (auto& socket : sockets) {
        auto stream = std::make_unique<Stream>();
        stream->index = int(streams_.size());
        stream->where = peer_text(socket.fd());
        watch(socket.fd(), stream.get());
        stream->socket = std::move(socket);
        streams_.push_back(std::move(stream));
    }
    for (auto& r : sends_) r.connection = this, r.sending = true;
    for (auto& r : receives_) r.connection = this;
    if (settings_.log)
        settings_.log(Level::info, "bagua-net 1 in use: " + std::to_string(streams_.size()) + " streams over " +
                                       interfaces + " to " + peer_ + (settings_.crc ? ", checksums on" : ""));
}

Connection::~Connection() {
    hang_up();
    drop_pulse(pulse_);
    if (epoll_ >= 0) close(epoll_);
}

Request* Connection::post(std::vector<Request>& window, uint32_t* next, void* data, uint32_t size, uint32_t tag) {
    Request& r = window[*next % kWindow];
    if (!status_ || r.state != Request::State::free) return nullptr;
    r.state = Request::State::pending;
    r.data = static_cast<unsigned char*>(data);
    r.sequence = (*next)++;
    r.tag = tag;
    r.size = size;
    r.taken = r.moved = 0;
    r.opened = r.receipt = false;
    return &r;
}

Request* Connection::send(const void* data, uint32_t size, uint32_t tag) {
    Request* r = post(sends_, &next_send_, const_cast<void*>(data), size, tag);
    if (!r) return nullptr;
    ++pending_sends_;
    unwritten_ += size;
    wake_at_ = 0;
    // A small message should be under way on return; a large one is cut when it is known what else is to go.
    if (size <= Schedule::kSmall) pump_sends();
    return r;
}

Request* Connection::receive(void* data, uint32_t size, uint32_t tag) {
    Request* r = post(receives_, &next_receive_, data, size, tag);
    if (!r) return nullptr;
    ++pending_receives_;
    for (auto& s : streams_) s->parked = false;  // the header at hand may be this message's
    return r;
}

void Connection::release(Request* request) { request->state = Request::State::free; }

void Connection::finish(Request& request) {
    request.state = Request::State::done;
    --(request.sending ? pending_sends_ : pending_receives_);
}

bool Connection::progress() {
    if (!status_) return false;
    const int64_t now = now_ns();
    if (resting(now)) return false;
    bool moved = pump_receipts();
    moved |= pump_sends();
    moved |= pump_receives();
    const bool due = moved && ++calls_ % kEventsEvery == 0;  // a busy stream must not hide the others
    const bool ask = due || (!moved && now - asked_ >= kDense);
    if (ask && status_ && collect_events(0) && !moved) {
        moved = pump_receipts();
        moved |= pump_sends();
        moved |= pump_receives();
    }
    if (!moved && status_) check_life(now);
    return moved;
}

// Nothing is to be received, not even a receipt, and nothing can be sent before wake_at_.
bool Connection::resting(int64_t now) const {
    const auto writing = [](const auto& s) { return s->out.request != nullptr; };
    const bool later = pending_receives_ + awaited_ == 0 && pending_sends_ > 0 && now < wake_at_;
    return later && std::none_of(streams_.begin(), streams_.end(), writing);
}

void Connection::wait(int64_t nanoseconds) {
    if (const int64_t at = wake_at()) nanoseconds = std::min(nanoseconds, at - now_ns());
    if (status_) collect_events(std::clamp(nanoseconds, int64_t(0), kCheck));
}

bool Connection::collect_events(int64_t nanoseconds) {
    epoll_event events[kMaxStreams];
    const timespec limit{nanoseconds / kSecond, nanoseconds % kSecond};
    const int count = epoll_pwait2(epoll_, events, kMaxStreams, &limit, nullptr);
    asked_ = now_ns();
    for (int i = 0; i < count; ++i) {
        receipts_.readable |= !events[i].data.ptr;
        if (!events[i].data.ptr) continue;
        auto& s = *static_cast<Stream*>(events[i].data.ptr);
        const bool broken = events[i].events & (EPOLLERR | EPOLLHUP);
        s.readable |= broken || events[i].events & (EPOLLIN | EPOLLRDHUP);
        s.writable |= broken || events[i].events & EPOLLOUT;
        s.closed |= broken || events[i].events & EPOLLRDHUP;
        // Nobody reads a parked stream, so that its end would not be seen.
        if (s.parked && events[i].events & EPOLLERR) stream_failed(s, ECONNRESET);
    }
    return count > 0;
}

// What no event tells: a process that stopped, a path that swallows what is sent on it, a full receive queue.
void Connection::check_life(int64_t now) {
    if (pulse_->lost) {
        fail(Code::remote, "peer " + peer_ + " gave no sign of life for " +
                               std::to_string(settings_.timeout / kMillisecond) + " ms: stopped or cut off");
        return;
    }
    // A parked stream holds later messages only: it cannot bring what is pending.
    const auto over = [](const auto& s) { return s->ended || (s->closed && s->parked); };
    if (pending() && receipts_.over && std::all_of(streams_.begin(), streams_.end(), over))
        return fail(Code::remote, "peer " + peer_ + " closed the connection");
    if (now - checked_ < kCheck) return;
    checked_ = now;
    for (auto& s : streams_) {
        s->readable |= s->awaited > 1;  // some kernels run out of memory below the mark without a word
        tcp_info info{};
        socklen_t size = sizeof info;
        if (getsockopt(s->socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
        const bool silent = int64_t(info.tcpi_last_ack_recv) * kMillisecond > settings_.timeout - 2 * kCheck;
        if (info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 && silent) return stream_failed(*s, ETIMEDOUT);
    }
}

void Connection::stream_failed(const Stream& stream, int error) {
    fail(error == ECONNRESET || error == EPIPE || error == ETIMEDOUT ? Code::remote : Code::system,
         "stream " + std::to_string(stream.index) + " to " + stream.where + ": " + error_text(error));
}

void Connection::fail(Code code, const std::string& text) {
    if (!status_) return;
    status_ = {code, text};
    if (settings_.log) settings_.log(Level::warning, "bagua-net: " + text);
    hang_up();  // the peer shall know at once
}

// What was lent may be overwritten from now on: the kernel must not go on sending it.
void Connection::hang_up() {
    const auto lent = [](const Request& r) { return r.state == Request::State::pending && r.receipt; };
    const bool drop = std::any_of(sends_.begin(), sends_.end(), lent);
    for (auto& s : streams_) drop ? reset(s->socket.fd()) : shut(s->socket.fd());
    shut(receipts_.socket.fd());
}

}  // namespace bagua
