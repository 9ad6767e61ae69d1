#include "master/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/deadlock.h"
#include "master/gather.h"
#include "master/run.h"
#include "net/socket.h"
#include "pccl.h"

struct master_core {
    struct gather gather;
    struct run run;
    // for decoding
    struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    struct wire_member members[WIRE_MAX_MEMBERS];
    struct wire_past past[WIRE_MAX_PAST];
    struct wire_loss losses[WIRE_MAX_MEMBERS];
};

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
    } while (survivors->count > 0 && survivors->due && gather_settle(&core->gather, &core->run));
    return &table->actions;
}

// ---- peers come ----

const struct actions *core_peer_connected(struct master_core *core, int64_t now_ns, uint32_t conn,
                                          const struct wire_address *source, const struct wire_hello *hello) {
    begin_event(core, now_ns);
    if (!gather_hold(&core->gather, &core->run.table, conn, source, hello))
        gather_enrol(&core->gather, &core->run, conn, source, hello);
    return settle(core);
}

static const uint64_t NUMBERS_MOST = UINT64_C(1) << 62, GENERATIONS_MOST = UINT32_MAX - 1;

// Whether what a RESUME says fits together, and its numbers leave room for those to come.
static bool is_sound(const struct resumption *from) {
    const struct wire_resume *resume = from->resume;
    if (from->run.id == 0 || from->promised < resume->generation || from->promised > GENERATIONS_MOST ||
        resume->join_number > NUMBERS_MOST)
        return false;
    if (!resume->accepted) return true;
    if (resume->epoch.number > NUMBERS_MOST || resume->last_vote.number > NUMBERS_MOST ||
        resume->epoch.sync_round >> 32 > resume->generation)
        return false;
    if (resume->sync_code != pcclSuccess && resume->sync_code != pcclNoSharedStateAvailable) return false;
    bool commits = resume->epoch.sync_expected != 0;
    if (commits ? resume->epoch.sync_expected != rounds_expect(resume->sync_revision)
                : resume->sync_committed || resume->sync_revision != 0)
        return false;
    if (resume->last_vote.number == 0 || resume->last_vote.epoch > resume->epoch.number)
        return false; // a vote let it in
    if (resume->loss_count > 0 && resume->losses[resume->loss_count - 1].epoch > resume->epoch.lost_epoch) return false;
    bool is_member = false, sound = true;
    for (uint32_t i = 0; i < resume->epoch.count; i++) {
        sound &= resume->epoch.members[i].join_number <= NUMBERS_MOST;
        is_member = is_member || wire_id_equal(&resume->epoch.members[i].id, &resume->hello.id);
    }
    return sound && is_member;
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
            membership_drop(table, before, WIRE_LOSS_DIED, LOG_INFO, "it reconnects");
            settle(core);
        }
        gather_enrol(&core->gather, &core->run, from->conn, from->source, &hello);
        return;
    }
    refuse(core, from, from->resume->accepted ? WIRE_EXPELLED : WIRE_REFUSED,
           from->run.id == table->run.id ? "its connection broke, and the run continued without it"
                                         : GATHER_ANOTHER_RUN);
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
    enum quorum_proof proof;
    if (sound && resume.hello.version != WIRE_VERSION)
        refuse(core, &from, WIRE_REFUSED, membership_foreign(resume.hello.version).chars);
    else if (!sound || !is_sound(&from))
        refuse(core, &from, WIRE_REFUSED, "malformed RESUME");
    else if ((proof = quorum_verify(&run->signer, &run->verified, header->run, &resume)) == QUORUM_NO_MEMORY)
        actions_close(&table->actions, conn);
    else if (proof == QUORUM_UNSIGNED)
        refuse(core, &from, WIRE_REFUSED, "no master of this run signed its epoch");
    else if (!is_secret(run, &from.run))
        refuse(core, &from, WIRE_REFUSED, GATHER_WRONG_SECRET);
    else if (is_heard_elsewhere(run, table, &from))
        actions_close(&table->actions, conn);
    else if (table->peer_count > 0 && !young && !take_back(run, &from))
        refuse_resume(core, &from);
    else
        gather_resume(&core->gather, table, &from);
    return settle(core);
}

// ---- messages of peers ----

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
        membership_drop(table, peer, WIRE_LOSS_UNREACHABLE, LOG_WARN,
                        "it seeks another master, because this one was silent");
    }
}

union message {
    struct wire_linked linked;
    struct wire_vote vote;
    struct wire_op_done done;
    struct wire_report report;
    struct wire_mismatch mismatch;
    struct wire_cancel cancel;
    struct wire_leaving leaving;
    struct wire_link_down link_down;
    struct wire_measured measured;
    struct wire_sync_vote sync_vote;
    struct wire_sync_done sync_done;
    struct wire_telemetry telemetry;
    struct wire_precopy precopy;
    struct wire_numbers numbers;
    struct wire_waits waits;
};

// Messages of another type have no place in it, and are refused by their type.
static bool decode(struct run *run, const struct wire_header *header, const uint8_t *body, union message *out) {
    static const bool known[] = {[WIRE_LINKED] = true,    [WIRE_VOTE] = true,      [WIRE_DONE] = true,
                                 [WIRE_REPORT] = true,    [WIRE_MISMATCH] = true,  [WIRE_CANCEL] = true,
                                 [WIRE_LEAVING] = true,   [WIRE_LINK_DOWN] = true, [WIRE_MEASURED] = true,
                                 [WIRE_SYNC_VOTE] = true, [WIRE_SYNC_DONE] = true, [WIRE_TELEMETRY] = true,
                                 [WIRE_PRECOPY] = true,   [WIRE_NUMBERS] = true,   [WIRE_WAITS] = true};
    if (header->type >= sizeof known || !known[header->type]) return true;
    if (header->type == WIRE_REPORT) out->report.ops = run->reported;
    return wire_decode((enum wire_type)header->type, body, header->length, out);
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
    case WIRE_LEAVING: run_leaving(run, peer, &message->leaving); return;
    case WIRE_LINK_DOWN: on_link_down(run, peer, header, &message->link_down); return;
    case WIRE_MEASURED:
        if (run->phase == RUN_SURVEY) selection_measured(&run->selection, table, peer, &message->measured); // else late
        return;
    case WIRE_SYNC_VOTE: rounds_vote(&run->rounds, table, peer, &message->sync_vote); return;
    case WIRE_SYNC_DONE: rounds_done(&run->rounds, table, peer, &message->sync_done); return;
    case WIRE_WAITS: deadlock_note(table, peer, &message->waits); return;
    case WIRE_NUMBERS: matrix_note_numbers(&run->matrix, table, peer, &message->numbers); return;
    case WIRE_TELEMETRY: matrix_note(&run->matrix, table, peer, &message->telemetry); return;
    default:
        membership_expel(table, peer, "it sent %s, which is not a message for masters", wire_type_name(header->type));
    }
}

static void on_message(struct run *run, struct peer_record *peer, const struct wire_header *header,
                       const uint8_t *body) {
    struct membership *table = &run->table;
    union message message;
    // SYNC_DONE names its round, so its header may be older: the peer's data plane may not have entered an epoch of
    // this master, or any epoch, which leaves the run 0.
    bool ours = header->run == table->run.id && header->generation == table->generation;
    bool late = header->type == WIRE_SYNC_DONE && (header->run == table->run.id || header->run == 0) &&
                header->generation <= table->generation;
    if (!ours && !late) return;
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
        run->left |= peer->accepted;
        if (peer->leaving)
            membership_drop(table, peer, WIRE_LOSS_LEFT, LOG_INFO, "it left, as announced");
        else
            membership_drop(table, peer, WIRE_LOSS_ENDED, LOG_INFO, "its program closed the communicator");
    } else if (header->type != WIRE_LINKED && header->type != WIRE_PRECOPY && !peer->accepted) {
        membership_expel(table, peer, "it sent %s before it was admitted", wire_type_name(header->type));
    } else if (!decode(run, header, body, &message)) {
        membership_expel(table, peer, "it sent a malformed %s", wire_type_name(header->type));
    } else if (header->type == WIRE_LINKED) {
        on_linked(run, peer, header, &message.linked);
    } else if (header->type == WIRE_PRECOPY) {
        run_precopy(run, peer, &message.precopy);
    } else {
        on_member_message(run, peer, header, &message);
    }
}

static void lose(struct run *run, struct peer_record *peer, const char *why) {
    run->table.by_conn[peer->conn] = 0;
    quorum_ended(&run->quorum, peer);
    membership_drop(&run->table, peer, WIRE_LOSS_DIED, LOG_INFO, why);
}

// ---- what connections say, and how they go ----

const struct actions *core_message(struct master_core *core, int64_t now_ns, uint32_t conn,
                                   const struct wire_header *header, const uint8_t *body) {
    struct membership *table = &core->run.table;
    struct peer_record *peer = membership_by_conn(table, conn);
    struct survivor *survivor = survivors_of_conn(&core->gather.survivors, conn);
    begin_event(core, now_ns);
    if (peer != NULL) {
        bool elsewhere = header->type == WIRE_TELEMETRY || header->type == WIRE_NUMBERS; // see conn_read of the master
        if (!elsewhere) membership_heard(table, peer, table->now_ns);
        on_message(&core->run, peer, header, body);
    } else if (survivor != NULL) {
        gather_message(&core->gather, table, survivor, header);
    } else {
        return &table->actions;
    }
    return settle(core);
}

const struct actions *core_remove(struct master_core *core, int64_t now_ns, const struct wire_remove *remove,
                                  const char **why) {
    struct membership *table = &core->run.table;
    struct peer_record *peer = membership_by_id(table, &remove->id);
    begin_event(core, now_ns);
    char text[WIRE_MAX_WHY + 1];
    snprintf(text, sizeof text, remove->by[0] == 0 ? "the operator %s it" : "the operator %s it (%s)",
             remove->at_update ? "drained" : "removed", remove->by);
    *why = peer == NULL || peer->gone ? "there is no such peer in the run" : NULL;
    if (*why != NULL) return settle(core);
    if (remove->at_update && !peer->accepted) {
        *why = "this peer is no member yet; expel it instead";
    } else if (remove->at_update) {
        struct wire_leaving leaving = {.id = remove->id, .within_ms = WIRE_WITHIN_UNKNOWN, .at_update = 1};
        actions_log(&table->actions, LOG_NOTICE, "the operator drains %s", membership_label_at(peer).chars);
        memcpy(peer->drained, text, sizeof text);
        run_leaving(&core->run, peer, &leaving);
    } else {
        membership_expel(table, peer, "%s", text);
    }
    return settle(core);
}

bool core_find_conn(const struct master_core *core, const struct wire_id *id, uint32_t *conn) {
    const struct peer_record *peer = membership_by_id((struct membership *)&core->run.table, id);
    if (peer == NULL || peer->gone) return false;
    *conn = peer->conn;
    return true;
}

const struct actions *core_peers_lost(struct master_core *core, int64_t now_ns, const struct core_loss *losses,
                                      size_t count) {
    struct membership *table = &core->run.table;
    begin_event(core, now_ns);
    for (size_t i = 0; i < count; i++) {
        struct peer_record *peer = membership_by_conn(table, losses[i].conn);
        struct survivor *survivor = survivors_of_conn(&core->gather.survivors, losses[i].conn);
        if (peer != NULL)
            lose(&core->run, peer, losses[i].why);
        else if (survivor != NULL)
            survivors_forget(&core->gather.survivors, survivor);
    }
    return settle(core);
}

const struct actions *core_peer_lost(struct master_core *core, int64_t now_ns, uint32_t conn, const char *why) {
    return core_peers_lost(core, now_ns, &(struct core_loss){conn, why}, 1);
}

const struct actions *core_expel(struct master_core *core, int64_t now_ns, uint32_t conn, const char *why) {
    struct membership *table = &core->run.table;
    struct peer_record *peer = membership_by_conn(table, conn);
    if (peer == NULL) return NULL;
    begin_event(core, now_ns);
    membership_expel(table, peer, "%s", why);
    return settle(core);
}

void core_heard(struct master_core *core, int64_t now_ns, uint32_t conn) {
    struct peer_record *peer = membership_by_conn(&core->run.table, conn);
    struct survivor *survivor = survivors_of_conn(&core->gather.survivors, conn);
    if (peer != NULL)
        membership_heard(&core->run.table, peer, now_ns);
    else if (survivor != NULL && now_ns > survivor->heard_ns)
        survivor->heard_ns = now_ns;
}

// ---- other masters ----

void core_await_others(struct master_core *core) { core->gather.others_awaited = true; }

const struct actions *core_others_are(struct master_core *core, int64_t now_ns, enum wire_activity most) {
    begin_event(core, now_ns);
    gather_hear_others(&core->gather, &core->run.table, most);
    return settle(core);
}

uint64_t core_run_id(const struct master_core *core) { return core->run.table.run.id; }

enum wire_activity core_activity(const struct master_core *core) {
    return core->run.table.peer_count > 0 ? WIRE_SERVES : core->gather.survivors.count > 0 ? WIRE_GATHERS : WIRE_IDLE;
}

struct wire_status_is core_status(const struct master_core *core, int64_t now_ns) {
    const struct run *run = &core->run;
    enum wire_activity activity = core_activity(core);
    return (struct wire_status_is){.activity = (uint8_t)activity,
                                   .completed = activity == WIRE_IDLE && run->completed,
                                   .ended_ms =
                                       run->ended_ns == 0 ? UINT64_MAX : (uint64_t)((now_ns - run->ended_ns) / MS_NS)};
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
            membership_expel_for(table, peer, WIRE_LOSS_SILENT, "no heartbeat for %.1f s",
                                 (double)(table->now_ns - peer->heard.at_ns) / (double)SECOND_NS);
        else
            table->silence_at = platform_earlier(table->silence_at, deadline);
    }
}

static void tick(struct run *run) {
    struct membership *table = &run->table;
    expel_silent(run);
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group))
        if (run_breaks(run, group)->due_ns <= table->now_ns) breaks_tick(run_breaks(run, group), table, group);
    if (run->phase == RUN_CANDIDATE && !run->candidate.judged && run->candidate.deadline_ns <= table->now_ns)
        candidate_time_out(&run->candidate);
    if (run->phase == RUN_SURVEY && run->selection.survey.deadline_ns <= table->now_ns)
        selection_give_up_round(&run->selection, table);
    membership_tell_waits(table, run->phase == RUN_IDLE);
    deadlock_look(table);
}

static void beat(struct run *run) {
    struct membership *table = &run->table;
    wire_encode_empty(membership_frame(table), membership_header(table), WIRE_HEARTBEAT);
    for (uint32_t i = 0; i < table->slots; i++)
        if (table->peers[i].used) membership_send(table, &table->peers[i]);
}

static int64_t next_deadline(const struct run *run) {
    const struct membership *table = &run->table;
    if (table->peer_count == 0) return INT64_MAX;
    int64_t next = platform_earlier(platform_earlier(table->silence_at, table->warn_at), table->deadlock_at);
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group))
        next = platform_earlier(next, run->breaks[membership_group_slot(table, group)].due_ns);
    if (run->phase == RUN_CANDIDATE && !run->candidate.judged)
        next = platform_earlier(next, run->candidate.deadline_ns);
    if (run->phase == RUN_SURVEY) next = platform_earlier(next, run->selection.survey.deadline_ns);
    if (run->phase == RUN_IDLE) next = platform_earlier(next, run->short_until);
    return next;
}

const struct actions *core_tick(struct master_core *core, int64_t now_ns) {
    struct membership *table = &core->run.table;
    begin_event(core, now_ns);
    core->gather.survivors.due = true;
    tick(&core->run);
    gather_tick(&core->gather, table);
    if (table->peer_count + core->gather.survivors.count > 0 && table->heartbeat_at <= table->now_ns) {
        table->heartbeat_at = table->now_ns + table->limit_ns / 5;
        gather_beat(&core->gather, table);
        beat(&core->run);
    }
    return settle(core);
}

int64_t core_next_deadline(const struct master_core *core) {
    const struct membership *table = &core->run.table;
    bool serves = table->peer_count > 0, gathers = core->gather.survivors.count > 0;
    int64_t next = platform_earlier(gather_next_deadline(&core->gather, table), next_deadline(&core->run));
    if (serves || gathers) next = platform_earlier(next, table->heartbeat_at);
    if (serves && gathers) next = platform_earlier(next, gather_yields_until(&core->gather, &core->run));
    return next;
}

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

void core_configure(struct master_core *core, const struct core_settings *settings) {
    core->run.table.survivors_until = settings->survivors_until_ns;
    core->run.table.deadlock_ns = settings->deadlock_ns;
    if (settings->signer != NULL) core->run.signer = *settings->signer;
    core->gather.standby = settings->standby;
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
        matrix_describe(&core->run.matrix, table, core->run.votes_ended, now_ns, out);
    else
        matrix_count(table->limit_ns, table->count, table->number, out);
}

uint64_t core_epoch(const struct master_core *core) { return core->run.table.number; }
