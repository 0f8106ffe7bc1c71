#include "pulse.h"

#include <linux/tcp.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tuning.h"

namespace bagua {

namespace {

// An outage must be seen before TCP's attempts are more than a second apart, which they are after 1.4 s.
constexpr int64_t kTick = kSecond / 2, kMinTick = 10 * kMillisecond;
constexpr int kTicks = 16;  // per time-out

int64_t tick_of(int64_t timeout) { return std::clamp(timeout / kTicks, kMinTick, kTick); }

class Watcher {
  public:
    void add(const std::shared_ptr<Pulse>& pulse) {
        const std::lock_guard<std::mutex> turn(turn_);
        const std::lock_guard<std::mutex> guard(mutex_);
        pulses_.push_back(pulse);
        if (pulses_.size() == 1) thread_ = std::thread([this] { run(); });
        changed_.notify_one();
    }

    void remove(const std::shared_ptr<Pulse>& pulse) {
        const std::lock_guard<std::mutex> turn(turn_);
        std::thread last;
        {
            const std::lock_guard<std::mutex> guard(mutex_);
            pulses_.erase(std::remove(pulses_.begin(), pulses_.end(), pulse), pulses_.end());
            shut(pulse->socket.fd());
            pulse->socket.reset();
            if (pulses_.empty()) last = std::move(thread_);
        }
        changed_.notify_one();
        if (last.joinable()) last.join();
    }

  private:
    void run() {
        std::unique_lock<std::mutex> guard(mutex_);
        int64_t last = now_ns();
        while (!pulses_.empty()) {
            const int64_t now = now_ns();
            int64_t tick = kTick;
            for (auto& p : pulses_) tick = std::min(tick, tick_of(p->timeout));
            const bool overslept = now - last > tick + kSecond;  // this process itself was stopped or starved
            for (auto& p : pulses_) beat(*p, now, overslept);
            last = now;
            changed_.wait_for(guard, std::chrono::nanoseconds(tick));
        }
    }

    static void beat(Pulse& p, int64_t now, bool overslept) {
        char bytes[256] = {};
        send(p.socket.fd(), bytes, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        const ssize_t got = recv(p.socket.fd(), bytes, sizeof bytes, MSG_DONTWAIT);
        // An end is no silence: the connection's other sockets say whether the peer closed it or died.
        const bool heard = got >= 0 || errno == ECONNRESET || errno == EPIPE;
        const int64_t limit = p.timeout + Tuning::kRetryNs + tick_of(p.timeout);
        tcp_info info{};
        if (heard || overslept) p.heard = now;
        if (now - p.heard > limit) p.lost = int(p.paths.size());
        if (ask(p.socket.fd(), &info) && info.tcpi_retransmits > 0) p.cut_off = now;
        for (size_t i = 0; i < p.paths.size(); ++i) {
            Pulse::Path& path = p.paths[i];
            if (!ask(path.fd, &info)) continue;
            const bool vain = info.tcpi_unacked > 0 && info.tcpi_retransmits > 0;
            if (vain) p.cut_off = path.vain = now;
            const bool often = path.vain > 0 && now - path.vain < Tuning::kConvalescenceNs;
            if (often != path.often) retry_often(path.fd, path.often = often);
            // Probes are keepalive's or those of a closed window. An answer since the last look may have been to
            // others than those that are out now, hence the second condition.
            const bool unanswered = vain || info.tcpi_probes > 0;
            if (!unanswered || path.unanswered == 0 || overslept) path.unanswered = unanswered ? now : 0;
            const int64_t silent = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv) * kMillisecond;
            const bool dead = unanswered && now - path.unanswered > limit && silent > limit;
            if (dead && p.lost == Pulse::kNothing) p.lost = int(i);
        }
    }

    static bool ask(int fd, tcp_info* info) {
        socklen_t size = sizeof *info;
        return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &size) == 0;
    }

    std::mutex turn_;  // one start or end of the thread at a time
    std::mutex mutex_;
    std::condition_variable changed_;
    std::thread thread_;
    std::vector<std::shared_ptr<Pulse>> pulses_;
};

Watcher* the_watcher = nullptr;  // never destroyed: nobody controls the order of exit

// In a child process there is no thread, and what was watched is the parent's.
Watcher& watcher() {
    static const int ready = [] {
        const auto renew = [] { the_watcher = new Watcher; };
        renew();
        return pthread_atfork(nullptr, nullptr, renew);
    }();
    static_cast<void>(ready);
    return *the_watcher;
}

}  // namespace

std::shared_ptr<Pulse> watch_pulse(std::vector<Socket>& sockets, int64_t timeout) {
    auto pulse = std::make_shared<Pulse>();
    pulse->socket = std::move(sockets.back());
    sockets.pop_back();
    for (auto& socket : sockets) pulse->paths.emplace_back(socket.fd());
    persist(pulse->socket.fd());
    retry_often(pulse->socket.fd(), true);
    pulse->timeout = timeout;
    pulse->heard = now_ns();
    watcher().add(pulse);
    return pulse;
}

void drop_pulse(const std::shared_ptr<Pulse>& pulse) { watcher().remove(pulse); }

}  // namespace bagua
