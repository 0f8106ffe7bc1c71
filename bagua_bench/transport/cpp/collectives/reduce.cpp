#include "reduce.h"

#include <type_traits>

#include "floats.h"

namespace bagua {

namespace {

#define LOOP(T, NAME, EXPRESSION)                                                      \
    DISPATCH void NAME(T* __restrict acc, const T* __restrict x, size_t n) {           \
        for (size_t i = 0; i < n; ++i) {                                               \
            const auto a = acc[i], b = x[i];                                           \
            acc[i] = T(EXPRESSION);                                                    \
        }                                                                              \
    }
#define SMALL_LOOP(T, NAME, EXPRESSION)                                                \
    DISPATCH void NAME(T* __restrict acc, const T* __restrict x, size_t n) {           \
        for (size_t i = 0; i < n; ++i) {                                               \
            const float a = load(acc[i]), b = load(x[i]);                              \
            store(acc + i, EXPRESSION);                                                \
        }                                                                              \
    }
// A NaN wins in min and max, as in torch.
#define ARITHMETIC(KIND, T)                                                            \
    KIND(T, add, a + b)                                                                \
    KIND(T, multiply, a* b)                                                            \
    KIND(T, least, b < a || b != b ? b : a)                                            \
    KIND(T, most, b > a || b != b ? b : a)
#define BITS(T)                                                                        \
    LOOP(T, bit_and, a& b)                                                             \
    LOOP(T, bit_or, a | b)                                                             \
    LOOP(T, bit_xor, a ^ b)

// Unsigned sums and products, so that they wrap instead of being undefined.
#define INTEGER(T, U)                                                                  \
    LOOP(T, add, U(a) + U(b))                                                          \
    LOOP(T, multiply, U(a) * U(b))                                                     \
    LOOP(T, least, b < a ? b : a)                                                      \
    LOOP(T, most, b > a ? b : a)                                                       \
    BITS(T)

ARITHMETIC(LOOP, float)
ARITHMETIC(LOOP, double)
ARITHMETIC(SMALL_LOOP, F16)
ARITHMETIC(SMALL_LOOP, Bf16)
INTEGER(int32_t, uint32_t)
INTEGER(int64_t, uint64_t)
INTEGER(uint8_t, uint32_t)
INTEGER(int8_t, uint32_t)

template <typename T>
void combine_as(void* acc_bytes, const void* x_bytes, size_t n, Op op) {
    T* acc = static_cast<T*>(acc_bytes);
    const T* x = static_cast<const T*>(x_bytes);
    switch (op) {
        case Op::sum:
        case Op::average: return add(acc, x, n);
        case Op::product: return multiply(acc, x, n);
        case Op::min: return least(acc, x, n);
        case Op::max: return most(acc, x, n);
        default: break;
    }
    if constexpr (std::is_integral_v<T>) {
        if (op == Op::band) return bit_and(acc, x, n);
        if (op == Op::bor) return bit_or(acc, x, n);
        if (op == Op::bxor) return bit_xor(acc, x, n);
    }
}

// True and false: a sum is "any", a product "all".
Op of_boolean(Op op) {
    if (op == Op::sum || op == Op::max || op == Op::bor) return Op::bor;
    return op == Op::bxor ? Op::bxor : Op::band;
}

template <typename T>
void divide_as(void* bytes, size_t n, int by) {
    T* x = static_cast<T*>(bytes);
    for (size_t i = 0; i < n; ++i) {
        if constexpr (kSmallFloat<T>)
            store(x + i, load(x[i]) / float(by));
        else
            x[i] /= T(by);
    }
}

}  // namespace

size_t size_of(Type type) {
    constexpr size_t sizes[] = {4, 8, 2, 2, 4, 8, 1, 1, 1};
    return sizes[int(type)];
}

bool allowed(Type type, Op op) {
    const bool is_float = type <= Type::bf16;
    if (op == Op::average) return is_float;
    return op < Op::band || !is_float;
}

void combine(void* acc, const void* x, size_t n, Type type, Op op) {
    switch (type) {
        case Type::f32: return combine_as<float>(acc, x, n, op);
        case Type::f64: return combine_as<double>(acc, x, n, op);
        case Type::f16: return combine_as<F16>(acc, x, n, op);
        case Type::bf16: return combine_as<Bf16>(acc, x, n, op);
        case Type::i32: return combine_as<int32_t>(acc, x, n, op);
        case Type::i64: return combine_as<int64_t>(acc, x, n, op);
        case Type::u8: return combine_as<uint8_t>(acc, x, n, op);
        case Type::i8: return combine_as<int8_t>(acc, x, n, op);
        case Type::boolean: return combine_as<uint8_t>(acc, x, n, of_boolean(op));
    }
}

void divide(void* x, size_t n, Type type, int by) {
    switch (type) {
        case Type::f32: return divide_as<float>(x, n, by);
        case Type::f64: return divide_as<double>(x, n, by);
        case Type::f16: return divide_as<F16>(x, n, by);
        case Type::bf16: return divide_as<Bf16>(x, n, by);
        default: return;
    }
}

}  // namespace bagua
