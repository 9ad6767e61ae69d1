// pccl: collective communication between peers that may join, die or hang at any time.
//
// A run is one master and any number of peers. The master keeps the membership and gives verdicts; tensor data goes
// straight from peer to peer. Collectives and shared state run inside one peer group; the topology spans all groups.
//
// Rules for all functions:
// - Order of checks: pcclNotInitialized; NULL (pcclInvalidArgument); not connected (pcclInvalidUsage); dead
//   (pcclMasterConnectionFailed); other arguments (pcclInvalidArgument); state (pcclInvalidUsage, pcclPendingAsyncOps,
//   pcclTooFewPeers). pcclCreateCommunicator, pcclConnect and every function with a communicator need pcclInit first;
//   the master functions and pcclGetBuildInfo do not. pcclInternalError and pcclNotInitialized are possible wherever
//   they make sense and are not repeated below, nor is pcclInvalidArgument for NULL.
// - Out parameters are written only on success, if not said otherwise.
// - A vote or an op ends alike on all accepted peers that survive it.
// - A call that needs other peers waits as long as those peers live. Lost peers are not waited for: a closed socket
//   counts at once, silence after the heartbeat limit (5 s by default). What depends on the network alone is bounded.
// - Attributes are a snapshot: they change only when pcclConnect, pcclUpdateTopology or pcclOptimizeTopology succeeds,
//   when an await returns pcclRankConnectionLost, and inside pcclAllReduceMultipleWithRetry.
// - A loss always shows: an op succeeds only if its contributors are exactly the group's members of the snapshot at
//   launch. After a loss, the ops that cannot be completed, or if there are none the next op, return
//   pcclRankConnectionLost on every survivor; launched again, they run among the survivors.
// - A communicator is dead once it was expelled or has lost its master: un-awaited ops end with pcclRankConnectionLost,
//   every call that needs the master returns pcclMasterConnectionFailed at once, all attributes read 1, destroying it
//   works.
// - Send buffers are only read. From launch until await has returned both buffers belong to the op. In place (send ==
//   recv) is normal; any other overlap is pcclInvalidArgument. After an error the input is as it was at launch, in
//   place too, and an out-of-place receive buffer is unspecified.
// - Tensors may lie at a GPU, in memory that the CUDA driver knows: both buffers of an op at the same GPU, those of
//   other members anywhere. An op comes after what its stream has had until the launch, and a sync after what the
//   legacy default stream has had; streams that do not block that one have to be waited for first. When an await has
//   returned, the result is there for all streams. A GPU that fails ends the communicator, with the driver's words
//   (pcclInternalError).
// - Every function may be called from any thread. While pcclUpdateTopology, pcclOptimizeTopology or
//   pcclSynchronizeSharedState runs, another of these or a launch on the same communicator returns pcclInvalidUsage.
// - Without keys (PCCL_KEYS) or a certificate (PCCL_CERT, PCCL_KEY, PCCL_CA) nothing is encrypted, and nothing leaves
//   loopback (127.0.0.0/8 and ::1): pcclConnect refuses a master beyond it, and pcclRunMaster serves there only.
//   PCCL_INSECURE=1 permits every address, with one line of the log at the start of a master. With keys it has no
//   effect.
// - Nothing here ends the process, writes to stdout, or changes signal dispositions.
// - A forked child has none of its parent's connections. With a handle of its parent every call returns
//   pcclInvalidUsage at once, destroying does nothing and returns pcclSuccess; it may create handles of its own.
#ifndef PCCL_H
#define PCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ccoip_inet.h"

#if defined(__GNUC__)
#define PCCL_EXPORT __attribute__((visibility("default")))
#else
#define PCCL_EXPORT
#endif

// Marks parameters that may be NULL; all other pointers must not be.
#define PCCL_NULLABLE

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pcclResult_t {
    pcclSuccess = 0,                     // done, on every survivor alike
    pcclNotInitialized = 1,              // pcclInit was not called
    pcclInternalError = 2,               // the system refused memory, threads or descriptors; nothing was started
    pcclInvalidArgument = 3,             // the call is wrong, or the peers' arguments disagree
    pcclInvalidUsage = 4,                // wrong state for this call
    pcclTooFewPeers = 5,                 // this peer is alone in its group
    pcclMasterConnectionFailed = 6,      // master unreachable, join refused, or dead communicator
    pcclRankConnectionFailed = 7,        // master reached, but no data connection between this peer and the others
    pcclRankConnectionLost = 8,          // the op was aborted because a member was lost: launch it again
    pcclNoSharedStateAvailable = 9,      // no electable state in the group: call again with the same revision
    pcclPendingAsyncOps = 10,            // un-awaited ops forbid this call
    pcclUpdateTopologyFailed = 11,       // the vote passed, but the old epoch stands: call again
    pcclTopologyOptimizationFailed = 12, // the vote passed, but the old order stands: call again
    // the caller's own bound on the wait ran out; the call goes on, repeat it to wait on
    pcclTimedOut = 13,
    pcclCancelled = 14, // a member cancelled the operation, and it ended so on all members
    pcclLeft = 15,      // this peer has left the run, as it had announced (pccl_ext_comm_leave)
    // of the Python package; no function of C returns them
    pcclStateDiffers = 16, // members that should hold the same state hold different bytes
    pcclStateLost = 17     // more members were lost than snapshots bear, so no state can be restored
} pcclResult_t;

typedef enum pcclDataType_t {
    pcclUint8 = 0,
    pcclInt8 = 1,
    pcclInt16 = 2,
    pcclUint16 = 3,
    pcclUint32 = 4,
    pcclInt32 = 5,
    pcclUint64 = 6,
    pcclInt64 = 7,
    pcclFloat16 = 8,
    pcclBFloat16 = 9,
    pcclFloat = 10,
    pcclDouble = 11,
    pcclBool = 12 // one byte per element: 0 or 1; where two or more are reduced, any other byte counts as 1
} pcclDataType_t;

typedef enum pcclDeviceType_t { pcclDeviceCpu = 0, pcclDeviceCuda = 1 } pcclDeviceType_t;

// Integers wrap; pcclAvg divides the sum by the number of contributors (truncating toward zero for integers); pcclMax
// and pcclMin of floats give NaN if any input is NaN, and -0 is less than +0. float16 and bfloat16 are computed in
// float. Of pcclBool, pcclSum and pcclMax are the logical or, pcclProd and pcclMin the logical and, and pcclAvg is
// refused. pcclBand, pcclBor and pcclBxor are bitwise and, or, exclusive or of integers, and logical ones of pcclBool;
// floats are refused.
typedef enum pcclRedOp_t {
    pcclSum = 0,
    pcclAvg = 1,
    pcclProd = 2,
    pcclMax = 3,
    pcclMin = 4,
    pcclBand = 5,
    pcclBor = 6,
    pcclBxor = 7
} pcclRedOp_t;

typedef enum pcclAttribute_t {
    PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE = 1,             // accepted peers in the run
    PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE = 2,         // accepted peers in the own group
    PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS = 3,      // groups that have a peer
    PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE = 4, // size of the largest group
    // The place of this peer among the members of its group, in the order in which they joined: 0 to the group's size -
    // 1, another one on each. The order of members stays, so a rank becomes smaller when a member with a smaller one is
    // lost.
    PCCL_ATTRIBUTE_PEER_GROUP_RANK = 5
} pcclAttribute_t;

typedef enum pcclSharedStateSyncStrategy_t {
    PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR = 0, // the most popular content is taken over by all
    PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY = 1,    // take what the others have, never offer the own content
    PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY = 2        // offer the own content, never take another
} pcclSharedStateSyncStrategy_t;

// Accepted, never needed, never checked.
typedef enum pcclDistributionHint_t {
    pcclDistributionNone = 0,
    pcclDistributionNormal = 1,
    pcclDistributionUniform = 2
} pcclDistributionHint_t;

typedef enum pcclQuantizationAlgorithm_t {
    pcclQuantNone = 0,
    pcclQuantMinMax = 1,
    pcclQuantZeroPointScale = 2,
    // With one fp32 scale for each block of elements, and codes of 8 or 4 bits; of float, float16 and bfloat16.
    // quantized_datatype is ignored. A value is a code times the scale: -127 to 127 (scale: largest magnitude / 127),
    // or -7 to 7 (/ 7), or 0, +-2^-6, +-2^-5, ..., +-2^0 (largest magnitude). A block that holds NaN or infinity comes
    // back as all NaN, the same on all members.
    pcclQuantBlockInt8 = 3,
    pcclQuantBlockInt4 = 4,
    pcclQuantBlockE3M0 = 5
} pcclQuantizationAlgorithm_t;

typedef struct pcclComm_t pcclComm_t;
typedef struct pcclRankInfo_t pcclRankInfo_t;
typedef struct pcclMasterInstanceState_t pcclMasterInstance_t;

typedef struct pcclCommCreateParams_t {
    ccoip_socket_address_t master_address;
    uint32_t peer_group;               // peers of the same number form one group
    uint32_t p2p_connection_pool_size; // lanes to each ring neighbour; 0 = the library decides, above 256 = 256
} pcclCommCreateParams_t;

typedef struct pcclReduceInfo_t {
    uint32_t local_world_size; // number of contributors, the divisor of pcclAvg
    uint64_t tx_bytes;         // element bytes this peer sent, without frame headers
    uint64_t rx_bytes;         // element bytes this peer received
} pcclReduceInfo_t;

typedef struct pcclReduceOperandDescriptor_t {
    pcclDataType_t datatype;
    pcclDistributionHint_t distribution_hint;
} pcclReduceOperandDescriptor_t;

// With pcclQuantNone and pcclQuantBlock*, quantized_datatype is ignored. Otherwise: source float16, bfloat16, float or
// double; quantised uint8, int8, uint16, int16 and, for pcclQuantMinMax, uint32 and uint64.
typedef struct pcclQuantizationOptions_t {
    pcclDataType_t quantized_datatype;
    pcclQuantizationAlgorithm_t algorithm;
} pcclQuantizationOptions_t;

// All members of the group must give the same count, op, data type and quantisation for a tag; else all get
// pcclInvalidArgument from the await, and the log names both sides.
typedef struct pcclReduceDescriptor_t {
    size_t count; // elements; 0 is allowed
    pcclRedOp_t op;
    uint64_t tag; // names the op among the live ones of the group
    pcclReduceOperandDescriptor_t src_descriptor;
    pcclQuantizationOptions_t quantization_options;
} pcclReduceDescriptor_t;

typedef struct pcclReduceSingleDescriptor_t {
    void *sendbuf; // only read; == recvbuf: in place
    void *recvbuf;
    pcclReduceDescriptor_t descriptor;
} pcclReduceOpDescriptor_t;

// Names a launched op by its tag alone.
typedef struct pcclAsyncReduceOp_t {
    pcclComm_t *comm;
    uint64_t tag;
} pcclAsyncReduceOp_t;

// How pcclAllReduceEx and pcclAwaitAsyncReduceEx go about it. Fields added later come at the end and count as 0 when
// `size` ends before.
typedef struct pcclReduceOptions_t {
    size_t size;         // sizeof(pcclReduceOptions_t)
    bool retry;          // go on without members that are lost
    bool launch_only;    // return as soon as the op is launched
    uint64_t timeout_ms; // how long to wait at most, 0 = as long as the others live
    // pcclQuantBlock* only, else 0: how many elements share a scale, a power of two from 32 to 4096; 0 = 256. All
    // members give the same.
    uint32_t block;
    // pcclQuantBlock* only: a value is rounded up or down at random, so that it is right on average, in place of to the
    // nearest. The random numbers are a function of `seed` and the element's index, nothing else. With one seed on all
    // members, or in all ops, the errors of the same element are alike and add up: give each member and op its own.
    bool stochastic;
    uint64_t seed;
    // pcclQuantBlock* with pcclSum or pcclAvg only: error feedback. What is reduced is the input + residual_in (NULL:
    // zeros), and residual_out gets what quantisation took away from it. Both have `count` floats, whatever the data
    // type, at the device of the tensors, and belong to the op until it has been awaited. residual_out overlaps none of
    // the other buffers, residual_in may only overlap sendbuf where that is not recvbuf. residual_in is never written;
    // after an error residual_out is unspecified, but in retry mode it holds what belongs to the ranges with
    // contributors. So a caller gives residual_out as the residual_in of its next op, or after an error the same
    // residual_in again. Nothing is lost: over the contributors of a range, the inputs + residual_in add up to the
    // result + residual_out (pcclAvg: the number of contributors times the result + residual_out), but for the rounding
    // of float. The member that owns a part of the tensor keeps what was taken away from the sum. Where the result is
    // not finite, residual_out is 0 for the elements concerned; with a member that dies its residual is lost. Each
    // member chooses for itself.
    const float *PCCL_NULLABLE residual_in;
    float *PCCL_NULLABLE residual_out;
    // Tensors on a GPU only: the CUstream (or cudaStream_t) whose work so far the operation comes after; NULL = the
    // legacy default stream.
    void *PCCL_NULLABLE stream;
} pcclReduceOptions_t;

// A peer in a run; every connection makes a new one.
typedef struct pcclRankUuid_t {
    uint8_t data[16];
} pcclRankUuid_t;

// Some members of the run's peer group, by rank.
typedef struct pcclGroup_t pcclGroup_t;

typedef enum pcclCollectiveKind_t {
    pcclCollectiveAllReduce = 0, // count elements in, as many out on all
    pcclCollectiveBroadcast = 1, // count elements of the root's send buffer (or, if NULL, its receive buffer), to the
                                 // receive buffers of all others
    pcclCollectiveReduce = 2,    // count elements in, as many out at the root
    pcclCollectiveAllGather = 3, // the member's part in; all parts, by rank, out
    pcclCollectiveReduceScatter = 4, // all parts, by rank, in; the reduction of the member's part out
    pcclCollectiveGather = 5,        // the member's part in; all parts, by rank, out at the root
    pcclCollectiveScatter = 6,       // all parts, by rank, in at the root; the member's part out
    pcclCollectiveAllToAll = 7,      // a part for each member, by rank, in; one from each out; all have the same size
    pcclCollectiveAllToAllV = 8,     // the same with parts of any sizes
    pcclCollectiveBarrier = 9,       // nothing
    pcclCollectiveSend = 10          // a group of two: count elements of the root's send buffer to the other's receive
                                     // buffer
} pcclCollectiveKind_t;

// Counts are in elements. A part has `count` elements, unless its size is told by rank: in recv_counts for all-gather,
// gather and reduce-scatter, in send_counts for scatter, in both for pcclCollectiveAllToAllV. All members tell the
// same, but for the last, where each tells its own. Fields added later come at the end and count as 0 when `size` ends
// before.
typedef struct pcclCollective_t {
    size_t size; // sizeof(pcclCollective_t)
    pcclCollectiveKind_t kind;
    pcclDataType_t datatype;
    pcclRedOp_t op; // of what reduces
    size_t root;    // rank in the group, of broadcast, reduce, gather, scatter, send
    const pcclGroup_t *group;
    uint64_t tag; // names the op among the live ones of the peer group
    // Only read. == recvbuf in an all-reduce or reduce: in place. In an all-gather it may be the member's own place in
    // recvbuf. Any other overlap is pcclInvalidArgument. May be NULL where nothing is read.
    const void *sendbuf;
    void *recvbuf; // may be NULL where nothing is written
    size_t count;
    const size_t *PCCL_NULLABLE send_counts;
    const size_t *PCCL_NULLABLE recv_counts;
    bool survivors;             // go on without members that are lost, where that means something
    void *PCCL_NULLABLE stream; // as in pcclReduceOptions_t
    bool background;            // of this member: it sends only while its other large operations have nothing to send
    // Makes what goes on with `survivors` an op of all members of the peer group. `group` is these, as this member
    // knows them: one that has heard of a loss and one that has not meet in the op.
    uint64_t everyone; // 0 or 1; of 8 bytes, so that a struct of before ends in front of it
} pcclCollective_t;

// A range of a result whose elements have the same contributors.
typedef struct pcclReduceRange_t {
    uint64_t begin, end; // elements
    size_t contributors; // the divisor of pcclAvg; 0: the range was not reduced
    size_t ranges;       // that the op has
} pcclReduceRange_t;

typedef struct pcclTensorInfo_t {
    const char *name; // unique in the shared state
    void *data;
    size_t count; // elements
    pcclDataType_t datatype;
    pcclDeviceType_t device_type;
    bool allow_content_inequality; // part of the state, but neither compared nor transferred
} pcclTensorInfo_t;

typedef struct pcclSharedState_t {
    uint64_t revision; // written back by a successful sync
    size_t count;
    pcclTensorInfo_t *infos;
} pcclSharedState_t;

typedef struct pcclSharedStateSyncInfo_t {
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclSharedStateSyncInfo_t;

typedef struct pcclBuildInfo_t {
    bool has_cuda_support; // tensors at a GPU are usable here and now
} pcclBuildInfo_t;

// Initialises the library. Idempotent. Does not wait.
PCCL_EXPORT pcclResult_t pcclInit(void);

// Tells what this build can do on this machine. Does not wait; needs no pcclInit. Loads the CUDA driver, where there is
// one, and initialises it: CUDA does not work in children that are forked afterwards.
PCCL_EXPORT pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *info);

// Creates a communicator from a copy of `params`, without touching the network. The caller destroys it.
PCCL_EXPORT pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out);

// Joins the run. On success this peer is accepted and all four attributes are valid. The first peer of a run is
// accepted at once; a newcomer waits until all accepted peers are in pcclUpdateTopology. pcclInvalidUsage: connected
// already, dead, or of another wire version than the master. pcclMasterConnectionFailed: master unreachable, or the
// join was refused. pcclRankConnectionFailed: the other peers could not be reached. After the last two it may be called
// again. pcclInvalidArgument: PCCL_KEYS cannot be used, or there are no keys and a master is beyond loopback without
// PCCL_INSECURE=1; the log says so.
PCCL_EXPORT pcclResult_t pcclConnect(pcclComm_t *comm);

// Leaves the run and frees the communicator, always and in bounded time; where an op at a GPU has yet to begin, after
// what the caller had queued in its stream, which is waited for. The others learn of it at once. Calls blocked
// in other threads return first: an error, but for awaits of ops that have ended well. Un-awaited ops are cancelled;
// their buffers are not touched once this has returned.
PCCL_EXPORT pcclResult_t pcclDestroyCommunicator(pcclComm_t *comm);

// Reads one number of the snapshot. Does not wait.
// pcclInvalidArgument: unknown attribute. pcclInvalidUsage: never connected. A dead communicator reads 1, so 1 does not
// tell that this peer is alone. Only PCCL_ATTRIBUTE_PEER_GROUP_RANK fails: pcclMasterConnectionFailed for a dead
// communicator, and pcclRankConnectionLost where the rank of the snapshot is not known, because members died together
// with a master: the next op or update tells of them, as of any loss.
PCCL_EXPORT pcclResult_t pcclGetAttribute(const pcclComm_t *comm, pcclAttribute_t attribute, int *attribute_out);

// Accepts all newcomers that wait and can be reached; a barrier of all accepted peers of all groups, for whom it waits.
// Newcomers that cannot be reached, or die meanwhile, are left out, without harm to this call.
// pcclInvalidUsage: not connected, or another topology or sync call runs. pcclPendingAsyncOps.
// pcclRankConnectionFailed: this peer cannot reach the others. pcclUpdateTopologyFailed: no new epoch came of it.
PCCL_EXPORT pcclResult_t pcclUpdateTopology(pcclComm_t *comm);

// Tells whether a newcomer of any group waits: the same answer on all accepted peers of all groups, for whom it waits.
// Admits nobody; un-awaited ops are allowed, and ops may run beside it. pcclInvalidUsage: not connected.
PCCL_EXPORT pcclResult_t pcclArePeersPending(const pcclComm_t *comm, bool *pending_out);

// Measures the links not yet known and takes the ring order whose slowest link is fastest, in every group. A barrier of
// all accepted peers of all groups, for whom it waits. Never required. pcclInvalidUsage: not connected, fewer than two
// peers in the run, or another topology or sync call runs. pcclPendingAsyncOps. pcclRankConnectionFailed.
// pcclTopologyOptimizationFailed: the old order stands.
PCCL_EXPORT pcclResult_t pcclOptimizeTopology(const pcclComm_t *comm);

// pcclAllReduceAsync and pcclAwaitAsyncReduce in one: the errors of both, waits for the members of the group.
PCCL_EXPORT pcclResult_t pcclAllReduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *comm, pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

// Launches an op; does not wait. `descriptor` is copied. Both buffers belong to the op until it has been awaited or the
// communicator destroyed. Losses are reported by the await. Buffers may be NULL only when count is 0.
// pcclInvalidArgument: unknown enumerators, a combination of types that is not supported, overlapping buffers, or a tag
// that is live (the live op goes on). pcclInvalidUsage: not connected, a topology or sync call runs, or the stream of
// the op captures a CUDA graph or is none of the GPU. pcclTooFewPeers.
PCCL_EXPORT pcclResult_t pcclAllReduceAsync(const void *sendbuf, void *recvbuf,
                                            const pcclReduceDescriptor_t *descriptor, const pcclComm_t *comm,
                                            pcclAsyncReduceOp_t *reduce_handle_out);

// Waits for the members of the group until the op has ended. Then the result is in its receive buffer on all of them,
// or its input is as at launch, and the tag is free. Each op is awaited once. pcclInvalidArgument: no un-awaited op of
// this handle, or the members' arguments disagree. pcclRankConnectionLost.
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                              pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

// Lets a stream wait for an op whose tensors lie at a GPU, and not the host: what is put into it afterwards (a CUstream
// of that GPU; NULL = the legacy default stream) runs when the op has ended. After a failure it runs too, and what it
// finds in the tensors is unspecified. The op is to be awaited nevertheless, which tells how it has ended. Until then
// the program must make no call that waits for the whole GPU, cuMemFree among them: the op may need the driver, too.
// pcclInvalidArgument: no un-awaited op of this handle. pcclInvalidUsage: the tensors lie at no GPU, its driver
// cannot do so, or the stream captures a CUDA graph.
PCCL_EXPORT pcclResult_t pcclStreamWaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                                   void *PCCL_NULLABLE stream);

// Asks to end the operation in flight with this tag on all members of the group, and returns at once. Await the
// operation afterwards: it ends on all members alike, with pcclCancelled or with success. Members that have not called
// it yet get pcclCancelled when they do. After pcclCancelled the input is as at launch and the tag is free. Other
// operations in flight in the group are redone. pcclInvalidArgument: no un-awaited operation has this tag.
PCCL_EXPORT pcclResult_t pcclCancel(const pcclComm_t *comm, uint64_t tag);

// Reduces all ops in retry mode (pcclAllReduceEx): what is not complete when a member is lost is redone among the
// survivors. At most `max_in_flight` run at once; equal tags run one after another. All descriptors are checked before
// any launch. The info adds up the bytes of all ops and gives the size of the group at the end. Waits for the group.
// pcclQuantBlock* has its default options: blocks of 256 elements, rounded to the nearest, no error feedback.
// pcclInvalidArgument: count 0, max_in_flight < 1, or a bad descriptor. pcclInvalidUsage: as pcclAllReduceAsync.
// pcclTooFewPeers: alone before or after; info is then written with local_world_size 1, and in-place buffers hold,
// range by range, the result or the input. pcclMasterConnectionFailed: the communicator died.
PCCL_EXPORT pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                                        const pcclComm_t *comm,
                                                        pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out,
                                                        int max_in_flight);

// pcclAllReduce with options; NULL: none. In retry mode a loss does not end the op: what all survivors had complete
// stays as it is, the rest is redone among the survivors, each range the reduction of exactly its contributors
// (pcclGetReduceContributors). Large ops are divided into up to 64 segments, of which a loss costs 6 at most. Members
// in retry mode and others may meet in one op; it is then not divided. Success in retry mode adopts the epoch that the
// op was ended in. After an error, ranges with contributors hold the result, all others, in place, the input.
// pcclTooFewPeers: no other member was left to end it with. pcclMasterConnectionFailed: the communicator died.
// pcclTimedOut: the op goes on: await it by {comm, tag}. pcclInvalidArgument: options without a size.
PCCL_EXPORT pcclResult_t pcclAllReduceEx(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                                         const pcclComm_t *comm, const pcclReduceOptions_t *PCCL_NULLABLE options,
                                         pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

// pcclAwaitAsyncReduce that waits for `timeout_ms` at most (the options' only field of use here). Takes any op in
// flight, and ends it as pcclAllReduceEx does. pcclTimedOut: the op goes on, and is to be awaited again.
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduceEx(const pcclAsyncReduceOp_t *reduce_handle,
                                                const pcclReduceOptions_t *PCCL_NULLABLE options,
                                                pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

// The members of the run's peer group, in the order in which they joined, as they are now: newer than the snapshot,
// where a loss has not shown yet. Up to `capacity` are written to `uuids_out`, which may be NULL when it is 0;
// `count_out` is how many there are. Does not wait. pcclInvalidUsage: not connected. pcclMasterConnectionFailed.
PCCL_EXPORT pcclResult_t pcclGetMembers(const pcclComm_t *comm, pcclRankUuid_t *PCCL_NULLABLE uuids_out,
                                        size_t capacity, size_t *count_out);

// Makes a group of these members, whose ranks are their places in the list. Nobody is told; all members make theirs
// with the same list. A member that is lost stays in the list. The caller destroys it, before its communicator.
// pcclInvalidArgument: no members, too many, one twice, or not this peer.
PCCL_EXPORT pcclResult_t pcclCreateGroup(const pcclComm_t *comm, const pcclRankUuid_t *members, size_t count,
                                         pcclGroup_t **group_out);

// Frees a group; ops that were launched with it go on.
PCCL_EXPORT pcclResult_t pcclDestroyGroup(pcclGroup_t *group);

// Launches a collective over a group; does not wait. The struct and its counts are copied. Its members all launch it
// with the same tag, kind, group, data type, op, root and counts, else all get pcclInvalidArgument from the await, as
// of pcclAllReduceAsync. Await it by {comm, tag}, with pcclAwaitAsyncReduce or pcclAwaitAsyncReduceEx. What is
// committed is committed on all members that live. A tag is of one group: another one must not use it as well, even at
// another time. A loss:
// - With `survivors`, all-reduce, barrier, and broadcast and reduce whose root lives, go on among those that live.
// - All others, and any collective without `survivors`, end with pcclRankConnectionLost on all members that live if a
//   member of the group was lost, at any time; the detail names the ranks. No result lacks a part.
// After an error the input is as it was at launch, and a receive buffer that is not the input is unspecified.
// pcclInvalidArgument: unknown enumerators, NULL or overlapping buffers, a tag that is live. pcclInvalidUsage: not
// connected, or a topology or sync call runs.
PCCL_EXPORT pcclResult_t pcclCollectiveAsync(const pcclCollective_t *collective, const pcclComm_t *comm,
                                             pcclAsyncReduceOp_t *handle_out);

// pcclCollectiveAsync and pcclAwaitAsyncReduce in one. `info_out`: the contributors are those that took part.
PCCL_EXPORT pcclResult_t pcclCollective(const pcclCollective_t *collective, const pcclComm_t *comm,
                                        pcclReduceInfo_t *PCCL_NULLABLE info_out);

// Returns the contributors of a part of a result: range number `index` of the operation of `tag` that has ended last,
// among those of pcclAllReduceEx and pcclAllReduceMultipleWithRetry, also if it failed. Ranges are in order and cover
// the tensor; neighbours differ. Writes up to `capacity` ids to `uuids_out`, which may be NULL if capacity is 0. Known
// for the last 1,024 tags. Does not wait. Returns pcclInvalidArgument if there is no such operation or range.
PCCL_EXPORT pcclResult_t pcclGetReduceContributors(const pcclComm_t *comm, uint64_t tag, size_t index,
                                                   pcclReduceRange_t *range_out,
                                                   pcclRankUuid_t *PCCL_NULLABLE uuids_out, size_t capacity);

// Brings the content of the shared state to the same bytes on all members of the group, for whom it waits, and writes
// back `revision`. After an error `revision` is as passed; entries that were to be received are unspecified, all others
// unchanged. pcclInvalidArgument: no entries, a NULL or doubled name, NULL data with count > 0, an unknown enumerator,
// or a device entry without device support. pcclInvalidUsage: not connected, another topology or sync call runs, or
// expelled by this very sync. pcclNoSharedStateAvailable. pcclPendingAsyncOps.
PCCL_EXPORT pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *comm, pcclSharedState_t *shared_state,
                                                    pcclSharedStateSyncStrategy_t strategy,
                                                    pcclSharedStateSyncInfo_t *PCCL_NULLABLE sync_info_out);

// Says that the program has written all entries of the state anew. Tensors that a sync was receiving when it failed may
// hold half of another state: they are never given to others until a sync of them succeeds, or this is called. The
// library knows their memory, so call it also for new tensors that may lie where such ones were freed. Any thread, but
// not while a sync of the state runs. pcclInvalidArgument: as pcclSynchronizeSharedState.
PCCL_EXPORT pcclResult_t pcclMarkSharedStateRestored(const pcclSharedState_t *shared_state);

// Creates a master for this address, without touching the network. The caller destroys it.
PCCL_EXPORT pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address, pcclMasterInstance_t **master_out);

// Binds, listens and serves in a thread of its own; returns at once. A master runs once. Without keys and without
// PCCL_INSECURE=1, loopback takes the place of a wildcard (0.0.0.0, ::), as a line of the log says.
// pcclInvalidUsage: the address is in use, or this master was run before. pcclInvalidArgument: PCCL_KEYS cannot be
// used; or the address is beyond loopback and no wildcard, without keys and without PCCL_INSECURE=1: the log says so.
PCCL_EXPORT pcclResult_t pcclRunMaster(pcclMasterInstance_t *master);

// Asks a master to stop and to end the run: peers that know no other master are dead at once. Does not wait, may be
// repeated, and may be called in a signal handler. pcclInvalidUsage: never run.
PCCL_EXPORT pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master);

// Waits until the master has stopped, that is for pcclInterruptMaster or pcclDetachMaster. May be repeated.
// pcclInvalidUsage: never run.
PCCL_EXPORT pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master);

// Stops the master if it runs, and frees it. Once this has returned, the port can be bound again.
PCCL_EXPORT pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *master);

// Asks a master to stop without ending the run, as if its process had died: the peers look for another master of their
// list, or wait for one to come back at this address. Otherwise as pcclInterruptMaster; of the two, the call that comes
// first counts.
PCCL_EXPORT pcclResult_t pcclDetachMaster(pcclMasterInstance_t *master);

#include "pccl_diagnosis.h"

#ifdef __cplusplus
}
#endif

#endif
