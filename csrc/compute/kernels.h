// Element-wise reductions over all data types, one table of functions per instruction set, chosen once at run time.
//
// Definitions (the contract of docs/design.md, "Values"): integers wrap; MIN and MAX of floats give NaN if any input is
// NaN, and -0 < +0; float16 and bfloat16 are computed in float32 and rounded once to nearest even; every NaN result is
// the canonical quiet NaN of its type (positive, first mantissa bit only), so that all levels and machines give the
// same bits. AVG is reduced as SUM and finished by `divide`. Any byte but 0 of a bool is true, and results are 0 or 1;
// integers have the bitwise ops, floats do not, and a bool has no average. Any alignment, any count, dst may equal a or
// b; partial overlap is not allowed.
#ifndef PCCL_COMPUTE_KERNELS_H
#define PCCL_COMPUTE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KERNEL_DTYPES = 13, KERNEL_OPS = 8 }; // indexed by pcclDataType_t, pcclRedOp_t

enum kernel_level { KERNEL_PORTABLE, KERNEL_AVX2, KERNEL_AVX512, KERNEL_NEON, KERNEL_LEVELS };

typedef void kernel_reduce_fn(void *dst, const void *a, const void *b, size_t count);
// dst[i] = dst[i] / divisor: true division for floats (computed in at least float32), truncation toward zero for
// integers.
typedef void kernel_divide_fn(void *dst, size_t count, uint32_t divisor);
struct kernels {
    enum kernel_level level;
    const char *name;
    // dst[i] = a[i] op b[i], NULL where the op is not defined; the AVG row is the SUM row.
    kernel_reduce_fn *reduce[KERNEL_OPS][KERNEL_DTYPES];
    kernel_divide_fn *divide[KERNEL_DTYPES];
    const struct quant_loops *quant;                                      // for quant.c
    const struct block_loops *block;                                      // for block.c
    void (*hash_long)(uint64_t lanes[8], const void *data, size_t bytes); // for hash.c
};

// The best level this machine has; honours PCCL_CPU_LEVEL=portable|avx2|avx512|neon when that level is available
// (an unknown or unavailable value is ignored with a log line). Never fails, any thread.
const struct kernels *kernels_get(void);
// Returns the kernels of a level, or NULL if this build or machine does not have it. For tests.
const struct kernels *kernels_at(enum kernel_level level);

// Puts the calling thread into the default floating-point mode (nearest even, denormals kept), which all definitions
// above rely on, and gives back the mode it was in, for kernels_leave. Programs do switch denormals off, and a thread
// inherits the mode of its creator.
static inline unsigned kernels_enter(void) {
#if defined(__x86_64__)
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1F80);
    return before;
#elif defined(__aarch64__)
    uint64_t before; // not the builtins of gcc, which clang lacks
    __asm__ volatile("mrs %0, fpcr" : "=r"(before)::"memory");
    __asm__ volatile("msr fpcr, xzr" ::: "memory");
    return (unsigned)before;
#else
    return 0;
#endif
}

static inline void kernels_leave(unsigned mode) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)mode) : "memory");
#else
    (void)mode;
#endif
}

size_t dtype_size(int dtype); // in bytes; 0 for an unknown type
const char *dtype_name(int dtype);
const char *red_op_name(int op);
bool red_op_takes(int op, int dtype);

#endif
