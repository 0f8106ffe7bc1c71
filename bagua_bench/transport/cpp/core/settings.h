// What the user may choose. Both faces read it from the environment, because that is all that NCCL gives a plugin.

#pragma once

#include <string>
#include <vector>

#include "socket.h"
#include "status.h"

namespace bagua {

struct Settings {
    int streams = 4;
    int64_t timeout = 10 * kSecond;  // without a sign of life
    int64_t connect_timeout = 60 * kSecond;
    bool crc = false;
    bool zero_copy = true;  // large messages over short paths
    int helpers = 0;  // threads of the NCCL face that make progress; 0: the caller's test() does
    std::string secret;  // of the job; empty: the listener's token alone
    Log log;
};

// From BAGUA_NET_STREAMS, _HELPERS, _TIMEOUT, _CONNECT_TIMEOUT (seconds), _CRC and _ZERO_COPY (0, 1), _SECRET_FILE and
// _INTERFACES, for which NCCL_SOCKET_IFNAME stands in.
Status read_settings(Settings* settings, std::vector<Interface>* interfaces);

}  // namespace bagua
