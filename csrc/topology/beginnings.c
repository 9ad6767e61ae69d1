// First along the pairs from one member to the next, then each becomes the mean of what its pairs say, so that the
// errors on the way round a ring are shared by all.
#include "topology/beginnings.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 30 }; // of smoothing

static uint16_t place_along(const struct beginnings_pair *pairs, size_t count, bool *placed, double *out) {
    uint16_t known = 1;
    placed[0] = true;
    for (bool grows = true; grows;) {
        grows = false;
        for (size_t i = 0; i < count; i++) {
            const struct beginnings_pair *pair = &pairs[i];
            if (placed[pair->from] == placed[pair->to]) continue;
            if (placed[pair->from])
                out[pair->to] = out[pair->from] + pair->later;
            else
                out[pair->from] = out[pair->to] - pair->later;
            placed[pair->from] = placed[pair->to] = grows = true;
            known++;
        }
    }
    return known;
}

static void smooth(const struct beginnings_pair *pairs, size_t count, uint16_t members, double *sum, double *weight,
                   double *out) {
    memset(sum, 0, members * sizeof *sum);
    memset(weight, 0, members * sizeof *weight);
    for (size_t i = 0; i < count; i++) {
        sum[pairs[i].to] += out[pairs[i].from] + pairs[i].later;
        sum[pairs[i].from] += out[pairs[i].to] - pairs[i].later;
        weight[pairs[i].to]++;
        weight[pairs[i].from]++;
    }
    // Half of the way, or a ring of an even number would swing.
    for (uint16_t i = 0; i < members; i++)
        if (weight[i] > 0) out[i] = (out[i] + sum[i] / weight[i]) / 2;
}

bool beginnings_place(const struct beginnings_pair *pairs, size_t count, uint16_t members, double *out) {
    bool *placed = calloc(members, sizeof *placed), known = false;
    double *sum = calloc(members, sizeof *sum), *weight = calloc(members, sizeof *weight), least = 0;
    memset(out, 0, members * sizeof *out);
    if (placed != NULL && sum != NULL && weight != NULL) known = place_along(pairs, count, placed, out) == members;
    for (int round = 0; round < ROUNDS && known && members > 2; round++)
        smooth(pairs, count, members, sum, weight, out);
    for (uint16_t i = 0; i < members; i++) least = i == 0 || out[i] < least ? out[i] : least;
    for (uint16_t i = 0; i < members; i++) out[i] = known ? out[i] - least : 0;
    free(placed);
    free(sum);
    free(weight);
    return known;
}
