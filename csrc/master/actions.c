#include "master/actions.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

enum { FIRST_SENDS = 64 };

void actions_fini(struct actions *actions) {
    wire_buffer_fini(&actions->bytes);
    free(actions->sends);
}

struct wire_buffer *actions_frame(struct actions *actions) {
    actions->bytes.failed = false; // what was refused before may be granted now
    actions->frame = actions->bytes.length;
    return &actions->bytes;
}

bool actions_send(struct actions *actions, uint32_t conn) {
    if (actions->bytes.failed) return false;
    if (!GROW(actions->sends, actions->send_capacity, actions->send_count, FIRST_SENDS)) return false;
    actions->sends[actions->send_count++] =
        (struct actions_send){conn, actions->frame, actions->bytes.length - actions->frame};
    return true;
}

bool actions_send_empty(struct actions *actions, uint32_t conn, struct wire_header header, enum wire_type type) {
    wire_encode_empty(actions_frame(actions), header, type);
    return actions_send(actions, conn);
}

bool actions_send_text(struct actions *actions, uint32_t conn, struct wire_header header, enum wire_type type,
                       const char *text) {
    wire_encode_text(actions_frame(actions), header, type, text);
    return actions_send(actions, conn);
}

void actions_close(struct actions *actions, uint32_t conn) { actions->closes[actions->close_count++] = conn; }

void actions_turn_away(struct actions *actions, uint32_t conn, struct wire_header header, enum wire_type type,
                       const char *why) {
    actions_send_text(actions, conn, header, type, why);
    actions_close(actions, conn);
    actions_log_stranger(actions, LOG_WARN, "refused a peer: %s", why);
}

static void add_log(struct actions *actions, enum log_level level, bool of_strangers, const char *format,
                    va_list arguments) {
    if (actions->log_count == ACTIONS_MAX_LOGS) return;
    struct actions_log *line = &actions->logs[actions->log_count++];
    line->level = level;
    line->of_strangers = of_strangers;
    vsnprintf(line->text, sizeof line->text, format, arguments);
}

void actions_event(struct actions *actions, enum recorder_kind kind, uint64_t a, uint64_t b, const struct wire_id *id,
                   const char *text) {
    if (actions->event_count == ACTIONS_MAX_EVENTS) return;
    struct actions_event *event = &actions->events[actions->event_count++];
    *event = (struct actions_event){.kind = kind, .a = a, .b = b};
    if (id != NULL) event->id = *id;
    if (text != NULL) snprintf(event->text, sizeof event->text, "%s", text);
}

void actions_log(struct actions *actions, enum log_level level, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_log(actions, level, false, format, arguments);
    va_end(arguments);
}

void actions_log_stranger(struct actions *actions, enum log_level level, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_log(actions, level, true, format, arguments);
    va_end(arguments);
}
