#include <algorithm>
#include <cerrno>
#include <cstring>

#include "handshake.h"

namespace bagua {

namespace {

constexpr size_t kMaxCallers = 4 * (kMaxStreams + kOthers);  // whose handshake is under way; the oldest makes room
constexpr size_t kMaxPartial = 256;  // connections that wait for more of their streams
constexpr int kAcceptsPerCall = 64;  // bounded work
constexpr int64_t kPatience = 5 * kSecond;  // with one caller

bool hung_up(const Socket& socket) {
    char byte;
    return socket && recv(socket.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// An empty socket certainly has room for a whole message, so one call is enough.
bool send_all(int fd, const void* data, size_t size) {
    return send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) == ssize_t(size);
}

}  // namespace

Status Listener::open(const Settings& settings, const std::vector<Interface>& interfaces,
                      std::unique_ptr<Listener>* out) {
    auto listener = std::make_unique<Listener>();
    listener->settings_ = settings;
    Handle& handle = listener->handle_;
    handle.magic = kMagic;
    handle.most_streams = uint64_t(settings.most_streams);
    if (!random_bytes(handle.token, kToken)) return {Code::system, "no random bytes: " + error_text(errno)};
    listener->key_ = make_key(settings.secret, handle.token);
    for (size_t i = 0; i < interfaces.size() && i < kMaxInterfaces; ++i) {
        Socket socket;
        Address bound;
        if (Status status = listen_on(interfaces[i], &socket, &bound); !status) return status;
        handle.addresses[i] = bound.to_wire();
        listener->sockets_.push_back(std::move(socket));
        listener->where_ += (i ? "," : "") + interfaces[i].name;
    }
    if (listener->sockets_.empty()) return {Code::usage, "no network interface to listen on"};
    *out = std::move(listener);
    return {};
}

std::vector<int> Listener::descriptors() const {
    std::vector<int> all;
    if (starved_) return all;
    for (const auto& socket : sockets_) all.push_back(socket.fd());
    return all;
}

std::unique_ptr<Connection> Listener::accept() {
    const int64_t now = now_ns();
    take_callers(now);
    for (size_t i = 0; i < callers_.size();) {
        Step step = now > callers_[i].deadline ? Step::refuse : advance(callers_[i]);
        if (step == Step::joined) step = join(callers_[i], now);
        refused_ += step == Step::refuse;
        if (step == Step::wait)
            ++i;
        else
            callers_.erase(callers_.begin() + long(i));
    }
    for (size_t i = 0; i < partial_.size();) {
        Partial& p = partial_[i];
        const auto taken = partial_.begin() + long(i);
        if (std::all_of(p.sockets.begin(), p.sockets.end(), [](const Socket& s) { return bool(s); })) {
            Settings settings = settings_;
            settings.crc = p.hello.flags & kChecksums;
            settings.streams = p.hello.flags & kChooses ? Settings::kAutomatic : p.hello.streams;
            auto connection = std::make_unique<Connection>(settings, std::move(p.sockets), where_, p.hello.name);
            partial_.erase(taken);
            return connection;
        }
        if (now > p.deadline || std::any_of(p.sockets.begin(), p.sockets.end(), hung_up))
            partial_.erase(taken);
        else
            ++i;
    }
    return nullptr;
}

void Listener::take_callers(int64_t now) {
    starved_ = false;
    for (auto& listening : sockets_) {
        for (int i = 0; i < kAcceptsPerCall; ++i) {
            Socket socket(accept4(listening.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            const bool full = !socket && (errno == EMFILE || errno == ENFILE);
            if (!socket && !full && errno != ECONNABORTED && errno != EINTR) {
                starved_ = errno != EAGAIN;  // of memory
                break;
            }
            if ((full || callers_.size() >= kMaxCallers) && !callers_.empty()) {
                callers_.erase(callers_.begin());  // no descriptor or no room: the caller that has taken longest goes
                ++refused_;
            } else if (full) {
                starved_ = true;
                break;
            }
            if (!socket) continue;
            callers_.emplace_back();
            callers_.back().socket = std::move(socket);
            callers_.back().deadline = now + std::min(kPatience, settings_.connect_timeout);
        }
    }
}

// Read what has arrived of hello and answer.
Listener::Step Listener::advance(Caller& c) {
    while (true) {
        const bool hello = c.got < sizeof c.hello;
        auto* into = hello ? reinterpret_cast<char*>(&c.hello) + c.got
                           : reinterpret_cast<char*>(&c.answer) + (c.got - sizeof c.hello);
        const size_t missing = (hello ? sizeof c.hello : sizeof c.hello + sizeof c.answer) - c.got;
        const ssize_t n = recv(c.socket.fd(), into, missing, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Step::wait;
        if (n <= 0) return Step::refuse;
        c.got += size_t(n);
        if (size_t(n) < missing) continue;
        if (!hello) return Step::joined;
        if (challenge(c) == Step::refuse) return Step::refuse;
    }
}

Listener::Step Listener::challenge(Caller& c) {
    const Hello& h = c.hello;
    if (h.magic != kMagic || h.version != kVersion || h.flags > (kChecksums | kChooses) || h.streams < 1 ||
        h.streams > kMaxStreams || h.index >= h.streams + kOthers)
        return Step::refuse;
    Challenge challenge;
    if (!random_bytes(challenge.nonce, kNonce)) return Step::refuse;
    std::memcpy(c.nonce, challenge.nonce, kNonce);
    const Digest proof = make_proof(key_, "listen", h, c.nonce);
    std::memcpy(challenge.proof, proof.data(), kDigest);
    return send_all(c.socket.fd(), &challenge, sizeof challenge) ? Step::wait : Step::refuse;
}

// Check the answer; file the socket under its connection.
Listener::Step Listener::join(Caller& c, int64_t now) {
    if (!same_digest(c.answer.proof, make_proof(key_, "connect", c.hello, c.nonce).data())) return Step::refuse;
    const auto same = [&](const Partial& p) { return std::memcmp(p.hello.id, c.hello.id, kId) == 0; };
    auto found = std::find_if(partial_.begin(), partial_.end(), same);
    if (found == partial_.end()) {
        if (partial_.size() >= kMaxPartial) return Step::refuse;
        Partial fresh;
        fresh.hello = c.hello;
        fresh.sockets.resize(size_t(c.hello.streams) + kOthers);
        fresh.deadline = now + settings_.connect_timeout;
        partial_.push_back(std::move(fresh));
        found = partial_.end() - 1;
    }
    if (found->hello.streams != c.hello.streams || found->hello.flags != c.hello.flags || found->sockets[c.hello.index])
        return Step::refuse;
    const Welcome welcome{kMagic};
    if (!send_all(c.socket.fd(), &welcome, sizeof welcome)) return Step::refuse;
    found->sockets[c.hello.index] = std::move(c.socket);
    return Step::joined;
}

}  // namespace bagua
