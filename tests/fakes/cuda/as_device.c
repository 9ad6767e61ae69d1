// A GPU of the fake driver, where a test expects the fake device.
#include "../device.h"

#include "driver.h"

enum { OUT_OF_MEMORY = 2 };

const char *const fake_device_words = "CUDA: cu";
const bool fake_device_gets_over = true; // what is page-locked, or at the GPU, for speed alone

void *fake_device_new(size_t bytes) { return fake_cuda_new(0, bytes); }
void fake_device_hold(bool hold) { fake_cuda_hold(hold); }
void fake_device_free(void *memory) { fake_cuda_free(memory); }
void *fake_device_bytes(const void *memory) { return fake_cuda_bytes(memory); }

uint32_t fake_device_fail(uint32_t at, uint32_t count) {
    uint32_t asked = fake_cuda_counts().calls;
    fake_cuda_fail(at, count, OUT_OF_MEMORY);
    return asked;
}
