// The data plane of one communicator: the ops of one peer group, its links, and the thread that moves the bytes.
//
// The control side (peer/peer) owns membership. It tells the engine of each group epoch (engine_enter_epoch), hands
// it links (engine_add_link) and verdicts (engine_verdict), and gets everything that concerns the master through the
// callbacks. Life of an op: posted by a caller -> moved by the engine's thread -> `done` to the master -> verdict ->
// taken by the caller.
//
// An op in retry mode is redone after a loss instead of ending with it, and when it is large only in the segments that
// were under way (segments.c).
//
// Entering an epoch freezes every op that has no verdict: from then on no buffer of it is touched, frames of the old
// epoch are drained unseen, and `frozen` reports where each op stood. The verdicts that follow end or redo them.
//
// All functions may be called from any thread if not said otherwise. None blocks, except engine_wait, engine_settle and
// engine_stop.
#ifndef PCCL_DATA_ENGINE_H
#define PCCL_DATA_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire.h"

struct engine;
struct op;

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

// Creates the engine and starts its thread. NULL when the system refuses.
struct engine *engine_new(const struct wire_id *self, const struct engine_callbacks *callbacks);
// A link is down when nothing is heard on it, or nothing taken by it, for about this long (longer where pauses are
// usual). Before the first call silence is not watched.
void engine_set_silence(struct engine *engine, int64_t limit_ns);
// Before leaving: waits until the others have completed the small ops that this member has, so that its going costs
// them nothing; until `deadline_ns` at most.
void engine_settle(struct engine *engine, int64_t deadline_ns);
// Ends the thread, closes all links, ends every op with ENGINE_DEAD. After it returns no user buffer is touched and no
// callback runs. Idempotent. engine_free also stops.
void engine_stop(struct engine *engine);
void engine_free(struct engine *engine);

// Takes ownership of an authenticated connection. An older one of the same member and index is closed, if both have the
// same address at the other end; else it lives, and this one is closed. Frames of group
// epochs not entered yet wait on it. `id` need not be a member yet (candidates).
void engine_add_link(struct engine *engine, const struct wire_id *id, uint32_t index, int fd);
// True when this link exists and works.
bool engine_has_link(struct engine *engine, const struct wire_id *id, uint32_t index);
// Closes all links of a peer that is gone.
void engine_drop_peer(struct engine *engine, const struct wire_id *id);

// Members were lost in a group epoch that this one never enters; a later one follows at once.
void engine_missed_loss(struct engine *engine, uint64_t group_epoch);
void engine_enter_epoch(struct engine *engine, const struct engine_epoch *epoch);
// Every link of the epoch in force is there: ops may move data. Ignored unless group_epoch is the one in force.
void engine_links_ready(struct engine *engine, uint64_t group_epoch);
void engine_verdict(struct engine *engine, const struct wire_verdict *verdict);
// The communicator is dead: all ops end with ENGINE_DEAD, later posts too.
void engine_kill(struct engine *engine);

// Posts an op. `adopted` is the group epoch whose members the caller counts on: if members were lost since, the op ends
// at once with ENGINE_LOST, naming the first group epoch after `adopted` that lost one; in retry mode it counts on
// nobody. At least 1,024 ops can be live. ENGINE_OK, TAG_LIVE, TOO_MANY, DEAD, NO_MEMORY (then the engine dies: the
// others will wait for this op).
enum engine_result engine_post(struct engine *engine, const struct engine_reduce *reduce, uint64_t adopted);
// Waits for the op of this tag until `deadline_ns` (monotonic, INT64_MAX = for ever); takes it, unless IN_PROGRESS.
// Only then are its buffers the caller's again: the result in recv, or after an error the input as at launch; in retry
// mode after an error each range holds one of the two, as the contributors tell.
void engine_wait(struct engine *engine, uint64_t tag, int64_t deadline_ns, struct engine_outcome *out);
// Whether the thread hangs in the memory of a neighbour; then another one takes its place, that link is down, silent,
// and the neighbour is not read any more. Returns when to look again, INT64_MAX if nothing is being read. Before
// engine_stop somebody has to look at least once a second, or an op can wait for ever; engine_stop looks itself. Any
// thread.
int64_t engine_watch(struct engine *engine);
// Number of un-awaited ops.
size_t engine_live_ops(struct engine *engine);

#endif
