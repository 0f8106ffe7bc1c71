#include "group.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <utility>

#include "../core/secret.h"
#include "../core/settings.h"
#include "../core/tuning.h"
#include "algorithms.h"
#include "int8.h"
#include "int8_all_reduce.h"
#include "messages.h"
#include "switchboard.h"
#include "tree.h"

namespace {

using namespace bagua;

struct Group {
    Settings settings;
    std::vector<Interface> interfaces;
    std::unique_ptr<Listener> listener;
    Mesh collectives, point_to_point;
    std::unique_ptr<Switchboard> switchboard;  // until join() the listener has nobody
    std::unique_ptr<Messages> messages;
    std::atomic<bool> aborted{false};
    bool int8 = false;  // large sums of floats are lossy
    std::atomic<uint64_t> lost[3]{};  // such operations, bytes of their floats, and bytes sent for them

    Group(int rank, int size)
        : collectives(rank, size, [this](int peer) { switchboard->want(0, peer); }, true),
          point_to_point(rank, size, [this](int peer) { switchboard->want(1, peer); }, false) {}
    Mesh& lane(int number) { return number ? point_to_point : collectives; }
};

Group& group_of(void* group) { return *static_cast<Group*>(group); }

void copy_text(const std::string& text, char* out, size_t room) { std::snprintf(out, room, "%s", text.c_str()); }

// Of the calls of this thread: others may fail meanwhile.
thread_local std::string last_error;

int finish(const Status& status) {
    if (!status) last_error = status.text;
    return int(status.code);
}

// How many streams a connection may have, so that all connections together take three quarters of the descriptors that
// this process has left. A larger group opens connections when they are needed, and only some of them.
int most_streams(const Settings& settings, int size) {
    rlimit limit{};
    std::error_code none;
    const std::filesystem::directory_iterator open("/proc/self/fd", none);
    if (none || getrlimit(RLIMIT_NOFILE, &limit) != 0) return settings.most_streams;
    const double left = std::max(0.0, double(limit.rlim_cur) - double(std::distance(begin(open), end(open))));
    const int others = std::max(1, std::min(size, std::max(settings.eager, Settings{}.eager)) - 1);
    const double fair = 0.75 * left / (2 * others) - kOthers;
    return int(std::clamp(fair, double(Tuning::kFewestStreams), double(kMaxStreams)));
}

bool is_rank(const Group& g, int rank) { return rank >= 0 && rank < g.collectives.size; }

// Whether these can be reduced, to this root.
bool sane(const Group& g, int root, int type, int op) {
    return is_rank(g, root) && type >= 0 && type <= int(Type::boolean) && op >= 0 && op <= int(Op::bxor) &&
           allowed(Type(type), Op(op));
}

Status reason(const std::exception& error) {
    const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    return {Code::system, memory ? "out of memory" : error.what()};
}

// Run an operation of the collectives' mesh, if its arguments make sense. What it throws is an error, too, after which
// the group is of no more use.
template <class Operation>
int run(Group& g, bool sane, int64_t timeout_ns, Operation operation) {
    if (!sane) return finish({Code::argument, "an argument makes no sense in this group"});
    try {
        g.collectives.begin(timeout_ns);
        return finish(operation(g.collectives));
    } catch (const std::exception& error) {
        const Status status = reason(error);
        g.collectives.fail(status.text);
        return finish(status);
    }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* bagua_net_open(int rank, int size, void* handle, char* error, size_t room) {
    auto g = std::make_unique<Group>(rank, size);
    Status status = read_settings(&g->settings, &g->interfaces);
    g->settings.most_streams = most_streams(g->settings, size);
    g->settings.lent_from = Tuning::kMinLentInGroupBytes;
    if (status) status = Listener::open(g->settings, g->interfaces, &g->listener);
    if (!status) {
        copy_text(status.text, error, room);
        return nullptr;
    }
    std::memset(handle, 0, 128);
    std::memcpy(handle, &g->listener->handle(), sizeof(Handle));
    return g.release();
}

EXPORT int bagua_net_join(void* group, const void* handles, int64_t timeout_ns) {
    Group& g = group_of(group);
    std::vector<Handle> all(size_t(g.collectives.size));
    for (size_t i = 0; i < all.size(); ++i)
        std::memcpy(&all[i], static_cast<const char*>(handles) + 128 * i, sizeof(Handle));
    g.settings.connect_timeout = timeout_ns;
    if (!g.settings.timeout_given) g.settings.timeout = timeout_ns;
    g.listener->set_timeouts(g.settings.connect_timeout, g.settings.timeout);
    Status status;
    try {
        const Switchboard::Lanes lanes{&g.collectives, &g.point_to_point};
        auto& board = g.switchboard;
        board = std::make_unique<Switchboard>(g.settings, g.interfaces, std::move(g.listener), std::move(all), lanes);
        if (g.collectives.size <= g.settings.eager) status = board->open_all(g.aborted);
        if (status) g.messages = std::make_unique<Messages>(g.point_to_point);
    } catch (const std::exception& error) {
        status = reason(error);
    }
    if (!status) g.switchboard.reset();  // nobody must get a connection to a rank that is not here
    return finish(status);
}

EXPORT int bagua_net_arrange(void* group, const int* line, const int* pairs, int ring, const int* tree) {
    Mesh& mesh = group_of(group).collectives;
    for (const int* order : {line, pairs}) {
        std::vector<int> sorted(order, order + mesh.size);
        std::sort(sorted.begin(), sorted.end());
        for (int rank = 0; rank < mesh.size; ++rank)
            if (sorted[size_t(rank)] != rank) return int(Code::argument);
    }
    if (tree && !is_tree({tree, tree + mesh.size})) return int(Code::argument);
    mesh.line = Seats({line, line + mesh.size});
    mesh.pairs = Seats({pairs, pairs + mesh.size});
    mesh.ring = ring != 0;
    mesh.tree = tree ? std::vector<int>(tree, tree + mesh.size) : std::vector<int>{};
    return 0;
}

EXPORT void bagua_net_agree(void* group, char* text, size_t room) {
    const Settings& settings = group_of(group).settings;
    copy_text("BAGUA_NET_EAGER=" + std::to_string(settings.eager) + "\nBAGUA_NET_SECRET_FILE=" +
                  (settings.secret.empty() ? "none" : "a secret with the mark " + mark_of(settings.secret)) +
                  "\nbagua_net's protocol=" + std::to_string(kVersion),
              text, room);
}

EXPORT void bagua_net_use_int8(void* group) { group_of(group).int8 = true; }

EXPORT size_t bagua_net_int8_bytes(int ranks, size_t count, int type, int op) {
    const Elements e{Type(type), Op(op)};
    return suits_int8(ranks, count, e) ? packed_size(count) : count * size_of(e.type);
}

EXPORT void bagua_net_lossy(void* group, uint64_t* out) {
    for (const auto& number : group_of(group).lost) *out++ = number;
}

EXPORT void bagua_net_describe(void* group, char* text, size_t room) {
    const Group& g = group_of(group);
    std::string names;
    for (const auto& i : g.interfaces) names += (names.empty() ? "" : ",") + i.name;
    const bool eager = g.collectives.size <= g.settings.eager;
    const std::string streams = g.settings.streams == Settings::kAutomatic
                                    ? std::to_string(Tuning::kFewestStreams) + " or more"
                                    : std::to_string(g.settings.streams);
    copy_text(streams + " streams to every rank" +
                  (eager ? "" : " that it talks with") + " over " + names + (g.settings.crc ? ", checksums on" : "") +
                  (g.int8 ? ", large sums of floats as int8 (lossy)" : ""),
              text, room);
}

EXPORT void bagua_net_close(void* group) { delete static_cast<Group*>(group); }

EXPORT void bagua_net_abort(void* group) {
    Group& g = group_of(group);
    g.aborted = true;
    if (g.messages) g.messages->abort("aborted");
    g.collectives.abort();
}

EXPORT void bagua_net_error(char* error, size_t room) { copy_text(last_error, error, room); }

EXPORT int bagua_net_all_reduce(void* group, void* data, size_t count, int type, int op, int64_t timeout_ns) {
    Group& g = group_of(group);
    return run(g, sane(g, 0, type, op), timeout_ns, [&](Mesh& mesh) {
        const Elements e{Type(type), Op(op)};
        if (!g.int8 || !suits_int8(mesh.size, count, e)) return all_reduce(mesh, data, count, e);
        size_t sent = 0;
        Status status = all_reduce_int8(mesh, data, count, e, &sent);
        g.lost[0] += 1, g.lost[1] += count * size_of(e.type), g.lost[2] += sent;
        return status;
    });
}

EXPORT int bagua_net_reduce(void* group, void* data, size_t count, int type, int op, int root, int64_t timeout_ns) {
    Group& g = group_of(group);
    return run(g, sane(g, root, type, op), timeout_ns,
               [&](Mesh& mesh) { return reduce(mesh, data, count, {Type(type), Op(op)}, root); });
}

EXPORT int bagua_net_broadcast(void* group, void* data, size_t bytes, int root, int64_t timeout_ns) {
    Group& g = group_of(group);
    return run(g, is_rank(g, root), timeout_ns, [&](Mesh& mesh) { return broadcast(mesh, data, bytes, root); });
}

EXPORT int bagua_net_all_gather(void* group, void* const* blocks, size_t bytes, int64_t timeout_ns) {
    Group& g = group_of(group);
    return run(g, true, timeout_ns, [&](Mesh& mesh) {
        return all_gather(mesh, std::vector<void*>(blocks, blocks + mesh.size), bytes);
    });
}

EXPORT int bagua_net_reduce_scatter(void* group, void* data, size_t count, int type, int op, int64_t timeout_ns) {
    Group& g = group_of(group);
    return run(g, sane(g, 0, type, op), timeout_ns,
               [&](Mesh& mesh) { return reduce_scatter(mesh, data, count, {Type(type), Op(op)}); });
}

EXPORT int bagua_net_move(void* group, const Piece* pieces, size_t count, int64_t timeout_ns) {
    Group& g = group_of(group);
    std::vector<Transfer> transfers, own;
    bool sane = true;
    for (size_t i = 0; i < count; ++i) {
        const Piece& p = pieces[i];
        sane &= is_rank(g, p.peer);
        (p.peer == g.collectives.rank ? own : transfers).push_back({p.peer, p.sending != 0, p.data, size_t(p.size)});
    }
    std::vector<OwnCopy> copies;
    if (own.size() == 2 && own[0].sending != own[1].sending && own[0].size == own[1].size) {
        const auto [from, to] = own[0].sending ? std::pair(own[0], own[1]) : std::pair(own[1], own[0]);
        copies.push_back({static_cast<unsigned char*>(from.data), static_cast<unsigned char*>(to.data), from.size});
    }
    sane &= own.empty() || !copies.empty();
    return run(g, sane, timeout_ns, [&](Mesh& mesh) { return mesh.move(transfers, copies); });
}

EXPORT uint64_t bagua_net_start(void* group, int peer, int sending, void* data, size_t size, uint32_t tag) {
    Group& g = group_of(group);
    const bool any = peer == Messages::kAny && !sending && g.collectives.size > 1;
    Status status{Code::argument, "not another rank of this group"};
    try {
        if (any || (is_rank(g, peer) && peer != g.collectives.rank))
            return g.messages->start(peer, sending != 0, data, size, tag);
    } catch (const std::exception& error) {
        status = reason(error);
        g.messages->abort(status.text);
    }
    finish(status);
    return 0;
}

EXPORT int bagua_net_wait(void* group, uint64_t operation, int64_t timeout_ns, int* code, int* peer) {
    Group& g = group_of(group);
    try {
        if (!g.messages->wait(operation, timeout_ns)) return 0;
        *code = finish(g.messages->result(operation, *peer));
    } catch (const std::exception& error) {
        g.messages->abort(reason(error).text);
        *code = finish(reason(error));
    }
    return 1;
}

EXPORT int bagua_net_report(void* group, int peer, int lane, StreamReport* out, int most) {
    int count = 0;
    group_of(group).lane(lane).look(peer, [&](Connection* connection) {
        if (connection) count = report(*connection, out, most);
    });
    return count;
}
