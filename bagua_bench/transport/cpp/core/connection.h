// Messages over several streams between two processes, both directions. Not thread-safe: the faces lock.
//
// If one stream fails, the connection fails: every pending request ends with the same error, which names the stream
// and the cause. (Dropping the stream and sending its chunks again would need an acknowledgement of each, because
// nobody can say which bytes of a dead TCP stream arrived.)

#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "pulse.h"
#include "schedule.h"
#include "settings.h"
#include "status.h"
#include "stream.h"
#include "zero_copy.h"

namespace bagua {

class Connection;

// A message being sent or received.
struct Request {
    enum class State { free, pending, done };
    Connection* connection = nullptr;
    State state = State::free;
    bool sending = false;
    unsigned char* data = nullptr;
    uint32_t sequence = 0, tag = 0;
    uint32_t size = 0;  // posted; of a finished receive: what arrived
    uint32_t taken = 0;  // bytes promised to streams (sending) or announced by headers (receiving)
    uint32_t moved = 0;  // bytes written to or read from the kernel
    bool opened = false;  // a first chunk was taken or announced: `size` is final
    bool receipt = false;  // over when the receiver has said that it has everything
};

// Numbers of messages that have arrived, on a socket of their own: on the streams a message that nobody has posted yet
// would hold them up.
struct Receipts {
    Socket socket;
    bool readable = true, over = false;
    std::deque<Request*> owed;  // whole, and the sender does not know yet
    size_t given = 0;  // bytes of the first of them that are written
    unsigned char come[64 * sizeof(uint32_t)];
    size_t got = 0;  // bytes of it, less than a number's when they have been seen to
};

class Connection {
  public:
    static constexpr uint32_t kWindow = 64;  // open requests per direction

    // `sockets`: connected and shaken hands, receipts and pulse last.
    Connection(const Settings& settings, std::vector<Socket> sockets, const std::string& interfaces,
               uint64_t name);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    // Null without an error in `status()`: too many open requests, try later. `size` <= kMaxMessage.
    Request* send(const void* data, uint32_t size, uint32_t tag);
    // `size` may be more than what the peer sends, never less.
    Request* receive(void* data, uint32_t size, uint32_t tag);
    // Give a request back, finished or not (not: the connection has failed and will be closed).
    void release(Request* request);

    // Move whatever can be moved without waiting; false if nothing could.
    bool progress();
    // Wait until something may have become possible, at most so long.
    void wait(int64_t nanoseconds);
    // When progress() should be called again even if no event arrives (ns); 0 = no need.
    int64_t wake_at() const { return wake_at_; }
    // Whether no event before wake_at() is of use.
    bool resting(int64_t now) const;
    int poll_fd() const { return epoll_; }
    // Forget what the kernel said last and ask again; needed after poll_fd() became readable.
    bool collect_events(int64_t nanoseconds);

    const Status& status() const { return status_; }
    void fail(Code code, const std::string& text);
    const std::vector<std::unique_ptr<Stream>>& streams() const { return streams_; }
    const std::string& peer() const { return peer_; }
    void* owner = nullptr;  // for the face
    const uint64_t name;  // what the connecting side said to be
    bool pending() const { return pending_sends_ + pending_receives_ > 0; }

  private:
    bool pump_sends();
    bool write(Stream& stream);
    void take(Stream& stream, uint32_t length);
    ssize_t push(const Stream& stream, size_t* lent);
    bool pump_receipts();
    void give_receipts();
    void take_receipts();
    void take_receipt(uint32_t number);
    bool pump_receives();
    void await(Stream& stream);
    bool read(Stream& stream, bool may_ask);
    bool received(Stream& stream, ssize_t got, size_t room);
    bool read_payload(Stream& stream);
    bool read_ahead(Stream& stream);
    bool unpack(Stream& stream);
    void arrived(Stream& stream, const unsigned char* bytes, uint32_t count);
    bool open_chunk(Stream& stream);
    void close_chunk(Stream& stream);
    void ended(Stream& stream);
    void check_life(int64_t now);
    Request* post(std::vector<Request>& window, uint32_t* next, void* data, uint32_t size, uint32_t tag);
    void finish(Request& request);
    void hang_up();
    void stream_failed(const Stream& stream, int error);

    Settings settings_;
    std::string peer_;
    std::vector<std::unique_ptr<Stream>> streams_;
    Receipts receipts_;
    PagePipe pages_;
    int epoll_ = -1;
    Status status_;
    Schedule schedule_;
    std::vector<Request> sends_, receives_;  // slot = sequence mod window
    uint32_t next_send_ = 0, next_receive_ = 0;  // sequence of the next post
    uint32_t cursor_ = 0;  // sequence that the next chunk is cut from
    uint64_t unwritten_ = 0;  // bytes posted and not yet promised to a stream
    int pending_sends_ = 0, pending_receives_ = 0;
    unsigned turn_ = 0;  // chunks that might have been lent
    int awaited_ = 0;  // sends that only lack their receipts
    size_t likely_ = 0;  // stream that brought the last small message
    unsigned calls_ = 0;
    int64_t wake_at_ = 0;  // when a stream should have room; 0 = not known
    int64_t asked_ = 0, checked_ = 0;
    std::shared_ptr<Pulse> pulse_;
};

}  // namespace bagua
