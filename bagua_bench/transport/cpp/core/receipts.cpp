// Messages whose pages were lent are over when the receiver says so: both halves of saying it.

#include <cerrno>
#include <cstring>

#include "connection.h"

namespace bagua {

bool Connection::pump_receipts() {
    const size_t owed = receipts_.owed.size();
    const int awaited = awaited_;
    if (owed > 0) give_receipts();
    if (receipts_.readable) take_receipts();
    return receipts_.owed.size() < owed || awaited_ < awaited;
}

// A receive is over when its receipt is on the way: the caller may never call again.
void Connection::give_receipts() {
    while (status_ && !receipts_.owed.empty()) {
        Request& r = *receipts_.owed.front();
        const auto* number = reinterpret_cast<const unsigned char*>(&r.sequence);
        const ssize_t n = ::send(receipts_.socket.fd(), number + receipts_.given, sizeof r.sequence - receipts_.given,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) return;
        if (n < 0) return fail(Code::remote, "receipts to " + peer_ + ": " + error_text(errno));
        receipts_.given += size_t(n);
        if (receipts_.given < sizeof r.sequence) continue;
        receipts_.given = 0;
        receipts_.owed.pop_front();
        finish(r);
    }
}

void Connection::take_receipts() {
    Receipts& in = receipts_;
    while (status_ && in.readable) {
        const size_t room = sizeof in.come - in.got;
        const ssize_t n = recv(in.socket.fd(), in.come + in.got, room, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        in.readable = n > 0;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) return fail(Code::remote, "receipts from " + peer_ + ": " + error_text(errno));
        in.over = n == 0;
        in.got += size_t(n);
        size_t seen = 0;
        for (; status_ && in.got - seen >= sizeof(uint32_t); seen += sizeof(uint32_t)) {
            uint32_t number;
            std::memcpy(&number, in.come + seen, sizeof number);
            take_receipt(number);
        }
        std::memmove(in.come, in.come + seen, in.got - seen);
        in.got -= seen;
    }
}

void Connection::take_receipt(uint32_t number) {
    Request& r = sends_[number % kWindow];
    const bool awaited = r.state == Request::State::pending && r.sequence == number && r.receipt && r.moved == r.size;
    if (!awaited)
        return fail(Code::remote, "receipt from " + peer_ + " for message " + std::to_string(number) +
                                      ", which waits for none");
    --awaited_;
    finish(r);
}

}  // namespace bagua
