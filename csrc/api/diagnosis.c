#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/ext.h"
#include "base/platform.h"
#include "master/inquiry.h"
#include "net/socket.h"
#include "topology/diagnosis.h"

enum { ANSWER_MS = 3000 };

// An answer, and what is made of it, in one piece of memory for each.
struct answer {
    struct wire_matrix matrix;
    struct wire_matrix_member members[WIRE_MAX_MEMBERS];
    struct wire_matrix_edge edges[WIRE_MAX_EDGES];
};

static double seconds(uint64_t us) { return (double)us / 1e6; }

static double count(uint64_t parts) { return (double)parts / (double)WIRE_COUNT; }

// NULL: memory was refused, as base/detail says.
static struct answer *answer_new(void) {
    struct answer *answer = malloc(sizeof *answer);
    if (answer == NULL) detail_fail(0, "the system refused memory for the answer");
    return answer;
}

static int ask(const struct wire_address *master, int64_t deadline_ns, struct answer *out) {
    out->matrix = (struct wire_matrix){.members = out->members, .edges = out->edges};
    return inquiry_diagnose(master, deadline_ns, &out->matrix);
}

static pcclRankUuid_t uuid_of(const struct wire_id *id) {
    pcclRankUuid_t uuid;
    memcpy(uuid.data, id->bytes, sizeof uuid.data);
    return uuid;
}

static void take_finding(const struct answer *answer, const struct diagnosis_finding *from, pcclFinding_t *out) {
    const struct wire_matrix_member *members = answer->matrix.members;
    *out = (pcclFinding_t){
        .kind = (pcclDiagnosisKind_t)from->kind,
        .member = uuid_of(&members[from->member].member.id),
        .other = uuid_of(&members[from->other].member.id),
        .value = from->value,
        .usual = from->usual,
        .cost = from->cost,
        .confidence = from->confidence,
    };
    snprintf(out->text, sizeof out->text, "%s", from->text);
}

// ---- a communicator's master ----
static bool names(const struct wire_matrix *matrix, const struct wire_id *id) {
    for (uint32_t i = 0; i < matrix->member_count; i++)
        if (wire_id_equal(&matrix->members[i].member.id, id)) return true;
    return false;
}

// Of a list of masters the one that serves the run of this communicator.
static pcclResult_t ask_own(const pcclComm_t *comm, uint32_t limit_ms, struct answer *out) {
    struct communicator *c = comm->communicator;
    struct communicator_params params;
    struct wire_id self = communicator_id(c);
    int error = 0;
    // Another thread may destroy the communicator from here on.
    communicator_begin(c);
    params = c->params;
    RETURN_IF_FAILED(communicator_finish(c, communicator_check_usable(c)));
    int64_t now_ns = platform_now_ns(), end_ns = now_ns + limit_ms * MS_NS;
    for (uint32_t i = 0; i < params.master_count; i++, now_ns = platform_now_ns()) { // each has a part of the time left
        error = ask(&params.masters[i], now_ns + (end_ns - now_ns) / (params.master_count - i), out);
        if (error == 0 && names(&out->matrix, &self)) return pcclSuccess;
    }
    if (error == 0)
        return detail_fail(pcclMasterConnectionFailed, "no master serves the run of this peer at the moment: a lost "
                                                       "master is being replaced, ask again");
    return detail_fail(pcclMasterConnectionFailed, "the master does not answer: %s", strerror(-error));
}

pcclResult_t pcclDiagnose(const pcclComm_t *comm, pcclFinding_t *findings_out, size_t capacity, size_t *count_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(count_out);
    if (capacity > 0) REQUIRE_NOT_NULL(findings_out);
    struct answer *answer = answer_new();
    if (answer == NULL) return pcclInternalError;
    pcclResult_t code = ask_own(comm, ANSWER_MS, answer);
    if (code == pcclSuccess) {
        struct diagnosis_finding found[DIAGNOSIS_MOST];
        *count_out = diagnosis_make(&answer->matrix, found, NULL);
        for (size_t i = 0; i < *count_out && i < capacity; i++) take_finding(answer, &found[i], &findings_out[i]);
    }
    free(answer);
    return code;
}

// ---- for the Python package ----
static void take_member(const struct wire_matrix_member *from, struct pccl_diagnosis_member *out) {
    const struct wire_ops_seen *ops = &from->ops;
    *out = (struct pccl_diagnosis_member){
        .uuid = uuid_of(&from->member.id),
        .join_number = from->member.join_number,
        .group = from->member.group,
        .silent_s = seconds(from->silent_us),
        .told_s = from->told_us == WIRE_MOST_SEEN ? -1 : seconds(from->told_us),
        .span_s = seconds(ops->span_us),
        .ops = count(ops->ops),
        .op_s = seconds(ops->op_us),
        .processor_s = seconds(ops->processor_us),
        .live = ops->live,
        .oldest_s = seconds(ops->oldest_us),
        .still_s = seconds(ops->still_us),
    };
    socket_address_format(out->address, sizeof out->address, &from->member.address);
}

static void take_edge(const struct wire_matrix_edge *from, struct pccl_diagnosis_edge *out) {
    const struct wire_seen *seen = &from->seen;
    *out = (struct pccl_diagnosis_edge){
        .from = from->from,
        .to = from->to,
        .awaited = seen->awaited,
        .acked_bytes = (double)seen->acked,
        .busy_s = seconds(seen->busy_us),
        .window_s = seconds(seen->window_us),
        .segments = (double)seen->segments,
        .retransmits = (double)seen->retransmits,
        .samples = count(seen->samples),
        .pressed = count(seen->pressed),
        .loaded_s = seen->pressed == 0 ? 0 : seconds(seen->delay_us) / count(seen->pressed),
        .entries = count(seen->entries),
        .late_s = seconds(seen->late_us),
        .early_s = seconds(seen->early_us),
        .round_trip_s = seconds(seen->round_trip_us),
        .queue_s = seconds(seen->queue_us),
    };
}

// NULL: memory was refused.
static struct pccl_diagnosis *make(const struct answer *answer) {
    const struct wire_matrix *matrix = &answer->matrix;
    struct diagnosis_finding found[DIAGNOSIS_MOST];
    struct pccl_diagnosis *made = calloc(1, sizeof *made);
    double *begins_s = calloc(matrix->member_count + 1, sizeof *begins_s);
    bool good = made != NULL && begins_s != NULL &&
                (made->members = calloc(matrix->member_count + 1, sizeof *made->members)) != NULL &&
                (made->edges = calloc(matrix->edge_count + 1, sizeof *made->edges)) != NULL &&
                (made->findings = calloc(DIAGNOSIS_MOST, sizeof *made->findings)) != NULL;
    if (good) {
        made->member_count = matrix->member_count;
        made->edge_count = matrix->edge_count;
        made->heartbeat_limit_s = matrix->heartbeat_limit_ms / 1e3;
        made->finding_count = diagnosis_make(matrix, found, begins_s);
        for (size_t i = 0; i < made->finding_count; i++) take_finding(answer, &found[i], &made->findings[i]);
        for (size_t i = 0; i < made->edge_count; i++) take_edge(&matrix->edges[i], &made->edges[i]);
        for (size_t i = 0; i < made->member_count; i++) {
            take_member(&matrix->members[i], &made->members[i]);
            made->members[i].begins_s = begins_s[i];
        }
    }
    free(begins_s);
    if (good) return made;
    pccl_ext_diagnosis_free(made);
    return NULL;
}

static pcclResult_t finish(struct answer *answer, pcclResult_t code, struct pccl_diagnosis **out) {
    if (code == pcclSuccess && (*out = make(answer)) == NULL)
        code = detail_fail(pcclInternalError, "the system refused memory for the diagnosis");
    free(answer);
    return code;
}

pcclResult_t pccl_ext_diagnose(const pcclComm_t *comm, uint32_t limit_ms, struct pccl_diagnosis **out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    struct answer *answer = answer_new();
    if (answer == NULL) return pcclInternalError;
    return finish(answer, ask_own(comm, limit_ms, answer), out);
}

pcclResult_t pccl_ext_diagnose_run(const ccoip_socket_address_t *address, uint32_t limit_ms,
                                   struct pccl_diagnosis **out) {
    struct wire_address master;
    REQUIRE_NOT_NULL(address);
    REQUIRE_NOT_NULL(out);
    if (!api_take_address(address, &master))
        return detail_fail(pcclInvalidArgument, "the address is neither IPv4 nor IPv6");
    struct answer *answer = answer_new();
    if (answer == NULL) return pcclInternalError;
    int error = ask(&master, platform_now_ns() + limit_ms * MS_NS, answer);
    pcclResult_t code =
        error == 0 ? pcclSuccess : detail_fail(pcclMasterConnectionFailed, "no master answers: %s", strerror(-error));
    return finish(answer, code, out);
}

void pccl_ext_diagnosis_free(struct pccl_diagnosis *diagnosis) {
    if (diagnosis == NULL) return;
    free(diagnosis->members);
    free(diagnosis->edges);
    free(diagnosis->findings);
    free(diagnosis);
}
