// A reader returns the bytes that lie there, and the kernel never copies them at a slow distance.
#include <string.h>
#include <unistd.h>

#include "base/stream.h"
#include "check.h"
#include "device/reader.h"

int main(void) {
    static uint8_t memory[READER_BYTES + 8192];
    for (size_t i = 0; i < sizeof memory; i++) memory[i] = (uint8_t)(i * 7 + i / 251);
    struct reader *reader = reader_new();
    REQUIRE(reader != NULL);
    for (size_t at = 0; at < 4096; at += at < 130 ? 1 : 61)
        for (int whole = 0; whole < 2; whole++) {
            check_case("%zu bytes on, %s", at, whole ? "as much as it reads" : "a few");
            uint64_t from = (uintptr_t)memory + at;
            size_t length = whole ? READER_BYTES : 77;
            uint8_t *bytes = reader_read(reader, getpid(), from, length);
            REQUIRE(bytes != NULL);
            CHECK_MEM(bytes, memory + at, length);
            CHECK(!copy_is_slow(bytes, from));
        }
    CHECK(reader_read(reader, getpid(), (uintptr_t)memory, READER_BYTES + 1) == NULL);
    reader_free(reader);
    return check_status();
}
