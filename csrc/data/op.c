// Ops by tag.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "data/frame.h"
#include "data/op.h"
#include "data/pool.h"

struct op *op_find(struct engine *engine, uint64_t tag) {
    struct op *op = engine->table[table_slot(tag)];
    while (op != NULL && (op->reduce.tag != tag || op->whole != NULL)) op = op->chain;
    return op;
}

struct op *op_find_running(struct engine *engine, const struct wire_op *head) {
    for (struct op *op = engine->table[table_slot(head->tag)]; op != NULL; op = op->chain) {
        bool begun = op->phase == OP_QUEUED || op->phase == OP_RUNNING || op->phase == OP_COMPLETE;
        if (begun && !op->frozen && op->reduce.tag == head->tag && op->name.sequence == head->sequence &&
            op->name.segment == head->segment && op->name.epoch == engine->epoch)
            return op;
    }
    return NULL;
}

struct op *op_find_named(struct engine *engine, const struct wire_op_name *name) {
    for (struct op *op = engine->table[table_slot(name->tag)]; op != NULL; op = op->chain)
        if ((op->phase == OP_RUNNING || op->phase == OP_COMPLETE) && wire_op_name_equal(&op->name, name)) return op;
    return NULL;
}

void ops_for_each(struct engine *engine, void (*act)(struct engine *, struct op *)) {
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct op *op = engine->table[i]; op != NULL; op = op->chain) act(engine, op);
}

void op_list_append(struct op_list *list, struct op *op) {
    *(list->first == NULL ? &list->first : &list->last->next) = op;
    op->next = NULL;
    list->last = op;
}

struct op *op_list_pop(struct op_list *list) {
    struct op *op = list->first;
    if (op != NULL) list->first = op->next;
    return op;
}

void op_list_remove(struct op_list *list, struct op *op) {
    struct op *before = NULL, *at = list->first;
    for (; at != NULL && at != op; at = at->next) before = at;
    if (at == NULL) return;
    *(before == NULL ? &list->first : &before->next) = op->next;
    if (list->last == op) list->last = before;
}

void roster_put(struct roster *roster) {
    if (roster != NULL && --roster->references == 0) free(roster);
}

struct op *op_new(struct engine *engine, uint64_t tag) {
    struct op *op = engine->free_ops;
    if (op != NULL) {
        engine->free_ops = op->chain;
    } else {
        op = calloc(1, sizeof *op);
        if (op == NULL) return NULL;
        if (!platform_cond_init(&op->ended)) {
            free(op);
            return NULL;
        }
    }
    // The condition variable stays: a waiter of the op's former life may still be signalled, which it survives.
    memset((char *)op + offsetof(struct op, reduce), 0, sizeof *op - offsetof(struct op, reduce));
    op->next = NULL;
    op->chain = engine->table[table_slot(tag)];
    engine->table[table_slot(tag)] = op;
    op->reduce.tag = tag;
    return op;
}

void op_free(struct engine *engine, struct op *op) {
    struct op **at = &engine->table[table_slot(op->reduce.tag)];
    while (*at != op) at = &(*at)->chain;
    *at = op->chain;
    roster_put(op->roster);
    op->roster = NULL;
    op->chain = engine->free_ops;
    engine->free_ops = op;
}

void op_end(struct engine *engine, struct op *op, enum engine_result result) {
    small_release(engine, op);
    ring_release(op);
    sharded_release(engine, op);
    op->outcome.result = result;
    op->outcome.info = (struct engine_info){op->contributors, op->tx_bytes, op->rx_bytes};
    op->phase = OP_ENDED;
    op->frozen = false;
    pthread_cond_broadcast(&op->ended);
    if (op->whole != NULL) segments_ended(engine, op);
}

void op_end_refused(struct engine *engine, struct op *op) {
    engine_fail(engine); // first: nothing is to begin in the place of the op
    op_end(engine, op, ENGINE_NO_MEMORY);
}

bool op_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end) {
    bool taken = ranges_take(ranges, begin, end);
    if (!taken && ranges->refused) engine_fail(engine);
    return taken;
}

void op_head(const struct op *op, struct wire_op *out) {
    *out = (struct wire_op){.tag = op->reduce.tag,
                            .fingerprint = op->reduce.fingerprint,
                            .segment = op->name.segment,
                            .sequence = op->name.sequence};
}

// ---- tag counters: open addressing, emptied with each epoch ----
static struct tag_counter *counter_slot(struct tag_counter *slots, uint32_t count, uint64_t tag) {
    uint32_t at = (uint32_t)((tag * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (count - 1);
    while (slots[at].next != 0 && slots[at].tag != tag) at = (at + 1) & (count - 1);
    return &slots[at];
}

static bool counters_grow(struct engine *engine) {
    uint32_t slots = engine->counter_slots == 0 ? 64 : engine->counter_slots * 2;
    struct tag_counter *grown = calloc(slots, sizeof *grown);
    if (grown == NULL) return false;
    for (uint32_t i = 0; i < engine->counter_slots; i++)
        if (engine->counters[i].next != 0) *counter_slot(grown, slots, engine->counters[i].tag) = engine->counters[i];
    free(engine->counters);
    engine->counters = grown;
    engine->counter_slots = slots;
    return true;
}

bool counter_take(struct engine *engine, uint64_t tag, uint32_t *sequence) {
    if (engine->counter_count * 2 >= engine->counter_slots && !counters_grow(engine)) return false;
    struct tag_counter *counter = counter_slot(engine->counters, engine->counter_slots, tag);
    if (counter->next == 0) {
        engine->counter_count++;
        counter->tag = tag;
    }
    *sequence = ++counter->next;
    engine->roll_wanted |= engine->counter_count > TAG_COUNTERS_MAX || counter->next > TAG_OPS_MAX;
    return true;
}

bool counter_is_spent(const struct engine *engine, uint64_t tag) {
    return engine->counter_slots > 0 && counter_slot(engine->counters, engine->counter_slots, tag)->next == UINT32_MAX;
}

void counters_clear(struct engine *engine) {
    free(engine->counters);
    engine->counters = NULL;
    engine->counter_slots = engine->counter_count = 0;
    engine->roll_wanted = engine->roll_asked = false;
}
