// Rounds of shared state in the master's core, without sockets. Peers are letters, their connections numbers ('a' = 0);
// peers answer CANDIDATE by themselves. What a peer gets is kept as text:
//   LOSS abc       EPOCH(LOSS) with these members
//   PLAN 5 bc<a    revision 5: b and c receive, a gives
//   END 5 tx 10    success at revision 5, 10 bytes came from here
//   NONE(why)      code 9
//   DIFFERS 1-2    its entries, from one of 1 to 2 on
//   EXPELLED(why)
// Votes are words as in test_rounds_election.c, without * (the state machine knows): strategy, revision, mask, content,
// ! for incomplete.
#include "master/core.h"

#include "base/platform.h"
#include "check.h"

enum { PEERS = 26, TEXT = 1000, LIMIT_MS = 1000 };

struct box {
    char text[TEXT];
    bool closed, linking;
    uint32_t attempt;
    uint64_t epoch; // number in force at the peer
    uint64_t round; // of the last plan
};

static struct master_core *m;
static int64_t now;
static struct box boxes[PEERS];
static uint64_t run, generation;
static uint32_t waits_told;

static struct wire_id id_of(char peer) { return (struct wire_id){{(uint8_t)peer, 1, 2, 3}}; }

static struct box *box_of(char peer) { return &boxes[peer - 'a']; }

static void put(struct box *box, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct box *box, const char *format, ...) {
    size_t length = strlen(box->text);
    va_list arguments;
    va_start(arguments, format);
    REQUIRE(length + 1 < TEXT);
    vsnprintf(box->text + length, TEXT - length, format, arguments);
    va_end(arguments);
}

static const char *letters(char out[PEERS + 1], const struct wire_id *ids, uint32_t count) {
    REQUIRE(count <= PEERS);
    for (uint32_t i = 0; i < count; i++) out[i] = (char)ids[i].bytes[0];
    out[count] = 0;
    return out;
}

static void got_epoch(struct box *box, const uint8_t *body, size_t length) {
    static struct wire_member members[WIRE_MAX_MEMBERS];
    struct wire_epoch_commit commit = {.epoch.members = members};
    REQUIRE(wire_decode_epoch_commit(body, length, &commit));
    box->epoch = commit.epoch.number;
    if (commit.reason != WIRE_REASON_LOSS) return;
    put(box, "LOSS ");
    for (uint32_t i = 0; i < commit.epoch.count; i++) put(box, "%c", members[i].id.bytes[0]);
    put(box, "; ");
}

static void got_plan(struct box *box, const uint8_t *body, size_t length) {
    static struct wire_sync_plan plan;
    char receivers[PEERS + 1], donors[PEERS + 1];
    REQUIRE(wire_decode_sync_plan(body, length, &plan));
    box->round = plan.round;
    put(box, "PLAN %llu %s<%s; ", (unsigned long long)plan.revision,
        letters(receivers, plan.receivers, plan.receiver_count), letters(donors, plan.donors, plan.donor_count));
}

static void got_end(struct box *box, const uint8_t *body, size_t length) {
    static struct wire_sync_end end;
    REQUIRE(wire_decode_sync_end(body, length, &end));
    CHECK(end.code == 0 || end.code == 9);
    if (end.code == 0)
        put(box, "END %llu tx %llu; ", (unsigned long long)end.revision, (unsigned long long)end.tx_bytes);
    else
        put(box, "NONE(%.*s); ", (int)end.text.length, end.text.chars);
}

static void got(struct box *box, const struct wire_header *header, const uint8_t *body) {
    struct wire_text text;
    struct wire_candidate candidate;
    static struct wire_member members[WIRE_MAX_MEMBERS];
    switch (header->type) {
    case WIRE_EPOCH: got_epoch(box, body, header->length); return;
    case WIRE_CANDIDATE:
        candidate.epoch.members = members;
        REQUIRE(wire_decode_candidate(body, header->length, &candidate));
        box->linking = true;
        box->attempt = candidate.attempt;
        return;
    case WIRE_SYNC_PLAN: got_plan(box, body, header->length); return;
    case WIRE_SYNC_END: got_end(box, body, header->length); return;
    case WIRE_SYNC_DIFFERS: {
        struct wire_sync_differs differs;
        REQUIRE(wire_decode_sync_differs(body, header->length, &differs));
        put(box, "DIFFERS %llu-%llu; ", (unsigned long long)differs.first, (unsigned long long)differs.last);
        return;
    }
    case WIRE_EXPELLED:
        REQUIRE(wire_decode_text(body, header->length, &text));
        put(box, "EXPELLED(%.*s); ", (int)text.length, text.chars);
        return;
    case WIRE_WAITING: waits_told++; return;
    case WIRE_WELCOME:
        run = header->run;
        generation = header->generation;
        return;
    default: return;
    }
}

static void act(const struct actions *actions) {
    for (size_t i = 0; i < actions->send_count; i++) {
        const struct actions_send *send = &actions->sends[i];
        const uint8_t *frame = actions->bytes.bytes + send->offset;
        struct wire_header header;
        REQUIRE(wire_header_decode(frame, &header));
        CHECK(!boxes[send->conn].closed);
        got(&boxes[send->conn], &header, frame + WIRE_HEADER_BYTES);
    }
    for (size_t i = 0; i < actions->close_count; i++) boxes[actions->closes[i]].closed = true;
}

static void say(char peer, struct wire_buffer *frame) {
    struct wire_header header;
    REQUIRE(wire_header_decode(frame->bytes, &header));
    act(core_message(m, now, (uint32_t)(peer - 'a'), &header, frame->bytes + WIRE_HEADER_BYTES));
    wire_buffer_fini(frame);
}

static struct wire_header head(char peer) {
    return (struct wire_header){.run = run, .generation = generation, .epoch = box_of(peer)->epoch};
}

static void link_all(void) {
    static struct wire_linked linked;
    for (int i = 0; i < PEERS; i++) {
        if (!boxes[i].linking) continue;
        struct wire_buffer out = {0};
        boxes[i].linking = false;
        linked.attempt = boxes[i].attempt;
        wire_encode_linked(&out, head((char)('a' + i)), &linked);
        say((char)('a' + i), &out);
    }
}

static void vote(const char *peers, uint8_t kind) {
    for (; *peers; peers++) {
        struct wire_buffer out = {0};
        struct wire_vote message = {kind};
        wire_encode_vote(&out, head(*peers), &message);
        say(*peers, &out);
    }
    link_all();
}

static void join(const char *peers, uint32_t group) {
    for (; *peers; peers++) {
        struct wire_hello hello = {
            .version = WIRE_VERSION, .id = id_of(*peers), .group = group, .lanes = 2, .port = 48149, .masters = 1};
        struct wire_address address = {.family = 4, .bytes = {10, 0, 0, (uint8_t)*peers}, .port = 999};
        *box_of(*peers) = (struct box){0};
        act(core_peer_connected(m, now, (uint32_t)(*peers - 'a'), &address, &hello));
    }
}

static void die(char peer) {
    *box_of(peer) = (struct box){.closed = true};
    act(core_peer_lost(m, now, (uint32_t)(peer - 'a'), "test"));
}

static struct wire_hash hash_of(char letter) { return (struct wire_hash){(uint64_t)letter, (uint64_t)letter * 5}; }

// The first two entries of all masks are the same; the third tells them apart, and mask 'l' has a fourth one.
static struct wire_outline outline_of(char mask) {
    if (mask == 'l') return (struct wire_outline){4, {1, 2, 'a', 4}};
    return (struct wire_outline){3, {1, 2, (uint32_t)mask}};
}

// "aE5aA" : peer, then its vote.
static void sync_one(const char *word) {
    char peer = *word++, *rest;
    struct wire_sync_vote message = {.strategy = *word == 'E'   ? WIRE_SYNC_ENFORCE_POPULAR
                                                 : *word == 'R' ? WIRE_SYNC_RECEIVE_ONLY
                                                                : WIRE_SYNC_SEND_ONLY};
    message.revision = strtoull(word + 1, &rest, 10);
    message.mask = hash_of(rest[0]);
    message.outline = outline_of(rest[0]);
    message.content = hash_of(rest[1]);
    message.incomplete = rest[2] == '!';
    struct wire_buffer out = {0};
    wire_encode_sync_vote(&out, head(peer), &message);
    say(peer, &out);
}

static void sync(const char *words) {
    for (;;) {
        sync_one(words);
        words = strchr(words, ' ');
        if (words == NULL) return;
        words++;
    }
}

// The receiver reports `bytes` from each of the donors.
static void done_in(char peer, uint64_t round, const char *donors, uint64_t bytes, bool complete) {
    static struct wire_sync_done message;
    message.round = round;
    message.complete = complete;
    message.count = 0;
    for (; *donors; donors++) message.sources[message.count++] = (struct wire_sync_source){id_of(*donors), bytes};
    struct wire_buffer out = {0};
    wire_encode_sync_done(&out, head(peer), &message);
    say(peer, &out);
}

static void done(char peer, const char *donors, uint64_t bytes) {
    done_in(peer, box_of(peer)->round, donors, bytes, true);
}

static void get_at(int line, const char *peers, const char *want) {
    for (; *peers; peers++) {
        char *got_text = box_of(*peers)->text;
        check_report(strcmp(got_text, want) == 0, __FILE__, line, "%c got \"%s\", want \"%s\"", *peers, got_text, want);
        got_text[0] = 0;
    }
}
#define GET(peers, want) get_at(__LINE__, peers, want)

static void get_part_at(int line, const char *peers, const char *part) {
    for (; *peers; peers++) {
        char *got_text = box_of(*peers)->text;
        check_report(strstr(got_text, part) != NULL, __FILE__, line, "%c got \"%s\", want a part \"%s\"", *peers,
                     got_text, part);
        got_text[0] = 0;
    }
}
#define GET_PART(peers, part) get_part_at(__LINE__, peers, part)

static void begin(const char *name, const char *peers) {
    check_case("%s", name);
    uint8_t random[CORE_RANDOM_BYTES];
    for (size_t i = 0; i < sizeof random; i++) random[i] = (uint8_t)(i + 1);
    now = 1000 * SECOND_NS;
    waits_told = 0;
    m = core_new(LIMIT_MS, random, now);
    REQUIRE(m != NULL);
    memset(boxes, 0, sizeof boxes);
    join(peers, 0);
    char first[2] = {peers[0], 0};
    vote(first, WIRE_VOTE_UPDATE);
    for (const char *p = peers; *p; p++) box_of(*p)->text[0] = 0;
}

static void end(void) {
    for (int i = 0; i < PEERS; i++)
        if (!boxes[i].closed)
            check_report(boxes[i].text[0] == 0, __FILE__, __LINE__, "%c also got \"%s\"", 'a' + i, boxes[i].text);
    core_free(m);
    check_case("%s", "");
}

// Time passes; `alive` send heartbeats.
static void pass(int64_t ms, const char *alive) {
    for (int64_t until = now + ms * MS_NS; now < until;) {
        now += 100 * MS_NS;
        for (const char *p = alive; *p; p++) {
            struct wire_buffer out = {0};
            wire_encode_empty(&out, head(*p), WIRE_HEARTBEAT);
            say(*p, &out);
        }
        if (core_next_deadline(m) <= now) act(core_tick(m, now));
    }
}

// The states of members, in order: peer, "-": none, or revision and content, "!" if the master found it to be another.
static void check_states(const char *want) {
    static struct wire_matrix matrix;
    struct wire_buffer out = {0};
    struct wire_header header = {0};
    char text[TEXT] = "";
    now += SECOND_NS; // answers are kept for a moment
    core_describe(m, now, &header, NULL, true, &out);
    REQUIRE(wire_header_decode(out.bytes, &header));
    REQUIRE(wire_decode_matrix(out.bytes + WIRE_HEADER_BYTES, header.length, &matrix));
    for (size_t i = 0; i < matrix.told.member_count; i++) {
        const pcclDiagnosisMember_t *member = &matrix.members[i];
        char *end = text + strlen(text), peer = (char)member->uuid.data[0];
        if (!member->synced)
            snprintf(end, 32, "%c- ", peer);
        else
            snprintf(end, 32, "%c%llu%c%s ", peer, (unsigned long long)member->state_revision,
                     (char)member->state_hash[0], member->state_replaced ? "!" : "");
    }
    check_report(strcmp(text, want) == 0, __FILE__, __LINE__, "states \"%s\", want \"%s\"", text, want);
    wire_buffer_fini(&out);
}

// ---- rounds ----

static void test_states(void) {
    begin("the master tells the state of each member after its last successful sync", "abc");
    check_states("a- b- c- ");
    sync("aE0aA bE0aA cE0aB");
    check_states("a- b- c- ");
    done('c', "a", 30);
    check_states("a0A b0A c0A "); // c had none before
    sync("aE1aC bE1aC cE1aD");
    done('c', "a", 30);
    check_states("a1C b1C c1C! ");
    sync("aE2aE bE2aE cE0aD"); // behind, which is no other content of the same revision
    done('c', "a", 30);
    sync("aS3aF bS3aF cR3aD"); // it asked for this
    done('c', "a", 30);
    check_states("a3F b3F c3F ");
    sync("aE4aG bE4aG cE4aH");
    die('a');
    die('b');
    for (int i = 0; i < PEERS; i++) boxes[i].text[0] = 0;
    check_states("c3F "); // the round has failed
    end();
}

static void test_commit(void) {
    begin("nothing to do: all succeed, and E advances", "abc");
    sync("aE0aA bE0aA");
    GET("abc", "");
    sync("cE0aA");
    GET("abc", "END 0 tx 0; ");
    sync("aE1aB bE1aB cE1aB");
    GET("abc", "END 1 tx 0; ");
    end();

    begin("alone in the group", "a");
    sync("aE7aA");
    GET("a", "END 7 tx 0; ");
    sync("aS8aA");
    GET("a", "END 8 tx 0; ");
    sync("aE8aA");
    GET("a", "END 8 tx 0; "); // a repeat
    sync("aR9aA");
    GET_PART("a", "NONE(");
    end();

    begin("one receives; the bytes are those that it tells of", "abc");
    sync("aE0aA bE0aA cE0aB");
    GET("abc", "PLAN 0 c<ab; ");
    done('c', "a", 30);
    GET("a", "END 0 tx 30; ");
    GET("bc", "END 0 tx 0; ");
    sync("aE1aA bE1aA cE1aA");
    GET("abc", "END 1 tx 0; ");
    end();

    begin("all get success together", "abcd");
    sync("aE0aB bE0aA cE0aA dE0aC");
    GET("abcd", "PLAN 0 ad<bc; ");
    done('a', "bc", 10);
    GET("abcd", "");
    done('d', "c", 5);
    GET("ad", "END 0 tx 0; ");
    GET("b", "END 0 tx 10; ");
    GET("c", "END 0 tx 15; ");
    end();

    begin("receive only neither gives nor counts", "abc");
    sync("aR0aA bS0aA cR0aB");
    GET("abc", "PLAN 0 c<b; ");
    done('c', "b", 1);
    GET("ac", "END 0 tx 0; ");
    GET("b", "END 0 tx 1; ");
    end();

    begin("resume: the highest revision wins, then it goes on from there", "abc");
    sync("bE0aB cE13aA aE0aB");
    GET("abc", "PLAN 13 ab<c; ");
    done('a', "c", 1);
    done('b', "c", 1);
    GET("ab", "END 13 tx 0; ");
    GET("c", "END 13 tx 2; ");
    sync("aE14aA bE14aA cE14aA");
    GET("abc", "END 14 tx 0; ");
    end();
}

static void test_repeat(void) {
    begin("all call again without adding 1, then a newcomer comes", "ab");
    sync("aE0aA bE0aA");
    GET("ab", "END 0 tx 0; ");
    sync("aE1aA bE1aA");
    GET("ab", "END 1 tx 0; ");
    sync("aE1aA bE1aA");
    GET("ab", "END 1 tx 0; ");
    join("c", 0);
    vote("ab", WIRE_VOTE_UPDATE);
    sync("aE1aA bE1aA cE0aB");
    GET("abc", "PLAN 1 c<ab; ");
    done('c', "b", 4);
    GET("ac", "END 1 tx 0; ");
    GET("b", "END 1 tx 4; ");
    sync("aE2aA bE2aA cE2aA");
    GET("abc", "END 2 tx 0; ");
    end();

    begin("a newcomer cannot make a repeat", "a");
    sync("aE4aA");
    GET("a", "END 4 tx 0; ");
    join("b", 0);
    vote("a", WIRE_VOTE_UPDATE);
    sync("bE4aB aE3aA");
    GET_PART("ab", "NONE(no member that may send has a complete state of revision 5)");
    sync("bE4aB aE4aA");
    GET("ab", "PLAN 4 b<a; ");
    done('b', "a", 1);
    GET("b", "END 4 tx 0; ");
    GET("a", "END 4 tx 1; ");
    end();

    begin("all go back: 9, and again with the right revision", "ab");
    sync("aE5aA bE5aA");
    GET("ab", "END 5 tx 0; ");
    sync("aE2aA bE2aA");
    GET_PART("ab", "NONE(");
    sync("aE6aA bE6aA");
    GET("ab", "END 6 tx 0; ");
    end();
}

static void test_expulsions(void) {
    begin("ahead: expelled at once, before the others have voted", "abc");
    sync("aE0aA bE0aA cE0aA");
    GET("abc", "END 0 tx 0; ");
    sync("bE2aA");
    GET_PART("b", "EXPELLED(shared state: it passed revision 2, but its group expects 1)");
    GET("ac", "LOSS ac; ");
    sync("aE1aA cE1aA");
    GET("ac", "END 1 tx 0; ");
    end();

    begin("ahead, nobody at E: 9 for the rest, whose next round may repeat", "abc");
    sync("aE0aA bE0aA cE0aA");
    GET("abc", "END 0 tx 0; ");
    sync("aE0aA bE0aA cE2aA");
    GET_PART("c", "EXPELLED(");
    GET("ab", "LOSS ab; NONE(no member that may send has a complete state of revision 1, and one was expelled for a "
              "later revision); ");
    sync("aE0aA bE0aA");
    GET("ab", "END 0 tx 0; ");
    end();

    begin("the mask: the expelled hears why, the others go on in the same round", "abc");
    sync("aE0aA bE0bA cE0aB");
    GET("b",
        "DIFFERS 2-2; EXPELLED(shared state: its entries (names, order, data types, sizes or flags) differ from those "
        "of its group: it has 3, its group 3; "
        "the first that differs is entry 2, counted from 0); ");
    CHECK(box_of('b')->closed);
    GET("ac", "LOSS ac; PLAN 0 c<a; ");
    done('c', "a", 8);
    GET("a", "END 0 tx 8; ");
    GET("c", "END 0 tx 0; ");
    sync("aE1aA cE1aA");
    GET("ac", "END 1 tx 0; ");
    end();

    begin("the mask: one entry more, and one less than most", "abcd");
    sync("aE0aA bE0lA cE0aA dE0aA");
    GET_PART("b",
             "DIFFERS 3-3; EXPELLED(shared state: its entries (names, order, data types, sizes or flags) differ from "
             "those of its group: it has 4, its group 3; the first that differs is entry 3,");
    GET("acd", "LOSS acd; END 0 tx 0; ");
    sync("aE1lA cE1aA dE1lA");
    GET_PART("c",
             "DIFFERS 3-3; EXPELLED(shared state: its entries (names, order, data types, sizes or flags) differ from "
             "those of its group: it has 3, its group 4; the first that differs is entry 3,");
    GET("ad", "LOSS ad; END 1 tx 0; ");
    end();

    begin("the mask: whose hash is another one, but whose outline is the same, hears no place", "ab");
    struct wire_sync_vote liar = {.mask = hash_of('z'), .content = hash_of('A'), .outline = outline_of('a')};
    struct wire_buffer out = {0};
    sync("aE0aA");
    wire_encode_sync_vote(&out, head('b'), &liar);
    say('b', &out);
    GET("b", "EXPELLED(shared state: its entries (names, order, data types, sizes or flags) differ from those of its "
             "group); ");
    GET("a", "LOSS a; END 0 tx 0; ");
    end();

    begin("the mask: of a long list, the range", "ab");
    struct wire_sync_vote tall = {.mask = hash_of('z'), .content = hash_of('A'), .outline = {.entries = 20000}};
    tall.outline.hashes[1] = 1;
    wire_encode_sync_vote(&out, head('b'), &tall);
    tall.mask = hash_of('a');
    tall.outline.hashes[1] = 0;
    struct wire_buffer first = {0};
    wire_encode_sync_vote(&first, head('a'), &tall);
    say('a', &first);
    say('b', &out);
    GET_PART(
        "b",
        "DIFFERS 64-127; EXPELLED(shared state: its entries (names, order, data types, sizes or flags) differ from "
        "those "
        "of its group: it has 20000, its group 20000; the first that differs is one of entries 64 to 127,");
    GET("a", "LOSS a; END 0 tx 0; ");
    end();

    begin("strategies", "abcd");
    sync("aS0aA bE0aB cR0aB dE0aC");
    GET_PART("a", "EXPELLED(shared state: other members use");
    GET_PART("c", "EXPELLED(shared state: other members use");
    GET("bd", "LOSS bd; PLAN 0 d<b; ");
    done('d', "b", 8);
    GET("b", "END 0 tx 8; ");
    GET("d", "END 0 tx 0; ");
    end();

    begin("send only: minority and below", "abcd");
    sync("aS1aA bS1aA cS1aB dS0aA");
    GET_PART("c", "EXPELLED(shared state: it is send-only, but its content");
    GET_PART("d", "EXPELLED(shared state: it is send-only, but at revision 0 instead of 1)");
    GET("ab", "LOSS ab; END 1 tx 0; ");
    end();

    begin("no candidate: nobody is expelled", "abc");
    sync("aR0aA bR0bA cR0aB");
    GET("abc", "NONE(every member is receive-only, or holds an incomplete copy; let one send its state, or restart one "
               "from a checkpoint); ");
    sync("aR0aA bS0aA cR0aA");
    GET("abc", "END 0 tx 0; ");
    end();

    begin("an incomplete state is no candidate", "ab");
    sync("aE9aA! bE0aB");
    GET("ab", "PLAN 0 a<b; ");
    done('a', "b", 2);
    GET("a", "END 0 tx 0; ");
    GET("b", "END 0 tx 2; ");
    end();
}

// ---- losses ----

static void test_losses(void) {
    begin("a member leaves while votes are collected", "abc");
    sync("aE0aA bE0aA");
    GET("ab", "");
    die('c');
    GET("ab", "LOSS ab; END 0 tx 0; ");
    end();

    begin("one that has voted leaves: its vote is void", "abc");
    sync("aE5aA bE0aB");
    die('a');
    GET("bc", "LOSS bc; ");
    sync("cE0aC");
    GET("bc", "PLAN 0 c<b; ");
    done('c', "b", 1);
    GET("c", "END 0 tx 0; ");
    GET("b", "END 0 tx 1; ");
    end();

    begin("a donor dies, another is left", "abc");
    sync("aE0aA bE0aA cE0aB");
    GET("abc", "PLAN 0 c<ab; ");
    die('a');
    GET("bc", "LOSS bc; ");
    done('c', "ab", 50);
    GET("b", "END 0 tx 50; ");
    GET("c", "END 0 tx 0; ");
    end();

    begin("all donors die: 9 for all that remain, E stays", "abcde");
    sync("aE0aA bE0aA cE0aA dE0aA eE0aA");
    GET("abcde", "END 0 tx 0; ");
    sync("aE1aB bE1aB cE0aA dE0aA eE0aA");
    GET("abcde", "PLAN 1 cde<ab; ");
    done('d', "a", 50);
    die('a');
    GET("bcde", "LOSS bcde; ");
    die('b');
    GET("cde", "LOSS cde; NONE(all members that held the state have left); ");
    done_in('c', box_of('c')->round, "a", 3, true); // was on its way
    GET("cde", "");
    sync("cE1aA dE1aB! eE0aB");
    GET("cde", "PLAN 1 de<c; ");
    done('d', "c", 1);
    done('e', "c", 1);
    GET("de", "END 1 tx 0; ");
    GET("c", "END 1 tx 2; ");
    end();
}

static void test_receivers(void) {
    begin("a receiver dies, another goes on", "abcd");
    sync("aE0aA bE0aB cE0aC dE0aA");
    GET("abcd", "PLAN 0 bc<ad; ");
    die('b');
    GET("acd", "LOSS acd; ");
    done('c', "ad", 2);
    GET("ad", "END 0 tx 2; ");
    GET("c", "END 0 tx 0; ");
    end();

    begin("the only receiver dies: the others have succeeded", "abc");
    sync("aE0aA bE0aB cE0aA");
    GET("abc", "PLAN 0 b<ac; ");
    die('b');
    GET("ac", "LOSS ac; END 0 tx 0; ");
    sync("aE1aA cE1aA");
    GET("ac", "END 1 tx 0; ");
    end();

    begin("the last unfinished receiver dies", "abc");
    sync("aE1aA bE0aB cE0aB");
    GET("abc", "PLAN 1 bc<a; ");
    done('b', "a", 1);
    die('c');
    GET("a", "LOSS ab; END 1 tx 1; ");
    GET("b", "LOSS ab; END 1 tx 0; ");
    end();

    begin("a receiver fails: 9 for all", "abc");
    sync("aE0aA bE0aA cE0aB");
    GET("abc", "PLAN 0 c<ab; ");
    done_in('c', box_of('c')->round, "", 0, false);
    GET("abc", "NONE(peer 63010203 (rank 2, join 3) could not copy the state from any member that holds it); ");
    sync("aE0aA bE0aA cE0aB!");
    GET("abc", "PLAN 0 c<ab; ");
    done('c', "a", 9);
    GET("a", "END 0 tx 9; ");
    GET("bc", "END 0 tx 0; ");
    end();

    begin("an expulsion in the middle of a transfer is a loss like any other", "abcd");
    sync("aE0aA bE0aA cE0aB dE0aB");
    GET("abcd", "PLAN 0 cd<ab; ");
    sync("bE0aA"); // a second vote
    GET_PART("b", "EXPELLED(it sent a vote while its last one was open)");
    GET("acd", "LOSS acd; ");
    done('c', "a", 1);
    done('d', "a", 1);
    GET("a", "END 0 tx 2; ");
    GET("cd", "END 0 tx 0; ");
    end();
}

static void test_memory_of_the_group(void) {
    begin("lost: all that took part have left", "a");
    sync("aE7aA");
    GET("a", "END 7 tx 0; ");
    join("bc", 0);
    vote("a", WIRE_VOTE_UPDATE);
    die('a');
    GET("bc", "LOSS bc; ");
    sync("bE0aA cE0aB");
    GET("bc", "NONE(all members that held the last state (revision 7) have left; to resume from a checkpoint, pass a "
              "revision above 0); ");
    sync("bE0aA cE99aB"); // rule 1 is off
    GET("bc", "PLAN 99 b<c; ");
    done('b', "c", 1);
    GET("b", "END 99 tx 0; ");
    GET("c", "END 99 tx 1; ");
    sync("bE100aB cE100aB");
    GET("bc", "END 100 tx 0; ");
    end();

    begin("lost while votes are collected", "a");
    sync("aE7aA");
    GET("a", "END 7 tx 0; ");
    join("bc", 0);
    vote("a", WIRE_VOTE_UPDATE);
    sync("bE3aA");
    die('a');
    GET("bc", "LOSS bc; ");
    sync("cE0aB");
    GET("bc", "PLAN 3 c<b; ");
    done('c', "b", 1);
    GET("c", "END 3 tx 0; ");
    GET("b", "END 3 tx 1; ");
    end();

    begin("a member that took part only by receiving keeps the group's memory", "a");
    sync("aE7aA");
    GET("a", "END 7 tx 0; ");
    join("b", 0);
    vote("a", WIRE_VOTE_UPDATE);
    sync("aE8aA bE0aB");
    GET("ab", "PLAN 8 b<a; ");
    done('b', "a", 1);
    GET("a", "END 8 tx 1; ");
    GET("b", "END 8 tx 0; ");
    die('a');
    GET("b", "LOSS b; ");
    sync("bE9aA");
    GET("b", "END 9 tx 0; ");
    end();

    begin("an empty group forgets, the run goes on", "a");
    join("x", 5);
    vote("a", WIRE_VOTE_UPDATE);
    sync("xE40aA");
    GET("x", "END 40 tx 0; ");
    die('x');
    GET("a", "LOSS a; ");
    join("y", 5);
    vote("a", WIRE_VOTE_UPDATE);
    sync("yE0aA");
    GET("y", "END 0 tx 0; ");
    end();
}

// ---- independence ----

static void test_groups(void) {
    begin("groups share no rounds, revisions, names or troubles", "ab");
    join("xy", 1);
    vote("ab", WIRE_VOTE_UPDATE);
    sync("aE0aA xE9bX bE0aB");
    GET("ab", "PLAN 0 b<a; ");
    GET("xy", "");
    sync("yE9bX");
    GET("xy", "END 9 tx 0; ");
    sync("xE12bX yE10bX"); // x is ahead
    GET_PART("x", "EXPELLED(");
    GET("y", "LOSS aby; END 10 tx 0; ");
    GET("ab", "LOSS aby; ");
    done('b', "a", 6);
    GET("a", "END 0 tx 6; ");
    GET("b", "END 0 tx 0; ");
    sync("aE1aA bE1aA");
    GET("ab", "END 1 tx 0; ");
    end();

    begin("another group waits in an update meanwhile", "ab");
    join("x", 1);
    vote("ab", WIRE_VOTE_UPDATE);
    join("y", 1);
    vote("x", WIRE_VOTE_UPDATE);
    sync("aE0aA bE0aB");
    GET("ab", "PLAN 0 b<a; ");
    done('b', "a", 6);
    GET("a", "END 0 tx 6; ");
    GET("b", "END 0 tx 0; ");
    vote("ab", WIRE_VOTE_UPDATE);
    sync("xE0aA yE0aA");
    GET("xy", "END 0 tx 0; ");
    end();
}

static void test_done_before_any_epoch(void) {
    begin("SYNC_DONE of a newcomer whose data plane has entered no epoch yet", "abc");
    sync("aE0aA bE0aA cE0aB");
    GET("abc", "PLAN 0 c<ab; ");
    static struct wire_sync_done message = {.complete = WIRE_SYNC_COMPLETE};
    message.round = box_of('c')->round;
    struct wire_buffer out = {0};
    wire_encode_sync_done(&out, (struct wire_header){0}, &message);
    say('c', &out);
    GET("abc", "END 0 tx 0; ");
    end();
}

static void test_violations(void) {
    begin("SYNC_DONE of somebody that receives nothing", "abc");
    sync("aE0aA bE0aA cE0aB");
    GET("abc", "PLAN 0 c<ab; ");
    done('a', "", 0);
    GET_PART("a", "EXPELLED(it sent SYNC_DONE although it had nothing to receive)");
    GET("bc", "LOSS bc; ");
    done_in('c', 77, "", 0, true);
    GET_PART("c", "EXPELLED(it sent a malformed SYNC_DONE)");
    GET("b", "LOSS b; END 0 tx 0; ");
    done_in('b', 1, "", 0, true); // of a round that is over
    GET("b", "");
    end();

    begin("SYNC_DONE twice", "abcd");
    sync("aE0aA bE0aA cE0aB dE0aB");
    GET("abcd", "PLAN 0 cd<ab; ");
    done('c', "a", 1);
    done('c', "a", 1);
    GET_PART("c", "EXPELLED(it sent SYNC_DONE although");
    GET("abd", "LOSS abd; ");
    die('d');
    GET("a", "LOSS ab; END 0 tx 1; ");
    GET("b", "LOSS ab; END 0 tx 0; ");
    end();

    begin("a sync vote beside another vote", "ab");
    vote("a", WIRE_VOTE_PENDING);
    sync("aE0aA");
    GET_PART("a", "EXPELLED(it sent a vote while its last one was open)");
    GET("b", "LOSS b; ");
    end();

    begin("bytes from members that are no donors do not count", "abc");
    sync("aE0aA bE0aB cE0aC");
    GET("abc", "PLAN 0 bc<a; ");
    done('b', "acz", 5);
    done('c', "a", 5);
    GET("a", "END 0 tx 10; ");
    GET("bc", "END 0 tx 0; ");
    end();
}

static void test_waiting(void) {
    begin("who waits for others is told for whom, and again after twice as long", "abc");
    join("x", 1);
    vote("abc", WIRE_VOTE_UPDATE);
    sync("aE0aA bE0aA");
    pass(9000, "abcx");
    CHECK_EQ(waits_told, 0);
    pass(2000, "abcx");
    CHECK_EQ(waits_told, 2); // a and b
    pass(12000, "abcx");
    CHECK_EQ(waits_told, 4);
    sync("cE0aA");
    GET("abc", "END 0 tx 0; ");
    end();

    begin("a long transfer is not a wait", "ab");
    sync("aE0aA bE0aB");
    GET("ab", "PLAN 0 b<a; ");
    pass(15000, "ab");
    CHECK_EQ(waits_told, 0);
    done('b', "a", 1);
    GET("a", "END 0 tx 1; ");
    GET("b", "END 0 tx 0; ");
    end();

    begin("rounds that overlap with another group's are no wait", "ab");
    join("xy", 1);
    vote("ab", WIRE_VOTE_UPDATE);
    for (char step = 0; step < 30; step++) {
        char words[64];
        snprintf(words, sizeof words, "aE%daA", step);
        sync(words);
        if (step > 0) {
            snprintf(words, sizeof words, "yE%daA", step - 1);
            sync(words);
        }
        pass(500, "abxy");
        snprintf(words, sizeof words, "xE%daA", step);
        sync(words);
        snprintf(words, sizeof words, "bE%daA", step);
        sync(words);
        pass(500, "abxy");
        for (const char *p = "abxy"; *p; p++) box_of(*p)->text[0] = 0;
    }
    CHECK_EQ(waits_told, 0);
    end();

    begin("a silent donor is lost after the limit", "abc");
    sync("aE0aA bE0aA cE0aB");
    GET("abc", "PLAN 0 c<ab; ");
    pass(1200, "bc");
    GET_PART("a", "EXPELLED(no heartbeat");
    GET("bc", "LOSS bc; ");
    done('c', "b", 1);
    GET("b", "END 0 tx 1; ");
    GET("c", "END 0 tx 0; ");
    end();
}

// ---- random histories: every round ends, alike for all, and nothing waits for the dead ----

static uint64_t seed;

static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

static bool is_in(const char *text, const char *part) { return strstr(text, part) != NULL; }

// One group of random peers syncs; members die at random points; receivers answer in random order.
static void random_history(void) {
    char peers[] = "abcdefgh";
    peers[2 + below(7)] = 0;
    begin("random history", peers);
    check_case("random history of seed %llu", (unsigned long long)seed);
    uint64_t expected = below(5);
    for (int round = 0; round < 6; round++) {
        for (char *p = peers; *p;) { // in random order of votes, with deaths between
            size_t left = strlen(p), pick = below(left);
            char peer = p[pick];
            p[pick] = *p;
            *p = peer;
            char word[32];
            snprintf(word, sizeof word, "%cE%llua%c%s", peer,
                     (unsigned long long)(below(4) ? expected : expected + 1 - below(3)), (char)('A' + below(2)),
                     below(9) ? "" : "!");
            if (!box_of(peer)->closed) sync(word);
            if (below(12) == 0 && !box_of(peers[0])->closed) die(peers[0]);
            p++;
        }
        for (uint32_t turn = 0; turn < 20; turn++) {
            char peer = peers[below(strlen(peers))];
            struct box *box = box_of(peer);
            if (box->closed || !is_in(box->text, "PLAN") || is_in(box->text, "END") || is_in(box->text, "NONE"))
                continue;
            const char *plan = strstr(box->text, "PLAN"), *stop = strchr(plan, '<'), *mine = strchr(plan + 5, peer);
            if (below(15) == 0)
                die(peer);
            else if (mine != NULL && mine < stop && below(2)) {
                box->text[(size_t)(mine - box->text)] = '-'; // answered
                done_in(peer, box->round, "", 0, below(20) > 0);
            }
        }
        for (char *p = peers; *p; p++) { // those that have not answered yet
            struct box *box = box_of(*p);
            const char *plan = strstr(box->text, "PLAN"), *stop = plan ? strchr(plan, '<') : NULL,
                       *mine = plan ? strchr(plan + 5, *p) : NULL;
            if (!box->closed && plan && mine != NULL && mine < stop && !is_in(box->text, "END") &&
                !is_in(box->text, "NONE"))
                done_in(*p, box->round, "", 0, true);
        }
        int ended = -1;
        uint32_t left = 0;
        for (char *p = peers; *p; p++) {
            struct box *box = box_of(*p);
            if (box->closed) continue;
            bool good = is_in(box->text, "END "), none = is_in(box->text, "NONE");
            CHECK(good != none); // it ended, once
            CHECK(ended == -1 || ended == good);
            ended = good;
            if (good) expected = strtoull(strstr(box->text, "END ") + 4, NULL, 10) + 1;
            box->text[0] = 0;
            peers[left++] = *p;
        }
        peers[left] = 0;
        if (left == 0) break;
    }
    for (int i = 0; i < PEERS; i++) boxes[i].text[0] = 0;
    end();
}

int main(void) {
    test_states();
    test_commit();
    test_repeat();
    test_expulsions();
    test_done_before_any_epoch();
    test_losses();
    test_receivers();
    test_memory_of_the_group();
    test_groups();
    test_violations();
    test_waiting();
    for (uint64_t start = 1; start <= 400; start++) {
        seed = start * 1000;
        random_history();
    }
    return check_status();
}
