// SHA-256, HMAC, random bytes and comparison in constant time: what the handshake needs, without a library.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "wire.h"

namespace bagua {

using Digest = std::array<uint8_t, kDigest>;

Digest sha256(const void* data, size_t size);
Digest hmac(const void* key, size_t key_size, const void* data, size_t size);

// Whether two digests agree; the time does not depend on where they differ.
bool same_digest(const uint8_t* a, const uint8_t* b);

// Bytes from the kernel's generator; false if it fails.
bool random_bytes(void* out, size_t size);

// The key of a listener: its random token, mixed with the job's secret if there is one.
Digest make_key(const std::string& secret, const uint8_t (&token)[kToken]);

// Tells most secrets apart, and says nothing of use about any: 4 hexadecimal digits.
std::string mark_of(const std::string& secret);

// What one side sends to show that it knows the key. `role` keeps one side's proof from being used as the other's.
Digest make_proof(const Digest& key, const char* role, const Hello& hello, const uint8_t (&nonce)[kNonce]);

}  // namespace bagua
