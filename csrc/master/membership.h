// The membership table: the peers that the master knows, found by id and by connection; the run that they are in, its
// groups and the order of its members; hosts whose newcomers fail, and who waits for whom. All messages to a peer go
// through it, so a peer that is out gets none.
//
// A peer that is found wanting is dropped or expelled: it is `gone` at once, hears nothing more, and keeps its place
// until the state machine has taken it out, so pointers to peers stay valid until an event has settled.
#ifndef PCCL_MASTER_MEMBERSHIP_H
#define PCCL_MASTER_MEMBERSHIP_H

#include "base/platform.h"
#include "master/actions.h"
#include "net/arrival.h"
#include "net/peer_name.h"

enum {
    MEMBERSHIP_ID_BUCKETS = 1024,      // of a table of ids, which holds at most WIRE_MAX_MEMBERS
    MEMBERSHIP_WARN_MS = 10000,        // who waits longer is told for whom
    MEMBERSHIP_LATENCY_US = 100,       // of a group, until one of its links has been timed
    MEMBERSHIP_MEGABYTES_PER_S = 1000, // of a group, until all links of its ring have been measured
    MEMBERSHIP_FAILED_HOSTS = 64,      // that are remembered; then the oldest is forgotten
};

// A run goes by its id and its secret: who has another secret speaks of another run.
struct run_identity {
    uint64_t id; // 0: none
    uint8_t secret[16];
};

// In a round of shared state.
enum sync_role {
    ROLE_WAITS, // holds the winner's state, and does not send
    ROLE_DONOR,
    ROLE_RECEIVER, // no SYNC_DONE yet
    ROLE_DONE,
};

// Everything that the master knows of a peer.
struct peer_record {
    bool used, gone;
    bool accepted;       // a member of the epoch in force
    uint16_t next_by_id; // slot + 1 of the next in its bucket, or 0
    uint32_t conn;
    struct wire_member member;
    struct arrival heard;
    uint32_t latency_us;            // worst of its links, 0 unknown
    uint8_t masters;                // in its list
    bool join_only;                 // must not begin a run
    bool copies;                    // newcomer: it copies the state, and is not to be admitted yet
    struct wire_progress progress;  // of that copy, as it has told
    uint8_t vote;                   // wire_vote_kind of the open vote, or 0
    bool leaving;                   // it has announced that it leaves, within `leaves_ns` if that is known (INT64_MAX)
    bool leaves_at_update;          // the next update vote that passes takes it out
    char drained[WIRE_MAX_WHY + 1]; // the operator wished so: who and why; empty: it did not
    int64_t leaves_ns;
    int64_t waits_since;     // since its vote was opened; of a newcomer, since it came
    struct wire_waits waits; // what it has told that its program waits for, at `waits_ns`
    int64_t waits_ns;
    bool stuck;      // all of its calls wait for members that are stuck (master/deadlock)
    size_t waits_at; // of master/deadlock: where the operation that is looked at begins in its list
    struct wait_report {
        int64_t since_ns, next_ns; // the wait that began then is told of next
    } told;

    // of the candidate
    bool invited;   // newcomer: the passed update vote admits it if it can be reached
    bool listed;    // has a place in the candidate
    bool regrouped; // the candidate gives its group a new group epoch
    bool answered;  // sent LINKED for the attempt in progress
    bool hopeless;  // newcomer: not answered, and no link to an accepted peer

    // accepted
    struct peer_group *group; // borrowed
    uint32_t rank;            // in its group
    bool linked;              // all its links of the group epoch in force are complete
    bool reported;            // on the group epoch in force
    bool entered;             // an epoch that this master needs a quorum for (master/quorum)
    // A dispute about malformed frames cost another member its place. It still counts against this one in disputes with
    // members up to this join number (master/breaks).
    uint64_t settled_join;
    int64_t settled_until_ns;

    // of shared state
    bool committed;          // took part in the group's last commit
    struct wire_state state; // at the end of that, for those who ask (master/matrix)
    enum sync_role part;     // after the election
    uint64_t tx_bytes;       // as the receivers tell
};

struct peer_group {
    uint32_t id;
    uint32_t count;               // 0: not in use
    struct peer_record **members; // by rank, in the table's `order`
    uint64_t group_epoch;
    uint64_t lost_epoch;                  // the last group epoch that lost a member
    uint32_t latency_us, megabytes_per_s; // fixed with the group epoch, so that all members compute with the same
    bool changed, lost;                   // the next epoch is a new group epoch, because of a loss
};

// A host whose newcomers have failed to make their links: the members waited for those in vain.
struct failed_host {
    struct wire_address address; // any port
    uint32_t failures;           // 0: unused
    int64_t at_ns;               // of the last one
};

struct membership {
    struct actions actions; // of the event at hand
    // Memory was refused for something that members have to know: nothing more is sent to them, and when the event ends
    // the run is given up, as if this master had ended in the middle of what it said.
    bool out_of_memory;
    int64_t now_ns, limit_ns; // limit: of heartbeats
    int64_t heartbeat_at;     // they are due
    int64_t survivors_until;  // members of a run that another master has left may still come

    struct run_identity run;
    struct wire_limits limits;    // of the run: those of its first peer, which all others have too
    uint64_t generation, number;  // number: of the epoch in force, 0 = none yet
    struct run_identity last_run; // the one before this one; who resumes it has to know its secret
    uint64_t last_generation;     // of that: no member of it here need have heard of it
    struct run_identity left_run; // given up by this master, with the members `left`
    uint32_t left_count;

    uint64_t id_key;             // spreads ids over buckets, so that nobody can choose ids that share one
    uint32_t slots, group_slots; // peers[slots..] and groups[group_slots..] were never used
    uint32_t unused_from;        // slots below are in use
    uint32_t peer_count, loopback_count, gone_count;
    bool turnover;                     // peers came or went; the state machine clears it
    int64_t silence_at;                // no peer counts as silent before
    uint32_t count;                    // of `order`
    bool lost, changed;                // a loss, or a changed group, that no epoch tells of yet
    uint32_t lost_count;               // of lost_members
    uint32_t departed_count;           // ever; the last WIRE_MAX_DEPARTURES are kept, those of earlier runs too
    uint32_t open[WIRE_VOTE_SYNC + 1]; // votes, by wire_vote_kind
    int64_t warn_at;                   // when it is looked who waits for whom; INT64_MAX: nobody waits
    int64_t deadlock_at;               // when it is looked for a deadlock (master/deadlock); INT64_MAX: nobody waits
    int64_t deadlock_ns;               // for so long its members wait before they are told; 0: they are not
    struct failed_host failed_hosts[MEMBERSHIP_FAILED_HOSTS];
    uint16_t by_id[MEMBERSHIP_ID_BUCKETS], by_conn[ACTIONS_MAX_CONNS]; // slot + 1, or 0

    // From here on nothing is read before it is written, so that nobody pays for clearing it.
    struct peer_record peers[WIRE_MAX_MEMBERS];
    struct peer_group groups[WIRE_MAX_MEMBERS];
    struct peer_record *order[WIRE_MAX_MEMBERS];     // accepted peers, group by group, in ring order
    struct wire_member members[WIRE_MAX_MEMBERS];    // of membership_epoch
    struct wire_id left[WIRE_MAX_MEMBERS];           // of left_run
    struct wire_gone lost_members[WIRE_MAX_MEMBERS]; // accepted peers that are gone, and no epoch has told yet
    struct membership_departure {
        pcclDiagnosisDeparture_t told; // without its time
        int64_t at_ns;
    } departed[WIRE_MAX_DEPARTURES]; // a ring, for whoever asks for the status
};

void membership_init(struct membership *table, int64_t limit_ns, uint64_t id_key, int64_t now_ns);
static inline void membership_fini(struct membership *table) { actions_fini(&table->actions); }

bool membership_same_run(const struct run_identity *a, const struct run_identity *b);

// ---- peers ----

uint32_t membership_bucket(uint64_t key, const struct wire_id *id); // below MEMBERSHIP_ID_BUCKETS
// NULL: there is none, or it is gone
struct peer_record *membership_by_id(struct membership *table, const struct wire_id *id);
// Returns NULL if there is none.
static inline struct peer_record *membership_by_conn(struct membership *table, uint32_t conn) {
    return conn < ACTIONS_MAX_CONNS && table->by_conn[conn] != 0 ? &table->peers[table->by_conn[conn] - 1] : NULL;
}
// Whether a sync of a member of this group has succeeded.
bool membership_has_state(const struct membership *table, uint32_t group);
struct peer_record *membership_in_group(struct membership *table, const struct peer_group *group,
                                        const struct wire_id *id);
static inline uint32_t membership_slot(const struct membership *table, const struct peer_record *peer) {
    return (uint32_t)(peer - table->peers);
}
// There is room for it.
struct peer_record *membership_add(struct membership *table, uint32_t conn, const struct wire_member *member);
// Nobody holds it any more.
void membership_remove(struct membership *table, struct peer_record *peer);
void membership_heard(struct membership *table, struct peer_record *peer, int64_t now_ns);
// The peer's vote is open, or with 0, is no longer.
void membership_set_vote(struct membership *table, struct peer_record *peer, uint8_t kind);
// Somebody's wait begins.
void membership_begin_wait(struct membership *table, struct peer_record *peer);
const char *membership_call(uint8_t vote); // that is a vote of this kind
// At warn_at: tells waiting members and the log who waits for whom, after MEMBERSHIP_WARN_MS, then less often. `idle`:
// false while links are made or rates measured for all.
void membership_tell_waits(struct membership *table, bool idle);
// "peer host-a (01020304, rank 0, join 5)", for a newcomer without the rank, and the same "at 10.0.0.1:999".
struct peer_text {
    char chars[PEER_LABEL_BYTES + 64];
};
struct peer_label membership_label(const struct peer_record *peer);
// Why a peer is refused that speaks this version of the protocol.
struct peer_text membership_foreign(uint16_t version);
struct peer_text membership_label_at(const struct peer_record *peer);

// ---- hosts whose newcomers fail ----

void membership_host_failed(struct membership *table, const struct wire_address *address);   // one has failed
void membership_host_admitted(struct membership *table, const struct wire_address *address); // one was admitted
// Returns until when newcomers from there wait behind the others, which they do from the second failure on; 0: they do
// not. Meanwhile they are asked into no candidate while members wait.
int64_t membership_host_waits_until(struct membership *table, const struct wire_address *address);

// ---- groups ----

// The groups in use, in the order of their members; NULL at the end.
struct peer_group *membership_groups(const struct membership *table);
struct peer_group *membership_next(const struct membership *table, const struct peer_group *group);
static inline uint32_t membership_group_slot(const struct membership *table, const struct peer_group *group) {
    return (uint32_t)(group - table->groups);
}
// The group of that number, made where there is none.
struct peer_group *membership_ensure_group(struct membership *table, uint32_t id);
void membership_rank(struct membership *table); // ranks and groups' ranges, from `order`
// Peers as the members of an epoch, to encode before the next call.
struct wire_epoch membership_epoch(struct membership *table, uint64_t number, struct peer_record *const *peers,
                                   uint32_t count);
// A new group epoch is to come.
void membership_change_group(struct membership *table, struct peer_group *group);

// ---- what is said ----

struct wire_header membership_header(const struct membership *table); // of a control message of this moment
static inline struct wire_buffer *membership_frame(struct membership *table) { return actions_frame(&table->actions); }
// Sends the frame that was encoded last. If memory is refused, drops a newcomer; for a member sets `out_of_memory`.
void membership_send(struct membership *table, struct peer_record *peer);
void membership_send_group(struct membership *table, const struct peer_group *group);
void membership_send_text(struct membership *table, struct peer_record *peer, enum wire_type type, const char *text);
// Notes that a member of this rank is gone, for the next epoch and the status.
void membership_note_lost(struct membership *table, const struct wire_member *member, uint32_t rank,
                          enum wire_loss_reason reason, const char *why);
// The peer is out; its connection is closed.
void membership_drop(struct membership *table, struct peer_record *peer, enum wire_loss_reason reason,
                     enum log_level level, const char *why);
// The same, told to the peer: EXPELLED, or REFUSED for a newcomer.
void membership_expel_for(struct membership *table, struct peer_record *peer, enum wire_loss_reason reason,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));
#define membership_expel(table, peer, ...) membership_expel_for(table, peer, WIRE_LOSS_EXPELLED, __VA_ARGS__)

#endif
