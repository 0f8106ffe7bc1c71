#include "socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "tuning.h"

namespace bagua {

namespace {

constexpr int kBacklog = 1024;
constexpr int kUnknownSpeed = 10000;  // what NCCL assumes, Mbit/s
constexpr int kMostIdleSeconds = 60;  // firewalls forget connections that are idle for long
constexpr int kNeverMs = 2 * 24 * 3600 * 1000;  // the kernel keeps the sockets of a killed process for as long
constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS of linux/tcp.h, which most machines' headers lack
constexpr int kUsualRetryMs = 120'000;  // the kernel's TCP_RTO_MAX

void set(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

int speed_of(const std::string& name) {
    int speed = 0;
    std::ifstream("/sys/class/net/" + name + "/speed") >> speed;
    return speed > 0 ? speed : kUnknownSpeed;
}

std::string pci_of(const std::string& name) {
    char* real = realpath(("/sys/class/net/" + name + "/device").c_str(), nullptr);
    const std::string path = real ? real : "";
    std::free(real);
    return path;
}

bool chosen(const std::string& name, bool loopback, const std::string& names) {
    if (names.empty()) return !loopback && name.rfind("docker", 0) != 0;
    const bool exclude = names[0] == '^', exact = names[exclude] == '=';
    std::istringstream list(names.substr(size_t(exclude) + size_t(exact)));
    bool found = false;
    for (std::string item; std::getline(list, item, ',');)
        found = found || (!item.empty() && (exact ? name == item : name.rfind(item, 0) == 0));
    return exclude ? !found && !loopback : found;
}

bool usable(const ifaddrs& entry, int family) {
    if (!entry.ifa_addr || !(entry.ifa_flags & IFF_UP) || !(entry.ifa_flags & IFF_RUNNING)) return false;
    const int own = entry.ifa_addr->sa_family;
    if (own != AF_INET && own != AF_INET6) return false;
    if (own == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(entry.ifa_addr)->sin6_addr))
        return false;
    return family == AF_UNSPEC || family == own;
}

// Whether there is an interface beside loopback's and docker's.
bool has_network(const ifaddrs* entries) {
    for (const ifaddrs* e = entries; e; e = e->ifa_next)
        if (usable(*e, AF_UNSPEC) && chosen(e->ifa_name, e->ifa_flags & IFF_LOOPBACK, "")) return true;
    return false;
}

}  // namespace

Socket::~Socket() {
    if (fd_ >= 0) close(fd_);
}

void Address::set_port(uint16_t port) {
    if (family() == AF_INET6)
        reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
    else
        reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
}

std::string Address::text() const {
    char host[INET6_ADDRSTRLEN] = "?";
    if (family() == AF_INET6) {
        const auto* a = reinterpret_cast<const sockaddr_in6*>(&storage);
        inet_ntop(AF_INET6, &a->sin6_addr, host, sizeof host);
        return "[" + std::string(host) + "]:" + std::to_string(ntohs(a->sin6_port));
    }
    const auto* a = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &a->sin_addr, host, sizeof host);
    return std::string(host) + ":" + std::to_string(ntohs(a->sin_port));
}

WireAddress Address::to_wire() const {
    WireAddress wire{};
    if (family() == AF_INET6) {
        const auto* a = reinterpret_cast<const sockaddr_in6*>(&storage);
        wire = {6, ntohs(a->sin6_port), a->sin6_scope_id, {}};
        std::memcpy(wire.bytes, &a->sin6_addr, 16);
    } else {
        const auto* a = reinterpret_cast<const sockaddr_in*>(&storage);
        wire = {4, ntohs(a->sin_port), 0, {}};
        std::memcpy(wire.bytes, &a->sin_addr, 4);
    }
    return wire;
}

bool Address::from_wire(const WireAddress& wire, Address* out) {
    *out = Address();
    if (wire.port == 0 || (wire.family != 4 && wire.family != 6)) return false;
    if (wire.family == 6) {
        auto* a = reinterpret_cast<sockaddr_in6*>(&out->storage);
        a->sin6_family = AF_INET6;
        a->sin6_scope_id = wire.scope;
        std::memcpy(&a->sin6_addr, wire.bytes, 16);
    } else {
        auto* a = reinterpret_cast<sockaddr_in*>(&out->storage);
        a->sin_family = AF_INET;
        std::memcpy(&a->sin_addr, wire.bytes, 4);
    }
    out->set_port(wire.port);
    return true;
}

std::vector<Interface> find_interfaces(const std::string& names, int family) {
    std::vector<Interface> found;
    ifaddrs* entries = nullptr;
    if (getifaddrs(&entries) != 0) return found;
    const size_t limit = names.empty() ? 1 : kMaxInterfaces;
    const bool network = has_network(entries);
    for (const ifaddrs* e = entries; e && found.size() < limit; e = e->ifa_next) {
        const std::string name = e->ifa_name;
        if (!usable(*e, family) || !chosen(name, network && e->ifa_flags & IFF_LOOPBACK, names)) continue;
        if (std::any_of(found.begin(), found.end(), [&](const Interface& i) { return i.name == name; })) continue;
        Interface interface{name, pci_of(name), {}, speed_of(name)};
        const size_t size = e->ifa_addr->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
        std::memcpy(&interface.address.storage, e->ifa_addr, size);
        found.push_back(interface);
    }
    freeifaddrs(entries);
    return found;
}

std::string interface_names(int family) {
    std::set<std::string> names;
    ifaddrs* entries = nullptr;
    if (getifaddrs(&entries) != 0) return "unknown, " + error_text(errno);
    for (const ifaddrs* e = entries; e; e = e->ifa_next)
        if (usable(*e, family)) names.insert(e->ifa_name);
    freeifaddrs(entries);
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none" : text;
}

Status listen_on(const Interface& interface, Socket* out, Address* bound) {
    Socket socket(::socket(interface.address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    *bound = interface.address;
    bound->set_port(0);
    socklen_t size = sizeof bound->storage;
    if (!socket || bind(socket.fd(), bound->get(), bound->size()) != 0 || listen(socket.fd(), kBacklog) != 0 ||
        getsockname(socket.fd(), bound->get(), &size) != 0)
        return {Code::system, "cannot listen on " + interface.name + ": " + error_text(errno)};
    *out = std::move(socket);
    return {};
}

Status begin_connect(const Interface& from, const Address& to, Socket* out) {
    Socket socket(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) return {Code::system, "cannot make a socket: " + error_text(errno)};
    if (from.address.family() == to.family()) {
        set(socket.fd(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
        if (bind(socket.fd(), from.address.get(), from.address.size()) != 0)
            return {Code::system, "cannot use " + from.name + ": " + error_text(errno)};
    }
    if (connect(socket.fd(), to.get(), to.size()) != 0 && errno != EINPROGRESS)
        return {errno == ECONNREFUSED ? Code::remote : Code::system, "cannot connect to " + to.text() + ": " + error_text(errno)};
    *out = std::move(socket);
    return {};
}

double round_trip(int fd) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_state != TCP_ESTABLISHED) return -1;
    return info.tcpi_rtt * 1e-6;
}

void tune(int fd, int64_t timeout_ns) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, int(std::clamp<int64_t>(timeout_ns / kSecond / 5, 1, kMostIdleSeconds)));
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    persist(fd);
}

bool control(int fd, const std::string& congestion) {
    return congestion.empty() ||
           setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion.data(), socklen_t(congestion.size())) == 0;
}

bool may_control(const std::string& congestion, std::string* allowed) {
    if (congestion.empty()) return true;
    const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (control(socket.fd(), congestion)) return true;
    if (!socket) {
        *allowed = "cannot tell, as there is no socket: " + error_text(errno);
        return false;
    }
    const std::string which = geteuid() == 0 ? "available" : "allowed";
    std::getline(std::ifstream("/proc/sys/net/ipv4/tcp_" + which + "_congestion_control"), *allowed);
    return false;
}

// With this option the number of attempts does not count any more, neither of retransmissions nor of keepalive's. It
// also limits for how long the peer may close its window, which a peer that computes does: hence a value that is never
// reached, and not the time-out.
void persist(int fd) { set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kNeverMs); }

void retry_often(int fd, bool often) {
    set(fd, IPPROTO_TCP, kTcpRtoMaxMs, often ? int(Tuning::kRetryNs / kMillisecond) : kUsualRetryMs);
}

bool awaits_acknowledgements(int fd, int64_t nanoseconds) {
    tcp_info info{};
    socklen_t size = sizeof info;
    int unsent = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || ioctl(fd, SIOCOUTQNSD, &unsent) != 0) return false;
    const bool waits = info.tcpi_unacked > 0 && unsent == 0 && info.tcpi_retransmits == 0;
    return waits && std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_sent) * kMillisecond >= nanoseconds;
}

void save_acknowledgements(int fd) { set(fd, IPPROTO_TCP, TCP_QUICKACK, 0); }

void shut(int fd) {
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);  // what is queued need not wait for a peer that is gone
    shutdown(fd, SHUT_RDWR);
}

void reset(int fd) {
    const sockaddr nobody{};  // AF_UNSPEC: tcp(7)
    connect(fd, &nobody, sizeof nobody);
}

std::string peer_text(int fd) {
    Address address;
    socklen_t size = sizeof address.storage;
    return getpeername(fd, address.get(), &size) == 0 ? address.text() : "?";
}

std::string error_text(int error) { return std::system_category().message(error); }

}  // namespace bagua
