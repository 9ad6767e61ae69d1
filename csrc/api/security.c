// Protection of connections: the keys or the certificate that the program names, or those of the environment. Without
// them, connections do not lead beyond loopback, unless the user permits it; transport_permits decides.
#define LOG_COMPONENT "config"
#include <errno.h>
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
    errno = 0;
    if (named->keys == NULL && named->cert == NULL) return pcclSuccess;
    struct keys *keys = named->cert != NULL ? keys_load_certificate(named->cert, named->key, named->ca, reason)
                                            : keys_load(named->keys, reason);
    bool refused = errno == ENOMEM || errno == EMFILE || errno == ENFILE; // by the system, and the files may be fine
    if (keys == NULL) return detail_fail(refused ? pcclInternalError : pcclInvalidArgument, "%s", reason);
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

// ---- reach ----

pcclResult_t api_check_master(const struct transport_options *options, const struct wire_address *master) {
    char text[64];
    if (transport_permits(options, master, TRANSPORT_DIALS)) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "the master at %s is " TRANSPORT_LOOPBACK_ONLY,
                       socket_address_format(text, sizeof text, master));
}

pcclResult_t pccl_ext_permits(const ccoip_socket_address_t *address, const char *keys, bool insecure) {
    struct wire_address master;
    RETURN_IF_FAILED(api_take_address(address, "address", &master));
    struct transport_options options = {.insecure = has_keys(keys) || api_insecure(insecure)};
    return api_check_master(&options, &master);
}

static pcclResult_t take_run(const struct keys *keys, struct wire_run *run) {
    if (keys == NULL || run == NULL || keys_take_run(keys, run)) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, KEYS_WRONG_RUN, keys_run(keys)->chars, run->chars);
}

pcclResult_t api_observer(const char *path, bool insecure, const struct wire_address *address, struct wire_run *run,
                          struct transport_context **out) {
    struct transport_options options = {.party = TRANSPORT_OBSERVER};
    RETURN_IF_FAILED(api_load_keys(path, TRANSPORT_OBSERVER, &options.keys));
    options.insecure = api_insecure(insecure);
    pcclResult_t code = api_check_master(&options, address);
    if (code == pcclSuccess) code = take_run(options.keys, run);
    *out = code == pcclSuccess ? tls_context_new(&options) : NULL;
    keys_release(options.keys);
    if (code != pcclSuccess) return code;
    return *out != NULL ? pcclSuccess : detail_fail(pcclInternalError, "the system refused memory for a connection");
}

pcclResult_t api_no_answer(int error) {
    return detail_fail(pcclMasterConnectionFailed, "%s: %s",
                       transport_refused(error) ? "the master cannot be asked" : "no master answers",
                       transport_error(error));
}

pcclResult_t api_operator(const char *path, struct transport_context **out) {
    struct transport_options options = {.party = TRANSPORT_MASTER};
    RETURN_IF_FAILED(api_load_keys(path, TRANSPORT_OBSERVER, &options.keys));
    if (options.keys == NULL || keys_master_key(options.keys) == NULL) {
        keys_release(options.keys);
        return detail_fail(pcclInvalidArgument,
                           "drain, expel and stacks need the key file of the masters (NAME.master); "
                           "give it with --keys, keys= or PCCL_KEYS");
    }
    *out = tls_context_new(&options);
    keys_release(options.keys);
    return *out != NULL ? pcclSuccess : detail_fail(pcclInternalError, "the system refused memory for a connection");
}
