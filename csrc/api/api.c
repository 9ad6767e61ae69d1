#define _GNU_SOURCE
#include "api/api.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/descriptor.h"
#include "base/environment.h"
#include "base/log.h"
#include "compute/kernels.h"
#include "device/cuda.h"
#include "net/socket.h"

enum { ALLOWED_BYTES = 256 }; // names of congestion controls, in an error

static atomic_bool initialized;

bool api_initialize(void) { return !atomic_exchange(&initialized, true); }

pcclResult_t api_take_events(const char *path, char out[RECORDER_PATH_BYTES]) {
    REQUIRE_NOT_NULL(path);
    size_t length = strnlen(path, RECORDER_PATH_BYTES);
    if (length == 0 || length == RECORDER_PATH_BYTES)
        return detail_fail(pcclInvalidArgument, "the path of a file of events must have 1 to %d bytes",
                           RECORDER_PATH_BYTES - 1);
    memcpy(out, path, length + 1);
    return pcclSuccess;
}

pcclResult_t api_null(const char *name) { return detail_fail(pcclInvalidArgument, "%s must not be NULL", name); }

bool api_is_own(uint32_t forks) { return forks == descriptor_forks(); }

pcclResult_t api_own(uint32_t forks, const char *noun) {
    if (api_is_own(forks)) return pcclSuccess;
    return detail_fail(pcclInvalidUsage,
                       "the %s is that of the process that this one was forked from; create one after the fork", noun);
}

pcclResult_t api_initialized(void) {
    if (atomic_load(&initialized)) return pcclSuccess;
    return detail_fail(pcclNotInitialized, "call pcclInit first");
}

pcclResult_t api_take_address(const ccoip_socket_address_t *in, const char *name, struct wire_address *out) {
    if (in == NULL) return api_null(name);
    if (in->inet.protocol != inetIPv4 && in->inet.protocol != inetIPv6)
        return detail_fail(pcclInvalidArgument, "%s: protocol %d is neither IPv4 nor IPv6", name,
                           (int)in->inet.protocol);
    bool is_ipv4 = in->inet.protocol == inetIPv4;
    *out = (struct wire_address){.family = is_ipv4 ? 4 : 6, .port = in->port};
    memcpy(out->bytes, is_ipv4 ? in->inet.ipv4.data : in->inet.ipv6.data, is_ipv4 ? 4 : 16);
    *out = socket_address_unmapped(*out);
    return pcclSuccess;
}

pcclResult_t api_take_addresses(const ccoip_socket_address_t *addresses, size_t count,
                                struct wire_address out[WIRE_MAX_MASTERS]) {
    REQUIRE_NOT_NULL(addresses);
    if (count < 1 || count > WIRE_MAX_MASTERS)
        return detail_fail(pcclInvalidArgument, "%zu masters are given: 1 to %d can be", count, WIRE_MAX_MASTERS);
    for (size_t i = 0; i < count; i++) RETURN_IF_FAILED(api_take_address(&addresses[i], "addresses", &out[i]));
    return pcclSuccess;
}

pcclResult_t api_check_limits(uint32_t least, uint32_t most) {
    if (least > WIRE_MAX_MEMBERS || most > WIRE_MAX_MEMBERS)
        return detail_fail(pcclInvalidArgument, "min_members %u and max_members %u: a run has at most %d members",
                           least, most, WIRE_MAX_MEMBERS);
    if (most != 0 && least > most)
        return detail_fail(pcclInvalidArgument, "min_members %u is more than max_members %u; give a smaller one", least,
                           most);
    return pcclSuccess;
}

// A name of the kernel may have capitals.
static bool may_choose(const char *name, char *chosen, char *allowed) {
    snprintf(chosen, TRANSPORT_CONGESTION_BYTES, "%s", name);
    if (socket_may_choose(name, allowed, ALLOWED_BYTES)) return true;
    for (char *at = chosen; *at != 0; at++) *at = (char)tolower((unsigned char)*at);
    return strlen(name) < TRANSPORT_CONGESTION_BYTES && socket_may_choose(chosen, allowed, ALLOWED_BYTES);
}

bool api_insecure(bool permitted) { return permitted || environment_switch("PCCL_INSECURE", false); }

struct transport_options api_transport_options(void) {
    struct transport_options options = {.insecure = api_insecure(false)};
    const char *name = getenv("PCCL_CONGESTION_CONTROL");
    char allowed[ALLOWED_BYTES];
    if (name == NULL || *name == 0 || strcasecmp(name, "system") == 0) return options;
    if (may_choose(name, options.congestion, allowed)) return options;
    options.congestion[0] = 0;
    static atomic_flag reported = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&reported)) return options;
    LOG(LOG_ERR,
        "PCCL_CONGESTION_CONTROL=%s is ignored: this system lets the process choose among %s, or leave the choice "
        "to it (system)",
        name, allowed[0] == 0 ? "nothing" : allowed);
    return options;
}

// ---- shared state ----

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static pcclResult_t check_names(const pcclSharedState_t *state) {
    const char **names = calloc(state->count, sizeof *names);
    if (names == NULL) return detail_fail(pcclInternalError, "the system refused memory for %zu names", state->count);
    for (size_t i = 0; i < state->count; i++) names[i] = state->infos[i].name;
    qsort(names, state->count, sizeof *names, compare_names);
    pcclResult_t code = pcclSuccess;
    for (size_t i = 1; i < state->count && code == pcclSuccess; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            code =
                detail_fail(pcclInvalidArgument, "two entries have the name \"%.200s\"; names must differ", names[i]);
    free(names);
    return code;
}

static pcclResult_t check_entry(const pcclTensorInfo_t *info, size_t index) {
    if (info->name == NULL) return detail_fail(pcclInvalidArgument, "entry %zu has no name", index);
    if (info->data == NULL && info->count > 0)
        return detail_fail(pcclInvalidArgument, "entry \"%.200s\" has no data", info->name);
    if ((int)info->datatype < pcclUint8 || (int)info->datatype > pcclBool)
        return detail_fail(pcclInvalidArgument, "entry \"%.200s\": datatype %d is no pcclDataType_t", info->name,
                           (int)info->datatype);
    if (info->count > (size_t)PTRDIFF_MAX / dtype_size((int)info->datatype))
        return detail_fail(pcclInvalidArgument, "entry \"%.200s\": count %zu is more than memory can hold", info->name,
                           info->count);
    if (info->device_type == pcclDeviceCuda && info->count > 0 && !cuda_owns(info->data))
        return detail_fail(pcclInvalidArgument,
                           "entry \"%.200s\" is said to be on a CUDA device, but the CUDA driver of this process does "
                           "not know its memory",
                           info->name);
    if (info->device_type != pcclDeviceCpu && info->device_type != pcclDeviceCuda)
        return detail_fail(pcclInvalidArgument, "entry \"%.200s\": device type %d is no pcclDeviceType_t", info->name,
                           (int)info->device_type);
    return pcclSuccess;
}

pcclResult_t api_check_state(const pcclSharedState_t *state) {
    if (state->count == 0) return detail_fail(pcclInvalidArgument, "the shared state has no entries");
    if (state->count > PTRDIFF_MAX / sizeof *state->infos)
        return detail_fail(pcclInvalidArgument, "count %zu of the shared state is more than memory can hold",
                           state->count);
    size_t total = 0;
    for (size_t i = 0; i < state->count; i++) {
        const pcclTensorInfo_t *info = &state->infos[i];
        RETURN_IF_FAILED(check_entry(info, i));
        size_t bytes = info->count * dtype_size((int)info->datatype);
        if (bytes > PTRDIFF_MAX - total)
            return detail_fail(pcclInvalidArgument,
                               "entry \"%.200s\" has %zu bytes: with the entries before it, more than memory can hold",
                               info->name, bytes);
        total += bytes;
    }
    return check_names(state);
}

pcclResult_t api_take_run(const char *name, struct wire_run *out) {
    REQUIRE_NOT_NULL(name);
    size_t length = strnlen(name, WIRE_MAX_RUN + 1);
    *out = (struct wire_run){{0}};
    if (length > 0 && !wire_is_run_name(name, length))
        return detail_fail(pcclInvalidArgument, "the name of a run has 1 to %d letters, digits, '.', '_' and '-'",
                           WIRE_MAX_RUN);
    memcpy(out->chars, name, length);
    return pcclSuccess;
}

pcclResult_t api_content_of(const pcclSharedState_t *state, struct content **out) {
    if (state == NULL || (state->count > 0 && state->infos == NULL)) return api_null("shared_state");
    RETURN_IF_FAILED(api_check_state(state));
    return content_new(state, NULL, out);
}
