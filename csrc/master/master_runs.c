// The runs of a master: their places, and how one is made.
#define LOG_COMPONENT "master"
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/platform.h"
#include "master/master_private.h"
#include "master/quorum.h"
#include "net/keys.h"
#include "net/socket.h"
#include "net/wire_control.h"

// ---- signatures of epochs, with the key of a master ----

static bool master_sign(void *keys, const void *bytes, size_t length, uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    _Static_assert((int)WIRE_SIGNATURE_BYTES == (int)ED25519_SIGNATURE, "a message has room for a signature");
    return ed25519_sign(keys_master_key(keys), bytes, length, signature);
}

static bool master_verify(void *keys, const void *bytes, size_t length, const uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    return keys_verify(keys, bytes, length, signature);
}

// ---- runs ----

struct master_run *master_find_run(struct master *master, const struct wire_run *name) {
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++) {
        struct master_run *run = &master->runs[i];
        if (run->core != NULL && strcmp(run->name.chars, name->chars) == 0) return run;
    }
    return NULL;
}

// Nobody is there, and nobody is expected.
static bool has_ended(const struct master *master, const struct master_run *run) {
    if (run->question.asked || core_activity(run->core) != WIRE_IDLE) return false;
    for (uint32_t i = 0; i < master->endpoint.count; i++)
        if (master_conn(master, i) != NULL && master_conn(master, i)->run == run) return false;
    return true;
}

// NULL: all runs are under way.
static struct master_run *free_place(struct master *master) {
    struct master_run *found = NULL;
    for (uint32_t i = 1; i < WIRE_MAX_RUNS; i++) {
        struct master_run *run = &master->runs[i];
        if (run->core == NULL) return run;
        if ((found == NULL || run->begun < found->begun) && has_ended(master, run)) found = run;
    }
    return found;
}

static bool make_run(struct master *master, struct master_run *run, const struct wire_run *name) {
    uint8_t random[CORE_RANDOM_BYTES];
    if (!platform_random(random, sizeof random)) return false;
    struct master_core *core = core_new(master->heartbeat_limit_ms, random, master->now_ns);
    if (core == NULL) return false;
    core_free(run->core);
    *run = (struct master_run){.name = *name,
                               .core = core,
                               .known_until_ns = master->new_until_ns,
                               .looks_ns = INT64_MAX,
                               .begun = master->runs_begun++};
    void *keys = master->transport->options.keys;
    struct signer signer = {.context = keys, .sign = master_sign, .verify = master_verify};
    core_configure(core, &(struct core_settings){.survivors_until_ns = master->survivors_until_ns,
                                                 .deadlock_ns = master->deadlock_s * SECOND_NS,
                                                 .standby = master->standby,
                                                 .signer = keys != NULL ? &signer : NULL});
    return true;
}

struct master_run *master_open_run(struct master *master, const struct wire_run *name) {
    struct master_run *run = master_find_run(master, name);
    if (run != NULL) return run;
    run = name->chars[0] == 0 ? &master->runs[0] : free_place(master);
    return run != NULL && make_run(master, run, name) ? run : NULL;
}

void master_record(struct master *master, const struct master_run *run, const struct actions *actions) {
    static const uint8_t no_id[RECORDER_ID_BYTES];
    recorder_identify(master->recorder, core_run_id(run->core), no_id, 0);
    for (size_t i = 0; i < actions->event_count; i++) {
        const struct actions_event *event = &actions->events[i];
        recorder_add(
            master->recorder,
            &(struct recorder_event){
                .kind = event->kind, .a = event->a, .b = event->b, .id = event->id.bytes, .text = event->text});
    }
}

void master_tell_runs(const struct master *master, const struct wire_run *only, struct wire_buffer *out) {
    struct wire_runs_are told = {0};
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++) {
        const struct master_run *run = &master->runs[i];
        if (run->core == NULL || core_activity(run->core) == WIRE_IDLE) continue;
        if (only->chars[0] != 0 && strcmp(only->chars, run->name.chars) != 0) continue;
        told.runs[told.count++] = (struct wire_run_is){.run = run->name, .peers = core_peer_count(run->core)};
    }
    wire_encode_runs_are(out, (struct wire_header){0}, &told);
}

bool master_refuse_run(struct master *master, struct conn *conn, const struct wire_header *header) {
    const char *only = transport_peer(conn->at.stream)->run.chars, *named = conn->named.chars;
    if (only[0] == 0 || header->type == WIRE_RUNS || strcmp(only, named) == 0) return false;
    char why[WIRE_MAX_TEXT];
    snprintf(why, sizeof why, "its keys are those of run %s, and it asks for %s%s", only,
             named[0] == 0 ? "the run without a name" : "run ", named);
    char address[64];
    socket_address_format(address, sizeof address, &conn->at.source);
    LOG_LIMITED(&master->strangers_log, LOG_WARN, "refused %s: %s", address, why);
    if (header->type != WIRE_RESUME)
        wire_encode_text(&conn->at.out.bytes, (struct wire_header){0},
                         header->type == WIRE_HELLO ? WIRE_REFUSED : WIRE_REMOVED, why);
    master_conn_start_closing(master, conn);
    return true;
}
