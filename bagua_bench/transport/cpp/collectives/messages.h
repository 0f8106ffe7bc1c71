// Point-to-point messages. A caller that waits for one of them drives them all, one caller at a time. While nobody
// waits, a thread keeps them moving; it starts with the first message that is not over at once, and ends with the
// object.

#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "mesh.h"

namespace bagua {

class Messages {
  public:
    explicit Messages(Mesh& mesh);
    ~Messages();

    static constexpr int kAny = -1;  // receive from whoever sends a message with the tag

    // Number of the operation. The data must stay where it is until it is done or the group is closed. `peer`: kAny
    // for a message that may come from any rank; receives that are started later do not overtake it. `tag` < 2^31.
    uint64_t start(int peer, bool sending, void* data, size_t size, uint32_t tag);
    // Whether it has ended, well or badly, within so many nanoseconds.
    bool wait(uint64_t operation, int64_t nanoseconds);
    // The outcome of an operation that has ended, which is then forgotten, and with which peer it was (or kAny).
    Status result(uint64_t operation, int& peer);
    void abort(const std::string& text);

  private:
    struct Operation {
        int peer;
        bool sending;
        unsigned char* data;
        size_t size, posted = 0;  // bytes given to the mesh
        uint32_t tag;
        std::vector<Request*> open;
        bool ended = false;
        Status status;
    };

    void run();
    bool advance();
    bool settle();
    void sleep(std::unique_lock<std::mutex>& guard, int64_t nanoseconds);
    bool post(Operation& o);
    bool reap(Operation& o);
    int source(uint32_t tag, const std::set<std::pair<int, bool>>& full);
    bool lost(uint32_t tag) const;

    Mesh& mesh_;
    std::mutex mutex_;
    std::condition_variable ended_;  // an operation, or a driver's turn
    std::condition_variable idle_;  // for the thread
    std::thread thread_;
    std::map<uint64_t, Operation> operations_;  // in order of start
    uint64_t next_ = 1;
    size_t open_ = 0;  // operations that have not ended
    int last_ = 0;  // rank that a message from any rank came from last
    bool touched_ = false;  // a caller was here since the thread last looked
    bool driven_ = false;  // a driver sleeps until the mesh can move on, and nobody else may touch it
    bool dozing_ = false;  // the thread sleeps until it is called
    bool closing_ = false;
    int wake_ = -1;  // eventfd that ends the driver's sleep
};

}  // namespace bagua
