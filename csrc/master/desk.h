// The desk: which peers the master knows, found by id and by connection; the run that they are in, its groups and the
// order of its members. What is said to a peer goes through the desk, so that nobody is told anything once it is out.
//
// A peer that is found wanting is dropped or expelled: it is `gone` at once, hears nothing more, and keeps its place
// until the state machine has taken it out, so pointers to peers stay valid until an event has settled.
#ifndef PCCL_MASTER_DESK_H
#define PCCL_MASTER_DESK_H

#include "base/platform.h"
#include "master/actions.h"
#include "net/arrival.h"
#include "net/peer_name.h"

enum {
    DESK_ID_BUCKETS = 1024, // of a table of ids, which holds at most WIRE_MAX_MEMBERS
    DESK_WARN_MS = 10000,   // who waits longer is told for whom (master/waits)
};

// A run goes by its id and its secret: who has another secret speaks of another run.
struct desk_run {
    uint64_t id; // 0: none
    uint8_t secret[16];
};

// In a round of shared state.
enum desk_part {
    DESK_WAITS, // holds the winner's state, and does not send
    DESK_GIVES,
    DESK_RECEIVES, // no SYNC_DONE yet
    DESK_RECEIVED,
};

// Everything that the master knows of a peer.
struct desk_peer {
    bool used, gone;
    bool accepted;       // a member of the epoch in force
    uint16_t next_by_id; // slot + 1 of the next in its bucket, or 0
    uint32_t conn;
    struct wire_member member;
    struct arrival heard;
    uint32_t latency_us; // worst of its links, 0 unknown
    uint8_t masters;     // in its list
    bool join_only;      // must not begin a run
    uint8_t vote;        // wire_vote_kind of the open vote, or 0
    int64_t waits_since; // since its vote was opened; of a newcomer, since it came
    struct desk_told {
        int64_t since_ns, next_ns; // the wait that began then is told of next
    } told;

    // of the candidate
    bool invited;   // newcomer: the passed update vote admits it if it can be reached
    bool listed;    // has a place in the candidate
    bool regrouped; // the candidate gives its group a new group epoch
    bool answered;  // sent LINKED for the attempt in progress
    bool hopeless;  // newcomer: not answered, and no link to an accepted peer

    // accepted
    struct desk_group *group; // borrowed
    uint32_t rank;            // in its group
    bool linked;              // all its links of the group epoch in force are complete
    bool reported;            // on the group epoch in force
    bool entered;             // an epoch that this master needs a quorum for (master/quorum)
    // A dispute about malformed frames cost another member its place. It still counts against this one in disputes with
    // members up to this join number (master/breaks).
    uint64_t settled_join;
    int64_t settled_until_ns;

    // of shared state
    bool committed;      // took part in the group's last commit
    enum desk_part part; // after the election
    uint64_t tx_bytes;   // as the receivers tell
};

struct desk_group {
    uint32_t id;
    uint32_t count;             // 0: not in use
    struct desk_peer **members; // by rank, in the desk's `order`
    uint64_t group_epoch;
    uint64_t lost_epoch;                  // the last group epoch that lost a member
    uint32_t latency_us, megabytes_per_s; // fixed with the group epoch, so that all members compute with the same
    bool changed, lost;                   // the next epoch is a new group epoch, because of a loss
};

struct desk {
    struct actions actions; // of the event at hand
    // Memory was refused for something that members have to know: nothing more is sent to them, and when the event ends
    // the run is given up, as if this master had ended in the middle of what it said.
    bool out_of_memory;
    int64_t now_ns, limit_ns; // limit: of heartbeats
    int64_t heartbeat_at;     // they are due
    int64_t survivors_until;  // members of a run that another master has left may still come

    struct desk_run run;
    uint64_t generation, number; // number: of the epoch in force, 0 = none yet
    struct desk_run last_run;    // the one before this one; who resumes it has to know its secret
    uint64_t last_generation;    // of that: no member of it here need have heard of it
    struct desk_run left_run;    // given up by this master, with the members `left`
    uint32_t left_count;

    uint64_t id_key;             // spreads ids over buckets, so that nobody can choose ids that share one
    uint32_t slots, group_slots; // peers[slots..] and groups[group_slots..] were never used
    uint32_t unused_from;        // slots below are in use
    uint32_t peer_count, loopback_count, gone_count;
    bool turnover;                     // peers came or went; the state machine clears it
    int64_t silence_at;                // no peer counts as silent before
    uint32_t count;                    // of `order`
    bool lost, changed;                // a loss, or a changed group, that no epoch tells of yet
    uint32_t open[WIRE_VOTE_SYNC + 1]; // votes, by wire_vote_kind
    int64_t warn_at;                   // when it is looked who waits for whom; INT64_MAX: nobody waits
    uint16_t by_id[DESK_ID_BUCKETS], by_conn[ACTIONS_MAX_CONNS]; // slot + 1, or 0

    // From here on nothing is read before it is written, so that nobody pays for clearing it.
    struct desk_peer peers[WIRE_MAX_MEMBERS];
    struct desk_group groups[WIRE_MAX_MEMBERS];
    struct desk_peer *order[WIRE_MAX_MEMBERS];    // accepted peers, group by group, in ring order
    struct wire_member members[WIRE_MAX_MEMBERS]; // of desk_describe
    struct wire_id left[WIRE_MAX_MEMBERS];        // of desk_leave_run
};

void desk_init(struct desk *desk, int64_t limit_ns, uint64_t id_key, int64_t now_ns);
void desk_fini(struct desk *desk);

bool desk_run_equal(const struct desk_run *a, const struct desk_run *b);
// Records the current members when this master gives the run up.
void desk_leave_run(struct desk *desk);

// ---- peers ----

uint32_t desk_bucket(uint64_t key, const struct wire_id *id); // below DESK_ID_BUCKETS
// NULL: there is none, or it is gone
struct desk_peer *desk_of_id(struct desk *desk, const struct wire_id *id);
struct desk_peer *desk_of_conn(struct desk *desk, uint32_t conn); // NULL: none
struct desk_peer *desk_member(struct desk *desk, const struct desk_group *group, const struct wire_id *id);
static inline uint32_t desk_slot(const struct desk *desk, const struct desk_peer *peer) {
    return (uint32_t)(peer - desk->peers);
}
// There is room for it.
struct desk_peer *desk_add(struct desk *desk, uint32_t conn, const struct wire_member *member);
// Nobody holds it any more.
void desk_forget(struct desk *desk, struct desk_peer *peer);
void desk_heard(struct desk *desk, struct desk_peer *peer, int64_t now_ns);
// The peer's vote is open, or with 0, is no longer.
void desk_set_vote(struct desk *desk, struct desk_peer *peer, uint8_t kind);
// Somebody's wait begins.
void desk_begin_wait(struct desk *desk, struct desk_peer *peer);
// "peer host-a (01020304, join 5)", and the same "at 10.0.0.1:999".
struct desk_text {
    char chars[PEER_LABEL_BYTES + 64];
};
struct peer_label desk_name(const struct desk_peer *peer);
struct desk_text desk_place(const struct desk_peer *peer);

// ---- groups ----

// The groups in use, in the order of their members; NULL at the end.
struct desk_group *desk_first(const struct desk *desk);
struct desk_group *desk_after(const struct desk *desk, const struct desk_group *group);
static inline uint32_t desk_group_slot(const struct desk *desk, const struct desk_group *group) {
    return (uint32_t)(group - desk->groups);
}
// The group of that number, made where there is none.
struct desk_group *desk_group_for(struct desk *desk, uint32_t id);
void desk_rank(struct desk *desk); // ranks and groups' ranges, from `order`
// Peers as the members of an epoch, to encode before the next call.
struct wire_epoch desk_describe(struct desk *desk, struct desk_peer *const *peers, uint32_t count);
// A new group epoch is to come.
void desk_change(struct desk *desk, struct desk_group *group);

// ---- what is said ----

struct wire_header desk_header(const struct desk *desk); // of a control message of this moment
static inline struct wire_buffer *desk_frame(struct desk *desk) { return actions_frame(&desk->actions); }
// Sends the frame that was encoded last. Where memory is refused a newcomer is dropped, and of a member the desk
// starves.
void desk_send(struct desk *desk, struct desk_peer *peer);
void desk_send_group(struct desk *desk, const struct desk_group *group);
void desk_send_text(struct desk *desk, struct desk_peer *peer, enum wire_type type, const char *text);
// The peer is out; its connection is closed.
void desk_drop(struct desk *desk, struct desk_peer *peer, enum log_level level, const char *why);
// The same, told to the peer: EXPELLED, or REFUSED for a newcomer.
void desk_expel(struct desk *desk, struct desk_peer *peer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
extern const char DESK_NO_RUN[]; // told to a peer that may only join a run
// Without members, the newcomers begin the next run: refuses them if none of them may begin one.
void desk_refuse_join_only(struct desk *desk);

#endif
