// An algorithm moves the bytes of an op among the members of the epoch. The plan chooses one for each op
// (op->algorithm).
//
// The state of an algorithm for an op lies in `op->work`, all 0 when the op begins and again after `release`.
//
// Time line of one ring all-reduce among n members, at member j:
//  1. post        the caller's thread: the call table names the op, chooses PLAN_RING, and queues it for pccl:data
//  2. begin       pccl:data: sets what the op has to move, and sends READY to the predecessor
//  3. READY       of the successor arrives: chunks may go; to a far one the first go before that, as EARLY
//  4. next        a lane of the successor has room: a CHUNK of the own shard j, hop 0, from the send buffer
//  5. locate      a CHUNK of the predecessor arrives: its address, a pooled buffer (or none, in shared memory)
//  6. arrived     hops 0 to n-2: adds the own input; hop n-2 makes the result of shard j+1; forwarded as hop + 1
//  7. arrived     hops n-1 to 2n-3: the result lies in the receive buffer; forwarded as hop + 1, but for the last hop
//  8. DONE        algorithm_check: nothing is left to send or receive; DONE goes to the master
//  9. VERDICT     all members are DONE: COMMIT; the call table ends the op, release frees its work
// 10. wait        the caller wakes and returns
#ifndef PCCL_DATA_ALGORITHM_H
#define PCCL_DATA_ALGORITHM_H

#include "link/frame.h"
#include "ops/call_table.h"
#include "ops/op.h"

struct engine;

struct algorithm {
    const char *name;
    size_t work_bytes;
    uint16_t types[2]; // of its frames under way; 0: none
    bool direct;       // begun by whoever posts, with the lock held; else by the thread, without it

    // Begins the op. Returns false if memory was refused.
    bool (*begin)(struct engine *engine, struct op *op);
    // Handles a signal or an input of another member with the same arguments. A direct algorithm takes the block. For
    // others it is NULL, and READY of the successor is noted already. Returns false if it is malformed. May be NULL.
    bool (*signal)(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                   const struct wire_head *head, struct block *block);
    // Releases what the op holds: nothing of it is sent or received any more.
    void (*release)(struct engine *engine, struct op *op);
    // Returns true if the member at this place is to report that it has begun the op, and has not. NULL: the successor
    // alone reports that, and algorithm_signal notes it.
    bool (*misses)(const struct op *op, uint32_t place);

    // ---- all but direct ones; thread ----
    // Like `head` and `frame` of struct link_events, except that `to` may be set: the payload is there already.
    bool (*locate)(struct engine *engine, struct op *op, struct incoming *in);
    bool (*arrived)(struct engine *engine, struct op *op, struct incoming *in);
    struct frame *(*next)(struct engine *engine, struct op *op, struct lane *lane, bool idle);
    // Handles a frame that was sent, after `send_left` was reduced by its bytes. May be NULL.
    void (*sent)(struct engine *engine, struct op *op, const struct frame *frame);
};

extern const struct algorithm direct_algorithm, ring_algorithm, weighted_algorithm, sharded_algorithm,
    broadcast_algorithm, pieces_algorithm;

// Head of `op->work` for all algorithms but direct ones. With nothing left to receive and to send the operation is
// complete without further notice.
struct moving {
    uint64_t receive_left, send_left; // bytes of elements, as they travel; set by `begin`
    bool next_ready;                  // the successor has posted the op
    uint64_t early;                   // bytes that went there before that was known
};

const struct algorithm *algorithm_of(const struct op *op);
// Returns the bytes of state that the largest algorithm needs.
size_t algorithm_work_bytes(void);

// ---- for the engine; algorithms that are not direct; thread ----
// Begins the op, and takes what came before. Returns false if memory was refused. The op may have ended afterwards, as
// after the next two.
bool algorithm_begin(struct engine *engine, struct op *op);
// Notes that a frame of the op was sent.
void algorithm_sent(struct engine *engine, const struct frame *frame);
// Handles a chunk that has arrived whole; the caller calls algorithm_check afterwards. False: malformed.
bool algorithm_arrived(struct engine *engine, struct op *op, struct incoming *in);
// Does the same with a chunk that came in a block before the op began here, and takes the block. Lock not held.
bool algorithm_take_early(struct engine *engine, struct op *op, struct neighbour *from, const struct wire_head *head,
                          struct block *block);
// Ends the op if everything has arrived and was sent, and the device has all of it. Lock not held.
void algorithm_check(struct engine *engine, struct op *op);
// Handles a signal or an input of another member, for any algorithm. Takes the block. False: malformed. Lock held.
bool algorithm_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                      const struct wire_head *head, struct block *block);

// Notes when the successor began the op, if this message of it tells that.
void algorithm_entered(const struct op *op, struct neighbour *from, uint16_t type, int64_t heard_ns);

// ---- for algorithms ----
// State that all ops of an engine share. Thread.
struct algorithm_shared {
    uint64_t under_way;      // ring: bytes of own chunks in the rings of all ops (pace_window)
    uint64_t early;          // ring: of those that went before the successor was known to have posted
    uint64_t granted;        // weighted: bytes of inputs that the others may send, and that are not added up yet
    void *wide, *wide_input; // sharded: accumulators of CODEC_PIECE wide elements, made at first use
};

// Returns the participant of the operation at this place in op->team; NULL for the own place. Lock held, or thread,
// like the next three.
struct neighbour *algorithm_peer(const struct op *op, uint32_t place);
// Returns the place of a peer, or SUBGROUP_NOBODY if it does not take part.
uint32_t algorithm_place_of(const struct op *op, const struct neighbour *peer);
struct neighbour *algorithm_successor(const struct op *op);
struct neighbour *algorithm_predecessor(const struct op *op);
// Takes what the member sent for the operation before it began. The caller frees it. NULL: nothing came.
struct unexpected *algorithm_unexpected(struct engine *engine, const struct op *op, struct neighbour *from,
                                        uint16_t type);
// Like ranges_take, but ends the engine if memory is refused.
bool algorithm_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end);
// Tells the member that the op is posted here.
void algorithm_offer(struct engine *engine, const struct op *op, struct neighbour *to, struct wire_ready ready);
// Returns whether the participant at this place is missed: it is to report here that it has begun, and has not.
bool algorithm_misses(const struct op *op, uint32_t place);
// Returns whether bulk goes this way (lane_is_for_bulk). Lock not held.
bool algorithm_may_use(struct engine *engine, const struct lane *lane);
// Returns a frame for so many bytes of elements; the caller sets its payload. NULL: memory was refused.
struct frame *algorithm_frame(struct engine *engine, struct op *op, uint16_t type, const struct wire_head *head,
                              size_t bytes);
// Saves the untouched input of an in-place op before this range of bytes is written. False: memory was refused.
bool algorithm_save(struct op *op, uint64_t offset, uint64_t length);
// Does the same, without the turn while it copies. Nothing else writes or saves that range meanwhile. Lock not held.
bool algorithm_save_apart(struct engine *engine, struct op *op, uint64_t offset, uint64_t length);

// ---- the tensors of an op; where the device has failed, the engine ends as soon as its thread sees it ----
// Makes `tensor`, an address in the input or the result, the payload of a frame (device_map). Returns false if the
// device has failed; the frame is freed.
bool algorithm_show(struct engine *engine, struct op *op, struct frame *frame, const void *tensor);
// Returns where bytes for the result at `offset` may be received (device_staging) until they arrive; NULL if the device
// has failed.
uint8_t *algorithm_staging(struct op *op, uint64_t offset, size_t length);
// Writes the bytes that were received to the result (device_unstage).
void algorithm_unstage(struct op *op, uint64_t offset, uint8_t *staging, size_t length);
// Sets the payload's destination to the result at `offset`, and saves the input there. Returns false if memory or the
// device has failed; the engine ends.
bool algorithm_locate(struct engine *engine, struct op *op, struct incoming *in, uint64_t offset);

// Returns the size of the chunk that comes, wherever it lies.
static inline size_t algorithm_chunk_bytes(const struct incoming *in) {
    return in->header.type == WIRE_CHUNK_IN ? in->head.chunk.bytes : in->length;
}
// Returns a frame with a chunk of a tensor. NULL: memory was refused or the device has failed. Lock not held.
struct frame *algorithm_chunk(struct engine *engine, struct op *op, const struct wire_head *head, const void *tensor,
                              size_t bytes);

// Writes the result of a direct op from what all members have in common at its end. False: the device has failed.
bool algorithm_write(struct op *op, const uint8_t *common);
// Completes the bytes of a result that a direct op kept.
void algorithm_complete_result(struct engine *engine, struct block *result);
// Completes the results that direct ops kept and that need a neighbour's slots.
void algorithm_leave_slots(struct engine *engine);

#endif
