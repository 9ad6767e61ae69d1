#define _GNU_SOURCE
#include "device/memory.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/environment.h"

bool memory_is_wanted(void) { return environment_allows("PCCL_SAME_HOST_MEMORY"); }

// ---- processes ----
bool memory_process_of(int fd, struct memory_process *out) {
    struct ucred who;
    socklen_t length = sizeof who;
    *out = (struct memory_process){.pidfd = -1};
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 || who.pid <= 0 || who.uid != geteuid())
        return false;
    int pidfd = descriptor_peer_process(fd, who.pid);
    if (pidfd < 0 && pidfd != -ENOSYS && pidfd != -EPERM) return false;
    *out = (struct memory_process){who.pid, pidfd < 0 ? -1 : pidfd};
    return true;
}

void memory_process_close(struct memory_process *process) {
    if (process->pid != 0) descriptor_close(process->pidfd);
    *process = (struct memory_process){.pidfd = -1};
}

bool memory_process_lives(const struct memory_process *process) {
    struct pollfd polled = {.fd = process->pidfd, .events = POLLIN};
    return process->pidfd < 0 || poll(&polled, 1, 0) == 0;
}

bool memory_process_permits(const struct memory_process *process) {
    char byte;
    struct iovec local = {&byte, 1}, remote = {NULL, 1};
    // The kernel looks at the permission first. Nothing lies at address 0.
    return process_vm_readv(process->pid, &local, 1, &remote, 1, 0) == 1 || errno == EFAULT;
}

// ---- bytes ----
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
    // The kernel writes to its own side of this call as to any buffer, also where a driver has mapped memory that it
    // would not write to for another process, as page-locked memory may be.
    struct iovec to = {at, 1}, from = {&value, 1};
    // forbidden altogether: it tells nothing
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno != EFAULT;
}

bool memory_can_be_written(void *bytes, size_t length) {
    uint8_t *at = bytes;
    return length == 0 || (write_back(at) && write_back(at + length - 1));
}
