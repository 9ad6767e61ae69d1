// Ops in retry mode that are large: done segment by segment (plan.h), and a loss costs only the segments under way.
//
// A segment is an op of its own, with a name, a verdict and a backup of its own. So what is agreed for ops is agreed
// for segments, and there is nothing else to agree on: the segments committed so far are the point that the op goes on
// from. All members begin them in index order, and a verdict reaches all: so all of them work on the first one that is
// not committed, whatever else is under way, and none waits for ever.
//
// The call itself, the parent of its segments, moves no data, has no name, and is never frozen; it ends when its last
// segment has ended.
#include "ops/call_table_private.h"

#include <stdlib.h>
#include <string.h>

// ---- life ----
bool segments_new(struct op *parent) {
    uint32_t count = plan_segments(parent->count, parent->element);
    parent->segments = calloc(1, sizeof *parent->segments + count * sizeof(const struct epoch *));
    if (parent->segments == NULL) return false;
    parent->segments->count = count;
    parent->segments->mode = WIRE_MODE_SEGMENTS;
    parent->phase = OP_DIVIDED;
    return true;
}

void segments_free(struct op *parent) {
    struct segments *s = parent->segments;
    for (uint32_t i = 0; i < s->count; i++) epoch_put(s->epochs[i]);
    free(s);
    parent->segments = NULL;
}

// ---- a segment ----
static struct plan_range range_of(const struct op *parent, uint32_t segment) {
    if (parent->segments->mode == WIRE_MODE_WHOLE) return (struct plan_range){0, parent->count};
    return plan_segment(parent->count, parent->element, segment);
}

// With one segment under way the op gets on, however many the others have: it is the same one, the first that is not
// committed.
bool segments_may_add(const struct segments *s, bool room) {
    if (s->next == s->count || s->failure != CALL_OK) return false;
    return s->live == 0 || (s->live < PLAN_SEGMENTS_AHEAD && room);
}

void segments_add(struct op *parent, struct op *op) {
    struct segments *s = parent->segments;
    struct plan_range range = range_of(parent, s->next);
    uint32_t free = 0;
    while (s->ops[free] != NULL) free++;
    s->ops[free] = op;
    op->parent = parent;
    op->args = parent->args;
    uint64_t at = range.begin * parent->element; // of a tensor that may be missing: not all have a result
    if (at > 0 && op->args.send != NULL) op->args.send = (const uint8_t *)op->args.send + at;
    if (at > 0 && op->args.recv != NULL) op->args.recv = (uint8_t *)op->args.recv + at;
    op->args.rounding.index = range.begin;
    if (op->args.residual_in != NULL) op->args.residual_in += range.begin;
    if (op->args.residual_out != NULL) op->args.residual_out += range.begin;
    op->args.fingerprint.mode = s->mode;
    op->element = parent->element;
    op->count = range.end - range.begin;
    op_measure(op);
    op->name.segment = (uint16_t)s->next++;
    s->live++;
}

bool segments_name(struct op *op, uint64_t epoch, struct op_counters *counters) {
    struct segments *s = op->parent->segments;
    if (s->epoch != epoch && !op_counter_take(counters, op->args.tag, &s->sequence)) return false;
    s->epoch = epoch;
    op->name.sequence = s->sequence;
    return true;
}

bool segments_ended(struct op *op) {
    struct op *parent = op->parent;
    struct segments *s = parent->segments;
    s->live--;
    if (op->outcome.result != CALL_OK) {
        if (s->failure == CALL_OK) {
            s->failure = op->outcome.result;
            if (op->outcome.text[0] != 0) memcpy(parent->outcome.text, op->outcome.text, sizeof parent->outcome.text);
            if (op->outcome.epoch > parent->outcome.epoch) parent->outcome.epoch = op->outcome.epoch;
        }
        return false;
    }
    parent->tx_bytes += op->tx_bytes;
    parent->rx_bytes += op->rx_bytes;
    if (op->name.epoch >= parent->outcome.epoch) {
        parent->outcome.epoch = op->name.epoch;
        parent->contributors = op->contributors;
    }
    s->epochs[op->name.segment] = epoch_get(op->epoch);
    return true;
}

void segments_remove(struct op *op) {
    struct op **at = op->parent->segments->ops;
    while (*at != op) at++;
    *at = NULL;
}

struct op *segments_part(struct op *call, const struct op *after) {
    if (after == NULL) return call;
    if (call->segments == NULL) return NULL;
    struct op **parts = call->segments->ops;
    int i = 0;
    while (after != call && i < PLAN_SEGMENTS_AHEAD && parts[i++] != after) continue;
    while (i < PLAN_SEGMENTS_AHEAD && parts[i] == NULL) i++;
    return i < PLAN_SEGMENTS_AHEAD ? parts[i] : NULL;
}

bool segments_are_meant(const struct op *parent, const struct wire_op_name *name) {
    return parent->phase == OP_DIVIDED &&
           (parent->segments->epoch != name->epoch || parent->segments->sequence == name->sequence);
}

bool segments_lack(const struct op *parent, uint64_t epoch, uint32_t sequence, uint32_t segment) {
    const struct segments *s = parent->segments;
    return parent->phase == OP_DIVIDED && s->epoch == epoch && s->sequence == sequence && segment < s->count &&
           s->epochs[segment] == NULL;
}

// ---- members that run the op in one piece ----
void segments_fall_back(struct op *parent, const struct wire_op_name *name) {
    struct segments *s = parent->segments;
    if (s->mode == WIRE_MODE_SEGMENTS && s->epoch == name->epoch && s->sequence == name->sequence) s->fall_back = true;
}

void segments_begin_unsegmented(struct op *parent) {
    struct segments *s = parent->segments;
    for (uint32_t i = 0; i < s->count; i++) { // by a master that commits what not all have begun
        epoch_put(s->epochs[i]);
        s->epochs[i] = NULL;
    }
    s->mode = WIRE_MODE_WHOLE;
    s->count = 1;
    s->next = s->live = 0;
    s->fall_back = false;
}

// ---- who is in which range ----
static const struct epoch_ring *members_of(const struct op *op, uint32_t segment) {
    static const struct epoch_ring nobody;
    const struct epoch *epoch = op->outcome.result == CALL_OK ? op->epoch : NULL;
    if (op->segments != NULL) epoch = op->segments->epochs[segment];
    return epoch == NULL ? &nobody : &epoch->ring;
}

// The next member at or after `at` that takes part in the op; the count: there is none.
static uint32_t next_of(const struct op *op, const struct epoch_ring *members, uint32_t at) {
    while (at < members->count && op->args.subgroup != NULL &&
           !subgroup_names(op->args.subgroup, &members->members[at].id))
        at++;
    return at;
}

// Returns whether other members are in this segment than in the one before.
static bool begins_range(const struct op *op, uint32_t segment) {
    if (segment == 0) return true;
    const struct epoch_ring *before = members_of(op, segment - 1), *members = members_of(op, segment);
    if (before == members) return false;
    uint32_t a = next_of(op, before, 0), b = next_of(op, members, 0);
    while (a < before->count && b < members->count) {
        if (!wire_id_equal(&before->members[a].id, &members->members[b].id)) return true;
        a = next_of(op, before, a + 1);
        b = next_of(op, members, b + 1);
    }
    return a < before->count || b < members->count;
}

struct call_contributors *segments_contributors(const struct op *op) {
    uint32_t segments = op->segments == NULL ? 1 : op->segments->count, ranges = 0;
    size_t ids = 0;
    for (uint32_t i = 0; i < segments; i++) {
        if (!begins_range(op, i)) continue;
        ranges++;
        ids += members_of(op, i)->count;
    }
    struct call_contributors *out = malloc(sizeof *out + ranges * sizeof out->ranges[0] + ids * sizeof(struct wire_id));
    if (out == NULL) return NULL;
    out->count = 0;
    struct wire_id *next = (struct wire_id *)(void *)(out->ranges + ranges);
    for (uint32_t i = 0; i < segments; i++) {
        struct plan_range range = op->segments == NULL ? (struct plan_range){0, op->count} : range_of(op, i);
        if (begins_range(op, i)) {
            const struct epoch_ring *members = members_of(op, i);
            struct call_range *begun = &out->ranges[out->count++];
            *begun = (struct call_range){.begin = range.begin, .ids = next};
            for (uint32_t k = next_of(op, members, 0); k < members->count; k = next_of(op, members, k + 1)) {
                *next++ = members->members[k].id;
                begun->count++;
            }
        }
        out->ranges[out->count - 1].end = range.end;
    }
    return out;
}
