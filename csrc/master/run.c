#include "master/run.h"

#include <string.h>

#include "net/socket.h"
#include "pccl.h"

static struct breaks *breaks_of(struct run *run, const struct peer_group *group) {
    return &run->breaks[membership_group_slot(&run->table, group)];
}

static struct verdicts *verdicts_of(struct run *run, const struct peer_group *group) {
    return &run->verdicts[membership_group_slot(&run->table, group)];
}

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
    struct wire_epoch_commit message = {.reason = reason, .quorum = quorum_announced(&run->quorum, table)};
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
    verdicts_begin(verdicts_of(run, group), group->count);
    breaks_begin(breaks_of(run, group));
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
    actions_log(&table->actions, LOG_NOTICE, "epoch %llu (%s): %u peers", (unsigned long long)table->number,
                all ? "resumed" : reasons[reason], table->count);
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
static void end_vote(struct run *run) {
    for (uint32_t i = 0; i < run->table.count; i++) membership_set_vote(&run->table, run->table.order[i], 0);
    run->votes_ended++;
    run->phase = RUN_IDLE;
}

static void answer_vote(struct run *run, uint8_t kind, uint8_t code, uint64_t value) {
    struct wire_outcome outcome = {kind, code, value};
    wire_encode_outcome(membership_frame(&run->table), membership_header(&run->table), &outcome);
    for (uint32_t i = 0; i < run->table.count; i++) membership_send(&run->table, run->table.order[i]);
    end_vote(run);
}

static void commit_candidate(struct run *run) {
    uint32_t before = run->table.count;
    uint8_t kind = run->candidate.kind;
    uint64_t newer = candidate_commit(&run->candidate, &run->table);
    if (run->table.count > before) quorum_admits(&run->quorum, &run->table, before, newer);
    end_vote(run);
    enter_epoch(run, kind == WIRE_VOTE_UPDATE ? WIRE_REASON_UPDATE : WIRE_REASON_ORDER, false);
}

static void propose(struct run *run, uint8_t kind) {
    run->phase = RUN_CANDIDATE;
    candidate_propose(&run->candidate, &run->table, kind);
    if (run->candidate.count == 1) commit_candidate(run); // nobody to make links to
}

static bool may_come(struct run *run, const struct peer_record *peer) {
    return peer->used && !peer->accepted &&
           membership_host_waits_until(&run->table, &peer->member.address) <= run->table.now_ns;
}

static bool newcomers_wait(struct run *run) {
    for (uint32_t i = 0; i < run->table.slots && run->table.peer_count > run->table.count; i++)
        if (may_come(run, &run->table.peers[i])) return true;
    return false;
}

// The update vote has passed. The first members need no vote.
static void form_update(struct run *run) {
    for (uint32_t i = 0; i < run->table.slots && run->table.count == 0; i++) run->table.peers[i].invited = true;
    bool newcomers = candidate_form(&run->candidate, &run->table);
    if (newcomers || selection_plan(&run->selection, &run->matrix, &run->table, &run->candidate))
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
        for (uint32_t i = 0; i < table->slots; i++) table->peers[i].invited = may_come(run, &table->peers[i]);
        form_update(run);
    } else if (all_voted(run, WIRE_VOTE_PENDING)) {
        answer_vote(run, WIRE_VOTE_PENDING, pcclSuccess, newcomers_wait(run));
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
        breaks_forget(breaks_of(run, peer->group), membership_slot(table, peer));
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
    run->next_join = 1;
    run->votes_ended = 0;
    memset(table->open, 0, sizeof table->open);
    run->rounds.number = 0;
    run->candidate.attempt = 0;
    run->quorum = (struct quorum){0};
    run->heard_number = run->lost_number = 0;
    run->yields_until = 0;
    run->phase = RUN_IDLE;
    table->warn_at = INT64_MAX;
}

void run_give_up(struct run *run) {
    struct membership *table = &run->table;
    membership_leave_run(table);
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
    start(run);
    table->survivors_until = table->now_ns + table->limit_ns; // its members may come back, and newcomers be the first
}

static void drop_for_memory(struct run *run) {
    run->table.out_of_memory = false;
    actions_log(&run->table.actions, LOG_ERR, "gives up the run of %u peers: out of memory", run->table.count);
    run_give_up(run);
}

static void welcome(struct run *run, struct peer_record *peer) {
    struct membership *table = &run->table;
    struct wire_welcome welcome = {.join_number = peer->member.join_number,
                                   .heartbeat_limit_ms = (uint32_t)(table->limit_ns / MS_NS),
                                   .seen = peer->member.address};
    memcpy(welcome.secret, table->run.secret, sizeof welcome.secret);
    wire_encode_welcome(membership_frame(table), membership_header(table), &welcome);
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
    for (uint32_t i = 0; i < table->slots; i++)
        if (table->peers[i].used) welcome(run, &table->peers[i]);
}

void run_settle(struct run *run) {
    struct membership *table = &run->table;
    do {
        if (table->out_of_memory) drop_for_memory(run);
        if (table->gone_count > 0) reap(run);
        watch_quorum(run);
        if (table->count == 0) membership_refuse_join_only(table);
        if (table->number > 0 && table->count == 0 && table->peer_count > 0) restart(run);
        if (table->lost) enter_epoch(run, WIRE_REASON_LOSS, false);
        if (table->changed) enter_epoch(run, WIRE_REASON_RELINK, false);
        if (table->gone_count == 0) progress(run);
    } while (table->gone_count > 0 || table->lost || table->changed || table->out_of_memory);
    if (table->peer_count > 0 || run->next_join == 1) return;
    actions_log(&table->actions, LOG_NOTICE, "run ended: its last peer has left; the next peer starts another run");
    start(run);
}

// ---- registration ----

static const char *reason_to_refuse(struct run *run, const struct wire_address *source,
                                    const struct wire_hello *hello) {
    struct membership *table = &run->table;
    if (hello->version != WIRE_VERSION) return "the master speaks another version of the protocol; update pccl";
    if (table->peer_count == WIRE_MAX_MEMBERS) return "the run has its maximum number of members";
    if (membership_by_id(table, &hello->id) != NULL) return "another peer is registered under this id";
    if (hello->join_only && table->peer_count == 0) return MEMBERSHIP_NO_RUN;
    bool here = socket_address_is_loopback(source);
    if (here && table->loopback_count < table->peer_count)
        return "this peer reached the master over loopback, others over the network, so they cannot reach this peer; "
               "give it the master's network address";
    if (!here && table->loopback_count > 0)
        return "this peer reached the master over the network, others over loopback, so it cannot reach them; give "
               "them the master's network address";
    return NULL;
}

void run_register(struct run *run, uint32_t conn, const struct wire_address *source, const struct wire_hello *hello) {
    struct membership *table = &run->table;
    const char *why = reason_to_refuse(run, source, hello);
    if (why != NULL) {
        actions_turn_away(&table->actions, conn, membership_header(table), WIRE_REFUSED, why);
        return;
    }
    if (table->peer_count == 0) run->completed = false;
    if (table->peer_count == 0) run->yields_until = table->now_ns + RUN_YOUNG_MS * MS_NS;
    struct wire_member member = {.id = hello->id,
                                 .join_number = run->next_join++,
                                 .group = hello->group,
                                 .lanes = hello->lanes,
                                 .address = *source,
                                 .name = hello->name};
    member.address.port = hello->port;
    struct peer_record *peer = membership_add(table, conn, &member);
    peer->masters = hello->masters;
    peer->join_only = hello->join_only;
    membership_begin_wait(table, peer);
    welcome(run, peer);
    actions_log_stranger(&table->actions, LOG_INFO, "registered %s, group %u", membership_label_at(peer).chars,
                         hello->group);
}

// ---- messages ----

static void on_linked(struct run *run, struct peer_record *peer, const struct wire_header *header,
                      const struct wire_linked *linked) {
    struct membership *table = &run->table;
    if (linked->attempt > run->candidate.attempt || (linked->attempt == 0 && !peer->accepted)) {
        membership_expel(table, peer, "it sent LINKED for an epoch that was never proposed");
        return;
    }
    if (linked->latency_us > 0) peer->latency_us = linked->latency_us;
    peer->heard.round_trip_ns = 2 * (int64_t)peer->latency_us * US_NS;
    membership_heard(table, peer, table->now_ns);
    if (linked->attempt > 0 && run->phase == RUN_CANDIDATE)
        candidate_linked(&run->candidate, table, peer, linked);
    else if (linked->attempt == 0 && header->epoch >= peer->group->group_epoch)
        breaks_linked(breaks_of(run, peer->group), table, peer);
}

static void on_link_down(struct run *run, struct peer_record *peer, const struct wire_header *header,
                         const struct wire_link_down *down) {
    struct peer_group *group = peer->group;
    struct peer_record *reported = membership_in_group(&run->table, group, &down->id);
    if (reported != NULL && reported != peer && down->reason == WIRE_LINK_MALFORMED)
        breaks_malformed(breaks_of(run, group), &run->table, peer, reported);
    if (header->epoch < group->group_epoch) return; // the links have been made again since
    if (reported == peer)
        membership_change_group(&run->table, group);
    else if (reported != NULL)
        breaks_add(breaks_of(run, group), &run->table, peer, reported, (enum wire_link_reason)down->reason);
}

static void on_moved(struct run *run, struct peer_record *peer) {
    struct membership *table = &run->table;
    if (table->now_ns < run->woken_until) { // the others have left as well, or are about to: nobody needs to be lost
        actions_log(&table->actions, LOG_NOTICE,
                    "this master was suspended, and %s seeks another one: gives up the run until all members return",
                    membership_label(peer).chars);
        run_give_up(run);
    } else if (peer->accepted && quorum_unheard(&run->quorum, table, 1) == QUORUM_GIVES_UP) {
        run_give_up(run);
    } else {
        membership_drop(table, peer, LOG_WARN, "it seeks another master, because this one was silent");
    }
}

union message {
    struct wire_linked linked;
    struct wire_vote vote;
    struct wire_op_done done;
    struct wire_report report;
    struct wire_mismatch mismatch;
    struct wire_cancel cancel;
    struct wire_link_down link_down;
    struct wire_measured measured;
    struct wire_sync_vote sync_vote;
    struct wire_sync_done sync_done;
    struct wire_telemetry telemetry;
};

static bool decode(struct run *run, const struct wire_header *header, const uint8_t *body, union message *out) {
    size_t length = header->length;
    switch (header->type) {
    case WIRE_LINKED: return wire_decode_linked(body, length, &out->linked);
    case WIRE_VOTE: return wire_decode_vote(body, length, &out->vote);
    case WIRE_DONE: return wire_decode_op_done(body, length, &out->done);
    case WIRE_REPORT: out->report.ops = run->reported; return wire_decode_report(body, length, &out->report);
    case WIRE_MISMATCH: return wire_decode_mismatch(body, length, &out->mismatch);
    case WIRE_CANCEL: return wire_decode_cancel(body, length, &out->cancel);
    case WIRE_LINK_DOWN: return wire_decode_link_down(body, length, &out->link_down);
    case WIRE_MEASURED: return wire_decode_measured(body, length, &out->measured);
    case WIRE_SYNC_VOTE: return wire_decode_sync_vote(body, length, &out->sync_vote);
    case WIRE_SYNC_DONE: return wire_decode_sync_done(body, length, &out->sync_done);
    case WIRE_TELEMETRY: return wire_decode_telemetry(body, length, &out->telemetry);
    default: return true;
    }
}

// Handles messages that only members send.
static void on_member_message(struct run *run, struct peer_record *peer, const struct wire_header *header,
                              const union message *message) {
    struct membership *table = &run->table;
    struct verdicts *verdicts = verdicts_of(run, peer->group);
    if (peer->vote != 0 && (header->type == WIRE_VOTE || header->type == WIRE_SYNC_VOTE)) {
        membership_expel(table, peer, "it sent a vote while its last one was open");
        return;
    }
    switch (header->type) {
    case WIRE_VOTE: membership_set_vote(table, peer, message->vote.kind); return;
    case WIRE_DONE: verdicts_done(verdicts, table, peer, header, &message->done); return;
    case WIRE_REPORT: verdicts_report(verdicts, table, peer, header, &message->report); return;
    case WIRE_MISMATCH: verdicts_mismatch(table, peer, header, &message->mismatch); return;
    case WIRE_CANCEL: verdicts_cancel(table, peer, header, &message->cancel); return;
    case WIRE_LINK_DOWN: on_link_down(run, peer, header, &message->link_down); return;
    case WIRE_MEASURED:
        if (run->phase == RUN_SURVEY) selection_measured(&run->selection, table, peer, &message->measured); // else late
        return;
    case WIRE_SYNC_VOTE: rounds_vote(&run->rounds, table, peer, &message->sync_vote); return;
    case WIRE_SYNC_DONE: rounds_done(&run->rounds, table, peer, &message->sync_done); return;
    case WIRE_TELEMETRY: matrix_note(&run->matrix, table, peer, &message->telemetry); return;
    default:
        membership_expel(table, peer, "it sent %s, which is not a message for masters", wire_type_name(header->type));
    }
}

void run_message(struct run *run, struct peer_record *peer, const struct wire_header *header, const uint8_t *body) {
    struct membership *table = &run->table;
    union message message;
    // Another master's; but a round's number is that of one generation, and the peer's data plane may not have heard of
    // this one when it ends.
    bool late = header->generation < table->generation && header->type == WIRE_SYNC_DONE;
    if (header->run != table->run.id || (header->generation != table->generation && !late)) return;
    if (header->epoch > table->number) {
        membership_expel(table, peer, "it sent %s for an epoch that does not exist", wire_type_name(header->type));
        return;
    }
    if (peer->accepted && header->epoch > run->heard_number) run->heard_number = header->epoch;
    if (peer->accepted) quorum_entered(&run->quorum, peer, header->epoch);
    if (header->type == WIRE_HEARTBEAT) return;
    if (header->type == WIRE_MOVED) {
        on_moved(run, peer);
    } else if (header->type == WIRE_LEAVE) {
        quorum_ended(&run->quorum, peer);
        run->completed = run->completed || peer->accepted;
        membership_drop(table, peer, LOG_INFO, "it left");
    } else if (header->type != WIRE_LINKED && !peer->accepted) {
        membership_expel(table, peer, "it sent %s before it was admitted", wire_type_name(header->type));
    } else if (!decode(run, header, body, &message)) {
        membership_expel(table, peer, "it sent a malformed %s", wire_type_name(header->type));
    } else if (header->type == WIRE_LINKED) {
        on_linked(run, peer, header, &message.linked);
    } else {
        on_member_message(run, peer, header, &message);
    }
}

void run_lose(struct run *run, struct peer_record *peer, const char *why) {
    run->table.by_conn[peer->conn] = 0;
    quorum_ended(&run->quorum, peer);
    membership_drop(&run->table, peer, LOG_INFO, why);
}

// ---- time ----

static void expel_silent(struct run *run) {
    struct membership *table = &run->table;
    uint32_t silent = 0;
    for (uint32_t i = 0; i < table->count; i++)
        silent += arrival_deadline_ns(&table->order[i]->heard, table->limit_ns) <= table->now_ns;
    if (silent > 0 && quorum_unheard(&run->quorum, table, silent) == QUORUM_GIVES_UP) run_give_up(run);
    table->silence_at = INT64_MAX;
    for (uint32_t i = 0; i < table->slots; i++) {
        struct peer_record *peer = &table->peers[i];
        if (!peer->used) continue;
        int64_t deadline = arrival_deadline_ns(&peer->heard, table->limit_ns);
        if (deadline <= table->now_ns)
            membership_expel(table, peer, "no heartbeat for %.1f s",
                             (double)(table->now_ns - peer->heard.at_ns) / (double)SECOND_NS);
        else
            table->silence_at = platform_earlier(table->silence_at, deadline);
    }
}

void run_tick(struct run *run) {
    struct membership *table = &run->table;
    expel_silent(run);
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group))
        if (breaks_of(run, group)->due_ns <= table->now_ns) breaks_tick(breaks_of(run, group), table, group);
    if (run->phase == RUN_CANDIDATE && !run->candidate.judged && run->candidate.deadline_ns <= table->now_ns)
        candidate_time_out(&run->candidate);
    if (run->phase == RUN_SURVEY && run->selection.survey.deadline_ns <= table->now_ns)
        selection_give_up_round(&run->selection, table);
    membership_tell_waits(table, run->phase == RUN_IDLE);
}

void run_beat(struct run *run) {
    struct membership *table = &run->table;
    wire_encode_empty(membership_frame(table), membership_header(table), WIRE_HEARTBEAT);
    for (uint32_t i = 0; i < table->slots; i++)
        if (table->peers[i].used) membership_send(table, &table->peers[i]);
}

int64_t run_next_deadline(const struct run *run) {
    const struct membership *table = &run->table;
    if (table->peer_count == 0) return INT64_MAX;
    int64_t next = platform_earlier(table->silence_at, table->warn_at);
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group))
        next = platform_earlier(next, run->breaks[membership_group_slot(table, group)].due_ns);
    if (run->phase == RUN_CANDIDATE && !run->candidate.judged)
        next = platform_earlier(next, run->candidate.deadline_ns);
    if (run->phase == RUN_SURVEY) next = platform_earlier(next, run->selection.survey.deadline_ns);
    return next;
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
}
