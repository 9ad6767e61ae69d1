// A leaf is one number, and its own hash.
#include "sim/state.h"

#include <stdlib.h>
#include <string.h>

#include "compute/hash.h"
#include "sim/controls.h"
#include "sim/engine.h"
#include "sim/links.h"
#include "sim/trace.h"
#include "sim/truth.h"

enum { TICK_MS = 50 };

static struct delta_entry entry = {.bytes = (uint64_t)LEAVES * HASH_LEAF_BYTES, .leaf_count = LEAVES};
static const struct delta_layout layout = {
    .entries = &entry, .count = 1, .leaf_count = LEAVES, .bytes = (uint64_t)LEAVES * HASH_LEAF_BYTES};

uint64_t state_model_content(const uint64_t leaves[LEAVES]) {
    uint64_t content = 0;
    for (uint32_t i = 0; i < LEAVES; i++) content = sim_mix(content + leaves[i] + i);
    return content;
}

void state_model_begin(struct pccl_sim *s, int slot) {
    struct state_model *state = s->processes[slot].state;
    state->phase = SYNC_VOTED;
    state->wrote = state->wrote_now = false;
    state->ask_count = 0;
    state->round = 0;
}

// The transfers of the round end; the next master plans others.
enum member_tensors state_model_restart(struct pccl_sim *s, int slot, struct wire_hash *content) {
    struct process *p = &s->processes[slot];
    struct state_model *state = p->state;
    if (state->phase == SYNC_NONE) return MEMBER_TENSORS_AS_VOTED;
    s->counts[COUNT_RESTARTED]++;
    bool wrote = state->wrote_now, torn = wrote && state->delta != NULL && delta_missing(state->delta) > 0;
    for (uint32_t leaf = 0; leaf < LEAVES && torn; leaf++)
        if (delta_wants(state->delta, leaf)) state->leaves[leaf] = sim_random(s); // half-written
    s->counts[COUNT_TORN] += torn;
    if (torn) state->incomplete = true;
    delta_free(state->delta);
    state->delta = NULL;
    state->phase = SYNC_VOTED;
    state->wrote_now = false;
    state->ask_count = 0;
    state->round = 0;
    content->low = state_model_content(state->leaves);
    return !wrote ? MEMBER_TENSORS_AS_VOTED : torn ? MEMBER_TENSORS_TORN : MEMBER_TENSORS_RECEIVED;
}

static bool send_frame(struct pccl_sim *s, int slot, int other, const struct frame *frame) {
    return sim_has_link(s, slot, other) && sim_send(s, slot, other, frame->type == WIRE_SYNC_LEAF ? 1 : 0, frame);
}

static struct frame frame_of(const struct process *p, uint16_t type) {
    return (struct frame){.type = type, .run = p->engine->call_table.now->run, .tag = p->state->round};
}

// ---- giving ----

static void answer(struct pccl_sim *s, int slot, const struct ask *ask) {
    struct process *p = &s->processes[slot];
    if (ask->frame.tag != p->state->round) return;
    struct frame frame = frame_of(p, ask->frame.type == WIRE_SYNC_ASK ? WIRE_SYNC_LEAF : WIRE_SYNC_HASHES);
    frame.sequence = ask->frame.sequence;
    if (frame.type == WIRE_SYNC_HASHES) {
        memcpy(frame.leaves, p->state->leaves, sizeof frame.leaves);
        send_frame(s, slot, ask->from, &frame);
        return;
    }
    for (uint32_t i = 0; i < ask->frame.extra; i++) {
        frame.offset = ask->frame.offset + i;
        frame.value = p->state->leaves[frame.offset];
        send_frame(s, slot, ask->from, &frame);
    }
}

static void take_ask(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    struct state_model *state = s->processes[slot].state;
    struct ask ask = {(uint16_t)from, *frame};
    if (state->phase == SYNC_GIVING)
        answer(s, slot, &ask);
    else if (state->phase == SYNC_VOTED && state->ask_count == sizeof state->asks / sizeof state->asks[0])
        sim_fail(s, "bounded memory", "peer %d holds %u asks for a plan that has not come", slot + 1, state->ask_count);
    else if (state->phase == SYNC_VOTED)
        state->asks[state->ask_count++] = ask;
}

// ---- receiving ----

static void finish(struct pccl_sim *s, int slot, bool complete) {
    struct process *p = &s->processes[slot];
    struct state_model *state = p->state;
    static _Thread_local struct wire_sync_done done;
    state->phase = SYNC_DONE;
    done.round = state->round;
    done.complete = complete;
    done.count = 0;
    for (uint32_t i = 0; i < state->donor_count; i++)
        if (state->donors[i].kept > 0)
            done.sources[done.count++] = (struct wire_sync_source){state->donors[i].id, state->donors[i].kept};
    s->counts[complete ? COUNT_FETCHES : COUNT_NOT_FETCHED]++;
    SIM_TELL(s, slot, sync_done, sim_algorithm_header(p->engine), &done);
}

static void pump_donor(struct pccl_sim *s, int slot, uint32_t index) {
    struct process *p = &s->processes[slot];
    struct donor_model *donor = &p->state->donors[index];
    if (donor->slot < 0 || !sim_has_link(s, slot, donor->slot)) return;
    for (;;) {
        bool idle = delta_on_way(p->state->delta, index) == 0;
        struct delta_range range = delta_ask(p->state->delta, index, s->now);
        if (range.count == 0) return;
        if (idle) donor->progress_at = s->now;
        struct frame frame = frame_of(p, WIRE_SYNC_ASK);
        frame.offset = range.first;
        frame.extra = range.count;
        frame.sequence = ++p->state->sequence;
        if (send_frame(s, slot, donor->slot, &frame)) continue;
        delta_revoke(p->state->delta, index);
        return;
    }
}

static void pump(struct pccl_sim *s, int slot) {
    struct state_model *state = s->processes[slot].state;
    if (state->phase != SYNC_LEAVES) return;
    for (uint32_t i = 0; i < state->donor_count; i++) pump_donor(s, slot, i);
    if (delta_missing(state->delta) == 0)
        finish(s, slot, true);
    else if (delta_hopeless(state->delta))
        finish(s, slot, false);
}

static void ask_hashes(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    struct state_model *state = p->state;
    struct frame frame = frame_of(p, WIRE_SYNC_ASK_HASHES);
    frame.sequence = ++state->sequence;
    frame.extra = LEAVES;
    int donor = state->donors[state->hash_donor].slot;
    state->asked_at = donor >= 0 && send_frame(s, slot, donor, &frame) ? s->now : 0;
}

static void next_hash_donor(struct pccl_sim *s, int slot) {
    struct state_model *state = s->processes[slot].state;
    for (uint32_t i = 1; i <= state->donor_count; i++) {
        uint32_t donor = (state->hash_donor + i) % state->donor_count;
        if (state->donors[donor].slot < 0 || state->donors[donor].bad) continue;
        state->hash_donor = donor;
        ask_hashes(s, slot);
        return;
    }
    finish(s, slot, false);
}

static void take_hashes(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    struct state_model *state = s->processes[slot].state;
    if (state->phase != SYNC_HASHES || from != state->donors[state->hash_donor].slot ||
        frame->sequence != state->sequence)
        return;
    if (state_model_content(frame->leaves) != state->content) {
        state->donors[state->hash_donor].bad = true;
        next_hash_donor(s, slot);
        return;
    }
    memcpy(state->theirs, frame->leaves, sizeof state->theirs);
    state->phase = SYNC_LEAVES;
    delta_free(state->delta);
    state->delta = delta_new(&layout, state->donor_count);
    if (state->delta == NULL) { // the communicator dies of it
        s->processes[slot].out.failed = true;
        state->phase = SYNC_DONE;
        return;
    }
    delta_compare(state->delta, state->leaves, state->theirs);
    for (uint32_t i = 0; i < state->donor_count; i++)
        if (state->donors[i].slot < 0) delta_drop(state->delta, i);
    pump(s, slot);
}

static void take_leaf(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    struct state_model *state = s->processes[slot].state;
    uint32_t index = 0;
    while (index < state->donor_count && state->donors[index].slot != from) index++;
    if (state->phase != SYNC_LEAVES || index == state->donor_count || !delta_wants(state->delta, frame->offset)) return;
    state->leaves[frame->offset] = frame->value;
    state->wrote = state->wrote_now = true;
    if (frame->value == state->theirs[frame->offset]) {
        delta_arrived(state->delta, frame->offset, index, s->now);
        state->donors[index].kept += HASH_LEAF_BYTES;
    } else {
        delta_wrong(state->delta, frame->offset, index);
    }
    pump(s, slot);
}

// ---- what happens around it ----

// A state whose transfer was cut short must not win: somebody has to hold the content whole.
static void judge_plan(struct pccl_sim *s, const struct wire_sync_plan *plan) {
    for (uint32_t i = 0; i < plan->donor_count; i++) {
        uint32_t life;
        int slot = sim_slot(&plan->donors[i], &life);
        if (slot < 0 || !sim_alive(s, slot, life) || truth_is_tainted(s, slot, life) ||
            !s->processes[slot].state->incomplete)
            return;
    }
    sim_fail(s, "parity", "the winner of round %ju is a state whose transfer was cut short", plan->round);
}

void state_model_plan(struct pccl_sim *s, int slot, const struct wire_sync_plan *plan) {
    struct process *p = &s->processes[slot];
    struct state_model *state = p->state;
    struct wire_id self = sim_id(s, slot);
    if (state->phase != SYNC_VOTED) {
        sim_fail(s, "parity", "peer %d got a second plan in one round", slot + 1);
        return;
    }
    bool receives = false, gives = false;
    for (uint32_t i = 0; i < plan->receiver_count; i++) receives |= wire_id_equal(&plan->receivers[i], &self);
    for (uint32_t i = 0; i < plan->donor_count; i++) gives |= wire_id_equal(&plan->donors[i], &self);
    bool holds = state_model_content(state->leaves) == plan->content.low;
    if (!p->tainted && ((gives && (receives || !holds)) || (!receives && !holds)))
        sim_fail(s, "parity", "peer %d %s by the plan of round %ju, and holds %s content", slot + 1,
                 gives ? "gives" : "waits", plan->round, holds ? "the winner's" : "other");
    if (!p->tainted) judge_plan(s, plan);
    state->round = plan->round;
    state->content = plan->content.low;
    if (!receives) {
        state->phase = SYNC_GIVING;
        for (uint32_t i = 0; i < state->ask_count; i++) answer(s, slot, &state->asks[i]);
        state->ask_count = 0;
        return;
    }
    const struct epoch_ring *ring = &p->engine->call_table.now->ring;
    state->phase = SYNC_HASHES;
    state->donor_count = plan->donor_count < DATA_SLOTS ? plan->donor_count : DATA_SLOTS;
    for (uint32_t i = 0; i < state->donor_count; i++) {
        struct donor_model *donor = &state->donors[i];
        *donor = (struct donor_model){.id = plan->donors[i], .progress_at = s->now};
        donor->slot = sim_slot(&plan->donors[i], &donor->life);
        if (!epoch_ring_has(ring, &donor->id)) donor->slot = -1;
    }
    state->hash_donor = ring->rank % state->donor_count;
    ask_hashes(s, slot);
    sim_push_for(s, slot, EVENT_SYNC_TICK, s->now + TICK_MS * MS_NS);
}

static void look_at_donors(struct pccl_sim *s, int slot) {
    struct state_model *state = s->processes[slot].state;
    for (uint32_t i = 0; i < state->donor_count; i++) {
        struct donor_model *donor = &state->donors[i];
        if (donor->kept != donor->seen || delta_on_way(state->delta, i) == 0) {
            donor->seen = donor->kept;
            donor->progress_at = s->now;
        } else if (s->now - donor->progress_at > s->limit_ns) {
            donor->progress_at = s->now;
            delta_shun(state->delta, i);
        }
    }
    pump(s, slot);
}

static void look(struct pccl_sim *s, int slot) {
    struct state_model *state = s->processes[slot].state;
    if (state->phase == SYNC_LEAVES) {
        look_at_donors(s, slot);
    } else if (state->phase == SYNC_HASHES) {
        bool gone = state->donors[state->hash_donor].slot < 0;
        if (state->asked_at == 0 && !gone)
            ask_hashes(s, slot);
        else if (gone || s->now - state->asked_at > s->limit_ns)
            next_hash_donor(s, slot);
    }
}

void state_model_tick(struct pccl_sim *s, int slot) {
    const struct state_model *state = s->processes[slot].state;
    look(s, slot);
    if (state->phase == SYNC_HASHES || state->phase == SYNC_LEAVES)
        sim_push_for(s, slot, EVENT_SYNC_TICK, s->now + TICK_MS * MS_NS);
}

void state_model_forget(struct pccl_sim *s, int slot, int other) {
    struct state_model *state = s->processes[slot].state;
    for (uint32_t i = 0; i < state->ask_count; i++)
        if (state->asks[i].from == other) state->asks[i--] = state->asks[--state->ask_count];
    if (state->phase != SYNC_HASHES && state->phase != SYNC_LEAVES) return;
    for (uint32_t i = 0; i < state->donor_count; i++)
        if (state->donors[i].slot == other) {
            state->donors[i].slot = -1;
            if (state->phase == SYNC_LEAVES) delta_drop(state->delta, i);
        }
    look(s, slot);
}

// Requests and answers alike may be lost with the connection.
void state_model_link_ends(struct pccl_sim *s, int slot, int other) {
    struct state_model *state = s->processes[slot].state;
    if (state->phase != SYNC_HASHES && state->phase != SYNC_LEAVES) return;
    for (uint32_t i = 0; i < state->donor_count; i++) {
        if (state->donors[i].slot != other) continue;
        if (state->phase == SYNC_LEAVES) delta_revoke(state->delta, i);
        if (state->phase == SYNC_HASHES && i == state->hash_donor) state->asked_at = 0;
    }
}

void state_model_end(struct pccl_sim *s, int slot) {
    struct state_model *state = s->processes[slot].state;
    state->phase = SYNC_NONE;
    delta_free(state->delta);
    state->delta = NULL;
}

void state_model_frame(struct pccl_sim *s, int slot, int from, const struct frame *frame) {
    switch (frame->type) {
    case WIRE_SYNC_HASHES: take_hashes(s, slot, from, frame); return;
    case WIRE_SYNC_LEAF: take_leaf(s, slot, from, frame); return;
    default: take_ask(s, slot, from, frame); return;
    }
}
