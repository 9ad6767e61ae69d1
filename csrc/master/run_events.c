#include "master/run.h"

#include "net/socket.h"

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
    membership_welcome(table, peer);
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
        breaks_linked(run_breaks(run, peer->group), table, peer);
}

static void on_link_down(struct run *run, struct peer_record *peer, const struct wire_header *header,
                         const struct wire_link_down *down) {
    struct peer_group *group = peer->group;
    struct peer_record *reported = membership_in_group(&run->table, group, &down->id);
    if (reported != NULL && reported != peer && down->reason == WIRE_LINK_MALFORMED)
        breaks_malformed(run_breaks(run, group), &run->table, peer, reported);
    if (header->epoch < group->group_epoch) return; // the links have been made again since
    if (reported == peer)
        membership_change_group(&run->table, group);
    else if (reported != NULL)
        breaks_add(run_breaks(run, group), &run->table, peer, reported, (enum wire_link_reason)down->reason);
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
    struct verdicts *verdicts = run_verdicts(run, peer->group);
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
        if (run_breaks(run, group)->due_ns <= table->now_ns) breaks_tick(run_breaks(run, group), table, group);
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
