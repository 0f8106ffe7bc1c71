// The exported tables: thin wrappers, one per version of NCCL's interface.

#include <type_traits>

#include "engine.h"

namespace nccl {

namespace {

template <typename Properties>
Result get_properties(int dev, Properties* out) {
    PropertiesV12 all;
    if (const Result result = describe(dev, &all); result != kSuccess) return result;
    *out = {};
    out->name = all.name;
    out->pciPath = all.pciPath;
    out->guid = all.guid;
    out->ptrSupport = all.ptrSupport;
    out->speed = all.speed;
    out->port = all.port;
    out->latency = all.latency;
    out->maxComms = all.maxComms;
    out->maxRecvs = all.maxRecvs;
    if constexpr (std::is_base_of_v<PropertiesV9, Properties>) {
        out->vProps.ndevs = all.vProps.ndevs;
        out->vProps.devs[0] = all.vProps.devs[0];
        out->maxP2pBytes = all.maxP2pBytes;
        out->maxCollBytes = all.maxCollBytes;
    }
    if constexpr (std::is_same_v<PropertiesV11, Properties>) out->maxMultiRequestSize = all.maxMultiRequestSize;
    return kSuccess;
}

Result init6(Logger logger) { return start(logger); }
Result init10(Logger logger, Profiler) { return start(logger); }
Result init11(void** context, uint64_t, void*, Logger logger, Profiler) {
    *context = nullptr;  // nothing is kept per communicator
    return start(logger);
}
Result finalize11(void*) { return kSuccess; }

Result listen11(void*, int dev, void* handle, void** out) { return listen(dev, handle, out); }
Result connect7(int dev, void* handle, void** out, void**) { return connect(dev, handle, out); }
Result connect10(int dev, void*, void* handle, void** out, void**) { return connect(dev, handle, out); }
Result connect11(void*, int dev, void* handle, void** out, void**) { return connect(dev, handle, out); }
Result accept7(void* listener, void** out, void**) { return accept(listener, out); }

Result regMr6(void*, void*, int, int type, void** mhandle) { return register_memory(type, mhandle); }
Result regMr8(void*, void*, size_t, int type, void** mhandle) { return register_memory(type, mhandle); }
Result deregMr(void*, void*) { return kSuccess; }

Result isend6(void* comm, void* data, int size, int, void*, void** request) {
    return size < 0 ? kInvalidArgument : send(comm, data, size_t(size), request);
}
Result isend9(void* comm, void* data, size_t size, int, void*, void** request) {
    return send(comm, data, size, request);
}
Result isend10(void* comm, void* data, size_t size, int, void*, void*, void** request) {
    return send(comm, data, size, request);
}
Result irecv6(void* comm, int n, void** data, int* sizes, int*, void**, void** request) {
    return sizes[0] < 0 ? kInvalidArgument : receive(comm, n, data, size_t(sizes[0]), request);
}
Result irecv9(void* comm, int n, void** data, size_t* sizes, int*, void**, void** request) {
    return receive(comm, n, data, sizes[0], request);
}
Result irecv10(void* comm, int n, void** data, size_t* sizes, int*, void**, void**, void** request) {
    return receive(comm, n, data, sizes[0], request);
}
Result iflush(void*, int, void**, int*, void**, void**) { return kInternalError; }  // host memory only

constexpr char kName[] = "BaguaNet";

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const NetV6 ncclNetPlugin_v6 = {kName,   init6,   count_devices, get_properties<PropertiesV6>,
                                       listen,  connect, accept,        regMr6,
                                       nullptr, deregMr, isend6,        irecv6,
                                       iflush,  test,    close_comm,    close_comm,
                                       close_listener};
EXPORT const NetV7<PropertiesV7, int> ncclNetPlugin_v7 = {
    kName,  init6,  count_devices, get_properties<PropertiesV7>, listen, connect7, accept7,
    regMr6, nullptr, deregMr,      isend6,                       irecv6, iflush,   test,
    close_comm, close_comm, close_listener, nullptr, nullptr};
EXPORT const NetV7<PropertiesV8, size_t> ncclNetPlugin_v8 = {
    kName,  init6,  count_devices, get_properties<PropertiesV8>, listen, connect7, accept7,
    regMr8, nullptr, deregMr,      isend6,                       irecv6, iflush,   test,
    close_comm, close_comm, close_listener, nullptr, nullptr};
EXPORT const NetV9 ncclNetPlugin_v9 = {kName,    init6,    count_devices, get_properties<PropertiesV9>,
                                       listen,   connect7, accept7,       regMr8,
                                       nullptr,  deregMr,  isend9,        irecv9,
                                       iflush,   test,     close_comm,    close_comm,
                                       close_listener, nullptr, nullptr,  nullptr};
EXPORT const NetV10 ncclNetPlugin_v10 = {kName,    init10,    count_devices, get_properties<PropertiesV9>,
                                         listen,   connect10, accept7,       regMr8,
                                         nullptr,  deregMr,   isend10,       irecv10,
                                         iflush,   test,      close_comm,    close_comm,
                                         close_listener, nullptr, nullptr,   nullptr};
EXPORT const NetV11<PropertiesV11, 4> ncclNetPlugin_v11 = {
    kName,   init11,  count_devices, get_properties<PropertiesV11>, listen11, connect11, accept7,
    regMr8,  nullptr, deregMr,       isend10,                       irecv10,  iflush,    test,
    close_comm, close_comm, close_listener, nullptr, nullptr, nullptr, finalize11, nullptr};
EXPORT const NetV11<PropertiesV12, 8> ncclNetPlugin_v12 = {
    kName,   init11,  count_devices, describe, listen11, connect11, accept7,
    regMr8,  nullptr, deregMr,       isend10,  irecv10,  iflush,    test,
    close_comm, close_comm, close_listener, nullptr, nullptr, nullptr, finalize11, nullptr};

// The counters of a comm that this plugin made, per stream; the number of streams.
EXPORT int bagua_net_comm_report(void* comm, StreamReport* out, int most) { return report_comm(comm, out, most); }
// The same for every comm that is open in this process, whoever opened it: see engine.h.
EXPORT int bagua_net_open_comm_report(int index, StreamReport* out, int most, char* peer, size_t room) {
    return report_open(index, out, most, peer, room);
}

}  // namespace nccl
