#define _GNU_SOURCE
#include "peer/retry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/detail.h"

enum { NOBODY = -1 };

enum retry_state { RETRY_WAITING, RETRY_LIVE, RETRY_ENDED };

struct retry_op {
    struct call_args args;
    enum retry_state state;
    ptrdiff_t before; // the op of the same tag that comes first, or NOBODY
};

struct retry {
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

static void note_failure(struct retry *r, pcclResult_t code) {
    bool graver = r->failure == pcclSuccess || code == pcclMasterConnectionFailed;
    if (!graver) return;
    r->failure = code;
    snprintf(r->failure_text, sizeof r->failure_text, "%s", detail_get());
}

static void end_op(struct retry *r, size_t index) {
    r->ops[index].state = RETRY_ENDED;
    r->ended++;
}

static bool launchable(const struct retry *r, size_t index) {
    const struct retry_op *op = &r->ops[index];
    return op->state == RETRY_WAITING && (op->before == NOBODY || r->ops[op->before].state == RETRY_ENDED);
}

// False: nothing more can be launched now.
static bool launch(struct retry *r, size_t index) {
    pcclResult_t code = ops_launch(r->communicator, &r->ops[index].args);
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

static void refill(struct retry *r) {
    while (r->first < r->count && r->ops[r->first].state != RETRY_WAITING) r->first++;
    for (size_t i = r->first; i < r->count && r->live < r->max_in_flight && !r->hopeless; i++)
        if (launchable(r, i) && !launch(r, i)) return;
}

static int compare_tags(const void *a, const void *b) {
    const struct retry_op *x = *(const struct retry_op *const *)a, *y = *(const struct retry_op *const *)b;
    if (x->args.tag != y->args.tag) return x->args.tag < y->args.tag ? -1 : 1;
    return x < y ? -1 : 1;
}

static bool order_equal_tags(struct retry *r) {
    struct retry_op **sorted = calloc(r->count, sizeof(struct retry_op *));
    if (sorted == NULL) return false;
    for (size_t i = 0; i < r->count; i++) sorted[i] = &r->ops[i];
    qsort(sorted, r->count, sizeof(struct retry_op *), compare_tags);
    for (size_t i = 0; i < r->count; i++) {
        bool same = i > 0 && sorted[i - 1]->args.tag == sorted[i]->args.tag;
        sorted[i]->before = same ? sorted[i - 1] - r->ops : NOBODY;
    }
    free(sorted);
    return true;
}

static void finish(struct retry *r) {
    if (!r->finished) communicator_release(r->communicator);
    r->finished = true;
}

pcclResult_t retry_new(struct communicator *communicator, const struct call_args *calls, size_t count,
                       size_t max_in_flight, struct retry **out) {
    if (max_in_flight > count) max_in_flight = count;
    struct retry *r =
        count > SIZE_MAX / sizeof(struct retry_op) / 2 ? NULL : calloc(1, sizeof *r + count * sizeof(struct retry_op));
    if (r == NULL) goto refused;
    *r = (struct retry){.communicator = communicator, .count = count, .max_in_flight = max_in_flight};
    for (size_t i = 0; i < count; i++) {
        r->ops[i].args = calls[i];
        r->ops[i].args.retry = r->ops[i].args.tell = true;
    }
    r->queue = calloc(max_in_flight, sizeof *r->queue);
    if (r->queue == NULL || !order_equal_tags(r)) goto refused;
    communicator_hold(communicator);
    refill(r);
    if (r->live == 0 && r->hopeless) {
        pcclResult_t code = r->failure;
        finish(r);
        retry_free(r);
        return code;
    }
    *out = r;
    return pcclSuccess;
refused:
    if (r != NULL) free(r->queue);
    free(r);
    return detail_fail(pcclInternalError, "the system refused memory for %zu ops", count);
}

static pcclResult_t result(struct retry *r, pcclReduceInfo_t *info) {
    finish(r);
    struct member_view view = {.group_world = 1};
    communicator_view(r->communicator, &view);
    if (info != NULL && (r->failure == pcclSuccess || r->failure == pcclTooFewPeers))
        *info =
            (pcclReduceInfo_t){.local_world_size = view.group_world, .tx_bytes = r->tx_bytes, .rx_bytes = r->rx_bytes};
    return r->failure == pcclSuccess ? pcclSuccess : detail_fail(r->failure, "%s", r->failure_text);
}

// Takes the end of the oldest live op.
static void take_end(struct retry *r, pcclResult_t code, const struct call_info *info) {
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

pcclResult_t retry_wait(struct retry *r, int64_t deadline, pcclReduceInfo_t *info) {
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

void retry_free(struct retry *r) {
    if (r == NULL) return;
    free(r->queue);
    free(r);
}
