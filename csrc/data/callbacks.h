// Events that the data plane reports to the control side, beside the outcomes of calls (ops/call.h).
#ifndef PCCL_DATA_CALLBACKS_H
#define PCCL_DATA_CALLBACKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_control.h"
#include "ops/call.h"

struct engine_callbacks {
    void *context;
    // Each is called without an engine lock held, from the engine's thread or a caller's; must not block.
    // Frames for the master: DONE, MISMATCH, SYNC_DONE when a receiver's part of a round is over (state/sync), and a
    // REPORT, which may be empty, for each epoch that was entered. Their headers name the epoch in force here.
    void (*to_master)(void *context, const struct wire_buffer *frames);
    // The link to `id` with this serial number (engine_add_link) broke. id = self: a fresh group epoch is wanted.
    void (*link_down)(void *context, const struct wire_id *id, uint32_t index, uint64_t serial,
                      enum wire_link_reason reason);
    // The engine is dead, or others would wait for this member for ever: memory or descriptors were refused, or, if
    // `why` is not "", a device has failed.
    void (*failed)(void *context, const char *why);
    // A wake-up (base/platform) that the engine signals when a call ends; negative: nobody listens. NULL is allowed.
    const atomic_int *events;
};

#endif
