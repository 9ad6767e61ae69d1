// The members of the own group that were lost last, so that errors and programs can name them. Pure.
#ifndef PCCL_PEER_DEPARTED_H
#define PCCL_PEER_DEPARTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire.h"

enum { DEPARTED_MOST = 64 };

// All zero at the beginning.
struct departed {
    uint32_t count; // ever noted; the latest DEPARTED_MOST are kept
    struct {
        struct wire_id id;
        struct wire_name name;
        uint64_t epoch; // that it is not in any more
    } list[DEPARTED_MOST];
};

void departed_note(struct departed *departed, const struct wire_id *id, const struct wire_name *name, uint64_t epoch);
// The name of a member that was lost. NULL: it is not known.
const struct wire_name *departed_name(const struct departed *departed, const struct wire_id *id);
// Writes how texts call those that were lost after epoch `after`, with commas, cut to `capacity` > 0. Returns how many
// there are, of those that are kept.
uint32_t departed_tell(const struct departed *departed, uint64_t after, char *out, size_t capacity);

#endif
