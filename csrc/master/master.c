#define _GNU_SOURCE
#define LOG_COMPONENT "master"
#include "master/master.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/descriptor.h"
#include "master/master_private.h"
#include "net/rendezvous.h"
#include "net/tls.h"

// ---- life ----

static void free_parts(struct master *master) {
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++) core_free(master->runs[i].core);
    pthread_mutex_destroy(&master->lock);
    descriptor_close(master->wake);
    transport_context_release(master->transport);
    transport_context_release(master->plain);
    recorder_free(master->recorder);
    free(master);
}

// NULL: memory or descriptors are refused.
static struct master *make(const struct master_options *options) {
    struct master *master = calloc(1, sizeof *master);
    if (master == NULL) return NULL;
    master->address_count = options->listen_count;
    memcpy(master->addresses, options->listens, options->listen_count * sizeof *options->listens);
    for (uint32_t i = 0; i < options->master_count; i++)
        if (i != options->self) master->others[master->other_count++] = options->masters[i];
    master->idle_limit_ms = options->idle_limit_ms;
    master->endpoint.poller = -1;
    master->transport = tls_context_new(options->transport);
    master->plain = transport_context_new(&(struct transport_options){.insecure = true});
    master->ends_ns = INT64_MAX;
    master->run_log = (struct log_limit){.lines = 100, .seconds = 10};
    master->strangers_log = (struct log_limit){.lines = 20, .seconds = 10};
    master->shortage_log = (struct log_limit){.lines = 1, .seconds = 10};
    master->wake = wake_open();
    pthread_mutex_init(&master->lock, NULL);
    if (master->transport != NULL && master->plain != NULL && master->wake >= 0 && platform_cond_init(&master->changed))
        return master;
    free_parts(master);
    return NULL;
}

static int open_all(struct master *master, const struct master_options *options) {
    master->endpoint = (struct endpoint){.type = &master_conns,
                                         .user = master,
                                         .context = master->transport,
                                         .poller = descriptor_epoll(),
                                         .first_data = MASTER_TOKENS,
                                         .places_most = ACTIONS_MAX_CONNS,
                                         .strangers_most = MASTER_MAX_ANONYMOUS};
    if (master->endpoint.poller < 0) return master->endpoint.poller;
    int error = endpoint_listen_all(&master->endpoint, master->addresses, master->address_count, 0);
    if (error != 0) return error;
    for (uint32_t i = 0; i < master->address_count; i++) { // without them, it tells this host counts only
        int fd = rendezvous_listen_master(&master->addresses[i]);
        if (endpoint_listen(&master->endpoint, fd) == -EADDRINUSE)
            LOG(LOG_WARN,
                "another process holds the local socket of port %u: without keys `pccl top` shows counts only",
                master->addresses[i].port);
    }
    struct epoll_event woken = {.events = EPOLLIN, .data.u64 = MASTER_TOKEN_WAKE};
    if (epoll_ctl(master->endpoint.poller, EPOLL_CTL_ADD, master->wake, &woken) != 0) return -ENOMEM;
    master->now_ns = platform_now_ns();
    master->heartbeat_limit_ms = options->heartbeat_limit_ms;
    master->deadlock_s = options->deadlock_s;
    master->standby = options->master_count > 0 && options->self > 0;
    if (options->new)
        master->new_until_ns = master->now_ns + MASTER_BUSY_MS * MS_NS; // the others are new, too
    else
        master->survivors_until_ns = master->now_ns + MASTER_YOUNG_MS * MS_NS;
    if (master_open_run(master, &(struct wire_run){{0}}) == NULL) return -ENOMEM;
    master->recorder = recorder_new(
        &(struct recorder_options){.role = RECORDER_MASTER, .path = options->events, .name = "master", .run = ""});
    return platform_thread_start(&master->thread, "pccl:master", master_loop, master) ? 0 : -EAGAIN;
}

int master_start(const struct master_options *options, struct master **out) {
    struct master *master = *out = make(options);
    if (master == NULL) return -ENOMEM;
    int error = open_all(master, options);
    if (error == 0) return 0;
    master_close_all(master);
    pthread_cond_destroy(&master->changed);
    free_parts(master);
    *out = NULL;
    return error;
}

uint16_t master_port(const struct master *master) { return master->addresses[0].port; }

bool master_await(struct master *master, int64_t deadline_ns) {
    bool in_time = true;
    pthread_mutex_lock(&master->lock);
    while (!master->ended && in_time) in_time = platform_cond_wait(&master->changed, &master->lock, deadline_ns);
    bool ended = master->ended;
    pthread_mutex_unlock(&master->lock);
    return ended;
}

void master_free(struct master *master) {
    if (master == NULL) return;
    master_interrupt(master);
    pthread_join(master->thread, NULL);
    pthread_cond_destroy(&master->changed);
    free_parts(master);
}
