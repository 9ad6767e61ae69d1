// Asks a master, and waits for the answer.
#ifndef PCCL_TESTS_ASKING_H
#define PCCL_TESTS_ASKING_H

#include <errno.h>

#include "base/platform.h"
#include "master/master.h"

// Sends a question of this type with this body, and decodes the answer, `answer`, into `out`. 0 or -errno.
static inline int asking(struct transport_context *context, const struct wire_address *master,
                         const struct wire_run *run, int ms, enum wire_type type, const void *body, size_t length,
                         enum wire_type answer, void *out) {
    struct status_question question = {
        .context = context, .master = *master, .type = type, .body = body, .length = length};
    struct status_query *query = NULL;
    struct wire_header header;
    const uint8_t *told;
    if (run != NULL) question.run = *run;
    int error = status_query_begin(&question, &query);
    if (error == 0) error = status_query_wait(query, platform_now_ns() + ms * MS_NS, &header, &told);
    if (error == 0 &&
        (header.type != answer || !(answer == WIRE_REMOVED ? wire_decode_text(told, header.length, out)
                                                           : wire_decode(answer, told, header.length, out))))
        error = -EPROTO;
    status_query_end(query);
    return error;
}

static inline int asking_status(struct transport_context *context, const struct wire_address *master,
                                const struct wire_run *run, int ms, struct wire_status_is *out) {
    return asking(context, master, run, ms, WIRE_STATUS, NULL, 0, WIRE_STATUS_IS, out);
}

#endif
