// What an op waits for, in words: for a caller that has waited long. Only what is known here is told; others may be
// waiting, too.
#include "data/op.h"

#include <stdio.h>

enum { NAMES = 4 };

static const char *name_of(char out[16], const struct peer *peer) {
    const uint8_t *id = peer->member.id.bytes;
    snprintf(out, 16, "peer %02x%02x%02x%02x", id[0], id[1], id[2], id[3]);
    return out;
}

static void small_waits(const struct engine *engine, const struct op *op, char *out, size_t capacity) {
    uint32_t missing = 0;
    size_t at = 0;
    char names[NAMES * 16 + 8] = "", name[16];
    for (uint32_t i = 0; i < engine->count; i++) {
        if (i == engine->rank || peer_at(engine, i) == NULL || op->parts[i].block != NULL || missing++ >= NAMES)
            continue;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at > 0 ? ", " : "",
                               name_of(name, peer_at(engine, i)));
    }
    snprintf(out, capacity, "nothing has come for it from %u of %u members: %s%s", missing, engine->count, names,
             missing > NAMES ? ", ..." : "");
}

void op_waits_for(const struct engine *engine, const struct op *op, char *out, size_t capacity) {
    char name[16];
    const struct peer *next = engine->count > 1 ? peer_at(engine, (engine->rank + 1) % engine->count) : NULL;
    if (op->phase == OP_WAITING || op->frozen)
        snprintf(out, capacity, "the links to the members are being made, or a master is looked for");
    else if (op->phase == OP_RUNNING && op->path == PLAN_SMALL && op->parts != NULL &&
             op->contributors == engine->count)
        small_waits(engine, op, out, capacity);
    else if (op->phase == OP_RUNNING && op->path == PLAN_RING && !op->next_ready && next != NULL)
        snprintf(out, capacity, "%s has not begun it", name_of(name, next));
    else if (op->phase == OP_COMPLETE)
        snprintf(out, capacity, "it is complete here, and other members have yet to complete it");
    else
        snprintf(out, capacity, "other members have yet to send their part, or wait for others themselves");
}
