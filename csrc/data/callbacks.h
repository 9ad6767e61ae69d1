// What the data plane tells the control side, beside the outcomes of calls (ops/call.h).
#ifndef PCCL_DATA_CALLBACKS_H
#define PCCL_DATA_CALLBACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/call.h"

struct engine_callbacks {
    void *context;
    // Each is called without an engine lock held, from the engine's thread or a caller's; must not block.
    void (*done)(void *context, const struct wire_op_name *name);
    void (*mismatch)(void *context, const struct wire_mismatch *mismatch);
    // once per entered epoch; empty report too
    void (*frozen)(void *context, uint64_t group_epoch, const struct wire_report *report);
    // `silent`: the connection stands, but nothing comes or goes. id = self: a fresh group epoch is wanted.
    void (*link_down)(void *context, const struct wire_id *id, uint32_t index, bool silent);
    // a receiver's part of a round is over (state/sync)
    void (*synced)(void *context, const struct wire_sync_done *done);
    // memory or descriptors were refused, the engine is dead: others would wait for this member for ever
    void (*failed)(void *context);
};

#endif
