#include "switchboard.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>

namespace bagua {

namespace {

constexpr int64_t kBusy = 200 * kMicrosecond, kSlow = 5 * kMillisecond;  // between two looks at handshakes
constexpr int64_t kSlowAfter = 200 * kMillisecond;  // without news
constexpr int64_t kKnockAgain = kSecond;
constexpr int64_t kLastWord = 500 * kMillisecond;  // for a call that began a moment later to say why it failed
constexpr uint64_t kKnock = 128;  // in a connection's name, beside its lane

uint64_t name_of(int rank, uint64_t lane) { return uint64_t(rank) << 8 | lane; }

}  // namespace

Switchboard::Switchboard(const Settings& settings, const std::vector<Interface>& interfaces,
                         std::unique_ptr<Listener> listener, std::vector<Handle> handles, Lanes lanes)
    : settings_(settings),
      interfaces_(interfaces),
      listener_(std::move(listener)),
      handles_(std::move(handles)),
      lanes_(lanes),
      rank_(lanes[0]->rank),
      size_(lanes[0]->size),
      missing_((size_ - 1) * kLanes),
      bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      thread_([this] { run(); }) {}

Switchboard::~Switchboard() {
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        closing_ = true;
    }
    eventfd_write(bell_, 1);
    thread_.join();
    close(bell_);
}

void Switchboard::want(int lane, int peer) {
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        wishes_.emplace_back(lane, peer);
    }
    eventfd_write(bell_, 1);
}

Status Switchboard::open_all(const std::atomic<bool>& aborted) {
    const int64_t deadline = now_ns() + settings_.connect_timeout + kLastWord;
    for (int peer = 0; peer < rank_; ++peer)  // the others call
        for (int lane = 0; lane < kLanes; ++lane) want(lane, peer);
    std::unique_lock<std::mutex> guard(mutex_);
    while (missing_ > 0) {
        if (!first_failure_) return first_failure_;
        if (aborted) return {Code::system, "aborted"};
        if (now_ns() > deadline) return {Code::remote, absent()};
        changed_.wait_for(guard, std::chrono::milliseconds(10));
    }
    for (Mesh* lane : lanes_) lane->unpack();
    return {};
}

// Which ranks have not called. (A call of our own has its own error.)
std::string Switchboard::absent() const {
    std::string ranks;
    int count = 0;
    for (int peer = rank_ + 1; peer < size_; ++peer) {
        const auto is_there = [&](int lane) { return there_.count({lane, peer}) > 0; };
        if (is_there(0) && is_there(1)) continue;
        ranks += (count++ ? ", " : "") + std::to_string(peer);
    }
    if (count == 0) return "calls of lower ranks have not ended within " + seconds_text(settings_.connect_timeout);
    Address own;
    const bool known = Address::from_wire(handles_[size_t(rank_)].addresses[0], &own);
    return (count == 1 ? "rank " : "ranks ") + ranks + (count == 1 ? " has" : " have") + " not connected to rank " +
           std::to_string(rank_) + (known ? " at " + own.text() : "") + " within " +
           seconds_text(settings_.connect_timeout);
}

void Switchboard::run() {
    int64_t news_at = now_ns();
    while (true) {
        {
            const std::lock_guard<std::mutex> guard(mutex_);
            if (closing_ || missing_ == 0) break;
        }
        take_wishes();
        bool news = take_calls();  // first: who has called needs no knock any more
        news |= step_calls();
        knock_again();
        if (news) news_at = now_ns();
        else rest(now_ns() - news_at);
    }
    calls_.clear();
    listener_.reset();
}

void Switchboard::take_wishes() {
    std::vector<Line> wishes;
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        wishes.swap(wishes_);
    }
    for (const Line& line : wishes) call(line);
}

// Call a lower rank, knock at a higher one.
void Switchboard::call(Line line) {
    const auto [lane, peer] = line;
    if (there_.count(line) || calls_.count(line)) return;
    Settings settings = settings_;
    if (peer > rank_) settings.streams = 1;
    const uint64_t name = name_of(rank_, uint64_t(lane) | (peer > rank_ ? kKnock : 0));
    calls_[line] = std::make_unique<Connector>(settings, interfaces_, handles_[size_t(peer)], name);
}

void Switchboard::knock_again() {
    const int64_t due = now_ns() - kKnockAgain;
    for (auto at = knocked_.begin(); at != knocked_.end();) {
        const auto [line, when] = *at;
        at = when < due ? knocked_.erase(at) : std::next(at);
        if (when < due) call(line);
    }
}

// Who has called, and who has knocked.
bool Switchboard::take_calls() {
    bool news = false;
    while (auto connection = listener_->accept()) {
        news = true;
        const uint64_t peer = connection->name >> 8, lane = connection->name & 127;
        if (peer >= uint64_t(size_) || lane >= kLanes || int(peer) == rank_) continue;  // not one of the group
        const Line line{int(lane), int(peer)};
        const bool knocks = connection->name & kKnock;
        if (knocks && line.second < rank_)
            call(line);
        else if (!knocks && line.second > rank_ && !there_.count(line))
            made(line, std::move(connection));
    }
    return news;
}

bool Switchboard::step_calls() {
    bool news = false;
    for (auto at = calls_.begin(); at != calls_.end();) {
        const Line line = at->first;
        std::unique_ptr<Connection> connection;
        Status status = at->second->step(&connection);
        if (status && at->second->refused())
            status = {Code::remote, "rank " + std::to_string(line.second) + " is gone: " + at->second->where() +
                                        " refuses connections"};
        if (status && !connection) {
            ++at;
            continue;
        }
        news = true;
        at = calls_.erase(at);
        if (!status)
            unreachable(line, status);
        else if (line.second < rank_)
            made(line, std::move(connection));
        else
            knocked_[line] = now_ns();
    }
    return news;
}

void Switchboard::made(Line line, std::unique_ptr<Connection> connection) {
    calls_.erase(line);
    knocked_.erase(line);
    lanes_[size_t(line.first)]->deliver(line.second, std::move(connection));
    const std::lock_guard<std::mutex> guard(mutex_);
    there_[line] = true;
    --missing_;
    changed_.notify_all();
}

void Switchboard::unreachable(Line line, const Status& reason) {
    lanes_[size_t(line.first)]->refuse(line.second, reason);
    const std::lock_guard<std::mutex> guard(mutex_);
    if (first_failure_) first_failure_ = reason;
    changed_.notify_all();
}

// Until somebody calls or wishes for something; with handshakes under way, for a short time only.
void Switchboard::rest(int64_t since_news) {
    std::vector<pollfd> fds{{bell_, POLLIN, 0}};
    for (int fd : listener_->descriptors()) fds.push_back({fd, POLLIN, 0});
    const int64_t nap = since_news < kSlowAfter ? kBusy : kSlow;
    const bool under_way = !calls_.empty() || listener_->busy() || bell_ < 0;
    const timespec limit = under_way ? timespec{0, nap} : timespec{kKnockAgain / kSecond, 0};
    const bool waits = under_way || !knocked_.empty();
    ppoll(fds.data(), fds.size(), waits ? &limit : nullptr, nullptr);
    eventfd_t count;
    eventfd_read(bell_, &count);
}

}  // namespace bagua
