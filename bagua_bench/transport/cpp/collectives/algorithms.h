// The collectives that combine data or pass it on. Large data goes in slices along rings, chains and trees, or by
// halving; small data goes in few steps. All ranks must make the same calls in the same order. A call returns when its
// data is complete on this rank; a failed one leaves the mesh unusable.

#pragma once

#include "mesh.h"
#include "reduce.h"

namespace bagua {

struct Elements {
    Type type;
    Op op;
};

// In place. Every rank gets the same bits.
Status all_reduce(Mesh& mesh, void* data, size_t count, Elements e);
// On return blocks[r] holds rank r's bytes. The caller fills in its own block; all have the same size.
Status all_gather(Mesh& mesh, const std::vector<void*>& blocks, size_t bytes);
// `data` holds one block of `count` elements per rank and is overwritten; this rank's block becomes the result.
Status reduce_scatter(Mesh& mesh, void* data, size_t count, Elements e);
Status broadcast(Mesh& mesh, void* data, size_t bytes, int root);
// In place on the root; `data` of the others is not changed.
Status reduce(Mesh& mesh, void* data, size_t count, Elements e, int root);

}  // namespace bagua
