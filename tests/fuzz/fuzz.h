// What the fuzz targets share. A target is one function that takes any bytes; what they mean is said at its head. It is
// linked with libFuzzer (clang) or with driver.c (gcc), always under the address and undefined sanitizers.
//
// Most targets read the bytes as a program: one byte chooses what happens next, the following ones are its arguments.
// Behind the end all bytes are zero, so every program is complete.
#ifndef PCCL_TESTS_FUZZ_H
#define PCCL_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// An invariant. Ends the process, for the fuzzer to keep the input.
#define MUST(condition) \
    do { \
        if (!(condition)) fuzz_fail(__FILE__, __LINE__, #condition); \
    } while (0)

__attribute__((noreturn, unused)) static void fuzz_fail(const char *file, int line, const char *condition) {
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    abort();
}

struct fuzz {
    const uint8_t *at, *end;
};

__attribute__((unused)) static bool fuzz_more(const struct fuzz *in) { return in->at < in->end; }

__attribute__((unused)) static void fuzz_bytes(struct fuzz *in, void *out, size_t bytes) {
    size_t left = (size_t)(in->end - in->at), take = bytes < left ? bytes : left;
    memset(out, 0, bytes);
    if (take == 0) return;
    memcpy(out, in->at, take);
    in->at += take;
}

__attribute__((unused)) static uint8_t fuzz_u8(struct fuzz *in) { return fuzz_more(in) ? *in->at++ : 0; }

// Changes a byte among `length`.
__attribute__((unused)) static void fuzz_change(struct fuzz *in, void *bytes, size_t length) {
    uint8_t *at = (uint8_t *)bytes + fuzz_u8(in) % length;
    *at ^= fuzz_u8(in);
}

// Below `limit`, which is at most 256.
__attribute__((unused)) static uint32_t fuzz_below(struct fuzz *in, uint32_t limit) { return fuzz_u8(in) % limit; }

__attribute__((unused)) static uint64_t fuzz_u64(struct fuzz *in) {
    uint64_t value;
    fuzz_bytes(in, &value, sizeof value);
    return value;
}

// Mostly a small number, sometimes any, and often one at an edge.
__attribute__((unused)) static uint64_t fuzz_number(struct fuzz *in) {
    uint8_t first = fuzz_u8(in);
    if (first < 250) return first;
    if (first == 255) return fuzz_u64(in);
    static const uint64_t edges[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 63, UINT32_MAX, UINT64_C(1) << 32};
    return edges[first - 250];
}

// ---- bounds: work per input (CONTRIBUTING.md) ----

size_t __sanitizer_get_current_allocated_bytes(void);

struct fuzz_work {
    size_t memory;
    double seconds;
};

// Of all threads.
__attribute__((unused)) static struct fuzz_work fuzz_work_begin(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (struct fuzz_work){__sanitizer_get_current_allocated_bytes(),
                              (double)used.tv_sec + (double)used.tv_nsec / 1e9};
}

// An input of `size` bytes takes at most 8 times its size beside a megabyte, and 2 s of processor time: sanitizers are
// slow.
__attribute__((unused)) static void fuzz_work_end(const struct fuzz_work *before, size_t size) {
    struct fuzz_work now = fuzz_work_begin();
    MUST(now.memory <= before->memory + 8 * size + (1 << 20));
    MUST(now.seconds - before->seconds < 2);
}

// ---- refuse.c ----
// The allocation after the next `count` ones is refused, once. 0: none is refused (also after a refusal).
void fuzz_refuse(unsigned count);
// For the targets themselves, never refused: a copy of exactly these bytes, so that the sanitizer sees who reads behind
// the end.
uint8_t *fuzz_copy(const void *bytes, size_t length);

#endif
