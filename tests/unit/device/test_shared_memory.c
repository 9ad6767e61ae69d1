// Memory that another process reads: what is written is seen, and nothing is mapped that could end its reader.
#define _GNU_SOURCE
#include "device/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "check.h"

enum { LENGTH = 64 * 1024 };

static void test_both_sides(void) {
    uint8_t *own = NULL;
    int fd = shared_memory_new(LENGTH, &own);
    REQUIRE(fd >= 0 && own != NULL);
    CHECK(shared_memory_populate(own, LENGTH));
    const uint8_t *other = shared_memory_map(fd, LENGTH);
    REQUIRE(other != NULL);
    CHECK(ftruncate(fd, 0) != 0); // nor can anybody else shrink it
    descriptor_close(fd);
    for (size_t i = 0; i < LENGTH; i++) own[i] = (uint8_t)(i / 7);
    CHECK_MEM(other, own, LENGTH);
    shared_memory_unmap(own, LENGTH);
    CHECK_EQ(other[LENGTH - 1], (uint8_t)((LENGTH - 1) / 7)); // its maker has let go of it
    shared_memory_unmap(other, LENGTH);
    shared_memory_unmap(NULL, LENGTH);
}

static void test_strange_descriptors(void) {
    uint8_t *own = NULL;
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    int zero = open("/dev/zero", O_RDWR | O_CLOEXEC), unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING),
        fine = shared_memory_new(LENGTH, &own);
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
        CHECK(shared_memory_map(rows[i].fd, rows[i].length) == NULL);
    }
    close(ends[0]), close(ends[1]), close(zero), close(unsealed);
    descriptor_close(fine);
    shared_memory_unmap(own, LENGTH);
}

int main(void) {
    test_both_sides();
    test_strange_descriptors();
    return check_status();
}
