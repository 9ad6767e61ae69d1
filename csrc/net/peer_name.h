// Names of peers: host names unless a program sets others. A name helps people to find a machine. Ids tell peers
// apart, because several peers may have one name.
//
// Names come from the network and go into logs, terminals and error texts. So every name in this process is clean: the
// setters clean what they are given, and decoders refuse a message with any other name.
#ifndef PCCL_NET_PEER_NAME_H
#define PCCL_NET_PEER_NAME_H

#include "net/wire.h"

// Whether these bytes are a name: UTF-8 of at most WIRE_MAX_NAME bytes, printable, and without a space at either end.
// Not printable are control characters, line separators, marks that change the direction of text, characters without
// width, and code points that are no characters. An empty name is clean.
bool peer_name_is_clean(const char *chars, size_t length);
// Makes a clean name of any bytes: puts '?' in place of what is not printable, and cuts behind the last whole character
// that fits.
struct wire_name peer_name_clean(const char *chars, size_t length);
// Returns the name of this host, or an empty name if it has none.
struct wire_name peer_name_of_host(void);

// How texts call a peer: "peer host-a (ab12cdef)", or "peer ab12cdef" if it has no name.
enum { PEER_LABEL_BYTES = 160, PEER_LABEL_MORE = 64 };
struct peer_label {
    char chars[PEER_LABEL_BYTES];
};
struct peer_label peer_label(const struct wire_id *id, const struct wire_name *name);
// The same with more behind the id, of which PEER_LABEL_MORE - 1 bytes are taken: "peer host-a (ab12cdef, join 5)".
struct peer_label peer_label_with(const struct wire_id *id, const struct wire_name *name, const char *more);

#endif
