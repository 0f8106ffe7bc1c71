// CRC-32C of the payload, which shows whether the network or the transport changed a byte.

#pragma once

#include <cstddef>
#include <cstdint>

namespace bagua {

// Continue a checksum over more bytes; start with 0.
uint32_t crc32c(uint32_t crc, const void* data, size_t size);

}  // namespace bagua
