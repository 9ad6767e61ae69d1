// Events in virtual time: a heap of small entries over a pool. Of two events at one moment the one pushed first comes
// first.
#include "sim/world.h"

#include <stdlib.h>
#include <string.h>

uint64_t sim_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t sim_random(struct pccl_sim *s) { return sim_mix(s->random += UINT64_C(0x9E3779B97F4A7C15)); }

uint64_t sim_below(struct pccl_sim *s, uint64_t limit) { return ((sim_random(s) >> 32) * limit) >> 32; }

struct event *sim_event(struct pccl_sim *s, enum event_kind kind, int64_t at) {
    uint32_t index;
    if (s->event_free != 0) {
        index = s->event_free - 1;
        s->event_free = s->events[index].next;
    } else if (s->event_used < EVENTS_MOST) {
        index = s->event_used++;
    } else {
        sim_fail(s, "bounded memory", "more than %d events are under way", EVENTS_MOST);
        index = EVENTS_MOST - 1; // the run is over; what is written here is not read
        free(s->events[index].body);
    }
    struct event *event = &s->events[index];
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
    if (s->heap_count == EVENTS_MOST) return; // the run has failed
    struct heap_entry entry = {event->at, event->order, (uint32_t)(event - s->events)};
    uint32_t at = s->heap_count++;
    for (; at > 0; at = (at - 1) / 2) {
        const struct heap_entry *up = &s->heap[(at - 1) / 2];
        if (!is_before(&entry, up)) break;
        s->heap[at] = *up;
    }
    s->heap[at] = entry;
}

void sim_push(struct pccl_sim *s, struct event *event) {
    event->order = s->orders++;
    insert(s, event);
}

// Keeps its place among those of that moment: what is put off stays in order, also when others were put off further at
// once.
void sim_requeue(struct pccl_sim *s, struct event *event, int64_t at) {
    event->at = at;
    insert(s, event);
}

struct event *sim_pop(struct pccl_sim *s) {
    if (s->heap_count == 0) return NULL;
    uint32_t first = s->heap[0].event;
    struct heap_entry last = s->heap[--s->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= s->heap_count) break;
        if (child + 1 < s->heap_count && is_before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!is_before(&s->heap[child], &last)) break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    if (s->heap_count > 0) s->heap[at] = last;
    return &s->events[first];
}

void sim_event_free(struct pccl_sim *s, struct event *event) {
    free(event->body);
    event->body = NULL;
    event->next = s->event_free;
    s->event_free = (uint32_t)(event - s->events) + 1;
}

void sim_queue_clear(struct pccl_sim *s) {
    for (uint32_t i = 0; i < s->event_used; i++) {
        free(s->events[i].body);
        s->events[i].body = NULL;
    }
    s->event_used = s->event_free = s->heap_count = 0;
    s->orders = 0;
}

void sim_push_for(struct pccl_sim *s, int slot, enum event_kind kind, int64_t at) {
    struct event *event = sim_event(s, kind, at);
    event->slot = (uint8_t)slot;
    event->life = s->processes[slot].life;
    sim_push(s, event);
}
