// A copy past the caches is a copy: at any place, of any length, and of nothing else.
#include "base/stream.h"
#include "check.h"

enum { ROOM = 1024, LENGTH_MAX = 400, EDGE = 80 };

int main(void) {
    uint8_t from[ROOM], to[ROOM], want[ROOM];
    for (size_t i = 0; i < ROOM; i++) from[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t offset = 0; offset < EDGE; offset++)
        for (size_t length = 0; length < LENGTH_MAX; length += 1 + length / 50) {
            size_t source = offset * 5 % EDGE;
            check_case("%zu bytes from %zu to %zu", length, source, offset);
            memset(to, 0xee, ROOM);
            memset(want, 0xee, ROOM);
            memcpy(want + offset, from + source, length);
            stream_copy(to + offset, from + source, length);
            CHECK_MEM(to, want, ROOM);
        }
    return check_status();
}
