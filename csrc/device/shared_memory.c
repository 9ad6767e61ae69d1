#define _GNU_SOURCE
#include "device/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 // since Linux 5.14
#endif

static uint8_t *map(int fd, size_t length, int protection) {
    void *bytes = mmap(NULL, length, protection, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) return NULL;
    madvise(bytes, length, MADV_DONTFORK);
    return bytes;
}

int shared_memory_new(size_t length, uint8_t **bytes) {
    descriptor_begin();
    int fd = descriptor_end(memfd_create("pccl", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0) return -1;
    bool made = ftruncate(fd, (off_t)length) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 &&
                (*bytes = map(fd, length, PROT_READ | PROT_WRITE)) != NULL;
    if (made) return fd;
    descriptor_close(fd);
    return -1;
}

const uint8_t *shared_memory_map(int fd, size_t length) {
    struct stat what;
    int seals = fcntl(fd, F_GET_SEALS); // -1 of all but such memory
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &what) != 0 || what.st_size != (off_t)length)
        return NULL;
    return map(fd, length, PROT_READ);
}

bool shared_memory_populate(uint8_t *bytes, size_t length) {
    return madvise(bytes, length, MADV_POPULATE_WRITE) == 0 || errno == EINVAL; // an older kernel
}

void shared_memory_unmap(const uint8_t *bytes, size_t length) {
    if (bytes != NULL) munmap((void *)(uintptr_t)bytes, length);
}
