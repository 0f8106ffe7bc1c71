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
Result get_properties(int dev, PropertiesV12* out) { return describe(dev, out); }

// Overloads for functions that take other arguments in other versions; each table picks those of its types.
Result init(Logger logger) { return start(logger); }
Result init(Logger logger, Profiler) { return start(logger); }
Result init(void** context, uint64_t, void*, Logger logger, Profiler) {
    *context = nullptr;  // nothing is kept per communicator
    return start(logger);
}
Result finalize(void*) { return kSuccess; }

using nccl::accept, nccl::connect, nccl::listen;  // overloaded below for other versions
Result listen(void*, int dev, void* handle, void** out) { return listen(dev, handle, out); }
Result connect(int dev, void* handle, void** out, void**) { return connect(dev, handle, out); }
Result connect(int dev, void*, void* handle, void** out, void**) { return connect(dev, handle, out); }
Result connect(void*, int dev, void* handle, void** out, void**) { return connect(dev, handle, out); }
Result accept(void* listener, void** out, void**) { return accept(listener, out); }

template <typename Size>
Result register_any(void*, void*, Size, int type, void** mhandle) {
    return register_memory(type, mhandle);
}
Result deregister(void*, void*) { return kSuccess; }

Result isend(void* comm, void* data, int size, int, void*, void** request) {
    return size < 0 ? kInvalidArgument : send(comm, data, size_t(size), request);
}
Result isend(void* comm, void* data, size_t size, int, void*, void** request) {
    return send(comm, data, size, request);
}
Result isend(void* comm, void* data, size_t size, int, void*, void*, void** request) {
    return send(comm, data, size, request);
}
Result irecv(void* comm, int n, void** data, int* sizes, int*, void**, void** request) {
    return sizes[0] < 0 ? kInvalidArgument : receive(comm, n, data, size_t(sizes[0]), request);
}
Result irecv(void* comm, int n, void** data, size_t* sizes, int*, void**, void** request) {
    return receive(comm, n, data, sizes[0], request);
}
Result irecv(void* comm, int n, void** data, size_t* sizes, int*, void**, void**, void** request) {
    return receive(comm, n, data, sizes[0], request);
}
Result iflush(void*, int, void**, int*, void**, void**) { return kInternalError; }  // host memory only

template <typename V>
constexpr Functions<V> functions() {
    return {"BaguaNet",   init,          count_devices, get_properties,  //
            listen,       connect,       accept,                         //
            register_any, nullptr,       deregister,                     //
            isend,        irecv,         iflush,        test,            //
            close_comm,   close_comm,    close_listener};
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const NetV6 ncclNetPlugin_v6 = {functions<V6>()};
EXPORT const NetV7 ncclNetPlugin_v7 = {functions<V7>(), {}};
EXPORT const NetV8 ncclNetPlugin_v8 = {functions<V8>(), {}};
EXPORT const NetV9 ncclNetPlugin_v9 = {functions<V9>(), {}, {}};
EXPORT const NetV10 ncclNetPlugin_v10 = {functions<V10>(), {}, {}};
EXPORT const NetV11 ncclNetPlugin_v11 = {functions<V11>(), {}, {}, {finalize, nullptr}};
EXPORT const NetV12 ncclNetPlugin_v12 = {functions<V12>(), {}, {}, {finalize, nullptr}};

// The counters of a comm that this plugin made, per stream; the number of streams.
EXPORT int bagua_net_comm_report(void* comm, StreamReport* out, int most) { return report_comm(comm, out, most); }
// The same for every comm that is open in this process, whoever opened it; see engine.h.
EXPORT int bagua_net_open_comm_report(int index, StreamReport* out, int most, char* peer, size_t room) {
    return report_open(index, out, most, peer, room);
}

}  // namespace nccl
