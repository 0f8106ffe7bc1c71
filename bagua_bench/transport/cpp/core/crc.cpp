#include "crc.h"

#include <array>
#include <cstring>

namespace bagua {

namespace {

using Table = std::array<std::array<uint32_t, 256>, 8>;

Table make_table() {
    Table table{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);  // Castagnoli, reflected
        table[0][i] = crc;
    }
    for (size_t k = 1; k < 8; ++k)
        for (uint32_t i = 0; i < 256; ++i) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
    return table;
}

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t size) {
    static const Table table = make_table();
    const auto* p = static_cast<const uint8_t*>(data);
    crc = ~crc;
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        std::memcpy(&word, p, 8);
        word ^= crc;
        crc = 0;
        for (int k = 0; k < 8; ++k) crc ^= table[size_t(7 - k)][word >> 8 * k & 255];
    }
    for (; size > 0; ++p, --size) crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
    return ~crc;
}

}  // namespace bagua
