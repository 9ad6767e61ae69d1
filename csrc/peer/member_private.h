// What the files of a peer's mind share: member.c (memberships, links, votes), member_recovery.c (the loss of the
// master).
#ifndef PCCL_PEER_MEMBER_PRIVATE_H
#define PCCL_PEER_MEMBER_PRIVATE_H

#include "net/arrival.h"
#include "ops/epoch.h"
#include "peer/member.h"

enum link_state { LINK_ABSENT, LINK_MAKING, LINK_FAILED, LINK_UP };

struct link {
    uint8_t state;
    bool dialled_again; // one dial may fail: a reset in the middle of a hello tells little
    uint64_t made_in;   // number of the epoch in force when it came up
};

enum membership_kind { IN_EPOCH, IN_CANDIDATE, MEMBERSHIPS };

enum recovery {
    RECOVERY_NONE,
    RECOVERY_SEEKING, // no connection to a master
    RECOVERY_TOLD,    // RESUME sent
    RECOVERY_RESUMED, // the new generation is accepted, its first epoch is to come
};

struct neighbour {
    struct wire_id id;
    uint64_t join_number;
    struct wire_address address;
    bool in[MEMBERSHIPS];
    bool lanes[MEMBERSHIPS]; // ring neighbour there: links beyond the direct one are required
    uint64_t accused_in;     // number of the epoch in which LINK_DOWN was sent
    uint32_t latency_us;
    uint32_t link_count; // direct link and lanes of the pair
    struct link *links;
};

struct member {
    enum member_phase phase;
    struct wire_id id;
    uint32_t group, lanes;
    uint64_t run, generation; // of the epoch in force
    uint64_t promised;        // no master of a lower one is listened to
    struct wire_welcome welcome;
    char text[MEMBER_TEXT];

    // the epoch in force
    struct epoch *epoch; // NULL before the first
    struct member_view view;
    bool linked;             // all its links were there once since it began
    int64_t linked_deadline; // when missing links are reported
    int64_t fresh_at;        // when a fresh group epoch is asked for; 0 = never
    // until then a link that breaks and is older than the epoch is no second failure of its pair
    int64_t relinked_until;

    struct {
        bool active, answered;
        uint32_t attempt;
        int64_t deadline;
    } candidate;

    struct neighbour *neighbours;
    size_t neighbour_count, neighbour_capacity;

    uint8_t vote;                    // enum wire_vote_kind, 0 = none open
    struct wire_sync_vote sync_vote; // of WIRE_VOTE_SYNC
    bool differs_told;
    struct wire_sync_differs differs; // of the round at hand, or the last one

    // what the next master must know (member_recovery.c)
    uint64_t lost_epoch;         // of the own group
    struct wire_quorum quorum;   // of the epoch in force, as EPOCH told
    struct wire_barrier barrier; // the last one passed
    struct {
        bool committed;                     // took part in a commit of the group
        uint64_t round, revision, expected; // the last round that ended, as wire_resume tells
        uint8_t code;
    } sync;
    uint32_t past_count, past_next; // of a ring

    // while the master is lost
    enum recovery recovery;
    uint32_t recovery_limit_ms, masters;
    int64_t recovery_deadline, lost_at;
    int64_t waits_until; // see member_waits_until
    bool vote_unsent;    // it was opened when nobody could hear it
    char lost_why[MEMBER_TEXT];
    struct wire_text waits_why; // as a master said; ends with 0
    struct {
        bool barrier, sync;      // what EPOCH will end
        struct member_view view; // adopted then
    } late;

    struct member_view adopted;
    uint32_t loss_count; // of the own group, after the last vote that was adopted

    int64_t join_deadline, beat_at;
    struct arrival master; // what was heard of it
    int64_t answer_by;     // of a master that was told RESUME; 0: it has answered

    // From here on nothing is read before it is written, so that nobody pays for clearing it.
    struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    struct wire_past past[WIRE_MAX_PAST];
    struct member_view losses[WIRE_MAX_MEMBERS]; // oldest first
    // decoding
    struct wire_member members[WIRE_MAX_MEMBERS];
    struct wire_linked answer;
    struct wire_verdict verdict;
    struct wire_sync_plan plan;
    struct wire_sync_end end;
    struct wire_resumed resumed;
    struct wire_group_size resumed_sizes[WIRE_MAX_MEMBERS];
    struct wire_loss resumed_losses[WIRE_MAX_MEMBERS];
};

// ---- member.c ----
struct member_action *member_act(struct member_output *out, enum member_action_kind kind); // never NULL
void member_die_of(struct member *m, int code, struct member_output *out, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
struct member_action *member_end_vote(struct member *m, int code, uint64_t value, struct member_output *out);
void member_remember_loss(struct member *m, const struct member_view *view);
void member_leave_membership(struct member *m, enum membership_kind kind);
void member_end_candidate(struct member *m);
void member_drop_strangers(struct member *m, struct member_output *out); // neighbours in no membership
void member_take_welcome(struct member *m, const struct wire_header *header, int64_t now, struct member_output *out);
void member_take_end(struct member *m, const struct wire_header *header, const struct wire_text *text,
                     struct member_output *out);

// ---- member_recovery.c ----
struct wire_hello member_hello(const struct member *m, uint16_t port);
// What has to be known after a loss of the master, as it happens.
bool member_epoch_lost(const struct member *m, const struct wire_epoch *epoch);   // it tells the own group of a loss
void member_note_epoch(struct member *m, const struct wire_epoch_commit *commit); // `view` is the new one
void member_note_barrier(struct member *m, uint64_t number, const struct wire_outcome *outcome);
void member_note_sync(struct member *m, const struct wire_sync_end *end);
void member_note_verdict(struct member *m, const struct wire_verdict *verdict);
// The master is lost: looks for another one, or dies.
void member_lose_master(struct member *m, const char *why, int64_t now, struct member_output *out);
void member_said_bye(struct member *m, int64_t now, struct member_output *out);
void member_give_up(struct member *m, struct member_output *out); // the limit has passed
bool member_is_unheard(const struct member *m); // what it says now is ignored; after RESUMED it no longer is
// A master without a run. False: malformed.
bool member_take_waiting(struct member *m, const struct wire_header *header, const uint8_t *body,
                         struct member_output *out);
// A frame after RESUME. False: malformed.
// what RESUMED told of, as the epoch of `now` is entered
void member_hear_losses(struct member *m, const struct member_view *now, struct member_output *out);
bool member_take_answer(struct member *m, const struct wire_header *header, const uint8_t *body, int64_t now,
                        struct member_output *out);
void member_recovered(struct member *m, struct member_output *out); // an epoch was entered

#endif
