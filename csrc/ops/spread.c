#include "ops/spread.h"

#include <stdlib.h>

// Steps of this part of a circle never come close to where they were soon (the golden ratio).
static const uint32_t BLOCK_STEP = 0x9E3779B9;

struct room {
    struct spread spread;
    uint32_t numbers[]; // of all its lists
};

// Whether one before this place is of its site, and which number that has here.
static bool is_known(const uint16_t *sites, const uint32_t *numbers, uint32_t place, uint32_t *number) {
    for (uint32_t i = 0; sites[place] != 0 && i < place; i++)
        if (sites[i] == sites[place]) {
            *number = numbers[i];
            return true;
        }
    return false;
}

static void list_site(struct spread *spread, uint32_t site, uint32_t *first, uint32_t *order, uint32_t *weights,
                      uint32_t *before, const uint16_t *shares) {
    uint32_t at = first[site], sum = 0;
    for (uint32_t place = 0; place < spread->members; place++)
        if (spread->site[place] == site) {
            order[at] = place;
            before[place] = sum;
            weights[at++] = sum += shares[place];
        }
    for (uint32_t i = first[site]; sum == 0 && i < at; i++) weights[i] = i - first[site] + 1;
    first[site + 1] = at;
}

struct spread *spread_new(const uint16_t *shares, const uint16_t *sites, uint32_t members) {
    struct room *room = malloc(sizeof *room + (6 * (size_t)members + 1) * sizeof room->numbers[0]);
    if (room == NULL) return NULL;
    struct spread *spread = &room->spread;
    uint32_t *until = room->numbers, *site = until + members, *order = site + members, *weights = order + members,
             *before = weights + members, *first = before + members;
    *spread = (struct spread){members, until, site, before, 0, first, order, weights};
    for (uint32_t place = 0; place < members; place++) {
        until[place] = shares[place] + (place == 0 ? 0 : until[place - 1]);
        if (!is_known(sites, site, place, &site[place])) site[place] = spread->sites++;
    }
    first[0] = 0;
    for (uint32_t i = 0; i < spread->sites; i++) list_site(spread, i, first, order, weights, before, shares);
    return spread;
}

void spread_free(struct spread *spread) { free(spread); }

// Returns the end of the shares whose sum is `until`. Exact for any count, unlike a product of doubles.
static uint64_t bound(const struct spread *spread, uint64_t count, uint32_t until) {
    uint64_t total = spread->until[spread->members - 1];
    if (until == total) return count;
    uint64_t at = count / total * until + count % total * until / total;
    return at / PLAN_SHARD_ALIGN * PLAN_SHARD_ALIGN;
}

struct plan_range spread_shard(const struct spread *spread, uint64_t count, uint32_t members, uint32_t shard) {
    if (spread == NULL) return plan_shard(count, members, shard);
    return (struct plan_range){shard == 0 ? 0 : bound(spread, count, spread->until[shard - 1]),
                               bound(spread, count, spread->until[shard])};
}

static uint32_t weight(const struct spread *spread, uint32_t site) {
    return spread->weights[spread->first[site + 1] - 1];
}

// The member of this site that stands for it: who is where in this site the block is in the owner's.
static uint32_t agent_of(const struct spread *spread, uint32_t site, uint32_t shard, uint64_t block) {
    uint32_t low = spread->first[site], high = spread->first[site + 1] - 1;
    uint64_t share = spread->until[shard] - (shard == 0 ? 0 : spread->until[shard - 1]);
    uint32_t angle = (uint32_t)block * BLOCK_STEP; // all of these: 2^32
    uint64_t there = ((uint64_t)spread->before[shard] << 32) + angle * share;
    uint64_t from = weight(spread, spread->site[shard]), to = weight(spread, site);
    uint64_t at = (there / from * to + there % from * to / from) >> 32; // exact: the product would be too large
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (spread->weights[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return spread->order[low];
}

uint32_t spread_parent(const struct spread *spread, uint32_t shard, uint64_t block, uint32_t member) {
    uint32_t site = spread->site[member];
    if (site == spread->site[shard]) return shard;
    uint32_t agent = agent_of(spread, site, shard, block);
    return agent == member ? shard : agent;
}

uint32_t spread_children(const struct spread *spread, uint32_t shard, uint64_t block, uint32_t member) {
    uint32_t site = spread->site[member], mates = spread->first[site + 1] - spread->first[site] - 1;
    if (member == shard) return mates + spread->sites - 1;
    if (site == spread->site[shard] || mates == 0) return 0;
    return agent_of(spread, site, shard, block) == member ? mates : 0;
}
