// Ports. A member has one through which all leaves that it sends, and one through which all comes that it receives; so
// has a site, for what goes to other sites. A port that is full has bytes waiting on all its edges, so an edge with
// bytes waiting is held up by that of its two ports where more of the rest waits as well; in a ring, where each port
// has one edge, by the member whose other port is full too. The rate of a full port is what it can carry. Any other
// one can carry more than was seen: it is taken to carry up to OPTIMISM times as much, is given work accordingly, and
// tells more at the next vote. What was seen of a port that alone held up its edges is remembered, so that each vote
// learns something and votes settle.
//
// Loads, in tensors: a member of a ring sends and receives 2(n-1)/n; one that owns the weight x
// 1+(n-2)x, for it sends all that is not its own, gets x from the n-1 others, and back; a site that owns X among S
// sites likewise 1+(S-2)X. The time of a way is that of its slowest port, and the weights that make it least fill all
// ports alike: x = (T r - 1)/(n-2), nothing for whom that is negative.
#include "topology/topology.h"

#include <math.h>
#include <string.h>

#define GAIN 0.9             // of the time in force; a plan that takes longer is not worth a change
#define BACK 1.03            // of the best time: the ring is as good
#define GAIN_FAR 0.8         // likewise, of other weights of sites or of links: what is far is known less well
#define UNEVEN 0.7           // of the time with even weights of sites; those that take longer are not worth the risk
#define OPTIMISM 4.0         // times what a port without waiting bytes was seen to carry
#define BACKLOGGED_NEVER 0.2 // how often bytes wait at a port that could carry that much more
#define BACKLOGGED_FULL 0.5  // at one that is full
#define BACKLOGGED_LEAST 0.4 // at one edge at least, or nothing is said
#define DISPROVED 1.1        // times what a port was taken to carry
#define TIE 0.2              // of how often bytes wait
#define NOTHING 0.01         // of what the port's largest edge carries
#define RATE_LEAST 1e3       // bytes per second of an edge that carries parts of tensors
#define RATE_MOST 1e12       // bytes per second of an edge, at most
#define FAST_NEAR 250e6      // bytes per second: where all are near, links of this speed are not what limits ops
#define WEIGHT_LEAST 2e-3    // of the tensor; less is nothing
#define CHANGED 1.5          // times what ops took; those that take longer tell of other conditions
#define FALLS 0.9            // times: what ops took falls from look to look by this factor at most, since times vary
#define RISES 1.03           // times: what ops took rises from look to look by this factor at most
#define DOUBT 0.4            // how wrong the model of pairs is taken to be before it was tried
#define ERROR_LEAST 0.01     // of a model that was tried
#define FADES 0.9            // what is left of an error from change to change

enum {
    OUT = 0,
    IN = 1,
    ROUNDS = 60, // steps of bisection
    LOOKS = 3,   // at plans that are slower than the best, while the model promises others; or at a best that is slow
    WAIT = 4,    // calls until other plans are tried again, at first
    TRIES = 3,   // tries after which that wait does not grow
};

struct port {
    double rate, confidence, backlogged; // backlogged: times the confidence
};

struct view {
    uint32_t n, sites;
    const struct weights_edge *edges;
    uint16_t site[WEIGHTS_MOST];
    struct port ports[WEIGHTS_MOST][2]; // of members
    double member[WEIGHTS_MOST];        // bytes per second that each can both send and receive
    double place[WEIGHTS_MOST];         // that each site can exchange with others, by its number - 1
    double within[WEIGHTS_MOST];        // that each member can exchange inside its site; 0: more than matters
    double most_backlogged;
};

static double smaller(double a, double b) { return a < b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

// Also of what is no number.
static double bounded(double value, double least, double most) { return value >= least ? smaller(value, most) : least; }

// Whatever was told, without what makes no sense; `out` may be `edges`.
static void make_plausible(uint32_t n, const struct weights_edge *edges, struct weights_edge *out) {
    for (uint32_t i = 0; i < n * n; i++) {
        out[i] = edges[i];
        out[i].rate = i % (n + 1) == 0 ? 0 : bounded(out[i].rate, 0, RATE_MOST);
        out[i].backlogged = out[i].rate < RATE_LEAST ? 0 : bounded(out[i].backlogged, 0, 1);
    }
}

static struct weights_edge edge_at(const struct view *view, uint32_t from, uint32_t to) {
    return view->edges[from * view->n + to];
}

static double capacity(double rate, double backlogged) {
    double free = (BACKLOGGED_FULL - backlogged) / (BACKLOGGED_FULL - BACKLOGGED_NEVER);
    return rate * (1 + (OPTIMISM - 1) * bounded(free, 0, 1));
}

// ---- sites ----

static bool is_near(uint32_t n, const struct weights_edge *edges, uint32_t a, uint32_t b, bool *known) {
    double there = bounded(edges[a * n + b].round_trip_us, 0, RATE_MOST);
    double back = bounded(edges[b * n + a].round_trip_us, 0, RATE_MOST);
    double trip = there == 0 ? back : back == 0 ? there : smaller(there, back);
    *known = trip > 0;
    return trip > 0 && trip < WEIGHTS_NEAR_US;
}

uint32_t weights_sites(uint32_t n, const struct weights_edge *edges, uint16_t site[WEIGHTS_MOST]) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        site[i] = 0;
        for (uint16_t s = 1; s <= count && site[i] == 0; s++) {
            bool joins = false, far = false;
            for (uint32_t k = 0; k < i; k++) {
                bool known, near = is_near(n, edges, i, k, &known);
                if (site[k] != s) continue;
                joins |= near;
                far |= known && !near;
            }
            if (joins && !far) site[i] = s;
        }
        if (site[i] == 0) site[i] = (uint16_t)++count;
    }
    return count;
}

static uint32_t size_of(const struct view *view, uint16_t site) {
    uint32_t size = 0;
    for (uint32_t i = 0; i < view->n; i++) size += view->site[i] == site;
    return size;
}

// ---- what ports can carry ----

static void add(struct port *port, const struct weights_edge *edge, double confidence) {
    port->rate += edge->rate;
    port->confidence += confidence;
    port->backlogged += confidence * edge->backlogged;
}

static double share_of(const struct port *port) {
    return port->confidence > 0 ? port->backlogged / port->confidence : 0;
}

static struct weights_edge edge_of(const struct view *view, uint32_t member, int end, uint32_t other) {
    return end == OUT ? edge_at(view, member, other) : edge_at(view, other, member);
}

// All edges of a member's port count alike, however little they carry, for a full port holds all of them up; but not
// those that carry next to nothing.
static double confidence_in(const struct view *view, uint32_t member, int end, double rate) {
    double most = RATE_LEAST;
    for (uint32_t i = 0; i < view->n; i++) most = larger(most, edge_of(view, member, end, i).rate);
    return rate < NOTHING * most ? 0 : 1;
}

// How surely this end of an edge holds it up.
enum blame { NOT, BOTH, ALONE };

static enum blame blame_of(const struct view *view, uint32_t here, int end, uint32_t there) {
    double mine = share_of(&view->ports[here][end]), other = share_of(&view->ports[there][!end]);
    if (fabs(mine - other) <= TIE) {
        mine += share_of(&view->ports[here][!end]);
        other += share_of(&view->ports[there][end]);
    }
    return fabs(mine - other) <= TIE ? BOTH : mine > other ? ALONE : NOT;
}

static double port_capacity(const struct view *view, uint32_t member, int end, double *full) {
    struct port blamed = {0}, sure = {0};
    for (uint32_t i = 0; i < view->n; i++) {
        struct weights_edge edge = edge_of(view, member, end, i);
        double confidence = confidence_in(view, member, end, edge.rate);
        enum blame blame = edge.backlogged > 0 ? blame_of(view, member, end, i) : NOT;
        if (blame == NOT) edge.backlogged = 0;
        add(&blamed, &edge, confidence);
        if (blame != ALONE) edge.backlogged = 0;
        add(&sure, &edge, confidence);
    }
    if (share_of(&sure) >= BACKLOGGED_FULL)
        *full = sure.rate;
    else if (!(*full >= sure.rate / DISPROVED))
        *full = 0;
    return *full > 0 ? larger(*full, blamed.rate) : capacity(blamed.rate, share_of(&blamed));
}

static void judge_members(struct view *view, double full[WEIGHTS_MOST][2]) {
    for (uint32_t i = 0; i < view->n; i++)
        for (uint32_t k = 0; k < view->n; k++) {
            struct weights_edge edge = edge_at(view, i, k);
            add(&view->ports[i][OUT], &edge, confidence_in(view, i, OUT, edge.rate));
            add(&view->ports[k][IN], &edge, confidence_in(view, k, IN, edge.rate));
            view->most_backlogged = larger(view->most_backlogged, edge.backlogged);
        }
    for (uint32_t i = 0; i < view->n; i++)
        view->member[i] = smaller(port_capacity(view, i, OUT, &full[i][OUT]), port_capacity(view, i, IN, &full[i][IN]));
}

// Sites are to each other what members are: all that goes from one to another one is one edge between them.
static void judge_sites(struct view *view) {
    struct weights_edge between[WEIGHTS_MOST * WEIGHTS_MOST] = {0};
    double nothing[WEIGHTS_MOST][2] = {{0}};
    struct view sites = {.n = view->sites, .edges = between};
    struct port near[WEIGHTS_MOST][2] = {0};
    for (uint32_t i = 0; i < view->n; i++)
        for (uint32_t k = 0; k < view->n; k++) {
            struct weights_edge edge = edge_at(view, i, k);
            struct weights_edge *far = &between[(view->site[i] - 1U) * view->sites + view->site[k] - 1];
            if (view->site[i] != view->site[k]) {
                far->rate += edge.rate;
                far->backlogged += edge.rate * edge.backlogged;
            } else {
                add(&near[i][OUT], &edge, edge.rate);
                add(&near[k][IN], &edge, edge.rate);
            }
        }
    for (uint32_t i = 0; i < view->sites * view->sites; i++)
        if (between[i].rate > 0) between[i].backlogged /= between[i].rate;
    make_plausible(view->sites, between, between);
    judge_members(&sites, nothing);
    memcpy(view->place, sites.member, sizeof view->place);
    for (uint32_t i = 0; i < view->n; i++)
        if (size_of(view, view->site[i]) == 1) view->place[view->site[i] - 1] = view->member[i];
    for (uint32_t i = 0; i < view->n; i++)
        for (int end = OUT; end <= IN; end++)
            if (share_of(&near[i][end]) >= BACKLOGGED_LEAST)
                view->within[i] = larger(view->within[i], capacity(near[i][end].rate, share_of(&near[i][end])));
}

// ---- times ----

// How many edges of the ring leave the site.
static uint32_t exits(const struct view *view, uint16_t site) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < view->n; i++) count += view->site[i] == site && view->site[(i + 1) % view->n] != site;
    return count;
}

static double ring_time(const struct view *view) {
    double load = 2.0 * (view->n - 1) / view->n, time = 0;
    for (uint32_t i = 0; i < view->n; i++) time = larger(time, load / view->member[i]);
    for (uint16_t s = 1; s <= view->sites && view->sites > 1; s++)
        time = larger(time, load * exits(view, s) / view->place[s - 1]);
    return time;
}

// Returns the time of the traffic between sites: inputs for the weights of others, results of the own ones.
static double between_time(const struct view *view, const double *x) {
    double time = 0;
    for (uint16_t s = 1; s <= view->sites && view->sites > 1; s++) {
        double own = 0, size = size_of(view, s);
        for (uint32_t i = 0; i < view->n; i++) own += view->site[i] == s ? x[i] : 0;
        time = larger(time, (size * (1 - own) + own * (view->n - size)) / view->place[s - 1]);
    }
    return time;
}

static double filled_time(uint32_t n, const double *rate, const double *x) {
    double time = 0;
    for (uint32_t i = 0; i < n; i++) time = larger(time, (1 + (n - 2.0) * x[i]) / rate[i]);
    return time;
}

static double inside_time(const struct view *view) {
    double time = 0;
    for (uint32_t i = 0; i < view->n; i++) {
        double size = size_of(view, view->site[i]);
        if (size > 1 && view->within[i] > 0) time = larger(time, 2 * (size - 1) / size / view->within[i]);
    }
    return time;
}

// A member of a site owns an even part of what the site owns.
static double sites_time(const struct view *view, const double *x) {
    double own[WEIGHTS_MOST] = {0};
    for (uint32_t i = 0; i < view->n; i++) own[view->site[i] - 1] += x[i];
    return larger(filled_time(view->sites, view->place, own), inside_time(view));
}

// ---- weights ----

// The most even weights with which no port takes longer than that: rates are not known well.
static void level(uint32_t n, const double *rate, double time, double *x) {
    double low = 0, high = 1, sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double most = (low + high) / 2;
        sum = 0;
        for (uint32_t i = 0; i < n; i++) sum += x[i] = bounded((time * rate[i] - 1) / (n - 2.0), 0, most);
        if (sum >= 1)
            high = most;
        else
            low = most;
    }
    for (uint32_t i = 0; i < n; i++) x[i] = sum > 0 ? x[i] / sum : 1.0 / n;
}

// The weights that make the slowest of n >= 3 ports as fast as possible. Whoever is slowest has to give its input and
// get the result, which bounds the time from below.
static void fill(uint32_t n, const double *rate, double *x) {
    double low = 0, high = 0, sum = 0, most = 0;
    for (uint32_t i = 0; i < n; i++) low = larger(low, 1 / rate[i]);
    for (uint32_t i = 0; i < n; i++) most = larger(most, rate[i]);
    high = larger(low, (n - 1) / most); // one alone could own all
    for (int round = 0; round < ROUNDS; round++) {
        double time = round == 0 ? low : (low + high) / 2;
        sum = 0;
        for (uint32_t i = 0; i < n; i++) sum += bounded((time * rate[i] - 1) / (n - 2.0), 0, 1);
        if (sum >= 1)
            high = time;
        else
            low = time;
        if (round == 0 && sum >= 1) break;
    }
    level(n, rate, high, x);
}

// Even ones, unless a site is far slower than the others: what lies between sites is known less well than what members
// can do, and may be a link of its own between each two.
static void fill_sites(const struct view *view, double *x) {
    double own[WEIGHTS_MOST], filled[WEIGHTS_MOST];
    for (uint32_t i = 0; i < view->n; i++) x[i] = 1.0 / view->sites / size_of(view, view->site[i]);
    if (view->sites < 3) return; // what each of two sites sends does not depend on it
    fill(view->sites, view->place, own);
    for (uint32_t i = 0; i < view->n; i++) filled[i] = own[view->site[i] - 1] / size_of(view, view->site[i]);
    if (sites_time(view, filled) <= UNEVEN * sites_time(view, x)) memcpy(x, filled, view->n * sizeof *x);
}

static void weigh(uint32_t n, const double *x, uint16_t *weight) {
    double most = 0;
    for (uint32_t i = 0; i < n; i++) most = larger(most, x[i]);
    for (uint32_t i = 0; i < n; i++) weight[i] = x[i] < WEIGHT_LEAST ? 0 : (uint16_t)(x[i] / most * WEIGHTS_WHOLE);
}

static void unweigh(uint32_t n, const uint16_t *weight, double *x) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += weight[i];
    for (uint32_t i = 0; i < n; i++) x[i] = weight[i] / sum;
}

static bool has_weights(uint32_t n, const struct weights_plan *plan) {
    bool any = false;
    for (uint32_t i = 0; i < n; i++) any |= plan->weight[i] > 0;
    return any;
}

// ---- the plan ----

static double flat_time(const struct view *view, const double *x) {
    return larger(filled_time(view->n, view->member, x), between_time(view, x));
}

static double time_now(const struct view *view, const struct weights_plan *now) {
    double x[WEIGHTS_MOST];
    if (now->algorithm == WEIGHTS_RING || !has_weights(view->n, now)) return ring_time(view);
    unweigh(view->n, now->weight, x);
    return now->algorithm == WEIGHTS_SITES && view->sites > 1 ? sites_time(view, x) : flat_time(view, x);
}

// False: a member of whom nothing is seen, or nothing is seen to wait.
static bool see(struct view *view, uint32_t n, const struct weights_edge *edges, double full[WEIGHTS_MOST][2]) {
    *view = (struct view){.n = n, .edges = edges};
    view->sites = weights_sites(n, edges, view->site);
    judge_members(view, full);
    judge_sites(view);
    if (view->most_backlogged < BACKLOGGED_LEAST) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!(view->member[i] >= RATE_LEAST)) return false;
    for (uint32_t s = 0; s < view->sites && view->sites > 1; s++)
        if (!(view->place[s] >= RATE_LEAST)) return false;
    return true;
}

static bool is_fast_and_near(const struct view *view) {
    double least = RATE_MOST;
    for (uint32_t i = 0; i < view->n; i++) least = smaller(least, view->member[i]);
    return view->sites == 1 && least > FAST_NEAR;
}

static void propose(const struct view *view, enum weights_algorithm algorithm, const double *x,
                    struct weights_plan *next) {
    *next = (struct weights_plan){.algorithm = algorithm};
    if (algorithm == WEIGHTS_RING) return;
    weigh(view->n, x, next->weight);
    for (uint32_t i = 0; i < view->n && algorithm == WEIGHTS_SITES; i++)
        next->site[i] = size_of(view, view->site[i]) > 1 ? view->site[i] : 0;
}

// All ways carry 2(n-1) tensors, all members together: so what all edges carry tells how long an op took.
static double measured_time(const struct view *view) {
    double sum = 0;
    for (uint32_t i = 0; i < view->n; i++)
        for (uint32_t k = 0; k < view->n; k++) sum += edge_at(view, i, k).rate;
    return 2.0 * (view->n - 1) / sum;
}

// ---- what was promised, and what came ----

static bool is_same(uint32_t n, const struct weights_plan *a, const struct weights_plan *b) {
    return a->algorithm == b->algorithm && memcmp(a->weight, b->weight, n * sizeof *a->weight) == 0 &&
           memcmp(a->site, b->site, n * sizeof *a->site) == 0;
}

static void judge_models(struct weights_memory *memory, uint32_t n, const struct weights_plan *now, double measured) {
    if (!is_same(n, now, &memory->promised)) return;
    for (int model = 0; model < WEIGHTS_MODELS; model++) {
        if (memory->promise[model] > 0)
            memory->error[model] = larger(FADES * memory->error[model],
                                          bounded(fabs(log(measured / memory->promise[model])), ERROR_LEAST, 1));
        memory->promise[model] = 0;
    }
}

static enum weights_model believed(const struct view *view, const struct weights_memory *memory) {
    double pairs = memory->error[WEIGHTS_PAIRS] > 0 ? memory->error[WEIGHTS_PAIRS] : DOUBT;
    return view->sites == view->n && pairs < memory->error[WEIGHTS_PORTS] ? WEIGHTS_PAIRS : WEIGHTS_PORTS;
}

static void note_best(struct weights_memory *memory, double measured) {
    if (memory->returns) {
        memory->returns = false;
        memory->slower = 0;
        memory->waits = (uint32_t)WAIT << 2 * memory->tries;
        if (memory->tries < TRIES) memory->tries++;
    }
    memory->slower = measured > CHANGED * memory->best_s ? memory->slower + 1 : 0;
    memory->best_s *= bounded(measured / memory->best_s, FALLS, RISES);
    if (memory->slower < LOOKS) return;
    memory->best_s = measured;
    memory->slower = memory->waits = memory->tries = 0;
    memory->error[WEIGHTS_PORTS] = memory->error[WEIGHTS_PAIRS] = 0;
}

static void note_measured(struct weights_memory *memory, uint32_t n, const struct weights_plan *now, double measured) {
    memory->explored |= now->algorithm == WEIGHTS_FLAT;
    if (memory->best_s > 0 && is_same(n, now, &memory->best)) {
        note_best(memory, measured);
    } else if (memory->best_s > 0 && measured > memory->best_s) {
        memory->slower++;
    } else {
        memory->best = *now;
        memory->best_s = measured;
        memory->slower = 0;
        memory->returns = false;
    }
}

// Returns whether the current plan is worse than the best one. A few slower plans are permitted, since each adds
// knowledge.
static bool disappoints(const struct weights_memory *memory, double best) {
    return memory->slower > 0 && (memory->returns || memory->slower >= LOOKS || best > GAIN * memory->best_s);
}

// ---- a plan ----

// Prediction of a model, in seconds per byte.
struct outlook {
    struct weights_times times;
    double flat[WEIGHTS_MOST], sites[WEIGHTS_MOST];
};

static void ask_ports(const struct view *view, const struct weights_plan *now, struct outlook *out) {
    *out = (struct outlook){.times = {time_now(view, now), ring_time(view), HUGE_VAL, HUGE_VAL}};
    fill(view->n, view->member, out->flat);
    out->times.flat = flat_time(view, out->flat);
    if (view->sites == 1 || view->sites == view->n) return;
    fill_sites(view, out->sites);
    out->times.sites = sites_time(view, out->sites);
}

// The time by pairs; HUGE_VAL if something would pass between two of whom nothing is known.
static double time_by_pairs(const struct pairs *pairs, const struct weights_plan *plan) {
    double x[WEIGHTS_MOST];
    if (plan->algorithm == WEIGHTS_RING || !has_weights(pairs->n, plan)) return pairs_ring_time(pairs);
    unweigh(pairs->n, plan->weight, x);
    return pairs_seen(pairs, x) ? pairs_time(pairs, x) : HUGE_VAL;
}

static void ask_pairs(const struct pairs *pairs, const struct weights_plan *now, struct outlook *out) {
    static const struct weights_plan ring = {.algorithm = WEIGHTS_RING};
    *out = (struct outlook){.times = {time_by_pairs(pairs, now), time_by_pairs(pairs, &ring), HUGE_VAL, HUGE_VAL}};
    pairs_fill(pairs, out->flat);
    out->times.flat = pairs_time(pairs, out->flat);
}

static void note_promises(const struct view *view, const struct pairs *pairs, struct weights_memory *memory,
                          const struct weights_plan *next) {
    double by_pairs = view->sites == view->n ? time_by_pairs(pairs, next) : HUGE_VAL;
    memory->promised = *next;
    memory->promise[WEIGHTS_PORTS] = time_now(view, next);
    memory->promise[WEIGHTS_PAIRS] = by_pairs < HUGE_VAL ? by_pairs : 0;
}

// Even weights load members as a ring does, and show what passes between each two of them.
static void propose_even(const struct view *view, struct weights_plan *next) {
    double even[WEIGHTS_MOST];
    for (uint32_t i = 0; i < view->n; i++) even[i] = 1.0 / view->n;
    propose(view, WEIGHTS_FLAT, even, next);
}

// False: nothing is worth a change, which is to take at most `gain` of the time of `now`.
static bool choose(const struct view *view, const struct outlook *out, const struct weights_memory *memory,
                   const struct weights_plan *now, double measured, double gain, struct weights_plan *next) {
    bool on_ring = now->algorithm == WEIGHTS_RING, by_sites = out->times.sites <= out->times.flat;
    bool fast_and_near = is_fast_and_near(view);
    double best = smaller(out->times.flat, out->times.sites);
    if (disappoints(memory, best)) {
        *next = memory->best;
    } else if (on_ring && view->sites == view->n && !memory->explored) {
        propose_even(view, next);
    } else if (!on_ring && (fast_and_near || out->times.ring <= BACK * smaller(best, measured))) {
        propose(view, WEIGHTS_RING, NULL, next);
    } else {
        if (fast_and_near || best > gain * smaller(out->times.now, measured)) return false;
        propose(view, by_sites ? WEIGHTS_SITES : WEIGHTS_FLAT, by_sites ? out->sites : out->flat, next);
    }
    return true;
}

bool weights_plan(uint32_t n, const struct weights_edge *edges, struct weights_memory *memory,
                  const struct weights_plan *now, struct weights_plan *next, struct weights_times *times) {
    struct view view;
    struct pairs pairs;
    struct weights_edge plausible[WEIGHTS_MOST * WEIGHTS_MOST];
    struct outlook out = {.times = {HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL}};
    *next = *now;
    if (times != NULL) *times = out.times;
    if (n < 3 || n > WEIGHTS_MOST) return false;
    make_plausible(n, edges, plausible);
    if (!see(&view, n, plausible, memory->full)) return false;
    double measured = measured_time(&view);
    pairs_learn(n, plausible, memory->pair);
    judge_models(memory, n, now, measured);
    note_measured(memory, n, now, measured);
    bool at_best = is_same(n, now, &memory->best), waits = memory->waits > 0, doubts = at_best && memory->slower > 0;
    memory->waits -= waits;
    if (waits || doubts) return false;
    pairs_judge(n, plausible, memory->pair, &pairs);
    bool by_pairs = believed(&view, memory) == WEIGHTS_PAIRS;
    double gain = by_pairs || now->algorithm == WEIGHTS_SITES ? GAIN_FAR : GAIN;
    if (by_pairs)
        ask_pairs(&pairs, now, &out);
    else
        ask_ports(&view, now, &out);
    if (times != NULL) *times = out.times;
    if (!choose(&view, &out, memory, now, measured, gain, next)) return false;
    memory->returns = is_same(n, next, &memory->best);
    if (at_best) memory->best_s = larger(memory->best_s, measured);
    note_promises(&view, &pairs, memory, next);
    return true;
}

void weights_recall(const struct weights_memory *before, uint32_t n, const uint32_t *was,
                    struct weights_memory *memory) {
    *memory = (struct weights_memory){.waits = before->waits};
    memcpy(memory->error, before->error, sizeof memory->error);
    for (uint32_t i = 0; i < n; i++) {
        if (was[i] == WEIGHTS_MOST) continue;
        memcpy(memory->full[i], before->full[was[i]], sizeof memory->full[i]);
        for (uint32_t k = 0; k < n; k++)
            if (was[k] < WEIGHTS_MOST) memory->pair[i][k] = before->pair[was[i]][was[k]];
    }
}

// ---- for the order of a ring ----

void weights_rates(uint32_t n, const struct weights_edge *edges, const struct weights_memory *memory, uint64_t *rates) {
    struct view view;
    struct weights_edge plausible[WEIGHTS_MOST * WEIGHTS_MOST];
    double full[WEIGHTS_MOST][2];
    memset(rates, 0, (size_t)n * n * sizeof *rates);
    if (n > WEIGHTS_MOST) return;
    make_plausible(n, edges, plausible);
    memcpy(full, memory->full, sizeof full);
    if (!see(&view, n, plausible, full)) return;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++) {
            struct weights_edge edge = edge_at(&view, i, k);
            double rate = smaller(view.member[i], view.member[k]);
            if (edge.backlogged >= BACKLOGGED_LEAST) rate = smaller(rate, edge.rate);
            // All edges that leave a site share its link.
            if (view.site[i] != view.site[k])
                rate = smaller(rate, smaller(view.place[view.site[i] - 1], view.place[view.site[k] - 1]));
            else if (view.sites > 1)
                rate = view.within[i] > 0 ? larger(rate, view.within[i]) : OPTIMISM * rate;
            if (i != k) rates[(size_t)i * n + k] = (uint64_t)rate;
        }
}
