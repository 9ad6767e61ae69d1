// The lanes to a far neighbour while an op waits: they say heartbeats, so that the kernel keeps their windows. All
// links seem to lead far away (fakes/far_gauge.c), and the neighbour is the test.
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

enum { LANES = 3, MEMBERS = 2, COUNT = 512 << 10, BEATS = 5 };

static const struct wire_id ids[MEMBERS] = {{{1}}, {{2}}};
static struct transport *ends[LANES]; // of the direct link and of two lanes, at the neighbour
static uint32_t beats[LANES];
static uint64_t came;

// Reads one frame that has come on this lane.
static void hear(int lane) {
    static uint8_t bytes[WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES];
    struct wire_header header;
    struct wire_head head;
    REQUIRE(far_end_read(ends[lane], bytes, WIRE_HEADER_BYTES) && wire_header_decode(bytes, &header));
    REQUIRE(far_end_read(ends[lane], bytes, header.length));
    beats[lane] += header.type == WIRE_LINK_HEARTBEAT;
    if (header.type != WIRE_CHUNK) return;
    REQUIRE(wire_head_decode(bytes, WIRE_CHUNK, &head));
    came += header.length - WIRE_HEAD_BYTES - head.lead - head.padding;
}

static void hear_any(void) {
    struct pollfd polled[LANES];
    for (int i = 0; i < LANES; i++) polled[i] = (struct pollfd){.fd = ends[i]->fd, .events = POLLIN};
    REQUIRE(poll(polled, LANES, FAR_END_PATIENCE_MS) > 0);
    for (int i = 0; i < LANES; i++)
        if (polled[i].revents != 0) hear(i);
}

int main(void) {
    struct wire_fingerprint what = {.count = COUNT, .dtype = pcclFloat, .op = pcclSum};
    struct engine *engine = engine_new(&ids[0], &deaf_owner);
    float *send = calloc(COUNT, sizeof *send), *recv = calloc(COUNT, sizeof *recv);
    REQUIRE(engine != NULL && send != NULL && recv != NULL);
    for (uint32_t i = 0; i < LANES; i++) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        engine_add_link(engine, &ids[1], i, far_end_new(pair[0]));
        ends[i] = far_end_new(pair[1]);
    }
    struct wire_member members[MEMBERS] = {{.id = ids[0]}, {.id = ids[1]}};
    enter_epoch(engine, 1, members, MEMBERS, 0);
    engine_links_ready(engine, 1);
    struct call_args args = {.send = send, .recv = recv, .tag = 1, .fingerprint = what};
    REQUIRE(engine_post(engine, &args, 1) == CALL_OK);

    usleep(2 * PACE_TICK_MS * 1000); // so that the first frame of a lane is measured
    check_case("the own part goes as soon as the neighbour is there");
    uint8_t bytes[WIRE_HEADER_BYTES + WIRE_HEAD_BYTES];
    struct wire_head ready = {.op = {.tag = 1, .fingerprint = what, .sequence = 1}};
    struct wire_header header = {.run = EPOCH_RUN, .generation = EPOCH_GENERATION, .epoch = 1, .type = WIRE_READY};
    header.length = WIRE_HEAD_BYTES;
    wire_header_encode(bytes, &header);
    wire_head_encode(bytes + WIRE_HEADER_BYTES, WIRE_READY, &ready);
    REQUIRE(far_end_write(ends[0], bytes, sizeof bytes));
    while (came == 0) hear_any();

    check_case("then the op waits for the neighbour's, and the first lane says that it is there");
    while (beats[1] < BEATS) hear_any();

    engine_stop(engine);
    engine_free(engine);
    for (int i = 0; i < LANES; i++) transport_free(ends[i]);
    free(send);
    free(recv);
    return check_status();
}
