#include "ops/group.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "compute/hash.h"

static uint32_t hash_of(const struct wire_id *ids, uint32_t count) {
    uint64_t hash = hash_xxh3_64(ids, count * sizeof *ids);
    uint32_t folded = (uint32_t)(hash ^ hash >> 32);
    return group_mark(folded) == 0 ? folded + 1 : folded;
}

struct group *group_new(const struct wire_id *ids, uint32_t count, uint32_t rank) {
    struct group *group = malloc(sizeof *group + count * sizeof *ids);
    if (group == NULL) return NULL;
    *group = (struct group){.references = 1, .count = count, .rank = rank, .hash = hash_of(ids, count)};
    memcpy(group->ids, ids, count * sizeof *ids);
    return group;
}

struct group *group_get(struct group *group) {
    if (group != NULL) atomic_fetch_add(&group->references, 1);
    return group;
}

void group_put(struct group *group) {
    if (group == NULL || atomic_fetch_sub(&group->references, 1) > 1) return;
    team_free(group->team);
    free(group);
}

static uint32_t rank_of(const struct group *group, const struct wire_id *id) {
    uint32_t rank = 0;
    while (rank < group->count && !wire_id_equal(&group->ids[rank], id)) rank++;
    return rank < group->count ? rank : (uint32_t)GROUP_NOBODY;
}

bool group_names(const struct group *group, const struct wire_id *id) { return rank_of(group, id) != GROUP_NOBODY; }

bool group_has(const struct group *group, uint32_t rank, const struct epoch *epoch) {
    for (uint32_t i = 0; i < epoch->ring.count; i++)
        if (wire_id_equal(&epoch->ring.members[i].id, &group->ids[rank])) return true;
    return false;
}

uint32_t group_living(const struct group *group, const struct epoch *epoch) {
    if (group->team != NULL && group->team->epoch == epoch) return group->team->count;
    uint32_t living = 0;
    for (uint32_t i = 0; i < epoch->ring.count; i++)
        living += rank_of(group, &epoch->ring.members[i].id) != GROUP_NOBODY;
    return living;
}

static bool has_weights(const struct team *team) {
    const struct epoch_ring *ring = &team->epoch->ring;
    uint32_t i = 0;
    while (i < ring->count && (team->places[i] == GROUP_NOBODY || ring->members[i].weight == 0)) i++;
    return i < ring->count;
}

// False: memory was refused.
static bool add_weights(struct team *team) {
    const struct epoch_ring *ring = &team->epoch->ring;
    uint16_t *weights = malloc(2 * (size_t)team->count * sizeof *weights);
    if (weights == NULL) return false;
    uint16_t *sites = weights + team->count;
    for (uint32_t i = 0; i < ring->count; i++) {
        if (team->places[i] == GROUP_NOBODY) continue;
        weights[team->places[i]] = ring->members[i].weight;
        sites[team->places[i]] = ring->members[i].site;
    }
    team->weighted = weighted_new(weights, sites, team->count);
    free(weights);
    return team->weighted != NULL;
}

struct team *team_new(const struct group *group, const struct epoch *epoch, struct op_member *const *members) {
    uint32_t n = epoch->ring.count;
    struct team *team = malloc(sizeof *team + n * (sizeof *members + 2 * sizeof(uint32_t)));
    if (team == NULL) return NULL;
    *team = (struct team){.epoch = epoch_get(epoch), .members = (struct op_member **)(void *)(team + 1)};
    team->ranks = (uint32_t *)(void *)(team->members + n);
    team->places = team->ranks + n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rank = group == NULL ? i : rank_of(group, &epoch->ring.members[i].id);
        team->places[i] = rank == GROUP_NOBODY ? rank : team->count;
        if (rank == GROUP_NOBODY) continue;
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
    weighted_free(team->weighted);
    free(team);
}
