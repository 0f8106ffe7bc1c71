#include "receipts.h"

#include <cerrno>
#include <cstring>

#include "tuning.h"

namespace bagua {

Receipts::Receipts(Trunk& trunk, Sender& sender, Socket socket)
    : trunk_(trunk), sender_(sender), socket_(std::move(socket)) {}

void Receipts::owe(Request& received) {
    owed_.push_back(&received);
    give();
}

void Receipts::nudge() {
    const int64_t patience = Tuning::nudge_after(first_round_trip(trunk_.streams));
    if (over_ || !owed_.empty() || !awaits_acknowledgements(socket_.fd(), patience)) return;
    owed_.push_back(nullptr);
    give();
}

bool Receipts::pump() {
    bool moved = give();
    moved |= take();
    return moved;
}

bool Receipts::give() {
    bool moved = false;
    while (trunk_.status && !owed_.empty()) {
        Request* r = owed_.front();
        const Receipt receipt{r ? r->sequence : 0, r == nullptr};
        const auto* bytes = reinterpret_cast<const unsigned char*>(&receipt);
        const ssize_t n = ::send(socket_.fd(), bytes + given_, sizeof receipt - given_, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) break;
        if (n < 0) {
            trunk_.broke(Code::remote, "receipts to peer " + trunk_.peer + ": " + error_text(errno));
            break;
        }
        given_ += size_t(n);
        if (given_ < sizeof receipt) continue;
        given_ = 0;
        owed_.pop_front();
        if (!r) continue;
        r->window->finish(*r);
        moved = true;
    }
    return moved;
}

bool Receipts::take() {
    bool moved = false;
    while (trunk_.status && readable_) {
        const ssize_t n = recv(socket_.fd(), come_ + got_, sizeof come_ - got_, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        readable_ = n > 0;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) {
            trunk_.broke(Code::remote, "receipts from peer " + trunk_.peer + ": " + error_text(errno));
            break;
        }
        over_ = n == 0;
        got_ += size_t(n);
        size_t seen = 0;
        for (; trunk_.status && got_ - seen >= sizeof(Receipt); seen += sizeof(Receipt)) {
            Receipt receipt;
            std::memcpy(&receipt, come_ + seen, sizeof receipt);
            if (receipt.nothing == 1 && receipt.sequence == 0) continue;
            if (!receipt.nothing && sender_.delivered(receipt.sequence))
                moved = true;
            else
                trunk_.fail(Code::remote, "receipt from " + trunk_.peer + " for message " +
                                              std::to_string(receipt.sequence) + ", which waits for none");
        }
        std::memmove(come_, come_ + seen, got_ - seen);
        got_ -= seen;
    }
    return moved;
}

}  // namespace bagua
