// Sums of terms that come in codes with a scale for each block (compute/block_code.h), what is stored of them, and
// their codes: to encode is a sum of one term, which is no code; to decode one that is not encoded again.
//
// A warp works on a block of the codec; larger blocks have as many warps as leave each thread 8 elements at most. The
// elements stay in registers from the first term to the residual. Codes pass through shared memory, because those of
// the host are best read and written in words that lie side by side.
//
// The type of the elements, the codec and the operation are the same for all threads. Loops over the elements of a
// thread lie inside the branches on them, so that all loads of a loop are under way at once.
#include "compute/block_code.h"
#include "compute/float_ops.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/language.h"

#define CODES_THREADS 512u
#define CODES_WARPS (CODES_THREADS / KERNEL_WARP)
#define CODES_SHIFT 3
#define CODES_EACH (1 << CODES_SHIFT) // elements of a thread
#define CODES_ROOM 1056               // words: 16 blocks of 256 codes of a byte, with their scales, and some
#define CODES_MOST 4096               // elements of a block of threads
#define CODES_F16 8u                  // pcclDataType_t
#define CODES_BF16 9u

// The place of a thread.
struct codes_place {
    unsigned group;  // threads that share a block of the codec
    unsigned thread; // of these
    unsigned count;  // elements of the codec's block; 0: there is none
    unsigned each;   // of them those of the thread
    unsigned at;     // bytes from the first code of this block of threads on
    uint64_t first;  // element
};

#define CODES_LOOP KERNEL_UNROLL for (unsigned k = 0; k < CODES_EACH; k++)

ELEMENT unsigned codes_of(const struct codes_job *job, unsigned count) {
    return job->code == BLOCK_CODE_INT8 ? count : (count + 1) / 2;
}

// Element k of the thread, counted from the first one of the codec's block.
ELEMENT unsigned codes_index(const struct codes_place *me, unsigned k) { return me->thread + k * me->group; }

ELEMENT unsigned codes_has(const struct codes_place *me, unsigned k) { return k < me->each; }

ELEMENT void codes_load(float *x, const struct codes_job *job, const struct codes_place *me) {
    if (job->dtype == CODES_F16) {
        const uint16_t *own = (const uint16_t *)job->own + me->first;
        CODES_LOOP x[k] = float_from_f16(codes_has(me, k) ? own[codes_index(me, k)] : 0);
    } else if (job->dtype == CODES_BF16) {
        const uint16_t *own = (const uint16_t *)job->own + me->first;
        CODES_LOOP x[k] = float_from_bf16(codes_has(me, k) ? own[codes_index(me, k)] : 0);
    } else {
        const float *own = (const float *)job->own + me->first;
        CODES_LOOP x[k] = codes_has(me, k) ? own[codes_index(me, k)] : 0;
    }
    if (job->residual_in == 0) return;
    const float *residual = job->residual_in + me->first;
    float rest[CODES_EACH];
    CODES_LOOP rest[k] = codes_has(me, k) ? residual[codes_index(me, k)] : 0;
    CODES_LOOP x[k] = op_sum_f32(x[k], rest[k]);
}

ELEMENT float codes_value(unsigned code_type, uint32_t code, uint32_t scale) {
    if (scale == BLOCK_NAN_BITS) return float_from_bits(BLOCK_NAN_BITS);
    if (code_type == BLOCK_CODE_INT8) return block_value_int8(code, float_from_bits(scale));
    if (code_type == BLOCK_CODE_INT4) return block_value_int4(code, float_from_bits(scale));
    return block_value_e3m0(code, float_from_bits(scale));
}

// `codes`: of the codec's block.
ELEMENT void codes_decode(float *x, const uint8_t *codes, uint32_t scale, const struct codes_place *me, unsigned code) {
    unsigned half = (me->count + 1) / 2;
    CODES_LOOP {
        unsigned e = codes_has(me, k) ? codes_index(me, k) : 0;
        if (code == BLOCK_CODE_INT8) {
            x[k] = codes_value(code, codes[e], scale);
        } else {
            uint32_t both = codes[e < half ? e : e - half];
            x[k] = codes_value(code, e < half ? both & 15u : both >> 4, scale);
        }
    }
}

ELEMENT void codes_reduce(float *sum, const float *x, unsigned op) {
    switch (op) { // pcclRedOp_t
    case 2: CODES_LOOP sum[k] = op_prod_f32(sum[k], x[k]); break;
    case 3: CODES_LOOP sum[k] = op_max_f32(sum[k], x[k]); break;
    case 4: CODES_LOOP sum[k] = op_min_f32(sum[k], x[k]); break;
    default: CODES_LOOP sum[k] = op_sum_f32(sum[k], x[k]);
    }
}

ELEMENT uint32_t codes_code(const struct block_scale *by, float x, unsigned i, unsigned code, unsigned is_stochastic) {
    float y = x * by->grow * by->inverse;
    uint32_t random = is_stochastic ? block_random(by, i) : 0;
    if (code == BLOCK_CODE_E3M0) {
        float magnitude = float_from_bits(float_to_bits(y) & 0x7FFFFFFFu);
        uint32_t m = is_stochastic ? block_power_stochastic(magnitude, random) : block_power_nearest(magnitude, random);
        return m | (m == 0 ? 0 : float_to_bits(x) >> 28 & 8u);
    }
    int32_t n = is_stochastic ? block_int_stochastic(y, random) : block_int_nearest(y, random);
    if (code == BLOCK_CODE_INT8) return (uint32_t)block_clamp(n, 127) & 255u;
    return (uint32_t)block_clamp(n, 7) & 15u;
}

// Writes a byte for each code to `codes`, and what the codes stand for to `x`. by->scale = 0: all codes are 0.
ELEMENT void codes_encode_as(uint8_t *codes, float *x, const struct block_scale *by, uint32_t scale,
                             const struct codes_place *me, unsigned code, unsigned is_stochastic) {
    unsigned has_codes = scale != 0 && scale != BLOCK_NAN_BITS;
    CODES_LOOP {
        uint32_t made = has_codes ? codes_code(by, x[k], codes_index(me, k), code, is_stochastic) : 0;
        x[k] = codes_value(code, made, scale);
        if (codes_has(me, k)) codes[codes_index(me, k)] = (uint8_t)made;
    }
}

ELEMENT void codes_encode(uint8_t *codes, float *x, const struct block_scale *by, uint32_t scale,
                          const struct codes_place *me, const struct codes_job *job) {
    switch (job->code * BLOCK_ROUNDINGS + (job->is_stochastic ? BLOCK_STOCHASTIC : BLOCK_NEAREST)) {
#define CODES_CASE(code, rounding) \
    case code *BLOCK_ROUNDINGS + rounding: codes_encode_as(codes, x, by, scale, me, code, rounding); break;
        CODES_CASE(BLOCK_CODE_INT8, BLOCK_NEAREST)
        CODES_CASE(BLOCK_CODE_INT8, BLOCK_STOCHASTIC)
        CODES_CASE(BLOCK_CODE_INT4, BLOCK_NEAREST)
        CODES_CASE(BLOCK_CODE_INT4, BLOCK_STOCHASTIC)
        CODES_CASE(BLOCK_CODE_E3M0, BLOCK_NEAREST)
        CODES_CASE(BLOCK_CODE_E3M0, BLOCK_STOCHASTIC)
#undef CODES_CASE
    }
}

// Rounds x to what is stored.
ELEMENT void codes_store(float *x, const struct codes_job *job, const struct codes_place *me) {
    if (job->dtype == CODES_F16) {
        uint16_t *result = (uint16_t *)job->result + me->first;
        CODES_LOOP {
            uint16_t bits = float_to_f16(x[k]);
            x[k] = float_from_f16(bits);
            if (codes_has(me, k)) result[codes_index(me, k)] = bits;
        }
    } else if (job->dtype == CODES_BF16) {
        uint16_t *result = (uint16_t *)job->result + me->first;
        CODES_LOOP {
            uint16_t bits = float_to_bf16(x[k]);
            x[k] = float_from_bf16(bits);
            if (codes_has(me, k)) result[codes_index(me, k)] = bits;
        }
    } else {
        float *result = (float *)job->result + me->first;
        CODES_LOOP if (codes_has(me, k)) result[codes_index(me, k)] = x[k];
    }
}

KERNEL(pccl_codes, 512)(struct codes_job job) {
    __shared__ uint32_t words[CODES_ROOM];
    __shared__ uint8_t nibbles[CODES_MOST];
    __shared__ uint32_t tops[CODES_WARPS];
    uint8_t *bytes = (uint8_t *)words;
    // The codec's block and the groups are powers of two, and their quotients shifts.
    unsigned block_shift = 31 - (unsigned)__clz((int)job.block);
    unsigned group_shift =
        block_shift <= CODES_SHIFT + KERNEL_WARP_SHIFT ? KERNEL_WARP_SHIFT : block_shift - CODES_SHIFT;
    unsigned warps = 1u << (group_shift - KERNEL_WARP_SHIFT), group = threadIdx.x >> group_shift;
    unsigned blocks = CODES_WARPS >> (group_shift - KERNEL_WARP_SHIFT), block_bytes = 4 + codes_of(&job, job.block);
    struct codes_place me;
    me.group = 1u << group_shift;
    me.thread = threadIdx.x & (me.group - 1);
    me.at = group * block_bytes;
    uint64_t tile = (uint64_t)blockIdx.x * blocks << block_shift;
    me.first = tile + (group << block_shift);
    me.count = me.first >= job.count              ? 0
               : job.count - me.first < job.block ? (unsigned)(job.count - me.first)
                                                  : job.block;
    me.each = me.count > me.thread ? ((me.count - me.thread - 1) >> group_shift) + 1 : 0;
    // the codes of this block of threads
    uint64_t offset = (uint64_t)blockIdx.x * blocks * block_bytes;
    unsigned here = blocks << block_shift;
    if (job.count - tile < here) here = (unsigned)(job.count - tile);
    unsigned rest = here & (job.block - 1), length = (here >> block_shift) * block_bytes;
    if (rest != 0) length += 4 + codes_of(&job, rest);
    unsigned half = (me.count + 1) / 2;
    float wanted[CODES_EACH], got[CODES_EACH];

    for (unsigned term = 0; term < job.terms; term++) {
        const uint32_t *in = (const uint32_t *)(job.inputs + term * job.stride + offset);
        __syncthreads();
        if (term != job.own_term)
            for (unsigned i = threadIdx.x; i < (length + 3) / 4; i += CODES_THREADS) words[i] = in[i];
        __syncthreads();
        const uint8_t *codes = bytes + me.at + 4;
        uint32_t scale = words[me.at / 4];
        float x[CODES_EACH];
        if (term == job.own_term)
            codes_load(x, &job, &me);
        else if (job.code == BLOCK_CODE_INT8)
            codes_decode(x, codes, scale, &me, BLOCK_CODE_INT8);
        else if (job.code == BLOCK_CODE_INT4)
            codes_decode(x, codes, scale, &me, BLOCK_CODE_INT4);
        else
            codes_decode(x, codes, scale, &me, BLOCK_CODE_E3M0);
        if (term == 0)
            CODES_LOOP wanted[k] = x[k];
        else
            codes_reduce(wanted, x, job.op);
    }
    if (job.divisor != 0) CODES_LOOP wanted[k] = canonical_f32(wanted[k] / (float)job.divisor);
    CODES_LOOP got[k] = wanted[k];
    if (job.codes != 0) {
        uint32_t top = 0;
        CODES_LOOP {
            uint32_t magnitude = float_to_bits(wanted[k]) & 0x7FFFFFFFu;
            if (codes_has(&me, k) && magnitude > top) top = magnitude;
        }
        for (unsigned by = 1; by < KERNEL_WARP; by *= 2) {
            uint32_t other = (uint32_t)__shfl_xor_sync(KERNEL_ALL_THREADS, top, by);
            top = other > top ? other : top;
        }
        __syncthreads(); // the codes of the last term were read
        if (threadIdx.x % KERNEL_WARP == 0) tops[threadIdx.x >> KERNEL_WARP_SHIFT] = top;
        __syncthreads();
        for (unsigned i = 0; i < warps; i++) {
            uint32_t other = tops[group * warps + i];
            top = other > top ? other : top;
        }
        unsigned is_finite = top < BLOCK_INFINITY_BITS;
        struct block_scale by = block_scale_of((int)job.code, is_finite ? float_from_bits(top) : 0);
        if (job.is_stochastic) block_key_of(&by, job.seed, job.index + me.first);
        uint32_t scale = is_finite ? float_to_bits(by.scale) : BLOCK_NAN_BITS;
        uint8_t *each = job.code == BLOCK_CODE_INT8 ? bytes + me.at + 4 : nibbles + (me.first - tile);
        codes_encode(each, got, &by, scale, &me, &job);
        if (me.thread == 0 && me.count > 0) words[me.at / 4] = scale;
        __syncthreads();
        if (job.code != BLOCK_CODE_INT8)
            for (unsigned j = me.thread; j < half; j += me.group) {
                const uint8_t *mine = nibbles + (me.first - tile);
                bytes[me.at + 4 + j] = (uint8_t)(mine[j] | (j + half < me.count ? mine[j + half] << 4 : 0));
            }
        __syncthreads();
        uint32_t *out = (uint32_t *)(job.codes + offset);
        for (unsigned i = threadIdx.x; i < length / 4; i += CODES_THREADS) out[i] = words[i];
        if (threadIdx.x < length % 4)
            job.codes[offset + length / 4 * 4 + threadIdx.x] = bytes[length / 4 * 4 + threadIdx.x];
    }
    if (job.result != 0) codes_store(got, &job, &me);
    if (job.residual_out == 0) return;
    float *residual = job.residual_out + me.first;
    CODES_LOOP if (codes_has(&me, k)) residual[codes_index(&me, k)] = block_rest(wanted[k], got[k], job.times);
}
