#include "master/run.h"

#include <stdio.h>
#include <string.h>

#include "net/socket.h"
#include "pccl.h"

static const char NO_RUN[] =
    "no run is under way: it has ended, or has not begun; this peer may only join one, so start a peer that may begin "
    "a run first";

// The slot is as if it had never been used.
static void close_group(struct run *run, uint32_t slot) {
    breaks_fini(&run->breaks[slot]);
    verdicts_fini(&run->verdicts[slot]);
    selection_forget_group(&run->selection, slot);
    run->rounds.groups[slot] = (struct rounds_group){0};
    run->table.groups[slot].count = 0;
}

static void forget(struct run *run, struct peer_record *peer) {
    selection_forget_peer(&run->selection, membership_slot(&run->table, peer));
    membership_remove(&run->table, peer);
}

// ---- epochs ----

static void send_epoch(struct run *run, uint8_t reason) {
    struct membership *table = &run->table;
    struct wire_epoch_commit message = {.reason = reason,
                                        .quorum = quorum_announced(&run->quorum, table),
                                        .gone_count = table->lost_count,
                                        .gone = table->lost_members};
    message.epoch = membership_epoch(table, table->number, table->order, table->count);
    message.epoch.votes_ended = run->votes_ended;
    if (!quorum_sign(&run->signer, membership_header(table), &message)) table->out_of_memory = true;
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group)) {
        const struct rounds_group *round = &run->rounds.groups[membership_group_slot(table, group)];
        message.epoch.group_epoch = group->group_epoch;
        message.epoch.lost_epoch = group->lost_epoch;
        message.epoch.sync_round = round->last.round;
        message.epoch.sync_expected = round->committed ? round->expected : 0;
        message.epoch.latency_us = group->latency_us;
        message.epoch.megabytes_per_s = group->megabytes_per_s;
        wire_encode_epoch_commit(membership_frame(table), membership_header(table), &message);
        membership_send_group(table, group);
    }
    table->lost_count = 0;
}

static void enter_group_epoch(struct run *run, struct peer_group *group) {
    group->group_epoch = run->table.number;
    if (group->lost) group->lost_epoch = run->table.number;
    group->changed = group->lost = false;
    group->latency_us = 0;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        struct peer_record *peer = group->members[rank];
        peer->linked = peer->reported = false;
        if (peer->latency_us > group->latency_us) group->latency_us = peer->latency_us;
    }
    if (group->latency_us == 0) group->latency_us = MEMBERSHIP_LATENCY_US;
    group->megabytes_per_s = selection_group_rate(&run->selection, &run->table, group);
    verdicts_begin(run_verdicts(run, group), group->count);
    breaks_begin(run_breaks(run, group));
}

// The next number; a LOSS epoch is a new group epoch for groups that lost members, any other one for groups that
// changed, and that in which the run is taken up is one for all.
static void enter_epoch(struct run *run, uint8_t reason, bool all) {
    static const char *const reasons[] = {"?", "update", "loss", "relink", "order"};
    struct membership *table = &run->table;
    bool lost = reason == WIRE_REASON_LOSS;
    table->number++;
    table->changed = false;
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group)) {
        if (all || (lost ? group->lost : group->changed)) enter_group_epoch(run, group);
        table->changed |= group->changed;
    }
    if (lost) run->lost_number = table->number;
    if (lost) table->lost = false;
    if (run->phase == RUN_CANDIDATE) run->candidate.stale = true;
    send_epoch(run, reason);
    actions_event(&table->actions, RECORDER_EPOCH, table->number, table->count, NULL,
                  all ? "resumed" : reasons[reason]);
    actions_log(&table->actions, LOG_NOTICE, "epoch %llu (%s): %u peer%s", (unsigned long long)table->number,
                all ? "resumed" : reasons[reason], table->count, table->count == 1 ? "" : "s");
}

void run_resume(struct run *run) {
    bool lost = false;
    for (struct peer_group *group = membership_groups(&run->table); group != NULL;
         group = membership_next(&run->table, group))
        lost |= group->lost;
    enter_epoch(run, lost ? WIRE_REASON_LOSS : WIRE_REASON_RELINK, true);
}

// ---- votes ----

// The vote of all is over: an epoch or an OUTCOME says how.
static void end_vote(struct run *run, uint8_t kind) {
    static const char *const names[] = {
        [WIRE_VOTE_UPDATE] = "update", [WIRE_VOTE_PENDING] = "pending", [WIRE_VOTE_OPTIMIZE] = "optimize"};
    actions_event(&run->table.actions, RECORDER_VOTE, run->table.number, run->table.count, NULL, names[kind]);
    for (uint32_t i = 0; i < run->table.count; i++) membership_set_vote(&run->table, run->table.order[i], 0);
    run->votes_ended++;
    run->phase = RUN_IDLE;
    run->short_until = INT64_MAX;
}

static void answer_vote(struct run *run, uint8_t kind, uint8_t code, uint64_t value) {
    struct wire_outcome outcome = {kind, code, value};
    wire_encode_outcome(membership_frame(&run->table), membership_header(&run->table), &outcome);
    for (uint32_t i = 0; i < run->table.count; i++) membership_send(&run->table, run->table.order[i]);
    end_vote(run, kind);
}

// ---- members that leave ----

static void tell_leaving(struct membership *table, const struct peer_record *peer) {
    int64_t left = peer->leaves_ns == INT64_MAX ? INT64_MAX : (peer->leaves_ns - table->now_ns) / MS_NS;
    struct wire_leaving message = {.id = peer->member.id, .at_update = peer->leaves_at_update};
    message.within_ms = left >= WIRE_WITHIN_UNKNOWN ? WIRE_WITHIN_UNKNOWN : left > 0 ? (uint32_t)left : 0;
    wire_encode_leaving(membership_frame(table), membership_header(table), &message);
    for (uint32_t i = 0; i < table->count; i++) membership_send(table, table->order[i]);
}

void run_leaving(struct run *run, struct peer_record *peer, const struct wire_leaving *leaving) {
    struct membership *table = &run->table;
    if (!wire_id_equal(&leaving->id, &peer->member.id)) {
        membership_expel(table, peer, "it announced that another member leaves");
        return;
    }
    if (!peer->leaving)
        actions_log(&table->actions, LOG_NOTICE, "%s announces that it leaves", membership_label_at(peer).chars);
    peer->leaving = true;
    peer->leaves_at_update = leaving->at_update;
    peer->leaves_ns =
        leaving->within_ms == WIRE_WITHIN_UNKNOWN ? INT64_MAX : table->now_ns + leaving->within_ms * MS_NS;
    tell_leaving(table, peer);
}

static bool some_leave(const struct membership *table) {
    for (uint32_t i = 0; i < table->count; i++)
        if (table->order[i]->leaves_at_update) return true;
    return false;
}

// All members are in the update vote, so no operation is under way: a member that goes now harms nobody. False: nobody
// leaves.
static bool release_leaving(struct run *run) {
    struct membership *table = &run->table;
    for (uint32_t i = 0; i < table->count; i++) {
        struct peer_record *peer = table->order[i];
        if (!peer->leaves_at_update) continue;
        quorum_ended(&run->quorum, peer);
        wire_encode_empty(membership_frame(table), membership_header(table), WIRE_LEFT);
        membership_send(table, peer);
        if (peer->drained[0] != 0)
            membership_drop(table, peer, WIRE_LOSS_DRAINED, LOG_INFO, peer->drained);
        else
            membership_drop(table, peer, WIRE_LOSS_LEFT, LOG_INFO, "it left, as announced");
    }
    return table->gone_count > 0;
}

static void commit_candidate(struct run *run) {
    uint32_t before = run->table.count;
    uint8_t kind = run->candidate.kind;
    uint64_t newer = candidate_commit(&run->candidate, &run->table);
    if (run->table.count > before) quorum_admits(&run->quorum, &run->table, before, newer);
    end_vote(run, kind);
    enter_epoch(run, kind == WIRE_VOTE_UPDATE ? WIRE_REASON_UPDATE : WIRE_REASON_ORDER, false);
    for (uint32_t i = 0; run->table.count > before && i < run->table.count; i++) // to those who are new
        if (run->table.order[i]->leaving) tell_leaving(&run->table, run->table.order[i]);
}

static void propose(struct run *run, uint8_t kind) {
    run->phase = RUN_CANDIDATE;
    candidate_propose(&run->candidate, &run->table, kind);
    if (run->candidate.count == 1) commit_candidate(run); // nobody to make links to
}

// Whether neither a newcomer nor another one before it can be dialled, and nobody is there who could relay. Often all
// peers of a job come at once, so it waits for one, but not for ever: the two may reach each other all the same.
static bool lacks_relay(const struct membership *table, const struct peer_record *peer) {
    bool lacks = false;
    if (!peer->member.reach.closed || (peer->member.reach.relays & WIRE_RELAYS_OUTSIDE) != 0) return false;
    if (table->now_ns - peer->waits_since > RUN_RELAY_WAIT_MS * MS_NS) return false;
    for (uint32_t i = 0; i < table->slots; i++) {
        const struct peer_record *other = &table->peers[i];
        if (!other->used || other == peer || other->member.group != peer->member.group) continue;
        const struct wire_reach *reach = &other->member.reach;
        if (!reach->closed && (reach->relays & WIRE_RELAYS) != 0 && !other->copies) return false;
        lacks |= reach->closed && (other->accepted || other->member.join_number < peer->member.join_number);
    }
    return lacks;
}

// The first members need not wait behind others of their host.
static bool may_come(struct run *run, const struct peer_record *peer) {
    return peer->used && !peer->accepted && !peer->copies && !lacks_relay(&run->table, peer) &&
           (run->table.count == 0 ||
            membership_host_waits_until(&run->table, &peer->member.address) <= run->table.now_ns);
}

// Returns how many newcomers may become members.
static uint32_t places(const struct membership *table) {
    uint32_t most = table->limits.most;
    return most == 0 ? WIRE_MAX_MEMBERS : most > table->count ? most - table->count : 0;
}

static bool is_short(const struct membership *table) { return table->count < table->limits.least; }

void run_precopy(struct run *run, struct peer_record *peer, const struct wire_precopy *precopy) {
    struct membership *table = &run->table;
    struct wire_donors donors = {0};
    peer->progress = precopy->progress;
    if (precopy->copies == WIRE_COPY_ADVANCES) return;
    peer->copies = false;
    if (precopy->copies == WIRE_COPY_OVER && 2 * precopy->progress.done < precopy->progress.total &&
        membership_has_state(table, peer->member.group))
        actions_log(&table->actions, LOG_WARN, "%s holds little of the state: members will wait for its first sync",
                    membership_label_at(peer).chars);
    if (precopy->copies == WIRE_COPY_OVER || peer->accepted) return;
    // Newcomers that come one after another begin with different members.
    uint32_t first = table->count == 0 ? 0 : (uint32_t)(peer->member.join_number % table->count);
    for (uint32_t i = 0; i < table->count && donors.count < WIRE_MAX_DONORS; i++) {
        const struct wire_member *member = &table->order[(first + i) % table->count]->member;
        struct wire_donor donor = {member->id, member->reach};
        if (member->group != peer->member.group || member->reach.closed) continue;
        if (donor.reach.count == 0) donor.reach.addresses[donor.reach.count++] = member->address;
        donors.donors[donors.count++] = donor;
    }
    peer->copies = donors.count > 0;
    wire_encode_donors(membership_frame(table), membership_header(table), &donors);
    membership_send(table, peer);
}

static bool newcomers_wait(struct run *run) {
    if (places(&run->table) == 0) return false;
    for (uint32_t i = 0; i < run->table.slots && run->table.peer_count > run->table.count; i++)
        if (may_come(run, &run->table.peers[i])) return true;
    return false;
}

// Invites the newcomers that there are places for, those first that came first.
static void invite(struct run *run) {
    struct membership *table = &run->table;
    bool may[WIRE_MAX_MEMBERS]; // asked once each: that looks at all others
    for (uint32_t i = 0; i < table->slots; i++) table->peers[i].invited = false;
    for (uint32_t i = 0; i < table->slots; i++) may[i] = may_come(run, &table->peers[i]);
    for (uint32_t left = places(table); left > 0; left--) {
        struct peer_record *first = NULL;
        for (uint32_t i = 0; i < table->slots && table->peer_count > table->count; i++) {
            struct peer_record *peer = &table->peers[i];
            if (peer->invited || !may[i]) continue;
            if (first == NULL || peer->member.join_number < first->member.join_number) first = peer;
        }
        if (first == NULL) return;
        first->invited = true;
    }
}

// The update vote stays open until newcomers make the run large enough, or their time is over.
static void wait_for_more(struct run *run) {
    struct membership *table = &run->table;
    if (run->short_until == INT64_MAX) {
        run->short_until = table->now_ns + table->limits.wait_ms * MS_NS;
        actions_log(&table->actions, LOG_NOTICE, "the run waits: %u of at least %u members are there", table->count,
                    table->limits.least);
    }
    if (run->short_until > table->now_ns) return;
    actions_log(&table->actions, LOG_ERR, "the run has waited %u s in vain: %u of at least %u members are there",
                table->limits.wait_ms / 1000, table->count, table->limits.least);
    answer_vote(run, WIRE_VOTE_UPDATE, pcclTooFewPeers, table->count);
}

// The update vote has passed. The first members need no vote.
static void form_update(struct run *run) {
    if (run->table.count == 0) invite(run);
    bool newcomers = candidate_form(&run->candidate, &run->table);
    if (run->table.count > 0 && run->candidate.count < run->table.limits.least)
        wait_for_more(run);
    else if (newcomers || selection_plan(&run->selection, &run->matrix, &run->table, &run->candidate))
        propose(run, WIRE_VOTE_UPDATE);
    else
        answer_vote(run, WIRE_VOTE_UPDATE, pcclSuccess, 0);
}

static void judge_candidate(struct run *run) {
    switch (candidate_judge(&run->candidate, &run->table, run->breaks)) {
    case CANDIDATE_PASSES: commit_candidate(run); return;
    case CANDIDATE_FAILS:
        if (run->candidate.kind == WIRE_VOTE_UPDATE) selection_failed(&run->selection);
        answer_vote(run, run->candidate.kind,
                    run->candidate.kind == WIRE_VOTE_UPDATE ? pcclSuccess : pcclTopologyOptimizationFailed, 0);
        return;
    case CANDIDATE_REPAIRS: return;
    }
}

// The vote has passed, or a round of measurements is over.
static void optimise(struct run *run) {
    if (run->phase == RUN_IDLE && !selection_begin_survey(&run->selection, &run->table)) {
        answer_vote(run, WIRE_VOTE_OPTIMIZE, pcclTopologyOptimizationFailed, 0);
        return;
    }
    run->phase = RUN_SURVEY;
    if (selection_next_round(&run->selection, &run->table)) return;
    bool differs = selection_order_rings(&run->selection, &run->table, run->candidate.order);
    run->candidate.count = run->table.count;
    candidate_keep_weights(&run->candidate);
    differs |= selection_plan(&run->selection, &run->matrix, &run->table, &run->candidate);
    if (differs)
        propose(run, WIRE_VOTE_OPTIMIZE);
    else
        answer_vote(run, WIRE_VOTE_OPTIMIZE, pcclSuccess, 0);
}

static bool all_voted(const struct run *run, uint8_t kind) { return run->table.open[kind] == run->table.count; }

static void pass_votes(struct run *run) {
    struct membership *table = &run->table;
    if (table->count == 0) {
        if (table->peer_count > 0) form_update(run);
    } else if (all_voted(run, WIRE_VOTE_UPDATE)) {
        if (release_leaving(run)) return; // the vote passes again without them
        invite(run);
        form_update(run);
    } else if (all_voted(run, WIRE_VOTE_PENDING)) {
        bool others = is_short(table) || some_leave(table);
        answer_vote(run, WIRE_VOTE_PENDING, pcclSuccess, others ? WIRE_PENDING_OTHERS : newcomers_wait(run));
    } else if (all_voted(run, WIRE_VOTE_OPTIMIZE)) {
        optimise(run);
    }
}

// ---- settling ----

// Takes those out that are gone. Nobody holds one after this: the order and the groups are rebuilt here, the survey
// ends, and a candidate with one is stale, so that its list is not read again.
static void reap(struct run *run) {
    struct membership *table = &run->table;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        struct peer_record *peer = table->order[i];
        peer->group->count = 0; // set again below, where members are left
        if (!peer->gone) {
            table->order[kept++] = peer;
            continue;
        }
        table->lost = peer->group->lost = true;
        breaks_forget(run_breaks(run, peer->group), membership_slot(table, peer));
        membership_set_vote(table, peer, 0);
    }
    if (kept < table->count) {
        if (run->phase == RUN_SURVEY) {
            run->phase = RUN_IDLE;
            selection_end_survey(&run->selection, table);
        }
        run->rounds.due = true;
    }
    table->count = kept;
    membership_rank(table);
    for (uint32_t i = 0; i < table->slots; i++) {
        struct peer_record *peer = &table->peers[i];
        if (!peer->gone) continue;
        if (peer->listed) run->candidate.stale = true;
        if (peer->accepted && peer->group->count == 0) close_group(run, membership_group_slot(table, peer->group));
        forget(run, peer);
    }
    table->gone_count = 0;
}

static void progress(struct run *run) {
    const struct candidate *candidate = &run->candidate;
    if (run->phase == RUN_CANDIDATE && candidate->stale) {
        run->phase = RUN_IDLE;
        if (candidate->kind == WIRE_VOTE_UPDATE) form_update(run); // the vote has passed and stays so
    } else if (run->phase == RUN_CANDIDATE && candidate_is_due(candidate)) {
        judge_candidate(run);
    } else if (run->phase == RUN_SURVEY && run->selection.survey.unanswered == 0) {
        optimise(run);
    }
    if (run->phase == RUN_IDLE && run->table.gone_count == 0) pass_votes(run);
    if (run->table.gone_count == 0) rounds_advance(&run->rounds, &run->table);
}

static void watch_quorum(struct run *run) {
    switch (quorum_watch(&run->quorum, &run->table)) {
    case QUORUM_KEEPS: return;
    case QUORUM_IS_SURE: run->table.changed |= !run->table.lost; return; // an epoch tells them
    case QUORUM_GIVES_UP: run_give_up(run); return;
    }
}

static void start(struct run *run) {
    struct membership *table = &run->table;
    if (run->next_join > 1) {
        table->last_run = table->run;
        table->last_generation = table->generation;
    }
    memcpy(&table->run.id, run->random, sizeof table->run.id);
    memcpy(table->run.secret, run->random + sizeof table->run.id, sizeof table->run.secret);
    if (table->run.id == 0) table->run.id = 1; // 0 means: no run yet
    for (size_t i = 0; i < sizeof run->random; i++) run->random[i] = (uint8_t)(run->random[i] * 167 + i + 1);
    run->wants_random = true;
    table->generation = 1;
    table->number = 0;
    table->lost = table->changed = false;
    table->lost_count = 0;
    run->next_join = 1;
    run->left = false;
    run->votes_ended = 0;
    memset(table->open, 0, sizeof table->open);
    run->rounds.number = 0;
    run->candidate.attempt = 0;
    run->quorum = (struct quorum){0};
    run->heard_number = run->lost_number = 0;
    run->yields_until = 0;
    run->phase = RUN_IDLE;
    run->short_until = INT64_MAX;
    table->warn_at = table->deadlock_at = INT64_MAX;
}

// The run has ended here; the next one may begin.
static void end(struct run *run, bool completed) {
    run->completed = completed;
    run->ended_ns = run->table.now_ns;
    start(run);
}

// Records the current members.
static void leave_run(struct membership *table) {
    table->left_run = table->run;
    table->left_count = 0;
    for (uint32_t i = 0; i < table->count; i++)
        if (!table->order[i]->gone) table->left[table->left_count++] = table->order[i]->member.id;
}

void run_give_up(struct run *run) {
    struct membership *table = &run->table;
    leave_run(table);
    for (uint32_t i = 0; i < table->slots; i++) {
        struct peer_record *peer = &table->peers[i];
        if (!peer->used) continue;
        if (!peer->gone && table->by_conn[peer->conn] != 0) {
            table->by_conn[peer->conn] = 0;
            actions_close(&table->actions, peer->conn);
        }
        forget(run, peer);
    }
    for (uint32_t i = 0; i < table->group_slots; i++)
        if (table->groups[i].count > 0) close_group(run, i);
    table->gone_count = table->count = run->candidate.count = run->selection.survey.count = 0;
    end(run, false);
    table->survivors_until = table->now_ns + table->limit_ns; // its members may come back, and newcomers be the first
}

static void drop_for_memory(struct run *run) {
    run->table.out_of_memory = false;
    actions_log(&run->table.actions, LOG_ERR, "gives up the run of %u peers: out of memory", run->table.count);
    run_give_up(run);
}

static void welcome(struct membership *table, struct peer_record *peer) {
    struct wire_welcome message = {.join_number = peer->member.join_number,
                                   .heartbeat_limit_ms = (uint32_t)(table->limit_ns / MS_NS),
                                   .seen = peer->member.address,
                                   .closed = peer->member.reach.closed};
    memcpy(message.secret, table->run.secret, sizeof message.secret);
    wire_encode_welcome(membership_frame(table), membership_header(table), &message);
    membership_send(table, peer);
}

// Starts another run for the newcomers when all members are gone, since only members know the state of their run. A
// young run yields to the old one if its members return.
static void restart(struct run *run) {
    struct membership *table = &run->table;
    uint64_t next_join = run->next_join;
    actions_log(&table->actions, LOG_NOTICE,
                "run ended: its last member has left; waiting newcomers start another run");
    start(run);
    run->next_join = next_join;
    run->yields_until = table->now_ns + RUN_YOUNG_MS * MS_NS;
    for (uint32_t i = 0; i < table->slots; i++) {
        if (!table->peers[i].used) continue;
        table->peers[i].copies = false; // whoever it copied from is gone
        welcome(table, &table->peers[i]);
    }
}

// Without members, the newcomers begin the next run: refuses them if none of them may begin one.
static void refuse_join_only(struct membership *table) {
    for (uint32_t i = 0; i < table->slots; i++)
        if (table->peers[i].used && !table->peers[i].gone && !table->peers[i].join_only) return;
    for (uint32_t i = 0; i < table->slots; i++)
        if (table->peers[i].used) membership_expel(table, &table->peers[i], "%s", NO_RUN);
}

void run_settle(struct run *run) {
    struct membership *table = &run->table;
    do {
        if (table->out_of_memory) drop_for_memory(run);
        if (table->gone_count > 0) reap(run);
        watch_quorum(run);
        if (table->count == 0) refuse_join_only(table);
        if (table->number > 0 && table->count == 0 && table->peer_count > 0) restart(run);
        if (table->lost) enter_epoch(run, WIRE_REASON_LOSS, false);
        if (table->changed) enter_epoch(run, WIRE_REASON_RELINK, false);
        if (table->gone_count == 0) progress(run);
    } while (table->gone_count > 0 || table->lost || table->changed || table->out_of_memory);
    if (table->peer_count > 0 || run->next_join == 1) return;
    actions_log(&table->actions, LOG_NOTICE, "run ended: its last peer has left; the next peer starts another run");
    end(run, run->left);
}

// ---- registration ----

// Returns why a peer is refused, in a constant or in `text`; NULL: it is not.
static const char *reason_to_refuse(struct run *run, const struct wire_address *source, const struct wire_hello *hello,
                                    char text[WIRE_MAX_TEXT]) {
    struct membership *table = &run->table;
    const struct wire_limits *its = &hello->limits, *ours = &table->limits;
    if (table->peer_count == WIRE_MAX_MEMBERS) return "the run has its maximum number of members";
    if (membership_by_id(table, &hello->id) != NULL) return "another peer is registered under this id";
    if (hello->join_only && table->peer_count == 0) return NO_RUN;
    bool here = socket_address_is_loopback(source);
    if (here && table->loopback_count < table->peer_count)
        return "this peer reached the master over loopback, others over the network, so they cannot reach this peer; "
               "give it the master's network address";
    if (!here && table->loopback_count > 0)
        return "this peer reached the master over the network, others over loopback, so it cannot reach them; give "
               "them the master's network address";
    if (table->peer_count == 0 || memcmp(its, ours, sizeof *its) == 0) return NULL;
    snprintf(text, WIRE_MAX_TEXT,
             "it has min_members %u, max_members %u and min_members_timeout %g s, and the run %u, %u and %g s; give "
             "all peers the same",
             its->least, its->most, its->wait_ms / 1e3, ours->least, ours->most, ours->wait_ms / 1e3);
    return text;
}

void run_register(struct run *run, uint32_t conn, const struct wire_address *source, const struct wire_hello *hello) {
    struct membership *table = &run->table;
    struct peer_text foreign = membership_foreign(hello->version);
    char text[WIRE_MAX_TEXT];
    const char *why = hello->version != WIRE_VERSION ? foreign.chars : reason_to_refuse(run, source, hello, text);
    if (why != NULL) {
        actions_turn_away(&table->actions, conn, membership_header(table), WIRE_REFUSED, why);
        return;
    }
    if (table->peer_count == 0) {
        table->limits = hello->limits;
        run->yields_until = table->now_ns + RUN_YOUNG_MS * MS_NS;
    }
    struct wire_member member = {.id = hello->id,
                                 .join_number = run->next_join++,
                                 .group = hello->group,
                                 .lanes = hello->lanes,
                                 .address = *source,
                                 .name = hello->name,
                                 .reach = hello->reach};
    member.address.port = hello->port;
    // NAT translates its address, and it names none that others could dial.
    if (member.reach.count == 0 && hello->local.family != 0 && !socket_address_same_host(&hello->local, source))
        member.reach.closed = 1;
    struct peer_record *peer = membership_add(table, conn, &member);
    peer->masters = hello->masters;
    peer->join_only = hello->join_only;
    peer->copies = hello->copies && table->count > 0;
    membership_begin_wait(table, peer);
    welcome(table, peer);
    actions_log_stranger(&table->actions, LOG_INFO, "registered %s, group %u", membership_label_at(peer).chars,
                         hello->group);
}

// ---- life ----

void run_init(struct run *run, int64_t limit_ns, const uint8_t random[RUN_RANDOM_BYTES], uint64_t id_key,
              int64_t now_ns) {
    memset(run, 0, offsetof(struct run, quorum));
    memcpy(run->random, random, sizeof run->random);
    membership_init(&run->table, limit_ns, id_key, now_ns);
    candidate_init(&run->candidate);
    rounds_init(&run->rounds);
    start(run);
}

void run_fini(struct run *run) {
    for (uint32_t i = 0; i < run->table.group_slots; i++) close_group(run, i);
    selection_fini(&run->selection);
    matrix_fini(&run->matrix);
    membership_fini(&run->table);
    quorum_verified_fini(&run->verified);
}
