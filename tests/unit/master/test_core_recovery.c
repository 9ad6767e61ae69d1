// Masters that find a run which another one has left: who is asked for a promise, which epoch comes of it, and who is
// turned away.
#include "base/platform.h"
#include "mailboxes.h"
#include "master/gather.h"
#include "master/run.h"
#include "pccl.h"

enum { LIMIT_MS = 1000, RUN = 7 };

static struct master_core *m;
static int64_t now;
static char log_text[64 * 1024];

// ---- the harness ----

static void act(const struct actions *actions) {
    post(actions);
    for (size_t i = 0; i < actions->log_count; i++) {
        size_t at = strlen(log_text);
        snprintf(log_text + at, sizeof log_text - at, "%s\n", actions->logs[i].text);
    }
}

static void begin(const char *name) {
    uint8_t random[CORE_RANDOM_BYTES] = {1, 2, 3};
    check_case("%s", name);
    now = 1000 * SECOND_NS;
    m = core_new(LIMIT_MS, random, now);
    REQUIRE(m != NULL);
    log_text[0] = 0;
}

static void end(void) {
    clear_all();
    core_free(m);
}

#define WAITING(peer, part) text_at(__LINE__, peer, WIRE_WAITING, part)

// Its connection is closed, and nothing in what it hears ends it: it tries again.
static void sent_back_at(int line, char peer, const char *part) {
    struct box *box = &boxes[peer - 'a'];
    check_that(box->closed, __FILE__, line, "closed");
    box->closed = false;
    text_at(line, peer, WIRE_WAITING, part);
    box->closed = true;
}
#define SENT_BACK(peer, part) sent_back_at(__LINE__, peer, part)

// Of those that came before they were enough.
static void skip_waiting(const char *peers) {
    for (; *peers; peers++) {
        const struct box *box = &boxes[*peers - 'a'];
        while (box->head < box->tail && box->frames[box->head].header.type == WIRE_WAITING)
            WAITING(*peers, "are needed");
    }
}

static void hand_over(char peer, struct wire_buffer *frame) {
    struct wire_header header;
    CHECK(wire_header_decode(frame->bytes, &header));
    act(core_message(m, now, (uint32_t)(peer - 'a'), &header, frame->bytes + WIRE_HEADER_BYTES));
    wire_buffer_fini(frame);
}

static void say(char peer, struct wire_header header, enum wire_type type) {
    struct wire_buffer out = {0};
    wire_encode_empty(&out, header, type);
    hand_over(peer, &out);
}

static void hello(char peer, uint8_t masters) {
    struct wire_address source = address_of(peer);
    struct wire_hello message = {
        .version = WIRE_VERSION, .id = id_of(peer), .lanes = 1, .port = 48149, .masters = masters};
    clear(&boxes[peer - 'a']);
    act(core_peer_connected(m, now, (uint32_t)(peer - 'a'), &source, &message));
}

// Time passes in small steps; `alive` are heard of all the while.
static void pass(int64_t ms, const char *alive) {
    for (int64_t until = now + ms * MS_NS; now < until;) {
        now += 10 * MS_NS;
        for (const char *p = alive; *p; p++) core_heard(m, now, (uint32_t)(*p - 'a'));
        if (core_next_deadline(m) <= now) act(core_tick(m, now));
        CHECK(core_next_deadline(m) > now);
    }
}

// ---- what survivors say ----

// The numbers of a peer that lacks nothing; 0 stands for these.
enum { GENERATION = 1, NUMBER = 5, VOTES = 3 };

struct says {
    char who;
    const char *members; // of its epoch; NULL: it was never accepted
    uint64_t run, generation, promised, number, votes, round;
    uint8_t kind, vote; // of the last vote of all, UPDATE unless told; its open one
    // lies
    uint64_t join;
    bool stranger; // its own id is another one than those in its epoch
    uint16_t version;
    uint8_t masters; // in its list
    char is;         // whose id it gives, where that connection has another letter
    uint8_t secret;
    struct wire_quorum quorum; // as EPOCH told
    uint32_t entry;            // the hash of the one entry that its state has; 0: none
    uint32_t content;          // of its state
    uint64_t expected;         // the revision that its group expects
    bool unsound;              // its last revision is not the one before
    bool committed;            // took part in a commit
    uint8_t code;              // of the last round
    bool closed;               // the master before could not dial it
};

static uint64_t or_else(uint64_t value, uint64_t usual) { return value != 0 ? value : usual; }

static void resume(const struct says *says) {
    static struct wire_member members[PEERS];
    struct wire_group_size sizes[] = {{0, 1}};
    struct wire_epoch epoch = {.number = or_else(says->number, NUMBER),
                               .latency_us = 1,
                               .megabytes_per_s = 1,
                               .sync_round = says->round,
                               .sync_expected = says->expected,
                               .members = members};
    epoch.group_epoch = epoch.number;
    for (const char *c = says->members; c != NULL && *c; c++)
        members[epoch.count++] = (struct wire_member){.id = id_of(*c),
                                                      .join_number = or_else(says->join, (uint64_t)(*c - 'a' + 1)),
                                                      .lanes = 1,
                                                      .address = address_of(*c)};
    sizes[0].count = epoch.count != 0 ? epoch.count : 1;
    struct wire_resume message = {
        .hello = {.version = (uint16_t)or_else(says->version, WIRE_VERSION),
                  .id = id_of(says->stranger  ? 'w'
                              : says->is != 0 ? says->is
                                              : says->who),
                  .lanes = 1,
                  .port = 48149,
                  .masters = (uint8_t)or_else(says->masters, 1),
                  .reach.closed = says->closed},
        .generation = or_else(says->generation, GENERATION),
        .join_number = (uint64_t)(says->who - 'a' + 1),
        .vote = says->vote,
        .accepted = says->members != NULL,
        .last_vote = {.number = or_else(says->votes, VOTES),
                      .kind = (uint8_t)or_else(says->kind, WIRE_VOTE_UPDATE),
                      .epoch = epoch.number,
                      .count = 1,
                      .sizes = sizes},
        .epoch = epoch,
    };
    struct wire_address source = address_of(says->who);
    struct wire_header header = {.run = or_else(says->run, RUN),
                                 .generation = or_else(says->promised, message.generation)};
    struct wire_buffer out = {0};
    clear(&boxes[says->who - 'a']);
    message.secret[0] = says->secret;
    message.quorum = says->quorum;
    message.sync_revision = says->unsound ? says->expected : says->expected - (says->expected != 0);
    message.sync_committed = says->committed;
    message.sync_code = says->code;
    message.sync_vote.mask.low = says->entry;
    message.sync_vote.content.low = says->content;
    message.sync_vote.outline = (struct wire_outline){says->entry != 0, {says->entry}};
    wire_encode_resume(&out, header, &message);
    CHECK(wire_header_decode(out.bytes, &header));
    act(core_peer_resumed(m, now, (uint32_t)(says->who - 'a'), &source, &header, out.bytes + WIRE_HEADER_BYTES));
    wire_buffer_fini(&out);
}

static void resume_all(const char *peers) {
    for (const char *p = peers; *p; p++) resume(&(struct says){.who = *p, .members = peers});
}

static void asked_at(int line, const char *peers, uint64_t generation) {
    skip_waiting(peers);
    for (; *peers; peers++)
        check_equal((int64_t)take_at(line, *peers, WIRE_GENERATION)->header.generation, (int64_t)generation, __FILE__,
                    line, "generation");
}
#define ASKED(peers, generation) asked_at(__LINE__, peers, generation)

static void promise(const char *peers, uint64_t run, uint64_t generation) {
    for (; *peers; peers++) say(*peers, (struct wire_header){.run = run, .generation = generation}, WIRE_PROMISE);
}

static struct wire_resumed resumed_at(int line, char peer) {
    static struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    static struct wire_loss losses[WIRE_MAX_MEMBERS];
    struct wire_resumed resumed = {.last_vote.sizes = sizes, .losses = losses};
    const struct frame *frame = take_at(line, peer, WIRE_RESUMED);
    check_that(wire_decode_resumed(frame->body, frame->header.length, &resumed), __FILE__, line, "RESUMED decodes");
    return resumed;
}
#define RESUMED(peer) resumed_at(__LINE__, peer)

static const struct wire_epoch_commit *commit_at(int line, char peer) {
    static struct wire_member members[WIRE_MAX_MEMBERS];
    static struct wire_epoch_commit commit;
    const struct frame *frame = take_at(line, peer, WIRE_EPOCH);
    commit = (struct wire_epoch_commit){.epoch.members = members};
    check_that(wire_decode_epoch_commit(frame->body, frame->header.length, &commit), __FILE__, line, "EPOCH decodes");
    return &commit;
}

static void epoch_at(int line, const char *peers, const char *want, uint64_t number, uint8_t reason) {
    for (; *peers; peers++) {
        const struct wire_epoch_commit *commit = commit_at(line, *peers);
        check_equal((int64_t)commit->epoch.number, (int64_t)number, __FILE__, line, "number");
        check_equal(commit->reason, reason, __FILE__, line, "reason");
        char got[PEERS + 1] = {0};
        for (uint32_t i = 0; i < commit->epoch.count && i < PEERS; i++)
            got[i] = (char)commit->epoch.members[i].id.bytes[0];
        check_text(got, want, __FILE__, line, "members");
    }
}
#define EPOCH(peers, number, reason) epoch_at(__LINE__, peers, peers, number, WIRE_REASON_##reason)

// ---- which run, and whose ----

static const struct row {
    const char *name;
    struct says says[6];
    // who is asked; in_time: somebody is absent, so the rest waits for the heartbeat limit
    const char *at_once, *in_time;
    const char *asked_first;  // before there were enough of another run
    uint64_t run, generation; // as they are asked
    const char *members;      // of the epoch
    uint64_t number;
    const char *expelled, *welcome;
    bool lost; // somebody of it is absent
} rows[] = {
    {.name = "all are here",
     .says = {{.who = 'a', .members = "abc"}, {.who = 'b', .members = "abc"}, {.who = 'c', .members = "abc"}},
     .at_once = "abc",
     .generation = 2,
     .members = "abc",
     .number = 6},
    {.name = "two of three",
     .says = {{.who = 'a', .members = "abc"}, {.who = 'b', .members = "abc"}},
     .in_time = "ab",
     .generation = 2,
     .members = "ab",
     .number = 6,
     .lost = true},
    {.name = "one of three", .says = {{.who = 'a', .members = "abc"}}},
    {.name = "half is no majority", .says = {{.who = 'a', .members = "abcd"}, {.who = 'b', .members = "abcd"}}},
    {.name = "three of four",
     .says = {{.who = 'a', .members = "abcd"}, {.who = 'b', .members = "abcd"}, {.who = 'd', .members = "abcd"}},
     .in_time = "abd",
     .generation = 2,
     .members = "abd",
     .number = 6,
     .lost = true},
    {.name = "a run of one",
     .says = {{.who = 'a', .members = "a"}},
     .at_once = "a",
     .generation = 2,
     .members = "a",
     .number = 6},
    {.name = "nobody was ever accepted", .says = {{.who = 'a'}}, .members = "a", .number = 1, .welcome = "a"},
    {.name = "the newest epoch counts, not the largest",
     .says = {{.who = 'a', .members = "ab", .number = 6},
              {.who = 'b', .members = "abc"},
              {.who = 'c', .members = "abc"}},
     .at_once = "abc",
     .generation = 2,
     .members = "ab",
     .number = 7,
     .expelled = "c",
     .lost = true},
    {.name = "one who knows the newest epoch alone makes others wait",
     .says = {{.who = 'a', .members = "ade", .number = 6},
              {.who = 'b', .members = "abc"},
              {.who = 'c', .members = "abc"}}},
    {.name = "a higher generation is newer than a higher number",
     .says = {{.who = 'a', .members = "ab", .generation = 2},
              {.who = 'b', .members = "ab", .generation = 2},
              {.who = 'c', .members = "abc", .number = 9}},
     .at_once = "abc",
     .generation = 3,
     .members = "ab",
     .number = 10,
     .expelled = "c"},
    {.name = "above all that was promised",
     .says = {{.who = 'a', .members = "ab"}, {.who = 'b', .members = "ab", .promised = 8}},
     .at_once = "ab",
     .generation = 9,
     .members = "ab",
     .number = 6},
    {.name = "of two runs the one with a majority",
     .says = {{.who = 'a', .members = "ab", .run = 1},
              {.who = 'c', .members = "cde"},
              {.who = 'd', .members = "cde"},
              {.who = 'e', .members = "cde"}},
     .at_once = "cde",
     .generation = 2,
     .members = "cde",
     .number = 6,
     .expelled = "a"},
    {.name = "of two runs with a majority the one with more",
     .says = {{.who = 'a', .members = "abx"},
              {.who = 'b', .members = "abx"},
              {.who = 'c', .members = "cdefg", .run = 9},
              {.who = 'd', .members = "cdefg", .run = 9},
              {.who = 'e', .members = "cdefg", .run = 9}},
     .asked_first = "ab",
     .in_time = "cde",
     .run = 9,
     .generation = 2,
     .members = "cde",
     .number = 6,
     .expelled = "ab",
     .lost = true},
    {.name = "a tie goes to who came first",
     .says = {{.who = 'a', .members = "abx"},
              {.who = 'b', .members = "abx"},
              {.who = 'c', .members = "cdy", .run = 9},
              {.who = 'd', .members = "cdy", .run = 9}},
     .in_time = "ab",
     .generation = 2,
     .members = "ab",
     .number = 6,
     .expelled = "cd",
     .lost = true},
    {.name = "a newcomer of the run waits anew",
     .says = {{.who = 'a', .members = "ab"}, {.who = 'z'}, {.who = 'b', .members = "ab"}},
     .at_once = "abz",
     .generation = 2,
     .members = "ab",
     .number = 6,
     .welcome = "z"},
    {.name = "a newcomer of another run waits anew",
     .says = {{.who = 'a', .members = "ab"}, {.who = 'z', .run = 3}, {.who = 'b', .members = "ab"}},
     .at_once = "ab",
     .generation = 2,
     .members = "ab",
     .number = 6,
     .welcome = "z"},
    {.name = "newcomers are not enough before those that were members have entered their epoch",
     .says = {{.who = 'c', .members = "abcdefg", .number = 6, .quorum = {.old_members = 2, .newer = 4}},
              {.who = 'd', .members = "abcdefg"},
              {.who = 'e', .members = "abcdefg"},
              {.who = 'f', .members = "abcdefg"},
              {.who = 'g', .members = "abcdefg"}}},
    {.name = "but both together",
     .says = {{.who = 'b', .members = "abcde", .number = 6, .quorum = {.old_members = 2, .newer = 4}},
              {.who = 'c', .members = "abc"},
              {.who = 'd'}},
     .in_time = "bcd",
     .generation = 2,
     .members = "bcd",
     .number = 7,
     .lost = true},
    {.name = "a newcomer in the newest epoch is in",
     .says = {{.who = 'a', .members = "az"}, {.who = 'z'}},
     .at_once = "az",
     .generation = 2,
     .members = "az",
     .number = 6},
};

static void test_claims(void) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        uint64_t run = or_else(row->run, RUN);
        begin(row->name);
        char here[8] = "";
        for (size_t k = 0; k < 6 && row->says[k].who; k++) {
            resume(&row->says[k]);
            here[k] = row->says[k].who;
        }
        const char *asked = row->at_once;
        if (asked == NULL && row->welcome == NULL) {
            skip_waiting(here);
            CHECK(strstr(log_text, "waits for members of a run") != NULL || row->in_time != NULL);
            pass(LIMIT_MS + 50, here);
            asked = row->in_time;
        }
        for (const char *p = row->asked_first ? row->asked_first : ""; *p; p++) {
            skip_waiting(here);
            TAKE(*p, WIRE_GENERATION);
        }
        skip_waiting(here);
        if (asked != NULL) {
            ASKED(asked, row->generation);
            CHECK(quiet(here));
            promise(asked, run, row->generation);
        }
        for (const char *p = row->welcome ? row->welcome : ""; *p; p++) TAKE(*p, WIRE_WELCOME);
        for (const char *p = row->expelled ? row->expelled : ""; *p; p++) EXPELLED(*p, "run");
        for (const char *p = row->members && asked ? row->members : ""; *p; p++) RESUMED(*p);
        uint8_t reason = asked == NULL ? WIRE_REASON_UPDATE : row->lost ? WIRE_REASON_LOSS : WIRE_REASON_RELINK;
        if (row->members) epoch_at(__LINE__, row->members, row->members, row->number, reason);
        CHECK_EQ(core_epoch(m), row->members ? row->number : 0);
        end();
    }
}

// ---- what is no RESUME ----

static void test_lies(void) {
    static const struct {
        const char *name, *text;
        struct says says;
    } lies[] = {
        {"no member of its own epoch", "malformed", {.who = 'a', .members = "abc", .stranger = true}},
        {"an epoch of a generation that it has not promised",
         "malformed",
         {.who = 'a', .members = "abc", .generation = 3, .promised = 2}},
        {"an absurd number of votes", "malformed", {.who = 'a', .members = "abc", .votes = UINT64_MAX}},
        {"an absurd generation", "malformed", {.who = 'a', .members = "abc", .promised = UINT64_MAX}},
        {"the last generation", "malformed", {.who = 'a', .members = "abc", .promised = UINT32_MAX}},
        {"an absurd epoch", "malformed", {.who = 'a', .members = "abc", .number = UINT64_MAX}},
        {"an absurd join number", "malformed", {.who = 'a', .members = "abc", .join = UINT64_MAX}},
        {"a round of a later generation", "malformed", {.who = 'a', .members = "abc", .round = UINT64_C(5) << 32}},
        {"a revision that does not follow the last commit",
         "malformed",
         {.who = 'a', .members = "abc", .round = 5, .expected = (UINT64_C(1) << 43) + 2, .unsound = true}},
        {"a code that no round has", "malformed", {.who = 'a', .members = "abc", .round = 5, .code = 200}},
        {"another version", "version", {.who = 'a', .members = "abc", .version = WIRE_VERSION + 1}},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        begin(lies[i].name);
        resume(&lies[i].says);
        REFUSED('a', lies[i].text);
        resume_all("bcd"); // nobody else suffers
        skip_waiting("bcd");
        ASKED("bcd", 2);
        end();
    }

    begin("any bytes");
    for (uint32_t length = 0; length < 400; length += 7) {
        uint8_t bytes[400];
        uint64_t seed = length;
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)check_random(&seed);
        bytes[0] = WIRE_VERSION;
        bytes[1] = 0;
        struct wire_address source = address_of('a');
        struct wire_header header = {.length = length, .type = WIRE_RESUME, .run = RUN, .generation = 1};
        clear(&boxes[0]);
        act(core_peer_resumed(m, now, 0, &source, &header, bytes));
        REFUSED('a', "malformed");
    }
    end();

    begin("a run that is another's, told by a member: nobody else is of it");
    resume(&(struct says){.who = 'a', .members = "abc", .run = 99});
    WAITING('a', "1 of the 3 members");
    resume(&(struct says){.who = 'b', .members = "abc"});
    WAITING('b', "1 of the 3 members");
    resume(&(struct says){.who = 'c', .members = "abc"});
    pass(LIMIT_MS + 50, "abc");
    ASKED("bc", 2);
    promise("bc", RUN, 2);
    RESUMED('b');
    RESUMED('c');
    EPOCH("bc", 6, LOSS);
    EXPELLED('a', "another run");
    end();

    begin("an epoch of strangers: it waits for them, until the liar has gone");
    resume_all("ab");
    skip_waiting("ab");
    ASKED("ab", 2);
    resume(&(struct says){.who = 'c', .members = "cxyz", .number = 50});
    promise("ab", RUN, 2);
    CHECK_EQ(core_epoch(m), 0);
    pass(50, "abc");
    WAITING('b', "1 of the 4 members of epoch 50");
    WAITING('c', "3 are needed");
    act(core_peer_lost(m, now, 'c' - 'a', "test"));
    RESUMED('a');
    RESUMED('b');
    EPOCH("ab", 6, RELINK);
    end();

    begin("twice: the second one is not heard, the first one stays");
    resume(&(struct says){.who = 'a', .members = "ab"});
    WAITING('a', "1 of the 2");
    struct says again = {.who = 'z', .members = "ab"};
    resume(&again); // z says that it is z, but is in no epoch
    REFUSED('z', "malformed");
    end();
}

static void test_duplicates(void) {
    begin("a second RESUME of the same id");
    resume(&(struct says){.who = 'a', .members = "aw", .stranger = true});
    WAITING('a', "1 of the 2");
    resume(&(struct says){.who = 'b', .members = "aw", .stranger = true});
    WAITING('b', "1 of the 2");
    CHECK(boxes[0].closed); // it has left that connection
    end();

    begin("the same peer over a new connection, once the old one is gone");
    resume(&(struct says){.who = 'a', .members = "ab"});
    WAITING('a', "1 of the 2");
    act(core_peer_lost(m, now, 0, "test"));
    resume_all("ab");
    skip_waiting("ab");
    ASKED("ab", 2);
    end();
}

// ---- promises ----

static void test_promises(void) {
    begin("whoever does not promise holds it up until it is gone");
    resume_all("abc");
    ASKED("abc", 2);
    promise("ab", RUN, 2);
    CHECK_EQ(core_epoch(m), 0);
    act(core_peer_lost(m, now, 'c' - 'a', "test"));
    CHECK_EQ(core_epoch(m), 0); // c may come again within the limit
    pass(LIMIT_MS + 50, "ab");
    RESUMED('a');
    RESUMED('b');
    EPOCH("ab", 6, LOSS);
    end();

    begin("promises of other generations and runs do not count");
    resume_all("ab");
    ASKED("ab", 2);
    promise("a", RUN, 1);
    promise("a", RUN, 3);
    promise("a", RUN + 1, 2);
    promise("b", RUN, 2);
    CHECK_EQ(core_epoch(m), 0);
    promise("a", RUN, 2);
    RESUMED('a');
    RESUMED('b');
    EPOCH("ab", 6, RELINK);
    end();

    begin("another master was at work meanwhile: all are asked again, above it");
    resume(&(struct says){.who = 'a', .members = "abc"});
    resume(&(struct says){.who = 'b', .members = "abc"});
    WAITING('a', "1 of the 3");
    pass(LIMIT_MS + 50, "ab");
    ASKED("ab", 2);
    promise("a", RUN, 2);
    resume(&(struct says){.who = 'c', .members = "abc", .promised = 4});
    ASKED("abc", 5);
    promise("abc", RUN, 5);
    for (const char *p = "abc"; *p; p++) RESUMED(*p);
    EPOCH("abc", 6, RELINK);
    end();

    begin("this master has served the run, to members that are gone: all are asked above that");
    resume_all("ab");
    ASKED("ab", 2);
    promise("ab", RUN, 2);
    for (const char *p = "ab"; *p; p++) RESUMED(*p);
    EPOCH("ab", 6, RELINK);
    say('a', (struct wire_header){.run = RUN, .generation = 2, .epoch = 6}, WIRE_LEAVE);
    epoch_at(__LINE__, "b", "b", 7, WIRE_REASON_LOSS);
    say('b', (struct wire_header){.run = RUN, .generation = 2, .epoch = 7}, WIRE_LEAVE);
    CHECK_EQ(core_peer_count(m), 0);
    resume_all("cd");
    ASKED("cd", 3);
    promise("cd", RUN, 3);
    for (const char *p = "cd"; *p; p++) RESUMED(*p);
    EPOCH("cd", 6, RELINK);
    end();

    begin("a member that leaves while it waits is not waited for");
    resume_all("ab");
    ASKED("ab", 2);
    say('a', (struct wire_header){.run = RUN, .generation = 1}, WIRE_LEAVE);
    CHECK(boxes[0].closed);
    WAITING('b', "1 of the 2");
    end();
}

// ---- what ended for some ----

// A member that was asked promises that, whatever has become of the run at this master meanwhile.
static void test_turns(void) {
    begin("another run has its turn, and the first one again: nobody is asked for what it may have promised");
    resume(&(struct says){.who = 'a', .members = "a"});
    ASKED("a", 2);
    resume(&(struct says){.who = 'b', .members = "bcx", .run = 3});
    resume(&(struct says){.who = 'c', .members = "bcx", .run = 3});
    ASKED("bc", 2);
    promise("a", RUN, 2);
    act(core_peer_lost(m, now, 'b' - 'a', "test"));
    ASKED("a", 3);
    promise("a", RUN, 3);
    RESUMED('a');
    EPOCH("a", 6, RELINK);
    EXPELLED('c', "another run");
    end();
}

static void test_ends(void) {
    static const struct {
        const char *name;
        struct says b; // a has passed vote VOTES
        bool vote_ended, sync_ended, expelled;
    } ends[] = {
        {"nothing was open", {.who = 'b', .members = "ab"}, false, false, false},
        {"the vote has ended for one",
         {.who = 'b', .members = "ab", .votes = VOTES - 1, .vote = WIRE_VOTE_UPDATE},
         true,
         false,
         false},
        {"of another kind",
         {.who = 'b', .members = "ab", .votes = VOTES - 1, .vote = WIRE_VOTE_PENDING},
         false,
         false,
         true},
        {"without its vote", {.who = 'b', .members = "ab", .votes = VOTES - 1}, false, false, true},
        {"two votes behind",
         {.who = 'b', .members = "ab", .votes = VOTES - 2, .vote = WIRE_VOTE_UPDATE},
         false,
         false,
         true},
        {"the next vote is open", {.who = 'b', .members = "ab", .vote = WIRE_VOTE_PENDING}, false, false, false},
        {"the round has ended for one", {.who = 'b', .members = "ab", .vote = WIRE_VOTE_SYNC}, false, true, false},
        {"the next round is open",
         {.who = 'b', .members = "ab", .vote = WIRE_VOTE_SYNC, .round = 4},
         false,
         false,
         false},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        begin(ends[i].name);
        resume(&(struct says){.who = 'a', .members = "ab", .round = 4});
        resume(&ends[i].b);
        WAITING('a', "1 of the 2");
        ASKED("ab", 2);
        promise("ab", RUN, 2);
        struct wire_resumed a = RESUMED('a');
        CHECK(!a.vote_ended && !a.sync_ended);
        if (ends[i].expelled) {
            EXPELLED('b', "contradicts");
            epoch_at(__LINE__, "a", "ab", 6, WIRE_REASON_RELINK);
            epoch_at(__LINE__, "a", "a", 7, WIRE_REASON_LOSS);
        } else {
            struct wire_resumed b = RESUMED('b');
            CHECK_EQ(b.vote_ended, ends[i].vote_ended);
            CHECK_EQ(b.sync_ended, ends[i].sync_ended);
            CHECK_EQ(b.last_vote.number, VOTES);
            EPOCH("ab", 6, RELINK);
        }
        end();
    }
}

// Votes that a member tells of, and that no master has ended.
static void test_false_ends(void) {
    for (uint64_t beyond = 1; beyond < 1000; beyond *= 30)
        for (const char *liar = "abc"; *liar; liar++) {
            char honest[3] = "", *next = honest;
            begin("a vote that never was: its teller goes, whoever it is");
            for (const char *p = "abc"; *p; p++) {
                resume(&(struct says){.who = *p, .members = "abc", .votes = *p == *liar ? VOTES + beyond : VOTES});
                if (*p != *liar) *next++ = *p;
            }
            WAITING('a', "1 of the 3");
            ASKED("abc", 2);
            promise("abc", RUN, 2);
            for (const char *p = honest; *p; p++) {
                struct wire_resumed told = RESUMED(*p);
                CHECK(!told.vote_ended && told.last_vote.number == VOTES);
            }
            EXPELLED(*liar, "contradicts");
            epoch_at(__LINE__, honest, "abc", 6, WIRE_REASON_RELINK);
            epoch_at(__LINE__, honest, honest, 7, WIRE_REASON_LOSS);
            end();
        }
}

// Checks what EPOCH tells of the last round of shared state, and of the revision that is expected.
static void expects_at(int line, const char *peers, uint64_t round, uint64_t expected) {
    for (; *peers; peers++) {
        const struct wire_epoch_commit *told = commit_at(line, *peers);
        check_equal((int64_t)told->epoch.sync_round, (int64_t)round, __FILE__, line, "round");
        check_equal((int64_t)told->epoch.sync_expected, (int64_t)expected, __FILE__, line, "expected");
    }
}
#define EXPECTS(peers, round, expected) expects_at(__LINE__, peers, round, expected)

// The end of a round of shared state that a member tells of, and that no master has told.
static void test_false_rounds(void) {
    static const struct {
        const char *name;
        uint64_t round, expected; // as the liar tells; the others: round 5, revision 4 expected
    } lies[] = {{"another revision of the last round", 5, UINT64_C(1) << 43}, {"a round that never was", 6, 9}};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++)
        for (const char *liar = "abc"; *liar; liar++) {
            begin(lies[i].name);
            for (const char *p = "abc"; *p; p++)
                resume(&(struct says){.who = *p,
                                      .members = "abc",
                                      .round = *p == *liar ? lies[i].round : 5,
                                      .expected = *p == *liar ? lies[i].expected : 4});
            WAITING('a', "1 of the 3");
            ASKED("abc", 2);
            promise("abc", RUN, 2);
            for (const char *p = "abc"; *p; p++) CHECK(!RESUMED(*p).sync_ended);
            EXPECTS("abc", 5, 4);
            end();
        }
}

// Five members, of whom some wait in a sync whose end others may have heard.
static void test_lies_to_waiting_members(void) {
    enum { FAILED = pcclNoSharedStateAvailable };
    static const uint64_t absurd = UINT64_C(1) << 43;
    static const struct {
        const char *name, *waits; // after round 5, with revision 4 expected; the others have heard of round 6, with 5
        char liar;                // who tells of round 6
        uint64_t its;             // revision that is expected
        uint8_t code;
        uint64_t round, expected; // that the master believes
    } told_ends[] = {
        {"all wait; a revision that nobody has", "abcd", 'e', absurd, 0, 5, 4},
        {"all wait; no commit at all", "abcd", 'e', 0, FAILED, 5, 4},
        {"the first of the ring lies to those that wait", "de", 'a', absurd, 0, 6, 5},
        {"the round failed, says the first of the ring", "de", 'a', 5, FAILED, 6, 5},
    };
    for (size_t i = 0; i < sizeof told_ends / sizeof told_ends[0]; i++) {
        begin(told_ends[i].name);
        for (const char *p = "abcde"; *p; p++) {
            bool waits = strchr(told_ends[i].waits, *p) != NULL, lies = *p == told_ends[i].liar;
            resume(&(struct says){.who = *p,
                                  .members = "abcde",
                                  .round = waits ? 5 : 6,
                                  .expected = lies    ? told_ends[i].its
                                              : waits ? 4
                                                      : 5,
                                  .committed = !lies || told_ends[i].its != 0,
                                  .code = lies ? told_ends[i].code : pcclSuccess,
                                  .vote = waits ? WIRE_VOTE_SYNC : 0});
        }
        skip_waiting("abcde");
        ASKED("abcde", 2);
        promise("abcde", RUN, 2);
        for (const char *p = "abcde"; *p; p++) {
            struct wire_resumed told = RESUMED(*p);
            CHECK_EQ(told.sync_ended, strchr(told_ends[i].waits, *p) != NULL && told_ends[i].round == 6);
            if (told.sync_ended) CHECK(told.sync.code == pcclSuccess && told.sync.revision == 4);
        }
        EXPECTS("abcde", told_ends[i].round, told_ends[i].expected);
        end();
    }
}

static void test_election(void) {
    begin("the votes of a round come with RESUME, and with them all that the election needs");
    for (const char *p = "abc"; *p; p++)
        resume(&(struct says){.who = *p, .members = "abc", .vote = WIRE_VOTE_SYNC, .entry = *p == 'b' ? 8 : 7});
    WAITING('a', "1 of the 3");
    ASKED("abc", 2);
    promise("abc", RUN, 2);
    for (const char *p = "abc"; *p; p++) RESUMED(*p);
    epoch_at(__LINE__, "abc", "abc", 6, WIRE_REASON_RELINK);
    struct wire_sync_differs differs = {9, 9};
    const struct frame *frame = TAKE('b', WIRE_SYNC_DIFFERS);
    CHECK(wire_decode_sync_differs(frame->body, frame->header.length, &differs));
    CHECK(differs.first == 0 && differs.last == 0);
    EXPELLED('b', "the first that differs is entry 0");
    epoch_at(__LINE__, "ac", "ac", 7, WIRE_REASON_LOSS);
    TAKE('a', WIRE_SYNC_END);
    TAKE('c', WIRE_SYNC_END);
    end();

    begin("who receives may say so before its data plane has heard of this master: the round tells");
    for (const char *p = "abc"; *p; p++)
        resume(&(struct says){.who = *p, .members = "abc", .vote = WIRE_VOTE_SYNC, .content = *p == 'c' ? 8 : 7});
    WAITING('a', "1 of the 3");
    ASKED("abc", 2);
    promise("abc", RUN, 2);
    for (const char *p = "abc"; *p; p++) RESUMED(*p);
    epoch_at(__LINE__, "abc", "abc", 6, WIRE_REASON_RELINK);
    for (const char *p = "abc"; *p; p++) TAKE(*p, WIRE_SYNC_PLAN);
    static const struct wire_sync_done done = {.round = (UINT64_C(2) << 32) + 1, .complete = WIRE_SYNC_COMPLETE};
    static const struct wire_header heads[] = {{.run = RUN + 1, .generation = 2},
                                               {.run = RUN, .generation = 3},
                                               {.run = RUN, .generation = 1, .epoch = NUMBER}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct wire_buffer out = {0};
        CHECK(quiet("abc"));
        wire_encode_sync_done(&out, heads[i], &done);
        hand_over('c', &out);
    }
    for (const char *p = "abc"; *p; p++) TAKE(*p, WIRE_SYNC_END);
    end();
}

// ---- a master that has a run ----

static void test_too_late(void) {
    begin("the run went on without it; another run, when this one was taken up");
    resume_all("abc");
    WAITING('a', "1 of the 3");
    ASKED("abc", 2);
    promise("abc", RUN, 2);
    for (const char *p = "abc"; *p; p++) RESUMED(*p);
    EPOCH("abc", 6, RELINK);
    resume(&(struct says){.who = 'd', .members = "abcd"});
    EXPELLED('d', "continued without");
    resume(&(struct says){.who = 'e', .members = "e", .run = 3});
    EXPELLED('e', "another run");
    resume(&(struct says){.who = 'f', .run = 3});
    TAKE('f', WIRE_WELCOME);
    end();

    begin("a newcomer stays closed, as the master before told it");
    resume_all("a");
    ASKED("a", 2);
    promise("a", RUN, 2);
    RESUMED('a');
    EPOCH("a", 6, RELINK);
    resume(&(struct says){.who = 'f', .closed = true});
    resume(&(struct says){.who = 'g'});
    for (const char *p = "fg"; *p; p++) {
        struct wire_welcome welcome = {0};
        const struct frame *frame = TAKE(*p, WIRE_WELCOME);
        CHECK(wire_decode_welcome(frame->body, frame->header.length, &welcome));
        CHECK_EQ(welcome.closed, *p == 'f');
    }
    end();
}

static void found_young(const char *name) {
    begin(name);
    hello('x', 1);
    TAKE('x', WIRE_WELCOME);
    epoch_at(__LINE__, "x", "x", 1, WIRE_REASON_UPDATE);
    hello('y', 1);
    TAKE('y', WIRE_WELCOME);
}

static void test_young(void) {
    found_young("an older run takes the place of a young one");
    resume(&(struct says){.who = 'a', .members = "abc"});
    WAITING('a', "1 of the 3");
    CHECK(!boxes['x' - 'a'].closed && !boxes['y' - 'a'].closed);
    resume(&(struct says){.who = 'b', .members = "abc"});
    EXPELLED('x', "older run");
    CHECK(boxes['y' - 'a'].closed && quiet("y")); // it looks for a master by itself
    resume(&(struct says){.who = 'c', .members = "abc"});
    ASKED("abc", 2);
    promise("abc", RUN, 2);
    for (const char *p = "abc"; *p; p++) RESUMED(*p);
    EPOCH("abc", 6, RELINK);
    end();

    found_young("also when a survivor is late for its own majority");
    resume(&(struct says){.who = 'a', .members = "abc"});
    resume(&(struct says){.who = 'b', .members = "abc"});
    WAITING('a', "1 of the 3");
    EXPELLED('x', "older run");
    pass(LIMIT_MS + 50, "ab");
    ASKED("ab", 2);
    promise("ab", RUN, 2);
    RESUMED('a');
    RESUMED('b');
    EPOCH("ab", 6, LOSS);
    end();

    found_young("half of an older run has to go when the young one is no longer young");
    resume(&(struct says){.who = 'a', .members = "ab"});
    resume(&(struct says){.who = 'z', .run = RUN}); // a newcomer of the older run
    WAITING('a', "1 of the 2");
    WAITING('z', "in a new run");
    pass(RUN_YOUNG_MS - 100, "axyz");
    CHECK(quiet("xy"));
    CHECK(!boxes[0].closed);
    pass(150, "axyz");
    EXPELLED('a', "another run");
    TAKE('z', WIRE_WELCOME);
    resume(&(struct says){.who = 'b', .members = "ab"});
    EXPELLED('b', "another run");
    WAITING('y', "1 of 1 members has not called update_topology");
    CHECK_EQ(core_peer_count(m), 3);
    end();

    found_young("a survivor that falls silent does not count");
    resume(&(struct says){.who = 'a', .members = "abc"});
    WAITING('a', "1 of the 3");
    pass(LIMIT_MS + 50, "xy");
    SENT_BACK('a', "heard nothing");
    resume(&(struct says){.who = 'b', .members = "abc"});
    WAITING('b', "1 of the 3");
    CHECK(quiet("xy"));
    end();

    found_young("newcomers of an older run wait for a member of it, a heartbeat limit and no longer");
    resume(&(struct says){.who = 'z', .run = RUN});
    pass(LIMIT_MS - 50, "xyz");
    CHECK(quiet("xz") && !boxes['z' - 'a'].closed);
    pass(100, "xyz");
    TAKE('z', WIRE_WELCOME);
    end();

    found_young("one comes in time: it waits with them");
    resume(&(struct says){.who = 'z', .run = RUN});
    pass(LIMIT_MS - 50, "xyz");
    resume(&(struct says){.who = 'a', .members = "az"});
    ASKED("az", 2);
    EXPELLED('x', "older run");
    end();

    found_young("the young run ends by itself while somebody waits");
    resume(&(struct says){.who = 'a', .members = "abc"});
    WAITING('a', "1 of the 3");
    act(core_peer_lost(m, now, 'y' - 'a', "test"));
    act(core_peer_lost(m, now, 'x' - 'a', "test"));
    resume(&(struct says){.who = 'b', .members = "abc"});
    resume(&(struct says){.who = 'c', .members = "abc"});
    ASKED("abc", 2);
    end();
}

// ---- newcomers at a master without a run ----

static void test_newcomers(void) {
    begin("a newcomer waits as long as a minority does, and both hear why");
    core_configure(m, &(struct core_settings){.survivors_until_ns = now + 100 * MS_NS});
    resume(&(struct says){.who = 'a', .members = "abc"});
    hello('x', 1);
    CHECK(quiet("ax"));
    pass(150, "ax");
    WAITING('a', "1 of the 3 members of epoch 5 are here, 2 are needed; 1 newcomers wait with them");
    WAITING('x', "1 of the 3");
    pass(9900, "ax");
    CHECK(quiet("ax"));
    pass(400, "ax");
    WAITING('a', "1 of the 3"); // again
    WAITING('x', "1 of the 3");
    act(core_peer_lost(m, now, 0, "its limit has passed"));
    TAKE('x', WIRE_WELCOME);
    epoch_at(__LINE__, "x", "x", 1, WIRE_REASON_UPDATE);
    CHECK(strstr(log_text, "newcomers begin a new run") != NULL);
    end();

    begin("a newcomer waits for those that may come, and not longer");
    core_configure(m, &(struct core_settings){.survivors_until_ns = now + 100 * MS_NS});
    hello('x', 1);
    pass(90, "");
    CHECK(quiet("x"));
    pass(20, "");
    TAKE('x', WIRE_WELCOME);
    epoch_at(__LINE__, "x", "x", 1, WIRE_REASON_UPDATE);
    end();

    begin("a newcomer is let in where the run goes on");
    core_configure(m, &(struct core_settings){.survivors_until_ns = now + 100 * MS_NS});
    hello('x', 1);
    resume_all("ab");
    ASKED("ab", 2);
    promise("ab", RUN, 2);
    RESUMED('a');
    RESUMED('b');
    EPOCH("ab", 6, RELINK);
    TAKE('x', WIRE_WELCOME);
    end();

    begin("newcomers that wait for what the other masters say begin a run with their answer");
    core_await_others(m);
    hello('x', 1);
    CHECK(quiet("x"));
    act(core_others_are(m, now, WIRE_IDLE));
    TAKE('x', WIRE_WELCOME);
    TAKE('x', WIRE_EPOCH);
    end();

    begin("they are refused when another one serves a run");
    core_await_others(m);
    hello('x', 1);
    CHECK(quiet("x"));
    act(core_others_are(m, now, WIRE_SERVES));
    REFUSED('x', "another master of the list has the run");
    end();

    begin("another master serves a run, and those that wait here are too few for theirs");
    resume(&(struct says){'a', .members = "abc"});
    WAITING('a', "1 of the 3");
    hello('x', 2);
    WAITING('x', "1 of the 3");
    CHECK_EQ(core_activity(m), WIRE_GATHERS);
    act(core_others_are(m, now, WIRE_SERVES));
    CHECK(boxes['a' - 'a'].closed);
    REFUSED('x', "another master of the list has the run");
    CHECK_EQ(core_activity(m), WIRE_IDLE);
    end();

    begin("they are enough");
    resume(&(struct says){'a', .members = "abc"});
    WAITING('a', "1 of the 3");
    resume(&(struct says){'b', .members = "abc"});
    ASKED("ab", 2);
    act(core_others_are(m, now, WIRE_SERVES));
    CHECK(quiet("ab") && !boxes['a' - 'a'].closed);
    end();

    begin("a standby begins no run, and takes one up");
    core_configure(m, &(struct core_settings){.standby = true});
    hello('x', 1);
    REFUSED('x', "standby");
    resume_all("ab");
    WAITING('a', "1 of the 2");
    ASKED("ab", 2);
    end();
}

// ---- a master that is left ----

static void form(const char *peers, uint8_t masters) {
    for (const char *p = peers; *p; p++) resume(&(struct says){.who = *p, .members = peers, .masters = masters});
    skip_waiting(peers);
    ASKED(peers, 2);
    promise(peers, RUN, 2);
    for (const char *p = peers; *p; p++) RESUMED(*p);
    epoch_at(__LINE__, peers, peers, 6, WIRE_REASON_RELINK);
}

#define ALL_TOLD(peer) (commit_at(__LINE__, peer)->quorum)
#define QUORUM_TOLD(peer) (ALL_TOLD(peer).members)

static void test_left(void) {
    begin("where there is one master alone, peers that look for another are lost like others");
    form("abc", 1);
    struct wire_header header = {.run = RUN, .generation = 2, .epoch = 6};
    say('a', header, WIRE_MOVED);
    epoch_at(__LINE__, "bc", "bc", 7, WIRE_REASON_LOSS);
    say('b', header, WIRE_MOVED);
    epoch_at(__LINE__, "c", "c", 8, WIRE_REASON_LOSS);
    end();

    begin("more than half of those that know others have left: it gives the run up");
    form("abc", 2);
    say('a', header, WIRE_MOVED);
    epoch_at(__LINE__, "bc", "bc", 7, WIRE_REASON_LOSS);
    header.epoch = 7;
    say('b', header, WIRE_MOVED);
    CHECK(quiet("abc") && boxes[2].closed);
    CHECK_EQ(core_peer_count(m), 0);
    CHECK_EQ(core_activity(m), WIRE_IDLE);
    end();

    begin("half of them is no majority anywhere");
    form("ab", 2);
    header.epoch = 6;
    for (const char *p = "ab"; *p; p++) say(*p, header, WIRE_HEARTBEAT);
    EPOCH("ab", 7, RELINK); // the generation is sure
    say('a', header, WIRE_MOVED);
    epoch_at(__LINE__, "b", "b", 8, WIRE_REASON_LOSS);
    end();

    begin("three heartbeat limits later it is another loss");
    form("abc", 2);
    say('a', header, WIRE_MOVED);
    epoch_at(__LINE__, "bc", "bc", 7, WIRE_REASON_LOSS);
    header.epoch = 7;
    for (const char *p = "bc"; *p; p++) say(*p, header, WIRE_HEARTBEAT);
    EPOCH("bc", 8, RELINK); // nobody can go on without one of them
    pass(3 * LIMIT_MS + 50, "bc");
    say('b', header, WIRE_MOVED);
    epoch_at(__LINE__, "c", "c", 9, WIRE_REASON_LOSS);
    end();

    begin("what is left after losses of some that may live is no run of its own, if all of those and others are more "
          "than half");
    form("abcde", 2);
    header.epoch = 6;
    say('a', header, WIRE_MOVED);
    CHECK_EQ(QUORUM_TOLD('d'), 3);
    say('b', header, WIRE_MOVED);
    CHECK_EQ(QUORUM_TOLD('d'), 3);
    say('c', header, WIRE_MOVED);
    CHECK(boxes[3].closed && boxes[4].closed);
    for (const char *p = "de"; *p; p++)
        resume(&(struct says){
            .who = *p, .members = "cde", .number = 8, .generation = 2, .quorum.members = 3, .masters = 2});
    pass(LIMIT_MS + 100, "de");
    WAITING('d', "2 of the 3 members of epoch 8 are here, 3 are needed");
    WAITING('e', "2 of the 3");
    CHECK(quiet("de"));
    clear(&boxes[1]);
    clear(&boxes[2]);
    end();

    begin("once so many have entered it that the others are none, it is sure");
    form("abcde", 2);
    say('a', header, WIRE_MOVED);
    CHECK_EQ(QUORUM_TOLD('d'), 3);
    clear(&boxes[1]);
    clear(&boxes[2]);
    clear(&boxes[4]);
    header.epoch = 7;
    for (const char *p = "bcd"; *p; p++) {
        CHECK(quiet("bcde"));
        say(*p, header, WIRE_HEARTBEAT);
    }
    epoch_at(__LINE__, "bce", "bcde", 8, WIRE_REASON_RELINK);
    CHECK_EQ(QUORUM_TOLD('d'), 0);
    end();

    begin("it is left before anybody has entered what it took up: newcomers do not go on alone");
    form("a", 2);
    hello('z', 2);
    TAKE('z', WIRE_WELCOME);
    act(core_peer_lost(m, now, 0, "test"));
    CHECK(quiet("z") && boxes['z' - 'a'].closed);
    CHECK_EQ(core_peer_count(m), 0);
    end();

    begin("frames of other generations and runs are not heard");
    form("ab", 1);
    say('a', (struct wire_header){.run = RUN, .generation = 1, .epoch = 6}, WIRE_LEAVE);
    say('a', (struct wire_header){.run = RUN, .generation = 3, .epoch = 6}, WIRE_LEAVE);
    say('a', (struct wire_header){.run = RUN + 1, .generation = 2, .epoch = 6}, WIRE_LEAVE);
    CHECK(!boxes[0].closed);
    end();
}

static void vote_update(const char *peers, struct wire_header header) {
    for (; *peers; peers++) {
        struct wire_buffer out = {0};
        wire_encode_vote(&out, header, &(struct wire_vote){.kind = WIRE_VOTE_UPDATE});
        hand_over(*peers, &out);
    }
}

static void linked(const char *peers, struct wire_header header, uint32_t attempt) {
    for (; *peers; peers++) {
        struct wire_buffer out = {0};
        TAKE(*peers, WIRE_CANDIDATE);
        wire_encode_linked(&out, header, &(struct wire_linked){.attempt = attempt, .latency_us = 1});
        hand_over(*peers, &out);
    }
}

// Three members with so many masters in their lists let four more in: epoch 8, of which the quorum is returned.
static struct wire_quorum admit(uint8_t masters) {
    struct wire_header header = {.run = RUN, .generation = 2, .epoch = 6};
    form("abc", masters);
    for (const char *p = "abc"; *p; p++) say(*p, header, WIRE_HEARTBEAT);
    if (masters > 1) {
        EPOCH("abc", 7, RELINK);
        header.epoch = 7;
    }
    for (const char *p = "defg"; *p; p++) {
        hello(*p, masters);
        TAKE(*p, WIRE_WELCOME);
    }
    vote_update("abc", header);
    linked("abcdefg", header, 1);
    for (const char *p = "abcdef"; *p; p++) TAKE(*p, WIRE_EPOCH);
    return ALL_TOLD('g');
}

static void test_admission(void) {
    struct wire_header header = {.run = RUN, .generation = 2, .epoch = 8};
    struct wire_quorum quorum;
    begin("two of three, who may not have heard of four newcomers, have left: they may go on without them");
    quorum = admit(2);
    CHECK_EQ(quorum.members, 0);
    CHECK_EQ(quorum.old_members, 2);
    CHECK_EQ(quorum.newer, 4);
    for (const char *p = "cdefg"; *p; p++) say(*p, header, WIRE_HEARTBEAT);
    CHECK(quiet("abcdefg"));
    say('a', header, WIRE_MOVED);
    CHECK_EQ(ALL_TOLD('b').old_members, 2);
    for (const char *p = "cdefg"; *p; p++) TAKE(*p, WIRE_EPOCH);
    say('b', header, WIRE_MOVED);
    CHECK(boxes[2].closed && boxes[3].closed && boxes[6].closed);
    CHECK_EQ(core_peer_count(m), 0);
    CHECK(strstr(log_text, "gives up the run") != NULL);
    end();

    begin("two of three have entered: it is sure, and goes on without the third");
    admit(2);
    for (const char *p = "defgb"; *p; p++) say(*p, header, WIRE_HEARTBEAT);
    CHECK(quiet("abcdefg"));
    say('c', header, WIRE_HEARTBEAT);
    for (const char *p = "abcdef"; *p; p++) TAKE(*p, WIRE_EPOCH);
    CHECK_EQ(ALL_TOLD('g').old_members, 0);
    header.epoch = 9;
    say('a', header, WIRE_MOVED);
    CHECK_EQ(ALL_TOLD('b').members, 4);
    epoch_at(__LINE__, "cdefg", "bcdefg", 10, WIRE_REASON_LOSS);
    end();

    begin("a member that dies, or leaves, goes on nowhere");
    admit(2);
    header.epoch = 8;
    act(core_peer_lost(m, now, 0, "test"));
    CHECK_EQ(ALL_TOLD('b').old_members, 1);
    epoch_at(__LINE__, "cdefg", "bcdefg", 9, WIRE_REASON_LOSS);
    say('b', header, WIRE_LEAVE);
    CHECK_EQ(ALL_TOLD('c').old_members, 0);
    epoch_at(__LINE__, "defg", "cdefg", 10, WIRE_REASON_LOSS);
    end();

    begin("one master alone needs none of this");
    CHECK_EQ(admit(1).old_members, 0);
    header.epoch = 7;
    for (const char *p = "abcdefg"; *p; p++) say(*p, header, WIRE_HEARTBEAT);
    CHECK(quiet("abcdefg"));
    say('a', header, WIRE_MOVED);
    epoch_at(__LINE__, "bcdefg", "bcdefg", 8, WIRE_REASON_LOSS);
    say('b', header, WIRE_MOVED);
    epoch_at(__LINE__, "cdefg", "cdefg", 9, WIRE_REASON_LOSS);
    end();
}

// All that a member knows who has entered epoch `number` of generation 2.
static void come_back(const char *who, const char *members, uint64_t number) {
    for (; *who; who++) resume(&(struct says){.who = *who, .members = members, .number = number, .generation = 2});
}

static void taken_up(int line, const char *peers, uint64_t generation, uint64_t number, uint8_t reason) {
    asked_at(line, peers, generation);
    promise(peers, RUN, generation);
    for (const char *p = peers; *p; p++) resumed_at(line, *p);
    epoch_at(line, peers, peers, number, reason);
}
#define TAKEN_UP(peers, generation, number, reason) taken_up(__LINE__, peers, generation, number, WIRE_REASON_##reason)

static void test_woken(void) {
    struct wire_header header = {.run = RUN, .generation = 2, .epoch = 6};
    begin("it has stood still, and one has left: all come back, nobody is lost");
    form("abc", 1);
    now += 2 * LIMIT_MS * MS_NS;
    say('a', header, WIRE_MOVED);
    CHECK(quiet("abc") && boxes[0].closed && boxes[1].closed && boxes[2].closed);
    come_back("abc", "abc", 6);
    TAKEN_UP("abc", 3, 7, RELINK);
    end();

    begin("the one that has left had not heard of the newest epoch, and is the first to come back");
    form("abc", 1);
    now += 2 * LIMIT_MS * MS_NS;
    say('a', header, WIRE_MOVED);
    resume(&(struct says){.who = 'a', .members = "a", .promised = 2, .votes = VOTES - 1, .vote = WIRE_VOTE_UPDATE});
    ASKED("a", 3);
    promise("a", RUN, 3);
    CHECK(quiet("a"));
    come_back("bc", "abc", 6);
    skip_waiting("a");
    ASKED("bc", 3);
    promise("bc", RUN, 3);
    for (const char *p = "abc"; *p; p++) RESUMED(*p);
    EPOCH("abc", 7, RELINK);
    end();

    begin("nobody else comes back: it is awaited for the heartbeat limit and no longer");
    form("abc", 1);
    now += 2 * LIMIT_MS * MS_NS;
    say('a', header, WIRE_MOVED);
    resume(&(struct says){.who = 'a', .members = "a", .promised = 2});
    ASKED("a", 3);
    promise("a", RUN, 3);
    pass(LIMIT_MS - 10, "a");
    CHECK(quiet("a"));
    pass(20, "a");
    RESUMED('a');
    epoch_at(__LINE__, "a", "a", 6, WIRE_REASON_RELINK);
    end();

    begin("a newcomer that comes first does not begin a run of its own");
    form("ab", 1);
    now += 2 * LIMIT_MS * MS_NS;
    say('a', header, WIRE_MOVED);
    hello('z', 1);
    come_back("ab", "ab", 6);
    TAKEN_UP("ab", 3, 7, RELINK);
    TAKE('z', WIRE_WELCOME);
    end();

    begin("it has stood still, but nobody has left");
    form("ab", 1);
    now += LIMIT_MS * MS_NS * 9 / 10;
    for (const char *p = "ab"; *p; p++) say(*p, header, WIRE_HEARTBEAT);
    act(core_tick(m, now));
    pass(2 * LIMIT_MS, "ab");
    say('a', header, WIRE_MOVED);
    epoch_at(__LINE__, "b", "b", 7, WIRE_REASON_LOSS); // long after
    end();

    begin("while it gathered: the rest has its time again");
    for (const char *p = "ab"; *p; p++) resume(&(struct says){.who = *p, .members = "abc"});
    skip_waiting("ab");
    ASKED("ab", 2);
    now += 2 * LIMIT_MS * MS_NS;
    promise("ab", RUN, 2);
    CHECK(quiet("ab"));
    resume(&(struct says){.who = 'c', .members = "abc"});
    ASKED("c", 2);
    promise("c", RUN, 2);
    for (const char *p = "abc"; *p; p++) RESUMED(*p);
    EPOCH("abc", 6, RELINK);
    end();
}

static void test_come_back(void) {
    struct wire_header header = {.run = RUN, .generation = 2, .epoch = 6};
    begin("a member comes back before the end of its connection is seen");
    form("abc", 1);
    resume(&(struct says){.who = 'd', .is = 'a', .members = "abc", .number = 6, .generation = 2});
    // as anybody can who was told the secret
    CHECK(quiet("abc") && boxes['d' - 'a'].closed && !boxes[0].closed && !boxes[1].closed && !boxes[2].closed);
    pass(LIMIT_MS / 2, "bc");
    resume(&(struct says){.who = 'e', .is = 'a', .members = "abc", .number = 6, .generation = 2});
    CHECK(quiet("abc") && boxes[0].closed && boxes[1].closed && boxes[2].closed);
    come_back("bc", "abc", 6);
    ASKED("ebc", 3);
    promise("ebc", RUN, 3);
    for (const char *p = "ebc"; *p; p++) RESUMED(*p);
    epoch_at(__LINE__, "ebc", "abc", 7, WIRE_REASON_RELINK);
    end();

    begin("its loss is told, but nobody has entered that epoch: who has not, comes back, too");
    form("abc", 1);
    say('a', header, WIRE_MOVED);
    epoch_at(__LINE__, "bc", "bc", 7, WIRE_REASON_LOSS);
    come_back("a", "abc", 6);
    CHECK(boxes[1].closed && boxes[2].closed);
    come_back("bc", "abc", 6);
    TAKEN_UP("abc", 3, 7, RELINK);
    end();

    begin("or has, unheard: the run goes on without it");
    form("abc", 1);
    say('a', header, WIRE_MOVED);
    epoch_at(__LINE__, "bc", "bc", 7, WIRE_REASON_LOSS);
    come_back("a", "abc", 6);
    come_back("bc", "bc", 7);
    skip_waiting("a");
    ASKED("abc", 3);
    promise("abc", RUN, 3);
    for (const char *p = "bc"; *p; p++) RESUMED(*p);
    EPOCH("bc", 8, RELINK);
    EXPELLED('a', "continued without");
    end();

    begin("a member has entered it: who comes back is left behind");
    form("abc", 1);
    say('a', header, WIRE_MOVED);
    epoch_at(__LINE__, "bc", "bc", 7, WIRE_REASON_LOSS);
    header.epoch = 7;
    say('b', header, WIRE_HEARTBEAT);
    come_back("a", "abc", 6);
    EXPELLED('a', "continued without");
    CHECK(!boxes[1].closed && !boxes[2].closed);
    end();

    begin("the last member is lost: newcomers begin another run, which gives way while it is young");
    form("a", 1);
    hello('z', 1);
    TAKE('z', WIRE_WELCOME);
    header.epoch = 6;
    say('a', header, WIRE_MOVED);
    CHECK(TAKE('z', WIRE_WELCOME)->header.run != RUN);
    EPOCH("z", 1, UPDATE);
    come_back("a", "a", 6);
    EXPELLED('z', "older run");
    TAKEN_UP("a", 3, 7, RELINK);
    end();

    begin("all are lost at once, and candidates are over: newcomers make their links in the new run");
    form("ab", 1);
    for (const char *p = "xyz"; *p; p++) {
        hello(*p, 1);
        TAKE(*p, WIRE_WELCOME);
    }
    vote_update("ab", header);
    for (const char *p = "abxyz"; *p; p++) TAKE(*p, WIRE_CANDIDATE);
    act(core_peers_lost(m, now, (struct core_loss[]){{0, "test"}, {1, "test"}, {'z' - 'a', "test"}}, 3));
    header = TAKE('x', WIRE_WELCOME)->header;
    TAKE('y', WIRE_WELCOME);
    linked("xy", header, 1);
    EPOCH("xy", 1, UPDATE);
    pass(RUN_YOUNG_MS + 100, "xy");
    come_back("a", "ab", 6);
    EXPELLED('a', "another run");
    end();

    begin("of an older generation, or with another secret: as anybody else");
    form("ab", 1);
    resume(&(struct says){.who = 'd', .members = "abd"});
    EXPELLED('d', "continued without");
    resume(&(struct says){.who = 'd', .is = 'a', .members = "ab", .number = 6, .generation = 2, .secret = 1});
    REFUSED('d', "its secret");
    CHECK(!boxes[0].closed && !boxes[1].closed);
    end();

    begin("a newcomer has lost it: it waits anew");
    form("ab", 1);
    hello('z', 1);
    TAKE('z', WIRE_WELCOME);
    resume(&(struct says){.who = 'x', .is = 'z', .generation = 2});
    CHECK(boxes['x' - 'a'].closed && !boxes['z' - 'a'].closed); // it is still heard
    pass(LIMIT_MS / 2, "ab");
    resume(&(struct says){.who = 'y', .is = 'z', .generation = 2});
    TAKE('y', WIRE_WELCOME);
    CHECK(boxes['z' - 'a'].closed);
    CHECK_EQ(core_peer_count(m), 3);
    CHECK(!boxes[0].closed && !boxes[1].closed);
    end();
}

// ---- who knows the secret ----

static void test_secrets(void) {
    begin("who gathers: another secret is another run");
    resume(&(struct says){.who = 'a', .members = "abc"});
    resume(&(struct says){.who = 'z', .is = 'a', .members = "abc", .number = 99, .secret = 1});
    CHECK(!boxes[0].closed); // it has not taken a's place
    resume(&(struct says){.who = 'y', .is = 'c', .members = "abc", .secret = 1});
    WAITING('a', "1 of the 3 members of epoch 5");
    clear(&boxes['z' - 'a']);
    clear(&boxes['y' - 'a']);
    end();

    begin("which of them has a majority goes on, the others are turned away");
    resume(&(struct says){.who = 'z', .is = 'a', .members = "abc", .number = 99, .secret = 1});
    resume_all("abc");
    ASKED("abc", 2);
    skip_waiting("z");
    promise("abc", RUN, 2);
    for (const char *p = "abc"; *p; p++) RESUMED(*p);
    EPOCH("abc", 6, RELINK);
    EXPELLED('z', "its secret");
    end();

    begin("a newcomer of the run that is served is not let in with another secret, nor in another's name");
    form("ab", 1);
    hello('z', 1);
    TAKE('z', WIRE_WELCOME);
    resume(&(struct says){.who = 'y', .is = 'z', .generation = 2, .secret = 1});
    REFUSED('y', "its secret");
    CHECK(!boxes['z' - 'a'].closed);
    end();

    begin("of a run that this master has given up it still knows the secret");
    form("ab", 1);
    pass(LIMIT_MS / 2, "b");
    come_back("a", "ab", 6);
    CHECK(boxes[1].closed);
    resume(&(struct says){.who = 'd', .is = 'b', .members = "ab", .number = 6, .generation = 2, .secret = 1});
    REFUSED('d', "its secret");
    end();
}

// ---- too many that wait ----

static void test_newcomer_limit(void) {
    begin("a newcomer waits for a bounded time");
    resume(&(struct says){.who = 'a', .members = "abc"});
    hello('z', 1);
    WAITING('a', "1 of the 3");
    WAITING('z', "1 of the 3");
    for (int i = 0; i < 5; i++) {
        pass(GATHER_HOLD_MS / 6, "a");
        skip_waiting("az");
    }
    CHECK(!boxes['z' - 'a'].closed);
    pass(GATHER_HOLD_MS / 6 + 100, "a");
    skip_waiting("az");
    REFUSED('z', "start the other members again");
    CHECK(!boxes[0].closed); // who is a member waits on
    resume(&(struct says){.who = 'b', .members = "abc"});
    resume(&(struct says){.who = 'c', .members = "abc"});
    ASKED("abc", 2);
    end();
}

int main(void) {
    test_claims();
    test_secrets();
    test_newcomer_limit();
    test_lies();
    test_duplicates();
    test_promises();
    test_turns();
    test_ends();
    test_false_ends();
    test_false_rounds();
    test_lies_to_waiting_members();
    test_election();
    test_too_late();
    test_young();
    test_newcomers();
    test_left();
    test_admission();
    test_woken();
    test_come_back();
    return check_status();
}
