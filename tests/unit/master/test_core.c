// The master's state machine: who is admitted, votes, groups, bad peers, runs and refused memory. See also
// test_core_*.c.
#include "core_world.h"

// Memory is refused to the state machine alone, from the `refuse_at`-th request inside it on, `refuse_count` times.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_REFUSE 1
static uint64_t requests, refuse_at = UINT64_MAX, refuse_count;
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
static bool refused(void) { return inside && ++requests >= refuse_at && requests < refuse_at + refuse_count; }
void *malloc(size_t size) { return refused() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return refused() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return refused() ? NULL : __libc_realloc(old, size); }
#endif

// ---- joining ----

static void precopy(char peer, uint8_t copies) {
    struct wire_buffer out = {0};
    wire_encode_precopy(&out, head(peer), &(struct wire_precopy){.copies = copies});
    say(peer, &out);
}

static void check_donors(char peer, const char *want) {
    struct wire_donors donors;
    const struct frame *frame = TAKE(peer, WIRE_DONORS);
    CHECK(wire_decode_donors(frame->body, frame->header.length, &donors));
    CHECK_EQ(donors.count, strlen(want));
    for (uint32_t i = 0; i < donors.count; i++) {
        struct wire_id id = id_of(want[i]);
        struct wire_address address = address_of(want[i]);
        CHECK(wire_id_equal(&donors.donors[i].id, &id));
        CHECK_MEM(donors.donors[i].reach.addresses[0].bytes, address.bytes, sizeof address.bytes);
        CHECK_EQ(donors.donors[i].reach.addresses[0].port, 48149);
    }
}

static void test_precopy(void) {
    begin("a newcomer that copies the state is not admitted before it is up to date");
    form("abC", 0);
    join('d', 0);
    precopy('d', 1);
    check_donors('d', "ba"); // of its group, from another one than the next newcomer on
    vote("abc", WIRE_VOTE_PENDING);
    OUTCOME("abc", PENDING, 0, 0);
    vote("abc", WIRE_VOTE_UPDATE);
    OUTCOME("abc", UPDATE, 0, 0);
    pass(2 * MEMBERSHIP_WARN_MS, "abcd");
    CHECK(quiet("d")); // it waits for nobody's call
    precopy('d', WIRE_COPY_ADVANCES);
    vote("abc", WIRE_VOTE_PENDING);
    OUTCOME("abc", PENDING, 0, 0); // it copies still
    precopy('d', 0);
    precopy('d', WIRE_COPY_ADVANCES); // from another donor; it stays admissible
    vote("abc", WIRE_VOTE_PENDING);
    OUTCOME("abc", PENDING, 0, 1);
    vote("abc", WIRE_VOTE_UPDATE);
    linked("abcd", CANDIDATE("abcd", "abdc"), "");
    EPOCH("abd", UPDATE, 3, 3, "abdc");
    EPOCH("c", UPDATE, 3, 2, "abdc");
    check_case("a member that says it too changes nothing");
    precopy('d', 1);
    CHECK(quiet("d"));
    vote("abcd", WIRE_VOTE_PENDING);
    OUTCOME("abcd", PENDING, 0, 0);
    end();

    begin("it says so in its HELLO, so no vote comes before its PRECOPY");
    form("ab", 0);
    copies_first = true;
    join('c', 0);
    copies_first = false;
    vote("ab", WIRE_VOTE_UPDATE);
    OUTCOME("ab", UPDATE, 0, 0);
    precopy('c', 1);
    check_donors('c', "ba");
    precopy('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    CHECK(CANDIDATE("abc", "abc") > 0);
    end();

    begin("without a donor it waits as others do");
    form("a", 0);
    join('b', 1);
    precopy('b', 1);
    check_donors('b', "");
    vote("a", WIRE_VOTE_PENDING);
    OUTCOME("a", PENDING, 0, 1);
    end();

    begin("the members are lost while a newcomer copies: it begins the next run");
    form("ab", 0);
    join('c', 0);
    precopy('c', 1);
    check_donors('c', "ba");
    die('a');
    drain("bc");
    die('b');
    welcomed('c');
    precopy('c', 1);
    EPOCH("c", UPDATE, 1, 1, "c");
    end();

    begin("it is lost while it copies");
    form("ab", 0);
    join('c', 0);
    precopy('c', 1);
    check_donors('c', "ba");
    die('c');
    vote("ab", WIRE_VOTE_PENDING);
    OUTCOME("ab", PENDING, 0, 0);
    end();
}

static void test_first_peer(void) {
    begin("the first peer is accepted at once");
    CHECK_EQ(join('a', 7), 1);
    EPOCH("a", UPDATE, 1, 1, "a");
    CHECK_EQ(members[0].group, 7);
    CHECK_EQ(members[0].address.port, 48149);
    CHECK_EQ(members[0].address.bytes[3], 'a');
    CHECK_EQ(core_epoch(m), 1);
    vote("a", WIRE_VOTE_PENDING);
    OUTCOME("a", PENDING, 0, 0);
    vote("a", WIRE_VOTE_UPDATE);
    OUTCOME("a", UPDATE, 0, 0);
    vote("a", WIRE_VOTE_OPTIMIZE);
    OUTCOME("a", OPTIMIZE, 0, 0);
    end();
}

static void test_join(void) {
    begin("a newcomer waits for the update of the accepted");
    join('a', 0);
    EPOCH("a", UPDATE, 1, 1, "a");
    CHECK_EQ(join('b', 0), 2);
    CHECK(quiet("ab"));
    vote("a", WIRE_VOTE_PENDING);
    OUTCOME("a", PENDING, 0, 1);
    vote("a", WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE("ab", "ab");
    linked("a", attempt, "");
    CHECK(quiet("ab"));
    linked("b", attempt, "");
    EPOCH("ab", UPDATE, 2, 2, "ab");
    end();

    begin("two join at once, a third while their links are made");
    form("ab", 0);
    join('c', 0);
    join('d', 0);
    vote("a", WIRE_VOTE_UPDATE);
    CHECK(quiet("abcd"));
    vote("b", WIRE_VOTE_UPDATE);
    attempt = CANDIDATE("abcd", "abcd");
    join('e', 0);
    linked("dcba", attempt, "");
    EPOCH("abcd", UPDATE, 3, 3, "abcd");
    CHECK(quiet("e"));
    vote("abcd", WIRE_VOTE_UPDATE);
    attempt = CANDIDATE("abcde", "abcde");
    linked("abcde", attempt, "");
    EPOCH("abcde", UPDATE, 4, 4, "abcde");
    end();

    begin("a newcomer comes while votes are partly in");
    form("ab", 0);
    vote("a", WIRE_VOTE_UPDATE);
    join('c', 0);
    vote("b", WIRE_VOTE_UPDATE);
    linked("abc", CANDIDATE("abc", "abc"), "");
    EPOCH("abc", UPDATE, 3, 3, "abc");
    end();

    begin("an update without newcomers waits for all");
    form("ab", 0);
    vote("b", WIRE_VOTE_UPDATE);
    CHECK(quiet("ab"));
    vote("a", WIRE_VOTE_UPDATE);
    OUTCOME("ab", UPDATE, 0, 0);
    end();
}

static void test_bad_candidates(void) {
    begin("a newcomer dies while its links are made");
    form("ab", 0);
    join('c', 0);
    join('d', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    uint32_t first = CANDIDATE("abcd", "abcd");
    linked("ab", first, "");
    die('c');
    uint32_t second = CANDIDATE("abd", "abd");
    CHECK(second > first);
    linked("d", first, ""); // an answer to the former candidate
    linked("abd", second, "");
    EPOCH("abd", UPDATE, 3, 3, "abd");
    end();

    begin("the only newcomer dies: the update succeeds");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    CANDIDATE("abc", "abc");
    die('c');
    OUTCOME("ab", UPDATE, 0, 0);
    vote("ab", WIRE_VOTE_UPDATE);
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("a newcomer that cannot be reached is refused with the reason");
    form("ab", 0);
    join('c', 0);
    join('d', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    first = CANDIDATE("abcd", "abcd");
    linked("a", first, "");
    linked("b", first, "c");
    linked("c", first, "");
    CHECK(quiet("abcd"));
    linked("d", first, "");
    pass(BREAKS_GRACE_MS, "abcd");
    REFUSED('c', "between this peer and peer 62010203");
    second = CANDIDATE("abd", "abd");
    linked("abd", second, "");
    EPOCH("abd", UPDATE, 3, 3, "abd");
    end();

    begin("nobody can be admitted: the update still succeeds");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("abc", CANDIDATE("abc", "abc"), "c");
    pass(BREAKS_GRACE_MS, "abc");
    REFUSED('c', "; that one is dialled at 10.0.0.97:");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("a newcomer that reports everybody harms itself only");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    first = CANDIDATE("abc", "abc");
    linked("ab", first, "");
    linked("c", first, "ab");
    pass(BREAKS_GRACE_MS, "abc");
    REFUSED('c', "no data connection");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("a newcomer that nobody can dial waits for one that relays, where another one cannot be dialled either");
    form("ab", 0);
    reach = (struct wire_reach){.closed = 1};
    join('c', 0);
    join('d', 0);
    reach.relays = WIRE_RELAYS_OUTSIDE; // it needs none
    join('e', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("abce", CANDIDATE("abce", "abce"), "");
    EPOCH("abce", UPDATE, 3, 3, "abce");
    vote("abce", WIRE_VOTE_UPDATE);
    OUTCOME("abce", UPDATE, 0, 0);
    reach = (struct wire_reach){.relays = WIRE_RELAYS};
    join('f', 0);
    reach = (struct wire_reach){0};
    vote("abce", WIRE_VOTE_UPDATE);
    linked("abcdef", CANDIDATE("abcedf", "abcedf"), "");
    EPOCH("abcdef", UPDATE, 4, 4, "abcedf");
    end();

    begin("of two newcomers that cannot reach each other the later is left out");
    form("a", 0);
    join('c', 0);
    join('b', 0);
    join('d', 0);
    vote("a", WIRE_VOTE_UPDATE);
    first = CANDIDATE("acbd", "acbd");
    linked("ad", first, "");
    linked("c", first, "b");
    linked("b", first, "d"); // b goes because of c, so d may stay
    pass(BREAKS_GRACE_MS, "acbd");
    REFUSED('b', "peer 63010203");
    linked("acd", CANDIDATE("acd", "acd"), "");
    EPOCH("acd", UPDATE, 2, 2, "acd");
    end();

    begin("a newcomer that hangs is left out after the limit");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    first = CANDIDATE("abc", "abc");
    linked("ab", first, "");
    pass(LIMIT_MS + 20, "ab");
    REFUSED('c', "in time");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("a newcomer that lives but does not answer is left out");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("ab", CANDIDATE("abc", "abc"), "");
    pass(LIMIT_MS * 3 / 4, "abc"); // its own limit
    CHECK(quiet("abc"));
    pass(LIMIT_MS / 4, "abc");
    REFUSED('c', "in time");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("a newcomer without links to the accepted is not waited for when they have answered");
    form("ab", 0);
    join('c', 0);
    join('d', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    first = CANDIDATE("abcd", "abcd");
    linked("d", first, "");
    linked("a", first, "");
    CHECK(quiet("abcd"));
    linked("b", first, "c");
    pass(BREAKS_GRACE_MS, "abcd");
    REFUSED('c', "no data connection");
    linked("abd", CANDIDATE("abd", "abd"), "");
    EPOCH("abd", UPDATE, 3, 3, "abd");
    end();

    begin("from the second failure of an address on its newcomers wait behind others");
    form("ab", 0);
    for (int failures = 1; failures <= 2; failures++) {
        hello_from('c', 0, address_of('c'));
        TAKE('c', WIRE_WELCOME);
        vote("ab", WIRE_VOTE_UPDATE);
        linked("ab", CANDIDATE("abc", "abc"), "c");
        pass(BREAKS_GRACE_MS, "abc");
        REFUSED('c', "no data connection");
        OUTCOME("ab", UPDATE, 0, 0);
    }
    hello_from('c', 0, address_of('c'));
    TAKE('c', WIRE_WELCOME);
    vote("ab", WIRE_VOTE_PENDING);
    OUTCOME("ab", PENDING, 0, 0); // nobody whom an update would let in
    vote("ab", WIRE_VOTE_UPDATE);
    OUTCOME("ab", UPDATE, 0, 0);
    join('d', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("abd", CANDIDATE("abd", "abd"), "");
    EPOCH("abd", UPDATE, 3, 3, "abd");
    pass(2 * LIMIT_MS + 10, "abcd");
    vote("abd", WIRE_VOTE_PENDING);
    OUTCOME("abd", PENDING, 0, 1);
    vote("abd", WIRE_VOTE_UPDATE);
    linked("abdc", CANDIDATE("abdc", "abdc"), ""); // slow, but honest
    EPOCH("abdc", UPDATE, 4, 4, "abdc");
    end();

    begin("who has failed often is let in where nobody waits for it");
    form("a", 0);
    for (int failures = 1; failures <= 3; failures++) {
        hello_from('c', 0, address_of('c'));
        TAKE('c', WIRE_WELCOME);
        vote("a", WIRE_VOTE_UPDATE);
        if (failures < 3) {
            linked("a", CANDIDATE("ac", "ac"), "c");
            pass(BREAKS_GRACE_MS, "abc");
            REFUSED('c', "no data connection");
        }
        OUTCOME("a", UPDATE, 0, 0);
    }
    die('a');
    TAKE('c', WIRE_WELCOME);
    EPOCH("c", UPDATE, 1, 1, "c");
    end();

    begin("a waiting newcomer is lost in the tick that judges the candidate");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("ab", CANDIDATE("abc", "abc"), "");
    pass(LIMIT_MS / 2, "abc");
    join('d', 0);
    now += LIMIT_MS * MS_NS - 10 * MS_NS; // past the limit of the candidate
    for (const char *p = "abc"; *p; p++) simple(*p, WIRE_HEARTBEAT);
    now += 10 * MS_NS;
    act((inside = true, core_tick(m, now)));
    REFUSED('c', "in time");
    REFUSED('d', "no heartbeat");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("an accepted peer that does not answer is expelled");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("ac", CANDIDATE("abc", "abc"), "");
    pass(2 * LIMIT_MS, "abc");
    EXPELLED('b', "in time");
    EPOCH("a", LOSS, 3, 3, "a");
    linked("ac", CANDIDATE("ac", "ac"), "");
    EPOCH("ac", UPDATE, 4, 4, "ac");
    end();
}

static void test_loss_while_joining(void) {
    begin("an accepted peer dies while links are made");
    form("abc", 0);
    join('d', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE("abcd", "abcd");
    linked("ac", attempt, "");
    die('b');
    EPOCH("ac", LOSS, 3, 3, "ac");
    attempt = CANDIDATE("acd", "acd");
    linked("acd", attempt, "");
    EPOCH("acd", UPDATE, 4, 4, "acd");
    end();

    begin("two accepted peers cannot reach each other while a newcomer is admitted");
    form("abc", 0);
    join('d', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    attempt = CANDIDATE("abcd", "abcd");
    linked("acd", attempt, "");
    linked("b", attempt, "a");
    CHECK(quiet("abcd"));
    pass(BREAKS_GRACE_MS + 10, "abcd");
    EPOCH("abc", RELINK, 3, 3, "abc");
    attempt = CANDIDATE("abcd", "abcd");
    linked("abcd", attempt, "");
    EPOCH("abcd", UPDATE, 4, 4, "abcd");
    end();

    begin("the same twice: one of the two goes, the newcomer comes");
    form("abc", 0);
    join('d', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    for (uint32_t i = 0; i < 2; i++) {
        attempt = CANDIDATE("abcd", "abcd");
        linked("cd", attempt, "");
        linked("a", attempt, "b");
        linked("b", attempt, "a");
        pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abc", RELINK, 3, 3, "abc");
    }
    EXPELLED('b', "failed twice");
    EPOCH("ac", LOSS, 4, 4, "ac");
    linked("acd", CANDIDATE("acd", "acd"), "");
    EPOCH("acd", UPDATE, 5, 5, "acd");
    end();

    begin("the last accepted peer goes, newcomers wait");
    form("a", 0);
    join('b', 0);
    join('c', 1);
    simple('a', WIRE_LEAVE);
    CHECK(boxes[0].closed);
    welcomed('b');
    welcomed('c');
    attempt = CANDIDATE("bc", "bc");
    linked("bc", attempt, "");
    EPOCH("b", UPDATE, 1, 1, "bc");
    EPOCH("c", UPDATE, 1, 1, "bc");
    vote("bc", WIRE_VOTE_UPDATE);
    OUTCOME("bc", UPDATE, 0, 0);
    end();

    begin("the last accepted peer goes while links are made; another newcomer came later");
    form("a", 0);
    join('b', 0);
    vote("a", WIRE_VOTE_UPDATE);
    CANDIDATE("ab", "ab");
    join('c', 0);
    die('a');
    welcomed('b');
    welcomed('c');
    attempt = CANDIDATE("bc", "bc");
    linked("b", attempt, "");
    die('c');
    EPOCH("b", UPDATE, 1, 1, "b"); // alone: nothing to wait for
    end();
}

static void test_votes(void) {
    begin("a leave is the last missing vote");
    form("abc", 0);
    vote("ac", WIRE_VOTE_UPDATE);
    CHECK(quiet("abc"));
    simple('b', WIRE_LEAVE);
    EPOCH("ac", LOSS, 3, 3, "ac");
    OUTCOME("ac", UPDATE, 0, 0);
    end();

    begin("a leave is the last missing vote, a newcomer waits");
    form("abc", 0);
    join('d', 0);
    vote("ac", WIRE_VOTE_UPDATE);
    die('b');
    EPOCH("ac", LOSS, 3, 3, "ac");
    linked("acd", CANDIDATE("acd", "acd"), "");
    EPOCH("acd", UPDATE, 4, 4, "acd");
    end();

    begin("a voter leaves");
    form("abc", 0);
    vote("a", WIRE_VOTE_UPDATE);
    die('a');
    EPOCH("bc", LOSS, 3, 3, "bc");
    vote("bc", WIRE_VOTE_UPDATE);
    OUTCOME("bc", UPDATE, 0, 0);
    end();

    begin("pending: the same answer for all, also when a newcomer leaves");
    form("ab", 0);
    join('c', 5);
    vote("a", WIRE_VOTE_PENDING);
    CHECK(quiet("ab"));
    vote("b", WIRE_VOTE_PENDING);
    OUTCOME("ab", PENDING, 0, 1);
    die('c');
    vote("ab", WIRE_VOTE_PENDING);
    OUTCOME("ab", PENDING, 0, 0);
    end();

    begin("different votes wait for each other, and are told so, ever more rarely");
    form("ab", 0);
    vote("a", WIRE_VOTE_UPDATE);
    vote("b", WIRE_VOTE_PENDING);
    pass(MEMBERSHIP_WARN_MS - 100, "ab");
    CHECK(quiet("ab"));
    pass(200, "ab");
    text_at(
        __LINE__, 'a', WIRE_WAITING,
        "update_topology has waited for 1 of 2 members for 10 s: peer 62010203 (rank 1, join 2) at 10.0.0.98:48149, in "
        "are_peers_pending");
    text_at(__LINE__, 'b', WIRE_WAITING,
            "are_peers_pending has waited for 1 of 2 members for 10 s: peer 61010203 (rank 0, join 1) at "
            "10.0.0.97:48149, in "
            "update_topology");
    pass(MEMBERSHIP_WARN_MS - 400, "ab");
    CHECK(quiet("ab"));
    pass(400, "ab");
    text_at(__LINE__, 'a', WIRE_WAITING, "for 20 s");
    text_at(__LINE__, 'b', WIRE_WAITING, "for 20 s");
    pass(3 * MEMBERSHIP_WARN_MS / 2, "ab");
    CHECK(quiet("ab"));
    die('b');
    EPOCH("a", LOSS, 3, 3, "a");
    OUTCOME("a", UPDATE, 0, 0);
    pass(6 * MEMBERSHIP_WARN_MS, "a");
    CHECK(quiet("a"));
    end();

    begin("a newcomer hears whose update it waits for");
    form("ab", 0);
    join('c', 0);
    vote("a", WIRE_VOTE_UPDATE);
    pass(MEMBERSHIP_WARN_MS + 100, "abc");
    text_at(__LINE__, 'c', WIRE_WAITING,
            "waiting to be admitted: 1 of 2 members has not called update_topology for 10 s: peer 62010203 (rank 1, "
            "join 2) at "
            "10.0.0.98:48149");
    text_at(__LINE__, 'a', WIRE_WAITING, "update_topology has waited for 1 of 2 members");
    CHECK(quiet("abc"));
    vote("b", WIRE_VOTE_UPDATE);
    linked("abc", CANDIDATE("abc", "abc"), "");
    EPOCH("abc", UPDATE, 3, 3, "abc");
    pass(6 * MEMBERSHIP_WARN_MS, "abc");
    CHECK(quiet("abc"));
    end();

    begin("a newcomer hears that nobody calls, and a later wait is told of anew");
    form("ab", 0);
    join('c', 0);
    pass(MEMBERSHIP_WARN_MS + 100, "abc");
    text_at(__LINE__, 'c', WIRE_WAITING,
            "2 of 2 members have not called update_topology for 10 s: peer 61010203 (rank 0, join 1) at "
            "10.0.0.97:48149, in no "
            "call that waits for all members; peer 62010203");
    CHECK(quiet("abc"));
    for (int turn = 0; turn < 2; turn++) {
        vote("a", WIRE_VOTE_PENDING);
        pass(MEMBERSHIP_WARN_MS - 50, "abc");
        if (turn == 0) text_at(__LINE__, 'c', WIRE_WAITING, "for 20 s");
        CHECK(quiet("ab"));
        drain("c");
        vote("b", WIRE_VOTE_PENDING);
        OUTCOME("ab", PENDING, 0, 1);
    }
    end();

    begin("a second vote while one is open is a violation");
    form("ab", 0);
    vote("a", WIRE_VOTE_UPDATE);
    vote("a", WIRE_VOTE_PENDING);
    EXPELLED('a', "vote");
    EPOCH("b", LOSS, 3, 3, "b");
    end();
}

static void test_groups(void) {
    begin("groups 0, 0, 1, 1");
    form("aBcD", 0);
    join('e', 1);
    vote("abcd", WIRE_VOTE_UPDATE);
    linked("abcde", CANDIDATE("abcde", "acbde"), "");
    EPOCH("ac", UPDATE, 3, 2, "acbde"); // no newcomer in group 0: its ops run on
    EPOCH("bde", UPDATE, 3, 3, "acbde");
    die('d');
    EPOCH("ac", LOSS, 4, 2, "acbe");
    EPOCH("be", LOSS, 4, 4, "acbe");
    done("ac", 2, 9);
    VERDICT("ac", 2, 2, 9, COMMIT, 0, "");
    end();

    begin("a whole group goes");
    form("aB", 0);
    die('b');
    EPOCH("a", LOSS, 3, 1, "a");
    join('b', 1);
    vote("a", WIRE_VOTE_UPDATE);
    linked("ab", CANDIDATE("ab", "ab"), "");
    EPOCH("a", UPDATE, 4, 1, "ab");
    EPOCH("b", UPDATE, 4, 4, "ab");
    end();
}

// ---- bad peers, time, runs ----

static void test_refusals(void) {
    begin("another version");
    struct wire_hello hello = {.version = WIRE_VERSION + 1};
    struct wire_address address = address_of('a');
    act((inside = true, core_peer_connected(m, now, 0, &address, &hello)));
    char versions[128];
    snprintf(versions, sizeof versions,
             WIRE_FOREIGN "%d of the protocol (pccl " PCCL_VERSION "), and this peer another version, %d", WIRE_VERSION,
             WIRE_VERSION + 1);
    REFUSED('a', versions);
    CHECK_EQ(core_peer_count(m), 0);
    end();

    begin("loopback and network do not mix");
    struct wire_address loopback = {.family = 4, .bytes = {127, 0, 0, 1}},
                        loopback6 = {.family = 6, .bytes = {[15] = 1}};
    form("a", 0);
    hello_from('b', 0, loopback);
    REFUSED('b', "loopback");
    hello_from('b', 0, loopback6);
    REFUSED('b', "loopback");
    simple('a', WIRE_LEAVE);
    hello_from('a', 0, loopback);
    TAKE('a', WIRE_WELCOME);
    TAKE('a', WIRE_EPOCH);
    hello_from('b', 0, address_of('b'));
    REFUSED('b', "loopback");
    end();

    begin("a lone member that calls nothing for long, as while it loads a model, is not expelled for one of the other "
          "kind");
    hello_from('a', 0, loopback);
    TAKE('a', WIRE_WELCOME);
    TAKE('a', WIRE_EPOCH);
    pass(60000, "a");
    hello_from('b', 0, address_of('b'));
    REFUSED('b', "loopback");
    hello_from('c', 0, loopback);
    TAKE('c', WIRE_WELCOME);
    vote("a", WIRE_VOTE_UPDATE);
    CANDIDATE("ac", "ac");
    end();

    begin("of newcomers that wait for a run to begin most decide, not the first");
    core_configure(m, &(struct core_settings){.survivors_until_ns = now + 100 * MS_NS});
    hello_from('a', 0, loopback);
    hello_from('b', 0, address_of('b'));
    hello_from('c', 0, address_of('c'));
    now += 200 * MS_NS;
    act((inside = true, core_tick(m, now)));
    REFUSED('a', "some peers");
    TAKE('b', WIRE_WELCOME);
    TAKE('c', WIRE_WELCOME);
    CANDIDATE("bc", "bc");
    end();

    begin("an id twice");
    form("a", 0);
    hello = (struct wire_hello){.version = WIRE_VERSION, .id = id_of('a'), .lanes = 1, .port = 1, .masters = 1};
    act((inside = true, core_peer_connected(m, now, 1, &address, &hello)));
    REFUSED('b', "registered");
    end();
}

static void test_join_only(void) {
    begin("a peer that may only join begins no run");
    join_only = true;
    hello_from('a', 0, address_of('a'));
    REFUSED('a', "no run is under way");
    CHECK_EQ(core_peer_count(m), 0);
    join_only = false;
    form("b", 0);
    join_only = true;
    join('a', 0);
    vote("b", WIRE_VOTE_UPDATE);
    linked("ab", CANDIDATE("ba", "ba"), "");
    EPOCH("ba", UPDATE, 2, 2, "ba");
    simple('b', WIRE_LEAVE);
    EPOCH("a", LOSS, 3, 3, "a"); // a member goes on alone
    join_only = false;
    end();

    begin("the members go while it waits: nobody may begin the next run");
    form("a", 0);
    join_only = true;
    join('b', 0);
    join('c', 1);
    join_only = false;
    simple('a', WIRE_LEAVE);
    REFUSED('b', "no run is under way");
    REFUSED('c', "no run is under way");
    CHECK_EQ(core_peer_count(m), 0);
    end();

    begin("the members go while it waits, and another newcomer begins the next run");
    form("a", 0);
    join_only = true;
    join('b', 0);
    join_only = false;
    join('c', 0);
    die('a');
    welcomed('b');
    welcomed('c');
    linked("bc", CANDIDATE("bc", "bc"), "");
    EPOCH("bc", UPDATE, 1, 1, "bc");
    end();

    begin("the one that would have begun the next run goes, too");
    form("a", 0);
    join_only = true;
    join('b', 0);
    join_only = false;
    join('c', 0);
    die('a');
    welcomed('b');
    welcomed('c');
    CANDIDATE("bc", "bc");
    die('c');
    REFUSED('b', "no run is under way");
    CHECK_EQ(core_peer_count(m), 0);
    end();
}

static void test_violations(void) {
    static const enum wire_type wrong[] = {WIRE_HELLO,   WIRE_WELCOME,    WIRE_REFUSED,  WIRE_CANDIDATE,
                                           WIRE_EPOCH,   WIRE_OUTCOME,    WIRE_EXPELLED, WIRE_VERDICT,
                                           WIRE_MEASURE, WIRE_LINK_HELLO, WIRE_CHUNK};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        begin(wire_type_name((uint16_t)wrong[i]));
        form("ab", 0);
        struct wire_header header = head('a');
        header.type = (uint16_t)wrong[i];
        act((inside = true, core_message(m, now, 0, &header, NULL)));
        EXPELLED('a', wire_type_name((uint16_t)wrong[i]));
        EPOCH("b", LOSS, 3, 3, "b");
        header.type = WIRE_HEARTBEAT;
        act((inside = true, core_message(m, now, 0, &header, NULL))); // nobody any more
        end();
    }

    begin("a newcomer speaks out of turn");
    form("a", 0);
    join('b', 0);
    done("b", 0, 1);
    REFUSED('b', "before it was admitted");
    end();

    begin("stale run and generation are ignored, a future epoch is not");
    form("ab", 0);
    struct wire_header header = {.type = WIRE_LEAVE, .run = run + 1, .generation = generation, .epoch = 2};
    act((inside = true, core_message(m, now, 0, &header, NULL)));
    header = (struct wire_header){.type = WIRE_LEAVE, .run = run, .generation = generation + 1, .epoch = 2};
    act((inside = true, core_message(m, now, 0, &header, NULL)));
    CHECK(quiet("ab"));
    header = (struct wire_header){.type = WIRE_HEARTBEAT, .run = run, .generation = generation, .epoch = 3};
    act((inside = true, core_message(m, now, 0, &header, NULL)));
    EXPELLED('a', "does not exist");
    EPOCH("b", LOSS, 3, 3, "b");
    end();

    begin("noise in the body of every message");
    uint64_t seed = 42;
    for (uint32_t round = 0; round < 4000; round++) {
        form("abcd", 0);
        for (uint32_t i = 0; i < 4; i++) {
            uint8_t body[600];
            struct wire_buffer frame = {0};
            header = head('a');
            wire_encode_empty(&frame, header, WIRE_HEARTBEAT);
            header.type = (uint16_t)(1 + check_random(&seed) % 18);
            header.length = (uint32_t)(check_random(&seed) % sizeof body);
            for (size_t k = 0; k < header.length; k++) body[k] = (uint8_t)(check_random(&seed) % 3);
            uint8_t *exact = malloc(header.length + 1);
            memcpy(exact, body, header.length);
            act((inside = true, core_message(m, now, (uint32_t)(check_random(&seed) % 4), &header, exact)));
            free(exact);
            wire_buffer_fini(&frame);
        }
        for (char p = 'a'; p <= 'd'; p++) die(p);
        for (int c = 0; c < 4; c++) clear(&boxes[c]);
        CHECK_EQ(core_peer_count(m), 0);
    }
    end();
}

static void test_time(void) {
    begin("a silent peer is lost after the limit, and not before");
    form("abc", 0);
    pass(LIMIT_MS - 30, "ac");
    CHECK(quiet("abc"));
    pass(50, "ac");
    EXPELLED('b', "no heartbeat");
    EPOCH("ac", LOSS, 3, 3, "ac");
    end();

    begin("bytes of an unfinished frame count as life");
    form("ab", 0);
    for (int i = 0; i < 300; i++) {
        pass(10, "a");
        core_heard(m, now, 1);
    }
    CHECK(quiet("ab"));
    end();

    begin("what the data plane tells by itself does not");
    form("ab", 0);
    for (int i = 0; i < 9; i++) {
        pass(LIMIT_MS / 10, "a");
        struct wire_buffer frame = {0};
        static const struct wire_telemetry told = {.ops = {.live = 1}};
        wire_encode_telemetry(&frame, head('b'), &told);
        say('b', &frame);
    }
    CHECK(quiet("ab"));
    pass(LIMIT_MS / 5, "a");
    EXPELLED('b', "no heartbeat");
    EPOCH("a", LOSS, 3, 3, "a");
    end();

    begin("the master sends heartbeats");
    form("ab", 0);
    join('c', 0);
    size_t beats = 0;
    for (int i = 0; i < 100; i++) {
        now += 10 * MS_NS;
        for (const char *p = "abc"; *p; p++) simple(*p, WIRE_HEARTBEAT);
        if (core_next_deadline(m) > now) continue;
        const struct actions *actions = core_tick(m, now);
        beats += actions->send_count;
        CHECK_EQ(actions->close_count, 0);
    }
    CHECK(beats >= 3 * 4 && beats <= 3 * 6);
    end();
}

static void test_runs(void) {
    begin("an empty run ends; the next is another");
    form("ab", 0);
    uint64_t first = run;
    die('a');
    EPOCH("b", LOSS, 3, 3, "b");
    CHECK(!core_status(m, now).completed);
    simple('b', WIRE_LEAVE);
    CHECK_EQ(core_next_deadline(m), INT64_MAX);
    CHECK(core_status(m, now).completed); // a member left by itself
    CHECK_EQ(join('b', 3), 1);
    CHECK(!core_status(m, now).completed);
    CHECK(run != first && run != 0);
    EPOCH("b", UPDATE, 1, 1, "b");
    now += 7 * MS_NS;
    die('b');
    now += 5 * MS_NS;
    CHECK(!core_status(m, now).completed); // nobody left this one by itself
    CHECK_EQ(core_status(m, now).ended_ms, 5);
    end();

    begin("the run of newcomers that waited is not the one that was completed");
    CHECK_EQ(core_status(m, now).ended_ms, UINT64_MAX);
    form("a", 0);
    join('b', 0);
    simple('a', WIRE_LEAVE);
    welcomed('b');
    EPOCH("b", UPDATE, 1, 1, "b");
    die('b');
    CHECK(!core_status(m, now).completed);
    end();
}

#ifdef CAN_REFUSE
// What a peer does with everything it was sent; it may be expelled meanwhile.
static void apply(char peer) {
    struct box *box = &boxes[peer - 'a'];
    while (box->head < box->tail) {
        struct frame frame = box->frames[box->head++];
        struct wire_candidate candidate = {.epoch.members = members};
        struct wire_epoch_commit commit = {.epoch.members = members};
        struct wire_measure measure;
        char self[2] = {peer, 0};
        if (frame.header.type == WIRE_WELCOME) run = frame.header.run;
        if (frame.header.type == WIRE_CANDIDATE && wire_decode_candidate(frame.body, frame.header.length, &candidate))
            linked(self, candidate.attempt, "");
        if (frame.header.type == WIRE_MEASURE && wire_decode_measure(frame.body, frame.header.length, &measure))
            measured(peer, peer, (char)measure.target.bytes[0], 1000 * measure.target.bytes[0]);
        if (frame.header.type != WIRE_EPOCH || !wire_decode_epoch_commit(frame.body, frame.header.length, &commit))
            continue;
        bool entered = commit.epoch.group_epoch == commit.epoch.number;
        epochs[peer - 'a'] = commit.epoch.number;
        uint64_t begun = commit.epoch.number - 1;
        if (entered)
            REPORT(peer, commit.epoch.number, {begun, 1, 'O'}, {begun, 2, 'k'}, {begun, 3, 'D'},
                   {begun, (uint64_t)peer, 'o'});
    }
    for (size_t i = 0; i < box->tail; i++) free(box->frames[i].body);
    box->head = box->tail = 0;
}

static void apply_all(void) {
    for (int turn = 0; turn < 12; turn++)
        for (const char *p = "abcdef"; *p; p++) apply(*p);
}

static void vote_accepted(uint8_t kind) {
    for (char p[2] = "a"; *p <= 'f'; ++*p)
        if (epochs[*p - 'a'] != 0) vote(p, kind);
}

// A life with everything in it; who is still there does not matter.
static void live(void) {
    for (const char *p = "abcdef"; *p; p++) hello_from(*p, *p == 'f', address_of(*p));
    apply_all();
    vote_accepted(WIRE_VOTE_UPDATE);
    apply_all();
    uint64_t epoch = core_epoch(m);
    for (uint64_t tag = 0; tag < 40; tag++) done("abcde", epoch, tag);
    mismatch('b', epoch, 103, 'c');
    apply_all();
    vote_accepted(WIRE_VOTE_OPTIMIZE);
    apply_all();
    link_down('c', 'd');
    for (int i = 0; i < 5; i++) {
        now += 10 * MS_NS;
        for (const char *p = "abcdef"; *p; p++) simple(*p, WIRE_HEARTBEAT);
        act((inside = true, core_tick(m, now)));
    }
    apply_all();
    die('a');
    apply_all();
}

static void refuse_next(uint64_t granted, uint64_t count) {
    requests = 0;
    refuse_at = granted + 1;
    refuse_count = count;
}

// All connections are closed, nobody was expelled, and whoever comes next waits for those that may come back.
static void given_up(const char *peers) {
    refuse_at = UINT64_MAX;
    for (; *peers; peers++) {
        const struct box *box = &boxes[*peers - 'a'];
        CHECK(box->closed);
        for (size_t i = box->head; i < box->tail; i++) CHECK(box->frames[i].header.type != WIRE_EXPELLED);
    }
    CHECK_EQ(core_peer_count(m), 0);
    CHECK_EQ(core_activity(m), WIRE_IDLE);
    hello_from('f', 0, address_of('f'));
    CHECK_EQ(core_activity(m), WIRE_GATHERS);
}

static void test_starving(void) {
    begin("memory is refused for what a member says: nobody is expelled for it, the run is given up");
    form("abc", 0);
    drain("abc");
    refuse_next(0, 1);
    done("a", 2, 1);
    given_up("abc");
    end();

    begin("and for what members are told: none of them hears what comes after it");
    form("abc", 0);
    drain("abc");
    wire_buffer_fini((struct wire_buffer *)&core_tick(m, now)->bytes); // it has to be asked for again
    drain("abc");
    refuse_next(0, 1);
    die('c');
    for (const char *p = "ab"; *p; p++) CHECK_EQ(boxes[*p - 'a'].tail - boxes[*p - 'a'].head, 0);
    given_up("ab");
    end();

    begin("but a newcomer for which memory is refused is alone with that");
    form("ab", 0);
    drain("ab");
    wire_buffer_fini((struct wire_buffer *)&core_tick(m, now)->bytes);
    refuse_next(0, 1);
    hello_from('c', 0, address_of('c'));
    refuse_at = UINT64_MAX;
    CHECK(boxes['c' - 'a'].closed);
    CHECK_EQ(core_peer_count(m), 2);
    end();
}

static void test_memory(void) {
    begin("how much memory a life asks for");
    requests = 0;
    live();
    uint64_t all = requests;
    end();
    fprintf(stderr, "%llu requests for memory\n", (unsigned long long)all);
    CHECK(all > 20);
    for (uint64_t at = 1; at <= all; at++)
        for (uint64_t count = 1; count <= 64; count *= 8) {
            char name[64];
            snprintf(name, sizeof name, "request %llu refused %llu times", (unsigned long long)at,
                     (unsigned long long)count);
            begin(name);
            requests = 0;
            refuse_at = at;
            refuse_count = count;
            live();
            refuse_at = UINT64_MAX;
            for (char p = 'a'; p <= 'f'; p++) die(p);
            CHECK_EQ(core_peer_count(m), 0);
            for (int c = 0; c < PEERS; c++) clear(&boxes[c]);
            now += LIMIT_MS * MS_NS; // for which members of a run that was given up may come
            form("abC", 0);          // all is well again
            die('b');
            EPOCH("a", LOSS, 3, 3, "ac");
            EPOCH("c", LOSS, 3, 2, "ac");
            end();
        }
}
#endif

int main(void) {
    test_first_peer();
    test_precopy();
    test_join();
    test_bad_candidates();
    test_loss_while_joining();
    test_votes();
    test_groups();
    test_refusals();
    test_join_only();
    test_violations();
    test_time();
    test_runs();
#ifdef CAN_REFUSE
    test_starving();
    test_memory();
#endif
    return check_status();
}
