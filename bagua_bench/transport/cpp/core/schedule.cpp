#include "schedule.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>

#include "tuning.h"

namespace bagua {

namespace {

// What all streams have to do, and can.
struct Load {
    int64_t now;
    double mean;  // bytes/s of a stream whose rate is known
    double ideal;  // seconds until everything outstanding is delivered, if no stream runs dry
    double least;  // bytes below which a chunk is not worth cutting
    double most;  // bytes of a chunk
};

// What a stream would do with the next chunk.
struct Offer {
    Stream* stream = nullptr;
    double rate = 0;  // bytes/s
    double finish = 0;  // seconds until the chunk is delivered
    double excess = 0;  // bytes that would wait in the stream beyond its limit
    uint32_t length = 0;
};

// When streams that have no room now should have some: nanoseconds from now.
struct Stall {
    double soon = double(Tuning::kMaxStallNs), late = 0;  // the first of them, and the last
    double dry = double(kSecond);  // a stream has nothing left

    // Waking up costs more than writing, so one look serves several streams, but it comes before any has lost a third
    // of what it holds. Nor is it at once: acknowledgements come for large segments, so a queue stays as it is for a
    // while and then falls.
    int64_t length() const {
        const double stall = std::max(soon, std::clamp(late, dry / 8, dry / 3));
        return std::clamp(int64_t(stall), Tuning::kMinStallNs, Tuning::kMaxStallNs);
    }
};

// The known rate, or the mean of the known ones. A stream that was slow and has not been used for long gets a trial.
double rate_of(const Stream& stream, const Load& load) {
    const Pace& p = stream.pace;
    if (p.rate <= 0) return load.mean;
    if (p.window_seen) return p.rate;
    const bool stale = load.now - p.sample_began > Tuning::kStaleRateNs + int64_t(2e9 * p.rtt);
    return stale ? std::max(p.rate, Tuning::kTrialShare * load.mean) : p.rate;
}

// Nanoseconds in which so many bytes drain. On a fast path our rate is only that of our own writing.
double draining_ns(const Stream& s, double bytes, double rate) {
    return bytes / (s.pace.fast ? s.pace.delivery : rate) * 1e9;
}

bool free_to_write(const Stream& s) { return !s.out.request && s.writable; }

Offer offer_of(Stream& s, const Load& load, uint64_t message) {
    const double rate = rate_of(s, load), waiting = double(s.pace.most_queued());
    const double part = rate * Tuning::kCommittedShare * load.ideal;
    const double brief = rate * (Tuning::kMostQueueSeconds + Tuning::kMostQueueRoundTrips * s.pace.rtt);
    // A slow stream may hold a chunk even if that takes it longer: it would get nothing otherwise.
    const double lasting = std::max(brief, double(Tuning::kMinChunkBytes));
    const double share = std::min({part, lasting, double(Tuning::kMostQueueBytes)});
    double length = std::clamp(std::max(share / 2, load.least), double(Tuning::kMinChunkBytes), load.most);
    // Every chunk begins aligned, and no small rest is left for another one.
    length = double(uint32_t(length) / Tuning::kChunkAlignmentBytes * Tuning::kChunkAlignmentBytes);
    if (length * 1.5 >= double(message)) length = double(message);
    const double finish = s.pace.rtt / 2 + (waiting + length) / rate;
    return {&s, rate, finish, waiting + length - (share + rate * s.pace.rtt), uint32_t(length)};
}

}  // namespace

double window_rate(const tcp_info& info) {
    const int64_t resting = 1000 * int64_t(info.tcpi_last_data_sent);  // microseconds, as the time-out is
    const int pauses = int(std::min<int64_t>(resting / std::max(info.tcpi_rto, 1u), 30));
    const double whole = info.tcpi_snd_cwnd, first = std::min(whole, Tuning::kFirstWindowSegments);
    const double window = std::max(std::ldexp(whole, -pauses), first);
    const double threshold = std::max(double(info.tcpi_snd_ssthresh), pauses > 0 ? 0.75 * whole : 0);
    const bool doubles = window < threshold && info.tcpi_ca_state <= TCP_CA_Disorder;
    const double rate = (doubles ? 2 : 1) * window * info.tcpi_snd_mss / (info.tcpi_rtt * 1e-6);
    return info.tcpi_pacing_rate > 0 ? std::min(rate, double(info.tcpi_pacing_rate)) : rate;
}

Schedule::Choice Schedule::choose(uint64_t message, uint64_t unwritten) {
    if (!quick_ || size_t(quick_->index) >= crew_.size()) quick_ = streams_[0].get();
    const uint64_t small = Tuning::kSmallMessageBytes, unwatched = Tuning::kUnwatchedQueueBytes;
    if (message <= small && free_to_write(*quick_) && quick_->pace.most_queued() + message <= unwatched)
        return {quick_, uint32_t(message)};
    const int64_t now = now_ns();
    if (const Choice same = stay(message, now); same.stream) return same;
    look_at_all(now);
    return share_out(message, unwritten, now);
}

// Ask the kernel about the streams that hold something, and see which of them is quick.
void Schedule::look_at_all(int64_t now) {
    for (auto& s : streams_) {
        if (s->pace.most_queued() > 0 && now - s->pace.looked >= look_interval_) look(*s, now);
        if (far_ && size_t(s->index) < crew_.size()) look_at_window(*s, now);
        const bool faster = s->pace.rate > Tuning::kQuickerRatio * quick_->pace.rate;
        if (size_t(s->index) < crew_.size() && (s->pace.fast > quick_->pace.fast || faster)) quick_ = s.get();
    }
}

// The stream with room that would deliver the next chunk first.
Schedule::Choice Schedule::share_out(uint64_t message, uint64_t unwritten, int64_t now) {
    double known = 0, sum = 0;
    int count = 0;
    uint64_t outstanding = unwritten, acknowledged = 0;
    const size_t crew = crew_.size();
    for (size_t i = 0; i < streams_.size(); ++i) {
        const Pace& p = streams_[i]->pace;
        if (i < crew && p.rate > 0) known += p.rate, ++count;
        outstanding += p.most_queued();
        acknowledged += p.written - p.most_queued();
    }
    Load load{now, count ? known / count : Tuning::kUnknownBytesPerSecond, 0, 0, double(most_chunk_bytes_)};
    for (size_t i = 0; i < crew; ++i) sum += rate_of(*streams_[i], load);
    load.ideal = double(outstanding) / sum;
    load.least = std::min(sum * Tuning::kChunkSeconds, double(outstanding) / double(crew));

    Offer first, best;
    Stall stall;
    for (size_t i = 0; i < crew; ++i) {
        Stream& s = *streams_[i];
        const Offer offer = offer_of(s, load, message);
        if (!first.stream || offer.finish < first.finish) first = offer;
        if (!free_to_write(s)) continue;
        if (offer.excess <= 0) {
            if (!best.stream || offer.finish < best.finish) best = offer;
        } else {
            const double drained = draining_ns(s, offer.excess, offer.rate);
            stall.soon = std::min(stall.soon, drained);
            stall.late = std::max(stall.late, drained);
        }
        stall.dry = std::min(stall.dry, draining_ns(s, double(s.pace.most_queued()), offer.rate));
    }
    if (!best.stream && free_to_write(*first.stream)) {
        const Pace& p = first.stream->pace;
        const double excess = double(p.most_queued()) - double(Tuning::kFirstQueueBytes) - first.rate * p.rtt;
        if (excess <= 0)
            best = first;
        else
            stall.soon = std::min(stall.soon, draining_ns(*first.stream, excess, first.rate));
    }
    room_at_ = now + stall.length();
    if (!best.stream)
        for (size_t i = 0; i < crew; ++i) streams_[i]->counters.stalls += free_to_write(*streams_[i]);
    crew_.look(now, acknowledged, !best.stream, far_ ? sum : 0);
    return {best.stream, best.length};
}

// The quick stream again, if its path is fast and little waits in it.
Schedule::Choice Schedule::stay(uint64_t message, int64_t now) {
    if (!free_to_write(*quick_)) return {};
    if (quick_->pace.most_queued() > 0 && now - quick_->pace.looked >= look_interval_) look(*quick_, now);
    if (!quick_->pace.fast) return {};
    const auto brief = uint64_t(quick_->pace.delivery * Tuning::kFastQueueSeconds);
    const uint64_t most = std::min(brief, uint64_t(Tuning::kFastQueueBytes));
    const uint64_t queued = quick_->pace.most_queued();
    const uint64_t space = queued < most ? most - queued : 0;
    const uint64_t room = std::min<uint64_t>(space, most_chunk_bytes_);
    if (room >= message) return {quick_, uint32_t(message)};
    if (space < most / 4) return {};
    return {quick_, uint32_t(room / Tuning::kChunkAlignmentBytes * Tuning::kChunkAlignmentBytes)};
}

// Ask the kernel how much is still unacknowledged.
void Schedule::look(Stream& s, int64_t now) {
    int queued = 0;
    if (ioctl(s.socket.fd(), SIOCOUTQ, &queued) != 0 || queued < 0) return;
    s.pace.queued = uint64_t(queued);
    s.pace.looked = now;
    s.pace.written_then = s.pace.written;
    s.counters.queued_max = std::max(s.counters.queued_max, s.pace.queued);
    if (s.pace.queued <= Tuning::kUnacknowledgedRestBytes) s.pace.ran_dry = true;
    // Over a long path acknowledgements come in bursts, one for each round trip.
    const int64_t interval = std::max(Tuning::kSampleIntervalNs, int64_t(s.pace.rtt * 1e9));
    const uint64_t acknowledged = s.pace.written - s.pace.queued - s.pace.acknowledged_then;
    const double rate = double(acknowledged) / (double(now - s.pace.sample_began) * 1e-9);
    const bool quick = !far_ && rate >= Tuning::kSlowPathBytesPerSecond;
    const bool telling = quick && acknowledged >= Tuning::kTellingSampleBytes;
    if (now - s.pace.sample_began >= (telling ? Tuning::kTellingSampleNs : interval)) sample(s, now);
}

// Over a long path, what its window lets through: it tells more than what was acknowledged, which is a round trip old,
// falls with the first loss, and is known of a stream that has not been used for long.
void Schedule::look_at_window(Stream& s, int64_t now) {
    Pace& p = s.pace;
    if (double(now - p.window_seen) < p.rtt / 2 * 1e9) return;
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(s.socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_rtt == 0) return;
    p.rate = window_rate(info);
    p.window_seen = now;
}

// Bytes acknowledged per second since the last sample, not counting the time for which the receiver took nothing.
void Schedule::sample(Stream& s, int64_t now) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(s.socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
    Pace& p = s.pace;
    p.rtt = info.tcpi_min_rtt != ~0u ? info.tcpi_min_rtt * 1e-6 : info.tcpi_rtt * 1e-6;
    p.smooth_rtt = info.tcpi_rtt * 1e-6;
    const uint64_t acknowledged = p.written - p.queued;
    const double elapsed = double(now - p.sample_began) * 1e-9;
    const double delivery = double(info.tcpi_delivery_rate), fast = Tuning::kFastPathBytesPerSecond;
    // Seen twice, and not far from what the path has shown to us, because a shaper lets a burst pass after a pause.
    p.fast = delivery >= fast && p.delivery >= fast && p.rate >= fast / 2;
    p.delivery = delivery;
    const double limited = double(info.tcpi_rwnd_limited - p.limited_then) * 1e-6;
    if (!far_ && p.sample_began > 0 && acknowledged > p.acknowledged_then && elapsed < 1 + 2 * p.rtt) {
        const double busy = std::max(elapsed - limited, elapsed / 4);
        const double rate = double(acknowledged - p.acknowledged_then) / busy;
        // The kernel's rate alone is low, too, where the caller paused.
        if (rate >= Tuning::kSlowPathBytesPerSecond)
            p.slow = false;
        else if (!p.ran_dry && !info.tcpi_delivery_rate_app_limited)
            p.slow = delivery < Tuning::kSlowPathBytesPerSecond;
        const bool enough = !p.ran_dry || acknowledged - p.acknowledged_then >= Tuning::kTellingSampleBytes;
        if (p.rate <= 0)
            p.rate = enough ? rate : 0;
        else if (rate > p.rate)
            p.rate += Tuning::kRiseWeight * (rate - p.rate);
        else if (!p.ran_dry)
            p.rate += Tuning::kFallWeight * (rate - p.rate);
    }
    p.acknowledged_then = acknowledged;
    p.limited_then = info.tcpi_rwnd_limited;
    p.sample_began = now;
    p.ran_dry = p.queued <= Tuning::kUnacknowledgedRestBytes;
}

}  // namespace bagua
