#include "relay.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <utility>

namespace emulator {
namespace {

constexpr int kAtOnce = 32;        // packets read at a time, before due ones are delivered
constexpr double kLate = 1e-3;     // seconds behind its time at which a packet counts as late
constexpr size_t kDestination = 19;  // where in an IPv4 packet the last byte of the address is: server number + 1
constexpr size_t kFlow = 12, kFlowBytes = 12;  // where in one without options the addresses and ports are

double clock_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const char *what) { throw std::system_error(errno, std::generic_category(), what); }

// Wait for one of them; negative: for ever.
void wait(std::vector<pollfd> &descriptors, double seconds) {
    timespec left{};
    left.tv_sec = static_cast<time_t>(seconds);
    left.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
    if (ppoll(descriptors.data(), descriptors.size(), seconds < 0 ? nullptr : &left, nullptr) < 0) {
        if (errno != EINTR) fail("cannot wait for packets");
        for (pollfd &one : descriptors) one.revents = 0;
    }
}

}  // namespace

void Relay::add_server(Port port, Flows flows, Device device) {
    ports_.push_back(std::move(port));
    flows_.push_back(std::move(flows));
    devices_.push_back(device);
}

Counters Relay::counters() {
    Counters sum{0, 0, passed_, late_};
    for (auto *ports : {&ports_, &sites_})
        for (const Port &port : *ports) {
            sum.drops += port.drops;
            sum.lost += port.lost;
        }
    for (const Flows &flows : flows_) sum.drops += flows.drops();
    for (Device &device : devices_) sum.drops += device.drops();
    return sum;
}

void Relay::print() {
    Counters found = counters();
    std::printf("{\"drops\": %lld, \"lost\": %lld, \"passed\": %lld, \"late\": %lld}\n",
                static_cast<long long>(found.drops), static_cast<long long>(found.lost),
                static_cast<long long>(found.passed), static_cast<long long>(found.late));
    std::fflush(stdout);
}

void Relay::run(int control) {
    std::vector<pollfd> descriptors{{control, POLLIN, 0}};
    for (const Device &device : devices_) descriptors.push_back({device.descriptor(), POLLIN, 0});
    while (true) {
        wait(descriptors, deliver());
        deliver();
        for (size_t server = 0; server < devices_.size(); server++)
            if (descriptors[server + 1].revents) read(server);
        if (!descriptors[0].revents) continue;
        char word[100];
        ssize_t got = ::read(control, word, sizeof word);
        if (got == 0) return;
        if (got < 0) fail("cannot read what to do");
        print();
    }
}

double Relay::deliver() {
    while (!events_.empty()) {
        double wait = events_.front().when - clock_now();
        if (wait > 0) return wait;
        std::pop_heap(events_.begin(), events_.end());
        Event event = std::move(events_.back());
        events_.pop_back();
        act(std::move(event));
    }
    return -1.0;
}

void Relay::read(size_t server) {
    for (int k = 0; k < kAtOnce; k++) {
        std::optional<Packet> packet = devices_[server].read();
        if (!packet) return;
        size_t header = devices_[server].header();
        if (packet->size() < header + kFlow + kFlowBytes || (*packet)[header] >> 4 != 4) continue;
        int receiver = (*packet)[header + kDestination] - 1;
        if (receiver < 0 || static_cast<size_t>(receiver) >= ports_.size()) continue;
        int64_t nbytes = wire_bytes(static_cast<int64_t>(packet->size() - header));
        double now = clock_now();
        std::string_view flow(reinterpret_cast<const char *>(packet->data()) + header + kFlow, kFlowBytes);
        std::optional<double> begin = flows_[server].leave(now, flow, nbytes);
        if (begin)
            at({*begin, 0, Stage::leave, static_cast<int>(server), receiver, 0.0, nbytes, std::move(*packet)}, now);
    }
}

void Relay::act(Event event) {
    switch (event.stage) {
        case Stage::leave: return leave(std::move(event));
        case Stage::cross: return cross(std::move(event));
        case Stage::land: {
            Port &line = sites_[site(event.receiver)];
            return arrive(std::move(event), line, Stage::reach);
        }
        case Stage::reach: {
            Port &link = ports_[static_cast<size_t>(event.receiver)];
            return arrive(std::move(event), link, Stage::write);
        }
        case Stage::write: return write(std::move(event));
    }
}

// Over the server's link, to the switch of its site.
void Relay::leave(Event event) {
    double now = event.when;
    std::optional<Span> span = ports_[static_cast<size_t>(event.sender)].leave(now, event.nbytes);
    if (!span) return;
    event.when = span->begin;
    event.end = span->end;
    event.stage = site(event.sender) == site(event.receiver) ? Stage::reach : Stage::cross;
    at(std::move(event), now);
}

// Over the line of a site, to the switch that joins them.
void Relay::cross(Event event) {
    double now = event.when;
    std::optional<Span> span = sites_[site(event.sender)].leave(now, event.nbytes, event.end);
    if (!span) return;
    event.when = span->begin;
    event.end = span->end;
    event.stage = Stage::land;
    at(std::move(event), now);
}

// What a port does not lose of a packet goes on, by runs of its segments: to the next switch when its first byte is
// there, to its receiver when its last one is.
void Relay::arrive(Event event, Port &port, Stage next) {
    size_t header = devices_.front().header();
    int segments = port.loses() ? count(event.packet, header) : 1;
    double step = (event.end - event.when) / segments, now = event.when;
    for (auto [first, last] : port.survivors(segments)) {
        Event piece{0.0, 0, next, event.sender, event.receiver, 0.0, event.nbytes, {}};
        if (last - first < segments) {
            piece.packet = cut(event.packet, header, first, last);
            piece.nbytes = wire_bytes(static_cast<int64_t>(piece.packet.size() - header));
        } else {
            piece.packet = std::move(event.packet);
        }
        std::optional<Span> span = port.arrive(now + first * step, now + last * step, piece.nbytes);
        if (!span) continue;
        piece.when = next == Stage::write ? span->end : span->begin;
        piece.end = span->end;
        if (next == Stage::write)
            push(std::move(piece));
        else
            at(std::move(piece), now);
    }
}

void Relay::write(Event event) {
    auto receiver = static_cast<size_t>(event.receiver);
    passed_++;
    late_ += clock_now() - event.when > kLate;
    if (!devices_[receiver].write(event.packet)) ports_[receiver].drops++;
}

void Relay::at(Event event, double now) {
    bool first = events_.empty() || event.when < events_.front().when;  // an earlier one that is late keeps its turn
    if (event.when <= now && first)
        act(std::move(event));
    else
        push(std::move(event));
}

void Relay::push(Event event) {
    event.serial = ++serial_;
    events_.push_back(std::move(event));
    std::push_heap(events_.begin(), events_.end());
}

}  // namespace emulator
