#include "sim/refuse.h"

#include "fuzz.h"

static unsigned countdown;

void fuzz_refuse(unsigned count) { countdown = count; }

bool refuse_now(void) { return countdown > 0 && --countdown == 0; }

uint8_t *fuzz_copy(const void *bytes, size_t length) {
    uint8_t *copy = refuse_never(length + (length == 0));
    if (length > 0) memcpy(copy, bytes, length);
    return copy;
}
