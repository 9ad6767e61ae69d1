// Sparse forms (bindings/sparse): any bytes are refused, or added inside of the tensor; what was added is a form again.
#include "sparse.h"

#include "fuzz.h"

#include <stdbool.h>

enum { HEAD = 4, COUNT_MOST = 2 * SPARSE_CHUNK + 500 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size <= HEAD) return 0;
    size_t count = (data[0] | (size_t)data[1] << 8) % COUNT_MOST + 1,
           k = (data[2] | (size_t)data[3] << 8) % SPARSE_CHUNK + 1;
    size_t bytes = sparse_bytes(count, k);
    uint8_t *form = malloc(bytes);
    float *sum = calloc(count, sizeof *sum), *again = calloc(count, sizeof *again);
    MUST(form != NULL && sum != NULL && again != NULL);
    for (size_t i = 0; i < bytes; i++) form[i] = i < size - HEAD ? data[HEAD + i] : 0;
    if (sparse_valid(form, count, k)) {
        sparse_add(sum, form, 1, count, k);
        sparse_encode(form, sum, NULL, 0, count, k, NULL);
        MUST(sparse_valid(form, count, k));
        sparse_add(again, form, 1, count, k);
        for (size_t i = 0; i < count; i++) {
            bool neither = sum[i] != sum[i] && again[i] != again[i];
            MUST(neither || sum[i] == again[i]);
        }
    }
    free(form);
    free(sum);
    free(again);
    return 0;
}
