// A crew of streams on a clock and a path of the test's own.
#include "core/crew.h"

#include "core/tuning.h"

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

// So many seconds later; `rate` bytes/s were acknowledged meanwhile. Returns how many streams are in use then.
EXPORT int crew_step(Stage* stage, double seconds, double rate, double round_trip) {
    stage->seconds += seconds;
    stage->acknowledged += seconds * rate;
    for (auto& stream : stage->streams) stream->pace.smooth_rtt = round_trip;
    stage->crew->look(int64_t(stage->seconds * 1e9), uint64_t(stage->acknowledged), true);
    return int(stage->crew->size());
}

EXPORT void crew_delete(Stage* stage) { delete stage; }
