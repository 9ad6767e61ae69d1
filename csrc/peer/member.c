// Links are made for two memberships at once: the epoch in force and, while newcomers are admitted or an order is
// tried, the candidate. A neighbour (another member of the own group) carries one flag per membership, and a link is
// required when either asks for it. Nothing is closed because a membership changed; a neighbour that is in neither is
// dropped with all its links.
//
// A link that is lost is not dialled again until the master has answered with a new group epoch: bytes of the old one
// may be lost with the connection, so the link must not carry that epoch any further.
#define _GNU_SOURCE
#include "peer/member_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/platform.h"
#include "pccl.h"

// ---- output ----

void member_output_clear(struct member_output *output) {
    output->count = 0;
    output->frames.length = 0;
    output->failed = false;
}

void member_output_fini(struct member_output *output) {
    free(output->actions);
    wire_buffer_fini(&output->frames);
    memset(output, 0, sizeof *output);
}

struct member_action *member_act(struct member_output *out, enum member_action_kind kind) {
    static _Thread_local struct member_action refused; // written and never read
    if (out->count == out->capacity) {
        size_t capacity = out->capacity ? 2 * out->capacity : 16;
        struct member_action *grown = realloc(out->actions, capacity * sizeof *grown);
        if (grown == NULL) {
            out->failed = true;
            return &refused;
        }
        out->actions = grown;
        out->capacity = capacity;
    }
    struct member_action *action = &out->actions[out->count++];
    *action = (struct member_action){.kind = kind};
    return action;
}

struct wire_header member_header(const struct member *m) {
    return (struct wire_header){.run = m->run,
                                .generation = m->recovery == RECOVERY_RESUMED ? m->promised : m->generation,
                                .epoch = m->view.number};
}

// ---- endings ----

struct member_action *member_end_vote(struct member *m, int code, uint64_t value, struct member_output *out) {
    m->vote = 0;
    m->vote_unsent = false;
    struct member_action *action = member_act(out, MEMBER_VOTE_END);
    action->code = code;
    action->value = value;
    action->view = m->view;
    return action;
}

// The death of a newcomer is the end of its connect; that of an accepted peer kills the communicator before its vote
// returns.
static void die(struct member *m, int code, struct member_output *out) {
    enum member_phase phase = m->phase;
    if (phase == MEMBER_DEAD || phase == MEMBER_IDLE) return;
    m->phase = MEMBER_DEAD;
    m->candidate.active = false;
    if (phase != MEMBER_ACCEPTED) {
        member_act(out, MEMBER_CONNECT_END)->code = code;
        return;
    }
    member_act(out, MEMBER_DIE);
    if (m->vote != 0) member_end_vote(m, code, 0, out);
}

void member_die_of(struct member *m, int code, struct member_output *out, const char *format, ...) {
    if (m->phase != MEMBER_DEAD) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(m->text, sizeof m->text, format, arguments);
        va_end(arguments);
    }
    die(m, code, out);
}

static void die_of_garbage(struct member *m, const char *what, struct member_output *out) {
    member_die_of(m, pcclMasterConnectionFailed, out,
                  "the master sent a %s that makes no sense: it may be of another version", what);
}

// ---- neighbours and links ----

static struct neighbour *find_neighbour(const struct member *m, const struct wire_id *id) {
    for (size_t i = 0; i < m->neighbour_count; i++)
        if (wire_id_equal(&m->neighbours[i].id, id)) return &m->neighbours[i];
    return NULL;
}

static struct neighbour *add_neighbour(struct member *m, const struct wire_member *from, struct member_output *out) {
    if (m->neighbour_count == m->neighbour_capacity) {
        size_t capacity = m->neighbour_capacity ? 2 * m->neighbour_capacity : 8;
        struct neighbour *grown = realloc(m->neighbours, capacity * sizeof *grown);
        if (grown == NULL) {
            out->failed = true;
            return NULL;
        }
        m->neighbours = grown;
        m->neighbour_capacity = capacity;
    }
    uint32_t lanes = from->lanes < m->lanes ? from->lanes : m->lanes;
    struct link *links = calloc((size_t)lanes + 1, sizeof *links);
    if (links == NULL) {
        out->failed = true;
        return NULL;
    }
    struct neighbour *added = &m->neighbours[m->neighbour_count++];
    *added = (struct neighbour){.id = from->id,
                                .join_number = from->join_number,
                                .address = from->address,
                                .link_count = lanes + 1,
                                .links = links};
    return added;
}

static bool required_in(const struct neighbour *n, uint32_t index, enum membership_kind kind) {
    return n->in[kind] && index < n->link_count && (index == 0 || n->lanes[kind]);
}

static bool required(const struct neighbour *n, uint32_t index) {
    return required_in(n, index, IN_EPOCH) || required_in(n, index, IN_CANDIDATE);
}

// Whether a link that `kind` requires is in `state`, or, for LINK_ABSENT, in any state but UP.
static bool any_link(const struct neighbour *n, enum membership_kind kind, enum link_state state) {
    for (uint32_t i = 0; i < n->link_count && required_in(n, i, kind); i++)
        if (state == LINK_ABSENT ? n->links[i].state != LINK_UP : n->links[i].state == state) return true;
    return false;
}

static bool any_missing(const struct member *m, enum membership_kind kind) {
    for (size_t i = 0; i < m->neighbour_count; i++)
        if (any_link(&m->neighbours[i], kind, LINK_ABSENT)) return true;
    return false;
}

void member_leave_membership(struct member *m, enum membership_kind kind) {
    for (size_t i = 0; i < m->neighbour_count; i++) m->neighbours[i].in[kind] = m->neighbours[i].lanes[kind] = false;
}

void member_drop_strangers(struct member *m, struct member_output *out) {
    size_t kept = 0;
    for (size_t i = 0; i < m->neighbour_count; i++) {
        struct neighbour *n = &m->neighbours[i];
        if (n->in[IN_EPOCH] || n->in[IN_CANDIDATE]) {
            m->neighbours[kept++] = *n;
            continue;
        }
        member_act(out, MEMBER_DROP_PEER)->id = n->id;
        free(n->links);
    }
    m->neighbour_count = kept;
}

// Takes over the own group of a membership.
static void take_membership(struct member *m, enum membership_kind kind, const struct epoch_ring *ring,
                            struct member_output *out) {
    member_leave_membership(m, kind);
    for (uint32_t i = 0; i < ring->count; i++) {
        if (i == ring->rank) continue;
        struct neighbour *n = find_neighbour(m, &ring->members[i].id);
        if (n == NULL) n = add_neighbour(m, &ring->members[i], out);
        if (n == NULL) return;
        n->in[kind] = true;
        n->lanes[kind] = (i + 1) % ring->count == ring->rank || (ring->rank + 1) % ring->count == i;
    }
}

static void dial(struct neighbour *n, uint32_t index, struct member_output *out) {
    n->links[index].state = LINK_MAKING;
    struct member_action *action = member_act(out, MEMBER_DIAL);
    action->id = n->id;
    action->index = index;
    action->address = n->address;
}

static void dial_missing(struct member *m, struct member_output *out) {
    for (size_t i = 0; i < m->neighbour_count; i++) {
        struct neighbour *n = &m->neighbours[i];
        for (uint32_t index = 0; index < n->link_count; index++) {
            struct link *link = &n->links[index];
            if (!required(n, index) || link->state == LINK_UP || link->state == LINK_MAKING) continue;
            link->state = LINK_ABSENT;
            link->dialled_again = false;
            if (n->join_number < m->welcome.join_number) dial(n, index, out); // the later joined of a pair dials
        }
    }
}

static void send_linked(struct member *m, uint32_t attempt, struct member_output *out) {
    m->answer.attempt = attempt;
    m->answer.latency_us = 1;
    for (size_t i = 0; i < m->neighbour_count; i++)
        if (m->neighbours[i].latency_us > m->answer.latency_us) m->answer.latency_us = m->neighbours[i].latency_us;
    wire_encode_linked(&out->frames, member_header(m), &m->answer);
}

static void answer_candidate(struct member *m, enum link_state unreachable, struct member_output *out) {
    m->candidate.answered = true;
    m->answer.count = 0;
    for (size_t i = 0; i < m->neighbour_count; i++)
        if (any_link(&m->neighbours[i], IN_CANDIDATE, unreachable))
            m->answer.unreachable[m->answer.count++] = m->neighbours[i].id;
    send_linked(m, m->candidate.attempt, out);
}

// What a link that came up makes complete.
static void check_complete(struct member *m, struct member_output *out) {
    if (m->phase == MEMBER_ACCEPTED && !m->linked && !any_missing(m, IN_EPOCH)) {
        m->linked = true;
        member_act(out, MEMBER_LINKS_READY)->group_epoch = m->view.group_epoch;
        m->answer.count = 0;
        send_linked(m, 0, out);
    }
    if (m->candidate.active && !m->candidate.answered && !any_missing(m, IN_CANDIDATE))
        answer_candidate(m, LINK_FAILED, out);
}

static void send_link_down(const struct member *m, const struct wire_id *id, uint32_t index, bool silent,
                           struct member_output *out) {
    struct wire_link_down down = {.id = *id, .index = index, .silent = silent};
    wire_encode_link_down(&out->frames, member_header(m), &down);
}

// One failure of a pair is many broken connections; the master hears of it once per epoch.
static void accuse(struct member *m, struct neighbour *n, uint32_t index, bool silent, struct member_output *out) {
    if (n->accused_in == m->view.number) return;
    n->accused_in = m->view.number;
    send_link_down(m, &n->id, index, silent, out);
}

static void want_fresh_epoch(struct member *m, int64_t now) {
    if (m->fresh_at == 0) m->fresh_at = now + MEMBER_GRACE_MS * MS_NS;
}

static int64_t limit_ns(const struct member *m) { return (int64_t)m->welcome.heartbeat_limit_ms * MS_NS; }

int64_t member_link_limit_ns(const struct member *m) {
    // Shorter than the master's own limit, so that an answer that names somebody arrives before silence is punished.
    return arrival_wait_ns(&m->master, limit_ns(m)) * 3 / 4;
}

void member_round_trip(struct member *m, int64_t round_trip_ns) { m->master.round_trip_ns = round_trip_ns; }

void member_link_up(struct member *m, const struct wire_id *id, uint32_t index, uint32_t latency_us, int64_t now,
                    struct member_output *out) {
    struct neighbour *n = find_neighbour(m, id);
    if (n == NULL || index >= n->link_count) {
        member_act(out, MEMBER_DROP_PEER)->id = *id;
        return;
    }
    struct link *link = &n->links[index];
    // The other side made it again before this side saw it break: what was sent on the old one may be lost.
    bool replaced = link->state == LINK_UP && m->phase == MEMBER_ACCEPTED && required_in(n, index, IN_EPOCH);
    link->state = LINK_UP;
    link->made_in = m->view.number;
    if (index == 0 || n->latency_us == 0) n->latency_us = latency_us;
    if (replaced) want_fresh_epoch(m, now);
    check_complete(m, out);
}

void member_link_failed(struct member *m, const struct wire_id *id, uint32_t index, struct member_output *out) {
    struct neighbour *n = find_neighbour(m, id);
    if (m->phase == MEMBER_DEAD || n == NULL || index >= n->link_count || n->links[index].state != LINK_MAKING) return;
    if (required(n, index) && !n->links[index].dialled_again) {
        n->links[index].dialled_again = true;
        dial(n, index, out);
        return;
    }
    n->links[index].state = LINK_FAILED;
    if (m->phase == MEMBER_ACCEPTED && required_in(n, index, IN_EPOCH)) accuse(m, n, index, false, out);
    if (m->candidate.active && !m->candidate.answered && required_in(n, index, IN_CANDIDATE))
        answer_candidate(m, LINK_FAILED, out);
}

void member_link_lost(struct member *m, const struct wire_id *id, uint32_t index, bool silent, int64_t now,
                      struct member_output *out) {
    if (m->phase != MEMBER_ACCEPTED && m->phase != MEMBER_REGISTERED) return;
    if (wire_id_equal(id, &m->id)) {
        send_link_down(m, id, index, false, out);
        return;
    }
    struct neighbour *n = find_neighbour(m, id);
    if (n == NULL || index >= n->link_count || n->links[index].state != LINK_UP) return;
    n->links[index].state = LINK_FAILED;
    if (m->phase == MEMBER_ACCEPTED && required_in(n, index, IN_EPOCH)) {
        if (m->linked) m->linked_deadline = now + member_link_limit_ns(m);
        m->linked = false;
        if (!silent && now < m->relinked_until && n->links[index].made_in < m->view.number)
            want_fresh_epoch(m, now);
        else
            accuse(m, n, index, silent, out);
    }
    if (m->candidate.active && !m->candidate.answered && required_in(n, index, IN_CANDIDATE))
        answer_candidate(m, LINK_FAILED, out);
}

// ---- hellos ----

enum member_judgement member_judge_hello(const struct member *m, const struct wire_link_hello *hello) {
    if (m->phase == MEMBER_JOINING || m->phase == MEMBER_IDLE) return MEMBER_PARK; // the secret is not known yet
    if (m->phase == MEMBER_DEAD || hello->version != WIRE_VERSION) return MEMBER_REJECT;
    if (!wire_id_equal(&hello->to, &m->id)) return MEMBER_REJECT;
    // nor that of the run that it may be let in to
    if (m->phase == MEMBER_REGISTERED && m->recovery != RECOVERY_NONE) return MEMBER_PARK;
    if (memcmp(hello->secret, m->welcome.secret, sizeof hello->secret) != 0) return MEMBER_REJECT;
    const struct neighbour *n = find_neighbour(m, &hello->from);
    if (n == NULL) return MEMBER_PARK;
    if (hello->kind == WIRE_LINK_PROBE) return n->in[IN_EPOCH] ? MEMBER_ACCEPT : MEMBER_PARK;
    if (n->join_number < m->welcome.join_number || hello->index >= n->link_count) return MEMBER_REJECT;
    return required(n, hello->index) ? MEMBER_ACCEPT : MEMBER_PARK;
}

void member_measured(struct member *m, const struct wire_id *from, const struct wire_id *to, uint64_t bytes_per_s,
                     struct member_output *out) {
    if (m->phase != MEMBER_ACCEPTED) return;
    struct wire_measured measured = {.from = *from, .to = *to, .bytes_per_s = bytes_per_s};
    wire_encode_measured(&out->frames, member_header(m), &measured);
}

// ---- memberships from the master ----

static struct member_view view_of(const struct wire_epoch *epoch, const struct epoch_ring *ring) {
    struct member_view view = {.number = epoch->number,
                               .group_epoch = epoch->group_epoch,
                               .global_world = epoch->count,
                               .group_world = ring->count};
    uint32_t size = 0;
    for (uint32_t i = 0; i < ring->count; i++)
        view.rank += ring->members[i].join_number < ring->members[ring->rank].join_number;
    for (uint32_t i = 0; i < epoch->count; i++) {
        bool first = i == 0 || epoch->members[i].group != epoch->members[i - 1].group;
        size = first ? 1 : size + 1;
        view.groups += first;
        if (size > view.largest_group) view.largest_group = size;
    }
    return view;
}

// Whoever of the ring before is not in the one now is gone for good, also from a candidate.
static void forget_lost(struct member *m, const struct epoch_ring *before, const struct epoch_ring *ring) {
    for (uint32_t old = 0; old < before->count; old++) {
        uint32_t i = 0;
        while (i < ring->count && !wire_id_equal(&ring->members[i].id, &before->members[old].id)) i++;
        if (i < ring->count) continue;
        struct neighbour *n = find_neighbour(m, &before->members[old].id);
        if (n != NULL) n->in[IN_CANDIDATE] = false;
    }
}

void member_remember_loss(struct member *m, const struct member_view *view) {
    // cannot be: there are no more members to lose before the next vote is adopted
    if (m->loss_count == WIRE_MAX_MEMBERS) {
        memmove(m->losses, m->losses + 1, (WIRE_MAX_MEMBERS - 1) * sizeof *m->losses);
        m->loss_count--;
    }
    m->losses[m->loss_count++] = *view;
}

void member_end_candidate(struct member *m) {
    m->candidate.active = false;
    member_leave_membership(m, IN_CANDIDATE);
}

// The own group has changed since `before`, which is NULL for a newcomer.
static void enter_group_epoch(struct member *m, enum wire_reason reason, const struct epoch *before, int64_t now,
                              struct member_output *out) {
    if (before != NULL) forget_lost(m, &before->ring, &m->epoch->ring);
    take_membership(m, IN_EPOCH, &m->epoch->ring, out);
    if (m->epoch->lost) member_remember_loss(m, &m->view);
    m->fresh_at = 0;
    m->linked = false;
    m->linked_deadline = now + member_link_limit_ns(m);
    // A loss may come in place of the epoch that mends what broke before it.
    bool mends = reason == WIRE_REASON_RELINK || reason == WIRE_REASON_LOSS;
    if (mends || m->recovery != RECOVERY_NONE) m->relinked_until = m->linked_deadline;
    member_act(out, MEMBER_ENTER_EPOCH)->epoch = m->epoch;
}

static void enter_epoch(struct member *m, const struct wire_epoch_commit *commit, int64_t now,
                        struct member_output *out) {
    struct epoch_ring ring;
    if (commit->epoch.number <= m->view.number) return;
    if (!epoch_find_ring(&commit->epoch, &m->id, &ring)) {
        die_of_garbage(m, "epoch without this peer", out);
        return;
    }
    bool newcomer = m->phase == MEMBER_REGISTERED;
    struct member_view view = view_of(&commit->epoch, &ring);
    member_hear_losses(m, &view, out);
    struct wire_header header = member_header(m);
    struct epoch *before = m->epoch;
    struct epoch *epoch = epoch_new(&commit->epoch, &ring, &header, member_epoch_lost(m, &commit->epoch));
    if (epoch == NULL) {
        out->failed = true;
        return;
    }
    m->epoch = epoch;
    m->phase = MEMBER_ACCEPTED;
    uint64_t group_epoch = m->view.group_epoch;
    m->view = view;
    member_note_epoch(m, commit);
    if (m->view.group_epoch > group_epoch) enter_group_epoch(m, commit->reason, before, now, out);
    epoch_put(before);
    if (commit->reason == WIRE_REASON_UPDATE || commit->reason == WIRE_REASON_ORDER) member_end_candidate(m);
    member_drop_strangers(m, out);
    if (!m->linked) dial_missing(m, out);
    check_complete(m, out);
    member_act(out, MEMBER_RECHECK);
    if (m->quorum.members + m->quorum.elders > 0) m->beat_at = now; // its master has to know
    if (newcomer) member_act(out, MEMBER_CONNECT_END)->view = m->late.barrier ? m->late.view : m->view;
    if (m->vote == WIRE_VOTE_UPDATE && commit->reason == WIRE_REASON_UPDATE) member_end_vote(m, pcclSuccess, 0, out);
    if (m->vote == WIRE_VOTE_OPTIMIZE && commit->reason == WIRE_REASON_ORDER) member_end_vote(m, pcclSuccess, 0, out);
    member_recovered(m, out);
}

static void take_candidate(struct member *m, const struct wire_candidate *candidate, int64_t now,
                           struct member_output *out) {
    struct epoch_ring ring;
    if (!epoch_find_ring(&candidate->epoch, &m->id, &ring)) {
        die_of_garbage(m, "candidate without this peer", out);
        return;
    }
    m->candidate.active = true;
    m->candidate.answered = false;
    m->candidate.attempt = candidate->attempt;
    m->candidate.deadline = now + member_link_limit_ns(m);
    take_membership(m, IN_CANDIDATE, &ring, out);
    member_drop_strangers(m, out);
    dial_missing(m, out);
    check_complete(m, out);
    member_act(out, MEMBER_RECHECK);
}

static void take_outcome(struct member *m, const struct wire_outcome *outcome, struct member_output *out) {
    if (outcome->kind == WIRE_VOTE_UPDATE || outcome->kind == WIRE_VOTE_OPTIMIZE) {
        member_end_candidate(m);
        member_drop_strangers(m, out);
    }
    member_note_barrier(m, m->barrier.number + 1, outcome);
    if (m->vote == outcome->kind) member_end_vote(m, outcome->code, outcome->value, out);
}

static void take_sync_end(struct member *m, struct member_output *out) {
    member_note_sync(m, &m->end);
    if (m->vote != WIRE_VOTE_SYNC) return;
    member_end_vote(m, m->end.code, m->end.revision, out)->end = &m->end;
}

void member_take_welcome(struct member *m, const struct wire_header *header, int64_t now, struct member_output *out) {
    m->run = header->run;
    m->generation = m->promised = header->generation;
    m->phase = MEMBER_REGISTERED;
    m->beat_at = now + limit_ns(m) / 5;
    member_act(out, MEMBER_RECHECK);
}

static void take_measure(struct member *m, const struct wire_measure *measure, struct member_output *out) {
    const struct neighbour *n = find_neighbour(m, &measure->target);
    if (n == NULL || !n->in[IN_EPOCH]) {
        member_measured(m, &m->id, &measure->target, 0, out);
        return;
    }
    struct member_action *action = member_act(out, MEMBER_PROBE);
    action->id = n->id;
    action->address = n->address;
    action->duration_ms = measure->duration_ms;
}

// By the sync that is under way, and not for something else in the middle of it.
static bool breaks_sync_rule(const struct wire_header *header, const struct wire_text *text) {
    size_t length = strlen(WIRE_SYNC_RULE);
    return header->type == WIRE_EXPELLED && text->length >= length && memcmp(text->chars, WIRE_SYNC_RULE, length) == 0;
}

void member_take_end(struct member *m, const struct wire_header *header, const struct wire_text *text,
                     struct member_output *out) {
    const char *what = header->type == WIRE_EXPELLED ? "expelled by the master" : "refused by the master";
    // A newcomer is refused after its registration only because it and the others could not reach each other, and an
    // accepted peer that is expelled out of a vote could not make its links.
    bool links = m->recovery == RECOVERY_NONE &&
                 (header->type == WIRE_REFUSED ? m->phase == MEMBER_REGISTERED : m->phase == MEMBER_ACCEPTED);
    int code = links ? pcclRankConnectionFailed : pcclMasterConnectionFailed;
    if (m->vote == WIRE_VOTE_SYNC)
        code = breaks_sync_rule(header, text) ? pcclInvalidUsage : pcclMasterConnectionFailed;
    member_die_of(m, code, out, "%s: %.*s", what, (int)text->length, text->chars);
}

// Dispatches one frame. False: its body is malformed, or it does not belong into this phase.
static bool take_frame(struct member *m, const struct wire_header *header, const uint8_t *body, int64_t now,
                       struct member_output *out) {
    size_t length = header->length;
    bool joined = m->phase == MEMBER_REGISTERED || m->phase == MEMBER_ACCEPTED;
    struct wire_text text;
    switch (header->type) {
    case WIRE_WELCOME:
        if (m->phase != MEMBER_JOINING || !wire_decode_welcome(body, length, &m->welcome)) return false;
        member_take_welcome(m, header, now, out);
        return true;
    case WIRE_REFUSED:
    case WIRE_EXPELLED:
        if (!wire_decode_text(body, length, &text)) return false;
        member_take_end(m, header, &text, out);
        return true;
    case WIRE_HEARTBEAT: return true;
    case WIRE_WAITING: return member_take_waiting(m, header, body, out);
    case WIRE_CANDIDATE: {
        struct wire_candidate candidate = {.epoch.members = m->members};
        if (!joined || !wire_decode_candidate(body, length, &candidate)) return false;
        take_candidate(m, &candidate, now, out);
        return true;
    }
    case WIRE_EPOCH: {
        struct wire_epoch_commit commit = {.epoch.members = m->members};
        if (!joined || !wire_decode_epoch_commit(body, length, &commit)) return false;
        enter_epoch(m, &commit, now, out);
        return true;
    }
    case WIRE_OUTCOME: {
        struct wire_outcome outcome;
        if (m->phase != MEMBER_ACCEPTED || !wire_decode_outcome(body, length, &outcome)) return false;
        take_outcome(m, &outcome, out);
        return true;
    }
    case WIRE_VERDICT:
        if (!joined || !wire_decode_verdict(body, length, &m->verdict)) return false;
        member_note_verdict(m, &m->verdict);
        member_act(out, MEMBER_VERDICT)->verdict = &m->verdict;
        return true;
    case WIRE_BYE: member_said_bye(m, now, out); return true;
    case WIRE_MEASURE: {
        struct wire_measure measure;
        if (!joined || !wire_decode_measure(body, length, &measure)) return false;
        take_measure(m, &measure, out);
        return true;
    }
    case WIRE_SYNC_DIFFERS: {
        struct wire_sync_differs differs;
        if (!joined || !wire_decode_sync_differs(body, length, &differs)) return false;
        m->differs_told = m->vote == WIRE_VOTE_SYNC;
        m->differs = differs;
        return true;
    }
    case WIRE_SYNC_PLAN:
        if (!joined || !wire_decode_sync_plan(body, length, &m->plan)) return false;
        if (m->vote == WIRE_VOTE_SYNC) member_act(out, MEMBER_SYNC_PLAN)->plan = &m->plan;
        return true;
    case WIRE_SYNC_END:
        if (!joined || !wire_decode_sync_end(body, length, &m->end)) return false;
        take_sync_end(m, out);
        return true;
    default: return false;
    }
}

void member_frame(struct member *m, const struct wire_header *header, const uint8_t *body, int64_t now,
                  struct member_output *out) {
    if (m->phase == MEMBER_IDLE || m->phase == MEMBER_DEAD) return;
    arrival_note(&m->master, now, limit_ns(m));
    m->answer_by = 0;
    if (m->phase == MEMBER_JOINING) m->join_deadline = now + MEMBER_JOIN_LIMIT_MS * MS_NS; // it speaks, so it is one
    if (m->recovery == RECOVERY_SEEKING) return;
    if (m->recovery == RECOVERY_TOLD) {
        if (!member_take_answer(m, header, body, now, out)) die_of_garbage(m, wire_type_name(header->type), out);
        return;
    }
    bool stale =
        m->phase != MEMBER_JOINING && (header->run != m->run || header->generation != member_header(m).generation);
    if (stale) return;
    if (!take_frame(m, header, body, now, out)) die_of_garbage(m, wire_type_name(header->type), out);
}

// ---- joining, votes, leaving ----

struct member *member_new(const struct wire_id *id, uint32_t group, uint32_t lanes) {
    struct member *m = malloc(sizeof *m);
    if (m == NULL) return NULL;
    memset(m, 0, offsetof(struct member, sizes));
    m->id = *id;
    m->group = group;
    m->lanes = lanes;
    m->masters = 1;
    m->barrier.sizes = m->sizes;
    m->resumed.barrier.sizes = m->resumed_sizes;
    m->resumed.losses = m->resumed_losses;
    return m;
}

void member_free(struct member *m) {
    if (m == NULL) return;
    for (size_t i = 0; i < m->neighbour_count; i++) free(m->neighbours[i].links);
    free(m->neighbours);
    epoch_put(m->epoch);
    free(m);
}

void member_join(struct member *m, uint16_t port, int64_t now, struct member_output *out) {
    if (m->phase != MEMBER_IDLE) return;
    m->phase = MEMBER_JOINING;
    m->join_deadline = now + MEMBER_JOIN_LIMIT_MS * MS_NS;
    struct wire_hello hello = member_hello(m, port);
    wire_encode_hello(&out->frames, member_header(m), &hello);
}

void member_disconnected(struct member *m, const char *why, int64_t now, struct member_output *out) {
    member_lose_master(m, why, now, out);
}

void member_vote(struct member *m, enum wire_vote_kind kind, struct member_output *out) {
    if (m->phase != MEMBER_ACCEPTED || m->vote != 0) return;
    m->vote = (uint8_t)kind;
    m->vote_unsent = member_is_unheard(m);
    struct wire_vote vote = {.kind = (uint8_t)kind};
    wire_encode_vote(&out->frames, member_header(m), &vote);
}

void member_sync(struct member *m, const struct wire_sync_vote *vote, struct member_output *out) {
    if (m->phase != MEMBER_ACCEPTED || m->vote != 0) return;
    m->vote = WIRE_VOTE_SYNC;
    m->sync_vote = *vote;
    m->differs_told = false;
    m->vote_unsent = member_is_unheard(m);
    wire_encode_sync_vote(&out->frames, member_header(m), vote);
}

void member_leave(struct member *m, struct member_output *out) {
    if (m->phase == MEMBER_REGISTERED || m->phase == MEMBER_ACCEPTED)
        wire_encode_empty(&out->frames, member_header(m), WIRE_LEAVE);
}

// ---- time ----

static int64_t silent_at(const struct member *m) {
    if (m->recovery == RECOVERY_SEEKING) return INT64_MAX;
    return m->answer_by != 0 ? m->answer_by : arrival_deadline_ns(&m->master, limit_ns(m));
}

int64_t member_deadline(const struct member *m) {
    if (m->phase == MEMBER_IDLE || m->phase == MEMBER_DEAD) return INT64_MAX;
    if (m->phase == MEMBER_JOINING) return m->join_deadline;
    int64_t silent = silent_at(m), at = m->beat_at < silent ? m->beat_at : silent;
    if (m->recovery == RECOVERY_SEEKING) at = INT64_MAX;
    if (m->recovery != RECOVERY_NONE && m->recovery_deadline < at) at = m->recovery_deadline;
    if (m->candidate.active && !m->candidate.answered && m->candidate.deadline < at) at = m->candidate.deadline;
    if (m->phase == MEMBER_ACCEPTED && !m->linked && m->linked_deadline < at) at = m->linked_deadline;
    if (m->fresh_at != 0 && m->fresh_at < at) at = m->fresh_at;
    return at;
}

// The links of the epoch in force took too long: whoever is missing is accused, again if the master did nothing about
// it.
static void accuse_missing(struct member *m, int64_t now, struct member_output *out) {
    m->linked_deadline = now + member_link_limit_ns(m);
    for (size_t i = 0; i < m->neighbour_count; i++) {
        struct neighbour *n = &m->neighbours[i];
        if (!any_link(n, IN_EPOCH, LINK_ABSENT)) continue;
        n->accused_in = 0;
        accuse(m, n, 0, false, out);
    }
}

void member_tick(struct member *m, int64_t now, struct member_output *out) {
    if (m->phase == MEMBER_JOINING && now >= m->join_deadline)
        member_die_of(m, pcclMasterConnectionFailed, out,
                      "the master accepted the connection but did not answer within %d ms: is it a pccl master?",
                      MEMBER_JOIN_LIMIT_MS);
    if (m->phase != MEMBER_REGISTERED && m->phase != MEMBER_ACCEPTED) return;
    if (m->recovery != RECOVERY_NONE && now >= m->recovery_deadline) {
        member_give_up(m, out);
        return;
    }
    if (now >= silent_at(m)) {
        char why[64];
        snprintf(why, sizeof why, "the master was silent for %lld ms", (long long)((now - m->master.at_ns) / MS_NS));
        member_lose_master(m, why, now, out);
        if (m->phase == MEMBER_DEAD) return;
    }
    if (m->recovery != RECOVERY_SEEKING && now >= m->beat_at) {
        m->beat_at = now + limit_ns(m) / 5;
        wire_encode_empty(&out->frames, member_header(m), WIRE_HEARTBEAT);
    }
    if (m->candidate.active && !m->candidate.answered && now >= m->candidate.deadline)
        answer_candidate(m, LINK_ABSENT, out);
    if (m->phase == MEMBER_ACCEPTED && !m->linked && now >= m->linked_deadline) accuse_missing(m, now, out);
    if (m->fresh_at != 0 && now >= m->fresh_at) {
        m->fresh_at = 0;
        send_link_down(m, &m->id, 0, false, out);
    }
}

// ---- adoption ----

void member_adopt(struct member *m, const struct member_view *view) {
    if (view->number < m->adopted.number) return;
    m->adopted = *view;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->loss_count; i++)
        if (m->losses[i].group_epoch > view->group_epoch) m->losses[kept++] = m->losses[i];
    m->loss_count = kept;
}

void member_adopt_loss(struct member *m, uint64_t group_epoch) {
    const struct member_view *found = NULL;
    for (uint32_t i = 0; i < m->loss_count && m->losses[i].group_epoch <= group_epoch; i++) found = &m->losses[i];
    if (found != NULL && found->number >= m->adopted.number) m->adopted = *found;
}

const struct member_view *member_adopted(const struct member *m) { return &m->adopted; }

// ---- state ----

enum member_phase member_phase(const struct member *m) { return m->phase; }
const char *member_text(const struct member *m) { return m->text; }
const struct wire_id *member_id(const struct member *m) { return &m->id; }
const struct wire_sync_differs *member_sync_differs(const struct member *m) {
    return m->differs_told ? &m->differs : NULL;
}

const struct wire_welcome *member_welcome(const struct member *m) { return &m->welcome; }

const struct epoch *member_epoch(const struct member *m) { return m->epoch; }
