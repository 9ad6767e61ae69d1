// Gathering the members of a run which another master has left. This master knows nothing; the run is what its members
// know. So while it has no run of its own it gathers those that come with RESUME, and when more than half of the newest
// epoch that any of them has entered are here - all of them, or after the heartbeat limit - it asks them for the
// promise to listen to no older generation. Two majorities share a member, so of two masters that gather at the same
// time one hears of the other's generation and takes a higher one. Newcomers wait meanwhile, each with its HELLO held
// back. A master that has given the run up itself knows one thing more: who was in it (gather_decide).
//
// The peers that wait meanwhile are survivors: members of a run that another master has left, and newcomers that wait
// until it is known whether there is a run. They are found by connection, and by run and id. A survivor reports its
// configuration: the epoch that it was in when it lost its master. A configuration is kept once for all that report it,
// with the number of its members that are here, counted as they come and go. So an event costs one search in each
// configuration of its run, and no comparison of all with all.
#ifndef PCCL_MASTER_GATHER_H
#define PCCL_MASTER_GATHER_H

#include "master/membership.h"

struct run;

enum { GATHER_HOLD_MS = 60000 }; // a newcomer waits no longer for a run to be taken up

// Told to members whose run goes on without them, or is another one.
extern const char GATHER_WRONG_SECRET[], GATHER_ANOTHER_RUN[];

// ---- survivors and what they report: survivors.c ----

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
static inline struct survivor *survivors_member(const struct survivors *survivors, const struct configuration *config,
                                                uint32_t member) {
    return survivors_of_id(survivors, &config->run, &config->members[member].id);
}
uint32_t configuration_quorum(const struct configuration *config);
bool configuration_has_majority(const struct configuration *config); // of NULL: no
// Returns the end of the group whose members begin at `begin`.
uint32_t configuration_group_end(const struct configuration *config, uint32_t begin);

// ---- gathering: gather.c ----

struct gather {
    bool standby;             // see core_settings
    bool others_awaited;      // what other masters do is not known yet
    bool others_busy;         // one of them has a run, or gathers: none is begun beside that
    int64_t majority_at;      // since when enough are here; INT64_MAX: they are not
    int64_t say_at;           // the next line of the log
    uint64_t said_epoch;      // of the run whose members were said to be waited for; 0: of none
    uint64_t run, generation; // promises are asked for these; 0: for none yet
    struct survivors survivors;
};

// A RESUME: over which connection it came, and what it says.
struct resumption {
    uint32_t conn;
    const struct wire_address *source;
    struct run_identity run;
    uint64_t promised;
    const struct wire_resume *resume;
};

void gather_init(struct gather *gather, uint64_t key);
static inline void gather_fini(struct gather *gather) { survivors_fini(&gather->survivors); }

// A newcomer comes. False: it is to be registered.
bool gather_hold(struct gather *gather, struct membership *table, uint32_t conn, const struct wire_address *source,
                 const struct wire_hello *hello);
// A member of a run that has lost its master comes, or a newcomer that waited there.
void gather_resume(struct gather *gather, struct membership *table, const struct resumption *from);
void gather_message(struct gather *gather, struct membership *table, struct survivor *survivor,
                    const struct wire_header *header);
// Takes the activity of the busiest other master. If that one serves a run, redirects to it all survivors that are too
// few to resume their own.
void gather_hear_others(struct gather *gather, struct membership *table, enum wire_activity most);

enum gather_verdict {
    GATHER_WAITS,
    GATHER_BEGINS,   // nobody waits for a run: those that are left may begin a new one
    GATHER_TAKES_UP, // survivors_best_configuration
};
// While there is no run.
enum gather_verdict gather_decide(struct gather *gather, struct membership *table);
// Whether a newcomer that came over loopback, or not, is of the kind of most newcomers that wait.
bool gather_suits(const struct gather *gather, bool loopback);

// ---- from gathering to a run ----

// Registers a newcomer, unless most newcomers that wait reached the master over another kind of address.
void gather_enrol(struct gather *gather, struct run *run, uint32_t conn, const struct wire_address *source,
                  const struct wire_hello *hello);
// Looks again at what survivors wait for: begins a run, takes one over, or lets a young run give way to an older one.
// True: peers have come or gone.
bool gather_settle(struct gather *gather, struct run *run);
// Until when those that gather beside a young run wait. There are some.
int64_t gather_yields_until(const struct gather *gather, const struct run *run);

// ---- time ----

// Lets those go that are silent, or have waited too long.
void gather_tick(struct gather *gather, struct membership *table);
void gather_beat(struct gather *gather, struct membership *table); // heartbeats to all
// Extends the deadlines after this master was stopped, so that the remaining members get their full time.
void gather_woke(struct gather *gather, const struct membership *table);
int64_t gather_next_deadline(const struct gather *gather, const struct membership *table);

#endif
