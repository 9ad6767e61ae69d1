#include "sim/watch.h"

#include <stdio.h>
#include <string.h>

#include "sim/engine.h"
#include "sim/judge_master.h"
#include "sim/masters.h"
#include "sim/program.h"
#include "sim/trace.h"
#include "sim/truth.h"

enum {
    DEAD_LIMITS = 3,     // ARRIVAL_STRETCH: where pauses are usual
    DEAD_SLACK_MS = 500, // a slow path
    CALL_LIMITS = 12,    // heartbeat limits that a call may take when nothing goes wrong any more
    MEASURE_MS = 130,    // what an optimisation takes longer for each pair
    TAKE_UP_LIMITS = 7,  // that members take to meet at a master, and it to take their run up
    INNOCENT_LIMITS = 6, // after so many the aftermath of a fault is over
    LEFT_LIMITS = 8,     // that a master may take to notice that it has been left
    CALM_ROUNDS = 2,     // that everybody who lives passes in a calm
    CALM_LIMITS = 40,    // heartbeat limits that this may take
    CALM_PAIR_MS = 250,  // and for the measurements of each pair
};

void watch_calm(struct pccl_sim *s) {
    for (int slot = 0; slot < (int)s->peers; slot++) s->watch->rounds_before[slot] = UINT32_MAX;
}

static uint64_t run_of(const struct pccl_sim *s, int slot) { return member_header(s->processes[slot].core).run; }

// Whether a newcomer has to wait, as long as no member ends, or for others that make its run large enough. Those of
// another run, which another master serves, do not come.
static bool is_spare(const struct pccl_sim *s, int slot) {
    uint32_t members = 0, all = 0;
    if (s->processes[slot].program->step != STEP_JOINING) return false;
    for (int other = 0; other < (int)s->peers; other++) {
        all += s->processes[other].running &&
               (run_of(s, other) == run_of(s, slot) || run_of(s, other) == 0 || run_of(s, slot) == 0);
        members += s->processes[other].running && member_phase(s->processes[other].core) == MEMBER_ACCEPTED;
    }
    return (s->limits.most != 0 && members >= s->limits.most) || (members > 0 && all < s->limits.least);
}

bool watch_is_calm(struct pccl_sim *s) {
    bool calm = s->now > s->calm_from + (s->master_count > 1 ? (LEFT_LIMITS + 1) * s->limit_ns : 0);
    for (int slot = 0; slot < (int)s->peers && s->now > s->calm_from; slot++) {
        const struct process *p = &s->processes[slot];
        if (!p->running || is_spare(s, slot)) continue;
        if (s->watch->rounds_before[slot] == UINT32_MAX || s->watch->lives_before[slot] != p->life) {
            s->watch->rounds_before[slot] = p->program->rounds;
            s->watch->lives_before[slot] = p->life;
        }
        calm &= p->program->rounds >= s->watch->rounds_before[slot] + CALM_ROUNDS;
    }
    return calm;
}

// Returns how many pairs of peers an optimisation measures.
static int64_t pairs(const struct pccl_sim *s) { return s->only_votes ? 0 : (int64_t)s->peers * s->peers; }

static void judge_progress(struct pccl_sim *s) {
    int64_t bound = CALM_LIMITS * s->limit_ns + (int64_t)s->recovery_ms * MS_NS + pairs(s) * CALM_PAIR_MS * MS_NS;
    if (s->faulty || s->now <= s->calm_from + bound) return;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        const struct process *p = &s->processes[slot];
        if (p->running && !is_spare(s, slot) && p->program->rounds < s->watch->rounds_before[slot] + CALM_ROUNDS)
            sim_fail(s, "progress", "peer %d has passed %u rounds in %jd ms without a fault", slot + 1,
                     p->program->rounds - s->watch->rounds_before[slot], (s->now - s->calm_from) / MS_NS);
    }
}

// Peers may give up a lost master only when no more than half of the last epoch is left.
static void judge_minority(struct pccl_sim *s, int slot, const char *text) {
    uint32_t members = 0, left = 0, old_members = 0;
    uint64_t run = member_header(s->processes[slot].core).run;
    const struct truth *truth = judge_truth(s, run);
    if (truth->lives[slot] != s->processes[slot].life) return; // the run goes on without it
    const struct epoch_record *newest = truth_newest_entered(s, truth, false);
    for (int other = 0; other < (int)s->peers && newest != NULL; other++) {
        members += newest->lives[other] != 0;
        bool lives = newest->lives[other] != 0 && sim_alive(s, other, newest->lives[other]) &&
                     !truth_is_tainted(s, other, newest->lives[other]);
        // who never heard that it was let in may have begun another one
        lives = lives && member_header(s->processes[other].core).run == run;
        left += lives;
        old_members += lives && newest->old[other];
    }
    bool time = false;
    for (uint32_t i = 0; i < s->master_count && s->now > s->calm_from + TAKE_UP_LIMITS * s->limit_ns; i++)
        time |= s->masters[i].running && s->now > s->masters[i].began_at + TAKE_UP_LIMITS * s->limit_ns;
    if (time && 2 * left > members && left >= newest->quorum.members && old_members >= newest->quorum.old_members)
        sim_fail(s, "progress", "peer %d gives up although %u of %u members are left: %s", slot + 1, left, members,
                 text);
}

// Checks a lost peer: of two peers without a link to each other at most one is lost, and nobody else except a peer
// whose report is slow.
static void judge_apart(struct pccl_sim *s, int slot, const char *text, const char *what) {
    const struct process *p = &s->processes[slot];
    int other = s->apart[slot].other - 1;
    if (strstr(text, "did not report its links in time") != NULL) return;
    bool apart = other >= 0 && s->processes[other].group == p->group &&
                 s->now <= s->apart[slot].until + INNOCENT_LIMITS * s->limit_ns;
    if (apart && s->apart[slot].cost == 0) s->apart[slot].cost = s->apart[other].cost = slot + 1;
    if (!apart)
        sim_fail(s, "progress", "peer %d is %s although it reaches everybody: %s", slot + 1, what, text);
    else if (s->apart[slot].cost != slot + 1)
        sim_fail(s, "progress", "peer %d is %s, as was peer %d, to which alone it has no link: %s", slot + 1, what,
                 other + 1, text);
}

void judge_dies(struct pccl_sim *s, int slot, const char *text, const char *what) {
    SIM_TRACE(s, "peer %d: %s: %s", slot + 1, what, text);
    const struct process *p = &s->processes[slot];
    if (p->tainted) return;
    // A machine whose bits have flipped can contradict all others.
    if (strstr(text, "contradicts that of the run") != NULL && s->counts[COUNT_FLIPS] == 0)
        sim_fail(s, "agreement", "peer %d is %s for what it knows: %s", slot + 1, what, text);
    if (strstr(text, "it passed revision") != NULL && !p->misused)
        sim_fail(s, "parity", "peer %d is expelled for a revision that a sync gave it: %s", slot + 1, text);
    if (strstr(text, "shared state: ") != NULL) {
        if (s->apart[slot].other != 0) s->apart[slot].cost = s->apart[s->apart[slot].other - 1].cost = 0;
        return;
    }
    if (s->only != NULL) sim_fail(s, "progress", "peer %d is %s although only %s: %s", slot + 1, what, s->only, text);
    if (s->only_apart) judge_apart(s, slot, text, what);
    if (strstr(text, "no master took over the run") != NULL) {
        s->counts[COUNT_GIVEN_UP]++;
        judge_minority(s, slot, text);
        return;
    }
    if (s->now > s->calm_from + INNOCENT_LIMITS * s->limit_ns +
                     (s->now - s->watch->sought_at < s->limit_ns ? (int64_t)s->recovery_ms * MS_NS : 0))
        sim_fail(s, "progress", "peer %d is %s although nothing went wrong for %jd ms: %s", slot + 1, what,
                 ((s->now - s->calm_from) / MS_NS), text);
}

// Does a master that is not stopped serve the run that it announced last?
static bool serves(const struct pccl_sim *s, uint32_t k) {
    const struct master *master = &s->masters[k];
    return master->running && s->now >= s->bodies[MASTER + k].stopped_until && s->said->last[k].life == master->life &&
           core_epoch(master->core) == s->said->last[k].number && core_peer_count(master->core) > 0;
}

static void judge_dead(struct pccl_sim *s, struct truth *truth) {
    const struct master *master = &s->masters[truth->master];
    if (truth->run == 0 || !master->running || master->life != truth->master_life ||
        s->said->last[truth->master].life != master->life || s->said->last[truth->master].run != truth->run ||
        s->now < s->bodies[MASTER + truth->master].stopped_until + s->limit_ns)
        return;
    // nobody was left to be told
    if (core_epoch(master->core) != truth->number) memset(truth->lives, 0, sizeof truth->lives);
    for (int slot = 0; slot < (int)s->peers; slot++) {
        const struct process *p = &s->processes[slot];
        uint32_t life = truth->lives[slot];
        if (life == 0 || sim_alive(s, slot, life) || truth_is_tainted(s, slot, life)) continue;
        int64_t since = p->ended_at;
        if (s->cut_until[slot][MASTER + truth->master] > since) since = s->cut_until[slot][MASTER + truth->master];
        if (s->bodies[MASTER + truth->master].stopped_until > since)
            since = s->bodies[MASTER + truth->master].stopped_until; // then it hears what was said before
        if (truth->since[slot] > since) since = truth->since[slot];
        if (p->life != life) since = s->now; // it has a successor already
        if (s->now - since > DEAD_LIMITS * s->limit_ns + DEAD_SLACK_MS * MS_NS)
            sim_fail(s, "bounded time", "peer %d ended %jd ms ago, and the master counts it as a member", slot + 1,
                     ((s->now - p->ended_at) / MS_NS));
    }
}

// A master that its peers have left for another one notices and gives the run up.
static void judge_masters(struct pccl_sim *s) {
    int64_t *alone_at = s->watch->alone_at;
    for (uint32_t i = 0; i < s->master_count; i++) {
        bool alone = true;
        for (uint32_t k = 0; k < s->master_count && serves(s, i); k++)
            alone &= k == i || !serves(s, k) || s->said->last[k].run != s->said->last[i].run;
        if (alone) alone_at[i] = s->now;
        if (s->now - alone_at[i] > LEFT_LIMITS * s->limit_ns)
            sim_fail(s, "agreement", "master %u has served the run in generation %ju beside another one for %jd ms",
                     i + 1, s->said->last[i].generation, (s->now - alone_at[i]) / MS_NS);
    }
}

static void judge_calls(struct pccl_sim *s) {
    static const char *const steps[] = {"connect", "its own work", "a vote", "reduces", "a sync", "leaving"};
    int64_t bound = CALL_LIMITS * s->limit_ns;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        struct program *program = s->processes[slot].program;
        if (!s->processes[slot].running) continue;
        if (is_spare(s, slot)) {
            s->counts[COUNT_SPARES] += program->since != s->now;
            program->since = s->now;
        }
        if (program->step == STEP_VOTING && program->vote == WIRE_VOTE_OPTIMIZE) s->watch->measured_at = s->now;
        if (member_is_seeking(s->processes[slot].core)) s->watch->sought_at = s->now;
    }
    if (s->now - s->watch->sought_at <= bound) bound += (int64_t)s->recovery_ms * MS_NS;
    if (s->now - s->watch->measured_at <= bound) bound += pairs(s) * MEASURE_MS * MS_NS;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        const struct process *p = &s->processes[slot];
        if (!p->running || p->tainted || p->program->since == INT64_MAX) continue;
        int64_t since = p->program->since > s->calm_from ? p->program->since : s->calm_from;
        if (s->now - since <= bound) continue;
        char ops[TEXT_BYTES] = "";
        for (uint32_t tag = 0, at = 0;
             tag < p->program->tags && p->program->step == STEP_REDUCING && at < TEXT_BYTES - 100; tag++) {
            const struct op *op = call_table_find(&p->engine->call_table, p->engine->calls[tag].tag);
            if (op == NULL) continue;
            at += (uint32_t)snprintf(ops + at, TEXT_BYTES - at, "; op (%ju, %ju, %u) in phase %d%s", OP_NAME(op->name),
                                     (int)op->phase, op->frozen ? ", frozen" : "");
        }
        sim_fail(s, "bounded time",
                 "peer %d has been in %s for %jd ms, %jd ms of it without a fault (limit %jd ms): epoch %ju "
                 "(master: %ju), group epoch %ju, %s, vote %u%s",
                 slot + 1, steps[p->program->step], (s->now - p->program->since) / MS_NS, (s->now - since) / MS_NS,
                 (s->limit_ns / MS_NS), member_header(p->core).epoch,
                 judge_truth(s, member_header(p->core).run)->number, p->engine->call_table.now->group_epoch,
                 p->engine->call_table.ready ? "linked" : "not linked", p->program->vote, ops);
        return;
    }
}

// Checks the memory that a peer holds for others, and of them.
static void judge_memory(struct pccl_sim *s) {
    for (int slot = 0; slot < (int)s->peers; slot++) {
        const struct process *p = &s->processes[slot];
        uint32_t early = 0;
        if (!p->running) continue;
        const struct call_table *call_table = &p->engine->call_table;
        for (uint32_t rank = 0; rank < call_table->now->ring.count; rank++)
            if (call_table->members[rank] != NULL) early += call_table->members[rank]->unexpected_count;
        if (call_table->retained.count > RETAINED_MOST)
            sim_fail(s, "bounded memory", "peer %d keeps %zu results for members that must have them", slot + 1,
                     call_table->retained.count);
        if (early > UNEXPECTED_MOST)
            sim_fail(s, "bounded memory", "peer %d holds %u frames of ops that it has not posted", slot + 1, early);
    }
}

void watch_look(struct pccl_sim *s) {
    for (uint32_t i = 0; i < RUNS_MOST; i++) judge_dead(s, &s->truths->runs[i]);
    if (s->master_count > 1) judge_masters(s);
    judge_calls(s);
    judge_memory(s);
    judge_progress(s);
}
