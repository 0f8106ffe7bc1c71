// When packets leave and arrive: the rules of the link emulator, without clocks and descriptors. Times are seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace emulator {

constexpr int kMtu = 1500, kHeaders = 52;  // bytes, as in configuration/network_shape.py
constexpr double kOverhead = 0.1e-3;       // that the emulator takes per direction: it counts towards the latency

// Bytes on a wire for an IP packet that may stand for several segments, headers of all included.
int64_t wire_bytes(int64_t nbytes);

struct Span {
    double begin, end;
};

// Every other `every` seconds a line has only this share of its rate; never without `every`.
struct Swing {
    double every = 0.0, share = 1.0;
};

// One direction of a link. It carries one packet at a time; the others wait in a queue of `limit` bytes. Without a
// bandwidth (bit/s; 0) nothing waits.
class Line {
   public:
    Line(double bandwidth, int64_t limit, Swing swing = {});

    // When a packet handed over at `now` starts and finishes leaving; nothing if it finds the queue full.
    std::optional<Span> send(double now, int64_t nbytes);

   private:
    double per_byte_, limit_, free_ = 0.0;
    Swing swing_;
};

// Limits of a server's single connections: each one that carries much data gets the next rate in turn, and the next
// delay. Control connections, which carry little, are not limited and take no turn.
class Flows {
   public:
    Flows(std::vector<double> rates, std::vector<double> delays, int64_t limit);

    bool tells_apart() const { return !rates_.empty() || !delays_.empty(); }
    int64_t drops() const { return drops_; }

    // When a packet that a connection hands over at `now` may go to the link; nothing if it is dropped.
    std::optional<double> leave(double now, std::string_view flow, int64_t nbytes);

   private:
    struct Limited {
        Line line;
        double delay;
    };

    std::vector<double> rates_, delays_;
    int64_t limit_, drops_ = 0;
    std::unordered_map<std::string, int64_t> sent_;
    std::unordered_map<std::string, Limited> limited_;
};

// Without a bandwidth: 0. The standard deviation of the latency is its jitter; loss is a share of segments.
struct Link {
    double bandwidth, latency, jitter, loss;
};

// A link: up to a switch, down from it, with delay, jitter and loss on the way down. It is a server's, or a site's, to
// the switch that joins the sites.
class Port {
   public:
    Port(Link link, int64_t limit, std::string_view seed, Swing swing = {});

    int64_t drops = 0, lost = 0;
    bool loses() const { return link_.loss > 0; }

    // When a packet starts and finishes arriving at the switch; nothing if it is dropped. It is handed over at `begin`,
    // and if it comes from another link, until `end`.
    std::optional<Span> leave(double begin, int64_t nbytes, double end = 0.0);

    // Which of a packet's segments are not lost on the way down: runs from one up to, without, another.
    std::vector<std::pair<int, int>> survivors(int segments);

    // From when to when a packet is received that arrives at the switch from `begin` to `end`; nothing if dropped. The
    // segments of a packet pass through the switch one after the other, so two equal links take as long as one. Packets
    // do not overtake each other.
    std::optional<Span> arrive(double begin, double end, int64_t nbytes);

   private:
    double delay();

    Link link_;
    std::mt19937_64 random_;
    Line up_, down_;
    double last_ = 0.0;
};

}  // namespace emulator
