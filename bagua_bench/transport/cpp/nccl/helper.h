// A thread that moves what is pending on its comms, so that their callers may sleep between two tests. The thread
// itself sleeps until there is something to move.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "../core/connection.h"

namespace nccl {

class Helper;

struct Comm {
    std::mutex mutex;
    std::unique_ptr<bagua::Connection> connection;
    Helper* helper = nullptr;  // null: progress is made in the caller's test()
};

// Lives as long as the plugin; its thread exists while there are comms. Locks are taken in the order in which they are
// declared, a comm's last.
class Helper {
  public:
    Helper();
    Helper(const Helper&) = delete;
    Helper& operator=(const Helper&) = delete;

    void add(Comm* comm);
    // On return the comm is not touched any more.
    void remove(Comm* comm);

    // Held by a caller while it posts to a comm: the thread lets the caller go first and looks at the comm afterwards.
    class Posting {
      public:
        explicit Posting(Comm& comm);
        ~Posting();

      private:
        Helper* helper_;
        std::unique_lock<std::mutex> lock_;
    };

  private:
    void wake();
    void run();
    bool move();
    void sleep();

    const int event_;
    std::mutex life_;  // of the thread
    std::thread thread_;
    std::mutex mutex_;
    std::vector<Comm*> comms_;
    std::atomic<bool> over_{false};
    std::atomic<int> posting_{0};  // callers that want a comm's lock
    std::atomic<bool> posted_{false}, asleep_{false};
};

}  // namespace nccl
