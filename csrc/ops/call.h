// A call as the ops know it: its arguments, and how it ended.
#ifndef PCCL_OPS_CALL_H
#define PCCL_OPS_CALL_H

#include "net/wire_control.h"
#include "net/wire_data.h"

// The arguments of a reduce, checked by the caller.
struct engine_reduce {
    const void *send;
    void *recv; // == send: in place
    uint64_t tag;
    struct wire_fingerprint fingerprint; // `mode` is the book's to set
    struct wire_id root;                 // of a broadcast: a member, the same for all
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
