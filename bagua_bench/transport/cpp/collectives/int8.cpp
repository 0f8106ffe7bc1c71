#include "int8.h"

#include <algorithm>
#include <cfloat>
#include <limits>

#include "floats.h"

namespace bagua {

namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinite = 0x7f800000u;
constexpr float kRounds = 0x1.8p23f;  // a small float that is added to it becomes a whole number, in the lowest bits

// Magnitudes are compared as integers: in that order NaNs come last, and are not lost.
#define CODE(T)                                                                                  \
    DISPATCH float pack_shared(uint8_t* __restrict out, const T* __restrict x, size_t n) {       \
        uint32_t most = 0;                                                                       \
        for (size_t i = 0; i < n; ++i) most = std::max(most, as_bits(load(x[i])) & kMagnitude);  \
        if (most >= kInfinite) {                                                                 \
            std::memset(out, 0, n);                                                              \
            return std::numeric_limits<float>::quiet_NaN();                                      \
        }                                                                                        \
        const float scale = as_float(most) / 127, inverse = scale >= FLT_MIN ? 1 / scale : 0;    \
        for (size_t i = 0; i < n; ++i) out[i] = uint8_t(as_bits(load(x[i]) * inverse + kRounds)); \
        return scale;                                                                            \
    }                                                                                            \
    DISPATCH void unpack_shared(T* __restrict x, const int8_t* __restrict in, float scale, size_t n) { \
        for (size_t i = 0; i < n; ++i) store(x + i, float(in[i]) * scale);                       \
    }                                                                                            \
    DISPATCH void add_shared(T* __restrict acc, const int8_t* __restrict in, float scale, size_t n) { \
        for (size_t i = 0; i < n; ++i) store(acc + i, load(acc[i]) + float(in[i]) * scale);      \
    }

CODE(float)
CODE(F16)
CODE(Bf16)

size_t shares(size_t count) { return (count + kShare - 1) / kShare; }

// Call it with the first element, the number, and the scale's number of all that share one.
template <typename Each>
void for_all(size_t count, Each each) {
    for (size_t k = 0, i = 0; i < count; ++k, i += kShare) each(i, std::min(kShare, count - i), k);
}

template <typename T>
void pack_as(unsigned char* packed, const void* elements, size_t count) {
    const T* x = static_cast<const T*>(elements);
    auto* scales = reinterpret_cast<float*>(packed);
    unsigned char* out = packed + shares(count) * sizeof(float);
    for_all(count, [&](size_t i, size_t n, size_t k) { scales[k] = pack_shared(out + i, x + i, n); });
}

template <typename T, typename What>
void read_as(void* elements, const unsigned char* packed, size_t count, What what) {
    T* x = static_cast<T*>(elements);
    const auto* scales = reinterpret_cast<const float*>(packed);
    const auto* in = reinterpret_cast<const int8_t*>(packed + shares(count) * sizeof(float));
    for_all(count, [&](size_t i, size_t n, size_t k) { what(x + i, in + i, scales[k], n); });
}

template <typename What>
void read(void* elements, const unsigned char* packed, size_t count, Type type, What what) {
    if (type == Type::f32) return read_as<float>(elements, packed, count, what);
    if (type == Type::f16) return read_as<F16>(elements, packed, count, what);
    return read_as<Bf16>(elements, packed, count, what);
}

}  // namespace

bool packable(Type type) { return type == Type::f32 || type == Type::f16 || type == Type::bf16; }

size_t packed_size(size_t count) { return shares(count) * sizeof(float) + count; }

void pack(unsigned char* packed, const void* x, size_t count, Type type) {
    if (type == Type::f32) return pack_as<float>(packed, x, count);
    if (type == Type::f16) return pack_as<F16>(packed, x, count);
    return pack_as<Bf16>(packed, x, count);
}

void unpack(void* x, const unsigned char* packed, size_t count, Type type) {
    read(x, packed, count, type, [](auto* to, const int8_t* in, float scale, size_t n) { unpack_shared(to, in, scale, n); });
}

void add_packed(void* acc, const unsigned char* packed, size_t count, Type type) {
    read(acc, packed, count, type, [](auto* to, const int8_t* in, float scale, size_t n) { add_shared(to, in, scale, n); });
}

}  // namespace bagua
