// The connection to the master, over loopback: whom it dials, what goes out before what, and what comes in.
#include "peer/master_link.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "far_end.h"
#include "net/socket.h"

enum { DATA = 7, WAIT_MS = 5000, MANY = 4000, BODY = 4000 };

static const struct cards no_cards;
static const struct wire_run no_run;
static struct master_link *link_;
static int epoll;
static struct master_event event;

// ---- masters ----

static int listen_at(struct wire_address *out) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0 && listen(fd, 8) == 0);
    REQUIRE(socket_local_address(fd, out));
    return fd;
}

static struct wire_address nobody(void) {
    struct wire_address address;
    close(listen_at(&address));
    return address;
}

static int accept_at(int listener) {
    int fd = accept(listener, NULL, NULL);
    REQUIRE(fd >= 0);
    return fd;
}

static void read_frame(int fd, uint16_t type, uint64_t epoch) {
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header;
    REQUIRE(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes && wire_header_decode(bytes, &header));
    CHECK_EQ(header.type, type);
    CHECK_EQ(header.epoch, epoch);
    CHECK_EQ(header.length, 0);
}

static void write_frame(int fd, uint16_t type) {
    struct wire_buffer frame = {0};
    wire_encode_empty(&frame, (struct wire_header){.run = 1}, type);
    for (size_t i = 0; i < frame.length; i++) { // byte by byte
        CHECK(send(fd, frame.bytes + i, 1, MSG_NOSIGNAL) == 1);
        usleep(100);
    }
    wire_buffer_fini(&frame);
}

// ---- the control thread ----

// Until something happens, or for so long. False: nothing has.
static bool next_within(int64_t ms) {
    int64_t now = platform_now_ns(), end = now + ms * MS_NS;
    while (!master_link_next(link_, &event, &now)) {
        if (now >= end) return false;
        struct epoll_event ready;
        if (epoll_wait(epoll, &ready, 1, 5) == 1) {
            CHECK_EQ(ready.data.u64, DATA);
            master_link_event(link_, ready.events, platform_now_ns());
        }
        now = platform_now_ns();
        master_link_tick(link_, now);
    }
    return true;
}

static void expect(enum master_event_kind kind) {
    REQUIRE(next_within(WAIT_MS));
    CHECK_EQ(event.kind, kind);
}

static void begin(const char *name) {
    check_case("%s", name);
    epoll = epoll_create1(0);
    link_ = master_link_new(epoll, DATA, &no_cards);
    REQUIRE(link_ != NULL);
}

static void end(void) {
    master_link_free(link_);
    close(epoll);
}

static void send_empty(enum wire_type type, uint64_t epoch) {
    struct wire_buffer frame = {0};
    wire_encode_empty(&frame, (struct wire_header){.run = 1, .epoch = epoch}, type);
    master_link_send(link_, &frame);
    wire_buffer_fini(&frame);
}

// ---- tests ----

static void test_join(void) {
    begin("a newcomer dials the list in its order, once");
    struct wire_address masters[2] = {nobody()};
    int listener = listen_at(&masters[1]);
    char text[MASTER_LINK_ADDRESS], want[64];
    master_link_join(link_, far_end_context(), &no_run, masters, 2, platform_now_ns());
    expect(MASTER_ANSWERS);
    CHECK_STR(master_link_address(link_, text), socket_address_format(want, sizeof want, &masters[1]));
    CHECK(!master_link_is_open(link_) && master_link_has_earlier(link_));
    master_link_use(link_, NULL);
    CHECK(master_link_is_open(link_));
    close(accept_at(listener));
    expect(MASTER_BROKE);
    CHECK_STR(event.text, "the master closed it (is it the port of a pccl master, not of a peer?)");
    CHECK(strstr(master_link_note(link_, "it is a standby"), want) != NULL);
    CHECK(!master_link_join_next(link_, platform_now_ns()));
    close(listener);
    end();

    begin("nobody is there");
    masters[1] = nobody();
    master_link_join(link_, far_end_context(), &no_run, masters, 2, platform_now_ns());
    expect(MASTER_UNREACHABLE);
    CHECK(!event.internal && strstr(event.text, "cannot connect") != NULL);
    for (int i = 0; i < 2; i++)
        CHECK(strstr(event.text, socket_address_format(want, sizeof want, &masters[i])) != NULL);
    CHECK_EQ(master_link_deadline(link_), INT64_MAX);
    end();
}

static void test_first(void) {
    begin("what was sent without a connection is gone, and nothing comes before the first");
    struct wire_address master;
    int listener = listen_at(&master);
    struct wire_buffer first = {0};
    master_link_join(link_, far_end_context(), &no_run, &master, 1, platform_now_ns());
    expect(MASTER_ANSWERS);
    send_empty(WIRE_LEAVE, 1);
    wire_encode_empty(&first, (struct wire_header){.run = 1, .epoch = 2}, WIRE_MOVED);
    master_link_use(link_, &first);
    send_empty(WIRE_HEARTBEAT, 3);
    int fd = accept_at(listener);
    read_frame(fd, WIRE_MOVED, 2);
    read_frame(fd, WIRE_HEARTBEAT, 3);
    wire_buffer_fini(&first);

    check_case("frames that come byte by byte, and what is none");
    write_frame(fd, WIRE_HEARTBEAT);
    expect(MASTER_FRAME);
    CHECK_EQ(event.header.type, WIRE_HEARTBEAT);
    CHECK(!next_within(20));
    CHECK(send(fd, "GET / HTTP/1.1\r\nHost: nobody\r\n\r\n........................", 56, MSG_NOSIGNAL) == 56);
    expect(MASTER_BROKE);
    CHECK(strstr(event.text, "invalid bytes") != NULL);
    close(fd);

    check_case("one that has spoken is no peer");
    master_link_close(link_);
    master_link_join(link_, far_end_context(), &no_run, &master, 1, platform_now_ns());
    expect(MASTER_ANSWERS);
    master_link_use(link_, NULL);
    fd = accept_at(listener);
    write_frame(fd, WIRE_HEARTBEAT);
    expect(MASTER_FRAME);
    close(fd);
    expect(MASTER_BROKE);
    CHECK_STR(event.text, "the master closed it");
    close(listener);
    end();
}

static void *send_many(void *unused) {
    static uint8_t body[BODY];
    for (uint64_t i = 0; i < MANY; i++) {
        uint8_t head[WIRE_HEADER_BYTES];
        struct wire_buffer frame = {0};
        wire_header_encode(head, &(struct wire_header){.type = WIRE_REPORT, .length = BODY, .epoch = i});
        wire_buffer_append(&frame, &(struct wire_buffer){.bytes = head, .length = sizeof head});
        wire_buffer_append(&frame, &(struct wire_buffer){.bytes = body, .length = sizeof body});
        master_link_send(link_, &frame);
        wire_buffer_fini(&frame);
    }
    return unused;
}

// The master, which reads late.
static void *read_many(void *listener) {
    static uint8_t bytes[WIRE_HEADER_BYTES + BODY];
    int fd = accept_at(*(int *)listener);
    usleep(200000);
    for (uint64_t i = 0; i < MANY; i++) {
        struct wire_header header = {0};
        CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes && wire_header_decode(bytes, &header));
        CHECK_EQ(header.epoch, i);
    }
    close(fd);
    return NULL;
}

static void test_backlog(void) {
    begin("what the kernel does not take goes out when there is room, in its order");
    struct wire_address master;
    int listener = listen_at(&master);
    pthread_t reader, sender;
    REQUIRE(pthread_create(&reader, NULL, read_many, &listener) == 0);
    master_link_join(link_, far_end_context(), &no_run, &master, 1, platform_now_ns());
    expect(MASTER_ANSWERS);
    master_link_use(link_, NULL);
    REQUIRE(pthread_create(&sender, NULL, send_many, NULL) == 0);
    expect(MASTER_BROKE); // the master has read all, and closed
    CHECK(strstr(event.text, "the master closed it") != NULL);
    pthread_join(sender, NULL);
    pthread_join(reader, NULL);
    close(listener);
    end();
}

static void test_seek(void) {
    begin("a lost master is looked for again and again");
    struct wire_address masters[2];
    int listener = listen_at(&masters[0]);
    masters[1] = nobody();
    master_link_join(link_, far_end_context(), &no_run, masters, 2, platform_now_ns());
    expect(MASTER_ANSWERS);
    master_link_use(link_, NULL);
    close(accept_at(listener));
    close(listener);
    expect(MASTER_BROKE);
    master_link_seek(link_, false, platform_now_ns());
    CHECK(master_link_seeks(link_) && !master_link_is_open(link_));
    CHECK(!next_within(100)); // through the list more than once
    REQUIRE(master_link_deadline(link_) != INT64_MAX);
    listener = socket_listen(&masters[1]);
    REQUIRE(listener >= 0);
    expect(MASTER_ANSWERS);
    CHECK(master_link_has_earlier(link_));
    master_link_use(link_, NULL);
    master_link_found(link_, platform_now_ns());
    CHECK(master_link_is_open(link_) && !master_link_seeks(link_));
    close(listener);
    end();
}

static int refuser, refused_for; // its listener, and what a step towards it returns; 0: it is made

static int step(struct transport *stream) {
    int error = transport_plain.step(stream);
    if (error != 0 || refused_for == 0) return error;
    close(accept_at(refuser));
    return -refused_for;
}

static bool names_refusal(void) { return strchr(master_link_note_refusal(link_, "lost"), ';') != NULL; }

static void test_refusals(void) {
    begin("who gives up names a master that refused it to the end, whatever another one does");
    struct wire_address masters[2];
    refuser = listen_at(&masters[0]);
    masters[1] = nobody();
    struct transport_type picky = transport_plain;
    picky.step = step;
    struct transport_context context;
    transport_context_init(&context, &picky, NULL);
    master_link_join(link_, &context, &no_run, masters, 2, platform_now_ns());
    expect(MASTER_ANSWERS);
    master_link_use(link_, NULL);
    close(accept_at(refuser));
    expect(MASTER_BROKE);
    refused_for = EKEYREJECTED;
    master_link_seek(link_, false, platform_now_ns());
    AWAIT(names_refusal(), CHECK(!next_within(5)));
    CHECK(!next_within(100)); // the second one fails
    const char *why = master_link_note_refusal(link_, "lost");
    CHECK(strncmp(why, "lost; cannot trust the master at", 32) == 0);

    check_case("a long reason and a refusal share the room");
    char reason[MASTER_LINK_TEXT], refusal[MASTER_LINK_TEXT];
    snprintf(refusal, sizeof refusal, "%s", strchr(why, ';'));
    memset(reason, 'x', sizeof reason);
    reason[sizeof reason - 1] = 0;
    why = master_link_note_refusal(link_, reason);
    CHECK_EQ(strlen(why), MASTER_LINK_TEXT - 1);
    CHECK(strstr(why, refusal) != NULL);

    check_case("not one that ended the handshake later, or answered");
    refused_for = ECONNABORTED;
    AWAIT(!names_refusal(), CHECK(!next_within(5)));
    refused_for = EKEYREJECTED;
    AWAIT(names_refusal(), CHECK(!next_within(5)));
    refused_for = 0;
    expect(MASTER_ANSWERS);
    CHECK(!names_refusal());
    close(refuser);
    end();
}

int main(void) {
    test_join();
    test_first();
    test_backlog();
    test_seek();
    test_refusals();
    return check_status();
}
