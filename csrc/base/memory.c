#define _GNU_SOURCE
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/descriptor.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 // since Linux 5.14
#endif

// ---- copies ----

enum { SLOW_LEAST = 4096 }; // bytes; libc does not use `rep movsb` for much less

#ifdef __SSE2__

#include <immintrin.h>

#include "base/cpu.h"

enum { LINE = 64 };

// Each copies whole lines to `out`, which is aligned to a line. Half a line per store is a third faster than a quarter.
__attribute__((target("avx"))) static void stream_halves(uint8_t *out, const uint8_t *in, size_t lines) {
    for (; lines > 0; lines--, in += LINE, out += LINE) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)in);
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)in + 1);
        _mm256_stream_si256((__m256i *)(void *)out, low);
        _mm256_stream_si256((__m256i *)(void *)out + 1, high);
    }
}

static void stream_quarters(uint8_t *out, const uint8_t *in, size_t lines) {
    for (; lines > 0; lines--, in += LINE, out += LINE) {
        __m128i parts[4];
        for (int i = 0; i < 4; i++) parts[i] = _mm_loadu_si128((const __m128i *)(const void *)in + i);
        for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)(void *)out + i, parts[i]);
    }
}

void memory_copy_past_caches(void *to, const void *from, size_t bytes) {
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t head = (size_t)(-(uintptr_t)out % LINE);
    if (head > bytes) head = bytes;
    memcpy(out, in, head);
    size_t lines = (bytes - head) / LINE, at = head + lines * LINE;
    if (cpu_level() >= CPU_AVX)
        stream_halves(out + head, in + head, lines);
    else
        stream_quarters(out + head, in + head, lines);
    memcpy(out + at, in + at, bytes - at);
    _mm_sfence(); // whoever is told of these bytes next finds them
}

#else

void memory_copy_past_caches(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

#endif

void memory_copy(void *to, const void *from, size_t bytes) {
    if (bytes >= SLOW_LEAST && memory_copy_is_slow(to, (uintptr_t)from))
        memory_copy_past_caches(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

// ---- memory for secrets ----

void *memory_secret_new(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    madvise(at, bytes, MADV_DONTDUMP);
    return at;
}

void memory_secret_free(void *at, size_t bytes) {
    if (at == NULL) return;
    explicit_bzero(at, bytes);
    munmap(at, bytes);
}

// ---- access ----

// The kernel copies between a file and memory as it would for another buffer, and says EFAULT where it cannot. So it
// answers also for memory that a driver has mapped, as page-locked memory may be.
static int open_file(void) {
    if (!memory_file_may_have(1)) return -1;
    descriptor_begin();
    return descriptor_end(memfd_create("pccl", MFD_CLOEXEC));
}

static bool is_read(int file, uint8_t *at) { return pwrite(file, at, 1, 0) == 1 || errno != EFAULT; }

static bool is_written(int file, uint8_t *at) {
    uint8_t value = *at;
    return pwrite(file, &value, 1, 0) != 1 || pread(file, at, 1, 0) == 1 || errno != EFAULT;
}

// Asks for the first and the last byte. Without a file nothing is known.
static bool can(uint8_t *at, size_t length, bool (*access)(int file, uint8_t *at)) {
    if (length == 0) return true;
    int file = open_file();
    bool can = file < 0 || (access(file, at) && access(file, at + length - 1));
    descriptor_close(file);
    return can;
}

bool memory_can_be_read(const void *bytes, size_t length) { return can((uint8_t *)bytes, length, is_read); }

bool memory_can_be_written(void *bytes, size_t length) { return can(bytes, length, is_written); }

bool memory_copy_checked(void *to, const void *from, size_t bytes) {
    struct iovec there = {(void *)(uintptr_t)from, bytes}, here = {to, bytes};
    return bytes == 0 || process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

// ---- memory that processes share ----

static uint8_t *map(int fd, size_t length, int protection) {
    void *bytes = mmap(NULL, length, protection, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) return NULL;
    madvise(bytes, length, MADV_DONTFORK);
    return bytes;
}

bool memory_file_may_have(size_t length) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= length;
}

int memory_shared_new(size_t length, uint8_t **bytes) {
    if (!memory_file_may_have(length)) return -1;
    descriptor_begin();
    int fd = descriptor_end(memfd_create("pccl", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0) return -1;
    bool made = ftruncate(fd, (off_t)length) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 &&
                (*bytes = map(fd, length, PROT_READ | PROT_WRITE)) != NULL;
    if (made) return fd;
    descriptor_close(fd);
    return -1;
}

const uint8_t *memory_shared_map(int fd, size_t length) {
    struct stat what;
    int seals = fcntl(fd, F_GET_SEALS); // -1 of all but such memory
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &what) != 0 || what.st_size != (off_t)length)
        return NULL;
    return map(fd, length, PROT_READ);
}

bool memory_shared_populate(uint8_t *bytes, size_t length) {
    return madvise(bytes, length, MADV_POPULATE_WRITE) == 0 || errno == EINVAL; // an older kernel
}

void memory_shared_unmap(const uint8_t *bytes, size_t length) {
    if (bytes != NULL) munmap((void *)(uintptr_t)bytes, length);
}
