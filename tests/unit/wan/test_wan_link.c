// The emulated link of bench/wan: its commands, and what one of them does to a link on which bytes are under way.
#include "check.h"
#include "command.h"

#include <unistd.h>

static char heard[256];

static bool note(const char *line) {
    size_t used = strlen(heard);
    snprintf(heard + used, sizeof heard - used, "%s|", line);
    return strcmp(line, "no") != 0;
}

static void test_lines(void) {
    int ends[2];
    struct commands commands = {.length = 0};
    REQUIRE(pipe(ends) == 0);
    const char *const pieces[] = {"ab 1", "0 0\nno\nba ", "5 0\n"};
    const char *const wanted[] = {"", "ab 10 0|no|", "ab 10 0|no|ba 5 0|"};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        check_case("piece %zu", i);
        REQUIRE(write(ends[1], pieces[i], strlen(pieces[i])) == (ssize_t)strlen(pieces[i]));
        CHECK(commands_hear(&commands, ends[0], note));
        CHECK_STR(heard, wanted[i]);
    }
    check_case("a line without an end");
    char endless[sizeof commands.line];
    memset(endless, 'x', sizeof endless);
    REQUIRE(write(ends[1], endless, sizeof endless) == (ssize_t)sizeof endless);
    CHECK(!commands_hear(&commands, ends[0], note));
    check_case("nobody commands any more");
    commands.length = 0;
    close(ends[1]);
    CHECK(commands_hear(&commands, ends[0], note)); // the last byte of that line
    CHECK(!commands_hear(&commands, ends[0], note));
    close(ends[0]);
}

static void test_shapes(void) {
    static const struct {
        const char *text;
        bool good;
        double rate_bits, loss;
    } rows[] = {
        {"10 0", true, 10e6, 0},    {"0 1", true, 0, 1},      {"0.5 1e-4 ", true, 5e5, 1e-4},
        {"", false, 7, 0.5},        {"10", false, 7, 0.5},    {"10 0 1", false, 7, 0.5},
        {"-1 0", false, 7, 0.5},    {"nan 0", false, 7, 0.5}, {"10 1.01", false, 7, 0.5},
        {"10 -0.1", false, 7, 0.5}, {"1e9 0", false, 7, 0.5}, {"ten 0", false, 7, 0.5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct link_shape shape = {.rate_bits = 7, .loss = 0.5, .delay_ns = 3, .queue_bytes = 4};
        check_case("'%s'", rows[i].text);
        CHECK(command_shape(rows[i].text, &shape) == rows[i].good);
        CHECK(shape.rate_bits == rows[i].rate_bits && shape.loss == rows[i].loss);
        CHECK(shape.delay_ns == 3 && shape.queue_bytes == 4);
    }
}

// 8 Mbit/s are one byte in a microsecond.
static void test_reshape(void) {
    struct link_shape shape = {.rate_bits = 8e6, .delay_ns = 5000000, .queue_bytes = 3000};
    struct link link;
    uint64_t due;
    link_init(&link, &shape, 1);
    CHECK(link_admit(&link, 0, 1000, &due));
    CHECK_EQ(due, 6000000);
    shape.rate_bits = 4e6;
    link_reshape(&link, &shape);
    CHECK(link_admit(&link, 0, 1000, &due)); // behind the first one, at half the rate
    CHECK_EQ(due, 8000000);
    CHECK(link_admit(&link, 0, 3000, &due)); // the queue holds 3000 bytes: 6 ms at this rate, of which 3 are taken
    CHECK(!link_admit(&link, 0, 1000, &due));
    shape.rate_bits = 0;
    link_reshape(&link, &shape);
    CHECK(link_admit(&link, 0, 1000, &due)); // no faster than what is before it
    CHECK_EQ(due, 14000000);
    shape.loss = 1;
    link_reshape(&link, &shape);
    CHECK(!link_admit(&link, 100000000, 1000, &due));
    shape.loss = 0;
    link_reshape(&link, &shape);
    CHECK(link_admit(&link, 100000000, 1000, &due));
    CHECK_EQ(due, 105000000);
}

int main(void) {
    test_lines();
    test_shapes();
    test_reshape();
    return check_status();
}
