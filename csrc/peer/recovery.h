// The search for a master, as a peer's state machine keeps it. Pure.
//
// A peer acts on one master at a time: with RESUME it has done with all masters before. What it promised to one, it
// tells the next, so that of two masters that gather at once one has the higher generation; to that it belongs once it
// has entered an epoch of it. Not before that ends what the old generation had ended, for a master that is lost between
// the two leaves everything as it was.
#ifndef PCCL_PEER_RECOVERY_H
#define PCCL_PEER_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/decision.h"

enum {
    RECOVERY_ANSWER_MS = 1000, // from RESUME to the first frame of a master, where there are others
    RECOVERY_TEXT = WIRE_MAX_TEXT + 64,
};

enum recovery_state {
    RECOVERY_NONE,
    RECOVERY_SEEKING, // no connection to a master
    RECOVERY_TOLD,    // RESUME sent
    RECOVERY_RESUMED, // the new generation is accepted, its first epoch is to come
};

struct recovery {
    enum recovery_state state;
    uint32_t limit_ms; // for how long a master is looked for; 0: not at all
    uint32_t masters;  // in the list
    uint64_t promised; // no master of a lower generation is listened to
    int64_t deadline;
    int64_t waits_until; // at the master that was told RESUME, if there are earlier ones in the list, else INT64_MAX
    int64_t answer_by;   // of a master that was told RESUME; 0: it has answered
    char lost_why[RECOVERY_TEXT];
    struct wire_text waits_why; // as a master said; ends with 0
    struct {
        bool vote, sync;
        struct member_view view; // to be adopted then
    } late;                      // what EPOCH will end
    struct wire_resumed resumed;

    // Nothing of these is read before it is written.
    struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    struct wire_loss losses[WIRE_MAX_MEMBERS];
};

void recovery_init(struct recovery *r, uint32_t limit_ms, uint32_t masters);
// The master is lost, or the one found instead.
void recovery_begin(struct recovery *r, const char *why, int64_t now_ns);
// RESUME goes out; `limit_ns` is after how long a silent master counts as lost. `earlier`: there are earlier masters in
// the list, where by now more may be than at this one.
void recovery_tell(struct recovery *r, bool earlier, int64_t limit_ns, int64_t now_ns);
// A master gathers for this generation. True: it is promised, and waited for; who leaves now breaks its majority.
bool recovery_promise(struct recovery *r, uint64_t generation, int64_t limit_ns, int64_t now_ns);
// RESUMED of the generation that was promised, for a member of `group` that knows of its group epoch `known`, or of a
// loss in it; 0: of none. False: malformed.
bool recovery_take_resumed(struct recovery *r, const uint8_t *body, size_t length, uint32_t group, uint64_t known);
// WAITING. False: malformed.
bool recovery_take_waiting(struct recovery *r, const uint8_t *body, size_t length);
void recovery_end(struct recovery *r);

// Whether it has waited for long enough at a later master of the list.
bool recovery_looks_again(const struct recovery *r, int64_t now_ns);
// Whether nobody hears what this peer says now.
bool recovery_is_unheard(const struct recovery *r);
// Returns one of the losses that RESUMED reported, as far as `now`, the first view after them, shows it.
struct member_view recovery_loss(const struct recovery *r, uint32_t at, const struct member_view *now);

#endif
