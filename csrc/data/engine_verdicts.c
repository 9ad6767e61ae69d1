// How ops end or begin again by what the master says, and what the master is told of them: that they are done, or that
// members disagree.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "data/engine.h"
#include "data/op.h"

enum { POISONS_MAX = WIRE_MAX_LIVE_OPS };

void engine_complete(struct engine *engine, struct op *op) {
    struct wire_op_name name = op->name;
    op_list_remove(&engine->running, op);
    pthread_mutex_lock(&engine->lock);
    bool done = op->phase == OP_RUNNING && !op->accused;
    if (done) op->phase = OP_COMPLETE;
    pthread_mutex_unlock(&engine->lock);
    if (done) engine->callbacks.done(engine->callbacks.context, &name);
}

void engine_accuse(struct engine *engine, struct op *op, const struct peer *other,
                   const struct wire_fingerprint *theirs) {
    struct accusation *accusation = op->accused ? NULL : malloc(sizeof *accusation);
    if (!op->accused && accusation == NULL) engine_fail(engine);
    op->accused = true;
    if (accusation == NULL) return;
    accusation->mismatch = (struct wire_mismatch){op->name, op->reduce.fingerprint, other->id, *theirs};
    accusation->next = engine->accusations;
    engine->accusations = accusation;
    engine_wake(engine);
}

// ---- mismatches ----
bool poison_take(struct engine *engine, struct op *op, uint64_t loss) {
    for (struct poison **at = &engine->poisons; *at != NULL; at = &(*at)->next) {
        struct poison *poison = *at;
        if (poison->tag != op->reduce.tag || (loss != 0 && loss <= poison->epoch)) continue;
        *at = poison->next;
        engine->poison_count--;
        memcpy(op->outcome.text, poison->text, sizeof op->outcome.text);
        free(poison);
        return true;
    }
    return false;
}

void engine_forget(struct engine *engine, struct op *op) {
    if (op->phase == OP_WAITING) op_list_remove(&engine->waiting, op);
}

// Ends an op that was found to differ: now, or when the epoch that follows freezes it.
static void end_mismatched(struct engine *engine, struct op *op) {
    bool waiting = op->phase == OP_WAITING;
    engine_forget(engine, op);
    if (waiting || op->frozen)
        op_end(engine, op, ENGINE_MISMATCH);
    else
        op->mismatched = true;
}

static void end_call_mismatched(struct engine *engine, struct op *op) {
    if (op->segments != NULL)
        segments_for_each(engine, op, end_mismatched);
    else
        end_mismatched(engine, op);
}

// Whether a verdict of a mismatch means this op, or one that it would be once it is begun.
static bool is_meant(const struct engine *engine, const struct op *op, const struct wire_op_name *name) {
    if (op->segments != NULL) return segments_are_meant(op, name);
    if (op->phase == OP_WAITING) {
        // It is the call that was mismatched, unless the others have lost that one before and made it again.
        uint64_t loss = op->reduce.retry ? 0 : engine_first_loss(engine, op->adopted);
        return loss == 0 || loss > name->epoch;
    }
    bool begun = op->phase == OP_QUEUED || op->phase == OP_RUNNING || op->phase == OP_COMPLETE;
    return begun && op->name.epoch == name->epoch && op->name.sequence == name->sequence;
}

// The verdict comes before the epoch that freezes the op. A member that has not begun this op yet must hear of it
// before that epoch too: what it begins afterwards would meet what the others launch next under this tag.
static void mismatch(struct engine *engine, const struct wire_verdict *verdict) {
    char text[WIRE_MAX_TEXT + 1] = {0};
    memcpy(text, verdict->text.chars, verdict->text.length <= WIRE_MAX_TEXT ? verdict->text.length : WIRE_MAX_TEXT);
    struct op *op = op_find(engine, verdict->name.tag);
    if (op != NULL && is_meant(engine, op, &verdict->name)) {
        memcpy(op->outcome.text, text, sizeof text);
        end_call_mismatched(engine, op);
        return;
    }
    if (engine->poison_count >= POISONS_MAX) return;
    struct poison *poison = calloc(1, sizeof *poison);
    if (poison == NULL) {
        engine_fail(engine);
        return;
    }
    poison->tag = verdict->name.tag;
    poison->epoch = verdict->name.epoch;
    memcpy(poison->text, text, sizeof text);
    struct poison **last = &engine->poisons; // in the order in which the others ended their calls
    while (*last != NULL) last = &(*last)->next;
    *last = poison;
    engine->poison_count++;
}

// ---- verdicts ----
static void redo(struct engine *engine, struct op *op) {
    // The others have begun this call in a later epoch only, under the name that was found to be mismatched.
    struct op *call = op->whole != NULL ? op->whole : op;
    if (poison_take(engine, call, 0)) {
        end_call_mismatched(engine, call);
        return;
    }
    op->frozen = false;
    op->restart = true;
    engine_begin(engine, op);
}

void engine_verdict(struct engine *engine, const struct wire_verdict *verdict) {
    static const struct wire_id nobody;
    pthread_mutex_lock(&engine->lock);
    struct op *op = op_find_named(engine, &verdict->name), *seen;
    switch (verdict->kind) {
    case WIRE_VERDICT_COMMIT:
        if (!wire_id_equal(&verdict->supplier, &nobody))
            small_supply(engine, verdict);
        else if (op != NULL && op->phase == OP_COMPLETE)
            op_end(engine, op, ENGINE_OK);
        break;
    case WIRE_VERDICT_ABORT:
        if (op == NULL || !op->frozen) break;
        if (op->reduce.retry)
            redo(engine, op);
        else if (poison_take(engine, op, engine_first_loss(engine, op->adopted)))
            // as for those that had begun this call under a later name, before the loss
            op_end(engine, op, ENGINE_MISMATCH);
        else
            engine_end_lost(engine, op);
        break;
    case WIRE_VERDICT_REDO:
        if (op != NULL && op->frozen) redo(engine, op);
        break;
    case WIRE_VERDICT_MISMATCH: mismatch(engine, verdict); break;
    case WIRE_VERDICT_WHOLE:
        seen = op_find(engine, verdict->name.tag);
        if (seen != NULL && seen->segments != NULL) segments_turn_whole(seen, &verdict->name);
        break;
    default: break;
    }
    pthread_mutex_unlock(&engine->lock);
}
