#include "sim/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPORT_MOST = 256 }; // ops of a REPORT that are named

bool trace_begin(struct pccl_sim *s) {
    struct trace *trace = s->trace;
    trace->failure[0] = 0;
    trace->line_count = 0;
    free(trace->report);
    trace->report = NULL;
    s->tracing = s->config.trace_lines > 0 || s->config.trace_fd >= 0;
    free(trace->lines);
    trace->lines = NULL;
    return s->config.trace_lines == 0 || (trace->lines = calloc(s->config.trace_lines, TEXT_BYTES)) != NULL;
}

void trace_fini(struct trace *trace) {
    free(trace->lines);
    free(trace->report);
}

void sim_line(struct pccl_sim *s, const char *format, ...) {
    char text[TEXT_BYTES];
    int length = snprintf(text, sizeof text, "%10.3f ms  ", (double)(s->now - SECOND_NS) / (double)MS_NS);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    if (s->config.trace_lines > 0)
        memcpy(s->trace->lines + s->trace->line_count++ % s->config.trace_lines * TEXT_BYTES, text, sizeof text);
    if (s->config.trace_fd < 0) return;
    size_t end = strlen(text);
    text[end < TEXT_BYTES - 1 ? end : TEXT_BYTES - 2] = '\n';
    if (write(s->config.trace_fd, text, end + 1) < 0) s->config.trace_fd = -1; // nobody reads it any more
}

void sim_fail(struct pccl_sim *s, const char *invariant, const char *format, ...) {
    if (s->state != PCCL_SIM_RUNNING) return; // the first one tells
    s->state = PCCL_SIM_FAILED;
    int length = snprintf(s->trace->failure, sizeof s->trace->failure, "seed %ju, %.3f ms: %s: ", s->config.seed,
                          (double)(s->now - SECOND_NS) / (double)MS_NS, invariant);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->trace->failure + length, sizeof s->trace->failure - (size_t)length, format, arguments);
    va_end(arguments);
}

static const char *name_id(char out[32], const struct wire_id *id) {
    uint32_t life;
    int slot = sim_slot(id, &life);
    if (slot < 0)
        snprintf(out, 32, "nobody");
    else
        snprintf(out, 32, "%d.%u", slot + 1, life);
    return out;
}

static void name_epoch(FILE *out, const struct wire_epoch *epoch) {
    char id[32];
    fprintf(out, " %ju, group epoch %ju:", epoch->number, epoch->group_epoch);
    for (uint32_t i = 0; i < epoch->count; i++)
        fprintf(out, "%s %s", i > 0 && epoch->members[i].group != epoch->members[i - 1].group ? " |" : "",
                name_id(id, &epoch->members[i].id));
}

static void name_op(FILE *out, const struct wire_op_name *name, const char *what) {
    fprintf(out, " (%ju, %ju, %u) %s", OP_NAME(*name), what);
}

static void name_contents(const struct pccl_sim *s, FILE *out, const struct wire_header *header, const uint8_t *body) {
    static const char *const verdicts[] = {"?", "commit", "abort", "redo", "mismatch", "whole", "cancel", "deadlock"},
                             *const votes[] = {"?", "update", "pending", "optimize"},
                             *const reasons[] = {"?", "update", "loss", "relink", "order"},
                             *const states[] = {"?", "open", "done", "kept"};
    struct wire_member *members = s->trace->members;
    struct wire_epoch_commit commit = {.epoch.members = members};
    struct wire_candidate candidate = {.epoch.members = members};
    struct wire_op_report ops[REPORT_MOST];
    struct wire_report report = {.ops = ops};
    struct wire_verdict *verdict = &s->trace->verdict;
    struct wire_op_done done;
    struct wire_vote vote;
    struct wire_outcome outcome;
    struct wire_text text;
    struct wire_link_down down;
    char id[32];
    switch (header->type) {
    case WIRE_EPOCH:
        if (!wire_decode_epoch_commit(body, header->length, &commit)) break;
        fprintf(out, " %s", reasons[commit.reason]);
        name_epoch(out, &commit.epoch);
        break;
    case WIRE_CANDIDATE:
        if (!wire_decode_candidate(body, header->length, &candidate)) break;
        fprintf(out, " attempt %u", candidate.attempt);
        name_epoch(out, &candidate.epoch);
        break;
    case WIRE_REPORT:
        if (header->length >= sizeof ops || !wire_decode_report(body, header->length, &report)) break;
        for (uint32_t i = 0; i < report.count; i++) name_op(out, &ops[i].name, states[ops[i].state]);
        break;
    case WIRE_VERDICT:
        if (wire_decode_verdict(body, header->length, verdict)) name_op(out, &verdict->name, verdicts[verdict->kind]);
        break;
    case WIRE_DONE:
        if (wire_decode_op_done(body, header->length, &done)) name_op(out, &done.name, "");
        break;
    case WIRE_VOTE:
        if (wire_decode_vote(body, header->length, &vote)) fprintf(out, " %s", votes[vote.kind]);
        break;
    case WIRE_OUTCOME:
        if (wire_decode_outcome(body, header->length, &outcome))
            fprintf(out, " %s: code %u, value %ju", votes[outcome.kind], outcome.code, outcome.value);
        break;
    case WIRE_LINK_DOWN:
        if (wire_decode_link_down(body, header->length, &down))
            fprintf(out, " to %s%s", name_id(id, &down.id), down.reason == WIRE_LINK_MALFORMED ? ", malformed" : "");
        break;
    case WIRE_EXPELLED:
    case WIRE_REFUSED:
        if (wire_decode_text(body, header->length, &text)) fprintf(out, " %.*s", (int)text.length, text.chars);
        break;
    default: break;
    }
}

const char *trace_frame_name(const struct pccl_sim *s, char out[TEXT_BYTES], const struct wire_header *header,
                             const uint8_t *body) {
    FILE *file = fmemopen(out, TEXT_BYTES, "w");
    out[0] = 0;
    if (file == NULL) return out;
    fprintf(file, "%s [%ju]", wire_type_name(header->type), header->epoch);
    name_contents(s, file, header, body);
    fclose(file);
    out[TEXT_BYTES - 1] = 0;
    return out;
}

void trace_report(struct pccl_sim *s) {
    struct trace *trace = s->trace;
    size_t size;
    FILE *report = open_memstream(&trace->report, &size);
    if (report == NULL) return;
    fprintf(report, "%s\n", trace->failure);
    uint64_t lines = s->config.trace_lines;
    for (uint64_t i = trace->line_count > lines ? trace->line_count - lines : 0; i < trace->line_count; i++)
        if (lines > 0) fprintf(report, "%s\n", trace->lines + i % lines * TEXT_BYTES);
    fclose(report);
}
