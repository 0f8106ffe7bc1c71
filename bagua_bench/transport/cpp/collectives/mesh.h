// The connections of one rank to all others of a group, for one user at a time: the collectives have one mesh, the
// point-to-point messages another, so that neither waits for the other.

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/handshake.h"

namespace bagua {

// A piece of memory on its way to or from a rank.
struct Transfer {
    int peer;
    bool sending;
    void* data;
    size_t size;
};

// What a rank has for itself: copied while it waits for others.
struct OwnCopy {
    const unsigned char* from;
    unsigned char* to;
    size_t size;
};

// An order of all ranks.
class Seats {
  public:
    explicit Seats(std::vector<int> order) : order_(std::move(order)), seats_(order_.size()) {
        for (size_t seat = 0; seat < order_.size(); ++seat) seats_[size_t(order_[seat])] = int(seat);
    }
    int of(int rank) const { return seats_[size_t(rank)]; }
    // The rank on a seat; they go round, so that any number is one.
    int at(int seat) const {
        const int size = int(order_.size());
        return order_[size_t((seat % size + size) % size)];
    }

  private:
    std::vector<int> order_, seats_;
};

class Mesh {
  public:
    // `ask` is called once for every rank that is needed and not connected; an answer arrives as a delivery. `exact`: a
    // message must be as long as what was posted for it.
    Mesh(int rank, int size, std::function<void(int peer)> ask, bool exact);
    ~Mesh();
    const int rank, size;

    // Of a rank that something was posted to or received from.
    Connection& to(int peer) { return *peers_[size_t(peer)]; }
    // Null if there is none yet.
    Connection* find(int peer) { return peers_[size_t(peer)].get(); }
    // Seconds, before anything was sent; 0 if it is not known (yet), and of no rank.
    double round_trip(int peer) const;
    // Wait for the connections to these ranks, as long as an operation may: only then their round trips are known.
    // Negative: no rank. Where there will be none, the operation fails later.
    void await(const std::vector<int>& peers);
    // Ask for the connections to all ranks.
    void want_all();

    // From any thread: a connection, or why there will be none.
    void deliver(int peer, std::unique_ptr<Connection> connection);
    void refuse(int peer, const Status& reason);
    // Take what was delivered, as every post and progress does; false if there was nothing.
    bool unpack();
    // From any thread: call it with the connection to a rank, null if there is none.
    void look(int peer, const std::function<void(Connection*)>& at);

    // Post a message; null if that must wait, if the connection has failed, or after abort().
    Request* post(int peer, bool sending, void* data, size_t size, uint32_t tag = 0);
    // Move what can be moved on all connections; false if nothing could.
    bool progress();
    // Wait until something may have become possible or `extra_fd` is readable; true in the latter case.
    bool wait(int64_t nanoseconds, int extra_fd = -1);
    // The first failure of any connection, and that of the connection to a rank.
    Status status() const;
    const Status& status(int peer) const;
    void fail(const std::string& text);
    // How much longer than its time-out an operation may take (ns): an outage that ends just before it is survived.
    int64_t grace() const;
    // Make the user of the mesh give up; may be called from any thread.
    void abort() { aborted_ = true; }

    // In which order collectives go through the ranks: rings and chains along `line`, halving and doubling by the bits of
    // the seats in `pairs`. At first both are the ranks' own; all ranks must be given the same, between two operations.
    // `ring`: all-reduces go along a ring, even where they could go by halving.
    Seats line, pairs;
    bool ring = false;
    // Where all-reduces of several slices go along a tree: each rank's parent, -1 of the root. Otherwise empty.
    std::vector<int> tree;
    // Whether large all-reduces go by halving, which takes a power of two of ranks.
    bool halves() const { return !ring && size > 2 && (size & (size - 1)) == 0; }

    // Memory that is kept from call to call, because fresh pages cost as much as sending them.
    unsigned char* scratch(size_t bytes);

    // Begin an operation. It fails when nothing at all has moved for `patience` (ns); it may take any time as long as
    // something moves, however much there is to move and however slow the network is.
    void begin(int64_t patience);
    // All transfers, in any order between ranks, and all copies.
    Status move(const std::vector<Transfer>& transfers, std::vector<OwnCopy> copies = {});
    // Wait, in a loop that found nothing to do; an error once the patience is exhausted.
    Status idle();

  private:
    struct Delivery {
        int peer;
        std::unique_ptr<Connection> connection;
        Status reason;  // if there is no connection
    };

    void want(int peer);
    // Whether it will come, but has not.
    bool lacks(int peer) const {
        return peer >= 0 && peer != rank && !peers_[size_t(peer)] && status(peer) && !aborted_;
    }
    void hand_in(Delivery delivery);
    std::string missing() const;

    std::function<void(int)> ask_;
    const bool exact_;
    std::atomic<bool> aborted_{false};
    int64_t patience_ = 0, until_ = 0;
    bool moved_ = true;  // since idle() looked
    std::vector<std::unique_ptr<Connection>> peers_;
    std::vector<Status> refused_;
    std::vector<char> asked_;
    int missing_ = 0;  // ranks that were asked for and have not answered
    std::unique_ptr<unsigned char[]> scratch_;
    size_t scratch_size_ = 0;

    std::mutex post_box_;  // guards what follows, and changes of peers_
    std::vector<Delivery> deliveries_;
    Status failed_;  // by the user: what comes later has failed, too
    std::atomic<bool> news_{false};
    int bell_ = -1;  // eventfd: readable when something was delivered
};

}  // namespace bagua
