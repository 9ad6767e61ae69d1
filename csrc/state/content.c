#define _GNU_SOURCE
#include "state/content.h"

#include <stdlib.h>
#include <string.h>

#include "base/detail.h"
#include "base/platform.h"
#include "compute/kernels.h"
#include "device/device.h"

enum {
    UNIT_LEAVES = 16,             // leaves that a thread hashes at once
    UNIT_LEAVES_AT_DEVICE = 8192, // leaves that a device hashes at once, with many threads of its own
    THREADS_DEFAULT = 8,          // threads that hash, at most, unless PCCL_HASH_THREADS says otherwise
    ALONE_BYTES = 8 << 20,        // bytes of a state that one thread hashes alone
};

static struct wire_hash wire_hash_of(struct hash128 hash) {
    return (struct wire_hash){.low = hash.low, .high = hash.high};
}

static uint8_t *put(uint8_t *at, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
    return at + bytes;
}

static bool hash_mask(const pcclSharedState_t *state, struct wire_hash *mask, struct wire_outline *outline) {
    size_t length = 0;
    for (size_t i = 0; i < state->count; i++) length += 4 + strlen(state->infos[i].name) + 1 + 1 + 8;
    uint8_t *bytes = malloc(length), *at = bytes;
    if (bytes == NULL) return false;
    struct delta_outline made = delta_outline_begin(outline, state->count);
    for (size_t i = 0; i < state->count; i++) {
        const pcclTensorInfo_t *info = &state->infos[i];
        const uint8_t *entry = at;
        size_t name = strlen(info->name);
        at = put(at, name, 4);
        memcpy(at, info->name, name);
        at = put(at + name, (uint64_t)info->datatype, 1);
        at = put(at, info->allow_content_inequality, 1);
        at = put(at, info->count, 8);
        delta_outline_add(&made, entry, (size_t)(at - entry));
    }
    *mask = wire_hash_of(hash_xxh3_128(bytes, length));
    free(bytes);
    return true;
}

static pcclResult_t reach(struct content *content, const void *memory, struct device_queue **out) {
    *out = NULL;
    if (device_of(memory) == NULL) return pcclSuccess;
    for (size_t i = 0; i < content->queue_count; i++)
        if (device_is_one(content->reached[i], memory)) *out = content->queues[i];
    if (*out != NULL) return pcclSuccess;
    if (content->queue_count == CONTENT_DEVICES_MOST || !device_open(memory, -1, out))
        return detail_fail(pcclInternalError, "the device of an entry cannot be used");
    content->reached[content->queue_count] = memory;
    content->queues[content->queue_count++] = *out;
    return device_follow(*out, NULL) ? pcclSuccess : pcclInvalidUsage;
}

static pcclResult_t fill(struct content *content, const pcclSharedState_t *state, const bool *read_only) {
    struct delta_layout *layout = &content->layout;
    layout->entries = calloc(state->count + 1, sizeof *layout->entries);
    bool good = layout->entries != NULL && hash_mask(state, &content->mask, &content->outline);
    for (size_t i = 0; good && i < state->count; i++) {
        const pcclTensorInfo_t *info = &state->infos[i];
        if (info->allow_content_inequality) continue;
        struct device_queue *queue;
        RETURN_IF_FAILED(reach(content, info->data, &queue));
        layout->entries[layout->count++] = (struct delta_entry){
            .data = info->data,
            .queue = queue,
            .bytes = info->count * dtype_size((int)info->datatype),
            .info = i,
            .read_only = read_only != NULL && read_only[i],
        };
    }
    if (good) delta_layout_number(layout);
    if (good) content->leaves = calloc(layout->leaf_count + 1, sizeof *content->leaves);
    content->roots = malloc(layout->count * sizeof(struct hash128) + 1);
    if (content->leaves != NULL && content->roots != NULL) return pcclSuccess;
    return detail_fail(pcclInternalError, "the system refused memory for the hashes of %zu entries", state->count);
}

pcclResult_t content_new(const pcclSharedState_t *state, const bool *read_only, struct content **out) {
    struct content *content = calloc(1, sizeof *content);
    if (content == NULL) return detail_fail(pcclInternalError, "the system refused memory for a shared state");
    pcclResult_t code = fill(content, state, read_only);
    if (code == pcclSuccess)
        *out = content;
    else
        content_free(content);
    return code;
}

static void join_helpers(struct content *content) {
    while (content->helper_count > 0) pthread_join(content->helpers[--content->helper_count], NULL);
}

void content_free(struct content *content) {
    if (content == NULL) return;
    atomic_store(&content->next, content->layout.leaf_count); // nothing is left to be begun
    join_helpers(content);
    while (content->queue_count > 0) device_close(content->queues[--content->queue_count]);
    free(content->layout.entries);
    free(content->leaves);
    free(content->roots);
    free(content);
}

// ---- hashing ----
static void hash_unit(struct content *content, uint64_t leaf, uint64_t end) {
    while (leaf < end) {
        const struct delta_entry *entry = &content->layout.entries[delta_layout_find(&content->layout, leaf).entry];
        uint64_t first = leaf - entry->first_leaf, count = entry->leaf_count - first;
        if (count > end - leaf) count = end - leaf;
        if (!device_hash(entry->queue, content->leaves + leaf, entry->data, entry->bytes, first, count)) return;
        leaf += count;
    }
}

// The end of the unit that begins with this leaf.
static uint64_t unit_end(const struct content *content, uint64_t leaf) {
    const struct delta_entry *entry = &content->layout.entries[delta_layout_find(&content->layout, leaf).entry];
    uint64_t left = content->layout.leaf_count - leaf, unit = UNIT_LEAVES;
    if (entry->queue != NULL) {
        unit = entry->first_leaf + entry->leaf_count - leaf;
        if (unit > UNIT_LEAVES_AT_DEVICE) unit = UNIT_LEAVES_AT_DEVICE;
    }
    return leaf + (unit < left ? unit : left);
}

static void hash_units(struct content *content, int64_t deadline) {
    // A thread finishes the unit that it has taken, so no gap is left at the deadline.
    do {
        uint64_t leaf = atomic_load(&content->next), end;
        do {
            if (leaf >= content->layout.leaf_count) return;
            end = unit_end(content, leaf);
        } while (!atomic_compare_exchange_weak(&content->next, &leaf, end));
        hash_unit(content, leaf, end);
    } while (deadline == INT64_MAX || platform_now_ns() < deadline);
}

static void *help(void *content) {
    hash_units(content, INT64_MAX);
    return NULL;
}

unsigned content_thread_limit(void) {
    unsigned limit = platform_cpu_count();
    if (limit > THREADS_DEFAULT) limit = THREADS_DEFAULT;
    const char *value = getenv("PCCL_HASH_THREADS");
    long asked = value == NULL ? 0 : strtol(value, NULL, 10);
    if (asked < 1) return limit;
    return asked < CONTENT_THREADS_MOST ? (unsigned)asked : CONTENT_THREADS_MOST;
}

bool content_hash(struct content *content, int64_t deadline) {
    unsigned limit = content->begun || content->layout.bytes <= ALONE_BYTES ? 1 : content_thread_limit();
    content->begun = true;
    while (content->helper_count + 1 < limit &&
           platform_thread_start(&content->helpers[content->helper_count], "pccl:hash", help, content))
        content->helper_count++;
    hash_units(content, deadline);
    if (atomic_load(&content->next) < content->layout.leaf_count) return false;
    join_helpers(content);
    content->hash = content_root(content, content->leaves);
    return true;
}

void content_set_wake(struct content *content, int wake) {
    for (size_t i = 0; i < content->queue_count; i++) device_set_wake(content->queues[i], wake);
}

struct device_queue *content_failed_device(const struct content *content) {
    for (size_t i = 0; i < content->queue_count; i++)
        if (device_has_failed(content->queues[i])) return content->queues[i];
    return NULL;
}

const char *content_error(const struct content *content) {
    const struct device_queue *failed = content_failed_device(content);
    return failed == NULL ? NULL : device_error(failed);
}

struct wire_hash content_root(struct content *content, const uint64_t *leaves) {
    const struct delta_layout *layout = &content->layout;
    uint8_t *at = content->roots;
    for (size_t i = 0; i < layout->count; i++) {
        struct hash128 root = hash_root(leaves + layout->entries[i].first_leaf, layout->entries[i].leaf_count);
        at = put(put(at, root.low, 8), root.high, 8);
    }
    return wire_hash_of(hash_xxh3_128(content->roots, layout->count * sizeof(struct hash128)));
}

bool content_is_of(const struct content *content, const pcclSharedState_t *state, const bool *read_only) {
    struct wire_hash mask;
    struct wire_outline outline;
    if (!hash_mask(state, &mask, &outline) || !wire_hash_equal(&mask, &content->mask)) return false;
    size_t at = 0;
    for (size_t i = 0; i < state->count; i++) {
        const pcclTensorInfo_t *info = &state->infos[i];
        if (info->allow_content_inequality) continue;
        const struct delta_entry *entry = &content->layout.entries[at++];
        if (entry->data != info->data || entry->read_only != (read_only != NULL && read_only[i])) return false;
    }
    return true;
}

// ---- torn memory ----

struct range {
    uintptr_t begin, end;
};

// Sorted, not empty, not touching each other.
struct range_set {
    struct range *ranges;
    size_t count;
};

static pthread_once_t torn_once = PTHREAD_ONCE_INIT;
// taken before a fork, so that a child finds it free and the set whole
static pthread_mutex_t torn_lock = PTHREAD_MUTEX_INITIALIZER;
static struct range everything = {0, UINTPTR_MAX}; // memory was refused for the set, so all counts as torn
static struct range_set torn;

static void torn_hold(void) { pthread_mutex_lock(&torn_lock); }

static void torn_release(void) { pthread_mutex_unlock(&torn_lock); }

static void watch_forks(void) { pthread_atfork(torn_hold, torn_release, torn_release); }

static void torn_enter(void) {
    pthread_once(&torn_once, watch_forks);
    torn_hold();
}

static int by_begin(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void put_in_order(struct range_set *set) {
    size_t kept = 0;
    qsort(set->ranges, set->count, sizeof *set->ranges, by_begin);
    for (size_t i = 0; i < set->count; i++) {
        struct range range = set->ranges[i], *last = kept > 0 ? &set->ranges[kept - 1] : NULL;
        if (range.begin == range.end) continue;
        if (last == NULL || range.begin > last->end)
            set->ranges[kept++] = range;
        else if (range.end > last->end)
            last->end = range.end;
    }
    set->count = kept;
}

// The entries' memory and, unless it is NULL, what `before` holds. NULL ranges: no memory.
static struct range_set set_of(const struct delta_layout *layout, const struct range_set *before) {
    size_t known = before == NULL ? 0 : before->count;
    struct range_set set = {.ranges = malloc((known + layout->count + 1) * sizeof *set.ranges),
                            .count = known + layout->count};
    if (set.ranges == NULL) return set;
    if (known > 0) memcpy(set.ranges, before->ranges, known * sizeof *set.ranges);
    for (size_t i = 0; i < layout->count; i++) {
        uintptr_t begin = (uintptr_t)layout->entries[i].data;
        set.ranges[known + i] = (struct range){begin, begin + layout->entries[i].bytes};
    }
    put_in_order(&set);
    return set;
}

static void replace_torn(struct range_set set) {
    if (torn.ranges != &everything) free(torn.ranges);
    torn = set;
}

void content_mark_torn(const struct delta_layout *layout) {
    torn_enter();
    struct range_set sum = set_of(layout, &torn);
    replace_torn(sum.ranges != NULL ? sum : (struct range_set){&everything, 1});
    torn_release();
}

// Writes `from` without `gone` to `out`, which has room for the ranges of both.
static void subtract(const struct range_set *from, const struct range_set *gone, struct range_set *out) {
    size_t g = 0;
    out->count = 0;
    for (size_t i = 0; i < from->count; i++) {
        struct range rest = from->ranges[i];
        while (g < gone->count && gone->ranges[g].end <= rest.begin) g++;
        for (size_t k = g; k < gone->count && gone->ranges[k].begin < rest.end; k++) {
            if (gone->ranges[k].begin > rest.begin)
                out->ranges[out->count++] = (struct range){rest.begin, gone->ranges[k].begin};
            rest.begin = gone->ranges[k].end < rest.end ? gone->ranges[k].end : rest.end;
        }
        if (rest.begin < rest.end) out->ranges[out->count++] = rest;
    }
}

void content_clear_torn(const struct delta_layout *layout) {
    torn_enter();
    if (torn.count > 0) {
        struct range_set gone = set_of(layout, NULL);
        struct range_set rest = {.ranges = malloc((torn.count + gone.count) * sizeof *rest.ranges)};
        if (gone.ranges != NULL && rest.ranges != NULL) {
            subtract(&torn, &gone, &rest);
            replace_torn(rest);
            rest.ranges = NULL;
        }
        free(gone.ranges);
        free(rest.ranges);
    }
    torn_release();
}

static bool holds(const struct range_set *set, uintptr_t begin, uintptr_t end) {
    size_t low = 0, high = set->count; // the first range that ends behind `begin`
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->ranges[middle].end > begin)
            high = middle;
        else
            low = middle + 1;
    }
    return low < set->count && set->ranges[low].begin < end;
}

bool content_is_torn(const struct delta_layout *layout) {
    torn_enter();
    bool found = false;
    for (size_t i = 0; i < layout->count && !found && torn.count > 0; i++) {
        uintptr_t begin = (uintptr_t)layout->entries[i].data;
        found = layout->entries[i].bytes > 0 && holds(&torn, begin, begin + layout->entries[i].bytes);
    }
    torn_release();
    return found;
}
