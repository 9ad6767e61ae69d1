// A stream carries all bytes in order, tells when it ends, and keeps what net/transport.h promises to those who wait
// for edges alone; plain, and by the fake transport, which does whatever is allowed.
#define _GNU_SOURCE
#include "net/transport.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "check.h"
#include "fakes/transport.h"
#include "far_end.h"
#include "net/relay.h"

enum { CARRIED = 1 << 20, WAIT_MS = 2000 };

static uint8_t byte_at(size_t place) { return (uint8_t)(place % 251); }

// Returns both ends of a new connection.
static void connect_pair(struct transport **dialled, struct transport **accepted) {
    struct transport_context *contexts[2] = {transport_context_new(NULL), transport_context_new(NULL)};
    struct transport *ends[2];
    int results[2], count;
    far_end_connect(contexts[1], contexts[0], results, ends, &count);
    REQUIRE(results[0] == 0 && results[1] == 0 && count == 1);
    *dialled = ends[0];
    *accepted = ends[1];
    CHECK_EQ((*dialled)->role, TRANSPORT_DIALS);
    CHECK_EQ((*accepted)->role, TRANSPORT_ACCEPTS);
    CHECK_EQ(transport_peer(*dialled)->party, TRANSPORT_STRANGER);
    CHECK_EQ(transport_peer(*accepted)->party, TRANSPORT_STRANGER);
    for (int i = 0; i < 2; i++) transport_context_release(contexts[i]); // the streams hold them
}

static void join_pair(struct transport *pair[2]) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    for (int i = 0; i < 2; i++) REQUIRE((pair[i] = far_end_new(ends[i])) != NULL);
}

// As a lane goes about it: each side goes on until it has to wait, and then for an edge.
static void carry(struct transport *from, struct transport *to, uint64_t *seed) {
    static uint8_t bytes[1 << 17];
    int poller = descriptor_epoll();
    struct transport *ends[2] = {from, to};
    bool ready[2] = {true, true};
    size_t sent = 0, received = 0;
    for (int i = 0; i < 2; i++)
        REQUIRE(transport_watch(ends[i], poller, EPOLLIN | EPOLLOUT | EPOLLET, (epoll_data_t){.u64 = (uint64_t)i}));
    while (received < CARRIED) {
        if (ready[0] && sent < CARRIED) {
            size_t length = 2 + check_random(seed) % (sizeof bytes - 2), cut = check_random(seed) % length;
            if (length > CARRIED - sent) length = CARRIED - sent;
            if (cut > length) cut = length;
            for (size_t i = 0; i < length; i++) bytes[i] = byte_at(sent + i);
            ptrdiff_t now = transport_sendv(from, (struct iovec[]){{bytes, cut}, {bytes + cut, length - cut}}, 2);
            if (!CHECK(now > 0 || now == -EAGAIN)) break;
            ready[0] = now > 0;
            if (now > 0) sent += (size_t)now;
        }
        if (ready[1]) {
            size_t length = 1 + check_random(seed) % sizeof bytes, cut = check_random(seed) % length;
            ptrdiff_t got = transport_recvv(to, (struct iovec[]){{bytes, cut}, {bytes + cut, length - cut}}, 2);
            if (!CHECK(got > 0 || got == -EAGAIN)) break;
            ready[1] = to->buffered || got == (ptrdiff_t)length;
            for (ptrdiff_t i = 0; i < got; i++)
                if (bytes[i] != byte_at(received + (size_t)i))
                    REQUIRE(CHECK_EQ(bytes[i], byte_at(received + (size_t)i)));
            if (got > 0) received += (size_t)got;
        }
        bool waits = !ready[1] && (!ready[0] || sent == CARRIED) && received < CARRIED;
        struct epoll_event told[2];
        int count = epoll_wait(poller, told, 2, waits ? WAIT_MS : 0);
        if (!CHECK(count > 0 || !waits)) break; // nobody was told that it can go on
        for (int i = 0; i < count; i++) {
            uint32_t mine = told[i].data.u64 == 0 ? EPOLLOUT : EPOLLIN;
            if (told[i].events & mine) ready[told[i].data.u64] = true;
        }
    }
    CHECK_EQ(received, CARRIED);
    for (int i = 0; i < 2; i++) transport_unwatch(ends[i]);
    descriptor_close(poller);
}

// What was sent before the end is read before the end, which stays.
static void test_ends(struct transport *from, struct transport *to) {
    uint8_t bytes[100];
    memset(bytes, 7, sizeof bytes);
    CHECK(far_end_write(from, bytes, sizeof bytes));
    transport_finish(from);
    CHECK(far_end_read(to, bytes, sizeof bytes));
    CHECK_EQ(far_end_read_some(to, bytes, 1), 0);
    CHECK_EQ(far_end_read_some(to, bytes, 1), 0);
    CHECK(far_end_write(to, bytes, 10)); // the other way is open
    CHECK(far_end_read(from, bytes, 10));
    transport_hang_up(to);
    CHECK_EQ(far_end_read_some(from, bytes, 1), 0);
    CHECK(!far_end_write(to, bytes, 1)); // and no signal
}

// It closes in the middle: what had come is there, then the end or a reset.
static void test_breaks(void) {
    struct transport *pair[2];
    uint8_t bytes[5];
    join_pair(pair);
    CHECK(far_end_write(pair[0], "before", 6));
    transport_free(pair[0]);
    CHECK(far_end_read(pair[1], bytes, 5) && memcmp(bytes, "befor", 5) == 0);
    CHECK(far_end_read(pair[1], bytes, 1) && bytes[0] == 'e');
    CHECK(far_end_closes(pair[1]));
    CHECK(!far_end_write(pair[1], bytes, 1));
    transport_free(pair[1]);
}

static void test_nobody_listens(void) {
    struct wire_address address;
    struct transport *stream;
    int listener = socket_listen(&any_port), error;
    REQUIRE(listener >= 0 && socket_local_address(listener, &address));
    descriptor_close(listener);
    struct transport_context *context = transport_context_new(NULL);
    REQUIRE(context != NULL && transport_dial(context, &address, &stream) == 0);
    while ((error = transport_step(stream)) == -EAGAIN) REQUIRE(far_end_await(stream, (short)stream->awaits));
    transport_context_release(context);
    CHECK_EQ(error, -ECONNREFUSED);
    transport_free(stream);
}

// A poller tells nothing of a stream that it does not watch any more, whoever else may have it open.
static void test_poller(void) {
    struct transport *pair[2];
    struct epoll_event told;
    int poller = descriptor_epoll();
    join_pair(pair);
    REQUIRE(transport_watch(pair[0], poller, EPOLLIN, (epoll_data_t){.u64 = 1}) && far_end_write(pair[1], "x", 1));
    CHECK(epoll_wait(poller, &told, 1, WAIT_MS) == 1 && told.data.u64 == 1);
    REQUIRE(transport_watch(pair[0], poller, EPOLLIN, (epoll_data_t){.u64 = 2})); // another word for it
    CHECK(epoll_wait(poller, &told, 1, WAIT_MS) == 1 && told.data.u64 == 2);
    transport_unwatch(pair[0]);
    CHECK_EQ(epoll_wait(poller, &told, 1, 0), 0);
    REQUIRE(transport_watch(pair[0], poller, EPOLLIN, (epoll_data_t){.u64 = 3}));
    int other = dup(pair[0]->fd);
    transport_free(pair[0]);
    CHECK_EQ(epoll_wait(poller, &told, 1, 0), 0);
    CHECK(far_end_closes(pair[1]));
    close(other);
    transport_free(pair[1]);
    CHECK(!transport_watch(&(struct transport){.fd = -1, .poller = -1}, poller, EPOLLIN, (epoll_data_t){.u64 = 4}));
    descriptor_close(poller);
}

// What the kernel knows of a connection is asked of the stream.
static void test_connection(struct transport *dialled, struct transport *accepted) {
    struct wire_address here, there;
    char congestion[TRANSPORT_CONGESTION_BYTES];
    REQUIRE(transport_local_address(dialled, &here) && transport_remote_address(accepted, &there));
    CHECK(here.port == there.port && socket_address_same_host(&here, &there));
    CHECK(transport_is_within_host(dialled) && transport_has_room(dialled));
    CHECK(transport_congestion(dialled, congestion, sizeof congestion) && congestion[0] != 0);
    CHECK(transport_gauge(dialled).round_trip_us > 0);
    transport_reset(dialled);
    transport_free(dialled);
    CHECK(far_end_await(accepted, POLLIN));
    uint8_t byte;
    CHECK(far_end_read_some(accepted, &byte, 1) <= 0);
    transport_free(accepted);
}

// Each context has its own transport and settings: a process may have a master and several communicators.
static void test_contexts(void) {
    struct transport_options options = {.congestion = "reno"};
    struct transport_context *one = transport_context_new(&options), *other = transport_context_new(NULL);
    struct transport_type type = transport_plain;
    REQUIRE(one != NULL && other != NULL);
    one->type = &type;
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    struct transport *first = transport_new(one, ends[0], TRANSPORT_DIALS);
    struct transport *second = transport_new(other, ends[1], TRANSPORT_ACCEPTS);
    transport_context_release(one);
    transport_context_release(other);
    REQUIRE(first != NULL && second != NULL);
    CHECK(first->type == &type && second->type != &type);
    CHECK(strcmp(first->context->options.congestion, "reno") == 0 && second->context->options.congestion[0] == 0);
    transport_free(first);
    transport_free(second);
}

// Without keys streams stay at loopback, unless the user says otherwise. Nobody is dialled to find out.
static void test_reach(void) {
    static const struct {
        const char *address;
        bool dials, accepts;
    } rows[] = {
        {"127.0.0.1:1", true, true},          {"127.0.1.1:1", true, true},       {"[::1]:1", true, true},
        {"[::ffff:127.0.0.1]:1", true, true}, {"0.0.0.0:1", true, false},        {"[::]:1", true, false},
        {"[::ffff:0.0.0.0]:1", true, false},  {"10.0.0.1:1", false, false},      {"192.168.1.1:1", false, false},
        {"[fe80::1]:1", false, false},        {"[2001:db8::1]:1", false, false}, {"[::ffff:10.0.0.1]:1", false, false},
    };
    struct keys *keys = (struct keys *)rows; // is there, and is not looked at
    struct transport_options none = {0}, insecure = {.insecure = true}, encrypted = {.keys = keys};
    struct transport_context *context = transport_context_new(NULL);
    REQUIRE(context != NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct wire_address address;
        struct transport *stream;
        check_case("streams and %s", rows[i].address);
        REQUIRE(socket_address_parse(rows[i].address, strlen(rows[i].address), &address));
        CHECK_EQ(transport_permits(&none, &address, TRANSPORT_DIALS), rows[i].dials);
        CHECK_EQ(transport_permits(&none, &address, TRANSPORT_ACCEPTS), rows[i].accepts);
        for (int role = TRANSPORT_DIALS; role <= TRANSPORT_ACCEPTS; role++) {
            CHECK(transport_permits(&insecure, &address, (enum transport_role)role));
            CHECK(transport_permits(&encrypted, &address, (enum transport_role)role));
        }
        if (!rows[i].dials) CHECK_EQ(transport_dial(context, &address, &stream), -ENONET);
    }
    CHECK(strstr(transport_error(-ENONET), "PCCL_INSECURE=1") != NULL);
    transport_context_release(context);
}

static void test_all(uint64_t seed) {
    struct transport *pair[2];
    connect_pair(&pair[0], &pair[1]);
    carry(pair[0], pair[1], &seed);
    carry(pair[1], pair[0], &seed);
    test_ends(pair[0], pair[1]);
    for (int i = 0; i < 2; i++) transport_free(pair[i]);
    join_pair(pair);
    carry(pair[1], pair[0], &seed);
    for (int i = 0; i < 2; i++) transport_free(pair[i]);
    connect_pair(&pair[0], &pair[1]);
    test_connection(pair[0], pair[1]);
    test_contexts();
    test_breaks();
    test_nobody_listens();
    test_poller();
}

// ---- relays ----

// Says why a relay is of no use that answers in this way, and then ends the connection. NULL: nobody listens.
static const char *why_useless(const char *answer) {
    struct wire_address address, from;
    struct transport *stream;
    int listener = socket_listen(&any_port), error;
    REQUIRE(listener >= 0 && socket_local_address(listener, &address));
    if (answer == NULL) descriptor_close(listener);
    REQUIRE(transport_dial_relay(far_end_context(), &address, &(struct relay_hello){0}, TRANSPORT_DIALS, &stream) == 0);
    if (answer != NULL) {
        int relay = -EAGAIN;
        AWAIT(relay >= 0, relay = socket_accept(listener, &from));
        REQUIRE(send(relay, answer, strlen(answer), MSG_NOSIGNAL) == (ssize_t)strlen(answer));
        descriptor_close(relay);
        descriptor_close(listener);
    }
    AWAIT((error = transport_step(stream)) != -EAGAIN, transport_wait(stream, stream->awaits, WAIT_MS));
    static char why[200];
    snprintf(why, sizeof why, "%s", transport_why(stream, error));
    transport_free(stream);
    return why;
}

static void test_useless_relays(void) {
    char greeting[RELAY_GREETING_BYTES + 1];
    relay_write_greeting((const uint8_t[RELAY_NONCE_DIGITS / 2]){1, 2, 3}, greeting);
    CHECK_STR(why_useless(NULL), "Connection refused");
    CHECK_STR(why_useless(""), "it does not answer as a relay");
    CHECK_STR(why_useless("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), "it does not answer as a relay");
    CHECK_STR(why_useless(greeting), "it ended the connection: it has keys of another run, or no room, or was stopped");
}

int main(void) {
    test_reach();
    test_useless_relays();
    check_case("plain");
    test_all(1);
    for (uint64_t seed = 0; seed < 20; seed++) {
        check_case("seed %d of the fake", (int)seed);
        fake_transport_use(seed);
        test_all(seed + 1);
    }
    return check_status();
}
