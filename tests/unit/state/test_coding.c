// Packed leaves: what comes out, what hostile bytes do, and when packing is chosen.
#define _GNU_SOURCE
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "compute/hash.h"
#include "state/coding.h"

enum { LEAF = HASH_LEAF_BYTES, PAGE = 4096 };

static uint8_t leaf[LEAF], packed[LEAF];
static uint64_t seed = 3;

static void fill(unsigned kinds) {
    for (size_t i = 0; i < LEAF; i++) leaf[i] = (uint8_t)(check_random(&seed) % kinds);
}

// A place of `length` bytes whose neighbours cannot be touched.
static uint8_t *guarded(size_t length) {
    uint8_t *pages = mmap(NULL, LEAF + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED && mprotect(pages + LEAF, PAGE, PROT_NONE) == 0);
    return pages + LEAF - length;
}

static void unguard(uint8_t *place, size_t length) { munmap(place + length - LEAF, LEAF + PAGE); }

static void test_lengths(void) {
    static const uint32_t lengths[] = {CODING_LEAST_BYTES, 65537, LEAF - 1, LEAF};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint32_t length = lengths[i];
        check_case("length %u", length);
        fill(4);
        uint32_t short_length = coding_pack(packed, leaf, length);
        CHECK(short_length > 0 && short_length < length);
        uint8_t *to = guarded(length), *from = guarded(short_length);
        memcpy(from, packed, short_length);
        CHECK(coding_unpack(to, length, from, short_length));
        CHECK_MEM(to, leaf, length);
        CHECK(!coding_unpack(to, length - 1, from, short_length));
        CHECK(!coding_unpack(to, length, from, short_length - 1));
        unguard(to, length);
        unguard(from, short_length);
        to = guarded(length + 1 > LEAF ? length : length + 1);
        if (length < LEAF) CHECK(!coding_unpack(to, length + 1, packed, short_length));
        unguard(to, length + 1 > LEAF ? length : length + 1);
    }
    check_case("what cannot be made shorter");
    fill(256);
    CHECK_EQ(coding_pack(packed, leaf, LEAF), 0);
}

// Nothing is read or written outside, and a leaf that unpacks to other bytes has another hash.
static void test_hostile(void) {
    fill(8);
    uint32_t length = coding_pack(packed, leaf, LEAF);
    uint64_t right = hash_xxh3_64(leaf, LEAF);
    uint8_t *to = guarded(LEAF);
    for (int trial = 0; trial < 3000; trial++) {
        check_case("hostile, trial %d", trial);
        uint32_t cut = trial % 3 == 0 ? (uint32_t)(check_random(&seed) % length) : length;
        uint8_t *from = guarded(cut);
        memcpy(from, packed, cut);
        unsigned flips = 1 + (unsigned)(check_random(&seed) % 8);
        for (unsigned i = 0; i < flips && cut > 0; i++)
            from[check_random(&seed) % cut] = trial % 2 == 0 ? 255 : (uint8_t)check_random(&seed);
        bool same = cut == length && memcmp(from, packed, length) == 0;
        if (coding_unpack(to, LEAF, from, cut))
            CHECK((hash_xxh3_64(to, LEAF) == right) == (memcmp(to, leaf, LEAF) == 0));
        CHECK(!same || memcmp(to, leaf, LEAF) == 0);
        unguard(from, cut);
    }
    unguard(to, LEAF);
}

static void test_switch(void) {
    check_case("switched off");
    setenv("PCCL_LZ4", "0", 1);
    CHECK(!coding_available());
    unsetenv("PCCL_LZ4");
    CHECK(coding_available());
}

static void test_choice(void) {
    static const struct {
        const char *name;
        double bytes_per_ns, pack_ns; // per leaf
        uint32_t packed;              // length, 0 = not shorter
        bool pays;
    } rows[] = {
        {"200 Mbit/s, half", 0.025, 500e3, LEAF / 2, true},
        {"200 Mbit/s, not shorter", 0.025, 100e3, 0, false},
        {"200 Mbit/s, a little shorter", 0.025, 100e3, LEAF - LEAF / 16, false},
        {"10 Gbit/s, half, slow to pack", 1.25, 500e3, LEAF / 2, false},
        {"loopback, half", 3, 300e3, LEAF / 2, false},
        {"loopback, zeros", 3, 20e3, LEAF / 250, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        struct coding_choice choice = {0};
        double speed = rows[i].bytes_per_ns;
        CHECK(!coding_tries(&choice, 0)); // nothing is known of the link
        double trials = 0, plain = 0;
        for (int n = 0; n < 20000; n++) {
            if (!coding_tries(&choice, speed)) {
                plain++;
                continue;
            }
            coding_tried(&choice, speed, LEAF, rows[i].packed, (int64_t)rows[i].pack_ns);
            trials++;
        }
        CHECK_EQ(coding_pays(&choice, speed), rows[i].pays);
        double sent = plain * LEAF / rows[i].bytes_per_ns;
        if (rows[i].pays)
            CHECK(plain == 0);
        else
            CHECK(trials > 0 && trials * rows[i].pack_ns < 0.03 * sent);
        // The content changes, or the link does.
        for (int n = 0; n < 5000; n++)
            if (coding_tries(&choice, 0.01)) coding_tried(&choice, 0.01, LEAF, LEAF / 3, 400000);
        CHECK(coding_pays(&choice, 0.01));
    }
}

int main(void) {
    test_choice();
    if (coding_available()) {
        test_lengths();
        test_hostile();
        test_switch();
    } else {
        CHECK(!coding_unpack(leaf, LEAF, packed, 100));
        CHECK_EQ(coding_pack(packed, leaf, LEAF), 0);
    }
    return check_status();
}
