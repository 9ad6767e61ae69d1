#include "master/mind.h"

#include <stdlib.h>
#include <string.h>

#include "master/gather.h"
#include "master/run.h"
#include "master/takeover.h"
#include "net/socket.h"

static const char WRONG_SECRET[] = "its secret is not that of the run";
static const char ANOTHER_RUN[] = "this master serves another run by now";

struct mind {
    struct gather gather;
    struct run run;
    // for decoding
    struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    struct wire_member members[WIRE_MAX_MEMBERS];
    struct wire_past past[WIRE_MAX_PAST];
    struct wire_loss losses[WIRE_MAX_MEMBERS];
};

static void enrol(struct mind *mind, uint32_t conn, const struct wire_address *source, const struct wire_hello *hello) {
    struct desk *desk = &mind->run.desk;
    if (hello->version == WIRE_VERSION && desk->peer_count == 0 &&
        !gather_suits(&mind->gather, socket_address_is_loopback(source)))
        actions_turn_away(&desk->actions, conn, desk_header(desk), WIRE_REFUSED,
                          "most peers that wait for the run to begin reached the master over the other kind of "
                          "address, loopback or network; give all of them its network address");
    else
        run_register(&mind->run, conn, source, hello);
}

// ---- from gathering to a run ----

static void enrol_held(struct mind *mind, struct survivor *survivor) {
    uint32_t conn = survivor->conn;
    struct wire_address source = survivor->source;
    struct wire_hello hello = survivor->resume.hello;
    survivors_forget(&mind->gather.survivors, survivor);
    enrol(mind, conn, &source, &hello);
}

// Dismisses all that are no members: newcomers restart, everybody else has been left behind.
static void dismiss_rest(struct mind *mind) {
    struct desk *desk = &mind->run.desk;
    while (mind->gather.survivors.count > 0) {
        struct survivor *survivor = mind->gather.survivors.list[0];
        if (survivor->resumes && survivor->resume.accepted)
            gather_turn_away(&mind->gather, desk, survivor, WIRE_EXPELLED,
                             survivor->run.id != desk->run.id             ? ANOTHER_RUN
                             : desk_run_equal(&survivor->run, &desk->run) ? "the run went on without this peer"
                                                                          : WRONG_SECRET);
        else
            enrol_held(mind, survivor);
    }
    mind->gather.said_epoch = 0;
}

static void take_up(struct mind *mind) {
    struct gather *gather = &mind->gather;
    takeover(&mind->run, &gather->survivors, survivors_best_claim(&gather->survivors), gather->generation);
    gather->generation = 0;
    gather->majority_at = INT64_MAX;
    dismiss_rest(mind);
}

// Until when those that gather beside a young run wait. Newcomers of an older run, of which no member comes, wait for
// one a heartbeat limit and no longer.
static int64_t yields_until(const struct mind *mind) {
    const struct survivors *survivors = &mind->gather.survivors;
    if (survivors->claim_count > 0) return mind->run.yields_until;
    return platform_earlier(mind->run.yields_until, survivors->list[0]->since_ns + mind->run.desk.limit_ns);
}

// A run that this master has begun while the members of an older one were on their way lets them wait, or gives way.
static bool yield(struct mind *mind) {
    struct desk *desk = &mind->run.desk;
    const struct claim *claim = survivors_best_claim(&mind->gather.survivors);
    if (!claim_has_majority(claim)) {
        if (desk->now_ns >= yields_until(mind))
            dismiss_rest(mind);
        else if (claim != NULL)
            gather_say(&mind->gather, desk, claim);
        return mind->gather.survivors.count == 0;
    }
    actions_log(&desk->actions, LOG_NOTICE,
                "lets the young run of %u peers go: %u of the %u members of epoch %llu of an older one have come",
                desk->peer_count, claim->present, claim->count, (unsigned long long)claim->number);
    for (uint32_t i = 0; i < desk->slots; i++) {
        struct desk_peer *peer = &desk->peers[i];
        if (!peer->used) continue;
        if (peer->accepted)
            desk_expel(desk, peer,
                       "the members of an older run have come, whose master this one replaces, and that run goes on: "
                       "connect again to be in it");
        else
            // by itself, since nobody has told it why
            desk_drop(desk, peer, LOG_INFO, "it comes again, for the older run");
    }
    return true;
}

// True: peers have come or gone.
static bool gather(struct mind *mind) {
    struct desk *desk = &mind->run.desk;
    mind->gather.survivors.due = false;
    if (desk->peer_count > 0) return yield(mind);
    switch (gather_decide(&mind->gather, desk)) {
    case GATHER_WAITS: break;
    case GATHER_BEGINS:
        while (mind->gather.survivors.count > 0) enrol_held(mind, mind->gather.survivors.list[0]);
        break;
    case GATHER_TAKES_UP: take_up(mind); break;
    }
    return desk->peer_count > 0;
}

// ---- around each event ----

static void begin_event(struct mind *mind, int64_t now_ns) {
    struct run *run = &mind->run;
    struct desk *desk = &run->desk;
    bool waits = mind->gather.survivors.count > 0;
    // Whoever has peers sends a heartbeat every fifth of the limit; so it stood still if nothing happened for so long.
    bool woke = (desk->peer_count > 0 || waits) && now_ns > desk->now_ns + desk->limit_ns / 2;
    actions_clear(&desk->actions);
    if (now_ns > desk->now_ns) desk->now_ns = now_ns;
    if (!woke) return;
    gather_woke(&mind->gather, desk);
    run->woken_until = desk->now_ns + desk->limit_ns;
    // those that gather have left, and come again
    if (waits && desk->survivors_until < run->woken_until) desk->survivors_until = run->woken_until;
}

static const struct actions *settle(struct mind *mind) {
    struct desk *desk = &mind->run.desk;
    struct survivors *survivors = &mind->gather.survivors;
    do {
        run_settle(&mind->run);
        survivors->due |= desk->turnover;
        desk->turnover = false;
    } while (survivors->count > 0 && survivors->due && gather(mind));
    return &desk->actions;
}

// ---- peers come ----

const struct actions *mind_peer_connected(struct mind *mind, int64_t now_ns, uint32_t conn,
                                          const struct wire_address *source, const struct wire_hello *hello) {
    begin_event(mind, now_ns);
    if (!gather_hold(&mind->gather, &mind->run.desk, conn, source, hello)) enrol(mind, conn, source, hello);
    return settle(mind);
}

static bool is_secret(const struct run *run, const struct desk_run *claimed) {
    bool serves = run->desk.peer_count > 0 && claimed->id == run->desk.run.id;
    const struct desk_run *known = serves ? &run->desk.run : &run->desk.last_run;
    return claimed->id != known->id || desk_run_equal(claimed, known);
}

// A member of the run that this master serves comes as one that has lost it. Nobody is left behind before a member is
// known to have entered an epoch without it: as long as none is, the others may have left as well, and what all of them
// know together decides.
static bool take_back(struct run *run, const struct resumption *from) {
    struct desk *desk = &run->desk;
    if (!desk_run_equal(&from->run, &desk->run) || from->promised < desk->generation) return false;
    const struct desk_peer *peer = desk_of_id(desk, &from->resume->hello.id);
    bool missed = peer != NULL ? peer->accepted || desk->now_ns < run->woken_until
                               : from->resume->accepted && run->heard_number < run->lost_number;
    if (!missed) return false;
    actions_log(&desk->actions, LOG_NOTICE,
                "a member has come back that had lost this master: gives the run up, for all to come back");
    run_give_up(run);
    return true;
}

// Whether the peer in whose name it comes is still heard over a connection of its own. The secret proves nothing,
// because every peer is told it. A peer that has left that connection tries again, and its end or its silence comes
// first.
static bool is_heard_elsewhere(const struct run *run, struct desk *desk, const struct resumption *from) {
    const struct desk_peer *peer = desk_of_id(desk, &from->resume->hello.id);
    return peer != NULL && desk_run_equal(&from->run, &desk->run) && desk->by_conn[peer->conn] != 0 &&
           desk->now_ns >= run->woken_until && desk->now_ns < peer->heard.at_ns + desk->limit_ns / 2;
}

static void refuse(struct mind *mind, const struct resumption *from, enum wire_type type, const char *why) {
    struct wire_header header = {.run = from->run.id, .generation = from->promised};
    actions_turn_away(&mind->run.desk.actions, from->conn, header, type, why);
}

// Refuses a RESUME, because this master serves a run.
static void refuse_resume(struct mind *mind, const struct resumption *from) {
    struct desk *desk = &mind->run.desk;
    struct desk_peer *before = desk_of_id(desk, &from->resume->hello.id);
    // the run that it waited in is over, or has not seen it go
    if (!from->resume->accepted && (before == NULL || !before->accepted)) {
        struct wire_hello hello = from->resume->hello;
        if (before != NULL) {
            desk_drop(desk, before, LOG_INFO, "it comes again");
            settle(mind);
        }
        enrol(mind, from->conn, from->source, &hello);
        return;
    }
    refuse(mind, from, from->resume->accepted ? WIRE_EXPELLED : WIRE_REFUSED,
           from->run.id == desk->run.id ? "the connection broke, and the run went on without this peer" : ANOTHER_RUN);
}

const struct actions *mind_peer_resumed(struct mind *mind, int64_t now_ns, uint32_t conn,
                                        const struct wire_address *source, const struct wire_header *header,
                                        const uint8_t *body) {
    struct run *run = &mind->run;
    struct desk *desk = &run->desk;
    struct wire_resume resume = {
        .barrier.sizes = mind->sizes, .epoch.members = mind->members, .past = mind->past, .losses = mind->losses};
    struct resumption from = {conn, source, {.id = header->run}, header->generation, &resume};
    begin_event(mind, now_ns);
    bool sound = wire_decode_resume(body, header->length, &resume);
    memcpy(from.run.secret, resume.secret, sizeof from.run.secret);
    // A young run may have to give way to the one that is resumed.
    bool young = header->run != desk->run.id && desk->now_ns < run->yields_until;
    if (sound && resume.hello.version != WIRE_VERSION)
        refuse(mind, &from, WIRE_REFUSED, "the master speaks another version of the protocol");
    else if (!sound || !gather_is_sound(&from))
        refuse(mind, &from, WIRE_REFUSED, "malformed RESUME");
    else if (!is_secret(run, &from.run))
        refuse(mind, &from, WIRE_REFUSED, WRONG_SECRET);
    else if (is_heard_elsewhere(run, desk, &from))
        actions_close(&desk->actions, conn);
    else if (desk->peer_count > 0 && !young && !take_back(run, &from))
        refuse_resume(mind, &from);
    else
        gather_resume(&mind->gather, desk, &from);
    return settle(mind);
}

// ---- what they say, and how they go ----

const struct actions *mind_message(struct mind *mind, int64_t now_ns, uint32_t conn, const struct wire_header *header,
                                   const uint8_t *body) {
    struct desk *desk = &mind->run.desk;
    struct desk_peer *peer = desk_of_conn(desk, conn);
    struct survivor *survivor = survivors_of_conn(&mind->gather.survivors, conn);
    begin_event(mind, now_ns);
    if (peer != NULL) {
        if (header->type != WIRE_TELEMETRY) desk_heard(desk, peer, desk->now_ns); // see conn_read of the master
        run_message(&mind->run, peer, header, body);
    } else if (survivor != NULL) {
        gather_message(&mind->gather, desk, survivor, header);
    } else {
        return &desk->actions;
    }
    return settle(mind);
}

const struct actions *mind_peers_lost(struct mind *mind, int64_t now_ns, const struct mind_loss *losses, size_t count) {
    struct desk *desk = &mind->run.desk;
    begin_event(mind, now_ns);
    for (size_t i = 0; i < count; i++) {
        struct desk_peer *peer = desk_of_conn(desk, losses[i].conn);
        struct survivor *survivor = survivors_of_conn(&mind->gather.survivors, losses[i].conn);
        if (peer != NULL)
            run_lose(&mind->run, peer, losses[i].why);
        else if (survivor != NULL)
            survivors_forget(&mind->gather.survivors, survivor);
    }
    return settle(mind);
}

const struct actions *mind_peer_lost(struct mind *mind, int64_t now_ns, uint32_t conn, const char *why) {
    return mind_peers_lost(mind, now_ns, &(struct mind_loss){conn, why}, 1);
}

void mind_heard(struct mind *mind, int64_t now_ns, uint32_t conn) {
    struct desk_peer *peer = desk_of_conn(&mind->run.desk, conn);
    struct survivor *survivor = survivors_of_conn(&mind->gather.survivors, conn);
    if (peer != NULL)
        desk_heard(&mind->run.desk, peer, now_ns);
    else if (survivor != NULL && now_ns > survivor->heard_ns)
        survivor->heard_ns = now_ns;
}

// ---- other masters ----

void mind_set_standby(struct mind *mind, bool standby) { mind->gather.standby = standby; }

void mind_await_others(struct mind *mind) { mind->gather.others_awaited = true; }

const struct actions *mind_others_are(struct mind *mind, int64_t now_ns, enum wire_activity most) {
    begin_event(mind, now_ns);
    gather_hear_others(&mind->gather, &mind->run.desk, most);
    return settle(mind);
}

bool mind_completed(const struct mind *mind) { return mind_activity(mind) == WIRE_IDLE && mind->run.completed; }

enum wire_activity mind_activity(const struct mind *mind) {
    return mind->run.desk.peer_count > 0 ? WIRE_SERVES : mind->gather.survivors.count > 0 ? WIRE_GATHERS : WIRE_IDLE;
}

const struct actions *mind_farewell(struct mind *mind, int64_t now_ns) {
    struct desk *desk = &mind->run.desk;
    begin_event(mind, now_ns);
    wire_encode_empty(desk_frame(desk), desk_header(desk), WIRE_BYE);
    for (uint32_t i = 0; i < desk->slots; i++)
        if (desk->peers[i].used) actions_send(&desk->actions, desk->peers[i].conn);
    for (uint32_t i = 0; i < mind->gather.survivors.count; i++)
        actions_send(&desk->actions, mind->gather.survivors.list[i]->conn);
    return &desk->actions;
}

// ---- time ----

const struct actions *mind_tick(struct mind *mind, int64_t now_ns) {
    struct desk *desk = &mind->run.desk;
    begin_event(mind, now_ns);
    mind->gather.survivors.due = true;
    run_tick(&mind->run);
    gather_tick(&mind->gather, desk);
    if (desk->peer_count + mind->gather.survivors.count > 0 && desk->heartbeat_at <= desk->now_ns) {
        desk->heartbeat_at = desk->now_ns + desk->limit_ns / 5;
        gather_beat(&mind->gather, desk);
        run_beat(&mind->run);
    }
    return settle(mind);
}

int64_t mind_next_deadline(const struct mind *mind) {
    const struct desk *desk = &mind->run.desk;
    bool serves = desk->peer_count > 0, gathers = mind->gather.survivors.count > 0;
    int64_t next = platform_earlier(gather_next_deadline(&mind->gather, desk), run_next_deadline(&mind->run));
    if (serves || gathers) next = platform_earlier(next, desk->heartbeat_at);
    if (serves && gathers) next = platform_earlier(next, yields_until(mind));
    return next;
}

void mind_expect_survivors(struct mind *mind, int64_t until_ns) { mind->run.desk.survivors_until = until_ns; }

// ---- life ----

struct mind *mind_new(uint32_t heartbeat_limit_ms, const uint8_t random[MIND_RANDOM_BYTES], int64_t now_ns) {
    struct mind *mind = malloc(sizeof *mind);
    if (mind == NULL) return NULL;
    uint64_t key;
    memcpy(&key, random + MIND_RANDOM_BYTES - sizeof key, sizeof key);
    run_init(&mind->run, heartbeat_limit_ms * MS_NS, random, key, now_ns);
    gather_init(&mind->gather, key);
    return mind;
}

void mind_free(struct mind *mind) {
    if (mind == NULL) return;
    gather_fini(&mind->gather);
    run_fini(&mind->run);
    free(mind);
}

bool mind_wants_random(const struct mind *mind) { return mind->run.wants_random; }

void mind_set_random(struct mind *mind, const uint8_t random[MIND_RANDOM_BYTES]) {
    memcpy(mind->run.random, random, sizeof mind->run.random);
    mind->run.wants_random = false;
}

uint32_t mind_peer_count(const struct mind *mind) { return mind->run.desk.peer_count; }

// An accepted one: a newcomer is told the secret, but has not been let in.
static bool proves_member(struct desk *desk, const struct wire_header *header, const uint8_t *body) {
    struct wire_diagnose proof;
    if (!wire_decode_diagnose(body, header->length, &proof)) return false;
    const struct desk_peer *peer = desk_of_id(desk, &proof.id);
    return peer != NULL && peer->accepted && memcmp(proof.secret, desk->run.secret, sizeof proof.secret) == 0;
}

void mind_describe(struct mind *mind, int64_t now_ns, const struct wire_header *header, const uint8_t *body,
                   bool trusted, struct wire_buffer *out) {
    struct desk *desk = &mind->run.desk;
    if (trusted || proves_member(desk, header, body))
        matrix_describe(&mind->run.matrix, desk, now_ns, out);
    else
        matrix_count(desk, out);
}

uint64_t mind_epoch(const struct mind *mind) { return mind->run.desk.number; }
