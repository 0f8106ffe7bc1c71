#include "crew.h"

#include <algorithm>
#include <cmath>

#include "tuning.h"

namespace bagua {

Crew::Crew(Streams& streams, bool chooses)
    : streams_(streams),
      size_(streams.size()),
      chooses_(chooses && streams.size() > size_t(Tuning::kFewestStreams)) {
    const double least = first_round_trip(streams_);
    interval_ = std::max(Tuning::kTrialNs, int64_t(Tuning::kTrialRoundTrips * least * 1e9));
    if (chooses_) size_ = std::min(size_, size_t(streams_for(least, Tuning::kStreamPerSeconds)));
}

void Crew::look(int64_t now, uint64_t acknowledged, bool waiting) {
    if (!chooses_) return;
    // Who does not look for long has had nothing to send, or no time.
    if (waiting_since_ && now - waiting_since_ <= Tuning::kMostUnseenNs) {
        waited_ += now - waiting_since_;
        moved_ += acknowledged - acknowledged_;
    }
    waiting_since_ = waiting ? now : 0;
    acknowledged_ = acknowledged;
    if (waited_ < interval_) return;
    judge(now, double(moved_) / (double(waited_) * 1e-9));
    waited_ = 0;
    moved_ = 0;
}

void Crew::judge(int64_t now, double rate) {
    if (settling_) {
        settling_ = false;
        return;
    }
    const bool outage = rate <= 0;
    bool stays = false;
    if (before_) {
        Patience& patience = size_ > before_ ? larger_ : smaller_;
        stays = !outage && pays(rate);
        const int64_t longer = std::clamp(2 * patience.pause, Tuning::kTrialPauseNs, Tuning::kMostTrialPauseNs);
        if (!outage) patience.pause = stays ? 0 : longer;
        patience.next = now + patience.pause;
        settling_ = !stays;
        if (!stays) size_ = before_;
        before_ = 0;
    }
    // Else it grows by itself, or recovers from something: neither tells what the streams at hand can do.
    const bool steady = rate_ > 0 && rate <= rate_ * Tuning::kSteadyRatio && rate_ <= rate * Tuning::kSteadyRatio;
    const double usual = stays ? rate : std::max(rate, rate_);
    rate_ = rate;
    if (!stays && (!steady || settling_)) return;
    attempt(now, full() ? size_ - std::max<size_t>(size_ / 8, 1) : size_ + size_ / 2, usual);
}

// Whether the trial under way has gained a good part of what it would in proportion, or lost little.
bool Crew::pays(double rate) const {
    const double change = double(size_) / double(before_) - 1;
    return rate >= rate_before_ * (1 + Tuning::kTrialGain * change);
}

void Crew::attempt(int64_t now, size_t size, double rate) {
    size = std::clamp(size, size_t(Tuning::kFewestStreams), streams_.size());
    if (size == size_ || now < (size > size_ ? larger_ : smaller_).next) return;
    before_ = size_;
    rate_before_ = rate;
    size_ = size;
    settling_ = true;
}

// Whether packets wait in the network: their round trips take longer than at first, when there was nothing to wait for.
bool Crew::full() const {
    double late = 0, least = 0;
    for (size_t i = 0; i < size_; ++i) {
        const Pace& p = streams_[i]->pace;
        if (p.smooth_rtt <= 0 || p.first_rtt <= 0) continue;  // not looked at since it was taken into the crew
        const double share = std::max(p.first_rtt * Tuning::kQueueShare, Tuning::kLeastQueueSeconds);
        late += std::max(p.smooth_rtt - p.first_rtt, -share);  // the first may have waited for a tunnel
        least += share;
    }
    return late > least;
}

int streams_for(double round_trip, double stream_per_seconds) {
    return std::max(Tuning::kFewestStreams, int(std::ceil(round_trip / stream_per_seconds)));
}

}  // namespace bagua
