// Bytes wait at a link as long as it is full, so what has passed, over the part of the time in which bytes waited, is
// what it carries.
//
// By weights x, members i and k send each other what i owns and what k owns, x_i + x_k. The time T is that of the
// slowest link; with y = x / T the weights that make it least have the largest sum of y >= 0 with y_i + y_k <= rate_ik:
// a linear program, solved with the simplex method (Dantzig) and Bland's rule (New finite pivoting rules for the
// simplex method, 1977), which ends.
#include "topology/topology.h"

#include <math.h>
#include <stdlib.h>

#define BUSY_LEAST 0.2  // of the time; below that, what passed over what was busy tells little
#define NOTHING 0.05    // of what the fastest edge carries; less tells nothing
#define MUCH 0.25       // of the same; more does, even where bytes seldom wait: at least that passes
#define OPTIMISM 4.0    // times the most that was seen of either end
#define GROWS 1.03      // from look to look, where little passes, or bytes seldom wait
#define RATE_LEAST 1e3  // bytes per second
#define EVEN 0.97       // of the largest sum
#define LOAD_LEAST 0.02 // of the tensor; a link that carries less need not have been seen
#define TINY 1e-9       // smallest number that is not 0

enum {
    LIMITS = WEIGHTS_MOST * (WEIGHTS_MOST + 1) / 2,
    PIVOTS = 2000, // steps of the simplex method, at most
    ROUNDS = 7,    // steps of bisection
};

static double most_of(uint32_t n, const struct weights_edge *edges, uint32_t member) {
    double most = RATE_LEAST;
    for (uint32_t i = 0; i < n; i++) most = fmax(most, fmax(edges[member * n + i].rate, edges[i * n + member].rate));
    return most;
}

// Blends an old measurement with a new one, since links change.
static double adjusted(double known, double carries, bool busy, double most) {
    if (known == 0) return carries;
    if (busy) return known > 2 * carries ? carries : (known + carries) / 2;
    return fmax(carries, fmin(GROWS * known, OPTIMISM * most));
}

void pairs_learn(uint32_t n, const struct weights_edge *edges, double known[WEIGHTS_MOST][WEIGHTS_MOST]) {
    double most = RATE_LEAST;
    for (uint32_t i = 0; i < n * n; i++) most = fmax(most, edges[i].rate);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++) {
            const struct weights_edge *edge = &edges[i * n + k];
            bool tells = edge->rate >= NOTHING * most, busy = tells && edge->backlogged >= BUSY_LEAST;
            if (i == k || (known[i][k] == 0 && !busy && edge->rate < MUCH * most)) continue;
            known[i][k] =
                adjusted(known[i][k], tells ? edge->rate / fmax(edge->backlogged, BUSY_LEAST) : 0, busy, most);
        }
}

void pairs_judge(uint32_t n, const struct weights_edge *edges, const double known[WEIGHTS_MOST][WEIGHTS_MOST],
                 struct pairs *pairs) {
    *pairs = (struct pairs){.n = n};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++) {
            double there = known[i][k], back = known[k][i];
            if (i == k) continue;
            pairs->seen[i][k] = there > 0 || back > 0;
            pairs->rate[i][k] = there > 0 && back > 0 ? fmin(there, back)
                                : pairs->seen[i][k]   ? fmax(there, back)
                                                      : OPTIMISM * fmax(most_of(n, edges, i), most_of(n, edges, k));
        }
}

double pairs_time(const struct pairs *pairs, const double *x) {
    double time = 0;
    for (uint32_t i = 0; i < pairs->n; i++)
        for (uint32_t k = 0; k < i; k++) time = fmax(time, (x[i] + x[k]) / pairs->rate[i][k]);
    return time;
}

bool pairs_seen(const struct pairs *pairs, const double *x) {
    for (uint32_t i = 0; i < pairs->n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (x[i] + x[k] > LOAD_LEAST && !pairs->seen[i][k]) return false;
    return true;
}

double pairs_ring_time(const struct pairs *pairs) {
    double time = 0;
    for (uint32_t i = 0; i < pairs->n; i++) {
        uint32_t next = (i + 1) % pairs->n;
        if (!pairs->seen[i][next]) return HUGE_VAL;
        time = fmax(time, 2.0 * (pairs->n - 1) / pairs->n / pairs->rate[i][next]);
    }
    return time;
}

// ---- the linear program ----

// Each row tells what one variable is: its last number, less the others times the variables of the columns, which are
// 0. So are all that are in no row. The last row tells what the sum gains by each column, and, less than 0, what it is.
struct dictionary {
    uint32_t rows, columns;
    uint16_t of_row[LIMITS], of_column[WEIGHTS_MOST]; // the y_i first, then what is left of each limit
    double cell[LIMITS + 1][WEIGHTS_MOST + 1];
};

static void limit(struct dictionary *d, uint32_t a, uint32_t b, double most) {
    double *row = d->cell[d->rows];
    for (uint32_t c = 0; c < d->columns; c++) row[c] = c == a || c == b;
    row[d->columns] = most;
    d->of_row[d->rows] = (uint16_t)(d->columns + d->rows);
    d->rows++;
}

static void exchange(struct dictionary *d, uint32_t row, uint32_t column) {
    double *out = d->cell[row], by = out[column];
    uint16_t variable = d->of_row[row];
    d->of_row[row] = d->of_column[column];
    d->of_column[column] = variable;
    out[column] = 1;
    for (uint32_t c = 0; c <= d->columns; c++) out[c] /= by;
    for (uint32_t r = 0; r <= d->rows; r++) {
        double times = d->cell[r][column];
        if (r == row || times == 0) continue;
        d->cell[r][column] = 0;
        for (uint32_t c = 0; c <= d->columns; c++) d->cell[r][c] -= times * out[c];
    }
}

// The column that gains something and the row that bounds it first; of several the one with the first variable.
static bool choose(const struct dictionary *d, uint32_t *row, uint32_t *column) {
    const double *gains = d->cell[d->rows];
    *column = d->columns;
    *row = d->rows;
    for (uint32_t c = 0; c < d->columns; c++)
        if (gains[c] > TINY && (*column == d->columns || d->of_column[c] < d->of_column[*column])) *column = c;
    if (*column == d->columns) return false;
    double least = HUGE_VAL;
    for (uint32_t r = 0; r < d->rows; r++) {
        double by = d->cell[r][*column], most = d->cell[r][d->columns] / by;
        if (by <= TINY || most > least + TINY) continue;
        if (*row == d->rows || most < least - TINY || d->of_row[r] < d->of_row[*row]) *row = r;
        least = fmin(least, most);
    }
    return *row < d->rows;
}

// The largest sum of y, none above `most`, all in parts of `unit`.
static double largest_sum(struct dictionary *d, const struct pairs *pairs, double unit, double most, double *y) {
    uint32_t n = pairs->n, row, column;
    double sum = 0;
    d->rows = 0;
    d->columns = n;
    for (uint32_t i = 0; i < n; i++) d->of_column[i] = (uint16_t)i;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++) limit(d, i, k, fmin(pairs->rate[i][k] / unit, 2));
    for (uint32_t i = 0; i < n; i++) limit(d, i, i, most);
    for (uint32_t c = 0; c < n; c++) d->cell[d->rows][c] = 1;
    d->cell[d->rows][n] = 0;
    for (int pivot = 0; pivot < PIVOTS && choose(d, &row, &column); pivot++) exchange(d, row, column);
    for (uint32_t i = 0; i < n; i++) y[i] = 0;
    for (uint32_t r = 0; r < d->rows; r++)
        if (d->of_row[r] < n) y[d->of_row[r]] = fmax(d->cell[r][n], 0);
    for (uint32_t i = 0; i < n; i++) sum += y[i];
    return sum;
}

// No y_i is above this: nobody can own more than its slowest link carries.
static double most_share(const struct pairs *pairs) {
    double most = 0;
    for (uint32_t i = 0; i < pairs->n; i++) {
        double least = HUGE_VAL;
        for (uint32_t k = 0; k < pairs->n; k++)
            if (i != k) least = fmin(least, pairs->rate[i][k]);
        most = fmax(most, least);
    }
    return most;
}

void pairs_fill(const struct pairs *pairs, double *x) {
    struct dictionary *d = malloc(sizeof *d);
    double unit = most_share(pairs), y[WEIGHTS_MOST], low = 0, high = 1;
    for (uint32_t i = 0; i < pairs->n; i++) x[i] = 1.0 / pairs->n;
    if (d == NULL) return;
    double best = largest_sum(d, pairs, unit, 1, y);
    for (int round = 0; round < ROUNDS; round++) {
        double most = (low + high) / 2;
        if (largest_sum(d, pairs, unit, most, y) >= EVEN * best)
            high = most;
        else
            low = most;
    }
    double sum = largest_sum(d, pairs, unit, high, y);
    for (uint32_t i = 0; i < pairs->n && sum > 0; i++) x[i] = y[i] / sum;
    free(d);
}
