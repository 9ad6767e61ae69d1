// Collectives: checks the arguments of the public functions and makes those of operations, for reduces of the whole
// group and for collectives over groups (pcclCollective).
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "compute/codec.h"
#include "compute/hash.h"
#include "compute/kernels.h"
#include "device/device.h"
#include "ops/plan.h"

// ---- reduces ----

static pcclResult_t check_dtype(int dtype) {
    if (dtype >= pcclUint8 && dtype <= pcclBool) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "datatype %d is no pcclDataType_t", dtype);
}

static pcclResult_t check_op(int op, int dtype) {
    if (op < pcclSum || op > pcclBxor) return detail_fail(pcclInvalidArgument, "operation %d is no pcclRedOp_t", op);
    if (red_op_takes(op, dtype)) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "%s is not defined for %s; %s", red_op_name(op), dtype_name(dtype),
                       op == pcclAvg ? "convert to a float type first" : "use an integer type or bool");
}

static pcclResult_t check_devices(const void *one, const void *other) {
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
    if (in != NULL) RETURN_IF_FAILED(check_devices(in, out));
    return check_devices(out, recv);
}

static pcclResult_t check_reduce(const void *send, void *recv, const pcclReduceDescriptor_t *descriptor,
                                 const pcclReduceOptions_t *options, struct call_args *out) {
    uint8_t codec;
    RETURN_IF_FAILED(check_dtype((int)descriptor->src_descriptor.datatype));
    RETURN_IF_FAILED(check_op((int)descriptor->op, (int)descriptor->src_descriptor.datatype));
    RETURN_IF_FAILED(find_codec(descriptor, options, &codec));
    int dtype = (int)descriptor->src_descriptor.datatype;
    size_t size = dtype_size(dtype), count = descriptor->count;
    if (count > 0 && (send == NULL || recv == NULL))
        return detail_fail(pcclInvalidArgument, "a buffer is NULL and count is %zu", count);
    if (count > (size_t)PTRDIFF_MAX / size)
        return detail_fail(pcclInvalidArgument, "count %zu is more than memory can hold", count);
    if (send != recv && overlap(send, count * size, recv, count * size))
        return detail_fail(pcclInvalidArgument, "the send and receive buffers overlap; they must be equal or apart");
    if (count > 0) RETURN_IF_FAILED(check_devices(send, recv));
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
    return ops_launch(comm->communicator, &reduce, OPS_TAGGED);
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

// ---- collectives ----

struct pcclGroup_t {
    const pcclComm_t *comm;
    struct subgroup *subgroup;
};

_Static_assert((int)pcclCollectiveAllReduce == PLAN_ALL_REDUCE && (int)pcclCollectiveSend == PLAN_SEND,
               "kinds have the numbers of the wire");

// ---- groups ----
pcclResult_t pcclGetMembers(const pcclComm_t *comm, pcclRankUuid_t *PCCL_NULLABLE uuids_out, size_t capacity,
                            size_t *count_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(count_out);
    if (capacity > 0) REQUIRE_NOT_NULL(uuids_out);
    return ops_members(comm->communicator, false, (struct wire_id *)(void *)uuids_out, capacity, count_out);
}

pcclResult_t pcclCreateGroup(const pcclComm_t *comm, const pcclRankUuid_t *members, size_t count,
                             pcclGroup_t **group_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(members);
    REQUIRE_NOT_NULL(group_out);
    RETURN_IF_FAILED(communicator_usable(comm->communicator));
    if (count == 0 || count > WIRE_MAX_MEMBERS)
        return detail_fail(pcclInvalidArgument, "a group of %zu members: 1 to %d are possible", count,
                           WIRE_MAX_MEMBERS);
    const struct wire_id *ids = (const struct wire_id *)(const void *)members;
    struct wire_id self = communicator_id(comm->communicator);
    size_t rank = count;
    for (size_t i = 0; i < count; i++) {
        if (wire_id_equal(&ids[i], &self)) rank = i;
        for (size_t k = 0; k < i; k++)
            if (wire_id_equal(&ids[i], &ids[k]))
                return detail_fail(pcclInvalidArgument, "members %zu and %zu of the group are the same peer", k, i);
    }
    if (rank == count) return detail_fail(pcclInvalidArgument, "this peer is not among the members of the group");
    pcclGroup_t *group = malloc(sizeof *group);
    if (group != NULL) *group = (pcclGroup_t){comm, subgroup_new(ids, (uint32_t)count, (uint32_t)rank)};
    if (group == NULL || group->subgroup == NULL) {
        free(group);
        return detail_fail(pcclInternalError, "the system refused memory for a group");
    }
    *group_out = group;
    return pcclSuccess;
}

pcclResult_t pcclDestroyGroup(pcclGroup_t *group) {
    REQUIRE_NOT_NULL(group);
    subgroup_put(group->subgroup);
    free(group);
    return pcclSuccess;
}

// ---- arguments ----
static const size_t *counts_of(const pcclCollective_t *what) {
    return what->kind == pcclCollectiveScatter || what->kind == pcclCollectiveAllToAllV ? what->send_counts
                                                                                        : what->recv_counts;
}

static pcclResult_t check_enumerators(const pcclCollective_t *what) {
    const struct plan_collective *collective = plan_collective((uint8_t)what->kind);
    if ((int)what->kind < 0 || (int)what->kind >= PLAN_KINDS)
        return detail_fail(pcclInvalidArgument, "kind %d is no pcclCollectiveKind_t", (int)what->kind);
    RETURN_IF_FAILED(check_dtype((int)what->datatype));
    return collective->reduces ? check_op((int)what->op, (int)what->datatype) : pcclSuccess;
}

static pcclResult_t check_members(const pcclCollective_t *what, const pcclComm_t *comm) {
    const struct plan_collective *collective = plan_collective((uint8_t)what->kind);
    if (what->group->comm != comm) return detail_fail(pcclInvalidArgument, "the group is that of another communicator");
    uint32_t count = what->group->subgroup->count;
    if (collective->rooted && what->root >= count)
        return detail_fail(pcclInvalidArgument, "root %zu is not in a group of %u", what->root, count);
    if (what->everyone && !(what->survivors && collective->survives))
        return detail_fail(pcclInvalidArgument,
                           "`everyone` is for what goes on among the survivors, and this %s does not",
                           collective->name);
    if (what->kind == pcclCollectiveSend && count != 2)
        return detail_fail(pcclInvalidArgument, "a send is among a group of 2, and this one has %u members", count);
    if (what->kind == pcclCollectiveAllToAllV && (what->send_counts == NULL || what->recv_counts == NULL))
        return detail_fail(pcclInvalidArgument, "an all-to-all of unequal parts needs send_counts and recv_counts");
    uint32_t rank = what->group->subgroup->rank;
    if (what->kind == pcclCollectiveAllToAllV && what->send_counts[rank] != what->recv_counts[rank])
        return detail_fail(pcclInvalidArgument,
                           "the own part of an all-to-all goes from send_counts[%u] = %zu to recv_counts[%u] = %zu "
                           "elements; they must be equal",
                           rank, what->send_counts[rank], rank, what->recv_counts[rank]);
    if (what->kind == pcclCollectiveAllToAll && (what->send_counts != NULL || what->recv_counts != NULL))
        return detail_fail(pcclInvalidArgument,
                           "the parts of pcclCollectiveAllToAll have `count` elements each; leave send_counts and "
                           "recv_counts NULL, or use pcclCollectiveAllToAllV");
    return pcclSuccess;
}

// Checks that a tensor with as many elements as all these counts together fits into memory. `counts` NULL: `count` for
// each rank.
static pcclResult_t check_sum(const pcclCollective_t *what, const char *name, const size_t *counts, uint32_t members) {
    uint64_t most = (uint64_t)PTRDIFF_MAX / dtype_size((int)what->datatype), total = 0;
    for (uint32_t rank = 0; rank < members; rank++) {
        size_t count = counts == NULL ? what->count : counts[rank];
        if (count > most || total > most - count)
            return detail_fail(pcclInvalidArgument,
                               "%s is %zu for member %u: the tensor has more elements than memory can hold (%llu)",
                               name, count, rank, (unsigned long long)most);
        total += count;
    }
    return pcclSuccess;
}

// Afterwards no sum of counts, and no product with the size of an element, can wrap.
static pcclResult_t check_counts(const pcclCollective_t *what) {
    const size_t *counts = counts_of(what);
    uint32_t members = what->group->subgroup->count;
    if (what->kind == pcclCollectiveBarrier) return pcclSuccess;
    if (!plan_collective((uint8_t)what->kind)->divided || what->kind == pcclCollectiveSend)
        return check_sum(what, "count", NULL, 1);
    if (what->kind == pcclCollectiveAllToAllV)
        RETURN_IF_FAILED(check_sum(what, "recv_counts", what->recv_counts, members));
    const char *name = counts == NULL ? "count" : counts == what->send_counts ? "send_counts" : "recv_counts";
    return check_sum(what, name, counts, members);
}

// ---- parts ----
static uint64_t part_count(const pcclCollective_t *what, const size_t *counts, uint32_t rank) {
    return counts == NULL ? what->count : counts[rank];
}

// Computes what this member gives to `rank`, or gets from it, by the kind.
static void divide(const pcclCollective_t *what, struct call_parts *parts, struct call_part *to,
                   struct call_part *from) {
    const struct subgroup *subgroup = what->group->subgroup;
    const size_t *counts = counts_of(what);
    bool root = subgroup->rank == what->root;
    uint64_t at = 0, from_at = 0, own = part_count(what, counts, subgroup->rank);
    for (uint32_t rank = 0; rank < subgroup->count; rank++) {
        uint64_t count = part_count(what, counts, rank);
        switch ((int)what->kind) {
        case PLAN_ALL_GATHER:
            to[rank] = (struct call_part){0, own};
            from[rank] = (struct call_part){at, count};
            break;
        case PLAN_GATHER:
            if (rank == what->root) to[rank] = (struct call_part){0, own};
            if (root) from[rank] = (struct call_part){at, count};
            break;
        case PLAN_SCATTER:
            if (root) to[rank] = (struct call_part){at, count};
            if (rank == what->root) from[rank] = (struct call_part){0, own};
            break;
        case PLAN_REDUCE_SCATTER:
            to[rank] = (struct call_part){at, count};
            from[rank] = (struct call_part){0, own};
            break;
        case PLAN_SEND:
            if (root && rank != subgroup->rank) to[rank] = (struct call_part){0, what->count};
            if (!root && rank == what->root) from[rank] = (struct call_part){0, what->count};
            break;
        default: {
            uint64_t back = what->kind == pcclCollectiveAllToAllV ? what->recv_counts[rank] : count;
            to[rank] = (struct call_part){at, count};
            from[rank] = (struct call_part){from_at, back};
            from_at += back;
        }
        }
        if (rank == subgroup->rank) parts->own_at = what->kind == pcclCollectiveSend ? 0 : at;
        at += count;
    }
}

static uint64_t end_of(const struct call_part *parts, uint32_t count) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < count; i++)
        if (parts[i].at + parts[i].count > end) end = parts[i].at + parts[i].count;
    return end;
}

static struct call_parts *parts_of(const pcclCollective_t *what) {
    uint32_t count = what->group->subgroup->count;
    const size_t *counts = counts_of(what);
    struct call_parts *parts =
        calloc(1, sizeof *parts + 2 * count * sizeof(struct call_part) + count * sizeof(uint64_t));
    if (parts == NULL) return NULL;
    struct call_part *to = parts->parts, *from = to + count;
    uint64_t *sizes = (uint64_t *)(void *)(from + count);
    divide(what, parts, to, from);
    for (uint32_t rank = 0; rank < count; rank++) sizes[rank] = part_count(what, counts, rank);
    parts->to = to;
    parts->from = from;
    parts->sizes = sizes;
    parts->in = end_of(to, count);
    parts->out = end_of(from, count);
    return parts;
}

// ---- what members agree on ----
static uint64_t agreed_count(const pcclCollective_t *what) {
    uint64_t total = 0;
    if (what->kind == pcclCollectiveBarrier || what->kind == pcclCollectiveAllToAllV) return 0;
    if (!plan_collective((uint8_t)what->kind)->divided || what->kind == pcclCollectiveSend) return what->count;
    for (uint32_t rank = 0; rank < what->group->subgroup->count; rank++)
        total += part_count(what, counts_of(what), rank);
    return total;
}

static uint64_t mixed(uint64_t hash, uint64_t number) { return (hash ^ number) * 0x9e3779b97f4a7c15; }

static uint32_t layout_of(const pcclCollective_t *what) {
    const size_t *counts = what->kind == pcclCollectiveAllToAllV ? NULL : counts_of(what);
    const struct subgroup *subgroup = what->group->subgroup;
    const struct plan_collective *collective = plan_collective((uint8_t)what->kind);
    uint32_t members = what->everyone ? 0 : subgroup->hash;
    uint64_t hash = mixed(members, what->survivors && collective->survives);
    if (collective->rooted && what->everyone)
        hash = mixed(hash, hash_xxh3_64(&subgroup->ids[what->root], sizeof subgroup->ids[0]));
    else if (collective->rooted)
        hash = mixed(hash, what->root + 1);
    for (uint32_t rank = 0; counts != NULL && rank < subgroup->count; rank++) hash = mixed(hash, counts[rank]);
    return (uint32_t)subgroup_mark(members) << 16 | (uint16_t)(hash ^ hash >> 16 ^ hash >> 32);
}

// ---- buffers ----
static pcclResult_t check_buffers(const pcclCollective_t *what, uint64_t in, uint64_t out) {
    size_t element = dtype_size((int)what->datatype);
    if (in > 0 && what->sendbuf == NULL)
        return detail_fail(pcclInvalidArgument, "sendbuf is NULL, and %llu elements are sent", (unsigned long long)in);
    if (out > 0 && what->recvbuf == NULL)
        return detail_fail(pcclInvalidArgument, "recvbuf is NULL, and %llu elements are received",
                           (unsigned long long)out);
    if (in == 0 || out == 0) return pcclSuccess;
    uintptr_t from = (uintptr_t)what->sendbuf, to = (uintptr_t)what->recvbuf;
    RETURN_IF_FAILED(check_devices(what->sendbuf, what->recvbuf));
    if (from > to ? from - to >= out * element : to > from && to - from >= in * element) return pcclSuccess;
    bool reduce = what->kind == pcclCollectiveAllReduce || what->kind == pcclCollectiveReduce;
    if (reduce && from == to) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "the send and receive buffers overlap; they must be %s",
                       reduce ? "equal or apart" : "apart, but for the own part of an all-gather at its place");
}

// An all-gather may read its input where it belongs in its result.
static bool is_gathered_in_place(const pcclCollective_t *what, const struct call_parts *parts) {
    return what->kind == pcclCollectiveAllGather && what->recvbuf != NULL &&
           (const uint8_t *)what->sendbuf ==
               (const uint8_t *)what->recvbuf + parts->own_at * dtype_size((int)what->datatype);
}

static pcclResult_t fill(const pcclCollective_t *what, struct call_args *out) {
    const struct plan_collective *collective = plan_collective((uint8_t)what->kind);
    const struct subgroup *subgroup = what->group->subgroup;
    bool root = subgroup->rank == what->root, barrier = what->kind == pcclCollectiveBarrier;
    *out = (struct call_args){
        .send = what->sendbuf,
        .recv = what->recvbuf,
        .tag = what->tag,
        .fingerprint = {.count = agreed_count(what),
                        .layout = layout_of(what),
                        .kind = (uint8_t)what->kind,
                        .dtype = barrier ? 0 : (uint8_t)what->datatype,
                        .op = collective->reduces ? (uint8_t)what->op : 0},
        .root = (uint32_t)what->root,
        .is_root = root,
        .everyone = what->everyone != 0,
        .retry = what->survivors && collective->survives,
        .background = what->background,
        .stream = what->stream,
    };
    out->tell = out->retry;
    if (collective->rooted) out->root_id = subgroup->ids[what->root];
    uint64_t in = out->fingerprint.count, to = in;
    bool gathered_in_place = false;
    if (collective->divided) {
        out->parts = parts_of(what);
        if (out->parts == NULL) return detail_fail(pcclInternalError, "the system refused memory for an operation");
        in = out->parts->in;
        gathered_in_place = is_gathered_in_place(what, out->parts);
        to = gathered_in_place ? 0 : out->parts->out;
    } else if (collective->rooted) {
        if (collective->reduces && !root) to = 0;
        if (!collective->reduces) *(root ? &to : &in) = 0;
        if (!collective->reduces && root && out->send == NULL) out->send = what->recvbuf;
    }
    pcclCollective_t checked = *what;
    checked.sendbuf = out->send;
    // An unused buffer may be anything, and may be on another device.
    if (in == 0) out->send = NULL;
    if (to == 0 && !gathered_in_place) out->recv = NULL;
    return check_buffers(&checked, in, to);
}

pcclResult_t api_launch_collective(const pcclCollective_t *collective, const pcclComm_t *comm,
                                   enum ops_sequence sequence, uint64_t *tag_out) {
    pcclCollective_t what = {0};
    if (collective->size < offsetof(pcclCollective_t, survivors))
        return detail_fail(pcclInvalidArgument, "collective->size is %zu; set it to sizeof(pcclCollective_t)",
                           collective->size);
    memcpy(&what, collective, collective->size < sizeof what ? collective->size : sizeof what);
    if (what.group == NULL) return api_null("collective->group");
    RETURN_IF_FAILED(communicator_usable(comm->communicator));
    RETURN_IF_FAILED(check_enumerators(&what));
    RETURN_IF_FAILED(check_members(&what, comm));
    RETURN_IF_FAILED(check_counts(&what));
    struct call_args args;
    pcclResult_t code = fill(&what, &args);
    args.subgroup = what.everyone ? NULL : subgroup_get(what.group->subgroup);
    if (code == pcclSuccess) code = ops_launch(comm->communicator, &args, sequence);
    *tag_out = args.tag;
    if (code == pcclSuccess) return code;
    subgroup_put(args.subgroup);
    free(args.parts);
    return code;
}

// ---- calls ----
pcclResult_t pcclCollectiveAsync(const pcclCollective_t *collective, const pcclComm_t *comm,
                                 pcclAsyncReduceOp_t *handle_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(collective);
    REQUIRE_NOT_NULL(handle_out);
    uint64_t tag;
    RETURN_IF_FAILED(api_launch_collective(collective, comm, OPS_TAGGED, &tag));
    *handle_out = (pcclAsyncReduceOp_t){.comm = (pcclComm_t *)(uintptr_t)comm, .tag = tag};
    return pcclSuccess;
}

pcclResult_t pcclCollective(const pcclCollective_t *collective, const pcclComm_t *comm,
                            pcclReduceInfo_t *PCCL_NULLABLE info_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(collective);
    uint64_t tag;
    communicator_enter(comm->communicator);
    pcclResult_t code = api_launch_collective(collective, comm, OPS_TAGGED, &tag);
    if (code == pcclSuccess) code = api_await(comm, tag, INT64_MAX, info_out);
    communicator_exit(comm->communicator);
    return code;
}
