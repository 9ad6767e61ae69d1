#define _GNU_SOURCE
#include "state/delta.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "compute/hash.h"
#include "link/pace.h"

enum { HERE = 0xffff, WANTED = 0xfffe }; // otherwise: the donor it was asked of

struct donor {
    bool gone, shunned;
    uint32_t wrong;
    uint64_t leaves, bytes; // on the way
    int64_t asked_at;       // of the oldest ask of a measurement of delay; 0 = none under way
    uint64_t asked_leaf;
    struct pace_flow flow;
};

struct delta {
    const struct delta_layout *layout;
    uint16_t *leaves;
    uint64_t missing, missing_bytes;
    uint64_t next; // no leaf before it is wanted
    uint32_t donor_count;
    // A leaf that a donor sent wrong is not asked of it again while others are left: few, so a list.
    struct {
        uint64_t leaf;
        uint32_t donor;
    } wrong[DELTA_MAX_DONORS * DELTA_WRONG_LEAVES];
    uint32_t wrong_count;
    struct donor donors[];
};

// ---- lists of entries ----

void delta_outline_add(struct delta_outline *made, const void *entry, size_t bytes) {
    unsigned shift = wire_outline_shift(made->outline->entries);
    uint64_t link[2] = {htole64(made->hash), htole64(hash_xxh3_64(entry, bytes))};
    made->hash = hash_xxh3_64(link, sizeof link);
    uint64_t added = ++made->added;
    if ((added >> shift) << shift == added) made->outline->hashes[(added >> shift) - 1] = (uint32_t)made->hash;
}

bool delta_outline_differ(const struct wire_outline *mine, const struct wire_outline *other,
                          struct wire_sync_differs *out) {
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

// ---- layout ----
void delta_layout_number(struct delta_layout *layout) {
    layout->leaf_count = layout->bytes = 0;
    for (size_t i = 0; i < layout->count; i++) {
        struct delta_entry *entry = &layout->entries[i];
        entry->first_leaf = layout->leaf_count;
        entry->leaf_count = hash_leaf_count(entry->bytes);
        layout->leaf_count += entry->leaf_count;
        layout->bytes += entry->bytes;
    }
}

struct delta_piece delta_layout_find(const struct delta_layout *layout, uint64_t leaf) {
    // The last entry that begins at or before the leaf: empty entries before it begin there too, and come first.
    size_t low = 0, high = layout->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (layout->entries[middle].first_leaf <= leaf)
            low = middle;
        else
            high = middle;
    }
    const struct delta_entry *entry = &layout->entries[low];
    uint64_t offset = (leaf - entry->first_leaf) * HASH_LEAF_BYTES, rest = entry->bytes - offset;
    return (struct delta_piece){
        .entry = low, .offset = offset, .length = rest < HASH_LEAF_BYTES ? (uint32_t)rest : HASH_LEAF_BYTES};
}

// ---- delta ----
struct delta *delta_new(const struct delta_layout *layout, uint32_t donor_count) {
    if (donor_count > DELTA_MAX_DONORS || layout->leaf_count > SIZE_MAX / sizeof(uint16_t)) return NULL;
    struct delta *delta = calloc(1, sizeof *delta + donor_count * sizeof delta->donors[0]);
    if (delta == NULL) return NULL;
    delta->layout = layout;
    delta->donor_count = donor_count;
    delta->next = layout->leaf_count;
    delta->leaves = malloc(layout->leaf_count * sizeof(uint16_t) + 1);
    if (delta->leaves == NULL) {
        free(delta);
        return NULL;
    }
    memset(delta->leaves, 0xff, layout->leaf_count * sizeof(uint16_t));
    return delta;
}

void delta_free(struct delta *delta) {
    if (delta == NULL) return;
    free(delta->leaves);
    free(delta);
}

static uint32_t length_of(const struct delta *delta, uint64_t leaf) {
    return delta_layout_find(delta->layout, leaf).length;
}

void delta_compare(struct delta *delta, const uint64_t *mine, const uint64_t *theirs) {
    for (size_t i = 0; i < delta->layout->count; i++) {
        const struct delta_entry *entry = &delta->layout->entries[i];
        for (uint64_t leaf = entry->first_leaf; leaf < entry->first_leaf + entry->leaf_count; leaf++) {
            if (mine[leaf] == theirs[leaf] || delta->leaves[leaf] != HERE) continue;
            delta->leaves[leaf] = WANTED;
            delta->missing++;
            delta->missing_bytes += length_of(delta, leaf);
            if (leaf < delta->next) delta->next = leaf;
        }
    }
}

uint64_t delta_missing(const struct delta *delta) { return delta->missing; }
uint64_t delta_missing_bytes(const struct delta *delta) { return delta->missing_bytes; }
bool delta_wants(const struct delta *delta, uint64_t leaf) {
    return leaf < delta->layout->leaf_count && delta->leaves[leaf] != HERE;
}
uint64_t delta_on_way(const struct delta *delta, uint32_t donor) { return delta->donors[donor].leaves; }

static bool alive(const struct donor *donor) { return !donor->gone && donor->wrong < DELTA_WRONG_LEAVES; }

static bool any_better(const struct delta *delta) {
    for (uint32_t i = 0; i < delta->donor_count; i++)
        if (alive(&delta->donors[i]) && !delta->donors[i].shunned) return true;
    return false;
}

bool delta_usable(const struct delta *delta, uint32_t donor) {
    const struct donor *d = &delta->donors[donor];
    return alive(d) && (!d->shunned || !any_better(delta));
}

bool delta_hopeless(const struct delta *delta) {
    if (delta->missing == 0) return false;
    for (uint32_t i = 0; i < delta->donor_count; i++)
        if (alive(&delta->donors[i])) return false;
    return true;
}

// Bytes that may be on the way from this donor.
static uint64_t window_of(const struct delta *delta, const struct donor *donor) {
    uint64_t window = pace_flow_window(&donor->flow);
    double known = 0;
    uint32_t unknown = 0;
    for (uint32_t i = 0; i < delta->donor_count; i++) {
        if (!delta_usable(delta, i)) continue;
        known += delta->donors[i].flow.speed;
        unknown += delta->donors[i].flow.speed == 0;
    }
    if (unknown > 0 || known == 0) return window;
    uint64_t part = (uint64_t)((double)delta->missing_bytes * (donor->flow.speed / known)) + 1;
    return part < window ? part : window;
}

static bool sent_wrong(const struct delta *delta, uint64_t leaf, uint32_t donor) {
    for (uint32_t i = 0; i < delta->wrong_count; i++)
        if (delta->wrong[i].leaf == leaf && delta->wrong[i].donor == donor) return true;
    return false;
}

// A leaf that a donor sent wrong is asked of it again only when nobody is left who did not.
static bool may_take(const struct delta *delta, uint64_t leaf, uint32_t donor) {
    if (delta->leaves[leaf] != WANTED) return false;
    if (!sent_wrong(delta, leaf, donor)) return true;
    for (uint32_t i = 0; i < delta->donor_count; i++)
        if (delta_usable(delta, i) && !sent_wrong(delta, leaf, i)) return false;
    return true;
}

struct delta_range delta_ask(struct delta *delta, uint32_t index, int64_t now) {
    struct delta_range range = {0};
    struct donor *donor = &delta->donors[index];
    if (!delta_usable(delta, index)) return range;
    while (delta->next < delta->layout->leaf_count && delta->leaves[delta->next] != WANTED) delta->next++;
    uint64_t leaf = delta->next, end = delta->layout->leaf_count;
    while (leaf < end && !may_take(delta, leaf, index)) leaf++;
    if (leaf == end) return range;
    uint64_t window = window_of(delta, donor), bytes = 0;
    // Not for every leaf that comes: a quarter of the window at once.
    if (donor->leaves > 0 && (donor->bytes > window - window / 4 || donor->leaves > DELTA_LEAVES_ON_WAY * 3 / 4))
        return range;
    range.first = leaf;
    while (leaf < end && range.count < DELTA_RUN_LEAVES && donor->leaves < DELTA_LEAVES_ON_WAY &&
           may_take(delta, leaf, index)) {
        uint32_t length = length_of(delta, leaf);
        // A single leaf may always be in flight, however large it is.
        if (donor->leaves > 0 && (donor->bytes + length > window || bytes + length > DELTA_RUN_BYTES)) break;
        delta->leaves[leaf++] = (uint16_t)index;
        donor->leaves++;
        donor->bytes += length;
        bytes += length;
        range.count++;
    }
    if (range.count > 0 && donor->asked_at == 0) {
        donor->asked_at = now;
        donor->asked_leaf = range.first;
    }
    if (range.count > 0) pace_flow_begin(&donor->flow, now);
    return range;
}

static void measure(struct donor *donor, uint64_t leaf, uint32_t length, int64_t now) {
    if (donor->asked_at != 0 && leaf == donor->asked_leaf) {
        pace_flow_delayed(&donor->flow, now - donor->asked_at);
        donor->asked_at = 0;
    }
    pace_flow_came(&donor->flow, length, now);
}

// The leaf is no longer asked of whoever it was asked of.
static void take_back(struct delta *delta, uint64_t leaf, uint32_t length) {
    uint16_t asked = delta->leaves[leaf];
    if (asked == HERE || asked == WANTED) return;
    delta->donors[asked].leaves--;
    delta->donors[asked].bytes -= length;
    delta->leaves[leaf] = WANTED;
    if (leaf < delta->next) delta->next = leaf;
}

void delta_arrived(struct delta *delta, uint64_t leaf, uint32_t donor, int64_t now) {
    uint32_t length = length_of(delta, leaf);
    measure(&delta->donors[donor], leaf, length, now);
    if (delta->leaves[leaf] == HERE) return;
    take_back(delta, leaf, length);
    delta->leaves[leaf] = HERE;
    delta->missing--;
    delta->missing_bytes -= length;
    struct donor *from = &delta->donors[donor];
    if (from->leaves == 0) {
        pace_flow_pause(&from->flow);
        from->asked_at = 0;
    }
}

void delta_wrong(struct delta *delta, uint64_t leaf, uint32_t donor) {
    delta->donors[donor].wrong++;
    if (delta->wrong_count < sizeof delta->wrong / sizeof delta->wrong[0]) {
        delta->wrong[delta->wrong_count].leaf = leaf;
        delta->wrong[delta->wrong_count++].donor = donor;
    }
    if (delta->leaves[leaf] == donor) take_back(delta, leaf, length_of(delta, leaf));
    if (!alive(&delta->donors[donor])) delta_revoke(delta, donor);
}

void delta_revoke(struct delta *delta, uint32_t index) {
    struct donor *donor = &delta->donors[index];
    for (uint64_t leaf = 0; donor->leaves > 0 && leaf < delta->layout->leaf_count; leaf++)
        if (delta->leaves[leaf] == index) take_back(delta, leaf, length_of(delta, leaf));
    pace_flow_pause(&donor->flow);
    donor->asked_at = 0;
}

void delta_lost(struct delta *delta, uint64_t leaf) { take_back(delta, leaf, length_of(delta, leaf)); }

void delta_shun(struct delta *delta, uint32_t donor) {
    delta->donors[donor].shunned = true;
    delta_revoke(delta, donor);
}

void delta_drop(struct delta *delta, uint32_t donor) {
    delta->donors[donor].gone = true;
    delta_revoke(delta, donor);
}
