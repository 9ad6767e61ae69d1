// Signals and inputs that come before the op that they are for is posted here.
//
// What they hold is bounded by the sender: it counts the inputs that it has sent and the receiver has not shown to have
// posted (direct.c). What lies here was sent and is not posted, so it is part of that count, and a member that keeps to
// the bound is never found above it. Beyond it a frame is a violation, and its link is closed. No link ever waits for
// room: READY, ACK and heartbeats behind an early input are heard, and ops posted in different orders cannot wait for
// each other.
#define _GNU_SOURCE
#include <stdlib.h>

#include "data/op.h"

static struct early **early_slot(struct engine *engine, uint64_t tag) { return &engine->early[table_slot(tag)]; }

uint64_t early_limit(const struct engine *engine) {
    uint64_t share = EAGER_ALL_BYTES / (engine->count - 1);
    return share < EAGER_BYTES ? share : EAGER_BYTES;
}

static size_t bytes_of(const struct block *block) { return block == NULL ? 0 : block->length; }

static void uncount(const struct early *early) {
    early->from->early_count--;
    early->from->early_bytes -= bytes_of(early->block);
}

bool early_add(struct engine *engine, struct peer *from, uint16_t type, const struct wire_op *head,
               struct block *block) {
    bool fits = from->early_count < EARLY_MAX && from->early_bytes + bytes_of(block) <= early_limit(engine);
    struct early *early = fits ? malloc(sizeof *early) : NULL;
    if (fits && early == NULL) engine_fail(engine);
    if (early == NULL) {
        block_put(engine, block);
        return false;
    }
    struct early **slot = early_slot(engine, head->tag);
    *early = (struct early){.next = *slot, .from = from, .type = type, .head = *head, .block = block};
    *slot = early;
    from->early_count++;
    from->early_bytes += bytes_of(block);
    return true;
}

static bool same_op(const struct wire_op *a, const struct wire_op *b) {
    return a->tag == b->tag && a->sequence == b->sequence && a->segment == b->segment;
}

struct early *early_take(struct engine *engine, const struct peer *from, const struct wire_op *head, uint16_t type) {
    for (struct early **at = early_slot(engine, head->tag); *at != NULL; at = &(*at)->next) {
        struct early *early = *at;
        if (early->from != from || !same_op(&early->head, head) || early->type != type) continue;
        *at = early->next;
        uncount(early);
        return early;
    }
    return NULL;
}

void early_free(struct engine *engine, struct early *early) {
    block_put(engine, early->block);
    free(early);
}

void early_clear(struct engine *engine) {
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        while (engine->early[i] != NULL) {
            struct early *early = engine->early[i];
            engine->early[i] = early->next;
            uncount(early);
            early_free(engine, early);
        }
}

// Another path than ours, so nobody else looks at it: any early signal whose arguments differ accuses.
void early_compare(struct engine *engine, struct op *op) {
    struct wire_op head;
    op_head(op, &head);
    for (struct early *early = *early_slot(engine, op->reduce.tag); early != NULL; early = early->next)
        if (same_op(&early->head, &head) && !wire_fingerprint_equal(&early->head.fingerprint, &op->reduce.fingerprint))
            engine_accuse(engine, op, early->from, &early->head.fingerprint);
}
