// Links that break between living members: when they are made again, and who is expelled.
#include "master/breaks.h"

#include <string.h>

#include "seats.h"

static struct breaks breaks;

static void begin(const char *name, const char *members) {
    memset(peers, 0, sizeof peers);
    open_membership(name, members);
    breaks_begin(&breaks);
}

static void end(void) {
    breaks_fini(&breaks);
    close_membership();
}

// "ab" means that a misses its link to b; '!' behind it, that the link is silent, '?' that it is malformed, '#' that a
// card has failed.
static void miss(const char *words) {
    for (; *words; words += strchr("!?#", words[2]) != NULL && words[2] != 0 ? 3 : 2) {
        while (*words == ' ') words++;
        if (words[2] == '?') breaks_malformed(&breaks, &table, peer(words[0]), peer(words[1]));
        breaks_add(&breaks, &table, peer(words[0]), peer(words[1]),
                   words[2] == '!'   ? WIRE_LINK_SILENT
                   : words[2] == '?' ? WIRE_LINK_MALFORMED
                   : words[2] == '#' ? WIRE_LINK_CARD
                                     : WIRE_LINK_BROKEN);
    }
}

static void tick(void) {
    table.now_ns = breaks.due_ns;
    for (uint32_t i = 0; i < table.count; i++) membership_heard(&table, table.order[i], table.now_ns);
    breaks_tick(&breaks, &table, table.order[0]->group);
}

// The new epoch has come; `linked` have made all their links of it.
static void mend(const char *linked) {
    table.changed = false;
    breaks_begin(&breaks);
    for (; *linked; linked++)
        if (peer(*linked) != NULL) breaks_linked(&breaks, &table, peer(*linked));
}

static void test_first(void) {
    begin("after the grace a new epoch mends it, and nobody is blamed", "abc");
    int64_t now = table.now_ns;
    CHECK_EQ(breaks.due_ns, INT64_MAX);
    miss("ab");
    CHECK_EQ(breaks.due_ns, now + BREAKS_GRACE_MS * MS_NS);
    tick();
    CHECK(table.changed && peer('a')->group->changed);
    CHECK_STR(gone(), "");
    CHECK_EQ(breaks.due_ns, INT64_MAX);
    mend("abc");
    CHECK_EQ(breaks.count, 0);
    end();
}

static void test_card(void) {
    begin("a card that fails costs nobody, however often", "abc");
    for (int i = 0; i < 5; i++) {
        miss("ab# ba# ca#");
        tick();
        CHECK(table.changed);
        mend(i % 2 == 0 ? "" : "abc");
    }
    CHECK_STR(gone(), "");
    end();
}

struct row {
    const char *name, *again, *expelled; // `again`: of links that have failed once already, before both sides mended
};

static void test_second(void) {
    static const struct row rows[] = {
        {"of one pair the one that is reported", "ab", "b"},
        {"of two that report each other the one that joined later", "abba", "b"},
        {"the one with more broken pairs", "baca", "a"},
        {"whichever side told", "abac", "a"},
        {"two pairs apart: one of each", "abcd", "bd"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(rows[i].name, "abcd");
        miss(rows[i].again);
        tick();
        mend("");
        miss(rows[i].again);
        CHECK_EQ(breaks.due_ns, table.now_ns + table.limit_ns / BREAKS_HEARING_OF);
        tick();
        CHECK_STR(gone(), rows[i].expelled);
        end();
    }
}

static void test_word(void) {
    begin("nobody is judged before those concerned were heard", "abc");
    miss("ab");
    tick();
    mend("");
    table.now_ns++;
    miss("ab");
    table.now_ns = breaks.due_ns;
    breaks_tick(&breaks, &table, peer('a')->group);
    CHECK_STR(gone(), "");
    tick();
    CHECK_STR(gone(), "b");
    end();
}

static void test_silence(void) {
    begin("a link that falls silent again is no better for having been made again", "ab");
    miss("ab!");
    tick();
    mend("ab");
    CHECK_EQ(breaks.count, 1);
    miss("ab!");
    tick();
    CHECK_STR(gone(), "b");
    end();
    begin("what concerns a member that is out is forgotten", "abc");
    miss("ab");
    miss("bc");
    breaks_forget(&breaks, membership_slot(&table, peer('b')));
    CHECK_EQ(breaks.count, 0);
    end();
}

// Plays malformed reports, with all links made again after each, until somebody is gone. Returns the new epochs.
static uint32_t dispute(const char *const *reports, uint32_t count) {
    uint32_t epochs = 0;
    for (; epochs < 20 && *gone() == 0; epochs++) {
        miss(reports[epochs % count]);
        tick();
        if (*gone() != 0) break;
        mend("abcd");
    }
    return epochs;
}

static void test_malformed(void) {
    static const struct {
        const char *name, *reports[2], *expelled;
    } rows[] = {
        {"a sender that two report, though it came first", {"ba? ca?", "ba? ca?"}, "a"},
        {"the two report in turn, and the sender reports breaks as well", {"ba? ab", "ca? ac"}, "a"},
        {"one that reports two others lies", {"ab?", "ac?"}, "a"},
        {"a late one that reports one member alone goes itself", {"ca?", "ca?"}, "c"},
        {"of a pair that report each other the later", {"ab? ba?", "ba?"}, "b"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(rows[i].name, "abcd");
        CHECK(dispute(rows[i].reports, 2) < BREAKS_MALFORMED_PAIR_MAX);
        CHECK_STR(gone(), rows[i].expelled);
        end();
    }
    begin("one that cost another member its place is believed no second time", "abcd");
    dispute((const char *const[]){"ac?"}, 1);
    CHECK_STR(gone(), "c");
    breaks_forget(&breaks, membership_slot(&table, peer('c')));
    membership_remove(&table, peer('c'));
    peers['c' - 'a'] = NULL;
    mend("abd");
    miss("ab?");
    tick();
    CHECK_STR(gone(), "a");
    end();
    begin("a sender that comes again does not spend that of the member it harms", "abc");
    dispute((const char *const[]){"ac?"}, 1);
    CHECK_STR(gone(), "c");
    peer('a')->settled_join = 2; // the new one has joined since
    breaks_forget(&breaks, membership_slot(&table, peer('c')));
    peer('c')->gone = false;
    mend("abc");
    CHECK_EQ(dispute((const char *const[]){"ac?"}, 1), BREAKS_MALFORMED_PAIR_MAX - 1);
    CHECK_STR(gone(), "c");
    end();
    begin("reports far apart are counted anew", "ab");
    for (uint32_t i = 0; i < 2 * BREAKS_MALFORMED_PAIR_MAX; i++) {
        miss("ab?");
        tick();
        mend("ab");
        table.now_ns += BREAKS_DISPUTE_LIMITS * table.limit_ns;
    }
    CHECK_STR(gone(), "");
    end();
    begin("a report of an older group epoch counts, and makes no new epoch", "abc");
    breaks_malformed(&breaks, &table, peer('b'), peer('a'));
    tick();
    CHECK(!table.changed && breaks.count == 1 && breaks.pairs[0].malformed == 1);
    breaks_malformed(&breaks, &table, peer('b'), peer('a')); // once in a group epoch
    CHECK_EQ(breaks.pairs[0].malformed, 1);
    end();
}

int main(void) {
    test_card();
    test_first();
    test_second();
    test_word();
    test_silence();
    test_malformed();
    return check_status();
}
