// Messages between peers. See net/wire.h.
#ifndef PCCL_NET_WIRE_DATA_H
#define PCCL_NET_WIRE_DATA_H

#include "net/wire.h"

enum wire_link_kind { WIRE_LINK_DATA = 1, WIRE_LINK_PROBE };

struct wire_link_hello {
    uint16_t version;
    uint8_t kind;
    uint8_t secret[16];
    struct wire_id from, to;
    uint32_t index; // 0: direct link of the pair; 1..lanes: lanes, between members that send each other tensors
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
    uint8_t lead;    // zero bytes between this head and the payload, less than WIRE_ALIGN
    uint8_t padding; // zero bytes behind the payload, less than WIRE_ALIGN
};

// Returns how many bytes `length` lacks to a multiple of WIRE_ALIGN.
static inline uint8_t wire_padding(size_t length) { return (uint8_t)((WIRE_ALIGN - length % WIRE_ALIGN) % WIRE_ALIGN); }

void wire_op_encode(uint8_t out[WIRE_OP_BYTES], const struct wire_op *op);
bool wire_op_decode(const uint8_t in[WIRE_OP_BYTES], struct wire_op *out);

// The payload of ACK is a list of names of small ops, which have no segments.
void wire_ack_encode(uint8_t out[WIRE_ACK_BYTES], const struct wire_op_name *name);
struct wire_op_name wire_ack_decode(const uint8_t in[WIRE_ACK_BYTES]);

// The first of consecutive slots in the sender's shared memory (data/slots), and the group epoch to which that memory
// belongs: the payload of CHUNK_IN and SMALL_IN, and of SYNC_LEAF in the coding SLOT.
void wire_slot_encode(uint8_t out[WIRE_SLOT_BYTES], uint64_t first, uint64_t epoch);
void wire_slot_decode(const uint8_t in[WIRE_SLOT_BYTES], uint64_t *first, uint64_t *epoch);

WIRE_DECLARE(link_hello, LINK_HELLO)
void wire_encode_link_padding(struct wire_buffer *out, struct wire_header header);

// ---- shared state ----

// Data frames. header.epoch is 0: they belong to a round, not to a group epoch, and live through losses of others. In
// struct wire_op: tag = round; sequence = any number of the asker's, given back in the answer; fingerprint, hop and,
// where nothing is said, shard are 0. `offset` is a leaf's number: the leaves (256 KiB, the last one of an entry may be
// shorter) of all entries without the allow flag, in the order of the mask, counted from 0 through the whole state; the
// mask tells both sides which entry and place that is. Frames of another round are discarded, but for asks that come
// before the donor's PLAN: they wait for it. Nothing is sent that was not asked for.
//   SYNC_ASK_HASHES  offset = first leaf, extra = number of hashes (1..WIRE_SYNC_MAX_HASHES), no payload
//   SYNC_HASHES      offset, extra as asked; payload: the hashes, u64 each, little-endian. All of them give the content
//                    hash of the plan.
//   SYNC_ASK         offset = first leaf, extra = number of leaves (1..WIRE_SYNC_MAX_LEAVES), shard = the codings that
//                    the asker takes beside plain, 1 << wire_sync_coding each; no payload
//   SYNC_LEAF        offset = leaf, extra = wire_sync_coding; payload: the leaf in that coding
enum wire_sync_coding {
    WIRE_SYNC_PLAIN, // its bytes
    WIRE_SYNC_LZ4,   // one LZ4 block, shorter than the leaf
    // the slot that its bytes lie in (wire_slot_encode). An asker that has no such slot, because it is in another
    // epoch, asks again.
    WIRE_SYNC_SLOT,
};

#endif
