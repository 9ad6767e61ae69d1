// Fencing: when a master is sure that nobody takes its run up elsewhere, and when it gives it up.
#include "master/quorum.h"

#include "seats.h"

static struct quorum quorum;

static void begin(const char *name, const char *members, uint8_t masters) {
    memset(peers, 0, sizeof peers);
    open_membership(name, members);
    table.number = 1;
    quorum = (struct quorum){0};
    for (const char *at = members; *at; at++) peer(*at)->masters = masters;
}

static void enter(const char *letters) {
    for (; *letters; letters++) quorum_entered(&quorum, peer(*letters), table.number);
}

static void lose(const char *letters) {
    for (; *letters; letters++) {
        quorum_ended(&quorum, peer(*letters));
        uint32_t kept = 0;
        for (uint32_t i = 0; i < table.count; i++)
            if (table.order[i] != peer(*letters)) table.order[kept++] = table.order[i];
        table.count = kept;
    }
}

static void test_taken_up(void) {
    struct wire_quorum needed = {.members = 3};
    begin("a run that was taken up is sure when a quorum has entered it", "abcd", 2);
    quorum_take_up(&quorum, &table, &needed);
    table.number++;
    enter("ab");
    enter("a");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_KEEPS);
    CHECK_EQ(quorum_announced(&quorum, &table).members, 3);
    enter("c");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_IS_SURE);
    CHECK_EQ(quorum_announced(&quorum, &table).members, 0);
    close_membership();

    begin("and given up when too few are left for that", "abcd", 2);
    quorum_take_up(&quorum, &table, &needed);
    table.number++;
    enter("a");
    lose("b");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_KEEPS);
    lose("c");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_GIVES_UP);
    close_membership();
}

static void test_newcomers(void) {
    begin("newcomers do not count as those that were there before", "abcd", 2);
    quorum_admits(&quorum, &table, 2, 3); // c and d are new
    table.number++;
    CHECK_EQ(quorum.needed.old_members, 1);
    enter("cd");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_KEEPS);
    enter("b");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_IS_SURE);
    close_membership();

    begin("one of those that leaves takes nothing up", "abc", 2);
    quorum_admits(&quorum, &table, 2, 3);
    table.number++;
    lose("a");
    CHECK_EQ(quorum.needed.old_members, 0);
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_KEEPS);
    close_membership();
}

static void test_silence(void) {
    static const struct {
        const char *name, *members;
        uint8_t masters;
        uint32_t first, second;
        int64_t apart_s;
        enum quorum_verdict verdict;
    } rows[] = {
        {"half may go", "abcd", 2, 1, 1, 1, QUORUM_KEEPS},
        {"more may not, as they are a majority elsewhere", "abcd", 2, 2, 1, 1, QUORUM_GIVES_UP},
        {"but with long between them", "abcd", 2, 2, 1, 4, QUORUM_KEEPS},
        {"or where nobody knows another master", "abcd", 1, 2, 2, 1, QUORUM_KEEPS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(rows[i].name, rows[i].members, rows[i].masters);
        CHECK_EQ(quorum_unheard(&quorum, &table, rows[i].first), QUORUM_KEEPS);
        table.now_ns += rows[i].apart_s * SECOND_NS;
        CHECK_EQ(quorum_unheard(&quorum, &table, rows[i].second), rows[i].verdict);
        close_membership();
    }
}

int main(void) {
    test_taken_up();
    test_newcomers();
    test_silence();
    return check_status();
}
