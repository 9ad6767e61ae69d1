// What is sent to the master, by any thread: what the mind says, and what the engine has to tell, which its thread
// sends itself, so that an op that is done is one system call away from the master.
#define _GNU_SOURCE
#include "peer/peer_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "net/socket.h"

enum { MAX_OUTPUT_BYTES = 64 << 20 }; // a master that takes this long to read is as good as silent

// Must hold out_lock. Sends what the kernel takes; the rest waits for the control thread.
static void flush_output(struct peer *p) {
    while (p->master_fd >= 0 && p->out_sent < p->out.length) {
        ptrdiff_t sent = socket_send(p->master_fd, p->out.bytes + p->out_sent, p->out.length - p->out_sent);
        if (sent == -EAGAIN) return;
        if (sent < 0) break; // the control thread reads the end of this connection
        p->out_sent += (size_t)sent;
    }
    p->out.length = p->out_sent = 0;
}

// Must hold out_lock. Sends what was just encoded into `out`.
static void send_output(struct peer *p) {
    if (p->out.failed || p->out.length > MAX_OUTPUT_BYTES) {
        LOG(LOG_ERR, "the master does not take what is sent to it, or memory ran out: giving up on it");
        if (p->master_fd >= 0) shutdown(p->master_fd, SHUT_RDWR);
        p->out.failed = false;
        p->out.length = p->out_sent = 0;
        return;
    }
    flush_output(p);
    if (p->out.length != 0) wake_signal(p->wake);
}

void peer_send(struct peer *p, const struct wire_buffer *frames) {
    if (frames->length == 0) return;
    pthread_mutex_lock(&p->out_lock);
    wire_buffer_append(&p->out, frames);
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

void peer_output_open(struct peer *p, int fd, struct wire_buffer *first) {
    pthread_mutex_lock(&p->out_lock);
    p->master_fd = fd;
    if (first != NULL) {
        struct wire_buffer empty = p->out; // for want of a connection
        p->out = *first;
        *first = empty;
        send_output(p);
    }
    pthread_mutex_unlock(&p->out_lock);
}

int peer_output_close(struct peer *p) {
    pthread_mutex_lock(&p->out_lock);
    int fd = p->master_fd;
    p->master_fd = -1;
    p->out.length = p->out_sent = 0;
    pthread_mutex_unlock(&p->out_lock);
    return fd;
}

bool peer_output_flush(struct peer *p) {
    pthread_mutex_lock(&p->out_lock);
    flush_output(p);
    bool left = p->out.length != 0;
    pthread_mutex_unlock(&p->out_lock);
    return left;
}

void peer_output_name(struct peer *p, const struct wire_header *header) {
    pthread_mutex_lock(&p->out_lock);
    p->op_head = *header;
    pthread_mutex_unlock(&p->out_lock);
}

bool peer_output_lost(struct peer *p, struct lost_link *out, bool *refused) {
    pthread_mutex_lock(&p->out_lock);
    bool any = p->lost_count > 0;
    *refused = p->refused;
    p->refused = false;
    if (any) {
        *out = p->lost[0];
        memmove(p->lost, p->lost + 1, --p->lost_count * sizeof *p->lost);
    }
    pthread_mutex_unlock(&p->out_lock);
    return any;
}

void peer_output_forget_lost(struct peer *p) {
    pthread_mutex_lock(&p->out_lock);
    p->lost_count = 0;
    p->refused = false;
    pthread_mutex_unlock(&p->out_lock);
}

// ---- what the engine tells ----

static struct wire_header op_header(const struct peer *p, uint64_t group_epoch) {
    struct wire_header header = p->op_head;
    header.epoch = group_epoch;
    return header;
}

static void on_done(void *context, const struct wire_op_name *name) {
    struct peer *p = context;
    struct wire_op_done done = {.name = *name};
    pthread_mutex_lock(&p->out_lock);
    wire_encode_op_done(&p->out, op_header(p, name->epoch), &done);
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

static void on_mismatch(void *context, const struct wire_mismatch *mismatch) {
    struct peer *p = context;
    pthread_mutex_lock(&p->out_lock);
    wire_encode_mismatch(&p->out, op_header(p, mismatch->name.epoch), mismatch);
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

static void on_frozen(void *context, uint64_t group_epoch, const struct wire_report *report) {
    struct peer *p = context;
    pthread_mutex_lock(&p->out_lock);
    wire_encode_report(&p->out, op_header(p, group_epoch), report);
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

static void on_link_down(void *context, const struct wire_id *id, uint32_t index, bool silent) {
    struct peer *p = context;
    pthread_mutex_lock(&p->out_lock);
    if (p->lost_count == p->lost_capacity) {
        size_t capacity = p->lost_capacity ? 2 * p->lost_capacity : 16;
        struct lost_link *grown = realloc(p->lost, capacity * sizeof *grown);
        if (grown != NULL) {
            p->lost = grown;
            p->lost_capacity = capacity;
        }
    }
    if (p->lost_count < p->lost_capacity)
        p->lost[p->lost_count++] = (struct lost_link){.id = *id, .index = index, .silent = silent};
    else
        p->refused = true;
    pthread_mutex_unlock(&p->out_lock);
    wake_signal(p->wake);
}

static void on_synced(void *context, const struct wire_sync_done *done) {
    struct peer *p = context;
    pthread_mutex_lock(&p->lock);
    struct wire_header header = member_header(p->member);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_lock(&p->out_lock);
    wire_encode_sync_done(&p->out, header, done);
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

void peer_engine_failed(void *context) {
    struct peer *p = context;
    pthread_mutex_lock(&p->out_lock);
    p->refused = true;
    pthread_mutex_unlock(&p->out_lock);
    wake_signal(p->wake);
}

struct engine_callbacks peer_engine_callbacks(struct peer *p) {
    return (struct engine_callbacks){.context = p,
                                     .done = on_done,
                                     .mismatch = on_mismatch,
                                     .frozen = on_frozen,
                                     .link_down = on_link_down,
                                     .synced = on_synced,
                                     .failed = peer_engine_failed};
}
