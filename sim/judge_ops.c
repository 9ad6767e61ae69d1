#include "sim/judge_ops.h"

#include <string.h>

#include "sim/process.h"
#include "sim/trace.h"
#include "sim/truth.h"

void judge_ops_begin(struct pccl_sim *s) {
    memset(s->ops->slots, 0, sizeof s->ops->slots); // the instances are emptied by their chains
    memset(s->ops->rings, 0, sizeof s->ops->rings);
    s->ops->count = s->ops->ring_count = 0;
}

void judge_ops_forget(struct pccl_sim *s, uint64_t run, uint64_t first) {
    for (uint32_t i = 0; i < RINGS_MOST; i++)
        if (s->ops->rings[i].run == run && s->ops->rings[i].generation >= first)
            s->ops->rings[i] = (struct ring_record){0};
    for (uint32_t i = 0; i < INSTANCES_MOST && i < s->ops->count; i++)
        if (s->ops->instances[i].run == run && s->ops->instances[i].generation >= first) s->ops->instances[i].run = 0;
    for (uint32_t i = 0; i < ROUNDS_MOST; i++)
        if (s->ends->rounds[i].run == run && s->ends->rounds[i].round >> 32 >= first)
            s->ends->rounds[i] = (struct round_record){0};
}

static bool instance_tainted(const struct pccl_sim *s, const struct instance *instance) {
    for (int slot = 0; slot < (int)s->peers; slot++)
        if ((instance->members >> slot & 1) != 0 && truth_is_tainted(s, slot, instance->lives[slot])) return true;
    return false;
}

void judge_ring(struct pccl_sim *s, int slot, const struct epoch *epoch) {
    const struct process *p = &s->processes[slot];
    struct wire_header header = member_header(p->core);
    uint64_t hash = sim_mix(epoch->latency_us) + sim_mix(epoch->megabytes_per_s + 1);
    for (uint32_t i = 0; i < epoch->ring.count; i++) {
        uint32_t life;
        int other = sim_slot(&epoch->ring.members[i].id, &life);
        hash = sim_mix(hash + (uint64_t)(int64_t)other + ((uint64_t)life << 8));
    }
    if (p->tainted) return;
    for (uint32_t i = 0; i < RINGS_MOST; i++) {
        const struct ring_record *record = &s->ops->rings[i];
        if (record->run != header.run || record->generation != header.generation ||
            record->epoch != epoch->group_epoch || record->group != p->group || record->hash == hash)
            continue;
        sim_fail(s, "agreement",
                 "peer %d enters group epoch %ju of group %u with other members, another order or other figures than "
                 "another peer",
                 slot + 1, epoch->group_epoch, p->group);
        return;
    }
    s->ops->rings[s->ops->ring_count++ % RINGS_MOST] =
        (struct ring_record){header.run, header.generation, epoch->group_epoch, hash, p->group};
}

static uint32_t *chain_of(struct pccl_sim *s, uint64_t run, uint32_t group, const struct wire_op_name *name) {
    uint64_t hash =
        sim_mix(run + group * 7919 + name->epoch * 31 + name->tag * 1000003 + name->sequence * 64 + name->segment);
    return &s->ops->slots[hash % INSTANCE_SLOTS];
}

// Returns the instance of the newest generation up to this one; NULL if there is none.
static struct instance *find(struct pccl_sim *s, uint64_t run, uint64_t generation, uint32_t group,
                             const struct wire_op_name *name) {
    struct instance *found = NULL;
    for (uint32_t next = *chain_of(s, run, group, name); next != 0;) {
        struct instance *instance = &s->ops->instances[(next - 1) % INSTANCES_MOST];
        if (instance->id != next - 1) break; // the rest of the chain is older still
        bool meant = instance->run == run && instance->group == group && instance->generation <= generation &&
                     wire_op_name_equal(&instance->name, name);
        if (meant && (found == NULL || instance->generation > found->generation)) found = instance;
        next = instance->next;
    }
    return found;
}

// Returns the part of the adopted epoch that a peer's program may read.
static uint64_t visible(const struct process *p) {
    const struct member_view *view = member_adopted(p->core);
    return (uint64_t)view->global_world << 48 | (uint64_t)view->group_world << 32 | (uint64_t)view->groups << 16 |
           view->largest_group;
}

static struct instance *instance_new(struct pccl_sim *s, int slot, const struct judged_op *op) {
    const struct process *p = &s->processes[slot];
    uint32_t *chain = chain_of(s, op->epoch->run, p->group, &op->name), id = s->ops->count++;
    struct instance *instance = &s->ops->instances[id % INSTANCES_MOST];
    *instance = (struct instance){.name = op->name,
                                  .run = op->epoch->run,
                                  .generation = op->epoch->generation,
                                  .group = p->group,
                                  .id = id,
                                  .next = *chain,
                                  .small = op->small};
    *chain = id + 1;
    instance->members = op->members;
    for (uint32_t rank = 0; rank < op->epoch->ring.count; rank++) {
        uint32_t life;
        int other = sim_slot(&op->epoch->ring.members[rank].id, &life);
        if (other >= 0) instance->lives[other] = life;
    }
    return instance;
}

void judge_begins(struct pccl_sim *s, int slot, const struct judged_op *op) {
    const struct process *p = &s->processes[slot];
    struct instance *instance = find(s, op->epoch->run, op->epoch->generation, p->group, &op->name);
    // A number that only those have entered who are gone is given again by the next master.
    if (instance == NULL || instance->generation != op->epoch->generation) instance = instance_new(s, slot, op);
    instance->inputs[slot] = op->input;
    instance->views[slot] = visible(p);
    instance->calls[slot] = op->calls;
    bool again = (instance->began >> slot & 1) != 0;
    instance->began |= 1U << slot;
    if (p->tainted || instance_tainted(s, instance)) return;
    if (again) sim_fail(s, "no mixing", "peer %d begins op (%ju, %ju, %u) twice", slot + 1, OP_NAME(op->name));
    if (instance->lives[slot] != p->life)
        sim_fail(s, "no mixing", "peer %d begins op (%ju, %ju, %u), of which it is no member", slot + 1,
                 OP_NAME(op->name));
    if (instance->small != op->small)
        sim_fail(s, "agreement", "peer %d moves op (%ju, %ju, %u) as a %s op, others do not", slot + 1,
                 OP_NAME(op->name), op->small ? "small" : "large");
    if (instance->members != op->members)
        sim_fail(s, "agreement", "peer %d begins op (%ju, %ju, %u) with peers %x, others with %x", slot + 1,
                 OP_NAME(op->name), op->members, instance->members);
}

void judge_complete(struct pccl_sim *s, int slot, const struct judged_op *op) {
    struct instance *instance = find(s, op->epoch->run, op->epoch->generation, s->processes[slot].group, &op->name);
    if (instance != NULL) instance->done |= 1U << slot;
}

void judge_reduced(struct pccl_sim *s, int slot, const struct judged_op *op) {
    const struct process *p = &s->processes[slot];
    const struct instance *instance = find(s, op->epoch->run, op->epoch->generation, p->group, &op->name);
    if (instance == NULL || instance_tainted(s, instance)) return;
    uint64_t value = 0;
    for (int other = 0; other < (int)s->peers; other++)
        if (op->holds >> other & 1) {
            value += instance->inputs[other];
            // The programs go alike, so an error that one of them got and another did not shows here. Not before: who
            // had not begun a mismatched op may begin its next call under that name, in which nobody meets.
            if (instance->calls[other] != op->calls)
                sim_fail(s, "agreement",
                         "call %u of peer %d with tag %ju meets call %u of peer %d in op (%ju, %ju, %u)", op->calls,
                         slot + 1, op->name.tag, instance->calls[other], other + 1, OP_NAME(op->name));
            // Only members of a list hear how its operations end.
            if (op->name.subgroup == 0 && instance->views[other] != instance->views[slot])
                sim_fail(s, "agreement",
                         "peer %d meets peer %d in op (%ju, %ju, %u) with other world sizes (%jx, not %jx; "
                         "hexadecimal: all, group, groups, largest group)",
                         slot + 1, other + 1, OP_NAME(op->name), instance->views[slot], instance->views[other]);
        }
    if (op->results < op->shards)
        sim_fail(s, "exactness", "op (%ju, %ju, %u) is complete at peer %d with %u of %u shards", OP_NAME(op->name),
                 slot + 1, op->results, op->shards);
    if (op->contributors != op->holds || op->value != value)
        sim_fail(s, "exactness",
                 "the result of op (%ju, %ju, %u) at peer %d holds the inputs of peers %x, and not of %x%s",
                 OP_NAME(op->name), slot + 1, op->contributors, op->holds,
                 op->contributors == op->holds ? ", and is not their sum" : "");
}

// Programs call again after a loss and after a mismatch alike.
static bool is_agreed(uint8_t outcome) { return outcome == OUTCOME_OK || outcome == OUTCOME_CANCELLED; }

void judge_ended(struct pccl_sim *s, int slot, const struct judged_op *op) {
    static const char *const names[] = {"none", "success", "a loss", "a mismatch", "a cancellation"};
    const struct process *p = &s->processes[slot];
    if (op->name.epoch == 0) return; // never begun
    struct instance *instance = find(s, op->epoch->run, op->epoch->generation, p->group, &op->name);
    if (instance == NULL || (instance->began >> slot & 1) == 0 || instance_tainted(s, instance)) return;
    uint8_t mine = (uint8_t)op->outcome;
    instance->outcomes[slot] = mine;
    if (mine == OUTCOME_LOST && s->only != NULL)
        sim_fail(s, "progress", "op (%ju, %ju, %u) is lost at peer %d although only %s", OP_NAME(op->name), slot + 1,
                 s->only);
    if (!judge_alive_member(s, instance->run, slot, p->life)) return;
    for (int other = 0; other < (int)s->peers; other++) {
        uint8_t theirs = instance->outcomes[other];
        bool differs = theirs != OUTCOME_NONE && theirs != mine && (is_agreed(theirs) || is_agreed(mine));
        if (!differs || !judge_alive_member(s, instance->run, other, instance->lives[other])) continue;
        sim_fail(s, "agreement", "op (%ju, %ju, %u) ends at peer %d with %s, at peer %d with %s", OP_NAME(op->name),
                 slot + 1, names[mine], other + 1, names[theirs]);
    }
}

// ---- verdicts ----

static void on_commit(struct pccl_sim *s, const struct instance *instance, bool supplied) {
    for (int slot = 0; slot < (int)s->peers && !supplied; slot++) {
        bool member =
            (instance->members >> slot & 1) != 0 && judge_alive_member(s, instance->run, slot, instance->lives[slot]);
        if (member && (instance->done >> slot & 1) == 0)
            sim_fail(s, "agreement", "the master commits op (%ju, %ju, %u), which is not complete at peer %d",
                     OP_NAME(instance->name), slot + 1);
    }
}

static bool names_supplier(const struct wire_verdict *verdict) {
    bool named = false;
    for (uint32_t i = 0; i < WIRE_ID_BYTES; i++) named |= verdict->supplier.bytes[i] != 0;
    return named;
}

void judge_commit(struct pccl_sim *s, uint64_t run, uint64_t generation, uint32_t group,
                  const struct wire_verdict *verdict) {
    const struct instance *instance = find(s, run, generation, group, &verdict->name);
    if (instance != NULL && !instance_tainted(s, instance)) on_commit(s, instance, names_supplier(verdict));
}

void judge_verdict(struct pccl_sim *s, int slot, const struct judged_op *op, const struct wire_verdict *verdict) {
    static const char *const kinds[] = {"none", "COMMIT", "ABORT", "REDO", "MISMATCH", "WHOLE", "CANCEL", "DEADLOCK"};
    const struct process *p = &s->processes[slot];
    struct instance *instance = find(s, op->epoch->run, op->epoch->generation, p->group, &op->name);
    if (wire_verdict_cancels(verdict->kind)) return; // the verdict that ends the op follows
    if (instance == NULL || instance_tainted(s, instance)) return;
    uint64_t generation = member_header(p->core).generation;
    // A small op that is to be supplied is lost after all when everybody who has it is. Who had not begun a mismatched
    // op may begin the next one of that tag under the same name, before it enters the epoch in which nobody knows that
    // name.
    bool again =
        instance->supplied || (instance->verdict == WIRE_VERDICT_MISMATCH && verdict->kind != WIRE_VERDICT_COMMIT);
    // Nor does a verdict bind that was heard only by those who are gone.
    for (int other = 0; other < (int)s->peers && instance->verdict != 0; other++)
        if ((instance->heard >> other & 1) != 0 && !judge_alive_member(s, instance->run, other, instance->lives[other]))
            instance->heard &= ~(1U << other);
    if (instance->heard == 0) instance->verdict = 0;
    // A REDO that not all heard of before the master was lost may become an ABORT, if the op under its new name does.
    again |= instance->verdict != WIRE_VERDICT_COMMIT && verdict->kind != WIRE_VERDICT_COMMIT &&
             instance->verdict_generation != generation;
    if (instance->verdict != 0 && instance->verdict != verdict->kind && !again)
        sim_fail(s, "agreement", "op (%ju, %ju, %u) got the verdict %s and, at peer %d, %s", OP_NAME(verdict->name),
                 kinds[instance->verdict], slot + 1, kinds[verdict->kind]);
    instance->verdict = verdict->kind;
    instance->verdict_generation = generation;
    instance->heard |= 1U << slot;
    instance->supplied |= names_supplier(verdict);
}

// ---- votes and rounds ----

static bool same_end(const struct vote_record *a, const struct vote_record *b) {
    return a->value == b->value && a->epoch == b->epoch && a->kind == b->kind && a->code == b->code &&
           a->world == b->world && a->groups == b->groups;
}

static bool is_left(const struct pccl_sim *s, const struct vote_record *record) {
    const uint32_t *heard = s->ends->heard[record - s->ends->votes];
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (heard[slot] != 0 && judge_alive_member(s, record->run, slot, heard[slot])) return true;
    return false;
}

// Checks that all peers hear the same end of a vote, and the ends of votes in one order.
void judge_vote(struct pccl_sim *s, int slot, const struct member_action *action) {
    const struct process *p = &s->processes[slot];
    const struct wire_ended_vote *last = member_last_vote(p->core);
    struct vote_record mine = {.run = member_header(p->core).run,
                               .number = last->number,
                               .value = action->value,
                               .epoch = action->view.number,
                               .kind = last->kind,
                               .code = (uint32_t)action->code,
                               .world = action->view.global_world,
                               .groups = action->view.groups};
    if (p->tainted) return;
    if (last->number <= s->ends->voted[slot])
        sim_fail(s, "agreement", "peer %d hears the end of vote %ju after that of vote %ju", slot + 1, last->number,
                 s->ends->voted[slot]);
    s->ends->voted[slot] = last->number;
    struct vote_record *same = NULL;
    for (uint32_t i = 0; i < VOTES_MOST; i++) {
        struct vote_record *record = &s->ends->votes[i];
        if (record->run != mine.run || record->number != mine.number) continue;
        if (same_end(record, &mine))
            same = record;
        else if (judge_alive_member(s, mine.run, slot, p->life) && is_left(s, record))
            sim_fail(s, "agreement",
                     "vote %ju ends at peer %d with code %u, value %ju, epoch %ju; at another peer with code %u, "
                     "value %ju, epoch %ju",
                     mine.number, slot + 1, mine.code, mine.value, mine.epoch, record->code, record->value,
                     record->epoch);
    }
    if (same == NULL) {
        same = &s->ends->votes[s->ends->vote_count++ % VOTES_MOST];
        *same = mine;
        memset(s->ends->heard[same - s->ends->votes], 0, s->peers * sizeof s->ends->heard[0][0]);
    }
    s->ends->heard[same - s->ends->votes][slot] = p->life;
}

void judge_sync(struct pccl_sim *s, int slot, const struct wire_sync_end *end, uint64_t content, uint64_t before) {
    const struct process *p = &s->processes[slot];
    uint64_t run = member_header(p->core).run;
    struct truth *truth = judge_truth(s, run);
    if (end->code == 0 && p->group < GROUPS && truth->run != 0 && truth->announced[p->group].round == end->round)
        truth->commits[p->group] = truth->announced[p->group];
    if (p->tainted) return;
    if (end->code == 0 && end->revision + 1 < before)
        sim_fail(s, "parity", "round %ju takes peer %d back to revision %ju, from %ju", end->round, slot + 1,
                 end->revision, before);
    struct round_record *round = NULL;
    for (uint32_t i = 0; i < ROUNDS_MOST && round == NULL; i++)
        if (s->ends->rounds[i].round == end->round && s->ends->rounds[i].run == run) round = &s->ends->rounds[i];
    if (round == NULL) {
        round = &s->ends->rounds[s->ends->round_count++ % ROUNDS_MOST];
        *round = (struct round_record){run, end->round, end->revision, content, end->code};
    }
    if (round->code != end->code)
        sim_fail(s, "parity", "round %ju of shared state ends with code %u at peer %d, with %u at another", end->round,
                 end->code, slot + 1, round->code);
    else if (end->code == 0 && (round->revision != end->revision || round->content != content))
        sim_fail(s, "parity",
                 "after round %ju peer %d holds revision %ju, content %016jx; another one revision %ju, content %016jx",
                 end->round, slot + 1, end->revision, content, round->revision, round->content);
}
