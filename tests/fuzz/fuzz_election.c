// The election of a round of shared state, with any votes: the rules of docs/protocol.md, and that the order of the
// votes makes no difference.
#include "master/rounds.h"

#include "fuzz.h"

enum { VOTERS_MAX = 24 };

static struct election_voter voter_of(struct fuzz *in, uint64_t join_number) {
    uint8_t how = fuzz_u8(in), what = fuzz_u8(in);
    struct election_voter voter = {.join_number = join_number, .committed = how & 4};
    voter.vote = (struct wire_sync_vote){.strategy = how % 3, .incomplete = how >> 3 & 1, .revision = fuzz_number(in)};
    voter.vote.mask = (struct wire_hash){.low = what & 3, .high = what >> 2 & 1};
    voter.vote.content = (struct wire_hash){.low = what >> 3 & 7, .high = what >> 6 & 1};
    return voter;
}

static void check(const struct election_group *group, const struct election_voter *voters, uint32_t count,
                  const struct election_result *result) {
    uint32_t donors = 0;
    bool enforced = false, stands = false;
    for (uint32_t i = 0; i < count; i++) enforced |= voters[i].vote.strategy == WIRE_SYNC_ENFORCE_POPULAR;
    for (uint32_t i = 0; i < count; i++) {
        const struct election_voter *voter = &voters[i];
        bool same = wire_hash_equal(&voter->vote.content, &result->content);
        if (!result->elected) {
            MUST(voter->fate == ELECTION_KEEPS && !voter->donor);
            continue;
        }
        MUST((voter->fate == ELECTION_STRATEGY) == (enforced && voter->vote.strategy != WIRE_SYNC_ENFORCE_POPULAR));
        if (!rounds_expels(voter->fate)) {
            MUST(wire_hash_equal(&voter->vote.mask, &result->mask));
            MUST((voter->fate == ELECTION_KEEPS) == same);
            MUST(voter->fate == ELECTION_KEEPS || voter->vote.strategy != WIRE_SYNC_SEND_ONLY);
        }
        MUST(!voter->donor || (voter->fate == ELECTION_KEEPS && voter->vote.strategy != WIRE_SYNC_RECEIVE_ONLY));
        donors += voter->donor;
        stands |= voter->donor && voter->vote.revision == result->revision && !voter->vote.incomplete;
    }
    if (!result->elected) return;
    MUST(donors > 0 && stands);
    if (group->state == ELECTION_EXPECTING) MUST(result->revision == group->expected - result->repeat);
    if (group->state != ELECTION_EXPECTING) MUST(!result->repeat);
    if (group->state == ELECTION_LOST) MUST(result->revision > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz in = {data, data + size};
    struct election_voter voters[VOTERS_MAX], other[VOTERS_MAX];
    uint8_t how = fuzz_u8(&in), turn = fuzz_u8(&in);
    struct election_group group = {.state = how % 3, .expected = fuzz_number(&in), .ahead = how & 8};
    if (group.expected == 0 && group.state != ELECTION_NEW) group.expected = 1; // follows a commit
    uint32_t count = 0;
    while (count < VOTERS_MAX && (count == 0 || fuzz_more(&in))) {
        voters[count] = voter_of(&in, count + 1);
        // Who is ahead is expelled before any election, and who is alone in having committed makes the state LOST no
        // longer.
        if (rounds_is_ahead(&group, voters[count].vote.revision)) voters[count].vote.revision = group.expected;
        if (group.state != ELECTION_EXPECTING) voters[count].committed = false;
        count++;
    }
    // 7 may divide the count: then some are missing
    for (uint32_t i = 0; i < count; i++) other[i] = voters[(i * 7 + turn) % count];
    bool permuted = count % 7 != 0;

    struct election_result result, again;
    rounds_elect(&group, voters, count, &result);
    check(&group, voters, count, &result);
    if (!permuted) return 0;
    rounds_elect(&group, other, count, &again);
    MUST(result.elected == again.elected);
    for (uint32_t i = 0; i < count; i++) {
        const struct election_voter *same = &voters[other[i].join_number - 1];
        MUST(same->fate == other[i].fate && same->donor == other[i].donor);
    }
    if (!result.elected) return 0;
    MUST(result.revision == again.revision && result.repeat == again.repeat);
    MUST(wire_hash_equal(&result.mask, &again.mask) && wire_hash_equal(&result.content, &again.content));
    MUST(rounds_expect(result.revision) >= result.revision);
    return 0;
}
