// The untouched input of an in-place op, saved range by range before it is overwritten.
#ifndef PCCL_DATA_BACKUP_H
#define PCCL_DATA_BACKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/op.h"

enum { BACKUP_CACHE_COUNT = 16 };

// Mappings that are kept for the ops to come.
struct backup_cache {
    struct backup backups[BACKUP_CACHE_COUNT];
};

// Room for a tensor of so many bytes. False: no memory.
bool backup_begin(struct backup_cache *cache, struct backup *backup, size_t bytes);
// Saves what was not saved yet of this range of the input. False: no memory.
bool backup_save(struct backup *backup, const void *input, uint64_t offset, uint64_t length);
// Writes back what was saved.
void backup_restore(struct backup *backup, void *to);
// Hands the mapping back.
void backup_end(struct backup_cache *cache, struct backup *backup);
// Gives the mapping to the system.
void backup_free(struct backup *backup);
void backup_cache_free(struct backup_cache *cache);

#endif
