#define _GNU_SOURCE
#include "data/memory.h"

#include <errno.h>
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "net/socket.h"

enum { NETLINK_BYTES = 32 * 1024,
       SECRET_BYTES = 16 };

static uint8_t secret[SECRET_BYTES];
static bool have_secret;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_secret(void) { have_secret = platform_random(secret, sizeof secret); }

void memory_offer(uint8_t out[MEMORY_OFFER_BYTES]) {
    pthread_once(&once, make_secret);
    uint64_t pid = (uint64_t)getpid(), at = (uint64_t)(uintptr_t)secret;
    memset(out, 0, MEMORY_OFFER_BYTES);
    if (!have_secret) return;
    memcpy(out, &pid, 8);
    memcpy(out + 8, &at, 8);
    memcpy(out + 16, secret, SECRET_BYTES);
}

bool memory_read(pid_t process, void *to, uint64_t from, size_t length) {
    while (length > 0) {
        struct iovec local = {to, length}, remote = {(void *)(uintptr_t)from, length};
        ssize_t got = process_vm_readv(process, &local, 1, &remote, 1, 0);
        if (got <= 0) return false;
        to = (uint8_t *)to + got;
        from += (uint64_t)got;
        length -= (size_t)got;
    }
    return true;
}

bool memory_can_be_read(const void *bytes, size_t length) {
    uint8_t ends[2];
    if (length == 0) return true;
    uint64_t at = (uint64_t)(uintptr_t)bytes;
    return memory_read(getpid(), &ends[0], at, 1) && memory_read(getpid(), &ends[1], at + length - 1, 1);
}

static bool write_back(uint8_t *at) {
    uint8_t value = *at;
    struct iovec from = {&value, 1}, to = {at, 1};
    return process_vm_writev(getpid(), &from, 1, &to, 1, 0) == 1 || errno != EFAULT; // forbidden altogether: it tells nothing
}

bool memory_can_be_written(void *bytes, size_t length) {
    uint8_t *at = bytes;
    return length == 0 || (write_back(at) && write_back(at + length - 1));
}

// Looks for a queueing discipline on the loopback device. An answer that cannot be had counts as one.
static bool answer_shapes(const uint8_t *bytes, size_t length, int device, bool *done) {
    for (const struct nlmsghdr *message = (const struct nlmsghdr *)(const void *)bytes; NLMSG_OK(message, length);
         message = NLMSG_NEXT(message, length)) {
        if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR) {
            *done = true;
            return message->nlmsg_type == NLMSG_ERROR;
        }
        const struct tcmsg *discipline = NLMSG_DATA(message);
        if (message->nlmsg_type != RTM_NEWQDISC || discipline->tcm_ifindex != device) continue;
        int rest = (int)NLMSG_PAYLOAD(message, sizeof *discipline);
        for (const struct rtattr *at = (const struct rtattr *)(const void *)((const char *)discipline + NLMSG_ALIGN(sizeof *discipline));
             RTA_OK(at, rest); at = RTA_NEXT(at, rest))
            if (at->rta_type == TCA_KIND && strcmp(RTA_DATA(at), "noqueue") != 0) return true;
    }
    return false;
}

static bool loopback_is_shaped(void) {
    int device = (int)if_nametoindex("lo");
    int fd = descriptor_socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    uint8_t *bytes = malloc(NETLINK_BYTES);
    bool shaped = true;
    if (device > 0 && fd >= 0 && bytes != NULL) {
        struct {
            struct nlmsghdr header;
            struct tcmsg body;
        } ask = {.header = {.nlmsg_len = sizeof ask, .nlmsg_type = RTM_GETQDISC, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
                 .body = {.tcm_family = AF_UNSPEC}};
        bool done = false;
        shaped = send(fd, &ask, sizeof ask, 0) != (ssize_t)sizeof ask;
        while (!shaped && !done) {
            ssize_t got = recv(fd, bytes, NETLINK_BYTES, 0); // the kernel answers within the call
            shaped = got <= 0 || answer_shapes(bytes, (size_t)got, device, &done);
        }
    }
    descriptor_close(fd);
    free(bytes);
    return shaped;
}

static bool same_host(int fd) {
    struct wire_address local, remote;
    if (!socket_local_address(fd, &local) || !socket_remote_address(fd, &remote)) return false;
    return local.family == remote.family && memcmp(local.bytes, remote.bytes, sizeof local.bytes) == 0;
}

pid_t memory_accept(int fd, const uint8_t offer[MEMORY_OFFER_BYTES]) {
    const char *wanted = getenv("PCCL_SAME_HOST_MEMORY");
    if (wanted != NULL && strcmp(wanted, "0") == 0) return 0;
    uint64_t pid, at;
    memcpy(&pid, offer, 8);
    memcpy(&at, offer + 8, 8);
    uint8_t seen[SECRET_BYTES];
    if (pid == 0 || pid > INT32_MAX || !same_host(fd)) return 0;
    if (!memory_read((pid_t)pid, seen, at, sizeof seen) || memcmp(seen, offer + 16, sizeof seen) != 0) return 0;
    return loopback_is_shaped() ? 0 : (pid_t)pid;
}
