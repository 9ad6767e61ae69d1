// Finds the neighbours that are processes of this host and that the kernel lets this one read.
//
// Each member sends the others the name of its socket. A peer with the same address at both ends of the link
// claims there to hold the links of this pair, each named by its two addresses. The claimant is believed about its own
// sockets, because it is a process of our own user, and only that process is read: so no third one can lead the engine
// to the memory of another, or to its own.
#ifndef PCCL_DATA_SAME_HOST_H
#define PCCL_DATA_SAME_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct engine;
struct lane;
struct neighbour;
struct reader;

void same_host_offer(struct engine *engine);           // all links are there
void same_host_offered(struct lane *lane);             // thread
void same_host_take_claims(struct engine *engine);     // thread
void same_host_forget(struct neighbour *peer);         // thread
bool same_host_may_read(const struct neighbour *peer); // thread
// Whether the other end may be on this host, in a process whose memory can be read.
bool same_host_may_come(const struct lane *lane);
// READER_BYTES at most of the memory of the lane's peer, until the next call. NULL: it cannot be read (any more). Does
// not return when the thread was replaced meanwhile, see engine_watch.
uint8_t *same_host_read(struct lane *lane, uint64_t from, size_t length); // thread, lock not held
// Reads what the peer itself has just written, straight to its destination. A page that does not answer would have
// delayed the peer first, so no watchdog is needed, and nothing is written late.
bool same_host_read_written(struct lane *lane, void *to, uint64_t from, size_t length);

// Whether what was read just now was the peer's: its link has not ended, nor has another process got its number.
bool same_host_still_stands(const struct lane *lane); // thread
// Returns the process whose memory stands for the peer's; 0 if none.
pid_t neighbour_process(const struct neighbour *peer); // thread
// Large tensors pass by memory, as far as others than the thread may know.
bool neighbour_is_by_memory(const struct neighbour *peer);
// To read for this lane.
struct reader *lane_reader(struct lane *lane); // thread

// ---- for the engine ----
struct same_host;
// The rendezvous's events on `epoll` have what is returned as their tag. NULL: no memory.
struct same_host *same_host_new(int epoll);
void same_host_free(struct same_host *host); // NULL is allowed
// Returns the thread's reader. A thread that replaces another puts in its own.
struct reader **same_host_reader(const struct engine *engine);
// The thread that hung has been replaced: the neighbour is read no more. The lane that was read for.
struct lane *same_host_give_up(struct engine *engine); // thread

#endif
