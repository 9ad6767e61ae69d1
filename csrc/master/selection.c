#include "master/selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topology/topology.h"

enum {
    DURATION_LATENCIES = 20,        // one-way delays of a measurement, after which a connection has left its slow start
    SURVEY_DURATION_LEAST_MS = 100, // ms of a measurement, at least
    SURVEY_DURATION_MOST_MS = 1000, // ms of a measurement, at most
    SURVEY_BUDGET_MS = 60000,       // ms, after which no round begins; what is unknown then stays so
    BYTES_PER_MEGABYTE = 1000000,
    FIRST_RATE_SLOTS = 16,
    FAILED_WAITS = 32, // looks without a change, after a plan that could not come into force
};

static const uint64_t UNMEASURABLE = UINT64_MAX; // in the survey that runs; unknown after it

void selection_forget_group(struct selection *selection, uint32_t slot) {
    free(selection->groups[slot]);
    selection->groups[slot] = NULL;
}

void selection_fini(struct selection *selection) {
    for (uint32_t slot = 0; slot < WIRE_MAX_MEMBERS; slot++) selection_forget_group(selection, slot);
    free(selection->survey.rates);
}

// ---- rates ----

static uint64_t *rate_at(const struct survey *survey, uint32_t from, uint32_t to) {
    return &survey->rates[(size_t)from * survey->rate_slots + to];
}

static uint64_t *rate_of(const struct survey *survey, const struct membership *table, const struct peer_record *from,
                         const struct peer_record *to) {
    return rate_at(survey, membership_slot(table, from), membership_slot(table, to));
}

static bool make_room(struct survey *survey, uint32_t wanted) {
    uint32_t before = survey->rate_slots, slots = before == 0 ? FIRST_RATE_SLOTS : before;
    while (slots < wanted) slots *= 2;
    if (slots == before) return true;
    uint64_t *rates = calloc((size_t)slots * slots, sizeof *rates);
    if (rates == NULL) return false;
    for (uint32_t from = 0; from < before; from++)
        memcpy(&rates[(size_t)from * slots], rate_at(survey, from, 0), before * sizeof *rates);
    free(survey->rates);
    survey->rates = rates;
    survey->rate_slots = slots;
    return true;
}

void selection_forget_peer(struct selection *selection, uint32_t slot) {
    struct survey *survey = &selection->survey;
    for (uint32_t i = 0; i < survey->rate_slots && slot < survey->rate_slots; i++)
        *rate_at(survey, slot, i) = *rate_at(survey, i, slot) = 0;
}

static uint64_t rate_between(const struct survey *survey, const struct membership *table,
                             const struct peer_record *from, const struct peer_record *to) {
    uint32_t row = membership_slot(table, from), column = membership_slot(table, to);
    bool known = row < survey->rate_slots && column < survey->rate_slots;
    uint64_t rate = known ? *rate_at(survey, row, column) : 0;
    return rate == UNMEASURABLE ? 0 : rate;
}

uint32_t selection_group_rate(const struct selection *selection, const struct membership *table,
                              const struct peer_group *group) {
    const struct survey *survey = &selection->survey;
    if (group->count < 2) return MEMBERSHIP_MEGABYTES_PER_S;
    uint64_t slowest = UNMEASURABLE;
    for (uint32_t i = 0; i < group->count; i++) {
        uint64_t rate = rate_between(survey, table, group->members[i], group->members[(i + 1) % group->count]);
        if (rate == 0) return MEMBERSHIP_MEGABYTES_PER_S;
        if (rate < slowest) slowest = rate;
    }
    slowest /= BYTES_PER_MEGABYTE;
    return slowest < 1 ? 1 : slowest > UINT32_MAX ? UINT32_MAX : (uint32_t)slowest;
}

// ---- rounds ----

static void find_hosts(struct survey *survey, const struct membership *table) {
    for (uint32_t i = 0; i < table->count; i++) {
        const struct wire_address *mine = &table->order[i]->member.address;
        uint32_t *host = &survey->hosts[membership_slot(table, table->order[i])];
        *host = i;
        for (uint32_t k = 0; k < i && *host == i; k++) {
            const struct wire_address *other = &table->order[k]->member.address;
            if (mine->family == other->family && memcmp(mine->bytes, other->bytes, sizeof mine->bytes) == 0)
                *host = survey->hosts[membership_slot(table, table->order[k])];
        }
    }
}

bool selection_begin_survey(struct selection *selection, const struct membership *table) {
    struct survey *survey = &selection->survey;
    if (!make_room(survey, table->slots)) return false;
    find_hosts(survey, table);
    survey->end_ns = table->now_ns + SURVEY_BUDGET_MS * MS_NS;
    return true;
}

static void plan_group(struct survey *survey, const struct membership *table, const struct peer_group *group,
                       bool busy[WIRE_MAX_MEMBERS]) {
    for (uint32_t distance = 1; distance < group->count; distance++)
        for (uint32_t i = 0; i < group->count; i++) {
            struct peer_record *from = group->members[i], *to = group->members[(i + distance) % group->count];
            bool *from_busy = &busy[survey->hosts[membership_slot(table, from)]];
            bool *to_busy = &busy[survey->hosts[membership_slot(table, to)]];
            if (*from_busy || *to_busy || *rate_of(survey, table, from, to) != 0) continue;
            *from_busy = *to_busy = true;
            survey->measurements[survey->count++] = (struct survey_measurement){from, to, false};
        }
}

static uint32_t duration_ms(const struct peer_group *group) {
    uint64_t wanted = (uint64_t)group->latency_us * DURATION_LATENCIES / 1000;
    return wanted < SURVEY_DURATION_LEAST_MS  ? SURVEY_DURATION_LEAST_MS
           : wanted > SURVEY_DURATION_MOST_MS ? SURVEY_DURATION_MOST_MS
                                              : (uint32_t)wanted;
}

bool selection_next_round(struct selection *selection, struct membership *table) {
    struct survey *survey = &selection->survey;
    bool busy[WIRE_MAX_MEMBERS] = {false};
    uint32_t longest = 0;
    survey->count = 0;
    if (table->now_ns < survey->end_ns)
        for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group))
            plan_group(survey, table, group, busy);
    if (survey->count == 0) return false;
    survey->round++;
    survey->unanswered = survey->count;
    for (uint32_t i = 0; i < survey->count; i++) {
        const struct survey_measurement *measurement = &survey->measurements[i];
        struct wire_measure message = {survey->round, measurement->to->member.id,
                                       duration_ms(measurement->from->group)};
        if (message.duration_ms > longest) longest = message.duration_ms;
        wire_encode_measure(membership_frame(table), membership_header(table), &message);
        membership_send(table, measurement->from);
    }
    survey->deadline_ns = table->now_ns + longest * MS_NS + table->limit_ns;
    return true;
}

static void note_rate(struct survey *survey, const struct membership *table, struct survey_measurement *measurement,
                      uint64_t rate) {
    *rate_of(survey, table, measurement->from, measurement->to) = rate == 0 ? UNMEASURABLE : rate;
    measurement->answered = true;
    survey->unanswered--;
}

void selection_measured(struct selection *selection, const struct membership *table, const struct peer_record *peer,
                        const struct wire_measured *measured) {
    struct survey *survey = &selection->survey;
    for (uint32_t i = 0; i < survey->count; i++) {
        struct survey_measurement *measurement = &survey->measurements[i];
        bool meant = wire_id_equal(&measurement->from->member.id, &measured->from) &&
                     wire_id_equal(&measurement->to->member.id, &measured->to);
        if (meant && !measurement->answered && (peer == measurement->from || peer == measurement->to))
            note_rate(survey, table, measurement, measured->bytes_per_s);
    }
}

void selection_give_up_round(struct selection *selection, const struct membership *table) {
    struct survey *survey = &selection->survey;
    for (uint32_t i = 0; i < survey->count; i++)
        if (!survey->measurements[i].answered) note_rate(survey, table, &survey->measurements[i], 0);
}

void selection_end_survey(struct selection *selection, const struct membership *table) {
    struct survey *survey = &selection->survey;
    survey->count = survey->unanswered = 0;
    for (uint32_t i = 0; i < table->count; i++)
        for (uint32_t k = 0; k < table->count; k++) {
            uint64_t *rate = rate_of(survey, table, table->order[i], table->order[k]);
            if (*rate == UNMEASURABLE) *rate = 0;
        }
}

// ---- order ----

static bool order_group(const struct survey *survey, const struct membership *table, const struct peer_group *group,
                        struct peer_record **to) {
    uint32_t n = group->count, order[WIRE_MAX_MEMBERS];
    memcpy(to, group->members, n * sizeof *to);
    if (n < 3) return false; // one ring only
    uint64_t *rates = malloc((size_t)n * n * sizeof *rates);
    if (rates == NULL) return false;
    for (uint32_t i = 0; i < n; i++) {
        order[i] = i;
        for (uint32_t k = 0; k < n; k++)
            rates[(size_t)i * n + k] = *rate_of(survey, table, group->members[i], group->members[k]);
    }
    bool changed = ring_order(n, rates, order);
    free(rates);
    for (uint32_t i = 0; i < n; i++) to[i] = group->members[order[i]];
    return changed;
}

bool selection_order_rings(struct selection *selection, const struct membership *table, struct peer_record **order) {
    struct survey *survey = &selection->survey;
    bool changed = false;
    selection_end_survey(selection, table);
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group))
        changed |= order_group(survey, table, group, &order[group->members - table->order]);
    return changed;
}

// ---- algorithms and weights ----

void selection_failed(struct selection *selection) {
    for (uint32_t i = 0; i < WIRE_MAX_MEMBERS; i++)
        if (selection->groups[i] != NULL) selection->groups[i]->memory.waits += FAILED_WAITS;
}

// Figures of the current group, all by rank.
struct look {
    struct peer_group *group;
    struct selection_group *known;
    struct weights_edge *edges;
    uint64_t *rates;
    struct weights_plan now, next;
    uint32_t order[WEIGHTS_MOST];
};

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
    char text[RECORDER_TEXT_BYTES];
    snprintf(text, sizeof text, "%s%s", algorithms[look->next.algorithm], weights);
    actions_event(&table->actions, RECORDER_SELECTION, look->group->id, 0, NULL, text);
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
        uint64_t measured = rate_between(survey, table, look->group->members[i / n], look->group->members[i % n]);
        if (measured > 0 && i / n != i % n) look->rates[i] = measured;
    }
    return ring_order(n, look->rates, look->order) && crossings(look, look->order) < crossings(look, before);
}

static bool choose_plan(struct look *look, struct selection *selection, struct matrix *matrix, struct membership *table,
                        struct candidate *candidate) {
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
    bool orders = !reordered && order_ring(look, &selection->survey, table);
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

bool selection_plan(struct selection *selection, struct matrix *matrix, struct membership *table,
                    struct candidate *candidate) {
    struct look look = {.edges = calloc(WEIGHTS_MOST * WEIGHTS_MOST, sizeof *look.edges),
                        .rates = calloc(WEIGHTS_MOST * WEIGHTS_MOST, sizeof *look.rates)};
    bool differs = false;
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group)) {
        look.group = group;
        if (look.edges != NULL && look.rates != NULL)
            differs |= choose_plan(&look, selection, matrix, table, candidate);
    }
    free(look.edges);
    free(look.rates);
    return differs;
}
