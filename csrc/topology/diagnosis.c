// Three looks at one group of members: who does nothing while others wait (hung), who begins late (straggler), which
// way is slower than the others and why (slow sender, receiver, edge, loss).
//
// In a ring all edges carry the same bytes in the same time, however fast they are. The one that holds the others up is
// the one at whose sender bytes wait to be sent, and which is busy for longer for the same bytes. Whether its sender,
// its receiver or the way between is slow, heartbeats to and from third members tell: those that pass the full queue
// are late.
#include "topology/diagnosis.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/peer_name.h"
#include "topology/beginnings.h"
#include "topology/usual.h"

#define SLOW_RATIO 0.5       // of the usual speed; below, an edge is slow
#define ALIKE_RATIO 0.9      // of another one's rate; above, they are as fast
#define BACKLOGGED_LEAST 0.4 // share of looks that find bytes waiting at a slow edge
#define SHARE_LEAST 0.05     // likewise, that a speed is computed with
#define SLOW_COST_LEAST 0.1  // share of an op
#define STRAGGLER_COST 0.12  // likewise
#define STRAGGLER_LEAST 2e-3 // seconds
#define LOSS_LEAST 5e-3      // segments sent again, of all
#define LOSS_SLOW_LEAST 5e-4 // likewise, of a slow edge where nothing queues
#define LOSS_RATIO 4.0       // of the others' share
#define QUEUE_LEAST 3e-3     // seconds that a heartbeat is late behind a queue
#define QUEUE_RATIO 0.3      // of what bytes on the slow edge wait
#define WINDOW_LEAST 0.5     // share of the busy time with a full receive window
#define BEATS_MUTE 2.2       // heartbeats that have not come
#define FIRST_OP_S 30.0      // that the first op may wait for a member
#define MOST_SHARE 0.5       // of a member's other edges that are slow as well
#define FRESH_S 10.0         // what was told longer ago is less and less sure,
#define OLD_S 60.0           // until it counts for nothing

enum {
    SAMPLES_LEAST = 5,
    ENTRIES_LEAST = 2,
    SEGMENTS_LEAST = 1000,
    BYTES_LEAST = 1 << 20, // acknowledged, for a speed
    BUSY_LEAST_US = 50000, // likewise
    PERIOD_US = 1000000,   // between two reports of a member
};

// A group of a matrix.
struct view {
    const struct wire_matrix *matrix;
    uint16_t first, end; // its members
    double *begins;      // by member: seconds
    double *usual;       // by edge of the matrix: the usual speed; 0: there is nothing to compare with
    struct diagnosis_finding *out;
    size_t count;
};

static double seconds(uint64_t us) { return (double)us / 1e6; }
static double counted(uint64_t parts) { return (double)parts / (double)WIRE_COUNT; }
static double smaller(double a, double b) { return a < b ? a : b; }

static bool is_here(const struct view *view, uint16_t member) { return member >= view->first && member < view->end; }

static const struct wire_matrix_member *member_at(const struct view *view, uint16_t place) {
    return &view->matrix->members[place];
}

static struct peer_label name_of(const struct view *view, uint16_t place) {
    const struct wire_member *member = &member_at(view, place)->member;
    char ring[PEER_LABEL_MORE];
    snprintf(ring, sizeof ring, "place %u of the ring", place - view->first);
    return peer_label_with(&member->id, &member->name, ring);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double age(const struct view *view, uint16_t place) { return seconds(member_at(view, place)->told_us); }

// Returns the confidence: two thirds at twice the threshold.
static double confidence(double measured, double threshold) {
    return measured <= 0 || threshold <= 0 ? 0 : measured / (measured + threshold);
}

// Cuts what does not fit: names of members may be long.
static __attribute__((format(printf, 2, 3))) void say(struct diagnosis_finding *finding, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
}

// Adds a finding. A member without a recent report, such as a newcomer in its first second, is known by the reports of
// others only: they suffice if they wait for it, and for nothing else. NULL: the finding is suppressed or a repetition.
static struct diagnosis_finding *add(struct view *view, enum diagnosis_kind kind, uint16_t member, uint16_t other) {
    if (kind != DIAGNOSIS_HUNG && (age(view, member) > OLD_S || age(view, other) > OLD_S)) return NULL;
    for (size_t i = 0; i < view->count; i++)
        if (view->out[i].kind == kind && view->out[i].member == member && view->out[i].other == other) return NULL;
    if (view->count == DIAGNOSIS_MOST) return NULL;
    struct diagnosis_finding *finding = &view->out[view->count++];
    *finding = (struct diagnosis_finding){.kind = kind, .member = member, .other = other};
    return finding;
}

// ---- hung ----

// For how long nothing has moved in an op of this member, as it told not long ago; 0: it is in none, or things move.
static double stands_still(const struct view *view, uint16_t place, double period) {
    const struct wire_matrix_member *member = member_at(view, place);
    if (member->ops.live == 0 || seconds(member->told_us) > 3 * period + 0.5) return 0;
    double still = seconds(member->ops.still_us) + seconds(member->told_us);
    return still >= 2 * period ? still : 0;
}

// Whether it tells so itself. Of one that has fallen silent nobody knows whether it still waits.
static bool tells_that_it_waits(const struct view *view, uint16_t place, double period) {
    const struct wire_matrix_member *member = member_at(view, place);
    return stands_still(view, place, period) > 0 && seconds(member->ops.still_us) >= 2 * period &&
           seconds(member->silent_us) <= 1.5 * period + 0.3;
}

static double mean_op(const struct wire_matrix_member *member) {
    return member->ops.ops == 0 ? 0 : seconds(member->ops.op_us) / counted(member->ops.ops);
}

// Whether one of those who stand still has heard nothing of this member for an op under way.
static bool is_awaited(const struct view *view, uint16_t place, double period) {
    for (uint32_t i = 0; i < view->matrix->edge_count; i++) {
        const struct wire_matrix_edge *edge = &view->matrix->edges[i];
        if (edge->to == place && is_here(view, edge->from) && edge->seen.awaited > 0 &&
            stands_still(view, edge->from, period) > 0)
            return true;
    }
    return false;
}

// Whether it has heard nothing of another one for an op under way.
static bool awaits_others(const struct view *view, uint16_t place) {
    for (uint32_t i = 0; i < view->matrix->edge_count; i++) {
        const struct wire_matrix_edge *edge = &view->matrix->edges[i];
        if (edge->from == place && is_here(view, edge->to) && edge->seen.awaited > 0) return true;
    }
    return false;
}

// Whether each of those that are awaited awaits others.
static bool all_await(const struct view *view) {
    for (uint32_t i = 0; i < view->matrix->edge_count; i++) {
        const struct wire_matrix_edge *edge = &view->matrix->edges[i];
        if (edge->seen.awaited > 0 && is_here(view, edge->to) && !awaits_others(view, edge->to)) return false;
    }
    return true;
}

// The waiting members, summed up.
struct waiting {
    uint32_t members;
    double longest, usual; // the usual time of an op; 0: none has ended yet
};

static void tell_hung(struct view *view, uint16_t place, const struct waiting *waiting, bool mute, double threshold) {
    const struct wire_matrix_member *member = member_at(view, place);
    struct diagnosis_finding *finding = add(view, DIAGNOSIS_HUNG, place, place);
    if (finding == NULL) return;
    double silent = seconds(member->silent_us);
    struct peer_label name = name_of(view, place);
    finding->value = mute ? silent : waiting->longest;
    finding->usual = mute ? threshold : waiting->usual;
    finding->cost = 1;
    finding->confidence = confidence(finding->value, 0.5 * threshold);
    if (mute)
        say(finding, "%s hangs: nothing has been heard of its process for %.1f s, while %u others wait in an op",
            name.chars, silent, waiting->members);
    else if (member->ops.live > 0)
        say(finding,
            "%s has not begun the op in which others have waited for %.1f s, and waits in another one: the "
            "members call different ops",
            name.chars, waiting->longest);
    else if (waiting->usual == 0)
        say(finding,
            "%s hangs in its own code: it has not begun the first op, in which %u others have waited for %.1f s",
            name.chars, waiting->members, waiting->longest);
    else
        say(finding,
            "%s hangs in its own code: it has not begun the op in which %u others have waited for %.1f s; an op "
            "usually takes %.3f s",
            name.chars, waiting->members, waiting->longest, waiting->usual);
}

static void find_hung(struct view *view) {
    double beat = view->matrix->heartbeat_limit_ms / 1e3 / 5, period = smaller(PERIOD_US / 1e6, beat);
    // A member that calls no ops says something with every heartbeat alone.
    double silence = 1.5 * period + 0.3 > BEATS_MUTE * beat ? 1.5 * period + 0.3 : BEATS_MUTE * beat;
    struct waiting waiting = {0};
    for (uint16_t i = view->first; i < view->end; i++) {
        double still = stands_still(view, i, period), oldest = seconds(member_at(view, i)->ops.oldest_us);
        if (still == 0 || seconds(member_at(view, i)->silent_us) > period) continue;
        waiting.members++;
        if (oldest > waiting.longest) waiting.longest = oldest;
        if (mean_op(member_at(view, i)) > waiting.usual) waiting.usual = mean_op(member_at(view, i));
    }
    if (waiting.members == 0) return;
    // The first op waits for what each does at its beginning, which takes its time.
    double patience = waiting.usual == 0 ? FIRST_OP_S : 3 * waiting.usual;
    if (patience < 2 * period) patience = 2 * period;
    bool found = false;
    for (uint16_t i = view->first; i < view->end; i++) {
        const struct wire_matrix_member *member = member_at(view, i);
        bool awaited = is_awaited(view, i, period);
        bool mute = seconds(member->silent_us) > silence;
        bool idle = awaited && member->ops.live == 0 && waiting.longest > patience;
        if (mute || idle) tell_hung(view, i, &waiting, mute, mute ? silence : patience);
        found |= mute || idle;
    }
    // Follows wait-for edges. Blames the member that nobody blocks; if all are blocked, it is a cycle.
    for (uint16_t i = view->first; i < view->end && !found && waiting.longest > 2 * period; i++)
        if (tells_that_it_waits(view, i, period) && is_awaited(view, i, period) &&
            (!awaits_others(view, i) || all_await(view)))
            tell_hung(view, i, &waiting, false, 2 * period);
}

// ---- stragglers ----

// How much later `edge->to` begins than `edge->from`, in seconds; the sign of it was on its way for half a round trip.
static bool later_by(const struct view *view, const struct wire_matrix_edge *edge, double *out) {
    double entries = counted(edge->seen.entries);
    if (!is_here(view, edge->from) || !is_here(view, edge->to) || entries < ENTRIES_LEAST) return false;
    if (age(view, edge->from) > OLD_S) return false;
    *out =
        (seconds(edge->seen.late_us) - seconds(edge->seen.early_us)) / entries - seconds(edge->seen.round_trip_us) / 2;
    return true;
}

static bool place_in_time(struct view *view) {
    const struct wire_matrix *matrix = view->matrix;
    struct beginnings_pair *pairs = calloc(matrix->edge_count + 1, sizeof *pairs);
    size_t count = 0;
    double by;
    for (uint32_t i = 0; i < matrix->edge_count && pairs != NULL; i++) {
        const struct wire_matrix_edge *edge = &matrix->edges[i];
        if (!later_by(view, edge, &by)) continue;
        uint16_t from = edge->from - view->first, to = edge->to - view->first;
        pairs[count++] = (struct beginnings_pair){from, to, by};
    }
    bool placed = pairs != NULL && beginnings_place(pairs, count, view->end - view->first, view->begins);
    free(pairs);
    return placed;
}

// Finds the members behind the largest gap in starts, if the gap is more than the usual spread.
static void find_stragglers(struct view *view) {
    uint16_t count = view->end - view->first, most = (uint16_t)(count < 3 ? 1 : (count - 1) / 2), late = 0;
    double *sorted = calloc(count, sizeof *sorted), gap = 0, op = 0;
    if (sorted == NULL || !place_in_time(view)) {
        free(sorted);
        return;
    }
    memcpy(sorted, view->begins, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_size);
    for (uint16_t k = 1; k <= most; k++) {
        double here = sorted[count - k] - sorted[count - k - 1];
        if (here <= gap) continue;
        gap = here;
        late = k;
    }
    double before = late == 0 ? 0 : sorted[count - late - 1];
    free(sorted);
    for (uint16_t i = view->first; i < view->end; i++)
        if (mean_op(member_at(view, i)) > op) op = mean_op(member_at(view, i));
    if (op > 0 && op < gap) op = gap; // it takes the others as long as they wait; each tells of ops of its own
    double cost = op <= 0 ? 0 : gap / op;
    if (late == 0 || gap < STRAGGLER_LEAST || cost < STRAGGLER_COST || gap < before) return;
    for (uint16_t i = 0; i < count; i++) {
        if (view->begins[i] <= before) continue;
        uint16_t place = view->first + i;
        struct diagnosis_finding *finding = add(view, DIAGNOSIS_STRAGGLER, place, place);
        if (finding == NULL) continue;
        finding->value = view->begins[i];
        finding->usual = before;
        finding->cost = cost;
        finding->confidence = confidence(cost, STRAGGLER_COST / 2);
        say(finding,
            "%s computes for longer: it begins ops %.1f ms after the next-latest member, %.0f %% of the %.1f ms "
            "that an op takes the others",
            name_of(view, place).chars, (view->begins[i] - before) * 1e3, cost * 100, op * 1e3);
    }
}

// ---- slow ways ----

static bool carries(const struct view *view, const struct wire_matrix_edge *edge) {
    return is_here(view, edge->from) && is_here(view, edge->to) && counted(edge->seen.samples) >= SAMPLES_LEAST &&
           edge->seen.acked >= BYTES_LEAST && edge->seen.busy_us >= BUSY_LEAST_US && age(view, edge->from) <= OLD_S;
}

static double backlogged(const struct wire_matrix_edge *edge) {
    return edge->seen.samples == 0 ? 0 : smaller((double)edge->seen.backlogged / (double)edge->seen.samples, 1);
}

static double rate(const struct wire_matrix_edge *edge) {
    return (double)edge->seen.acked / seconds(edge->seen.busy_us);
}

// Returns the rate of the edge if it always had unsent data. A link that rarely has is limited by another link.
static double speed(const struct wire_matrix_edge *edge) {
    double share = backlogged(edge);
    return rate(edge) / (share < SHARE_LEAST ? SHARE_LEAST : share);
}

static double loss(const struct wire_matrix_edge *edge) {
    return edge->seen.segments < SEGMENTS_LEAST
               ? 0
               : smaller((double)edge->seen.retransmits / (double)edge->seen.segments, 1);
}

// The middle one of all edges that carry ops, of two the smaller one.
static double middle(const struct view *view, double (*of)(const struct wire_matrix_edge *edge)) {
    double *all = calloc(view->matrix->edge_count + 1, sizeof *all), found = 0;
    size_t count = 0;
    for (uint32_t i = 0; i < view->matrix->edge_count && all != NULL; i++)
        if (carries(view, &view->matrix->edges[i])) all[count++] = of(&view->matrix->edges[i]);
    if (count > 1) {
        qsort(all, count, sizeof *all, by_size);
        found = all[(count - 1) / 2];
    }
    free(all);
    return found;
}

// Returns the receiver's statistics of heartbeats from the sender of this edge. NULL: none.
static const struct wire_seen *back(const struct view *view, uint16_t from, uint16_t to) {
    for (uint32_t i = 0; i < view->matrix->edge_count; i++) {
        const struct wire_matrix_edge *edge = &view->matrix->edges[i];
        if (edge->from == to && edge->to == from) return &edge->seen;
    }
    return NULL;
}

static double queue(const struct view *view, const struct wire_matrix_edge *edge) {
    const struct wire_seen *seen = back(view, edge->from, edge->to);
    return seen == NULL ? 0 : seconds(seen->queue_us);
}

// Acknowledgements of what goes this way wait on the way back: it seems to be slow, however fast it is.
static bool answers_wait(const struct view *view, const struct wire_matrix_edge *edge) {
    double answer = seconds(edge->seen.queue_us);
    return answer > QUEUE_LEAST && queue(view, edge) < answer / 2;
}

static void find_usual(struct view *view) {
    struct usual *carrying = calloc(view->matrix->edge_count + 1, sizeof *carrying);
    size_t count = 0;
    for (uint32_t i = 0; i < view->matrix->edge_count && carrying != NULL; i++) {
        const struct wire_matrix_edge *edge = &view->matrix->edges[i];
        bool known = !(backlogged(edge) >= BACKLOGGED_LEAST && answers_wait(view, edge));
        if (carries(view, edge) && known) carrying[count++] = (struct usual){i, (double)edge->seen.acked, speed(edge)};
    }
    usual_speeds(carrying, count, view->usual);
    free(carrying);
}

static double usual_of(const struct view *view, const struct wire_matrix_edge *edge) {
    return view->usual[edge - view->matrix->edges];
}

// How much longer than at best bytes of ops, and their acknowledgements, are on the way: what they wait behind.
static double backlog(const struct wire_matrix_edge *edge) {
    double backlogged = counted(edge->seen.backlogged);
    double loaded = backlogged <= 0 ? 0 : seconds(edge->seen.delay_us) / backlogged;
    return loaded <= 0 ? 0 : loaded - seconds(edge->seen.round_trip_us);
}

// How late what this member sends, or what is sent to it, comes on average, in seconds.
static double lateness(const struct view *view, uint16_t member, bool leaving) {
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < view->matrix->edge_count; i++) {
        const struct wire_matrix_edge *edge = &view->matrix->edges[i];
        if ((leaving ? edge->to : edge->from) != member || edge->seen.queue_us == 0) continue;
        sum += seconds(edge->seen.queue_us);
        count++;
    }
    return count == 0 ? 0 : sum / count;
}

// Acknowledgements of what goes this way wait on the way back, or on the line of the member that sends them: that is
// slow, and this way only seems to be.
static bool waits_for_answers(const struct view *view, const struct wire_matrix_edge *edge) {
    double leaves = lateness(view, edge->to, true);
    return answers_wait(view, edge) || (leaves > QUEUE_LEAST && lateness(view, edge->to, false) < leaves / 2);
}

static double cost_of(const struct view *view, const struct wire_matrix_edge *edge) {
    double usual = usual_of(view, edge), span = member_at(view, edge->from)->recent_us;
    double busy = span == 0 ? 0 : smaller((double)edge->seen.busy_us / span, 1);
    return usual <= 0 ? 0 : (1 - smaller(speed(edge) / usual, 1)) * busy;
}

// In a ring that is full all round, bytes wait at one sender as well as at another one. Where no way is faster, and the
// lines of half of the others are about as full, they wait here by chance.
static bool is_full_all_round(const struct view *view, const struct wire_matrix_edge *edge) {
    uint32_t others = 0, full = 0;
    for (uint32_t i = 0; i < view->matrix->edge_count; i++) {
        const struct wire_matrix_edge *other = &view->matrix->edges[i];
        if (other == edge || !carries(view, other)) continue;
        if (rate(edge) < ALIKE_RATIO * rate(other)) return false;
        others++;
        full += queue(view, other) > QUEUE_LEAST && queue(view, other) > queue(view, edge) / 2;
    }
    return 2 * full >= others;
}

static bool is_slow(const struct view *view, const struct wire_matrix_edge *edge) {
    return carries(view, edge) && speed(edge) < SLOW_RATIO * usual_of(view, edge) &&
           backlogged(edge) >= BACKLOGGED_LEAST && cost_of(view, edge) >= SLOW_COST_LEAST &&
           !waits_for_answers(view, edge);
}

// Statistics of the other edges of the sender, or of the receiver, of a slow edge.
struct side {
    double slow; // share of those that carry ops
    double late; // of heartbeats on them, on average, in seconds
};

static struct side side_of(const struct view *view, const struct wire_matrix_edge *of, bool leaving) {
    uint32_t slow = 0, carrying = 0, told = 0;
    double late = 0;
    for (uint32_t i = 0; i < view->matrix->edge_count; i++) {
        const struct wire_matrix_edge *edge = &view->matrix->edges[i];
        if (!is_here(view, edge->from) || !is_here(view, edge->to)) continue;
        bool other =
            leaving ? edge->from == of->from && edge->to != of->to : edge->to == of->to && edge->from != of->from;
        if (other && carries(view, edge)) {
            carrying++;
            slow += is_slow(view, edge);
        }
        // The receiver of the heartbeats reports on the same direction.
        bool tells =
            leaving ? edge->to == of->from && edge->from != of->to : edge->from == of->to && edge->to != of->from;
        if (!tells || edge->seen.queue_us == 0) continue;
        late += seconds(edge->seen.queue_us);
        told++;
    }
    return (struct side){carrying == 0 ? 0 : (double)slow / carrying, told == 0 ? 0 : late / told};
}

// Whether this side of a slow edge is slow as a whole, and not the way alone, nor the other side.
static bool is_at_fault(const struct side *side, const struct side *other, double backlogged) {
    double least = QUEUE_RATIO * backlogged;
    if (least < QUEUE_LEAST) least = QUEUE_LEAST;
    return (side->slow >= MOST_SHARE && side->slow > other->slow) ||
           (side->late > least && side->late > 2 * other->late);
}

static void judge_slow(struct view *view, const struct wire_matrix_edge *edge) {
    struct side sender = side_of(view, edge, true), receiver = side_of(view, edge, false);
    double here = rate(edge) / 1e6, looks = 100 * backlogged(edge), others = 100 * middle(view, backlogged);
    double full = (double)edge->seen.window_us / (double)edge->seen.busy_us;
    struct peer_label from = name_of(view, edge->from), to = name_of(view, edge->to);
    struct diagnosis_finding *finding;
    if (full > WINDOW_LEAST) {
        finding = add(view, DIAGNOSIS_SLOW_RECEIVER, edge->to, edge->to);
        if (finding == NULL) return;
        say(finding,
            "%s takes slowly what it is sent: %.1f MB/s from %s, and its receive window was full for %.0f %% of the "
            "time",
            to.chars, here, from.chars, smaller(full, 1) * 100);
    } else if (is_at_fault(&receiver, &sender, backlog(edge))) {
        finding = add(view, DIAGNOSIS_SLOW_RECEIVER, edge->to, edge->to);
        if (finding == NULL) return;
        say(finding,
            "%s receives slowly: %.1f MB/s from %s, bytes wait in %.0f %% of the looks, elsewhere in %.0f %%; what "
            "other members send to it waits as well",
            to.chars, here, from.chars, looks, others);
    } else if (is_at_fault(&sender, &receiver, backlog(edge))) {
        finding = add(view, DIAGNOSIS_SLOW_SENDER, edge->from, edge->from);
        if (finding == NULL) return;
        say(finding,
            "%s sends slowly: %.1f MB/s to %s, bytes wait in %.0f %% of the looks, elsewhere in %.0f %%; what it "
            "sends to other members waits as well",
            from.chars, here, to.chars, looks, others);
    } else {
        finding = add(view, DIAGNOSIS_SLOW_EDGE, edge->from, edge->to);
        if (finding == NULL) return;
        say(finding,
            "the way from %s to %s is slow: %.1f MB/s, bytes wait in %.0f %% of the looks, elsewhere in %.0f %%",
            from.chars, to.chars, here, looks, others);
    }
    finding->value = speed(edge);
    finding->usual = usual_of(view, edge);
    finding->cost = cost_of(view, edge);
    finding->confidence = confidence(finding->usual / speed(edge), 0.5 / SLOW_RATIO);
}

static void find_slow(struct view *view) {
    double usual_loss = middle(view, loss);
    find_usual(view);
    for (uint32_t i = 0; i < view->matrix->edge_count; i++) {
        const struct wire_matrix_edge *edge = &view->matrix->edges[i];
        bool slow = is_slow(view, edge);
        // A full queue drops packets too: then the way is slow, and nothing is lost elsewhere.
        double least = slow ? LOSS_SLOW_LEAST : LOSS_LEAST;
        bool loses = carries(view, edge) && loss(edge) >= least && loss(edge) >= LOSS_RATIO * usual_loss &&
                     !(slow && (queue(view, edge) > QUEUE_LEAST || backlog(edge) > QUEUE_LEAST));
        if (slow && !loses && !is_full_all_round(view, edge)) judge_slow(view, edge);
        struct diagnosis_finding *finding = loses ? add(view, DIAGNOSIS_LOSS, edge->from, edge->to) : NULL;
        if (finding == NULL) continue;
        finding->value = loss(edge);
        finding->usual = usual_loss;
        finding->cost = cost_of(view, edge);
        if (finding->cost < loss(edge)) finding->cost = loss(edge);
        finding->confidence = confidence(loss(edge), least / 2);
        say(finding,
            "packets are lost on the way from %s to %s: %.2f %% of the segments were sent again, elsewhere %.2f %%; "
            "it has %.1f MB/s",
            name_of(view, edge->from).chars, name_of(view, edge->to).chars, loss(edge) * 100, usual_loss * 100,
            rate(edge) / 1e6);
    }
}

// ---- all ----
static int by_weight(const void *a, const void *b) {
    const struct diagnosis_finding *x = a, *y = b;
    double left = x->cost * x->confidence, right = y->cost * y->confidence;
    return left > right ? -1 : left < right;
}

// A member that sends or receives slowly spoils its other edges, if only for the acknowledgements on them. While one
// that begins late sends, nobody else has much to send any more: bytes wait there alone.
static void drop_followers(struct view *view) {
    size_t kept = 0;
    for (size_t i = 0; i < view->count; i++) {
        const struct diagnosis_finding *finding = &view->out[i];
        bool follows = false;
        for (size_t k = 0; k < kept && !follows; k++) {
            enum diagnosis_kind kind = view->out[k].kind;
            uint16_t slow = view->out[k].member;
            bool late = finding->kind == DIAGNOSIS_STRAGGLER || finding->kind == DIAGNOSIS_HUNG;
            bool line = kind == DIAGNOSIS_SLOW_SENDER || kind == DIAGNOSIS_SLOW_RECEIVER;
            follows =
                (line && !late && (finding->member == slow || finding->other == slow)) ||
                (kind == DIAGNOSIS_STRAGGLER && finding->kind == DIAGNOSIS_SLOW_SENDER && finding->member == slow);
        }
        if (!follows) view->out[kept++] = *finding;
    }
    view->count = kept;
}

// Nobody tells anything while no ops are called.
static void note_ages(struct view *view) {
    for (size_t i = 0; i < view->count; i++) {
        struct diagnosis_finding *finding = &view->out[i];
        double old = age(view, finding->member);
        if (finding->kind == DIAGNOSIS_HUNG || old <= FRESH_S) continue;
        size_t length = strlen(finding->text);
        snprintf(finding->text + length, sizeof finding->text - length, ", as of %.0f s ago", old);
        finding->confidence *= old < OLD_S ? 1 - (old - FRESH_S) / (OLD_S - FRESH_S) : 0;
    }
}

// Skips the other tests if a member hangs: measurements of the others mean little then.
static void examine(struct view *view) {
    size_t before = view->count;
    find_hung(view);
    if (view->count > before) return;
    find_stragglers(view);
    find_slow(view);
}

size_t diagnosis_make(const struct wire_matrix *matrix, struct diagnosis_finding out[DIAGNOSIS_MOST],
                      double *begins_s) {
    double *begins = calloc(matrix->member_count + 1, sizeof *begins);
    double *usual = calloc(matrix->edge_count + 1, sizeof *usual);
    struct view view = {.matrix = matrix, .usual = usual, .out = out};
    while (view.end < matrix->member_count && begins != NULL && usual != NULL) {
        view.first = view.end;
        while (view.end < matrix->member_count &&
               matrix->members[view.end].member.group == matrix->members[view.first].member.group)
            view.end++;
        view.begins = begins + view.first;
        if (view.end - view.first > 1) examine(&view);
    }
    note_ages(&view);
    qsort(out, view.count, sizeof *out, by_weight);
    drop_followers(&view);
    if (begins != NULL && begins_s != NULL) memcpy(begins_s, begins, matrix->member_count * sizeof *begins_s);
    free(begins);
    free(usual);
    return view.count;
}
