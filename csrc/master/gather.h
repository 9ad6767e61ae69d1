// Gathering the members of a run which another master has left. This master knows nothing; the run is what its members
// know. So while it has no run of its own it gathers those that come with RESUME, and when more than half of the newest
// epoch that any of them has entered are here - all of them, or after the heartbeat limit - it asks them for the
// promise to listen to no older generation. Two majorities share a member, so of two masters that gather at the same
// time one hears of the other's generation and takes a higher one. Newcomers wait meanwhile, each with its HELLO held
// back. A master that has given the run up itself knows one thing more: who was in it (gather_decide).
#ifndef PCCL_MASTER_GATHER_H
#define PCCL_MASTER_GATHER_H

#include "master/membership.h"
#include "master/survivors.h"

enum { GATHER_HOLD_MS = 60000 }; // a newcomer waits no longer for a run to be taken up

struct gather {
    bool standby;             // see core_set_standby
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
void gather_fini(struct gather *gather);

// A newcomer comes. False: it is to be registered.
bool gather_hold(struct gather *gather, struct membership *table, uint32_t conn, const struct wire_address *source,
                 const struct wire_hello *hello);
// A member of a run that has lost its master comes, or a newcomer that waited there.
void gather_resume(struct gather *gather, struct membership *table, const struct resumption *from);
// Numbers that no run comes near would overflow in what follows.
bool gather_is_sound(const struct resumption *from);
void gather_message(struct gather *gather, struct membership *table, struct survivor *survivor,
                    const struct wire_header *header);
void gather_turn_away(struct gather *gather, struct membership *table, struct survivor *survivor, enum wire_type type,
                      const char *why);
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
// Says to the log, and to all that wait, for whom.
void gather_say(struct gather *gather, struct membership *table, const struct configuration *config);
// Whether a newcomer that came over loopback, or not, is of the kind of most newcomers that wait.
bool gather_suits(const struct gather *gather, bool loopback);

// Lets those go that are silent, or have waited too long.
void gather_tick(struct gather *gather, struct membership *table);
void gather_beat(struct gather *gather, struct membership *table); // heartbeats to all
// Extends the deadlines after this master was stopped, so that the remaining members get their full time.
void gather_woke(struct gather *gather, const struct membership *table);
int64_t gather_next_deadline(const struct gather *gather, const struct membership *table);

#endif
