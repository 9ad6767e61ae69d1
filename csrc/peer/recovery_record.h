// The recovery record: what a peer must know after a loss of the master. Pure.
//
// The run is what its members know, so each keeps what the next master has to hear: how the last vote of all and the
// last round of its group ended, the last verdicts, and the losses that its program has not met. Whoever missed one of
// these still has its vote or its op open, and nothing further can have ended without it: so one of each is enough, and
// as many verdicts as ops can be live.
#ifndef PCCL_PEER_RECOVERY_RECORD_H
#define PCCL_PEER_RECOVERY_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/decision.h"

enum { RECOVERY_RECORD_EPOCHS = 64 };

struct recovery_record {
    uint64_t lost_epoch;                     // the last group epoch that lost a member of the own group
    struct wire_quorum quorum;               // of the epoch in force
    uint8_t signature[WIRE_SIGNATURE_BYTES]; // likewise, of the master that made it
    struct wire_ended_vote last_vote;        // the last vote of all that ended
    struct {
        bool committed;                     // took part in a commit of the group
        uint64_t round, revision, expected; // the last round that ended, as wire_resume tells
        uint8_t code;
    } sync;
    struct member_view adopted; // by the program
    uint32_t loss_count;        // of the own group, after the last vote that was adopted
    uint32_t past_count, past_next;
    uint32_t epoch_count;
    const struct epoch
        *epochs[RECOVERY_RECORD_EPOCHS]; // of the own group: the adopted one and later ones, oldest first

    // Nothing of these is read before it is written, so that nobody pays for clearing them.
    struct wire_group_size sizes[WIRE_MAX_MEMBERS]; // of `last_vote`
    struct member_view losses[WIRE_MAX_MEMBERS];    // oldest first
    struct wire_past past[WIRE_MAX_PAST];           // of a ring
};

void recovery_record_init(struct recovery_record *t);
void recovery_record_fini(struct recovery_record *t);

// ---- what happens ----
// An epoch is in force.
void recovery_record_note_epoch(struct recovery_record *t, const struct wire_epoch_commit *commit,
                                const struct epoch *epoch);
// A vote of all has ended; `epoch` is the one in force, or NULL.
void recovery_record_note_vote(struct recovery_record *t, uint64_t number, const struct wire_outcome *outcome,
                               const struct epoch *epoch);
// The last vote of all, as another peer knew it.
void recovery_record_take_vote(struct recovery_record *t, const struct wire_ended_vote *vote);
void recovery_record_note_sync(struct recovery_record *t, const struct wire_sync_end *end);
void recovery_record_note_verdict(struct recovery_record *t, const struct wire_verdict *verdict);
// The own group has lost members in the epoch of `view`, which the program has to meet.
void recovery_record_note_loss(struct recovery_record *t, const struct member_view *view);

// ---- adoption ----
void recovery_record_adopt(struct recovery_record *t, const struct member_view *view);
// Adopts the loss that made `group_epoch`; the newest one up to it when that very one is not known. Never goes back.
void recovery_record_adopt_loss(struct recovery_record *t, uint64_t group_epoch);
// The newest group epoch that is known, entered or of a loss; 0: none.
uint64_t recovery_record_newest(const struct recovery_record *t);
// The own group as the program has adopted it. NULL: its members are not known, because some were lost together with a
// master.
const struct epoch_ring *recovery_record_members(const struct recovery_record *t);

// Writes its part of `resume` for the next master; the lists of `resume` are `past` and `losses`.
void recovery_record_tell(const struct recovery_record *t, struct wire_resume *resume,
                          struct wire_past past[WIRE_MAX_PAST], struct wire_loss losses[WIRE_MAX_MEMBERS]);

#endif
