// How a peer outlives its master: what it keeps for the next one, how it goes over to that, and which master it dials
// when. Pure.
#ifndef PCCL_PEER_RECOVERY_H
#define PCCL_PEER_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "peer/decision.h"

// ---- the record, and the search for a master ----
//
// The run is what its members know, so each keeps what the next master has to hear: how the last vote of all and the
// last round of its group ended, the last verdicts, and the losses that its program has not met. Whoever missed one of
// these still has its vote or its op open, and nothing further can have ended without it: so one of each is enough, and
// as many verdicts as ops can be live.
//
// A peer acts on one master at a time: with RESUME it has done with all masters before. What it promised to one, it
// tells the next, so that of two masters that gather at once one has the higher generation; to that it belongs once it
// has entered an epoch of it. Not before that ends what the old generation had ended, for a master that is lost between
// the two leaves everything as it was.

enum {
    RECOVERY_EPOCHS = 64,
    RECOVERY_ANSWER_MS = 1000, // from RESUME to the first frame of a master, where there are others
    RECOVERY_TEXT = WIRE_MAX_TEXT + 64,
};

enum recovery_state {
    RECOVERY_NONE,
    RECOVERY_SEEKING, // no connection to a master
    RECOVERY_TOLD,    // RESUME sent
    RECOVERY_RESUMED, // the new generation is accepted, its first epoch is to come
};

struct recovery {
    // the record
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
    const struct epoch *epochs[RECOVERY_EPOCHS]; // of the own group: the adopted one and later ones, oldest first

    // the search
    enum recovery_state state;
    uint32_t limit_ms; // for how long a master is looked for; 0: not at all
    uint32_t masters;  // in the list
    uint64_t promised; // no master of a lower generation is listened to
    int64_t deadline;
    int64_t waits_until; // at the master that was told RESUME, if there are earlier ones in the list, else INT64_MAX
    int64_t answer_by;   // of a master that was told RESUME; 0: it has answered
    char lost_why[RECOVERY_TEXT];
    struct wire_text waits_why; // as a master said; ends with 0
    struct {
        bool vote, sync;
        struct member_view view; // to be adopted then
    } late;                      // what EPOCH will end
    struct wire_resumed resumed;

    // Nothing of these is read before it is written, so that nobody pays for clearing them.
    struct wire_group_size sizes[WIRE_MAX_MEMBERS]; // of `last_vote`
    struct member_view losses[WIRE_MAX_MEMBERS];    // oldest first
    struct wire_past past[WIRE_MAX_PAST];           // of a ring
    struct wire_group_size resumed_sizes[WIRE_MAX_MEMBERS];
    struct wire_loss resumed_losses[WIRE_MAX_MEMBERS];
};

void recovery_init(struct recovery *r);
void recovery_fini(struct recovery *r);

// Notes that an epoch is in force.
void recovery_note_epoch(struct recovery *r, const struct wire_epoch_commit *commit, const struct epoch *epoch);
// Notes that a vote of all has ended; `epoch` is the one in force, or NULL.
void recovery_note_vote(struct recovery *r, uint64_t number, const struct wire_outcome *outcome,
                        const struct epoch *epoch);
// Notes the last vote of all, as another peer knew it.
void recovery_take_vote(struct recovery *r, const struct wire_ended_vote *vote);
void recovery_note_sync(struct recovery *r, const struct wire_sync_end *end);
void recovery_note_verdict(struct recovery *r, const struct wire_verdict *verdict);
// Notes that the own group has lost members in the epoch of `view`, which the program has to meet.
void recovery_note_loss(struct recovery *r, const struct member_view *view);

void recovery_adopt(struct recovery *r, const struct member_view *view);
// Adopts the loss that made `group_epoch`; the newest one up to it when that very one is not known. Never goes back.
void recovery_adopt_loss(struct recovery *r, uint64_t group_epoch);
// The own group as the program has adopted it. NULL: its members are not known, because some were lost together with a
// master.
const struct epoch_ring *recovery_members(const struct recovery *r);

// The master is lost, or the one found instead.
void recovery_begin(struct recovery *r, const char *why, int64_t now_ns);
// RESUME goes out: writes the record to `resume`, with the lists `past` and `losses`. `limit_ns` is after how long a
// silent master counts as lost. `earlier`: there are earlier masters in the list, where by now more may be than at this
// one.
void recovery_resume(struct recovery *r, bool earlier, int64_t limit_ns, int64_t now_ns, struct wire_resume *resume,
                     struct wire_past past[WIRE_MAX_PAST], struct wire_loss losses[WIRE_MAX_MEMBERS]);
// A master gathers for this generation. True: it is promised, and waited for; who leaves now breaks its majority.
bool recovery_promise(struct recovery *r, uint64_t generation, int64_t limit_ns, int64_t now_ns);
// RESUMED of the generation that was promised, for a member of `group`. False: malformed.
bool recovery_take_resumed(struct recovery *r, const uint8_t *body, size_t length, uint32_t group);
// WAITING. False: malformed.
bool recovery_take_waiting(struct recovery *r, const uint8_t *body, size_t length);
// The first epoch of a new generation comes, with the view `now`: acts on the losses that RESUMED reported between
// epoch `before` and it. Others have ended calls with these losses, one by one, so this program has to meet each of
// them, too.
void recovery_hear_losses(struct recovery *r, uint64_t before, const struct member_view *now,
                          struct member_output *out);
// Whether an epoch tells the own group of a loss. What a peer adopts with the end of its vote or its connect it cannot
// lose afterwards.
bool recovery_has_lost(const struct recovery *r, const struct wire_epoch *epoch, bool newcomer);
static inline void recovery_end(struct recovery *r) {
    r->state = RECOVERY_NONE;
    memset(&r->late, 0, sizeof r->late);
}

// Whether it has waited for long enough at a later master of the list.
static inline bool recovery_looks_again(const struct recovery *r, int64_t now_ns) {
    return r->state == RECOVERY_TOLD && now_ns >= r->waits_until;
}
// Whether nobody hears what this peer says now.
static inline bool recovery_is_unheard(const struct recovery *r) {
    return r->state == RECOVERY_SEEKING || r->state == RECOVERY_TOLD;
}

// ---- dialling ----
//
// The masters of the list are dialled in their order: once by a new peer, repeatedly by one that has lost its master.

enum {
    SEEK_FAST_MS = 15,       // between two rounds through the list,
    SEEK_FAST_FOR_MS = 2000, // for so long; most masters that come back do so at once
    SEEK_SLOW_MS = 100,
    SEEK_DIAL_MS = 1000, // for one that does not answer
    SEEK_TELL_MS = 10000,
};

struct recovery_seek {
    const struct wire_address *masters; // borrowed
    uint32_t count, at;
    bool again;          // after the last one the first
    int64_t began, next; // when the next one is dialled
    int64_t told;
};

// `again`: the master was lost. It is the one dialled first if it is the only one, else the first of the list.
void recovery_seek_begin(struct recovery_seek *seek, bool again, int64_t now_ns);
// The one to be dialled.
static inline const struct wire_address *recovery_seek_master(const struct recovery_seek *seek) {
    return &seek->masters[seek->at];
}
// Notes that the master could not be reached, or left. Returns false if there is none left to try.
bool recovery_seek_failed(struct recovery_seek *seek, int64_t now_ns);
// From the first one on, at once: a better one may be there by now.
static inline void recovery_seek_anew(struct recovery_seek *seek, int64_t now) {
    seek->at = 0;
    seek->next = now;
}
// Returns true when another log line is due.
bool recovery_seek_tells(struct recovery_seek *seek, int64_t now_ns);

#endif
