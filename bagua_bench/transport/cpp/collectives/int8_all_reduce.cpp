#include "int8_all_reduce.h"

#include <algorithm>

#include "int8.h"
#include "pipeline.h"

namespace bagua {

namespace {

constexpr size_t kExactBytes = 32 << 10;  // up to which the number of steps matters more than the bytes moved
constexpr size_t kAlign = 64;
constexpr size_t kSent = 4;  // slices under way to a near rank

size_t times(size_t a, size_t b) { return (a + b - 1) / b; }

// Elements that follow one another.
struct Part {
    size_t first, count;

    Part slice(size_t k, size_t size) const {
        const size_t from = std::min(k * size, count);
        return {first + from, std::min(size, count - from)};
    }
};

// What happens to a slice that is sent: it is packed, or is so already, or stands for what all ranks get.
enum class Out { sum, result, packed };
struct Sent {
    Part part;
    size_t place;  // number of it
    Out what;
};
// An incoming slice is added, or replaces what is here.
struct Received {
    Part part;
    size_t place;
    bool adds;
};

// The floats, and the memory where slices of them are packed. Every slice has a place, into which what all ranks get
// arrives. Before that a sum may be packed there: by the time the result comes, the next rank has long had it.
struct Packer {
    Mesh& mesh;
    unsigned char* data;
    Elements e;
    size_t slice, place;  // elements, and bytes that they take when packed
    size_t ahead;  // slices that may be on their way here
    unsigned char *arriving, *places;
    size_t sent = 0;  // bytes

    // `block`: elements of the largest one.
    Packer(Mesh& m, void* d, Elements kind, size_t block, size_t blocks, size_t most_ahead)
        : mesh(m), data(static_cast<unsigned char*>(d)), e(kind), slice(slice_size(block)), ahead(most_ahead) {
        place = times(packed_size(slice), kAlign) * kAlign;
        arriving = m.scratch((ahead + blocks * slices(block)) * place);
        places = arriving + ahead * place;
    }
    size_t slices(size_t count) const { return times(count, slice); }
    unsigned char* floats(Part part) const { return data + part.first * size_of(e.type); }

    template <class Outgoing, class Incoming>
    Status run(Pipeline& p, Outgoing outgoing, Incoming incoming) {
        size_t next = 0;
        if (p.sent_ahead == Pipeline::kSends) p.sent_ahead = kSent;  // packing takes time: the first ones should go
        p.outgoing = [&](size_t i) {
            const Sent out = outgoing(i);
            unsigned char* at = places + out.place * place;
            if (i == next) {  // else it is asked for again, because there was no room to send it
                ++next;
                sent += packed_size(out.part.count);
                if (out.what != Out::packed) pack(at, floats(out.part), out.part.count, e.type);
                if (out.what == Out::result) unpack(floats(out.part), at, out.part.count, e.type);
            }
            return Slice{at, packed_size(out.part.count)};
        };
        p.incoming = [&](size_t i, size_t slot) {
            const Received in = incoming(i);
            return Slice{in.adds ? arriving + slot * place : places + in.place * place, packed_size(in.part.count)};
        };
        p.arrived = [&](size_t i, const Slice& s) {
            const Received in = incoming(i);
            (in.adds ? add_packed : unpack)(floats(in.part), s.data, in.part.count, e.type);
        };
        return p.run(mesh);
    }
};

// Block b of n.
Part block_of(size_t count, int b, int n) {
    const size_t first = count * size_t(b) / size_t(n);
    return {first, count * size_t(b + 1) / size_t(n) - first};
}

Status along_a_ring(Mesh& mesh, void* data, size_t count, Elements e, size_t* sent) {
    const int n = mesh.size, seat = mesh.line.of(mesh.rank);
    const size_t largest = times(count, size_t(n));
    Pipeline p(mesh, mesh.line.at(seat - 1), mesh.line.at(seat + 1));
    Packer packer(mesh, data, e, largest, size_t(n), p.ahead);
    const size_t each = packer.slices(largest), adding = size_t(n - 1) * each;
    // In which slice, and where, step i / each has the block of the rank so many seats back.
    const auto at = [&](size_t i, int back) {
        const int block = mesh.line.at(seat - back - int(i / each));
        return Sent{block_of(count, block, n).slice(i % each, packer.slice), size_t(block) * each + i % each, Out::sum};
    };
    p.receives = p.sends = 2 * adding;
    p.needs = [&](size_t i) { return i < each ? 0 : i - each + 1; };
    const auto outgoing = [&](size_t i) {
        Sent out = at(i, 0);
        out.what = i < adding ? Out::sum : i < adding + each ? Out::result : Out::packed;
        return out;
    };
    const auto incoming = [&](size_t i) {
        const Sent in = at(i, 1);
        return Received{in.part, in.place, i < adding};
    };
    const Status status = packer.run(p, outgoing, incoming);
    *sent = packer.sent;
    return status;
}

// Recursive halving and doubling, as in algorithms.cpp. Blocks lie in the order in which halves are taken: the lowest
// bit of a seat says which half of all, the next one which half of that.
struct Halving {
    Mesh& mesh;
    size_t count;
    int seat = mesh.pairs.of(mesh.rank);

    int partner(int distance) const { return mesh.pairs.at(seat ^ distance); }

    // The half of the seat whose bit is set or not. The same elements share a scale in all of them.
    static Part half(Part part, bool upper) {
        const size_t lower = part.count / 2 / kShare * kShare;
        return upper ? Part{part.first + lower, part.count - lower} : Part{part.first, lower};
    }
    // The block at a place of that order.
    Part block(int place) const {
        Part part{0, count};
        for (int distance = mesh.size / 2; distance > 0; distance /= 2) part = half(part, place & distance);
        return part;
    }
    size_t largest() const {
        size_t found = 0;
        for (int place = 0; place < mesh.size; ++place) found = std::max(found, block(place).count);
        return found;
    }
    int place() const {
        int found = 0;
        for (int distance = 1; distance < mesh.size; distance *= 2) found = 2 * found + ((seat & distance) != 0);
        return found;
    }

    Status run(void* data, Elements e, size_t* sent) {
        size_t ahead = 0;
        for (int d = 1; d < mesh.size; d *= 2) ahead = std::max(ahead, Pipeline(mesh, partner(d), partner(d)).ahead);
        Packer packer(mesh, data, e, largest(), size_t(mesh.size), ahead);
        Status status;
        Part own{0, count};
        for (int d = 1; d < mesh.size && status; d *= 2) {
            const Part theirs = half(own, !(seat & d));
            own = half(own, seat & d);
            status = add(packer, partner(d), theirs, own);
        }
        int first = place();
        for (int d = mesh.size / 2, blocks = 1; d > 0 && status; d /= 2, blocks *= 2) {
            status = pass_on(packer, partner(d), first, first ^ blocks, blocks);
            first &= ~blocks;
        }
        *sent = packer.sent;
        return status;
    }

    Status add(Packer& packer, int peer, Part theirs, Part own) {
        Pipeline p(mesh, peer, peer);
        p.sends = packer.slices(theirs.count);
        p.receives = packer.slices(own.count);
        p.needs = [](size_t) { return 0; };
        return packer.run(
            p, [&](size_t i) { return Sent{theirs.slice(i, packer.slice), i, Out::sum}; },
            [&](size_t i) { return Received{own.slice(i, packer.slice), 0, true}; });
    }

    // So many blocks from the place `first` on for those from `other` on.
    Status pass_on(Packer& packer, int peer, int first, int other, int blocks) {
        const size_t each = packer.slices(largest());
        const auto slice = [&](int from, size_t i) { return block(from + int(i / each)).slice(i % each, packer.slice); };
        Pipeline p(mesh, peer, peer);
        p.sends = p.receives = size_t(blocks) * each;
        p.needs = [](size_t) { return 0; };
        const Out what = blocks == 1 ? Out::result : Out::packed;
        return packer.run(
            p, [&](size_t i) { return Sent{slice(first, i), size_t(first) * each + i, what}; },
            [&](size_t i) { return Received{slice(other, i), size_t(other) * each + i, false}; });
    }
};

}  // namespace

bool suits_int8(int ranks, size_t count, Elements e) {
    const bool adds = e.op == Op::sum || e.op == Op::average;
    const bool large = count * size_of(e.type) > kExactBytes && count >= size_t(ranks);
    return ranks > 1 && adds && packable(e.type) && large;
}

Status all_reduce_int8(Mesh& mesh, void* data, size_t count, Elements e, size_t* sent) {
    const Status status =
        mesh.halves() ? Halving{mesh, count}.run(data, e, sent) : along_a_ring(mesh, data, count, e, sent);
    if (status && e.op == Op::average) divide(data, count, e.type, mesh.size);
    return status;
}

}  // namespace bagua
