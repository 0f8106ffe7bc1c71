#include "pulse.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace bagua {

namespace {

constexpr int64_t kTick = kSecond, kMinTick = 10 * kMillisecond;
constexpr int kTicks = 8;  // per time-out

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
            const bool overslept = now - last > 3 * tick;  // this process itself was stopped or starved
            for (auto& p : pulses_) beat(*p, now, overslept);
            last = now;
            changed_.wait_for(guard, std::chrono::nanoseconds(tick));
        }
    }

    static void beat(Pulse& p, int64_t now, bool overslept) {
        char bytes[256] = {};
        send(p.socket.fd(), bytes, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        const bool heard = recv(p.socket.fd(), bytes, sizeof bytes, MSG_DONTWAIT) > 0;
        if (heard || overslept) p.heard = now;
        if (now - p.heard > p.timeout - 2 * tick_of(p.timeout)) p.lost = true;
    }

    std::mutex turn_;  // one start or end of the thread at a time
    std::mutex mutex_;
    std::condition_variable changed_;
    std::thread thread_;
    std::vector<std::shared_ptr<Pulse>> pulses_;
};

Watcher& watcher() {
    static auto* one = new Watcher;  // never destroyed: nobody controls the order of exit
    return *one;
}

}  // namespace

std::shared_ptr<Pulse> watch_pulse(Socket socket, int64_t timeout) {
    auto pulse = std::make_shared<Pulse>();
    pulse->socket = std::move(socket);
    pulse->timeout = timeout;
    pulse->heard = now_ns();
    watcher().add(pulse);
    return pulse;
}

void drop_pulse(const std::shared_ptr<Pulse>& pulse) { watcher().remove(pulse); }

}  // namespace bagua
