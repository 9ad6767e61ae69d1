#include "net/wire_buffer.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { LEAST_BYTES = 256 };

void wire_buffer_fini(struct wire_buffer *buffer) {
    free(buffer->bytes);
    *buffer = (struct wire_buffer){0};
}

bool wire_buffer_reserve(struct wire_buffer *buffer, size_t more) {
    if (buffer->failed) return false;
    size_t wanted = buffer->length + more;
    if (wanted <= buffer->capacity) return true;
    buffer->failed = !memory_grow(&buffer->bytes, &buffer->capacity, wanted, 1, LEAST_BYTES);
    return !buffer->failed;
}

void wire_buffer_append(struct wire_buffer *buffer, const struct wire_buffer *frames) {
    if (frames->length == 0 || !wire_buffer_reserve(buffer, frames->length)) return;
    memcpy(buffer->bytes + buffer->length, frames->bytes, frames->length);
    buffer->length += frames->length;
}
