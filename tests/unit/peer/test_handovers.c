// How often one thread of a peer wakes another one of it: for a large op, for a sync and for the death of a member, as
// docs/design.md counts them. The two other peers are processes of their own: this program again, run as
// `test_handovers PORT mate` or `... PORT victim`.
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/ext.h"
#include "base/platform.h"
#include "check.h"
#include "pccl.h"

enum {
    PEERS = 3,
    COUNT = 1 << 19, // elements; moved by the ring
    CALM_MS = 20000, // of heartbeats: none comes between
    POSTED_MS = 200, // in which the others are waiting for this one
};

static const char *program;
static float values[COUNT];

// ---- what is counted ----

static atomic_uint to_data, to_control, to_caller;

static void begin_count(void) {
    atomic_store(&to_data, 0);
    atomic_store(&to_control, 0);
    atomic_store(&to_caller, 0);
}

static bool runs_in(const char *name) {
    char mine[16];
    return pthread_getname_np(pthread_self(), mine, sizeof mine) == 0 && strcmp(mine, name) == 0;
}

int __real_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms) {
    int count = __real_epoll_wait(epoll, events, most, timeout_ms);
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 != 0) continue; // from a socket
        if (runs_in("pccl:data")) atomic_fetch_add(&to_data, 1);
        if (runs_in("pccl:control")) atomic_fetch_add(&to_control, 1);
    }
    return count;
}

int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock) {
    int error = __real_pthread_cond_wait(cond, lock);
    if (runs_in("caller")) atomic_fetch_add(&to_caller, 1);
    return error;
}

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until) {
    int error = __real_pthread_cond_timedwait(cond, lock, until);
    if (error == 0 && runs_in("caller")) atomic_fetch_add(&to_caller, 1);
    return error;
}

// ---- the peers ----

static ccoip_socket_address_t loopback(uint16_t port) {
    return (ccoip_socket_address_t){.inet = {.protocol = inetIPv4, .ipv4 = {{127, 0, 0, 1}}}, .port = port};
}

static pcclComm_t *join(uint16_t port) {
    pcclCommCreateParams_t params = {.master_address = loopback(port)};
    pcclComm_t *comm;
    int world = 0;
    REQUIRE(pcclCreateCommunicator(&params, &comm) == pcclSuccess && pcclConnect(comm) == pcclSuccess);
    while (pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &world) == pcclSuccess && world < PEERS)
        REQUIRE(pcclUpdateTopology(comm) == pcclSuccess);
    return comm;
}

static pcclResult_t reduce(const pcclComm_t *comm) {
    pcclReduceDescriptor_t descriptor = {
        .count = COUNT, .op = pcclSum, .tag = 1, .src_descriptor = {.datatype = pcclFloat}};
    return pcclAllReduce(values, values, &descriptor, comm, NULL);
}

// With the content of whoever has the highest revision.
static pcclResult_t sync_state(const pcclComm_t *comm, uint64_t revision) {
    pcclTensorInfo_t info = {.name = "values", .data = values, .count = COUNT, .datatype = pcclFloat};
    pcclSharedState_t state = {.revision = revision, .count = 1, .infos = &info};
    return pcclSynchronizeSharedState(comm, &state, 0, NULL);
}

static int other_main(uint16_t port, bool mate) {
    REQUIRE(pcclInit() == pcclSuccess);
    pcclComm_t *comm = join(port);
    REQUIRE(reduce(comm) == pcclSuccess);
    for (size_t i = 0; i < COUNT; i++) values[i] = 1;
    REQUIRE(sync_state(comm, 1) == pcclSuccess && sync_state(comm, 2) == pcclSuccess);
    if (mate) REQUIRE(reduce(comm) == pcclRankConnectionLost);
    pause(); // until it is killed
    return 1;
}

static pid_t start(uint16_t port, const char *role) {
    char text[8];
    snprintf(text, sizeof text, "%u", port);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", program, text, role, (char *)NULL);
        _exit(127);
    }
    REQUIRE(child > 0);
    return child;
}

static void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void *kill_soon(void *victim) {
    usleep(POSTED_MS * 1000);
    end(*(pid_t *)victim);
    return NULL;
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc == 3) return other_main((uint16_t)atoi(argv[1]), strcmp(argv[2], "mate") == 0);
    pcclMasterInstance_t *master;
    uint16_t port;
    REQUIRE(pcclInit() == pcclSuccess && pcclCreateMaster(loopback(0), &master) == pcclSuccess);
    struct pccl_ext_master_settings settings = {.heartbeat_limit_ms = CALM_MS};
    REQUIRE(pccl_ext_master_configure(master, &settings) == pcclSuccess && pcclRunMaster(master) == pcclSuccess);
    REQUIRE(pccl_ext_master_port(master, &port) == pcclSuccess);
    pid_t mate = start(port, "mate"), victim = start(port, "victim");
    pcclComm_t *comm = join(port);
    pthread_setname_np(pthread_self(), "caller");
    usleep(POSTED_MS * 1000);

    check_case("a large op");
    begin_count();
    CHECK_EQ(reduce(comm), pcclSuccess);
    CHECK(to_data <= 1 && to_control == 0 && to_caller <= 1);

    check_case("a sync");
    CHECK_EQ(sync_state(comm, 0), pcclSuccess); // receives; how often helpers tell of leaves is a matter of time
    CHECK(values[COUNT - 1] == 1);
    usleep(POSTED_MS * 1000);
    begin_count();
    CHECK_EQ(sync_state(comm, 2), pcclSuccess);
    CHECK(to_data <= 1 && to_control == 0 && to_caller <= 2); // by the end of the round, and once it is closed

    check_case("a death");
    pthread_t killer;
    usleep(POSTED_MS * 1000);
    begin_count();
    REQUIRE(pthread_create(&killer, NULL, kill_soon, &victim) == 0);
    CHECK_EQ(reduce(comm), pcclRankConnectionLost);
    CHECK(to_data <= 3 && to_caller <= 1); // posted, the epoch, the links of whoever is lost
    pthread_join(killer, NULL);

    end(mate);
    CHECK_EQ(pcclDestroyCommunicator(comm), pcclSuccess);
    CHECK_EQ(pcclDestroyMaster(master), pcclSuccess);
    return check_status();
}
