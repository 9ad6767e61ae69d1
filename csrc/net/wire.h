// Numbers, limits, types, header and names of the protocol. Messages are defined here, in net/wire_control, in
// net/wire_matrix and in net/wire_data only; docs/protocol.md explains the exchange.
//
// A frame is a 32-byte header and a body, little-endian. Control frames (peer <-> master) have bodies of at most
// WIRE_MAX_CONTROL_BYTES; data frames (peer <-> peer) begin their body with a head of fixed size (struct wire_head) and
// carry at most WIRE_MAX_DATA_BYTES of payload. Decoders check every length before they believe it, never read outside
// [body, body + length), and fail on trailing bytes, on counts beyond the limits and on unknown enumerators.
#ifndef PCCL_NET_WIRE_H
#define PCCL_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/cursor.h"

enum {
    WIRE_VERSION = 18,
    WIRE_MAGIC = 0x4350, // "PC"
    WIRE_HEADER_BYTES = 32,
    WIRE_HEAD_BYTES = 64, // of data frames: struct wire_head
    WIRE_ACK_BYTES = 24,
    WIRE_SLOT_BYTES = 16,
    WIRE_ALIGN = 32, // data frames are a multiple of this long: docs/decisions/frames-are-aligned.md
    WIRE_ID_BYTES = 16,
    WIRE_SIGNATURE_BYTES = 64, // Ed25519
    WIRE_MAX_MEMBERS = 1024,
    WIRE_MAX_TEXT = 500,
    WIRE_MAX_WHY = 127,       // bytes of a text that says why a member is gone
    WIRE_MAX_BY = 95,         // likewise who has an operator's request made, and what for
    WIRE_MAX_STACKS = 16384,  // bytes of the stacks of a peer's threads
    WIRE_MAX_NAME = 63,       // bytes of a peer's name
    WIRE_MAX_RUN = 64,        // bytes of the name of a run
    WIRE_MAX_RUNS = 65,       // of a master: 64 with a name, and the one without
    WIRE_MAX_LIVE_OPS = 4096, // per communicator
    WIRE_MAX_LANES = 256,
    WIRE_MAX_ADDRESSES = 4, // that a peer announces
    WIRE_MAX_CONTROL_BYTES = 1 << 19,
    WIRE_MAX_DATA_BYTES = 1 << 20,
    WIRE_MAX_MEASURE_MS = 10000,
    WIRE_SYNC_MAX_HASHES = WIRE_MAX_DATA_BYTES / 8, // leaf hashes in one SYNC_HASHES
    WIRE_SYNC_MAX_LEAVES = 64,                      // leaves asked for by one SYNC_ASK
    WIRE_MAX_OUTLINE = 512,                         // hashes in one outline
    WIRE_MAX_PAST = WIRE_MAX_LIVE_OPS,              // verdicts told in a RESUME
    WIRE_PADDING_BYTES = 12 << 10, // of LINK_PADDING: more than a jumbo frame, less than TCP sends at first
    WIRE_MAX_MASTERS = 16,         // in a peer's or a master's list
    WIRE_MAX_SEEN = 32,            // other members that one TELEMETRY speaks of
    WIRE_MAX_DONORS = 16,          // in one DONORS
    WIRE_MAX_EDGES = 992,          // in one MATRIX: all of 32 members
    WIRE_MAX_NUMBERS = 16,         // of a member's program
    WIRE_MAX_WAITS = 4,            // calls in which threads of a program wait, as one WAITS tells
    WIRE_MAX_MISSING = 8,          // members that one of them waits for
    WIRE_MAX_NUMBER_NAME = 32,     // bytes of the name of one
    WIRE_MAX_NUMBERS_TOLD = 2048,  // in one MATRIX
    WIRE_MAX_JOINERS = 24,         // likewise
    WIRE_MAX_DEPARTURES = 64,      // likewise; fewer beside so many members that both are more than WIRE_MAX_MEMBERS
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
    // peer -> master, the first frame of a connection in place of HELLO: I lost my master, and my state is this
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
    WIRE_TELEMETRY, // peer -> master: what I have seen of my ops and my links of late
    // anybody -> master, the first frame of a connection: what have your members seen? Strangers send no body, and are
    // told counts
    WIRE_DIAGNOSE,
    WIRE_MATRIX, // the answer
    WIRE_CANCEL, // peer -> master: end this op on all members, unless all have completed it
    // anybody -> master, before the first frame of a connection: the name of the run that it is about
    WIRE_RUN,
    WIRE_LEAVING,  // peer -> master: I leave; master -> peer: this member leaves
    WIRE_LEFT,     // master -> peer, empty body: you have left; the master closes
    WIRE_RUNS,     // anybody -> master, the first frame of a connection, empty body: which runs do you serve?
    WIRE_RUNS_ARE, // the answer
    WIRE_PRECOPY,  // newcomer -> master: I copy the state before I am admitted, am so far, or have done so
    WIRE_DONORS,   // master -> newcomer: the members that it may copy the state from
    WIRE_NUMBERS,  // peer -> master: numbers of my program, such as its loss
    // who has the master's key -> master, the first frame of a connection: take this member out
    WIRE_REMOVE,
    WIRE_REMOVED, // the answer, text: why not; empty: it was done
    // who has the master's key -> master, likewise, and master -> peer: the stacks of this peer's threads, please
    WIRE_STACKS,     // body: the id
    WIRE_STACKS_ARE, // the answer, on the same way back; body: text. REMOVED: the master has refused the question
    WIRE_WAITS,      // peer -> master: the calls in which my program has waited for a second or longer
    WIRE_DEADLOCK,   // master -> peer, text: your open vote fails, because members wait for each other
    // data
    WIRE_LINK_HELLO = 64, // dialer -> acceptor, the first frame of a connection
    WIRE_LINK_ACK,        // acceptor -> dialer, empty body: the padding has come, and the link is accepted
    WIRE_READY,           // op posted here, chunks may be sent to me
    WIRE_POSTED,          // small op posted here, data follows once you have posted it too
    WIRE_SMALL,           // one member's whole input of a small op
    WIRE_ACK,             // small ops that are complete here: payload is a list of names (wire_ack_encode)
    WIRE_SUPPLY,          // the whole result of a small op, from a member that completed it
    WIRE_CHUNK,           // one chunk of a tensor, or of a partial sum
    WIRE_CODES,           // quantised: one block of one member's input, to the owner
    WIRE_RESULT,          // quantised: one block of the result, from the owner
    WIRE_GRANT,           // more blocks of this member's shard may come
    // direct link: payload is the name of my local socket (net/rendezvous), where a process of this host may claim
    // the links of this pair
    WIRE_MEMORY,
    WIRE_SYNC_ASK_HASHES, // receiver -> donor: these leaf hashes, please; see "shared state" below for all four
    WIRE_SYNC_HASHES,     // donor -> receiver
    WIRE_SYNC_ASK,        // receiver -> donor: these leaves, please
    WIRE_SYNC_LEAF,       // donor -> receiver: one leaf
    WIRE_LINK_HEARTBEAT,  // either way on a link that was idle, in any epoch
    // a chunk as WIRE_CHUNK, in shared-memory slots of the sender (data/slots): payload is the first slot (see
    // wire_slot_encode)
    WIRE_CHUNK_IN,
    WIRE_TAKEN, // direct link: these slots of yours are free again
    WIRE_EARLY, // a chunk as WIRE_CHUNK, sent before READY
    // links, without struct wire_head
    WIRE_LINK_HEARD,   // acceptor -> dialer, empty body: the hello is accepted
    WIRE_LINK_PADDING, // both ways, zeros: a path that loses large packets loses it
    // SMALL of an all-reduce of two, whose input lies in slots of the sender: payload is the first slot
    // (wire_slot_encode). It has struct wire_head.
    WIRE_SMALL_IN,
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

enum wire_relays { // a set
    WIRE_RELAYS_NOTHING = 0,
    WIRE_RELAYS = 1,         // unless it is closed, it relays for two that are
    WIRE_RELAYS_OUTSIDE = 2, // its settings name a relay outside of the run, which all have
    WIRE_RELAYS_BOTH = 3,
};

// Addresses at which other peers dial a peer.
struct wire_reach {
    uint8_t closed; // 1: nobody can dial it, so it dials all that can be dialled
    uint8_t relays; // enum wire_relays
    uint8_t count;  // of the addresses that it announces; 0: it is dialled where the master sees it
    struct wire_address addresses[WIRE_MAX_ADDRESSES]; // with their ports, in the order of its cards
};

struct wire_hash { // 128 bits, as struct hash128
    uint64_t low, high;
};

// A peer's name, clean as net/peer_name says, with zeros behind it. Empty: it has none.
struct wire_name {
    char chars[WIRE_MAX_NAME + 1];
};

struct wire_text {
    uint16_t length;
    char chars[WIRE_MAX_TEXT];
};

bool wire_text_begins(const struct wire_text *text, const char *with);

// Begins the text of REFUSED for a peer of another wire version, in all versions: its connect ends with
// pcclInvalidUsage, since no further attempt helps.
#define WIRE_FOREIGN "the master speaks version "

// Arguments of an op that members must agree on.
struct wire_fingerprint {
    uint64_t count;
    // upper half: the mark of the subgroup (ops/members.h); lower half: a hash of the root and the sizes of parts;
    // 0: the whole peer group
    uint32_t layout;
    uint8_t kind;      // enum plan_kind
    uint8_t dtype, op; // pcclDataType_t; pcclRedOp_t, or 0 where nothing is reduced
    uint8_t codec;     // enum codec_id
    uint8_t mode;      // wire_op_mode
};

enum wire_op_mode {
    WIRE_MODE_WHOLE, // one op, one verdict
    WIRE_MODE_SEGMENTS
}; // in segments (ops/plan), each of them an op with a verdict of its own

// An op's name, unique in a run: `sequence` counts the ops of one tag that a member has begun in one group epoch. The
// segments of an op that are begun in the same group epoch share their sequence.
struct wire_op_name {
    uint64_t epoch; // the group epoch the op was begun in
    uint64_t tag;
    uint32_t sequence;
    uint16_t segment; // 0 in WIRE_MODE_WHOLE
    // the hash of the subgroup that the callers named, since subgroups without a common member may use the same tags;
    // 0: the whole peer group
    uint32_t subgroup;
};

struct wire_member {
    struct wire_id id;
    uint64_t join_number; // given at registration, unique in a run; lower = longer-standing
    uint32_t group;
    uint32_t lanes; // the peer's pool size; a pair with lanes has the smaller number of both
    struct wire_address address;
    // of an epoch, equal in all epochs with one group epoch (ops/plan):
    uint16_t weight; // part of large tensors that this member reduces, relative to the others; all 0: even parts
    uint16_t site;   // members of a group with one number, not 0, are near each other
    struct wire_name name;
    struct wire_reach reach;
};

// Returns whether a peer dials the other one of a pair: that which cannot be dialled does or, if they are alike, the
// later joined. Both, and the master, know it from the records of both.
static inline bool wire_dials(bool closed, uint64_t joined, bool other_closed, uint64_t other_joined) {
    return closed != other_closed ? closed : joined > other_joined;
}

void wire_header_encode(uint8_t out[WIRE_HEADER_BYTES], const struct wire_header *header);
// False: wrong magic, unknown type, or a length outside the limits of this type (a data frame has at least
// WIRE_HEAD_BYTES).
bool wire_header_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_header *out);
const char *wire_type_name(uint16_t type);

// Around the body of a frame that is appended to `out`; memory that is refused leaves `out` as it was, and failed.
struct cursor wire_begin(struct wire_buffer *out);
void wire_end(struct cursor *body, struct wire_header header, enum wire_type type);
void wire_encode_empty(struct wire_buffer *out, struct wire_header header, enum wire_type type);
// REFUSED, EXPELLED, WAITING, REMOVED
void wire_encode_text(struct wire_buffer *out, struct wire_header header, enum wire_type type, const char *text);
bool wire_decode_text(const uint8_t *body, size_t length, struct wire_text *out);
// Appends a frame whose body is these bytes: STACKS, STACKS_ARE.
void wire_encode_bytes(struct wire_buffer *out, struct wire_header header, enum wire_type type, const void *bytes,
                       size_t length);

// Appends one whole frame with a body of its own, of those in net/wire_control.h; sets the header's type and length.
void wire_encode(struct wire_buffer *out, struct wire_header header, enum wire_type type, const void *message);
// Decodes a body whose header was decoded before. False: malformed.
bool wire_decode(enum wire_type type, const uint8_t *body, size_t length, void *out);

// wire_encode_NAME and wire_decode_NAME: both for one message, with its type.
#define WIRE_DEFINE(name, type) \
    static inline void wire_encode_##name(struct wire_buffer *out, struct wire_header header, \
                                          const struct wire_##name *message) { \
        wire_encode(out, header, WIRE_##type, message); \
    } \
    static inline bool wire_decode_##name(const uint8_t *body, size_t length, struct wire_##name *out) { \
        return wire_decode(WIRE_##type, body, length, out); \
    }

CURSOR_INLINE void wire_visit_text(struct cursor *c, struct wire_text *text) {
    cursor_u16(c, &text->length);
    cursor_expect(c, text->length <= WIRE_MAX_TEXT);
    if (!c->bad) cursor_bytes(c, text->chars, text->length);
}

// Visits the items of a list, none any more once something was wrong.
#define WIRE_EACH(c, i, count) for (uint32_t i = 0; i < (count) && !(c)->bad; i++)

// Visits a text of `least` to `most` bytes, with a zero behind them in memory: its length, which it returns, and the
// bytes.
uint8_t wire_visit_chars(struct cursor *c, char *chars, uint8_t least, uint8_t most);
// Visits what a master says of a member that is gone.
void wire_visit_why(struct cursor *c, char why[WIRE_MAX_WHY + 1]);

CURSOR_INLINE void wire_visit_fingerprint(struct cursor *c, struct wire_fingerprint *fingerprint) {
    cursor_u64(c, &fingerprint->count);
    cursor_u32(c, &fingerprint->layout);
    cursor_u8(c, &fingerprint->kind);
    cursor_u8(c, &fingerprint->dtype);
    cursor_u8(c, &fingerprint->op);
    cursor_u8(c, &fingerprint->codec);
    cursor_u8(c, &fingerprint->mode);
}

// Whether these bytes are the name of a run: 1 to WIRE_MAX_RUN letters, digits, dots, hyphens and underscores.
bool wire_is_run_name(const char *chars, size_t length);
// Whether these bytes are the name of a number: 1 to WIRE_MAX_NUMBER_NAME letters, digits and underscores.
bool wire_is_number_name(const char *chars, size_t length);
bool wire_id_equal(const struct wire_id *a, const struct wire_id *b);
int wire_id_compare(const struct wire_id *a, const struct wire_id *b);
// Returns the first member with that id; NULL: there is none.
const struct wire_member *wire_member_with(const struct wire_member *members, uint32_t count, const struct wire_id *id);
bool wire_hash_equal(const struct wire_hash *a, const struct wire_hash *b);
bool wire_op_name_equal(const struct wire_op_name *a, const struct wire_op_name *b);
bool wire_fingerprint_equal(const struct wire_fingerprint *a, const struct wire_fingerprint *b);
// equal but for the mode
bool wire_fingerprint_same_op(const struct wire_fingerprint *a, const struct wire_fingerprint *b);

// Fills `sorted` with 0..count - 1 in the order of the members' ids, in at most count * log2(count) comparisons,
// whatever the ids are.
void wire_sort_members(const struct wire_member *members, uint32_t count, uint16_t sorted[WIRE_MAX_MEMBERS]);
// Returns the place of the member with that id, by halving; UINT32_MAX: there is none.
uint32_t wire_find_member(const struct wire_member *members, const uint16_t *sorted, uint32_t count,
                          const struct wire_id *id);

#endif
