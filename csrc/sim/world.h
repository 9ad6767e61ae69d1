// What the files of the simulator share. sim.c: a run from begin to end. queue.c: events in virtual time. network.c:
// paths between processes, and the connections on them. engine.c: the model of the data plane (data/engine). state.c:
// that of a round of shared state (state/sync). body.c: the bodies around the minds (master/master, peer/peer).
// program.c: what the peers' programs call. faults.c: what goes wrong. memory.c: memory that is refused. judge.c: the
// invariants. crowd.c: runs with more peers, by themselves.
//
// A process is a slot; slot MASTER + i is that of the i-th master of the list. Whoever starts in a slot has a new life:
// what was meant for an older life is void.
#ifndef PCCL_SIM_WORLD_H
#define PCCL_SIM_WORLD_H

#include <stdbool.h>
#include <stdio.h>

#include "base/platform.h"
#include "peer/member.h"
#include "master/membership.h"
#include "peer/seek.h"
#include "state/delta.h"
#include "sim/crowd.h"
#include "sim/sim.h"

enum {
    SLOTS = 16,     // peers at most
    MASTER = SLOTS, // slot of the first master
    MASTERS_MOST = 3,
    PROCESSES = MASTER + MASTERS_MOST,
    RUNS_MOST = 4,
    LANES = 2,
    GROUPS = 2,
    TAGS = 6,
    LEAVES = 6,      // of a shared state
    SHARDS_MOST = 2, // of an op that travel, for those of all members
    ACKS_MOST = 4,   // names in one ACK; the engine's limit, smaller
    EARLY_MOST = 256,
    KEPT_MOST = 128,
    HELD_MOST = 8,
    LOSSES_MOST = 64,
    POISONS_MOST = 8,
    PARKED_MOST = 64,
    CONNECTIONS_MOST = 2048,
    CONTROLS_MOST = 128,
    INSTANCES_MOST = 1 << 12,
    INSTANCE_SLOTS = 1 << 10,
    RINGS_MOST = 256,
    ROUNDS_MOST = 256,
    EPOCHS_MOST = 64,
    VOTES_MOST = 64,
    EVENTS_MOST = 1 << 16,
    NAP_SKEW_MS = 4, // within which a master that wakes hears what came meanwhile, each connection by itself
    TEXT_BYTES = 512,
};

// ---- events ----

enum event_kind {
    // for a master: `from` is its place in the list
    EVENT_TO_MASTER,
    EVENT_MASTER_LOSES, // a control connection has ended
    EVENT_MASTER_TICK,
    EVENT_MASTER_LOOKS,   // for a run that another one serves
    EVENT_MASTER_HEARS,   // what the others do: `number` is the activity of the busiest, when they were asked
    EVENT_MASTER_GOES_ON, // its thread no longer blocks
    EVENT_MASTER_STARTS,
    // for a peer
    EVENT_TO_PEER,
    EVENT_PEER_LOSES, // its control connection
    EVENT_PEER_TICK,
    EVENT_DIAL_ARRIVES,
    EVENT_DIAL_ENDS, // `flag`: accepted; else refused
    EVENT_DIAL_LATE, // its limit has passed
    EVENT_LINK_FRAME,
    EVENT_LINK_ENDS,
    EVENT_PROBED,
    EVENT_RECHECK,   // parked hellos
    EVENT_SEEK,      // a master is looked for; `flag`: it did not answer
    EVENT_SEEK_ANEW, // the one that was found has taken nothing up so far
    EVENT_ENGINE,    // the engine's thread looks at what it was told
    EVENT_PROGRAM,
    EVENT_SYNC_TICK,
    EVENT_PEER_GOES_ON, // its control thread no longer blocks
    // for nobody
    EVENT_START, // a process
    EVENT_TAKEN_OUT,
    EVENT_LET_GO, // the child of a process that has ended ends, too
    EVENT_MASTER_LET_GO,
    EVENT_FAULT,
    EVENT_LOOK,
};

// A frame between two peers, by its contents.
struct frame {
    uint16_t type;
    uint16_t shard, hop;
    uint8_t name_count;
    uint32_t sequence, extra;
    uint32_t variant;      // of the arguments
    uint32_t contributors; // slots in `value`
    uint64_t run, epoch, tag, offset, value;
    struct wire_op_name names[ACKS_MOST];
    uint64_t leaves[LEAVES];
};

struct event {
    int64_t at;
    uint64_t order;
    enum event_kind kind;
    uint8_t slot, from; // who it is for; whom it comes from
    bool flag;
    uint32_t life; // of slot
    uint32_t other_life, index, serial;
    uint64_t number;
    struct wire_header header; // control frame
    uint8_t *body;             // owned
    struct frame frame;
    uint32_t next; // parked, or unused
};

struct heap_entry {
    int64_t at;
    uint64_t order;
    uint32_t event;
};

// ---- network ----

// A connection between a peer and a master, in the master's eyes named by its place in the table.
struct control {
    bool used;
    bool ghost; // a second one of the same peer
    bool known; // its first frame has come
    uint8_t slot, master;
    uint32_t life, group, serial;
    bool at_peer, at_master; // open there
    int64_t lost_from;       // what reaches the peer from then on is lost; INT64_MAX: nothing is
    int64_t up_at, down_at;  // last deliveries, since nothing overtakes
};

// A link between two peers. Ends: 0 has dialled, 1 accepts.
struct connection {
    bool used, open[2], broken;
    bool ghost; // a second one, which its dialler has forgotten
    uint8_t ends[2];
    struct wire_id to; // whom the dialler means
    uint32_t lives[2], serial, index;
    int64_t last[2];                          // delivery to that end
    uint32_t parked_first[2], parked_last[2]; // event + 1: frames of an epoch not entered yet, and those behind them
};

// ---- data plane ----

enum op_phase { OP_NONE, OP_WAITING, OP_RUNNING, OP_COMPLETE, OP_OK, OP_LOST, OP_MISMATCHED };

struct op {
    enum op_phase phase;
    bool small, frozen, accused, mismatched;
    uint32_t variant, bytes;
    uint64_t input, adopted, ended_epoch;
    uint32_t calls; // with this tag in this phase of the program
    struct wire_op_name name;
    uint32_t instance;
    // small
    uint32_t missing, arrived; // slots
    // large
    bool next_ready;
    uint32_t to_receive, to_send;
    uint32_t shards, results; // that travel in the model; that are here
    struct frame held[HELD_MOST];
    uint32_t held_count;
    // of what has been reduced
    uint64_t value;
    uint32_t contributors;
};

struct kept {
    struct wire_op_name name;
    uint64_t value;
    uint32_t contributors, unacked; // slots
    bool supplier;
};

struct early {
    uint8_t from;
    struct frame frame;
};

struct ring {
    bool set, lost, ready;
    uint64_t run, generation, epoch;
    uint32_t latency_us, megabytes_per_s, rank, count;
    uint8_t slots[SLOTS];
    uint32_t lives[SLOTS];
};

struct engine_model {
    uint64_t run, generation;
    struct ring now, pending;
    bool woken;
    uint64_t losses[LOSSES_MOST];
    uint32_t loss_count;
    uint32_t sequences[TAGS];
    struct op ops[TAGS];
    struct kept kept[KEPT_MOST];
    uint32_t kept_count;
    struct early early[EARLY_MOST];
    uint32_t early_count;
    struct {
        uint32_t count;
        uint64_t epochs[POISONS_MOST]; // group epochs of mismatched ops that were not posted here, oldest first
    } poisons[TAGS];
    struct wire_op_name acks[SLOTS][ACKS_MOST];
    uint8_t ack_count[SLOTS];
    bool settling[SLOTS];
};

// ---- shared state ----

enum sync_phase { SYNC_NONE, SYNC_VOTED, SYNC_GIVING, SYNC_HASHES, SYNC_LEAVES, SYNC_DONE };

struct ask {
    uint8_t from;
    struct frame frame;
};

struct donor_model {
    int slot; // -1: gone
    uint32_t life;
    struct wire_id id;
    uint64_t kept, seen;
    bool bad;
    int64_t progress_at;
};

struct state_model {
    uint64_t revision, leaves[LEAVES];
    bool incomplete, wrote; // wrote: since the vote
    bool wrote_now;         // since the last plan
    enum sync_phase phase;
    uint64_t round, content;
    struct ask asks[2 * SLOTS];
    uint32_t ask_count;
    struct donor_model donors[SLOTS];
    uint32_t donor_count, hash_donor, sequence;
    int64_t asked_at;
    uint64_t theirs[LEAVES];
    struct delta *delta;
    uint32_t tries;
};

// ---- peers ----

enum step { STEP_JOINING, STEP_THINKING, STEP_VOTING, STEP_REDUCING, STEP_SYNCING, STEP_LEAVING };

struct program {
    enum step step;
    uint8_t vote;
    uint64_t key_number, key_round; // where in the program: the same at all that pass the same point
    uint32_t phase, phases;         // of reduces in this round
    uint32_t tags;                  // in use in this phase
    uint32_t rounds;                // that this life has passed
    int64_t since;                  // begin of the call; INT64_MAX: none is open
    int64_t leave_by;
};

// Memory is refused to a process `times` times, when so many more allocations have been granted.
struct shortage {
    uint32_t granted, times;
    uint32_t refused; // in this life
};

struct process {
    bool running;
    uint32_t life, group;
    int64_t stopped_until;
    int64_t ended_at;
    bool dark; // it has ended, and nobody was told
    struct shortage shortage;
    bool tainted; // a frame of its connection was changed: what it says is not judged
    bool misused; // its program gave a wrong revision
    struct member *mind;
    struct member_output out;
    int64_t tick_at;  // of the tick that is queued; INT64_MAX: none
    uint32_t control; // + 1; 0: none
    struct seek seek;
    bool seeking;                     // the master is lost
    uint32_t links[SLOTS][LANES + 1]; // connection + 1
    uint32_t met[SLOTS];              // lives that it had a link to
    struct {
        struct wire_link_hello hello;
        uint32_t connection, serial;
        int64_t until;
    } parked[PARKED_MOST];
    uint32_t parked_count;
    struct engine_model engine;
    struct state_model state;
    struct program program;
};

// ---- judging ----

enum { JUDGE_LEFT_LIMITS = 8 }; // heartbeat limits that a master may take to notice that it has been left

enum outcome { OUTCOME_NONE, OUTCOME_OK, OUTCOME_LOST, OUTCOME_MISMATCH };

// One op name in one group: who took part, with what, and how it ended there.
struct instance {
    struct wire_op_name name;
    uint64_t run, generation, view; // generation: of the epoch; view: what the programs of all that began it could read
    uint32_t group, id, next;
    bool small;
    uint32_t members;      // slots
    uint32_t lives[SLOTS]; // of members
    uint32_t began, done;  // slots
    uint64_t inputs[SLOTS];
    uint32_t calls[SLOTS];
    uint8_t outcomes[SLOTS];
    uint8_t verdict;
    uint32_t heard; // slots that heard it
    uint64_t verdict_generation;
    bool supplied; // it named a supplier
};

// Who is in a group epoch, in which order: the same to all that enter it.
struct ring_record {
    uint64_t run, generation, epoch, hash;
    uint32_t group;
};

// The members of an epoch of all, as a master announced it.
struct epoch_record {
    uint64_t run, generation, number;
    struct wire_quorum quorum;
    uint32_t elders; // slots
    uint32_t lives[SLOTS];
};

// How one round of shared state ended, at the first member that heard of it.
struct round_record {
    uint64_t run, round, revision, content;
    uint8_t code;
};

// How one vote of all ended, and who heard it so.
struct vote_record {
    uint64_t run, number, value, epoch;
    uint32_t kind, code, world, groups;
    uint32_t lives[SLOTS];
};

// The last commit of a group, to see that no revision is lost.
struct commit_record {
    uint64_t run, round, revision;
    uint32_t lives[SLOTS]; // that took part; 0: did not
};

// The membership of a run that was announced last, by the newest generation.
struct truth {
    uint64_t run, generation, number;
    uint32_t master, master_life; // who announced it
    uint32_t lives[SLOTS];        // 0: no member
    uint32_t groups[SLOTS];
    int64_t since[SLOTS];                                    // when it was admitted
    struct commit_record commits[GROUPS], announced[GROUPS]; // that somebody has heard of; that the master made
};

enum count {
    COUNT_EVENTS,
    COUNT_STARTS,
    COUNT_CRASHES,
    COUNT_POWER_OFFS,
    COUNT_STALLS,
    COUNT_DELAYS,
    COUNT_BREAKS,
    COUNT_PARTITIONS,
    COUNT_ONE_WAYS,
    COUNT_DUPLICATES,
    COUNT_APARTS,
    COUNT_LEAVES,
    COUNT_MISUSES,
    COUNT_FLIPS,
    COUNT_MASTERS,
    COUNT_HELD,
    COUNT_BLOCKS,
    COUNT_REFUSALS,
    COUNT_FOUND,
    COUNT_TOLD_LATE,
    COUNT_AFRESH,
    COUNT_GIVEN_UP,
    COUNT_RESTARTED,
    COUNT_REFUSED,
    COUNT_EXPELLED,
    COUNT_EPOCHS,
    COUNT_ORDERS,
    COUNT_OPS_OK,
    COUNT_OPS_LOST,
    COUNT_OPS_REDONE,
    COUNT_OPS_SUPPLIED,
    COUNT_MISMATCHES,
    COUNT_SYNCS,
    COUNT_FETCHES,
    COUNT_NOT_FETCHED,
    COUNT_TORN,
    COUNT_NO_STATE,
    COUNT_RESUMED,
    COUNT_ROUNDS,
    COUNT_CALMS,
    COUNT_TAKEOVERS,
    COUNTS
};

struct pccl_sim {
    struct pccl_sim_config config;
    struct crowd *crowd; // of the run at hand, if it has more peers than there are slots; then the rest is unused
    enum pccl_sim_state state;
    uint64_t random;
    int64_t now, limit_ns, user_timeout_ns;
    uint32_t recovery_ms; // for which peers look for a master
    uint64_t counts[COUNTS];

    struct event *events; // pool
    uint32_t event_used, event_free, event_count;
    struct heap_entry *heap;
    uint32_t heap_count;
    uint64_t orders;
    int64_t busy_at; // many events at one moment: a livelock
    uint32_t busy;

    // network
    int64_t cut_until[PROCESSES][PROCESSES];
    int64_t slow_until[PROCESSES][PROCESSES];
    struct control controls[CONTROLS_MOST];
    struct connection connections[CONNECTIONS_MOST];
    uint32_t connection_high, serial;

    // processes
    uint32_t peers;
    struct process processes[SLOTS];
    struct master {
        bool running, rests; // rests: it is started again when the next faults begin
        struct membership *mind;
        uint32_t life; // no two masters have the same
        int64_t stopped_until, tick_at, began_at;
        bool looks, asks;    // it will look whether another one serves a run; it has asked the others
        int64_t known_until; // what they said holds
        bool held;           // it has ended, and a child of it holds its port and its connections
        const struct membership_actions *unsaid; // its thread blocks in the middle of these; NULL: it does not
        size_t said;                             // of them
        struct shortage shortage;
        uint64_t run, generation, number; // that it announced last; 0: none in this life
        int64_t alone_at;                 // when no other one served its run last
    } masters[MASTERS_MOST];
    uint32_t master_count, master_lives;
    struct wire_address addresses[MASTERS_MOST];

    // faults
    bool faulty;
    bool naps, only_naps; // a single master stands still again and again; nothing else goes wrong
    int64_t nap_from;     // for the next one
    bool only_apart;      // pairs are apart; nothing else goes wrong
    bool prompt;          // who dials a process that has ended is refused at once
    bool in_part;         // of what a master said that ends some hear the first part
    struct {
        int other, cost; // + 1: who it is apart from, and which of the two was lost of it; 0: none so far
        int64_t until;
    } apart[SLOTS];
    uint32_t faults;
    int64_t fault_every_ns, calm_from; // calm_from: end of the last fault's effect
    int64_t faults_end, end_at;
    int64_t measured_at; // when an optimisation was under way last
    int64_t sought_at;   // when somebody looked for a master last
    uint32_t rounds_before[SLOTS], lives_before[SLOTS];

    // judging
    struct instance instances[INSTANCES_MOST];
    uint32_t instance_slots[INSTANCE_SLOTS]; // id of the newest in the chain + 1
    uint32_t instance_count;
    struct ring_record rings[RINGS_MOST];
    struct round_record rounds[ROUNDS_MOST];
    struct epoch_record epochs[EPOCHS_MOST];
    struct vote_record votes[VOTES_MOST];
    uint32_t ring_count, round_count, epoch_count, vote_count;
    struct truth truths[RUNS_MOST]; // the newest run first
    struct {
        uint32_t life;
        uint64_t generation, epoch; // that it was in
    } resumed[SLOTS];               // who told a master what it knows, at last
    // when a master heard a LINK_DOWN of the one about the other; when it last formed that group anew,
    int64_t accused_at[SLOTS][SLOTS], regrouped_at[GROUPS];
    uint64_t regrouped[GROUPS];         // in which epoch
    int64_t unreached_at[SLOTS][SLOTS]; // when the one said of the other that it has no links to it for a candidate
    uint32_t tainted[SLOTS];            // lives
    uint64_t voted[SLOTS];              // number of the last vote whose end this life heard

    // trace
    bool tracing;
    char *lines; // ring of trace_lines * TEXT_BYTES
    uint64_t line_count;
    char *report;
    size_t report_length, report_capacity;
    char failure[4 * TEXT_BYTES];

    // scratch
    struct wire_member members[WIRE_MAX_MEMBERS];
    struct wire_sync_done done;
    struct wire_verdict verdict;
    struct wire_sync_end sync_end;
};

// ---- queue.c ----
uint64_t sim_mix(uint64_t x); // a hash
uint64_t sim_random(struct pccl_sim *s);
uint64_t sim_below(struct pccl_sim *s, uint64_t limit);
static inline bool sim_chance(struct pccl_sim *s, uint32_t in) { return sim_below(s, in) == 0; }
// to be filled and pushed; NULL: too many
struct event *sim_event(struct pccl_sim *s, enum event_kind kind, int64_t at);
void sim_push(struct pccl_sim *s, struct event *event);
void sim_requeue(struct pccl_sim *s, struct event *event, int64_t at);
struct event *sim_pop(struct pccl_sim *s); // NULL: none
void sim_event_free(struct pccl_sim *s, struct event *event);
void sim_queue_clear(struct pccl_sim *s);
void sim_push_for(struct pccl_sim *s, int slot, enum event_kind kind, int64_t at);

// ---- network.c ----
bool sim_alive(const struct pccl_sim *s, int slot, uint32_t life);
struct wire_id sim_id(const struct pccl_sim *s, int slot);
struct wire_id sim_id_of(int slot, uint32_t life);
int sim_slot(const struct wire_id *id, uint32_t *life); // -1: no id of ours
int64_t sim_delay(struct pccl_sim *s, int from, int to);
void sim_join_master(struct pccl_sim *s, int slot); // the first one of the list that there is
void sim_lose_master(struct pccl_sim *s, int slot); // begins to look for one, or goes on with that
void sim_seek_master(struct pccl_sim *s, int slot, bool late);
void sim_seek_anew(struct pccl_sim *s, int slot, uint32_t serial);
bool sim_cut(const struct pccl_sim *s, int a, int b); // either way
void sim_to_master(struct pccl_sim *s, int slot, struct wire_buffer *frames);
void sim_send_master(struct pccl_sim *s, struct process *p, struct wire_buffer *frame); // and lets go of it
void sim_close_controls(struct pccl_sim *s, int slot, bool told);
void sim_dial(struct pccl_sim *s, int slot, const struct member_action *action);
void sim_dial_arrives(struct pccl_sim *s, struct event *event);
void sim_dial_ends(struct pccl_sim *s, struct event *event);
void sim_refuse_dial(struct pccl_sim *s, const struct event *event); // nobody listens there any more
void sim_dial_late(struct pccl_sim *s, struct event *event);
void sim_judge_parked(struct pccl_sim *s, int slot);
void sim_expire_parked(struct pccl_sim *s, int slot);
void sim_link_ends(struct pccl_sim *s, struct event *event);
void sim_drop_links(struct pccl_sim *s, int slot, int other, uint32_t other_life);
void sim_close_links(struct pccl_sim *s, int slot, bool told); // the process ends
void sim_hold(struct pccl_sim *s, int slot);                   // the same, but a child holds what it had
void sim_let_go(struct pccl_sim *s, int slot, uint32_t life);  // and ends
void sim_break(struct pccl_sim *s, uint32_t connection);
void sim_fall_silent(struct pccl_sim *s, int from, int to);
bool sim_has_link(const struct pccl_sim *s, int slot, int other);
// False: there is no link now.
bool sim_send(struct pccl_sim *s, int slot, int other, uint32_t index, const struct frame *frame);
void sim_link_frame(struct pccl_sim *s, struct event *event, bool *kept);
void sim_unpark(struct pccl_sim *s, int slot);

// ---- body.c ----
void sim_carry_out(struct pccl_sim *s, uint32_t master, const struct membership_actions *actions);
void sim_master_event(struct pccl_sim *s, struct event *event);
void sim_start_master(struct pccl_sim *s, uint32_t master);
void sim_end_master(struct pccl_sim *s, uint32_t master);
void sim_hold_master(struct pccl_sim *s, uint32_t master); // it ends, but a child holds what it had
void sim_let_go_master(struct pccl_sim *s, uint32_t master);
void sim_start(struct pccl_sim *s, int slot);
void sim_end(struct pccl_sim *s, int slot, bool told); // the process ends; told: its kernel closes what it had
void sim_end_held(struct pccl_sim *s, int slot);       // the process ends, but a child holds what it had
void sim_act(struct pccl_sim *s, int slot);            // carries out what the mind said
void sim_peer_event(struct pccl_sim *s, struct event *event, bool *kept);

// ---- engine.c ----
void engine_model_missed_loss(struct pccl_sim *s, int slot, uint64_t group_epoch);
void engine_model_enter(struct pccl_sim *s, int slot, const struct member_action *action);
void engine_model_ready(struct pccl_sim *s, int slot, uint64_t group_epoch);
void engine_model_obey(struct pccl_sim *s, int slot); // the thread is woken
void engine_model_verdict(struct pccl_sim *s, int slot, const struct wire_verdict *verdict);
void engine_model_frame(struct pccl_sim *s, int slot, int from, const struct frame *frame);
void engine_model_forget(struct pccl_sim *s, int slot, int other, uint32_t life);
void engine_model_post(struct pccl_sim *s, int slot, uint32_t tag, uint32_t bytes, uint32_t variant, uint64_t input,
                       uint64_t adopted);
void engine_model_settle(struct pccl_sim *s, int slot);

// ---- state.c ----
uint64_t state_model_content(const uint64_t leaves[LEAVES]);
void state_model_begin(struct pccl_sim *s, int slot);
void state_model_plan(struct pccl_sim *s, int slot, const struct wire_sync_plan *plan);
void state_model_frame(struct pccl_sim *s, int slot, int from, const struct frame *frame);
void state_model_tick(struct pccl_sim *s, int slot);
void state_model_forget(struct pccl_sim *s, int slot, int other);
void state_model_link_ends(struct pccl_sim *s, int slot, int other);
void state_model_end(struct pccl_sim *s, int slot);
enum member_tensors state_model_restart(struct pccl_sim *s, int slot, struct wire_hash *content); // the master is lost

// ---- program.c ----
void program_connected(struct pccl_sim *s, int slot, const struct member_action *action);
void program_go_on(struct pccl_sim *s, int slot);
void program_vote_ended(struct pccl_sim *s, int slot, const struct member_action *action);
void program_op_ended(struct pccl_sim *s, int slot);

// ---- faults.c ----
void sim_draw_faults(struct pccl_sim *s);
void sim_fault(struct pccl_sim *s);
void sim_master_fault(struct pccl_sim *s, uint32_t master); // it ends, and is started again
// it lets newcomers in: perhaps a partition, just now
void sim_admission_fault(struct pccl_sim *s, uint32_t master, const struct membership_actions *actions);
// For how long a thread blocks in the middle of this event; 0: it does not. `weighty`: the event is one where that is
// worth more tries.
int64_t sim_block_fault(struct pccl_sim *s, bool weighty);
// true: the stream is garbage from here on
bool sim_flip(struct pccl_sim *s, struct control *control, struct event *event);

// ---- memory.c ----
void sim_short(struct pccl_sim *s, struct shortage *shortage); // from now on, on this thread; NULL: no longer
void sim_refused(struct pccl_sim *s);                          // it was: in faults.c
void *sim_take(size_t bytes);                                  // for the simulator itself

// ---- judge.c ----
__attribute__((format(printf, 3, 4))) void sim_fail(struct pccl_sim *s, const char *invariant, const char *format, ...);
__attribute__((format(printf, 2, 3))) void sim_line(struct pccl_sim *s, const char *format, ...);
#define SIM_TRACE(s, ...) \
    do { \
        if ((s)->tracing) sim_line((s), __VA_ARGS__); \
    } while (0)
// of its sends
void judge_sends(struct pccl_sim *s, uint32_t master, const struct membership_actions *actions, size_t first,
                 size_t end);
// a LINK_DOWN or LINKED, as a master hears it
void judge_accusation(struct pccl_sim *s, const struct control *control, const struct wire_header *header,
                      const uint8_t *body);
// of a live op
void judge_verdict(struct pccl_sim *s, int slot, const struct op *op, const struct wire_verdict *verdict);
void judge_ring(struct pccl_sim *s, int slot, const struct ring *ring);
// Of the newest generation up to this one; NULL: none.
struct instance *judge_find(struct pccl_sim *s, uint64_t run, uint64_t generation, uint32_t group,
                            const struct wire_op_name *name);
void judge_begins(struct pccl_sim *s, int slot, struct op *op);
void judge_reduced(struct pccl_sim *s, int slot, const struct op *op); // its result is here
void judge_ended(struct pccl_sim *s, int slot, const struct op *op);
void judge_vote(struct pccl_sim *s, int slot, const struct member_action *action); // of all; or a connect
void judge_sync(struct pccl_sim *s, int slot, const struct wire_sync_end *end);
void judge_plan(struct pccl_sim *s, const struct wire_sync_plan *plan);
void judge_dies(struct pccl_sim *s, int slot, const char *text, const char *what);
void judge_look(struct pccl_sim *s);                               // now and then: bounded time and memory
struct truth *judge_truth(const struct pccl_sim *s, uint64_t run); // of nobody when it is not known
bool judge_alive_member(const struct pccl_sim *s, uint64_t run, int slot, uint32_t life);
const char *judge_frame_name(const struct pccl_sim *s, char out[TEXT_BYTES], const struct wire_header *header,
                             const uint8_t *body);

#endif
