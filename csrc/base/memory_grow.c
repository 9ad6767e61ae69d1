#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

bool memory_grow(void *array, size_t *room, size_t count, size_t size, size_t least) {
    if (count <= *room) return true;
    size_t wanted = *room > SIZE_MAX / 2 ? count : 2 * *room;
    if (wanted < count) wanted = count;
    if (wanted < least) wanted = least;
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = wanted > SIZE_MAX / size ? NULL : realloc(old, wanted * size);
    if (grown == NULL) return false;
    memcpy(array, &grown, sizeof grown);
    *room = wanted;
    return true;
}
