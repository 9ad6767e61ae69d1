// What the members of a run tell of their ops and of each other (TELEMETRY), kept for whoever asks (DIAGNOSE), and for
// the choice of ways and shares (master/ways). Who belongs to the run does not rest on it, and no bit of a result does:
// a member that lies spoils what is said of the members that it speaks of, and the speed of its group. Memory that is
// refused loses a report.
#ifndef PCCL_MASTER_MATRIX_H
#define PCCL_MASTER_MATRIX_H

#include "master/desk.h"
#include "topology/shares.h"

enum { MATRIX_ANSWER_MS = 100, MATRIX_BEGUN = 4, MATRIX_SENT = 4 };

// What the last reports that tell of any said of another member, each newest first.
struct matrix_recent {
    // When it began ops. One long pause would outweigh for long what comes after it if it faded.
    struct {
        uint64_t entries, late_us, early_us;
    } begun[MATRIX_BEGUN];
    // What was sent to it, and how much of that again; reports of few segments are taken together. Where a queue
    // overflows once, as at the beginning of an op after a pause, nothing is lost on the way: so the report with the
    // largest share sent again counts with the share of the one that comes next.
    struct {
        uint64_t segments, retransmits;
    } sent[MATRIX_SENT];
};

// Of one member. Counts are in parts of one (WIRE_COUNT).
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
    // What belongs to one group epoch as a whole: without the first report of it, part of which is older.
    uint64_t epoch;
    uint32_t reports;            // since matrix_look
    struct wire_telemetry fresh; // plain sums since then
};

// All zero at the beginning.
struct matrix {
    struct matrix_row *rows[WIRE_MAX_MEMBERS]; // by the peer's slot; NULL: it has told nothing
    struct wire_buffer answer;                 // the last one,
    int64_t answered_ns;                       // and when it was made; 0: never
};

void matrix_fini(struct matrix *matrix);
void matrix_note(struct matrix *matrix, struct desk *desk, const struct desk_peer *peer,
                 const struct wire_telemetry *told);
// What is seen of each edge of a group since its group epoch began, count x count; `edges` has room for that. False:
// too little since the last time that this was true, or the group has more members than SHARES_MOST.
bool matrix_look(struct matrix *matrix, struct desk *desk, const struct desk_group *group, struct shares_edge *edges);
// Appends the answer to a stranger's DIAGNOSE as one frame: how many members there are, and no id, name or address.
void matrix_count(const struct desk *desk, struct wire_buffer *out);
// Appends the answer to a member's DIAGNOSE as one frame, which is made anew once in MATRIX_ANSWER_MS at most: the
// members of the epoch in force, and what they see of each other. Of very many members each tells of a few alone, its
// neighbours in the ring first.
void matrix_describe(struct matrix *matrix, struct desk *desk, int64_t now_ns, struct wire_buffer *out);

#endif
