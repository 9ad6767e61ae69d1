// Many ops in retry mode at once, a few of them in flight: pcclAllReduceMultipleWithRetry. Run by the caller's thread,
// in pieces; not thread-safe. While one is not finished, its communicator counts as having un-awaited ops.
#ifndef PCCL_PEER_RETRY_H
#define PCCL_PEER_RETRY_H

#include <stddef.h>
#include <stdint.h>

#include "peer/ops.h"

struct retry;

// Copies `calls`, whose arguments were checked, and launches the first. At most `max_in_flight` are live at a time;
// equal tags run one after another. Errors are those of ops_launch when not one op could be launched.
pcclResult_t retry_new(struct communicator *communicator, const struct call_args *calls, size_t count,
                       size_t max_in_flight, struct retry **out);
// Goes on until all ops are done (pcclSuccess), or cannot be (any other), or the deadline passes (pcclTimedOut: call
// again). When it ends, none of its ops is live. `info` (may be NULL) is written with success, and with world 1 with
// pcclTooFewPeers.
pcclResult_t retry_wait(struct retry *retry, int64_t deadline_ns, pcclReduceInfo_t *info);
// Frees its own memory and touches nothing else: the peer may be gone, or a parent process's. If it has not ended, the
// peer counts it as un-awaited from then on. NULL is allowed.
void retry_free(struct retry *retry);

#endif
