// Arrays that grow.
#ifndef PCCL_BASE_GROW_H
#define PCCL_BASE_GROW_H

#include <stdbool.h>
#include <stddef.h>

// Makes `*array`, of `*room` elements of `size` bytes, one that has room for `count`, at least `least` and twice as
// much as before when it grows. False: memory was refused, and nothing has changed.
bool grow_array(void *array, size_t *room, size_t count, size_t size, size_t least);
// Makes room for one more than `count` in `array`, an array of which `room` elements are allocated.
#define GROW(array, room, count, least) grow_array(&(array), &(room), (size_t)(count) + 1, sizeof *(array), least)

#endif
