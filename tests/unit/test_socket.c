// Addresses as text. Connections are tested where they are used: test_master, test_peer.
#include "net/socket.h"

#include "check.h"

static const struct row {
    const char *text;
    uint8_t family; // 0: it is no address
    uint8_t first, last;
    uint16_t port;
} rows[] = {
    {"127.0.0.1:48148", 4, 127, 1, 48148},
    {"0.0.0.0:1", 4, 0, 0, 1},
    {"255.255.255.254:65535", 4, 255, 254, 65535},
    {"[::1]:48148", 6, 0, 1, 48148},
    {"[2001:db8::7]:9", 6, 0x20, 7, 9},
    {"[::ffff:1.2.3.4]:9", 6, 0, 4, 9},
    {"", 0, 0, 0, 0},
    {":", 0, 0, 0, 0},
    {":48148", 0, 0, 0, 0},
    {"127.0.0.1", 0, 0, 0, 0},
    {"127.0.0.1:", 0, 0, 0, 0},
    {"127.0.0.1:0", 0, 0, 0, 0},
    {"127.0.0.1:65536", 0, 0, 0, 0},
    {"127.0.0.1:99999999999999999999", 0, 0, 0, 0},
    {"127.0.0.1:+5", 0, 0, 0, 0},
    {"127.0.0.1: 5", 0, 0, 0, 0},
    {"127.0.0.1:5x", 0, 0, 0, 0},
    {"127.0.0.1:5 ", 0, 0, 0, 0},
    {" 127.0.0.1:5", 0, 0, 0, 0},
    {"127.0.1:5", 0, 0, 0, 0},
    {"127.0.0.256:5", 0, 0, 0, 0},
    {"localhost:5", 0, 0, 0, 0},
    {"::1:5", 0, 0, 0, 0},
    {"[::1]", 0, 0, 0, 0},
    {"[::1:5", 0, 0, 0, 0},
    {"::1]:5", 0, 0, 0, 0},
    {"[]:5", 0, 0, 0, 0},
    {"[:5", 0, 0, 0, 0},
    {"[127.0.0.1]:5", 0, 0, 0, 0},
    {"[fe80::1%eth0]:5", 0, 0, 0, 0},
    {"[0000:0000:0000:0000:0000:0000:0000:0000000000000000000000000000000000000000001]:5", 0, 0, 0, 0},
};

static void test_parse(void) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        size_t length = strlen(row->text);
        check_case("\"%s\"", row->text);
        struct wire_address got = {.family = 77};
        char *exact = malloc(length + 1);
        memcpy(exact, row->text, length);
        CHECK_EQ(socket_address_parse(exact, length, &got), row->family != 0);
        CHECK_EQ(got.family, row->family != 0 ? row->family : 77); // an address that is none is not written
        if (row->family != 0) {
            CHECK_EQ(got.bytes[0], row->first);
            CHECK_EQ(got.bytes[row->family == 4 ? 3 : 15], row->last);
            CHECK_EQ(got.port, row->port);
        }
        free(exact);
    }
}

static void test_format(void) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct wire_address address, again;
        char text[64];
        if (!socket_address_parse(rows[i].text, strlen(rows[i].text), &address)) continue;
        check_case("\"%s\" again", rows[i].text);
        socket_address_format(text, sizeof text, &address);
        CHECK(socket_address_parse(text, strlen(text), &again));
        CHECK_MEM(&again, &address, sizeof again);
    }
    check_case("only the length counts");
    struct wire_address address;
    CHECK(socket_address_parse("1.2.3.4:56789", 9, &address));
    CHECK_EQ(address.port, 5);
    CHECK(!socket_address_parse("1.2.3.4:5\0006", 11, &address));
}

static void test_kinds(void) {
    static const struct {
        const char *text;
        bool loopback, any;
    } kinds[] = {{"127.0.0.1:1", true, false}, {"127.9.9.9:1", true, false}, {"[::1]:1", true, false}, {"0.0.0.0:1", false, true}, {"[::]:1", false, true}, {"10.0.0.1:1", false, false}, {"[2001:db8::1]:1", false, false}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct wire_address address;
        check_case("%s", kinds[i].text);
        REQUIRE(socket_address_parse(kinds[i].text, strlen(kinds[i].text), &address));
        CHECK_EQ(socket_address_is_loopback(&address), kinds[i].loopback);
        CHECK_EQ(socket_address_is_any(&address), kinds[i].any);
    }
}

int main(void) {
    test_parse();
    test_format();
    test_kinds();
    return check_status();
}
