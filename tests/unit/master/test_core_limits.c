// The master's state machine: how many members a run has at least and at most.
#include "core_world.h"
#include "pccl.h"

static void test_least(void) {
    begin("a run that is too small waits in its next update vote for newcomers");
    limits = (struct wire_limits){.least = 3, .wait_ms = 60000};
    join('a', 0); // connect does not wait
    EPOCH("a", UPDATE, 1, 1, "a");
    vote("a", WIRE_VOTE_PENDING);
    OUTCOME("a", PENDING, pcclSuccess, 2);
    vote("a", WIRE_VOTE_UPDATE);
    join('b', 0);
    CHECK(quiet("ab"));
    join('c', 0);
    linked("abc", CANDIDATE("abc", "abc"), "");
    EPOCH("abc", UPDATE, 2, 2, "abc");
    vote("abc", WIRE_VOTE_PENDING);
    OUTCOME("abc", PENDING, pcclSuccess, 0);
    vote("abc", WIRE_VOTE_UPDATE);
    OUTCOME("abc", UPDATE, pcclSuccess, 0);
    end();

    begin("after a loss, with members in another vote or none");
    limits = (struct wire_limits){0};
    limits.least = 2, limits.wait_ms = 60000;
    form("ab", 0);
    vote("a", WIRE_VOTE_UPDATE);
    die('b');
    EPOCH("a", LOSS, 3, 3, "a");
    CHECK(quiet("a"));
    join('c', 0);
    linked("ac", CANDIDATE("ac", "ac"), "");
    EPOCH("ac", UPDATE, 4, 4, "ac");
    die('c');
    EPOCH("a", LOSS, 5, 5, "a");
    vote("a", WIRE_VOTE_PENDING);
    OUTCOME("a", PENDING, pcclSuccess, 2);
    end();

    begin("the vote fails on all alike when the time is over, and the next one waits anew");
    limits = (struct wire_limits){.least = 3, .wait_ms = 700};
    form("a", 0);
    vote("a", WIRE_VOTE_UPDATE);
    join('b', 0);
    pass(600, "ab");
    CHECK(quiet("ab"));
    pass(200, "ab");
    OUTCOME("a", UPDATE, pcclTooFewPeers, 1);
    CHECK(quiet("b"));
    vote("a", WIRE_VOTE_UPDATE);
    pass(600, "ab");
    CHECK(quiet("ab"));
    join('c', 0);
    linked("abc", CANDIDATE("abc", "abc"), "");
    EPOCH("abc", UPDATE, 2, 2, "abc");
    end();

    begin("a newcomer that cannot be reached does not make the run large enough");
    limits = (struct wire_limits){.least = 2, .wait_ms = 60000};
    form("a", 0);
    vote("a", WIRE_VOTE_UPDATE);
    join('b', 0);
    uint32_t attempt = CANDIDATE("ab", "ab");
    linked("a", attempt, "b");
    linked("b", attempt, "a");
    pass(200, "ab");
    REFUSED('b', "");
    CHECK(quiet("a"));
    join('c', 0);
    linked("ac", CANDIDATE("ac", "ac"), "");
    EPOCH("ac", UPDATE, 2, 2, "ac");
    end();

    begin("the newcomer that it waited for dies");
    form("a", 0);
    vote("a", WIRE_VOTE_UPDATE);
    join('b', 0);
    CANDIDATE("ab", "ab");
    die('b');
    CHECK(quiet("a"));
    join('c', 0);
    linked("ac", CANDIDATE("ac", "ac"), "");
    EPOCH("ac", UPDATE, 2, 2, "ac");
    end();
    limits = (struct wire_limits){0};
}

static void test_most(void) {
    begin("newcomers beyond the maximum wait, and nobody is asked to let them in");
    limits = (struct wire_limits){.most = 2};
    form("ab", 0);
    join('c', 0);
    join('d', 0);
    vote("ab", WIRE_VOTE_PENDING);
    OUTCOME("ab", PENDING, pcclSuccess, 0);
    vote("ab", WIRE_VOTE_UPDATE);
    OUTCOME("ab", UPDATE, pcclSuccess, 0);
    CHECK(quiet("cd"));
    die('a');
    EPOCH("b", LOSS, 3, 3, "b");
    vote("b", WIRE_VOTE_PENDING);
    OUTCOME("b", PENDING, pcclSuccess, 1);
    vote("b", WIRE_VOTE_UPDATE);
    linked("bc", CANDIDATE("bc", "bc"), ""); // the one that came first
    EPOCH("bc", UPDATE, 4, 4, "bc");
    CHECK(quiet("d"));
    end();

    begin("a spare that has gone keeps no place, and one of another group is as good");
    form("a", 0);
    join('b', 0);
    join('c', 5);
    join('d', 0);
    die('b');
    vote("a", WIRE_VOTE_UPDATE);
    linked("ac", CANDIDATE("ac", "ac"), "");
    EPOCH("a", UPDATE, 2, 1, "ac");
    EPOCH("c", UPDATE, 2, 2, "ac");
    end();

    begin("the first members are not more either");
    form("a", 0);
    for (char p = 'b'; p <= 'd'; p++) join(p, 0);
    die('a');
    for (char p = 'b'; p <= 'd'; p++) welcomed(p);
    linked("bc", CANDIDATE("bc", "bc"), "");
    EPOCH("bc", UPDATE, 1, 1, "bc");
    end();
    limits = (struct wire_limits){0};
}

static void test_told(void) {
    begin("who waits for more peers is told how many there are");
    limits = (struct wire_limits){.least = 3, .wait_ms = 60000};
    form("a", 0);
    vote("a", WIRE_VOTE_UPDATE);
    join('b', 0);
    pass(9900, "ab");
    CHECK(quiet("ab"));
    pass(200, "ab");
    text_at(__LINE__, 'a', WIRE_WAITING,
            "update_topology has waited for more peers for 10 s: 2 of at least 3 are there");
    text_at(__LINE__, 'b', WIRE_WAITING, "the run has waited for more peers for 10 s: 2 of at least 3 are there");
    end();

    begin("a spare is told that it is one");
    limits = (struct wire_limits){.most = 2};
    form("ab", 0);
    join('c', 0);
    pass(10100, "abc");
    text_at(__LINE__, 'c', WIRE_WAITING, "waiting as a spare for 10 s: the run has its maximum of 2 members");
    end();
    limits = (struct wire_limits){0};
}

static void test_equal(void) {
    begin("a peer with other limits than the run is refused");
    limits = (struct wire_limits){.least = 1, .most = 3, .wait_ms = 5};
    form("ab", 0);
    for (int i = 0; i < 3; i++) {
        limits = (struct wire_limits){.least = i == 0 ? 2 : 1, .most = i == 1 ? 2 : 3, .wait_ms = i == 2 ? 6 : 5};
        hello_from((char)('c' + i), 0, address_of('c'));
        REFUSED((char)('c' + i), "and the run 1, 3 and 0.005 s; give all peers the same");
    }
    limits = (struct wire_limits){.least = 1, .most = 3, .wait_ms = 5};
    join('f', 0);
    die('a'), die('b'), die('f');
    drain("abf");
    limits = (struct wire_limits){0};
    join('g', 0); // another run, with limits of its own
    EPOCH("g", UPDATE, 1, 1, "g");
    end();
}

int main(void) {
    test_least();
    test_most();
    test_told();
    test_equal();
    return check_status();
}
