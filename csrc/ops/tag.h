// Slots of tags in tables, and the counters that number the ops of a tag.
#ifndef PCCL_OPS_TAG_H
#define PCCL_OPS_TAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TAG_BITS = 10, TAG_SLOTS = 1 << TAG_BITS };

// Returns the slot in which the chain of a tag begins, in each table by tag.
static inline size_t tag_slot(uint64_t tag) { return (tag * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - TAG_BITS); }

struct tag_counter {
    uint64_t tag;
    uint32_t next; // 0: empty slot
};

// The ops begun in one group epoch, by tag. All 0: none yet.
struct tag_counters {
    struct tag_counter *list; // open addressing; owned
    uint32_t count, slots;
    bool full; // so many tags or ops that a fresh group epoch is wanted
};

// The number of the next op of this tag. False: memory was refused.
bool tag_counter_take(struct tag_counters *counters, uint64_t tag, uint32_t *sequence);
// Returns the number of the last op of this tag; 0: none.
uint32_t tag_counter_last(const struct tag_counters *counters, uint64_t tag);
// Whether the next op of this tag needs another group epoch.
bool tag_counter_is_spent(const struct tag_counters *counters, uint64_t tag);
void tag_counters_clear(struct tag_counters *counters);

#endif
