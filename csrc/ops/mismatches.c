#include "ops/mismatches.h"

#include <stdlib.h>
#include <string.h>

#include "ops/members.h"

struct mismatch_verdict {
    struct mismatch_verdict *next;
    uint64_t tag, epoch; // of the op's name
    uint32_t subgroup;
    uint16_t other;
    uint8_t kind;
    char text[WIRE_MAX_TEXT + 1];
};

static void remove_at(struct mismatches *mismatches, struct mismatch_verdict **at) {
    struct mismatch_verdict *verdict = *at;
    *at = verdict->next;
    mismatches->count--;
    free(verdict);
}

bool mismatches_add(struct mismatches *mismatches, const struct wire_verdict *what,
                    const char text[WIRE_MAX_TEXT + 1]) {
    if (what->name.epoch < mismatches->since) return true;
    struct mismatch_verdict *verdict = calloc(1, sizeof *verdict), **last = &mismatches->first;
    if (verdict == NULL) return false;
    if (mismatches->count == WIRE_MAX_LIVE_OPS) remove_at(mismatches, &mismatches->first);
    verdict->tag = what->name.tag;
    verdict->epoch = what->name.epoch;
    verdict->subgroup = what->name.subgroup;
    verdict->other = what->other;
    verdict->kind = what->kind;
    memcpy(verdict->text, text, sizeof verdict->text);
    while (*last != NULL) last = &(*last)->next;
    *last = verdict;
    mismatches->count++;
    return true;
}

bool mismatch_concerns(uint32_t own, uint32_t subgroup, uint16_t other) {
    return subgroup_mark(own) == subgroup_mark(subgroup) || subgroup_mark(own) == other;
}

bool mismatches_take(struct mismatches *mismatches, uint64_t tag, uint32_t subgroup, uint64_t loss,
                     char text[WIRE_MAX_TEXT + 1], enum call_result *result) {
    for (struct mismatch_verdict **at = &mismatches->first; *at != NULL; at = &(*at)->next) {
        const struct mismatch_verdict *verdict = *at;
        if (verdict->tag != tag || !mismatch_concerns(subgroup, verdict->subgroup, verdict->other)) continue;
        if (loss != 0 && loss <= verdict->epoch) continue;
        memcpy(text, verdict->text, sizeof verdict->text);
        *result = verdict->kind == WIRE_VERDICT_CANCEL ? CALL_CANCELLED : CALL_MISMATCH;
        remove_at(mismatches, at);
        return true;
    }
    return false;
}

void mismatches_voted(struct mismatches *mismatches, uint64_t group_epoch) {
    mismatches->since = group_epoch;
    for (struct mismatch_verdict **at = &mismatches->first; *at != NULL;)
        if ((*at)->epoch < group_epoch)
            remove_at(mismatches, at);
        else
            at = &(*at)->next;
}

void mismatches_clear(struct mismatches *mismatches) {
    while (mismatches->first != NULL) remove_at(mismatches, &mismatches->first);
}
