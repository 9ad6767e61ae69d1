#define _GNU_SOURCE
#include "net/gauge.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { BUSY_LEAST_US = 4000 }; // a measurement: the kernel counts in ticks

// Older kernels fill the beginning alone.
#define TELLS(length, field) ((length) >= offsetof(struct tcp_info, field) + sizeof((struct tcp_info){0}.field))

// How many bytes of it the kernel has filled; 0: it is no connection.
static size_t ask(int fd, struct tcp_info *info) {
    socklen_t length = sizeof *info;
    memset(info, 0, sizeof *info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0 ? length : 0;
}

uint32_t gauge_round_trip_us(int fd) {
    struct tcp_info info;
    bool shortest = TELLS(ask(fd, &info), tcpi_min_rtt) && info.tcpi_min_rtt != UINT32_MAX;
    return shortest ? info.tcpi_min_rtt : info.tcpi_rtt;
}

double gauge_rate(struct gauge *gauge, int fd) {
    struct tcp_info info;
    if (!TELLS(ask(fd, &info), tcpi_busy_time)) return 0;
    uint64_t acked = info.tcpi_bytes_acked, busy_us = info.tcpi_busy_time;
    if (gauge->busy_us != 0 && busy_us - gauge->busy_us < BUSY_LEAST_US) return 0;
    struct gauge before = *gauge;
    *gauge = (struct gauge){acked, busy_us};
    return before.busy_us == 0 ? 0 : (double)(acked - before.acked) / ((double)(busy_us - before.busy_us) * 1e3);
}

bool gauge_queued(int fd, uint64_t *out) {
    int waiting = 0;
    if (ioctl(fd, SIOCOUTQ, &waiting) != 0) return false;
    *out = (uint64_t)waiting;
    return true;
}
