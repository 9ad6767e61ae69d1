#define _GNU_SOURCE
#include "device/door.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/descriptor.h"
#include "base/platform.h"

enum {
    CALLERS_MAX = 16,     // that have knocked and not said anything yet; an honest one does both at once
    TURN_MAX = 64,        // callers taken in at once, so that nobody keeps the thread from its work
    STRANGERS_MAX = 4096, // then the door stays shut
    BACKLOG = 1024,
};

struct door {
    int epoll, listener; // the listener is -1 when the door is shut for good
    void *tag;
    uint8_t name[DOOR_NAME_BYTES];
    uint32_t strangers;
    uint32_t count, turn;
    struct caller {
        int fd;
        struct memory_process process;
    } callers[CALLERS_MAX]; // the oldest first
};

static const char prefix[] = "pccl-";

// The namespace of such names is that of the network, as that of the links' addresses.
static socklen_t address_of(struct sockaddr_un *out, const uint8_t name[DOOR_NAME_BYTES]) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX}; // the first byte of the path is 0: abstract
    char *at = out->sun_path + 1;
    memcpy(at, prefix, sizeof prefix - 1);
    at += sizeof prefix - 1;
    static const char digits[] = "0123456789abcdef"; // the kernel prints names as they are, in /proc/net/unix
    for (int i = 0; i < DOOR_NAME_BYTES; i++) {
        *at++ = digits[name[i] >> 4];
        *at++ = digits[name[i] & 15];
    }
    return (socklen_t)(at - (char *)out);
}

static bool watch(const struct door *door, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = door->tag};
    return epoll_ctl(door->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

struct door *door_open(int epoll, void *tag) {
    struct door *door = calloc(1, sizeof *door);
    if (door == NULL) return NULL;
    door->epoll = epoll;
    door->tag = tag;
    door->listener = descriptor_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    struct sockaddr_un address;
    if (door->listener >= 0 && platform_random(door->name, sizeof door->name)) {
        socklen_t length = address_of(&address, door->name);
        if (bind(door->listener, (struct sockaddr *)&address, length) == 0 && listen(door->listener, BACKLOG) == 0 &&
            watch(door, door->listener))
            return door;
    }
    door_close(door);
    return NULL;
}

static void shut(struct door *door) {
    descriptor_close(door->listener);
    door->listener = -1;
}

// Ends with this caller, whose process was taken or is let go of here.
static void dismiss(struct door *door, uint32_t index) {
    descriptor_close(door->callers[index].fd);
    memory_process_close(&door->callers[index].process);
    memmove(door->callers + index, door->callers + index + 1, (--door->count - index) * sizeof door->callers[0]);
}

void door_close(struct door *door) {
    if (door == NULL) return;
    while (door->count > 0) dismiss(door, 0);
    shut(door);
    free(door);
}

const uint8_t *door_name(const struct door *door) { return door->name; }

// True: whoever has knocked is a process of our user, and is among the callers.
static bool let_in(struct door *door, int fd) {
    struct caller caller = {.fd = fd};
    if (!memory_process_of(fd, &caller.process)) return false;
    if (door->count == CALLERS_MAX) dismiss(door, 0);
    if (!watch(door, fd)) {
        memory_process_close(&caller.process);
        return false;
    }
    door->callers[door->count++] = caller;
    return true;
}

static void answer_knocks(struct door *door) {
    for (int i = 0; i < TURN_MAX && door->listener >= 0; i++) {
        int fd = descriptor_accept(door->listener, NULL, NULL);
        if (fd == -EAGAIN) return;
        if (fd == -EINTR || fd == -ECONNABORTED) continue;
        bool welcome = fd >= 0 && let_in(door, fd);
        if (!welcome) descriptor_close(fd);
        // Without descriptors the listener would stay readable, and the thread would spin.
        if (fd < 0 || (!welcome && ++door->strangers == STRANGERS_MAX)) shut(door);
    }
}

bool door_take(struct door *door, struct door_claim *out) {
    if (door->turn == 0) answer_knocks(door);
    while (door->turn < door->count) {
        struct caller *caller = &door->callers[door->turn];
        ssize_t got = descriptor_receive(caller->fd, out->bytes, sizeof out->bytes, &out->shared);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            door->turn++;
            continue;
        }
        out->length = got > 0 ? (size_t)got : 0;
        out->process = caller->process;
        if (got > 0) caller->process = (struct memory_process){.pidfd = -1};
        dismiss(door, door->turn);
        if (got > 0) return true;
        descriptor_close(out->shared);
    }
    door->turn = 0;
    return false;
}

bool door_knock(const uint8_t name[DOOR_NAME_BYTES], const void *claim, size_t length, int shared) {
    int fd = descriptor_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    struct sockaddr_un address;
    socklen_t address_length = address_of(&address, name);
    // What was sent stays to be read after the end, and so does the kernel's word who sent it.
    bool brought = connect(fd, (struct sockaddr *)&address, address_length) == 0 &&
                   descriptor_deliver(fd, claim, length, shared) == (ssize_t)length;
    descriptor_close(fd);
    return brought;
}
