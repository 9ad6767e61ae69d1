#define _GNU_SOURCE
#include "base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

enum { WORD_BITS = 64 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int watch_error;
// of the rest; a leaf, and nothing under it allocates: allocators have fork handlers, too
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t ours[DESCRIPTORS_MAX / WORD_BITS];
static int word_count; // words from here on are 0
static atomic_uint_fast32_t forks;

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void in_parent(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
    for (int i = 0; i < word_count; i++) {
        for (; ours[i] != 0; ours[i] &= ours[i] - 1) close(i * WORD_BITS + __builtin_ctzll(ours[i]));
    }
    word_count = 0;
    atomic_fetch_add(&forks, 1);
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void) { watch_error = pthread_atfork(before_fork, in_parent, in_child); }

void descriptor_begin(void) {
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
}

// Moves a new descriptor above those of the standard streams. The program may have closed these, and whatever still
// writes to them must not write into a connection. Returns -1, with errno set, if the system refuses.
static int above_standard_streams(int opened) {
    int moved = fcntl(opened, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(opened);
    errno = error;
    return moved;
}

int descriptor_end(int opened) {
    if (opened >= 0 && opened <= STDERR_FILENO) opened = above_standard_streams(opened);
    int error = opened < 0 ? errno : opened >= DESCRIPTORS_MAX ? EMFILE : watch_error;
    if (error == 0) {
        int word = opened / WORD_BITS;
        ours[word] |= UINT64_C(1) << opened % WORD_BITS;
        if (word >= word_count) word_count = word + 1;
    } else if (opened >= 0) {
        close(opened);
    }
    pthread_mutex_unlock(&lock);
    return error == 0 ? opened : -error;
}

int descriptor_socket(int family, int type, int protocol) {
    descriptor_begin();
    return descriptor_end(socket(family, type | SOCK_CLOEXEC, protocol));
}

int descriptor_accept(int listener, struct sockaddr *from, socklen_t *length) {
    descriptor_begin();
    return descriptor_end(accept4(listener, from, length, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

int descriptor_epoll(void) {
    descriptor_begin();
    return descriptor_end(epoll_create1(EPOLL_CLOEXEC));
}

// Room for one descriptor: the kernel closes those that are too many.
union with_descriptor {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
};

ssize_t descriptor_receive(int socket, void *bytes, size_t room, int *shared) {
    union with_descriptor control;
    struct iovec part = {bytes, room};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof(int))};
    *shared = -1;
    descriptor_begin();
    ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    int error = errno;
    const struct cmsghdr *with = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (with != NULL && with->cmsg_level == SOL_SOCKET && with->cmsg_type == SCM_RIGHTS &&
        with->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(shared, CMSG_DATA(with), sizeof *shared);
    errno = EBADF; // none came
    *shared = descriptor_end(*shared);
    errno = error;
    return got;
}

ssize_t descriptor_deliver(int socket, const void *bytes, size_t length, int shared) {
    union with_descriptor control = {.head = {
                                         .cmsg_level = SOL_SOCKET,
                                         .cmsg_type = SCM_RIGHTS,
                                         .cmsg_len = CMSG_LEN(sizeof shared),
                                     }};
    struct iovec part = {(void *)(uintptr_t)bytes, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (shared >= 0) {
        memcpy(CMSG_DATA(&control.head), &shared, sizeof shared);
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void descriptor_close(int fd) {
    if (fd < 0) return;
    pthread_mutex_lock(&lock);
    if (fd < DESCRIPTORS_MAX) ours[fd / WORD_BITS] &= ~(UINT64_C(1) << fd % WORD_BITS);
    shutdown(fd, SHUT_RDWR); // refused for what is no socket
    close(fd);
    pthread_mutex_unlock(&lock);
}

uint64_t descriptor_limit(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

uint32_t descriptor_forks(void) { return (uint32_t)atomic_load(&forks); }
