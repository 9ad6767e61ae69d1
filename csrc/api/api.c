#define _GNU_SOURCE
#include "api/api.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/descriptor.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/platform.h"
#include "compute/codec.h"
#include "compute/kernels.h"
#include "device/cuda.h"
#include "device/device.h"
#include "net/socket.h"

enum { ALLOWED_BYTES = 256 }; // names of congestion controls, in an error

static atomic_bool initialized;

bool api_initialize(void) { return !atomic_exchange(&initialized, true); }

pcclResult_t api_null(const char *name) { return detail_fail(pcclInvalidArgument, "%s must not be NULL", name); }

bool api_is_own(uint32_t forks) { return forks == descriptor_forks(); }

pcclResult_t api_own(uint32_t forks, const char *noun) {
    if (api_is_own(forks)) return pcclSuccess;
    return detail_fail(pcclInvalidUsage,
                       "the %s is that of the process that this one was forked from; create one after the fork", noun);
}

pcclResult_t api_initialized(void) {
    if (atomic_load(&initialized)) return pcclSuccess;
    return detail_fail(pcclNotInitialized, "call pcclInit first");
}

bool api_take_address(const ccoip_socket_address_t *in, struct wire_address *out) {
    memset(out, 0, sizeof *out);
    out->port = in->port;
    if (in->inet.protocol == inetIPv4) {
        out->family = 4;
        memcpy(out->bytes, in->inet.ipv4.data, 4);
        return true;
    }
    out->family = 6;
    memcpy(out->bytes, in->inet.ipv6.data, 16);
    *out = socket_address_unmapped(*out);
    return in->inet.protocol == inetIPv6;
}

// A name of the kernel may have capitals.
static bool may_choose(const char *name, char *chosen, char *allowed) {
    snprintf(chosen, TRANSPORT_CONGESTION_BYTES, "%s", name);
    if (socket_may_choose(name, allowed, ALLOWED_BYTES)) return true;
    for (char *at = chosen; *at != 0; at++) *at = (char)tolower((unsigned char)*at);
    return strlen(name) < TRANSPORT_CONGESTION_BYTES && socket_may_choose(chosen, allowed, ALLOWED_BYTES);
}

bool api_insecure(bool permitted) { return permitted || environment_switch("PCCL_INSECURE", false); }

struct transport_options api_transport_options(void) {
    struct transport_options options = {.insecure = api_insecure(false)};
    const char *name = getenv("PCCL_CONGESTION_CONTROL");
    char allowed[ALLOWED_BYTES];
    if (name == NULL || *name == 0 || strcasecmp(name, "system") == 0) return options;
    if (may_choose(name, options.congestion, allowed)) return options;
    options.congestion[0] = 0;
    static atomic_flag reported = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&reported)) return options;
    LOG(LOG_ERR,
        "PCCL_CONGESTION_CONTROL=%s is ignored: this system lets the process choose among %s, or leave the choice "
        "to it (system)",
        name, allowed[0] == 0 ? "nothing" : allowed);
    return options;
}

int64_t api_deadline_after(uint64_t timeout_ms) {
    int64_t now = platform_now_ns();
    if (timeout_ms == 0 || timeout_ms > (uint64_t)(INT64_MAX - now) / MS_NS) return INT64_MAX;
    return now + (int64_t)timeout_ms * MS_NS;
}

// ---- reduces ----

pcclResult_t api_check_dtype(int dtype) {
    if (dtype >= pcclUint8 && dtype <= pcclBool) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "datatype %d is no pcclDataType_t", dtype);
}

pcclResult_t api_check_op(int op, int dtype) {
    if (op < pcclSum || op > pcclBxor) return detail_fail(pcclInvalidArgument, "operation %d is no pcclRedOp_t", op);
    if (red_op_takes(op, dtype)) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "%s is not defined for %s; %s", red_op_name(op), dtype_name(dtype),
                       op == pcclAvg ? "convert to a float type first" : "use an integer type or bool");
}

pcclResult_t api_check_devices(const void *one, const void *other) {
    if (device_is_one(one, other)) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "the buffers of an operation are on different devices; copy one first");
}

static pcclResult_t check_block(uint32_t block) {
    if (block >= BLOCK_LEAST && block <= BLOCK_MOST && (block & (block - 1)) == 0) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "block %u is no power of two from %d to %d", block, BLOCK_LEAST,
                       BLOCK_MOST);
}

// Refuses options that only codecs with one scale per block support.
static pcclResult_t check_unblocked(const pcclReduceOptions_t *options) {
    bool feedback = options->residual_in != NULL || options->residual_out != NULL;
    if (options->block == 0 && !options->stochastic && !feedback) return pcclSuccess;
    return detail_fail(pcclInvalidArgument,
                       "%s without quantisation in blocks; set the algorithm to pcclQuantBlockInt8, "
                       "pcclQuantBlockInt4 or pcclQuantBlockE3M0",
                       options->block != 0   ? "a block is given"
                       : options->stochastic ? "stochastic rounding is asked for"
                                             : "a residual is given");
}

// *codec_out: enum codec_id
static pcclResult_t find_codec(const pcclReduceDescriptor_t *descriptor, const pcclReduceOptions_t *options,
                               uint8_t *codec_out) {
    int dtype = (int)descriptor->src_descriptor.datatype;
    int quantised = (int)descriptor->quantization_options.quantized_datatype,
        algorithm = (int)descriptor->quantization_options.algorithm;
    uint32_t block = options->block == 0 ? BLOCK_DEFAULT : options->block;
    *codec_out = CODEC_RAW;
    if (!block_is_algorithm(algorithm)) RETURN_IF_FAILED(check_unblocked(options));
    if (algorithm == pcclQuantNone) return pcclSuccess;
    if (algorithm < pcclQuantNone || algorithm > pcclQuantBlockE3M0)
        return detail_fail(pcclInvalidArgument, "algorithm %d is no pcclQuantizationAlgorithm_t", algorithm);
    if (block_is_algorithm(algorithm))
        RETURN_IF_FAILED(check_block(block));
    else if (quantised < pcclUint8 || quantised > pcclBool)
        return detail_fail(pcclInvalidArgument, "quantized_datatype %d is no pcclDataType_t", quantised);
    *codec_out = codec_of_options(dtype, quantised, algorithm, block);
    if (*codec_out != CODEC_RAW) return pcclSuccess;
    if (block_is_algorithm(algorithm))
        return detail_fail(pcclInvalidArgument, "%s cannot be quantised in blocks; use float32, float16 or bfloat16",
                           dtype_name(dtype));
    return detail_fail(pcclInvalidArgument, "%s cannot be quantised to %s by %s", dtype_name(dtype),
                       dtype_name(quantised), algorithm == pcclQuantMinMax ? "MinMax" : "ZeroPointScale");
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t from = (uintptr_t)a, to = (uintptr_t)b; // no end is computed: it could wrap
    return from < to ? to - from < a_bytes : from - to < b_bytes;
}

static pcclResult_t check_residuals(const void *send, const void *recv, const pcclReduceDescriptor_t *descriptor,
                                    const pcclReduceOptions_t *options) {
    const float *in = options->residual_in, *out = options->residual_out;
    size_t count = descriptor->count, tensor = count * dtype_size((int)descriptor->src_descriptor.datatype);
    if ((in == NULL && out == NULL) || count == 0) return pcclSuccess;
    if (descriptor->op != pcclSum && descriptor->op != pcclAvg)
        return detail_fail(pcclInvalidArgument, "%s has no error feedback: only sum and avg have",
                           red_op_name((int)descriptor->op));
    if (out == NULL)
        return detail_fail(pcclInvalidArgument, "residual_in is given without residual_out, which takes what is left");
    if (count > PTRDIFF_MAX / sizeof *out)
        return detail_fail(pcclInvalidArgument, "count %zu is more than memory can hold", count);
    size_t bytes = count * sizeof *out;
    if (overlap(out, bytes, send, tensor) || overlap(out, bytes, recv, tensor) ||
        (in != NULL && (overlap(out, bytes, in, bytes) || overlap(in, bytes, recv, tensor))))
        return detail_fail(pcclInvalidArgument,
                           "the residuals overlap what the operation writes; give each memory of its own");
    if (in != NULL) RETURN_IF_FAILED(api_check_devices(in, out));
    return api_check_devices(out, recv);
}

static pcclResult_t check_reduce(const void *send, void *recv, const pcclReduceDescriptor_t *descriptor,
                                 const pcclReduceOptions_t *options, struct call_args *out) {
    uint8_t codec;
    RETURN_IF_FAILED(api_check_dtype((int)descriptor->src_descriptor.datatype));
    RETURN_IF_FAILED(api_check_op((int)descriptor->op, (int)descriptor->src_descriptor.datatype));
    RETURN_IF_FAILED(find_codec(descriptor, options, &codec));
    int dtype = (int)descriptor->src_descriptor.datatype;
    size_t size = dtype_size(dtype), count = descriptor->count;
    if (count > 0 && (send == NULL || recv == NULL))
        return detail_fail(pcclInvalidArgument, "a buffer is NULL and count is %zu", count);
    if (count > (size_t)PTRDIFF_MAX / size)
        return detail_fail(pcclInvalidArgument, "count %zu is more than memory can hold", count);
    if (send != recv && overlap(send, count * size, recv, count * size))
        return detail_fail(pcclInvalidArgument, "the send and receive buffers overlap; they must be equal or apart");
    if (count > 0) RETURN_IF_FAILED(api_check_devices(send, recv));
    RETURN_IF_FAILED(check_residuals(send, recv, descriptor, options));
    *out = (struct call_args){
        .send = send,
        .recv = recv,
        .tag = descriptor->tag,
        .fingerprint = {.count = count, .dtype = (uint8_t)dtype, .op = (uint8_t)descriptor->op, .codec = codec},
        .stochastic = options->stochastic,
        .rounding.seed = options->seed,
        .residual_in = options->residual_in,
        .residual_out = options->residual_out,
        .stream = options->stream,
        .retry = options->retry,
    };
    return pcclSuccess;
}

pcclResult_t api_take_options(const pcclReduceOptions_t *options, pcclReduceOptions_t *out) {
    memset(out, 0, sizeof *out);
    if (options == NULL) return pcclSuccess;
    if (options->size < sizeof options->size)
        return detail_fail(pcclInvalidArgument, "options->size is %zu; set it to sizeof(pcclReduceOptions_t)",
                           options->size);
    memcpy(out, options, options->size < sizeof *out ? options->size : sizeof *out);
    return pcclSuccess;
}

pcclResult_t api_launch(const void *send, void *recv, const pcclReduceDescriptor_t *descriptor, const pcclComm_t *comm,
                        const pcclReduceOptions_t *options, bool tell) {
    if (descriptor->count > 0) {
        REQUIRE_NOT_NULL(send);
        REQUIRE_NOT_NULL(recv);
    }
    RETURN_IF_FAILED(communicator_usable(comm->communicator));
    struct call_args reduce;
    RETURN_IF_FAILED(check_reduce(send, recv, descriptor, options, &reduce));
    reduce.tell = tell;
    return ops_launch(comm->communicator, &reduce);
}

pcclResult_t api_await(const pcclComm_t *comm, uint64_t tag, int64_t deadline, pcclReduceInfo_t *out) {
    struct call_info info;
    RETURN_IF_FAILED(ops_await(comm->communicator, tag, deadline, &info));
    if (out != NULL)
        *out = (pcclReduceInfo_t){
            .local_world_size = info.contributors, .tx_bytes = info.tx_bytes, .rx_bytes = info.rx_bytes};
    return pcclSuccess;
}

static pcclResult_t check_all(const pcclReduceOpDescriptor_t *descriptors, const pcclReduceOptions_t *options,
                              size_t count, struct call_args *reduces) {
    static const pcclReduceOptions_t none;
    for (size_t i = 0; i < count; i++) {
        const pcclReduceOpDescriptor_t *d = &descriptors[i];
        const pcclReduceOptions_t *o = options == NULL ? &none : &options[i];
        RETURN_IF_FAILED(check_reduce(d->sendbuf, d->recvbuf, &d->descriptor, o, &reduces[i]));
    }
    return pcclSuccess;
}

pcclResult_t api_retry_new(const pcclReduceOpDescriptor_t *descriptors, const pcclReduceOptions_t *options,
                           size_t count, const pcclComm_t *comm, int max_in_flight, struct ops_retry **out) {
    REQUIRE_NOT_NULL(descriptors);
    REQUIRE_COMM(comm);
    RETURN_IF_FAILED(communicator_usable(comm->communicator));
    if (count == 0) return detail_fail(pcclInvalidArgument, "count must be at least 1");
    if (count > PTRDIFF_MAX / sizeof *descriptors)
        return detail_fail(pcclInvalidArgument, "count %zu is more than memory can hold", count);
    if (max_in_flight < 1) return detail_fail(pcclInvalidArgument, "max_in_flight %d is less than 1", max_in_flight);
    struct call_args *reduces = calloc(count, sizeof *reduces);
    if (reduces == NULL) return detail_fail(pcclInternalError, "the system refused memory for %zu operations", count);
    pcclResult_t code = check_all(descriptors, options, count, reduces);
    if (code == pcclSuccess) code = ops_retry_new(comm->communicator, reduces, count, (size_t)max_in_flight, out);
    free(reduces);
    return code;
}

// ---- shared state ----

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static pcclResult_t check_names(const pcclSharedState_t *state) {
    const char **names = calloc(state->count, sizeof *names);
    if (names == NULL) return detail_fail(pcclInternalError, "the system refused memory for %zu names", state->count);
    for (size_t i = 0; i < state->count; i++) names[i] = state->infos[i].name;
    qsort(names, state->count, sizeof *names, compare_names);
    pcclResult_t code = pcclSuccess;
    for (size_t i = 1; i < state->count && code == pcclSuccess; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            code =
                detail_fail(pcclInvalidArgument, "two entries have the name \"%.200s\"; names must differ", names[i]);
    free(names);
    return code;
}

static pcclResult_t check_entry(const pcclTensorInfo_t *info, size_t index) {
    if (info->name == NULL) return detail_fail(pcclInvalidArgument, "entry %zu has no name", index);
    if (info->data == NULL && info->count > 0)
        return detail_fail(pcclInvalidArgument, "entry \"%.200s\" has no data", info->name);
    if ((int)info->datatype < pcclUint8 || (int)info->datatype > pcclBool)
        return detail_fail(pcclInvalidArgument, "entry \"%.200s\": datatype %d is no pcclDataType_t", info->name,
                           (int)info->datatype);
    if (info->count > (size_t)PTRDIFF_MAX / dtype_size((int)info->datatype))
        return detail_fail(pcclInvalidArgument, "entry \"%.200s\": count %zu is more than memory can hold", info->name,
                           info->count);
    if (info->device_type == pcclDeviceCuda && info->count > 0 && !cuda_owns(info->data))
        return detail_fail(pcclInvalidArgument,
                           "entry \"%.200s\" is said to be on a CUDA device, but the CUDA driver of this process does "
                           "not know its memory",
                           info->name);
    if (info->device_type != pcclDeviceCpu && info->device_type != pcclDeviceCuda)
        return detail_fail(pcclInvalidArgument, "entry \"%.200s\": device type %d is no pcclDeviceType_t", info->name,
                           (int)info->device_type);
    return pcclSuccess;
}

pcclResult_t api_check_state(const pcclSharedState_t *state) {
    if (state->count == 0) return detail_fail(pcclInvalidArgument, "the shared state has no entries");
    if (state->count > PTRDIFF_MAX / sizeof *state->infos)
        return detail_fail(pcclInvalidArgument, "count %zu of the shared state is more than memory can hold",
                           state->count);
    size_t total = 0;
    for (size_t i = 0; i < state->count; i++) {
        const pcclTensorInfo_t *info = &state->infos[i];
        RETURN_IF_FAILED(check_entry(info, i));
        size_t bytes = info->count * dtype_size((int)info->datatype);
        if (bytes > PTRDIFF_MAX - total)
            return detail_fail(pcclInvalidArgument,
                               "entry \"%.200s\" has %zu bytes: with the entries before it, more than memory can hold",
                               info->name, bytes);
        total += bytes;
    }
    return check_names(state);
}
