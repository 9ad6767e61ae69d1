// What the Python package needs beyond pccl.h. Linked into the extension module only; libpccl.so does not export it.
//
// Blocking calls are made interruptible by a wait slice: with one set, every blocking function of pccl.h called on this
// thread (connect, the votes, sync, await, awaiting a master's end) and pccl_multi_wait returns pcclTimedOut when it
// has waited that long. The call itself goes on: made again with the same arguments, from any thread, it waits on for
// the same vote, op, round or connect attempt.
//
// This file is read by the generator of the extension: plain declarations only.
#ifndef PCCL_API_EXT_H
#define PCCL_API_EXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pccl.h"

// Sets the longest wait of a blocking call on this thread, in milliseconds; 0 = unbounded, the default of every thread.
void pccl_ext_set_wait_slice(int milliseconds);

// The entries that the next sync of this thread may not write, one flag for each of the `count` entries of its state;
// read until that call returns. A peer that would have to receive one of them is expelled by the sync, as one whose
// memory is mapped read-only.
void pccl_ext_set_read_only(const bool *flags, size_t count);

// What the last failed call on this thread was about, in words: what was wrong, and what to do. "" when nothing is
// known. Valid until the next call on this thread; never NULL.
const char *pccl_ext_detail(void);

// The port a running master is bound to. pcclInvalidUsage: not run.
pcclResult_t pccl_ext_master_port(pcclMasterInstance_t *master, uint16_t *port_out);

// Sets after how long a silent peer counts as lost, and a silent master for its peers: 100 to 3,600,000 ms, before the
// master runs. pcclInvalidArgument: out of range. pcclInvalidUsage: was run.
pcclResult_t pccl_ext_master_set_heartbeat(pcclMasterInstance_t *master, uint32_t limit_ms);

// The masters that a communicator tries, in this order, and looks for when its master is lost, in place of the one it
// was created with; before connect. pcclInvalidArgument: not 1 to 16, or no address. pcclInvalidUsage: connected.
pcclResult_t pccl_ext_comm_set_masters(pcclComm_t *comm, const ccoip_socket_address_t *addresses, size_t count);
// For how long a communicator waits for a master when its own is lost, 0 to 3,600,000 ms, before connect;
// PCCL_MASTER_RECOVERY_MS, or 60 s, unless set. 0: it is dead at once.
pcclResult_t pccl_ext_comm_set_recovery(pcclComm_t *comm, uint32_t limit_ms);
// The masters of the run, the one at `self` is this; before it runs. The first begins new runs, all take up runs whose
// members come to them.
pcclResult_t pccl_ext_master_set_list(pcclMasterInstance_t *master, const ccoip_socket_address_t *addresses,
                                      size_t count, size_t self);

// The live state in a few words: "idle", "connecting", "registered" (a newcomer that waits to be let in), "accepted
// epoch 5", "dead: expelled: ...". Always ends with a zero, cut to `capacity`.
pcclResult_t pccl_ext_comm_state(const pcclComm_t *comm, char *out, size_t capacity);

// Whether it is connected and part of the run: pcclMasterConnectionFailed when it is dead, pcclInvalidUsage when it
// never connected.
pcclResult_t pccl_ext_comm_alive(const pcclComm_t *comm);

// The id that this communicator has in the run; all 0 before it has connected.
pcclResult_t pccl_ext_comm_uuid(const pcclComm_t *comm, pcclRankUuid_t *out);

// pcclAllReduceMultipleWithRetry in pieces that can be waited for with a slice.
struct pccl_multi;

// Checks all descriptors (errors as there), copies them and launches the first ops. The buffers belong to the ops until
// the wait has ended, or the communicator is destroyed.
pcclResult_t pccl_multi_new(const pcclReduceOpDescriptor_t *descriptors, size_t count, const pcclComm_t *comm,
                            int max_in_flight, struct pccl_multi **multi_out);
// Waits, relaunches and launches further ops until all are done; results as there. pcclTimedOut when the slice has
// passed.
pcclResult_t pccl_multi_wait(struct pccl_multi *multi, pcclReduceInfo_t *reduce_info_out);
// Frees its own memory and touches nothing else: ops still in flight stay un-awaited until the communicator is
// destroyed, and it may come before or after that. NULL is allowed.
void pccl_multi_free(struct pccl_multi *multi);

// Of the round of shared state under way on this communicator, or of the last one that ended; all 0 before the first.
struct pccl_sync_report {
    uint64_t tx_bytes, rx_bytes, rx_leaves; // tx_bytes is known at the end
    // of rx_bytes, what went over links: less where leaves came packed or out of memory
    uint64_t wire_bytes;
    uint64_t missing_bytes;                         // still to be received
    uint32_t donors;                                // that this peer has received from
    bool hashing;                                   // it hashes its own state still
    double seconds, hash_seconds, transfer_seconds; // of the whole call; of its own hash; since the others were there
};
pcclResult_t pccl_ext_sync_report(const pcclComm_t *comm, struct pccl_sync_report *out);

// The content hash of a state: low and high half. The same for the same bytes in the same entries, on every peer and
// machine.
pcclResult_t pccl_ext_state_hash(const pcclSharedState_t *shared_state, uint64_t *low_out, uint64_t *high_out);

// The instruction set the kernels use here, as a name ("portable", "avx2", ...) and the number of its level.
int pccl_ext_cpu_level(const char **name_out);

// Whether the build has LZ4, which packs shared state for slow links.
bool pccl_ext_has_lz4(void);

#endif
