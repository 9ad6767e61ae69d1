#define _GNU_SOURCE
#define LOG_COMPONENT "security"
#include "net/rendezvous.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/platform.h"
#include "net/socket.h"

enum {
    CALLERS_MAX = 16,     // that have connected and sent nothing yet; an honest one does both at once
    TURN_MAX = 64,        // callers taken in at once, so that nobody keeps the thread from its work
    STRANGERS_MAX = 1024, // in a second; then nobody is taken in for a second
    PAUSE_MS = 1000,
    BACKLOG = 1024,
    MASTER_BACKLOG = 64,
};

// ---- the sockets of a master ----

// A socket that listens or has connected there, or -errno. The first byte of the path is 0: abstract.
static int master_socket(const struct wire_address *master, bool listens) {
    char address[64];
    socket_address_format(address, sizeof address, master);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int bytes = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "pccl-master-%s", address);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
    int fd = descriptor_socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0) return fd;
    int result = (listens ? bind : connect)(fd, (struct sockaddr *)&name, length);
    if (result == 0 && listens) result = listen(fd, MASTER_BACKLOG);
    int error = result != 0 ? errno : listens || socket_is_of_user(fd) ? 0 : EACCES;
    if (error == 0) return fd;
    descriptor_close(fd);
    return -error;
}

int rendezvous_listen_master(const struct wire_address *master) { return master_socket(master, true); }

int rendezvous_dial_master(const struct wire_address *master) {
    struct wire_address at = *master;
    bool any = socket_address_is_any(master);
    if (any) at.bytes[at.family == 6 ? 15 : 3] = 1; // the kernel takes loopback
    if (any && at.family == 4) at.bytes[0] = 127;
    int fd = master_socket(&at, false);
    if (fd >= 0 || !socket_address_is_within_host(&at)) return fd;
    // The master may listen at a wildcard; that of IPv6 takes IPv4, too.
    memset(at.bytes, 0, sizeof at.bytes);
    for (; fd < 0 && at.family <= 6; at.family = (uint8_t)(at.family + 2)) fd = master_socket(&at, false);
    return fd;
}

// ---- the socket of an engine ----

struct rendezvous {
    int epoll, listener;
    void *tag;
    uint8_t name[RENDEZVOUS_NAME_BYTES];
    uint32_t strangers;           // since `since_ns`
    int64_t since_ns, resumes_ns; // INT64_MAX: it listens
    struct log_limit log;
    uint32_t count, turn;
    int callers[CALLERS_MAX]; // connections, the oldest first
};

// The namespace of such names is that of the network, as that of the links' addresses.
static socklen_t address_of(struct sockaddr_un *out, const uint8_t name[RENDEZVOUS_NAME_BYTES]) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX}; // the first byte of the path is 0: abstract
    char *at = mempcpy(out->sun_path + 1, "pccl-", 5);
    // Digits, since the kernel prints names as they are, in /proc/net/unix.
    for (int i = 0; i < RENDEZVOUS_NAME_BYTES; i++, at += 2) snprintf(at, 3, "%02x", name[i]);
    return (socklen_t)(at - (char *)out);
}

static bool watch(const struct rendezvous *rendezvous, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = rendezvous->tag};
    return epoll_ctl(rendezvous->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

struct rendezvous *rendezvous_open(int epoll, void *tag) {
    struct rendezvous *rendezvous = calloc(1, sizeof *rendezvous);
    if (rendezvous == NULL) return NULL;
    *rendezvous =
        (struct rendezvous){.epoll = epoll, .tag = tag, .resumes_ns = INT64_MAX, .log = {.lines = 1, .seconds = 60}};
    rendezvous->listener = descriptor_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    struct sockaddr_un address;
    if (rendezvous->listener >= 0 && platform_random(rendezvous->name, sizeof rendezvous->name)) {
        socklen_t length = address_of(&address, rendezvous->name);
        if (bind(rendezvous->listener, (struct sockaddr *)&address, length) == 0 &&
            listen(rendezvous->listener, BACKLOG) == 0 && watch(rendezvous, rendezvous->listener))
            return rendezvous;
    }
    rendezvous_close(rendezvous);
    return NULL;
}

static void dismiss(struct rendezvous *rendezvous, uint32_t index) {
    descriptor_close(rendezvous->callers[index]);
    memmove(rendezvous->callers + index, rendezvous->callers + index + 1,
            (--rendezvous->count - index) * sizeof rendezvous->callers[0]);
}

void rendezvous_close(struct rendezvous *rendezvous) {
    if (rendezvous == NULL) return;
    while (rendezvous->count > 0) dismiss(rendezvous, 0);
    descriptor_close(rendezvous->listener);
    free(rendezvous);
}

const uint8_t *rendezvous_name(const struct rendezvous *rendezvous) { return rendezvous->name; }

// Returns true if the process that has connected belongs to our user; it is among the callers then.
static bool let_in(struct rendezvous *rendezvous, int fd) {
    if (!socket_is_of_user(fd)) return false;
    if (rendezvous->count == CALLERS_MAX) dismiss(rendezvous, 0);
    if (!watch(rendezvous, fd)) return false;
    rendezvous->callers[rendezvous->count++] = fd;
    return true;
}

static bool listen_again(struct rendezvous *rendezvous, bool listens) {
    struct epoll_event event = {.events = listens ? EPOLLIN : 0, .data.ptr = rendezvous->tag};
    return epoll_ctl(rendezvous->epoll, EPOLL_CTL_MOD, rendezvous->listener, &event) == 0;
}

// Counts a connection of another user, or an error: without descriptors the listener would stay readable, and the
// thread would spin.
static void count_stranger(struct rendezvous *rendezvous, int fd) {
    int64_t now_ns = platform_now_ns();
    if (now_ns - rendezvous->since_ns > PAUSE_MS * MS_NS) rendezvous->strangers = 0;
    if (rendezvous->strangers == 0) rendezvous->since_ns = now_ns;
    if (fd >= 0 && ++rendezvous->strangers < STRANGERS_MAX) return;
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t length = sizeof who;
    if (fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0)
        LOG_LIMITED(&rendezvous->log, LOG_WARN,
                    "the user with id %u floods this process with connections to its socket for same-host memory; it "
                    "takes none for 1 s each time, and peers that it cannot reach use TCP until then",
                    who.uid);
    rendezvous->strangers = 0;
    if (listen_again(rendezvous, false)) rendezvous->resumes_ns = now_ns + PAUSE_MS * MS_NS;
}

int64_t rendezvous_tick(struct rendezvous *rendezvous) {
    if (rendezvous->resumes_ns == INT64_MAX) return INT64_MAX;
    int64_t now_ns = platform_now_ns();
    if (now_ns >= rendezvous->resumes_ns)
        rendezvous->resumes_ns = listen_again(rendezvous, true) ? INT64_MAX : now_ns + PAUSE_MS * MS_NS;
    return rendezvous->resumes_ns;
}

static void accept_callers(struct rendezvous *rendezvous) {
    for (int i = 0; i < TURN_MAX && rendezvous->resumes_ns == INT64_MAX; i++) {
        int fd = descriptor_accept(rendezvous->listener, NULL, NULL);
        if (fd == -EAGAIN) return;
        if (fd == -EINTR || fd == -ECONNABORTED) continue;
        if (fd >= 0 && let_in(rendezvous, fd)) continue;
        count_stranger(rendezvous, fd);
        descriptor_close(fd);
    }
}

bool rendezvous_take(struct rendezvous *rendezvous, struct rendezvous_claim *out) {
    if (rendezvous->turn == 0) accept_callers(rendezvous);
    while (rendezvous->turn < rendezvous->count) {
        int caller = rendezvous->callers[rendezvous->turn];
        ssize_t got = descriptor_receive(caller, out->bytes, sizeof out->bytes, &out->shared);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            rendezvous->turn++;
            continue;
        }
        out->length = got > 0 ? (size_t)got : 0;
        dismiss(rendezvous, rendezvous->turn);
        if (got > 0) return true;
        descriptor_close(out->shared);
    }
    rendezvous->turn = 0;
    return false;
}

int rendezvous_send(const uint8_t name[RENDEZVOUS_NAME_BYTES], const void *claim, size_t length, int shared) {
    int fd = descriptor_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    if (fd < 0) return fd;
    struct sockaddr_un address;
    socklen_t address_length = address_of(&address, name);
    // The sent bytes stay readable after the end, and the kernel still tells who sent them.
    bool brought = connect(fd, (struct sockaddr *)&address, address_length) == 0 &&
                   descriptor_deliver(fd, claim, length, shared) == (ssize_t)length;
    int error = brought ? 0 : errno != 0 ? -errno : -EIO;
    descriptor_close(fd);
    return error;
}
