// Rounds of shared state by themselves: when a vote ends in an election, who receives from whom, how each loss and each
// SYNC_DONE ends the round. Who wins is the election's (test_rounds_election.c).
#include "master/rounds.h"

#include "pccl.h"
#include "seats.h"

static struct rounds rounds;

static void begin(const char *name, const char *members) {
    memset(peers, 0, sizeof peers);
    open_membership(name, members);
    rounds_init(&rounds);
}

// Those that are gone leave their groups.
static void reap(void) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < table.count; i++)
        if (!table.order[i]->gone) table.order[kept++] = table.order[i];
    table.count = kept;
    table.gone_count = 0;
    membership_rank(&table);
}

static void advance(void) {
    do {
        reap();
        rounds_advance(&rounds, &table);
    } while (table.gone_count > 0);
}

static void lose(const char *letters) {
    for (; *letters; letters++) membership_drop(&table, peer(*letters), WIRE_LOSS_DIED, LOG_INFO, "test");
    rounds.due = true;
    advance();
}

// "a1x": a votes with revision 1 and content x; '-' behind it: it may only receive.
static void vote(const char *votes) {
    for (; *votes; votes += votes[3] == '-' ? 4 : 3) {
        struct wire_sync_vote message = {.strategy =
                                             votes[3] == '-' ? WIRE_SYNC_RECEIVE_ONLY : WIRE_SYNC_ENFORCE_POPULAR,
                                         .revision = (uint64_t)(votes[1] - '0'),
                                         .content.low = (uint64_t)votes[2]};
        rounds_vote(&rounds, &table, peer(votes[0]), &message);
    }
    advance();
}

static void done(char who, enum wire_sync_completion completion, char donor, uint64_t bytes) {
    static struct wire_sync_done message;
    message = (struct wire_sync_done){.round = rounds.number, .complete = (uint8_t)completion, .count = 1};
    message.sources[0] = (struct wire_sync_source){peer(donor)->member.id, bytes};
    rounds_done(&rounds, &table, peer(who), &message);
    advance();
}

// "c<ab": c receives from a and b; "": no plan was sent.
static const char *plan(void) {
    static struct wire_sync_plan message;
    static char out[32];
    size_t length, at = 0;
    out[0] = 0;
    if (told(WIRE_SYNC_PLAN)[0] == 0) return out;
    const uint8_t *body = last_body(WIRE_SYNC_PLAN, &length);
    REQUIRE(wire_decode_sync_plan(body, length, &message));
    for (uint32_t i = 0; i < message.receiver_count; i++) out[at++] = (char)message.receivers[i].bytes[0];
    out[at++] = '<';
    for (uint32_t i = 0; i < message.donor_count; i++) out[at++] = (char)message.donors[i].bytes[0];
    out[at] = 0;
    return out;
}

static void ended_at(int line, const char *who, uint8_t code, uint64_t revision, const char *why) {
    static struct wire_sync_end end;
    size_t length;
    check_text(told(WIRE_SYNC_END), who, __FILE__, line, "who hears the end");
    const uint8_t *body = last_body(WIRE_SYNC_END, &length);
    REQUIRE(wire_decode_sync_end(body, length, &end));
    check_equal(end.code, code, __FILE__, line, "code");
    check_equal((int64_t)end.revision, (int64_t)revision, __FILE__, line, "revision");
    check_that(memmem(end.text.chars, end.text.length, why, strlen(why)) != NULL, __FILE__, line, why);
    hush();
}
#define ENDED(who, revision) ended_at(__LINE__, who, pcclSuccess, revision, "")
#define FAILED(who, why) ended_at(__LINE__, who, pcclNoSharedStateAvailable, 0, why)

static void test_votes(void) {
    static const struct {
        const char *name, *votes, *plan, *gone;
        uint64_t revision; // of a round that ends at once
    } rows[] = {
        {"not all have voted", "a1xb1x", "", "", 0},
        {"all hold the same", "a1xb1xc1x", "", "", 1},
        {"one receives, from all others", "a1xb1xc1y", "c<ab", "", 0},
        {"the longest-standing gives first, whatever the ring", "c1xb1xa1y", "a<bc", "", 0},
        {"who is behind receives too", "a2xb1yc1y", "bc<a", "", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(rows[i].name, "abc");
        vote(rows[i].votes);
        CHECK_STR(plan(), rows[i].plan);
        CHECK_STR(gone(), rows[i].gone);
        CHECK_STR(told(WIRE_SYNC_END), rows[i].revision > 0 ? "abc" : "");
        if (rows[i].revision > 0) ENDED("abc", rows[i].revision);
        close_membership();
    }

    begin("nobody may give", "ab");
    vote("a1x-b1x-");
    FAILED("ab", "every member is receive-only");
    close_membership();

    begin("a revision that is ahead is expelled, and one that is expected goes on", "abc");
    vote("a1xb1xc1x");
    ENDED("abc", 1);
    vote("c3x");
    CHECK_STR(gone(), "c");
    vote("a2xb2y");
    CHECK_STR(plan(), "b<a");
    close_membership();

    begin("groups are independent", "ab");
    seat("cd", 1);
    vote("a1xc5yd5y");
    ENDED("cd", 5);
    vote("b1x");
    ENDED("ab", 1);
    close_membership();
}

static void test_transfer(void) {
    begin("each of two receivers counts", "abcd");
    vote("a1xb1xc1yd1z");
    CHECK_STR(plan(), "cd<ab");
    done('c', WIRE_SYNC_COMPLETE, 'a', 5);
    CHECK_STR(told(WIRE_SYNC_END), "");
    done('d', WIRE_SYNC_COMPLETE, 'a', 7);
    CHECK_STR(told(WIRE_SYNC_END), "abcd");
    ENDED("abcd", 1);
    CHECK(peer('a')->committed && peer('d')->committed && peer('a')->tx_bytes == 0 && peer('a')->vote == 0);
    close_membership();

    static const struct {
        const char *name, *lost;
        enum wire_sync_completion completion;
        const char *who, *why; // why: it fails; NULL: it does not
    } rows[] = {
        {"a receiver cannot get it", "", WIRE_SYNC_MISSING, "abc", "(rank 2, join 3) could not copy the state"},
        {"a receiver cannot write it, and goes", "", WIRE_SYNC_READ_ONLY, "ab", NULL},
        {"the last that receives is lost", "c", WIRE_SYNC_COMPLETE, "ab", NULL},
        {"one that gives is lost, another is left", "a", WIRE_SYNC_COMPLETE, "bc", NULL},
        {"all that give are lost", "ab", WIRE_SYNC_COMPLETE, "c", "all members that held the state have left"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(rows[i].name, "abc");
        vote("a1xb1xc1y");
        CHECK_STR(plan(), "c<ab");
        hush();
        lose(rows[i].lost);
        if (!peer('c')->gone && told(WIRE_SYNC_END)[0] == 0) done('c', rows[i].completion, 'b', 1);
        if (rows[i].why == NULL)
            ENDED(rows[i].who, 1);
        else
            FAILED(rows[i].who, rows[i].why);
        close_membership();
    }
}

static void test_violations(void) {
    begin("SYNC_DONE of a round that never was, or of one that receives nothing", "abc");
    vote("a1xb1xc1y");
    rounds.number++;
    done('c', WIRE_SYNC_COMPLETE, 'a', 1); // of another round: late
    rounds.number--;
    done('a', WIRE_SYNC_COMPLETE, 'b', 1);
    CHECK_STR(gone(), "a");
    CHECK_STR(told(WIRE_SYNC_END), "");
    close_membership();
}

static void test_recall(void) {
    begin("a run is taken up: who missed the end of the last round hears it", "ab");
    struct wire_resume heard = {
        .accepted = 1, .sync_committed = 1, .epoch = {.sync_round = 9, .sync_expected = 4}, .sync_revision = 3};
    struct wire_resume missed = {.accepted = 1, .vote = WIRE_VOTE_SYNC, .epoch = {.sync_round = 8, .sync_expected = 3}};
    struct wire_sync_end end;
    rounds_recall(peer('a'), &heard);
    rounds_recall(peer('b'), &missed);
    rounds_recall_end(&rounds, &table, peer('a')->group, &heard, heard.sync_code);
    CHECK(!rounds_missed(&rounds, &table, peer('a'), &heard, &end));
    CHECK(rounds_missed(&rounds, &table, peer('b'), &missed, &end));
    CHECK(end.round == 9 && end.revision == 3 && end.code == pcclSuccess && peer('b')->committed);
    vote("a4xb4x"); // the revision that is expected
    ENDED("ab", 4);
    close_membership();
}

int main(void) {
    test_votes();
    test_transfer();
    test_violations();
    test_recall();
    return check_status();
}
