#include "topology/usual.h"

#include <stdlib.h>

static int by_bytes(const void *a, const void *b) {
    const struct usual *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : x->edge < y->edge ? -1 : x->edge > y->edge;
}

// `sorted` has room for one more than `count`.
static void insert(double *sorted, size_t count, double value) {
    while (count > 0 && sorted[count - 1] > value) {
        sorted[count] = sorted[count - 1];
        count--;
    }
    sorted[count] = value;
}

void usual_speeds(struct usual *edges, size_t count, double *out) {
    double *sorted = calloc(count + 1, sizeof *sorted);
    size_t compared = 0;
    if (count > 0) qsort(edges, count, sizeof *edges, by_bytes);
    for (size_t i = 0; i < count; i++) {
        for (; compared < count && edges[compared].bytes >= edges[i].bytes / 2 && sorted != NULL; compared++)
            insert(sorted, compared, edges[compared].speed);
        out[edges[i].edge] = compared > 1 ? sorted[compared / 2] : 0;
    }
    free(sorted);
}
