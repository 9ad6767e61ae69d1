// Links whose connection stands while nothing comes or goes: one lane in virtual time, and two engines, joined by a
// relay that can be told to hold back.
#define _GNU_SOURCE
#include <pccl.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "far_end.h"
#include "deaf_owner.h"
#include "data/engine.h"
#include "link/failure_detector.h"
#include "enter_epoch.h"
#include "net/socket.h"
#include "net/transport.h"

enum { LIMIT_MS = 1500, BIG = 4 << 20, LINKS = 2 }; // the direct one and a lane

enum flow { FLOW_PASS, FLOW_HOLD, FLOW_TRICKLE };

// One connection, engine 0 at ends[0].
struct relay {
    int ends[2];
    _Atomic enum flow flow[2]; // from ends[i] on
};

struct side {
    struct engine *engine;
    struct wire_id id;
    atomic_uint silent[LINKS], broken;
};

static struct relay relays[LINKS];
static atomic_bool stopping;
static struct side sides[2];
static uint64_t epoch;

static void on_link_down(void *context, const struct wire_id *id, uint32_t index, uint64_t serial,
                         enum wire_link_reason reason) {
    (void)id, (void)serial;
    struct side *side = context;
    (*(reason == WIRE_LINK_SILENT ? &side->silent[index] : &side->broken))++;
}

static void move(struct relay *relay, int from) {
    static char bytes[1 << 16];
    enum flow flow = relay->flow[from];
    if (flow == FLOW_HOLD) return;
    ssize_t got = recv(relay->ends[from], bytes, flow == FLOW_TRICKLE ? 1 : sizeof bytes, MSG_DONTWAIT);
    for (ssize_t sent = 0; sent < got && !stopping;) {
        ssize_t took = send(relay->ends[1 - from], bytes + sent, (size_t)(got - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (took > 0) sent += took;
    }
}

static void *run_relays(void *unused) {
    (void)unused;
    while (!stopping) {
        for (int i = 0; i < LINKS; i++)
            for (int from = 0; from < 2; from++) move(&relays[i], from);
        usleep(500);
    }
    return NULL;
}

static void tcp_pair(int pair[2]) {
    struct wire_address address = {.family = 4, .bytes = {127, 0, 0, 1}}, from;
    int listener = socket_listen(&address);
    REQUIRE(listener >= 0 && socket_local_address(listener, &address) && (pair[0] = socket_dial(&address)) >= 0);
    AWAIT((pair[1] = socket_accept(listener, &from)) != -EAGAIN, usleep(100));
    REQUIRE(pair[1] >= 0);
    close(listener);
}

static void begin_world(pthread_t *thread) {
    stopping = false;
    epoch++;
    for (uint32_t i = 0; i < 2; i++) {
        sides[i] = (struct side){.id.bytes = {(uint8_t)(i + 1)}};
        struct engine_callbacks callbacks = deaf_owner;
        callbacks.context = &sides[i];
        callbacks.link_down = on_link_down;
        sides[i].engine = engine_new(&sides[i].id, &callbacks);
        REQUIRE(sides[i].engine != NULL);
    }
    for (uint32_t index = 0; index < LINKS; index++)
        for (int i = 0; i < 2; i++) {
            int pair[2] = {-1, -1};
            tcp_pair(pair);
            relays[index].ends[i] = pair[1];
            relays[index].flow[i] = FLOW_PASS;
            engine_add_link(sides[i].engine, &sides[1 - i].id, index, far_end_new(pair[0]));
        }
    REQUIRE(pthread_create(thread, NULL, run_relays, NULL) == 0);
    struct wire_member members[2] = {{.id = sides[0].id}, {.id = sides[1].id}};
    for (uint32_t i = 0; i < 2; i++) {
        engine_set_silence(sides[i].engine, LIMIT_MS * MS_NS);
        enter_epoch(sides[i].engine, epoch, members, 2, i);
        engine_links_ready(sides[i].engine, epoch);
    }
}

static void end_world(pthread_t thread) {
    stopping = true;
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) engine_free(sides[i].engine);
    for (int index = 0; index < LINKS; index++)
        for (int i = 0; i < 2; i++) close(relays[index].ends[i]);
}

static void pass(int64_t ms) { usleep((useconds_t)(ms * 1000)); }

// Milliseconds until `count` is reached, 20 limits at most.
static int64_t until(atomic_uint *counter, unsigned count) {
    int64_t begun = platform_now_ns();
    while (*counter < count && platform_now_ns() < begun + 20 * LIMIT_MS * MS_NS) usleep(1000);
    return (platform_now_ns() - begun) / MS_NS;
}

static void expect_healthy(void) {
    for (int i = 0; i < 2; i++) {
        for (int index = 0; index < LINKS; index++) CHECK_EQ(sides[i].silent[index], 0);
        CHECK_EQ(sides[i].broken, 0);
    }
}

// ---- one lane, in virtual time ----
static int64_t clock_ns;

static const char *check(struct failure_detector *detector, bool heard, uint64_t queued, bool parked) {
    struct gauge gauge = {.tells_queue = true, .queued = queued};
    detector->heard |= heard;
    clock_ns += LIMIT_MS * MS_NS / FAILURE_DETECTOR_CHECKS;
    return failure_detector_check(detector, parked, &gauge, clock_ns, LIMIT_MS * MS_NS);
}

// The checks, FAILURE_DETECTOR_CHECKS in a limit, until the link is given up.
static uint32_t patience(struct failure_detector *detector, uint64_t queued, bool heard, bool parked,
                         const char **why) {
    uint32_t checks = 0;
    while ((*why = check(detector, heard, queued, parked)) == NULL && checks < 100) checks++;
    return checks;
}

static void test_pure(void) {
    enum { LIMIT = FAILURE_DETECTOR_CHECKS, MOST = ARRIVAL_STRETCH * FAILURE_DETECTOR_CHECKS };
    const char *why;
    struct failure_detector calm = {0}, paused = {0}, once = {0}, stuck = {0}, slow = {0}, parked = {0}, stopped = {0},
                            waiting = {0}, beside = {.patient = true};
    clock_ns = SECOND_NS;
    check_case("a calm link is given up after the limit");
    for (int i = 0; i < 50; i++) CHECK(check(&calm, i % 2 == 0, 0, false) == NULL);
    uint32_t checks = patience(&calm, 0, false, false, &why);
    CHECK(checks >= LIMIT && checks <= LIMIT + 1);
    CHECK_STR(why, "silent");
    check_case("one that pauses often is waited for longer, but not for ever");
    for (int i = 0; i < 30; i++)
        for (int k = 0; k < LIMIT; k++) CHECK(check(&paused, k == 0 || (k == 1 && i % 2 == 0), 0, false) == NULL);
    CHECK(check(&paused, true, 0, false) == NULL);
    checks = patience(&paused, 0, false, false, &why);
    CHECK(checks > LIMIT + 1 && checks <= MOST + 1);
    check_case("one long pause is remembered, though much was heard since");
    for (int i = 0; i < 3; i++) CHECK(check(&once, i == 0, 0, false) == NULL);
    for (int i = 0; i < 16; i++) CHECK(check(&once, i > 0, 0, false) == NULL);
    checks = patience(&once, 0, false, false, &why);
    CHECK(checks > LIMIT + 1 && checks <= 2 * 3 + 1);
    for (int i = 0; i < 64 * MOST; i++) check(&once, true, 0, false);
    checks = patience(&once, 0, false, false, &why);
    CHECK(checks >= LIMIT && checks <= LIMIT + 1);
    check_case("one beside which another one is heard has the longest");
    for (int i = 0; i < 50; i++) CHECK(check(&beside, true, 0, false) == NULL);
    checks = patience(&beside, 0, false, false, &why);
    CHECK(checks >= MOST && checks <= MOST + 1);
    beside.patient = false;
    CHECK(check(&beside, false, 0, false) != NULL);
    check_case("bytes that are never taken");
    stuck.sent = 1 << 20;
    checks = patience(&stuck, 1 << 20, true, false, &why);
    CHECK(checks >= LIMIT && checks <= LIMIT + 2);
    CHECK_STR(why, "it acknowledges no bytes");
    check_case("a reader that takes some within each limit");
    slow.sent = 1 << 20;
    for (uint64_t queued = 1 << 20; queued >= 4096; queued -= 4096)
        for (int k = 0; k < LIMIT - 1; k++) CHECK(check(&slow, true, queued, false) == NULL);
    check_case("an epoch that does not come");
    checks = patience(&parked, 0, false, true, &why);
    CHECK(checks >= MOST && checks <= MOST + 2);
    CHECK_STR(why, "its next epoch did not come");
    check_case("a process that was stopped");
    for (int i = 0; i < 20; i++) CHECK(check(&stopped, true, 0, false) == NULL);
    clock_ns += 10 * LIMIT_MS * MS_NS;
    failure_detector_excuse(&stopped, clock_ns);
    CHECK(check(&stopped, false, 0, false) == NULL);
    check_case("a process that was stopped while a link waited for an epoch");
    CHECK(check(&waiting, false, 0, true) == NULL);
    clock_ns += 10 * LIMIT_MS * MS_NS;
    failure_detector_excuse(&waiting, clock_ns);
    CHECK(check(&waiting, false, 0, true) == NULL);
}

// ---- engines ----
static void test_idle(void) {
    check_case("idle links are heard of");
    pthread_t thread;
    begin_world(&thread);
    pass(2 * LIMIT_MS);
    expect_healthy();
    end_world(thread);
}

static void test_one_way(void) {
    check_case("a direction that is cut is found by who hears nothing");
    pthread_t thread;
    begin_world(&thread);
    relays[1].flow[0] = FLOW_HOLD;
    int64_t ms = until(&sides[1].silent[1], 1);
    CHECK(ms >= LIMIT_MS / 2);
    CHECK(ms < 20 * LIMIT_MS);
    CHECK_EQ(sides[1].silent[1], 1);
    CHECK_EQ(sides[1].silent[0], 0); // the link beside it is heard
    end_world(thread);
}

static void test_short_hold(void) {
    check_case("a pause shorter than the limit is none");
    pthread_t thread;
    begin_world(&thread);
    for (int i = 0; i < 3; i++) {
        relays[0].flow[0] = relays[0].flow[1] = FLOW_HOLD;
        pass(LIMIT_MS / 4);
        relays[0].flow[0] = relays[0].flow[1] = FLOW_PASS;
        pass(LIMIT_MS / 4);
    }
    expect_healthy();
    end_world(thread);
}

static void test_trickle(void) {
    check_case("a reader that takes a byte now and then is stuck");
    static uint8_t data[2][2][BIG];
    pthread_t thread;
    begin_world(&thread);
    relays[1].flow[0] = FLOW_TRICKLE;
    for (int i = 0; i < 2; i++) {
        struct call_args reduce = {.send = data[i][0],
                                   .recv = data[i][1],
                                   .tag = 1,
                                   .fingerprint = {.count = BIG, .dtype = pcclUint8, .op = pcclSum}};
        REQUIRE(engine_post(sides[i].engine, &reduce, epoch) == CALL_OK);
    }
    CHECK(until(&sides[0].silent[1], 1) < 20 * LIMIT_MS);
    CHECK_EQ(sides[0].silent[1], 1);
    end_world(thread);
}

int main(void) {
    setenv("PCCL_SAME_HOST_MEMORY", "0", 1); // all bytes take the links
    test_pure();
    test_idle();
    test_one_way();
    test_short_hold();
    test_trickle();
    return check_status();
}
