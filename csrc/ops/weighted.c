#include "ops/weighted.h"

#include <stdlib.h>

// Steps of this part of a circle never come close to where they were soon (the golden ratio).
static const uint32_t BLOCK_STEP = 0x9E3779B9;

struct room {
    struct weighted weighted;
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

static void list_site(struct weighted *weighted, uint32_t site, uint32_t *first, uint32_t *order, uint32_t *carried,
                      uint32_t *before, const uint16_t *weights) {
    uint32_t at = first[site], sum = 0;
    for (uint32_t place = 0; place < weighted->members; place++)
        if (weighted->site[place] == site) {
            order[at] = place;
            before[place] = sum;
            carried[at++] = sum += weights[place];
        }
    for (uint32_t i = first[site]; sum == 0 && i < at; i++) carried[i] = i - first[site] + 1;
    first[site + 1] = at;
}

struct weighted *weighted_new(const uint16_t *weights, const uint16_t *sites, uint32_t members) {
    struct room *room = malloc(sizeof *room + (6 * (size_t)members + 1) * sizeof room->numbers[0]);
    if (room == NULL) return NULL;
    struct weighted *weighted = &room->weighted;
    uint32_t *until = room->numbers, *site = until + members, *order = site + members, *carried = order + members,
             *before = carried + members, *first = before + members;
    *weighted = (struct weighted){members, until, site, before, 0, first, order, carried};
    for (uint32_t place = 0; place < members; place++) {
        until[place] = weights[place] + (place == 0 ? 0 : until[place - 1]);
        if (!is_known(sites, site, place, &site[place])) site[place] = weighted->sites++;
    }
    first[0] = 0;
    for (uint32_t i = 0; i < weighted->sites; i++) list_site(weighted, i, first, order, carried, before, weights);
    return weighted;
}

void weighted_free(struct weighted *weighted) { free(weighted); }

// Returns the end of the weights whose sum is `until`. Exact for any count, unlike a product of doubles.
static uint64_t bound(const struct weighted *weighted, uint64_t count, uint32_t until) {
    uint64_t total = weighted->until[weighted->members - 1];
    if (until == total) return count;
    uint64_t at = count / total * until + count % total * until / total;
    return at / PLAN_SHARD_ALIGN * PLAN_SHARD_ALIGN;
}

struct plan_range weighted_shard(const struct weighted *weighted, uint64_t count, uint32_t members, uint32_t shard) {
    if (weighted == NULL) return plan_shard(count, members, shard);
    return (struct plan_range){shard == 0 ? 0 : bound(weighted, count, weighted->until[shard - 1]),
                               bound(weighted, count, weighted->until[shard])};
}

static uint32_t carried_of(const struct weighted *weighted, uint32_t site) {
    return weighted->carried[weighted->first[site + 1] - 1];
}

// The member of this site that stands for it: who is where in this site the block is in the owner's.
static uint32_t agent_of(const struct weighted *weighted, uint32_t site, uint32_t shard, uint64_t block) {
    uint32_t low = weighted->first[site], high = weighted->first[site + 1] - 1;
    uint64_t weight = weighted->until[shard] - (shard == 0 ? 0 : weighted->until[shard - 1]);
    uint32_t angle = (uint32_t)block * BLOCK_STEP; // all of these: 2^32
    uint64_t there = ((uint64_t)weighted->before[shard] << 32) + angle * weight;
    uint64_t from = carried_of(weighted, weighted->site[shard]), to = carried_of(weighted, site);
    uint64_t at = (there / from * to + there % from * to / from) >> 32; // exact: the product would be too large
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (weighted->carried[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return weighted->order[low];
}

uint32_t weighted_parent(const struct weighted *weighted, uint32_t shard, uint64_t block, uint32_t member) {
    uint32_t site = weighted->site[member];
    if (site == weighted->site[shard]) return shard;
    uint32_t agent = agent_of(weighted, site, shard, block);
    return agent == member ? shard : agent;
}

uint32_t weighted_children(const struct weighted *weighted, uint32_t shard, uint64_t block, uint32_t member) {
    uint32_t site = weighted->site[member], mates = weighted->first[site + 1] - weighted->first[site] - 1;
    if (member == shard) return mates + weighted->sites - 1;
    if (site == weighted->site[shard] || mates == 0) return 0;
    return agent_of(weighted, site, shard, block) == member ? mates : 0;
}
