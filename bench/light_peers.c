// Light peers: the control part of many peers in one process, each with its own state machine (peer/member) and its own
// connection to a master. Links between them are taken for made as soon as both sides want them, and there is no tensor
// data. bench/scaling.py tells what to do, a word a line, and reads a line for each that is done: the word,
// milliseconds, bytes to the master, bytes from it.
//
//   join      all register                      admit     who is a member votes for a new topology, all are let in
//   vote      all ask for pending peers         op        all are done with one large op, and get its verdict
//   loss      one ends                          losses    an eighth of those that are left end at once
//   tell      all report operations, and what they have seen of their neighbours
//   beat      all say a heartbeat               takeover  the master is gone: all find the next one, at the same
//   address
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/platform.h"
#include "peer/member.h"
#include "net/keys.h"
#include "net/socket.h"
#include "net/tls.h"
#include "net/transport.h"

enum {
    PORT = 40000,
    RETRY_MS = 15,
    QUIET_MS = 200,
    CHUNK = 256 * 1024,
    RECOVERY_MS = 300000,
    PHASE_LIMIT_MS = 120000,
    SPARE_DESCRIPTORS = 64,
    INDEX_SLOTS = 4096, // more than twice WIRE_MAX_MEMBERS
};

struct parked { // a hello that waits for the other side to want it
    uint32_t from, index;
};

struct light {
    struct transport_context *context;
    struct wire_id id;
    struct member *core;
    struct member_output out;
    struct transport *stream; // NULL: none
    bool gone, connecting, wants_write, seeking, queued;
    int64_t dial_at;
    uint8_t *in, *unsent;
    size_t in_length, in_capacity, unsent_begin, unsent_length, unsent_capacity;
    uint64_t group_epoch, ready; // entered; its links are there
    uint32_t votes, verdicts;    // that have ended
    struct parked *parked;
    uint32_t parked_count, parked_capacity;
};

static struct light *peers;
static uint32_t peer_count, alive;
static struct wire_address master;
static int poller;
static int64_t now;
static uint64_t sent, received;
static uint32_t index_by_id[INDEX_SLOTS];       // plus one; 0: an empty slot
static uint32_t *queue, queue_begin, queue_end; // of those with something to carry out, a ring of peer_count + 1

static void die(const char *what, const char *why) {
    fprintf(stderr, "light_peers: %s: %s\n", what, why);
    exit(1);
}

static void *grown(void *at, size_t bytes) {
    void *made = realloc(at, bytes);
    if (made == NULL) die("memory", "refused");
    return made;
}

static uint32_t first_slot(const struct wire_id *id) {
    return (id->bytes[0] | (uint32_t)id->bytes[1] << 8) % INDEX_SLOTS; // ids are random, or hashes
}

static void add_to_index(uint32_t number) {
    uint32_t slot = first_slot(&peers[number].id);
    while (index_by_id[slot] != 0) slot = (slot + 1) % INDEX_SLOTS;
    index_by_id[slot] = number + 1;
}

static uint32_t index_of(const struct wire_id *id) {
    for (uint32_t slot = first_slot(id); index_by_id[slot] != 0; slot = (slot + 1) % INDEX_SLOTS)
        if (wire_id_equal(&peers[index_by_id[slot] - 1].id, id)) return index_by_id[slot] - 1;
    die("the master", "named a peer that is not one of these");
    return 0;
}

static uint32_t place(const struct light *peer) { return (uint32_t)(peer - peers); }

// ---- the connection ----

static void watch(struct light *peer, uint32_t events) {
    epoll_data_t data = {.u32 = place(peer)};
    if (!transport_watch(peer->stream, poller, events, data)) die("epoll_ctl", strerror(errno));
}

static void hang_up(struct light *peer) {
    transport_free(peer->stream);
    peer->stream = NULL;
    peer->connecting = peer->wants_write = false;
    peer->in_length = peer->unsent_begin = peer->unsent_length = 0;
}

static void call(struct light *peer) {
    int error = transport_dial(peer->context, &master, &peer->stream);
    if (error != 0) die("cannot connect", strerror(-error));
    peer->connecting = true;
    watch(peer, EPOLLOUT);
}

static void flush(struct light *peer) {
    while (peer->stream != NULL && peer->unsent_begin < peer->unsent_length) {
        ptrdiff_t done =
            transport_send(peer->stream, peer->unsent + peer->unsent_begin, peer->unsent_length - peer->unsent_begin);
        if (done <= 0) break; // it is noticed when it is read
        sent += (uint64_t)done;
        peer->unsent_begin += (size_t)done;
    }
    if (peer->unsent_begin == peer->unsent_length) peer->unsent_begin = peer->unsent_length = 0;
    bool wanted = peer->unsent_length > 0;
    if (peer->stream == NULL || peer->connecting || wanted == peer->wants_write) return;
    peer->wants_write = wanted;
    watch(peer, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void say(struct light *peer, struct wire_buffer *frames) {
    if (frames->failed) die("memory", "refused");
    if (frames->length > 0 && peer->stream != NULL) {
        size_t needed = peer->unsent_length + frames->length;
        if (needed > peer->unsent_capacity) peer->unsent = grown(peer->unsent, peer->unsent_capacity = 2 * needed);
        memcpy(peer->unsent + peer->unsent_length, frames->bytes, frames->length);
        peer->unsent_length = needed;
        if (!peer->connecting) flush(peer);
    }
    frames->length = 0;
}

// ---- what state machines say ----

static void enqueue(struct light *peer) {
    if (peer->queued) return;
    peer->queued = true;
    queue[queue_end] = place(peer);
    queue_end = (queue_end + 1) % (peer_count + 1);
}

static void park(struct light *peer, struct parked hello) {
    if (peer->parked_count == peer->parked_capacity) {
        peer->parked_capacity = peer->parked_capacity == 0 ? 16 : 2 * peer->parked_capacity;
        peer->parked = grown(peer->parked, peer->parked_capacity * sizeof *peer->parked);
    }
    peer->parked[peer->parked_count++] = hello;
}

static void link_up(struct light *to, struct parked hello) {
    static uint64_t serial;
    struct light *from = &peers[hello.from];
    if (from->gone || to->gone) return;
    struct wire_link_hello message = {
        .version = WIRE_VERSION, .kind = WIRE_LINK_DATA, .from = from->id, .to = to->id, .index = hello.index};
    memcpy(message.secret, member_welcome(from->core)->secret, sizeof message.secret);
    enum member_judgement judgement = member_judge_hello(to->core, &message);
    if (judgement == MEMBER_PARK) park(to, hello);
    if (judgement == MEMBER_REJECT) member_link_failed(from->core, &message.to, hello.index, &from->out);
    if (judgement == MEMBER_ACCEPT) {
        member_link_up(to->core, &message.from, hello.index, ++serial, 1, now, &to->out);
        member_link_up(from->core, &message.to, hello.index, serial, 1, now, &from->out);
        enqueue(to);
    }
    enqueue(from);
}

static void report(struct light *peer) { // no op is open
    struct wire_report nothing = {0};
    struct wire_header header = member_header(peer->core);
    header.epoch = peer->group_epoch;
    wire_encode_report(&peer->out.frames, header, &nothing);
}

static void carry_out_one(struct light *peer, const struct member_action *action) {
    switch (action->kind) {
    case MEMBER_DIAL: link_up(&peers[index_of(&action->id)], (struct parked){place(peer), action->index}); return;
    case MEMBER_RECHECK: {
        uint32_t count = peer->parked_count;
        struct parked *all = peer->parked;
        peer->parked = NULL;
        peer->parked_count = peer->parked_capacity = 0;
        for (uint32_t i = 0; i < count; i++) link_up(peer, all[i]);
        free(all);
        return;
    }
    case MEMBER_ENTER_EPOCH:
        peer->group_epoch = action->epoch->group_epoch;
        report(peer);
        return;
    case MEMBER_LINKS_READY: peer->ready = action->group_epoch; return;
    case MEMBER_VERDICT: peer->verdicts++; return;
    case MEMBER_CONNECT_END:
    case MEMBER_VOTE_END:
        if (action->code != 0) die("a peer", member_text(peer->core));
        peer->votes += action->kind == MEMBER_VOTE_END;
        return;
    case MEMBER_SEEK:
        hang_up(peer);
        peer->seeking = true;
        peer->dial_at = now + RETRY_MS * MS_NS;
        return;
    case MEMBER_FOUND: peer->seeking = false; return;
    case MEMBER_DIE: die("a peer is dead", member_text(peer->core)); return;
    default: return;
    }
}

// A state machine may speak while another one's words are carried out, so what it said is taken whole, and what it says
// then is for the next turn.
static void carry_out(void) {
    while (queue_begin != queue_end) {
        struct light *peer = &peers[queue[queue_begin]];
        queue_begin = (queue_begin + 1) % (peer_count + 1);
        peer->queued = false;
        if (peer->out.failed) die("memory", "refused");
        struct member_action *actions = peer->out.actions;
        size_t count = peer->out.count;
        peer->out.actions = NULL;
        peer->out.count = peer->out.capacity = 0;
        for (size_t i = 0; i < count && !peer->gone; i++) carry_out_one(peer, &actions[i]);
        free(actions);
        say(peer, &peer->out.frames);
        if (peer->out.count > 0) enqueue(peer);
    }
}

static void take_frames(struct light *peer) {
    size_t at = 0;
    struct wire_header header;
    while (peer->stream != NULL && peer->in_length - at >= WIRE_HEADER_BYTES) {
        if (!wire_header_decode(peer->in + at, &header)) die("the master", "sent something that is no message");
        if (peer->in_length - at < WIRE_HEADER_BYTES + header.length) break;
        member_frame(peer->core, &header, peer->in + at + WIRE_HEADER_BYTES, now, &peer->out);
        at += WIRE_HEADER_BYTES + header.length;
        enqueue(peer);
        carry_out(); // what a frame says is borrowed until the next one
    }
    if (peer->stream == NULL) return;
    memmove(peer->in, peer->in + at, peer->in_length - at);
    peer->in_length -= at;
}

static void lose(struct light *peer, const char *why) {
    hang_up(peer);
    if (peer->seeking)
        peer->dial_at = now + RETRY_MS * MS_NS;
    else
        member_disconnected(peer->core, why, now, &peer->out);
    enqueue(peer);
}

static void hear(struct light *peer);

static void connected(struct light *peer) {
    peer->connecting = false;
    peer->wants_write = true;
    if (member_phase(peer->core) == MEMBER_IDLE)
        member_join(peer->core, PORT, now, &peer->out);
    else
        member_resume(peer->core, PORT, false, MEMBER_TENSORS_AS_VOTED, NULL, now, &peer->out);
    say(peer, &peer->out.frames);
    flush(peer);
    enqueue(peer);
    if (peer->stream != NULL && peer->stream->buffered) hear(peer);
}

static void hear(struct light *peer) {
    if (peer->in_capacity - peer->in_length < CHUNK) peer->in = grown(peer->in, peer->in_capacity += CHUNK);
    ptrdiff_t got = transport_receive(peer->stream, peer->in + peer->in_length, peer->in_capacity - peer->in_length);
    if (got == -EAGAIN) return;
    if (got <= 0) {
        bool unheard = member_is_seeking(peer->core);
        peer->seeking = false;
        lose(peer, unheard ? "the next master was lost, too" : "the master was lost");
        return;
    }
    received += (uint64_t)got;
    peer->in_length += (size_t)got;
    take_frames(peer);
    if (peer->stream != NULL && peer->stream->buffered) hear(peer);
}

static void on_event(struct light *peer, uint32_t events) {
    if (peer->stream == NULL) return;
    if (peer->connecting) {
        int error = transport_step(peer->stream);
        if (error == -EAGAIN) {
            watch(peer, peer->stream->awaits);
            return;
        }
        if (error != 0 && !peer->seeking) die("cannot connect", strerror(-error));
        if (error != 0)
            lose(peer, "");
        else
            connected(peer);
        return;
    }
    if (events & EPOLLOUT) flush(peer);
    if (events & ~(uint32_t)EPOLLOUT) hear(peer);
}

// ---- time ----

static void turn(void) {
    static struct epoll_event events[WIRE_MAX_MEMBERS];
    int64_t next = platform_now_ns() + 100 * MS_NS;
    for (uint32_t i = 0; i < peer_count; i++) {
        const struct light *peer = &peers[i];
        if (peer->gone) continue;
        int64_t at = member_deadline(peer->core);
        if (peer->seeking && peer->stream == NULL && peer->dial_at < at) at = peer->dial_at;
        if (at < next) next = at;
    }
    int count = epoll_wait(poller, events, WIRE_MAX_MEMBERS, platform_wait_ms(platform_now_ns(), next));
    now = platform_now_ns();
    for (int i = 0; i < count; i++) {
        on_event(&peers[events[i].data.u32], events[i].events);
        carry_out();
    }
    now = platform_now_ns();
    for (uint32_t i = 0; i < peer_count; i++) {
        struct light *peer = &peers[i];
        if (peer->gone) continue;
        if (peer->seeking && peer->stream == NULL && peer->dial_at <= now) call(peer);
        if (member_deadline(peer->core) > now) continue;
        member_tick(peer->core, now, &peer->out);
        enqueue(peer);
        carry_out();
    }
}

// ---- what is to be done ----

static bool is_settled(const struct light *peer) { // in the epoch in force, with all links of it
    if (member_phase(peer->core) != MEMBER_ACCEPTED || member_is_seeking(peer->core)) return false;
    uint32_t count = member_epoch(peer->core)->ring.count;
    return count == alive && (count == 1 || peer->ready == peer->group_epoch);
}

static bool is_registered(const struct light *peer) { return member_phase(peer->core) >= MEMBER_REGISTERED; }

static uint32_t wanted; // votes or verdicts
static bool has_voted(const struct light *peer) { return peer->votes >= wanted; }
static bool has_verdict(const struct light *peer) { return peer->verdicts >= wanted; }

static void wait_for(bool (*done)(const struct light *peer), const char *what) {
    int64_t limit = platform_now_ns() + PHASE_LIMIT_MS * MS_NS, told = platform_now_ns();
    for (;;) {
        uint32_t ready = 0;
        for (uint32_t i = 0; i < peer_count; i++) ready += !peers[i].gone && done(&peers[i]);
        if (ready == alive) return;
        if (platform_now_ns() > limit) die(what, "not done within 120 s");
        if (now > told + SECOND_NS) {
            told = now;
            fprintf(stderr, "%s: %u of %u\n", what, ready, alive);
        }
        turn();
    }
}

static void end_one(struct light *peer) {
    peer->gone = true;
    hang_up(peer);
    alive--;
}

static void do_op(void) {
    static uint32_t sequence;
    wanted = peers[peer_count - 1].verdicts + 1;
    for (uint32_t i = 0; i < peer_count; i++) {
        struct light *peer = &peers[i];
        if (peer->gone) continue;
        peer->verdicts = wanted - 1;
        struct wire_op_done done = {.name = {.epoch = peer->group_epoch, .tag = 1, .sequence = sequence}};
        struct wire_header header = member_header(peer->core);
        header.epoch = peer->group_epoch;
        wire_encode_op_done(&peer->out.frames, header, &done);
        enqueue(peer);
    }
    sequence++;
    carry_out();
    wait_for(has_verdict, "op");
}

static void do_vote(enum wire_vote_kind kind) {
    wanted = peers[peer_count - 1].votes + 1;
    for (uint32_t i = 0; i < peer_count; i++) {
        if (peers[i].gone) continue;
        peers[i].votes = wanted - 1;
        member_vote(peers[i].core, kind, NULL, &peers[i].out);
        enqueue(&peers[i]);
    }
    carry_out();
    wait_for(has_voted, "vote");
}

// A TELEMETRY of a second with ten operations, and of both neighbours in the ring.
static void tell(struct light *peer) {
    const struct epoch_ring *ring = &member_epoch(peer->core)->ring;
    struct wire_telemetry told = {.ops = {.span_us = 1000000, .ops = 10, .op_us = 500000, .processor_us = 100000}};
    told.ops.epoch = member_epoch(peer->core)->group_epoch;
    for (uint32_t i = 1; i < ring->count && i <= 2; i++) {
        uint32_t other = (ring->rank + (i == 1 ? 1 : ring->count - 1)) % ring->count;
        told.others[told.count].id = ring->members[other].id;
        told.others[told.count++].seen = (struct wire_seen){.acked = 10000000,
                                                            .busy_us = 500000,
                                                            .segments = 10000,
                                                            .samples = 10,
                                                            .entries = 10,
                                                            .late_us = 5000,
                                                            .round_trip_us = 200};
    }
    wire_encode_telemetry(&peer->out.frames, member_header(peer->core), &told);
}

static void do_word(const char *word) {
    if (strcmp(word, "join") == 0) {
        for (uint32_t i = 0; i < peer_count; i++) call(&peers[i]);
        wait_for(is_registered, word);
    } else if (strcmp(word, "admit") == 0) {
        for (uint32_t i = 0; i < peer_count; i++) {
            if (member_phase(peers[i].core) != MEMBER_ACCEPTED) continue;
            member_vote(peers[i].core, WIRE_VOTE_UPDATE, NULL, &peers[i].out);
            enqueue(&peers[i]);
        }
        carry_out();
        wait_for(is_settled, word);
    } else if (strcmp(word, "vote") == 0) {
        do_vote(WIRE_VOTE_PENDING);
    } else if (strcmp(word, "op") == 0) {
        do_op();
    } else if (strcmp(word, "loss") == 0 || strcmp(word, "losses") == 0) {
        uint32_t count = strcmp(word, "loss") == 0 ? 1 : alive / 8;
        for (uint32_t i = 0; i < peer_count && count > 0; i++)
            if (!peers[i].gone && count-- > 0) end_one(&peers[i]);
        wait_for(is_settled, word);
    } else if (strcmp(word, "beat") == 0 || strcmp(word, "tell") == 0) {
        for (uint32_t i = 0; i < peer_count; i++) {
            if (!peers[i].gone && word[0] == 't')
                tell(&peers[i]);
            else if (!peers[i].gone)
                wire_encode_empty(&peers[i].out.frames, member_header(peers[i].core), WIRE_HEARTBEAT);
            enqueue(&peers[i]);
        }
        carry_out();
        for (int64_t until = platform_now_ns() + QUIET_MS * MS_NS; platform_now_ns() < until;) turn(); // nobody answers
    } else if (strcmp(word, "takeover") == 0) {
        for (uint32_t i = 0; i < peer_count; i++) {
            if (peers[i].gone || member_is_seeking(peers[i].core)) continue;
            lose(&peers[i], "the master was lost");
        }
        carry_out();
        wait_for(is_settled, word);
    } else {
        die(word, "unknown; see the head of bench/light_peers.c");
    }
}

static void begin(int argc, char **argv) {
    char *end = NULL;
    unsigned long count = argc >= 3 ? strtoul(argv[2], &end, 10) : 0;
    if (argc < 3 || argc > 4 || end == argv[2] || *end != 0 || count < 2 || count > WIRE_MAX_MEMBERS ||
        !socket_address_parse(argv[1], strlen(argv[1]), &master))
        die("usage",
            "light_peers ADDRESS:PORT PEERS [KEYS], 2 to 1024 of them; then words on standard input, see the head "
            "of bench/light_peers.c");
    char reason[KEYS_REASON_BYTES];
    struct transport_options options = {.party = TRANSPORT_PEER};
    if (argc == 4 && (options.keys = keys_load(argv[3], reason)) == NULL) die("the keys", reason);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < count + SPARE_DESCRIPTORS)
        die("too few descriptors", "raise `ulimit -Hn`");
    if (limit.rlim_cur < count + SPARE_DESCRIPTORS) limit.rlim_cur = count + SPARE_DESCRIPTORS;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("setrlimit", strerror(errno));
    peer_count = alive = (uint32_t)count;
    peers = calloc(count, sizeof *peers);
    queue = calloc(count + 1, sizeof *queue);
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (peers == NULL || queue == NULL || poller < 0) die("start", strerror(errno));
    for (uint32_t i = 0; i < peer_count; i++) {
        struct light *peer = &peers[i];
        peer->context = tls_context_new(&options);
        if (peer->context == NULL || !tls_peer_id(peer->context, &peer->id)) die("a context", "refused");
        peer->core = member_new(&peer->id, 0, 1);
        if (peer->core == NULL) die("memory", "refused");
        add_to_index(i);
        member_configure(peer->core, &(struct member_settings){.recovery_limit_ms = RECOVERY_MS, .masters = 1});
    }
    now = platform_now_ns();
}

int main(int argc, char **argv) {
    char word[32];
    begin(argc, argv);
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        while (poll(&input, 1, 0) == 0) turn();
        if (scanf("%31s", word) != 1) return 0;
        uint64_t sent_before = sent, received_before = received;
        int64_t began = platform_now_ns();
        do_word(word);
        printf("%s %.3f %llu %llu\n", word, (double)(platform_now_ns() - began) / MS_NS,
               (unsigned long long)(sent - sent_before), (unsigned long long)(received - received_before));
        fflush(stdout);
    }
}
