// Sums of terms that come in codes with a scale for each block (compute/block_code.h), what is stored of them, and
// their codes: to encode is a sum of one term, which is no code; to decode one that is not encoded again.
//
// A block of the codec is the work of a warp, or of as many as leave each thread 8 elements at most: they stay in its
// registers from the first term to the residual. Codes pass through memory of the block of threads, because those of
// the host are best read and written in words that lie side by side.
#include "compute/block_code.h"
#include "compute/float_ops.h"
#include "device/kernels/kernel.h"
#include "device/kernels/language.h"

#define CODES_THREADS 512u
#define CODES_WARPS (CODES_THREADS / KERNEL_WARP)
#define CODES_EACH 8    // elements of a thread
#define CODES_ROOM 1056 // words: 16 blocks of 256 codes of a byte, with their scales, and some
#define CODES_MOST 4096 // elements of a block of threads
#define CODES_F16 8u    // pcclDataType_t
#define CODES_BF16 9u

// Where a thread is.
struct codes_place {
    unsigned group;  // threads that share a block of the codec
    unsigned thread; // of these
    unsigned each;   // elements of a thread
    unsigned count;  // elements of the codec's block; 0: there is none
    unsigned at;     // bytes from the first code of this block of threads on
    uint64_t first;  // element
};

ELEMENT unsigned codes_of(const struct codes_job *job, unsigned count) {
    return job->code == BLOCK_CODE_INT8 ? count : (count + 1) / 2;
}

ELEMENT float codes_widen(const void *values, uint64_t i, unsigned dtype) {
    if (dtype == CODES_F16) return float_from_f16(((const uint16_t *)values)[i]);
    if (dtype == CODES_BF16) return float_from_bf16(((const uint16_t *)values)[i]);
    return ((const float *)values)[i];
}

// What is read again.
ELEMENT float codes_store(void *values, uint64_t i, unsigned dtype, float x) {
    if (dtype == CODES_F16) {
        ((uint16_t *)values)[i] = float_to_f16(x);
        return float_from_f16(float_to_f16(x));
    }
    if (dtype == CODES_BF16) {
        ((uint16_t *)values)[i] = float_to_bf16(x);
        return float_from_bf16(float_to_bf16(x));
    }
    ((float *)values)[i] = x;
    return x;
}

ELEMENT float codes_value(unsigned code_type, uint32_t code, uint32_t scale) {
    if (scale == BLOCK_NAN_BITS) return float_from_bits(BLOCK_NAN_BITS);
    if (code_type == BLOCK_CODE_INT8) return block_value_int8(code, float_from_bits(scale));
    if (code_type == BLOCK_CODE_INT4) return block_value_int4(code, float_from_bits(scale));
    return block_value_e3m0(code, float_from_bits(scale));
}

ELEMENT uint32_t codes_code(const struct codes_job *job, const struct block_scale *by, float x, unsigned i) {
    float y = x * by->grow * by->inverse;
    uint32_t random = block_random(by, i);
    if (job->code == BLOCK_CODE_E3M0) {
        float magnitude = float_from_bits(float_to_bits(y) & 0x7FFFFFFFu);
        uint32_t m =
            job->is_stochastic ? block_power_stochastic(magnitude, random) : block_power_nearest(magnitude, random);
        return m | (m == 0 ? 0 : float_to_bits(x) >> 28 & 8u);
    }
    int32_t k = job->is_stochastic ? block_int_stochastic(y, random) : block_int_nearest(y, random);
    if (job->code == BLOCK_CODE_INT8) return (uint32_t)block_clamp(k, 127) & 255u;
    return (uint32_t)block_clamp(k, 7) & 15u;
}

ELEMENT float codes_reduce(unsigned op, float x, float y) {
    switch (op) { // pcclRedOp_t
    case 2: return op_prod_f32(x, y);
    case 3: return op_max_f32(x, y);
    case 4: return op_min_f32(x, y);
    default: return op_sum_f32(x, y);
    }
}

KERNEL(pccl_codes, 512)(struct codes_job job) {
    __shared__ uint32_t words[CODES_ROOM];
    __shared__ uint8_t nibbles[CODES_MOST];
    __shared__ uint32_t tops[CODES_WARPS];
    uint8_t *bytes = (uint8_t *)words;
    unsigned warps = job.block <= CODES_EACH * KERNEL_WARP ? 1 : job.block / (CODES_EACH * KERNEL_WARP);
    unsigned blocks = CODES_WARPS / warps, block_bytes = 4 + codes_of(&job, job.block);
    struct codes_place me;
    me.group = warps * KERNEL_WARP;
    me.thread = threadIdx.x % me.group;
    me.each = job.block / me.group;
    me.at = threadIdx.x / me.group * block_bytes;
    uint64_t tile = (uint64_t)blockIdx.x * blocks * job.block;
    me.first = tile + threadIdx.x / me.group * job.block;
    me.count = me.first >= job.count              ? 0
               : job.count - me.first < job.block ? (unsigned)(job.count - me.first)
                                                  : job.block;
    // the codes of this block of threads
    uint64_t here = job.count - tile < (uint64_t)blocks * job.block ? job.count - tile : (uint64_t)blocks * job.block;
    uint64_t offset = tile / job.block * block_bytes;
    unsigned rest = (unsigned)(here % job.block), length = (unsigned)(here / job.block) * block_bytes;
    if (rest != 0) length += 4 + codes_of(&job, rest);
    unsigned half = (me.count + 1) / 2;
    float wanted[CODES_EACH], got[CODES_EACH];

    for (unsigned term = 0; term < job.terms; term++) {
        const uint32_t *in = (const uint32_t *)(job.inputs + term * job.stride + offset);
        __syncthreads();
        if (term != job.own_term)
            for (unsigned i = threadIdx.x; i < (length + 3) / 4; i += CODES_THREADS) words[i] = in[i];
        __syncthreads();
        uint32_t scale = words[me.at / 4];
        KERNEL_UNROLL for (unsigned k = 0; k < CODES_EACH; k++) {
            unsigned e = me.thread + k * me.group;
            float x = 0;
            if (k >= me.each || e >= me.count) {
                wanted[k] = got[k] = 0;
                continue;
            }
            if (term == job.own_term) {
                x = codes_widen(job.own, me.first + e, job.dtype);
                if (job.residual_in != 0) x = op_sum_f32(x, job.residual_in[me.first + e]);
            } else if (job.code == BLOCK_CODE_INT8) {
                x = codes_value(job.code, bytes[me.at + 4 + e], scale);
            } else {
                uint32_t both = bytes[me.at + 4 + (e < half ? e : e - half)];
                x = codes_value(job.code, e < half ? both & 15u : both >> 4, scale);
            }
            wanted[k] = got[k] = term == 0 ? x : codes_reduce(job.op, wanted[k], x);
        }
    }
    if (job.divisor != 0) {
        KERNEL_UNROLL for (unsigned k = 0; k < CODES_EACH; k++) {
            wanted[k] = canonical_f32(wanted[k] / (float)job.divisor);
            got[k] = wanted[k];
        }
    }
    if (job.codes != 0) {
        uint32_t top = 0;
        KERNEL_UNROLL for (unsigned k = 0; k < CODES_EACH; k++) {
            uint32_t magnitude = float_to_bits(wanted[k]) & 0x7FFFFFFFu;
            if (k < me.each && me.thread + k * me.group < me.count && magnitude > top) top = magnitude;
        }
        for (unsigned by = 1; by < KERNEL_WARP; by *= 2) {
            uint32_t other = (uint32_t)__shfl_xor_sync(KERNEL_ALL_THREADS, top, by);
            top = other > top ? other : top;
        }
        __syncthreads(); // the codes of the last term were read
        if (threadIdx.x % KERNEL_WARP == 0) tops[threadIdx.x / KERNEL_WARP] = top;
        __syncthreads();
        for (unsigned i = 0; i < warps; i++) {
            uint32_t other = tops[threadIdx.x / me.group * warps + i];
            top = other > top ? other : top;
        }
        unsigned is_finite = top < BLOCK_INFINITY_BITS;
        struct block_scale by = block_scale_of((int)job.code, is_finite ? float_from_bits(top) : 0);
        if (job.is_stochastic) block_key_of(&by, job.seed, job.index + me.first);
        uint32_t scale = is_finite ? float_to_bits(by.scale) : BLOCK_NAN_BITS;
        unsigned has_codes = is_finite && by.scale != 0;
        KERNEL_UNROLL for (unsigned k = 0; k < CODES_EACH; k++) {
            unsigned e = me.thread + k * me.group;
            if (k >= me.each || e >= me.count) continue;
            uint32_t code = has_codes ? codes_code(&job, &by, wanted[k], e) : 0;
            got[k] = codes_value(job.code, code, scale);
            if (job.code == BLOCK_CODE_INT8)
                bytes[me.at + 4 + e] = (uint8_t)code;
            else
                nibbles[me.first - tile + e] = (uint8_t)code;
        }
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
    KERNEL_UNROLL for (unsigned k = 0; k < CODES_EACH; k++) {
        unsigned e = me.thread + k * me.group;
        if (k >= me.each || e >= me.count) continue;
        float stored = got[k];
        if (job.result != 0) stored = codes_store(job.result, me.first + e, job.dtype, got[k]);
        if (job.residual_out != 0) job.residual_out[me.first + e] = block_rest(wanted[k], stored, job.times);
    }
}
