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

void Crew::look(int64_t now, uint64_t acknowledged, bool waiting, double windows) {
    if (!chooses_) return;
    // Streams with room take chunks at once, so that messages wait again a moment later. Where none has waited for
    // longer, there was nothing to send, or no time to look.
    if (waiting_seen_ && now - waiting_seen_ <= Tuning::kMostUnseenNs) {
        waited_ += now - looked_;
        moved_ += acknowledged - acknowledged_;
    }
    if (waiting) waiting_seen_ = now;
    looked_ = now;
    acknowledged_ = acknowledged;
    if (waited_ < interval_) return;
    judge(now, double(moved_) / (double(waited_) * 1e-9), windows);
    waited_ = 0;
    moved_ = 0;
}

void Crew::judge(int64_t now, double rate, double windows) {
    if (settling_) {
        settling_ = false;
        return;
    }
    const double earlier = rate_;
    rate_ = rate;
    if (before_ && conclude(now, rate)) return;
    // What grows by itself, or recovers from something, does not tell what the streams at hand can do.
    if (rate <= 0 || earlier <= 0 || rate > earlier * Tuning::kSteadyRatio) return;
    const bool steady = earlier <= rate * Tuning::kSteadyRatio;
    const double usual = steady ? std::max(rate, earlier) : rate;
    const double queue = queued_share();
    const size_t least = std::max<size_t>(size_ / Tuning::kLeastFewer, 1);
    if (queue == 0)  // the rate is a round trip old: after a loss it falls further, to what the windows let through
        attempt(now, size_ * Tuning::kGrowth, windows > 0 ? std::min(usual, windows) : usual);
    else if (steady)
        attempt(now, size_ - std::clamp(size_t(double(size_) * queue), least, size_ / Tuning::kMostFewer), usual);
}

// The end of a trial; whether another size has to settle.
bool Crew::conclude(int64_t now, double rate) {
    Patience& patience = size_ > before_ ? larger_ : smaller_;
    const bool outage = rate <= 0;  // which tells nothing
    const double change = double(size_) / double(before_) - 1, gain = rate / rate_before_;
    const bool paid = gain >= (change > 0 ? 1 + Tuning::kTrialGain * change : Tuning::kLeastKept);
    const size_t useful = outage ? before_ : paid ? size_ : useful_size(gain);
    const int64_t longer = std::clamp(2 * patience.pause, Tuning::kTrialPauseNs, Tuning::kMostTrialPauseNs);
    if (!outage) patience = {now + (paid ? 0 : longer), paid ? 0 : longer, rate};
    settling_ = useful != size_;
    size_ = useful;
    before_ = 0;
    return settling_;
}

// After a trial that did not pay: of a larger number that gained something nevertheless, all where they have filled the
// line, beyond which they cannot gain, or else as many as would have carried this rate with what each carried before,
// and some.
size_t Crew::useful_size(double gain) const {
    if (size_ < before_ || gain < Tuning::kLeastGain) return before_;
    if (queued_share() > 0) return size_;
    return std::clamp(size_t(double(before_) * gain * Tuning::kSpare), before_ + 1, size_);
}

void Crew::attempt(int64_t now, size_t size, double rate) {
    size = std::clamp(size, size_t(Tuning::kFewestStreams), streams_.size());
    const Patience& patience = size > size_ ? larger_ : smaller_;
    const bool changed = size > size_ && rate * Tuning::kSteadyRatio < patience.rate;  // since the last one in vain
    if (size == size_ || (now < patience.next && !changed)) return;
    before_ = size_;
    rate_before_ = rate;
    size_ = size;
    settling_ = true;
}

// The share of round trips for which packets wait in the network, where they take longer than at first, when there was
// nothing to wait for. So many of the streams could go, and the others would still fill the line.
double Crew::queued_share() const {
    double late = 0, least = 0, whole = 0;
    for (size_t i = 0; i < size_; ++i) {
        const Pace& p = streams_[i]->pace;
        if (p.smooth_rtt <= 0 || p.first_rtt <= 0) continue;  // not looked at since it was taken into the crew
        const double share = std::max(p.first_rtt * Tuning::kQueueShare, Tuning::kLeastQueueSeconds);
        late += std::max(p.smooth_rtt - p.first_rtt, -share);  // the first may have waited for a tunnel
        least += share;
        whole += p.smooth_rtt;
    }
    return late > least ? late / whole : 0;
}

int streams_for(double round_trip, double stream_per_seconds) {
    return std::max(Tuning::kFewestStreams, int(std::ceil(round_trip / stream_per_seconds)));
}

}  // namespace bagua
