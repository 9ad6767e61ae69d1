// For LD_PRELOAD: the kernel says of each TCP connection that it leads far away, that its window and its queue change
// from one question to the next, and that there was always something to send. So the sizes of frames and the lanes in
// use change all the time, what comes before its op is kept, and tests between processes of one host run as over long
// links (`make far`). tests/fakes/far_gauge.c tells the unit tests the same.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

// Older kernels fill the beginning of the struct alone.
#define END_OF(field) (offsetof(struct tcp_info, field) + sizeof((struct tcp_info){0}.field))

enum { ROUND_TRIP_US = 2500, SEGMENT_BYTES = 1448, WINDOW_MOST = 1500 };

static void lead_far_away(struct tcp_info *info) {
    static atomic_uint questions;
    uint32_t random = atomic_fetch_add(&questions, 1) * 2654435761u; // Knuth's multiplicative hash
    random ^= random >> 15;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    info->tcpi_busy_time = now_us;
    info->tcpi_bytes_acked = 100 * now_us;
    info->tcpi_data_segs_out = (uint32_t)now_us;
    info->tcpi_total_retrans = (uint32_t)(now_us / (random % 2 == 0 ? 50 : 5000));
    info->tcpi_min_rtt = ROUND_TRIP_US;
    info->tcpi_rtt = ROUND_TRIP_US * (random % 3 == 0 ? 4 : 1);
    info->tcpi_snd_mss = SEGMENT_BYTES;
    info->tcpi_snd_cwnd = random % WINDOW_MOST >> random % 8;
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *length) {
    static int (*_Atomic real)(int, int, int, void *, socklen_t *);
    if (real == NULL) real = (int (*)(int, int, int, void *, socklen_t *))dlsym(RTLD_NEXT, "getsockopt");
    int result = real(fd, level, name, value, length);
    if (result == 0 && level == IPPROTO_TCP && name == TCP_INFO && *length >= END_OF(tcpi_busy_time))
        lead_far_away(value);
    return result;
}
