// Messages between peers and masters, and between masters. See net/wire.h.
#ifndef PCCL_NET_WIRE_CONTROL_H
#define PCCL_NET_WIRE_CONTROL_H

#include "net/wire_loss.h"
#include "net/wire_matrix.h"

// Members are listed group by group (groups ascending), inside a group in ring order: each sends to the next. Nobody is
// listed twice.
struct wire_epoch {
    uint64_t number;
    // of the receiver's group: the number of the last epoch that changed its members, order or links
    uint64_t group_epoch;
    uint64_t lost_epoch; // of the receiver's group: the last group epoch that lost a member, 0: none did
    // how many votes of all accepted peers have ended in this run, the one that this epoch ends included
    uint64_t votes_ended;
    uint64_t sync_round;      // shared state of the receiver's group: the last round that ended, 0: none
    uint64_t sync_expected;   // and the revision that is expected, 0: unset
    uint32_t latency_us;      // worst one-way delay reported by the receiver's group, for the cost model; never 0
    uint32_t megabytes_per_s; // slowest link measured in the receiver's group, or the default; never 0
    uint32_t count;
    struct wire_member *members; // decode: caller's array of WIRE_MAX_MEMBERS
};

// How many members a run has, all groups together. The same for all peers of a run.
struct wire_limits {
    uint16_t least;   // an update vote waits for so many; 0: for nobody
    uint16_t most;    // further newcomers wait until a member is gone; 0: there is no limit
    uint32_t wait_ms; // after which a vote that waits for `least` fails
};

struct wire_hello {
    uint16_t version;
    struct wire_id id; // never all zero
    uint32_t group;
    uint32_t lanes;    // 1..WIRE_MAX_LANES
    uint16_t port;     // where this peer listens for links
    uint8_t masters;   // in the peer's list, 1..WIRE_MAX_MASTERS
    uint8_t join_only; // 1: refuse this peer rather than begin a run with it
    uint8_t copies;    // 1: PRECOPY follows WELCOME, and it is not to be admitted before that
    struct wire_limits limits;
    struct wire_address local; // of its end of the connection to the master; family 0: not told
    struct wire_reach reach;
    struct wire_name name;
};

struct wire_welcome {
    uint64_t join_number;
    uint8_t secret[16]; // of the run; opens links between peers
    uint32_t heartbeat_limit_ms;
    struct wire_address seen; // the peer's own address as the master sees it
    uint8_t closed;           // 1: it counts as one that nobody can dial, and says so to later masters
};

struct wire_candidate {
    uint32_t attempt;
    struct wire_epoch epoch;
};

struct wire_linked {
    uint32_t attempt;    // of the CANDIDATE, or 0: the links of the epoch in force are complete
    uint32_t latency_us; // worst half round trip of this peer's links
    uint32_t count;
    struct wire_id unreachable[WIRE_MAX_MEMBERS];
    uint8_t narrow[WIRE_MAX_MEMBERS]; // of each of them: 1: small frames reach it, LINK_PADDING does not
};

enum wire_reason {
    WIRE_REASON_UPDATE = 1, // newcomers admitted; ends update votes with success, and a newcomer's connect
    WIRE_REASON_LOSS,       // members lost
    WIRE_REASON_RELINK,     // same members and order; broken links between living members are made again
    WIRE_REASON_ORDER,      // same members, new ring order; ends optimise votes with success
};

// Quorum for resuming a run from an epoch, in addition to more than half of all members. All 0: none.
struct wire_quorum {
    uint32_t members; // at least so many
    // at least so many of those with a join number below `newer`, who were members before newcomers were let in
    uint32_t old_members;
    uint64_t newer;
};

struct wire_epoch_commit {
    uint8_t reason;
    struct wire_epoch epoch;
    struct wire_quorum quorum;
    uint8_t signature[WIRE_SIGNATURE_BYTES]; // of the master (master/quorum); all 0: the run has no keys
    uint32_t gone_count;                     // of all groups
    struct wire_gone *gone;                  // decode: caller's array of WIRE_MAX_MEMBERS, or NULL: not wanted
};

enum wire_vote_kind {
    WIRE_VOTE_UPDATE = 1,
    WIRE_VOTE_PENDING,
    WIRE_VOTE_OPTIMIZE,
    WIRE_VOTE_SYNC
}; // as an open vote only: it is cast by SYNC_VOTE

struct wire_vote {
    uint8_t kind;
};

enum wire_pending {
    WIRE_PENDING_NONE,
    WIRE_PENDING_NEWCOMERS, // and nothing else
    WIRE_PENDING_OTHERS,    // a member leaves, or the run has too few; newcomers may wait, too
};

struct wire_outcome {
    uint8_t kind;   // wire_vote_kind
    uint8_t code;   // pcclResult_t
    uint64_t value; // PENDING: wire_pending
};

struct wire_op_done {
    struct wire_op_name name;
    uint16_t members; // that the op has: so many have to be done; 0: all of the group
};

enum wire_verdict_kind {
    WIRE_VERDICT_COMMIT = 1, // contributors: the members of the epoch the op was run in
    // a member was lost: pcclRankConnectionLost, since the op was begun: pcclRankConnectionLost
    WIRE_VERDICT_ABORT,
    WIRE_VERDICT_REDO,     // same members: begin again from the input, unseen by the caller
    WIRE_VERDICT_MISMATCH, // arguments differ: pcclInvalidArgument; text names both sides
    // only the modes differ: who runs this op (tag and sequence; whatever segment) in segments begins again with the
    // whole
    WIRE_VERDICT_WHOLE,
    // a member cancelled the op: pcclCancelled, unless COMMIT follows; a member that has not begun it ends its next op
    // of this tag and subgroup
    WIRE_VERDICT_CANCEL,
    // members wait for each other, and the text names them: pcclInvalidUsage, unless COMMIT follows; nothing for a
    // member that has not begun the op, which may be one of them
    WIRE_VERDICT_DEADLOCK,
};

static inline bool wire_verdict_cancels(uint8_t kind) {
    return kind == WIRE_VERDICT_CANCEL || kind == WIRE_VERDICT_DEADLOCK;
}

struct wire_verdict {
    struct wire_op_name name;
    uint8_t kind;
    // COMMIT of a small op, after reports (always then, also with nobody needy): who sends SUPPLY to the needy; all
    // zero otherwise
    struct wire_id supplier;
    // MISMATCH: the mark of the subgroup that the other side named (upper half of its layout); it ends the ops of this
    // tag of both lists, and no others
    uint16_t other;
    struct wire_text text;
    uint32_t count;
    struct wire_id needy[WIRE_MAX_MEMBERS];
};

enum wire_op_state {
    WIRE_OP_OPEN = 1, // posted, not complete here
    WIRE_OP_DONE,     // large: complete here, DONE sent, no verdict yet
    WIRE_OP_RETAINED, // small: complete here, result kept
};

struct wire_op_report {
    struct wire_op_name name; // name.epoch may be older than the epoch reported on
    uint8_t state;
    uint8_t small; // 1 = small op
    // OPEN, DONE: how many of the op's members are in the epoch reported on, 0: all that are; it is committed if so
    // many are done
    uint16_t members;
};

struct wire_report {
    uint32_t count;
    struct wire_op_report *ops; // decode: caller's array of 2 * WIRE_MAX_LIVE_OPS
};

struct wire_cancel {
    struct wire_op_name name;
};

struct wire_mismatch {
    struct wire_op_name name;
    struct wire_fingerprint mine;
    struct wire_id other;
    struct wire_fingerprint theirs;
};

// Why a link is down. Every other value is refused.
enum wire_link_reason {
    WIRE_LINK_BROKEN,    // its connection ended, or could not be made in time
    WIRE_LINK_SILENT,    // the connection stands, but nothing comes or goes on it
    WIRE_LINK_MALFORMED, // a data frame came on it that no member of this version sends
    // silent, while the other end is heard by other cards: a card has failed, and neither of the two is at fault
    WIRE_LINK_CARD,
};

struct wire_link_down {
    // the sender's own id: no link is down, but a fresh group epoch is wanted (tag counters are full): RELINK at once,
    // nobody is reported
    struct wire_id id;
    uint32_t index;
    uint8_t reason; // enum wire_link_reason
};

struct wire_measure {
    uint32_t round;
    struct wire_id target;
    uint32_t duration_ms;
};

struct wire_measured { // sent by the receiving side of a measurement
    struct wire_id from, to;
    uint64_t bytes_per_s; // 0: the link could not be measured
};

// ---- shared state: the control messages of one round of one group, in this order ----

enum wire_sync_strategy {
    WIRE_SYNC_ENFORCE_POPULAR,
    WIRE_SYNC_RECEIVE_ONLY,
    WIRE_SYNC_SEND_ONLY
}; // pcclSharedStateSyncStrategy_t

// An ordered list of entries in few bytes, so that two lists can be compared. h(0) = 0; h(k), of the first k entries,
// is the XXH3-64 of 16 bytes: h(k - 1), and the XXH3-64 of entry k - 1 as it is hashed for the mask.
struct wire_outline {
    uint64_t entries;
    // the lower halves of h(s), h(2 s), ...: `entries` >> wire_outline_shift of them, s = 1 << wire_outline_shift
    uint32_t hashes[WIRE_MAX_OUTLINE];
};

// The sender's open vote from now on; SYNC_END or EXPELLED ends it. One open vote per peer, of this or any other kind.
struct wire_sync_vote {
    uint8_t strategy; // wire_sync_strategy
    // 1: a transfer into this state was cut short, and no sync has succeeded since: the sender is no candidate
    uint8_t incomplete;
    uint64_t revision; // as given by the program
    // Over the ordered list (name, data type, element count, allow flag) of all entries. Byte for byte what is hashed:
    // for each entry the name's length u32, the name, dtype u8, allow flag u8, count u64, little-endian.
    struct wire_hash mask;
    // XXH3-128 over the hashes of all entries without the allow flag, in order (16 bytes each: low u64, high u64), each
    // the hash_root of its leaves. Equal content, equal hash: entries of no bytes take part with the hash of no leaves.
    struct wire_hash content;
    struct wire_outline outline; // of the list that `mask` is of; only ever used to say where two lists differ
};

// To one whose mask is not the elected one, before EXPELLED. The first entry that differs is one of first..last of its
// list, counted from 0; `last` may be the length of that list: there the elected one goes on.
struct wire_sync_differs {
    uint64_t first, last; // first <= last
};

// To all members of the round, sent only if somebody has to receive. Members that are in neither list wait for
// SYNC_END.
struct wire_sync_plan {
    uint64_t round;                             // unique in a run, never 0, growing; names the round in all data frames
    uint64_t revision;                          // that all will have after the commit
    struct wire_hash mask, content;             // the winner's; `content` is what a receiver must hold in the end
    uint32_t receiver_count;                    // at least 1
    uint32_t donor_count;                       // at least 1
    struct wire_id receivers[WIRE_MAX_MEMBERS]; // members whose content differs from the winner's
    // members that hold the winner and may send, longest-standing first; never a receiver
    struct wire_id donors[WIRE_MAX_MEMBERS];
};

struct wire_sync_source {
    struct wire_id id; // of a donor, also of one that has been lost since
    uint64_t bytes;    // entry bytes that came from it and were kept
};

enum wire_sync_completion {
    WIRE_SYNC_MISSING,   // no donor is left that could give what is missing
    WIRE_SYNC_COMPLETE,  // the content hash of what lies in memory was verified
    WIRE_SYNC_READ_ONLY, // what would have to be written cannot be, or not beside the rest: the sender has to go
};

// From each receiver, once per round.
struct wire_sync_done {
    uint64_t round;
    uint8_t complete; // wire_sync_completion
    uint32_t count;
    struct wire_sync_source sources[WIRE_MAX_MEMBERS]; // donors that gave anything
};

// Begins the text of EXPELLED for one that broke a rule of the round: its vote ends with pcclInvalidUsage.
#define WIRE_SYNC_RULE "shared state: "

// To all members of the round together. On success the sender's revision is `revision`; else it stays as passed.
struct wire_sync_end {
    uint64_t round;        // of the plan; a round without a plan has a number too
    uint8_t code;          // pcclResult_t: 0 or 9 (pcclNoSharedStateAvailable)
    uint64_t revision;     // code 0: that of the round
    uint64_t tx_bytes;     // code 0: entry bytes that receivers say they kept from this member
    struct wire_text text; // code 9: why; else empty
};

// ---- the loss of a master ----

struct wire_group_size {
    uint32_t group, count; // count >= 1
};

// The end of a vote of all accepted peers (update, pending, optimise), so that those that missed it end it alike.
struct wire_ended_vote {
    uint64_t number; // as in wire_epoch; 0: no vote has ended yet, and the rest is 0
    uint8_t kind;    // wire_vote_kind
    uint8_t code;    // pcclResult_t
    uint64_t value;
    uint64_t epoch;                // number of the epoch in force at its end
    uint32_t count;                // its groups, ascending, and their sizes
    struct wire_group_size *sizes; // decode: caller's array of WIRE_MAX_MEMBERS
};

// A group epoch that lost a member of its group, and the numbers that programs read once they have adopted it.
struct wire_loss {
    uint64_t epoch;
    uint32_t members, group_members, groups, largest_group; // each >= 1
};

// A verdict that ended an op for good, without a supplier: COMMIT, MISMATCH, CANCEL or DEADLOCK.
struct wire_past {
    struct wire_op_name name;
    uint8_t kind;   // wire_verdict_kind
    uint16_t other; // as in the verdict
};

// header: the run, and the highest generation that was promised.
struct wire_resume {
    struct wire_hello hello; // of another version: decodes with that alone
    uint64_t generation;     // of `epoch`
    uint64_t join_number;
    uint8_t secret[16];
    uint8_t vote;                     // the open one: wire_vote_kind, WIRE_VOTE_SYNC or 0
    struct wire_sync_vote sync_vote;  // if that is WIRE_VOTE_SYNC
    uint8_t accepted;                 // 0: a newcomer; then nothing follows
    uint8_t sync_committed;           // took part in a commit of its group
    uint8_t sync_code;                // of the round epoch.sync_round
    uint64_t sync_revision;           // of the last commit of its group, the one before epoch.sync_expected; 0: none
    struct wire_ended_vote last_vote; // the last one that the sender passed
    struct wire_epoch epoch; // the newest one it entered; lost_epoch, sync_round and sync_expected as they are now
    uint32_t past_count;     // newest last
    struct wire_past *past;  // decode: caller's array of WIRE_MAX_PAST
    // of its group since the last vote that its program has adopted the end of, oldest first
    uint32_t loss_count;
    struct wire_loss *losses;                // decode: caller's array of WIRE_MAX_MEMBERS
    struct wire_quorum quorum;               // of `epoch`
    uint8_t signature[WIRE_SIGNATURE_BYTES]; // that came with `epoch`
};

// header: the generation from now on, as promised. What it ends, it ends once EPOCH has come, which is the next frame
// but for verdicts.
struct wire_resumed {
    uint32_t heartbeat_limit_ms;
    uint8_t vote_ended;               // the receiver's vote, or its connect, ended so
    uint8_t sync_ended;               // the receiver's round of shared state ended so
    struct wire_ended_vote last_vote; // the last one of the run
    uint32_t loss_count;              // losses of its group that the receiver has not heard of, oldest first
    struct wire_loss *losses;         // decode: caller's array of WIRE_MAX_MEMBERS
    struct wire_sync_end sync;
};

enum wire_activity {
    WIRE_IDLE,
    WIRE_GATHERS, // members of a run have come to resume it, or newcomers wait for them
    WIRE_SERVES
};

// The name of the run that a connection is about. Empty: the run without a name, which is not sent. WIRE_EVERY_RUN, in
// a STATUS alone: the most active one.
struct wire_run {
    char chars[WIRE_MAX_RUN + 1];
};

#define WIRE_EVERY_RUN "*"

// The runs that have peers, or wait for their members.
struct wire_runs_are {
    uint32_t count;
    struct wire_run_is {
        struct wire_run run;
        uint32_t peers;
    } runs[WIRE_MAX_RUNS];
};

struct wire_status_is {
    uint8_t activity;  // wire_activity
    uint8_t completed; // idle, and a member of the last run left it by itself
    uint64_t ended_ms; // since the last run ended here; UINT64_MAX: none has
};

// ---- diagnosis (docs/diagnosis.md) ----

// From each member, about once a second while it calls ops.
struct wire_telemetry {
    struct wire_ops_seen ops;
    uint32_t count;
    struct {
        struct wire_id id;
        struct wire_seen seen;
    } others[WIRE_MAX_SEEN];
};

enum wire_copies {
    WIRE_COPY_OVER,     // it is up to date, cannot catch up, or no donor is left
    WIRE_COPY_BEGINS,   // admit me later, and tell me whom to copy from
    WIRE_COPY_ADVANCES, // about once a second; after WIRE_COPY_OVER, it holds more or less than it told
};

struct wire_precopy {
    uint8_t copies;                // wire_copies
    struct wire_progress progress; // all 0 where it begins; when it is over, what it holds
};

enum wire_state_kind {
    WIRE_STATE_NONE,     // no sync has succeeded since it came
    WIRE_STATE_SYNCED,   // its state was that of its group at the last sync, or it had none to compare
    WIRE_STATE_REPLACED, // it had synced before, and its content of this revision was another than its group's
};

// The shared state that a member held at the end of its last successful sync.
struct wire_state {
    uint8_t kind; // wire_state_kind
    uint64_t revision;
    struct wire_hash content; // all 0: not known, since another master served the run then
};

struct wire_donors {
    uint32_t count; // 0: there is nobody to copy from, and this newcomer is admitted as others are
    struct wire_donor {
        struct wire_id id;
        struct wire_reach reach; // at least one address
    } donors[WIRE_MAX_DONORS];
};

// A number of a member's program. The name has 1 to WIRE_MAX_NUMBER_NAME letters, digits and underscores.
struct wire_number {
    char name[WIRE_MAX_NUMBER_NAME + 1]; // with zeros behind it
    double value;                        // any, also NaN
};

struct wire_numbers {
    uint32_t count;
    struct wire_number list[WIRE_MAX_NUMBERS];
};

// Waits of a program. An empty one ends the wait that was told before.
struct wire_waits {
    // for how long the only thread that calls the communicator has waited in its call, an operation below or the open
    // vote; 0: it does not, or there are several such threads
    uint64_t all_us;
    uint32_t count;
    struct wire_wait {
        struct wire_op_name name;
        uint8_t kind; // plan_kind
        uint64_t span_us;
        uint32_t missing_count; // members that have not begun it, as far as is known here; of many, a part
        struct wire_id missing[WIRE_MAX_MISSING];
    } list[WIRE_MAX_WAITS];
};

// Proves that the sender is a member: strangers know no id of a member.
struct wire_diagnose {
    struct wire_id id;  // of the sender
    uint8_t secret[16]; // of the run
};

enum { WIRE_WITHIN_UNKNOWN = UINT32_MAX };

struct wire_leaving {
    struct wire_id id;  // to the master: the sender
    uint32_t within_ms; // when it has to be gone, counted from now; WIRE_WITHIN_UNKNOWN
    uint8_t at_update;  // 1: the next update vote that passes takes it out; 0: it leaves by itself, with LEAVE
};

struct wire_remove {
    struct wire_id id;
    uint8_t at_update;        // 1: at the next update vote, as if it had announced that it leaves; 0: at once, expelled
    char by[WIRE_MAX_BY + 1]; // who asks, and what for, with zeros behind it; empty: it is not known
};

// Messages with a body of their own.
#define WIRE_CONTROL_MESSAGES(X) \
    X(hello, HELLO) \
    X(welcome, WELCOME) \
    X(candidate, CANDIDATE) \
    X(linked, LINKED) \
    X(epoch_commit, EPOCH) \
    X(vote, VOTE) \
    X(outcome, OUTCOME) \
    X(op_done, DONE) \
    X(verdict, VERDICT) \
    X(report, REPORT) \
    X(mismatch, MISMATCH) \
    X(cancel, CANCEL) \
    X(leaving, LEAVING) \
    X(precopy, PRECOPY) \
    X(donors, DONORS) \
    X(numbers, NUMBERS) \
    X(waits, WAITS) \
    X(link_down, LINK_DOWN) \
    X(measure, MEASURE) \
    X(measured, MEASURED) \
    X(sync_vote, SYNC_VOTE) \
    X(sync_differs, SYNC_DIFFERS) \
    X(sync_plan, SYNC_PLAN) \
    X(sync_done, SYNC_DONE) \
    X(sync_end, SYNC_END) \
    X(resume, RESUME) \
    X(resumed, RESUMED) \
    X(status_is, STATUS_IS) \
    X(telemetry, TELEMETRY) \
    X(diagnose, DIAGNOSE) \
    X(matrix, MATRIX) \
    X(run, RUN) \
    X(runs_are, RUNS_ARE) \
    X(remove, REMOVE)

WIRE_CONTROL_MESSAGES(WIRE_DEFINE)

// Decodes what HELLO and RESUME begin with, except the name. In another version than ours the id is all 0.
bool wire_decode_identity(const uint8_t *body, size_t length, struct wire_hello *out);

// log2 of how many entries lie between two hashes of an outline: as few as the limit allows.
static inline unsigned wire_outline_shift(uint64_t entries) {
    unsigned shift = 0;
    while (entries >> shift > WIRE_MAX_OUTLINE) shift++;
    return shift;
}

#endif
