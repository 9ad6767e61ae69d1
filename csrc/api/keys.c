// The keys of connections: those that the program names, or those of PCCL_KEYS.
#include <stdlib.h>

#include "api/api.h"
#include "net/context.h"
#include "net/keys.h"

pcclResult_t api_load_keys(const char *path, enum transport_party party, struct keys **out) {
    char reason[KEYS_REASON_BYTES];
    *out = NULL;
    if (path == NULL) path = getenv("PCCL_KEYS");
    if (path == NULL || *path == 0) return pcclSuccess;
    struct keys *keys = keys_load(path, reason);
    if (keys == NULL) return detail_fail(pcclInvalidArgument, "%s", reason);
    if (party == TRANSPORT_MASTER && keys_master_key(keys) == NULL) {
        keys_release(keys);
        return detail_fail(pcclInvalidArgument,
                           "the keys in %s are for peers: a master needs the other file that `pccl keys` wrote, whose "
                           "name ends in .master",
                           path);
    }
    *out = keys;
    return pcclSuccess;
}

pcclResult_t api_observer(const char *path, struct transport_context **out) {
    struct transport_options options = {.party = TRANSPORT_OBSERVER};
    RETURN_IF_FAILED(api_load_keys(path, TRANSPORT_OBSERVER, &options.keys));
    *out = context_new(&options);
    keys_release(options.keys);
    return *out != NULL ? pcclSuccess : detail_fail(pcclInternalError, "the system refused memory for a connection");
}
