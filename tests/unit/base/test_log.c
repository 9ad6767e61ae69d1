// What reaches stderr, by level and by number of lines. Each case is a child, since the level is read once in a
// process.
#define _GNU_SOURCE
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
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
    static const char *const lines[] = {"line-trace", "line-debug", "line-info", "line-notice",
                                        "line-warn",  "line-err",   "line-fatal"};
    for (int level = LOG_TRACE; level < LOG_NONE; level++) LOG((enum log_level)level, "%s", lines[level]);
}

static void test_levels(void) {
    static const struct {
        const char *level, *first; // of the lines that are written
        uint32_t lines;
        bool told; // that the value is unknown
    } rows[] = {
        {NULL, "line-notice", 4, false},
        {"", "line-notice", 4, false},
        {"TRACE", "line-trace", 7, false},
        {"trace", "line-trace", 7, false},
        {"Debug", "line-debug", 6, false},
        {"WARN", "line-warn", 3, false},
        {"notice", "line-notice", 4, false},
        {"ERR", "line-err", 2, false},
        {"err", "line-err", 2, false},
        {"FATAL", "line-fatal", 1, false},
        {"none", "", 0, false},
        {"nonsense", "line-notice", 4, true},
        {"WARNING", "line-notice", 4, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("PCCL_LOG_LEVEL=%s", rows[i].level == NULL ? "(unset)" : rows[i].level);
        const char *text = said(rows[i].level, say_all_levels);
        CHECK_EQ(count_of(text, "line-"), rows[i].lines);
        CHECK(strstr(text, rows[i].first) != NULL);
        CHECK_EQ(count_of(text, "is not one of TRACE, DEBUG, INFO, NOTICE, WARN, ERR, FATAL and NONE"), rows[i].told);
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

enum { END_MS = 20000, ENOUGH_LINES = 2000 }; // more than a pipe or a terminal takes

static void alarm_on_block(void) { alarm(END_MS / 1000); } // a call that blocks ends the child by SIGALRM

// Fills standard error, which nobody reads, goes on when `resume` is readable, and writes one more line.
static void say_too_much(int filled, int resume) {
    char byte;
    alarm_on_block();
    for (int i = 0; i < ENOUGH_LINES; i++) LOG(LOG_ERR, "much-%d %0200d", i, i);
    REQUIRE(write(filled, "x", 1) == 1);
    REQUIRE(read(resume, &byte, 1) == 1);
    LOG(LOG_ERR, "after");
}

static void test_no_reader(const char *what, int reader, int standard_error) {
    static char text[1 << 20];
    int filled[2], resume[2], status;
    check_case("lines that %s has no room for are dropped and counted", what);
    REQUIRE(pipe(filled) == 0 && pipe(resume) == 0);
    int flags = fcntl(standard_error, F_GETFL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(standard_error, STDERR_FILENO);
        close(standard_error);
        close(reader);
        close(filled[0]);
        close(resume[1]);
        unsetenv("PCCL_LOG_LEVEL");
        say_too_much(filled[1], resume[0]);
        _exit(0);
    }
    close(filled[1]);
    close(resume[0]);
    char byte;
    CHECK_EQ(read(filled[0], &byte, 1), 1);          // it was not held up
    CHECK_EQ(fcntl(standard_error, F_GETFL), flags); // others share the open file
    size_t length = 0;
    bool resumed = false;
    REQUIRE(fcntl(reader, F_SETFL, O_NONBLOCK) == 0);
    while (length < sizeof text - 1) {
        ssize_t got = read(reader, text + length, sizeof text - 1 - length);
        if (got > 0) length += (size_t)got;
        text[length] = 0;
        if (strstr(text, "after") != NULL || (got < 0 && errno != EAGAIN)) break;
        if (got > 0) continue;
        if (!resumed) REQUIRE(write(resume[1], "x", 1) == 1);
        resumed = true;
        poll(&(struct pollfd){.fd = reader, .events = POLLIN}, 1, 100);
        if (waitpid(child, &status, WNOHANG) == child) child = 0;
        if (child == 0 && got == 0) break;
    }
    if (child != 0) REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    uint32_t written = count_of(text, "much-");
    uint32_t dropped = 0, reports = 0;
    for (const char *at = text; (at = strstr(at, "dropped ")) != NULL; at++, reports++)
        dropped += (uint32_t)atoi(at + strlen("dropped "));
    CHECK(reports > 0);
    CHECK(written + dropped >= ENOUGH_LINES);
    CHECK(written > 0 && written < ENOUGH_LINES);
    close(filled[0]);
    close(resume[1]);
    close(reader);
}

static void test_full_pipe(void) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    test_no_reader("a pipe", ends[0], ends[1]);
}

static void test_full_socket(void) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    test_no_reader("a socket", ends[0], ends[1]);
}

static void test_stopped_terminal(void) {
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    int standard_error = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    REQUIRE(standard_error >= 0);
    test_no_reader("a terminal", terminal, standard_error);
}

static void say_captured(void) {
    struct log_line line;
    int fd = log_capture_begin();
    REQUIRE(fd >= 0 && log_capture_begin() == fd);
    for (int i = 0; i < LOG_CAPTURE_LINES + 3; i++) LOG(LOG_WARN, "kept-%d", i);
    CHECK_EQ(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0), 1);
    for (int i = 0; i < LOG_CAPTURE_LINES; i++) {
        char want[32];
        REQUIRE(log_capture_take(&line));
        snprintf(want, sizeof want, "kept-%d", i);
        CHECK(strcmp(line.text, want) == 0 && strcmp(line.component, "peer") == 0 && line.level == LOG_WARN);
        CHECK_EQ(line.dropped, 0);
    }
    CHECK(!log_capture_take(&line));
    LOG(LOG_ERR, "later");
    REQUIRE(log_capture_take(&line));
    CHECK_EQ(line.dropped, 3);
    LOG(LOG_ERR, "left");
    pid_t child = fork();
    if (child == 0) {
        LOG(LOG_ERR, "child");
        _exit(log_capture_take(&line) || log_capture_begin() >= 0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    log_capture_end();
    LOG(LOG_ERR, "ended");
    REQUIRE(log_capture_take(&line));
    log_write_captured(&line);
    if (check_status() != 0) _exit(1);
}

static void test_capture(void) {
    check_case("captured lines come to the program, and not to standard error");
    const char *text = said(NULL, say_captured);
    CHECK_EQ(count_of(text, "kept-"), 0);
    CHECK_EQ(count_of(text, "later"), 0);
    CHECK_EQ(count_of(text, "peer: child\n"), 1); // a forked child has nobody who takes its lines
    CHECK_EQ(count_of(text, "peer: ended\n"), 1);
    CHECK_EQ(count_of(text, "peer: left\n"), 1);
}

int main(void) {
    test_levels();
    test_characters();
    test_limit();
    test_full_pipe();
    test_full_socket();
    test_stopped_terminal();
    test_capture();
    return check_status();
}
