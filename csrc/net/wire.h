// Every message, number and limit of the protocol. No message is defined anywhere else; docs/protocol.md explains the
// exchange.
//
// A frame is a 32-byte header and a body, little-endian. Control frames (peer <-> master) have bodies of at most
// WIRE_MAX_CONTROL_BYTES; data frames (peer <-> peer) begin their body with struct wire_op and carry at most
// WIRE_MAX_DATA_BYTES of payload. Decoders check every length before they believe it, never read outside
// [body, body + length), and fail on trailing bytes, on counts beyond the limits and on unknown enumerators.
#ifndef PCCL_NET_WIRE_H
#define PCCL_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WIRE_VERSION = 4,
    WIRE_MAGIC = 0x4350, // "PC"
    WIRE_HEADER_BYTES = 32,
    WIRE_OP_BYTES = 48,
    WIRE_ALIGN = 16, // data frames are a multiple of this long: docs/decisions/frames-are-aligned.md
    WIRE_ID_BYTES = 16,
    WIRE_MAX_MEMBERS = 1024,
    WIRE_MAX_TEXT = 500,
    WIRE_MAX_LIVE_OPS = 4096, // per communicator
    WIRE_MAX_LANES = 256,
    WIRE_MAX_CONTROL_BYTES = 1 << 18,
    WIRE_MAX_DATA_BYTES = 1 << 20,
    WIRE_MAX_MEASURE_MS = 10000,
    WIRE_SYNC_MAX_HASHES = WIRE_MAX_DATA_BYTES / 8, // leaf hashes in one SYNC_HASHES
    WIRE_SYNC_MAX_LEAVES = 64,                      // leaves asked for by one SYNC_ASK
    WIRE_MAX_OUTLINE = 512,                         // hashes in one outline
    WIRE_MAX_PAST = WIRE_MAX_LIVE_OPS,              // verdicts told in a RESUME
    WIRE_MAX_MASTERS = 16,                          // in a peer's or a master's list
};

enum wire_type {
    // control
    WIRE_HELLO = 1, // peer -> master, the first frame of a connection
    WIRE_WELCOME,   // master -> peer: registered
    WIRE_REFUSED,   // master -> peer: not registered, why; the master closes
    WIRE_CANDIDATE, // master -> peer: make the links of this epoch, report with LINKED
    WIRE_LINKED,    // peer -> master
    WIRE_EPOCH,     // master -> peer: this epoch is in force
    WIRE_VOTE,      // peer -> master
    WIRE_OUTCOME,   // master -> peer: the end of a vote that makes no epoch
    WIRE_HEARTBEAT, // both ways, empty body
    WIRE_LEAVE,     // peer -> master, empty body
    WIRE_EXPELLED,  // master -> peer, why; the master closes
    WIRE_DONE,      // peer -> master: my part of a large op is complete
    WIRE_VERDICT,   // master -> peer: the end of an op
    WIRE_REPORT,    // peer -> master: where my ops stood when the epoch before this one was frozen
    WIRE_MISMATCH,  // peer -> master: another member gave other arguments for this op
    WIRE_LINK_DOWN, // peer -> master: a link to a member broke or could not be made
    WIRE_MEASURE,   // master -> peer: measure the link to this member
    WIRE_MEASURED,  // peer -> master
    WIRE_SYNC_VOTE, // peer -> master: this is the state that I hold
    WIRE_SYNC_PLAN, // master -> peer: the election is over, these receive and these give
    WIRE_SYNC_DONE, // peer -> master: what I had to receive is here and verified, or cannot be had
    WIRE_SYNC_END,  // master -> peer: the round is over
    // peer -> master, the first frame of a connection in place of HELLO: the master I was with is lost, this is what I
    // know
    WIRE_RESUME,
    WIRE_GENERATION, // master -> peer, empty body: I want to take the run up with the generation in the header
    WIRE_PROMISE,    // peer -> master, empty body: the sender listens to no lower one from now on
    WIRE_RESUMED,    // master -> peer: the run goes on with this generation; how that ended which the receiver missed
    WIRE_BYE,        // master -> peer, empty body: the master was stopped by its owner
    WIRE_MOVED,      // peer -> master, empty body: the master was silent, so I look for another one
    WIRE_STATUS,     // master -> master, the first frame of a connection, empty body: do you serve a run?
    WIRE_STATUS_IS,  // the answer
    WIRE_WAITING,    // master -> peer, text: there is no run to be in yet, and why
    // master -> peer: where your list of entries begins to differ from the elected one; EXPELLED follows
    WIRE_SYNC_DIFFERS,
    // data
    WIRE_LINK_HELLO = 64, // dialer -> acceptor, the first frame of a connection
    WIRE_LINK_ACK,        // acceptor -> dialer, empty body: the link is accepted
    // op posted here, chunks may be sent to me; ring: extra = 1 when I can read the receiver's memory
    WIRE_READY,
    WIRE_POSTED, // small op posted here, data follows once you have posted it too
    WIRE_SMALL,  // one member's whole input of a small op
    // small ops that are complete here: payload is a list of names (u64 epoch, u64 tag, u32 sequence, u32 0); extra =
    // 1: I am about to leave, acknowledge at once from now on
    WIRE_ACK,
    WIRE_SUPPLY, // the whole result of a small op, from a member that completed it
    WIRE_CHUNK,  // ring: one chunk at one hop
    WIRE_CODES,  // quantised: one block of one member's input, to the owner
    WIRE_RESULT, // quantised: one block of the result, from the owner
    WIRE_GRANT,  // quantised: the owner takes blocks below `offset`
    // direct link: where a process of the same host may say that it holds the links of this pair; payload is the name
    // of the device/door
    WIRE_MEMORY,
    // ring: a chunk as WIRE_CHUNK, in the sender's memory: payload is the u64 address, extra = bytes
    WIRE_CHUNK_AT,
    WIRE_SYNC_ASK_HASHES, // receiver -> donor: these leaf hashes, please; see "shared state" below for all four
    WIRE_SYNC_HASHES,     // donor -> receiver
    WIRE_SYNC_ASK,        // receiver -> donor: these leaves, please
    WIRE_SYNC_LEAF,       // donor -> receiver: one leaf
    WIRE_LINK_HEARTBEAT,  // either way on a link that was idle, in any epoch: struct wire_op is all zero
};

struct wire_header {
    uint32_t length; // of the body
    uint16_t type;
    uint64_t run;        // random, made by the first master of the run; 0 before WELCOME
    uint64_t generation; // of the master; grows with every master of the run
    uint64_t epoch;      // control: the sender's epoch; data and op messages: the group epoch (see wire_epoch)
};

struct wire_id {
    uint8_t bytes[WIRE_ID_BYTES];
};

struct wire_address {
    uint8_t family; // 4 or 6
    uint8_t bytes[16];
    uint16_t port;
};

struct wire_hash { // 128 bits, as struct hash128
    uint64_t low, high;
};

struct wire_text {
    uint16_t length;
    char chars[WIRE_MAX_TEXT];
};

// What members must agree on for one op.
struct wire_fingerprint {
    uint64_t count;
    // pcclDataType_t, pcclRedOp_t, pcclDataType_t, pcclQuantizationAlgorithm_t
    uint8_t dtype, op, quantised_dtype, algorithm;
    uint8_t mode; // wire_op_mode
};

enum wire_op_mode {
    WIRE_MODE_WHOLE, // one op, one verdict
    WIRE_MODE_SEGMENTS
}; // in segments (ops/plan), each of them an op with a verdict of its own

struct wire_member {
    struct wire_id id;
    uint64_t join_number; // given at registration, unique in a run; lower = longer-standing
    uint32_t group;
    uint32_t lanes; // the peer's pool size; a pair of ring neighbours uses the smaller of both
    struct wire_address address;
};

// Members are listed group by group (groups ascending), inside a group in ring order: each sends to the next. Nobody is
// listed twice.
struct wire_epoch {
    uint64_t number;
    // of the receiver's group: the number of the last epoch that changed its members, order or links
    uint64_t group_epoch;
    uint64_t lost_epoch; // of the receiver's group: the last group epoch that lost a member, 0: none did
    // how many votes of all accepted peers have ended in this run, the one that this epoch ends included
    uint64_t barrier;
    uint64_t sync_round;      // shared state of the receiver's group: the last round that ended, 0: none
    uint64_t sync_expected;   // and the revision that is expected, 0: unset
    uint32_t latency_us;      // worst one-way delay reported by the receiver's group, for the cost model; never 0
    uint32_t megabytes_per_s; // slowest link measured in the receiver's group, or the default; never 0
    uint32_t count;
    struct wire_member *members; // decode: caller's array of WIRE_MAX_MEMBERS
};

struct wire_hello {
    uint16_t version;
    struct wire_id id; // never all zero
    uint32_t group;
    uint32_t lanes;  // 1..WIRE_MAX_LANES
    uint16_t port;   // where this peer listens for links
    uint8_t masters; // in the peer's list, 1..WIRE_MAX_MASTERS
};

struct wire_welcome {
    uint64_t join_number;
    uint8_t secret[16]; // of the run; opens links between peers
    uint32_t heartbeat_limit_ms;
    struct wire_address seen; // the peer's own address as the master sees it
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
};

enum wire_reason {
    WIRE_REASON_UPDATE = 1, // newcomers admitted; ends update votes with success, and a newcomer's connect
    WIRE_REASON_LOSS,       // members lost
    WIRE_REASON_RELINK,     // same members and order; broken links between living members are made again
    WIRE_REASON_ORDER,      // same members, new ring order; ends optimise votes with success
};

// What it takes, beside more than half of all members, to take the run up from an epoch. All 0: no more than that.
struct wire_quorum {
    uint32_t members; // at least so many
    // at least so many of those with a join number below `newer`, who were members before newcomers were let in
    uint32_t elders;
    uint64_t newer;
};

struct wire_epoch_commit {
    uint8_t reason;
    struct wire_epoch epoch;
    struct wire_quorum quorum;
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

struct wire_outcome {
    uint8_t kind;   // wire_vote_kind
    uint8_t code;   // pcclResult_t
    uint64_t value; // PENDING: 0 or 1
};

// An op's name, unique in a run: `sequence` counts the ops of one tag that were begun in one group epoch. The segments
// of an op that are begun in the same group epoch share their sequence.
struct wire_op_name {
    uint64_t epoch; // the group epoch the op was begun in
    uint64_t tag;
    uint32_t sequence;
    uint16_t segment; // 0 in WIRE_MODE_WHOLE
};

struct wire_op_done {
    struct wire_op_name name;
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
};

struct wire_verdict {
    struct wire_op_name name;
    uint8_t kind;
    // COMMIT of a small op, after reports (always then, also with nobody needy): who sends SUPPLY to the needy; all
    // zero otherwise
    struct wire_id supplier;
    struct wire_text text;
    uint32_t count;
    struct wire_id needy[WIRE_MAX_MEMBERS];
};

enum wire_op_state {
    WIRE_OP_OPEN = 1, // posted, not complete here
    WIRE_OP_DONE,     // large: complete here, DONE sent, no verdict yet
    WIRE_OP_KEPT,     // small: complete here, result kept
};

struct wire_op_report {
    struct wire_op_name name; // name.epoch may be older than the epoch reported on
    uint8_t state;
    uint8_t small; // 1 = small op
};

struct wire_report {
    uint32_t count;
    struct wire_op_report *ops; // decode: caller's array of 2 * WIRE_MAX_LIVE_OPS
};

struct wire_mismatch {
    struct wire_op_name name;
    struct wire_fingerprint mine;
    struct wire_id other;
    struct wire_fingerprint theirs;
};

struct wire_link_down {
    // the sender's own id: no link is down, but a fresh group epoch is wanted (tag counters are full): RELINK at once,
    // nobody is accused
    struct wire_id id;
    uint32_t index;
    uint8_t silent; // 1: the connection stood, but nothing came or went on it
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
    WIRE_SYNC_READ_ONLY, // what would have to be written cannot be: the sender has to go
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

// Data frames. header.epoch is 0: they belong to a round, not to a group epoch, and live through losses of others. In
// struct wire_op: tag = round; sequence = any number of the asker's, given back in the answer; fingerprint, hop and,
// where nothing is said, shard are 0. `offset` is a leaf's number: the leaves (256 KiB, the last one of an entry may be
// shorter) of all entries without the allow flag, in the order of the mask, counted from 0 through the whole state; the
// mask tells both sides which entry and place that is. Frames of another round are discarded, but for asks that come
// before the donor's PLAN: they wait for it. Nothing is sent that was not asked for.
//   SYNC_ASK_HASHES  offset = first leaf, extra = number of hashes (1..WIRE_SYNC_MAX_HASHES), no payload
//   SYNC_HASHES      offset, extra as asked; payload: the hashes, u64 each, little-endian. All of them give the content
//   hash of the plan. SYNC_ASK         offset = first leaf, extra = number of leaves (1..WIRE_SYNC_MAX_LEAVES), shard =
//   the codings that the asker takes beside
//                    plain, 1 << wire_sync_coding each; no payload
//   SYNC_LEAF        offset = leaf, extra = wire_sync_coding; payload: the leaf in that coding. PLACED: shard = number
//   of leaves of the same entry
//                    (1 or more, of those asked for), which lie one after another
enum wire_sync_coding {
    WIRE_SYNC_PLAIN, // its bytes
    WIRE_SYNC_LZ4,   // one LZ4 block, shorter than the leaf
    // u64, where they lie in the sender's memory, for an asker that can read it (device/memory); they stay there for
    // the round
    WIRE_SYNC_PLACED,
};

// ---- the loss of a master ----

struct wire_group_size {
    uint32_t group, count; // count >= 1
};

// The end of a vote of all accepted peers (update, pending, optimise), so that those that missed it end it alike.
struct wire_barrier {
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

// A verdict that ended an op for good, without a supplier: COMMIT or MISMATCH.
struct wire_past {
    struct wire_op_name name;
    uint8_t kind; // wire_verdict_kind
};

// header: the run, and the highest generation that was promised.
struct wire_resume {
    struct wire_hello hello; // of another version: decodes with that alone
    uint64_t generation;     // of `epoch`
    uint64_t join_number;
    uint8_t secret[16];
    uint8_t vote;                    // the open one: wire_vote_kind, WIRE_VOTE_SYNC or 0
    struct wire_sync_vote sync_vote; // if that is WIRE_VOTE_SYNC
    uint8_t accepted;                // 0: a newcomer; then nothing follows
    uint8_t sync_committed;          // took part in a commit of its group
    uint8_t sync_code;               // of the round epoch.sync_round
    uint64_t sync_revision;
    struct wire_barrier barrier; // the last one that the sender passed
    struct wire_epoch epoch;     // the newest one it entered; lost_epoch, sync_round and sync_expected as they are now
    uint32_t past_count;         // newest last
    struct wire_past *past;      // decode: caller's array of WIRE_MAX_PAST
    // of its group since the last vote that its program has adopted the end of, oldest first
    uint32_t loss_count;
    struct wire_loss *losses;  // decode: caller's array of WIRE_MAX_MEMBERS
    struct wire_quorum quorum; // of `epoch`
};

// header: the generation from now on, as promised. What it ends, it ends once EPOCH has come, which is the next frame
// but for verdicts.
struct wire_resumed {
    uint32_t heartbeat_limit_ms;
    uint8_t barrier_ended;       // the receiver's vote, or its connect, ended so
    uint8_t sync_ended;          // the receiver's round of shared state ended so
    struct wire_barrier barrier; // the last one of the run
    uint32_t loss_count;         // losses of its group that the receiver has not heard of, oldest first
    struct wire_loss *losses;    // decode: caller's array of WIRE_MAX_MEMBERS
    struct wire_sync_end sync;
};

enum wire_activity {
    WIRE_IDLE,
    WIRE_GATHERS, // members of a run have come to resume it, or newcomers wait for them
    WIRE_SERVES
};
struct wire_status {
    uint8_t activity; // wire_activity
};

enum wire_link_kind { WIRE_LINK_DATA = 1, WIRE_LINK_PROBE };

struct wire_link_hello {
    uint16_t version;
    uint8_t kind;
    uint8_t secret[16];
    struct wire_id from, to;
    uint32_t index; // 0: direct link of the pair; 1..lanes: lanes, between ring neighbours only
};

// Head of the body of every data frame from READY on; WIRE_OP_BYTES long.
struct wire_op {
    uint64_t tag;
    struct wire_fingerprint fingerprint;
    uint16_t shard;
    uint16_t hop;
    uint16_t segment; // see wire_op_name, like sequence; the epoch is the header's
    uint32_t sequence;
    uint64_t offset; // in elements from the start of the segment, or as the type says
    uint32_t extra;  // as the type says, else 0
    uint8_t padding; // bytes behind the payload, less than WIRE_ALIGN
};

static inline uint8_t wire_padding(size_t payload) {
    return (uint8_t)((WIRE_ALIGN - payload % WIRE_ALIGN) % WIRE_ALIGN);
}

// ---- codec ----
// An append-only buffer. `failed` latches when memory is refused; nothing is written after that.
struct wire_buffer {
    uint8_t *bytes;
    size_t length, capacity;
    bool failed;
};

void wire_buffer_fini(struct wire_buffer *buffer);
void wire_buffer_append(struct wire_buffer *buffer, const struct wire_buffer *frames);

void wire_header_encode(uint8_t out[WIRE_HEADER_BYTES], const struct wire_header *header);
// False: wrong magic, unknown type, or a length outside the limits of this type (a data frame has at least
// WIRE_OP_BYTES).
bool wire_header_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_header *out);

void wire_op_encode(uint8_t out[WIRE_OP_BYTES], const struct wire_op *op);
bool wire_op_decode(const uint8_t in[WIRE_OP_BYTES], struct wire_op *out);

// Each encoder appends one whole frame (header.length and header.type are set by it).
void wire_encode_empty(struct wire_buffer *out, struct wire_header header, enum wire_type type);
// REFUSED, EXPELLED
void wire_encode_text(struct wire_buffer *out, struct wire_header header, enum wire_type type, const char *text);
void wire_encode_hello(struct wire_buffer *out, struct wire_header header, const struct wire_hello *message);
void wire_encode_welcome(struct wire_buffer *out, struct wire_header header, const struct wire_welcome *message);
void wire_encode_candidate(struct wire_buffer *out, struct wire_header header, const struct wire_candidate *message);
void wire_encode_linked(struct wire_buffer *out, struct wire_header header, const struct wire_linked *message);
void wire_encode_epoch_commit(struct wire_buffer *out, struct wire_header header,
                              const struct wire_epoch_commit *message);
void wire_encode_vote(struct wire_buffer *out, struct wire_header header, const struct wire_vote *message);
void wire_encode_outcome(struct wire_buffer *out, struct wire_header header, const struct wire_outcome *message);
void wire_encode_op_done(struct wire_buffer *out, struct wire_header header, const struct wire_op_done *message);
void wire_encode_verdict(struct wire_buffer *out, struct wire_header header, const struct wire_verdict *message);
void wire_encode_report(struct wire_buffer *out, struct wire_header header, const struct wire_report *message);
void wire_encode_mismatch(struct wire_buffer *out, struct wire_header header, const struct wire_mismatch *message);
void wire_encode_link_down(struct wire_buffer *out, struct wire_header header, const struct wire_link_down *message);
void wire_encode_measure(struct wire_buffer *out, struct wire_header header, const struct wire_measure *message);
void wire_encode_measured(struct wire_buffer *out, struct wire_header header, const struct wire_measured *message);
void wire_encode_sync_vote(struct wire_buffer *out, struct wire_header header, const struct wire_sync_vote *message);
void wire_encode_sync_differs(struct wire_buffer *out, struct wire_header header,
                              const struct wire_sync_differs *message);
void wire_encode_sync_plan(struct wire_buffer *out, struct wire_header header, const struct wire_sync_plan *message);
void wire_encode_sync_done(struct wire_buffer *out, struct wire_header header, const struct wire_sync_done *message);
void wire_encode_sync_end(struct wire_buffer *out, struct wire_header header, const struct wire_sync_end *message);
void wire_encode_resume(struct wire_buffer *out, struct wire_header header, const struct wire_resume *message);
void wire_encode_resumed(struct wire_buffer *out, struct wire_header header, const struct wire_resumed *message);
void wire_encode_status_is(struct wire_buffer *out, struct wire_header header, const struct wire_status *message);
void wire_encode_link_hello(struct wire_buffer *out, struct wire_header header, const struct wire_link_hello *message);

// Each decoder takes a body whose header was decoded before; false = malformed.
bool wire_decode_text(const uint8_t *body, size_t length, struct wire_text *out); // REFUSED, EXPELLED
// A hello of another version decodes with its version alone, so that it can be answered.
bool wire_decode_hello(const uint8_t *body, size_t length, struct wire_hello *out);
bool wire_decode_welcome(const uint8_t *body, size_t length, struct wire_welcome *out);
bool wire_decode_candidate(const uint8_t *body, size_t length, struct wire_candidate *out);
bool wire_decode_linked(const uint8_t *body, size_t length, struct wire_linked *out);
bool wire_decode_epoch_commit(const uint8_t *body, size_t length, struct wire_epoch_commit *out);
bool wire_decode_vote(const uint8_t *body, size_t length, struct wire_vote *out);
bool wire_decode_outcome(const uint8_t *body, size_t length, struct wire_outcome *out);
bool wire_decode_op_done(const uint8_t *body, size_t length, struct wire_op_done *out);
bool wire_decode_verdict(const uint8_t *body, size_t length, struct wire_verdict *out);
bool wire_decode_report(const uint8_t *body, size_t length, struct wire_report *out);
bool wire_decode_mismatch(const uint8_t *body, size_t length, struct wire_mismatch *out);
bool wire_decode_link_down(const uint8_t *body, size_t length, struct wire_link_down *out);
bool wire_decode_measure(const uint8_t *body, size_t length, struct wire_measure *out);
bool wire_decode_measured(const uint8_t *body, size_t length, struct wire_measured *out);
bool wire_decode_sync_vote(const uint8_t *body, size_t length, struct wire_sync_vote *out);
bool wire_decode_sync_differs(const uint8_t *body, size_t length, struct wire_sync_differs *out);
bool wire_decode_sync_plan(const uint8_t *body, size_t length, struct wire_sync_plan *out);
bool wire_decode_sync_done(const uint8_t *body, size_t length, struct wire_sync_done *out);
bool wire_decode_sync_end(const uint8_t *body, size_t length, struct wire_sync_end *out);
bool wire_decode_resume(const uint8_t *body, size_t length, struct wire_resume *out);
bool wire_decode_resumed(const uint8_t *body, size_t length, struct wire_resumed *out);
bool wire_decode_status_is(const uint8_t *body, size_t length, struct wire_status *out);
bool wire_decode_link_hello(const uint8_t *body, size_t length, struct wire_link_hello *out);

// log2 of how many entries lie between two hashes of an outline: as few as the limit allows.
unsigned wire_outline_shift(uint64_t entries);

bool wire_id_equal(const struct wire_id *a, const struct wire_id *b);
int wire_id_compare(const struct wire_id *a, const struct wire_id *b);
bool wire_hash_equal(const struct wire_hash *a, const struct wire_hash *b);
bool wire_op_name_equal(const struct wire_op_name *a, const struct wire_op_name *b);
bool wire_fingerprint_equal(const struct wire_fingerprint *a, const struct wire_fingerprint *b);
// equal but for the mode
bool wire_fingerprint_same_op(const struct wire_fingerprint *a, const struct wire_fingerprint *b);
const char *wire_type_name(uint16_t type);

#endif
