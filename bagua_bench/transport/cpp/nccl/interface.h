// NCCL's network plugin interface, versions 6 to 12, as far as a plugin for host memory needs it. Written from the
// facts of the interface; the compiler checks the sizes.

#pragma once

#include <cstddef>
#include <cstdint>

namespace nccl {

constexpr int kPointerHost = 1;
constexpr int kHandleSize = 128;

using Result = int;  // bagua::Code has NCCL's numbers
constexpr Result kSuccess = 0, kInternalError = 3, kInvalidArgument = 4;

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
using Profiler = Result (*)(void** event, int type, void* handle, int64_t plugin, void* data);
constexpr unsigned long kLogInit = 1, kLogNet = 16;

struct PropertiesV6 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, speed, port;
    float latency;
    int maxComms, maxRecvs;
};
static_assert(sizeof(PropertiesV6) == 48, "ABI");

struct PropertiesV7 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
};
static_assert(sizeof(PropertiesV7) == 56, "ABI");

struct PropertiesV8 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
};
static_assert(sizeof(PropertiesV8) == 64, "ABI");

template <int kDevices>
struct VirtualProperties {
    int ndevs, devs[kDevices];
};

struct PropertiesV9 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
    VirtualProperties<4> vProps;
    size_t maxP2pBytes, maxCollBytes;
};
static_assert(sizeof(PropertiesV9) == 104, "ABI");

struct PropertiesV11 : PropertiesV9 {
    int maxMultiRequestSize;
};
static_assert(sizeof(PropertiesV11) == 112, "ABI");

struct PropertiesV12 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
    VirtualProperties<8> vProps;
    size_t maxP2pBytes, maxCollBytes;
    int maxMultiRequestSize;
    int16_t railId, planeId;
};
static_assert(sizeof(PropertiesV12) == 128, "ABI");

// Argument types of a version's functions; every version declares only its differences from the one before.
struct V6 {
    using Properties = PropertiesV6;
    using Init = Result(Logger);
    using Listen = Result(int dev, void* handle, void** listenComm);
    using Connect = Result(int dev, void* handle, void** sendComm);
    using Accept = Result(void* listenComm, void** recvComm);
    using RegMr = Result(void* comm, void* data, int size, int type, void** mhandle);
    using Isend = Result(void* comm, void* data, int size, int tag, void* mhandle, void** request);
    using Irecv = Result(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles, void** request);
};
struct V7 : V6 {
    using Properties = PropertiesV7;
    using Connect = Result(int dev, void* handle, void** sendComm, void** deviceHandle);
    using Accept = Result(void* listenComm, void** recvComm, void** deviceHandle);
};
struct V8 : V7 {
    using Properties = PropertiesV8;
    using RegMr = Result(void* comm, void* data, size_t size, int type, void** mhandle);
};
struct V9 : V8 {
    using Properties = PropertiesV9;
    using Isend = Result(void* comm, void* data, size_t size, int tag, void* mhandle, void** request);
    using Irecv = Result(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** request);
};
struct V10 : V9 {
    using Init = Result(Logger, Profiler);
    using Connect = Result(int dev, void* config, void* handle, void** sendComm, void** deviceHandle);
    using Isend = Result(void* comm, void* data, size_t size, int tag, void* mhandle, void* phandle, void** request);
    using Irecv = Result(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** phandles,
                         void** request);
};
struct V11 : V10 {
    using Properties = PropertiesV11;
    using Init = Result(void** context, uint64_t commId, void* config, Logger, Profiler);
    using Listen = Result(void* context, int dev, void* handle, void** listenComm);
    using Connect = Result(void* context, int dev, void* handle, void** sendComm, void** deviceHandle);
};
struct V12 : V11 {
    using Properties = PropertiesV12;
};

// The table of functions, in the interface's order: what all versions have ...
template <typename V>
struct Functions {
    using Version = V;
    const char* name;
    typename V::Init* init;
    Result (*devices)(int* n);
    Result (*getProperties)(int dev, typename V::Properties*);
    typename V::Listen* listen;
    typename V::Connect* connect;
    typename V::Accept* accept;
    typename V::RegMr* regMr;
    Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
    Result (*deregMr)(void* comm, void* mhandle);
    typename V::Isend* isend;
    typename V::Irecv* irecv;
    Result (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, void** request);
    Result (*test)(void* request, int* done, int* sizes);
    Result (*closeSend)(void* comm);
    Result (*closeRecv)(void* comm);
    Result (*closeListen)(void* comm);
};
// ... and what later ones added at its end. All are pointers, so that bases lie one after the other.
struct DeviceOffload {
    Result (*getDeviceMr)(void* comm, void* mhandle, void** out);
    Result (*irecvConsumed)(void* comm, int n, void* request);
};
template <int kDevices>
struct VirtualDevices {
    Result (*makeVDevice)(int* dev, VirtualProperties<kDevices>*);
};
struct Context {
    Result (*finalize)(void* context);
    Result (*setNetAttr)(void* context, void* attributes);
};

template <typename V, typename... Added>
struct Net : Functions<V>, Added... {};

using NetV6 = Net<V6>;
using NetV7 = Net<V7, DeviceOffload>;
using NetV8 = Net<V8, DeviceOffload>;
using NetV9 = Net<V9, DeviceOffload, VirtualDevices<4>>;
using NetV10 = Net<V10, DeviceOffload, VirtualDevices<4>>;
using NetV11 = Net<V11, DeviceOffload, VirtualDevices<4>, Context>;
using NetV12 = Net<V12, DeviceOffload, VirtualDevices<8>, Context>;
static_assert(sizeof(NetV6) == 136, "ABI");
static_assert(sizeof(NetV7) == 152, "ABI");
static_assert(sizeof(NetV8) == 152, "ABI");
static_assert(sizeof(NetV9) == 160, "ABI");
static_assert(sizeof(NetV10) == 160, "ABI");
static_assert(sizeof(NetV11) == 176, "ABI");
static_assert(sizeof(NetV12) == 176, "ABI");

}  // namespace nccl
