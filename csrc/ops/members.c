#include "ops/members.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "compute/hash.h"

// ---- epoch ----
bool epoch_find_ring(const struct wire_epoch *told, const struct wire_id *self, struct epoch_ring *out) {
    const struct wire_member *own = wire_member_with(told->members, told->count, self), *first = own, *end = own;
    if (own == NULL) return false;
    while (first > told->members && first[-1].group == own->group) first--;
    while (end < told->members + told->count && end->group == own->group) end++;
    *out = (struct epoch_ring){.members = first, .count = (uint32_t)(end - first), .rank = (uint32_t)(own - first)};
    return true;
}

uint32_t epoch_ring_find(const struct epoch_ring *ring, const struct wire_id *id) {
    const struct wire_member *member = wire_member_with(ring->members, ring->count, id);
    return member == NULL ? (uint32_t)SUBGROUP_NOBODY : (uint32_t)(member - ring->members);
}

bool epoch_ring_has(const struct epoch_ring *ring, const struct wire_id *id) {
    return epoch_ring_find(ring, id) != SUBGROUP_NOBODY;
}

uint32_t epoch_ring_rank(const struct epoch_ring *ring, uint64_t join_number) {
    uint32_t rank = 0;
    for (uint32_t i = 0; i < ring->count; i++) rank += ring->members[i].join_number < join_number;
    return rank;
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

// ---- subgroup and team ----
static uint32_t hash_of(const struct wire_id *ids, uint32_t count) {
    uint64_t hash = hash_xxh3_64(ids, count * sizeof *ids);
    uint32_t folded = (uint32_t)(hash ^ hash >> 32);
    return subgroup_mark(folded) == 0 ? folded + 1 : folded;
}

struct subgroup *subgroup_new(const struct wire_id *ids, uint32_t count, uint32_t rank) {
    struct subgroup *subgroup = malloc(sizeof *subgroup + count * sizeof *ids);
    if (subgroup == NULL) return NULL;
    *subgroup = (struct subgroup){.references = 1, .count = count, .rank = rank, .hash = hash_of(ids, count)};
    memcpy(subgroup->ids, ids, count * sizeof *ids);
    return subgroup;
}

void subgroup_put(struct subgroup *subgroup) {
    if (subgroup == NULL || atomic_fetch_sub(&subgroup->references, 1) > 1) return;
    team_free(subgroup->team);
    free(subgroup);
}

static uint32_t rank_of(const struct subgroup *subgroup, const struct wire_id *id) {
    uint32_t rank = 0;
    while (rank < subgroup->count && !wire_id_equal(&subgroup->ids[rank], id)) rank++;
    return rank < subgroup->count ? rank : (uint32_t)SUBGROUP_NOBODY;
}

bool subgroup_names(const struct subgroup *subgroup, const struct wire_id *id) {
    return rank_of(subgroup, id) != SUBGROUP_NOBODY;
}

uint32_t subgroup_living(const struct subgroup *subgroup, const struct epoch *epoch) {
    if (subgroup->team != NULL && subgroup->team->epoch == epoch) return subgroup->team->count;
    uint32_t living = 0;
    for (uint32_t i = 0; i < epoch->ring.count; i++)
        living += rank_of(subgroup, &epoch->ring.members[i].id) != SUBGROUP_NOBODY;
    return living;
}

static bool has_weights(const struct team *team) {
    const struct epoch_ring *ring = &team->epoch->ring;
    uint32_t i = 0;
    while (i < ring->count && (team->places[i] == SUBGROUP_NOBODY || ring->members[i].weight == 0)) i++;
    return i < ring->count;
}

// False: memory was refused.
static bool add_weights(struct team *team) {
    const struct epoch_ring *ring = &team->epoch->ring;
    uint16_t *weights = malloc(2 * (size_t)team->count * sizeof *weights);
    if (weights == NULL) return false;
    uint16_t *sites = weights + team->count;
    for (uint32_t i = 0; i < ring->count; i++) {
        if (team->places[i] == SUBGROUP_NOBODY) continue;
        weights[team->places[i]] = ring->members[i].weight;
        sites[team->places[i]] = ring->members[i].site;
    }
    team->weights = plan_weights_new(weights, sites, team->count);
    free(weights);
    return team->weights != NULL;
}

struct team *team_new(const struct subgroup *subgroup, const struct epoch *epoch, struct op_member *const *members) {
    uint32_t n = epoch->ring.count;
    struct team *team = malloc(sizeof *team + n * (sizeof *members + 2 * sizeof(uint32_t)));
    if (team == NULL) return NULL;
    *team = (struct team){.epoch = epoch_get(epoch), .members = (struct op_member **)(void *)(team + 1)};
    team->ranks = (uint32_t *)(void *)(team->members + n);
    team->places = team->ranks + n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rank = subgroup == NULL ? i : rank_of(subgroup, &epoch->ring.members[i].id);
        team->places[i] = rank == SUBGROUP_NOBODY ? rank : team->count;
        if (rank == SUBGROUP_NOBODY) continue;
        if (i == epoch->ring.rank) team->place = team->count;
        team->members[team->count] = members[i];
        team->ranks[team->count++] = rank;
    }
    if (!has_weights(team) || add_weights(team)) return team;
    team_free(team);
    return NULL;
}

void team_free(struct team *team) {
    if (team == NULL) return;
    epoch_put(team->epoch);
    plan_weights_free(team->weights);
    free(team);
}
