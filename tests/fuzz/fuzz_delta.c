// The plan of a transfer of shared state (state/delta) with any layout, any differences and donors that do as they
// like: what is asked is wanted and asked of nobody else, the counts are true, and the transfer ends when everything
// has come.
#include "state/delta.h"

#include "compute/hash.h"
#include "fuzz.h"

enum { ENTRIES_MAX = 6, DONORS_MAX = 5, LEAVES_MAX = 4096 };

enum { ASK, ARRIVED, ARRIVED_ALL, WRONG, REVOKE, SHUN, DROP, WAIT, OPS };

static struct delta_entry entries[ENTRIES_MAX];
static struct delta_layout layout;
static uint64_t mine[LEAVES_MAX], theirs[LEAVES_MAX];
static int asked[LEAVES_MAX]; // of which donor, or -1
static bool here[LEAVES_MAX];
static bool dropped[DONORS_MAX];
static uint32_t wrongs[DONORS_MAX];
static uint32_t donor_count;

static void make_layout(struct fuzz *in) {
    layout = (struct delta_layout){.entries = entries, .count = 1 + fuzz_below(in, ENTRIES_MAX)};
    for (size_t i = 0; i < layout.count; i++) {
        uint64_t leaves = fuzz_u8(in), more = fuzz_u8(in);
        entries[i] = (struct delta_entry){
            .bytes = (leaves < 200 ? leaves % 8 : leaves) /* a few, or many */ * HASH_LEAF_BYTES + more};
    }
    delta_layout_number(&layout);
    MUST(layout.leaf_count <= LEAVES_MAX);
    uint64_t bytes = 0;
    for (uint64_t leaf = 0; leaf < layout.leaf_count; leaf++) {
        struct delta_piece piece = delta_layout_find(&layout, leaf);
        MUST(piece.length > 0 && piece.offset + piece.length <= entries[piece.entry].bytes);
        bytes += piece.length;
    }
    MUST(bytes == layout.bytes);
}

static void check(const struct delta *delta) {
    uint64_t missing = 0, bytes = 0, on_way[DONORS_MAX] = {0};
    bool any = false;
    for (uint64_t leaf = 0; leaf < layout.leaf_count; leaf++) {
        MUST(delta_wants(delta, leaf) == !here[leaf]);
        if (here[leaf]) continue;
        missing++;
        bytes += delta_layout_find(&layout, leaf).length;
        if (asked[leaf] >= 0) on_way[asked[leaf]]++;
    }
    MUST(delta_missing(delta) == missing && delta_missing_bytes(delta) == bytes);
    for (uint32_t i = 0; i < donor_count; i++) {
        MUST(delta_on_way(delta, i) == on_way[i] && on_way[i] <= DELTA_LEAVES_ON_WAY);
        if (dropped[i] || wrongs[i] >= DELTA_WRONG_LEAVES) MUST(!delta_usable(delta, i) && on_way[i] == 0);
        any |= delta_usable(delta, i);
    }
    MUST(delta_hopeless(delta) == (missing > 0 && !any));
}

static void revoke(uint32_t donor) {
    for (uint64_t leaf = 0; leaf < layout.leaf_count; leaf++)
        if (asked[leaf] == (int)donor) asked[leaf] = -1;
}

static void ask(struct delta *delta, uint32_t donor, int64_t now) {
    bool usable = delta_usable(delta, donor);
    struct delta_range range = delta_ask(delta, donor, now);
    MUST(range.count <= DELTA_RUN_LEAVES && (usable || range.count == 0));
    uint64_t bytes = 0;
    for (uint64_t leaf = range.first; leaf < range.first + range.count; leaf++) {
        MUST(leaf < layout.leaf_count && !here[leaf] && asked[leaf] < 0);
        asked[leaf] = (int)donor;
        bytes += delta_layout_find(&layout, leaf).length;
    }
    MUST(range.count <= 1 || bytes <= DELTA_RUN_BYTES);
}

static void arrive(struct delta *delta, uint64_t leaf, uint32_t donor, int64_t now) {
    delta_arrived(delta, leaf, donor, now);
    here[leaf] = true;
    asked[leaf] = -1;
}

static void arrive_all(struct delta *delta, uint32_t donor, int64_t now) {
    for (uint64_t leaf = 0; leaf < layout.leaf_count; leaf++)
        if (asked[leaf] == (int)donor) arrive(delta, leaf, donor, now);
}

static void step(struct delta *delta, struct fuzz *in, int64_t *now) {
    uint32_t op = fuzz_below(in, OPS), donor = fuzz_below(in, donor_count);
    uint64_t leaf = layout.leaf_count == 0 ? 0 : fuzz_number(in) % layout.leaf_count;
    if (layout.leaf_count == 0 && (op == ARRIVED || op == WRONG)) return;
    switch (op) {
    case ASK: ask(delta, donor, *now); return;
    case ARRIVED: arrive(delta, leaf, donor, *now); return;
    case ARRIVED_ALL: arrive_all(delta, donor, *now); return;
    case WRONG:
        // nothing that is here is received again; a donor that is gone sends nothing
        if (here[leaf] || dropped[donor]) return;
        delta_wrong(delta, leaf, donor);
        if (asked[leaf] == (int)donor) asked[leaf] = -1;
        if (++wrongs[donor] >= DELTA_WRONG_LEAVES) revoke(donor);
        return;
    case REVOKE:
        delta_revoke(delta, donor);
        revoke(donor);
        return;
    case SHUN:
        delta_shun(delta, donor);
        revoke(donor);
        return;
    case DROP:
        delta_drop(delta, donor);
        dropped[donor] = true;
        revoke(donor);
        return;
    default: *now += (int64_t)fuzz_number(in) % 1000000000 * 1000; return;
    }
}

// From here on everybody who is left does what it is asked.
static void end(struct delta *delta, int64_t now) {
    for (uint64_t turn = 0; delta_missing(delta) > 0 && !delta_hopeless(delta); turn++) {
        MUST(turn <= 2 * LEAVES_MAX);
        for (uint32_t donor = 0; donor < donor_count; donor++) {
            ask(delta, donor, now);
            now += 1000000;
            arrive_all(delta, donor, now);
        }
    }
    check(delta);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz in = {data, data + size};
    int64_t now = 1;
    make_layout(&in);
    donor_count = 1 + fuzz_below(&in, DONORS_MAX);
    memset(dropped, 0, sizeof dropped);
    memset(wrongs, 0, sizeof wrongs);
    struct delta *delta = delta_new(&layout, donor_count);
    MUST(delta != NULL);
    uint8_t pattern = fuzz_u8(&in);
    for (uint64_t leaf = 0; leaf < layout.leaf_count; leaf++) {
        mine[leaf] = 0;
        theirs[leaf] = pattern >> (leaf % 8) & 1;
        here[leaf] = theirs[leaf] == 0;
        asked[leaf] = -1;
    }
    delta_compare(delta, mine, theirs);
    check(delta);
    while (fuzz_more(&in)) {
        step(delta, &in, &now);
        check(delta);
    }
    end(delta, now);
    delta_free(delta);
    return 0;
}
