// Every decoder of net/wire. The input is one frame, with a body as long as there are bytes, whatever the header says
// of its length. What a decoder accepts has one spelling: encoded again it gives the same bytes.
#include "net/wire_control.h"
#include "net/wire_data.h"

#include "fuzz.h"

static struct wire_member members[WIRE_MAX_MEMBERS];
static struct wire_op_report reports[2 * WIRE_MAX_LIVE_OPS];
static struct wire_group_size sizes[WIRE_MAX_MEMBERS];
static struct wire_past past[WIRE_MAX_PAST];
static struct wire_loss losses[WIRE_MAX_MEMBERS];

#define AGAIN(type, name) \
    struct type message; \
    if (!wire_decode_##name(body, length, &message)) return false; \
    wire_encode_##name(out, header, &message); \
    return true

static bool again_text(struct wire_buffer *out, struct wire_header header, const uint8_t *body, size_t length) {
    struct wire_text message;
    if (!wire_decode_text(body, length, &message)) return false;
    MUST(message.length <= WIRE_MAX_TEXT);
    char text[WIRE_MAX_TEXT + 1] = {0};
    memcpy(text, message.chars, message.length);
    if (strlen(text) < message.length) return false; // the encoder takes a string
    wire_encode_text(out, header, (enum wire_type)header.type, text);
    return true;
}

static bool again_hello(struct wire_buffer *out, struct wire_header header, const uint8_t *body, size_t length) {
    struct wire_hello message;
    if (!wire_decode_hello(body, length, &message) || message.version != WIRE_VERSION) return false;
    wire_encode_hello(out, header, &message);
    return true;
}

static void check_epoch(const struct wire_epoch *epoch) {
    MUST(epoch->count > 0 && epoch->count <= WIRE_MAX_MEMBERS && epoch->group_epoch <= epoch->number);
    for (uint32_t i = 0; i < epoch->count; i++) {
        MUST(epoch->members[i].lanes >= 1 && epoch->members[i].lanes <= WIRE_MAX_LANES);
        MUST(i == 0 || epoch->members[i].group >= epoch->members[i - 1].group);
        for (uint32_t k = 0; k < i; k++) MUST(!wire_id_equal(&epoch->members[i].id, &epoch->members[k].id));
    }
}

static bool again_candidate(struct wire_buffer *out, struct wire_header header, const uint8_t *body, size_t length) {
    struct wire_candidate message = {.epoch.members = members};
    if (!wire_decode_candidate(body, length, &message)) return false;
    check_epoch(&message.epoch);
    wire_encode_candidate(out, header, &message);
    return true;
}

static bool again_epoch(struct wire_buffer *out, struct wire_header header, const uint8_t *body, size_t length) {
    struct wire_epoch_commit message = {.epoch.members = members};
    if (!wire_decode_epoch_commit(body, length, &message)) return false;
    check_epoch(&message.epoch);
    wire_encode_epoch_commit(out, header, &message);
    return true;
}

static bool again_report(struct wire_buffer *out, struct wire_header header, const uint8_t *body, size_t length) {
    struct wire_report message = {.ops = reports};
    if (!wire_decode_report(body, length, &message)) return false;
    wire_encode_report(out, header, &message);
    return true;
}

static void check_ended_vote(const struct wire_ended_vote *vote) {
    MUST(vote->count <= WIRE_MAX_MEMBERS && (vote->number == 0) == (vote->count == 0));
    for (uint32_t i = 0; i < vote->count; i++)
        MUST(vote->sizes[i].count > 0 && (i == 0 || vote->sizes[i].group > vote->sizes[i - 1].group));
}

static bool again_matrix(struct wire_buffer *out, struct wire_header header, const uint8_t *body, size_t length) {
    static struct wire_matrix message;
    const pcclDiagnosis_t *told = &message.told;
    if (!wire_decode_matrix(body, length, &message) || message.version != WIRE_VERSION) return false;
    for (size_t i = 0; i < told->edge_count; i++)
        MUST(told->edges[i].member < told->member_count && told->edges[i].other < told->member_count);
    for (size_t i = 0; i < told->number_count; i++) MUST(told->numbers[i].member < told->member_count);
    for (size_t i = 0; i < told->joiner_count; i++)
        MUST(told->joiners[i].done <= told->joiners[i].total && told->joiners[i].total <= WIRE_MOST_SEEN);
    wire_encode_matrix(out, header, &message);
    return true;
}

static bool again_resume(struct wire_buffer *out, struct wire_header header, const uint8_t *body, size_t length) {
    struct wire_resume message = {.last_vote.sizes = sizes, .epoch.members = members, .past = past, .losses = losses};
    if (!wire_decode_resume(body, length, &message) || message.hello.version != WIRE_VERSION) return false;
    if (message.accepted) {
        check_epoch(&message.epoch);
        check_ended_vote(&message.last_vote);
        MUST(message.past_count <= WIRE_MAX_PAST);
    }
    wire_encode_resume(out, header, &message);
    return true;
}

static bool again_resumed(struct wire_buffer *out, struct wire_header header, const uint8_t *body, size_t length) {
    static struct wire_resumed message;
    message.last_vote.sizes = sizes;
    message.losses = losses;
    if (!wire_decode_resumed(body, length, &message)) return false;
    check_ended_vote(&message.last_vote);
    wire_encode_resumed(out, header, &message);
    return true;
}

// Decodes, and encodes again. False: refused.
static bool again(struct wire_buffer *out, struct wire_header header, const uint8_t *body, size_t length) {
    switch ((enum wire_type)header.type) {
    case WIRE_HELLO: return again_hello(out, header, body, length);
    case WIRE_WELCOME: {
        AGAIN(wire_welcome, welcome);
    }
    case WIRE_REFUSED:
    case WIRE_WAITING:
    case WIRE_DEADLOCK:
    case WIRE_EXPELLED: return again_text(out, header, body, length);
    case WIRE_CANDIDATE: return again_candidate(out, header, body, length);
    case WIRE_LINKED: {
        AGAIN(wire_linked, linked);
    }
    case WIRE_EPOCH: return again_epoch(out, header, body, length);
    case WIRE_VOTE: {
        AGAIN(wire_vote, vote);
    }
    case WIRE_OUTCOME: {
        AGAIN(wire_outcome, outcome);
    }
    case WIRE_DONE: {
        AGAIN(wire_op_done, op_done);
    }
    case WIRE_VERDICT: {
        AGAIN(wire_verdict, verdict);
    }
    case WIRE_REPORT: return again_report(out, header, body, length);
    case WIRE_MISMATCH: {
        AGAIN(wire_mismatch, mismatch);
    }
    case WIRE_LEAVING: {
        AGAIN(wire_leaving, leaving);
        break;
    }
    case WIRE_REMOVE: {
        AGAIN(wire_remove, remove);
        break;
    }
    case WIRE_PRECOPY: {
        AGAIN(wire_precopy, precopy);
    }
    case WIRE_DONORS: {
        AGAIN(wire_donors, donors);
    }
    case WIRE_NUMBERS: {
        AGAIN(wire_numbers, numbers);
    }
    case WIRE_WAITS: {
        AGAIN(wire_waits, waits);
    }
    case WIRE_LINK_DOWN: {
        AGAIN(wire_link_down, link_down);
    }
    case WIRE_MEASURE: {
        AGAIN(wire_measure, measure);
    }
    case WIRE_MEASURED: {
        AGAIN(wire_measured, measured);
    }
    case WIRE_SYNC_VOTE: {
        AGAIN(wire_sync_vote, sync_vote);
    }
    case WIRE_SYNC_PLAN: {
        AGAIN(wire_sync_plan, sync_plan);
    }
    case WIRE_SYNC_DONE: {
        AGAIN(wire_sync_done, sync_done);
    }
    case WIRE_SYNC_END: {
        AGAIN(wire_sync_end, sync_end);
    }
    case WIRE_SYNC_DIFFERS: {
        AGAIN(wire_sync_differs, sync_differs);
    }
    case WIRE_RESUME: return again_resume(out, header, body, length);
    case WIRE_RESUMED: return again_resumed(out, header, body, length);
    case WIRE_STATUS_IS: {
        AGAIN(wire_status_is, status_is);
    }
    case WIRE_TELEMETRY: {
        AGAIN(wire_telemetry, telemetry);
    }
    case WIRE_MATRIX: return again_matrix(out, header, body, length);
    case WIRE_LINK_HELLO: {
        AGAIN(wire_link_hello, link_hello);
    }
    default: return false; // no body, or that of a data frame
    }
}

static void try_body(struct wire_header header, const uint8_t *body, size_t length) {
    struct wire_buffer out = {0};
    uint8_t *exact = fuzz_copy(body, length);
    if (again(&out, header, exact, length)) {
        MUST(!out.failed && out.length == WIRE_HEADER_BYTES + length);
        MUST(length == 0 || memcmp(out.bytes + WIRE_HEADER_BYTES, body, length) == 0);
    }
    free(exact);
    wire_buffer_fini(&out);
}

static void try_head(uint16_t type, const uint8_t *bytes) {
    struct wire_head head;
    uint8_t back[WIRE_HEAD_BYTES];
    if (!wire_head_decode(bytes, type, &head)) return;
    wire_head_encode(back, type, &head);
    MUST(memcmp(back, bytes, sizeof back) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < WIRE_HEADER_BYTES) return 0;
    struct wire_header header;
    uint8_t back[WIRE_HEADER_BYTES];
    if (wire_header_decode(data, &header)) {
        MUST(header.length <= WIRE_MAX_CONTROL_BYTES || header.length <= WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES);
        wire_header_encode(back, &header);
        MUST(memcmp(back, data, sizeof back) == 0);
    }
    // The decoders trust no length, so the type alone chooses; a header with the true length is needed for a body to be
    // read at all.
    header.length = (uint32_t)(size - WIRE_HEADER_BYTES);
    wire_header_encode(back, &header);
    if (!wire_header_decode(back, &header)) return 0;
    if ((header.type >= WIRE_READY && header.type <= WIRE_EARLY) || header.type == WIRE_SMALL_IN)
        try_head(header.type, data + WIRE_HEADER_BYTES);
    else
        try_body(header, data + WIRE_HEADER_BYTES, header.length);
    return 0;
}
