#include "secret.h"

#include <sys/random.h>

#include <cstring>
#include <vector>

namespace bagua {

namespace {

// FIPS 180-4, 4.2.2.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

void add_block(uint32_t (&state)[8], const uint8_t* block) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
        const uint8_t* p = block + 4 * i;
        w[i] = uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | p[3];
    }
    for (int i = 16; i < 64; ++i) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    uint32_t s[8];
    std::memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; ++i) {
        const uint32_t high = turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25);
        const uint32_t one = s[7] + high + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + w[i];
        const uint32_t low = turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22);
        const uint32_t two = low + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        std::memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; ++i) state[i] += s[i];
}

}  // namespace

Digest sha256(const void* data, size_t size) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const auto* bytes = static_cast<const uint8_t*>(data);
    std::vector<uint8_t> padded(bytes, bytes + size);
    padded.push_back(0x80);
    padded.resize((padded.size() + 8 + 63) / 64 * 64);
    for (int i = 0; i < 8; ++i) padded[padded.size() - 1 - i] = uint8_t(uint64_t(size) * 8 >> 8 * i);
    for (size_t at = 0; at < padded.size(); at += 64) add_block(state, &padded[at]);
    Digest digest;
    for (size_t i = 0; i < kDigest; ++i) digest[i] = uint8_t(state[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
}

Digest hmac(const void* key, size_t key_size, const void* data, size_t size) {
    uint8_t block[64] = {};
    if (key_size > sizeof block) {
        const Digest shorter = sha256(key, key_size);
        std::memcpy(block, shorter.data(), shorter.size());
    } else if (key_size > 0) {
        std::memcpy(block, key, key_size);
    }
    std::vector<uint8_t> inner(sizeof block + size), outer(sizeof block + kDigest);
    for (size_t i = 0; i < sizeof block; ++i) inner[i] = block[i] ^ 0x36, outer[i] = block[i] ^ 0x5c;
    std::memcpy(&inner[sizeof block], data, size);
    const Digest digest = sha256(inner.data(), inner.size());
    std::memcpy(&outer[sizeof block], digest.data(), digest.size());
    return sha256(outer.data(), outer.size());
}

bool same_digest(const uint8_t* a, const uint8_t* b) {
    volatile uint8_t difference = 0;  // volatile: the loop must not end early
    for (size_t i = 0; i < kDigest; ++i) difference = difference | (a[i] ^ b[i]);
    return difference == 0;
}

bool random_bytes(void* out, size_t size) { return getrandom(out, size, 0) == ssize_t(size); }

Digest make_key(const std::string& secret, const uint8_t (&token)[kToken]) {
    return hmac(secret.data(), secret.size(), token, sizeof token);
}

std::string mark_of(const std::string& secret) {
    const Digest digest = hmac(secret.data(), secret.size(), "mark", 4);
    char text[5];
    std::snprintf(text, sizeof text, "%02x%02x", digest[0], digest[1]);
    return text;
}

Digest make_proof(const Digest& key, const char* role, const Hello& hello, const uint8_t (&nonce)[kNonce]) {
    uint8_t text[8 + sizeof hello + sizeof nonce] = {};
    std::memcpy(text, role, std::strlen(role));
    std::memcpy(text + 8, &hello, sizeof hello);
    std::memcpy(text + 8 + sizeof hello, nonce, sizeof nonce);
    return hmac(key.data(), key.size(), text, sizeof text);
}

}  // namespace bagua
