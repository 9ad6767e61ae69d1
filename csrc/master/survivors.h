// Those that have come while this master serves no run: members of a run that another master has left, and newcomers
// that wait until it is known whether there is a run. Found by connection, and by run and id.
#ifndef PCCL_MASTER_SURVIVORS_H
#define PCCL_MASTER_SURVIVORS_H

#include "master/claims.h"
#include "master/desk.h"

struct survivor {
    uint32_t conn;
    struct wire_address source;
    int64_t since_ns, heard_ns, told_ns; // told: why it waits; 0: not yet
    bool resumes;                        // else a newcomer whose HELLO is held back
    struct desk_run run;
    uint64_t promised;         // to listen to no older generation, to any master; or asked to
    bool asked, gave;          // the promise of the generation at hand
    struct wire_resume resume; // owns its arrays but for the members of its epoch
    // Its epoch, held together with others that were in it; NULL: it has been accepted nowhere.
    struct claim *claim;
    struct survivor *next_by_id; // in its bucket, of those that resume
};

struct survivors {
    uint32_t count;
    bool due;       // one came, went or promised, or the owner says so: what they wait for is looked at again
    int64_t due_ns; // nobody is silent, or has waited too long, before
    struct survivor *by_conn[ACTIONS_MAX_CONNS];
    struct survivor *by_id[DESK_ID_BUCKETS]; // those that resume
    struct survivor *list[WIRE_MAX_MEMBERS]; // owned; in the order in which they came
    struct claims claims;
};

void survivors_init(struct survivors *survivors, uint64_t key);
void survivors_fini(struct survivors *survivors);

struct survivor *survivors_of_conn(const struct survivors *survivors, uint32_t conn); // NULL: none
struct survivor *survivors_of_id(const struct survivors *survivors, const struct desk *desk, const struct desk_run *run,
                                 const struct wire_id *id); // NULL: none
// A member of a claim, if it is here.
struct survivor *survivors_member(const struct survivors *survivors, const struct desk *desk, const struct claim *claim,
                                  uint32_t member);
bool survivor_is_of(const struct survivor *survivor, const struct desk_run *run); // it resumes that run

// NULL: no place, or no memory.
struct survivor *survivors_add(struct survivors *survivors, struct desk *desk, uint32_t conn,
                               const struct wire_address *source);
// What a member of a run that has lost its master says. False: no memory; it is to be forgotten.
bool survivors_resume(struct survivors *survivors, const struct desk *desk, struct survivor *survivor,
                      const struct desk_run *run, const struct wire_resume *resume);
void survivors_forget(struct survivors *survivors, const struct desk *desk, struct survivor *survivor);

#endif
