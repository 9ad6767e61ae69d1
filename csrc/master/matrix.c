#include "master/matrix.h"

#include <stdlib.h>
#include <string.h>

#include "link/pace.h"
#include "net/socket.h"

enum {
    FADE = 7,               // FADE / FADE_OF of the earlier sums is left with each report: the last few reports count
    FADE_OF = 10,           // likewise
    EDGES_LEAST = 2,        // edges of each member in an answer, at least
    SENT_LEAST = 100,       // segments, so that the retransmitted fraction of them means something
    REPORTS_LEAST = 3,      // reports of each member in a look
    SAMPLES_LEAST = 5,      // samples of an edge in a look, so that they tell how often bytes wait
    BYTES_LEAST = 1 << 20,  // bytes acknowledged on an edge in a look, for the same
    BUSY_LEAST_US = 200000, // us that a group sent in a look, so that the look means something
};

void matrix_fini(struct matrix *matrix) {
    for (uint32_t i = 0; i < WIRE_MAX_MEMBERS; i++) free(matrix->rows[i]);
    wire_buffer_fini(&matrix->answer);
    memset(matrix, 0, sizeof *matrix);
}

static uint64_t bounded(uint64_t number) { return number < WIRE_MOST_SEEN ? number : WIRE_MOST_SEEN; }

static void add(uint64_t *sum, uint64_t newest) {
    *sum = bounded(*sum / FADE_OF * FADE + *sum % FADE_OF * FADE / FADE_OF + newest);
}

// An op may take longer than the time between two reports, so the reports in which ops end count, each with the time
// since the one before.
static void add_ended(struct matrix_row *row, const struct wire_ops_seen *newest) {
    struct wire_ops_seen *sums = &row->sums.ops;
    memmove(&row->ended[1], &row->ended[0], (MATRIX_BEGUN - 1) * sizeof row->ended[0]);
    row->ended[0].ops = newest->ops * MATRIX_PARTS;
    row->ended[0].op_us = newest->op_us;
    row->ended[0].span_us = row->open_us;
    row->ended[0].processor_us = row->open_processor_us;
    row->open_us = row->open_processor_us = 0;
    sums->ops = sums->op_us = sums->span_us = sums->processor_us = 0;
    for (int i = 0; i < MATRIX_BEGUN; i++) {
        sums->ops = bounded(sums->ops + row->ended[i].ops);
        sums->op_us = bounded(sums->op_us + row->ended[i].op_us);
        sums->span_us = bounded(sums->span_us + row->ended[i].span_us);
        sums->processor_us = bounded(sums->processor_us + row->ended[i].processor_us);
    }
}

static void add_ops(struct matrix_row *row, const struct wire_ops_seen *newest) {
    struct wire_ops_seen *sums = &row->sums.ops;
    add(&row->recent_us, newest->span_us);
    row->open_us = bounded(row->open_us + newest->span_us);
    row->open_processor_us = bounded(row->open_processor_us + newest->processor_us);
    if (newest->ops > 0) add_ended(row, newest);
    sums->live = newest->live;
    sums->oldest_us = newest->oldest_us;
    sums->still_us = newest->still_us;
    sums->epoch = newest->epoch;
}

static void add_seen(struct wire_seen *sums, const struct wire_seen *newest) {
    add(&sums->acked, newest->acked);
    add(&sums->busy_us, newest->busy_us);
    add(&sums->window_us, newest->window_us);
    add(&sums->samples, newest->samples * MATRIX_PARTS);
    add(&sums->backlogged, newest->backlogged * MATRIX_PARTS);
    add(&sums->delay_us, newest->delay_us);
    if (newest->round_trip_us > 0) sums->round_trip_us = newest->round_trip_us;
    sums->queue_us = newest->queue_us;
    sums->awaited = newest->awaited;
    if (newest->lanes > 0 || newest->round_trip_us > 0) { // something was sent there
        sums->lanes = newest->lanes;
        sums->reason = newest->reason;
    }
}

static void add_begun(struct wire_seen *sums, struct matrix_recent *recent, const struct wire_seen *newest) {
    if (newest->entries == 0) return;
    memmove(&recent->begun[1], &recent->begun[0], (MATRIX_BEGUN - 1) * sizeof recent->begun[0]);
    recent->begun[0].entries = newest->entries * MATRIX_PARTS;
    recent->begun[0].late_us = newest->late_us;
    recent->begun[0].early_us = newest->early_us;
    sums->entries = sums->late_us = sums->early_us = 0;
    for (int i = 0; i < MATRIX_BEGUN; i++) {
        sums->entries = bounded(sums->entries + recent->begun[i].entries);
        sums->late_us = bounded(sums->late_us + recent->begun[i].late_us);
        sums->early_us = bounded(sums->early_us + recent->begun[i].early_us);
    }
}

static double fraction_of(uint64_t segments, uint64_t retransmits) {
    if (retransmits >= segments) return segments == 0 ? 0 : 1;
    return (double)retransmits / (double)segments;
}

static void add_sent(struct wire_seen *sums, struct matrix_recent *recent, const struct wire_seen *newest) {
    if (newest->segments == 0) return;
    if (recent->sent[0].segments >= SENT_LEAST) {
        memmove(&recent->sent[1], &recent->sent[0], (MATRIX_SENT - 1) * sizeof recent->sent[0]);
        recent->sent[0].segments = recent->sent[0].retransmits = 0;
    }
    recent->sent[0].segments = bounded(recent->sent[0].segments + newest->segments);
    recent->sent[0].retransmits = bounded(recent->sent[0].retransmits + newest->retransmits);
    int worst = 0;
    double largest = 0, next = 0;
    for (int i = 0; i < MATRIX_SENT; i++) {
        double fraction = fraction_of(recent->sent[i].segments, recent->sent[i].retransmits);
        if (fraction > largest) {
            next = largest;
            largest = fraction;
            worst = i;
        } else if (fraction > next) {
            next = fraction;
        }
    }
    sums->segments = sums->retransmits = 0;
    for (int i = 0; i < MATRIX_SENT; i++) {
        uint64_t most = (uint64_t)(next * (double)recent->sent[i].segments);
        sums->segments = bounded(sums->segments + recent->sent[i].segments);
        sums->retransmits = bounded(sums->retransmits + (i == worst ? most : recent->sent[i].retransmits));
    }
}

// `count`: there is none.
static uint32_t told_at(const struct wire_telemetry *told, const struct wire_id *id) {
    uint32_t at = 0;
    while (at < told->count && !wire_id_equal(&told->others[at].id, id)) at++;
    return at;
}

static bool is_faded(const struct wire_seen *seen) {
    return seen->acked < MATRIX_PARTS && seen->samples == 0 && seen->awaited == 0;
}

// Merges a report. Entries of members that it omits fade and make room; the others come first, in the order of the
// report.
static void merge(struct matrix_row *row, const struct wire_telemetry *told) {
    static const struct wire_seen nothing;
    const struct wire_telemetry *sums = &row->sums;
    struct wire_telemetry next = {.ops = sums->ops};
    struct matrix_recent recent[WIRE_MAX_SEEN] = {0};
    for (uint32_t i = 0; i < told->count; i++) {
        if (told_at(&next, &told->others[i].id) < next.count) continue; // told twice
        uint32_t before = told_at(sums, &told->others[i].id), at = next.count++;
        next.others[at].id = told->others[i].id;
        next.others[at].seen = before == sums->count ? nothing : sums->others[before].seen;
        if (before < sums->count) recent[at] = row->recent[before];
        add_seen(&next.others[at].seen, &told->others[i].seen);
        add_begun(&next.others[at].seen, &recent[at], &told->others[i].seen);
        add_sent(&next.others[at].seen, &recent[at], &told->others[i].seen);
    }
    for (uint32_t i = 0; i < sums->count && next.count < WIRE_MAX_SEEN; i++) {
        if (told_at(told, &sums->others[i].id) < told->count) continue;
        struct wire_seen faded = sums->others[i].seen;
        add_seen(&faded, &nothing);
        if (is_faded(&faded)) continue;
        recent[next.count] = row->recent[i];
        next.others[next.count].id = sums->others[i].id;
        next.others[next.count++].seen = faded;
    }
    row->sums = next;
    memcpy(row->recent, recent, sizeof recent);
}

// Plain sums, for what is seen at the end of a long op says little of the whole one.
static void add_fresh(struct wire_telemetry *fresh, const struct wire_telemetry *told) {
    fresh->ops.span_us = bounded(fresh->ops.span_us + told->ops.span_us);
    for (uint32_t i = 0; i < told->count; i++) {
        const struct wire_seen *newest = &told->others[i].seen;
        uint32_t at = told_at(fresh, &told->others[i].id);
        if (at == WIRE_MAX_SEEN) continue;
        struct wire_seen *sums = &fresh->others[at].seen;
        if (at == fresh->count) {
            fresh->others[fresh->count++].id = told->others[i].id;
            *sums = (struct wire_seen){0};
        }
        sums->acked = bounded(sums->acked + newest->acked);
        sums->busy_us = bounded(sums->busy_us + newest->busy_us);
        sums->samples = bounded(sums->samples + newest->samples * MATRIX_PARTS);
        sums->backlogged = bounded(sums->backlogged + newest->backlogged * MATRIX_PARTS);
        if (newest->round_trip_us > 0) sums->round_trip_us = newest->round_trip_us;
    }
}

// Starts afresh but keeps the shortest round trips.
static void begin_fresh(struct matrix_row *row) {
    row->reports = 0;
    row->fresh.ops.span_us = 0;
    for (uint32_t i = 0; i < row->fresh.count; i++)
        row->fresh.others[i].seen = (struct wire_seen){.round_trip_us = row->fresh.others[i].seen.round_trip_us};
}

static void note_fresh(struct matrix_row *row, const struct wire_telemetry *told) {
    if (row->epoch == told->ops.epoch) {
        add_fresh(&row->fresh, told);
        row->reports++;
    } else {
        row->epoch = told->ops.epoch;
        row->fresh.count = 0;
        begin_fresh(row);
    }
}

// The row of a member, made if there is none. NULL: memory was refused.
static struct matrix_row *own_row(struct matrix *matrix, struct membership *table, const struct peer_record *peer) {
    struct matrix_row **row = &matrix->rows[membership_slot(table, peer)];
    if (*row == NULL) *row = calloc(1, sizeof **row);
    if (*row == NULL) return NULL;
    if (!wire_id_equal(&(*row)->id, &peer->member.id)) **row = (struct matrix_row){.id = peer->member.id};
    return *row;
}

void matrix_note(struct matrix *matrix, struct membership *table, const struct peer_record *peer,
                 const struct wire_telemetry *told) {
    struct matrix_row *row = own_row(matrix, table, peer);
    if (row == NULL) return;
    row->told_ns = table->now_ns;
    merge(row, told);
    add_ops(row, &told->ops);
    note_fresh(row, told);
}

void matrix_note_numbers(struct matrix *matrix, struct membership *table, const struct peer_record *peer,
                         const struct wire_numbers *told) {
    struct matrix_row *row = own_row(matrix, table, peer);
    if (row != NULL) row->numbers = *told;
}

static const struct matrix_row *row_of(const struct matrix *matrix, const struct membership *table,
                                       const struct peer_record *peer) {
    const struct matrix_row *row = matrix->rows[membership_slot(table, peer)];
    return row != NULL && wire_id_equal(&row->id, &peer->member.id) ? row : NULL;
}

static struct matrix_row *fresh_row(const struct matrix *matrix, const struct membership *table,
                                    const struct peer_record *peer) {
    struct matrix_row *row = matrix->rows[membership_slot(table, peer)];
    bool fresh = row != NULL && wire_id_equal(&row->id, &peer->member.id) && row->epoch == peer->group->group_epoch &&
                 row->reports >= REPORTS_LEAST;
    return fresh ? row : NULL;
}

// The members of a group work at the same ops: the longest part of its time in which one sent is that of all, each of
// which has told of a span of its own. 0: too little is known.
static double busy_part(const struct matrix *matrix, const struct membership *table, const struct peer_group *group) {
    uint64_t longest = 0, span_us = 0;
    for (uint32_t i = 0; i < group->count; i++) {
        const struct matrix_row *row = fresh_row(matrix, table, group->members[i]);
        if (row == NULL || row->fresh.ops.span_us == 0) return 0;
        for (uint32_t k = 0; k < row->fresh.count; k++) {
            if (row->fresh.others[k].seen.busy_us <= longest) continue;
            longest = row->fresh.others[k].seen.busy_us;
            span_us = row->fresh.ops.span_us;
        }
    }
    return longest < BUSY_LEAST_US ? 0 : (double)longest / (double)span_us;
}

bool matrix_look(struct matrix *matrix, struct membership *table, const struct peer_group *group,
                 struct weights_edge *edges) {
    double part = group->count > WEIGHTS_MOST ? 0 : busy_part(matrix, table, group);
    if (part == 0) return false;
    memset(edges, 0, (size_t)group->count * group->count * sizeof *edges);
    for (uint32_t i = 0; i < group->count; i++) {
        struct matrix_row *row = fresh_row(matrix, table, group->members[i]);
        double busy_s = part * (double)row->fresh.ops.span_us / 1e6;
        for (uint32_t k = 0; k < row->fresh.count; k++) {
            const struct peer_record *to = membership_in_group(table, group, &row->fresh.others[k].id);
            const struct wire_seen *seen = &row->fresh.others[k].seen;
            if (to == NULL) continue;
            struct weights_edge *edge = &edges[i * group->count + to->rank];
            edge->rate = (double)seen->acked / busy_s;
            edge->round_trip_us = (double)seen->round_trip_us;
            if (seen->samples >= (uint64_t)SAMPLES_LEAST * MATRIX_PARTS && seen->acked >= BYTES_LEAST)
                edge->backlogged = (double)seen->backlogged / (double)seen->samples;
        }
        begin_fresh(row);
    }
    return true;
}

static uint64_t since_us(int64_t then_ns, int64_t now_ns) {
    return then_ns >= now_ns ? 0 : (uint64_t)((now_ns - then_ns) / US_NS);
}

// The place of a member of the same group in the table's order. False: it is none.
static bool place_of(struct membership *table, const struct peer_record *of, const struct wire_id *id, uint32_t *out) {
    const struct peer_record *peer = membership_by_id(table, id);
    if (peer == NULL || peer == of || !peer->accepted || peer->group != of->group) return false;
    *out = (uint32_t)(peer->group->members - table->order) + peer->rank;
    return true;
}

static double seconds(uint64_t us) { return (double)us / 1e6; }

static double count(uint64_t parts) { return (double)parts / (double)MATRIX_PARTS; }

static void describe_peer(const struct wire_member *member, pcclRankUuid_t *uuid, char name[WIRE_MAX_NAME + 1],
                          char address[WIRE_MAX_NAME + 1]) {
    memcpy(uuid->data, member->id.bytes, sizeof member->id.bytes);
    memcpy(name, member->name.chars, sizeof member->name.chars);
    socket_address_format(address, WIRE_MAX_NAME + 1, &member->address);
}

// Time without the end of an op counts where it is more than usual, and before the first end.
static void add_open(const struct matrix_row *row, struct wire_ops_seen *ops) {
    double each_us = ops->ops == 0 ? 0 : (double)ops->span_us * MATRIX_PARTS / (double)ops->ops;
    double more_us = (double)row->open_us - each_us;
    if (more_us <= 0) return;
    ops->span_us = bounded(ops->span_us + (uint64_t)more_us);
    ops->processor_us += (uint64_t)((double)row->open_processor_us * more_us / (double)row->open_us);
    ops->processor_us = bounded(ops->processor_us);
}

static void describe_member(const struct matrix_row *row, const struct peer_record *peer, int64_t now_ns,
                            pcclDiagnosisMember_t *out) {
    uint64_t silent_us = since_us(peer->heard.at_ns, now_ns);
    *out = (pcclDiagnosisMember_t){.join_number = peer->member.join_number,
                                   .group = peer->member.group,
                                   .silent_s = seconds(silent_us),
                                   .told_s = -1,
                                   .state_revision = peer->state.revision,
                                   .state_hash = {peer->state.content.low, peer->state.content.high},
                                   .synced = peer->state.kind != WIRE_STATE_NONE,
                                   .state_replaced = peer->state.kind == WIRE_STATE_REPLACED};
    describe_peer(&peer->member, &out->uuid, out->name, out->address);
    if (row == NULL || row->told_ns == 0) return; // numbers alone
    struct wire_ops_seen ops = row->sums.ops;
    add_open(row, &ops);
    out->told_s = seconds(since_us(row->told_ns, now_ns));
    if (out->told_s < out->silent_s) out->silent_s = out->told_s;
    out->span_s = seconds(ops.span_us);
    out->recent_s = seconds(row->recent_us);
    out->ops = count(ops.ops);
    out->op_s = seconds(ops.op_us);
    out->processor_s = seconds(ops.processor_us);
    out->live = ops.live;
    out->oldest_s = seconds(ops.oldest_us);
    out->still_s = seconds(ops.still_us);
}

static void describe_edge(const struct wire_seen *seen, uint32_t member, uint32_t other, pcclDiagnosisEdge_t *out) {
    *out = (pcclDiagnosisEdge_t){
        .member = member,
        .other = other,
        .awaited = seen->awaited,
        .acked_bytes = (double)seen->acked,
        .busy_s = seconds(seen->busy_us),
        .window_s = seconds(seen->window_us),
        .segments = (double)seen->segments,
        .retransmits = (double)seen->retransmits,
        .samples = count(seen->samples),
        .backlogged = count(seen->backlogged),
        .loaded_s = seen->backlogged == 0 ? 0 : seconds(seen->delay_us) / count(seen->backlogged),
        .entries = count(seen->entries),
        .late_s = seconds(seen->late_us),
        .early_s = seconds(seen->early_us),
        .round_trip_s = seconds(seen->round_trip_us),
        .queue_s = seconds(seen->queue_us),
        .by_memory = seen->reason == PACE_MEMORY,
        .lanes = seen->lanes,
    };
}

static void tell_edges(const struct matrix_row *row, struct membership *table, uint32_t place, uint32_t each,
                       struct wire_matrix *answer) {
    for (uint32_t k = 0, told = 0; k < row->sums.count && told < each; k++) {
        const struct wire_seen *seen = &row->sums.others[k].seen;
        size_t *count = &answer->told.edge_count;
        uint32_t other;
        if (*count == WIRE_MAX_EDGES || !place_of(table, table->order[place], &row->sums.others[k].id, &other))
            continue;
        answer->reasons[*count] = seen->reason;
        describe_edge(seen, place, other, &answer->edges[(*count)++]);
        told++;
    }
}

static void tell_numbers(const struct matrix_row *row, uint32_t place, struct wire_matrix *answer) {
    for (uint32_t i = 0; i < row->numbers.count && answer->told.number_count < WIRE_MAX_NUMBERS_TOLD; i++) {
        const struct wire_number *number = &row->numbers.list[i];
        pcclDiagnosisNumber_t *out = &answer->numbers[answer->told.number_count++];
        *out = (pcclDiagnosisNumber_t){.member = place, .value = number->value};
        memcpy(out->name, number->name, sizeof number->name);
    }
}

// False: the peer is not on its way into the run.
static bool find_joining(const struct membership *table, const struct peer_record *peer, int *joining) {
    bool is_full = table->limits.most > 0 && table->count >= table->limits.most;
    *joining = peer->accepted ? WIRE_JOINING_RECEIVES
               : peer->copies ? WIRE_JOINING_COPIES
               : peer->listed ? WIRE_JOINING_LINKS
               : is_full      ? WIRE_JOINING_SPARE
                              : WIRE_JOINING_WAITS;
    bool receives = peer->vote == WIRE_VOTE_SYNC && peer->part == ROLE_RECEIVER && peer->state.kind == WIRE_STATE_NONE;
    return peer->used && !peer->gone && (!peer->accepted || receives);
}

static void tell_joiners(const struct membership *table, int64_t now_ns, struct wire_matrix *answer) {
    for (uint32_t i = 0; i < table->slots && answer->told.joiner_count < WIRE_MAX_JOINERS; i++) {
        const struct peer_record *peer = &table->peers[i];
        pcclDiagnosisJoiner_t *joiner = &answer->joiners[answer->told.joiner_count];
        if (!find_joining(table, peer, &joiner->joining)) continue;
        describe_peer(&peer->member, &joiner->uuid, joiner->name, joiner->address);
        joiner->group = peer->member.group;
        joiner->wait_s = seconds(since_us(peer->waits_since, now_ns));
        if (peer->copies || membership_has_state(table, peer->member.group)) {
            joiner->done = peer->progress.done;
            joiner->total = peer->progress.total;
            joiner->progress_s = seconds(peer->progress.span_us);
        }
        answer->told.joiner_count++;
    }
}

static void tell_departures(const struct membership *table, int64_t now_ns, struct wire_matrix *answer) {
    uint32_t room = WIRE_MAX_MEMBERS - table->count, most = room < WIRE_MAX_DEPARTURES ? room : WIRE_MAX_DEPARTURES;
    for (uint32_t i = table->departed_count > most ? table->departed_count - most : 0; i < table->departed_count; i++) {
        const struct membership_departure *departed = &table->departed[i % WIRE_MAX_DEPARTURES];
        pcclDiagnosisDeparture_t *out = &answer->departures[answer->told.departure_count++];
        *out = departed->told;
        out->ago_s = seconds(since_us(departed->at_ns, now_ns));
    }
}

// NULL: memory was refused, and so `out` failed.
static struct wire_matrix *begin_answer(int64_t heartbeat_limit_ns, uint32_t peers, uint64_t epoch,
                                        struct wire_buffer *out) {
    struct wire_matrix *answer = calloc(1, sizeof *answer);
    out->failed |= answer == NULL;
    if (answer == NULL) return NULL;
    answer->version = WIRE_VERSION;
    answer->told =
        (pcclDiagnosis_t){.heartbeat_limit_s = (double)heartbeat_limit_ns / 1e9, .peer_count = peers, .epoch = epoch};
    return answer;
}

static void make_answer(const struct matrix *matrix, struct membership *table, uint64_t votes, int64_t now_ns,
                        struct wire_buffer *out) {
    struct wire_matrix *answer = begin_answer(table->limit_ns, table->count, table->number, out);
    if (answer == NULL) return;
    answer->told.generation = table->generation;
    answer->told.votes = votes;
    answer->told.member_count = table->count;
    uint32_t each = table->count == 0 ? 0 : WIRE_MAX_EDGES / table->count;
    if (each < EDGES_LEAST) each = EDGES_LEAST;
    tell_joiners(table, now_ns, answer);
    tell_departures(table, now_ns, answer);
    for (uint32_t i = 0; i < table->count; i++) {
        const struct matrix_row *row = row_of(matrix, table, table->order[i]);
        describe_member(row, table->order[i], now_ns, &answer->members[i]);
        if (row == NULL) continue;
        tell_numbers(row, i, answer);
        tell_edges(row, table, i, each, answer);
    }
    wire_encode_matrix(out, membership_header(table), answer);
    free(answer);
}

void matrix_count(int64_t heartbeat_limit_ns, uint32_t peers, uint64_t epoch, struct wire_buffer *out) {
    struct wire_matrix *answer = begin_answer(heartbeat_limit_ns, peers, epoch, out);
    if (answer == NULL) return;
    answer->told.counts_only = true;
    wire_encode_matrix(out, (struct wire_header){0}, answer);
    free(answer);
}

void matrix_describe(struct matrix *matrix, struct membership *table, uint64_t votes, int64_t now_ns,
                     struct wire_buffer *out) {
    bool fresh = matrix->answered_ns != 0 && matrix->answered_epoch == table->number &&
                 now_ns - matrix->answered_ns < MATRIX_ANSWER_MS * MS_NS;
    if (!fresh) {
        wire_buffer_fini(&matrix->answer);
        make_answer(matrix, table, votes, now_ns, &matrix->answer);
        matrix->answered_ns = matrix->answer.failed ? 0 : now_ns;
        matrix->answered_epoch = table->number;
    }
    wire_buffer_append(out, &matrix->answer);
}
