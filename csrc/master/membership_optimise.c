// Measuring the links inside the groups, in rounds, and ordering the rings by the result. In one round no host takes
// part in two measurements (hosts are told apart by address), so that measurements do not disturb each other. Only
// links not known yet are measured; those of the ring in force come first.
#include "master/membership_private.h"

#include <stdlib.h>
#include <string.h>

#include "topology/ring_order.h"

enum {
    DURATION_LATENCIES = 20, // a connection has left its slow start after so many one-way delays
    DURATION_LEAST_MS = 100,
    DURATION_MOST_MS = 1000,
    BUDGET_MS = 60000, // no new round after this; what is unknown then stays so
    BYTES_PER_MEGABYTE = 1000000,
    FIRST_RATE_SLOTS = 16,
};

static const uint64_t UNMEASURABLE = UINT64_MAX; // in the optimisation that runs; unknown after it

static uint64_t *rate_of(const struct membership *m, const struct peer *from, const struct peer *to) {
    return &m->rates[(size_t)(from - m->peers) * m->rate_slots + (size_t)(to - m->peers)];
}

static bool has_rates(const struct membership *m, const struct peer *peer) {
    return (uint32_t)(peer - m->peers) < m->rate_slots;
}

static bool make_room(struct membership *m) {
    uint32_t slots = m->rate_slots == 0 ? FIRST_RATE_SLOTS : m->rate_slots;
    while (slots < m->slots) slots *= 2;
    if (slots == m->rate_slots) return true;
    uint64_t *rates = calloc((size_t)slots * slots, sizeof *rates);
    if (rates == NULL) return false;
    for (uint32_t from = 0; from < m->rate_slots; from++)
        memcpy(&rates[(size_t)from * slots], &m->rates[(size_t)from * m->rate_slots], m->rate_slots * sizeof *rates);
    free(m->rates);
    m->rates = rates;
    m->rate_slots = slots;
    return true;
}

void membership_rates_forget(struct membership *m, const struct peer *peer) {
    if (!has_rates(m, peer)) return;
    for (uint32_t i = 0; i < m->rate_slots; i++) *rate_of(m, peer, &m->peers[i]) = *rate_of(m, &m->peers[i], peer) = 0;
}

uint32_t membership_group_rate(const struct membership *m, const struct group *group) {
    if (group->count < 2) return DEFAULT_MEGABYTES_PER_S;
    uint64_t slowest = UNMEASURABLE;
    for (uint32_t i = 0; i < group->count; i++) {
        const struct peer *from = m->order[group->begin + i], *to = m->order[group->begin + (i + 1) % group->count];
        uint64_t rate = has_rates(m, from) && has_rates(m, to) ? *rate_of(m, from, to) : 0;
        if (rate == 0 || rate == UNMEASURABLE) return DEFAULT_MEGABYTES_PER_S;
        if (rate < slowest) slowest = rate;
    }
    slowest /= BYTES_PER_MEGABYTE;
    return slowest < 1 ? 1 : slowest > UINT32_MAX ? UINT32_MAX : (uint32_t)slowest;
}

// ---- rounds ----

static void find_hosts(struct membership *m) {
    for (uint32_t i = 0; i < m->count; i++) {
        const struct wire_address *mine = &m->order[i]->member.address;
        m->order[i]->host = i;
        for (uint32_t k = 0; k < i && m->order[i]->host == i; k++) {
            const struct wire_address *other = &m->order[k]->member.address;
            if (mine->family == other->family && memcmp(mine->bytes, other->bytes, sizeof mine->bytes) == 0)
                m->order[i]->host = m->order[k]->host;
        }
    }
}

static void plan_group(struct membership *m, const struct group *group, bool busy[WIRE_MAX_MEMBERS]) {
    for (uint32_t distance = 1; distance < group->count; distance++)
        for (uint32_t i = 0; i < group->count; i++) {
            struct peer *from = m->order[group->begin + i],
                        *to = m->order[group->begin + (i + distance) % group->count];
            if (busy[from->host] || busy[to->host] || *rate_of(m, from, to) != 0) continue;
            busy[from->host] = busy[to->host] = true;
            m->round[m->round_count++] = (struct measurement){from, to, false};
        }
}

static void plan_round(struct membership *m) {
    bool busy[WIRE_MAX_MEMBERS] = {false};
    m->round_count = 0;
    if (m->now_ns >= m->measure_end) return;
    for (uint32_t i = 0; i < m->count; i += m->order[i]->group->count) plan_group(m, m->order[i]->group, busy);
}

static uint32_t duration_ms(const struct group *group) {
    uint64_t wanted = (uint64_t)group->latency_us * DURATION_LATENCIES / 1000;
    return wanted < DURATION_LEAST_MS  ? DURATION_LEAST_MS
           : wanted > DURATION_MOST_MS ? DURATION_MOST_MS
                                       : (uint32_t)wanted;
}

static void start_round(struct membership *m) {
    m->round_number++;
    m->round_unanswered = m->round_count;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < m->round_count; i++) {
        struct measurement *measurement = &m->round[i];
        struct wire_measure message = {m->round_number, measurement->to->member.id,
                                       duration_ms(measurement->from->group)};
        if (message.duration_ms > longest) longest = message.duration_ms;
        size_t begin = membership_frame_begin(m), length;
        wire_encode_measure(&m->actions.bytes, membership_header(m), &message);
        membership_frame_end(m, begin, &length);
        membership_send(m, measurement->from, begin, length);
    }
    m->phase_deadline = m->now_ns + longest * MS_NS + m->limit_ns;
}

static void note_rate(struct membership *m, struct measurement *measurement, uint64_t rate) {
    *rate_of(m, measurement->from, measurement->to) = rate == 0 ? UNMEASURABLE : rate;
    measurement->answered = true;
    m->round_unanswered--;
}

void membership_on_measured(struct membership *m, struct peer *peer, const uint8_t *body, size_t length) {
    struct wire_measured message;
    if (!wire_decode_measured(body, length, &message)) {
        membership_expel(m, peer, "malformed MEASURED");
        return;
    }
    if (m->phase != PHASE_MEASURE) return; // late
    for (uint32_t i = 0; i < m->round_count; i++) {
        struct measurement *measurement = &m->round[i];
        bool meant = wire_id_equal(&measurement->from->member.id, &message.from) &&
                     wire_id_equal(&measurement->to->member.id, &message.to);
        if (meant && !measurement->answered && (peer == measurement->from || peer == measurement->to))
            note_rate(m, measurement, message.bytes_per_s);
    }
}

void membership_measure_tick(struct membership *m) {
    for (uint32_t i = 0; i < m->round_count; i++)
        if (!m->round[i].answered) note_rate(m, &m->round[i], 0);
}

static void forget_failures(struct membership *m) {
    for (uint32_t i = 0; i < m->count; i++)
        for (uint32_t k = 0; k < m->count; k++)
            if (*rate_of(m, m->order[i], m->order[k]) == UNMEASURABLE) *rate_of(m, m->order[i], m->order[k]) = 0;
}

void membership_measure_cancel(struct membership *m) {
    if (m->phase != PHASE_MEASURE) return;
    m->phase = PHASE_IDLE;
    m->round_count = m->round_unanswered = 0;
    // `order` may hold peers that are gone; their rates are cleared when they are forgotten.
    forget_failures(m);
}

// ---- order ----

// The new order of one group into `candidate`. True when it differs from the one in force.
static bool order_group(struct membership *m, const struct group *group) {
    uint32_t n = group->count, order[WIRE_MAX_MEMBERS];
    struct peer **from = &m->order[group->begin], **to = &m->candidate[group->begin];
    memcpy(to, from, n * sizeof *to);
    if (n < 3) return false; // one ring only
    uint64_t *rates = malloc((size_t)n * n * sizeof *rates);
    if (rates == NULL) return false;
    for (uint32_t i = 0; i < n; i++) {
        order[i] = i;
        for (uint32_t k = 0; k < n; k++) rates[(size_t)i * n + k] = *rate_of(m, from[i], from[k]);
    }
    bool changed = ring_order(n, rates, order);
    free(rates);
    for (uint32_t i = 0; i < n; i++) to[i] = from[order[i]];
    return changed;
}

static void order_groups(struct membership *m) {
    forget_failures(m);
    m->round_count = 0;
    bool changed = false;
    for (uint32_t i = 0; i < m->count; i += m->order[i]->group->count) changed |= order_group(m, m->order[i]->group);
    m->candidate_count = m->count;
    if (changed)
        membership_start_candidate(m, WIRE_VOTE_OPTIMIZE);
    else
        membership_outcome(m, WIRE_VOTE_OPTIMIZE, CODE_SUCCESS, 0);
}

// Starts, or goes on after a round.
void membership_optimise(struct membership *m) {
    if (m->phase == PHASE_IDLE) {
        if (!make_room(m)) {
            membership_outcome(m, WIRE_VOTE_OPTIMIZE, CODE_OPTIMIZATION_FAILED, 0);
            return;
        }
        find_hosts(m);
        m->measure_end = m->now_ns + BUDGET_MS * MS_NS;
        m->phase = PHASE_MEASURE;
    }
    plan_round(m);
    if (m->round_count > 0)
        start_round(m);
    else
        order_groups(m);
}
