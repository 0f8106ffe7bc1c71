// Which stream takes the next chunk, and how large it may be.
//
// While stream i drains what it was given, the others must not run out of work. With B bytes outstanding (not yet
// written, or written and not acknowledged) and R the sum of all rates, the ideal is to be finished in B/R seconds; so
// no stream may hold more than a share of B/R seconds of its own rate, nor more than drains in a few milliseconds and a
// round trip, plus another round trip that fills the path. A slow stream thus holds few bytes, a fast one many, and near
// the end of the work the slow ones get nothing. The stream that would deliver first may always hold a little.
//
// A stream whose path is faster than one core can use needs no company: while little waits in it, it takes everything,
// in large chunks, because any other stream would only cost system calls and cache. The kernel tells how fast the path
// is, from the spacing of acknowledgements; our own rates only tell how much of it was used.
//
// The numbers behind these rules are in tuning.h.

#pragma once

#include "crew.h"
#include "stream.h"
#include "tuning.h"

struct tcp_info;

namespace bagua {

// Bytes/s of the window that TCP has for each round trip. It doubles meanwhile in slow start, and is halved for every
// time-out for which nothing is sent, when something is sent again (RFC 2861). A congestion control that goes by a rate
// has a larger window than it uses: then its pace counts.
double window_rate(const tcp_info& info);

class Schedule {
  public:
    Schedule(Streams& streams, uint32_t most_chunk_bytes, bool chooses)
        : streams_(streams),
          crew_(streams, chooses),
          most_chunk_bytes_(most_chunk_bytes),
          far_(first_round_trip(streams) > Tuning::kFarSeconds),
          look_interval_(far_ ? Tuning::kFarLookIntervalNs : Tuning::kLookIntervalNs) {}

    struct Choice {
        Stream* stream;  // null: nobody has room now
        uint32_t length;
    };

    // `message`: bytes left of the message to cut from; `unwritten`: bytes posted and not yet handed to a stream.
    Choice choose(uint64_t message, uint64_t unwritten);

    // After a stall, when to look again (ns): several streams should have room by then.
    int64_t room_at() const { return room_at_; }
    // How many streams, from the first one on, take chunks.
    size_t crew() const { return crew_.size(); }

  private:
    Choice stay(uint64_t message, int64_t now);
    Choice share_out(uint64_t message, uint64_t unwritten, int64_t now);
    void look_at_all(int64_t now);
    void look(Stream& stream, int64_t now);
    void sample(Stream& stream, int64_t now);
    void look_at_window(Stream& stream, int64_t now);

    Streams& streams_;
    Crew crew_;
    const uint32_t most_chunk_bytes_;
    const bool far_;  // over a long path, rates are those of windows
    const int64_t look_interval_;
    Stream* quick_ = nullptr;  // takes small messages while little waits in it
    int64_t room_at_ = 0;
};

}  // namespace bagua
