// Who is told, when, that it waits for whom.
#include "master/waits.h"

#include "seats.h"

static struct failure_counts failure_counts;

static void begin(const char *name, const char *members) {
    memset(peers, 0, sizeof peers);
    open_membership(name, members);
    failure_counts_init(&failure_counts, table.limit_ns);
}

static void vote(const char *letters, uint8_t kind) {
    for (; *letters; letters++) membership_set_vote(&table, peer(*letters), kind);
}

// Those that are told something within so long, in the order in which it is said.
static const char *pass(int64_t ms, bool idle) {
    hush();
    int64_t until = table.now_ns + ms * MS_NS;
    while (table.warn_at <= until) {
        table.now_ns = table.warn_at;
        waits_tick(&table, &failure_counts, idle);
    }
    table.now_ns = until;
    return told(WIRE_WAITING);
}

static void text_is(const char *want) {
    struct wire_text text;
    size_t length;
    const uint8_t *body = last_body(WIRE_WAITING, &length);
    REQUIRE(wire_decode_text(body, length, &text));
    text.chars[text.length < WIRE_MAX_TEXT ? text.length : WIRE_MAX_TEXT - 1] = 0;
    CHECK_STR((char *)text.chars, want);
}

static void test_members(void) {
    begin("those that have voted are told for whom they wait, ever more rarely", "abc");
    CHECK_EQ(table.warn_at, INT64_MAX);
    vote("ac", WIRE_VOTE_UPDATE);
    CHECK_STR(pass(MEMBERSHIP_WARN_MS - 1, true), "");
    CHECK_STR(pass(1 + MEMBERSHIP_WARN_MS / 2, true), "ac");
    text_is(
        "update_topology has waited for 1 of 3 members for 10 s: peer 62010203 (join 2) at 10.0.0.98:999, in no call "
        "that waits for all members");
    CHECK_STR(pass(MEMBERSHIP_WARN_MS, true), "ac"); // 20 s
    CHECK_STR(pass(MEMBERSHIP_WARN_MS, true), "");
    CHECK_STR(pass(MEMBERSHIP_WARN_MS, true), "ac"); // 40 s
    close_membership();

    begin("nobody is told while links are made for all, nor when nobody waits", "ab");
    vote("ab", WIRE_VOTE_OPTIMIZE);
    CHECK_STR(pass(3 * MEMBERSHIP_WARN_MS, false), "");
    vote("ab", 0);
    CHECK_STR(pass(3 * MEMBERSHIP_WARN_MS, true), "");
    CHECK_EQ(table.warn_at, INT64_MAX);
    close_membership();
}

static void test_groups(void) {
    begin("shared state concerns the own group alone", "ab");
    seat("cd", 1);
    vote("acd", WIRE_VOTE_SYNC);
    CHECK_STR(pass(MEMBERSHIP_WARN_MS, true), "a");
    text_is(
        "sync_shared_state has waited for 1 of 2 members for 10 s: peer 62010203 (join 2) at 10.0.0.98:999, in no call "
        "that waits for all members");
    close_membership();
}

static void test_newcomers(void) {
    begin("newcomers hear who has not called, or that they stand behind", "ab");
    membership_begin_wait(&table, come('n', 0));
    vote("a", WIRE_VOTE_UPDATE);
    CHECK_STR(pass(MEMBERSHIP_WARN_MS, true), "an");
    text_is("waiting to be admitted: 1 of 2 members has not called update_topology for 10 s: peer 62010203 (join 2) at "
            "10.0.0.98:999, in no call that waits for all members");
    for (int i = 0; i < 6; i++) failure_counts_add(&failure_counts, &peer('n')->member.address, table.now_ns);
    CHECK_STR(pass(MEMBERSHIP_WARN_MS, true), "an");
    text_is("waiting to be admitted: newcomers from this address failed to connect to members before, so others "
            "come first for 23 s more");
    close_membership();
}

int main(void) {
    test_members();
    test_groups();
    test_newcomers();
    return check_status();
}
