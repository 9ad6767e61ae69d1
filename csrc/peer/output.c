#include "peer/output.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/platform.h"
#include "net/socket.h"

enum { MAX_WAITING_BYTES = 64 << 20 }; // a master that takes this long to read is as good as silent

void output_init(struct output *o, int wake) {
    *o = (struct output){.fd = -1, .wake = wake};
    pthread_mutex_init(&o->lock, NULL);
}

void output_fini(struct output *o) {
    conn_out_fini(&o->waiting);
    pthread_mutex_destroy(&o->lock);
}

// Lock held. Sends what the kernel takes. The control thread reads the end of a connection that broke.
static void flush(struct output *o) {
    if (o->fd < 0 || conn_out_flush(&o->waiting, o->fd) != 0) conn_out_clear(&o->waiting);
}

// Lock held. Sends what was just encoded into `waiting`.
static void send_waiting(struct output *o) {
    if (o->waiting.bytes.failed || o->waiting.bytes.length > MAX_WAITING_BYTES) {
        LOG(LOG_ERR, "the master does not take what is sent to it, or memory ran out: giving up on it");
        if (o->fd >= 0) shutdown(o->fd, SHUT_RDWR);
        conn_out_clear(&o->waiting);
        return;
    }
    flush(o);
    if (conn_out_waiting(&o->waiting) > 0) wake_signal(o->wake);
}

void output_send(struct output *o, const struct wire_buffer *frames) {
    if (frames->length == 0) return;
    pthread_mutex_lock(&o->lock);
    wire_buffer_append(&o->waiting.bytes, frames);
    send_waiting(o);
    pthread_mutex_unlock(&o->lock);
}

struct wire_header output_begin(struct output *o) {
    pthread_mutex_lock(&o->lock);
    return o->head;
}

void output_end(struct output *o) {
    send_waiting(o);
    pthread_mutex_unlock(&o->lock);
}

void output_name(struct output *o, const struct wire_header *header) {
    pthread_mutex_lock(&o->lock);
    o->head = *header;
    pthread_mutex_unlock(&o->lock);
}

void output_open(struct output *o, int fd, struct wire_buffer *first) {
    pthread_mutex_lock(&o->lock);
    o->fd = fd;
    if (first != NULL) {
        struct wire_buffer empty = o->waiting.bytes; // for want of a connection
        o->waiting.bytes = *first;
        *first = empty;
        send_waiting(o);
    }
    pthread_mutex_unlock(&o->lock);
}

int output_close(struct output *o) {
    pthread_mutex_lock(&o->lock);
    int fd = o->fd;
    o->fd = -1;
    conn_out_clear(&o->waiting);
    pthread_mutex_unlock(&o->lock);
    return fd;
}

bool output_flush(struct output *o) {
    pthread_mutex_lock(&o->lock);
    flush(o);
    bool left = conn_out_waiting(&o->waiting) > 0;
    pthread_mutex_unlock(&o->lock);
    return left;
}
