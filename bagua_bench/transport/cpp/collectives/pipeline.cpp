#include "pipeline.h"

#include <algorithm>
#include <cmath>
#include <deque>

namespace bagua {

namespace {

// With more ranks than cores every slice costs a turn of the scheduler. All ranks must cut alike: these numbers are part
// of the protocol (kVersion).
constexpr size_t kLeast = 128 << 10, kMost = 256 << 10, kParts = 4;
constexpr size_t kMostInRing = 2 << 20;  // lent (Tuning)
constexpr size_t kMostInChain = 1 << 20, kPartsPerMiddle = 16;  // a sixteenth longer than the data alone would take
// Receives at a time over a long round trip: one for so many seconds of it, which fill a line of 8 Gbit/s, up to a limit.
constexpr size_t kFar = 128;
constexpr double kSlicePerSeconds = 0.25e-3;

size_t part_of(size_t bytes, size_t parts, size_t least, size_t most) {
    return std::clamp((bytes / parts + 4095) / 4096 * 4096, least, most);
}

}  // namespace

size_t under_way(const Mesh& mesh, int peer) {
    return std::clamp(size_t(std::ceil(mesh.round_trip(peer) / kSlicePerSeconds)), Pipeline::kNear, kFar);
}

Pipeline::Pipeline(Mesh& mesh, int from_rank, int to_rank) : from(from_rank), to(to_rank) {
    mesh.await({from, to});
    ahead = under_way(mesh, from);
    sent_ahead = std::max(kSends, under_way(mesh, to));
}

size_t slice_size(size_t block) { return part_of(block, kParts, kLeast, kMost); }

size_t ring_slice_size(size_t block) { return part_of(block, kParts, kLeast, kMostInRing); }

size_t chain_slice_size(size_t bytes, int ranks) {
    return part_of(bytes, kPartsPerMiddle * size_t(std::max(1, ranks - 2)), kMost, kMostInChain);
}

Status Pipeline::run(Mesh& mesh) {
    struct Open {
        Request* request;
        Slice slice;
    };
    std::deque<Open> coming, going;
    size_t posted = 0, treated = 0, sent = 0;
    while (treated < receives || sent < sends || !going.empty()) {
        bool moved = false;
        while (posted < receives && posted - treated < ahead) {
            const Slice s = incoming(posted, posted % ahead);
            Request* r = mesh.post(from, false, s.data, s.size);
            if (!r) break;
            coming.push_back({r, s});
            ++posted, moved = true;
        }
        while (sent < sends && going.size() < sent_ahead && needs(sent) <= treated) {
            const Slice s = outgoing(sent);
            Request* r = mesh.post(to, true, s.data, s.size);
            if (!r) break;
            going.push_back({r, s});
            ++sent, moved = true;
        }
        moved |= mesh.progress();
        while (!coming.empty() && coming.front().request->state == Request::State::done) {
            mesh.to(from).release(coming.front().request);
            arrived(treated, coming.front().slice);
            coming.pop_front();
            ++treated, moved = true;
            if (sent < sends && needs(sent) <= treated) break;  // let it go on at once
        }
        while (!going.empty() && going.front().request->state == Request::State::done) {
            mesh.to(to).release(going.front().request);
            going.pop_front();
            moved = true;
        }
        if (moved) continue;
        if (Status s = mesh.idle(); !s) return s;
    }
    return {};
}

}  // namespace bagua
