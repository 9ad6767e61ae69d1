#include "state/unfinished.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct range {
    uintptr_t begin, end;
};

// Sorted, not empty, not touching each other.
struct set {
    struct range *ranges;
    size_t count;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
// taken before a fork, so that a child finds it free and the set whole
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct set unfinished;
static bool all; // memory was refused for the set: everything counts as unfinished

static void hold(void) { pthread_mutex_lock(&lock); }

static void release(void) { pthread_mutex_unlock(&lock); }

static void watch_forks(void) { pthread_atfork(hold, release, release); }

static void enter(void) {
    pthread_once(&once, watch_forks);
    hold();
}

static int by_begin(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void put_in_order(struct set *set) {
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
static struct set set_of(const struct delta_layout *layout, const struct set *before) {
    size_t known = before == NULL ? 0 : before->count;
    struct set set = {.ranges = malloc((known + layout->count + 1) * sizeof *set.ranges),
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

void unfinished_add(const struct delta_layout *layout) {
    enter();
    struct set sum = set_of(layout, &unfinished);
    if (sum.ranges == NULL) {
        all = true;
    } else {
        free(unfinished.ranges);
        unfinished = sum;
    }
    release();
}

// Writes `from` without `gone` to `out`, which has room for the ranges of both.
static void subtract(const struct set *from, const struct set *gone, struct set *out) {
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

void unfinished_remove(const struct delta_layout *layout) {
    enter();
    if (unfinished.count > 0) {
        struct set gone = set_of(layout, NULL);
        struct set rest = {.ranges = malloc((unfinished.count + gone.count) * sizeof *rest.ranges)};
        if (gone.ranges != NULL && rest.ranges != NULL) {
            subtract(&unfinished, &gone, &rest);
            free(unfinished.ranges);
            unfinished = rest;
            rest.ranges = NULL;
        }
        free(gone.ranges);
        free(rest.ranges);
    }
    all = false;
    release();
}

static bool holds(const struct set *set, uintptr_t begin, uintptr_t end) {
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

bool unfinished_has(const struct delta_layout *layout) {
    enter();
    bool has = all;
    for (size_t i = 0; i < layout->count && !has && unfinished.count > 0; i++) {
        uintptr_t begin = (uintptr_t)layout->entries[i].data;
        has = layout->entries[i].bytes > 0 && holds(&unfinished, begin, begin + layout->entries[i].bytes);
    }
    release();
    return has;
}
