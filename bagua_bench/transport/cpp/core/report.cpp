#include "report.h"

#include <linux/tcp.h>

namespace bagua {

int report(const Connection& connection, StreamReport* out, int most) {
    int count = 0;
    for (const auto& s : connection.streams()) {
        if (count++ >= most) continue;
        tcp_info info{};
        socklen_t size = sizeof info;
        getsockopt(s->socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &size);
        const Counters& c = s->counters;
        *out++ = {c.bytes_sent,
                  c.chunks_sent,
                  c.bytes_received,
                  c.chunks_received,
                  c.stalls,
                  c.parked,
                  s->pace.most_queued(),
                  c.queued_max,
                  info.tcpi_total_retrans,
                  c.bytes_zero_copy,
                  size_t(s->index) < connection.crew(),
                  s->pace.rate,
                  double(info.tcpi_delivery_rate),
                  info.tcpi_rtt * 1e-6,
                  info.tcpi_min_rtt == ~0u ? 0 : info.tcpi_min_rtt * 1e-6};
    }
    return count;
}

}  // namespace bagua
