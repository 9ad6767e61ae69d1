// Asks a master what it does, from outside of its run.
#ifndef PCCL_MASTER_INQUIRY_H
#define PCCL_MASTER_INQUIRY_H

#include <stdint.h>

#include "net/wire_control.h"

// Waits for the answer until `deadline_ns` (monotonic). 0; -ETIMEDOUT, -EPROTO, -ECONNREFUSED or another -errno: there
// is no answer.
int inquiry_ask(const struct wire_address *master, int64_t deadline_ns, enum wire_activity *out);
// What its members have seen of their ops and of each other; `members` and `edges` are the caller's. Likewise.
int inquiry_diagnose(const struct wire_address *master, int64_t deadline_ns, struct wire_matrix *out);

#endif
