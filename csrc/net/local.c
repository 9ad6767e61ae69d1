#define _GNU_SOURCE
#include "net/local.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "net/socket.h"

enum { BACKLOG = 64 };

// The first byte of the path is 0: abstract.
static socklen_t name_of(struct sockaddr_un *out, uint16_t port) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "pccl-master-%u", port);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

int local_listen(uint16_t port) {
    struct sockaddr_un name;
    socklen_t length = name_of(&name, port);
    int fd = descriptor_socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0 || (bind(fd, (struct sockaddr *)&name, length) == 0 && listen(fd, BACKLOG) == 0)) return fd;
    int error = errno;
    descriptor_close(fd);
    return -error;
}

// Only addresses of this host can be bound.
static bool is_of_host(const struct wire_address *address) {
    struct wire_address any_port = *address;
    struct sockaddr_storage to;
    any_port.port = 0;
    socklen_t length = socket_address_to_sockaddr(&to, &any_port);
    int fd = descriptor_socket(to.ss_family, SOCK_DGRAM, 0);
    bool own = fd >= 0 && bind(fd, (struct sockaddr *)&to, length) == 0;
    descriptor_close(fd);
    return own;
}

int local_dial(const struct wire_address *master) {
    struct sockaddr_un name;
    socklen_t length = name_of(&name, master->port);
    if (!is_of_host(master)) return -EHOSTUNREACH;
    int fd = descriptor_socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0) return fd;
    int error = connect(fd, (struct sockaddr *)&name, length) != 0 ? errno : socket_is_of_user(fd) ? 0 : EACCES;
    if (error == 0) return fd;
    descriptor_close(fd);
    return -error;
}
