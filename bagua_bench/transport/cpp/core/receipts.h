// Numbers of messages that have arrived, on a socket of their own: on a stream, a message that nobody has posted yet
// would hold them up. A message whose pages were lent is over when the receiver says so; this is how both sides say it.

#pragma once

#include <deque>

#include "sender.h"
#include "trunk.h"

namespace bagua {

class Receipts {
  public:
    Receipts(Trunk& trunk, Sender& sender, Socket socket);
    // The message is whole, and its sender waits to hear so. It is over here when its receipt is on the way, because
    // the caller may never call again after that.
    void owe(Request& received);
    // As Sender::nudge().
    void nudge();
    // Give and take what is possible without waiting; false if nothing was.
    bool pump();
    // The kernel says that there may be something to read.
    void notice() { readable_ = true; }
    // Whether the peer has closed the socket.
    bool over() const { return over_; }
    int fd() const { return socket_.fd(); }

  private:
    bool give();
    bool take();

    Trunk& trunk_;
    Sender& sender_;
    Socket socket_;
    bool readable_ = true, over_ = false;
    std::deque<Request*> owed_;  // null: a receipt of nothing
    size_t given_ = 0;  // bytes of the first of them that are written
    unsigned char come_[64 * sizeof(Receipt)];
    size_t got_ = 0;  // bytes of it; fewer than one receipt has, once the whole ones are seen to
};

}  // namespace bagua
