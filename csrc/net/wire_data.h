// Messages between peers. See net/wire.h.
#ifndef PCCL_NET_WIRE_DATA_H
#define PCCL_NET_WIRE_DATA_H

#include "net/wire.h"

enum wire_link_kind {
    WIRE_LINK_DATA = 1,
    WIRE_LINK_PROBE,
    WIRE_LINK_PRECOPY, // of a newcomer to a member: state/precopy
};

struct wire_link_hello {
    uint16_t version;
    uint8_t kind;
    uint8_t secret[16];
    struct wire_id from, to;
    uint32_t index; // 0: direct link of the pair; 1..lanes: lanes, between members that send each other tensors
};

// ---- heads of data frames ----

// The op that a frame is for. The epoch is the header's.
struct wire_op {
    uint64_t tag;
    struct wire_fingerprint fingerprint;
    uint16_t segment; // see wire_op_name, like sequence
    uint32_t sequence;
};

struct wire_ready {
    uint64_t expected; // pieces: elements that the sender expects from the receiver
    uint32_t granted;  // weighted, quantised: blocks of the sender's shard that may come
    // ring, chain, pieces: 1 if the sender has mapped the receiver's slots, so chunks may come in them
    uint8_t in_slots;
};

// CHUNK, CHUNK_IN, EARLY
struct wire_chunk {
    uint64_t offset; // elements from the start of the segment; pieces: of the piece
    uint16_t shard;  // ring, weighted
    uint16_t hop;    // ring
    uint8_t down;    // weighted: 0 for an input or a sum on its way up, 1 for a result on its way down
    uint32_t bytes;  // CHUNK_IN: of the chunk; in the others it is 0, and the payload is the chunk
};

// CODES, RESULT
struct wire_block {
    uint64_t index; // in the shard
    uint16_t shard;
};

struct wire_grant {
    uint64_t blocks; // of the sender's shard: those below may come
};

struct wire_small_in {
    uint32_t bytes; // of the input
};

struct wire_ack {
    uint8_t leaving; // 1: the sender is about to leave, so acknowledge at once from now on
};

struct wire_supply {
    struct wire_op_name name; // without a segment
};

struct wire_taken {
    uint32_t slots; // a bit for each slot that is free again; 0: the sender has mapped the receiver's slots
};

struct wire_link_heartbeat {
    uint64_t clock_us; // the sender's
    uint8_t loaded;    // 1: a large op runs there
};

// SYNC_ASK_HASHES, SYNC_ASK; see "shared state" below, also for the next two.
struct wire_sync_ask {
    uint64_t round, first; // leaf
    uint32_t sequence;     // any number of the asker's, given back in the answer
    uint32_t count;        // of hashes (1..WIRE_SYNC_MAX_HASHES) or leaves (1..WIRE_SYNC_MAX_LEAVES)
    uint8_t codings;       // SYNC_ASK: those that the asker takes beside plain, 1 << wire_sync_coding each
};

struct wire_sync_hashes {
    uint64_t round, first;
    uint32_t sequence, count; // as asked
};

struct wire_sync_leaf {
    uint64_t round, leaf;
    uint32_t sequence;
    uint8_t coding; // wire_sync_coding
};

// Head of the body of every data frame from READY on; the type of the frame says which member of the union it has.
// POSTED, SMALL and MEMORY have none. Bytes that a type leaves over are zero on the wire.
struct wire_head {
    uint8_t lead;      // zero bytes between this head and the payload, less than WIRE_ALIGN
    uint8_t padding;   // zero bytes behind the payload, less than WIRE_ALIGN
    struct wire_op op; // READY, POSTED, SMALL, SMALL_IN, CHUNK, CHUNK_IN, EARLY, CODES, RESULT, GRANT
    union {
        struct wire_ready ready;
        struct wire_chunk chunk;
        struct wire_block block;
        struct wire_grant grant;
        struct wire_small_in small_in;
        struct wire_ack ack;
        struct wire_supply supply;
        struct wire_taken taken;
        struct wire_link_heartbeat link_heartbeat;
        struct wire_sync_ask sync_ask;
        struct wire_sync_hashes sync_hashes;
        struct wire_sync_leaf sync_leaf;
    };
};

// Returns how many bytes `length` lacks to a multiple of WIRE_ALIGN.
static inline uint8_t wire_padding(size_t length) { return (uint8_t)((WIRE_ALIGN - length % WIRE_ALIGN) % WIRE_ALIGN); }

void wire_head_encode(uint8_t out[WIRE_HEAD_BYTES], uint16_t type, const struct wire_head *head);
// False: malformed, or frames of this type have no head. Sets what the type has, and leaves the rest of `out` alone.
bool wire_head_decode(const uint8_t in[WIRE_HEAD_BYTES], uint16_t type, struct wire_head *out);

// The payload of ACK is a list of names of small ops, which have no segments.
void wire_ack_encode(uint8_t out[WIRE_ACK_BYTES], const struct wire_op_name *name);
struct wire_op_name wire_ack_decode(const uint8_t in[WIRE_ACK_BYTES]);

// The first of consecutive slots in the sender's shared memory (data/slots), and the group epoch to which that memory
// belongs: the payload of CHUNK_IN and SMALL_IN, and of SYNC_LEAF in the coding SLOT.
void wire_slot_encode(uint8_t out[WIRE_SLOT_BYTES], uint64_t first, uint64_t epoch);
void wire_slot_decode(const uint8_t in[WIRE_SLOT_BYTES], uint64_t *first, uint64_t *epoch);

WIRE_DEFINE(link_hello, LINK_HELLO)
void wire_encode_link_padding(struct wire_buffer *out, struct wire_header header);

// ---- shared state ----

// Data frames. header.epoch is 0: they belong to a round, not to a group epoch, and live through losses of others.
// Leaves (256 KiB, the last one of an entry may be shorter) of all entries without the allow flag are counted from 0
// through the whole state, in the order of the mask, which tells both sides which entry and place a leaf is. Frames of
// another round are discarded, but for asks that come before the donor's PLAN: they wait for it. Nothing is sent that
// was not asked for. The payload of SYNC_HASHES: the hashes, u64 each, little-endian. All of them give the content hash
// of the plan. The payload of SYNC_LEAF: the leaf in its coding. Asks have none.
enum wire_sync_coding {
    WIRE_SYNC_PLAIN, // its bytes
    WIRE_SYNC_LZ4,   // one LZ4 block, shorter than the leaf
    // the slot that its bytes lie in (wire_slot_encode). An asker that has no such slot, because it is in another
    // epoch, asks again.
    WIRE_SYNC_SLOT,
    WIRE_SYNC_CODINGS
};

#endif
