#include <algorithm>
#include <cerrno>
#include <cstring>

#include "crew.h"
#include "handshake.h"
#include "tuning.h"

namespace bagua {

namespace {

constexpr int64_t kRetry = 50 * kMillisecond;

}  // namespace

Connector::Connector(const Settings& settings, const std::vector<Interface>& interfaces, const Handle& handle,
                     uint64_t name)
    : settings_(settings), interfaces_(interfaces), name_(name), deadline_(now_ns() + settings.connect_timeout) {
    for (const auto& wire : handle.addresses) {
        Address address;
        if (Address::from_wire(wire, &address)) addresses_.push_back(address);
    }
    key_ = make_key(settings.secret, handle.token);
    most_streams_ = int(std::min(uint64_t(settings.most_streams), handle.most_streams));
    if (handle.magic != kMagic || addresses_.empty())
        last_ = {Code::argument, "the handle is not one of bagua-net's"};
    else if (interfaces_.empty())
        last_ = {Code::usage, "no network interface to connect from"};
    else if (!random_bytes(id_, kId))
        last_ = {Code::system, "no random bytes: " + error_text(errno)};
    else if (decided_ = settings.streams != Settings::kAutomatic; decided_)
        open_legs(settings.streams);
    else
        legs_.resize(1);
}

void Connector::open_legs(int streams) {
    legs_.resize(size_t(std::clamp(streams, 1, kMaxStreams)) + kOthers);
    decided_ = true;
}

void Connector::decide() {
    double least = 1e9;
    for (const Leg& leg : legs_) {
        const double seconds = leg.state == State::connecting ? round_trip(leg.socket.fd()) : -1;
        if (seconds < 0) return;
        least = std::min(least, seconds);
    }
    if (legs_.size() == 1) {
        legs_.resize(2);  // the first one may have waited until the neighbour was found, or a tunnel was up
        return;
    }
    open_legs(std::min(streams_for(least, Tuning::kMostStreamPerSeconds), most_streams_));
    for (Leg* leg : {&legs_[0], &legs_[1]}) leg->hello.streams = uint16_t(legs_.size() - kOthers);
}

Status Connector::step(std::unique_ptr<Connection>* out) {
    if (legs_.empty()) return last_;
    const int64_t now = now_ns();
    size_t joined = 0;
    if (!decided_) decide();
    for (size_t i = 0; i < legs_.size(); ++i) {
        Leg& leg = legs_[i];
        if (leg.state == State::idle && now >= leg.retry_at)
            if (Status status = begin(leg, i); !status) last_ = status, leg.retry_at = now + kRetry;
        if (leg.state != State::idle && leg.state != State::joined && !advance(leg)) {
            leg.socket.reset();
            leg.state = State::idle;
            leg.retry_at = now + kRetry;
        }
        joined += leg.state == State::joined;
    }
    if (joined < legs_.size()) {
        if (now <= deadline_) return {};
        return {Code::remote, "cannot connect to " + where() + " within " + seconds_text(settings_.connect_timeout) +
                                  ": " + (last_ ? "no answer" : last_.text)};
    }
    std::string names;
    for (const auto& i : interfaces_) names += (names.empty() ? "" : ",") + i.name;
    std::vector<Socket> sockets;
    for (auto& leg : legs_) sockets.push_back(std::move(leg.socket));
    *out = std::make_unique<Connection>(settings_, std::move(sockets), names, name_);
    return {};
}

// Streams go round robin over the interfaces of both sides.
Status Connector::begin(Leg& leg, size_t index) {
    const Address& to = addresses_[index % addresses_.size()];
    if (Status status = begin_connect(interfaces_[index % interfaces_.size()], to, &leg.socket); !status) {
        refused_ |= status.code == Code::remote;
        return status;
    }
    const auto streams = uint16_t(legs_.size() - kOthers);
    const bool chooses = settings_.streams == Settings::kAutomatic;
    const auto flags = uint16_t((settings_.crc ? kChecksums : 0) | (chooses ? kChooses : 0));
    leg.hello = {kMagic, kVersion, flags, streams, uint16_t(index), name_, {}, {}};
    std::memcpy(leg.hello.id, id_, kId);
    if (!random_bytes(leg.hello.nonce, kNonce)) return {Code::system, "no random bytes: " + error_text(errno)};
    leg.state = State::connecting;
    leg.got = 0;
    return {};
}

bool Connector::advance(Leg& leg) {
    bool whole = true;
    if (leg.state == State::connecting && !decided_) {
        char nothing;
        const ssize_t n = recv(leg.socket.fd(), &nothing, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINPROGRESS || errno == ENOTCONN)) return true;
        last_ = {Code::remote, n < 0 ? error_text(errno) : "the listener refused"};
        refused_ |= n < 0 && errno == ECONNREFUSED;
        return false;
    }
    if (leg.state == State::connecting) {
        const ssize_t n = send(leg.socket.fd(), &leg.hello, sizeof leg.hello, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINPROGRESS || errno == ENOTCONN)) return true;
        if (n != ssize_t(sizeof leg.hello)) {
            refused_ |= errno == ECONNREFUSED;
            last_ = {Code::remote, error_text(errno)};
            return false;
        }
        leg.state = State::challenged;
    }
    if (leg.state == State::challenged) {
        if (!hear(leg, sizeof(Challenge), &whole)) return false;
        if (!whole) return true;
        Challenge c;
        std::memcpy(&c, leg.reply, sizeof c);
        if (!same_digest(c.proof, make_proof(key_, "listen", leg.hello, c.nonce).data())) {
            last_ = {Code::remote, "the listener does not know the job's secret"};
            return false;
        }
        Answer answer;
        std::memcpy(answer.proof, make_proof(key_, "connect", leg.hello, c.nonce).data(), kDigest);
        if (send(leg.socket.fd(), &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL) != ssize_t(sizeof answer))
            return false;
        leg.state = State::answered;
        leg.got = 0;
    }
    if (leg.state == State::answered) {
        if (!hear(leg, sizeof(Welcome), &whole)) return false;
        if (!whole) return true;
        leg.state = State::joined;
    }
    return true;
}

// Read a reply of `size` bytes, and not one more; false if the listener closed.
bool Connector::hear(Leg& leg, size_t size, bool* whole) {
    const ssize_t n = recv(leg.socket.fd(), leg.reply + leg.got, size - leg.got, MSG_DONTWAIT);
    const bool nothing_yet = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (n > 0) leg.got += size_t(n);
    *whole = leg.got == size;
    if (n > 0 || nothing_yet) return true;
    last_ = {Code::remote, n == 0 ? "the listener refused" : error_text(errno)};
    return false;
}

}  // namespace bagua
