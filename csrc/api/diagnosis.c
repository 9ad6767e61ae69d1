// Reports for a program: what the members of its run have seen, from the master, and the links of a communicator.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/ext.h"
#include "base/platform.h"
#include "data/telemetry.h"
#include "link/pace.h"
#include "net/socket.h"

enum { ANSWER_MS = 3000 };

struct answer {
    struct wire_matrix matrix;
    struct wire_matrix_member members[WIRE_MAX_MEMBERS];
    struct wire_matrix_edge edges[WIRE_MAX_EDGES];
    struct wire_matrix_number numbers[WIRE_MAX_NUMBERS_TOLD];
    struct wire_matrix_joiner joiners[WIRE_MAX_JOINERS];
    struct wire_departure departures[WIRE_MAX_DEPARTURES];
};

static double seconds(uint64_t us) { return (double)us / 1e6; }

static double count(uint64_t parts) { return (double)parts / (double)WIRE_COUNT; }

static pcclRankUuid_t uuid_of(const struct wire_id *id) {
    pcclRankUuid_t uuid;
    memcpy(uuid.data, id->bytes, sizeof uuid.data);
    return uuid;
}

// ---- asking ----

// A question to the masters of a list, one after another, until one serves the run.
struct pccl_status_query {
    struct transport_context *transport; // held
    struct wire_address masters[WIRE_MAX_MASTERS];
    uint32_t count, at;        // of them; asked now
    bool own;                  // of a communicator: the run that has this member
    bool local;                // the master may know this process by its user; not where the caller names keys
    struct wire_diagnose self; // likewise
    struct wire_run run;
    int64_t end_ns;             // of all of it
    int64_t turn_ns;            // of the master that is asked now: each has a part of the time left
    struct status_query *asked; // NULL: nobody yet
    int error;                  // the last one
    uint32_t foreign;           // version of a master that speaks another one; 0: none does
    struct answer answer;
};

static bool names(const struct wire_matrix *matrix, const struct wire_id *id) {
    for (uint32_t i = 0; i < matrix->member_count; i++)
        if (wire_id_equal(&matrix->members[i].member.id, id)) return true;
    return false;
}

// Takes `transport`; NULL: memory was refused.
static pcclResult_t status_query_new(struct transport_context *transport, uint32_t limit_ms,
                                     struct pccl_status_query **out) {
    struct pccl_status_query *query = transport == NULL ? NULL : calloc(1, sizeof *query);
    if (query == NULL) {
        transport_context_release(transport);
        return detail_fail(pcclInternalError, "the system refused memory for the answer");
    }
    query->transport = transport;
    query->end_ns = platform_now_ns() + limit_ms * MS_NS;
    *out = query;
    return pcclSuccess;
}

pcclResult_t pccl_ext_diagnose_begin(const pcclComm_t *comm, uint32_t limit_ms, struct pccl_status_query **out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    struct pccl_status_query *query = NULL;
    struct communicator_access access;
    RETURN_IF_FAILED(communicator_access(comm->communicator, &access));
    RETURN_IF_FAILED(status_query_new(access.transport, limit_ms, &query));
    query->count = access.master_count;
    query->run = access.run;
    memcpy(query->masters, access.masters, sizeof query->masters);
    query->self.id = access.id;
    memcpy(query->self.secret, access.secret, sizeof query->self.secret);
    query->own = true;
    *out = query;
    return pcclSuccess;
}

pcclResult_t pccl_ext_diagnose_begin_run(const ccoip_socket_address_t *address, const char *run, const char *keys,
                                         bool insecure, uint32_t limit_ms, struct pccl_status_query **out) {
    struct wire_address master;
    struct wire_run named;
    struct transport_context *transport;
    REQUIRE_NOT_NULL(out);
    RETURN_IF_FAILED(api_take_run(run, &named));
    RETURN_IF_FAILED(api_take_address(address, "address", &master));
    RETURN_IF_FAILED(api_observer(keys, insecure, &master, &named, &transport));
    RETURN_IF_FAILED(status_query_new(transport, limit_ms, out));
    (*out)->masters[0] = master;
    (*out)->run = named;
    (*out)->count = 1;
    (*out)->local = keys == NULL || keys[0] == 0;
    return pcclSuccess;
}

// Carries the turn of one master on until `until_ns`. True: it has answered.
static bool take_turn(struct pccl_status_query *query, int64_t until_ns) {
    struct wire_matrix *matrix = &query->answer.matrix;
    *matrix = (struct wire_matrix){.members = query->answer.members,
                                   .edges = query->answer.edges,
                                   .numbers = query->answer.numbers,
                                   .joiners = query->answer.joiners,
                                   .departures = query->answer.departures};
    query->error = query->asked == NULL
                       ? status_query_begin(query->transport, &query->masters[query->at], &query->run,
                                            query->own ? &query->self : NULL, query->local, &query->asked)
                       : 0;
    if (query->error == 0) query->error = status_query_wait(query->asked, until_ns, matrix);
    if (query->error == 0 && matrix->version != WIRE_VERSION) query->foreign = matrix->version;
    return query->error == 0 && matrix->version == WIRE_VERSION && (!query->own || names(matrix, &query->self.id));
}

static pcclResult_t without_answer(const struct pccl_status_query *query) {
    if (query->foreign != 0)
        return detail_fail(
            pcclMasterConnectionFailed,
            "the master cannot be asked: it speaks version %u of the protocol, and this pccl, " PCCL_VERSION
            ", version %u; install one pccl on both",
            (unsigned)query->foreign, (unsigned)WIRE_VERSION);
    if (query->error == 0)
        return detail_fail(pcclMasterConnectionFailed, "no master serves the run of this peer at the moment: a lost "
                                                       "master is being replaced, ask again");
    return api_no_answer(query->error);
}

static pcclResult_t wait_until(struct pccl_status_query *query, int64_t slice_ns) {
    for (; query->at < query->count; query->at++) {
        int64_t now_ns = platform_now_ns();
        if (query->turn_ns == 0) query->turn_ns = now_ns + (query->end_ns - now_ns) / (query->count - query->at);
        if (take_turn(query, platform_earlier(slice_ns, query->turn_ns))) return pcclSuccess;
        if (query->error == -ETIMEDOUT && slice_ns < query->turn_ns)
            return detail_fail(pcclTimedOut, "the master has not answered yet");
        status_query_end(query->asked);
        query->asked = NULL;
        query->turn_ns = 0;
    }
    return without_answer(query);
}

void pccl_ext_diagnose_end(struct pccl_status_query *query) {
    if (query == NULL) return;
    status_query_end(query->asked);
    transport_context_release(query->transport);
    free(query);
}

static void take_member(const struct wire_matrix_member *from, pcclDiagnosisMember_t *out) {
    const struct wire_ops_seen *ops = &from->ops;
    *out = (pcclDiagnosisMember_t){
        .uuid = uuid_of(&from->member.id),
        .join_number = from->member.join_number,
        .group = from->member.group,
        .silent_s = seconds(from->silent_us),
        .told_s = from->told_us == WIRE_MOST_SEEN ? -1 : seconds(from->told_us),
        .span_s = seconds(ops->span_us),
        .recent_s = seconds(from->recent_us),
        .ops = count(ops->ops),
        .op_s = seconds(ops->op_us),
        .processor_s = seconds(ops->processor_us),
        .live = ops->live,
        .oldest_s = seconds(ops->oldest_us),
        .still_s = seconds(ops->still_us),
        .state_revision = from->state.revision,
        .state_hash = {from->state.content.low, from->state.content.high},
        .synced = from->state.kind != WIRE_STATE_NONE,
        .state_replaced = from->state.kind == WIRE_STATE_REPLACED,
    };
    memcpy(out->name, from->member.name.chars, sizeof out->name);
    socket_address_format(out->address, sizeof out->address, &from->member.address);
}

static void take_edge(const struct wire_matrix_edge *from, pcclDiagnosisEdge_t *out) {
    const struct wire_seen *seen = &from->seen;
    *out = (pcclDiagnosisEdge_t){
        .member = from->from,
        .other = from->to,
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
        .reason = pace_reason_text((enum pace_reason)seen->reason),
    };
}

static void take_joiner(const struct wire_matrix_joiner *from, pcclDiagnosisJoiner_t *out) {
    *out = (pcclDiagnosisJoiner_t){
        .uuid = uuid_of(&from->id),
        .group = from->group,
        .joining = from->joining,
        .done = from->progress.done,
        .total = from->progress.total,
        .progress_s = seconds(from->progress.span_us),
        .wait_s = seconds(from->wait_us),
    };
    memcpy(out->name, from->name.chars, sizeof out->name);
    socket_address_format(out->address, sizeof out->address, &from->address);
}

static pcclResult_t make(const struct answer *answer, pcclDiagnosis_t **out) {
    const struct wire_matrix *matrix = &answer->matrix;
    pcclDiagnosis_t *made = calloc(1, sizeof *made);
    *out = NULL;
    if (made != NULL) {
        *made = (pcclDiagnosis_t){
            .heartbeat_limit_s = matrix->heartbeat_limit_ms / 1e3,
            .counts_only = matrix->counts_only,
            .peer_count = matrix->peers,
            .epoch = matrix->epoch,
            .member_count = matrix->member_count,
            .edge_count = matrix->edge_count,
            .members = calloc(matrix->member_count + 1, sizeof *made->members),
            .edges = calloc(matrix->edge_count + 1, sizeof *made->edges),
            .generation = matrix->generation,
            .votes = matrix->votes,
            .number_count = matrix->number_count,
            .numbers = calloc(matrix->number_count + 1, sizeof *made->numbers),
            .joiner_count = matrix->joiner_count,
            .joiners = calloc(matrix->joiner_count + 1, sizeof *made->joiners),
        };
    }
    if (made == NULL || made->members == NULL || made->edges == NULL || made->numbers == NULL ||
        made->joiners == NULL) {
        pcclDiagnosisFree(made);
        return detail_fail(pcclInternalError, "the system refused memory for the diagnosis");
    }
    for (size_t i = 0; i < made->member_count; i++) take_member(&matrix->members[i], &made->members[i]);
    for (size_t i = 0; i < made->edge_count; i++) take_edge(&matrix->edges[i], &made->edges[i]);
    for (size_t i = 0; i < made->number_count; i++) {
        made->numbers[i].member = matrix->numbers[i].member;
        made->numbers[i].value = matrix->numbers[i].number.value;
        memcpy(made->numbers[i].name, matrix->numbers[i].number.name, sizeof matrix->numbers[i].number.name);
    }
    for (size_t i = 0; i < made->joiner_count; i++) take_joiner(&matrix->joiners[i], &made->joiners[i]);
    *out = made;
    return pcclSuccess;
}

pcclResult_t pccl_ext_diagnose_wait(struct pccl_status_query *query, uint32_t milliseconds, pcclDiagnosis_t **out) {
    REQUIRE_NOT_NULL(query);
    REQUIRE_NOT_NULL(out);
    RETURN_IF_FAILED(wait_until(query, platform_now_ns() + milliseconds * MS_NS));
    return make(&query->answer, out);
}

bool pccl_ext_diagnose_departure(const struct pccl_status_query *query, uint32_t index, pccl_ext_departure_t *out) {
    if (index >= query->answer.matrix.departure_count) return false;
    const struct wire_departure *from = &query->answer.departures[index];
    *out = (pccl_ext_departure_t){.uuid = uuid_of(&from->gone.id),
                                  .group = from->group,
                                  .rank = from->rank,
                                  .reason = (pccl_ext_loss_t)from->gone.reason,
                                  .ago_s = seconds(from->ago_us)};
    memcpy(out->name, from->name.chars, sizeof out->name);
    memcpy(out->why, from->gone.why, sizeof out->why);
    return true;
}

pcclResult_t pcclDiagnose(const pcclComm_t *comm, pcclDiagnosis_t **out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    struct pccl_status_query *query = NULL;
    RETURN_IF_FAILED(pccl_ext_diagnose_begin(comm, ANSWER_MS, &query));
    pcclResult_t code = wait_until(query, INT64_MAX);
    if (code == pcclSuccess) code = make(&query->answer, out);
    pccl_ext_diagnose_end(query);
    return code;
}

void pcclDiagnosisFree(pcclDiagnosis_t *diagnosis) {
    if (diagnosis == NULL) return;
    free(diagnosis->members);
    free(diagnosis->edges);
    free(diagnosis->numbers);
    free(diagnosis->joiners);
    free(diagnosis);
}

// ---- links of this communicator ----

static void take_link(const struct link_report *from, struct pccl_link *out) {
    const struct gauge *sums = &from->sums;
    *out = (struct pccl_link){
        .rank = from->rank,
        .connected = from->connected,
        .by_memory = from->by_memory,
        .far = from->far,
        .relayed = from->relayed,
        .path_count = from->path_count,
        .lanes = from->lanes,
        .lanes_in_use = from->in_use,
        .shortest_round_trip_s = seconds(sums->round_trip_us),
        .round_trip_s = seconds(from->smoothed_us),
        .bytes_per_second = from->bytes_per_s,
        .acked_bytes = (double)sums->acked,
        .segments = sums->segments,
        .retransmits = sums->retransmits,
        .busy_s = seconds(sums->busy_us),
        .window_limited_s = seconds(sums->window_us),
        .buffer_limited_s = seconds(sums->buffer_us),
        .limit_bytes_per_second = from->limit_bytes_per_s,
    };
    memcpy(out->uuid.data, from->member.id.bytes, sizeof out->uuid.data);
    memcpy(out->name, from->member.name.chars, sizeof out->name);
    memcpy(out->congestion_control, from->congestion, sizeof out->congestion_control);
    for (uint32_t i = 0; i < from->path_count; i++) {
        struct pccl_link_path *path = &out->paths[i];
        socket_address_format(path->local, sizeof path->local, &from->paths[i].local);
        socket_address_format(path->remote, sizeof path->remote, &from->paths[i].remote);
        path->connections = from->paths[i].connections;
    }
    socket_address_format(out->address, sizeof out->address, &from->member.address);
    snprintf(out->reason, sizeof out->reason, "%s", pace_reason_text(from->reason));
}

static pcclResult_t make_links(const pcclComm_t *comm, struct link_report *reports, struct pccl_links *out) {
    size_t count = 0;
    RETURN_IF_FAILED(communicator_links(comm->communicator, reports, WIRE_MAX_MEMBERS, &count));
    out->links = calloc(count + 1, sizeof *out->links);
    if (out->links == NULL) return detail_fail(pcclInternalError, "the system refused memory for the links");
    for (; out->count < count; out->count++) take_link(&reports[out->count], &out->links[out->count]);
    return pcclSuccess;
}

pcclResult_t pccl_ext_links(const pcclComm_t *comm, struct pccl_links **out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    struct pccl_links *links = calloc(1, sizeof *links);
    struct link_report *reports = calloc(WIRE_MAX_MEMBERS, sizeof *reports);
    pcclResult_t code;
    if (links == NULL || reports == NULL)
        code = detail_fail(pcclInternalError, "the system refused memory for the links");
    else
        code = make_links(comm, reports, links);
    free(reports);
    if (code == pcclSuccess)
        *out = links;
    else
        pccl_ext_links_free(links);
    return code;
}

void pccl_ext_links_free(struct pccl_links *links) {
    if (links == NULL) return;
    free(links->links);
    free(links);
}
