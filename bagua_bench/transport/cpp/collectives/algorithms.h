// The collectives that combine or pass on: rings, chains or halving in slices for large data, few steps for small. All
// return after their data is complete here, in the same order of calls on every rank; a failed one leaves the mesh
// unusable.

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
// blocks[r] holds rank r's bytes on return; the own one must be filled in. All of the same size.
Status all_gather(Mesh& mesh, const std::vector<void*>& blocks, size_t bytes);
// `data` holds one block of `count` elements per rank and is overwritten; the own block becomes the result.
Status reduce_scatter(Mesh& mesh, void* data, size_t count, Elements e);
Status broadcast(Mesh& mesh, void* data, size_t bytes, int root);
// In place on the root; `data` of the others is not changed.
Status reduce(Mesh& mesh, void* data, size_t count, Elements e, int root);

}  // namespace bagua
