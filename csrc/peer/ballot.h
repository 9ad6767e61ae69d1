// A peer's open vote, as it is cast, and cast again before the next master. Pure.
#ifndef PCCL_PEER_BALLOT_H
#define PCCL_PEER_BALLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/decision.h"

struct ballot {
    uint8_t kind;               // enum wire_vote_kind, 0 = none is open
    bool unsent;                // it was opened when nobody could hear it
    struct wire_sync_vote sync; // of WIRE_VOTE_SYNC
    bool differs_told;
    struct wire_sync_differs differs; // of the round at hand, or the last one
};

// `sync` is NULL unless `kind` is WIRE_VOTE_SYNC. `heard`: the master hears it.
void ballot_open(struct ballot *b, enum wire_vote_kind kind, const struct wire_sync_vote *sync, bool heard);
void ballot_close(struct ballot *b);
// Casts it.
void ballot_send(struct ballot *b, struct wire_header header, struct wire_buffer *out);
// The next master will hold the election again, with what the tensors hold now; `self` is whose they are.
void ballot_begin_again(struct ballot *b, enum member_tensors tensors, const struct wire_hash *content,
                        const struct wire_id *self);
// SYNC_DIFFERS. False: malformed.
bool ballot_take_differs(struct ballot *b, const uint8_t *body, size_t length);
// Whether a peer was expelled by the round of shared state that is under way, and not for something else in the middle.
bool ballot_is_at_fault(const struct wire_header *header, const struct wire_text *text);

#endif
