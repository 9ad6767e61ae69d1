// Claims of runs: the epochs that peers were in when they lost their master, each with how many of its members are
// here. Counted as members come and go, so that an event costs a search in each claim of its run, and no comparison of
// all with all.
#ifndef PCCL_MASTER_CLAIMS_H
#define PCCL_MASTER_CLAIMS_H

#include "master/desk.h"

struct claim {
    struct desk_run run;
    uint64_t generation, number, digest; // digest: of the members
    struct wire_quorum quorum;
    bool newest;              // of its run; of two that are, the one that was made first
    uint32_t holders;         // those that make it
    uint32_t present, elders; // of its members, those that are here; elders: of these
    uint32_t count;
    uint16_t *sorted; // behind `members`: their places by id
    struct wire_member members[];
};

struct claims {
    uint64_t key; // of digests
    uint32_t count;
    struct claim *list[WIRE_MAX_MEMBERS]; // owned; in the order in which they were first made
};

void claims_init(struct claims *claims, uint64_t key);
// The claim that a peer of that run makes, held from now on. Where `made`, none of its members are counted yet. NULL:
// memory was refused.
struct claim *claims_hold(struct claims *claims, const struct desk_run *run, const struct wire_resume *resume,
                          bool *made);
void claims_release(struct claims *claims, struct claim *claim);
// The same claim without holding it; NULL: nobody has made it.
struct claim *claims_find(const struct claims *claims, const struct desk_run *run, const struct wire_resume *resume);
// A peer of that run came (by 1) or goes (by -1).
void claims_count(struct claims *claims, const struct desk_run *run, const struct wire_id *id, int by);
// Of all runs the one with a majority here, else the one with most members here; NULL: there is no claim.
struct claim *claims_best(const struct claims *claims);

void claim_count_member(struct claim *claim, uint32_t member, int by);
uint32_t claim_quorum(const struct claim *claim);
bool claim_has_majority(const struct claim *claim); // of NULL: no
// Where the members of the group end that begin at `begin`.
uint32_t claim_group_end(const struct claim *claim, uint32_t begin);

#endif
