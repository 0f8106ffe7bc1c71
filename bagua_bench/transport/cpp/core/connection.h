// Messages over several streams between two processes, both directions. Not thread-safe: its users lock.
// docs/transport.md describes the protocol.
//
// If one stream fails, the connection fails: every pending request ends with the same error, which names the stream
// and the cause. (Dropping the stream and sending its chunks again would need an acknowledgement of each, because
// nobody can say which bytes of a dead TCP stream arrived.)

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pulse.h"
#include "receipts.h"
#include "receiver.h"
#include "sender.h"
#include "trunk.h"
#include "tuning.h"

namespace bagua {

class Connection {
  public:
    // `sockets`: connected, with the handshake done; those of the receipts and of the pulse come last.
    Connection(const Settings& settings, std::vector<Socket> sockets, const std::string& interfaces,
               uint64_t name);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    // Null without an error in `status()`: too many open requests, try later. `size` <= kMaxMessage.
    Request* send(const void* data, uint32_t size, uint32_t tag);
    // `size` may be more than what the peer sends unless it is `exact`, never less.
    Request* receive(void* data, uint32_t size, uint32_t tag, bool exact = false);
    // Look at what arrives though nothing is posted.
    void expect(bool anything) { receiver_.expect(anything); }
    // Whether the next message to be posted has begun to arrive, and has this tag.
    bool has_next(uint32_t tag) const { return receiver_.has_next(tag); }
    // Whether the peer has closed: no more than what has arrived will.
    bool left() const;
    // Give a request back, finished or not (not: the connection has failed and will be closed).
    void release(Request* request) { request->state = Request::State::free; }

    // Move whatever can be moved without waiting; false if nothing could.
    bool progress();
    // When progress() should be called again even if no event arrives (ns); 0 = no need.
    int64_t wake_at() const { return sender_.wake_at(); }
    // Whether no event before wake_at() is of use.
    bool resting(int64_t now) const { return !receiving() && sender_.resting(now); }
    int poll_fd() const { return epoll_; }
    // Forget what the kernel said last and ask again; needed after poll_fd() became readable.
    bool collect_events(int64_t nanoseconds);

    const Status& status() const { return trunk_.status; }
    void fail(Code code, const std::string& text) { trunk_.fail(code, text); }
    const std::vector<std::unique_ptr<Stream>>& streams() const { return trunk_.streams; }
    // How many of them, from the first one on, take what is sent.
    size_t crew() const { return sender_.crew(); }
    const std::string& peer() const { return trunk_.peer; }
    // Whether the peer is cut off, or was until so short a time ago that data may not move again yet.
    bool cut_off(int64_t now) const { return now - pulse_->cut_off < Tuning::kGraceNs; }
    bool pending() const { return posted() || receiver_.expecting(); }
    void* owner = nullptr;  // for the user
    const uint64_t name;  // given by the connecting side

  private:
    bool posted() const { return sender_.pending() + receiver_.pending() > 0; }
    bool receiving() const { return receiver_.pending() > 0 || receiver_.expecting(); }
    void watch(int fd, Stream* stream);
    bool pump();
    void check_life(int64_t now);
    void nudge(int64_t now);
    std::string lost() const;
    void hang_up();

    int epoll_ = -1;
    std::shared_ptr<Pulse> pulse_;
    Trunk trunk_;
    Sender sender_;
    Receipts receipts_;
    Receiver receiver_;
    const int64_t patience_;  // between nudges (ns)
    unsigned moves_ = 0;  // calls of progress() that moved something
    // When the kernel was asked for events, streams were looked at, and TCP was nudged (ns).
    int64_t asked_ = 0, checked_ = 0, nudged_ = 0;
};

}  // namespace bagua
