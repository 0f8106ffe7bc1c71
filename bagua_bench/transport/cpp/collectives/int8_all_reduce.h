// An all-reduce whose bytes on the wire are 8-bit integers (int8.h) instead of the floats: a quarter of the bytes, and
// lossy. Only where a job asks for it.
//
// First ranks add what arrives to their own floats and pack the sum again, until each has reduced one block: along a
// ring, or by halves among a power of two of ranks. Then each block is packed once, and all ranks unpack the same bytes,
// the one that reduced it, too. So they get the same bits. Errors add up: among n ranks a sum is packed n times, and each
// time adds at most 1/254 of the largest partial sum among the 256 elements that share a scale.

#pragma once

#include "algorithms.h"

namespace bagua {

// Whether it is worth it, and defined: large sums and averages of floats.
bool suits_int8(int ranks, size_t count, Elements e);
// In place, for what suits. `sent`: how many bytes this rank has sent.
Status all_reduce_int8(Mesh& mesh, void* data, size_t count, Elements e, size_t* sent);

}  // namespace bagua
