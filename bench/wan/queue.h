/* A first-in first-out queue of packets that are under way, each with the moment it is due. Fixed memory. One thread.
 */
#ifndef LONGLINK_QUEUE_H
#define LONGLINK_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct queue {
    uint8_t *memory;
    size_t size, head, tail; /* entries are contiguous; one that does not fit before the end begins at 0 again */
    size_t count;
};

struct queue_entry {
    uint64_t due_ns;
    size_t length; /* of the bytes that follow */
};

/* Room for at least `bytes`; its pages are touched. False: no memory. */
bool queue_init(struct queue *queue, size_t bytes);
void queue_fini(struct queue *queue);

/* Where the next packet of at most `most` bytes may be written; NULL when the queue is full. */
uint8_t *queue_room(struct queue *queue, size_t most);
/* Appends what was written there. */
void queue_push(struct queue *queue, uint64_t due_ns, size_t length);

/* The oldest entry and its bytes; NULL when there is none. */
const struct queue_entry *queue_first(const struct queue *queue);
void queue_pop(struct queue *queue);

#endif
