// For tests of engines: tells one of them of a group epoch.
#ifndef PCCL_TESTS_ENTER_EPOCH_H
#define PCCL_TESTS_ENTER_EPOCH_H

#include "check.h"
#include "data/engine.h"

enum { EPOCH_RUN = 7, EPOCH_GENERATION = 1 };

static uint32_t epoch_latency_us = 30; // one way

// `members` in ring order; `rank`: the engine's own place.
static inline struct epoch *make_epoch(uint64_t number, struct wire_member *members, uint32_t count, uint32_t rank,
                                       bool lost) {
    struct wire_epoch told = {.group_epoch = number,
                              .latency_us = epoch_latency_us,
                              .megabytes_per_s = 2000,
                              .count = count,
                              .members = members};
    struct wire_header header = {.run = EPOCH_RUN, .generation = EPOCH_GENERATION};
    struct epoch *epoch = epoch_new(&told, &(struct epoch_ring){members, count, rank}, &header, lost);
    REQUIRE(epoch != NULL);
    return epoch;
}

static inline void enter_epoch(struct engine *engine, uint64_t number, struct wire_member *members, uint32_t count,
                               uint32_t rank) {
    struct epoch *epoch = make_epoch(number, members, count, rank, false);
    engine_enter_epoch(engine, epoch);
    epoch_put(epoch);
}

#endif
