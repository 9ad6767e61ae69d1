#define _GNU_SOURCE
#include "base/log_output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/descriptor.h"

enum { REPORT_BYTES = 128, TIME_BYTES = 23 }; // a line begins with its time

static atomic_uint_least32_t dropped; // not reported yet
static atomic_bool cut;               // a terminal took the beginning of a line only

static bool is_refused(ssize_t wrote) {
    return wrote < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL);
}

// Another open file of the same pipe or terminal, with flags of its own. It is closed at once: a copy that stayed open
// would keep the reader from seeing the end of the pipe.
static ssize_t write_reopened(const char *bytes, size_t length) {
    descriptor_begin();
    int fd = descriptor_end(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (fd >= 0) {
        ssize_t wrote = write(fd, bytes, length);
        int error = errno;
        descriptor_close(fd);
        errno = error;
        return wrote;
    }
    // The pipe or terminal is another user's. Only other writers of it could take the room between these two calls.
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0) return write(STDERR_FILENO, bytes, length);
    errno = EAGAIN;
    return -1;
}

static ssize_t write_now(const char *bytes, size_t length) {
    struct stat file;
    if (fstat(STDERR_FILENO, &file) != 0) return -1;
    if (S_ISSOCK(file.st_mode)) return send(STDERR_FILENO, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (S_ISFIFO(file.st_mode)) {
        struct iovec all = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
        ssize_t wrote = pwritev2(STDERR_FILENO, &all, 1, -1, RWF_NOWAIT); // Linux 6.4
        return is_refused(wrote) ? write_reopened(bytes, length) : wrote;
    }
    if (S_ISCHR(file.st_mode) && isatty(STDERR_FILENO)) return write_reopened(bytes, length);
    return write(STDERR_FILENO, bytes, length);
}

void log_output(const char *line, size_t length) {
    char all[REPORT_BYTES + LOG_LINE_BYTES];
    uint_least32_t lost = atomic_exchange(&dropped, 0);
    int at = 0;
    if (lost > 0)
        at =
            snprintf(all, REPORT_BYTES, "%s%.*s pccl WARN [%d] log: %u log lines dropped: standard error had no room\n",
                     atomic_exchange(&cut, false) ? "\n" : "", TIME_BYTES, line, (int)getpid(), (unsigned)lost);
    memcpy(all + at, line, length);
    size_t total = (size_t)at + length;
    ssize_t wrote = write_now(all, total);
    if (wrote == (ssize_t)total) return;
    if (wrote > 0) atomic_store(&cut, true);
    atomic_fetch_add(&dropped, lost + 1);
}
