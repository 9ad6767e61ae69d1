#include "sim/crowd.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/platform.h"
#include "peer/member.h"
#include "master/core.h"
#include "sim/world.h"

enum {
    LIMIT_MS = 1000,
    RECOVERY_MS = 30000,
    BOUND_LIMITS = 12, // after the last fault, until all are one run again
    RETRY_MS = 15,
    ROUNDS = 3, // losses of the master
    PORT = 40000,
};

enum kind {
    TO_MASTER,
    MASTER_LOSES,
    MASTER_TICK,
    MASTER_STARTS,
    MASTER_ENDS,
    TO_PEER,
    PEER_LOSES,
    PEER_TICK,
    PEER_DIALS
};

struct event {
    int64_t at;
    uint64_t order;
    enum kind kind;
    uint32_t peer, life; // life: of the connection, or of the master
    uint8_t *frame;      // owned
};

struct parked {
    uint32_t from, index;
};

struct member_model {
    struct member *core;
    struct member_output out;
    bool ended, queued;
    int64_t stopped_until, tick_at;
    uint32_t conn, life;    // conn: + 1, 0: none; life: of it, no two are the same
    int64_t up_at, down_at; // last deliveries
    bool first;             // the master has heard nothing on this connection
    uint64_t ready, group_epoch;
    uint32_t votes;
    struct parked *parked;
    uint32_t parked_count, parked_capacity;
};

struct crowd {
    uint64_t random, orders;
    int64_t now;
    uint32_t count, living, round, takeovers, lives;
    struct member_model *members;
    struct master_core *master; // NULL: there is none
    uint32_t master_life;
    int64_t master_tick_at, faults_end, bound_at;
    uint32_t owner[ACTIONS_MAX_CONNS], owner_life[ACTIONS_MAX_CONNS]; // member + 1, 0: unused
    uint64_t generation, number, hash;                                // of the newest epoch that anybody was told
    struct event *heap;
    uint32_t heap_count, heap_capacity;
    uint32_t *queue, queue_begin, queue_end;
    bool voting, refused; // refused: memory
    char failure[512];
};

static void fail(struct crowd *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct crowd *c, const char *format, ...) {
    if (c->failure[0] != 0) return;
    va_list arguments;
    va_start(arguments, format);
    int length = snprintf(c->failure, sizeof c->failure, "%.3f ms: ", (double)(c->now - SECOND_NS) / MS_NS);
    vsnprintf(c->failure + length, sizeof c->failure - (size_t)length, format, arguments);
    va_end(arguments);
}

static struct wire_id number_id(uint32_t number) {
    struct wire_id id = {{0}};
    uint64_t spread = (number + 1) * UINT64_C(0x9E3779B97F4A7C15);
    memcpy(id.bytes, &spread, sizeof spread);
    memcpy(id.bytes + 8, &number, sizeof number);
    return id;
}

static uint32_t number_of_id(const struct wire_id *id) {
    uint32_t number;
    memcpy(&number, id->bytes + 8, sizeof number);
    return number;
}

static uint64_t below(struct crowd *c, uint64_t limit) {
    return sim_mix(c->random += UINT64_C(0x9E3779B97F4A7C15)) % limit;
}

static void *grown(void *at, size_t bytes) {
    void *made = realloc(at, bytes);
    if (made == NULL) abort(); // a test that cannot go on
    return made;
}

// ---- events ----

static bool is_before(const struct event *a, const struct event *b) {
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(struct crowd *c, struct event event) {
    if (c->heap_count == c->heap_capacity) {
        c->heap_capacity = c->heap_capacity == 0 ? 1024 : 2 * c->heap_capacity;
        c->heap = grown(c->heap, c->heap_capacity * sizeof *c->heap);
    }
    event.order = c->orders++;
    uint32_t at = c->heap_count++;
    for (; at > 0 && is_before(&event, &c->heap[(at - 1) / 2]); at = (at - 1) / 2) c->heap[at] = c->heap[(at - 1) / 2];
    c->heap[at] = event;
}

static struct event pop(struct crowd *c) {
    struct event first = c->heap[0], last = c->heap[--c->heap_count];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < c->heap_count; at = child) {
        if (child + 1 < c->heap_count && is_before(&c->heap[child + 1], &c->heap[child])) child++;
        if (is_before(&last, &c->heap[child])) break;
        c->heap[at] = c->heap[child];
    }
    c->heap[at] = last;
    return first;
}

static int64_t delay(struct crowd *c) {
    return (int64_t)(below(c, 20) == 0 ? 1 + below(c, 50 * MS_NS) : 1 + below(c, 2 * MS_NS));
}

static uint32_t place(const struct crowd *c, const struct member_model *p) { return (uint32_t)(p - c->members); }

static void enqueue(struct crowd *c, struct member_model *p) {
    if (p->queued || p->ended) return;
    p->queued = true;
    c->queue[c->queue_end] = place(c, p);
    c->queue_end = (c->queue_end + 1) % (c->count + 1);
}

// ---- the connection of a member ----

static uint8_t *copy_of(const uint8_t *frame, size_t length) { return memcpy(grown(NULL, length), frame, length); }

static void say(struct crowd *c, struct member_model *p) {
    struct wire_buffer *frames = &p->out.frames;
    for (size_t at = 0; at < frames->length && p->conn != 0;) {
        struct wire_header header;
        if (!wire_header_decode(frames->bytes + at, &header)) break;
        size_t length = WIRE_HEADER_BYTES + header.length;
        p->up_at = platform_later(p->up_at, c->now + delay(c));
        push(c, (struct event){.at = p->up_at,
                               .kind = TO_MASTER,
                               .peer = place(c, p),
                               .life = p->life,
                               .frame = copy_of(frames->bytes + at, length)});
        at += length;
    }
    frames->length = 0;
}

static void hang_up(struct crowd *c, struct member_model *p, bool told) {
    if (p->conn == 0) return;
    if (told)
        push(c, (struct event){.at = platform_later(p->up_at, c->now) + delay(c),
                               .kind = MASTER_LOSES,
                               .peer = p->conn - 1,
                               .life = p->life});
    p->conn = 0;
    p->life = ++c->lives;
}

static void dial(struct crowd *c, struct member_model *p) {
    uint32_t conn = 0;
    while (conn < ACTIONS_MAX_CONNS && c->owner[conn] != 0) conn++;
    if (c->master == NULL || conn == ACTIONS_MAX_CONNS) {
        push(c,
             (struct event){.at = c->now + RETRY_MS * MS_NS, .kind = PEER_DIALS, .peer = place(c, p), .life = p->life});
        return;
    }
    p->conn = conn + 1;
    p->life = ++c->lives;
    p->first = true;
    p->up_at = p->down_at = c->now;
    c->owner[conn] = place(c, p) + 1;
    c->owner_life[conn] = p->life;
    if (member_phase(p->core) == MEMBER_IDLE)
        member_join(p->core, PORT, c->now, &p->out);
    else
        member_resume(p->core, PORT, false, MEMBER_TENSORS_AS_VOTED, NULL, c->now, &p->out);
    enqueue(c, p);
}

// ---- what state machines say ----

static void link_up(struct crowd *c, struct member_model *to, struct parked hello) {
    struct member_model *from = &c->members[hello.from];
    if (from->ended || to->ended) return; // the loss is told by the master
    struct wire_link_hello message = {.version = WIRE_VERSION,
                                      .kind = WIRE_LINK_DATA,
                                      .from = number_id(hello.from),
                                      .to = number_id(place(c, to)),
                                      .index = hello.index};
    memcpy(message.secret, member_welcome(from->core)->secret, sizeof message.secret);
    enum member_judgement judgement = member_judge_hello(to->core, &message);
    if (judgement == MEMBER_PARK) {
        if (to->parked_count == to->parked_capacity) {
            to->parked_capacity = to->parked_capacity == 0 ? 16 : 2 * to->parked_capacity;
            to->parked = grown(to->parked, to->parked_capacity * sizeof *to->parked);
        }
        to->parked[to->parked_count++] = hello;
    } else if (judgement == MEMBER_REJECT) {
        member_link_failed(from->core, &message.to, hello.index, &from->out);
    } else {
        member_link_up(to->core, &message.from, hello.index, 1, 1, c->now, &to->out);
        member_link_up(from->core, &message.to, hello.index, 1, 1, c->now, &from->out);
        enqueue(c, to);
    }
    enqueue(c, from);
}

static void carry_out_one(struct crowd *c, struct member_model *p, const struct member_action *action) {
    struct wire_report nothing = {0};
    struct wire_header header;
    switch (action->kind) {
    case MEMBER_DIAL:
        link_up(c, &c->members[number_of_id(&action->id)], (struct parked){place(c, p), action->index});
        return;
    case MEMBER_RECHECK: {
        uint32_t count = p->parked_count;
        struct parked *all = p->parked;
        p->parked = NULL;
        p->parked_count = p->parked_capacity = 0;
        for (uint32_t i = 0; i < count; i++) link_up(c, p, all[i]);
        free(all);
        return;
    }
    case MEMBER_ENTER_EPOCH:
        p->group_epoch = action->epoch->group_epoch;
        header = member_header(p->core);
        header.epoch = p->group_epoch;
        wire_encode_report(&p->out.frames, header, &nothing);
        return;
    case MEMBER_LINKS_READY: p->ready = action->group_epoch; return;
    case MEMBER_CONNECT_END:
    case MEMBER_VOTE_END:
        if (action->code != 0) fail(c, "progress: peer %u: %s", place(c, p) + 1, member_text(p->core));
        p->votes += action->kind == MEMBER_VOTE_END;
        return;
    case MEMBER_SEEK:
        hang_up(c, p, true);
        push(c,
             (struct event){.at = c->now + RETRY_MS * MS_NS, .kind = PEER_DIALS, .peer = place(c, p), .life = p->life});
        return;
    case MEMBER_DIE: fail(c, "progress: peer %u is dead: %s", place(c, p) + 1, member_text(p->core)); return;
    default: return;
    }
}

static void plan_tick(struct crowd *c, struct member_model *p) {
    int64_t at = member_deadline(p->core);
    if (at == INT64_MAX || at >= p->tick_at) return;
    p->tick_at = at > c->now ? at : c->now;
    push(c, (struct event){.at = p->tick_at, .kind = PEER_TICK, .peer = place(c, p)});
}

static void carry_out(struct crowd *c) {
    while (c->queue_begin != c->queue_end) {
        struct member_model *p = &c->members[c->queue[c->queue_begin]];
        c->queue_begin = (c->queue_begin + 1) % (c->count + 1);
        p->queued = false;
        struct member_action *actions = p->out.actions;
        size_t count = p->out.count;
        p->out.actions = NULL;
        p->out.count = p->out.capacity = 0;
        if (p->out.failed) abort(); // a test that cannot go on
        for (size_t i = 0; i < count && !p->ended; i++) carry_out_one(c, p, &actions[i]);
        free(actions);
        say(c, p);
        if (p->out.count > 0) enqueue(c, p);
        plan_tick(c, p);
    }
}

// ---- the master ----

// Agreement: an epoch of one generation and number has the same members, whoever hears of it. Fencing: generations
// grow.
static void judge_epoch(struct crowd *c, const struct wire_header *header, const uint8_t *body) {
    static _Thread_local struct wire_member members[WIRE_MAX_MEMBERS];
    struct wire_epoch_commit commit = {.epoch.members = members};
    if (!wire_decode_epoch_commit(body, header->length, &commit)) {
        fail(c, "no trust in bytes: the master made an EPOCH that is malformed");
        return;
    }
    uint64_t hash = commit.epoch.count;
    for (uint32_t i = 0; i < commit.epoch.count; i++)
        hash = (hash ^ number_of_id(&members[i].id)) * UINT64_C(0x9E3779B97F4A7C15);
    bool same = header->generation == c->generation && commit.epoch.number == c->number;
    if (same && hash != c->hash)
        fail(c, "agreement: epoch %llu has other members for some", (unsigned long long)c->number);
    if (header->generation < c->generation || (header->generation == c->generation && commit.epoch.number < c->number))
        fail(c, "fencing: epoch %llu of generation %llu after epoch %llu of %llu",
             (unsigned long long)commit.epoch.number, (unsigned long long)header->generation,
             (unsigned long long)c->number, (unsigned long long)c->generation);
    if (header->generation > c->generation) c->takeovers += c->generation > 0;
    c->generation = header->generation;
    c->number = commit.epoch.number;
    c->hash = hash;
}

static void apply(struct crowd *c, const struct actions *actions) {
    for (size_t i = 0; i < actions->send_count; i++) {
        const struct actions_send *send = &actions->sends[i];
        if (c->owner[send->conn] == 0) continue;
        struct member_model *p = &c->members[c->owner[send->conn] - 1];
        if (p->conn != send->conn + 1 || p->life != c->owner_life[send->conn]) continue; // it has left that connection
        const uint8_t *frame = actions->bytes.bytes + send->offset;
        struct wire_header header;
        if (wire_header_decode(frame, &header) && header.type == WIRE_EPOCH)
            judge_epoch(c, &header, frame + WIRE_HEADER_BYTES);
        p->down_at = platform_later(p->down_at, c->now + delay(c));
        push(c, (struct event){.at = p->down_at,
                               .kind = TO_PEER,
                               .peer = place(c, p),
                               .life = p->life,
                               .frame = copy_of(frame, send->length)});
    }
    for (size_t i = 0; i < actions->close_count; i++) {
        uint32_t conn = actions->closes[i];
        if (c->owner[conn] == 0) continue;
        struct member_model *p = &c->members[c->owner[conn] - 1];
        if (p->conn == conn + 1 && p->life == c->owner_life[conn])
            push(c, (struct event){.at = platform_later(p->down_at, c->now) + 1,
                                   .kind = PEER_LOSES,
                                   .peer = place(c, p),
                                   .life = p->life});
        c->owner[conn] = 0;
    }
    int64_t next = core_next_deadline(c->master);
    if (next >= c->master_tick_at) return;
    c->master_tick_at = next > c->now ? next : c->now;
    push(c, (struct event){.at = c->master_tick_at, .kind = MASTER_TICK, .life = c->master_life});
}

static void start_master(struct crowd *c) {
    uint8_t random[CORE_RANDOM_BYTES];
    for (size_t i = 0; i < sizeof random; i++) random[i] = (uint8_t)below(c, 256);
    c->master = core_new(LIMIT_MS, random, c->now);
    if (c->master == NULL) abort(); // a test that cannot go on
    c->master_life++;
    c->master_tick_at = INT64_MAX;
    core_configure(c->master, &(struct core_settings){.survivors_until_ns = c->now + 100 * MS_NS});
}

static void end_master(struct crowd *c) {
    core_free(c->master);
    c->master = NULL;
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS; i++) {
        if (c->owner[i] == 0) continue;
        struct member_model *p = &c->members[c->owner[i] - 1];
        if (p->conn == i + 1 && p->life == c->owner_life[i])
            push(c, (struct event){.at = platform_later(p->down_at, c->now) + delay(c),
                                   .kind = PEER_LOSES,
                                   .peer = place(c, p),
                                   .life = p->life});
        c->owner[i] = 0;
    }
}

static void to_master(struct crowd *c, const struct event *event) {
    struct member_model *p = &c->members[event->peer];
    if (c->master == NULL || p->conn == 0 || p->life != event->life || c->owner[p->conn - 1] != event->peer + 1) return;
    struct wire_header header;
    struct wire_hello hello;
    struct wire_address source = {
        .family = 4, .bytes = {10, 0, (uint8_t)(event->peer >> 8), (uint8_t)event->peer}, .port = 999};
    const uint8_t *body = event->frame + WIRE_HEADER_BYTES;
    if (!wire_header_decode(event->frame, &header)) return;
    bool first = p->first;
    p->first = false;
    if (first && header.type == WIRE_HELLO && wire_decode_hello(body, header.length, &hello))
        apply(c, core_peer_connected(c->master, c->now, p->conn - 1, &source, &hello));
    else if (first && header.type == WIRE_RESUME)
        apply(c, core_peer_resumed(c->master, c->now, p->conn - 1, &source, &header, body));
    else
        apply(c, core_message(c->master, c->now, p->conn - 1, &header, body));
}

// ---- what goes wrong, and what must come of it ----

static bool is_one_run(const struct crowd *c) {
    for (uint32_t i = 0; i < c->count; i++) {
        const struct member_model *p = &c->members[i];
        if (p->ended) continue;
        if (member_phase(p->core) != MEMBER_ACCEPTED || member_is_seeking(p->core)) return false;
        if (member_epoch(p->core)->ring.count != c->living || p->ready != p->group_epoch) return false;
    }
    return true;
}

static bool all_voted(const struct crowd *c) {
    for (uint32_t i = 0; i < c->count; i++)
        if (!c->members[i].ended && c->members[i].votes < c->round) return false;
    return true;
}

// Lets all members vote. Returns false if there are none.
static bool vote(struct crowd *c, enum wire_vote_kind kind) {
    bool any = false;
    for (uint32_t i = 0; i < c->count; i++) {
        struct member_model *p = &c->members[i];
        if (p->ended || member_phase(p->core) != MEMBER_ACCEPTED) continue;
        member_vote(p->core, kind, NULL, &p->out);
        enqueue(c, p);
        any = true;
    }
    carry_out(c);
    return any;
}

// The master ends while all vote; the next one may end while it gathers; some members end with it, or stand still
// meanwhile.
static void lose_master(struct crowd *c) {
    int64_t at = c->now + (int64_t)below(c, 20 * MS_NS), back = at;
    for (uint64_t times = 1 + below(c, 3); times > 0; times--) {
        push(c, (struct event){.at = at, .kind = MASTER_ENDS});
        back = at + (int64_t)below(c, 300 * MS_NS);
        push(c, (struct event){.at = back, .kind = MASTER_STARTS});
        at = back + (int64_t)below(c, 400 * MS_NS);
    }
    uint64_t ends = below(c, 2) == 0 ? 0 : below(c, c->living / 4), stands = below(c, c->living / 4);
    for (; ends > 0; ends--) {
        struct member_model *p = &c->members[below(c, c->count)];
        if (p->ended) continue;
        p->ended = true;
        c->living--;
        hang_up(c, p, below(c, 2) == 0);
    }
    for (; stands > 0; stands--)
        c->members[below(c, c->count)].stopped_until = c->now + (int64_t)below(c, LIMIT_MS / 2 * MS_NS);
    c->faults_end = back;
    c->bound_at = back + BOUND_LIMITS * LIMIT_MS * MS_NS;
}

static void go_on(struct crowd *c) {
    if (c->now <= c->faults_end) return;
    if (c->now > c->bound_at) {
        uint32_t in = 0;
        for (uint32_t i = 0; i < c->count; i++)
            in += !c->members[i].ended && member_phase(c->members[i].core) == MEMBER_ACCEPTED &&
                  !member_is_seeking(c->members[i].core);
        fail(c, "bounded time: %u of %u living peers are in the run %d heartbeat limits after the last fault", in,
             c->living, BOUND_LIMITS);
    }
    if (!is_one_run(c)) {
        if (c->round == 0 && !c->voting && core_peer_count(c->master) == c->count)
            c->voting = vote(c, WIRE_VOTE_UPDATE);
        return;
    }
    if (c->round == 0)
        for (uint32_t i = 0; i < c->count; i++) c->members[i].votes = 0;
    if (!all_voted(c)) return;
    if (++c->round > ROUNDS) return; // it is over
    vote(c, WIRE_VOTE_PENDING);
    lose_master(c);
}

// ---- a run ----

static void run_event(struct crowd *c, const struct event *event) {
    struct member_model *p = &c->members[event->peer];
    struct wire_header header;
    switch (event->kind) {
    case TO_MASTER: to_master(c, event); return;
    case MASTER_LOSES:
        if (c->master == NULL || c->owner[event->peer] == 0 || c->owner_life[event->peer] != event->life) return;
        c->owner[event->peer] = 0;
        apply(c, core_peer_lost(c->master, c->now, event->peer, "its connection ended"));
        return;
    case MASTER_TICK:
        if (c->master == NULL || event->life != c->master_life || event->at != c->master_tick_at) return;
        c->master_tick_at = INT64_MAX;
        apply(c, core_tick(c->master, c->now));
        return;
    case MASTER_STARTS: start_master(c); return;
    case MASTER_ENDS: end_master(c); return;
    case TO_PEER:
        if (p->life != event->life || p->conn == 0 || !wire_header_decode(event->frame, &header)) return;
        member_frame(p->core, &header, event->frame + WIRE_HEADER_BYTES, c->now, &p->out);
        break;
    case PEER_LOSES:
        if (p->life != event->life || p->conn == 0) return;
        hang_up(c, p, false);
        member_disconnected(p->core, "its connection ended", c->now, &p->out);
        break;
    case PEER_TICK:
        if (p->tick_at != event->at) return;
        p->tick_at = INT64_MAX;
        if (member_deadline(p->core) <= c->now) member_tick(p->core, c->now, &p->out);
        break;
    case PEER_DIALS:
        if (p->life != event->life || p->conn != 0) return;
        dial(c, p);
        break;
    }
    enqueue(c, p);
    carry_out(c);
}

static bool is_for_peer(enum kind kind) { return kind >= TO_PEER; }

bool crowd_step(struct crowd *c) {
    if (c->failure[0] != 0 || c->round > ROUNDS) return false;
    if (c->heap_count == 0) {
        fail(c, "progress: nothing will ever happen again");
        return false;
    }
    struct event event = pop(c);
    c->now = event.at;
    struct member_model *p = &c->members[is_for_peer(event.kind) ? event.peer : 0];
    if (is_for_peer(event.kind) && p->stopped_until > c->now && !p->ended) {
        if (event.kind == PEER_TICK && p->tick_at == event.at) p->tick_at = p->stopped_until;
        event.at = p->stopped_until;
        push(c, event);
        return true;
    }
    if (!is_for_peer(event.kind) || !p->ended) run_event(c, &event);
    free(event.frame);
    if (event.kind != TO_MASTER) go_on(c);
    return true;
}

const char *crowd_failure(const struct crowd *c) { return c->failure; }
uint32_t crowd_takeovers(const struct crowd *c) { return c->takeovers; }

struct crowd *crowd_new(uint64_t seed, uint32_t peers) {
    struct crowd *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    c->random = seed * UINT64_C(0xD1342543DE82EF95) + peers;
    c->now = SECOND_NS;
    c->members = calloc(peers, sizeof *c->members);
    c->queue = calloc(peers + 1, sizeof *c->queue);
    c->count = c->members != NULL ? peers : 0;
    for (uint32_t i = 0; i < c->count; i++) {
        struct wire_id id = number_id(i);
        c->members[i] = (struct member_model){.core = member_new(&id, 0, 1), .tick_at = INT64_MAX};
        static const struct member_settings settings = {.recovery_limit_ms = RECOVERY_MS, .masters = 1};
        if (c->members[i].core != NULL) member_configure(c->members[i].core, &settings);
        c->refused |= c->members[i].core == NULL;
    }
    if (c->refused || c->members == NULL || c->queue == NULL) {
        crowd_free(c);
        return NULL;
    }
    c->living = peers;
    c->bound_at = c->now + BOUND_LIMITS * LIMIT_MS * MS_NS;
    start_master(c);
    core_configure(c->master, &(struct core_settings){.survivors_until_ns = c->now}); // there was no run before
    for (uint32_t i = 0; i < peers; i++)
        push(c, (struct event){.at = c->now + (i == 0 ? 0 : MS_NS + delay(c)), .kind = PEER_DIALS, .peer = i});
    return c;
}

void crowd_free(struct crowd *c) {
    if (c == NULL) return;
    for (uint32_t i = 0; i < c->count; i++) {
        member_free(c->members[i].core);
        member_output_fini(&c->members[i].out);
        free(c->members[i].parked);
    }
    while (c->heap_count > 0) free(c->heap[--c->heap_count].frame);
    core_free(c->master);
    free(c->members);
    free(c->queue);
    free(c->heap);
    free(c);
}
