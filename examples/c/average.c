// A master and two peers, all threads of this program, average two numbers. Real peers are processes on other machines:
// they create a communicator with the master's address, and do what `peer` does.
#include <ccoip.h>
#include <pccl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { PORT = 47311, PEERS = 2 };

static const ccoip_socket_address_t master_address = {
    .inet = {.protocol = inetIPv4, .ipv4 = {.data = {127, 0, 0, 1}}},
    .port = PORT,
};

static pcclResult_t join(pcclComm_t *comm) {
    pcclResult_t result = pcclConnect(comm);
    int world = 0;
    while (result == pcclSuccess) {
        result = pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &world);
        if (result != pcclSuccess || world == PEERS) break;
        usleep(1000);
        result = pcclUpdateTopology(comm); // lets the other one in
    }
    return result;
}

static void *peer(void *number) {
    float value = *(float *)number;
    const pcclCommCreateParams_t params = {.master_address = master_address};
    const pcclReduceDescriptor_t average = {
        .count = 1,
        .op = pcclAvg,
        .tag = 0,
        .src_descriptor = {.datatype = pcclFloat},
    };
    pcclComm_t *comm = NULL;
    pcclResult_t result = pcclCreateCommunicator(&params, &comm);
    if (result == pcclSuccess) result = join(comm);
    if (result == pcclSuccess) result = pcclAllReduce(&value, &value, &average, comm, NULL);
    // a barrier: nobody leaves while another is still in the reduce
    if (result == pcclSuccess) result = pcclUpdateTopology(comm);
    if (result == pcclSuccess)
        *(float *)number = value;
    else
        fprintf(stderr, "a peer failed with code %d\n", (int)result);
    pcclDestroyCommunicator(comm);
    return NULL;
}

int main(void) {
    pcclMasterInstance_t *master = NULL;
    if (pcclInit() != pcclSuccess || pcclCreateMaster(master_address, &master) != pcclSuccess) return 1;
    if (pcclRunMaster(master) != pcclSuccess) {
        fprintf(stderr, "port %d is in use\n", PORT);
        return 1;
    }
    float numbers[PEERS] = {1, 4};
    pthread_t peers[PEERS];
    for (int i = 0; i < PEERS; i++) pthread_create(&peers[i], NULL, peer, &numbers[i]);
    for (int i = 0; i < PEERS; i++) pthread_join(peers[i], NULL);
    pcclDestroyMaster(master);
    printf("the average is %g on one peer and %g on the other\n", (double)numbers[0], (double)numbers[1]);
    return numbers[0] == 2.5f && numbers[1] == 2.5f ? 0 : 1;
}
