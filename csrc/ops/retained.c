// Results of small ops that this member has and others may still lack, and the acknowledgements of theirs.
//
// A small op is over for a member as soon as it has all inputs, without the master. What makes that safe when a member
// dies half-way through its sends: whoever has the result keeps it until all others are known to have it too, by an
// ACK, or by a signal of the next op of the same tag, which implies one. After a loss the master asks who stands where;
// what anyone kept is supplied to those that lack it.
#include "ops/call_table_private.h"

#include <stdlib.h>

enum { ACK_BYTES = 512 * 1024 }; // results kept by a member for want of our acks, then they are sent

// ---- results ----
struct retained *retained_new(uint32_t members) {
    return calloc(1, sizeof(struct retained) + members * sizeof(struct op_member *));
}

void retained_free(struct retained *retained, const struct op_driver *driver) {
    if (retained->result != NULL) driver->put(driver->context, retained->result);
    free(retained);
}

static void drop(struct retained_table *table, struct retained **at, const struct op_driver *driver) {
    struct retained *retained = *at;
    *at = retained->next;
    retained_free(retained, driver);
    if (--table->count == 0) driver->drained(driver->context);
}

static struct retained **find(struct retained_table *table, const struct wire_op_name *name) {
    struct retained **at = &table->slots[tag_slot(name->tag)];
    while (*at != NULL && !wire_op_name_equal(&(*at)->name, name)) at = &(*at)->next;
    return at;
}

void retained_add(struct retained_table *table, struct retained *retained, const struct wire_op_name *name,
                  struct op_member *const *members, uint32_t count) {
    struct retained **slot = &table->slots[tag_slot(name->tag)];
    for (uint32_t i = 0; i < count; i++)
        if (members[i] != NULL) retained->unacked[retained->unacked_count++] = members[i];
    retained->name = *name;
    retained->next = *slot;
    *slot = retained;
    table->count++;
}

// True: nobody is left who lacks it.
static bool strike(struct retained *retained, const struct op_member *member) {
    for (uint32_t i = 0; i < retained->unacked_count; i++)
        if (retained->unacked[i] == member) retained->unacked[i--] = retained->unacked[--retained->unacked_count];
    return retained->unacked_count == 0;
}

void retained_acked(struct retained_table *table, struct op_member *from, const struct wire_op_name *name,
                    const struct op_driver *driver) {
    struct retained **at = find(table, name);
    if (*at != NULL && strike(*at, from)) drop(table, at, driver);
}

void retained_implied(struct retained_table *table, struct op_member *from, uint64_t epoch, const struct wire_op *next,
                      const struct op_driver *driver) {
    struct retained **at = &table->slots[tag_slot(next->tag)];
    while (*at != NULL &&
           ((*at)->name.tag != next->tag || (*at)->name.epoch != epoch || (*at)->name.sequence + 1 != next->sequence))
        at = &(*at)->next;
    if (*at != NULL && strike(*at, from)) drop(table, at, driver);
}

static void supply(const struct retained *retained, const struct op_driver *driver) {
    for (uint32_t i = 0; i < retained->unacked_count; i++)
        driver->supply(driver->context, retained->unacked[i], &retained->name, retained->result);
}

bool retained_appoint(struct retained_table *table, const struct wire_verdict *verdict, bool supplier, bool now,
                      struct op_member *const *members, uint32_t count, const struct op_driver *driver) {
    struct retained **at = find(table, &verdict->name);
    if (*at == NULL) return true;
    struct retained *retained = realloc(*at, sizeof *retained + count * sizeof(struct op_member *));
    if (retained == NULL) return false;
    *at = retained;
    retained->unacked_count = 0;
    for (uint32_t rank = 0; rank < count; rank++)
        for (uint32_t i = 0; i < verdict->count && members[rank] != NULL; i++)
            if (wire_id_equal(&members[rank]->id, &verdict->needy[i])) {
                retained->unacked[retained->unacked_count++] = members[rank];
                break;
            }
    retained->supplier = supplier;
    if (retained->unacked_count == 0)
        drop(table, at, driver);
    else if (supplier && now)
        supply(retained, driver);
    return true;
}

void retained_supply(const struct retained_table *table, const struct op_driver *driver) {
    for (size_t i = 0; i < TAG_SLOTS && table->count > 0; i++)
        for (const struct retained *retained = table->slots[i]; retained != NULL; retained = retained->next)
            if (retained->supplier) supply(retained, driver);
}

void retained_forget(struct retained_table *table, const struct op_member *member, const struct op_driver *driver) {
    for (size_t i = 0; i < TAG_SLOTS && table->count > 0; i++)
        for (struct retained **at = &table->slots[i]; *at != NULL;)
            if (strike(*at, member))
                drop(table, at, driver);
            else
                at = &(*at)->next;
}

void retained_clear(struct retained_table *table, const struct op_driver *driver) {
    for (size_t i = 0; i < TAG_SLOTS; i++)
        while (table->slots[i] != NULL) drop(table, &table->slots[i], driver);
}

// ---- acknowledgements ----
void acks_send(struct op_member *to, bool ask, const struct op_driver *driver) {
    if (to->ack_count > 0 || ask) driver->acknowledge(driver->context, to, to->acks, to->ack_count, ask);
    to->ack_count = 0;
    to->ack_bytes = 0;
}

void acks_add(struct op_member *to, const struct wire_op_name *name, uint64_t bytes, const struct op_driver *driver) {
    to->acks[to->ack_count++] = *name;
    to->ack_bytes += bytes;
    if (to->ack_count == OP_ACKS_MAX || to->ack_bytes >= ACK_BYTES || to->draining) acks_send(to, false, driver);
}

void acks_drop_implied(struct op_member *to, const struct wire_op_name *name) {
    for (uint32_t i = 0; i < to->ack_count; i++) {
        const struct wire_op_name *ack = &to->acks[i];
        if (ack->tag != name->tag || ack->epoch != name->epoch || ack->sequence + 1 != name->sequence) continue;
        to->acks[i] = to->acks[--to->ack_count];
        return;
    }
}
