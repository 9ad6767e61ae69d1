// An engine in a bottle: the data plane run by the fuzzer's own thread, joined by socket pairs to peers that the target
// plays.
//
// The engine's thread is never started. bottle_run runs its loop here and, whenever that has nothing left to do, lets
// the target take a step. So one program of bytes has one outcome. The clock stands still but for bottle_now, helper
// threads are refused (their work is then done by the engine itself), and the slots of all neighbours are
// `bottle_slots`.
#ifndef PCCL_TESTS_FUZZ_BOTTLE_H
#define PCCL_TESTS_FUZZ_BOTTLE_H

#include "data/engine.h"
#include "base/platform.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/service.h"
#include "data/slots.h"
#include "fuzz.h"

enum {
    BOTTLE_PEERS = 3, // number 0 is the engine itself
    BOTTLE_LANES = 3
};

extern int64_t bottle_now;
extern uint8_t *bottle_slots; // SLOTS_BYTES
extern uint64_t bottle_epoch; // the group epoch entered last

struct wire_id bottle_id(uint32_t peer);
// `heard` is called for each frame that the engine sends, when its head is here; it may be NULL.
struct engine *bottle_new(const struct engine_callbacks *callbacks,
                          void (*heard)(uint32_t peer, const struct wire_header *header, const struct wire_head *head));
// What the engine said to the master, frame by frame.
void bottle_told(const struct wire_buffer *frames,
                 void (*on_reply)(const struct wire_header *header, const uint8_t *body));
// Until `step` gives false.
void bottle_run(struct engine *engine, bool (*step)(void));
void bottle_free(struct engine *engine);

// The next group epoch, of the engine and the peers in `members` (bits), the ring turned so that the engine is the
// `rank`-th. Check the speed: it decides which way ops go.
// By peer, two bits each, of all epochs that are entered from now on; 0 in a new bottle.
void bottle_weights(uint32_t weights, uint32_t sites);
void bottle_enter(struct engine *engine, uint32_t members, uint32_t rank, bool lost, uint32_t megabytes_per_s);
void bottle_link(struct engine *engine, uint32_t peer, uint32_t index); // anew, if there is one
void bottle_close(uint32_t peer, uint32_t index);
// Sends. Of a frame that is `cut`, all behind these bytes is held back until something else is sent on the link.
void bottle_send(uint32_t peer, uint32_t index, const void *bytes, size_t length);
void bottle_frame(uint32_t peer, uint32_t index, const struct wire_header *header, const struct wire_head *head,
                  const void *payload, size_t length, size_t cut);

#endif
