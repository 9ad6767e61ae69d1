// What the files of the master's mind share: membership.c (peers, votes, time), membership_epochs.c (epochs and
// candidates), membership_ops.c (ends of ops), membership_links.c (links that break), membership_optimise.c
// (measurements and order), membership_sync.c (shared state), membership_recovery.c (runs that another master has
// left).
//
// An event changes state and calls settle, which removes the peers that are `gone`, puts the epochs in force that this
// makes necessary, and lets votes pass, until nothing is left to do. So a function that finds a peer wanting only calls
// membership_drop and goes on; pointers to peers stay valid until settle.
#ifndef PCCL_MASTER_MEMBERSHIP_PRIVATE_H
#define PCCL_MASTER_MEMBERSHIP_PRIVATE_H

#include "base/platform.h"
#include "net/arrival.h"
#include "master/election.h"
#include "master/membership.h"
#include "master/op_table.h"

enum {
    STRIKES_MAX = 64, // hosts whose failed newcomers are remembered; then the oldest is forgotten
    PEER_WORDS = WIRE_MAX_MEMBERS / 64,
    ID_BUCKETS = 1024, // of a table of ids, which holds at most WIRE_MAX_MEMBERS
    FAILURES_MAX = 2,  // of one pair's links, then one of the two is expelled
    // heartbeat limits for which a pair's silence is remembered, also if the links were made again
    SILENCE_LIMITS = 4,
    DEFAULT_LATENCY_US = 100, // until a link has been timed
    DEFAULT_MEGABYTES_PER_S = 1000,
    VOTE_SYNC = WIRE_VOTE_SYNC,    // per group, not counted over the run
    CODE_SUCCESS = 0,              // pcclSuccess
    CODE_NO_STATE = 9,             // pcclNoSharedStateAvailable
    CODE_OPTIMIZATION_FAILED = 12, // pcclTopologyOptimizationFailed
};

enum sync_part {
    SYNC_WAITS,    // holds the winner's state, and does not send
    SYNC_GIVES,    // a donor
    SYNC_RECEIVES, // no SYNC_DONE yet
    SYNC_RECEIVED,
};

// Shared state: one member.
struct peer_sync {
    bool committed;             // took part in the group's last commit
    struct wire_sync_vote vote; // while VOTE_SYNC is open
    enum sync_part part;        // after the election
    uint64_t tx_bytes;          // as the receivers tell
};

enum sync_phase {
    SYNC_VOTING,
    SYNC_ELECTED, // those that the election expelled have to be gone before the others hear of it
    SYNC_MOVING,  // the plan was sent
};

// Shared state: one group.
struct group_sync {
    bool committed;    // `expected` is set
    uint64_t expected; // E
    // the round at hand
    enum sync_phase phase;
    struct wire_sync_end last; // the round that ended last; no text, no bytes
    bool ahead;                // a vote was ahead of E
    uint64_t round;            // from ELECTED on
    struct election_result result;
    char failed[128]; // a receiver could not get its state: who; "" otherwise
};

struct peer {
    bool used, gone;
    bool accepted;
    uint16_t next_by_id; // slot + 1 of the next in its bucket, or 0
    uint32_t conn;
    struct wire_member member;
    struct arrival heard;
    uint8_t vote; // wire_vote_kind of the open vote, VOTE_SYNC, or 0
    int64_t voted_ns;
    uint32_t latency_us;         // worst of its links, 0 unknown
    uint8_t masters;             // in its list
    int64_t waits_since;         // newcomer
    int64_t told_since, tell_at; // of what it waits for (membership_waits.c): the wait that began then is told of next

    // candidate
    bool invited;                     // newcomer: the passed update vote admits it if it can be reached
    bool candidate;                   // has a place in the candidate epoch
    bool regrouped;                   // the candidate gives its group a new group epoch
    bool answered;                    // sent LINKED for the attempt in progress
    bool hopeless;                    // newcomer: not answered, and no link to an accepted peer
    uint64_t unreachable[PEER_WORDS]; // by slot, as answered

    // accepted
    struct group *group; // borrowed
    uint32_t rank;       // in its group
    bool linked;         // all its links of the group epoch in force are complete
    bool reported;       // on the group epoch in force
    bool entered;        // an epoch from `taken_number` on
    uint32_t host;       // see membership_optimise.c
    struct peer_sync sync;
};

// A host whose newcomers have failed to make their links.
struct strike {
    struct wire_address host; // any port
    uint32_t failures;        // 0: unused
    int64_t at_ns;            // of the last one
};

// Two members whose link broke and is not yet known to work again.
struct link_pair {
    uint16_t a, b; // slots, a < b
    uint8_t failures;
    bool pending; // down, not yet acted on
    bool a_accuses, b_accuses;
    int64_t silent_at; // when it was last told to be silent, 0 = never
};

struct group {
    uint32_t id;
    uint32_t begin, count; // its members in `order`; count 0: not in use
    uint64_t group_epoch;
    uint64_t lost_epoch;                  // the last group epoch that lost a member
    uint32_t latency_us, megabytes_per_s; // fixed with the group epoch, so that all members compute with the same
    bool changed, lost;                   // the next epoch is a new group epoch, because of a loss

    struct op_table done;    // large ops of which some members are done
    struct op_table reports; // on the group epoch in force
    uint32_t reports_missing;
    const struct survivor *witness; // of its losses, while a run is taken up: nobody has heard of more
    struct op_table past; // verdicts of the master before: DONE = COMMIT, OPEN = MISMATCH, by those that have them

    struct link_pair *pairs;
    uint32_t pair_count, pair_capacity;
    int64_t relink_at;     // INT64_MAX: no link is down
    int64_t hearing_since; // then somebody may be expelled; 0: not

    struct group_sync sync;
};

enum phase {
    PHASE_IDLE,      // votes are being collected
    PHASE_CANDIDATE, // links of a candidate epoch are being made
    PHASE_MEASURE,   // rounds of measurements
};

struct measurement {
    struct peer *from, *to;
    bool answered;
};

struct membership {
    struct membership_actions actions;
    int64_t now_ns, limit_ns;
    uint8_t random[MEMBERSHIP_RANDOM_BYTES];
    bool wants_random;
    uint64_t id_key; // spreads ids over buckets, so that nobody can choose ids that share one

    uint64_t run, generation, number; // number: of the epoch in force, 0 = none yet
    uint8_t secret[16];
    uint64_t next_join;
    uint64_t barrier; // how many votes of all have ended

    uint32_t slots, group_slots;      // peers[slots..] and groups[group_slots..] were never used
    uint32_t peer_count;              // used
    uint32_t loopback_count;          // of these
    uint32_t unused_from;             // slots below are in use
    uint16_t peers_by_id[ID_BUCKETS]; // slot + 1, or 0
    int64_t silence_at;               // no peer counts as silent before
    uint32_t gone_count;
    uint16_t by_conn[MEMBERSHIP_MAX_CONNS]; // slot + 1, or 0
    uint32_t count;
    bool starved;       // memory was refused: see membership_starve
    bool lost, changed; // a loss, or a changed group, that no epoch tells of yet

    uint32_t open_votes[VOTE_SYNC + 1];
    int64_t warn_at; // when it is looked who waits for whom; INT64_MAX: nobody waits

    enum phase phase;
    uint8_t candidate_kind; // WIRE_VOTE_UPDATE or WIRE_VOTE_OPTIMIZE
    bool candidate_stale;   // the epoch in force or the candidate's members changed under it
    bool candidate_judged;  // all answered, and a broken link between accepted peers must be repaired first
    uint32_t attempt;
    uint32_t candidate_count, unanswered;
    uint32_t accepted_unanswered, hopeless; // of the unanswered
    struct strike strikes[STRIKES_MAX];
    int64_t phase_deadline, measure_end;

    uint64_t *rates;     // [from slot][to slot], bytes/s, 0: unknown; made at the first optimisation
    uint32_t rate_slots; // that it has room for; later ones are unknown
    uint32_t round_count, round_number, round_unanswered;
    int64_t heartbeat_at;

    bool sync_due;       // a vote, a SYNC_DONE or a loss may let a round of shared state go on
    uint64_t sync_round; // number of the last one

    // while there is no run: see membership_recovery.c
    uint32_t survivor_count, claim_count;
    // a survivor came, went or promised, peers came or went, other masters answered, or time has passed
    bool gather_due;
    int64_t survivors_at; // nobody that waits is silent, or has waited too long, before
    uint64_t last_run;    // the one before this one, 0: none; who resumes it has to know its secret
    uint8_t last_secret[16];
    int64_t young_until; // members of a run that another master has left may still come
    // the run at hand, of newcomers alone, gives way to such a run; 0: it was taken up, or there is none
    int64_t yields_until;
    int64_t majority_at; // since when enough are here; INT64_MAX: they are not
    int64_t say_at;
    uint64_t said_epoch; // of the run whose members were said to be waited for; 0: of none
    bool standby, others_awaited;
    // members that have to enter an epoch from `taken_number` on until nobody can take the run up from one before; then
    // 0
    struct wire_quorum quorum;
    uint32_t entered, elders_entered; // those that have, gone or not
    // the first of this generation, or after a loss of peers that may live, or with newcomers
    uint64_t taken_number;
    // this master has stood still: until then its peers may find that they have left it
    int64_t woken_until;
    // the newest epoch that a member has said it is in; the last one that lost somebody
    uint64_t heard_number, lost_number;
    // peers that fell silent one after another, and the size of the epoch before the first
    uint32_t unheard, unheard_of;
    int64_t unheard_since;
    uint64_t gather_run, gather_generation; // promises are asked for these; 0: for none yet
    struct survivor *survivor_by_conn[MEMBERSHIP_MAX_CONNS];
    struct survivor *survivors_by_id[ID_BUCKETS]; // those that resume

    // From here on nothing is read before it is written, so that nobody pays for clearing it.
    struct peer peers[WIRE_MAX_MEMBERS];
    struct group groups[WIRE_MAX_MEMBERS];
    struct peer *order[WIRE_MAX_MEMBERS]; // accepted peers, group by group, in ring order
    struct peer *candidate[WIRE_MAX_MEMBERS];
    struct measurement round[WIRE_MAX_MEMBERS];
    struct survivor *survivors[WIRE_MAX_MEMBERS]; // in the order in which they came
    // owned by the survivors that make them; in the order in which they were first made
    struct claim *claims[WIRE_MAX_MEMBERS];
    // scratch, for encoding
    struct wire_member members[WIRE_MAX_MEMBERS];
    struct election_voter voters[WIRE_MAX_MEMBERS];
    // and for decoding
    struct wire_op_report reported[2 * WIRE_MAX_LIVE_OPS];
    struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    struct wire_past past[WIRE_MAX_PAST];
    struct wire_loss losses[WIRE_MAX_MEMBERS];
};

// ---- membership.c ----
struct wire_header membership_header(const struct membership *m); // control message of this moment
// Remembers where the frame that is encoded next begins; false from end: memory was refused.
size_t membership_frame_begin(struct membership *m);
bool membership_frame_end(struct membership *m, size_t begin, size_t *length);
// Memory was refused for something that members have to know: nothing more is sent to them, and when the event ends the
// run is given up, as if this master had ended in the middle of what it said.
void membership_starve(struct membership *m);
// Sends bytes [begin, begin + length) of the actions; drops a newcomer, starves of a member, when memory is refused.
void membership_send(struct membership *m, struct peer *peer, size_t begin, size_t length);
// The same to a connection that is no peer. False: memory was refused.
bool membership_send_to(struct membership *m, uint32_t conn, size_t begin, size_t length);
void membership_close(struct membership *m, uint32_t conn);
// Last words to a connection that is no peer.
void membership_turn_away(struct membership *m, uint32_t conn, struct wire_header header, enum wire_type type,
                          const char *why);
void membership_begin_event(struct membership *m, int64_t now_ns);
const struct membership_actions *membership_settle(struct membership *m);
uint32_t membership_bucket(const struct membership *m, const struct wire_id *id);   // below ID_BUCKETS
struct peer *membership_peer_of_id(struct membership *m, const struct wire_id *id); // NULL: none, or it is gone
void membership_note_heard(struct membership *m, struct peer *peer, int64_t now_ns);
void membership_forget_peer(struct membership *m, struct peer *peer); // nobody holds it
// There is room for it.
struct peer *membership_add_peer(struct membership *m, uint32_t conn, const struct wire_member *member);
// or refuses it
void membership_register(struct membership *m, uint32_t conn, const struct wire_address *source,
                         const struct wire_hello *hello);
void membership_log(struct membership *m, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// A line that anybody who can connect causes.
void membership_log_stranger(struct membership *m, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *membership_name(char out[64], const struct peer *peer);
const char *membership_name_and_address(char out[128], const struct peer *peer);
// The peer is out from the next settle on; its connection is closed.
void membership_drop(struct membership *m, struct peer *peer, enum log_level level, const char *why);
// The same, told to the peer: EXPELLED, or REFUSED for a newcomer.
void membership_expel(struct membership *m, struct peer *peer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void membership_open_vote(struct membership *m, struct peer *peer, uint8_t kind);
void membership_close_vote(struct membership *m, struct peer *peer);
void membership_outcome(struct membership *m, uint8_t kind, uint8_t code, uint64_t value); // to all; the vote is over

// ---- membership_epochs.c ----
// NULL: not (any more) a member
struct peer *membership_member(struct membership *m, const struct group *group, const struct wire_id *id);
void membership_place(struct membership *m); // ranks and groups' ranges, from `order`
void membership_group_fini(struct group *group);
void membership_change(struct membership *m, struct group *group); // a new group epoch is to come
void membership_enter_epoch(struct membership *m, uint8_t reason);
void membership_enter_resumed(struct membership *m);                   // a new group epoch for every group
struct group *membership_group_for(struct membership *m, uint32_t id); // makes it
void membership_form_update(struct membership *m);                     // the update vote has passed
void membership_start_candidate(struct membership *m, uint8_t kind);   // `candidate` is filled
void membership_on_candidate_linked(struct membership *m, struct peer *peer, const struct wire_linked *linked);
void membership_judge_candidate(struct membership *m); // all have answered, or the time for it is over

// ---- membership_strikes.c ----
void membership_strike(struct membership *m, const struct wire_address *address);  // a newcomer from there has failed
void membership_forgive(struct membership *m, const struct wire_address *address); // one was admitted
// Until when newcomers from there are asked into no candidate while accepted peers wait; 0: they are.
int64_t membership_waits_behind_until(struct membership *m, const struct wire_address *address);

// ---- membership_waits.c ----
void membership_wait_begins(struct membership *m); // of somebody, at this moment
void membership_waits_tick(struct membership *m);

// ---- membership_ops.c ----
void membership_on_done(struct membership *m, struct peer *peer, const struct wire_header *header, const uint8_t *body);
void membership_on_report(struct membership *m, struct peer *peer, const struct wire_header *header,
                          const uint8_t *body);
void membership_on_mismatch(struct membership *m, struct peer *peer, const struct wire_header *header,
                            const uint8_t *body);
void membership_ops_begin(struct membership *m, struct group *group); // the group epoch was entered
void membership_ops_fini(struct group *group);

// ---- membership_links.c ----
void membership_on_link_down(struct membership *m, struct peer *peer, const struct wire_header *header,
                             const uint8_t *body);
void membership_on_linked(struct membership *m, struct peer *peer);
void membership_link_failed(struct membership *m, struct peer *accuser, struct peer *accused, bool silent);
void membership_links_tick(struct membership *m, struct group *group);
void membership_links_begin(struct group *group); // the group epoch was entered
void membership_links_forget(struct membership *m, struct group *group, const struct peer *peer);
void membership_links_fini(struct group *group);

// ---- membership_optimise.c ----
void membership_optimise(struct membership *m); // the vote passed
void membership_on_measured(struct membership *m, struct peer *peer, const uint8_t *body, size_t length);
void membership_measure_tick(struct membership *m);
void membership_measure_cancel(struct membership *m);
void membership_rates_forget(struct membership *m, const struct peer *peer);
// slowest ring link in MB/s, or the default
uint32_t membership_group_rate(const struct membership *m, const struct group *group);

// ---- membership_recovery.c ----
// While there is no run: takes one up, or begins a new one. While there is a young one: lets it go, or those who wait
// for that. True: peers have come or gone.
bool membership_gather(struct membership *m);
// Whether a newcomer that came over loopback, or not, is of the kind of most newcomers that wait for a run to begin.
bool membership_suits_held(const struct membership *m, bool loopback);
// True: a newcomer waits until it is known whether there is a run.
bool membership_hold(struct membership *m, uint32_t conn, const struct wire_address *source,
                     const struct wire_hello *hello);
// false: no survivor
bool membership_survivor_message(struct membership *m, uint32_t conn, const struct wire_header *header);
bool membership_survivor_lost(struct membership *m, uint32_t conn);
void membership_survivor_heard(struct membership *m, int64_t now_ns, uint32_t conn);
void membership_gather_tick(struct membership *m);
void membership_gather_beat(struct membership *m);
// Peers fell silent, or left for another master. True: they may be the majority of a run elsewhere, so this master gave
// its own up.
bool membership_unheard(struct membership *m, uint32_t count);
void membership_give_up_starved(struct membership *m);
void membership_on_moved(struct membership *m, struct peer *peer);
void membership_woke(struct membership *m); // nothing has happened for so long that it stood still
struct wire_quorum membership_quorum(const struct membership *m); // for EPOCH
// The next epoch lets newcomers in, the first of them with that join number.
void membership_admits(struct membership *m, uint32_t members_before, uint64_t newer);
void membership_on_entered(struct membership *m, struct peer *peer, uint64_t epoch); // it has said so
// of its connection, or it leaves the run; it is about to be dropped
void membership_on_end(struct membership *m, const struct peer *peer);
// While it is not sure that no other master can take the run up: looks whether it is, or whether too few are left.
void membership_watch_quorum(struct membership *m);
void membership_start_run(struct membership *m); // forgets all peers' run
int64_t membership_gather_deadline(const struct membership *m);
void membership_gather_fini(struct membership *m);

// ---- membership_sync.c ----
void membership_take_sync_vote(struct membership *m, struct peer *peer, const struct wire_sync_vote *vote);
void membership_on_sync_vote(struct membership *m, struct peer *peer, const uint8_t *body, size_t length);
void membership_on_sync_done(struct membership *m, struct peer *peer, const uint8_t *body, size_t length);
void membership_sync_advance(struct membership *m);                                // nobody is gone
bool membership_sync_waits(const struct membership *m, const struct group *group); // some have voted, others have not

#endif
