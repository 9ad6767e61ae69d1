#include "peer/reports.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/platform.h"

enum { LOST_LEAST = 16 };

void reports_init(struct reports *r, struct output *output) {
    *r = (struct reports){.output = output};
    pthread_mutex_init(&r->lock, NULL);
}

void reports_fini(struct reports *r) {
    free(r->lost);
    pthread_mutex_destroy(&r->lock);
}

bool reports_next(struct reports *r, struct lost_link *out, bool *refused) {
    pthread_mutex_lock(&r->lock);
    bool any = r->count > 0;
    *refused = r->refused;
    r->refused = false;
    if (any) {
        *out = r->lost[0];
        memmove(r->lost, r->lost + 1, --r->count * sizeof *r->lost);
    }
    pthread_mutex_unlock(&r->lock);
    return any;
}

void reports_forget(struct reports *r) {
    pthread_mutex_lock(&r->lock);
    r->count = 0;
    r->refused = false;
    pthread_mutex_unlock(&r->lock);
}

// ---- the engine's thread ----

static struct wire_header begin_in(struct output *output, uint64_t group_epoch) {
    struct wire_header header = output_begin(output);
    header.epoch = group_epoch;
    return header;
}

static void on_done(void *context, const struct wire_op_name *name) {
    struct output *output = ((struct reports *)context)->output;
    struct wire_op_done done = {.name = *name};
    struct wire_header header = begin_in(output, name->epoch);
    wire_encode_op_done(&output->waiting.bytes, header, &done);
    output_end(output);
}

static void on_mismatch(void *context, const struct wire_mismatch *mismatch) {
    struct output *output = ((struct reports *)context)->output;
    struct wire_header header = begin_in(output, mismatch->name.epoch);
    wire_encode_mismatch(&output->waiting.bytes, header, mismatch);
    output_end(output);
}

static void on_frozen(void *context, uint64_t group_epoch, const struct wire_report *report) {
    struct output *output = ((struct reports *)context)->output;
    struct wire_header header = begin_in(output, group_epoch);
    wire_encode_report(&output->waiting.bytes, header, report);
    output_end(output);
}

static void on_synced(void *context, const struct wire_sync_done *done) {
    struct output *output = ((struct reports *)context)->output;
    struct wire_header header = output_begin(output);
    wire_encode_sync_done(&output->waiting.bytes, header, done);
    output_end(output);
}

static void on_link_down(void *context, const struct wire_id *id, uint32_t index, bool silent) {
    struct reports *r = context;
    pthread_mutex_lock(&r->lock);
    if (GROW(r->lost, r->room, r->count, LOST_LEAST))
        r->lost[r->count++] = (struct lost_link){.id = *id, .index = index, .silent = silent};
    else
        r->refused = true;
    pthread_mutex_unlock(&r->lock);
    wake_signal(r->output->wake);
}

void reports_refused(void *context) {
    struct reports *r = context;
    pthread_mutex_lock(&r->lock);
    r->refused = true;
    pthread_mutex_unlock(&r->lock);
    wake_signal(r->output->wake);
}

struct engine_callbacks reports_callbacks(struct reports *r) {
    return (struct engine_callbacks){.context = r,
                                     .done = on_done,
                                     .mismatch = on_mismatch,
                                     .frozen = on_frozen,
                                     .link_down = on_link_down,
                                     .synced = on_synced,
                                     .failed = reports_refused};
}
