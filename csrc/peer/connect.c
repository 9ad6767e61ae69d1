#include "peer/communicator_private.h"

#include "base/descriptor.h"
#include "base/detail.h"
#include "base/log.h"
#include "base/platform.h"
#include "base/recorder.h"
#include "net/keys.h"
#include "net/tls.h"
#include "net/socket.h"
#include "state/precopy.h"

#include <stdlib.h>

enum { CONNECT_DRAIN_MS = 500 }; // what a leaving peer waits at most for others to complete what it has

static const struct ticket_type connect_type;

// Makes the flight recorder, with the connect that is open, if there is none yet.
static void record_from_now_on(struct communicator *c) {
    if (c->recorder != NULL) return; // nobody else sets it
    struct recorder *recorder =
        recorder_new(&(struct recorder_options){.role = RECORDER_PEER,
                                                .path = c->params.events[0] != 0 ? c->params.events : NULL,
                                                .name = c->params.member.name.chars,
                                                .run = c->run.chars});
    pthread_mutex_lock(&c->lock);
    c->recorder = recorder;
    c->ticket.recorded =
        recorder_add(recorder, &(struct recorder_event){.kind = RECORDER_CALL, .text = connect_type.name});
    pthread_mutex_unlock(&c->lock);
}

// A fresh identity, state machine and engine; those of the attempt before end here. Called without the lock, under
// `renewing`, while the control thread has no connection.
static bool renew(struct communicator *c) {
    struct wire_id id;
    engine_free(c->engine);
    c->engine = NULL;
    member_free(c->core);
    c->core = NULL;
    transport_context_release(c->transport);
    c->transport = NULL;
    struct transport_options options = c->params.transport;
    if (options.keys != NULL && (options.keys = keys_of_run(options.keys, &c->run)) == NULL) return false;
    c->transport = tls_context_new(&options);
    keys_release(options.keys);
    if (c->transport == NULL || !tls_peer_id(c->transport, &id)) return false;
    record_from_now_on(c);
    struct engine_callbacks callbacks = control_callbacks(c->control);
    callbacks.recorder = c->recorder;
    c->core = communicator_new_member(c, &id);
    c->engine = c->core == NULL ? NULL : engine_new(&id, &callbacks);
    if (c->engine != NULL && c->params.member.spare_lanes == 0) engine_fix_lanes(c->engine);
    return c->engine != NULL && control_start(c->control);
}

static pcclResult_t connect_collect(struct communicator *c, uint64_t *value) {
    pthread_mutex_unlock(&c->lock);
    precopy_end_receiving(c->precopy);
    pthread_mutex_lock(&c->lock);
    if (!c->ticket.done)
        return detail_fail(pcclMasterConnectionFailed, "the communicator was destroyed during connect");
    if (c->ticket.code != pcclSuccess) {
        c->phase = COMMUNICATOR_IDLE;
        *value = c->ticket.value;
        return detail_fail(c->ticket.code, "%s", c->reason);
    }
    c->phase = COMMUNICATOR_CONNECTED;
    member_adopt(c->core, &c->ticket.view);
    engine_is_only_caller(c->engine, true);   // it may compute before its first operation, while others wait in theirs
    if (c->numbers_new) wake_signal(c->wake); // for the control thread to tell them
    return pcclSuccess;
}

static const struct ticket_type connect_type = {.name = "connect", .collect = connect_collect};

static pcclResult_t attempt(struct communicator *c) {
    c->phase = COMMUNICATOR_CONNECTING;
    c->renewing = true;
    pthread_mutex_unlock(&c->lock);
    c->relay = (struct wire_address){0}; // its host may have moved since the attempt before
    const char *no_relay = c->params.relay[0] == 0 ? NULL : socket_address_look_up(c->params.relay, &c->relay);
    bool renewed = no_relay == NULL && renew(c);
    pthread_mutex_lock(&c->lock);
    c->renewing = false;
    if (c->closing) pthread_cond_broadcast(&c->changed);
    if (!renewed) {
        c->phase = COMMUNICATOR_IDLE;
        if (no_relay != NULL)
            return detail_fail(pcclMasterConnectionFailed, "cannot find the relay PCCL_RELAY=%.80s: %s",
                               c->params.relay, no_relay);
        return detail_fail(pcclInternalError, "the system refused memory, descriptors or a thread for the connection");
    }
    control_connect(c->control);
    return pcclSuccess;
}

// Without keys only masters at loopback are tried; a later one of the list may be the one that takes the run up.
static pcclResult_t check_masters(const struct communicator *c) {
    char address[64];
    for (uint32_t i = 0; i < c->params.masters.count; i++) {
        if (transport_permits(&c->params.transport, &c->params.masters.list[i], TRANSPORT_DIALS)) continue;
        socket_address_format(address, sizeof address, &c->params.masters.list[i]);
        LOG(LOG_ERR, "the master at %s is " TRANSPORT_LOOPBACK_ONLY, address);
        return detail_fail(pcclInvalidArgument, "the master at %s is " TRANSPORT_LOOPBACK_ONLY, address);
    }
    return pcclSuccess;
}

// Keys of one run name it, so the address need not.
static pcclResult_t take_run(struct communicator *c) {
    const struct keys *keys = c->params.transport.keys;
    c->run = c->params.run;
    c->params.cards.reach.relays = c->params.relays;
    if (keys == NULL || keys_take_run(keys, &c->run)) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, KEYS_WRONG_RUN, keys_run(keys)->chars, c->run.chars);
}

static pcclResult_t begin(struct communicator *c, uint64_t *ticket) {
    if (communicator_is_dead(c)) return communicator_dead(c, pcclInvalidUsage);
    if (c->phase == COMMUNICATOR_CONNECTED)
        return detail_fail(pcclInvalidUsage, "the communicator is already connected");
    if (communicator_ticket_is_left(c, &connect_type)) return communicator_ticket_begun(c, pcclSuccess, ticket);
    if (c->phase == COMMUNICATOR_CONNECTING)
        return detail_fail(pcclInvalidUsage, "another thread is connecting this communicator");
    if (c->closing) return detail_fail(pcclMasterConnectionFailed, "the communicator is being destroyed");
    RETURN_IF_FAILED(check_masters(c));
    RETURN_IF_FAILED(take_run(c));
    communicator_ticket_open(c, &connect_type);
    return communicator_ticket_begun(c, attempt(c), ticket);
}

pcclResult_t connect_begin(struct communicator *c, uint64_t *ticket) {
    communicator_begin(c);
    return communicator_finish(c, begin(c, ticket));
}

// ---- life ----

static void free_all(struct communicator *c) {
    precopy_free(c->precopy);
    shared_state_free(c);
    engine_free(c->engine);
    member_free(c->core);
    control_free(c->control);
    ops_forget(c);
    recorder_free(c->recorder);
    descriptor_close(atomic_load(&c->events));
    descriptor_close(c->wake);
    transport_context_release(c->transport);
    keys_release(c->params.transport.keys);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

struct communicator *connect_new(const struct communicator_params *params) {
    struct communicator *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    c->params = *params;
    atomic_init(&c->events, -1);
    c->wake = wake_open();
    if (c->wake < 0 || !platform_cond_init(&c->changed)) {
        descriptor_close(c->wake);
        free(c);
        return NULL;
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->numbering, NULL);
    if (params->transport.keys != NULL) keys_hold(params->transport.keys);
    c->shared_state = shared_state_new();
    c->precopy = precopy_new();
    c->control = control_new(c);
    if (c->shared_state != NULL && c->precopy != NULL && c->control != NULL) return c;
    free_all(c);
    return NULL;
}

void connect_stop(struct communicator *c) {
    if (c->stopped) return;
    pthread_mutex_lock(&c->lock);
    struct engine *engine = c->phase == COMMUNICATOR_CONNECTED ? c->engine : NULL; // stays while connected
    pthread_mutex_unlock(&c->lock);
    if (engine != NULL) engine_drain(engine, platform_now_ns() + CONNECT_DRAIN_MS * MS_NS);
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_cond_broadcast(&c->changed);
    while (c->renewing) platform_cond_wait(&c->changed, &c->lock, INT64_MAX);
    pthread_mutex_unlock(&c->lock);
    wake_signal(c->wake);
    wake_signal(atomic_load(&c->events)); // an open ticket ends
    // LEAVE first, links after it: then nobody wonders why they broke.
    control_join(c->control);
    if (c->engine != NULL) engine_stop(c->engine);
    pthread_mutex_lock(&c->lock);
    while (c->users > 0) platform_cond_wait(&c->changed, &c->lock, INT64_MAX);
    pthread_mutex_unlock(&c->lock);
    c->stopped = true;
}

void connect_set_end(struct communicator *c, enum communicator_end end) {
    pthread_mutex_lock(&c->lock);
    if (!c->closing) c->end = end;
    pthread_mutex_unlock(&c->lock);
}

bool connect_is_undecided(struct communicator *c) {
    pthread_mutex_lock(&c->lock);
    bool undecided = c->end == COMMUNICATOR_UNDECIDED;
    pthread_mutex_unlock(&c->lock);
    return undecided;
}

void connect_exit(struct communicator *c) {
    pthread_mutex_lock(&c->lock);
    bool undecided = c->closing && c->end == COMMUNICATOR_UNDECIDED;
    c->closing = true;
    pthread_mutex_unlock(&c->lock);
    wake_signal(c->wake);
    control_join(c->control);
    if (undecided) control_leave(c->control);
}

void connect_free(struct communicator *c) {
    if (c == NULL) return;
    connect_stop(c);
    // No call is inside, both threads have ended: nobody else can hold it.
    free_all(c);
}
