#include "connection.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "tuning.h"

namespace bagua {

namespace {

// All but the last of them.
std::vector<std::unique_ptr<Stream>> streams_of(std::vector<Socket>& sockets) {
    std::vector<std::unique_ptr<Stream>> streams;
    for (auto socket = sockets.begin(); socket + 1 != sockets.end(); ++socket) {
        auto stream = std::make_unique<Stream>();
        stream->index = int(streams.size());
        stream->where = peer_text(socket->fd());
        stream->pace.first_rtt = std::max(round_trip(socket->fd()), 0.0);
        if (stream->pace.first_rtt > Tuning::kFarSeconds) stream->pace.rtt = stream->pace.first_rtt;
        stream->socket = std::move(*socket);
        streams.push_back(std::move(stream));
    }
    return streams;
}

// At most kMaxStreams of them.
int wait_for_events(int epoll, epoll_event* events, int64_t nanoseconds) {
    static std::atomic<bool> coarse{false};  // Linux before 5.11, and some sandboxes, only know milliseconds
    if (!coarse) {
        const timespec limit{nanoseconds / kSecond, nanoseconds % kSecond};
        const int count = epoll_pwait2(epoll, events, kMaxStreams, &limit, nullptr);
        if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
        coarse = true;
    }
    return epoll_wait(epoll, events, kMaxStreams, int((nanoseconds + kMillisecond - 1) / kMillisecond));
}

}  // namespace

Connection::Connection(const Settings& settings, std::vector<Socket> sockets, const std::string& interfaces,
                       uint64_t caller)
    : name(caller),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      pulse_(watch_pulse(sockets, settings.timeout)),
      trunk_{settings, peer_text(sockets[0].fd()), streams_of(sockets), {}, [this] { hang_up(); }, [this] { return lost(); }},
      sender_(trunk_, this),
      receipts_(trunk_, sender_, std::move(sockets.back())),
      receiver_(trunk_, receipts_, this),
      patience_(Tuning::nudge_after(first_round_trip(trunk_.streams))) {
    watch(receipts_.fd(), nullptr);
    for (auto& s : trunk_.streams) watch(s->socket.fd(), s.get());
    if (epoll_ < 0) fail(Code::system, "cannot wait for events: " + error_text(errno));
    if (settings.log)
        settings.log(Level::info, "bagua-net 1 in use: " + std::to_string(trunk_.streams.size()) + " streams over " +
                                      interfaces + " to " + trunk_.peer + (settings.crc ? ", checksums on" : ""));
}

Connection::~Connection() {
    hang_up();
    drop_pulse(pulse_);
    if (epoll_ >= 0) close(epoll_);
}

// Have the kernel report events of a socket; null stands for the receipts'.
void Connection::watch(int fd, Stream* stream) {
    tune(fd, trunk_.settings.timeout);
    control(fd, trunk_.settings.congestion);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = stream;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

Request* Connection::send(const void* data, uint32_t size, uint32_t tag) {
    return trunk_.status ? sender_.post(data, size, tag) : nullptr;
}

Request* Connection::receive(void* data, uint32_t size, uint32_t tag, bool exact) {
    return trunk_.status ? receiver_.post(data, size, tag, exact) : nullptr;
}

bool Connection::pump() {
    bool moved = receipts_.pump();
    moved |= sender_.pump();
    moved |= receiver_.pump();
    return moved;
}

bool Connection::progress() {
    if (!trunk_.status) return false;
    const int64_t now = now_ns();
    if (resting(now)) return false;
    bool moved = pump();
    const bool due = moved && ++moves_ % Tuning::kMovesPerEventCheck == 0;  // a busy stream must not hide the others
    const bool ask = due || (!moved && now - asked_ >= Tuning::kEventCheckIntervalNs);
    if (ask && trunk_.status && collect_events(0) && !moved) moved = pump();
    if (!moved && trunk_.status) check_life(now);
    return moved;
}

bool Connection::collect_events(int64_t nanoseconds) {
    epoll_event events[kMaxStreams];
    const int count = wait_for_events(epoll_, events, nanoseconds);
    asked_ = now_ns();
    for (int i = 0; i < count; ++i) {
        if (!events[i].data.ptr) {
            receipts_.notice();
            continue;
        }
        auto& s = *static_cast<Stream*>(events[i].data.ptr);
        const bool broken = events[i].events & (EPOLLERR | EPOLLHUP);
        s.readable |= broken || events[i].events & (EPOLLIN | EPOLLRDHUP);
        s.writable |= broken || events[i].events & EPOLLOUT;
        s.closed |= broken || events[i].events & EPOLLRDHUP;
        // Nobody reads a parked stream, so its end would not be seen.
        if (posted() && s.parked && events[i].events & EPOLLERR) trunk_.broke(s, ECONNRESET);
    }
    return count > 0;
}

bool Connection::left() const {
    const auto over = [](const auto& s) { return s->ended || (s->closed && s->parked); };
    return receipts_.over() && std::all_of(trunk_.streams.begin(), trunk_.streams.end(), over);
}

// See to what no event reports: a process that stopped, a path that swallows what is sent on it, a full receive queue.
void Connection::check_life(int64_t now) {
    if (pulse_->lost != Pulse::kNothing) return fail(Code::remote, lost());
    // A parked stream holds later messages only: it cannot bring what is posted, but what somebody may yet ask for.
    const auto over = [this](const auto& s) { return s->ended || (s->closed && s->parked && posted()); };
    if (pending() && receipts_.over() && std::all_of(trunk_.streams.begin(), trunk_.streams.end(), over))
        return trunk_.broke(Code::remote, "peer " + trunk_.peer + " closed the connection");
    if (cut_off(now) && now - nudged_ >= patience_) nudge(now);
    if (now - checked_ < Tuning::kLifeCheckIntervalNs) return;
    checked_ = now;
    for (auto& s : trunk_.streams) s->readable |= s->awaited > 1;  // some kernels run out of memory below the mark
}

void Connection::nudge(int64_t now) {
    nudged_ = now;
    for (auto& s : trunk_.streams)
        if (pulse_->was_cut_off(size_t(s->index), now)) sender_.nudge(*s);
    if (pulse_->was_cut_off(trunk_.streams.size(), now)) receipts_.nudge();
}

// The watcher's paths are the streams, and after them the receipts; what is beyond them is the peer as a whole.
std::string Connection::lost() const {
    const int path = pulse_->lost;
    if (path == Pulse::kNothing) return "";
    const size_t number = size_t(path), count = trunk_.streams.size();
    const std::string longer =
        " for longer than the time-out of " + std::to_string(trunk_.settings.timeout / kMillisecond) + " ms";
    if (number < count)
        return "stream " + std::to_string(path) + " to " + trunk_.streams[number]->where + ": no answer" + longer;
    if (number == count) return "receipts to peer " + trunk_.peer + ": no answer" + longer;
    return "peer " + trunk_.peer + " gave no sign of life" + longer + ": stopped or cut off";
}

// Pages that were lent may be overwritten from now on: the kernel must not go on sending them.
void Connection::hang_up() {
    const bool drop = sender_.lends();
    for (auto& s : trunk_.streams) drop ? reset(s->socket.fd()) : shut(s->socket.fd());
    shut(receipts_.fd());
}

}  // namespace bagua
