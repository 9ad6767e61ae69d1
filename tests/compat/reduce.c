/* Two processes and a master reduce through the shared library alone. Valid C99 and C++20. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#include <pccl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 300000, WORLD = 2, SETTLED = 3 };

static float send_buffer[COUNT], receive_buffer[COUNT];

#define MUST(call) \
    do { \
        int result_ = (int)(call); \
        if (result_ != pcclSuccess) { \
            printf("peer %d, line %d: %s gave %d\n", rank, __LINE__, #call, result_); \
            return 1; \
        } \
    } while (0)

static ccoip_socket_address_t loopback(unsigned port) {
    ccoip_socket_address_t address;
    memset(&address, 0, sizeof address);
    address.inet.protocol = inetIPv4;
    address.inet.ipv4.data[0] = 127;
    address.inet.ipv4.data[3] = 1;
    address.port = (uint16_t)port;
    return address;
}

static pcclReduceDescriptor_t sum_of(size_t count, uint64_t tag) {
    pcclReduceDescriptor_t descriptor = {
        .count = count,
        .op = pcclSum,
        .tag = tag,
        .src_descriptor = {.datatype = pcclFloat, .distribution_hint = pcclDistributionNone},
        .quantization_options = {.quantized_datatype = pcclUint8, .algorithm = pcclQuantNone},
    };
    return descriptor;
}

static int check_sum(int rank, const float *got, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float want = (float)(2 * (i % 1000) + 1);
        if (got[i] != want) {
            printf("peer %d: element %zu is %f, want %f\n", rank, i, (double)got[i], (double)want);
            return 1;
        }
    }
    return 0;
}

/* Peer `rank` holds i % 1000 + rank, so the sum tells who is in it. */
static int run_peer(int rank, unsigned port) {
    for (size_t i = 0; i < COUNT; i++) send_buffer[i] = (float)(i % 1000) + (float)rank;
    MUST(pcclInit());
    pcclCommCreateParams_t params = {.master_address = loopback(port), .peer_group = 0, .p2p_connection_pool_size = 2};
    pcclComm_t *comm = NULL;
    MUST(pcclCreateCommunicator(&params, &comm));
    MUST(pcclConnect(comm));
    int world = 0;
    for (;;) {
        MUST(pcclGetAttribute(comm, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE, &world));
        if (world == WORLD) break;
        usleep(1000);
        MUST(pcclUpdateTopology(comm));
    }

    /* one large op and one small one, out of place */
    const size_t counts[] = {COUNT, 5, 0};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        pcclReduceDescriptor_t descriptor = sum_of(counts[i], i);
        pcclReduceInfo_t info;
        MUST(pcclAllReduce(send_buffer, receive_buffer, &descriptor, comm, &info));
        if (check_sum(rank, receive_buffer, counts[i])) return 1;
        if (info.local_world_size != WORLD || info.tx_bytes != 4 * counts[i] || info.rx_bytes != 4 * counts[i]) {
            printf("peer %d: info is wrong for %zu elements\n", rank, counts[i]);
            return 1;
        }
    }

    /* many at once, by handle, awaited in another order than launched */
    pcclAsyncReduceOp_t ops[4];
    for (uint64_t i = 0; i < 4; i++) {
        pcclReduceDescriptor_t descriptor = sum_of(COUNT / 4, i);
        MUST(pcclAllReduceAsync(send_buffer + i * (COUNT / 4), receive_buffer + i * (COUNT / 4), &descriptor, comm,
                                &ops[i]));
    }
    for (int i = 3; i >= 0; i--) MUST(pcclAwaitAsyncReduce(&ops[i], NULL));
    if (check_sum(rank, receive_buffer, COUNT)) return 1;
    if (pcclAwaitAsyncReduce(&ops[0], NULL) != pcclInvalidArgument) return 1;

    /* in place, with retry */
    pcclReduceOpDescriptor_t whole = {
        .sendbuf = send_buffer, .recvbuf = send_buffer, .descriptor = sum_of(COUNT, SETTLED)};
    pcclReduceInfo_t info;
    MUST(pcclAllReduceMultipleWithRetry(&whole, 1, comm, &info, 1));
    if (check_sum(rank, send_buffer, COUNT)) return 1;
    MUST(pcclUpdateTopology(comm)); /* a barrier: nobody leaves while the other is still in the reduce */
    MUST(pcclDestroyCommunicator(comm));
    return 0;
}

/* Any port that is free now. */
static int start_master(pcclMasterInstance_t **master, unsigned *port) {
    for (*port = 20000 + (unsigned)getpid() % 20000; *port < 65000; ++*port) {
        if (pcclCreateMaster(loopback(*port), master) != pcclSuccess) return 1;
        if (pcclRunMaster(*master) == pcclSuccess) return 0;
        pcclDestroyMaster(*master);
    }
    return 1;
}

int main(void) {
    /* The peers are forked before there are handles, which a forked child must not use. They learn the port by a pipe.
     */
    int pipes[WORLD][2];
    pid_t peers[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        if (pipe(pipes[rank]) != 0) return 1;
        peers[rank] = fork();
        if (peers[rank] == 0) {
            unsigned port = 0;
            close(pipes[rank][1]);
            if (read(pipes[rank][0], &port, sizeof port) != (ssize_t)sizeof port) _exit(1);
            int status = run_peer(rank, port);
            fflush(stdout);
            _exit(status);
        }
    }
    pcclMasterInstance_t *master = NULL;
    unsigned port = 0;
    int failed = start_master(&master, &port);
    for (int rank = 0; rank < WORLD; rank++) {
        if (!failed && write(pipes[rank][1], &port, sizeof port) != (ssize_t)sizeof port) failed = 1;
        close(pipes[rank][1]);
    }
    for (int rank = 0; rank < WORLD; rank++) {
        int status = 0;
        waitpid(peers[rank], &status, 0);
        if (status != 0) failed = 1;
    }
    if (master != NULL && pcclInterruptMaster(master) != pcclSuccess) failed = 1;
    if (master != NULL && pcclDestroyMaster(master) != pcclSuccess) failed = 1;
    return failed;
}
