// Keeps the members' reports of their operations and of each other (TELEMETRY), for whoever asks (DIAGNOSE) and for
// the selection of algorithms and weights (master/selection). Membership and results do not depend on it. A member
// that lies spoils only the statistics of the members that it reports on, and the speed of its group. If memory is
// refused, a report is lost.
#ifndef PCCL_MASTER_MATRIX_H
#define PCCL_MASTER_MATRIX_H

#include "master/membership.h"
#include "topology/topology.h"

// Counts are kept in parts of one, since sums fade: so many are 1.
#define MATRIX_PARTS UINT64_C(1000)

enum {
    MATRIX_ANSWER_MS = 100, // ms between two encodings of the answer, at least
    MATRIX_BEGUN = 4,       // reports with the beginnings or ends of operations that are kept
    MATRIX_SENT = 4,        // reports with sent segments that are kept
};

// The last reports with data about another member, each newest first.
struct matrix_recent {
    // When it began ops. One long pause would outweigh for long what comes after it if it faded.
    struct {
        uint64_t entries, late_us, early_us;
    } begun[MATRIX_BEGUN];
    // Segments sent to the member, and how many were retransmitted; reports of few segments are merged. A queue that
    // overflows once, for example when an operation begins after a pause, is no loss on the path. Therefore the report
    // with the largest retransmitted part counts with the fraction of the next largest.
    struct {
        uint64_t segments, retransmits;
    } sent[MATRIX_SENT];
};

// The row of a member. Counts are in parts of one (MATRIX_PARTS).
struct matrix_row {
    struct wire_id id;
    int64_t told_ns;
    struct wire_telemetry sums;
    struct matrix_recent recent[WIRE_MAX_SEEN]; // of each of `sums.others`
    uint64_t recent_us;                         // that the sums of others are of
    // The last reports in which ops ended, newest first: as many as tell when ops began, so that both are of the same.
    struct {
        uint64_t ops, op_us, span_us, processor_us;
    } ended[MATRIX_BEGUN];
    uint64_t open_us, open_processor_us; // since an op has ended: not in the sums of ops yet
    // Sums of one group epoch, without its first report, part of which is older.
    uint64_t epoch;
    uint32_t reports;            // since matrix_look
    struct wire_telemetry fresh; // plain sums since then
    struct wire_numbers numbers; // the last that its program has told
};

// All zero at the beginning.
struct matrix {
    struct matrix_row *rows[WIRE_MAX_MEMBERS]; // by the peer's slot; NULL: it has told nothing
    struct wire_buffer answer;                 // the last one,
    int64_t answered_ns;                       // when it was made; 0: never
    uint64_t answered_epoch;                   // and the epoch in force then
};

void matrix_fini(struct matrix *matrix);
void matrix_note(struct matrix *matrix, struct membership *table, const struct peer_record *peer,
                 const struct wire_telemetry *told);
// Keeps the numbers of a member's program, in place of those before.
void matrix_note_numbers(struct matrix *matrix, struct membership *table, const struct peer_record *peer,
                         const struct wire_numbers *told);
// Writes the measurements of each edge of a group since its group epoch began, count x count; `edges` has room for
// them. Returns false if too little is new since it last returned true, or if the group has more members than
// WEIGHTS_MOST.
bool matrix_look(struct matrix *matrix, struct membership *table, const struct peer_group *group,
                 struct weights_edge *edges);
// Appends the answer to a stranger's DIAGNOSE as one frame: how many members there are, and no id, name or address.
void matrix_count(int64_t heartbeat_limit_ns, uint32_t peers, uint64_t epoch, struct wire_buffer *out);
// Appends the answer to a member's DIAGNOSE as one frame, which is made anew once in MATRIX_ANSWER_MS and in each epoch
// at most: the members of the epoch in force, what they see of each other, peers on their way into the run, and the
// members that went last. Of very many members each tells of a few alone, its neighbours in the ring first. `votes`:
// how many have ended in the run.
void matrix_describe(struct matrix *matrix, struct membership *table, uint64_t votes, int64_t now_ns,
                     struct wire_buffer *out);

#endif
