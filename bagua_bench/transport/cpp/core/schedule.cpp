#include "schedule.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>

namespace bagua {

namespace {

constexpr double kShare = 0.6;  // of the ideal time that a stream may be committed for: its rate is only an estimate
constexpr double kClearly = 1.5;  // times as fast
constexpr uint64_t kLittle = 64 << 10;  // may wait in a stream without being looked at
constexpr uint64_t kCeiling = 1 << 20;  // may wait in any stream beyond what fills its path: caches are small
constexpr uint64_t kFloor = 128 << 10;  // may wait in the stream that delivers first
constexpr uint32_t kMinChunk = 16 << 10, kMaxChunk = 1 << 20;
constexpr uint32_t kPage = 4096;
constexpr double kChunkTime = 50e-6;  // seconds of all streams together that a chunk is worth: one core cuts them all
constexpr double kFast = 1.25e9;  // bytes/s of a path that is faster than most links
constexpr double kBrief = 2e-3;  // seconds of a fast path's time that may wait in it while the others get nothing ...
constexpr uint64_t kAlone = 3 << 20;  // ... and bytes: what a caller that sleeps between two tests does not find drained
constexpr int64_t kLook = 10 * kMicrosecond;  // between two questions to the kernel about one stream
constexpr int64_t kSample = 10 * kMillisecond;
constexpr uint64_t kEnough = 1 << 20;  // bytes in a sample that tell something even if the stream was idle in it
constexpr uint64_t kUnsaid = 4096;  // bytes that may have arrived long ago: their acknowledgement waits for company
constexpr int64_t kStale = kSecond;
constexpr double kTrial = 0.125;  // of the mean rate: what a stream is given that was slow and not used for long
constexpr double kFaster = 0.5, kSlower = 0.25;  // how much one sample moves the estimate
constexpr double kDefaultRate = 1e9;
constexpr int64_t kMinStall = 20 * kMicrosecond, kMaxStall = 2 * kMillisecond;

// Known rate, or what the known ones are on average. Who was slow gets a chance from time to time.
double rate_of(const Stream& stream, double mean, int64_t now) {
    const Pace& p = stream.pace;
    if (p.rate <= 0) return mean;
    return now - p.sample_began > kStale ? std::max(p.rate, kTrial * mean) : p.rate;
}

// How fast it empties: on a fast path our rates are those of our own writing.
double draining(const Stream& s, double rate) { return s.pace.fast ? s.pace.delivery : rate; }

bool free_to_write(const Stream& s) { return !s.out.request && s.writable; }

}  // namespace

Schedule::Choice Schedule::choose(std::vector<std::unique_ptr<Stream>>& streams, uint64_t message, uint64_t unwritten) {
    if (!quick_) quick_ = streams[0].get();
    if (message <= kSmall && free_to_write(*quick_) && quick_->pace.most_queued() + message <= kLittle)
        return {quick_, uint32_t(message)};
    const int64_t now = now_ns();
    if (const Choice same = stay(message, now); same.stream) return same;

    double known = 0, sum = 0;
    int count = 0;
    uint64_t outstanding = unwritten;
    for (auto& s : streams) {
        if (s->pace.most_queued() > 0 && now - s->pace.looked >= kLook) look(*s, now);
        if (s->pace.fast > quick_->pace.fast || s->pace.rate > kClearly * quick_->pace.rate) quick_ = s.get();
        if (s->pace.rate > 0) known += s->pace.rate, ++count;
        outstanding += s->pace.most_queued();
    }
    const double mean = count ? known / count : kDefaultRate;
    for (auto& s : streams) sum += rate_of(*s, mean, now);
    const double ideal = double(outstanding) / sum;
    const double least = std::min(sum * kChunkTime, double(outstanding) / double(streams.size()));

    struct Offer {
        Stream* stream = nullptr;
        double finish = 0;
        uint32_t length = 0;
    };
    Offer first, best;
    double soon = double(kMaxStall), late = 0, dry = double(kSecond);  // ns until some, all have room; one is dry
    for (auto& s : streams) {
        const double rate = rate_of(*s, mean, now), waiting = double(s->pace.most_queued());
        const double share = std::min(rate * kShare * ideal, double(kCeiling));
        double length = std::clamp(std::max(share / 2, least), double(kMinChunk), double(kMaxChunk));
        length = double(uint32_t(length) / kPage * kPage);  // so that every chunk begins aligned
        if (length * 1.5 >= double(message)) length = double(message);
        const double finish = s->pace.rtt / 2 + (waiting + length) / rate;
        const Offer offer{s.get(), finish, uint32_t(length)};
        if (!first.stream || finish < first.finish) first = offer;
        if (!free_to_write(*s)) continue;
        const double limit = share + rate * s->pace.rtt;
        if (waiting + length <= limit) {
            if (!best.stream || finish < best.finish) best = offer;
        } else {
            const double excess = (waiting + length - limit) / draining(*s, rate) * 1e9;
            soon = std::min(soon, excess);
            late = std::max(late, excess);
        }
        dry = std::min(dry, waiting / draining(*s, rate) * 1e9);
    }
    if (!best.stream && free_to_write(*first.stream)) {
        const Pace& p = first.stream->pace;
        const double excess = double(p.most_queued()) - double(kFloor) - p.rate * p.rtt;
        if (excess <= 0) {
            best = first;
        } else {
            soon = std::min(soon, excess / draining(*first.stream, p.rate) * 1e9);
        }
    }
    // Waking up costs more than writing: one look for several streams, but before any has lost a third of what it
    // holds. Nor at once again: acknowledgements come for large segments, so that a queue stays as it is, then falls.
    const double stall = std::max(soon, std::clamp(late, dry / 8, dry / 3));
    room_at_ = now + std::clamp(int64_t(stall), kMinStall, kMaxStall);
    if (!best.stream)
        for (auto& s : streams) s->counters.stalls += free_to_write(*s);
    return {best.stream, best.length};
}

// The quick stream again, if its path is fast and little waits in it.
Schedule::Choice Schedule::stay(uint64_t message, int64_t now) {
    if (!free_to_write(*quick_)) return {};
    if (quick_->pace.most_queued() > 0 && now - quick_->pace.looked >= kLook) look(*quick_, now);
    if (!quick_->pace.fast) return {};
    const uint64_t most = std::min(uint64_t(quick_->pace.delivery * kBrief), kAlone);
    const uint64_t queued = quick_->pace.most_queued();
    const uint64_t room = queued < most ? std::min<uint64_t>(most - queued, kMaxChunk) : 0;
    if (room >= message) return {quick_, uint32_t(message)};
    if (room < most / 4) return {};
    return {quick_, uint32_t(room / kPage * kPage)};
}

// Ask the kernel how much is still unacknowledged.
void Schedule::look(Stream& s, int64_t now) {
    int queued = 0;
    if (ioctl(s.socket.fd(), SIOCOUTQ, &queued) != 0 || queued < 0) return;
    s.pace.queued = uint64_t(queued);
    s.pace.looked = now;
    s.pace.written_then = s.pace.written;
    s.counters.queued_max = std::max(s.counters.queued_max, s.pace.queued);
    if (s.pace.queued <= kUnsaid) s.pace.ran_dry = true;
    if (now - s.pace.sample_began >= kSample) sample(s, now);
}

// Bytes acknowledged per second since the last sample, not counting the time for which the receiver took nothing.
void Schedule::sample(Stream& s, int64_t now) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(s.socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
    Pace& p = s.pace;
    p.rtt = info.tcpi_min_rtt != ~0u ? info.tcpi_min_rtt * 1e-6 : info.tcpi_rtt * 1e-6;
    const uint64_t acknowledged = p.written - p.queued;
    const double elapsed = double(now - p.sample_began) * 1e-9;
    const double delivery = double(info.tcpi_delivery_rate);
    // Twice, and not far from what it has shown to us, because a shaper lets a burst pass after a pause.
    p.fast = delivery >= kFast && p.delivery >= kFast && p.rate >= kFast / 2;
    p.delivery = delivery;
    const double limited = double(info.tcpi_rwnd_limited - p.limited_then) * 1e-6;
    if (p.sample_began > 0 && acknowledged > p.acknowledged_then && elapsed < 1) {
        const double busy = std::max(elapsed - limited, elapsed / 4);
        const double rate = double(acknowledged - p.acknowledged_then) / busy;
        const bool enough = !p.ran_dry || acknowledged - p.acknowledged_then >= kEnough;
        if (p.rate <= 0)
            p.rate = enough ? rate : 0;
        else if (rate > p.rate)
            p.rate += kFaster * (rate - p.rate);
        else if (!p.ran_dry)
            p.rate += kSlower * (rate - p.rate);
    }
    p.acknowledged_then = acknowledged;
    p.limited_then = info.tcpi_rwnd_limited;
    p.sample_began = now;
    p.ran_dry = p.queued <= kUnsaid;
}

}  // namespace bagua
