// The link emulator: passes packets between the devices of all servers when they are due.
#pragma once

#include <cstdint>
#include <vector>

#include "device.h"
#include "segments.h"
#include "wire.h"

namespace emulator {

// Numbers of packets: dropped by full queues, lost as asked for, passed on, and passed on over a millisecond late.
struct Counters {
    int64_t drops, lost, passed, late;
};

class Relay {
   public:
    void add_server(Port port, Flows flows, Device device);

    // The line of a site to the others; each has as many servers, and those of one follow each other.
    void add_site(Port port) { sites_.push_back(std::move(port)); }

    Counters counters();

    // Pass packets on until `control` ends. Counters go to standard output, a line of JSON for every piece of
    // `control`. std::system_error if a device fails.
    void run(int control);

   private:
    enum class Stage { leave, cross, land, reach, write };

    // A packet on its way: what happens next, and when. `end`: when the last of it has come as far as that.
    struct Event {
        double when;
        uint64_t serial;
        Stage stage;
        int sender, receiver;
        double end;
        int64_t nbytes;  // on a wire
        Packet packet;

        bool operator<(const Event &other) const {  // of a heap, whose first is the greatest
            return when != other.when ? when > other.when : serial > other.serial;
        }
    };

    void read(size_t server);
    double deliver();  // everything that is due; seconds until the next event, negative if nothing is on its way
    void act(Event event);
    void leave(Event event);
    void cross(Event event);
    void arrive(Event event, Port &port, Stage next);
    void write(Event event);
    void at(Event event, double now);  // at its time, or at once if that is over and no other is before it
    void push(Event event);
    size_t site(int server) const { return static_cast<size_t>(server) * sites_.size() / ports_.size(); }
    void print();

    std::vector<Port> ports_, sites_;
    std::vector<Flows> flows_;
    std::vector<Device> devices_;
    std::vector<Event> events_;
    uint64_t serial_ = 0;
    int64_t passed_ = 0, late_ = 0;
};

}  // namespace emulator
