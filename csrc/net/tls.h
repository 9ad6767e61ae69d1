// TLS 1.3 for streams: the second kind of transport. docs/threat-model.md has the threat model.
//
// A secret of the run (net/keys) opens the handshake, as an external pre-shared key with (EC)DHE. So a stranger fails
// before any other code of the library reads a byte. Or certificates (net/certificates) open it, of both sides. Then
// each side sends one proof: its role, its public key, and a signature over the exporter of this connection. So nobody
// can take the id of another process, and only holders of the run's master-key, or of a certificate for masters, pass
// as masters.
//
// A dialler tries one secret after the other: if the other side refuses the first, the stream connects again by itself.
#ifndef PCCL_NET_TLS_H
#define PCCL_NET_TLS_H

#include "net/keys.h"
#include "net/transport.h"

enum { TLS_RENEWAL_RECORDS = 1 << 23 }; // records under one key: at most 128 GiB; AES-GCM is safe for 2^24.5

// Returns a context for these settings (NULL: the defaults): its streams speak TLS if there are keys, and are plain
// otherwise. Holds the keys. A master signs with the master-key of its keys, all others with an identity that the
// context makes. NULL: no memory.
struct transport_context *tls_context_new(const struct transport_options *options);
// Returns the id that this side proves; NULL: the context is not of TLS.
const struct wire_id *tls_context_id(const struct transport_context *context);
// Makes the id of a peer: that which the context proves, or a random one. False: no random numbers.
bool tls_peer_id(const struct transport_context *context, struct wire_id *out);
// Makes new streams renew the key with which they send after `records`, instead of TLS_RENEWAL_RECORDS.
void tls_renew_after(struct transport_context *context, uint32_t records);

// Errors of its streams, beside those of sockets:
//   -EKEYREJECTED  the two sides have no secret in common, or one refuses the certificate of the other
//   -EPROTOTYPE    the other side does not encrypt
//   -ECONNABORTED  it ended the handshake without a word, as a side does that does not encrypt
//   -EBADE         the proof of the other side is wrong
//   -EBADMSG       bytes are no TLS, or were changed on their way
//   -ENOMSG        it sends one TLS record without data after the other, such as KeyUpdates
//   -ECONNRESET    the stream ended without notice: a process died, or somebody cut the connection
extern const struct transport_type transport_tls;

#endif
