// The survey of links: which are measured together, and the order that follows.
#include "master/survey.h"

#include "seats.h"

static struct survey survey;

static void begin(const char *name, const char *members) {
    memset(peers, 0, sizeof peers);
    open_membership(name, members);
    survey_init(&survey);
    CHECK(survey_begin(&survey, &table));
}

static void end(void) {
    survey_fini(&survey);
    close_membership();
}

// "ab cd": the measurements of the round at hand.
static const char *planned(void) {
    static char text[128];
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < survey.count; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%c%c", i > 0 ? " " : "",
                               survey.measurements[i].from->member.id.bytes[0],
                               survey.measurements[i].to->member.id.bytes[0]);
    return text;
}

static void answer(char from, char to, char teller, uint64_t rate) {
    struct wire_measured measured = {
        .from = peer(from)->member.id, .to = peer(to)->member.id, .bytes_per_s = rate * 1000000};
    survey_measured(&survey, &table, peer(teller), &measured);
}

static void test_rounds(void) {
    begin("no host measures twice at a time, and links of the ring come first", "abc");
    static const char *const rounds[] = {"ab", "bc", "ca", "ac", "ba", "cb"};
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        hush();
        CHECK(survey_next(&survey, &table));
        CHECK_STR(planned(), rounds[i]);
        CHECK_EQ(told(WIRE_MEASURE)[0], rounds[i][0]);
        answer(rounds[i][0], rounds[i][1], (char)('a' + 'b' + 'c' - rounds[i][0] - rounds[i][1]), 5); // not concerned
        CHECK_EQ(survey.unanswered, 1);
        answer(rounds[i][0], rounds[i][1], rounds[i][0], 5);
        answer(rounds[i][0], rounds[i][1], rounds[i][1], 7); // again
        CHECK_EQ(survey.unanswered, 0);
    }
    CHECK(!survey_next(&survey, &table));
    CHECK_EQ(survey_group_rate(&survey, &table, peer('a')->group), 5);
    end();

    begin("two peers of one host are not measured beside each other", "abcd");
    peer('c')->member.address = peer('a')->member.address;
    CHECK(survey_begin(&survey, &table) && survey_next(&survey, &table));
    CHECK_STR(planned(), "ab");
    end();

    begin("apart they are", "abcd");
    CHECK(survey_next(&survey, &table));
    CHECK_STR(planned(), "ab cd");
    end();
}

static void test_ends(void) {
    begin("what cannot be measured is asked for again by the next survey alone", "ab");
    CHECK(survey_next(&survey, &table));
    survey_give_up_round(&survey, &table);
    CHECK(survey_next(&survey, &table));
    CHECK_STR(planned(), "ba");
    answer('b', 'a', 'a', 9);
    CHECK(!survey_next(&survey, &table));
    CHECK_EQ(survey_group_rate(&survey, &table, peer('a')->group), SURVEY_DEFAULT_MEGABYTES_PER_S);
    survey_end(&survey, &table);
    CHECK(survey_begin(&survey, &table) && survey_next(&survey, &table));
    CHECK_STR(planned(), "ab");
    end();

    begin("a survey has its time", "ab");
    table.now_ns += 61 * SECOND_NS;
    CHECK(!survey_next(&survey, &table));
    end();
}

static void test_order(void) {
    begin("the slow link is left out of the ring", "abcd");
    struct peer_record *order[4];
    while (survey_next(&survey, &table)) {
        uint32_t count = survey.count;
        for (uint32_t i = 0; i < count; i++) {
            char from = (char)survey.measurements[i].from->member.id.bytes[0];
            char to = (char)survey.measurements[i].to->member.id.bytes[0];
            answer(from, to, from, from + to == 'a' + 'b' ? 1 : 100);
        }
    }
    CHECK(survey_order(&survey, &table, order));
    for (uint32_t i = 0; i < 4; i++) {
        int sum = order[i]->member.id.bytes[0] + order[(i + 1) % 4]->member.id.bytes[0];
        CHECK(sum != 'a' + 'b');
    }
    survey_forget(&survey, membership_slot(&table, peer('c')));
    CHECK(survey_begin(&survey, &table) && survey_next(&survey, &table));
    CHECK_STR(planned(), "bc");
    end();
}

int main(void) {
    test_rounds();
    test_ends();
    test_order();
    return check_status();
}
