// Which connections an engine takes as links of a peer.
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "base/descriptor.h"
#include "check.h"
#include "far_end.h"
#include "deaf_owner.h"
#include "data/engine.h"
#include "net/socket.h"
#include "net/transport.h"

enum { PATIENCE_MS = 20000 };

static const struct wire_id mine = {{1}}, theirs = {{2}};

// Gives the engine a link of `theirs` that comes from 127.0.0.`host`, and returns the other end.
static int link_from(struct engine *engine, uint8_t host) {
    struct wire_address at = {.family = 4, .bytes = {127, 0, 0, 1}}, bound, from;
    int listener = socket_listen(&at), fd = socket(AF_INET, SOCK_STREAM, 0), accepted = -1;
    REQUIRE(listener >= 0 && fd >= 0 && socket_local_address(listener, &bound));
    struct sockaddr_in source = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK - 1 + host)}};
    struct sockaddr_in target = {
        .sin_family = AF_INET, .sin_port = htons(bound.port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    REQUIRE(bind(fd, (struct sockaddr *)&source, sizeof source) == 0);
    REQUIRE(connect(fd, (struct sockaddr *)&target, sizeof target) == 0);
    AWAIT((accepted = socket_accept(listener, &from)) != -EAGAIN, usleep(1000));
    REQUIRE(accepted >= 0);
    CHECK_EQ(from.bytes[3], host);
    engine_add_link(engine, &theirs, 0, far_end_new(accepted));
    descriptor_close(listener);
    return fd;
}

// Whether the engine closes this connection.
static bool is_closed(int fd, int patience_ms) {
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    char bytes[256];
    while (poll(&polled, 1, patience_ms) > 0)
        if (recv(fd, bytes, sizeof bytes, 0) <= 0) return true;
    return false;
}

static void test_a_stranger_in_the_name_of_a_member(void) {
    check_case("a link that lives is replaced from its own address alone");
    struct engine *engine = engine_new(&mine, &deaf_owner);
    REQUIRE(engine != NULL);
    int first = link_from(engine, 1), stranger = link_from(engine, 2);
    CHECK(is_closed(stranger, PATIENCE_MS));
    CHECK(!is_closed(first, 100));
    int again = link_from(engine, 1);
    CHECK(is_closed(first, PATIENCE_MS));
    CHECK(!is_closed(again, 100));
    close(again);
    AWAIT(!engine_has_link(engine, &theirs, 0), usleep(1000));
    int moved = link_from(engine, 2);
    CHECK(engine_has_link(engine, &theirs, 0));
    CHECK(!is_closed(moved, 100));
    engine_stop(engine);
    engine_free(engine);
    close(first), close(stranger), close(moved);
}

int main(void) {
    test_a_stranger_in_the_name_of_a_member();
    return check_status();
}
