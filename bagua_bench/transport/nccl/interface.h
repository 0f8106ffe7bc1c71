// NCCL's network plugin interface, versions 6 to 12, as far as a plugin for host memory needs it. Written
// from the facts of the interface; the sizes are checked.

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

struct NetV6 {
    const char* name;
    Result (*init)(Logger);
    Result (*devices)(int* n);
    Result (*getProperties)(int dev, PropertiesV6*);
    Result (*listen)(int dev, void* handle, void** listenComm);
    Result (*connect)(int dev, void* handle, void** sendComm);
    Result (*accept)(void* listenComm, void** recvComm);
    Result (*regMr)(void* comm, void* data, int size, int type, void** mhandle);
    Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
    Result (*deregMr)(void* comm, void* mhandle);
    Result (*isend)(void* comm, void* data, int size, int tag, void* mhandle, void** request);
    Result (*irecv)(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles, void** request);
    Result (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, void** request);
    Result (*test)(void* request, int* done, int* sizes);
    Result (*closeSend)(void* comm);
    Result (*closeRecv)(void* comm);
    Result (*closeListen)(void* comm);
};
static_assert(sizeof(NetV6) == 136, "ABI");

// Versions 7 and 8 differ in their properties and in the type of the size of registered memory.
template <typename Properties, typename Size>
struct NetV7 {
    const char* name;
    Result (*init)(Logger);
    Result (*devices)(int* n);
    Result (*getProperties)(int dev, Properties*);
    Result (*listen)(int dev, void* handle, void** listenComm);
    Result (*connect)(int dev, void* handle, void** sendComm, void** deviceHandle);
    Result (*accept)(void* listenComm, void** recvComm, void** deviceHandle);
    Result (*regMr)(void* comm, void* data, Size size, int type, void** mhandle);
    Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
    Result (*deregMr)(void* comm, void* mhandle);
    Result (*isend)(void* comm, void* data, int size, int tag, void* mhandle, void** request);
    Result (*irecv)(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles, void** request);
    Result (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, void** request);
    Result (*test)(void* request, int* done, int* sizes);
    Result (*closeSend)(void* comm);
    Result (*closeRecv)(void* comm);
    Result (*closeListen)(void* comm);
    Result (*getDeviceMr)(void* comm, void* mhandle, void** out);
    Result (*irecvConsumed)(void* comm, int n, void* request);
};
static_assert(sizeof(NetV7<PropertiesV7, int>) == 152, "ABI");
static_assert(sizeof(NetV7<PropertiesV8, size_t>) == 152, "ABI");

struct NetV9 {
    const char* name;
    Result (*init)(Logger);
    Result (*devices)(int* n);
    Result (*getProperties)(int dev, PropertiesV9*);
    Result (*listen)(int dev, void* handle, void** listenComm);
    Result (*connect)(int dev, void* handle, void** sendComm, void** deviceHandle);
    Result (*accept)(void* listenComm, void** recvComm, void** deviceHandle);
    Result (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
    Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
    Result (*deregMr)(void* comm, void* mhandle);
    Result (*isend)(void* comm, void* data, size_t size, int tag, void* mhandle, void** request);
    Result (*irecv)(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** request);
    Result (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, void** request);
    Result (*test)(void* request, int* done, int* sizes);
    Result (*closeSend)(void* comm);
    Result (*closeRecv)(void* comm);
    Result (*closeListen)(void* comm);
    Result (*getDeviceMr)(void* comm, void* mhandle, void** out);
    Result (*irecvConsumed)(void* comm, int n, void* request);
    Result (*makeVDevice)(int* dev, VirtualProperties<4>*);
};
static_assert(sizeof(NetV9) == 160, "ABI");

struct NetV10 {
    const char* name;
    Result (*init)(Logger, Profiler);
    Result (*devices)(int* n);
    Result (*getProperties)(int dev, PropertiesV9*);
    Result (*listen)(int dev, void* handle, void** listenComm);
    Result (*connect)(int dev, void* config, void* handle, void** sendComm, void** deviceHandle);
    Result (*accept)(void* listenComm, void** recvComm, void** deviceHandle);
    Result (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
    Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
    Result (*deregMr)(void* comm, void* mhandle);
    Result (*isend)(void* comm, void* data, size_t size, int tag, void* mhandle, void* phandle, void** request);
    Result (*irecv)(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** phandles,
                    void** request);
    Result (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, void** request);
    Result (*test)(void* request, int* done, int* sizes);
    Result (*closeSend)(void* comm);
    Result (*closeRecv)(void* comm);
    Result (*closeListen)(void* comm);
    Result (*getDeviceMr)(void* comm, void* mhandle, void** out);
    Result (*irecvConsumed)(void* comm, int n, void* request);
    Result (*makeVDevice)(int* dev, VirtualProperties<4>*);
};
static_assert(sizeof(NetV10) == 160, "ABI");

// Versions 11 and 12 differ in their properties only.
template <typename Properties, int kDevices>
struct NetV11 {
    const char* name;
    Result (*init)(void** context, uint64_t commId, void* config, Logger, Profiler);
    Result (*devices)(int* n);
    Result (*getProperties)(int dev, Properties*);
    Result (*listen)(void* context, int dev, void* handle, void** listenComm);
    Result (*connect)(void* context, int dev, void* handle, void** sendComm, void** deviceHandle);
    Result (*accept)(void* listenComm, void** recvComm, void** deviceHandle);
    Result (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
    Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
    Result (*deregMr)(void* comm, void* mhandle);
    Result (*isend)(void* comm, void* data, size_t size, int tag, void* mhandle, void* phandle, void** request);
    Result (*irecv)(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** phandles,
                    void** request);
    Result (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, void** request);
    Result (*test)(void* request, int* done, int* sizes);
    Result (*closeSend)(void* comm);
    Result (*closeRecv)(void* comm);
    Result (*closeListen)(void* comm);
    Result (*getDeviceMr)(void* comm, void* mhandle, void** out);
    Result (*irecvConsumed)(void* comm, int n, void* request);
    Result (*makeVDevice)(int* dev, VirtualProperties<kDevices>*);
    Result (*finalize)(void* context);
    Result (*setNetAttr)(void* context, void* attributes);
};
static_assert(sizeof(NetV11<PropertiesV11, 4>) == 176, "ABI");
static_assert(sizeof(NetV11<PropertiesV12, 8>) == 176, "ABI");

}  // namespace nccl
