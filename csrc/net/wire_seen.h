// Parts of messages about what a peer has seen: of its operations, of another member, of a copy of the state. See
// net/wire.h.
#ifndef PCCL_NET_WIRE_SEEN_H
#define PCCL_NET_WIRE_SEEN_H

#include "net/wire.h"

// No number that is told may be larger: sums of these do not overflow.
#define WIRE_MOST_SEEN (UINT64_C(1) << 48)

// Statistics of a member about its own ops: sums over a span of time, which each TELEMETRY restarts.
struct wire_ops_seen {
    uint64_t span_us;
    uint64_t ops, op_us;   // calls that have ended, and the time from each one's launch to its end, together
    uint64_t processor_us; // that the thread of the data plane had
    // now
    uint64_t live;      // calls that have not ended
    uint64_t oldest_us; // since the first of those was launched
    uint64_t still_us;  // since anything of an op came, went or ended
    uint64_t epoch;     // group epoch
};

// Statistics of a member about another one: sums, as above.
struct wire_seen {
    uint64_t acked;              // bytes that the other one's kernel has acknowledged
    uint64_t busy_us, window_us; // in which bytes were under way; of these, in which its receive window was full
    // With data; those sent again by the middle share of the looks, as what is lost on the way is (link/stats).
    uint64_t segments, retransmits;
    uint64_t samples, backlogged; // looks at the links while a large op ran; those that found bytes waiting
    uint64_t delay_us;            // the round trips of the backlogged looks, with what waits on the way, together
    uint64_t entries;             // ops in which the other one comes next in the ring, and was heard to begin
    uint64_t late_us, early_us;   // after the own beginning, or before it
    uint64_t round_trip_us;       // now: the shortest of late
    uint64_t queue_us;            // now: how much longer than at best what it sends is on its way to here
    uint64_t awaited;             // now: calls under way of which nothing has come from there
    uint16_t lanes;               // now: connections that carry large tensors, beside the direct one
    uint8_t reason;               // now: why so many do (enum pace_reason); of a later version, any number
};

// How far a newcomer is with a pass over the state that it copies. Claims of the newcomer, which nothing depends on.
struct wire_progress {
    uint64_t done, total; // bytes that it has compared or copied, and all of them; done <= total
    uint64_t span_us;     // since the pass began
};

CURSOR_INLINE void wire_visit_number(struct cursor *c, uint64_t *number) {
    cursor_u64(c, number);
    cursor_expect(c, *number <= WIRE_MOST_SEEN);
}

CURSOR_INLINE void wire_visit_ops_seen(struct cursor *c, struct wire_ops_seen *ops) {
    wire_visit_number(c, &ops->span_us);
    wire_visit_number(c, &ops->ops);
    wire_visit_number(c, &ops->op_us);
    wire_visit_number(c, &ops->processor_us);
    wire_visit_number(c, &ops->live);
    wire_visit_number(c, &ops->oldest_us);
    wire_visit_number(c, &ops->still_us);
    cursor_u64(c, &ops->epoch);
}

CURSOR_INLINE void wire_visit_seen(struct cursor *c, struct wire_seen *seen) {
    wire_visit_number(c, &seen->acked);
    wire_visit_number(c, &seen->busy_us);
    wire_visit_number(c, &seen->window_us);
    wire_visit_number(c, &seen->segments);
    wire_visit_number(c, &seen->retransmits);
    wire_visit_number(c, &seen->samples);
    wire_visit_number(c, &seen->backlogged);
    wire_visit_number(c, &seen->delay_us);
    wire_visit_number(c, &seen->entries);
    wire_visit_number(c, &seen->late_us);
    wire_visit_number(c, &seen->early_us);
    wire_visit_number(c, &seen->round_trip_us);
    wire_visit_number(c, &seen->queue_us);
    wire_visit_number(c, &seen->awaited);
    cursor_u16(c, &seen->lanes);
    cursor_u8(c, &seen->reason);
}

CURSOR_INLINE void wire_visit_progress(struct cursor *c, struct wire_progress *progress) {
    wire_visit_number(c, &progress->done);
    wire_visit_number(c, &progress->total);
    wire_visit_number(c, &progress->span_us);
    cursor_expect(c, progress->done <= progress->total);
}

#endif
