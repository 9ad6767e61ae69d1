#include "master/master.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/platform.h"
#include "net/conn.h"

// Returns 0 once one of the events is there, or the connection has ended.
static int await(const struct transport *stream, uint32_t events, int64_t deadline_ns) {
    for (;;) {
        int64_t now_ns = platform_now_ns();
        if (now_ns >= deadline_ns) return -ETIMEDOUT;
        if (transport_wait(stream, events, platform_wait_ms(now_ns, deadline_ns))) return 0;
    }
}

struct status_query {
    struct transport *stream;
    struct conn_in in;
    struct conn_out out; // the question, until it is sent
    bool open;           // the handshake is over
};

// Carries the handshake on, and sends what is left of the question.
static int ask(struct status_query *query, int64_t deadline_ns) {
    int error = 0;
    while (!query->open && error == 0) {
        error = transport_step(query->stream);
        query->open = error == 0;
        if (error == -EAGAIN) error = await(query->stream, query->stream->awaits, deadline_ns);
    }
    while (conn_out_waiting(&query->out) > 0 && error == 0) {
        error = await(query->stream, EPOLLOUT, deadline_ns);
        if (error == 0) error = conn_out_flush(&query->out, query->stream);
    }
    return error;
}

static bool is_answer(const struct wire_header *header) {
    return header->type == WIRE_STATUS_IS || header->type == WIRE_MATRIX || header->type == WIRE_RUNS_ARE ||
           header->type == WIRE_REMOVED || header->type == WIRE_STACKS_ARE;
}

// REMOVED says why the master refuses, instead of the stacks.
static bool take_stacks(const struct wire_header *header, const uint8_t *body, struct status_stacks *out) {
    if (header->type == WIRE_REMOVED) return wire_decode_text(body, header->length, &out->why);
    out->length = header->length;
    if (header->length > 0) memcpy(out->chars, body, header->length);
    return true;
}

// An answer of this type, decoded.
static int hear(struct status_query *query, enum wire_type answer, int64_t deadline_ns, void *out) {
    struct wire_header header;
    const uint8_t *body;
    int got;
    while ((got = conn_in_frame(&query->in, query->stream, is_answer, &header, &body)) == -EAGAIN) {
        int error = await(query->stream, EPOLLIN, deadline_ns);
        if (error != 0) return error;
    }
    if (got <= 0) return got == 0 ? conn_in_end(&query->in) : got;
    bool refused = answer == WIRE_STACKS_ARE && header.type == WIRE_REMOVED;
    if (header.type != answer && !refused) // the keys are of another run
        return header.type == WIRE_REMOVED ? -EKEYREJECTED : -EPROTO;
    bool good = answer == WIRE_MATRIX       ? wire_decode_matrix(body, header.length, out)
                : answer == WIRE_RUNS_ARE   ? wire_decode_runs_are(body, header.length, out)
                : answer == WIRE_REMOVED    ? wire_decode_text(body, header.length, out)
                : answer == WIRE_STACKS_ARE ? take_stacks(&header, body, out)
                                            : wire_decode_status_is(body, header.length, out);
    return good ? 0 : -EPROTO;
}

static int dial(struct status_query *query, struct transport_context *context, const struct wire_address *master,
                const struct wire_run *run, bool local) {
    *query = (struct status_query){0};
    bool near = local && transport_dial_local(context, master, &query->stream) == 0;
    int error = near ? 0 : transport_dial(context, master, &query->stream);
    if (error == 0) transport_expect(query->stream, TRANSPORT_MASTER, NULL);
    if (error == 0 && run != NULL && run->chars[0] != 0)
        wire_encode_run(&query->out.bytes, (struct wire_header){0}, run);
    return error;
}

static int carry_on(struct status_query *query, enum wire_type answer, int64_t deadline_ns, void *out) {
    int error = ask(query, deadline_ns);
    return error == 0 ? hear(query, answer, deadline_ns, out) : error;
}

static void end(struct status_query *query) {
    wire_buffer_fini(&query->in.bytes);
    wire_buffer_fini(&query->out.bytes);
    transport_free(query->stream);
}

// Sends the one question of a query, waits for the answer, and ends the query. `error`: of the dial.
static int finish(struct status_query *query, int error, enum wire_type answer, int64_t deadline_ns, void *out) {
    if (error == 0) error = carry_on(query, answer, deadline_ns, out);
    end(query);
    return error;
}

int status_query_ask(struct transport_context *context, const struct wire_address *master, const struct wire_run *run,
                     int64_t deadline_ns, struct wire_status_is *out) {
    struct status_query query;
    int error = dial(&query, context, master, run, false);
    wire_encode_empty(&query.out.bytes, (struct wire_header){0}, WIRE_STATUS);
    return finish(&query, error, WIRE_STATUS_IS, deadline_ns, out);
}

int status_query_runs(struct transport_context *context, const struct wire_address *master, bool local,
                      int64_t deadline_ns, struct wire_runs_are *out) {
    struct status_query query;
    int error = dial(&query, context, master, NULL, local);
    wire_encode_empty(&query.out.bytes, (struct wire_header){0}, WIRE_RUNS);
    return finish(&query, error, WIRE_RUNS_ARE, deadline_ns, out);
}

int status_query_remove(struct transport_context *context, const struct wire_address *master,
                        const struct wire_run *run, const struct wire_remove *remove, int64_t deadline_ns,
                        struct wire_text *out) {
    struct status_query query;
    int error = dial(&query, context, master, run, false);
    wire_encode_remove(&query.out.bytes, (struct wire_header){0}, remove);
    return finish(&query, error, WIRE_REMOVED, deadline_ns, out);
}

int status_query_stacks(struct transport_context *context, const struct wire_address *master,
                        const struct wire_run *run, const struct wire_id *id, int64_t deadline_ns,
                        struct status_stacks *out) {
    struct status_query query;
    int error = dial(&query, context, master, run, false);
    out->why.length = 0;
    out->length = 0;
    wire_encode_bytes(&query.out.bytes, (struct wire_header){0}, WIRE_STACKS, id->bytes, sizeof id->bytes);
    return finish(&query, error, WIRE_STACKS_ARE, deadline_ns, out);
}

int status_query_begin(struct transport_context *context, const struct wire_address *master, const struct wire_run *run,
                       const struct wire_diagnose *proof, bool local, struct status_query **out) {
    struct status_query *query = malloc(sizeof *query);
    int error = query == NULL ? -ENOMEM : dial(query, context, master, run, local);
    if (error != 0) {
        free(query);
        return error;
    }
    if (proof != NULL)
        wire_encode_diagnose(&query->out.bytes, (struct wire_header){0}, proof);
    else
        wire_encode_empty(&query->out.bytes, (struct wire_header){0}, WIRE_DIAGNOSE);
    *out = query;
    return 0;
}

int status_query_wait(struct status_query *query, int64_t deadline_ns, struct wire_matrix *out) {
    return carry_on(query, WIRE_MATRIX, deadline_ns, out);
}

void status_query_end(struct status_query *query) {
    if (query == NULL) return;
    end(query);
    free(query);
}
