// One face for all versions of NCCL's network interface, so that the harness can drive any plugin.

#pragma once

#include <memory>

#include "../nccl/interface.h"

namespace harness {

struct Facts {
    char name[64];
    int speed, maxComms, maxRecvs, ptrSupport, devices;
    uint64_t maxP2pBytes;
};

class Net {
  public:
    virtual ~Net() = default;
    virtual int init(nccl::Logger logger) = 0;
    virtual int facts(int dev, Facts* out) = 0;
    virtual int listen(int dev, void* handle, void** comm) = 0;
    virtual int connect(int dev, void* handle, void** comm) = 0;
    virtual int accept(void* listener, void** comm) = 0;
    virtual int register_memory(void* comm, void* data, size_t size, void** mhandle) = 0;
    virtual int send(void* comm, void* data, size_t size, void* mhandle, void** request) = 0;
    virtual int receive(void* comm, void* data, size_t size, void* mhandle, void** request) = 0;
    virtual int test(void* request, int* done, int* size) = 0;
    virtual int close_send(void* comm) = 0;
    virtual int close_receive(void* comm) = 0;
    virtual int close_listener(void* comm) = 0;
    virtual int finish() = 0;
};

// Null for a version that the harness does not know.
std::unique_ptr<Net> adapt(const void* table, int version);

}  // namespace harness
