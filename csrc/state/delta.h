// How a shared state differs from another one: the first entry that differs in their lists, the leaves that differ, and
// the donors to fetch these from. Pure: no sockets, no clock, no threads.
//
// Votes carry the list of entries as prefix hashes (struct wire_outline), which are made entry by entry.
//
// The leaves of all entries are numbered through, entry by entry (struct delta_layout). A delta holds two bytes per
// leaf: whether it is here, wanted, or asked of a donor. Donors are asked for runs of leaves, as long as fewer bytes
// are on the way from them than their window, which follows their measured speed and delay (link/pace); near the end no
// donor gets more than its part of what is left, so that all end at about the same time. A leaf that was asked of a
// donor is asked again only when that donor is lost, stalls or sent wrong bytes.
#ifndef PCCL_STATE_DELTA_H
#define PCCL_STATE_DELTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_control.h"

enum {
    DELTA_MAX_DONORS = 1024,
    DELTA_RUN_BYTES = 2 << 20,  // bytes of a run that is asked at once, at most
    DELTA_RUN_LEAVES = 64,      // leaves of it, at most
    DELTA_LEAVES_ON_WAY = 1024, // leaves on the way from a donor, at most
    DELTA_WRONG_LEAVES = 2,     // wrong leaves, after which a donor is not asked any more
};

// ---- lists of entries ----
struct delta_outline {
    struct wire_outline *outline; // borrowed
    uint64_t added, hash;
};

static inline struct delta_outline delta_outline_begin(struct wire_outline *outline, uint64_t entries) {
    outline->entries = entries;
    return (struct delta_outline){.outline = outline};
}
// Adds the next entry, as it is hashed for the mask. Called as often as there are entries.
void delta_outline_add(struct delta_outline *made, const void *entry, size_t bytes);
// Finds the first difference between `mine` and `other`, which are known to differ: exactly, if neither has more than
// WIRE_MAX_OUTLINE entries, else within the entries between two hashes of the longer list. False: the hashes are equal,
// and no entry is beyond them. `other` may have any values. Equal hashes of unequal entries, one time in four billion,
// put the difference too far behind.
bool delta_outline_differ(const struct wire_outline *mine, const struct wire_outline *other,
                          struct wire_sync_differs *out);

// ---- layout ----
struct delta_entry {
    void *data;                 // the user's memory; never touched here
    struct device_queue *queue; // of that memory (device/device.h)
    uint64_t bytes, first_leaf, leaf_count;
    size_t info;    // its number in the state
    bool read_only; // so its owner says
};

struct delta_layout {
    struct delta_entry *entries;
    size_t count;
    uint64_t leaf_count, bytes;
};

struct delta_piece {
    size_t entry;
    uint64_t offset; // in the entry
    uint32_t length; // never 0
};

// Fills first_leaf and leaf_count of entries whose bytes are set, and the sums.
void delta_layout_number(struct delta_layout *layout);
// Returns entry, offset and length of leaf `leaf` < leaf_count.
struct delta_piece delta_layout_find(const struct delta_layout *layout, uint64_t leaf);

// ---- delta ----
struct delta;

struct delta_range {
    uint64_t first;
    uint32_t count; // 0: nothing to ask now
};

// All leaves are here; no donor has been asked. NULL when memory is refused. The layout is borrowed.
struct delta *delta_new(const struct delta_layout *layout, uint32_t donor_count);
void delta_free(struct delta *delta);
// Wants every leaf whose hash differs.
void delta_compare(struct delta *delta, const uint64_t *mine, const uint64_t *theirs);

uint64_t delta_missing(const struct delta *delta); // leaves that are not here
uint64_t delta_missing_bytes(const struct delta *delta);
bool delta_wants(const struct delta *delta, uint64_t leaf);       // not here
uint64_t delta_on_way(const struct delta *delta, uint32_t donor); // leaves
bool delta_usable(const struct delta *delta, uint32_t donor);
bool delta_hopeless(const struct delta *delta); // leaves are missing and no donor is left

// The next run to ask of this donor; it counts as asked from now on.
struct delta_range delta_ask(struct delta *delta, uint32_t donor, int64_t now_ns);
// A leaf came from a donor and is right: it is here. Leaves that are here already and unasked ones are counted for
// speed only.
void delta_arrived(struct delta *delta, uint64_t leaf, uint32_t donor, int64_t now_ns);
// A leaf came and is wrong: it is wanted again, of others if there are any.
void delta_wrong(struct delta *delta, uint64_t leaf, uint32_t donor);
// Marks all leaves that were asked of the donor as wanted again. The donor may still be asked.
void delta_revoke(struct delta *delta, uint32_t donor);
// A leaf will not come as was said: it is wanted again.
void delta_lost(struct delta *delta, uint64_t leaf);
// The donor stalls: revoked, and asked only when no other donor is left.
void delta_shun(struct delta *delta, uint32_t donor);
// The donor is gone.
void delta_drop(struct delta *delta, uint32_t donor);

#endif
