#include "master/election.h"

#include <stddef.h>

bool election_is_ahead(const struct election_group *group, uint64_t revision) {
    return group->state == ELECTION_EXPECTING && revision > group->expected;
}

uint64_t election_expect(uint64_t revision) { return revision == UINT64_MAX ? UINT64_MAX : revision + 1; }

bool election_expels(enum election_fate fate) { return fate >= ELECTION_STRATEGY; }

// ---- rule 2 ----

static void judge_strategies(struct election_voter *voters, uint32_t count) {
    bool enforced = false;
    for (uint32_t i = 0; i < count; i++) enforced |= voters[i].vote.strategy == WIRE_SYNC_ENFORCE_POPULAR;
    for (uint32_t i = 0; i < count; i++)
        voters[i].fate =
            enforced && voters[i].vote.strategy != WIRE_SYNC_ENFORCE_POPULAR ? ELECTION_STRATEGY : ELECTION_KEEPS;
}

// ---- rules 3 and 4 ----

// May its revision count, and its state win? An incomplete state does neither: it would name a revision that nobody can
// give.
static bool may_stand(const struct election_voter *voter) {
    return !election_expels(voter->fate) && voter->vote.strategy != WIRE_SYNC_RECEIVE_ONLY && !voter->vote.incomplete;
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

// ---- rules 5 and 6 ----

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
        if (!election_expels(voters[i].fate) && !wire_hash_equal(&voters[i].vote.mask, mask))
            voters[i].fate = ELECTION_MASK;
}

// ---- rules 7 and 8 ----

static void judge_content(struct election_voter *voter, const struct election_result *result) {
    if (election_expels(voter->fate)) return;
    bool same = wire_hash_equal(&voter->vote.content, &result->content);
    if (voter->vote.strategy == WIRE_SYNC_SEND_ONLY && voter->vote.revision != result->revision)
        voter->fate = ELECTION_BEHIND;
    else if (voter->vote.strategy == WIRE_SYNC_SEND_ONLY && !same)
        voter->fate = ELECTION_MINORITY;
    else if (!same)
        voter->fate = ELECTION_RECEIVES;
    voter->donor = voter->fate == ELECTION_KEEPS && voter->vote.strategy != WIRE_SYNC_RECEIVE_ONLY;
}

void election_hold(const struct election_group *group, struct election_voter *voters, uint32_t count,
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
