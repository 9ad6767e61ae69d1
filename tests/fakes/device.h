// A device for tests: memory of this process behind a table of its own (tests/fakes/device.c).
#ifndef PCCL_TESTS_FAKES_DEVICE_H
#define PCCL_TESTS_FAKES_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Memory of the device, which cannot be touched at this address; NULL: the system refuses.
void *fake_device_new(size_t bytes);
void fake_device_free(void *memory);
// Where a test finds the bytes of it.
void *fake_device_bytes(const void *memory);
// From now on the `at`-th thing that the device is asked to do fails, counted from 1, and so do the `count` - 1 after
// it; 0: nothing does. What was asked for since the last call, until then.
uint32_t fake_device_fail(uint32_t at, uint32_t count);

// While it is held, the device gives and takes no bytes, whatever it is asked for.
void fake_device_hold(bool hold);

// What the error of a queue that was made to fail begins with, and whether some failures are got over.
extern const char *const fake_device_words;
extern const bool fake_device_gets_over;

#endif
