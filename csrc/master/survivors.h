// Keeps the peers that connect while this master serves no run: members of a run that another master has left, and
// newcomers that wait until it is known whether there is a run. Finds them by connection, and by run and id.
//
// A survivor reports its configuration: the epoch that it was in when it lost its master. A configuration is kept once
// for all that report it, with the number of its members that are here, counted as they come and go. So an event costs
// one search in each configuration of its run, and no comparison of all with all.
#ifndef PCCL_MASTER_SURVIVORS_H
#define PCCL_MASTER_SURVIVORS_H

#include "master/membership.h"

struct configuration {
    struct run_identity run;
    uint64_t generation, number, digest; // digest: of the members
    struct wire_quorum quorum;
    bool newest;                   // of its run; of two that are, the one that was made first
    uint32_t holders;              // survivors that report it
    uint32_t present, old_members; // of its members, those that are here; old_members: of these
    uint32_t count;
    uint16_t *sorted; // behind `members`: their places by id
    struct wire_member members[];
};

struct survivor {
    uint32_t conn;
    struct wire_address source;
    int64_t since_ns, heard_ns, told_ns; // told: why it waits; 0: not yet
    bool resumes;                        // else a newcomer whose HELLO is held back
    struct run_identity run;
    uint64_t promised;            // to listen to no older generation, to any master; or asked to
    bool asked, gave;             // the promise of the generation at hand
    struct wire_resume resume;    // owns its arrays but for the members of its epoch
    struct configuration *config; // of its epoch; NULL: it has been accepted nowhere
    struct survivor *next_by_id;  // in its bucket, of those that resume
};

struct survivors {
    uint64_t key;   // spreads ids over buckets, and is part of digests
    bool due;       // one came, went or promised, or the owner says so: what they wait for is looked at again
    int64_t due_ns; // nobody is silent, or has waited too long, before
    uint32_t count, configuration_count;
    struct survivor *by_conn[ACTIONS_MAX_CONNS];
    struct survivor *by_id[MEMBERSHIP_ID_BUCKETS]; // those that resume
    // From here on nothing is read before it is written. Both owned, in the order in which they came first.
    struct survivor *list[WIRE_MAX_MEMBERS];
    struct configuration *configurations[WIRE_MAX_MEMBERS];
};

void survivors_init(struct survivors *survivors, uint64_t key);
void survivors_fini(struct survivors *survivors);

struct survivor *survivors_of_conn(const struct survivors *survivors, uint32_t conn); // NULL: none
struct survivor *survivors_of_id(const struct survivors *survivors, const struct run_identity *run,
                                 const struct wire_id *id);                           // NULL: none
bool survivor_is_of(const struct survivor *survivor, const struct run_identity *run); // it resumes that run

// NULL: no place, or no memory.
struct survivor *survivors_add(struct survivors *survivors, struct membership *table, uint32_t conn,
                               const struct wire_address *source);
// Records the RESUME of a member that has lost its master. Returns false if memory is refused; then forget the
// survivor.
bool survivors_resume(struct survivors *survivors, struct survivor *survivor, const struct run_identity *run,
                      const struct wire_resume *resume);
void survivors_forget(struct survivors *survivors, struct survivor *survivor);

// ---- configurations ----

// The one that a peer of that run would make; NULL: nobody has made it.
struct configuration *survivors_find_configuration(const struct survivors *survivors, const struct run_identity *run,
                                                   const struct wire_resume *resume);
// Returns the configuration with a majority here, over all runs; otherwise the one with most members here; NULL if
// there is none.
struct configuration *survivors_best_configuration(const struct survivors *survivors);
// Returns a member of a configuration, if it is here.
struct survivor *survivors_member(const struct survivors *survivors, const struct configuration *config,
                                  uint32_t member);
uint32_t configuration_quorum(const struct configuration *config);
bool configuration_has_majority(const struct configuration *config); // of NULL: no
// Returns the end of the group whose members begin at `begin`.
uint32_t configuration_group_end(const struct configuration *config, uint32_t begin);

#endif
