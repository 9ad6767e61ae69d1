#include "master/gather.h"

#include <stdio.h>
#include <string.h>

#include "master/run.h"
#include "net/socket.h"

enum { GATHER_LOG_MS = 10000 }; // between two lines of the log, and two to whoever waits

const char GATHER_WRONG_SECRET[] = "its secret is not that of the run; start the peer again to join as a new one";
const char GATHER_ANOTHER_RUN[] = "this master now serves another run";
static const char STANDBY[] =
    "no run is under way: it has ended, or has not begun; this master is a standby, and new runs begin at the first "
    "master of the list";
static const char BUSY[] =
    "another master of the list has the run; give this peer the addresses of all masters of the list";
static const char NO_ROOM[] = "has no place for another peer that waits for a lost run";
static const char ALL_TAKEN[] = "members that wait for a lost run take all places";

void gather_init(struct gather *gather, uint64_t key) {
    memset(gather, 0, offsetof(struct gather, survivors));
    gather->majority_at = INT64_MAX;
    survivors_init(&gather->survivors, key);
}

static bool expects(const struct membership *table) { return table->now_ns < table->survivors_until; }

// Returns why newcomers begin no run here; NULL: they may.
static const char *why_none(const struct gather *gather) {
    return gather->others_busy ? BUSY : gather->standby ? STANDBY : NULL;
}

static bool tell(struct membership *table, const struct survivor *survivor, enum wire_type type, uint64_t generation) {
    struct wire_header header = {.run = survivor->run.id, .generation = generation};
    return actions_send_empty(&table->actions, survivor->conn, header, type);
}

static void turn_away(struct gather *gather, struct membership *table, struct survivor *survivor, enum wire_type type,
                      const char *why) {
    struct wire_header header = {.run = survivor->run.id, .generation = survivor->promised};
    actions_turn_away(&table->actions, survivor->conn, header, type, why);
    survivors_forget(&gather->survivors, survivor);
}

// Without an end: it tries again, here or at another master, until its own limit has passed.
static void send_back(struct membership *table, uint32_t conn, uint64_t run, const char *why) {
    actions_send_text(&table->actions, conn, (struct wire_header){.run = run}, WIRE_WAITING, why);
    actions_close(&table->actions, conn);
    actions_log(&table->actions, LOG_WARN, "sent a peer away to try again: this master %s", why);
}

static void let_go(struct gather *gather, struct membership *table, struct survivor *survivor, const char *why) {
    send_back(table, survivor->conn, survivor->run.id, why);
    survivors_forget(&gather->survivors, survivor);
}

// Closes the survivor's connection without a message: the survivor ends by itself, or tries the next master of its
// list.
static void close_silently(struct gather *gather, struct membership *table, struct survivor *survivor) {
    actions_close(&table->actions, survivor->conn);
    survivors_forget(&gather->survivors, survivor);
}

// ---- coming ----

bool gather_hold(struct gather *gather, struct membership *table, uint32_t conn, const struct wire_address *source,
                 const struct wire_hello *hello) {
    const char *why = NULL;
    if (table->peer_count > 0) return false;
    if (gather->survivors.count > 0 || expects(table) || gather->others_awaited) {
        struct survivor *survivor = survivors_add(&gather->survivors, table, conn, source);
        if (survivor != NULL) survivor->resume.hello = *hello;
        if (survivor != NULL) return true;
        if (gather->survivors.count > 0) why = ALL_TAKEN;
    }
    if (why == NULL) why = why_none(gather);
    if (why != NULL) actions_turn_away(&table->actions, conn, membership_header(table), WIRE_REFUSED, why);
    return why != NULL;
}

// How many speak for what it says; 0: a newcomer.
static uint32_t support_of(const struct survivor *survivor) {
    return survivor->config != NULL ? survivor->config->present : 0;
}

// All places are taken. Who has the fewest beside itself goes, of those who has waited longest, so that many runs of
// one member each keep no other run out.
static bool make_room(struct gather *gather, struct membership *table, const struct resumption *from) {
    struct survivors *survivors = &gather->survivors;
    const struct configuration *config =
        from->resume->accepted ? survivors_find_configuration(survivors, &from->run, from->resume) : NULL;
    uint32_t support = config != NULL ? config->present + 1 : from->resume->accepted;
    struct survivor *least = survivors->list[0];
    for (uint32_t i = 1; i < survivors->count; i++)
        if (support_of(survivors->list[i]) < support_of(least)) least = survivors->list[i];
    if (support_of(least) > support) return false;
    if (least->resumes)
        let_go(gather, table, least, NO_ROOM);
    else
        turn_away(gather, table, least, WIRE_REFUSED, ALL_TAKEN);
    return true;
}

// NULL: no place, or no memory.
static struct survivor *admit(struct gather *gather, struct membership *table, const struct resumption *from) {
    struct survivors *survivors = &gather->survivors;
    struct survivor *before = survivors_of_id(survivors, &from->run, &from->resume->hello.id), *survivor;
    if (before != NULL)
        close_silently(gather, table, before); // it has left that connection, whose end is still to come
    if (survivors->count == WIRE_MAX_MEMBERS && !make_room(gather, table, from)) return NULL;
    survivor = survivors_add(survivors, table, from->conn, from->source);
    if (survivor == NULL) return NULL;
    survivor->promised = from->promised;
    if (survivors_resume(survivors, survivor, &from->run, from->resume)) return survivor;
    survivors_forget(survivors, survivor);
    return NULL;
}

void gather_resume(struct gather *gather, struct membership *table, const struct resumption *from) {
    const struct survivor *survivor = admit(gather, table, from);
    if (survivor == NULL)
        send_back(table, from->conn, from->run.id, NO_ROOM);
    else
        tell(table, survivor, WIRE_HEARTBEAT, 0); // it is heard
}

void gather_message(struct gather *gather, struct membership *table, struct survivor *survivor,
                    const struct wire_header *header) {
    survivor->heard_ns = table->now_ns;
    if (header->type == WIRE_PROMISE && survivor->asked && header->run == survivor->run.id &&
        header->generation == gather->generation) {
        survivor->gave = true;
        gather->survivors.due = true;
    }
    if (header->type == WIRE_LEAVE) close_silently(gather, table, survivor);
}

// All are sent on to the master that serves a run.
static void send_on(struct gather *gather, struct membership *table) {
    while (gather->survivors.count > 0) {
        struct survivor *survivor = gather->survivors.list[0];
        if (survivor->resumes)
            close_silently(gather, table, survivor);
        else
            turn_away(gather, table, survivor, WIRE_REFUSED, BUSY);
    }
}

void gather_hear_others(struct gather *gather, struct membership *table, enum wire_activity most) {
    gather->others_awaited = false;
    gather->others_busy = most != WIRE_IDLE;
    gather->survivors.due = true; // newcomers wait for this
    if (most == WIRE_SERVES && table->peer_count == 0 &&
        !configuration_has_majority(survivors_best_configuration(&gather->survivors)))
        send_on(gather, table);
}

bool gather_suits(const struct gather *gather, bool loopback) {
    uint32_t like = 1, unlike = 0; // with itself
    for (uint32_t i = 0; i < gather->survivors.count; i++) {
        const struct survivor *survivor = gather->survivors.list[i];
        bool same = socket_address_is_loopback(&survivor->source) == loopback;
        like += !survivor->resumes && same;
        unlike += !survivor->resumes && !same;
    }
    return like >= unlike;
}

// ---- promises ----

// The highest generation that a member of that run has promised, or has been asked for, or in which this master has
// served it: to members that are gone, perhaps.
static uint64_t highest_promise(const struct survivors *survivors, const struct membership *table,
                                const struct run_identity *run, bool asked) {
    uint64_t highest = membership_same_run(run, &table->last_run) ? table->last_generation : 0;
    for (uint32_t i = 0; i < survivors->count; i++) {
        const struct survivor *survivor = survivors->list[i];
        if (survivor_is_of(survivor, run) && (asked || !survivor->asked) && survivor->promised > highest)
            highest = survivor->promised;
    }
    return highest;
}

static void ask_promises(struct gather *gather, struct membership *table, const struct configuration *config) {
    struct survivors *survivors = &gather->survivors;
    uint64_t highest = highest_promise(survivors, table, &config->run, false);
    // the first time, or another master was at work meanwhile
    if (gather->generation <= highest || gather->run != config->run.id) {
        highest = highest_promise(survivors, table, &config->run, true);
        for (uint32_t i = 0; i < survivors->count; i++) survivors->list[i]->asked = survivors->list[i]->gave = false;
        gather->generation = highest + 1;
        gather->run = config->run.id;
    }
    for (uint32_t i = 0; i < survivors->count; i++) {
        struct survivor *survivor = survivors->list[i];
        if (!survivor_is_of(survivor, &config->run) || survivor->asked) continue;
        survivor->asked = tell(table, survivor, WIRE_GENERATION, gather->generation); // else with the next event
        // The survivor promises as soon as it hears the request, also if another run has its turn before the answer
        // comes.
        if (survivor->asked) survivor->promised = gather->generation;
    }
}

static bool all_promised(const struct survivors *survivors, const struct configuration *config) {
    for (uint32_t i = 0; i < survivors->count; i++)
        if (survivor_is_of(survivors->list[i], &config->run) && !survivors->list[i]->gave) return false;
    return true;
}

// ---- what is said ----

// Newcomers hear it as well: theirs is a call that does not return.
static void say(struct gather *gather, struct membership *table, const struct configuration *config) {
    const struct survivors *survivors = &gather->survivors;
    char why[ACTIONS_LOG_BYTES], others[64] = "", old_members[96] = "";
    uint32_t newcomers = 0, least = config->quorum.old_members;
    for (uint32_t i = 0; i < survivors->count; i++) newcomers += !survivors->list[i]->resumes;
    if (table->peer_count > 0)
        snprintf(others, sizeof others, "; %u peers are in a new run meanwhile", table->peer_count);
    if (newcomers > 0) snprintf(others, sizeof others, "; %u newcomers wait with them", newcomers);
    if (config->old_members < least)
        snprintf(old_members, sizeof old_members, ", including %u more that were members before the last newcomers",
                 least - config->old_members);
    snprintf(why, sizeof why,
             "waits for members of a run that lost its master: %u of the %u members of epoch %llu are here, %u are "
             "needed%s%s",
             config->present, config->count, (unsigned long long)config->number, configuration_quorum(config),
             old_members, others);
    gather->said_epoch = config->number;
    if (table->now_ns >= gather->say_at) {
        gather->say_at = table->now_ns + GATHER_LOG_MS * MS_NS;
        actions_log(&table->actions, LOG_ERR, "%s", why); // nothing goes on meanwhile
    }
    for (uint32_t i = 0; i < survivors->count; i++) {
        struct survivor *survivor = survivors->list[i];
        if (survivor->told_ns != 0 && table->now_ns < survivor->told_ns + GATHER_LOG_MS * MS_NS) continue;
        survivor->told_ns = table->now_ns;
        struct wire_header header = {.run = survivor->run.id};
        actions_send_text(&table->actions, survivor->conn, header, WIRE_WAITING, why);
    }
}

// Whoever was waited for has given up, or was let go.
static void say_end(struct gather *gather, struct membership *table) {
    if (gather->said_epoch != 0)
        actions_log(&table->actions, LOG_NOTICE,
                    "nobody waits for the run of epoch %llu any more: newcomers begin a new run",
                    (unsigned long long)gather->said_epoch);
    gather->said_epoch = 0;
}

// ---- decision ----

static enum gather_verdict decide_without_members(struct gather *gather, struct membership *table) {
    gather->majority_at = INT64_MAX;
    say_end(gather, table);
    if (expects(table) || gather->others_awaited) return GATHER_WAITS;
    const char *why = why_none(gather);
    while (gather->survivors.count > 0 && why != NULL)
        turn_away(gather, table, gather->survivors.list[0], WIRE_REFUSED, why);
    return GATHER_BEGINS;
}

// Returns true if this master gave that run up itself and some of its last members are still missing: they may be in an
// epoch that nobody here has entered.
static bool awaits_own_members(const struct gather *gather, const struct membership *table,
                               const struct configuration *config) {
    if (!expects(table) || !membership_same_run(&config->run, &table->left_run)) return false;
    for (uint32_t i = 0; i < table->left_count; i++)
        if (survivors_of_id(&gather->survivors, &config->run, &table->left[i]) == NULL) return true;
    return false;
}

enum gather_verdict gather_decide(struct gather *gather, struct membership *table) {
    const struct configuration *config = survivors_best_configuration(&gather->survivors);
    if (config == NULL) return decide_without_members(gather, table);
    if (!configuration_has_majority(config)) {
        gather->majority_at = INT64_MAX;
        if (!expects(table)) say(gather, table, config);
        return GATHER_WAITS;
    }
    if (gather->majority_at == INT64_MAX) gather->majority_at = table->now_ns;
    ask_promises(gather, table, config); // at once: who has promised waits for the rest, too
    if (config->present < config->count && table->now_ns < gather->majority_at + table->limit_ns) return GATHER_WAITS;
    if (awaits_own_members(gather, table, config)) return GATHER_WAITS;
    return all_promised(&gather->survivors, config) ? GATHER_TAKES_UP : GATHER_WAITS;
}

// ---- from gathering to a run ----

void gather_enrol(struct gather *gather, struct run *run, uint32_t conn, const struct wire_address *source,
                  const struct wire_hello *hello) {
    struct membership *table = &run->table;
    if (hello->version == WIRE_VERSION && table->peer_count == 0 &&
        !gather_suits(gather, socket_address_is_loopback(source)))
        actions_turn_away(&table->actions, conn, membership_header(table), WIRE_REFUSED,
                          "some peers reached the master over loopback, and others over the network; give all of "
                          "them the network address of the master");
    else
        run_register(run, conn, source, hello);
}

static void enrol_held(struct gather *gather, struct run *run, struct survivor *survivor) {
    uint32_t conn = survivor->conn;
    struct wire_address source = survivor->source;
    struct wire_hello hello = survivor->resume.hello;
    survivors_forget(&gather->survivors, survivor);
    gather_enrol(gather, run, conn, &source, &hello);
}

// Dismisses all that are no members: newcomers restart, everybody else has been left behind.
static void dismiss_rest(struct gather *gather, struct run *run) {
    struct membership *table = &run->table;
    while (gather->survivors.count > 0) {
        struct survivor *survivor = gather->survivors.list[0];
        if (survivor->resumes && survivor->resume.accepted)
            turn_away(gather, table, survivor, WIRE_EXPELLED,
                      survivor->run.id != table->run.id                  ? GATHER_ANOTHER_RUN
                      : membership_same_run(&survivor->run, &table->run) ? "the run continued without this peer"
                                                                         : GATHER_WRONG_SECRET);
        else
            enrol_held(gather, run, survivor);
    }
    gather->said_epoch = 0;
}

static void take_up(struct gather *gather, struct run *run) {
    run_take_over(run, &gather->survivors, survivors_best_configuration(&gather->survivors), gather->generation);
    gather->generation = 0;
    gather->majority_at = INT64_MAX;
    dismiss_rest(gather, run);
}

// Until when those that gather beside a young run wait. Newcomers of an older run, of which no member comes, wait for
// one a heartbeat limit and no longer.
int64_t gather_yields_until(const struct gather *gather, const struct run *run) {
    const struct survivors *survivors = &gather->survivors;
    if (survivors->configuration_count > 0) return run->yields_until;
    return platform_earlier(run->yields_until, survivors->list[0]->since_ns + run->table.limit_ns);
}

// A run that this master has begun while the members of an older one were on their way lets them wait, or gives way.
static bool yield(struct gather *gather, struct run *run) {
    struct membership *table = &run->table;
    const struct configuration *config = survivors_best_configuration(&gather->survivors);
    if (!configuration_has_majority(config)) {
        if (table->now_ns >= gather_yields_until(gather, run))
            dismiss_rest(gather, run);
        else if (config != NULL)
            say(gather, table, config);
        return gather->survivors.count == 0;
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
            membership_drop(table, peer, WIRE_LOSS_DIED, LOG_INFO, "it reconnects, for the older run");
    }
    return true;
}

bool gather_settle(struct gather *gather, struct run *run) {
    struct membership *table = &run->table;
    gather->survivors.due = false;
    if (table->peer_count > 0) return yield(gather, run);
    switch (gather_decide(gather, table)) {
    case GATHER_WAITS: break;
    case GATHER_BEGINS:
        while (gather->survivors.count > 0) enrol_held(gather, run, gather->survivors.list[0]);
        break;
    case GATHER_TAKES_UP: take_up(gather, run); break;
    }
    return table->peer_count > 0;
}

// ---- time ----

// A newcomer says nothing before its WELCOME, and waits no longer than this; members wait as long as they say
// something.
static int64_t deadline_of(const struct membership *table, const struct survivor *survivor) {
    return survivor->resumes ? survivor->heard_ns + table->limit_ns : survivor->since_ns + GATHER_HOLD_MS * MS_NS;
}

void gather_tick(struct gather *gather, struct membership *table) {
    struct survivors *survivors = &gather->survivors;
    survivors->due_ns = INT64_MAX;
    for (uint32_t i = survivors->count; i-- > 0;) {
        struct survivor *survivor = survivors->list[i];
        int64_t deadline = deadline_of(table, survivor);
        if (deadline > table->now_ns)
            survivors->due_ns = platform_earlier(survivors->due_ns, deadline);
        else if (survivor->resumes)
            let_go(gather, table, survivor, "heard nothing from the peer for the heartbeat limit");
        else
            turn_away(gather, table, survivor, WIRE_REFUSED,
                      "the members of a lost run that are here are too few to continue it; start the other "
                      "members again, or end the waiting ones to begin a new run");
    }
}

void gather_beat(struct gather *gather, struct membership *table) {
    for (uint32_t i = 0; i < gather->survivors.count; i++) tell(table, gather->survivors.list[i], WIRE_HEARTBEAT, 0);
}

void gather_woke(struct gather *gather, const struct membership *table) {
    gather->survivors.due = true;
    if (gather->majority_at != INT64_MAX) gather->majority_at = table->now_ns;
}

int64_t gather_next_deadline(const struct gather *gather, const struct membership *table) {
    int64_t majority_until = gather->majority_at == INT64_MAX ? INT64_MAX : gather->majority_at + table->limit_ns;
    if (gather->survivors.count == 0) return INT64_MAX;
    int64_t next = platform_earlier(gather->survivors.due_ns, expects(table) ? table->survivors_until : INT64_MAX);
    return platform_earlier(next, table->now_ns < majority_until ? majority_until : INT64_MAX);
}
