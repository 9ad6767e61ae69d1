// TLS carries all bytes in order, tells an end from a cut, and keeps what net/transport.h promises to those who wait for
// edges alone.
#define _GNU_SOURCE
#include "check.h"

#ifndef PCCL_HAVE_TLS

int main(void) {
    CHECK(true);
    return check_status();
}

#else

#include <openssl/err.h>
#include <pthread.h>
#include <sys/wait.h>

#include "net/tls_private.h"
#include "tls_ends.h"

enum { CARRIED = 1 << 20, MUCH = 64 << 20 };

static uint8_t byte_at(size_t place) { return (uint8_t)(place % 251); }

// ---- what a transport has to keep to, whatever it carries (net/transport.h) ----

// Cuts [bytes, bytes + length) into parts, empty ones among them.
static int cut(struct iovec parts[5], uint8_t *bytes, size_t length, uint64_t *seed) {
    int count = 0;
    for (size_t at = 0; count < 4; count++) {
        size_t part = check_random(seed) % 3 == 0 ? check_random(seed) % 80 : check_random(seed) % (length + 1);
        if (part > length - at) part = length - at;
        parts[count] = (struct iovec){bytes + at, part};
        at += part;
        if (count == 3) parts[count + 1] = (struct iovec){bytes + at, length - at};
    }
    return count + 1;
}

// As a lane goes about it: each side goes on until it has to wait, and then for an edge.
static void carry(struct transport *from, struct transport *to, size_t most, uint64_t *seed) {
    static uint8_t bytes[1 << 18];
    int poller = descriptor_epoll();
    struct transport *ends[2] = {from, to};
    bool ready[2] = {true, true};
    size_t sent = 0, received = 0, total = most < 1000 ? 100 * most : CARRIED;
    if (most > sizeof bytes) most = sizeof bytes;
    for (int i = 0; i < 2; i++)
        REQUIRE(transport_watch(ends[i], poller, EPOLLIN | EPOLLOUT | EPOLLET, (epoll_data_t){.u64 = (uint64_t)i}));
    while (received < total) {
        struct iovec parts[5];
        if (ready[0] && sent < total) {
            size_t length = 1 + check_random(seed) % most;
            if (length > total - sent) length = total - sent;
            for (size_t i = 0; i < length; i++) bytes[i] = byte_at(sent + i);
            ptrdiff_t now = transport_sendv(from, parts, cut(parts, bytes, length, seed));
            if (!CHECK((now > 0 && now <= (ptrdiff_t)length) || now == -EAGAIN)) break;
            ready[0] = now > 0;
            if (now > 0) sent += (size_t)now;
        }
        if (ready[1]) {
            size_t length = 1 + check_random(seed) % most;
            ptrdiff_t got = transport_recvv(to, parts, cut(parts, bytes, length, seed));
            if (!CHECK((got > 0 && got <= (ptrdiff_t)length) || got == -EAGAIN)) break;
            ready[1] = to->buffered || got == (ptrdiff_t)length;
            for (ptrdiff_t i = 0; i < got; i++)
                if (bytes[i] != byte_at(received + (size_t)i))
                    REQUIRE(CHECK_EQ(bytes[i], byte_at(received + (size_t)i)));
            if (got > 0) received += (size_t)got;
        }
        bool waits = !ready[1] && (!ready[0] || sent == total) && received < total;
        struct epoll_event told[2];
        int count = epoll_wait(poller, told, 2, waits ? FAR_END_PATIENCE_MS : 0);
        if (!CHECK(count > 0 || !waits)) break; // nobody was told that it can go on
        for (int i = 0; i < count; i++) {
            uint32_t mine = told[i].data.u64 == 0 ? EPOLLOUT : EPOLLIN;
            if (told[i].events & mine) ready[told[i].data.u64] = true;
        }
    }
    CHECK_EQ(received, total);
    for (int i = 0; i < 2; i++) transport_unwatch(ends[i]);
    descriptor_close(poller);
}

static void test_carries(void) {
    static const struct {
        size_t most;
        int buffer;
        uint32_t renewal;
    } rows[] = {{1 << 17, 0, 0}, {1 << 18, 4096, 0}, {40000, 20000, 0}, {300, 4096, 7}, {1, 4096, 0}, {30000, 0, 3}};
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct transport *ends[2];
        check_case("at most %zu bytes at once, send buffer %d", rows[i].most, rows[i].buffer);
        open_tcp(ends, rows[i].renewal, rows[i].buffer);
        carry(ends[0], ends[1], rows[i].most, &seed);
        carry(ends[1], ends[0], rows[i].most, &seed);
        for (int end = 0; end < 2; end++) transport_free(ends[end]);
    }
}

static size_t waiting(struct transport *stream) {
    const struct tls *tls = tls_of(stream);
    return tls->out == NULL ? 0 : tls->out_end - tls->out_begin;
}

// Records of one call go at once. Once the kernel has refused some, a call leaves one record to wait.
static void test_waiting(void) {
    static uint8_t bytes[TLS_TURN_BYTES];
    struct transport *ends[2];
    check_case("what the kernel did not take");
    open_tcp(ends, 0, 4096);
    while (transport_send(ends[0], bytes, sizeof bytes) > 0) continue;
    CHECK(waiting(ends[0]) > 0 && waiting(ends[0]) <= TLS_BATCH_BYTES);
    ptrdiff_t sent = -EAGAIN;
    while (sent == -EAGAIN) {
        ptrdiff_t got = transport_receive(ends[1], bytes, sizeof bytes);
        if (!CHECK(got > 0 || got == -EAGAIN)) break;
        sent = transport_send(ends[0], bytes, sizeof bytes);
    }
    CHECK(sent > 0 && waiting(ends[0]) <= TLS_OUT_BYTES);
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
}

static void test_ends(void) {
    struct transport *ends[2];
    uint8_t bytes[100];
    memset(bytes, 7, sizeof bytes);
    check_case("an announced end");
    open_tcp(ends, 0, 0);
    CHECK(far_end_write(ends[0], bytes, sizeof bytes));
    transport_finish(ends[0]);
    CHECK(far_end_read(ends[1], bytes, sizeof bytes));
    for (int i = 0; i < 2; i++) CHECK_EQ(far_end_read_some(ends[1], bytes, 1), 0);
    CHECK(far_end_write(ends[1], bytes, 10)); // the other way is open
    CHECK(far_end_read(ends[0], bytes, 10));
    transport_hang_up(ends[1]);
    CHECK_EQ(far_end_read_some(ends[0], bytes, 1), -ECONNRESET);
    CHECK(!far_end_write(ends[1], bytes, 1)); // and no signal
    for (int i = 0; i < 2; i++) transport_free(ends[i]);

    check_case("it closes: what had come is there, then the end");
    open_tcp(ends, 0, 0);
    CHECK(far_end_write(ends[0], "before", 6));
    transport_free(ends[0]);
    CHECK(far_end_read(ends[1], bytes, 6) && memcmp(bytes, "before", 6) == 0);
    CHECK_EQ(far_end_read_some(ends[1], bytes, 1), 0);
    CHECK(!far_end_write(ends[1], bytes, 1) || !far_end_write(ends[1], bytes, 1));
    transport_free(ends[1]);

    check_case("a process dies");
    open_tcp(ends, 0, 0);
    CHECK(far_end_write(ends[0], "before", 6));
    shutdown(ends[0]->fd, SHUT_RDWR); // as the kernel does for it
    CHECK(far_end_read(ends[1], bytes, 6) && memcmp(bytes, "before", 6) == 0);
    CHECK_EQ(far_end_read_some(ends[1], bytes, 1), -ECONNRESET);
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
}

// Errors of the program in the same thread are neither lost nor taken for ours.
static void test_error_queue(void) {
    struct transport *ends[2];
    uint8_t byte;
    check_case("the program's errors");
    open_tcp(ends, 0, 0);
    ERR_clear_error();
    ERR_raise(ERR_LIB_USER, 7);
    CHECK_EQ(transport_receive(ends[1], &byte, 1), -EAGAIN);
    CHECK(far_end_write(ends[0], "x", 1) && far_end_read(ends[1], &byte, 1));
    transport_free(ends[0]);
    CHECK_EQ(far_end_read_some(ends[1], &byte, 1), 0);
    transport_free(ends[1]);
    unsigned long error = ERR_get_error();
    CHECK(ERR_GET_LIB(error) == ERR_LIB_USER && ERR_GET_REASON(error) == 7);
    CHECK_EQ(ERR_get_error(), 0);
}

// ---- threads ----

struct job {
    struct transport *stream;
    bool sends;
};

static void *work(void *argument) {
    enum { PIECE = 200000 };
    const struct job *job = argument;
    uint8_t *bytes = malloc(PIECE);
    REQUIRE(bytes != NULL);
    check_case(job->sends ? "two threads: sending" : "two threads: receiving");
    for (size_t done = 0; done < MUCH;) {
        size_t length = MUCH - done < PIECE ? MUCH - done : PIECE;
        if (job->sends) {
            for (size_t i = 0; i < length; i++) bytes[i] = byte_at(done + i);
            REQUIRE(far_end_write(job->stream, bytes, length));
        } else {
            REQUIRE(far_end_read(job->stream, bytes, length));
            for (size_t i = 0; i < length; i++)
                if (bytes[i] != byte_at(done + i)) REQUIRE(CHECK_EQ(bytes[i], byte_at(done + i)));
        }
        done += length;
    }
    free(bytes);
    return NULL;
}

static void test_threads(void) {
    struct transport *ends[2];
    pthread_t threads[4];
    open_tcp(ends, 500, 0);
    struct job jobs[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){ends[i / 2], i % 2 == 0};
        REQUIRE(pthread_create(&threads[i], NULL, work, &jobs[i]) == 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    check_case("two threads");
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
}

static void *receive_until_end(void *argument) {
    uint8_t bytes[1000];
    ptrdiff_t got;
    do got = far_end_read_some(argument, bytes, sizeof bytes);
    while (got > 0);
    return NULL;
}

static void test_hang_up(void) {
    struct transport *ends[2];
    pthread_t threads[2];
    check_case("hang up while others send and receive");
    open_tcp(ends, 0, 0);
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, receive_until_end, ends[i]) == 0);
    uint8_t bytes[50000] = {0};
    for (int i = 0; i < 20; i++) CHECK(far_end_write(ends[0], bytes, sizeof bytes));
    transport_hang_up(ends[0]);
    CHECK(!far_end_write(ends[0], bytes, sizeof bytes));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
}

// ---- records, by hand ----
// Four messages, a record each, and what the middle makes of their bytes.
enum { RECORDS = 4, MESSAGE = 100, RECORD = MESSAGE + 22 };

static void read_records(const struct wire *wire, uint8_t records[RECORDS][RECORD]) {
    for (int i = 0; i < RECORDS; i++) {
        uint8_t message[MESSAGE];
        memset(message, 'a' + i, sizeof message);
        CHECK(far_end_write(wire->ends[0], message, sizeof message));
    }
    REQUIRE(recv(wire->middle[0], records, RECORDS * RECORD, MSG_WAITALL) == RECORDS * RECORD);
}

// The other side says so in an alert. After that the sender's error is that of a broken connection.
static void check_told(const struct wire *wire) {
    uint8_t alert[64];
    ssize_t length = recv(wire->middle[1], alert, sizeof alert, 0);
    REQUIRE(length > 0 && send(wire->middle[0], alert, (size_t)length, MSG_NOSIGNAL) == length);
    CHECK_EQ(far_end_read_some(wire->ends[0], alert, sizeof alert), 0);
    for (int again = 0; again < 2; again++) CHECK_EQ(transport_send(wire->ends[0], "x", 1), -ECONNRESET);
}

static void test_records(void) {
    static const struct {
        const char *name;
        int order[6]; // -1: none; 10: half of the next; 20: a plain alert
        int good;     // messages that pass
        int result;
    } rows[] = {
        {"in order", {0, 1, 2, 3, -1}, 4, -EAGAIN},
        {"reordered", {0, 2, 1, 3, -1}, 1, -EBADMSG},
        {"the first last", {1, 2, 3, 0, -1}, 0, -EBADMSG},
        {"doubled", {0, 1, 1, 2, 3, -1}, 2, -EBADMSG},
        {"dropped", {0, 2, 3, -1}, 1, -EBADMSG},
        {"replayed", {0, 1, 2, 3, 0, -1}, 4, -EBADMSG},
        {"cut between two", {0, 1, -1}, 2, -ECONNRESET},
        {"cut within one", {0, 10, -1}, 1, -ECONNRESET},
        {"a plain close_notify", {0, 20, -1}, 1, -EBADMSG},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct wire wire;
        uint8_t records[RECORDS][RECORD], heard[RECORDS * MESSAGE];
        check_case("records: %s", rows[i].name);
        open_good(&wire);
        read_records(&wire, records);
        for (const int *at = rows[i].order; *at >= 0; at++) {
            static const uint8_t alert[] = {21, 3, 3, 0, 2, 1, 0};
            const uint8_t *from = *at == 20 ? alert : records[*at == 10 ? 1 : *at];
            size_t length = *at == 20 ? sizeof alert : *at == 10 ? RECORD / 2 : RECORD;
            CHECK_EQ(send(wire.middle[1], from, length, MSG_NOSIGNAL), (ssize_t)length);
        }
        if (rows[i].result == -ECONNRESET) shutdown(wire.middle[1], SHUT_WR);
        size_t length = (size_t)rows[i].good * MESSAGE;
        if (length > 0) CHECK(far_end_read(wire.ends[1], heard, length));
        for (size_t at = 0; at < length; at++) REQUIRE(heard[at] == 'a' + at / MESSAGE);
        for (int again = 0; again < 2; again++) CHECK_EQ(transport_receive(wire.ends[1], heard, 1), rows[i].result);
        if (rows[i].result == -EBADMSG) check_told(&wire);
        close_wire(&wire);
    }
}

static void test_flipped_records(void) {
    for (size_t place = 0; place < RECORD; place++) {
        struct wire wire;
        uint8_t records[RECORDS][RECORD], heard[MESSAGE];
        check_case("a bit of byte %zu of a record", place);
        open_good(&wire);
        read_records(&wire, records);
        records[0][place] ^= 4;
        CHECK_EQ(send(wire.middle[1], records, sizeof records, MSG_NOSIGNAL), (ssize_t)sizeof records);
        shutdown(wire.middle[1], SHUT_WR);
        ptrdiff_t got = far_end_read_some(wire.ends[1], heard, sizeof heard);
        CHECK(got == -EBADMSG || got == -ECONNRESET);
        close_wire(&wire);
    }
}

// ---- work per input ----

static void update_key(struct transport *stream, int kind) {
    SSL *ssl = tls_of(stream)->ssl;
    REQUIRE(SSL_key_update(ssl, kind) == 1 && SSL_do_handshake(ssl) == 1);
}

// A few records without data pass. One more in a row ends the stream, wherever it is read.
static void test_idle_records(void) {
    enum { MOST = 32 };
    static const int kinds[] = {SSL_KEY_UPDATE_NOT_REQUESTED, SSL_KEY_UPDATE_REQUESTED};
    for (int i = 0; i < 2; i++) {
        struct transport *ends[2];
        uint8_t byte;
        check_case(i == 0 ? "KeyUpdates" : "KeyUpdates that want an answer");
        open_tcp(ends, 0, 0);
        for (int round = 0; round < 3; round++) {
            for (int sent = 0; sent < MOST; sent++) update_key(ends[0], kinds[i]);
            CHECK(far_end_write(ends[0], "x", 1) && far_end_read(ends[1], &byte, 1));
            CHECK(far_end_write(ends[1], "y", 1) && far_end_read(ends[0], &byte, 1)); // behind the answers
        }
        for (int sent = 0; sent <= MOST; sent++) update_key(ends[0], kinds[i]);
        for (int again = 0; again < 2; again++) CHECK_EQ(far_end_read_some(ends[1], &byte, 1), -ENOMSG);
        for (int end = 0; end < 2; end++) transport_free(ends[end]);
    }
}

// The limit of a turn is one of bytes from the kernel: many records of a byte are many turns.
static void test_turn(void) {
    enum { MANY = 20000 };
    static uint8_t bytes[TLS_TURN_BYTES];
    struct transport *ends[2];
    size_t sent = 0, received = 0, turns = 0;
    check_case("records of a byte");
    open_tcp(ends, 0, 0);
    while (sent < MANY && transport_send(ends[0], "x", 1) == 1) sent++;
    while (received < sent) {
        ptrdiff_t got = transport_recvv(ends[1], &(struct iovec){bytes, sizeof bytes}, 1);
        if (got == -EAGAIN && !ends[1]->buffered) REQUIRE(transport_wait(ends[1], EPOLLIN, FAR_END_PATIENCE_MS));
        if (got == -EAGAIN) continue;
        REQUIRE(got > 0);
        CHECK(tls_of(ends[1])->taken <= TLS_BATCH_BYTES + TLS_IN_BYTES + 22);
        CHECK((size_t)got <= (TLS_BATCH_BYTES + 2 * TLS_IN_BYTES) / 23);
        received += (size_t)got;
        turns++;
    }
    CHECK(sent > MANY / 2 && turns > sent * 23 / (TLS_BATCH_BYTES + TLS_IN_BYTES));
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
}

// ---- fork ----

// A child has no descriptor of its parent's; it closes what it inherited, and says nothing on a descriptor that is now
// its own.
static void test_fork(void) {
    struct transport *ends[2];
    uint8_t bytes[4];
    int status;
    check_case("fork");
    open_tcp(ends, 0, 0);
    int number = ends[0]->fd, sockets[2];
    pid_t child = fork();
    if (child == 0) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets) != 0) _exit(2);
        if (sockets[0] != number && (dup2(sockets[0], number) != number || close(sockets[0]) != 0)) _exit(3);
        if (sockets[1] == number) _exit(4);
        struct transport *stream = transport_hold(ends[0]);
        stream->fd = dup(number); // so that freeing it closes another one
        ends[0]->type->fini(ends[0]);
        _exit(recv(sockets[1], bytes, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN ? 0 : 5);
    }
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    CHECK(far_end_write(ends[0], "word", 4) && far_end_read(ends[1], bytes, 4) && memcmp(bytes, "word", 4) == 0);
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
}

int main(void) {
    test_records();
    test_flipped_records();
    test_idle_records();
    test_turn();
    test_carries();
    test_waiting();
    test_ends();
    test_error_queue();
    test_threads();
    test_hang_up();
    test_fork();
    return check_status();
}

#endif
