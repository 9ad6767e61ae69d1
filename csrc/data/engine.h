// The data plane of one communicator: the ops of one peer group, its links, and the thread that moves the bytes.
//
// The control side (peer/control) owns membership. It tells the engine of each group epoch (engine_enter_epoch), hands
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
// All functions may be called from any thread if not said otherwise. None blocks, except engine_wait, engine_drain and
// engine_stop.
#ifndef PCCL_DATA_ENGINE_H
#define PCCL_DATA_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_control.h"
#include "ops/call.h"
#include "ops/members.h"

struct engine;
struct recorder;
struct transport;

// Events that the engine reports to the control side, beside the outcomes of calls.
struct engine_callbacks {
    void *context;
    // Each is called without an engine lock held, from the engine's thread or a caller's; must not block.
    // Frames for the master: DONE, MISMATCH, SYNC_DONE when a receiver's part of a round is over (state/sync), and a
    // REPORT, which may be empty, for each epoch that was entered. Their headers name the epoch in force here.
    void (*to_master)(void *context, const struct wire_buffer *frames);
    // The link to `id` with this serial number (engine_add_link) broke. id = self: a fresh group epoch is wanted.
    void (*link_down)(void *context, const struct wire_id *id, uint32_t index, uint64_t serial,
                      enum wire_link_reason reason);
    // The engine is dead, or others would wait for this member for ever: memory or descriptors were refused, or, if
    // `why` is not "", a device has failed.
    void (*failed)(void *context, const char *why);
    // A wake-up (base/platform) that the engine signals when a call ends; negative: nobody listens. NULL is allowed.
    const atomic_int *events;
    struct recorder *recorder; // of operations; NULL: nobody records them
};

// Creates the engine and starts its thread. NULL when the system refuses.
struct engine *engine_new(const struct wire_id *self, const struct engine_callbacks *callbacks);
// Before leaving: waits until the others have completed the small ops that this member has, so that its going costs
// them nothing; until `deadline_ns` at most.
void engine_drain(struct engine *engine, int64_t deadline_ns);
// Ends the thread, closes all links, ends every op with CALL_DEAD. After it returns no user buffer is touched and no
// callback runs. Idempotent. engine_free also stops.
void engine_stop(struct engine *engine);
void engine_free(struct engine *engine);

// ---- links ----
// Takes an authenticated connection. An older one of the same member and index is closed, if both have the same address
// at the other end. Returns its serial number (engine_callbacks.link_down); 0: it was closed, because the older one
// lives and has another address, or the engine has ended. Frames of group epochs not entered yet wait on it. `id` need
// not be a member yet (candidates).
uint64_t engine_add_link(struct engine *engine, const struct wire_id *id, uint32_t index, struct transport *stream);
// True when this link exists and works.
bool engine_has_link(struct engine *engine, const struct wire_id *id, uint32_t index);
// Closes all links of a peer that is gone.
void engine_drop_peer(struct engine *engine, const struct wire_id *id);
// Like lanes_set_silence.
void engine_set_silence(struct engine *engine, int64_t limit_ns);
// All lanes carry bulk, also those to far neighbours: their number is the program's. Before the first link.
void engine_fix_lanes(struct engine *engine);

// ---- epochs and operations ----
// Members were lost in a group epoch that this one never enters; a later one follows at once.
void engine_missed_loss(struct engine *engine, uint64_t group_epoch);
// Only of the own group, and only entered when group_epoch has grown. Copies what it needs.
void engine_enter_epoch(struct engine *engine, const struct epoch *epoch);
// Every link of the epoch in force is there: ops may move data. Ignored unless group_epoch is the one in force.
void engine_links_ready(struct engine *engine, uint64_t group_epoch);
void engine_verdict(struct engine *engine, const struct wire_verdict *verdict);
// The communicator is dead: all ops end with CALL_DEAD, later posts too.
void engine_kill(struct engine *engine);

// Posts an op. `adopted` is the group epoch whose members the caller counts on: if members were lost since, the op ends
// at once with CALL_LOST, naming the first group epoch after `adopted` that lost one; in retry mode it counts on
// nobody. At least 1,024 ops can be live. CALL_OK, TAG_LIVE, TOO_MANY, DEAD, REFUSED (by the stream, with its text in
// base/detail), NO_MEMORY (then the engine dies: the others will wait for this op).
enum call_result engine_post(struct engine *engine, const struct call_args *args, uint64_t adopted);
// Waits for the op of this tag until `deadline_ns` (monotonic, INT64_MAX = for ever); takes it, unless IN_PROGRESS.
// Only then are its buffers the caller's again: the result in recv, or after an error the input as at launch; in retry
// mode after an error each range holds one of the two, as the contributors tell.
// CALL_DEAD: with ENGINE_INPUT_LOST at the end of the text where that has happened.
#define ENGINE_INPUT_LOST "the input of this operation is lost: it could not be restored"
void engine_wait(struct engine *engine, uint64_t tag, int64_t deadline_ns, struct call_outcome *out);
// Makes later work in this stream of the tensors' device wait for the end of the operation. Returns CALL_UNKNOWN, or
// CALL_REFUSED with its text in base/detail. May block while the device accepts no more work into the stream.
enum call_result engine_hold(struct engine *engine, uint64_t tag, void *stream);
// Asks to end the op of this tag on all members with CALL_CANCELLED, and returns at once; engine_wait tells how it
// ended. CALL_UNKNOWN: there is no such op.
enum call_result engine_cancel(struct engine *engine, uint64_t tag);
// Returns whether this member has sent a signal or an input for an op of this tag that is not posted here.
bool engine_has_posted(struct engine *engine, uint64_t tag, const struct wire_id *member);
// The program has ended a vote that led to this group epoch.
void engine_voted(struct engine *engine, uint64_t group_epoch);
// Returns whether this thread is the only one that has begun calls of the communicator. `begins`: it begins one now.
bool engine_is_only_caller(struct engine *engine, bool begins);
// Fills in the operations that threads have waited for, and whom they miss. `out->all_us`: that of the only
// caller in another call, or 0. Returns whether operations are live.
bool engine_waits(struct engine *engine, int64_t now_ns, struct wire_waits *out);
// Number of un-awaited ops.
size_t engine_live_ops(struct engine *engine);

#endif
