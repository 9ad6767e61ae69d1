// Streams of bytes between two processes. A transport decides what the bytes become on their way: plain TCP today.
//
// A context belongs to one communicator, one master, or one query. It chooses the transport of the streams that are
// dialled and accepted with it, and has their keys or certificates. Nothing here is process-wide.
//
// All bytes of a stream, and all that the kernel knows of its connection, pass through these functions: no file outside
// net/ uses the descriptor. Nothing blocks, nothing raises SIGPIPE; errors are errno values, negated. One thread at a
// time sends, and one receives; they may be two. Any thread may hang up at any time.
#ifndef PCCL_NET_TRANSPORT_H
#define PCCL_NET_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "base/log.h"
#include "net/socket.h"
#include "net/wire.h"
#include "net/wire_control.h"

struct transport;
struct transport_context;

enum { TRANSPORT_CONGESTION_BYTES = 17 }; // a name and a zero

enum transport_role {
    TRANSPORT_DIALS,
    TRANSPORT_ACCEPTS,
};

enum transport_party {
    TRANSPORT_STRANGER, // has proved nothing
    TRANSPORT_MASTER,
    TRANSPORT_PEER,
    TRANSPORT_OBSERVER, // asks for the status of a run
};

// Identity that the other end has proved in the handshake. Plain TCP proves none.
struct transport_identity {
    enum transport_party party;
    struct wire_id id;   // all 0 of a stranger
    struct wire_run run; // to which its keys are confined; without a name: to none
};

// A kind of transport. What its streams need beside `struct transport` lies behind it, in one allocation.
struct transport_type {
    size_t bytes; // of one stream, all 0 at first
    bool proves;  // the handshake proves who the other end is, and sets `peer`
    // Makes the next step of the handshake, see transport_step. Both ends step. -EAGAIN: `awaits` is set.
    int (*step)(struct transport *stream);
    // Bytes taken (> 0), -EAGAIN: the poller tells when there is room (EPOLLOUT), or -errno. A transport that holds
    // bytes back leaves one of them out of its count, so that it is called again.
    ptrdiff_t (*sendv)(struct transport *stream, const struct iovec *parts, int count);
    // Bytes received (> 0), 0 = end of stream, -EAGAIN or -errno. Sets `buffered`.
    ptrdiff_t (*recvv)(struct transport *stream, const struct iovec *parts, int count);
    // Announces the end of what is sent.
    void (*finish)(struct transport *stream);
    // Returns more about why the handshake failed than its error says, or NULL. NULL: never.
    const char *(*why)(const struct transport *stream);
    // See transport_vouch. NULL: nothing.
    void (*vouch)(struct transport *stream);
    // Releases what the type allocated for the stream. NULL: nothing.
    void (*fini)(struct transport *stream);
    // Releases what the type allocated for a context. NULL: nothing.
    void (*context_fini)(struct transport_context *context);
};

extern const struct transport_type transport_plain;

struct keys;
struct relay_hello;

// Settings of a context; all 0: the defaults.
struct transport_options {
    char congestion[TRANSPORT_CONGESTION_BYTES]; // congestion control of data links to other hosts; "": the system's
    struct keys *keys;                           // borrowed by the settings; NULL: no encryption
    enum transport_party party;                  // what this side is, if it has keys
    bool insecure;                               // without keys, streams may leave loopback; the user has said so
};

struct transport_context {
    const struct transport_type *type;
    struct transport_options options;
    _Atomic uint32_t references; // of transport.c alone
};

struct transport {
    const struct transport_type *type;
    struct transport_context *context; // held
    _Atomic uint32_t references;       // of transport.c alone
    enum transport_role role;
    struct transport_identity peer; // set by `step`
    struct {
        enum transport_party party; // STRANGER: anybody
        bool one;                   // with this id alone
        struct wire_id id;
    } expected;                // who is to answer a dialled stream
    bool speaks;               // accepted: its first byte has come
    int fd;                    // of net/ alone
    struct relay_hello *relay; // owned; NULL: it is no relayed stream
    const struct card *card;   // that it was dialled from; NULL: the system chose
    int poller;                // that watches it for `watched`, and tells `data`; -1: none
    uint32_t watched;
    epoll_data_t data;
    uint32_t awaits; // events without which the next step can do nothing
    // The receiver's: recvv may give more at once, and no poller tells of it. False only when recvv has just seen that
    // the kernel has no more and holds nothing itself; so also after a call that did not ask the kernel, true. Right
    // after the handshake: bytes were received with its last message.
    bool buffered;
};

// Why a process without keys may not use an address, and what to do about it.
#define TRANSPORT_LOOPBACK_ONLY \
    "beyond loopback, and this process has no keys to protect the connection; give keys (--keys, keys= or " \
    "PCCL_KEYS, made by `pccl keys`), or allow plain connections (--insecure, insecure=True or PCCL_INSECURE=1)"

// Returns the text of an errno value, negated or not, that these functions have returned.
const char *transport_error(int error);
// The same of a step of this stream (NULL: of none), which may know more. Valid while the stream is.
const char *transport_why(const struct transport *stream, int error);
// Whether this is an error of keys: the other end is somebody else than was expected.
bool transport_refused(int error);
// Logs such an error of a link between peers, and why a relay outside of the run is of no use; others may cause it as
// often as they like.
void transport_log_refusal(const struct transport *stream, int error, struct log_limit *limit);

// ---- contexts ----

// Returns whether streams with these settings may lead to this address, or come to it: any with keys or if `insecure`,
// else loopback only. A stream to a wildcard stays on this host, but one to which all may come is not loopback.
// The only place that decides this.
bool transport_permits(const struct transport_options *options, const struct wire_address *address,
                       enum transport_role role);
// Returns a context for plain streams; net/tls makes those with keys. Copies `options`; NULL: the defaults. The
// caller holds it. NULL when memory is refused.
struct transport_context *transport_context_new(const struct transport_options *options);
// For transports: begins a context that calloc has made, as transport_context_new does.
void transport_context_init(struct transport_context *context, const struct transport_type *type,
                            const struct transport_options *options);
struct transport_context *transport_context_hold(struct transport_context *context);
// Frees the context when its last holder releases it. NULL is allowed.
void transport_context_release(struct transport_context *context);

// ---- life of a stream ----

// Takes the descriptor of a connection, and closes it when there is no memory: NULL. Holds the context.
struct transport *transport_new(struct transport_context *context, int fd, enum transport_role role);
// Begins to connect: to be watched for EPOLLOUT, and carried on by steps. 0 or -errno; -ENONET: the settings of the
// context do not permit this address. `card`: as for socket_dial_from; the caller keeps it while the stream lives.
int transport_dial_from(struct transport_context *context, const struct card *card, const struct wire_address *address,
                        struct transport **out);
static inline int transport_dial(struct transport_context *context, const struct wire_address *address,
                                 struct transport **out) {
    return transport_dial_from(context, NULL, address, out);
}
// The same to a relay, which joins this stream with that of `hello->other` for the same link. `role` is what it is
// then. Keys are those of the context.
int transport_dial_relay(struct transport_context *context, const struct wire_address *relay,
                         const struct relay_hello *hello, enum transport_role role, struct transport **out);
// The same to the local socket of the master at `address` (net/rendezvous). -errno: there is none that this user may
// use.
int transport_dial_local(struct transport_context *context, const struct wire_address *address, struct transport **out);
// Accepts a connection, whose handshake is to be carried on. 0 or -errno. -EAGAIN: none waits. `from` as for
// socket_accept.
int transport_accept(struct transport_context *context, int listener, struct transport **out,
                     struct wire_address *from);
// Names who is to answer a dialled stream: this party, with this id (NULL: with any).
static inline void transport_expect(struct transport *stream, enum transport_party party, const struct wire_id *id) {
    stream->expected.party = party;
    stream->expected.one = id != NULL;
    if (id != NULL) stream->expected.id = *id;
}
// Carries the handshake of a dialled or accepted stream on. 0: it is over, both ends may send, and the other end is who
// was expected. -EAGAIN: call again when its poller, which now watches for `awaits`, tells. Else -errno: close it;
// -EBADE of a stream that has proved who it is: it is somebody else.
int transport_step(struct transport *stream);
// Gives a poller up and closes, or leaves that to the last one who holds it: closing alone does not end the polling
// while a child of fork has the socket open. NULL is allowed.
void transport_free(struct transport *stream);
// Keeps the stream for any thread that reads its gauge or congestion control, and does nothing else with it.
struct transport *transport_hold(struct transport *stream);
void transport_release(struct transport *stream);
// Whether the first byte of an accepted stream asks for a relay: 1, or 0. -EAGAIN: it has not come.
int transport_asks_relay(const struct transport *stream);
// The stream is to end in both directions. Both sides read what came before, and then the end.
void transport_hang_up(struct transport *stream);
// The next transport_free drops what was sent and not acknowledged, and resets the connection.
void transport_reset(struct transport *stream);

// ---- what is known of the connection ----

// Returns the identity that the other end has proved.
static inline const struct transport_identity *transport_peer(const struct transport *stream) { return &stream->peer; }
static inline bool transport_has_proved(const struct transport *stream) {
    return stream->peer.party != TRANSPORT_STRANGER;
}
// Whether the other end of an accepted stream, which claims to be the peer with this id, may be it; NULL: it claims to
// be any. True if its transport proves nothing.
bool transport_is_peer(const struct transport *stream, const struct wire_id *id);
// Keeps for the next masters of the run the proof that the other end of this stream, which this context has dialled, is
// one: it has just sent an epoch that it signed.
static inline void transport_vouch(struct transport *stream) {
    if (stream->type->vouch != NULL) stream->type->vouch(stream);
}
static inline struct gauge transport_gauge(const struct transport *stream) { return socket_gauge(stream->fd); }
// False: the stream is not of IPv4 or IPv6, or has ended.
static inline bool transport_local_address(const struct transport *stream, struct wire_address *out) {
    return socket_local_address(stream->fd, out);
}
static inline bool transport_remote_address(const struct transport *stream, struct wire_address *out) {
    return socket_remote_address(stream->fd, out);
}
// Whether both ends are on this host.
static inline bool transport_is_within_host(const struct transport *stream) { return socket_within_host(stream->fd); }
// Whether the stream takes more bytes now. If not, an EPOLLOUT comes when it does.
bool transport_has_room(const struct transport *stream);
// Writes the name of the congestion control; at least TRANSPORT_CONGESTION_BYTES. False: unknown.
static inline bool transport_congestion(const struct transport *stream, char *out, size_t capacity) {
    return socket_congestion(stream->fd, out, capacity);
}

// ---- how fast it sends ----

// Gives a data link the congestion control of its context, if it leads to another host.
void transport_apply_congestion(struct transport *stream);
// Limits how many bytes the connection takes that it cannot send yet; 0: any number.
void transport_limit_unsent(struct transport *stream, uint32_t bytes);
// Limits how fast the kernel sends, and spreads what it sends over the round trip. Only another limit undoes it.
void transport_pace(struct transport *stream, uint32_t bytes_per_s);

// ---- events and bytes ----

// From now on the poller tells of `events` with `data`. False, and errno, when it cannot.
bool transport_watch(struct transport *stream, int poller, uint32_t events, epoll_data_t data);
void transport_unwatch(struct transport *stream);
// Blocks until one of `events` (EPOLLIN, EPOLLOUT) or the end of the stream is there. False: `timeout_ms` has passed,
// or a signal came.
bool transport_wait(const struct transport *stream, uint32_t events, int timeout_ms);

static inline bool transport_is_relayed(const struct transport *stream) { return stream->relay != NULL; }

static inline ptrdiff_t transport_sendv(struct transport *stream, const struct iovec *parts, int count) {
    return stream->type->sendv(stream, parts, count);
}

static inline ptrdiff_t transport_recvv(struct transport *stream, const struct iovec *parts, int count) {
    return stream->type->recvv(stream, parts, count);
}

static inline void transport_finish(struct transport *stream) { stream->type->finish(stream); }

ptrdiff_t transport_send(struct transport *stream, const void *bytes, size_t length);
// -EAGAIN: nothing is buffered, and a poller tells of what comes.
ptrdiff_t transport_receive(struct transport *stream, void *bytes, size_t capacity);

#endif
