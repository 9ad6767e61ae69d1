// For tests of the ops' state machine: one call table, driven by hand. What it asks for is written down, in order, in
// short words.
#ifndef PCCL_TESTS_CALL_TABLE_WORLD_H
#define PCCL_TESTS_CALL_TABLE_WORLD_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "ops/call_table.h"

enum { MEMBERS = 4, LISTED = 16, LARGE = 4 << 20, DIVIDED = 8 << 21 }; // bytes; DIVIDED: 8 segments

struct block {
    int references;
};

static struct call_table table;
static const struct wire_id own = {{0, 9}};
static struct op_member others[MEMBERS]; // by number; 0 is this one
static struct op *started[64];           // the newest last
static size_t started_count;
static char said[4096];
static int blocks;            // that somebody refers to
static uint32_t members_told; // of the last op in the newest report

static inline void say(const char *format, ...) {
    size_t length = strlen(said);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said + length, sizeof said - length, format, arguments);
    va_end(arguments);
}

// What was said since the last time, and only that.
static inline void check_said(const char *expected) {
    if (!CHECK(strcmp(said, expected) == 0)) fprintf(stderr, "it said: %s\n", said);
    said[0] = '\0';
}

static inline struct block *block_new(void) {
    struct block *block = malloc(sizeof *block);
    REQUIRE(block != NULL);
    block->references = 1;
    blocks++;
    return block;
}

static inline void put(void *context, struct block *block) {
    (void)context;
    if (--block->references > 0) return;
    blocks--;
    free(block);
}

static inline struct op_member *member(void *context, const struct wire_id *id) {
    (void)context;
    return &others[id->bytes[0]];
}

static inline bool start(void *context, struct op *op) {
    (void)context;
    started[started_count++ % 64] = op;
    say("start %d.%d%s ", (int)op->name.tag, op->name.segment, op->restart ? " again" : "");
    if (op->algorithm != PLAN_SMALL) op->phase = OP_RUNNING;
    op->restart = false;
    return true;
}

static inline bool signal_op(void *context, struct op *op, struct op_member *from, uint16_t type,
                             const struct wire_head *head, struct block *block) {
    (void)head, (void)type;
    say("signal %d from %d ", (int)op->name.tag, (int)(from - others));
    if (block != NULL) put(context, block);
    return true;
}

static inline void release(void *context, struct op *op) {
    if (op->result != NULL) put(context, op->result);
    op->result = NULL;
}

static inline bool fill(void *context, struct op *op, struct block *result) {
    (void)context, (void)result;
    say("fill %d ", (int)op->name.tag);
    return true;
}

static inline void ended(void *context, struct op *op) {
    (void)context;
    say("end %d: %d ", (int)op->args.tag, (int)op->outcome.result);
}

static inline void forget(void *context, struct op *op, bool restore) {
    (void)context;
    if (restore) say("restore %d.%d ", (int)op->args.tag, op->name.segment);
}

static inline void acknowledge(void *context, struct op_member *to, const struct wire_op_name *names, uint32_t count,
                               bool ask) {
    (void)context, (void)names;
    say("ack %d to %d%s ", (int)count, (int)(to - others), ask ? " and ask" : "");
}

static inline void supply(void *context, struct op_member *to, const struct wire_op_name *name, struct block *result) {
    (void)context, (void)result;
    say("supply %d to %d ", (int)name->tag, (int)(to - others));
}

static inline void drained(void *context) {
    (void)context;
    say("drained ");
}

static inline void report_mismatch(void *context, const struct wire_mismatch *mismatch) {
    (void)context;
    say("report_mismatch %d ", mismatch->other.bytes[0]);
}

static inline void cancel(void *context, const struct wire_op_name *name) {
    (void)context;
    say("cancel %d ", (int)name->tag);
}

static inline void request_epoch(void *context) {
    (void)context;
    say("request_epoch ");
}

static inline void failed(void *context) {
    (void)context;
    say("failed ");
}

static inline void begin(void) {
    static const struct op_driver driver = {NULL,          member, start,       signal_op, release, fill,
                                            ended,         forget, acknowledge, supply,    drained, report_mismatch,
                                            request_epoch, put,    failed,      cancel};
    said[0] = '\0';
    started_count = 0;
    for (uint8_t i = 0; i < MEMBERS; i++) others[i] = (struct op_member){.id.bytes = {i}, .rank = UINT32_MAX};
    call_table_init(&table, &driver, 8);
}

static inline void end(void) {
    call_table_end_all(&table);
    call_table_fini(&table);
    CHECK_EQ(blocks, 0);
}

// Enters an epoch with as many members; says where each op stood.
static inline void enter(uint64_t number, uint32_t count) {
    static const char *const states[] = {"?", "open", "done", "retained"};
    static struct wire_member members[MEMBERS];
    struct wire_epoch told = {
        .group_epoch = number, .latency_us = 100, .megabytes_per_s = 1000, .count = count, .members = members};
    struct epoch_ring ring = {members, count, 0};
    struct wire_report report;
    for (uint8_t i = 0; i < count; i++) members[i].id = i == 0 ? own : others[i].id;
    const struct epoch *epoch = epoch_new(&told, &ring, &(struct wire_header){0}, false);
    REQUIRE(epoch != NULL && call_table_enter(&table, epoch, &report));
    epoch_put(epoch);
    for (uint32_t i = 0; i < report.count; i++)
        say("%s %d.%d ", states[report.ops[i].state], (int)report.ops[i].name.tag, report.ops[i].name.segment);
    members_told = report.count == 0 ? 0 : report.ops[report.count - 1].members;
    free(report.ops);
}

static inline struct op *post(uint64_t tag, uint64_t bytes, bool retry) {
    static uint8_t nothing;
    struct call_args reduce = {
        .send = &nothing, .recv = &nothing, .tag = tag, .fingerprint = {.count = bytes}, .retry = retry, .tell = true};
    struct op *op = NULL;
    CHECK(call_table_post(&table, &reduce, 1, table.now->group_epoch, &op) == CALL_OK);
    return op;
}

// Over a list of members, by number; 0 is this one.
static inline struct op *post_list(uint64_t tag, uint8_t kind, uint64_t bytes, bool retry, const char *numbers,
                                   uint32_t root) {
    static uint8_t nothing;
    struct wire_id ids[LISTED];
    uint32_t count = 0, rank = 0;
    for (; numbers[count] != '\0'; count++) {
        uint8_t number = (uint8_t)(numbers[count] - '0');
        if (number == 0) rank = count;
        ids[count] = number == 0 ? own : (struct wire_id){.bytes = {number}};
    }
    struct call_args args = {.send = &nothing,
                             .recv = &nothing,
                             .tag = tag,
                             .fingerprint = {.kind = kind, .count = bytes},
                             .subgroup = subgroup_new(ids, count, rank),
                             .parts = calloc(1, sizeof(struct call_parts)),
                             .root = root,
                             .retry = retry,
                             .tell = true};
    REQUIRE(args.subgroup != NULL && args.parts != NULL);
    args.fingerprint.layout = (uint32_t)subgroup_mark(args.subgroup->hash) << 16 | root;
    struct op *op = NULL;
    CHECK(call_table_post(&table, &args, 1, table.now->group_epoch, &op) == CALL_OK);
    return op;
}

// Posts an op of all members that goes on among the survivors; `root` is a member's number.
static inline struct op *post_everyone(uint64_t tag, uint8_t kind, uint64_t bytes, uint8_t root) {
    static uint8_t nothing;
    struct call_args args = {.send = &nothing,
                             .recv = &nothing,
                             .tag = tag,
                             .fingerprint = {.kind = kind, .count = bytes},
                             .root = root,
                             .root_id = root == 0 ? own : others[root].id,
                             .is_root = root == 0,
                             .retry = true,
                             .everyone = true,
                             .tell = true};
    struct op *op = NULL;
    CHECK(call_table_post(&table, &args, 1, table.now->group_epoch, &op) == CALL_OK);
    return op;
}

static inline void verdict(enum wire_verdict_kind kind, const struct op *op) {
    static struct wire_verdict message;
    message = (struct wire_verdict){.name = op->name, .kind = (uint8_t)kind, .text = {3, "why"}};
    call_table_verdict(&table, &message);
}

static inline struct call_outcome take(struct op *op) {
    struct call_outcome outcome;
    call_table_take(&table, op, &outcome);
    return outcome;
}

// A small op has all inputs.
static inline void complete_small(struct op *op) {
    op->result = block_new();
    CHECK(!call_table_complete(&table, op));
}

#endif
