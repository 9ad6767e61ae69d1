// The ops' core, with calls, signals, epochs and verdicts in any order, and a driver that moves nothing: every
// reference that it takes it lets go of once, every call ends once, what has ended is not moved, and memory stays
// bounded.
#include "ops/call_table.h"

#include "fuzz.h"

enum { OTHERS = 3, TAGS = 4, OPS_MOST = 512 };

struct block {
    uint32_t references;
    size_t bytes;
};

// What the driver keeps behind each op.
struct work {
    bool moved, call_ended;
};

static const uint16_t types[] = {WIRE_READY, WIRE_GRANT, WIRE_POSTED, WIRE_SMALL};

static struct call_table call_table;
static struct op_member others[OTHERS];
static uint32_t blocks, ended, posted;
static struct op *moving[OPS_MOST];
static uint32_t moving_count;
static bool dead;

static struct work *work_of(const struct op *op) { return op->work; }

static struct wire_id id_of(uint32_t index) { return (struct wire_id){{(uint8_t)(index + 1)}}; }

// NULL: memory was refused.
static struct block *block_new(size_t bytes) {
    struct block *block = malloc(sizeof *block);
    if (block == NULL) return NULL;
    *block = (struct block){1, bytes};
    blocks++;
    return block;
}

// ---- the driver ----

static void put(void *context, struct block *block) {
    (void)context;
    MUST(block->references > 0);
    if (--block->references > 0) return;
    free(block);
    blocks--;
}

static struct op_member *member_of(void *context, const struct wire_id *id) {
    (void)context;
    for (uint32_t i = 0; i < OTHERS; i++)
        if (wire_id_equal(&others[i].id, id)) return &others[i];
    return NULL;
}

static bool start(void *context, struct op *op) {
    (void)context;
    MUST(call_table.ready && !work_of(op)->moved && moving_count < OPS_MOST && op->phase != OP_ENDED);
    if (op->algorithm == PLAN_SMALL && op->result == NULL && (op->result = block_new(op->bytes)) == NULL) return false;
    work_of(op)->moved = true;
    moving[moving_count++] = op;
    return true;
}

static bool signal_for(void *context, struct op *op, struct op_member *from, uint16_t type,
                       const struct wire_head *head, struct block *block) {
    (void)head;
    (void)type;
    MUST(work_of(op)->moved && from->rank != UINT32_MAX && op->phase != OP_ENDED && !op->frozen);
    if (block != NULL) put(context, block);
    return true;
}

static void release(void *context, struct op *op) {
    if (op->result != NULL) put(context, op->result);
    op->result = NULL;
    for (uint32_t i = 0; i < moving_count; i++)
        if (moving[i] == op) moving[i--] = moving[--moving_count];
    work_of(op)->moved = false;
}

static bool fill(void *context, struct op *op, struct block *result) {
    (void)context;
    MUST(op->frozen && !work_of(op)->moved);
    return result->bytes == op->bytes;
}

static void on_end(void *context, struct op *op) {
    (void)context;
    MUST(op->parent == NULL && op->phase == OP_ENDED && !work_of(op)->moved && !work_of(op)->call_ended);
    work_of(op)->call_ended = true;
    ended++;
}

static void forget(void *context, struct op *op, bool restore) {
    (void)context;
    (void)restore;
    MUST(!work_of(op)->moved && op->result == NULL);
}

static void acknowledge(void *context, struct op_member *to, const struct wire_op_name *names, uint32_t count,
                        bool ask) {
    (void)context;
    (void)names;
    MUST(to->rank != UINT32_MAX && count <= OP_ACKS_MAX && (count > 0 || ask));
}

static void supply(void *context, struct op_member *to, const struct wire_op_name *name, struct block *result) {
    (void)context;
    (void)name;
    MUST(to >= others && to < others + OTHERS && result->references > 0);
}

static void drained(void *context) { (void)context; }

static void report(void *context, const struct wire_mismatch *mismatch) {
    (void)context;
    MUST(!wire_fingerprint_equal(&mismatch->mine, &mismatch->theirs));
}

static void cancel(void *context, const struct wire_op_name *name) { (void)context, (void)name; }

static void request_epoch(void *context) { (void)context; }

static void failed(void *context) {
    (void)context;
    dead = true;
}

// ---- events ----

static struct wire_fingerprint fingerprint_of(struct fuzz *in) {
    static const uint64_t counts[] = {16, 1000, 1 << 18, 1 << 20, 4 * PLAN_SEGMENT_MIN};
    uint8_t how = fuzz_u8(in);
    return (struct wire_fingerprint){
        .count = counts[(how & 15) % (sizeof counts / sizeof counts[0])], .dtype = 9, .op = how >> 6};
}

// What the call is of, and over which list: the others by the bits of `who`, and this one first or last. False: memory
// was refused.
static bool name_list(struct fuzz *in, uint8_t who, struct call_args *args) {
    struct wire_id ids[OTHERS + 1];
    uint32_t count = 0;
    bool last = who >> OTHERS & 1;
    uint8_t what = fuzz_u8(in);
    if (!last) ids[count++] = id_of(OTHERS);
    for (uint32_t i = 0; i < OTHERS; i++)
        if (who >> i & 1) ids[count++] = id_of(i);
    if (last) ids[count++] = id_of(OTHERS);
    args->fingerprint.kind = what % PLAN_KINDS;
    if (args->fingerprint.kind == PLAN_SEND && count != 2) args->fingerprint.kind = PLAN_BROADCAST;
    args->retry = args->retry && plan_collective(args->fingerprint.kind)->survives;
    args->root = (what >> 4) % count;
    args->subgroup = subgroup_new(ids, count, last ? count - 1 : 0);
    args->parts = calloc(1, sizeof *args->parts);
    if (args->subgroup == NULL || args->parts == NULL) return false;
    args->parts->in = args->parts->out = args->fingerprint.count;
    args->fingerprint.layout = (uint32_t)subgroup_mark(args->subgroup->hash) << 16 | args->root;
    return true;
}

// `who`: 0: of all; else over a list.
static void post(struct fuzz *in, uint8_t who) {
    static float buffer;
    struct call_args args = {.send = &buffer, .recv = &buffer, .tag = fuzz_below(in, TAGS)};
    uint8_t how = fuzz_u8(in);
    struct op *op = NULL;
    args.retry = how & 1;
    args.tell = how & 2;
    args.fingerprint = fingerprint_of(in);
    bool named = who == 0 || name_list(in, who, &args);
    if (named &&
        call_table_post(&call_table, &args, 4, how & 4 ? call_table.now->group_epoch : how >> 4, &op) == CALL_OK) {
        posted++;
    } else {
        subgroup_put(args.subgroup);
        free(args.parts);
    }
}

static struct op *pick(struct fuzz *in) { return moving_count == 0 ? NULL : moving[fuzz_u8(in) % moving_count]; }

// As the data plane does: what came early is taken, then chunks flow.
static void begin(struct fuzz *in) {
    struct op *op = pick(in);
    if (op == NULL) return;
    if (op->phase == OP_QUEUED) op->phase = OP_RUNNING;
    for (uint32_t type = 0; type < sizeof types / sizeof types[0]; type++)
        for (uint32_t i = 0; i < OTHERS; i++) {
            struct unexpected *unexpected = call_table_unexpected(&call_table, op, &others[i], types[type]);
            if (unexpected != NULL && unexpected->block != NULL) put(NULL, unexpected->block);
            free(unexpected);
        }
}

static void complete(struct fuzz *in) {
    struct op *op = pick(in);
    if (op != NULL && op->phase == OP_RUNNING) call_table_complete(&call_table, op);
}

static struct op_member *member(struct fuzz *in) {
    struct op_member *from = &others[fuzz_below(in, OTHERS)];
    return from->rank != UINT32_MAX ? from : NULL;
}

static struct wire_op_name name_of(struct fuzz *in) {
    uint8_t how = fuzz_u8(in);
    struct op *op = how & 1 ? pick(in) : call_table_find(&call_table, how >> 1 & (TAGS - 1));
    if (op != NULL && how & 128) return op->name;
    return (struct wire_op_name){call_table.now->group_epoch - (how >> 6 & 1), how >> 1 & (TAGS - 1),
                                 1 + (how >> 3 & 3), (uint16_t)(how >> 5 & 1), 0};
}

static void signal_from(struct fuzz *in) {
    struct op_member *from = member(in);
    struct wire_op_name name = name_of(in);
    uint16_t type = types[fuzz_below(in, 4)];
    struct wire_head head = {.op = {.tag = name.tag, .sequence = name.sequence, .segment = name.segment}};
    const struct op *op = call_table_find(&call_table, name.tag);
    head.op.fingerprint = (fuzz_u8(in) & 3) == 3 || op == NULL ? fingerprint_of(in) : op->args.fingerprint;
    size_t bytes = type == WIRE_SMALL ? (size_t)head.op.fingerprint.count * 4 : 0;
    struct block *block = type == WIRE_SMALL ? block_new(bytes) : NULL;
    if (from == NULL || (type == WIRE_SMALL && block == NULL)) {
        if (block != NULL) put(NULL, block);
        return;
    }
    call_table_signal(&call_table, from, type, &head, block, bytes);
}

static void supplied(struct fuzz *in) {
    struct wire_op_name name = name_of(in);
    const struct op *op = call_table_find(&call_table, name.tag);
    struct block *block = block_new(op != NULL && fuzz_u8(in) & 3 ? op->bytes : 64);
    if (block != NULL) call_table_supplied(&call_table, &name, block);
}

static void enter(struct fuzz *in) {
    uint8_t how = fuzz_u8(in);
    struct wire_member list[OTHERS + 1] = {{.id = id_of(OTHERS)}};
    struct wire_epoch told = {.group_epoch = call_table.now->group_epoch + 1 + (how >> 6),
                              .latency_us = 50,
                              .megabytes_per_s = 1000,
                              .members = list};
    struct epoch_ring ring = {.members = list, .rank = how >> 4 & 3};
    struct wire_report report = {0};
    for (uint32_t i = 0; i < OTHERS; i++) {
        if (ring.count == ring.rank) list[ring.count++].id = id_of(OTHERS);
        if (how >> i & 1) list[ring.count++].id = id_of(i);
    }
    if (ring.count <= ring.rank) list[ring.rank = ring.count++].id = id_of(OTHERS);
    told.count = ring.count;
    const struct epoch *epoch = epoch_new(&told, &ring, &(struct wire_header){0}, false);
    if (epoch == NULL) return;
    for (uint32_t i = 0; i < moving_count; i++) // what has not begun to move is queued anew
        if (moving[i]->phase == OP_QUEUED) {
            work_of(moving[i])->moved = false;
            moving[i--] = moving[--moving_count];
        }
    if (how & 8) call_table_note_loss(&call_table, epoch->group_epoch);
    bool entered = call_table_enter(&call_table, epoch, &report);
    epoch_put(epoch);
    MUST(entered || report.ops == NULL);
    MUST(report.count <= 2 * WIRE_MAX_LIVE_OPS);
    free(report.ops);
    dead |= !entered;
}

static void verdict(struct fuzz *in) {
    static struct wire_verdict message;
    uint8_t how = fuzz_u8(in);
    message.name = name_of(in);
    message.kind = how & 7;
    message.supplier = how & 8 ? id_of(how >> 4 & 3) : (struct wire_id){{0}};
    message.count = 0;
    for (uint32_t i = 0; i < OTHERS; i++)
        if (how >> (5 + i % 3) & 1) message.needy[message.count++] = id_of(i);
    call_table_verdict(&call_table, &message);
}

static void take(uint64_t tag) {
    struct op *op = call_table_find(&call_table, tag);
    struct call_outcome outcome = {0};
    if (op == NULL || op->phase != OP_ENDED) return;
    MUST(work_of(op)->call_ended);
    bool listed = op->args.subgroup != NULL;
    call_table_take(&call_table, op, &outcome);
    MUST(!listed || outcome.result != CALL_LOST || outcome.text[0] != '\0'); // it names the lost
    free(outcome.contributors);
    ended--;
    posted--;
}

static void report_one(struct fuzz *in) {
    struct op *op = pick(in);
    const struct op_member *other = member(in);
    struct wire_fingerprint theirs = fingerprint_of(in);
    if (op == NULL || other == NULL || wire_fingerprint_equal(&theirs, &op->args.fingerprint)) return;
    call_table_report_mismatch(&call_table, op, other, &theirs);
}

static void check(void) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < OTHERS; i++) {
        MUST(others[i].unexpected_bytes <= UNEXPECTED_BYTES && others[i].unexpected_count <= UNEXPECTED_MAX);
        bytes += others[i].unexpected_bytes;
    }
    MUST(bytes <= UNEXPECTED_ALL_BYTES && call_table.live + call_table.extra <= WIRE_MAX_LIVE_OPS);
    MUST(call_table.live == posted && ended <= posted);
}

static void run_event(struct fuzz *in) {
    uint8_t what = fuzz_u8(in);
    switch (what & 15) {
    case 0:
    case 1: post(in, what >> 4); break;
    case 2:
    case 3: begin(in); break;
    case 4:
    case 5: complete(in); break;
    case 6:
    case 7: signal_from(in); break;
    case 8: {
        struct wire_op_name name = name_of(in);
        struct op_member *from = member(in);
        if (from != NULL) call_table_acked(&call_table, from, &name, 1, fuzz_u8(in) & 1);
        break;
    }
    case 9: supplied(in); break;
    case 10: enter(in); break;
    case 11:
        if (!call_table.ready && call_table.members != NULL) call_table_links_ready(&call_table);
        break;
    case 12:
    case 13: verdict(in); break;
    case 14: take(fuzz_below(in, TAGS)); break;
    default: {
        uint8_t how = fuzz_u8(in);
        struct op_member *gone = &others[how >> 4 & 3 ? how % OTHERS : 0];
        if ((how & 3) == 0) fuzz_refuse(1 + (how >> 2 & 15));
        if ((how & 3) == 1) call_table_drain(&call_table);
        if ((how & 3) == 2) report_one(in);
        if ((how & 3) == 3 && gone->rank == UINT32_MAX) { // it comes back as somebody new
            call_table_forget(&call_table, gone);
            *gone = (struct op_member){.id = gone->id, .rank = UINT32_MAX};
        }
    }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct op_driver driver = {NULL,          member_of, start,       signal_for, release, fill,
                                            on_end,        forget,    acknowledge, supply,     drained, report,
                                            request_epoch, put,       failed,      cancel};
    struct fuzz in = {data, data + size};
    plan_segmented_min = 4 * PLAN_SEGMENT_MIN;
    for (uint32_t i = 0; i < OTHERS; i++) others[i] = (struct op_member){.id = id_of(i), .rank = UINT32_MAX};
    blocks = ended = posted = moving_count = 0;
    dead = false;
    call_table_init(&call_table, &driver, sizeof(struct work));
    while (fuzz_more(&in) && !dead) {
        run_event(&in);
        check();
    }
    fuzz_refuse(0);
    call_table_end_all(&call_table);
    MUST(ended == posted && moving_count == 0);
    for (uint64_t tag = 0; tag < TAGS; tag++) take(tag);
    MUST(posted == 0 && call_table.live == 0);
    call_table_fini(&call_table);
    MUST(blocks == 0);
    return 0;
}
