// What Python calls: `bagua_bench.network.relay`, and the tests of the rules. A null pointer stands for nothing.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include "relay.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace emulator;

namespace {

struct FacePort {
    Link link;
    int64_t limit;  // bytes of its queues
    const char *seed;
    Swing swing;
};

Port port_of(const FacePort *from) { return Port(from->link, from->limit, from->seed, from->swing); }

std::vector<double> list(const double *values, size_t number) { return {values, values + number}; }

int tell(const std::optional<Span> &span, Span *out) {
    if (span) *out = *span;
    return span.has_value();
}

}  // namespace

EXPORT const double relay_overhead = kOverhead;

EXPORT Relay *relay_new() { return new Relay(); }

EXPORT void relay_add_server(Relay *relay, const FacePort *port, const double *rates, size_t number_of_rates,
                             const double *delays, size_t number_of_delays, int descriptor, size_t header,
                             const Ring *ring) {
    Flows flows(list(rates, number_of_rates), list(delays, number_of_delays), port->limit);
    relay->add_server(port_of(port), std::move(flows), Device(descriptor, header, ring ? *ring : Ring{}));
}

EXPORT void relay_add_site(Relay *relay, const FacePort *port) { relay->add_site(port_of(port)); }

// Until `control` ends: 0. If it fails: 1, and the reason stands in `reason`.
EXPORT int relay_run(Relay *relay, int control, char *reason, size_t room) {
    try {
        relay->run(control);
        return 0;
    } catch (const std::exception &error) {
        std::snprintf(reason, room, "%s", error.what());
        return 1;
    }
}

EXPORT void relay_delete(Relay *relay) { delete relay; }

EXPORT int64_t relay_wire_bytes(int64_t nbytes) { return wire_bytes(nbytes); }

EXPORT Line *line_new(double bandwidth, int64_t limit, Swing swing) { return new Line(bandwidth, limit, swing); }
EXPORT int line_send(Line *line, double now, int64_t nbytes, Span *out) { return tell(line->send(now, nbytes), out); }
EXPORT void line_delete(Line *line) { delete line; }

EXPORT Flows *flows_new(const double *rates, size_t number_of_rates, const double *delays, size_t number_of_delays,
                        int64_t limit) {
    return new Flows(list(rates, number_of_rates), list(delays, number_of_delays), limit);
}
EXPORT int flows_leave(Flows *flows, double now, const char *flow, size_t length, int64_t nbytes, double *out) {
    std::optional<double> when = flows->leave(now, {flow, length}, nbytes);
    if (when) *out = *when;
    return when.has_value();
}
EXPORT void flows_delete(Flows *flows) { delete flows; }

EXPORT Port *port_new(const FacePort *port) { return new Port(port_of(port)); }
EXPORT int port_leave(Port *port, double begin, int64_t nbytes, double end, Span *out) {
    return tell(port->leave(begin, nbytes, end), out);
}
EXPORT int port_arrive(Port *port, double begin, double end, int64_t nbytes, Span *out) {
    return tell(port->arrive(begin, end, nbytes), out);
}
// Pairs of numbers in `out`, which has room for one more than segments; how many pairs.
EXPORT int port_survivors(Port *port, int segments, int *out) {
    auto runs = port->survivors(segments);
    for (auto [first, last] : runs) {
        *out++ = first;
        *out++ = last;
    }
    return static_cast<int>(runs.size());
}
EXPORT int64_t port_lost(const Port *port) { return port->lost; }
EXPORT void port_delete(Port *port) { delete port; }

EXPORT int segments_count(const uint8_t *packet, size_t size, size_t header) {
    return count(Packet(packet, packet + size), header);
}
// The piece stands in `out`, which has room for the whole; its size.
EXPORT size_t segments_cut(const uint8_t *packet, size_t size, size_t header, int first, int last, uint8_t *out) {
    Packet piece = cut(Packet(packet, packet + size), header, first, last);
    std::copy(piece.begin(), piece.end(), out);
    return piece.size();
}
