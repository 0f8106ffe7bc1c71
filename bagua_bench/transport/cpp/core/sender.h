// The sending half of a connection: it cuts messages into chunks, strictly in order, and gives each to a stream with
// room.

#pragma once

#include "request.h"
#include "schedule.h"
#include "trunk.h"
#include "zero_copy.h"

namespace bagua {

class Sender {
  public:
    Sender(Trunk& trunk, Connection* connection);
    // Null: too many messages are open.
    Request* post(const void* data, uint32_t size, uint32_t tag);
    // Hand to the kernel whatever it takes; false if nothing.
    bool pump();
    // The receiver has all of a message; false if no message with this number waits to hear so.
    bool delivered(uint32_t sequence);
    // Have something new sent over a stream that was cut off and whose TCP waits for acknowledgements. After an outage
    // it may take a late one for a sign that nothing was lost (F-RTO, RFC 5682; Eifel, RFC 3522) and wait for those of
    // what was lost; acknowledgements of what is new tell it (RACK, RFC 8985). Not where the peer may have everything:
    // it may be about to close the stream, and its kernel would then answer with a reset.
    void nudge(Stream& stream);
    // When several streams should have room (ns); 0 = not known.
    int64_t wake_at() const { return wake_at_; }
    // Whether messages are pending, and neither an event before wake_at() nor a receipt could move them.
    bool resting(int64_t now) const;
    // Whether the kernel may still read pages of a caller.
    bool lends() const;
    int pending() const { return window_.pending(); }
    size_t crew() const { return schedule_.crew(); }

  private:
    size_t least_lent(const Stream& s) const;
    void take(Stream& stream, uint32_t length);
    bool write(Stream& stream);
    void written(Stream& stream);
    ssize_t push(const Stream& stream, size_t* lent);
    ssize_t push_parts(const Stream& stream, size_t header, size_t payload);

    Trunk& trunk_;
    Window window_;
    Schedule schedule_;
    PagePipe pages_;
    Request nothing_;  // stands for a header that belongs to no message
    bool may_lend_;  // large messages without a copy
    uint32_t cursor_ = 0;  // sequence that the next chunk is cut from
    uint64_t unwritten_ = 0;  // bytes posted and not yet promised to a stream
    int awaited_ = 0;  // messages that only lack their receipts
    unsigned turn_ = 0;  // chunks that might have been lent
    int64_t wake_at_ = 0;
};

}  // namespace bagua
