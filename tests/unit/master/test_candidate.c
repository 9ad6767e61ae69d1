// A candidate for the next epoch: who is in it, and who is left out.
#include "master/candidate.h"

#include "seats.h"

static struct candidate candidate;
static struct breaks breaks[2];

// Newcomers come after the members, all of one group.
static void begin(const char *name, const char *members, const char *newcomers) {
    memset(peers, 0, sizeof peers);
    open_membership(name, members);
    candidate_init(&candidate);
    breaks_begin(&breaks[0]);
    for (; *newcomers; newcomers++) come(*newcomers, 0)->invited = true;
    CHECK(candidate_form(&candidate, &table));
    candidate_propose(&candidate, &table, WIRE_VOTE_UPDATE);
}

static void end(void) {
    breaks_fini(&breaks[0]);
    close_membership();
}

// "c:ab" means that c answers, and cannot reach a and b.
static void answer(const char *words) {
    static struct wire_linked linked;
    while (*words) {
        const char who = *words++;
        linked = (struct wire_linked){.attempt = candidate.attempt};
        if (*words == ':')
            for (words++; *words && *words != ' '; words++)
                linked.unreachable[linked.count++] = peer(*words)->member.id;
        while (*words == ' ') words++;
        candidate_linked(&candidate, &table, peer(who), &linked);
    }
}

struct row {
    const char *name, *members, *newcomers, *answers;
    enum candidate_verdict verdict;
    const char *gone;
    uint32_t broken; // pairs of members
};

static void test_judgement(void) {
    static const struct row rows[] = {
        {"all reach all", "ab", "nm", "a b n m", CANDIDATE_PASSES, "", 0},
        {"a newcomer that a member cannot reach", "ab", "nm", "a:n b n m", CANDIDATE_REPAIRS, "n", 0},
        {"or that cannot reach a member", "ab", "nm", "a b n:b m", CANDIDATE_REPAIRS, "n", 0},
        {"of two newcomers the longer-standing one stays", "ab", "nm", "a b n:m m:n", CANDIDATE_REPAIRS, "m", 0},
        {"who stands in nobody's way stays", "ab", "nm", "a:n b n:m m", CANDIDATE_REPAIRS, "n", 0},
        {"who is late goes", "ab", "nm", "a b m", CANDIDATE_REPAIRS, "n", 0},
        {"members too, if no newcomer is at fault", "abc", "n", "a b n", CANDIDATE_REPAIRS, "c", 0},
        {"members that miss each other make their links again", "abc", "n", "a:b b c n", CANDIDATE_REPAIRS, "", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        begin(row->name, row->members, row->newcomers);
        answer(row->answers);
        CHECK_EQ(candidate_judge(&candidate, &table, breaks), row->verdict);
        CHECK_STR(gone(), row->gone);
        CHECK_EQ(breaks[0].count, row->broken);
        end();
    }
}

static void test_answers(void) {
    begin("each is asked, and answers once", "ab", "n");
    CHECK_STR(told(WIRE_CANDIDATE), "abn");
    answer("a a b");
    CHECK_EQ(candidate.unanswered, 1);
    answer("n");
    CHECK_EQ(candidate.unanswered, 0);
    end();

    begin("a newcomer that a member cannot reach is not waited for", "ab", "n");
    answer("a:n b");
    CHECK_EQ(candidate.unanswered, 0);
    end();

    begin("if all reach all, nothing is waited for", "ab", "n");
    answer("a b n");
    CHECK(candidate_is_due(&candidate));
    end();

    begin("a missing link may be that of a member that has just died: its death is waited for", "ab", "nm");
    answer("a b:n m:b");
    CHECK(!candidate_is_due(&candidate) && candidate.deadline_ns == table.now_ns + BREAKS_GRACE_MS * INT64_C(1000000));
    answer("n");
    CHECK(!candidate_is_due(&candidate));
    candidate_time_out(&candidate);
    CHECK(candidate_is_due(&candidate));
    CHECK_EQ(candidate_judge(&candidate, &table, breaks), CANDIDATE_REPAIRS);
    CHECK_STR(gone(), "mn");
    end();
}

static void test_commit(void) {
    begin("newcomers become members at the end of their group", "ba", "nm");
    CHECK_EQ(candidate_commit(&candidate, &table), 3);
    const char order[] = "banm";
    CHECK_EQ(table.count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(table.order[i] == peer(order[i]) && table.order[i]->accepted);
        CHECK_EQ(table.order[i]->rank, i);
    }
    CHECK(peer('a')->group->changed && peer('n')->group == peer('a')->group);
    end();

    begin("an order alone admits nobody, and fails if a link does", "abc", "n");
    candidate.count = 3;
    candidate.order[0] = peer('a');
    candidate.order[1] = peer('c');
    candidate.order[2] = peer('b');
    candidate_propose(&candidate, &table, WIRE_VOTE_OPTIMIZE);
    answer("a:b b c");
    CHECK_EQ(candidate_judge(&candidate, &table, breaks), CANDIDATE_FAILS);
    CHECK_STR(gone(), "");
    CHECK_EQ(candidate_commit(&candidate, &table), UINT64_MAX);
    CHECK(table.order[1] == peer('c'));
    end();
}

int main(void) {
    test_judgement();
    test_answers();
    test_commit();
    return check_status();
}
