// Asking masters that answer, are silent, are gone or talk nonsense.

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "asking.h"
#include "check.h"
#include "far_end.h"
#include "master/master.h"
#include "net/socket.h"

enum { PATIENCE_MS = 20000, IMPATIENCE_MS = 50 };

static int ask(const struct wire_address *address, int ms, enum wire_activity *out) {
    struct wire_status_is status;
    int error = asking_status(far_end_context(), address, NULL, ms, &status);
    if (error == 0) *out = status.activity;
    return error;
}

static void test_answers(void) {
    check_case("a master without a run, and with one");
    enum wire_activity activity = WIRE_SERVES;
    struct master_options options = {.listens = &any_port, .listen_count = 1, .heartbeat_limit_ms = PATIENCE_MS};
    struct master *master;
    REQUIRE(master_start(&options, &master) == 0);
    struct wire_address address = any_port;
    address.port = master_port(master);
    CHECK_EQ(ask(&address, PATIENCE_MS, &activity), 0);
    CHECK_EQ(activity, WIRE_IDLE);
    struct transport *peer = far_end_dial(&address);
    struct wire_buffer frame = {0};
    struct wire_hello hello = {.version = WIRE_VERSION, .id = {{1}}, .lanes = 1, .port = 40000, .masters = 1};
    wire_encode_hello(&frame, (struct wire_header){0}, &hello);
    far_end_write(peer, frame.bytes, frame.length);
    wire_buffer_fini(&frame);
    uint8_t first;
    REQUIRE(far_end_read(peer, &first, 1)); // it was heard
    CHECK_EQ(ask(&address, PATIENCE_MS, &activity), 0);
    CHECK_EQ(activity, WIRE_SERVES);
    transport_free(peer);
    master_free(master);
    CHECK_EQ(ask(&address, PATIENCE_MS, &activity), -ECONNREFUSED);
}

static void *talk_nonsense(void *listener) {
    struct wire_address from;
    int fd;
    AWAIT((fd = socket_accept(*(int *)listener, &from)) != -EAGAIN, usleep(100));
    struct transport *stream = far_end_accepted(fd);
    uint8_t nonsense[WIRE_HEADER_BYTES] = {0xff, 0xff, 0xff, 0xff};
    far_end_write(stream, nonsense, sizeof nonsense);
    far_end_closes(stream);
    transport_free(stream);
    return NULL;
}

static void test_silence_and_nonsense(void) {
    check_case("somebody who never answers, or is no master");
    enum wire_activity activity = WIRE_GATHERS;
    struct wire_address address;
    int listener = socket_listen(&any_port);
    REQUIRE(listener >= 0 && socket_local_address(listener, &address));
    CHECK_EQ(ask(&address, IMPATIENCE_MS, &activity), -ETIMEDOUT);
    close(listener);
    listener = socket_listen(&any_port);
    REQUIRE(listener >= 0 && socket_local_address(listener, &address));
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, talk_nonsense, &listener) == 0);
    CHECK_EQ(ask(&address, PATIENCE_MS, &activity), -EPROTO);
    pthread_join(thread, NULL);
    CHECK_EQ(activity, WIRE_GATHERS);
    close(listener);
}

int main(void) {
    test_answers();
    test_silence_and_nonsense();
    return check_status();
}
