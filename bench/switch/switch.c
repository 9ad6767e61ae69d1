/* Several hosts around a switch on one machine: carries IPv4 between TUN devices, which it makes, one for each host,
 * in that order at addresses that end in 1, 2, ... Each packet passes its sender's line, the pair's own, and its
 * receiver's, each of them a link (link.h). Prints "ready", then reads commands, one a line, and says "ok" to each:
 *   up HOST MBIT LOSS | down HOST MBIT LOSS | edge FROM TO MBIT LOSS       MBIT 0: no limit */
#define _GNU_SOURCE
#include "command.h"
#include "link.h"
#include "packet.h"
#include "queue.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    HOSTS = 16,
    READS_PER_ROUND = 8,
    LONGEST_SLEEP_NS = 20000000,
    PIECE_NS = 1000000, /* a super-packet that takes longer on the wire arrives in pieces */
    QUEUE_BYTES = 32 << 20,
    DESTINATION = 16, /* of an IPv4 header */
    PRIORITY = 50,
};

static struct {
    int fd;
    struct link up, down, edges[HOSTS]; /* by receiver */
    struct queue queue[HOSTS];          /* at the end of the edge to this host, by sender */
    struct queue arriving;              /* at the end of its own line */
} hosts[HOSTS];
static int count;
static uint64_t queue_bytes = 250000, delay_ns = 1000000, seed = 1;
static uint8_t buffer[PACKET_MAX];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A line, or two behind each other of which nobody else uses the second. */
struct way {
    struct link *first, *second; /* second: may be NULL */
    struct queue *end;
};

static bool pass(const struct way *way, uint64_t now, size_t bytes, uint64_t *due_ns) {
    return link_admit(way->first, now, bytes, due_ns) &&
           (way->second == NULL || link_admit(way->second, *due_ns, bytes, due_ns));
}

static void forward(const struct way *way, const struct packet *packet, unsigned first, unsigned end, uint64_t due_ns) {
    uint8_t *room = queue_room(way->end, packet->length);
    if (room != NULL) queue_push(way->end, due_ns, packet_cut(packet, first, end, room));
}

/* Runs of neighbouring segments that survive travel as one packet, due when the run's last byte is. */
static void admit(const struct way *way, const struct packet *packet, uint64_t now) {
    unsigned first = 0;
    uint64_t begin_ns = now, due_ns = 0;
    for (unsigned i = 0; i < packet->segments; i++) {
        uint64_t due;
        bool kept = pass(way, now, packet_wire_bytes(packet, i), &due);
        if (first < i && (!kept || due - begin_ns > PIECE_NS)) {
            forward(way, packet, first, i, due_ns);
            first = i;
        }
        if (!kept) {
            first = i + 1;
            continue;
        }
        if (first == i) begin_ns = due;
        due_ns = due;
    }
    if (first < packet->segments) forward(way, packet, first, packet->segments, due_ns);
}

static void take(int from) {
    for (int i = 0; i < READS_PER_ROUND; i++) {
        ssize_t length = read(hosts[from].fd, buffer, sizeof buffer);
        if (length <= 0) return;
        size_t ip = sizeof(struct virtio_net_hdr);
        if ((size_t)length < ip + 20 || buffer[ip] >> 4 != 4) continue;
        int to = buffer[ip + DESTINATION + 3] - 1;
        if (to < 0 || to >= count || to == from) continue;
        struct packet packet = packet_parse(buffer, (size_t)length);
        struct way way = {&hosts[from].up, &hosts[from].edges[to], &hosts[to].queue[from]};
        admit(&way, &packet, now_ns());
    }
}

/* From the end of an edge into the line of its receiver, which packets enter in the order in which they come. */
static uint64_t enter(int to, int from, uint64_t next) {
    const struct queue_entry *entry;
    struct way way = {&hosts[to].down, NULL, &hosts[to].arriving};
    while ((entry = queue_first(&hosts[to].queue[from])) != NULL && entry->due_ns <= now_ns()) {
        struct packet packet = packet_parse((const uint8_t *)(entry + 1), entry->length);
        admit(&way, &packet, entry->due_ns);
        queue_pop(&hosts[to].queue[from]);
    }
    return entry != NULL && entry->due_ns < next ? entry->due_ns : next;
}

/* When the next packet is due; UINT64_MAX: none waits. */
static uint64_t deliver(void) {
    uint64_t next = UINT64_MAX;
    for (int to = 0; to < count; to++) {
        const struct queue_entry *entry;
        for (int from = 0; from < count; from++) next = enter(to, from, next);
        while ((entry = queue_first(&hosts[to].arriving)) != NULL && entry->due_ns <= now_ns()) {
            if (write(hosts[to].fd, entry + 1, entry->length) < 0 && errno == EAGAIN) break;
            queue_pop(&hosts[to].arriving);
        }
        if (entry != NULL && entry->due_ns < next) next = entry->due_ns;
    }
    return next;
}

static int tun_open(const char *name) {
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    int header = sizeof(struct virtio_net_hdr);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &header) < 0 ||
        ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0) {
        fprintf(stderr, "cannot make the TUN device %s: %s\n", name, strerror(errno));
        return -1;
    }
    return fd;
}

static void unlimited(struct link *link, uint64_t delay) {
    struct link_shape as = {.delay_ns = delay, .queue_bytes = queue_bytes};
    link_init(link, &as, seed++);
}

static bool is_host(int host) { return host >= 0 && host < count; }

static bool apply(const char *line) {
    int a = -1, b = -1, up = 0, down = 0, edge = 0;
    sscanf(line, "up %d %n", &a, &up);
    sscanf(line, "down %d %n", &a, &down);
    sscanf(line, "edge %d %d %n", &a, &b, &edge);
    if (!is_host(a) || (edge > 0 && !is_host(b)) || up + down + edge == 0) return false;
    struct link *link = up > 0 ? &hosts[a].up : down > 0 ? &hosts[a].down : &hosts[a].edges[b];
    struct link_shape as = link->shape;
    if (!command_shape(line + up + down + edge, &as)) return false;
    link_reshape(link, &as);
    return true;
}

static bool parse(int argc, char **argv) {
    static const struct option options[] = {{"delay-us", required_argument, NULL, 'd'},
                                            {"queue-bytes", required_argument, NULL, 'q'},
                                            {"seed", required_argument, NULL, 's'},
                                            {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'd': delay_ns = strtoull(optarg, NULL, 10) * 1000; break;
        case 'q': queue_bytes = strtoull(optarg, NULL, 10); break;
        case 's': seed = strtoull(optarg, NULL, 10); break;
        default: return false;
        }
    }
    count = argc - optind;
    return count >= 2 && count <= HOSTS;
}

int main(int argc, char **argv) {
    if (!parse(argc, argv)) {
        fputs("usage: switch [--delay-us D] [--queue-bytes Q] [--seed S] TUN TUN...\n", stderr);
        return 2;
    }
    for (int i = 0; i < count; i++) {
        if ((hosts[i].fd = tun_open(argv[optind + i])) < 0) return 1;
        unlimited(&hosts[i].up, 0);
        unlimited(&hosts[i].down, 0);
        if (!queue_init(&hosts[i].arriving, QUEUE_BYTES)) return 1;
        for (int k = 0; k < count; k++) {
            unlimited(&hosts[i].edges[k], delay_ns);
            if (!queue_init(&hosts[i].queue[k], QUEUE_BYTES)) return 1;
        }
    }
    prctl(PR_SET_TIMERSLACK, 1);
    /* Best effort: without the right to it the lines are only less exact on a busy machine. */
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = PRIORITY});
    struct commands commands = {.length = 0};
    puts("ready");
    fflush(stdout);
    struct pollfd polled[HOSTS + 1];
    for (;;) {
        for (int i = 0; i < count; i++) polled[i] = (struct pollfd){.fd = hosts[i].fd, .events = POLLIN};
        polled[count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
        uint64_t next = deliver(), now = now_ns();
        uint64_t wait = next == UINT64_MAX ? LONGEST_SLEEP_NS : next > now ? next - now : 0;
        if (wait > LONGEST_SLEEP_NS) wait = LONGEST_SLEEP_NS;
        if (ppoll(polled, (nfds_t)count + 1, &(struct timespec){.tv_nsec = (long)wait}, NULL) < 0) continue;
        if (polled[count].revents != 0 && !commands_hear(&commands, STDIN_FILENO, apply)) return 0;
        for (int i = 0; i < count; i++)
            if (polled[i].revents != 0) take(i);
    }
}
