#include "ops/call_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/call_table_private.h"

// EXTRA_MAX: segments under way that are not the only one of their op; the rest is left to further calls.
enum { EXTRA_MAX = 3 * WIRE_MAX_LIVE_OPS / 4, LOST_TOLD = 8 };

// ---- life ----
void call_table_init(struct call_table *table, const struct op_driver *driver, size_t work_bytes) {
    *table = (struct call_table){.driver = *driver, .work_bytes = work_bytes, .now = epoch_get(epoch_none())};
}

static void fail(struct call_table *table) { table->driver.failed(table->driver.context); }

// ---- ops by tag ----
struct op *call_table_find(const struct call_table *table, uint64_t tag) {
    struct op *op = table->table[tag_slot(tag)];
    while (op != NULL && (op->args.tag != tag || op->parent != NULL)) op = op->chain;
    return op;
}

struct op *call_table_find_running(const struct call_table *table, const struct wire_op *what) {
    for (struct op *op = table->table[tag_slot(what->tag)]; op != NULL; op = op->chain)
        if (op_has_begun(op) && !op->frozen && op->args.tag == what->tag && op->name.sequence == what->sequence &&
            op->name.segment == what->segment && op->name.epoch == table->now->group_epoch)
            return op;
    return NULL;
}

void call_table_for_each(struct call_table *table, void (*act)(struct call_table *, struct op *)) {
    for (size_t i = 0; i < TAG_SLOTS; i++)
        for (struct op *op = table->table[i]; op != NULL; op = op->chain) act(table, op);
}

static struct op *new_op(struct call_table *table, uint64_t tag) {
    struct op *op = table->unused;
    if (op != NULL)
        table->unused = op->chain;
    else if ((op = malloc(sizeof *op + table->work_bytes)) == NULL)
        return NULL;
    memset(op, 0, sizeof *op + table->work_bytes);
    op->work = op + 1;
    op->chain = table->table[tag_slot(tag)];
    table->table[tag_slot(tag)] = op;
    op->args.tag = tag;
    return op;
}

static void free_op(struct call_table *table, struct op *op, bool restore) {
    table->driver.forget(table->driver.context, op, restore);
    struct op **at = &table->table[tag_slot(op->args.tag)];
    while (*at != op) at = &(*at)->chain;
    *at = op->chain;
    epoch_put(op->epoch);
    op->epoch = NULL;
    if (op->parent == NULL) {
        subgroup_put(op->args.subgroup);
        free(op->args.parts);
    }
    op->chain = table->unused;
    table->unused = op;
}

struct retained *call_table_new_retained(uint32_t members) {
    return calloc(1, sizeof(struct retained) + members * sizeof(struct op_member *));
}

void call_table_free_retained(struct retained *retained, const struct op_driver *driver) {
    if (retained->result != NULL) driver->put(driver->context, retained->result);
    free(retained);
}

// ---- ends ----
static void begin_segments(struct call_table *table, struct op *parent);

static void end_when_over(struct call_table *table, struct op *parent) {
    if (parent->segments->live == 0 && parent->phase != OP_ENDED)
        call_table_end(table, parent, parent->segments->failure);
}

static void end_segment(struct call_table *table, struct op *op) {
    struct op *parent = op->parent;
    if (segments_ended(op)) {
        segments_remove(op);
        free_op(table, op, false);
    }
    if (parent->segments->live > 0) table->extra--;
    if (parent->phase == OP_ENDED) return;
    begin_segments(table, parent);
    end_when_over(table, parent);
}

void call_table_release(struct call_table *table, struct op *op) {
    table->driver.release(table->driver.context, op);
    if (op->retained != NULL) call_table_free_retained(op->retained, &table->driver);
    op->retained = NULL;
}

void call_table_end(struct call_table *table, struct op *op, enum call_result result) {
    call_table_release(table, op);
    op->outcome.result = result;
    op->outcome.info = (struct call_info){op->contributors, op->tx_bytes, op->rx_bytes};
    op->phase = OP_ENDED;
    op->frozen = false;
    if (op->parent != NULL)
        end_segment(table, op);
    else
        table->driver.ended(table->driver.context, op);
}

// Writes the lost members of the subgroup as text.
static void say_who(const struct call_table *table, struct op *op) {
    char *text = op->outcome.text;
    size_t at = 0;
    uint32_t told = 0;
    for (uint32_t rank = 0; rank < op->args.subgroup->count; rank++) {
        if (subgroup_has(op->args.subgroup, rank, table->now)) continue;
        if (told++ == LOST_TOLD) snprintf(text + at, sizeof op->outcome.text - at, ", ...");
        if (told > LOST_TOLD) continue;
        at += (size_t)snprintf(text + at, sizeof op->outcome.text - at, "%s%u", at == 0 ? "rank " : ", rank ", rank);
    }
}

void call_table_end_lost(struct call_table *table, struct op *op) {
    // Members see the loss of a root in different epochs, but all name the same one.
    uint64_t adopted = op->parent == NULL ? op->adopted : op->parent->adopted;
    uint64_t epoch = op->args.everyone ? call_table_first_loss(table, adopted) : call_table_counted_loss(table, op);
    if (op->args.subgroup != NULL)
        say_who(table, op);
    else if (!call_table_may_go_on(table, op))
        snprintf(op->outcome.text, sizeof op->outcome.text, "rank %u", op->args.root);
    op->outcome.epoch = epoch != 0 ? epoch : table->now->group_epoch;
    call_table_end(table, op, CALL_LOST);
}

void call_table_refuse(struct call_table *table, struct op *op) {
    fail(table); // first: nothing is to begin in the place of the op
    call_table_end(table, op, CALL_NO_MEMORY);
}

static void end_dead(struct call_table *table, struct op *op) {
    if (op->phase != OP_ENDED) call_table_end(table, op, CALL_DEAD);
}

void call_table_end_all(struct call_table *table) {
    table->waiting.first = NULL;
    call_table_for_each(table, end_dead);
}

// ---- mismatches ----
void call_table_report_mismatch(struct call_table *table, struct op *op, const struct op_member *other,
                                const struct wire_fingerprint *theirs) {
    if (op->mismatch_reported) return;
    op->mismatch_reported = true;
    struct wire_mismatch mismatch = {op->name, op->args.fingerprint, other->id, *theirs};
    table->driver.report_mismatch(table->driver.context, &mismatch);
}

// The first of the chain, from `at` on, that is for that op and has other arguments. NULL: none.
static const struct unexpected *unexpected_differing(const struct unexpected *at, const struct wire_op *op) {
    while (at != NULL &&
           (!op_is_same(&at->head.op, op) || wire_fingerprint_equal(&at->head.op.fingerprint, &op->fingerprint)))
        at = at->next;
    return at;
}

// Reports any unexpected signal whose arguments differ: others may use another algorithm, so nobody else looks at it.
static void compare_unexpected(struct call_table *table, struct op *op) {
    struct wire_op what = op_on_wire(op);
    const struct unexpected *at = table->unexpected.slots[tag_slot(op->args.tag)];
    while ((at = unexpected_differing(at, &what)) != NULL) {
        call_table_report_mismatch(table, op, at->from, &at->head.op.fingerprint);
        at = at->next;
    }
}

// ---- verdicts of a mismatch on calls that were not made here yet, in the order in which the others ended them ----
struct early_verdict {
    struct early_verdict *next;
    struct wire_op_name name;
    uint16_t other;
    uint8_t kind;
    char text[WIRE_MAX_TEXT + 1];
};

static void remove_at(struct call_table_verdicts *verdicts, struct early_verdict **at) {
    struct early_verdict *verdict = *at;
    *at = verdict->next;
    verdicts->count--;
    free(verdict);
}

bool call_table_verdicts_add(struct call_table_verdicts *verdicts, const struct wire_verdict *what,
                             const char text[WIRE_MAX_TEXT + 1]) {
    if (what->name.epoch < verdicts->since) return true;
    struct early_verdict *verdict = calloc(1, sizeof *verdict), **last = &verdicts->first;
    if (verdict == NULL) return false;
    if (verdicts->count == WIRE_MAX_LIVE_OPS) remove_at(verdicts, &verdicts->first);
    verdict->name = what->name;
    verdict->other = what->other;
    verdict->kind = what->kind;
    memcpy(verdict->text, text, sizeof verdict->text);
    while (*last != NULL) last = &(*last)->next;
    *last = verdict;
    verdicts->count++;
    return true;
}

enum call_result call_table_ending(uint8_t kind) {
    return kind == WIRE_VERDICT_CANCEL ? CALL_CANCELLED : kind == WIRE_VERDICT_DEADLOCK ? CALL_DEADLOCK : CALL_MISMATCH;
}

bool call_table_verdict_concerns(uint32_t own, uint32_t subgroup, uint16_t other) {
    return subgroup_mark(own) == subgroup_mark(subgroup) || subgroup_mark(own) == other;
}

bool call_table_verdicts_take(struct call_table_verdicts *verdicts, uint64_t tag, uint32_t subgroup, uint64_t loss,
                              char text[WIRE_MAX_TEXT + 1], enum call_result *result) {
    for (struct early_verdict **at = &verdicts->first; *at != NULL; at = &(*at)->next) {
        const struct early_verdict *verdict = *at;
        const struct wire_op_name *name = &verdict->name;
        if (name->tag != tag || !call_table_verdict_concerns(subgroup, name->subgroup, verdict->other)) continue;
        if (loss != 0 && loss <= name->epoch) continue;
        memcpy(text, verdict->text, sizeof verdict->text);
        *result = call_table_ending(verdict->kind);
        remove_at(verdicts, at);
        return true;
    }
    return false;
}

void call_table_verdicts_voted(struct call_table_verdicts *verdicts, uint64_t group_epoch) {
    verdicts->since = group_epoch;
    for (struct early_verdict **at = &verdicts->first; *at != NULL;)
        if ((*at)->name.epoch < group_epoch)
            remove_at(verdicts, at);
        else
            at = &(*at)->next;
}

static void verdicts_clear(struct call_table_verdicts *verdicts) {
    while (verdicts->first != NULL) remove_at(verdicts, &verdicts->first);
}

bool call_table_take_mismatch(struct call_table *table, struct op *call, uint64_t loss) {
    return call_table_verdicts_take(&table->verdicts, call->args.tag, op_subgroup_hash(call), loss, call->outcome.text,
                                    &call->ending);
}

// ---- beginning ----
uint64_t call_table_counted_loss(const struct call_table *table, const struct op *op) {
    return op->args.retry || op->args.subgroup != NULL ? 0 : call_table_first_loss(table, op->adopted);
}

uint64_t call_table_first_loss(const struct call_table *table, uint64_t adopted) {
    for (uint32_t i = 0; i < table->loss_count; i++)
        if (table->losses[i] > adopted) return table->losses[i];
    return 0;
}

static bool name(struct call_table *table, struct op *op) {
    bool named = op->parent != NULL ? segments_name(op, table->now->group_epoch, &table->counters)
                                    : op_counter_take(&table->counters, op->args.tag, &op->name.sequence);
    op->name.epoch = table->now->group_epoch;
    op->name.tag = op->args.tag;
    op->name.subgroup = op_subgroup_hash(op);
    if (table->counters.full && !table->epoch_requested) {
        table->epoch_requested = true;
        table->driver.request_epoch(table->driver.context);
    }
    return named;
}

// Returns true if the op goes on without its lost members. All decide alike, by the same epoch.
bool call_table_may_go_on(const struct call_table *table, const struct op *op) {
    const struct plan_collective *collective = op_collective(op);
    const struct subgroup *subgroup = op->args.subgroup;
    if (subgroup == NULL) return !collective->rooted || epoch_ring_has(&table->now->ring, &op->args.root_id);
    if (subgroup_living(subgroup, table->now) == subgroup->count) return true;
    return collective->survives && op->args.retry &&
           (!collective->rooted || subgroup_has(subgroup, op->args.root, table->now));
}

// Sets the op's team in the epoch in force. False: memory was refused.
bool call_table_find_team(struct call_table *table, struct op *op) {
    struct team **newest = op->args.subgroup == NULL ? &table->team : &op->args.subgroup->team;
    if (*newest == NULL || (*newest)->epoch != table->now) {
        struct team *team = team_new(op->args.subgroup, table->now, table->members);
        if (team == NULL) return false;
        team_free(*newest);
        *newest = team;
    }
    op->team = *newest;
    op->root = op->args.subgroup == NULL ? epoch_ring_find(&table->now->ring, &op->args.root_id) : op->args.root;
    return true;
}

static void begin(struct call_table *table, struct op *op) {
    if (!call_table_may_go_on(table, op)) {
        call_table_end_lost(table, op);
        return;
    }
    if (op_counter_last(&table->counters, op->args.tag) == UINT32_MAX) {
        // of the fresh epoch, which was asked for long ago; the others wait at the same op
        call_table_wait_for_links(table, op);
        return;
    }
    if (!name(table, op) || !call_table_find_team(table, op)) {
        call_table_refuse(table, op);
        return;
    }
    const struct epoch *now = table->now;
    epoch_put(op->epoch);
    op->epoch = epoch_get(now);
    op->contributors = op->team->count;
    op->mismatch_reported = op->mismatched = false;
    op->algorithm = plan_choose(&op->args.fingerprint, op->bytes, op->team->count, now->latency_us,
                                now->megabytes_per_s, op->team->weights != NULL);
    if (op->team->count < 2 && op->args.subgroup == NULL && !op->args.everyone) {
        call_table_end_lost(table, op); // alone: only a loss leads here
        return;
    }
    compare_unexpected(table, op);
    if ((op->parent != NULL ? op->parent : op)->cancel) table->driver.cancel(table->driver.context, &op->name);
    bool small = op->algorithm == PLAN_SMALL;
    op->phase = small && op->args.queue == NULL ? OP_RUNNING : OP_QUEUED;
    if ((small && (op->retained = call_table_new_retained(op->team->count)) == NULL) ||
        !table->driver.start(table->driver.context, op))
        call_table_refuse(table, op);
}

void call_table_wait_for_links(struct call_table *table, struct op *op) {
    op->phase = OP_WAITING;
    op_queue_append(&table->waiting, op);
}

void call_table_begin(struct call_table *table, struct op *op) {
    if (table->ready)
        begin(table, op);
    else
        call_table_wait_for_links(table, op);
}

static bool has_room_for_extra(const struct call_table *table) {
    const struct epoch *now = table->now;
    uint32_t useful = plan_extra_segments(now->ring.count, now->latency_us, now->megabytes_per_s);
    return table->extra < useful && table->extra < EXTRA_MAX && table->live + table->extra < WIRE_MAX_LIVE_OPS;
}

// A segment that cannot begin ends at once, and with it perhaps the call.
static void begin_segments(struct call_table *table, struct op *parent) {
    struct segments *s = parent->segments;
    while (segments_may_add(s, has_room_for_extra(table))) {
        struct op *op = new_op(table, parent->args.tag);
        if (op == NULL && s->live == 0) {
            s->failure = CALL_NO_MEMORY;
            fail(table);
        }
        if (op == NULL) return; // tried again when a segment has ended
        if (s->live > 0) table->extra++;
        segments_add(parent, op);
        call_table_begin(table, op);
    }
}

void call_table_begin_segments(struct call_table *table, struct op *parent) {
    begin_segments(table, parent);
    end_when_over(table, parent);
}

// ---- callers ----
static void start(struct call_table *table, struct op *op) {
    uint64_t loss = call_table_counted_loss(table, op);
    uint32_t segments = op->args.retry ? plan_segments(op->count, op->element) : 1;
    // A call that cannot continue is lost as soon as no newer epoch is known: the mismatch that others were told of is
    // of a later call.
    if (call_table_may_go_on(table, op) && call_table_take_mismatch(table, op, loss))
        call_table_end(table, op, op->ending);
    else if (loss != 0)
        call_table_end_lost(table, op);
    else if (segments == 1)
        call_table_begin(table, op);
    else if (segments_new(op))
        call_table_begin_segments(table, op);
    else
        call_table_refuse(table, op);
}

enum call_result call_table_post(struct call_table *table, const struct call_args *args, size_t element,
                                 uint64_t adopted, struct op **out) {
    if (call_table_find(table, args->tag) != NULL) return CALL_TAG_LIVE;
    if (table->live + table->extra >= WIRE_MAX_LIVE_OPS) return CALL_TOO_MANY;
    struct op *op = new_op(table, args->tag);
    if (op == NULL) {
        fail(table);
        return CALL_NO_MEMORY;
    }
    op->args = *args;
    op->adopted = adopted;
    op->element = element;
    op->count = args->fingerprint.count;
    op_measure(op);
    table->live++;
    *out = op;
    start(table, op);
    return CALL_OK;
}

// An op without a name, or without a verdict in the epoch in force, is cancelled when it begins there.
void call_table_cancel(struct call_table *table, struct op *call) {
    if (call->phase == OP_ENDED || call->cancel) return;
    call->cancel = true;
    for (struct op *part = segments_part(call, NULL); part != NULL; part = segments_part(call, part))
        if (op_has_begun(part) && !part->frozen) {
            table->driver.cancel(table->driver.context, &part->name);
            return;
        }
}

void call_table_take(struct call_table *table, struct op *op, struct call_outcome *out) {
    *out = op->outcome;
    if (out->result == CALL_OK && op->segments == NULL && op->args.retry) out->epoch = op->name.epoch;
    out->retry = op->args.retry;
    if (op->args.tell) out->contributors = segments_contributors(op);
    if (op->segments != NULL) {
        call_table_remove_segments(table, op, false);
        segments_free(op);
    }
    table->live--;
    free_op(table, op, false);
}

void call_table_remove_segments(struct call_table *table, struct op *parent, bool restore) {
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++) {
        struct op *op = parent->segments->ops[i];
        if (op == NULL) continue;
        if (op->phase == OP_WAITING) op_queue_remove(&table->waiting, op);
        segments_remove(op);
        free_op(table, op, restore);
    }
}

void call_table_free_ops(struct call_table *table) {
    op_counters_clear(&table->counters);
    verdicts_clear(&table->verdicts);
    for (size_t i = 0; i < TAG_SLOTS; i++)
        while (table->table[i] != NULL) {
            struct op *op = table->table[i];
            if (op->segments != NULL) segments_free(op);
            free_op(table, op, op->outcome.result != CALL_OK);
        }
    while (table->unused != NULL) {
        struct op *op = table->unused;
        table->unused = op->chain;
        free(op);
    }
    free(table->members);
    team_free(table->team);
    epoch_put(table->now);
}
