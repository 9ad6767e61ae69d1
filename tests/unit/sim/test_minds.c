// The master's mind and the peers' minds together, in virtual time, with a model of the network and of the data plane:
// random delays, crashes, leaves, stopped processes, broken links, pairs that cannot reach each other, joins, and
// masters that are killed at any moment, with what they said last heard by some and not by others, and come back. A run
// is a seed; a failing one replays exactly: test_minds <seed> [how many]; MINDS_LOG=1 tells what the minds say.
//
// Every peer runs one program: vote, admit newcomers, now and then optimise, reduce a few tags, repeat what was lost,
// sync its state. Checked:
//  - agreement: of one op no peer gets success and another, that lives and stays, a retryable error;
//  - votes: of one vote of all, every peer hears the same end;
//  - attributes: peers that pass the same point read the same numbers (else their programs part ways, and nothing goes
//  on);
//  - state: a sync ends alike for all its members, and success means the same content and revision on all; the revision
//  of a member
//    never goes back, and nobody is expelled for one that its group had;
//  - progress: when the faults end, every program that lives and is still a member goes on; an unreachable pair costs
//  at most one of the two.
#include "peer/member_private.h"
#include "master/membership.h"

#include "base/platform.h"
#include "check.h"

enum {
    PEERS = 8,
    LANES = 2,
    LIMIT_MS = 400,
    TAGS = 4,
    FAULTS_MS = 12000,
    CALM_MS = 12000,
    EVENTS_MAX = 1 << 15,
    CONNS_MAX = 1 << 13,
    INSTANCES_MAX = 1 << 15,
    SYNCS_MAX = 1 << 14,
    SYNC_TRIES = 3, // then the program helps itself
    PARKED_MAX = 256,
    KEPT_MAX = 64,
    BARRIERS_MAX = 1 << 14,
    RECOVERY_MS = 4000,
    YOUNG_MS = 100,
};

enum event_kind {
    TO_MASTER,
    LOST_AT_MASTER,
    TO_PEER,
    CLOSED_AT_PEER,
    MASTER_TICK,
    PEER_TICK,
    DIAL_ARRIVES,
    DIAL_FAILS,
    DIALLED,
    LINK_LOST,
    PROBED,
    PROGRAM,
    COMPLETE,
    SUPPLY,
    FETCHED,
    SEEK,
    MASTER_START,
    FAULT
};

struct event {
    int64_t at;
    uint64_t order;
    enum event_kind kind;
    int peer;      // slot; who it is for
    uint32_t life; // of that slot; void in another life
    int other;     // slot
    uint32_t other_life, index, connection, instance;
    uint64_t rate;
    uint32_t master, conn; // life of the master, and its number for the connection
    struct wire_header header;
    uint8_t *body; // owned
};

// One link between two lives of two slots.
struct connection {
    int ends[2];
    uint32_t lives[2], index;
    bool open;
};

enum op_phase { OP_NONE, OP_WAITING, OP_RUNNING, OP_DONE, OP_SUPPLIED, OP_OK, OP_LOST };

struct op {
    enum op_phase phase;
    bool small, frozen;
    uint64_t adopted, lost_epoch;
    struct wire_op_name name;
    uint32_t instance;
};

// One op name in one group: who took part and how it ended there.
struct instance {
    struct wire_op_name name;
    uint64_t run, generation;
    uint32_t group;
    bool small, scheduled;
    uint32_t lives[PEERS];
    bool began[PEERS], ok[PEERS], lost[PEERS];
};

// How one round of shared state ended, at the first member that heard of it.
struct sync_round {
    uint64_t number, run, code, revision, content;
};

// The end of one vote of all, likewise.
struct barrier {
    uint64_t run, number, value, epoch;
    uint32_t kind, code, world, groups;
    uint32_t lives[PEERS]; // that heard so
};

struct kept {
    uint32_t instance;
};

struct peer {
    bool running; // a process
    uint32_t life, group;
    int64_t stopped_until;
    struct member *mind;
    struct member_output out;
    int64_t to_master_at, from_master_at; // last delivery, so that order is kept
    bool connected;                       // to the master, by `conn` of its life `master`
    uint32_t master, conn;
    int64_t cut_at; // nothing of the killed master arrives after this
    uint64_t checked_barrier;
    uint32_t current[PEERS][LANES + 1]; // connection + 1
    struct {
        struct wire_link_hello hello;
        uint32_t connection;
        int64_t until;
    } parked[PARKED_MAX];
    size_t parked_count;

    // the data plane
    uint64_t group_epoch, generation;
    bool ready;
    uint64_t losses[256];
    size_t loss_count;
    uint32_t sequence[TAGS];
    struct op ops[TAGS];
    struct kept kept[KEPT_MAX];
    size_t kept_count;

    // shared state
    uint64_t revision, content;
    uint64_t committed; // the revision after the last success
    bool incomplete, honest, wrote, received;
    uint64_t sync_round; // of the plan, 0: none
    struct wire_id donors[PEERS];
    uint32_t donor_count, tries;

    // the program
    enum { JOINING, VOTING, REDUCING, SYNCING, FINISHED } step;
    uint8_t vote;
    uint32_t rounds;
};

static uint64_t seed;
static int64_t now;
static struct membership *master; // NULL: killed
static uint32_t master_life, conn_count;
static struct {
    int peer;
    uint32_t life;
} conns[MEMBERSHIP_MAX_CONNS]; // of this master
static struct barrier barriers[BARRIERS_MAX];
static uint32_t barrier_count, sync_count;
static struct event events[EVENTS_MAX];
static size_t event_count;
static uint64_t orders;
static struct peer peers[PEERS];
static bool blocked[PEERS][PEERS];
static struct connection connections[CONNS_MAX];
static uint32_t connection_count;
static struct instance instances[INSTANCES_MAX];
static uint32_t instance_count;
static struct sync_round syncs[SYNCS_MAX];
static bool faulty, kills;
enum {
    COUNT_CRASH,
    COUNT_LEAVE,
    COUNT_STOP,
    COUNT_BREAK,
    COUNT_BLOCK,
    COUNT_EXPELLED,
    COUNT_REFUSED,
    COUNT_OK,
    COUNT_LOST,
    COUNT_SUPPLY,
    COUNT_REDO,
    COUNT_ORDERS,
    COUNT_ROUNDS,
    COUNT_JOIN,
    COUNT_SYNC,
    COUNT_FETCHED,
    COUNT_UNFETCHED,
    COUNT_NO_STATE,
    COUNT_KICKED,
    COUNT_RESUMED,
    COUNT_KILL,
    COUNT_FOUND,
    COUNT_LATE,
    COUNT_TORN,
    COUNT_AFRESH,
    COUNT_MINORITY,
    COUNTS
};
static uint64_t totals[COUNTS]; // what happened, to prove that it did

static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

static int64_t delay(void) { return (int64_t)(1 + below(below(8) == 0 ? 30 : 4)) * MS_NS + (int64_t)below(MS_NS); }

// ---- events ----

static bool is_before(const struct event *a, const struct event *b) {
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static void push(struct event event) {
    REQUIRE(event_count < EVENTS_MAX);
    event.order = orders++;
    size_t at = event_count++;
    for (; at > 0 && is_before(&event, &events[(at - 1) / 2]); at = (at - 1) / 2) events[at] = events[(at - 1) / 2];
    events[at] = event;
}

static struct event pop(void) {
    struct event first = events[0], last = events[--event_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= event_count) break;
        if (child + 1 < event_count && is_before(&events[child + 1], &events[child])) child++;
        if (!is_before(&events[child], &last)) break;
        events[at] = events[child];
        at = child;
    }
    if (event_count > 0) events[at] = last;
    return first;
}

static void push_for(int peer, enum event_kind kind, int64_t at) {
    push((struct event){.at = at, .kind = kind, .peer = peer, .life = peers[peer].life});
}

static int slot_of(const struct wire_id *id, uint32_t *life) {
    memcpy(life, id->bytes + 4, sizeof *life);
    return id->bytes[0] - 1;
}

static struct wire_id id_of(int peer) {
    struct wire_id id = {{(uint8_t)(peer + 1)}};
    memcpy(id.bytes + 4, &peers[peer].life, sizeof peers[peer].life);
    return id;
}

static bool alive(int peer, uint32_t life) { return peers[peer].running && peers[peer].life == life; }

// ---- master ----

static uint64_t master_ticks;
static int64_t killed_at;

static struct peer *peer_at(uint32_t conn) {
    struct peer *peer = &peers[conns[conn].peer];
    return peer->life == conns[conn].life && peer->connected && peer->master == master_life && peer->conn == conn
               ? peer
               : NULL;
}

static void carry_out(const struct membership_actions *actions) {
    for (size_t i = 0; i < actions->log_count; i++)
        if (getenv("MINDS_LOG") != NULL)
            fprintf(stderr, "%8.3f master: %s\n", (double)now / 1e9, actions->logs[i].text);
    for (size_t i = 0; i < actions->send_count; i++) {
        const struct membership_send *send = &actions->sends[i];
        struct peer *peer = peer_at(send->conn);
        if (peer == NULL) continue;
        struct event event = {.kind = TO_PEER,
                              .peer = conns[send->conn].peer,
                              .life = peer->life,
                              .master = master_life,
                              .conn = send->conn};
        CHECK(wire_header_decode(actions->bytes.bytes + send->offset, &event.header));
        event.body = malloc(event.header.length + 1);
        memcpy(event.body, actions->bytes.bytes + send->offset + WIRE_HEADER_BYTES, event.header.length);
        event.at = now + delay();
        if (event.at < peer->from_master_at) event.at = peer->from_master_at;
        peer->from_master_at = event.at;
        push(event);
    }
    for (size_t i = 0; i < actions->close_count; i++) {
        struct peer *peer = peer_at(actions->closes[i]);
        if (peer != NULL)
            push((struct event){.at = peer->from_master_at > now ? peer->from_master_at : now + delay(),
                                .kind = CLOSED_AT_PEER,
                                .peer = conns[actions->closes[i]].peer,
                                .life = peer->life,
                                .master = master_life,
                                .conn = actions->closes[i]});
    }
    uint8_t random[MEMBERSHIP_RANDOM_BYTES];
    for (size_t i = 0; i < sizeof random; i++) random[i] = (uint8_t)check_random(&seed);
    if (membership_wants_random(master)) membership_set_random(master, random);
    int64_t next = membership_next_deadline(master);
    if (next < INT64_MAX)
        push((struct event){.at = next > now ? next : now, .kind = MASTER_TICK, .index = (uint32_t)++master_ticks});
}

static void start_master(void) {
    uint8_t random[MEMBERSHIP_RANDOM_BYTES];
    for (size_t i = 0; i < sizeof random; i++) random[i] = (uint8_t)check_random(&seed);
    master = membership_new(LIMIT_MS, random, now);
    REQUIRE(master != NULL);
    membership_expect_survivors(master, now + YOUNG_MS * MS_NS);
    master_life++;
    conn_count = 0;
}

// What it has sent is on its way: each peer gets a part of it, from the front, and then hears that the connection is
// gone.
static void kill_master(void) {
    if (master == NULL) return;
    if (getenv("MINDS_LOG") != NULL) fprintf(stderr, "%8.3f the master is killed\n", (double)now / 1e9);
    totals[COUNT_KILL]++;
    killed_at = now;
    membership_free(master);
    master = NULL;
    for (int p = 0; p < PEERS; p++) {
        if (!peers[p].running || !peers[p].connected) continue;
        peers[p].cut_at = now + (below(2) ? (int64_t)below(20 * MS_NS) : 0);
        push((struct event){.at = peers[p].cut_at,
                            .kind = CLOSED_AT_PEER,
                            .peer = p,
                            .life = peers[p].life,
                            .master = master_life,
                            .conn = peers[p].conn});
    }
    push((struct event){.at = now + (int64_t)below(below(3) ? 200 : 1500) * MS_NS, .kind = MASTER_START});
}

// A connection to the master; frames may follow.
static bool connect_to_master(int p) {
    if (master == NULL || conn_count == MEMBERSHIP_MAX_CONNS) return false;
    struct peer *peer = &peers[p];
    peer->connected = true;
    peer->master = master_life;
    peer->conn = conn_count++;
    conns[peer->conn].peer = p;
    conns[peer->conn].life = peer->life;
    peer->to_master_at = peer->from_master_at = now;
    peer->cut_at = INT64_MAX;
    return true;
}

static void disconnect(int p) {
    struct peer *peer = &peers[p];
    if (!peer->connected) return;
    peer->connected = false;
    int64_t at = now + delay();
    if (at < peer->to_master_at) at = peer->to_master_at;
    push((struct event){.at = at, .kind = LOST_AT_MASTER, .master = peer->master, .conn = peer->conn});
}

// ---- links ----

static void lose_end(uint32_t connection, int end, int64_t after) {
    struct connection *c = &connections[connection];
    int peer = c->ends[end];
    if (!alive(peer, c->lives[end])) return;
    push((struct event){.at = now + after,
                        .kind = LINK_LOST,
                        .peer = peer,
                        .life = c->lives[end],
                        .other = c->ends[!end],
                        .index = c->index,
                        .connection = connection});
}

static void close_connection(uint32_t connection, int by) { // by: slot that closes it, or -1: the network
    struct connection *c = &connections[connection];
    if (!c->open) return;
    c->open = false;
    for (int end = 0; end < 2; end++)
        if (c->ends[end] != by) lose_end(connection, end, delay());
}

static void use_connection(int peer, int other, uint32_t index, uint32_t connection) {
    uint32_t *current = &peers[peer].current[other][index];
    if (*current != 0) close_connection(*current - 1, peer);
    *current = connection + 1;
}

static void act(int p);

static void judge(int p, const struct wire_link_hello *hello, uint32_t connection, int64_t until) {
    struct peer *peer = &peers[p];
    struct connection *c = &connections[connection];
    uint32_t life;
    int from = slot_of(&hello->from, &life);
    if (!alive(from, life)) return;
    enum member_judgement judgement = member_judge_hello(peer->mind, hello);
    if (judgement == MEMBER_PARK && peer->parked_count < PARKED_MAX && now < until) {
        peer->parked[peer->parked_count].hello = *hello;
        peer->parked[peer->parked_count].connection = connection;
        peer->parked[peer->parked_count++].until = until;
        return;
    }
    bool accepted = judgement == MEMBER_ACCEPT;
    push((struct event){.at = now + delay(),
                        .kind = accepted ? DIALLED : DIAL_FAILS,
                        .peer = from,
                        .life = life,
                        .other = p,
                        .other_life = peer->life,
                        .index = hello->index,
                        .connection = connection});
    if (!accepted) return;
    c->open = true;
    use_connection(p, from, hello->index, connection);
    member_link_up(peer->mind, &hello->from, hello->index, 100 + (uint32_t)below(100), now, &peer->out);
    act(p);
}

static void judge_parked(int p) {
    struct peer *peer = &peers[p];
    size_t count = peer->parked_count;
    peer->parked_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct wire_link_hello hello = peer->parked[i].hello;
        judge(p, &hello, peer->parked[i].connection, peer->parked[i].until);
    }
}

static void dial(int p, const struct member_action *action) {
    uint32_t life;
    int other = slot_of(&action->id, &life);
    REQUIRE(connection_count < CONNS_MAX);
    connections[connection_count] = (struct connection){{p, other}, {peers[p].life, life}, action->index, false};
    struct event event = {.at = now + delay(),
                          .kind = DIAL_ARRIVES,
                          .peer = other,
                          .life = life,
                          .other = p,
                          .other_life = peers[p].life,
                          .index = action->index,
                          .connection = connection_count++};
    if (blocked[p][other] || !alive(other, life)) {
        event.kind = DIAL_FAILS;
        event.peer = p;
        event.life = peers[p].life;
        if (blocked[p][other]) event.at = now + member_link_limit_ns(peers[p].mind);
    }
    push(event);
}

// ---- the data plane ----

static uint64_t first_loss_after(const struct peer *peer, uint64_t adopted) {
    for (size_t i = 0; i < peer->loss_count; i++)
        if (peer->losses[i] > adopted) return peer->losses[i];
    return 0;
}

static void to_master(int p, struct wire_buffer *frames) {
    struct peer *peer = &peers[p];
    for (size_t at = 0; at < frames->length;) {
        struct event event = {
            .kind = TO_MASTER, .peer = p, .life = peer->life, .master = peer->master, .conn = peer->conn};
        CHECK(wire_header_decode(frames->bytes + at, &event.header));
        event.body = malloc(event.header.length + 1);
        memcpy(event.body, frames->bytes + at + WIRE_HEADER_BYTES, event.header.length);
        event.at = now + delay();
        if (event.at < peer->to_master_at) event.at = peer->to_master_at;
        peer->to_master_at = event.at;
        at += WIRE_HEADER_BYTES + event.header.length;
        if (peer->connected)
            push(event);
        else
            free(event.body);
    }
    frames->length = 0;
}

static struct wire_header op_header(const struct peer *peer, uint64_t epoch) {
    struct wire_header header = member_header(peer->mind);
    header.epoch = epoch;
    return header;
}

static uint32_t instance_of(const struct peer *peer, const struct op *op) {
    uint64_t run = member_header(peer->mind).run, generation = peer->generation;
    for (uint32_t i = instance_count; i-- > 0;)
        if (instances[i].run == run && instances[i].generation == generation && instances[i].group == peer->group &&
            wire_op_name_equal(&instances[i].name, &op->name))
            return i;
    REQUIRE(instance_count < INSTANCES_MAX);
    instances[instance_count] = (struct instance){
        .name = op->name, .run = run, .generation = generation, .group = peer->group, .small = op->small};
    return instance_count++;
}

// When all members have begun the op, its data arrives here and there.
static void schedule(const struct peer *peer, uint32_t instance) {
    uint32_t count, rank;
    const struct wire_member *ring = member_ring(peer->mind, &count, &rank);
    struct instance *it = &instances[instance];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t life;
        int other = slot_of(&ring[i].id, &life);
        if (!it->began[other] || it->lives[other] != life) return;
    }
    if (it->scheduled) return;
    it->scheduled = true;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t life;
        int other = slot_of(&ring[i].id, &life);
        push((struct event){.at = now + delay() * (below(10) == 0 ? 20 : 1),
                            .kind = COMPLETE,
                            .peer = other,
                            .life = life,
                            .instance = instance});
    }
}

static void begin_op(int p, struct op *op) {
    struct peer *peer = &peers[p];
    op->phase = OP_RUNNING;
    op->frozen = false;
    uint64_t tag = (uint64_t)(op - peer->ops);
    op->name = (struct wire_op_name){peer->group_epoch, tag, ++peer->sequence[tag], 0};
    op->instance = instance_of(peer, op);
    struct instance *it = &instances[op->instance];
    it->began[p] = true;
    it->lives[p] = peer->life;
    schedule(peer, op->instance);
}

static void begin_waiting(int p) {
    for (uint32_t tag = 0; tag < TAGS; tag++)
        if (peers[p].ops[tag].phase == OP_WAITING && peers[p].ready) begin_op(p, &peers[p].ops[tag]);
}

static void end_op(int p, struct op *op, bool ok, uint64_t lost_epoch) {
    struct instance *it = &instances[op->instance];
    if (op->phase != OP_WAITING) {
        if (ok)
            it->ok[p] = true;
        else
            it->lost[p] = true;
    }
    op->phase = ok ? OP_OK : OP_LOST;
    op->lost_epoch = lost_epoch;
    totals[ok ? COUNT_OK : COUNT_LOST]++;
    push_for(p, PROGRAM, now + (int64_t)below(2 * MS_NS));
}

static void keep(struct peer *peer, uint32_t instance) {
    if (peer->kept_count == KEPT_MAX) { // the oldest is complete everywhere long since, or its members are gone
        memmove(peer->kept, peer->kept + 1, (KEPT_MAX - 1) * sizeof peer->kept[0]);
        peer->kept_count--;
    }
    peer->kept[peer->kept_count++].instance = instance;
}

static void enter_epoch(int p, const struct member_action *action) {
    struct peer *peer = &peers[p];
    peer->group_epoch = action->group_epoch;
    peer->generation = member_header(peer->mind).generation;
    peer->ready = false;
    memset(peer->sequence, 0, sizeof peer->sequence);
    if (action->lost && peer->loss_count < 256) peer->losses[peer->loss_count++] = action->group_epoch;
    struct wire_op_report list[TAGS + KEPT_MAX];
    struct wire_report report = {.ops = list};
    for (uint32_t tag = 0; tag < TAGS; tag++) {
        struct op *op = &peer->ops[tag];
        if (op->phase == OP_RUNNING || op->phase == OP_DONE || op->phase == OP_SUPPLIED) {
            op->frozen = true;
            list[report.count++] =
                (struct wire_op_report){op->name, op->phase == OP_DONE ? WIRE_OP_DONE : WIRE_OP_OPEN, op->small};
        }
        uint64_t loss = first_loss_after(peer, op->adopted);
        if (op->phase == OP_WAITING && loss != 0) end_op(p, op, false, loss);
    }
    for (size_t i = 0; i < peer->kept_count; i++)
        list[report.count++] = (struct wire_op_report){instances[peer->kept[i].instance].name, WIRE_OP_KEPT, 1};
    struct wire_buffer frame = {0};
    wire_encode_report(&frame, op_header(peer, peer->group_epoch), &report);
    to_master(p, &frame);
    wire_buffer_fini(&frame);
}

static void on_complete(int p, uint32_t instance) {
    struct peer *peer = &peers[p];
    struct op *op = &peer->ops[instances[instance].name.tag];
    if (op->phase != OP_RUNNING || op->frozen || op->instance != instance) return;
    if (op->small) {
        keep(peer, instance);
        end_op(p, op, true, 0);
        return;
    }
    op->phase = OP_DONE;
    struct wire_buffer frame = {0};
    struct wire_op_done done = {op->name};
    wire_encode_op_done(&frame, op_header(peer, op->name.epoch), &done);
    to_master(p, &frame);
    wire_buffer_fini(&frame);
}

static void on_verdict(int p, const struct wire_verdict *verdict) {
    struct peer *peer = &peers[p];
    struct op *op = &peer->ops[verdict->name.tag];
    struct wire_id self = id_of(p);
    bool ours = (op->phase == OP_RUNNING || op->phase == OP_DONE || op->phase == OP_SUPPLIED) &&
                wire_op_name_equal(&op->name, &verdict->name);
    switch (verdict->kind) {
    case WIRE_VERDICT_COMMIT:
        if (ours && op->phase == OP_DONE) end_op(p, op, true, 0);
        if (ours && op->small && op->phase == OP_RUNNING) op->phase = OP_SUPPLIED;
        if (!wire_id_equal(&verdict->supplier, &self)) return;
        for (uint32_t i = 0; i < verdict->count; i++) {
            struct event event = {.at = now + delay() * 3, .kind = SUPPLY, .other = p, .other_life = peer->life};
            event.peer = slot_of(&verdict->needy[i], &event.life);
            for (size_t k = 0; k < peer->kept_count; k++)
                if (wire_op_name_equal(&instances[peer->kept[k].instance].name, &verdict->name))
                    event.instance = peer->kept[k].instance;
            event.rate = peer->group_epoch;
            push(event);
        }
        return;
    case WIRE_VERDICT_ABORT:
        if (ours) end_op(p, op, false, first_loss_after(peer, op->adopted));
        return;
    case WIRE_VERDICT_REDO:
        if (!ours) return;
        totals[COUNT_REDO]++;
        op->phase = OP_WAITING;
        begin_waiting(p);
        return;
    default: CHECK(false);
    }
}

static void on_supply(const struct event *event) {
    struct peer *peer = &peers[event->peer];
    struct op *op = &peer->ops[instances[event->instance].name.tag];
    // A link dies with its peer, and carries one group epoch.
    if (!alive(event->other, event->other_life) || peer->group_epoch != event->rate) return;
    // it may come before the verdict
    if ((op->phase != OP_SUPPLIED && op->phase != OP_RUNNING) || op->instance != event->instance) return;
    totals[COUNT_SUPPLY]++;
    keep(peer, event->instance);
    end_op(event->peer, op, true, 0);
}

// ---- the program ----

static void vote(int p, uint8_t kind) {
    peers[p].step = VOTING;
    peers[p].vote = kind;
    member_vote(peers[p].mind, kind, &peers[p].out);
}

static void post(int p, uint32_t tag) {
    struct peer *peer = &peers[p];
    struct op *op = &peer->ops[tag];
    *op = (struct op){.phase = OP_WAITING, .small = tag % 2 == 0, .adopted = member_adopted(peer->mind)->group_epoch};
    uint64_t loss = first_loss_after(peer, op->adopted);
    if (loss != 0)
        end_op(p, op, false, loss);
    else
        begin_waiting(p);
}

static void next_round(int p) {
    peers[p].rounds++;
    totals[COUNT_ROUNDS]++;
    memset(peers[p].ops, 0, sizeof peers[p].ops);
    vote(p, WIRE_VOTE_PENDING);
}

// ---- shared state ----

static void crash(int p, bool announced);

// The state after a step: what all have changes alike.
static uint64_t step_of(uint64_t content) { return check_random(&content); }

static void sync_state(int p) {
    struct peer *peer = &peers[p];
    struct wire_sync_vote state = {.incomplete = peer->incomplete, .revision = peer->revision, .mask = {1, 1}};
    peer->honest = true;
    peer->wrote = peer->received = false;
    if (faulty && below(100) == 0) { // a program that skips a step
        state.revision++;
        peer->honest = false;
    }
    if (faulty && below(100) == 0) state.mask.low++;         // another model
    if (below(20) == 0) peer->content = check_random(&seed); // drift
    state.content.low = peer->content;
    peer->step = SYNCING;
    peer->sync_round = 0;
    member_sync(peer->mind, &state, &peer->out);
}

static void on_plan(int p, const struct wire_sync_plan *plan) {
    struct peer *peer = &peers[p];
    struct wire_id self = id_of(p);
    bool receives = false;
    CHECK_EQ(peer->step, SYNCING);
    CHECK(peer->sync_round == 0); // one plan
    REQUIRE(plan->donor_count <= PEERS);
    peer->sync_round = plan->round;
    memcpy(peer->donors, plan->donors, plan->donor_count * sizeof plan->donors[0]);
    peer->donor_count = plan->donor_count;
    for (uint32_t i = 0; i < plan->receiver_count; i++) receives |= wire_id_equal(&plan->receivers[i], &self);
    for (uint32_t i = 0; i < plan->donor_count; i++)
        if (wire_id_equal(&plan->donors[i], &self)) CHECK(!receives && peer->content == plan->content.low);
    if (!receives) return;
    if (below(4) != 0) peer->incomplete = peer->wrote = true; // written to, from the first leaf on
    push((struct event){.at = now + delay() * (int64_t)(1 + below(below(5) ? 20 : 60)),
                        .kind = FETCHED,
                        .peer = p,
                        .life = peer->life,
                        .header.epoch = plan->round,
                        .rate = plan->content.low});
}

static void on_fetched(const struct event *event) {
    struct peer *peer = &peers[event->peer];
    static struct wire_sync_done done;
    if (peer->sync_round != event->header.epoch) return; // ended meanwhile
    done.round = peer->sync_round;
    done.complete = 0;
    done.count = 0;
    bool stalled = faulty && below(50) == 0; // no donor gives in time
    for (uint32_t i = 0, first = (uint32_t)below(peer->donor_count);
         i < peer->donor_count && !done.complete && !stalled; i++) {
        uint32_t life;
        const struct wire_id *id = &peer->donors[(first + i) % peer->donor_count];
        int donor = slot_of(id, &life);
        if (!alive(donor, life) || peers[donor].step != SYNCING || peers[donor].content != event->rate) continue;
        done.complete = 1;
        done.sources[done.count++] = (struct wire_sync_source){*id, 1};
        peer->content = event->rate;
        peer->received = true;
    }
    totals[done.complete ? COUNT_FETCHED : COUNT_UNFETCHED]++;
    wire_encode_sync_done(&peer->out.frames, member_header(peer->mind), &done);
}

static void check_sync(struct peer *peer, const struct wire_sync_end *end) {
    uint64_t run = member_header(peer->mind).run;
    uint32_t i = sync_count;
    while (i > 0 && (syncs[i - 1].number != end->round || syncs[i - 1].run != run)) i--;
    if (i == 0) {
        REQUIRE(sync_count < SYNCS_MAX);
        i = ++sync_count;
        syncs[i - 1] = (struct sync_round){end->round, run, end->code, end->revision, peer->content};
    }
    const struct sync_round *round = &syncs[i - 1];
    CHECK_EQ(round->code, end->code);
    if (end->code != 0) return;
    CHECK_EQ(round->revision, end->revision);
    CHECK_EQ(round->content, peer->content);
    CHECK(end->revision + 1 >= peer->committed);
    peer->committed = end->revision + 1;
}

static bool same_end(const struct barrier *a, const struct barrier *b) {
    return a->run == b->run && a->number == b->number && a->value == b->value && a->epoch == b->epoch &&
           a->kind == b->kind && a->code == b->code && a->world == b->world && a->groups == b->groups;
}

static bool has_living(const struct barrier *barrier) {
    for (int p = 0; p < PEERS; p++)
        if (barrier->lives[p] != 0 && alive(p, barrier->lives[p])) return true;
    return false;
}

// Of one vote all hear the same. A peer that the run has left behind may have heard something else; it has heard since
// that it is out.
static void check_barriers(void) {
    for (uint32_t i = 0; i < barrier_count; i++)
        for (uint32_t k = 0; k < i; k++)
            if (barriers[i].run == barriers[k].run && barriers[i].number == barriers[k].number &&
                has_living(&barriers[i]))
                CHECK(!has_living(&barriers[k]));
}

static void check_barrier(struct peer *peer, const struct member_action *action) {
    const struct wire_barrier *last = &peer->mind->barrier;
    struct barrier mine = {.run = member_header(peer->mind).run,
                           .number = last->number,
                           .value = action->value,
                           .epoch = action->view.number,
                           .kind = last->kind,
                           .code = (uint32_t)action->code,
                           .world = action->view.global_world,
                           .groups = action->view.groups};
    uint32_t i = barrier_count;
    CHECK(last->number > peer->checked_barrier);
    peer->checked_barrier = last->number;
    while (i > 0 && !same_end(&barriers[i - 1], &mine)) i--;
    if (i == 0) {
        REQUIRE(barrier_count < BARRIERS_MAX);
        barriers[i = barrier_count++] = mine;
        i++;
    }
    barriers[i - 1].lives[peer - peers] = peer->life;
}

static void next_round(int p);

static void on_sync_end(int p, const struct member_action *action) {
    struct peer *peer = &peers[p];
    if (action->end == NULL) { // expelled, or the master is lost
        CHECK(action->code == 4 || action->code == 6);
        return;
    }
    check_sync(peer, action->end);
    peer->sync_round = 0;
    if (action->code == 0) {
        totals[COUNT_SYNC]++;
        peer->incomplete = false;
        peer->tries = 0;
        peer->revision = action->end->revision + 1;
        peer->content = step_of(peer->content);
        next_round(p);
        return;
    }
    totals[COUNT_NO_STATE]++;
    CHECK_EQ(action->code, 9);
    if (++peer->tries < SYNC_TRIES) {
        sync_state(p);
    } else if (peer->incomplete) {
        crash(p, true); // nobody has what it lacks
    } else {
        totals[COUNT_RESUMED]++;
        peer->tries = 0;
        if (peer->revision == 0) peer->revision = 1; // begins anew, from what it has
        sync_state(p);
    }
}

static void reduce_all(int p) {
    peers[p].step = REDUCING;
    if (member_adopted(peers[p].mind)->group_world < 2) {
        sync_state(p);
        return;
    }
    uint32_t first = (uint32_t)below(TAGS); // the order differs from peer to peer
    for (uint32_t i = 0; i < TAGS; i++) post(p, (first + i) % TAGS);
}

// Waits for all, then repeats those that were lost.
static void await_all(int p) {
    struct peer *peer = &peers[p];
    uint64_t lost = 0;
    for (uint32_t tag = 0; tag < TAGS; tag++) {
        if (peer->ops[tag].phase != OP_OK && peer->ops[tag].phase != OP_LOST) return;
        if (peer->ops[tag].phase == OP_LOST && (lost == 0 || peer->ops[tag].lost_epoch > lost))
            lost = peer->ops[tag].lost_epoch;
    }
    if (lost == 0) {
        sync_state(p);
        return;
    }
    member_adopt_loss(peer->mind, lost);
    if (member_adopted(peer->mind)->group_world < 2) {
        sync_state(p);
        return;
    }
    for (uint32_t tag = 0; tag < TAGS; tag++)
        if (peer->ops[tag].phase == OP_LOST) post(p, tag);
}

static void on_vote_end(int p, const struct member_action *action) {
    struct peer *peer = &peers[p];
    if (peer->step == SYNCING) {
        on_sync_end(p, action);
        return;
    }
    uint8_t kind = peer->vote;
    peer->vote = 0;
    if (member_phase(peer->mind) != MEMBER_DEAD) check_barrier(peer, action);
    CHECK(action->code == 0 || kind == WIRE_VOTE_OPTIMIZE || member_phase(peer->mind) == MEMBER_DEAD);
    if (kind == WIRE_VOTE_UPDATE || (kind == WIRE_VOTE_OPTIMIZE && action->code == 0))
        member_adopt(peer->mind, &action->view);
    if (kind == WIRE_VOTE_PENDING && action->value == 1)
        vote(p, WIRE_VOTE_UPDATE);
    else if (kind == WIRE_VOTE_UPDATE && action->view.number % 3 == 0 && action->view.global_world > 1)
        vote(p, WIRE_VOTE_OPTIMIZE);
    else
        reduce_all(p);
}

static void start(int p) {
    struct peer *peer = &peers[p];
    uint32_t life = peer->life + 1;
    if (master == NULL || conn_count == MEMBERSHIP_MAX_CONNS) return;
    member_free(peer->mind);
    member_output_fini(&peer->out);
    *peer =
        (struct peer){.running = true, .life = life, .group = (uint32_t)below(4) == 0, .content = check_random(&seed)};
    struct wire_id id = id_of(p);
    peer->mind = member_new(&id, peer->group, LANES);
    REQUIRE(peer->mind != NULL);
    member_set_recovery(peer->mind, RECOVERY_MS, 1);
    connect_to_master(p);
    member_join(peer->mind, 48149, now, &peer->out);
    totals[COUNT_JOIN]++;
    act(p);
}

static void crash(int p, bool announced) {
    struct peer *peer = &peers[p];
    if (!peer->running) return;
    if (announced && peer->connected) {
        member_leave(peer->mind, &peer->out);
        to_master(p, &peer->out.frames);
    }
    peer->running = false;
    disconnect(p);
    for (uint32_t i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        if ((c->ends[0] == p && c->lives[0] == peer->life) || (c->ends[1] == p && c->lives[1] == peer->life))
            close_connection(i, p);
    }
}

// ---- what a mind says ----

// With a master there, only those give up of whose last epoch no more than half are left.
static void give_up(int p) {
    const struct member *mind = peers[p].mind;
    uint32_t left = 0;
    for (uint32_t i = 0; i < mind->everyone_count; i++) {
        uint32_t life;
        int other = slot_of(&mind->everyone[i].id, &life);
        left += alive(other, life) && now >= peers[other].stopped_until;
    }
    totals[COUNT_MINORITY]++;
    if (master != NULL && now > killed_at + RECOVERY_MS / 2 * MS_NS) CHECK(2 * left <= mind->everyone_count);
}

static void run_action(int p, const struct member_action *action) {
    struct peer *peer = &peers[p];
    uint32_t life;
    int other;
    switch (action->kind) {
    case MEMBER_DIAL: dial(p, action); return;
    case MEMBER_DROP_PEER:
        other = slot_of(&action->id, &life);
        for (uint32_t index = 0; index <= LANES; index++) {
            uint32_t current = peer->current[other][index];
            if (current == 0) continue;
            const struct connection *c = &connections[current - 1];
            if (c->lives[c->ends[0] == other ? 0 : 1] != life) continue;
            close_connection(current - 1, p);
            peer->current[other][index] = 0;
        }
        return;
    case MEMBER_MISSED_LOSS:
        if (peers[p].loss_count < 256) peers[p].losses[peers[p].loss_count++] = action->group_epoch;
        return;
    case MEMBER_ENTER_EPOCH: enter_epoch(p, action); return;
    case MEMBER_LINKS_READY:
        if (action->group_epoch != peer->group_epoch) return;
        peer->ready = true;
        begin_waiting(p);
        return;
    case MEMBER_VERDICT: on_verdict(p, action->verdict); return;
    case MEMBER_PROBE:
        other = slot_of(&action->id, &life);
        push((struct event){.at = now + action->duration_ms * MS_NS + delay(),
                            .kind = PROBED,
                            .peer = blocked[p][other] ? p : other,
                            .life = blocked[p][other] ? peer->life : life,
                            .other = p,
                            .other_life = peer->life,
                            .index = (uint32_t)other,
                            .connection = life,
                            .rate = blocked[p][other] ? 0 : 1000000 * (1 + below(100))});
        return;
    case MEMBER_CONNECT_END:
        if (action->code != 0) {
            totals[COUNT_REFUSED]++;
            crash(p, false);
            return;
        }
        check_barrier(peer, action);
        member_adopt(peer->mind, &action->view);
        if (action->view.number % 3 == 0 && action->view.global_world > 1)
            vote(p, WIRE_VOTE_OPTIMIZE);
        else
            reduce_all(p);
        return;
    case MEMBER_SEEK:
        disconnect(p);
        push_for(p, SEEK, now + (int64_t)(10 + below(10)) * MS_NS);
        return;
    case MEMBER_FOUND: totals[COUNT_FOUND]++; return;
    case MEMBER_WAITING: return;
    case MEMBER_VOTE_END: on_vote_end(p, action); return;
    case MEMBER_SYNC_PLAN: on_plan(p, action->plan); return;
    case MEMBER_RECHECK: judge_parked(p); return;
    case MEMBER_DIE:
        totals[COUNT_EXPELLED]++;
        totals[COUNT_KICKED] += strstr(member_text(peer->mind), "shared state: ") != NULL;
        CHECK(strstr(member_text(peer->mind), "does not fit") == NULL);
        if (strstr(member_text(peer->mind), "no master took") != NULL) give_up(p);
        if (peer->honest && peer->committed == peer->revision)
            CHECK(strstr(member_text(peer->mind), "it gave revision") == NULL);
        if (getenv("MINDS_LOG") != NULL)
            fprintf(stderr, "%8.3f peer %d dies: %s\n", (double)now / 1e9, p + 1, member_text(peer->mind));
        crash(p, false);
        return;
    }
}

// Carries out what the mind said; the program may make it say more.
static void act(int p) {
    static int depth;
    struct peer *peer = &peers[p];
    depth++;
    REQUIRE(depth < 50);
    while (peer->running && (peer->out.count > 0 || peer->out.frames.length > 0)) {
        struct member_output out = peer->out;
        struct wire_verdict verdict; // borrowed until the next event, as are the others
        static struct wire_sync_plan plan;
        static struct wire_sync_end end;
        peer->out = (struct member_output){0};
        CHECK(!out.failed);
        uint32_t life = peer->life;
        for (size_t i = 0; i < out.count && alive(p, life); i++) {
            if (out.actions[i].kind == MEMBER_VERDICT) {
                verdict = *out.actions[i].verdict;
                out.actions[i].verdict = &verdict;
            }
            if (out.actions[i].plan != NULL) {
                plan = *out.actions[i].plan;
                out.actions[i].plan = &plan;
            }
            if (out.actions[i].end != NULL) {
                end = *out.actions[i].end;
                out.actions[i].end = &end;
            }
            run_action(p, &out.actions[i]);
        }
        if (alive(p, life)) to_master(p, &out.frames);
        member_output_fini(&out);
    }
    depth--;
    if (!peer->running) return;
    int64_t next = member_deadline(peer->mind);
    if (next < INT64_MAX) push_for(p, PEER_TICK, next > now ? next : now);
}

// ---- faults ----

static void do_fault(void) {
    int p = (int)below(PEERS), other = (int)below(PEERS);
    if (kills && below(6) == 0) kill_master();
    switch (below(16)) {
    case 0:
    case 1:
    case 2:
        totals[COUNT_CRASH] += peers[p].running;
        crash(p, false);
        break;
    case 3:
        totals[COUNT_LEAVE] += peers[p].running;
        crash(p, true);
        break;
    case 4:
    case 5:
        totals[COUNT_STOP]++;
        if (now < peers[p].stopped_until) break; // stopped already; waking it earlier would reorder what waits for it
        peers[p].stopped_until = now + (int64_t)below(below(2) ? LIMIT_MS / 2 : 2 * LIMIT_MS) * MS_NS;
        break;
    case 6:
    case 7:
    case 8:
        for (uint32_t tries = 0; tries < 50 && connection_count > 0; tries++) {
            uint32_t i = (uint32_t)below(connection_count);
            if (!connections[i].open) continue;
            totals[COUNT_BREAK]++;
            close_connection(i, -1);
            break;
        }
        break;
    case 9:
        if (p == other || below(2)) break;
        totals[COUNT_BLOCK]++;
        blocked[p][other] = blocked[other][p] = true;
        for (uint32_t i = 0; i < connection_count; i++) {
            const struct connection *c = &connections[i];
            if ((c->ends[0] == p && c->ends[1] == other) || (c->ends[0] == other && c->ends[1] == p))
                close_connection(i, -1);
        }
        break;
    case 10: memset(blocked, 0, sizeof blocked); break;
    default:
        if (!peers[p].running) start(p);
    }
    if (faulty) push((struct event){.at = now + (int64_t)below(400) * MS_NS, .kind = FAULT});
}

// Transfers into the state end with the connection.
static void resume(int p) {
    struct peer *peer = &peers[p];
    enum member_tensors tensors = !peer->wrote     ? MEMBER_TENSORS_AS_VOTED
                                  : peer->received ? MEMBER_TENSORS_RECEIVED
                                                   : MEMBER_TENSORS_TORN;
    if (peer->received) tensors = MEMBER_TENSORS_RECEIVED;
    if (peer->step == SYNCING && tensors == MEMBER_TENSORS_TORN) {
        totals[COUNT_TORN]++;
        peer->content = check_random(&seed);
    }
    peer->sync_round = 0;
    struct wire_hash content = {.low = peer->content};
    member_resume(peer->mind, 48149, tensors, &content, now, &peer->out);
}

static void run_event(struct event *event) {
    int p = event->peer;
    struct peer *peer = &peers[p];
    switch (event->kind) {
    case TO_MASTER:
        if (master == NULL || event->master != master_life) return;
        struct wire_address source = {.family = 4, .bytes = {10, 0, 0, (uint8_t)(p + 1)}};
        if (event->header.type == WIRE_HELLO) {
            struct wire_hello hello;
            CHECK(wire_decode_hello(event->body, event->header.length, &hello));
            carry_out(membership_peer_connected(master, now, event->conn, &source, &hello));
        } else if (event->header.type == WIRE_RESUME) {
            carry_out(membership_peer_resumed(master, now, event->conn, &source, &event->header, event->body));
        } else {
            carry_out(membership_message(master, now, event->conn, &event->header, event->body));
        }
        if (kills && faulty && below(400) == 0) kill_master(); // in the middle of what it says
        return;
    case LOST_AT_MASTER:
        if (master != NULL && event->master == master_life)
            carry_out(membership_peer_lost(master, now, event->conn, "closed"));
        return;
    case MASTER_TICK:
        if (master != NULL && event->index == (uint32_t)master_ticks) carry_out(membership_tick(master, now));
        return;
    case MASTER_START:
        if (master == NULL) start_master();
        return;
    case FAULT:
        if (faulty) do_fault();
        return;
    default: break;
    }
    if (!alive(p, event->life)) return;
    struct wire_id other = {{(uint8_t)(event->other + 1)}};
    memcpy(other.bytes + 4, &event->other_life, sizeof event->other_life);
    switch (event->kind) {
    case TO_PEER:
        if (!peer->connected || peer->master != event->master || peer->conn != event->conn || now > peer->cut_at)
            return;
        if (event->header.type == WIRE_RESUMED) totals[COUNT_LATE] += event->body[4] != 0 || event->body[5] != 0;
        if (event->header.type == WIRE_WELCOME) totals[COUNT_AFRESH] += member_is_seeking(peer->mind);
        totals[COUNT_ORDERS] += event->header.type == WIRE_EPOCH && event->body[0] == WIRE_REASON_ORDER;
        member_frame(peer->mind, &event->header, event->body, now, &peer->out);
        break;
    case CLOSED_AT_PEER:
        if (!peer->connected || peer->master != event->master || peer->conn != event->conn) return;
        disconnect(p);
        member_disconnected(peer->mind, "the master closed", now, &peer->out);
        break;
    case SEEK:
        if (peer->connected) return;
        if (!connect_to_master(p)) {
            push_for(p, SEEK, now + (int64_t)(10 + below(10)) * MS_NS);
            return;
        }
        resume(p);
        break;
    case PEER_TICK:
        if (member_deadline(peer->mind) > now) return;
        member_tick(peer->mind, now, &peer->out);
        for (size_t i = 0; i < peer->parked_count; i++)
            if (now >= peer->parked[i].until) { // the dialler's limit has passed
                peer->parked[i] = peer->parked[--peer->parked_count];
                i--;
            }
        break;
    case DIAL_ARRIVES: {
        struct wire_link_hello hello = {
            .version = WIRE_VERSION, .kind = WIRE_LINK_DATA, .from = other, .to = id_of(p), .index = event->index};
        if (!alive(event->other, event->other_life)) return;
        memcpy(hello.secret, member_welcome(peers[event->other].mind)->secret, sizeof hello.secret);
        push((struct event){.at = now + member_link_limit_ns(peers[event->other].mind),
                            .kind = DIAL_FAILS,
                            .peer = event->other,
                            .life = event->other_life,
                            .other = p,
                            .other_life = peer->life,
                            .index = event->index,
                            .connection = event->connection});
        judge(p, &hello, event->connection, now + member_link_limit_ns(peers[event->other].mind));
        return;
    }
    case DIAL_FAILS:
        // it was made
        if (connections[event->connection].open || peer->current[event->other][event->index] == event->connection + 1)
            return;
        member_link_failed(peer->mind, &other, event->index, &peer->out);
        break;
    case DIALLED:
        if (!connections[event->connection].open) { // broken on the way
            member_link_failed(peer->mind, &other, event->index, &peer->out);
            break;
        }
        use_connection(p, event->other, event->index, event->connection);
        member_link_up(peer->mind, &other, event->index, 100 + (uint32_t)below(100), now, &peer->out);
        break;
    case LINK_LOST: {
        const struct connection *c = &connections[event->connection];
        if (peer->current[event->other][event->index] != event->connection + 1) return; // replaced meanwhile
        peer->current[event->other][event->index] = 0;
        int end = c->ends[0] == event->other ? 0 : 1;
        memcpy(other.bytes + 4, &c->lives[end], sizeof c->lives[end]);
        member_link_lost(peer->mind, &other, event->index, false, now, &peer->out);
        break;
    }
    case PROBED: {
        struct wire_id target = {{(uint8_t)(event->index + 1)}};
        memcpy(target.bytes + 4, &event->connection, sizeof event->connection);
        member_measured(peer->mind, &other, &target, event->rate, &peer->out);
        break;
    }
    case PROGRAM:
        if (peer->step == REDUCING) await_all(p);
        break;
    case COMPLETE: on_complete(p, event->instance); break;
    case SUPPLY: on_supply(event); break;
    case FETCHED: on_fetched(event); break;
    default: break;
    }
    act(p);
}

static void run_until(int64_t end) {
    while (event_count > 0 && events[0].at <= end) {
        struct event event = pop();
        now = event.at;
        bool for_peer = event.kind != TO_MASTER && event.kind != LOST_AT_MASTER && event.kind != MASTER_TICK &&
                        event.kind != MASTER_START && event.kind != FAULT;
        if (for_peer && now < peers[event.peer].stopped_until && alive(event.peer, event.life)) {
            event.at = peers[event.peer].stopped_until; // a stopped process; what waits for it stays in order
            push(event);
            continue;
        }
        run_event(&event);
        free(event.body);
    }
    now = end;
}

static void describe_still(int p) {
    const struct peer *peer = &peers[p];
    check_report(false, __FILE__, __LINE__,
                 "peer %d of group %u stands still: phase %d, step %d, vote %d, round %u, epoch %llu of %llu, group "
                 "epoch %llu, adopted %llu, %s",
                 p + 1, peer->group, (int)member_phase(peer->mind), (int)peer->step, peer->vote, peer->rounds,
                 (unsigned long long)member_header(peer->mind).epoch,
                 master == NULL ? 0 : (unsigned long long)membership_epoch(master),
                 (unsigned long long)peer->group_epoch, (unsigned long long)member_adopted(peer->mind)->group_epoch,
                 peer->ready ? "linked" : "not linked");
    for (uint32_t tag = 0; tag < TAGS && peer->step == REDUCING; tag++) {
        const struct op *op = &peer->ops[tag];
        check_report(false, __FILE__, __LINE__, "  op %u: phase %d%s, (%llu, %u), adopted %llu", tag, (int)op->phase,
                     op->frozen ? " frozen" : "", (unsigned long long)op->name.epoch, op->name.sequence,
                     (unsigned long long)op->adopted);
    }
}

static void check_agreement(void) {
    for (uint32_t i = 0; i < instance_count; i++) {
        const struct instance *it = &instances[i];
        bool ok = false, lost = false;
        for (int p = 0; p < PEERS; p++) {
            if (!it->began[p] || !alive(p, it->lives[p])) continue;
            ok |= it->ok[p];
            lost |= it->lost[p] && !it->ok[p];
        }
        if (ok && lost)
            check_report(
                false, __FILE__, __LINE__, "op (%llu, %llu, %u) of group %u succeeded at some and was lost at others",
                (unsigned long long)it->name.epoch, (unsigned long long)it->name.tag, it->name.sequence, it->group);
    }
}

static void run_seed(uint64_t with) {
    check_case("seed %llu", (unsigned long long)with);
    seed = with;
    now = SECOND_NS;
    event_count = 0;
    orders = master_ticks = 0;
    connection_count = instance_count = 0;
    master_life = barrier_count = sync_count = 0;
    kills = with % 4 != 0;
    memset(blocked, 0, sizeof blocked);
    for (int p = 0; p < PEERS; p++) peers[p].life = 0;
    start_master();
    for (int p = 0; p < PEERS; p++) start(p);
    faulty = true;
    push((struct event){.at = now + 500 * MS_NS, .kind = FAULT});
    run_until(now + FAULTS_MS * MS_NS);
    faulty = false;
    memset(blocked, 0, sizeof blocked);
    run_until(now + CALM_MS / 2 * MS_NS);
    uint32_t rounds[PEERS], lives[PEERS];
    for (int p = 0; p < PEERS; p++) {
        rounds[p] = peers[p].rounds;
        lives[p] = peers[p].life;
    }
    run_until(now + CALM_MS / 2 * MS_NS);
    check_agreement();
    check_barriers();
    for (int p = 0; p < PEERS; p++)
        if (alive(p, lives[p]) && peers[p].rounds < rounds[p] + 3) describe_still(p);
    CHECK(true);
    while (event_count > 0) free(events[--event_count].body);
    for (int p = 0; p < PEERS; p++) {
        member_free(peers[p].mind);
        member_output_fini(&peers[p].out);
        peers[p] = (struct peer){0};
    }
    membership_free(master);
    master = NULL;
}

int main(int argc, char **argv) {
    enum { DEFAULT_SEEDS = 300 }; // enough for everything that is counted to happen
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : argc > 1 ? 1 : DEFAULT_SEEDS;
    for (uint64_t s = first; s < first + count; s++) run_seed(s);
    static const char *const names[] = {
        "crashes",  "leaves",  "stops",  "breaks", "blocks", "expelled", "refused", "ops ok",      "ops lost",
        "supplies", "redone",  "orders", "rounds", "joins",  "syncs",    "fetched", "not fetched", "without state",
        "kicked",   "resumed", "kills",  "found",  "late",   "torn",     "afresh",  "minorities"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        fprintf(stderr, "%s %llu%s", names[i], (unsigned long long)totals[i],
                i + 1 < sizeof names / sizeof names[0] ? ", " : "\n");
    if (argc == 1)
        for (size_t i = 0; i < COUNTS; i++) CHECK(totals[i] > 0);
    return check_status();
}
