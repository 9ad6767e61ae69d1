// The entry of libpccl_cuda.so, and the functions that the core lends it (device/cuda.h), under their own
// names: so the other files of this folder call them as if they were linked to the core, as in the unit tests.
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/memory.h"
#include "cuda/cuda_device.h"

#define PUBLIC __attribute__((visibility("default")))

static _Atomic(const struct cuda_host *) lent;

// The table of the core's functions, after pccl_cuda_open.
static const struct cuda_host *host(void) { return atomic_load_explicit(&lent, memory_order_relaxed); }

#define FORWARD(type, name, parameters, arguments) \
    type name parameters { return host()->name arguments; }
CUDA_HOST_FUNCTIONS(FORWARD)
#undef FORWARD

pcclResult_t detail_fail(pcclResult_t code, const char *format, ...) {
    char text[DETAIL_CAPACITY];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return host()->detail_fail(code, "%s", text);
}

void log_write(enum log_level level, const char *component, const char *format, ...) {
    char text[DETAIL_CAPACITY];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    host()->log_write(level, component, "%s", text);
}

PUBLIC extern const struct cuda_abi pccl_cuda_abi;
const struct cuda_abi pccl_cuda_abi = CUDA_ABI;

PUBLIC const struct cuda_library *pccl_cuda_open(const struct cuda_host *core);
const struct cuda_library *pccl_cuda_open(const struct cuda_host *core) {
    const struct cuda_host *before = NULL;
    return atomic_compare_exchange_strong(&lent, &before, core) || before == core ? &cuda_library : NULL;
}
