#include "ops/unexpected.h"

#include <stdlib.h>

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
