// A crew of streams on a clock and a path of the test's own, and the rate of a window.
#include <linux/tcp.h>

#include "core/schedule.h"

using namespace bagua;

namespace {

struct Stage {
    Streams streams;
    std::unique_ptr<Crew> crew;
    double seconds = 1, acknowledged = 0;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Stage* crew_new(int streams, double round_trip) {
    auto* stage = new Stage;
    for (int k = 0; k < streams; ++k) {
        stage->streams.push_back(std::make_unique<Stream>());
        stage->streams.back()->pace.first_rtt = round_trip;
    }
    stage->crew = std::make_unique<Crew>(stage->streams, true);
    return stage;
}

// So many seconds later; `rate` bytes/s were acknowledged meanwhile, and `windows` would let so many through. `waiting`:
// messages wait for room. Returns how many streams are in use then.
EXPORT int crew_step(Stage* stage, double seconds, double rate, double round_trip, double windows, int waiting) {
    stage->seconds += seconds;
    stage->acknowledged += seconds * rate;
    for (auto& stream : stage->streams) stream->pace.smooth_rtt = round_trip;
    stage->crew->look(int64_t(stage->seconds * 1e9), uint64_t(stage->acknowledged), waiting, windows);
    return int(stage->crew->size());
}

EXPORT void crew_delete(Stage* stage) { delete stage; }

// Of 1000 bytes to a segment; times in microseconds.
EXPORT double rate_of_window(
    unsigned segments, unsigned threshold, unsigned round_trip, unsigned rto, unsigned resting, int state, double pace) {
    tcp_info info{};
    info.tcpi_snd_mss = 1000;
    info.tcpi_snd_cwnd = segments;
    info.tcpi_snd_ssthresh = threshold;
    info.tcpi_rtt = round_trip;
    info.tcpi_rto = rto;
    info.tcpi_last_data_sent = resting / 1000;
    info.tcpi_ca_state = uint8_t(state);
    info.tcpi_pacing_rate = uint64_t(pace);
    return window_rate(info);
}
