// What PCCL_INTERFACE and PCCL_ADDRESS mean on a host with a loopback interface.
#include "net/cards.h"

#include <string.h>
#include <sys/resource.h>

#include "check.h"
#include "net/socket.h"

static struct cards cards;
static char why[CARDS_WHY_BYTES];

static const char *text_of(const struct wire_address *address) {
    static char out[64];
    return socket_address_format(out, sizeof out, address);
}

static void test_good(void) {
    check_case("nothing is named");
    CHECK(cards_read(&cards, NULL, "", why));
    CHECK(cards.count == 0 && cards.reach.count == 0 && !cards.reach.closed);
    check_case("an interface");
    CHECK(cards_read(&cards, "lo", NULL, why));
    REQUIRE(cards.count == 1 && cards.reach.count == 1);
    CHECK(strcmp(cards.list[0].device, "lo") == 0);
    CHECK(strcmp(text_of(&cards.reach.addresses[0]), "127.0.0.1:0") == 0);
    check_case("addresses of this host and of another");
    CHECK(cards_read(&cards, NULL, "127.0.0.1,203.0.113.7:7000,[2001:db8::1]:9", why));
    REQUIRE(cards.count == 1 && cards.reach.count == 3);
    CHECK(strcmp(text_of(&cards.reach.addresses[1]), "203.0.113.7:7000") == 0);
    CHECK(strcmp(text_of(&cards.reach.addresses[2]), "[2001:db8::1]:9") == 0);
    check_case("both: cards by interfaces, addresses as announced");
    CHECK(cards_read(&cards, "lo", "203.0.113.7", why));
    REQUIRE(cards.count == 1 && cards.reach.count == 1);
    CHECK(cards.reach.addresses[0].bytes[0] == 203);
    check_case("spaces around items, an address twice, and one of IPv6 in brackets");
    CHECK(cards_read(&cards, " lo , lo ", " 203.0.113.7 , 203.0.113.7,203.0.113.7:7000, [2001:db8::1] ", why));
    REQUIRE(cards.count == 1 && cards.reach.count == 3);
    CHECK(strcmp(text_of(&cards.reach.addresses[0]), "203.0.113.7:0") == 0);
    CHECK(strcmp(text_of(&cards.reach.addresses[2]), "[2001:db8::1]:0") == 0);
    check_case("nobody can dial it");
    CHECK(cards_read(&cards, "lo", "none", why));
    CHECK(cards.count == 1 && cards.reach.count == 0 && cards.reach.closed);
}

static void test_bad(void) {
    static const struct {
        const char *interfaces, *addresses, *says;
    } rows[] = {
        {"nothing0", NULL, "interface nothing0 does not exist or has no address; this host has"},
        {"nothing0", NULL, "this host has lo"},
        {"lo,", "x", "PCCL_ADDRESS: x"},
        {NULL, "host-a", "PCCL_ADDRESS: host-a"},
        {NULL, "0.0.0.0", "PCCL_ADDRESS: 0.0.0.0"},
        {NULL, "127.0.0.1,", NULL},
        {NULL, "fe80::1", "PCCL_ADDRESS: fe80::1"},
        {NULL, "224.0.0.1", "PCCL_ADDRESS: 224.0.0.1"},
        {NULL, "255.255.255.255", "PCCL_ADDRESS: 255.255.255.255"},
        {NULL, "ff02::1", "PCCL_ADDRESS: ff02::1"},
        {NULL, "[10.0.0.1]", "PCCL_ADDRESS: [10.0.0.1]"},
        {NULL, "10.0.0.1 10.0.0.2", "PCCL_ADDRESS: 10.0.0.1 10.0.0.2"},
        {NULL, "10.0.0.1:99999", "PCCL_ADDRESS: 10.0.0.1:99999"},
        {NULL, "127.0.0.1,,127.0.0.2", "PCCL_ADDRESS: "},
        {NULL, "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5", "more than 4"},
        {"lo,lo,lo,lo,lo", NULL, NULL}, // one card
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s %s", rows[i].interfaces ? rows[i].interfaces : "", rows[i].addresses ? rows[i].addresses : "");
        CHECK_EQ(cards_read(&cards, rows[i].interfaces, rows[i].addresses, why), rows[i].says == NULL);
        if (rows[i].says != NULL) CHECK(strstr(why, rows[i].says) != NULL);
    }
}

// A process without a free descriptor cannot ask for the interfaces.
static void test_unlisted(void) {
    check_case("the system does not list the interfaces");
    struct rlimit before, none;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(!cards_read(&cards, "lo", NULL, why));
    CHECK(strstr(why, "does not list its interfaces: Too many open files") != NULL);
    CHECK(cards_read(&cards, NULL, "203.0.113.7", why) && cards.count == 0 && cards.reach.count == 1);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

int main(void) {
    test_good();
    test_bad();
    test_unlisted();
    return check_status();
}
