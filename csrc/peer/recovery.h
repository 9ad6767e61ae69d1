// How a peer outlives its master: what it keeps for the next one, how it goes over to that, and which master it dials
// when. Pure.
#ifndef PCCL_PEER_RECOVERY_H
#define PCCL_PEER_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/decision.h"

// ---- the recovery record: what a peer must know after a loss of the master ----
//
// The run is what its members know, so each keeps what the next master has to hear: how the last vote of all and the
// last round of its group ended, the last verdicts, and the losses that its program has not met. Whoever missed one of
// these still has its vote or its op open, and nothing further can have ended without it: so one of each is enough, and
// as many verdicts as ops can be live.

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

// ---- the search for a master ----
//
// A peer acts on one master at a time: with RESUME it has done with all masters before. What it promised to one, it
// tells the next, so that of two masters that gather at once one has the higher generation; to that it belongs once it
// has entered an epoch of it. Not before that ends what the old generation had ended, for a master that is lost between
// the two leaves everything as it was.

enum {
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

    // Nothing of these is read before it is written.
    struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    struct wire_loss losses[WIRE_MAX_MEMBERS];
};

void recovery_init(struct recovery *r, uint32_t limit_ms, uint32_t masters);
// The master is lost, or the one found instead.
void recovery_begin(struct recovery *r, const char *why, int64_t now_ns);
// RESUME goes out; `limit_ns` is after how long a silent master counts as lost. `earlier`: there are earlier masters in
// the list, where by now more may be than at this one.
void recovery_tell(struct recovery *r, bool earlier, int64_t limit_ns, int64_t now_ns);
// A master gathers for this generation. True: it is promised, and waited for; who leaves now breaks its majority.
bool recovery_promise(struct recovery *r, uint64_t generation, int64_t limit_ns, int64_t now_ns);
// RESUMED of the generation that was promised, for a member of `group` that knows of its group epoch `known`, or of a
// loss in it; 0: of none. False: malformed.
bool recovery_take_resumed(struct recovery *r, const uint8_t *body, size_t length, uint32_t group, uint64_t known);
// WAITING. False: malformed.
bool recovery_take_waiting(struct recovery *r, const uint8_t *body, size_t length);
void recovery_end(struct recovery *r);

// Whether it has waited for long enough at a later master of the list.
bool recovery_looks_again(const struct recovery *r, int64_t now_ns);
// Whether nobody hears what this peer says now.
bool recovery_is_unheard(const struct recovery *r);
// Returns one of the losses that RESUMED reported, as far as `now`, the first view after them, shows it.
struct member_view recovery_loss(const struct recovery *r, uint32_t at, const struct member_view *now);

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
const struct wire_address *recovery_seek_master(const struct recovery_seek *seek);
// Notes that the master could not be reached, or left. Returns false if there is none left to try.
bool recovery_seek_failed(struct recovery_seek *seek, int64_t now_ns);
// From the first one on, at once: a better one may be there by now.
void recovery_seek_anew(struct recovery_seek *seek, int64_t now_ns);
// Returns true when another log line is due.
bool recovery_seek_tells(struct recovery_seek *seek, int64_t now_ns);

#endif
