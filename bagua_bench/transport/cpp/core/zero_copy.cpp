#include "zero_copy.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace bagua {

namespace {

constexpr int kPipe = 1 << 20;  // bytes' worth of pages; the most that Linux allows every user

// splice() has no MSG_NOSIGNAL: a peer that closed must not kill the process.
class NoBrokenPipe {
  public:
    NoBrokenPipe() {
        sigset_t pending;
        sigemptyset(&set_);
        sigaddset(&set_, SIGPIPE);
        sigpending(&pending);
        before_ = sigismember(&pending, SIGPIPE) == 1;
        pthread_sigmask(SIG_BLOCK, &set_, &mask_);
    }
    ~NoBrokenPipe() {
        const int error = errno;
        const timespec now{};
        if (error == EPIPE && !before_) sigtimedwait(&set_, nullptr, &now);
        pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
        errno = error;
    }
    NoBrokenPipe(const NoBrokenPipe&) = delete;
    NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

  private:
    sigset_t set_, mask_;
    bool before_;
};

}  // namespace

void PagePipe::open() {
    int ends[2];
    in_.reset();
    out_.reset();
    refused_ = pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0;
    if (refused_) return;
    out_ = Socket(ends[0]);
    in_ = Socket(ends[1]);
    fcntl(in_.fd(), F_SETPIPE_SZ, kPipe);  // if refused, it stays at 64 KiB, or less for a user with many pipes
}

ssize_t PagePipe::lend(int fd, void* data, size_t size, size_t* lent) {
    *lent = 0;
    if (!in_ && !refused_) open();
    if (refused_) return 0;
    const iovec pages{data, size};
    const ssize_t filled = vmsplice(in_.fd(), &pages, 1, SPLICE_F_NONBLOCK);
    refused_ = filled <= 0;  // memory of a device, or none left
    if (refused_) return 0;
    *lent = size_t(filled);
    size_t sent = 0;
    const NoBrokenPipe guard;
    while (sent < *lent) {
        const ssize_t n = splice(out_.fd(), nullptr, fd, nullptr, *lent - sent, SPLICE_F_NONBLOCK);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        sent += size_t(n);
    }
    const int error = errno;
    if (sent < *lent) open();  // the rest is offered again later, perhaps after another stream's turn
    errno = error;
    return sent > 0 ? ssize_t(sent) : -1;
}

}  // namespace bagua
