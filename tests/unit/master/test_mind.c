// The master's mind: members, votes, ops and links, without sockets.
#include "base/platform.h"
#include "mailboxes.h"
#include "master/breaks.h"
#include "master/waits.h"

enum { LIMIT_MS = 1000, HEARING_MS = LIMIT_MS / BREAKS_HEARING_OF + 10 };

static struct mind *m;
static int64_t now;
static uint64_t run, generation;
static struct wire_member members[WIRE_MAX_MEMBERS];
static uint64_t epochs[PEERS]; // number in force at the peer

// ---- the harness ----

// Memory is refused to the mind alone, from the `refuse_at`-th request inside it on, `refuse_count` times.
static bool inside;

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_REFUSE 1
static uint64_t requests, refuse_at = UINT64_MAX, refuse_count;
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
static bool refused(void) { return inside && ++requests >= refuse_at && requests < refuse_at + refuse_count; }
void *malloc(size_t size) { return refused() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return refused() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return refused() ? NULL : __libc_realloc(old, size); }
#endif

static void act(const struct actions *actions) {
    inside = false;
    post(actions);
    uint8_t random[MIND_RANDOM_BYTES];
    memset(random, 77, sizeof random);
    if (mind_wants_random(m)) mind_set_random(m, random);
}

static void begin(const char *name) {
    check_case("%s", name);
    uint8_t random[MIND_RANDOM_BYTES];
    for (size_t i = 0; i < sizeof random; i++) random[i] = (uint8_t)(i + 1);
    now = 1000 * SECOND_NS;
    m = mind_new(LIMIT_MS, random, now);
    REQUIRE(m != NULL);
    memset(epochs, 0, sizeof epochs);
    for (size_t i = 0; i < PEERS; i++) clear(&boxes[i]);
}

static void end(void) {
    clear_all();
    mind_free(m);
    check_case("%s", "");
}

static void drain(const char *peers) {
    for (; *peers; peers++) boxes[*peers - 'a'].head = boxes[*peers - 'a'].tail;
}

static void say(char peer, struct wire_buffer *frame) {
    struct wire_header header;
    CHECK(wire_header_decode(frame->bytes, &header));
    act((inside = true, mind_message(m, now, (uint32_t)(peer - 'a'), &header, frame->bytes + WIRE_HEADER_BYTES)));
    wire_buffer_fini(frame);
}

static struct wire_header head(char peer) {
    return (struct wire_header){.run = run, .generation = generation, .epoch = epochs[peer - 'a']};
}

static struct wire_header op_head(uint64_t group_epoch) {
    return (struct wire_header){.run = run, .generation = generation, .epoch = group_epoch};
}

static void hello_from(char peer, uint32_t group, struct wire_address address) {
    struct wire_hello hello = {
        .version = WIRE_VERSION, .id = id_of(peer), .group = group, .lanes = 2, .port = 48149, .masters = 1};
    clear(&boxes[peer - 'a']);
    epochs[peer - 'a'] = 0;
    act((inside = true, mind_peer_connected(m, now, (uint32_t)(peer - 'a'), &address, &hello)));
}

// Registers; the WELCOME is checked and taken.
static uint64_t join(char peer, uint32_t group) {
    hello_from(peer, group, address_of(peer));
    struct wire_welcome welcome;
    const struct frame *frame = TAKE(peer, WIRE_WELCOME);
    CHECK(wire_decode_welcome(frame->body, frame->header.length, &welcome));
    CHECK_EQ(welcome.heartbeat_limit_ms, LIMIT_MS);
    run = frame->header.run;
    generation = frame->header.generation;
    return welcome.join_number;
}

static void vote(const char *peers, uint8_t kind) {
    for (; *peers; peers++) {
        struct wire_buffer out = {0};
        struct wire_vote message = {kind};
        wire_encode_vote(&out, head(*peers), &message);
        say(*peers, &out);
    }
}

// Each of `peers` answers that it cannot reach `unreachable`.
static void linked(const char *peers, uint32_t attempt, const char *unreachable) {
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

static void simple(char peer, enum wire_type type) {
    struct wire_buffer out = {0};
    wire_encode_empty(&out, head(peer), type);
    say(peer, &out);
}

static void die(char peer) { act((inside = true, mind_peer_lost(m, now, (uint32_t)(peer - 'a'), "test"))); }

static void accuse(char peer, char accused, uint8_t silent) {
    struct wire_buffer out = {0};
    struct wire_link_down message = {.id = id_of(accused), .silent = silent};
    wire_encode_link_down(&out, head(peer), &message);
    say(peer, &out);
}

static void link_down(char peer, char accused) { accuse(peer, accused, 0); }
static void silent(char peer, char accused) { accuse(peer, accused, 1); }

// A segment stands above the 32 bits of a tag.
#define SEGMENT(tag, segment) ((uint64_t)(segment) << 32 | (tag))
static struct wire_op_name name_of(uint64_t epoch, uint64_t tag) {
    return (struct wire_op_name){epoch, (uint32_t)tag, 1, (uint16_t)(tag >> 32)};
}

static void done(const char *peers, uint64_t group_epoch, uint64_t tag) {
    for (; *peers; peers++) {
        struct wire_buffer out = {0};
        struct wire_op_done message = {name_of(group_epoch, tag)};
        wire_encode_op_done(&out, op_head(group_epoch), &message);
        say(*peers, &out);
    }
}

struct stood {
    uint64_t epoch, tag;
    char state; // 'O' open large, 'o' open small, 'D' done, 'k' kept
};

static void report(char peer, uint64_t group_epoch, size_t count, const struct stood *ops) {
    struct wire_op_report list[8];
    struct wire_report message = {.count = (uint32_t)count, .ops = list};
    for (size_t i = 0; i < count; i++) {
        uint8_t state = ops[i].state == 'D' ? WIRE_OP_DONE : ops[i].state == 'k' ? WIRE_OP_KEPT : WIRE_OP_OPEN;
        list[i] = (struct wire_op_report){name_of(ops[i].epoch, ops[i].tag), state,
                                          ops[i].state == 'o' || ops[i].state == 'k'};
    }
    struct wire_buffer out = {0};
    wire_encode_report(&out, op_head(group_epoch), &message);
    say(peer, &out);
}
#define REPORT(peer, group_epoch, ...) \
    report(peer, group_epoch, sizeof((struct stood[]){__VA_ARGS__}) / sizeof(struct stood), \
           (struct stood[]){__VA_ARGS__})

static void mismatch(char peer, uint64_t group_epoch, uint64_t tag, char other) {
    struct wire_mismatch message = {.name = name_of(group_epoch, tag),
                                    .mine = {.count = 10, .dtype = 10},
                                    .other = id_of(other),
                                    .theirs = {.count = 20, .dtype = 11, .op = 1}};
    struct wire_buffer out = {0};
    wire_encode_mismatch(&out, op_head(group_epoch), &message);
    say(peer, &out);
}

// Time passes in small steps; `alive` send heartbeats all the while.
static void pass(int64_t ms, const char *alive) {
    for (int64_t until = now + ms * MS_NS; now < until;) {
        now += 10 * MS_NS;
        for (const char *p = alive; *p; p++) simple(*p, WIRE_HEARTBEAT);
        if (mind_next_deadline(m) <= now) act((inside = true, mind_tick(m, now)));
    }
}

// ---- what peers get ----

static void same_members(int line, const struct wire_epoch *epoch, const char *want) {
    char got[WIRE_MAX_MEMBERS + 1] = {0};
    for (uint32_t i = 0; i < epoch->count; i++) got[i] = (char)epoch->members[i].id.bytes[0];
    check_text(got, want, __FILE__, line, "members");
}

static void epoch_at(int line, const char *peers, uint8_t reason, uint64_t number, uint64_t group_epoch,
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

static uint32_t candidate_at(int line, const char *peers, const char *want) {
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

static void outcome_at(int line, const char *peers, uint8_t kind, uint8_t code, uint64_t value) {
    for (; *peers; peers++) {
        const struct frame *frame = take_at(line, *peers, WIRE_OUTCOME);
        struct wire_outcome outcome = {0};
        check_that(wire_decode_outcome(frame->body, frame->header.length, &outcome), __FILE__, line, "OUTCOME decodes");
        check_equal(outcome.kind, kind, __FILE__, line, "kind");
        check_equal(outcome.code, code, __FILE__, line, "code");
        check_equal((int64_t)outcome.value, (int64_t)value, __FILE__, line, "value");
    }
}
#define OUTCOME(peers, kind, code, value) outcome_at(__LINE__, peers, WIRE_VOTE_##kind, code, value)

static struct wire_verdict verdict_at(int line, const char *peers, uint64_t header_epoch, uint64_t epoch, uint64_t tag,
                                      uint8_t kind, char supplier, const char *needy) {
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

static void text_at(int line, char peer, enum wire_type type, const char *part) {
    const struct frame *frame = take_at(line, peer, type);
    struct wire_text text;
    char copy[WIRE_MAX_TEXT + 1] = {0};
    check_that(wire_decode_text(frame->body, frame->header.length, &text), __FILE__, line, "text decodes");
    memcpy(copy, text.chars, text.length);
    check_report(strstr(copy, part) != NULL, __FILE__, line, "\"%s\" speaks of \"%s\"", copy, part);
    check_that(boxes[peer - 'a'].closed == (type != WIRE_WAITING), __FILE__, line, "connection closed");
}
#define REFUSED(peer, part) text_at(__LINE__, peer, WIRE_REFUSED, part)
#define EXPELLED(peer, part) text_at(__LINE__, peer, WIRE_EXPELLED, part)

// An accepted run of the peers named, all in `group`; 'A' to 'Z' are the same peers in group + 1. It is in epoch 2 (1
// with one peer).
static void form(const char *peers, uint32_t group) {
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

// ---- joining ----

static void test_first_peer(void) {
    begin("the first peer is accepted at once");
    CHECK_EQ(join('a', 7), 1);
    EPOCH("a", UPDATE, 1, 1, "a");
    CHECK_EQ(members[0].group, 7);
    CHECK_EQ(members[0].address.port, 48149);
    CHECK_EQ(members[0].address.bytes[3], 'a');
    CHECK_EQ(mind_epoch(m), 1);
    vote("a", WIRE_VOTE_PENDING);
    OUTCOME("a", PENDING, 0, 0);
    vote("a", WIRE_VOTE_UPDATE);
    OUTCOME("a", UPDATE, 0, 0);
    vote("a", WIRE_VOTE_OPTIMIZE);
    OUTCOME("a", OPTIMIZE, 0, 0);
    end();
}

static void test_join(void) {
    begin("a newcomer waits for the update of the accepted");
    join('a', 0);
    EPOCH("a", UPDATE, 1, 1, "a");
    CHECK_EQ(join('b', 0), 2);
    CHECK(quiet("ab"));
    vote("a", WIRE_VOTE_PENDING);
    OUTCOME("a", PENDING, 0, 1);
    vote("a", WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE("ab", "ab");
    linked("a", attempt, "");
    CHECK(quiet("ab"));
    linked("b", attempt, "");
    EPOCH("ab", UPDATE, 2, 2, "ab");
    end();

    begin("two join at once, a third while their links are made");
    form("ab", 0);
    join('c', 0);
    join('d', 0);
    vote("a", WIRE_VOTE_UPDATE);
    CHECK(quiet("abcd"));
    vote("b", WIRE_VOTE_UPDATE);
    attempt = CANDIDATE("abcd", "abcd");
    join('e', 0);
    linked("dcba", attempt, "");
    EPOCH("abcd", UPDATE, 3, 3, "abcd");
    CHECK(quiet("e"));
    vote("abcd", WIRE_VOTE_UPDATE);
    attempt = CANDIDATE("abcde", "abcde");
    linked("abcde", attempt, "");
    EPOCH("abcde", UPDATE, 4, 4, "abcde");
    end();

    begin("a newcomer comes while votes are partly in");
    form("ab", 0);
    vote("a", WIRE_VOTE_UPDATE);
    join('c', 0);
    vote("b", WIRE_VOTE_UPDATE);
    linked("abc", CANDIDATE("abc", "abc"), "");
    EPOCH("abc", UPDATE, 3, 3, "abc");
    end();

    begin("an update without newcomers is a barrier");
    form("ab", 0);
    vote("b", WIRE_VOTE_UPDATE);
    CHECK(quiet("ab"));
    vote("a", WIRE_VOTE_UPDATE);
    OUTCOME("ab", UPDATE, 0, 0);
    end();
}

static void test_bad_candidates(void) {
    begin("a newcomer dies while its links are made");
    form("ab", 0);
    join('c', 0);
    join('d', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    uint32_t first = CANDIDATE("abcd", "abcd");
    linked("ab", first, "");
    die('c');
    uint32_t second = CANDIDATE("abd", "abd");
    CHECK(second > first);
    linked("d", first, ""); // an answer to the former candidate
    linked("abd", second, "");
    EPOCH("abd", UPDATE, 3, 3, "abd");
    end();

    begin("the only newcomer dies: the update succeeds");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    CANDIDATE("abc", "abc");
    die('c');
    OUTCOME("ab", UPDATE, 0, 0);
    vote("ab", WIRE_VOTE_UPDATE);
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("a newcomer that cannot be reached is refused with the reason");
    form("ab", 0);
    join('c', 0);
    join('d', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    first = CANDIDATE("abcd", "abcd");
    linked("a", first, "");
    linked("b", first, "c");
    linked("c", first, "");
    CHECK(quiet("abcd"));
    linked("d", first, "");
    REFUSED('c', "between this peer and peer 62010203");
    second = CANDIDATE("abd", "abd");
    linked("abd", second, "");
    EPOCH("abd", UPDATE, 3, 3, "abd");
    end();

    begin("nobody can be admitted: the update still succeeds");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("abc", CANDIDATE("abc", "abc"), "c");
    REFUSED('c', "no data connection");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("a newcomer that accuses everybody harms itself only");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    first = CANDIDATE("abc", "abc");
    linked("ab", first, "");
    linked("c", first, "ab");
    REFUSED('c', "no data connection");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("of two newcomers that cannot reach each other the later is left out");
    form("a", 0);
    join('c', 0);
    join('b', 0);
    join('d', 0);
    vote("a", WIRE_VOTE_UPDATE);
    first = CANDIDATE("acbd", "acbd");
    linked("ad", first, "");
    linked("c", first, "b");
    linked("b", first, "d"); // b goes because of c, so d may stay
    REFUSED('b', "peer 63010203");
    linked("acd", CANDIDATE("acd", "acd"), "");
    EPOCH("acd", UPDATE, 2, 2, "acd");
    end();

    begin("a newcomer that hangs is left out after the limit");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    first = CANDIDATE("abc", "abc");
    linked("ab", first, "");
    pass(LIMIT_MS + 20, "ab");
    REFUSED('c', "in time");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("a newcomer that lives but does not answer is left out");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("ab", CANDIDATE("abc", "abc"), "");
    pass(LIMIT_MS * 3 / 4, "abc"); // its own limit
    CHECK(quiet("abc"));
    pass(LIMIT_MS / 4, "abc");
    REFUSED('c', "in time");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("a newcomer without links to the accepted is not waited for when they have answered");
    form("ab", 0);
    join('c', 0);
    join('d', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    first = CANDIDATE("abcd", "abcd");
    linked("d", first, "");
    linked("a", first, "");
    CHECK(quiet("abcd"));
    linked("b", first, "c");
    REFUSED('c', "no data connection");
    linked("abd", CANDIDATE("abd", "abd"), "");
    EPOCH("abd", UPDATE, 3, 3, "abd");
    end();

    begin("from the second failure of an address on its newcomers wait behind others");
    form("ab", 0);
    for (int failures = 1; failures <= 2; failures++) {
        hello_from('c', 0, address_of('c'));
        TAKE('c', WIRE_WELCOME);
        vote("ab", WIRE_VOTE_UPDATE);
        linked("ab", CANDIDATE("abc", "abc"), "c");
        REFUSED('c', "no data connection");
        OUTCOME("ab", UPDATE, 0, 0);
    }
    hello_from('c', 0, address_of('c'));
    TAKE('c', WIRE_WELCOME);
    vote("ab", WIRE_VOTE_PENDING);
    OUTCOME("ab", PENDING, 0, 0); // nobody whom an update would let in
    vote("ab", WIRE_VOTE_UPDATE);
    OUTCOME("ab", UPDATE, 0, 0);
    join('d', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("abd", CANDIDATE("abd", "abd"), "");
    EPOCH("abd", UPDATE, 3, 3, "abd");
    pass(2 * LIMIT_MS + 10, "abcd");
    vote("abd", WIRE_VOTE_PENDING);
    OUTCOME("abd", PENDING, 0, 1);
    vote("abd", WIRE_VOTE_UPDATE);
    linked("abdc", CANDIDATE("abdc", "abdc"), ""); // slow, but honest
    EPOCH("abdc", UPDATE, 4, 4, "abdc");
    end();

    begin("who has failed often is let in where nobody waits for it");
    form("a", 0);
    for (int failures = 1; failures <= 3; failures++) {
        hello_from('c', 0, address_of('c'));
        TAKE('c', WIRE_WELCOME);
        vote("a", WIRE_VOTE_UPDATE);
        if (failures < 3) {
            linked("a", CANDIDATE("ac", "ac"), "c");
            REFUSED('c', "no data connection");
        }
        OUTCOME("a", UPDATE, 0, 0);
    }
    die('a');
    EPOCH("c", UPDATE, 3, 3, "c");
    end();

    begin("a waiting newcomer is lost in the tick that judges the candidate");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("ab", CANDIDATE("abc", "abc"), "");
    pass(LIMIT_MS / 2, "abc");
    join('d', 0);
    now += LIMIT_MS * MS_NS - 10 * MS_NS; // past the limit of the candidate
    for (const char *p = "abc"; *p; p++) simple(*p, WIRE_HEARTBEAT);
    now += 10 * MS_NS;
    act((inside = true, mind_tick(m, now)));
    REFUSED('c', "in time");
    REFUSED('d', "no heartbeat");
    OUTCOME("ab", UPDATE, 0, 0);
    end();

    begin("an accepted peer that does not answer is expelled");
    form("ab", 0);
    join('c', 0);
    vote("ab", WIRE_VOTE_UPDATE);
    linked("ac", CANDIDATE("abc", "abc"), "");
    pass(2 * LIMIT_MS, "abc");
    EXPELLED('b', "in time");
    EPOCH("a", LOSS, 3, 3, "a");
    linked("ac", CANDIDATE("ac", "ac"), "");
    EPOCH("ac", UPDATE, 4, 4, "ac");
    end();
}

static void test_loss_while_joining(void) {
    begin("an accepted peer dies while links are made");
    form("abc", 0);
    join('d', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE("abcd", "abcd");
    linked("ac", attempt, "");
    die('b');
    EPOCH("ac", LOSS, 3, 3, "ac");
    attempt = CANDIDATE("acd", "acd");
    linked("acd", attempt, "");
    EPOCH("acd", UPDATE, 4, 4, "acd");
    end();

    begin("two accepted peers cannot reach each other while a newcomer is admitted");
    form("abc", 0);
    join('d', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    attempt = CANDIDATE("abcd", "abcd");
    linked("acd", attempt, "");
    linked("b", attempt, "a");
    CHECK(quiet("abcd"));
    pass(BREAKS_GRACE_MS + 10, "abcd");
    EPOCH("abc", RELINK, 3, 3, "abc");
    attempt = CANDIDATE("abcd", "abcd");
    linked("abcd", attempt, "");
    EPOCH("abcd", UPDATE, 4, 4, "abcd");
    end();

    begin("the same twice: one of the two goes, the newcomer comes");
    form("abc", 0);
    join('d', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    for (uint32_t i = 0; i < 2; i++) {
        attempt = CANDIDATE("abcd", "abcd");
        linked("cd", attempt, "");
        linked("a", attempt, "b");
        linked("b", attempt, "a");
        pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abc", RELINK, 3, 3, "abc");
    }
    EXPELLED('b', "failed twice");
    EPOCH("ac", LOSS, 4, 4, "ac");
    linked("acd", CANDIDATE("acd", "acd"), "");
    EPOCH("acd", UPDATE, 5, 5, "acd");
    end();

    begin("the last accepted peer goes, newcomers wait");
    form("a", 0);
    join('b', 0);
    join('c', 1);
    simple('a', WIRE_LEAVE);
    CHECK(boxes[0].closed);
    attempt = CANDIDATE("bc", "bc");
    linked("bc", attempt, "");
    EPOCH("b", UPDATE, 3, 3, "bc");
    EPOCH("c", UPDATE, 3, 3, "bc");
    vote("bc", WIRE_VOTE_UPDATE);
    OUTCOME("bc", UPDATE, 0, 0);
    end();

    begin("the last accepted peer goes while links are made; another newcomer came later");
    form("a", 0);
    join('b', 0);
    vote("a", WIRE_VOTE_UPDATE);
    CANDIDATE("ab", "ab");
    join('c', 0);
    die('a');
    attempt = CANDIDATE("bc", "bc");
    linked("b", attempt, "");
    die('c');
    EPOCH("b", UPDATE, 3, 3, "b"); // alone: nothing to wait for
    end();
}

static void test_votes(void) {
    begin("a leave is the last missing vote");
    form("abc", 0);
    vote("ac", WIRE_VOTE_UPDATE);
    CHECK(quiet("abc"));
    simple('b', WIRE_LEAVE);
    EPOCH("ac", LOSS, 3, 3, "ac");
    OUTCOME("ac", UPDATE, 0, 0);
    end();

    begin("a leave is the last missing vote, a newcomer waits");
    form("abc", 0);
    join('d', 0);
    vote("ac", WIRE_VOTE_UPDATE);
    die('b');
    EPOCH("ac", LOSS, 3, 3, "ac");
    linked("acd", CANDIDATE("acd", "acd"), "");
    EPOCH("acd", UPDATE, 4, 4, "acd");
    end();

    begin("a voter leaves");
    form("abc", 0);
    vote("a", WIRE_VOTE_UPDATE);
    die('a');
    EPOCH("bc", LOSS, 3, 3, "bc");
    vote("bc", WIRE_VOTE_UPDATE);
    OUTCOME("bc", UPDATE, 0, 0);
    end();

    begin("pending: the same answer for all, also when a newcomer leaves");
    form("ab", 0);
    join('c', 5);
    vote("a", WIRE_VOTE_PENDING);
    CHECK(quiet("ab"));
    vote("b", WIRE_VOTE_PENDING);
    OUTCOME("ab", PENDING, 0, 1);
    die('c');
    vote("ab", WIRE_VOTE_PENDING);
    OUTCOME("ab", PENDING, 0, 0);
    end();

    begin("different barriers wait for each other, and are told so, ever more rarely");
    form("ab", 0);
    vote("a", WIRE_VOTE_UPDATE);
    vote("b", WIRE_VOTE_PENDING);
    pass(WAITS_WARN_MS - 100, "ab");
    CHECK(quiet("ab"));
    pass(200, "ab");
    text_at(__LINE__, 'a', WIRE_WAITING,
            "update_topology waits for 1 of 2 members for 10 s: peer 62010203 (join 2) at 10.0.0.98:48149, in "
            "are_peers_pending");
    text_at(__LINE__, 'b', WIRE_WAITING,
            "are_peers_pending waits for 1 of 2 members for 10 s: peer 61010203 (join 1) at 10.0.0.97:48149, in "
            "update_topology");
    pass(WAITS_WARN_MS - 400, "ab");
    CHECK(quiet("ab"));
    pass(400, "ab");
    text_at(__LINE__, 'a', WIRE_WAITING, "for 20 s");
    text_at(__LINE__, 'b', WIRE_WAITING, "for 20 s");
    pass(3 * WAITS_WARN_MS / 2, "ab");
    CHECK(quiet("ab"));
    die('b');
    EPOCH("a", LOSS, 3, 3, "a");
    OUTCOME("a", UPDATE, 0, 0);
    pass(6 * WAITS_WARN_MS, "a");
    CHECK(quiet("a"));
    end();

    begin("a newcomer hears whose update it waits for");
    form("ab", 0);
    join('c', 0);
    vote("a", WIRE_VOTE_UPDATE);
    pass(WAITS_WARN_MS + 100, "abc");
    text_at(__LINE__, 'c', WIRE_WAITING,
            "waiting to be admitted: 1 of 2 members has not called update_topology for 10 s: peer 62010203 (join 2) at "
            "10.0.0.98:48149");
    text_at(__LINE__, 'a', WIRE_WAITING, "update_topology waits for 1 of 2 members");
    CHECK(quiet("abc"));
    vote("b", WIRE_VOTE_UPDATE);
    linked("abc", CANDIDATE("abc", "abc"), "");
    EPOCH("abc", UPDATE, 3, 3, "abc");
    pass(6 * WAITS_WARN_MS, "abc");
    CHECK(quiet("abc"));
    end();

    begin("a newcomer hears that nobody calls, and a later wait is told of anew");
    form("ab", 0);
    join('c', 0);
    pass(WAITS_WARN_MS + 100, "abc");
    text_at(__LINE__, 'c', WIRE_WAITING,
            "2 of 2 members have not called update_topology for 10 s: peer 61010203 (join 1) at 10.0.0.97:48149, in no "
            "call that waits for all; peer 62010203");
    CHECK(quiet("abc"));
    for (int turn = 0; turn < 2; turn++) {
        vote("a", WIRE_VOTE_PENDING);
        pass(WAITS_WARN_MS - 50, "abc");
        if (turn == 0) text_at(__LINE__, 'c', WIRE_WAITING, "for 20 s");
        CHECK(quiet("ab"));
        drain("c");
        vote("b", WIRE_VOTE_PENDING);
        OUTCOME("ab", PENDING, 0, 1);
    }
    end();

    begin("a second vote while one is open is a violation");
    form("ab", 0);
    vote("a", WIRE_VOTE_UPDATE);
    vote("a", WIRE_VOTE_PENDING);
    EXPELLED('a', "vote");
    EPOCH("b", LOSS, 3, 3, "b");
    end();
}

static void test_groups(void) {
    begin("groups 0, 0, 1, 1");
    form("aBcD", 0);
    join('e', 1);
    vote("abcd", WIRE_VOTE_UPDATE);
    linked("abcde", CANDIDATE("abcde", "acbde"), "");
    EPOCH("ac", UPDATE, 3, 2, "acbde"); // no newcomer in group 0: its ops run on
    EPOCH("bde", UPDATE, 3, 3, "acbde");
    die('d');
    EPOCH("ac", LOSS, 4, 2, "acbe");
    EPOCH("be", LOSS, 4, 4, "acbe");
    done("ac", 2, 9);
    VERDICT("ac", 2, 2, 9, COMMIT, 0, "");
    end();

    begin("a whole group goes");
    form("aB", 0);
    die('b');
    EPOCH("a", LOSS, 3, 1, "a");
    join('b', 1);
    vote("a", WIRE_VOTE_UPDATE);
    linked("ab", CANDIDATE("ab", "ab"), "");
    EPOCH("a", UPDATE, 4, 1, "ab");
    EPOCH("b", UPDATE, 4, 4, "ab");
    end();
}

// ---- ops ----

static void test_done(void) {
    begin("a large op commits when all are done");
    form("abc", 0);
    done("ab", 2, 5);
    done("ba", 2, 6);
    CHECK(quiet("abc"));
    done("c", 2, 6);
    VERDICT("abc", 2, 2, 6, COMMIT, 0, "");
    done("c", 2, 5);
    VERDICT("abc", 2, 2, 5, COMMIT, 0, "");
    for (uint64_t tag = 100; tag < 3000; tag++) done("ab", 2, tag);
    for (uint64_t tag = 2999; tag >= 100; tag--) {
        done("c", 2, tag);
        VERDICT("abc", 2, 2, tag, COMMIT, 0, "");
        for (int c = 0; c < 3; c++) {
            clear(&boxes[c]);
        }
    }
    done("a", 2, 7);
    done("a", 2, 7);
    EXPELLED('a', "twice");
    drain("bc");
    end();

    begin("too many ops");
    form("ab", 0);
    for (uint64_t tag = 0; tag < WIRE_MAX_LIVE_OPS; tag++) done("a", 2, tag);
    CHECK(quiet("a"));
    done("a", 2, WIRE_MAX_LIVE_OPS);
    EXPELLED('a', "live ops");
    EPOCH("b", LOSS, 3, 3, "b");
    end();

    begin("one member's made-up ops are its own");
    form("abc", 0);
    enum { HONEST = WIRE_MAX_LIVE_OPS + 100 };
    for (uint64_t tag = 1; tag < WIRE_MAX_LIVE_OPS; tag++) done("a", 2, HONEST + tag);
    for (uint64_t tag = 0; tag < HONEST; tag++) {
        done("bca", 2, tag);
        VERDICT("abc", 2, 2, tag, COMMIT, 0, "");
        for (int c = 0; c < 3; c++) clear(&boxes[c]);
    }
    done("a", 2, HONEST); // the last one that a may have open
    done("bc", 2, 0);
    CHECK(quiet("abc"));
    done("a", 2, 0);
    EXPELLED('a', "live ops");
    EPOCH("bc", LOSS, 3, 3, "bc");
    end();
}

static void test_loss_with_ops(void) {
    begin("verdicts after a loss");
    form("abcd", 0);
    done("abc", 2, 1); // all but the one that dies
    done("ab", 2, 2);
    die('d');
    EPOCH("abc", LOSS, 3, 3, "abc");
    done("c", 2, 2); // crossed the epoch: void, its report says it again
    CHECK(quiet("abc"));
    REPORT('a', 3, {2, 1, 'D'}, {2, 2, 'D'}, {2, 3, 'D'}, {2, 4, 'o'}, {2, 5, 'o'}, {2, 6, 'k'}, {2, 7, 'O'});
    REPORT('b', 3, {2, 1, 'D'}, {2, 2, 'D'}, {2, 3, 'O'}, {2, 4, 'k'}, {2, 5, 'o'}, {2, 6, 'k'});
    CHECK(quiet("abc"));
    REPORT('c', 3, {2, 1, 'D'}, {2, 2, 'D'}, {2, 3, 'D'}, {2, 4, 'o'}, {2, 6, 'k'});
    VERDICT("abc", 3, 2, 1, COMMIT, 0, "");     // all done
    VERDICT("abc", 3, 2, 2, COMMIT, 0, "");     // all done, though not all DONE came
    VERDICT("abc", 3, 2, 3, ABORT, 0, "");      // one open
    VERDICT("abc", 3, 2, 4, COMMIT, 'b', "ac"); // one has the result
    VERDICT("ab", 3, 2, 5, ABORT, 0, "");       // nobody has it; c does not know it
    VERDICT("abc", 3, 2, 6, COMMIT, 'a', "");   // all have it
    VERDICT("a", 3, 2, 7, ABORT, 0, "");
    done("abc", 3, 1);
    VERDICT("abc", 3, 3, 1, COMMIT, 0, "");
    end();

    begin("a second loss while reports are collected");
    form("abcd", 0);
    die('d');
    EPOCH("abc", LOSS, 3, 3, "abc");
    REPORT('a', 3, {2, 1, 'k'});
    REPORT('b', 3, {2, 1, 'o'});
    die('a');
    EPOCH("bc", LOSS, 4, 4, "bc");
    REPORT('c', 3, {2, 1, 'k'}); // on the former epoch
    REPORT('b', 4, {2, 1, 'o'});
    CHECK(quiet("bc"));
    REPORT('c', 4, {2, 1, 'o'});
    VERDICT("bc", 4, 2, 1, ABORT, 0, ""); // the only one that had it is gone
    end();

    begin("a relink after a loss aborts what was begun before the loss only");
    form("abc", 0);
    die('c');
    EPOCH("ab", LOSS, 3, 3, "ab");
    link_down('a', 'b');
    pass(BREAKS_GRACE_MS + 10, "ab");
    EPOCH("ab", RELINK, 4, 4, "ab");
    REPORT('a', 4, {2, 1, 'O'}, {3, 2, 'O'});
    REPORT('b', 4, {2, 1, 'O'}, {3, 2, 'D'});
    VERDICT("ab", 4, 2, 1, ABORT, 0, "");
    VERDICT("ab", 4, 3, 2, REDO, 0, "");
    end();

    begin("the loss of a group does not touch the ops of another");
    form("abCD", 0);
    done("a", 2, 1);
    die('d');
    EPOCH("ab", LOSS, 3, 2, "abc");
    EPOCH("c", LOSS, 3, 3, "abc");
    done("b", 2, 1);
    VERDICT("ab", 2, 2, 1, COMMIT, 0, "");
    REPORT('c', 3, {2, 1, 'O'});
    VERDICT("c", 3, 2, 1, ABORT, 0, "");
    end();

    begin("reports are asked of newcomers too, and of all after an update");
    form("ab", 0);
    REPORT('a', 2, {2, 1, 'k'});
    REPORT('b', 2, {2, 1, 'k'});
    VERDICT("ab", 2, 2, 1, COMMIT, 'a', "");
    report('a', 2, 0, NULL);
    EXPELLED('a', "twice");
    drain("b");
    end();
}

static void test_segments(void) {
    begin("segments end one by one");
    form("abc", 0);
    done("ab", 2, SEGMENT(7, 1));
    done("abc", 2, SEGMENT(7, 0));
    VERDICT("abc", 2, 2, SEGMENT(7, 0), COMMIT, 0, "");
    done("c", 2, SEGMENT(7, 1));
    VERDICT("abc", 2, 2, SEGMENT(7, 1), COMMIT, 0, "");
    done("ac", 2, SEGMENT(7, 2));
    die('c');
    EPOCH("ab", LOSS, 3, 3, "ab");
    REPORT('a', 3, {2, SEGMENT(7, 2), 'D'}, {2, SEGMENT(7, 3), 'D'}, {2, SEGMENT(7, 4), 'O'});
    REPORT('b', 3, {2, SEGMENT(7, 3), 'O'}, {2, SEGMENT(7, 2), 'D'});
    VERDICT("ab", 3, 2, SEGMENT(7, 2), COMMIT, 0, "");
    VERDICT("ab", 3, 2, SEGMENT(7, 3), ABORT, 0, ""); // one survivor lacks it
    VERDICT("a", 3, 2, SEGMENT(7, 4), ABORT, 0, "");
    end();
}

static void test_mismatch(void) {
    begin("arguments differ");
    form("abc", 0);
    mismatch('a', 2, 8, 'b');
    struct wire_verdict verdict = VERDICT("abc", 2, 2, 8, MISMATCH, 0, "");
    EPOCH("abc", RELINK, 3, 3, "abc");
    mismatch('b', 2, 8, 'a'); // crossed
    REPORT('a', 3, {2, 9, 'O'});
    REPORT('b', 3, {2, 9, 'D'});
    report('c', 3, 0, NULL);
    VERDICT("ab", 3, 2, 9, REDO, 0, "");
    char text[WIRE_MAX_TEXT + 1] = {0};
    memcpy(text, verdict.text.chars, verdict.text.length);
    CHECK_STR(
        text,
        "op tag 8: peer 61010203 (join 1) gave count 10 float32 sum, peer 62010203 (join 2) gave count 20 float64 avg");
    CHECK_EQ(epochs[2], 3);
    end();

    begin("only the modes differ");
    form("abc", 0);
    struct wire_mismatch message = {.name = name_of(2, SEGMENT(8, 3)),
                                    .mine = {.count = 10, .dtype = 10, .mode = 1},
                                    .other = id_of('b'),
                                    .theirs = {.count = 10, .dtype = 10}};
    struct wire_buffer out = {0};
    wire_encode_mismatch(&out, op_head(2), &message);
    say('a', &out);
    verdict = VERDICT("abc", 2, 2, SEGMENT(8, 3), WHOLE, 0, "");
    CHECK_EQ(verdict.text.length, 0);
    EPOCH("abc", RELINK, 3, 3, "abc");
    report('a', 3, 0, NULL);
    report('c', 3, 0, NULL);
    REPORT('b', 3, {2, 8, 'O'}); // the one that runs it in one piece
    VERDICT("b", 3, 2, 8, REDO, 0, "");
    end();

    begin("a loss while the mismatch is dealt with");
    form("abc", 0);
    mismatch('a', 2, 8, 'b');
    VERDICT("abc", 2, 2, 8, MISMATCH, 0, "");
    EPOCH("abc", RELINK, 3, 3, "abc");
    die('c');
    EPOCH("ab", LOSS, 4, 4, "ab");
    report('a', 4, 0, NULL);
    report('b', 4, 0, NULL);
    drain("ab");
    end();
}

// ---- links ----

static void test_links(void) {
    begin("a link breaks because its peer died");
    form("abc", 0);
    link_down('a', 'c');
    link_down('b', 'c');
    pass(10, "ab");
    die('c');
    EPOCH("ab", LOSS, 3, 3, "ab");
    pass(2 * BREAKS_GRACE_MS, "ab");
    end();

    begin("a link breaks and is made again");
    form("abc", 0);
    link_down('a', 'c');
    CHECK(quiet("abc"));
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 3, 3, "abc");
    epochs[2] = 2;
    link_down('c', 'a'); // of the epoch before
    epochs[2] = 3;
    linked("abc", 0, "");
    pass(3 * BREAKS_GRACE_MS, "abc");
    link_down('c', 'a'); // it had worked in between: counted anew
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 4, 4, "abc");
    end();

    begin("twice: the one most accuse");
    form("abc", 0);
    link_down('b', 'a');
    link_down('c', 'a');
    link_down('a', 'b');
    pass(HEARING_MS, "abc");
    EPOCH("abc", RELINK, 3, 3, "abc");
    linked("c", 0, "");
    link_down('b', 'a');
    link_down('a', 'b');
    pass(HEARING_MS, "abc");
    EXPELLED('a', "1 of the 2 other members, accused by 2");
    EPOCH("bc", LOSS, 4, 4, "bc");
    end();

    begin("one break, which the other side sees only after the epoch that mends it");
    form("abc", 0);
    link_down('b', 'a');
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 3, 3, "abc");
    linked("bc", 0, "");
    link_down('a', 'b');
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 4, 4, "abc");
    linked("bc", 0, "");
    link_down('a', 'b');
    pass(HEARING_MS, "abc");
    EXPELLED('b', "failed twice");
    EPOCH("ac", LOSS, 5, 5, "ac");
    end();

    begin("twice, both accuse: the later joined");
    form("abc", 0);
    for (uint32_t i = 0; i < 2; i++) {
        link_down('b', 'a');
        link_down('a', 'b');
        pass(HEARING_MS, "abc");
        if (i == 0) EPOCH("abc", RELINK, 3, 3, "abc");
    }
    EXPELLED('b', "failed twice");
    EPOCH("ac", LOSS, 4, 4, "ac");
    end();

    begin("silent twice, though the links were made again in between: the one who does not speak");
    form("abc", 0);
    silent('a', 'b');
    silent('c', 'b');
    pass(BREAKS_GRACE_MS + 10, "abc");
    EPOCH("abc", RELINK, 3, 3, "abc");
    linked("abc", 0, "");
    pass(LIMIT_MS / 2, "abc");
    silent('a', 'b');
    pass(HEARING_MS, "abc");
    EXPELLED('b', "1 of the 2");
    EPOCH("ac", LOSS, 4, 4, "ac");
    end();

    begin("silent, and long after once more: made again");
    form("abc", 0);
    for (uint64_t epoch = 3; epoch < 6; epoch++) {
        silent('a', 'b');
        pass(BREAKS_GRACE_MS + 10, "abc");
        EPOCH("abc", RELINK, epoch, epoch, "abc");
        linked("abc", 0, "");
        pass(5 * LIMIT_MS, "abc");
    }
    end();

    begin("one peer loses all its links: the others stay");
    form("abcd", 0);
    for (uint32_t i = 0; i < 2; i++) {
        for (const char *p = "bcd"; *p; p++) {
            link_down(*p, 'a');
            link_down('a', *p);
        }
        pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abcd", RELINK, 3, 3, "abcd");
    }
    EXPELLED('a', "3 of the 3");
    EPOCH("bcd", LOSS, 4, 4, "bcd");
    end();

    begin("one loses its links to two others, and is the only one to tell: it goes, though it came first");
    form("abcd", 0);
    for (uint32_t i = 0; i < 2; i++) {
        link_down('a', 'b');
        link_down('a', 'c');
        pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abcd", RELINK, 3, 3, "abcd");
    }
    EXPELLED('a', "2 of the 3 other members, accused by 0");
    EPOCH("bcd", LOSS, 4, 4, "bcd");
    end();

    begin("the second of its pairs is told late, while another pair's first break is about to be mended");
    form("abcd", 0);
    link_down('a', 'b');
    link_down('c', 'a');
    pass(BREAKS_GRACE_MS + 10, "abcd");
    EPOCH("abcd", RELINK, 3, 3, "abcd");
    link_down('c', 'd');
    pass(BREAKS_GRACE_MS - 10, "abcd");
    link_down('a', 'b');
    link_down('b', 'a');
    pass(HEARING_MS / 2, "abcd");
    CHECK(quiet("abcd"));
    link_down('a', 'c');
    pass(HEARING_MS / 2 + 10, "abcd");
    EXPELLED('a', "2 of the 3");
    EPOCH("bcd", LOSS, 4, 4, "bcd");
    end();

    begin("one that nothing is heard of may be dead: nobody is blamed for its links");
    form("abcd", 0);
    for (uint32_t i = 0; i < 2; i++) {
        pass(10, "abc");
        link_down('c', 'd');
        link_down('b', 'd');
        link_down('a', 'b');
        if (i == 0) pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abcd", RELINK, 3, 3, "abcd");
    }
    pass(LIMIT_MS - 50, "abc");
    CHECK(quiet("abcd"));
    pass(100, "abc");
    EXPELLED('d', "no heartbeat");
    EPOCH("abc", LOSS, 4, 4, "abc");
    end();

    begin("a death does not wait for the hearing");
    form("abcd", 0);
    for (uint32_t i = 0; i < 2; i++) {
        link_down('a', 'b');
        link_down('a', 'c');
        if (i == 0) pass(HEARING_MS, "abcd");
        if (i == 0) EPOCH("abcd", RELINK, 3, 3, "abcd");
    }
    die('d');
    EPOCH("abc", LOSS, 4, 4, "abc");
    pass(HEARING_MS, "abc");
    CHECK(quiet("abc")); // all links are to be made again
    end();

    begin("a fresh group epoch is wanted");
    form("abCD", 0);
    link_down('a', 'a');
    EPOCH("ab", RELINK, 3, 3, "abcd");
    EPOCH("cd", RELINK, 3, 2, "abcd");
    end();

    begin("a link of another group's member, of nobody");
    form("abC", 0);
    link_down('a', 'c');
    link_down('a', 'x');
    pass(5 * BREAKS_GRACE_MS, "abc");
    end();
}

// ---- order ----

static void measured(char peer, char from, char to, uint64_t rate) {
    struct wire_buffer out = {0};
    struct wire_measured message = {id_of(from), id_of(to), rate};
    wire_encode_measured(&out, head(peer), &message);
    say(peer, &out);
}

// Answers all measurements of `peers`: `slow` names directed links "ab" of 1 MB/s, all others have 100. Returns how
// many were asked.
static uint32_t answer_measures(const char *peers, const char *const *slow) {
    uint32_t asked = 0;
    for (bool any = true; any;) {
        any = false;
        for (const char *p = peers; *p; p++) {
            struct box *box = &boxes[*p - 'a'];
            if (box->head == box->tail || box->frames[box->head].header.type != WIRE_MEASURE) continue;
            const struct frame *frame = TAKE(*p, WIRE_MEASURE);
            struct wire_measure measure;
            CHECK(wire_decode_measure(frame->body, frame->header.length, &measure));
            char to = (char)measure.target.bytes[0];
            uint64_t rate = 100 * 1000000;
            for (const char *const *s = slow; *s; s++)
                if ((*s)[0] == *p && (*s)[1] == to) rate = (*s)[2] == '0' ? 0 : 1000000;
            measured(rate == 0 ? *p : to, *p, to, rate);
            asked++;
            any = true;
        }
    }
    return asked;
}

static void test_optimise(void) {
    static const char *const none[] = {NULL};
    static const char *const slow[] = {"bc", "cd", NULL};
    begin("the slow links are avoided");
    form("abcd", 0);
    vote("abc", WIRE_VOTE_OPTIMIZE);
    CHECK(quiet("abcd"));
    vote("d", WIRE_VOTE_OPTIMIZE);
    CHECK_EQ(answer_measures("abcd", slow), 12);
    uint32_t attempt = 0;
    const struct frame *frame = TAKE('a', WIRE_CANDIDATE);
    struct wire_candidate candidate = {.epoch.members = members};
    CHECK(wire_decode_candidate(frame->body, frame->header.length, &candidate));
    attempt = candidate.attempt;
    char order[6] = {0};
    for (int i = 0; i < 4; i++) order[i] = (char)members[i].id.bytes[0];
    order[4] = order[0];
    CHECK(strstr(order, "bc") == NULL && strstr(order, "cd") == NULL);
    order[4] = 0;
    drain("bcd");
    linked("abcd", attempt, "");
    EPOCH("abcd", ORDER, 3, 3, order);
    vote("abcd", WIRE_VOTE_OPTIMIZE); // all is known, nothing better is found
    OUTCOME("abcd", OPTIMIZE, 0, 0);
    end();

    begin("all links alike: the order stays");
    form("abc", 0);
    vote("abc", WIRE_VOTE_OPTIMIZE);
    CHECK_EQ(answer_measures("abc", none), 6);
    OUTCOME("abc", OPTIMIZE, 0, 0);
    join('d', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    linked("abcd", CANDIDATE("abcd", "abcd"), "");
    EPOCH("abcd", UPDATE, 3, 3, "abcd");
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    CHECK_EQ(answer_measures("abcd", none), 6); // only those of the new member
    OUTCOME("abcd", OPTIMIZE, 0, 0);
    end();

    begin("the order cannot be linked");
    form("abcd", 0);
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    answer_measures("abcd", slow);
    frame = TAKE('a', WIRE_CANDIDATE);
    CHECK(wire_decode_candidate(frame->body, frame->header.length, &candidate));
    drain("bcd");
    linked("abc", candidate.attempt, "");
    linked("d", candidate.attempt, "a");
    OUTCOME("abcd", OPTIMIZE, 12, 0);
    end();

    begin("nobody answers");
    form("abc", 0);
    vote("abc", WIRE_VOTE_OPTIMIZE);
    pass(10 * (LIMIT_MS + 200), "abc");
    drain("abc");
    vote("abc", WIRE_VOTE_PENDING); // the optimisation has ended
    OUTCOME("abc", PENDING, 0, 0);
    end();

    begin("a death between measurements");
    form("abcd", 0);
    join('e', 0);
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    drain("abcd");
    die('c');
    EPOCH("abd", LOSS, 3, 3, "abd");
    CHECK(answer_measures("abd", none) <= 6);
    OUTCOME("abd", OPTIMIZE, 0, 0);
    CHECK(quiet("e"));
    end();

    begin("a death while the order is linked");
    form("abcd", 0);
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    answer_measures("abcd", slow);
    drain("abcd");
    die('d');
    EPOCH("abc", LOSS, 3, 3, "abc");
    frame = TAKE('a', WIRE_CANDIDATE); // bc is slow: acb
    CHECK(wire_decode_candidate(frame->body, frame->header.length, &candidate));
    drain("bc");
    linked("abc", candidate.attempt, "");
    EPOCH("abc", ORDER, 4, 4, "acb");
    end();
}

// ---- bad peers, time, runs ----

static void test_refusals(void) {
    begin("another version");
    struct wire_hello hello = {.version = WIRE_VERSION + 1};
    struct wire_address address = address_of('a');
    act((inside = true, mind_peer_connected(m, now, 0, &address, &hello)));
    REFUSED('a', "version");
    CHECK_EQ(mind_peer_count(m), 0);
    end();

    begin("loopback and network do not mix");
    struct wire_address loopback = {.family = 4, .bytes = {127, 0, 0, 1}},
                        loopback6 = {.family = 6, .bytes = {[15] = 1}};
    form("a", 0);
    hello_from('b', 0, loopback);
    REFUSED('b', "loopback");
    hello_from('b', 0, loopback6);
    REFUSED('b', "loopback");
    simple('a', WIRE_LEAVE);
    hello_from('a', 0, loopback);
    TAKE('a', WIRE_WELCOME);
    TAKE('a', WIRE_EPOCH);
    hello_from('b', 0, address_of('b'));
    REFUSED('b', "loopback");
    end();

    begin("a lone member that calls nothing for long, as while it loads a model, is not expelled for one of the other "
          "kind");
    hello_from('a', 0, loopback);
    TAKE('a', WIRE_WELCOME);
    TAKE('a', WIRE_EPOCH);
    pass(60000, "a");
    hello_from('b', 0, address_of('b'));
    REFUSED('b', "loopback");
    hello_from('c', 0, loopback);
    TAKE('c', WIRE_WELCOME);
    vote("a", WIRE_VOTE_UPDATE);
    CANDIDATE("ac", "ac");
    end();

    begin("of newcomers that wait for a run to begin most decide, not the first");
    mind_expect_survivors(m, now + 100 * MS_NS);
    hello_from('a', 0, loopback);
    hello_from('b', 0, address_of('b'));
    hello_from('c', 0, address_of('c'));
    now += 200 * MS_NS;
    act((inside = true, mind_tick(m, now)));
    REFUSED('a', "most peers");
    TAKE('b', WIRE_WELCOME);
    TAKE('c', WIRE_WELCOME);
    CANDIDATE("bc", "bc");
    end();

    begin("an id twice");
    form("a", 0);
    hello = (struct wire_hello){.version = WIRE_VERSION, .id = id_of('a'), .lanes = 1, .port = 1, .masters = 1};
    act((inside = true, mind_peer_connected(m, now, 1, &address, &hello)));
    REFUSED('b', "registered");
    end();
}

static void test_violations(void) {
    static const enum wire_type wrong[] = {WIRE_HELLO,   WIRE_WELCOME,    WIRE_REFUSED,  WIRE_CANDIDATE,
                                           WIRE_EPOCH,   WIRE_OUTCOME,    WIRE_EXPELLED, WIRE_VERDICT,
                                           WIRE_MEASURE, WIRE_LINK_HELLO, WIRE_CHUNK};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        begin(wire_type_name((uint16_t)wrong[i]));
        form("ab", 0);
        struct wire_header header = head('a');
        header.type = (uint16_t)wrong[i];
        act((inside = true, mind_message(m, now, 0, &header, NULL)));
        EXPELLED('a', wire_type_name((uint16_t)wrong[i]));
        EPOCH("b", LOSS, 3, 3, "b");
        header.type = WIRE_HEARTBEAT;
        act((inside = true, mind_message(m, now, 0, &header, NULL))); // nobody any more
        end();
    }

    begin("a newcomer speaks out of turn");
    form("a", 0);
    join('b', 0);
    done("b", 0, 1);
    REFUSED('b', "before it was accepted");
    end();

    begin("stale run and generation are ignored, a future epoch is not");
    form("ab", 0);
    struct wire_header header = {.type = WIRE_LEAVE, .run = run + 1, .generation = generation, .epoch = 2};
    act((inside = true, mind_message(m, now, 0, &header, NULL)));
    header = (struct wire_header){.type = WIRE_LEAVE, .run = run, .generation = generation + 1, .epoch = 2};
    act((inside = true, mind_message(m, now, 0, &header, NULL)));
    CHECK(quiet("ab"));
    header = (struct wire_header){.type = WIRE_HEARTBEAT, .run = run, .generation = generation, .epoch = 3};
    act((inside = true, mind_message(m, now, 0, &header, NULL)));
    EXPELLED('a', "never was");
    EPOCH("b", LOSS, 3, 3, "b");
    end();

    begin("noise in the body of every message");
    uint64_t seed = 42;
    for (uint32_t round = 0; round < 4000; round++) {
        form("abcd", 0);
        for (uint32_t i = 0; i < 4; i++) {
            uint8_t body[600];
            struct wire_buffer frame = {0};
            header = head('a');
            wire_encode_empty(&frame, header, WIRE_HEARTBEAT);
            header.type = (uint16_t)(1 + check_random(&seed) % 18);
            header.length = (uint32_t)(check_random(&seed) % sizeof body);
            for (size_t k = 0; k < header.length; k++) body[k] = (uint8_t)(check_random(&seed) % 3);
            uint8_t *exact = malloc(header.length + 1);
            memcpy(exact, body, header.length);
            act((inside = true, mind_message(m, now, (uint32_t)(check_random(&seed) % 4), &header, exact)));
            free(exact);
            wire_buffer_fini(&frame);
        }
        for (char p = 'a'; p <= 'd'; p++) die(p);
        for (int c = 0; c < 4; c++) clear(&boxes[c]);
        CHECK_EQ(mind_peer_count(m), 0);
    }
    end();
}

static void test_time(void) {
    begin("a silent peer is lost after the limit, and not before");
    form("abc", 0);
    pass(LIMIT_MS - 30, "ac");
    CHECK(quiet("abc"));
    pass(50, "ac");
    EXPELLED('b', "no heartbeat");
    EPOCH("ac", LOSS, 3, 3, "ac");
    end();

    begin("bytes of an unfinished frame count as life");
    form("ab", 0);
    for (int i = 0; i < 300; i++) {
        pass(10, "a");
        mind_heard(m, now, 1);
    }
    CHECK(quiet("ab"));
    end();

    begin("the master sends heartbeats");
    form("ab", 0);
    join('c', 0);
    size_t beats = 0;
    for (int i = 0; i < 100; i++) {
        now += 10 * MS_NS;
        for (const char *p = "abc"; *p; p++) simple(*p, WIRE_HEARTBEAT);
        if (mind_next_deadline(m) > now) continue;
        const struct actions *actions = mind_tick(m, now);
        beats += actions->send_count;
        CHECK_EQ(actions->close_count, 0);
    }
    CHECK(beats >= 3 * 4 && beats <= 3 * 6);
    end();
}

static void test_runs(void) {
    begin("an empty run ends; the next is another");
    form("ab", 0);
    uint64_t first = run;
    die('a');
    EPOCH("b", LOSS, 3, 3, "b");
    simple('b', WIRE_LEAVE);
    CHECK_EQ(mind_next_deadline(m), INT64_MAX);
    CHECK_EQ(join('b', 3), 1);
    CHECK(run != first && run != 0);
    EPOCH("b", UPDATE, 1, 1, "b");
    end();
}

#ifdef CAN_REFUSE
// What a peer does with everything it was sent; it may be expelled meanwhile.
static void obey(char peer) {
    struct box *box = &boxes[peer - 'a'];
    while (box->head < box->tail) {
        struct frame frame = box->frames[box->head++];
        struct wire_candidate candidate = {.epoch.members = members};
        struct wire_epoch_commit commit = {.epoch.members = members};
        struct wire_measure measure;
        char self[2] = {peer, 0};
        if (frame.header.type == WIRE_WELCOME) run = frame.header.run;
        if (frame.header.type == WIRE_CANDIDATE && wire_decode_candidate(frame.body, frame.header.length, &candidate))
            linked(self, candidate.attempt, "");
        if (frame.header.type == WIRE_MEASURE && wire_decode_measure(frame.body, frame.header.length, &measure))
            measured(peer, peer, (char)measure.target.bytes[0], 1000 * measure.target.bytes[0]);
        if (frame.header.type != WIRE_EPOCH || !wire_decode_epoch_commit(frame.body, frame.header.length, &commit))
            continue;
        bool entered = commit.epoch.group_epoch == commit.epoch.number;
        epochs[peer - 'a'] = commit.epoch.number;
        uint64_t begun = commit.epoch.number - 1;
        if (entered)
            REPORT(peer, commit.epoch.number, {begun, 1, 'O'}, {begun, 2, 'k'}, {begun, 3, 'D'},
                   {begun, (uint64_t)peer, 'o'});
    }
    for (size_t i = 0; i < box->tail; i++) free(box->frames[i].body);
    box->head = box->tail = 0;
}

static void obey_all(void) {
    for (int turn = 0; turn < 12; turn++)
        for (const char *p = "abcdef"; *p; p++) obey(*p);
}

static void vote_accepted(uint8_t kind) {
    for (char p[2] = "a"; *p <= 'f'; ++*p)
        if (epochs[*p - 'a'] != 0) vote(p, kind);
}

// A life with everything in it; who is still there does not matter.
static void live(void) {
    for (const char *p = "abcdef"; *p; p++) hello_from(*p, *p == 'f', address_of(*p));
    obey_all();
    vote_accepted(WIRE_VOTE_UPDATE);
    obey_all();
    uint64_t epoch = mind_epoch(m);
    for (uint64_t tag = 0; tag < 40; tag++) done("abcde", epoch, tag);
    mismatch('b', epoch, 103, 'c');
    obey_all();
    vote_accepted(WIRE_VOTE_OPTIMIZE);
    obey_all();
    link_down('c', 'd');
    for (int i = 0; i < 5; i++) {
        now += 10 * MS_NS;
        for (const char *p = "abcdef"; *p; p++) simple(*p, WIRE_HEARTBEAT);
        act((inside = true, mind_tick(m, now)));
    }
    obey_all();
    die('a');
    obey_all();
}

static void refuse_next(uint64_t granted, uint64_t count) {
    requests = 0;
    refuse_at = granted + 1;
    refuse_count = count;
}

// All connections are closed, nobody was expelled, and whoever comes next waits for those that may come back.
static void given_up(const char *peers) {
    refuse_at = UINT64_MAX;
    for (; *peers; peers++) {
        const struct box *box = &boxes[*peers - 'a'];
        CHECK(box->closed);
        for (size_t i = box->head; i < box->tail; i++) CHECK(box->frames[i].header.type != WIRE_EXPELLED);
    }
    CHECK_EQ(mind_peer_count(m), 0);
    CHECK_EQ(mind_activity(m), WIRE_IDLE);
    hello_from('f', 0, address_of('f'));
    CHECK_EQ(mind_activity(m), WIRE_GATHERS);
}

static void test_starving(void) {
    begin("memory is refused for what a member says: nobody is expelled for it, the run is given up");
    form("abc", 0);
    drain("abc");
    refuse_next(0, 1);
    done("a", 2, 1);
    given_up("abc");
    end();

    begin("and for what members are told: none of them hears what comes after it");
    form("abc", 0);
    drain("abc");
    wire_buffer_fini((struct wire_buffer *)&mind_tick(m, now)->bytes); // it has to be asked for again
    drain("abc");
    refuse_next(0, 1);
    die('c');
    for (const char *p = "ab"; *p; p++) CHECK_EQ(boxes[*p - 'a'].tail - boxes[*p - 'a'].head, 0);
    given_up("ab");
    end();

    begin("but a newcomer for which memory is refused is alone with that");
    form("ab", 0);
    drain("ab");
    wire_buffer_fini((struct wire_buffer *)&mind_tick(m, now)->bytes);
    refuse_next(0, 1);
    hello_from('c', 0, address_of('c'));
    refuse_at = UINT64_MAX;
    CHECK(boxes['c' - 'a'].closed);
    CHECK_EQ(mind_peer_count(m), 2);
    end();
}

static void test_memory(void) {
    begin("how much memory a life asks for");
    requests = 0;
    live();
    uint64_t all = requests;
    end();
    fprintf(stderr, "%llu requests for memory\n", (unsigned long long)all);
    CHECK(all > 20);
    for (uint64_t at = 1; at <= all; at++)
        for (uint64_t count = 1; count <= 64; count *= 8) {
            char name[64];
            snprintf(name, sizeof name, "request %llu refused %llu times", (unsigned long long)at,
                     (unsigned long long)count);
            begin(name);
            requests = 0;
            refuse_at = at;
            refuse_count = count;
            live();
            refuse_at = UINT64_MAX;
            for (char p = 'a'; p <= 'f'; p++) die(p);
            CHECK_EQ(mind_peer_count(m), 0);
            for (int c = 0; c < PEERS; c++) clear(&boxes[c]);
            now += LIMIT_MS * MS_NS; // for which members of a run that was given up may come
            form("abC", 0);          // all is well again
            die('b');
            EPOCH("a", LOSS, 3, 3, "ac");
            EPOCH("c", LOSS, 3, 2, "ac");
            end();
        }
}
#endif

int main(void) {
    test_first_peer();
    test_join();
    test_bad_candidates();
    test_loss_while_joining();
    test_votes();
    test_groups();
    test_done();
    test_loss_with_ops();
    test_segments();
    test_mismatch();
    test_links();
    test_optimise();
    test_refusals();
    test_violations();
    test_time();
    test_runs();
#ifdef CAN_REFUSE
    test_starving();
    test_memory();
#endif
    return check_status();
}
