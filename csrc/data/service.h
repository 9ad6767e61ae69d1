// A service of an engine: the owner of the frames on its links that belong to no op. An engine has one at a time, for
// as long as it is open; shared state is one (state/sync.h).
//
// The engine's thread drives it. A frame of a service belongs to no epoch: it outlives those that the engine enters,
// and nothing of it outlives the service. Frames that come while none is open are discarded.
#ifndef PCCL_DATA_SERVICE_H
#define PCCL_DATA_SERVICE_H

#include "link/connection.h"
#include "net/wire_control.h"

struct service;

enum service_change {
    SERVICE_LINK_UP,
    SERVICE_LINK_DOWN,
    SERVICE_PEER_LEFT,  // it is no member any more
    SERVICE_PEER_FREED, // it is about to be freed
};

// Callbacks of a service. All run on the engine's thread, without the lock unless stated otherwise.
struct service_type {
    // A frame has begun to come: sets `to`, or leaves it NULL to discard the payload, and `service` if `to` is memory
    // of the service. False: the frame is malformed.
    bool (*locate)(struct service *service, struct incoming *in);
    // The whole frame is here. False: the frame is malformed.
    bool (*arrived)(struct service *service, struct incoming *in);
    // The next frame for this lane, or NULL.
    struct frame *(*next)(struct service *service, struct lane *lane);
    // After engine_wake.
    void (*woken)(struct service *service);
    // Does what is due. In how many milliseconds to step again at the latest; -1: at any event.
    int (*step)(struct service *service);
    // The service is over: it begins nothing any more.
    void (*stop)(struct service *service);
    // Something became of a neighbour. With or without the lock: must not take it.
    void (*changed)(struct service *service, const struct neighbour *peer, enum service_change change);
};

// The first member of what a service is.
struct service {
    const struct service_type *type;
    struct engine *engine;
    bool ending; // lock
};

// ---- for the service ----
// Any thread. False: the engine is dead or has a service.
bool service_open(struct engine *engine, struct service *service);
// The thread is to stop the service that is open, if any. Any thread; does not wait.
void service_end(struct engine *engine);
// Ends it, and waits until the thread has stopped it: no frame touches its memory any more. NULL: there was none. Any
// thread.
struct service *service_close(struct engine *engine);
// The one that is open, or about to be taken back; NULL: none.
struct service *service_of(struct engine *engine);
// A frame of the service, or NULL: memory was refused, the engine is dead.
struct frame *service_frame(struct engine *engine, uint16_t type, const struct wire_head *head, size_t payload);
// Reports the end of a round to the master. Lock not held.
void service_report(struct engine *engine, const struct wire_sync_done *done);

// ---- for the engine's thread: calls what is open, if anything is ----
void service_woken(struct engine *engine);
void service_stop(struct engine *engine);
void service_changed(struct engine *engine, const struct neighbour *peer, enum service_change change);

#endif
