// What reaches stderr, by level and by number of lines. Each case is a child, since the level is read once in a
// process.
#include "base/log.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { TEXT_BYTES = 1 << 16 };

// What `say` writes to stderr with this level in the environment; NULL: unset.
static char *said(const char *level, void (*say)(void)) {
    static char text[TEXT_BYTES];
    int ends[2], status;
    REQUIRE(pipe(ends) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (level == NULL)
            unsetenv("PCCL_LOG_LEVEL");
        else
            setenv("PCCL_LOG_LEVEL", level, 1);
        say();
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t got; (got = read(ends[0], text + length, sizeof text - 1 - length)) > 0;) length += (size_t)got;
    text[length] = 0;
    close(ends[0]);
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return text;
}

static uint32_t count_of(const char *text, const char *what) {
    uint32_t count = 0;
    for (; (text = strstr(text, what)) != NULL; text += strlen(what)) count++;
    return count;
}

static void say_all_levels(void) {
    static const char *const lines[] = {"line-trace",  "line-debug", "line-info", "line-warn",
                                        "line-notice", "line-err",   "line-fatal"};
    for (int level = LOG_TRACE; level < LOG_NONE; level++) LOG((enum log_level)level, "%s", lines[level]);
}

static void test_levels(void) {
    static const struct {
        const char *level, *first; // of the lines that are written
        uint32_t lines;
        bool told; // that the value is unknown
    } rows[] = {
        {NULL, "line-notice", 3, false},
        {"", "line-notice", 3, false},
        {"TRACE", "line-trace", 7, false},
        {"trace", "line-trace", 7, false},
        {"Debug", "line-debug", 6, false},
        {"WARN", "line-warn", 4, false},
        {"notice", "line-notice", 3, false},
        {"ERR", "line-err", 2, false},
        {"err", "line-err", 2, false},
        {"FATAL", "line-fatal", 1, false},
        {"none", "", 0, false},
        {"nonsense", "line-notice", 3, true},
        {"WARNING", "line-notice", 3, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("PCCL_LOG_LEVEL=%s", rows[i].level == NULL ? "(unset)" : rows[i].level);
        const char *text = said(rows[i].level, say_all_levels);
        CHECK_EQ(count_of(text, "line-"), rows[i].lines);
        CHECK(strstr(text, rows[i].first) != NULL);
        CHECK_EQ(count_of(text, "is not one of TRACE, DEBUG, INFO, WARN, NOTICE, ERR, FATAL and NONE"), rows[i].told);
        if (rows[i].told) CHECK(strstr(text, rows[i].level) != NULL);
    }
}

static void say_bad_characters(void) {
    static const char long_text[3000] = {[0 ... 2998] = 'x'};
    LOG(LOG_ERR, "[%s]",
        "a\nb\x1b[31mc\x7f"
        "d\xc2\x9b"
        "e\x9b"
        "f\tg\xc3\xa9");
    LOG(LOG_ERR, "%s", long_text);
}

static void test_characters(void) {
    check_case("control characters do not reach the terminal, and a line has an end");
    const char *text = said(NULL, say_bad_characters);
    CHECK(strstr(text, "[a?b?[31mc?d\xc2?e?f?g\xc3\xa9]\n") != NULL);
    CHECK_EQ(count_of(text, "\n"), 2);
    CHECK_EQ(text[strlen(text) - 1], '\n');
    int year, month, day, hour;
    CHECK_EQ(sscanf(text, "%4d-%2d-%2d %2d:", &year, &month, &day, &hour), 4);
    CHECK(year >= 2024);
}

static void say_often(void) {
    struct log_limit limit = {.lines = 5, .seconds = 1}, other = {.lines = 1, .seconds = 3600};
    for (int i = 0; i < 1000; i++) LOG_LIMITED(&limit, LOG_ERR, "often-%d", i);
    for (int i = 0; i < 1000; i++) LOG_LIMITED(&other, LOG_ERR, "once-%d", i);
    poll(NULL, 0, 1100); // the limit is one of time
    for (int i = 0; i < 3; i++) LOG_LIMITED(&limit, LOG_ERR, "again-%d", i);
}

static void test_limit(void) {
    check_case("lines beyond the limit are counted, and told of with the next one");
    const char *text = said(NULL, say_often);
    CHECK_EQ(count_of(text, "often-"), 5);
    CHECK(strstr(text, "often-4\n") != NULL);
    CHECK_EQ(count_of(text, "once-"), 1);
    CHECK(strstr(text, "again-0 (and 995 more like this)\n") != NULL);
    CHECK(strstr(text, "again-2\n") != NULL);
    CHECK_EQ(count_of(text, "\n"), 9);
}

int main(void) {
    test_levels();
    test_characters();
    test_limit();
    return check_status();
}
