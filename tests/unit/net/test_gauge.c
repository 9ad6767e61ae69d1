// What the kernel says of a connection over the loopback device, and of what is none.
#define _GNU_SOURCE
#include "net/gauge.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"

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

static void test_connection(void) {
    check_case("a connection");
    int pair[2];
    connect_pair(pair);
    struct gauge idle = gauge_read(pair[0]);
    CHECK(idle.tells_queue);
    CHECK_EQ(idle.queued, 0);
    CHECK(idle.round_trip_us > 0 && idle.round_trip_us < 10 * 1000 * 1000);

    uint64_t sent = fill(pair[0]);
    struct gauge full = gauge_read(pair[0]);
    CHECK(full.queued > 0 && full.queued <= sent);
    CHECK(full.acked >= idle.acked && full.acked - idle.acked <= sent);
    CHECK(full.busy_us >= idle.busy_us);

    CHECK_EQ(drain(pair[1], sent), sent);
    struct gauge over = gauge_read(pair[0]);
    for (int i = 0; over.queued > 0 && i < 5000; i++, over = gauge_read(pair[0])) usleep(1000);
    CHECK_EQ(over.queued, 0);
    CHECK_EQ(over.acked - idle.acked, sent);
    CHECK(over.retransmits >= idle.retransmits);
    close(pair[0]);
    close(pair[1]);
}

// Links of tests are such sockets; a link can end at any time.
static void test_others(void) {
    check_case("no connection by TCP");
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct gauge gauge = gauge_read(pair[0]);
    CHECK_EQ(gauge.acked, 0);
    CHECK_EQ(gauge.busy_us, 0);
    CHECK_EQ(gauge.round_trip_us, 0);
    close(pair[0]);
    close(pair[1]);
    gauge = gauge_read(pair[0]);
    CHECK(!gauge.tells_queue);
    CHECK_EQ(gauge.queued, 0);
}

int main(void) {
    test_connection();
    test_others();
    return check_status();
}
