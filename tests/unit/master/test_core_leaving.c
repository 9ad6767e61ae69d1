// The master's state machine: members that announce that they leave.
#include "core_world.h"
#include "pccl.h"

// Told that it has left, and the connection is closed.
static void left_at(int line, char peer) {
    take_at(line, peer, WIRE_LEFT);
    check_that(boxes[peer - 'a'].closed, __FILE__, line, "closed");
}
#define LEFT(peer) left_at(__LINE__, peer)

// An EPOCH says why a member is gone.
static void gone_at(int line, const char *peers, char who, enum wire_loss_reason reason, const char *why) {
    static struct wire_gone gone[WIRE_MAX_MEMBERS];
    for (; *peers; peers++) {
        const struct frame *frame = take_at(line, *peers, WIRE_EPOCH);
        struct wire_epoch_commit commit = {.epoch.members = members, .gone = gone};
        check_that(wire_decode_epoch_commit(frame->body, frame->header.length, &commit), __FILE__, line, "decodes");
        check_equal(commit.gone_count, 1, __FILE__, line, "gone");
        check_equal(gone[0].id.bytes[0], id_of(who).bytes[0], __FILE__, line, "who");
        check_equal(gone[0].reason, reason, __FILE__, line, "reason");
        check_that(strcmp(gone[0].why, why) == 0, __FILE__, line, gone[0].why);
        epochs[*peers - 'a'] = commit.epoch.number;
    }
}
#define GONE(peers, who, reason, why) gone_at(__LINE__, peers, who, reason, why)

static const char *removed_by(char peer, bool at_update, const char *by) {
    struct wire_remove remove = {.id = id_of(peer), .at_update = at_update};
    snprintf(remove.by, sizeof remove.by, "%s", by);
    const char *why;
    act((inside = true, core_remove(m, now, &remove, &why)));
    return why;
}

static const char *removed(char peer, bool at_update) { return removed_by(peer, at_update, ""); }

static void test_who_asks(void) {
    begin("who has a member removed, and what for, is in its own error and in what the others hear of it");
    form("abcd", 0);
    CHECK(removed_by('b', false, "alice@host: a disk fails") == NULL);
    EXPELLED('b', "the operator removed it (alice@host: a disk fails)");
    GONE("acd", 'b', WIRE_LOSS_EXPELLED, "the operator removed it (alice@host: a disk fails)");
    CHECK(removed_by('c', true, "bob@host") == NULL);
    LEAVING("acd", 'c', WIRE_WITHIN_UNKNOWN, true);
    vote("acd", WIRE_VOTE_UPDATE);
    LEFT('c');
    GONE("ad", 'c', WIRE_LOSS_DRAINED, "the operator drained it (bob@host)");
    OUTCOME("ad", UPDATE, pcclSuccess, 0);
    end();
}

static void test_removal(void) {
    begin("the operator drains a member: it leaves at the next update");
    form("abc", 0);
    CHECK(removed('b', true) == NULL);
    LEAVING("abc", 'b', WIRE_WITHIN_UNKNOWN, true);
    vote("abc", WIRE_VOTE_UPDATE);
    LEFT('b');
    EPOCH("ac", LOSS, 3, 3, "ac");
    OUTCOME("ac", UPDATE, pcclSuccess, 0);
    CHECK_STR(removed('b', true), "there is no such peer in the run");
    end();

    begin("the operator expels a member, and a newcomer");
    form("abc", 0);
    CHECK(removed('b', false) == NULL);
    EXPELLED('b', "the operator removed it");
    EPOCH("ac", LOSS, 3, 3, "ac");
    join('d', 0);
    CHECK_STR(removed('d', true), "this peer is no member yet; expel it instead");
    CHECK(removed('d', false) == NULL);
    REFUSED('d', "the operator removed it");
    CHECK(quiet("ac"));
    end();
}

static void test_leaving(void) {
    begin("all are told, and the next update takes it out");
    form("abc", 0);
    leaving('b', 2000, true);
    LEAVING("abc", 'b', 2000, true);
    vote("abc", WIRE_VOTE_PENDING);
    OUTCOME("abc", PENDING, pcclSuccess, 2);
    vote("ab", WIRE_VOTE_UPDATE);
    CHECK(quiet("abc"));
    vote("c", WIRE_VOTE_UPDATE);
    LEFT('b');
    EPOCH("ac", LOSS, 3, 3, "ac");
    OUTCOME("ac", UPDATE, pcclSuccess, 0);
    vote("ac", WIRE_VOTE_PENDING);
    OUTCOME("ac", PENDING, pcclSuccess, 0);
    CHECK(!core_status(m, now).completed);
    end();

    begin("a newcomer takes its place in the same update");
    limits = (struct wire_limits){.least = 2, .most = 2, .wait_ms = 60000};
    form("ab", 0);
    join('c', 0);
    leaving('a', WIRE_WITHIN_UNKNOWN, true);
    LEAVING("ab", 'a', WIRE_WITHIN_UNKNOWN, true);
    vote("ab", WIRE_VOTE_UPDATE);
    LEFT('a');
    EPOCH("b", LOSS, 3, 3, "b");
    linked("bc", CANDIDATE("bc", "bc"), "");
    EPOCH("bc", UPDATE, 4, 4, "bc");
    leaving('b', 5, true); // the others wait for a replacement
    LEAVING("bc", 'b', 5, true);
    vote("bc", WIRE_VOTE_UPDATE);
    LEFT('b');
    EPOCH("c", LOSS, 5, 5, "c");
    CHECK(quiet("c"));
    limits.most = 0;
    end();
    limits = (struct wire_limits){0};

    begin("the announcement comes while the others wait in the update");
    form("abc", 0);
    vote("ab", WIRE_VOTE_UPDATE);
    leaving('c', 0, true);
    LEAVING("abc", 'c', 0, true);
    vote("c", WIRE_VOTE_UPDATE);
    LEFT('c');
    EPOCH("ab", LOSS, 3, 3, "ab");
    OUTCOME("ab", UPDATE, pcclSuccess, 0);
    end();

    begin("while a candidate is made: it leaves at the next update");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE("abc", "abc");
    leaving('a', 700, true);
    LEAVING("ab", 'a', 700, true);
    now += 100 * MS_NS;
    linked("abc", attempt, "");
    EPOCH("abc", UPDATE, 3, 3, "abc");
    LEAVING("abc", 'a', 600, true); // for the newcomer
    vote("abc", WIRE_VOTE_PENDING);
    OUTCOME("abc", PENDING, pcclSuccess, 2);
    vote("abc", WIRE_VOTE_UPDATE);
    LEFT('a');
    EPOCH("bc", LOSS, 4, 4, "bc");
    OUTCOME("bc", UPDATE, pcclSuccess, 0);
    end();

    begin("several at once, of several groups, and then all");
    form("abCD", 0);
    leaving('a', 1, true);
    LEAVING("abcd", 'a', 1, true);
    leaving('c', 1, true);
    LEAVING("abcd", 'c', 1, true);
    vote("abcd", WIRE_VOTE_UPDATE);
    LEFT('a');
    LEFT('c');
    EPOCH("b", LOSS, 3, 3, "bd");
    EPOCH("d", LOSS, 3, 3, "bd");
    OUTCOME("bd", UPDATE, pcclSuccess, 0);
    leaving('b', 1, true);
    leaving('d', 1, true);
    drain("bd");
    vote("bd", WIRE_VOTE_UPDATE);
    LEFT('b');
    LEFT('d');
    CHECK_EQ(core_peer_count(m), 0);
    CHECK(!core_status(m, now).completed); // a replacement may come
    end();

    begin("one that dies before is lost, and one that stays harms nobody");
    form("abc", 0);
    leaving('b', 0, true);
    leaving('c', 0, true);
    drain("abc");
    die('b');
    EPOCH("ac", LOSS, 3, 3, "ac");
    pass(5000, "ac");
    CHECK(quiet("ac"));
    end();
}

static void test_told(void) {
    begin("one that leaves by itself is in no hurry to be taken out");
    form("ab", 0);
    leaving('a', 9, false);
    LEAVING("ab", 'a', 9, false);
    vote("ab", WIRE_VOTE_PENDING);
    OUTCOME("ab", PENDING, pcclSuccess, 0);
    vote("ab", WIRE_VOTE_UPDATE);
    OUTCOME("ab", UPDATE, pcclSuccess, 0);
    leaving('a', 8, true); // the last one counts
    LEAVING("ab", 'a', 8, true);
    vote("ab", WIRE_VOTE_UPDATE);
    LEFT('a');
    EPOCH("b", LOSS, 3, 3, "b");
    OUTCOME("b", UPDATE, pcclSuccess, 0);
    end();

    begin("nobody announces that another one leaves, nor a newcomer anything");
    form("abc", 0);
    struct wire_buffer out = {0};
    struct wire_leaving message = {.id = id_of('b')};
    wire_encode_leaving(&out, head('a'), &message);
    say('a', &out);
    EXPELLED('a', "another member leaves");
    EPOCH("bc", LOSS, 3, 3, "bc");
    join('d', 0);
    leaving('d', 1, true);
    REFUSED('d', "before it was admitted");
    end();
}

int main(void) {
    test_leaving();
    test_told();
    test_removal();
    test_who_asks();
    return check_status();
}
