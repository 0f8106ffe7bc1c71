#include "settings.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <type_traits>
#include <utility>

#include "tuning.h"

namespace bagua {

namespace {

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

// A number that stays as it is where the variable is not set.
template <class T>
Status read_number(const char* name, double least, double most, T* out) {
    const std::string text = variable(name);
    if (text.empty()) return {};
    constexpr bool whole = std::is_integral_v<T>;
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (*end || !(value >= least && value <= most) || (whole && value != std::floor(value))) {
        std::ostringstream allowed;
        allowed.precision(12);
        allowed << name << "=" << text << ": allowed: a " << (whole ? "whole " : "");
        allowed << "number from " << least << " to " << most;
        return {Code::usage, allowed.str()};
    }
    *out = T(value);
    return {};
}

Status read_seconds(const char* name, int64_t* nanoseconds) {
    double seconds = double(*nanoseconds) / double(kSecond);
    const Status status = read_number(name, 0.5, 86400, &seconds);
    *nanoseconds = int64_t(seconds * double(kSecond));
    return status;
}

Status read_secret(std::string* secret) {
    const std::string path = variable("BAGUA_NET_SECRET_FILE");
    if (path.empty()) return {};
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file || text.str().empty())
        return {Code::usage, "BAGUA_NET_SECRET_FILE=" + path + ": cannot be read or is empty"};
    *secret = text.str();
    return {};
}

Status choose_interfaces(std::vector<Interface>* interfaces) {
    const bool own = !variable("BAGUA_NET_INTERFACES").empty();
    const std::string name = own ? "BAGUA_NET_INTERFACES" : "NCCL_SOCKET_IFNAME", names = variable(name.c_str());
    const std::string family = variable("NCCL_SOCKET_FAMILY");
    const int wanted = family == "AF_INET" ? AF_INET : family == "AF_INET6" ? AF_INET6 : AF_UNSPEC;
    if (!family.empty() && wanted == AF_UNSPEC)
        return {Code::usage, "NCCL_SOCKET_FAMILY=" + family + ": allowed: AF_INET, AF_INET6"};
    *interfaces = find_interfaces(names, wanted);
    if (!interfaces->empty()) return {};
    const std::string asked = names.empty() ? "no" : name + "=" + names + ": no such";
    const std::string restricted = family.empty() ? "" : " of NCCL_SOCKET_FAMILY=" + family;
    const std::string reason = " interface is up and has an address" + restricted;
    return {Code::usage, asked + reason + "; there are: " + interface_names(wanted)};
}

}  // namespace

Status read_settings(Settings* settings, std::vector<Interface>* interfaces) {
    Settings s = *settings;
    std::vector<Interface> found;
    if (variable("BAGUA_NET_STREAMS") == "auto")
        s.streams = Settings::kAutomatic;
    else if (Status status = read_number("BAGUA_NET_STREAMS", 1, kMaxStreams, &s.streams); !status)
        return {status.code, status.text + ", or auto"};
    s.timeout_given = !variable("BAGUA_NET_TIMEOUT").empty();
    s.congestion = variable("BAGUA_NET_CONGESTION");
    if (std::string allowed; !may_control(s.congestion, &allowed))
        return {Code::usage, "BAGUA_NET_CONGESTION=" + s.congestion + ": allowed here: " + allowed};
    for (const Status& status : {
             read_number("BAGUA_NET_CHUNK", Tuning::kMinChunkBytes, Tuning::kMaxChunkBytes, &s.chunk),
             read_number("BAGUA_NET_EAGER", 0, 65536, &s.eager),
             read_number("BAGUA_NET_HELPERS", 0, 16, &s.helpers),
             read_number("BAGUA_NET_CRC", 0, 1, &s.crc),
             read_number("BAGUA_NET_ZERO_COPY", 0, 1, &s.zero_copy),
             read_seconds("BAGUA_NET_TIMEOUT", &s.timeout),
             read_seconds("BAGUA_NET_CONNECT_TIMEOUT", &s.connect_timeout),
             read_secret(&s.secret),
             choose_interfaces(&found),
         })
        if (!status) return status;
    *settings = std::move(s);
    *interfaces = std::move(found);
    return {};
}

}  // namespace bagua
