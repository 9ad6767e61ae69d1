// Small ops as data/movers/direct.c moves them, large ones as data/movers/ring.c, by ops/plan. What a member has
// reduced is a sum of random numbers, so that it tells who is in it, once each.
#include "sim/engine.h"

#include <string.h>

#include "ops/plan.h"
#include "sim/controls.h"
#include "sim/judge_ops.h"
#include "sim/links.h"
#include "sim/trace.h"

// ---- helpers ----

static bool same_name(const struct wire_op_name *a, const struct wire_op_name *b) { return wire_op_name_equal(a, b); }

static bool may_begin(const struct engine_model *e) { return e->now.ready && !e->pending.set; }

static uint64_t first_loss(const struct engine_model *e, uint64_t adopted) {
    for (uint32_t i = 0; i < e->loss_count; i++)
        if (e->losses[i] > adopted) return e->losses[i];
    return 0;
}

static int rank_of(const struct ring *ring, int slot) {
    for (uint32_t rank = 0; rank < ring->count; rank++)
        if (ring->slots[rank] == slot) return (int)rank;
    return -1;
}

static int successor(const struct ring *ring) { return ring->slots[(ring->rank + 1) % ring->count]; }
static int predecessor(const struct ring *ring) { return ring->slots[(ring->rank + ring->count - 1) % ring->count]; }

static struct frame frame_of(const struct engine_model *e, const struct op *op, uint16_t type) {
    return (struct frame){.type = type,
                          .run = e->run,
                          .epoch = e->now.epoch,
                          .tag = op->name.tag,
                          .sequence = op->name.sequence,
                          .variant = op->variant};
}

static struct judged_op shown(const struct engine_model *e, const struct op *op) {
    return (struct judged_op){.name = op->name,
                              .ring = &e->now,
                              .small = op->small,
                              .calls = op->calls,
                              .input = op->input,
                              .value = op->value,
                              .contributors = op->contributors,
                              .shards = op->shards,
                              .results = op->results,
                              .outcome = op->phase == OP_OK           ? OUTCOME_OK
                                         : op->phase == OP_LOST       ? OUTCOME_LOST
                                         : op->phase == OP_MISMATCHED ? OUTCOME_MISMATCH
                                                                      : OUTCOME_NONE};
}

static void wake(struct pccl_sim *s, int slot) {
    struct engine_model *e = s->processes[slot].engine;
    if (e->woken) return;
    e->woken = true;
    sim_push_for(s, slot, EVENT_ENGINE, s->now + (sim_chance(s, 4) ? (int64_t)sim_below(s, 3 * MS_NS) : 0));
}

static void end_op(struct pccl_sim *s, int slot, struct op *op, enum op_phase phase) {
    op->phase = phase;
    s->counts[COUNT_OPS_OK] += phase == OP_OK;
    s->counts[COUNT_OPS_LOST] += phase == OP_LOST;
    s->counts[COUNT_MISMATCHES] += phase == OP_MISMATCHED;
    SIM_TRACE(s, "peer %d: op %llu ends: %s", slot + 1, (unsigned long long)(op - s->processes[slot].engine->ops),
              phase == OP_OK     ? "ok"
              : phase == OP_LOST ? "lost"
                                 : "mismatch");
    struct judged_op judged = shown(s->processes[slot].engine, op);
    judge_ended(s, slot, &judged);
    sim_push_for(s, slot, EVENT_PROGRAM, s->now + (int64_t)sim_below(s, MS_NS));
}

static void end_lost(struct pccl_sim *s, int slot, struct op *op) {
    const struct engine_model *e = s->processes[slot].engine;
    uint64_t epoch = first_loss(e, op->adopted);
    if (epoch == 0 && !s->processes[slot].tainted)
        sim_fail(s, "progress", "peer %d loses op (%llu, %u, %u) although nobody was lost since it was posted",
                 slot + 1, (unsigned long long)op->name.epoch, (unsigned)(op - e->ops), op->name.sequence);
    op->ended_epoch = epoch != 0 ? epoch : e->now.epoch;
    end_op(s, slot, op, OP_LOST);
}

static void accuse(struct pccl_sim *s, int slot, struct op *op, int other, uint32_t variant) {
    struct process *p = &s->processes[slot];
    if (op->accused) return;
    op->accused = true;
    struct wire_mismatch mismatch = {.name = op->name,
                                     .mine = {.count = 1 + op->variant},
                                     .other = sim_id_of(other, p->engine->now.lives[rank_of(&p->engine->now, other)]),
                                     .theirs = {.count = 1 + variant}};
    struct wire_header header = member_header(p->mind);
    header.epoch = op->name.epoch;
    struct wire_buffer frame = {0};
    wire_encode_mismatch(&frame, header, &mismatch);
    sim_send_master(s, p, &frame);
}

// ---- what comes early ----

static bool early_add(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    struct engine_model *e = s->processes[slot].engine;
    if (e->early_count == EARLY_MOST) {
        sim_fail(s, "bounded memory", "peer %d holds %d frames of ops that it has not posted", slot + 1, EARLY_MOST);
        return false;
    }
    e->early[e->early_count++] = (struct early){(uint8_t)from, *frame};
    return true;
}

static bool early_take(struct engine_model *e, int from, const struct op *op, uint16_t type, struct frame *out) {
    for (uint32_t i = 0; i < e->early_count; i++) {
        const struct early *early = &e->early[i];
        if (early->from != from || early->frame.tag != op->name.tag || early->frame.sequence != op->name.sequence ||
            early->frame.type != type)
            continue;
        *out = early->frame;
        e->early[i] = e->early[--e->early_count];
        return true;
    }
    return false;
}

// Another way than ours, so nobody else looks at it: any early signal whose arguments differ accuses.
static void compare_early(struct pccl_sim *s, int slot, struct op *op) {
    const struct engine_model *e = s->processes[slot].engine;
    for (uint32_t i = 0; i < e->early_count; i++)
        if (e->early[i].frame.tag == op->name.tag && e->early[i].frame.sequence == op->name.sequence &&
            e->early[i].frame.variant != op->variant)
            accuse(s, slot, op, e->early[i].from, e->early[i].frame.variant);
}

// ---- kept results ----

static void send_acks(struct pccl_sim *s, int slot, int other) {
    struct engine_model *e = s->processes[slot].engine;
    if (e->ack_count[other] == 0) return;
    struct frame frame = {.type = WIRE_ACK, .run = e->run, .epoch = e->now.epoch, .name_count = e->ack_count[other]};
    memcpy(frame.names, e->acks[other], sizeof frame.names);
    e->ack_count[other] = 0;
    sim_send(s, slot, other, 0, &frame);
}

static void ack(struct pccl_sim *s, int slot, int other, const struct wire_op_name *name, bool now) {
    struct engine_model *e = s->processes[slot].engine;
    e->acks[other][e->ack_count[other]++] = *name;
    if (now || e->ack_count[other] == ACKS_MOST || e->settling[other]) send_acks(s, slot, other);
}

// The next op of a tag tells that the one before it is complete.
static void ack_implied(struct engine_model *e, int other, const struct wire_op_name *name) {
    for (uint32_t i = 0; i < e->ack_count[other]; i++) {
        const struct wire_op_name *ack = &e->acks[other][i];
        if (ack->tag != name->tag || ack->epoch != name->epoch || ack->sequence + 1 != name->sequence) continue;
        e->acks[other][i] = e->acks[other][--e->ack_count[other]];
        return;
    }
}

static struct kept *find_kept(struct engine_model *e, const struct wire_op_name *name) {
    for (uint32_t i = 0; i < e->kept_count; i++)
        if (same_name(&e->kept[i].name, name)) return &e->kept[i];
    return NULL;
}

static void drop_kept(struct engine_model *e, struct kept *kept) { *kept = e->kept[--e->kept_count]; }

static void acked(struct engine_model *e, int from, const struct wire_op_name *name) {
    struct kept *kept = find_kept(e, name);
    if (kept == NULL) return;
    kept->unacked &= ~(1U << from);
    if (kept->unacked == 0) drop_kept(e, kept);
}

static void acked_by_next(struct engine_model *e, int from, const struct frame *frame) {
    struct wire_op_name name = {e->now.epoch, frame->tag, frame->sequence - 1, 0};
    if (frame->sequence > 1) acked(e, from, &name);
}

static void keep(struct pccl_sim *s, int slot, const struct op *op) {
    struct engine_model *e = s->processes[slot].engine;
    if (e->kept_count == KEPT_MOST) {
        sim_fail(s, "bounded memory", "peer %d keeps %d results for members that must have them", slot + 1, KEPT_MOST);
        return;
    }
    struct kept *kept = &e->kept[e->kept_count++];
    *kept = (struct kept){.name = op->name, .value = op->value, .contributors = op->contributors};
    for (uint32_t rank = 0; rank < e->now.count; rank++)
        if (rank != e->now.rank) kept->unacked |= 1U << e->now.slots[rank];
}

static void send_supply(struct pccl_sim *s, int slot, const struct kept *kept) {
    const struct engine_model *e = s->processes[slot].engine;
    struct frame frame = {.type = WIRE_SUPPLY,
                          .run = e->run,
                          .epoch = e->now.epoch,
                          .tag = kept->name.tag,
                          .sequence = kept->name.sequence,
                          .offset = kept->name.epoch,
                          .value = kept->value,
                          .contributors = kept->contributors};
    for (int other = 0; other < SLOTS; other++)
        if (kept->unacked >> other & 1) sim_send(s, slot, other, 0, &frame);
}

static void supply(struct pccl_sim *s, int slot, const struct wire_verdict *verdict) {
    struct engine_model *e = s->processes[slot].engine;
    struct wire_id self = sim_id(s, slot);
    struct kept *kept = find_kept(e, &verdict->name);
    if (kept == NULL) return;
    kept->unacked = 0;
    for (uint32_t i = 0; i < verdict->count; i++) {
        uint32_t life;
        int other = sim_slot(&verdict->needy[i], &life), rank = other < 0 ? -1 : rank_of(&e->now, other);
        if (rank >= 0 && e->now.lives[rank] == life) kept->unacked |= 1U << other;
    }
    if (kept->unacked == 0) {
        drop_kept(e, kept);
        return;
    }
    kept->supplier = wire_id_equal(&verdict->supplier, &self);
    if (kept->supplier && e->now.ready) send_supply(s, slot, kept);
}

static void on_supply(struct pccl_sim *s, int slot, const struct frame *frame) {
    struct engine_model *e = s->processes[slot].engine;
    struct op *op = &e->ops[frame->tag];
    struct wire_op_name name = {frame->offset, frame->tag, frame->sequence, 0};
    if (op->phase != OP_RUNNING || !op->frozen || !op->small || !same_name(&op->name, &name)) return;
    s->counts[COUNT_OPS_SUPPLIED]++;
    op->value = frame->value;
    op->contributors = frame->contributors;
    struct judged_op judged = shown(e, op);
    judge_reduced(s, slot, &judged);
    keep(s, slot, op);
    for (uint32_t rank = 0; rank < e->now.count; rank++)
        if (rank != e->now.rank) ack(s, slot, e->now.slots[rank], &op->name, true);
    end_op(s, slot, op, OP_OK);
}

static void forget(struct pccl_sim *s, int slot, int other) {
    struct engine_model *e = s->processes[slot].engine;
    for (uint32_t i = 0; i < e->kept_count; i++) {
        e->kept[i].unacked &= ~(1U << other);
        if (e->kept[i].unacked == 0) drop_kept(e, &e->kept[i--]);
    }
    e->ack_count[other] = 0;
    e->settling[other] = false;
}

bool engine_model_forget(struct pccl_sim *s, int slot, int other, uint32_t life) {
    const struct ring *ring = &s->processes[slot].engine->now;
    int rank = rank_of(ring, other);
    if (rank >= 0 && ring->lives[rank] == life) return false;
    forget(s, slot, other);
    return true;
}

void engine_model_settle(struct pccl_sim *s, int slot) {
    const struct engine_model *e = s->processes[slot].engine;
    if (!may_begin(e)) return;
    for (uint32_t rank = 0; rank < e->now.count; rank++) {
        if (rank == e->now.rank) continue;
        int other = e->now.slots[rank];
        send_acks(s, slot, other);
        struct frame ask = {.type = WIRE_ACK, .run = e->run, .epoch = e->now.epoch, .extra = 1};
        sim_send(s, slot, other, 0, &ask);
    }
}

// ---- small ops ----

static void complete_small(struct pccl_sim *s, int slot, struct op *op) {
    const struct engine_model *e = s->processes[slot].engine;
    struct judged_op judged = shown(e, op);
    judge_reduced(s, slot, &judged);
    keep(s, slot, op);
    for (uint32_t rank = 0; rank < e->now.count; rank++)
        if (rank != e->now.rank) ack(s, slot, e->now.slots[rank], &op->name, false);
    end_op(s, slot, op, OP_OK);
}

static void take_input(struct op *op, int from, const struct frame *frame) {
    if (op->arrived >> from & 1) return;
    op->arrived |= 1U << from;
    op->value += frame->value;
    op->contributors |= frame->contributors;
    op->missing--;
}

static void begin_small(struct pccl_sim *s, int slot, struct op *op) {
    struct engine_model *e = s->processes[slot].engine;
    struct frame mine = frame_of(e, op, WIRE_SMALL), early;
    mine.value = op->input;
    mine.contributors = 1U << slot;
    op->missing = e->now.count - 1;
    op->arrived = 0;
    for (uint32_t step = 1; step < e->now.count; step++) {
        int other = e->now.slots[(e->now.rank + step) % e->now.count];
        ack_implied(e, other, &op->name);
        sim_send(s, slot, other, 0, &mine);
        if (!early_take(e, other, op, WIRE_SMALL, &early)) continue;
        if (early.variant != op->variant)
            accuse(s, slot, op, other, early.variant);
        else if (!op->accused)
            take_input(op, other, &early);
    }
    if (op->missing == 0 && !op->accused) complete_small(s, slot, op);
}

static struct op *find_running(struct engine_model *e, const struct frame *frame) {
    struct op *op = &e->ops[frame->tag];
    bool running = (op->phase == OP_RUNNING || op->phase == OP_COMPLETE) && !op->frozen;
    return running && op->name.epoch == e->now.epoch && op->name.sequence == frame->sequence ? op : NULL;
}

static void on_small(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    struct engine_model *e = s->processes[slot].engine;
    acked_by_next(e, from, frame);
    struct op *op = find_running(e, frame);
    if (op == NULL) {
        early_add(s, slot, from, frame);
    } else if (op->variant != frame->variant) {
        accuse(s, slot, op, from, frame->variant);
    } else if (op->small) {
        take_input(op, from, frame);
        if (op->missing == 0 && !op->accused) complete_small(s, slot, op);
    }
}

// ---- large ops ----

// The shards of an op that travel in the model.
static bool travels(const struct op *op, uint32_t members, uint32_t shard) {
    uint32_t first = (uint32_t)(sim_mix(op->name.epoch * 131 + op->name.tag) % members);
    return (shard + members - first) % members < SHARDS_MOST;
}

static void complete_large(struct pccl_sim *s, int slot, struct op *op) {
    struct process *p = &s->processes[slot];
    if (op->phase != OP_RUNNING || op->accused || op->to_receive > 0 || op->to_send > 0) return;
    struct judged_op judged = shown(p->engine, op);
    judge_reduced(s, slot, &judged);
    op->phase = OP_COMPLETE;
    judge_complete(s, slot, &judged);
    struct wire_op_done done = {op->name};
    struct wire_header header = member_header(p->mind);
    header.epoch = op->name.epoch;
    struct wire_buffer frame = {0};
    wire_encode_op_done(&frame, header, &done);
    sim_send_master(s, p, &frame);
}

static void forward(struct pccl_sim *s, int slot, struct op *op, const struct frame *frame) {
    const struct engine_model *e = s->processes[slot].engine;
    if (!op->next_ready) {
        if (op->held_count == HELD_MOST)
            sim_fail(s, "bounded memory", "peer %d holds more chunks than an op has", slot + 1);
        else
            op->held[op->held_count++] = *frame;
        return;
    }
    sim_send(s, slot, successor(&e->now), 1 + frame->shard % LANES, frame);
    op->to_send--;
}

static void next_is_ready(struct pccl_sim *s, int slot, struct op *op) {
    if (op->next_ready) return;
    op->next_ready = true;
    uint32_t count = op->held_count;
    op->held_count = 0;
    for (uint32_t i = 0; i < count; i++) forward(s, slot, op, &op->held[i]);
    complete_large(s, slot, op);
}

static void begin_large(struct pccl_sim *s, int slot, struct op *op) {
    struct engine_model *e = s->processes[slot].engine;
    uint32_t n = e->now.count, rank = e->now.rank;
    struct frame ready = frame_of(e, op, WIRE_READY), early;
    op->next_ready = false;
    op->held_count = op->to_receive = op->to_send = op->shards = op->results = 0;
    for (uint32_t shard = 0; shard < n; shard++) {
        if (!travels(op, n, shard)) continue;
        op->shards++;
        op->to_send += shard == rank;
        for (uint32_t hop = 0; hop <= 2 * n - 3; hop++) {
            enum plan_step step = plan_ring_step(n, rank, shard, hop);
            op->to_receive += step != PLAN_INVALID;
            op->to_send += step != PLAN_INVALID && step != PLAN_GATHER_LAST;
        }
    }
    bool posted = early_take(e, successor(&e->now), op, WIRE_READY, &early);
    if (posted && early.variant != op->variant) accuse(s, slot, op, successor(&e->now), early.variant);
    sim_send(s, slot, predecessor(&e->now), 0, &ready);
    if (travels(op, n, rank)) {
        struct frame chunk = frame_of(e, op, WIRE_CHUNK);
        chunk.shard = (uint16_t)rank;
        chunk.value = op->input;
        chunk.contributors = 1U << slot;
        forward(s, slot, op, &chunk);
    }
    if (posted) next_is_ready(s, slot, op);
}

static void on_chunk(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    struct engine_model *e = s->processes[slot].engine;
    struct op *op = find_running(e, frame);
    if (op == NULL || op->phase != OP_RUNNING || op->variant != frame->variant) {
        if (op == NULL)
            sim_fail(s, "no mixing", "peer %d got a chunk of op (%llu, %llu, %u) from %d, which it has not begun",
                     slot + 1, (unsigned long long)frame->epoch, (unsigned long long)frame->tag, frame->sequence,
                     from + 1);
        return;
    }
    enum plan_step step = plan_ring_step(e->now.count, e->now.rank, frame->shard, frame->hop);
    if (from != predecessor(&e->now) || step == PLAN_INVALID || op->small || op->to_receive == 0) {
        sim_fail(s, "no mixing", "peer %d got a chunk of shard %u at hop %u from %d that it does not expect", slot + 1,
                 frame->shard, frame->hop, from + 1);
        return;
    }
    op->to_receive--;
    struct frame next = *frame;
    next.hop++;
    if (step == PLAN_REDUCE || step == PLAN_REDUCE_LAST) {
        if (frame->contributors >> slot & 1)
            sim_fail(s, "exactness", "peer %d is to add its input to a sum that has it", slot + 1);
        next.value += op->input;
        next.contributors |= 1U << slot;
    }
    if (step != PLAN_REDUCE) {
        bool first = op->results++ == 0;
        if (!first && (op->value != next.value || op->contributors != next.contributors))
            sim_fail(s, "exactness", "two shards of an op hold different contributors at peer %d", slot + 1);
        op->value = next.value;
        op->contributors = next.contributors;
    }
    if (step != PLAN_GATHER_LAST) forward(s, slot, op, &next);
    complete_large(s, slot, op);
}

static void on_ready(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    struct engine_model *e = s->processes[slot].engine;
    acked_by_next(e, from, frame);
    struct op *op = find_running(e, frame);
    if (op == NULL)
        early_add(s, slot, from, frame);
    else if (op->variant != frame->variant)
        accuse(s, slot, op, from, frame->variant);
    else if (op->small)
        early_add(s, slot, from, frame);
    else
        next_is_ready(s, slot, op);
}

// ---- beginning ----

static void begin(struct pccl_sim *s, int slot, struct op *op) {
    struct process *p = &s->processes[slot];
    struct engine_model *e = p->engine;
    uint64_t tag = (uint64_t)(op - e->ops);
    op->name = (struct wire_op_name){e->now.epoch, tag, ++e->sequences[tag], 0};
    op->accused = op->mismatched = op->frozen = false;
    op->value = op->contributors = op->shards = op->results = 0;
    if (e->now.count < 2) { // alone: only a loss leads here
        end_lost(s, slot, op);
        return;
    }
    op->small = plan_choose(op->bytes, false, e->now.count, e->now.latency_us, e->now.megabytes_per_s) == PLAN_SMALL;
    op->phase = OP_RUNNING;
    SIM_TRACE(s, "peer %d: begins %s op (%llu, %llu, %u)", slot + 1, op->small ? "small" : "large",
              (unsigned long long)op->name.epoch, (unsigned long long)tag, op->name.sequence);
    struct judged_op judged = shown(e, op);
    judge_begins(s, slot, &judged);
    compare_early(s, slot, op);
    if (op->small) {
        op->value = op->input;
        op->contributors = 1U << slot;
        begin_small(s, slot, op);
    } else {
        begin_large(s, slot, op);
    }
}

static void begin_waiting(struct pccl_sim *s, int slot) {
    struct engine_model *e = s->processes[slot].engine;
    for (uint32_t tag = 0; tag < TAGS; tag++)
        if (e->ops[tag].phase == OP_WAITING && may_begin(e)) begin(s, slot, &e->ops[tag]);
}

// Whichever came first for those that had begun the op: `loss`, the first since the caller's epoch (0: none), or the
// mismatch.
static bool take_poison(struct engine_model *e, uint32_t tag, uint64_t loss) {
    uint64_t *epochs = e->poisons[tag].epochs;
    if (e->poisons[tag].count == 0 || (loss != 0 && loss <= epochs[0])) return false;
    memmove(epochs, epochs + 1, --e->poisons[tag].count * sizeof *epochs);
    return true;
}

static void add_poison(struct engine_model *e, uint32_t tag, uint64_t epoch) {
    if (e->poisons[tag].count < POISONS_MOST) e->poisons[tag].epochs[e->poisons[tag].count++] = epoch;
}

void engine_model_post(struct pccl_sim *s, int slot, uint32_t tag, uint32_t bytes, uint32_t variant, uint64_t input,
                       uint64_t adopted) {
    struct engine_model *e = s->processes[slot].engine;
    struct op *op = &e->ops[tag];
    *op = (struct op){.phase = OP_WAITING,
                      .bytes = bytes,
                      .variant = variant,
                      .input = input,
                      .adopted = adopted,
                      .calls = op->calls + 1};
    uint64_t loss = first_loss(e, adopted);
    if (take_poison(e, tag, loss)) {
        end_op(s, slot, op, OP_MISMATCHED);
    } else if (loss != 0) {
        end_lost(s, slot, op);
    } else if (may_begin(e)) {
        begin(s, slot, op);
    }
}

// ---- epochs ----

static void note_loss(struct engine_model *e, uint64_t group_epoch) {
    if (e->loss_count == LOSSES_MOST) memmove(e->losses, e->losses + 1, --e->loss_count * sizeof e->losses[0]);
    e->losses[e->loss_count++] = group_epoch;
}

void engine_model_missed_loss(struct pccl_sim *s, int slot, uint64_t group_epoch) {
    note_loss(s->processes[slot].engine, group_epoch);
}

void engine_model_enter(struct pccl_sim *s, int slot, const struct member_action *action) {
    struct process *p = &s->processes[slot];
    struct engine_model *e = p->engine;
    const struct epoch *epoch = action->epoch;
    e->pending = (struct ring){.set = true,
                               .lost = epoch->lost || (e->pending.set && e->pending.lost),
                               .run = epoch->run,
                               .generation = epoch->generation,
                               .epoch = epoch->group_epoch,
                               .latency_us = epoch->latency_us,
                               .megabytes_per_s = epoch->megabytes_per_s,
                               .count = epoch->ring.count,
                               .rank = epoch->ring.rank};
    if (e->pending.count > SLOTS) {
        sim_fail(s, "agreement", "peer %d is told of %u members", slot + 1, e->pending.count);
        return;
    }
    for (uint32_t i = 0; i < e->pending.count; i++) {
        int other = sim_slot(&epoch->ring.members[i].id, &e->pending.lives[i]);
        e->pending.slots[i] = (uint8_t)(other < 0 ? 0 : other);
    }
    judge_ring(s, slot, &e->pending);
    e->now.ready = false;
    if (epoch->lost) note_loss(e, epoch->group_epoch);
    wake(s, slot);
}

static void freeze(struct pccl_sim *s, int slot, struct op *op) {
    bool begun = op->phase == OP_RUNNING || op->phase == OP_COMPLETE;
    if (begun && op->mismatched)
        end_op(s, slot, op, OP_MISMATCHED);
    else if (begun)
        op->frozen = true;
}

static void send_report(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    const struct engine_model *e = p->engine;
    struct wire_op_report list[TAGS + KEPT_MOST];
    struct wire_report report = {.ops = list};
    for (uint32_t tag = 0; tag < TAGS; tag++) {
        const struct op *op = &e->ops[tag];
        if (op->frozen && (op->phase == OP_RUNNING || op->phase == OP_COMPLETE))
            list[report.count++] =
                (struct wire_op_report){op->name, op->phase == OP_COMPLETE ? WIRE_OP_DONE : WIRE_OP_OPEN, op->small};
    }
    for (uint32_t i = 0; i < e->kept_count; i++)
        list[report.count++] = (struct wire_op_report){e->kept[i].name, WIRE_OP_KEPT, 1};
    struct wire_header header = member_header(p->mind);
    header.epoch = e->now.epoch;
    struct wire_buffer frame = {0};
    wire_encode_report(&frame, header, &report);
    sim_send_master(s, p, &frame);
}

static void links_are_ready(struct pccl_sim *s, int slot) {
    const struct engine_model *e = s->processes[slot].engine;
    for (uint32_t i = 0; i < e->kept_count; i++)
        if (e->kept[i].supplier) send_supply(s, slot, &e->kept[i]);
    begin_waiting(s, slot);
}

void engine_model_ready(struct pccl_sim *s, int slot, uint64_t group_epoch) {
    struct engine_model *e = s->processes[slot].engine;
    if (e->pending.set) {
        if (e->pending.epoch == group_epoch) e->pending.ready = true;
    } else if (e->now.epoch == group_epoch) {
        e->now.ready = true;
        links_are_ready(s, slot);
    }
}

bool engine_model_obey(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    struct engine_model *e = p->engine;
    e->woken = false;
    if (!e->pending.set) return false;
    for (uint32_t tag = 0; tag < TAGS; tag++) freeze(s, slot, &e->ops[tag]);
    e->early_count = 0;
    memset(e->sequences, 0, sizeof e->sequences);
    e->run = e->pending.run;
    e->generation = e->pending.generation;
    e->now = e->pending;
    e->pending.set = false;
    s->counts[COUNT_EPOCHS]++;
    SIM_TRACE(s, "peer %d: enters group epoch %llu with %u members%s", slot + 1, (unsigned long long)e->now.epoch,
              e->now.count, e->now.lost ? ", some lost" : "");
    send_report(s, slot);
    for (uint32_t tag = 0; tag < TAGS; tag++)
        if (e->ops[tag].phase == OP_WAITING && first_loss(e, e->ops[tag].adopted) != 0) end_lost(s, slot, &e->ops[tag]);
    for (int other = 0; other < (int)s->peers; other++)
        if (rank_of(&e->now, other) < 0) forget(s, slot, other);
    return true;
}

void engine_model_go_on(struct pccl_sim *s, int slot) {
    if (s->processes[slot].engine->now.ready) links_are_ready(s, slot);
}

// ---- verdicts ----

static void on_mismatch(struct pccl_sim *s, int slot, const struct wire_verdict *verdict) {
    struct engine_model *e = s->processes[slot].engine;
    if (verdict->name.tag >= TAGS) return;
    struct op *op = &e->ops[verdict->name.tag];
    bool begun = op->phase == OP_RUNNING || op->phase == OP_COMPLETE;
    bool ours = begun && same_name(&op->name, &verdict->name);
    uint64_t loss = first_loss(e, op->adopted);
    bool waiting = op->phase == OP_WAITING && (loss == 0 || loss > verdict->name.epoch);
    if (waiting || (ours && op->frozen))
        end_op(s, slot, op, OP_MISMATCHED);
    else if (ours)
        op->mismatched = true;
    else
        add_poison(e, (uint32_t)verdict->name.tag, verdict->name.epoch);
}

void engine_model_verdict(struct pccl_sim *s, int slot, const struct wire_verdict *verdict) {
    static const struct wire_id nobody;
    struct engine_model *e = s->processes[slot].engine;
    struct op *op = verdict->name.tag < TAGS ? &e->ops[verdict->name.tag] : NULL;
    bool ours =
        op != NULL && (op->phase == OP_RUNNING || op->phase == OP_COMPLETE) && same_name(&op->name, &verdict->name);
    if (ours) {
        struct judged_op judged = shown(e, op);
        judge_verdict(s, slot, &judged, verdict);
    }
    switch (verdict->kind) {
    case WIRE_VERDICT_COMMIT:
        if (!wire_id_equal(&verdict->supplier, &nobody))
            supply(s, slot, verdict);
        else if (ours && op->phase == OP_COMPLETE)
            end_op(s, slot, op, OP_OK);
        return;
    case WIRE_VERDICT_ABORT:
        if (ours && op->frozen && take_poison(e, (uint32_t)op->name.tag, first_loss(e, op->adopted)))
            end_op(s, slot, op, OP_MISMATCHED);
        else if (ours && op->frozen)
            end_lost(s, slot, op);
        return;
    case WIRE_VERDICT_REDO:
        if (!ours || !op->frozen) return;
        if (take_poison(e, (uint32_t)op->name.tag, 0)) {
            end_op(s, slot, op, OP_MISMATCHED);
            return;
        }
        s->counts[COUNT_OPS_REDONE]++;
        op->frozen = false;
        op->phase = OP_WAITING;
        if (may_begin(e)) begin(s, slot, op);
        return;
    case WIRE_VERDICT_MISMATCH: on_mismatch(s, slot, verdict); return;
    default: return;
    }
}

// ---- frames ----

void engine_model_frame(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    struct engine_model *e = s->processes[slot].engine;
    if (frame->epoch != e->now.epoch || frame->run != e->run || rank_of(&e->now, from) < 0) return;
    switch (frame->type) {
    case WIRE_SMALL: on_small(s, slot, from, frame); return;
    case WIRE_READY: on_ready(s, slot, from, frame); return;
    case WIRE_CHUNK: on_chunk(s, slot, from, frame); return;
    case WIRE_SUPPLY: on_supply(s, slot, frame); return;
    case WIRE_ACK:
        for (uint32_t i = 0; i < frame->name_count; i++) acked(e, from, &frame->names[i]);
        if (frame->extra != 1) return;
        e->settling[from] = true;
        send_acks(s, slot, from);
        return;
    default: sim_fail(s, "no mixing", "peer %d got a frame of type %u", slot + 1, frame->type); return;
    }
}
