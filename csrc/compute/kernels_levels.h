// What the files of the single instruction sets share. Each gives its table, or NULL when it was compiled for a machine
// or with flags that lack the instruction set; whether this machine has it is kernels.c's to know.
#ifndef PCCL_COMPUTE_KERNELS_LEVELS_H
#define PCCL_COMPUTE_KERNELS_LEVELS_H

#include "compute/kernels.h"

#include <stdbool.h>

const struct kernels *kernels_portable(void);
const struct kernels *kernels_avx2(void);
const struct kernels *kernels_avx512(void);
const struct kernels *kernels_neon(void);

// Caller's tensors may lie at any address.
typedef uint8_t any_u8 __attribute__((may_alias));
typedef int8_t any_i8 __attribute__((may_alias));
typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));
typedef int16_t any_i16 __attribute__((aligned(1), may_alias));
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));
typedef int32_t any_i32 __attribute__((aligned(1), may_alias));
typedef uint64_t any_u64 __attribute__((aligned(1), may_alias));
typedef int64_t any_i64 __attribute__((aligned(1), may_alias));
typedef uint16_t any_f16 __attribute__((aligned(1), may_alias));
typedef uint16_t any_bf16 __attribute__((aligned(1), may_alias));
typedef float any_f32 __attribute__((aligned(1), may_alias));
typedef double any_f64 __attribute__((aligned(1), may_alias));

// dst is a, is b, or overlaps neither: no iteration reads what another one wrote.
#define INDEPENDENT _Pragma("GCC ivdep")

#endif
