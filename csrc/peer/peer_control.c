// The control thread: what happens is told to the mind, and what the mind decides is carried out.
#define _GNU_SOURCE
#include "peer/peer_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "net/socket.h"

enum { EVENTS_PER_TURN = 1024 }; // all at once, strangers' too, so that a tick comes after everything that has arrived

// ---- carrying out what the mind decides ----

void peer_end_attempt(struct peer *p, int code, const struct member_view *view, const char *text) {
    if (code != pcclSuccess) {
        LOG(LOG_ERR, "connect failed: %s", text);
        peer_hang_up(p);
    }
    pthread_mutex_lock(&p->lock);
    p->attempt.done = true;
    p->attempt.code = code;
    if (view != NULL) p->attempt.view = *view;
    if (code != pcclSuccess) snprintf(p->reason, sizeof p->reason, "%s", text);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void end_vote(struct peer *p, const struct member_action *action) {
    pthread_mutex_lock(&p->lock);
    p->vote.done = true;
    p->vote.code = action->code;
    p->vote.value = action->value;
    p->vote.view = action->view;
    if (action->end != NULL) peer_sync_ended(p, action->end);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void die(struct peer *p, const char *text) {
    LOG(LOG_ERR, "the communicator is dead: %s", text);
    peer_hang_up(p);
    pthread_mutex_lock(&p->lock);
    // Nobody has heard yet that connect has succeeded: then it has failed, and may be called again.
    bool connected = p->phase != PHASE_CONNECTING;
    if (connected)
        p->phase = PHASE_DEAD;
    else
        p->attempt.code = pcclMasterConnectionFailed;
    snprintf(p->reason, sizeof p->reason, "%s", text);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (connected) engine_kill(p->engine);
}

static bool enter_epoch(struct peer *p, const struct epoch *entered) {
    struct engine_epoch epoch = {
        .run = entered->run,
        .generation = entered->generation,
        .group_epoch = entered->group_epoch,
        .lost = entered->lost,
        .latency_us = entered->latency_us,
        .megabytes_per_s = entered->megabytes_per_s,
        .rank = entered->ring.rank,
        .count = entered->ring.count,
    };
    struct engine_member *members = calloc(epoch.count, sizeof *members);
    if (members == NULL) return false;
    for (uint32_t i = 0; i < epoch.count; i++)
        members[i] = (struct engine_member){entered->ring.members[i].id, epoch_lanes(entered, i)};
    epoch.members = members;
    engine_enter_epoch(p->engine, &epoch);
    free(members);
    return true;
}

// Registration tells the secret and the run.
static void introduce(struct peer *p) {
    const struct wire_welcome *welcome = member_welcome(p->member);
    struct wire_header header = member_header(p->member);
    struct link_identity identity = {.self = *member_id(p->member), .run = header.run, .generation = header.generation};
    memcpy(identity.secret, welcome->secret, sizeof identity.secret);
    links_identify(p->links, &identity);
    links_set_park_limit(p->links, member_link_limit_ns(p->member));
    // so that a link is found out twice within a limit
    engine_set_silence(p->engine, (int64_t)welcome->heartbeat_limit_ms * MS_NS / 2);
    peer_output_name(p, &header);
}

// False: memory was refused.
static bool perform(struct peer *p, const struct member_action *action, int64_t now) {
    bool needs_links = action->kind == MEMBER_DIAL || action->kind == MEMBER_DROP_PEER ||
                       action->kind == MEMBER_PROBE || action->kind == MEMBER_RECHECK;
    if (needs_links && p->links == NULL) return true; // the connection has ended
    switch (action->kind) {
    case MEMBER_DIAL:
        links_dial(p->links, &action->id, action->index, &action->address, now + member_link_limit_ns(p->member));
        break;
    case MEMBER_DROP_PEER:
        links_cancel(p->links, &action->id);
        engine_drop_peer(p->engine, &action->id);
        break;
    case MEMBER_MISSED_LOSS: engine_missed_loss(p->engine, action->group_epoch); break;
    case MEMBER_ENTER_EPOCH: return enter_epoch(p, action->epoch);
    case MEMBER_LINKS_READY: engine_links_ready(p->engine, action->group_epoch); break;
    case MEMBER_VERDICT: engine_verdict(p->engine, action->verdict); break;
    case MEMBER_PROBE:
        links_probe(p->links, &action->id, &action->address, action->duration_ms,
                    now + member_link_limit_ns(p->member));
        break;
    case MEMBER_CONNECT_END:
        if (action->code != pcclMasterConnectionFailed || !peer_next_master(p, now))
            peer_end_attempt(p, action->code, &action->view, member_text(p->member));
        break;
    case MEMBER_VOTE_END: end_vote(p, action); break;
    case MEMBER_SYNC_PLAN: peer_sync_planned(p, action->plan, now); break;
    case MEMBER_RECHECK:
        introduce(p);
        links_recheck(p->links);
        break;
    case MEMBER_SEEK: peer_seek_master(p, now); break;
    case MEMBER_FOUND: peer_found_master(p, now); break;
    case MEMBER_WAITING:
        snprintf(p->waits_why, sizeof p->waits_why, "%s%s",
                 member_phase(p->member) == MEMBER_JOINING || member_is_seeking(p->member) ? "the master " : "",
                 member_waits_why(p->member));
        if (member_phase(p->member) == MEMBER_JOINING || member_is_seeking(p->member))
            LOG_LIMITED(&p->waiting_log, LOG_ERR, "the master %s", member_waits_why(p->member));
        else
            LOG_LIMITED(&p->waiting_log, LOG_NOTICE, "%s", member_waits_why(p->member));
        break;
    case MEMBER_DIE: die(p, member_text(p->member)); break;
    }
    return true;
}

// Memory ran out in the middle of an event: nothing is known for sure any more.
static void die_of_memory(struct peer *p) {
    die(p, "the system refused memory or descriptors");
    end_vote(p, &(struct member_action){.code = pcclMasterConnectionFailed});
    peer_end_attempt(p, pcclInternalError, NULL, "the system refused memory or descriptors");
}

// ---- events ----

void peer_event_begin(struct peer *p) {
    member_output_clear(&p->actions);
    pthread_mutex_lock(&p->lock);
}

void peer_event_end(struct peer *p, int64_t now) {
    pthread_mutex_unlock(&p->lock);
    bool fits = !p->actions.failed && !p->actions.frames.failed;
    for (size_t i = 0; i < p->actions.count && fits; i++) fits = perform(p, &p->actions.actions[i], now);
    if (fits)
        peer_send(p, &p->actions.frames);
    else
        die_of_memory(p);
}

enum member_judgement peer_judge(void *context, const struct wire_link_hello *hello) {
    struct peer *p = context;
    return member_judge_hello(p->member, hello);
}

static void take_link_events(struct peer *p, int64_t now) {
    struct link_event event;
    while (p->links != NULL && links_next(p->links, &event)) {
        if (event.kind == LINK_EVENT_UP) {
            LOG(LOG_DEBUG, "link %u to peer %02x%02x%02x%02x is up", event.index, event.id.bytes[0], event.id.bytes[1],
                event.id.bytes[2], event.id.bytes[3]);
            engine_add_link(p->engine, &event.id, event.index, event.fd);
        }
        peer_event_begin(p);
        if (event.kind == LINK_EVENT_UP)
            member_link_up(p->member, &event.id, event.index, event.latency_us, now, &p->actions);
        else if (event.kind == LINK_EVENT_FAILED)
            member_link_failed(p->member, &event.id, event.index, &p->actions);
        else if (event.outgoing)
            member_measured(p->member, member_id(p->member), &event.id, event.bytes_per_s, &p->actions);
        else
            member_measured(p->member, &event.id, member_id(p->member), event.bytes_per_s, &p->actions);
        peer_event_end(p, now);
    }
}

void peer_lose_links(struct peer *p, int64_t now) {
    for (;;) {
        struct lost_link lost;
        bool refused, any = peer_output_lost(p, &lost, &refused);
        // else the attempt is over, and its engine no longer the control thread's
        if (refused && p->links != NULL) die_of_memory(p);
        if (!any || p->links == NULL) return;
        // Made again meanwhile: then the news is old.
        if (!wire_id_equal(&lost.id, member_id(p->member)) && engine_has_link(p->engine, &lost.id, lost.index))
            continue;
        peer_event_begin(p);
        member_link_lost(p->member, &lost.id, lost.index, lost.silent, now, &p->actions);
        peer_event_end(p, now);
    }
}

static void tick(struct peer *p, int64_t now) {
    peer_master_tick(p, now);
    if (p->links == NULL) return;
    links_tick(p->links, now);
    if (now < member_deadline(p->member)) return;
    peer_event_begin(p);
    if (p->master_connected) member_round_trip(p->member, socket_round_trip_us(p->master_fd) * US_NS);
    member_tick(p->member, now, &p->actions);
    peer_event_end(p, now);
}

static int64_t next_deadline(const struct peer *p) {
    int64_t at = peer_master_deadline(p);
    if (p->links == NULL) return at;
    int64_t mind = member_deadline(p->member), links = links_deadline(p->links);
    if (mind < at) at = mind;
    return links < at ? links : at;
}

// When to look again. An engine stays while connected.
static int64_t watch_engine(struct peer *p) {
    pthread_mutex_lock(&p->lock);
    struct engine *engine = p->phase == PHASE_CONNECTED ? p->engine : NULL;
    pthread_mutex_unlock(&p->lock);
    return engine == NULL ? INT64_MAX : engine_watch(engine);
}

// What callers want. False: the communicator is destroyed.
static bool take_wishes(struct peer *p, int64_t now) {
    pthread_mutex_lock(&p->lock);
    bool dial = p->dial_wanted, closing = p->closing;
    p->dial_wanted = false;
    pthread_mutex_unlock(&p->lock);
    if (dial && !closing) peer_first_master(p, now);
    return !closing;
}

static void handle(struct peer *p, const struct epoll_event *event, int64_t now) {
    if (event->data.u64 == DATA_WAKE) {
        wake_clear(p->wake);
    } else if (event->data.u64 == DATA_MASTER) {
        peer_master_event(p, event->events, now);
    } else if (p->links != NULL) {
        links_event(p->links, event->data.u64, event->events, now);
        take_link_events(p, now);
    }
}

// ---- the loop ----

void *peer_control(void *context) {
    struct peer *p = context;
    struct epoll_event events[EVENTS_PER_TURN];
    int64_t now = platform_now_ns();
    bool overslept = false;
    while (take_wishes(p, now)) {
        peer_lose_links(p, now);
        take_link_events(p, now);
        peer_watch_master(p);
        int64_t began = platform_now_ns();
        int64_t look_at = watch_engine(p), at = next_deadline(p);
        int wait_ms = platform_wait_ms(began, look_at < at ? look_at : at);
        int count = epoll_wait(p->epoll, events, EVENTS_PER_TURN, wait_ms);
        now = platform_now_ns();
        for (int i = 0; i < count; i++) handle(p, &events[i], now);
        overslept = !overslept && platform_overslept(began, wait_ms, platform_now_ns());
        if (!overslept) tick(p, now);
    }
    peer_leave(p);
    return NULL;
}
