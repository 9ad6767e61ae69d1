// A gauge that takes each link for one to a far neighbour: windows and queues change from one reading to the next, and
// there is always something to send. So the frames of a link, and the lanes in use, change all the time.
#define _GNU_SOURCE
#include <linux/sockios.h>
#include <stdatomic.h>
#include <sys/ioctl.h>

#include "base/platform.h"
#include "net/socket.h"

enum { ROUND_TRIP_US = 2500, WINDOW_MOST = 2 << 20 };

struct gauge __wrap_socket_gauge(int fd);
struct gauge __wrap_socket_gauge(int fd) {
    static atomic_uint readings;
    uint32_t random = atomic_fetch_add(&readings, 1) * 2654435761u;
    random ^= random >> 15;
    int queued = 0;
    struct gauge read = {.tells_queue = ioctl(fd, SIOCOUTQ, &queued) == 0, .queued = (uint64_t)queued};
    uint64_t now_us = (uint64_t)platform_now_ns() / 1000;
    read.busy_us = now_us;
    read.acked = 100 * now_us;
    read.segments = (uint32_t)now_us;
    read.retransmits = (uint32_t)(now_us / (random % 2 == 0 ? 50 : 5000));
    read.round_trip_us = ROUND_TRIP_US;
    read.smoothed_us = ROUND_TRIP_US * (random % 3 == 0 ? 4 : 1);
    read.window = random % WINDOW_MOST >> random % 8;
    return read;
}
