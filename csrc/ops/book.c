#include "ops/book.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/book_private.h"
#include "ops/segments.h"

// EXTRA_MAX: segments under way that are not the only one of their op; the rest is left to further calls.
enum { EXTRA_MAX = 3 * WIRE_MAX_LIVE_OPS / 4, LOST_TOLD = 8 };

// ---- life ----
void book_init(struct book *book, const struct op_driver *driver, size_t work_bytes) {
    *book = (struct book){.driver = *driver, .work_bytes = work_bytes, .now = epoch_get(epoch_none())};
}

void book_fini(struct book *book) {
    unexpected_clear(&book->unexpected, &book->driver);
    retained_clear(&book->retained, &book->driver);
    tag_counters_clear(&book->counters);
    mismatches_clear(&book->mismatches);
    for (size_t i = 0; i < TAG_SLOTS; i++)
        while (book->table[i] != NULL) {
            struct op *op = book->table[i];
            if (op->segments != NULL) segments_free(op);
            book_free_op(book, op, op->outcome.result != CALL_OK);
        }
    while (book->unused != NULL) {
        struct op *op = book->unused;
        book->unused = op->chain;
        free(op);
    }
    free(book->members);
    team_free(book->team);
    epoch_put(book->now);
}

static void fail(struct book *book) { book->driver.failed(book->driver.context); }

// ---- ops by tag ----
struct op *book_find(const struct book *book, uint64_t tag) {
    struct op *op = book->table[tag_slot(tag)];
    while (op != NULL && (op->args.tag != tag || op->parent != NULL)) op = op->chain;
    return op;
}

struct op *book_find_running(const struct book *book, const struct wire_op *head) {
    for (struct op *op = book->table[tag_slot(head->tag)]; op != NULL; op = op->chain)
        if (op_has_begun(op) && !op->frozen && op->args.tag == head->tag && op->name.sequence == head->sequence &&
            op->name.segment == head->segment && op->name.epoch == book->now->group_epoch)
            return op;
    return NULL;
}

void book_for_each(struct book *book, void (*act)(struct book *, struct op *)) {
    for (size_t i = 0; i < TAG_SLOTS; i++)
        for (struct op *op = book->table[i]; op != NULL; op = op->chain) act(book, op);
}

static struct op *new_op(struct book *book, uint64_t tag) {
    struct op *op = book->unused;
    if (op != NULL)
        book->unused = op->chain;
    else if ((op = malloc(sizeof *op + book->work_bytes)) == NULL)
        return NULL;
    memset(op, 0, sizeof *op + book->work_bytes);
    op->work = op + 1;
    op->chain = book->table[tag_slot(tag)];
    book->table[tag_slot(tag)] = op;
    op->args.tag = tag;
    return op;
}

void book_free_op(struct book *book, struct op *op, bool restore) {
    book->driver.forget(book->driver.context, op, restore);
    struct op **at = &book->table[tag_slot(op->args.tag)];
    while (*at != op) at = &(*at)->chain;
    *at = op->chain;
    epoch_put(op->epoch);
    op->epoch = NULL;
    if (op->parent == NULL) {
        group_put(op->args.group);
        free(op->args.parts);
    }
    op->chain = book->unused;
    book->unused = op;
}

// ---- ends ----
static void begin_segments(struct book *book, struct op *parent);

static void end_when_over(struct book *book, struct op *parent) {
    if (parent->segments->live == 0 && parent->phase != OP_ENDED) book_end(book, parent, parent->segments->failure);
}

static void end_segment(struct book *book, struct op *op) {
    struct op *parent = op->parent;
    if (segments_ended(op)) {
        segments_remove(op);
        book_free_op(book, op, false);
    }
    if (parent->segments->live > 0) book->extra--;
    if (parent->phase == OP_ENDED) return;
    begin_segments(book, parent);
    end_when_over(book, parent);
}

void book_release(struct book *book, struct op *op) {
    book->driver.release(book->driver.context, op);
    if (op->retained != NULL) retained_free(op->retained, &book->driver);
    op->retained = NULL;
}

void book_end(struct book *book, struct op *op, enum call_result result) {
    book_release(book, op);
    op->outcome.result = result;
    op->outcome.info = (struct call_info){op->contributors, op->tx_bytes, op->rx_bytes};
    op->phase = OP_ENDED;
    op->frozen = false;
    if (op->parent != NULL)
        end_segment(book, op);
    else
        book->driver.ended(book->driver.context, op);
}

// Writes the lost members of the group as text.
static void say_who(const struct book *book, struct op *op) {
    char *text = op->outcome.text;
    size_t at = 0;
    uint32_t told = 0;
    for (uint32_t rank = 0; rank < op->args.group->count; rank++) {
        if (group_has(op->args.group, rank, book->now)) continue;
        if (told++ == LOST_TOLD) snprintf(text + at, sizeof op->outcome.text - at, ", ...");
        if (told > LOST_TOLD) continue;
        at += (size_t)snprintf(text + at, sizeof op->outcome.text - at, "%s%u", at == 0 ? "rank " : ", rank ", rank);
    }
}

void book_end_lost(struct book *book, struct op *op) {
    uint64_t epoch = book_counted_loss(book, op);
    if (op->args.group != NULL) say_who(book, op);
    op->outcome.epoch = epoch != 0 ? epoch : book->now->group_epoch;
    book_end(book, op, CALL_LOST);
}

void book_refuse(struct book *book, struct op *op) {
    fail(book); // first: nothing is to begin in the place of the op
    book_end(book, op, CALL_NO_MEMORY);
}

static void end_dead(struct book *book, struct op *op) {
    if (op->phase != OP_ENDED) book_end(book, op, CALL_DEAD);
}

void book_end_all(struct book *book) {
    book->waiting.first = NULL;
    book_for_each(book, end_dead);
}

// ---- beginning ----
uint64_t book_counted_loss(const struct book *book, const struct op *op) {
    return op->args.retry || op->args.group != NULL ? 0 : book_first_loss(book, op->adopted);
}

uint64_t book_first_loss(const struct book *book, uint64_t adopted) {
    for (uint32_t i = 0; i < book->loss_count; i++)
        if (book->losses[i] > adopted) return book->losses[i];
    return 0;
}

static bool name(struct book *book, struct op *op) {
    bool named = op->parent != NULL ? segments_name(op, book->now->group_epoch, &book->counters)
                                    : tag_counter_take(&book->counters, op->args.tag, &op->name.sequence);
    op->name.epoch = book->now->group_epoch;
    op->name.tag = op->args.tag;
    op->name.list = op_list(op);
    if (book->counters.full && !book->epoch_requested) {
        book->epoch_requested = true;
        book->driver.request_epoch(book->driver.context);
    }
    return named;
}

// Reports any unexpected signal whose arguments differ: others may use another algorithm, so nobody else looks at it.
static void compare_unexpected(struct book *book, struct op *op) {
    struct wire_op head;
    op_head(op, &head);
    const struct unexpected *at = book->unexpected.slots[tag_slot(op->args.tag)];
    while ((at = unexpected_differing(at, &head)) != NULL) {
        book_report_mismatch(book, op, at->from, &at->head.fingerprint);
        at = at->next;
    }
}

// Without those of its group that are lost. Others decide alike, by the same epoch.
bool book_may_go_on(const struct book *book, const struct op *op) {
    const struct plan_collective *collective = op_collective(op);
    const struct group *group = op->args.group;
    if (group == NULL || group_living(group, book->now) == group->count) return true;
    return collective->survives && op->args.retry &&
           (!collective->rooted || group_has(group, op->args.root, book->now));
}

// Sets the op's team in the epoch in force. False: memory was refused.
static bool find_team(struct book *book, struct op *op) {
    struct team **newest = op->args.group == NULL ? &book->team : &op->args.group->team;
    if (*newest == NULL || (*newest)->epoch != book->now) {
        struct team *team = team_new(op->args.group, book->now, book->members);
        if (team == NULL) return false;
        team_free(*newest);
        *newest = team;
    }
    op->team = *newest;
    return true;
}

static void begin(struct book *book, struct op *op) {
    if (!book_may_go_on(book, op)) {
        book_end_lost(book, op);
        return;
    }
    if (tag_counter_is_spent(&book->counters, op->args.tag)) {
        // of the fresh epoch, which was asked for long ago; the others wait at the same op
        book_wait_for_links(book, op);
        return;
    }
    if (!name(book, op) || !find_team(book, op)) {
        book_refuse(book, op);
        return;
    }
    const struct epoch *now = book->now;
    epoch_put(op->epoch);
    op->epoch = epoch_get(now);
    op->contributors = op->team->count;
    op->mismatch_reported = op->mismatched = false;
    op->path = plan_path_of(&op->args.fingerprint, op->bytes, op->team->count, now->latency_us, now->megabytes_per_s,
                            op->team->spread != NULL);
    if (op->team->count < 2 && op->args.group == NULL) {
        book_end_lost(book, op); // alone: only a loss leads here
        return;
    }
    compare_unexpected(book, op);
    if ((op->parent != NULL ? op->parent : op)->cancel) book->driver.cancel(book->driver.context, &op->name);
    bool small = op->path == PLAN_SMALL;
    op->phase = small && op->args.queue == NULL ? OP_RUNNING : OP_QUEUED;
    if ((small && (op->retained = retained_new(op->team->count)) == NULL) ||
        !book->driver.start(book->driver.context, op))
        book_refuse(book, op);
}

void book_wait_for_links(struct book *book, struct op *op) {
    op->phase = OP_WAITING;
    op_list_append(&book->waiting, op);
}

void book_begin(struct book *book, struct op *op) {
    if (book->ready)
        begin(book, op);
    else
        book_wait_for_links(book, op);
}

static bool has_room_for_extra(const struct book *book) {
    const struct epoch *now = book->now;
    uint32_t useful = plan_extra_segments(now->ring.count, now->latency_us, now->megabytes_per_s);
    return book->extra < useful && book->extra < EXTRA_MAX && book->live + book->extra < WIRE_MAX_LIVE_OPS;
}

// A segment that cannot begin ends at once, and with it perhaps the call.
static void begin_segments(struct book *book, struct op *parent) {
    struct segments *s = parent->segments;
    while (segments_may_add(s, has_room_for_extra(book))) {
        struct op *op = new_op(book, parent->args.tag);
        if (op == NULL && s->live == 0) {
            s->failure = CALL_NO_MEMORY;
            fail(book);
        }
        if (op == NULL) return; // tried again when a segment has ended
        if (s->live > 0) book->extra++;
        segments_add(parent, op);
        book_begin(book, op);
    }
}

void book_begin_segments(struct book *book, struct op *parent) {
    begin_segments(book, parent);
    end_when_over(book, parent);
}

void book_links_ready(struct book *book) {
    if (book->ended_in == book->now->group_epoch && book->ended_in != 0) return; // another epoch follows
    book->ready = true;
    retained_supply(&book->retained, &book->driver);
    struct op_list waiting = book->waiting;
    book->waiting.first = NULL;
    for (struct op *op; (op = op_list_pop(&waiting)) != NULL;) book_begin(book, op);
}

bool book_take_mismatch(struct book *book, struct op *call, uint64_t loss) {
    return mismatches_take(&book->mismatches, call->args.tag, op_list(call), loss, call->outcome.text, &call->ending);
}

// ---- callers ----
static void start(struct book *book, struct op *op) {
    uint64_t loss = book_counted_loss(book, op);
    uint32_t segments = op->args.retry ? plan_segments(op->count, op->element) : 1;
    // A call that cannot continue is lost as soon as no newer epoch is known: the mismatch that others were told of is
    // of a later call.
    if (book_may_go_on(book, op) && book_take_mismatch(book, op, loss))
        book_end(book, op, op->ending);
    else if (loss != 0)
        book_end_lost(book, op);
    else if (segments == 1)
        book_begin(book, op);
    else if (segments_new(op))
        book_begin_segments(book, op);
    else
        book_refuse(book, op);
}

enum call_result book_post(struct book *book, const struct call_args *args, size_t element, uint64_t adopted,
                           struct op **out) {
    if (book_find(book, args->tag) != NULL) return CALL_TAG_LIVE;
    if (book->live + book->extra >= WIRE_MAX_LIVE_OPS) return CALL_TOO_MANY;
    struct op *op = new_op(book, args->tag);
    if (op == NULL) {
        fail(book);
        return CALL_NO_MEMORY;
    }
    op->args = *args;
    op->adopted = adopted;
    op->element = element;
    op->count = args->fingerprint.count;
    op_measure(op);
    book->live++;
    *out = op;
    start(book, op);
    return CALL_OK;
}

// An op without a name, or without a verdict in the epoch in force, is cancelled when it begins there.
void book_cancel(struct book *book, struct op *call) {
    if (call->phase == OP_ENDED || call->cancel) return;
    call->cancel = true;
    for (struct op *part = segments_part(call, NULL); part != NULL; part = segments_part(call, part))
        if (op_has_begun(part) && !part->frozen) {
            book->driver.cancel(book->driver.context, &part->name);
            return;
        }
}

void book_take(struct book *book, struct op *op, struct call_outcome *out) {
    *out = op->outcome;
    if (out->result == CALL_OK && op->segments == NULL && op->args.retry) out->epoch = op->name.epoch;
    out->retry = op->args.retry;
    if (op->args.tell) out->contributors = segments_contributors(op);
    if (op->segments != NULL) {
        book_remove_segments(book, op, false);
        segments_free(op);
    }
    book->live--;
    book_free_op(book, op, false);
}

void book_remove_segments(struct book *book, struct op *parent, bool restore) {
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++) {
        struct op *op = parent->segments->ops[i];
        if (op == NULL) continue;
        if (op->phase == OP_WAITING) op_list_remove(&book->waiting, op);
        segments_remove(op);
        book_free_op(book, op, restore);
    }
}

// ---- other members ----
// Of an op, or a segment, that does not run here, and that was begun here in this epoch and is over: a member that
// sends nothing to another one is not waited for by it. Segments of one sequence are begun one after another, and after
// a loss each as its verdict comes.
bool book_is_over(const struct book *book, const struct wire_op *head) {
    if (head->sequence > tag_counter_last(&book->counters, head->tag)) return false;
    const struct op *call = book_find(book, head->tag);
    return call == NULL || !segments_lack(call, book->now->group_epoch, head->sequence, head->segment);
}

bool book_signal(struct book *book, struct op_member *from, uint16_t type, const struct wire_op *head,
                 struct block *block, size_t bytes) {
    const struct op_driver *driver = &book->driver;
    if (head->sequence > 1) retained_implied(&book->retained, from, book->now->group_epoch, head, driver);
    struct op *op = book_find_running(book, head);
    if (op != NULL && !wire_fingerprint_equal(&op->args.fingerprint, &head->fingerprint)) {
        book_report_mismatch(book, op, from, &head->fingerprint);
    } else if (op != NULL && team_place(op->team, from) == GROUP_NOBODY) {
        if (block != NULL) driver->put(driver->context, block);
        return false; // it names the same members, and is none of them
    } else if ((op == NULL && !book_is_over(book, head)) || (op != NULL && op->phase == OP_QUEUED)) {
        struct unexpected unexpected = {
            .from = from, .type = type, .head = *head, .block = block, .bytes = bytes, .heard_ns = from->heard_ns};
        // Nobody can grant more to a member that has not begun.
        enum unexpected_result result =
            type == WIRE_GRANT ? UNEXPECTED_OK : unexpected_add(&book->unexpected, &unexpected, book->now->ring.count);
        if (result == UNEXPECTED_OK) return true;
        if (result == UNEXPECTED_NO_MEMORY) fail(book);
        if (block != NULL) driver->put(driver->context, block);
        return false;
    } else if (op != NULL) {
        return driver->signal(driver->context, op, from, type, head, block);
    }
    if (block != NULL) driver->put(driver->context, block);
    return true;
}

void book_acked(struct book *book, struct op_member *from, const struct wire_op_name *names, uint32_t count,
                bool asked) {
    for (uint32_t i = 0; i < count; i++) retained_acked(&book->retained, from, &names[i], &book->driver);
    if (!asked) return;
    from->draining = true;
    acks_send(from, false, &book->driver);
}

void book_drain(struct book *book) {
    for (uint32_t i = 0; i < book->now->ring.count && book->ready; i++)
        if (book->members[i] != NULL) acks_send(book->members[i], true, &book->driver);
}

void book_forget(struct book *book, const struct op_member *member) {
    retained_forget(&book->retained, member, &book->driver);
}

// ---- what moves ops ----
struct unexpected *book_unexpected(struct book *book, const struct op *op, const struct op_member *from,
                                   uint16_t type) {
    struct wire_op head;
    op_head(op, &head);
    return unexpected_take(&book->unexpected, from, &head, type);
}

// A member alone has nobody to keep a result for.
static void keep(struct book *book, struct retained *retained, const struct op *op, struct block *result) {
    retained->result = result;
    if (op->team->count < 2)
        retained_free(retained, &book->driver);
    else
        retained_add(&book->retained, retained, &op->name, op->team->members, op->team->count);
}

static void acknowledge(struct book *book, const struct op *op, bool now) {
    for (uint32_t i = 0; i < op->team->count; i++) {
        struct op_member *member = op->team->members[i];
        if (member == NULL) continue;
        acks_add(member, &op->name, op->result_bytes, &book->driver);
        if (now) acks_send(member, false, &book->driver);
    }
}

bool book_complete(struct book *book, struct op *op) {
    if (op->phase != OP_RUNNING || op->mismatch_reported) return false;
    if (op->path != PLAN_SMALL) {
        op->phase = OP_COMPLETE;
        return true;
    }
    keep(book, op->retained, op, op->result);
    op->retained = NULL;
    op->result = NULL;
    acknowledge(book, op, false);
    book_end(book, op, CALL_OK);
    return false;
}

// A supplied member holds the result for the others as if it had completed the op itself: the supplier may die before
// it has reached them.
void book_supplied(struct book *book, const struct wire_op_name *name, struct block *result) {
    const struct op_driver *driver = &book->driver;
    struct op *op = book_find(book, name->tag);
    bool wanted = op != NULL && op->frozen && op->phase != OP_ENDED && op->path == PLAN_SMALL &&
                  wire_op_name_equal(&op->name, name);
    bool ready = wanted && find_team(book, op); // of this epoch, since the op was begun in an older one
    struct retained *retained = ready ? retained_new(op->team->count) : NULL;
    if (wanted && retained == NULL) fail(book);
    if (retained == NULL || !driver->fill(driver->context, op, result)) {
        free(retained);
        driver->put(driver->context, result);
        return;
    }
    keep(book, retained, op, result);
    acknowledge(book, op, true);
    book_end(book, op, CALL_OK);
}

void book_report_mismatch(struct book *book, struct op *op, const struct op_member *other,
                          const struct wire_fingerprint *theirs) {
    if (op->mismatch_reported) return;
    op->mismatch_reported = true;
    struct wire_mismatch mismatch = {op->name, op->args.fingerprint, other->id, *theirs};
    book->driver.report_mismatch(book->driver.context, &mismatch);
}
