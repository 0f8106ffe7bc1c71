// Messages that a caller has posted, and the window that holds those of one direction.

#pragma once

#include <cstdint>
#include <vector>

namespace bagua {

class Connection;
class Window;

// A message being sent or received.
struct Request {
    enum class State { free, pending, done };
    Connection* connection = nullptr;
    Window* window = nullptr;
    State state = State::free;
    unsigned char* data = nullptr;
    uint32_t sequence = 0, tag = 0;
    uint32_t size = 0;  // posted; of a finished receive: what arrived
    uint32_t taken = 0;  // bytes promised to streams (sending) or announced by headers (receiving)
    uint32_t moved = 0;  // bytes written to or read from the kernel
    bool opened = false;  // a first chunk was announced: `size` is final
    bool exact = false;  // of a receive: what arrives must be as long as it
    bool receipt = false;  // over when the receiver has said that it has everything
};

// The open messages of one direction, numbered in the order in which they were posted.
class Window {
  public:
    static constexpr uint32_t kSize = 256;  // open messages

    explicit Window(Connection* connection) : requests_(kSize) {
        for (auto& r : requests_) r.connection = connection, r.window = this;
    }
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

    // Null: too many are open.
    Request* post(void* data, uint32_t size, uint32_t tag, bool exact = false) {
        Request& r = at(next_);
        if (r.state != Request::State::free) return nullptr;
        r.state = Request::State::pending;
        r.data = static_cast<unsigned char*>(data);
        r.sequence = next_++;
        r.tag = tag;
        r.size = size;
        r.taken = r.moved = 0;
        r.opened = r.receipt = false;
        r.exact = exact;
        ++pending_;
        return &r;
    }
    void finish(Request& request) {
        request.state = Request::State::done;
        --pending_;
    }
    // The request with this number, or another one that has taken its place.
    Request& at(uint32_t sequence) { return requests_[sequence % kSize]; }
    // Number of the next message to be posted.
    uint32_t next() const { return next_; }
    int pending() const { return pending_; }
    const std::vector<Request>& requests() const { return requests_; }

  private:
    std::vector<Request> requests_;  // slot = sequence mod kSize
    uint32_t next_ = 0;
    int pending_ = 0;
};

}  // namespace bagua
