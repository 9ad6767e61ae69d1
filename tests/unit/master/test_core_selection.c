// Votes that change the algorithm of large all-reduces: how the epoch comes, and what becomes of weights afterwards.
#include "core_world.h"

// Of a ring in which `slow` holds the others up.
static void tell(const char *ring, char slow, uint64_t epoch) {
    static struct wire_telemetry told;
    size_t n = strlen(ring);
    for (size_t i = 0; i < 4 * n; i++) {
        char from = ring[i % n], to = ring[(i + 1) % n];
        told = (struct wire_telemetry){.ops = {.span_us = 1000000, .epoch = epoch}, .count = 1};
        told.others[0].id = id_of(to);
        told.others[0].seen = (struct wire_seen){.acked = 8 << 20,
                                                 .busy_us = 1000000,
                                                 .samples = 100,
                                                 .backlogged = from == slow || to == slow ? 90 : 1,
                                                 .round_trip_us = 200};
        struct wire_buffer out = {0};
        wire_encode_telemetry(&out, op_head(epoch), &told);
        say(from, &out);
    }
}

static bool shares_are(const char *ring, char slow) {
    bool right = true;
    for (size_t i = 0; ring[i]; i++) right &= (members[i].weight == 0) == (ring[i] == slow);
    return right;
}

static void test_update(void) {
    begin("an update vote without newcomers gives members other weights");
    form("abcd", 0);
    uint64_t before = core_epoch(m);
    tell("abcd", 'b', before);
    vote("abcd", WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE("abcd", "abcd");
    CHECK(shares_are("abcd", 'b'));
    linked("abcd", attempt, "");
    EPOCH("abcd", UPDATE, before + 1, before + 1, "abcd");
    CHECK(shares_are("abcd", 'b'));
    vote("abcd", WIRE_VOTE_UPDATE);
    OUTCOME("abcd", UPDATE, 0, 0);
    die('d');
    EPOCH("abc", LOSS, before + 2, before + 2, "abc");
    CHECK(shares_are("abc", 'b'));
    join('e', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    linked("abce", CANDIDATE("abce", "abce"), "");
    EPOCH("abce", UPDATE, before + 3, before + 3, "abce");
    CHECK(shares_are("abce", 'b'));
    end();
}

static void skip(const char *peers, enum wire_type type) {
    for (; *peers; peers++) {
        struct box *box = &boxes[*peers - 'a'];
        while (box->head < box->tail && box->frames[box->head].header.type == type) box->head++;
    }
}

static void test_optimise(void) {
    begin("a vote to optimise as well, after measurements that fail");
    form("abcd", 0);
    uint64_t before = core_epoch(m);
    tell("abcd", 'a', before);
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    do {
        skip("abcd", WIRE_MEASURE);
        pass(100, "abcd");
    } while (quiet("a") || boxes[0].frames[boxes[0].head].header.type == WIRE_MEASURE);
    linked("abcd", CANDIDATE("abcd", "abcd"), "");
    EPOCH("abcd", ORDER, before + 1, before + 1, "abcd");
    CHECK(shares_are("abcd", 'a'));
    end();
}

static void test_out_of_reach(void) {
    begin("members that cannot make their links stay, and so does what is in force");
    form("abcd", 0);
    uint64_t before = core_epoch(m);
    tell("abcd", 'b', before);
    vote("abcd", WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE("abcd", "abcd");
    linked("abc", attempt, "");
    linked("d", attempt, "a");
    OUTCOME("abcd", UPDATE, 0, 0);
    CHECK_EQ(core_epoch(m), before);
    end();
}

static void test_loss_meanwhile(void) {
    begin("a member dies while the links are made: the vote passes without a plan");
    form("abcd", 0);
    uint64_t before = core_epoch(m);
    tell("abcd", 'b', before);
    vote("abcd", WIRE_VOTE_UPDATE);
    CANDIDATE("abcd", "abcd");
    die('a');
    EPOCH("bcd", LOSS, before + 1, before + 1, "bcd");
    OUTCOME("bcd", UPDATE, 0, 0);
    end();
}

// ---- a master dies while its epoch has weights and sites: what the next one tells the members, and serves then ----

enum { GROUP_MOST = 8 };

// What each peer has heard last.
static struct heard {
    struct wire_epoch_commit commit;
    struct wire_member members[GROUP_MOST];
} heard[PEERS];

static struct heard *of(char peer) { return &heard[peer - 'a']; }

static void hear_epoch(int line, const char *peers, uint8_t reason, const char *want) {
    static struct wire_member decoded[WIRE_MAX_MEMBERS];
    for (; *peers; peers++) {
        const struct frame *frame = take_at(line, *peers, WIRE_EPOCH);
        struct heard *h = of(*peers);
        h->commit = (struct wire_epoch_commit){.epoch.members = decoded};
        CHECK(wire_decode_epoch_commit(frame->body, frame->header.length, &h->commit));
        REQUIRE(h->commit.epoch.count <= GROUP_MOST);
        memcpy(h->members, decoded, h->commit.epoch.count * sizeof decoded[0]);
        h->commit.epoch.members = h->members;
        check_equal(h->commit.reason, reason, __FILE__, line, "reason");
        same_members(line, &h->commit.epoch, want);
        epochs[*peers - 'a'] = h->commit.epoch.number;
    }
}
#define HEARS(peers, reason, want) hear_epoch(__LINE__, peers, WIRE_REASON_##reason, want)

// All that are told of an epoch are told the same of it, and of members in `like` what these had before.
static void check_selection(int line, const char *peers, const struct heard *like) {
    for (const char *p = peers; *p; p++)
        for (uint32_t i = 0; i < of(*p)->commit.epoch.count; i++) {
            const struct wire_member *told = &of(*p)->members[i], *first = &of(peers[0])->members[i];
            check_that(told->weight == first->weight && told->site == first->site, __FILE__, line, "the same for all");
            for (uint32_t k = 0; k < like->commit.epoch.count; k++)
                if (wire_id_equal(&like->members[k].id, &told->id))
                    check_that(told->weight == like->members[k].weight && told->site == like->members[k].site, __FILE__,
                               line, "as before");
        }
}
#define KEEP_SELECTION(peers, like) check_selection(__LINE__, peers, like)

// A run whose epoch, which all have heard of, has weights, and sites if they are wanted.
static void weight(const char *name, bool sites) {
    begin(name);
    form("abcd", 0);
    tell("abcd", 'b', core_epoch(m));
    vote("abcd", WIRE_VOTE_UPDATE);
    linked("abcd", CANDIDATE("abcd", "abcd"), "");
    HEARS("abcd", UPDATE, "abcd");
    bool shared = false;
    for (uint32_t i = 0; i < 4; i++) shared |= of('a')->members[i].weight > 0;
    REQUIRE(shared);
    for (const char *p = "abcd"; *p; p++)
        for (uint32_t i = 0; i < 4 && sites; i++) of(*p)->members[i].site = (uint16_t)(1 + i / 2);
}

static void stand_by(void) {
    uint8_t random[CORE_RANDOM_BYTES] = {90};
    clear_all();
    core_free(m);
    now += SECOND_NS;
    m = core_new(LIMIT_MS, random, now);
    REQUIRE(m != NULL);
}

static void resume(char who, uint8_t vote) {
    const struct wire_epoch *epoch = &of(who)->commit.epoch;
    struct wire_group_size sizes[] = {{0, epoch->count}};
    struct wire_resume message = {
        .hello = {.version = WIRE_VERSION, .id = id_of(who), .lanes = 2, .port = 48149, .masters = 1},
        .generation = 1,
        .vote = vote,
        .accepted = 1,
        .last_vote = {.number = epoch->votes_ended,
                      .kind = WIRE_VOTE_UPDATE,
                      .epoch = epoch->number,
                      .count = 1,
                      .sizes = sizes},
        .epoch = *epoch,
        .quorum = of(who)->commit.quorum,
    };
    for (uint32_t i = 0; i < epoch->count; i++)
        if (wire_id_equal(&epoch->members[i].id, &message.hello.id))
            message.join_number = epoch->members[i].join_number;
    struct wire_address source = address_of(who);
    struct wire_header header;
    struct wire_buffer out = {0};
    clear(&boxes[who - 'a']);
    wire_encode_resume(&out, (struct wire_header){.run = run, .generation = 1}, &message);
    CHECK(wire_header_decode(out.bytes, &header));
    act(core_peer_resumed(m, now, (uint32_t)(who - 'a'), &source, &header, out.bytes + WIRE_HEADER_BYTES));
    wire_buffer_fini(&out);
}

// They come, some with an open vote to update, promise, and are told that the run goes on.
static void take_up(const char *peers, const char *voters, bool all) {
    for (const char *p = peers; *p; p++) resume(*p, strchr(voters, *p) != NULL ? WIRE_VOTE_UPDATE : 0);
    for (const char *p = peers; *p; p++) {
        struct box *box = &boxes[*p - 'a'];
        while (box->head < box->tail && box->frames[box->head].header.type == WIRE_WAITING) box->head++;
        generation = TAKE(*p, WIRE_GENERATION)->header.generation;
    }
    CHECK_EQ(generation, 2);
    for (const char *p = peers; *p; p++) simple(*p, WIRE_PROMISE);
    if (!all) pass(LIMIT_MS + 50, peers);
    for (const char *p = peers; *p; p++) TAKE(*p, WIRE_RESUMED);
}

static void test_all_here(void) {
    for (int sites = 0; sites < 2; sites++) {
        weight(sites ? "sites outlive a master" : "weights outlive a master", sites);
        struct heard before = *of('a');
        stand_by();
        take_up("dbca", "", true);
        HEARS("abcd", RELINK, "abcd");
        CHECK_EQ(core_epoch(m), before.commit.epoch.number + 1);
        CHECK_EQ(of('a')->commit.epoch.group_epoch, core_epoch(m));
        KEEP_SELECTION("abcd", &before);
        linked("abcd", 0, "");
        check_case("and without figures of its own the next one leaves them alone");
        vote("abcd", WIRE_VOTE_UPDATE);
        OUTCOME("abcd", UPDATE, 0, 0);
        check_case("also with those of a ring that was before");
        tell("abcd", 'b', before.commit.epoch.number);
        vote("abcd", WIRE_VOTE_UPDATE);
        OUTCOME("abcd", UPDATE, 0, 0);
        check_case("and with those that the weights came from, in the new epoch");
        tell("abcd", 'b', core_epoch(m));
        vote("abcd", WIRE_VOTE_UPDATE);
        OUTCOME("abcd", UPDATE, 0, 0);
        check_case("a loss after it changes nothing for the others");
        die('d');
        HEARS("abc", LOSS, "abc");
        KEEP_SELECTION("abc", &before);
        end();
    }
}

static void test_absent(void) {
    weight("members that are lost with their master take their weights along", true);
    struct heard before = *of('a');
    stand_by();
    take_up("abc", "", false);
    HEARS("abc", LOSS, "abc");
    KEEP_SELECTION("abc", &before);
    check_case("a newcomer that waited gets a fair weight, and is of no site");
    join('e', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    linked("abce", CANDIDATE("abce", "abce"), "");
    HEARS("abce", UPDATE, "abce");
    KEEP_SELECTION("abce", &before);
    uint32_t sum = 0, sharing = 0;
    for (uint32_t i = 0; i < 3; i++) {
        sum += of('e')->members[i].weight;
        sharing += of('e')->members[i].weight > 0;
    }
    CHECK(sharing > 0 && of('e')->members[3].weight == sum / sharing);
    CHECK_EQ(of('e')->members[3].site, 0);
    end();
}

// Two have entered the epoch with the weights, two had not heard of it: it is in force for all of them.
static void test_half_told(void) {
    weight("an epoch with weights of which half of the members have heard", false);
    struct heard before = *of('a');
    for (const char *p = "cd"; *p; p++) {
        struct wire_epoch *epoch = &of(*p)->commit.epoch;
        epoch->number--;
        epoch->group_epoch--;
        epoch->votes_ended--;
        for (uint32_t i = 0; i < 4; i++) of(*p)->members[i].weight = 0;
    }
    stand_by();
    take_up("cdab", "cd", true);
    HEARS("abcd", RELINK, "abcd");
    KEEP_SELECTION("abcd", &before);
    linked("abcd", 0, "");
    check_case("whose vote has ended with it");
    vote("abcd", WIRE_VOTE_UPDATE);
    OUTCOME("abcd", UPDATE, 0, 0);
    end();
}

// It would have had other weights, and its master dies before that is in force.
static void test_candidate(void) {
    weight("a candidate ends with its master, and the vote for it with what was in force", false);
    struct heard before = *of('a');
    for (int looks = 0; looks < 100 && quiet("a"); looks++) {
        tell("abcd", 'c', core_epoch(m));
        vote("abcd", WIRE_VOTE_UPDATE);
        if (boxes[0].frames[boxes[0].head].header.type != WIRE_OUTCOME) break;
        OUTCOME("abcd", UPDATE, 0, 0);
    }
    CANDIDATE("abcd", "abcd");
    bool other = false;
    for (uint32_t i = 0; i < 4; i++) other |= members[i].weight != before.members[i].weight;
    CHECK(other);
    stand_by();
    take_up("abcd", "abcd", true);
    HEARS("abcd", RELINK, "abcd");
    KEEP_SELECTION("abcd", &before);
    OUTCOME("abcd", UPDATE, 0, 0);
    CHECK_EQ(core_epoch(m), before.commit.epoch.number + 1);
    end();
}

int main(void) {
    test_update();
    test_optimise();
    test_out_of_reach();
    test_loss_meanwhile();
    test_all_here();
    test_absent();
    test_half_told();
    test_candidate();
    return check_status();
}
