// Counts near the end of what a number holds: each function refuses them, whatever their sum or product wraps to.
#include "api/api.h"
#include "run.h"

enum { MEMBERS = 3 };

static const size_t most = (size_t)PTRDIFF_MAX / sizeof(float);

struct row {
    pcclCollectiveKind_t kind;
    size_t count, send[MEMBERS], recv[MEMBERS];
    bool with_send, with_recv;
};

static void test_collectives(const struct run *run, const pcclGroup_t *group) {
    static float buffer[64];
    const struct row rows[] = {
        {.kind = pcclCollectiveAllReduce, .count = SIZE_MAX},
        {.kind = pcclCollectiveBroadcast, .count = SIZE_MAX / sizeof(float) + 2},
        {.kind = pcclCollectiveReduce, .count = most + 1},
        {.kind = pcclCollectiveAllGather, .count = SIZE_MAX / MEMBERS + 1},
        {.kind = pcclCollectiveReduceScatter, .count = SIZE_MAX / MEMBERS + 1},
        {.kind = pcclCollectiveGather, .count = most / MEMBERS + 1},
        {.kind = pcclCollectiveScatter, .count = SIZE_MAX / MEMBERS + 1},
        {.kind = pcclCollectiveAllToAll, .count = SIZE_MAX / MEMBERS + 1},
        // sums that wrap to 3
        {.kind = pcclCollectiveAllGather, .recv = {1, SIZE_MAX, 3}, .with_recv = true},
        {.kind = pcclCollectiveReduceScatter, .recv = {SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1, 3}, .with_recv = true},
        {.kind = pcclCollectiveGather, .recv = {4, SIZE_MAX, 0}, .with_recv = true},
        {.kind = pcclCollectiveScatter, .send = {1, 3, SIZE_MAX}, .with_send = true},
        {.kind = pcclCollectiveAllToAllV,
         .send = {1, SIZE_MAX, 3},
         .recv = {1, 1, 1},
         .with_send = true,
         .with_recv = true},
        {.kind = pcclCollectiveAllToAllV,
         .send = {1, 1, 1},
         .recv = {1, SIZE_MAX, 3},
         .with_send = true,
         .with_recv = true},
        {.kind = pcclCollectiveAllToAllV,
         .send = {1, most, 0},
         .recv = {1, 1, 1},
         .with_send = true,
         .with_recv = true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("row %zu", i);
        pcclCollective_t what = {.size = sizeof what,
                                 .kind = rows[i].kind,
                                 .datatype = pcclFloat,
                                 .op = pcclSum,
                                 .group = group,
                                 .tag = i,
                                 .sendbuf = buffer,
                                 .recvbuf = buffer + 32,
                                 .count = rows[i].count,
                                 .send_counts = rows[i].with_send ? rows[i].send : NULL,
                                 .recv_counts = rows[i].with_recv ? rows[i].recv : NULL};
        pcclAsyncReduceOp_t handle;
        CHECK_EQ(pcclCollectiveAsync(&what, run->comms[0], &handle), pcclInvalidArgument);
        CHECK(strstr(pccl_ext_detail(), "memory can hold") != NULL);
    }
}

static void test_others(const struct run *run) {
    check_case("counts of the other functions");
    float x = 1;
    pcclAsyncReduceOp_t handle;
    size_t counts[] = {SIZE_MAX, SIZE_MAX / sizeof x + 2, most + 1};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        pcclReduceDescriptor_t descriptor = sum_of(counts[i], 1);
        CHECK_EQ(pcclAllReduceAsync(&x, &x, &descriptor, run->comms[0], &handle), pcclInvalidArgument);
        pcclTensorInfo_t info = {.name = "a", .data = &x, .count = counts[i], .datatype = pcclFloat};
        pcclSharedState_t state = {.count = 1, .infos = &info};
        uint64_t low, high;
        CHECK_EQ(pccl_ext_state_hash(&state, &low, &high, NULL), pcclInvalidArgument);
        CHECK_EQ(pcclMarkSharedStateRestored(&state), pcclInvalidArgument);
    }
    CHECK_EQ(pcclMarkSharedStateRestored(NULL), pcclInvalidArgument);
    pcclTensorInfo_t infos[3] = {{.name = "a", .data = &x, .count = PTRDIFF_MAX, .datatype = pcclUint8},
                                 {.name = "b", .data = &x, .count = PTRDIFF_MAX, .datatype = pcclUint8},
                                 {.name = "c", .data = &x, .count = 4, .datatype = pcclUint8}};
    pcclSharedState_t state = {.count = 3, .infos = infos};
    uint64_t low, high;
    CHECK_EQ(pccl_ext_state_hash(&state, &low, &high, NULL), pcclInvalidArgument);
    state.count = SIZE_MAX;
    CHECK_EQ(pccl_ext_state_hash(&state, &low, &high, NULL), pcclInvalidArgument);
    pcclReduceOpDescriptor_t op = {&x, &x, sum_of(1, 1)};
    struct pccl_ticket ticket;
    CHECK_EQ(pccl_begin_multi(&op, NULL, SIZE_MAX, run->comms[0], 1, &ticket), pcclInvalidArgument);
    pcclGroup_t *group;
    pcclRankUuid_t self;
    REQUIRE(pccl_ext_comm_uuid(run->comms[0], &self) == pcclSuccess);
    CHECK_EQ(pcclCreateGroup(run->comms[0], &self, SIZE_MAX, &group), pcclInvalidArgument);
}

int main(void) {
    REQUIRE(pcclInit() == pcclSuccess);
    struct run run;
    start_run(&run, MEMBERS);
    pcclRankUuid_t members[MEMBERS];
    size_t count;
    REQUIRE(pcclGetMembers(run.comms[0], members, MEMBERS, &count) == pcclSuccess && count == MEMBERS);
    pcclRankUuid_t first; // the rows agree in the own part of rank 0
    while (pccl_ext_comm_uuid(run.comms[0], &first) == pcclSuccess && memcmp(&first, &members[0], sizeof first) != 0) {
        pcclComm_t *comm = run.comms[0];
        for (size_t i = 0; i + 1 < MEMBERS; i++) run.comms[i] = run.comms[i + 1];
        run.comms[MEMBERS - 1] = comm;
    }
    pcclGroup_t *group;
    REQUIRE(pcclCreateGroup(run.comms[0], members, MEMBERS, &group) == pcclSuccess);
    test_collectives(&run, group);
    test_others(&run);
    CHECK_EQ(pcclDestroyGroup(group), pcclSuccess);
    end_run(&run);
    return check_status();
}
