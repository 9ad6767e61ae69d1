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

// ---- asking ----

// A question to the masters of a list, one after another, until one serves the run.
struct pccl_status_query {
    struct wire_address masters[WIRE_MAX_MASTERS];
    uint32_t count, at;              // of them; asked now
    struct status_question question; // its context is held
    bool own;                        // of a communicator: the run that has this member
    struct wire_diagnose self;       // likewise
    int64_t end_ns;                  // of all of it
    int64_t turn_ns;                 // of the master that is asked now: each has a part of the time left
    struct status_query *asked;      // NULL: nobody yet
    int error;                       // the last one
    uint32_t foreign;                // version of a master that speaks another one; 0: none does
    struct wire_matrix *answer;      // NULL: the caller has it
};

_Static_assert(sizeof(struct wire_diagnose) == WIRE_ID_BYTES + 16, "as DIAGNOSE has it");

static bool names(const struct wire_matrix *matrix, const struct wire_id *id) {
    for (size_t i = 0; i < matrix->told.member_count; i++)
        if (memcmp(matrix->members[i].uuid.data, id->bytes, sizeof id->bytes) == 0) return true;
    return false;
}

// Takes `context`; NULL: memory was refused.
static pcclResult_t status_query_new(struct transport_context *context, const struct wire_run *run, uint32_t limit_ms,
                                     struct pccl_status_query **out) {
    struct pccl_status_query *query = context == NULL ? NULL : calloc(1, sizeof *query);
    if (query != NULL) query->answer = calloc(1, sizeof *query->answer);
    if (query == NULL || query->answer == NULL) {
        free(query);
        transport_context_release(context);
        return detail_fail(pcclInternalError, "the system refused memory for the answer");
    }
    query->question = (struct status_question){.context = context, .run = *run, .type = WIRE_DIAGNOSE};
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
    RETURN_IF_FAILED(status_query_new(access.transport, &access.run, limit_ms, &query));
    query->count = access.master_count;
    memcpy(query->masters, access.masters, sizeof query->masters);
    query->own = true;
    query->self = access.proof;
    query->question.body = &query->self;
    query->question.length = sizeof query->self;
    *out = query;
    return pcclSuccess;
}

pcclResult_t pccl_ext_diagnose_begin_run(const ccoip_socket_address_t *address, const char *run, const char *keys,
                                         bool insecure, uint32_t limit_ms, struct pccl_status_query **out) {
    struct wire_address master;
    struct wire_run named;
    struct transport_context *context;
    REQUIRE_NOT_NULL(out);
    RETURN_IF_FAILED(api_take_run(run, &named));
    RETURN_IF_FAILED(api_take_address(address, "address", &master));
    RETURN_IF_FAILED(api_observer(keys, insecure, &master, &named, &context));
    RETURN_IF_FAILED(status_query_new(context, &named, limit_ms, out));
    (*out)->masters[0] = master;
    (*out)->count = 1;
    (*out)->question.local = keys == NULL || keys[0] == 0;
    return pcclSuccess;
}

static int ask(struct pccl_status_query *query, int64_t until_ns) {
    struct wire_header header;
    const uint8_t *body;
    query->question.master = query->masters[query->at];
    int error = query->asked != NULL ? 0 : status_query_begin(&query->question, &query->asked);
    if (error == 0) error = status_query_wait(query->asked, until_ns, &header, &body);
    return error == 0 && !wire_decode_matrix(body, header.length, query->answer) ? -EPROTO : error;
}

// Carries the turn of one master on until `until_ns`. True: it has answered.
static bool take_turn(struct pccl_status_query *query, int64_t until_ns) {
    const struct wire_matrix *matrix = query->answer;
    query->error = ask(query, until_ns);
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
    transport_context_release(query->question.context);
    free(query->answer);
    free(query);
}

// Gives the answer to the caller.
static void take_answer(struct pccl_status_query *query, pcclDiagnosis_t **out) {
    struct wire_matrix *answer = query->answer;
    for (size_t i = 0; i < answer->told.edge_count; i++)
        answer->edges[i].reason = pace_reason_text((enum pace_reason)answer->reasons[i]);
    *out = &answer->told;
    query->answer = NULL;
}

pcclResult_t pccl_ext_diagnose_wait(struct pccl_status_query *query, uint32_t milliseconds, pcclDiagnosis_t **out) {
    REQUIRE_NOT_NULL(query);
    REQUIRE_NOT_NULL(out);
    RETURN_IF_FAILED(wait_until(query, platform_now_ns() + milliseconds * MS_NS));
    take_answer(query, out);
    return pcclSuccess;
}

pcclResult_t pcclDiagnose(const pcclComm_t *comm, pcclDiagnosis_t **out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    struct pccl_status_query *query = NULL;
    RETURN_IF_FAILED(pccl_ext_diagnose_begin(comm, ANSWER_MS, &query));
    pcclResult_t code = wait_until(query, INT64_MAX);
    if (code == pcclSuccess) take_answer(query, out);
    pccl_ext_diagnose_end(query);
    return code;
}

void pcclDiagnosisFree(pcclDiagnosis_t *diagnosis) { free(diagnosis); }

// ---- links of this communicator ----

pcclResult_t pccl_ext_links(const pcclComm_t *comm, struct link_report *out, size_t capacity, size_t *count_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(count_out);
    return communicator_links(comm->communicator, out, capacity, count_out);
}
