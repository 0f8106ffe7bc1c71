// Slices that come from one rank, are treated, and go on to another, with several on their way at once.

#pragma once

#include <functional>

#include "mesh.h"

namespace bagua {

struct Slice {
    unsigned char* data = nullptr;
    size_t size = 0;
};

struct Pipeline {
    // Between two ranks; negative: none. It waits for their connections.
    Pipeline(Mesh& mesh, int from, int to);
    const int from, to;  // ranks
    size_t receives = 0, sends = 0;
    // Where to put incoming slice i; `slot` is the one of `ahead` scratch places that is free for it.
    std::function<Slice(size_t i, size_t slot)> incoming;
    // It has arrived: treat it.
    std::function<void(size_t i, const Slice&)> arrived;
    std::function<Slice(size_t i)> outgoing;
    // How many slices must have been treated before this one may go.
    std::function<size_t(size_t i)> needs;

    static constexpr size_t kNear = 2;  // receives at a time over a short round trip: they stay in the cache
    static constexpr size_t kSends = 16;
    size_t ahead, sent_ahead;  // slices on their way from one rank and to the other

    Status run(Mesh& mesh);
};

// How many slices should be on their way from a rank at once.
size_t under_way(const Mesh& mesh, int peer);

// Size of a slice for blocks of so many bytes: small enough to overlap several, not so small that calls dominate.
size_t slice_size(size_t block);

// The same for data that only passes through: along a ring, whose larger blocks go in slices that are lent, or along a
// chain of so many ranks, where the last one waits for a slice from every rank before it.
size_t ring_slice_size(size_t block);
size_t chain_slice_size(size_t bytes, int ranks);

}  // namespace bagua
