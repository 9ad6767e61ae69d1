// Messages of members to each other about their ops: those that come before an op is posted, signals and inputs of one
// that runs, and results with their acknowledgements after its end.
//
// Signals, inputs and first chunks may come before their op is posted here. What they hold is bounded by the sender: it
// counts the inputs and chunks that it has sent and the receiver has not shown to have posted (data/algorithms/direct,
// data/algorithms/ring). What lies here was sent and is not posted, so it is part of that count, and a member that
// keeps to the bound is never found above it. Beyond it a frame is a violation, and its link is closed. No link ever
// waits for room: READY, ACK and heartbeats behind an early input are heard, and ops posted in different orders cannot
// wait for each other.
//
// A small op is over for a member as soon as it has all inputs, without the master. What makes that safe when a member
// dies half-way through its sends: whoever has the result keeps it until all others are known to have it too, by an
// ACK, or by a signal of the next op of the same tag, which implies one. After a loss the master asks who stands where;
// what anyone kept is supplied to those that lack it.
#include "ops/call_table_private.h"

#include <stdlib.h>

enum { ACK_BYTES = 512 * 1024 }; // results kept by a member for want of our acks, then they are sent

// ---- what comes before its op ----
uint64_t call_table_unexpected_limit(uint32_t members) {
    uint64_t part = UNEXPECTED_ALL_BYTES / (members - 1);
    return part < UNEXPECTED_BYTES ? part : UNEXPECTED_BYTES;
}

static void uncount(const struct unexpected *unexpected) {
    unexpected->from->unexpected_count--;
    unexpected->from->unexpected_bytes -= unexpected->bytes;
}

// Adds a copy of `what`, and takes its block. False: there are too many, or memory was refused.
static bool unexpected_add(struct call_table *table, const struct unexpected *what) {
    struct op_member *from = what->from;
    if (from->unexpected_count >= UNEXPECTED_MAX ||
        from->unexpected_bytes + what->bytes > call_table_unexpected_limit(table->now->ring.count))
        return false;
    struct unexpected *unexpected = malloc(sizeof *unexpected),
                      **slot = &table->unexpected.slots[tag_slot(what->head.op.tag)];
    if (unexpected == NULL) {
        table->driver.failed(table->driver.context);
        return false;
    }
    *unexpected = *what;
    unexpected->next = *slot;
    *slot = unexpected;
    from->unexpected_count++;
    from->unexpected_bytes += what->bytes;
    return true;
}

// Returns the data that arrived from a member for an op; the caller frees it, and the block's reference. NULL: none.
static struct unexpected *unexpected_take(struct unexpected_table *table, const struct op_member *from,
                                          const struct wire_op *op, uint16_t type) {
    for (struct unexpected **at = &table->slots[tag_slot(op->tag)]; *at != NULL; at = &(*at)->next) {
        struct unexpected *unexpected = *at;
        if (unexpected->from != from || unexpected->type != type || !op_is_same(&unexpected->head.op, op)) continue;
        *at = unexpected->next;
        uncount(unexpected);
        return unexpected;
    }
    return NULL;
}

bool call_table_has_unexpected(const struct call_table *table, uint64_t tag, const struct wire_id *from) {
    const struct unexpected *at = table->unexpected.slots[tag_slot(tag)];
    while (at != NULL && (at->head.op.tag != tag || !wire_id_equal(&at->from->id, from))) at = at->next;
    return at != NULL;
}

void call_table_clear_unexpected(struct call_table *table) {
    struct unexpected **slots = table->unexpected.slots;
    for (size_t i = 0; i < TAG_SLOTS; i++)
        while (slots[i] != NULL) {
            struct unexpected *unexpected = slots[i];
            slots[i] = unexpected->next;
            uncount(unexpected);
            if (unexpected->block != NULL) table->driver.put(table->driver.context, unexpected->block);
            free(unexpected);
        }
}

// ---- acknowledgements of what others keep ----
static void acks_send(struct op_member *to, bool ask, const struct op_driver *driver) {
    if (to->ack_count > 0 || ask) driver->acknowledge(driver->context, to, to->acks, to->ack_count, ask);
    to->ack_count = 0;
    to->ack_bytes = 0;
}

// Sent when there are many, or when the next signal does not imply it.
static void acks_add(struct op_member *to, const struct wire_op_name *name, uint64_t bytes,
                     const struct op_driver *driver) {
    to->acks[to->ack_count] = *name;
    to->ack_sizes[to->ack_count++] = bytes;
    to->ack_bytes += bytes;
    if (to->ack_count == OP_ACKS_MAX || to->ack_bytes >= ACK_BYTES || to->draining) acks_send(to, false, driver);
}

void call_table_drop_implied(struct op_member *to, const struct wire_op_name *name) {
    for (uint32_t i = 0; i < to->ack_count; i++) {
        const struct wire_op_name *ack = &to->acks[i];
        if (ack->tag != name->tag || ack->epoch != name->epoch || ack->sequence + 1 != name->sequence) continue;
        to->ack_bytes -= to->ack_sizes[i];
        to->acks[i] = to->acks[--to->ack_count];
        to->ack_sizes[i] = to->ack_sizes[to->ack_count];
        return;
    }
}

// ---- results that others may lack ----
static void drop(struct retained_table *table, struct retained **at, const struct op_driver *driver) {
    struct retained *retained = *at;
    *at = retained->next;
    call_table_free_retained(retained, driver);
    if (--table->count == 0) driver->drained(driver->context);
}

static struct retained **find(struct retained_table *table, const struct wire_op_name *name) {
    struct retained **at = &table->slots[tag_slot(name->tag)];
    while (*at != NULL && !wire_op_name_equal(&(*at)->name, name)) at = &(*at)->next;
    return at;
}

// Takes it: a result of that name, which all other members of the epoch (by rank; NULL: this one) have to acknowledge.
static void retained_add(struct retained_table *table, struct retained *retained, const struct wire_op_name *name,
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

static void retained_acked(struct retained_table *table, struct op_member *from, const struct wire_op_name *name,
                           const struct op_driver *driver) {
    struct retained **at = find(table, name);
    if (*at != NULL && strike(*at, from)) drop(table, at, driver);
}

// A signal of this op came: who sends it has the result of the op before it, of the same tag.
static void retained_implied(struct retained_table *table, struct op_member *from, uint64_t epoch,
                             const struct wire_op *next, const struct op_driver *driver) {
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

bool call_table_appoint(struct call_table *table, const struct wire_verdict *verdict, bool supplier) {
    struct op_member *const *members = table->members;
    uint32_t count = table->now->ring.count;
    struct retained **at = find(&table->retained, &verdict->name);
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
        drop(&table->retained, at, &table->driver);
    else if (supplier && table->ready)
        supply(retained, &table->driver);
    return true;
}

void call_table_supply(const struct call_table *table) {
    for (size_t i = 0; i < TAG_SLOTS && table->retained.count > 0; i++)
        for (const struct retained *retained = table->retained.slots[i]; retained != NULL; retained = retained->next)
            if (retained->supplier) supply(retained, &table->driver);
}

static void retained_forget(struct retained_table *table, const struct op_member *member,
                            const struct op_driver *driver) {
    for (size_t i = 0; i < TAG_SLOTS && table->count > 0; i++)
        for (struct retained **at = &table->slots[i]; *at != NULL;)
            if (strike(*at, member))
                drop(table, at, driver);
            else
                at = &(*at)->next;
}

// ---- what comes from others ----
// Returns true if an operation, or a segment, that does not run here began here in this epoch and is over. A member
// does not wait for one that sends it nothing, whose frames may come later. Segments of one sequence begin one after
// another, and after a loss each as its verdict comes.
bool call_table_is_over(const struct call_table *table, const struct wire_op *op) {
    if (op->sequence > op_counter_last(&table->counters, op->tag)) return false;
    const struct op *call = call_table_find(table, op->tag);
    return call == NULL || !segments_lack(call, table->now->group_epoch, op->sequence, op->segment);
}

bool call_table_signal(struct call_table *table, struct op_member *from, uint16_t type, const struct wire_head *head,
                       struct block *block, size_t bytes) {
    const struct op_driver *driver = &table->driver;
    const struct wire_op *what = &head->op;
    if (what->sequence > 1) retained_implied(&table->retained, from, table->now->group_epoch, what, driver);
    struct op *op = call_table_find_running(table, what);
    bool good = true;
    if (op != NULL && !wire_fingerprint_equal(&op->args.fingerprint, &what->fingerprint)) {
        call_table_report_mismatch(table, op, from, &what->fingerprint);
    } else if (op != NULL && team_place(op->team, from) == SUBGROUP_NOBODY) {
        good = false; // it names the same members, and is none of them
    } else if (op == NULL ? !call_table_is_over(table, what) : op->phase == OP_QUEUED) {
        struct unexpected unexpected = {
            .from = from, .type = type, .head = *head, .block = block, .bytes = bytes, .heard_ns = from->heard_ns};
        // Nobody can grant more to a member that has not begun.
        good = type == WIRE_GRANT || unexpected_add(table, &unexpected);
        if (good) return true;
    } else if (op != NULL) {
        return driver->signal(driver->context, op, from, type, head, block);
    }
    if (block != NULL) driver->put(driver->context, block);
    return good;
}

struct unexpected *call_table_unexpected(struct call_table *table, const struct op *op, const struct op_member *from,
                                         uint16_t type) {
    struct wire_op what = op_on_wire(op);
    return unexpected_take(&table->unexpected, from, &what, type);
}

void call_table_acked(struct call_table *table, struct op_member *from, const struct wire_op_name *names,
                      uint32_t count, bool asked) {
    for (uint32_t i = 0; i < count; i++) retained_acked(&table->retained, from, &names[i], &table->driver);
    if (!asked) return;
    from->draining = true;
    acks_send(from, false, &table->driver);
}

void call_table_drain(struct call_table *table) {
    for (uint32_t i = 0; i < table->now->ring.count && table->ready; i++)
        if (table->members[i] != NULL) acks_send(table->members[i], true, &table->driver);
}

void call_table_forget(struct call_table *table, const struct op_member *member) {
    retained_forget(&table->retained, member, &table->driver);
}

// A member alone has nobody to keep a result for.
static void keep(struct call_table *table, struct retained *retained, const struct op *op, struct block *result) {
    retained->result = result;
    if (op->team->count < 2)
        call_table_free_retained(retained, &table->driver);
    else
        retained_add(&table->retained, retained, &op->name, op->team->members, op->team->count);
}

static void acknowledge(struct call_table *table, const struct op *op, bool now) {
    for (uint32_t i = 0; i < op->team->count; i++) {
        struct op_member *member = op->team->members[i];
        if (member == NULL) continue;
        acks_add(member, &op->name, op->result_bytes, &table->driver);
        if (now) acks_send(member, false, &table->driver);
    }
}

bool call_table_complete(struct call_table *table, struct op *op) {
    if (op->phase != OP_RUNNING || op->mismatch_reported) return false;
    if (op->algorithm != PLAN_SMALL) {
        op->phase = OP_COMPLETE;
        return true;
    }
    keep(table, op->retained, op, op->result);
    op->retained = NULL;
    op->result = NULL;
    acknowledge(table, op, false);
    call_table_end(table, op, CALL_OK);
    return false;
}

// A supplied member holds the result for the others as if it had completed the op itself: the supplier may die before
// it has reached them.
void call_table_supplied(struct call_table *table, const struct wire_op_name *name, struct block *result) {
    const struct op_driver *driver = &table->driver;
    struct op *op = call_table_find(table, name->tag);
    bool wanted = op != NULL && op->frozen && op->phase != OP_ENDED && op->algorithm == PLAN_SMALL &&
                  wire_op_name_equal(&op->name, name);
    bool ready = wanted && call_table_find_team(table, op); // of this epoch, since the op was begun in an older one
    struct retained *retained = ready ? call_table_new_retained(op->team->count) : NULL;
    if (wanted && retained == NULL) table->driver.failed(table->driver.context);
    if (retained == NULL || !driver->fill(driver->context, op, result)) {
        free(retained);
        driver->put(driver->context, result);
        return;
    }
    keep(table, retained, op, result);
    acknowledge(table, op, true);
    call_table_end(table, op, CALL_OK);
}

void call_table_fini(struct call_table *table) {
    call_table_clear_unexpected(table);
    for (size_t i = 0; i < TAG_SLOTS; i++)
        while (table->retained.slots[i] != NULL) drop(&table->retained, &table->retained.slots[i], &table->driver);
    call_table_free_ops(table);
}
