#include "queue.h"

#include <stdlib.h>
#include <string.h>

/* Invariant: there is always room for one more entry header at head, which marks the jump to 0 by its length. */
static const size_t jump = SIZE_MAX;

static size_t entry_size(size_t length) { return (sizeof(struct queue_entry) + length + 15) & ~(size_t)15; }

static struct queue_entry *entry_at(const struct queue *queue, size_t at) {
    return (struct queue_entry *)(void *)(queue->memory + at);
}

bool queue_init(struct queue *queue, size_t bytes) {
    *queue = (struct queue){.size = (bytes + 4095) & ~(size_t)4095};
    queue->memory = malloc(queue->size);
    if (queue->memory == NULL) {
        return false;
    }
    memset(queue->memory, 1, queue->size);
    return true;
}

void queue_fini(struct queue *queue) {
    free(queue->memory);
    queue->memory = NULL;
}

uint8_t *queue_room(struct queue *queue, size_t most) {
    size_t needed = entry_size(most) + sizeof(struct queue_entry);
    if (queue->count == 0) {
        queue->head = queue->tail = 0;
    }
    bool wrapped = queue->count > 0 && queue->head <= queue->tail;
    if (wrapped) {
        return queue->tail - queue->head > needed ? (uint8_t *)(entry_at(queue, queue->head) + 1) : NULL;
    }
    if (queue->size - queue->head > needed) {
        return (uint8_t *)(entry_at(queue, queue->head) + 1);
    }
    if (queue->tail <= needed) {
        return NULL;
    }
    entry_at(queue, queue->head)->length = jump;
    queue->head = 0;
    return (uint8_t *)(entry_at(queue, 0) + 1);
}

void queue_push(struct queue *queue, uint64_t due_ns, size_t length) {
    *entry_at(queue, queue->head) = (struct queue_entry){.due_ns = due_ns, .length = length};
    queue->head += entry_size(length);
    queue->count++;
}

const struct queue_entry *queue_first(const struct queue *queue) {
    return queue->count > 0 ? entry_at(queue, queue->tail) : NULL;
}

void queue_pop(struct queue *queue) {
    queue->tail += entry_size(entry_at(queue, queue->tail)->length);
    queue->count--;
    if (queue->count > 0 && entry_at(queue, queue->tail)->length == jump) {
        queue->tail = 0;
    }
}
