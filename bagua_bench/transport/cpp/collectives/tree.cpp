#include "tree.h"

#include <algorithm>
#include <deque>

#include "pipeline.h"

namespace bagua {

namespace {

// Slices from or to a neighbour, in their order, several on their way at once.
struct Flow {
    int peer;
    bool sends;
    size_t most;  // on their way
    size_t posted = 0, done = 0;
    std::deque<Request*> open;
};

struct Child {
    Flow sums, results;
    unsigned char* scratch;  // a place for each of its slices on their way
};

class Tree {
  public:
    Tree(Mesh& mesh, void* data, size_t count, Elements e)
        : mesh_(mesh),
          data_(static_cast<unsigned char*>(data)),
          bytes_(count * size_of(e.type)),
          slice_(slice_size(bytes_) / size_of(e.type) * size_of(e.type)),
          slices_((bytes_ + slice_ - 1) / slice_),
          e_(e),
          root_(mesh.tree[size_t(mesh.rank)] < 0) {
        const int parent = mesh.tree[size_t(mesh.rank)];
        std::vector<int> neighbours{parent};
        for (int peer = 0; peer < mesh.size; ++peer)
            if (mesh.tree[size_t(peer)] == mesh.rank) neighbours.push_back(peer);
        mesh.await(neighbours);
        if (!root_) sums_ = flow(parent, true), results_ = flow(parent, false);
        // The children share this rank's line: each needs only a part of what fills it under way.
        const auto children = size_t(std::count(mesh.tree.begin(), mesh.tree.end(), mesh.rank));
        size_t places = 0;
        for (int peer = 0; peer < mesh.size; ++peer) {
            if (mesh.tree[size_t(peer)] != mesh.rank) continue;
            children_.push_back({flow(peer, false, children), flow(peer, true), nullptr});
            places += children_.back().sums.most;
        }
        unsigned char* scratch = mesh.scratch(places * slice_);
        for (Child& child : children_) {
            child.scratch = scratch;
            scratch += child.sums.most * slice_;
        }
    }

    Status run() {
        while (!complete()) {
            bool moved = post();
            moved |= mesh_.progress();
            moved |= take();
            if (moved) continue;
            if (Status s = mesh_.idle(); !s) return s;
        }
        return {};
    }

  private:
    Flow flow(int peer, bool sends, size_t shared_by = 1) const {
        const size_t least = sends ? Pipeline::kSends : Pipeline::kNear;
        return {peer, sends, std::min(slices_, std::max(least, under_way(mesh_, peer) / shared_by)), 0, 0, {}};
    }
    Slice at(size_t i) const { return {data_ + i * slice_, std::min(slice_, bytes_ - i * slice_)}; }
    // Slices that are the sum of all ranks below and of this one, and those that are the sum of all ranks.
    size_t summed() const { return children_.empty() ? slices_ : children_.back().sums.done; }
    size_t reduced() const { return root_ ? summed() : results_.done; }

    bool complete() const {
        if (reduced() < slices_ || (!root_ && sums_.done < slices_)) return false;
        return std::all_of(children_.begin(), children_.end(), [&](auto& c) { return c.results.done == slices_; });
    }

    bool post() {
        bool moved = false;
        const auto here = [this](size_t i) { return at(i); };
        for (Child& c : children_) {
            const auto aside = [&](size_t i) { return Slice{c.scratch + i % c.sums.most * slice_, at(i).size}; };
            moved |= post(c.sums, slices_, aside);
            moved |= post(c.results, reduced(), here);
        }
        if (root_) return moved;
        moved |= post(sums_, summed(), here);
        return post(results_, slices_, here) || moved;  // none comes before this rank's sum has gone
    }

    template <class Place>
    bool post(Flow& f, size_t ready, Place place) {
        const size_t before = f.posted;
        while (f.posted < ready && f.posted - f.done < f.most) {
            const Slice s = place(f.posted);
            Request* r = mesh_.post(f.peer, f.sends, s.data, s.size);
            if (!r) break;
            f.open.push_back(r);
            ++f.posted;
        }
        return f.posted > before;
    }

    // The first child's slice is added first, then the second one's ...: the same sum whoever comes first. One slice of
    // each at a time, so that a sum goes on at once.
    bool take() {
        bool moved = false;
        size_t earlier = slices_;
        for (Child& c : children_) {
            moved |= take(c.sums, std::min(earlier, c.sums.done + 1), [&](size_t i) {
                combine(at(i).data, c.scratch + i % c.sums.most * slice_, at(i).size / size_of(e_.type), e_.type, e_.op);
            });
            moved |= take(c.results, slices_, [](size_t) {});
            earlier = c.sums.done;
        }
        moved |= take(sums_, slices_, [](size_t) {});
        return take(results_, slices_, [](size_t) {}) || moved;
    }

    template <class Treat>
    bool take(Flow& f, size_t until, Treat treat) {
        const size_t before = f.done;
        while (f.done < until && !f.open.empty() && f.open.front()->state == Request::State::done) {
            mesh_.to(f.peer).release(f.open.front());
            f.open.pop_front();
            treat(f.done++);
        }
        return f.done > before;
    }

    Mesh& mesh_;
    unsigned char* const data_;
    const size_t bytes_, slice_, slices_;
    const Elements e_;
    const bool root_;
    Flow sums_{}, results_{};  // to and from the parent
    std::vector<Child> children_;
};

}  // namespace

bool is_tree(const std::vector<int>& parents) {
    const int size = int(parents.size());
    if (std::count(parents.begin(), parents.end(), -1) != 1) return false;
    return std::all_of(parents.begin(), parents.end(), [&](int above) {
        for (int steps = 0; above >= 0 && above < size && steps < size; ++steps) above = parents[size_t(above)];
        return above == -1;
    });
}

Status all_reduce_along_the_tree(Mesh& mesh, void* data, size_t count, Elements e) {
    return Tree(mesh, data, count, e).run();
}

}  // namespace bagua
