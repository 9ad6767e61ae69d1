#include "net/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"

// A secret in a volume of Kubernetes belongs to root, and its group may read it: that of the container's user.
static const char *access_problem(const char *path, const struct stat *status, bool secret, size_t capacity) {
    static _Thread_local char text[PATH_MAX + 128];
    bool of_root = status->st_uid == 0;
    mode_t readers = S_IROTH | S_IXOTH | (of_root ? 0 : S_IRGRP), writers = S_IWGRP | S_IWOTH;
    if (!S_ISREG(status->st_mode)) return "it is not a regular file";
    if (!of_root && status->st_uid != geteuid())
        return "it belongs to another user: copy it, and give the copy mode 0600";
    bool reads = secret && (status->st_mode & (readers | writers)) != 0, writes = (status->st_mode & writers) != 0;
    if (!reads && !writes) return (size_t)status->st_size >= capacity ? "it is too long" : NULL;
    snprintf(text, sizeof text,
             reads ? "other users can read or write it: chmod 600 %s, and make new keys if somebody may have read it"
                   : "other users can write it: chmod go-w %s",
             path);
    return text;
}

const char *key_file_read(const char *path, bool secret, char *text, size_t capacity) {
    descriptor_begin();
    int fd = descriptor_end(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    text[0] = '\0';
    if (fd < 0) {
        errno = -fd;
        return strerror(errno);
    }
    struct stat status;
    const char *problem = fstat(fd, &status) != 0 ? strerror(errno) : access_problem(path, &status, secret, capacity);
    size_t length = 0;
    while (problem == NULL && length < capacity - 1) {
        ssize_t got = read(fd, text + length, capacity - 1 - length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) problem = strerror(errno);
        if (got <= 0) break;
        length += (size_t)got;
    }
    descriptor_close(fd);
    text[length] = '\0';
    if (problem == NULL && strlen(text) != length) problem = "it is no text: it contains a NUL byte";
    return problem;
}
