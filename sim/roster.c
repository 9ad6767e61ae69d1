#include "sim/roster.h"

#include "sim/process.h"

static bool is_used(const struct pccl_sim *s, const struct roster *roster) {
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (roster->users[slot] != 0 && sim_alive(s, slot, roster->users[slot])) return true;
    return false;
}

const struct roster *roster_pass(struct pccl_sim *s, int slot, uint64_t number) {
    struct process *p = &s->processes[slot];
    uint64_t run = member_header(p->core).run;
    const struct epoch_ring *ring = &member_epoch(p->core)->ring;
    struct roster *found = NULL;
    for (uint32_t i = 0; i < ROSTERS_MOST; i++) {
        struct roster *roster = &s->rosters->list[i];
        // A number that only those have heard of who are gone may be given again.
        if (roster->run == run && roster->number == number && roster->group == p->group && is_used(s, roster) &&
            !p->tainted)
            found = roster;
    }
    if (found == NULL) {
        found = &s->rosters->list[s->rosters->next++ % ROSTERS_MOST];
        // A peer that learnt of other members from a changed frame uses its own roster.
        *found = (struct roster){.run = p->tainted ? 0 : run, .number = number, .group = p->group};
        for (uint32_t i = 0; i < ring->count && i < DATA_SLOTS; i++) found->ids[found->count++] = ring->members[i].id;
    }
    found->users[slot] = p->life;
    return found;
}

// Some of the members, at least two where there are so many, as bits.
static uint32_t draw_some(uint64_t drawn, uint32_t count) {
    uint32_t all = (1U << count) - 1, some = (uint32_t)sim_mix(drawn) & all;
    uint32_t first = (uint32_t)(sim_mix(drawn + 1) % count), step = 1 + (uint32_t)(sim_mix(drawn + 2) % (count - 1));
    return some | 1U << first | 1U << (first + step) % count;
}

bool roster_choose(struct pccl_sim *s, int slot, const struct roster *roster, uint64_t drawn, struct call *call) {
    const struct process *p = &s->processes[slot];
    struct wire_id own = sim_id(s, slot);
    uint32_t self = 0;
    while (self < roster->count && !wire_id_equal(&roster->ids[self], &own)) self++;
    if (self == roster->count || roster->users[slot] != p->life) return false; // it was lost when others passed
    uint32_t some = roster->count < 2 ? 1 : draw_some(drawn, roster->count);
    call->kind = (uint8_t)(sim_mix(drawn + 3) % PLAN_KINDS);
    // Members that are not named call another operation with the same tag, all together.
    if ((some >> self & 1) == 0) {
        some = ((1U << roster->count) - 1) & ~some;
        call->kind = (uint8_t)(sim_mix(drawn + 4) % PLAN_KINDS);
    }
    for (uint32_t i = 0; i < roster->count; i++) {
        if ((some >> i & 1) == 0) continue;
        if (i == self) call->rank = call->count;
        call->ids[call->count++] = roster->ids[i];
    }
    if (call->kind == PLAN_SEND && call->count != 2) call->kind = PLAN_BROADCAST;
    if (call->kind == PLAN_BARRIER || call->kind == PLAN_ALL_TO_ALL_V) call->bytes = 0;
    call->root = (uint32_t)(sim_mix(drawn + 5) % call->count);
    call->retry = call->retry && plan_collective(call->kind)->survives;
    call->tag |= (sim_mix(drawn + 6) | 1) << CALL_BITS; // of nobody else
    return true;
}
