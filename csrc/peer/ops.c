#define _GNU_SOURCE
#include "peer/communicator_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/detail.h"

// The contributors of the ops that were taken last; the oldest is overwritten.
struct kept_contributors {
    size_t next;
    struct {
        uint64_t tag;
        struct call_contributors *contributors; // NULL: a free place
    } places[OPS_CONTRIBUTORS_KEPT];
};

static pcclResult_t posted(enum call_result result, uint64_t tag) {
    switch (result) {
    case CALL_OK: return pcclSuccess;
    case CALL_TAG_LIVE:
        return detail_fail(pcclInvalidArgument,
                           "tag %llu is already in use by an operation in flight; wait for it or pass another tag",
                           (unsigned long long)tag);
    case CALL_TOO_MANY:
        return detail_fail(pcclInternalError, "%d operations are in flight, the maximum; await some first",
                           WIRE_MAX_LIVE_OPS);
    case CALL_REFUSED: return pcclInvalidUsage; // its text is there
    case CALL_DEAD:
        return detail_fail(
            pcclMasterConnectionFailed,
            "the communicator has just died; destroy it and create a new one (in Python: call reconnect())");
    default: return detail_fail(pcclInternalError, "the system refused memory for the operation");
    }
}

static pcclResult_t launch_locked(struct communicator *c, const struct call_args *args) {
    RETURN_IF_FAILED(communicator_check_usable(c));
    if (!communicator_ticket_is_peers_pending(c)) RETURN_IF_FAILED(communicator_ticket_check_none(c));
    if (args->subgroup == NULL && !args->everyone && member_adopted(c->core)->group_world < 2)
        return detail_fail(pcclTooFewPeers, "this peer is alone in its group; admit newcomers with update_topology");
    uint64_t adopted = member_adopted(c->core)->group_epoch;
    c->launches++; // keeps a topology call from beginning between the check and the post
    pthread_mutex_unlock(&c->lock);
    enum call_result result = engine_post(c->engine, args, adopted);
    pthread_mutex_lock(&c->lock);
    c->launches--;
    return posted(result, args->tag);
}

static pcclResult_t launch(struct communicator *c, const struct call_args *args) {
    communicator_begin(c);
    return communicator_finish(c, launch_locked(c, args));
}

static pcclResult_t launch_numbered(struct communicator *c, struct call_args *args, bool of_all) {
    uint64_t name = args->tag;
    uint32_t number = of_all ? atomic_load(&c->launched_of_all) : op_counter_last(&c->launched, name);
    if (!of_all && !op_counters_reserve(&c->launched))
        return detail_fail(pcclInternalError, "the system refused memory for the operation");
    args->tag = name | (number & ((1U << OPS_NUMBER_BITS) - 1));
    RETURN_IF_FAILED(launch(c, args));
    if (of_all)
        atomic_store(&c->launched_of_all, number + 1);
    else
        op_counter_take(&c->launched, name, &number);
    return pcclSuccess;
}

pcclResult_t ops_launch(struct communicator *c, struct call_args *args, enum ops_sequence sequence) {
    if (sequence == OPS_TAGGED) return launch(c, args);
    communicator_enter(c); // it is freed when nobody is inside
    pthread_mutex_lock(&c->numbering);
    pcclResult_t code = launch_numbered(c, args, sequence == OPS_NUMBERED_OF_ALL);
    pthread_mutex_unlock(&c->numbering);
    communicator_exit(c);
    return code;
}

uint32_t ops_launched(struct communicator *c, uint64_t name) {
    communicator_enter(c);
    pthread_mutex_lock(&c->numbering);
    uint32_t number = op_counter_last(&c->launched, name);
    pthread_mutex_unlock(&c->numbering);
    communicator_exit(c);
    return number;
}

static struct call_contributors **find_contributors(const struct communicator *c, uint64_t tag) {
    for (size_t i = 0; c->contributors != NULL && i < OPS_CONTRIBUTORS_KEPT; i++)
        if (c->contributors->places[i].contributors != NULL && c->contributors->places[i].tag == tag)
            return &c->contributors->places[i].contributors;
    return NULL;
}

// Keeps the contributors of an outcome. Without memory for them they are lost: the op has ended all the same.
static void keep_contributors(struct communicator *c, uint64_t tag, struct call_contributors *contributors) {
    if (c->contributors == NULL) c->contributors = calloc(1, sizeof *c->contributors);
    if (c->contributors == NULL) {
        free(contributors);
        return;
    }
    struct call_contributors **place = find_contributors(c, tag);
    if (place == NULL) {
        c->contributors->places[c->contributors->next].tag = tag;
        place = &c->contributors->places[c->contributors->next].contributors;
        c->contributors->next = (c->contributors->next + 1) % OPS_CONTRIBUTORS_KEPT;
    }
    free(*place);
    *place = contributors;
}

void ops_forget(struct communicator *c) {
    for (size_t i = 0; c->contributors != NULL && i < OPS_CONTRIBUTORS_KEPT; i++)
        free(c->contributors->places[i].contributors);
    free(c->contributors);
    op_counters_clear(&c->launched);
    pthread_mutex_destroy(&c->numbering);
}

bool ops_contributors(struct communicator *c, uint64_t tag, size_t index, struct call_range *range_out,
                      struct wire_id *ids_out, size_t capacity, size_t *ranges_out) {
    communicator_begin(c);
    struct call_contributors *const *kept = find_contributors(c, tag);
    bool found = kept != NULL && index < (*kept)->count;
    if (found) {
        const struct call_range *range = &(*kept)->ranges[index];
        *range_out = (struct call_range){.begin = range->begin, .end = range->end, .count = range->count};
        *ranges_out = (*kept)->count;
        if (capacity > range->count) capacity = range->count;
        if (capacity > 0) memcpy(ids_out, range->ids, capacity * sizeof *ids_out);
    }
    communicator_finish(c, pcclSuccess);
    return found;
}

static int by_joining(const void *a, const void *b) {
    const struct wire_member *x = a, *y = b;
    return x->join_number < y->join_number ? -1 : x->join_number > y->join_number;
}

static pcclResult_t members_locked(struct communicator *c, bool adopted, struct wire_id *ids_out, size_t capacity,
                                   size_t *count_out) {
    RETURN_IF_FAILED(communicator_check_usable(c));
    const struct epoch_ring *ring = adopted ? member_members(c->core) : &member_epoch(c->core)->ring;
    if (ring == NULL)
        return detail_fail(pcclRankConnectionLost, "the members are unknown, because some were lost together with "
                                                   "the master; call update_topology");
    struct wire_member *sorted = malloc((ring->count + 1) * sizeof *sorted);
    if (sorted == NULL) return detail_fail(pcclInternalError, "the system refused memory for the members");
    memcpy(sorted, ring->members, ring->count * sizeof *sorted);
    qsort(sorted, ring->count, sizeof *sorted, by_joining);
    for (size_t i = 0; i < ring->count && i < capacity; i++) ids_out[i] = sorted[i].id;
    *count_out = ring->count;
    free(sorted);
    return pcclSuccess;
}

pcclResult_t ops_members(struct communicator *c, bool adopted, struct wire_id *ids_out, size_t capacity,
                         size_t *count_out) {
    communicator_begin(c);
    return communicator_finish(c, members_locked(c, adopted, ids_out, capacity, count_out));
}

pcclResult_t ops_posted(struct communicator *c, uint64_t tag, const struct wire_id *member, bool *posted_out) {
    communicator_begin(c);
    pcclResult_t code = communicator_check_usable(c);
    if (code == pcclSuccess) *posted_out = engine_has_posted(c->engine, tag, member);
    return communicator_finish(c, code);
}

static pcclResult_t hold_locked(struct communicator *c, uint64_t tag, void *stream) {
    RETURN_IF_FAILED(communicator_check_usable(c));
    pthread_mutex_unlock(&c->lock);
    enum call_result result = engine_hold(c->engine, tag, stream);
    pthread_mutex_lock(&c->lock);
    switch (result) {
    case CALL_OK: return pcclSuccess;
    case CALL_UNKNOWN:
        return detail_fail(pcclInvalidArgument, "no operation with tag %llu is in flight", (unsigned long long)tag);
    default: return pcclInvalidUsage; // its text is there
    }
}

pcclResult_t ops_hold(struct communicator *c, uint64_t tag, void *stream) {
    communicator_begin(c);
    return communicator_finish(c, hold_locked(c, tag, stream));
}

pcclResult_t ops_cancel(struct communicator *c, uint64_t tag) {
    communicator_begin(c);
    pcclResult_t code = communicator_check_usable(c);
    if (code == pcclSuccess && engine_cancel(c->engine, tag) != CALL_OK)
        code = detail_fail(pcclInvalidArgument, "no operation with tag %llu is in flight", (unsigned long long)tag);
    return communicator_finish(c, code);
}

static pcclResult_t awaited(struct communicator *c, uint64_t tag, const struct call_outcome *outcome,
                            struct call_info *out) {
    char lost[WIRE_MAX_TEXT];
    uint32_t count = communicator_lost_tell(&c->lost, member_adopted(c->core)->group_epoch, lost, sizeof lost);
    // In retry mode every end names an epoch, and all members the same.
    if (outcome->epoch != 0) member_adopt_loss(c->core, outcome->epoch);
    if (outcome->contributors != NULL) keep_contributors(c, tag, outcome->contributors);
    switch (outcome->result) {
    case CALL_OK: *out = outcome->info; return pcclSuccess;
    case CALL_IN_PROGRESS: return detail_fail(pcclTimedOut, "%s", outcome->text);
    case CALL_LOST:
        if (outcome->text[0] != 0)
            return detail_fail(pcclRankConnectionLost,
                               "members of the group are lost (%s), and the input is unchanged; repeat the call with a "
                               "group of living members",
                               outcome->text);
        if (outcome->retry)
            return detail_fail(pcclTooFewPeers,
                               "no other member of the group is left; admit newcomers with update_topology");
        return detail_fail(pcclRankConnectionLost,
                           "a member of the group is gone%s%s, and the input is unchanged; repeat the call",
                           count > 0 ? ", " : "", lost);
    case CALL_MISMATCH: return detail_fail(pcclInvalidArgument, "%s", outcome->text);
    case CALL_DEADLOCK: return detail_fail(pcclInvalidUsage, "%s; the input is unchanged", outcome->text);
    case CALL_CANCELLED: return detail_fail(pcclCancelled, "%s; the input is unchanged", outcome->text);
    case CALL_DEAD:
        if (outcome->text[0] != 0) return detail_fail(pcclInternalError, "the communicator is dead: %s", outcome->text);
        return communicator_dead(c, outcome->retry ? pcclMasterConnectionFailed : pcclRankConnectionLost);
    case CALL_UNKNOWN:
        RETURN_IF_FAILED(communicator_check_usable(c));
        return detail_fail(pcclInvalidArgument, "no operation with tag %llu is in flight, or another thread awaits it",
                           (unsigned long long)tag);
    default: return detail_fail(pcclInternalError, "the system refused memory for the operation");
    }
}

pcclResult_t ops_await(struct communicator *c, uint64_t tag, int64_t deadline, struct call_info *out) {
    communicator_begin(c);
    bool never = c->phase != COMMUNICATOR_CONNECTED && c->phase != COMMUNICATOR_DEAD;
    if (never) return communicator_finish(c, communicator_check_usable(c));
    struct call_outcome outcome;
    pthread_mutex_unlock(&c->lock);
    engine_wait(c->engine, tag, deadline, &outcome);
    pthread_mutex_lock(&c->lock);
    return communicator_finish(c, awaited(c, tag, &outcome, out));
}

// ---- many at once ----

enum retry_state { RETRY_WAITING, RETRY_LIVE, RETRY_ENDED };

struct retry_op {
    struct call_args args;
    enum retry_state state;
};

struct ops_retry {
    struct communicator *communicator;
    size_t count, max_in_flight, live, ended;
    size_t first;         // no op before it is waiting
    size_t *queue;        // the live ops, oldest first
    pcclResult_t failure; // the first; ops that can still be done are done all the same, since others wait for them
    char failure_text[DETAIL_CAPACITY];
    bool hopeless; // alone or dead: nothing can be launched any more
    bool finished;
    uint64_t tx_bytes, rx_bytes;
    struct retry_op ops[];
};

static void note_failure(struct ops_retry *r, pcclResult_t code) {
    bool graver = r->failure == pcclSuccess || code == pcclMasterConnectionFailed;
    if (!graver) return;
    r->failure = code;
    snprintf(r->failure_text, sizeof r->failure_text, "%s", detail_get());
}

static void end_op(struct ops_retry *r, size_t index) {
    r->ops[index].state = RETRY_ENDED;
    r->ended++;
}

// An op waits for that of the same tag before it.
static bool launchable(const struct ops_retry *r, size_t index) {
    bool waits = r->ops[index].state == RETRY_WAITING;
    for (size_t i = 0; i < r->live && waits; i++) waits = r->ops[r->queue[i]].args.tag != r->ops[index].args.tag;
    return waits;
}

// False: nothing more can be launched now.
static bool launch_next(struct ops_retry *r, size_t index) {
    pcclResult_t code = ops_launch(r->communicator, &r->ops[index].args, OPS_TAGGED);
    switch (code) {
    case pcclSuccess:
        r->ops[index].state = RETRY_LIVE;
        r->queue[r->live++] = index;
        return true;
    case pcclInternalError:
        if (r->live > 0) return false; // there may be room once one has ended
        break;
    case pcclInvalidArgument: break; // its tag is live elsewhere
    default: r->hopeless = true; break;
    }
    note_failure(r, code);
    if (!r->hopeless) end_op(r, index);
    return !r->hopeless;
}

static void refill(struct ops_retry *r) {
    while (r->first < r->count && r->ops[r->first].state != RETRY_WAITING) r->first++;
    for (size_t i = r->first; i < r->count && r->live < r->max_in_flight && !r->hopeless; i++)
        if (launchable(r, i) && !launch_next(r, i)) return;
}

static void change_holds(struct communicator *c, int by) {
    pthread_mutex_lock(&c->lock);
    c->holds += (uint32_t)by;
    pthread_mutex_unlock(&c->lock);
}

static void finish(struct ops_retry *r) {
    if (!r->finished) change_holds(r->communicator, -1);
    r->finished = true;
}

pcclResult_t ops_retry_new(struct communicator *communicator, const struct call_args *calls, size_t count,
                           size_t max_in_flight, struct ops_retry **out) {
    if (max_in_flight > count) max_in_flight = count;
    struct ops_retry *r =
        count > SIZE_MAX / sizeof(struct retry_op) / 2 ? NULL : calloc(1, sizeof *r + count * sizeof(struct retry_op));
    if (r == NULL) goto refused;
    *r = (struct ops_retry){.communicator = communicator, .count = count, .max_in_flight = max_in_flight};
    for (size_t i = 0; i < count; i++) {
        r->ops[i].args = calls[i];
        r->ops[i].args.retry = r->ops[i].args.tell = true;
    }
    r->queue = calloc(max_in_flight, sizeof *r->queue);
    if (r->queue == NULL) goto refused;
    change_holds(communicator, 1);
    refill(r);
    if (r->live == 0 && r->hopeless) {
        pcclResult_t code = r->failure;
        finish(r);
        ops_retry_free(r);
        return code;
    }
    *out = r;
    return pcclSuccess;
refused:
    ops_retry_free(r);
    return detail_fail(pcclInternalError, "the system refused memory for %zu ops", count);
}

static pcclResult_t result(struct ops_retry *r, pcclReduceInfo_t *info) {
    finish(r);
    struct member_view view = {.group_world = 1};
    communicator_view(r->communicator, &view);
    if (info != NULL && (r->failure == pcclSuccess || r->failure == pcclTooFewPeers))
        *info =
            (pcclReduceInfo_t){.local_world_size = view.group_world, .tx_bytes = r->tx_bytes, .rx_bytes = r->rx_bytes};
    return r->failure == pcclSuccess ? pcclSuccess : detail_fail(r->failure, "%s", r->failure_text);
}

// Takes the end of the oldest live op.
static void take_end(struct ops_retry *r, pcclResult_t code, const struct call_info *info) {
    end_op(r, r->queue[0]);
    memmove(r->queue, r->queue + 1, --r->live * sizeof *r->queue);
    if (code == pcclSuccess) {
        r->tx_bytes += info->tx_bytes;
        r->rx_bytes += info->rx_bytes;
    } else {
        note_failure(r, code);
        r->hopeless |= code == pcclTooFewPeers || code == pcclMasterConnectionFailed;
    }
}

pcclResult_t ops_retry_wait(struct ops_retry *r, int64_t deadline, pcclReduceInfo_t *info) {
    while (!r->finished) {
        refill(r);
        if (r->live == 0) break;
        struct call_info ended;
        pcclResult_t code = ops_await(r->communicator, r->ops[r->queue[0]].args.tag, deadline, &ended);
        if (code == pcclTimedOut) return code;
        take_end(r, code, &ended);
    }
    return result(r, info);
}

void ops_retry_free(struct ops_retry *r) {
    if (r == NULL) return;
    free(r->queue);
    free(r);
}
