// The CUDA driver library, found at run time: nothing here is linked to it, and no header of NVIDIA's is needed.
//
// The declarations are those of the driver API, by its documentation (docs.nvidia.com/cuda/cuda-driver-api), of the
// functions in CUDA_DRIVER_FUNCTIONS alone. Handles are opaque pointers, and an address at a device is a number.
#ifndef PCCL_CUDA_DRIVER_H
#define PCCL_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef void (*CUhostFn)(void *user_data);

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, // the first of those about captures
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, // the last of them

    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_MEMORYTYPE_DEVICE = 2,

    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_WAIT_VALUE_GEQ = 0,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_MEMHOSTALLOC_PORTABLE = 1,
    CU_MEMHOSTALLOC_DEVICEMAP = 2,
};

// CUmemPoolProps
struct cuda_pool_properties {
    int allocation_type, handle_types, location_type, location;
    void *security;
    unsigned char reserved[64];
};

// Functions of the driver in use: member, symbol, parameters.
#define CUDA_DRIVER_FUNCTIONS(F) \
    F(init, cuInit, (unsigned flags)) \
    F(version, cuDriverGetVersion, (int *version)) \
    F(device_count, cuDeviceGetCount, (int *count)) \
    F(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, CUdevice device)) \
    F(device_name, cuDeviceGetName, (char *name, int length, CUdevice device)) \
    F(primary_context, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device)) \
    F(error_name, cuGetErrorName, (CUresult error, const char **name)) \
    F(error_string, cuGetErrorString, (CUresult error, const char **text)) \
    F(pointer_attribute, cuPointerGetAttribute, (void *data, int attribute, CUdeviceptr pointer)) \
    F(context_current, cuCtxGetCurrent, (CUcontext * context)) \
    F(context_device, cuCtxGetDevice, (CUdevice * device)) \
    F(context_push, cuCtxPushCurrent_v2, (CUcontext context)) \
    F(context_pop, cuCtxPopCurrent_v2, (CUcontext * context)) \
    F(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode)) \
    F(stream_create, cuStreamCreate, (CUstream * stream, unsigned flags)) \
    F(stream_create_urgent, cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority)) \
    F(stream_priorities, cuCtxGetStreamPriorityRange, (int *least, int *greatest)) \
    F(stream_destroy, cuStreamDestroy_v2, (CUstream stream)) \
    F(stream_query, cuStreamQuery, (CUstream stream)) \
    F(stream_wait_event, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags)) \
    F(stream_is_capturing, cuStreamIsCapturing, (CUstream stream, int *status)) \
    F(event_create, cuEventCreate, (CUevent * event, unsigned flags)) \
    F(event_destroy, cuEventDestroy_v2, (CUevent event)) \
    F(event_record, cuEventRecord, (CUevent event, CUstream stream)) \
    F(event_query, cuEventQuery, (CUevent event)) \
    F(copy, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
    F(launch_host, cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *user_data)) \
    F(host_alloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags)) \
    F(alloc, cuMemAlloc_v2, (CUdeviceptr * memory, size_t bytes)) \
    F(free, cuMemFree_v2, (CUdeviceptr memory)) \
    F(module_load, cuModuleLoadData, (CUmodule * module, const void *image)) \
    F(module_function, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name)) \
    F(launch, cuLaunchKernel, \
      (CUfunction function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x, \
       unsigned threads_y, unsigned threads_z, unsigned shared_bytes, CUstream stream, void **parameters, \
       void **extra))

// Functions that older drivers lack: memory pools since CUDA 11.2, waits for a value as used here since 11.7, loads of
// single kernels since 12.4.
#define CUDA_DRIVER_OPTIONAL(F) \
    F(pool_create, cuMemPoolCreate, (CUmemoryPool * pool, const struct cuda_pool_properties *properties)) \
    F(pool_set, cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value)) \
    F(pool_alloc, cuMemAllocFromPoolAsync, (CUdeviceptr * memory, size_t bytes, CUmemoryPool pool, CUstream stream)) \
    F(pool_free, cuMemFreeAsync, (CUdeviceptr memory, CUstream stream)) \
    F(stream_wait_value, cuStreamWaitValue32_v2, \
      (CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)) \
    F(function_load, cuFuncLoad, (CUfunction function))

struct cuda_driver {
#define CUDA_DRIVER_MEMBER(member, symbol, parameters) CUresult(*member) parameters;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_MEMBER)
    CUDA_DRIVER_OPTIONAL(CUDA_DRIVER_MEMBER) // NULL: the driver has it not
#undef CUDA_DRIVER_MEMBER
};

enum { CUDA_WHY_BYTES = 128 };

// Loads the driver, cuda_driver_name() of device/cuda.h. Returns NULL if it cannot be used, with the reason in `why`.
const struct cuda_driver *cuda_driver_load(char why[CUDA_WHY_BYTES]);
// Returns the driver after the first successful load, NULL before.
const struct cuda_driver *cuda_driver_present(void);
// Loads the driver, and initialises CUDA in this process. Returns the number of GPUs; 0 if none can be used, with the
// reason in `why`.
int cuda_driver_open(char why[CUDA_WHY_BYTES]);
// "call: NAME: text", as the driver has it.
void cuda_driver_describe(const struct cuda_driver *driver, const char *call, CUresult error, char *out, size_t room);

#endif
