// The election of shared state. Voters are written as words, longest-standing first: strategy (E enforce popular, R
// receive only, S send only), revision, mask (a letter), content (a capital), then * if it took part in the last
// commit, ! if its state is incomplete. Fates, one letter each: d keeps and may give, . keeps, r receives; expelled: a
// ahead, s strategy, m mask, b behind, n minority.
#include "master/rounds.h"

#include "check.h"

enum { MOST = 8 };
static const int64_t NONE = -1;

struct round {
    struct election_group group;
    struct election_voter voters[MOST];
    char fates[MOST + 1];
    uint32_t count;
    struct election_result result;
};

static uint64_t number(const char **text) {
    char *end;
    uint64_t value = strtoull(*text, &end, 10);
    REQUIRE(end != *text);
    *text = end;
    return value;
}

static struct wire_hash hash_of(char letter) { return (struct wire_hash){(uint64_t)letter * 3, (uint64_t)letter * 7}; }

static void parse(struct round *round, char state, uint64_t expected, const char *text) {
    *round = (struct round){.group = {.expected = expected}};
    round->group.state = state == 'n' ? ELECTION_NEW : state == 'l' ? ELECTION_LOST : ELECTION_EXPECTING;
    while (*text) {
        struct election_voter *voter = &round->voters[round->count++];
        voter->join_number = 10 + round->count;
        voter->vote.strategy = *text == 'E'   ? WIRE_SYNC_ENFORCE_POPULAR
                               : *text == 'R' ? WIRE_SYNC_RECEIVE_ONLY
                                              : WIRE_SYNC_SEND_ONLY;
        text++;
        voter->vote.revision = number(&text);
        voter->vote.mask = hash_of(*text++);
        voter->vote.content = hash_of(*text++);
        for (; *text && *text != ' '; text++) {
            voter->committed |= *text == '*';
            voter->vote.incomplete |= *text == '!';
        }
        while (*text == ' ') text++;
    }
}

static char letter_of(const struct election_voter *voter) {
    if (voter->fate == ELECTION_KEEPS) return voter->donor ? 'd' : '.';
    return " rsmbn"[voter->fate];
}

// One round as the master holds it: votes come in one after another, those ahead are out at once.
static void hold(struct round *round) {
    struct election_voter left[MOST];
    uint32_t at[MOST], count = 0;
    for (uint32_t i = 0; i < round->count; i++) {
        if (rounds_is_ahead(&round->group, round->voters[i].vote.revision)) {
            round->group.ahead = true;
            round->fates[i] = 'a';
            continue;
        }
        at[count] = i;
        left[count++] = round->voters[i];
    }
    rounds_elect(&round->group, left, count, &round->result);
    for (uint32_t i = 0; i < count; i++) round->fates[at[i]] = letter_of(&left[i]);
}

struct row {
    const char *name;
    char state; // 'n' new, 'e' expecting, 'l' lost
    uint64_t expected;
    const char *voters, *fates;
    int64_t revision; // NONE: nobody is elected
    char content;
};

static const struct row rows[] = {
    // the table of the contract, in its order
    {"same content, same revision, all enforce", 'n', 0, "E0aA E0aA E0aA", "ddd", 0, 'A'},
    {"same, later", 'e', 5, "E5aA* E5aA* E5aA*", "ddd", 5, 'A'},
    {"same, all send only", 'e', 5, "S5aA* S5aA*", "dd", 5, 'A'},
    {"alone in the group", 'n', 0, "E3aA", "d", 3, 'A'},
    {"alone, send only, later", 'e', 4, "S4aB*", "d", 4, 'B'},
    {"two peers differ at the same revision", 'n', 0, "E0aA E0aB", "dr", 0, 'A'},
    {"two peers differ, later", 'e', 9, "E9aB* E9aA*", "dr", 9, 'B'},
    {"2 of 3 agree, the longest-standing is odd", 'n', 0, "E0aB E0aA E0aA", "rdd", 0, 'A'},
    {"2 of 3 agree, the middle one is odd", 'e', 1, "E1aA* E1aB* E1aA*", "drd", 1, 'A'},
    {"member at E-1 with the winner's content", 'e', 7, "E7aA* E6aA* E7aA*", "ddd", 7, 'A'},
    {"member at E-1 while the others change their content", 'e', 7, "E7aB* E6aA* E7aB*", "drd", 7, 'B'},
    {"new group, one starts at 13, the rest at 0", 'n', 0, "E13aA E0aB E0aB", "drr", 13, 'A'},
    {"new group, the last starts at 13, the rest at 5", 'n', 0, "E5aB E5aB E13aA", "rrd", 13, 'A'},
    {"after that, 14", 'e', 14, "E14aA* E14aA* E14aA*", "ddd", 14, 'A'},
    {"newcomer with 0 in a group at E", 'e', 8, "E8aA* E8aA* E0aB", "ddr", 8, 'A'},
    {"newcomers with 0 outnumber the group at E", 'e', 8, "E8aA* E0aB E0aB E0aB", "drrr", 8, 'A'},
    {"one peer skips a number, others at E", 'e', 5, "E6aA* E5aB* E5aB*", "add", 5, 'B'},
    {"one peer skips a number, nobody is at E", 'e', 5, "E6aA* E4aB* E4aB*", "a..", -1, 0},
    {"all call again without adding 1", 'e', 5, "E4aA* E4aA* E4aA*", "ddd", 4, 'A'},
    {"the same with a newcomer", 'e', 5, "E4aA* E4aA* E0aB", "ddr", 4, 'A'},
    {"the same with a newcomer that gives E-1 and others that outnumber", 'e', 5, "E4aA* E4aB E4aB", "drr", 4, 'A'},
    {"only newcomers stand at E-1", 'e', 5, "E3aA* E4aB E4aB", "...", -1, 0},
    {"a newcomer stands at E, the others call again", 'e', 5, "E4aA* E4aA* E5aB", "rrd", 5, 'B'},
    {"all go back further than E-1", 'e', 5, "E3aA* E3aA*", "..", -1, 0},
    {"the longest-standing's mask differs from most", 'n', 0, "E0bA E0aA E0aA", "mdd", 0, 'A'},
    {"two masks, the longest-standing's wins", 'n', 0, "E0bA E0aA", "dm", 0, 'A'},
    {"the newcomer's mask differs", 'e', 5, "E5aA* E5aA* E0bA", "ddm", 5, 'A'},
    {"a receiver's mask differs", 'e', 5, "S5aA* R5bA*", "dm", 5, 'A'},
    {"send only with different contents", 'e', 5, "S5aA* S5aB* S5aB*", "ndd", 5, 'B'},
    {"send only with different contents, tie", 'e', 5, "S5aB* S5aA*", "dn", 5, 'B'},
    {"send only below R, other content", 'e', 5, "S5aA* S4aB*", "db", 5, 'A'},
    {"send only below R, same content", 'e', 5, "S5aA* S4aA*", "db", 5, 'A'},
    {"send only below R are the majority", 'e', 5, "S5aA* S4aA* S4aA*", "dbb", 5, 'A'},
    {"send only and receive only", 'n', 0, "R0aB S0aA R0aB", "rdr", 0, 'A'},
    {"send only and receive only of a higher revision", 'n', 0, "R7aB S0aA R7aB", "rdr", 0, 'A'},
    {"receive only that already has the content", 'n', 0, "S0aA R0aA R0aB", "d.r", 0, 'A'},
    {"all receive only, contents equal", 'n', 0, "R0aA R0aA", "..", -1, 0},
    {"all receive only, contents differ, later", 'e', 5, "R5aA* R5aB*", "..", -1, 0},
    {"enforce popular with any other", 'n', 0, "S0aA E0aB E0aB R0aA", "sdds", 0, 'B'},
    {"a single enforcer with unpopular content", 'e', 5, "S5aA* S5aA* E5aB*", "ssd", 5, 'B'},
    {"a single enforcer with an unpopular mask", 'e', 5, "S5aA* S5aA* E5bA*", "ssd", 5, 'A'},
    {"all that took part have left, all at 0", 'l', 5, "E0aA E0aA", "..", -1, 0},
    {"all that took part have left, one resumes", 'l', 5, "E0aA E3aB E0aA", "rdr", 3, 'B'},
    {"all that took part have left, one resumes beyond E", 'l', 5, "E0aA E99aB", "rd", 99, 'B'},
    {"all that took part have left, two resume", 'l', 5, "E7aA E9aB E9aB", "rdd", 9, 'B'},

    // rule by rule
    {"1: receive only ahead is expelled too", 'e', 5, "R6aA* E5aA*", "ad", 5, 'A'},
    {"1: the only voter ahead", 'e', 5, "E6aA*", "a", -1, 0},
    {"2: those expelled do not vote on the revision", 'n', 0, "S9aA E3aB R9aA", "sds", 3, 'B'},
    {"2: those expelled do not vote on the mask", 'n', 0, "S0aA S0aA E0bB", "ssd", 0, 'B'},
    {"2: no enforcer can be elected: nobody is expelled", 'e', 9, "S9aA* E3aB*", "..", -1, 0},
    {"3: E, whatever the others give", 'e', 5, "E0aA* E1aA* E2aA* E5aB", "rrrd", 5, 'B'},
    {"3: receive only at E does not make the round", 'e', 5, "R5aA* S4aB*", "rd", 4, 'B'},
    {"3: receive only at E-1 does not make a repeat", 'e', 5, "R4aA* S3aB*", "..", -1, 0},
    {"3: an incomplete state at E does not make the round", 'e', 5, "E5aA!* E4aB*", "rd", 4, 'B'},
    {"3: lost, a revision of E-1 is no repeat", 'l', 5, "E4aA E4aB", "dr", 4, 'A'},
    {"3: lost, receive only resumes nothing", 'l', 5, "R7aA R0aA", "..", -1, 0},
    {"3: the highest revision there is", 'n', 0, "E18446744073709551615aA E0aB", "dr", -2, 'A'},
    {"3: new, an incomplete state is no candidate", 'n', 0, "E13aA! E0aB", "rd", 0, 'B'},
    {"3: all are incomplete", 'n', 0, "E0aA! E0aA!", "..", -1, 0},
    {"4: candidates are those at R only", 'n', 0, "E2aA E2aB E1aB E1aB", "drrr", 2, 'A'},
    {"5: only candidates choose the mask", 'n', 0, "E0aA E0aA E1bA", "mmd", 1, 'A'},
    {"5: most, not the longest-standing", 'n', 0, "E0cA E0bA E0aA E0aA", "mmdd", 0, 'A'},
    {"5: a tie of masks is not broken by those of another one", 'n', 0, "E0cA E0bA E0bA E0aA E0aA", "mddmm", 0, 'A'},
    {"6: only those with the mask choose the content", 'n', 0, "E0aA E0aB E0aB E0aA E0bA E0bA E0bA", "drrdmmm", 0, 'A'},
    {"6: content votes of those expelled do not break the tie", 'n', 0, "E0aA E0aB E0bB", "drm", 0, 'A'},
    {"7: incomplete with the right content keeps it and gives", 'e', 5, "E5aA* E5aA!", "dd", 5, 'A'},
    {"7: incomplete with other content receives", 'e', 5, "E5aA* E5aB!*", "dr", 5, 'A'},
    {"8: receive only at another revision with the content", 'e', 5, "S5aA* R0aA", "d.", 5, 'A'},
    {"no voters at all", 'n', 0, "", "", -1, 0},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void test_rows(void) {
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];
        check_case("row %zu: %s", i, row->name);
        struct round round;
        parse(&round, row->state, row->expected, row->voters);
        hold(&round);
        CHECK_STR(round.fates, row->fates);
        CHECK_EQ(round.result.elected, row->revision != NONE);
        if (row->revision == NONE || !round.result.elected) continue;
        struct wire_hash content = hash_of(row->content);
        CHECK(wire_hash_equal(&round.result.content, &content));
        CHECK_EQ(round.result.revision, row->revision == -2 ? UINT64_MAX : (uint64_t)row->revision);
        CHECK_EQ(round.result.repeat, row->state == 'e' && round.result.revision != row->expected);
    }
}

static void test_expectation(void) {
    check_case("expectation");
    CHECK_EQ(rounds_expect(0), 1);
    CHECK_EQ(rounds_expect(13), 14);
    CHECK_EQ(rounds_expect(UINT64_MAX), UINT64_MAX);
    struct election_group group = {ELECTION_NEW, 3, false};
    CHECK(!rounds_is_ahead(&group, 4));
    group.state = ELECTION_LOST;
    CHECK(!rounds_is_ahead(&group, 4));
    group.state = ELECTION_EXPECTING;
    CHECK(rounds_is_ahead(&group, 4));
    CHECK(!rounds_is_ahead(&group, 3));
    CHECK(!rounds_is_ahead(&group, 0));
}

// ---- properties ----

static uint64_t seed;

static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

static void random_round(struct round *round) {
    *round = (struct round){.group = {.state = (enum election_state)below(3), .expected = 1 + below(4)},
                            .count = 1 + (uint32_t)below(MOST)};
    bool mixed = below(2);
    uint8_t strategy = (uint8_t)below(3);
    for (uint32_t i = 0; i < round->count; i++) {
        struct election_voter *voter = &round->voters[i];
        voter->join_number = 100 * below(1000) + i;
        voter->vote.strategy = mixed ? (uint8_t)below(3) : strategy;
        voter->vote.revision = below(3) ? round->group.expected - below(2) : below(6);
        voter->vote.mask = hash_of((char)('a' + (below(4) == 0)));
        voter->vote.content = hash_of((char)('A' + below(3)));
        voter->vote.incomplete = below(6) == 0;
        voter->committed = round->group.state == ELECTION_EXPECTING && below(3) > 0;
    }
}

static void shuffle(struct round *to, const struct round *from, uint32_t places[MOST]) {
    *to = (struct round){.group = from->group, .count = from->count};
    for (uint32_t i = 0; i < from->count; i++) places[i] = i;
    for (uint32_t i = from->count; i > 1; i--) {
        uint32_t k = (uint32_t)below(i), place = places[i - 1];
        places[i - 1] = places[k];
        places[k] = place;
    }
    for (uint32_t i = 0; i < from->count; i++) to->voters[places[i]] = from->voters[i];
}

static bool same_result(const struct election_result *a, const struct election_result *b) {
    if (a->elected != b->elected) return false;
    return !a->elected || (a->revision == b->revision && a->repeat == b->repeat &&
                           wire_hash_equal(&a->mask, &b->mask) && wire_hash_equal(&a->content, &b->content));
}

static void check_elected(const struct round *round) {
    const struct election_result *result = &round->result;
    bool enforced = false, donor = false, candidate = false;
    for (uint32_t i = 0; i < round->count; i++)
        enforced |= round->fates[i] != 'a' && round->voters[i].vote.strategy == WIRE_SYNC_ENFORCE_POPULAR;
    for (uint32_t i = 0; i < round->count; i++) {
        const struct wire_sync_vote *vote = &round->voters[i].vote;
        char fate = round->fates[i];
        bool same = wire_hash_equal(&vote->content, &result->content),
             fits = wire_hash_equal(&vote->mask, &result->mask);
        CHECK((fate == 'a') == (round->group.state == ELECTION_EXPECTING && vote->revision > round->group.expected));
        if (fate == 'd') CHECK(same && fits && vote->strategy != WIRE_SYNC_RECEIVE_ONLY);
        if (fate == '.') CHECK(same && fits && vote->strategy == WIRE_SYNC_RECEIVE_ONLY);
        if (fate == 'r') CHECK(!same && fits && vote->strategy != WIRE_SYNC_SEND_ONLY);
        if (fate == 's') CHECK(enforced && vote->strategy != WIRE_SYNC_ENFORCE_POPULAR);
        if (fate == 'm') CHECK(!fits);
        if (fate == 'b') CHECK(vote->strategy == WIRE_SYNC_SEND_ONLY && vote->revision != result->revision);
        if (fate == 'n') CHECK(vote->strategy == WIRE_SYNC_SEND_ONLY && !same && vote->revision == result->revision);
        if (enforced && strchr("dr.", fate)) CHECK_EQ(vote->strategy, WIRE_SYNC_ENFORCE_POPULAR);
        donor |= fate == 'd';
        candidate |= fate == 'd' && vote->revision == result->revision && !vote->incomplete &&
                     (!result->repeat || round->voters[i].committed);
    }
    CHECK(donor);     // whoever receives has somebody to receive from
    CHECK(candidate); // the winner is a candidate's, not made up of two
}

static void test_properties(void) {
    uint32_t elected = 0, none = 0;
    for (seed = 1; seed < 20000; seed++) {
        check_case("random round of seed %llu", (unsigned long long)seed);
        uint64_t kept = seed;
        struct round round, other;
        random_round(&round);
        hold(&round);
        if (round.result.elected)
            check_elected(&round);
        else
            // nobody else is expelled, nobody receives
            for (uint32_t i = 0; i < round.count; i++) CHECK(round.fates[i] == 'a' || round.fates[i] == '.');
        elected += round.result.elected;
        none += !round.result.elected;
        for (uint32_t turn = 0; turn < 3; turn++) {
            uint32_t places[MOST];
            shuffle(&other, &round, places);
            hold(&other);
            CHECK(same_result(&round.result, &other.result));
            for (uint32_t i = 0; i < round.count; i++) CHECK_EQ(other.fates[places[i]], round.fates[i]);
        }
        seed = kept;
    }
    check_case("%s", "");
    CHECK(elected > 3000 && none > 1000);
}

// After a round that elected, everybody that is left votes the same content at the next revision: nothing moves, nobody
// is expelled. Without adding 1 it is a repeat of the same.
static void test_next_rounds(void) {
    for (seed = 1; seed < 5000; seed++) {
        check_case("rounds after seed %llu", (unsigned long long)seed);
        uint64_t kept = seed;
        struct round round, next = {0};
        random_round(&round);
        hold(&round);
        if (round.result.elected) {
            for (uint32_t i = 0; i < round.count; i++) {
                if (!strchr("dr.", round.fates[i])) continue;
                struct election_voter *voter = &next.voters[next.count++];
                *voter = round.voters[i];
                voter->committed = true;
                voter->vote.incomplete = 0;
                voter->vote.content = round.result.content;
            }
            next.group = (struct election_group){ELECTION_EXPECTING, rounds_expect(round.result.revision), false};
            for (uint32_t again = 0; again < 2; again++) {
                for (uint32_t i = 0; i < next.count; i++) next.voters[i].vote.revision = next.group.expected - again;
                hold(&next);
                CHECK(next.result.elected);
                CHECK_EQ(next.result.repeat, again == 1);
                CHECK_EQ(rounds_expect(next.result.revision), next.group.expected + 1 - again);
                for (uint32_t i = 0; i < next.count; i++) CHECK(next.fates[i] == 'd' || next.fates[i] == '.');
            }
        }
        seed = kept;
    }
}

int main(void) {
    test_rows();
    test_expectation();
    test_properties();
    test_next_rounds();
    return check_status();
}
