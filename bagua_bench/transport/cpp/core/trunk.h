// What the parts of a connection share: its streams, what the user chose, and the first failure of any of them.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "settings.h"
#include "status.h"
#include "stream.h"

namespace bagua {

struct Trunk {
    const Settings settings;
    const std::string peer;
    std::vector<std::unique_ptr<Stream>> streams;
    Status status;  // of the whole connection: parts stop when it is an error
    std::function<void()> hang_up;  // called once, so that the peer learns of the failure at once
    std::function<std::string()> lost;  // how the peer or a path to it was lost; empty: they are alive

    void fail(Code code, const std::string& text);
    // A socket has failed or the peer has closed it. If it was lost before, that is the reason: the peer, which has
    // seen the same, only hung up first.
    void broke(Code code, const std::string& text);
    void broke(const Stream& stream, int error);
};

}  // namespace bagua
