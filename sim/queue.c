#include "sim/queue.h"

#include <stdlib.h>
#include <string.h>

#include "sim/trace.h"

static uint32_t most(const struct pccl_sim *s) { return s->only_votes ? EVENTS_MOST : EVENTS_OF_FEW; }

struct event *sim_event(struct pccl_sim *s, enum event_kind kind, int64_t at) {
    uint32_t index;
    if (s->queue->free != 0) {
        index = s->queue->free - 1;
        s->queue->free = s->queue->events[index].next;
    } else if (s->queue->used < most(s)) {
        index = s->queue->used++;
    } else {
        sim_fail(s, "bounded memory", "more than %u events are under way", most(s));
        index = most(s) - 1; // the run is over; what is written here is not read
        free(s->queue->events[index].body);
    }
    struct event *event = &s->queue->events[index];
    // The frame is the larger part, and written whole by who needs it.
    memset(event, 0, offsetof(struct event, frame));
    event->kind = kind;
    event->at = at;
    event->next = 0;
    return event;
}

static bool is_before(const struct heap_entry *a, const struct heap_entry *b) {
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static void insert(struct pccl_sim *s, const struct event *event) {
    if (s->queue->heap_count == most(s)) return; // the run has failed
    struct heap_entry entry = {event->at, event->order, (uint32_t)(event - s->queue->events)};
    uint32_t at = s->queue->heap_count++;
    for (; at > 0; at = (at - 1) / 2) {
        const struct heap_entry *up = &s->queue->heap[(at - 1) / 2];
        if (!is_before(&entry, up)) break;
        s->queue->heap[at] = *up;
    }
    s->queue->heap[at] = entry;
}

void sim_push(struct pccl_sim *s, struct event *event) {
    event->order = s->queue->orders++;
    insert(s, event);
}

// Keeps its place among those of that moment: what is put off stays in order, also when others were put off further at
// once.
void sim_requeue(struct pccl_sim *s, struct event *event, int64_t at) {
    event->at = at;
    insert(s, event);
}

struct event *sim_pop(struct pccl_sim *s) {
    if (s->queue->heap_count == 0) return NULL;
    uint32_t first = s->queue->heap[0].event;
    struct heap_entry last = s->queue->heap[--s->queue->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= s->queue->heap_count) break;
        if (child + 1 < s->queue->heap_count && is_before(&s->queue->heap[child + 1], &s->queue->heap[child])) child++;
        if (!is_before(&s->queue->heap[child], &last)) break;
        s->queue->heap[at] = s->queue->heap[child];
        at = child;
    }
    if (s->queue->heap_count > 0) s->queue->heap[at] = last;
    return &s->queue->events[first];
}

void sim_event_free(struct pccl_sim *s, struct event *event) {
    free(event->body);
    event->body = NULL;
    event->next = s->queue->free;
    s->queue->free = (uint32_t)(event - s->queue->events) + 1;
}

void sim_queue_clear(struct pccl_sim *s) {
    for (uint32_t i = 0; i < s->queue->used; i++) {
        free(s->queue->events[i].body);
        s->queue->events[i].body = NULL;
    }
    s->queue->used = s->queue->free = s->queue->heap_count = 0;
    s->queue->orders = 0;
}
