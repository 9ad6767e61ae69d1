// The public functions: each checks its arguments in the contract's order, calls one module and returns its error.
#define _GNU_SOURCE
#define LOG_COMPONENT "config"
#include "pccl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/platform.h"
#include "device/cuda.h"
#include "net/peer_name.h"
#include "net/socket.h"
#include "ops/plan.h"
#include "api/api.h"
#include "api/ext.h"

enum { DEFAULT_LANES = 4, SPARE_LANES = 60, SPARE_PART = 16, FOREVER = -1 };

static pthread_once_t segmented_min_once = PTHREAD_ONCE_INIT;

// ---- library ----

// Hints of PCCL that change nothing here; a bad value is worth a line, never an error.
static void look_at_hint(const char *name) {
    const char *value = getenv(name);
    if (value == NULL) return;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (end == value || *end != 0 || errno != 0 || number == 0 || value[0] == '-')
        LOG(LOG_ERR, "%s=%s is ignored: not a positive number", name, value);
}

pcclResult_t pcclInit(void) {
    if (!api_initialize()) return pcclSuccess;
    look_at_hint("PCCL_MULTIPLEX_CHUNK_SIZE");
    look_at_hint("PCCL_MAX_CONCURRENT_COLLECTIVE_OPS");
    look_at_hint("PCCL_NUM_BENCHMARK_CONNECTIONS");
    return pcclSuccess;
}

pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *info) {
    REQUIRE_NOT_NULL(info);
    const char *why;
    char names[1];
    const struct cuda_library *library = cuda_library_load(&why);
    info->has_cuda_support = library != NULL && library->describe(names, sizeof names) > 0;
    return pcclSuccess;
}

// ---- communicator ----

// PCCL_MASTERS=1.2.3.4:48148,[::1]:48148: those that are tried after the one that the program gives.
static void add_masters_of_environment(struct communicator_params *params) {
    const char *list = getenv("PCCL_MASTERS");
    while (list != NULL && *list != 0) {
        size_t length = strcspn(list, ",");
        struct wire_address address;
        if (params->masters.count == WIRE_MAX_MASTERS || !socket_address_parse(list, length, &address))
            LOG(LOG_ERR, "PCCL_MASTERS: %.*s is ignored: not an address and a port, or one too many", (int)length,
                list);
        else if (memcmp(&address, &params->masters.list[0], sizeof address) != 0)
            params->masters.list[params->masters.count++] = address;
        list += length + (list[length] == ',');
    }
}

// Once, before the first op of the process. What the tests have set stays.
static void read_segmented_min(void) {
    plan_segmented_min =
        environment_number("PCCL_SEGMENTED_MIN_BYTES", PLAN_SEGMENT_MIN, INT32_MAX, (uint32_t)plan_segmented_min);
}

// PCCL_PEER_NAME, or the name of the host.
static struct wire_name default_name(void) {
    const char *name = getenv("PCCL_PEER_NAME");
    if (name == NULL || *name == 0) return peer_name_of_host();
    struct wire_name clean = peer_name_clean(name, strlen(name));
    if (!peer_name_is_clean(name, strlen(name)))
        LOG(LOG_ERR,
            "PCCL_PEER_NAME=%.80s is no name, \"%s\" is used: up to %d bytes of printable UTF-8 are, without a "
            "space at an end",
            name, clean.chars, WIRE_MAX_NAME);
    return clean.chars[0] != 0 ? clean : peer_name_of_host();
}

// PCCL_RUN, or the run without a name.
static pcclResult_t default_run(struct wire_run *out) {
    const char *name = getenv("PCCL_RUN");
    if (api_take_run(name == NULL ? "" : name, out) == pcclSuccess) return pcclSuccess;
    return detail_fail(pcclInvalidArgument,
                       "PCCL_RUN=%.80s: the name of a run has 1 to %d letters, digits, '.', '_', '-'", name,
                       WIRE_MAX_RUN);
}

// Two neighbours at most take an eighth of the descriptors that the process may have.
static uint32_t spare_lanes(void) {
    uint64_t part = descriptor_limit() / SPARE_PART;
    return part < SPARE_LANES ? (uint32_t)part : SPARE_LANES;
}

// ---- the end of the process ----

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static pcclComm_t *open_comms; // those of this process, and maybe of the one that it was forked from
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

#ifndef __GLIBC__
int on_exit(void (*)(int, void *), void *);
#endif
#pragma weak on_exit // no other way tells the status. NULL with musl: a program that does not close counts as dead

static void leave_all(int status, void *unused) {
    (void)unused;
    if (status != 0 || pthread_mutex_trylock(&open_lock) != 0) return; // the system closes the connections
    for (pcclComm_t *comm = open_comms; comm != NULL; comm = comm->after)
        if (api_is_own(comm->forks)) connect_exit(comm->communicator);
    pthread_mutex_unlock(&open_lock);
}

static void watch_exit(void) {
    if (on_exit != NULL) on_exit(leave_all, NULL);
}

static void remember(pcclComm_t *comm) {
    pthread_once(&exit_once, watch_exit);
    pthread_mutex_lock(&open_lock);
    comm->after = open_comms;
    open_comms = comm;
    pthread_mutex_unlock(&open_lock);
}

void api_forget(pcclComm_t *comm) {
    pthread_mutex_lock(&open_lock);
    pcclComm_t **at = &open_comms;
    while (*at != NULL && *at != comm) at = &(*at)->after;
    if (*at != NULL) *at = comm->after;
    pthread_mutex_unlock(&open_lock);
}

pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out) {
    RETURN_IF_FAILED(api_initialized());
    REQUIRE_NOT_NULL(params);
    REQUIRE_NOT_NULL(comm_out);
    environment_report_unknown();
    uint32_t lanes = params->p2p_connection_pool_size;
    struct communicator_params inside = {.group = params->peer_group,
                                         .lanes = lanes == 0               ? DEFAULT_LANES
                                                  : lanes < WIRE_MAX_LANES ? lanes
                                                                           : WIRE_MAX_LANES,
                                         .member.spare_lanes = lanes == 0 ? spare_lanes() : 0,
                                         .member.name = default_name(),
                                         .transport = api_transport_options()};
    inside.transport.party = TRANSPORT_PEER;
    inside.masters.count = 1;
    inside.member.recovery_limit_ms =
        environment_number("PCCL_MASTER_RECOVERY_MS", 0, API_RECOVERY_MOST_MS, API_RECOVERY_DEFAULT_MS);
    uint32_t least = environment_number("PCCL_MIN_MEMBERS", 0, WIRE_MAX_MEMBERS, 0);
    uint32_t most = environment_number("PCCL_MAX_MEMBERS", 0, WIRE_MAX_MEMBERS, 0);
    uint32_t wait_s = environment_number("PCCL_MIN_MEMBERS_TIMEOUT_S", 0, API_SHORT_MOST_S, API_SHORT_DEFAULT_S);
    RETURN_IF_FAILED(api_check_limits(least, most));
    inside.member.limits = (struct wire_limits){(uint16_t)least, (uint16_t)most, wait_s * 1000};
    RETURN_IF_FAILED(api_take_address(&params->master_address, "master_address", &inside.masters.list[0]));
    add_masters_of_environment(&inside);
    RETURN_IF_FAILED(default_run(&inside.run));
    char why[CARDS_WHY_BYTES];
    if (!cards_read(&inside.cards, getenv("PCCL_INTERFACE"), getenv("PCCL_ADDRESS"), why))
        return detail_fail(pcclInvalidArgument, "%s", why);
    const char *relay = getenv("PCCL_RELAY");
    if (relay != NULL && snprintf(inside.relay, sizeof inside.relay, "%s", relay) >= (int)sizeof inside.relay)
        return detail_fail(pcclInvalidArgument, "PCCL_RELAY=%.80s... is too long for a host and a port", relay);
    bool for_others = environment_number("PCCL_RELAY_FOR_OTHERS", 0, 1, 1) != 0;
    inside.relays = (uint8_t)((for_others ? WIRE_RELAYS : WIRE_RELAYS_NOTHING) |
                              (inside.relay[0] != 0 ? WIRE_RELAYS_OUTSIDE : WIRE_RELAYS_NOTHING));
    const char *why_no_relay = inside.relay[0] == 0 ? NULL : socket_address_look_up(inside.relay, NULL);
    if (why_no_relay != NULL) return detail_fail(pcclInvalidArgument, "PCCL_RELAY=%.80s: %s", relay, why_no_relay);
    pthread_once(&segmented_min_once, read_segmented_min);
    struct pcclComm_t *comm = calloc(1, sizeof *comm);
    if (comm != NULL) comm->communicator = connect_new(&inside);
    if (comm == NULL || comm->communicator == NULL) {
        free(comm);
        return detail_fail(pcclInternalError, "the system refused memory or descriptors for a communicator");
    }
    comm->forks = descriptor_forks();
    pthread_mutex_init(&comm->gate, NULL);
    platform_cond_init(&comm->left);
    remember(comm);
    *comm_out = comm;
    return pcclSuccess;
}

// Begins a call and waits for its end. Another thread may destroy the communicator at any moment: it ends this call,
// and waits for that.
static pcclResult_t run(const pcclComm_t *comm, pcclResult_t (*begin)(const pcclComm_t *, struct pccl_ticket *),
                        struct pccl_ticket *ticket) {
    REQUIRE_COMM(comm);
    communicator_enter(comm->communicator);
    pcclResult_t code = begin(comm, ticket);
    if (code == pcclSuccess) code = pccl_ticket_wait(ticket, FOREVER);
    communicator_exit(comm->communicator);
    return code;
}

pcclResult_t pcclConnect(pcclComm_t *comm) {
    struct pccl_ticket ticket;
    return run(comm, pccl_begin_connect, &ticket);
}

pcclResult_t pcclDestroyCommunicator(pcclComm_t *comm) {
    RETURN_IF_FAILED(api_initialized());
    REQUIRE_NOT_NULL(comm);
    if (!api_is_own(comm->forks)) return pcclSuccess; // its threads and locks are the parent's
    if (connect_is_undecided(comm->communicator)) {
        connect_stop(comm->communicator);
        return pcclSuccess;
    }
    api_forget(comm);
    connect_free(comm->communicator);
    pthread_mutex_destroy(&comm->gate);
    pthread_cond_destroy(&comm->left);
    free(comm);
    return pcclSuccess;
}

pcclResult_t pcclGetAttribute(const pcclComm_t *comm, pcclAttribute_t attribute, int *attribute_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(attribute_out);
    struct member_view view;
    RETURN_IF_FAILED(communicator_view(comm->communicator, &view));
    switch (attribute) {
    case PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE: *attribute_out = (int)view.global_world; return pcclSuccess;
    case PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE: *attribute_out = (int)view.group_world; return pcclSuccess;
    case PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS: *attribute_out = (int)view.groups; return pcclSuccess;
    case PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE: *attribute_out = (int)view.largest_group; return pcclSuccess;
    case PCCL_ATTRIBUTE_PEER_GROUP_RANK:
        RETURN_IF_FAILED(communicator_usable(comm->communicator)); // asked last: then the view is that of a living one
        if (view.rank == MEMBER_NO_RANK)
            return detail_fail(pcclRankConnectionLost, "the rank is not known, for members were lost together with a "
                                                       "master; the next operation or update tells of them");
        *attribute_out = (int)view.rank;
        return pcclSuccess;
    }
    return detail_fail(pcclInvalidArgument, "%d is no pcclAttribute_t", (int)attribute);
}

// ---- topology ----

pcclResult_t pcclUpdateTopology(pcclComm_t *comm) {
    struct pccl_ticket ticket;
    return run(comm, pccl_begin_update, &ticket);
}

pcclResult_t pcclArePeersPending(const pcclComm_t *comm, bool *pending_out) {
    struct pccl_ticket ticket;
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(pending_out);
    RETURN_IF_FAILED(run(comm, pccl_begin_pending, &ticket));
    *pending_out = ticket.value != 0;
    return pcclSuccess;
}

pcclResult_t pcclOptimizeTopology(const pcclComm_t *comm) {
    struct pccl_ticket ticket;
    return run(comm, pccl_begin_optimize, &ticket);
}

// ---- all-reduce ----

static const pcclReduceOptions_t no_options;

// When a call with a bound must return: 0 = none.
static int64_t deadline_after(uint64_t timeout_ms) {
    int64_t now = platform_now_ns();
    if (timeout_ms == 0 || timeout_ms > (uint64_t)(INT64_MAX - now) / MS_NS) return INT64_MAX;
    return now + (int64_t)timeout_ms * MS_NS;
}

// Launches and awaits, as `run`.
static pcclResult_t reduce(const void *send, void *recv, const pcclReduceDescriptor_t *descriptor,
                           const pcclComm_t *comm, const pcclReduceOptions_t *options, bool tell, int64_t deadline,
                           pcclReduceInfo_t *out) {
    struct communicator *communicator = comm->communicator;
    communicator_enter(communicator);
    pcclResult_t code = api_launch(send, recv, descriptor, comm, options, tell);
    if (code == pcclSuccess) code = api_await(comm, descriptor->tag, deadline, out);
    communicator_exit(communicator);
    return code;
}

pcclResult_t pcclAllReduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                           const pcclComm_t *comm, pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(descriptor);
    return reduce(sendbuf, recvbuf, descriptor, comm, &no_options, false, INT64_MAX, reduce_info_out);
}

pcclResult_t pcclAllReduceAsync(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                                const pcclComm_t *comm, pcclAsyncReduceOp_t *reduce_handle_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(descriptor);
    REQUIRE_NOT_NULL(reduce_handle_out);
    RETURN_IF_FAILED(api_launch(sendbuf, recvbuf, descriptor, comm, &no_options, false));
    // The handle gives the communicator back to its owner, who had it without const.
    *reduce_handle_out = (pcclAsyncReduceOp_t){.comm = (pcclComm_t *)(uintptr_t)comm, .tag = descriptor->tag};
    return pcclSuccess;
}

pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                  pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out) {
    RETURN_IF_FAILED(api_initialized());
    REQUIRE_NOT_NULL(reduce_handle);
    REQUIRE_COMM(reduce_handle->comm);
    return api_await(reduce_handle->comm, reduce_handle->tag, INT64_MAX, reduce_info_out);
}

pcclResult_t pcclStreamWaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle, void *PCCL_NULLABLE stream) {
    RETURN_IF_FAILED(api_initialized());
    REQUIRE_NOT_NULL(reduce_handle);
    REQUIRE_COMM(reduce_handle->comm);
    return ops_hold(reduce_handle->comm->communicator, reduce_handle->tag, stream);
}

pcclResult_t pcclCancel(const pcclComm_t *comm, uint64_t tag) {
    REQUIRE_COMM(comm);
    return ops_cancel(comm->communicator, tag);
}

pcclResult_t pcclAllReduceEx(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                             const pcclComm_t *comm, const pcclReduceOptions_t *PCCL_NULLABLE options,
                             pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(descriptor);
    pcclReduceOptions_t wanted;
    RETURN_IF_FAILED(api_take_options(options, &wanted));
    if (wanted.launch_only) return api_launch(sendbuf, recvbuf, descriptor, comm, &wanted, true);
    return reduce(sendbuf, recvbuf, descriptor, comm, &wanted, true, deadline_after(wanted.timeout_ms),
                  reduce_info_out);
}

pcclResult_t pcclAwaitAsyncReduceEx(const pcclAsyncReduceOp_t *reduce_handle,
                                    const pcclReduceOptions_t *PCCL_NULLABLE options,
                                    pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out) {
    RETURN_IF_FAILED(api_initialized());
    REQUIRE_NOT_NULL(reduce_handle);
    REQUIRE_COMM(reduce_handle->comm);
    pcclReduceOptions_t wanted;
    RETURN_IF_FAILED(api_take_options(options, &wanted));
    return api_await(reduce_handle->comm, reduce_handle->tag, deadline_after(wanted.timeout_ms), reduce_info_out);
}

pcclResult_t pcclGetReduceContributors(const pcclComm_t *comm, uint64_t tag, size_t index, pcclReduceRange_t *range_out,
                                       pcclRankUuid_t *PCCL_NULLABLE uuids_out, size_t capacity) {
    _Static_assert(sizeof(pcclRankUuid_t) == sizeof(struct wire_id), "ids are written as they are");
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(range_out);
    if (capacity > 0) REQUIRE_NOT_NULL(uuids_out);
    struct call_range range;
    size_t ranges;
    if (!ops_contributors(comm->communicator, tag, index, &range, (struct wire_id *)(void *)uuids_out, capacity,
                          &ranges))
        return detail_fail(pcclInvalidArgument,
                           "no operation of tag %llu that tells its contributors has ended, or it has no range %zu",
                           (unsigned long long)tag, index);
    *range_out =
        (pcclReduceRange_t){.begin = range.begin, .end = range.end, .contributors = range.count, .ranges = ranges};
    return pcclSuccess;
}

pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                            const pcclComm_t *comm, pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out,
                                            int max_in_flight) {
    REQUIRE_COMM(comm);
    struct communicator *communicator = comm->communicator;
    communicator_enter(communicator);
    struct ops_retry *retry = NULL;
    pcclResult_t code = api_retry_new(descriptors, NULL, count, comm, max_in_flight, &retry);
    if (code == pcclTooFewPeers && reduce_info_out != NULL)
        *reduce_info_out = (pcclReduceInfo_t){.local_world_size = 1};
    if (code == pcclSuccess) code = ops_retry_wait(retry, INT64_MAX, reduce_info_out);
    ops_retry_free(retry);
    communicator_exit(communicator);
    return code;
}

// ---- shared state ----

pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *comm, pcclSharedState_t *shared_state,
                                        pcclSharedStateSyncStrategy_t strategy,
                                        pcclSharedStateSyncInfo_t *PCCL_NULLABLE sync_info_out) {
    REQUIRE_COMM(comm);
    struct pccl_ticket ticket;
    struct communicator *communicator = comm->communicator;
    communicator_enter(communicator);
    pcclResult_t code = pccl_begin_sync(comm, shared_state, strategy, NULL, &ticket);
    if (code == pcclSuccess) code = pccl_ticket_wait(&ticket, FOREVER);
    if (code == pcclSuccess) {
        shared_state->revision = ticket.value;
        if (sync_info_out != NULL)
            *sync_info_out =
                (pcclSharedStateSyncInfo_t){.tx_bytes = ticket.info.tx_bytes, .rx_bytes = ticket.info.rx_bytes};
    }
    communicator_exit(communicator);
    return code;
}

pcclResult_t pcclMarkSharedStateRestored(const pcclSharedState_t *shared_state) {
    struct content *content;
    RETURN_IF_FAILED(api_content_of(shared_state, &content));
    content_clear_torn(&content->layout);
    content_free(content);
    return pcclSuccess;
}
