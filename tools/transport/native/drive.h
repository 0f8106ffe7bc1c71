// What one process of the harness does; C ABI for ../worker.py.

#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct Plan {
    uint64_t size;  // bytes of a message; with `check`: the most
    uint64_t count;  // messages
    int32_t window;  // messages in flight
    int32_t idle;  // when nothing is done: 0 spin, -1 sched_yield, n sleep n microseconds; a group waits unless 0
    int32_t check;  // 0, or the seed of sizes and contents
    double patience;  // seconds without anything done that end the run
};

struct Outcome {
    int32_t result;  // NCCL's code; -1 out of patience, -2 wrong size, -3 wrong contents
    uint64_t bytes, messages;  // measured part
    double seconds, cpu;  // of the measured part: wall clock, and all threads of this process
    double median, p99;  // seconds per message
};

void* harness_open(const char* path, const char* symbol, int version, int verbose);
// Rank 0 or 1 of a group of bagua_net, the torch backend's, in place of a plugin; its handle has 128 bytes.
void* harness_open_group(const char* path, int rank, void* handle);
// Blocks until the other one is there; `handles`: both. The comm of both directions, or null.
void* harness_join(void* h, const void* handles);
int harness_close(void* h);
int harness_facts(void* h, void* facts);
int harness_listen(void* h, void* handle, void** comm);
int harness_connect(void* h, void* handle, void** comm);
int harness_accept(void* h, void* listener, void** comm);
int harness_close_send(void* h, void* comm);
int harness_close_receive(void* h, void* comm);
int harness_close_listener(void* h, void* comm);
void harness_stream(void* h, void* comm, int sending, const Plan* plan, Outcome* out);
void harness_pingpong(void* h, void* send, void* receive, int first, const Plan* plan, Outcome* out);

// The baseline: one connected blocking socket, write() and read().
void plain_stream(int fd, int sending, const Plan* plan, Outcome* out);
void plain_pingpong(int out_fd, int in_fd, int first, const Plan* plan, Outcome* out);
}
