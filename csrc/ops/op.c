#include "ops/op.h"

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

void op_head(const struct op *op, struct wire_op *out) {
    *out = (struct wire_op){.tag = op->args.tag,
                            .fingerprint = op->args.fingerprint,
                            .segment = op->name.segment,
                            .sequence = op->name.sequence};
}
