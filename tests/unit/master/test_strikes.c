// Hosts whose newcomers fail: how long the next ones wait behind the others.
#include "base/platform.h"
#include "check.h"
#include "master/strikes.h"

static struct strikes strikes;

static struct wire_address host(uint8_t family, uint8_t last) {
    struct wire_address address = {.family = family, .port = last};
    address.bytes[family == 4 ? 3 : 15] = last;
    return address;
}

// In heartbeat limits, from the last failure.
static void test_waits(void) {
    static const int64_t waits[] = {0, 0, 2, 4, 8, 16, 32, 64, 64, 64};
    struct wire_address address = host(4, 1);
    for (uint32_t failures = 0; failures < sizeof waits / sizeof waits[0]; failures++) {
        strikes_init(&strikes, SECOND_NS);
        for (uint32_t i = 0; i < failures; i++) strikes_add(&strikes, &address, 100 * SECOND_NS + i);
        int64_t last = failures > 0 ? 100 * SECOND_NS + failures - 1 : 0;
        check_case("%u failures", failures);
        CHECK_EQ(strikes_until(&strikes, &address, 101 * SECOND_NS),
                 waits[failures] ? last + waits[failures] * SECOND_NS : 0);
    }
}

static void test_ends(void) {
    struct wire_address address = host(4, 1), other = host(4, 2);
    check_case("forgiven");
    strikes_init(&strikes, SECOND_NS);
    for (int i = 0; i < 3; i++) strikes_add(&strikes, &address, SECOND_NS);
    CHECK_EQ(strikes_until(&strikes, &other, SECOND_NS), 0);
    strikes_forgive(&strikes, &address, SECOND_NS);
    CHECK_EQ(strikes_until(&strikes, &address, SECOND_NS), 0);
    check_case("forgotten after three times the wait");
    for (int i = 0; i < 3; i++) strikes_add(&strikes, &address, SECOND_NS);
    CHECK_EQ(strikes_until(&strikes, &address, 13 * SECOND_NS - 1), 5 * SECOND_NS);
    CHECK_EQ(strikes_until(&strikes, &address, 13 * SECOND_NS), 0);
}

static void test_hosts(void) {
    check_case("the hosts of an IPv6 network are one");
    struct wire_address one = host(6, 1), two = host(6, 2);
    strikes_init(&strikes, SECOND_NS);
    strikes_add(&strikes, &one, SECOND_NS);
    strikes_add(&strikes, &two, SECOND_NS);
    CHECK(strikes_until(&strikes, &one, SECOND_NS) > 0);
    check_case("of too many the oldest is forgotten");
    strikes_init(&strikes, 1000 * SECOND_NS);
    for (uint8_t i = 0; i <= STRIKES_MAX; i++)
        for (int k = 0; k < 2; k++) {
            struct wire_address address = host(4, i);
            strikes_add(&strikes, &address, (i + 1) * SECOND_NS);
        }
    for (uint8_t i = 0; i <= STRIKES_MAX; i++) {
        struct wire_address address = host(4, i);
        CHECK_EQ(strikes_until(&strikes, &address, 100 * SECOND_NS) > 0, i > 0);
    }
}

int main(void) {
    test_waits();
    test_ends();
    test_hosts();
    return check_status();
}
