// Floats of two bytes, and what is compiled for several instruction sets; the loader picks one at run time.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DISPATCH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DISPATCH
#endif

namespace bagua {

struct Bf16 {
    uint16_t bits;
};
struct F16 {
    uint16_t bits;
};

inline float as_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline uint32_t as_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float load(float x) { return x; }
inline float load(Bf16 x) { return as_float(uint32_t(x.bits) << 16); }
// Scaling by 2^112 turns the exponent of a half, normal or not, into a float's; what becomes 2^16 was Inf or NaN.
inline float load(F16 x) {
    const uint32_t magnitude = uint32_t(x.bits & 0x7fff) << 13;
    const uint32_t scaled = as_bits(as_float(magnitude) * 0x1p112f);
    const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0;
    return as_float(scaled | special | uint32_t(x.bits & 0x8000) << 16);
}

inline void store(float* out, float x) { *out = x; }
// To nearest, ties to even; a NaN stays one.
inline void store(Bf16* out, float x) {
    const uint32_t bits = as_bits(x), rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    out->bits = uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40 : rounded);
}
inline void store(F16* out, float x) {
    const uint32_t bits = as_bits(x), magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    const uint32_t tiny = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u;  // adding 1/2 rounds at 2^-24
    uint32_t half = magnitude < 0x38800000u ? tiny : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    out->bits = uint16_t(half | (bits >> 16 & 0x8000u));
}

template <typename T>
inline constexpr bool kSmallFloat = std::is_same_v<T, Bf16> || std::is_same_v<T, F16>;

}  // namespace bagua
