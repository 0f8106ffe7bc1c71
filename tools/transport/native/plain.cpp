#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "measure.h"

namespace {

using namespace harness;

// `flags`: MSG_DONTWAIT for a caller that spins.
bool move_all(int fd, bool sending, char* data, size_t size, int flags) {
    for (size_t at = 0; at < size;) {
        const ssize_t n = sending ? send(fd, data + at, size - at, flags | MSG_NOSIGNAL)
                                  : recv(fd, data + at, size - at, flags);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n <= 0) return false;
        at += size_t(n);
    }
    return true;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void plain_stream(int fd, int sending, const Plan* plan, Outcome* out) {
    *out = {};
    std::vector<std::vector<char>> buffers(size_t(plan->window), std::vector<char>(plan->size, char(sending)));
    Meter meter(*plan);
    for (uint64_t i = 0; i < plan->count && out->result == 0; ++i) {
        const double since = seconds_now();
        if (!move_all(fd, sending, buffers[i % buffers.size()].data(), plan->size, 0)) out->result = 6;
        meter.done(plan->size, since);
    }
    meter.report(out);
}

EXPORT void plain_pingpong(int out_fd, int in_fd, int first, const Plan* plan, Outcome* out) {
    *out = {};
    std::vector<char> ping(plan->size, 1), pong(plan->size, 0);
    const int flags = plan->idle == 0 ? MSG_DONTWAIT : 0;
    Meter meter(*plan);
    for (uint64_t i = 0; i < plan->count && out->result == 0; ++i) {
        const double since = seconds_now();
        const bool ok = first ? move_all(out_fd, true, ping.data(), plan->size, flags) &&
                                    move_all(in_fd, false, pong.data(), plan->size, flags)
                              : move_all(in_fd, false, pong.data(), plan->size, flags) &&
                                    move_all(out_fd, true, ping.data(), plan->size, flags);
        if (!ok) out->result = 6;
        meter.done(2 * plan->size, since);
    }
    meter.report(out);
    out->median /= 2;
    out->p99 /= 2;
}
