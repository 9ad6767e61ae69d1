// Reports the state of a communicator's links: see ext.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/ext.h"
#include "data/telemetry.h"
#include "net/socket.h"

static double seconds(uint64_t us) { return (double)us / 1e6; }

static void take(const struct link_report *from, struct pccl_link *out) {
    const struct gauge *sums = &from->sums;
    *out = (struct pccl_link){
        .rank = from->rank,
        .connected = from->connected,
        .by_memory = from->by_memory,
        .far = from->far,
        .lanes = from->lanes,
        .in_use = from->in_use,
        .shortest_s = seconds(sums->round_trip_us),
        .round_trip_s = seconds(from->smoothed_us),
        .bytes_per_s = from->bytes_per_s,
        .acked_bytes = (double)sums->acked,
        .segments = sums->segments,
        .retransmits = sums->retransmits,
        .busy_s = seconds(sums->busy_us),
        .window_s = seconds(sums->window_us),
        .buffer_s = seconds(sums->buffer_us),
        .limit_bytes_per_s = from->limit_bytes_per_s,
    };
    memcpy(out->uuid.data, from->member.id.bytes, sizeof out->uuid.data);
    memcpy(out->name, from->member.name.chars, sizeof out->name);
    memcpy(out->congestion, from->congestion, sizeof out->congestion);
    socket_address_format(out->address, sizeof out->address, &from->member.address);
    snprintf(out->reason, sizeof out->reason, "%s", pace_reason_text(from->reason));
}

static pcclResult_t make(const pcclComm_t *comm, struct link_report *reports, struct pccl_links *out) {
    size_t count = 0;
    RETURN_IF_FAILED(communicator_links(comm->communicator, reports, WIRE_MAX_MEMBERS, &count));
    out->links = calloc(count + 1, sizeof *out->links);
    if (out->links == NULL) return detail_fail(pcclInternalError, "the system refused memory for the links");
    for (; out->count < count; out->count++) take(&reports[out->count], &out->links[out->count]);
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
        code = make(comm, reports, links);
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
