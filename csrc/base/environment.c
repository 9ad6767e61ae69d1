#define LOG_COMPONENT "config"
#include "base/environment.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

extern char **environ;

enum { NAME_MOST = 64, ALIKE_MOST = 6 }; // a name that takes more changes resembles nothing

static const char prefix[] = "PCCL_";

static const struct environment_variable variables[] = {
    {"PCCL_ADDRESS", "addresses at which other peers dial this one, 10.0.1.5,10.0.2.5; none: they cannot"},
    {"PCCL_CA", "file with the authorities whose certificates are trusted"},
    {"PCCL_CERT", "file with the certificate of this process, in place of PCCL_KEYS"},
    {"PCCL_CONGESTION_CONTROL", "congestion control of connections to other hosts"},
    {"PCCL_CONNECT_TIMEOUT_S", "how long connect tries to reach a master, in seconds"},
    {"PCCL_CPU_LEVEL", "instruction set of the kernels; for tests"},
    {"PCCL_CUDA_DRIVER", "library to load in place of the CUDA driver"},
    {"PCCL_CUDA_KERNELS", "file with GPU kernels, or off"},
    {"PCCL_CUDA_LIBRARY", "file to load in place of libpccl_cuda.so"},
    {"PCCL_CUDA_REDUCE", "gpu or host: where tensors on a GPU are reduced and quantised"},
    {"PCCL_DATA_THREADS", "further threads that send, receive and reduce, 0 to 16"},
    {"PCCL_DEADLOCK_TIMEOUT_S", "after which a master fails the calls of members that wait for each other; 0: never"},
    {"PCCL_EVENTS", "file or directory for the events of each peer and master, with %p and %n; off: none"},
    {"PCCL_FAKE_DEVICE", "1: tensors are on the fake device of tests/fakes"},
    {"PCCL_FAKE_DEVICE_FAILS", "when the fake device of tests/fakes fails"},
    {"PCCL_FAKE_TRANSPORT", "how the fake transport of tests/fakes behaves"},
    {"PCCL_GPU_LIMIT_SECONDS", "time limit of the tests on a GPU"},
    {"PCCL_HASH_THREADS", "threads that hash a shared state"},
    {"PCCL_HEARTBEAT_LIMIT_MS", "silence in ms after which a master expels a peer"},
    {"PCCL_INSECURE", "1: without keys, masters and peers talk beyond this host, too"},
    {"PCCL_INTERFACE", "network cards over which connections are spread, eth0,eth1"},
    {"PCCL_JOIN", "1: this process joins a run; pccl sets it for restarted workers"},
    {"PCCL_KEY", "file with the private key of PCCL_CERT"},
    {"PCCL_KEYS", "file with the keys of the run, which encrypt its connections"},
    {"PCCL_LAUNCHER_ENVIRONMENT", "the launcher's variables for a restarted worker; pccl sets it"},
    {"PCCL_LEFT_STATUS", "exit status of a program that has left its run on a notice"},
    {"PCCL_LOG_LEVEL", "lowest level that is logged"},
    {"PCCL_LZ4", "0: shared state is never compressed"},
    {"PCCL_MASTER", "masters of the run, host:port,host:port, and its name, /run"},
    {"PCCL_MASTERS", "further masters, tried after the one that the program names"},
    {"PCCL_MASTER_LOG", "log file of a master that torch.distributed starts"},
    {"PCCL_MASTER_ON_SIGTERM", "detach or end: what SIGTERM does to the run of a master"},
    {"PCCL_MASTER_RECOVERY_MS", "how long a peer waits for a lost master, in ms"},
    {"PCCL_MAX_CONCURRENT_COLLECTIVE_OPS", "accepted for compatibility with PCCL, without effect"},
    {"PCCL_MAX_MEMBERS", "members of a run at most; further peers wait as spares"},
    {"PCCL_MEMBERSHIP", "elastic, fixed or strict: what a loss does in torch.distributed"},
    {"PCCL_MIN_MEMBERS", "members of a run at least; with fewer it waits"},
    {"PCCL_MIN_MEMBERS_TIMEOUT_S", "how long a run waits for PCCL_MIN_MEMBERS, in seconds"},
    {"PCCL_MULTIPLEX_CHUNK_SIZE", "accepted for compatibility with PCCL, without effect"},
    {"PCCL_NUM_BENCHMARK_CONNECTIONS", "accepted for compatibility with PCCL, without effect"},
    {"PCCL_PEER", "number of this peer; pccl launch sets it"},
    {"PCCL_PEERS", "number of peers that were started; pccl launch sets it"},
    {"PCCL_PEER_NAME", "name of this peer in logs, errors and tables; the host name unless set"},
    {"PCCL_PORT", "port of the masters in examples/slurm"},
    {"PCCL_RELAY", "relay through which peers meet that nobody can dial, 203.0.113.7:48150"},
    {"PCCL_RELAY_FOR_OTHERS", "0: this peer relays nothing between two others that nobody can dial"},
    {"PCCL_RESTARTS", "how often a lost worker is restarted"},
    {"PCCL_RUN", "name of the run at its masters, for programs in C"},
    {"PCCL_SAME_HOST_MEMORY", "0: peers on one host do not share memory"},
    {"PCCL_SEGMENTED_MIN_BYTES", "bytes from which an all-reduce with retry is divided into segments"},
    {"PCCL_STRICT", "1: the same as PCCL_MEMBERSHIP=strict"},
    {"PCCL_SUPERVISED", "1: a supervisor runs this process; pccl sets it"},
    {"PCCL_SUPERVISOR_PIPE", "descriptor of the supervisor; pccl sets it"},
    {"PCCL_TEST_PATIENCE", "factor on the deadlines of tests"},
};

enum { COUNT = sizeof variables / sizeof variables[0] };

const struct environment_variable *environment_variable(size_t index) {
    return index < COUNT ? &variables[index] : NULL;
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// How many letters have to be added, removed or replaced (Levenshtein), behind the prefix of both.
static uint32_t changes(const char *a, size_t a_length, const char *b) {
    uint32_t row[NAME_MOST + 1];
    size_t b_length = strlen(b);
    for (size_t k = 0; k <= b_length; k++) row[k] = (uint32_t)k;
    for (size_t i = 1; i <= a_length; i++) {
        uint32_t before = row[0];
        row[0] = (uint32_t)i;
        for (size_t k = 1; k <= b_length; k++) {
            uint32_t replaced = before + (a[i - 1] != b[k - 1]);
            before = row[k];
            row[k] = smaller(replaced, smaller(row[k], row[k - 1]) + 1);
        }
    }
    return row[b_length];
}

// Returns the variable that is most like this name; NULL: none is similar. `apart`: 0 if it has this name.
static const char *similar(const char *name, size_t length, uint32_t *apart) {
    const char *best = NULL;
    size_t skip = sizeof prefix - 1;
    *apart = ALIKE_MOST + 1;
    for (size_t i = 0; length <= NAME_MOST && i < COUNT; i++) {
        const char *other = variables[i].name;
        uint32_t changed = changes(name + skip, length - skip, other + skip);
        bool begins = changed > 0 && length > skip + 3 && strncmp(other, name, length) == 0;
        if (begins) changed = 1;
        if (changed >= *apart || (!begins && changed * 2 >= strlen(other + skip))) continue;
        best = other;
        *apart = changed;
    }
    return best;
}

static void report_unknown(void) {
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        const char *end = strchr(*entry, '=');
        if (end == NULL || strncmp(*entry, prefix, sizeof prefix - 1) != 0) continue;
        size_t length = (size_t)(end - *entry);
        uint32_t apart;
        const char *meant = similar(*entry, length, &apart);
        if (apart == 0) continue;
        LOG(LOG_WARN, "environment variable %.*s is unknown and ignored%s%s%s; `pccl info` lists all", (int)length,
            *entry, meant == NULL ? "" : " (did you mean ", meant == NULL ? "" : meant, meant == NULL ? "" : "?)");
    }
}

void environment_report_unknown(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, report_unknown);
}

bool environment_switch(const char *name, bool otherwise) {
    const char *value = getenv(name);
    if (value == NULL) return otherwise;
    if (strcmp(value, "0") == 0 || strcmp(value, "1") == 0) return value[0] == '1';
    LOG(LOG_ERR, "%s=%s is ignored; set it to 0 or 1", name, value);
    return otherwise;
}

uint32_t environment_number(const char *name, uint32_t least, uint32_t most, uint32_t otherwise) {
    const char *value = getenv(name);
    if (value == NULL) return otherwise;
    char *end;
    errno = 0;
    long number = strtol(value, &end, 10);
    if (value[0] >= '0' && value[0] <= '9' && *end == 0 && errno == 0 && number >= (long)least && number <= (long)most)
        return (uint32_t)number;
    LOG(LOG_ERR, "%s=%s is ignored; set it to a number from %u to %u", name, value, least, most);
    return otherwise;
}
