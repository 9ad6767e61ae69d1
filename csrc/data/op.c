// Ops by tag, and the memory that ops and frames live in.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/engine_private.h"

enum { SMALLEST_CLASS_BITS = 8, HUGE_PAGE_BYTES = 2 * 1024 * 1024 };

// ---- blocks ----
static unsigned block_class(size_t length) {
    unsigned class = 0;
    while (((size_t)1 << (SMALLEST_CLASS_BITS + class)) < length) class++;
    return class;
}

struct block *block_new(struct engine *engine, size_t length) {
    unsigned class = block_class(length);
    struct block *block = engine->block_cache[class];
    if (block != NULL) {
        engine->block_cache[class] = block->next;
        engine->block_cache_bytes -= block->class_bytes;
    } else {
        size_t bytes = (size_t)1 << (SMALLEST_CLASS_BITS + class);
        block = aligned_alloc(_Alignof(struct block), sizeof *block + bytes);
        if (block == NULL) {
            engine_fail(engine);
            return NULL;
        }
        block->class_bytes = (uint32_t)bytes;
    }
    block->references = 1;
    block->length = (uint32_t)length;
    return block;
}

void block_put(struct engine *engine, struct block *block) {
    if (block == NULL || --block->references > 0) return;
    if (engine->block_cache_bytes + block->class_bytes > BLOCK_CACHE_BYTES) {
        free(block);
        return;
    }
    unsigned class = block_class(block->class_bytes);
    block->next = engine->block_cache[class];
    engine->block_cache[class] = block;
    engine->block_cache_bytes += block->class_bytes;
}

// ---- frames ----
struct frame *frame_new(struct engine *engine, uint16_t type, const struct wire_op *head, size_t payload) {
    struct frame *frame = engine->free_frames;
    if (frame != NULL) {
        engine->free_frames = frame->next;
    } else if ((frame = malloc(sizeof *frame)) == NULL) {
        engine_fail(engine);
        return NULL;
    }
    struct wire_header header = {
        .length = (uint32_t)(WIRE_OP_BYTES + payload) + wire_padding(payload),
        .type = type,
        .run = engine->run,
        .generation = engine->generation,
        .epoch = engine->epoch,
    };
    wire_header_encode(frame->head, &header);
    struct wire_op padded = *head;
    padded.padding = wire_padding(payload);
    wire_op_encode(frame->head + WIRE_HEADER_BYTES, &padded);
    frame->next = NULL;
    frame->payload = NULL;
    frame->length = (uint32_t)payload;
    frame->op = NULL;
    frame->sync = false;
    frame->block = NULL;
    return frame;
}

void frame_free(struct engine *engine, struct frame *frame) {
    block_put(engine, frame->block);
    frame->next = engine->free_frames;
    engine->free_frames = frame;
}

void frame_push(struct frame_queue *queue, struct frame *frame) {
    frame->next = NULL;
    *queue->last = frame;
    queue->last = &frame->next;
}

struct frame *frame_pop(struct frame_queue *queue) {
    struct frame *frame = queue->first;
    if (frame == NULL) return NULL;
    queue->first = frame->next;
    if (queue->first == NULL) queue->last = &queue->first;
    return frame;
}

// ---- ops ----
struct op *op_find(struct engine *engine, uint64_t tag) {
    struct op *op = engine->table[table_slot(tag)];
    while (op != NULL && (op->reduce.tag != tag || op->whole != NULL)) op = op->chain;
    return op;
}

struct op *op_find_running(struct engine *engine, const struct wire_op *head) {
    for (struct op *op = engine->table[table_slot(head->tag)]; op != NULL; op = op->chain) {
        bool begun = op->phase == OP_QUEUED || op->phase == OP_RUNNING || op->phase == OP_COMPLETE;
        if (begun && !op->frozen && op->reduce.tag == head->tag && op->name.sequence == head->sequence &&
            op->name.segment == head->segment && op->name.epoch == engine->epoch)
            return op;
    }
    return NULL;
}

struct op *op_find_named(struct engine *engine, const struct wire_op_name *name) {
    for (struct op *op = engine->table[table_slot(name->tag)]; op != NULL; op = op->chain)
        if ((op->phase == OP_RUNNING || op->phase == OP_COMPLETE) && wire_op_name_equal(&op->name, name)) return op;
    return NULL;
}

void ops_for_each(struct engine *engine, void (*act)(struct engine *, struct op *)) {
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct op *op = engine->table[i]; op != NULL; op = op->chain) act(engine, op);
}

void op_list_append(struct op_list *list, struct op *op) {
    *(list->first == NULL ? &list->first : &list->last->next) = op;
    op->next = NULL;
    list->last = op;
}

struct op *op_list_pop(struct op_list *list) {
    struct op *op = list->first;
    if (op != NULL) list->first = op->next;
    return op;
}

void op_list_remove(struct op_list *list, struct op *op) {
    struct op *before = NULL, *at = list->first;
    for (; at != NULL && at != op; at = at->next) before = at;
    if (at == NULL) return;
    *(before == NULL ? &list->first : &before->next) = op->next;
    if (list->last == op) list->last = before;
}

void roster_put(struct roster *roster) {
    if (roster != NULL && --roster->references == 0) free(roster);
}

struct op *op_new(struct engine *engine, uint64_t tag) {
    struct op *op = engine->free_ops;
    if (op != NULL) {
        engine->free_ops = op->chain;
    } else {
        op = calloc(1, sizeof *op);
        if (op == NULL) return NULL;
        if (!platform_cond_init(&op->ended)) {
            free(op);
            return NULL;
        }
    }
    // The condition variable stays: a waiter of the op's former life may still be signalled, which it survives.
    memset((char *)op + offsetof(struct op, reduce), 0, sizeof *op - offsetof(struct op, reduce));
    op->next = NULL;
    op->chain = engine->table[table_slot(tag)];
    engine->table[table_slot(tag)] = op;
    op->reduce.tag = tag;
    return op;
}

void op_free(struct engine *engine, struct op *op) {
    struct op **at = &engine->table[table_slot(op->reduce.tag)];
    while (*at != op) at = &(*at)->chain;
    *at = op->chain;
    roster_put(op->roster);
    op->roster = NULL;
    op->chain = engine->free_ops;
    engine->free_ops = op;
}

void op_end(struct engine *engine, struct op *op, enum engine_result result) {
    small_release(engine, op);
    ring_release(op);
    sharded_release(engine, op);
    op->outcome.result = result;
    op->outcome.info = (struct engine_info){op->contributors, op->tx_bytes, op->rx_bytes};
    op->phase = OP_ENDED;
    op->frozen = false;
    pthread_cond_broadcast(&op->ended);
    if (op->whole != NULL) segments_ended(engine, op);
}

void op_end_refused(struct engine *engine, struct op *op) {
    engine_fail(engine); // first: nothing is to begin in the place of the op
    op_end(engine, op, ENGINE_NO_MEMORY);
}

bool op_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end) {
    bool taken = ranges_take(ranges, begin, end);
    if (!taken && ranges->refused) engine_fail(engine);
    return taken;
}

void op_head(const struct op *op, struct wire_op *out) {
    *out = (struct wire_op){.tag = op->reduce.tag,
                            .fingerprint = op->reduce.fingerprint,
                            .segment = op->name.segment,
                            .sequence = op->name.sequence};
}

// ---- tag counters: open addressing, emptied with each epoch ----
static struct tag_counter *counter_slot(struct tag_counter *slots, uint32_t count, uint64_t tag) {
    uint32_t at = (uint32_t)((tag * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (count - 1);
    while (slots[at].next != 0 && slots[at].tag != tag) at = (at + 1) & (count - 1);
    return &slots[at];
}

static bool counters_grow(struct engine *engine) {
    uint32_t slots = engine->counter_slots == 0 ? 64 : engine->counter_slots * 2;
    struct tag_counter *grown = calloc(slots, sizeof *grown);
    if (grown == NULL) return false;
    for (uint32_t i = 0; i < engine->counter_slots; i++)
        if (engine->counters[i].next != 0) *counter_slot(grown, slots, engine->counters[i].tag) = engine->counters[i];
    free(engine->counters);
    engine->counters = grown;
    engine->counter_slots = slots;
    return true;
}

bool counter_take(struct engine *engine, uint64_t tag, uint32_t *sequence) {
    if (engine->counter_count * 2 >= engine->counter_slots && !counters_grow(engine)) return false;
    struct tag_counter *counter = counter_slot(engine->counters, engine->counter_slots, tag);
    if (counter->next == 0) {
        engine->counter_count++;
        counter->tag = tag;
    }
    *sequence = ++counter->next;
    engine->roll_wanted |= engine->counter_count > TAG_COUNTERS_MAX || counter->next > TAG_OPS_MAX;
    return true;
}

bool counter_is_spent(const struct engine *engine, uint64_t tag) {
    return engine->counter_slots > 0 && counter_slot(engine->counters, engine->counter_slots, tag)->next == UINT32_MAX;
}

void counters_clear(struct engine *engine) {
    free(engine->counters);
    engine->counters = NULL;
    engine->counter_slots = engine->counter_count = 0;
    engine->roll_wanted = engine->roll_asked = false;
}

// ---- backups of in-place inputs ----
static bool backup_map(struct backup *backup, size_t bytes) {
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

bool backup_begin(struct engine *engine, struct op *op) {
    if (op->reduce.send != op->reduce.recv || op->bytes == 0) return true;
    struct backup *best = NULL;
    for (int i = 0; i < BACKUP_CACHE_COUNT; i++) {
        struct backup *cached = &engine->backup_cache[i];
        if (cached->bytes != NULL && cached->capacity >= op->bytes &&
            (best == NULL || cached->capacity < best->capacity))
            best = cached;
    }
    if (best != NULL) {
        op->backup = *best;
        *best = (struct backup){0};
        return true;
    }
    // None is large enough: let go of one, so that the cache follows the program's sizes instead of adding them up.
    for (int i = 0; i < BACKUP_CACHE_COUNT; i++)
        if (engine->backup_cache[i].bytes != NULL) {
            munmap(engine->backup_cache[i].bytes, engine->backup_cache[i].capacity);
            ranges_fini(&engine->backup_cache[i].saved);
            engine->backup_cache[i] = (struct backup){0};
            break;
        }
    return backup_map(&op->backup, op->bytes);
}

bool backup_save(struct op *op, uint64_t offset, uint64_t length) {
    struct backup *backup = &op->backup;
    struct plan_range gap = {.end = offset};
    if (backup->bytes == NULL) return true;
    while (ranges_gap(&backup->saved, gap.end, offset + length, &gap))
        memcpy(backup->bytes + gap.begin, (const uint8_t *)op->reduce.send + gap.begin, gap.end - gap.begin);
    return ranges_add(&backup->saved, offset, offset + length);
}

void backup_restore(struct op *op) {
    for (size_t i = 0; i < op->backup.saved.count; i++) {
        struct plan_range range = op->backup.saved.list[i];
        memcpy((uint8_t *)op->reduce.recv + range.begin, op->backup.bytes + range.begin, range.end - range.begin);
    }
    ranges_clear(&op->backup.saved);
}

void backup_end(struct engine *engine, struct op *op) {
    if (op->backup.bytes == NULL) return;
    ranges_clear(&op->backup.saved);
    for (int i = 0; i < BACKUP_CACHE_COUNT; i++)
        if (engine->backup_cache[i].bytes == NULL) {
            engine->backup_cache[i] = op->backup;
            op->backup = (struct backup){0};
            return;
        }
    munmap(op->backup.bytes, op->backup.capacity);
    ranges_fini(&op->backup.saved);
    op->backup = (struct backup){0};
}
