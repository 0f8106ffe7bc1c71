// The user's choices. Both faces read them from the environment, because NCCL gives a plugin nothing else.

#pragma once

#include <string>
#include <vector>

#include "socket.h"
#include "status.h"
#include "tuning.h"

namespace bagua {

struct Settings {
    static constexpr int kAutomatic = 0;
    int streams = 4;  // kAutomatic: the connecting side chooses by the path's round trip
    int most_streams = 64;  // that are chosen; a group has its own number
    uint32_t chunk = 1 << 20;  // bytes that one stream is given at a time; half as many again at the end of a message
    int64_t timeout = 10 * kSecond;  // that an outage may last
    bool timeout_given = false;  // by the user; a group has another default
    int64_t connect_timeout = 60 * kSecond;
    bool crc = false;
    bool zero_copy = true;  // large messages over short paths ...
    size_t lent_from = Tuning::kMinLentMessageBytes;  // ... of so many bytes or more, unless they are slow
    int eager = 8;  // ranks of the largest group that opens all its connections at the start
    int helpers = 0;  // threads of the NCCL face that make progress; with 0 the caller's test() does
    std::string congestion;  // TCP's congestion control of the streams; empty: the kernel's own choice
    std::string secret;  // of the job; if empty, the key is the listener's token alone
    Log log;
};

// From BAGUA_NET_STREAMS, _CHUNK (bytes), _EAGER, _HELPERS, _TIMEOUT, _CONNECT_TIMEOUT (seconds), _CRC and _ZERO_COPY
// (0, 1), _CONGESTION, _SECRET_FILE and _INTERFACES; where the last is not set, NCCL_SOCKET_IFNAME is used.
// NCCL_SOCKET_FAMILY restricts the addresses. A value that is not allowed is an error of one line, and changes nothing.
Status read_settings(Settings* settings, std::vector<Interface>* interfaces);

}  // namespace bagua
