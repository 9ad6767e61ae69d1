#include "master/selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topology/ring_order.h"

enum { FAILED_WAITS = 32 }; // looks

// Figures of the current group, all by rank.
struct look {
    struct peer_group *group;
    struct selection_group *known;
    struct weights_edge *edges;
    uint64_t *rates;
    struct weights_plan now, next;
    uint32_t order[WEIGHTS_MOST];
};

void selection_forget(struct selection *selection, uint32_t slot) {
    free(selection->groups[slot]);
    selection->groups[slot] = NULL;
}

void selection_failed(struct selection *selection) {
    for (uint32_t i = 0; i < WIRE_MAX_MEMBERS; i++)
        if (selection->groups[i] != NULL) selection->groups[i]->memory.waits += FAILED_WAITS;
}

static struct selection_group *recall(struct selection *selection, const struct membership *table,
                                      const struct peer_group *group) {
    struct selection_group **known = &selection->groups[membership_group_slot(table, group)];
    if (*known == NULL) *known = calloc(1, sizeof **known);
    if (*known == NULL) return NULL;
    const struct selection_group before = **known;
    uint32_t same = 0, was[WEIGHTS_MOST];
    for (uint32_t rank = 0; rank < group->count; rank++) {
        (*known)->ids[rank] = group->members[rank]->member.id;
        was[rank] = WEIGHTS_MOST;
        for (uint32_t i = 0; i < before.count; i++)
            if (wire_id_equal(&before.ids[i], &(*known)->ids[rank])) was[rank] = i;
        same += was[rank] == rank;
    }
    if (same == group->count && before.count == group->count) return *known;
    (*known)->count = group->count;
    weights_recall(&before.memory, group->count, was, &(*known)->memory);
    if ((*known)->memory.waits > FAILED_WAITS) (*known)->memory.waits = FAILED_WAITS;
    return *known;
}

static bool on_one_host(const struct peer_group *group) {
    const struct wire_address *first = &group->members[0]->member.address;
    for (uint32_t i = 1; i < group->count; i++) {
        const struct wire_address *other = &group->members[i]->member.address;
        if (first->family != other->family || memcmp(first->bytes, other->bytes, sizeof first->bytes) != 0)
            return false;
    }
    return true;
}

static struct weights_plan plan_in_force(const struct peer_group *group) {
    struct weights_plan plan = {.algorithm = WEIGHTS_RING};
    bool sites = false, weights = false;
    for (uint32_t i = 0; i < group->count; i++) {
        plan.weight[i] = group->members[i]->member.weight;
        plan.site[i] = group->members[i]->member.site;
        weights |= plan.weight[i] > 0;
        sites |= plan.site[i] > 0;
    }
    if (weights) plan.algorithm = sites ? WEIGHTS_SITES : WEIGHTS_FLAT;
    return plan;
}

static void log_plan(const struct look *look, struct membership *table, const struct weights_times *times) {
    static const char *const algorithms[] = {"ring", "weighted", "weighted by site"};
    char weights[160] = "";
    size_t at = 0;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < look->group->count; i++) sum += look->next.weight[i];
    for (uint32_t i = 0; i < look->group->count && sum > 0 && at + 8 < sizeof weights; i++)
        at += (size_t)snprintf(weights + at, sizeof weights - at, "%s%u %%", i == 0 ? ", " : " ",
                               (look->next.weight[i] * 100 + sum / 2) / sum);
    actions_log(&table->actions, LOG_NOTICE,
                "group %u: large all-reduces use %s%s from the next epoch on; modelled ms per MB: now %.3g, ring %.3g, "
                "weighted %.3g, by site %.3g",
                look->group->id, algorithms[look->next.algorithm], weights, times->now * 1e9, times->ring * 1e9,
                times->flat * 1e9, times->sites * 1e9);
}

// How often the ring goes from one site to another one.
static uint32_t crossings(const struct look *look, const uint32_t *order) {
    uint16_t site[WEIGHTS_MOST];
    uint32_t n = look->group->count, count = 0;
    weights_sites(n, look->edges, site);
    for (uint32_t i = 0; i < n; i++) count += site[order[i]] != site[order[(i + 1) % n]];
    return count;
}

// Only for the sake of what lies between sites: the rates of one ring tell too little of others. What a survey has
// measured comes first. True: the order differs.
static bool order_ring(struct look *look, const struct survey *survey, const struct membership *table) {
    uint32_t n = look->group->count, before[WEIGHTS_MOST];
    for (uint32_t i = 0; i < n; i++) before[i] = look->order[i] = i;
    weights_rates(n, look->edges, &look->known->memory, look->rates);
    for (uint32_t i = 0; i < n * n; i++) {
        uint64_t measured = survey_rate(survey, table, look->group->members[i / n], look->group->members[i % n]);
        if (measured > 0 && i / n != i % n) look->rates[i] = measured;
    }
    return ring_order(n, look->rates, look->order) && crossings(look, look->order) < crossings(look, before);
}

static bool plan_group(struct look *look, struct selection *selection, struct matrix *matrix,
                       const struct survey *survey, struct membership *table, struct candidate *candidate) {
    struct peer_group *group = look->group;
    struct weights_times times;
    uint32_t first = (uint32_t)(group->members - table->order);
    bool reordered = false;
    if (group->count < 3 || on_one_host(group) || !matrix_look(matrix, table, group, look->edges)) return false;
    look->known = recall(selection, table, group);
    if (look->known == NULL) return false;
    look->now = plan_in_force(group);
    bool changes = weights_plan(group->count, look->edges, &look->known->memory, &look->now, &look->next, &times);
    for (uint32_t i = 0; i < group->count; i++) reordered |= candidate->order[first + i] != group->members[i];
    bool orders = !reordered && order_ring(look, survey, table);
    if (changes) log_plan(look, table, &times);
    if (orders)
        actions_log(&table->actions, LOG_NOTICE,
                    "group %u: the ring order of the next epoch crosses between sites less often", group->id);
    for (uint32_t i = 0; i < group->count; i++) {
        if (orders) candidate->order[first + i] = group->members[look->order[i]];
        uint32_t rank = candidate->order[first + i]->rank;
        candidate->weight[first + i] = look->next.weight[rank];
        candidate->site[first + i] = look->next.site[rank];
    }
    return changes || orders;
}

bool selection_plan(struct selection *selection, struct matrix *matrix, const struct survey *survey,
                    struct membership *table, struct candidate *candidate) {
    struct look look = {.edges = calloc(WEIGHTS_MOST * WEIGHTS_MOST, sizeof *look.edges),
                        .rates = calloc(WEIGHTS_MOST * WEIGHTS_MOST, sizeof *look.rates)};
    bool differs = false;
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group)) {
        look.group = group;
        if (look.edges != NULL && look.rates != NULL)
            differs |= plan_group(&look, selection, matrix, survey, table, candidate);
    }
    free(look.edges);
    free(look.rates);
    return differs;
}
