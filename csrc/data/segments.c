// Ops in retry mode that are large: done segment by segment (plan.h), and a loss costs only the segments under way.
//
// A segment is an op of its own, with a name, a verdict and a backup of its own. So what is agreed for ops is agreed
// for segments, and there is nothing else to agree on: the segments committed so far are the point that the op goes on
// from. All members begin them in index order, and a verdict reaches all: so all of them work on the first one that is
// not committed, whatever else is under way, and none waits for ever.
//
// The whole op is what the caller sees. It moves no data, has no name, and is never frozen; it ends when its last
// segment has ended.
#include <stdlib.h>
#include <string.h>

#include "data/op.h"

struct segments {
    uint32_t count, next; // `next`: the first that was not begun
    uint32_t live;        // begun, not ended
    uint8_t mode;         // enum wire_op_mode; WHOLE: one segment, since others run the op in one piece
    bool to_whole;        // that turned out: from the next epoch on
    uint64_t epoch;       // the last one in which a segment was named; 0: none yet
    uint32_t sequence;    // in it
    enum engine_result failure;
    struct op *ops[PLAN_SEGMENTS_AHEAD]; // owned; live, or failed and to be put back; NULL: free place
    struct roster *rosters[];            // by segment; NULL: not committed
};

bool segments_new(struct op *whole) {
    uint32_t count = plan_segments(whole->count, whole->element);
    whole->segments = calloc(1, sizeof *whole->segments + count * sizeof(struct roster *));
    if (whole->segments == NULL) return false;
    whole->segments->count = count;
    whole->segments->mode = WIRE_MODE_SEGMENTS;
    whole->phase = OP_DIVIDED;
    return true;
}

static struct plan_range range_of(const struct op *whole, uint32_t segment) {
    if (whole->segments->mode == WIRE_MODE_WHOLE) return (struct plan_range){0, whole->count};
    return plan_segment(whole->count, whole->element, segment);
}

static struct op *add_segment(struct engine *engine, struct op *whole) {
    struct segments *s = whole->segments;
    uint32_t place = 0;
    while (s->ops[place] != NULL) place++;
    struct op *op = op_new(engine, whole->reduce.tag);
    if (op == NULL) return NULL;
    if (s->live > 0) engine->extra++;
    struct plan_range range = range_of(whole, s->next);
    op->whole = whole;
    op->reduce = whole->reduce;
    op->reduce.send = (const uint8_t *)whole->reduce.send + range.begin * whole->element;
    op->reduce.recv = (uint8_t *)whole->reduce.recv + range.begin * whole->element;
    op->reduce.fingerprint.mode = s->mode;
    op->element = whole->element;
    op->count = range.end - range.begin;
    op->bytes = op->count * op->element;
    op->name.segment = (uint16_t)s->next;
    s->ops[place] = op;
    s->next++;
    s->live++;
    return op;
}

static void end_when_over(struct engine *engine, struct op *whole) {
    if (whole->segments->live == 0 && whole->phase != OP_ENDED) op_end(engine, whole, whole->segments->failure);
}

// With one segment under way the op gets on, however many the others have: it is the same one, the first that is not
// committed.
static bool may_add(const struct engine *engine, const struct segments *s) {
    if (s->next == s->count || s->failure != ENGINE_OK) return false;
    return s->live == 0 || (s->live < PLAN_SEGMENTS_AHEAD && engine->extra < EXTRA_MAX &&
                            engine->live + engine->extra < WIRE_MAX_LIVE_OPS);
}

// A segment that cannot begin ends at once, and with it perhaps the whole.
static void begin_more(struct engine *engine, struct op *whole) {
    struct segments *s = whole->segments;
    while (may_add(engine, s)) {
        struct op *op = add_segment(engine, whole);
        if (op == NULL && s->live == 0) {
            s->failure = ENGINE_NO_MEMORY;
            engine_fail(engine);
        }
        if (op == NULL) return; // tried again when a segment has ended
        engine_begin(engine, op);
    }
}

void segments_begin(struct engine *engine, struct op *whole) {
    begin_more(engine, whole);
    end_when_over(engine, whole);
}

bool segments_name(struct engine *engine, struct op *op) {
    struct segments *s = op->whole->segments;
    if (s->epoch != engine->epoch && !counter_take(engine, op->reduce.tag, &s->sequence)) return false;
    s->epoch = engine->epoch;
    op->name.sequence = s->sequence;
    return true;
}

static void remove_segment(struct engine *engine, struct op *op) {
    struct segments *s = op->whole->segments;
    uint32_t place = 0;
    while (s->ops[place] != op) place++;
    s->ops[place] = NULL;
    backup_end(&engine->backups, &op->backup);
    op_free(engine, op);
}

void segments_ended(struct engine *engine, struct op *op) {
    struct op *whole = op->whole;
    struct segments *s = whole->segments;
    if (--s->live > 0) engine->extra--;
    if (op->outcome.result == ENGINE_OK) {
        whole->tx_bytes += op->tx_bytes;
        whole->rx_bytes += op->rx_bytes;
        if (op->name.epoch >= whole->outcome.epoch) {
            whole->outcome.epoch = op->name.epoch;
            whole->contributors = op->contributors;
        }
        s->rosters[op->name.segment] = op->roster;
        op->roster = NULL;
        remove_segment(engine, op);
    } else if (s->failure == ENGINE_OK) {
        s->failure = op->outcome.result;
        if (op->outcome.epoch > whole->outcome.epoch) whole->outcome.epoch = op->outcome.epoch;
    }
    if (whole->phase == OP_ENDED) return;
    begin_more(engine, whole);
    end_when_over(engine, whole);
}

bool segments_are_meant(const struct op *whole, const struct wire_op_name *name) {
    return whole->phase == OP_DIVIDED &&
           (whole->segments->epoch != name->epoch || whole->segments->sequence == name->sequence);
}

void segments_for_each(struct engine *engine, struct op *whole, void (*act)(struct engine *, struct op *)) {
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++) {
        struct op *op = whole->segments->ops[i];
        if (op != NULL && op->phase != OP_ENDED) act(engine, op);
    }
}

// ---- members that run the op in one piece ----
void segments_turn_whole(struct op *whole, const struct wire_op_name *name) {
    struct segments *s = whole->segments;
    if (s->mode == WIRE_MODE_SEGMENTS && s->epoch == name->epoch && s->sequence == name->sequence) s->to_whole = true;
}

bool segments_wants_whole(const struct op *whole) { return whole->phase == OP_DIVIDED && whole->segments->to_whole; }

// None of them can have been committed: a member that runs the op in one piece has completed no segment.
void segments_begin_whole(struct engine *engine, struct op *whole) {
    struct segments *s = whole->segments;
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++) {
        struct op *op = s->ops[i];
        if (op == NULL) continue;
        engine_forget(engine, op);
        backup_restore(&op->backup, op->reduce.recv);
        remove_segment(engine, op);
    }
    if (s->live > 1) engine->extra -= s->live - 1;
    s->mode = WIRE_MODE_WHOLE;
    s->count = 1;
    s->next = s->live = 0;
    s->to_whole = false;
    segments_begin(engine, whole);
}

// ---- the end ----
bool segments_must_restore(const struct op *whole) {
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++)
        if (whole->segments->ops[i] != NULL && whole->segments->ops[i]->backup.saved.count > 0) return true;
    return false;
}

void segments_restore(struct op *whole) {
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++)
        if (whole->segments->ops[i] != NULL)
            backup_restore(&whole->segments->ops[i]->backup, whole->segments->ops[i]->reduce.recv);
}

void segments_free(struct engine *engine, struct op *whole) {
    struct segments *s = whole->segments;
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++)
        if (s->ops[i] != NULL) remove_segment(engine, s->ops[i]);
    for (uint32_t i = 0; i < s->count; i++) roster_put(s->rosters[i]);
    free(s);
    whole->segments = NULL;
}

static const struct roster *roster_of(const struct op *op, uint32_t segment) {
    if (op->segments != NULL) return op->segments->rosters[segment];
    return op->outcome.result == ENGINE_OK ? op->roster : NULL;
}

static bool same_members(const struct roster *a, const struct roster *b) {
    if (a == NULL || b == NULL) return a == b;
    return a->count == b->count && memcmp(a->ids, b->ids, a->count * sizeof a->ids[0]) == 0;
}

struct engine_contributors *segments_contributors(const struct op *op) {
    uint32_t segments = op->segments == NULL ? 1 : op->segments->count, ranges = 0;
    size_t ids = 0;
    for (uint32_t i = 0; i < segments; i++) {
        const struct roster *roster = roster_of(op, i);
        if (i > 0 && same_members(roster_of(op, i - 1), roster)) continue;
        ranges++;
        ids += roster == NULL ? 0 : roster->count;
    }
    struct engine_contributors *out =
        malloc(sizeof *out + ranges * sizeof out->ranges[0] + ids * sizeof(struct wire_id));
    if (out == NULL) return NULL;
    out->count = 0;
    struct wire_id *next = (struct wire_id *)(void *)(out->ranges + ranges);
    for (uint32_t i = 0; i < segments; i++) {
        const struct roster *roster = roster_of(op, i);
        struct plan_range range = op->segments == NULL ? (struct plan_range){0, op->count} : range_of(op, i);
        if (i == 0 || !same_members(roster_of(op, i - 1), roster)) {
            struct engine_range *added = &out->ranges[out->count++];
            *added =
                (struct engine_range){.begin = range.begin, .count = roster == NULL ? 0 : roster->count, .ids = next};
            if (roster != NULL) memcpy(next, roster->ids, roster->count * sizeof *next);
            next += added->count;
        }
        out->ranges[out->count - 1].end = range.end;
    }
    return out;
}
