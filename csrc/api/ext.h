// Functions that the Python package needs beyond pccl.h. They are linked into the extension module only; libpccl.so
// does not export them.
//
// This file is read by the generator of the extension: plain declarations only.
#ifndef PCCL_API_EXT_H
#define PCCL_API_EXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/link_report.h"
#include "pccl.h"

// Returns the text of the last failed call on this thread: what was wrong, and what to do; "" if nothing is known.
// Valid until the next call on this thread. Never NULL.
const char *pccl_ext_detail(void);

// Computes the public half of a private Ed25519 key; both have 32 bytes. pcclInvalidUsage: built without OpenSSL.
pcclResult_t pccl_ext_key_public(const uint8_t *private_key, uint8_t *public_out);
// Whether a file of keys can be used by this process, and why not. `master`: whether it is for masters.
// pcclInvalidArgument: it cannot be used.
pcclResult_t pccl_ext_keys_check(const char *path, bool *master);

// The port a running master is bound to. pcclInvalidUsage: not run.
pcclResult_t pccl_ext_master_port(pcclMasterInstance_t *master, uint16_t *port_out);

// Settings of a master; one that is 0 stays as it is.
struct pccl_ext_master_settings {
    // After so long a silent peer counts as lost, and a silent master for its peers: 100 to 3,600,000.
    uint32_t heartbeat_limit_ms;
    // The master ends by itself once neither it nor another one of its list has had a peer for so long, from its
    // beginning on: at most 86,400,000.
    uint32_t idle_limit_ms;
    // Nobody was ever at the master's address or at those of its list, so newcomers need not wait for members of an
    // earlier run, nor at first for what the other masters say.
    bool new;
    bool insecure; // permits plain connections beyond loopback without keys; else only PCCL_INSECURE=1 does
    // File of the keys with which all connections are encrypted, which must be that of masters, or a certificate for
    // masters (pccl_ext_comm_configure); NULL: what the environment names, if anything. Read at once; a certificate's
    // files also later, when they have changed.
    const char *keys;
    const char *events; // file of the flight recorder, as pccl_ext_comm_configure
    // The masters of the run, of which the one at `self` is this. The first begins new runs, all take up runs whose
    // members come to them.
    const ccoip_socket_address_t *masters;
    size_t master_count, self;
};
// Before the master runs. pcclInvalidArgument: one cannot be used, and all stay as they are. pcclInvalidUsage: was run.
pcclResult_t pccl_ext_master_configure(pcclMasterInstance_t *master, const struct pccl_ext_master_settings *settings);
// Whether the command `pccl master` runs this master, which has all its settings: it takes no wildcard without keys.
// pcclInvalidArgument: not without keys or --insecure, which the text names.
pcclResult_t pccl_ext_master_check_command(pcclMasterInstance_t *master);

// Whether a peer or a query with these settings may talk to a master at this address; `keys` as for
// pccl_ext_comm_configure; not read. pcclInvalidArgument: not without keys; so say connect and the queries themselves.
// Needs no pcclInit.
pcclResult_t pccl_ext_permits(const ccoip_socket_address_t *address, const char *keys, bool insecure);

// A question to a master of any process, and what it answers (docs/protocol.md).
enum pccl_ext_question_kind {
    pccl_ext_asks_status, // STATUS: what it does in the run
    pccl_ext_asks_runs,   // RUNS: which runs it serves; one that does not trust this process names none
    pccl_ext_removes,     // REMOVE: takes a member out. Nothing
    pccl_ext_asks_stacks, // STACKS: where the threads of a member's program stand
};
struct pccl_ext_question {
    const ccoip_socket_address_t *address;
    const char *run;  // "": the one without a name, or all
    const char *keys; // as for pccl_ext_comm_configure; those of masters, to remove a member or ask for its stacks
    bool insecure;    // as for pccl_ext_comm_configure
    enum pccl_ext_question_kind kind;
    const void *body; // of the question
    size_t length;
};
// Asks, waits for at most `limit_ms`, and copies the body of the answer.
// pcclInvalidArgument: the keys cannot be used, are missing for a master beyond loopback, or are those of peers where a
// master's are needed. pcclInvalidUsage: the master refuses, and the text says why. pcclTimedOut: a member has not told
// its stacks in time. pcclMasterConnectionFailed: no master answers there. Needs no pcclInit.
pcclResult_t pccl_ext_ask(const struct pccl_ext_question *question, uint32_t limit_ms, void *out, size_t capacity,
                          size_t *length_out);

// Blocks until an operator asks so of this communicator. False: it is being stopped. Between pccl_ext_comm_stop and
// pcclDestroyCommunicator it may be called, and returns false.
bool pccl_ext_comm_await_stacks(const pcclComm_t *comm);
// Answers. pcclInvalidArgument: more than 16384 bytes.
pcclResult_t pccl_ext_comm_tell_stacks(const pcclComm_t *comm, const char *text, size_t length);

// Settings of a communicator. One that is NULL, or UINT32_MAX, stays as it is: that of the environment at first.
struct pccl_ext_comm_settings {
    // The masters that it tries, in this order, and looks for when its master is lost, in place of the one that it was
    // created with: 1 to 16.
    const ccoip_socket_address_t *masters;
    size_t master_count;
    // For how long it waits for a master when its own is lost, at most 3,600,000; 0: it is dead at once.
    uint32_t recovery_ms;
    // How many members a run has, all groups together: at most 1024. While there are fewer than `least`, each
    // update_topology waits for more, at most `wait_ms`; then it ends with pcclTooFewPeers. Newcomers beyond `most` are
    // held in connect until a member is gone. 0: no limit. All peers of a run have the same; the master refuses others.
    uint32_t least, most, wait_ms;
    const char *name;       // of this peer for logs, errors and tables: 1 to 63 bytes of printable UTF-8
    const char *interfaces; // its network cards: up to four names with commas
    const char *run;        // of those of its masters, the one that it is in; "": the one without a name
    // File of the keys that encrypt all connections. Three paths with line breaks between them name a certificate, its
    // private key, and the authorities that are trusted, all in PEM; these files are read again when they have changed.
    // The keys of one run also name it, if nothing else does; connect fails with pcclInvalidArgument if another one is
    // named.
    const char *keys;
    const char *events; // file of the flight recorder, below 1,024 bytes; "off": there is none
    bool insecure;      // connect takes masters beyond loopback without keys; else only PCCL_INSECURE=1 permits that
    bool join_only;     // connect fails where no run goes on, rather than begin one; stays for the next connect alone
};
// Before connect. pcclInvalidArgument: one cannot be used, and all stay as they are. pcclInvalidUsage: connected or
// connecting.
pcclResult_t pccl_ext_comm_configure(pcclComm_t *comm, const struct pccl_ext_comm_settings *settings);
// The state that this peer, as a newcomer, copies before it is admitted, and gives to later newcomers. `gives`: 0, once
// it was synced; 1, at once, since it is that of the run; 2, never. It is read at any time until another one, or NULL,
// takes its place, or the communicator is destroyed. `read_only` as in pccl_begin_sync. pcclInvalidUsage: while it is
// connecting.
pcclResult_t pccl_ext_comm_set_state(pcclComm_t *comm, const pcclSharedState_t *shared_state, const bool *read_only,
                                     int gives);
// Writes the path of the file of the flight recorder, cut to `capacity`; "" if there is none.
pcclResult_t pccl_ext_comm_events(const pcclComm_t *comm, char *out, size_t capacity);
// Records numbers of the program in its flight recorder, and tells them to the master, unless that was done in the last
// 200 ms. Names have 1 to 32 letters, digits and underscores. At most 16: pcclInvalidArgument. They take the place of
// those of earlier calls at the master.
pcclResult_t pccl_ext_comm_report(const pcclComm_t *comm, const char *const *names, const double *values, size_t count);
// Announces that this member leaves, within `within_ms`; UINT32_MAX: that is not known. All members are told
// (pccl_ext_comm_leaving). `at_update`: the next update_topology that all call takes it out and ends here with
// pcclLeft; no operation is under way then, so none is aborted. Otherwise it is up to the caller to leave. It may be
// called again. Waits for nothing; while the master is lost, the next one is told. Errors are those of a communicator
// that is not connected.
pcclResult_t pccl_ext_comm_leave(pcclComm_t *comm, uint32_t within_ms, bool at_update);
// Writes who has announced that it leaves, up to `capacity` members, this one too, and in how many ms each has to be
// gone: -1: not known. `count_out`: how many there are.
pcclResult_t pccl_ext_comm_leaving(const pcclComm_t *comm, pcclRankUuid_t *uuids_out, int64_t *within_ms_out,
                                   size_t capacity, size_t *count_out);
// The name of a peer: of a member of the run, of one that was lost not long ago, or of this one. Writes "" for a peer
// that is not known or has no name. Always ends with a zero, cut to `capacity`; 64 bytes hold every name.
pcclResult_t pccl_ext_peer_name(const pcclComm_t *comm, const pcclRankUuid_t *uuid, char *out, size_t capacity);
// Reason why a member is gone. The numbers are those of enum wire_loss_reason (net/wire_control.h).
typedef enum pccl_ext_loss {
    pccl_ext_loss_unknown = 0,     // another master served the run then, or it was long ago
    pccl_ext_loss_died = 1,        // its connection to the master ended
    pccl_ext_loss_silent = 2,      // it hangs, or nothing of it reaches the master
    pccl_ext_loss_unreachable = 3, // its links to other members failed, or it lost the master
    pccl_ext_loss_expelled = 4,    // by the operator, or because it broke a rule
    pccl_ext_loss_drained = 5,     // the operator asked for it, and an update vote took it out
    pccl_ext_loss_left = 6,        // as it had announced
    pccl_ext_loss_ended = 7,       // its program closed the communicator
} pccl_ext_loss_t;
// A member that was lost not long ago.
struct pccl_ext_lost {
    pcclRankUuid_t uuid;
    uint8_t reason; // pccl_ext_loss_t
    char why[128];  // what the master says of it
};
// Writes the members that were lost not long ago, the last ones up to `capacity`, oldest first. There are 64 at most.
pcclResult_t pccl_ext_comm_lost(const pcclComm_t *comm, struct pccl_ext_lost *out, size_t capacity, size_t *count_out);
// The live state in a few words: "idle", "connecting", "registered" (a newcomer that waits to be let in), "accepted
// epoch 5", "dead: expelled: ...". Always ends with a zero, cut to `capacity`.
pcclResult_t pccl_ext_comm_state(const pcclComm_t *comm, char *out, size_t capacity);

// Whether it is connected and part of the run: pcclMasterConnectionFailed when it is dead, pcclInvalidUsage when it
// never connected.
pcclResult_t pccl_ext_comm_alive(const pcclComm_t *comm);

// Ways to end a communicator: what the master is told when it is destroyed.
typedef enum pccl_ext_end {
    pccl_ext_end_leaves = 0,    // that the program closes it
    pccl_ext_end_fails = 1,     // nothing: it takes the end of the connection for a death
    pccl_ext_end_undecided = 2, // that it is closed, if the process exits with status 0, which frees it
} pccl_ext_end_t;
pcclResult_t pccl_ext_comm_set_end(pcclComm_t *comm, pccl_ext_end_t end);
// The first half of pcclDestroyCommunicator, by the thread that calls it next: leaves the run and ends all ops, in
// bounded time. Afterwards tickets of reduces and collectives tell how they have ended, without waiting for others, and
// pcclGetReduceContributors who is in them.
pcclResult_t pccl_ext_comm_stop(pcclComm_t *comm);

// The id that this communicator has in the run; all 0 before it has connected.
pcclResult_t pccl_ext_comm_uuid(const pcclComm_t *comm, pcclRankUuid_t *out);

// ---- tickets ----

// A call that waits for others, begun once and waited for in pieces: what the blocking functions of pccl.h are made of.
//
// The memory is the caller's, who reads `result` and what follows it, and keeps off the rest. One thread begins a
// ticket; any number of them may wait for it at a time, but for that of a master.
//
// A wait that is cut short changes nothing: the call goes on. So does that of a ticket that is forgotten: begun again,
// a connect, a vote or a round of the same state that no thread is in is taken up, and the older ticket is void
// (pcclInvalidUsage). A communicator has one of these calls at a time, ops and multis beside them.
//
// Destroying the communicator ends its calls, and waits for the threads that are inside; a ticket must not be waited
// for afterwards (but see pccl_ext_comm_stop). In a forked child every begin and wait is pcclInvalidUsage.
struct pccl_ticket {
    pcclResult_t result; // pcclTimedOut until a wait has seen the end
    char text[640];      // as pccl_ext_detail, of a result that is not pcclSuccess
    uint64_t value; // of pending: 0 or 1; of a sync: the revision; of connect: 1 if the wait has ended and no master
                    // has answered yet, or if it has failed since the keys of no master fit
    pcclReduceInfo_t info; // of a reduce or a multi, as the functions of pccl.h write it; of a sync: the bytes
    int kind;              // 0: nothing was begun with it
    uint64_t number;       // of an op: its tag
    // inside
    const void *of;
    struct ops_retry *multi;
    bool inside; // a thread is in the wait
};

// Each checks its arguments, with the errors of the function of pccl.h that it is a part of, and begins.
pcclResult_t pccl_begin_connect(const pcclComm_t *comm, struct pccl_ticket *ticket);
pcclResult_t pccl_begin_update(const pcclComm_t *comm, struct pccl_ticket *ticket);
pcclResult_t pccl_begin_pending(const pcclComm_t *comm, struct pccl_ticket *ticket);
pcclResult_t pccl_begin_optimize(const pcclComm_t *comm, struct pccl_ticket *ticket);
// The state, its names and its tensors belong to the round until it has ended, or the communicator is destroyed.
// `read_only` has a flag for each entry, or is NULL: a peer that would have to receive a flagged one is expelled by the
// sync, as one whose memory is mapped read-only.
pcclResult_t pccl_begin_sync(const pcclComm_t *comm, const pcclSharedState_t *shared_state,
                             pcclSharedStateSyncStrategy_t strategy, const bool *read_only, struct pccl_ticket *ticket);
// Launches; in retry mode the op tells its contributors, too. `options` may be NULL: none.
pcclResult_t pccl_begin_reduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                               const pcclComm_t *comm, const pcclReduceOptions_t *options, struct pccl_ticket *ticket);
// The same, and then pccl_ticket_wait(ticket, milliseconds), if it was launched. Returns the result of either.
pcclResult_t pccl_reduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                         const pcclComm_t *comm, const pcclReduceOptions_t *options, struct pccl_ticket *ticket,
                         int milliseconds);
// Launches a collective over a group; with `survivors` it tells its contributors, too. `sequence` 0: its tag is that of
// the collective. 1: it is the next one of the calls that have this tag, which ends in 16 bits of 0; its number takes
// their place. 2: it is numbered among all calls of all members since the topology was updated. `ticket->number` is
// the tag. A call that is not launched takes no number.
pcclResult_t pccl_begin_collective(const pcclCollective_t *collective, const pcclComm_t *comm, int sequence,
                                   struct pccl_ticket *ticket);
// How many calls of sequence 1 with this tag were launched.
pcclResult_t pccl_ext_launched(const pcclComm_t *comm, uint64_t tag, uint32_t *out);
// Checks and copies all descriptors, and launches the first ops; waiting launches the others. The buffers belong to the
// ops until the wait has ended, or the communicator is destroyed. `options` has one for each descriptor, of which
// `retry`, `launch_only` and `timeout_ms` are not read; NULL: none.
pcclResult_t pccl_begin_multi(const pcclReduceOpDescriptor_t *descriptors, const pcclReduceOptions_t *options,
                              size_t count, const pcclComm_t *comm, int max_in_flight, struct pccl_ticket *ticket);
pcclResult_t pccl_begin_master_end(pcclMasterInstance_t *master, struct pccl_ticket *ticket);

// Waits, -1 = without a bound. pcclTimedOut: it goes on. Any other result is kept: asked again, it gives the same.
pcclResult_t pccl_ticket_wait(struct pccl_ticket *ticket, int milliseconds);
// Frees what a multi has, and touches nothing else: its communicator may be destroyed before or after. Ops in flight
// stay un-awaited until then. For other tickets, and a second time, it does nothing; NULL is allowed.
void pccl_ticket_free(struct pccl_ticket *ticket);

// Sets *fd_out to a descriptor that polls readable whenever a call of this communicator ends: an operation, a multi, a
// vote, a connect, a round of shared state, and all that are open when the communicator dies or is stopped. An event
// loop watches it in place of a thread in each wait:
//   1. When it is readable, read 8 bytes from it. It does not block; EAGAIN is harmless.
//   2. Then call pccl_ticket_wait(ticket, 0) for each open ticket. pcclTimedOut: that one goes on.
// One event may stand for several ends, and an event may come without one. The descriptor is readable at first, so no
// end is missed before the first request.
// A multi launches further operations, and a round of shared state hashes its tensors, inside pccl_ticket_wait only:
// give a round one wait on a thread first.
// The first request makes the descriptor, further ones return the same, and reconnecting keeps it. Destroying the
// communicator closes it; take it out of event loops before. In a forked child it is closed.
// pcclInternalError: the system refused a descriptor.
pcclResult_t pccl_ext_comm_event_fd(const pcclComm_t *comm, int *fd_out);

// Describes the round of shared state under way on this communicator, or the last one that ended; all 0 before the
// first.
struct pccl_sync_report {
    uint64_t tx_bytes, rx_bytes, rx_leaves; // tx_bytes is known at the end
    // of rx_bytes, what went over links: less where leaves came packed or through shared memory
    uint64_t wire_bytes;
    uint64_t missing_bytes;                         // still to be received
    uint32_t donors;                                // that this peer has received from
    bool hashing;                                   // it hashes its own state still
    double seconds, hash_seconds, transfer_seconds; // of the whole call; of its own hash; since the others were there
};
pcclResult_t pccl_ext_sync_report(const pcclComm_t *comm, struct pccl_sync_report *out);

// The content hash of a state: low and high half. The same for the same bytes in the same entries, on every peer and
// machine. `entries_out` gets both halves of each entry's own hash, in the order of the entries, 0 for one with
// allow_content_inequality; NULL: they are not wanted.
pcclResult_t pccl_ext_state_hash(const pcclSharedState_t *shared_state, uint64_t *low_out, uint64_t *high_out,
                                 uint64_t *entries_out);

// Like pcclGetMembers, for the snapshot. Returns pcclRankConnectionLost if the members are unknown because some were
// lost together with a master; pcclUpdateTopology makes a new snapshot.
pcclResult_t pccl_ext_snapshot_members(const pcclComm_t *comm, pcclRankUuid_t *uuids_out, size_t capacity,
                                       size_t *count_out);

// Whether a member has posted a small send of this tag that was not received here; for receives from any source.
pcclResult_t pccl_ext_posted(const pcclComm_t *comm, uint64_t tag, const pcclRankUuid_t *member, bool *posted_out);

// The instruction set the kernels use here, as a name ("portable", "avx2", ...) and the number of its level.
int pccl_ext_cpu_level(const char **name_out);

// How many GPUs the CUDA driver has found, and what they are called, with commas, cut to `capacity`; 0: none can be
// used, and the text says why. Loads the driver, see pcclGetBuildInfo.
int pccl_ext_cuda(char *text_out, size_t capacity);
// Whether the library has kernels for GPUs, and with `load` whether the first GPU takes them, whose primary context is
// made for that. If not, the text says why; it is cut to `capacity`.
bool pccl_ext_cuda_kernels(bool load, char *text_out, size_t capacity);
// Returns the kernels as the driver takes them (cuModuleLoadData), for benchmarks; NULL if there are none.
const void *pccl_ext_cuda_fatbin(void);
// Whether this is memory of a GPU that the driver of this process knows. Loads neither the driver nor libpccl_cuda.so.
bool pccl_ext_is_at_gpu(const void *memory);

// ---- relays ----

// A relay for two peers that nobody can dial, with a thread of its own (docs/addresses.md).
struct pccl_ext_relay;
// Listens at the address, and joins up to `links` connections of peers that prove to have these keys, which are as for
// pccl_ext_comm_configure; NULL: of all. The caller frees it. pcclInvalidArgument: the keys cannot be used.
// pcclInvalidUsage: it cannot listen there. Needs no pcclInit.
pcclResult_t pccl_ext_relay_new(const ccoip_socket_address_t *address, const char *keys, uint32_t links,
                                uint16_t *port_out, struct pccl_ext_relay **out);
// How many links it relays now, and how many bytes it has passed on.
void pccl_ext_relay_counts(const struct pccl_ext_relay *relay, uint32_t *links_out, uint64_t *bytes_out);
void pccl_ext_relay_free(struct pccl_ext_relay *relay); // NULL is allowed

// ---- diagnosis (docs/diagnosis.md) ----

// A question to a master, waited for in pieces. One thread at a time.
struct pccl_status_query;
// Asks the master of this communicator's run, which has `limit_ms` to answer. Like pcclDiagnose. Any thread; the
// communicator may be destroyed meanwhile.
pcclResult_t pccl_ext_diagnose_begin(const pcclComm_t *comm, uint32_t limit_ms, struct pccl_status_query **out);
// Asks the master at `address` about its run of this name ("": the one without a name); no peers: there is none. A
// master whose run has the same keys tells everything, and so does one of the same user on this host, unless `keys`
// names some, which have to be its own then; any other one only counts. `keys` and `insecure` as for
// pccl_ext_master_has_run. Needs no pcclInit.
pcclResult_t pccl_ext_diagnose_begin_run(const ccoip_socket_address_t *address, const char *run, const char *keys,
                                         bool insecure, uint32_t limit_ms, struct pccl_status_query **out);
// pcclTimedOut: it goes on. pcclMasterConnectionFailed: no master has answered in time. Any other result ends it.
pcclResult_t pccl_ext_diagnose_wait(struct pccl_status_query *query, uint32_t milliseconds, pcclDiagnosis_t **out);
void pccl_ext_diagnose_end(struct pccl_status_query *query); // NULL is allowed

// ---- links ----

// Writes what the links to the other members of the group are like (data/link_report.h), in the order of the ring, up
// to `capacity` of them; `count_out`: how many there are. Any thread, also while ops are under way; asks nobody but the
// kernel. pcclInvalidUsage: not connected.
pcclResult_t pccl_ext_links(const pcclComm_t *comm, struct link_report *out, size_t capacity, size_t *count_out);

// ---- log ----

// A line of the log, for a program with a log of its own.
struct pccl_log_line {
    int64_t time_ns;    // since 1970
    int level;          // 0 TRACE, DEBUG, INFO, NOTICE, WARN, ERR, 6 FATAL
    uint32_t dropped;   // lines before this one that found the queue full
    char component[16]; // "master", "peer" or "config"
    char text[960];
};

// Queues log lines of this process from now on, in place of writing them to standard error. Returns a descriptor that
// polls readable when there are lines: read 8 bytes, then take all lines. Negative: the system refuses, or this is a
// forked child of a process that queues. The library's threads never wait for the reader.
int pccl_ext_log_begin(void);
// Lines go to standard error again. Those in the queue stay to be taken.
void pccl_ext_log_end(void);
// False: there is none.
bool pccl_ext_log_take(struct pccl_log_line *out);
// Writes a line that was taken to standard error.
void pccl_ext_log_write(const struct pccl_log_line *line);
// Sets the least level of the log, 7 for none, unless PCCL_LOG_LEVEL names one.
void pccl_ext_log_prefer(int level);

// The environment variable at this index, in alphabetical order; `meaning_out` may be NULL. NULL beyond the last.
const char *pccl_ext_environment(size_t index, const char **meaning_out);

// Whether these bytes of the CPU's memory are mapped writable, by the first and the last of them.
bool pccl_ext_can_write(void *memory, size_t bytes);
// Copies memory of the CPU; the two do not overlap. Callers need not hold the interpreter's lock meanwhile.
void pccl_ext_copy(void *to, const void *from, size_t bytes);

// Whether the build has LZ4, which packs shared state for slow links.
bool pccl_ext_has_lz4(void);
// Whether the build can encrypt.
bool pccl_ext_has_tls(void);

#endif
