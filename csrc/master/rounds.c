#include "master/rounds.h"

#include <stdio.h>
#include <string.h>

#include "pccl.h"
#include "state/delta.h"

// ---- the election ----

bool rounds_is_ahead(const struct election_group *group, uint64_t revision) {
    return group->state == ELECTION_EXPECTING && revision > group->expected;
}

uint64_t rounds_expect(uint64_t revision) { return revision == UINT64_MAX ? UINT64_MAX : revision + 1; }

bool rounds_expels(enum election_fate fate) { return fate >= ELECTION_STRATEGY; }

// ---- the election: rule 2 ----

static void judge_strategies(struct election_voter *voters, uint32_t count) {
    bool enforced = false;
    for (uint32_t i = 0; i < count; i++) enforced |= voters[i].vote.strategy == WIRE_SYNC_ENFORCE_POPULAR;
    for (uint32_t i = 0; i < count; i++)
        voters[i].fate =
            enforced && voters[i].vote.strategy != WIRE_SYNC_ENFORCE_POPULAR ? ELECTION_STRATEGY : ELECTION_KEEPS;
}

// ---- the election: rules 3 and 4 ----

// May its revision count, and its state win? An incomplete state does neither: it would name a revision that nobody can
// give.
static bool may_stand(const struct election_voter *voter) {
    return !rounds_expels(voter->fate) && voter->vote.strategy != WIRE_SYNC_RECEIVE_ONLY && !voter->vote.incomplete;
}

static bool highest(const struct election_voter *voters, uint32_t count, uint64_t least, uint64_t *revision) {
    bool found = false;
    for (uint32_t i = 0; i < count; i++) {
        if (!may_stand(&voters[i]) || voters[i].vote.revision < least || (found && voters[i].vote.revision < *revision))
            continue;
        *revision = voters[i].vote.revision;
        found = true;
    }
    return found;
}

static bool stands_at(const struct election_voter *voters, uint32_t count, uint64_t revision, bool committed) {
    for (uint32_t i = 0; i < count; i++)
        if (may_stand(&voters[i]) && voters[i].vote.revision == revision && (voters[i].committed || !committed))
            return true;
    return false;
}

// False: nobody stands at the revision of the round.
static bool find_revision(const struct election_group *group, const struct election_voter *voters, uint32_t count,
                          struct election_result *out) {
    out->repeat = false;
    if (group->state == ELECTION_NEW) return highest(voters, count, 0, &out->revision);
    if (group->state == ELECTION_LOST) return highest(voters, count, 1, &out->revision);
    out->revision = group->expected;
    if (stands_at(voters, count, group->expected, false)) return true;
    out->revision = group->expected - 1; // E follows a commit, so it is at least 1
    out->repeat = true;
    return !group->ahead && stands_at(voters, count, out->revision, true);
}

static bool is_candidate(const struct election_voter *voter, const struct election_result *result) {
    return may_stand(voter) && voter->vote.revision == result->revision && (voter->committed || !result->repeat);
}

// ---- the election: rules 5 and 6 ----

static const struct wire_hash *mask_of(const struct election_voter *voter) { return &voter->vote.mask; }
static const struct wire_hash *content_of(const struct election_voter *voter) { return &voter->vote.content; }

// Returns the hash that most candidates have; at a tie, that of the longest-standing one among them.
static struct wire_hash popular(const struct election_voter *voters, uint32_t count,
                                const struct election_result *result,
                                const struct wire_hash *(*key)(const struct election_voter *)) {
    const struct election_voter *best = NULL;
    uint32_t best_votes = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!is_candidate(&voters[i], result)) continue;
        uint32_t votes = 0;
        for (uint32_t k = 0; k < count; k++)
            votes += is_candidate(&voters[k], result) && wire_hash_equal(key(&voters[i]), key(&voters[k]));
        if (votes < best_votes || (votes == best_votes && voters[i].join_number > best->join_number)) continue;
        best = &voters[i];
        best_votes = votes;
    }
    return *key(best);
}

static void judge_masks(struct election_voter *voters, uint32_t count, const struct wire_hash *mask) {
    for (uint32_t i = 0; i < count; i++)
        if (!rounds_expels(voters[i].fate) && !wire_hash_equal(&voters[i].vote.mask, mask))
            voters[i].fate = ELECTION_MASK;
}

// ---- the election: rules 7 and 8 ----

static void judge_content(struct election_voter *voter, const struct election_result *result) {
    if (rounds_expels(voter->fate)) return;
    bool same = wire_hash_equal(&voter->vote.content, &result->content);
    if (voter->vote.strategy == WIRE_SYNC_SEND_ONLY && voter->vote.revision != result->revision)
        voter->fate = ELECTION_BEHIND;
    else if (voter->vote.strategy == WIRE_SYNC_SEND_ONLY && !same)
        voter->fate = ELECTION_MINORITY;
    else if (!same)
        voter->fate = ELECTION_RECEIVES;
    voter->donor = voter->fate == ELECTION_KEEPS && voter->vote.strategy != WIRE_SYNC_RECEIVE_ONLY;
}

void rounds_elect(const struct election_group *group, struct election_voter *voters, uint32_t count,
                  struct election_result *out) {
    for (uint32_t i = 0; i < count; i++) voters[i].donor = false;
    judge_strategies(voters, count);
    out->elected = find_revision(group, voters, count, out);
    if (!out->elected) {
        for (uint32_t i = 0; i < count; i++) voters[i].fate = ELECTION_KEEPS;
        return;
    }
    out->mask = popular(voters, count, out, mask_of);
    judge_masks(voters, count, &out->mask); // these are no candidates any more
    out->content = popular(voters, count, out, content_of);
    for (uint32_t i = 0; i < count; i++) judge_content(&voters[i], out);
}
// ---- rounds ----

static struct rounds_group *round_of(struct rounds *rounds, const struct membership *table,
                                     const struct peer_group *group) {
    return &rounds->groups[membership_group_slot(table, group)];
}

static struct election_group describe(struct rounds *rounds, const struct membership *table,
                                      const struct peer_group *group) {
    const struct rounds_group *round = round_of(rounds, table, group);
    struct election_group out = {
        .state = round->committed ? ELECTION_LOST : ELECTION_NEW, .expected = round->expected, .ahead = round->ahead};
    for (uint32_t rank = 0; rank < group->count; rank++) {
        const struct peer_record *peer = group->members[rank];
        if (round->committed && peer->committed && !peer->gone) out.state = ELECTION_EXPECTING;
    }
    return out;
}

// ---- the end of a round ----

// Compares what a member brought with the result of the round that succeeds, before the commit is noted.
static enum wire_state_kind compare(const struct peer_record *peer, const struct wire_sync_vote *vote,
                                    const struct election_result *result) {
    bool same = vote->revision != result->revision || wire_hash_equal(&vote->content, &result->content);
    return same || !peer->committed || vote->strategy == WIRE_SYNC_RECEIVE_ONLY ? WIRE_STATE_SYNCED
                                                                                : WIRE_STATE_REPLACED;
}

static void end_round(struct rounds *rounds, struct membership *table, struct peer_group *group, const char *failure) {
    struct rounds_group *round = round_of(rounds, table, group);
    bool success = failure == NULL;
    const struct rounds_end last = {.round = round->number,
                                    .code = success ? pcclSuccess : pcclNoSharedStateAvailable,
                                    .revision = success ? round->result.revision : 0};
    struct wire_sync_end end = {.round = last.round, .code = last.code, .revision = last.revision};
    end.text.length = success ? 0 : (uint16_t)strnlen(failure, WIRE_MAX_TEXT);
    memcpy(end.text.chars, success ? "" : failure, end.text.length);
    const struct peer_record *other = NULL;
    uint32_t others = 0;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        struct peer_record *peer = group->members[rank];
        end.tx_bytes = success ? peer->tx_bytes : 0;
        wire_encode_sync_end(membership_frame(table), membership_header(table), &end);
        membership_send(table, peer);
        membership_set_vote(table, peer, 0);
        if (success)
            peer->state = (struct wire_state){
                .kind = (uint8_t)compare(peer, &rounds->votes[membership_slot(table, peer)], &round->result),
                .revision = round->result.revision,
                .content = round->result.content};
        if (success && peer->state.kind == WIRE_STATE_REPLACED && others++ == 0) other = peer;
        peer->committed |= success;
        peer->part = ROLE_WAITS;
        peer->tx_bytes = 0;
    }
    if (success) {
        round->committed = true;
        round->expected = rounds_expect(round->result.revision);
        actions_log(&table->actions, LOG_DEBUG, "group %u: shared state is at revision %llu", group->id,
                    (unsigned long long)last.revision);
        char more[32] = "";
        if (others > 1) snprintf(more, sizeof more, " (and %u more members)", others - 1);
        if (others > 0)
            actions_log(&table->actions, LOG_NOTICE,
                        "%s%s had other content of the shared state than its group, repaired at revision %llu",
                        membership_label_at(other).chars, more, (unsigned long long)last.revision);
    } else {
        actions_log(&table->actions, LOG_WARN, "group %u: shared state not synchronised: %s", group->id, failure);
    }
    *round = (struct rounds_group){.committed = round->committed, .expected = round->expected, .last = last};
}

// ---- votes and election ----

void rounds_vote(struct rounds *rounds, struct membership *table, struct peer_record *peer,
                 const struct wire_sync_vote *vote) {
    struct election_group group = describe(rounds, table, peer->group);
    if (rounds_is_ahead(&group, vote->revision)) {
        round_of(rounds, table, peer->group)->ahead = true;
        membership_expel(table, peer, WIRE_SYNC_RULE "it passed revision %llu, but its group expects %llu",
                         (unsigned long long)vote->revision, (unsigned long long)group.expected);
        return;
    }
    membership_set_vote(table, peer, WIRE_VOTE_SYNC);
    rounds->votes[membership_slot(table, peer)] = *vote;
    rounds->due = true;
}

// Right after the election, when the votes lie in `voters`.
static void expel_for_mask(struct rounds *rounds, struct membership *table, struct peer_record *peer,
                           const struct wire_outline *mine, const struct wire_hash *mask) {
    static const char rule[] =
        WIRE_SYNC_RULE "its entries (names, order, data types, sizes or flags) differ from those of its group";
    uint32_t elected = 0;
    while (!wire_hash_equal(&rounds->voters[elected].vote.mask, mask)) elected++;
    const struct wire_outline *others = &rounds->voters[elected].vote.outline;
    struct wire_sync_differs differs;
    if (!delta_outline_differ(mine, others, &differs)) {
        membership_expel(table, peer, "%s", rule);
        return;
    }
    wire_encode_sync_differs(membership_frame(table), membership_header(table), &differs);
    if (!table->actions.bytes.failed) membership_send(table, peer);
    char at[64];
    unsigned long long first = differs.first, last = differs.last;
    snprintf(at, sizeof at, first == last ? "entry %llu" : "one of entries %llu to %llu", first, last);
    membership_expel(table, peer, "%s: it has %llu, its group %llu; the first that differs is %s, counted from 0", rule,
                     (unsigned long long)mine->entries, (unsigned long long)others->entries, at);
}

static void expel_by_rule(struct rounds *rounds, struct membership *table, struct peer_record *peer,
                          const struct election_voter *voter, const struct election_result *result) {
    switch (voter->fate) {
    case ELECTION_KEEPS:
    case ELECTION_RECEIVES: return;
    case ELECTION_STRATEGY:
        membership_expel(table, peer,
                         WIRE_SYNC_RULE "other members use the strategy \"enforce popular\", so all members must");
        return;
    case ELECTION_MASK: expel_for_mask(rounds, table, peer, &voter->vote.outline, &result->mask); return;
    case ELECTION_BEHIND:
        membership_expel(table, peer, WIRE_SYNC_RULE "it is send-only, but at revision %llu instead of %llu",
                         (unsigned long long)voter->vote.revision, (unsigned long long)result->revision);
        return;
    case ELECTION_MINORITY:
        membership_expel(table, peer,
                         WIRE_SYNC_RULE "it is send-only, but its content differs from that of most members");
        return;
    }
}

static void end_without_candidate(struct rounds *rounds, struct membership *table, struct peer_group *group,
                                  const struct election_group *as) {
    char why[WIRE_MAX_TEXT + 1];
    unsigned long long expected = as->expected;
    switch (as->state) {
    case ELECTION_NEW:
        snprintf(why, sizeof why,
                 "every member is receive-only, or holds an incomplete copy; let one send its state, or restart one "
                 "from a checkpoint");
        break;
    case ELECTION_EXPECTING:
        snprintf(why, sizeof why, "no member that may send has a complete state of revision %llu%s", expected,
                 as->ahead ? ", and one was expelled for a later revision" : "");
        break;
    case ELECTION_LOST:
        snprintf(why, sizeof why,
                 "all members that held the last state (revision %llu) have left; to resume from a checkpoint, pass a "
                 "revision above 0",
                 expected - 1);
        break;
    }
    end_round(rounds, table, group, why);
}

static void hold_election(struct rounds *rounds, struct membership *table, struct peer_group *group) {
    struct rounds_group *round = round_of(rounds, table, group);
    struct election_group as = describe(rounds, table, group);
    for (uint32_t rank = 0; rank < group->count; rank++) {
        const struct peer_record *peer = group->members[rank];
        rounds->voters[rank] = (struct election_voter){.join_number = peer->member.join_number,
                                                       .vote = rounds->votes[membership_slot(table, peer)],
                                                       .committed = peer->committed};
    }
    round->number = ++rounds->number;
    rounds_elect(&as, rounds->voters, group->count, &round->result);
    if (!round->result.elected) {
        end_without_candidate(rounds, table, group, &as);
        return;
    }
    round->phase = ROUNDS_ELECTED;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        struct peer_record *peer = group->members[rank];
        const struct election_voter *voter = &rounds->voters[rank];
        peer->part = voter->fate == ELECTION_RECEIVES ? ROLE_RECEIVER : voter->donor ? ROLE_DONOR : ROLE_WAITS;
        expel_by_rule(rounds, table, peer, voter, &round->result);
    }
}

// ---- transfer ----

// The longest-standing first, so that the list does not depend on the ring.
static uint32_t list_part(const struct peer_group *group, enum sync_role part, struct wire_id ids[WIRE_MAX_MEMBERS]) {
    uint64_t joins[WIRE_MAX_MEMBERS];
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        const struct peer_record *peer = group->members[rank];
        if (peer->part != part) continue;
        uint32_t at = count++;
        for (; at > 0 && joins[at - 1] > peer->member.join_number; at--) {
            joins[at] = joins[at - 1];
            ids[at] = ids[at - 1];
        }
        joins[at] = peer->member.join_number;
        ids[at] = peer->member.id;
    }
    return count;
}

static void send_plan(struct rounds *rounds, struct membership *table, struct peer_group *group) {
    struct rounds_group *round = round_of(rounds, table, group);
    struct wire_sync_plan plan;
    plan.round = round->number;
    plan.revision = round->result.revision;
    plan.mask = round->result.mask;
    plan.content = round->result.content;
    plan.receiver_count = list_part(group, ROLE_RECEIVER, plan.receivers);
    plan.donor_count = list_part(group, ROLE_DONOR, plan.donors);
    wire_encode_sync_plan(membership_frame(table), membership_header(table), &plan);
    membership_send_group(table, group);
    round->phase = ROUNDS_MOVING;
    actions_log(&table->actions, LOG_INFO, "group %u: shared state of revision %llu goes from %u to %u peers",
                group->id, (unsigned long long)plan.revision, plan.donor_count, plan.receiver_count);
}

void rounds_done(struct rounds *rounds, struct membership *table, struct peer_record *peer,
                 const struct wire_sync_done *done) {
    struct rounds_group *round = round_of(rounds, table, peer->group);
    if (done->round > rounds->number) {
        membership_expel(table, peer, "it sent a malformed SYNC_DONE");
        return;
    }
    // the round ended while it was on its way
    if (round->phase != ROUNDS_MOVING || done->round != round->number) return;
    if (peer->part != ROLE_RECEIVER) {
        membership_expel(table, peer, "it sent SYNC_DONE although it had nothing to receive");
        return;
    }
    for (uint32_t i = 0; i < done->count; i++) {
        struct peer_record *donor = membership_in_group(table, peer->group, &done->sources[i].id);
        if (donor != NULL && donor->part == ROLE_DONOR) donor->tx_bytes += done->sources[i].bytes;
    }
    if (done->complete == WIRE_SYNC_READ_ONLY)
        membership_expel(table, peer,
                         WIRE_SYNC_RULE
                         "it must receive, but its memory is read-only, or shared by entries that differ");
    else if (done->complete == WIRE_SYNC_COMPLETE)
        peer->part = ROLE_DONE;
    else
        round->failed = membership_label(peer);
    rounds->due = true;
}

static void advance(struct rounds *rounds, struct membership *table, struct peer_group *group) {
    const struct rounds_group *round = round_of(rounds, table, group);
    uint32_t voted = 0, receive = 0, give = 0;
    for (uint32_t rank = 0; rank < group->count; rank++) voted += group->members[rank]->vote == WIRE_VOTE_SYNC;
    if (round->phase == ROUNDS_VOTING && voted == group->count) hold_election(rounds, table, group);
    // those expelled have to be out of the group first
    if (round->phase == ROUNDS_VOTING || table->gone_count > 0) return;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        enum sync_role part = group->members[rank]->part;
        receive += part == ROLE_RECEIVER;
        give += part == ROLE_DONOR;
    }
    if (round->failed.chars[0] != 0) {
        char why[WIRE_MAX_TEXT + 1];
        snprintf(why, sizeof why, "%s could not copy the state from any member that holds it", round->failed.chars);
        end_round(rounds, table, group, why);
    } else if (receive > 0 && give == 0) {
        end_round(rounds, table, group, "all members that held the state have left");
    } else if (receive == 0) {
        end_round(rounds, table, group, NULL);
    } else if (round->phase == ROUNDS_ELECTED) {
        send_plan(rounds, table, group);
    }
}

void rounds_advance(struct rounds *rounds, struct membership *table) {
    if (!rounds->due) return;
    rounds->due = false;
    for (struct peer_group *group = membership_groups(table); group != NULL && table->gone_count == 0;
         group = membership_next(table, group))
        advance(rounds, table, group);
    if (table->gone_count > 0) rounds->due = true; // goes on when they are out
}

// ---- of the master before ----

// Notes a state whose hash only the master before knew.
static void recall_state(struct peer_record *peer, uint64_t revision) {
    peer->state = (struct wire_state){.kind = WIRE_STATE_SYNCED, .revision = revision};
}

void rounds_recall(struct peer_record *peer, const struct wire_resume *resume) {
    if (!resume->accepted) return;
    peer->committed = resume->sync_committed;
    if (peer->committed) recall_state(peer, resume->sync_revision);
}

void rounds_recall_end(struct rounds *rounds, const struct membership *table, const struct peer_group *group,
                       const struct wire_resume *resume, uint8_t code) {
    struct rounds_group *round = round_of(rounds, table, group);
    round->last =
        (struct rounds_end){.round = resume->epoch.sync_round, .code = code, .revision = resume->sync_revision};
    round->expected = resume->epoch.sync_expected;
    round->committed = resume->epoch.sync_expected != 0;
}

bool rounds_missed(struct rounds *rounds, const struct membership *table, struct peer_record *peer,
                   const struct wire_resume *resume, struct wire_sync_end *out) {
    static const char ended[] = "the sync failed on other members before the master was lost";
    const struct rounds_end *last = &round_of(rounds, table, peer->group)->last;
    if (resume->vote != WIRE_VOTE_SYNC || resume->epoch.sync_round >= last->round) return false;
    *out = (struct wire_sync_end){.round = last->round, .code = last->code, .revision = last->revision};
    out->text.length = last->code == pcclSuccess ? 0 : sizeof ended - 1;
    memcpy(out->text.chars, ended, out->text.length);
    peer->committed |= last->code == pcclSuccess;
    if (last->code == pcclSuccess) recall_state(peer, last->revision);
    return true;
}
