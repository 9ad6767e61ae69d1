#include "bottle.h"

#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "base/memory.h"
#include "net/transport.h"
#include "data/core.h"

enum { PENDING_BYTES = 2 << 20, DRAINED_BYTES = 1 << 16 };

int64_t bottle_now;
uint8_t *bottle_slots;
uint64_t bottle_epoch;

struct link {
    int fd;                         // the other end; 0: none
    size_t length, held;            // of `pending`; the last bytes of it that are held back
    uint8_t head[FRAME_HEAD_BYTES]; // of the frame that comes from the engine
    size_t have, skip;
    uint8_t pending[PENDING_BYTES];
};

static struct link links[BOTTLE_PEERS][BOTTLE_LANES];
static void *(*thread_main)(void *);
static bool (*next_step)(void);
static void (*on_frame)(uint32_t peer, const struct wire_header *header, const struct wire_head *head);
static struct engine *bottled;
static int64_t thread_ns;
static jmp_buf let_go;
static bool letting_go;

// ---- what stands in for the system ----
bool __wrap_platform_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *arg);
int64_t __wrap_platform_now_ns(void);
int64_t __wrap_platform_thread_ns(void);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *held);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms);
int __real_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms);
struct rendezvous *__wrap_rendezvous_open(int epoll, void *tag);
void __wrap_slots_announced(struct lane *lane);
double __wrap_neighbour_speed(struct neighbour *peer);

bool __wrap_platform_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *arg) {
    (void)arg;
    if (strcmp(name, "pccl:data") != 0) return false;
    *out = pthread_self();
    thread_main = run;
    return true;
}

int64_t __wrap_platform_now_ns(void) { return bottle_now; }
int64_t __wrap_platform_thread_ns(void) { return thread_ns += US_NS; }

struct rendezvous *__wrap_rendezvous_open(int epoll, void *tag) {
    (void)epoll, (void)tag;
    return NULL;
}

// As if the peer's process had claimed its links, or some of them, and taken slots from the engine.
void __wrap_slots_announced(struct lane *lane) {
    struct slots *slots = &op_peer_of(lane->peer)->slots;
    static int shared = -1;
    if (shared < 0) shared = memory_shared_new(SLOTS_BYTES, &bottle_slots);
    MUST(shared >= 0);
    if ((lane->in.note[0] & 1) && slots->other == NULL) slots->other = memory_shared_map(shared, SLOTS_BYTES);
    if ((lane->in.note[0] & 2) == 0) return;
    if (slots->own == NULL) {
        descriptor_close(memory_shared_new(SLOTS_BYTES, &slots->own));
        slots->free = (1u << SLOTS) - 1;
    }
    slots->mapped = slots->own != NULL;
}

// A link so slow that packing pays.
double __wrap_neighbour_speed(struct neighbour *peer) {
    (void)peer;
    return 1e-6;
}

// The end of a round waits until the engine's thread has let go of it. That is this one, so it does so now: its loop
// begins anew, inside of itself, and is left when it has nothing more to do.
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *held) {
    MUST(cond != NULL && !letting_go);
    pthread_mutex_unlock(held);
    if (setjmp(let_go) == 0) {
        letting_go = true;
        thread_main(bottled);
    }
    letting_go = false;
    pthread_mutex_lock(held);
    return 0;
}

// ---- links ----
static void hear(struct link *link, uint32_t peer, const uint8_t *bytes, size_t length) {
    while (length > 0) {
        size_t take = link->skip < length ? link->skip : length;
        link->skip -= take;
        if (take == 0) {
            take = FRAME_HEAD_BYTES - link->have < length ? FRAME_HEAD_BYTES - link->have : length;
            memcpy(link->head + link->have, bytes, take);
            link->have += take;
        }
        bytes += take;
        length -= take;
        if (link->have < FRAME_HEAD_BYTES) continue;
        struct wire_header header;
        struct wire_head head;
        MUST(wire_header_decode(link->head, &header) && header.length >= WIRE_HEAD_BYTES &&
             header.length <= WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES);
        MUST(wire_head_decode(link->head + WIRE_HEADER_BYTES, header.type, &head));
        link->have = 0;
        link->skip = header.length - WIRE_HEAD_BYTES;
        if (on_frame != NULL) on_frame(peer, &header, &head);
    }
}

// True: something has moved.
static bool move(struct link *link, uint32_t peer) {
    static uint8_t drained[DRAINED_BYTES];
    bool moved = false;
    for (ssize_t got; (got = recv(link->fd, drained, sizeof drained, MSG_DONTWAIT)) > 0; moved = true)
        hear(link, peer, drained, (size_t)got);
    if (link->length == link->held) return moved;
    ssize_t sent = send(link->fd, link->pending, link->length - link->held, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) return moved;
    link->length -= (size_t)sent;
    memmove(link->pending, link->pending + sent, link->length);
    return true;
}

static bool move_all(void) {
    bool moved = false;
    for (uint32_t peer = 1; peer < BOTTLE_PEERS; peer++)
        for (uint32_t i = 0; i < BOTTLE_LANES; i++)
            if (links[peer][i].fd != 0) moved |= move(&links[peer][i], peer);
    return moved;
}

void bottle_send(uint32_t peer, uint32_t index, const void *bytes, size_t length) {
    struct link *link = &links[peer][index];
    if (link->fd == 0 || length > PENDING_BYTES - link->length) return;
    memcpy(link->pending + link->length, bytes, length);
    link->length += length;
    link->held = 0;
}

void bottle_frame(uint32_t peer, uint32_t index, const struct wire_header *header, const struct wire_head *head,
                  const void *payload, size_t length, size_t cut) {
    uint8_t bytes[FRAME_HEAD_BYTES];
    struct wire_header full = *header;
    full.length = (uint32_t)(WIRE_HEAD_BYTES + length);
    wire_header_encode(bytes, &full);
    wire_head_encode(bytes + WIRE_HEADER_BYTES, header->type, head);
    bottle_send(peer, index, bytes, sizeof bytes);
    bottle_send(peer, index, payload, length);
    struct link *link = &links[peer][index];
    size_t last = sizeof bytes + length;
    if (cut > 0 && cut < last && last <= link->length) link->held = last - cut;
}

void bottle_close(uint32_t peer, uint32_t index) {
    struct link *link = &links[peer][index];
    if (link->fd != 0) close(link->fd);
    link->fd = 0;
    link->length = link->held = link->have = link->skip = 0;
}

void bottle_link(struct engine *engine, uint32_t peer, uint32_t index) {
    int pair[2];
    struct wire_id id = bottle_id(peer);
    bottle_close(peer, index);
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    links[peer][index].fd = pair[1];
    struct transport_context *context = transport_context_new(NULL);
    struct transport *stream = context == NULL ? NULL : transport_new(context, pair[0], TRANSPORT_ACCEPTS);
    if (context == NULL) close(pair[0]);
    transport_context_release(context);
    if (stream != NULL) engine_add_link(engine, &id, index, stream);
}

// ---- the engine ----
struct wire_id bottle_id(uint32_t peer) { return (struct wire_id){{(uint8_t)(peer + 1)}}; }

static uint32_t all_weights, all_sites;

void bottle_weights(uint32_t weights, uint32_t sites) {
    all_weights = weights;
    all_sites = sites;
}

static struct wire_member member_of(uint32_t peer) {
    return (struct wire_member){.id = bottle_id(peer),
                                .weight = (uint16_t)(all_weights >> 2 * peer & 3),
                                .site = (uint16_t)(all_sites >> 2 * peer & 3)};
}

void bottle_enter(struct engine *engine, uint32_t members, uint32_t rank, bool lost, uint32_t megabytes_per_s) {
    struct wire_member list[BOTTLE_PEERS];
    uint32_t count = 1;
    for (uint32_t peer = 1; peer < BOTTLE_PEERS; peer++) count += members >> peer & 1;
    rank %= count;
    uint32_t at = (rank + 1) % count;
    list[rank] = member_of(0);
    for (uint32_t peer = 1; peer < BOTTLE_PEERS; peer++) {
        if ((members >> peer & 1) == 0) continue;
        list[at] = member_of(peer);
        at = (at + 1) % count;
    }
    struct wire_epoch told = {.group_epoch = ++bottle_epoch,
                              .latency_us = 1,
                              .megabytes_per_s = megabytes_per_s,
                              .count = count,
                              .members = list};
    struct epoch_ring ring = {list, count, rank};
    const struct epoch *epoch = epoch_new(&told, &ring, &(struct wire_header){.run = 7, .generation = 1}, lost);
    if (epoch == NULL) return;
    engine_enter_epoch(engine, epoch);
    epoch_put(epoch);
}

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms) {
    for (;;) {
        int count = __real_epoll_wait(epoll, events, most, 0);
        if (count != 0 || timeout_ms == 0) return count;
        if (letting_go && bottled->service == NULL) longjmp(let_go, 1);
        if (letting_go) return 0;
        if (move_all()) continue;
        if (next_step()) return __real_epoll_wait(epoll, events, most, 0);
        pthread_mutex_lock(&bottled->lock);
        bottled->stopping = true;
        engine_wake(bottled);
        pthread_mutex_unlock(&bottled->lock);
    }
}

struct engine *bottle_new(const struct engine_callbacks *callbacks,
                          void (*heard)(uint32_t peer, const struct wire_header *header,
                                        const struct wire_head *head)) {
    struct wire_id self = bottle_id(0);
    bottle_now = SECOND_NS;
    bottle_epoch = 0;
    bottle_weights(0, 0);
    thread_ns = 0;
    on_frame = heard;
    bottled = engine_new(&self, callbacks);
    MUST(bottled != NULL);
    return bottled;
}

void bottle_told(const struct wire_buffer *frames,
                 void (*on_reply)(const struct wire_header *header, const uint8_t *body)) {
    struct wire_header header;
    for (size_t at = 0; at < frames->length; at += WIRE_HEADER_BYTES + header.length) {
        MUST(wire_header_decode(frames->bytes + at, &header));
        on_reply(&header, frames->bytes + at + WIRE_HEADER_BYTES);
    }
}

void bottle_run(struct engine *engine, bool (*step)(void)) {
    next_step = step;
    thread_main(engine);
}

void bottle_free(struct engine *engine) {
    engine->started = engine->stopping = false; // there is no thread to join
    engine_free(engine);
    for (uint32_t peer = 1; peer < BOTTLE_PEERS; peer++)
        for (uint32_t i = 0; i < BOTTLE_LANES; i++) bottle_close(peer, i);
}
