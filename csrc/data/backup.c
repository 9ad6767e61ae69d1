// The untouched input of an in-place op, saved range by range before it is overwritten.
#define _GNU_SOURCE
#include "data/core.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "device/device.h"

enum { HUGE_PAGE_BYTES = 2 * 1024 * 1024 };

static bool map(struct backup *backup, size_t bytes) {
    // With room to begin at a huge page's boundary; only what is written to costs memory.
    size_t room = bytes < HUGE_PAGE_BYTES ? 0 : HUGE_PAGE_BYTES;
    uint8_t *mapped = mmap(NULL, bytes + room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    if (room > 0) {
        size_t ahead = -(uintptr_t)mapped % HUGE_PAGE_BYTES;
        size_t page = (size_t)sysconf(_SC_PAGESIZE), end = (bytes + page - 1) / page * page;
        if (ahead > 0) munmap(mapped, ahead);
        mapped += ahead;
        if (room > ahead) munmap(mapped + end, room - ahead);
        madvise(mapped, bytes, MADV_HUGEPAGE);
    }
    backup->bytes = mapped;
    backup->capacity = bytes;
    return true;
}

// Gives the mapping to the system.
static void unmap(struct backup *backup) {
    if (backup->queue != NULL)
        device_give(backup->queue, backup->bytes);
    else if (backup->bytes != NULL)
        munmap(backup->bytes, backup->capacity);
    ranges_fini(&backup->saved);
    *backup = (struct backup){0};
}

bool backup_begin(struct backup_cache *cache, struct backup *backup, struct device_queue *queue, size_t bytes) {
    if (bytes == 0) return true;
    if (queue != NULL) {
        *backup = (struct backup){.queue = queue, .bytes = device_take(queue, bytes), .capacity = bytes};
        return backup->bytes != NULL;
    }
    struct backup *best = NULL;
    for (int i = 0; i < BACKUP_CACHE_COUNT; i++) {
        struct backup *kept = &cache->backups[i];
        if (kept->bytes != NULL && kept->capacity >= bytes && (best == NULL || kept->capacity < best->capacity))
            best = kept;
    }
    if (best != NULL) {
        *backup = *best;
        *best = (struct backup){0};
        return true;
    }
    // None is large enough: let go of one, so that the cache follows the program's sizes instead of adding them up.
    for (int i = 0; i < BACKUP_CACHE_COUNT; i++)
        if (cache->backups[i].bytes != NULL) {
            unmap(&cache->backups[i]);
            break;
        }
    return map(backup, bytes);
}

bool backup_save(struct backup *backup, const void *input, uint64_t offset, uint64_t length) {
    struct plan_range gap = {.end = offset};
    if (backup->bytes == NULL) return true;
    while (ranges_gap(&backup->saved, gap.end, offset + length, &gap)) {
        const uint8_t *from = (const uint8_t *)input + gap.begin;
        if (backup->queue == NULL) // past the caches: it is hardly ever read
            memory_copy_past_caches(backup->bytes + gap.begin, from, gap.end - gap.begin);
        else
            device_copy(backup->queue, backup->bytes + gap.begin, from, gap.end - gap.begin);
    }
    return ranges_add(&backup->saved, offset, offset + length);
}

void backup_restore(struct backup *backup, struct device_queue *queue, void *to) {
    for (size_t i = 0; i < backup->saved.count; i++) {
        struct plan_range range = backup->saved.list[i];
        device_copy(queue, (uint8_t *)to + range.begin, backup->bytes + range.begin, range.end - range.begin);
    }
}

void backup_end(struct backup_cache *cache, struct backup *backup) {
    if (backup->bytes == NULL) return;
    ranges_clear(&backup->saved);
    for (int i = 0; i < BACKUP_CACHE_COUNT && backup->queue == NULL; i++)
        if (cache->backups[i].bytes == NULL) {
            cache->backups[i] = *backup;
            *backup = (struct backup){0};
            return;
        }
    unmap(backup);
}

void backup_cache_free(struct backup_cache *cache) {
    for (int i = 0; i < BACKUP_CACHE_COUNT; i++) unmap(&cache->backups[i]);
}
