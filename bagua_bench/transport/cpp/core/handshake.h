// How two processes come to share a connection, and how everybody else is kept out.
//
//   connecting side                      listening side
//   Hello (which stream of which id)  ->
//                                     <- Challenge (nonce, proof of the key over both nonces)
//   Answer (proof of the key)         ->
//                                     <- Welcome
//
// Nothing blocks. A socket that says anything else, or nothing for too long, is closed and counted; only a bounded
// number may be under way. The key is the listener's random token, mixed with the job's secret. A stranger without it
// cannot join, and neither can one that replays what it has heard. The payload is not encrypted.

#pragma once

#include <memory>
#include <vector>

#include "connection.h"
#include "secret.h"

namespace bagua {

class Listener {
  public:
    // Listens on each interface's own address.
    static Status open(const Settings& settings, const std::vector<Interface>& interfaces,
                       std::unique_ptr<Listener>* out);
    const Handle& handle() const { return handle_; }
    // Moves all handshakes forward; a connection once all its streams have arrived, null otherwise.
    std::unique_ptr<Connection> accept();
    // How long its callers may take from now on, and an outage of their connections last (ns).
    void set_timeouts(int64_t connecting, int64_t outage) {
        settings_.connect_timeout = connecting;
        settings_.timeout = outage;
    }
    uint64_t refused() const { return refused_; }
    // Readable when somebody calls; none while the process has nothing left for callers.
    std::vector<int> descriptors() const;
    // Whether accept() must be called again soon though nobody else calls.
    bool busy() const { return starved_ || !callers_.empty() || !partial_.empty(); }

  private:
    struct Caller {
        Socket socket;
        Hello hello{};
        Answer answer{};
        uint8_t nonce[kNonce];
        size_t got = 0;  // of hello and answer together
        int64_t deadline = 0;
    };
    struct Partial {
        Hello hello{};  // of the first stream
        std::vector<Socket> sockets;
        int64_t deadline = 0;
    };
    enum class Step { wait, refuse, joined };

    void take_callers(int64_t now);
    Step advance(Caller& caller);
    Step challenge(Caller& caller);
    Step join(Caller& caller, int64_t now);

    Settings settings_;
    std::string where_;
    std::vector<Socket> sockets_;
    std::vector<Caller> callers_;
    std::vector<Partial> partial_;
    Handle handle_{};
    Digest key_{};
    bool starved_ = false;  // of descriptors or memory, when somebody called last
    uint64_t refused_ = 0;
};

class Connector {
  public:
    // `name` tells the listening side which caller this is; the proof covers it.
    Connector(const Settings& settings, const std::vector<Interface>& interfaces, const Handle& handle,
              uint64_t name = 0);
    // Call again until there is a connection or an error.
    Status step(std::unique_ptr<Connection>* out);
    // Whether step() has not been called for so long that it will not be any more.
    bool abandoned(int64_t now) const { return now > deadline_ + kForgotten; }
    // Whether the other system has said that nobody listens: a listener that was there is not any more.
    bool refused() const { return refused_; }
    std::string where() const { return addresses_.empty() ? "" : addresses_[0].text(); }

  private:
    static constexpr int64_t kForgotten = 10 * kSecond;
    enum class State { idle, connecting, challenged, answered, joined };
    struct Leg {
        Socket socket;
        State state = State::idle;
        Hello hello{};
        uint8_t reply[sizeof(Challenge)];
        size_t got = 0;
        int64_t retry_at = 0;
    };

    // With kAutomatic the number of streams is known once two of them are connected.
    void decide();
    void open_legs(int streams);
    Status begin(Leg& leg, size_t index);
    bool advance(Leg& leg);  // false: lost, to be tried again
    bool hear(Leg& leg, size_t size, bool* whole);

    Settings settings_;
    std::vector<Interface> interfaces_;
    std::vector<Address> addresses_;
    std::vector<Leg> legs_;
    Digest key_{};
    uint8_t id_[kId];
    uint64_t name_;
    int most_streams_;
    int64_t deadline_;
    bool refused_ = false;
    bool decided_ = true;
    Status last_;
};

}  // namespace bagua
