// Collectives, as callers post and await them.
#ifndef PCCL_PEER_OPS_H
#define PCCL_PEER_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "peer/communicator.h"

enum { OPS_TOLD_MAX = 1024 };

// Posts an op whose arguments were checked.
pcclResult_t ops_launch(struct communicator *c, const struct call_args *args);
// Waits for an op until `deadline_ns` (monotonic; INT64_MAX = for ever; pcclTimedOut: it goes on) and takes it; adopts
// when it returns pcclRankConnectionLost and the communicator lives. `out` is written on success. An op in retry mode
// adopts whatever it ends with, ends with pcclTooFewPeers when no other member is left, and with
// pcclMasterConnectionFailed when the communicator has died.
pcclResult_t ops_await(struct communicator *c, uint64_t tag, int64_t deadline_ns, struct call_info *out);
// Makes later work in this stream wait for the end of the operation. The host does not wait.
pcclResult_t ops_hold(struct communicator *c, uint64_t tag, void *stream);
// Asks to cancel the op on all members; ops_await tells how it ended. pcclInvalidArgument: there is no such op.
pcclResult_t ops_cancel(struct communicator *c, uint64_t tag);
// Range number `index` of the op of this tag that was to tell its contributors and was taken last; the ids go to
// `ids_out` alone. False: there is none, or no such range; the last OPS_TOLD_MAX tags are known.
bool ops_contributors(struct communicator *c, uint64_t tag, size_t index, struct call_range *range_out,
                      struct wire_id *ids_out, size_t capacity, size_t *ranges_out);
// The members of the own peer group, by joining, as they are now or, `adopted`, in the snapshot; `capacity` of them are
// written.
pcclResult_t ops_members(struct communicator *c, bool adopted, struct wire_id *ids_out, size_t capacity,
                         size_t *count_out);
// Whether a signal or an input of this member has come for an op of this tag that is not posted here.
pcclResult_t ops_posted(struct communicator *c, uint64_t tag, const struct wire_id *member, bool *posted_out);
// Frees what was told.
void ops_forget(struct communicator *c);

#endif
