// The receiving half of a connection: a header says where the payload goes, and it is read straight to its place. A
// chunk of a message that is not posted yet stays in the kernel; TCP holds the sender back.

#pragma once

#include "receipts.h"
#include "request.h"
#include "trunk.h"

namespace bagua {

class Receiver {
  public:
    Receiver(Trunk& trunk, Receipts& receipts, Connection* connection);
    // Null: too many messages are open. `size` may be more than what the peer sends unless it is `exact`, never less.
    Request* post(void* data, uint32_t size, uint32_t tag, bool exact);
    // Take from the kernel whatever belongs to posted messages; false if nothing.
    bool pump();
    int pending() const { return window_.pending(); }
    // Look at what arrives though nothing is posted: somebody takes a message from whoever sends one.
    void expect(bool anything) { expecting_ = anything; }
    bool expecting() const { return expecting_; }
    // Whether the next message to be posted has begun to arrive, and has this tag.
    bool has_next(uint32_t tag) const;

  private:
    bool read(Stream& stream, bool may_ask);
    void await(Stream& stream);
    bool received(Stream& stream, ssize_t got, size_t room);
    bool read_payload(Stream& stream);
    bool read_ahead(Stream& stream);
    bool unpack(Stream& stream);
    void arrived(Stream& stream, const unsigned char* bytes, uint32_t count);
    bool open_chunk(Stream& stream);
    bool acceptable(const Stream& stream, const ChunkHeader& head);
    void close_chunk(Stream& stream);
    void ended(Stream& stream);

    Trunk& trunk_;
    Receipts& receipts_;
    Window window_;
    bool expecting_ = false;
    size_t likely_ = 0;  // stream that brought the last small message
};

}  // namespace bagua
