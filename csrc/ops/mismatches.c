#include "ops/mismatches.h"

#include <stdlib.h>
#include <string.h>

struct mismatch_verdict {
    struct mismatch_verdict *next;
    uint64_t tag, epoch; // of the op's name
    char text[WIRE_MAX_TEXT + 1];
};

bool mismatches_add(struct mismatches *mismatches, const struct wire_op_name *name,
                    const char text[WIRE_MAX_TEXT + 1]) {
    if (mismatches->count >= WIRE_MAX_LIVE_OPS) return true;
    struct mismatch_verdict *verdict = calloc(1, sizeof *verdict), **last = &mismatches->first;
    if (verdict == NULL) return false;
    verdict->tag = name->tag;
    verdict->epoch = name->epoch;
    memcpy(verdict->text, text, sizeof verdict->text);
    while (*last != NULL) last = &(*last)->next;
    *last = verdict;
    mismatches->count++;
    return true;
}

bool mismatches_take(struct mismatches *mismatches, uint64_t tag, uint64_t loss, char text[WIRE_MAX_TEXT + 1]) {
    for (struct mismatch_verdict **at = &mismatches->first; *at != NULL; at = &(*at)->next) {
        struct mismatch_verdict *verdict = *at;
        if (verdict->tag != tag || (loss != 0 && loss <= verdict->epoch)) continue;
        *at = verdict->next;
        mismatches->count--;
        memcpy(text, verdict->text, sizeof verdict->text);
        free(verdict);
        return true;
    }
    return false;
}

void mismatches_clear(struct mismatches *mismatches) {
    char text[WIRE_MAX_TEXT + 1];
    while (mismatches->first != NULL) mismatches_take(mismatches, mismatches->first->tag, 0, text);
}
