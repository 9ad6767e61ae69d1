// Taking a run up which another master has left, from the sum of what its members know. The last vote of all, or the
// last round of a group, may have ended for some and not for others: those hear how. All groups begin a new group
// epoch, so all ops are frozen, reported and judged as after any other change. What no report can show is a verdict
// that some have and others lack: COMMITs and MISMATCHes are told with RESUME and given again.
#include "master/run.h"

#include <string.h>

#include "master/gather.h"
#include "ops/members.h"

struct takeover {
    struct run *run;
    struct membership *table; // of the run
    struct survivors *survivors;
    const struct configuration *config;
    struct wire_ended_vote last; // the last vote of all that any member knows the end of; of a survivor
    // By the group's slot: who has heard of the newest of its losses; NULL: there was none.
    const struct survivor *witnesses[WIRE_MAX_MEMBERS];
    // By the group's slot: who tells how its last round of shared state ended; NULL: nobody knows of one.
    const struct wire_resume *rounds[WIRE_MAX_MEMBERS];
};

static const struct survivor *survivor_of(const struct takeover *t, const struct peer_record *peer) {
    return survivors_of_conn(t->survivors, peer->conn);
}

// Has the last vote of all ended without it?
static bool missed_vote(const struct survivor *survivor, const struct wire_ended_vote *last) {
    return !survivor->resume.accepted || survivor->resume.last_vote.number < last->number;
}

// Whoever missed more than that cannot have taken part in what the others did: no master can have left it so. Nor can
// it know of a later vote.
static bool fits(const struct survivor *survivor, const struct wire_ended_vote *last) {
    if (!missed_vote(survivor, last)) return survivor->resume.last_vote.number == last->number;
    if (!survivor->resume.accepted) return last->kind == WIRE_VOTE_UPDATE;
    return survivor->resume.last_vote.number + 1 == last->number && survivor->resume.vote == last->kind;
}

static bool most_fit(const struct takeover *t, const struct wire_ended_vote *last) {
    uint32_t fit = 0;
    for (uint32_t i = 0; i < t->config->count; i++) {
        const struct survivor *member = survivors_member(t->survivors, t->config, i);
        fit += member != NULL && fits(member, last);
    }
    return 2 * fit > t->config->present;
}

// A member may report a vote that never took place. All honest members fit the last vote, so the master believes the
// newest reported vote that most members fit; without one, the newest.
static struct wire_ended_vote newest_barrier(const struct takeover *t) {
    struct wire_ended_vote newest = {0}, believed = {0};
    for (uint32_t i = 0; i < t->config->count; i++) {
        const struct survivor *member = survivors_member(t->survivors, t->config, i);
        if (member == NULL || !member->resume.accepted) continue;
        const struct wire_ended_vote *told = &member->resume.last_vote;
        if (told->number > newest.number) newest = *told;
        if (told->number > believed.number && most_fit(t, told)) believed = *told;
    }
    return believed.number > 0 ? believed : newest;
}

static void begin_run(struct takeover *t, uint64_t generation) {
    struct run *run = t->run;
    const struct configuration *config = t->config;
    struct wire_quorum needed = config->quorum;
    needed.members = configuration_quorum(config);
    t->table->run = config->run;
    t->table->generation = generation;
    t->table->number = config->number;
    for (uint32_t i = 0; i < t->survivors->count; i++) {
        const struct survivor *survivor = t->survivors->list[i];
        if (!survivor_is_of(survivor, &config->run)) continue;
        if (survivor->resume.join_number >= run->next_join) run->next_join = survivor->resume.join_number + 1;
        if (survivor->resume.accepted && survivor->resume.epoch.number > t->table->number)
            t->table->number = survivor->resume.epoch.number;
    }
    for (uint32_t i = 0; i < config->count; i++)
        if (config->members[i].join_number >= run->next_join) run->next_join = config->members[i].join_number + 1;
    run->votes_ended = t->last.number;
    run->yields_until = 0;
    run->rounds.number = generation << 32; // rounds have other numbers than those of masters before
    quorum_take_up(&run->quorum, t->table, &needed);
}

// ---- members and groups ----

// The members of one group, which are config->members[begin..end). A group of which nobody is here is gone.
static void take_group(struct takeover *t, uint32_t begin, uint32_t end) {
    struct peer_group *group = NULL;
    uint32_t here = 0;
    for (uint32_t i = begin; i < end; i++) {
        const struct survivor *survivor = survivors_member(t->survivors, t->config, i);
        if (survivor == NULL) {
            const struct wire_member *gone = &t->config->members[i];
            const struct epoch_ring ring = {.members = &t->config->members[begin], .count = end - begin};
            membership_note_lost(t->table, gone, epoch_ring_rank(&ring, gone->join_number), WIRE_LOSS_UNKNOWN,
                                 "it did not come to the master that took the run up");
            continue;
        }
        if (here++ == 0) group = membership_ensure_group(t->table, t->config->members[begin].group);
        struct peer_record *peer = membership_add(t->table, survivor->conn, &t->config->members[i]);
        peer->accepted = true;
        peer->masters = survivor->resume.hello.masters;
        peer->group = group;
        t->table->order[t->table->count++] = peer;
    }
    if (here > 0) group->lost |= here < end - begin;
}

// All have the same limits, but for one that lies: takes those that most have (Boyer and Moore's majority vote).
static void take_limits(const struct takeover *t) {
    uint32_t lead = 0;
    for (uint32_t i = 0; i < t->table->count; i++) {
        const struct wire_limits *told = &survivor_of(t, t->table->order[i])->resume.hello.limits;
        if (lead == 0) t->table->limits = *told;
        lead = memcmp(told, &t->table->limits, sizeof *told) == 0 ? lead + 1 : lead - 1;
    }
}

static bool same_end(const struct wire_resume *a, const struct wire_resume *b) {
    return a->epoch.sync_round == b->epoch.sync_round && a->epoch.sync_expected == b->epoch.sync_expected;
}

// Has this member heard of the same end of a round, or may the round have ended without it? A round with somebody who
// has the last commit fails, repeats that commit, or makes the next one (rounds_elect, rule 3).
static bool fits_round(const struct wire_resume *resume, const struct wire_resume *told) {
    uint64_t before = resume->epoch.sync_expected, after = told->epoch.sync_expected;
    if (same_end(resume, told)) return true;
    bool follows = !resume->sync_committed || after == before || after == rounds_expect(before);
    return resume->epoch.sync_round < told->epoch.sync_round && resume->vote == WIRE_VOTE_SYNC && follows;
}

// How many of a group fit the end that one of it tells; 0: no more than half.
static uint32_t most_fit_round(const struct takeover *t, const struct peer_group *group,
                               const struct wire_resume *told) {
    uint32_t accepted = 0, fit = 0;
    for (uint32_t i = 0; i < t->table->count; i++) {
        const struct wire_resume *resume = &survivor_of(t, t->table->order[i])->resume;
        if (t->table->order[i]->group != group || !resume->accepted) continue;
        accepted++;
        fit += fits_round(resume, told);
    }
    return 2 * fit > accepted ? fit : 0;
}

// Keeps, as with the last vote, the newest end that most of the group fit, or else the newest.
static void find_round(struct takeover *t, const struct peer_record *peer) {
    const struct wire_resume *told = &survivor_of(t, peer)->resume;
    const struct wire_resume **found = &t->rounds[membership_group_slot(t->table, peer->group)];
    if (!told->accepted || told->epoch.sync_round == 0) return;
    if (*found == NULL) *found = told;
    if (same_end(told, *found)) return;
    uint32_t fit = most_fit_round(t, peer->group, told), other = most_fit_round(t, peer->group, *found);
    uint64_t its = told->epoch.sync_round, round = (*found)->epoch.sync_round;
    bool differ = (fit > 0) != (other > 0);
    if (differ ? fit > 0 : its != round ? its > round : fit > other) *found = told;
}

// Finds the code that most of those tell who tell this end of a round (Boyer and Moore's majority vote).
static uint8_t code_of(const struct takeover *t, const struct peer_group *group, const struct wire_resume *told) {
    uint32_t lead = 0;
    uint8_t code = told->sync_code;
    for (uint32_t i = 0; i < t->table->count; i++) {
        const struct wire_resume *resume = &survivor_of(t, t->table->order[i])->resume;
        if (t->table->order[i]->group != group || !resume->accepted || !same_end(resume, told)) continue;
        if (lead == 0) code = resume->sync_code;
        lead = resume->sync_code == code ? lead + 1 : lead - 1;
    }
    return code;
}

// Recovers what one member knows of its group.
static void recall(struct takeover *t, struct peer_record *peer) {
    const struct survivor *survivor = survivor_of(t, peer);
    struct peer_group *group = peer->group;
    uint32_t slot = membership_group_slot(t->table, group);
    rounds_recall(peer, &survivor->resume);
    find_round(t, peer);
    verdicts_recall(run_verdicts(t->run, group), t->table, peer, &survivor->resume);
    if (!survivor->resume.accepted || survivor->resume.epoch.lost_epoch <= group->lost_epoch) return;
    group->lost_epoch = survivor->resume.epoch.lost_epoch;
    t->witnesses[slot] = survivor;
}

// Marks the group as having lost a member if those that reported this configuration knew one that is no longer in it,
// and have heard of no loss since.
static void lose_unheard(const struct takeover *t, const struct configuration *config, struct peer_group *group) {
    for (uint32_t rank = 0; rank < group->count && group->lost_epoch <= config->number; rank++)
        group->lost |= survivor_of(t, group->members[rank])->config == config;
}

// Finds the absent members of one group of a configuration, config->members[begin..end).
static void find_absent(const struct takeover *t, const struct configuration *config, uint32_t begin, uint32_t end) {
    struct peer_group *group = NULL;
    bool absent = false;
    for (uint32_t i = begin; i < end; i++) {
        struct peer_record *peer = membership_by_id(t->table, &config->members[i].id);
        // it may be here, left behind
        bool here = peer != NULL && peer->accepted && peer->group->id == config->members[i].group;
        if (here) group = peer->group;
        absent |= !here;
    }
    if (absent && group != NULL && !group->lost) lose_unheard(t, config, group);
}

// A loss that only members of other groups had heard of: for this group it happens now.
static void find_unheard_losses(const struct takeover *t) {
    for (struct peer_group *group = membership_groups(t->table); group != NULL;
         group = membership_next(t->table, group))
        // Also of somebody who came with the last vote, which members here missed.
        for (uint32_t i = 0; i < t->last.count; i++)
            group->lost |= t->last.sizes[i].group == group->id && t->last.sizes[i].count > group->count &&
                           group->lost_epoch <= t->last.epoch;
    for (uint32_t i = 0; i < t->survivors->configuration_count; i++) {
        const struct configuration *config = t->survivors->configurations[i];
        if (!membership_same_run(&config->run, &t->config->run)) continue;
        for (uint32_t begin = 0, end; begin < config->count; begin = end) {
            end = configuration_group_end(config, begin);
            find_absent(t, config, begin, end);
        }
    }
}

// ---- what each member is told ----

// Some ended calls with losses that others have not heard of: those hear of them one by one, too.
static void tell_losses(const struct survivor *witness, const struct survivor *survivor,
                        const struct wire_ended_vote *last, struct wire_resumed *resumed) {
    uint64_t heard = survivor->resume.accepted ? survivor->resume.epoch.number : last->epoch;
    if (witness == NULL || witness->resume.loss_count == 0) return;
    uint32_t first = 0;
    while (first < witness->resume.loss_count && witness->resume.losses[first].epoch <= heard) first++;
    resumed->loss_count = witness->resume.loss_count - first;
    resumed->losses = witness->resume.losses + first;
}

static void send_resumed(struct takeover *t, struct peer_record *peer, const struct survivor *survivor) {
    struct run *run = t->run;
    struct wire_resumed resumed = {.heartbeat_limit_ms = (uint32_t)(t->table->limit_ns / MS_NS), .last_vote = t->last};
    resumed.vote_ended = missed_vote(survivor, &t->last);
    tell_losses(t->witnesses[membership_group_slot(t->table, peer->group)], survivor, &t->last, &resumed);
    resumed.sync_ended =
        !resumed.vote_ended && rounds_missed(&run->rounds, t->table, peer, &survivor->resume, &resumed.sync);
    wire_encode_resumed(membership_frame(t->table), membership_header(t->table), &resumed);
    membership_send(t->table, peer);
    if (resumed.vote_ended || resumed.sync_ended) return;
    if (survivor->resume.vote == WIRE_VOTE_SYNC)
        rounds_vote(&run->rounds, t->table, peer, &survivor->resume.sync_vote);
    else if (survivor->resume.vote != 0)
        membership_set_vote(t->table, peer, survivor->resume.vote);
}

static void take_member(struct takeover *t, struct peer_record *peer) {
    const struct survivor *survivor = survivor_of(t, peer);
    struct verdicts *verdicts = run_verdicts(t->run, peer->group);
    if (fits(survivor, &t->last)) {
        send_resumed(t, peer, survivor);
        verdicts_tell_mismatches(verdicts, t->table, peer, &survivor->resume, &t->last);
    } else {
        membership_expel(t->table, peer, "its recovery record contradicts that of the run");
    }
}

void run_take_over(struct run *run, struct survivors *survivors, const struct configuration *config,
                   uint64_t generation) {
    struct membership *table = &run->table;
    struct takeover t = {.run = run, .table = table, .survivors = survivors, .config = config};
    t.last = newest_barrier(&t);
    begin_run(&t, generation);
    table->count = 0;
    for (uint32_t begin = 0, end; begin < config->count; begin = end) {
        end = configuration_group_end(config, begin);
        take_group(&t, begin, end);
    }
    membership_rank(table);
    take_limits(&t);
    for (uint32_t i = 0; i < table->count; i++) recall(&t, table->order[i]);
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group)) {
        const struct wire_resume *told = t.rounds[membership_group_slot(table, group)];
        if (told != NULL) rounds_recall_end(&run->rounds, table, group, told, code_of(&t, group, told));
    }
    find_unheard_losses(&t);
    actions_event(&table->actions, RECORDER_TAKEOVER, table->generation, config->present, NULL, "");
    actions_log(
        &table->actions, LOG_NOTICE, "takes over the run in generation %llu: %u of %u members of epoch %llu are here",
        (unsigned long long)table->generation, config->present, config->count, (unsigned long long)config->number);
    for (uint32_t i = 0; i < table->count; i++) take_member(&t, table->order[i]);
    for (uint32_t i = 0; i < table->count; i++)
        survivors_forget(survivors, survivors_of_conn(survivors, table->order[i]->conn));
    run_resume(run);
}
