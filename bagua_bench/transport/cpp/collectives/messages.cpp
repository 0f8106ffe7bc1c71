#include "messages.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace bagua {

namespace {

constexpr int64_t kNap = 100 * kMillisecond;
constexpr int64_t kAway = 5 * kMillisecond;  // a caller that stays away for so long is busy elsewhere

}  // namespace

Messages::Messages(Mesh& mesh) : mesh_(mesh), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Messages::~Messages() {
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        closing_ = true;
    }
    idle_.notify_all();
    eventfd_write(wake_, 1);
    if (thread_.joinable()) thread_.join();
    close(wake_);
}

uint64_t Messages::start(int peer, bool sending, void* data, size_t size, uint32_t tag) {
    const std::lock_guard<std::mutex> guard(mutex_);
    Operation o{};
    o.peer = peer;
    o.sending = sending;
    o.data = static_cast<unsigned char*>(data);
    o.size = size;
    o.tag = tag;
    operations_.emplace(next_, std::move(o));
    ++open_;
    if (driven_)
        eventfd_write(wake_, 1);
    else
        settle();  // a small message is under way on return
    touched_ = true;
    if (open_ > 0 && !thread_.joinable()) thread_ = std::thread([this] { run(); });
    if (open_ > 0 && dozing_) idle_.notify_one();
    return next_++;
}

bool Messages::wait(uint64_t operation, int64_t nanoseconds) {
    std::unique_lock<std::mutex> guard(mutex_);
    const auto over = [&] {
        const auto found = operations_.find(operation);
        return found == operations_.end() || found->second.ended;
    };
    int64_t left = nanoseconds, deadline = 0;
    while (!over()) {
        const bool moved = !driven_ && advance();
        if (left <= 0 || over()) break;
        if (deadline == 0) deadline = now_ns() + nanoseconds;
        if (driven_)
            ended_.wait_for(guard, std::chrono::nanoseconds(left), [&] { return over() || !driven_; });
        else if (!moved)
            sleep(guard, left);
        left = deadline - now_ns();
        if (left <= 0) left += mesh_.grace();
    }
    touched_ = true;
    if (open_ > 0 && !driven_) ended_.notify_all();  // it is somebody else's turn to drive
    return over();
}

Status Messages::result(uint64_t operation, int& peer) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = operations_.find(operation);
    if (found == operations_.end()) return {Code::argument, "no such operation"};
    const Status status = found->second.status;
    peer = found->second.peer;
    if (found->second.ended) operations_.erase(found);
    return status;
}

void Messages::abort(const std::string& text) {
    const std::lock_guard<std::mutex> guard(mutex_);
    mesh_.fail(text);
    eventfd_write(wake_, 1);
}

// Give the mesh what it takes, in pieces of at most kMaxMessage; false if something is left.
bool Messages::post(Operation& o) {
    do {
        const size_t size = std::min<size_t>(kMaxMessage, o.size - o.posted);
        Request* r = mesh_.post(o.peer, o.sending, o.data + o.posted, size, o.posted ? o.tag | kContinued : o.tag);
        if (!r) return false;
        o.open.push_back(r);
        o.posted += size;
    } while (o.posted < o.size);
    return true;
}

// The first rank after the last source whose next message has this tag and that no earlier receive waits for; kAny if
// there is none.
int Messages::source(uint32_t tag, const std::set<std::pair<int, bool>>& full) {
    for (int step = 1; step <= mesh_.size; ++step) {
        const int peer = (last_ + step) % mesh_.size;
        Connection* connection = mesh_.find(peer);
        if (connection && connection->status() && !full.count({peer, false}) && connection->has_next(tag))
            return last_ = peer;
    }
    return kAny;
}

// Whether nobody is left who could send a message with this tag: who has closed may have left one with another tag.
bool Messages::lost(uint32_t tag) const {
    for (int peer = 0; peer < mesh_.size; ++peer) {
        if (peer == mesh_.rank || !mesh_.status(peer)) continue;
        const Connection* connection = mesh_.find(peer);
        if (!connection || !connection->left() || connection->has_next(tag)) return false;
    }
    return true;
}

// Whether it has just ended.
bool Messages::reap(Operation& o) {
    if (o.peer == kAny && !lost(o.tag)) return false;
    Status status = o.peer == kAny ? mesh_.status() : mesh_.status(o.peer);
    if (o.peer == kAny && status)
        status = {Code::remote, "no rank is left that could send one with tag " + std::to_string(o.tag)};
    const auto done = [](Request* r) { return r->state == Request::State::done; };
    const bool whole = !o.open.empty() && o.posted == o.size && std::all_of(o.open.begin(), o.open.end(), done);
    if (!whole && status) return false;
    if (whole)
        for (Request* r : o.open) mesh_.to(o.peer).release(r);
    o.status = whole ? Status() : status;
    --open_;
    return o.ended = true;
}

// Move what can be moved without waiting; false if nothing could.
bool Messages::advance() {
    const bool moved = mesh_.progress();
    return settle() || moved;
}

// Post what can be posted and see what has ended; true if there was anything of either.
bool Messages::settle() {
    std::set<std::pair<int, bool>> full;  // peers and directions whose turn is not over
    std::set<uint32_t> awaited;  // tags of messages that may come from any rank
    bool news = false, posted = false;
    for (auto& [number, o] : operations_) {
        if (o.ended) continue;
        const size_t before = o.open.size();
        if (o.peer == kAny) mesh_.want_all();
        if (o.peer == kAny && !awaited.count(o.tag)) o.peer = source(o.tag, full);
        const auto lane = std::make_pair(o.peer, o.sending);
        const bool unposted = o.open.empty() || o.posted < o.size;
        // It might get what an earlier receive from any rank waits for, until its own message is at hand.
        const auto early = [&] {
            Connection* connection = mesh_.find(o.peer);
            const bool at_hand = connection && connection->has_next(o.tag);
            return !awaited.empty() && !o.sending && o.open.empty() && !at_hand;
        };
        if (o.peer == kAny)
            awaited.insert(o.tag);
        else if (unposted && (full.count(lane) || early() || !post(o)))
            full.insert(lane);
        posted |= o.open.size() > before;
        news |= reap(o);
    }
    for (int peer = 0; peer < mesh_.size; ++peer)
        if (Connection* connection = mesh_.find(peer)) connection->expect(!awaited.empty());
    if (news) ended_.notify_all();
    return news || posted;
}

// Sleep until the mesh can move on; only abort() may touch it meanwhile.
void Messages::sleep(std::unique_lock<std::mutex>& guard, int64_t nanoseconds) {
    driven_ = true;
    guard.unlock();
    const bool woken = mesh_.wait(std::min(nanoseconds, kNap), wake_);
    guard.lock();
    driven_ = false;
    eventfd_t count;
    if (woken) eventfd_read(wake_, &count);
}

void Messages::run() {
    std::unique_lock<std::mutex> guard(mutex_);
    while (!closing_) {
        dozing_ = true;
        idle_.wait(guard, [&] { return closing_ || open_ > 0; });
        dozing_ = false;
        if (driven_ || touched_) {
            touched_ = false;
            if (!driven_) ended_.notify_all();  // callers that waited while this thread drove must take over
            idle_.wait_for(guard, std::chrono::nanoseconds(kAway), [&] { return closing_; });
        } else if (!advance()) {
            sleep(guard, kNap);
            settle();  // what was started meanwhile
        }
    }
}

}  // namespace bagua
