// What a lane and a neighbour are made of.
#ifndef PCCL_DATA_LANE_PRIVATE_H
#define PCCL_DATA_LANE_PRIVATE_H

#include "data/core.h"
#include "data/lane.h"
#include "data/pace.h"
#include "data/silence.h"
#include "ops/driver.h"
#include "device/door.h"
#include "device/memory.h"
#include "net/transport.h"

enum {
    LANE_BUFFER_BYTES = 16 * 1024,
};

struct neighbour {
    struct op_member member; // first
    struct neighbour *next;
    struct lane *lanes[WIRE_MAX_LANES + 1]; // [0] the direct link
    uint32_t lane_count;                    // lanes that still point here, the closed ones too
    bool dropped;                           // freed as soon as nothing points here
    struct memory_process memory;           // thread: the process, if its memory can be read from here
    bool unreadable;                        // thread: reading has failed since it was vouched for
    bool hangs;                             // thread: its memory did not answer once, and is read no more
    bool offered;                           // in this epoch it has told the name of its
    uint8_t door[DOOR_NAME_BYTES];
    uint64_t eager_bytes; // sent before the peer posted the op
    double speed;         // thread: of its links together
    int64_t speed_ns;     // thread: when it was measured
};

enum lane_receive { LANE_HEAD, LANE_PAYLOAD, LANE_PARKED };

// One connection. Transmission over a direct link (index 0) is guarded by the lock, since callers send small ops
// themselves; everything else is thread.
struct lane {
    struct engine *engine;
    struct lane *next;      // arriving
    struct neighbour *peer; // also in.from
    uint32_t index;
    struct transport *stream;
    bool polled, hot, readable, broken;
    struct silence silence;
    bool vouched; // the peer's process holds the other end
    bool ending;  // the other side has closed: read on to the end
    bool resume;  // parse what was buffered when the lane was parked

    enum lane_receive receiving;
    uint8_t buffer[LANE_BUFFER_BYTES];
    size_t buffered, consumed; // bytes [consumed, buffered) are unread
    struct incoming in;
    size_t skip;      // padding behind the last payload that is yet to come, or to be skipped
    uint8_t *scratch; // WIRE_MAX_DATA_BYTES, made at first use

    bool retired; // lock
    bool writable;
    struct frame_queue queue;
    struct frame *sending;
    size_t sent;      // of head + payload
    uint8_t *stage;   // encoded block or packed leaf being sent by this lane, made at first use
    struct pace pace; // thread
};

// All links of an engine.
struct lanes {
    struct engine *engine;
    const struct lane_route *route;
    int epoll; // borrowed
    struct neighbour *neighbours;
    struct lane *arriving;      // added, not polled yet
    _Atomic int64_t silence_ns; // between two checks of silence, 0 = none

    // thread
    int64_t silence_at;  // the next check
    struct lane **lanes; // all that are polled
    struct lane **hot;
    size_t lane_count, lane_room, hot_count; // `hot` has the room of `lanes`
};

#endif
