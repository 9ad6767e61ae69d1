// The keys of connections: those that the program names, or those of PCCL_KEYS.
#include <stdlib.h>

#include "api/api.h"
#include "net/keys.h"

const char *api_keys_path(const char *path) {
    if (path == NULL) path = getenv("PCCL_KEYS");
    return path == NULL || *path == 0 ? NULL : path;
}

pcclResult_t api_load_keys(const char *path, enum transport_party party, struct keys **out) {
    char reason[KEYS_REASON_BYTES];
    *out = NULL;
    path = api_keys_path(path);
    if (path == NULL) return pcclSuccess;
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

pcclResult_t api_load_master_keys(pcclMasterInstance_t *instance) {
    return instance->keys != NULL ? pcclSuccess : api_load_keys(NULL, TRANSPORT_MASTER, &instance->keys);
}
