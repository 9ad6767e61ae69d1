// A peer's control state machine: membership, links, votes and adoption, as seen by one peer. Pure: no sockets, no
// clock, no threads. Every event takes the time and appends actions to `struct member_output`; the body (peer/control)
// carries them out in order, before it feeds the next event. A simulator can do the same.
//
// WIRE_MAX_MEMBERS and the pool sizes bound what the state machine keeps per event. When memory is refused, it sets
// `output.failed`, and the body must let the communicator die.
//
// The state machine does no locking. The body guards it with one lock.
#ifndef PCCL_PEER_MEMBER_H
#define PCCL_PEER_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/decision.h"
#include "peer/leaving.h"

enum {
    MEMBER_JOIN_LIMIT_MS = 5000, // from the first dial to WELCOME
    MEMBER_TEXT = WIRE_MAX_TEXT + 64,
};

enum member_phase {
    MEMBER_IDLE,
    MEMBER_JOINING,    // HELLO sent, no WELCOME yet
    MEMBER_REGISTERED, // newcomer
    MEMBER_ACCEPTED,
    MEMBER_DEAD, // was JOINING or later; `text` says why
};

struct member_settings {
    uint32_t spare_lanes;       // that it has room for (peer/mesh)
    uint32_t recovery_limit_ms; // for how long a lost master is waited for, 0: not at all
    uint32_t masters;           // in the list; 0 counts as 1
    bool join_only;             // it is refused where no run goes on, rather than begin one
    bool precopy;               // it copies the state before it is admitted, from donors that it is told
    bool relay;                 // there is one, at which it meets others that nobody can dial either
    struct wire_limits limits;  // how many members it wants its run to have; the same at all peers
    struct wire_name name;      // that it tells the master; clean
    struct wire_reach reach;    // where it can be dialled, with ports of 0 where it listens
    uint32_t cards;             // from which it dials
};

struct member;

// A state machine in phase IDLE that will join as `id`. NULL when memory is refused.
struct member *member_new(const struct wire_id *id, uint32_t group, uint32_t lanes);
// Takes the settings, before it joins. Until then they count as 0.
void member_configure(struct member *member, const struct member_settings *settings);
// Sets its end of the connection to the master, before HELLO or RESUME.
void member_set_local(struct member *member, const struct wire_address *local);
void member_free(struct member *member);

// ---- events ----
// The connection to the master is made and links are awaited on `port`: HELLO. Ends with MEMBER_CONNECT_END.
void member_join(struct member *member, uint16_t port, int64_t now_ns, struct member_output *out);
// The master could not be reached, or its connection broke. A peer that has registered looks for another one
// (MEMBER_SEEK).
void member_disconnected(struct member *member, const char *why, int64_t now_ns, struct member_output *out);
// After MEMBER_SEEK: a master is connected; `earlier`: there are earlier ones in the list. No frame may go to it before
// what this one says. `content`: of the open round of shared state, if the tensors are no longer those that were voted
// with: what they hold now, or NULL if that is nothing whole. They must not be written from now until the next plan.
void member_resume(struct member *member, uint16_t port, bool earlier, enum member_tensors tensors,
                   const struct wire_hash *content, int64_t now_ns, struct member_output *out);
// Handles a frame of the master whose header was decoded.
void member_frame(struct member *member, const struct wire_header *header, const uint8_t *body, int64_t now_ns,
                  struct member_output *out);
void member_tick(struct member *member, int64_t now_ns, struct member_output *out);
// Takes the round trip to the master, measured before a tick: a long one makes the peer more patient.
void member_round_trip(struct member *member, int64_t round_trip_ns);
// The next time at which member_tick has something to do; INT64_MAX = never.
int64_t member_deadline(const struct member *member);

// The copy of the state has come so far. `over`: it is up to date, cannot catch up, or nobody gives one any more, so
// the newcomer may be admitted.
void member_copied(struct member *member, bool over, const struct wire_progress *progress, struct member_output *out);

// An incoming link or measurement. ACCEPT of a data link must be followed by member_link_up.
enum member_judgement member_judge_hello(const struct member *member, const struct wire_link_hello *hello);
// A link is up, over the connection with this serial number: one that was up before is replaced.
void member_link_up(struct member *member, const struct wire_id *id, uint32_t index, uint64_t serial,
                    uint32_t latency_us, int64_t now_ns, struct member_output *out);
// The other end of a dial has proved that it is this member. Its answer is awaited.
void member_link_proved(struct member *member, const struct wire_id *id, uint32_t index, int64_t now_ns,
                        struct member_output *out);
// Large packets seem to be lost on the way to a member, or from there.
void member_link_narrow(struct member *member, const struct wire_id *id);
// a dial
void member_link_failed(struct member *member, const struct wire_id *id, uint32_t index, struct member_output *out);
// The connection with this serial number broke; if another one has replaced it, only a malformed frame counts. The
// sender's own id: the data plane wants a fresh group epoch.
void member_link_lost(struct member *member, const struct wire_id *id, uint32_t index, uint64_t serial,
                      enum wire_link_reason reason, int64_t now_ns, struct member_output *out);
void member_measured(struct member *member, const struct wire_id *from, const struct wire_id *to, uint64_t bytes_per_s,
                     struct member_output *out);

// Opens a vote; ends with MEMBER_VOTE_END. The phase must be ACCEPTED and no vote open. `sync`: what a vote of
// WIRE_VOTE_SYNC says of the shared state, else NULL.
void member_vote(struct member *member, enum wire_vote_kind kind, const struct wire_sync_vote *sync,
                 struct member_output *out);
// Announces that it leaves, in `within_ms` if that is known. `at_update`: the next update vote that passes takes it
// out, which ends that vote here with pcclLeft; otherwise all are only told. Its phase is ACCEPTED.
void member_announce(struct member *member, uint32_t within_ms, bool at_update, int64_t now_ns,
                     struct member_output *out);
void member_leave(struct member *member, struct member_output *out);

// ---- adoption ----
void member_adopt(struct member *member, const struct member_view *view);
// Adopts the loss that made `group_epoch`; the newest one up to it when that very one is not known. Never goes back.
void member_adopt_loss(struct member *member, uint64_t group_epoch);
const struct member_view *member_adopted(const struct member *member);
// The own group as it was adopted, by ring places. NULL: it is not known, because members were lost together with a
// master. Valid until the next event.
const struct epoch_ring *member_members(const struct member *member);

// ---- state ----
enum member_phase member_phase(const struct member *member);
const char *member_text(const struct member *member); // why it died or was refused; "" before
const struct wire_id *member_id(const struct member *member);
// The members that have announced that they leave. Valid until the next event.
const struct leaving *member_leaving(const struct member *member);
const struct wire_welcome *member_welcome(const struct member *member); // valid from REGISTERED on
// Returns where the own list of entries begins to differ from the group's, as the master said in the last round of
// shared state; NULL if it said nothing.
const struct wire_sync_differs *member_sync_differs(const struct member *member);
bool member_has_synced(const struct member *member); // it took part in a successful round of shared state
// Header of a frame to the master; `epoch` is the number of the epoch in force.
struct wire_header member_header(const struct member *member);
// The epoch in force, NULL before the first. Valid until the next event.
const struct epoch *member_epoch(const struct member *member);
// The last vote of all, or connect, whose end this peer has heard.
const struct wire_ended_vote *member_last_vote(const struct member *member);
// The master is lost, and none has taken the run up yet.
bool member_is_seeking(const struct member *member);
// Whether it died because no master has taken the run up in time.
bool member_gave_up(const struct member *member);
// Why the master was lost; valid while seeking.
const char *member_lost_why(const struct member *member);
// Why the master that was found has no run yet, or for whom this peer waits; "" unless the master said so.
const char *member_waits_why(const struct member *member);
// How long a link may take to be made.
int64_t member_link_limit_ns(const struct member *member);

#endif
