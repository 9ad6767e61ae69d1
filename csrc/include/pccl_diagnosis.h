// Part of pccl.h, which includes it: what the members of a run have seen of their ops and of each other.
// Findings are made of these figures by the Python package: Communicator.diagnose(), pccl top.
#ifndef PCCL_DIAGNOSIS_H
#define PCCL_DIAGNOSIS_H

// A member. Sums are over the last seconds in which ops of it ended.
typedef struct pcclDiagnosisMember_t {
    pcclRankUuid_t uuid;
    char name[64];
    uint64_t join_number;
    uint32_t group;
    char address[64];
    double silent_s;          // since the master has heard from it
    double told_s;            // since its last report, with what follows; -1: it has made none
    double span_s;            // that the sums of ops are of
    double recent_s;          // that the sums of its edges are of
    double ops, op_s;         // calls that ended, and the time from each one's launch to its end, together
    double processor_s;       // that the thread of its data plane had
    uint64_t live;            // calls that have not ended
    double oldest_s, still_s; // since the first of them was launched; since anything moved
    // The shared state after its last successful sync: the revision, and the hash (low and high half). 0 and 0: the
    // hash is not known, since another master served the run then.
    uint64_t state_revision, state_hash[2];
    bool synced;         // a sync has succeeded since it joined; else there is no state
    bool state_replaced; // it had synced before, and its content of this revision was another than its group's
} pcclDiagnosisMember_t;

// Measurements that one member has made of another one.
typedef struct pcclDiagnosisEdge_t {
    uint32_t member, other;          // places in the list of members: who reports, and about whom
    uint64_t awaited;                // calls under way of which nothing has come from there
    double acked_bytes, busy_s;      // sent there and acknowledged; while bytes were under way
    double window_s;                 // of busy_s, while the receive window there was full
    double segments, retransmits;    // sent with data; sent again all the time, not in bursts
    double samples, backlogged;      // looks while a large op ran; those that found bytes waiting to be sent
    double loaded_s;                 // the mean round trip at these; 0: there were none
    double entries, late_s, early_s; // ops in which it comes next; how much later, and earlier, it was heard to begin
    double round_trip_s;             // the shortest of late
    double queue_s;                  // how much longer than at best what it sends to `member` is on its way
    bool by_memory;                  // large tensors pass by memory, so the numbers of bytes and times say little
    uint32_t lanes;                  // that carry large tensors, beside the direct connection
    const char *reason;              // why so many do; static
} pcclDiagnosisEdge_t;

// A number of a member's program (in Python: Communicator.report).
typedef struct pcclDiagnosisNumber_t {
    uint32_t member; // its place in the list of members
    char name[40];
    double value;
} pcclDiagnosisNumber_t;

// A peer on its way into the run.
typedef struct pcclDiagnosisJoiner_t {
    pcclRankUuid_t uuid;
    char name[64];
    uint32_t group;
    char address[64];
    int joining; // 0: it copies the state; 1: waits to be admitted; 2: makes its links; 3: first sync; 4: spare
    uint64_t done, total;      // bytes that it has of the state; 0 and 0: there is none yet, or it does not copy it
    double progress_s, wait_s; // in which it has done so; since it came, or of 3 since it called sync_shared_state
} pcclDiagnosisJoiner_t;

// A member that is gone.
typedef struct pcclDiagnosisDeparture_t {
    pcclRankUuid_t uuid;
    char name[64];
    uint32_t group, rank; // rank: in its group, before it went
    // 0: unknown; 1: died; 2: silent; 3: unreachable; 4: expelled; 5: drained; 6: left; 7: its program ended
    int reason;
    double ago_s;
    char why[128]; // what the master says of it
} pcclDiagnosisDeparture_t;

typedef struct pcclDiagnosis_t {
    double heartbeat_limit_s;
    bool counts_only;    // the master told a stranger no more than the two counts below
    uint32_t peer_count; // members of the run
    uint64_t epoch;      // in force
    size_t member_count, edge_count;
    pcclDiagnosisMember_t *PCCL_NULLABLE members; // in the order of the ring, group by group
    pcclDiagnosisEdge_t *PCCL_NULLABLE edges;     // of very many members, a part
    uint64_t generation, votes; // of the master, which grows with each master of the run; votes that have ended
    size_t number_count;
    pcclDiagnosisNumber_t *PCCL_NULLABLE numbers; // likewise
    size_t joiner_count;
    pcclDiagnosisJoiner_t *PCCL_NULLABLE joiners; // at most 24
    size_t departure_count;
    pcclDiagnosisDeparture_t *PCCL_NULLABLE departures; // the last ones, at most 64, the newest last
} pcclDiagnosis_t;

// Asks the master what the members have seen of their ops and of each other in the last seconds. The caller frees *out
// with pcclDiagnosisFree. Any thread, also while ops are under way; waits for the master for at most 3 s.
// pcclMasterConnectionFailed: no master answers. pcclInvalidUsage: not connected.
PCCL_EXPORT pcclResult_t pcclDiagnose(const pcclComm_t *comm, pcclDiagnosis_t **out);
// Frees a diagnosis; NULL is allowed.
PCCL_EXPORT void pcclDiagnosisFree(pcclDiagnosis_t *PCCL_NULLABLE diagnosis);

#endif
