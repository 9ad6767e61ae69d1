// A peer's part in a round of shared state: it gives leaves to the peers that lack them, or fetches the leaves that it
// lacks.
//
// It is a service of the engine (data/service.h): it lives on the engine's thread, between the frames of the lanes.
// From sync_begin until sync_end the engine may read the tensors of the content, and write them once a plan names this
// peer as a receiver. Whoever has to receive gets the leaf hashes of the winner from a donor, checks them against the
// content hash of the plan, and asks for the leaves that differ (state/delta). A leaf is received straight into its
// place, or, from a process of the same host, read out of that one's memory, and hashed where it lies then
// (state/leaf); only leaves that differ are ever written. What a donor names is read while the donor is in the
// round; if it leaves, what was read is something else, and the hash says so.
//
// A leaf may come that was asked of somebody else meanwhile. Then the lane that began last writes, the other one's
// bytes are discarded; what the pool has is left to it: no two write one leaf, and what was verified is not written
// again.
#ifndef PCCL_STATE_SYNC_H
#define PCCL_STATE_SYNC_H

#include <stdbool.h>
#include <stdint.h>

#include "net/wire_control.h"
#include "state/content.h"

struct engine;

struct sync_report {
    // the state was written: without a commit it is torn (content_is_torn)
    bool wrote;
    uint64_t rx_bytes, rx_leaves, missing_bytes; // kept here; still to come
    // what was kept, as it came over the links: packed, or an address in another's memory
    uint64_t wire_bytes;
    uint32_t donors; // that gave something
    // of the content: it differs, and cannot be written, or lies where another one does: the round ended for this peer
    const struct delta_entry *read_only;
    const struct delta_entry *differs; // the first one that does, of so many
    uint32_t differing;
};

// None blocks but sync_end and sync_restart.

// Opens the round: what others ask for waits for the plan from now on. `content` is hashed, and borrowed until
// sync_end. A donor from which nothing comes for `stall_ns` is replaced. False: the engine is dead or has a round, or
// memory was refused.
bool sync_begin(struct engine *engine, struct content *content, int64_t stall_ns);
// The plan has come. A receiver answers with SYNC_DONE to the master, once.
void sync_plan(struct engine *engine, const struct wire_sync_plan *plan);
// The round is over for all: the engine lets go of the tensors, so that sync_end need not wait for that. Does not
// block.
void sync_over(struct engine *engine);
// Ends the round, whatever its state: when it returns, no tensor is touched any more. `out` may be NULL.
void sync_end(struct engine *engine, struct sync_report *out);
// The plan is void, the votes are cast again: from its return until the next plan no tensor is written. The hashes of
// the content tell then what lies in memory; `torn`: some of that is nothing whole. False: there is no round, or memory
// was refused.
bool sync_restart(struct engine *engine, struct sync_report *out, bool *torn);
// How far it is; all 0 without a round.
void sync_look(struct engine *engine, struct sync_report *out);

#endif
