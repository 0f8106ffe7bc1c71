// Payload that goes from the caller's memory to the network without a copy in between.
//
// vmsplice(2) and splice(2) give the kernel references to the caller's pages. The kernel may read them until the peer
// has them and, within one host, until the peer's process has read them, which is long after TCP acknowledged them.
// Such a message is therefore over only when the peer's receipt for it is here. (MSG_ZEROCOPY would report when the
// kernel is done with a page, but it copies on every path within a host.)

#pragma once

#include <sys/types.h>

#include <cstddef>

#include "socket.h"

namespace bagua {

class PagePipe {
  public:
    // Write up to `size` bytes to a non-blocking TCP socket. The result is how many of the `lent` bytes on offer it
    // took (fewer if it is full), or -1 with errno. `lent` is 0 if the memory cannot be lent.
    ssize_t lend(int fd, void* data, size_t size, size_t* lent);

  private:
    void open();

    Socket in_, out_;
    bool refused_ = false;
};

}  // namespace bagua
