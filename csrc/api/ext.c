#define _GNU_SOURCE
#include "api/ext.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/log.h"
#include "base/platform.h"
#include "base/memory.h"
#include "compute/kernels.h"
#include "device/cuda.h"
#include "net/cards.h"
#include "net/keys.h"
#include "net/peer_name.h"
#include "api/api.h"

enum { STREAM_LEAST = 1 << 20 }; // bytes of a copy that goes past the caches

// A line is handed over as it is.
_Static_assert(sizeof(struct pccl_log_line) == sizeof(struct log_line), "the same fields in the same order");
_Static_assert(offsetof(struct pccl_log_line, component) == offsetof(struct log_line, component), "likewise");
_Static_assert(offsetof(struct pccl_log_line, text) == offsetof(struct log_line, text), "likewise");

_Static_assert(sizeof(struct pccl_ext_lost) == sizeof(struct wire_gone), "so is a lost member");
_Static_assert(offsetof(struct pccl_ext_lost, why) == offsetof(struct wire_gone, why), "likewise");

const char *pccl_ext_detail(void) { return detail_get(); }

pcclResult_t pccl_ext_key_public(const uint8_t *private_key, uint8_t *public_out) {
    REQUIRE_NOT_NULL(private_key);
    REQUIRE_NOT_NULL(public_out);
    if (!KEYS_WORK) return detail_fail(pcclInvalidUsage, KEYS_MISSING);
    return keys_public_of(private_key, public_out) ? pcclSuccess : detail_fail(pcclInternalError, KEYS_REFUSED);
}

pcclResult_t pccl_ext_keys_check(const char *path, bool *master) {
    REQUIRE_NOT_NULL(path);
    REQUIRE_NOT_NULL(master);
    char reason[KEYS_REASON_BYTES];
    struct keys *keys = keys_load(path, reason);
    if (keys == NULL) return detail_fail(pcclInvalidArgument, "%s", reason);
    *master = keys_master_key(keys) != NULL;
    keys_release(keys);
    return pcclSuccess;
}

// Waits for the answer, which replaces `query`. 0 or -errno.
static int ask(const struct status_question *question, uint32_t limit_ms, struct status_query **query,
               struct wire_header *header, const uint8_t **body) {
    int error = status_query_begin(question, query);
    return error == 0 ? status_query_wait(*query, platform_now_ns() + limit_ms * MS_NS, header, body) : error;
}

// Takes an answer of the master. REMOVED says why it refuses, if it does.
static pcclResult_t take_answer(const struct wire_header *header, const uint8_t *body, void *out, size_t capacity,
                                size_t *length_out) {
    struct wire_text why = {0};
    bool removed = header->type == WIRE_REMOVED;
    if ((removed && !wire_decode_text(body, header->length, &why)) || header->length > capacity)
        return api_no_answer(-EPROTO);
    if (why.length > 0) return detail_fail(pcclInvalidUsage, "the master refused: %.*s", (int)why.length, why.chars);
    *length_out = removed ? 0 : header->length;
    if (*length_out > 0) memcpy(out, body, *length_out);
    return pcclSuccess;
}

pcclResult_t pccl_ext_ask(const struct pccl_ext_question *question, uint32_t limit_ms, void *out, size_t capacity,
                          size_t *length_out) {
    static const enum wire_type types[] = {WIRE_STATUS, WIRE_RUNS, WIRE_REMOVE, WIRE_STACKS};
    REQUIRE_NOT_NULL(question);
    REQUIRE_NOT_NULL(out);
    REQUIRE_NOT_NULL(length_out);
    enum wire_type type = types[question->kind];
    bool operates = type == WIRE_REMOVE || type == WIRE_STACKS, of_all = type == WIRE_RUNS;
    const char *keys = question->keys;
    struct status_question asked = {.type = type, .body = question->body, .length = question->length};
    asked.local = of_all && (keys == NULL || keys[0] == 0);
    RETURN_IF_FAILED(api_take_run(question->run, &asked.run));
    RETURN_IF_FAILED(api_take_address(question->address, "address", &asked.master));
    RETURN_IF_FAILED(
        operates ? api_operator(keys, &asked.context)
                 : api_observer(keys, question->insecure, &asked.master, of_all ? NULL : &asked.run, &asked.context));
    struct status_query *query = NULL;
    struct wire_header header;
    const uint8_t *body;
    int error = ask(&asked, limit_ms, &query, &header, &body);
    pcclResult_t code = error == 0 ? take_answer(&header, body, out, capacity, length_out) : pcclTimedOut;
    if (error == -ETIMEDOUT && type == WIRE_STACKS)
        detail_fail(code,
                    "the member has not answered in %u ms: its process is stopped, or a thread does not release "
                    "Python's global lock; look at it with py-spy or gdb",
                    limit_ms);
    else if (error != 0)
        code = api_no_answer(error);
    status_query_end(query);
    transport_context_release(asked.context);
    return code;
}

bool pccl_ext_comm_await_stacks(const pcclComm_t *comm) { return communicator_await_stacks(comm->communicator); }

pcclResult_t pccl_ext_comm_tell_stacks(const pcclComm_t *comm, const char *text, size_t length) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(text);
    if (length > WIRE_MAX_STACKS) return detail_fail(pcclInvalidArgument, "%zu bytes of stacks are too many", length);
    communicator_tell_stacks(comm->communicator, text, length);
    return pcclSuccess;
}

pcclResult_t pccl_ext_comm_events(const pcclComm_t *comm, char *out, size_t capacity) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    if (capacity == 0) return detail_fail(pcclInvalidArgument, "there is no room for the path");
    communicator_events_path(comm->communicator, out, capacity);
    return pcclSuccess;
}

pcclResult_t pccl_ext_comm_report(const pcclComm_t *comm, const char *const *names, const double *values,
                                  size_t count) {
    struct wire_numbers numbers = {.count = (uint32_t)count};
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(names);
    REQUIRE_NOT_NULL(values);
    if (count > WIRE_MAX_NUMBERS)
        return detail_fail(pcclInvalidArgument, "%zu numbers are more than %d", count, WIRE_MAX_NUMBERS);
    for (size_t i = 0; i < count; i++) {
        REQUIRE_NOT_NULL(names[i]);
        size_t length = strnlen(names[i], WIRE_MAX_NUMBER_NAME + 1);
        if (!wire_is_number_name(names[i], length))
            return detail_fail(pcclInvalidArgument,
                               "the name of a number must have 1 to %d letters, digits and "
                               "underscores",
                               WIRE_MAX_NUMBER_NAME);
        memcpy(numbers.list[i].name, names[i], length);
        numbers.list[i].value = values[i];
    }
    communicator_report(comm->communicator, &numbers);
    return pcclSuccess;
}

static pcclResult_t take_name(const char *name, struct wire_name *out) {
    size_t length = strnlen(name, WIRE_MAX_NAME + 1);
    if (length == 0 || !peer_name_is_clean(name, length))
        return detail_fail(pcclInvalidArgument,
                           "the name of a peer must have 1 to %d bytes of printable UTF-8, and no space at an end",
                           WIRE_MAX_NAME);
    *out = (struct wire_name){{0}};
    memcpy(out->chars, name, length);
    return pcclSuccess;
}

static pcclResult_t take_limits(const struct pccl_ext_comm_settings *settings, struct wire_limits *out) {
    uint32_t least = settings->least == UINT32_MAX ? out->least : settings->least;
    uint32_t most = settings->most == UINT32_MAX ? out->most : settings->most;
    RETURN_IF_FAILED(api_check_limits(least, most));
    *out = (struct wire_limits){(uint16_t)least, (uint16_t)most,
                                settings->wait_ms == UINT32_MAX ? out->wait_ms : settings->wait_ms};
    return pcclSuccess;
}

static pcclResult_t take_interfaces(const char *interfaces, struct cards *out) {
    char why[CARDS_WHY_BYTES];
    *out = (struct cards){0};
    if (cards_read(out, interfaces, getenv("PCCL_ADDRESS"), why)) return pcclSuccess;
    return detail_fail(pcclInvalidArgument, "%s", why);
}

// All but the keys.
static pcclResult_t take_settings(const struct pccl_ext_comm_settings *settings, struct communicator_params *out) {
    if (settings->recovery_ms != UINT32_MAX) out->member.recovery_limit_ms = settings->recovery_ms;
    if (out->member.recovery_limit_ms > API_RECOVERY_MOST_MS)
        return detail_fail(pcclInvalidArgument, "a limit of %u ms is more than %d", settings->recovery_ms,
                           API_RECOVERY_MOST_MS);
    if (settings->masters != NULL) {
        RETURN_IF_FAILED(api_take_addresses(settings->masters, settings->master_count, out->masters.list));
        out->masters.count = (uint32_t)settings->master_count;
    }
    if (settings->name != NULL) RETURN_IF_FAILED(take_name(settings->name, &out->member.name));
    if (settings->interfaces != NULL) RETURN_IF_FAILED(take_interfaces(settings->interfaces, &out->cards));
    if (settings->run != NULL) RETURN_IF_FAILED(api_take_run(settings->run, &out->run));
    if (settings->events != NULL) RETURN_IF_FAILED(api_take_events(settings->events, out->events));
    out->member.join_only = settings->join_only;
    out->transport.insecure |= settings->insecure;
    return take_limits(settings, &out->member.limits);
}

pcclResult_t pccl_ext_comm_configure(pcclComm_t *comm, const struct pccl_ext_comm_settings *settings) {
    struct communicator_params params;
    struct keys *keys = NULL;
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(settings);
    communicator_params(comm->communicator, &params);
    RETURN_IF_FAILED(take_settings(settings, &params));
    if (settings->keys != NULL) RETURN_IF_FAILED(api_load_keys(settings->keys, TRANSPORT_PEER, &keys));
    bool in_time = communicator_configure(comm->communicator, &params, keys);
    keys_release(keys);
    if (!in_time) return detail_fail(pcclInvalidUsage, "the settings of a communicator are given before connect");
    if (settings->keys != NULL) atomic_store(&comm->has_keys, true);
    return pcclSuccess;
}

pcclResult_t pccl_ext_comm_set_state(pcclComm_t *comm, const pcclSharedState_t *shared_state, const bool *read_only,
                                     int gives) {
    REQUIRE_COMM(comm);
    if (gives < 0 || gives > 2) return detail_fail(pcclInvalidArgument, "gives must be 0, 1 or 2, not %d", gives);
    if (shared_state != NULL && shared_state->count > 0) REQUIRE_NOT_NULL(shared_state->infos);
    if (shared_state != NULL) RETURN_IF_FAILED(api_check_state(shared_state));
    return shared_state_set_precopy(comm->communicator, shared_state, read_only, gives);
}

pcclResult_t pccl_ext_comm_leave(pcclComm_t *comm, uint32_t within_ms, bool at_update) {
    REQUIRE_COMM(comm);
    return communicator_announce(comm->communicator, within_ms, at_update);
}

pcclResult_t pccl_ext_comm_leaving(const pcclComm_t *comm, pcclRankUuid_t *uuids_out, int64_t *within_ms_out,
                                   size_t capacity, size_t *count_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(uuids_out);
    REQUIRE_NOT_NULL(within_ms_out);
    REQUIRE_NOT_NULL(count_out);
    struct leaving_member *members = calloc(capacity + 1, sizeof *members);
    if (members == NULL) return detail_fail(pcclInternalError, "the system refused memory for the members");
    pcclResult_t code = communicator_leaving(comm->communicator, members, capacity, count_out);
    int64_t now = platform_now_ns();
    for (size_t i = 0; code == pcclSuccess && i < *count_out && i < capacity; i++) {
        int64_t left = (members[i].at_ns - now) / MS_NS;
        memcpy(&uuids_out[i], &members[i].id, sizeof uuids_out[i]);
        within_ms_out[i] = members[i].at_ns == INT64_MAX ? -1 : left > 0 ? left : 0;
    }
    free(members);
    return code;
}

pcclResult_t pccl_ext_peer_name(const pcclComm_t *comm, const pcclRankUuid_t *uuid, char *out, size_t capacity) {
    struct wire_name name = {{0}};
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(uuid);
    REQUIRE_NOT_NULL(out);
    if (capacity == 0) return detail_fail(pcclInvalidArgument, "capacity must not be 0");
    communicator_peer_name(comm->communicator, (const struct wire_id *)(const void *)uuid, &name);
    snprintf(out, capacity, "%s", name.chars);
    return pcclSuccess;
}

pcclResult_t pccl_ext_comm_lost(const pcclComm_t *comm, struct pccl_ext_lost *out, size_t capacity, size_t *count_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    REQUIRE_NOT_NULL(count_out);
    *count_out = communicator_lost(comm->communicator, (struct wire_gone *)(void *)out, capacity);
    return pcclSuccess;
}

pcclResult_t pccl_ext_comm_state(const pcclComm_t *comm, char *out, size_t capacity) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    if (capacity == 0) return detail_fail(pcclInvalidArgument, "capacity must not be 0");
    communicator_state(comm->communicator, out, capacity);
    return pcclSuccess;
}

pcclResult_t pccl_ext_comm_alive(const pcclComm_t *comm) {
    REQUIRE_COMM(comm);
    return communicator_usable(comm->communicator);
}

pcclResult_t pccl_ext_comm_stop(pcclComm_t *comm) {
    REQUIRE_COMM(comm);
    if (!connect_is_undecided(comm->communicator)) api_forget(comm);
    connect_stop(comm->communicator);
    return pcclSuccess;
}

pcclResult_t pccl_ext_comm_set_end(pcclComm_t *comm, pccl_ext_end_t end) {
    REQUIRE_COMM(comm);
    connect_set_end(comm->communicator, (enum communicator_end)end);
    return pcclSuccess;
}

pcclResult_t pccl_ext_comm_event_fd(const pcclComm_t *comm, int *fd_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(fd_out);
    int fd = communicator_events(comm->communicator);
    if (fd < 0) return detail_fail(pcclInternalError, "the system refused a descriptor for events: %s", strerror(-fd));
    *fd_out = fd;
    return pcclSuccess;
}

pcclResult_t pccl_ext_comm_uuid(const pcclComm_t *comm, pcclRankUuid_t *out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    struct wire_id id = communicator_id(comm->communicator);
    memcpy(out->data, id.bytes, sizeof out->data);
    return pcclSuccess;
}

pcclResult_t pccl_ext_snapshot_members(const pcclComm_t *comm, pcclRankUuid_t *uuids_out, size_t capacity,
                                       size_t *count_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(uuids_out);
    REQUIRE_NOT_NULL(count_out);
    return ops_members(comm->communicator, true, (struct wire_id *)(void *)uuids_out, capacity, count_out);
}

pcclResult_t pccl_ext_launched(const pcclComm_t *comm, uint64_t tag, uint32_t *out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    *out = ops_launched(comm->communicator, tag);
    return pcclSuccess;
}

pcclResult_t pccl_ext_posted(const pcclComm_t *comm, uint64_t tag, const pcclRankUuid_t *member, bool *posted_out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(member);
    REQUIRE_NOT_NULL(posted_out);
    return ops_posted(comm->communicator, tag, (const struct wire_id *)(const void *)member, posted_out);
}

pcclResult_t pccl_ext_sync_report(const pcclComm_t *comm, struct pccl_sync_report *out) {
    REQUIRE_COMM(comm);
    REQUIRE_NOT_NULL(out);
    struct shared_state_report report;
    shared_state_look(comm->communicator, &report);
    *out = (struct pccl_sync_report){
        .tx_bytes = report.tx_bytes,
        .rx_bytes = report.moved.rx_bytes,
        .rx_leaves = report.moved.rx_leaves,
        .wire_bytes = report.moved.wire_bytes,
        .missing_bytes = report.moved.missing_bytes,
        .donors = report.moved.donors,
        .hashing = report.hashing,
        .seconds = report.seconds,
        .hash_seconds = report.hash_seconds,
        .transfer_seconds = report.transfer_seconds,
    };
    return pcclSuccess;
}

pcclResult_t pccl_ext_state_hash(const pcclSharedState_t *state, uint64_t *low_out, uint64_t *high_out,
                                 uint64_t *entries_out) {
    if (low_out == NULL || high_out == NULL) return api_null("out");
    struct content *content;
    RETURN_IF_FAILED(api_content_of(state, &content));
    content_hash(content, INT64_MAX);
    if (content_error(content) != NULL) {
        pcclResult_t code = detail_fail(pcclInternalError, "the tensors cannot be read: %s", content_error(content));
        content_free(content);
        return code;
    }
    *low_out = content->hash.low;
    *high_out = content->hash.high;
    if (entries_out != NULL) {
        memset(entries_out, 0, 2 * state->count * sizeof *entries_out);
        for (size_t i = 0; i < content->layout.count; i++) {
            const struct delta_entry *entry = &content->layout.entries[i];
            struct hash128 hash = hash_root(content->leaves + entry->first_leaf, entry->leaf_count);
            memcpy(entries_out + 2 * entry->info, &hash, sizeof hash);
        }
    }
    content_free(content);
    return pcclSuccess;
}

int pccl_ext_cpu_level(const char **name_out) {
    const struct kernels *kernels = kernels_get();
    if (name_out != NULL) *name_out = kernels->name;
    return (int)kernels->level;
}

int pccl_ext_cuda(char *text_out, size_t capacity) {
    const char *why;
    const struct cuda_library *library = cuda_library_load(&why);
    if (library != NULL) return library->describe(text_out, capacity);
    snprintf(text_out, capacity, "%s", why);
    return 0;
}

bool pccl_ext_cuda_kernels(bool load, char *text_out, size_t capacity) {
    const char *why;
    const struct cuda_library *library = cuda_library_load(&why);
    if (library != NULL) return library->has_kernels(load, text_out, capacity);
    snprintf(text_out, capacity, "%s", why);
    return false;
}

const void *pccl_ext_cuda_fatbin(void) {
    const char *why;
    const struct cuda_library *library = cuda_library_load(&why);
    return library == NULL ? NULL : library->kernels();
}

bool pccl_ext_is_at_gpu(const void *memory) { return cuda_owns(memory); }

const char *pccl_ext_environment(size_t index, const char **meaning_out) {
    const struct environment_variable *variable = environment_variable(index);
    if (variable != NULL && meaning_out != NULL) *meaning_out = variable->meaning;
    return variable == NULL ? NULL : variable->name;
}

int pccl_ext_log_begin(void) { return log_capture_begin(); }

void pccl_ext_log_end(void) { log_capture_end(); }

bool pccl_ext_log_take(struct pccl_log_line *out) { return log_capture_take((struct log_line *)(void *)out); }

void pccl_ext_log_write(const struct pccl_log_line *line) {
    log_write_captured((const struct log_line *)(const void *)line);
}

void pccl_ext_log_prefer(int level) { log_prefer((enum log_level)level); }

bool pccl_ext_can_write(void *memory, size_t bytes) { return memory_can_be_written(memory, bytes); }

void pccl_ext_copy(void *to, const void *from, size_t bytes) {
    if (bytes >= STREAM_LEAST)
        memory_copy_past_caches(to, from, bytes);
    else if (bytes > 0)
        memcpy(to, from, bytes);
}

bool pccl_ext_has_tls(void) { return KEYS_WORK; }

bool pccl_ext_has_lz4(void) {
#ifdef PCCL_HAVE_LZ4
    return true;
#else
    return false;
#endif
}
