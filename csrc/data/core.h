// What every module of the data plane asks of its engine: the lock, the wake-up of the thread, the end.
#ifndef PCCL_DATA_CORE_H
#define PCCL_DATA_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "net/wire_control.h"

struct engine;

// The lock guards all of an engine but what belongs to its thread. It is never held across a blocking call.
void engine_lock(struct engine *engine);
void engine_unlock(struct engine *engine);
// The thread looks at what others want of it. Lock held.
void engine_wake(struct engine *engine);
// Memory or descriptors were refused, and others would wait for ever for what is not done now: all ops and links end.
// Lock held.
void engine_fail(struct engine *engine);

const struct wire_id *engine_self(const struct engine *engine);
// The links of the newest epoch are there. Lock held.
bool engine_may_begin(const struct engine *engine);
// In the epoch in force.
uint32_t engine_rank(const struct engine *engine);

#endif
