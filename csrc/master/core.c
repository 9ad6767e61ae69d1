#include "master/core.h"

#include <stdlib.h>
#include <string.h>

#include "master/gather.h"
#include "master/run.h"
#include "net/socket.h"

static const char WRONG_SECRET[] = "its secret is not that of the run; start the peer again to join as a new one";
static const char ANOTHER_RUN[] = "this master now serves another run";

struct master_core {
    struct gather gather;
    struct run run;
    // for decoding
    struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    struct wire_member members[WIRE_MAX_MEMBERS];
    struct wire_past past[WIRE_MAX_PAST];
    struct wire_loss losses[WIRE_MAX_MEMBERS];
};

static void enrol(struct master_core *core, uint32_t conn, const struct wire_address *source,
                  const struct wire_hello *hello) {
    struct membership *table = &core->run.table;
    if (hello->version == WIRE_VERSION && table->peer_count == 0 &&
        !gather_suits(&core->gather, socket_address_is_loopback(source)))
        actions_turn_away(&table->actions, conn, membership_header(table), WIRE_REFUSED,
                          "some peers reached the master over loopback, and others over the network; give all of "
                          "them the network address of the master");
    else
        run_register(&core->run, conn, source, hello);
}

// ---- from gathering to a run ----

static void enrol_held(struct master_core *core, struct survivor *survivor) {
    uint32_t conn = survivor->conn;
    struct wire_address source = survivor->source;
    struct wire_hello hello = survivor->resume.hello;
    survivors_forget(&core->gather.survivors, survivor);
    enrol(core, conn, &source, &hello);
}

// Dismisses all that are no members: newcomers restart, everybody else has been left behind.
static void dismiss_rest(struct master_core *core) {
    struct membership *table = &core->run.table;
    while (core->gather.survivors.count > 0) {
        struct survivor *survivor = core->gather.survivors.list[0];
        if (survivor->resumes && survivor->resume.accepted)
            gather_turn_away(&core->gather, table, survivor, WIRE_EXPELLED,
                             survivor->run.id != table->run.id                  ? ANOTHER_RUN
                             : membership_same_run(&survivor->run, &table->run) ? "the run continued without this peer"
                                                                                : WRONG_SECRET);
        else
            enrol_held(core, survivor);
    }
    core->gather.said_epoch = 0;
}

static void take_up(struct master_core *core) {
    struct gather *gather = &core->gather;
    run_take_over(&core->run, &gather->survivors, survivors_best_configuration(&gather->survivors), gather->generation);
    gather->generation = 0;
    gather->majority_at = INT64_MAX;
    dismiss_rest(core);
}

// Until when those that gather beside a young run wait. Newcomers of an older run, of which no member comes, wait for
// one a heartbeat limit and no longer.
static int64_t yields_until(const struct master_core *core) {
    const struct survivors *survivors = &core->gather.survivors;
    if (survivors->configuration_count > 0) return core->run.yields_until;
    return platform_earlier(core->run.yields_until, survivors->list[0]->since_ns + core->run.table.limit_ns);
}

// A run that this master has begun while the members of an older one were on their way lets them wait, or gives way.
static bool yield(struct master_core *core) {
    struct membership *table = &core->run.table;
    const struct configuration *config = survivors_best_configuration(&core->gather.survivors);
    if (!configuration_has_majority(config)) {
        if (table->now_ns >= yields_until(core))
            dismiss_rest(core);
        else if (config != NULL)
            gather_say(&core->gather, table, config);
        return core->gather.survivors.count == 0;
    }
    actions_log(&table->actions, LOG_NOTICE,
                "ends the new run of %u peers: %u of the %u members of epoch %llu of an older run are back",
                table->peer_count, config->present, config->count, (unsigned long long)config->number);
    for (uint32_t i = 0; i < table->slots; i++) {
        struct peer_record *peer = &table->peers[i];
        if (!peer->used) continue;
        if (peer->accepted)
            membership_expel(
                table, peer,
                "the members of an older run have returned to this master, which continues that run; connect "
                "again to join it");
        else
            // by itself, since nobody has told it why
            membership_drop(table, peer, LOG_INFO, "it reconnects, for the older run");
    }
    return true;
}

// True: peers have come or gone.
static bool gather(struct master_core *core) {
    struct membership *table = &core->run.table;
    core->gather.survivors.due = false;
    if (table->peer_count > 0) return yield(core);
    switch (gather_decide(&core->gather, table)) {
    case GATHER_WAITS: break;
    case GATHER_BEGINS:
        while (core->gather.survivors.count > 0) enrol_held(core, core->gather.survivors.list[0]);
        break;
    case GATHER_TAKES_UP: take_up(core); break;
    }
    return table->peer_count > 0;
}

// ---- around each event ----

static void begin_event(struct master_core *core, int64_t now_ns) {
    struct run *run = &core->run;
    struct membership *table = &run->table;
    bool waits = core->gather.survivors.count > 0;
    // Whoever has peers sends a heartbeat every fifth of the limit; so it stood still if nothing happened for so long.
    bool woke = (table->peer_count > 0 || waits) && now_ns > table->now_ns + table->limit_ns / 2;
    actions_clear(&table->actions);
    if (now_ns > table->now_ns) table->now_ns = now_ns;
    if (!woke) return;
    gather_woke(&core->gather, table);
    run->woken_until = table->now_ns + table->limit_ns;
    // those that gather have left, and come again
    if (waits && table->survivors_until < run->woken_until) table->survivors_until = run->woken_until;
}

static const struct actions *settle(struct master_core *core) {
    struct membership *table = &core->run.table;
    struct survivors *survivors = &core->gather.survivors;
    do {
        run_settle(&core->run);
        survivors->due |= table->turnover;
        table->turnover = false;
    } while (survivors->count > 0 && survivors->due && gather(core));
    return &table->actions;
}

// ---- peers come ----

const struct actions *core_peer_connected(struct master_core *core, int64_t now_ns, uint32_t conn,
                                          const struct wire_address *source, const struct wire_hello *hello) {
    begin_event(core, now_ns);
    if (!gather_hold(&core->gather, &core->run.table, conn, source, hello)) enrol(core, conn, source, hello);
    return settle(core);
}

static bool is_secret(const struct run *run, const struct run_identity *claimed) {
    bool serves = run->table.peer_count > 0 && claimed->id == run->table.run.id;
    const struct run_identity *known = serves ? &run->table.run : &run->table.last_run;
    return claimed->id != known->id || membership_same_run(claimed, known);
}

// A member of the run that this master serves comes as one that has lost it. Nobody is left behind before a member is
// known to have entered an epoch without it: as long as none is, the others may have left as well, and what all of them
// know together decides.
static bool take_back(struct run *run, const struct resumption *from) {
    struct membership *table = &run->table;
    if (!membership_same_run(&from->run, &table->run) || from->promised < table->generation) return false;
    const struct peer_record *peer = membership_by_id(table, &from->resume->hello.id);
    bool missed = peer != NULL ? peer->accepted || table->now_ns < run->woken_until
                               : from->resume->accepted && run->heard_number < run->lost_number;
    if (!missed) return false;
    actions_log(&table->actions, LOG_NOTICE,
                "a member that had lost this master is back: gives up the run until all members return");
    run_give_up(run);
    return true;
}

// Whether the peer in whose name it comes is still heard over a connection of its own. The secret proves nothing,
// because every peer is told it. A peer that has left that connection tries again, and its end or its silence comes
// first.
static bool is_heard_elsewhere(const struct run *run, struct membership *table, const struct resumption *from) {
    const struct peer_record *peer = membership_by_id(table, &from->resume->hello.id);
    return peer != NULL && membership_same_run(&from->run, &table->run) && table->by_conn[peer->conn] != 0 &&
           table->now_ns >= run->woken_until && table->now_ns < peer->heard.at_ns + table->limit_ns / 2;
}

static void refuse(struct master_core *core, const struct resumption *from, enum wire_type type, const char *why) {
    struct wire_header header = {.run = from->run.id, .generation = from->promised};
    actions_turn_away(&core->run.table.actions, from->conn, header, type, why);
}

// Refuses a RESUME, because this master serves a run.
static void refuse_resume(struct master_core *core, const struct resumption *from) {
    struct membership *table = &core->run.table;
    struct peer_record *before = membership_by_id(table, &from->resume->hello.id);
    // the run that it waited in is over, or has not seen it go
    if (!from->resume->accepted && (before == NULL || !before->accepted)) {
        struct wire_hello hello = from->resume->hello;
        if (before != NULL) {
            membership_drop(table, before, LOG_INFO, "it reconnects");
            settle(core);
        }
        enrol(core, from->conn, from->source, &hello);
        return;
    }
    refuse(core, from, from->resume->accepted ? WIRE_EXPELLED : WIRE_REFUSED,
           from->run.id == table->run.id ? "its connection broke, and the run continued without it" : ANOTHER_RUN);
}

const struct actions *core_peer_resumed(struct master_core *core, int64_t now_ns, uint32_t conn,
                                        const struct wire_address *source, const struct wire_header *header,
                                        const uint8_t *body) {
    struct run *run = &core->run;
    struct membership *table = &run->table;
    struct wire_resume resume = {
        .last_vote.sizes = core->sizes, .epoch.members = core->members, .past = core->past, .losses = core->losses};
    struct resumption from = {conn, source, {.id = header->run}, header->generation, &resume};
    begin_event(core, now_ns);
    bool sound = wire_decode_resume(body, header->length, &resume);
    memcpy(from.run.secret, resume.secret, sizeof from.run.secret);
    // A young run may have to give way to the one that is resumed.
    bool young = header->run != table->run.id && table->now_ns < run->yields_until;
    if (sound && resume.hello.version != WIRE_VERSION)
        refuse(core, &from, WIRE_REFUSED, "the master speaks another version of the protocol; update pccl");
    else if (!sound || !gather_is_sound(&from))
        refuse(core, &from, WIRE_REFUSED, "malformed RESUME");
    else if (!quorum_verify(&run->signer, header->run, &resume))
        refuse(core, &from, WIRE_REFUSED, "no master of this run signed its epoch");
    else if (!is_secret(run, &from.run))
        refuse(core, &from, WIRE_REFUSED, WRONG_SECRET);
    else if (is_heard_elsewhere(run, table, &from))
        actions_close(&table->actions, conn);
    else if (table->peer_count > 0 && !young && !take_back(run, &from))
        refuse_resume(core, &from);
    else
        gather_resume(&core->gather, table, &from);
    return settle(core);
}

// ---- what they say, and how they go ----

const struct actions *core_message(struct master_core *core, int64_t now_ns, uint32_t conn,
                                   const struct wire_header *header, const uint8_t *body) {
    struct membership *table = &core->run.table;
    struct peer_record *peer = membership_by_conn(table, conn);
    struct survivor *survivor = survivors_of_conn(&core->gather.survivors, conn);
    begin_event(core, now_ns);
    if (peer != NULL) {
        if (header->type != WIRE_TELEMETRY) membership_heard(table, peer, table->now_ns); // see conn_read of the master
        run_message(&core->run, peer, header, body);
    } else if (survivor != NULL) {
        gather_message(&core->gather, table, survivor, header);
    } else {
        return &table->actions;
    }
    return settle(core);
}

const struct actions *core_peers_lost(struct master_core *core, int64_t now_ns, const struct core_loss *losses,
                                      size_t count) {
    struct membership *table = &core->run.table;
    begin_event(core, now_ns);
    for (size_t i = 0; i < count; i++) {
        struct peer_record *peer = membership_by_conn(table, losses[i].conn);
        struct survivor *survivor = survivors_of_conn(&core->gather.survivors, losses[i].conn);
        if (peer != NULL)
            run_lose(&core->run, peer, losses[i].why);
        else if (survivor != NULL)
            survivors_forget(&core->gather.survivors, survivor);
    }
    return settle(core);
}

const struct actions *core_peer_lost(struct master_core *core, int64_t now_ns, uint32_t conn, const char *why) {
    return core_peers_lost(core, now_ns, &(struct core_loss){conn, why}, 1);
}

void core_heard(struct master_core *core, int64_t now_ns, uint32_t conn) {
    struct peer_record *peer = membership_by_conn(&core->run.table, conn);
    struct survivor *survivor = survivors_of_conn(&core->gather.survivors, conn);
    if (peer != NULL)
        membership_heard(&core->run.table, peer, now_ns);
    else if (survivor != NULL && now_ns > survivor->heard_ns)
        survivor->heard_ns = now_ns;
}

void core_set_signer(struct master_core *core, const struct signer *signer) { core->run.signer = *signer; }

// ---- other masters ----

void core_set_standby(struct master_core *core, bool standby) { core->gather.standby = standby; }

void core_await_others(struct master_core *core) { core->gather.others_awaited = true; }

const struct actions *core_others_are(struct master_core *core, int64_t now_ns, enum wire_activity most) {
    begin_event(core, now_ns);
    gather_hear_others(&core->gather, &core->run.table, most);
    return settle(core);
}

bool core_completed(const struct master_core *core) { return core_activity(core) == WIRE_IDLE && core->run.completed; }

enum wire_activity core_activity(const struct master_core *core) {
    return core->run.table.peer_count > 0 ? WIRE_SERVES : core->gather.survivors.count > 0 ? WIRE_GATHERS : WIRE_IDLE;
}

const struct actions *core_farewell(struct master_core *core, int64_t now_ns) {
    struct membership *table = &core->run.table;
    begin_event(core, now_ns);
    wire_encode_empty(membership_frame(table), membership_header(table), WIRE_BYE);
    for (uint32_t i = 0; i < table->slots; i++)
        if (table->peers[i].used) actions_send(&table->actions, table->peers[i].conn);
    for (uint32_t i = 0; i < core->gather.survivors.count; i++)
        actions_send(&table->actions, core->gather.survivors.list[i]->conn);
    return &table->actions;
}

// ---- time ----

const struct actions *core_tick(struct master_core *core, int64_t now_ns) {
    struct membership *table = &core->run.table;
    begin_event(core, now_ns);
    core->gather.survivors.due = true;
    run_tick(&core->run);
    gather_tick(&core->gather, table);
    if (table->peer_count + core->gather.survivors.count > 0 && table->heartbeat_at <= table->now_ns) {
        table->heartbeat_at = table->now_ns + table->limit_ns / 5;
        gather_beat(&core->gather, table);
        run_beat(&core->run);
    }
    return settle(core);
}

int64_t core_next_deadline(const struct master_core *core) {
    const struct membership *table = &core->run.table;
    bool serves = table->peer_count > 0, gathers = core->gather.survivors.count > 0;
    int64_t next = platform_earlier(gather_next_deadline(&core->gather, table), run_next_deadline(&core->run));
    if (serves || gathers) next = platform_earlier(next, table->heartbeat_at);
    if (serves && gathers) next = platform_earlier(next, yields_until(core));
    return next;
}

void core_expect_survivors(struct master_core *core, int64_t until_ns) { core->run.table.survivors_until = until_ns; }

// ---- life ----

struct master_core *core_new(uint32_t heartbeat_limit_ms, const uint8_t random[CORE_RANDOM_BYTES], int64_t now_ns) {
    struct master_core *core = malloc(sizeof *core);
    if (core == NULL) return NULL;
    uint64_t key;
    memcpy(&key, random + CORE_RANDOM_BYTES - sizeof key, sizeof key);
    run_init(&core->run, heartbeat_limit_ms * MS_NS, random, key, now_ns);
    gather_init(&core->gather, key);
    return core;
}

void core_free(struct master_core *core) {
    if (core == NULL) return;
    gather_fini(&core->gather);
    run_fini(&core->run);
    free(core);
}

bool core_wants_random(const struct master_core *core) { return core->run.wants_random; }

void core_set_random(struct master_core *core, const uint8_t random[CORE_RANDOM_BYTES]) {
    memcpy(core->run.random, random, sizeof core->run.random);
    core->run.wants_random = false;
}

uint32_t core_peer_count(const struct master_core *core) { return core->run.table.peer_count; }

// An accepted one: a newcomer is told the secret, but has not been let in.
static bool proves_member(struct membership *table, const struct wire_header *header, const uint8_t *body) {
    struct wire_diagnose proof;
    if (!wire_decode_diagnose(body, header->length, &proof)) return false;
    const struct peer_record *peer = membership_by_id(table, &proof.id);
    return peer != NULL && peer->accepted && memcmp(proof.secret, table->run.secret, sizeof proof.secret) == 0;
}

void core_describe(struct master_core *core, int64_t now_ns, const struct wire_header *header, const uint8_t *body,
                   bool trusted, struct wire_buffer *out) {
    struct membership *table = &core->run.table;
    if (trusted || proves_member(table, header, body))
        matrix_describe(&core->run.matrix, table, now_ns, out);
    else
        matrix_count(table, out);
}

uint64_t core_epoch(const struct master_core *core) { return core->run.table.number; }
