#include "net/roster.h"

#include <string.h>

// Both halves of `from` are sorted; merges them into `to`.
static void merge(const struct wire_member *members, const uint16_t *from, uint32_t middle, uint32_t end,
                  uint16_t *to) {
    uint32_t a = 0, b = middle;
    for (uint32_t i = 0; i < end; i++) {
        bool left = a < middle && (b == end || wire_id_compare(&members[from[a]].id, &members[from[b]].id) <= 0);
        to[i] = left ? from[a++] : from[b++];
    }
}

void roster_sort(const struct wire_member *members, uint32_t count, uint16_t sorted[WIRE_MAX_MEMBERS]) {
    uint16_t spare[WIRE_MAX_MEMBERS];
    for (uint32_t i = 0; i < count; i++) sorted[i] = (uint16_t)i;
    for (uint32_t width = 1; width < count; width *= 2) {
        for (uint32_t begin = 0; begin < count; begin += 2 * width) {
            uint32_t left = count - begin, end = left < 2 * width ? left : 2 * width;
            merge(members, sorted + begin, width < end ? width : end, end, spare + begin);
        }
        memcpy(sorted, spare, count * sizeof *sorted);
    }
}

uint32_t roster_find(const struct wire_member *members, const uint16_t *sorted, uint32_t count,
                     const struct wire_id *id) {
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = wire_id_compare(&members[sorted[middle]].id, id);
        if (order == 0) return sorted[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT32_MAX;
}
