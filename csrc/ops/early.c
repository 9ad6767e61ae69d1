#include "ops/early.h"

#include <stdlib.h>

uint64_t early_limit(uint32_t members) {
    uint64_t share = EARLY_ALL_BYTES / (members - 1);
    return share < EARLY_BYTES ? share : EARLY_BYTES;
}

static void uncount(const struct early *early) {
    early->from->early_count--;
    early->from->early_bytes -= early->bytes;
}

enum early_result early_add(struct early_table *table, const struct early *what, uint32_t members) {
    struct op_member *from = what->from;
    if (from->early_count >= EARLY_MAX || from->early_bytes + what->bytes > early_limit(members)) return EARLY_TOO_MANY;
    struct early *early = malloc(sizeof *early), **slot = &table->slots[tag_slot(what->head.tag)];
    if (early == NULL) return EARLY_NO_MEMORY;
    *early = *what;
    early->next = *slot;
    *slot = early;
    from->early_count++;
    from->early_bytes += what->bytes;
    return EARLY_OK;
}

static bool same_op(const struct wire_op *a, const struct wire_op *b) {
    return a->tag == b->tag && a->sequence == b->sequence && a->segment == b->segment;
}

struct early *early_take(struct early_table *table, const struct op_member *from, const struct wire_op *head,
                         uint16_t type) {
    for (struct early **at = &table->slots[tag_slot(head->tag)]; *at != NULL; at = &(*at)->next) {
        struct early *early = *at;
        if (early->from != from || early->type != type || !same_op(&early->head, head)) continue;
        *at = early->next;
        uncount(early);
        return early;
    }
    return NULL;
}

const struct early *early_differing(const struct early *at, const struct wire_op *head) {
    while (at != NULL &&
           (!same_op(&at->head, head) || wire_fingerprint_equal(&at->head.fingerprint, &head->fingerprint)))
        at = at->next;
    return at;
}

void early_clear(struct early_table *table, const struct op_driver *driver) {
    for (size_t i = 0; i < TAG_SLOTS; i++)
        while (table->slots[i] != NULL) {
            struct early *early = table->slots[i];
            table->slots[i] = early->next;
            uncount(early);
            if (early->block != NULL) driver->put(driver->context, early->block);
            free(early);
        }
}
