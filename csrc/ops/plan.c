#include "ops/plan.h"

#include <stdlib.h>

#include "compute/codec.h"
#include "net/wire.h"

enum {
    SEGMENT_ALIGN = 1024, // elements: segments of a tensor that is aligned are aligned themselves
    // from a message's arrival until the thread that waits for it runs: a round's cost beside the wire's latency
    WAKE_US = 30,
    RATE_LEAST = 1000, // megabytes per second that a ring of fast hosts is taken to reach
};

const struct plan_collective *plan_collective(uint8_t kind) {
    static const struct plan_collective collectives[PLAN_KINDS] = {
        [PLAN_ALL_REDUCE] = {.name = "all-reduce", .reduces = true, .survives = true, .algorithm = PLAN_RING},
        [PLAN_BROADCAST] = {.name = "broadcast", .rooted = true, .survives = true, .algorithm = PLAN_CHAIN},
        [PLAN_REDUCE] = {.name = "reduce", .reduces = true, .rooted = true, .survives = true, .algorithm = PLAN_RING},
        [PLAN_ALL_GATHER] = {.name = "all-gather", .divided = true, .gathers = true, .algorithm = PLAN_PIECES},
        [PLAN_REDUCE_SCATTER] = {.name = "reduce-scatter", .reduces = true, .divided = true, .algorithm = PLAN_RING},
        [PLAN_GATHER] = {.name = "gather", .rooted = true, .divided = true, .gathers = true, .algorithm = PLAN_PIECES},
        [PLAN_SCATTER] = {.name = "scatter", .rooted = true, .divided = true, .algorithm = PLAN_PIECES},
        [PLAN_ALL_TO_ALL] = {.name = "all-to-all", .divided = true, .gathers = true, .algorithm = PLAN_PIECES},
        [PLAN_ALL_TO_ALL_V] = {.name = "all-to-all of unequal parts", .divided = true, .algorithm = PLAN_PIECES},
        [PLAN_BARRIER] = {.name = "barrier", .survives = true, .algorithm = PLAN_SMALL},
        [PLAN_SEND] = {.name = "send", .rooted = true, .divided = true, .algorithm = PLAN_PIECES},
    };
    return kind < PLAN_KINDS ? &collectives[kind] : NULL;
}

// Returns whether sending everything to everyone is faster, for all collectives but all-reduce. Measured in
// docs/decisions/slots.md.
static bool is_small(const struct wire_fingerprint *what, uint64_t bytes, uint32_t members) {
    uint64_t each = PLAN_SMALL_ANY;
    if (bytes > 2 * each) return false;
    uint64_t from_others = (members - 1) * bytes;
    switch (what->kind) {
    case PLAN_ALL_GATHER: return bytes <= 2 * each && bytes <= members * each / 2; // of all inputs together
    case PLAN_GATHER: return bytes <= each;
    case PLAN_BROADCAST: return bytes <= each && from_others <= PLAN_SMALL_MAX; // the root alone sends so much
    case PLAN_ALL_TO_ALL: return bytes <= each && from_others <= 2 * each;
    default: return from_others <= each;
    }
}

enum plan_algorithm plan_choose(const struct wire_fingerprint *what, uint64_t bytes, uint32_t members,
                                uint32_t latency_us, uint32_t megabytes_per_s, bool has_weights) {
    const struct plan_collective *collective = plan_collective(what->kind);
    if (what->kind == PLAN_ALL_TO_ALL_V) return collective->algorithm; // sizes of which nothing is agreed on
    if (members < 2) return PLAN_SMALL;
    if (what->codec != CODEC_RAW) return PLAN_SHARDED;
    if (what->kind != PLAN_ALL_REDUCE) return is_small(what, bytes, members) ? PLAN_SMALL : collective->algorithm;
    enum plan_algorithm large = has_weights && members > 2 ? PLAN_WEIGHTED : PLAN_RING;
    if (bytes > PLAN_SMALL_MAX || (bytes > PLAN_SMALL_ANY && (members - 1) * bytes > PLAN_SMALL_MAX)) return large;
    // Microseconds x 1000: a byte at 1 MB/s takes 1 us.
    uint64_t n = members, byte_cost = 1000 * bytes / megabytes_per_s;
    uint64_t step = 1000 * ((uint64_t)latency_us + WAKE_US);
    uint64_t small = step + (n - 1) * byte_cost;
    uint64_t ring_rounds = 2 * (n - 1) + 3; // READY, then DONE and the verdict
    uint64_t ring = step * ring_rounds + 2 * (n - 1) * byte_cost / n;
    return small <= ring ? PLAN_SMALL : large;
}

uint32_t plan_extra_segments(uint32_t members, uint32_t latency_us, uint32_t megabytes_per_s) {
    // From a chunk's departure to the verdict: around the ring twice, then to the master and back. At 1 MB/s a
    // microsecond brings a byte; the rate is that of one connection, and a ring may have many.
    double trips = 2.0 * members + 2, rate = megabytes_per_s < RATE_LEAST ? RATE_LEAST : megabytes_per_s;
    double extra = PLAN_SEGMENTS_AHEAD + trips * latency_us * rate / PLAN_SEGMENT_MIN;
    return extra < UINT32_MAX ? (uint32_t)extra : UINT32_MAX;
}

uint64_t plan_segmented_min = 16 * PLAN_SEGMENT_MIN;

static uint64_t segment_elements(uint64_t count, size_t element_bytes) {
    uint64_t size = count / PLAN_SEGMENTS, least = PLAN_SEGMENT_MIN / element_bytes;
    if (size < least) size = least;
    return (size + SEGMENT_ALIGN - 1) / SEGMENT_ALIGN * SEGMENT_ALIGN;
}

uint32_t plan_segments(uint64_t count, size_t element_bytes) {
    if (count < plan_segmented_min / element_bytes) return 1;
    return (uint32_t)(count / segment_elements(count, element_bytes));
}

struct plan_range plan_segment(uint64_t count, size_t element_bytes, uint32_t segment) {
    uint32_t segments = plan_segments(count, element_bytes);
    uint64_t size = segment_elements(count, element_bytes);
    return segments == 1 ? (struct plan_range){0, count}
                         : (struct plan_range){size * segment, segment + 1 == segments ? count : size * (segment + 1)};
}

struct plan_range plan_shard(uint64_t count, uint32_t members, uint32_t shard) {
    uint64_t even = count / members + (count % members != 0);
    uint64_t size = (even + PLAN_SHARD_ALIGN - 1) / PLAN_SHARD_ALIGN * PLAN_SHARD_ALIGN;
    struct plan_range range = {.begin = size * shard, .end = size * (shard + 1)};
    if (range.begin > count) range.begin = count;
    if (range.end > count) range.end = count;
    return range;
}

enum plan_step plan_ring_step(uint32_t members, uint32_t rank, uint32_t shard, uint32_t hop) {
    if (shard >= members || hop > 2 * members - 3 || (shard + hop + 1) % members != rank) return STEP_INVALID;
    if (hop < members - 2) return STEP_REDUCE;
    if (hop == members - 2) return STEP_REDUCE_LAST;
    return hop < 2 * members - 3 ? STEP_GATHER : STEP_GATHER_LAST;
}

static uint64_t shard_size(uint64_t count, uint32_t members, uint32_t shard) {
    struct plan_range range = plan_shard(count, members, shard % members);
    return range.end - range.begin;
}

uint64_t plan_ring_sent(uint64_t count, uint32_t members, uint32_t rank) {
    // Every shard once while reducing, except the one that ends here; every shard once while gathering, except the one
    // whose last receiver comes after the next.
    return 2 * count - shard_size(count, members, rank + 1) - shard_size(count, members, rank + 2);
}

uint64_t plan_ring_received(uint64_t count, uint32_t members, uint32_t rank) {
    return 2 * count - shard_size(count, members, rank) - shard_size(count, members, rank + 1);
}

// ---- weighted all-reduce ----
// Steps of this part of a circle never come close to where they were soon (the golden ratio).
static const uint32_t BLOCK_STEP = 0x9E3779B9;

struct weights_room {
    struct plan_weights weights;
    uint32_t numbers[]; // of all its lists
};

// Returns whether one before this place is of its site, and which number that has here.
static bool is_known(const uint16_t *sites, const uint32_t *numbers, uint32_t place, uint32_t *number) {
    for (uint32_t i = 0; sites[place] != 0 && i < place; i++)
        if (sites[i] == sites[place]) {
            *number = numbers[i];
            return true;
        }
    return false;
}

static void list_site(struct plan_weights *weights, uint32_t site, uint32_t *first, uint32_t *order, uint32_t *carried,
                      uint32_t *before, const uint16_t *of_member) {
    uint32_t at = first[site], sum = 0;
    for (uint32_t place = 0; place < weights->members; place++)
        if (weights->site[place] == site) {
            order[at] = place;
            before[place] = sum;
            carried[at++] = sum += of_member[place];
        }
    for (uint32_t i = first[site]; sum == 0 && i < at; i++) carried[i] = i - first[site] + 1;
    first[site + 1] = at;
}

struct plan_weights *plan_weights_new(const uint16_t *of_member, const uint16_t *sites, uint32_t members) {
    struct weights_room *room = malloc(sizeof *room + (6 * (size_t)members + 1) * sizeof room->numbers[0]);
    if (room == NULL) return NULL;
    struct plan_weights *weights = &room->weights;
    uint32_t *until = room->numbers, *site = until + members, *order = site + members, *carried = order + members,
             *before = carried + members, *first = before + members;
    *weights = (struct plan_weights){members, until, site, before, 0, first, order, carried};
    for (uint32_t place = 0; place < members; place++) {
        until[place] = of_member[place] + (place == 0 ? 0 : until[place - 1]);
        if (!is_known(sites, site, place, &site[place])) site[place] = weights->sites++;
    }
    first[0] = 0;
    for (uint32_t i = 0; i < weights->sites; i++) list_site(weights, i, first, order, carried, before, of_member);
    return weights;
}

void plan_weights_free(struct plan_weights *weights) { free(weights); }

// Returns the end of the weights whose sum is `until`. Exact for any count, unlike a product of doubles.
static uint64_t bound(const struct plan_weights *weights, uint64_t count, uint32_t until) {
    uint64_t total = weights->until[weights->members - 1];
    if (until == total) return count;
    uint64_t at = count / total * until + count % total * until / total;
    return at / PLAN_SHARD_ALIGN * PLAN_SHARD_ALIGN;
}

struct plan_range plan_weights_shard(const struct plan_weights *weights, uint64_t count, uint32_t members,
                                     uint32_t shard) {
    if (weights == NULL) return plan_shard(count, members, shard);
    return (struct plan_range){shard == 0 ? 0 : bound(weights, count, weights->until[shard - 1]),
                               bound(weights, count, weights->until[shard])};
}

static uint32_t carried_of(const struct plan_weights *weights, uint32_t site) {
    return weights->carried[weights->first[site + 1] - 1];
}

// The member of this site that stands for it: who is where in this site the block is in the owner's.
static uint32_t agent_of(const struct plan_weights *weights, uint32_t site, uint32_t shard, uint64_t block) {
    uint32_t low = weights->first[site], high = weights->first[site + 1] - 1;
    uint64_t weight = weights->until[shard] - (shard == 0 ? 0 : weights->until[shard - 1]);
    uint32_t angle = (uint32_t)block * BLOCK_STEP; // all of these: 2^32
    uint64_t there = ((uint64_t)weights->before[shard] << 32) + angle * weight;
    uint64_t from = carried_of(weights, weights->site[shard]), to = carried_of(weights, site);
    uint64_t at = (there / from * to + there % from * to / from) >> 32; // exact: the product would be too large
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (weights->carried[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return weights->order[low];
}

uint32_t plan_weights_parent(const struct plan_weights *weights, uint32_t shard, uint64_t block, uint32_t member) {
    uint32_t site = weights->site[member];
    if (site == weights->site[shard]) return shard;
    uint32_t agent = agent_of(weights, site, shard, block);
    return agent == member ? shard : agent;
}

uint32_t plan_weights_children(const struct plan_weights *weights, uint32_t shard, uint64_t block, uint32_t member) {
    uint32_t site = weights->site[member], mates = weights->first[site + 1] - weights->first[site] - 1;
    if (member == shard) return mates + weights->sites - 1;
    if (site == weights->site[shard] || mates == 0) return 0;
    return agent_of(weights, site, shard, block) == member ? mates : 0;
}
