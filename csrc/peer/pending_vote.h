// A peer's open vote, as it is cast, and cast again before the next master. Pure.
#ifndef PCCL_PEER_PENDING_VOTE_H
#define PCCL_PEER_PENDING_VOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/decision.h"

struct pending_vote {
    uint8_t kind;               // enum wire_vote_kind, 0 = none is open
    bool unsent;                // it was opened when nobody could hear it
    struct wire_sync_vote sync; // of WIRE_VOTE_SYNC
    bool differs_told;
    struct wire_sync_differs differs; // of the round at hand, or the last one
};

// `sync` is NULL unless `kind` is WIRE_VOTE_SYNC. `heard`: the master hears it.
void pending_vote_open(struct pending_vote *b, enum wire_vote_kind kind, const struct wire_sync_vote *sync, bool heard);
void pending_vote_close(struct pending_vote *b);
// Casts it.
void pending_vote_send(struct pending_vote *b, struct wire_header header, struct wire_buffer *out);
// The next master will hold the election again, with what the tensors hold now; `self` is whose they are.
void pending_vote_begin_again(struct pending_vote *b, enum member_tensors tensors, const struct wire_hash *content,
                              const struct wire_id *self);
// SYNC_DIFFERS. False: malformed.
bool pending_vote_take_differs(struct pending_vote *b, const uint8_t *body, size_t length);
// Whether a peer was expelled by the round of shared state that is under way, and not for something else in the middle.
bool pending_vote_is_at_fault(const struct wire_header *header, const struct wire_text *text);

#endif
