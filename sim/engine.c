#include "sim/engine.h"

#include <stdlib.h>

#include "sim/controls.h"
#include "sim/refuse.h"
#include "sim/trace.h"

static struct engine_model *engine_of(struct pccl_sim *s, int slot) { return s->processes[slot].engine; }

static int slots(const struct engine_model *e) { return e->sim->only_votes ? SLOTS : DATA_SLOTS; }

static int slot_of(const struct wire_id *id, uint32_t *life) {
    int slot = sim_slot(id, life);
    return slot < 0 ? 0 : slot; // of a changed frame
}

static struct neighbour *find(struct engine_model *e, const struct wire_id *id) {
    uint32_t life;
    struct neighbour *n = e->neighbours[slot_of(id, &life)];
    while (n != NULL && !wire_id_equal(&n->member.id, id)) n = n->next;
    return n;
}

static struct op_member *member(void *context, const struct wire_id *id) { return &find(context, id)->member; }

static void failed(void *context) {
    struct engine_model *e = context;
    e->sim->processes[e->slot].out.failed = true; // the communicator dies of it
}

static bool is_dead(const struct op *op) {
    return op->outcome.result == CALL_DEAD || op->outcome.result == CALL_NO_MEMORY;
}

static void judge_loss(struct engine_model *e, const struct op *op) {
    const struct subgroup *subgroup = op->args.subgroup;
    const struct epoch_ring *ring = &e->call_table.now->ring;
    bool lost = op->args.retry && !op->args.everyone && ring->count < 2;
    if (op->args.everyone) lost = op_collective(op)->rooted && !epoch_ring_has(ring, &op->args.root_id);
    if (subgroup != NULL) {
        lost = !op->args.retry && subgroup_living(subgroup, e->call_table.now) < subgroup->count;
        if (op_collective(op)->rooted) lost |= !subgroup_has(subgroup, op->args.root, e->call_table.now);
    }
    for (uint32_t i = 0; i < e->call_table.loss_count && !op->args.retry && subgroup == NULL; i++)
        lost |= e->call_table.losses[i] > op->adopted;
    if (!lost && !e->sim->processes[e->slot].tainted)
        sim_fail(e->sim, "progress", "peer %d loses op (%ju, %ju, %u) although nobody was lost that it needs",
                 e->slot + 1, OP_NAME(op->name));
}

// Without one of its list only that goes on which may, and was asked to.
static void judge_success(struct engine_model *e, const struct op *op) {
    uint32_t missing = op->args.subgroup == NULL ? 0 : op->args.subgroup->count;
    for (uint32_t members = sim_algorithm_members(op); members != 0 && missing > 0; members &= members - 1) missing--;
    if (missing == 0 || (op->args.retry && op_collective(op)->survives)) return;
    sim_fail(e->sim, "exactness", "peer %d ends op (%ju, %ju, %u) with success without %u of its list", e->slot + 1,
             OP_NAME(op->name), missing);
}

// A call, or a segment of one.
static void note_end(struct engine_model *e, const struct op *op) {
    if (op->outcome.result == CALL_OK && op->segments == NULL)
        sim_algorithm_call(e, op)->members[op->name.segment] = sim_algorithm_members(op);
    struct judged_op judged = sim_algorithm_shown(e, op);
    judge_ended(e->sim, e->slot, &judged);
}

static void ended(void *context, struct op *op) {
    struct engine_model *e = context;
    if (is_dead(op)) return; // the process ends
    if (op->outcome.result == CALL_LOST) judge_loss(e, op);
    if (op->outcome.result == CALL_OK) judge_success(e, op);
    note_end(e, op);
    sim_push_for(e->sim, e->slot, EVENT_PROGRAM, e->sim->now + (int64_t)sim_below(e->sim, MS_NS));
}

static void forget(void *context, struct op *op, bool restore) {
    struct engine_model *e = context;
    (void)restore;
    if (op->parent != NULL && op->phase == OP_ENDED && !is_dead(op)) note_end(e, op);
}

static void acknowledge(void *context, struct op_member *to, const struct wire_op_name *names, uint32_t count,
                        bool ask) {
    struct engine_model *e = context;
    do {
        struct frame frame = {.type = WIRE_ACK, .run = e->call_table.now->run, .epoch = e->call_table.now->group_epoch};
        while (count > 0 && frame.name_count < ACKS_MOST) {
            frame.names[frame.name_count++] = *names++;
            count--;
        }
        frame.extra = ask && count == 0;
        sim_algorithm_send(e, to, 0, &frame);
    } while (count > 0);
}

static void supply(void *context, struct op_member *to, const struct wire_op_name *name, struct block *result) {
    struct engine_model *e = context;
    struct frame frame = {.type = WIRE_SUPPLY,
                          .run = e->call_table.now->run,
                          .epoch = e->call_table.now->group_epoch,
                          .tag = name->tag,
                          .sequence = name->sequence,
                          .offset = name->epoch,
                          .extra = name->subgroup,
                          .fingerprint.count = result->bytes,
                          .value = result->value,
                          .contributors = result->contributors};
    sim_algorithm_send(e, to, 0, &frame);
}

static void drained(void *context) { (void)context; }

static void report_mismatch(void *context, const struct wire_mismatch *mismatch) {
    struct engine_model *e = context;
    struct wire_header header = sim_algorithm_header(e);
    header.epoch = mismatch->name.epoch;
    SIM_TELL(e->sim, e->slot, mismatch, header, mismatch);
}

static void cancel(void *context, const struct wire_op_name *name) {
    struct engine_model *e = context;
    struct wire_header header = sim_algorithm_header(e);
    header.epoch = name->epoch;
    struct wire_cancel message = {*name};
    SIM_TELL(e->sim, e->slot, cancel, header, &message);
}

static void request_epoch(void *context) {
    struct engine_model *e = context;
    sim_fail(e->sim, "bounded memory", "peer %d has too many tags", e->slot + 1);
}

static void put(void *context, struct block *block) {
    (void)context;
    sim_algorithm_block_put(block);
}

// Judges the contributors that a call's outcome names.
static void judge_contributors(struct engine_model *e, const struct call *call, const struct call_contributors *told) {
    uint32_t segments = call->retry ? plan_segments(call->bytes, 1) : 1, range = 0;
    if (e->sim->processes[e->slot].tainted || told == NULL) return; // memory for it was refused
    for (uint32_t i = 0; i < segments; i++) {
        struct plan_range segment = call->retry ? plan_segment(call->bytes, 1, i) : (struct plan_range){0, call->bytes};
        while (range + 1 < told->count && told->ranges[range].end <= segment.begin) range++;
        const struct call_range *there = &told->ranges[range];
        uint32_t members = 0;
        for (uint32_t k = 0; range < told->count && k < there->count; k++) {
            uint32_t life;
            int other = sim_slot(&there->ids[k], &life);
            members |= 1U << (other < 0 ? 0 : other);
        }
        bool whole = range < told->count && there->begin <= segment.begin && there->end >= segment.end;
        if (!whole || members != call->members[i] || (members == 0 && call->result == CALL_OK))
            sim_fail(e->sim, "exactness", "peer %d is told that peers %x are in segment %u of %u, which are %x",
                     e->slot + 1, members, i, segments, call->members[i]);
    }
}

// ---- life ----

void engine_model_begin(struct pccl_sim *s, int slot) {
    struct engine_model *e = engine_of(s, slot);
    struct op_driver driver = {e,
                               member,
                               sim_algorithm_start,
                               sim_algorithm_signal,
                               sim_algorithm_release,
                               sim_algorithm_fill,
                               ended,
                               forget,
                               acknowledge,
                               supply,
                               drained,
                               report_mismatch,
                               request_epoch,
                               put,
                               failed,
                               cancel};
    e->sim = s;
    e->slot = slot;
    call_table_init(&e->call_table, &driver, sim_algorithm_work_bytes);
}

void engine_model_end(struct engine_model *e) {
    if (e->sim == NULL) return;
    call_table_end_all(&e->call_table);
    call_table_fini(&e->call_table);
    epoch_put(e->pending);
    for (int slot = 0; slot < slots(e); slot++)
        while (e->neighbours[slot] != NULL) {
            struct neighbour *n = e->neighbours[slot];
            e->neighbours[slot] = n->next;
            free(n);
        }
    *e = (struct engine_model){0};
}

// ---- neighbours ----

static void know(struct engine_model *e, const struct wire_id *id) {
    struct neighbour *n = find(e, id);
    if (n == NULL) {
        n = refuse_never(sizeof *n);
        *n = (struct neighbour){.member = {.id = *id, .rank = UINT32_MAX}};
        n->slot = slot_of(id, &n->life);
        n->next = e->neighbours[n->slot];
        e->neighbours[n->slot] = n;
    }
    n->dropped = false;
}

static void free_dropped(struct engine_model *e, int slot) {
    for (struct neighbour **at = &e->neighbours[slot]; *at != NULL;) {
        struct neighbour *n = *at;
        if (!n->dropped || n->member.rank != UINT32_MAX ||
            (e->pending != NULL && epoch_ring_has(&e->pending->ring, &n->member.id))) {
            at = &n->next;
            continue;
        }
        *at = n->next;
        call_table_forget(&e->call_table, &n->member);
        free(n);
    }
}

bool engine_model_forget(struct pccl_sim *s, int slot, int other, uint32_t life) {
    struct engine_model *e = engine_of(s, slot);
    bool member = false;
    for (struct neighbour *n = e->neighbours[other]; n != NULL; n = n->next)
        if (n->life == life) {
            n->dropped = true;
            member = n->member.rank != UINT32_MAX;
        }
    free_dropped(e, other);
    return !member;
}

// ---- calls ----

// The list of a call, and what its fingerprint has of it. False: memory was refused.
static bool name_list(const struct call *call, struct call_args *args) {
    args->subgroup = subgroup_new(call->ids, call->count, call->rank);
    if (args->subgroup == NULL) return false;
    args->parts = refuse_never(sizeof *args->parts);
    *args->parts = (struct call_parts){.in = call->bytes, .out = call->bytes};
    args->fingerprint.layout = (uint32_t)subgroup_mark(args->subgroup->hash) << 16 | call->root;
    return true;
}

void engine_model_post(struct pccl_sim *s, int slot, uint32_t tag, const struct call *what, uint64_t adopted) {
    struct engine_model *e = engine_of(s, slot);
    struct call *call = &e->calls[tag];
    uint32_t calls = call->calls + 1;
    *call = *what;
    call->result = CALL_IN_PROGRESS;
    if (call->cancel_at != INT64_MAX) sim_push_for(s, slot, EVENT_PROGRAM, call->cancel_at);
    call->calls = calls;
    static uint8_t nothing;
    struct call_args args = {.send = &nothing,
                             .recv = &nothing,
                             .tag = call->tag,
                             .fingerprint = {.count = call->bytes,
                                             .kind = call->kind,
                                             .dtype = (uint8_t)(call->variant == 0 ? 0 : 1 + call->variant % 11)},
                             .retry = call->retry,
                             .tell = true,
                             .root = call->root,
                             .root_id = call->root_id,
                             .everyone = call->everyone};
    struct wire_id own = sim_id(s, slot);
    args.is_root = wire_id_equal(&call->root_id, &own);
    if (call->everyone) args.fingerprint.layout = call->root_id.bytes[0];
    if (call->count > 0 && !name_list(call, &args)) {
        failed(e); // its program ends
        return;
    }
    struct op *op;
    enum call_result result = call_table_post(&e->call_table, &args, 1, adopted, &op);
    if (result != CALL_OK) {
        subgroup_put(args.subgroup);
        free(args.parts);
    }
    if (result != CALL_OK && result != CALL_NO_MEMORY)
        sim_fail(s, "progress", "peer %d cannot post with tag %u: %d", slot + 1, tag, (int)result);
}

bool engine_model_await(struct pccl_sim *s, int slot, uint32_t tag) {
    struct engine_model *e = engine_of(s, slot);
    struct call *call = &e->calls[tag];
    struct op *op = call_table_find(&e->call_table, call->tag);
    if (op != NULL && call->result == CALL_IN_PROGRESS && s->now >= call->cancel_at) {
        SIM_TRACE(s, "peer %d: cancels op %u", slot + 1, tag);
        call->cancel_at = INT64_MAX;
        s->counts[COUNT_CANCELS]++;
        call_table_cancel(&e->call_table, op);
    }
    if (call->result != CALL_IN_PROGRESS || op == NULL || op->phase != OP_ENDED || is_dead(op))
        return call->result != CALL_IN_PROGRESS;
    struct call_outcome outcome;
    call_table_take(&e->call_table, op, &outcome);
    call->epoch = outcome.epoch;
    call->result = outcome.result;
    s->counts[COUNT_OPS_OK] += call->result == CALL_OK;
    s->counts[COUNT_OPS_LOST] += call->result == CALL_LOST;
    s->counts[COUNT_MISMATCHES] += call->result == CALL_MISMATCH;
    s->counts[COUNT_CANCELLED] += call->result == CALL_CANCELLED;
    SIM_TRACE(s, "peer %d: op %u ends: %s", slot + 1, tag,
              call->result == CALL_OK          ? "ok"
              : call->result == CALL_LOST      ? "lost"
              : call->result == CALL_CANCELLED ? "cancelled"
                                               : "mismatch");
    judge_contributors(e, call, outcome.contributors);
    free(outcome.contributors);
    return true;
}

void engine_model_drain(struct pccl_sim *s, int slot) { call_table_drain(&engine_of(s, slot)->call_table); }

// ---- epochs ----

void engine_model_missed_loss(struct pccl_sim *s, int slot, uint64_t group_epoch) {
    call_table_note_loss(&engine_of(s, slot)->call_table, group_epoch);
}

void engine_model_enter(struct pccl_sim *s, int slot, const struct member_action *action) {
    struct engine_model *e = engine_of(s, slot);
    const struct epoch *epoch = action->epoch;
    if (epoch->ring.count > SLOTS) {
        sim_fail(s, "agreement", "peer %d is told of %u members", slot + 1, epoch->ring.count);
        return;
    }
    for (uint32_t i = 0; i < epoch->ring.count; i++)
        if (i != epoch->ring.rank) know(e, &epoch->ring.members[i].id);
    epoch_put(e->pending);
    e->pending = epoch_get(epoch);
    e->pending_ready = e->call_table.ready = false;
    judge_ring(s, slot, epoch);
    if (epoch->lost) call_table_note_loss(&e->call_table, epoch->group_epoch);
    sim_algorithm_wake(e);
}

void engine_model_ready(struct pccl_sim *s, int slot, uint64_t group_epoch) {
    struct engine_model *e = engine_of(s, slot);
    if (e->pending != NULL && e->pending->group_epoch == group_epoch) e->pending_ready = true;
    if (e->pending == NULL && e->call_table.now->group_epoch == group_epoch) call_table_links_ready(&e->call_table);
}

static void send_report(struct engine_model *e, const struct wire_report *report) {
    SIM_TELL(e->sim, e->slot, report, sim_algorithm_header(e), report);
}

// False: memory was refused.
static bool enter(struct engine_model *e) {
    struct pccl_sim *s = e->sim;
    const struct epoch *epoch = e->pending;
    struct wire_report report;
    e->posted.first = NULL;
    for (int slot = 0; slot < slots(e); slot++)
        for (struct neighbour *n = e->neighbours[slot]; n != NULL; n = n->next) n->eager_bytes = 0;
    if (!call_table_enter(&e->call_table, epoch, &report)) {
        failed(e);
        return false;
    }
    epoch_put(e->pending);
    e->pending = NULL;
    s->counts[COUNT_EPOCHS]++;
    SIM_TRACE(s, "peer %d: enters group epoch %ju with %u members%s", e->slot + 1, epoch->group_epoch,
              epoch->ring.count, epoch->lost ? ", some lost" : "");
    send_report(e, &report);
    free(report.ops);
    for (int slot = 0; slot < slots(e); slot++) free_dropped(e, slot);
    return true;
}

bool engine_model_apply(struct pccl_sim *s, int slot) {
    struct engine_model *e = engine_of(s, slot);
    e->woken = false;
    bool entered = e->pending != NULL && enter(e);
    sim_algorithm_apply(e);
    return entered;
}

void engine_model_go_on(struct pccl_sim *s, int slot) {
    struct engine_model *e = engine_of(s, slot);
    if (e->pending_ready) call_table_links_ready(&e->call_table);
}

void engine_model_verdict(struct pccl_sim *s, int slot, const struct wire_verdict *verdict) {
    struct engine_model *e = engine_of(s, slot);
    for (struct op *op = e->call_table.table[tag_slot(verdict->name.tag)]; op != NULL; op = op->chain)
        if ((op->phase == OP_RUNNING || op->phase == OP_COMPLETE) && wire_op_name_equal(&op->name, &verdict->name)) {
            struct judged_op judged = sim_algorithm_shown(e, op);
            judge_verdict(s, slot, &judged, verdict);
        }
    call_table_verdict(&e->call_table, verdict);
}

// ---- frames ----

void engine_model_frame(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    struct engine_model *e = engine_of(s, slot);
    const struct epoch *now = e->call_table.now;
    struct op_member *member = NULL;
    for (uint32_t rank = 0; rank < now->ring.count; rank++)
        if (rank != now->ring.rank && sim_algorithm_slot(e->call_table.members[rank]) == from)
            member = e->call_table.members[rank];
    if (frame->epoch != now->group_epoch || frame->run != now->run || member == NULL) return;
    uint32_t bytes = frame->type == WIRE_SMALL || frame->type == WIRE_SUPPLY ? (uint32_t)frame->fingerprint.count : 0;
    struct block *block = NULL;
    if (frame->type == WIRE_SMALL || frame->type == WIRE_SUPPLY)
        block = sim_algorithm_block(bytes, frame->value, frame->contributors);
    struct wire_head head = sim_algorithm_head(frame);
    struct wire_op_name name = {frame->offset, frame->tag, frame->sequence, 0, frame->extra};
    switch (frame->type) {
    case WIRE_SMALL:
    case WIRE_POSTED:
    case WIRE_READY:
        if (!call_table_signal(&e->call_table, member, frame->type, &head, block, bytes) &&
            !s->processes[slot].out.failed)
            sim_fail(s, "bounded memory", "peer %d gets more from peer %d than it may hold", slot + 1, from + 1);
        return;
    case WIRE_CHUNK: sim_algorithm_chunk(e, from, frame); return;
    case WIRE_SUPPLY: call_table_supplied(&e->call_table, &name, block); return;
    case WIRE_ACK: call_table_acked(&e->call_table, member, frame->names, frame->name_count, frame->extra == 1); return;
    default: sim_fail(s, "no mixing", "peer %d got a frame of type %u", slot + 1, frame->type); return;
    }
}
