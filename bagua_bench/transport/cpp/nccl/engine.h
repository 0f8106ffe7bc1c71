// The part that all versions of NCCL's interface share: devices, comms and requests over the core, guarded by locks.

#pragma once

#include "../core/report.h"
#include "interface.h"

namespace nccl {

Result start(Logger logger);
Result count_devices(int* n);
// One merged device. Members that a version does not have are simply not copied.
Result describe(int dev, PropertiesV12* out);
Result listen(int dev, void* handle, void** out);
Result connect(int dev, void* handle, void** out);
Result accept(void* listener, void** out);
Result register_memory(int type, void** mhandle);
Result send(void* comm, void* data, size_t size, void** request);
Result receive(void* comm, int n, void** data, size_t size, void** request);
Result test(void* request, int* done, int* sizes);
int report_comm(void* comm, StreamReport* out, int most);
// The same for comm number `index` of those open now, with its peer's address; -1 if there are fewer.
int report_open(int index, StreamReport* out, int most, char* peer, size_t room);
Result close_comm(void* comm);
Result close_listener(void* listener);

}  // namespace nccl
