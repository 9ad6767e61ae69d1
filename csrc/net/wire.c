#define _GNU_SOURCE
#include "net/wire.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "net/roster.h"

enum {
    ADDRESS_BYTES = 1 + 16 + 2,
    MEMBER_BYTES = WIRE_ID_BYTES + 8 + 4 + 4 + ADDRESS_BYTES,
    EPOCH_BYTES = 8 + 8 + 8 + 8 + 8 + 8 + 4 + 4 + 4,
    FINGERPRINT_BYTES = 8 + 5,
    OP_NAME_BYTES = 8 + 8 + 4 + 2,
    HELLO_BYTES = 2 + WIRE_ID_BYTES + 4 + 4 + 2 + 1,
    WELCOME_BYTES = 8 + 16 + 4 + ADDRESS_BYTES,
    LINKED_BYTES = 4 + 4 + 4,
    VERDICT_BYTES = OP_NAME_BYTES + 1 + WIRE_ID_BYTES + 2 + 4,
    OP_REPORT_BYTES = OP_NAME_BYTES + 1 + 1,
    MISMATCH_BYTES = OP_NAME_BYTES + FINGERPRINT_BYTES + WIRE_ID_BYTES + FINGERPRINT_BYTES,
    LINK_DOWN_BYTES = WIRE_ID_BYTES + 4 + 1,
    MEASURE_BYTES = 4 + WIRE_ID_BYTES + 4,
    MEASURED_BYTES = WIRE_ID_BYTES + WIRE_ID_BYTES + 8,
    LINK_HELLO_BYTES = 2 + 1 + 16 + WIRE_ID_BYTES + WIRE_ID_BYTES + 4,
    HASH_BYTES = 8 + 8,
    SYNC_VOTE_BYTES = 1 + 1 + 8 + HASH_BYTES + HASH_BYTES + 8,
    OUTLINE_BYTES = WIRE_MAX_OUTLINE * 4,
    SYNC_DIFFERS_BYTES = 8 + 8,
    SYNC_PLAN_BYTES = 8 + 8 + HASH_BYTES + HASH_BYTES + 4 + 4,
    SYNC_SOURCE_BYTES = WIRE_ID_BYTES + 8,
    SYNC_DONE_BYTES = 8 + 1 + 4,
    SYNC_END_BYTES = 8 + 1 + 8 + 8 + 2,
    BARRIER_BYTES = 8 + 1 + 1 + 8 + 8 + 4,
    GROUP_SIZE_BYTES = 4 + 4,
    PAST_BYTES = OP_NAME_BYTES + 1,
    LOSS_BYTES = 8 + 4 + 4 + 4 + 4,
    QUORUM_BYTES = 4 + 4 + 8,
    NEWCOMER_BYTES = HELLO_BYTES + 8 + 8 + 16 + 1 + SYNC_VOTE_BYTES + 1,
    RESUME_BYTES = NEWCOMER_BYTES + 1 + 1 + 8 + BARRIER_BYTES + EPOCH_BYTES + 4 + 4 + QUORUM_BYTES,
    RESUMED_BYTES = 4 + 1 + 1 + BARRIER_BYTES + 4 + SYNC_END_BYTES,
    FOREIGN_HELLO_BYTES = 256, // a hello of another version may be longer; it gets an answer, not silence
    MEMBERS_BYTES = WIRE_MAX_MEMBERS * MEMBER_BYTES,
    IDS_BYTES = WIRE_MAX_MEMBERS * WIRE_ID_BYTES,
    SIZES_BYTES = WIRE_MAX_MEMBERS * GROUP_SIZE_BYTES,
    LOSSES_BYTES = WIRE_MAX_MEMBERS * LOSS_BYTES,
    MAX_REPORTED_OPS = 2 * WIRE_MAX_LIVE_OPS,
    MAX_RESUME_BYTES = RESUME_BYTES + OUTLINE_BYTES + SIZES_BYTES + MEMBERS_BYTES + WIRE_MAX_PAST * PAST_BYTES +
        LOSSES_BYTES,
};

// The lengths that a body of each type can have, so that a header alone tells how much must be buffered.
static const struct {
    const char *name;
    uint32_t least, most;
} types[] = {
    [WIRE_HELLO] = {"HELLO", 2, FOREIGN_HELLO_BYTES},
    [WIRE_WELCOME] = {"WELCOME", WELCOME_BYTES, WELCOME_BYTES},
    [WIRE_REFUSED] = {"REFUSED", 2, 2 + WIRE_MAX_TEXT},
    [WIRE_CANDIDATE] = {"CANDIDATE", 4 + EPOCH_BYTES, 4 + EPOCH_BYTES + MEMBERS_BYTES},
    [WIRE_LINKED] = {"LINKED", LINKED_BYTES, LINKED_BYTES + IDS_BYTES},
    [WIRE_EPOCH] = {"EPOCH", 1 + EPOCH_BYTES + QUORUM_BYTES, 1 + EPOCH_BYTES + MEMBERS_BYTES + QUORUM_BYTES},
    [WIRE_VOTE] = {"VOTE", 1, 1},
    [WIRE_OUTCOME] = {"OUTCOME", 1 + 1 + 8, 1 + 1 + 8},
    [WIRE_HEARTBEAT] = {"HEARTBEAT", 0, 0},
    [WIRE_LEAVE] = {"LEAVE", 0, 0},
    [WIRE_EXPELLED] = {"EXPELLED", 2, 2 + WIRE_MAX_TEXT},
    [WIRE_DONE] = {"DONE", OP_NAME_BYTES, OP_NAME_BYTES},
    [WIRE_VERDICT] = {"VERDICT", VERDICT_BYTES, VERDICT_BYTES + WIRE_MAX_TEXT + IDS_BYTES},
    [WIRE_REPORT] = {"REPORT", 4, 4 + MAX_REPORTED_OPS * OP_REPORT_BYTES},
    [WIRE_MISMATCH] = {"MISMATCH", MISMATCH_BYTES, MISMATCH_BYTES},
    [WIRE_LINK_DOWN] = {"LINK_DOWN", LINK_DOWN_BYTES, LINK_DOWN_BYTES},
    [WIRE_MEASURE] = {"MEASURE", MEASURE_BYTES, MEASURE_BYTES},
    [WIRE_MEASURED] = {"MEASURED", MEASURED_BYTES, MEASURED_BYTES},
    [WIRE_SYNC_VOTE] = {"SYNC_VOTE", SYNC_VOTE_BYTES, SYNC_VOTE_BYTES + OUTLINE_BYTES},
    [WIRE_SYNC_PLAN] = {"SYNC_PLAN", SYNC_PLAN_BYTES + 2 * WIRE_ID_BYTES, SYNC_PLAN_BYTES + 2 * IDS_BYTES},
    [WIRE_SYNC_DONE] = {"SYNC_DONE", SYNC_DONE_BYTES, SYNC_DONE_BYTES + WIRE_MAX_MEMBERS * SYNC_SOURCE_BYTES},
    [WIRE_SYNC_END] = {"SYNC_END", SYNC_END_BYTES, SYNC_END_BYTES + WIRE_MAX_TEXT},
    [WIRE_RESUME] = {"RESUME", 2, MAX_RESUME_BYTES},
    [WIRE_GENERATION] = {"GENERATION", 0, 0},
    [WIRE_PROMISE] = {"PROMISE", 0, 0},
    [WIRE_RESUMED] = {"RESUMED", RESUMED_BYTES, RESUMED_BYTES + SIZES_BYTES + LOSSES_BYTES + WIRE_MAX_TEXT},
    [WIRE_BYE] = {"BYE", 0, 0},
    [WIRE_MOVED] = {"MOVED", 0, 0},
    [WIRE_STATUS] = {"STATUS", 0, 0},
    [WIRE_STATUS_IS] = {"STATUS_IS", 1, 1},
    [WIRE_WAITING] = {"WAITING", 2, 2 + WIRE_MAX_TEXT},
    [WIRE_SYNC_DIFFERS] = {"SYNC_DIFFERS", SYNC_DIFFERS_BYTES, SYNC_DIFFERS_BYTES},
    [WIRE_LINK_HELLO] = {"LINK_HELLO", LINK_HELLO_BYTES, LINK_HELLO_BYTES},
    [WIRE_LINK_ACK] = {"LINK_ACK", 0, 0},
    [WIRE_READY] = {"READY", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_POSTED] = {"POSTED", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_SMALL] = {"SMALL", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_ACK] = {"ACK", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_SUPPLY] = {"SUPPLY", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_CHUNK] = {"CHUNK", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_CODES] = {"CODES", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_RESULT] = {"RESULT", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_GRANT] = {"GRANT", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_MEMORY] = {"MEMORY", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_CHUNK_AT] = {"CHUNK_AT", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_SYNC_ASK_HASHES] = {"SYNC_ASK_HASHES", WIRE_OP_BYTES, WIRE_OP_BYTES},
    [WIRE_SYNC_HASHES] = {"SYNC_HASHES", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_SYNC_ASK] = {"SYNC_ASK", WIRE_OP_BYTES, WIRE_OP_BYTES},
    [WIRE_SYNC_LEAF] = {"SYNC_LEAF", WIRE_OP_BYTES, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES},
    [WIRE_LINK_HEARTBEAT] = {"LINK_HEARTBEAT", WIRE_OP_BYTES, WIRE_OP_BYTES},
};

_Static_assert(4 + EPOCH_BYTES + MEMBERS_BYTES <= WIRE_MAX_CONTROL_BYTES, "an epoch fits a control frame");
_Static_assert(VERDICT_BYTES + WIRE_MAX_TEXT + IDS_BYTES <= WIRE_MAX_CONTROL_BYTES, "a verdict fits a control frame");
_Static_assert(4 + MAX_REPORTED_OPS * OP_REPORT_BYTES <= WIRE_MAX_CONTROL_BYTES, "a report fits a control frame");

_Static_assert(MAX_RESUME_BYTES <= (int)WIRE_MAX_CONTROL_BYTES, "what a peer knows fits a control frame");

static bool type_known(uint16_t type) { return type < sizeof types / sizeof types[0] && types[type].name != NULL; }

const char *wire_type_name(uint16_t type) { return type_known(type) ? types[type].name : "unknown"; }

// ---- writing: the caller has made room, `put_*` returns where the next field goes ----

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t length) {
    memcpy(at, bytes, length);
    return at + length;
}

static uint8_t *put_u8(uint8_t *at, uint8_t value) {
    *at = value;
    return at + 1;
}

static uint8_t *put_u16(uint8_t *at, uint16_t value) {
    value = htole16(value);
    return put_bytes(at, &value, sizeof value);
}

static uint8_t *put_u32(uint8_t *at, uint32_t value) {
    value = htole32(value);
    return put_bytes(at, &value, sizeof value);
}

static uint8_t *put_u64(uint8_t *at, uint64_t value) {
    value = htole64(value);
    return put_bytes(at, &value, sizeof value);
}

static uint8_t *put_id(uint8_t *at, const struct wire_id *id) { return put_bytes(at, id->bytes, WIRE_ID_BYTES); }

static uint8_t *put_address(uint8_t *at, const struct wire_address *address) {
    at = put_u8(at, address->family);
    at = put_bytes(at, address->bytes, sizeof address->bytes);
    return put_u16(at, address->port);
}

static uint8_t *put_hash(uint8_t *at, const struct wire_hash *hash) {
    at = put_u64(at, hash->low);
    return put_u64(at, hash->high);
}

static uint8_t *put_op_name(uint8_t *at, const struct wire_op_name *name) {
    at = put_u64(at, name->epoch);
    at = put_u64(at, name->tag);
    at = put_u32(at, name->sequence);
    return put_u16(at, name->segment);
}

static uint8_t *put_fingerprint(uint8_t *at, const struct wire_fingerprint *fingerprint) {
    at = put_u64(at, fingerprint->count);
    at = put_u8(at, fingerprint->dtype);
    at = put_u8(at, fingerprint->op);
    at = put_u8(at, fingerprint->quantised_dtype);
    at = put_u8(at, fingerprint->algorithm);
    return put_u8(at, fingerprint->mode);
}

static uint8_t *put_epoch(uint8_t *at, const struct wire_epoch *epoch) {
    at = put_u64(at, epoch->number);
    at = put_u64(at, epoch->group_epoch);
    at = put_u64(at, epoch->lost_epoch);
    at = put_u64(at, epoch->barrier);
    at = put_u64(at, epoch->sync_round);
    at = put_u64(at, epoch->sync_expected);
    at = put_u32(at, epoch->latency_us);
    at = put_u32(at, epoch->megabytes_per_s);
    at = put_u32(at, epoch->count);
    for (uint32_t i = 0; i < epoch->count; i++) {
        const struct wire_member *member = &epoch->members[i];
        at = put_id(at, &member->id);
        at = put_u64(at, member->join_number);
        at = put_u32(at, member->group);
        at = put_u32(at, member->lanes);
        at = put_address(at, &member->address);
    }
    return at;
}

// ---- reading: `bad` latches, and what is read after that is zero ----

struct reader {
    const uint8_t *at, *end;
    bool bad;
};

static struct reader reader_of(const uint8_t *body, size_t length) {
    return (struct reader){body, body == NULL ? body : body + length, false};
}

static bool reader_complete(const struct reader *in) { return !in->bad && in->at == in->end; }

static void get_bytes(struct reader *in, void *out, size_t length) {
    if (in->bad || (size_t)(in->end - in->at) < length) {
        in->bad = true;
        memset(out, 0, length);
        return;
    }
    if (length == 0) return;
    memcpy(out, in->at, length);
    in->at += length;
}

static uint8_t get_u8(struct reader *in) {
    uint8_t value;
    get_bytes(in, &value, sizeof value);
    return value;
}

static uint16_t get_u16(struct reader *in) {
    uint16_t value;
    get_bytes(in, &value, sizeof value);
    return le16toh(value);
}

static uint32_t get_u32(struct reader *in) {
    uint32_t value;
    get_bytes(in, &value, sizeof value);
    return le32toh(value);
}

static uint64_t get_u64(struct reader *in) {
    uint64_t value;
    get_bytes(in, &value, sizeof value);
    return le64toh(value);
}

// A number that must lie in [least, most].
static uint8_t get_enum(struct reader *in, uint8_t least, uint8_t most) {
    uint8_t value = get_u8(in);
    if (value < least || value > most) in->bad = true;
    return value;
}

// A count of items of `each` bytes, believed only if they are all there.
static uint32_t get_count(struct reader *in, uint32_t most, size_t each) {
    uint32_t count = get_u32(in);
    if (count <= most && (size_t)(in->end - in->at) >= count * each) return count;
    in->bad = true;
    return 0;
}

static void get_id(struct reader *in, struct wire_id *out) { get_bytes(in, out->bytes, WIRE_ID_BYTES); }

static uint32_t get_lanes(struct reader *in) {
    uint32_t lanes = get_u32(in);
    if (lanes < 1 || lanes > WIRE_MAX_LANES) in->bad = true;
    return lanes;
}

static void get_address(struct reader *in, struct wire_address *out) {
    out->family = get_u8(in);
    get_bytes(in, out->bytes, sizeof out->bytes);
    out->port = get_u16(in);
    if (out->family != 4 && out->family != 6) in->bad = true;
}

static void get_hash(struct reader *in, struct wire_hash *out) {
    out->low = get_u64(in);
    out->high = get_u64(in);
}

static void get_op_name(struct reader *in, struct wire_op_name *out) {
    out->epoch = get_u64(in);
    out->tag = get_u64(in);
    out->sequence = get_u32(in);
    out->segment = get_u16(in);
}

static void get_fingerprint(struct reader *in, struct wire_fingerprint *out) {
    out->count = get_u64(in);
    out->dtype = get_u8(in);
    out->op = get_u8(in);
    out->quantised_dtype = get_u8(in);
    out->algorithm = get_u8(in);
    out->mode = get_u8(in);
}

static bool names_twice(const struct wire_epoch *epoch) {
    uint16_t sorted[WIRE_MAX_MEMBERS];
    roster_sort(epoch->members, epoch->count, sorted);
    for (uint32_t i = 1; i < epoch->count; i++)
        if (wire_id_equal(&epoch->members[sorted[i - 1]].id, &epoch->members[sorted[i]].id)) return true;
    return false;
}

static void get_epoch(struct reader *in, struct wire_epoch *out) {
    out->number = get_u64(in);
    out->group_epoch = get_u64(in);
    out->lost_epoch = get_u64(in);
    out->barrier = get_u64(in);
    out->sync_round = get_u64(in);
    out->sync_expected = get_u64(in);
    out->latency_us = get_u32(in);
    out->megabytes_per_s = get_u32(in);
    out->count = get_count(in, WIRE_MAX_MEMBERS, MEMBER_BYTES);
    for (uint32_t i = 0; i < out->count; i++) {
        struct wire_member *member = &out->members[i];
        get_id(in, &member->id);
        member->join_number = get_u64(in);
        member->group = get_u32(in);
        member->lanes = get_lanes(in);
        get_address(in, &member->address);
        if (i > 0 && member->group < out->members[i - 1].group) in->bad = true;
    }
    if (out->count == 0 || names_twice(out) || out->group_epoch > out->number || out->lost_epoch > out->number ||
        out->latency_us == 0 || out->megabytes_per_s == 0)
        in->bad = true;
}

// ---- buffer ----

void wire_buffer_fini(struct wire_buffer *buffer) {
    free(buffer->bytes);
    *buffer = (struct wire_buffer){0};
}

static bool reserve(struct wire_buffer *buffer, size_t more) {
    if (buffer->failed) return false;
    size_t wanted = buffer->length + more;
    if (wanted <= buffer->capacity) return true;
    size_t capacity = buffer->capacity < 256 ? 256 : buffer->capacity;
    while (capacity < wanted) capacity *= 2;
    uint8_t *bytes = realloc(buffer->bytes, capacity);
    if (bytes == NULL) {
        buffer->failed = true;
        return false;
    }
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return true;
}

void wire_buffer_append(struct wire_buffer *buffer, const struct wire_buffer *frames) {
    if (frames->length == 0 || !reserve(buffer, frames->length)) return;
    memcpy(buffer->bytes + buffer->length, frames->bytes, frames->length);
    buffer->length += frames->length;
}

// Appends the header of a frame and makes room for its body: a pointer to the body, or NULL when memory is refused.
static uint8_t *begin(struct wire_buffer *out, struct wire_header header, enum wire_type type, size_t length) {
    assert(length >= types[type].least && length <= types[type].most);
    if (!reserve(out, WIRE_HEADER_BYTES + length)) return NULL;
    header.type = (uint16_t)type;
    header.length = (uint32_t)length;
    wire_header_encode(out->bytes + out->length, &header);
    uint8_t *body = out->bytes + out->length + WIRE_HEADER_BYTES;
    out->length += WIRE_HEADER_BYTES + length;
    return body;
}

// ---- headers ----

void wire_header_encode(uint8_t out[WIRE_HEADER_BYTES], const struct wire_header *header) {
    uint8_t *at = put_u32(out, header->length);
    at = put_u16(at, WIRE_MAGIC);
    at = put_u16(at, header->type);
    at = put_u64(at, header->run);
    at = put_u64(at, header->generation);
    put_u64(at, header->epoch);
}

bool wire_header_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_header *out) {
    struct reader reader = reader_of(in, WIRE_HEADER_BYTES);
    out->length = get_u32(&reader);
    uint16_t magic = get_u16(&reader);
    out->type = get_u16(&reader);
    out->run = get_u64(&reader);
    out->generation = get_u64(&reader);
    out->epoch = get_u64(&reader);
    return magic == WIRE_MAGIC && type_known(out->type) && out->length >= types[out->type].least &&
           out->length <= types[out->type].most;
}

void wire_op_encode(uint8_t out[WIRE_OP_BYTES], const struct wire_op *op) {
    uint8_t *at = put_u64(out, op->tag);
    at = put_fingerprint(at, &op->fingerprint);
    at = put_u16(at, op->shard);
    at = put_u16(at, op->hop);
    at = put_u16(at, op->segment);
    at = put_u32(at, op->sequence);
    at = put_u64(at, op->offset);
    at = put_u32(at, op->extra);
    at = put_u8(at, op->padding);
    put_u32(at, 0);
}

bool wire_op_decode(const uint8_t in[WIRE_OP_BYTES], struct wire_op *out) {
    struct reader reader = reader_of(in, WIRE_OP_BYTES);
    out->tag = get_u64(&reader);
    get_fingerprint(&reader, &out->fingerprint);
    out->shard = get_u16(&reader);
    out->hop = get_u16(&reader);
    out->segment = get_u16(&reader);
    out->sequence = get_u32(&reader);
    out->offset = get_u64(&reader);
    out->extra = get_u32(&reader);
    out->padding = get_u8(&reader);
    if (get_u32(&reader) != 0 || out->padding >= WIRE_ALIGN) reader.bad = true;
    return reader_complete(&reader);
}

// ---- encoders ----

void wire_encode_empty(struct wire_buffer *out, struct wire_header header, enum wire_type type) {
    begin(out, header, type, 0);
}

void wire_encode_text(struct wire_buffer *out, struct wire_header header, enum wire_type type, const char *text) {
    size_t length = strnlen(text, WIRE_MAX_TEXT);
    uint8_t *at = begin(out, header, type, 2 + length);
    if (at == NULL) return;
    at = put_u16(at, (uint16_t)length);
    put_bytes(at, text, length);
}

static uint8_t *put_hello(uint8_t *at, const struct wire_hello *message) {
    at = put_u16(at, message->version);
    at = put_id(at, &message->id);
    at = put_u32(at, message->group);
    at = put_u32(at, message->lanes);
    at = put_u16(at, message->port);
    return put_u8(at, message->masters);
}

void wire_encode_hello(struct wire_buffer *out, struct wire_header header, const struct wire_hello *message) {
    uint8_t *at = begin(out, header, WIRE_HELLO, HELLO_BYTES);
    if (at != NULL) put_hello(at, message);
}

void wire_encode_welcome(struct wire_buffer *out, struct wire_header header, const struct wire_welcome *message) {
    uint8_t *at = begin(out, header, WIRE_WELCOME, WELCOME_BYTES);
    if (at == NULL) return;
    at = put_u64(at, message->join_number);
    at = put_bytes(at, message->secret, sizeof message->secret);
    at = put_u32(at, message->heartbeat_limit_ms);
    put_address(at, &message->seen);
}

void wire_encode_candidate(struct wire_buffer *out, struct wire_header header, const struct wire_candidate *message) {
    uint8_t *at = begin(out, header, WIRE_CANDIDATE, 4 + EPOCH_BYTES + message->epoch.count * (size_t)MEMBER_BYTES);
    if (at == NULL) return;
    at = put_u32(at, message->attempt);
    put_epoch(at, &message->epoch);
}

void wire_encode_linked(struct wire_buffer *out, struct wire_header header, const struct wire_linked *message) {
    uint8_t *at = begin(out, header, WIRE_LINKED, LINKED_BYTES + message->count * (size_t)WIRE_ID_BYTES);
    if (at == NULL) return;
    at = put_u32(at, message->attempt);
    at = put_u32(at, message->latency_us);
    at = put_u32(at, message->count);
    for (uint32_t i = 0; i < message->count; i++) at = put_id(at, &message->unreachable[i]);
}

static void put_quorum(uint8_t *at, const struct wire_quorum *quorum) {
    at = put_u32(at, quorum->members);
    at = put_u32(at, quorum->elders);
    put_u64(at, quorum->newer);
}

void wire_encode_epoch_commit(struct wire_buffer *out, struct wire_header header,
                              const struct wire_epoch_commit *message) {
    uint8_t *at =
        begin(out, header, WIRE_EPOCH, 1 + EPOCH_BYTES + message->epoch.count * (size_t)MEMBER_BYTES + QUORUM_BYTES);
    if (at == NULL) return;
    at = put_u8(at, message->reason);
    at = put_epoch(at, &message->epoch);
    put_quorum(at, &message->quorum);
}

void wire_encode_vote(struct wire_buffer *out, struct wire_header header, const struct wire_vote *message) {
    uint8_t *at = begin(out, header, WIRE_VOTE, 1);
    if (at != NULL) put_u8(at, message->kind);
}

void wire_encode_outcome(struct wire_buffer *out, struct wire_header header, const struct wire_outcome *message) {
    uint8_t *at = begin(out, header, WIRE_OUTCOME, 1 + 1 + 8);
    if (at == NULL) return;
    at = put_u8(at, message->kind);
    at = put_u8(at, message->code);
    put_u64(at, message->value);
}

void wire_encode_op_done(struct wire_buffer *out, struct wire_header header, const struct wire_op_done *message) {
    uint8_t *at = begin(out, header, WIRE_DONE, OP_NAME_BYTES);
    if (at != NULL) put_op_name(at, &message->name);
}

void wire_encode_verdict(struct wire_buffer *out, struct wire_header header, const struct wire_verdict *message) {
    size_t length = VERDICT_BYTES + message->text.length + message->count * (size_t)WIRE_ID_BYTES;
    uint8_t *at = begin(out, header, WIRE_VERDICT, length);
    if (at == NULL) return;
    at = put_op_name(at, &message->name);
    at = put_u8(at, message->kind);
    at = put_id(at, &message->supplier);
    at = put_u16(at, message->text.length);
    at = put_bytes(at, message->text.chars, message->text.length);
    at = put_u32(at, message->count);
    for (uint32_t i = 0; i < message->count; i++) at = put_id(at, &message->needy[i]);
}

void wire_encode_report(struct wire_buffer *out, struct wire_header header, const struct wire_report *message) {
    uint8_t *at = begin(out, header, WIRE_REPORT, 4 + message->count * (size_t)OP_REPORT_BYTES);
    if (at == NULL) return;
    at = put_u32(at, message->count);
    for (uint32_t i = 0; i < message->count; i++) {
        at = put_op_name(at, &message->ops[i].name);
        at = put_u8(at, message->ops[i].state);
        at = put_u8(at, message->ops[i].small);
    }
}

void wire_encode_mismatch(struct wire_buffer *out, struct wire_header header, const struct wire_mismatch *message) {
    uint8_t *at = begin(out, header, WIRE_MISMATCH, MISMATCH_BYTES);
    if (at == NULL) return;
    at = put_op_name(at, &message->name);
    at = put_fingerprint(at, &message->mine);
    at = put_id(at, &message->other);
    put_fingerprint(at, &message->theirs);
}

void wire_encode_link_down(struct wire_buffer *out, struct wire_header header, const struct wire_link_down *message) {
    uint8_t *at = begin(out, header, WIRE_LINK_DOWN, LINK_DOWN_BYTES);
    if (at == NULL) return;
    at = put_id(at, &message->id);
    at = put_u32(at, message->index);
    put_u8(at, message->silent);
}

void wire_encode_measure(struct wire_buffer *out, struct wire_header header, const struct wire_measure *message) {
    uint8_t *at = begin(out, header, WIRE_MEASURE, MEASURE_BYTES);
    if (at == NULL) return;
    at = put_u32(at, message->round);
    at = put_id(at, &message->target);
    put_u32(at, message->duration_ms);
}

void wire_encode_measured(struct wire_buffer *out, struct wire_header header, const struct wire_measured *message) {
    uint8_t *at = begin(out, header, WIRE_MEASURED, MEASURED_BYTES);
    if (at == NULL) return;
    at = put_id(at, &message->from);
    at = put_id(at, &message->to);
    put_u64(at, message->bytes_per_s);
}

static uint32_t outline_count(uint64_t entries) { return (uint32_t)(entries >> wire_outline_shift(entries)); }

static size_t sync_vote_bytes(const struct wire_sync_vote *message) {
    return SYNC_VOTE_BYTES + 4 * (size_t)outline_count(message->outline.entries);
}

static uint8_t *put_sync_vote(uint8_t *at, const struct wire_sync_vote *message) {
    at = put_u8(at, message->strategy);
    at = put_u8(at, message->incomplete);
    at = put_u64(at, message->revision);
    at = put_hash(at, &message->mask);
    at = put_hash(at, &message->content);
    at = put_u64(at, message->outline.entries);
    for (uint32_t i = 0; i < outline_count(message->outline.entries); i++) at = put_u32(at, message->outline.hashes[i]);
    return at;
}

void wire_encode_sync_vote(struct wire_buffer *out, struct wire_header header, const struct wire_sync_vote *message) {
    uint8_t *at = begin(out, header, WIRE_SYNC_VOTE, sync_vote_bytes(message));
    if (at != NULL) put_sync_vote(at, message);
}

void wire_encode_sync_differs(struct wire_buffer *out, struct wire_header header,
                              const struct wire_sync_differs *message) {
    uint8_t *at = begin(out, header, WIRE_SYNC_DIFFERS, SYNC_DIFFERS_BYTES);
    if (at == NULL) return;
    at = put_u64(at, message->first);
    put_u64(at, message->last);
}

void wire_encode_sync_plan(struct wire_buffer *out, struct wire_header header, const struct wire_sync_plan *message) {
    size_t ids = (size_t)message->receiver_count + message->donor_count;
    uint8_t *at = begin(out, header, WIRE_SYNC_PLAN, SYNC_PLAN_BYTES + ids * WIRE_ID_BYTES);
    if (at == NULL) return;
    at = put_u64(at, message->round);
    at = put_u64(at, message->revision);
    at = put_hash(at, &message->mask);
    at = put_hash(at, &message->content);
    at = put_u32(at, message->receiver_count);
    for (uint32_t i = 0; i < message->receiver_count; i++) at = put_id(at, &message->receivers[i]);
    at = put_u32(at, message->donor_count);
    for (uint32_t i = 0; i < message->donor_count; i++) at = put_id(at, &message->donors[i]);
}

void wire_encode_sync_done(struct wire_buffer *out, struct wire_header header, const struct wire_sync_done *message) {
    uint8_t *at = begin(out, header, WIRE_SYNC_DONE, SYNC_DONE_BYTES + message->count * (size_t)SYNC_SOURCE_BYTES);
    if (at == NULL) return;
    at = put_u64(at, message->round);
    at = put_u8(at, message->complete);
    at = put_u32(at, message->count);
    for (uint32_t i = 0; i < message->count; i++) {
        at = put_id(at, &message->sources[i].id);
        at = put_u64(at, message->sources[i].bytes);
    }
}

static uint8_t *put_sync_end(uint8_t *at, const struct wire_sync_end *message) {
    at = put_u64(at, message->round);
    at = put_u8(at, message->code);
    at = put_u64(at, message->revision);
    at = put_u64(at, message->tx_bytes);
    at = put_u16(at, message->text.length);
    return put_bytes(at, message->text.chars, message->text.length);
}

void wire_encode_sync_end(struct wire_buffer *out, struct wire_header header, const struct wire_sync_end *message) {
    uint8_t *at = begin(out, header, WIRE_SYNC_END, SYNC_END_BYTES + (size_t)message->text.length);
    if (at != NULL) put_sync_end(at, message);
}

static uint8_t *put_barrier(uint8_t *at, const struct wire_barrier *barrier) {
    at = put_u64(at, barrier->number);
    at = put_u8(at, barrier->kind);
    at = put_u8(at, barrier->code);
    at = put_u64(at, barrier->value);
    at = put_u64(at, barrier->epoch);
    at = put_u32(at, barrier->count);
    for (uint32_t i = 0; i < barrier->count; i++) {
        at = put_u32(at, barrier->sizes[i].group);
        at = put_u32(at, barrier->sizes[i].count);
    }
    return at;
}

static uint8_t *put_losses(uint8_t *at, const struct wire_loss *losses, uint32_t count) {
    at = put_u32(at, count);
    for (uint32_t i = 0; i < count; i++) {
        at = put_u64(at, losses[i].epoch);
        at = put_u32(at, losses[i].members);
        at = put_u32(at, losses[i].group_members);
        at = put_u32(at, losses[i].groups);
        at = put_u32(at, losses[i].largest_group);
    }
    return at;
}

void wire_encode_resume(struct wire_buffer *out, struct wire_header header, const struct wire_resume *message) {
    size_t outline = sync_vote_bytes(&message->sync_vote) - SYNC_VOTE_BYTES;
    size_t known = RESUME_BYTES + outline + message->barrier.count * (size_t)GROUP_SIZE_BYTES +
                   message->epoch.count * (size_t)MEMBER_BYTES + message->past_count * (size_t)PAST_BYTES +
                   message->loss_count * (size_t)LOSS_BYTES;
    uint8_t *at = begin(out, header, WIRE_RESUME, message->accepted ? known : NEWCOMER_BYTES + outline);
    if (at == NULL) return;
    at = put_hello(at, &message->hello);
    at = put_u64(at, message->generation);
    at = put_u64(at, message->join_number);
    at = put_bytes(at, message->secret, sizeof message->secret);
    at = put_u8(at, message->vote);
    at = put_sync_vote(at, &message->sync_vote);
    at = put_u8(at, message->accepted);
    if (!message->accepted) return;
    at = put_u8(at, message->sync_committed);
    at = put_u8(at, message->sync_code);
    at = put_u64(at, message->sync_revision);
    at = put_barrier(at, &message->barrier);
    at = put_epoch(at, &message->epoch);
    at = put_u32(at, message->past_count);
    for (uint32_t i = 0; i < message->past_count; i++) {
        at = put_op_name(at, &message->past[i].name);
        at = put_u8(at, message->past[i].kind);
    }
    at = put_losses(at, message->losses, message->loss_count);
    put_quorum(at, &message->quorum);
}

void wire_encode_resumed(struct wire_buffer *out, struct wire_header header, const struct wire_resumed *message) {
    size_t length = RESUMED_BYTES + message->barrier.count * (size_t)GROUP_SIZE_BYTES +
                    message->loss_count * (size_t)LOSS_BYTES + message->sync.text.length;
    uint8_t *at = begin(out, header, WIRE_RESUMED, length);
    if (at == NULL) return;
    at = put_u32(at, message->heartbeat_limit_ms);
    at = put_u8(at, message->barrier_ended);
    at = put_u8(at, message->sync_ended);
    at = put_barrier(at, &message->barrier);
    at = put_losses(at, message->losses, message->loss_count);
    put_sync_end(at, &message->sync);
}

void wire_encode_status_is(struct wire_buffer *out, struct wire_header header, const struct wire_status *message) {
    uint8_t *at = begin(out, header, WIRE_STATUS_IS, 1);
    if (at != NULL) put_u8(at, message->activity);
}

void wire_encode_link_hello(struct wire_buffer *out, struct wire_header header, const struct wire_link_hello *message) {
    uint8_t *at = begin(out, header, WIRE_LINK_HELLO, LINK_HELLO_BYTES);
    if (at == NULL) return;
    at = put_u16(at, message->version);
    at = put_u8(at, message->kind);
    at = put_bytes(at, message->secret, sizeof message->secret);
    at = put_id(at, &message->from);
    at = put_id(at, &message->to);
    put_u32(at, message->index);
}

// ---- decoders ----

static void get_text(struct reader *in, struct wire_text *out) {
    out->length = get_u16(in);
    if (out->length > WIRE_MAX_TEXT) {
        in->bad = true;
        out->length = 0;
    }
    get_bytes(in, out->chars, out->length);
}

bool wire_decode_text(const uint8_t *body, size_t length, struct wire_text *out) {
    struct reader in = reader_of(body, length);
    get_text(&in, out);
    return reader_complete(&in);
}

// False: of another version, and there is nothing more to read.
static bool get_hello(struct reader *in, struct wire_hello *out) {
    static const struct wire_id nobody;
    *out = (struct wire_hello){.version = get_u16(in)};
    if (!in->bad && out->version != WIRE_VERSION) return false;
    get_id(in, &out->id);
    out->group = get_u32(in);
    out->lanes = get_lanes(in);
    out->port = get_u16(in);
    out->masters = get_enum(in, 1, WIRE_MAX_MASTERS);
    if (out->port == 0 || wire_id_equal(&out->id, &nobody)) in->bad = true;
    return true;
}

bool wire_decode_hello(const uint8_t *body, size_t length, struct wire_hello *out) {
    struct reader in = reader_of(body, length);
    return !get_hello(&in, out) || reader_complete(&in);
}

bool wire_decode_welcome(const uint8_t *body, size_t length, struct wire_welcome *out) {
    struct reader in = reader_of(body, length);
    out->join_number = get_u64(&in);
    get_bytes(&in, out->secret, sizeof out->secret);
    out->heartbeat_limit_ms = get_u32(&in);
    get_address(&in, &out->seen);
    if (out->heartbeat_limit_ms == 0) in.bad = true;
    return reader_complete(&in);
}

bool wire_decode_candidate(const uint8_t *body, size_t length, struct wire_candidate *out) {
    struct reader in = reader_of(body, length);
    out->attempt = get_u32(&in);
    get_epoch(&in, &out->epoch);
    if (out->attempt == 0) in.bad = true;
    return reader_complete(&in);
}

bool wire_decode_linked(const uint8_t *body, size_t length, struct wire_linked *out) {
    struct reader in = reader_of(body, length);
    out->attempt = get_u32(&in);
    out->latency_us = get_u32(&in);
    out->count = get_count(&in, WIRE_MAX_MEMBERS, WIRE_ID_BYTES);
    for (uint32_t i = 0; i < out->count; i++) get_id(&in, &out->unreachable[i]);
    return reader_complete(&in);
}

static void get_quorum(struct reader *in, struct wire_quorum *out) {
    out->members = get_u32(in);
    out->elders = get_u32(in);
    out->newer = get_u64(in);
    if (out->members > WIRE_MAX_MEMBERS || out->elders > WIRE_MAX_MEMBERS) in->bad = true;
}

bool wire_decode_epoch_commit(const uint8_t *body, size_t length, struct wire_epoch_commit *out) {
    struct reader in = reader_of(body, length);
    out->reason = get_enum(&in, WIRE_REASON_UPDATE, WIRE_REASON_ORDER);
    get_epoch(&in, &out->epoch);
    get_quorum(&in, &out->quorum);
    return reader_complete(&in);
}

bool wire_decode_vote(const uint8_t *body, size_t length, struct wire_vote *out) {
    struct reader in = reader_of(body, length);
    out->kind = get_enum(&in, WIRE_VOTE_UPDATE, WIRE_VOTE_OPTIMIZE);
    return reader_complete(&in);
}

bool wire_decode_outcome(const uint8_t *body, size_t length, struct wire_outcome *out) {
    struct reader in = reader_of(body, length);
    out->kind = get_enum(&in, WIRE_VOTE_UPDATE, WIRE_VOTE_OPTIMIZE);
    out->code = get_u8(&in);
    out->value = get_u64(&in);
    return reader_complete(&in);
}

bool wire_decode_op_done(const uint8_t *body, size_t length, struct wire_op_done *out) {
    struct reader in = reader_of(body, length);
    get_op_name(&in, &out->name);
    return reader_complete(&in);
}

bool wire_decode_verdict(const uint8_t *body, size_t length, struct wire_verdict *out) {
    struct reader in = reader_of(body, length);
    get_op_name(&in, &out->name);
    out->kind = get_enum(&in, WIRE_VERDICT_COMMIT, WIRE_VERDICT_WHOLE);
    get_id(&in, &out->supplier);
    get_text(&in, &out->text);
    out->count = get_count(&in, WIRE_MAX_MEMBERS, WIRE_ID_BYTES);
    for (uint32_t i = 0; i < out->count; i++) get_id(&in, &out->needy[i]);
    return reader_complete(&in);
}

bool wire_decode_report(const uint8_t *body, size_t length, struct wire_report *out) {
    struct reader in = reader_of(body, length);
    out->count = get_count(&in, MAX_REPORTED_OPS, OP_REPORT_BYTES);
    for (uint32_t i = 0; i < out->count; i++) {
        struct wire_op_report *op = &out->ops[i];
        get_op_name(&in, &op->name);
        op->state = get_enum(&in, WIRE_OP_OPEN, WIRE_OP_KEPT);
        op->small = get_enum(&in, 0, 1);
        if ((op->state == WIRE_OP_DONE && op->small) || (op->state == WIRE_OP_KEPT && !op->small)) in.bad = true;
    }
    return reader_complete(&in);
}

bool wire_decode_mismatch(const uint8_t *body, size_t length, struct wire_mismatch *out) {
    struct reader in = reader_of(body, length);
    get_op_name(&in, &out->name);
    get_fingerprint(&in, &out->mine);
    get_id(&in, &out->other);
    get_fingerprint(&in, &out->theirs);
    return reader_complete(&in);
}

bool wire_decode_link_down(const uint8_t *body, size_t length, struct wire_link_down *out) {
    struct reader in = reader_of(body, length);
    get_id(&in, &out->id);
    out->index = get_u32(&in);
    out->silent = get_u8(&in);
    if (out->index > WIRE_MAX_LANES || out->silent > 1) in.bad = true;
    return reader_complete(&in);
}

bool wire_decode_measure(const uint8_t *body, size_t length, struct wire_measure *out) {
    struct reader in = reader_of(body, length);
    out->round = get_u32(&in);
    get_id(&in, &out->target);
    out->duration_ms = get_u32(&in);
    if (out->duration_ms == 0 || out->duration_ms > WIRE_MAX_MEASURE_MS) in.bad = true;
    return reader_complete(&in);
}

bool wire_decode_measured(const uint8_t *body, size_t length, struct wire_measured *out) {
    struct reader in = reader_of(body, length);
    get_id(&in, &out->from);
    get_id(&in, &out->to);
    out->bytes_per_s = get_u64(&in);
    return reader_complete(&in);
}

static void get_sync_vote(struct reader *in, struct wire_sync_vote *out) {
    out->strategy = get_enum(in, WIRE_SYNC_ENFORCE_POPULAR, WIRE_SYNC_SEND_ONLY);
    out->incomplete = get_enum(in, 0, 1);
    out->revision = get_u64(in);
    get_hash(in, &out->mask);
    get_hash(in, &out->content);
    out->outline.entries = get_u64(in);
    for (uint32_t i = 0; i < outline_count(out->outline.entries); i++) out->outline.hashes[i] = get_u32(in);
}

bool wire_decode_sync_vote(const uint8_t *body, size_t length, struct wire_sync_vote *out) {
    struct reader in = reader_of(body, length);
    get_sync_vote(&in, out);
    return reader_complete(&in);
}

bool wire_decode_sync_differs(const uint8_t *body, size_t length, struct wire_sync_differs *out) {
    struct reader in = reader_of(body, length);
    out->first = get_u64(&in);
    out->last = get_u64(&in);
    return reader_complete(&in) && out->first <= out->last;
}

bool wire_decode_sync_plan(const uint8_t *body, size_t length, struct wire_sync_plan *out) {
    struct reader in = reader_of(body, length);
    out->round = get_u64(&in);
    out->revision = get_u64(&in);
    get_hash(&in, &out->mask);
    get_hash(&in, &out->content);
    out->receiver_count = get_count(&in, WIRE_MAX_MEMBERS, WIRE_ID_BYTES);
    for (uint32_t i = 0; i < out->receiver_count; i++) get_id(&in, &out->receivers[i]);
    out->donor_count = get_count(&in, WIRE_MAX_MEMBERS, WIRE_ID_BYTES);
    for (uint32_t i = 0; i < out->donor_count; i++) get_id(&in, &out->donors[i]);
    if (out->round == 0 || out->receiver_count == 0 || out->donor_count == 0) in.bad = true;
    return reader_complete(&in);
}

bool wire_decode_sync_done(const uint8_t *body, size_t length, struct wire_sync_done *out) {
    struct reader in = reader_of(body, length);
    out->round = get_u64(&in);
    out->complete = get_enum(&in, WIRE_SYNC_MISSING, WIRE_SYNC_READ_ONLY);
    out->count = get_count(&in, WIRE_MAX_MEMBERS, SYNC_SOURCE_BYTES);
    for (uint32_t i = 0; i < out->count; i++) {
        get_id(&in, &out->sources[i].id);
        out->sources[i].bytes = get_u64(&in);
    }
    return reader_complete(&in);
}

static void get_sync_end(struct reader *in, struct wire_sync_end *out) {
    out->round = get_u64(in);
    out->code = get_u8(in);
    out->revision = get_u64(in);
    out->tx_bytes = get_u64(in);
    get_text(in, &out->text);
}

bool wire_decode_sync_end(const uint8_t *body, size_t length, struct wire_sync_end *out) {
    struct reader in = reader_of(body, length);
    get_sync_end(&in, out);
    return reader_complete(&in);
}

static void get_barrier(struct reader *in, struct wire_barrier *out) {
    out->number = get_u64(in);
    out->kind = get_enum(in, 0, WIRE_VOTE_OPTIMIZE);
    out->code = get_u8(in);
    out->value = get_u64(in);
    out->epoch = get_u64(in);
    out->count = get_count(in, WIRE_MAX_MEMBERS, GROUP_SIZE_BYTES);
    for (uint32_t i = 0; i < out->count; i++) {
        out->sizes[i].group = get_u32(in);
        out->sizes[i].count = get_u32(in);
        if (out->sizes[i].count == 0 || out->sizes[i].count > WIRE_MAX_MEMBERS) in->bad = true;
        if (i > 0 && out->sizes[i].group <= out->sizes[i - 1].group) in->bad = true;
    }
    if ((out->number == 0) != (out->kind == 0) || (out->number == 0) != (out->count == 0)) in->bad = true;
}

static uint32_t get_losses(struct reader *in, struct wire_loss *out) {
    uint32_t count = get_count(in, WIRE_MAX_MEMBERS, LOSS_BYTES);
    for (uint32_t i = 0; i < count; i++) {
        struct wire_loss *loss = &out[i];
        loss->epoch = get_u64(in);
        loss->members = get_u32(in);
        loss->group_members = get_u32(in);
        loss->groups = get_u32(in);
        loss->largest_group = get_u32(in);
        if (loss->members > WIRE_MAX_MEMBERS || loss->group_members == 0 || loss->groups == 0) in->bad = true;
        if (loss->largest_group > loss->members || loss->groups > loss->members ||
            loss->group_members > loss->largest_group)
            in->bad = true;
        if (i > 0 && loss->epoch <= out[i - 1].epoch) in->bad = true;
    }
    return count;
}

bool wire_decode_resume(const uint8_t *body, size_t length, struct wire_resume *out) {
    struct reader in = reader_of(body, length);
    if (!get_hello(&in, &out->hello)) return true;
    out->generation = get_u64(&in);
    out->join_number = get_u64(&in);
    get_bytes(&in, out->secret, sizeof out->secret);
    out->vote = get_enum(&in, 0, WIRE_VOTE_SYNC);
    get_sync_vote(&in, &out->sync_vote);
    out->accepted = get_enum(&in, 0, 1);
    if (!out->accepted) return reader_complete(&in);
    out->sync_committed = get_enum(&in, 0, 1);
    out->sync_code = get_u8(&in);
    out->sync_revision = get_u64(&in);
    get_barrier(&in, &out->barrier);
    get_epoch(&in, &out->epoch);
    out->past_count = get_count(&in, WIRE_MAX_PAST, PAST_BYTES);
    for (uint32_t i = 0; i < out->past_count; i++) {
        get_op_name(&in, &out->past[i].name);
        out->past[i].kind = get_enum(&in, WIRE_VERDICT_COMMIT, WIRE_VERDICT_MISMATCH);
        if (out->past[i].kind != WIRE_VERDICT_COMMIT && out->past[i].kind != WIRE_VERDICT_MISMATCH) in.bad = true;
    }
    out->loss_count = get_losses(&in, out->losses);
    get_quorum(&in, &out->quorum);
    return reader_complete(&in);
}

bool wire_decode_resumed(const uint8_t *body, size_t length, struct wire_resumed *out) {
    struct reader in = reader_of(body, length);
    out->heartbeat_limit_ms = get_u32(&in);
    out->barrier_ended = get_enum(&in, 0, 1);
    out->sync_ended = get_enum(&in, 0, 1);
    get_barrier(&in, &out->barrier);
    out->loss_count = get_losses(&in, out->losses);
    get_sync_end(&in, &out->sync);
    if (out->heartbeat_limit_ms == 0 || (out->barrier_ended && out->barrier.number == 0)) in.bad = true;
    return reader_complete(&in);
}

bool wire_decode_status_is(const uint8_t *body, size_t length, struct wire_status *out) {
    struct reader in = reader_of(body, length);
    out->activity = get_enum(&in, WIRE_IDLE, WIRE_SERVES);
    return reader_complete(&in);
}

bool wire_decode_link_hello(const uint8_t *body, size_t length, struct wire_link_hello *out) {
    struct reader in = reader_of(body, length);
    out->version = get_u16(&in);
    out->kind = get_enum(&in, WIRE_LINK_DATA, WIRE_LINK_PROBE);
    get_bytes(&in, out->secret, sizeof out->secret);
    get_id(&in, &out->from);
    get_id(&in, &out->to);
    out->index = get_u32(&in);
    if (out->index > WIRE_MAX_LANES) in.bad = true;
    return reader_complete(&in);
}

unsigned wire_outline_shift(uint64_t entries) {
    unsigned shift = 0;
    while (entries >> shift > WIRE_MAX_OUTLINE) shift++;
    return shift;
}

// ---- comparisons ----

bool wire_id_equal(const struct wire_id *a, const struct wire_id *b) { return wire_id_compare(a, b) == 0; }

int wire_id_compare(const struct wire_id *a, const struct wire_id *b) {
    return memcmp(a->bytes, b->bytes, WIRE_ID_BYTES);
}

bool wire_hash_equal(const struct wire_hash *a, const struct wire_hash *b) {
    return a->low == b->low && a->high == b->high;
}

bool wire_op_name_equal(const struct wire_op_name *a, const struct wire_op_name *b) {
    return a->tag == b->tag && a->epoch == b->epoch && a->sequence == b->sequence && a->segment == b->segment;
}

bool wire_fingerprint_equal(const struct wire_fingerprint *a, const struct wire_fingerprint *b) {
    return wire_fingerprint_same_op(a, b) && a->mode == b->mode;
}

bool wire_fingerprint_same_op(const struct wire_fingerprint *a, const struct wire_fingerprint *b) {
    return a->count == b->count && a->dtype == b->dtype && a->op == b->op && a->quantised_dtype == b->quantised_dtype &&
           a->algorithm == b->algorithm;
}
