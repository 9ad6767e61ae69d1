#include "ops/op.h"

void op_queue_append(struct op_queue *queue, struct op *op) {
    *(queue->first == NULL ? &queue->first : &queue->last->next) = op;
    op->next = NULL;
    queue->last = op;
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

bool op_is_in_place(const struct op *op) {
    return op_collective(op)->reduces && op->in_bytes > 0 && op->out_bytes > 0 && op->args.send == op->args.recv;
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

uint64_t op_part_bytes(const struct op *op, uint32_t rank) {
    const struct plan_collective *collective = op_collective(op);
    if (collective->reduces || op->args.fingerprint.kind == PLAN_ALL_TO_ALL) return op->bytes;
    if (collective->gathers) return op->args.parts->sizes[rank] * op->element;
    return collective->rooted && rank == op->args.root ? op->bytes : 0;
}

struct wire_op op_on_wire(const struct op *op) {
    return (struct wire_op){.tag = op->args.tag,
                            .fingerprint = op->args.fingerprint,
                            .segment = op->name.segment,
                            .sequence = op->name.sequence};
}
