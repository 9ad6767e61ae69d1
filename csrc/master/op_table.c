#include "master/op_table.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 16 };

static size_t words_of(const struct op_table *table) { return (table->ranks + 63) / 64; }

static size_t stride_of(const struct op_table *table) {
    return sizeof(struct op_entry) + 2 * words_of(table) * sizeof(uint64_t);
}

static struct op_entry *entry_at(const struct op_table *table, uint32_t index) {
    return (struct op_entry *)(void *)(table->entries + index * stride_of(table));
}

static uint32_t index_of(const struct op_table *table, const struct op_entry *entry) {
    return (uint32_t)((size_t)((const uint8_t *)entry - table->entries) / stride_of(table));
}

static uint32_t *bucket_of(const struct op_table *table, const struct wire_op_name *name) {
    uint64_t mixed = (name->tag ^ (name->epoch << 40) ^ ((uint64_t)name->sequence << 20) ^
                      ((uint64_t)name->segment << 8) ^ ((uint64_t)name->subgroup << 32)) *
                     UINT64_C(0x9E3779B97F4A7C15);
    mixed ^= mixed >> 29;
    mixed *= UINT64_C(0xBF58476D1CE4E5B9);
    return &table->buckets[(mixed >> 32) & (2 * table->capacity - 1)];
}

void op_table_reset(struct op_table *table, uint32_t ranks, uint32_t limit) {
    free(table->noted);
    free(table->buckets);
    free(table->entries);
    *table = (struct op_table){.ranks = ranks, .limit = limit, .free = OP_TABLE_NONE};
}

static bool grow(struct op_table *table) {
    uint32_t capacity = table->capacity == 0 ? FIRST_CAPACITY : 2 * table->capacity;
    uint8_t *entries = realloc(table->entries, capacity * stride_of(table));
    if (entries == NULL) return false;
    table->entries = entries;
    uint32_t *buckets = realloc(table->buckets, 2 * capacity * sizeof *buckets);
    if (buckets == NULL) return false;
    table->buckets = buckets;
    table->capacity = capacity;
    for (uint32_t i = 0; i < 2 * capacity; i++) buckets[i] = OP_TABLE_NONE;
    for (uint32_t i = 0; i < table->used; i++) {
        struct op_entry *entry = entry_at(table, i);
        uint32_t *bucket = bucket_of(table, &entry->name);
        entry->next = *bucket;
        *bucket = i;
    }
    return true;
}

struct op_entry *op_table_find(const struct op_table *table, const struct wire_op_name *name) {
    if (table->count == 0) return NULL;
    for (uint32_t i = *bucket_of(table, name); i != OP_TABLE_NONE; i = entry_at(table, i)->next)
        if (wire_op_name_equal(&entry_at(table, i)->name, name)) return entry_at(table, i);
    return NULL;
}

static enum op_table_result add(struct op_table *table, const struct wire_op_name *name, struct op_entry **out) {
    uint32_t index = table->free;
    if (index == OP_TABLE_NONE) {
        // The free list is empty, so every used entry is live and may be put into its bucket again.
        if (table->used == table->capacity && !grow(table)) return OP_TABLE_NO_MEMORY;
        index = table->used++;
    } else {
        table->free = entry_at(table, index)->next;
    }
    struct op_entry *entry = entry_at(table, index);
    memset(entry, 0, stride_of(table));
    uint32_t *bucket = bucket_of(table, name);
    entry->name = *name;
    entry->live = true;
    entry->supplier = OP_TABLE_NONE;
    entry->next = *bucket;
    *bucket = index;
    table->count++;
    *out = entry;
    return OP_TABLE_OK;
}

static bool bit(const uint64_t *bits, uint32_t rank) { return bits[rank / 64] >> (rank % 64) & 1; }

bool op_entry_is_open(const struct op_entry *entry, uint32_t rank) { return bit(entry->bits, rank); }

bool op_entry_has(const struct op_table *table, const struct op_entry *entry, uint32_t rank) {
    return bit(entry->bits, rank) || bit(entry->bits + words_of(table), rank);
}

enum op_table_result op_table_note(struct op_table *table, const struct wire_op_name *name, uint32_t rank,
                                   enum wire_op_state state, struct op_entry **out) {
    struct op_entry *entry = op_table_find(table, name);
    if (table->noted == NULL && (table->noted = calloc(table->ranks, sizeof *table->noted)) == NULL)
        return OP_TABLE_NO_MEMORY;
    if (entry != NULL && op_entry_has(table, entry, rank)) return OP_TABLE_TWICE;
    if (table->noted[rank] >= table->limit) return OP_TABLE_FULL;
    if (entry == NULL) {
        enum op_table_result result = add(table, name, &entry);
        if (result != OP_TABLE_OK) return result;
    }
    table->noted[rank]++;
    uint64_t *bits = state == WIRE_OP_OPEN ? entry->bits : entry->bits + words_of(table);
    bits[rank / 64] |= UINT64_C(1) << (rank % 64);
    if (state == WIRE_OP_OPEN) entry->open++;
    if (state == WIRE_OP_DONE) entry->done++;
    if (state == WIRE_OP_RETAINED) {
        entry->retained++;
        if (rank < entry->supplier) entry->supplier = rank;
    }
    *out = entry;
    return OP_TABLE_OK;
}

void op_table_remove(struct op_table *table, struct op_entry *entry) {
    uint32_t index = index_of(table, entry), *link = bucket_of(table, &entry->name);
    while (*link != index) link = &entry_at(table, *link)->next;
    *link = entry->next;
    for (uint32_t rank = 0; rank < table->ranks; rank++) table->noted[rank] -= op_entry_has(table, entry, rank);
    entry->live = false;
    entry->next = table->free;
    table->free = index;
    table->count--;
}

struct op_entry *op_table_next(struct op_table *table, uint32_t *cursor) {
    while (*cursor < table->used) {
        struct op_entry *entry = entry_at(table, (*cursor)++);
        if (entry->live) return entry;
    }
    return NULL;
}
