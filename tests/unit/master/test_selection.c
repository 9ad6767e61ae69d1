// When a group gets other weights, sites or another ring, from what its members tell.
#include "master/selection.h"

#include "seats.h"

static struct selection selection;
static struct matrix matrix;
static struct candidate candidate;
static const struct {
    uint64_t acked, backlogged;
} fast = {20 << 20, 10}, slow = {20 << 20, 900};

static void begin(const char *name, const char *members) {
    memset(peers, 0, sizeof peers);
    open_membership(name, members);
    candidate_init(&candidate);
    for (uint32_t i = 0; i < table.count; i++) table.order[i]->group->group_epoch = table.number = 5;
}

static void end(void) {
    selection_fini(&selection);
    memset(&selection, 0, sizeof selection);
    matrix_fini(&matrix);
    close_membership();
}

// Members with the same letter of `sites` are near each other. In a ring of them, edges to and from those in `slows`
// are full; `reports` from each member.
static void tell(const char *sites, const char *slows, uint64_t epoch, int reports) {
    static struct wire_telemetry told;
    for (uint32_t i = 0; i < table.count * (uint32_t)reports; i++) {
        const struct peer_record *from = table.order[i % table.count];
        told = (struct wire_telemetry){.ops = {.span_us = 1000000, .epoch = epoch}};
        for (uint32_t k = 0; k < table.count; k++) {
            const struct peer_record *to = table.order[k];
            if (to == from || to->group != from->group) continue;
            char a = (char)from->member.id.bytes[0], b = (char)to->member.id.bytes[0];
            bool full = strchr(slows, a) != NULL || strchr(slows, b) != NULL;
            bool next = to->rank == (from->rank + 1) % from->group->count;
            bool far = sites[a - 'a'] != sites[b - 'a'];
            told.others[told.count].id = to->member.id;
            told.others[told.count++].seen = (struct wire_seen){.acked = next ? fast.acked : 1,
                                                                .busy_us = 1000000,
                                                                .samples = 1000,
                                                                .backlogged = !next         ? 0
                                                                              : full || far ? slow.backlogged
                                                                                            : fast.backlogged,
                                                                .round_trip_us = far ? 80000 : 200};
        }
        matrix_note(&matrix, &table, from, &told);
    }
}

static bool plan(void) {
    candidate_form(&candidate, &table);
    return selection_plan(&selection, &matrix, &table, &candidate);
}

static const char *order(void) {
    static char letters[27];
    for (uint32_t i = 0; i < candidate.count; i++) letters[i] = (char)candidate.order[i]->member.id.bytes[0];
    letters[candidate.count] = 0;
    return letters;
}

static void test_one_slow(void) {
    begin("one slow member of four owns nothing", "abcd");
    tell("ssss", "c", 5, 3);
    CHECK(!plan()); // the first reports of an epoch are of two
    tell("ssss", "c", 5, 1);
    CHECK(plan());
    CHECK_STR(order(), "abcd");
    CHECK(candidate.weight[0] == WEIGHTS_WHOLE && candidate.weight[1] == WEIGHTS_WHOLE && candidate.weight[2] == 0);
    CHECK(candidate.weight[3] == WEIGHTS_WHOLE && candidate.site[0] == 0);
    CHECK(!plan()); // nothing new was told
    CHECK_EQ(candidate.weight[0], 0);
    tell("ssss", "", 5, 3);
    CHECK(!plan()); // nobody is slow any more
    tell("ssss", "c", 4, 4);
    CHECK(!plan()); // of another epoch
    end();
}

static void test_failed(void) {
    begin("a plan that could not come into force is left alone for a while", "abcd");
    tell("ssss", "c", 5, 4);
    CHECK(plan());
    selection_failed(&selection);
    for (int i = 0; i < 32; i++) {
        tell("ssss", "c", 5, 3);
        CHECK(!plan());
    }
    tell("ssss", "c", 5, 3);
    CHECK(plan());
    end();
}

static void test_sites(void) {
    begin("members of three sites in turn", "abcdef");
    tell("xyzxyz", "", 5, 4);
    CHECK(plan());
    CHECK_STR(order(), "adfceb"); // or any other one with three ways between sites
    CHECK(table.actions.log_count > 0);
    CHECK(strstr(table.actions.logs[0].text, "site, 17 % 17 % 17 % 17 % 17 % 17 % from") != NULL);
    for (uint32_t i = 0; i < 6; i++) {
        CHECK_EQ(candidate.site[i], 1 + (candidate.order[i]->member.id.bytes[0] - 'a') % 3);
        CHECK_EQ(candidate.weight[i], WEIGHTS_WHOLE);
    }
    end();
}

static void test_groups(void) {
    begin("each group by itself", "");
    seat("abc", 1);
    seat("defg", 2);
    for (uint32_t i = 0; i < table.count; i++) table.order[i]->group->group_epoch = 5;
    tell("sssssss", "e", 5, 4);
    CHECK(plan());
    for (uint32_t i = 0; i < 3; i++) CHECK_EQ(candidate.weight[i], 0);
    CHECK(candidate.weight[3] > 0 && candidate.weight[4] == 0);
    end();
}

static void test_stays(void) {
    begin("on one host", "abcd");
    for (char c = 'b'; c <= 'd'; c++) peer(c)->member.address.bytes[3] = 'a';
    tell("ssss", "c", 5, 4);
    CHECK(!plan());
    end();
    begin("two members", "ab");
    tell("xy", "a", 5, 4);
    CHECK(!plan());
    end();
    begin("one of whom nothing is known", "abcd");
    tell("ssss", "c", 5, 4);
    matrix.rows[membership_slot(&table, peer('d'))]->id.bytes[0]++;
    CHECK(!plan());
    end();
}

static void test_newcomer(void) {
    begin("a newcomer gets a fair weight, and members keep theirs", "abc");
    peer('a')->member.weight = 100;
    peer('c')->member.weight = 300;
    peer('c')->member.site = 2;
    come('n', 0)->invited = true;
    CHECK(candidate_form(&candidate, &table));
    CHECK_EQ(candidate.count, 4);
    CHECK(candidate.weight[0] == 100 && candidate.weight[1] == 0 && candidate.weight[2] == 300);
    CHECK(candidate.site[2] == 2 && candidate.weight[3] == 200 && candidate.site[3] == 0);
    end();
    begin("on the ring nobody has one", "abc");
    come('n', 0)->invited = true;
    CHECK(candidate_form(&candidate, &table));
    CHECK_EQ(candidate.weight[3], 0);
    end();
}

static struct weights_memory *memory_of(char letter) {
    struct selection_group *known = selection.groups[membership_group_slot(&table, peer(letter)->group)];
    REQUIRE(known != NULL);
    return &known->memory;
}

static void test_another_ring(void) {
    begin("what is known of members goes with them, what is known of their ops does not", "abcd");
    tell("wxyz", "", 5, 4);
    CHECK(plan());
    struct weights_memory *memory = memory_of('a');
    CHECK(memory->pair[0][1] > 0 && memory->pair[1][0] == 0 && memory->best_s > 0);
    memory->waits = 200;
    memory->tries = 3;
    memory->explored = true;
    for (uint32_t i = 0; i < 2; i++) {
        struct peer_record *other = table.order[3 - i];
        table.order[3 - i] = table.order[i];
        table.order[i] = other;
    }
    membership_rank(&table);
    CHECK_EQ(peer('a')->rank, 3);
    tell("wxyz", "", 5, 4);
    plan();
    CHECK(memory->pair[3][2] > 0 && memory->pair[2][1] > 0); // from a to b, from b to c: not in this ring
    CHECK(memory->waits < 33 && memory->tries == 0 && !memory->explored);
    end();
}

// ---- the survey of links: which are measured together, and the order that follows ----

static void begin_survey(const char *name, const char *members) {
    begin(name, members);
    CHECK(selection_begin_survey(&selection, &table));
}

// "ab cd": the measurements of the round at hand.
static const char *planned(void) {
    static char text[128];
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < selection.survey.count; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%c%c", i > 0 ? " " : "",
                               selection.survey.measurements[i].from->member.id.bytes[0],
                               selection.survey.measurements[i].to->member.id.bytes[0]);
    return text;
}

static void answer(char from, char to, char teller, uint64_t rate) {
    struct wire_measured measured = {
        .from = peer(from)->member.id, .to = peer(to)->member.id, .bytes_per_s = rate * 1000000};
    selection_measured(&selection, &table, peer(teller), &measured);
}

static void test_survey_rounds(void) {
    begin_survey("no host measures twice at a time, and links of the ring come first", "abc");
    static const char *const rounds[] = {"ab", "bc", "ca", "ac", "ba", "cb"};
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        hush();
        CHECK(selection_next_round(&selection, &table));
        CHECK_STR(planned(), rounds[i]);
        CHECK_EQ(told(WIRE_MEASURE)[0], rounds[i][0]);
        answer(rounds[i][0], rounds[i][1], (char)('a' + 'b' + 'c' - rounds[i][0] - rounds[i][1]), 5); // not concerned
        CHECK_EQ(selection.survey.unanswered, 1);
        answer(rounds[i][0], rounds[i][1], rounds[i][0], 5);
        answer(rounds[i][0], rounds[i][1], rounds[i][1], 7); // again
        CHECK_EQ(selection.survey.unanswered, 0);
    }
    CHECK(!selection_next_round(&selection, &table));
    CHECK_EQ(selection_group_rate(&selection, &table, peer('a')->group), 5);
    end();

    begin_survey("two peers of one host are not measured beside each other", "abcd");
    peer('c')->member.address = peer('a')->member.address;
    CHECK(selection_begin_survey(&selection, &table) && selection_next_round(&selection, &table));
    CHECK_STR(planned(), "ab");
    end();

    begin_survey("apart they are", "abcd");
    CHECK(selection_next_round(&selection, &table));
    CHECK_STR(planned(), "ab cd");
    end();
}

static void test_survey_ends(void) {
    begin_survey("what cannot be measured is asked for again by the next survey alone", "ab");
    CHECK(selection_next_round(&selection, &table));
    selection_give_up_round(&selection, &table);
    CHECK(selection_next_round(&selection, &table));
    CHECK_STR(planned(), "ba");
    answer('b', 'a', 'a', 9);
    CHECK(!selection_next_round(&selection, &table));
    CHECK_EQ(selection_group_rate(&selection, &table, peer('a')->group), MEMBERSHIP_MEGABYTES_PER_S);
    selection_end_survey(&selection, &table);
    CHECK(selection_begin_survey(&selection, &table) && selection_next_round(&selection, &table));
    CHECK_STR(planned(), "ab");
    end();

    begin_survey("a survey has its time", "ab");
    table.now_ns += 61 * SECOND_NS;
    CHECK(!selection_next_round(&selection, &table));
    end();
}

static void test_survey_order(void) {
    begin_survey("the slow link is left out of the ring", "abcd");
    struct peer_record *order[4];
    while (selection_next_round(&selection, &table)) {
        uint32_t count = selection.survey.count;
        for (uint32_t i = 0; i < count; i++) {
            char from = (char)selection.survey.measurements[i].from->member.id.bytes[0];
            char to = (char)selection.survey.measurements[i].to->member.id.bytes[0];
            answer(from, to, from, from + to == 'a' + 'b' ? 1 : 100);
        }
    }
    CHECK(selection_order_rings(&selection, &table, order));
    for (uint32_t i = 0; i < 4; i++) {
        int sum = order[i]->member.id.bytes[0] + order[(i + 1) % 4]->member.id.bytes[0];
        CHECK(sum != 'a' + 'b');
    }
    selection_forget_peer(&selection, membership_slot(&table, peer('c')));
    CHECK(selection_begin_survey(&selection, &table) && selection_next_round(&selection, &table));
    CHECK_STR(planned(), "bc");
    end();
}

int main(void) {
    test_one_slow();
    test_failed();
    test_sites();
    test_groups();
    test_stays();
    test_newcomer();
    test_another_ring();
    test_survey_rounds();
    test_survey_ends();
    test_survey_order();
    return check_status();
}
