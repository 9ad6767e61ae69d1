#define _GNU_SOURCE
#include "peer/control_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/platform.h"
#include "device/device.h"
#include "net/peer_name.h"
#include "net/socket.h"
#include "peer/master_link.h"
#include "peer/recording.h"

enum {
    DATA_WAKE = 0, // epoll data
    DATA_MASTER = 1,
    DATA_LINKS = 2,
    LOST_LEAST = 16,
    EVENTS_PER_TURN = 1024, // all at once, strangers' too, so that a tick comes after everything that has arrived
    SPARE_PATIENCE = 4,     // limits, for a spare lane that is being made
    FAILURE_AGAIN_MS = 10000,
};

struct lost_link {
    struct wire_id id; // the own one: the data plane wants a fresh group epoch
    uint32_t index;
    uint64_t serial; // of the connection
    enum wire_link_reason reason;
};

struct control {
    struct communicator *c;

    // guarded by the communicator's lock
    bool wanted;            // a connect has begun
    struct lost_link *lost; // what the engine tells of links that broke
    size_t lost_count, lost_room;
    bool failed;                  // the communicator is to die
    char why[DEVICE_ERROR_BYTES]; // then; "": memory was refused, to the engine or for one of these

    // the thread's own
    pthread_t thread;
    bool runs; // of control_start
    int epoll;
    uint16_t links_port;
    struct wireup *wireup; // NULL: there is no connection to a master, and none is looked for
    struct member_output actions;
    struct log_limit waiting_log; // what a master says of waiting
    struct log_limit loss_log;
    struct control_precopy precopy;
    const struct epoch *known; // the last that changed the own group; NULL: none yet
    struct {
        char text[MEMBER_TEXT];
        int64_t silent_until;
    } failure; // to connect, as logged last
};

static const char no_memory[] = "the system refused memory or descriptors";

static void hang_up(struct control *t) {
    master_link_close(t->c->master);
    wireup_free(t->wireup);
    t->wireup = NULL;
}

// ---- endings ----

// Logs why an attempt to connect failed: the same reason again only after a while.
static void log_failure(struct control *t, pcclResult_t code, const char *text) {
    int64_t now = platform_now_ns();
    if (now < t->failure.silent_until && strcmp(t->failure.text, text) == 0) return;
    // Programs try again where no master was reached, and connect returns the last reason.
    LOG(code == pcclMasterConnectionFailed ? LOG_WARN : LOG_ERR, "connect failed: %s", text);
    snprintf(t->failure.text, sizeof t->failure.text, "%s", text);
    t->failure.silent_until = now + FAILURE_AGAIN_MS * MS_NS;
}

// Ends the connect attempt; `view` may be NULL. Unless it succeeded, the caller may free state machine and engine from
// then on.
static void end_attempt(struct control *t, pcclResult_t code, const struct member_view *view, const char *text) {
    struct communicator *c = t->c;
    precopy_hurry(c->precopy);
    if (code != pcclSuccess) {
        log_failure(t, code, text);
        hang_up(t);
    } else if (view->number == 1) {
        LOG(LOG_NOTICE,
            "is among the first of a run, for none was under way at the master %s; its state is that of this program",
            master_link_address(c->master, (char[MASTER_LINK_ADDRESS]){0}));
    }
    pthread_mutex_lock(&c->lock);
    if (code != pcclSuccess) snprintf(c->reason, sizeof c->reason, "%s", text);
    communicator_ticket_end(c, code, code != pcclSuccess && master_link_is_foreign(c->master), view);
    pthread_mutex_unlock(&c->lock);
}

static void end_vote(struct control *t, const struct member_action *action) {
    pthread_mutex_lock(&t->c->lock);
    if (action->end != NULL) shared_state_ended(t->c, action->end);
    communicator_ticket_end(t->c, action->code, action->value, &action->view);
    pthread_mutex_unlock(&t->c->lock);
}

static void note_text(struct recorder *recorder, enum recorder_kind kind, const char *text) {
    recorder_add(recorder, &(struct recorder_event){.kind = kind, .text = text});
}

static void die(struct control *t, const char *text) {
    struct communicator *c = t->c;
    note_text(c->recorder, RECORDER_DIED, text);
    if (member_leaving(c->core)->left)
        LOG(LOG_NOTICE, "this peer has left the run, as it announced");
    else
        LOG(LOG_ERR, "the communicator is dead: %s", text);
    hang_up(t);
    pthread_mutex_lock(&c->lock);
    // Nobody has heard yet that connect has succeeded: then it has failed, and may be called again.
    bool connected = c->phase != COMMUNICATOR_CONNECTING;
    if (connected)
        c->phase = COMMUNICATOR_DEAD;
    else
        c->ticket.code = pcclMasterConnectionFailed;
    snprintf(c->reason, sizeof c->reason, "%s", text);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (connected) engine_kill(c->engine);
}

// In the middle of an event: nothing is known for sure any more.
static void die_of(struct control *t, const char *why) {
    struct communicator *c = t->c;
    die(t, why);
    pthread_mutex_lock(&c->lock);
    communicator_ticket_end(c, c->phase == COMMUNICATOR_CONNECTING ? pcclInternalError : pcclMasterConnectionFailed, 0,
                            NULL);
    pthread_mutex_unlock(&c->lock);
}

// ---- carrying out what the state machine decides ----

// Registration tells the secret and the run.
static void introduce(struct control *t) {
    const struct member *core = t->c->core;
    const struct wire_welcome *welcome = member_welcome(core);
    struct wire_header header = member_header(core);
    struct wireup_identity identity = {.self = *member_id(core), .run = header.run, .generation = header.generation};
    memcpy(identity.secret, welcome->secret, sizeof identity.secret);
    wireup_identify(t->wireup, &identity, member_link_limit_ns(core));
    // so that a link is found out twice within a limit
    engine_set_silence(t->c->engine, (int64_t)welcome->heartbeat_limit_ms * MS_NS / 2);
}

// A master has refused this newcomer: perhaps the next one of the list serves the run. False: there is none, or memory
// was refused.
static bool try_next_master(struct control *t, int64_t now) {
    struct communicator *c = t->c;
    struct member *fresh = communicator_new_member(c, member_id(c->core));
    if (fresh == NULL || !master_link_join_next(t->c->master, now)) {
        member_free(fresh);
        return false;
    }
    wireup_free(t->wireup);
    t->wireup = NULL;
    pthread_mutex_lock(&c->lock);
    member_free(c->core);
    c->core = fresh;
    pthread_mutex_unlock(&c->lock);
    return true;
}

// Why the member has ended. After a search in vain it names a master that is not of the run.
static const char *why_dead(const struct control *t) {
    const char *text = member_text(t->c->core);
    return member_gave_up(t->c->core) ? master_link_note_refusal(t->c->master, text) : text;
}

// Ends an attempt to connect, unless another master of the list may serve the run.
static void end_connect(struct control *t, const struct member_action *action, int64_t now) {
    const char *text = why_dead(t);
    // The second one is for a master of another version.
    bool refused = action->code == pcclMasterConnectionFailed || action->code == pcclInvalidUsage;
    if (refused && !member_gave_up(t->c->core)) {
        text = master_link_note(t->c->master, text);
        if (try_next_master(t, now)) return;
    }
    end_attempt(t, action->code, &action->view, text);
}

// The master is lost: links and ops go on while another one is looked for.
static void seek_master(struct control *t, bool anew, int64_t now) {
    const struct member *core = t->c->core;
    bool lost_now = !master_link_seeks(t->c->master);
    if (lost_now && t->c->params.cards.count < 2 &&
        master_link_is_open(t->c->master)) { // silent: should it wake up, it is not to take this for a death
        struct wire_buffer moved = {0};
        wire_encode_empty(&moved, member_header(core), WIRE_MOVED);
        master_link_send(t->c->master, &moved);
        wire_buffer_fini(&moved);
    }
    if (lost_now) note_text(t->c->recorder, RECORDER_MASTER_LOST, member_lost_why(core));
    if (lost_now)
        LOG(LOG_ERR, "master lost: %s; seeks a master for up to %u s, and calls wait", member_lost_why(core),
            t->c->params.member.recovery_limit_ms / 1000);
    master_link_seek(t->c->master, anew, now);
}

static void tell_waiting(struct control *t) {
    const struct member *core = t->c->core;
    bool without = member_phase(core) == MEMBER_JOINING || member_is_seeking(core);
    const char *who = without ? "the master " : "";
    pthread_mutex_lock(&t->c->lock);
    snprintf(t->c->waits_why, sizeof t->c->waits_why, "%s%s", who, member_waits_why(core));
    pthread_mutex_unlock(&t->c->lock);
    LOG_LIMITED(&t->waiting_log, without ? LOG_ERR : LOG_NOTICE, "%s%s", who, member_waits_why(core));
}

// Logs and notes which members of the group are lost, and why.
static void note_epoch(struct control *t, const struct member_action *action) {
    const struct epoch *known = t->known, *epoch = action->epoch;
    char address[64], rank[32];
    recording_epoch(t->c->recorder, member_id(t->c->core), t->c->params.group, known, action);
    for (uint32_t i = 0; epoch->lost && known != NULL && known->run == epoch->run && i < known->ring.count; i++) {
        const struct wire_member *member = &known->ring.members[i];
        const struct wire_gone *gone = member_action_gone(action, &member->id);
        uint8_t reason = gone == NULL ? WIRE_LOSS_UNKNOWN : gone->reason;
        if (epoch_ring_has(&epoch->ring, &member->id)) continue;
        snprintf(rank, sizeof rank, "rank %u", epoch_ring_rank(&known->ring, member->join_number));
        pthread_mutex_lock(&t->c->lock);
        communicator_lost_note(&t->c->lost, member, gone, epoch->group_epoch);
        pthread_mutex_unlock(&t->c->lock);
        LOG_LIMITED(&t->loss_log, LOG_NOTICE, "%s at %s %s (%s%s%s); members left in the group: %u",
                    peer_label_with(&member->id, &member->name, rank).chars,
                    socket_address_format(address, sizeof address, &member->address),
                    reason <= WIRE_LOSS_EXPELLED ? "lost" : "left", wire_loss_name(reason), gone == NULL ? "" : ": ",
                    gone == NULL ? "" : gone->why, epoch->ring.count);
    }
    t->known = epoch_get(epoch);
    epoch_put(known);
}

static void perform(struct control *t, const struct member_action *action, int64_t now) {
    struct communicator *c = t->c;
    bool links = action->kind <= MEMBER_DROP_PEER || action->kind == MEMBER_PROBE || action->kind == MEMBER_RECHECK;
    if (links && t->wireup == NULL) return; // the connection has ended
    switch (action->kind) {
    case MEMBER_DIAL: // nobody waits for a spare one, and if its other end is up already, ops begin anew where it fails
        wireup_dial(t->wireup, WIRE_LINK_DATA, &action->id, action->index, &action->reach,
                    now + (action->spare ? SPARE_PATIENCE : 1) * member_link_limit_ns(c->core));
        break;
    case MEMBER_RELAY: wireup_relay(t->wireup, &c->relay, action, now, member_link_limit_ns(c->core)); break;
    case MEMBER_DROP_PEER:
        wireup_cancel(t->wireup, &action->id);
        engine_drop_peer(c->engine, &action->id);
        break;
    case MEMBER_MISSED_LOSS: engine_missed_loss(c->engine, action->group_epoch); break;
    case MEMBER_ENTER_EPOCH:
        note_epoch(t, action);
        engine_enter_epoch(t->c->engine, action->epoch);
        break;
    case MEMBER_LINKS_READY: engine_links_ready(c->engine, action->group_epoch); break;
    case MEMBER_VERDICT: engine_verdict(c->engine, action->verdict); break;
    case MEMBER_PROBE:
        wireup_probe(t->wireup, &action->id, &action->reach, action->duration_ms, now + member_link_limit_ns(c->core));
        break;
    case MEMBER_CONNECT_END: end_connect(t, action, now); break;
    case MEMBER_VOTE_END: end_vote(t, action); break;
    case MEMBER_SYNC_PLAN: shared_state_planned(c, action->plan, now); break;
    case MEMBER_RECHECK:
        introduce(t);
        wireup_recheck(t->wireup);
        break;
    case MEMBER_SEEK: seek_master(t, action->anew, now); break;
    case MEMBER_FOUND:
        master_link_found(t->c->master, now);
        note_text(c->recorder, RECORDER_MASTER_FOUND, master_link_address(c->master, (char[MASTER_LINK_ADDRESS]){0}));
        break;
    case MEMBER_WAITING: tell_waiting(t); break;
    case MEMBER_DONORS: control_precopy_begin(&t->precopy, c, t->wireup, action->donors, now); break;
    case MEMBER_DIE: die(t, why_dead(t)); break;
    }
}

// ---- events ----

// Around each event: the state machine is told between the two, under the lock; then what it decides is carried out,
// without it.
static struct member *event_begin(struct control *t) {
    member_output_clear(&t->actions);
    pthread_mutex_lock(&t->c->lock);
    return t->c->core;
}

static void event_end(struct control *t, int64_t now) {
    pthread_mutex_unlock(&t->c->lock);
    bool fits = !t->actions.failed && !t->actions.frames.failed;
    for (size_t i = 0; i < t->actions.count && fits; i++) perform(t, &t->actions.actions[i], now);
    if (fits)
        master_link_send(t->c->master, &t->actions.frames);
    else
        die_of(t, no_memory);
}

static enum member_judgement judge(void *control, const struct wire_link_hello *hello) {
    return member_judge_hello(((struct control *)control)->c->core, hello);
}

static void take_link_events(struct control *t, int64_t now) {
    struct wireup_event event;
    while (t->wireup != NULL && wireup_next(t->wireup, &event)) {
        uint64_t serial = 0;
        if (event.kind == WIREUP_PRECOPY) {
            control_precopy_take(&t->precopy, t->c, t->wireup, event.stream, now);
            continue;
        }
        if (event.kind == WIREUP_UP) {
            LOG(LOG_DEBUG, "link %u to %s is up", event.index, peer_label(&event.id, &(struct wire_name){{0}}).chars);
            serial = engine_add_link(t->c->engine, &event.id, event.index, event.stream);
            if (serial == 0) continue;
        }
        struct member *core = event_begin(t);
        if (event.kind == WIREUP_UP)
            member_link_up(core, &event.id, event.index, serial, event.latency_us, now, &t->actions);
        else if (event.kind == WIREUP_NARROW)
            member_link_narrow(core, &event.id);
        else if (event.kind == WIREUP_FAILED)
            member_link_failed(core, &event.id, event.index, &t->actions);
        else if (event.kind == WIREUP_PROVED)
            member_link_proved(core, &event.id, event.index, now, &t->actions);
        else
            member_measured(core, event.outgoing ? member_id(core) : &event.id,
                            event.outgoing ? &event.id : member_id(core), event.bytes_per_s, &t->actions);
        event_end(t, now);
    }
}

// ---- what the engine tells; its threads ----

static void to_master(void *control, const struct wire_buffer *frames) {
    master_link_send(((struct control *)control)->c->master, frames);
}

static void link_down(void *control, const struct wire_id *id, uint32_t index, uint64_t serial,
                      enum wire_link_reason reason) {
    struct control *t = control;
    pthread_mutex_lock(&t->c->lock);
    bool first = t->lost_count == 0; // for it the thread wakes, and takes all
    if (GROW(t->lost, t->lost_room, t->lost_count, LOST_LEAST))
        t->lost[t->lost_count++] = (struct lost_link){.id = *id, .index = index, .serial = serial, .reason = reason};
    else
        t->failed = true;
    pthread_mutex_unlock(&t->c->lock);
    if (first) wake_signal(t->c->wake);
}

static void failed(void *control, const char *why) {
    struct control *t = control;
    pthread_mutex_lock(&t->c->lock);
    if (!t->failed) snprintf(t->why, sizeof t->why, "%s", why);
    t->failed = true;
    pthread_mutex_unlock(&t->c->lock);
    wake_signal(t->c->wake);
}

struct engine_callbacks control_callbacks(struct control *t) {
    return (struct engine_callbacks){
        .context = t, .to_master = to_master, .link_down = link_down, .failed = failed, .events = &t->c->events};
}

// Takes what it has told. False: it has failed, and nothing is known for sure any more.
static bool take_lost(struct control *t, struct lost_link **lost, size_t *count) {
    pthread_mutex_lock(&t->c->lock);
    bool failed = t->failed;
    *lost = t->lost;
    *count = t->lost_count;
    t->lost = NULL;
    t->lost_count = t->lost_room = 0;
    t->failed = false;
    pthread_mutex_unlock(&t->c->lock);
    return !failed;
}

// Tells the state machine of links that the engine saw break.
static void lose_links(struct control *t, int64_t now) {
    struct lost_link *lost;
    size_t count;
    if (t->wireup == NULL) return;
    if (!take_lost(t, &lost, &count)) die_of(t, t->why[0] != 0 ? t->why : no_memory);
    for (size_t i = 0; i < count && t->wireup != NULL; i++) {
        if (lost[i].reason == WIRE_LINK_CARD || lost[i].reason == WIRE_LINK_SILENT)
            wireup_avoid(t->wireup, &lost[i].id, lost[i].index, now);
        member_link_lost(event_begin(t), &lost[i].id, lost[i].index, lost[i].serial, lost[i].reason, now, &t->actions);
        event_end(t, now);
    }
    free(lost);
}

// Takes the news of the thread that copies the state.
static void take_news(struct control *t, int64_t now) {
    struct wire_progress progress;
    enum precopy_news news = control_precopy_news(&t->precopy, t->c, t->wireup, &progress, now);
    if (news == PRECOPY_QUIET) return;
    member_copied(event_begin(t), news == PRECOPY_UP_TO_DATE, &progress, &t->actions);
    event_end(t, now);
}

// ---- the master ----

static void join(struct control *t, int64_t now) {
    struct wire_address local;
    t->wireup = wireup_new(t->c->transport, t->epoll, DATA_LINKS, member_id(t->c->core), judge, t);
    int error = t->wireup == NULL ? ENOMEM : 0;
    if (error == 0 && !master_link_local(t->c->master, &local)) error = errno;
    if (error == 0) error = -wireup_listen(t->wireup, &local, &t->c->params.cards, &t->links_port);
    if (error != 0) {
        wireup_free(t->wireup);
        t->wireup = NULL;
        master_link_refuse(t->c->master, "cannot listen for other peers on the address that reached the master at",
                           error, now);
        return;
    }
    pthread_mutex_lock(&t->c->lock);
    t->lost_count = 0; // of the engine before
    t->failed = false;
    pthread_mutex_unlock(&t->c->lock);
    master_link_use(t->c->master, NULL);
    struct member *core = event_begin(t);
    member_set_local(core, &local);
    member_join(core, t->links_port, now, &t->actions);
    event_end(t, now);
}

static void resume(struct control *t, int64_t now) {
    struct wire_hash content;
    enum member_tensors tensors;
    if (!shared_state_restart(t->c, &tensors, &content)) failed(t, "");
    member_resume(event_begin(t), t->links_port, master_link_has_earlier(t->c->master), tensors, &content, now,
                  &t->actions);
    pthread_mutex_unlock(&t->c->lock);
    master_link_use(t->c->master, &t->actions.frames); // nothing that the data plane says may come before
}

static void take_frame(struct control *t, const struct master_event *event, int64_t now) {
    // Links that broke before an epoch are made again in it only if the state machine knows of them.
    if (event->header.type == WIRE_EPOCH || event->header.type == WIRE_CANDIDATE) lose_links(t, now);
    if (event->header.type == WIRE_STACKS) communicator_want_stacks(t->c);
    if (event->header.type == WIRE_STACKS || !master_link_is_open(t->c->master)) return;
    member_frame(event_begin(t), &event->header, event->body, now, &t->actions);
    event_end(t, now);
}

static void disconnected(struct control *t, const char *why, int64_t now) {
    char address[MASTER_LINK_ADDRESS], text[2 * MASTER_LINK_TEXT];
    snprintf(text, sizeof text, "the connection to the master at %s broke: %s",
             master_link_address(t->c->master, address), why);
    member_disconnected(event_begin(t), text, now, &t->actions);
    event_end(t, now);
}

static void take_master_events(struct control *t, int64_t now) {
    struct master_event event;
    while (master_link_next(t->c->master, &event, &now)) {
        switch (event.kind) {
        case MASTER_ANSWERS: (master_link_seeks(t->c->master) ? resume : join)(t, now); break;
        case MASTER_FRAME: take_frame(t, &event, now); break;
        case MASTER_BROKE: disconnected(t, event.text, now); break;
        case MASTER_UNREACHABLE:
            end_attempt(t, event.internal ? pcclInternalError : pcclMasterConnectionFailed, NULL, event.text);
            break;
        }
    }
}

// ---- the loop ----

static void tick(struct control *t, int64_t now) {
    master_link_tick(t->c->master, now);
    if (t->wireup == NULL) return;
    wireup_tick(t->wireup, now);
    if (now < member_deadline(t->c->core)) return;
    struct member *core = event_begin(t);
    if (master_link_is_open(t->c->master)) member_round_trip(core, master_link_round_trip_ns(t->c->master));
    member_tick(core, now, &t->actions);
    event_end(t, now);
}

static int64_t next_deadline(const struct control *t) {
    int64_t at = master_link_deadline(t->c->master);
    return t->wireup == NULL
               ? at
               : platform_earlier(at, platform_earlier(member_deadline(t->c->core), wireup_deadline(t->wireup)));
}

// Takes the requests of callers. Returns false if the communicator is being destroyed.
static bool take_wishes(struct control *t, int64_t now) {
    pthread_mutex_lock(&t->c->lock);
    bool wanted = t->wanted, closing = t->c->closing;
    t->wanted = false;
    pthread_mutex_unlock(&t->c->lock);
    if (wanted && !closing) {
        master_link_join(t->c->master, t->c->transport, &t->c->run, t->c->params.masters.list,
                         t->c->params.masters.count, now);
    }
    return !closing;
}

static void handle(struct control *t, const struct epoll_event *event, int64_t now) {
    if (event->data.u64 == DATA_WAKE) {
        wake_clear(t->c->wake);
    } else if (event->data.u64 == DATA_MASTER) {
        master_link_event(t->c->master, event->events, now);
        take_master_events(t, now);
    } else if (t->wireup != NULL) {
        wireup_handle(t->wireup, event->data.u64, now);
        take_link_events(t, now);
    }
}

void control_leave(struct control *t) {
    if (t->c->end != COMMUNICATOR_FAILS && master_link_is_open(t->c->master)) {
        member_leave(event_begin(t), &t->actions);
        event_end(t, platform_now_ns());
        master_link_end(t->c->master); // LEAVE goes out before the end of the stream
    }
    hang_up(t);
}

static void *run(void *control) {
    struct control *t = control;
    struct epoll_event events[EVENTS_PER_TURN];
    int64_t now = platform_now_ns();
    bool overslept = false;
    while (take_wishes(t, now)) {
        lose_links(t, now);
        take_master_events(t, now);
        take_link_events(t, now);
        take_news(t, now);
        int64_t began = platform_now_ns();
        int64_t numbers_ns = communicator_tell_numbers(t->c, began), waits_ns = communicator_tell_waits(t->c, began);
        int wait_ms =
            platform_wait_ms(began, platform_earlier(next_deadline(t), platform_earlier(numbers_ns, waits_ns)));
        int count = epoll_wait(t->epoll, events, EVENTS_PER_TURN, wait_ms);
        now = platform_now_ns();
        for (int i = 0; i < count; i++) handle(t, &events[i], now);
        overslept = !overslept && platform_overslept(began, wait_ms, platform_now_ns());
        if (!overslept) tick(t, now);
    }
    if (t->c->end != COMMUNICATOR_UNDECIDED) control_leave(t); // it changes no more
    return NULL;
}

// ---- life ----

struct control *control_new(struct communicator *c) {
    struct control *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    t->c = c;
    t->waiting_log = (struct log_limit){.lines = 3, .seconds = 10};
    t->loss_log = (struct log_limit){.lines = 8, .seconds = 10};
    t->epoll = descriptor_epoll();
    t->c->master = master_link_new(t->epoll, DATA_MASTER, &c->params.cards);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = DATA_WAKE};
    if (t->epoll >= 0 && t->c->master != NULL && epoll_ctl(t->epoll, EPOLL_CTL_ADD, c->wake, &event) == 0) return t;
    control_free(t);
    return NULL;
}

void control_free(struct control *t) {
    if (t == NULL) return;
    master_link_free(t->c->master);
    epoch_put(t->known);
    free(t->lost);
    member_output_fini(&t->actions);
    descriptor_close(t->epoll);
    free(t);
}

bool control_start(struct control *t) {
    if (!t->runs) t->runs = platform_thread_start(&t->thread, "pccl:control", run, t);
    return t->runs;
}

void control_join(struct control *t) {
    if (t->runs) pthread_join(t->thread, NULL);
    t->runs = false;
}

void control_connect(struct control *t) {
    communicator_assert_locked(t->c);
    t->wanted = true;
    wake_signal(t->c->wake);
}
