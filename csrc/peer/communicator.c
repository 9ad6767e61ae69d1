#include "peer/communicator_private.h"

#include <stdio.h>
#include <string.h>

#include "base/detail.h"
#include "base/platform.h"
#include "base/recorder.h"
#include "data/telemetry.h"
#include "net/keys.h"
#include "net/peer_name.h"
#include "peer/master_link.h"
#include "state/precopy.h"

void communicator_begin(struct communicator *c) {
    pthread_mutex_lock(&c->lock);
    c->users++;
}

pcclResult_t communicator_finish(struct communicator *c, pcclResult_t code) {
    communicator_assert_locked(c);
    c->users--;
    if (c->closing) pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return code;
}

void communicator_enter(struct communicator *c) {
    communicator_begin(c);
    pthread_mutex_unlock(&c->lock);
}

void communicator_exit(struct communicator *c) {
    pthread_mutex_lock(&c->lock);
    communicator_finish(c, pcclSuccess);
}

bool communicator_is_dead(const struct communicator *c) {
    communicator_assert_locked(c);
    return c->phase == COMMUNICATOR_DEAD ||
           (c->phase == COMMUNICATOR_CONNECTED && member_phase(c->core) == MEMBER_DEAD);
}

static const char *why_dead(const struct communicator *c) {
    communicator_assert_locked(c);
    return c->phase == COMMUNICATOR_DEAD ? c->reason : member_text(c->core);
}

pcclResult_t communicator_dead(const struct communicator *c, pcclResult_t code) {
    communicator_assert_locked(c);
    return detail_fail(code,
                       "the communicator is dead (%s); destroy it and create a new one (in Python: call reconnect())",
                       c->closing && !communicator_is_dead(c) ? "destroyed" : why_dead(c));
}

pcclResult_t communicator_check_usable(const struct communicator *c) {
    communicator_assert_locked(c);
    if (communicator_is_dead(c)) return communicator_dead(c, pcclMasterConnectionFailed);
    if (c->phase != COMMUNICATOR_CONNECTED)
        return detail_fail(pcclInvalidUsage, "the communicator is not connected; call connect first");
    if (c->closing) return detail_fail(pcclMasterConnectionFailed, "the communicator is being destroyed");
    return pcclSuccess;
}

pcclResult_t communicator_check_no_ops(const struct communicator *c) {
    communicator_assert_locked(c);
    size_t live = engine_live_ops(c->engine);
    if (live == 0 && c->launches == 0 && c->holds == 0) return pcclSuccess;
    return detail_fail(pcclPendingAsyncOps, "operations in flight or not awaited: %zu; await them first",
                       live > 0 ? live : (size_t)1);
}

struct member *communicator_new_member(const struct communicator *c, const struct wire_id *id) {
    struct member *core = member_new(id, c->params.group, c->params.lanes);
    if (core == NULL) return NULL;
    struct member_settings settings = c->params.member;
    settings.masters = c->params.masters.count;
    settings.precopy = precopy_has_state(c->precopy);
    settings.relay = c->params.relay[0] != 0;
    settings.reach = c->params.cards.reach;
    settings.cards = c->params.cards.count;
    member_configure(core, &settings);
    return core;
}

// ---- what programs ask ----

pcclResult_t communicator_usable(struct communicator *c) {
    communicator_begin(c);
    return communicator_finish(c, communicator_check_usable(c));
}

pcclResult_t communicator_view(struct communicator *c, struct member_view *out) {
    communicator_begin(c);
    static const struct member_view alone = {.global_world = 1, .group_world = 1, .groups = 1, .largest_group = 1};
    bool dead = communicator_is_dead(c);
    pcclResult_t code = dead ? pcclSuccess : communicator_check_usable(c);
    if (code == pcclSuccess) *out = dead ? alone : *member_adopted(c->core);
    return communicator_finish(c, code);
}

struct wire_id communicator_id(struct communicator *c) {
    struct wire_id id = {{0}};
    communicator_begin(c);
    if (c->core != NULL && !c->renewing) id = *member_id(c->core);
    communicator_finish(c, pcclSuccess);
    return id;
}

bool communicator_peer_name(struct communicator *c, const struct wire_id *id, struct wire_name *out) {
    communicator_begin(c);
    const struct epoch *epoch = c->core != NULL && !c->renewing ? member_epoch(c->core) : NULL;
    const struct wire_member *member = epoch == NULL ? NULL : wire_member_with(epoch->everyone, epoch->count, id);
    bool own = epoch != NULL && wire_id_equal(id, member_id(c->core));
    const struct wire_name *name = own ? &c->params.member.name : communicator_lost_name(&c->lost, id);
    if (name == NULL && member != NULL) name = &member->name;
    if (name != NULL) *out = *name;
    communicator_finish(c, pcclSuccess);
    return name != NULL;
}

void communicator_state(struct communicator *c, char *out, size_t capacity) {
    communicator_begin(c);
    if (communicator_is_dead(c))
        snprintf(out, capacity, "dead: %s", why_dead(c));
    else if (c->phase == COMMUNICATOR_CONNECTED && member_is_seeking(c->core))
        snprintf(out, capacity, "seeking a master: %s", member_lost_why(c->core));
    else if (c->phase == COMMUNICATOR_CONNECTED)
        snprintf(out, capacity, "accepted epoch %llu", (unsigned long long)member_adopted(c->core)->number);
    else if (c->phase == COMMUNICATOR_CONNECTING && !c->renewing && member_phase(c->core) == MEMBER_REGISTERED)
        snprintf(out, capacity, "registered");
    else
        snprintf(out, capacity, "%s", c->phase == COMMUNICATOR_CONNECTING ? "connecting" : "idle");
    communicator_finish(c, pcclSuccess);
}

void communicator_events_path(struct communicator *c, char *out, size_t capacity) {
    communicator_begin(c);
    snprintf(out, capacity, "%s", recorder_path(c->recorder));
    communicator_finish(c, pcclSuccess);
}

// Puts a number in place of the one with its name. If there are too many, the one that was reported longest ago goes.
static void keep_number(struct wire_numbers *kept, const struct wire_number *number) {
    uint32_t at = 0;
    while (at < kept->count && strcmp(kept->list[at].name, number->name) != 0) at++;
    if (at == WIRE_MAX_NUMBERS) at = 0;
    if (at < kept->count) memmove(&kept->list[at], &kept->list[at + 1], (--kept->count - at) * sizeof *kept->list);
    kept->list[kept->count++] = *number;
}

void communicator_report(struct communicator *c, const struct wire_numbers *numbers) {
    communicator_begin(c);
    for (uint32_t i = 0; i < numbers->count; i++) {
        struct recorder_event event = {.kind = RECORDER_REPORT, .text = numbers->list[i].name};
        memcpy(&event.a, &numbers->list[i].value, sizeof event.a);
        recorder_add(c->recorder, &event);
        keep_number(&c->numbers, &numbers->list[i]);
    }
    bool waits = c->numbers_new; // the control thread tells them in time
    c->numbers_new |= numbers->count > 0;
    pthread_mutex_unlock(&c->lock);
    if (communicator_tell_numbers(c, platform_now_ns()) != INT64_MAX && !waits) wake_signal(c->wake);
    communicator_exit(c);
}

// Whether a master hears what is told now.
static bool is_served(const struct communicator *c) {
    communicator_assert_locked(c);
    return c->phase == COMMUNICATOR_CONNECTED && !communicator_is_dead(c) && !member_is_seeking(c->core);
}

int64_t communicator_tell_numbers(struct communicator *c, int64_t now_ns) {
    struct wire_buffer frame = {0};
    pthread_mutex_lock(&c->lock);
    bool connected = is_served(c);
    if (!connected) c->numbers_new = c->numbers.count > 0; // the next master knows none
    int64_t due_ns = connected && c->numbers_new ? c->numbers_told_ns + COMMUNICATOR_REPORT_MS * MS_NS : INT64_MAX;
    bool tells = due_ns <= now_ns;
    if (tells) {
        c->numbers_new = false;
        c->numbers_told_ns = now_ns;
        wire_encode_numbers(&frame, member_header(c->core), &c->numbers);
    }
    pthread_mutex_unlock(&c->lock);
    if (tells && !frame.failed) master_link_send(c->master, &frame);
    wire_buffer_fini(&frame);
    return tells ? INT64_MAX : due_ns;
}

int64_t communicator_tell_waits(struct communicator *c, int64_t now_ns) {
    struct wire_waits waits = {0};
    struct wire_buffer frame = {0};
    pthread_mutex_lock(&c->lock);
    if (is_served(c) && now_ns >= c->waits_ns) {
        bool calls = c->ticket.type != NULL;
        if (calls && c->ticket.caller_waits) waits.all_us = wait_span_us(&c->ticket.wait, now_ns);
        c->waits_awake = engine_waits(c->engine, now_ns, &waits) || calls;
        bool tells = waits.count > 0 || waits.all_us >= COMMUNICATOR_WAITS_MS * 1000;
        if (tells || c->waits_told) wire_encode_waits(&frame, member_header(c->core), &waits);
        c->waits_told = tells;
        c->waits_ns = now_ns + COMMUNICATOR_WAITS_MS * MS_NS;
    }
    int64_t due_ns = is_served(c) && c->waits_awake ? c->waits_ns : INT64_MAX;
    pthread_mutex_unlock(&c->lock);
    if (frame.length > 0 && !frame.failed) master_link_send(c->master, &frame);
    wire_buffer_fini(&frame);
    return due_ns;
}

void communicator_tell_stacks(struct communicator *c, const char *text, size_t length) {
    struct wire_buffer frame = {0};
    communicator_enter(c);
    wire_encode_bytes(&frame, (struct wire_header){0}, WIRE_STACKS_ARE, text, length);
    if (!frame.failed) master_link_send(c->master, &frame);
    wire_buffer_fini(&frame);
    communicator_exit(c);
}

void communicator_want_stacks(struct communicator *c) {
    static const char none[] = "this peer runs no Python, or its Python is ending\n";
    pthread_mutex_lock(&c->lock);
    bool watched = c->stacks_watched;
    c->stacks_wanted = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (!watched) communicator_tell_stacks(c, none, sizeof none - 1);
}

bool communicator_await_stacks(struct communicator *c) {
    communicator_begin(c);
    c->stacks_watched = true;
    while (!c->stacks_wanted && !c->closing) platform_cond_wait(&c->changed, &c->lock, INT64_MAX);
    bool wanted = !c->closing;
    c->stacks_wanted = false;
    communicator_finish(c, pcclSuccess);
    return wanted;
}

pcclResult_t communicator_links(struct communicator *c, struct link_report *out, size_t capacity, size_t *count_out) {
    communicator_begin(c);
    pcclResult_t code = communicator_check_usable(c);
    if (code == pcclSuccess) { // its engine stays until this call has ended
        pthread_mutex_unlock(&c->lock);
        *count_out = telemetry_report_links(c->engine, out, capacity);
        pthread_mutex_lock(&c->lock);
    }
    return communicator_finish(c, code);
}

int communicator_events(struct communicator *c) {
    communicator_begin(c);
    int fd = atomic_load(&c->events);
    if (fd == -1) {
        fd = wake_open();
        if (fd >= 0) atomic_store(&c->events, fd);
        if (fd >= 0) wake_signal(fd); // calls may have ended before
    }
    communicator_finish(c, pcclSuccess);
    return fd;
}

pcclResult_t communicator_access(struct communicator *c, struct communicator_access *out) {
    communicator_begin(c);
    pcclResult_t code = communicator_check_usable(c);
    if (code != pcclSuccess) return communicator_finish(c, code);
    *out = (struct communicator_access){.transport = transport_context_hold(c->transport),
                                        .master_count = c->params.masters.count,
                                        .run = c->run,
                                        .proof.id = *member_id(c->core)};
    memcpy(out->masters, c->params.masters.list, sizeof out->masters);
    memcpy(out->proof.secret, member_welcome(c->core)->secret, sizeof out->proof.secret);
    return communicator_finish(c, pcclSuccess);
}

void communicator_params(struct communicator *c, struct communicator_params *out) {
    communicator_begin(c);
    *out = c->params;
    communicator_finish(c, pcclSuccess);
}

bool communicator_configure(struct communicator *c, const struct communicator_params *params, struct keys *keys) {
    communicator_begin(c);
    bool may = c->phase == COMMUNICATOR_IDLE;
    struct keys *before = c->params.transport.keys;
    if (may) c->params = *params;
    c->params.transport.keys = before;
    communicator_finish(c, pcclSuccess);
    return may && (keys == NULL || communicator_set_keys(c, keys));
}

bool communicator_set_keys(struct communicator *c, struct keys *keys) {
    communicator_begin(c);
    bool may = c->phase == COMMUNICATOR_IDLE;
    struct keys *released = may ? c->params.transport.keys : NULL;
    if (may) c->params.transport.keys = keys == NULL ? NULL : keys_hold(keys);
    communicator_finish(c, pcclSuccess);
    keys_release(released);
    return may;
}

// ---- members that were lost ----

enum { NAMED = 3 }; // in one text

void communicator_lost_note(struct lost_members *lost, const struct wire_member *member, const struct wire_gone *gone,
                            uint64_t epoch) {
    uint32_t place = lost->count++ % COMMUNICATOR_LOST_MOST;
    lost->list[place].gone = gone != NULL ? *gone : (struct wire_gone){.id = member->id};
    lost->list[place].name = member->name;
    lost->list[place].epoch = epoch;
}

static uint32_t kept_lost(const struct lost_members *lost) {
    return lost->count < COMMUNICATOR_LOST_MOST ? lost->count : COMMUNICATOR_LOST_MOST;
}

const struct wire_name *communicator_lost_name(const struct lost_members *lost, const struct wire_id *id) {
    for (uint32_t i = 0; i < kept_lost(lost); i++)
        if (wire_id_equal(&lost->list[i].gone.id, id)) return &lost->list[i].name;
    return NULL;
}

uint32_t communicator_lost(struct communicator *c, struct wire_gone *out, size_t capacity) {
    communicator_begin(c);
    uint32_t count = kept_lost(&c->lost) < capacity ? kept_lost(&c->lost) : (uint32_t)capacity;
    for (uint32_t i = 0; i < count; i++)
        out[i] = c->lost.list[(c->lost.count - count + i) % COMMUNICATOR_LOST_MOST].gone;
    communicator_finish(c, pcclSuccess);
    return count;
}

uint32_t communicator_lost_tell(const struct lost_members *lost, uint64_t after, char *out, size_t capacity) {
    uint32_t told = 0, room = kept_lost(lost);
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = lost->count - room; i != lost->count; i++) {
        uint32_t place = i % COMMUNICATOR_LOST_MOST;
        if (lost->list[place].epoch <= after || told++ >= NAMED) continue;
        uint8_t reason = lost->list[place].gone.reason; // of a decision the text says whose it was, and why
        bool decided = reason == WIRE_LOSS_EXPELLED || reason == WIRE_LOSS_DRAINED;
        at += (size_t)snprintf(out + at, capacity - at, "%s%s, %s%s%s", at > 0 ? "; " : "",
                               peer_label(&lost->list[place].gone.id, &lost->list[place].name).chars,
                               wire_loss_name(reason), decided ? ": " : "", decided ? lost->list[place].gone.why : "");
        if (at >= capacity) at = capacity - 1;
    }
    if (told > NAMED) snprintf(out + at, capacity - at, " and %u more", told - NAMED);
    return told;
}

// ---- the call that waits ----

pcclResult_t communicator_ticket_check_none(const struct communicator *c) {
    communicator_assert_locked(c);
    if (c->ticket.type == NULL) return pcclSuccess;
    return detail_fail(pcclInvalidUsage,
                       "a call of %s has not ended; wait for it, or repeat it if it timed out or was interrupted",
                       c->ticket.type->name);
}

bool communicator_ticket_is_left(const struct communicator *c, const struct ticket_type *type) {
    communicator_assert_locked(c);
    return c->ticket.type == type && !c->ticket.inside;
}

void communicator_ticket_open(struct communicator *c, const struct ticket_type *type) {
    communicator_assert_locked(c);
    c->ticket = (struct ticket){.type = type, .number = c->ticket.number, .inside = true};
    c->ticket.recorded = recorder_add(c->recorder, &(struct recorder_event){.kind = RECORDER_CALL, .text = type->name});
    c->waits_why[0] = 0;
    if (c->phase == COMMUNICATOR_CONNECTED) engine_is_only_caller(c->engine, true);
}

static void close_ticket(struct communicator *c, pcclResult_t code) {
    communicator_assert_locked(c);
    recorder_end(c->recorder, c->ticket.recorded, (uint8_t)code, platform_now_ns()); // unless its answer has done so
    c->ticket.type = NULL;
}

pcclResult_t communicator_ticket_begun(struct communicator *c, pcclResult_t code, uint64_t *ticket) {
    communicator_assert_locked(c);
    c->ticket.inside = false;
    if (code == pcclSuccess)
        *ticket = ++c->ticket.number;
    else
        close_ticket(c, code);
    return code;
}

void communicator_ticket_end(struct communicator *c, pcclResult_t code, uint64_t value,
                             const struct member_view *view) {
    communicator_assert_locked(c);
    if (c->ticket.type != NULL) recorder_end(c->recorder, c->ticket.recorded, (uint8_t)code, platform_now_ns());
    c->ticket.done = true;
    c->ticket.code = code;
    c->ticket.value = value;
    if (view != NULL) c->ticket.view = *view;
    pthread_cond_broadcast(&c->changed);
    wake_signal(atomic_load(&c->events));
}

static pcclResult_t timed_out(const struct communicator *c, uint64_t *value) {
    bool unanswered = c->phase == COMMUNICATOR_CONNECTING && c->core != NULL && member_phase(c->core) <= MEMBER_JOINING;
    *value = unanswered && c->waits_why[0] == 0;
    if (*value != 0) {
        char answers[MASTER_LINK_TEXT];
        master_link_answers(c->master, answers);
        return detail_fail(pcclTimedOut, "no master has answered yet%s%s", answers[0] != 0 ? "; " : "", answers);
    }
    if (c->core != NULL && member_is_seeking(c->core) && c->waits_why[0] == 0)
        return detail_fail(pcclTimedOut, "the master is lost (%s), and this peer seeks another one",
                           member_lost_why(c->core));
    return detail_fail(pcclTimedOut, "%s", c->waits_why);
}

static pcclResult_t wait_inside(struct communicator *c, int64_t deadline, uint64_t *value) {
    const struct ticket_type *type = c->ticket.type;
    if (type->prepare != NULL) RETURN_IF_FAILED(type->prepare(c, deadline));
    while (!c->ticket.done && !c->closing)
        if (!platform_cond_wait(&c->changed, &c->lock, deadline) && !c->ticket.done && !c->closing)
            return timed_out(c, value);
    return type->collect(c, value);
}

static pcclResult_t wait_locked(struct communicator *c, uint64_t ticket, int64_t deadline, uint64_t *value) {
    if (c->ticket.type == NULL || c->ticket.number != ticket)
        return detail_fail(pcclInvalidUsage, "this call has ended, or a later call continued it");
    if (c->ticket.inside) return detail_fail(pcclInvalidUsage, "another thread is waiting in %s", c->ticket.type->name);
    c->ticket.inside = true;
    c->ticket.caller_waits = c->phase == COMMUNICATOR_CONNECTED && engine_is_only_caller(c->engine, false);
    wait_span_enter(&c->ticket.wait, platform_now_ns());
    pcclResult_t code = wait_inside(c, deadline, value);
    wait_span_leave(&c->ticket.wait, platform_now_ns());
    c->ticket.inside = false;
    if (code != pcclTimedOut) close_ticket(c, code);
    return code;
}

pcclResult_t communicator_wait(struct communicator *c, uint64_t ticket, int64_t deadline, uint64_t *value) {
    communicator_begin(c);
    return communicator_finish(c, wait_locked(c, ticket, deadline, value));
}

// ---- votes ----
static pcclResult_t communicator_collect_vote(struct communicator *c, uint64_t *value);

static const struct ticket_type votes[] = {
    [WIRE_VOTE_UPDATE] = {.name = "update_topology", .collect = communicator_collect_vote},
    [WIRE_VOTE_PENDING] = {.name = "are_peers_pending", .collect = communicator_collect_vote},
    [WIRE_VOTE_OPTIMIZE] = {.name = "optimize_topology", .collect = communicator_collect_vote},
};

bool communicator_ticket_is_peers_pending(const struct communicator *c) {
    communicator_assert_locked(c);
    return c->ticket.type == &votes[WIRE_VOTE_PENDING];
}

static pcclResult_t communicator_collect_vote(struct communicator *c, uint64_t *value) {
    const char *name = c->ticket.type->name;
    if (!c->ticket.done)
        return detail_fail(pcclMasterConnectionFailed, "the communicator was destroyed during %s", name);
    if (c->ticket.code == pcclSuccess) {
        *value = c->ticket.value;
        if (communicator_ticket_is_peers_pending(c)) return pcclSuccess;
        member_adopt(c->core, &c->ticket.view);
        engine_voted(c->engine, c->ticket.view.group_epoch);
        if (c->ticket.type == &votes[WIRE_VOTE_UPDATE]) atomic_store(&c->launched_of_all, 0);
        return pcclSuccess;
    }
    if (c->ticket.code == pcclLeft)
        return detail_fail(pcclLeft, "this peer has left the run, as it announced; destroy the communicator");
    if (communicator_is_dead(c))
        return detail_fail(c->ticket.code,
                           "the communicator died in %s: %s; destroy it and create a new one (in Python: call "
                           "reconnect())",
                           name, why_dead(c));
    if (c->ticket.code == pcclTooFewPeers)
        return detail_fail(pcclTooFewPeers,
                           "the run has %llu of at least %u members, and has waited for %u s; start more peers, or "
                           "begin a run with a smaller min_members",
                           (unsigned long long)c->ticket.value, c->params.member.limits.least,
                           c->params.member.limits.wait_ms / 1000);
    if (c->ticket.code == pcclInvalidUsage) return detail_fail(pcclInvalidUsage, "%s", c->waits_why);
    return detail_fail(c->ticket.code, "%s ended without a new epoch, and the membership is unchanged; call it again",
                       name);
}

static pcclResult_t begin_vote(struct communicator *c, enum wire_vote_kind kind, uint64_t *ticket) {
    RETURN_IF_FAILED(communicator_check_usable(c));
    if (communicator_ticket_is_left(c, &votes[kind])) return communicator_ticket_begun(c, pcclSuccess, ticket);
    RETURN_IF_FAILED(communicator_ticket_check_none(c));
    if (kind == WIRE_VOTE_OPTIMIZE && member_adopted(c->core)->global_world < 2)
        return detail_fail(pcclInvalidUsage, "optimize_topology needs at least two members in the run");
    if (kind != WIRE_VOTE_PENDING) RETURN_IF_FAILED(communicator_check_no_ops(c));
    communicator_ticket_open(c, &votes[kind]);
    struct member_output out = {0};
    member_vote(c->core, kind, NULL, &out);
    pthread_mutex_unlock(&c->lock);
    master_link_send(c->master, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&c->lock);
    return communicator_ticket_begun(c, pcclSuccess, ticket);
}

pcclResult_t communicator_begin_vote(struct communicator *c, enum wire_vote_kind kind, uint64_t *ticket) {
    communicator_begin(c);
    return communicator_finish(c, begin_vote(c, kind, ticket));
}

// ---- leaving ----
pcclResult_t communicator_announce(struct communicator *c, uint32_t within_ms, bool at_update) {
    communicator_begin(c);
    pcclResult_t code = communicator_check_usable(c);
    if (code != pcclSuccess) return communicator_finish(c, code);
    struct member_output out = {0};
    member_announce(c->core, within_ms, at_update, platform_now_ns(), &out);
    bool failed = out.frames.failed;
    pthread_mutex_unlock(&c->lock);
    if (!failed) master_link_send(c->master, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&c->lock);
    if (failed) code = detail_fail(pcclInternalError, "the system refused memory for the message");
    return communicator_finish(c, code);
}

pcclResult_t communicator_leaving(struct communicator *c, struct leaving_member *out, size_t capacity,
                                  size_t *count_out) {
    communicator_begin(c);
    pcclResult_t code = communicator_check_usable(c);
    if (code != pcclSuccess) return communicator_finish(c, code);
    const struct leaving *leaving = member_leaving(c->core);
    *count_out = leaving->count;
    for (size_t i = 0; i < leaving->count && i < capacity; i++) out[i] = leaving->others[i];
    return communicator_finish(c, pcclSuccess);
}
