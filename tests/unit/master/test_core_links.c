// The master's state machine and links: those that break, and the order of the rings by what they carry.
#include "core_world.h"

static void test_links(void) {
    begin("a link breaks because its peer died");
    form("abc", 0);
    link_down('a', 'c');
    link_down('b', 'c');
    pass(10, "ab");
    die('c');
    EPOCH("ab", LOSS, 3, 3, "ab");
    pass(2 * BREAKS_GRACE_MS, "ab");
    end();

    begin("a link breaks and is made again");
    form("abc", 0);
    link_down('a', 'c');
    CHECK(quiet("abc"));
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 3, 3, "abc");
    epochs[2] = 2;
    link_down('c', 'a'); // of the epoch before
    epochs[2] = 3;
    linked("abc", 0, "");
    pass(3 * BREAKS_GRACE_MS, "abc");
    link_down('c', 'a'); // it had worked in between: counted anew
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 4, 4, "abc");
    end();

    begin("twice: the one most report");
    form("abc", 0);
    link_down('b', 'a');
    link_down('c', 'a');
    link_down('a', 'b');
    pass(HEARING_MS, "abc");
    EPOCH("abc", RELINK, 3, 3, "abc");
    linked("c", 0, "");
    link_down('b', 'a');
    link_down('a', 'b');
    pass(HEARING_MS, "abc");
    EXPELLED('a', "1 of the 2 other members, reported by 2 members");
    EPOCH("bc", LOSS, 4, 4, "bc");
    end();

    begin("one break, which the other side sees only after the epoch that mends it");
    form("abc", 0);
    link_down('b', 'a');
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 3, 3, "abc");
    linked("bc", 0, "");
    link_down('a', 'b');
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 4, 4, "abc");
    linked("bc", 0, "");
    link_down('a', 'b');
    pass(HEARING_MS, "abc");
    EXPELLED('b', "failed twice");
    EPOCH("ac", LOSS, 5, 5, "ac");
    end();

    begin("twice, both report: the later joined");
    form("abc", 0);
    for (uint32_t i = 0; i < 2; i++) {
        link_down('b', 'a');
        link_down('a', 'b');
        pass(HEARING_MS, "abc");
        if (i == 0) EPOCH("abc", RELINK, 3, 3, "abc");
    }
    EXPELLED('b', "failed twice");
    EPOCH("ac", LOSS, 4, 4, "ac");
    end();

    begin("silent twice, though the links were made again in between: the one who does not speak");
    form("abc", 0);
    silent('a', 'b');
    silent('c', 'b');
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 3, 3, "abc");
    linked("abc", 0, "");
    pass(LIMIT_MS / 2, "abc");
    silent('a', 'b');
    pass(HEARING_MS, "abc");
    EXPELLED('b', "1 of the 2");
    EPOCH("ac", LOSS, 4, 4, "ac");
    end();

    begin("silent, and long after once more: made again");
    form("abc", 0);
    for (uint64_t epoch = 3; epoch < 6; epoch++) {
        silent('a', 'b');
        pass(BREAKS_GRACE_MS + 10, "abc");
        EPOCH("abc", RELINK, epoch, epoch, "abc");
        linked("abc", 0, "");
        pass(5 * LIMIT_MS, "abc");
    }
    end();

    begin("one peer loses all its links: the others stay");
    form("abcd", 0);
    for (uint32_t i = 0; i < 2; i++) {
        for (const char *p = "bcd"; *p; p++) {
            link_down(*p, 'a');
            link_down('a', *p);
        }
        pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abcd", RELINK, 3, 3, "abcd");
    }
    EXPELLED('a', "3 of the 3");
    EPOCH("bcd", LOSS, 4, 4, "bcd");
    end();

    begin("one loses its links to two others, and is the only one to tell: it goes, though it came first");
    form("abcd", 0);
    for (uint32_t i = 0; i < 2; i++) {
        link_down('a', 'b');
        link_down('a', 'c');
        pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abcd", RELINK, 3, 3, "abcd");
    }
    EXPELLED('a', "2 of the 3 other members, reported by 0 members");
    EPOCH("bcd", LOSS, 4, 4, "bcd");
    end();

    begin("the second of its pairs is told late, while another pair's first break is about to be mended");
    form("abcd", 0);
    link_down('a', 'b');
    link_down('c', 'a');
    pass(BREAKS_GRACE_MS + 10, "abcd");
    EPOCH("abcd", RELINK, 3, 3, "abcd");
    link_down('c', 'd');
    pass(BREAKS_GRACE_MS - 10, "abcd");
    link_down('a', 'b');
    link_down('b', 'a');
    pass(HEARING_MS / 2, "abcd");
    CHECK(quiet("abcd"));
    link_down('a', 'c');
    pass(HEARING_MS / 2 + 10, "abcd");
    EXPELLED('a', "2 of the 3");
    EPOCH("bcd", LOSS, 4, 4, "bcd");
    end();

    begin("one that nothing is heard of may be dead: nobody is blamed for its links");
    form("abcd", 0);
    for (uint32_t i = 0; i < 2; i++) {
        pass(10, "abc");
        link_down('c', 'd');
        link_down('b', 'd');
        link_down('a', 'b');
        if (i == 0) pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abcd", RELINK, 3, 3, "abcd");
    }
    pass(LIMIT_MS - 50, "abc");
    CHECK(quiet("abcd"));
    pass(100, "abc");
    EXPELLED('d', "no heartbeat");
    EPOCH("abc", LOSS, 4, 4, "abc");
    end();

    begin("a death does not wait for the hearing");
    form("abcd", 0);
    for (uint32_t i = 0; i < 2; i++) {
        link_down('a', 'b');
        link_down('a', 'c');
        if (i == 0) pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abcd", RELINK, 3, 3, "abcd");
    }
    die('d');
    EPOCH("abc", LOSS, 4, 4, "abc");
    pass(HEARING_MS, "abc");
    CHECK(quiet("abc")); // all links are to be made again
    end();

    begin("a fresh group epoch is wanted");
    form("abCD", 0);
    link_down('a', 'a');
    EPOCH("ab", RELINK, 3, 3, "abcd");
    EPOCH("cd", RELINK, 3, 2, "abcd");
    end();

    begin("a link of another group's member, of nobody");
    form("abC", 0);
    link_down('a', 'c');
    link_down('a', 'x');
    pass(5 * BREAKS_GRACE_MS, "abc");
    end();
}

// ---- order ----

// Answers all measurements of `peers`: `slow` names directed links "ab" of 1 MB/s, all others have 100. Returns how
// many were asked.
static uint32_t answer_measures(const char *peers, const char *const *slow) {
    uint32_t asked = 0;
    for (bool any = true; any;) {
        any = false;
        for (const char *p = peers; *p; p++) {
            struct box *box = &boxes[*p - 'a'];
            if (box->head == box->tail || box->frames[box->head].header.type != WIRE_MEASURE) continue;
            const struct frame *frame = TAKE(*p, WIRE_MEASURE);
            struct wire_measure measure;
            CHECK(wire_decode_measure(frame->body, frame->header.length, &measure));
            char to = (char)measure.target.bytes[0];
            uint64_t rate = 100 * 1000000;
            for (const char *const *s = slow; *s; s++)
                if ((*s)[0] == *p && (*s)[1] == to) rate = (*s)[2] == '0' ? 0 : 1000000;
            measured(rate == 0 ? *p : to, *p, to, rate);
            asked++;
            any = true;
        }
    }
    return asked;
}

static void test_optimise(void) {
    static const char *const none[] = {NULL};
    static const char *const slow[] = {"bc", "cd", NULL};
    begin("the slow links are avoided");
    form("abcd", 0);
    vote("abc", WIRE_VOTE_OPTIMIZE);
    CHECK(quiet("abcd"));
    vote("d", WIRE_VOTE_OPTIMIZE);
    CHECK_EQ(answer_measures("abcd", slow), 12);
    uint32_t attempt = 0;
    const struct frame *frame = TAKE('a', WIRE_CANDIDATE);
    struct wire_candidate candidate = {.epoch.members = members};
    CHECK(wire_decode_candidate(frame->body, frame->header.length, &candidate));
    attempt = candidate.attempt;
    char order[6] = {0};
    for (int i = 0; i < 4; i++) order[i] = (char)members[i].id.bytes[0];
    order[4] = order[0];
    CHECK(strstr(order, "bc") == NULL && strstr(order, "cd") == NULL);
    order[4] = 0;
    drain("bcd");
    linked("abcd", attempt, "");
    EPOCH("abcd", ORDER, 3, 3, order);
    vote("abcd", WIRE_VOTE_OPTIMIZE); // all is known, nothing better is found
    OUTCOME("abcd", OPTIMIZE, 0, 0);
    end();

    begin("all links alike: the order stays");
    form("abc", 0);
    vote("abc", WIRE_VOTE_OPTIMIZE);
    CHECK_EQ(answer_measures("abc", none), 6);
    OUTCOME("abc", OPTIMIZE, 0, 0);
    join('d', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    linked("abcd", CANDIDATE("abcd", "abcd"), "");
    EPOCH("abcd", UPDATE, 3, 3, "abcd");
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    CHECK_EQ(answer_measures("abcd", none), 6); // only those of the new member
    OUTCOME("abcd", OPTIMIZE, 0, 0);
    end();

    begin("the order cannot be linked");
    form("abcd", 0);
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    answer_measures("abcd", slow);
    frame = TAKE('a', WIRE_CANDIDATE);
    CHECK(wire_decode_candidate(frame->body, frame->header.length, &candidate));
    drain("bcd");
    linked("abc", candidate.attempt, "");
    linked("d", candidate.attempt, "a");
    OUTCOME("abcd", OPTIMIZE, 12, 0);
    end();

    begin("nobody answers");
    form("abc", 0);
    vote("abc", WIRE_VOTE_OPTIMIZE);
    pass(10 * (LIMIT_MS + 200), "abc");
    drain("abc");
    vote("abc", WIRE_VOTE_PENDING); // the optimisation has ended
    OUTCOME("abc", PENDING, 0, 0);
    end();

    begin("a death between measurements");
    form("abcd", 0);
    join('e', 0);
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    drain("abcd");
    die('c');
    EPOCH("abd", LOSS, 3, 3, "abd");
    CHECK(answer_measures("abd", none) <= 6);
    OUTCOME("abd", OPTIMIZE, 0, 0);
    CHECK(quiet("e"));
    end();

    begin("a death while the order is linked");
    form("abcd", 0);
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    answer_measures("abcd", slow);
    drain("abcd");
    die('d');
    EPOCH("abc", LOSS, 3, 3, "abc");
    frame = TAKE('a', WIRE_CANDIDATE); // bc is slow: acb
    CHECK(wire_decode_candidate(frame->body, frame->header.length, &candidate));
    drain("bc");
    linked("abc", candidate.attempt, "");
    EPOCH("abc", ORDER, 4, 4, "acb");
    end();
}

int main(void) {
    test_links();
    test_optimise();
    return check_status();
}
