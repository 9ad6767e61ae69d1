// A forked child and the handles of its parent, by the public functions: refused at once, and nothing happens to the
// parent.
#include <sys/wait.h>
#include <unistd.h>

#include "api/ext.h"
#include "check.h"
#include "pccl.h"

static ccoip_socket_address_t loopback(uint16_t port) {
    return (ccoip_socket_address_t){.inet = {.protocol = inetIPv4, .ipv4 = {{127, 0, 0, 1}}}, .port = port};
}

struct handles {
    pcclMasterInstance_t *master;
    pcclComm_t *comm;
    struct pccl_ticket ticket; // of the end of the master
};

static struct handles create(void) {
    struct handles made = {0};
    uint16_t port = 0;
    REQUIRE(pcclCreateMaster(loopback(0), &made.master) == pcclSuccess);
    REQUIRE(pcclRunMaster(made.master) == pcclSuccess);
    REQUIRE(pccl_ext_master_port(made.master, &port) == pcclSuccess);
    REQUIRE(pccl_begin_master_end(made.master, &made.ticket) == pcclSuccess);
    pcclCommCreateParams_t params = {.master_address = loopback(port)};
    REQUIRE(pcclCreateCommunicator(&params, &made.comm) == pcclSuccess);
    REQUIRE(pcclConnect(made.comm) == pcclSuccess);
    return made;
}

static void destroy(const struct handles *made) {
    CHECK_EQ(pcclDestroyCommunicator(made->comm), pcclSuccess);
    CHECK_EQ(pcclDestroyMaster(made->master), pcclSuccess);
}

static void use_inherited(const struct handles *made) {
    float value = 1;
    int world;
    bool pending;
    char state[64];
    uint16_t port;
    struct pccl_ticket ticket, parents = made->ticket;
    pcclReduceInfo_t info;
    pcclAsyncReduceOp_t op = {.comm = made->comm};
    pcclReduceDescriptor_t descriptor = {.count = 1, .op = pcclSum, .src_descriptor = {.datatype = pcclFloat}};
    const struct {
        const char *name;
        pcclResult_t got;
    } calls[] = {
        {"connect", pcclConnect(made->comm)},
        {"attribute", pcclGetAttribute(made->comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &world)},
        {"update", pcclUpdateTopology(made->comm)},
        {"pending", pcclArePeersPending(made->comm, &pending)},
        {"optimise", pcclOptimizeTopology(made->comm)},
        {"reduce", pcclAllReduce(&value, &value, &descriptor, made->comm, &info)},
        {"launch", pcclAllReduceAsync(&value, &value, &descriptor, made->comm, &op)},
        {"await", pcclAwaitAsyncReduce(&op, &info)},
        {"begin", pccl_begin_update(made->comm, &ticket)},
        {"wait", pccl_ticket_wait(&parents, 0)},
        {"state", pccl_ext_comm_state(made->comm, state, sizeof state)},
        {"run", pcclRunMaster(made->master)},
        {"interrupt", pcclInterruptMaster(made->master)},
        {"await the master", pcclMasterAwaitTermination(made->master)},
        {"port", pccl_ext_master_port(made->master, &port)},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        check_case("%s", calls[i].name);
        CHECK_EQ(calls[i].got, pcclInvalidUsage);
    }
    check_case("%s", "");
    CHECK(pcclUpdateTopology(made->comm) == pcclInvalidUsage && strstr(pccl_ext_detail(), "after the fork") != NULL);
    destroy(made);
}

// The thread sanitizer starts no threads in a forked child. The address sanitizer of gcc does not hold its own locks
// over a fork, so that a child in which one was held can stand still at its first allocation.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static void use_own(void) {}
#else
static void use_own(void) {
    struct handles own = create();
    CHECK_EQ(pcclUpdateTopology(own.comm), pcclSuccess);
    destroy(&own);
}
#endif

int main(void) {
    REQUIRE(pcclInit() == pcclSuccess);
    struct handles made = create();
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        use_inherited(&made);
        use_own();
        _exit(check_status());
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), EXIT_SUCCESS);
    CHECK_EQ(pcclUpdateTopology(made.comm), pcclSuccess); // neither has heard of anything
    CHECK_EQ(pcclMasterAwaitTermination(NULL), pcclInvalidArgument);
    destroy(&made);
    return check_status();
}
