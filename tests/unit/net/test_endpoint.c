// Listeners, strangers and deadlines of an endpoint.
#include "net/endpoint.h"

#include <errno.h>
#include <sys/resource.h>

#include "check.h"
#include "far_end.h"

enum { FIRST_DATA = 5, PAUSE_MS = 100, HELLO_MS = 1000, MOST = 8, KNOWN = 1 };

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

// Has the listener accept.
static void turn(struct endpoint *endpoint, int64_t now_ns) {
    endpoint_begin_turn(endpoint); // the time of a turn is short on a busy machine
    CHECK(endpoint_handle(endpoint, FIRST_DATA, now_ns) == NULL);
}

static void test_pause(void) {
    struct endpoint endpoint;
    struct wire_address address = any_port;
    struct transport *dialled;
    check_case("descriptors are short");
    begin(&endpoint);
    REQUIRE(endpoint_listen_all(&endpoint, &address, 1, 0) == 0);
    turn(&endpoint, 0);
    CHECK(heard == 0 && short_of == 0);
    CHECK_EQ(endpoint_deadline(&endpoint), INT64_MAX);

    REQUIRE(transport_dial(far_end_context(), &address, &dialled) == 0 && is_ready(&endpoint));
    no_descriptors(true);
    turn(&endpoint, 7);
    no_descriptors(false);
    CHECK_EQ(short_of, -EMFILE);
    CHECK_EQ(endpoint_deadline(&endpoint), 7 + PAUSE_MS * MS_NS);
    CHECK(!is_ready(&endpoint)); // it would spin
    endpoint_tick(&endpoint, 6 + PAUSE_MS * MS_NS);
    CHECK(!is_ready(&endpoint));
    endpoint_tick(&endpoint, 7 + PAUSE_MS * MS_NS);
    CHECK(is_ready(&endpoint) && endpoint_deadline(&endpoint) == INT64_MAX);
    turn(&endpoint, 9);
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

// Adds a stranger of a host that has shown this much: nothing, bytes, or who it is.
static struct endpoint_conn *add(struct endpoint *endpoint, uint8_t host, uint32_t shown) {
    struct wire_address from = {.family = 4, .bytes = {10, 0, 0, host}};
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    struct transport *stream = transport_new(far_end_context(), pair[0], TRANSPORT_ACCEPTS);
    struct endpoint_conn *conn = endpoint_add_stranger(endpoint, stream, &from, 0);
    descriptor_close(pair[1]);
    REQUIRE(conn != NULL);
    conn->stream->speaks = shown > 0;
    if (shown > 1) conn->stream->peer.party = TRANSPORT_PEER;
    return conn;
}

// Rows are strangers, the oldest first, as host and what they have shown. Each newcomer has the next of `drops` dropped.
static void test_dropped_first(void) {
    static const struct {
        const char *text;
        struct {
            uint8_t host, shown;
        } strangers[MOST];
        uint32_t count;
        uint32_t drops[3];
    } rows[] = {
        {"one host has more than a quarter, whatever it has shown",
         {{4, 0}, {1, 2}, {2, 0}, {1, 2}, {3, 1}, {1, 2}, {2, 0}, {5, 0}},
         1,
         {1}},
        {"those that have shown nothing, then bytes, then a proof",
         {{1, 2}, {2, 1}, {3, 0}, {4, 2}, {5, 1}, {6, 2}, {7, 2}, {8, 2}},
         3,
         {2, 1, 4}},
        {"the oldest of the host that has most",
         {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {3, 1}, {5, 1}, {6, 1}, {7, 1}},
         2,
         {2, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct endpoint endpoint;
        struct endpoint_conn *conns[MOST];
        check_case("%s", rows[i].text);
        begin(&endpoint);
        for (uint32_t k = 0; k < MOST; k++)
            conns[k] = add(&endpoint, rows[i].strangers[k].host, rows[i].strangers[k].shown);
        CHECK_EQ(ended, 0);
        for (uint32_t k = 0; k < rows[i].count; k++) {
            add(&endpoint, (uint8_t)(100 + k), 2);
            CHECK(ended == k + 1 && conns[rows[i].drops[k]]->state == ENDPOINT_CLOSED);
        }
        end(&endpoint);
    }
    check_case("one that is known makes room");
    struct endpoint endpoint;
    struct endpoint_conn *conn = NULL;
    begin(&endpoint);
    for (uint8_t k = 0; k < MOST; k++) conn = add(&endpoint, k, 0);
    endpoint_set(&endpoint, conn, KNOWN, INT64_MAX);
    add(&endpoint, 100, 0);
    CHECK(ended == 0 && endpoint.counts[ENDPOINT_STRANGER] == MOST && endpoint.counts[KNOWN] == 1);
    end(&endpoint);
}

static void test_places(void) {
    struct endpoint endpoint;
    struct endpoint_conn *conns[2 * MOST];
    check_case("all places are taken");
    begin(&endpoint);
    for (uint32_t i = 0; i < 2 * MOST; i++) {
        conns[i] = add(&endpoint, (uint8_t)i, 0);
        endpoint_set(&endpoint, conns[i], i == 3 ? KNOWN : KNOWN + 1, INT64_MAX);
    }
    uint64_t data = conns[3]->stream->data.u64;
    CHECK(endpoint_handle(&endpoint, data, 0) == conns[3]);
    struct endpoint_conn *next = add(&endpoint, 77, 0);
    CHECK(conns[3]->state == ENDPOINT_CLOSED && next->place == conns[3]->place);
    CHECK(endpoint_handle(&endpoint, data, 0) == NULL); // what the poller tells of the one before
    endpoint_set(&endpoint, next, KNOWN + 1, INT64_MAX);
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
