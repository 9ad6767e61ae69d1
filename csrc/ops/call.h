// A call as the ops know it: its arguments, and how it ended.
#ifndef PCCL_OPS_CALL_H
#define PCCL_OPS_CALL_H

#include "compute/codec.h"
#include "net/wire_control.h"
#include "net/wire_data.h"
#include "ops/members.h"

// A part of a tensor, in elements.
struct call_part {
    uint64_t at, count;
};

// How the tensors of a call are divided among its members, by rank.
struct call_parts {
    uint64_t in, out;           // elements of the whole input and of the whole result of this member
    uint64_t own_at;            // where its own part of a divided tensor begins
    const struct call_part *to; // of the input: what goes to each member
    // of the result: what comes from each; of a reduce-scatter the same one from all
    const struct call_part *from;
    const uint64_t *sizes; // the same on all members: the input of each that is gathered, the result of each; or NULL
    struct call_part parts[];
};

// The arguments of a collective call, checked by whoever makes it.
//
// A call without a subgroup is of all members of the epoch, and ends when one of them is lost that its caller counts
// on, or goes on among those that are left: callers that know different members meet in it. One with a subgroup is of
// the members that it names: it ends when one of those is lost, unless it goes on without them.
struct call_args {
    const void *send;
    void *recv; // == send: in place
    uint64_t tag;
    // `mode` is the call table's to set; `count`: of all that is reduced, broadcast or sent; of all parts together of
    // what is gathered or scattered; of all parts of one member of an all-to-all
    struct wire_fingerprint fingerprint;
    struct subgroup *subgroup; // or NULL; of a call that was posted: a reference
    struct call_parts *parts;  // of a divided collective; malloc'ed, of a call that was posted: the call table's
    uint32_t root;             // rank in the subgroup; without one, in the group as the caller knows it, and
    struct wire_id root_id;    // the member that this rank means
    bool is_root;              // it is the caller
    bool everyone;             // without a subgroup: goes on when nobody else is left
    bool stochastic;           // rounds stochastically by `rounding`, which begins at the first element of a segment
    struct codec_rounding rounding;
    const float *residual_in; // error feedback, or NULL: added to the input; what quantisation took away
    float *residual_out;
    bool retry;                 // redone among the survivors after a loss
    bool background;            // sends only what no other op has a frame for
    bool tell;                  // the outcome names the contributors
    void *stream;               // of their device: what is in it comes first; NULL: the default one
    struct device_queue *queue; // of the memory of both buffers, the engine's to set (device/device.h)
};

struct call_info {
    uint32_t contributors;       // retry mode: of what was done last
    uint64_t tx_bytes, rx_bytes; // element bytes of what was committed, without frame heads
};

// Contributors of each range of a result. Ranges cover the tensor in order, and adjacent ranges differ.
struct call_contributors {
    uint32_t count;
    struct call_range {
        uint64_t begin, end; // elements
        uint32_t count;      // 0: the range was not reduced; in place it holds the input
        const struct wire_id *ids;
    } ranges[];
};

// A wait that a caller cuts into slices: a pause of at most half of the slice before it counts as part of the wait, so
// a caller that only looks whether a call has ended does not wait. All 0: nobody has waited yet. Times in ns.
struct wait_span {
    int64_t since_ns, entered_ns, left_ns; // left_ns: 0: somebody is inside
};

static inline bool wait_span_goes_on(const struct wait_span *wait, int64_t now_ns) {
    int64_t slice_ns = wait->left_ns - wait->entered_ns;
    return wait->since_ns != 0 && (wait->left_ns == 0 || now_ns - wait->left_ns <= slice_ns / 2);
}
static inline void wait_span_enter(struct wait_span *wait, int64_t now_ns) {
    if (!wait_span_goes_on(wait, now_ns)) wait->since_ns = now_ns;
    wait->entered_ns = now_ns;
    wait->left_ns = 0;
}
static inline void wait_span_leave(struct wait_span *wait, int64_t now_ns) { wait->left_ns = now_ns; }
// Returns 0 also for a wait that began after `now_ns`, which another thread may have read before.
static inline uint64_t wait_span_us(const struct wait_span *wait, int64_t now_ns) {
    bool goes_on = wait_span_goes_on(wait, now_ns) && now_ns > wait->since_ns;
    return goes_on ? (uint64_t)((now_ns - wait->since_ns) / 1000) : 0;
}

enum call_result {
    CALL_OK,
    CALL_IN_PROGRESS, // engine_wait: the deadline passed, the op goes on; `text` says what it waits for
    CALL_LOST,        // ABORT: `epoch` names the group epoch to adopt. Retry mode: no other member is left
    CALL_MISMATCH,    // `text` names both sides
    CALL_CANCELLED,   // by a member, which `text` names
    CALL_DEADLOCK,    // `text` names the members that wait for each other
    CALL_DEAD,        // the communicator is dead
    CALL_TAG_LIVE,    // engine_post: the tag is live
    CALL_TOO_MANY,    // engine_post: WIRE_MAX_LIVE_OPS ops are live
    CALL_NO_MEMORY,
    CALL_UNKNOWN, // engine_wait, engine_hold: no un-awaited op of this tag
    CALL_REFUSED, // engine_post, engine_hold: by a stream of a device; its text is in base/detail
};

struct call_outcome {
    enum call_result result;
    struct call_info info;
    bool retry; // the op was in retry mode
    // the group epoch to adopt, or 0: CALL_LOST; in retry mode always, the newest one that a part of it was done in
    uint64_t epoch;
    // if they were to be told, and memory for it was there; the caller's to free()
    struct call_contributors *contributors;
    char text[WIRE_MAX_TEXT + 1];
};

#endif
