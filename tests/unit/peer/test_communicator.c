// Communicators and a master in one process, over loopback: joining, votes, reduces, losses, broken links, destruction.
// Peers that die by SIGKILL are this program again, run as `test_communicator PORT`.
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/ext.h"
#include "base/platform.h"
#include "far_end.h"
#include "net/arrival.h"
#include "peer/communicator_private.h"
#include "net/socket.h"
#include "pccl.h"
#include "run.h"

enum { HEARTBEAT_MS = 2000, LARGE = 1 << 19 };

static const char *program;

// ---- reduces ----

// Rank r gives r + 1 + (i % 5); the sum over any set of ranks tells who contributed.
static float *new_input(size_t rank, size_t count) {
    float *values = malloc(count * sizeof *values);
    REQUIRE(values != NULL);
    for (size_t i = 0; i < count; i++) values[i] = (float)(1 << rank) * 8 + (float)(i % 5);
    return values;
}

static bool is_sum(const float *values, size_t count, unsigned ranks) {
    float base = 0, contributors = 0;
    for (unsigned r = 0; r < MAX_PEERS; r++)
        if (ranks >> r & 1) base += (float)(1 << r) * 8, contributors++;
    for (size_t i = 0; i < count; i++)
        if (values[i] != base + contributors * (float)(i % 5)) return false;
    return true;
}

static pcclResult_t reduce(const pcclComm_t *comm, size_t rank, size_t count, uint64_t tag, unsigned ranks) {
    float *values = new_input(rank, count), *input = new_input(rank, count);
    pcclReduceDescriptor_t descriptor = sum_of(count, tag);
    pcclReduceInfo_t info = {0};
    pcclResult_t code = pcclAllReduce(values, values, &descriptor, comm, &info);
    if (code == pcclSuccess) {
        CHECK(is_sum(values, count, ranks));
        CHECK_EQ(info.local_world_size, __builtin_popcount(ranks));
    } else {
        CHECK_MEM(values, input, count * sizeof *values);
        CHECK(pccl_ext_detail()[0] != 0);
    }
    free(values);
    free(input);
    return code;
}

// Goes on after losses until the op succeeds; returns how many losses there were.
static int reduce_until_done(const pcclComm_t *comm, size_t rank, size_t count, uint64_t tag, unsigned ranks) {
    for (int losses = 0;; losses++) {
        pcclResult_t code = reduce(comm, rank, count, tag, ranks);
        if (code != pcclRankConnectionLost) {
            CHECK_EQ(code, pcclSuccess);
            return losses;
        }
        if (losses == 5) return losses;
    }
}

// ---- one peer ----

static void test_states(void) {
    struct run run;
    check_case("states");
    start_master(&run);
    pcclComm_t *comm = new_comm(run.port, 0);
    bool pending = true;
    int value = 7;
    float x = 1;
    pcclReduceDescriptor_t descriptor = sum_of(1, 0);
    pcclAsyncReduceOp_t handle = {.comm = comm};
    pcclTensorInfo_t entry = {.name = "x", .data = &x, .count = 1, .datatype = pcclFloat};
    pcclSharedState_t state = {.count = 1, .infos = &entry};
    CHECK_EQ(pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &value), pcclInvalidUsage);
    CHECK_EQ(pcclUpdateTopology(comm), pcclInvalidUsage);
    CHECK_EQ(pcclArePeersPending(comm, &pending), pcclInvalidUsage);
    CHECK_EQ(pcclOptimizeTopology(comm), pcclInvalidUsage);
    CHECK_EQ(pcclSynchronizeSharedState(comm, &state, 0, NULL), pcclInvalidUsage);
    CHECK_EQ(pcclAllReduce(&x, &x, &descriptor, comm, NULL), pcclInvalidUsage);
    CHECK_EQ(pcclAwaitAsyncReduce(&handle, NULL), pcclInvalidUsage);
    CHECK_EQ(pcclAllReduce(NULL, &x, &descriptor, comm, NULL), pcclInvalidArgument); // NULL is looked at first
    CHECK_EQ(value, 7);
    CHECK_EQ(pending, true);

    REQUIRE(pcclConnect(comm) == pcclSuccess);
    CHECK_EQ(pcclConnect(comm), pcclInvalidUsage);
    for (int which = 1; which <= 4; which++) CHECK_EQ(attribute(comm, (pcclAttribute_t)which), 1);
    CHECK_EQ(attribute(comm, PCCL_ATTRIBUTE_PEER_GROUP_RANK), 0);
    CHECK_EQ(pcclGetAttribute(comm, (pcclAttribute_t)6, &value), pcclInvalidArgument);
    CHECK_EQ(pcclArePeersPending(comm, &pending), pcclSuccess);
    CHECK_EQ(pending, false);
    CHECK_EQ(pcclUpdateTopology(comm), pcclSuccess);
    CHECK_EQ(pcclOptimizeTopology(comm), pcclInvalidUsage);
    CHECK_EQ(pcclAllReduce(&x, &x, &descriptor, comm, NULL), pcclTooFewPeers);
    descriptor.op = 9;
    CHECK_EQ(pcclAllReduce(&x, &x, &descriptor, comm, NULL), pcclInvalidArgument);
    CHECK_EQ(pcclAwaitAsyncReduce(&handle, NULL), pcclInvalidArgument);
    pcclReduceOpDescriptor_t op = {&x, &x, sum_of(1, 0)};
    pcclReduceInfo_t info = {0};
    CHECK_EQ(pcclAllReduceMultipleWithRetry(&op, 1, comm, &info, 1), pcclTooFewPeers);
    CHECK_EQ(info.local_world_size, 1);
    CHECK_EQ(pcclAllReduceMultipleWithRetry(&op, 0, comm, &info, 1), pcclInvalidArgument);
    CHECK_EQ(pcclAllReduceMultipleWithRetry(&op, 1, comm, &info, 0), pcclInvalidArgument);
    pcclSharedStateSyncInfo_t moved = {1, 1};
    CHECK_EQ(pcclSynchronizeSharedState(comm, &state, 0, &moved), pcclSuccess);
    CHECK_EQ(moved.rx_bytes + moved.tx_bytes, 0);
    state.count = 0;
    CHECK_EQ(pcclSynchronizeSharedState(comm, &state, 0, NULL), pcclInvalidArgument);
    char text[64];
    CHECK_EQ(pccl_ext_comm_state(comm, text, sizeof text), pcclSuccess);
    CHECK_STR(text, "accepted epoch 1");

    check_case("dead");
    CHECK_EQ(pcclInterruptMaster(run.master), pcclSuccess);
    CHECK_EQ(pcclMasterAwaitTermination(run.master), pcclSuccess);
    pcclResult_t code = pcclSuccess;
    for (int i = 0; i < 1000 && code == pcclSuccess; i++) code = pcclUpdateTopology(comm);
    CHECK_EQ(code, pcclMasterConnectionFailed);
    CHECK_EQ(pcclConnect(comm), pcclInvalidUsage);
    CHECK_EQ(world(comm), 1);
    CHECK_EQ(pcclGetAttribute(comm, PCCL_ATTRIBUTE_PEER_GROUP_RANK, &value), pcclMasterConnectionFailed);
    CHECK_EQ(pcclSynchronizeSharedState(comm, &state, 0, NULL), pcclMasterConnectionFailed);
    CHECK_EQ(pcclDestroyCommunicator(comm), pcclSuccess);

    check_case("no master there");
    comm = new_comm(run.port, 0);
    CHECK_EQ(pcclConnect(comm), pcclMasterConnectionFailed);
    CHECK_EQ(pcclConnect(comm), pcclMasterConnectionFailed);
    CHECK_EQ(pcclDestroyCommunicator(comm), pcclSuccess);
    CHECK_EQ(pcclDestroyMaster(run.master), pcclSuccess);
}

// ---- several peers ----

static void work_reduces(struct run *run, size_t rank) {
    unsigned all = (1u << run->count) - 1;
    static const size_t counts[] = {0, 1, 5, 1000, 70000, LARGE};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        CHECK_EQ(reduce(run->comms[rank], rank, counts[i], 1, all), pcclSuccess);
    for (int i = 0; i < 50; i++) CHECK_EQ(reduce(run->comms[rank], rank, 16, 2, all), pcclSuccess);
}

static void work_async(struct run *run, size_t rank) {
    enum { OPS = 16 };
    const pcclComm_t *comm = run->comms[rank];
    float *values[OPS];
    pcclAsyncReduceOp_t handles[OPS];
    for (size_t k = 0; k < OPS; k++) {
        size_t i = rank % 2 ? OPS - 1 - k : k; // launch order differs
        size_t count = i % 2 ? 100 : 100000;
        values[i] = new_input(rank, count);
        pcclReduceDescriptor_t descriptor = sum_of(count, i);
        CHECK_EQ(pcclAllReduceAsync(values[i], values[i], &descriptor, comm, &handles[i]), pcclSuccess);
        if (k == 0)
            CHECK_EQ(pcclAllReduceAsync(values[i], values[i], &descriptor, comm, &handles[i]), pcclInvalidArgument);
    }
    CHECK_EQ(pcclUpdateTopology(run->comms[rank]), pcclPendingAsyncOps);
    CHECK_EQ(pcclOptimizeTopology(comm), pcclPendingAsyncOps);
    for (size_t i = 0; i < OPS; i++) {
        CHECK_EQ(pcclAwaitAsyncReduce(&handles[i], NULL), pcclSuccess);
        CHECK(is_sum(values[i], i % 2 ? 100 : 100000, (1u << run->count) - 1));
        free(values[i]);
    }
    CHECK_EQ(pcclAwaitAsyncReduce(&handles[0], NULL), pcclInvalidArgument);
    bool pending = true;
    CHECK_EQ(pcclArePeersPending(comm, &pending), pcclSuccess);
    CHECK_EQ(pending, false);
}

static void work_multi(struct run *run, size_t rank) {
    enum { OPS = 12, COUNT = 30000 };
    pcclReduceOpDescriptor_t ops[OPS];
    float *inputs[OPS], *outputs[OPS];
    for (size_t i = 0; i < OPS; i++) {
        inputs[i] = new_input(rank, COUNT);
        outputs[i] = new_input(0, COUNT);
        ops[i] = (pcclReduceOpDescriptor_t){inputs[i], outputs[i], sum_of(COUNT, i / 2)}; // equal tags in pairs
    }
    pcclReduceInfo_t info;
    CHECK_EQ(pcclAllReduceMultipleWithRetry(ops, OPS, run->comms[rank], &info, 3), pcclSuccess);
    CHECK_EQ(info.local_world_size, run->count);
    for (size_t i = 0; i < OPS; i++) {
        CHECK(is_sum(outputs[i], COUNT, (1u << run->count) - 1));
        free(inputs[i]);
        free(outputs[i]);
    }
}

static void work_mismatch(struct run *run, size_t rank) {
    static const size_t counts[] = {10, LARGE};
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(reduce(run->comms[rank], rank, counts[i] + (rank == 1), 5, 0), pcclInvalidArgument);
        CHECK_EQ(reduce_until_done(run->comms[rank], rank, counts[i], 5, (1u << run->count) - 1), 0);
    }
}

static void work_optimize(struct run *run, size_t rank) {
    CHECK_EQ(pcclOptimizeTopology(run->comms[rank]), pcclSuccess);
    CHECK_EQ(pcclOptimizeTopology(run->comms[rank]), pcclSuccess);
    CHECK_EQ(reduce(run->comms[rank], rank, LARGE, 1, (1u << run->count) - 1), pcclSuccess);
}

static void test_reduces(size_t count) {
    struct run run;
    check_case("%zu peers", count);
    start_run(&run, count);
    on_all(&run, "reduces", work_reduces);
    on_all(&run, "async", work_async);
    on_all(&run, "multi", work_multi);
    on_all(&run, "mismatch", work_mismatch);
    on_all(&run, "optimize", work_optimize);
    on_all(&run, "reduces again", work_reduces);
    end_run(&run);
}

static void test_pools(void) {
    static const uint32_t sizes[] = {1, 3, 200};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct run run;
        check_case("pool of %u", sizes[i]);
        pool_size = sizes[i];
        start_run(&run, 2);
        on_all(&run, "pools", work_reduces);
        end_run(&run);
    }
    pool_size = 0;
}

static void test_ipv6(void) {
    struct run run;
    check_case("IPv6");
    ccoip_socket_address_t address = {.inet = {.protocol = inetIPv6, .ipv6 = {{[15] = 1}}}};
    start_master(&run);
    CHECK_EQ(pcclDestroyMaster(run.master), pcclSuccess);
    REQUIRE(pcclCreateMaster(address, &run.master) == pcclSuccess);
    if (pcclRunMaster(run.master) == pcclSuccess) { // else this machine has no IPv6
        REQUIRE(pccl_ext_master_port(run.master, &address.port) == pcclSuccess);
        pcclCommCreateParams_t params = {.master_address = address};
        run.count = wanted_world = 2;
        for (size_t i = 0; i < 2; i++) REQUIRE(pcclCreateCommunicator(&params, &run.comms[i]) == pcclSuccess);
        on_all(&run, "join", join_work);
        on_all(&run, "IPv6", work_reduces);
    }
    end_run(&run);
}

static void test_groups(void) {
    struct run run;
    check_case("groups");
    start_master(&run);
    run.count = wanted_world = 4;
    for (size_t i = 0; i < 4; i++) run.comms[i] = new_comm(run.port, i / 2 ? 9 : 3);
    on_all(&run, "join groups", join_work);
    for (size_t i = 0; i < 4; i++) {
        CHECK_EQ(attribute(run.comms[i], PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE), 2);
        CHECK_EQ(attribute(run.comms[i], PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS), 2);
        CHECK_EQ(attribute(run.comms[i], PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE), 2);
        CHECK_EQ(attribute(run.comms[i], PCCL_ATTRIBUTE_PEER_GROUP_RANK) +
                     attribute(run.comms[i ^ 1], PCCL_ATTRIBUTE_PEER_GROUP_RANK),
                 1);
    }
    end_run(&run);
}

// ---- losses ----

static unsigned survivors;
static size_t loss_count;

// Those that are left have the ranks 0, 1, ..., in the order that they had.
static void check_ranks(const struct run *run, const int *before, int *now) {
    unsigned taken = 0;
    for (size_t i = 0; i < run->count; i++) {
        if (run->comms[i] == NULL) continue;
        now[i] = attribute(run->comms[i], PCCL_ATTRIBUTE_PEER_GROUP_RANK);
        taken |= 1u << now[i];
        for (size_t k = 0; before != NULL && k < i; k++)
            if (run->comms[k] != NULL) CHECK_EQ(now[k] < now[i], before[k] < before[i]);
        CHECK(now[i] < attribute(run->comms[i], PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE));
    }
    CHECK_EQ(taken & (taken + 1), 0);
}

static void work_loss(struct run *run, size_t rank) {
    int before = world(run->comms[rank]);
    int place = attribute(run->comms[rank], PCCL_ATTRIBUTE_PEER_GROUP_RANK);
    CHECK_EQ(reduce_until_done(run->comms[rank], rank, loss_count, 1, survivors), 1);
    CHECK_EQ(world(run->comms[rank]), before - 1);
    CHECK(attribute(run->comms[rank], PCCL_ATTRIBUTE_PEER_GROUP_RANK) <= place);
    CHECK_EQ(reduce_until_done(run->comms[rank], rank, loss_count, 1, survivors), 0);
}

static void work_last(struct run *run, size_t rank) {
    CHECK_EQ(reduce(run->comms[rank], rank, loss_count, 1, 0), pcclRankConnectionLost);
    CHECK_EQ(reduce(run->comms[rank], rank, loss_count, 1, 0), pcclTooFewPeers);
    CHECK_EQ(world(run->comms[rank]), 1);
}

static void test_leaving(size_t elements) {
    struct run run;
    check_case("leaving, %zu elements", elements);
    start_run(&run, 4);
    loss_count = elements;
    int first[4], second[4], third[4];
    check_ranks(&run, NULL, first);
    CHECK_EQ(pcclDestroyCommunicator(run.comms[3]), pcclSuccess);
    run.comms[3] = NULL;
    survivors = 0x7;
    on_all(&run, "4 to 3", work_loss);
    check_ranks(&run, first, second);
    CHECK_EQ(pcclDestroyCommunicator(run.comms[0]), pcclSuccess);
    run.comms[0] = NULL;
    survivors = 0x6;
    on_all(&run, "3 to 2", work_loss);
    check_ranks(&run, second, third);
    CHECK_EQ(pcclDestroyCommunicator(run.comms[1]), pcclSuccess);
    run.comms[1] = NULL;
    on_all(&run, "2 to 1", work_last);
    CHECK_EQ(attribute(run.comms[2], PCCL_ATTRIBUTE_PEER_GROUP_RANK), 0);
    end_run(&run);
}

// A peer in a process of its own: joins, then reduces until it is killed.
static int victim_main(uint16_t port) {
    REQUIRE(pcclInit() == pcclSuccess);
    pcclComm_t *comm = new_comm(port, 0);
    REQUIRE(pcclConnect(comm) == pcclSuccess);
    AWAIT(world(comm) == 4 || pcclUpdateTopology(comm) != pcclSuccess, continue);
    float *values = new_input(3, LARGE);
    pcclReduceDescriptor_t descriptor = sum_of(LARGE, 1);
    while (pcclAllReduce(values, values, &descriptor, comm, NULL) == pcclSuccess) continue;
    free(values);
    CHECK_EQ(pcclDestroyCommunicator(comm), pcclSuccess);
    return 1;
}

static pid_t start_victim(uint16_t port) {
    char text[8];
    snprintf(text, sizeof text, "%u", port);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", program, text, (char *)NULL);
        _exit(127);
    }
    REQUIRE(child > 0);
    return child;
}

static pid_t victim;
static int kill_after; // ops

static void work_kill(struct run *run, size_t rank) {
    join_work(run, rank);
    const pcclComm_t *comm = run->comms[rank];
    int losses = 0;
    for (int i = 0; i < 20; i++) {
        if (rank == 0 && i == kill_after) kill(victim, SIGKILL);
        float *values = new_input(rank, LARGE);
        pcclReduceDescriptor_t descriptor = sum_of(LARGE, 1);
        pcclResult_t code = pcclAllReduce(values, values, &descriptor, comm, NULL);
        if (code == pcclRankConnectionLost)
            losses++, i--;
        else
            CHECK_EQ(code, pcclSuccess);
        if (code != pcclSuccess) {
            float *input = new_input(rank, LARGE);
            CHECK_MEM(values, input, LARGE * sizeof *values);
            free(input);
        } else if (losses > 0) {
            CHECK(is_sum(values, LARGE, 0x7));
        }
        free(values);
        if (losses > 3) break;
    }
    CHECK_EQ(losses, 1);
    CHECK_EQ(world(comm), 3);
}

static void test_kill(int after) {
    struct run run;
    check_case("kill after %d ops", after);
    start_master(&run);
    kill_after = after;
    run.count = 3;
    wanted_world = 4;
    victim = start_victim(run.port);
    for (size_t i = 0; i < 3; i++) run.comms[i] = new_comm(run.port, 0);
    on_all(&run, "kill", work_kill);
    int status = 0;
    waitpid(victim, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    end_run(&run);
}

// ---- broken links ----

// Shuts down one connection that neither leads to the master nor is idle for listening. False: there was none.
static bool break_a_link(uint16_t master_port) {
    DIR *folder = opendir("/proc/self/fd");
    REQUIRE(folder != NULL);
    bool broken = false;
    for (struct dirent *entry; !broken && (entry = readdir(folder)) != NULL;) {
        int fd = atoi(entry->d_name);
        struct wire_address local, remote;
        if (fd <= 2 || !socket_local_address(fd, &local) || !socket_remote_address(fd, &remote)) continue;
        if (local.port == master_port || remote.port == master_port) continue;
        broken = shutdown(fd, SHUT_RDWR) == 0;
    }
    closedir(folder);
    return broken;
}

static void work_link(struct run *run, size_t rank) {
    unsigned all = (1u << run->count) - 1;
    for (int i = 0; i < 12; i++) {
        if (rank == 0 && i % 4 == 2) CHECK(break_a_link(run->port));
        CHECK_EQ(reduce(run->comms[rank], rank, i % 2 ? 64 : LARGE, 1, all), pcclSuccess);
    }
}

static void test_links(void) {
    struct run run;
    check_case("links");
    start_run(&run, 3);
    on_all(&run, "broken links", work_link);
    end_run(&run);
}

// ---- waiting ----

static void *connect_main(void *comm) { return (void *)(uintptr_t)pcclConnect(comm); }

static _Atomic pid_t reducer;

static void *reduce_main(void *comm) {
    float x[4] = {0};
    pcclReduceDescriptor_t descriptor = sum_of(4, 77);
    atomic_store(&reducer, gettid());
    return (void *)(uintptr_t)pcclAllReduce(x, x, &descriptor, comm, NULL);
}

static void start_reducer(pthread_t *thread, pcclComm_t *comm) {
    atomic_store(&reducer, 0);
    REQUIRE(pthread_create(thread, NULL, reduce_main, comm) == 0);
    for (char state = 0; state != 'S'; usleep(1000)) { // until it waits
        char path[64];
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)atomic_load(&reducer));
        FILE *stat = fopen(path, "r");
        if (stat == NULL) continue;
        REQUIRE(fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
        fclose(stat);
    }
}

static void test_destroy_while_waiting(void) {
    struct run run;
    check_case("destroyed while waiting");
    start_run(&run, 2);
    pcclComm_t *waiting = new_comm(run.port, 0);
    pthread_t connecting, reducing;
    REQUIRE(pthread_create(&connecting, NULL, connect_main, waiting) == 0);
    wait_for_state(waiting, "registered");
    start_reducer(&reducing, run.comms[0]);
    void *code;
    CHECK_EQ(pcclDestroyCommunicator(waiting), pcclSuccess);
    pthread_join(connecting, &code);
    CHECK_EQ((uintptr_t)code, pcclMasterConnectionFailed);
    CHECK_EQ(pcclDestroyCommunicator(run.comms[0]), pcclSuccess);
    pthread_join(reducing, &code);
    CHECK_EQ((uintptr_t)code, pcclRankConnectionLost);
    run.comms[0] = NULL;

    check_case("master gone while waiting");
    run.comms[0] = new_comm(run.port, 0);
    REQUIRE(pthread_create(&connecting, NULL, connect_main, run.comms[0]) == 0);
    AWAIT(pcclUpdateTopology(run.comms[1]) != pcclSuccess || world(run.comms[1]) == 2, continue);
    pthread_join(connecting, &code);
    CHECK_EQ((uintptr_t)code, pcclSuccess);
    start_reducer(&reducing, run.comms[1]);
    CHECK_EQ(pcclInterruptMaster(run.master), pcclSuccess);
    pthread_join(reducing, &code);
    CHECK_EQ((uintptr_t)code, pcclRankConnectionLost);
    CHECK_EQ(world(run.comms[1]), 1);
    CHECK_EQ((uintptr_t)reduce_main(run.comms[1]), pcclMasterConnectionFailed);
    end_run(&run);
}

struct freed {
    struct communicator *peer;
    atomic_bool done;
};

static void *free_main(void *argument) {
    struct freed *freed = argument;
    connect_free(freed->peer);
    atomic_store(&freed->done, true);
    return NULL;
}

// As pcclAllReduce between its launch and its wait.
static void test_destroy_between_two_steps_of_a_call(void) {
    check_case("destroyed between two steps of a call");
    struct communicator_params params = {
        .masters.list[0] = {.family = 4, .bytes = {127, 0, 0, 1}, .port = 1}, .masters.count = 1, .lanes = 1};
    struct freed freed = {.peer = connect_new(&params)};
    REQUIRE(freed.peer != NULL);
    communicator_enter(freed.peer);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, free_main, &freed) == 0);
    usleep(20000);
    CHECK(!atomic_load(&freed.done));
    CHECK(communicator_usable(freed.peer) != pcclSuccess);
    communicator_exit(freed.peer);
    pthread_join(thread, NULL);
}

// ---- joining ----

static void work_voting_loop(struct run *run, size_t rank) {
    if (rank + 1 < run->count) {
        AWAIT((size_t)world(run->comms[rank]) == wanted_world,
              CHECK_EQ(pcclUpdateTopology(run->comms[rank]), pcclSuccess));
        return;
    }
    int64_t begin = platform_now_ns();
    CHECK_EQ(pcclConnect(run->comms[rank]), pcclSuccess);
    fprintf(stderr, "join beside %zu voting peers: %.2f ms\n", rank, (double)(platform_now_ns() - begin) / 1e6);
}

static void test_join_time(void) {
    struct run run;
    check_case("join time");
    start_run(&run, 3);
    for (int i = 0; i < 3; i++) {
        run.comms[run.count++] = new_comm(run.port, 0);
        wanted_world = run.count;
        on_all(&run, "voting loop", work_voting_loop);
    }
    end_run(&run);
}

// ---- hostile bytes ----

static uint16_t listening_port(uint16_t master_port) {
    DIR *folder = opendir("/proc/self/fd");
    REQUIRE(folder != NULL);
    uint16_t port = 0;
    for (struct dirent *entry; port == 0 && (entry = readdir(folder)) != NULL;) {
        struct wire_address local;
        int fd = atoi(entry->d_name), listening = 0;
        socklen_t length = sizeof listening;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || !listening) continue;
        if (socket_local_address(fd, &local) && local.port != master_port) port = local.port;
    }
    closedir(folder);
    return port;
}

static struct transport *attack(uint16_t port, const void *bytes, size_t length) {
    struct transport *stream = far_end_dial(&(struct wire_address){.family = 4, .bytes = {127, 0, 0, 1}, .port = port});
    REQUIRE(stream != NULL);
    if (length > 0) far_end_write(stream, bytes, length);
    return stream;
}

static atomic_bool attacked;

static void work_under_attack(struct run *run, size_t rank) {
    unsigned all = (1u << run->count) - 1;
    if (rank < 2) {
        for (bool last = false; !last;) {
            // Rank 0 alone looks at the flag: both must run the same number of ops.
            float flag = rank == 0 && atomic_load(&attacked);
            pcclReduceDescriptor_t descriptor = sum_of(1, 9);
            CHECK_EQ(reduce(run->comms[rank], rank, 5000, 1, all), pcclSuccess);
            if (!CHECK_EQ(pcclAllReduce(&flag, &flag, &descriptor, run->comms[rank], NULL), pcclSuccess)) return;
            last = flag != 0;
        }
        return;
    }
}

static void *attack_main(void *context) {
    const struct run *run = context;
    uint16_t ports[2] = {listening_port(run->port), run->port};
    for (int which = 0; which < 2; which++) {
        check_case("attack on the %s", which ? "master" : "peer");
        uint8_t junk[4096];
        struct transport *silent[300];
        REQUIRE(platform_random(junk, sizeof junk));
        for (int i = 0; i < 300; i++) silent[i] = attack(ports[which], NULL, 0);
        for (int i = 0; i < 20; i++) {
            struct transport *stream = attack(ports[which], junk + i, 100);
            CHECK(far_end_closes(stream));
            transport_free(stream);
        }
        // A whole header of each type, with the largest length its decoder takes, then one byte at a time.
        for (uint16_t type = 1; type < 80; type++) {
            uint8_t head[WIRE_HEADER_BYTES];
            struct wire_header header = {.type = type, .length = 64};
            wire_header_encode(head, &header);
            struct transport *stream = attack(ports[which], NULL, 0);
            for (size_t i = 0; i < sizeof head; i++) far_end_write(stream, head + i, 1);
            far_end_write(stream, junk, 64);
            transport_free(stream);
        }
        for (int i = 0; i < 300; i++) transport_free(silent[i]);
    }
    atomic_store(&attacked, true);
    return NULL;
}

static void test_attack(void) {
    struct run run;
    check_case("attack");
    atomic_store(&attacked, false);
    start_run(&run, 2);
    pthread_t attacker;
    REQUIRE(pthread_create(&attacker, NULL, attack_main, &run) == 0);
    on_all(&run, "under attack", work_under_attack);
    pthread_join(attacker, NULL);
    end_run(&run);
}

// ---- silence ----

static _Atomic int64_t stopped_at;

static void work_stopped(struct run *run, size_t rank) {
    join_work(run, rank);
    CHECK_EQ(reduce(run->comms[rank], rank, LARGE, 1, 0xf), pcclSuccess);
    if (rank == 0) {
        kill(victim, SIGSTOP);
        atomic_store(&stopped_at, platform_now_ns());
    }
    pcclResult_t code;
    AWAIT((code = reduce(run->comms[rank], rank, LARGE, 1, 0xf)) != pcclSuccess, continue);
    CHECK_EQ(code, pcclRankConnectionLost);
    // of which the machine may take its share
    CHECK(platform_now_ns() - atomic_load(&stopped_at) < 5 * ARRIVAL_STRETCH * HEARTBEAT_MS * MS_NS);
    CHECK_EQ(world(run->comms[rank]), 3);
    CHECK_EQ(reduce(run->comms[rank], rank, LARGE, 1, 0x7), pcclSuccess);
}

static void test_stopped(void) {
    struct run run;
    check_case("stopped peer");
    heartbeat_ms = HEARTBEAT_MS;
    start_master(&run);
    heartbeat_ms = CALM_MS;
    run.count = 3;
    wanted_world = 4;
    victim = start_victim(run.port);
    for (size_t i = 0; i < 3; i++) run.comms[i] = new_comm(run.port, 0);
    on_all(&run, "stopped", work_stopped);
    kill(victim, SIGCONT);
    int status = 0;
    waitpid(victim, &status, 0); // it learns that it is out
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    end_run(&run);
}

// ---- a master that is played here, and speaks all the time ----

struct played {
    struct transport *stream;
    bool welcomed, left; // left: it has closed the connection, or says that it looks for another master
    size_t have;
    uint8_t input[4096];
};

static void welcome(struct played *played, const struct wire_hello *hello) {
    struct wire_header header = {.run = 7, .generation = 1};
    struct wire_welcome welcome = {.join_number = 1,
                                   .heartbeat_limit_ms = HEARTBEAT_MS,
                                   .seen = {.family = 4, .bytes = {127, 0, 0, 1}, .port = 1}};
    struct wire_member member = {.id = hello->id,
                                 .join_number = 1,
                                 .lanes = hello->lanes,
                                 .address = {.family = 4, .bytes = {127, 0, 0, 1}, .port = hello->port}};
    struct wire_epoch_commit commit = {.reason = WIRE_REASON_UPDATE};
    commit.epoch = (struct wire_epoch){.number = 1,
                                       .group_epoch = 1,
                                       .votes_ended = 1,
                                       .latency_us = 1,
                                       .megabytes_per_s = 1,
                                       .count = 1,
                                       .members = &member};
    struct wire_buffer frames = {0};
    wire_encode_welcome(&frames, header, &welcome);
    header.epoch = 1;
    wire_encode_epoch_commit(&frames, header, &commit);
    CHECK(far_end_write(played->stream, frames.bytes, frames.length));
    wire_buffer_fini(&frames);
    played->welcomed = true;
}

static void listen_to_it(struct played *played) {
    if (transport_step(played->stream) != 0) return;
    ptrdiff_t got =
        transport_receive(played->stream, played->input + played->have, sizeof played->input - played->have);
    played->left |= got == 0;
    if (got > 0) played->have += (size_t)got;
    struct wire_header header;
    while (played->have >= WIRE_HEADER_BYTES && wire_header_decode(played->input, &header) &&
           played->have >= WIRE_HEADER_BYTES + header.length) {
        struct wire_hello hello;
        played->left |= header.type == WIRE_MOVED;
        if (header.type == WIRE_HELLO && wire_decode_hello(played->input + WIRE_HEADER_BYTES, header.length, &hello))
            welcome(played, &hello);
        played->have -= WIRE_HEADER_BYTES + header.length;
        memmove(played->input, played->input + WIRE_HEADER_BYTES + header.length, played->have);
    }
}

static void play_for(struct played *played, int64_t ms) {
    for (int64_t end = platform_now_ns() + ms * MS_NS; platform_now_ns() < end; usleep(20000)) {
        listen_to_it(played);
        struct wire_buffer frame = {0};
        wire_encode_empty(&frame, (struct wire_header){.run = 7, .generation = 1, .epoch = 1}, WIRE_HEARTBEAT);
        if (played->welcomed) far_end_write(played->stream, frame.bytes, frame.length);
        wire_buffer_fini(&frame);
    }
}

// It has been told something all the while: it reads that before it takes its own absence for a silence of the master.
static void test_stopped_beside_a_master_that_speaks(void) {
    check_case("stopped beside a master that speaks");
    struct wire_address address = {.family = 4, .bytes = {127, 0, 0, 1}}, from;
    struct played played = {0};
    int fd;
    int listener = socket_listen(&address);
    REQUIRE(listener >= 0 && socket_local_address(listener, &address));
    pid_t peer = start_victim(address.port);
    AWAIT((fd = socket_accept(listener, &from)) != -EAGAIN, usleep(1000));
    REQUIRE(fd >= 0 && (played.stream = far_end_accepted(fd)) != NULL);
    AWAIT(played.welcomed, play_for(&played, 100));
    play_for(&played, 200);
    kill(peer, SIGSTOP);
    play_for(&played, HEARTBEAT_MS + 500);
    kill(peer, SIGCONT);
    play_for(&played, 500);
    CHECK(!played.left);
    kill(peer, SIGKILL);
    waitpid(peer, NULL, 0);
    transport_free(played.stream);
    close(listener);
}

// ---- which members were lost is told by name, and of many the latest are kept ----

static struct wire_id lost_id(uint32_t number) {
    return (struct wire_id){{(uint8_t)(number >> 8), (uint8_t)number, 1}};
}

static void test_lost_told(void) {
    check_case("tell");
    struct lost_members lost = {0};
    char text[200], small[20];
    struct wire_name a = {"host-a"}, none = {{0}};
    CHECK_EQ(communicator_lost_tell(&lost, 0, text, sizeof text), 0);
    CHECK_STR(text, "");
    struct wire_id first = lost_id(1), second = lost_id(2);
    struct wire_gone died = {.id = first, .reason = WIRE_LOSS_DIED, .why = "its connection ended"};
    communicator_lost_note(&lost, &(struct wire_member){.id = first, .name = a}, &died, 5);
    communicator_lost_note(&lost, &(struct wire_member){.id = second, .name = none}, NULL, 7);
    CHECK_EQ(communicator_lost_tell(&lost, 4, text, sizeof text), 2);
    CHECK_STR(text, "peer host-a (00010100), died; peer 00020100, unknown");
    CHECK_EQ(communicator_lost_tell(&lost, 5, text, sizeof text), 1); // of the program it was told before
    CHECK_STR(text, "peer 00020100, unknown");
    CHECK_EQ(communicator_lost_tell(&lost, 7, text, sizeof text), 0);
    CHECK_EQ(communicator_lost_tell(&lost, 0, small, sizeof small), 2);
    CHECK_EQ(strlen(small), sizeof small - 1);
    CHECK_STR(communicator_lost_name(&lost, &first)->chars, "host-a");
    CHECK_STR(communicator_lost_name(&lost, &second)->chars, "");
    struct wire_id unknown = lost_id(3);
    CHECK(communicator_lost_name(&lost, &unknown) == NULL);
    struct wire_gone removed = {.id = unknown, .reason = WIRE_LOSS_EXPELLED, .why = "the operator removed it (me)"};
    communicator_lost_note(&lost, &(struct wire_member){.id = unknown, .name = none}, &removed, 9);
    CHECK_EQ(communicator_lost_tell(&lost, 8, text, sizeof text), 1); // of a decision it tells whose it was
    CHECK_STR(text, "peer 00030100, expelled: the operator removed it (me)");
}

static void test_lost_many(void) {
    check_case("many");
    struct lost_members lost = {0};
    struct wire_name name = {"a"};
    char text[400];
    for (uint32_t i = 0; i < 3 * COMMUNICATOR_LOST_MOST + 1; i++) {
        struct wire_id id = lost_id(i);
        communicator_lost_note(&lost, &(struct wire_member){.id = id, .name = name}, NULL, i + 1);
    }
    struct wire_id oldest = lost_id(2 * COMMUNICATOR_LOST_MOST + 1), older = lost_id(2 * COMMUNICATOR_LOST_MOST);
    CHECK(communicator_lost_name(&lost, &oldest) != NULL && communicator_lost_name(&lost, &older) == NULL);
    CHECK_EQ(communicator_lost_tell(&lost, 0, text, sizeof text), COMMUNICATOR_LOST_MOST);
    CHECK(strstr(text,
                 "peer a (00810100), unknown; peer a (00820100), unknown; peer a (00830100), unknown and 61 more") ==
          text);
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc == 2) return victim_main((uint16_t)atoi(argv[1]));
    pcclComm_t *none;
    CHECK_EQ(pcclCreateCommunicator(NULL, &none), pcclNotInitialized);
    REQUIRE(pcclInit() == pcclSuccess);
    test_lost_told();
    test_lost_many();
    test_states();
    test_reduces(2);
    test_reduces(3);
    test_pools();
    test_ipv6();
    test_groups();
    test_leaving(16);
    test_leaving(LARGE);
    test_destroy_while_waiting();
    test_destroy_between_two_steps_of_a_call();
    test_links();
    for (int after = 0; after < 6; after += 5) test_kill(after);
    test_stopped();
    test_stopped_beside_a_master_that_speaks();
    test_attack();
    test_join_time();
    return check_status();
}
