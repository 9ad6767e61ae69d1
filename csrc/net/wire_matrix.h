// The answer to DIAGNOSE. See net/wire_control.h.
#ifndef PCCL_NET_WIRE_MATRIX_H
#define PCCL_NET_WIRE_MATRIX_H

#include "net/wire_loss.h"
#include "net/wire_seen.h"
#include "pccl.h"

enum wire_joining {
    WIRE_JOINING_COPIES,   // the state, beside the members' steps
    WIRE_JOINING_WAITS,    // for the members to admit it
    WIRE_JOINING_LINKS,    // it makes its links to the members
    WIRE_JOINING_RECEIVES, // it is a member, and its first sync brings it the state
    WIRE_JOINING_SPARE     // it waits for a member to go
};

// The answer of pcclDiagnose, with the lists that its pointers lead to once it is decoded.
struct wire_matrix {
    pcclDiagnosis_t told; // first: pcclDiagnosisFree frees the whole
    uint16_t version;     // of the master; another one: decodes with that alone
    pcclDiagnosisMember_t members[WIRE_MAX_MEMBERS];
    pcclDiagnosisEdge_t edges[WIRE_MAX_EDGES]; // their `reason` is not sent,
    uint8_t reasons[WIRE_MAX_EDGES];           // but enum pace_reason, of a later version any number
    pcclDiagnosisNumber_t numbers[WIRE_MAX_NUMBERS_TOLD];
    pcclDiagnosisJoiner_t joiners[WIRE_MAX_JOINERS];
    pcclDiagnosisDeparture_t departures[WIRE_MAX_DEPARTURES];
};

void wire_visit_matrix(struct cursor *c, struct wire_matrix *matrix);
// Visits a number of a member's program.
void wire_visit_program_number(struct cursor *c, char *name, double *value);

#endif
