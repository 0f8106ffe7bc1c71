// Element-wise reductions for the collectives: acc[i] = op(acc[i], x[i]).

#pragma once

#include <cstddef>

namespace bagua {

// Numbers shared with torch_backend.py.
enum class Type { f32, f64, f16, bf16, i32, i64, u8, i8, boolean };
enum class Op { sum, average, product, min, max, band, bor, bxor };  // as torch's RedOpType

size_t size_of(Type type);
// Whether the pair makes sense: no averages of integers, bits of integers only.
bool allowed(Type type, Op op);
// `average` adds; `divide` finishes it.
void combine(void* acc, const void* x, size_t count, Type type, Op op);
void divide(void* x, size_t count, Type type, int by);

}  // namespace bagua
