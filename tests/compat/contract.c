/* Every name and number of the contract, as a program for PCCL v1.0.0 sees them. Valid C99 and C++20. */
#include <ccoip.h>
#include <ccoip_inet.h>
#include <pccl.h>
#include <stddef.h>
#include <stdio.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
/* A negative array size where the condition does not hold. */
#define HOLDS(condition) typedef char JOIN(holds_, __LINE__)[(condition) ? 1 : -1]
#define AT(type, field, offset) HOLDS(offsetof(type, field) == (offset))

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-local-typedefs"
#endif

HOLDS(CCOIP_PROTOCOL_PORT_MASTER == 48148);
HOLDS(CCOIP_PROTOCOL_PORT_SHARED_STATE == 48149);
HOLDS(CCOIP_PROTOCOL_PORT_P2P == 48150);
HOLDS(CCOIP_PROTOCOL_PORT_BANDWIDTH_BENCHMARK == 48151);

HOLDS(inetIPv4 == 0);
HOLDS(inetIPv6 == 1);

HOLDS(pcclSuccess == 0);
HOLDS(pcclNotInitialized == 1);
HOLDS(pcclInternalError == 2);
HOLDS(pcclInvalidArgument == 3);
HOLDS(pcclInvalidUsage == 4);
HOLDS(pcclTooFewPeers == 5);
HOLDS(pcclMasterConnectionFailed == 6);
HOLDS(pcclRankConnectionFailed == 7);
HOLDS(pcclRankConnectionLost == 8);
HOLDS(pcclNoSharedStateAvailable == 9);
HOLDS(pcclPendingAsyncOps == 10);
HOLDS(pcclUpdateTopologyFailed == 11);
HOLDS(pcclTopologyOptimizationFailed == 12);

HOLDS(pcclUint8 == 0);
HOLDS(pcclInt8 == 1);
HOLDS(pcclInt16 == 2);
HOLDS(pcclUint16 == 3);
HOLDS(pcclUint32 == 4);
HOLDS(pcclInt32 == 5);
HOLDS(pcclUint64 == 6);
HOLDS(pcclInt64 == 7);
HOLDS(pcclFloat16 == 8);
HOLDS(pcclBFloat16 == 9);
HOLDS(pcclFloat == 10);
HOLDS(pcclDouble == 11);
HOLDS(pcclBool == 12);

HOLDS(pcclDeviceCpu == 0);
HOLDS(pcclDeviceCuda == 1);

HOLDS(pcclSum == 0);
HOLDS(pcclAvg == 1);
HOLDS(pcclProd == 2);
HOLDS(pcclMax == 3);
HOLDS(pcclMin == 4);
HOLDS(pcclBand == 5);
HOLDS(pcclBor == 6);
HOLDS(pcclBxor == 7);

HOLDS(PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE == 1);
HOLDS(PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE == 2);
HOLDS(PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS == 3);
HOLDS(PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE == 4);
HOLDS(PCCL_ATTRIBUTE_PEER_GROUP_RANK == 5);

HOLDS(PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR == 0);
HOLDS(PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY == 1);
HOLDS(PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY == 2);

HOLDS(pcclDistributionNone == 0);
HOLDS(pcclDistributionNormal == 1);
HOLDS(pcclDistributionUniform == 2);

HOLDS(pcclQuantNone == 0);
HOLDS(pcclQuantMinMax == 1);
HOLDS(pcclQuantZeroPointScale == 2);

HOLDS(sizeof(ccoip_ipv4_address_t) == 4);
HOLDS(sizeof(ccoip_ipv6_address_t) == 16);
HOLDS(sizeof(ccoip_inet_address_t) == 24);
AT(ccoip_inet_address_t, protocol, 0);
AT(ccoip_inet_address_t, ipv4, 4);
AT(ccoip_inet_address_t, ipv6, 8);
HOLDS(sizeof(ccoip_socket_address_t) == 28);
AT(ccoip_socket_address_t, inet, 0);
AT(ccoip_socket_address_t, port, 24);
HOLDS(sizeof(pcclCommCreateParams_t) == 36);
AT(pcclCommCreateParams_t, master_address, 0);
AT(pcclCommCreateParams_t, peer_group, 28);
AT(pcclCommCreateParams_t, p2p_connection_pool_size, 32);
HOLDS(sizeof(pcclReduceInfo_t) == 24);
AT(pcclReduceInfo_t, local_world_size, 0);
AT(pcclReduceInfo_t, tx_bytes, 8);
AT(pcclReduceInfo_t, rx_bytes, 16);
HOLDS(sizeof(pcclReduceOperandDescriptor_t) == 8);
AT(pcclReduceOperandDescriptor_t, datatype, 0);
AT(pcclReduceOperandDescriptor_t, distribution_hint, 4);
HOLDS(sizeof(pcclQuantizationOptions_t) == 8);
AT(pcclQuantizationOptions_t, quantized_datatype, 0);
AT(pcclQuantizationOptions_t, algorithm, 4);
HOLDS(sizeof(pcclReduceDescriptor_t) == 40);
AT(pcclReduceDescriptor_t, count, 0);
AT(pcclReduceDescriptor_t, op, 8);
AT(pcclReduceDescriptor_t, tag, 16);
AT(pcclReduceDescriptor_t, src_descriptor, 24);
AT(pcclReduceDescriptor_t, quantization_options, 32);
HOLDS(sizeof(pcclReduceOpDescriptor_t) == 56);
HOLDS(sizeof(struct pcclReduceSingleDescriptor_t) == 56);
AT(pcclReduceOpDescriptor_t, sendbuf, 0);
AT(pcclReduceOpDescriptor_t, recvbuf, 8);
AT(pcclReduceOpDescriptor_t, descriptor, 16);
HOLDS(sizeof(pcclAsyncReduceOp_t) == 16);
AT(pcclAsyncReduceOp_t, comm, 0);
AT(pcclAsyncReduceOp_t, tag, 8);
HOLDS(sizeof(pcclRankUuid_t) == 16);
HOLDS(sizeof(pcclTensorInfo_t) == 40);
AT(pcclTensorInfo_t, name, 0);
AT(pcclTensorInfo_t, data, 8);
AT(pcclTensorInfo_t, count, 16);
AT(pcclTensorInfo_t, datatype, 24);
AT(pcclTensorInfo_t, device_type, 28);
AT(pcclTensorInfo_t, allow_content_inequality, 32);
HOLDS(sizeof(pcclSharedState_t) == 24);
AT(pcclSharedState_t, revision, 0);
AT(pcclSharedState_t, count, 8);
AT(pcclSharedState_t, infos, 16);
HOLDS(sizeof(pcclSharedStateSyncInfo_t) == 16);
AT(pcclSharedStateSyncInfo_t, tx_bytes, 0);
AT(pcclSharedStateSyncInfo_t, rx_bytes, 8);
HOLDS(sizeof(pcclBuildInfo_t) == 1);
AT(pcclBuildInfo_t, has_cuda_support, 0);

/* The functions, assigned to pointers of exactly their type. */
static pcclResult_t (*const init)(void) = pcclInit;
static pcclResult_t (*const build_info)(pcclBuildInfo_t *) = pcclGetBuildInfo;
static pcclResult_t (*const create)(const pcclCommCreateParams_t *, pcclComm_t **) = pcclCreateCommunicator;
static pcclResult_t (*const attribute)(const pcclComm_t *, pcclAttribute_t, int *) = pcclGetAttribute;
static pcclResult_t (*const connect_comm)(pcclComm_t *) = pcclConnect;
static pcclResult_t (*const destroy)(pcclComm_t *) = pcclDestroyCommunicator;
static pcclResult_t (*const update)(pcclComm_t *) = pcclUpdateTopology;
static pcclResult_t (*const pending)(const pcclComm_t *, bool *) = pcclArePeersPending;
static pcclResult_t (*const optimize)(const pcclComm_t *) = pcclOptimizeTopology;
static pcclResult_t (*const reduce)(const void *, void *, const pcclReduceDescriptor_t *, const pcclComm_t *,
                                    pcclReduceInfo_t *) = pcclAllReduce;
static pcclResult_t (*const reduce_async)(const void *, void *, const pcclReduceDescriptor_t *, const pcclComm_t *,
                                          pcclAsyncReduceOp_t *) = pcclAllReduceAsync;
static pcclResult_t (*const await_reduce)(const pcclAsyncReduceOp_t *, pcclReduceInfo_t *) = pcclAwaitAsyncReduce;
static pcclResult_t (*const reduce_multiple)(const pcclReduceOpDescriptor_t *, size_t, const pcclComm_t *,
                                             pcclReduceInfo_t *, int) = pcclAllReduceMultipleWithRetry;
static pcclResult_t (*const sync_state)(const pcclComm_t *, pcclSharedState_t *, pcclSharedStateSyncStrategy_t,
                                        pcclSharedStateSyncInfo_t *) = pcclSynchronizeSharedState;
static pcclResult_t (*const create_master)(ccoip_socket_address_t, pcclMasterInstance_t **) = pcclCreateMaster;
static pcclResult_t (*const run_master)(pcclMasterInstance_t *) = pcclRunMaster;
static pcclResult_t (*const interrupt_master)(pcclMasterInstance_t *) = pcclInterruptMaster;
static pcclResult_t (*const await_master)(pcclMasterInstance_t *) = pcclMasterAwaitTermination;
static pcclResult_t (*const destroy_master)(struct pcclMasterInstanceState_t *) = pcclDestroyMaster;
static pcclResult_t (*const detach_master)(pcclMasterInstance_t *) = pcclDetachMaster;

static int failures;

static void expect(const char *what, int got, int want) {
    if (got != want) {
        printf("%s: got %d, want %d\n", what, got, want);
        failures++;
    }
}

/* The order of checks, as far as it shows without a network. */
static void check_before_connect(void) {
    pcclCommCreateParams_t params = {
        .master_address = {.inet = {.protocol = inetIPv4, .ipv4 = {.data = {127, 0, 0, 1}}, .ipv6 = {.data = {0}}},
                           .port = 1},
        .peer_group = 0,
        .p2p_connection_pool_size = 1000,
    };
    pcclComm_t *comm = NULL;
    expect("create before init", create(&params, &comm), pcclNotInitialized);
    expect("init", init(), pcclSuccess);
    expect("init again", init(), pcclSuccess);
    expect("create without params", create(NULL, &comm), pcclInvalidArgument);
    expect("create without out", create(&params, NULL), pcclInvalidArgument);
    expect("create", create(&params, &comm), pcclSuccess);

    int value = -1;
    bool is_pending = false;
    pcclReduceInfo_t info = {0, 0, 0};
    pcclAsyncReduceOp_t op = {comm, 0};
    pcclSharedStateSyncInfo_t sync_info = {0, 0};
    float number = 1;
    pcclReduceDescriptor_t descriptor = {
        .count = 1,
        .op = pcclSum,
        .tag = 0,
        .src_descriptor = {.datatype = pcclFloat, .distribution_hint = pcclDistributionNone},
        .quantization_options = {.quantized_datatype = pcclUint8, .algorithm = pcclQuantNone},
    };
    pcclReduceOpDescriptor_t whole = {.sendbuf = &number, .recvbuf = &number, .descriptor = descriptor};
    pcclTensorInfo_t tensor = {.name = "a",
                               .data = &number,
                               .count = 1,
                               .datatype = pcclFloat,
                               .device_type = pcclDeviceCpu,
                               .allow_content_inequality = false};
    pcclSharedState_t state = {.revision = 0, .count = 1, .infos = &tensor};

    expect("attribute without comm", attribute(NULL, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &value), pcclInvalidArgument);
    expect("attribute without out", attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, NULL), pcclInvalidArgument);
    expect("attribute", attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &value), pcclInvalidUsage);
    expect("attribute left its out alone", value, -1);
    expect("update", update(comm), pcclInvalidUsage);
    expect("update without comm", update(NULL), pcclInvalidArgument);
    expect("pending", pending(comm, &is_pending), pcclInvalidUsage);
    expect("pending without out", pending(comm, NULL), pcclInvalidArgument);
    expect("optimize", optimize(comm), pcclInvalidUsage);
    expect("reduce", reduce(&number, &number, &descriptor, comm, &info), pcclInvalidUsage);
    expect("reduce without info", reduce(&number, &number, &descriptor, comm, NULL), pcclInvalidUsage);
    expect("reduce without descriptor", reduce(&number, &number, NULL, comm, NULL), pcclInvalidArgument);
    expect("reduce_async", reduce_async(&number, &number, &descriptor, comm, &op), pcclInvalidUsage);
    expect("reduce_async without out", reduce_async(&number, &number, &descriptor, comm, NULL), pcclInvalidArgument);
    expect("await without op", await_reduce(NULL, &info), pcclInvalidArgument);
    expect("multiple", reduce_multiple(&whole, 1, comm, &info, 1), pcclInvalidUsage);
    expect("multiple without descriptors", reduce_multiple(NULL, 1, comm, &info, 1), pcclInvalidArgument);
    expect("sync", sync_state(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &sync_info),
           pcclInvalidUsage);
    expect("sync without state", sync_state(comm, NULL, PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, NULL),
           pcclInvalidArgument);
    expect("connect without comm", connect_comm(NULL), pcclInvalidArgument);
    expect("connect to nobody", connect_comm(comm), pcclMasterConnectionFailed);
    expect("connect to nobody again", connect_comm(comm), pcclMasterConnectionFailed);
    expect("destroy", destroy(comm), pcclSuccess);
    expect("destroy nothing", destroy(NULL), pcclInvalidArgument);
}

static void check_master(void) {
    ccoip_socket_address_t address = {
        .inet = {.protocol = inetIPv6,
                 .ipv4 = {.data = {0}},
                 .ipv6 = {.data = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}},
        .port = 0,
    };
    pcclMasterInstance_t *master = NULL;
    expect("create master without out", create_master(address, NULL), pcclInvalidArgument);
    expect("create master", create_master(address, &master), pcclSuccess);
    expect("interrupt before run", interrupt_master(master), pcclInvalidUsage);
    expect("detach before run", detach_master(master), pcclInvalidUsage);
    expect("await before run", await_master(master), pcclInvalidUsage);
    expect("run", run_master(master), pcclSuccess);
    expect("run again", run_master(master), pcclInvalidUsage);
    expect("interrupt", interrupt_master(master), pcclSuccess);
    expect("interrupt again", interrupt_master(master), pcclSuccess);
    expect("detach after that", detach_master(master), pcclSuccess);
    expect("await", await_master(master), pcclSuccess);
    expect("await again", await_master(master), pcclSuccess);
    expect("destroy master", destroy_master(master), pcclSuccess);
    expect("destroy no master", destroy_master(NULL), pcclInvalidArgument);
}

int main(void) {
    pcclBuildInfo_t build = {true};
    expect("build info before init", build_info(&build), pcclSuccess);
    expect("build info without out", build_info(NULL), pcclInvalidArgument);
    check_master();
    check_before_connect();
    return failures != 0;
}
