// The functions of a master: its settings, where it listens, and its life.
#define _GNU_SOURCE
#define LOG_COMPONENT "config"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/ext.h"
#include "base/descriptor.h"
#include "base/environment.h"
#include "base/log.h"
#include "net/keys.h"
#include "net/socket.h"

pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address, pcclMasterInstance_t **master_out) {
    REQUIRE_NOT_NULL(master_out);
    struct wire_address address;
    RETURN_IF_FAILED(api_take_address(&listen_address, "listen_address", &address));
    pcclMasterInstance_t *master = calloc(1, sizeof *master);
    if (master == NULL) return detail_fail(pcclInternalError, "the system refused memory for a master");
    pthread_mutex_init(&master->lock, NULL);
    master->address = address;
    master->options.masters = master->masters;
    master->options.heartbeat_limit_ms = environment_number("PCCL_HEARTBEAT_LIMIT_MS", API_HEARTBEAT_LEAST_MS,
                                                            API_HEARTBEAT_MOST_MS, API_HEARTBEAT_DEFAULT_MS);
    master->forks = descriptor_forks();
    atomic_init(&master->master, NULL);
    *master_out = master;
    return pcclSuccess;
}

// ---- settings ----

static pcclResult_t take_list(const struct pccl_ext_master_settings *settings,
                              struct wire_address masters[WIRE_MAX_MASTERS]) {
    size_t count = settings->master_count, self = settings->self;
    RETURN_IF_FAILED(api_take_addresses(settings->masters, count, masters));
    if (self >= count) return detail_fail(pcclInvalidArgument, "place %zu is not in a list of %zu", self, count);
    for (size_t i = 0; i < count; i++) {
        if (i == self || !socket_address_equal(&masters[i], &masters[self])) continue; // it would ask itself
        char text[64];
        return detail_fail(pcclInvalidArgument, "entries %zu and %zu of the masters are both %s; name each master once",
                           (i < self ? i : self) + 1, (i < self ? self : i) + 1,
                           socket_address_format(text, sizeof text, &masters[i]));
    }
    return pcclSuccess;
}

pcclResult_t pccl_ext_master_configure(pcclMasterInstance_t *master, const struct pccl_ext_master_settings *settings) {
    struct wire_address masters[WIRE_MAX_MASTERS];
    char events[RECORDER_PATH_BYTES];
    struct keys *keys = NULL;
    REQUIRE_MASTER(master);
    REQUIRE_NOT_NULL(settings);
    uint32_t limit_ms = settings->heartbeat_limit_ms;
    if (limit_ms != 0 && (limit_ms < API_HEARTBEAT_LEAST_MS || limit_ms > API_HEARTBEAT_MOST_MS))
        return detail_fail(pcclInvalidArgument, "a heartbeat limit of %u ms is not between %d and %d", limit_ms,
                           API_HEARTBEAT_LEAST_MS, API_HEARTBEAT_MOST_MS);
    if (settings->idle_limit_ms > API_IDLE_MOST_MS)
        return detail_fail(pcclInvalidArgument, "an idle limit of %u ms is not from 1 to %d", settings->idle_limit_ms,
                           API_IDLE_MOST_MS);
    if (settings->master_count > 0) RETURN_IF_FAILED(take_list(settings, masters));
    if (settings->events != NULL) RETURN_IF_FAILED(api_take_events(settings->events, events));
    if (settings->keys != NULL) RETURN_IF_FAILED(api_load_keys(settings->keys, TRANSPORT_MASTER, &keys));
    pthread_mutex_lock(&master->lock);
    bool has_run = atomic_load(&master->master) != NULL;
    if (!has_run) {
        struct keys *before = master->keys;
        struct master_options *options = &master->options;
        if (limit_ms != 0) options->heartbeat_limit_ms = limit_ms;
        if (settings->idle_limit_ms != 0) options->idle_limit_ms = settings->idle_limit_ms;
        options->new |= settings->new;
        master->insecure |= settings->insecure;
        if (settings->events != NULL) options->events = memcpy(master->events, events, sizeof events);
        if (settings->master_count > 0) {
            memcpy(master->masters, masters, settings->master_count * sizeof *masters);
            options->master_count = (uint32_t)settings->master_count;
            options->self = (uint32_t)settings->self;
        }
        if (keys != NULL) {
            master->keys = keys;
            keys = before;
        }
    }
    pthread_mutex_unlock(&master->lock);
    keys_release(keys);
    return has_run ? detail_fail(pcclInvalidUsage, "a master is configured before it runs") : pcclSuccess;
}

// ---- where it listens ----

static pcclResult_t load_keys(pcclMasterInstance_t *instance) {
    return instance->keys != NULL ? pcclSuccess : api_load_keys(NULL, TRANSPORT_MASTER, &instance->keys);
}

static struct transport_options transport_of(const pcclMasterInstance_t *instance) {
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
    for (uint32_t i = 0; i < instance->options.master_count; i++)
        if (i != instance->options.self) RETURN_IF_FAILED(api_check_master(options, &instance->masters[i]));
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

// Decides where a master listens: `out` gets 1 to MASTER_MAX_LISTENS addresses. Those of loopback take the place of a
// wildcard without keys, which is logged. pcclInvalidArgument, and a line in the log: it may not listen there, or may
// not talk to the other masters of its list.
static pcclResult_t reach(const pcclMasterInstance_t *instance, const struct transport_options *options,
                          struct wire_address *out, uint32_t *count) {
    pcclResult_t code = decide(instance, options, out, count);
    if (code != pcclSuccess) LOG(LOG_ERR, "%s", detail_get());
    return code;
}

pcclResult_t pccl_ext_master_check_command(pcclMasterInstance_t *master) {
    REQUIRE_MASTER(master);
    pthread_mutex_lock(&master->lock);
    pcclResult_t code = load_keys(master);
    struct transport_options options = transport_of(master);
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

// ---- life ----

static pcclResult_t run_failed(int error, const struct wire_address *address) {
    char text[64];
    socket_address_format(text, sizeof text, address);
    switch (error) {
    case EADDRINUSE:
        return detail_fail(pcclInvalidUsage,
                           "the master's address, %s, is in use: stop the program that has it, or take another port",
                           text);
    case EADDRNOTAVAIL:
        return detail_fail(
            pcclInvalidArgument,
            "this machine does not have the master's address, %s; listen on 0.0.0.0 or [::], or on one it has", text);
    default: return detail_fail(pcclInternalError, "the master could not be started on %s: %s", text, strerror(error));
    }
}

static pcclResult_t run_locked(pcclMasterInstance_t *instance) {
    if (atomic_load(&instance->master) != NULL)
        return detail_fail(pcclInvalidUsage, "this master was run before; create a new one");
    RETURN_IF_FAILED(load_keys(instance));
    struct wire_address listens[MASTER_MAX_LISTENS];
    struct master_options options = instance->options;
    struct transport_options transport = transport_of(instance);
    options.listens = listens;
    options.transport = &transport;
    options.deadlock_s = environment_number("PCCL_DEADLOCK_TIMEOUT_S", 0, API_DEADLOCK_MOST_S, API_DEADLOCK_DEFAULT_S);
    RETURN_IF_FAILED(reach(instance, &transport, listens, &options.listen_count));
    struct master *master;
    int error = master_start(&options, &master);
    if (error != 0) return run_failed(-error, &instance->address);
    atomic_store(&instance->master, master);
    return pcclSuccess;
}

pcclResult_t pcclRunMaster(pcclMasterInstance_t *master) {
    REQUIRE_MASTER(master);
    environment_report_unknown();
    pthread_mutex_lock(&master->lock);
    pcclResult_t code = run_locked(master);
    pthread_mutex_unlock(&master->lock);
    return code;
}

// Programs do this in signal handlers: nothing but async-signal-safe calls, so no detail text either.
static pcclResult_t tell_master(pcclMasterInstance_t *master, void (*tell)(struct master *)) {
    if (master == NULL) return pcclInvalidArgument;
    if (!api_is_own(master->forks)) return pcclInvalidUsage;
    struct master *running = atomic_load(&master->master);
    if (running == NULL) return pcclInvalidUsage;
    tell(running);
    return pcclSuccess;
}

pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master) { return tell_master(master, master_interrupt); }

pcclResult_t pcclDetachMaster(pcclMasterInstance_t *master) { return tell_master(master, master_detach); }

pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master) {
    struct pccl_ticket ticket;
    RETURN_IF_FAILED(pccl_begin_master_end(master, &ticket));
    return pccl_ticket_wait(&ticket, -1);
}

pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *master) {
    REQUIRE_NOT_NULL(master);
    if (!api_is_own(master->forks)) return pcclSuccess;
    struct master *running = atomic_load(&master->master);
    if (running != NULL) {
        master_interrupt(running);
        master_await(running, INT64_MAX);
        master_free(running);
    }
    pthread_mutex_destroy(&master->lock);
    keys_release(master->keys);
    free(master);
    return pcclSuccess;
}

pcclResult_t pccl_ext_master_port(pcclMasterInstance_t *master, uint16_t *port_out) {
    REQUIRE_MASTER(master);
    REQUIRE_NOT_NULL(port_out);
    struct master *running = atomic_load(&master->master);
    if (running == NULL) return detail_fail(pcclInvalidUsage, "this master was not run yet, so it has no port");
    *port_out = master_port(running);
    return pcclSuccess;
}
