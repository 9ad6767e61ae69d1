// Contexts of connections: encrypted if there are keys, and plain otherwise.
#ifndef PCCL_NET_CONTEXT_H
#define PCCL_NET_CONTEXT_H

#include "net/transport.h"

// Returns a context for these settings (NULL: the defaults), with an identity of its own if they have keys. Holds the
// keys. NULL: no memory.
struct transport_context *context_new(const struct transport_options *options);
// Makes the id of a peer: that of the context's identity, or a random one. False: no random numbers.
bool context_peer_id(const struct transport_context *context, struct wire_id *out);

#endif
