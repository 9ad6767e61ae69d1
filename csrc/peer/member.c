// Keeps what a peer knows of its run and decides on each event. Its parts are pure, and each has a state of its own:
// the links (peer/mesh), and what outlives a master (peer/recovery).
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/platform.h"
#include "net/arrival.h"
#include "pccl.h"
#include "peer/member_private.h"

struct wire_header member_header(const struct member *m) {
    uint64_t generation = m->recovery.state == RECOVERY_RESUMED ? m->recovery.promised : m->generation;
    return (struct wire_header){.run = m->run, .generation = generation, .epoch = m->view.number};
}

// ---- endings ----

static struct member_action *end_vote(struct member *m, pcclResult_t code, uint64_t value, struct member_output *out) {
    decision_vote_close(&m->vote);
    struct member_action *action = member_act(out, MEMBER_VOTE_END);
    action->code = code;
    action->value = value;
    action->view = m->view;
    return action;
}

// The death of a newcomer is the end of its connect; that of an accepted peer kills the communicator before its vote
// returns.
static __attribute__((format(printf, 4, 5))) void die_of(struct member *m, pcclResult_t code, struct member_output *out,
                                                         const char *format, ...) {
    enum member_phase phase = m->phase;
    if (phase == MEMBER_DEAD) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->text, sizeof m->text, format, arguments);
    va_end(arguments);
    if (phase == MEMBER_IDLE) return;
    m->phase = MEMBER_DEAD;
    m->mesh.candidate.open = false;
    member_act(out, phase == MEMBER_ACCEPTED ? MEMBER_DIE : MEMBER_CONNECT_END)->code = code;
    if (phase == MEMBER_ACCEPTED && m->vote.kind != 0) end_vote(m, code, 0, out);
}

static void die_of_garbage(struct member *m, const char *what, struct member_output *out) {
    die_of(m, pcclMasterConnectionFailed, out, "the master sent an invalid %s; use one version of pccl on all machines",
           what);
}

// ---- links ----

static int64_t limit_ns(const struct member *m) { return (int64_t)m->welcome.heartbeat_limit_ms * MS_NS; }
int64_t member_link_limit_ns(const struct member *m) {
    // Shorter than the master's own limit, so that an answer that names somebody arrives before silence is punished.
    return arrival_wait_ns(&m->master, limit_ns(m)) * 3 / 4;
}

void member_round_trip(struct member *m, int64_t round_trip_ns) { m->master.round_trip_ns = round_trip_ns; }

static struct mesh_event event_of(const struct member *m, int64_t now) {
    return (struct mesh_event){member_header(m), m->phase == MEMBER_ACCEPTED, member_link_limit_ns(m), now};
}

void member_link_up(struct member *m, const struct wire_id *id, uint32_t index, uint64_t serial, uint32_t latency_us,
                    int64_t now, struct member_output *out) {
    struct mesh_event at = event_of(m, now);
    mesh_link_up(&m->mesh, &at, id, index, serial, latency_us, out);
}

void member_link_proved(struct member *m, const struct wire_id *id, uint32_t index, int64_t now,
                        struct member_output *out) {
    struct mesh_event at = event_of(m, now);
    if (m->phase != MEMBER_DEAD) mesh_link_proved(&m->mesh, &at, id, index, out);
}

void member_link_narrow(struct member *m, const struct wire_id *id) { mesh_link_narrow(&m->mesh, id); }

void member_link_failed(struct member *m, const struct wire_id *id, uint32_t index, struct member_output *out) {
    struct mesh_event at = event_of(m, 0);
    if (m->phase != MEMBER_DEAD) mesh_link_failed(&m->mesh, &at, id, index, out);
}

void member_link_lost(struct member *m, const struct wire_id *id, uint32_t index, uint64_t serial,
                      enum wire_link_reason reason, int64_t now, struct member_output *out) {
    struct mesh_event at = event_of(m, now);
    if (m->phase == MEMBER_ACCEPTED || m->phase == MEMBER_REGISTERED)
        mesh_link_lost(&m->mesh, &at, id, index, serial, reason, out);
}

enum member_judgement member_judge_hello(const struct member *m, const struct wire_link_hello *hello) {
    if (hello->kind == WIRE_LINK_PRECOPY && m->phase != MEMBER_ACCEPTED) return MEMBER_REJECT;
    if (m->phase == MEMBER_JOINING || m->phase == MEMBER_IDLE) return MEMBER_PARK; // the secret is not known yet
    if (m->phase == MEMBER_DEAD || hello->version != WIRE_VERSION) return MEMBER_REJECT;
    if (!wire_id_equal(&hello->to, &m->id)) return MEMBER_REJECT;
    bool known = memcmp(hello->secret, m->welcome.secret, sizeof hello->secret) == 0;
    // A newcomer may be let in to another run than it waits in, of which its neighbour hears first.
    if (m->phase == MEMBER_REGISTERED && (!known || member_is_seeking(m))) return MEMBER_PARK;
    if (!known) return MEMBER_REJECT;
    if (hello->kind == WIRE_LINK_PRECOPY) return MEMBER_ACCEPT; // of a newcomer, which no epoch has
    return mesh_judge(&m->mesh, hello);
}

void member_measured(struct member *m, const struct wire_id *from, const struct wire_id *to, uint64_t bytes_per_s,
                     struct member_output *out) {
    if (m->phase != MEMBER_ACCEPTED) return;
    struct wire_measured measured = {.from = *from, .to = *to, .bytes_per_s = bytes_per_s};
    wire_encode_measured(&out->frames, member_header(m), &measured);
}

// ---- epochs ----

// The round of shared state of `m->end`.
static void end_sync(struct member *m, struct member_output *out) {
    recovery_note_sync(&m->recovery, &m->end);
    if (m->vote.kind == WIRE_VOTE_SYNC) end_vote(m, m->end.code, m->end.revision, out)->end = &m->end;
}

// The first epoch of the new generation is in force: now what the old one had ended can end here.
static void recovered(struct member *m, int64_t now, struct member_output *out) {
    struct recovery *r = &m->recovery;
    if (r->state != RECOVERY_RESUMED) return;
    const struct wire_ended_vote *vote = &r->resumed.last_vote;
    m->generation = r->promised;
    r->state = RECOVERY_NONE;
    member_act(out, MEMBER_FOUND);
    if (r->late.vote) recovery_take_vote(&m->recovery, vote);
    if (r->late.vote && m->vote.kind == vote->kind) end_vote(m, vote->code, vote->value, out)->view = r->late.view;
    if (r->late.sync) {
        m->end = r->resumed.sync;
        end_sync(m, out);
    }
    recovery_end(r);
    leaving_tell(&m->leaving, &m->id, member_header(m), now, &out->frames);
    if (m->vote.kind == 0 || !m->vote.unsent) return;
    m->vote.unsent = false;
    decision_vote_cast(&m->vote, member_header(m), &out->frames);
}

// The own group has changed since `before`, which is NULL for a newcomer.
static void enter_group_epoch(struct member *m, const struct wire_epoch_commit *commit, const struct epoch *before,
                              int64_t now, struct member_output *out) {
    uint8_t reason = commit->reason;
    // A loss may come in place of the epoch that mends what broke before it.
    bool mends = reason == WIRE_REASON_RELINK || reason == WIRE_REASON_LOSS || member_is_seeking(m);
    struct mesh_event at = event_of(m, now);
    if (!mesh_begin_epoch(&m->mesh, &at, before, m->epoch, mends)) out->failed = true;
    if (m->epoch->lost) recovery_note_loss(&m->recovery, &m->view);
    struct member_action *action = member_act(out, MEMBER_ENTER_EPOCH);
    action->epoch = m->epoch;
    action->gone = commit->gone;
    action->gone_count = commit->gone_count;
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
    struct member_view view = member_view_of(&commit->epoch, &ring);
    recovery_hear_losses(&m->recovery, m->view.number, &view, out);
    struct wire_header header = member_header(m);
    struct epoch *before = m->epoch;
    struct epoch *epoch =
        epoch_new(&commit->epoch, &ring, &header, recovery_has_lost(&m->recovery, &commit->epoch, newcomer));
    if (epoch == NULL) {
        out->failed = true;
        return;
    }
    m->epoch = epoch;
    m->phase = MEMBER_ACCEPTED;
    m->view = view;
    recovery_note_epoch(&m->recovery, commit, m->epoch);
    leaving_enter(&m->leaving, m->epoch);
    if (epoch->group_epoch > (before == NULL ? 0 : before->group_epoch)) enter_group_epoch(m, commit, before, now, out);
    epoch_put(before);
    if (commit->reason == WIRE_REASON_UPDATE || commit->reason == WIRE_REASON_ORDER) mesh_end_candidate(&m->mesh, out);
    struct mesh_event at = event_of(m, now);
    mesh_make(&m->mesh, &at, !m->mesh.linked, out);
    member_act(out, MEMBER_RECHECK);
    if (m->recovery.quorum.members + m->recovery.quorum.old_members > 0) m->beat_at = now; // its master has to know
    if (newcomer) member_act(out, MEMBER_CONNECT_END)->view = m->recovery.late.vote ? m->recovery.late.view : m->view;
    if (m->vote.kind == WIRE_VOTE_UPDATE && commit->reason == WIRE_REASON_UPDATE) end_vote(m, pcclSuccess, 0, out);
    if (m->vote.kind == WIRE_VOTE_OPTIMIZE && commit->reason == WIRE_REASON_ORDER) end_vote(m, pcclSuccess, 0, out);
    recovered(m, now, out);
}

static void take_candidate(struct member *m, const struct wire_candidate *candidate, int64_t now,
                           struct member_output *out) {
    struct epoch_ring ring;
    if (!epoch_find_ring(&candidate->epoch, &m->id, &ring)) {
        die_of_garbage(m, "candidate without this peer", out);
        return;
    }
    struct mesh_event at = event_of(m, now);
    if (!mesh_begin_candidate(&m->mesh, &at, candidate->attempt, &ring)) out->failed = true;
    mesh_make(&m->mesh, &at, true, out);
    member_act(out, MEMBER_RECHECK);
}

static void take_outcome(struct member *m, const struct wire_outcome *outcome, struct member_output *out) {
    if (outcome->kind == WIRE_VOTE_UPDATE || outcome->kind == WIRE_VOTE_OPTIMIZE) mesh_end_candidate(&m->mesh, out);
    recovery_note_vote(&m->recovery, m->recovery.last_vote.number + 1, outcome, m->epoch);
    if (m->vote.kind == outcome->kind) end_vote(m, outcome->code, outcome->value, out);
}

static void take_welcome(struct member *m, const struct wire_header *header, int64_t now, struct member_output *out) {
    m->run = header->run;
    m->generation = m->recovery.promised = header->generation;
    m->hello.reach.closed = m->welcome.closed; // the next master of the run does not dial this peer
    mesh_join(&m->mesh, m->welcome.join_number, out);
    m->phase = MEMBER_REGISTERED;
    m->beat_at = now + limit_ns(m) / 5;
    member_act(out, MEMBER_RECHECK);
    if (m->precopy)
        wire_encode_precopy(&out->frames, member_header(m), &(struct wire_precopy){.copies = WIRE_COPY_BEGINS});
}

void member_copied(struct member *m, bool over, const struct wire_progress *progress, struct member_output *out) {
    if (m->phase != MEMBER_REGISTERED || member_is_seeking(m)) return;
    struct wire_precopy told = {.copies = over ? WIRE_COPY_OVER : WIRE_COPY_ADVANCES, .progress = *progress};
    wire_encode_precopy(&out->frames, member_header(m), &told);
}

static void take_measure(struct member *m, const struct wire_measure *measure, struct member_output *out) {
    const struct wire_reach *reach = mesh_reach(&m->mesh, &measure->target);
    if (reach == NULL) {
        member_measured(m, &m->id, &measure->target, 0, out);
        return;
    }
    struct member_action *action = member_act(out, MEMBER_PROBE);
    action->id = measure->target;
    action->reach = *reach;
    action->duration_ms = measure->duration_ms;
}

static void take_end(struct member *m, const struct wire_header *header, const struct wire_text *text, int64_t now,
                     struct member_output *out) {
    // Another master of the list may be of this version.
    if (member_is_seeking(m) && m->recovery.masters > 1 && wire_text_begins(text, WIRE_FOREIGN)) {
        member_disconnected(m, "the master is of another version", now, out);
        return;
    }
    const char *what = header->type == WIRE_EXPELLED ? "the master expelled this peer" : "the master refused this peer";
    // A newcomer refused after its registration, or a member expelled out of a vote, could mostly not make its links.
    bool links = !member_is_seeking(m) &&
                 (header->type == WIRE_REFUSED ? m->phase == MEMBER_REGISTERED : m->phase == MEMBER_ACCEPTED);
    pcclResult_t code = links ? pcclRankConnectionFailed : pcclMasterConnectionFailed;
    if (m->phase == MEMBER_JOINING && wire_text_begins(text, WIRE_FOREIGN)) code = pcclInvalidUsage;
    // By the round of shared state that is under way, or for something else in the middle.
    bool at_fault = header->type == WIRE_EXPELLED && wire_text_begins(text, WIRE_SYNC_RULE);
    if (m->vote.kind == WIRE_VOTE_SYNC) code = at_fault ? pcclInvalidUsage : pcclMasterConnectionFailed;
    die_of(m, code, out, "%s: %.*s", what, (int)text->length, text->chars);
}

// ---- the loss of the master ----

static void seek(struct member *m, const char *why, bool anew, int64_t now, struct member_output *out) {
    recovery_begin(&m->recovery, why, now);
    // The next master forms another candidate, in which a newcomer is another member: links that were made for this one
    // would be taken for those.
    mesh_end_candidate(&m->mesh, out);
    member_act(out, MEMBER_SEEK)->anew = anew;
}

void member_disconnected(struct member *m, const char *why, int64_t now, struct member_output *out) {
    bool joined = m->phase == MEMBER_REGISTERED || m->phase == MEMBER_ACCEPTED;
    if (joined && m->recovery.limit_ms > 0)
        seek(m, why, false, now, out);
    else
        die_of(m, pcclMasterConnectionFailed, out, "%s", why);
}

static void give_up(struct member *m, struct member_output *out) {
    const char *why = m->recovery.waits_why.chars;
    m->gave_up = true;
    die_of(m, pcclMasterConnectionFailed, out, "%.240s; no master took over the run within %u ms%s%s",
           m->recovery.lost_why, m->recovery.limit_ms, why[0] ? "; one said that it " : "", why);
}

static struct wire_hello hello_of(const struct member *m, uint16_t port) {
    struct wire_hello hello = m->hello;
    hello.port = port;
    hello.masters = (uint8_t)m->recovery.masters;
    hello.copies = m->precopy;
    for (uint32_t i = 0; i < hello.reach.count; i++)
        if (hello.reach.addresses[i].port == 0) hello.reach.addresses[i].port = port;
    return hello;
}

void member_resume(struct member *m, uint16_t port, bool earlier, enum member_tensors tensors,
                   const struct wire_hash *content, int64_t now, struct member_output *out) {
    if (m->recovery.state != RECOVERY_SEEKING) return;
    decision_vote_renew(&m->vote, tensors, content, &m->id);
    struct wire_past past[WIRE_MAX_PAST];
    struct wire_loss losses[WIRE_MAX_MEMBERS];
    struct wire_resume resume = {
        .hello = hello_of(m, port),
        .join_number = m->welcome.join_number,
        .generation = m->generation,
        .vote = m->vote.kind,
        .sync_vote = m->vote.sync,
        .accepted = m->phase == MEMBER_ACCEPTED,
        .epoch = {.number = m->view.number,
                  .group_epoch = m->view.group_epoch,
                  .latency_us = 1,
                  .megabytes_per_s = 1,
                  .count = m->epoch == NULL ? 0 : m->epoch->count,
                  .members = m->epoch == NULL ? NULL : m->epoch->everyone},
    };
    memcpy(resume.secret, m->welcome.secret, sizeof resume.secret);
    recovery_resume(&m->recovery, earlier, limit_ns(m), now, &resume, past, losses);
    struct wire_header header = member_header(m);
    header.generation = m->recovery.promised;
    wire_encode_resume(&out->frames, header, &resume);
    m->vote.unsent = false;
    m->master = (struct arrival){.at_ns = now};
    m->beat_at = now + limit_ns(m) / 5;
}

// ---- frames ----

// Dispatches one frame. False: its body is malformed, or it does not belong into this phase.
static bool take_frame(struct member *m, const struct wire_header *header, const uint8_t *body, int64_t now,
                       struct member_output *out) {
    static const char stopped[] = "the master was stopped";
    size_t length = header->length;
    bool joined = m->phase == MEMBER_REGISTERED || m->phase == MEMBER_ACCEPTED;
    struct wire_text text;
    switch (header->type) {
    case WIRE_WELCOME:
        if (m->phase == MEMBER_ACCEPTED || !wire_decode_welcome(body, length, &m->welcome)) return false;
        mesh_end_candidate(&m->mesh, out);
        take_welcome(m, header, now, out);
        return true;
    case WIRE_REFUSED:
    case WIRE_EXPELLED:
        if (!wire_decode_text(body, length, &text)) return false;
        take_end(m, header, &text, now, out);
        return true;
    case WIRE_HEARTBEAT: return true;
    case WIRE_WAITING:
        if (!recovery_take_waiting(&m->recovery, body, length)) return false;
        member_act(out, MEMBER_WAITING);
        return true;
    case WIRE_DEADLOCK:
        if (m->phase != MEMBER_ACCEPTED || !recovery_take_waiting(&m->recovery, body, length)) return false;
        member_act(out, MEMBER_WAITING);
        if (m->vote.kind != 0) end_vote(m, pcclInvalidUsage, 0, out);
        return true;
    case WIRE_CANDIDATE: {
        struct wire_candidate candidate = {.epoch.members = m->members};
        if (!joined || !wire_decode_candidate(body, length, &candidate)) return false;
        take_candidate(m, &candidate, now, out);
        return true;
    }
    case WIRE_EPOCH: {
        struct wire_epoch_commit commit = {.epoch.members = m->members, .gone = m->gone};
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
        recovery_note_verdict(&m->recovery, &m->verdict);
        member_act(out, MEMBER_VERDICT)->verdict = &m->verdict;
        return true;
    case WIRE_LEAVING:
        return m->phase == MEMBER_ACCEPTED && leaving_take(&m->leaving, &m->id, body, length, m->epoch, now);
    case WIRE_LEFT:
        if (m->phase != MEMBER_ACCEPTED || !m->leaving.announced) return false;
        m->leaving.left = true;
        die_of(m, pcclLeft, out, "it left, as announced");
        return true;
    case WIRE_BYE:
        if (m->recovery.masters > 1)
            member_disconnected(m, stopped, now, out);
        else
            die_of(m, pcclMasterConnectionFailed, out, "%s", stopped);
        return true;
    case WIRE_MEASURE: {
        struct wire_measure measure;
        if (!joined || !wire_decode_measure(body, length, &measure)) return false;
        take_measure(m, &measure, out);
        return true;
    }
    case WIRE_DONORS:
        if (!joined || !wire_decode_donors(body, length, &m->donors)) return false;
        if (m->phase == MEMBER_REGISTERED) member_act(out, MEMBER_DONORS)->donors = &m->donors;
        return true;
    case WIRE_SYNC_DIFFERS: return joined && decision_vote_take_differs(&m->vote, body, length);
    case WIRE_SYNC_PLAN:
        if (!joined || !wire_decode_sync_plan(body, length, &m->plan)) return false;
        if (m->vote.kind == WIRE_VOTE_SYNC) member_act(out, MEMBER_SYNC_PLAN)->plan = &m->plan;
        return true;
    case WIRE_SYNC_END:
        if (!joined || !wire_decode_sync_end(body, length, &m->end)) return false;
        end_sync(m, out);
        return true;
    default: return false;
    }
}

// A frame after RESUME. False: malformed.
static bool take_answer(struct member *m, const struct wire_header *header, const uint8_t *body, int64_t now,
                        struct member_output *out) {
    struct recovery *r = &m->recovery;
    struct wire_header promise = member_header(m);
    switch (header->type) {
    case WIRE_GENERATION:
        if (header->run != m->run || !recovery_promise(r, header->generation, limit_ns(m), now)) return true;
        promise.generation = r->promised;
        wire_encode_empty(&out->frames, promise, WIRE_PROMISE);
        return true;
    case WIRE_RESUMED:
        if (header->run != m->run || header->generation != r->promised) return true;
        if (!recovery_take_resumed(r, body, header->length, m->hello.group)) return false;
        m->welcome.heartbeat_limit_ms = r->resumed.heartbeat_limit_ms;
        member_act(out, MEMBER_RECHECK); // the data plane may speak of the next epoch before this thread does
        return true;
    case WIRE_WELCOME:
        // The run that this newcomer waited in has ended, or goes on without knowing it: it waits from the start.
        if (m->phase != MEMBER_REGISTERED || !wire_decode_welcome(body, header->length, &m->welcome)) return false;
        recovery_end(r); // another master may have said RESUMED, and been lost before its EPOCH
        take_welcome(m, header, now, out);
        member_act(out, MEMBER_FOUND);
        return true;
    case WIRE_REFUSED:
    case WIRE_EXPELLED:
    case WIRE_BYE:
    case WIRE_WAITING: return take_frame(m, header, body, now, out);
    default: return true;
    }
}

void member_frame(struct member *m, const struct wire_header *header, const uint8_t *body, int64_t now,
                  struct member_output *out) {
    if (m->phase == MEMBER_IDLE || m->phase == MEMBER_DEAD) return;
    arrival_note(&m->master, now, limit_ns(m));
    m->recovery.answer_by = 0;
    if (m->phase == MEMBER_JOINING) m->join_deadline = now + MEMBER_JOIN_LIMIT_MS * MS_NS; // it speaks, so it is one
    if (m->recovery.state == RECOVERY_SEEKING) return;
    if (m->recovery.state == RECOVERY_TOLD) {
        if (!take_answer(m, header, body, now, out)) die_of_garbage(m, wire_type_name(header->type), out);
        return;
    }
    // The run that a newcomer waits in may end, and the master begin another one.
    bool begins = m->phase == MEMBER_JOINING || (m->phase == MEMBER_REGISTERED && header->type == WIRE_WELCOME);
    bool stale = !begins && (header->run != m->run || header->generation != member_header(m).generation);
    if (stale) return;
    if (!take_frame(m, header, body, now, out)) die_of_garbage(m, wire_type_name(header->type), out);
}

// ---- joining, votes, leaving ----

struct member *member_new(const struct wire_id *id, uint32_t group, uint32_t lanes) {
    struct member *m = malloc(sizeof *m);
    if (m == NULL) return NULL;
    memset(m, 0, offsetof(struct member, mesh));
    mesh_init(&m->mesh, id, lanes);
    recovery_init(&m->recovery);
    leaving_init(&m->leaving);
    m->id = *id;
    m->hello = (struct wire_hello){.version = WIRE_VERSION, .id = *id, .group = group, .lanes = m->mesh.lanes};
    return m;
}

void member_configure(struct member *m, const struct member_settings *settings) {
    m->mesh.spare = settings->spare_lanes;
    m->mesh.relay = settings->relay;
    m->recovery.limit_ms = settings->recovery_limit_ms;
    if (settings->masters > 0) m->recovery.masters = settings->masters;
    m->precopy = settings->precopy;
    m->cards = settings->cards;
    m->hello.join_only = settings->join_only;
    m->hello.limits = settings->limits;
    m->hello.name = settings->name;
    m->hello.reach = settings->reach;
}

void member_set_local(struct member *m, const struct wire_address *local) { m->hello.local = *local; }

void member_free(struct member *m) {
    if (m == NULL) return;
    mesh_fini(&m->mesh);
    recovery_fini(&m->recovery);
    epoch_put(m->epoch);
    free(m);
}

void member_join(struct member *m, uint16_t port, int64_t now, struct member_output *out) {
    if (m->phase != MEMBER_IDLE) return;
    m->phase = MEMBER_JOINING;
    m->join_deadline = now + MEMBER_JOIN_LIMIT_MS * MS_NS;
    struct wire_hello hello = hello_of(m, port);
    wire_encode_hello(&out->frames, member_header(m), &hello);
}

void member_vote(struct member *m, enum wire_vote_kind kind, const struct wire_sync_vote *sync,
                 struct member_output *out) {
    if (m->phase != MEMBER_ACCEPTED || m->vote.kind != 0) return;
    decision_vote_open(&m->vote, kind, sync, !recovery_is_unheard(&m->recovery));
    decision_vote_cast(&m->vote, member_header(m), &out->frames);
}

void member_announce(struct member *m, uint32_t within_ms, bool at_update, int64_t now, struct member_output *out) {
    leaving_announce(&m->leaving, within_ms, at_update, now);
    if (m->phase == MEMBER_ACCEPTED && !member_is_seeking(m)) // else the next master is told
        leaving_tell(&m->leaving, &m->id, member_header(m), now, &out->frames);
}

void member_leave(struct member *m, struct member_output *out) {
    if (m->phase == MEMBER_REGISTERED || m->phase == MEMBER_ACCEPTED)
        wire_encode_empty(&out->frames, member_header(m), WIRE_LEAVE);
}

// ---- time ----

static int64_t silent_at(const struct member *m) {
    if (m->recovery.state == RECOVERY_SEEKING) return INT64_MAX;
    if (m->recovery.answer_by != 0) return m->recovery.answer_by;
    // With another card it can be back before the master takes its silence for its death.
    return arrival_deadline_ns(&m->master, m->cards > 1 ? limit_ns(m) / 2 : limit_ns(m));
}

int64_t member_deadline(const struct member *m) {
    if (m->phase == MEMBER_IDLE || m->phase == MEMBER_DEAD) return INT64_MAX;
    if (m->phase == MEMBER_JOINING) return m->join_deadline;
    int64_t silent = silent_at(m), at = m->beat_at < silent ? m->beat_at : silent;
    if (m->recovery.state == RECOVERY_SEEKING) at = INT64_MAX;
    if (m->recovery.state == RECOVERY_TOLD) at = platform_earlier(at, m->recovery.waits_until);
    if (member_is_seeking(m) && m->recovery.deadline < at) at = m->recovery.deadline;
    int64_t links = mesh_deadline(&m->mesh, m->phase == MEMBER_ACCEPTED);
    return links < at ? links : at;
}

void member_tick(struct member *m, int64_t now, struct member_output *out) {
    if (m->phase == MEMBER_JOINING && now >= m->join_deadline)
        die_of(m, pcclMasterConnectionFailed, out,
               "the master accepted the connection but did not answer within %d ms: is it a pccl master?",
               MEMBER_JOIN_LIMIT_MS);
    if (m->phase != MEMBER_REGISTERED && m->phase != MEMBER_ACCEPTED) return;
    if (member_is_seeking(m) && now >= m->recovery.deadline) {
        give_up(m, out);
        return;
    }
    if (now >= silent_at(m)) {
        char why[64];
        snprintf(why, sizeof why, "the master was silent for %lld ms", (long long)((now - m->master.at_ns) / MS_NS));
        member_disconnected(m, why, now, out);
        if (m->phase == MEMBER_DEAD) return;
    } else if (recovery_looks_again(&m->recovery, now)) {
        seek(m, "that master did not take over the run", true, now, out);
    }
    if (m->recovery.state != RECOVERY_SEEKING && now >= m->beat_at) {
        m->beat_at = now + limit_ns(m) / 5;
        wire_encode_empty(&out->frames, member_header(m), WIRE_HEARTBEAT);
    }
    struct mesh_event at = event_of(m, now);
    mesh_tick(&m->mesh, &at, out);
}

// ---- state ----

void member_adopt(struct member *m, const struct member_view *view) { recovery_adopt(&m->recovery, view); }
void member_adopt_loss(struct member *m, uint64_t group_epoch) { recovery_adopt_loss(&m->recovery, group_epoch); }
const struct member_view *member_adopted(const struct member *m) { return &m->recovery.adopted; }
const struct epoch_ring *member_members(const struct member *m) { return recovery_members(&m->recovery); }
enum member_phase member_phase(const struct member *m) { return m->phase; }
const char *member_text(const struct member *m) { return m->text; }
const struct leaving *member_leaving(const struct member *m) { return &m->leaving; }
const struct wire_id *member_id(const struct member *m) { return &m->id; }
const struct wire_welcome *member_welcome(const struct member *m) { return &m->welcome; }
const struct epoch *member_epoch(const struct member *m) { return m->epoch; }
const struct wire_ended_vote *member_last_vote(const struct member *m) { return &m->recovery.last_vote; }
bool member_is_seeking(const struct member *m) { return m->recovery.state != RECOVERY_NONE; }
bool member_gave_up(const struct member *m) { return m->gave_up; }
const char *member_lost_why(const struct member *m) { return m->recovery.lost_why; }
const char *member_waits_why(const struct member *m) { return m->recovery.waits_why.chars; }
bool member_has_synced(const struct member *m) { return m->recovery.sync.committed; }
const struct wire_sync_differs *member_sync_differs(const struct member *m) {
    return m->vote.differs_told ? &m->vote.differs : NULL;
}
