#define _GNU_SOURCE
#include "state/outline.h"

#include <endian.h>

#include "compute/hash.h"

struct outline_maker outline_begin(struct wire_outline *outline, uint64_t entries) {
    outline->entries = entries;
    return (struct outline_maker){.outline = outline};
}

void outline_add(struct outline_maker *maker, const void *entry, size_t bytes) {
    unsigned shift = wire_outline_shift(maker->outline->entries);
    uint64_t link[2] = {htole64(maker->hash), htole64(hash_xxh3_64(entry, bytes))};
    maker->hash = hash_xxh3_64(link, sizeof link);
    uint64_t added = ++maker->added;
    if ((added >> shift) << shift == added) maker->outline->hashes[(added >> shift) - 1] = (uint32_t)maker->hash;
}

bool outline_differ(const struct wire_outline *mine, const struct wire_outline *other, struct wire_sync_differs *out) {
    unsigned a = wire_outline_shift(mine->entries), b = wire_outline_shift(other->entries), shift = a > b ? a : b;
    uint64_t shorter = mine->entries < other->entries ? mine->entries : other->entries, same = 0;
    for (uint64_t i = 1; i <= shorter >> shift; i++) {
        uint64_t end = i << shift;
        if (mine->hashes[(end >> a) - 1] != other->hashes[(end >> b) - 1]) {
            *out = (struct wire_sync_differs){same, end - 1};
            return true;
        }
        same = end;
    }
    if (same == mine->entries && same == other->entries) return false;
    *out = (struct wire_sync_differs){same, mine->entries == other->entries ? shorter - 1 : shorter};
    return true;
}
