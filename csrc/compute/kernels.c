#define LOG_COMPONENT "config"
#include "compute/kernels.h"

#include "base/cpu.h"
#include "base/log.h"
#include "compute/kernels_levels.h"

#include <pccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct kernels *chosen; // written once, by choose()
static pthread_once_t chosen_once = PTHREAD_ONCE_INIT;

const struct kernels *kernels_at(enum kernel_level level) {
    switch (level) {
    case KERNEL_PORTABLE: return kernels_portable();
#if defined(__x86_64__)
    case KERNEL_AVX2: return cpu_level() >= CPU_AVX2 ? kernels_avx2() : NULL;
    case KERNEL_AVX512: return cpu_level() >= CPU_AVX512 ? kernels_avx512() : NULL;
#elif defined(__aarch64__)
    case KERNEL_NEON: return kernels_neon();
#endif
    default: return NULL;
    }
}

// Returns the best level that this machine has, of this name unless it is NULL; NULL if there is none.
static const struct kernels *find(const char *name) {
    for (int level = KERNEL_LEVELS - 1; level >= 0; level--) {
        const struct kernels *kernels = kernels_at((enum kernel_level)level);
        if (kernels && (name == NULL || strcmp(kernels->name, name) == 0)) return kernels;
    }
    return NULL;
}

static void choose(void) {
    const char *wanted = getenv("PCCL_CPU_LEVEL");
    chosen = find(wanted && *wanted ? wanted : NULL);
    if (chosen) return;
    chosen = find(NULL);
    LOG(LOG_ERR, "PCCL_CPU_LEVEL=%s is ignored: this processor does not support it; using %s", wanted, chosen->name);
}

const struct kernels *kernels_get(void) {
    pthread_once(&chosen_once, choose);
    return chosen;
}

static const struct {
    const char *name;
    size_t size;
} dtypes[KERNEL_DTYPES] = {
    [pcclUint8] = {"uint8", 1},       [pcclInt8] = {"int8", 1},     [pcclInt16] = {"int16", 2},
    [pcclUint16] = {"uint16", 2},     [pcclUint32] = {"uint32", 4}, [pcclInt32] = {"int32", 4},
    [pcclUint64] = {"uint64", 8},     [pcclInt64] = {"int64", 8},   [pcclFloat16] = {"float16", 2},
    [pcclBFloat16] = {"bfloat16", 2}, [pcclFloat] = {"float32", 4}, [pcclDouble] = {"float64", 8},
    [pcclBool] = {"bool", 1},
};

size_t dtype_size(int dtype) { return dtype >= 0 && dtype < KERNEL_DTYPES ? dtypes[dtype].size : 0; }

const char *dtype_name(int dtype) { return dtype >= 0 && dtype < KERNEL_DTYPES ? dtypes[dtype].name : "unknown"; }

const char *red_op_name(int op) {
    static const char *const names[KERNEL_OPS] = {
        [pcclSum] = "sum", [pcclAvg] = "avg",          [pcclProd] = "prod",      [pcclMax] = "max",
        [pcclMin] = "min", [pcclBand] = "bitwise and", [pcclBor] = "bitwise or", [pcclBxor] = "bitwise xor"};
    return op >= 0 && op < KERNEL_OPS ? names[op] : "unknown";
}

bool red_op_takes(int op, int dtype) {
    return op >= 0 && op < KERNEL_OPS && dtype >= 0 && dtype < KERNEL_DTYPES &&
           kernels_portable()->reduce[op][dtype] != NULL;
}
