// What moves ops: the parts of the data plane that know how.
#ifndef PCCL_DATA_OP_H
#define PCCL_DATA_OP_H

#include "ops/driver.h"

struct engine;
struct pending_epoch;

// ---- engine_ops.c ----
struct op_driver engine_driver(struct engine *engine);

// ---- engine_epochs.c, thread ----
// Lock held. False: memory was refused, the engine is dead.
bool engine_enter_pending(struct engine *engine, struct wire_report *report);
void pending_free(struct pending_epoch *pending); // NULL is allowed
// No lane has a frame of a large op any more, none is running. Lock held.
void engine_let_go(struct engine *engine);

#endif
