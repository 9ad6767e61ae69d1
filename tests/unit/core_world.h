// For a test of the whole master's state machine without sockets: peers that say what the test wants, in virtual time.
#ifndef PCCL_TESTS_CORE_WORLD_H
#define PCCL_TESTS_CORE_WORLD_H

#include "base/platform.h"
#include "mailboxes.h"
#include "master/breaks.h"
#include "master/membership.h"

enum { LIMIT_MS = 1000, HEARING_MS = LIMIT_MS / BREAKS_HEARING_OF + 10 };

static struct master_core *m;
static int64_t now;
static uint64_t run, generation;
static struct wire_member members[WIRE_MAX_MEMBERS];
static uint64_t epochs[PEERS]; // number in force at the peer

// The state machine is at work, not the test.
static bool inside;

static inline void act(const struct actions *actions) {
    inside = false;
    post(actions);
    uint8_t random[CORE_RANDOM_BYTES];
    memset(random, 77, sizeof random);
    if (core_wants_random(m)) core_set_random(m, random);
}

static inline void begin(const char *name) {
    check_case("%s", name);
    uint8_t random[CORE_RANDOM_BYTES];
    for (size_t i = 0; i < sizeof random; i++) random[i] = (uint8_t)(i + 1);
    now = 1000 * SECOND_NS;
    m = core_new(LIMIT_MS, random, now);
    REQUIRE(m != NULL);
    memset(epochs, 0, sizeof epochs);
    for (size_t i = 0; i < PEERS; i++) clear(&boxes[i]);
}

static inline void end(void) {
    clear_all();
    core_free(m);
    check_case("%s", "");
}

static inline void drain(const char *peers) {
    for (; *peers; peers++) boxes[*peers - 'a'].head = boxes[*peers - 'a'].tail;
}

static inline void say(char peer, struct wire_buffer *frame) {
    struct wire_header header;
    CHECK(wire_header_decode(frame->bytes, &header));
    act((inside = true, core_message(m, now, (uint32_t)(peer - 'a'), &header, frame->bytes + WIRE_HEADER_BYTES)));
    wire_buffer_fini(frame);
}

static inline struct wire_header head(char peer) {
    return (struct wire_header){.run = run, .generation = generation, .epoch = epochs[peer - 'a']};
}

static inline struct wire_header op_head(uint64_t group_epoch) {
    return (struct wire_header){.run = run, .generation = generation, .epoch = group_epoch};
}

static bool join_only;            // of the hellos from now on
static bool copies_first;         // likewise
static struct wire_limits limits; // likewise
static struct wire_reach reach;   // likewise

static inline void hello_from(char peer, uint32_t group, struct wire_address address) {
    struct wire_hello hello = {.version = WIRE_VERSION,
                               .id = id_of(peer),
                               .group = group,
                               .lanes = 2,
                               .port = 48149,
                               .masters = 1,
                               .join_only = join_only,
                               .copies = copies_first,
                               .limits = limits,
                               .reach = reach};
    clear(&boxes[peer - 'a']);
    epochs[peer - 'a'] = 0;
    act((inside = true, core_peer_connected(m, now, (uint32_t)(peer - 'a'), &address, &hello)));
}

// The WELCOME is checked and taken.
static inline uint64_t welcomed(char peer) {
    struct wire_welcome welcome;
    const struct frame *frame = TAKE(peer, WIRE_WELCOME);
    CHECK(wire_decode_welcome(frame->body, frame->header.length, &welcome));
    CHECK_EQ(welcome.heartbeat_limit_ms, LIMIT_MS);
    run = frame->header.run;
    generation = frame->header.generation;
    return welcome.join_number;
}

// Registers.
static inline uint64_t join(char peer, uint32_t group) {
    hello_from(peer, group, address_of(peer));
    return welcomed(peer);
}

static inline void vote(const char *peers, uint8_t kind) {
    for (; *peers; peers++) {
        struct wire_buffer out = {0};
        struct wire_vote message = {kind};
        wire_encode_vote(&out, head(*peers), &message);
        say(*peers, &out);
    }
}

// Each of `peers` answers that it cannot reach `unreachable`.
static inline void linked(const char *peers, uint32_t attempt, const char *unreachable) {
    static struct wire_linked message;
    for (; *peers; peers++) {
        struct wire_buffer out = {0};
        message.attempt = attempt;
        message.latency_us = (uint32_t)(100 + *peers);
        message.count = 0;
        for (const char *u = unreachable; *u; u++) message.unreachable[message.count++] = id_of(*u);
        wire_encode_linked(&out, head(*peers), &message);
        say(*peers, &out);
    }
}

static inline void simple(char peer, enum wire_type type) {
    struct wire_buffer out = {0};
    wire_encode_empty(&out, head(peer), type);
    say(peer, &out);
}

static inline void leaving(char peer, uint32_t within_ms, bool at_update) {
    struct wire_buffer out = {0};
    struct wire_leaving message = {.id = id_of(peer), .within_ms = within_ms, .at_update = at_update};
    wire_encode_leaving(&out, head(peer), &message);
    say(peer, &out);
}

static inline void die(char peer) { act((inside = true, core_peer_lost(m, now, (uint32_t)(peer - 'a'), "test"))); }

static inline void report_link(char peer, char reported, enum wire_link_reason reason) {
    struct wire_buffer out = {0};
    struct wire_link_down message = {.id = id_of(reported), .reason = (uint8_t)reason};
    wire_encode_link_down(&out, head(peer), &message);
    say(peer, &out);
}

static inline void link_down(char peer, char reported) { report_link(peer, reported, WIRE_LINK_BROKEN); }
static inline void silent(char peer, char reported) { report_link(peer, reported, WIRE_LINK_SILENT); }
static inline void malformed(char peer, char reported) { report_link(peer, reported, WIRE_LINK_MALFORMED); }

// A segment stands above the 32 bits of a tag.
#define SEGMENT(tag, segment) ((uint64_t)(segment) << 32 | (tag))
static inline struct wire_op_name name_of(uint64_t epoch, uint64_t tag) {
    return (struct wire_op_name){epoch, (uint32_t)tag, 1, (uint16_t)(tag >> 32), 0};
}

static inline void done(const char *peers, uint64_t group_epoch, uint64_t tag) {
    for (; *peers; peers++) {
        struct wire_buffer out = {0};
        struct wire_op_done message = {name_of(group_epoch, tag), 0};
        wire_encode_op_done(&out, op_head(group_epoch), &message);
        say(*peers, &out);
    }
}

struct stood {
    uint64_t epoch, tag;
    char state; // 'O' open large, 'o' open small, 'D' done, 'k' kept
};

static inline void report(char peer, uint64_t group_epoch, size_t count, const struct stood *ops) {
    struct wire_op_report list[8];
    struct wire_report message = {.count = (uint32_t)count, .ops = list};
    for (size_t i = 0; i < count; i++) {
        uint8_t state = ops[i].state == 'D' ? WIRE_OP_DONE : ops[i].state == 'k' ? WIRE_OP_RETAINED : WIRE_OP_OPEN;
        list[i] = (struct wire_op_report){name_of(ops[i].epoch, ops[i].tag), state,
                                          ops[i].state == 'o' || ops[i].state == 'k', 0};
    }
    struct wire_buffer out = {0};
    wire_encode_report(&out, op_head(group_epoch), &message);
    say(peer, &out);
}
#define REPORT(peer, group_epoch, ...) \
    report(peer, group_epoch, sizeof((struct stood[]){__VA_ARGS__}) / sizeof(struct stood), \
           (struct stood[]){__VA_ARGS__})

static inline void mismatch(char peer, uint64_t group_epoch, uint64_t tag, char other) {
    struct wire_mismatch message = {.name = name_of(group_epoch, tag),
                                    .mine = {.count = 10, .dtype = 10},
                                    .other = id_of(other),
                                    .theirs = {.count = 20, .dtype = 11, .op = 1}};
    struct wire_buffer out = {0};
    wire_encode_mismatch(&out, op_head(group_epoch), &message);
    say(peer, &out);
}

// Time passes in small steps; `alive` send heartbeats all the while.
static inline void pass(int64_t ms, const char *alive) {
    for (int64_t until = now + ms * MS_NS; now < until;) {
        now += 10 * MS_NS;
        for (const char *p = alive; *p; p++) simple(*p, WIRE_HEARTBEAT);
        if (core_next_deadline(m) <= now) act((inside = true, core_tick(m, now)));
    }
}

// ---- what peers get ----

static inline void same_members(int line, const struct wire_epoch *epoch, const char *want) {
    char got[WIRE_MAX_MEMBERS + 1] = {0};
    for (uint32_t i = 0; i < epoch->count; i++) got[i] = (char)epoch->members[i].id.bytes[0];
    check_text(got, want, __FILE__, line, "members");
}

static inline void epoch_at(int line, const char *peers, uint8_t reason, uint64_t number, uint64_t group_epoch,
                            const char *want) {
    for (; *peers; peers++) {
        const struct frame *frame = take_at(line, *peers, WIRE_EPOCH);
        struct wire_epoch_commit commit = {.epoch.members = members};
        check_that(wire_decode_epoch_commit(frame->body, frame->header.length, &commit), __FILE__, line,
                   "EPOCH decodes");
        check_equal(commit.reason, reason, __FILE__, line, "reason");
        check_equal((int64_t)commit.epoch.number, (int64_t)number, __FILE__, line, "number");
        check_equal((int64_t)commit.epoch.group_epoch, (int64_t)group_epoch, __FILE__, line, "group epoch");
        check_equal((int64_t)frame->header.epoch, (int64_t)number, __FILE__, line, "header epoch");
        same_members(line, &commit.epoch, want);
        epochs[*peers - 'a'] = number;
    }
}
#define EPOCH(peers, reason, number, group_epoch, want) \
    epoch_at(__LINE__, peers, WIRE_REASON_##reason, number, group_epoch, want)

static inline uint32_t candidate_at(int line, const char *peers, const char *want) {
    uint32_t attempt = 0;
    for (; *peers; peers++) {
        const struct frame *frame = take_at(line, *peers, WIRE_CANDIDATE);
        struct wire_candidate candidate = {.epoch.members = members};
        check_that(wire_decode_candidate(frame->body, frame->header.length, &candidate), __FILE__, line,
                   "CANDIDATE decodes");
        check_that(attempt == 0 || attempt == candidate.attempt, __FILE__, line, "one attempt for all");
        same_members(line, &candidate.epoch, want);
        attempt = candidate.attempt;
    }
    return attempt;
}
#define CANDIDATE(peers, want) candidate_at(__LINE__, peers, want)

static inline void outcome_at(int line, const char *peers, uint8_t kind, uint8_t code, uint64_t value) {
    for (; *peers; peers++) {
        const struct frame *frame = take_at(line, *peers, WIRE_OUTCOME);
        struct wire_outcome outcome = {0};
        check_that(wire_decode_outcome(frame->body, frame->header.length, &outcome), __FILE__, line, "OUTCOME decodes");
        check_equal(outcome.kind, kind, __FILE__, line, "kind");
        check_equal(outcome.code, code, __FILE__, line, "code");
        check_equal((int64_t)outcome.value, (int64_t)value, __FILE__, line, "value");
    }
}
static inline void leaving_at(int line, const char *peers, char who, uint32_t within_ms, bool at_update) {
    for (; *peers; peers++) {
        const struct frame *frame = take_at(line, *peers, WIRE_LEAVING);
        struct wire_leaving told = {.within_ms = 0};
        struct wire_id id = id_of(who);
        check_that(wire_decode_leaving(frame->body, frame->header.length, &told), __FILE__, line, "LEAVING decodes");
        check_that(wire_id_equal(&told.id, &id), __FILE__, line, "who leaves");
        check_equal(told.within_ms, within_ms, __FILE__, line, "within");
        check_equal(told.at_update, at_update, __FILE__, line, "at an update");
    }
}
#define LEAVING(peers, who, within_ms, at_update) leaving_at(__LINE__, peers, who, within_ms, at_update)

#define OUTCOME(peers, kind, code, value) outcome_at(__LINE__, peers, WIRE_VOTE_##kind, code, value)

static inline struct wire_verdict verdict_at(int line, const char *peers, uint64_t header_epoch, uint64_t epoch,
                                             uint64_t tag, uint8_t kind, char supplier, const char *needy) {
    static struct wire_verdict verdict;
    for (; *peers; peers++) {
        const struct frame *frame = take_at(line, *peers, WIRE_VERDICT);
        check_that(wire_decode_verdict(frame->body, frame->header.length, &verdict), __FILE__, line, "VERDICT decodes");
        struct wire_op_name name = name_of(epoch, tag);
        struct wire_id from = supplier ? id_of(supplier) : (struct wire_id){{0}};
        check_that(wire_op_name_equal(&verdict.name, &name), __FILE__, line, "op's name");
        check_equal((int64_t)frame->header.epoch, (int64_t)header_epoch, __FILE__, line, "header epoch");
        check_equal(verdict.kind, kind, __FILE__, line, "verdict");
        check_that(wire_id_equal(&verdict.supplier, &from), __FILE__, line, "supplier");
        check_equal(verdict.count, (int64_t)strlen(needy), __FILE__, line, "number of needy");
        for (uint32_t i = 0; i < verdict.count; i++)
            check_equal(verdict.needy[i].bytes[0], needy[i], __FILE__, line, "needy");
    }
    return verdict;
}
#define VERDICT(peers, header_epoch, epoch, tag, kind, supplier, needy) \
    verdict_at(__LINE__, peers, header_epoch, epoch, tag, WIRE_VERDICT_##kind, supplier, needy)

// An accepted run of the peers named, all in `group`; 'A' to 'Z' are the same peers in group + 1. It is in epoch 2 (1
// with one peer).
static inline void form(const char *peers, uint32_t group) {
    char all[PEERS + 1] = {0};
    for (size_t i = 0; peers[i]; i++) {
        bool upper = peers[i] < 'a';
        all[i] = (char)(upper ? peers[i] + 'a' - 'A' : peers[i]);
        join(all[i], group + upper);
        if (i > 0) continue;
        drain(all);
        epochs[all[0] - 'a'] = 1;
    }
    if (all[1] == 0) return;
    char first[2] = {all[0], 0}, order[PEERS + 1] = {0};
    for (size_t i = 0, at = 0; all[i]; i++)
        if (peers[i] >= 'a') order[at++] = all[i];
    for (size_t i = 0, at = strlen(order); all[i]; i++)
        if (peers[i] < 'a') order[at++] = all[i];
    vote(first, WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE(all, order);
    linked(all, attempt, "");
    for (size_t i = 0; all[i]; i++) epochs[all[i] - 'a'] = 2;
    drain(all);
}

static inline void measured(char peer, char from, char to, uint64_t rate) {
    struct wire_buffer out = {0};
    struct wire_measured message = {id_of(from), id_of(to), rate};
    wire_encode_measured(&out, head(peer), &message);
    say(peer, &out);
}

#endif
