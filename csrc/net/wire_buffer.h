// Bytes that grow at their end: frames that are made before they are sent.
#ifndef PCCL_NET_WIRE_BUFFER_H
#define PCCL_NET_WIRE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

#endif
