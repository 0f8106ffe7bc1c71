// Signs of life. One thread of the process regularly sends a byte over every connection's own pulse socket and listens
// for the peer's. A peer that computes for minutes is alive; one that was stopped or cut off is not. TCP alone cannot
// tell them apart, because the kernel of a stopped process goes on acknowledging.

#pragma once

#include <atomic>
#include <memory>

#include "socket.h"

namespace bagua {

struct Pulse {
    Socket socket;
    int64_t timeout;
    int64_t heard;
    std::atomic<bool> lost{false};
};

// Start watching; the thread lives while anything is watched.
std::shared_ptr<Pulse> watch_pulse(Socket socket, int64_t timeout);
// Stop watching and close the socket.
void drop_pulse(const std::shared_ptr<Pulse>& pulse);

}  // namespace bagua
