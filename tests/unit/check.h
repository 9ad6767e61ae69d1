// A unit test is one program: main runs its tables and returns check_status().
//
//     for each row:  check_case("row %zu: %s", i, row->name);  CHECK(got == row->want);  CHECK_EQ(got, row->want);
//
// A failed check prints file:line, the current case and the condition, is counted, and the program goes on. Any thread
// may check; the case text is per thread. Printing stops after CHECK_PRINTED failures, counting does not.
#ifndef PCCL_TESTS_CHECK_H
#define PCCL_TESTS_CHECK_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHECK_PRINTED = 50, CHECK_CASE_BYTES = 256, CHECK_PATIENCE_S = 60 };

#define CHECK(cond) check_that((cond), __FILE__, __LINE__, #cond)
// Integers and enums of at most 64 bits; prints both values.
#define CHECK_EQ(got, want) check_equal((int64_t)(got), (int64_t)(want), __FILE__, __LINE__, #got " == " #want)
#define CHECK_STR(got, want) check_text((got), (want), __FILE__, __LINE__, #got " == " #want)
// `bytes` bytes; prints the offset of the first difference.
#define CHECK_MEM(got, want, bytes) check_bytes((got), (want), (bytes), __FILE__, __LINE__, #got " == " #want)
// Ends the program when the rest of it would make no sense.
#define REQUIRE(cond) \
    do { \
        if (!CHECK(cond)) exit(check_status()); \
    } while (0)

// Repeats `step` until `cond` holds. Ends the program if that takes longer than CHECK_PATIENCE_S: each wait for another
// thread or process has this deadline, so that a test that hangs says where.
#define AWAIT(cond, step) \
    do { \
        int64_t await_until = check_seconds() + CHECK_PATIENCE_S; \
        while (!(cond)) { \
            if (check_seconds() > await_until) check_give_up(__FILE__, __LINE__, #cond); \
            step; \
        } \
    } while (0)

// Excludes a function that fills or compares values one by one from the thread sanitizer, which would take most of a
// test's time there. The function calls check_reads for memory that other threads write, and check_writes for memory that
// they read.
#define CHECK_UNWATCHED __attribute__((no_sanitize("thread")))

#ifdef __SANITIZE_THREAD__
void __tsan_read_range(void *from, size_t bytes);
void __tsan_write_range(void *to, size_t bytes);
#endif

// Reports to the thread sanitizer that this thread reads these bytes now.
__attribute__((unused)) static void check_reads(const void *from, size_t bytes) {
#ifdef __SANITIZE_THREAD__
    __tsan_read_range((void *)(uintptr_t)from, bytes);
#else
    (void)from, (void)bytes;
#endif
}

// Reports to the thread sanitizer that this thread writes these bytes now.
__attribute__((unused)) static void check_writes(void *to, size_t bytes) {
#ifdef __SANITIZE_THREAD__
    __tsan_write_range(to, bytes);
#else
    (void)to, (void)bytes;
#endif
}

static atomic_size_t check_done;
static atomic_size_t check_failed;
static _Thread_local char check_case_text[CHECK_CASE_BYTES];

// Names the case that the following checks of this thread belong to; "" ends it.
__attribute__((unused, format(printf, 1, 2))) static void check_case(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check_case_text, sizeof check_case_text, format, arguments);
    va_end(arguments);
}

__attribute__((unused, format(printf, 4, 5))) static bool check_report(bool ok, const char *file, int line,
                                                                       const char *format, ...) {
    atomic_fetch_add(&check_done, 1);
    if (ok) return true;
    if (atomic_fetch_add(&check_failed, 1) >= CHECK_PRINTED) return false;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s:%d: %s%sfailed: %s\n", file, line, check_case_text, check_case_text[0] ? ": " : "", text);
    return false;
}

__attribute__((unused)) static bool check_that(bool ok, const char *file, int line, const char *what) {
    return check_report(ok, file, line, "%s", what);
}

__attribute__((unused)) static bool check_equal(int64_t got, int64_t want, const char *file, int line,
                                                const char *what) {
    return check_report(got == want, file, line, "%s (got %" PRId64 ", want %" PRId64 ")", what, got, want);
}

__attribute__((unused)) static bool check_text(const char *got, const char *want, const char *file, int line,
                                               const char *what) {
    bool ok = got != NULL && want != NULL && strcmp(got, want) == 0;
    return check_report(ok, file, line, "%s (got \"%s\", want \"%s\")", what, got ? got : "(null)",
                        want ? want : "(null)");
}

__attribute__((unused)) static bool check_bytes(const void *got, const void *want, size_t bytes, const char *file,
                                                int line, const char *what) {
    if (bytes == 0 || memcmp(got, want, bytes) == 0) return check_report(true, file, line, "%s", what);
    const uint8_t *g = got, *w = want;
    size_t i = 0;
    while (g[i] == w[i]) i++;
    return check_report(false, file, line, "%s (byte %zu of %zu: got 0x%02x, want 0x%02x)", what, i, bytes, g[i], w[i]);
}

// For main to return: 0 when every check held and there was at least one.
__attribute__((unused)) static int check_status(void) {
    size_t done = atomic_load(&check_done), failed = atomic_load(&check_failed);
    fprintf(stderr, "%zu checks, %zu failed\n", done, failed);
    return failed == 0 && done > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

// The seconds of a clock that only goes forward.
__attribute__((unused)) static int64_t check_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

__attribute__((unused, noreturn)) static void check_give_up(const char *file, int line, const char *what) {
    check_report(false, file, line, "%s (still not after %d s)", what, CHECK_PATIENCE_S);
    exit(check_status());
}

// Reproducible random numbers (splitmix64): the same seed gives the same numbers everywhere.
__attribute__((unused)) CHECK_UNWATCHED static uint64_t check_random(uint64_t *seed) {
    uint64_t z = (*seed += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

#endif
