// Whole frames over one stream: a reader of frames, and a queue of what is to be sent. Whoever has both over one
// connection keeps them side by side; a queue that several threads use is behind their lock.
#ifndef PCCL_NET_CONN_H
#define PCCL_NET_CONN_H

#include "net/transport.h"
#include "net/wire.h"

// ---- reading ----

// All zero: nothing has been received. Whoever has it frees `bytes` in the end (wire_buffer_fini).
struct conn_in {
    struct wire_buffer bytes;
    size_t taken; // of them
};

enum conn_next {
    CONN_MORE,      // more has to be received
    CONN_FRAME,     // valid until more is received
    CONN_MALFORMED, // no header that there is, or of a frame that this stream does not carry
};

// Returns whether the stream may carry a frame with this header; called before the body arrives.
typedef bool conn_carries_fn(const struct wire_header *header);
bool conn_carries_control(const struct wire_header *header);

// The next frame of what was received.
enum conn_next conn_in_next(struct conn_in *in, conn_carries_fn *carries, struct wire_header *header,
                            const uint8_t **body);
// The type of the frame at hand, of which a part may be missing; 0: its header is not there.
uint16_t conn_in_type(const struct conn_in *in);
// Receives at most `most` bytes; 0: no further than to the end of the header or the frame at hand. As
// transport_receive; -ENOMEM too.
ptrdiff_t conn_in_receive(struct conn_in *in, struct transport *from, size_t most);
// Receives the next frame and not one byte beyond it. 1: it is there; 0: the stream has ended; -EPROTO: CONN_MALFORMED;
// else as conn_in_receive.
int conn_in_frame(struct conn_in *in, struct transport *from, conn_carries_fn *carries, struct wire_header *header,
                  const uint8_t **body);
// The alert of TLS with which a side that encrypts answers one that does not.
#define CONN_WANTS_KEYS "\25\3\3\0\2\2\106"
// Returns the error of a stream that has ended: -ENOKEY if the other side encrypts, else -ECONNRESET.
int conn_in_end(const struct conn_in *in);
// Forgets what was received. Much memory is given back.
void conn_in_clear(struct conn_in *in);

// ---- sending ----

// All zero: nothing waits; likewise. Frames are appended to `bytes`, or encoded there.
struct conn_out {
    struct wire_buffer bytes;
    size_t sent; // of them
};

size_t conn_out_waiting(const struct conn_out *out);
// Sends what the kernel takes at once, the rest waits. 0, or -errno: the connection broke, or memory was refused.
int conn_out_send(struct conn_out *out, struct transport *to, const uint8_t *bytes, size_t length);
// Sends what the kernel takes, and gives much memory back when nothing is left. 0, or -errno: the connection broke.
int conn_out_flush(struct conn_out *out, struct transport *to);
// Drops what waits, and forgets that memory was refused.
void conn_out_clear(struct conn_out *out);

#endif
