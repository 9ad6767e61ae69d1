// Prints the line of a failure, and the trace of a run.
#ifndef PCCL_SIM_TRACE_H
#define PCCL_SIM_TRACE_H

#include "sim/world.h"

struct trace {
    char *lines; // ring of trace_lines * TEXT_BYTES
    uint64_t line_count;
    char *report; // of a run that has failed
    char failure[4 * TEXT_BYTES];
    struct wire_member members[WIRE_MAX_MEMBERS]; // scratch
    struct wire_verdict verdict;
};

// False: memory is refused.
bool trace_begin(struct pccl_sim *s);
void trace_fini(struct trace *trace);
// An invariant does not hold; the first one ends the run.
__attribute__((format(printf, 3, 4))) void sim_fail(struct pccl_sim *s, const char *invariant, const char *format, ...);
__attribute__((format(printf, 2, 3))) void sim_line(struct pccl_sim *s, const char *format, ...);
#define SIM_TRACE(s, ...) \
    do { \
        if ((s)->tracing) sim_line((s), __VA_ARGS__); \
    } while (0)
// Arguments for "%s %d".
#define SLOT_NAME(slot) (slot) >= MASTER ? "master" : "peer", (int)(slot) % MASTER + 1
// Arguments for "(%ju, %ju, %u)".
#define OP_NAME(of) (of).epoch, (of).tag, (of).sequence
const char *trace_frame_name(const struct pccl_sim *s, char out[TEXT_BYTES], const struct wire_header *header,
                             const uint8_t *body);
void trace_report(struct pccl_sim *s); // a failure, with the last lines of the trace

#endif
