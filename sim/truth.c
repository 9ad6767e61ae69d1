#include "sim/truth.h"

#include <string.h>

#include "sim/process.h"

bool truth_is_tainted(const struct pccl_sim *s, int slot, uint32_t life) {
    return s->tainted[slot] == life && life != 0;
}

struct truth *judge_truth(const struct pccl_sim *s, uint64_t run) {
    static const struct truth nobody;
    for (uint32_t i = 0; i < RUNS_MOST && run != 0; i++)
        if (s->truths->runs[i].run == run) return (struct truth *)&s->truths->runs[i];
    return (struct truth *)&nobody; // never written
}

// Lives, and is a member in the epoch of its run that was announced last.
bool judge_alive_member(const struct pccl_sim *s, uint64_t run, int slot, uint32_t life) {
    return sim_alive(s, slot, life) && judge_truth(s, run)->lives[slot] == life;
}

// Returns the truth of that run. A new run takes the place of the one announced first.
struct truth *truth_for(struct pccl_sim *s, uint64_t run) {
    uint32_t i = 0;
    while (i < RUNS_MOST && s->truths->runs[i].run != run) i++;
    if (i < RUNS_MOST) return &s->truths->runs[i];
    memmove(&s->truths->runs[1], &s->truths->runs[0], (RUNS_MOST - 1) * sizeof s->truths->runs[0]);
    s->truths->runs[0] = (struct truth){.run = run};
    return &s->truths->runs[0];
}

const struct epoch_record *truth_newest_entered(const struct pccl_sim *s, const struct truth *truth, bool told) {
    const struct epoch_record *newest = NULL;
    for (uint32_t i = 0; i < EPOCHS_MOST; i++) {
        const struct epoch_record *record = &s->truths->epochs[i];
        bool entered = false;
        for (int slot = 0; slot < (int)s->peers && record->run == truth->run; slot++) {
            uint32_t life = truth->lives[slot];
            if (life == 0 || record->lives[slot] != life) continue;
            struct wire_header header =
                sim_alive(s, slot, life) ? member_header(s->processes[slot].core) : (struct wire_header){0};
            if (told && s->truths->resumed[slot].life != life) continue;
            uint64_t generation = told ? s->truths->resumed[slot].generation : header.generation,
                     epoch = told ? s->truths->resumed[slot].epoch : header.epoch;
            entered |= generation == record->generation && epoch == record->number;
        }
        bool newer = newest == NULL || record->generation > newest->generation ||
                     (record->generation == newest->generation && record->number > newest->number);
        if (entered && newer) newest = record;
    }
    return newest;
}
