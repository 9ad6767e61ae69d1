#define _GNU_SOURCE
#include "net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/descriptor.h"

enum {
    BACKLOG = 1024,
    KEEPALIVE_IDLE_S = 10,
    KEEPALIVE_INTERVAL_S = 3,
    KEEPALIVE_PROBES = 3,
    CONGESTION_BYTES = 17, // a name and a zero
    // unacknowledged data on a half-open link; heartbeats are faster, this is the net below them
    USER_TIMEOUT_MS = 20000,
};

bool socket_address_from_sockaddr(struct wire_address *out, const struct sockaddr *in) {
    struct wire_address address = {0};
    if (in->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)in;
        address.family = 4;
        memcpy(address.bytes, &v4->sin_addr, 4);
        address.port = ntohs(v4->sin_port);
    } else if (in->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)in;
        address.family = 6;
        address.port = ntohs(v6->sin6_port);
        memcpy(address.bytes, &v6->sin6_addr, 16);
    } else {
        return false;
    }
    *out = socket_address_unmapped(address);
    return true;
}

socklen_t socket_address_to_sockaddr(struct sockaddr_storage *out, const struct wire_address *in) {
    memset(out, 0, sizeof *out);
    if (in->family == 6) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)out;
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(in->port);
        memcpy(&v6->sin6_addr, in->bytes, 16);
        return sizeof *v6;
    }
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)out;
    v4->sin_family = AF_INET;
    v4->sin_port = htons(in->port);
    memcpy(&v4->sin_addr, in->bytes, 4);
    return sizeof *v4;
}

struct wire_address socket_address_unmapped(struct wire_address address) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    struct wire_address plain = {.family = 4, .port = address.port};
    if (address.family != 6 || memcmp(address.bytes, mapped, sizeof mapped) != 0) return address;
    memcpy(plain.bytes, address.bytes + sizeof mapped, 4);
    return plain;
}

bool socket_address_is_loopback(const struct wire_address *address) {
    static const uint8_t v6_loopback[16] = {[15] = 1};
    struct wire_address plain = socket_address_unmapped(*address);
    return plain.family == 6 ? memcmp(plain.bytes, v6_loopback, sizeof v6_loopback) == 0 : plain.bytes[0] == 127;
}

uint64_t socket_address_network(const struct wire_address *address) {
    uint64_t network;
    memcpy(&network, address->bytes, sizeof network); // the bytes behind an IPv4 address are 0
    return (network * UINT64_C(0x9E3779B97F4A7C15)) >> 32;
}

bool socket_address_is_any(const struct wire_address *address) {
    static const uint8_t zero[16];
    struct wire_address plain = socket_address_unmapped(*address);
    return memcmp(plain.bytes, zero, plain.family == 6 ? 16 : 4) == 0;
}

const char *socket_address_format(char *out, size_t capacity, const struct wire_address *address) {
    char host[INET6_ADDRSTRLEN] = "?";
    inet_ntop(address->family == 6 ? AF_INET6 : AF_INET, address->bytes, host, sizeof host);
    snprintf(out, capacity, address->family == 6 ? "[%s]:%u" : "%s:%u", host, address->port);
    return out;
}

static void set_option(int fd, int level, int option, int value) {
    // Refused options cost speed, never correctness.
    setsockopt(fd, level, option, &value, sizeof value);
}

static void set_connection_options(int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
}

static int open_socket(const struct wire_address *address) {
    int family = address->family == 6 ? AF_INET6 : AF_INET;
    return descriptor_socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
}

// ---- congestion control ----
// Reno, which every system has and every user may choose: loopback loses nothing, and an algorithm that paces (BBR)
// doubles what a byte costs there.
static const char within_host[] = "reno";

// Algorithms that mark the packets of a handshake. A listener without them would refuse such connections.
static const char *const needs_marks[] = {"dctcp", "prague"};

bool socket_congestion(int fd, char *out, size_t capacity) {
    socklen_t length = (socklen_t)capacity - 1;
    memset(out, 0, capacity);
    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, out, &length) == 0;
}

static bool set_congestion(int fd, const char *name) {
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

static void read_allowed(char *out, size_t capacity) {
    descriptor_begin();
    int fd = descriptor_end(open("/proc/sys/net/ipv4/tcp_allowed_congestion_control", O_RDONLY | O_CLOEXEC));
    ssize_t got = fd < 0 ? -1 : read(fd, out, capacity - 1);
    descriptor_close(fd);
    out[got < 0 ? 0 : got] = 0;
    out[strcspn(out, "\n")] = 0;
}

bool socket_may_choose(const char *name, char *allowed, size_t capacity) {
    int fd = descriptor_socket(AF_INET, SOCK_STREAM, 0);
    bool may = strlen(name) < CONGESTION_BYTES && fd >= 0 && set_congestion(fd, name);
    descriptor_close(fd);
    if (!may) read_allowed(allowed, capacity);
    return may;
}

void socket_apply_congestion(int fd, const char *name) {
    if (!socket_within_host(fd)) set_congestion(fd, name);
}

bool socket_within_host(int fd) {
    struct wire_address local, remote;
    if (!socket_local_address(fd, &local) || !socket_remote_address(fd, &remote)) return false;
    if (local.family != remote.family) return false;
    return socket_address_same_host(&local, &remote) ||
           (socket_address_is_loopback(&local) && socket_address_is_loopback(&remote));
}

// Connecting a datagram socket asks the routes and sends nothing.
bool socket_address_is_within_host(const struct wire_address *address) {
    if (socket_address_is_loopback(address)) return true;
    struct sockaddr_storage to;
    socklen_t length = socket_address_to_sockaddr(&to, address);
    int fd = descriptor_socket(to.ss_family, SOCK_DGRAM, 0);
    bool within = fd >= 0 && connect(fd, (struct sockaddr *)&to, length) == 0 && socket_within_host(fd);
    descriptor_close(fd);
    return within;
}

// Accepted connections begin with the listener's algorithm, and pacing once begun does not end: so the listener has
// Reno, and a connection from another host gets back what the system, or the route to that host, chooses.
static void choose_for_listener(int fd) {
    char chosen[CONGESTION_BYTES];
    if (!socket_congestion(fd, chosen, sizeof chosen)) return;
    for (size_t i = 0; i < sizeof needs_marks / sizeof needs_marks[0]; i++)
        if (strcmp(chosen, needs_marks[i]) == 0) return;
    set_congestion(fd, within_host);
}

static void choose_for_accepted(int fd) {
    char has[CONGESTION_BYTES], chosen[CONGESTION_BYTES];
    if (!socket_congestion(fd, has, sizeof has)) return;
    if (socket_within_host(fd)) {
        if (strcmp(has, within_host) != 0) set_congestion(fd, within_host);
        return;
    }
    if (strcmp(has, within_host) != 0) return; // by the route
    int fresh = descriptor_socket(AF_INET, SOCK_STREAM, 0);
    if (fresh >= 0 && socket_congestion(fresh, chosen, sizeof chosen) && strcmp(chosen, has) != 0)
        set_congestion(fd, chosen);
    descriptor_close(fresh);
}

// ---- connections ----

static int give_up(int fd, int error) {
    descriptor_close(fd);
    return -error;
}

int socket_listen(const struct wire_address *address) {
    int fd = open_socket(address);
    if (fd < 0) return fd;
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    choose_for_listener(fd);
    if (address->family == 6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, !socket_address_is_any(address));
    struct sockaddr_storage to;
    socklen_t length = socket_address_to_sockaddr(&to, address);
    return bind(fd, (struct sockaddr *)&to, length) == 0 && listen(fd, BACKLOG) == 0 ? fd : give_up(fd, errno);
}

int socket_listen_from(const struct wire_address *address, uint16_t first, uint16_t *port) {
    struct wire_address attempt = *address;
    for (uint32_t candidate = first; candidate <= UINT16_MAX; candidate++) {
        attempt.port = (uint16_t)candidate;
        int fd = socket_listen(&attempt);
        if (fd >= 0) *port = attempt.port;
        if (fd != -EADDRINUSE) return fd;
    }
    attempt.port = 0;
    int fd = socket_listen(&attempt);
    struct wire_address bound;
    if (fd >= 0 && socket_local_address(fd, &bound)) *port = bound.port;
    return fd;
}

bool socket_is_of_user(int fd) {
    struct ucred who;
    socklen_t length = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.uid == geteuid();
}

int socket_accept(int listener, struct wire_address *from) {
    struct sockaddr_storage source;
    socklen_t length = sizeof source;
    int fd = descriptor_accept(listener, (struct sockaddr *)&source, &length);
    if (fd < 0) return fd;
    if (source.ss_family == AF_UNIX && socket_is_of_user(fd)) {
        *from = (struct wire_address){0};
        return fd;
    }
    if (!socket_address_from_sockaddr(from, (struct sockaddr *)&source)) return give_up(fd, EAFNOSUPPORT);
    set_connection_options(fd);
    choose_for_accepted(fd);
    return fd;
}

// Without the right to choose a device, the routes of the system decide.
static bool bind_to_card(int fd, const struct card *card) {
    struct sockaddr_storage from;
    socklen_t length = socket_address_to_sockaddr(&from, &card->address);
    if (card->device[0] != 0)
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, card->device, (socklen_t)strlen(card->device));
    set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    return bind(fd, (struct sockaddr *)&from, length) == 0;
}

int socket_dial_from(const struct card *card, const struct wire_address *address) {
    int fd = open_socket(address);
    if (fd < 0) return fd;
    set_connection_options(fd);
    bool within = socket_address_is_within_host(address);
    if (within) set_congestion(fd, within_host);
    if (card != NULL && !within && (card->address.family != address->family || !bind_to_card(fd, card)))
        return give_up(fd, card->address.family != address->family ? EAFNOSUPPORT : errno);
    struct sockaddr_storage to;
    socklen_t length = socket_address_to_sockaddr(&to, address);
    return connect(fd, (struct sockaddr *)&to, length) == 0 || errno == EINPROGRESS ? fd : give_up(fd, errno);
}

int socket_connect_result(int fd) {
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return -errno;
    if (error != 0) return -error;
    struct wire_address local, remote;
    struct sockaddr_storage end;
    length = sizeof end;
    if (getpeername(fd, (struct sockaddr *)&end, &length) != 0) return -EINPROGRESS;
    // A dial to a port of this host where nobody listens can meet itself when the kernel picks that port as its source.
    if (socket_remote_address(fd, &remote) && socket_local_address(fd, &local) &&
        memcmp(&local, &remote, sizeof local) == 0)
        return -ECONNREFUSED;
    return 0;
}

typedef int name_fn(int fd, struct sockaddr *out, socklen_t *length);

static bool address_of(int fd, name_fn *end, struct wire_address *out) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    return end(fd, (struct sockaddr *)&address, &length) == 0 &&
           socket_address_from_sockaddr(out, (struct sockaddr *)&address);
}

bool socket_local_address(int fd, struct wire_address *out) { return address_of(fd, getsockname, out); }

bool socket_remote_address(int fd, struct wire_address *out) { return address_of(fd, getpeername, out); }

bool socket_has_ended(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLRDHUP};
    return poll(&polled, 1, 0) != 0;
}

bool socket_address_parse(const char *text, size_t length, struct wire_address *out) {
    char copy[80];
    if (length >= sizeof copy || memchr(text, 0, length) != NULL) return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    char *colon = strrchr(copy, ':'), *host = copy, *end;
    if (colon == NULL || colon[1] < '0' || colon[1] > '9') return false;
    *colon = 0;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (*end != 0 || port < 1 || port > UINT16_MAX) return false;
    struct wire_address found = {.family = 4, .port = (uint16_t)port};
    size_t width = strlen(host);
    bool bracketed = width >= 2 && host[0] == '[' && host[width - 1] == ']';
    if (bracketed) {
        host[width - 1] = 0;
        found.family = 6;
    }
    if (inet_pton(bracketed ? AF_INET6 : AF_INET, bracketed ? host + 1 : host, found.bytes) != 1) return false;
    *out = found;
    return true;
}

const char *socket_address_look_up(const char *text, struct wire_address *out) {
    struct wire_address numbers;
    static const char form[] = "it is no host and port, such as relay.example.org:48150";
    char host[NI_MAXHOST];
    if (socket_address_parse(text, strlen(text), out == NULL ? &numbers : out)) return NULL;
    const char *colon = strrchr(text, ':');
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    if (colon == NULL || colon == text || colon[1] == 0 || (size_t)(colon - text) >= sizeof host) return form;
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = 0;
    if (host[strspn(host, "0123456789.")] == 0 || strpbrk(host, ":[] ") != NULL) return form;
    if (colon[1 + strspn(colon + 1, "0123456789")] != 0 || strlen(colon) > 6) return form;
    if (out == NULL) return NULL;
    int error = getaddrinfo(host, colon + 1, &hints, &found);
    if (error != 0) return gai_strerror(error);
    bool good = false;
    for (const struct addrinfo *at = found; at != NULL && !good; at = at->ai_next)
        good = socket_address_from_sockaddr(out, at->ai_addr) && out->port != 0;
    freeaddrinfo(found);
    return good ? NULL : form;
}

// ---- metrics ----

// Older kernels fill the beginning of the struct alone.
#define TELLS(length, field) ((length) >= offsetof(struct tcp_info, field) + sizeof((struct tcp_info){0}.field))

struct gauge socket_gauge(int fd) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    int queued = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) length = 0;
    struct gauge read = {.tells_queue = ioctl(fd, SIOCOUTQ, &queued) == 0, .queued = (uint64_t)queued};
    if (TELLS(length, tcpi_busy_time)) {
        read.acked = info.tcpi_bytes_acked;
        read.busy_us = info.tcpi_busy_time;
    }
    if (TELLS(length, tcpi_rwnd_limited)) read.window_us = info.tcpi_rwnd_limited;
    if (TELLS(length, tcpi_sndbuf_limited)) read.buffer_us = info.tcpi_sndbuf_limited;
    if (TELLS(length, tcpi_data_segs_out)) {
        read.waiting = info.tcpi_notsent_bytes;
        read.segments = info.tcpi_data_segs_out;
    }
    bool shortest = TELLS(length, tcpi_min_rtt) && info.tcpi_min_rtt != UINT32_MAX;
    read.round_trip_us = shortest ? info.tcpi_min_rtt : info.tcpi_rtt;
    read.smoothed_us = info.tcpi_rtt;
    read.window = info.tcpi_snd_cwnd * info.tcpi_snd_mss;
    read.retransmits = info.tcpi_total_retrans;
    return read;
}
