#include "engine.h"

#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "../core/handshake.h"
#include "../core/settings.h"
#include "helper.h"

namespace nccl {

using namespace bagua;

namespace {

struct ListenComm {
    std::mutex mutex;
    std::unique_ptr<Listener> listener;
};

struct Plugin {
    std::mutex mutex;
    bool started = false;
    Settings settings;
    std::vector<Interface> interfaces;
    std::string names;
    int speed = 0;
    std::map<uint64_t, std::unique_ptr<Connector>> attempts;  // by the number in the caller's copy of the handle
    uint64_t next_attempt = 1;
    std::set<Comm*> open;
    std::vector<std::unique_ptr<Helper>> helpers;
    size_t helped = 0;  // comms given to them so far
};

Plugin& plugin() {
    static auto* one = new Plugin;  // outlives every thread that may still call
    return *one;
}

Result report(const Status& status) {
    if (!status && plugin().settings.log) plugin().settings.log(Level::warning, "bagua-net: " + status.text);
    return int(status.code);
}

// The caller holds the plugin's lock.
void* opened(std::unique_ptr<Comm> comm) {
    Plugin& p = plugin();
    comm->connection->owner = comm.get();
    p.open.insert(comm.get());
    if (!p.helpers.empty()) {
        comm->helper = p.helpers[p.helped++ % p.helpers.size()].get();
        comm->helper->add(comm.get());
    }
    return comm.release();
}

// Of communicators that NCCL gave up while they connected. The caller holds the plugin's lock.
void drop_abandoned(Plugin& p) {
    const int64_t now = now_ns();
    for (auto attempt = p.attempts.begin(); attempt != p.attempts.end();)
        attempt = attempt->second->abandoned(now) ? p.attempts.erase(attempt) : std::next(attempt);
}

// NCCL learns whether the request is pending, done or failed; a finished one is free again.
Result take_result(Comm& comm, Request& r, int* done, int* sizes) {
    Connection& c = *comm.connection;
    if (r.state == Request::State::pending && !comm.helper) c.progress();
    if (r.state == Request::State::pending) return int(c.status().code);
    *done = 1;
    if (sizes) sizes[0] = int(r.size);
    c.release(&r);
    return kSuccess;
}

}  // namespace

Result start(Logger logger) {
    Plugin& p = plugin();
    const std::lock_guard<std::mutex> guard(p.mutex);
    if (p.started) return kSuccess;
    if (logger)
        p.settings.log = [logger](Level level, const std::string& text) {
            logger(int(level) + (level == Level::info), kLogInit | kLogNet, "bagua-net", 0, "%s", text.c_str());
        };
    if (const Status status = read_settings(&p.settings, &p.interfaces); !status) return report(status);
    for (const auto& i : p.interfaces) {
        p.names += (p.names.empty() ? "" : "+") + i.name;
        p.speed += i.speed;
    }
    for (int k = 0; k < p.settings.helpers; ++k) p.helpers.push_back(std::make_unique<Helper>());
    p.started = true;
    return kSuccess;
}

Result count_devices(int* n) {
    *n = plugin().interfaces.empty() ? 0 : 1;
    return kSuccess;
}

Result describe(int dev, PropertiesV12* out) {
    Plugin& p = plugin();
    if (dev != 0 || p.interfaces.empty()) return kInvalidArgument;
    std::memset(out, 0, sizeof *out);
    const bool merged = p.interfaces.size() > 1;
    out->name = p.names.data();
    out->pciPath = merged || p.interfaces[0].pci.empty() ? nullptr : p.interfaces[0].pci.data();
    out->ptrSupport = kPointerHost;
    out->speed = p.speed;
    out->maxComms = 65536;
    out->maxRecvs = 1;
    out->vProps.ndevs = 1;
    out->maxP2pBytes = out->maxCollBytes = kMaxMessage;
    out->maxMultiRequestSize = 1;
    out->railId = out->planeId = -1;
    return kSuccess;
}

Result listen(int dev, void* handle, void** out) {
    Plugin& p = plugin();
    if (dev != 0) return kInvalidArgument;
    auto comm = std::make_unique<ListenComm>();
    if (const Status status = Listener::open(p.settings, p.interfaces, &comm->listener); !status) return report(status);
    std::memset(handle, 0, kHandleSize);
    std::memcpy(handle, &comm->listener->handle(), sizeof(Handle));
    *out = comm.release();
    return kSuccess;
}

Result connect(int dev, void* bytes, void** out) {
    *out = nullptr;
    Plugin& p = plugin();
    if (dev != 0) return kInvalidArgument;
    Handle handle;
    std::memcpy(&handle, bytes, sizeof handle);
    const std::lock_guard<std::mutex> guard(p.mutex);
    drop_abandoned(p);
    auto found = p.attempts.find(handle.attempt);
    if (found == p.attempts.end()) {
        handle.attempt = p.next_attempt++;
        std::memcpy(bytes, &handle, sizeof handle);
        found = p.attempts.emplace(handle.attempt, std::make_unique<Connector>(p.settings, p.interfaces, handle)).first;
    }
    auto comm = std::make_unique<Comm>();
    const Status status = found->second->step(&comm->connection);
    if (!status || comm->connection) p.attempts.erase(found);
    if (comm->connection) *out = opened(std::move(comm));
    return report(status);
}

Result accept(void* listener, void** out) {
    *out = nullptr;
    auto& comm = *static_cast<ListenComm*>(listener);
    const std::lock_guard<std::mutex> guard(comm.mutex);
    if (auto connection = comm.listener->accept()) {
        auto made = std::make_unique<Comm>();
        made->connection = std::move(connection);
        const std::lock_guard<std::mutex> all(plugin().mutex);
        *out = opened(std::move(made));
    }
    return kSuccess;
}

Result register_memory(int type, void** mhandle) {
    *mhandle = nullptr;
    return type == kPointerHost ? kSuccess : kInternalError;
}

Result send(void* comm, void* data, size_t size, void** request) {
    *request = nullptr;
    if (size > kMaxMessage) return kInvalidArgument;
    auto& c = *static_cast<Comm*>(comm);
    const Helper::Posting posting(c);
    *request = c.connection->send(data, uint32_t(size), 0);
    return *request ? kSuccess : int(c.connection->status().code);
}

Result receive(void* comm, int n, void** data, size_t size, void** request) {
    *request = nullptr;  // may come in as 1: "completion optional"
    if (n != 1) return kInvalidArgument;
    auto& c = *static_cast<Comm*>(comm);
    const Helper::Posting posting(c);
    *request = c.connection->receive(data[0], uint32_t(size < kMaxMessage ? size : kMaxMessage), 0);
    return *request ? kSuccess : int(c.connection->status().code);
}

Result test(void* request, int* done, int* sizes) {
    *done = 0;
    auto& r = *static_cast<Request*>(request);
    auto& comm = *static_cast<Comm*>(r.connection->owner);
    std::unique_lock<std::mutex> lock(comm.mutex, std::defer_lock);
    if (comm.helper && !lock.try_lock()) return kSuccess;  // it is at work: ask again
    if (!comm.helper) lock.lock();
    return take_result(comm, r, done, sizes);
}

int report_comm(void* comm, StreamReport* out, int most) {
    auto& c = *static_cast<Comm*>(comm);
    const std::lock_guard<std::mutex> guard(c.mutex);
    return report(*c.connection, out, most);
}

int report_open(int index, StreamReport* out, int most, char* peer, size_t room) {
    Plugin& p = plugin();
    const std::lock_guard<std::mutex> guard(p.mutex);
    if (index < 0 || size_t(index) >= p.open.size()) return -1;
    Comm& c = **std::next(p.open.begin(), index);
    std::snprintf(peer, room, "%s", c.connection->peer().c_str());
    return report_comm(&c, out, most);
}

Result close_comm(void* comm) {
    {
        const std::lock_guard<std::mutex> guard(plugin().mutex);
        plugin().open.erase(static_cast<Comm*>(comm));
    }
    if (Helper* helper = static_cast<Comm*>(comm)->helper) helper->remove(static_cast<Comm*>(comm));
    delete static_cast<Comm*>(comm);
    return kSuccess;
}

Result close_listener(void* listener) {
    delete static_cast<ListenComm*>(listener);
    return kSuccess;
}

}  // namespace nccl
