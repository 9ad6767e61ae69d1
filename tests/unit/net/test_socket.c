// Addresses as text, congestion control, and what the kernel says of a connection. Connections are tested where they are
// used: test_master, test_communicator.
#define _GNU_SOURCE
#include "net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/platform.h"
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
    } kinds[] = {
        {"127.0.0.1:1", true, false},
        {"127.0.0.0:1", true, false},
        {"127.255.255.255:1", true, false},
        {"126.255.255.255:1", false, false},
        {"128.0.0.1:1", false, false},
        {"[::1]:1", true, false},
        {"[::2]:1", false, false},
        {"[1::1]:1", false, false},
        {"[::ffff:127.0.0.1]:1", true, false},
        {"[::ffff:127.1.2.3]:1", true, false},
        {"[::ffff:10.0.0.1]:1", false, false},
        {"[::ffff:0.0.0.0]:1", false, true},
        {"[::127.0.0.1]:1", false, false}, // no mapped one: it is routed
        {"[64:ff9b::127.0.0.1]:1", false, false},
        {"[::fffe:127.0.0.1]:1", false, false},
        {"0.0.0.0:1", false, true},
        {"0.0.0.1:1", false, false},
        {"[::]:1", false, true},
        {"10.0.0.1:1", false, false},
        {"192.168.127.1:1", false, false},
        {"[fe80::1]:1", false, false},
        {"[fd00::1]:1", false, false},
        {"[2001:db8::1]:1", false, false},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct wire_address address;
        check_case("%s", kinds[i].text);
        REQUIRE(socket_address_parse(kinds[i].text, strlen(kinds[i].text), &address));
        CHECK_EQ(socket_address_is_loopback(&address), kinds[i].loopback);
        CHECK_EQ(socket_address_is_any(&address), kinds[i].any);
    }
}

// ---- congestion control ----
static struct wire_address address_of(const char *text) {
    struct wire_address address = {0};
    REQUIRE(socket_address_parse(text, strlen(text), &address));
    return address;
}

static int accept_one(int listener) {
    struct wire_address from;
    struct pollfd polled = {.fd = listener, .events = POLLIN};
    REQUIRE(poll(&polled, 1, 10000) == 1);
    int fd = socket_accept(listener, &from);
    REQUIRE(fd >= 0);
    return fd;
}

static void check_congestion(int fd, const char *want) {
    char name[17];
    CHECK(socket_congestion(fd, name, sizeof name));
    CHECK_STR(name, want);
}

static void test_within_host(const char *text) {
    check_case("dialled and accepted within the host, %s", text);
    struct wire_address address = address_of(text);
    address.port = 0;
    int listener = socket_listen(&address);
    if (listener < 0) return; // a system without IPv6
    REQUIRE(socket_local_address(listener, &address));
    int dialled = socket_dial(&address);
    REQUIRE(dialled >= 0);
    int accepted = accept_one(listener);
    check_congestion(dialled, "reno");
    check_congestion(accepted, "reno");
    CHECK(socket_within_host(accepted));
    descriptor_close(dialled);
    descriptor_close(accepted);
    descriptor_close(listener);
}

static bool write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return written;
}

// Gives this process a network of its own, in which the loopback device has an address besides its usual one. False:
// not allowed.
static bool enter_network(const char *alias) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq up = {.ifr_name = "lo"}, other = {.ifr_name = "lo:1"};
    struct sockaddr_in *at = (struct sockaddr_in *)(void *)&other.ifr_addr;
    at->sin_family = AF_INET;
    up.ifr_flags = IFF_UP | IFF_RUNNING;
    bool made = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &up) == 0 && inet_pton(AF_INET, alias, &at->sin_addr) == 1 &&
                ioctl(fd, SIOCSIFADDR, &other) == 0;
    if (fd >= 0) close(fd);
    return made;
}

static void test_choice(void) {
    check_case("an algorithm that there is not, or that has no name");
    char allowed[256] = "";
    CHECK(!socket_may_choose("no-such-thing", allowed, sizeof allowed));
    CHECK(strstr(allowed, "reno") != NULL && strchr(allowed, '\n') == NULL);
    char cut[5];
    CHECK(!socket_may_choose("a-name-that-is-much-too-long-for-any", cut, sizeof cut));
    CHECK(strlen(cut) < sizeof cut);
    CHECK(!socket_may_choose("", allowed, sizeof allowed));
    check_case("one that every process may choose");
    CHECK(socket_may_choose("reno", allowed, sizeof allowed));
}

// A connection whose ends have different addresses counts as one between hosts.
static void test_between_hosts(void) {
    if (!enter_network("192.0.2.1")) {
        printf("left out, not allowed here: connections between hosts\n");
        return;
    }
    static const char *const systems[] = {"bbr", "cubic", "dctcp", "reno"};
    for (size_t i = 0; i < sizeof systems / sizeof systems[0]; i++) {
        // not built into this kernel
        if (!write_file("/proc/sys/net/ipv4/tcp_congestion_control", systems[i])) continue;
        check_case("the system's choice is %s", systems[i]);
        struct wire_address address = address_of("127.0.0.1:1");
        address.port = 0;
        int listener = socket_listen(&address);
        REQUIRE(listener >= 0 && socket_local_address(listener, &address));
        check_congestion(listener, strcmp(systems[i], "dctcp") == 0 ? "dctcp" : "reno");
        struct sockaddr_in source = {.sin_family = AF_INET};
        REQUIRE(inet_pton(AF_INET, "192.0.2.1", &source.sin_addr) == 1);
        struct sockaddr_storage to;
        socklen_t length = socket_address_to_sockaddr(&to, &address);
        int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        REQUIRE(other >= 0 && bind(other, (struct sockaddr *)&source, sizeof source) == 0 &&
                connect(other, (struct sockaddr *)&to, length) == 0);
        int accepted = accept_one(listener);
        CHECK(!socket_within_host(accepted));
        check_congestion(accepted, systems[i]);
        socket_apply_congestion(accepted, "reno");
        check_congestion(accepted, "reno");
        descriptor_close(accepted);
        descriptor_close(other);
        int dialled = socket_dial(&address);
        REQUIRE(dialled >= 0);
        accepted = accept_one(listener);
        check_congestion(dialled, "reno");
        check_congestion(accepted, "reno");
        descriptor_close(accepted);
        descriptor_close(dialled);
        descriptor_close(listener);
    }
}

// ---- metrics ----

enum { PIECE = 64 * 1024 };

static uint8_t piece[PIECE], room[PIECE];

static void connect_pair(int pair[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &size) == 0 &&
            connect(pair[0], (struct sockaddr *)&address, sizeof address) == 0);
    pair[1] = accept(listener, NULL, NULL);
    REQUIRE(pair[1] >= 0);
    close(listener);
}

// Until the kernel takes no more: the other side does not read.
static uint64_t fill(int fd) {
    uint64_t sent = 0;
    for (ssize_t got; (got = send(fd, piece, PIECE, MSG_DONTWAIT)) > 0;) sent += (uint64_t)got;
    return sent;
}

static uint64_t drain(int fd, uint64_t bytes) {
    uint64_t drained = 0;
    for (ssize_t got; drained < bytes && (got = recv(fd, room, PIECE, 0)) > 0;) drained += (uint64_t)got;
    return drained;
}

static void test_gauge(void) {
    check_case("the metrics of a connection");
    int pair[2];
    connect_pair(pair);
    struct gauge idle = socket_gauge(pair[0]);
    CHECK(idle.tells_queue);
    CHECK_EQ(idle.queued, 0);
    CHECK(idle.round_trip_us > 0 && idle.round_trip_us < 10 * 1000 * 1000);

    uint64_t sent = fill(pair[0]);
    struct gauge full = socket_gauge(pair[0]);
    CHECK(full.queued > 0 && full.queued <= sent);
    CHECK(full.acked >= idle.acked && full.acked - idle.acked <= sent);
    CHECK(full.busy_us >= idle.busy_us);

    CHECK_EQ(drain(pair[1], sent), sent);
    struct gauge over = socket_gauge(pair[0]);
    for (int i = 0; over.queued > 0 && i < 5000; i++, over = socket_gauge(pair[0])) usleep(1000);
    CHECK_EQ(over.queued, 0);
    CHECK_EQ(over.acked - idle.acked, sent);
    CHECK(over.retransmits >= idle.retransmits);
    close(pair[0]);
    close(pair[1]);
}

// Links of tests are such sockets; a link can end at any time.
static void test_gauge_of_others(void) {
    check_case("the metrics of what is no connection by TCP");
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct gauge gauge = socket_gauge(pair[0]);
    CHECK_EQ(gauge.acked, 0);
    CHECK_EQ(gauge.busy_us, 0);
    CHECK_EQ(gauge.round_trip_us, 0);
    close(pair[0]);
    close(pair[1]);
    gauge = socket_gauge(pair[0]);
    CHECK(!gauge.tells_queue);
    CHECK_EQ(gauge.queued, 0);
}

int main(void) {
    test_parse();
    test_format();
    test_kinds();
    test_choice();
    test_within_host("127.0.0.1:1");
    test_within_host("[::1]:1");
    test_gauge();
    test_gauge_of_others();
    test_between_hosts();
    return check_status();
}
