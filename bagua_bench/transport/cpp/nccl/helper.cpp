#include "helper.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace nccl {

using namespace bagua;

namespace {

constexpr int64_t kNap = 100 * kMillisecond;  // the longest sleep, after which the signs of life are checked

}  // namespace

Helper::Helper() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void Helper::add(Comm* comm) {
    const std::lock_guard<std::mutex> alive(life_);
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        comms_.push_back(comm);
    }
    if (thread_.joinable()) return;
    over_ = false;
    thread_ = std::thread([this] { run(); });
}

void Helper::remove(Comm* comm) {
    const std::lock_guard<std::mutex> alive(life_);
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        comms_.erase(std::find(comms_.begin(), comms_.end(), comm));
        if (!comms_.empty()) return;
    }
    over_ = true;
    wake();
    thread_.join();
}

void Helper::wake() {
    posted_ = true;
    if (asleep_) eventfd_write(event_, 1);
}

Helper::Posting::Posting(Comm& comm) : helper_(comm.helper) {
    if (helper_) ++helper_->posting_;
    lock_ = std::unique_lock<std::mutex>(comm.mutex);
}

Helper::Posting::~Posting() {
    lock_.unlock();
    if (!helper_) return;
    --helper_->posting_;
    helper_->wake();
}

void Helper::run() {
    while (!over_) {
        posted_ = false;
        if (!over_ && !move()) sleep();
    }
}

bool Helper::move() {
    while (posting_ > 0) std::this_thread::yield();  // a mutex alone would let this thread have it again and again
    const std::lock_guard<std::mutex> guard(mutex_);
    bool moved = false;
    for (Comm* comm : comms_) {
        const std::lock_guard<std::mutex> one(comm->mutex);
        if (comm->connection->pending()) moved |= comm->connection->progress();
    }
    return moved;
}

void Helper::sleep() {
    std::vector<pollfd> fds{{event_, POLLIN, 0}};
    std::vector<Comm*> waiting;
    int64_t limit = kNap;
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        const int64_t now = now_ns();
        for (Comm* comm : comms_) {
            const std::lock_guard<std::mutex> one(comm->mutex);
            const Connection& c = *comm->connection;
            if (!c.pending() || !c.status()) continue;
            if (c.wake_at()) limit = std::clamp(c.wake_at() - now, int64_t(0), limit);
            if (c.resting(now)) continue;
            fds.push_back({c.poll_fd(), POLLIN, 0});
            waiting.push_back(comm);
        }
    }
    asleep_ = true;
    const timespec time{limit / kSecond, limit % kSecond};
    if (!posted_) ppoll(fds.data(), fds.size(), &time, nullptr);
    asleep_ = false;
    eventfd_t ignored;
    if (fds[0].revents) eventfd_read(event_, &ignored);
    const std::lock_guard<std::mutex> guard(mutex_);
    for (size_t i = 0; i < waiting.size(); ++i) {
        if (!fds[i + 1].revents || std::find(comms_.begin(), comms_.end(), waiting[i]) == comms_.end()) continue;
        const std::lock_guard<std::mutex> one(waiting[i]->mutex);
        waiting[i]->connection->collect_events(0);
    }
}

}  // namespace nccl
