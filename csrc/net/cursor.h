// A place in bytes that are written or read, field by field and little-endian, so that one function describes both ways
// of a message: each call below writes the field that it is given, or fills it.
//
// `bad` latches: bytes were missing, or a field had a value that nobody may send, or memory was refused. What is read
// after that is zero, and nothing more is written. What is written is not judged.
#ifndef PCCL_NET_CURSOR_H
#define PCCL_NET_CURSOR_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// ---- buffers ----

// Bytes that grow at their end: frames that are made before they are sent.
// All zero: empty. `failed` latches when memory is refused; nothing is written after that.
struct wire_buffer {
    uint8_t *bytes; // owned
    size_t length, capacity;
    bool failed;
};

void wire_buffer_fini(struct wire_buffer *buffer);
// Makes room for so many bytes behind `length`. False: memory was refused, now or before.
bool wire_buffer_reserve(struct wire_buffer *buffer, size_t more);
void wire_buffer_append(struct wire_buffer *buffer, const struct wire_buffer *frames);

// ---- cursors ----

// Inlining makes a head of known length cost its loads and stores only.
#define CURSOR_INLINE static inline __attribute__((always_inline))

struct cursor {
    uint8_t *at, *end;
    struct wire_buffer *grows; // what is written into; NULL: fixed bytes
    bool writes, bad;
};

CURSOR_INLINE struct cursor cursor_read(const uint8_t *bytes, size_t length) {
    return (struct cursor){(uint8_t *)bytes, bytes == NULL ? NULL : (uint8_t *)bytes + length, NULL, false, false};
}

CURSOR_INLINE struct cursor cursor_write(uint8_t *bytes, size_t length) {
    return (struct cursor){bytes, bytes + length, NULL, true, false};
}

// At the end of a buffer, whose length is set by cursor_finish.
CURSOR_INLINE struct cursor cursor_append(struct wire_buffer *out) {
    if (!wire_buffer_reserve(out, 1)) return (struct cursor){.grows = out, .writes = true, .bad = true};
    return (struct cursor){out->bytes + out->length, out->bytes + out->capacity, out, true, false};
}

// Whether all went well, and to the last byte where it was read.
CURSOR_INLINE bool cursor_complete(const struct cursor *c) { return !c->bad && (c->writes || c->at == c->end); }

CURSOR_INLINE bool cursor_finish(struct cursor *c) {
    if (!c->bad) c->grows->length = (size_t)(c->at - c->grows->bytes);
    return !c->bad;
}

// Whether fields that were read may be believed, and are to be judged.
CURSOR_INLINE bool cursor_judges(const struct cursor *c) { return !c->writes && !c->bad; }

CURSOR_INLINE void cursor_expect(struct cursor *c, bool good) {
    if (!c->writes && !good) c->bad = true;
}

// Whether so many bytes are there, or are given now. A buffer whose memory was refused is as it was before the cursor.
CURSOR_INLINE bool cursor_has(struct cursor *c, size_t length) {
    if (c->bad) return false;
    if ((size_t)(c->end - c->at) >= length) return true;
    size_t done = c->grows == NULL ? 0 : (size_t)(c->at - c->grows->bytes) - c->grows->length;
    c->bad = c->grows == NULL || !wire_buffer_reserve(c->grows, done + length);
    if (c->bad) return false;
    c->at = c->grows->bytes + c->grows->length + done;
    c->end = c->grows->bytes + c->grows->capacity;
    return true;
}

CURSOR_INLINE void cursor_bytes(struct cursor *c, void *bytes, size_t length) {
    if (length == 0) return;
    bool has = cursor_has(c, length);
    if (c->writes) {
        if (has) memcpy(c->at, bytes, length);
    } else if (has) {
        memcpy(bytes, c->at, length);
    } else {
        memset(bytes, 0, length);
    }
    if (has) c->at += length;
}

CURSOR_INLINE void cursor_u8(struct cursor *c, uint8_t *value) { cursor_bytes(c, value, 1); }

#define CURSOR_NUMBER(bits) \
    CURSOR_INLINE void cursor_u##bits(struct cursor *c, uint##bits##_t *value) { \
        uint##bits##_t little = c->writes ? htole##bits(*value) : 0; \
        cursor_bytes(c, &little, sizeof little); \
        if (!c->writes) *value = le##bits##toh(little); \
    }
CURSOR_NUMBER(16)
CURSOR_NUMBER(32)
CURSOR_NUMBER(64)
#undef CURSOR_NUMBER

// A number from `least` to `most`.
CURSOR_INLINE void cursor_range(struct cursor *c, uint8_t *value, uint8_t least, uint8_t most) {
    cursor_u8(c, value);
    cursor_expect(c, *value >= least && *value <= most);
}

// How many items follow, at most `most`; 0 if that is not to be believed.
CURSOR_INLINE void cursor_count(struct cursor *c, uint32_t *count, uint32_t most) {
    cursor_u32(c, count);
    cursor_expect(c, *count <= most);
    if (!c->writes && c->bad) *count = 0;
}

#endif
