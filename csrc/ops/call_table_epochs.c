// The effects of epochs and verdicts on ops.
#include <stdlib.h>
#include <string.h>

#include "ops/call_table_private.h"

void call_table_note_loss(struct call_table *table, uint64_t epoch) {
    if (table->loss_count == CALL_TABLE_LOSSES_MAX)
        memmove(table->losses, table->losses + 1, --table->loss_count * sizeof table->losses[0]);
    table->losses[table->loss_count++] = epoch;
}

// ---- mismatches ----
static enum call_result ending_of(const struct op *op) { return op->parent == NULL ? op->ending : op->parent->ending; }

// Ends an op that was found to differ: now, or when the epoch that follows freezes it.
static void end_mismatched(struct call_table *table, struct op *op) {
    bool waiting = op->phase == OP_WAITING;
    if (waiting) op_queue_remove(&table->waiting, op);
    if (waiting || op->frozen)
        call_table_end(table, op, ending_of(op));
    else
        op->mismatched = true;
}

static void end_call_mismatched(struct call_table *table, struct op *call) {
    if (call->segments == NULL) end_mismatched(table, call);
    for (int i = 0; call->segments != NULL && i < PLAN_SEGMENTS_AHEAD; i++) {
        struct op *op = call->segments->ops[i];
        if (op != NULL && op->phase != OP_ENDED) end_mismatched(table, op);
    }
}

// Returns whether the call ends with the epoch that follows, whatever verdicts of later epochs say: those are about the
// next call of its tag, which other members have begun.
static bool is_ending(const struct op *call) {
    const struct op *part = call;
    while (part != NULL && !part->mismatched && !part->cancelled) part = segments_part((struct op *)call, part);
    return part != NULL;
}

// Whether the members of an epoch decide if the op goes on: those of its subgroup, or its root.
static bool needs_some(const struct op *op) { return op->args.subgroup != NULL || op->args.everyone; }

// Returns whether a verdict of a mismatch means this op, or one that it would be once it is begun.
static bool is_meant(const struct call_table *table, const struct op *op, const struct wire_verdict *verdict) {
    const struct wire_op_name *name = &verdict->name;
    if (!call_table_verdict_concerns(op_subgroup_hash(op), name->subgroup, verdict->other)) return false;
    // The op has not begun, and the verdict is of a future epoch: decide on entry, since the call may be lost by then.
    if (needs_some(op) && !op_has_begun(op) && name->epoch > table->now->group_epoch) return false;
    if (op->segments != NULL)
        return segments_are_meant(op, name) && (op->segments->epoch == name->epoch || !is_ending(op));
    if (op->phase == OP_WAITING) {
        // The verdict is of this call, unless the others have lost that call before and repeated it.
        uint64_t loss = call_table_counted_loss(table, op);
        return loss == 0 || loss > name->epoch;
    }
    return op_has_begun(op) && op->name.epoch == name->epoch && op->name.sequence == name->sequence;
}

// The verdict comes before the epoch that freezes the op. A member that has not begun this op yet must hear of it
// before that epoch too: what it begins afterwards would meet what the others launch next under this tag.
static void mark_cancelled(struct call_table *table, struct op *op) {
    if (op->phase == OP_WAITING) {
        op_queue_remove(&table->waiting, op);
        call_table_end(table, op, ending_of(op));
    } else if (op_has_begun(op)) {
        op->cancelled = true;
    }
}

// A segment that is not begun here is complete nowhere, so no further one begins.
static void cancel_call(struct call_table *table, struct op *call) {
    struct segments *s = call->segments;
    if (s == NULL) {
        mark_cancelled(table, call);
        return;
    }
    s->fall_back = false;
    if (s->next < s->count && s->failure == CALL_OK) s->failure = call->ending;
    for (int i = 0; call->phase != OP_ENDED && i < PLAN_SEGMENTS_AHEAD; i++)
        if (s->ops[i] != NULL) mark_cancelled(table, s->ops[i]);
}

// An op of the epoch in force that has ended here has ended everywhere, or will: its cancellation came too late.
static bool came_too_late(const struct call_table *table, const struct wire_verdict *verdict) {
    const struct wire_op_name *name = &verdict->name;
    struct wire_op op = {.tag = name->tag, .sequence = name->sequence, .segment = name->segment};
    return verdict->kind == WIRE_VERDICT_CANCEL && name->epoch == table->now->group_epoch &&
           call_table_is_over(table, &op);
}

static void on_mismatch(struct call_table *table, const struct wire_verdict *verdict) {
    char text[WIRE_MAX_TEXT + 1] = {0};
    memcpy(text, verdict->text.chars, verdict->text.length <= WIRE_MAX_TEXT ? verdict->text.length : WIRE_MAX_TEXT);
    struct op *op = call_table_find(table, verdict->name.tag);
    table->ended_in = verdict->name.epoch;
    if (verdict->name.epoch == table->now->group_epoch) table->ready = false;
    if (op != NULL && is_meant(table, op, verdict)) {
        memcpy(op->outcome.text, text, sizeof text);
        op->ending = call_table_ending(verdict->kind);
        if (wire_verdict_cancels(verdict->kind))
            cancel_call(table, op);
        else
            end_call_mismatched(table, op);
    } else if (verdict->kind != WIRE_VERDICT_DEADLOCK && !came_too_late(table, verdict) &&
               !call_table_verdicts_add(&table->verdicts, verdict, text)) {
        table->driver.failed(table->driver.context);
    }
}

static bool has_begun(const struct op *call) {
    for (const struct op *part = segments_part((struct op *)call, NULL); part != NULL;
         part = segments_part((struct op *)call, part))
        if (op_has_begun(part)) return true;
    return false;
}

// Ends such a call that was to begin in this epoch, if members that entered it before reported a mismatch.
static void end_if_mismatched(struct call_table *table, struct op *op) {
    if (op->parent != NULL || !needs_some(op) || op->phase == OP_ENDED || has_begun(op)) return;
    if (call_table_take_mismatch(table, op, 0)) end_call_mismatched(table, op);
}

// ---- entering an epoch ----
static void freeze(struct call_table *table, struct op *op) {
    if (op_has_begun(op) && op->mismatched) {
        call_table_end(table, op, ending_of(op));
    } else if (op->phase == OP_QUEUED && op->cancelled) {
        call_table_end(table, op, ending_of(op)); // not begun here, so complete nowhere
    } else if (op->phase == OP_QUEUED) {
        // Nobody has heard of it: it begins later, unless a verdict of an epoch in between has ended it for the others.
        call_table_release(table, op);
        call_table_wait_for_links(table, op);
        if (op->parent == NULL && !needs_some(op) &&
            call_table_take_mismatch(table, op, call_table_counted_loss(table, op)))
            end_mismatched(table, op);
    } else if (op_has_begun(op)) {
        op->frozen = true;
        call_table_release(table, op);
    }
}

static void end_if_lost(struct call_table *table, struct op *op) {
    bool lost = !call_table_may_go_on(table, op) || call_table_counted_loss(table, op) != 0;
    if (op->phase != OP_WAITING || !lost) return;
    op_queue_remove(&table->waiting, op);
    call_table_end_lost(table, op);
}

static struct op *find_to_fall_back(struct op *op) {
    while (op != NULL && (op->phase != OP_DIVIDED || !op->segments->fall_back)) op = op->chain;
    return op;
}

// Each of them moves ops in its chain, so each time the chain is looked through again.
static void begin_unsegmented(struct call_table *table) {
    for (size_t i = 0; i < TAG_SLOTS; i++)
        for (struct op *op; (op = find_to_fall_back(table->table[i])) != NULL;) {
            uint32_t live = op->segments->live;
            call_table_remove_segments(table, op, true);
            if (live > 1) table->extra -= live - 1;
            segments_begin_unsegmented(op);
            call_table_begin_segments(table, op);
        }
}

static void report_add(struct wire_report *report, const struct wire_op_name *name, enum wire_op_state state,
                       bool small, uint32_t members) {
    if (report->count == 2 * WIRE_MAX_LIVE_OPS) return; // what a report holds; live ops come first
    report->ops[report->count++] =
        (struct wire_op_report){.name = *name, .state = (uint8_t)state, .small = small, .members = (uint16_t)members};
}

static uint32_t members_in(const struct op *op, const struct epoch *epoch) {
    return op->args.subgroup == NULL ? 0 : subgroup_living(op->args.subgroup, epoch);
}

static bool build_report(struct call_table *table, const struct epoch *epoch, struct wire_report *report) {
    *report = (struct wire_report){
        .ops = calloc(table->live + table->extra + table->retained.count + 1, sizeof(struct wire_op_report))};
    if (report->ops == NULL) return false;
    for (size_t i = 0; i < TAG_SLOTS; i++)
        for (struct op *op = table->table[i]; op != NULL; op = op->chain)
            if (op->frozen && op->phase != OP_ENDED)
                report_add(report, &op->name, op->phase == OP_COMPLETE ? WIRE_OP_DONE : WIRE_OP_OPEN,
                           op->algorithm == PLAN_SMALL, members_in(op, epoch));
    for (size_t i = 0; i < TAG_SLOTS; i++)
        for (struct retained *retained = table->retained.slots[i]; retained != NULL; retained = retained->next)
            report_add(report, &retained->name, WIRE_OP_RETAINED, true, 0);
    return true;
}

static struct op_member **find_members(struct call_table *table, const struct epoch_ring *ring) {
    const struct op_driver *driver = &table->driver;
    struct op_member **members = calloc(ring->count, sizeof(struct op_member *));
    for (uint32_t i = 0; members != NULL && i < ring->count; i++) {
        if (i == ring->rank || (members[i] = driver->member(driver->context, &ring->members[i].id)) != NULL) continue;
        free(members);
        return NULL;
    }
    return members;
}

bool call_table_enter(struct call_table *table, const struct epoch *epoch, struct wire_report *report) {
    table->ready = false;
    call_table_for_each(table, freeze);
    begin_unsegmented(table);
    call_table_clear_unexpected(table);
    op_counters_clear(&table->counters);
    table->epoch_requested = false;
    struct op_member **members = find_members(table, &epoch->ring);
    if (members == NULL || !build_report(table, epoch, report)) {
        free(members);
        return false;
    }
    for (uint32_t i = 0; i < table->now->ring.count; i++)
        if (table->members[i] != NULL) table->members[i]->rank = UINT32_MAX;
    for (uint32_t i = 0; i < epoch->ring.count; i++)
        if (members[i] != NULL) members[i]->rank = i;
    free(table->members);
    epoch_put(table->now);
    table->now = epoch_get(epoch);
    table->members = members;
    call_table_for_each(table, end_if_lost);
    call_table_for_each(table, end_if_mismatched);
    return true;
}

void call_table_links_ready(struct call_table *table) {
    if (table->ended_in == table->now->group_epoch && table->ended_in != 0) return; // another epoch follows
    table->ready = true;
    call_table_supply(table);
    struct op_queue waiting = table->waiting;
    table->waiting.first = NULL;
    for (struct op *op; (op = op_queue_pop(&waiting)) != NULL;) call_table_begin(table, op);
}

// ---- verdicts ----

static void redo(struct call_table *table, struct op *op) {
    // The others have begun this call in a later epoch only, under the name that was found to be mismatched.
    struct op *call = op->parent != NULL ? op->parent : op;
    if (op->cancelled) {
        call_table_end(table, op, ending_of(op));
        return;
    }
    if (!call_table_may_go_on(table, op)) {
        call_table_end_lost(table, op); // and not with what the others have called since
        return;
    }
    if (call_table_take_mismatch(table, call, 0)) {
        end_call_mismatched(table, call);
        return;
    }
    op->frozen = false;
    op->restart = true;
    call_table_begin(table, op);
}

static void on_abort(struct call_table *table, struct op *op) {
    if (op->args.retry || op->args.subgroup != NULL || op->cancelled)
        redo(table, op); // or ends it, if it cannot go on without those that are lost
    else if (call_table_take_mismatch(table, op, call_table_first_loss(table, op->adopted)))
        // as for those that had begun this call under a later name, before the loss
        call_table_end(table, op, ending_of(op));
    else
        call_table_end_lost(table, op);
}

static void on_supplier(struct call_table *table, const struct wire_verdict *verdict) {
    const struct epoch_ring *ring = &table->now->ring;
    bool own = ring->count > 0 && wire_id_equal(&verdict->supplier, &ring->members[ring->rank].id);
    if (!call_table_appoint(table, verdict, own)) table->driver.failed(table->driver.context);
}

static struct op *find_named(const struct call_table *table, const struct wire_op_name *name) {
    struct op *op = table->table[tag_slot(name->tag)];
    while (op != NULL &&
           !((op->phase == OP_RUNNING || op->phase == OP_COMPLETE) && wire_op_name_equal(&op->name, name)))
        op = op->chain;
    return op;
}

void call_table_verdict(struct call_table *table, const struct wire_verdict *verdict) {
    static const struct wire_id nobody;
    struct op *op = find_named(table, &verdict->name), *call = call_table_find(table, verdict->name.tag);
    switch (verdict->kind) {
    case WIRE_VERDICT_COMMIT:
        if (!wire_id_equal(&verdict->supplier, &nobody))
            on_supplier(table, verdict);
        else if (op != NULL && op->phase == OP_COMPLETE)
            call_table_end(table, op, CALL_OK);
        break;
    case WIRE_VERDICT_ABORT:
        if (op != NULL && op->frozen) on_abort(table, op);
        break;
    case WIRE_VERDICT_REDO:
        if (op != NULL && op->frozen) redo(table, op);
        break;
    case WIRE_VERDICT_MISMATCH:
    case WIRE_VERDICT_CANCEL:
    case WIRE_VERDICT_DEADLOCK: on_mismatch(table, verdict); break;
    case WIRE_VERDICT_WHOLE:
        if (call != NULL && call->segments != NULL && op_subgroup_hash(call) == verdict->name.subgroup)
            segments_fall_back(call, &verdict->name);
        break;
    default: break;
    }
}
