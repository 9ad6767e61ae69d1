#define _GNU_SOURCE
#include "net/wire_data.h"

CURSOR_INLINE void visit_op(struct cursor *c, struct wire_op *op) {
    cursor_u64(c, &op->tag);
    wire_visit_fingerprint(c, &op->fingerprint);
    cursor_u16(c, &op->shard);
    cursor_u16(c, &op->hop);
    cursor_u16(c, &op->segment);
    cursor_u32(c, &op->sequence);
    cursor_u64(c, &op->offset);
    cursor_u32(c, &op->extra);
    cursor_u8(c, &op->lead);
    cursor_u8(c, &op->padding);
    // Reserved bytes make the head a multiple of WIRE_ALIGN: docs/decisions/frames-are-aligned.md
    static const uint8_t zeros[WIRE_OP_RESERVED_BYTES];
    uint8_t reserved[WIRE_OP_RESERVED_BYTES] = {0};
    cursor_bytes(c, reserved, sizeof reserved);
    cursor_expect(c, op->lead < WIRE_ALIGN && op->padding < WIRE_ALIGN && memcmp(reserved, zeros, sizeof zeros) == 0);
}

void wire_op_encode(uint8_t out[WIRE_OP_BYTES], const struct wire_op *op) {
    struct cursor c = cursor_write(out, WIRE_OP_BYTES);
    visit_op(&c, (struct wire_op *)op);
}

bool wire_op_decode(const uint8_t in[WIRE_OP_BYTES], struct wire_op *out) {
    struct cursor c = cursor_read(in, WIRE_OP_BYTES);
    visit_op(&c, out);
    return cursor_complete(&c);
}

static void visit_ack(struct cursor *c, struct wire_op_name *name) {
    cursor_u64(c, &name->epoch);
    cursor_u64(c, &name->tag);
    cursor_u32(c, &name->sequence);
    cursor_u32(c, &name->subgroup);
}

void wire_ack_encode(uint8_t out[WIRE_ACK_BYTES], const struct wire_op_name *name) {
    struct cursor c = cursor_write(out, WIRE_ACK_BYTES);
    visit_ack(&c, (struct wire_op_name *)name);
}

struct wire_op_name wire_ack_decode(const uint8_t in[WIRE_ACK_BYTES]) {
    struct wire_op_name name = {0};
    struct cursor c = cursor_read(in, WIRE_ACK_BYTES);
    visit_ack(&c, &name);
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

static void visit_link_hello(struct cursor *c, struct wire_link_hello *m) {
    cursor_u16(c, &m->version);
    cursor_range(c, &m->kind, WIRE_LINK_DATA, WIRE_LINK_PROBE);
    cursor_bytes(c, m->secret, sizeof m->secret);
    cursor_bytes(c, m->from.bytes, WIRE_ID_BYTES);
    cursor_bytes(c, m->to.bytes, WIRE_ID_BYTES);
    cursor_u32(c, &m->index);
    cursor_expect(c, m->index <= WIRE_MAX_LANES);
}

WIRE_DEFINE(link_hello, LINK_HELLO)

void wire_encode_link_padding(struct wire_buffer *out, struct wire_header header) {
    static uint8_t zeros[WIRE_PADDING_BYTES]; // only read
    struct cursor c = wire_begin(out);
    cursor_bytes(&c, zeros, sizeof zeros);
    wire_end(&c, header, WIRE_LINK_PADDING);
}
