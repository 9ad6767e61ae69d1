// The public functions of sparse forms: check their arguments, and call compute/sparse.
#include "compute/sparse.h"

#include <math.h>

#include "api/api.h"

static pcclResult_t check_size(size_t count, size_t k) {
    if (k < 1 || k > SPARSE_CHUNK)
        return detail_fail(pcclInvalidArgument, "k is %zu, but it must be from 1 to %d elements per chunk", k,
                           SPARSE_CHUNK);
    if (count > PTRDIFF_MAX / sizeof(float))
        return detail_fail(pcclInvalidArgument, "%zu elements do not fit into memory", count);
    return pcclSuccess;
}

pcclResult_t pcclSparseBytes(size_t count, size_t k, size_t *bytes_out) {
    REQUIRE_NOT_NULL(bytes_out);
    RETURN_IF_FAILED(check_size(count, k));
    *bytes_out = sparse_bytes(count, k);
    return pcclSuccess;
}

pcclResult_t pcclSparseEncode(const float *values, const float *residual_in, float decay, size_t count, size_t k,
                              void *form_out, float *residual_out) {
    REQUIRE_NOT_NULL(values);
    REQUIRE_NOT_NULL(form_out);
    RETURN_IF_FAILED(check_size(count, k));
    if (!isfinite(decay))
        return detail_fail(pcclInvalidArgument, "the decay is %g, but it must be finite", (double)decay);
    sparse_encode(form_out, values, residual_in, decay, count, k, residual_out);
    return pcclSuccess;
}

pcclResult_t pcclSparseDecodeAdd(const void *form, size_t bytes, double weight, size_t count, size_t k, float *sum) {
    REQUIRE_NOT_NULL(form);
    REQUIRE_NOT_NULL(sum);
    RETURN_IF_FAILED(check_size(count, k));
    if (!isfinite(weight)) return detail_fail(pcclInvalidArgument, "the weight is %g, but it must be finite", weight);
    if (bytes != sparse_bytes(count, k))
        return detail_fail(pcclInvalidArgument,
                           "a sparse form of %zu elements with %zu of each chunk has %zu bytes, not %zu", count, k,
                           sparse_bytes(count, k), bytes);
    if (!sparse_valid(form, count, k))
        return detail_fail(pcclInvalidArgument, "these bytes are no sparse form of %zu elements", count);
    sparse_add(sum, form, weight, count, k);
    return pcclSuccess;
}
