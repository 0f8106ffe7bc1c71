#include "net.h"

#include <cstring>

#include "measure.h"

namespace harness {

namespace {

using namespace nccl;

constexpr int kTag = 1;

template <typename Table, int kVersion>
class Adapter : public Net {
  public:
    explicit Adapter(const void* table) : t_(*static_cast<const Table*>(table)) {}

    int init(Logger logger) override {
        if constexpr (kVersion >= 11) {
            int traffic_class = -1;
            return t_.init(&context_, 1, &traffic_class, logger, profile);
        } else if constexpr (kVersion >= 10) {
            return t_.init(logger, profile);
        } else {
            return t_.init(logger);
        }
    }

    int facts(int dev, Facts* out) override {
        typename Table::Version::Properties p;
        std::memset(&p, 0xff, sizeof p);  // a plugin must write every member
        *out = {};
        if (const int r = t_.devices(&out->devices); r != kSuccess || out->devices == 0) return r;
        if (const int r = t_.getProperties(dev, &p); r != kSuccess) return r;
        std::strncpy(out->name, p.name, sizeof out->name - 1);
        out->speed = p.speed;
        out->maxComms = p.maxComms;
        out->maxRecvs = p.maxRecvs;
        out->ptrSupport = p.ptrSupport;
        if constexpr (kVersion >= 9) {
            out->maxP2pBytes = p.maxP2pBytes;
            if (p.vProps.ndevs != 1 || p.vProps.devs[0] != dev) return kInternalError;
        }
        return kSuccess;
    }

    int listen(int dev, void* handle, void** comm) override {
        if constexpr (kVersion >= 11)
            return t_.listen(context_, dev, handle, comm);
        else
            return t_.listen(dev, handle, comm);
    }

    int connect(int dev, void* handle, void** comm) override {
        void* device = nullptr;
        int traffic_class = -1;
        if constexpr (kVersion >= 11)
            return t_.connect(context_, dev, handle, comm, &device);
        else if constexpr (kVersion >= 10)
            return t_.connect(dev, &traffic_class, handle, comm, &device);
        else if constexpr (kVersion >= 7)
            return t_.connect(dev, handle, comm, &device);
        else
            return t_.connect(dev, handle, comm);
    }

    int accept(void* listener, void** comm) override {
        void* device = nullptr;
        if constexpr (kVersion >= 7)
            return t_.accept(listener, comm, &device);
        else
            return t_.accept(listener, comm);
    }

    int register_memory(void* comm, void* data, size_t size, void** mhandle) override {
        if constexpr (kVersion >= 8)
            return t_.regMr(comm, data, size, kPointerHost, mhandle);
        else
            return t_.regMr(comm, data, int(size), kPointerHost, mhandle);
    }

    int send(void* comm, void* data, size_t size, void* mhandle, void** request) override {
        if constexpr (kVersion >= 10)
            return t_.isend(comm, data, size, kTag, mhandle, nullptr, request);
        else if constexpr (kVersion >= 9)
            return t_.isend(comm, data, size, kTag, mhandle, request);
        else
            return t_.isend(comm, data, int(size), kTag, mhandle, request);
    }

    int receive(void* comm, void* data, size_t size, void* mhandle, void** request) override {
        int tag = kTag;
        if constexpr (kVersion >= 10) {
            void* handle = nullptr;
            return t_.irecv(comm, 1, &data, &size, &tag, &mhandle, &handle, request);
        } else if constexpr (kVersion >= 9) {
            return t_.irecv(comm, 1, &data, &size, &tag, &mhandle, request);
        } else {
            int small = int(size);
            return t_.irecv(comm, 1, &data, &small, &tag, &mhandle, request);
        }
    }

    int test(void* request, int* done, int* size) override { return t_.test(request, done, size); }
    bool exact() const override { return false; }
    void rest(void*, int idle) override { harness::rest(idle); }
    int close_send(void* comm) override { return t_.closeSend(comm); }
    int close_receive(void* comm) override { return t_.closeRecv(comm); }
    int close_listener(void* comm) override { return t_.closeListen(comm); }
    int finish() override {
        if constexpr (kVersion >= 11) return t_.finalize(context_);
        return kSuccess;
    }

  private:
    static Result profile(void**, int, void*, int64_t, void*) { return kSuccess; }

    const Table& t_;
    void* context_ = nullptr;
};

}  // namespace

std::unique_ptr<Net> adapt(const void* table, int version) {
    switch (version) {
        case 6: return std::make_unique<Adapter<NetV6, 6>>(table);
        case 7: return std::make_unique<Adapter<NetV7, 7>>(table);
        case 8: return std::make_unique<Adapter<NetV8, 8>>(table);
        case 9: return std::make_unique<Adapter<NetV9, 9>>(table);
        case 10: return std::make_unique<Adapter<NetV10, 10>>(table);
        case 11: return std::make_unique<Adapter<NetV11, 11>>(table);
        case 12: return std::make_unique<Adapter<NetV12, 12>>(table);
        default: return nullptr;
    }
}

}  // namespace harness
