#include "algorithms.h"

#include <algorithm>
#include <cstring>

#include "pipeline.h"
#include "tree.h"

namespace bagua {

namespace {

constexpr size_t kAlign = 64;  // the kernel copies faster to aligned places
constexpr size_t kFewSteps = 32 << 10;  // bytes up to which the number of steps matters more than the bytes moved
constexpr size_t kTree = 256 << 10;  // bytes up to which a tree of a broadcast is faster than slices along a chain
constexpr size_t kSeveralSlices = 512 << 10;  // bytes from which on slices follow each other along a tree
constexpr int kFewRanks = 8;  // that can all send to each other at once

// Incoming slice i belongs to the place at(i), where it is combined with what is there or replaces it.
template <class At, class Combines>
void take(Pipeline& p, Mesh& mesh, size_t slice, Elements e, At at, Combines combines) {
    const size_t place = (slice + kAlign - 1) / kAlign * kAlign;
    unsigned char* scratch = mesh.scratch(p.ahead * place);
    p.incoming = [=](size_t i, size_t slot) {
        Slice s = at(i);
        if (combines(i)) s.data = scratch + slot * place;
        return s;
    };
    p.arrived = [=](size_t i, const Slice& s) {
        if (combines(i)) combine(at(i).data, s.data, s.size / size_of(e.type), e.type, e.op);
    };
}

// A ring over blocks cut into slices. Block b is bytes [begin(b), begin(b + 1)) of `data`.
struct Ring {
    Mesh& mesh;
    unsigned char* data;
    size_t bytes, unit;  // unit: bytes of an element
    size_t slice, per_block;  // bytes; number of slices of a block

    Ring(Mesh& m, void* d, size_t total, size_t element) : mesh(m), data(static_cast<unsigned char*>(d)), bytes(total) {
        unit = element;
        const size_t block = (total / unit + size_t(m.size) - 1) / size_t(m.size) * unit;
        slice = slice_size(block) / unit * unit;
        per_block = std::max<size_t>(1, (block + slice - 1) / slice);
    }
    size_t begin(int block) const { return bytes / unit * size_t(block) / size_t(mesh.size) * unit; }
    // Slice k of the block of the rank on this seat.
    Slice at(int seat, size_t k) const {
        const int block = mesh.line.at(seat);
        const size_t from = std::min(begin(block) + k * slice, begin(block + 1));
        const size_t to = k + 1 == per_block ? begin(block + 1) : std::min(from + slice, begin(block + 1));
        return {data + from, to - from};
    }

    // In `reducing` steps incoming data is combined with what is here; in the `passing` steps after them it overwrites
    // that. The block that a rank sends first is that of the rank `shift` seats on.
    Status run(int reducing, int passing, int shift, Elements e) {
        const size_t steps = size_t(reducing + passing);
        const auto block = [&](size_t i, int back) {
            return mesh.line.of(mesh.rank) + shift - back - int(i / per_block);
        };
        const int seat = mesh.line.of(mesh.rank);
        Pipeline p(mesh, mesh.line.at(seat - 1), mesh.line.at(seat + 1));
        p.receives = p.sends = steps * per_block;
        p.outgoing = [&](size_t i) { return at(block(i, 0), i % per_block); };
        p.needs = [&](size_t i) { return i < per_block ? 0 : i - per_block + 1; };
        const auto combines = [&](size_t i) { return i / per_block < size_t(reducing); };
        take(p, mesh, slice, e, [&](size_t i) { return at(block(i, 1), i % per_block); }, combines);
        return p.run(mesh);
    }
};

// Recursive doubling; ranks beyond the largest power of two hand their data to a partner first and get it back.
Status in_few_steps(Mesh& mesh, void* data, size_t count, Elements e) {
    const size_t bytes = count * size_of(e.type);
    unsigned char* other = mesh.scratch(bytes);
    int whole = 1;
    while (2 * whole <= mesh.size) whole *= 2;
    const int extra = mesh.size - whole;
    const int seat = mesh.pairs.of(mesh.rank);
    if (seat >= whole) {
        const int partner = mesh.pairs.at(seat - whole);
        if (Status s = mesh.move({{partner, true, data, bytes}}); !s) return s;
        return mesh.move({{partner, false, data, bytes}});
    }
    if (seat < extra) {
        if (Status s = mesh.move({{mesh.pairs.at(seat + whole), false, other, bytes}}); !s) return s;
        combine(data, other, count, e.type, e.op);
    }
    for (int distance = 1; distance < whole; distance *= 2) {
        const int partner = mesh.pairs.at(seat ^ distance);
        const std::vector<Transfer> both = {{partner, false, other, bytes}, {partner, true, data, bytes}};
        if (Status s = mesh.move(both); !s) return s;
        // The lower seat's part goes first on both sides, so that even NaNs come out the same everywhere.
        if (seat & distance) {
            combine(other, data, count, e.type, e.op);
            std::memcpy(data, other, bytes);
        } else {
            combine(data, other, count, e.type, e.op);
        }
    }
    if (seat < extra) return mesh.move({{mesh.pairs.at(seat + whole), true, data, bytes}});
    return {};
}

// Recursive halving and doubling (Rabenseifner): halves of what a rank still has to reduce go to partners at distances
// 1, 2, 4 ..., the results come back the other way round. As many bytes as a ring, but 2 log2(n) steps instead of
// 2 (n - 1), over more connections, and the largest parts go to the nearest seats, which a launcher puts on the same
// server: between two servers of two ranks each, a third fewer bytes. For powers of two only.
struct Halving {
    Mesh& mesh;
    unsigned char* data;
    size_t unit;  // bytes of an element
    Elements e;

    struct Part {
        size_t first, count;  // elements
    };

    // Reduce `all` among the ranks whose seats differ in the bit `distance` or in higher ones.
    Status run(Part all, int distance) {
        if (distance == mesh.size) return {};
        const Part lower{all.first, all.count / 2}, upper{all.first + all.count / 2, all.count - all.count / 2};
        const bool above = mesh.pairs.of(mesh.rank) & distance;
        const Part own = above ? upper : lower, theirs = above ? lower : upper;
        const int partner = mesh.pairs.at(mesh.pairs.of(mesh.rank) ^ distance);
        if (Status s = exchange(partner, theirs, own, true); !s) return s;
        if (Status s = run(own, 2 * distance); !s) return s;
        return exchange(partner, own, theirs, false);
    }

    // Incoming data is combined with what is here, or replaces it.
    Status exchange(int partner, Part sent, Part received, bool combines) {
        const size_t slice = slice_size(std::max(sent.count, received.count) * unit) / unit * unit;
        const auto slices = [&](Part part) { return (part.count * unit + slice - 1) / slice; };
        const auto at = [&](Part part, size_t i) {
            return Slice{data + part.first * unit + i * slice, std::min(slice, part.count * unit - i * slice)};
        };
        Pipeline p(mesh, partner, partner);
        p.sends = slices(sent);
        p.receives = slices(received);
        p.outgoing = [&](size_t i) { return at(sent, i); };
        p.needs = [](size_t) { return 0; };
        take(p, mesh, slice, e, [&](size_t i) { return at(received, i); }, [=](size_t) { return combines; });
        return p.run(mesh);
    }
};

// Blocks of all ranks in log2(n) steps, to ranks at distances 1, 2, 4 ... (Bruck and others, 1997). Sending them to all
// directly takes n - 1 messages, and as many connections.
Status gather_in_few_steps(Mesh& mesh, const std::vector<void*>& blocks, size_t bytes) {
    const int ranks = mesh.size;
    unsigned char* held = mesh.scratch(size_t(ranks) * bytes);  // of the own rank, the next one, ...
    std::memcpy(held, blocks[size_t(mesh.rank)], bytes);
    for (int count = 1; count < ranks; count *= 2) {
        const size_t moved = size_t(std::min(count, ranks - count)) * bytes;
        const int to = (mesh.rank + ranks - count) % ranks, from = (mesh.rank + count) % ranks;
        if (Status s = mesh.move({{from, false, held + size_t(count) * bytes, moved}, {to, true, held, moved}}); !s)
            return s;
    }
    for (int i = 1; i < ranks; ++i)
        std::memcpy(blocks[size_t((mesh.rank + i) % ranks)], held + size_t(i) * bytes, bytes);
    return {};
}

// Slices that run along the ranks, root first (or last).
Pipeline chain(Mesh& mesh, int place, bool forward, size_t slices) {
    const int step = forward ? 1 : mesh.size - 1, seat = mesh.line.of(mesh.rank), last = mesh.size - 1;
    Pipeline p(mesh, place > 0 ? mesh.line.at(seat - step) : -1, place < last ? mesh.line.at(seat + step) : -1);
    p.receives = place > 0 ? slices : 0;
    p.sends = place < last ? slices : 0;
    p.needs = [place](size_t i) { return place > 0 ? i + 1 : 0; };
    return p;
}

// To the root in log2(n) steps: the other way round than below.
Status reduce_along_a_tree(Mesh& mesh, void* data, size_t count, Elements e, int root) {
    const size_t bytes = count * size_of(e.type);
    const int first = mesh.line.of(root), place = (mesh.line.of(mesh.rank) - first + mesh.size) % mesh.size;
    unsigned char* other = mesh.scratch(2 * bytes);
    unsigned char* here = place == 0 ? static_cast<unsigned char*>(data) : other + bytes;
    if (place > 0 && bytes) std::memcpy(here, data, bytes);
    for (int reach = 1; reach < mesh.size; reach *= 2) {
        if (place & reach) return mesh.move({{mesh.line.at(first + place - reach), true, here, bytes}});
        if (place + reach >= mesh.size) continue;
        if (Status s = mesh.move({{mesh.line.at(first + place + reach), false, other, bytes}}); !s) return s;
        combine(here, other, count, e.type, e.op);
    }
    if (e.op == Op::average) divide(data, count, e.type, mesh.size);
    return {};
}

// The root's data in log2(n) steps: every rank that has it passes it on, the farthest first.
Status broadcast_along_a_tree(Mesh& mesh, void* data, size_t bytes, int root) {
    const int first = mesh.line.of(root), place = (mesh.line.of(mesh.rank) - first + mesh.size) % mesh.size;
    int reach = 1;
    while (place == 0 ? reach < mesh.size : !(place & reach)) reach *= 2;
    if (place > 0)
        if (Status s = mesh.move({{mesh.line.at(first + place - reach), false, data, bytes}}); !s) return s;
    for (reach /= 2; reach > 0; reach /= 2)
        if (place + reach < mesh.size)
            if (Status s = mesh.move({{mesh.line.at(first + place + reach), true, data, bytes}}); !s) return s;
    return {};
}

}  // namespace

Status all_reduce(Mesh& mesh, void* data, size_t count, Elements e) {
    const size_t unit = size_of(e.type);
    if (mesh.size > 1 && count > 0) {
        const bool small = count * unit <= kFewSteps || count < size_t(mesh.size);
        Status s;
        if (small)
            s = in_few_steps(mesh, data, count, e);
        else if (!mesh.tree.empty() && count * unit >= kSeveralSlices)
            s = all_reduce_along_the_tree(mesh, data, count, e);
        else if (mesh.halves())
            s = Halving{mesh, static_cast<unsigned char*>(data), unit, e}.run({0, count}, 1);
        else
            s = Ring(mesh, data, count * unit, unit).run(mesh.size - 1, mesh.size - 1, 0, e);
        if (!s) return s;
    }
    if (e.op == Op::average) divide(data, count, e.type, mesh.size);
    return {};
}

Status reduce_scatter(Mesh& mesh, void* data, size_t count, Elements e) {
    const size_t unit = size_of(e.type), own = size_t(mesh.rank) * count * unit;
    if (mesh.size > 1 && count > 0) {
        const size_t total = count * size_t(mesh.size) * unit;
        if (Status s = Ring(mesh, data, total, unit).run(mesh.size - 1, 0, -1, e); !s) return s;
    }
    if (e.op == Op::average) divide(static_cast<unsigned char*>(data) + own, count, e.type, mesh.size);
    return {};
}

Status all_gather(Mesh& mesh, const std::vector<void*>& blocks, size_t bytes) {
    if (bytes == 0 || mesh.size == 1) return {};
    if (bytes <= kFewSteps && mesh.size > kFewRanks) return gather_in_few_steps(mesh, blocks, bytes);
    if (bytes <= kFewSteps) {
        std::vector<Transfer> all;
        for (int r = 0; r < mesh.size; ++r) {
            if (r == mesh.rank) continue;
            all.push_back({r, false, blocks[size_t(r)], bytes});
            all.push_back({r, true, blocks[size_t(mesh.rank)], bytes});
        }
        return mesh.move(all);
    }
    const size_t slice = ring_slice_size(bytes), slices = (bytes + slice - 1) / slice;
    const auto at = [&](size_t i, int back) {
        const int block = mesh.line.at(mesh.line.of(mesh.rank) - back - int(i / slices));
        const size_t from = i % slices * slice;
        return Slice{static_cast<unsigned char*>(blocks[size_t(block)]) + from, std::min(slice, bytes - from)};
    };
    const int seat = mesh.line.of(mesh.rank);
    Pipeline p(mesh, mesh.line.at(seat - 1), mesh.line.at(seat + 1));
    p.receives = p.sends = size_t(mesh.size - 1) * slices;
    p.needs = [&](size_t i) { return i < slices ? 0 : i - slices + 1; };
    p.outgoing = [&](size_t i) { return at(i, 0); };
    p.incoming = [&](size_t i, size_t) { return at(i, 1); };
    p.arrived = [](size_t, const Slice&) {};
    return p.run(mesh);
}

Status broadcast(Mesh& mesh, void* data, size_t bytes, int root) {
    if (mesh.size == 2 || bytes <= kTree) return broadcast_along_a_tree(mesh, data, bytes, root);
    const size_t slice = chain_slice_size(bytes, mesh.size), slices = (bytes + slice - 1) / slice;
    const auto at = [&](size_t i) {
        return Slice{static_cast<unsigned char*>(data) + i * slice, std::min(slice, bytes - i * slice)};
    };
    Pipeline p = chain(mesh, (mesh.line.of(mesh.rank) - mesh.line.of(root) + mesh.size) % mesh.size, true, slices);
    p.outgoing = at;
    p.ahead = std::max(p.ahead, Pipeline::kSends);
    p.incoming = [&](size_t i, size_t) { return at(i); };
    p.arrived = [](size_t, const Slice&) {};
    return p.run(mesh);
}

Status reduce(Mesh& mesh, void* data, size_t count, Elements e, int root) {
    const size_t unit = size_of(e.type), bytes = count * unit;
    if (mesh.size > 2 && bytes <= kFewSteps) return reduce_along_a_tree(mesh, data, count, e, root);
    const size_t slice = slice_size(bytes), slices = (bytes + slice - 1) / slice;
    const bool is_root = mesh.rank == root;
    const int place = (mesh.line.of(root) - 1 - mesh.line.of(mesh.rank) + 2 * mesh.size) % mesh.size;  // the root is last
    Pipeline p = chain(mesh, place, false, slices);
    unsigned char* scratch = mesh.scratch(p.ahead * slice + (is_root ? 0 : bytes));
    unsigned char* partial = scratch + p.ahead * slice;
    if (!is_root && bytes) std::memcpy(partial, data, bytes);
    unsigned char* here = is_root ? static_cast<unsigned char*>(data) : partial;
    const auto at = [&](size_t i) { return Slice{here + i * slice, std::min(slice, bytes - i * slice)}; };
    p.outgoing = at;
    p.incoming = [&](size_t i, size_t slot) { return Slice{scratch + slot * slice, at(i).size}; };
    p.arrived = [&](size_t i, const Slice& s) { combine(at(i).data, s.data, s.size / unit, e.type, e.op); };
    if (Status s = p.run(mesh); !s) return s;
    if (is_root && e.op == Op::average) divide(data, count, e.type, mesh.size);
    return {};
}

}  // namespace bagua
