#include "ops/ranges.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { ROOM_FIRST = 16 };

// The first range that ends at `at` or behind it.
static size_t find(const struct ranges *ranges, uint64_t at) {
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges->list[middle].end < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert(struct ranges *ranges, size_t at, struct plan_range range) {
    if (!GROW(ranges->list, ranges->room, ranges->count, ROOM_FIRST)) {
        ranges->refused = true;
        return false;
    }
    memmove(&ranges->list[at + 1], &ranges->list[at], (ranges->count - at) * sizeof range);
    ranges->list[at] = range;
    ranges->count++;
    return true;
}

bool ranges_add(struct ranges *ranges, uint64_t begin, uint64_t end) {
    if (begin >= end) return true;
    size_t first = find(ranges, begin), last = first;
    struct plan_range sum = {begin, end};
    for (; last < ranges->count && ranges->list[last].begin <= end; last++) {
        if (ranges->list[last].begin < sum.begin) sum.begin = ranges->list[last].begin;
        if (ranges->list[last].end > sum.end) sum.end = ranges->list[last].end;
    }
    if (first == last) return insert(ranges, first, sum);
    ranges->list[first] = sum;
    memmove(&ranges->list[first + 1], &ranges->list[last], (ranges->count - last) * sizeof sum);
    ranges->count -= last - first - 1;
    return true;
}

bool ranges_gap(const struct ranges *ranges, uint64_t begin, uint64_t end, struct plan_range *gap) {
    size_t at = find(ranges, begin);
    for (; at < ranges->count && ranges->list[at].begin <= begin; at++)
        if (ranges->list[at].end > begin) begin = ranges->list[at].end;
    if (begin >= end) return false;
    bool bounded = at < ranges->count && ranges->list[at].begin < end;
    *gap = (struct plan_range){begin, bounded ? ranges->list[at].begin : end};
    return true;
}

bool ranges_take(struct ranges *ranges, uint64_t begin, uint64_t end) {
    struct plan_range gap;
    if (begin >= end) return true;
    if (!ranges_gap(ranges, begin, end, &gap) || gap.begin != begin || gap.end != end) return false;
    return ranges_add(ranges, begin, end);
}

void ranges_clear(struct ranges *ranges) { ranges->count = 0; }

void ranges_fini(struct ranges *ranges) {
    free(ranges->list);
    *ranges = (struct ranges){0};
}
