// What the files of the data plane share: engine.c (the thread, and the engine's life), engine_links.c (the other
// peers, and links to them), engine_ops.c (posts, beginnings, waits), engine_epochs.c (freezing, reports),
// engine_verdicts.c (how ops end), lane.c (framing on one connection), silence.c (links that are down and do not say
// so), early.c (what comes before its op), op.c (ops by tag, blocks, backups), small.c, ring.c, sharded.c (the three
// ways of moving an op), segments.c (ops made of ops), waits.c (what an op waits for, in words), engine_memory.c (who
// may be read, see memory.h). door.c and memory.c know nothing of engines.
//
// One lock, `engine.lock`. It guards everything except what is marked "thread": that belongs to the engine's thread,
// or, before the thread has seen an op, to nobody. The lock is never held across a blocking call; socket calls never
// block.
#ifndef PCCL_DATA_ENGINE_PRIVATE_H
#define PCCL_DATA_ENGINE_PRIVATE_H

#include <pthread.h>

#include "base/platform.h"
#include "data/engine.h"
#include "device/door.h"
#include "device/memory.h"
#include "ops/plan.h"
#include "ops/ranges.h"
#include "device/reader.h"
#include "state/coding.h"
#include "state/sync.h"

enum {
    FRAME_HEAD_BYTES = WIRE_HEADER_BYTES + WIRE_OP_BYTES,
    LANE_BUFFER_BYTES = 16 * 1024,
    EAGER_BYTES = 4 * 1024 * 1024, // per neighbour: inputs of small ops sent before the neighbour has posted them
    // held for all neighbours together: among many members each may send that much less
    EAGER_ALL_BYTES = 64 * 1024 * 1024,
    ACKS_MAX = 32,          // per neighbour, then they are sent on their own
    ACK_BYTES = 512 * 1024, // results kept by a neighbour for want of our acks, then likewise
    ACK_NAME_BYTES = 24,
    TAG_COUNTERS_MAX = 1 << 16,        // distinct tags in one group epoch, then a fresh one is asked for
    TAG_OPS_MAX = 1 << 30,             // ops of one tag in one group epoch, then likewise
    EARLY_MAX = 2 * WIRE_MAX_LIVE_OPS, // signals and inputs per neighbour for ops not posted here
    BLOCK_CACHE_BYTES = 4 * 1024 * 1024,
    BACKUP_CACHE_COUNT = 16,
    LOST_EPOCHS_MAX = WIRE_MAX_MEMBERS,
    PLACE_BYTES = 8, // payload of CHUNK_AT
    MEMORY_OFFER_BYTES = DOOR_NAME_BYTES,
    CHUNKS_AHEAD = 8, // own chunks of an op under way when the successor reads them out of our memory
    // segments under way that are not the only one of their op; the rest is left to further ops
    EXTRA_MAX = 3 * WIRE_MAX_LIVE_OPS / 4,
};

// A shared piece of heap memory.
struct block {
    struct block *next; // in the cache
    uint32_t references;
    uint32_t class_bytes;
    uint32_t length;
    _Alignas(64) uint8_t bytes[];
};

// The untouched input of an in-place op, saved range by range before it is overwritten.
struct backup {
    uint8_t *bytes; // a mapping as long as the tensor, used at the tensor's offsets
    size_t capacity;
    struct ranges saved; // bytes
};

struct frame {
    struct frame *next;
    uint8_t head[FRAME_HEAD_BYTES];
    const uint8_t *payload; // caller's memory of `op`, the bytes of `block`, a lane's stage, or `place`
    uint32_t length;        // of the payload
    uint32_t bytes;         // ring: element bytes that it stands for
    uint8_t place[PLACE_BYTES];
    struct op *op;       // large op that the frame belongs to, or NULL: a signal or a small op
    struct block *block; // owned reference, or NULL
    bool sync;           // belongs to the round of shared state, whose memory the payload is
};

// A chunk to forward that the successor is not ready for.
struct held {
    struct held *next;
    struct wire_op head;
    size_t bytes;
    uint32_t lane;
};

struct frame_queue {
    struct frame *first, **last;
};

struct peer {
    struct peer *next;
    struct wire_id id;
    struct lane *lanes[WIRE_MAX_LANES + 1]; // [0] the direct link
    uint32_t rank;                          // in the epoch in force, or UINT32_MAX
    uint32_t lane_count;                    // lanes that still point here, the closed ones too
    bool dropped;                           // freed as soon as nothing points here
    struct memory_process memory;           // thread: the process, if its memory can be read from here
    bool unreadable;                        // thread: reading has failed since it was vouched for
    bool hangs;                             // thread: its memory did not answer once, and is read no more
    bool offered;                           // in this epoch it has told the name of its
    uint8_t door[DOOR_NAME_BYTES];
    uint64_t eager_bytes; // sent before the peer posted the op
    uint32_t early_count;
    uint64_t early_bytes; // of inputs that came before the op was posted here: the other side of its `eager_bytes`
    struct wire_op_name acks[ACKS_MAX];
    uint32_t ack_count;
    uint64_t ack_bytes;
    bool settling; // about to leave: acks go out at once
};

// How long a lane has been silent, in checks (silence.c). Sending over a direct link: lock, as the lane.
struct silence {
    bool heard, spoke;     // since the last check
    uint32_t quiet, stuck; // checks without a byte heard; without enough bytes taken
    uint32_t worst, age;   // longest pause of late
    uint32_t parked;       // checks for which it has waited for an epoch
    uint64_t sent, goal;   // bytes handed to the kernel; of them to be acknowledged next
};

enum lane_receive { LANE_HEAD, LANE_PAYLOAD, LANE_PARKED };

// One connection. Transmission over a direct link (index 0) is guarded by the lock, since callers send small ops
// themselves; everything else is thread.
struct lane {
    struct engine *engine;
    struct lane *next; // arriving
    struct peer *peer;
    uint32_t index;
    int fd;
    bool polled, hot, readable, broken;
    struct silence silence;
    bool vouched; // the peer's process holds the other end
    bool ending;  // the other side has closed: read on to the end
    bool resume;  // parse what was buffered when the lane was parked

    enum lane_receive receiving;
    uint8_t buffer[LANE_BUFFER_BYTES];
    size_t buffered, consumed; // bytes [consumed, buffered) are unread
    struct wire_header header;
    struct wire_op head;
    uint8_t *to;                       // where the payload goes; NULL: discarded
    size_t length, got;                // of the payload
    size_t skip;                       // padding behind the last payload that is yet to come, or to be skipped
    uint8_t place[MEMORY_OFFER_BYTES]; // payload of CHUNK_AT and MEMORY
    uint8_t *target;                   // ring: where the chunk goes
    size_t bytes;                      // ring: of the chunk
    struct op *op;                     // large op the payload is for
    bool sync;                         // `to` is memory of the round of shared state
    struct block *block;               // owned, when `to` is inside
    uint8_t *scratch;                  // WIRE_MAX_DATA_BYTES, made at first use

    bool retired; // lock
    bool writable;
    struct frame_queue queue;
    struct frame *sending;
    size_t sent;    // of head + payload
    uint8_t *stage; // encoded block or packed leaf being sent by this lane, made at first use
    struct coding_meter meter;
};

enum op_phase {
    OP_WAITING, // posted, has no name yet; begins when the links are ready
    OP_QUEUED,  // large, named; the thread has not begun it
    OP_RUNNING,
    OP_COMPLETE, // large: everything done here, DONE sent
    OP_DIVIDED,  // its segments do the work
    OP_ENDED,    // outcome is set; only the caller touches it
};

struct small_part {
    struct block *block; // the member's input
    bool owed;           // POSTED was sent instead of our input
    bool eager;          // our input was sent before the member was known to have posted
};

// One block of the shard that this member owns.
struct sharded_slot {
    uint32_t arrived;
    uint32_t unsent;       // RESULT frames not yet written
    struct block **inputs; // by rank
};

struct sharded {
    uint64_t window;            // blocks in work at the owner
    uint64_t blocks;            // of the own shard
    uint64_t freed, granted;    // own blocks that are over; that the others may send
    struct sharded_slot *slots; // [window]
    struct sharded_target {
        bool ready;
        uint64_t next, granted, blocks; // of the shard of this rank
        struct ranges codes, results;   // that have come from it, or are on their way: blocks
    } *targets;                         // by rank
    uint64_t codes_left, results_left;  // to be sent, to be received
    uint64_t frames_left;               // of RESULT, to be sent
};

struct op {
    struct op *chain; // in the table, or the free list
    struct op *next;  // in the engine's list of waiting, or of running large ops
    pthread_cond_t ended;
    struct engine_reduce reduce; // of a segment: its own part of the buffers, and the fingerprint of the whole
    size_t element;              // bytes
    uint64_t count, bytes;       // of this op, or segment
    struct op *whole;            // that this is a segment of, or NULL: the caller sees it
    struct segments *segments;   // of a divided op, or NULL
    struct roster *roster;       // the members when it was begun, if they are to be told
    enum plan_path path;
    enum op_phase phase;
    bool frozen;                // begun in an older epoch, no verdict yet
    bool accused;               // a mismatch was reported
    bool mismatched;            // and confirmed: ends when the epoch that follows freezes it
    bool waited;                // somebody is in engine_wait
    int64_t posted_ns, tell_ns; // when its caller is told next for whom it waits
    uint64_t adopted;
    struct wire_op_name name;
    uint32_t contributors;
    struct engine_outcome outcome;

    struct small_part *parts; // small: by rank
    struct kept *kept;        // small: made ready, so that completion cannot fail
    uint32_t missing;

    bool restart;                      // thread: put the input back first
    bool next_ready;                   // thread: the successor has posted the op
    bool next_reads;                   // thread: and takes its chunks out of our memory
    uint64_t injected, returned;       // thread: own chunks under way
    uint64_t under_way;                // thread: their bytes, unless the successor reads them
    struct held *held;                 // thread: chunks to forward once it has
    uint64_t inject, inject_end;       // thread: own shard, elements
    uint64_t receive_left, send_left;  // thread: bytes
    struct ranges reducing, gathering; // thread: what has come, or is on its way: elements
    uint64_t tx_bytes, rx_bytes;
    struct sharded *sharded; // thread
    struct backup backup;    // thread, then the caller's
};

// A result that other members may still lack.
struct kept {
    struct kept *next;
    struct wire_op_name name;
    struct block *result;
    bool supplier; // the unacked get the result from here
    uint32_t unacked_count;
    struct peer *unacked[]; // room for the epoch's members
};

// What came for an op that is not posted here.
struct early {
    struct early *next;
    struct peer *from;
    uint16_t type;
    struct wire_op head;
    struct block *block;
};

// The members of a group epoch. Shared; guarded by the lock.
struct roster {
    uint32_t references, count;
    struct wire_id ids[];
};

struct tag_counter {
    uint64_t tag;
    uint32_t next; // 0: empty slot
};

// In the order in which they were added. An op is in one list at most.
struct op_list {
    struct op *first, *last; // `last` means nothing while `first` is NULL
};

enum { TABLE_BITS = 10, TABLE_SLOTS = 1 << TABLE_BITS };

// Where the chain of a tag begins, in each of the tables by tag.
static inline size_t table_slot(uint64_t tag) { return (tag * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - TABLE_BITS); }

struct pending_epoch {
    uint64_t run, generation, epoch;
    uint32_t latency_us, megabytes_per_s;
    uint32_t rank, count;
    bool ready;
    struct peer *members[]; // by rank
};

struct engine {
    pthread_mutex_t lock;
    struct wire_id self;
    struct engine_callbacks callbacks;
    pthread_t thread;
    bool started, stopping, dead;
    int epoll, wake;
    bool wake_pending;
    _Atomic int64_t silence_ns; // between two checks of silence, 0 = none
    int64_t silence_at;         // thread: the next one

    uint64_t run, generation, epoch;
    uint32_t latency_us, megabytes_per_s;
    uint32_t rank, count;
    struct peer **members;         // by rank; NULL at the own rank
    struct roster *roster;         // of the epoch
    bool ready;                    // the links of `epoch` are there
    struct pending_epoch *pending; // newest first; the thread enters it
    bool killing;
    bool failed;      // and `failed` is to be called
    uint32_t waiters; // callers inside engine_wait
    pthread_cond_t no_waiters;
    bool roll_wanted, roll_asked; // a fresh group epoch, since the counters of tags have come far
    uint64_t lost[LOST_EPOCHS_MAX];
    uint32_t lost_count;

    struct door *door; // thread; NULL: nobody's memory is read, nor is ours
    struct reader *reader;
    struct lane *reading; // thread: that it reads for
    bool taken_over;      // the next thread may begin
    bool ended;           // the thread has
    pthread_cond_t thread_ended;
    struct peer *peers;
    struct lane *arriving; // added, not polled yet

    // The open round of shared state: begun by a caller, ended by the thread, which reads it without the lock.
    struct sync *_Atomic sync;
    struct sync *sync_over; // the one that the thread has let go of
    pthread_cond_t sync_let_go;

    struct op *table[TABLE_SLOTS];
    struct op *free_ops;
    // un-awaited ops; segments of theirs under way beyond one each. Together WIRE_MAX_LIVE_OPS at most
    size_t live, extra;
    struct op_list waiting; // OP_WAITING, in posting order
    struct op_list posted;  // large, for the thread to begin
    struct kept *kept[TABLE_SLOTS];
    size_t kept_count;
    pthread_cond_t settled; // kept_count has become 0
    struct early *early[TABLE_SLOTS];
    struct tag_counter *counters;
    uint32_t counter_count, counter_slots;
    struct poison {
        struct poison *next;
        uint64_t tag, epoch; // of the op's name
        char text[WIRE_MAX_TEXT + 1];
    } *poisons; // mismatch verdicts on ops not posted here
    uint32_t poison_count;
    struct accusation {
        struct accusation *next;
        struct wire_mismatch mismatch;
    } *accusations; // for the thread to report

    struct block *block_cache[16];
    size_t block_cache_bytes;
    struct frame *free_frames;
    struct backup backup_cache[BACKUP_CACHE_COUNT];

    // thread
    struct op_list running; // large ops with chunks or codes to inject
    uint64_t under_way;     // bytes of own chunks in the rings of all ops (plan_window)
    struct lane **lanes;    // all that are polled
    struct lane **hot;
    size_t lane_count, lane_room, hot_count; // `hot` has the room of `lanes`
    void *wide, *wide_input;                 // accumulators of QUANT_BLOCK wide elements
};

// ---- op.c ----
// lock held; NULL: memory was refused, the engine is dead
struct block *block_new(struct engine *engine, size_t length);
void block_put(struct engine *engine, struct block *block); // NULL is allowed
// as block_new
struct frame *frame_new(struct engine *engine, uint16_t type, const struct wire_op *head, size_t payload);
void frame_free(struct engine *engine, struct frame *frame);
void frame_push(struct frame_queue *queue, struct frame *frame);
struct frame *frame_pop(struct frame_queue *queue);
struct op *op_find(struct engine *engine, uint64_t tag); // the one that the caller sees
// begun in the epoch in force, not frozen
struct op *op_find_running(struct engine *engine, const struct wire_op *head);
struct op *op_find_named(struct engine *engine, const struct wire_op_name *name); // running or complete, perhaps frozen
struct op *op_new(struct engine *engine, uint64_t tag);
void op_free(struct engine *engine, struct op *op);                           // takes it from the table
void op_end(struct engine *engine, struct op *op, enum engine_result result); // frees a segment that was committed
// memory was refused: the op ends, and the engine, since others wait for the op
void op_end_refused(struct engine *engine, struct op *op);
void ops_for_each(struct engine *engine, void (*act)(struct engine *, struct op *));
// ranges_take; refused memory ends the engine; lock held
bool op_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end);
void op_list_append(struct op_list *list, struct op *op);
struct op *op_list_pop(struct op_list *list);             // the first; NULL: the list is empty
void op_list_remove(struct op_list *list, struct op *op); // nothing if it is not there
void roster_put(struct roster *roster);                   // NULL is allowed
void op_head(const struct op *op, struct wire_op *out);
bool counter_take(struct engine *engine, uint64_t tag, uint32_t *sequence); // false: no memory
// the next op of this tag needs another group epoch
bool counter_is_spent(const struct engine *engine, uint64_t tag);
void counters_clear(struct engine *engine);
bool backup_begin(struct engine *engine, struct op *op);
bool backup_save(struct op *op, uint64_t offset, uint64_t length); // what was not saved yet; false: no memory
void backup_restore(struct op *op);
void backup_end(struct engine *engine, struct op *op);

// ---- lane.c ----
void lane_break(struct lane *lane, const char *why, bool silent); // thread; it is freed after the events at hand
struct lane *lane_new(struct engine *engine, struct peer *peer, uint32_t index, int fd);
void lane_free(struct lane *lane);
// Queues a frame (takes it). Direct links: lock held; others: thread. `now`: try to send at once (direct links only).
void lane_push(struct lane *lane, struct frame *frame);
void lane_flush(struct lane *lane);       // direct links, lock held
bool lane_step(struct lane *lane);        // thread; false: nothing to do until an event
void lane_let_go(struct lane *lane);      // thread: forget every frame of large ops of the old epoch
void lane_let_go_sync(struct lane *lane); // thread, lock held: forget every frame of shared state
void lane_heat(struct lane *lane);        // thread: give it a step, there may be work
void peer_heat(struct peer *peer);
uint8_t *lane_scratch(struct lane *lane); // lock held; NULL: memory was refused, the engine is dead
bool signal_send(struct engine *engine, struct peer *peer, uint16_t type, const struct wire_op *head,
                 struct block *payload);

// ---- silence.c, thread ----
void silence_check(struct engine *engine);
int silence_timeout_ms(const struct engine *engine, int timeout_ms); // until the next check, if that is sooner

// ---- engine.c ----
void engine_wake(struct engine *engine); // lock held
// Lock held. Memory or descriptors were refused, and others would wait for ever for what is not done now: all ops and
// links end.
void engine_fail(struct engine *engine);

// ---- engine_links.c, lock held ----
struct peer *peer_find(struct engine *engine, const struct wire_id *id); // NULL: there is none
// no longer dropped; or a new one; NULL: no memory, the engine is dead
struct peer *peer_get(struct engine *engine, const struct wire_id *id);
void peers_free_dropped(struct engine *engine); // thread; those that nothing points at
// the lane of this index, or the one that stands in for it
struct lane *engine_lane(struct peer *peer, uint32_t index);

// ---- engine_memory.c ----
void engine_offer_memory(struct engine *engine); // lock held; all links are there
void engine_memory_offered(struct lane *lane);   // thread
void engine_take_claims(struct engine *engine);  // thread
void engine_forget_memory(struct peer *peer);    // thread, lock held
bool engine_may_read(const struct peer *peer);   // thread, lock held
// READER_BYTES at most of the memory of the lane's peer, until the next call. NULL: it cannot be read (any more). Does
// not return when the thread was replaced meanwhile, see engine_watch.
const uint8_t *engine_read(struct lane *lane, uint64_t from, size_t length); // thread, lock not held
// What the peer itself has written a moment ago, straight to where it belongs: a page that does not answer would have
// held up the peer first. So nobody watches, and nothing is written late.
bool engine_read_written(struct lane *lane, void *to, uint64_t from, size_t length);

// ---- engine_ops.c, lock held ----
uint64_t engine_first_loss(const struct engine *engine, uint64_t adopted); // 0: none since
bool engine_may_begin(const struct engine *engine);                        // the links of the newest epoch are there
void engine_begin(struct engine *engine, struct op *op);                   // now, or
void engine_wait_for_links(struct engine *engine, struct op *op);          // until
void engine_begin_waiting(struct engine *engine);                          // is called
void engine_end_lost(struct engine *engine, struct op *op);

// ---- engine_epochs.c, thread, lock held ----
// false: memory was refused, the engine is dead
bool engine_enter_pending(struct engine *engine, struct wire_report *report);
// no lane has a frame of a large op any more, none is running
void engine_let_go(struct engine *engine);

// ---- engine_verdicts.c ----
void engine_complete(struct engine *engine, struct op *op); // thread, lock not held: DONE
// lock held
void engine_accuse(struct engine *engine, struct op *op, const struct peer *other,
                   const struct wire_fingerprint *theirs);
void engine_forget(struct engine *engine, struct op *op); // it has not begun, or is frozen; lock held
// Lock held. Whether the call ends with a mismatch that came before it was made; then `outcome.text` tells. Of that and
// `loss`, the first loss since the caller's epoch (0: none), whichever came first for those that had begun the op
// counts.
bool poison_take(struct engine *engine, struct op *op, uint64_t loss);

// ---- early.c, lock held ----
// bytes of inputs that one member may send another one before that one has posted their ops
uint64_t early_limit(const struct engine *engine);
// takes `block`; false: more than is allowed
bool early_add(struct engine *engine, struct peer *from, uint16_t type, const struct wire_op *head,
               struct block *block);
// NULL: none
struct early *early_take(struct engine *engine, const struct peer *from, const struct wire_op *head, uint16_t type);
void early_free(struct engine *engine, struct early *early);
void early_clear(struct engine *engine);
// accuses those whose arguments differ from those of an op that begins
void early_compare(struct engine *engine, struct op *op);

// ---- small.c, lock held ----
void small_begin(struct engine *engine, struct op *op);
// false: more than is allowed
bool small_arrived(struct engine *engine, struct peer *from, uint16_t type, const struct wire_op *head,
                   struct block *block);
void small_supplied(struct engine *engine, const struct wire_op *head, uint64_t epoch, struct block *block);
void small_supply(struct engine *engine, const struct wire_verdict *verdict);
void small_release(struct engine *engine, struct op *op);
void small_acked(struct engine *engine, struct peer *from, const struct wire_op_name *name);
void small_settle(struct engine *engine); // acknowledges, and asks to be acknowledged
void small_asked(struct engine *engine, struct peer *from);
void small_send_supplies(struct engine *engine); // links have become ready
void small_forget(struct engine *engine, struct peer *peer);
void small_implied_ack(struct engine *engine, struct peer *from, const struct wire_op *head);
void kept_clear(struct engine *engine);

// ---- waits.c, lock held ----
void op_waits_for(const struct engine *engine, const struct op *op, char *out, size_t capacity);

// ---- segments.c, lock held unless told otherwise ----
bool segments_new(struct op *whole); // divides it; false: no memory
void segments_begin(struct engine *engine, struct op *whole);
bool segments_name(struct engine *engine, struct op *op); // the sequence of a segment that begins; false: no memory
void segments_ended(struct engine *engine, struct op *op);
// runs under this name, or is yet to get one in its epoch
bool segments_are_meant(const struct op *whole, const struct wire_op_name *name);
// those that have not ended
void segments_for_each(struct engine *engine, struct op *whole, void (*act)(struct engine *, struct op *));
void segments_turn_whole(struct op *whole, const struct wire_op_name *name); // others run it in one piece
bool segments_wants_whole(const struct op *whole);
void segments_begin_whole(struct engine *engine, struct op *whole); // thread, frozen
bool segments_must_restore(const struct op *whole);
void segments_restore(struct op *whole); // ended; without the lock
void segments_free(struct engine *engine, struct op *whole);
struct engine_contributors *segments_contributors(const struct op *op); // of any op that has ended; NULL: no memory

// ---- ring.c, thread ----
void ring_begin(struct engine *engine, struct op *op);
// Sets the target of a chunk. False: the frame is not what the plan says.
bool ring_receive(struct lane *lane, struct op *op, size_t bytes);
bool ring_received(struct lane *lane, struct op *op);
void ring_next_ready(struct engine *engine, struct op *op, bool reads); // lock held
void ring_release(struct op *op);
struct frame *ring_next(struct lane *lane, struct op *op); // NULL: none, or not now
void ring_sent(struct engine *engine, struct op *op, const struct frame *frame);

// ---- sharded.c, thread ----
bool sharded_begin(struct engine *engine, struct op *op);
void sharded_release(struct engine *engine, struct op *op);
void sharded_signal(struct engine *engine, struct op *op, struct peer *from, uint16_t type, const struct wire_op *head);
bool sharded_receive(struct lane *lane, struct op *op, size_t length);
bool sharded_received(struct lane *lane, struct op *op);
struct frame *sharded_next(struct lane *lane, struct op *op);
void sharded_sent(struct engine *engine, struct op *op, const struct frame *frame);

#endif
