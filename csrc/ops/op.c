#include "ops/op.h"

#include <stdlib.h>

enum {
    TAGS_MAX = 1 << 16, // distinct tags in one group epoch, then a fresh one is wanted
    OPS_MAX = 1 << 30,  // ops of one tag in one group epoch, then likewise
    FIRST_SLOTS = 64,
};

void op_queue_append(struct op_queue *queue, struct op *op) {
    *(queue->first == NULL ? &queue->first : &queue->last->next) = op;
    op->next = NULL;
    queue->last = op;
}

void op_queue_insert(struct op_queue *queue, struct op *op) {
    struct op *before = NULL, *at = queue->first;
    if (at == NULL || op->args.background || !queue->last->args.background) {
        op_queue_append(queue, op);
        return;
    }
    for (; !at->args.background; at = at->next) before = at;
    *(before == NULL ? &queue->first : &before->next) = op;
    op->next = at;
}

struct op *op_queue_pop(struct op_queue *queue) {
    struct op *op = queue->first;
    if (op != NULL) queue->first = op->next;
    return op;
}

void op_queue_remove(struct op_queue *queue, struct op *op) {
    struct op *before = NULL, *at = queue->first;
    for (; at != NULL && at != op; at = at->next) before = at;
    if (at == NULL) return;
    *(before == NULL ? &queue->first : &before->next) = op->next;
    if (queue->last == op) queue->last = before;
}

void op_measure(struct op *op) {
    const struct plan_collective *collective = op_collective(op);
    const struct call_parts *parts = op->args.parts;
    bool root = collective->rooted && op_is_root(op);
    op->bytes = op->result_bytes = op->in_bytes = op->out_bytes = op->count * op->element;
    if (collective->divided) {
        op->in_bytes = parts->in * op->element;
        op->out_bytes = parts->out * op->element;
    } else if (collective->rooted) {
        if (collective->reduces && !root) op->out_bytes = 0;
        if (!collective->reduces) *(root ? &op->out_bytes : &op->in_bytes) = 0;
    }
    if (op->args.fingerprint.kind == PLAN_ALL_TO_ALL) op->result_bytes *= op->args.subgroup->count;
}

struct wire_op op_on_wire(const struct op *op) {
    return (struct wire_op){.tag = op->args.tag,
                            .fingerprint = op->args.fingerprint,
                            .segment = op->name.segment,
                            .sequence = op->name.sequence};
}

// ---- tags ----
static struct op_counter *slot_of(struct op_counter *list, uint32_t slots, uint64_t tag) {
    uint32_t at = (uint32_t)((tag * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (slots - 1);
    while (list[at].next != 0 && list[at].tag != tag) at = (at + 1) & (slots - 1);
    return &list[at];
}

static bool grow(struct op_counters *counters) {
    uint32_t slots = counters->slots == 0 ? FIRST_SLOTS : counters->slots * 2;
    struct op_counter *grown = calloc(slots, sizeof *grown);
    if (grown == NULL) return false;
    for (uint32_t i = 0; i < counters->slots; i++)
        if (counters->list[i].next != 0) *slot_of(grown, slots, counters->list[i].tag) = counters->list[i];
    free(counters->list);
    counters->list = grown;
    counters->slots = slots;
    return true;
}

bool op_counters_reserve(struct op_counters *counters) {
    return counters->count * 2 < counters->slots || grow(counters);
}

bool op_counter_take(struct op_counters *counters, uint64_t tag, uint32_t *sequence) {
    if (!op_counters_reserve(counters)) return false;
    struct op_counter *counter = slot_of(counters->list, counters->slots, tag);
    if (counter->next == 0) {
        counters->count++;
        counter->tag = tag;
    }
    *sequence = ++counter->next;
    counters->full |= counters->count > TAGS_MAX || counter->next > OPS_MAX;
    return true;
}

uint32_t op_counter_last(const struct op_counters *counters, uint64_t tag) {
    return counters->slots == 0 ? 0 : slot_of(counters->list, counters->slots, tag)->next;
}

void op_counters_clear(struct op_counters *counters) {
    free(counters->list);
    *counters = (struct op_counters){0};
}
