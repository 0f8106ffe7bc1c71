// The connections of one rank to all others of a group, for one user at a time: the collectives have one mesh, the
// point-to-point messages another, so that neither waits for the other.

#pragma once

#include <atomic>
#include <memory>
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

class Mesh {
  public:
    Mesh(int rank, int size) : rank(rank), size(size), peers_(size_t(size)) {}
    const int rank, size;

    Connection& to(int peer) { return *peers_[size_t(peer)]; }
    Connection* find(int peer) { return peers_[size_t(peer)].get(); }
    void set(int peer, std::unique_ptr<Connection> connection) { peers_[size_t(peer)] = std::move(connection); }

    // Post a message; null: later, or the connection has failed.
    Request* post(int peer, bool sending, void* data, size_t size, uint32_t tag = 0);
    // Move what can be moved on all connections; false if nothing could.
    bool progress();
    // Wait until something may have become possible or `extra_fd` is readable; true if that is.
    bool wait(int64_t nanoseconds, int extra_fd = -1);
    // The first failure of a connection.
    Status status() const;
    void fail(const std::string& text);
    // Make whoever uses the mesh give up; from any thread.
    void abort() { aborted_ = true; }

    // Memory that stays as it is from call to call: fresh pages cost as much as sending them.
    unsigned char* scratch(size_t bytes);

    // Before an operation: it fails when for so long (ns) nothing at all has moved. However much there is to move, and
    // however slowly the network does it, it may take its time.
    void begin(int64_t patience);
    // All transfers, in any order between ranks.
    Status move(const std::vector<Transfer>& transfers);
    // One round of a loop that found nothing to do; an error when the patience is at an end.
    Status idle();

  private:
    std::atomic<bool> aborted_{false};
    int64_t patience_ = 0, until_ = 0;
    bool moved_ = true;  // since idle() looked
    std::vector<std::unique_ptr<Connection>> peers_;
    std::unique_ptr<unsigned char[]> scratch_;
    size_t scratch_size_ = 0;
};

}  // namespace bagua
