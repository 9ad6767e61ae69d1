// How the ops of one group end. A large op ends when all members are done. When the group epoch changes under running
// ops, members report where each op stood; when the reports are complete, every op in them gets a verdict. All messages
// to a peer take one path in order, so a COMMIT sent before an epoch is known to every survivor before it reports on
// that epoch: nobody asks about an op that is committed elsewhere.
#ifndef PCCL_MASTER_VERDICTS_H
#define PCCL_MASTER_VERDICTS_H

#include "master/membership.h"

// Ops by name, with one set of member ranks per state: who is done with an op, or who said what about it in a report.
// O(1) find and add; memory is taken at the first add. The bound is one per member, so that none of them can use up the
// room of the others.
struct op_table {
    uint32_t ranks, limit; // `limit`: ops that one member may have a state for
    uint32_t count, used, capacity, free;
    uint32_t *noted;   // by rank: ops that this member has a state for
    uint32_t *buckets; // 2 * capacity, a power of two
    uint8_t *entries;
};

// All zero until the group enters its first group epoch.
struct verdicts {
    struct op_table done;    // large ops of which some members are done
    struct op_table reports; // on the group epoch in force
    uint32_t missing;        // reports
    // Verdicts of the master before: DONE = COMMIT, OPEN = MISMATCH or CANCEL, by those that have them.
    struct op_table past;
};

void verdicts_fini(struct verdicts *verdicts);
void verdicts_begin(struct verdicts *verdicts, uint32_t members); // the group epoch was entered

// Handle a member's messages. They expel it for an impossible message and ignore messages of an older group epoch.
void verdicts_done(struct verdicts *verdicts, struct membership *table, struct peer_record *peer,
                   const struct wire_header *header, const struct wire_op_done *done);
void verdicts_mismatch(struct membership *table, struct peer_record *peer, const struct wire_header *header,
                       const struct wire_mismatch *mismatch);
void verdicts_cancel(struct membership *table, struct peer_record *peer, const struct wire_header *header,
                     const struct wire_cancel *cancel);
// Ends an op of the group's epoch on all members, unless all have completed it. `kind`: CANCEL or DEADLOCK.
void verdicts_end(struct membership *table, struct peer_group *group, const struct wire_op_name *name,
                  enum wire_verdict_kind kind, const char *text);
void verdicts_report(struct verdicts *verdicts, struct membership *table, struct peer_record *peer,
                     const struct wire_header *header, const struct wire_report *report);

// A run is taken up: what each member remembers of the verdicts of the master before, then what it has missed of those.
// The group's members are ranked, and verdicts_begin is still to come.
void verdicts_recall(struct verdicts *verdicts, struct membership *table, struct peer_record *peer,
                     const struct wire_resume *resume);
// `last`: how the last vote of all ended.
void verdicts_tell_mismatches(struct verdicts *verdicts, struct membership *table, struct peer_record *peer,
                              const struct wire_resume *resume, const struct wire_ended_vote *last);

#endif
