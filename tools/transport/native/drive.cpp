#include "drive.h"

#include <dlfcn.h>
#include <sys/prctl.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

#include "measure.h"
#include "net.h"

namespace {

using namespace harness;

struct Session {
    void* library = nullptr;
    std::unique_ptr<Net> net;  // of a plugin ...
    std::unique_ptr<Group> group;  // ... or the other one
    Mover& mover() { return net ? static_cast<Mover&>(*net) : *group; }
};

bool verbose = false;

void log_line(int level, unsigned long, const char*, int, const char* format, ...) {
    if (!verbose || level > 3) return;
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
}

// The session, once its plugin is ready; null if it does not get ready.
Session* begun(std::unique_ptr<Session> session) {
    return session->net->init(log_line) == 0 ? session.release() : nullptr;
}

Net& net_of(void* h) { return *static_cast<Session*>(h)->net; }
Mover& mover_of(void* h) { return static_cast<Session*>(h)->mover(); }

struct Slot {
    std::vector<unsigned char> buffer;
    void* request = nullptr;
    void* mhandle = nullptr;
    size_t size = 0;
    double since = 0;
};

void fill(const Plan& plan, uint64_t message, Slot& slot) {
    contents(plan, message, slot.size, [&](size_t at, size_t n, uint64_t word) {
        std::memcpy(&slot.buffer[at], &word, n);
        return true;
    });
}

bool agrees(const Plan& plan, uint64_t message, const Slot& slot) {
    return contents(plan, message, slot.size, [&](size_t at, size_t n, uint64_t word) {
        return std::memcmp(&slot.buffer[at], &word, n) == 0;
    });
}

// Post message number `message`; false if the plugin says "later".
bool post(Mover& net, void* comm, bool sending, const Plan& plan, uint64_t message, Slot& slot, int* result) {
    slot.size = size_of(plan, message);
    if (plan.check && sending) fill(plan, message, slot);
    slot.since = seconds_now();
    const size_t room = net.exact() ? slot.size : plan.size;
    *result = sending ? net.send(comm, slot.buffer.data(), slot.size, slot.mhandle, &slot.request)
                      : net.receive(comm, slot.buffer.data(), room, slot.mhandle, &slot.request);
    return *result == 0 && slot.request;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* harness_open(const char* path, const char* symbol, int version, int loud) {
    prctl(PR_SET_TIMERSLACK, 1000);  // a sleep of 20 us should not take 70
    verbose = loud;
    auto session = std::make_unique<Session>();
    session->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const void* table = session->library ? dlsym(session->library, symbol) : nullptr;
    if (table) session->net = adapt(table, version);
    if (!session->net) {
        std::fprintf(stderr, "%s\n", table ? "version unknown to the harness" : dlerror());
        return nullptr;
    }
    return begun(std::move(session));
}

// With a table that something else has loaded.
EXPORT void* harness_adopt(const void* table, int version, int loud) {
    prctl(PR_SET_TIMERSLACK, 1000);
    verbose = loud;
    auto session = std::make_unique<Session>();
    session->net = adapt(table, version);
    return session->net ? begun(std::move(session)) : nullptr;
}

EXPORT void* harness_open_group(const char* path, int rank, void* handle) {
    auto session = std::make_unique<Session>();
    session->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (session->library) session->group = adapt_group(session->library);
    return session->group && session->group->open(rank, handle) ? session.release() : nullptr;
}

EXPORT void* harness_join(void* h, const void* handles) { return static_cast<Session*>(h)->group->join(handles); }

EXPORT int harness_close(void* h) {
    auto* session = static_cast<Session*>(h);
    int result = 0;
    if (session->group) session->group->close();
    if (session->net) result = session->net->finish();
    if (session->library) dlclose(session->library);
    delete session;
    return result;
}

EXPORT int harness_facts(void* h, void* facts) { return net_of(h).facts(0, static_cast<Facts*>(facts)); }
EXPORT int harness_listen(void* h, void* handle, void** comm) { return net_of(h).listen(0, handle, comm); }
EXPORT int harness_connect(void* h, void* handle, void** comm) { return net_of(h).connect(0, handle, comm); }
EXPORT int harness_accept(void* h, void* listener, void** comm) { return net_of(h).accept(listener, comm); }
EXPORT int harness_close_send(void* h, void* comm) { return net_of(h).close_send(comm); }
EXPORT int harness_close_receive(void* h, void* comm) { return net_of(h).close_receive(comm); }
EXPORT int harness_close_listener(void* h, void* comm) { return net_of(h).close_listener(comm); }

// A window of messages; the oldest is tested first, as NCCL does, or with `check` all in turn.
EXPORT void harness_stream(void* h, void* comm, int sending, const Plan* plan, Outcome* out) {
    Mover& net = mover_of(h);
    *out = {};
    std::vector<Slot> slots(size_t(plan->window));
    for (auto& s : slots) {
        s.buffer.assign(plan->size + 8, sending ? 1 : 0);
        net.register_memory(comm, s.buffer.data(), s.buffer.size(), &s.mhandle);
    }
    Meter meter(*plan);
    uint64_t posted = 0, finished = 0;
    while (finished < plan->count && out->result == 0) {
        bool moved = false;
        while (posted < plan->count && posted - finished < slots.size() &&
               post(net, comm, sending, *plan, posted, slots[posted % slots.size()], &out->result))
            ++posted, moved = true;
        const uint64_t last = plan->check ? posted : finished + (posted > finished);
        for (uint64_t k = finished; k < last && out->result == 0; ++k) {
            Slot& s = slots[k % slots.size()];
            int done = 0, size = -1;
            if (!s.request) continue;
            out->result = net.test(s.request, &done, &size);
            if (!done) continue;
            s.request = nullptr;
            moved = true;
            if (out->result == 0 && size_t(size) != s.size) out->result = -2;  // a failed one of a group is done, too
            if (plan->check && !sending && out->result == 0 && !agrees(*plan, k, s)) out->result = -3;
            meter.done(s.size, s.since);
        }
        while (finished < posted && !slots[finished % slots.size()].request) ++finished;
        if (!moved) {
            if (meter.quiet() > plan->patience) out->result = -1;
            net.rest(posted > finished ? slots[finished % slots.size()].request : nullptr, plan->idle);
        }
    }
    meter.report(out);
}

namespace {

int complete(Mover& net, void* comm, bool sending, const Plan& plan, Slot& slot, bool wait) {
    int result = 0, done = 0;
    if (!slot.request)
        while (!post(net, comm, sending, plan, 0, slot, &result))
            if (result != 0) return result;
    if (!wait) return 0;
    for (unsigned polls = 1; !done; ++polls) {
        if ((result = net.test(slot.request, &done, nullptr)) != 0) return result;
        if (!done) net.rest(slot.request, plan.idle);
        if (polls % 4096 == 0 && seconds_now() - slot.since > plan.patience) return -1;
    }
    slot.request = nullptr;
    return 0;
}

}  // namespace

EXPORT void harness_pingpong(void* h, void* send, void* receive, int first, const Plan* plan, Outcome* out) {
    Mover& net = mover_of(h);
    *out = {};
    Slot ping, pong;
    ping.buffer.assign(plan->size + 8, 1);
    pong.buffer.assign(plan->size + 8, 0);
    net.register_memory(send, ping.buffer.data(), ping.buffer.size(), &ping.mhandle);
    net.register_memory(receive, pong.buffer.data(), pong.buffer.size(), &pong.mhandle);
    Meter meter(*plan);
    for (uint64_t i = 0; i < plan->count && out->result == 0; ++i) {
        const double since = seconds_now();
        out->result = complete(net, receive, false, *plan, pong, false);
        if (first && out->result == 0) out->result = complete(net, send, true, *plan, ping, true);
        if (out->result == 0) out->result = complete(net, receive, false, *plan, pong, true);
        if (!first && out->result == 0) out->result = complete(net, send, true, *plan, ping, true);
        meter.done(2 * plan->size, since);
    }
    meter.report(out);
    out->median /= 2;
    out->p99 /= 2;
}
