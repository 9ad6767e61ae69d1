#define _GNU_SOURCE
#include "device/memory.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/descriptor.h"

// The kernel copies between a file and memory as it would for another buffer, and says EFAULT where it cannot. So it
// answers also for memory that a driver has mapped, as page-locked memory may be.
static int open_file(void) {
    descriptor_begin();
    return descriptor_end(memfd_create("pccl", MFD_CLOEXEC));
}

static bool is_read(int file, const uint8_t *at) { return pwrite(file, at, 1, 0) == 1 || errno != EFAULT; }

static bool is_written(int file, uint8_t *at) {
    uint8_t value = *at;
    return pwrite(file, &value, 1, 0) != 1 || pread(file, at, 1, 0) == 1 || errno != EFAULT;
}

bool memory_can_be_read(const void *bytes, size_t length) {
    const uint8_t *at = bytes;
    if (length == 0) return true;
    int file = open_file(); // without one, nothing is known
    bool can = file < 0 || (is_read(file, at) && is_read(file, at + length - 1));
    descriptor_close(file);
    return can;
}

bool memory_can_be_written(void *bytes, size_t length) {
    uint8_t *at = bytes;
    if (length == 0) return true;
    int file = open_file();
    bool can = file < 0 || (is_written(file, at) && is_written(file, at + length - 1));
    descriptor_close(file);
    return can;
}
