// Members that wait for each other: the master fails their calls, and nobody else's.
#include "core_world.h"
#include "ops/plan.h"

enum { DEADLOCK_MS = 3000, LONG_MS = 4 * DEADLOCK_MS, GROUP_EPOCH = 2 };

// Waits of one member, told once a second, with `span_ms` for how long.
struct tells {
    char peer;
    uint64_t tag;
    const char *missing;
    bool all; // the only thread of the program waits
};

static void start(const char *name, const char *peers) {
    begin(name);
    core_configure(m, &(struct core_settings){.survivors_until_ns = now, .deadlock_ns = DEADLOCK_MS * MS_NS});
    form(peers, 0);
}

static void tell(const struct tells *tells, int64_t span_ms, uint64_t epoch, uint8_t kind) {
    struct wire_buffer out = {0};
    struct wire_waits waits = {.all_us = tells->all ? (uint64_t)span_ms * 1000 : 0, .count = tells->tag != 0};
    struct wire_wait *wait = &waits.list[0];
    *wait = (struct wire_wait){.name = name_of(epoch, tells->tag), .kind = kind, .span_us = (uint64_t)span_ms * 1000};
    for (const char *p = tells->missing; *p; p++) wait->missing[wait->missing_count++] = id_of(*p);
    wire_encode_waits(&out, head(tells->peer), &waits);
    say(tells->peer, &out);
}

// Everybody tells what it waits for while time passes.
static void wait_for(int64_t ms, const char *alive, const struct tells *tells, size_t count) {
    for (int64_t waited = 1000; waited <= ms; waited += 1000) {
        pass(1000, alive);
        for (size_t i = 0; i < count; i++) tell(&tells[i], waited, GROUP_EPOCH, PLAN_ALL_REDUCE);
    }
    pass(1500, alive);
}
#define WAIT(ms, alive, ...) \
    wait_for(ms, alive, (struct tells[]){__VA_ARGS__}, sizeof((struct tells[]){__VA_ARGS__}) / sizeof(struct tells))

static void skip_waiting(char peer) {
    struct box *box = &boxes[peer - 'a'];
    while (box->head < box->tail && box->frames[box->head].header.type == WIRE_WAITING) box->head++;
}

static void quiet_at(int line, const char *peers) {
    for (const char *p = peers; *p; p++) skip_waiting(*p);
    check_that(quiet(peers), __FILE__, line, "nobody is told anything");
}
#define QUIET(peers) quiet_at(__LINE__, peers)

static void says(int line, const struct wire_text *text, const char *part) {
    char copy[WIRE_MAX_TEXT + 1] = {0};
    memcpy(copy, text->chars, text->length);
    check_report(strstr(copy, part) != NULL, __FILE__, line, "\"%s\" speaks of \"%s\"", copy, part);
}

static void vote_failed_at(int line, char peer, const char *part) {
    struct wire_text text;
    skip_waiting(peer);
    const struct frame *frame = take_at(line, peer, WIRE_DEADLOCK);
    check_that(wire_decode_text(frame->body, frame->header.length, &text), __FILE__, line, "DEADLOCK decodes");
    says(line, &text, part);
}
#define VOTE_FAILED(peer, part) vote_failed_at(__LINE__, peer, part)

static void op_failed_at(int line, const char *peers, uint64_t tag, const char *part) {
    for (; *peers; peers++) {
        char one[2] = {*peers, 0};
        skip_waiting(*peers);
        struct wire_verdict verdict =
            verdict_at(line, one, GROUP_EPOCH, GROUP_EPOCH, tag, WIRE_VERDICT_DEADLOCK, 0, "");
        says(line, &verdict.text, part);
    }
}
#define OP_FAILED(peers, tag, part) op_failed_at(__LINE__, peers, tag, part)

static void test_found(void) {
    start("a vote and an operation", "ab");
    vote("a", WIRE_VOTE_UPDATE);
    WAIT(DEADLOCK_MS, "ab", {'b', 7, "a", false});
    VOTE_FAILED('a', "rank 1, join 2) in all_reduce with tag 7 wait for each other for 3 s");
    OP_FAILED("ab", 7, "rank 0, join 1) in update_topology, ");
    EPOCH("ab", RELINK, 3, 3, "ab");
    vote("ab", WIRE_VOTE_UPDATE); // nothing is left of it
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    start("two votes", "abc");
    vote("a", WIRE_VOTE_PENDING);
    vote("bc", WIRE_VOTE_OPTIMIZE);
    pass(DEADLOCK_MS + 1500, "abc");
    VOTE_FAILED('a', "in are_peers_pending, ");
    VOTE_FAILED('b', "in optimize_topology");
    VOTE_FAILED('c', "in optimize_topology");
    end();

    start("two operations of programs with one thread", "ab");
    WAIT(DEADLOCK_MS, "ab", {'a', 1, "b", true}, {'b', 2, "a", true});
    OP_FAILED("ab", 1, "tag 1");
    OP_FAILED("ab", 2, "tag 2");
    EPOCH("ab", RELINK, 3, 3, "ab");
    end();

    start("a circle of three", "abc");
    WAIT(DEADLOCK_MS, "abc", {'a', 1, "b", true}, {'b', 2, "c", true}, {'c', 3, "a", true});
    for (uint64_t tag = 1; tag <= 3; tag++) OP_FAILED("abc", tag, "rank 2");
    EPOCH("abc", RELINK, 3, 3, "abc");
    end();

    start("a member that does not know who is missing", "abc");
    vote("c", WIRE_VOTE_UPDATE);
    WAIT(DEADLOCK_MS, "abc", {'a', 1, "", true}, {'b', 1, "c", true});
    VOTE_FAILED('c', "in update_topology");
    OP_FAILED("abc", 1, "rank 0");
    EPOCH("abc", RELINK, 3, 3, "abc");
    end();

    start("an operation of a kind that does not exist", "ab");
    vote("a", WIRE_VOTE_UPDATE);
    for (int64_t waited = 1000; waited <= DEADLOCK_MS; waited += 1000) {
        pass(1000, "ab");
        tell(&(struct tells){'b', 7, "a", false}, waited, GROUP_EPOCH, UINT8_MAX);
    }
    pass(1500, "ab");
    VOTE_FAILED('a', "in an operation with tag 7");
    OP_FAILED("ab", 7, "in update_topology");
    EPOCH("ab", RELINK, 3, 3, "ab");
    end();
}

static void test_not_found(void) {
    start("a slow member", "abc");
    vote("a", WIRE_VOTE_UPDATE);
    vote("b", WIRE_VOTE_UPDATE);
    pass(LONG_MS, "abc");
    QUIET("abc");
    end();

    start("a slow member that others wait for in different calls", "abc");
    vote("a", WIRE_VOTE_UPDATE);
    WAIT(LONG_MS, "abc", {'b', 1, "c", true});
    QUIET("abc");
    end();

    start("operations of programs with several threads", "ab");
    WAIT(LONG_MS, "ab", {'a', 1, "b", false}, {'b', 2, "a", true});
    QUIET("ab");
    end();

    start("members of one slow operation, none of which has heard of the next", "abc");
    WAIT(LONG_MS, "abc", {'a', 1, "b", true}, {'b', 1, "c", true}, {'c', 1, "a", true});
    QUIET("abc");
    end();

    start("a vote beside which operations may begin", "ab");
    vote("a", WIRE_VOTE_PENDING);
    WAIT(LONG_MS, "ab", {'b', 1, "a", true});
    QUIET("ab");
    end();

    start("a wait that is short, begins again, or is of another epoch", "ab");
    vote("a", WIRE_VOTE_UPDATE);
    for (int64_t waited = 0; waited < LONG_MS; waited += 1000) {
        pass(1000, "ab");
        tell(&(struct tells){'b', 7, "a", true}, 1000, GROUP_EPOCH, PLAN_ALL_REDUCE);
        tell(&(struct tells){'b', 7, "a", true}, LONG_MS, GROUP_EPOCH - 1, PLAN_ALL_REDUCE);
    }
    QUIET("ab");
    end();

    start("a report that is old", "ab");
    WAIT(LONG_MS, "ab", {'b', 7, "a", true});
    pass(LONG_MS, "ab");
    vote("a", WIRE_VOTE_UPDATE);
    pass(LONG_MS, "ab");
    QUIET("ab");
    end();

    start("a member of one circle does not end the wait for a third one", "abc");
    WAIT(LONG_MS, "abc", {'a', 1, "c", true}, {'b', 2, "c", true});
    QUIET("abc");
    end();

    begin("without a limit");
    form("ab", 0);
    vote("a", WIRE_VOTE_UPDATE);
    WAIT(LONG_MS, "ab", {'b', 7, "a", true});
    QUIET("ab");
    end();
}

int main(void) {
    test_found();
    test_not_found();
    return check_status();
}
