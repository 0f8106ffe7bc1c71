// Signs of life. One thread of the process sends a byte over every connection's own pulse socket now and then and
// listens for the peer's: a peer that computes for minutes is alive, one that was stopped or cut off is not. TCP alone
// cannot tell: the kernel of a stopped process goes on acknowledging.

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

// Start to watch; the thread lives while anything is watched.
std::shared_ptr<Pulse> watch_pulse(Socket socket, int64_t timeout);
// Stop to watch and close the socket.
void drop_pulse(const std::shared_ptr<Pulse>& pulse);

}  // namespace bagua
