// Floats as 8-bit integers. 256 elements that follow one another share a scale, the largest magnitude among them by 127;
// each becomes the nearest multiple of it. So none is wrong by more than 1/254 of that magnitude. If one of them is not
// finite, all 256 come out as NaN: a sum that has diverged stays one. If none of them exceeds 1.5e-36, all come out as
// 0. (Storing what was unpacked as f16 or bf16 rounds it again.)
//
// First all scales, then the integers; both sides must have the same order of bytes.

#pragma once

#include <cstddef>

#include "reduce.h"

namespace bagua {

constexpr size_t kShare = 256;  // elements that share a scale

// f32, f16 and bf16.
bool packable(Type type);
size_t packed_size(size_t count);
// `packed` is aligned for floats.
void pack(unsigned char* packed, const void* x, size_t count, Type type);
void unpack(void* x, const unsigned char* packed, size_t count, Type type);
void add_packed(void* acc, const unsigned char* packed, size_t count, Type type);

}  // namespace bagua
