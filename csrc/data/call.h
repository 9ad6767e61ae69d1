// What the control side and the data plane say to each other: epochs, calls and their outcomes, and what is to be told
// to the master.
#ifndef PCCL_DATA_CALL_H
#define PCCL_DATA_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire.h"

struct engine_member {
    struct wire_id id;
    uint32_t lanes; // to be used between this pair: the smaller of both pool sizes
};

// The own group in one group epoch, in ring order. Only entered when group_epoch has grown.
struct engine_epoch {
    uint64_t run, generation;
    uint64_t group_epoch;
    bool lost; // members were lost since the group epoch before: ops launched before end with ABORT, never REDO
    uint32_t latency_us, megabytes_per_s;
    uint32_t rank, count;
    const struct engine_member *members; // borrowed for the call
};

struct engine_callbacks {
    void *context;
    // Each is called without an engine lock held, from the engine's thread or a caller's; must not block.
    void (*done)(void *context, const struct wire_op_name *name);
    void (*mismatch)(void *context, const struct wire_mismatch *mismatch);
    // once per entered epoch; empty report too
    void (*frozen)(void *context, uint64_t group_epoch, const struct wire_report *report);
    // `silent`: the connection stands, but nothing comes or goes. id = self: a fresh group epoch is wanted.
    void (*link_down)(void *context, const struct wire_id *id, uint32_t index, bool silent);
    // a receiver's part of a round is over (state/sync)
    void (*synced)(void *context, const struct wire_sync_done *done);
    // memory or descriptors were refused, the engine is dead: others would wait for this member for ever
    void (*failed)(void *context);
};

// The arguments of a reduce, checked by the caller of engine_post.
struct engine_reduce {
    const void *send;
    void *recv; // == send: in place
    uint64_t tag;
    struct wire_fingerprint fingerprint; // `mode` is the engine's to set
    bool retry;                          // redone among the survivors after a loss
    bool tell;                           // the outcome names the contributors
};

struct engine_info {
    uint32_t contributors;       // retry mode: of what was done last
    uint64_t tx_bytes, rx_bytes; // element bytes of what was committed, without frame heads
};

// Who is in which range of a result. Ranges cover the tensor in order, and neighbours differ.
struct engine_contributors {
    uint32_t count;
    struct engine_range {
        uint64_t begin, end; // elements
        uint32_t count;      // 0: the range was not reduced; in place it holds the input
        const struct wire_id *ids;
    } ranges[];
};

enum engine_result {
    ENGINE_OK,
    ENGINE_IN_PROGRESS, // engine_wait: the deadline passed, the op goes on; `text` says what it waits for
    ENGINE_LOST,        // ABORT: `epoch` names the group epoch to adopt. Retry mode: no other member is left
    ENGINE_MISMATCH,    // `text` names both sides
    ENGINE_DEAD,        // the communicator is dead
    ENGINE_TAG_LIVE,    // engine_post: the tag is live
    ENGINE_TOO_MANY,    // engine_post: WIRE_MAX_LIVE_OPS ops are live
    ENGINE_NO_MEMORY,
    ENGINE_UNKNOWN, // engine_wait: no un-awaited op of this tag
};

struct engine_outcome {
    enum engine_result result;
    struct engine_info info;
    bool retry; // the op was in retry mode
    // the group epoch to adopt, or 0: ENGINE_LOST; in retry mode always, the newest one that a part of it was done in
    uint64_t epoch;
    // if they were to be told, and memory for it was there; the caller's to free()
    struct engine_contributors *contributors;
    char text[WIRE_MAX_TEXT + 1];
};

#endif
