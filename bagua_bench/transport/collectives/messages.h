// Point-to-point messages: a thread keeps them moving while their owner does something else. It starts with the first
// message and ends with the object.

#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "mesh.h"

namespace bagua {

class Messages {
  public:
    explicit Messages(Mesh& mesh);
    ~Messages();

    // Number of the operation. The data must stay where it is until it is done or the group is closed.
    uint64_t start(int peer, bool sending, void* data, size_t size, uint32_t tag);
    // True when it has ended, one way or the other; waits at most so long.
    bool wait(uint64_t operation, int64_t nanoseconds);
    // How an ended operation ended; forgets it.
    Status result(uint64_t operation);
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
    bool post(Operation& o);
    bool reap(Operation& o);

    Mesh& mesh_;
    std::mutex mutex_;
    std::condition_variable ended_;
    std::thread thread_;
    std::map<uint64_t, Operation> operations_;  // in order of start
    uint64_t next_ = 1;
    int wake_ = -1;  // eventfd
    bool closing_ = false;
};

}  // namespace bagua
