#define _GNU_SOURCE
#include "net/wire_control.h"

#include "net/peer_name.h"
#include "net/wire_data.h"

// ---- parts of messages ----

static void visit_id(struct cursor *c, struct wire_id *id) { cursor_bytes(c, id->bytes, WIRE_ID_BYTES); }

static void visit_ids(struct cursor *c, uint32_t *count, struct wire_id *ids) {
    cursor_count(c, count, WIRE_MAX_MEMBERS);
    WIRE_EACH(c, i, *count) visit_id(c, &ids[i]);
}

static void visit_lanes(struct cursor *c, uint32_t *lanes) {
    cursor_u32(c, lanes);
    cursor_expect(c, *lanes >= 1 && *lanes <= WIRE_MAX_LANES);
}

// An address, or none.
static void visit_address_or_none(struct cursor *c, struct wire_address *address) {
    cursor_u8(c, &address->family);
    cursor_bytes(c, address->bytes, sizeof address->bytes);
    cursor_u16(c, &address->port);
    cursor_expect(c, address->family == 0 || address->family == 4 || address->family == 6);
}

static void visit_address(struct cursor *c, struct wire_address *address) {
    visit_address_or_none(c, address);
    cursor_expect(c, address->family != 0);
}

static void visit_reach(struct cursor *c, struct wire_reach *reach) {
    cursor_range(c, &reach->closed, 0, 1);
    cursor_range(c, &reach->relays, WIRE_RELAYS_NOTHING, WIRE_RELAYS_BOTH);
    cursor_range(c, &reach->count, 0, WIRE_MAX_ADDRESSES);
    WIRE_EACH(c, i, reach->count) {
        visit_address(c, &reach->addresses[i]);
        cursor_expect(c, reach->addresses[i].port != 0);
    }
}

static void visit_hash(struct cursor *c, struct wire_hash *hash) {
    cursor_u64(c, &hash->low);
    cursor_u64(c, &hash->high);
}

static void visit_op_name(struct cursor *c, struct wire_op_name *name) {
    cursor_u64(c, &name->epoch);
    cursor_u64(c, &name->tag);
    cursor_u32(c, &name->sequence);
    cursor_u16(c, &name->segment);
    cursor_u32(c, &name->subgroup);
}

static void visit_name(struct cursor *c, struct wire_name *name) {
    uint8_t length = wire_visit_chars(c, name->chars, 0, WIRE_MAX_NAME);
    if (cursor_judges(c)) cursor_expect(c, peer_name_is_clean(name->chars, length));
}

static bool names_twice(const struct wire_epoch *epoch) {
    uint16_t sorted[WIRE_MAX_MEMBERS];
    wire_sort_members(epoch->members, epoch->count, sorted);
    for (uint32_t i = 1; i < epoch->count; i++)
        if (wire_id_equal(&epoch->members[sorted[i - 1]].id, &epoch->members[sorted[i]].id)) return true;
    return false;
}

static void visit_member(struct cursor *c, struct wire_member *member) {
    visit_id(c, &member->id);
    cursor_u64(c, &member->join_number);
    cursor_u32(c, &member->group);
    visit_lanes(c, &member->lanes);
    visit_address(c, &member->address);
    cursor_u16(c, &member->weight);
    cursor_u16(c, &member->site);
    visit_name(c, &member->name);
    visit_reach(c, &member->reach);
}

static void visit_epoch(struct cursor *c, struct wire_epoch *epoch) {
    cursor_u64(c, &epoch->number);
    cursor_u64(c, &epoch->group_epoch);
    cursor_u64(c, &epoch->lost_epoch);
    cursor_u64(c, &epoch->votes_ended);
    cursor_u64(c, &epoch->sync_round);
    cursor_u64(c, &epoch->sync_expected);
    cursor_u32(c, &epoch->latency_us);
    cursor_u32(c, &epoch->megabytes_per_s);
    cursor_count(c, &epoch->count, WIRE_MAX_MEMBERS);
    WIRE_EACH(c, i, epoch->count) {
        visit_member(c, &epoch->members[i]);
        cursor_expect(c, i == 0 || epoch->members[i].group >= epoch->members[i - 1].group);
    }
    cursor_expect(c, epoch->count > 0 && epoch->group_epoch <= epoch->number && epoch->lost_epoch <= epoch->number &&
                         epoch->latency_us > 0 && epoch->megabytes_per_s > 0);
    if (cursor_judges(c)) cursor_expect(c, !names_twice(epoch));
}

static void visit_quorum(struct cursor *c, struct wire_quorum *quorum) {
    cursor_u32(c, &quorum->members);
    cursor_u32(c, &quorum->old_members);
    cursor_u64(c, &quorum->newer);
    cursor_expect(c, quorum->members <= WIRE_MAX_MEMBERS && quorum->old_members <= WIRE_MAX_MEMBERS);
}

static void visit_ended_vote(struct cursor *c, struct wire_ended_vote *vote) {
    cursor_u64(c, &vote->number);
    cursor_range(c, &vote->kind, 0, WIRE_VOTE_OPTIMIZE);
    cursor_u8(c, &vote->code);
    cursor_u64(c, &vote->value);
    cursor_u64(c, &vote->epoch);
    cursor_count(c, &vote->count, WIRE_MAX_MEMBERS);
    WIRE_EACH(c, i, vote->count) {
        struct wire_group_size *size = &vote->sizes[i];
        cursor_u32(c, &size->group);
        cursor_u32(c, &size->count);
        cursor_expect(c, size->count > 0 && size->count <= WIRE_MAX_MEMBERS);
        cursor_expect(c, i == 0 || size->group > vote->sizes[i - 1].group);
    }
    bool none = vote->number == 0;
    cursor_expect(c, none == (vote->kind == 0) && none == (vote->count == 0));
}

static void visit_limits(struct cursor *c, struct wire_limits *limits) {
    cursor_u16(c, &limits->least);
    cursor_u16(c, &limits->most);
    cursor_u32(c, &limits->wait_ms);
    cursor_expect(c, limits->least <= WIRE_MAX_MEMBERS && limits->most <= WIRE_MAX_MEMBERS);
    cursor_expect(c, limits->most == 0 || limits->least <= limits->most);
}

static void visit_losses(struct cursor *c, uint32_t *count, struct wire_loss *losses) {
    cursor_count(c, count, WIRE_MAX_MEMBERS);
    WIRE_EACH(c, i, *count) {
        struct wire_loss *loss = &losses[i];
        cursor_u64(c, &loss->epoch);
        cursor_u32(c, &loss->members);
        cursor_u32(c, &loss->group_members);
        cursor_u32(c, &loss->groups);
        cursor_u32(c, &loss->largest_group);
        cursor_expect(c, loss->members <= WIRE_MAX_MEMBERS && loss->group_members > 0 && loss->groups > 0);
        cursor_expect(c, loss->largest_group <= loss->members && loss->groups <= loss->members &&
                             loss->group_members <= loss->largest_group);
        cursor_expect(c, i == 0 || loss->epoch > losses[i - 1].epoch);
    }
}

const char *wire_loss_name(uint8_t reason) {
    static const char *const names[] = {"unknown",  "died",    "silent", "unreachable",
                                        "expelled", "drained", "left",   "ended"};
    return names[reason];
}

// ---- messages, in the order of their numbers ----

static void visit_identity(struct cursor *c, struct wire_hello *m) {
    static const struct wire_id nobody;
    cursor_u16(c, &m->version);
    if (cursor_judges(c) && m->version != WIRE_VERSION) { // whatever follows
        *m = (struct wire_hello){.version = m->version};
        c->at = c->end;
        return;
    }
    visit_id(c, &m->id);
    cursor_u32(c, &m->group);
    visit_lanes(c, &m->lanes);
    cursor_u16(c, &m->port);
    cursor_range(c, &m->masters, 1, WIRE_MAX_MASTERS);
    uint8_t flags = (uint8_t)(m->join_only | m->copies << 1);
    cursor_range(c, &flags, 0, 3);
    if (!c->writes) {
        m->join_only = flags & 1;
        m->copies = flags >> 1;
    }
    visit_limits(c, &m->limits);
    visit_address_or_none(c, &m->local);
    visit_reach(c, &m->reach);
    cursor_expect(c, m->port != 0 && !wire_id_equal(&m->id, &nobody));
}

// A peer without a name ends its HELLO before it.
static void visit_hello(struct cursor *c, struct wire_hello *m) {
    visit_identity(c, m);
    if (cursor_judges(c) && m->version != WIRE_VERSION) return;
    bool named = c->writes ? m->name.chars[0] != 0 : c->at != c->end;
    if (named) visit_name(c, &m->name);
    if (!c->writes && !named) m->name = (struct wire_name){{0}};
    if (named) cursor_expect(c, m->name.chars[0] != 0);
}

static void visit_welcome(struct cursor *c, struct wire_welcome *m) {
    cursor_u64(c, &m->join_number);
    cursor_bytes(c, m->secret, sizeof m->secret);
    cursor_u32(c, &m->heartbeat_limit_ms);
    visit_address(c, &m->seen);
    cursor_range(c, &m->closed, 0, 1);
    cursor_expect(c, m->heartbeat_limit_ms > 0);
}

static void visit_candidate(struct cursor *c, struct wire_candidate *m) {
    cursor_u32(c, &m->attempt);
    cursor_expect(c, m->attempt > 0);
    visit_epoch(c, &m->epoch);
}

static void visit_linked(struct cursor *c, struct wire_linked *m) {
    cursor_u32(c, &m->attempt);
    cursor_u32(c, &m->latency_us);
    visit_ids(c, &m->count, m->unreachable);
    WIRE_EACH(c, i, m->count) cursor_range(c, &m->narrow[i], 0, 1);
}

static void visit_gone(struct cursor *c, struct wire_gone *gone) {
    visit_id(c, &gone->id);
    cursor_range(c, &gone->reason, WIRE_LOSS_UNKNOWN, WIRE_LOSS_ENDED);
    wire_visit_why(c, gone->why);
}

static void visit_epoch_commit(struct cursor *c, struct wire_epoch_commit *m) {
    cursor_range(c, &m->reason, WIRE_REASON_UPDATE, WIRE_REASON_ORDER);
    visit_epoch(c, &m->epoch);
    visit_quorum(c, &m->quorum);
    cursor_bytes(c, m->signature, sizeof m->signature);
    cursor_count(c, &m->gone_count, WIRE_MAX_MEMBERS);
    WIRE_EACH(c, i, m->gone_count) {
        struct wire_gone unwanted;
        visit_gone(c, m->gone != NULL ? &m->gone[i] : &unwanted);
    }
}

static void visit_donors(struct cursor *c, struct wire_donors *m) {
    cursor_count(c, &m->count, WIRE_MAX_DONORS);
    WIRE_EACH(c, i, m->count) {
        visit_id(c, &m->donors[i].id);
        visit_reach(c, &m->donors[i].reach);
        cursor_expect(c, m->donors[i].reach.count > 0);
    }
}

static void visit_vote(struct cursor *c, struct wire_vote *m) {
    cursor_range(c, &m->kind, WIRE_VOTE_UPDATE, WIRE_VOTE_OPTIMIZE);
}

static void visit_outcome(struct cursor *c, struct wire_outcome *m) {
    cursor_range(c, &m->kind, WIRE_VOTE_UPDATE, WIRE_VOTE_OPTIMIZE);
    cursor_u8(c, &m->code);
    cursor_u64(c, &m->value);
}

static void visit_op_done(struct cursor *c, struct wire_op_done *m) {
    visit_op_name(c, &m->name);
    cursor_u16(c, &m->members);
    cursor_expect(c, m->members <= WIRE_MAX_MEMBERS);
}

static void visit_verdict(struct cursor *c, struct wire_verdict *m) {
    visit_op_name(c, &m->name);
    cursor_range(c, &m->kind, WIRE_VERDICT_COMMIT, WIRE_VERDICT_DEADLOCK);
    visit_id(c, &m->supplier);
    cursor_u16(c, &m->other);
    wire_visit_text(c, &m->text);
    visit_ids(c, &m->count, m->needy);
}

static void visit_report(struct cursor *c, struct wire_report *m) {
    cursor_count(c, &m->count, 2 * WIRE_MAX_LIVE_OPS);
    WIRE_EACH(c, i, m->count) {
        struct wire_op_report *op = &m->ops[i];
        visit_op_name(c, &op->name);
        cursor_range(c, &op->state, WIRE_OP_OPEN, WIRE_OP_RETAINED);
        cursor_range(c, &op->small, 0, 1);
        cursor_expect(c, op->state == WIRE_OP_OPEN || op->small == (op->state == WIRE_OP_RETAINED));
        cursor_u16(c, &op->members);
        cursor_expect(c, op->members <= WIRE_MAX_MEMBERS && (op->members == 0 || op->state != WIRE_OP_RETAINED));
    }
}

static void visit_mismatch(struct cursor *c, struct wire_mismatch *m) {
    visit_op_name(c, &m->name);
    wire_visit_fingerprint(c, &m->mine);
    visit_id(c, &m->other);
    wire_visit_fingerprint(c, &m->theirs);
}

static void visit_cancel(struct cursor *c, struct wire_cancel *m) { visit_op_name(c, &m->name); }

static void visit_leaving(struct cursor *c, struct wire_leaving *m) {
    visit_id(c, &m->id);
    cursor_u32(c, &m->within_ms);
    cursor_range(c, &m->at_update, 0, 1);
}

static void visit_remove(struct cursor *c, struct wire_remove *m) {
    visit_id(c, &m->id);
    cursor_range(c, &m->at_update, 0, 1);
    uint8_t length = wire_visit_chars(c, m->by, 0, WIRE_MAX_BY);
    if (cursor_judges(c)) cursor_expect(c, strnlen(m->by, length) == length);
}

static void visit_link_down(struct cursor *c, struct wire_link_down *m) {
    visit_id(c, &m->id);
    cursor_u32(c, &m->index);
    cursor_expect(c, m->index <= WIRE_MAX_LANES);
    cursor_range(c, &m->reason, WIRE_LINK_BROKEN, WIRE_LINK_CARD);
}

static void visit_measure(struct cursor *c, struct wire_measure *m) {
    cursor_u32(c, &m->round);
    visit_id(c, &m->target);
    cursor_u32(c, &m->duration_ms);
    cursor_expect(c, m->duration_ms > 0 && m->duration_ms <= WIRE_MAX_MEASURE_MS);
}

static void visit_measured(struct cursor *c, struct wire_measured *m) {
    visit_id(c, &m->from);
    visit_id(c, &m->to);
    cursor_u64(c, &m->bytes_per_s);
}

static void visit_sync_vote(struct cursor *c, struct wire_sync_vote *m) {
    cursor_range(c, &m->strategy, WIRE_SYNC_ENFORCE_POPULAR, WIRE_SYNC_SEND_ONLY);
    cursor_range(c, &m->incomplete, 0, 1);
    cursor_u64(c, &m->revision);
    visit_hash(c, &m->mask);
    visit_hash(c, &m->content);
    cursor_u64(c, &m->outline.entries);
    uint32_t hashes = (uint32_t)(m->outline.entries >> wire_outline_shift(m->outline.entries));
    WIRE_EACH(c, i, hashes) cursor_u32(c, &m->outline.hashes[i]);
}

static void visit_sync_differs(struct cursor *c, struct wire_sync_differs *m) {
    cursor_u64(c, &m->first);
    cursor_u64(c, &m->last);
    cursor_expect(c, m->first <= m->last);
}

static void visit_sync_plan(struct cursor *c, struct wire_sync_plan *m) {
    cursor_u64(c, &m->round);
    cursor_u64(c, &m->revision);
    visit_hash(c, &m->mask);
    visit_hash(c, &m->content);
    visit_ids(c, &m->receiver_count, m->receivers);
    visit_ids(c, &m->donor_count, m->donors);
    cursor_expect(c, m->round > 0 && m->receiver_count > 0 && m->donor_count > 0);
}

static void visit_sync_done(struct cursor *c, struct wire_sync_done *m) {
    cursor_u64(c, &m->round);
    cursor_range(c, &m->complete, WIRE_SYNC_MISSING, WIRE_SYNC_READ_ONLY);
    cursor_count(c, &m->count, WIRE_MAX_MEMBERS);
    WIRE_EACH(c, i, m->count) {
        visit_id(c, &m->sources[i].id);
        cursor_u64(c, &m->sources[i].bytes);
    }
}

static void visit_sync_end(struct cursor *c, struct wire_sync_end *m) {
    cursor_u64(c, &m->round);
    cursor_u8(c, &m->code);
    cursor_u64(c, &m->revision);
    cursor_u64(c, &m->tx_bytes);
    wire_visit_text(c, &m->text);
}

static void visit_past(struct cursor *c, struct wire_past *past) {
    visit_op_name(c, &past->name);
    cursor_u8(c, &past->kind);
    cursor_expect(c, past->kind == WIRE_VERDICT_COMMIT || past->kind == WIRE_VERDICT_MISMATCH ||
                         wire_verdict_cancels(past->kind));
    cursor_u16(c, &past->other);
}

static void visit_resume(struct cursor *c, struct wire_resume *m) {
    visit_identity(c, &m->hello);
    if (cursor_judges(c) && m->hello.version != WIRE_VERSION) return;
    visit_name(c, &m->hello.name);
    cursor_u64(c, &m->generation);
    cursor_u64(c, &m->join_number);
    cursor_bytes(c, m->secret, sizeof m->secret);
    cursor_range(c, &m->vote, 0, WIRE_VOTE_SYNC);
    visit_sync_vote(c, &m->sync_vote);
    cursor_range(c, &m->accepted, 0, 1);
    if (!m->accepted) return;
    cursor_range(c, &m->sync_committed, 0, 1);
    cursor_u8(c, &m->sync_code);
    cursor_u64(c, &m->sync_revision);
    visit_ended_vote(c, &m->last_vote);
    visit_epoch(c, &m->epoch);
    cursor_count(c, &m->past_count, WIRE_MAX_PAST);
    WIRE_EACH(c, i, m->past_count) visit_past(c, &m->past[i]);
    visit_losses(c, &m->loss_count, m->losses);
    visit_quorum(c, &m->quorum);
    cursor_bytes(c, m->signature, sizeof m->signature);
}

static void visit_resumed(struct cursor *c, struct wire_resumed *m) {
    cursor_u32(c, &m->heartbeat_limit_ms);
    cursor_range(c, &m->vote_ended, 0, 1);
    cursor_range(c, &m->sync_ended, 0, 1);
    visit_ended_vote(c, &m->last_vote);
    visit_losses(c, &m->loss_count, m->losses);
    visit_sync_end(c, &m->sync);
    cursor_expect(c, m->heartbeat_limit_ms > 0 && (!m->vote_ended || m->last_vote.number > 0));
}

static void visit_status_is(struct cursor *c, struct wire_status_is *m) {
    cursor_range(c, &m->activity, WIRE_IDLE, WIRE_SERVES);
    cursor_range(c, &m->completed, 0, 1);
    cursor_u64(c, &m->ended_ms);
}

static void visit_telemetry(struct cursor *c, struct wire_telemetry *m) {
    wire_visit_ops_seen(c, &m->ops);
    cursor_count(c, &m->count, WIRE_MAX_SEEN);
    WIRE_EACH(c, i, m->count) {
        visit_id(c, &m->others[i].id);
        wire_visit_seen(c, &m->others[i].seen);
    }
}

static void visit_diagnose(struct cursor *c, struct wire_diagnose *m) {
    visit_id(c, &m->id);
    cursor_bytes(c, m->secret, sizeof m->secret);
}

static void visit_numbers(struct cursor *c, struct wire_numbers *m) {
    cursor_count(c, &m->count, WIRE_MAX_NUMBERS);
    WIRE_EACH(c, i, m->count) wire_visit_program_number(c, m->list[i].name, &m->list[i].value);
}

static void visit_waits(struct cursor *c, struct wire_waits *m) {
    wire_visit_number(c, &m->all_us);
    cursor_count(c, &m->count, WIRE_MAX_WAITS);
    WIRE_EACH(c, i, m->count) {
        struct wire_wait *wait = &m->list[i];
        visit_op_name(c, &wait->name);
        cursor_u8(c, &wait->kind);
        wire_visit_number(c, &wait->span_us);
        cursor_count(c, &wait->missing_count, WIRE_MAX_MISSING);
        WIRE_EACH(c, j, wait->missing_count) visit_id(c, &wait->missing[j]);
    }
}

static void visit_precopy(struct cursor *c, struct wire_precopy *m) {
    cursor_range(c, &m->copies, WIRE_COPY_OVER, WIRE_COPY_ADVANCES);
    wire_visit_progress(c, &m->progress);
}

static void visit_matrix(struct cursor *c, struct wire_matrix *m) { wire_visit_matrix(c, m); }

static void visit_run(struct cursor *c, struct wire_run *m) {
    uint8_t length = wire_visit_chars(c, m->chars, 1, WIRE_MAX_RUN);
    bool every = length == 1 && m->chars[0] == WIRE_EVERY_RUN[0];
    if (cursor_judges(c)) cursor_expect(c, every || wire_is_run_name(m->chars, length));
}

static void visit_runs_are(struct cursor *c, struct wire_runs_are *m) {
    cursor_count(c, &m->count, WIRE_MAX_RUNS);
    WIRE_EACH(c, i, m->count) {
        uint8_t length = wire_visit_chars(c, m->runs[i].run.chars, 0, WIRE_MAX_RUN);
        cursor_u32(c, &m->runs[i].peers);
        if (cursor_judges(c)) cursor_expect(c, length == 0 || wire_is_run_name(m->runs[i].run.chars, length));
    }
}

static void visit_link_hello(struct cursor *c, struct wire_link_hello *m) {
    cursor_u16(c, &m->version);
    cursor_range(c, &m->kind, WIRE_LINK_DATA, WIRE_LINK_PRECOPY);
    cursor_bytes(c, m->secret, sizeof m->secret);
    visit_id(c, &m->from);
    visit_id(c, &m->to);
    cursor_u32(c, &m->index);
    cursor_expect(c, m->index <= WIRE_MAX_LANES);
}

// Visits the message that a frame of this type has as its body. A message that is to be written is not changed.
static void visit(struct cursor *c, enum wire_type type, void *message) {
    switch (type) {
#define WIRE_VISIT(name, type) \
    case WIRE_##type: visit_##name(c, message); break;
        WIRE_CONTROL_MESSAGES(WIRE_VISIT)
        WIRE_VISIT(link_hello, LINK_HELLO)
#undef WIRE_VISIT
    default: c->bad = true;
    }
}

void wire_encode(struct wire_buffer *out, struct wire_header header, enum wire_type type, const void *message) {
    struct cursor c = wire_begin(out);
    visit(&c, type, (void *)message);
    wire_end(&c, header, type);
}

bool wire_decode(enum wire_type type, const uint8_t *body, size_t length, void *out) {
    struct cursor c = cursor_read(body, length);
    visit(&c, type, out);
    return cursor_complete(&c);
}

bool wire_decode_identity(const uint8_t *body, size_t length, struct wire_hello *out) {
    struct cursor c = cursor_read(body, length);
    *out = (struct wire_hello){0};
    visit_identity(&c, out);
    return !c.bad;
}
