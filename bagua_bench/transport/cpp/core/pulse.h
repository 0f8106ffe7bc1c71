// Signs of life. One thread of the process regularly sends a byte over every connection's own pulse socket and listens
// for the peer's. A peer that computes for minutes is alive; one that was stopped or cut off is not. TCP alone cannot
// tell them apart, because the kernel of a stopped process goes on acknowledging. The thread also asks the kernel about
// the connection's other sockets, its paths: whether the peer's kernel answers on each of them.
//
// An outage may last for the time-out. The kernel itself never gives up (persist() in socket.h).

#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "socket.h"
#include "tuning.h"

namespace bagua {

struct Pulse {
    static constexpr int kNothing = -1;
    struct Path {
        explicit Path(int socket) : fd(socket) {}
        const int fd;
        std::atomic<int64_t> vain{0};  // when what was sent was last seen to go unacknowledged (ns)
        bool often = false;  // does the kernel try
        int64_t unanswered = 0;  // since when (ns); 0: the peer's kernel answers, or need not
    };
    Socket socket;
    std::deque<Path> paths;
    int64_t timeout;
    int64_t heard;
    // Whether this path is cut off, or was until so short a time ago that data may not move again yet.
    bool was_cut_off(size_t path, int64_t now) const { return now - paths[path].vain < Tuning::kGraceNs; }
    std::atomic<int64_t> cut_off{0};  // when something was last seen to be sent in vain (ns)
    std::atomic<int> lost{kNothing};  // the path that is dead; as many as there are: the peer gave no sign of life
};

// Start watching by the last of these sockets, which is taken from them; the others must stay open until drop_pulse().
// The thread lives while anything is watched.
std::shared_ptr<Pulse> watch_pulse(std::vector<Socket>& sockets, int64_t timeout);
// Stop watching and close the socket.
void drop_pulse(const std::shared_ptr<Pulse>& pulse);

}  // namespace bagua
