// How much a master does for one run, or for strangers, before another run has its turn. Each unit of work takes a
// millisecond of a clock that stands still otherwise, so a busy machine changes no count.
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "far_end.h"
#include "master/core.h"
#include "master/master_private.h"
#include "net/wire_control.h"

enum { PATIENCE_MS = 20000, FLOOD = 2000, STRANGERS = 60, TURN_MOST = 25 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool holds, held;           // the master's thread waits in the midst of its work
static uint32_t done, victim_done; // units of work; at which the victim had its turn
static _Atomic int64_t clock_ns = SECOND_NS;
static atomic_bool counts;     // the clock is the test's, and work counts
static atomic_bool dials;      // the master tests the addresses of newcomers
static _Atomic uint32_t looks; // at the clock
static _Atomic int held_conns;

int64_t __real_platform_now_ns(void);
int64_t __wrap_platform_now_ns(void);
int64_t __wrap_platform_now_ns(void) {
    atomic_fetch_add(&looks, 1);
    return atomic_load(&counts) ? atomic_load(&clock_ns) : __real_platform_now_ns();
}

static void work(bool of_victim) {
    if (!atomic_load(&counts)) return;
    atomic_fetch_add(&clock_ns, MS_NS);
    pthread_mutex_lock(&lock);
    held = true;
    pthread_cond_broadcast(&changed);
    while (holds) pthread_cond_wait(&changed, &lock);
    done++;
    if (of_victim && victim_done == 0) victim_done = done;
    pthread_mutex_unlock(&lock);
}

const struct actions *__real_core_message(struct master_core *core, int64_t now_ns, uint32_t conn,
                                          const struct wire_header *header, const uint8_t *body);
const struct actions *__wrap_core_message(struct master_core *core, int64_t now_ns, uint32_t conn,
                                          const struct wire_header *header, const uint8_t *body);
const struct actions *__wrap_core_message(struct master_core *core, int64_t now_ns, uint32_t conn,
                                          const struct wire_header *header, const uint8_t *body) {
    work(header->type == WIRE_VOTE);
    return __real_core_message(core, now_ns, conn, header, body);
}

int __real_transport_step(struct transport *stream);
int __wrap_transport_step(struct transport *stream);
int __wrap_transport_step(struct transport *stream) {
    if (stream->role == TRANSPORT_ACCEPTS) work(false);
    return __real_transport_step(stream);
}

bool __real_dial_back_begin(struct master *master, struct conn *conn, const struct wire_hello *hello);
bool __wrap_dial_back_begin(struct master *master, struct conn *conn, const struct wire_hello *hello);
bool __wrap_dial_back_begin(struct master *master, struct conn *conn, const struct wire_hello *hello) {
    if (!atomic_load(&dials)) return __real_dial_back_begin(master, conn, hello);
    atomic_fetch_add(&held_conns, 1);
    return true;
}

static struct wire_address address = {.family = 4, .bytes = {127, 0, 0, 1}};

static struct transport *say_hello(const char *run, uint8_t name) {
    struct transport *stream = far_end_dial(&address);
    struct wire_buffer frames = {0};
    struct wire_run named = {{0}};
    struct wire_hello hello = {.version = WIRE_VERSION, .id = {{name}}, .lanes = 1, .port = 40000, .masters = 1};
    REQUIRE(stream != NULL);
    memcpy(named.chars, run, strlen(run));
    wire_encode_run(&frames, (struct wire_header){0}, &named);
    wire_encode_hello(&frames, (struct wire_header){0}, &hello);
    REQUIRE(far_end_write(stream, frames.bytes, frames.length));
    wire_buffer_fini(&frames);
    return stream;
}

// Registers a peer alone in a run. Returns its stream, and how it speaks.
static struct transport *join(const char *run, uint8_t name, struct wire_header *header) {
    struct transport *stream = say_hello(run, name);
    uint8_t bytes[WIRE_HEADER_BYTES], body[4096];
    do {
        REQUIRE(far_end_read(stream, bytes, sizeof bytes) && wire_header_decode(bytes, header));
        REQUIRE(header->length <= sizeof body && far_end_read(stream, body, header->length));
    } while (header->type != WIRE_EPOCH);
    return stream;
}

static void heartbeats(struct transport *stream, struct wire_header header, uint32_t count) {
    struct wire_buffer frames = {0};
    while (count-- > 0) wire_encode_empty(&frames, header, WIRE_HEARTBEAT);
    CHECK(far_end_write(stream, frames.bytes, frames.length));
    wire_buffer_fini(&frames);
}

static void vote(struct transport *stream, struct wire_header header) {
    struct wire_buffer frame = {0};
    wire_encode_vote(&frame, header, &(struct wire_vote){WIRE_VOTE_PENDING});
    CHECK(far_end_write(stream, frame.bytes, frame.length));
    wire_buffer_fini(&frame);
}

static void begin(void) {
    pthread_mutex_lock(&lock);
    holds = true;
    held = false;
    done = victim_done = 0;
    pthread_mutex_unlock(&lock);
    atomic_store(&clock_ns, __real_platform_now_ns());
    atomic_store(&counts, true);
}

static void await_held(void) {
    pthread_mutex_lock(&lock);
    while (!held) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

// Lets the master go on. Returns how much it did before it heard the victim.
static uint32_t release(void) {
    uint32_t before = 0;
    pthread_mutex_lock(&lock);
    holds = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    AWAIT(before > 0, {
        pthread_mutex_lock(&lock);
        before = victim_done;
        pthread_mutex_unlock(&lock);
        usleep(1000);
    });
    atomic_store(&counts, false);
    return before;
}

static struct master *start(void) {
    struct master_options options = {.listens = &address, .listen_count = 1, .heartbeat_limit_ms = PATIENCE_MS};
    struct master *master;
    address.port = 0;
    REQUIRE(master_start(&options, &master) == 0);
    address.port = master_port(master);
    return master;
}

static void stop(struct master *master, struct transport *streams[2]) {
    for (int i = 0; i < 2; i++) transport_free(streams[i]);
    master_interrupt(master);
    master_free(master);
}

// A member sends many frames at once. Then one of another run says a word.
static void test_frames(void) {
    struct wire_header headers[2];
    check_case("frames of another run");
    struct master *master = start();
    struct transport *streams[2] = {join("flood", 1, &headers[0]), join("victim", 2, &headers[1])};
    begin();
    heartbeats(streams[0], headers[0], 1);
    await_held();
    heartbeats(streams[0], headers[0], FLOOD);
    vote(streams[1], headers[1]);
    uint32_t before = release();
    CHECK(before <= TURN_MOST);
    stop(master, streams);
}

// Strangers come at once, and each beginning of a handshake costs time.
static void test_strangers(void) {
    struct wire_header headers[2];
    int strangers[STRANGERS];
    check_case("handshakes of strangers");
    struct master *master = start();
    struct transport *streams[2] = {join("other", 1, &headers[0]), join("victim", 2, &headers[1])};
    begin();
    for (int i = 0; i < STRANGERS; i++) strangers[i] = socket_dial(&address);
    await_held();
    vote(streams[1], headers[1]);
    uint32_t before = release();
    CHECK(before <= TURN_MOST);
    for (int i = 0; i < STRANGERS; i++) close(strangers[i]);
    stop(master, streams);
}

// The poller tells of a reset again and again until the connection is closed.
static void test_held(void) {
    check_case("a newcomer ends its connection while its address is tested");
    struct master *master = start();
    atomic_store(&dials, true);
    struct transport *stream = say_hello("held", 3);
    AWAIT(atomic_load(&held_conns) == 1, usleep(1000));
    setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    transport_free(stream);
    usleep(100000);
    uint32_t before = atomic_load(&looks);
    usleep(100000);
    CHECK(atomic_load(&looks) - before < 100);
    master_interrupt(master);
    master_free(master);
    atomic_store(&dials, false);
}

int main(void) {
    test_frames();
    test_held();
    test_strangers();
    return check_status();
}
