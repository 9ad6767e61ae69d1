// How ops end. A large op ends when all members of its group are done. When the group epoch changes under running ops,
// members report where each op stood; when the reports are complete, every op in them gets a verdict. All messages to a
// peer take one path in order, so a COMMIT sent before an epoch is known to every survivor before it reports on that
// epoch: nobody asks about an op that is committed elsewhere.
#include "master/membership_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct wire_header op_header(const struct membership *m, const struct group *group) {
    struct wire_header header = membership_header(m);
    header.epoch = group->group_epoch;
    return header;
}

// Op messages of an older group epoch are void; a newer one cannot be.
static bool is_current(struct membership *m, struct peer *peer, const struct wire_header *header) {
    if (header->epoch > peer->group->group_epoch)
        membership_expel(m, peer, "%s of a group epoch that never was", wire_type_name(header->type));
    return header->epoch == peer->group->group_epoch;
}

static void expel_for(struct membership *m, struct peer *peer, enum op_table_result result, const char *what) {
    switch (result) {
    case OP_TABLE_OK: return;
    case OP_TABLE_TWICE: membership_expel(m, peer, "%s names an op twice", what); return;
    case OP_TABLE_FULL: membership_expel(m, peer, "%s exceeds the number of live ops", what); return;
    case OP_TABLE_NO_MEMORY: membership_starve(m); return;
    }
}

static void send_verdict(struct membership *m, const struct group *group, const struct wire_verdict *verdict,
                         const struct op_entry *to) {
    size_t begin = membership_frame_begin(m), length;
    wire_encode_verdict(&m->actions.bytes, op_header(m, group), verdict);
    membership_frame_end(m, begin, &length);
    for (uint32_t rank = 0; rank < group->count; rank++)
        if (to == NULL || op_entry_has(&group->reports, to, rank))
            membership_send(m, m->order[group->begin + rank], begin, length);
}

// ---- without a change of epoch ----

void membership_on_done(struct membership *m, struct peer *peer, const struct wire_header *header,
                        const uint8_t *body) {
    struct wire_op_done done;
    struct group *group = peer->group;
    if (!wire_decode_op_done(body, header->length, &done)) {
        membership_expel(m, peer, "malformed DONE");
        return;
    }
    if (!is_current(m, peer, header)) return;
    if (done.name.epoch > header->epoch) {
        membership_expel(m, peer, "DONE for an op of an epoch that never was");
        return;
    }
    struct op_entry *entry;
    enum op_table_result result = op_table_note(&group->done, &done.name, peer->rank, WIRE_OP_DONE, &entry);
    expel_for(m, peer, result, "DONE");
    if (result != OP_TABLE_OK || entry->done < group->count) return;
    op_table_remove(&group->done, entry);
    struct wire_verdict verdict;
    verdict.name = done.name;
    verdict.kind = WIRE_VERDICT_COMMIT;
    memset(&verdict.supplier, 0, sizeof verdict.supplier);
    verdict.text.length = 0;
    verdict.count = 0;
    send_verdict(m, group, &verdict, NULL);
}

// ---- mismatch ----

static const char *name_in(const char *const *names, size_t count, uint8_t value) {
    return value < count ? names[value] : "unknown";
}

static const char *describe(char *out, size_t capacity, const struct wire_fingerprint *fingerprint) {
    static const char *const dtypes[] = {"uint8",  "int8",  "int16",   "uint16",   "uint32",  "int32",
                                         "uint64", "int64", "float16", "bfloat16", "float32", "float64"};
    static const char *const ops[] = {"sum", "avg", "prod", "max", "min"};
    static const char *const algorithms[] = {"none", "min-max", "zero-point-scale"};
    enum {
        DTYPES = sizeof dtypes / sizeof dtypes[0],
        OPS = sizeof ops / sizeof ops[0],
        ALGORITHMS = sizeof algorithms / sizeof algorithms[0]
    };
    int length = snprintf(out, capacity, "count %llu %s %s", (unsigned long long)fingerprint->count,
                          name_in(dtypes, DTYPES, fingerprint->dtype), name_in(ops, OPS, fingerprint->op));
    if (fingerprint->algorithm != 0)
        snprintf(out + length, capacity - (size_t)length, " quantised to %s by %s",
                 name_in(dtypes, DTYPES, fingerprint->quantised_dtype),
                 name_in(algorithms, ALGORITHMS, fingerprint->algorithm));
    return out;
}

static void describe_mismatch(char out[WIRE_MAX_TEXT + 1], const struct wire_mismatch *message, const struct peer *mine,
                              const struct peer *theirs) {
    char my_name[64], their_name[64], my_arguments[128], their_arguments[128];
    snprintf(out, WIRE_MAX_TEXT + 1, "op tag %llu: %s gave %s, %s gave %s", (unsigned long long)message->name.tag,
             membership_name(my_name, mine), describe(my_arguments, sizeof my_arguments, &message->mine),
             membership_name(their_name, theirs), describe(their_arguments, sizeof their_arguments, &message->theirs));
}

// Nobody can have completed the op, so its verdict needs no reports. It goes out before the new epoch: a member that
// has not begun the op yet has to learn of it before it begins another under the same tag in that epoch.
void membership_on_mismatch(struct membership *m, struct peer *peer, const struct wire_header *header,
                            const uint8_t *body) {
    struct wire_mismatch message;
    struct group *group = peer->group;
    if (!wire_decode_mismatch(body, header->length, &message) ||
        wire_fingerprint_equal(&message.mine, &message.theirs)) {
        membership_expel(m, peer, "malformed MISMATCH");
        return;
    }
    if (!is_current(m, peer, header)) return;
    const struct peer *other = membership_member(m, group, &message.other);
    if (other == NULL || other == peer || message.name.epoch > header->epoch) {
        membership_expel(m, peer, "MISMATCH with a peer or an op that never was");
        return;
    }
    char text[WIRE_MAX_TEXT + 1] = "";
    bool modes_only = wire_fingerprint_same_op(&message.mine, &message.theirs);
    if (!modes_only) {
        describe_mismatch(text, &message, peer, other);
        membership_log(m, LOG_ERR, "%s", text);
    }
    struct wire_verdict verdict;
    verdict.name = message.name;
    verdict.kind = modes_only ? WIRE_VERDICT_WHOLE : WIRE_VERDICT_MISMATCH;
    memset(&verdict.supplier, 0, sizeof verdict.supplier);
    verdict.text.length = (uint16_t)strlen(text);
    memcpy(verdict.text.chars, text, verdict.text.length);
    verdict.count = 0;
    send_verdict(m, group, &verdict, NULL);
    membership_change(m, group);
}

// ---- reports and verdicts ----

void membership_ops_begin(struct membership *m, struct group *group) {
    (void)m;
    op_table_reset(&group->done, group->count, WIRE_MAX_LIVE_OPS);
    op_table_reset(&group->reports, group->count, 2 * WIRE_MAX_LIVE_OPS);
    group->reports_missing = group->count;
}

void membership_ops_fini(struct group *group) {
    op_table_reset(&group->done, 0, 0);
    op_table_reset(&group->reports, 0, 0);
    op_table_reset(&group->past, 0, 0);
}

// By a master before, and not all have heard of it.
static bool was_committed(const struct group *group, const struct wire_op_name *name) {
    const struct op_entry *past = op_table_find(&group->past, name);
    return past != NULL && past->done > 0;
}

static void judge_op(const struct membership *m, const struct group *group, const struct op_entry *entry,
                     struct wire_verdict *out) {
    out->name = entry->name;
    out->text.length = 0;
    out->count = 0;
    memset(&out->supplier, 0, sizeof out->supplier);
    if (entry->kept > 0) {
        out->kind = WIRE_VERDICT_COMMIT;
        out->supplier = m->order[group->begin + entry->supplier]->member.id;
        for (uint32_t rank = 0; rank < group->count; rank++)
            if (op_entry_is_open(entry, rank)) out->needy[out->count++] = m->order[group->begin + rank]->member.id;
    } else if (entry->done == group->count || was_committed(group, &entry->name)) {
        out->kind = WIRE_VERDICT_COMMIT;
    } else {
        out->kind = group->lost_epoch > entry->name.epoch ? WIRE_VERDICT_ABORT : WIRE_VERDICT_REDO;
    }
}

static void give_verdicts(struct membership *m, struct group *group) {
    struct wire_verdict verdict;
    uint32_t cursor = 0;
    for (struct op_entry *entry; (entry = op_table_next(&group->reports, &cursor)) != NULL;) {
        judge_op(m, group, entry, &verdict);
        send_verdict(m, group, &verdict, entry);
    }
    op_table_reset(&group->reports, group->count, 0);
    op_table_reset(&group->past, 0, 0); // all that was live then has its verdict
}

void membership_on_report(struct membership *m, struct peer *peer, const struct wire_header *header,
                          const uint8_t *body) {
    struct wire_report report = {.ops = m->reported};
    struct group *group = peer->group;
    if (!wire_decode_report(body, header->length, &report)) {
        membership_expel(m, peer, "malformed REPORT");
        return;
    }
    if (!is_current(m, peer, header)) return;
    if (peer->reported) {
        membership_expel(m, peer, "reported twice on one epoch");
        return;
    }
    for (uint32_t i = 0; i < report.count; i++) {
        struct op_entry *entry;
        enum op_table_result result =
            op_table_note(&group->reports, &report.ops[i].name, peer->rank, report.ops[i].state, &entry);
        expel_for(m, peer, result, "REPORT");
        if (result != OP_TABLE_OK) return;
    }
    peer->reported = true;
    if (--group->reports_missing == 0) give_verdicts(m, group);
}
