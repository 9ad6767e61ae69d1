// Every message: random content survives a round trip; every truncation, every trailing byte, huge counts and unknown
// enumerators are refused; random bytes are never read out of bounds (each body lies in a heap block of its exact size,
// for the address sanitizer).
#include "net/wire_control.h"
#include "net/wire_data.h"

#include "check.h"

static uint64_t seed = 1;

static struct wire_member members[WIRE_MAX_MEMBERS + 1];
static struct wire_op_report reports[2 * WIRE_MAX_LIVE_OPS + 1];
static struct wire_group_size group_sizes[WIRE_MAX_MEMBERS + 1];
static struct wire_loss losses[WIRE_MAX_MEMBERS];
static struct wire_past past[WIRE_MAX_PAST + 1];

static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

static void fill(void *out, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)out)[i] = (uint8_t)check_random(&seed);
}

static void random_id(struct wire_id *id) { fill(id->bytes, sizeof id->bytes); }

static struct wire_address random_address(void) {
    struct wire_address address = {.family = below(2) ? 4 : 6, .port = (uint16_t)check_random(&seed)};
    fill(address.bytes, sizeof address.bytes);
    return address;
}

static struct wire_fingerprint random_fingerprint(void) {
    return (struct wire_fingerprint){check_random(&seed), (uint32_t)check_random(&seed), (uint8_t)below(256),
                                     (uint8_t)below(256), (uint8_t)below(256),           (uint8_t)below(256),
                                     (uint8_t)below(256)};
}

static struct wire_op_name random_name(void) {
    return (struct wire_op_name){check_random(&seed), check_random(&seed), (uint32_t)check_random(&seed),
                                 (uint16_t)check_random(&seed), (uint32_t)check_random(&seed)};
}

static struct wire_name a_name(void) { return (struct wire_name){{(char)('a' + below(26))}}; }

// Every other member has one.
static struct wire_name random_member_name(void) {
    struct wire_name name = {{0}};
    size_t length = below(2) ? below(WIRE_MAX_NAME + 1) : 0;
    for (size_t i = 0; i < length; i++) name.chars[i] = (char)('!' + below(94));
    return name;
}

static struct wire_header random_header(void) {
    return (struct wire_header){
        .run = check_random(&seed), .generation = check_random(&seed), .epoch = check_random(&seed)};
}

static struct wire_quorum random_quorum(void) {
    return (struct wire_quorum){(uint32_t)below(WIRE_MAX_MEMBERS + 1), (uint32_t)below(WIRE_MAX_MEMBERS + 1),
                                check_random(&seed)};
}

static struct wire_epoch random_epoch(uint32_t count) {
    struct wire_epoch epoch = {.number = 1 + below(1000),
                               .latency_us = 1 + (uint32_t)below(99),
                               .megabytes_per_s = 1 + (uint32_t)below(99),
                               .count = count,
                               .members = members};
    epoch.group_epoch = below(epoch.number + 1);
    epoch.lost_epoch = below(epoch.number + 1);
    epoch.votes_ended = check_random(&seed);
    epoch.sync_round = check_random(&seed);
    epoch.sync_expected = check_random(&seed);
    uint32_t group = 0;
    for (uint32_t i = 0; i < count; i++) {
        group += (uint32_t)below(3);
        members[i] = (struct wire_member){.join_number = check_random(&seed),
                                          .group = group,
                                          .lanes = 1 + (uint32_t)below(WIRE_MAX_LANES),
                                          .address = random_address(),
                                          .weight = (uint16_t)check_random(&seed),
                                          .site = (uint16_t)check_random(&seed),
                                          .name = random_member_name()};
        random_id(&members[i].id);
        members[i].reach.closed = (uint8_t)below(2);
        members[i].reach.relays = (uint8_t)below(4);
        if (i < 6) continue; // test_bad_fields knows where their fields are
        members[i].reach.count = (uint8_t)below(WIRE_MAX_ADDRESSES + 1);
        for (uint32_t k = 0; k < members[i].reach.count; k++) {
            members[i].reach.addresses[k] = random_address();
            members[i].reach.addresses[k].port |= 1;
        }
    }
    return epoch;
}

// ---- one pair of functions per message: write a random one of about `size` items; read one and write it again ----

static void write_empty(struct wire_buffer *out, enum wire_type type) { wire_encode_empty(out, random_header(), type); }

static void write_text(struct wire_buffer *out, enum wire_type type, uint32_t size) {
    char text[WIRE_MAX_TEXT + 1] = {0};
    memset(text, 'a' + (int)below(26), size < WIRE_MAX_TEXT ? size : WIRE_MAX_TEXT);
    wire_encode_text(out, random_header(), type, text);
}

static bool again_text(struct wire_buffer *out, enum wire_type type, const uint8_t *body, size_t length) {
    struct wire_text text;
    if (!wire_decode_text(body, length, &text)) return false;
    char copy[WIRE_MAX_TEXT + 1] = {0};
    memcpy(copy, text.chars, text.length);
    wire_encode_text(out, (struct wire_header){0}, type, copy);
    return true;
}

enum { HELLO_BYTES = 38 + 19 + 3 }; // without a name

static void write_hello(struct wire_buffer *out, uint32_t size) {
    struct wire_hello hello = {.version = WIRE_VERSION,
                               .group = (uint32_t)check_random(&seed),
                               .lanes = 1 + size % WIRE_MAX_LANES,
                               .port = (uint16_t)(1 + below(65535)),
                               .masters = (uint8_t)(1 + below(WIRE_MAX_MASTERS)),
                               .join_only = (uint8_t)(size & 1),
                               .copies = (uint8_t)(size >> 1 & 1),
                               .limits = {5, (uint16_t)(5 + below(1000)), (uint32_t)check_random(&seed)},
                               .name = a_name()};
    random_id(&hello.id);
    wire_encode_hello(out, random_header(), &hello);
}

static void write_welcome(struct wire_buffer *out, uint32_t size) {
    struct wire_welcome welcome = {.join_number = check_random(&seed),
                                   .heartbeat_limit_ms = 1 + size,
                                   .seen = random_address(),
                                   .closed = size & 1};
    fill(welcome.secret, sizeof welcome.secret);
    wire_encode_welcome(out, random_header(), &welcome);
}

static void write_candidate(struct wire_buffer *out, uint32_t size) {
    struct wire_candidate candidate = {.attempt = 1 + (uint32_t)below(100), .epoch = random_epoch(1 + size)};
    wire_encode_candidate(out, random_header(), &candidate);
}

static void write_linked(struct wire_buffer *out, uint32_t size) {
    static struct wire_linked linked;
    linked.attempt = (uint32_t)check_random(&seed);
    linked.latency_us = (uint32_t)check_random(&seed);
    linked.count = size;
    for (uint32_t i = 0; i < size; i++) random_id(&linked.unreachable[i]);
    for (uint32_t i = 0; i < size; i++) linked.narrow[i] = (uint8_t)below(2);
    wire_encode_linked(out, random_header(), &linked);
}

static void write_epoch(struct wire_buffer *out, uint32_t size) {
    struct wire_epoch_commit commit = {
        .reason = (uint8_t)(1 + below(4)), .epoch = random_epoch(1 + size), .quorum = random_quorum()};
    wire_encode_epoch_commit(out, random_header(), &commit);
}

static void write_vote(struct wire_buffer *out, uint32_t size) {
    struct wire_vote vote = {(uint8_t)(1 + size % 3)};
    wire_encode_vote(out, random_header(), &vote);
}

static void write_outcome(struct wire_buffer *out, uint32_t size) {
    struct wire_outcome outcome = {(uint8_t)(1 + size % 3), (uint8_t)below(256), check_random(&seed)};
    wire_encode_outcome(out, random_header(), &outcome);
}

static void write_op_done(struct wire_buffer *out, uint32_t size) {
    (void)size;
    struct wire_op_done done = {random_name(), (uint16_t)(1 + below(WIRE_MAX_MEMBERS))};
    wire_encode_op_done(out, random_header(), &done);
}

static void write_verdict(struct wire_buffer *out, uint32_t size) {
    static struct wire_verdict verdict;
    verdict.name = random_name();
    verdict.kind = (uint8_t)(1 + below(WIRE_VERDICT_CANCEL));
    random_id(&verdict.supplier);
    verdict.other = (uint16_t)check_random(&seed);
    verdict.text.length = (uint16_t)(size < WIRE_MAX_TEXT ? size : WIRE_MAX_TEXT);
    fill(verdict.text.chars, verdict.text.length);
    verdict.count = size;
    for (uint32_t i = 0; i < size; i++) random_id(&verdict.needy[i]);
    wire_encode_verdict(out, random_header(), &verdict);
}

static void write_report(struct wire_buffer *out, uint32_t size) {
    struct wire_report report = {.count = size, .ops = reports};
    for (uint32_t i = 0; i < size; i++) {
        reports[i] = (struct wire_op_report){.name = random_name(), .state = (uint8_t)(1 + below(3))};
        reports[i].members = (uint16_t)(reports[i].state == WIRE_OP_RETAINED ? 0 : 1 + below(WIRE_MAX_MEMBERS));
        reports[i].small = reports[i].state == WIRE_OP_RETAINED || (reports[i].state == WIRE_OP_OPEN && below(2));
    }
    wire_encode_report(out, random_header(), &report);
}

static void write_cancel(struct wire_buffer *out, uint32_t size) {
    (void)size;
    struct wire_cancel cancel = {random_name()};
    wire_encode_cancel(out, random_header(), &cancel);
}

static struct wire_progress random_progress(void) {
    uint64_t total = WIRE_MOST_SEEN / 2 + check_random(&seed) % (WIRE_MOST_SEEN / 2);
    return (struct wire_progress){.done = total - total / 4, .total = total, .span_us = total / 3};
}

static void write_precopy(struct wire_buffer *out, uint32_t size) {
    struct wire_precopy message = {.copies = (uint8_t)size, .progress = random_progress()};
    wire_encode_precopy(out, random_header(), &message);
}

static void write_donors(struct wire_buffer *out, uint32_t size) {
    struct wire_donors donors = {.count = size};
    for (uint32_t i = 0; i < size; i++) {
        random_id(&donors.donors[i].id);
        donors.donors[i].reach = (struct wire_reach){.count = 1, .addresses = {random_address()}};
        donors.donors[i].reach.addresses[0].port |= 1;
    }
    wire_encode_donors(out, random_header(), &donors);
}

static struct wire_number random_program_number(void) {
    struct wire_number number = {.value = (double)check_random(&seed)};
    snprintf(number.name, sizeof number.name, "loss_%u", (unsigned)(check_random(&seed) % 1000));
    return number;
}

static void write_numbers(struct wire_buffer *out, uint32_t size) {
    struct wire_numbers numbers = {.count = size};
    for (uint32_t i = 0; i < size; i++) numbers.list[i] = random_program_number();
    wire_encode_numbers(out, random_header(), &numbers);
}

static void write_mismatch(struct wire_buffer *out, uint32_t size) {
    (void)size;
    struct wire_mismatch mismatch = {
        .name = random_name(), .mine = random_fingerprint(), .theirs = random_fingerprint()};
    random_id(&mismatch.other);
    wire_encode_mismatch(out, random_header(), &mismatch);
}

static void write_leaving(struct wire_buffer *out, uint32_t size) {
    struct wire_leaving leaving = {.within_ms = (uint32_t)check_random(&seed), .at_update = (uint8_t)(size % 2)};
    random_id(&leaving.id);
    wire_encode_leaving(out, random_header(), &leaving);
}

static void write_remove(struct wire_buffer *out, uint32_t size) {
    struct wire_remove remove = {.at_update = (uint8_t)(size % 2)};
    random_id(&remove.id);
    memset(remove.by, 'b', size);
    wire_encode_remove(out, random_header(), &remove);
}

static void write_link_down(struct wire_buffer *out, uint32_t size) {
    struct wire_link_down down = {.index = size % (WIRE_MAX_LANES + 1), .reason = (uint8_t)(size % 3)};
    random_id(&down.id);
    wire_encode_link_down(out, random_header(), &down);
}

static void write_measure(struct wire_buffer *out, uint32_t size) {
    struct wire_measure measure = {.round = (uint32_t)check_random(&seed),
                                   .duration_ms = 1 + size % WIRE_MAX_MEASURE_MS};
    random_id(&measure.target);
    wire_encode_measure(out, random_header(), &measure);
}

static void write_measured(struct wire_buffer *out, uint32_t size) {
    (void)size;
    struct wire_measured measured = {.bytes_per_s = check_random(&seed)};
    random_id(&measured.from);
    random_id(&measured.to);
    wire_encode_measured(out, random_header(), &measured);
}

static struct wire_hash random_hash(void) { return (struct wire_hash){check_random(&seed), check_random(&seed)}; }

// Of any length.
static void random_outline(struct wire_outline *outline, uint64_t entries) {
    outline->entries = entries;
    fill(outline->hashes, sizeof outline->hashes);
}

static void write_sync_vote(struct wire_buffer *out, uint32_t size) {
    struct wire_sync_vote vote = {(uint8_t)(size % 3), (uint8_t)below(2), check_random(&seed),
                                  random_hash(),       random_hash(),     {0}};
    random_outline(&vote.outline, size < WIRE_MAX_OUTLINE ? size : check_random(&seed));
    wire_encode_sync_vote(out, random_header(), &vote);
}

static void write_sync_differs(struct wire_buffer *out, uint32_t size) {
    struct wire_sync_differs differs = {.first = below(UINT64_MAX - size)};
    differs.last = differs.first + size;
    wire_encode_sync_differs(out, random_header(), &differs);
}

static void write_sync_plan(struct wire_buffer *out, uint32_t size) {
    static struct wire_sync_plan plan;
    plan.round = 1 + below(1000);
    plan.revision = check_random(&seed);
    plan.mask = random_hash();
    plan.content = random_hash();
    plan.receiver_count = 1 + size;
    plan.donor_count = 1 + size / 2;
    for (uint32_t i = 0; i < plan.receiver_count; i++) random_id(&plan.receivers[i]);
    for (uint32_t i = 0; i < plan.donor_count; i++) random_id(&plan.donors[i]);
    wire_encode_sync_plan(out, random_header(), &plan);
}

static void write_sync_done(struct wire_buffer *out, uint32_t size) {
    static struct wire_sync_done done;
    done.round = check_random(&seed);
    done.complete = (uint8_t)below(3);
    done.count = size;
    for (uint32_t i = 0; i < size; i++) {
        random_id(&done.sources[i].id);
        done.sources[i].bytes = check_random(&seed);
    }
    wire_encode_sync_done(out, random_header(), &done);
}

static void write_sync_end(struct wire_buffer *out, uint32_t size) {
    static struct wire_sync_end end;
    end.round = check_random(&seed);
    end.code = (uint8_t)below(256);
    end.revision = check_random(&seed);
    end.tx_bytes = check_random(&seed);
    end.text.length = (uint16_t)size;
    fill(end.text.chars, size);
    wire_encode_sync_end(out, random_header(), &end);
}

static struct wire_ended_vote random_barrier(uint32_t count) {
    struct wire_ended_vote vote = {.number = 1 + below(99),
                                   .kind = (uint8_t)(1 + below(3)),
                                   .code = (uint8_t)below(256),
                                   .value = check_random(&seed),
                                   .epoch = check_random(&seed),
                                   .count = count,
                                   .sizes = group_sizes};
    for (uint32_t i = 0; i < count; i++)
        group_sizes[i] = (struct wire_group_size){i * 3, 1 + (uint32_t)below(WIRE_MAX_MEMBERS)};
    return vote;
}

static struct wire_loss *random_losses(uint32_t count) {
    uint64_t epoch = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t all = 1 + (uint32_t)below(WIRE_MAX_MEMBERS), largest = 1 + (uint32_t)below(all);
        epoch += 1 + below(5);
        losses[i] = (struct wire_loss){epoch, all, 1 + (uint32_t)below(largest), 1 + (uint32_t)below(all), largest};
    }
    return losses;
}

static void write_resume(struct wire_buffer *out, uint32_t size) {
    struct wire_resume resume = {
        .hello = {.version = WIRE_VERSION, .lanes = 1, .port = 1, .masters = 2, .name = a_name()},
        .generation = check_random(&seed),
        .join_number = check_random(&seed),
        .vote = (uint8_t)below(5),
        .accepted = size > 0};
    random_id(&resume.hello.id);
    fill(resume.secret, sizeof resume.secret);
    resume.sync_vote = (struct wire_sync_vote){
        .strategy = (uint8_t)below(3), .incomplete = (uint8_t)below(2), .revision = check_random(&seed)};
    random_outline(&resume.sync_vote.outline, size);
    resume.sync_committed = (uint8_t)below(2);
    resume.sync_code = (uint8_t)below(256);
    resume.sync_revision = check_random(&seed);
    uint32_t members_of = size < WIRE_MAX_MEMBERS ? size : WIRE_MAX_MEMBERS;
    if (size > 0) resume.last_vote = random_barrier(members_of);
    if (size > 0) resume.epoch = random_epoch(members_of);
    resume.past_count = size;
    resume.past = past;
    for (uint32_t i = 0; i < size; i++)
        past[i] = (struct wire_past){random_name(), below(2) == 0 ? WIRE_VERDICT_COMMIT : WIRE_VERDICT_MISMATCH,
                                     (uint16_t)check_random(&seed)};
    resume.loss_count = members_of;
    resume.losses = random_losses(members_of);
    resume.quorum = random_quorum();
    wire_encode_resume(out, random_header(), &resume);
}

static bool again_resume(struct wire_buffer *out, const uint8_t *body, size_t length) {
    struct wire_resume message = {
        .last_vote.sizes = group_sizes, .epoch.members = members, .past = past, .losses = losses};
    if (!wire_decode_resume(body, length, &message)) return false;
    wire_encode_resume(out, (struct wire_header){0}, &message);
    return true;
}

static void write_resumed(struct wire_buffer *out, uint32_t size) {
    static struct wire_resumed resumed;
    resumed.heartbeat_limit_ms = 1 + (uint32_t)below(5000);
    resumed.vote_ended = (uint8_t)below(2);
    resumed.sync_ended = (uint8_t)below(2);
    resumed.last_vote = random_barrier(1 + size);
    resumed.loss_count = size;
    resumed.losses = random_losses(size);
    resumed.sync = (struct wire_sync_end){.round = check_random(&seed),
                                          .code = (uint8_t)below(256),
                                          .revision = check_random(&seed),
                                          .text.length = (uint16_t)(size < WIRE_MAX_TEXT ? size : WIRE_MAX_TEXT)};
    fill(resumed.sync.text.chars, resumed.sync.text.length);
    wire_encode_resumed(out, random_header(), &resumed);
}

static bool again_resumed(struct wire_buffer *out, const uint8_t *body, size_t length) {
    static struct wire_resumed message;
    message.last_vote.sizes = group_sizes;
    message.losses = losses;
    if (!wire_decode_resumed(body, length, &message)) return false;
    wire_encode_resumed(out, (struct wire_header){0}, &message);
    return true;
}

static void write_status_is(struct wire_buffer *out, uint32_t size) {
    struct wire_status_is status = {(uint8_t)(size % 3), (uint8_t)(size % 2), size};
    wire_encode_status_is(out, random_header(), &status);
}

static bool again_status_is(struct wire_buffer *out, const uint8_t *body, size_t length) {
    struct wire_status_is message;
    if (!wire_decode_status_is(body, length, &message)) return false;
    wire_encode_status_is(out, (struct wire_header){0}, &message);
    return true;
}

static void write_link_hello(struct wire_buffer *out, uint32_t size) {
    struct wire_link_hello hello = {.version = (uint16_t)check_random(&seed),
                                    .kind = (uint8_t)(1 + size % 2),
                                    .index = size % (WIRE_MAX_LANES + 1)};
    fill(hello.secret, sizeof hello.secret);
    random_id(&hello.from);
    random_id(&hello.to);
    wire_encode_link_hello(out, random_header(), &hello);
}

#define AGAIN(name) \
    static bool again_##name(struct wire_buffer *out, const uint8_t *body, size_t length) { \
        static struct wire_##name message; \
        if (!wire_decode_##name(body, length, &message)) return false; \
        wire_encode_##name(out, (struct wire_header){0}, &message); \
        return true; \
    }
AGAIN(hello)
AGAIN(welcome)
AGAIN(linked)
AGAIN(vote)
AGAIN(outcome)
AGAIN(op_done)
AGAIN(verdict)
AGAIN(mismatch)
AGAIN(precopy)
AGAIN(remove)
AGAIN(donors)
AGAIN(numbers)
AGAIN(waits)
AGAIN(cancel)
AGAIN(leaving)
AGAIN(link_down)
AGAIN(measure)
AGAIN(measured)
AGAIN(sync_vote)
AGAIN(sync_differs)
AGAIN(sync_plan)
AGAIN(sync_done)
AGAIN(sync_end)
AGAIN(link_hello)

static bool again_candidate(struct wire_buffer *out, const uint8_t *body, size_t length) {
    struct wire_candidate message = {.epoch.members = members};
    if (!wire_decode_candidate(body, length, &message)) return false;
    wire_encode_candidate(out, (struct wire_header){0}, &message);
    return true;
}

static bool again_epoch(struct wire_buffer *out, const uint8_t *body, size_t length) {
    struct wire_epoch_commit message = {.epoch.members = members};
    if (!wire_decode_epoch_commit(body, length, &message)) return false;
    wire_encode_epoch_commit(out, (struct wire_header){0}, &message);
    return true;
}

static bool again_report(struct wire_buffer *out, const uint8_t *body, size_t length) {
    struct wire_report message = {.ops = reports};
    if (!wire_decode_report(body, length, &message)) return false;
    wire_encode_report(out, (struct wire_header){0}, &message);
    return true;
}

static uint64_t random_number(void) { return below(WIRE_MOST_SEEN) + 1; }

static struct wire_seen random_seen(void) {
    struct wire_seen seen;
    uint64_t *numbers = (uint64_t *)&seen;
    for (size_t i = 0; i < sizeof seen / sizeof *numbers; i++) numbers[i] = random_number();
    return seen;
}

static struct wire_ops_seen random_ops_seen(void) {
    struct wire_ops_seen ops;
    uint64_t *numbers = (uint64_t *)&ops;
    for (size_t i = 0; i < sizeof ops / sizeof *numbers; i++) numbers[i] = random_number();
    return ops;
}

static void write_telemetry(struct wire_buffer *out, uint32_t size) {
    struct wire_telemetry message = {.ops = random_ops_seen(), .count = size};
    for (uint32_t i = 0; i < size; i++) {
        random_id(&message.others[i].id);
        message.others[i].seen = random_seen();
    }
    wire_encode_telemetry(out, random_header(), &message);
}

static bool again_telemetry(struct wire_buffer *out, const uint8_t *body, size_t length) {
    struct wire_telemetry message;
    if (!wire_decode_telemetry(body, length, &message)) return false;
    wire_encode_telemetry(out, (struct wire_header){0}, &message);
    return true;
}

static struct wire_matrix matrix;

static double random_amount(void) { return (double)random_number() / 64; }

static void random_amounts(double *first, double *last) {
    for (; first <= last; first++) *first = random_amount();
}

static void write_matrix(struct wire_buffer *out, uint32_t size) {
    uint32_t room = WIRE_MAX_MEMBERS - size;
    matrix = (struct wire_matrix){.version = WIRE_VERSION,
                                  .told = {.heartbeat_limit_s = 5,
                                           .peer_count = size,
                                           .epoch = check_random(&seed),
                                           .member_count = size,
                                           .edge_count = size < 2                ? 0
                                                         : size < WIRE_MAX_EDGES ? size
                                                                                 : WIRE_MAX_EDGES,
                                           .generation = check_random(&seed),
                                           .votes = check_random(&seed),
                                           .number_count = size * 2,
                                           .joiner_count = size < WIRE_MAX_JOINERS ? size : WIRE_MAX_JOINERS,
                                           .departure_count = size < WIRE_MAX_DEPARTURES   ? size
                                                              : room < WIRE_MAX_DEPARTURES ? room
                                                                                           : WIRE_MAX_DEPARTURES}};
    for (uint32_t i = 0; i < matrix.told.departure_count; i++) {
        pcclDiagnosisDeparture_t *departure = &matrix.departures[i];
        *departure = (pcclDiagnosisDeparture_t){.reason = (int)i % (WIRE_LOSS_ENDED + 1), .ago_s = random_amount()};
        fill(departure->uuid.data, sizeof departure->uuid.data);
        memset(departure->why, 'w', i * WIRE_MAX_WHY / WIRE_MAX_DEPARTURES);
    }
    for (uint32_t i = 0; i < matrix.told.joiner_count; i++) {
        struct wire_progress progress = random_progress();
        matrix.joiners[i] = (pcclDiagnosisJoiner_t){.group = i,
                                                    .address = "10.0.0.1:7",
                                                    .joining = (int)i % (WIRE_JOINING_SPARE + 1),
                                                    .wait_s = random_amount(),
                                                    .done = progress.done,
                                                    .total = progress.total};
        fill(matrix.joiners[i].uuid.data, sizeof matrix.joiners[i].uuid.data);
    }
    for (uint32_t i = 0; i < size * 2; i++) {
        struct wire_number number = random_program_number();
        matrix.numbers[i].member = i / 2;
        matrix.numbers[i].value = number.value;
        memcpy(matrix.numbers[i].name, number.name, sizeof number.name);
    }
    for (uint32_t i = 0; i < size; i++) {
        pcclDiagnosisMember_t *member = &matrix.members[i];
        *member =
            (pcclDiagnosisMember_t){.join_number = i, .address = "[::1]:7", .live = random_number(), .synced = i % 2};
        fill(member->uuid.data, sizeof member->uuid.data);
        random_amounts(&member->silent_s, &member->processor_s);
        if (i % 3 == 0) member->told_s = -1;
        if (i >= matrix.told.edge_count) continue;
        matrix.edges[i] = (pcclDiagnosisEdge_t){.member = i, .other = (i + 1) % size, .awaited = random_number()};
        random_amounts(&matrix.edges[i].acked_bytes, &matrix.edges[i].queue_s);
        matrix.reasons[i] = (uint8_t)i;
    }
    wire_encode_matrix(out, random_header(), &matrix);
}

static bool again_matrix(struct wire_buffer *out, const uint8_t *body, size_t length) {
    if (!wire_decode_matrix(body, length, &matrix)) return false;
    wire_encode_matrix(out, (struct wire_header){0}, &matrix);
    return true;
}

static void write_waits(struct wire_buffer *out, uint32_t size) {
    struct wire_waits waits = {.all_us = random_number(), .count = size};
    for (uint32_t i = 0; i < size; i++) {
        struct wire_wait *wait = &waits.list[i];
        *wait = (struct wire_wait){.name = random_name(), .kind = (uint8_t)below(256), .span_us = random_number()};
        wait->missing_count = i % 2 == 0 ? WIRE_MAX_MISSING : 0;
        for (uint32_t k = 0; k < wait->missing_count; k++) random_id(&wait->missing[k]);
    }
    wire_encode_waits(out, random_header(), &waits);
}

static void write_refused(struct wire_buffer *out, uint32_t size) { write_text(out, WIRE_REFUSED, size); }
static void write_waiting(struct wire_buffer *out, uint32_t size) { write_text(out, WIRE_WAITING, size); }
static void write_removed(struct wire_buffer *out, uint32_t size) { write_text(out, WIRE_REMOVED, size); }
static void write_expelled(struct wire_buffer *out, uint32_t size) { write_text(out, WIRE_EXPELLED, size); }
static bool again_refused(struct wire_buffer *out, const uint8_t *body, size_t length) {
    return again_text(out, WIRE_REFUSED, body, length);
}
static bool again_waiting(struct wire_buffer *out, const uint8_t *body, size_t length) {
    return again_text(out, WIRE_WAITING, body, length);
}
static bool again_expelled(struct wire_buffer *out, const uint8_t *body, size_t length) {
    return again_text(out, WIRE_EXPELLED, body, length);
}
static bool again_removed(struct wire_buffer *out, const uint8_t *body, size_t length) {
    return again_text(out, WIRE_REMOVED, body, length);
}

static const struct message {
    enum wire_type type;
    uint32_t most; // items
    void (*write)(struct wire_buffer *out, uint32_t size);
    bool (*again)(struct wire_buffer *out, const uint8_t *body, size_t length);
} messages[] = {
    {WIRE_HELLO, 300, write_hello, again_hello},
    {WIRE_WELCOME, 100, write_welcome, again_welcome},
    {WIRE_REFUSED, WIRE_MAX_TEXT, write_refused, again_refused},
    {WIRE_CANDIDATE, WIRE_MAX_MEMBERS - 1, write_candidate, again_candidate},
    {WIRE_LINKED, WIRE_MAX_MEMBERS, write_linked, again_linked},
    {WIRE_EPOCH, WIRE_MAX_MEMBERS - 1, write_epoch, again_epoch},
    {WIRE_VOTE, 2, write_vote, again_vote},
    {WIRE_OUTCOME, 2, write_outcome, again_outcome},
    {WIRE_EXPELLED, WIRE_MAX_TEXT, write_expelled, again_expelled},
    {WIRE_DONE, 0, write_op_done, again_op_done},
    {WIRE_VERDICT, WIRE_MAX_MEMBERS, write_verdict, again_verdict},
    {WIRE_REPORT, 2 * WIRE_MAX_LIVE_OPS, write_report, again_report},
    {WIRE_MISMATCH, 0, write_mismatch, again_mismatch},
    {WIRE_CANCEL, 0, write_cancel, again_cancel},
    {WIRE_LEAVING, 1, write_leaving, again_leaving},
    {WIRE_REMOVE, WIRE_MAX_BY, write_remove, again_remove},
    {WIRE_REMOVED, WIRE_MAX_TEXT, write_removed, again_removed},
    {WIRE_LINK_DOWN, WIRE_MAX_LANES, write_link_down, again_link_down},
    {WIRE_MEASURE, WIRE_MAX_MEASURE_MS - 1, write_measure, again_measure},
    {WIRE_MEASURED, 0, write_measured, again_measured},
    {WIRE_SYNC_VOTE, WIRE_MAX_OUTLINE + 1, write_sync_vote, again_sync_vote},
    {WIRE_SYNC_DIFFERS, 100, write_sync_differs, again_sync_differs},
    {WIRE_SYNC_PLAN, WIRE_MAX_MEMBERS - 1, write_sync_plan, again_sync_plan},
    {WIRE_SYNC_DONE, WIRE_MAX_MEMBERS, write_sync_done, again_sync_done},
    {WIRE_SYNC_END, WIRE_MAX_TEXT, write_sync_end, again_sync_end},
    {WIRE_RESUME, WIRE_MAX_PAST, write_resume, again_resume},
    {WIRE_RESUMED, WIRE_MAX_MEMBERS - 1, write_resumed, again_resumed},
    {WIRE_STATUS_IS, 2, write_status_is, again_status_is},
    {WIRE_TELEMETRY, WIRE_MAX_SEEN, write_telemetry, again_telemetry},
    {WIRE_MATRIX, WIRE_MAX_MEMBERS, write_matrix, again_matrix},
    {WIRE_WAITING, WIRE_MAX_TEXT, write_waiting, again_waiting},
    {WIRE_LINK_HELLO, WIRE_MAX_LANES, write_link_hello, again_link_hello},
    {WIRE_PRECOPY, WIRE_COPY_ADVANCES, write_precopy, again_precopy},
    {WIRE_DONORS, WIRE_MAX_DONORS, write_donors, again_donors},
    {WIRE_NUMBERS, WIRE_MAX_NUMBERS, write_numbers, again_numbers},
    {WIRE_WAITS, WIRE_MAX_WAITS, write_waits, again_waits},
};
enum { MESSAGES = sizeof messages / sizeof messages[0] };

// Decodes from a block of exactly `length` bytes.
static bool again_exact(const struct message *message, struct wire_buffer *out, const uint8_t *body, size_t length) {
    uint8_t *copy = malloc(length > 0 ? length : 1);
    if (length > 0) memcpy(copy, body, length);
    bool good = message->again(out, copy, length);
    free(copy);
    return good;
}

static void test_round_trips(void) {
    for (size_t i = 0; i < MESSAGES; i++) {
        const struct message *message = &messages[i];
        uint32_t sizes[] = {0, 1, 2, 3, 7, message->most};
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            uint32_t size = sizes[s] < message->most ? sizes[s] : message->most;
            check_case("%s of size %u", wire_type_name((uint16_t)message->type), size);
            struct wire_buffer first = {0}, second = {0};
            message->write(&first, size);
            struct wire_header header;
            CHECK(!first.failed);
            CHECK(wire_header_decode(first.bytes, &header));
            CHECK_EQ(header.type, message->type);
            CHECK_EQ(header.length, first.length - WIRE_HEADER_BYTES);
            CHECK(again_exact(message, &second, first.bytes + WIRE_HEADER_BYTES, header.length));
            CHECK_EQ(second.length, first.length);
            CHECK_MEM(second.bytes + WIRE_HEADER_BYTES, first.bytes + WIRE_HEADER_BYTES, header.length);
            wire_buffer_fini(&first);
            wire_buffer_fini(&second);
        }
    }
}

static void test_stacks(void) {
    static const uint8_t text[WIRE_MAX_STACKS] = {'t'};
    struct wire_buffer frame = {0};
    struct wire_header header;
    wire_encode_bytes(&frame, random_header(), WIRE_STACKS_ARE, text, sizeof text);
    CHECK(wire_header_decode(frame.bytes, &header));
    CHECK_EQ(header.length, WIRE_MAX_STACKS);
    CHECK_MEM(frame.bytes + WIRE_HEADER_BYTES, text, sizeof text);
    header.length++;
    wire_header_encode(frame.bytes, &header);
    CHECK(!wire_header_decode(frame.bytes, &header));
    frame.length = 0;
    wire_encode_bytes(&frame, random_header(), WIRE_STACKS, text, WIRE_ID_BYTES);
    CHECK(wire_header_decode(frame.bytes, &header));
    header.length--;
    wire_header_encode(frame.bytes, &header);
    CHECK(!wire_header_decode(frame.bytes, &header)); // who takes it need not check its length
    wire_buffer_fini(&frame);
}

static void test_wrong_lengths(void) {
    for (size_t i = 0; i < MESSAGES; i++) {
        const struct message *message = &messages[i];
        struct wire_buffer frame = {0}, out = {0};
        message->write(&frame, message->most < 5 ? message->most : 5);
        size_t length = frame.length - WIRE_HEADER_BYTES;
        for (size_t cut = 0; cut < length; cut++) {
            check_case("%s cut to %zu of %zu", wire_type_name((uint16_t)message->type), cut, length);
            bool nameless = message->type == WIRE_HELLO && cut == HELLO_BYTES;
            CHECK_EQ(again_exact(message, &out, frame.bytes + WIRE_HEADER_BYTES, cut), nameless);
        }
        check_case("%s with a trailing byte", wire_type_name((uint16_t)message->type));
        uint8_t *longer = calloc(1, length + 1);
        memcpy(longer, frame.bytes + WIRE_HEADER_BYTES, length);
        CHECK(!again_exact(message, &out, longer, length + 1));
        free(longer);
        wire_buffer_fini(&frame);
        wire_buffer_fini(&out);
    }
}

// Byte `at` of a valid message set to `value` (4 bytes when wide) makes it malformed.
static void test_bad_fields(void) {
    enum {
        MATRIX = 43,                                     // before the members
        MATRIX_MEMBER = 16 + 1 + 8 + 4 + 8 + 13 * 8 + 2, // with an address of seven bytes
        HELLO_NAME = 2,                                  // with its length
        EPOCH = 60,
        RESUME_VOTE = HELLO_BYTES + HELLO_NAME + 8 + 8 + 16,
        RESUME_ACCEPTED = RESUME_VOTE + 1 + 50 + 5 * 4,
        RESUME_BARRIER = RESUME_ACCEPTED + 1 + 1 + 1 + 8
    };
    static const struct {
        enum wire_type type;
        size_t at;
        uint32_t value;
        bool wide;
        const char *what;
    } rows[] = {
        {WIRE_HELLO, 22, 0, true, "no lanes"},
        {WIRE_HELLO, 22, WIRE_MAX_LANES + 1, true, "too many lanes"},
        {WIRE_HELLO, 28, 0, false, "no masters"},
        {WIRE_HELLO, 28, WIRE_MAX_MASTERS + 1, false, "too many masters"},
        {WIRE_HELLO, 29, 4, false, "flags 4"},
        {WIRE_HELLO, 31, 5, false, "more members at least than there can be"},
        {WIRE_HELLO, 33, 5, false, "more members at most than there can be"},
        {WIRE_HELLO, 30, 5 << 16 | 6, true, "more members at least than at most"},
        {WIRE_HELLO, 38, 5, false, "an unknown family of its own address"},
        {WIRE_HELLO, HELLO_BYTES - 3, 2, false, "closed 2"},
        {WIRE_HELLO, HELLO_BYTES - 2, 4, false, "relays 4"},
        {WIRE_HELLO, HELLO_BYTES - 1, WIRE_MAX_ADDRESSES + 1, false, "too many addresses"},
        {WIRE_HELLO, HELLO_BYTES, 0, false, "a name of no bytes"},
        {WIRE_HELLO, HELLO_BYTES, WIRE_MAX_NAME + 1, false, "a name that is too long"},
        {WIRE_HELLO, HELLO_BYTES + 1, 0x1b, false, "a control character in a name"},
        {WIRE_HELLO, HELLO_BYTES + 1, 0xff, false, "a name that is not UTF-8"},
        {WIRE_HELLO, HELLO_BYTES + 1, ' ', false, "a space at the end of a name"},
        {WIRE_RESUME, HELLO_BYTES + 1, '\n', false, "a line end in a name"},
        {WIRE_WELCOME, 24, 0, true, "no heartbeat limit"},
        {WIRE_WELCOME, 28, 5, false, "unknown family"},
        {WIRE_REFUSED, 0, 0xffff, true, "text length"},
        {WIRE_CANDIDATE, 0, 0, true, "attempt 0"},
        {WIRE_CANDIDATE, 4 + 48, 0, true, "latency 0"},
        {WIRE_CANDIDATE, 4 + 52, 0, true, "bandwidth 0"},
        {WIRE_CANDIDATE, 4 + 56, 0, true, "no members"},
        {WIRE_CANDIDATE, 4 + 56, UINT32_MAX, true, "huge count"},
        {WIRE_CANDIDATE, 4 + EPOCH + 24, UINT32_MAX, true, "groups descend"},
        {WIRE_CANDIDATE, 4 + EPOCH + 28, 0, true, "a member without lanes"},
        {WIRE_CANDIDATE, 4 + EPOCH + 32, 7, false, "a member's family"},
        {WIRE_LINKED, 8, UINT32_MAX, true, "huge count"},
        {WIRE_LINKED, 8, 0x10000000, true, "count that overflows 32 bits of bytes"},
        {WIRE_EPOCH, 0, 0, false, "reason 0"},
        {WIRE_EPOCH, 0, 5, false, "reason 5"},
        {WIRE_EPOCH, 1 + 56, UINT32_MAX, true, "huge count"},
        {WIRE_VOTE, 0, 0, false, "kind 0"},
        {WIRE_VOTE, 0, 4, false, "kind 4"},
        {WIRE_OUTCOME, 0, 4, false, "kind 4"},
        {WIRE_VERDICT, 26, 0, false, "kind 0"},
        {WIRE_VERDICT, 26, 8, false, "kind 8"},
        {WIRE_REPORT, 0, UINT32_MAX, true, "huge count"},
        {WIRE_REPORT, 0, 2 * WIRE_MAX_LIVE_OPS + 1, true, "count above the limit"},
        {WIRE_REPORT, 4 + 26, 0, false, "state 0"},
        {WIRE_REPORT, 4 + 26, 4, false, "state 4"},
        {WIRE_REPORT, 4 + 27, 2, false, "small 2"},
        {WIRE_LEAVING, 20, 2, false, "at update 2"},
        {WIRE_LINK_DOWN, 16, WIRE_MAX_LANES + 1, true, "index"},
        {WIRE_LINK_DOWN, 20, WIRE_LINK_CARD + 1, false, "reason 4"},
        {WIRE_MEASURE, 20, 0, true, "no duration"},
        {WIRE_MEASURE, 20, WIRE_MAX_MEASURE_MS + 1, true, "long duration"},
        {WIRE_SYNC_VOTE, 0, 3, false, "strategy 3"},
        {WIRE_SYNC_VOTE, 1, 2, false, "incomplete 2"},
        {WIRE_SYNC_VOTE, 42, 6, false, "an entry more"},
        {WIRE_SYNC_VOTE, 42, UINT32_MAX, true, "huge count of entries"},
        {WIRE_SYNC_VOTE, 49, 0x80, false, "a count of entries beyond 63 bits"},
        {WIRE_SYNC_DIFFERS, 7, 0xff, false, "first beyond last"},
        {WIRE_SYNC_PLAN, 0, 0, true, "round 0"},
        {WIRE_SYNC_PLAN, 48, 0, true, "no receivers"},
        {WIRE_SYNC_PLAN, 48, UINT32_MAX, true, "huge count of receivers"},
        {WIRE_SYNC_PLAN, 52 + 6 * WIRE_ID_BYTES, 0, true, "no donors"},
        {WIRE_SYNC_PLAN, 52 + 6 * WIRE_ID_BYTES, UINT32_MAX, true, "huge count of donors"},
        {WIRE_SYNC_DONE, 8, 3, false, "complete 3"},
        {WIRE_SYNC_DONE, 9, UINT32_MAX, true, "huge count"},
        {WIRE_SYNC_END, 25, 0xffff, true, "text length"},
        {WIRE_RESUME, 22, 0, true, "no lanes"},
        {WIRE_RESUME, RESUME_VOTE, 5, false, "vote 5"},
        {WIRE_RESUME, RESUME_ACCEPTED, 2, false, "accepted 2"},
        {WIRE_RESUME, RESUME_BARRIER + 8, 0, false, "a vote of kind 0"},
        {WIRE_RESUME, RESUME_BARRIER + 26, UINT32_MAX, true, "huge count of groups"},
        {WIRE_RESUME, RESUME_BARRIER + 34, 0, true, "an empty group"},
        {WIRE_RESUMED, 0, 0, true, "no heartbeat limit"},
        {WIRE_RESUMED, 4, 2, false, "ended 2"},
        {WIRE_STATUS_IS, 0, 3, false, "activity 3"},
        {WIRE_TELEMETRY, 7, 1, false, "a span beyond the limit"},
        {WIRE_TELEMETRY, 64, WIRE_MAX_SEEN + 1, true, "too many others"},
        {WIRE_TELEMETRY, 68 + 16 + 7, 1, false, "more bytes than the limit"},
        {WIRE_MATRIX, 2 + 7, 0xff, false, "a negative heartbeat limit"},
        {WIRE_MATRIX, 10, 1, false, "counts with members"},
        {WIRE_MATRIX, 11, 4, true, "another number of members"},
        {WIRE_MATRIX, MATRIX - 4, WIRE_MAX_MEMBERS + 1, true, "too many members"},
        {WIRE_MATRIX, MATRIX + 16, WIRE_MAX_NAME + 1, false, "too long a name"},
        {WIRE_MATRIX, MATRIX + 30, '\n', false, "an address of two lines"},
        {WIRE_MATRIX, MATRIX + 37 + 7, 0xff, false, "not a number"},
        {WIRE_MATRIX, MATRIX + MATRIX_MEMBER - 1, 2, false, "a flag of 2"},
        {WIRE_MATRIX, MATRIX + 5 * MATRIX_MEMBER, WIRE_MAX_EDGES + 1, true, "too many edges"},
        {WIRE_MATRIX, MATRIX + 5 * MATRIX_MEMBER + 4, 5, true, "an edge from nobody"},
        {WIRE_PRECOPY, 0, 3, false, "copies 3"},
        {WIRE_PRECOPY, 1 + 7, 1, false, "more than the limit"},
        {WIRE_PRECOPY, 1 + 8 + 4, 0, true, "more than all"},
        {WIRE_REMOVE, 16, 2, false, "at update 2"},
        {WIRE_REMOVE, 17, WIRE_MAX_BY + 1, false, "too long a text"},
        {WIRE_DONORS, 0, WIRE_MAX_DONORS + 1, true, "too many donors"},
        {WIRE_DONORS, 4 + 16 + 2, 0, false, "no address"},
        {WIRE_DONORS, 4 + 16 + 3, 5, false, "unknown family"},
        {WIRE_NUMBERS, 0, WIRE_MAX_NUMBERS + 1, true, "too many numbers"},
        {WIRE_NUMBERS, 4, 0, false, "no name"},
        {WIRE_NUMBERS, 4, WIRE_MAX_NUMBER_NAME + 1, false, "too long a name"},
        {WIRE_NUMBERS, 4 + 1, ' ', false, "a space in a name"},
        {WIRE_WAITS, 8, WIRE_MAX_WAITS + 1, true, "too many waits"},
        {WIRE_WAITS, 7, 1, false, "a wait beyond the limit"},
        {WIRE_WAITS, 12 + 26 + 1 + 8, WIRE_MAX_MISSING + 1, true, "too many members missing"},
        {WIRE_LINK_HELLO, 2, 0, false, "kind 0"},
        {WIRE_LINK_HELLO, 2, 4, false, "kind 4"},
        {WIRE_LINK_HELLO, 51, WIRE_MAX_LANES + 1, true, "index"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        check_case("%s: %s", wire_type_name((uint16_t)rows[r].type), rows[r].what);
        size_t i = 0;
        while (messages[i].type != rows[r].type) i++;
        struct wire_buffer frame = {0}, out = {0};
        messages[i].write(&frame, messages[i].most < 5 ? messages[i].most : 5);
        for (size_t b = 0; b < (rows[r].wide ? 4 : 1); b++)
            frame.bytes[WIRE_HEADER_BYTES + rows[r].at + b] = (uint8_t)(rows[r].value >> (8 * b));
        CHECK(!again_exact(&messages[i], &out, frame.bytes + WIRE_HEADER_BYTES, frame.length - WIRE_HEADER_BYTES));
        wire_buffer_fini(&frame);
        wire_buffer_fini(&out);
    }
}

// Pure noise, and valid messages with a few bytes changed.
static void test_noise(void) {
    check_case("noise");
    size_t accepted = 0;
    for (uint32_t round = 0; round < 3000; round++) {
        seed = 1000 + round;
        const struct message *message = &messages[below(MESSAGES)];
        struct wire_buffer frame = {0}, out = {0};
        message->write(&frame, (uint32_t)below((message->most < 40 ? message->most : 40) + 1));
        uint8_t *body = frame.bytes + WIRE_HEADER_BYTES;
        size_t length = frame.length - WIRE_HEADER_BYTES;
        if (round % 2 == 0) fill(body, length);
        for (uint64_t flips = below(4); flips > 0 && length > 0; flips--)
            body[below(length)] = (uint8_t)check_random(&seed);
        if (again_exact(message, &out, body, length)) {
            accepted++;
            struct wire_header header;
            CHECK(wire_header_decode(out.bytes, &header)); // what is accepted can be said
        }
        wire_buffer_fini(&frame);
        wire_buffer_fini(&out);
    }
    CHECK(accepted > 0);
}

static void test_headers(void) {
    check_case("headers");
    struct wire_header in = {.length = 28,
                             .type = WIRE_DONE,
                             .run = 0x0102030405060708,
                             .generation = 9,
                             .epoch = UINT64_MAX},
                       out;
    uint8_t bytes[WIRE_HEADER_BYTES];
    wire_header_encode(bytes, &in);
    CHECK(wire_header_decode(bytes, &out));
    CHECK(out.length == in.length && out.type == in.type && out.run == in.run && out.generation == in.generation &&
          out.epoch == in.epoch);
    static const uint8_t first[] = {28, 0, 0, 0, 'P', 'C', WIRE_DONE, 0, 8, 7, 6, 5, 4, 3, 2, 1};
    CHECK_MEM(bytes, first, sizeof first); // the byte order of the wire
    bytes[4] ^= 1;
    CHECK(!wire_header_decode(bytes, &out));
    uint32_t last_data = WIRE_GRANT; // or later: the data types are numbered without a gap
    while (strcmp(wire_type_name((uint16_t)(last_data + 1)), "unknown") != 0) last_data++;
    for (uint32_t type = 0; type <= UINT16_MAX; type++) {
        in = (struct wire_header){.length = UINT32_MAX, .type = (uint16_t)type};
        wire_header_encode(bytes, &in);
        if (wire_header_decode(bytes, &out)) CHECK_EQ(type, -1);
        in.length = type >= WIRE_READY ? WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES + 1 : WIRE_MAX_CONTROL_BYTES + 1;
        wire_header_encode(bytes, &in);
        if (wire_header_decode(bytes, &out)) CHECK_EQ(type, -2);
        bool known = (type >= WIRE_HELLO && type <= WIRE_DEADLOCK) || (type >= WIRE_LINK_HELLO && type <= last_data);
        if (known != (strcmp(wire_type_name((uint16_t)type), "unknown") != 0)) CHECK_EQ(type, -3);
    }
    in = (struct wire_header){.length = WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES, .type = WIRE_CHUNK};
    wire_header_encode(bytes, &in);
    CHECK(wire_header_decode(bytes, &out));
    static const enum wire_type empty[] = {WIRE_HEARTBEAT, WIRE_LEAVE, WIRE_GENERATION, WIRE_PROMISE,  WIRE_BYE,
                                           WIRE_MOVED,     WIRE_RUNS,  WIRE_STATUS,     WIRE_DIAGNOSE, WIRE_LINK_ACK};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        struct wire_buffer frame = {0};
        write_empty(&frame, empty[i]);
        CHECK_EQ(frame.length, WIRE_HEADER_BYTES);
        CHECK(wire_header_decode(frame.bytes, &out));
        CHECK_EQ(out.type, empty[i]);
        wire_buffer_fini(&frame);
    }
}

static void test_names_of_runs(void) {
    check_case("names of runs");
    static const struct {
        const char *name;
        bool good;
    } table[] = {{"a", true},    {"bert-large_2.x", true}, {"*", false},       {"", false},
                 {"a b", false}, {"a/b", false},           {"\303\244", false}};
    char longest[WIRE_MAX_RUN + 2];
    memset(longest, 'r', sizeof longest);
    CHECK(wire_is_run_name(longest, WIRE_MAX_RUN));
    CHECK(!wire_is_run_name(longest, WIRE_MAX_RUN + 1));
    CHECK(!wire_is_run_name("a\0b", 3));
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct wire_buffer frame = {0};
        struct wire_run run = {{0}}, told;
        memcpy(run.chars, table[i].name, strlen(table[i].name));
        CHECK_EQ(wire_is_run_name(run.chars, strlen(run.chars)), table[i].good);
        if (run.chars[0] == 0) continue; // is not sent
        wire_encode_run(&frame, (struct wire_header){0}, &run);
        bool decoded = wire_decode_run(frame.bytes + WIRE_HEADER_BYTES, frame.length - WIRE_HEADER_BYTES, &told);
        CHECK_EQ(decoded, table[i].good || strcmp(run.chars, WIRE_EVERY_RUN) == 0);
        if (decoded) CHECK_MEM(told.chars, run.chars, sizeof run.chars);
        wire_buffer_fini(&frame);
    }
}

static void test_lists_of_runs(void) {
    check_case("lists of runs");
    static struct wire_runs_are told, again;
    for (uint32_t count = 0; count <= WIRE_MAX_RUNS; count += 21) {
        struct wire_buffer frame = {0};
        memset(&told, 0, sizeof told);
        told.count = count;
        for (uint32_t i = 0; i < count; i++) {
            memset(told.runs[i].run.chars, 'a' + (int)(i % 26), i); // the first is the run without a name
            told.runs[i].peers = i * 1000003;
        }
        wire_encode_runs_are(&frame, (struct wire_header){0}, &told);
        uint8_t *body = frame.bytes + WIRE_HEADER_BYTES;
        size_t length = frame.length - WIRE_HEADER_BYTES;
        REQUIRE(wire_decode_runs_are(body, length, &again));
        CHECK_EQ(again.count, count);
        CHECK_MEM(again.runs, told.runs, count * sizeof told.runs[0]);
        CHECK(!wire_decode_runs_are(body, length - 1, &again));
        body[0] = WIRE_MAX_RUNS + 1;
        CHECK(!wire_decode_runs_are(body, length, &again));
        wire_buffer_fini(&frame);
    }
}

// ---- heads of data frames ----
enum { OF_ALL = 2, OF_OP = OF_ALL + 8 + 17 + 2 + 4 }; // bytes: lead and padding; and the op

// How many bytes of a head of this type may have more than one value: those of its fields, without the high bytes of a
// number that is bounded. The rest is zero on the wire.
static const struct {
    uint16_t type;
    size_t bytes;
    struct wire_head head;
} heads[] = {
    {WIRE_READY, OF_OP + 8 + 4 + 1, {.ready = {.expected = 7, .granted = 8, .in_slots = 1}}},
    {WIRE_POSTED, OF_OP, {0}},
    {WIRE_SMALL, OF_OP, {0}},
    {WIRE_ACK, OF_ALL + 1, {.ack = {1}}},
    {WIRE_SUPPLY, OF_ALL + WIRE_ACK_BYTES, {.supply = {{.epoch = 7, .tag = 8, .sequence = 9, .subgroup = 10}}}},
    {WIRE_CHUNK, OF_OP + 8 + 2 + 2 + 1, {.chunk = {.offset = 7, .shard = 8, .hop = 9, .down = 1}}},
    {WIRE_EARLY, OF_OP + 8 + 2 + 2 + 1, {.chunk = {.offset = 7, .shard = 8, .hop = 9}}},
    {WIRE_CHUNK_IN, OF_OP + 8 + 2 + 2 + 1 + 3, {.chunk = {.offset = 7, .shard = 8, .hop = 9, .bytes = 10}}},
    {WIRE_CODES, OF_OP + 8 + 2, {.block = {.index = 7, .shard = 8}}},
    {WIRE_RESULT, OF_OP + 8 + 2, {.block = {.index = 7, .shard = 8}}},
    {WIRE_GRANT, OF_OP + 8, {.grant = {7}}},
    {WIRE_MEMORY, OF_ALL, {0}},
    {WIRE_SYNC_ASK_HASHES, OF_ALL + 8 + 8 + 4 + 3, {.sync_ask = {.round = 7, .first = 8, .sequence = 9, .count = 10}}},
    {WIRE_SYNC_HASHES, OF_ALL + 8 + 8 + 4 + 3, {.sync_hashes = {.round = 7, .first = 8, .sequence = 9, .count = 10}}},
    {WIRE_SYNC_ASK, OF_ALL + 8 + 8 + 4 + 1 + 1, {.sync_ask = {.round = 7, .count = 10, .codings = 4}}},
    {WIRE_SYNC_LEAF, OF_ALL + 8 + 8 + 4 + 1, {.sync_leaf = {.round = 7, .leaf = 8, .sequence = 9, .coding = 2}}},
    {WIRE_LINK_HEARTBEAT, OF_ALL + 8 + 1, {.link_heartbeat = {.clock_us = 7, .loaded = 1}}},
    {WIRE_TAKEN, OF_ALL + 4, {.taken = {7}}},
    {WIRE_SMALL_IN, OF_OP + 3, {.small_in = {7}}},
};

// Returns how many values of the byte at `at` are accepted. Each of them has to come back when the head is written
// again, so the struct holds all that the wire says.
static int accepted_values(uint16_t type, uint8_t bytes[WIRE_HEAD_BYTES], size_t at) {
    int accepted = 0;
    uint8_t before = bytes[at];
    for (int value = 0; value < 256; value++) {
        struct wire_head head = {0};
        uint8_t again[WIRE_HEAD_BYTES];
        bytes[at] = (uint8_t)value;
        if (!wire_head_decode(bytes, type, &head)) continue;
        wire_head_encode(again, type, &head);
        CHECK_MEM(again, bytes, WIRE_HEAD_BYTES);
        accepted++;
    }
    bytes[at] = before;
    return accepted;
}

static void test_heads(void) {
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        uint16_t type = heads[i].type;
        struct wire_head head = heads[i].head;
        check_case("the head of %s", wire_type_name(type));
        head.lead = 3;
        head.padding = 31;
        head.op = (struct wire_op){.tag = 1, .fingerprint = {2, 3, 4, 5, 6, 7, 1}, .segment = 5, .sequence = 6};
        uint8_t bytes[WIRE_HEAD_BYTES];
        memset(bytes, 0x55, sizeof bytes);
        wire_head_encode(bytes, type, &head);
        size_t used = 0;
        for (size_t at = 0; at < WIRE_HEAD_BYTES; at++) {
            int accepted = accepted_values(type, bytes, at);
            used += accepted > 1;
            CHECK(accepted > 1 || (accepted == 1 && bytes[at] == 0));
        }
        CHECK_EQ(used, heads[i].bytes);
    }
    check_case("other frames have no head");
    uint8_t zeros[WIRE_HEAD_BYTES] = {0};
    for (unsigned type = 0; type <= WIRE_SMALL_IN + 1; type++) {
        struct wire_head head;
        bool has = false;
        for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) has |= heads[i].type == type;
        if (!has) CHECK(!wire_head_decode(zeros, (uint16_t)type, &head));
    }
}

static void test_bad_heads(void) {
    enum { MOST = WIRE_MAX_DATA_BYTES, HASHES = WIRE_SYNC_MAX_HASHES, LEAVES = WIRE_SYNC_MAX_LEAVES };
    static const struct {
        const char *name;
        bool good;
        uint16_t type;
        struct wire_head head;
    } rows[] = {
        {"most zeros before and behind", true, WIRE_SMALL, {.lead = WIRE_ALIGN - 1, .padding = WIRE_ALIGN - 1}},
        {"too many zeros before", false, WIRE_SMALL, {.lead = WIRE_ALIGN}},
        {"too many zeros behind", false, WIRE_SMALL, {.padding = WIRE_ALIGN}},
        {"slots, or not", false, WIRE_READY, {.ready = {.in_slots = 2}}},
        {"up or down", false, WIRE_CHUNK, {.chunk = {.down = 2}}},
        {"no bytes in slots", false, WIRE_CHUNK_IN, {.chunk = {.bytes = 0}}},
        {"most bytes in slots", true, WIRE_CHUNK_IN, {.chunk = {.bytes = MOST}}},
        {"too many bytes in slots", false, WIRE_CHUNK_IN, {.chunk = {.bytes = MOST + 1}}},
        {"no input", false, WIRE_SMALL_IN, {.small_in = {0}}},
        {"the longest input", true, WIRE_SMALL_IN, {.small_in = {MOST}}},
        {"too long an input", false, WIRE_SMALL_IN, {.small_in = {MOST + 1}}},
        {"leaving, or not", false, WIRE_ACK, {.ack = {2}}},
        {"loaded, or not", false, WIRE_LINK_HEARTBEAT, {.link_heartbeat = {.loaded = 2}}},
        {"no hashes asked for", false, WIRE_SYNC_ASK_HASHES, {.sync_ask = {.count = 0}}},
        {"most hashes asked for", true, WIRE_SYNC_ASK_HASHES, {.sync_ask = {.count = HASHES}}},
        {"too many hashes asked for", false, WIRE_SYNC_ASK_HASHES, {.sync_ask = {.count = HASHES + 1}}},
        {"codings of hashes", false, WIRE_SYNC_ASK_HASHES, {.sync_ask = {.count = 1, .codings = 1}}},
        {"no hashes", false, WIRE_SYNC_HASHES, {.sync_hashes = {.count = 0}}},
        {"too many hashes", false, WIRE_SYNC_HASHES, {.sync_hashes = {.count = HASHES + 1}}},
        {"no leaves asked for", false, WIRE_SYNC_ASK, {.sync_ask = {.count = 0}}},
        {"most leaves asked for", true, WIRE_SYNC_ASK, {.sync_ask = {.count = LEAVES, .codings = 7}}},
        {"too many leaves asked for", false, WIRE_SYNC_ASK, {.sync_ask = {.count = LEAVES + 1}}},
        {"unknown codings asked for", false, WIRE_SYNC_ASK, {.sync_ask = {.count = 1, .codings = 8}}},
        {"an unknown coding", false, WIRE_SYNC_LEAF, {.sync_leaf = {.coding = WIRE_SYNC_CODINGS}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s: %s", wire_type_name(rows[i].type), rows[i].name);
        struct wire_head head;
        uint8_t bytes[WIRE_HEAD_BYTES];
        wire_head_encode(bytes, rows[i].type, &rows[i].head);
        CHECK_EQ(wire_head_decode(bytes, rows[i].type, &head), rows[i].good);
    }
}

static void test_values(void) {
    check_case("values");
    struct wire_buffer frame = {0};
    struct wire_hello hello = {.version = WIRE_VERSION + 1}, got = {0};
    wire_encode_hello(&frame, (struct wire_header){0}, &hello);
    CHECK(wire_decode_hello(frame.bytes + WIRE_HEADER_BYTES, 2, &got));     // of another version, whatever else it says
    CHECK(wire_decode_matrix(frame.bytes + WIRE_HEADER_BYTES, 2, &matrix)); // likewise
    CHECK(matrix.version == WIRE_VERSION + 1 && matrix.told.member_count == 0);
    CHECK_EQ(got.version, WIRE_VERSION + 1);
    wire_buffer_fini(&frame);

    char text[2 * WIRE_MAX_TEXT];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    wire_encode_text(&frame, (struct wire_header){0}, WIRE_REFUSED, text);
    CHECK_EQ(frame.length, WIRE_HEADER_BYTES + 2 + WIRE_MAX_TEXT); // cut, not refused
    wire_buffer_fini(&frame);

    struct wire_id a = {{1}}, b = {{1, 1}};
    CHECK(wire_id_equal(&a, &a) && !wire_id_equal(&a, &b));
    CHECK(wire_id_compare(&a, &b) < 0 && wire_id_compare(&b, &a) > 0);
    struct wire_op_name name = random_name(), other = name;
    CHECK(wire_op_name_equal(&name, &other));
    other.sequence++;
    CHECK(!wire_op_name_equal(&name, &other));
    other = name;
    other.segment++;
    CHECK(!wire_op_name_equal(&name, &other));
    other = name;
    other.subgroup++;
    CHECK(!wire_op_name_equal(&name, &other));
    struct wire_fingerprint whole = random_fingerprint(), divided = whole;
    divided.mode++;
    CHECK(!wire_fingerprint_equal(&whole, &divided) && wire_fingerprint_same_op(&whole, &divided));
    divided.count++;
    CHECK(!wire_fingerprint_same_op(&whole, &divided));
}

int main(void) {
    test_round_trips();
    test_stacks();
    test_wrong_lengths();
    test_bad_fields();
    test_noise();
    test_names_of_runs();
    test_lists_of_runs();
    test_headers();
    test_heads();
    test_bad_heads();
    test_values();
    return check_status();
}
