// The deterministic simulator: the shipped state machines of the master and of the peers, the plan of the ring and the
// plan of a transfer, in virtual time, over a virtual network, against faults drawn from a seed. After every event the
// invariants of docs/design.md are checked. The same configuration gives the same run, event by event.
// docs/simulator.md tells what is modelled and what is judged.
//
// Whoever links it wraps malloc, calloc and realloc, so that they can refuse (CMakeLists.txt). Not part of libpccl.so:
// it serves the tests and `pccl sim`. One thread per simulator; several can run side by side.
#ifndef PCCL_SIM_SIM_H
#define PCCL_SIM_SIM_H

#include <stddef.h>
#include <stdint.h>

// Faults that a seed may draw, if allowed.
enum pccl_sim_fault {
    PCCL_SIM_CRASH = 1,       // a process ends, the kernel closes its connections
    PCCL_SIM_POWER_OFF = 2,   // a process ends and nobody is told
    PCCL_SIM_STALL = 4,       // a process is stopped for a while, a master's too
    PCCL_SIM_DELAY = 8,       // a path is slow for a while
    PCCL_SIM_BREAK = 16,      // a connection between two peers is reset
    PCCL_SIM_PARTITION = 32,  // two sides do not hear each other for a while
    PCCL_SIM_ONE_WAY = 64,    // one process is not heard by some others for a while
    PCCL_SIM_DUPLICATE = 128, // a connection is made twice
    PCCL_SIM_LEAVE = 256,     // a peer leaves
    PCCL_SIM_MISUSE = 512,    // programs give wrong arguments, revisions or entries
    PCCL_SIM_FLIP = 1024,     // one bit of a frame between a peer and the master changes
    PCCL_SIM_MASTER = 2048,   // a master ends and is started again
    PCCL_SIM_FORK = 4096,     // a process ends, a master too, while a child that it forked holds its connections open
    // the thread of a master, or the control thread of a peer, blocks in the middle of an event
    PCCL_SIM_BLOCK = 8192,
    PCCL_SIM_MEMORY = 16384,  // memory is refused to a state machine
    PCCL_SIM_APART = 32768,   // two peers that reach everybody else cannot reach each other
    PCCL_SIM_CANCEL = 65536,  // programs cancel operations, at any time
    PCCL_SIM_NOTICE = 131072, // a member has to go, and leaves in order
    PCCL_SIM_ALL = 262143,
};

struct pccl_sim_config {
    uint64_t seed;
    uint32_t peers;       // 2..1000; 0: 2 to 8, by the seed. Programs of more than 16 peers only vote.
    uint32_t masters;     // in the list, the first one and standbys: 1..3; 0: by the seed
    uint32_t fault_ms;    // virtual time during which faults happen; 0: 0.5 to 2 s, by the seed
    uint32_t faults;      // of enum pccl_sim_fault; 0: by the seed
    uint32_t trace_lines; // lines kept for the report
    int trace_fd;         // every line is written here, too; -1: nowhere
    // Nonzero: only the caller makes faults (sim/web), all peers are in one group, nobody measures links, and the run
    // has no end.
    uint32_t by_hand;
};

enum pccl_sim_state {
    PCCL_SIM_RUNNING,
    PCCL_SIM_PASSED,
    PCCL_SIM_FAILED,
    PCCL_SIM_NO_MEMORY,
};

struct pccl_sim;

// NULL when memory is refused. The counts are those of all runs since.
struct pccl_sim *pccl_sim_new(void);
void pccl_sim_free(struct pccl_sim *sim);
// Begins a run; one under way is given up.
enum pccl_sim_state pccl_sim_begin(struct pccl_sim *sim, const struct pccl_sim_config *config);
// Goes on for at most that many events.
enum pccl_sim_state pccl_sim_go(struct pccl_sim *sim, uint32_t events);
// FAILED: the invariant and both sides, then the last lines of the trace. Valid until the next begin.
const char *pccl_sim_report(const struct pccl_sim *sim);
// Returns the name of a count of events, which proves that they happened; NULL beyond the last.
const char *pccl_sim_count_name(uint32_t index);
uint64_t pccl_sim_count(const struct pccl_sim *sim, uint32_t index);

#endif
