// Memory: arrays that grow; copies past the caches, which copy what they should and nothing else; memory that another process
// reads, where nothing is mapped that could end its reader.
#define _GNU_SOURCE
#include "base/memory.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "check.h"

// ---- arrays that grow ----

static void test_growth(void) {
    uint32_t *numbers = NULL;
    size_t room = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        size_t before = room;
        REQUIRE(GROW(numbers, room, i, 8));
        CHECK(room > i && (room == before || room == 8 || room == 2 * before));
        numbers[i] = i;
    }
    for (uint32_t i = 0; i < 1000; i++) CHECK_EQ(numbers[i], i);

    size_t before = room;
    CHECK(!memory_grow(&numbers, &room, SIZE_MAX, sizeof *numbers, 8)); // more than memory holds
    CHECK_EQ(room, before);
    CHECK_EQ(numbers[999], 999);
    CHECK(memory_grow(&numbers, &room, 5000, sizeof *numbers, 8)); // more than twice as much
    CHECK_EQ(room, 5000);
    free(numbers);
}

// ---- copies ----

enum { ROOM = 1024, LENGTH_MAX = 400, EDGE = 80 };

// At every distance that is slow, and at some that are not.
static void test_distances(void) {
    enum { BYTES = 3 * 4096 + 77 };
    static uint8_t from[BYTES + 8192], to[BYTES + 8192];
    uint64_t base = (uintptr_t)to - (uintptr_t)from;
    for (size_t i = 0; i < sizeof from; i++) from[i] = (uint8_t)(i * 7 + i / 251);
    for (uint64_t behind = 0; behind < 70; behind++) {
        uint64_t offset = (behind - base) % 4096;
        check_case("%llu bytes behind the source", (unsigned long long)behind);
        CHECK_EQ(memory_copy_is_slow(to + offset, (uintptr_t)from), behind >= 1 && behind <= 31);
        memset(to, 0xee, sizeof to);
        memory_copy(to + offset, from, BYTES);
        CHECK_MEM(to + offset, from, BYTES);
        CHECK(offset == 0 || to[offset - 1] == 0xee);
        CHECK_EQ(to[offset + BYTES], 0xee);
    }
    CHECK(!memory_copy_is_slow(to, (uintptr_t)to + 1));
}

static void test_places(void) {
    uint8_t from[ROOM], to[ROOM], want[ROOM];
    for (size_t i = 0; i < ROOM; i++) from[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t offset = 0; offset < EDGE; offset++)
        for (size_t length = 0; length < LENGTH_MAX; length += 1 + length / 50) {
            size_t source = offset * 5 % EDGE;
            check_case("%zu bytes from %zu to %zu", length, source, offset);
            memset(to, 0xee, ROOM);
            memset(want, 0xee, ROOM);
            memcpy(want + offset, from + source, length);
            memory_copy_past_caches(to + offset, from + source, length);
            CHECK_MEM(to, want, ROOM);
        }
}

// ---- memory that processes share ----

enum { LENGTH = 64 * 1024 };

static void test_both_sides(void) {
    uint8_t *own = NULL;
    int fd = memory_shared_new(LENGTH, &own);
    REQUIRE(fd >= 0 && own != NULL);
    CHECK(memory_shared_populate(own, LENGTH));
    const uint8_t *other = memory_shared_map(fd, LENGTH);
    REQUIRE(other != NULL);
    CHECK(ftruncate(fd, 0) != 0); // nor can anybody else shrink it
    descriptor_close(fd);
    for (size_t i = 0; i < LENGTH; i++) own[i] = (uint8_t)(i / 7);
    CHECK_MEM(other, own, LENGTH);
    memory_shared_unmap(own, LENGTH);
    CHECK_EQ(other[LENGTH - 1], (uint8_t)((LENGTH - 1) / 7)); // its maker has let go of it
    memory_shared_unmap(other, LENGTH);
    memory_shared_unmap(NULL, LENGTH);
}

static void test_strange_descriptors(void) {
    uint8_t *own = NULL;
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    int zero = open("/dev/zero", O_RDWR | O_CLOEXEC), unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING),
        fine = memory_shared_new(LENGTH, &own);
    REQUIRE(zero >= 0 && unsealed >= 0 && fine >= 0 && ftruncate(unsealed, LENGTH) == 0);
    struct {
        const char *name;
        int fd;
        size_t length;
    } rows[] = {
        {"a pipe", ends[0], LENGTH},   {"a device", zero, LENGTH},   {"memory that can shrink", unsealed, LENGTH},
        {"shorter", fine, 2 * LENGTH}, {"longer", fine, LENGTH / 2}, {"nothing", -1, LENGTH},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        CHECK(memory_shared_map(rows[i].fd, rows[i].length) == NULL);
    }
    close(ends[0]), close(ends[1]), close(zero), close(unsealed);
    descriptor_close(fine);
    memory_shared_unmap(own, LENGTH);
}

// A process that may write no file is not ended by a signal.
static int shares_without_files(void) {
    struct rlimit none = {0, 0};
    uint8_t *bytes;
    signal(SIGXFSZ, SIG_DFL);
    if (setrlimit(RLIMIT_FSIZE, &none) != 0 || memory_shared_new(LENGTH, &bytes) != -1) return 1;
    uint8_t byte = 7;
    return memory_can_be_read(&byte, 1) && memory_can_be_written(&byte, 1) && byte == 7 ? 0 : 2;
}

static void test_limited_files(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(shares_without_files());
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
}

int main(void) {
    test_limited_files();
    test_growth();
    test_places();
    test_distances();
    test_both_sides();
    test_strange_descriptors();
    return check_status();
}
