#include "ops/kept.h"

#include <stdlib.h>

enum { ACK_BYTES = 512 * 1024 }; // results kept by a member for want of our acks, then they are sent

// ---- results ----
struct kept *kept_new(uint32_t members) {
    return calloc(1, sizeof(struct kept) + members * sizeof(struct op_member *));
}

void kept_free(struct kept *kept, const struct op_driver *driver) {
    if (kept->result != NULL) driver->put(driver->context, kept->result);
    free(kept);
}

static void drop(struct kept_table *table, struct kept **at, const struct op_driver *driver) {
    struct kept *kept = *at;
    *at = kept->next;
    kept_free(kept, driver);
    if (--table->count == 0) driver->settled(driver->context);
}

static struct kept **find(struct kept_table *table, const struct wire_op_name *name) {
    struct kept **at = &table->slots[tag_slot(name->tag)];
    while (*at != NULL && !wire_op_name_equal(&(*at)->name, name)) at = &(*at)->next;
    return at;
}

void kept_add(struct kept_table *table, struct kept *kept, const struct wire_op_name *name,
              struct op_member *const *members, uint32_t count) {
    struct kept **slot = &table->slots[tag_slot(name->tag)];
    for (uint32_t i = 0; i < count; i++)
        if (members[i] != NULL) kept->unacked[kept->unacked_count++] = members[i];
    kept->name = *name;
    kept->next = *slot;
    *slot = kept;
    table->count++;
}

// True: nobody is left who lacks it.
static bool strike(struct kept *kept, const struct op_member *member) {
    for (uint32_t i = 0; i < kept->unacked_count; i++)
        if (kept->unacked[i] == member) kept->unacked[i--] = kept->unacked[--kept->unacked_count];
    return kept->unacked_count == 0;
}

void kept_acked(struct kept_table *table, struct op_member *from, const struct wire_op_name *name,
                const struct op_driver *driver) {
    struct kept **at = find(table, name);
    if (*at != NULL && strike(*at, from)) drop(table, at, driver);
}

static void supply(const struct kept *kept, const struct op_driver *driver) {
    for (uint32_t i = 0; i < kept->unacked_count; i++)
        driver->supply(driver->context, kept->unacked[i], &kept->name, kept->result);
}

bool kept_appoint(struct kept_table *table, const struct wire_verdict *verdict, bool supplier, bool now,
                  struct op_member *const *members, uint32_t count, const struct op_driver *driver) {
    struct kept **at = find(table, &verdict->name);
    if (*at == NULL) return true;
    struct kept *kept = realloc(*at, sizeof *kept + count * sizeof(struct op_member *));
    if (kept == NULL) return false;
    *at = kept;
    kept->unacked_count = 0;
    for (uint32_t rank = 0; rank < count; rank++)
        for (uint32_t i = 0; i < verdict->count && members[rank] != NULL; i++)
            if (wire_id_equal(&members[rank]->id, &verdict->needy[i])) {
                kept->unacked[kept->unacked_count++] = members[rank];
                break;
            }
    kept->supplier = supplier;
    if (kept->unacked_count == 0)
        drop(table, at, driver);
    else if (supplier && now)
        supply(kept, driver);
    return true;
}

void kept_supply(const struct kept_table *table, const struct op_driver *driver) {
    for (size_t i = 0; i < TAG_SLOTS && table->count > 0; i++)
        for (const struct kept *kept = table->slots[i]; kept != NULL; kept = kept->next)
            if (kept->supplier) supply(kept, driver);
}

void kept_forget(struct kept_table *table, const struct op_member *member, const struct op_driver *driver) {
    for (size_t i = 0; i < TAG_SLOTS && table->count > 0; i++)
        for (struct kept **at = &table->slots[i]; *at != NULL;)
            if (strike(*at, member))
                drop(table, at, driver);
            else
                at = &(*at)->next;
}

void kept_clear(struct kept_table *table, const struct op_driver *driver) {
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
    if (to->ack_count == OP_ACKS_MAX || to->ack_bytes >= ACK_BYTES || to->settling) acks_send(to, false, driver);
}

void acks_drop_implied(struct op_member *to, const struct wire_op_name *name) {
    for (uint32_t i = 0; i < to->ack_count; i++) {
        const struct wire_op_name *ack = &to->acks[i];
        if (ack->tag != name->tag || ack->epoch != name->epoch || ack->sequence + 1 != name->sequence) continue;
        to->acks[i] = to->acks[--to->ack_count];
        return;
    }
}
