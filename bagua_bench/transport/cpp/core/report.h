// The counters of a connection, in a form for C.

#pragma once

#include <cstdint>

#include "connection.h"

extern "C" {

struct StreamReport {
    uint64_t bytes_sent, chunks_sent, bytes_received, chunks_received;
    uint64_t stalls;  // times that it had to wait for room
    uint64_t parked;  // chunks that came before their buffer was posted
    uint64_t queued, queued_max;  // bytes handed to the kernel and not acknowledged
    uint64_t retransmissions;  // segments
    uint64_t bytes_zero_copy;  // of those sent
    uint64_t in_use;  // 1: it takes what is sent
    double rate, delivery_rate;  // bytes/s: our estimate, the kernel's
    double rtt, min_rtt;  // seconds
};
}

namespace bagua {

// Fill at most `most` reports; the number of streams.
int report(const Connection& connection, StreamReport* out, int most);

}  // namespace bagua
