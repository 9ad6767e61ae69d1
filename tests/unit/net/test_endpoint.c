// Listeners, strangers and deadlines of an endpoint.
#include "net/endpoint.h"

#include <errno.h>
#include <sys/resource.h>

#include "check.h"
#include "far_end.h"

enum { FIRST_DATA = 5, PAUSE_MS = 100, HELLO_MS = 1000, MOST = 8, KNOWN = 1 };

static const struct wire_address any_port = {.family = 4, .bytes = {127, 0, 0, 1}};

// What the endpoint has told its user.
static uint32_t heard, timed_out, ended;
static int short_of;

static void on_hear(void *user, struct endpoint_conn *conn) {
    (void)user, (void)conn;
    heard++;
}

static void on_time_out(void *user, struct endpoint_conn *conn) {
    timed_out++;
    endpoint_close(user, conn);
}

static void on_shortage(void *user, int error) {
    (void)user;
    short_of = error;
}

static void on_fini(void *user, struct endpoint_conn *conn) {
    (void)user, (void)conn;
    ended++;
}

static const struct endpoint_type type = {.bytes = sizeof(struct endpoint_conn),
                                          .hello_ms = HELLO_MS,
                                          .pause_ms = PAUSE_MS,
                                          .spare_state = KNOWN,
                                          .hear = on_hear,
                                          .time_out = on_time_out,
                                          .shortage = on_shortage,
                                          .fini = on_fini};

static void begin(struct endpoint *endpoint) {
    heard = timed_out = ended = 0;
    short_of = 0;
    *endpoint = (struct endpoint){.type = &type,
                                  .user = endpoint,
                                  .context = far_end_context(),
                                  .poller = descriptor_epoll(),
                                  .first_data = FIRST_DATA,
                                  .places_most = 2 * MOST,
                                  .strangers_most = MOST};
    REQUIRE(endpoint->poller >= 0);
    endpoint_begin_turn(endpoint);
}

static void end(struct endpoint *endpoint) {
    endpoint_fini(endpoint);
    descriptor_close(endpoint->poller);
}

static bool is_ready(const struct endpoint *endpoint) {
    struct epoll_event event;
    return epoll_wait(endpoint->poller, &event, 1, 100) == 1 && event.data.u64 == FIRST_DATA;
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
    struct endpoint endpoint;
    struct wire_address address = any_port;
    struct transport *dialled;
    check_case("descriptors are short");
    begin(&endpoint);
    REQUIRE(endpoint_listen_all(&endpoint, &address, 1, 0) == 0);
    CHECK(endpoint_handle(&endpoint, FIRST_DATA, 0) == NULL && heard == 0 && short_of == 0);
    CHECK_EQ(endpoint_deadline(&endpoint), INT64_MAX);

    REQUIRE(transport_dial(far_end_context(), &address, &dialled) == 0 && is_ready(&endpoint));
    no_descriptors(true);
    endpoint_handle(&endpoint, FIRST_DATA, 7);
    no_descriptors(false);
    CHECK_EQ(short_of, -EMFILE);
    CHECK_EQ(endpoint_deadline(&endpoint), 7 + PAUSE_MS * MS_NS);
    CHECK(!is_ready(&endpoint)); // it would spin
    endpoint_tick(&endpoint, 6 + PAUSE_MS * MS_NS);
    CHECK(!is_ready(&endpoint));
    endpoint_tick(&endpoint, 7 + PAUSE_MS * MS_NS);
    CHECK(is_ready(&endpoint) && endpoint_deadline(&endpoint) == INT64_MAX);
    endpoint_handle(&endpoint, FIRST_DATA, 9);
    CHECK(heard == 1 && endpoint.counts[ENDPOINT_STRANGER] == 1);

    CHECK_EQ(endpoint_deadline(&endpoint), 9 + HELLO_MS * MS_NS);
    endpoint_tick(&endpoint, 8 + HELLO_MS * MS_NS);
    CHECK_EQ(timed_out, 0);
    endpoint_tick(&endpoint, 9 + HELLO_MS * MS_NS);
    CHECK(timed_out == 1 && ended == 1 && endpoint_deadline(&endpoint) == INT64_MAX);
    transport_free(dialled);
    end(&endpoint);
}

static void test_listen(void) {
    struct endpoint endpoint, other;
    struct wire_address addresses[3] = {any_port,
                                        {.family = 4, .bytes = {192, 0, 2, 254}}, // nobody has it
                                        {.family = 4, .bytes = {127, 0, 1, 1}}};
    check_case("several addresses");
    begin(&endpoint);
    CHECK_EQ(endpoint_listen(&endpoint, -EADDRINUSE), -EADDRINUSE);
    REQUIRE(endpoint_listen_all(&endpoint, addresses, 3, 0) == 0);
    CHECK(addresses[0].port != 0 && addresses[2].port == addresses[0].port && endpoint.listener_count == 2);

    check_case("a port that is taken at a later address");
    struct wire_address later[2] = {{.family = 4, .bytes = {127, 0, 2, 1}, .port = addresses[0].port}, addresses[2]};
    begin(&other);
    CHECK_EQ(endpoint_listen_all(&other, later, 2, 0), -EADDRINUSE);
    CHECK_EQ(other.listener_count, 0);
    CHECK_EQ(endpoint_listen_all(&other, later, 2, addresses[0].port), 0);
    CHECK(later[0].port > addresses[0].port && later[1].port == later[0].port);

    check_case("a first address that this machine does not have");
    CHECK_EQ(endpoint_listen_all(&other, &addresses[1], 2, 0), -EADDRNOTAVAIL);
    end(&endpoint);
    end(&other);

    check_case("nobody can watch it");
    endpoint = (struct endpoint){.type = &type, .poller = -1};
    CHECK_EQ(endpoint_listen(&endpoint, socket_listen(&any_port)), -EBADF);
    CHECK_EQ(endpoint.listener_count, 0);
    endpoint_fini(&endpoint);
}

// Adds a stranger of a host that has shown something or nothing, and holds the other end.
static struct endpoint_conn *add(struct endpoint *endpoint, uint8_t host, bool speaks) {
    struct wire_address from = {.family = 4, .bytes = {10, 0, 0, host}};
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    struct transport *stream = transport_new(far_end_context(), pair[0], TRANSPORT_ACCEPTS);
    struct endpoint_conn *conn = endpoint_add_stranger(endpoint, stream, &from, 0);
    descriptor_close(pair[1]);
    REQUIRE(conn != NULL);
    conn->stream->speaks = speaks;
    return conn;
}

// Whether the next stranger, from a host of its own, has this one dropped.
static bool drops(struct endpoint *endpoint, const struct endpoint_conn *conn) {
    uint32_t before = ended;
    struct endpoint_conn *next = add(endpoint, 100, true);
    bool dropped = ended == before + 1 && conn->state == ENDPOINT_CLOSED;
    if (next->state != ENDPOINT_CLOSED) endpoint_close(endpoint, next);
    return dropped;
}

static void test_dropped_first(void) {
    struct endpoint endpoint;
    struct endpoint_conn *conns[MOST];
    check_case("too many strangers");
    begin(&endpoint);
    // One host has three of eight, more than a quarter; of others, one has two and some have said something.
    static const uint8_t hosts[MOST] = {4, 1, 2, 1, 3, 1, 2, 5};
    static const bool speak[MOST] = {true, true, false, true, true, true, false, true};
    for (uint32_t i = 0; i < MOST; i++) conns[i] = add(&endpoint, hosts[i], speak[i]);
    CHECK_EQ(ended, 0);
    CHECK(drops(&endpoint, conns[1])); // the oldest of the crowd
    conns[1] = add(&endpoint, 6, true);
    CHECK(drops(&endpoint, conns[2])); // the oldest of those that have said nothing
    conns[2] = add(&endpoint, 7, true);
    endpoint_set(&endpoint, conns[6], KNOWN);
    CHECK_EQ(endpoint.counts[ENDPOINT_STRANGER], MOST - 1);
    conns[6] = add(&endpoint, 8, true);
    CHECK(drops(&endpoint, conns[3]));  // the oldest of two
    CHECK(!drops(&endpoint, conns[0])); // there is room again
    end(&endpoint);
}

static void test_places(void) {
    struct endpoint endpoint;
    struct endpoint_conn *conns[2 * MOST];
    check_case("all places are taken");
    begin(&endpoint);
    for (uint32_t i = 0; i < 2 * MOST; i++) {
        conns[i] = add(&endpoint, (uint8_t)i, false);
        endpoint_set(&endpoint, conns[i], i == 3 ? KNOWN : KNOWN + 1);
        endpoint_until(&endpoint, conns[i], INT64_MAX);
    }
    uint64_t data = conns[3]->stream->data.u64;
    CHECK(endpoint_handle(&endpoint, data, 0) == conns[3]);
    struct endpoint_conn *next = add(&endpoint, 77, false);
    CHECK(conns[3]->state == ENDPOINT_CLOSED && next->place == conns[3]->place);
    CHECK(endpoint_handle(&endpoint, data, 0) == NULL); // what the poller tells of the one before
    endpoint_set(&endpoint, next, KNOWN + 1);
    struct wire_address from = any_port;
    int fd = descriptor_socket(AF_INET, SOCK_STREAM, 0);
    struct transport *stream = transport_new(far_end_context(), fd, TRANSPORT_ACCEPTS);
    CHECK(endpoint_add_stranger(&endpoint, stream, &from, 0) == NULL);
    end(&endpoint);
    CHECK_EQ(ended, 2 * MOST + 1);
}

int main(void) {
    test_pause();
    test_listen();
    test_dropped_first();
    test_places();
    return check_status();
}
