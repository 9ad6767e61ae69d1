// Lists of entries as the votes of shared state carry them (struct wire_outline): made entry by entry, and compared.
// Pure.
#ifndef PCCL_STATE_OUTLINE_H
#define PCCL_STATE_OUTLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_control.h"

struct outline_maker {
    struct wire_outline *outline; // borrowed
    uint64_t added, hash;
};

struct outline_maker outline_begin(struct wire_outline *outline, uint64_t entries);
// The next entry, as it is hashed for the mask; as often as there are entries.
void outline_add(struct outline_maker *maker, const void *entry, size_t bytes);

// Finds the first difference between `mine` and `other`, which are known to differ: exactly, if neither has more than
// WIRE_MAX_OUTLINE entries, else within the entries between two hashes of the longer list. False: the hashes are equal,
// and no entry is beyond them. `other` may have any values. Equal hashes of unequal entries, one time in four billion,
// put the difference too far behind.
bool outline_differ(const struct wire_outline *mine, const struct wire_outline *other, struct wire_sync_differs *out);

#endif
