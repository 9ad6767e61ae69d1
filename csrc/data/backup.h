// The untouched input of an in-place op, saved range by range before it is overwritten.
#ifndef PCCL_DATA_BACKUP_H
#define PCCL_DATA_BACKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/op.h"

enum { BACKUP_CACHE_COUNT = 16 };

// Mappings of plain memory that are kept for the ops to come.
struct backup_cache {
    struct backup backups[BACKUP_CACHE_COUNT];
};

// Room for a tensor of so many bytes, in the memory that this queue is of. False: no memory.
bool backup_begin(struct backup_cache *cache, struct backup *backup, struct device_queue *queue, size_t bytes);
// Saves what was not saved yet of this range of the input. False: no memory.
bool backup_save(struct backup *backup, const void *input, uint64_t offset, uint64_t length);
// Writes back what was saved, by way of this queue. It stays saved, since an op that is moved again begins with it.
void backup_restore(struct backup *backup, struct device_queue *queue, void *to);
// Hands the room back.
void backup_end(struct backup_cache *cache, struct backup *backup);
// Gives the mapping to the system.
void backup_free(struct backup *backup);
void backup_cache_free(struct backup_cache *cache);

#endif
