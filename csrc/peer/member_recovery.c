// The loss of the master, at a peer. The run is what its members know, so each keeps what the next master has to hear:
// the newest epoch, how the last vote of all and the last round of its group ended, and the last verdicts. Whoever
// missed one of these still has its vote or its op open, and nothing further can have ended without it: so one of each
// is enough, and as many verdicts as ops can be live.
//
// A peer acts on one master at a time: with RESUME it has done with all masters before. What it promised to one, it
// tells the next, so that of two masters that gather at once one has the higher generation; to that it belongs once it
// has entered an epoch of it.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "base/platform.h"
#include "pccl.h"
#include "master/election.h"
#include "peer/member_private.h"

void member_set_recovery(struct member *m, uint32_t limit_ms, uint32_t masters) {
    m->recovery_limit_ms = limit_ms;
    m->masters = masters;
}

struct wire_hello member_hello(const struct member *m, uint16_t port) {
    return (struct wire_hello){.version = WIRE_VERSION,
                               .id = m->id,
                               .group = m->group,
                               .lanes = m->lanes,
                               .port = port,
                               .masters = (uint8_t)m->masters};
}

// ---- what has to be known ----

// What a peer adopts with the end of its vote or its connect it cannot lose afterwards.
bool member_epoch_lost(const struct member *m, const struct wire_epoch *epoch) {
    uint64_t known = m->lost_epoch;
    if (m->phase == MEMBER_REGISTERED && !m->late.barrier) return false;
    if (m->late.barrier && m->late.view.number > known) known = m->late.view.number;
    return epoch->lost_epoch > known;
}

void member_note_epoch(struct member *m, const struct wire_epoch_commit *commit) {
    const struct wire_epoch *epoch = &commit->epoch;
    m->quorum = commit->quorum;
    if (epoch->lost_epoch > m->lost_epoch) m->lost_epoch = epoch->lost_epoch;
    if (epoch->sync_round > m->sync.round) {
        m->sync.round = epoch->sync_round;
        m->sync.expected = epoch->sync_expected;
    }
    uint8_t kind = commit->reason == WIRE_REASON_UPDATE  ? WIRE_VOTE_UPDATE
                   : commit->reason == WIRE_REASON_ORDER ? WIRE_VOTE_OPTIMIZE
                                                         : 0;
    struct wire_outcome outcome = {.kind = kind, .code = pcclSuccess};
    if (kind != 0 && epoch->barrier > m->barrier.number) member_note_barrier(m, epoch->barrier, &outcome);
}

void member_note_barrier(struct member *m, uint64_t number, const struct wire_outcome *outcome) {
    struct wire_barrier *barrier = &m->barrier;
    barrier->number = number;
    barrier->kind = outcome->kind;
    barrier->code = outcome->code;
    barrier->value = outcome->value;
    barrier->epoch = m->view.number;
    barrier->count = 0;
    const struct wire_member *everyone = m->epoch == NULL ? NULL : m->epoch->everyone;
    for (uint32_t i = 0; m->epoch != NULL && i < m->epoch->count; i++) {
        if (i == 0 || everyone[i].group != everyone[i - 1].group)
            barrier->sizes[barrier->count++] = (struct wire_group_size){.group = everyone[i].group};
        barrier->sizes[barrier->count - 1].count++;
    }
}

void member_note_sync(struct member *m, const struct wire_sync_end *end) {
    m->sync.round = end->round;
    m->sync.code = end->code;
    m->sync.revision = end->revision;
    if (end->code != pcclSuccess) return;
    m->sync.committed = true;
    m->sync.expected = election_expect(end->revision);
}

void member_note_verdict(struct member *m, const struct wire_verdict *verdict) {
    static const struct wire_id nobody;
    bool ends = verdict->kind == WIRE_VERDICT_COMMIT || verdict->kind == WIRE_VERDICT_MISMATCH;
    // ABORT and REDO follow from what members report; a supplier is found anew.
    if (!ends || !wire_id_equal(&verdict->supplier, &nobody)) return;
    m->past[m->past_next] = (struct wire_past){verdict->name, verdict->kind};
    m->past_next = (m->past_next + 1) % WIRE_MAX_PAST;
    if (m->past_count < WIRE_MAX_PAST) m->past_count++;
}

// ---- the loss ----

bool member_is_unheard(const struct member *m) {
    return m->recovery == RECOVERY_SEEKING || m->recovery == RECOVERY_TOLD;
}
bool member_is_seeking(const struct member *m) { return m->recovery != RECOVERY_NONE; }

const struct wire_barrier *member_barrier(const struct member *m) { return &m->barrier; }
const char *member_lost_why(const struct member *m) { return m->lost_why; }
int64_t member_waits_until(const struct member *m) { return m->waits_until; }
const char *member_waits_why(const struct member *m) { return m->waits_why.chars; }

void member_lose_master(struct member *m, const char *why, int64_t now, struct member_output *out) {
    bool joined = m->phase == MEMBER_REGISTERED || m->phase == MEMBER_ACCEPTED;
    if (!joined || m->recovery_limit_ms == 0) {
        member_die_of(m, pcclMasterConnectionFailed, out, "%s", why);
        return;
    }
    if (m->recovery == RECOVERY_NONE) {
        snprintf(m->lost_why, sizeof m->lost_why, "%s", why);
        m->waits_why.chars[0] = 0;
        m->recovery_deadline = now + (int64_t)m->recovery_limit_ms * MS_NS;
    }
    m->recovery = RECOVERY_SEEKING;
    // The next master forms another candidate, in which a newcomer is another member: links that were made for this one
    // would be taken for those.
    member_end_candidate(m);
    member_drop_strangers(m, out);
    member_act(out, MEMBER_SEEK);
}

void member_said_bye(struct member *m, int64_t now, struct member_output *out) {
    if (m->masters > 1)
        member_lose_master(m, "the master was stopped", now, out);
    else
        member_die_of(m, pcclMasterConnectionFailed, out, "the master was stopped");
}

void member_give_up(struct member *m, struct member_output *out) {
    const char *why = m->waits_why.chars;
    member_die_of(m, pcclMasterConnectionFailed, out, "%s; no master took the run up within %u ms%s%s", m->lost_why,
                  m->recovery_limit_ms, why[0] ? "; one said that it " : "", why);
}

// ---- telling the next master ----

static void fill_past(struct wire_past out[WIRE_MAX_PAST], const struct member *m) {
    uint32_t first = m->past_count < WIRE_MAX_PAST ? 0 : m->past_next;
    for (uint32_t i = 0; i < m->past_count; i++) out[i] = m->past[(first + i) % WIRE_MAX_PAST];
}

static void fill_losses(struct wire_loss out[WIRE_MAX_MEMBERS], const struct member *m) {
    for (uint32_t i = 0; i < m->loss_count; i++) {
        const struct member_view *view = &m->losses[i];
        out[i] =
            (struct wire_loss){view->number, view->global_world, view->group_world, view->groups, view->largest_group};
    }
}

static struct wire_epoch newest_epoch(struct member *m) {
    return (struct wire_epoch){
        .number = m->view.number,
        .group_epoch = m->view.group_epoch,
        .lost_epoch = m->lost_epoch,
        .barrier = m->barrier.number,
        .sync_round = m->sync.round,
        .sync_expected = m->sync.expected,
        .latency_us = 1,
        .megabytes_per_s = 1,
        .count = m->epoch == NULL ? 0 : m->epoch->count,
        .members = m->epoch == NULL ? NULL : m->epoch->everyone,
    };
}

void member_resume(struct member *m, uint16_t port, enum member_tensors tensors, const struct wire_hash *content,
                   int64_t now, struct member_output *out) {
    if (m->recovery != RECOVERY_SEEKING) return;
    m->differs_told = false; // the next master holds the election again
    if (m->vote == WIRE_VOTE_SYNC && tensors == MEMBER_TENSORS_RECEIVED) m->sync_vote.content = *content;
    if (m->vote == WIRE_VOTE_SYNC && tensors == MEMBER_TENSORS_TORN) {
        m->sync_vote.incomplete = 1;
        memcpy(&m->sync_vote.content, m->id.bytes, sizeof m->sync_vote.content); // nobody's content
    }
    struct wire_past past[WIRE_MAX_PAST];
    struct wire_loss losses[WIRE_MAX_MEMBERS];
    fill_past(past, m);
    fill_losses(losses, m);
    struct wire_resume resume = {
        .hello = member_hello(m, port),
        .join_number = m->welcome.join_number,
        .generation = m->generation,
        .vote = m->vote,
        .sync_vote = m->sync_vote,
        .accepted = m->phase == MEMBER_ACCEPTED,
        .sync_committed = m->sync.committed,
        .sync_code = m->sync.code,
        .sync_revision = m->sync.revision,
        .barrier = m->barrier,
        .epoch = newest_epoch(m),
        .past_count = m->past_count,
        .past = past,
        .loss_count = m->loss_count,
        .losses = losses,
        .quorum = m->quorum,
    };
    memcpy(resume.secret, m->welcome.secret, sizeof resume.secret);
    struct wire_header header = member_header(m);
    header.generation = m->promised;
    wire_encode_resume(&out->frames, header, &resume);
    m->recovery = RECOVERY_TOLD;
    m->vote_unsent = false;
    // A master answers at once; where one does not, and there are others, they are tried soon.
    int64_t limit = (int64_t)m->welcome.heartbeat_limit_ms * MS_NS, soon = MEMBER_ANSWER_MS * MS_NS;
    m->answer_by = now + (m->masters > 1 && soon < limit ? soon : limit);
    m->master = (struct arrival){.at_ns = now};
    m->waits_until = now + limit;
    m->beat_at = now + limit / 5;
}

// ---- its answer ----

static struct member_view view_of_barrier(const struct member *m, const struct wire_barrier *barrier) {
    // Any group epoch from the last loss up to the end of the vote gives the same: no loss lies between.
    struct member_view view = {
        .number = barrier->epoch, .group_epoch = barrier->epoch, .groups = barrier->count, .rank = MEMBER_NO_RANK};
    for (uint32_t i = 0; i < barrier->count; i++) {
        uint32_t size = barrier->sizes[i].count;
        view.global_world += size;
        if (size > view.largest_group) view.largest_group = size;
        if (barrier->sizes[i].group == m->group) view.group_world = size;
    }
    return view;
}

// It has the promises of more than half, or will have, and waits a limit for the rest: who leaves now breaks the
// majority.
static void take_generation(struct member *m, const struct wire_header *header, int64_t now,
                            struct member_output *out) {
    if (header->run != m->run || header->generation <= m->promised) return;
    m->promised = header->generation;
    m->waits_until = now + 2 * (int64_t)m->welcome.heartbeat_limit_ms * MS_NS;
    struct wire_header answer = member_header(m);
    answer.generation = m->promised;
    wire_encode_empty(&out->frames, answer, WIRE_PROMISE);
}

static void take_resumed(struct member *m, struct member_output *out) {
    m->welcome.heartbeat_limit_ms = m->resumed.heartbeat_limit_ms;
    m->recovery = RECOVERY_RESUMED;
    m->waits_until = INT64_MAX;
    m->late.barrier = m->resumed.barrier_ended;
    m->late.sync = m->resumed.sync_ended;
    m->late.view = view_of_barrier(m, &m->resumed.barrier);
    member_act(out, MEMBER_RECHECK); // the data plane may speak of the next epoch before this thread does
}

// Of what it has missed, a peer hears sizes. All members of `now` were in the group before, so with the same size they
// were all of it; else a loss follows, and the program meets that before it can use a rank.
static uint32_t rank_before(const struct member_view *now, uint32_t group_world) {
    return group_world == now->group_world ? now->rank : MEMBER_NO_RANK;
}

// Others have ended calls with these losses, one by one, so this program has to meet each of them, too.
void member_hear_losses(struct member *m, const struct member_view *now, struct member_output *out) {
    if (m->recovery != RECOVERY_RESUMED) return;
    m->late.view.rank = rank_before(now, m->late.view.group_world);
    for (uint32_t i = 0; i < m->resumed.loss_count; i++) {
        const struct wire_loss *loss = &m->resumed.losses[i];
        if (loss->epoch <= m->view.number || loss->epoch <= m->lost_epoch || loss->epoch >= now->number) continue;
        struct member_view view = {loss->epoch,
                                   loss->epoch,
                                   loss->members,
                                   loss->group_members,
                                   loss->groups,
                                   loss->largest_group,
                                   rank_before(now, loss->group_members)};
        member_remember_loss(m, &view);
        m->lost_epoch = loss->epoch;
        member_act(out, MEMBER_MISSED_LOSS)->group_epoch = loss->epoch;
    }
}

// The run that this newcomer waited in has ended, or goes on without knowing it: it waits from the start.
static void take_welcome_again(struct member *m, const struct wire_header *header, int64_t now,
                               struct member_output *out) {
    m->recovery = RECOVERY_NONE;
    memset(&m->late, 0, sizeof m->late); // another master may have said RESUMED, and been lost before its EPOCH
    member_take_welcome(m, header, now, out);
    member_act(out, MEMBER_FOUND);
}

bool member_take_waiting(struct member *m, const struct wire_header *header, const uint8_t *body,
                         struct member_output *out) {
    if (!wire_decode_text(body, header->length, &m->waits_why)) return false;
    m->waits_why.chars[m->waits_why.length < WIRE_MAX_TEXT ? m->waits_why.length : WIRE_MAX_TEXT - 1] = 0;
    member_act(out, MEMBER_WAITING);
    return true;
}

bool member_take_answer(struct member *m, const struct wire_header *header, const uint8_t *body, int64_t now,
                        struct member_output *out) {
    struct wire_text text;
    switch (header->type) {
    case WIRE_GENERATION: take_generation(m, header, now, out); return true;
    case WIRE_RESUMED:
        if (header->run != m->run || header->generation != m->promised) return true;
        if (!wire_decode_resumed(body, header->length, &m->resumed)) return false;
        take_resumed(m, out);
        return true;
    case WIRE_WELCOME:
        if (m->phase != MEMBER_REGISTERED || !wire_decode_welcome(body, header->length, &m->welcome)) return false;
        take_welcome_again(m, header, now, out);
        return true;
    case WIRE_REFUSED:
    case WIRE_EXPELLED:
        if (!wire_decode_text(body, header->length, &text)) return false;
        member_take_end(m, header, &text, out);
        return true;
    case WIRE_BYE: member_said_bye(m, now, out); return true;
    case WIRE_WAITING: return member_take_waiting(m, header, body, out);
    default: return true;
    }
}

static void send_vote(struct member *m, struct member_output *out) {
    struct wire_vote vote = {.kind = m->vote};
    m->vote_unsent = false;
    if (m->vote == WIRE_VOTE_SYNC)
        wire_encode_sync_vote(&out->frames, member_header(m), &m->sync_vote);
    else
        wire_encode_vote(&out->frames, member_header(m), &vote);
}

static void end_barrier(struct member *m, struct member_output *out) {
    m->barrier = m->resumed.barrier;
    m->barrier.sizes = m->sizes;
    memcpy(m->sizes, m->resumed.barrier.sizes, m->barrier.count * sizeof *m->sizes);
    if (m->vote == m->barrier.kind) member_end_vote(m, m->barrier.code, m->barrier.value, out)->view = m->late.view;
}

static void end_sync(struct member *m, struct member_output *out) {
    m->end = m->resumed.sync;
    member_note_sync(m, &m->end);
    if (m->vote == WIRE_VOTE_SYNC) member_end_vote(m, m->end.code, m->end.revision, out)->end = &m->end;
}

// The first epoch of the new generation is in force: now what the old one had ended can end here. Not before, for a
// master that is lost between the two leaves everything as it was.
void member_recovered(struct member *m, struct member_output *out) {
    if (m->recovery != RECOVERY_RESUMED) return;
    m->generation = m->promised;
    m->recovery = RECOVERY_NONE;
    member_act(out, MEMBER_FOUND);
    if (m->late.barrier) end_barrier(m, out);
    if (m->late.sync) end_sync(m, out);
    memset(&m->late, 0, sizeof m->late);
    if (m->vote != 0 && m->vote_unsent) send_vote(m, out);
}
