// The numbers that decide how fast the transport is, found by measuring with tools/transport. None of them is part of
// the protocol: two peers may have different ones. Each name says what the number is in, where it has a unit.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "status.h"

namespace bagua {

struct Tuning {
    // How many streams a connection has where the round trip decides: handshake.h. By the formula of Mathis and others
    // (1997), a stream that loses one packet in a thousand carries 1448 bytes * 1.22 / sqrt(0.001) per round trip: one
    // for each millisecond of it together carry 447 Mbit/s, whatever the distance.
    static constexpr double kStreamPerSeconds = 1e-3;
    static constexpr int kFewestStreams = 4;
    // It begins with so many, and is connected for more: one for each half of a millisecond, which together carry
    // 283 Mbit/s where one packet in a hundred is lost, and 894 Mbit/s where it is one in a thousand, up to kMaxStreams.
    static constexpr double kMostStreamPerSeconds = 0.5e-3;

    // When more or fewer of them are tried: crew.cpp.
    static constexpr int64_t kTrialNs = 250 * kMillisecond;  // of waiting messages, at least, for a measurement ...
    static constexpr double kTrialRoundTrips = 4;  // ... and so many round trips
    static constexpr size_t kGrowth = 4;  // times as many streams are tried
    static constexpr size_t kLeastFewer = 8, kMostFewer = 4;  // divisors: a trial leaves out an eighth to a quarter
    static constexpr double kLeastGain = 1.1, kSpare = 1.25;  // of the rate by them, and streams beyond its proportion
    static constexpr double kTrialGain = 0.25;  // of what the rate would gain in proportion to the streams
    static constexpr double kLeastKept = 0.97;  // of the rate by fewer
    static constexpr double kSteadyRatio = 1.2;  // of the rate to the one before, or of that one to it
    static constexpr int64_t kMostUnseenNs = 20 * kMillisecond;  // between two looks of who waits
    static constexpr double kQueueShare = 0.1, kLeastQueueSeconds = 1e-3;  // of round trips that are longer than at first
    static constexpr int64_t kTrialPauseNs = 4 * kSecond, kMostTrialPauseNs = 160 * kSecond;  // after one in vain

    // Which stream takes the next chunk, and how large the chunk is: schedule.cpp.
    static constexpr uint64_t kSmallMessageBytes = 16 << 10;  // sent in one chunk, by the stream that was quick last
    static constexpr uint64_t kUnwatchedQueueBytes = 64 << 10;  // may wait in a stream before the kernel is asked
    static constexpr uint64_t kMostQueueBytes = 1 << 20;  // may wait beyond what fills the path: caches are small
    // The same for what drains in so long at the stream's rate, and in so many round trips: the stream may be at a tenth
    // of it from now on, and then holds up every message of which it has a part. (Over a long path, whose rate also falls
    // with every loss, too little would wait for the time after it; more would become a queue in the network.)
    static constexpr double kMostQueueSeconds = 4e-3, kMostQueueRoundTrips = 1;
    static constexpr uint64_t kFirstQueueBytes = 128 << 10;  // may always wait in the stream that delivers first
    static constexpr double kCommittedShare = 0.6;  // of the ideal time, for one stream: its rate is an estimate
    static constexpr double kQuickerRatio = 1.5;  // a stream this many times as fast takes over the small messages
    static constexpr uint32_t kMinChunkBytes = 16 << 10, kMaxChunkBytes = 64 << 20;  // what a user may choose between
    static constexpr uint32_t kChunkAlignmentBytes = 4096;
    static constexpr double kChunkSeconds = 50e-6;  // of all streams together, at least: one core cuts all chunks
    // A path that is faster than most links: one stream takes everything while less than both of these waits in it. The
    // bytes are what a caller that sleeps between two tests does not find drained.
    static constexpr double kFastPathBytesPerSecond = 1.25e9;
    static constexpr double kSlowPathBytesPerSecond = kFastPathBytesPerSecond / 4;  // far from what a core can use
    static constexpr double kFastQueueSeconds = 2e-3;
    static constexpr uint64_t kFastQueueBytes = 3 << 20;

    // How the rate of a stream is estimated: schedule.cpp.
    static constexpr int64_t kLookIntervalNs = 10 * kMicrosecond;  // between questions to the kernel about one stream
    static constexpr int64_t kFarLookIntervalNs = kMillisecond;  // over a long path, with many streams
    static constexpr int64_t kSampleIntervalNs = 10 * kMillisecond;  // or a round trip, if it is longer
    static constexpr double kFarSeconds = kSampleIntervalNs * 1e-9;  // a longer round trip makes a long path
    // Enough to tell a rate even if the stream ran dry; after so long, if the path may be a fast one, whose first large
    // messages go well only when that is known.
    static constexpr uint64_t kTellingSampleBytes = 1 << 20;
    static constexpr int64_t kTellingSampleNs = kMillisecond;
    static constexpr uint64_t kUnacknowledgedRestBytes = 4096;  // may have arrived: acknowledgements are saved up
    // And two round trips without a sample, after which a slow stream gets another trial.
    static constexpr int64_t kStaleRateNs = kSecond;
    static constexpr double kTrialShare = 0.125;  // of the mean rate, credited to a stream for such a trial
    static constexpr double kRiseWeight = 0.5, kFallWeight = 0.25;  // of one sample in the estimate
    static constexpr double kFirstWindowSegments = 10;  // of TCP (RFC 6928)
    static constexpr double kUnknownBytesPerSecond = 1e9;  // until the first sample of any stream
    static constexpr int64_t kMinStallNs = 20 * kMicrosecond, kMaxStallNs = 2 * kMillisecond;  // between looks for room

    // How a chunk reaches the kernel: sender.cpp.
    static constexpr int kChunksPerCall = 64;  // bounds the work of one call
    // From here on a receipt costs less than a copy: one way or over a slow path, which hides the receipt, and in a
    // group, whose ranks wait for each other's messages.
    static constexpr size_t kMinLentMessageBytes = 256 << 10, kMinLentInGroupBytes = 2 << 20;
    static constexpr size_t kMinLentRestBytes = 16 << 10;  // the same for the rest of a chunk
    // A larger message is not likely to be in a cache any more. Lending all of it leaves reading it from memory to the
    // receiver, which otherwise finds the sender's copy in the cache. On a path faster than a core, one chunk of so
    // many is lent, which keeps both cores busy.
    static constexpr uint32_t kCachedMessageBytes = 1 << 20;
    static constexpr unsigned kChunksPerLentChunk = 3;
    static constexpr double kNearRoundTripSeconds = 1e-3;  // up to which waiting for a receipt is not noticed
    static constexpr size_t kCopiedTogetherBytes = 1024;  // one copy costs less than the kernel gathering two pieces

    // How a chunk is read: receiver.cpp.
    static constexpr int kReadsPerStream = 16;  // bounds the work of one call
    static constexpr uint32_t kBulkRestBytes = 16 << 10;  // more is read with only the next header behind it
    static constexpr uint32_t kWakeUpBytes = 256 << 10;  // worth being woken up for
    static constexpr uint64_t kChunksPerReminder = 64;  // the kernel forgets that acknowledgements should wait

    // When the kernel is asked for events: connection.cpp.
    static constexpr unsigned kMovesPerEventCheck = 8;  // calls of progress() that moved something
    static constexpr int64_t kEventCheckIntervalNs = 10 * kMicrosecond;  // for a caller that spins
    static constexpr int64_t kLifeCheckIntervalNs = 250 * kMillisecond;  // between two looks for dead paths

    // How an outage is told from the end of a path: socket.cpp, pulse.cpp.
    static constexpr int64_t kRetryNs = kSecond;  // between TCP's attempts while the peer is cut off, at most
    static constexpr int64_t kGraceNs = 5 * kSecond / 2;  // until data moves after an outage: two attempts, and some
    // Between nudges (sender.h), and without an acknowledgement until the first one: this, or two round trips. A peer may
    // delay an acknowledgement for longer; a nudge is then superfluous and costs one header.
    static constexpr int64_t kNudgeNs = 20 * kMillisecond;
    static constexpr double kNudgeRoundTrips = 2;
    static int64_t nudge_after(double round_trip) {
        return std::max(kNudgeNs, int64_t(kNudgeRoundTrips * round_trip * double(kSecond)));
    }
    // For so long afterwards TCP goes on to try often: it takes an answer that came late for a sign of a slow path, and
    // would wait as long for the next one.
    static constexpr int64_t kConvalescenceNs = 10 * kSecond;
};

}  // namespace bagua
