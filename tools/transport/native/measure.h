// Clocks, latencies and message contents for the harness.

#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <vector>

#include "drive.h"

namespace harness {

inline double seconds_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

inline double cpu_now() {
    rusage u;
    getrusage(RUSAGE_SELF, &u);
    return double(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + double(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

inline void rest(int idle) {
    if (idle < 0) sched_yield();
    if (idle > 0) {
        const timespec t{0, idle * 1000L};
        nanosleep(&t, nullptr);
    }
}

inline uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// Random sizes, small ones and empty ones among them.
inline size_t size_of(const Plan& plan, uint64_t message) {
    if (!plan.check) return plan.size;
    const uint64_t r = mix(uint64_t(plan.check) << 32 ^ message);
    const uint64_t most = r % 4 == 0 ? std::min<uint64_t>(plan.size, 64) : plan.size;
    return mix(r) % (most + 1);
}

// Fill with, or compare to, what message number `message` contains.
template <typename Visit>
bool contents(const Plan& plan, uint64_t message, size_t size, Visit visit) {
    const uint64_t seed = mix(mix(uint64_t(plan.check)) ^ message);
    for (size_t at = 0; at < size; at += 8)
        if (!visit(at, std::min<size_t>(8, size - at), mix(seed + at))) return false;
    return true;
}

// The part of a run after its first tenth.
class Meter {
  public:
    explicit Meter(const Plan& plan) : skip_(plan.count / 10) { began_ = last_ = seconds_now(), cpu_ = cpu_now(); }
    void done(size_t bytes, double since) {
        last_ = seconds_now();
        if (++messages_ <= skip_) {
            if (messages_ == skip_) began_ = last_, cpu_ = cpu_now();
            return;
        }
        bytes_ += bytes;
        times_.push_back(last_ - since);
    }
    double quiet() const { return seconds_now() - last_; }
    void report(Outcome* out) {
        out->seconds = last_ - began_;
        out->cpu = cpu_now() - cpu_;
        out->bytes = bytes_;
        out->messages = times_.size();
        std::sort(times_.begin(), times_.end());
        out->median = times_.empty() ? 0 : times_[times_.size() / 2];
        out->p99 = times_.empty() ? 0 : times_[times_.size() * 99 / 100];
    }

  private:
    uint64_t skip_, messages_ = 0, bytes_ = 0;
    double began_, last_, cpu_;
    std::vector<double> times_;
};

}  // namespace harness
