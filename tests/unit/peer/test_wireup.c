// Connections of strangers at a peer's port: what they may hold, and that they keep nobody out.
#define _GNU_SOURCE
#include "peer/wireup.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "far_end.h"

enum {
    LIMIT = 960, // descriptors; a sixteenth of them is 60
    STRANGERS = 300
};

static const struct wire_id self = {{1}}, other = {{2}};
static const struct cards no_cards;

static enum member_judgement judge(void *context, const struct wire_link_hello *hello) {
    (void)context;
    return wire_id_equal(&hello->from, &other) ? MEMBER_ACCEPT : MEMBER_REJECT;
}

static int count_descriptors(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    REQUIRE(directory != NULL);
    while (readdir(directory) != NULL) count++;
    closedir(directory);
    return count;
}

// Lets the listener do all there is to do.
static void turn(struct wireup *wireup, int epoll) {
    struct epoll_event events[64];
    for (int count; (count = epoll_wait(epoll, events, 64, 5)) > 0;)
        for (int i = 0; i < count; i++) wireup_handle(wireup, events[i].data.u64, platform_now_ns());
}

static struct transport *dial_from(uint8_t host, uint16_t port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u | host)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&from, sizeof from) == 0 &&
            connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return far_end_new(fd);
}

// Appends what a dialer says first. Returns how many bytes of it come before the padding.
static size_t encode_hello(struct wire_buffer *frame) {
    struct wire_link_hello hello = {.version = WIRE_VERSION, .kind = WIRE_LINK_DATA, .from = other, .to = self};
    wire_encode_link_hello(frame, (struct wire_header){.run = 7}, &hello);
    size_t small = frame->length;
    wire_encode_link_padding(frame, (struct wire_header){.run = 7});
    return small;
}

static void say_hello(struct transport *stream) {
    struct wire_buffer frame = {0};
    encode_hello(&frame);
    CHECK(far_end_write(stream, frame.bytes, frame.length));
    wire_buffer_fini(&frame);
}

static bool is_up(struct wireup *wireup) {
    struct wireup_event event;
    bool up = false;
    while (wireup_next(wireup, &event)) {
        up |= event.kind == WIREUP_UP;
        transport_free(event.stream);
    }
    return up;
}

// Too few of them: the text says what to do.
static void test_shortage(struct wireup *wireup, const struct wire_address *nobody, struct rlimit *limit) {
    check_case("no descriptor is left for a link");
    FILE *log = tmpfile();
    int stderr_before = dup(STDERR_FILENO);
    REQUIRE(log != NULL && stderr_before >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    limit->rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, limit);
    for (int i = 0; i < 20; i++)
        wireup_dial(wireup, WIRE_LINK_DATA, &other, 0, &(struct wire_reach){.count = 1, .addresses = {*nobody}},
                    INT64_MAX);
    limit->rlim_cur = LIMIT;
    setrlimit(RLIMIT_NOFILE, limit);
    dup2(stderr_before, STDERR_FILENO);
    close(stderr_before);
    char text[4096] = "";
    rewind(log);
    text[fread(text, 1, sizeof text - 1, log)] = 0;
    fclose(log);
    char *told = strstr(text, "ulimit -n");
    CHECK(told != NULL && strstr(text, "may open 3 descriptors") != NULL);
    CHECK(told != NULL && strstr(told + 1, "ulimit -n") == NULL); // once, not for each link
    struct wireup_event event;
    int failed = 0;
    while (wireup_next(wireup, &event)) failed += event.kind == WIREUP_FAILED;
    CHECK_EQ(failed, 20);
}

// Says a part of what a dialer says first.
static void say_begin(struct transport *stream, size_t bytes) {
    struct wire_buffer frame = {0};
    size_t small = encode_hello(&frame);
    CHECK(far_end_write(stream, frame.bytes, bytes == 0 ? small : frame.length - bytes));
    wire_buffer_fini(&frame);
}

// Lets time pass until there is nothing to wait for. Returns what happened: N narrow, F failed, U up.
static void let_time_pass(struct wireup *wireup, char out[8]) {
    struct wireup_event event;
    size_t count = 0;
    while (wireup_deadline(wireup) != INT64_MAX) wireup_tick(wireup, wireup_deadline(wireup));
    while (wireup_next(wireup, &event) && count < 7) {
        CHECK(wire_id_equal(&event.id, &other));
        out[count++] = event.kind == WIREUP_NARROW ? 'N' : event.kind == WIREUP_FAILED ? 'F' : 'U';
        transport_free(event.stream);
    }
    out[count] = 0;
}

// Large packets do not come: the hello alone, or not the last byte of the padding behind it.
static void test_narrow_to_acceptor(void) {
    struct wire_address any = {.family = 4, .bytes = {127, 0, 0, 1}};
    for (size_t missing = 0; missing < 2; missing++) {
        check_case("padding does not come here: %zu", missing);
        int epoll = descriptor_epoll();
        uint16_t port;
        char happened[8];
        struct wireup *wireup = wireup_new(far_end_context(), epoll, 100, &self, judge, NULL);
        REQUIRE(wireup != NULL && wireup_listen(wireup, &any, &no_cards, &port) == 0);
        wireup_identify(wireup, &(struct wireup_identity){.self = self, .run = 7}, WIREUP_UNKNOWN_MS * MS_NS);
        struct transport *dialer = dial_from(1, port);
        say_begin(dialer, missing);
        turn(wireup, epoll);
        let_time_pass(wireup, happened);
        CHECK_STR(happened, "N");
        transport_free(dialer);
        wireup_free(wireup);
        descriptor_close(epoll);
    }
}

// The far end of a dial hears what is said; its transport may have to answer before that.
static void hear(struct transport *stream, struct wireup *wireup, int epoll) {
    uint8_t bytes[4096];
    for (int i = 0; i < 8; i++) {
        int step = -EAGAIN;
        for (int j = 0; j < 50 && step == -EAGAIN; j++) step = transport_step(stream);
        while (step == 0 && transport_receive(stream, bytes, sizeof bytes) > 0) {
        }
        turn(wireup, epoll);
    }
}

// The far end answers a dial with these frames.
static void test_narrow_to_dialer(void) {
    static const struct {
        const char *says, *happens; // H heard, P padding, A ack
    } rows[] = {{"", "F"}, {"H", "NF"}, {"HP", "NF"}, {"HPA", "U"}, {"HA", "F"}, {"A", "F"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("answers %s", rows[i].says);
        int epoll = descriptor_epoll();
        struct wire_address address = {.family = 4, .bytes = {127, 0, 0, 1}}, from;
        int listener = socket_listen(&address);
        REQUIRE(listener >= 0 && socket_local_address(listener, &address));
        char happened[8];
        struct wireup *wireup = wireup_new(far_end_context(), epoll, 100, &self, judge, NULL);
        REQUIRE(wireup != NULL);
        wireup_identify(wireup, &(struct wireup_identity){.self = self, .run = 7}, WIREUP_UNKNOWN_MS * MS_NS);
        wireup_dial(wireup, WIRE_LINK_DATA, &other, 0, &(struct wire_reach){.count = 1, .addresses = {address}},
                    platform_now_ns() + 3600 * SECOND_NS);
        turn(wireup, epoll);
        int fd = socket_accept(listener, &from);
        REQUIRE(fd >= 0);
        struct transport *stream = far_end_accepted(fd);
        hear(stream, wireup, epoll);
        struct wire_buffer frames = {0};
        for (const char *at = rows[i].says; *at != 0; at++) {
            if (*at == 'H') wire_encode_empty(&frames, (struct wire_header){.run = 7}, WIRE_LINK_HEARD);
            if (*at == 'P') wire_encode_link_padding(&frames, (struct wire_header){.run = 7});
            if (*at == 'A') wire_encode_empty(&frames, (struct wire_header){.run = 7}, WIRE_LINK_ACK);
        }
        if (frames.length > 0) CHECK(far_end_write(stream, frames.bytes, frames.length));
        wire_buffer_fini(&frames);
        hear(stream, wireup, epoll);
        let_time_pass(wireup, happened);
        CHECK_STR(happened, rows[i].happens);
        transport_free(stream);
        wireup_free(wireup);
        descriptor_close(listener);
        descriptor_close(epoll);
    }
}

// Opens connections from one address.
static void flood(struct wireup *wireup, int epoll, uint16_t port, struct transport **strangers, int count) {
    for (int i = 0; i < count; i++) {
        strangers[i] = dial_from(2, port);
        if (i % 50 == 0) turn(wireup, epoll);
    }
    turn(wireup, epoll);
}

int main(void) {
    struct rlimit limit;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = LIMIT;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct transport *strangers[STRANGERS] = {0};
    struct wireup *wireup = wireup_new(far_end_context(), epoll, 100, &self, judge, NULL);
    struct wire_address any = {.family = 4, .bytes = {127, 0, 0, 1}};
    uint16_t port = 0;
    REQUIRE(wireup != NULL && wireup_listen(wireup, &any, &no_cards, &port) == 0);
    wireup_identify(wireup, &(struct wireup_identity){.self = self, .run = 7}, WIREUP_UNKNOWN_MS * MS_NS);

    check_case("a member that has connected before the flood, and says hello after it");
    struct transport *honest = dial_from(1, port);
    turn(wireup, epoll);
    int before = count_descriptors();
    flood(wireup, epoll, port, strangers, STRANGERS);
    int held = count_descriptors() - before - STRANGERS;
    CHECK(held > 0 && held <= LIMIT / WIREUP_UNKNOWN_PART);
    say_hello(honest);
    turn(wireup, epoll);
    CHECK(is_up(wireup));
    transport_free(honest);

    check_case("of the same address, it has said hello when its turn to go comes");
    honest = dial_from(2, port);
    turn(wireup, epoll);
    for (int i = 0; i < STRANGERS / 2; i++) transport_free(strangers[i]);
    say_hello(honest);
    for (int i = 0; i < STRANGERS / 2; i++) strangers[i] = dial_from(2, port);
    turn(wireup, epoll);
    CHECK(is_up(wireup));
    transport_free(honest);

    test_shortage(wireup, &any, &limit);
    for (int i = 0; i < STRANGERS; i++) transport_free(strangers[i]);
    wireup_free(wireup);
    close(epoll);
    test_narrow_to_acceptor();
    test_narrow_to_dialer();
    return check_status();
}
