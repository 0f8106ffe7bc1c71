#include "mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>

namespace bagua {

namespace {

constexpr int64_t kNap = 100 * kMillisecond;  // the longest wait, after which the signs of life are checked
constexpr size_t kCopiedAtOnce = 128 << 10;  // bytes, after which there may be something to move again

std::vector<int> counted(int ranks) {
    std::vector<int> all(static_cast<size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

// Copy some of it; false if nothing is left.
bool copy_some(std::vector<OwnCopy>& copies) {
    if (copies.empty()) return false;
    OwnCopy& c = copies.back();
    const size_t some = std::min(c.size, kCopiedAtOnce);
    std::memmove(c.to, c.from, some);
    c = {c.from + some, c.to + some, c.size - some};
    if (c.size == 0) copies.pop_back();
    return true;
}

}  // namespace

Mesh::Mesh(int own, int ranks, std::function<void(int)> ask, bool exact)
    : rank(own),
      size(ranks),
      line(counted(ranks)),
      pairs(counted(ranks)),
      ask_(std::move(ask)),
      exact_(exact),
      peers_(size_t(ranks)),
      refused_(size_t(ranks)),
      asked_(size_t(ranks)),
      bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Mesh::~Mesh() { close(bell_); }

void Mesh::want(int peer) {
    if (asked_[size_t(peer)]) return;
    asked_[size_t(peer)] = true;
    ++missing_;
    ask_(peer);
}

void Mesh::await(const std::vector<int>& peers) {
    unpack();
    for (const int peer : peers)
        if (lacks(peer)) want(peer);
    while (std::any_of(peers.begin(), peers.end(), [this](int peer) { return lacks(peer); }))
        if (!unpack() && !idle()) return;
}

void Mesh::want_all() {
    unpack();
    for (int peer = 0; peer < size; ++peer)
        if (peer != rank && !find(peer) && status(peer)) want(peer);
}

void Mesh::deliver(int peer, std::unique_ptr<Connection> connection) { hand_in({peer, std::move(connection), {}}); }

void Mesh::refuse(int peer, const Status& reason) { hand_in({peer, nullptr, reason}); }

void Mesh::hand_in(Delivery delivery) {
    const std::lock_guard<std::mutex> guard(post_box_);
    if (delivery.connection && !failed_) delivery.connection->fail(failed_.code, failed_.text);
    deliveries_.push_back(std::move(delivery));
    news_ = true;
    eventfd_write(bell_, 1);
}

void Mesh::look(int peer, const std::function<void(Connection*)>& at) {
    const std::lock_guard<std::mutex> guard(post_box_);
    at(find(peer));
}

bool Mesh::unpack() {
    if (!news_.load(std::memory_order_acquire)) return false;
    const std::lock_guard<std::mutex> guard(post_box_);
    eventfd_t count;
    eventfd_read(bell_, &count);
    news_ = false;
    for (auto& d : deliveries_) {
        if (asked_[size_t(d.peer)]) --missing_;
        asked_[size_t(d.peer)] = false;
        refused_[size_t(d.peer)] = d.reason;
        if (d.connection) peers_[size_t(d.peer)] = std::move(d.connection);
    }
    deliveries_.clear();
    return moved_ = true;
}

Request* Mesh::post(int peer, bool sending, void* data, size_t bytes, uint32_t tag) {
    if (aborted_) return nullptr;  // a peer that does not know it yet would take it for what was given up
    if (!find(peer)) unpack();
    if (!find(peer)) {
        if (status(peer)) want(peer);
        return nullptr;
    }
    return sending ? to(peer).send(data, uint32_t(bytes), tag) : to(peer).receive(data, uint32_t(bytes), tag, exact_);
}

bool Mesh::progress() {
    bool moved = unpack();
    for (auto& c : peers_)
        if (c && c->pending()) moved |= c->progress();
    moved_ |= moved;
    return moved;
}

bool Mesh::wait(int64_t nanoseconds, int extra_fd) {
    std::vector<pollfd> fds;
    std::vector<Connection*> waiting;
    nanoseconds = std::min(nanoseconds, kNap);
    const int64_t now = now_ns();
    for (auto& c : peers_) {
        if (!c || !c->pending()) continue;
        if (c->wake_at()) nanoseconds = std::min(nanoseconds, c->wake_at() - now);
        if (c->resting(now)) continue;
        fds.push_back({c->poll_fd(), POLLIN, 0});
        waiting.push_back(c.get());
    }
    nanoseconds = std::max<int64_t>(nanoseconds, 0);
    if (extra_fd < 0 && waiting.size() == 1 && !missing_) {
        waiting[0]->collect_events(nanoseconds);
        return false;
    }
    if (missing_) fds.push_back({bell_, POLLIN, 0});
    if (extra_fd >= 0) fds.push_back({extra_fd, POLLIN, 0});
    const timespec limit{nanoseconds / kSecond, nanoseconds % kSecond};
    if (ppoll(fds.data(), fds.size(), &limit, nullptr) <= 0) return false;
    for (size_t i = 0; i < waiting.size(); ++i)
        if (fds[i].revents) waiting[i]->collect_events(0);
    return extra_fd >= 0 && fds.back().revents;
}

unsigned char* Mesh::scratch(size_t bytes) {
    if (bytes > scratch_size_) {
        scratch_.reset(new unsigned char[bytes]);
        scratch_size_ = bytes;
    }
    return scratch_.get();
}

double Mesh::round_trip(int peer) const {
    if (peer < 0 || !peers_[size_t(peer)]) return 0;
    return first_round_trip(peers_[size_t(peer)]->streams());
}

const Status& Mesh::status(int peer) const {
    if (const auto& c = peers_[size_t(peer)]) return c->status();
    return refused_[size_t(peer)] ? failed_ : refused_[size_t(peer)];
}

Status Mesh::status() const {
    for (int peer = 0; peer < size; ++peer)
        if (const Status& s = status(peer); !s) return s;
    return {};
}

void Mesh::fail(const std::string& text) {
    const std::lock_guard<std::mutex> guard(post_box_);
    if (failed_) failed_ = {Code::remote, text};
    for (const auto& d : deliveries_)
        if (d.connection) d.connection->fail(Code::remote, text);
    for (auto& c : peers_)
        if (c) c->fail(Code::remote, text);
}

int64_t Mesh::grace() const {
    const int64_t now = now_ns();
    const auto waits = [&](const auto& c) { return c && c->cut_off(now); };
    return std::any_of(peers_.begin(), peers_.end(), waits) ? Tuning::kGraceNs : 0;
}

// Ranks that were asked for in vain, in words.
std::string Mesh::missing() const {
    std::string found;
    for (int peer = 0; peer < size; ++peer)
        if (asked_[size_t(peer)]) found += (found.empty() ? "; not connected to rank " : ", ") + std::to_string(peer);
    return found;
}

void Mesh::begin(int64_t patience) {
    patience_ = patience;
    moved_ = true;
}

Status Mesh::idle() {
    const int64_t now = now_ns();
    if (moved_) until_ = now + patience_;
    moved_ = false;
    int64_t left = until_ - now;
    if (left <= 0) left += grace();
    Status s = status();
    if (s && aborted_) s = {Code::system, "aborted"};
    if (s && left <= 0)
        s = {Code::system, "timed out: nothing moved within the timeout of " +
                              std::to_string(patience_ / kMillisecond) + " ms" + missing()};
    if (s)
        wait(left);
    else
        fail(s.text);  // nothing may be written any more to memory that the caller is about to take back
    return s;
}

Status Mesh::move(const std::vector<Transfer>& transfers, std::vector<OwnCopy> copies) {
    struct Part {
        int peer;
        bool sending;
        unsigned char* data;
        size_t size;
        uint32_t tag;
    };
    std::vector<std::deque<Part>> queues(2 * size_t(size));  // per rank and direction: posted in order
    for (const auto& t : transfers) {
        auto* at = static_cast<unsigned char*>(t.data);
        for (size_t done = 0; done < t.size; done += kMaxMessage)
            queues[2 * size_t(t.peer) + t.sending].push_back(
                {t.peer, t.sending, at + done, std::min<size_t>(kMaxMessage, t.size - done), done ? kContinued : 0});
    }
    std::vector<Request*> open;
    size_t left = 0;
    for (const auto& q : queues) left += q.size();
    while (left > 0 || !open.empty()) {
        bool moved = false;
        for (auto& q : queues) {
            while (!q.empty()) {
                const Part& p = q.front();
                Request* r = post(p.peer, p.sending, p.data, p.size, p.tag);
                if (!r) break;
                open.push_back(r);
                q.pop_front();
                --left;
                moved = true;
            }
        }
        moved |= progress();
        for (size_t i = 0; i < open.size();) {
            Request* r = open[i];
            if (r->state != Request::State::done) {
                ++i;
                continue;
            }
            r->connection->release(r);
            open[i] = open.back();
            open.pop_back();
            moved = true;
        }
        if (moved || copy_some(copies)) continue;
        if (Status s = idle(); !s) return s;
    }
    while (copy_some(copies)) continue;
    return {};
}

}  // namespace bagua
