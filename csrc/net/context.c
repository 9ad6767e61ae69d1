#include "net/context.h"

#include "base/platform.h"
#include "net/tls.h"

struct transport_context *context_new(const struct transport_options *options) {
    if (options == NULL || options->keys == NULL) return transport_context_new(options);
    struct ed25519 *identity = options->party == TRANSPORT_MASTER ? NULL : ed25519_new();
    if (identity == NULL && options->party != TRANSPORT_MASTER) return NULL;
    return tls_context_new(options, identity);
}

bool context_peer_id(const struct transport_context *context, struct wire_id *out) {
    const struct wire_id *id = tls_context_id(context);
    if (id == NULL) return platform_random(out->bytes, sizeof out->bytes);
    *out = *id;
    return true;
}
