#include "crew.h"

#include <algorithm>
#include <cmath>

#include "tuning.h"

namespace bagua {

Crew::Crew(Streams& streams, bool chooses)
    : streams_(streams),
      size_(streams.size()),
      chooses_(chooses && streams.size() > size_t(Tuning::kFewestStreams)),
      pause_(Tuning::kTrialPauseNs) {
    double least = 1e9;
    for (auto& s : streams_) least = std::min(least, s->pace.first_rtt);
    interval_ = std::max(Tuning::kTrialNs, int64_t(Tuning::kTrialRoundTrips * least * 1e9));
    if (chooses_) size_ = std::min(size_, size_t(streams_for(least, Tuning::kStreamPerSeconds)));
}

void Crew::look(int64_t now, uint64_t acknowledged, bool waiting) {
    if (!chooses_) return;
    if (waiting_since_) {
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
    if (before_) {
        const double change = double(size_) / double(before_) - 1;
        const bool pays = rate >= rate_before_ * (1 + Tuning::kTrialGain * change);
        if (!pays) {
            size_ = before_;
            settling_ = true;
            next_ = now + pause_;
            pause_ = std::min(2 * pause_, Tuning::kMostTrialPauseNs);
        } else {
            pause_ = Tuning::kTrialPauseNs;
        }
        before_ = 0;
        if (!pays) return;
    }
    const bool steady = rate_ > 0 && rate <= rate_ * Tuning::kSteadyRatio;  // else it grows by itself
    rate_ = rate;
    if (!steady || now < next_) return;
    attempt(full() ? size_ - std::max<size_t>(size_ / 8, 1) : size_ + size_ / 2, rate);
}

void Crew::attempt(size_t size, double rate) {
    size = std::clamp(size, size_t(Tuning::kFewestStreams), streams_.size());
    if (size == size_) return;
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
        late += p.smooth_rtt - p.first_rtt;
        least += std::max(p.first_rtt * Tuning::kQueueShare, Tuning::kLeastQueueSeconds);
    }
    return late > least;
}

int streams_for(double round_trip, double stream_per_seconds) {
    return std::max(Tuning::kFewestStreams, int(std::ceil(round_trip / stream_per_seconds)));
}

}  // namespace bagua
