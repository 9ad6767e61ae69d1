#include "master/survey.h"

#include <stdlib.h>
#include <string.h>

#include "topology/ring_order.h"

enum {
    DURATION_LATENCIES = 20, // a connection has left its slow start after so many one-way delays
    SURVEY_DURATION_LEAST_MS = 100,
    SURVEY_DURATION_MOST_MS = 1000,
    SURVEY_BUDGET_MS = 60000, // no new round after this; what is unknown then stays so
    BYTES_PER_MEGABYTE = 1000000,
    FIRST_RATE_SLOTS = 16,
};

static const uint64_t UNMEASURABLE = UINT64_MAX; // in the survey that runs; unknown after it

void survey_init(struct survey *survey) { memset(survey, 0, offsetof(struct survey, measurements)); }

void survey_fini(struct survey *survey) { free(survey->rates); }

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

void survey_forget(struct survey *survey, uint32_t slot) {
    for (uint32_t i = 0; i < survey->rate_slots && slot < survey->rate_slots; i++)
        *rate_at(survey, slot, i) = *rate_at(survey, i, slot) = 0;
}

uint64_t survey_rate(const struct survey *survey, const struct membership *table, const struct peer_record *from,
                     const struct peer_record *to) {
    uint32_t row = membership_slot(table, from), column = membership_slot(table, to);
    bool known = row < survey->rate_slots && column < survey->rate_slots;
    uint64_t rate = known ? *rate_at(survey, row, column) : 0;
    return rate == UNMEASURABLE ? 0 : rate;
}

uint32_t survey_group_rate(const struct survey *survey, const struct membership *table,
                           const struct peer_group *group) {
    if (group->count < 2) return SURVEY_DEFAULT_MEGABYTES_PER_S;
    uint64_t slowest = UNMEASURABLE;
    for (uint32_t i = 0; i < group->count; i++) {
        uint64_t rate = survey_rate(survey, table, group->members[i], group->members[(i + 1) % group->count]);
        if (rate == 0) return SURVEY_DEFAULT_MEGABYTES_PER_S;
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

bool survey_begin(struct survey *survey, const struct membership *table) {
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

bool survey_next(struct survey *survey, struct membership *table) {
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

void survey_measured(struct survey *survey, const struct membership *table, const struct peer_record *peer,
                     const struct wire_measured *measured) {
    for (uint32_t i = 0; i < survey->count; i++) {
        struct survey_measurement *measurement = &survey->measurements[i];
        bool meant = wire_id_equal(&measurement->from->member.id, &measured->from) &&
                     wire_id_equal(&measurement->to->member.id, &measured->to);
        if (meant && !measurement->answered && (peer == measurement->from || peer == measurement->to))
            note_rate(survey, table, measurement, measured->bytes_per_s);
    }
}

void survey_give_up_round(struct survey *survey, const struct membership *table) {
    for (uint32_t i = 0; i < survey->count; i++)
        if (!survey->measurements[i].answered) note_rate(survey, table, &survey->measurements[i], 0);
}

// Marks measurements that failed as unknown again.
void survey_end(struct survey *survey, const struct membership *table) {
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

bool survey_order(struct survey *survey, const struct membership *table, struct peer_record **order) {
    bool changed = false;
    survey_end(survey, table);
    for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group))
        changed |= order_group(survey, table, group, &order[group->members - table->order]);
    return changed;
}
