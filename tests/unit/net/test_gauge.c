// The speed of a connection, as the kernel measures it.
#define _GNU_SOURCE
#include "net/gauge.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"

enum { PIECE = 256 * 1024 };

static uint8_t piece[PIECE], room[PIECE];

static void test_rate(void) {
    check_case("the speed of a connection");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &size) == 0 &&
            connect(out, (struct sockaddr *)&address, sizeof address) == 0);
    int in = accept(listener, NULL, NULL);
    struct gauge gauge = {0};
    double first = gauge_rate(&gauge, out), rate = 0;
    CHECK(first == 0);
    int64_t began = platform_now_ns();
    while (rate == 0 && platform_now_ns() - began < 5 * SECOND_NS) {
        for (int i = 0; i < 8; i++) {
            if (send(out, piece, PIECE, MSG_DONTWAIT) < 0) usleep(1000);
            while (recv(in, room, PIECE, MSG_DONTWAIT) > 0) continue;
        }
        rate = gauge_rate(&gauge, out);
    }
    CHECK(rate > 0.001 && rate < 1000);
    close(in);
    close(out);
    close(listener);
}

int main(void) {
    test_rate();
    return check_status();
}
