// One face for all versions of NCCL's network interface, so that the harness can drive any plugin; and what the harness
// needs of it to move messages, which the C interface behind the torch backend offers too.

#pragma once

#include <memory>

#include "nccl/interface.h"

namespace harness {

struct Facts {
    char name[64];
    int speed, maxComms, maxRecvs, ptrSupport, devices;
    uint64_t maxP2pBytes;
};

class Mover {
  public:
    virtual ~Mover() = default;
    virtual int register_memory(void* comm, void* data, size_t size, void** mhandle) = 0;
    virtual int send(void* comm, void* data, size_t size, void* mhandle, void** request) = 0;
    virtual int receive(void* comm, void* data, size_t size, void* mhandle, void** request) = 0;
    virtual int test(void* request, int* done, int* size) = 0;
    // Whether a receive must be posted with the very size of its message.
    virtual bool exact() const = 0;
    // When a test has found nothing done: see Plan::idle.
    virtual void rest(void* request, int idle) = 0;
};

class Net : public Mover {
  public:
    virtual int init(nccl::Logger logger) = 0;
    virtual int facts(int dev, Facts* out) = 0;
    virtual int listen(int dev, void* handle, void** comm) = 0;
    virtual int connect(int dev, void* handle, void** comm) = 0;
    virtual int accept(void* listener, void** comm) = 0;
    virtual int close_send(void* comm) = 0;
    virtual int close_receive(void* comm) = 0;
    virtual int close_listener(void* comm) = 0;
    virtual int finish() = 0;
};

// Null for a version that the harness does not know.
std::unique_ptr<Net> adapt(const void* table, int version);

// One of two ranks whose library is bagua_net's.
class Group : public Mover {
  public:
    // 128 bytes for the other rank go to `handle`.
    virtual bool open(int rank, void* handle) = 0;
    // Blocks; the comm of both directions, or null.
    virtual void* join(const void* handles) = 0;
    virtual void close() = 0;
};

std::unique_ptr<Group> adapt_group(void* library);

}  // namespace harness
