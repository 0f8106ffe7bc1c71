#include "settings.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tuning.h"

namespace bagua {

namespace {

const char* variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

}  // namespace

Status read_settings(Settings* settings, std::vector<Interface>* interfaces) {
    const auto number = [](const char* name, double least, double most, double* out) -> Status {
        const std::string text = variable(name);
        if (text.empty()) return {};
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        if (*end || !(value >= least && value <= most)) {
            std::ostringstream allowed;
            allowed << name << "=" << text << ": allowed: a number from " << least << " to " << most;
            return {Code::usage, allowed.str()};
        }
        *out = value;
        return {};
    };
    double streams = settings->streams, chunk = settings->chunk, timeout = 10, connecting = 60, crc = 0, zero_copy = 1, helpers = 0;
    double eager = settings->eager;
    if (std::string("auto") == variable("BAGUA_NET_STREAMS"))
        streams = Settings::kAutomatic;
    else if (Status s = number("BAGUA_NET_STREAMS", 1, kMaxStreams, &streams); !s)
        return {s.code, s.text + ", or auto"};
    if (Status s = number("BAGUA_NET_CHUNK", Tuning::kMinChunkBytes, Tuning::kMaxChunkBytes, &chunk); !s) return s;
    if (Status s = number("BAGUA_NET_TIMEOUT", 0.5, 86400, &timeout); !s) return s;
    if (Status s = number("BAGUA_NET_CONNECT_TIMEOUT", 0.5, 86400, &connecting); !s) return s;
    if (Status s = number("BAGUA_NET_CRC", 0, 1, &crc); !s) return s;
    if (Status s = number("BAGUA_NET_ZERO_COPY", 0, 1, &zero_copy); !s) return s;
    if (Status s = number("BAGUA_NET_EAGER", 0, 65536, &eager); !s) return s;
    if (Status s = number("BAGUA_NET_HELPERS", 0, 16, &helpers); !s) return s;
    settings->streams = int(streams);
    settings->chunk = uint32_t(chunk);
    settings->eager = int(eager);
    settings->helpers = int(helpers);
    settings->timeout_given = *variable("BAGUA_NET_TIMEOUT") != 0;
    settings->timeout = int64_t(timeout * double(kSecond));
    settings->connect_timeout = int64_t(connecting * double(kSecond));
    settings->crc = crc != 0;
    settings->zero_copy = zero_copy != 0;
    settings->congestion = variable("BAGUA_NET_CONGESTION");
    if (std::string allowed; !may_control(settings->congestion, &allowed))
        return {Code::usage, "BAGUA_NET_CONGESTION=" + settings->congestion + ": allowed here: " + allowed};
    if (const std::string path = variable("BAGUA_NET_SECRET_FILE"); !path.empty()) {
        std::ifstream file(path, std::ios::binary);
        std::ostringstream text;
        text << file.rdbuf();
        if (!file || text.str().empty())
            return {Code::usage, "BAGUA_NET_SECRET_FILE=" + path + ": cannot be read or is empty"};
        settings->secret = text.str();
    }
    const std::string names = variable("BAGUA_NET_INTERFACES");
    const std::string family = variable("NCCL_SOCKET_FAMILY");
    const int wanted = family == "AF_INET" ? AF_INET : family == "AF_INET6" ? AF_INET6 : AF_UNSPEC;
    *interfaces = find_interfaces(names.empty() ? variable("NCCL_SOCKET_IFNAME") : names, wanted);
    return {};
}

}  // namespace bagua
