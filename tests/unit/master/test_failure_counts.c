// Hosts whose newcomers fail: how long the next ones wait behind the others.
#include "base/platform.h"
#include "check.h"
#include "master/failure_counts.h"

static struct failure_counts failure_counts;

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
        failure_counts_init(&failure_counts, SECOND_NS);
        for (uint32_t i = 0; i < failures; i++) failure_counts_add(&failure_counts, &address, 100 * SECOND_NS + i);
        int64_t last = failures > 0 ? 100 * SECOND_NS + failures - 1 : 0;
        check_case("%u failures", failures);
        CHECK_EQ(failure_counts_until(&failure_counts, &address, 101 * SECOND_NS),
                 waits[failures] ? last + waits[failures] * SECOND_NS : 0);
    }
}

static void test_ends(void) {
    struct wire_address address = host(4, 1), other = host(4, 2);
    check_case("forgiven");
    failure_counts_init(&failure_counts, SECOND_NS);
    for (int i = 0; i < 3; i++) failure_counts_add(&failure_counts, &address, SECOND_NS);
    CHECK_EQ(failure_counts_until(&failure_counts, &other, SECOND_NS), 0);
    failure_counts_forgive(&failure_counts, &address, SECOND_NS);
    CHECK_EQ(failure_counts_until(&failure_counts, &address, SECOND_NS), 0);
    check_case("forgotten after three times the wait");
    for (int i = 0; i < 3; i++) failure_counts_add(&failure_counts, &address, SECOND_NS);
    CHECK_EQ(failure_counts_until(&failure_counts, &address, 13 * SECOND_NS - 1), 5 * SECOND_NS);
    CHECK_EQ(failure_counts_until(&failure_counts, &address, 13 * SECOND_NS), 0);
}

static void test_hosts(void) {
    check_case("the hosts of an IPv6 network are one");
    struct wire_address one = host(6, 1), two = host(6, 2);
    failure_counts_init(&failure_counts, SECOND_NS);
    failure_counts_add(&failure_counts, &one, SECOND_NS);
    failure_counts_add(&failure_counts, &two, SECOND_NS);
    CHECK(failure_counts_until(&failure_counts, &one, SECOND_NS) > 0);
    check_case("of too many the oldest is forgotten");
    failure_counts_init(&failure_counts, 1000 * SECOND_NS);
    for (uint8_t i = 0; i <= FAILURE_COUNTS_MAX; i++)
        for (int k = 0; k < 2; k++) {
            struct wire_address address = host(4, i);
            failure_counts_add(&failure_counts, &address, (i + 1) * SECOND_NS);
        }
    for (uint8_t i = 0; i <= FAILURE_COUNTS_MAX; i++) {
        struct wire_address address = host(4, i);
        CHECK_EQ(failure_counts_until(&failure_counts, &address, 100 * SECOND_NS) > 0, i > 0);
    }
}

int main(void) {
    test_waits();
    test_ends();
    test_hosts();
    return check_status();
}
