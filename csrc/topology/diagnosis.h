// Finds the members and links that make the ops of a run slow. Input: statistics of members about their ops and each
// other (MATRIX). Output: findings, each with its place and its evidence. Pure, and robust against any numbers: the
// reports of members are not proven. docs/diagnosis.md says what each kind means and why.
#ifndef PCCL_TOPOLOGY_DIAGNOSIS_H
#define PCCL_TOPOLOGY_DIAGNOSIS_H

#include <stddef.h>
#include <stdint.h>

#include "net/wire_control.h"

// Numbers of pcclDiagnosisKind_t.
enum diagnosis_kind {
    DIAGNOSIS_STRAGGLER = 1, // a member begins ops later than the others
    DIAGNOSIS_SLOW_SENDER,   // what a member sends leaves it slowly, to whomever it goes
    DIAGNOSIS_SLOW_RECEIVER, // what goes to a member is taken slowly, from whomever it comes
    DIAGNOSIS_SLOW_EDGE,     // the way from one member to another one is slow, and other ways of both are not
    DIAGNOSIS_LOSS,          // packets are lost on the way from one member to another one
    DIAGNOSIS_HUNG,          // a member does nothing while the others wait for it in an op
    DIAGNOSIS_KINDS
};

enum { DIAGNOSIS_MOST = 16, DIAGNOSIS_TEXT = 320 };

struct diagnosis_finding {
    enum diagnosis_kind kind;
    uint16_t member; // its place in the list of members; of an edge, the sender
    uint16_t other;  // of an edge, the receiver; else the same as `member`
    double value;    // what was measured of it: seconds for STRAGGLER and HUNG, bytes per second for the slow ones, the
                     // share of segments sent again for LOSS
    double usual;    // the same of the others
    double cost;     // share of the time of an op that is spent on it, 0 to 1
    double confidence; // 0 to 1
    char text[DIAGNOSIS_TEXT];
};

// The findings, the gravest first; at most DIAGNOSIS_MOST. How many. `begins_s` gets, for each member, how many seconds
// later than the earliest one of its group it begins an op, on average, and may be NULL. Scratch memory that is refused
// leaves findings out.
size_t diagnosis_make(const struct wire_matrix *matrix, struct diagnosis_finding out[DIAGNOSIS_MOST], double *begins_s);

#endif
