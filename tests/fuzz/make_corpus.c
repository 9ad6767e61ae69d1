// Writes the first corpus: make_corpus FOLDER. Frames come from the encoders, programs tell of one ordinary course of events each. What
// the fuzzers find beyond that, and what once was a bug, lies beside it under names of its own.
#include <sys/stat.h>

#include "events.h"
#include "fuzz.h"
#include "net/wire.h"

static const char *folder;

static void write_file(const char *target, const char *name, const void *bytes, size_t length) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, target);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", folder, target, name);
    FILE *file = fopen(path, "wb");
    MUST(file != NULL && fwrite(bytes, 1, length, file) == length && fclose(file) == 0);
}

// ---- frames ----

static struct wire_header header = {.run = 0x1122334455667788, .generation = 1, .epoch = 3};

static void write_frame(const char *name, struct wire_buffer *frame) {
    write_file("fuzz_wire", name, frame->bytes, frame->length);
    wire_buffer_fini(frame);
}

#define FRAME(name, ...) \
    do { \
        static struct wire_##name message; \
        message = (struct wire_##name)__VA_ARGS__; \
        wire_encode_##name(&frame, header, &message); \
        write_frame(#name, &frame); \
    } while (0)

static const struct wire_id one = {{1}}, two = {{2}};
static const struct wire_op_name op_name = {.epoch = 3, .tag = 7, .sequence = 1};

static void write_epochs(void) {
    struct wire_buffer frame = {0};
    struct wire_member members[] = {{one, 1, 0, 2, {4, {127, 0, 0, 1}, 48149}}, {two, 2, 5, 1, {6, {0xfe, 0x80}, 48150}}};
    struct wire_epoch epoch = {.number = 4, .group_epoch = 3, .latency_us = 100, .megabytes_per_s = 1000, .count = 2, .members = members};
    FRAME(candidate, {.attempt = 2, .epoch = epoch});
    FRAME(epoch_commit, {.reason = WIRE_REASON_UPDATE, .epoch = epoch});
}

static void write_ops(void) {
    struct wire_buffer frame = {0};
    struct wire_op_report ops[] = {{.name = op_name, .state = WIRE_OP_OPEN, .small = 1}, {.name = op_name, .state = WIRE_OP_DONE}};
    struct wire_fingerprint mine = {.count = 10, .dtype = 10}, theirs = {.count = 20, .dtype = 10};
    FRAME(op_done, {.name = op_name});
    FRAME(verdict, {.name = op_name, .kind = WIRE_VERDICT_COMMIT, .supplier = one, .text = {3, "why"}, .count = 1, .needy = {two}});
    FRAME(report, {.count = 2, .ops = ops});
    FRAME(mismatch, {.name = op_name, .mine = mine, .other = two, .theirs = theirs});
}

static void write_recovery(void) {
    struct wire_buffer frame = {0};
    struct wire_member members[] = {{one, 1, 0, 2, {4, {127, 0, 0, 1}, 48149}}, {two, 2, 5, 1, {6, {0xfe, 0x80}, 48150}}};
    struct wire_epoch epoch = {.number = 4, .group_epoch = 3, .barrier = 2, .latency_us = 100, .megabytes_per_s = 1000, .count = 2, .members = members};
    struct wire_group_size sizes[] = {{0, 1}, {5, 1}};
    struct wire_barrier barrier = {.number = 2, .kind = WIRE_VOTE_UPDATE, .epoch = 4, .count = 2, .sizes = sizes};
    struct wire_past past[] = {{op_name, WIRE_VERDICT_COMMIT}, {op_name, WIRE_VERDICT_MISMATCH}};
    struct wire_hello hello = {.version = WIRE_VERSION, .id = one, .group = 1, .lanes = 4, .port = 48149, .masters = 2};
    FRAME(resume, {.hello = hello, .generation = 1, .join_number = 1, .secret = {9}, .vote = WIRE_VOTE_SYNC, .sync_vote = {.strategy = 1}, .accepted = 1, .sync_committed = 1, .sync_revision = 5, .barrier = barrier, .epoch = epoch, .past_count = 2, .past = past});
    FRAME(resumed, {.heartbeat_limit_ms = 5000, .barrier_ended = 1, .barrier = barrier, .sync = {.round = 1, .text = {3, "why"}}});
}

static void write_frames(void) {
    struct wire_buffer frame = {0};
    wire_encode_empty(&frame, header, WIRE_HEARTBEAT);
    write_frame("heartbeat", &frame);
    wire_encode_text(&frame, header, WIRE_EXPELLED, "go away");
    write_frame("expelled", &frame);
    FRAME(hello, {.version = WIRE_VERSION, .id = one, .group = 1, .lanes = 4, .port = 48149, .masters = 2});
    FRAME(welcome, {.join_number = 1, .secret = {9}, .heartbeat_limit_ms = 5000, .seen = {4, {127, 0, 0, 1}, 5}});
    FRAME(linked, {.attempt = 1, .latency_us = 50, .count = 1, .unreachable = {two}});
    FRAME(vote, {.kind = WIRE_VOTE_UPDATE});
    FRAME(outcome, {.kind = WIRE_VOTE_PENDING, .value = 1});
    FRAME(link_down, {.id = two, .index = 1});
    FRAME(measure, {.round = 1, .target = two, .duration_ms = 100});
    FRAME(measured, {.from = one, .to = two, .bytes_per_s = 1000000});
    FRAME(sync_vote, {.strategy = 1, .revision = 5, .mask = {1, 2}, .content = {3, 4}});
    FRAME(sync_plan, {.round = 1, .revision = 5, .receiver_count = 1, .donor_count = 1, .receivers = {one}, .donors = {two}});
    FRAME(sync_done, {.round = 1, .complete = 1, .count = 1, .sources = {{two, 99}}});
    FRAME(sync_end, {.round = 1, .code = 9, .text = {3, "why"}});
    FRAME(link_hello, {.version = WIRE_VERSION, .kind = WIRE_LINK_DATA, .secret = {9}, .from = one, .to = two, .index = 1});
    wire_encode_status_is(&frame, header, &(struct wire_status){.active = 1});
    write_frame("status_is", &frame);
    wire_encode_text(&frame, header, WIRE_WAITING, "waits");
    write_frame("waiting", &frame);
    write_epochs();
    write_recovery();
    write_ops();
    uint8_t bytes[WIRE_HEADER_BYTES + WIRE_OP_BYTES];
    struct wire_op head = {.tag = 7, .fingerprint = {.count = 10}, .shard = 1, .hop = 2, .sequence = 3, .offset = 4, .extra = 5};
    header.type = WIRE_CHUNK;
    header.length = WIRE_OP_BYTES;
    wire_header_encode(bytes, &header);
    wire_op_encode(bytes + WIRE_HEADER_BYTES, &head);
    write_file("fuzz_wire", "chunk", bytes, sizeof bytes);
}

// ---- programs ----

#define PROGRAM(target, name, ...) \
    do { \
        static const uint8_t bytes[] = {__VA_ARGS__}; \
        write_file(target, name, bytes, sizeof bytes); \
    } while (0)

// Three peers of one group, on three hosts; the last arguments say what else.
#define M_THREE M_CONNECT, 0, 2, 0, M_CONNECT, 1, 2, 0, M_ALL_VOTE, 0, 0, 0, M_ALL_LINKED, 9, 0, 0, \
                M_CONNECT, 2, 2, 0, M_ALL_VOTE, 0, 0, 0, M_ALL_LINKED, 9, 0, 0, M_ALL_READY, 9, 0, 0, M_ALL_REPORT, 0

static void write_master_programs(void) {
    const char *target = "fuzz_membership";
    PROGRAM(target, "join", M_THREE);
    PROGRAM(target, "refused", M_CONNECT, 0, 0, 0, M_CONNECT, 1, 0, 1, M_CONNECT, 2, 0, 2, M_CONNECT, 3, 0, 4);
    PROGRAM(target, "unreachable", M_CONNECT, 0, 2, 0, M_CONNECT, 1, 2, 0, M_CONNECT, 2, 2, 0, M_VOTE, 0, 0, M_LINKED, 0, 4, 1, M_ALL_LINKED, 1, 0, 0, M_ALL_LINKED, 1, 0, 0);
    PROGRAM(target, "late", M_CONNECT, 0, 2, 0, M_CONNECT, 1, 2, 0, M_VOTE, 0, 0, M_LINKED, 0, 0, 1, M_HEARTBEATS, M_WAIT, 100, M_HEARTBEATS, M_WAIT, 60, M_DUE, M_DUE);
    PROGRAM(target, "ops", M_THREE, M_ALL_DONE, 1, 0, 0, M_DONE, 0, 2, M_DONE, 1, 2, M_DONE, 2, 2, M_DONE, 0, 2);
    PROGRAM(target, "loss", M_THREE, M_DONE, 0, 2, M_LOST, 2, M_REPORT, 0, 3, 66, 0, 65, 3, 67, 2, M_REPORT, 1, 3, 66, 0, 65, 1, 67, 2, M_LEAVE, 1);
    PROGRAM(target, "mismatch", M_THREE, M_MISMATCH, 0, 1, 2, 1, 1, 1, 1, 1, 1, 1, M_ALL_REPORT, 2, 66, 0, 65, 1);
    PROGRAM(target, "link-down", M_THREE, M_LINK_DOWN, 0, 1, 0, M_LINK_DOWN, 1, 0, 0, M_WAIT, 5, M_ALL_REPORT, 0, M_LINK_DOWN, 0, 1, 0, M_WAIT, 5, M_LINK_DOWN, 0, 0, 0);
    PROGRAM(target, "optimise", M_THREE, M_ALL_VOTE, 2, 0, 0, M_ALL_MEASURED, 1, 9, 0, M_ALL_MEASURED, 5, 3, 0, M_ALL_MEASURED, 2, 1, 0, M_ALL_MEASURED, 1, 1, 0, M_ALL_LINKED, 1, 0, 0, M_DUE, M_DUE);
    PROGRAM(target, "pending", M_THREE, M_ALL_VOTE, 1, 0, 0, M_VOTE, 0, 1, M_VOTE, 1, 0, M_HEARTBEATS, M_WAIT, 255, M_DUE);
    PROGRAM(target, "sync", M_THREE, M_ALL_SYNC_VOTE, 1, 1, 0, M_SYNC_VOTE, 0, 0, 2, 1, M_SYNC_VOTE, 1, 0, 2, 1, M_SYNC_VOTE, 2, 0, 1, 0, M_ALL_SYNC_DONE, 1, 9, 0);
    PROGRAM(target, "sync-fails", M_THREE, M_ALL_SYNC_VOTE, 0, 1, 1, M_ALL_SYNC_DONE, 0, 0, 0, M_ALL_SYNC_VOTE, 0, 1, 1, M_LOST, 1, M_LOST, 2);
    PROGRAM(target, "sync-expels", M_THREE, M_SYNC_VOTE, 0, 8, 1, 1, M_SYNC_VOTE, 1, 0, 1, 1, M_SYNC_VOTE, 2, 2, 1, 0, M_ALL_SYNC_DONE, 1, 0, 0);
    PROGRAM(target, "groups", M_CONNECT, 0, 1, 0, M_CONNECT, 1, 0, 0, M_CONNECT, 2, 64, 0, M_ALL_VOTE, 0, 0, 0, M_ALL_LINKED, 9, 0, 0, M_ALL_LINKED, 9, 0, 0, M_ALL_DONE, 1, 0, 0, M_LOST, 2, M_ALL_REPORT, 1, 1, 2);
    PROGRAM(target, "raw", M_THREE, M_RAW, 0, WIRE_VOTE, 0, 1, 9, M_RAW, 1, WIRE_REPORT, 1, 4, 0, 0, 0, 1, M_RAW, 2, 99, 0, 0);
    PROGRAM(target, "no-memory", M_THREE, M_REFUSE, 1, M_CONNECT, 3, 2, 0, M_REFUSE, 2, M_ALL_DONE, 1, 0, 0, M_RANDOM, 1, 2, 3);
    PROGRAM(target, "resume", M_THREE, M_MASTER, 1, M_ALL_RESUME, 0, M_ALL_PROMISE, M_ALL_REPORT, 0, M_ALL_READY, 9, 0, 0, M_ALL_VOTE, 1, 0, 0, M_MASTER, 0, M_ALL_RESUME, 140, M_ALL_PROMISE);
    PROGRAM(target, "resume-majority", M_THREE, M_VOTE, 0, 1, M_MASTER, 3, M_CONNECT, 3, 2, 0, M_RESUME, 0, 0, 0, 0, M_WAIT, 30, M_RESUME, 1, 0, 0, 0, M_HEARTBEATS, M_WAIT, 100, M_HEARTBEATS, M_WAIT, 100, M_PROMISE, 0, M_PROMISE, 1, M_ALL_REPORT, 0);
    PROGRAM(target, "resume-lies", M_THREE, M_MASTER, 1, M_RESUME, 0, 0, 4, 250, M_RESUME, 0, 0, 2, 250, M_RESUME, 0, 0, 10, 0, M_RESUME, 1, 0, 18, 40, M_RESUME, 2, 0, 1, 0, M_ALL_PROMISE);
    PROGRAM(target, "young", M_THREE, M_MASTER, 0, M_CONNECT, 3, 2, 0, M_CONNECT, 4, 2, 0, M_RESUME, 0, 0, 0, 0, M_RESUME, 1, 0, 0, 0, M_RESUME, 2, 0, 0, 0, M_ALL_PROMISE, M_ALL_REPORT, 0);
    PROGRAM(target, "young-stays", M_THREE, M_MASTER, 0, M_CONNECT, 3, 2, 0, M_RESUME, 0, 0, 0, 0, M_HEARTBEATS, M_DUE, M_DUE, M_DUE, M_DUE, M_DUE, M_DUE, M_DUE, M_DUE);
    PROGRAM(target, "moved", M_CONNECT, 0, 130, 0, M_CONNECT, 1, 130, 0, M_ALL_VOTE, 0, 0, 0, M_ALL_LINKED, 9, 0, 0, M_MOVED, 0, M_MOVED, 1, M_ALL_RESUME, 0, M_ALL_PROMISE);
    PROGRAM(target, "standby", M_THREE, M_MASTER, 4, M_CONNECT, 3, 2, 0, M_ALL_RESUME, 0, M_CONNECT, 3, 2, 0, M_ALL_PROMISE);
    PROGRAM(target, "again", M_THREE, M_LOST, 0, M_LOST, 1, M_LOST, 2, M_THREE);
}

// Two others, which both joined before, so that they are dialled.
#define P_THREE P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 7, 0, 8, P_ALL_DIALLED, P_ADOPT

static void write_peer_programs(void) {
    const char *target = "fuzz_member";
    PROGRAM(target, "join", P_THREE);
    PROGRAM(target, "first", P_JOIN, P_WELCOME, 1, P_EPOCH, 0, 1, 0, 0, P_VOTE, 0, P_CANDIDATE, 0, 3, 0, 0, P_HELLO, 1, 0, 0, P_HELLO, 1, 1, 0, P_EPOCH, 0, 3, 0, 0, P_ADOPT);
    PROGRAM(target, "refused", P_JOIN, P_END, 0);
    PROGRAM(target, "unanswered", P_JOIN, P_DUE);
    PROGRAM(target, "silence", P_THREE, P_DUE, P_DUE, P_DUE, P_DUE, P_DUE, P_DUE, P_DUE);
    PROGRAM(target, "expelled", P_THREE, P_VOTE, 0, P_END, 1);
    PROGRAM(target, "disconnected", P_THREE, P_SYNC, 0, P_DISCONNECTED);
    PROGRAM(target, "loss", P_THREE, P_EPOCH, 1, 3, 0, 8, P_EPOCH, 1, 1, 0, 0, P_ADOPT_LOSS, 1, P_ADOPT_LOSS, 0);
    PROGRAM(target, "relink", P_THREE, P_LINK_LOST, 1, 0, P_EPOCH, 2, 7, 0, 8, P_ALL_DIALLED, P_LINK_LOST, 2, 1, P_LINK_UP, 2, 1, P_WAIT, 6, P_LINK_LOST, 0, 0);
    PROGRAM(target, "candidate", P_THREE, P_VOTE, 0, P_CANDIDATE, 3, 15, 0, 8, P_DIALLED, 1, P_ALL_DIALLED, P_OUTCOME, 0, 0, 0);
    PROGRAM(target, "late", P_THREE, P_VOTE, 0, P_CANDIDATE, 3, 15, 0, 8, P_HEARTBEAT, P_WAIT, 95, P_EPOCH, 0, 15, 0, 8, P_HEARTBEAT, P_WAIT, 95);
    PROGRAM(target, "order", P_THREE, P_VOTE, 2, P_MEASURE, 1, P_MEASURE, 9, P_MEASURED, 1, 50, P_CANDIDATE, 3, 7, 1, 8, P_ALL_DIALLED, P_EPOCH, 3, 7, 1, 8, P_ADOPT);
    PROGRAM(target, "pending", P_THREE, P_VOTE, 1, P_OUTCOME, 1, 0, 1, P_VERDICT, 1, 0, 1, 2, P_VERDICT, 1, 1, 0, 0);
    PROGRAM(target, "sync", P_THREE, P_SYNC, 0, P_SYNC_PLAN, 1, P_SYNC_END, 0, 4, P_SYNC, 1, P_SYNC_END, 9, 0);
    PROGRAM(target, "groups", P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 0x37, 0, 12, P_ALL_DIALLED, P_EPOCH, 1, 0x17, 0, 76);
    PROGRAM(target, "bug-epoch-named-somebody-twice", P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 7, 0, 40);
    PROGRAM(target, "not-in-it", P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 6, 0, 2);
    PROGRAM(target, "raw", P_THREE, P_RAW, WIRE_OUTCOME, 0, 10, 1, 0, P_RAW, WIRE_CANDIDATE, 0, 32, 1);
    PROGRAM(target, "leave", P_THREE, P_LEAVE, P_DISCONNECTED);
    PROGRAM(target, "bug-dead-mind-dialled-again", P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 7, 0, 8, P_DISCONNECTED, P_DIALLED, 1);
    PROGRAM(target, "recovery", P_RECOVERY, 20, 1, P_THREE, P_VOTE, 1, P_DISCONNECTED, P_RESUME, 0, P_GENERATION, 1, P_RESUMED, 0, 0, 0, 0, P_EPOCH, 2, 7, 0, 8, P_OUTCOME, 1, 0, 1);
    PROGRAM(target, "recovery-late", P_RECOVERY, 20, 0, P_THREE, P_VOTE, 1, P_DUE, P_DUE, P_DUE, P_DUE, P_DUE, P_RESUME, 0, P_WAITING, P_GENERATION, 1, P_RESUMED, 1, 2, 0, 0, P_EPOCH, 2, 7, 0, 8);
    PROGRAM(target, "recovery-sync", P_RECOVERY, 20, 0, P_THREE, P_SYNC, 0, P_SYNC_PLAN, 1, P_DISCONNECTED, P_RESUME, 1, P_GENERATION, 1, P_RESUMED, 2, 0, 0, 1, P_EPOCH, 1, 3, 0, 8);
    PROGRAM(target, "recovery-ends", P_RECOVERY, 20, 0, P_THREE, P_DISCONNECTED, P_RESUME, 0, P_WAITING, P_DISCONNECTED, P_DUE, P_DUE, P_DUE);
    PROGRAM(target, "recovery-newcomer", P_RECOVERY, 20, 0, P_JOIN, P_WAITING, P_WELCOME, 9, P_DISCONNECTED, P_RESUME, 0, P_WELCOME, 3, P_EPOCH, 0, 7, 0, 8);
    PROGRAM(target, "bye", P_RECOVERY, 20, 3, P_THREE, P_BYE, P_RESUME, 2, P_END, 1);
    PROGRAM(target, "no-memory", P_JOIN, P_WELCOME, 9, P_REFUSE, 2, P_EPOCH, 0, 7, 0, 8);
}

int main(int argc, char **argv) {
    folder = argc > 1 ? argv[1] : "corpus";
    mkdir(folder, 0777);
    write_frames();
    write_master_programs();
    write_peer_programs();
    PROGRAM("fuzz_election", "popular", 0, 1, 0, 0, 8, 1, 0, 8, 2, 0, 0, 1);
    PROGRAM("fuzz_election", "expecting", 1, 3, 5, 4, 8, 5, 6, 0, 4, 2, 1, 5);
    PROGRAM("fuzz_election", "repeat", 1, 2, 5, 4, 8, 4, 4, 0, 4, 1, 8, 3);
    PROGRAM("fuzz_election", "lost", 2, 0, 5, 1, 8, 2, 2, 8, 9, 8, 0, 1);
    PROGRAM("fuzz_delta", "two-donors", 1, 5, 9, 3, 0, 1, 0xff, 0, 0, 0, 0, 1, 0, 2, 0, 0, 7, 0, 200, 0, 1, 0, 2, 1, 0);
    PROGRAM("fuzz_delta", "wrong", 0, 7, 1, 2, 0xff, 0, 0, 0, 3, 0, 0, 4, 1, 0, 5, 1, 0, 6, 2, 0);
    PROGRAM("fuzz_delta", "bug-leaf-that-every-donor-sent-wrong", 0, 1, 0, 1, 0xff, 3, 0, 0, 3, 1, 0);
    return 0;
}
