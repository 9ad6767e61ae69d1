#define _GNU_SOURCE
#include "net/wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

// Bytes of what is part of messages, and of messages without what they list.
enum {
    ADDRESS = 1 + 16 + 2,
    ID = WIRE_ID_BYTES,
    NAME = 1,          // with a name of no bytes
    REACH = 1 + 1 + 1, // without an address
    MEMBER = ID + 8 + 4 + 4 + ADDRESS + 2 + 2 + NAME + REACH,
    EPOCH = 6 * 8 + 3 * 4,
    FINGERPRINT = 8 + 4 + 5,
    OP_NAME = 8 + 8 + 4 + 2 + 4,
    HASH = 8 + 8,
    HELLO = 2 + ID + 4 + 4 + 2 + 1 + 1 + 8 + ADDRESS + REACH,
    VERDICT = OP_NAME + 1 + ID + 2 + 2 + 4,
    SYNC_VOTE = 1 + 1 + 8 + HASH + HASH + 8,
    SYNC_PLAN = 8 + 8 + HASH + HASH + 4 + 4,
    SYNC_DONE = 8 + 1 + 4,
    SYNC_END = 8 + 1 + 8 + 8 + 2,
    ENDED_VOTE = 8 + 1 + 1 + 8 + 8 + 4,
    QUORUM = 4 + 4 + 8,
    RESUMED = 4 + 1 + 1 + ENDED_VOTE + 4 + SYNC_END,
    SEEN = 14 * 8 + 2 + 1,
    OPS_SEEN = 8 * 8,
    PROGRESS = 3 * 8,
    MATRIX = 2 + 8 + 1 + 4 + 3 * 8 + 5 * 4,
    NUMBER = 1 + WIRE_MAX_NUMBER_NAME + 8,
    SHOWN = NAME + WIRE_MAX_NAME,
    MATRIX_MEMBER = ID + SHOWN + 8 + 4 + SHOWN + 13 * 8 + 2,
    MATRIX_EDGE = 4 + 4 + 14 * 8 + 1 + 4 + 1,
    MATRIX_NUMBER = 4 + NUMBER,
    JOINER = ID + SHOWN + 4 + SHOWN + 1 + 4 * 8,
    DEPARTURE = ID + SHOWN + 4 + 4 + 1 + 8 + 1 + WIRE_MAX_WHY,
    RESUME = HELLO + NAME + 8 + 8 + 16 + 1 + SYNC_VOTE + 1 + 1 + 1 + 8 + ENDED_VOTE + EPOCH + 4 + 4 + QUORUM +
        WIRE_SIGNATURE_BYTES,
};

// Bytes of the longest lists.
enum {
    FOREIGN_HELLO = 512, // a hello of another version may be longer; it gets an answer, not silence
    ADDRESSES = WIRE_MAX_ADDRESSES * ADDRESS,
    IDS = WIRE_MAX_MEMBERS * ID,
    MEMBERS = WIRE_MAX_MEMBERS * (MEMBER + WIRE_MAX_NAME + ADDRESSES),
    MATRIX_LISTS = WIRE_MAX_MEMBERS * MATRIX_MEMBER + WIRE_MAX_EDGES * MATRIX_EDGE +
        WIRE_MAX_NUMBERS_TOLD * MATRIX_NUMBER + WIRE_MAX_JOINERS * JOINER,
    REPORTS = 2 * WIRE_MAX_LIVE_OPS * (OP_NAME + 1 + 1 + 2),
    OUTLINE = WIRE_MAX_OUTLINE * 4,
    SOURCES = WIRE_MAX_MEMBERS * (ID + 8),
    SIZES = WIRE_MAX_MEMBERS * (4 + 4),
    PAST = WIRE_MAX_PAST * (OP_NAME + 1 + 2),
    LOSSES = WIRE_MAX_MEMBERS * (8 + 4 * 4),
    GONE = WIRE_MAX_MEMBERS * (ID + 1 + 1 + WIRE_MAX_WHY),
    RESUME_LISTS = WIRE_MAX_NAME + ADDRESSES + OUTLINE + SIZES + MEMBERS + PAST + LOSSES,
};

// The lengths that a body of each type can have, so that a header alone tells how much must be buffered.
static const struct {
    const char *name;
    uint32_t least, most;
} types[] = {
#define RANGE(type, least, more) [WIRE_##type] = {#type, least, (least) + (more)}
#define EXACT(type, bytes) RANGE(type, bytes, 0)
#define TEXT(type) RANGE(type, 2, WIRE_MAX_TEXT)
#define DATA(type) RANGE(type, WIRE_HEAD_BYTES, WIRE_MAX_DATA_BYTES)
    RANGE(HELLO, 2, FOREIGN_HELLO - 2),
    EXACT(WELCOME, 8 + 16 + 4 + ADDRESS + 1),
    TEXT(REFUSED),
    RANGE(CANDIDATE, 4 + EPOCH, MEMBERS),
    RANGE(LINKED, 4 + 4 + 4, IDS + WIRE_MAX_MEMBERS),
    RANGE(EPOCH, 1 + EPOCH + QUORUM + WIRE_SIGNATURE_BYTES + 4, MEMBERS + GONE),
    EXACT(VOTE, 1),
    EXACT(OUTCOME, 1 + 1 + 8),
    EXACT(HEARTBEAT, 0),
    EXACT(LEAVE, 0),
    TEXT(EXPELLED),
    EXACT(DONE, OP_NAME + 2),
    RANGE(VERDICT, VERDICT, WIRE_MAX_TEXT + IDS),
    RANGE(REPORT, 4, REPORTS),
    EXACT(MISMATCH, OP_NAME + FINGERPRINT + ID + FINGERPRINT),
    EXACT(LINK_DOWN, ID + 4 + 1),
    EXACT(MEASURE, 4 + ID + 4),
    EXACT(MEASURED, ID + ID + 8),
    RANGE(SYNC_VOTE, SYNC_VOTE, OUTLINE),
    RANGE(SYNC_PLAN, SYNC_PLAN + 2 * ID, 2 * IDS - 2 * ID),
    RANGE(SYNC_DONE, SYNC_DONE, SOURCES),
    RANGE(SYNC_END, SYNC_END, WIRE_MAX_TEXT),
    RANGE(RESUME, 2, RESUME - 2 + RESUME_LISTS),
    EXACT(GENERATION, 0),
    EXACT(PROMISE, 0),
    RANGE(RESUMED, RESUMED, SIZES + LOSSES + WIRE_MAX_TEXT),
    EXACT(BYE, 0),
    EXACT(MOVED, 0),
    EXACT(STATUS, 0),
    EXACT(STATUS_IS, 10),
    TEXT(WAITING),
    EXACT(SYNC_DIFFERS, 8 + 8),
    RANGE(TELEMETRY, OPS_SEEN + 4, WIRE_MAX_SEEN *(ID + SEEN)),
    RANGE(DIAGNOSE, 0, ID + 16),
    RANGE(MATRIX, 2, MATRIX - 2 + MATRIX_LISTS), // any of another version
    EXACT(CANCEL, OP_NAME),
    RANGE(RUN, 1 + 1, WIRE_MAX_RUN - 1),
    EXACT(LEAVING, ID + 4 + 1),
    EXACT(LEFT, 0),
    EXACT(RUNS, 0),
    RANGE(RUNS_ARE, 4, WIRE_MAX_RUNS * (1 + WIRE_MAX_RUN + 4)),
    EXACT(PRECOPY, 1 + PROGRESS),
    RANGE(DONORS, 4, WIRE_MAX_DONORS *(ID + REACH + ADDRESSES)),
    RANGE(NUMBERS, 4, WIRE_MAX_NUMBERS *NUMBER),
    RANGE(REMOVE, ID + 1 + 1, WIRE_MAX_BY),
    TEXT(REMOVED),
    EXACT(STACKS, ID),
    RANGE(STACKS_ARE, 0, WIRE_MAX_STACKS),
    RANGE(WAITS, 8 + 4, WIRE_MAX_WAITS *(OP_NAME + 1 + 8 + 4 + WIRE_MAX_MISSING * ID)),
    TEXT(DEADLOCK),
    EXACT(LINK_HELLO, 2 + 1 + 16 + ID + ID + 4),
    EXACT(LINK_ACK, 0),
    DATA(READY),
    DATA(POSTED),
    DATA(SMALL),
    DATA(ACK),
    DATA(SUPPLY),
    DATA(CHUNK),
    DATA(CODES),
    DATA(RESULT),
    DATA(GRANT),
    DATA(MEMORY),
    EXACT(SYNC_ASK_HASHES, WIRE_HEAD_BYTES),
    DATA(SYNC_HASHES),
    EXACT(SYNC_ASK, WIRE_HEAD_BYTES),
    DATA(SYNC_LEAF),
    EXACT(LINK_HEARTBEAT, WIRE_HEAD_BYTES),
    DATA(CHUNK_IN),
    EXACT(TAKEN, WIRE_HEAD_BYTES),
    DATA(EARLY),
    EXACT(LINK_HEARD, 0),
    EXACT(LINK_PADDING, WIRE_PADDING_BYTES),
    DATA(SMALL_IN),
};

_Static_assert(5 + EPOCH + QUORUM + WIRE_SIGNATURE_BYTES + MEMBERS + GONE <= WIRE_MAX_CONTROL_BYTES,
               "an epoch fits a control frame");
_Static_assert(VERDICT + WIRE_MAX_TEXT + IDS <= WIRE_MAX_CONTROL_BYTES, "a verdict fits a control frame");
_Static_assert(4 + REPORTS <= WIRE_MAX_CONTROL_BYTES, "a report fits a control frame");
_Static_assert(RESUME + RESUME_LISTS <= (int)WIRE_MAX_CONTROL_BYTES, "what a peer knows fits a control frame");

_Static_assert((int)DEPARTURE <= (int)MATRIX_MEMBER, "a departure has the place of a member");
_Static_assert(MATRIX + MATRIX_LISTS <= WIRE_MAX_CONTROL_BYTES, "a matrix fits a control frame");

static bool type_known(uint16_t type) { return type < sizeof types / sizeof types[0] && types[type].name != NULL; }

const char *wire_type_name(uint16_t type) { return type_known(type) ? types[type].name : "unknown"; }

// ---- names ----

static bool is_made_of(const char *chars, size_t length, size_t most, const char *further) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    for (size_t i = 0; i < length; i++)
        if (chars[i] == 0 || (strchr(letters, chars[i]) == NULL && strchr(further, chars[i]) == NULL)) return false;
    return length >= 1 && length <= most;
}

bool wire_is_run_name(const char *chars, size_t length) { return is_made_of(chars, length, WIRE_MAX_RUN, ".-"); }

bool wire_is_number_name(const char *chars, size_t length) {
    return is_made_of(chars, length, WIRE_MAX_NUMBER_NAME, "");
}

// ---- headers ----

CURSOR_INLINE void visit_header(struct cursor *c, struct wire_header *header) {
    uint16_t magic = WIRE_MAGIC;
    cursor_u32(c, &header->length);
    cursor_u16(c, &magic);
    cursor_u16(c, &header->type);
    cursor_u64(c, &header->run);
    cursor_u64(c, &header->generation);
    cursor_u64(c, &header->epoch);
    cursor_expect(c, magic == WIRE_MAGIC && type_known(header->type) && header->length >= types[header->type].least &&
                         header->length <= types[header->type].most);
}

void wire_header_encode(uint8_t out[WIRE_HEADER_BYTES], const struct wire_header *header) {
    struct cursor c = cursor_write(out, WIRE_HEADER_BYTES);
    visit_header(&c, (struct wire_header *)header);
}

bool wire_header_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_header *out) {
    struct cursor c = cursor_read(in, WIRE_HEADER_BYTES);
    visit_header(&c, out);
    return cursor_complete(&c);
}

// ---- buffers ----

enum { BUFFER_LEAST_BYTES = 256 };

void wire_buffer_fini(struct wire_buffer *buffer) {
    free(buffer->bytes);
    *buffer = (struct wire_buffer){0};
}

bool wire_buffer_reserve(struct wire_buffer *buffer, size_t more) {
    if (buffer->failed) return false;
    size_t wanted = buffer->length + more;
    if (wanted <= buffer->capacity) return true;
    buffer->failed = !memory_grow(&buffer->bytes, &buffer->capacity, wanted, 1, BUFFER_LEAST_BYTES);
    return !buffer->failed;
}

void wire_buffer_append(struct wire_buffer *buffer, const struct wire_buffer *frames) {
    if (frames->length == 0 || !wire_buffer_reserve(buffer, frames->length)) return;
    memcpy(buffer->bytes + buffer->length, frames->bytes, frames->length);
    buffer->length += frames->length;
}

// ---- bodies ----

struct cursor wire_begin(struct wire_buffer *out) {
    struct cursor c = cursor_append(out);
    if (cursor_has(&c, WIRE_HEADER_BYTES)) c.at += WIRE_HEADER_BYTES;
    return c;
}

void wire_end(struct cursor *body, struct wire_header header, enum wire_type type) {
    size_t begin = body->grows->length;
    if (!cursor_finish(body)) return;
    header.type = (uint16_t)type;
    header.length = (uint32_t)(body->grows->length - begin - WIRE_HEADER_BYTES);
    assert(header.length >= types[type].least && header.length <= types[type].most);
    wire_header_encode(body->grows->bytes + begin, &header);
}

uint8_t wire_visit_chars(struct cursor *c, char *chars, uint8_t least, uint8_t most) {
    uint8_t length = c->writes ? (uint8_t)strnlen(chars, most) : 0;
    if (!c->writes) memset(chars, 0, most + 1);
    cursor_range(c, &length, least, most);
    if (!c->bad) cursor_bytes(c, chars, length);
    return length;
}

void wire_visit_why(struct cursor *c, char why[WIRE_MAX_WHY + 1]) {
    uint8_t length = wire_visit_chars(c, why, 0, WIRE_MAX_WHY);
    if (cursor_judges(c)) cursor_expect(c, strnlen(why, length) == length);
}

void wire_encode_bytes(struct wire_buffer *out, struct wire_header header, enum wire_type type, const void *bytes,
                       size_t length) {
    struct cursor c = wire_begin(out);
    cursor_bytes(&c, (void *)bytes, length); // only read
    wire_end(&c, header, type);
}

void wire_encode_empty(struct wire_buffer *out, struct wire_header header, enum wire_type type) {
    struct cursor c = wire_begin(out);
    wire_end(&c, header, type);
}

void wire_encode_text(struct wire_buffer *out, struct wire_header header, enum wire_type type, const char *text) {
    struct wire_text copy = {.length = (uint16_t)strnlen(text, WIRE_MAX_TEXT)};
    memcpy(copy.chars, text, copy.length);
    struct cursor c = wire_begin(out);
    wire_visit_text(&c, &copy);
    wire_end(&c, header, type);
}

bool wire_decode_text(const uint8_t *body, size_t length, struct wire_text *out) {
    struct cursor c = cursor_read(body, length);
    wire_visit_text(&c, out);
    return cursor_complete(&c);
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
    return a->tag == b->tag && a->epoch == b->epoch && a->sequence == b->sequence && a->segment == b->segment &&
           a->subgroup == b->subgroup;
}

bool wire_fingerprint_equal(const struct wire_fingerprint *a, const struct wire_fingerprint *b) {
    return wire_fingerprint_same_op(a, b) && a->mode == b->mode;
}

bool wire_fingerprint_same_op(const struct wire_fingerprint *a, const struct wire_fingerprint *b) {
    return a->count == b->count && a->layout == b->layout && a->kind == b->kind && a->dtype == b->dtype &&
           a->op == b->op && a->codec == b->codec;
}

// ---- members by id ----

// Both halves of `from` are sorted; merges them into `to`.
static void merge(const struct wire_member *members, const uint16_t *from, uint32_t middle, uint32_t end,
                  uint16_t *to) {
    uint32_t a = 0, b = middle;
    for (uint32_t i = 0; i < end; i++) {
        bool left = a < middle && (b == end || wire_id_compare(&members[from[a]].id, &members[from[b]].id) <= 0);
        to[i] = left ? from[a++] : from[b++];
    }
}

const struct wire_member *wire_member_with(const struct wire_member *members, uint32_t count,
                                           const struct wire_id *id) {
    for (uint32_t i = 0; i < count; i++)
        if (wire_id_equal(&members[i].id, id)) return &members[i];
    return NULL;
}

void wire_sort_members(const struct wire_member *members, uint32_t count, uint16_t sorted[WIRE_MAX_MEMBERS]) {
    uint16_t spare[WIRE_MAX_MEMBERS];
    for (uint32_t i = 0; i < count; i++) sorted[i] = (uint16_t)i;
    for (uint32_t width = 1; width < count; width *= 2) {
        for (uint32_t begin = 0; begin < count; begin += 2 * width) {
            uint32_t left = count - begin, end = left < 2 * width ? left : 2 * width;
            merge(members, sorted + begin, width < end ? width : end, end, spare + begin);
        }
        memcpy(sorted, spare, count * sizeof *sorted);
    }
}

uint32_t wire_find_member(const struct wire_member *members, const uint16_t *sorted, uint32_t count,
                          const struct wire_id *id) {
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = wire_id_compare(&members[sorted[middle]].id, id);
        if (order == 0) return sorted[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT32_MAX;
}

bool wire_text_begins(const struct wire_text *text, const char *with) {
    size_t length = strlen(with);
    return text->length >= length && memcmp(text->chars, with, length) == 0;
}
