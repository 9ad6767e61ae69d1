// Signals, inputs, first chunks and verdicts that come before the op that they are for is posted here.
//
// What the signals, inputs and chunks hold is bounded by the sender: it counts the inputs and chunks that it has sent
// and the receiver has not shown to have posted (data/algorithms/direct, data/algorithms/ring). What lies here was sent
// and is not posted, so it is part of that count, and a member that keeps to the bound is never found above it. Beyond
// it a frame is a violation, and its link is closed. No link ever waits for room: READY, ACK and heartbeats behind an
// early input are heard, and ops posted in different orders cannot wait for each other.
#include "ops/call_table_private.h"

#include <stdlib.h>
#include <string.h>

// ---- signals, inputs and chunks ----
uint64_t unexpected_limit(uint32_t members) {
    uint64_t part = UNEXPECTED_ALL_BYTES / (members - 1);
    return part < UNEXPECTED_BYTES ? part : UNEXPECTED_BYTES;
}

static void uncount(const struct unexpected *unexpected) {
    unexpected->from->unexpected_count--;
    unexpected->from->unexpected_bytes -= unexpected->bytes;
}

enum unexpected_result unexpected_add(struct unexpected_table *table, const struct unexpected *what, uint32_t members) {
    struct op_member *from = what->from;
    if (from->unexpected_count >= UNEXPECTED_MAX || from->unexpected_bytes + what->bytes > unexpected_limit(members))
        return UNEXPECTED_TOO_MANY;
    struct unexpected *unexpected = malloc(sizeof *unexpected), **slot = &table->slots[tag_slot(what->head.op.tag)];
    if (unexpected == NULL) return UNEXPECTED_NO_MEMORY;
    *unexpected = *what;
    unexpected->next = *slot;
    *slot = unexpected;
    from->unexpected_count++;
    from->unexpected_bytes += what->bytes;
    return UNEXPECTED_OK;
}

static bool same_op(const struct wire_op *a, const struct wire_op *b) {
    return a->tag == b->tag && a->sequence == b->sequence && a->segment == b->segment;
}

struct unexpected *unexpected_take(struct unexpected_table *table, const struct op_member *from,
                                   const struct wire_op *op, uint16_t type) {
    for (struct unexpected **at = &table->slots[tag_slot(op->tag)]; *at != NULL; at = &(*at)->next) {
        struct unexpected *unexpected = *at;
        if (unexpected->from != from || unexpected->type != type || !same_op(&unexpected->head.op, op)) continue;
        *at = unexpected->next;
        uncount(unexpected);
        return unexpected;
    }
    return NULL;
}

const struct unexpected *unexpected_differing(const struct unexpected *at, const struct wire_op *op) {
    while (at != NULL &&
           (!same_op(&at->head.op, op) || wire_fingerprint_equal(&at->head.op.fingerprint, &op->fingerprint)))
        at = at->next;
    return at;
}

bool unexpected_has(const struct unexpected_table *table, uint64_t tag, const struct wire_id *from) {
    const struct unexpected *at = table->slots[tag_slot(tag)];
    while (at != NULL && (at->head.op.tag != tag || !wire_id_equal(&at->from->id, from))) at = at->next;
    return at != NULL;
}

void unexpected_clear(struct unexpected_table *table, const struct op_driver *driver) {
    for (size_t i = 0; i < TAG_SLOTS; i++)
        while (table->slots[i] != NULL) {
            struct unexpected *unexpected = table->slots[i];
            table->slots[i] = unexpected->next;
            uncount(unexpected);
            if (unexpected->block != NULL) driver->put(driver->context, unexpected->block);
            free(unexpected);
        }
}

// ---- verdicts of a mismatch on calls that were not made here yet, in the order in which the others ended them ----
struct unexpected_verdict {
    struct unexpected_verdict *next;
    uint64_t tag, epoch; // of the op's name
    uint32_t subgroup;
    uint16_t other;
    uint8_t kind;
    char text[WIRE_MAX_TEXT + 1];
};

static void remove_at(struct unexpected_verdicts *verdicts, struct unexpected_verdict **at) {
    struct unexpected_verdict *verdict = *at;
    *at = verdict->next;
    verdicts->count--;
    free(verdict);
}

bool unexpected_verdict_add(struct unexpected_verdicts *verdicts, const struct wire_verdict *what,
                            const char text[WIRE_MAX_TEXT + 1]) {
    if (what->name.epoch < verdicts->since) return true;
    struct unexpected_verdict *verdict = calloc(1, sizeof *verdict), **last = &verdicts->first;
    if (verdict == NULL) return false;
    if (verdicts->count == WIRE_MAX_LIVE_OPS) remove_at(verdicts, &verdicts->first);
    verdict->tag = what->name.tag;
    verdict->epoch = what->name.epoch;
    verdict->subgroup = what->name.subgroup;
    verdict->other = what->other;
    verdict->kind = what->kind;
    memcpy(verdict->text, text, sizeof verdict->text);
    while (*last != NULL) last = &(*last)->next;
    *last = verdict;
    verdicts->count++;
    return true;
}

bool unexpected_verdict_concerns(uint32_t own, uint32_t subgroup, uint16_t other) {
    return subgroup_mark(own) == subgroup_mark(subgroup) || subgroup_mark(own) == other;
}

bool unexpected_verdict_take(struct unexpected_verdicts *verdicts, uint64_t tag, uint32_t subgroup, uint64_t loss,
                             char text[WIRE_MAX_TEXT + 1], enum call_result *result) {
    for (struct unexpected_verdict **at = &verdicts->first; *at != NULL; at = &(*at)->next) {
        const struct unexpected_verdict *verdict = *at;
        if (verdict->tag != tag || !unexpected_verdict_concerns(subgroup, verdict->subgroup, verdict->other)) continue;
        if (loss != 0 && loss <= verdict->epoch) continue;
        memcpy(text, verdict->text, sizeof verdict->text);
        *result = verdict->kind == WIRE_VERDICT_CANCEL ? CALL_CANCELLED : CALL_MISMATCH;
        remove_at(verdicts, at);
        return true;
    }
    return false;
}

void unexpected_verdicts_voted(struct unexpected_verdicts *verdicts, uint64_t group_epoch) {
    verdicts->since = group_epoch;
    for (struct unexpected_verdict **at = &verdicts->first; *at != NULL;)
        if ((*at)->epoch < group_epoch)
            remove_at(verdicts, at);
        else
            at = &(*at)->next;
}

void unexpected_verdicts_clear(struct unexpected_verdicts *verdicts) {
    while (verdicts->first != NULL) remove_at(verdicts, &verdicts->first);
}
