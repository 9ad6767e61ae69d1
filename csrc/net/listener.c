#include "net/listener.h"

#include <errno.h>
#include <sys/epoll.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "net/socket.h"

enum { PORT_TRIES = 16 }; // a port that is free at one address may be taken at another one

struct listener listener_closed(struct transport_context *context, int poller, uint64_t token, uint32_t pause_ms) {
    return (struct listener){
        .context = context, .fd = -1, .poller = poller, .token = token, .pause_ms = pause_ms, .resumes_ns = INT64_MAX};
}

static bool watch(const struct listener *listener, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.u64 = listener->token};
    return epoll_ctl(listener->poller, operation, listener->fd, &event) == 0;
}

int listener_open(struct listener *listener, int fd) {
    if (fd < 0) return fd;
    listener->fd = fd;
    if (watch(listener, EPOLL_CTL_ADD, EPOLLIN)) return 0;
    int error = errno;
    listener_close(listener);
    return -error;
}

static int open_at_port(struct listener *listeners, struct wire_address *addresses, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        addresses[i].port = addresses[0].port;
        int error = listener_open(&listeners[i], socket_listen(&addresses[i]));
        if (error != 0 && (i == 0 || (error != -EADDRNOTAVAIL && error != -EAFNOSUPPORT))) return error;
        if (i == 0 && !socket_local_address(listeners[0].fd, &addresses[0])) return -EIO;
    }
    return 0;
}

int listener_open_all(struct listener *listeners, struct wire_address *addresses, uint32_t count) {
    uint16_t port = addresses[0].port;
    int error = -EADDRINUSE;
    for (uint32_t i = 0; i < (port == 0 ? PORT_TRIES : 1) && error == -EADDRINUSE; i++) {
        addresses[0].port = port;
        error = open_at_port(listeners, addresses, count);
        for (uint32_t k = 0; k < count && error != 0; k++) listener_close(&listeners[k]);
    }
    return error;
}

void listener_close(struct listener *listener) {
    if (listener->fd < 0) return;
    epoll_ctl(listener->poller, EPOLL_CTL_DEL, listener->fd, NULL); // closing does not, while a child has it open
    descriptor_close(listener->fd);
    *listener = listener_closed(listener->context, listener->poller, listener->token, listener->pause_ms);
}

static bool is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

int listener_accept(struct listener *listener, struct transport **out, struct wire_address *from, int64_t now_ns) {
    int fd = socket_accept(listener->fd, from), error = fd < 0 ? -fd : 0;
    if (fd >= 0) {
        struct transport *(*make)(struct transport_context *, int, enum transport_role) =
            from->family == 0 ? transport_new_local : transport_new;
        *out = make(listener->context, fd, TRANSPORT_ACCEPTS);
        if (*out == NULL) error = ENOMEM;
    }
    if (is_shortage(error)) {
        watch(listener, EPOLL_CTL_MOD, 0);
        listener->resumes_ns = now_ns + listener->pause_ms * MS_NS;
    }
    return -error;
}

bool listener_pauses(const struct listener *listener) { return listener->resumes_ns != INT64_MAX; }

void listener_tick(struct listener *listener, int64_t now_ns) {
    if (now_ns < listener->resumes_ns) return;
    bool listens = watch(listener, EPOLL_CTL_MOD, EPOLLIN);
    listener->resumes_ns = listens ? INT64_MAX : now_ns + listener->pause_ms * MS_NS;
}
