// A large all-reduce along the mesh's tree: sums go up to its root slice by slice, and results come down meanwhile. A
// rank sends and receives the data once for each of its neighbours. So the slow line of a leaf carries it once, where a
// ring sends it nearly twice over every line.

#pragma once

#include "algorithms.h"

namespace bagua {

// Whether these are the parents of all ranks of a tree: one is the root, with -1, and all lie below it.
bool is_tree(const std::vector<int>& parents);
// In place; sums, also for an average. Every rank gets the same bits.
Status all_reduce_along_the_tree(Mesh& mesh, void* data, size_t count, Elements e);

}  // namespace bagua
