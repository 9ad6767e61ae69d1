// How the bytes of one op are divided and routed. Pure arithmetic: every member computes the same from the same
// arguments.
//
// Ring: the tensor is cut into one shard per member. Chunk c of shard j starts at member j as hop 0 and travels round
// the ring: at hops 0..n-2 each receiver adds its own input (reduce-scatter; hop n-2 makes the result, at member j-1),
// at hops n-1..2n-3 the result travels on (all-gather). What a chunk needs depends on nothing but the chunk, so chunks
// may take any lane in any order, and the order of the additions, hence every bit, is fixed by the ring alone.
//
// Reduce-scatter is the first half of it, in which shard j is the part of member j-1, where its result is made. Reduce
// is a reduce-scatter in which all belongs to the root: so it is a chain that begins behind the root.
#ifndef PCCL_OPS_PLAN_H
#define PCCL_OPS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wire_fingerprint;
struct wire_id;

// The collectives. Numbers of the wire and of pcclCollectiveKind_t.
enum plan_kind {
    PLAN_ALL_REDUCE,
    PLAN_BROADCAST,
    PLAN_REDUCE,
    PLAN_ALL_GATHER,
    PLAN_REDUCE_SCATTER,
    PLAN_GATHER,
    PLAN_SCATTER,
    PLAN_ALL_TO_ALL,   // of equal parts
    PLAN_ALL_TO_ALL_V, // of any parts: each member knows its own
    PLAN_BARRIER,
    PLAN_SEND, // among two: the root's tensor goes to the other
    PLAN_KINDS
};

// The algorithms (data/algorithm.h).
enum plan_algorithm { PLAN_SMALL, PLAN_RING, PLAN_WEIGHTED, PLAN_SHARDED, PLAN_CHAIN, PLAN_PIECES, PLAN_ALGORITHMS };

struct plan_collective {
    const char *name;              // in texts
    bool reduces;                  // inputs are added up, or whatever the op is
    bool rooted;                   // one member alone gives, or gets
    bool divided;                  // its tensors have a part for each member (struct call_parts)
    bool survives;                 // means something without members that are lost, unless the root is
    bool gathers;                  // a small one brings each member all inputs as one result
    enum plan_algorithm algorithm; // unless it is small
};

// NULL: it is no kind.
const struct plan_collective *plan_collective(uint8_t kind);

enum {
    PLAN_SMALL_MAX = 1024 * 1024, // bytes that a member of a small op gets from all others; one alone may have as much
    PLAN_SMALL_ANY = 256 * 1024,  // bytes of an input that may be small among any number of members
    PLAN_SHARD_ALIGN = 16,        // elements: where shards begin
    PLAN_SEGMENT_MIN = 2048 * 1024, // bytes of a segment, at least; never small, and the work outweighs a verdict
    PLAN_SEGMENTS = 64,             // segments of an op, at most
    PLAN_SEGMENTS_AHEAD = 6,        // segments under way at once: what a loss costs at most, of PLAN_SEGMENTS
};

// Bytes; below, an op in retry mode is not divided: what DDP puts into one op is not. Tests, to which tensors of that
// size would take long, set less before they begin, or have PCCL_SEGMENTED_MIN_BYTES do it in other processes.
extern uint64_t plan_segmented_min;

struct plan_range {
    uint64_t begin, end; // elements
};

// Returns the algorithm of an op of `bytes` among `members`. Small ops are sent to everyone at once. Ring ops cost
// 2(n-1) hops and a verdict, but fewer bytes. The cheaper one by (latency + wake-up) x rounds + bytes / bandwidth is
// chosen, as long as a member can buffer the inputs. A ring becomes a weighted all-reduce if the team
// has weights and more than two members: two send each other the same in a ring. Quantised ops are sharded. Other
// collectives are small up to PLAN_SMALL_ANY bytes from the others together, or about twice or four times as much by
// kind, and have one algorithm each beyond that.
enum plan_algorithm plan_choose(const struct wire_fingerprint *what, uint64_t bytes, uint32_t members,
                                uint32_t latency_us, uint32_t megabytes_per_s, bool has_weights);

// How many segments beside the first of each op are of use, of all ops together: they give a ring work while it waits
// for the verdicts. More would make the ops wait for each other and leave the caches.
uint32_t plan_extra_segments(uint32_t members, uint32_t latency_us, uint32_t megabytes_per_s);
// Into how many segments an op in retry mode is divided; 1: it is not. A function of what the members agree on alone.
uint32_t plan_segments(uint64_t count, size_t element_bytes);
// Segment `segment`: all but the last have the same number of elements, the last up to twice as many.
struct plan_range plan_segment(uint64_t count, size_t element_bytes, uint32_t segment);

struct plan_range plan_shard(uint64_t count, uint32_t members, uint32_t shard);

enum plan_step { STEP_INVALID, STEP_REDUCE, STEP_REDUCE_LAST, STEP_GATHER, STEP_GATHER_LAST };
// Returns the step of `rank` for a chunk of `shard` that arrives at `hop`. All but GATHER_LAST are forwarded, as
// hop + 1.
enum plan_step plan_ring_step(uint32_t members, uint32_t rank, uint32_t shard, uint32_t hop);
// Elements that `rank` sends and receives in one ring op.
uint64_t plan_ring_sent(uint64_t count, uint32_t members, uint32_t rank);
uint64_t plan_ring_received(uint64_t count, uint32_t members, uint32_t rank);

// ======== weighted all-reduce: how much of a large tensor each member owns, and the tree of each block ========
// Each member owns a shard in proportion to its weight, and a shard is cut into blocks. The inputs of a block travel up
// a tree, which adds them, and the result travels down: the owner is the root. Members of one site stand under one of
// them, the agent, which is the owner in its own site; agents stand under the owner. So each input of a site leaves it
// in one sum, and the result enters it once. A member of no site (0), or alone in one, stands under the owner.
//
// Each member of a site stands for it in proportion to its weight, and with as few members of another site as that
// allows: two sites lie beside each other like two rulers of the same length, on which each member has a part. Members
// that stand opposite each other have the blocks between them. Connections between two sites share a line, in parts
// that are rarely equal: where few members share the blocks of one owner, few wait for each other's.

// By place in the team.
struct plan_weights {
    uint32_t members;
    const uint32_t *until;  // sum of the weights up to and with this place's
    const uint32_t *site;   // number of its site here, counted from 0
    const uint32_t *before; // sum of the weights of those of its site that have lower places
    // by site
    uint32_t sites;
    const uint32_t *first; // where it begins in `order`; one more, where the last one ends
    // by site, and in it by place
    const uint32_t *order;   // places
    const uint32_t *carried; // sum of what they carry of the site, up to and with this one's
};

// By place, of members of which not all have the weight 0. NULL: memory was refused.
struct plan_weights *plan_weights_new(const uint16_t *of_member, const uint16_t *sites, uint32_t members);
void plan_weights_free(struct plan_weights *weights); // NULL is allowed

// Returns the range of a shard. Shards follow each other, and begin at multiples of PLAN_SHARD_ALIGN elements. Without
// weights (NULL) they are even.
struct plan_range plan_weights_shard(const struct plan_weights *weights, uint64_t count, uint32_t members,
                                     uint32_t shard);

// Returns the member that gets this member's input of the block, or the sum of its subtree; for the owner, itself.
uint32_t plan_weights_parent(const struct plan_weights *weights, uint32_t shard, uint64_t block, uint32_t member);
// How many send to it.
uint32_t plan_weights_children(const struct plan_weights *weights, uint32_t shard, uint64_t block, uint32_t member);

#endif
