// Asks a master what it does, from outside of its run.
#ifndef PCCL_MASTER_STATUS_QUERY_H
#define PCCL_MASTER_STATUS_QUERY_H

#include <stdint.h>

#include "net/transport.h"
#include "net/wire_control.h"

// Waits for the answer until `deadline_ns` (monotonic). 0; -ETIMEDOUT, -EPROTO, -ECONNREFUSED or another -errno: there
// is no answer.
int status_query_ask(struct transport_context *context, const struct wire_address *master, int64_t deadline_ns,
                     struct wire_status_is *out);

// Asks what the members of its run have seen of their ops and of each other, in pieces.
struct status_query;

// 0 or -errno. Waits for nothing. `proof` is that of a member. NULL: of somebody else, who is told everything by a
// master of the same user on this host, and counts by any other one.
int status_query_begin(struct transport_context *context, const struct wire_address *master,
                       const struct wire_diagnose *proof, struct status_query **out);
// Like status_query_ask; after -ETIMEDOUT you may wait again. The caller owns `members` and `edges` of `out`.
int status_query_wait(struct status_query *query, int64_t deadline_ns, struct wire_matrix *out);
void status_query_end(struct status_query *query); // NULL is allowed

#endif
