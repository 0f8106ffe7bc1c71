// CPU kernels of the codecs: float32, one thread, C ABI, called through ctypes with the interpreter lock released.
//
// Every function works on whole rows ("chunks") and is compiled for several instruction sets; the loader picks one
// at run time. The order of float operations is part of the format: contraction to fused multiply-add is off. Built
// with -ffinite-math-only, so NaN and Inf are recognised by their bits.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GLIBC__)
#define DISPATCH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DISPATCH
#endif

namespace {

constexpr size_t kHeader = 32;  // bytes in front of the codes: minimum, maximum, unused
constexpr size_t kBlock = 4096;  // elements decoded at a time by the reduction: stays in the first-level cache

struct Grid {
    float scale, upper, lower;  // x ~ (q + lower) / scale, 0 <= q <= 255
};

Grid grid_of(float lo, float hi, float eps) {
    const float scale = 255.0f / ((hi - lo) + eps);
    const float upper = std::rint(hi * scale);
    return {scale, upper, upper - 255.0f};
}

Grid read_grid(const uint8_t* wire, float eps) {
    float range[2];
    std::memcpy(range, wire, sizeof range);
    return grid_of(range[0], range[1], eps);
}

// All ones in the exponent: NaN or Inf.
inline bool special(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7f800000u) == 0x7f800000u;
}

// False if a value is NaN or Inf.
DISPATCH bool min_max(const float* __restrict x, size_t n, float* lo, float* hi) {
    float least = x[0], most = x[0];
    uint32_t bad = 0;
    for (size_t i = 0; i < n; ++i) {
        bad |= special(x[i]);
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    *lo = least;
    *hi = most;
    return bad == 0;
}

DISPATCH void quantise(const float* __restrict x, size_t n, Grid g, uint8_t* __restrict codes) {
    for (size_t i = 0; i < n; ++i) {
        float level = std::rint(x[i] * g.scale);
        level = level < g.upper ? level : g.upper;
        float code = level - g.lower;
        code = code > 0.0f ? code : 0.0f;
        code = code < 255.0f ? code : 255.0f;
        codes[i] = static_cast<uint8_t>(static_cast<int32_t>(code));
    }
}

DISPATCH void dequantise(const uint8_t* __restrict codes, size_t n, Grid g, float* __restrict out) {
    for (size_t i = 0; i < n; ++i) out[i] = (static_cast<float>(codes[i]) + g.lower) / g.scale;
}

DISPATCH void add_dequantised(const uint8_t* __restrict codes, size_t n, Grid g, float* __restrict sum) {
    for (size_t i = 0; i < n; ++i) sum[i] += (static_cast<float>(codes[i]) + g.lower) / g.scale;
}

DISPATCH void divide(float* __restrict x, size_t n, float by) {
    for (size_t i = 0; i < n; ++i) x[i] /= by;
}

// One-bit code. c = x + error (or x), left in `target`, with the sum of |c| or of c^2 over the first `valid`.
struct Sums {
    double size;
    bool finite;
};

DISPATCH Sums sum_sizes(const float* __restrict c, size_t n, bool square) {
    double total[8] = {};  // eight partial sums, so that the additions can be vectorised
    uint32_t bad = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t k = 0; k < 8; ++k) {
            const double size = std::fabs(static_cast<double>(c[i + k]));
            total[k] += square ? size * size : size;
            bad |= special(c[i + k]);
        }
    for (; i < n; ++i) {
        const double size = std::fabs(static_cast<double>(c[i]));
        total[0] += square ? size * size : size;
        bad |= special(c[i]);
    }
    double sum = 0;
    for (double part : total) sum += part;
    return {sum, bad == 0};
}

DISPATCH void add(float* __restrict sum, const float* __restrict x, size_t n) {
    for (size_t i = 0; i < n; ++i) sum[i] += x[i];
}

DISPATCH void pack_signs(const float* __restrict c, size_t bytes, uint8_t* __restrict bits) {
    for (size_t b = 0; b < bytes; ++b) {
        uint32_t byte = 0;
        for (uint32_t k = 0; k < 8; ++k) byte |= static_cast<uint32_t>(c[8 * b + k] >= 0.0f) << k;
        bits[b] = static_cast<uint8_t>(byte);
    }
}

DISPATCH void subtract_signs(float* __restrict c, size_t n, float scale) {
    for (size_t i = 0; i < n; ++i) c[i] -= c[i] >= 0.0f ? scale : -scale;
}

// +scale where the element's bit is set, -scale elsewhere: the bit, inverted, is the sign bit of the float.
inline float signed_scale(uint32_t bits, uint32_t k, uint32_t scale) {
    const uint32_t value = scale ^ ((~(bits >> k) & 1u) << 31);
    float out;
    std::memcpy(&out, &value, sizeof out);
    return out;
}

template <bool kAdd>
inline void unpack_signs(const uint8_t* __restrict bits, size_t n, float scale, float* __restrict out) {
    uint32_t magnitude;
    std::memcpy(&magnitude, &scale, sizeof magnitude);
    for (size_t b = 0; b < n / 8; ++b) {
        const uint32_t byte = bits[b];
        for (uint32_t k = 0; k < 8; ++k) {
            const float value = signed_scale(byte, k, magnitude);
            out[8 * b + k] = kAdd ? out[8 * b + k] + value : value;
        }
    }
    for (size_t i = n / 8 * 8; i < n; ++i) {
        const float value = signed_scale(bits[i / 8], static_cast<uint32_t>(i % 8), magnitude);
        out[i] = kAdd ? out[i] + value : value;
    }
}

DISPATCH void write_signs(const uint8_t* __restrict bits, size_t n, float scale, float* __restrict out) {
    unpack_signs<false>(bits, n, scale, out);
}

DISPATCH void add_signs(const uint8_t* __restrict bits, size_t n, float scale, float* __restrict out) {
    unpack_signs<true>(bits, n, scale, out);
}

float read_scale(const uint8_t* wire) {
    float scale;
    std::memcpy(&scale, wire, sizeof scale);
    return scale;
}

}  // namespace

extern "C" {

// x: chunks rows of n floats; wire: chunks rows of `stride` bytes. Returns 0, or 1 if x holds NaN or Inf, or if a
// row's range or levels overflow float32 (wire is then incomplete).
int minmax_encode(const float* x, size_t chunks, size_t n, float eps, size_t stride, uint8_t* wire) {
    for (size_t j = 0; j < chunks && n > 0; ++j, x += n, wire += stride) {
        float range[2];
        if (!min_max(x, n, &range[0], &range[1])) return 1;
        const Grid grid = grid_of(range[0], range[1], eps);
        if (special(range[1] - range[0]) || special(range[0] * grid.scale) || special(grid.upper)) return 1;
        std::memcpy(wire, range, sizeof range);
        quantise(x, n, grid, wire + kHeader);
    }
    return 0;
}

void minmax_decode(const uint8_t* wire, size_t chunks, size_t n, float eps, size_t stride, float* out) {
    for (size_t j = 0; j < chunks; ++j, wire += stride, out += n)
        dequantise(wire + kHeader, n, read_grid(wire, eps), out);
}

// Sum of the decoded rows, added in the order of the rows and divided by `divisor`, into out (n floats).
void minmax_reduce(const uint8_t* wire, size_t chunks, size_t n, float eps, size_t stride, float divisor,
                   float* out) {
    for (size_t begin = 0; begin < n; begin += kBlock) {
        const size_t length = n - begin < kBlock ? n - begin : kBlock;
        dequantise(wire + kHeader + begin, length, read_grid(wire, eps), out + begin);
        for (size_t j = 1; j < chunks; ++j) {
            const uint8_t* row = wire + j * stride;
            add_dequantised(row + kHeader + begin, length, read_grid(row, eps), out + begin);
        }
        if (divisor != 1.0f) divide(out + begin, length, divisor);
    }
}

// One row: x of n floats, of which the first `valid` are not padding. With a memory `error` (n floats, or null),
// x + error is encoded and the loss is left in it. Returns 0, or 1 for NaN or Inf (wire is then incomplete).
int one_bit_encode(const float* x, float* error, size_t n, size_t valid, int rms, uint8_t* wire) {
    if (error) add(error, x, n);
    const float* c = error ? error : x;
    const Sums sums = sum_sizes(c, valid, rms != 0);
    const double mean = valid ? sums.size / static_cast<double>(valid) : 0.0;
    const float scale = static_cast<float>(rms ? std::sqrt(mean) : mean);
    if (!sums.finite || special(scale)) return 1;
    std::memcpy(wire, &scale, sizeof scale);
    pack_signs(c, n / 8, wire + 4);
    if (n % 8) {
        uint8_t last = 0;
        for (size_t i = n / 8 * 8; i < n; ++i) last = static_cast<uint8_t>(last | (c[i] >= 0.0f) << (i % 8));
        wire[4 + n / 8] = last;
    }
    if (error) {
        subtract_signs(error, valid, scale);
        std::memset(error + valid, 0, (n - valid) * sizeof *error);
    }
    return 0;
}

void one_bit_decode(const uint8_t* wire, size_t rows, size_t n, size_t stride, float* out) {
    for (size_t j = 0; j < rows; ++j, wire += stride, out += n) write_signs(wire + 4, n, read_scale(wire), out);
}

// As minmax_reduce.
void one_bit_reduce(const uint8_t* wire, size_t rows, size_t n, size_t stride, float divisor, float* out) {
    for (size_t begin = 0; begin < n; begin += kBlock) {
        const size_t length = n - begin < kBlock ? n - begin : kBlock;
        write_signs(wire + 4 + begin / 8, length, read_scale(wire), out + begin);
        for (size_t j = 1; j < rows; ++j) {
            const uint8_t* row = wire + j * stride;
            add_signs(row + 4 + begin / 8, length, read_scale(row), out + begin);
        }
        if (divisor != 1.0f) divide(out + begin, length, divisor);
    }
}

}  // extern "C"
