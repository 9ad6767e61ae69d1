/* A long link on one machine: carries IP between two TUN devices, which it makes, with the rate, delay, loss and queue
 * of link.h each way. Real kernel TCP runs over it. One thread per direction; each owns its queue, its link and the
 * reading of one device, and writes to the other. Prints "ready" once both devices are there, then reads commands, one
 * a line, and says "ok" to each:
 *   ab MBIT LOSS | ba MBIT LOSS       from now on, that way; its queue holds as many bytes as before
 * It ends on SIGTERM, on SIGINT, or when nobody commands any more. */
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
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    READS_PER_ROUND = 32,
    LONGEST_SLEEP_NS = 50000000, /* how late a stop may be noticed */
    PIECE_NS = 1000000,          /* a super-packet that takes longer on the wire arrives in pieces */
    /* Packets of a tick go together, as with a network card that coalesces its interrupts: a timer for each would take
     * as much of the processor as carrying it. */
    TICK_LEAST_NS = 20000,
    TICK_MOST_NS = 500000,
    TICK_PART = 64, /* of the delay */
    QUEUE_SLACK = 64 << 20,
    PRIORITY = 50,
};

struct direction {
    int in, out;
    struct link link;
    pthread_mutex_t reshaping; /* held around what reads or changes the link */
    struct queue queue;
    uint64_t tick_ns;
    uint8_t buffer[PACKET_MAX];
};

static struct direction ways[2] = {{.reshaping = PTHREAD_MUTEX_INITIALIZER}, {.reshaping = PTHREAD_MUTEX_INITIALIZER}};
static atomic_bool stopping;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void forward(struct direction *d, const struct packet *packet, unsigned first, unsigned end, uint64_t due_ns) {
    uint8_t *room = queue_room(&d->queue, packet->length);
    if (room != NULL) queue_push(&d->queue, due_ns, packet_cut(packet, first, end, room));
}

/* Runs of neighbouring segments that survive travel as one packet, due when the run's last byte is. */
static void admit(struct direction *d, const struct packet *packet, uint64_t now) {
    unsigned first = 0;
    uint64_t begin_ns = now, due_ns = 0;
    for (unsigned i = 0; i < packet->segments; i++) {
        uint64_t due;
        bool kept = link_admit(&d->link, now, packet_wire_bytes(packet, i), &due);
        if (first < i && (!kept || due - begin_ns > PIECE_NS)) {
            forward(d, packet, first, i, due_ns);
            first = i;
        }
        if (!kept) {
            first = i + 1;
            continue;
        }
        if (first == i) {
            begin_ns = due;
        }
        due_ns = due;
    }
    if (first < packet->segments) {
        forward(d, packet, first, packet->segments, due_ns);
    }
}

static bool deliver(struct direction *d) {
    bool any = false;
    const struct queue_entry *entry;
    uint64_t now = now_ns();
    /* Packets are read up to a tick late, so they are delivered up to a tick early. */
    while ((entry = queue_first(&d->queue)) != NULL && entry->due_ns <= now + d->tick_ns) {
        ssize_t written = write(d->out, entry + 1, entry->length);
        (void)written; /* what the device refuses is lost, as on a link */
        queue_pop(&d->queue);
        any = true;
        now = now_ns();
    }
    return any;
}

static bool take(struct direction *d) {
    bool any = false;
    for (int i = 0; i < READS_PER_ROUND; i++) {
        ssize_t length = read(d->in, d->buffer, sizeof d->buffer);
        if (length <= 0) {
            break;
        }
        struct packet packet = packet_parse(d->buffer, (size_t)length);
        pthread_mutex_lock(&d->reshaping);
        admit(d, &packet, now_ns());
        pthread_mutex_unlock(&d->reshaping);
        any = true;
    }
    return any;
}

/* Sleeps for a tick while anything is under way. Without ticks, or when nothing is under way, sleeps until the next
 * packet is due or something comes. */
static void rest(struct direction *d) {
    const struct queue_entry *entry = queue_first(&d->queue);
    if (entry != NULL && d->tick_ns > 0) {
        nanosleep(&(struct timespec){.tv_nsec = (long)d->tick_ns}, NULL);
        return;
    }
    uint64_t now = now_ns(), due_ns = entry == NULL ? UINT64_MAX : entry->due_ns,
             left_ns = due_ns > now ? due_ns - now : 0;
    long sleep_ns = left_ns < LONGEST_SLEEP_NS ? (long)left_ns : LONGEST_SLEEP_NS;
    ppoll(&(struct pollfd){.fd = d->in, .events = POLLIN}, 1, &(struct timespec){.tv_nsec = sleep_ns}, NULL);
}

static void *carry(void *argument) {
    struct direction *d = argument;
    prctl(PR_SET_TIMERSLACK, 1);
    /* Best effort: without the right to it the link is only less exact on a busy machine. */
    pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){.sched_priority = PRIORITY});
    while (!atomic_load(&stopping)) {
        bool delivered = deliver(d);
        bool taken = take(d);
        if (!delivered && !taken) {
            rest(d);
        }
    }
    return NULL;
}

static int tun_open(const char *name) {
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    int header = sizeof(struct virtio_net_hdr);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        perror("/dev/net/tun");
        return -1;
    }
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (ioctl(fd, TUNSETIFF, &request) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &header) < 0 ||
        ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0) {
        fprintf(stderr, "cannot make the TUN device %s: %s\n", name, strerror(errno));
        close(fd);
        return -1;
    }
    return fd;
}

static bool apply(const char *line) {
    if (strncmp(line, "ab ", 3) != 0 && strncmp(line, "ba ", 3) != 0) return false;
    struct direction *d = &ways[line[0] == 'b'];
    pthread_mutex_lock(&d->reshaping);
    struct link_shape shape = d->link.shape;
    bool good = command_shape(line + 3, &shape);
    if (good) link_reshape(&d->link, &shape);
    pthread_mutex_unlock(&d->reshaping);
    return good;
}

static void stop(int number) { (void)number; /* it ends the waiting for commands */ }

static const char usage[] =
    "usage: longlink [--rate-mbit R] [--delay-us D] [--loss P] [--queue-bytes Q] [--seed S] [--exact] TUN_A TUN_B\n"
    "  rate 0 (default) is unlimited; delay is one way; queue 0 (default) is one bandwidth-delay product\n"
    "  exact: each packet is delivered when it is due, not in ticks; costs twice the processor time\n";

static bool parse(int argc, char **argv, struct link_shape *shape, uint64_t *seed, bool *exact) {
    static const struct option options[] = {
        {"rate-mbit", required_argument, NULL, 'r'},
        {"delay-us", required_argument, NULL, 'd'},
        {"loss", required_argument, NULL, 'l'},
        {"queue-bytes", required_argument, NULL, 'q'},
        {"seed", required_argument, NULL, 's'},
        {"exact", no_argument, NULL, 'e'},
        {NULL, 0, NULL, 0},
    };
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'r': shape->rate_bits = strtod(optarg, NULL) * 1e6; break;
        case 'd': shape->delay_ns = (uint64_t)(strtod(optarg, NULL) * 1e3); break;
        case 'l': shape->loss = strtod(optarg, NULL); break;
        case 'q': shape->queue_bytes = strtoull(optarg, NULL, 10); break;
        case 's': *seed = strtoull(optarg, NULL, 10); break;
        case 'e': *exact = true; break;
        default: return false;
        }
    }
    return argc - optind == 2 && shape->rate_bits >= 0 && shape->loss >= 0 && shape->loss <= 1;
}

int main(int argc, char **argv) {
    struct link_shape shape = {0};
    uint64_t seed = 1;
    bool exact = false;
    if (!parse(argc, argv, &shape, &seed, &exact)) {
        fputs(usage, stderr);
        return 2;
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigset_t usual;
    pthread_sigmask(SIG_BLOCK, &ends, &usual);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = stop}, NULL);

    int a = tun_open(argv[optind]);
    int b = a < 0 ? -1 : tun_open(argv[optind + 1]);
    if (b < 0) {
        return 1;
    }
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        ways[i].in = i == 0 ? a : b;
        ways[i].out = i == 0 ? b : a;
        uint64_t part_ns = shape.delay_ns / TICK_PART;
        ways[i].tick_ns = exact                     ? 0
                          : part_ns < TICK_LEAST_NS ? TICK_LEAST_NS
                          : part_ns < TICK_MOST_NS  ? part_ns
                                                    : TICK_MOST_NS;
        link_init(&ways[i].link, &shape, seed * 2 + (uint64_t)i);
        if (!queue_init(&ways[i].queue, 2 * link_capacity_bytes(&ways[i].link) + QUEUE_SLACK)) {
            fputs("no memory for the queue\n", stderr);
            return 1;
        }
        if (pthread_create(&threads[i], NULL, carry, &ways[i]) != 0) {
            fputs("no thread\n", stderr);
            return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    struct commands commands = {.length = 0};
    struct pollfd polled = {.fd = STDIN_FILENO, .events = POLLIN};
    while (ppoll(&polled, 1, NULL, &usual) > 0 && commands_hear(&commands, STDIN_FILENO, apply)) {
    }
    atomic_store(&stopping, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        queue_fini(&ways[i].queue);
    }
    return 0;
}
