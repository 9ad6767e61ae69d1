#include "master/run.h"

#include <string.h>

#include "master/waits.h"
#include "net/socket.h"
#include "pccl.h"

static struct breaks *breaks_of(struct run *run, const struct desk_group *group) {
    return &run->breaks[desk_group_slot(&run->desk, group)];
}

static struct verdicts *verdicts_of(struct run *run, const struct desk_group *group) {
    return &run->verdicts[desk_group_slot(&run->desk, group)];
}

// The slot is as if it had never been used.
static void close_group(struct run *run, uint32_t slot) {
    breaks_fini(&run->breaks[slot]);
    verdicts_fini(&run->verdicts[slot]);
    ways_forget(&run->ways, slot);
    run->rounds.groups[slot] = (struct rounds_group){0};
    run->desk.groups[slot].count = 0;
}

static void forget(struct run *run, struct desk_peer *peer) {
    survey_forget(&run->survey, desk_slot(&run->desk, peer));
    desk_forget(&run->desk, peer);
}

// ---- epochs ----

static void send_epoch(struct run *run, uint8_t reason) {
    struct desk *desk = &run->desk;
    struct wire_epoch_commit message = {.reason = reason, .epoch = desk_describe(desk, desk->order, desk->count)};
    message.epoch.number = desk->number;
    message.epoch.barrier = run->barrier;
    message.quorum = quorum_announced(&run->quorum, desk);
    for (struct desk_group *group = desk_first(desk); group != NULL; group = desk_after(desk, group)) {
        const struct rounds_group *round = &run->rounds.groups[desk_group_slot(desk, group)];
        message.epoch.group_epoch = group->group_epoch;
        message.epoch.lost_epoch = group->lost_epoch;
        message.epoch.sync_round = round->last.round;
        message.epoch.sync_expected = round->committed ? round->expected : 0;
        message.epoch.latency_us = group->latency_us;
        message.epoch.megabytes_per_s = group->megabytes_per_s;
        wire_encode_epoch_commit(desk_frame(desk), desk_header(desk), &message);
        desk_send_group(desk, group);
    }
}

static void enter_group_epoch(struct run *run, struct desk_group *group) {
    group->group_epoch = run->desk.number;
    if (group->lost) group->lost_epoch = run->desk.number;
    group->changed = group->lost = false;
    group->latency_us = 0;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        struct desk_peer *peer = group->members[rank];
        peer->linked = peer->reported = false;
        if (peer->latency_us > group->latency_us) group->latency_us = peer->latency_us;
    }
    if (group->latency_us == 0) group->latency_us = SURVEY_DEFAULT_LATENCY_US;
    group->megabytes_per_s = survey_group_rate(&run->survey, &run->desk, group);
    verdicts_begin(verdicts_of(run, group), group->count);
    breaks_begin(breaks_of(run, group));
}

// The next number; a LOSS epoch is a new group epoch for groups that lost members, any other one for groups that
// changed, and that in which the run is taken up is one for all.
static void enter_epoch(struct run *run, uint8_t reason, bool all) {
    static const char *const reasons[] = {"?", "update", "loss", "relink", "order"};
    struct desk *desk = &run->desk;
    bool lost = reason == WIRE_REASON_LOSS;
    desk->number++;
    desk->changed = false;
    for (struct desk_group *group = desk_first(desk); group != NULL; group = desk_after(desk, group)) {
        if (all || (lost ? group->lost : group->changed)) enter_group_epoch(run, group);
        desk->changed |= group->changed;
    }
    if (lost) run->lost_number = desk->number;
    if (lost) desk->lost = false;
    if (run->phase == RUN_CANDIDATE) run->candidate.stale = true;
    send_epoch(run, reason);
    actions_log(&desk->actions, LOG_NOTICE, "epoch %llu (%s): %u peers", (unsigned long long)desk->number,
                all ? "resumed" : reasons[reason], desk->count);
}

void run_resume(struct run *run) {
    bool lost = false;
    for (struct desk_group *group = desk_first(&run->desk); group != NULL; group = desk_after(&run->desk, group))
        lost |= group->lost;
    enter_epoch(run, lost ? WIRE_REASON_LOSS : WIRE_REASON_RELINK, true);
}

// ---- votes ----

// The vote of all is over: an epoch or an OUTCOME says how.
static void end_vote(struct run *run) {
    for (uint32_t i = 0; i < run->desk.count; i++) desk_set_vote(&run->desk, run->desk.order[i], 0);
    run->barrier++;
    run->phase = RUN_IDLE;
}

static void answer_vote(struct run *run, uint8_t kind, uint8_t code, uint64_t value) {
    struct wire_outcome outcome = {kind, code, value};
    wire_encode_outcome(desk_frame(&run->desk), desk_header(&run->desk), &outcome);
    for (uint32_t i = 0; i < run->desk.count; i++) desk_send(&run->desk, run->desk.order[i]);
    end_vote(run);
}

static void commit_candidate(struct run *run) {
    uint32_t before = run->desk.count;
    uint8_t kind = run->candidate.kind;
    uint64_t newer = candidate_commit(&run->candidate, &run->desk, &run->failure_counts);
    if (run->desk.count > before) quorum_admits(&run->quorum, &run->desk, before, newer);
    end_vote(run);
    enter_epoch(run, kind == WIRE_VOTE_UPDATE ? WIRE_REASON_UPDATE : WIRE_REASON_ORDER, false);
}

static void propose(struct run *run, uint8_t kind) {
    run->phase = RUN_CANDIDATE;
    candidate_propose(&run->candidate, &run->desk, kind);
    if (run->candidate.count == 1) commit_candidate(run); // nobody to make links to
}

static bool may_come(struct run *run, const struct desk_peer *peer) {
    return peer->used && !peer->accepted &&
           failure_counts_until(&run->failure_counts, &peer->member.address, run->desk.now_ns) <= run->desk.now_ns;
}

static bool newcomers_wait(struct run *run) {
    for (uint32_t i = 0; i < run->desk.slots && run->desk.peer_count > run->desk.count; i++)
        if (may_come(run, &run->desk.peers[i])) return true;
    return false;
}

// The update vote has passed. The first members need no vote.
static void form_update(struct run *run) {
    for (uint32_t i = 0; i < run->desk.slots && run->desk.count == 0; i++) run->desk.peers[i].invited = true;
    bool newcomers = candidate_form(&run->candidate, &run->desk);
    if (newcomers || ways_plan(&run->ways, &run->matrix, &run->survey, &run->desk, &run->candidate))
        propose(run, WIRE_VOTE_UPDATE);
    else
        answer_vote(run, WIRE_VOTE_UPDATE, pcclSuccess, 0);
}

static void judge_candidate(struct run *run) {
    switch (candidate_judge(&run->candidate, &run->desk, &run->failure_counts, run->breaks)) {
    case CANDIDATE_PASSES: commit_candidate(run); return;
    case CANDIDATE_FAILS:
        if (run->candidate.kind == WIRE_VOTE_UPDATE) ways_failed(&run->ways);
        answer_vote(run, run->candidate.kind,
                    run->candidate.kind == WIRE_VOTE_UPDATE ? pcclSuccess : pcclTopologyOptimizationFailed, 0);
        return;
    case CANDIDATE_REPAIRS: return;
    }
}

// The vote has passed, or a round of measurements is over.
static void optimise(struct run *run) {
    if (run->phase == RUN_IDLE && !survey_begin(&run->survey, &run->desk)) {
        answer_vote(run, WIRE_VOTE_OPTIMIZE, pcclTopologyOptimizationFailed, 0);
        return;
    }
    run->phase = RUN_SURVEY;
    if (survey_next(&run->survey, &run->desk)) return;
    bool differs = survey_order(&run->survey, &run->desk, run->candidate.order);
    run->candidate.count = run->desk.count;
    candidate_keep_shares(&run->candidate);
    differs |= ways_plan(&run->ways, &run->matrix, &run->survey, &run->desk, &run->candidate);
    if (differs)
        propose(run, WIRE_VOTE_OPTIMIZE);
    else
        answer_vote(run, WIRE_VOTE_OPTIMIZE, pcclSuccess, 0);
}

static bool all_voted(const struct run *run, uint8_t kind) { return run->desk.open[kind] == run->desk.count; }

static void pass_votes(struct run *run) {
    struct desk *desk = &run->desk;
    if (desk->count == 0) {
        if (desk->peer_count > 0) form_update(run);
    } else if (all_voted(run, WIRE_VOTE_UPDATE)) {
        for (uint32_t i = 0; i < desk->slots; i++) desk->peers[i].invited = may_come(run, &desk->peers[i]);
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
    struct desk *desk = &run->desk;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < desk->count; i++) {
        struct desk_peer *peer = desk->order[i];
        peer->group->count = 0; // set again below, where members are left
        if (!peer->gone) {
            desk->order[kept++] = peer;
            continue;
        }
        desk->lost = peer->group->lost = true;
        breaks_forget(breaks_of(run, peer->group), desk_slot(desk, peer));
        desk_set_vote(desk, peer, 0);
    }
    if (kept < desk->count) {
        if (run->phase == RUN_SURVEY) {
            run->phase = RUN_IDLE;
            survey_end(&run->survey, desk);
        }
        run->rounds.due = true;
    }
    desk->count = kept;
    desk_rank(desk);
    for (uint32_t i = 0; i < desk->slots; i++) {
        struct desk_peer *peer = &desk->peers[i];
        if (!peer->gone) continue;
        if (peer->listed) run->candidate.stale = true;
        if (peer->accepted && peer->group->count == 0) close_group(run, desk_group_slot(desk, peer->group));
        forget(run, peer);
    }
    desk->gone_count = 0;
}

static void progress(struct run *run) {
    const struct candidate *candidate = &run->candidate;
    if (run->phase == RUN_CANDIDATE && candidate->stale) {
        run->phase = RUN_IDLE;
        if (candidate->kind == WIRE_VOTE_UPDATE) form_update(run); // the vote has passed and stays so
    } else if (run->phase == RUN_CANDIDATE && candidate->unanswered == 0 && !candidate->judged) {
        judge_candidate(run);
    } else if (run->phase == RUN_SURVEY && run->survey.unanswered == 0) {
        optimise(run);
    }
    if (run->phase == RUN_IDLE && run->desk.gone_count == 0) pass_votes(run);
    if (run->desk.gone_count == 0) rounds_advance(&run->rounds, &run->desk);
}

static void watch_quorum(struct run *run) {
    switch (quorum_watch(&run->quorum, &run->desk)) {
    case QUORUM_KEEPS: return;
    case QUORUM_IS_SURE: run->desk.changed |= !run->desk.lost; return; // an epoch tells them
    case QUORUM_GIVES_UP: run_give_up(run); return;
    }
}

static void start(struct run *run) {
    struct desk *desk = &run->desk;
    if (run->next_join > 1) {
        desk->last_run = desk->run;
        desk->last_generation = desk->generation;
    }
    memcpy(&desk->run.id, run->random, sizeof desk->run.id);
    memcpy(desk->run.secret, run->random + sizeof desk->run.id, sizeof desk->run.secret);
    if (desk->run.id == 0) desk->run.id = 1; // 0 means: no run yet
    for (size_t i = 0; i < sizeof run->random; i++) run->random[i] = (uint8_t)(run->random[i] * 167 + i + 1);
    run->wants_random = true;
    desk->generation = 1;
    desk->number = 0;
    desk->lost = desk->changed = false;
    run->next_join = 1;
    run->barrier = 0;
    memset(desk->open, 0, sizeof desk->open);
    run->rounds.number = 0;
    run->candidate.attempt = 0;
    run->quorum = (struct quorum){0};
    run->heard_number = run->lost_number = 0;
    run->yields_until = 0;
    run->phase = RUN_IDLE;
    desk->warn_at = INT64_MAX;
}

void run_give_up(struct run *run) {
    struct desk *desk = &run->desk;
    desk_leave_run(desk);
    for (uint32_t i = 0; i < desk->slots; i++) {
        struct desk_peer *peer = &desk->peers[i];
        if (!peer->used) continue;
        if (!peer->gone && desk->by_conn[peer->conn] != 0) {
            desk->by_conn[peer->conn] = 0;
            actions_close(&desk->actions, peer->conn);
        }
        forget(run, peer);
    }
    for (uint32_t i = 0; i < desk->group_slots; i++)
        if (desk->groups[i].count > 0) close_group(run, i);
    desk->gone_count = desk->count = run->candidate.count = run->survey.count = 0;
    start(run);
    desk->survivors_until = desk->now_ns + desk->limit_ns; // its members may come back, and newcomers be the first
}

static void drop_for_memory(struct run *run) {
    run->desk.out_of_memory = false;
    actions_log(&run->desk.actions, LOG_ERR,
                "the system refuses memory: gives the run of %u peers up, for all to come back", run->desk.count);
    run_give_up(run);
}

static void welcome(struct run *run, struct desk_peer *peer) {
    struct desk *desk = &run->desk;
    struct wire_welcome welcome = {.join_number = peer->member.join_number,
                                   .heartbeat_limit_ms = (uint32_t)(desk->limit_ns / MS_NS),
                                   .seen = peer->member.address};
    memcpy(welcome.secret, desk->run.secret, sizeof welcome.secret);
    wire_encode_welcome(desk_frame(desk), desk_header(desk), &welcome);
    desk_send(desk, peer);
}

// All members are gone. What became of their run they alone know, if they live: newcomers do not go on with it, but
// begin another one, which gives way to theirs as long as it is young.
static void begin_anew(struct run *run) {
    struct desk *desk = &run->desk;
    uint64_t next_join = run->next_join;
    actions_log(&desk->actions, LOG_NOTICE,
                "the last member is gone, so the run has ended: the newcomers that wait start a new one");
    start(run);
    run->next_join = next_join;
    run->yields_until = desk->now_ns + RUN_YOUNG_MS * MS_NS;
    for (uint32_t i = 0; i < desk->slots; i++)
        if (desk->peers[i].used) welcome(run, &desk->peers[i]);
}

void run_settle(struct run *run) {
    struct desk *desk = &run->desk;
    do {
        if (desk->out_of_memory) drop_for_memory(run);
        if (desk->gone_count > 0) reap(run);
        watch_quorum(run);
        if (desk->count == 0) desk_refuse_join_only(desk);
        if (desk->number > 0 && desk->count == 0 && desk->peer_count > 0) begin_anew(run);
        if (desk->lost) enter_epoch(run, WIRE_REASON_LOSS, false);
        if (desk->changed) enter_epoch(run, WIRE_REASON_RELINK, false);
        if (desk->gone_count == 0) progress(run);
    } while (desk->gone_count > 0 || desk->lost || desk->changed || desk->out_of_memory);
    if (desk->peer_count > 0 || run->next_join == 1) return;
    actions_log(&desk->actions, LOG_NOTICE,
                "the last peer is gone, so the run has ended: the next peer starts a new one");
    start(run);
}

// ---- registration ----

static const char *reason_to_refuse(struct run *run, const struct wire_address *source,
                                    const struct wire_hello *hello) {
    struct desk *desk = &run->desk;
    if (hello->version != WIRE_VERSION) return "the master speaks another version of the protocol";
    if (desk->peer_count == WIRE_MAX_MEMBERS) return "the run is full";
    if (desk_of_id(desk, &hello->id) != NULL) return "a peer of this id is registered";
    if (hello->join_only && desk->peer_count == 0) return DESK_NO_RUN;
    bool here = socket_address_is_loopback(source);
    if (here && desk->loopback_count < desk->peer_count)
        return "this peer reached the master over loopback, others over the network, so they could not reach this "
               "peer; give it the master's network address";
    if (!here && desk->loopback_count > 0)
        return "this peer reached the master over the network, others over loopback, so it could not reach them; give "
               "them the master's network address";
    return NULL;
}

void run_register(struct run *run, uint32_t conn, const struct wire_address *source, const struct wire_hello *hello) {
    struct desk *desk = &run->desk;
    const char *why = reason_to_refuse(run, source, hello);
    if (why != NULL) {
        actions_turn_away(&desk->actions, conn, desk_header(desk), WIRE_REFUSED, why);
        return;
    }
    if (desk->peer_count == 0) run->completed = false;
    if (desk->peer_count == 0) run->yields_until = desk->now_ns + RUN_YOUNG_MS * MS_NS;
    struct wire_member member = {.id = hello->id,
                                 .join_number = run->next_join++,
                                 .group = hello->group,
                                 .lanes = hello->lanes,
                                 .address = *source,
                                 .name = hello->name};
    member.address.port = hello->port;
    struct desk_peer *peer = desk_add(desk, conn, &member);
    peer->masters = hello->masters;
    peer->join_only = hello->join_only;
    desk_begin_wait(desk, peer);
    welcome(run, peer);
    actions_log_stranger(&desk->actions, LOG_INFO, "registered %s, group %u", desk_place(peer).chars, hello->group);
}

// ---- messages ----

static void on_linked(struct run *run, struct desk_peer *peer, const struct wire_header *header,
                      const struct wire_linked *linked) {
    struct desk *desk = &run->desk;
    if (linked->attempt > run->candidate.attempt || (linked->attempt == 0 && !peer->accepted)) {
        desk_expel(desk, peer, "LINKED for a candidate that never was");
        return;
    }
    if (linked->latency_us > 0) peer->latency_us = linked->latency_us;
    peer->heard.round_trip_ns = 2 * (int64_t)peer->latency_us * US_NS;
    desk_heard(desk, peer, desk->now_ns);
    if (linked->attempt > 0 && run->phase == RUN_CANDIDATE)
        candidate_linked(&run->candidate, desk, peer, linked);
    else if (linked->attempt == 0 && header->epoch >= peer->group->group_epoch)
        breaks_linked(breaks_of(run, peer->group), desk, peer);
}

static void on_link_down(struct run *run, struct desk_peer *peer, const struct wire_header *header,
                         const struct wire_link_down *down) {
    struct desk_group *group = peer->group;
    struct desk_peer *reported = desk_member(&run->desk, group, &down->id);
    if (reported != NULL && reported != peer && down->reason == WIRE_LINK_MALFORMED)
        breaks_malformed(breaks_of(run, group), &run->desk, peer, reported);
    if (header->epoch < group->group_epoch) return; // the links have been made again since
    if (reported == peer)
        desk_change(&run->desk, group);
    else if (reported != NULL)
        breaks_add(breaks_of(run, group), &run->desk, peer, reported, (enum wire_link_reason)down->reason);
}

static void on_moved(struct run *run, struct desk_peer *peer) {
    struct desk *desk = &run->desk;
    if (desk->now_ns < run->woken_until) { // the others have left as well, or are about to: nobody needs to be lost
        actions_log(&desk->actions, LOG_NOTICE,
                    "stood still, and %s looks for a master: gives the run up, for all to come back",
                    desk_name(peer).chars);
        run_give_up(run);
    } else if (peer->accepted && quorum_unheard(&run->quorum, desk, 1) == QUORUM_GIVES_UP) {
        run_give_up(run);
    } else {
        desk_drop(desk, peer, LOG_WARN, "it looks for another master, since this one was silent");
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
static void on_member_message(struct run *run, struct desk_peer *peer, const struct wire_header *header,
                              const union message *message) {
    struct desk *desk = &run->desk;
    struct verdicts *verdicts = verdicts_of(run, peer->group);
    bool votes = header->type == WIRE_VOTE || header->type == WIRE_SYNC_VOTE;
    if (votes && peer->vote != 0) {
        desk_expel(desk, peer, "voted while its vote was open");
        return;
    }
    switch (header->type) {
    case WIRE_VOTE: desk_set_vote(desk, peer, message->vote.kind); return;
    case WIRE_DONE: verdicts_done(verdicts, desk, peer, header, &message->done); return;
    case WIRE_REPORT: verdicts_report(verdicts, desk, peer, header, &message->report); return;
    case WIRE_MISMATCH: verdicts_mismatch(desk, peer, header, &message->mismatch); return;
    case WIRE_CANCEL: verdicts_cancel(desk, peer, header, &message->cancel); return;
    case WIRE_LINK_DOWN: on_link_down(run, peer, header, &message->link_down); return;
    case WIRE_MEASURED:
        if (run->phase == RUN_SURVEY) survey_measured(&run->survey, desk, peer, &message->measured); // else late
        return;
    case WIRE_SYNC_VOTE: rounds_vote(&run->rounds, desk, peer, &message->sync_vote); return;
    case WIRE_SYNC_DONE: rounds_done(&run->rounds, desk, peer, &message->sync_done); return;
    case WIRE_TELEMETRY: matrix_note(&run->matrix, desk, peer, &message->telemetry); return;
    default: desk_expel(desk, peer, "%s is not for the master", wire_type_name(header->type)); return;
    }
}

void run_message(struct run *run, struct desk_peer *peer, const struct wire_header *header, const uint8_t *body) {
    struct desk *desk = &run->desk;
    union message message;
    // Another master's; but a round's number is that of one generation, and the peer's data plane may not have heard of
    // this one when it ends.
    bool late = header->generation < desk->generation && header->type == WIRE_SYNC_DONE;
    if (header->run != desk->run.id || (header->generation != desk->generation && !late)) return;
    if (header->epoch > desk->number) {
        desk_expel(desk, peer, "%s of an epoch that never was", wire_type_name(header->type));
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
        desk_drop(desk, peer, LOG_INFO, "it left");
    } else if (header->type != WIRE_LINKED && !peer->accepted) {
        desk_expel(desk, peer, "%s before it was accepted", wire_type_name(header->type));
    } else if (!decode(run, header, body, &message)) {
        desk_expel(desk, peer, "malformed %s", wire_type_name(header->type));
    } else if (header->type == WIRE_LINKED) {
        on_linked(run, peer, header, &message.linked);
    } else {
        on_member_message(run, peer, header, &message);
    }
}

void run_lose(struct run *run, struct desk_peer *peer, const char *why) {
    run->desk.by_conn[peer->conn] = 0;
    quorum_ended(&run->quorum, peer);
    desk_drop(&run->desk, peer, LOG_INFO, why);
}

// ---- time ----

static void expel_silent(struct run *run) {
    struct desk *desk = &run->desk;
    uint32_t silent = 0;
    for (uint32_t i = 0; i < desk->count; i++)
        silent += arrival_deadline_ns(&desk->order[i]->heard, desk->limit_ns) <= desk->now_ns;
    if (silent > 0 && quorum_unheard(&run->quorum, desk, silent) == QUORUM_GIVES_UP) run_give_up(run);
    desk->silence_at = INT64_MAX;
    for (uint32_t i = 0; i < desk->slots; i++) {
        struct desk_peer *peer = &desk->peers[i];
        if (!peer->used) continue;
        int64_t deadline = arrival_deadline_ns(&peer->heard, desk->limit_ns);
        if (deadline <= desk->now_ns)
            desk_expel(desk, peer, "no heartbeat for %.1f s",
                       (double)(desk->now_ns - peer->heard.at_ns) / (double)SECOND_NS);
        else
            desk->silence_at = platform_earlier(desk->silence_at, deadline);
    }
}

void run_tick(struct run *run) {
    struct desk *desk = &run->desk;
    expel_silent(run);
    for (struct desk_group *group = desk_first(desk); group != NULL; group = desk_after(desk, group))
        if (breaks_of(run, group)->due_ns <= desk->now_ns) breaks_tick(breaks_of(run, group), desk, group);
    if (run->phase == RUN_CANDIDATE && !run->candidate.judged && run->candidate.deadline_ns <= desk->now_ns)
        run->candidate.unanswered = 0; // judged as it is
    if (run->phase == RUN_SURVEY && run->survey.deadline_ns <= desk->now_ns) survey_give_up_round(&run->survey, desk);
    waits_tick(desk, &run->failure_counts, run->phase == RUN_IDLE);
}

void run_beat(struct run *run) {
    struct desk *desk = &run->desk;
    wire_encode_empty(desk_frame(desk), desk_header(desk), WIRE_HEARTBEAT);
    for (uint32_t i = 0; i < desk->slots; i++)
        if (desk->peers[i].used) desk_send(desk, &desk->peers[i]);
}

int64_t run_next_deadline(const struct run *run) {
    const struct desk *desk = &run->desk;
    if (desk->peer_count == 0) return INT64_MAX;
    int64_t next = platform_earlier(desk->silence_at, desk->warn_at);
    for (struct desk_group *group = desk_first(desk); group != NULL; group = desk_after(desk, group))
        next = platform_earlier(next, run->breaks[desk_group_slot(desk, group)].due_ns);
    if (run->phase == RUN_CANDIDATE && !run->candidate.judged)
        next = platform_earlier(next, run->candidate.deadline_ns);
    if (run->phase == RUN_SURVEY) next = platform_earlier(next, run->survey.deadline_ns);
    return next;
}

// ---- life ----

void run_init(struct run *run, int64_t limit_ns, const uint8_t random[RUN_RANDOM_BYTES], uint64_t id_key,
              int64_t now_ns) {
    memset(run, 0, offsetof(struct run, failure_counts));
    memcpy(run->random, random, sizeof run->random);
    desk_init(&run->desk, limit_ns, id_key, now_ns);
    failure_counts_init(&run->failure_counts, run->desk.limit_ns);
    candidate_init(&run->candidate);
    survey_init(&run->survey);
    rounds_init(&run->rounds);
    start(run);
}

void run_fini(struct run *run) {
    for (uint32_t i = 0; i < run->desk.group_slots; i++) close_group(run, i);
    survey_fini(&run->survey);
    matrix_fini(&run->matrix);
    desk_fini(&run->desk);
}
