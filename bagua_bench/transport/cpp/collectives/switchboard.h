// Makes the connections of a group's meshes, in a thread of its own that ends when all are there. In a small group each
// rank opens all of them at the start, in a large one each when it is first needed: an algorithm that talks to few
// ranks keeps few sockets.
//
// The higher rank of a pair calls the lower one. If it is the lower one that needs the connection, it knocks first: a
// connection that carries nothing, upon which the other one calls. So a pair never gets two connections, however its
// ends hit upon each other. A knock that is not followed by a call is repeated, for the other one may be gone.

#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "../core/handshake.h"
#include "mesh.h"

namespace bagua {

class Switchboard {
  public:
    static constexpr int kLanes = 2;
    using Lanes = std::array<Mesh*, kLanes>;

    // `handles`: of the listeners of all ranks.
    Switchboard(const Settings& settings, const std::vector<Interface>& interfaces, std::unique_ptr<Listener> listener,
                std::vector<Handle> handles, Lanes lanes);
    ~Switchboard();

    // Have a connection made, or opened from the other side. The mesh hears of it. From any thread.
    void want(int lane, int peer);
    // Open all connections, and wait until they are there; an error that says which are not after the time that the
    // settings give to connect, or when the user has given up.
    Status open_all(const std::atomic<bool>& aborted);

  private:
    using Line = std::pair<int, int>;  // lane and rank

    void run();
    void take_wishes();
    void call(Line line);
    void knock_again();
    bool take_calls();
    bool step_calls();
    void made(Line line, std::unique_ptr<Connection> connection);
    void unreachable(Line line, const Status& reason);
    void rest(int64_t since_news);
    std::string absent() const;

    const Settings settings_;
    const std::vector<Interface> interfaces_;
    std::unique_ptr<Listener> listener_;
    const std::vector<Handle> handles_;
    const Lanes lanes_;
    const int rank_, size_;
    std::map<Line, std::unique_ptr<Connector>> calls_;  // and knocks
    std::map<Line, int64_t> knocked_;  // when (ns); they have not called since

    std::mutex mutex_;  // guards what follows; only the thread changes `there_`
    std::condition_variable changed_;
    std::map<Line, bool> there_;
    std::vector<Line> wishes_;
    int missing_;
    Status first_failure_;
    bool closing_ = false;
    int bell_ = -1;  // eventfd that ends a rest
    std::thread thread_;
};

}  // namespace bagua
