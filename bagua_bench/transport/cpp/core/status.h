// Results, time and the log, shared by everything.

#pragma once

#include <time.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace bagua {

// The numbers are NCCL's, so that its face needs no table.
enum class Code { ok = 0, system = 2, internal = 3, argument = 4, usage = 5, remote = 6 };

struct Status {
    Code code = Code::ok;
    std::string text;
    explicit operator bool() const { return code == Code::ok; }
};

enum class Level { warning = 2, info = 3 };

// Receives lines for the user; set once, by the face.
using Log = std::function<void(Level, const std::string&)>;

inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

constexpr int64_t kSecond = 1000000000, kMillisecond = 1000000, kMicrosecond = 1000;

// "60 s", "0.5 s".
inline std::string seconds_text(int64_t nanoseconds) {
    char text[32];
    snprintf(text, sizeof text, "%g s", double(nanoseconds) * 1e-9);
    return text;
}

}  // namespace bagua
