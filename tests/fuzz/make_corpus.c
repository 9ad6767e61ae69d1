// Writes the first corpus: make_corpus FOLDER. Frames come from the encoders, programs tell of one ordinary course of
// events each. What the fuzzers find beyond that, and what once was a bug, lies beside it under names of its own.
#include <sys/stat.h>

#include "events.h"
#include "fuzz.h"
#include "net/wire_control.h"
#include "net/wire_data.h"

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
    struct wire_member members[] = {{.id = one, 1, 0, 2, {4, {127, 0, 0, 1}, 48149}, 3, 1},
                                    {.id = two, 2, 5, 1, {6, {0xfe, 0x80}, 48150}}};
    struct wire_epoch epoch = {
        .number = 4, .group_epoch = 3, .latency_us = 100, .megabytes_per_s = 1000, .count = 2, .members = members};
    FRAME(candidate, {.attempt = 2, .epoch = epoch});
    FRAME(epoch_commit, {.reason = WIRE_REASON_UPDATE, .epoch = epoch});
}

static void write_ops(void) {
    struct wire_buffer frame = {0};
    struct wire_op_report ops[] = {{.name = op_name, .state = WIRE_OP_OPEN, .small = 1},
                                   {.name = op_name, .state = WIRE_OP_DONE}};
    struct wire_fingerprint mine = {.count = 10, .dtype = 10}, theirs = {.count = 20, .dtype = 10};
    FRAME(op_done, {.name = op_name});
    FRAME(verdict, {.name = op_name,
                    .kind = WIRE_VERDICT_COMMIT,
                    .supplier = one,
                    .text = {3, "why"},
                    .count = 1,
                    .needy = {two}});
    FRAME(report, {.count = 2, .ops = ops});
    FRAME(mismatch, {.name = op_name, .mine = mine, .other = two, .theirs = theirs});
}

static void write_recovery(void) {
    struct wire_buffer frame = {0};
    struct wire_member members[] = {{.id = one, 1, 0, 2, {4, {127, 0, 0, 1}, 48149}, 3, 1},
                                    {.id = two, 2, 5, 1, {6, {0xfe, 0x80}, 48150}}};
    struct wire_epoch epoch = {.number = 4,
                               .group_epoch = 3,
                               .votes_ended = 2,
                               .latency_us = 100,
                               .megabytes_per_s = 1000,
                               .count = 2,
                               .members = members};
    struct wire_group_size sizes[] = {{0, 1}, {5, 1}};
    struct wire_ended_vote vote = {.number = 2, .kind = WIRE_VOTE_UPDATE, .epoch = 4, .count = 2, .sizes = sizes};
    struct wire_past past[] = {{op_name, WIRE_VERDICT_COMMIT, 0}, {op_name, WIRE_VERDICT_MISMATCH, 0}};
    struct wire_hello hello = {.version = WIRE_VERSION, .id = one, .group = 1, .lanes = 4, .port = 48149, .masters = 2};
    FRAME(resume, {.hello = hello,
                   .generation = 1,
                   .join_number = 1,
                   .secret = {9},
                   .vote = WIRE_VOTE_SYNC,
                   .sync_vote = {.strategy = 1},
                   .accepted = 1,
                   .sync_committed = 1,
                   .sync_revision = epoch.sync_expected - 1,
                   .last_vote = vote,
                   .epoch = epoch,
                   .past_count = 2,
                   .past = past});
    FRAME(resumed,
          {.heartbeat_limit_ms = 5000, .vote_ended = 1, .last_vote = vote, .sync = {.round = 1, .text = {3, "why"}}});
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
    FRAME(leaving, {.id = two, .within_ms = 5, .at_update = 1});
    FRAME(link_down, {.id = two, .index = 1});
    FRAME(measure, {.round = 1, .target = two, .duration_ms = 100});
    FRAME(measured, {.from = one, .to = two, .bytes_per_s = 1000000});
    FRAME(sync_vote, {.strategy = 1, .revision = 5, .mask = {1, 2}, .content = {3, 4}, .outline = {3, {5, 6, 7}}});
    FRAME(sync_differs, {.first = 3, .last = 4});
    FRAME(sync_plan,
          {.round = 1, .revision = 5, .receiver_count = 1, .donor_count = 1, .receivers = {one}, .donors = {two}});
    FRAME(sync_done, {.round = 1, .complete = 1, .count = 1, .sources = {{two, 99}}});
    FRAME(sync_end, {.round = 1, .code = 9, .text = {3, "why"}});
    FRAME(link_hello,
          {.version = WIRE_VERSION, .kind = WIRE_LINK_DATA, .secret = {9}, .from = one, .to = two, .index = 1});
    wire_encode_status_is(&frame, header, &(struct wire_status_is){.activity = WIRE_GATHERS});
    write_frame("status_is", &frame);
    wire_encode_text(&frame, header, WIRE_WAITING, "waits");
    write_frame("waiting", &frame);
    write_epochs();
    write_recovery();
    write_ops();
    uint8_t bytes[WIRE_HEADER_BYTES + WIRE_HEAD_BYTES];
    struct wire_head head = {.op = {.tag = 7, .fingerprint = {.count = 10}, .sequence = 3},
                             .chunk = {.offset = 4, .shard = 1, .hop = 2}};
    header.type = WIRE_CHUNK;
    header.length = WIRE_HEAD_BYTES;
    wire_header_encode(bytes, &header);
    wire_head_encode(bytes + WIRE_HEADER_BYTES, header.type, &head);
    write_file("fuzz_wire", "chunk", bytes, sizeof bytes);
}

// ---- programs ----

#define PROGRAM(target, name, ...) \
    do { \
        static const uint8_t bytes[] = {__VA_ARGS__}; \
        write_file(target, name, bytes, sizeof bytes); \
    } while (0)

// Three peers of one group, on three hosts; the last arguments say what else.
#define M_THREE \
    M_CONNECT, 0, 2, 0, M_CONNECT, 1, 2, 0, M_ALL_VOTE, 0, 0, 0, M_ALL_LINKED, 9, 0, 0, M_CONNECT, 2, 2, 0, \
        M_ALL_VOTE, 0, 0, 0, M_ALL_LINKED, 9, 0, 0, M_ALL_READY, 9, 0, 0, M_ALL_REPORT, 0

static void write_master_programs(void) {
    const char *target = "fuzz_core";
    PROGRAM(target, "join", M_THREE);
    PROGRAM(target, "refused", M_CONNECT, 0, 0, 0, M_CONNECT, 1, 0, 1, M_CONNECT, 2, 0, 2, M_CONNECT, 3, 0, 4);
    PROGRAM(target, "unreachable", M_CONNECT, 0, 2, 0, M_CONNECT, 1, 2, 0, M_CONNECT, 2, 2, 0, M_VOTE, 0, 0, M_LINKED,
            0, 4, 1, M_ALL_LINKED, 1, 0, 0, M_ALL_LINKED, 1, 0, 0);
    PROGRAM(target, "late", M_CONNECT, 0, 2, 0, M_CONNECT, 1, 2, 0, M_VOTE, 0, 0, M_LINKED, 0, 0, 1, M_HEARTBEATS,
            M_WAIT, 100, M_HEARTBEATS, M_WAIT, 60, M_DUE, M_DUE);
    PROGRAM(target, "ops", M_THREE, M_ALL_DONE, 1, 0, 0, M_DONE, 0, 2, M_DONE, 1, 2, M_DONE, 2, 2, M_DONE, 0, 2);
    PROGRAM(target, "loss", M_THREE, M_DONE, 0, 2, M_LOST, 2, M_REPORT, 0, 3, 66, 0, 65, 3, 67, 2, M_REPORT, 1, 3, 66,
            0, 65, 1, 67, 2, M_LEAVE, 1);
    PROGRAM(target, "mismatch", M_THREE, M_MISMATCH, 0, 1, 2, 1, 1, 1, 1, 1, 1, 1, M_ALL_REPORT, 2, 66, 0, 65, 1);
    PROGRAM(target, "link-down", M_THREE, M_LINK_DOWN, 0, 1, 0, M_LINK_DOWN, 1, 0, 0, M_WAIT, 5, M_ALL_REPORT, 0,
            M_LINK_DOWN, 0, 1, 0, M_WAIT, 5, M_LINK_DOWN, 0, 0, 0);
    PROGRAM(target, "optimise", M_THREE, M_ALL_VOTE, 2, 0, 0, M_ALL_MEASURED, 1, 9, 0, M_ALL_MEASURED, 5, 3, 0,
            M_ALL_MEASURED, 2, 1, 0, M_ALL_MEASURED, 1, 1, 0, M_ALL_LINKED, 1, 0, 0, M_DUE, M_DUE);
    PROGRAM(target, "pending", M_THREE, M_ALL_VOTE, 1, 0, 0, M_VOTE, 0, 1, M_VOTE, 1, 0, M_HEARTBEATS, M_WAIT, 255,
            M_DUE);
    PROGRAM(target, "sync", M_THREE, M_ALL_SYNC_VOTE, 1, 1, 0, M_SYNC_VOTE, 0, 0, 2, 1, M_SYNC_VOTE, 1, 0, 2, 1,
            M_SYNC_VOTE, 2, 0, 1, 0, M_ALL_SYNC_DONE, 1, 9, 0);
    PROGRAM(target, "sync-fails", M_THREE, M_ALL_SYNC_VOTE, 0, 1, 1, M_ALL_SYNC_DONE, 0, 0, 0, M_ALL_SYNC_VOTE, 0, 1, 1,
            M_LOST, 1, M_LOST, 2);
    PROGRAM(target, "sync-expels", M_THREE, M_SYNC_VOTE, 0, 8, 1, 1, M_SYNC_VOTE, 1, 0, 1, 1, M_SYNC_VOTE, 2, 2, 1, 0,
            M_ALL_SYNC_DONE, 1, 0, 0);
    PROGRAM(target, "sync-differs", M_THREE, M_SYNC_VOTE, 0, 24, 1, 1, M_SYNC_VOTE, 1, 0, 1, 1, M_SYNC_VOTE, 2, 0, 1,
            0x45);
    PROGRAM(target, "groups", M_CONNECT, 0, 1, 0, M_CONNECT, 1, 0, 0, M_CONNECT, 2, 64, 0, M_ALL_VOTE, 0, 0, 0,
            M_ALL_LINKED, 9, 0, 0, M_ALL_LINKED, 9, 0, 0, M_ALL_DONE, 1, 0, 0, M_LOST, 2, M_ALL_REPORT, 1, 1, 2);
    PROGRAM(target, "raw", M_THREE, M_RAW, 0, WIRE_VOTE, 0, 1, 9, M_RAW, 1, WIRE_REPORT, 1, 4, 0, 0, 0, 1, M_RAW, 2, 99,
            0, 0);
    PROGRAM(target, "no-memory", M_THREE, M_REFUSE, 1, M_CONNECT, 3, 2, 0, M_REFUSE, 2, M_ALL_DONE, 1, 0, 0, M_RANDOM,
            1, 2, 3);
    PROGRAM(target, "resume", M_THREE, M_MASTER, 1, M_ALL_RESUME, 0, M_ALL_PROMISE, M_ALL_REPORT, 0, M_ALL_READY, 9, 0,
            0, M_ALL_VOTE, 1, 0, 0, M_MASTER, 0, M_ALL_RESUME, 140, M_ALL_PROMISE);
    PROGRAM(target, "resume-majority", M_THREE, M_VOTE, 0, 1, M_MASTER, 3, M_CONNECT, 3, 2, 0, M_RESUME, 0, 0, 0, 0,
            M_WAIT, 30, M_RESUME, 1, 0, 0, 0, M_HEARTBEATS, M_WAIT, 100, M_HEARTBEATS, M_WAIT, 100, M_PROMISE, 0,
            M_PROMISE, 1, M_ALL_REPORT, 0);
    PROGRAM(target, "resume-lies", M_THREE, M_MASTER, 1, M_RESUME, 0, 0, 4, 250, M_RESUME, 0, 0, 2, 250, M_RESUME, 0, 0,
            10, 0, M_RESUME, 1, 0, 18, 40, M_RESUME, 2, 0, 1, 0, M_ALL_PROMISE);
    PROGRAM(target, "young", M_THREE, M_MASTER, 0, M_CONNECT, 3, 2, 0, M_CONNECT, 4, 2, 0, M_RESUME, 0, 0, 0, 0,
            M_RESUME, 1, 0, 0, 0, M_RESUME, 2, 0, 0, 0, M_ALL_PROMISE, M_ALL_REPORT, 0);
    PROGRAM(target, "young-stays", M_THREE, M_MASTER, 0, M_CONNECT, 3, 2, 0, M_RESUME, 0, 0, 0, 0, M_HEARTBEATS, M_DUE,
            M_DUE, M_DUE, M_DUE, M_DUE, M_DUE, M_DUE, M_DUE);
    PROGRAM(target, "moved", M_CONNECT, 0, 130, 0, M_CONNECT, 1, 130, 0, M_ALL_VOTE, 0, 0, 0, M_ALL_LINKED, 9, 0, 0,
            M_MOVED, 0, M_MOVED, 1, M_ALL_RESUME, 0, M_ALL_PROMISE);
    PROGRAM(target, "standby", M_THREE, M_MASTER, 4, M_CONNECT, 3, 2, 0, M_ALL_RESUME, 0, M_CONNECT, 3, 2, 0,
            M_ALL_PROMISE);
    PROGRAM(target, "again", M_THREE, M_LOST, 0, M_LOST, 1, M_LOST, 2, M_THREE);
}

// Two others, which both joined before, so that they are dialled.
#define P_THREE P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 7, 0, 8, P_ALL_DIALLED, P_ADOPT

static void write_peer_programs(void) {
    const char *target = "fuzz_member";
    PROGRAM(target, "join", P_THREE);
    PROGRAM(target, "first", P_JOIN, P_WELCOME, 1, P_EPOCH, 0, 1, 0, 0, P_VOTE, 0, P_CANDIDATE, 0, 3, 0, 0, P_HELLO, 1,
            0, 0, P_HELLO, 1, 1, 0, P_EPOCH, 0, 3, 0, 0, P_ADOPT);
    PROGRAM(target, "refused", P_JOIN, P_END, 0);
    PROGRAM(target, "unanswered", P_JOIN, P_DUE);
    PROGRAM(target, "silence", P_THREE, P_DUE, P_DUE, P_DUE, P_DUE, P_DUE, P_DUE, P_DUE);
    PROGRAM(target, "expelled", P_THREE, P_VOTE, 0, P_END, 1);
    PROGRAM(target, "disconnected", P_THREE, P_SYNC, 0, P_DISCONNECTED);
    PROGRAM(target, "loss", P_THREE, P_EPOCH, 1, 3, 0, 8, P_EPOCH, 1, 1, 0, 0, P_ADOPT_LOSS, 1, P_ADOPT_LOSS, 0);
    PROGRAM(target, "relink", P_THREE, P_LINK_LOST, 1, 0, P_EPOCH, 2, 7, 0, 8, P_ALL_DIALLED, P_LINK_LOST, 2, 1,
            P_LINK_UP, 2, 1, P_WAIT, 6, P_LINK_LOST, 0, 0);
    PROGRAM(target, "candidate", P_THREE, P_VOTE, 0, P_CANDIDATE, 3, 15, 0, 8, P_DIALLED, 1, P_ALL_DIALLED, P_OUTCOME,
            0, 0, 0);
    PROGRAM(target, "late", P_THREE, P_VOTE, 0, P_CANDIDATE, 3, 15, 0, 8, P_HEARTBEAT, P_WAIT, 95, P_EPOCH, 0, 15, 0, 8,
            P_HEARTBEAT, P_WAIT, 95);
    PROGRAM(target, "order", P_THREE, P_VOTE, 2, P_MEASURE, 1, P_MEASURE, 9, P_MEASURED, 1, 50, P_CANDIDATE, 3, 7, 1, 8,
            P_ALL_DIALLED, P_EPOCH, 3, 7, 1, 8, P_ADOPT);
    PROGRAM(target, "pending", P_THREE, P_VOTE, 1, P_OUTCOME, 1, 0, 1, P_VERDICT, 1, 0, 1, 2, P_VERDICT, 1, 1, 0, 0);
    PROGRAM(target, "sync", P_THREE, P_SYNC, 0, P_SYNC_PLAN, 1, P_SYNC_END, 0, 4, P_SYNC, 1, P_SYNC_END, 9, 0);
    PROGRAM(target, "sync-differs", P_THREE, P_SYNC_DIFFERS, 1, 2, P_SYNC, 0, P_SYNC_DIFFERS, 3, 4, P_END, 1);
    PROGRAM(target, "groups", P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 0x37, 0, 12, P_ALL_DIALLED, P_EPOCH, 1, 0x17, 0, 76);
    PROGRAM(target, "bug-epoch-named-somebody-twice", P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 7, 0, 40);
    PROGRAM(target, "not-in-it", P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 6, 0, 2);
    PROGRAM(target, "raw", P_THREE, P_RAW, WIRE_OUTCOME, 0, 10, 1, 0, P_RAW, WIRE_CANDIDATE, 0, 32, 1);
    PROGRAM(target, "leave", P_THREE, P_LEAVE, P_DISCONNECTED);
    PROGRAM(target, "bug-dead-core-dialled-again", P_JOIN, P_WELCOME, 9, P_EPOCH, 0, 7, 0, 8, P_DISCONNECTED, P_DIALLED,
            1);
    PROGRAM(target, "recovery", P_RECOVERY, 20, 1, P_THREE, P_VOTE, 1, P_DISCONNECTED, P_RESUME, 0, P_GENERATION, 1,
            P_RESUMED, 0, 0, 0, 0, P_EPOCH, 2, 7, 0, 8, P_OUTCOME, 1, 0, 1);
    PROGRAM(target, "recovery-late", P_RECOVERY, 20, 0, P_THREE, P_VOTE, 1, P_DUE, P_DUE, P_DUE, P_DUE, P_DUE, P_RESUME,
            0, P_WAITING, P_GENERATION, 1, P_RESUMED, 1, 2, 0, 0, P_EPOCH, 2, 7, 0, 8);
    PROGRAM(target, "recovery-sync", P_RECOVERY, 20, 0, P_THREE, P_SYNC, 0, P_SYNC_PLAN, 1, P_DISCONNECTED, P_RESUME, 1,
            P_GENERATION, 1, P_RESUMED, 2, 0, 0, 1, P_EPOCH, 1, 3, 0, 8);
    PROGRAM(target, "recovery-ends", P_RECOVERY, 20, 0, P_THREE, P_DISCONNECTED, P_RESUME, 0, P_WAITING, P_DISCONNECTED,
            P_DUE, P_DUE, P_DUE);
    PROGRAM(target, "recovery-newcomer", P_RECOVERY, 20, 0, P_JOIN, P_WAITING, P_WELCOME, 9, P_DISCONNECTED, P_RESUME,
            0, P_WELCOME, 3, P_EPOCH, 0, 7, 0, 8);
    PROGRAM(target, "bye", P_RECOVERY, 20, 3, P_THREE, P_BYE, P_RESUME, 2, P_END, 1);
    PROGRAM(target, "no-memory", P_JOIN, P_WELCOME, 9, P_REFUSE, 2, P_EPOCH, 0, 7, 0, 8);
}

// Three members, of which the engine is rank 0; all links. Peer 1 follows it, peer 2 goes before. Then: slow, so that
// all but a few bytes go round the ring.
#define E_THREE E_ENTER, 6, E_LINK_ALL, E_READY
#define E_SEND(link, type, where, how) E_FRAME, link, type, 0, where, how
// Peer 1 is ready; what peer 2 sends in an op on the ring.
#define E_RING E_SEND(0, 0, 0, 0), E_SEND(3, 6, 2, 0), E_SEND(3, 6, 5, 0), E_SEND(5, 6, 8, 0), E_SEND(3, 6, 14, 0)
// What the others send in a weighted op: that they have begun, their inputs of shard 0, and their own results.
#define E_READIES E_SEND(0, 0, 0, 1), E_SEND(1, 0, 0, 1)
#define E_UP E_READIES, E_SEND(2, 6, 0, 0), E_SEND(3, 6, 0, 0)
#define E_DOWN E_SEND(2, 6, 5, 0), E_SEND(3, 6, 6, 0)
#define E_QUANTISED \
    E_SEND(0, 0, 0, 1), E_SEND(1, 0, 0, 1), E_SEND(2, 7, 0, 0), E_SEND(3, 7, 0, 0), E_SEND(2, 8, 1, 0), \
        E_SEND(3, 8, 2, 0)

static void write_engine_programs(void) {
    const char *target = "fuzz_engine";
    PROGRAM(target, "small", E_ENTER, 0x42, E_LINK_ALL, E_READY, E_POST, 0, 0x21, 0, E_SEND(0, 3, 0, 0), E_TAKE, 0,
            E_SEND(0, 5, 0, 0), E_POST, 0, 0x24, 1, E_SEND(0, 1, 0, 0), E_SEND(0, 3, 0, 0), E_TAKE, 0, E_SETTLE);
    PROGRAM(target, "small-loss", E_ENTER, 0x46, E_LINK_ALL, E_READY, E_POST, 0, 0x21, 0, E_ENTER, 0xe2, E_READY,
            E_SEND(0, 4, 0, 0), E_VERDICT, 0, 1, 0, E_TAKE, 0);
    PROGRAM(target, "ring", E_THREE, E_POST, 0, 0x21, 0, E_RING, E_VERDICT, 0, 0, 0, E_TAKE, 0);
    PROGRAM(target, "ring-out-of-place", E_THREE, E_POST, 0, 0x74, 1, E_RING, E_VERDICT, 0, 0, 0, E_TAKE, 0);
    PROGRAM(target, "ring-loss", E_THREE, E_POST, 0, 0x21, 0, E_SEND(0, 0, 0, 0), E_SEND(3, 6, 2, 0), E_ENTER, 0xa2,
            E_READY, E_VERDICT, 0, 1, 0, E_TAKE, 0);
    PROGRAM(target, "ring-redo", E_THREE, E_POST, 0, 0x21, 0, E_SEND(0, 0, 0, 0), E_SEND(3, 6, 2, 0), E_ENTER, 6,
            E_READY, E_VERDICT, 0, 2, 0, E_RING, E_VERDICT, 0, 0, 0, E_TAKE, 0);
    PROGRAM(target, "ring-by-memory", E_THREE, E_SEND(0, 9, 0, 0), E_SEND(1, 9, 0, 0), E_POST, 0, 0x21, 0,
            E_SEND(0, 0, 0, 1), E_SEND(3, 10, 2, 0), E_SEND(3, 10, 5, 0), E_SEND(5, 10, 8, 0), E_SEND(3, 10, 14, 0));
    PROGRAM(target, "bug-chunk-twice-spoilt-the-backup", E_THREE, E_POST, 0, 0x21, 0, E_SEND(0, 0, 0, 0),
            E_SEND(3, 6, 2, 0x80), 90, 1, E_SEND(5, 6, 2, 0x80), 90, 1, E_SEND(3, 6, 5, 0), E_SEND(5, 6, 8, 0));
    PROGRAM(target, "spread", E_WEIGHTS, 0x25, 0, E_THREE, E_POST, 0, 0x21, 0, E_UP, E_DOWN, E_VERDICT, 0, 0, 0, E_TAKE,
            0);
    PROGRAM(target, "spread-sites", E_WEIGHTS, 0x10, 0x11, E_THREE, E_POST, 0, 0x74, 1, E_READIES, E_SEND(3, 6, 1, 0),
            E_SEND(2, 6, 5, 0), E_VERDICT, 0, 0, 0, E_TAKE, 0);
    PROGRAM(target, "spread-loss", E_WEIGHTS, 0x15, 0, E_THREE, E_POST, 0, 0x21, 0, E_UP, E_ENTER, 0xa2, E_READY,
            E_VERDICT, 0, 1, 0, E_TAKE, 0);
    PROGRAM(target, "spread-redo", E_WEIGHTS, 0x15, 0, E_THREE, E_POST, 0, 0x21, 0, E_UP, E_ENTER, 6, E_READY,
            E_VERDICT, 0, 2, 0, E_UP, E_DOWN, E_VERDICT, 0, 0, 0, E_TAKE, 0);
    PROGRAM(target, "spread-segments", E_WEIGHTS, 0x19, 0, E_THREE, E_POST, 0, 0xf7, 0xff, E_UP, E_DOWN, E_VERDICT, 0,
            0, 0, E_ENTER, 0xa2, E_READY, E_VERDICT, 0, 1, 0, E_VERDICT, 0, 1, 0x10, E_TAKE, 0);
    PROGRAM(target, "quantised", E_THREE, E_POST, 0, 0x29, 0x80, E_QUANTISED, E_VERDICT, 0, 0, 0, E_TAKE, 0);
    PROGRAM(target, "quantised-16", E_THREE, E_POST, 0, 0x48, 0x41, E_QUANTISED, E_SEND(0, 2, 0, 2), 100, E_TAKE, 0);
    PROGRAM(target, "block-twice", E_THREE, E_POST, 0, 0x29, 0x80, E_SEND(0, 0, 0, 1), E_SEND(1, 0, 0, 1),
            E_SEND(2, 7, 0, 0x80), 90, 1, E_SEND(4, 7, 0, 0), E_SEND(2, 11, 0, 0), E_SEND(3, 7, 0, 0));
    PROGRAM(target, "in-blocks", E_THREE, E_POST, 0, 0xa9, 0x13, E_QUANTISED, E_VERDICT, 0, 0, 0, E_TAKE, 0);
    PROGRAM(target, "in-blocks-int4", E_THREE, E_POST, 0, 0xb8, 0x3f, E_QUANTISED, E_VERDICT, 0, 0, 0, E_TAKE, 0);
    PROGRAM(target, "in-blocks-lost", E_THREE, E_POST, 0, 0xab, 0x5b, E_QUANTISED, E_ENTER, 0xa2, E_READY, E_VERDICT, 0,
            1, 0, E_TAKE, 0);
    PROGRAM(target, "segments-in-blocks", E_THREE, E_POST, 0, 0xff, 0xff, E_QUANTISED, E_VERDICT, 0, 0, 0, E_ENTER,
            0xa2, E_READY, E_VERDICT, 0, 1, 0, E_VERDICT, 0, 1, 0x10, E_TAKE, 0);
    PROGRAM(target, "segments", E_THREE, E_POST, 0, 0xf7, 0xff, E_RING, E_VERDICT, 0, 0, 0, E_ENTER, 0xa2, E_READY,
            E_VERDICT, 0, 1, 0, E_VERDICT, 0, 1, 0x10, E_TAKE, 0);
    PROGRAM(target, "segments-whole", E_THREE, E_POST, 0, 0xf3, 0xff, E_VERDICT, 0, 4, 0, E_ENTER, 6, E_READY,
            E_VERDICT, 0, 2, 0, E_RING);
    PROGRAM(target, "mismatch", E_THREE, E_POST, 0, 0x21, 0, E_SEND(0, 0, 0, 4), 3, 7, E_VERDICT, 0, 3, 0, E_ENTER, 6,
            E_TAKE, 0, E_POST, 0, 0x21, 0, E_VERDICT, 1, 3, 0, E_POST, 1, 0x21, 0);
    PROGRAM(target, "early", E_THREE, E_SEND(0, 0, 0, 0), E_SEND(0, 3, 0, 4), 13, 25, E_SEND(1, 1, 0, 0),
            E_SEND(1, 2, 0, 2), 5, E_POST, 0, 0x21, 0);
    PROGRAM(target, "parked", E_THREE, E_SEND(0, 0, 0, 4), 0, 2, E_SEND(0, 11, 0, 0), E_ENTER, 6, E_READY, E_POST, 0,
            0x21, 0, E_LINK, 0, E_CLOSE, 3, E_DROP, 0);
    PROGRAM(target, "silence", E_THREE, E_WATCH, E_WAIT, 30, E_SEND(0, 11, 0, 0), E_WAIT, 30, E_WAIT, 200, E_WAIT, 200,
            E_WAIT, 200);
    PROGRAM(target, "no-memory", E_THREE, E_REFUSE, 2, E_POST, 0, 0x21, 0, E_REFUSE, 1, E_RING, E_REFUSE, 0, E_ENTER, 6,
            E_KILL);
    PROGRAM(target, "raw", E_THREE, E_RAW, 0, 40, 0x50, 0x43, 1, E_RAW, 1, 3, 0x50, 0x43);
}

// Entries of 300, 9000, 1 and 4097 bytes; which leaves differ; this member receives from two others, or gives.
#define S_SMALL(differ) 0x5a, 0x0c, differ
#define S_RECEIVE S_BEGIN, S_PLAN, 7

static void write_sync_programs(void) {
    const char *target = "fuzz_sync";
    PROGRAM(target, "receive", S_SMALL(0x0f), S_RECEIVE, S_HASHES, 0, 0, 0, S_LEAF, 2, 0, 0, S_LEAF, 3, 1, 0, S_LEAF, 2,
            2, 0, S_LEAF, 4, 3, 0, S_END);
    PROGRAM(target, "packed", S_SMALL(0x0f), S_RECEIVE, S_HASHES, 0, 0, 0, S_LEAF, 2, 0, 1, S_LEAF, 3, 1, 1, S_LEAF, 2,
            3, 1, S_LEAF, 4, 2, 0, S_END);
    PROGRAM(target, "placed", S_SMALL(0x0f), S_RECEIVE, S_HASHES, 0, 0, 0, S_LEAF, 2, 0, 2, 0, S_LEAF, 3, 1, 2, 9,
            S_LEAF, 2, 3, 2, 0, S_LEAF, 4, 2, 2, 255, 1, 2, 3, 4, 5, 6, 7, 8);
    PROGRAM(target, "large", 0x05, 0x00, 0x03, S_RECEIVE, S_HASHES, 0, 0, 0, S_LEAF, 2, 0, 0, S_LEAF, 3, 1, 0, S_END,
            S_BEGIN, S_PLAN, 6, S_END);
    PROGRAM(target, "wrong-leaf", S_SMALL(0x0f), S_RECEIVE, S_HASHES, 0, 0, 0, S_LEAF, 2, 0, 0x10, 9, 3, 1, S_LEAF, 3,
            0, 0, S_LEAF, 2, 1, 0x11, 9, 3, 1, S_LEAF, 2, 1, 0x11, 9, 3, 2, S_END);
    PROGRAM(target, "wrong-hashes", S_SMALL(0x0f), S_RECEIVE, S_HASHES, 0, 0, 0x10, 9, 3, 1, S_HASHES, 1, 0, 0, S_LEAF,
            3, 0, 0, S_HASHES, 0, 0, 0);
    PROGRAM(target, "another-content", S_SMALL(0x0f), S_BEGIN, S_PLAN, 15, S_HASHES, 0, 0, 0, S_HASHES, 1, 0, 0,
            S_HASHES, 0, 0, 0, S_HASHES, 1, 0, 0, S_END);
    PROGRAM(target, "cut", S_SMALL(0x0f), S_RECEIVE, S_HASHES, 0, 0, 0, S_LEAF, 2, 1, 0x80, 200, 1, S_LEAF, 4, 1, 0,
            S_LEAF, 2, 0, 0, S_LEAF, 3, 3, 0x80, 200, 1, S_END, S_LEAF, 3, 0, 0);
    PROGRAM(target, "lost", S_SMALL(0x0f), S_RECEIVE, S_HASHES, 0, 0, 0, S_CLOSE, 0, S_LEAF, 2, 0, 0, S_ENTER, 4,
            S_LEAF, 3, 1, 0, S_LINK, 1, S_ENTER, 0);
    PROGRAM(target, "stall", S_SMALL(0x0f), S_RECEIVE, S_WAIT, 200, S_HASHES, 1, 0, 0, S_WAIT, 10, S_WAIT, 150, S_WAIT,
            150, S_LEAF, 3, 0, 0, S_WAIT, 150);
    PROGRAM(target, "restart", S_SMALL(0x0f), S_RECEIVE, S_HASHES, 0, 0, 0, S_LEAF, 2, 0, 0, S_LEAF, 2, 1, 0x80, 200, 1,
            S_RESTART, S_PLAN, 7, S_HASHES, 1, 0, 0, S_LEAF, 3, 1, 0);
    PROGRAM(target, "give", S_SMALL(0), S_BEGIN, S_ASK_HASHES, 0, 24, 0, S_PLAN, 4, S_ASK_HASHES, 0, 24, 0, S_ASK, 0,
            24, 0, S_ASK, 1, 8, 4, S_ASK, 0, 24, 2, S_ASK, 0, 1, 2, S_ASK, 0, 1, 0x10, 4, 251, S_END);
    PROGRAM(target, "give-large", 0x05, 0x00, 0x00, S_BEGIN, S_PLAN, 4, S_ASK, 0, 8, 2, S_ASK, 1, 8, 2, S_CLOSE, 2,
            S_END, S_ASK, 0, 8, 0);
    PROGRAM(target, "no-memory", S_SMALL(0x0f), S_REFUSE, 0, S_BEGIN, S_BEGIN, S_REFUSE, 1, S_PLAN, 7, S_HASHES, 0, 0,
            0);
}

static void write_link_programs(void) {
    const char *target = "fuzz_wireup";
    PROGRAM(target, "accept", L_IDENTIFY, L_COME, L_HELLO, 0, 2, L_TAKE, L_COME, L_HELLO, 1, 0x4a, 40, L_HELLO, 1, 0,
            L_TAKE);
    PROGRAM(target, "park", L_IDENTIFY, L_JUDGE, 1, L_COME, L_HELLO, 0, 2, L_COME, L_HELLO, 1, 4, L_HANG_UP, 1,
            L_RECHECK, L_JUDGE, 0, L_RECHECK, L_TAKE, L_JUDGE, 1, L_COME, L_HELLO, 2, 2, L_DUE);
    PROGRAM(target, "reject", L_IDENTIFY, L_COME, L_HELLO, 0, 0x22, 34, 1, L_JUDGE, 2, L_COME, L_HELLO, 1, 2, L_COME,
            L_RAW, 2, 5, 1, 2, 3, 4, 5, L_COME, L_DUE);
    PROGRAM(target, "dial", L_IDENTIFY, L_DIAL, 0x10, L_ACK, 0, 0, L_TAKE, L_DIAL, 0, L_ACK, 1, 0x40, 9, L_ACK, 1, 0,
            L_DIAL, 8, L_DIAL, 1, L_DUE, L_TAKE);
    PROGRAM(target, "dial-wrong", L_IDENTIFY, L_DIAL, 1, L_ACK, 0, 0x20, 4, 2, L_DIAL, 1, L_HANG_UP, 1, L_SYSTEM, 4,
            L_DIAL, 2, L_SYSTEM, 3, L_DIAL, 2, L_CANCEL, 2, L_TAKE);
    PROGRAM(target, "probe", L_IDENTIFY, L_PROBE, 1, 9, L_ACK, 0, 0, L_DUE, L_COME, L_HELLO, 1, 3, L_RAW, 1, 90, L_WAIT,
            1, L_RAW, 1, 90, L_HANG_UP, 1, L_TAKE, L_COME, L_HELLO, 2, 3, L_DUE);
    PROGRAM(target, "no-descriptors", L_IDENTIFY, L_SYSTEM, 0, L_COME, L_WAIT, 2, L_SYSTEM, 1, L_COME, L_SYSTEM, 2,
            L_DUE, L_REFUSE, 0, L_COME, L_REFUSE, 1, L_DIAL, 0);
}

// How the stream is cut, and some frames one behind the other.
static void write_conn_frames(void) {
    struct wire_buffer bytes = {0};
    wire_buffer_append(&bytes, &(struct wire_buffer){.bytes = (uint8_t[]){0, 0, 7}, .length = 3});
    for (int i = 0; i < 2; i++) {
        wire_encode_empty(&bytes, header, WIRE_HEARTBEAT);
        wire_encode_text(&bytes, header, WIRE_REFUSED, "because");
    }
    write_file("fuzz_conn", "frames", bytes.bytes, bytes.length);
    bytes.bytes[0] = 1;
    write_file("fuzz_conn", "frame-by-frame", bytes.bytes, bytes.length - 1);
    bytes.bytes[1] = 1;
    write_file("fuzz_conn", "no-memory", bytes.bytes, bytes.length);
    bytes.bytes[bytes.length / 2 + 3] ^= 1; // the magic number of the third
    write_file("fuzz_conn", "malformed", bytes.bytes, bytes.length);
    wire_buffer_fini(&bytes);
}

// ---- keys, the hello of a relay, records of TLS ----

#define SECRET_OF_1 "secret 571bb9ce419f05f2 1111111111111111111111111111111111111111111111111111111111111111\n"
#define SECRET_OF_2 "secret 10248938d4ad796e 2222222222222222222222222222222222222222222222222222222222222222\n"
#define MASTER_KEY "master-key 3333333333333333333333333333333333333333333333333333333333333333\n"
#define MASTER_PUBLIC "master-public 17cb79fb2b4120f2b1ec65e4198d6e08b28e813feb01e4a400839b85e18080ce\n"

static void write_keys(void) {
    static const char *const files[][2] = {
        {"peer", "pccl-keys 1 peer\n" SECRET_OF_1 MASTER_PUBLIC},
        {"two-secrets", "pccl-keys 1 peer\r\n# old\n" SECRET_OF_1 SECRET_OF_2 MASTER_PUBLIC},
        {"master", "pccl-keys 1 master\n" SECRET_OF_1 MASTER_KEY MASTER_PUBLIC},
        {"of-a-run", "pccl-keys 1 peer\nrun alpha\n" SECRET_OF_1 MASTER_PUBLIC},
        {"version", "pccl-keys 2 peer\n" SECRET_OF_1},
        {"pem", "-----BEGIN CERTIFICATE-----\n"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        write_file("fuzz_keys", files[i][0], files[i][1], strlen(files[i][1]));
}

static void write_hellos(void) {
    PROGRAM("fuzz_relay", "joined", 0, 0, 50, 0, 209);
    PROGRAM("fuzz_relay", "joined-with-keys", 1, 0, 0, 0, 100);
    PROGRAM("fuzz_relay", "a-changed-proof", 1, 0, 0, 1, 0, 100, 1, 0);
    PROGRAM("fuzz_relay", "a-changed-length", 1, 1, 0, 207, 1, 5, 0, 0);
    PROGRAM("fuzz_relay", "nonsense", 0, 2, 1, 2, 3, 3, 5, 9, 9, 9, 9, 9);
}

static void write_records(void) {
    uint8_t updates[2 * 40];
    for (size_t i = 0; i < sizeof updates; i++) updates[i] = i % 2 == 0 ? 7 : 0;
    write_file("fuzz_records", "updates", updates, sizeof updates);
    for (size_t i = 0; i < sizeof updates; i += 2) updates[i] = 135; // each wants an answer
    write_file("fuzz_records", "updates-asked", updates, sizeof updates);
    for (size_t i = 0; i < sizeof updates; i += 2) updates[i] = i / 2 % 32 == 31 ? 64 : 7;
    write_file("fuzz_records", "updates-and-data", updates, sizeof updates);
    PROGRAM("fuzz_records", "data", 64, 10, 1, 65, 200, 1, 69, 100, 0, 64, 1, 1);
    PROGRAM("fuzz_records", "empty", 0, 0, 0, 0, 5, 0, 0, 1);
    PROGRAM("fuzz_records", "padded", 100, 9, 40, 1, 100, 0, 255, 1);
    PROGRAM("fuzz_records", "alerts", 2, 2, 1, 90, 1, 2, 2, 1, 90, 1, 2, 2, 1, 0, 1, 64, 5, 1);
    PROGRAM("fuzz_records", "ticket", 1, 13, 4, 0, 0, 9, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1);
    PROGRAM("fuzz_records", "update-in-parts", 1, 1, 24, 0, 1, 3, 0, 0, 1, 0, 64, 5, 1);
}

int main(int argc, char **argv) {
    folder = argc > 1 ? argv[1] : "corpus";
    mkdir(folder, 0777);
    write_frames();
    write_master_programs();
    write_peer_programs();
    write_engine_programs();
    write_sync_programs();
    write_link_programs();
    write_conn_frames();
    // A literal of 20 bytes; one byte, and a copy of what lies before it.
    PROGRAM("fuzz_coding", "literal", 4, 0, 0, 0x40, 1, 2, 3, 4);
    PROGRAM("fuzz_coding", "copy", 25, 0, 0, 0x1b, 7, 1, 0, 0x50, 1, 2, 3, 4, 5);
    PROGRAM("fuzz_election", "popular", 0, 1, 0, 0, 8, 1, 0, 8, 2, 0, 0, 1);
    PROGRAM("fuzz_election", "expecting", 1, 3, 5, 4, 8, 5, 6, 0, 4, 2, 1, 5);
    PROGRAM("fuzz_election", "repeat", 1, 2, 5, 4, 8, 4, 4, 0, 4, 1, 8, 3);
    PROGRAM("fuzz_election", "lost", 2, 0, 5, 1, 8, 2, 2, 8, 9, 8, 0, 1);
    PROGRAM("fuzz_delta", "two-donors", 1, 5, 9, 3, 0, 1, 0xff, 0, 0, 0, 0, 1, 0, 2, 0, 0, 7, 0, 200, 0, 1, 0, 2, 1, 0);
    PROGRAM("fuzz_delta", "wrong", 0, 7, 1, 2, 0xff, 0, 0, 0, 3, 0, 0, 4, 1, 0, 5, 1, 0, 6, 2, 0);
    PROGRAM("fuzz_delta", "bug-leaf-that-every-donor-sent-wrong", 0, 1, 0, 1, 0xff, 3, 0, 0, 3, 1, 0);
    PROGRAM("fuzz_voucher", "voucher", 0, 0, 0, 0, 0, 0);
    PROGRAM("fuzz_voucher", "voucher-chained", 0, 1, 1, 1, 1, 0);
    PROGRAM("fuzz_voucher", "voucher-of-a-peer", 0, 2, 2, 2, 3, 0);
    PROGRAM("fuzz_voucher", "voucher-of-two", 0, 0, 1, 0, 5, 1, 0);
    PROGRAM("fuzz_voucher", "voucher-changed", 0, 0, 0, 0, 0, 2, 32, 0, 2, 200, 1, 5, 9);
    PROGRAM("fuzz_voucher", "proof-of-a-peer", 1, 1, 0, 2, 1, 2, 0, 0, 0, 0, 0, 255);
    PROGRAM("fuzz_voucher", "proof-of-a-master", 1, 0, 1, 0, 0, 0, 1, 0, 0, 255);
    PROGRAM("fuzz_voucher", "proof-of-a-false-master", 1, 1, 0, 0, 0, 1, 0, 0, 255);
    PROGRAM("fuzz_voucher", "proof-cut", 1, 0, 1, 1, 0, 0, 1, 0, 1, 6, 0, 3, 4);
    PROGRAM("fuzz_voucher", "epoch", 2, 0, 0, 0);
    PROGRAM("fuzz_voucher", "epoch-of-another-run", 2, 1, 8, 0, 0);
    PROGRAM("fuzz_voucher", "epoch-with-another-group", 2, 0, 0, 1, 2, 24, 5, 0);
    PROGRAM("fuzz_voucher", "epoch-changed", 2, 0, 2, 60, 0, 0, 1, 200, 0, 1, 7, 0);
    write_keys();
    write_hellos();
    write_records();
    return 0;
}
