// Shared state between communicators of one process: rounds with random contents, while peers leave in the middle, with
// leaves sent over the links and through slots. And with a peer in a second process, which cannot unpack leaves, and
// may not read other processes.
#define _GNU_SOURCE
#include <pccl.h>

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/ext.h"
#include "base/platform.h"
#include "check.h"
#include "deaf_owner.h"
#include "enter_epoch.h"
#include "far_end.h"
#include "net/wire_data.h"
#include "state/sync.h"

enum { PEERS = 4, ENTRIES = 6 };

static const size_t sizes[ENTRIES] = {1, 300001, 0, 5 << 20, 77, 40 << 20};

struct side {
    pcclComm_t *comm;
    pthread_t thread;
    unsigned index;
    uint8_t *memory[ENTRIES];
    pcclTensorInfo_t infos[ENTRIES];
    pcclSharedState_t state;
    pcclSharedStateSyncInfo_t info;
    pcclResult_t result;
    bool torn; // perhaps: it left in the midst of a transfer, and no sync of its memory has succeeded since
};

static struct side sides[PEERS];
static pcclMasterInstance_t *master;
static uint16_t port;

static void fill(struct side *side, uint64_t seed) {
    for (int e = 0; e < ENTRIES; e++)
        for (size_t i = 0; i < sizes[e]; i += 997) side->memory[e][i] = (uint8_t)(check_random(&seed) >> 32);
}

static void make_memory(struct side *side) {
    for (int e = 0; e < ENTRIES; e++)
        if (side->memory[e] == NULL) REQUIRE((side->memory[e] = calloc(1, sizes[e] + 1)) != NULL);
}

static void free_memory(void) {
    for (unsigned i = 0; i < PEERS; i++)
        for (int e = 0; e < ENTRIES; e++) free(sides[i].memory[e]);
}

static bool same(const struct side *a, const struct side *b) {
    for (int e = 0; e < ENTRIES; e++)
        if (memcmp(a->memory[e], b->memory[e], sizes[e]) != 0) return false;
    return true;
}

static void *connect_main(void *context) {
    struct side *side = context;
    side->result = pcclConnect(side->comm);
    return NULL;
}

static void *update_main(void *context) {
    struct side *side = context;
    side->result = pcclUpdateTopology(side->comm);
    return NULL;
}

static void *sync_main(void *context) {
    struct side *side = context;
    side->result = pcclSynchronizeSharedState(side->comm, &side->state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR,
                                              &side->info);
    return NULL;
}

static void start(struct side *side, void *(*run)(void *)) {
    REQUIRE(pthread_create(&side->thread, NULL, run, side) == 0);
}
static void join(struct side *side) { pthread_join(side->thread, NULL); }

static void on_all(void *(*run)(void *), unsigned count) {
    for (unsigned i = 0; i < count; i++) start(&sides[i], run);
    for (unsigned i = 0; i < count; i++) join(&sides[i]);
}

static void add(unsigned index) {
    struct side *side = &sides[index];
    side->index = index;
    make_memory(side);
    for (int e = 0; e < ENTRIES; e++) {
        static const char *const names[ENTRIES] = {"a", "b", "c", "d", "e", "f"};
        side->infos[e] =
            (pcclTensorInfo_t){.name = names[e], .data = side->memory[e], .count = sizes[e], .datatype = pcclUint8};
    }
    side->state = (pcclSharedState_t){.count = ENTRIES, .infos = side->infos};
    pcclCommCreateParams_t params = {
        .master_address = {.inet = {.protocol = inetIPv4, .ipv4 = {.data = {127, 0, 0, 1}}}, .port = port}};
    REQUIRE(pcclCreateCommunicator(&params, &side->comm) == pcclSuccess);
    start(side, connect_main);
    for (int world = 1; index > 0 && world < (int)index + 1;) {
        usleep(1000);
        on_all(update_main, index);
        REQUIRE(sides[0].result == pcclSuccess);
        REQUIRE(pcclGetAttribute(sides[0].comm, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE, &world) == pcclSuccess);
    }
    join(side);
    REQUIRE(side->result == pcclSuccess);
}

static void begin_run(unsigned count) {
    ccoip_socket_address_t address = {.inet = {.protocol = inetIPv4, .ipv4 = {.data = {127, 0, 0, 1}}}};
    REQUIRE(pcclCreateMaster(address, &master) == pcclSuccess);
    REQUIRE(pcclRunMaster(master) == pcclSuccess);
    REQUIRE(pccl_ext_master_port(master, &port) == pcclSuccess);
    for (unsigned i = 0; i < count; i++) add(i);
}

static void end_run(unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (sides[i].comm != NULL) pcclDestroyCommunicator(sides[i].comm);
    pcclDestroyMaster(master);
}

static void test_rounds(const char *memory) {
    setenv("PCCL_SAME_HOST_MEMORY", memory, 1);
    begin_run(PEERS);
    for (uint64_t round = 0; round < 6; round++) {
        check_case("round %d, memory %s", (int)round, memory);
        for (unsigned i = 0; i < PEERS; i++) {
            fill(&sides[i], round * 10 + (i < 2 ? 0 : i));
            sides[i].state.revision = round;
        }
        on_all(sync_main, PEERS);
        uint64_t tx = 0, rx = 0;
        for (unsigned i = 0; i < PEERS; i++) {
            CHECK_EQ(sides[i].result, pcclSuccess);
            CHECK_EQ(sides[i].state.revision, round);
            CHECK(same(&sides[0], &sides[i]));
            tx += sides[i].info.tx_bytes;
            rx += sides[i].info.rx_bytes;
        }
        CHECK_EQ(tx, rx);
        CHECK_EQ(sides[0].info.rx_bytes, 0);
        CHECK(sides[3].info.rx_bytes > 0);
    }
    end_run(PEERS);
}

static void test_leaving(uint64_t seed) {
    check_case("leaving, seed %d", (int)seed);
    setenv("PCCL_SAME_HOST_MEMORY", seed % 2 == 0 ? "0" : "1", 1);
    begin_run(PEERS);
    unsigned donors = 1 + (unsigned)(check_random(&seed) % 3), victim = (unsigned)(check_random(&seed) % PEERS);
    for (unsigned i = 0; i < PEERS; i++) {
        fill(&sides[i], seed + (i < donors ? 0 : i));
        sides[i].state.revision = i < donors ? 3 : 0;
    }
    for (unsigned i = 0; i < PEERS; i++) start(&sides[i], sync_main);
    for (struct pccl_sync_report report = {0}; report.seconds == 0;) // until the victim's call has begun
        REQUIRE(pccl_ext_sync_report(sides[victim].comm, &report) == pcclSuccess);
    usleep((unsigned)(check_random(&seed) % 100000));
    pcclDestroyCommunicator(sides[victim].comm);
    sides[victim].comm = NULL;
    for (unsigned i = 0; i < PEERS; i++) join(&sides[i]);
    // The holders may have left before they voted, or hold what cannot win: then the others agree on theirs.
    bool held = false;
    for (unsigned i = 0; i < donors; i++) held |= i != victim && !sides[i].torn;
    unsigned good = 0, first = victim == 0 ? 1 : 0;
    sides[victim].torn = true;
    for (unsigned i = 0; i < PEERS; i++) {
        if (i == victim) continue;
        good += sides[i].result == pcclSuccess;
        CHECK(sides[i].result == pcclSuccess || sides[i].result == pcclNoSharedStateAvailable);
        sides[i].torn = sides[i].result != pcclSuccess;
        if (sides[i].torn) continue;
        CHECK(same(&sides[first], &sides[i]));
        CHECK(sides[i].state.revision == 3 || !held);
        CHECK_EQ(sides[i].state.revision, sides[first].state.revision);
    }
    CHECK(good == 0 || good == PEERS - 1);
    CHECK(good > 0 || !held);
    end_run(PEERS);
}

// What was cut short stays so for other communicators of the process, until a sync has succeeded.
static void test_cut_short(void) {
    setenv("PCCL_SAME_HOST_MEMORY", "0", 1);
    pcclResult_t alone = pcclSuccess;
    // The rest may have come by the time that the donor is gone: then once more.
    for (unsigned trial = 0; alone == pcclSuccess && trial < 50; trial++) {
        check_case("cut short, trial %u", trial);
        begin_run(2);
        for (unsigned i = 0; i < 2; i++) {
            fill(&sides[i], 2 * trial + i);
            sides[i].state.revision = i == 0 ? 0 : 3;
            start(&sides[i], sync_main);
        }
        struct pccl_sync_report report = {0};
        AWAIT(report.rx_bytes > 0, REQUIRE(pccl_ext_sync_report(sides[0].comm, &report) == pcclSuccess));
        pcclDestroyCommunicator(sides[1].comm);
        sides[1].comm = NULL;
        for (unsigned i = 0; i < 2; i++) join(&sides[i]);
        pcclResult_t cut = sides[0].result;
        end_run(2);

        begin_run(1);
        sides[0].state.revision = 7;
        sync_main(&sides[0]);
        alone = sides[0].result;
        CHECK(alone == pcclSuccess || (alone == pcclNoSharedStateAvailable && cut == pcclNoSharedStateAvailable));
        if (alone != pcclSuccess) {
            add(1);
            sides[1].state.revision = 4;
            on_all(sync_main, 2);
            CHECK_EQ(sides[0].result, pcclSuccess);
            CHECK_EQ(sides[0].state.revision, 4);
            CHECK(same(&sides[0], &sides[1]));
            // Whole again: it may win.
            sides[0].memory[0][0] ^= 1;
            sides[0].state.revision = sides[1].state.revision = 5;
            on_all(sync_main, 2);
            CHECK_EQ(sides[0].info.tx_bytes, sizes[0]);
        }
        end_run(sides[1].comm != NULL ? 2 : 1);
    }
    CHECK_EQ(alone, pcclNoSharedStateAvailable);
}

// ---- two processes ----
// From now on no thread of this process reads another's memory. False: the kernel does not know how.
static bool forbid_reading(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof steps / sizeof steps[0], .filter = steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

static int be_receiver(int orders) {
    REQUIRE(read(orders, &port, sizeof port) == sizeof port);
    setenv("PCCL_LZ4", "0", 1); // a peer that knows of no packing, though the donor does
    if (!forbid_reading()) fprintf(stderr, "test_sync: this kernel has no filters: a refused read is not tested\n");
    add(0);
    fill(&sides[0], 2);
    sync_main(&sides[0]);
    CHECK_EQ(sides[0].result, pcclSuccess);
    CHECK_EQ(sides[0].state.revision, 5);
    struct pccl_sync_report report;
    REQUIRE(pccl_ext_sync_report(sides[0].comm, &report) == pcclSuccess);
    CHECK_EQ(report.rx_bytes, sides[0].info.rx_bytes);
    CHECK(report.wire_bytes < report.rx_bytes / 10); // the rest came through slots
    make_memory(&sides[1]);
    fill(&sides[1], 1);
    CHECK(same(&sides[0], &sides[1]));
    pcclDestroyCommunicator(sides[0].comm);
    free_memory();
    return check_status();
}

static bool shares_memory(void) {
    struct link_report link;
    size_t count;
    REQUIRE(pccl_ext_links(sides[0].comm, &link, 1, &count) == pcclSuccess);
    return count == 1 && link.by_memory;
}

static int world_after_update(void) {
    int world = 0;
    on_all(update_main, 1);
    REQUIRE(pcclGetAttribute(sides[0].comm, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE, &world) == pcclSuccess);
    return world;
}

// Before any thread is started.
static void test_no_right_to_read(void) {
    check_case("no right to read another process");
    int orders[2], status;
    REQUIRE(pipe(orders) == 0);
    pid_t receiver = fork();
    REQUIRE(receiver >= 0);
    if (receiver == 0) exit(be_receiver(orders[0]));
    begin_run(1);
    REQUIRE(write(orders[1], &port, sizeof port) == sizeof port);
    AWAIT(world_after_update() == 2, usleep(1000));
    AWAIT(shares_memory(), usleep(1000));
    fill(&sides[0], 1);
    sides[0].state.revision = 5;
    on_all(sync_main, 1);
    CHECK_EQ(sides[0].result, pcclSuccess);
    CHECK(sides[0].info.tx_bytes > 0);
    REQUIRE(waitpid(receiver, &status, 0) == receiver);
    CHECK_EQ(status, 0);
    end_run(1);
    close(orders[0]);
    close(orders[1]);
}

static void ask_leaf(struct transport *end, uint64_t round, uint64_t leaf) {
    uint8_t bytes[WIRE_HEADER_BYTES + WIRE_HEAD_BYTES];
    struct wire_head head = {.sync_ask = {.round = round, .first = leaf, .sequence = 1, .count = 1}};
    struct wire_header header = {
        .run = EPOCH_RUN, .generation = EPOCH_GENERATION, .type = WIRE_SYNC_ASK, .length = WIRE_HEAD_BYTES};
    wire_header_encode(bytes, &header);
    wire_head_encode(bytes + WIRE_HEADER_BYTES, WIRE_SYNC_ASK, &head);
    REQUIRE(far_end_write(end, bytes, sizeof bytes));
}

// An ask that was under way when its round ended may be of a leaf that the next state lacks: the link stays.
static void test_ask_of_the_round_before(void) {
    check_case("an ask of the round before");
    static struct wire_sync_plan plan = {
        .round = 2, .receiver_count = 1, .donor_count = 1, .receivers = {{{2}}}, .donors = {{{1}}}};
    static uint8_t tensor[100], bytes[WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES];
    pcclTensorInfo_t info = {.name = "a", .data = tensor, .count = sizeof tensor, .datatype = pcclUint8};
    pcclSharedState_t state = {.count = 1, .infos = &info};
    struct wire_member members[] = {{.id = {{1}}}, {.id = {{2}}}};
    struct wire_header header = {0};
    struct content *content;
    int pair[2];
    struct engine *engine = engine_new(&members[0].id, &deaf_owner);
    REQUIRE(engine != NULL && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    engine_add_link(engine, &members[1].id, 0, far_end_new(pair[0]));
    struct transport *end = far_end_new(pair[1]);
    enter_epoch(engine, 1, members, 2, 0);
    engine_links_ready(engine, 1);
    REQUIRE(content_new(&state, NULL, &content) == pcclSuccess && content_hash(content, INT64_MAX));
    REQUIRE(sync_begin(engine, content, SECOND_NS));
    ask_leaf(end, 1, 7);
    ask_leaf(end, 2, 0);
    sync_plan(engine, &plan);
    while (header.type != WIRE_SYNC_LEAF) {
        REQUIRE(far_end_read(end, bytes, WIRE_HEADER_BYTES) && wire_header_decode(bytes, &header));
        REQUIRE(far_end_read(end, bytes, header.length));
    }
    sync_end(engine, NULL);
    content_free(content);
    engine_stop(engine);
    engine_free(engine);
    transport_free(end);
}

// `test_sync FIRST LAST`: the seeds of those who leave.
int main(int count, char **arguments) {
    REQUIRE(pcclInit() == pcclSuccess);
    test_no_right_to_read();
    test_ask_of_the_round_before();
    test_rounds("1");
    test_rounds("0");
    test_cut_short();
    uint64_t first = count > 2 ? strtoull(arguments[1], NULL, 10) : 1,
             last = count > 2 ? strtoull(arguments[2], NULL, 10) : 8;
    for (uint64_t seed = first; seed <= last; seed++) test_leaving(seed);
    free_memory();
    return check_status();
}
