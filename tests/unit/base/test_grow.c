// Arrays that grow.
#include "base/grow.h"

#include <stdint.h>
#include <stdlib.h>

#include "check.h"

int main(void) {
    uint32_t *numbers = NULL;
    size_t room = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        size_t before = room;
        REQUIRE(GROW(numbers, room, i, 8));
        CHECK(room > i && (room == before || room == 8 || room == 2 * before));
        numbers[i] = i;
    }
    for (uint32_t i = 0; i < 1000; i++) CHECK_EQ(numbers[i], i);

    size_t before = room;
    CHECK(!grow_array(&numbers, &room, SIZE_MAX, sizeof *numbers, 8)); // more than memory holds
    CHECK_EQ(room, before);
    CHECK_EQ(numbers[999], 999);
    CHECK(grow_array(&numbers, &room, 5000, sizeof *numbers, 8)); // more than twice as much
    CHECK_EQ(room, 5000);
    free(numbers);
    return check_status();
}
