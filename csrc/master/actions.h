// Actions that an event causes at the master: frames to send, connections to close, lines for the log.
//
// A frame is encoded once, into actions_frame, and may then go to any number of connections.
#ifndef PCCL_MASTER_ACTIONS_H
#define PCCL_MASTER_ACTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/recorder.h"
#include "net/wire_control.h"

enum {
    ACTIONS_MAX_CONNS = 4096, // connections are named by numbers below this, chosen by the driver
    ACTIONS_MAX_LOGS = 32,    // lines per event, then lines are dropped
    ACTIONS_LOG_BYTES = 640,
    ACTIONS_MAX_EVENTS = 64, // likewise
};

struct actions_send {
    uint32_t conn;
    size_t offset, length; // of actions.bytes; several sends may share bytes
};

struct actions_log {
    enum log_level level;
    bool of_strangers; // anybody who can connect causes it
    char text[ACTIONS_LOG_BYTES];
};

// For the flight recorder (base/recorder); of peers with ids.
struct actions_event {
    enum recorder_kind kind;
    uint64_t a, b;
    struct wire_id id;
    char text[RECORDER_TEXT_BYTES];
};

// Carried out in this order: all sends, then all closes. A connection is closed once what was sent on it is written, or
// cannot be. The state machine has forgotten a connection that it closes: nothing more is to be reported of it.
struct actions {
    struct wire_buffer bytes;
    size_t frame; // of these, where the frame encoded last begins
    struct actions_send *sends;
    size_t send_count, send_capacity;
    uint32_t closes[ACTIONS_MAX_CONNS];
    size_t close_count;
    struct actions_log logs[ACTIONS_MAX_LOGS];
    size_t log_count;
    struct actions_event events[ACTIONS_MAX_EVENTS];
    size_t event_count; // further ones are left out
};

// Keeps the memory.
static inline void actions_clear(struct actions *actions) {
    actions->bytes.length = 0;
    actions->send_count = actions->close_count = actions->log_count = actions->event_count = 0;
}
void actions_fini(struct actions *actions);

// Returns the buffer into which to encode the next frame.
struct wire_buffer *actions_frame(struct actions *actions);
// Sends the frame that was encoded last. False: memory was refused for it, or for the send.
bool actions_send(struct actions *actions, uint32_t conn);
// Sends a frame without a body, or one with a text alone. False: memory was refused.
bool actions_send_empty(struct actions *actions, uint32_t conn, struct wire_header header, enum wire_type type);
bool actions_send_text(struct actions *actions, uint32_t conn, struct wire_header header, enum wire_type type,
                       const char *text);
void actions_close(struct actions *actions, uint32_t conn);
// Last words to a connection that is no peer's, which is closed.
void actions_turn_away(struct actions *actions, uint32_t conn, struct wire_header header, enum wire_type type,
                       const char *why);

// `id` and `text` may be NULL.
void actions_event(struct actions *actions, enum recorder_kind kind, uint64_t a, uint64_t b, const struct wire_id *id,
                   const char *text);
void actions_log(struct actions *actions, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// A line that anybody who can connect causes.
void actions_log_stranger(struct actions *actions, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
