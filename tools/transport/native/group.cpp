// Messages between two ranks through the C interface of collectives/group.h, as the torch backend uses it.

#include <dlfcn.h>

#include <cstdio>

#include "collectives/group.h"
#include "measure.h"
#include "net.h"

namespace harness {

namespace {

constexpr int64_t kPatience = 20'000'000'000;  // ns

struct Operation {
    uint64_t number;
    size_t size;
    bool ended;
    int code;
};

class Face : public Group {
  public:
    explicit Face(void* library) : library_(library) {}

    bool open(int rank, void* handle) override {
        if (!find("bagua_net_open", &open_) || !find("bagua_net_join", &join_) || !find("bagua_net_close", &close_) ||
            !find("bagua_net_start", &start_) || !find("bagua_net_wait", &wait_))
            return false;
        char error[500] = "";
        rank_ = rank;
        group_ = open_(rank, 2, handle, error, sizeof error);
        if (!group_) std::fprintf(stderr, "%s\n", error);
        return group_ != nullptr;
    }

    void* join(const void* handles) override { return join_(group_, handles, kPatience) == 0 ? group_ : nullptr; }
    void close() override { close_(group_); }

    int register_memory(void*, void*, size_t, void** mhandle) override {
        *mhandle = nullptr;
        return 0;
    }
    int send(void*, void* data, size_t size, void*, void** request) override { return start(data, size, 1, request); }
    int receive(void*, void* data, size_t size, void*, void** request) override {
        return start(data, size, 0, request);
    }
    int test(void* request, int* done, int* size) override {
        auto* o = static_cast<Operation*>(request);
        const int code = wait(o, 0);
        *done = o->ended;
        if (size) *size = int(o->size);
        if (o->ended) delete o;
        return code;
    }
    bool exact() const override { return true; }
    void rest(void* request, int idle) override {
        if (idle != 0 && request)
            wait(static_cast<Operation*>(request), kMostWait);
        else
            harness::rest(idle);
    }

  private:
    static constexpr int64_t kMostWait = 100'000'000;  // ns: the caller has a time-out of its own

    template <typename Function>
    bool find(const char* name, Function* out) {
        *out = reinterpret_cast<Function>(dlsym(library_, name));
        return *out != nullptr;
    }
    int start(void* data, size_t size, int sending, void** request) {
        const uint64_t number = start_(group_, 1 - rank_, sending, data, size, 0);
        *request = new Operation{number, size, false, 0};
        return 0;
    }
    int wait(Operation* o, int64_t nanoseconds) {
        int peer;
        if (!o->ended) o->ended = wait_(group_, o->number, nanoseconds, &o->code, &peer) != 0;
        return o->ended ? o->code : 0;
    }

    void* library_;
    void* group_ = nullptr;
    int rank_ = 0;
    decltype(&bagua_net_open) open_ = nullptr;
    decltype(&bagua_net_join) join_ = nullptr;
    decltype(&bagua_net_close) close_ = nullptr;
    decltype(&bagua_net_start) start_ = nullptr;
    decltype(&bagua_net_wait) wait_ = nullptr;
};

}  // namespace

std::unique_ptr<Group> adapt_group(void* library) { return std::make_unique<Face>(library); }

}  // namespace harness
