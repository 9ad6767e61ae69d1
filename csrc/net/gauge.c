#define _GNU_SOURCE
#include "net/gauge.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

// Older kernels fill the beginning of the struct alone.
#define TELLS(length, field) ((length) >= offsetof(struct tcp_info, field) + sizeof((struct tcp_info){0}.field))

struct gauge gauge_read(int fd) {
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
