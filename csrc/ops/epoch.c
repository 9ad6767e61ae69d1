#include "ops/epoch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

bool epoch_find_ring(const struct wire_epoch *told, const struct wire_id *self, struct epoch_ring *out) {
    const struct wire_member *members = told->members;
    uint32_t own = 0;
    while (own < told->count && !wire_id_equal(&members[own].id, self)) own++;
    if (own == told->count) return false;
    uint32_t first = own, end = own + 1;
    while (first > 0 && members[first - 1].group == members[own].group) first--;
    while (end < told->count && members[end].group == members[own].group) end++;
    *out = (struct epoch_ring){.members = &members[first], .count = end - first, .rank = own - first};
    return true;
}

struct epoch *epoch_new(const struct wire_epoch *told, const struct epoch_ring *ring, const struct wire_header *header,
                        bool lost) {
    struct epoch *epoch = malloc(sizeof *epoch + told->count * sizeof epoch->everyone[0]);
    if (epoch == NULL) return NULL;
    *epoch = (struct epoch){.references = 1,
                            .run = header->run,
                            .generation = header->generation,
                            .number = told->number,
                            .group_epoch = told->group_epoch,
                            .lost = lost,
                            .latency_us = told->latency_us,
                            .megabytes_per_s = told->megabytes_per_s,
                            .ring = *ring,
                            .count = told->count};
    memcpy(epoch->everyone, told->members, told->count * sizeof *told->members);
    epoch->ring.members = epoch->everyone + (ring->members - told->members);
    return epoch;
}

const struct epoch *epoch_none(void) {
    static struct epoch none = {.references = 1};
    return &none;
}

// Holders may change nothing but the reference count.
static struct epoch *counted(const struct epoch *epoch) { return (struct epoch *)(uintptr_t)epoch; }

const struct epoch *epoch_get(const struct epoch *epoch) {
    if (epoch != NULL) atomic_fetch_add_explicit(&counted(epoch)->references, 1, memory_order_relaxed);
    return epoch;
}

void epoch_put(const struct epoch *epoch) {
    if (epoch != NULL && atomic_fetch_sub_explicit(&counted(epoch)->references, 1, memory_order_acq_rel) == 1)
        free(counted(epoch));
}
