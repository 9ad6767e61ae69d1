// A listener takes what comes, pauses where descriptors are short, and takes what waited when it goes on.
#define _GNU_SOURCE
#include "net/listener.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "check.h"
#include "far_end.h"
#include "net/socket.h"

enum { TOKEN = 5, PAUSE_MS = 100 };

static const struct wire_address any_port = {.family = 4, .bytes = {127, 0, 0, 1}};

static bool is_ready(int poller) {
    struct epoll_event event;
    return epoll_wait(poller, &event, 1, 100) == 1 && event.data.u64 == TOKEN;
}

static void no_descriptors(bool none) {
    static struct rlimit before;
    struct rlimit limit;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (none) before = limit;
    limit.rlim_cur = none ? 3 : before.rlim_cur;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void test_pause(void) {
    int poller = descriptor_epoll();
    struct listener listener = listener_closed(far_end_context(), poller, TOKEN, PAUSE_MS);
    struct wire_address address, from;
    struct transport *dialled, *accepted;
    REQUIRE(poller >= 0 && listener_open(&listener, socket_listen(&any_port)) == 0);
    REQUIRE(socket_local_address(listener.fd, &address));
    CHECK_EQ(listener_accept(&listener, &accepted, &from, 0), -EAGAIN);
    CHECK(!listener_pauses(&listener));

    REQUIRE(transport_dial(far_end_context(), &address, &dialled) == 0 && is_ready(poller));
    no_descriptors(true);
    CHECK_EQ(listener_accept(&listener, &accepted, &from, 7), -EMFILE);
    no_descriptors(false);
    CHECK(listener_pauses(&listener));
    CHECK_EQ(listener.resumes_ns, 7 + PAUSE_MS * MS_NS);
    CHECK(!is_ready(poller)); // it would spin
    listener_tick(&listener, 6 + PAUSE_MS * MS_NS);
    CHECK(listener_pauses(&listener));
    listener_tick(&listener, 7 + PAUSE_MS * MS_NS);
    CHECK(!listener_pauses(&listener) && is_ready(poller));

    REQUIRE(listener_accept(&listener, &accepted, &from, 0) == 0);
    transport_free(accepted);
    transport_free(dialled);
    listener_close(&listener);
    listener_close(&listener);
    descriptor_close(poller);
}

static void test_open_fails(void) {
    struct listener listener = listener_closed(far_end_context(), -1, TOKEN, PAUSE_MS);
    CHECK_EQ(listener_open(&listener, -EADDRINUSE), -EADDRINUSE);
    CHECK_EQ(listener_open(&listener, socket_listen(&any_port)), -EBADF); // nobody can watch it
    CHECK_EQ(listener.fd, -1);
    CHECK_EQ(listener.resumes_ns, INT64_MAX);
}

static void test_several_addresses(void) {
    struct listener listeners[3], other = listener_closed(far_end_context(), descriptor_epoll(), TOKEN, PAUSE_MS);
    struct wire_address addresses[3] = {any_port,
                                        {.family = 4, .bytes = {192, 0, 2, 254}}, // nobody has it
                                        {.family = 4, .bytes = {127, 0, 1, 1}}};
    for (int i = 0; i < 3; i++) listeners[i] = listener_closed(far_end_context(), other.poller, TOKEN, PAUSE_MS);
    REQUIRE(listener_open_all(listeners, addresses, 3) == 0);
    CHECK(addresses[0].port != 0 && addresses[2].port == addresses[0].port);
    CHECK(listeners[0].fd >= 0 && listeners[1].fd < 0 && listeners[2].fd >= 0);
    for (int i = 0; i < 3; i++) listener_close(&listeners[i]);

    check_case("a port that is taken at a later address");
    struct wire_address taken = {.family = 4, .bytes = {127, 0, 1, 1}};
    REQUIRE(listener_open(&other, socket_listen(&taken)) == 0 && socket_local_address(other.fd, &taken));
    addresses[0].port = taken.port;
    CHECK_EQ(listener_open_all(listeners, addresses, 3), -EADDRINUSE);
    for (int i = 0; i < 3; i++) CHECK_EQ(listeners[i].fd, -1);

    check_case("a first address that this machine does not have");
    CHECK_EQ(listener_open_all(listeners, &addresses[1], 2), -EADDRNOTAVAIL);
    listener_close(&other);
}

int main(void) {
    test_several_addresses();
    test_pause();
    test_open_fails();
    return check_status();
}
