// Sockets, addresses and network interfaces.

#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "status.h"
#include "wire.h"

namespace bagua {

// Owns a descriptor.
class Socket {
  public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Socket();
    int fd() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset() { Socket gone(std::move(*this)); }

  private:
    int fd_ = -1;
};

struct Address {
    sockaddr_storage storage{};
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
    sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
    int family() const { return storage.ss_family; }
    socklen_t size() const { return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }
    void set_port(uint16_t port);
    std::string text() const;
    WireAddress to_wire() const;
    // False if the fields are not an address.
    static bool from_wire(const WireAddress& wire, Address* out);
};

struct Interface {
    std::string name, pci;  // pci is empty for a virtual one
    Address address;
    int speed = 0;  // Mbit/s
};

// The interfaces that `names` chooses, at most kMaxInterfaces, in the machine's order. `names` is a comma-separated
// list of prefixes; a leading "=" makes them exact names, a leading "^" excludes them. If it is empty, the choice is
// the first interface that is up and neither loopback nor docker's. Where there is no such interface at all, loopback
// counts as one; otherwise it must be named. `family` is AF_INET, AF_INET6 or AF_UNSPEC.
std::vector<Interface> find_interfaces(const std::string& names, int family);

// All that are up and have an address of this family, for an error.
std::string interface_names(int family);

// A listening, non-blocking socket on exactly this address, any port.
Status listen_on(const Interface& interface, Socket* out, Address* bound);

// Begin to connect without blocking, from this interface if the families agree.
Status begin_connect(const Interface& from, const Address& to, Socket* out);

// The round trip of a connected socket, seconds; negative if it is not connected, or not yet.
double round_trip(int fd);

// Have small messages sent without delay, and an idle path probed once a second after a fifth of `timeout_ns`, which
// counts as a second at least and a minute at most.
void tune(int fd, int64_t timeout_ns);

// Have TCP's congestion control be this one; nothing if the name is empty. False if the kernel refuses.
bool control(int fd, const std::string& congestion);

// Whether this process may have it; if not, the names of those that it may have.
bool may_control(const std::string& congestion, std::string* allowed);

// Have the kernel try to reach the peer until shut(): how long an outage may last is for the connection to decide.
void persist(int fd);

// While the peer is cut off, the kernel doubles the time to its next attempt, so that after an outage the data would
// wait as long as that lasted. Have it try at least every Tuning::kRetryNs, or be as patient as usual. Linux can do so
// since 6.15; older ones stay as they are.
void retry_often(int fd, bool often);

// Whether TCP has sent everything, tries nothing again, and for so long has neither sent anything nor heard of it.
bool awaits_acknowledgements(int fd, int64_t nanoseconds);

// Have acknowledgements of small messages wait for data that goes back, or for one another: each one sent alone takes
// time on both sides, and the next message waits for it. The kernel forgets this when its timer for delayed
// acknowledgements fires.
void save_acknowledgements(int fd);

// End a connection: shut() after what is queued, reset() at once.
void shut(int fd);
void reset(int fd);

std::string peer_text(int fd);
std::string error_text(int error);

}  // namespace bagua
