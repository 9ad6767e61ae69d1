// The connection to the master: dialling the masters of a list one after another, reading frames, and the one place
// that sends any: those of the core, and those of the data plane, whose thread sends them itself, so that an op that is
// done is one system call away from the master.
//
// Owned and called by the control thread alone, but for master_link_send; nothing here blocks. What happens is taken
// with master_link_next, as with the links to other peers (peer/wireup).
#ifndef PCCL_PEER_MASTER_LINK_H
#define PCCL_PEER_MASTER_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "net/cards.h"
#include "net/transport.h"
#include "net/wire_control.h"

struct master_link;

enum {
    MASTER_LINK_TEXT = WIRE_MAX_TEXT + 64,
    MASTER_LINK_ADDRESS = 72 + WIRE_MAX_RUN, // of a master, with '/' and the name of the run
};

enum master_event_kind {
    MASTER_ANSWERS,     // a dialled connection is made: to be followed by master_link_use or master_link_refuse
    MASTER_FRAME,       // `header` and `body`, which is borrowed until the next call
    MASTER_BROKE,       // the connection, and why; to be followed by master_link_close
    MASTER_UNREACHABLE, // not one master of the list could be reached by a newcomer: `internal`, `text`
};

struct master_event {
    enum master_event_kind kind;
    struct wire_header header;
    const uint8_t *body;
    bool internal; // the system's fault, not the master's
    char text[MASTER_LINK_TEXT];
};

// Registers its connections with `epoll` under `data`. It dials from `cards` one after the other, and borrows them.
// NULL when memory is refused.
struct master_link *master_link_new(int epoll, uint64_t data, const struct cards *cards);
// Nobody else may hold it. NULL is allowed.
void master_link_free(struct master_link *link);

// Any thread; takes its lock last. Sends what the kernel takes; the control thread sends the rest. Dropped where there
// is no connection.
void master_link_send(struct master_link *link, const struct wire_buffer *frames);

// Dials `masters` in their order, once each, for a newcomer. Every connection names `run` first, unless it is empty.
// Borrows `transport` and `masters` until the next call.
void master_link_join(struct master_link *link, struct transport_context *transport, const struct wire_run *run,
                      const struct wire_address *masters, uint32_t count, int64_t now_ns);
// Dials the next master of the list, after this one has refused the newcomer. Returns false if there is none.
bool master_link_join_next(struct master_link *link, int64_t now_ns);
// Notes the answer of a master that is of no use to a newcomer. Returns what all masters of the list have answered so
// far, which stays until the next call or join.
const char *master_link_note(struct master_link *link, const char *answer);
// Writes what masters have answered so far. Any thread; takes its lock last.
void master_link_answers(struct master_link *link, char out[MASTER_LINK_TEXT]);
// Returns whether the join has failed because the keys of no master fit, which another try does not change.
bool master_link_is_foreign(const struct master_link *link);
// Adds to why a member gives the run up which master is not of the run, such as one with other keys, if that one was of
// no use to the end. The result stays until the next call or join.
const char *master_link_note_refusal(struct master_link *link, const char *text);
// The master is lost: closes, and dials the masters of the list again and again; `anew`: from the first one on.
void master_link_seek(struct master_link *link, bool anew, int64_t now_ns);
// The run goes on with the master that is connected.
void master_link_found(struct master_link *link, int64_t now_ns);

// The connection that answers is the one to the master. Nothing goes out before `first`, which may be NULL.
void master_link_use(struct master_link *link, const struct wire_buffer *first);
// Ends the connection because of `what` and the errno `error`.
void master_link_refuse(struct master_link *link, const char *what, int error, int64_t now_ns);
// The own address on the connection that answers; false, and errno, when the system does not tell.
bool master_link_local(const struct master_link *link, struct wire_address *out);
void master_link_close(struct master_link *link); // ends dialling and seeking too
// Sends what was queued before, then ends the stream.
void master_link_end(struct master_link *link);

void master_link_event(struct master_link *link, uint32_t epoll_events, int64_t now_ns);
bool master_link_next(struct master_link *link, struct master_event *out, int64_t *now_ns);
void master_link_tick(struct master_link *link, int64_t now_ns);
int64_t master_link_deadline(const struct master_link *link); // of the next tick; INT64_MAX = none

bool master_link_is_open(const struct master_link *link);
bool master_link_seeks(const struct master_link *link);
bool master_link_has_earlier(const struct master_link *link); // the list, than the master that is connected
int64_t master_link_round_trip_ns(const struct master_link *link);
// The master that is dialled or connected, and the run, as users write them.
const char *master_link_address(const struct master_link *link, char out[MASTER_LINK_ADDRESS]);

#endif
