#include "trunk.h"

#include <cerrno>

namespace bagua {

void Trunk::fail(Code code, const std::string& text) {
    if (!status) return;
    status = {code, text};
    if (settings.log) settings.log(Level::warning, "bagua-net: " + text);
    hang_up();
}

void Trunk::broke(Code code, const std::string& text) {
    const std::string before = lost();
    before.empty() ? fail(code, text) : fail(Code::remote, before);
}

void Trunk::broke(const Stream& stream, int error) {
    broke(error == ECONNRESET || error == EPIPE || error == ETIMEDOUT ? Code::remote : Code::system,
          "stream " + std::to_string(stream.index) + " to " + stream.where + ": " + error_text(error));
}

}  // namespace bagua
