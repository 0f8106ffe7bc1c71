#include "wire.h"

#include <algorithm>
#include <cmath>

namespace emulator {
namespace {

constexpr int64_t kMuch = 64 * 1024;  // bytes after which a connection carries data

std::mt19937_64 seeded(std::string_view seed) {
    std::seed_seq words(seed.begin(), seed.end());
    return std::mt19937_64(words);
}

}  // namespace

int64_t wire_bytes(int64_t nbytes) {
    constexpr int64_t payload = kMtu - kHeaders;
    int64_t segments = std::max<int64_t>(1, (nbytes - kHeaders + payload - 1) / payload);
    return nbytes + kHeaders * (segments - 1);
}

Line::Line(double bandwidth, int64_t limit, Swing swing)
    : per_byte_(bandwidth > 0 ? 8 / bandwidth : 0.0), limit_(static_cast<double>(limit)), swing_(swing) {}

std::optional<Span> Line::send(double now, int64_t nbytes) {
    double begin = std::max(now, free_);
    bool slow = swing_.every > 0 && std::fmod(std::floor(begin / swing_.every), 2.0) == 1.0;
    double per_byte = slow ? per_byte_ / swing_.share : per_byte_;
    double end = begin + static_cast<double>(nbytes) * per_byte;
    if (per_byte > 0 && end - now > limit_ * per_byte) return std::nullopt;
    free_ = end;
    return Span{begin, end};
}

Flows::Flows(std::vector<double> rates, std::vector<double> delays, int64_t limit)
    : rates_(std::move(rates)), delays_(std::move(delays)), limit_(limit) {}

std::optional<double> Flows::leave(double now, std::string_view flow, int64_t nbytes) {
    if (!tells_apart()) return now;
    std::string name(flow);
    auto found = limited_.find(name);
    if (found == limited_.end()) {
        int64_t &sent = sent_[name];
        sent += nbytes;
        if (sent < kMuch) return now;
        size_t turn = limited_.size();
        double rate = rates_.empty() ? 0.0 : rates_[turn % rates_.size()];
        double delay = delays_.empty() ? 0.0 : delays_[turn % delays_.size()];
        found = limited_.emplace(std::move(name), Limited{Line(rate, limit_), delay}).first;
    }
    std::optional<Span> span = found->second.line.send(now, nbytes);
    if (!span) {
        drops_++;
        return std::nullopt;
    }
    return span->begin + found->second.delay;
}

Port::Port(Link link, int64_t limit, std::string_view seed, Swing swing)
    : link_(link), random_(seeded(seed)), up_(link.bandwidth, limit, swing), down_(link.bandwidth, limit, swing) {}

std::optional<Span> Port::leave(double begin, int64_t nbytes, double end) {
    std::optional<Span> span = up_.send(begin, nbytes);
    if (!span) {
        drops++;
        return std::nullopt;
    }
    return Span{span->begin, std::max(span->end, end)};
}

std::vector<std::pair<int, int>> Port::survivors(int segments) {
    if (!loses()) return {{0, segments}};
    std::vector<std::pair<int, int>> runs;
    std::bernoulli_distribution is_lost(link_.loss);
    int first = 0;
    for (int k = 0; k < segments; k++) {
        if (!is_lost(random_)) continue;
        lost++;
        if (first < k) runs.emplace_back(first, k);
        first = k + 1;
    }
    if (first < segments) runs.emplace_back(first, segments);
    return runs;
}

std::optional<Span> Port::arrive(double begin, double end, int64_t nbytes) {
    std::optional<Span> span = down_.send(begin, nbytes);
    if (!span) {
        drops++;
        return std::nullopt;
    }
    double passing = std::max(end, span->end);
    last_ = std::max(last_, passing + delay());
    return Span{last_ - (passing - span->begin), last_};
}

double Port::delay() {
    double delay = link_.latency;
    if (link_.jitter > 0) delay = std::normal_distribution<double>(delay, link_.jitter)(random_);
    return std::max(0.0, delay - kOverhead);
}

}  // namespace emulator
