// What every module of the data plane asks of its engine: the lock, the wake-up of the thread, the end.
#ifndef PCCL_DATA_CORE_H
#define PCCL_DATA_CORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "net/wire_control.h"

struct book;
struct device_queue;
struct engine;
struct engine_callbacks;
struct lanes;
struct op_member;
struct pool;
struct same_host;
struct service_slot;

// The lock guards all of an engine but what belongs to its thread. It is never held across a blocking call.
void engine_lock(struct engine *engine);
void engine_unlock(struct engine *engine);
// The thread looks at what others want of it. Lock held.
void engine_wake(struct engine *engine);
// Memory or descriptors were refused, and others would wait for ever for what is not done now: all ops and links end.
// Lock held.
void engine_fail(struct engine *engine);
// The same, because the device of this queue has failed.
void engine_fail_of(struct engine *engine, const struct device_queue *queue);

// Waits for a condition. Lock held.
void engine_await(struct engine *engine, pthread_cond_t *condition);
// Neither dead nor about to end. Lock held.
bool engine_is_open(const struct engine *engine);
bool engine_is_dead(const struct engine *engine);
// The links of the newest epoch are there. Lock held.
bool engine_may_begin(const struct engine *engine);
// It is a member of the epoch that the thread is about to enter. Lock held.
bool engine_awaits(const struct engine *engine, const struct op_member *member);

const struct wire_id *engine_self(const struct engine *engine);
// Run, generation and epoch in force; the rest is 0.
struct wire_header engine_header(const struct engine *engine);
// Where frames for the master are encoded, until engine_tell sends them. Lock held.
struct wire_buffer *engine_for_master(struct engine *engine);
// Sends them; memory that was refused for them is the engine's end. Thread.
void engine_tell(struct engine *engine);
// In the epoch in force.
uint32_t engine_rank(const struct engine *engine);
const struct engine_callbacks *engine_owner(const struct engine *engine);

// ---- the parts of an engine ----
struct book *engine_book(struct engine *engine);
struct lanes *engine_lanes(const struct engine *engine);
struct pool *engine_pool(const struct engine *engine);
struct same_host *engine_same_host(const struct engine *engine);
struct service_slot *engine_service(const struct engine *engine);

#endif
