// A copy past the caches is a copy: at any place, of any length, and of nothing else.
#include "base/copy.h"
#include "check.h"

enum { ROOM = 1024, LENGTH_MAX = 400, EDGE = 80 };

// At every distance that is slow, and at some that are not.
static void test_distances(void) {
    enum { BYTES = 3 * 4096 + 77 };
    static uint8_t from[BYTES + 8192], to[BYTES + 8192];
    uint64_t base = (uintptr_t)to - (uintptr_t)from;
    for (size_t i = 0; i < sizeof from; i++) from[i] = (uint8_t)(i * 7 + i / 251);
    for (uint64_t behind = 0; behind < 70; behind++) {
        uint64_t offset = (behind - base) % 4096;
        check_case("%llu bytes behind the source", (unsigned long long)behind);
        CHECK_EQ(copy_is_slow(to + offset, (uintptr_t)from), behind >= 1 && behind <= 31);
        memset(to, 0xee, sizeof to);
        copy_bytes(to + offset, from, BYTES);
        CHECK_MEM(to + offset, from, BYTES);
        CHECK(offset == 0 || to[offset - 1] == 0xee);
        CHECK_EQ(to[offset + BYTES], 0xee);
    }
    CHECK(!copy_is_slow(to, (uintptr_t)to + 1));
}

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
            copy_past_caches(to + offset, from + source, length);
            CHECK_MEM(to, want, ROOM);
        }
    test_distances();
    return check_status();
}
