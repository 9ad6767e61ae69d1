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
    struct conn_out out;   // the question, until it is sent
    bool open;             // the handshake is over
    enum wire_type answer; // what answers the question
    bool may_refuse;       // or REMOVED does
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

static int hear(struct status_query *query, int64_t deadline_ns, struct wire_header *header, const uint8_t **body) {
    int got;
    while ((got = conn_in_frame(&query->in, query->stream, is_answer, header, body)) == -EAGAIN) {
        int error = await(query->stream, EPOLLIN, deadline_ns);
        if (error != 0) return error;
    }
    if (got <= 0) return got == 0 ? conn_in_end(&query->in) : got;
    if (header->type == query->answer) return 0;
    if (header->type != WIRE_REMOVED) return -EPROTO;
    return query->may_refuse ? 0 : -EKEYREJECTED; // the keys are of another run
}

static enum wire_type answer_to(enum wire_type question) {
    switch (question) {
    case WIRE_STATUS: return WIRE_STATUS_IS;
    case WIRE_RUNS: return WIRE_RUNS_ARE;
    case WIRE_REMOVE: return WIRE_REMOVED;
    case WIRE_STACKS: return WIRE_STACKS_ARE;
    default: return WIRE_MATRIX;
    }
}

int status_query_begin(const struct status_question *question, struct status_query **out) {
    struct status_query *query = calloc(1, sizeof *query);
    if (query == NULL) return -ENOMEM;
    query->answer = answer_to(question->type);
    query->may_refuse = question->type == WIRE_STACKS;
    bool near = question->local && transport_dial_local(question->context, &question->master, &query->stream) == 0;
    int error = near ? 0 : transport_dial(question->context, &question->master, &query->stream);
    if (error != 0) {
        free(query);
        return error;
    }
    struct wire_buffer *out_bytes = &query->out.bytes;
    if (question->run.chars[0] != 0) wire_encode_run(out_bytes, (struct wire_header){0}, &question->run);
    wire_encode_bytes(out_bytes, (struct wire_header){0}, question->type, question->body, question->length);
    *out = query;
    return 0;
}

int status_query_wait(struct status_query *query, int64_t deadline_ns, struct wire_header *header,
                      const uint8_t **body) {
    int error = ask(query, deadline_ns);
    return error == 0 ? hear(query, deadline_ns, header, body) : error;
}

void status_query_end(struct status_query *query) {
    if (query == NULL) return;
    wire_buffer_fini(&query->in.bytes);
    wire_buffer_fini(&query->out.bytes);
    transport_free(query->stream);
    free(query);
}
