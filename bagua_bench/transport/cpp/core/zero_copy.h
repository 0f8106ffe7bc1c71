// Payload that goes from the caller's memory to the network without a copy in between.
//
// vmsplice(2) and splice(2) give the kernel references to the caller's pages. The pages are read until the peer has
// them, and on one host until the peer's process has read them, long after TCP acknowledged them: such a message is
// over only when the peer's receipt for it is here. (MSG_ZEROCOPY would say when the kernel is through with a page, but
// copies on every path within a host.)

#pragma once

#include <sys/types.h>

#include <cstddef>

#include "socket.h"

namespace bagua {

class PagePipe {
  public:
    // Write up to `size` bytes to a non-blocking TCP socket. What it took of the `lent` bytes that it was offered (if
    // less, it is full), or -1 and errno. `lent` is 0 if the memory cannot be lent.
    ssize_t lend(int fd, void* data, size_t size, size_t* lent);

  private:
    void open();

    Socket in_, out_;
    bool refused_ = false;
};

}  // namespace bagua
