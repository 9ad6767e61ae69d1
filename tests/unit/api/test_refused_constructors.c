// A master and two communicators that connect, reduce and sync a state, while one request for memory, a mapping, a
// descriptor or a thread is refused: the calls end, with an error or without, and everything is freed. Each trial
// refuses a later request, until none is reached. REFUSE_STRIDE=1 leaves none out; by default some are.
#define _GNU_SOURCE
#include <errno.h>
#include <pccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api/ext.h"
#include "base/log.h"
#include "base/platform.h"
#include "check.h"
#include "key_files.h"
#include "sim/refuse.h"
#include "state/content.h"

enum { PEERS = 2, SMALL = 1024, LARGE = 1 << 18, TRIAL_S = 60, STRIDE = 13 };

// ---- refusing ----
static atomic_ulong requests;
static atomic_ulong refuse_at; // 0: none

bool refuse_now(void) {
    unsigned long at = refuse_at;
    return at != 0 && atomic_fetch_add(&requests, 1) + 1 == at;
}

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_memfd_create(const char *name, unsigned flags);
int __real_eventfd(unsigned value, int flags);
int __real_epoll_create1(int flags);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_epoll_create1(int flags);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);

static int no_descriptor(void) {
    errno = EMFILE;
    return -1;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return refuse_now() ? NULL : __real_aligned_alloc(alignment, bytes);
}
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return refuse_now() ? MAP_FAILED : __real_mmap(at, bytes, protection, flags, fd, offset);
}
int __wrap_memfd_create(const char *name, unsigned flags) {
    return refuse_now() ? no_descriptor() : __real_memfd_create(name, flags);
}
int __wrap_eventfd(unsigned value, int flags) { return refuse_now() ? no_descriptor() : __real_eventfd(value, flags); }
int __wrap_epoll_create1(int flags) { return refuse_now() ? no_descriptor() : __real_epoll_create1(flags); }
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    return refuse_now() ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}

static void hung(int signal) {
    (void)signal;
    char text[64];
    int length = snprintf(text, sizeof text, "hangs: request %lu was refused\n", (unsigned long)refuse_at);
    if (write(STDERR_FILENO, text, (size_t)length) < 0) _exit(2);
    abort();
}

// ---- a trial ----
static ccoip_socket_address_t address;
static const char *keys, *master_keys; // NULL: none
static atomic_int completed;
static atomic_bool given_up; // a peer has failed, and the other need not wait for it
static float input[PEERS][LARGE], output[PEERS][LARGE];

#define TRY(call) \
    do \
        if ((call) != pcclSuccess) return; \
    while (0)

static void take_part(pcclComm_t *comm, int self) {
    int world = 0;
    struct pccl_ext_comm_settings settings = {
        .recovery_ms = 200, .least = UINT32_MAX, .most = UINT32_MAX, .wait_ms = UINT32_MAX, .keys = keys};
    TRY(pccl_ext_comm_configure(comm, &settings));
    TRY(pcclConnect(comm));
    for (;;) {
        TRY(pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &world));
        if (world == PEERS) break;
        if (given_up) return;
        TRY(pcclUpdateTopology(comm));
        usleep(500);
    }
    for (uint64_t tag = 0; tag < 2; tag++) {
        pcclReduceDescriptor_t reduce = {
            .count = tag == 0 ? SMALL : LARGE, .op = pcclSum, .tag = tag, .src_descriptor = {.datatype = pcclFloat}};
        TRY(pcclAllReduce(input[self], output[self], &reduce, comm, NULL));
    }
    input[self][5] = (float)self;
    pcclTensorInfo_t info = {.name = "w", .data = input[self], .count = LARGE, .datatype = pcclFloat};
    pcclSharedState_t state = {.revision = 1, .count = 1, .infos = &info};
    TRY(pcclSynchronizeSharedState(
        comm, &state,
        self == 0 ? PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY : PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY, NULL));
    CHECK(input[self][5] == 0);
    completed++;
}

static void *run_peer(void *argument) {
    int self = (int)(intptr_t)argument;
    pcclComm_t *comm = NULL;
    pcclCommCreateParams_t params = {.master_address = address};
    if (pcclCreateCommunicator(&params, &comm) == pcclSuccess) take_part(comm, self);
    given_up = true;
    if (comm != NULL) pcclDestroyCommunicator(comm);
    return NULL;
}

// Returns whether the request was reached.
static bool trial(unsigned long refused) {
    check_case("request %lu is refused%s", refused, keys == NULL ? "" : ", with keys");
    alarm(TRIAL_S);
    requests = 0;
    given_up = false;
    completed = 0;
    refuse_at = refused;
    memset(input, 0, sizeof input);
    pcclMasterInstance_t *master = NULL;
    ccoip_socket_address_t any = {.inet = {.protocol = inetIPv4, .ipv4 = {{127, 0, 0, 1}}}};
    bool runs = pcclCreateMaster(any, &master) == pcclSuccess &&
                (keys == NULL || pccl_ext_master_configure(
                                     master, &(struct pccl_ext_master_settings){.keys = master_keys}) == pcclSuccess) &&
                pcclRunMaster(master) == pcclSuccess;
    address = any;
    if (runs) runs = pccl_ext_master_port(master, &address.port) == pcclSuccess;
    pthread_t threads[PEERS];
    for (intptr_t i = 0; i < PEERS && runs; i++)
        REQUIRE(__real_pthread_create(&threads[i], NULL, run_peer, (void *)i) == 0);
    for (int i = 0; i < PEERS && runs; i++) pthread_join(threads[i], NULL);
    if (runs) {
        pcclInterruptMaster(master);
        pcclMasterAwaitTermination(master);
    }
    if (master != NULL) pcclDestroyMaster(master);
    refuse_at = 0;
    return requests >= refused;
}

// Memory is refused for the record of a torn state: a clear of another state leaves it torn.
static void test_torn(void) {
    check_case("no memory for the record of a torn state");
    static char a[64], b[64];
    struct delta_entry entries[2] = {{.data = a, .bytes = sizeof a}, {.data = b, .bytes = sizeof b}};
    struct delta_layout one = {.entries = &entries[0], .count = 1}, two = {.entries = &entries[1], .count = 1};
    requests = 0;
    refuse_at = 1;
    content_mark_torn(&one);
    refuse_at = 0;
    CHECK(content_is_torn(&one));
    content_clear_torn(&two);
    CHECK(content_is_torn(&one) && !content_is_torn(&two));
    content_clear_torn(&one);
    CHECK(!content_is_torn(&one));
}

static void sweep(unsigned long stride) {
    trial(0);
    CHECK_EQ(completed, PEERS);
    unsigned long at = 1;
    while (trial(at)) at += stride;
    fprintf(stderr, "%lu requests%s\n", at, keys == NULL ? "" : ", with keys");
}

int main(void) {
    const char *text = getenv("REFUSE_STRIDE");
    unsigned long stride = text == NULL ? STRIDE : strtoul(text, NULL, 10);
    REQUIRE(stride > 0);
    signal(SIGALRM, hung);
    setenv("PCCL_LOG_LEVEL", "NONE", 0);
    REQUIRE(pcclInit() == pcclSuccess);
    sweep(stride);
    static char peer_file[] = "/tmp/pccl-refused-XXXXXX", master_file[] = "/tmp/pccl-refused-XXXXXX";
    key_files_write(peer_file, false, 1, 2, 0);
    key_files_write(master_file, true, 1, 2, 0);
    keys = peer_file;
    master_keys = master_file;
    sweep(stride * 3);
    unlink(peer_file);
    unlink(master_file);
    test_torn(); // all memory counts as torn afterwards
    return check_status();
}
