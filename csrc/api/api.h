// Shared by the public functions: the handles, the checks of arguments, and how long a call may wait.
#ifndef PCCL_API_API_H
#define PCCL_API_API_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/detail.h"
#include "master/master.h"
#include "peer/communicator.h"
#include "state/content.h"
#include "pccl.h"

struct pcclComm_t {
    struct communicator *communicator;
    atomic_bool has_keys;     // the program has named them
    uint32_t forks;           // of the process that made it, see descriptor_forks
    struct pcclComm_t *after; // of those that are open; see api_forget
    pthread_mutex_t gate;     // threads that wait for a ticket in which another one is, wait here for
    pthread_cond_t left;      // that one to leave
};
// Takes a communicator out of those of which the master is told when the process ends well.
void api_forget(struct pcclComm_t *comm);

struct pcclMasterInstanceState_t {
    pthread_mutex_t lock; // of everything but a look at `master`
    struct wire_address address;
    struct master_options options;                 // what it begins with; where it listens is decided then
    char events[RECORDER_PATH_BYTES];              // file of its flight recorder
    struct keys *keys;                             // held; NULL: none, or those of PCCL_KEYS
    bool insecure;                                 // the program permits plain connections beyond loopback
    struct wire_address masters[WIRE_MAX_MASTERS]; // of the run
    _Atomic(struct master *) master;               // NULL until it runs; read by signal handlers
    uint32_t forks;                                // of the process that made it, see descriptor_forks
};

enum {
    API_HEARTBEAT_DEFAULT_MS = 5000,
    API_HEARTBEAT_LEAST_MS = 100,
    API_HEARTBEAT_MOST_MS = 3600000,
    API_IDLE_MOST_MS = 86400000,
    API_RECOVERY_DEFAULT_MS = 60000,
    API_RECOVERY_MOST_MS = 3600000,
    API_SHORT_DEFAULT_S = 600, // wait for min_members
    API_SHORT_MOST_S = 86400,
    API_DEADLOCK_DEFAULT_S = 60, // members that wait for each other
    API_DEADLOCK_MOST_S = 86400,
};

// Takes an address, which texts call `name`. IPv4-mapped IPv6 addresses become IPv4. pcclInvalidArgument: there is
// none, or it is of no known protocol.
pcclResult_t api_take_address(const ccoip_socket_address_t *in, const char *name, struct wire_address *out);
// Takes a list of masters.
pcclResult_t api_take_addresses(const ccoip_socket_address_t *addresses, size_t count,
                                struct wire_address out[WIRE_MAX_MASTERS]);
pcclResult_t api_null(const char *name); // pcclInvalidArgument
// Copies the path of a flight recorder's file.
pcclResult_t api_take_events(const char *path, char out[RECORDER_PATH_BYTES]);
#define REQUIRE_NOT_NULL(parameter) \
    do { \
        if ((parameter) == NULL) return api_null(#parameter); \
    } while (0)
// Whether this process made a handle, not one that this is a fork of. Async-signal-safe.
bool api_is_own(uint32_t forks);
pcclResult_t api_own(uint32_t forks, const char *noun); // pcclInvalidUsage, unless it did
// pcclNotInitialized, too.
#define REQUIRE_COMM(comm) \
    do { \
        RETURN_IF_FAILED(api_initialized()); \
        REQUIRE_NOT_NULL(comm); \
        RETURN_IF_FAILED(api_own((comm)->forks, "communicator")); \
    } while (0)
#define REQUIRE_MASTER(master) \
    do { \
        REQUIRE_NOT_NULL(master); \
        RETURN_IF_FAILED(api_own((master)->forks, "master")); \
    } while (0)
bool api_initialize(void); // true: it was the first time
// pcclNotInitialized before that.
pcclResult_t api_initialized(void);
// Whether the program or PCCL_INSECURE=1 permits plain connections beyond loopback.
bool api_insecure(bool permitted);
// Returns the settings of connections that the environment gives; logs each that this system does not permit.
struct transport_options api_transport_options(void);
// Loads the keys or the certificate of `path` (pccl_ext_comm_configure), or of the environment if it is NULL; *out is
// NULL if there are none. Those of peers do not serve a master. pcclInvalidArgument: they cannot be used.
pcclResult_t api_load_keys(const char *path, enum transport_party party, struct keys **out);
// A context that proves that it has the keys of masters in `path`. pcclInvalidArgument: there are none, or they cannot
// be used.
pcclResult_t api_operator(const char *path, struct transport_context **out);
// Fails with a text: no master answers, or one does and the handshake with it fails with `error`.
pcclResult_t api_no_answer(int error);
// A context for questions to the master at `address`, with these keys. pcclInvalidArgument: without keys, and neither
// `insecure` nor PCCL_INSECURE=1, only a master at loopback is asked; or the keys are confined to another run. `run`
// without a name becomes the one to which they are confined. NULL: it is about all runs.
pcclResult_t api_observer(const char *path, bool insecure, const struct wire_address *address, struct wire_run *run,
                          struct transport_context **out);
// pcclInvalidArgument: these settings do not permit connections to the master at this address.
pcclResult_t api_check_master(const struct transport_options *options, const struct wire_address *master);
// Checks how many members a run has at least and at most (pccl_ext_comm_configure). pcclInvalidArgument.
pcclResult_t api_check_limits(uint32_t least, uint32_t most);
// The entries of a shared state: pcclInvalidArgument, or pcclInternalError for want of memory.
pcclResult_t api_check_state(const pcclSharedState_t *state);
// Checks them, and returns the content that the caller frees.
pcclResult_t api_content_of(const pcclSharedState_t *state, struct content **out);
// Copies the caller's version of the struct into ours; NULL gives none. Returns pcclInvalidArgument if it has no size.
pcclResult_t api_take_options(const pcclReduceOptions_t *options, pcclReduceOptions_t *out);
// Checks and launches a collective over a group.
pcclResult_t api_launch_collective(const pcclCollective_t *collective, const pcclComm_t *comm,
                                   enum ops_sequence sequence, uint64_t *tag_out);
// Launches an op with options that were taken; `tell`: it is to tell its contributors.
pcclResult_t api_launch(const void *send, void *recv, const pcclReduceDescriptor_t *descriptor, const pcclComm_t *comm,
                        const pcclReduceOptions_t *options, bool tell);
// Awaits one until `deadline_ns`. `out` may be NULL.
pcclResult_t api_await(const pcclComm_t *comm, uint64_t tag, int64_t deadline_ns, pcclReduceInfo_t *out);
// Checks all, and begins them, as pcclAllReduceMultipleWithRetry. `options` has one for each; NULL: none.
pcclResult_t api_retry_new(const pcclReduceOpDescriptor_t *descriptors, const pcclReduceOptions_t *options,
                           size_t count, const pcclComm_t *comm, int max_in_flight, struct ops_retry **out);

// Takes the name of a run; "": the one without a name. pcclInvalidArgument: it cannot be one.
pcclResult_t api_take_run(const char *name, struct wire_run *out);

#endif
