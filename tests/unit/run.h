// A run in one process, over loopback: a master and its peers, by the public functions.
#ifndef PCCL_TESTS_RUN_H
#define PCCL_TESTS_RUN_H

#include <pthread.h>
#include <unistd.h>

#include "api/ext.h"
#include "check.h"
#include "pccl.h"

enum {
    MAX_PEERS = 8,
    CALM_MS = 20000, // of heartbeats, where nobody is silent, however slow the machine
};

static uint32_t heartbeat_ms = CALM_MS;

struct run {
    pcclMasterInstance_t *master;
    uint16_t port;
    size_t count;
    pcclComm_t *comms[MAX_PEERS];
};

static inline ccoip_socket_address_t loopback(uint16_t port) {
    return (ccoip_socket_address_t){.inet = {.protocol = inetIPv4, .ipv4 = {{127, 0, 0, 1}}}, .port = port};
}

static uint32_t pool_size; // 0 = the default

static inline pcclComm_t *new_comm(uint16_t port, uint32_t group) {
    pcclCommCreateParams_t params = {
        .master_address = loopback(port), .peer_group = group, .p2p_connection_pool_size = pool_size};
    pcclComm_t *comm = NULL;
    REQUIRE(pcclCreateCommunicator(&params, &comm) == pcclSuccess);
    return comm;
}

static inline int attribute(const pcclComm_t *comm, pcclAttribute_t which) {
    int value = -1;
    CHECK_EQ(pcclGetAttribute(comm, which, &value), pcclSuccess);
    return value;
}

static inline int world(const pcclComm_t *comm) { return attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE); }

static inline void start_master(struct run *run) {
    memset(run, 0, sizeof *run);
    REQUIRE(pcclCreateMaster(loopback(0), &run->master) == pcclSuccess);
    struct pccl_ext_master_settings settings = {.heartbeat_limit_ms = heartbeat_ms};
    REQUIRE(pccl_ext_master_configure(run->master, &settings) == pcclSuccess);
    REQUIRE(pcclRunMaster(run->master) == pcclSuccess);
    REQUIRE(pccl_ext_master_port(run->master, &run->port) == pcclSuccess);
}

// ---- doing something on all peers at once ----

struct job {
    struct run *run;
    size_t rank;
    void (*work)(struct run *, size_t rank);
    char name[CHECK_CASE_BYTES];
};

static inline void *job_main(void *context) {
    struct job *job = context;
    check_case("%s, rank %zu", job->name, job->rank);
    job->work(job->run, job->rank);
    return NULL;
}

static inline void on_all(struct run *run, const char *name, void (*work)(struct run *, size_t)) {
    pthread_t threads[MAX_PEERS];
    struct job jobs[MAX_PEERS];
    for (size_t i = 0; i < run->count; i++) {
        jobs[i] = (struct job){.run = run, .rank = i, .work = work};
        snprintf(jobs[i].name, sizeof jobs[i].name, "%s", name);
        if (run->comms[i] != NULL) REQUIRE(pthread_create(&threads[i], NULL, job_main, &jobs[i]) == 0);
    }
    for (size_t i = 0; i < run->count; i++)
        if (run->comms[i] != NULL) pthread_join(threads[i], NULL);
}

static size_t wanted_world;

static inline void join_work(struct run *run, size_t rank) {
    REQUIRE(pcclConnect(run->comms[rank]) == pcclSuccess);
    AWAIT((size_t)world(run->comms[rank]) >= wanted_world,
          REQUIRE(pcclUpdateTopology(run->comms[rank]) == pcclSuccess));
}

static inline void start_run(struct run *run, size_t count) {
    start_master(run);
    run->count = wanted_world = count;
    for (size_t i = 0; i < count; i++) run->comms[i] = new_comm(run->port, 0);
    on_all(run, "join", join_work);
    for (size_t i = 0; i < count; i++) CHECK_EQ(world(run->comms[i]), count);
}

static inline void end_run(struct run *run) {
    for (size_t i = 0; i < run->count; i++)
        if (run->comms[i] != NULL) CHECK_EQ(pcclDestroyCommunicator(run->comms[i]), pcclSuccess);
    CHECK_EQ(pcclDestroyMaster(run->master), pcclSuccess);
}

static inline pcclReduceDescriptor_t sum_of(size_t count, uint64_t tag) {
    return (pcclReduceDescriptor_t){
        .count = count, .op = pcclSum, .tag = tag, .src_descriptor = {.datatype = pcclFloat}};
}

static inline void wait_for_state(const pcclComm_t *comm, const char *wanted) {
    char state[64];
    AWAIT(pccl_ext_comm_state(comm, state, sizeof state) == pcclSuccess && strcmp(state, wanted) == 0, usleep(1000));
}

#endif
