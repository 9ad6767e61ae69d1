#define _GNU_SOURCE
#include "net/wire_data.h"

// ---- heads of data frames ----
enum { CODINGS = (1 << WIRE_SYNC_CODINGS) - 1 }; // of leaves: all

CURSOR_INLINE void visit_op(struct cursor *c, struct wire_op *op) {
    cursor_u64(c, &op->tag);
    wire_visit_fingerprint(c, &op->fingerprint);
    cursor_u16(c, &op->segment);
    cursor_u32(c, &op->sequence);
}

CURSOR_INLINE void visit_ready(struct cursor *c, struct wire_ready *m) {
    cursor_u64(c, &m->expected);
    cursor_u32(c, &m->granted);
    cursor_range(c, &m->in_slots, 0, 1);
}

CURSOR_INLINE void visit_slot_bytes(struct cursor *c, uint32_t *bytes) {
    cursor_u32(c, bytes);
    cursor_expect(c, *bytes > 0 && *bytes <= WIRE_MAX_DATA_BYTES);
}

CURSOR_INLINE void visit_chunk(struct cursor *c, struct wire_chunk *m, bool in_slots) {
    cursor_u64(c, &m->offset);
    cursor_u16(c, &m->shard);
    cursor_u16(c, &m->hop);
    cursor_range(c, &m->down, 0, 1);
    if (in_slots)
        visit_slot_bytes(c, &m->bytes);
    else if (!c->writes)
        m->bytes = 0;
}

CURSOR_INLINE void visit_block(struct cursor *c, struct wire_block *m) {
    cursor_u64(c, &m->index);
    cursor_u16(c, &m->shard);
}

CURSOR_INLINE void visit_small_name(struct cursor *c, struct wire_op_name *name) {
    cursor_u64(c, &name->epoch);
    cursor_u64(c, &name->tag);
    cursor_u32(c, &name->sequence);
    cursor_u32(c, &name->subgroup);
    if (!c->writes) name->segment = 0;
}

CURSOR_INLINE void visit_link_heartbeat(struct cursor *c, struct wire_link_heartbeat *m) {
    cursor_u64(c, &m->clock_us);
    cursor_range(c, &m->loaded, 0, 1);
}

CURSOR_INLINE void visit_sync_ask(struct cursor *c, struct wire_sync_ask *m, uint32_t most, uint8_t codings) {
    cursor_u64(c, &m->round);
    cursor_u64(c, &m->first);
    cursor_u32(c, &m->sequence);
    cursor_u32(c, &m->count);
    cursor_range(c, &m->codings, 0, codings);
    cursor_expect(c, m->count > 0 && m->count <= most);
}

CURSOR_INLINE void visit_sync_hashes(struct cursor *c, struct wire_sync_hashes *m) {
    cursor_u64(c, &m->round);
    cursor_u64(c, &m->first);
    cursor_u32(c, &m->sequence);
    cursor_u32(c, &m->count);
    cursor_expect(c, m->count > 0 && m->count <= WIRE_SYNC_MAX_HASHES);
}

CURSOR_INLINE void visit_sync_leaf(struct cursor *c, struct wire_sync_leaf *m) {
    cursor_u64(c, &m->round);
    cursor_u64(c, &m->leaf);
    cursor_u32(c, &m->sequence);
    cursor_range(c, &m->coding, 0, WIRE_SYNC_CODINGS - 1);
}

static bool is_of_op(uint16_t type) {
    return type == WIRE_READY || type == WIRE_POSTED || type == WIRE_SMALL || type == WIRE_SMALL_IN ||
           type == WIRE_CHUNK || type == WIRE_CHUNK_IN || type == WIRE_EARLY || type == WIRE_CODES ||
           type == WIRE_RESULT || type == WIRE_GRANT;
}

// Padding makes all heads a multiple of WIRE_ALIGN: docs/decisions/frames-are-aligned.md
CURSOR_INLINE void visit_rest(struct cursor *c) {
    static const uint8_t zeros[WIRE_HEAD_BYTES];
    size_t rest = (size_t)(c->end - c->at);
    if (c->writes)
        memset(c->at, 0, rest);
    else
        cursor_expect(c, memcmp(c->at, zeros, rest) == 0);
    c->at = c->end;
}

CURSOR_INLINE void visit_head(struct cursor *c, uint16_t type, struct wire_head *head) {
    cursor_range(c, &head->lead, 0, WIRE_ALIGN - 1);
    cursor_range(c, &head->padding, 0, WIRE_ALIGN - 1);
    if (is_of_op(type)) visit_op(c, &head->op);
    switch (type) {
    case WIRE_READY: visit_ready(c, &head->ready); break;
    case WIRE_CHUNK:
    case WIRE_EARLY: visit_chunk(c, &head->chunk, false); break;
    case WIRE_CHUNK_IN: visit_chunk(c, &head->chunk, true); break;
    case WIRE_CODES:
    case WIRE_RESULT: visit_block(c, &head->block); break;
    case WIRE_GRANT: cursor_u64(c, &head->grant.blocks); break;
    case WIRE_SMALL_IN: visit_slot_bytes(c, &head->small_in.bytes); break;
    case WIRE_ACK: cursor_range(c, &head->ack.leaving, 0, 1); break;
    case WIRE_SUPPLY: visit_small_name(c, &head->supply.name); break;
    case WIRE_TAKEN: cursor_u32(c, &head->taken.slots); break;
    case WIRE_LINK_HEARTBEAT: visit_link_heartbeat(c, &head->link_heartbeat); break;
    case WIRE_SYNC_ASK_HASHES: visit_sync_ask(c, &head->sync_ask, WIRE_SYNC_MAX_HASHES, 0); break;
    case WIRE_SYNC_ASK: visit_sync_ask(c, &head->sync_ask, WIRE_SYNC_MAX_LEAVES, CODINGS); break;
    case WIRE_SYNC_HASHES: visit_sync_hashes(c, &head->sync_hashes); break;
    case WIRE_SYNC_LEAF: visit_sync_leaf(c, &head->sync_leaf); break;
    default: cursor_expect(c, type == WIRE_POSTED || type == WIRE_SMALL || type == WIRE_MEMORY);
    }
    visit_rest(c);
}

void wire_head_encode(uint8_t out[WIRE_HEAD_BYTES], uint16_t type, const struct wire_head *head) {
    struct cursor c = cursor_write(out, WIRE_HEAD_BYTES);
    visit_head(&c, type, (struct wire_head *)head);
}

bool wire_head_decode(const uint8_t in[WIRE_HEAD_BYTES], uint16_t type, struct wire_head *out) {
    struct cursor c = cursor_read(in, WIRE_HEAD_BYTES);
    visit_head(&c, type, out);
    return cursor_complete(&c);
}

// ---- payloads ----
void wire_ack_encode(uint8_t out[WIRE_ACK_BYTES], const struct wire_op_name *name) {
    struct cursor c = cursor_write(out, WIRE_ACK_BYTES);
    visit_small_name(&c, (struct wire_op_name *)name);
}

struct wire_op_name wire_ack_decode(const uint8_t in[WIRE_ACK_BYTES]) {
    struct wire_op_name name = {0};
    struct cursor c = cursor_read(in, WIRE_ACK_BYTES);
    visit_small_name(&c, &name);
    return name;
}

void wire_slot_encode(uint8_t out[WIRE_SLOT_BYTES], uint64_t first, uint64_t epoch) {
    struct cursor c = cursor_write(out, WIRE_SLOT_BYTES);
    cursor_u64(&c, &first);
    cursor_u64(&c, &epoch);
}

void wire_slot_decode(const uint8_t in[WIRE_SLOT_BYTES], uint64_t *first, uint64_t *epoch) {
    struct cursor c = cursor_read(in, WIRE_SLOT_BYTES);
    cursor_u64(&c, first);
    cursor_u64(&c, epoch);
}

void wire_encode_link_padding(struct wire_buffer *out, struct wire_header header) {
    static const uint8_t zeros[WIRE_PADDING_BYTES];
    wire_encode_bytes(out, header, WIRE_LINK_PADDING, zeros, sizeof zeros);
}
