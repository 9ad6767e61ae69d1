#include "peer/connect.h"

#include "base/detail.h"
#include "base/platform.h"
#include "peer/control.h"
#include "peer/ops.h"
#include "peer/share.h"
#include "peer/vote.h"

#include <stdlib.h>

enum { SETTLE_MS = 500 }; // what a leaving peer waits at most for others to complete what it has

// A fresh id, mind and engine; those of the attempt before end here. Called without the lock, under `renewing`, while
// the control thread has no connection.
static bool renew(struct communicator *c) {
    struct wire_id id;
    engine_free(c->engine);
    c->engine = NULL;
    member_free(c->mind);
    c->mind = NULL;
    if (!platform_random(id.bytes, sizeof id.bytes)) return false;
    struct engine_callbacks callbacks = control_callbacks(c->control);
    c->mind = communicator_new_member(c, &id);
    c->engine = c->mind == NULL ? NULL : engine_new(&id, &callbacks);
    return c->engine != NULL && control_start(c->control);
}

static pcclResult_t begin(struct communicator *c, struct attempt *attempt) {
    if (c->closing) return detail_fail(pcclMasterConnectionFailed, "the communicator is being destroyed");
    c->phase = COMMUNICATOR_CONNECTING;
    *attempt = (struct attempt){.waited = true};
    c->waits_why[0] = 0;
    c->renewing = true;
    pthread_mutex_unlock(&c->lock);
    bool renewed = renew(c);
    pthread_mutex_lock(&c->lock);
    c->renewing = false;
    if (c->closing) pthread_cond_broadcast(&c->changed);
    if (!renewed) {
        c->phase = COMMUNICATOR_IDLE;
        return detail_fail(pcclInternalError, "the system refused memory or a thread for a connection");
    }
    attempt->wanted = true;
    wake_signal(c->wake);
    return pcclSuccess;
}

static pcclResult_t collect(struct communicator *c, const struct attempt *attempt) {
    if (!attempt->done)
        return detail_fail(pcclMasterConnectionFailed, "the communicator was destroyed while it connected");
    if (attempt->code != pcclSuccess) {
        c->phase = COMMUNICATOR_IDLE;
        return detail_fail(attempt->code, "%s", c->reason);
    }
    c->phase = COMMUNICATOR_CONNECTED;
    member_adopt(c->mind, &attempt->view);
    return pcclSuccess;
}

static pcclResult_t call_locked(struct communicator *c, int64_t deadline) {
    struct attempt *attempt = control_attempt(c->control);
    if (communicator_is_dead(c)) return communicator_dead(c, pcclInvalidUsage);
    if (c->phase == COMMUNICATOR_CONNECTED)
        return detail_fail(pcclInvalidUsage, "the communicator is connected already");
    if (c->phase == COMMUNICATOR_CONNECTING && attempt->waited)
        return detail_fail(pcclInvalidUsage, "another thread is connecting this communicator");
    if (c->phase == COMMUNICATOR_IDLE) RETURN_IF_FAILED(begin(c, attempt));
    attempt->waited = true;
    bool ended = communicator_wait(c, &attempt->done, deadline);
    attempt->waited = false;
    return ended ? collect(c, attempt) : communicator_timed_out(c);
}

pcclResult_t connect_call(struct communicator *c, int64_t deadline) {
    communicator_begin(c);
    return communicator_finish(c, call_locked(c, deadline));
}

// ---- life ----

static void free_all(struct communicator *c) {
    share_free(c);
    engine_free(c->engine);
    member_free(c->mind);
    control_free(c->control);
    ops_forget(c);
    free(c->vote);
    communicator_free(c);
}

struct communicator *connect_new(const struct communicator_params *params) {
    struct communicator *c = communicator_new(params);
    if (c == NULL) return NULL;
    c->vote = vote_new();
    c->share = share_new();
    c->control = control_new(c);
    if (c->vote != NULL && c->share != NULL && c->control != NULL) return c;
    free_all(c);
    return NULL;
}

void connect_free(struct communicator *c) {
    if (c == NULL) return;
    pthread_mutex_lock(&c->lock);
    struct engine *engine = c->phase == COMMUNICATOR_CONNECTED ? c->engine : NULL; // stays while connected
    pthread_mutex_unlock(&c->lock);
    if (engine != NULL) engine_settle(engine, platform_now_ns() + SETTLE_MS * MS_NS);
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_cond_broadcast(&c->changed);
    while (c->renewing) platform_cond_wait(&c->changed, &c->lock, INT64_MAX);
    pthread_mutex_unlock(&c->lock);
    wake_signal(c->wake);
    // LEAVE first, links after it: then nobody wonders why they broke.
    control_join(c->control);
    if (c->engine != NULL) engine_stop(c->engine);
    pthread_mutex_lock(&c->lock);
    while (c->users > 0) platform_cond_wait(&c->changed, &c->lock, INT64_MAX);
    pthread_mutex_unlock(&c->lock);
    // No call is inside, both threads have ended: nobody else can hold it.
    free_all(c);
}
