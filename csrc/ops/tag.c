#include "ops/tag.h"

#include <stdlib.h>

enum {
    TAGS_MAX = 1 << 16, // distinct tags in one group epoch, then a fresh one is wanted
    OPS_MAX = 1 << 30,  // ops of one tag in one group epoch, then likewise
    FIRST_SLOTS = 64,
};

static struct tag_counter *slot_of(struct tag_counter *list, uint32_t slots, uint64_t tag) {
    uint32_t at = (uint32_t)((tag * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (slots - 1);
    while (list[at].next != 0 && list[at].tag != tag) at = (at + 1) & (slots - 1);
    return &list[at];
}

static bool grow(struct tag_counters *counters) {
    uint32_t slots = counters->slots == 0 ? FIRST_SLOTS : counters->slots * 2;
    struct tag_counter *grown = calloc(slots, sizeof *grown);
    if (grown == NULL) return false;
    for (uint32_t i = 0; i < counters->slots; i++)
        if (counters->list[i].next != 0) *slot_of(grown, slots, counters->list[i].tag) = counters->list[i];
    free(counters->list);
    counters->list = grown;
    counters->slots = slots;
    return true;
}

bool tag_counter_take(struct tag_counters *counters, uint64_t tag, uint32_t *sequence) {
    if (counters->count * 2 >= counters->slots && !grow(counters)) return false;
    struct tag_counter *counter = slot_of(counters->list, counters->slots, tag);
    if (counter->next == 0) {
        counters->count++;
        counter->tag = tag;
    }
    *sequence = ++counter->next;
    counters->full |= counters->count > TAGS_MAX || counter->next > OPS_MAX;
    return true;
}

uint32_t tag_counter_last(const struct tag_counters *counters, uint64_t tag) {
    return counters->slots == 0 ? 0 : slot_of(counters->list, counters->slots, tag)->next;
}

bool tag_counter_is_spent(const struct tag_counters *counters, uint64_t tag) {
    return counters->slots > 0 && slot_of(counters->list, counters->slots, tag)->next == UINT32_MAX;
}

void tag_counters_clear(struct tag_counters *counters) {
    free(counters->list);
    *counters = (struct tag_counters){0};
}
