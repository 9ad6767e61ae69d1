// The lanes to a far neighbour while an op waits: those that have carried bulk say heartbeats, so that the kernel keeps
// their windows. All links seem to lead far away (fakes/far_gauge.c), and the neighbour is the test.
#include <pccl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "data/engine.h"
#include "link/pace.h"
#include "deaf_owner.h"
#include "enter_epoch.h"
#include "far_end.h"

enum { LANES = 3, MEMBERS = 2, COUNT = 512 << 10, BEATS = 3 };

static const struct wire_id ids[MEMBERS] = {{{1}}, {{2}}};

// The direct link and two lanes, at the neighbour.
static struct end {
    struct transport *stream;
    uint64_t bulk;  // bytes that have come
    uint32_t beats; // heartbeats since then
} ends[LANES];

// Reads one frame that has come here.
static void hear(struct end *end) {
    static uint8_t bytes[WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES];
    struct wire_header header;
    struct wire_head head;
    REQUIRE(far_end_read(end->stream, bytes, WIRE_HEADER_BYTES) && wire_header_decode(bytes, &header));
    REQUIRE(far_end_read(end->stream, bytes, header.length));
    end->beats += header.type == WIRE_LINK_HEARTBEAT;
    if (header.type != WIRE_CHUNK && header.type != WIRE_EARLY) return;
    REQUIRE(wire_head_decode(bytes, header.type, &head));
    end->bulk += header.length - WIRE_HEAD_BYTES - head.lead - head.padding;
    end->beats = 0;
}

static void hear_any(void) {
    struct pollfd polled[LANES];
    for (int i = 0; i < LANES; i++) polled[i] = (struct pollfd){.fd = ends[i].stream->fd, .events = POLLIN};
    REQUIRE(poll(polled, LANES, FAR_END_PATIENCE_MS) > 0);
    for (int i = 0; i < LANES; i++)
        if (polled[i].revents != 0) hear(&ends[i]);
}

static bool all_beat(void) {
    uint64_t bulk = 0;
    for (int i = 1; i < LANES; i++) {
        if (ends[i].bulk > 0 && ends[i].beats < BEATS) return false;
        bulk += ends[i].bulk;
    }
    return bulk > 0;
}

static void begin_run(struct engine *engine, const struct wire_fingerprint *what, float *send, float *recv) {
    for (uint32_t i = 0; i < LANES; i++) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        engine_add_link(engine, &ids[1], i, far_end_new(pair[0]));
        ends[i] = (struct end){.stream = far_end_new(pair[1])};
    }
    struct wire_member members[MEMBERS] = {{.id = ids[0]}, {.id = ids[1]}};
    enter_epoch(engine, 1, members, MEMBERS, 0);
    engine_links_ready(engine, 1);
    struct call_args args = {.send = send, .recv = recv, .tag = 1, .fingerprint = *what};
    REQUIRE(engine_post(engine, &args, 1) == CALL_OK);
}

static void say_ready(const struct wire_fingerprint *what) {
    uint8_t bytes[WIRE_HEADER_BYTES + WIRE_HEAD_BYTES];
    struct wire_head ready = {.op = {.tag = 1, .fingerprint = *what, .sequence = 1}};
    struct wire_header header = {.run = EPOCH_RUN, .generation = EPOCH_GENERATION, .epoch = 1, .type = WIRE_READY};
    header.length = WIRE_HEAD_BYTES;
    wire_header_encode(bytes, &header);
    wire_head_encode(bytes + WIRE_HEADER_BYTES, WIRE_READY, &ready);
    REQUIRE(far_end_write(ends[0].stream, bytes, sizeof bytes));
}

static void test(int after_ms) {
    struct wire_fingerprint what = {.count = COUNT, .dtype = pcclFloat, .op = pcclSum};
    struct engine *engine = engine_new(&ids[0], &deaf_owner);
    float *send = calloc(COUNT, sizeof *send), *recv = calloc(COUNT, sizeof *recv);
    REQUIRE(engine != NULL && send != NULL && recv != NULL);
    begin_run(engine, &what, send, recv);
    usleep((useconds_t)after_ms * 1000);
    say_ready(&what);
    check_case("the lanes that have carried bulk say that they are there, READY after %d ms", after_ms);
    AWAIT(all_beat(), hear_any());
    engine_stop(engine);
    engine_free(engine);
    for (int i = 0; i < LANES; i++) transport_free(ends[i].stream);
    free(send);
    free(recv);
}

int main(void) {
    test(0);                // bulk goes before the rate control has measured anything
    test(2 * PACE_TICK_MS); // it has a measurement
    return check_status();
}
