// Which master is dialled next, and when.
#include "peer/seek.h"

#include "base/platform.h"
#include "check.h"

static const struct wire_address masters[] = {
    {.family = 4, .port = 1}, {.family = 4, .port = 2}, {.family = 4, .port = 3}};

static struct seek of(uint32_t count) { return (struct seek){.masters = masters, .count = count}; }

static int port(const struct seek *seek) { return seek_master(seek)->port; }

static void test_once(void) {
    check_case("a new peer goes through the list once, at once");
    struct seek seek = of(3);
    seek_begin(&seek, false, SECOND_NS);
    for (int i = 1; i <= 3; i++) {
        CHECK_EQ(port(&seek), i);
        CHECK_EQ(seek.next, SECOND_NS);
        CHECK_EQ(seek_failed(&seek, SECOND_NS), i < 3);
    }
    CHECK_EQ(port(&seek), 1); // for the next attempt
}

static void test_again(void) {
    for (uint32_t count = 1; count <= 3; count++) {
        check_case("a peer without its master goes through the list of %u again and again", count);
        struct seek seek = of(count);
        int64_t now = SECOND_NS, lost = now;
        uint32_t rounds = 0;
        seek_begin(&seek, true, now);
        while (now < lost + 5 * SECOND_NS) {
            for (uint32_t i = 1; i <= count; i++) {
                CHECK_EQ(port(&seek), i);
                CHECK(seek.next <= now);
                CHECK(seek_failed(&seek, now));
            }
            CHECK_EQ(seek.next - now, (now - lost < SEEK_FAST_FOR_MS * MS_NS ? SEEK_FAST_MS : SEEK_SLOW_MS) * MS_NS);
            now = seek.next;
            rounds++;
        }
        CHECK_EQ(rounds,
                 (SEEK_FAST_FOR_MS + SEEK_FAST_MS - 1) / SEEK_FAST_MS + (5000 - SEEK_FAST_FOR_MS) / SEEK_SLOW_MS);
    }
}

static void test_anew(void) {
    check_case("from the first one on");
    struct seek seek = of(3);
    seek_begin(&seek, true, SECOND_NS);
    seek_failed(&seek, SECOND_NS);
    seek_failed(&seek, SECOND_NS);
    CHECK_EQ(port(&seek), 3);
    seek_anew(&seek, 9 * SECOND_NS);
    CHECK_EQ(port(&seek), 1);
    CHECK_EQ(seek.next, 9 * SECOND_NS);
    CHECK(seek_failed(&seek, 9 * SECOND_NS));
    CHECK_EQ(port(&seek), 2);
}

static void test_tells(void) {
    check_case("a line each ten seconds, the first after ten");
    struct seek seek = of(1);
    seek_begin(&seek, true, SECOND_NS);
    int told = 0;
    for (int64_t ms = 0; ms <= 35000; ms += 100) told += seek_tells(&seek, SECOND_NS + ms * MS_NS);
    CHECK_EQ(told, 3);
}

int main(void) {
    test_once();
    test_again();
    test_anew();
    test_tells();
    return check_status();
}
