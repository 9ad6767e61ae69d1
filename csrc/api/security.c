// What protects connections: the keys or the certificate that the program names, or those of the environment; and how
// far connections lead without them: not beyond loopback, unless the user permits it. transport_permits decides.
#define LOG_COMPONENT "config"
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/ext.h"
#include "base/log.h"
#include "net/keys.h"
#include "net/socket.h"
#include "net/tls.h"

// ---- keys ----

// Paths; NULL: none.
struct named {
    const char *keys, *cert, *key, *ca;
};

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value == NULL || *value == 0 ? NULL : value;
}

static pcclResult_t take_environment(struct named *out) {
    *out = (struct named){variable("PCCL_KEYS"), variable("PCCL_CERT"), variable("PCCL_KEY"), variable("PCCL_CA")};
    int given = (out->cert != NULL) + (out->key != NULL) + (out->ca != NULL);
    if (given > 0 && out->keys != NULL)
        return detail_fail(pcclInvalidArgument, "PCCL_KEYS and PCCL_CERT exclude each other: unset one of them");
    if (given == 0 || given == 3) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "PCCL_CERT, PCCL_KEY and PCCL_CA belong together: %s is not set",
                       out->cert == NULL  ? "PCCL_CERT"
                       : out->key == NULL ? "PCCL_KEY"
                                          : "PCCL_CA");
}

static bool has_keys(const char *path) {
    if (path != NULL) return *path != 0;
    return variable("PCCL_KEYS") != NULL || variable("PCCL_CERT") != NULL;
}

// Three lines are those of a certificate; `text` is changed.
static void take_text(char *text, struct named *out) {
    *out = (struct named){.keys = text};
    char *key = strchr(text, '\n'), *ca = key == NULL ? NULL : strchr(key + 1, '\n');
    if (ca == NULL) return;
    *key = *ca = 0;
    *out = (struct named){.cert = text, .key = key + 1, .ca = ca + 1};
}

// Refuses what does not serve this party.
static pcclResult_t check_party(const struct keys *keys, const struct named *named, enum transport_party party) {
    if (party == TRANSPORT_MASTER && keys_master_key(keys) == NULL && named->cert == NULL)
        return detail_fail(pcclInvalidArgument,
                           "the keys in %s are for peers: a master needs the other file that `pccl keys` wrote, whose "
                           "name ends in .master",
                           named->keys);
    bool master = party == TRANSPORT_MASTER;
    if (master ? keys_master_key(keys) != NULL : party != TRANSPORT_PEER || keys_serve_peer(keys)) return pcclSuccess;
    const char *role = master ? "master" : "peer";
    return detail_fail(pcclInvalidArgument,
                       "the certificate in %s is not for a %s: a %s needs one with a URI that ends in /pccl/%s",
                       named->cert, role, role, role);
}

static pcclResult_t load(const struct named *named, enum transport_party party, struct keys **out) {
    char reason[KEYS_REASON_BYTES];
    if (named->keys == NULL && named->cert == NULL) return pcclSuccess;
    struct keys *keys = named->cert != NULL ? keys_load_certificate(named->cert, named->key, named->ca, reason)
                                            : keys_load(named->keys, reason);
    if (keys == NULL) return detail_fail(pcclInvalidArgument, "%s", reason);
    pcclResult_t code = check_party(keys, named, party);
    if (code == pcclSuccess)
        *out = keys;
    else
        keys_release(keys);
    return code;
}

pcclResult_t api_load_keys(const char *path, enum transport_party party, struct keys **out) {
    struct named named;
    *out = NULL;
    if (path == NULL) {
        RETURN_IF_FAILED(take_environment(&named));
        return load(&named, party, out);
    }
    char *text = strdup(path);
    if (text == NULL) return detail_fail(pcclInternalError, "there is no memory for keys");
    take_text(text, &named);
    if (*text == 0) named.keys = NULL;
    pcclResult_t code = load(&named, party, out);
    free(text);
    return code;
}

pcclResult_t api_load_master_keys(pcclMasterInstance_t *instance) {
    return instance->keys != NULL ? pcclSuccess : api_load_keys(NULL, TRANSPORT_MASTER, &instance->keys);
}

// ---- reach ----
#include "net/tls.h"

pcclResult_t api_check_master(const struct transport_options *options, const struct wire_address *master) {
    char text[64];
    if (transport_permits(options, master, TRANSPORT_DIALS)) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "the master at %s is " TRANSPORT_LOOPBACK_ONLY,
                       socket_address_format(text, sizeof text, master));
}

pcclResult_t pccl_ext_permits(const ccoip_socket_address_t *address, const char *keys, bool insecure) {
    struct wire_address master;
    REQUIRE_NOT_NULL(address);
    if (!api_take_address(address, &master))
        return detail_fail(pcclInvalidArgument, "the address is neither IPv4 nor IPv6");
    struct transport_options options = {.insecure = has_keys(keys) || api_insecure(insecure)};
    return api_check_master(&options, &master);
}

pcclResult_t api_observer(const char *path, bool insecure, const struct wire_address *address,
                          struct transport_context **out) {
    struct transport_options options = {.party = TRANSPORT_OBSERVER};
    RETURN_IF_FAILED(api_load_keys(path, TRANSPORT_OBSERVER, &options.keys));
    options.insecure = api_insecure(insecure);
    pcclResult_t code = api_check_master(&options, address);
    *out = code == pcclSuccess ? tls_context_new(&options) : NULL;
    keys_release(options.keys);
    if (code != pcclSuccess) return code;
    return *out != NULL ? pcclSuccess : detail_fail(pcclInternalError, "the system refused memory for a connection");
}

// ---- masters ----

struct transport_options api_master_transport(const pcclMasterInstance_t *instance) {
    return (struct transport_options){
        .keys = instance->keys, .party = TRANSPORT_MASTER, .insecure = api_insecure(instance->insecure)};
}

// Host names of Debian are at 127.0.1.1. The first must be there: 127.0.0.1, because IPv6 may be off.
static uint32_t loopbacks_of(const struct wire_address *wildcard, struct wire_address *out) {
    static const char *const texts[] = {"127.0.0.1:1", "127.0.1.1:1", "[::1]:1"};
    uint32_t count = 0;
    while (count < (wildcard->family == 6 ? 3 : 2)) {
        socket_address_parse(texts[count], strlen(texts[count]), &out[count]);
        out[count++].port = wildcard->port;
    }
    return count;
}

// Fails for the other masters of the list that may not be asked.
static pcclResult_t check_others(const pcclMasterInstance_t *instance, const struct transport_options *options) {
    for (uint32_t i = 0; i < instance->master_count; i++)
        if (i != instance->self) RETURN_IF_FAILED(api_check_master(options, &instance->masters[i]));
    return pcclSuccess;
}

static bool may_listen(const pcclMasterInstance_t *instance, const struct transport_options *options) {
    return transport_permits(options, &instance->address, TRANSPORT_ACCEPTS);
}

static pcclResult_t decide(const pcclMasterInstance_t *instance, const struct transport_options *options,
                           struct wire_address *out, uint32_t *count) {
    char listen[64], first[64];
    socket_address_format(listen, sizeof listen, &instance->address);
    RETURN_IF_FAILED(check_others(instance, options));
    *count = 1;
    out[0] = instance->address;
    if (may_listen(instance, options)) {
        if (options->keys == NULL && !socket_address_is_loopback(&instance->address))
            LOG(LOG_WARN,
                "the master listens on %s without keys: everybody who reaches it can join the run, read its tensors "
                "and change its results",
                listen);
        return pcclSuccess;
    }
    if (!socket_address_is_any(&instance->address))
        return detail_fail(pcclInvalidArgument, "the address to listen on, %s, is " TRANSPORT_LOOPBACK_ONLY, listen);
    *count = loopbacks_of(&instance->address, out);
    LOG(LOG_WARN,
        "the master has no keys, so it listens on %s in place of %s; for peers on other hosts give keys (keys= or "
        "PCCL_KEYS, made by `pccl keys`), or allow plain connections (insecure=True or PCCL_INSECURE=1)",
        socket_address_format(first, sizeof first, &out[0]), listen);
    return pcclSuccess;
}

pcclResult_t api_master_reach(const pcclMasterInstance_t *instance, const struct transport_options *options,
                              struct wire_address *out, uint32_t *count) {
    pcclResult_t code = decide(instance, options, out, count);
    if (code != pcclSuccess) LOG(LOG_ERR, "%s", detail_get());
    return code;
}

pcclResult_t pccl_ext_master_check_command(pcclMasterInstance_t *master) {
    REQUIRE_MASTER(master);
    pthread_mutex_lock(&master->lock);
    pcclResult_t code = api_load_master_keys(master);
    struct transport_options options = api_master_transport(master);
    bool refused = code == pcclSuccess && !may_listen(master, &options);
    if (code == pcclSuccess && !refused) code = check_others(master, &options);
    uint16_t port = master->address.port;
    pthread_mutex_unlock(&master->lock);
    if (!refused) return code;
    return detail_fail(pcclInvalidArgument,
                       "without keys, everybody who reaches this address could join the run, read its tensors and "
                       "change its results; give keys (--keys FILE or PCCL_KEYS, made by `pccl keys`), stay on this "
                       "host (--listen 127.0.0.1:%u), or allow plain connections (--insecure or PCCL_INSECURE=1)",
                       port);
}
