#include "master/verdicts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/codec.h"
#include "compute/kernels.h"
#include "ops/plan.h"

// ---- ops by name ----

enum { NO_ENTRY = UINT32_MAX, FIRST_CAPACITY = 16 };

struct op_entry {
    struct wire_op_name name;
    uint32_t next; // in its bucket, or in the free list
    bool live;
    uint32_t open, done, retained; // members in each state
    uint32_t members;              // that have to be done; the most that anybody has told
    uint16_t other;                // of a mismatch: the mark of the other side's subgroup
    bool cancelled;                // of a verdict of the master before: CANCEL, not MISMATCH
    uint32_t supplier;             // lowest rank in state RETAINED, or NO_ENTRY
    uint64_t bits[];               // ranks in state OPEN, then ranks in any other state
};

enum op_table_result {
    OP_TABLE_OK,
    OP_TABLE_TWICE, // the member has a state for this op already
    OP_TABLE_FULL,  // for this member
    OP_TABLE_NO_MEMORY
};

static size_t words_of(const struct op_table *table) { return (table->ranks + 63) / 64; }

static size_t stride_of(const struct op_table *table) {
    return sizeof(struct op_entry) + 2 * words_of(table) * sizeof(uint64_t);
}

static struct op_entry *entry_at(const struct op_table *table, uint32_t index) {
    return (struct op_entry *)(void *)(table->entries + index * stride_of(table));
}

static uint32_t index_of(const struct op_table *table, const struct op_entry *entry) {
    return (uint32_t)((size_t)((const uint8_t *)entry - table->entries) / stride_of(table));
}

static uint32_t *bucket_of(const struct op_table *table, const struct wire_op_name *name) {
    uint64_t mixed = (name->tag ^ (name->epoch << 40) ^ ((uint64_t)name->sequence << 20) ^
                      ((uint64_t)name->segment << 8) ^ ((uint64_t)name->subgroup << 32)) *
                     UINT64_C(0x9E3779B97F4A7C15);
    mixed ^= mixed >> 29;
    mixed *= UINT64_C(0xBF58476D1CE4E5B9);
    return &table->buckets[(mixed >> 32) & (2 * table->capacity - 1)];
}

// Empties the table and frees its memory. Entries will have room for `ranks` members, each of which may have a state
// for `limit` ops.
static void op_table_reset(struct op_table *table, uint32_t ranks, uint32_t limit) {
    free(table->noted);
    free(table->buckets);
    free(table->entries);
    *table = (struct op_table){.ranks = ranks, .limit = limit, .free = NO_ENTRY};
}

static bool grow(struct op_table *table) {
    uint32_t capacity = table->capacity == 0 ? FIRST_CAPACITY : 2 * table->capacity;
    uint8_t *entries = realloc(table->entries, capacity * stride_of(table));
    if (entries == NULL) return false;
    table->entries = entries;
    uint32_t *buckets = realloc(table->buckets, 2 * capacity * sizeof *buckets);
    if (buckets == NULL) return false;
    table->buckets = buckets;
    table->capacity = capacity;
    for (uint32_t i = 0; i < 2 * capacity; i++) buckets[i] = NO_ENTRY;
    for (uint32_t i = 0; i < table->used; i++) {
        struct op_entry *entry = entry_at(table, i);
        uint32_t *bucket = bucket_of(table, &entry->name);
        entry->next = *bucket;
        *bucket = i;
    }
    return true;
}

// NULL: there is none.
static struct op_entry *op_table_find(const struct op_table *table, const struct wire_op_name *name) {
    if (table->count == 0) return NULL;
    for (uint32_t i = *bucket_of(table, name); i != NO_ENTRY; i = entry_at(table, i)->next)
        if (wire_op_name_equal(&entry_at(table, i)->name, name)) return entry_at(table, i);
    return NULL;
}

static enum op_table_result add(struct op_table *table, const struct wire_op_name *name, struct op_entry **out) {
    uint32_t index = table->free;
    if (index == NO_ENTRY) {
        // The free list is empty, so every used entry is live and may be put into its bucket again.
        if (table->used == table->capacity && !grow(table)) return OP_TABLE_NO_MEMORY;
        index = table->used++;
    } else {
        table->free = entry_at(table, index)->next;
    }
    struct op_entry *entry = entry_at(table, index);
    memset(entry, 0, stride_of(table));
    uint32_t *bucket = bucket_of(table, name);
    entry->name = *name;
    entry->live = true;
    entry->supplier = NO_ENTRY;
    entry->next = *bucket;
    *bucket = index;
    table->count++;
    *out = entry;
    return OP_TABLE_OK;
}

static bool bit(const uint64_t *bits, uint32_t rank) { return bits[rank / 64] >> (rank % 64) & 1; }

static bool op_entry_is_open(const struct op_entry *entry, uint32_t rank) { return bit(entry->bits, rank); }

// In any state.
static bool op_entry_has(const struct op_table *table, const struct op_entry *entry, uint32_t rank) {
    return bit(entry->bits, rank) || bit(entry->bits + words_of(table), rank);
}

// Notes that the member `rank` is in `state`. `*out` is valid until the next note.
static enum op_table_result op_table_note(struct op_table *table, const struct wire_op_name *name, uint32_t rank,
                                          enum wire_op_state state, struct op_entry **out) {
    struct op_entry *entry = op_table_find(table, name);
    if (table->noted == NULL && (table->noted = calloc(table->ranks, sizeof *table->noted)) == NULL)
        return OP_TABLE_NO_MEMORY;
    if (entry != NULL && op_entry_has(table, entry, rank)) return OP_TABLE_TWICE;
    if (table->noted[rank] >= table->limit) return OP_TABLE_FULL;
    if (entry == NULL) {
        enum op_table_result result = add(table, name, &entry);
        if (result != OP_TABLE_OK) return result;
    }
    table->noted[rank]++;
    uint64_t *bits = state == WIRE_OP_OPEN ? entry->bits : entry->bits + words_of(table);
    bits[rank / 64] |= UINT64_C(1) << (rank % 64);
    if (state == WIRE_OP_OPEN) entry->open++;
    if (state == WIRE_OP_DONE) entry->done++;
    if (state == WIRE_OP_RETAINED) {
        entry->retained++;
        if (rank < entry->supplier) entry->supplier = rank;
    }
    *out = entry;
    return OP_TABLE_OK;
}

static void op_table_remove(struct op_table *table, struct op_entry *entry) {
    uint32_t index = index_of(table, entry), *link = bucket_of(table, &entry->name);
    while (*link != index) link = &entry_at(table, *link)->next;
    *link = entry->next;
    for (uint32_t rank = 0; rank < table->ranks; rank++) table->noted[rank] -= op_entry_has(table, entry, rank);
    entry->live = false;
    entry->next = table->free;
    table->free = index;
    table->count--;
}

// Returns the entries in the order in which they were first noted, as long as none was removed. Start with *cursor = 0;
// NULL at the end.
static struct op_entry *op_table_next(struct op_table *table, uint32_t *cursor) {
    while (*cursor < table->used) {
        struct op_entry *entry = entry_at(table, (*cursor)++);
        if (entry->live) return entry;
    }
    return NULL;
}

// ---- life ----

void verdicts_fini(struct verdicts *verdicts) {
    op_table_reset(&verdicts->done, 0, 0);
    op_table_reset(&verdicts->reports, 0, 0);
    op_table_reset(&verdicts->past, 0, 0);
}

void verdicts_begin(struct verdicts *verdicts, uint32_t members) {
    op_table_reset(&verdicts->done, members, WIRE_MAX_LIVE_OPS);
    op_table_reset(&verdicts->reports, members, 2 * WIRE_MAX_LIVE_OPS);
    verdicts->missing = members;
}

// ---- DONE ----

// Op messages of an older group epoch are void; a newer one cannot be.
static bool is_current(struct membership *table, struct peer_record *peer, const struct wire_header *header) {
    if (header->epoch > peer->group->group_epoch)
        membership_expel(table, peer, "it sent %s for an epoch that does not exist", wire_type_name(header->type));
    return header->epoch == peer->group->group_epoch;
}

// NULL: the peer is expelled, or there is no memory.
static struct op_entry *note(struct op_table *ops, struct membership *table, struct peer_record *peer,
                             const struct wire_op_name *name, enum wire_op_state state, const char *what) {
    struct op_entry *entry;
    switch (op_table_note(ops, name, peer->rank, state, &entry)) {
    case OP_TABLE_OK: return entry;
    case OP_TABLE_TWICE: membership_expel(table, peer, "its %s names an operation twice", what); break;
    case OP_TABLE_FULL: membership_expel(table, peer, "its %s exceeds the number of operations in flight", what); break;
    case OP_TABLE_NO_MEMORY: table->out_of_memory = true; break;
    }
    return NULL;
}

// All members of an op say alike how many they are. Of those that do not the largest number counts: so nothing is
// committed of which an honest member is not done. False: there are not so many, and the member is expelled.
static bool set_members(struct op_entry *entry, struct membership *table, struct peer_record *peer, uint32_t members,
                        const char *what) {
    if (members == 0) members = peer->group->count;
    if (members > entry->members) entry->members = members;
    bool good = members <= peer->group->count;
    if (!good) membership_expel(table, peer, "its %s names more members than an operation can have", what);
    return good;
}

static void send_to_those(const struct op_table *ops, struct membership *table, const struct peer_group *group,
                          const struct op_entry *entry) {
    for (uint32_t rank = 0; rank < group->count; rank++)
        if (op_entry_has(ops, entry, rank)) membership_send(table, group->members[rank]);
}

static void set_text(struct wire_verdict *verdict, const char *text) {
    verdict->text.length = (uint16_t)strlen(text);
    memcpy(verdict->text.chars, text, verdict->text.length);
}

// Without those that need the result, which may be many.
static void init_verdict(struct wire_verdict *verdict, const struct wire_op_name *name, enum wire_verdict_kind kind) {
    verdict->name = *name;
    verdict->kind = (uint8_t)kind;
    memset(&verdict->supplier, 0, sizeof verdict->supplier);
    verdict->other = 0;
    verdict->text.length = 0;
    verdict->count = 0;
}

static void encode(struct membership *table, uint64_t epoch, const struct wire_verdict *verdict) {
    struct wire_header header = membership_header(table);
    header.epoch = epoch;
    wire_encode_verdict(membership_frame(table), header, verdict);
}

void verdicts_done(struct verdicts *verdicts, struct membership *table, struct peer_record *peer,
                   const struct wire_header *header, const struct wire_op_done *done) {
    if (!is_current(table, peer, header)) return;
    if (done->name.epoch > header->epoch) {
        membership_expel(table, peer, "it sent DONE for an operation of an epoch that does not exist");
        return;
    }
    struct op_entry *entry = note(&verdicts->done, table, peer, &done->name, WIRE_OP_DONE, "DONE");
    if (entry == NULL || !set_members(entry, table, peer, done->members, "DONE") || entry->done < entry->members)
        return;
    struct wire_verdict verdict;
    init_verdict(&verdict, &done->name, WIRE_VERDICT_COMMIT);
    encode(table, peer->group->group_epoch, &verdict);
    send_to_those(&verdicts->done, table, peer->group, entry);
    op_table_remove(&verdicts->done, entry);
}

// ---- mismatch ----

static const char *describe(char *out, size_t capacity, const struct wire_fingerprint *fingerprint) {
    if (fingerprint->kind == PLAN_BARRIER) return "called barrier"; // pccl/distributed looks for it
    const struct codec *codec = codec_find(fingerprint->codec);
    const struct plan_collective *collective = plan_collective(fingerprint->kind);
    const char *what = collective == NULL ? "unknown" : collective->name;
    if (collective != NULL && collective->reduces) what = red_op_name(fingerprint->op);
    bool names = collective != NULL && collective->reduces && fingerprint->kind != PLAN_ALL_REDUCE;
    int length = snprintf(out, capacity, "passed count %llu %s %s%s%s", (unsigned long long)fingerprint->count,
                          dtype_name(fingerprint->dtype), names ? collective->name : "", names ? " " : "", what);
    if (fingerprint->codec != CODEC_RAW)
        snprintf(out + length, capacity - (size_t)length, " quantised to %s", codec == NULL ? "unknown" : codec->name);
    return out;
}

static void describe_mismatch(char out[WIRE_MAX_TEXT + 1], const struct wire_mismatch *message,
                              const struct peer_record *mine, const struct peer_record *theirs) {
    char my_arguments[128], their_arguments[128];
    struct wire_fingerprint told = message->theirs;
    told.layout = message->mine.layout;
    bool same = wire_fingerprint_same_op(&message->mine, &told);
    snprintf(out, WIRE_MAX_TEXT + 1, "tag %llu: %s %s, %s %s%s", (unsigned long long)message->name.tag,
             membership_label(mine).chars, describe(my_arguments, sizeof my_arguments, &message->mine),
             membership_label(theirs).chars, describe(their_arguments, sizeof their_arguments, &message->theirs),
             same ? " with other members, another root or other part sizes" : "");
}

// Nobody can have completed the op, so its verdict needs no reports. It goes out before the new epoch: a member that
// has not begun the op yet has to learn of it before it begins another under the same tag in that epoch.
void verdicts_mismatch(struct membership *table, struct peer_record *peer, const struct wire_header *header,
                       const struct wire_mismatch *mismatch) {
    struct peer_group *group = peer->group;
    if (wire_fingerprint_equal(&mismatch->mine, &mismatch->theirs)) {
        membership_expel(table, peer, "it sent a malformed MISMATCH");
        return;
    }
    if (!is_current(table, peer, header)) return;
    const struct peer_record *other = membership_in_group(table, group, &mismatch->other);
    if (other == NULL || other == peer || mismatch->name.epoch != header->epoch) {
        membership_expel(table, peer, "it sent MISMATCH for a peer or an operation that does not exist");
        return;
    }
    struct wire_verdict verdict;
    bool modes_only = wire_fingerprint_same_op(&mismatch->mine, &mismatch->theirs);
    init_verdict(&verdict, &mismatch->name, modes_only ? WIRE_VERDICT_WHOLE : WIRE_VERDICT_MISMATCH);
    if (!modes_only) {
        char text[WIRE_MAX_TEXT + 1];
        describe_mismatch(text, mismatch, peer, other);
        actions_log(&table->actions, LOG_ERR, "%s", text);
        set_text(&verdict, text);
        verdict.other = (uint16_t)(mismatch->theirs.layout >> 16);
    }
    encode(table, group->group_epoch, &verdict);
    membership_send_group(table, group);
    membership_change_group(table, group);
}

// ---- cancel ----

// Members that have begun the op keep it until the reports on the new epoch are in: if one of them completed it, all
// get COMMIT. Like a mismatch it goes out before the new epoch.
void verdicts_end(struct membership *table, struct peer_group *group, const struct wire_op_name *name,
                  enum wire_verdict_kind kind, const char *text) {
    struct wire_verdict verdict;
    init_verdict(&verdict, name, kind);
    set_text(&verdict, text);
    membership_change_group(table, group);
    encode(table, group->group_epoch, &verdict);
    membership_send_group(table, group);
}

void verdicts_cancel(struct membership *table, struct peer_record *peer, const struct wire_header *header,
                     const struct wire_cancel *cancel) {
    if (!is_current(table, peer, header)) return;
    if (cancel->name.epoch != header->epoch) {
        membership_expel(table, peer, "it sent CANCEL for an operation of another epoch");
        return;
    }
    char text[WIRE_MAX_TEXT + 1];
    snprintf(text, sizeof text, "%s cancelled the operation with tag %llu", membership_label(peer).chars,
             (unsigned long long)cancel->name.tag);
    verdicts_end(table, peer->group, &cancel->name, WIRE_VERDICT_CANCEL, text);
}

// ---- reports and verdicts ----

// By a master before, and not all have heard of it.
static bool was_committed(const struct verdicts *verdicts, const struct wire_op_name *name) {
    const struct op_entry *past = op_table_find(&verdicts->past, name);
    return past != NULL && past->done > 0;
}

static void judge(const struct verdicts *verdicts, const struct peer_group *group, const struct op_entry *entry,
                  struct wire_verdict *out) {
    if (entry->retained > 0) {
        init_verdict(out, &entry->name, WIRE_VERDICT_COMMIT);
        out->supplier = group->members[entry->supplier]->member.id;
        for (uint32_t rank = 0; rank < group->count; rank++)
            if (op_entry_is_open(entry, rank)) out->needy[out->count++] = group->members[rank]->member.id;
    } else if ((entry->done > 0 && entry->done == entry->members) || was_committed(verdicts, &entry->name)) {
        init_verdict(out, &entry->name, WIRE_VERDICT_COMMIT);
    } else {
        init_verdict(out, &entry->name, group->lost_epoch > entry->name.epoch ? WIRE_VERDICT_ABORT : WIRE_VERDICT_REDO);
    }
}

static void give_verdicts(struct verdicts *verdicts, struct membership *table, const struct peer_group *group) {
    struct wire_verdict verdict;
    uint32_t cursor = 0;
    for (struct op_entry *entry; (entry = op_table_next(&verdicts->reports, &cursor)) != NULL;) {
        judge(verdicts, group, entry, &verdict);
        encode(table, group->group_epoch, &verdict);
        send_to_those(&verdicts->reports, table, group, entry);
    }
    op_table_reset(&verdicts->reports, group->count, 0);
    op_table_reset(&verdicts->past, 0, 0); // all that was live then has its verdict
}

void verdicts_report(struct verdicts *verdicts, struct membership *table, struct peer_record *peer,
                     const struct wire_header *header, const struct wire_report *report) {
    if (!is_current(table, peer, header)) return;
    if (peer->reported) {
        membership_expel(table, peer, "it sent two reports for one epoch");
        return;
    }
    for (uint32_t i = 0; i < report->count; i++) {
        const struct wire_op_report *op = &report->ops[i];
        struct op_entry *entry = note(&verdicts->reports, table, peer, &op->name, op->state, "REPORT");
        if (entry == NULL) return;
        if (op->state != WIRE_OP_RETAINED && !set_members(entry, table, peer, op->members, "REPORT")) return;
    }
    peer->reported = true;
    if (--verdicts->missing == 0) give_verdicts(verdicts, table, peer->group);
}

// ---- of the master before ----

void verdicts_recall(struct verdicts *verdicts, struct membership *table, struct peer_record *peer,
                     const struct wire_resume *resume) {
    if (verdicts->past.ranks == 0) op_table_reset(&verdicts->past, peer->group->count, WIRE_MAX_PAST);
    for (uint32_t i = 0; i < resume->past_count; i++) {
        struct op_entry *entry;
        enum wire_op_state state = resume->past[i].kind == WIRE_VERDICT_COMMIT ? WIRE_OP_DONE : WIRE_OP_OPEN;
        enum op_table_result noted = op_table_note(&verdicts->past, &resume->past[i].name, peer->rank, state, &entry);
        if (noted == OP_TABLE_NO_MEMORY) table->out_of_memory = true;
        if (noted != OP_TABLE_OK) continue;
        entry->other = resume->past[i].other;
        entry->cancelled |= wire_verdict_cancels(resume->past[i].kind);
    }
}

// A MISMATCH was followed by a new group epoch at once, so whoever has entered one since had heard of it.
static bool lacks_mismatch(const struct verdicts *verdicts, const struct peer_record *peer,
                           const struct wire_resume *resume, const struct wire_ended_vote *last,
                           const struct op_entry *entry) {
    if (op_entry_has(&verdicts->past, entry, peer->rank)) return false;
    if (!resume->accepted) return entry->name.epoch >= last->epoch;
    return resume->epoch.group_epoch <= entry->name.epoch;
}

void verdicts_tell_mismatches(struct verdicts *verdicts, struct membership *table, struct peer_record *peer,
                              const struct wire_resume *resume, const struct wire_ended_vote *last) {
    uint32_t cursor = 0;
    for (struct op_entry *entry; (entry = op_table_next(&verdicts->past, &cursor)) != NULL;) {
        struct wire_verdict verdict;
        if (entry->open == 0 || !lacks_mismatch(verdicts, peer, resume, last, entry)) continue;
        init_verdict(&verdict, &entry->name, entry->cancelled ? WIRE_VERDICT_CANCEL : WIRE_VERDICT_MISMATCH);
        verdict.other = entry->other;
        set_text(&verdict, entry->cancelled
                               ? "a member cancelled the operation before the master was lost"
                               : "members passed different arguments to this operation, as reported before "
                                 "the master was lost");
        encode(table, table->number, &verdict);
        membership_send(table, peer);
    }
}
