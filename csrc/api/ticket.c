// Tickets: see ext.h.
#define _GNU_SOURCE
#include <stdio.h>

#include "api/api.h"
#include "api/ext.h"
#include "base/platform.h"
#include "net/keys.h"

enum { TICKET_CALL = 1, TICKET_SYNC, TICKET_REDUCE, TICKET_MULTI, TICKET_MASTER };

_Static_assert(sizeof((struct pccl_ticket){0}.text) == DETAIL_CAPACITY, "a text fits");

// The ticket of something that is begun next. Until that was begun, it is of nothing.
static void clear(struct pccl_ticket *ticket, const void *of) {
    ticket->result = pcclTimedOut;
    ticket->text[0] = 0;
    ticket->kind = 0;
    ticket->of = of;
    ticket->multi = NULL;
    ticket->inside = false;
}

static pcclResult_t begun(struct pccl_ticket *ticket, int kind, pcclResult_t code) {
    if (code == pcclSuccess) ticket->kind = kind;
    return code;
}

#define REQUIRE_COMM_AND_TICKET(comm, ticket) \
    do { \
        REQUIRE_COMM(comm); \
        REQUIRE_NOT_NULL(ticket); \
        clear(ticket, comm); \
    } while (0)

// Keys that the program has named stay; else those of the environment are read at each attempt.
static pcclResult_t take_keys(struct communicator *communicator, const pcclComm_t *comm) {
    struct keys *keys;
    if (atomic_load(&comm->has_keys)) return pcclSuccess;
    RETURN_IF_FAILED(api_load_keys(NULL, TRANSPORT_PEER, &keys));
    communicator_set_keys(communicator, keys); // unless it is connecting, with those that it has
    keys_release(keys);
    return pcclSuccess;
}

pcclResult_t pccl_begin_connect(const pcclComm_t *comm, struct pccl_ticket *ticket) {
    REQUIRE_COMM_AND_TICKET(comm, ticket);
    RETURN_IF_FAILED(take_keys(comm->communicator, comm));
    return begun(ticket, TICKET_CALL, connect_begin(comm->communicator, &ticket->number));
}

static pcclResult_t begin_vote(const pcclComm_t *comm, enum wire_vote_kind kind, struct pccl_ticket *ticket) {
    REQUIRE_COMM_AND_TICKET(comm, ticket);
    return begun(ticket, TICKET_CALL, communicator_begin_vote(comm->communicator, kind, &ticket->number));
}

pcclResult_t pccl_begin_update(const pcclComm_t *comm, struct pccl_ticket *ticket) {
    return begin_vote(comm, WIRE_VOTE_UPDATE, ticket);
}

pcclResult_t pccl_begin_pending(const pcclComm_t *comm, struct pccl_ticket *ticket) {
    return begin_vote(comm, WIRE_VOTE_PENDING, ticket);
}

pcclResult_t pccl_begin_optimize(const pcclComm_t *comm, struct pccl_ticket *ticket) {
    return begin_vote(comm, WIRE_VOTE_OPTIMIZE, ticket);
}

pcclResult_t pccl_begin_sync(const pcclComm_t *comm, const pcclSharedState_t *shared_state,
                             pcclSharedStateSyncStrategy_t strategy, const bool *read_only,
                             struct pccl_ticket *ticket) {
    REQUIRE_COMM_AND_TICKET(comm, ticket);
    REQUIRE_NOT_NULL(shared_state);
    if (shared_state->count > 0) REQUIRE_NOT_NULL(shared_state->infos);
    struct communicator *communicator = comm->communicator;
    if (!shared_state_is_left(communicator)) RETURN_IF_FAILED(communicator_usable(communicator));
    if ((int)strategy < PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR ||
        (int)strategy > PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY)
        return detail_fail(pcclInvalidArgument, "strategy %d is no pcclSharedStateSyncStrategy_t", (int)strategy);
    RETURN_IF_FAILED(api_check_state(shared_state));
    return begun(ticket, TICKET_SYNC,
                 shared_state_begin(communicator, shared_state, read_only, (int)strategy, &ticket->number));
}

pcclResult_t pccl_begin_reduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                               const pcclComm_t *comm, const pcclReduceOptions_t *options, struct pccl_ticket *ticket) {
    REQUIRE_COMM_AND_TICKET(comm, ticket);
    REQUIRE_NOT_NULL(descriptor);
    pcclReduceOptions_t wanted;
    RETURN_IF_FAILED(api_take_options(options, &wanted));
    ticket->number = descriptor->tag;
    return begun(ticket, TICKET_REDUCE, api_launch(sendbuf, recvbuf, descriptor, comm, &wanted, wanted.retry));
}

pcclResult_t pccl_begin_collective(const pcclCollective_t *collective, const pcclComm_t *comm, int sequence,
                                   struct pccl_ticket *ticket) {
    REQUIRE_COMM_AND_TICKET(comm, ticket);
    REQUIRE_NOT_NULL(collective);
    enum ops_sequence of = (enum ops_sequence)sequence;
    return begun(ticket, TICKET_REDUCE, api_launch_collective(collective, comm, of, &ticket->number));
}

pcclResult_t pccl_begin_multi(const pcclReduceOpDescriptor_t *descriptors, const pcclReduceOptions_t *options,
                              size_t count, const pcclComm_t *comm, int max_in_flight, struct pccl_ticket *ticket) {
    REQUIRE_COMM_AND_TICKET(comm, ticket);
    return begun(ticket, TICKET_MULTI, api_retry_new(descriptors, options, count, comm, max_in_flight, &ticket->multi));
}

pcclResult_t pccl_begin_master_end(pcclMasterInstance_t *master, struct pccl_ticket *ticket) {
    REQUIRE_MASTER(master);
    REQUIRE_NOT_NULL(ticket);
    clear(ticket, master);
    if (atomic_load(&master->master) == NULL) return detail_fail(pcclInvalidUsage, "this master was never run");
    return begun(ticket, TICKET_MASTER, pcclSuccess);
}

static pcclResult_t wait_for_master(const pcclMasterInstance_t *master, int64_t deadline) {
    if (master_await(atomic_load(&master->master), deadline)) return pcclSuccess;
    return detail_fail(pcclTimedOut, "the master still serves");
}

static pcclResult_t wait_for_sync(struct communicator *communicator, struct pccl_ticket *ticket, int64_t deadline) {
    RETURN_IF_FAILED(communicator_wait(communicator, ticket->number, deadline, &ticket->value));
    struct shared_state_report report;
    shared_state_look(communicator, &report);
    ticket->info.tx_bytes = report.tx_bytes;
    ticket->info.rx_bytes = report.moved.rx_bytes;
    return pcclSuccess;
}

static pcclResult_t check(const struct pccl_ticket *ticket) {
    if (ticket->kind == 0) return detail_fail(pcclInvalidUsage, "nothing was begun with this ticket");
    if (ticket->kind == TICKET_MASTER) {
        REQUIRE_MASTER((const pcclMasterInstance_t *)ticket->of);
    } else {
        REQUIRE_COMM((const pcclComm_t *)ticket->of);
    }
    return pcclSuccess;
}

static pcclResult_t wait_on(struct pccl_ticket *ticket, int64_t deadline) {
    const pcclComm_t *comm = ticket->of;
    switch (ticket->kind) {
    case TICKET_MASTER: return wait_for_master(ticket->of, deadline);
    case TICKET_REDUCE: return api_await(comm, ticket->number, deadline, &ticket->info);
    case TICKET_SYNC: return wait_for_sync(comm->communicator, ticket, deadline);
    case TICKET_MULTI: return ops_retry_wait(ticket->multi, deadline, &ticket->info);
    default: return communicator_wait(comm->communicator, ticket->number, deadline, &ticket->value);
    }
}

// Any thread may look, at any time; who sees an end finds the rest, too.
static pcclResult_t result_of(const struct pccl_ticket *ticket) {
    return __atomic_load_n(&ticket->result, __ATOMIC_ACQUIRE);
}

static void note(struct pccl_ticket *ticket, pcclResult_t result) {
    if (result != pcclSuccess) snprintf(ticket->text, sizeof ticket->text, "%s", detail_get());
    __atomic_store_n(&ticket->result, result, __ATOMIC_RELEASE);
}

// Lets one thread at a time in. The others see what that one has found, or take its place when it leaves.
static void wait_alone(pcclComm_t *comm, struct pccl_ticket *ticket, int64_t deadline) {
    pthread_mutex_lock(&comm->gate);
    while (ticket->inside && platform_cond_wait(&comm->left, &comm->gate, deadline)) {
    }
    bool enters = !ticket->inside && result_of(ticket) == pcclTimedOut;
    ticket->inside |= enters;
    pthread_mutex_unlock(&comm->gate);
    if (!enters) return;
    note(ticket, wait_on(ticket, deadline));
    pthread_mutex_lock(&comm->gate);
    ticket->inside = false;
    pthread_cond_broadcast(&comm->left);
    pthread_mutex_unlock(&comm->gate);
}

pcclResult_t pccl_ticket_wait(struct pccl_ticket *ticket, int milliseconds) {
    REQUIRE_NOT_NULL(ticket);
    if (result_of(ticket) != pcclTimedOut) return result_of(ticket); // of a communicator that may be gone
    int64_t deadline = milliseconds < 0 ? INT64_MAX : platform_now_ns() + milliseconds * MS_NS;
    pcclResult_t usable = check(ticket);
    if (usable != pcclSuccess || ticket->kind == TICKET_MASTER) {
        note(ticket, usable == pcclSuccess ? wait_on(ticket, deadline) : usable);
        return result_of(ticket);
    }
    pcclComm_t *comm = (pcclComm_t *)(uintptr_t)ticket->of;
    communicator_enter(comm->communicator); // which its destruction waits for
    wait_alone(comm, ticket, deadline);
    communicator_exit(comm->communicator);
    return result_of(ticket);
}

void pccl_ticket_free(struct pccl_ticket *ticket) {
    if (ticket == NULL) return;
    ops_retry_free(ticket->multi);
    ticket->multi = NULL;
}

pcclResult_t pccl_reduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                         const pcclComm_t *comm, const pcclReduceOptions_t *options, struct pccl_ticket *ticket,
                         int milliseconds) {
    RETURN_IF_FAILED(pccl_begin_reduce(sendbuf, recvbuf, descriptor, comm, options, ticket));
    return pccl_ticket_wait(ticket, milliseconds);
}
