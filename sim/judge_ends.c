#include "sim/judge_ends.h"

#include "sim/process.h"
#include "sim/trace.h"
#include "sim/truth.h"

void judge_ends_forget(struct pccl_sim *s, uint64_t run, uint64_t first) {
    for (uint32_t i = 0; i < ROUNDS_MOST; i++)
        if (s->ends->rounds[i].run == run && s->ends->rounds[i].round >> 32 >= first)
            s->ends->rounds[i] = (struct round_record){0};
}

static bool same_end(const struct vote_record *a, const struct vote_record *b) {
    return a->value == b->value && a->epoch == b->epoch && a->kind == b->kind && a->code == b->code &&
           a->world == b->world && a->groups == b->groups;
}

static bool is_left(const struct pccl_sim *s, const struct vote_record *record) {
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (record->lives[slot] != 0 && judge_alive_member(s, record->run, slot, record->lives[slot])) return true;
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
        sim_fail(s, "agreement", "peer %d hears the end of vote %llu after that of vote %llu", slot + 1,
                 (unsigned long long)last->number, (unsigned long long)s->ends->voted[slot]);
    s->ends->voted[slot] = last->number;
    struct vote_record *same = NULL;
    for (uint32_t i = 0; i < VOTES_MOST; i++) {
        struct vote_record *record = &s->ends->votes[i];
        if (record->run != mine.run || record->number != mine.number) continue;
        if (same_end(record, &mine))
            same = record;
        else if (judge_alive_member(s, mine.run, slot, p->life) && is_left(s, record))
            sim_fail(s, "agreement",
                     "vote %llu ends at peer %d with code %u, value %llu, epoch %llu; at another peer with code %u, "
                     "value %llu, epoch %llu",
                     (unsigned long long)mine.number, slot + 1, mine.code, (unsigned long long)mine.value,
                     (unsigned long long)mine.epoch, record->code, (unsigned long long)record->value,
                     (unsigned long long)record->epoch);
    }
    if (same == NULL) *(same = &s->ends->votes[s->ends->vote_count++ % VOTES_MOST]) = mine;
    same->lives[slot] = p->life;
}

void judge_sync(struct pccl_sim *s, int slot, const struct wire_sync_end *end, uint64_t content, uint64_t before) {
    const struct process *p = &s->processes[slot];
    uint64_t run = member_header(p->core).run;
    struct truth *truth = judge_truth(s, run);
    if (end->code == 0 && p->group < GROUPS && truth->run != 0 && truth->announced[p->group].round == end->round)
        truth->commits[p->group] = truth->announced[p->group];
    if (p->tainted) return;
    if (end->code == 0 && end->revision + 1 < before)
        sim_fail(s, "parity", "round %llu takes peer %d back to revision %llu, from %llu",
                 (unsigned long long)end->round, slot + 1, (unsigned long long)end->revision,
                 (unsigned long long)before);
    struct round_record *round = NULL;
    for (uint32_t i = 0; i < ROUNDS_MOST && round == NULL; i++)
        if (s->ends->rounds[i].round == end->round && s->ends->rounds[i].run == run) round = &s->ends->rounds[i];
    if (round == NULL) {
        round = &s->ends->rounds[s->ends->round_count++ % ROUNDS_MOST];
        *round = (struct round_record){run, end->round, end->revision, content, end->code};
    }
    if (round->code != end->code)
        sim_fail(s, "parity", "round %llu of shared state ends with code %u at peer %d, with %u at another",
                 (unsigned long long)end->round, end->code, slot + 1, round->code);
    else if (end->code == 0 && (round->revision != end->revision || round->content != content))
        sim_fail(
            s, "parity",
            "after round %llu peer %d holds revision %llu, content %016llx; another one revision %llu, content %016llx",
            (unsigned long long)end->round, slot + 1, (unsigned long long)end->revision, (unsigned long long)content,
            (unsigned long long)round->revision, (unsigned long long)round->content);
}
