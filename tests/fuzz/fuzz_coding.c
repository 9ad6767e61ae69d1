// Packed leaves (state/leaf): any bytes are unpacked to a leaf of exactly the length that was asked for, or refused;
// what was packed comes back.
#include "state/leaf.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3 || !leaf_packing_available()) return 0;
    uint32_t length = data[0] | (uint32_t)data[1] << 8 | (uint32_t)(data[2] & 3) << 16;
    uint8_t *packed = fuzz_copy(data + 3, size - 3);
    uint8_t *leaf = malloc(length + (length == 0)), *back = malloc(size);
    MUST(leaf != NULL && back != NULL);
    if (size > 3) leaf_unpack(leaf, length, packed, (uint32_t)(size - 3));
    uint32_t shorter = size > 3 ? leaf_pack(leaf, packed, length < size - 3 ? length : (uint32_t)(size - 3)) : 0;
    uint32_t whole = length < size - 3 ? length : (uint32_t)(size - 3);
    MUST(shorter <= whole);
    if (shorter > 0) MUST(leaf_unpack(back, whole, leaf, shorter) && memcmp(back, packed, whole) == 0);
    free(packed);
    free(leaf);
    free(back);
    return 0;
}
