// Relays outside of a run, as `pccl relay` runs them.
#include <errno.h>
#include <stdlib.h>

#include "api/api.h"
#include "api/ext.h"
#include "base/descriptor.h"
#include "net/keys.h"
#include "net/relay_server.h"
#include "net/transport.h"

struct pccl_ext_relay {
    struct relay_server *server;
    uint32_t forks;
};

pcclResult_t pccl_ext_relay_new(const ccoip_socket_address_t *address, const char *keys, uint32_t links,
                                uint16_t *port_out, struct pccl_ext_relay **out) {
    struct wire_address at;
    struct relay_server_options options = {.links = links, .listens = &at, .port = port_out};
    RETURN_IF_FAILED(api_take_address(address, "address", &at));
    RETURN_IF_FAILED(api_load_keys(keys == NULL ? "" : keys, TRANSPORT_OBSERVER, &options.keys));
    struct pccl_ext_relay *relay = calloc(1, sizeof *relay);
    if (relay != NULL) relay->forks = descriptor_forks();
    int error = relay == NULL ? -ENOMEM : relay_server_new(&options, &relay->server);
    keys_release(options.keys);
    if (error != 0) {
        free(relay);
        if (error == -EADDRNOTAVAIL)
            return detail_fail(pcclInvalidUsage,
                               "this machine does not have the address; listen on 0.0.0.0 or [::], or on one it has");
        return detail_fail(pcclInvalidUsage, "%s", transport_error(error));
    }
    *out = relay;
    return pcclSuccess;
}

void pccl_ext_relay_counts(const struct pccl_ext_relay *relay, uint32_t *links_out, uint64_t *bytes_out) {
    relay_server_counts(relay->server, links_out, bytes_out);
}

void pccl_ext_relay_free(struct pccl_ext_relay *relay) {
    if (relay == NULL || !api_is_own(relay->forks)) return; // its thread is the parent's
    relay_server_free(relay->server);
    free(relay);
}
