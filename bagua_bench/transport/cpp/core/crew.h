// How many of a connection's streams take chunks, where the transport chooses their number: those of a crew, the first
// ones. The others are connected, and carry nothing.
//
// While messages wait and yet no queue builds up in the network, the streams are held back by something else than the
// line: by lost packets, or by the receiver's windows. Then more of them carry more, in proportion, and four times as
// many are tried at once: a path with loss asks for many, and every trial takes round trips. Where a queue builds up,
// the line is full, and fewer streams leave more of it to others. Both are trials: what counts is the rate at which
// bytes are acknowledged while messages wait. What does not pay is taken back, or a part of it, and no trial follows for
// a while; one of more streams does once the rate has fallen: windows that grew before the first loss come down only
// by and by.
//
// The numbers behind these rules are in tuning.h.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stream.h"

namespace bagua {

// How many streams a round trip (seconds) asks for, one for so many seconds of it.
int streams_for(double round_trip, double stream_per_seconds);

class Crew {
  public:
    // `chooses`: otherwise all streams are in it. The crew begins with as many as the round trip asks for.
    Crew(Streams& streams, bool chooses);
    size_t size() const { return size_; }
    // To be called often. `acknowledged`: bytes of all streams so far; `waiting`: messages wait for a stream with room;
    // `windows`: bytes/s that those of the crew let through over a long path, 0 over another one.
    void look(int64_t now, uint64_t acknowledged, bool waiting, double windows);

  private:
    // Trials in one direction: when there may be another one, and the pause after one in vain (ns).
    struct Patience {
        int64_t next = 0, pause = 0;
        double rate = 0;  // that the last one ended with
    };
    void judge(int64_t now, double rate, double windows);
    bool conclude(int64_t now, double rate);
    size_t useful_size(double gain) const;
    void attempt(int64_t now, size_t size, double rate);
    double queued_share() const;

    Streams& streams_;
    size_t size_;
    bool chooses_;
    int64_t interval_;  // of waiting, for one measurement (ns)

    int64_t waiting_seen_ = 0;  // when messages waited last; 0: never
    int64_t looked_ = 0;
    uint64_t acknowledged_ = 0;  // when looked at last
    int64_t waited_ = 0;  // in the running interval (ns) ...
    uint64_t moved_ = 0;  // ... and bytes acknowledged meanwhile

    double rate_ = 0;  // bytes/s in the interval before; 0 = not known
    size_t before_ = 0;  // its size before the trial under way; 0: none is
    double rate_before_ = 0;
    bool settling_ = false;  // the interval in which the size changed tells nothing
    Patience larger_, smaller_;
};

}  // namespace bagua
