// The C interface of a group of ranks for abi.py. Calls return 0 or one of NCCL's codes; the text of the last error is
// kept for the thread that called. Collective calls of one group must not overlap; messages may.

#pragma once

#include <cstddef>
#include <cstdint>

#include "../core/report.h"

extern "C" {

struct Piece {
    int32_t peer, sending;
    void* data;
    uint64_t size;
};

// Listens; `handle` receives 128 bytes for all other ranks. Null on error, text in `error`.
void* bagua_net_open(int rank, int size, void* handle, char* error, size_t room);
// `handles` holds 128 bytes of every rank. Blocks until all are connected, in a group that opens its connections at
// the start (BAGUA_NET_EAGER). Outages may last for the time-out, too, unless BAGUA_NET_TIMEOUT says how long.
int bagua_net_join(void* group, const void* handles, int64_t timeout_ns);
// What must be the same on all ranks before they join: lines of NAME=VALUE, none of them a secret.
void bagua_net_agree(void* group, char* text, size_t room);
// The orders in which rings and chains, and halving and doubling, go through the ranks: each of them once, and the same
// on all. `ring`: all-reduces go along a ring even where halving is possible. `tree`: those of 512 KiB or
// more go along a tree in which these are the parents of all ranks, -1 of the root; null for none.
int bagua_net_arrange(void* group, const int* line, const int* pairs, int ring, const int* tree);
// From now on large sums and averages of floats travel as 8-bit integers (int8_all_reduce.h); on all ranks, or on none.
void bagua_net_use_int8(void* group);
// Bytes that so many elements travel as in an all-reduce that such a group makes.
size_t bagua_net_int8_bytes(int ranks, size_t count, int type, int op);
// Three numbers: such all-reduces so far, bytes of the floats in them, and bytes that this rank has sent for them.
void bagua_net_lossy(void* group, uint64_t* out);
// No other call may be in progress, or come after it.
void bagua_net_close(void* group);
// Makes everything that is pending in the group fail; from any thread.
void bagua_net_abort(void* group);
void bagua_net_error(char* error, size_t room);

int bagua_net_all_reduce(void* group, void* data, size_t count, int type, int op, int64_t timeout_ns);
int bagua_net_reduce(void* group, void* data, size_t count, int type, int op, int root, int64_t timeout_ns);
int bagua_net_broadcast(void* group, void* data, size_t bytes, int root, int64_t timeout_ns);
int bagua_net_all_gather(void* group, void* const* blocks, size_t bytes, int64_t timeout_ns);
int bagua_net_reduce_scatter(void* group, void* data, size_t count, int type, int op, int64_t timeout_ns);
// Gather, scatter, all-to-all: all pieces at once, in order per peer and direction. What this rank sends itself, one
// piece at most, it must receive, too.
int bagua_net_move(void* group, const Piece* pieces, size_t count, int64_t timeout_ns);

// `peer`: -1 for a message from whoever sends one with the tag, which is below 2^31. The data must stay where it is until
// the message has ended. 0 on error.
uint64_t bagua_net_start(void* group, int peer, int sending, void* data, size_t size, uint32_t tag);
// 1 if it has ended (its result is then in `code`, the other rank in `peer`, and it is forgotten), 0 after the time-out.
int bagua_net_wait(void* group, uint64_t operation, int64_t timeout_ns, int* code, int* peer);

// Counters of the streams to a rank; `lane` 0: collectives, 1: messages. The number of streams.
int bagua_net_report(void* group, int peer, int lane, StreamReport* out, int most);
}
