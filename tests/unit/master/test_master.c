// The master with real sockets on 127.0.0.1: framing, hostile bytes, many connections, ending.
#include "master/master_private.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "far_end.h"
#include "net/socket.h"
#include "net/wire_control.h"

enum { PATIENCE_MS = 20000 };

static struct master *start(uint32_t heartbeat_limit_ms) {
    struct master_options options = {.listens = &any_port, .listen_count = 1, .heartbeat_limit_ms = heartbeat_limit_ms};
    struct master *master;
    REQUIRE(master_start(&options, &master) == 0);
    return master;
}

static int start_at(const struct wire_address *address, struct master **out) {
    struct master_options options = {.listens = address, .listen_count = 1, .heartbeat_limit_ms = 5000};
    return master_start(&options, out);
}

// The first of these masters.
static struct master *start_of_list(const struct wire_address *masters, uint32_t count) {
    struct master_options options = {.listens = &any_port,
                                     .listen_count = 1,
                                     .heartbeat_limit_ms = PATIENCE_MS,
                                     .masters = masters,
                                     .master_count = count};
    struct master *master;
    REQUIRE(master_start(&options, &master) == 0);
    return master;
}

static struct transport *dial(const struct master *master) {
    struct wire_address address = any_port;
    address.port = master_port(master);
    struct transport *stream = far_end_dial(&address);
    REQUIRE(stream != NULL);
    return stream;
}

// The next frame; type 0 at the end of the stream.
static struct wire_header any_frame(struct transport *stream, uint8_t *body, size_t capacity) {
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header = {0};
    if (!far_end_read(stream, bytes, sizeof bytes)) return (struct wire_header){0};
    CHECK(wire_header_decode(bytes, &header));
    REQUIRE(header.length <= capacity);
    if (header.length > 0 && !far_end_read(stream, body, header.length)) return (struct wire_header){0};
    return header;
}

// The next frame that is no heartbeat; type 0 at the end of the stream.
static struct wire_header next_frame(struct transport *stream, uint8_t *body, size_t capacity) {
    struct wire_header header;
    AWAIT((header = any_frame(stream, body, capacity)).type != WIRE_HEARTBEAT, continue);
    return header;
}

static void say(struct transport *stream, struct wire_buffer *frame) {
    far_end_write(stream, frame->bytes, frame->length);
    wire_buffer_fini(frame);
}

static void write_hello(struct wire_buffer *out, uint8_t name) {
    struct wire_hello hello = {.version = WIRE_VERSION, .id = {{name}}, .lanes = 1, .port = 40000, .masters = 1};
    wire_encode_hello(out, (struct wire_header){0}, &hello);
}

struct client {
    struct transport *stream;
    struct wire_header header; // run, generation, epoch to speak with
};

static void write_run(struct wire_buffer *out, const char *name) {
    struct wire_run run = {{0}};
    memcpy(run.chars, name, strlen(name));
    wire_encode_run(out, (struct wire_header){0}, &run);
}

// Registers in a run ("": the one without a name), and expects WELCOME.
static struct client join_run(const struct master *master, const char *run, uint8_t name) {
    struct client client = {.stream = dial(master)};
    struct wire_buffer frame = {0};
    if (*run != 0) write_run(&frame, run);
    write_hello(&frame, name);
    say(client.stream, &frame);
    uint8_t body[4096];
    client.header = next_frame(client.stream, body, sizeof body);
    CHECK_EQ(client.header.type, WIRE_WELCOME);
    struct wire_welcome welcome;
    CHECK(wire_decode_welcome(body, client.header.length, &welcome));
    CHECK(socket_address_is_loopback(&welcome.seen));
    return client;
}

static struct client join(const struct master *master, uint8_t name) { return join_run(master, "", name); }

static uint16_t next_type(const struct client *client) {
    static uint8_t body[WIRE_MAX_CONTROL_BYTES];
    return next_frame(client->stream, body, sizeof body).type;
}

static void vote(struct client *client, uint8_t kind) {
    struct wire_buffer frame = {0};
    struct wire_vote message = {kind};
    wire_encode_vote(&frame, client->header, &message);
    say(client->stream, &frame);
}

static void test_hello(void) {
    check_case("hello, welcome, epoch, vote, death");
    struct master *master = start(PATIENCE_MS);
    struct client a = join(master, 1);
    CHECK_EQ(next_type(&a), WIRE_EPOCH);
    a.header.epoch = 1;
    struct client b = join(master, 2);
    vote(&a, WIRE_VOTE_UPDATE);
    CHECK_EQ(next_type(&a), WIRE_CANDIDATE);
    CHECK_EQ(next_type(&b), WIRE_CANDIDATE);
    transport_free(b.stream); // a closed socket counts at once
    int64_t before = platform_now_ns();
    CHECK_EQ(next_type(&a), WIRE_OUTCOME);
    CHECK(platform_now_ns() - before < PATIENCE_MS / 2 * MS_NS);

    struct wire_address address = any_port;
    address.port = master_port(master);
    struct master *second;
    CHECK_EQ(start_at(&address, &second), -EADDRINUSE);
    CHECK(second == NULL);
    transport_free(a.stream);
    master_free(master);
}

static void test_segments(void) {
    check_case("one byte at a time, and all at once");
    struct master *master = start(PATIENCE_MS);
    struct wire_buffer frame = {0};
    write_hello(&frame, 1);
    struct transport *stream = dial(master);
    for (size_t i = 0; i < frame.length; i++) {
        CHECK(far_end_write(stream, frame.bytes + i, 1));
        if (i % 8 == 0) usleep(500);
    }
    wire_buffer_fini(&frame);
    static uint8_t body[WIRE_MAX_CONTROL_BYTES];
    struct client client = {stream, next_frame(stream, body, sizeof body)};
    CHECK_EQ(client.header.type, WIRE_WELCOME);
    CHECK_EQ(next_type(&client), WIRE_EPOCH);
    client.header.epoch = 1;
    struct wire_vote pending = {WIRE_VOTE_PENDING};
    for (int i = 0; i < 100; i++) wire_encode_empty(&frame, client.header, WIRE_HEARTBEAT);
    wire_encode_vote(&frame, client.header, &pending);
    for (size_t at = 0; at < frame.length;) {
        size_t length = frame.length - at < 777 ? frame.length - at : 777;
        CHECK(far_end_write(stream, frame.bytes + at, length));
        at += length;
    }
    wire_buffer_fini(&frame);
    CHECK_EQ(next_type(&client), WIRE_OUTCOME);
    transport_free(stream);
    master_free(master);
}

static void test_garbage(void) {
    struct master *master = start(PATIENCE_MS);
    struct client a = join(master, 1);
    CHECK_EQ(next_type(&a), WIRE_EPOCH);
    a.header.epoch = 1;
    uint64_t seed = 3;
    for (int i = 0; i < 60; i++) {
        check_case("garbage %d", i);
        struct transport *stream = dial(master);
        uint8_t bytes[300];
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)check_random(&seed);
        struct wire_header header = {.length = 40, .type = i % 3 == 0 ? WIRE_HELLO : WIRE_VOTE};
        if (i % 3 < 2) wire_header_encode(bytes, &header); // a good header, a bad body or the wrong type
        far_end_write(stream, bytes, i % 2 ? sizeof bytes : 72);
        CHECK(far_end_closes(stream));
        transport_free(stream);
    }
    check_case("garbage of a registered peer");
    struct client b = join(master, 2);
    struct wire_header huge = b.header;
    uint8_t bytes[WIRE_HEADER_BYTES];
    huge.type = WIRE_REPORT;
    huge.length = UINT32_MAX;
    wire_header_encode(bytes, &huge);
    far_end_write(b.stream, bytes, sizeof bytes);
    CHECK(far_end_closes(b.stream));
    transport_free(b.stream);

    check_case("a newcomer breaks the rules and is told");
    struct client c = join(master, 3);
    vote(&c, WIRE_VOTE_UPDATE);
    CHECK_EQ(next_type(&c), WIRE_REFUSED);
    CHECK(far_end_closes(c.stream));
    transport_free(c.stream);

    check_case("another version is told");
    struct transport *stream = dial(master);
    struct wire_buffer frame = {0};
    struct wire_hello hello = {.version = WIRE_VERSION + 7};
    wire_encode_hello(&frame, (struct wire_header){0}, &hello);
    say(stream, &frame);
    struct client d = {.stream = stream};
    CHECK_EQ(next_type(&d), WIRE_REFUSED);
    CHECK(far_end_closes(stream));
    transport_free(stream);

    check_case("the others are not disturbed");
    vote(&a, WIRE_VOTE_PENDING);
    CHECK_EQ(next_type(&a), WIRE_OUTCOME);
    transport_free(a.stream);
    master_free(master);
}

// Asks a master what it does in a run, by a connection of its own.
static enum wire_activity status_in(const struct master *master, const char *run) {
    struct wire_buffer frame = {0};
    uint8_t body[64];
    struct wire_status_is status = {0};
    struct transport *stream = dial(master);
    if (*run != 0) write_run(&frame, run);
    wire_encode_empty(&frame, (struct wire_header){0}, WIRE_STATUS);
    say(stream, &frame);
    struct wire_header header = next_frame(stream, body, sizeof body);
    CHECK_EQ(header.type, WIRE_STATUS_IS);
    CHECK(wire_decode_status_is(body, header.length, &status));
    transport_free(stream);
    return status.activity;
}

static enum wire_activity status_of(const struct master *master) { return status_in(master, ""); }

static void await_activity(const struct master *master, const char *run, enum wire_activity activity) {
    AWAIT(status_in(master, run) == activity, usleep(1000));
}

static void test_runs(void) {
    check_case("runs by name: equal ids, violations, losses, places");
    struct master *master = start(PATIENCE_MS);
    static const char *const names[] = {"", "a", "b"};
    struct client clients[3];
    for (int i = 0; i < 3; i++) {
        clients[i] = join_run(master, names[i], 1); // the same id, which is that of one peer in each run
        CHECK_EQ(next_type(&clients[i]), WIRE_EPOCH);
        clients[i].header.epoch = 1;
    }
    CHECK(clients[0].header.run != clients[1].header.run && clients[1].header.run != clients[2].header.run);
    struct wire_buffer frame = {0};
    wire_encode_empty(&frame, clients[1].header, WIRE_RUNS); // no frame of a peer
    say(clients[1].stream, &frame);
    AWAIT(next_type(&clients[1]) == 0, continue);
    transport_free(clients[1].stream);
    await_activity(master, "a", WIRE_IDLE);
    CHECK_EQ(status_in(master, "never"), WIRE_IDLE);
    CHECK_EQ(status_in(master, WIRE_EVERY_RUN), WIRE_SERVES);
    for (int i = 0; i < 3; i += 2) {
        vote(&clients[i], WIRE_VOTE_PENDING);
        CHECK_EQ(next_type(&clients[i]), WIRE_OUTCOME);
    }
    write_run(&frame, "a"); // two names
    write_run(&frame, "b");
    struct transport *stranger = dial(master);
    say(stranger, &frame);
    uint8_t body[WIRE_MAX_TEXT + 2];
    CHECK_EQ(next_frame(stranger, body, sizeof body).type, 0);
    transport_free(stranger);

    struct client others[WIRE_MAX_RUNS - 2]; // with those of "" and "b" all places, the one of "a" among them
    for (int i = 0; i < WIRE_MAX_RUNS - 2; i++) {
        char name[8];
        snprintf(name, sizeof name, "r%d", i);
        others[i] = join_run(master, name, 2);
    }
    struct transport *late = dial(master);
    write_run(&frame, "late");
    write_hello(&frame, 3);
    say(late, &frame);
    CHECK_EQ(next_frame(late, body, sizeof body).type, WIRE_REFUSED);
    transport_free(late);
    transport_free(others[5].stream);
    await_activity(master, "r5", WIRE_IDLE);
    others[5] = join_run(master, "late", 3);
    for (int i = 0; i < WIRE_MAX_RUNS - 2; i++) transport_free(others[i].stream);
    transport_free(clients[0].stream);
    await_activity(master, "", WIRE_IDLE);
    CHECK_EQ(status_in(master, WIRE_EVERY_RUN), WIRE_SERVES); // "b"
    transport_free(clients[2].stream);
    await_activity(master, WIRE_EVERY_RUN, WIRE_IDLE);
    master_free(master);
}

static void test_silent_masters(void) {
    check_case("the first of a list whose others listen and never answer, or cannot even be reached");
    enum { QUIET = 3, HELLOS = 30, FILL = 2 };
    struct wire_address list[QUIET + 1];
    int listeners[QUIET], fill[FILL];
    list[0] = any_port;
    for (int i = 0; i < QUIET; i++) {
        listeners[i] = socket_listen(&any_port);
        REQUIRE(listeners[i] >= 0 && socket_local_address(listeners[i], &list[i + 1]));
    }
    CHECK_EQ(listen(listeners[0], 0), 0); // the kernel answers no third connection
    for (int i = 0; i < FILL; i++) fill[i] = socket_dial(&list[1]);
    struct master *master = start_of_list(list, QUIET + 1);

    int64_t before = platform_now_ns();
    struct wire_hello other = {.version = WIRE_VERSION + 7};
    struct transport *streams[HELLOS];
    for (int i = 0; i < HELLOS; i++) {
        struct wire_buffer frame = {0};
        wire_encode_hello(&frame, (struct wire_header){0}, &other);
        streams[i] = dial(master);
        say(streams[i], &frame);
    }
    status_of(master);
    CHECK(platform_now_ns() - before < 3000 * MS_NS); // 300 ms for each quiet one and each hello: 27 s
    for (int i = 0; i < HELLOS; i++) {
        CHECK(far_end_closes(streams[i]));
        transport_free(streams[i]);
    }
    struct client a = join(master, 1);
    CHECK_EQ(next_type(&a), WIRE_EPOCH); // nobody else has a run
    CHECK_EQ(status_of(master), WIRE_SERVES);
    transport_free(a.stream);
    master_free(master);
    for (int i = 0; i < FILL; i++) close(fill[i]);
    for (int i = 0; i < QUIET; i++) close(listeners[i]);
}

// One member of two has come, so the master gathers, and looks whether another one serves the run.
static void test_silent_masters_while_it_gathers(void) {
    check_case("a gathering master hears while the others are silent");
    enum { QUIET = 12, ASKS = 40 };
    struct wire_address list[QUIET + 1];
    int listeners[QUIET];
    list[0] = any_port;
    for (int i = 0; i < QUIET; i++) {
        listeners[i] = socket_listen(&any_port);
        REQUIRE(listeners[i] >= 0 && socket_local_address(listeners[i], &list[i + 1]));
    }
    struct master *master = start_of_list(list, QUIET + 1);
    struct wire_member members[2] = {{.id = {{1}}, .join_number = 1, .lanes = 1, .address = any_port},
                                     {.id = {{2}}, .join_number = 2, .lanes = 1, .address = any_port}};
    struct wire_group_size size = {0, 2};
    struct wire_resume resume = {
        .hello = {.version = WIRE_VERSION, .id = {{1}}, .lanes = 1, .port = 40000, .masters = 2},
        .generation = 1,
        .join_number = 1,
        .accepted = true};
    resume.last_vote =
        (struct wire_ended_vote){.number = 1, .kind = WIRE_VOTE_UPDATE, .epoch = 2, .count = 1, .sizes = &size};
    resume.epoch = (struct wire_epoch){.number = 2,
                                       .group_epoch = 2,
                                       .votes_ended = 1,
                                       .latency_us = 1,
                                       .megabytes_per_s = 1,
                                       .count = 2,
                                       .members = members};
    struct wire_buffer frame = {0};
    wire_encode_resume(&frame, (struct wire_header){.run = 7, .generation = 1}, &resume);
    REQUIRE(!frame.failed);
    struct transport *survivor = dial(master);
    say(survivor, &frame);
    static uint8_t body[WIRE_MAX_CONTROL_BYTES];
    CHECK_EQ(next_frame(survivor, body, sizeof body).type, WIRE_WAITING);
    int64_t began = platform_now_ns(), longest = 0;
    for (int i = 0; i < ASKS; i++) {
        int64_t before = platform_now_ns();
        CHECK_EQ(status_of(master), WIRE_GATHERS);
        if (platform_now_ns() - before > longest) longest = platform_now_ns() - before;
        poll(NULL, 0, 50);
    }
    CHECK(platform_now_ns() - began > MASTER_LOOK_MS * MS_NS); // it has looked meanwhile
    CHECK(longest < 2500 * MS_NS);                             // 300 ms for each quiet one: 3.6 s
    transport_free(survivor);
    master_free(master);
    for (int i = 0; i < QUIET; i++) close(listeners[i]);
}

static void raise_descriptors(rlim_t needed) {
    struct rlimit limit;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_cur < needed) limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= needed);
}

static void test_silent(void) {
    raise_descriptors(2 * MASTER_MAX_ANONYMOUS + 200);
    check_case("hundreds of silent connections");
    enum { SILENT = MASTER_MAX_ANONYMOUS + 44 };
    struct master *master = start(PATIENCE_MS);
    struct transport *streams[SILENT];
    for (int i = 0; i < SILENT; i++) streams[i] = dial(master);
    struct client a = join(master, 1);
    CHECK_EQ(next_type(&a), WIRE_EPOCH);
    a.header.epoch = 1;
    CHECK(far_end_closes(streams[0])); // the oldest made room
    vote(&a, WIRE_VOTE_PENDING);
    CHECK_EQ(next_type(&a), WIRE_OUTCOME);
    for (int i = 0; i < SILENT; i++) transport_free(streams[i]);
    transport_free(a.stream);

    check_case("no hello in time");
    int64_t before = platform_now_ns();
    struct transport *stream = dial(master);
    CHECK(far_end_closes(stream));
    CHECK(platform_now_ns() - before > (MASTER_HELLO_LIMIT_MS - 100) * MS_NS);
    transport_free(stream);
    master_free(master);
}

static void test_time(void) {
    check_case("a silent peer is lost, heartbeats are sent");
    struct master *master = start(1000);
    struct client a = join(master, 1);
    CHECK_EQ(next_type(&a), WIRE_EPOCH);
    uint8_t bytes[WIRE_HEADER_BYTES];
    CHECK(far_end_read(a.stream, bytes, sizeof bytes));
    struct wire_header header;
    CHECK(wire_header_decode(bytes, &header));
    CHECK_EQ(header.type, WIRE_HEARTBEAT);
    CHECK_EQ(next_type(&a), WIRE_EXPELLED);
    CHECK(far_end_closes(a.stream));
    transport_free(a.stream);
    master_free(master);
}

// Sends TELEMETRY, and returns the type of a frame that has come. WIRE_HEARTBEAT: perhaps none has.
static uint16_t telemetry_answer(const struct client *client) {
    static uint8_t body[WIRE_MAX_CONTROL_BYTES];
    static const struct wire_telemetry told = {.ops = {.live = 1}};
    struct pollfd polled = {.fd = client->stream->fd, .events = POLLIN};
    struct wire_buffer frame = {0};
    wire_encode_telemetry(&frame, client->header, &told);
    far_end_write(client->stream, frame.bytes, WIRE_HEADER_BYTES / 2); // which does not tell what comes
    poll(NULL, 0, 10);
    far_end_write(client->stream, frame.bytes + WIRE_HEADER_BYTES / 2, frame.length - WIRE_HEADER_BYTES / 2);
    wire_buffer_fini(&frame);
    bool come = client->stream->buffered || poll(&polled, 1, 50) > 0;
    return come ? any_frame(client->stream, body, sizeof body).type : WIRE_HEARTBEAT;
}

static void test_telemetry(void) {
    check_case("a peer of which the data plane alone says something is lost");
    struct master *master = start(500);
    struct client a = join(master, 1);
    CHECK_EQ(next_type(&a), WIRE_EPOCH);
    a.header.epoch = 1;
    uint16_t heard;
    AWAIT((heard = telemetry_answer(&a)) != WIRE_HEARTBEAT, continue);
    CHECK_EQ(heard, WIRE_EXPELLED);
    transport_free(a.stream);
    master_free(master);
}

// A peer that never reads, while the master has much to say to it.
static void test_slow_reader(void) {
    check_case("a slow reader");
    struct master *master = start(PATIENCE_MS);
    struct client a = join(master, 1), b = {0};
    CHECK_EQ(next_type(&a), WIRE_EPOCH);
    a.header.epoch = 1;
    b = join(master, 2);
    vote(&a, WIRE_VOTE_UPDATE);
    static uint8_t body[WIRE_MAX_CONTROL_BYTES];
    struct wire_candidate candidate;
    static struct wire_member members[WIRE_MAX_MEMBERS];
    candidate.epoch.members = members;
    struct wire_header header = next_frame(a.stream, body, sizeof body);
    CHECK(wire_decode_candidate(body, header.length, &candidate));
    static struct wire_linked linked;
    linked.attempt = candidate.attempt;
    struct wire_buffer frame = {0};
    wire_encode_linked(&frame, a.header, &linked);
    say(a.stream, &frame);
    wire_encode_linked(&frame, b.header, &linked);
    say(b.stream, &frame);
    CHECK_EQ(next_type(&a), WIRE_EPOCH);
    a.header.epoch = b.header.epoch = 2;
    // Both say DONE again and again; a verdict of 63 bytes goes to each; b never reads.
    bool lost = false;
    for (uint32_t tag = 0; tag < 600000 && !lost; tag += 1000) {
        struct wire_buffer from_a = {0}, from_b = {0};
        for (uint32_t i = 0; i < 1000; i++) {
            struct wire_op_done done = {{2, tag + i, 1, 0, 0}, 0};
            wire_encode_op_done(&from_a, a.header, &done);
            wire_encode_op_done(&from_b, b.header, &done);
        }
        say(b.stream, &from_b);
        say(a.stream, &from_a);
        for (uint32_t i = 0; i < 1000 && !lost; i++) {
            uint16_t type = next_type(&a);
            lost = type == WIRE_EPOCH;
            if (!lost && !CHECK(type == WIRE_VERDICT)) lost = true;
        }
    }
    CHECK(lost);
    transport_free(a.stream);
    transport_free(b.stream);
    master_free(master);
}

static void *await(void *master) {
    CHECK(master_await(master, INT64_MAX));
    return NULL;
}

static void test_end(void) {
    check_case("interrupted while peers are connected");
    struct master *master = start(PATIENCE_MS);
    uint16_t port = master_port(master);
    struct client a = join(master, 1), b = join(master, 2);
    struct transport *silent = dial(master);
    pthread_t waiter;
    CHECK(pthread_create(&waiter, NULL, await, master) == 0);
    CHECK(!master_await(master, platform_now_ns() + 50 * MS_NS));
    master_interrupt(master);
    master_interrupt(master);
    CHECK(master_await(master, platform_now_ns() + PATIENCE_MS * MS_NS));
    pthread_join(waiter, NULL);
    CHECK(far_end_closes(a.stream) && far_end_closes(b.stream) && far_end_closes(silent));
    master_interrupt(master);
    master_free(master);

    check_case("the port is free at once, again and again");
    struct wire_address address = any_port;
    address.port = port;
    for (int i = 0; i < 20; i++) {
        REQUIRE(start_at(&address, &master) == 0);
        CHECK_EQ(master_port(master), port);
        struct client c = join(master, 9);
        master_free(master); // with a peer connected
        transport_free(c.stream);
    }
    transport_free(a.stream);
    transport_free(b.stream);
    transport_free(silent);
    master_free(NULL);
}

// Without descriptors the master waits instead of spinning, and goes on afterwards.
static void test_no_descriptors(void) {
    check_case("no descriptors");
    struct master *master = start(PATIENCE_MS);
    struct client a = join(master, 1);
    CHECK_EQ(next_type(&a), WIRE_EPOCH);
    a.header.epoch = 1;
    struct transport *stream = dial(master), *waiting[2];
    for (int i = 0; i < 2; i++) waiting[i] = far_end_new(socket(AF_INET, SOCK_STREAM, 0));
    usleep(100 * 1000); // the master has accepted `stream`
    struct rlimit before, none;
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 3; // nothing new can be opened
    setrlimit(RLIMIT_NOFILE, &none);
    struct rusage start_usage, end_usage;
    getrusage(RUSAGE_SELF, &start_usage);
    for (int i = 0; i < 2; i++) {
        struct sockaddr_storage to;
        struct wire_address address = any_port;
        address.port = master_port(master);
        socklen_t length = socket_address_to_sockaddr(&to, &address);
        CHECK_EQ(connect(waiting[i]->fd, (struct sockaddr *)&to, length), 0); // by the kernel, in the backlog
    }
    usleep(700 * 1000);
    getrusage(RUSAGE_SELF, &end_usage);
    int64_t used_us = (end_usage.ru_utime.tv_sec - start_usage.ru_utime.tv_sec + end_usage.ru_stime.tv_sec -
                       start_usage.ru_stime.tv_sec) *
                          INT64_C(1000000) +
                      end_usage.ru_utime.tv_usec - start_usage.ru_utime.tv_usec + end_usage.ru_stime.tv_usec -
                      start_usage.ru_stime.tv_usec;
    CHECK(used_us < 300 * 1000);
    vote(&a, WIRE_VOTE_PENDING);
    CHECK_EQ(next_type(&a), WIRE_OUTCOME);
    setrlimit(RLIMIT_NOFILE, &before);
    struct wire_buffer frame = {0};
    write_hello(&frame, 2);
    say(waiting[1], &frame);
    uint8_t body[4096];
    CHECK_EQ(next_frame(waiting[1], body, sizeof body).type, WIRE_WELCOME);
    transport_free(stream);
    transport_free(waiting[0]);
    transport_free(waiting[1]);
    transport_free(a.stream);
    master_free(master);
}

static void write_resume(struct wire_buffer *out, uint32_t name, uint64_t run) {
    struct wire_resume resume = {
        .hello = {.version = WIRE_VERSION, .lanes = 1, .port = 40000, .masters = 1},
        .generation = 1,
        .join_number = 1,
    };
    memcpy(resume.hello.id.bytes, &name, sizeof name);
    wire_encode_resume(out, (struct wire_header){.run = run, .generation = 1}, &resume);
}

// As many peers as may register, as many that wait for other runs, and others that say nothing.
static void test_full(void) {
    check_case("all places are taken");
    enum { WAIT = WIRE_MAX_MEMBERS, SILENT = MASTER_MAX_ANONYMOUS + 44 };
    static struct transport *peers[WIRE_MAX_MEMBERS], *waiting[WAIT], *silent[SILENT];
    raise_descriptors(2 * (WIRE_MAX_MEMBERS + WAIT + SILENT) + 100);
    struct master *master = start(PATIENCE_MS);
    struct wire_buffer frame = {0};
    for (uint32_t i = 0; i < WIRE_MAX_MEMBERS; i++) {
        struct wire_hello hello = {.version = WIRE_VERSION, .lanes = 1, .port = 40000, .masters = 1};
        uint32_t name = i + 1;
        memcpy(hello.id.bytes, &name, sizeof name);
        wire_encode_hello(&frame, (struct wire_header){0}, &hello);
        peers[i] = dial(master);
        say(peers[i], &frame);
    }
    struct client first = {.stream = peers[0]}, last = {.stream = peers[WIRE_MAX_MEMBERS - 1]};
    CHECK_EQ(next_type(&last), WIRE_WELCOME);
    for (uint32_t i = 0; i < WAIT; i++) {
        write_resume(&frame, 100000 + i, UINT64_C(1) + i);
        waiting[i] = dial(master);
        say(waiting[i], &frame);
    }
    for (uint32_t i = 0; i < SILENT; i++) silent[i] = dial(master);
    CHECK(far_end_closes(silent[0])); // the oldest made room, and the master lives
    CHECK_EQ(next_type(&first), WIRE_WELCOME);
    for (uint32_t i = 0; i < WIRE_MAX_MEMBERS; i++) transport_free(peers[i]);
    for (uint32_t i = 0; i < WAIT; i++) transport_free(waiting[i]);
    for (uint32_t i = 0; i < SILENT; i++) transport_free(silent[i]);
    master_free(master);
}

// ---- a stream that always holds more ----

static struct transport_type endless, usual;
static struct transport *endless_stream; // the first that has said HELLO
static size_t hello_left;                // bytes of that

static ptrdiff_t endless_recvv(struct transport *stream, const struct iovec *parts, int count) {
    ptrdiff_t got = stream == endless_stream ? -EAGAIN : usual.recvv(stream, parts, count);
    if (endless_stream == NULL && got > 0 && (hello_left -= (size_t)got) == 0) {
        endless_stream = stream;
        stream->buffered = true;
    }
    if (got != -EAGAIN || stream != endless_stream || count != 1) return got;
    struct wire_buffer frame = {0};
    wire_encode_empty(&frame, (struct wire_header){0}, WIRE_HEARTBEAT);
    size_t length = parts->iov_len / frame.length * frame.length;
    for (size_t at = 0; at < length; at += frame.length)
        memcpy((uint8_t *)parts->iov_base + at, frame.bytes, frame.length);
    wire_buffer_fini(&frame);
    stream->buffered = true;
    return (ptrdiff_t)length;
}

static void test_endless_stream(void) {
    check_case("a master hears others, and ends, while a peer sends without a pause");
    struct master *master = start(PATIENCE_MS);
    struct wire_buffer hello = {0};
    write_hello(&hello, 1);
    hello_left = hello.length;
    wire_buffer_fini(&hello);
    endless = usual = *master->transport->type;
    endless.recvv = endless_recvv;
    master->transport->type = &endless;
    struct client a = join(master, 1);
    await_activity(master, "", WIRE_SERVES);
    transport_free(a.stream);
    master_free(master);
}

int main(void) {
    test_hello();
    test_runs();
    test_segments();
    test_garbage();
    test_silent_masters();
    test_silent_masters_while_it_gathers();
    test_silent();
    test_telemetry();
    test_time();
    test_slow_reader();
    test_end();
    test_full();
    test_no_descriptors();
    test_endless_stream();
    return check_status();
}
