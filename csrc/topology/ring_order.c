// Few members: dynamic programming over subsets (Held and Karp) for the smallest sum of 1/rate among the links of a
// least rate, which is raised above the slowest link of each ring found, until there is none. Doing both at once would
// be wrong: the cheaper beginning of a ring may be the one with the slower link, and be thrown away although a later
// link is slower still.
//
// Many members: local search. The slowest link is replaced by exchanging two adjacent segments of the ring or by
// reversing one, whichever gives the fastest new links, until that fails; then the sum is improved by moving short
// segments; then the ring is disturbed and everything is tried again, within a fixed number of steps. The disturbances
// come from a fixed seed.
#include "topology/topology.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEPS_PER_PAIR = 1000,        // moves looked at
    STEPS_MAX = 20 * 1000 * 1000, // about 100 ms
    SEGMENT_MAX = 3,              // moved as a whole when the sum is improved
};

static const double GAIN = 1.001; // what is less than this better is not worth a change

struct rates {
    uint32_t n;
    const uint64_t *matrix;
};

static uint64_t rate(const struct rates *rates, uint32_t from, uint32_t to) {
    return rates->matrix[(size_t)from * rates->n + to];
}

// An unknown link costs as if it moved one byte per second: more than any number of known ones.
static double cost(uint64_t value) { return value == 0 ? 1.0 : 1.0 / (double)value; }

static double link_cost(const struct rates *rates, uint32_t from, uint32_t to) { return cost(rate(rates, from, to)); }

struct worth {
    uint64_t slowest;
    uint32_t at; // in the order: where the slowest link begins
    double sum;
};

static struct worth worth_of(const struct rates *rates, const uint32_t *order) {
    struct worth worth = {.slowest = UINT64_MAX};
    for (uint32_t i = 0; i < rates->n; i++) {
        uint64_t value = rate(rates, order[i], order[(i + 1) % rates->n]);
        if (value < worth.slowest) {
            worth.slowest = value;
            worth.at = i;
        }
        worth.sum += cost(value);
    }
    return worth;
}

static bool is_better(const struct worth *a, const struct worth *b) {
    if ((double)a->slowest > (double)b->slowest * GAIN) return true;
    return a->slowest >= b->slowest && a->sum * GAIN < b->sum;
}

// ---- few members ----

// Tables by (set of visited members other than 0, last of them); member k + 1 is bit k.
struct tables {
    double *sum;
    uint8_t *before;
};

static size_t state(uint32_t n, uint32_t set, uint32_t last) { return (size_t)set * (n - 1) + last; }

// The cheapest ring without a link slower than `least`. False: there is none.
static bool cheapest(const struct rates *rates, const struct tables *tables, uint64_t least, uint32_t *order) {
    uint32_t n = rates->n, full = (1u << (n - 1)) - 1, end = 0;
    double best = DBL_MAX;
    for (uint32_t set = 1; set <= full; set++)
        for (uint32_t last = 0; last < n - 1; last++) {
            if (!(set >> last & 1)) continue;
            uint32_t rest = set & ~(1u << last);
            double found = rest == 0 && rate(rates, 0, last + 1) >= least ? link_cost(rates, 0, last + 1) : DBL_MAX;
            uint8_t before = 0;
            for (uint32_t k = 0; k < n - 1; k++) {
                if (!(rest >> k & 1) || rate(rates, k + 1, last + 1) < least ||
                    tables->sum[state(n, rest, k)] == DBL_MAX)
                    continue;
                double through = tables->sum[state(n, rest, k)] + link_cost(rates, k + 1, last + 1);
                if (through >= found) continue;
                found = through;
                before = (uint8_t)k;
            }
            tables->sum[state(n, set, last)] = found;
            tables->before[state(n, set, last)] = before;
            if (set != full || found == DBL_MAX || rate(rates, last + 1, 0) < least) continue;
            double closed = found + link_cost(rates, last + 1, 0);
            if (closed >= best) continue;
            best = closed;
            end = last;
        }
    if (best == DBL_MAX) return false;
    order[0] = 0;
    for (uint32_t at = n - 1, set = full; at > 0; at--) {
        order[at] = end + 1;
        uint32_t before = tables->before[state(n, set, end)];
        set &= ~(1u << end);
        end = before;
    }
    return true;
}

static bool solve_exactly(const struct rates *rates, uint32_t *order) {
    size_t states = ((size_t)1 << (rates->n - 1)) * (rates->n - 1);
    struct tables tables = {malloc(states * sizeof(double)), malloc(states)};
    bool made = tables.sum != NULL && tables.before != NULL;
    for (uint64_t least = 0; made && cheapest(rates, &tables, least, order); least++) {
        least = worth_of(rates, order).slowest;
        if (least == UINT64_MAX) break;
    }
    free(tables.sum);
    free(tables.before);
    return made;
}

// ---- many members ----

struct search {
    struct rates rates;
    uint32_t *tour, *spare; // n each
    int64_t steps;          // left
    uint64_t seed;
};

static uint64_t next_random(struct search *search) { // splitmix64
    uint64_t z = (search->seed += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

// tour[0..middle - 1] and tour[middle..end - 1] change places.
static void exchange(struct search *search, uint32_t middle, uint32_t end) {
    memcpy(search->spare, search->tour + middle, (end - middle) * sizeof *search->spare);
    memcpy(search->spare + end - middle, search->tour, middle * sizeof *search->spare);
    memcpy(search->tour, search->spare, end * sizeof *search->tour);
}

static void rotate(struct search *search, uint32_t first) { exchange(search, first, search->rates.n); }

static void swap(uint32_t *tour, uint32_t a, uint32_t b) {
    uint32_t member = tour[a];
    tour[a] = tour[b];
    tour[b] = member;
}

static uint64_t slower(uint64_t a, uint64_t b) { return a < b ? a : b; }

struct move {
    uint64_t slowest; // of the new links
    uint32_t i, j;    // exchange of tour[0..i] and tour[i + 1..j]; j = 0: reversal of tour[0..i]
};

static void consider(struct move *best, uint64_t slowest, uint32_t i, uint32_t j) {
    if (slowest > best->slowest) *best = (struct move){slowest, i, j};
}

// Replaces the slowest link by faster ones; false when no move does.
static bool improve_slowest(struct search *search) {
    const struct rates *rates = &search->rates;
    const uint32_t *tour = search->tour;
    uint32_t n = rates->n;
    rotate(search, (worth_of(rates, tour).at + 1) % n); // now it leads from the end to the beginning
    uint32_t end = tour[n - 1];
    struct move best = {rate(rates, end, tour[0]), 0, 0};
    uint64_t backwards = UINT64_MAX;
    for (uint32_t i = 1; i + 1 < n; i++) {
        backwards = slower(backwards, rate(rates, tour[i], tour[i - 1]));
        consider(&best, slower(backwards, slower(rate(rates, end, tour[i]), rate(rates, tour[0], tour[i + 1]))), i, 0);
    }
    for (uint32_t i = 0; i + 2 < n && search->steps > 0; i++) {
        uint64_t to_second = rate(rates, end, tour[i + 1]);
        search->steps--;
        if (to_second <= best.slowest) continue;
        for (uint32_t j = i + 1; j + 1 < n; j++)
            consider(&best, slower(to_second, slower(rate(rates, tour[j], tour[0]), rate(rates, tour[i], tour[j + 1]))),
                     i, j);
        search->steps -= n - i;
    }
    if (best.i == 0 && best.j == 0) return false;
    if (best.j > 0) exchange(search, best.i + 1, best.j + 1);
    for (uint32_t a = 0, b = best.i; best.j == 0 && a < b; a++, b--) swap(search->tour, a, b);
    return true;
}

// Moves one segment at the beginning of the tour to where it costs less, with no link slower than `slowest`.
static bool move_segment(struct search *search, uint32_t length, uint64_t slowest) {
    const struct rates *rates = &search->rates;
    const uint32_t *tour = search->tour;
    uint32_t n = rates->n, first = tour[0], last = tour[length - 1], end = tour[n - 1];
    if (rate(rates, end, tour[length]) < slowest) return false;
    double freed =
        link_cost(rates, end, first) + link_cost(rates, last, tour[length]) - link_cost(rates, end, tour[length]);
    double best = freed * 1e-9; // less is rounding
    uint32_t place = 0;
    for (uint32_t j = length; j + 1 < n; j++) {
        if (rate(rates, tour[j], first) < slowest || rate(rates, last, tour[j + 1]) < slowest) continue;
        double gain = freed + link_cost(rates, tour[j], tour[j + 1]) - link_cost(rates, tour[j], first) -
                      link_cost(rates, last, tour[j + 1]);
        if (gain <= best) continue;
        best = gain;
        place = j;
    }
    search->steps -= n;
    if (place != 0) exchange(search, length, place + 1);
    return place != 0;
}

static void improve_sum(struct search *search) {
    uint64_t slowest = worth_of(&search->rates, search->tour).slowest;
    uint32_t n = search->rates.n;
    for (uint32_t unmoved = 0; unmoved < n && search->steps > 0;) {
        bool moved = false;
        for (uint32_t length = 1; length <= SEGMENT_MAX && !moved; length++)
            moved = move_segment(search, length, slowest);
        unmoved = moved ? 0 : unmoved + 1;
        rotate(search, 1);
        search->steps -= n;
    }
}

static void climb(struct search *search) {
    while (search->steps > 0 && improve_slowest(search)) {
    }
    improve_sum(search);
}

// Exchanges segments at random places: the rest of the ring, which is good, stays.
static void disturb(struct search *search) {
    uint32_t n = search->rates.n;
    for (uint32_t times = 1 + (uint32_t)(next_random(search) % 3); times > 0; times--) {
        rotate(search, (uint32_t)(next_random(search) % n));
        uint32_t i = (uint32_t)(next_random(search) % (n - 2));
        exchange(search, i + 1, i + 2 + (uint32_t)(next_random(search) % (n - 2 - i)));
    }
}

// Each member's fastest link to one that is not yet in the ring.
static void start_greedily(struct search *search) {
    uint32_t n = search->rates.n;
    for (uint32_t i = 0; i < n; i++) search->tour[i] = i;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t best = i;
        for (uint32_t k = i + 1; k < n; k++)
            if (rate(&search->rates, search->tour[i - 1], search->tour[k]) >
                rate(&search->rates, search->tour[i - 1], search->tour[best]))
                best = k;
        swap(search->tour, i, best);
    }
}

static bool solve_by_search(const struct rates *rates, uint32_t *order) {
    uint32_t n = rates->n;
    uint32_t *memory = malloc(3 * (size_t)n * sizeof *memory), *best = memory;
    if (memory == NULL) return false;
    int64_t steps = (int64_t)n * n * STEPS_PER_PAIR;
    struct search search = {*rates, memory + n, memory + 2 * (size_t)n, steps < STEPS_MAX ? steps : STEPS_MAX, n};
    memcpy(best, order, n * sizeof *best);
    struct worth found = worth_of(rates, best);
    memcpy(search.tour, order, n * sizeof *search.tour);
    for (uint32_t attempt = 0; attempt < 2 || search.steps > 0; attempt++) {
        if (attempt == 1) start_greedily(&search);
        if (attempt > 1) disturb(&search);
        climb(&search);
        struct worth reached = worth_of(rates, search.tour);
        if (is_better(&reached, &found)) {
            found = reached;
            memcpy(best, search.tour, n * sizeof *best);
        } else {
            memcpy(search.tour, best, n * sizeof *best);
        }
    }
    memcpy(order, best, n * sizeof *order);
    free(memory);
    return true;
}

bool ring_order(uint32_t n, const uint64_t *rates, uint32_t *order) {
    if (n < 3 || n > RING_ORDER_MAX) return false;
    struct rates all = {n, rates};
    uint32_t found[RING_ORDER_MAX];
    memcpy(found, order, n * sizeof *found);
    if (!(n <= RING_ORDER_EXACT ? solve_exactly(&all, found) : solve_by_search(&all, found))) return false;
    struct worth now = worth_of(&all, order), then = worth_of(&all, found);
    if (!is_better(&then, &now)) return false;
    uint32_t first = order[0], at = 0;
    while (found[at] != first) at++;
    for (uint32_t i = 0; i < n; i++) order[i] = found[(at + i) % n];
    return true;
}
