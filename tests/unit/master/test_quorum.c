// Fencing: when a master is sure that nobody takes its run up elsewhere, and when it gives it up; signed epochs.
#include "master/quorum.h"

#include "compute/hash.h"
#include "seats.h"

static struct quorum quorum;

static void begin(const char *name, const char *members, uint8_t masters) {
    memset(peers, 0, sizeof peers);
    open_membership(name, members);
    table.number = 1;
    quorum = (struct quorum){0};
    for (const char *at = members; *at; at++) peer(*at)->masters = masters;
}

static void enter(const char *letters) {
    for (; *letters; letters++) quorum_entered(&quorum, peer(*letters), table.number);
}

static void lose(const char *letters) {
    for (; *letters; letters++) {
        quorum_ended(&quorum, peer(*letters));
        uint32_t kept = 0;
        for (uint32_t i = 0; i < table.count; i++)
            if (table.order[i] != peer(*letters)) table.order[kept++] = table.order[i];
        table.count = kept;
    }
}

static void test_taken_up(void) {
    struct wire_quorum needed = {.members = 3};
    begin("a run that was taken up is sure when a quorum has entered it", "abcd", 2);
    quorum_take_up(&quorum, &table, &needed);
    table.number++;
    enter("ab");
    enter("a");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_KEEPS);
    CHECK_EQ(quorum_announced(&quorum, &table).members, 3);
    enter("c");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_IS_SURE);
    CHECK_EQ(quorum_announced(&quorum, &table).members, 0);
    close_membership();

    begin("and given up when too few are left for that", "abcd", 2);
    quorum_take_up(&quorum, &table, &needed);
    table.number++;
    enter("a");
    lose("b");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_KEEPS);
    lose("c");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_GIVES_UP);
    close_membership();
}

static void test_newcomers(void) {
    begin("newcomers do not count as those that were there before", "abcd", 2);
    quorum_admits(&quorum, &table, 2, 3); // c and d are new
    table.number++;
    CHECK_EQ(quorum.needed.old_members, 1);
    enter("cd");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_KEEPS);
    enter("b");
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_IS_SURE);
    close_membership();

    begin("one of those that leaves takes nothing up", "abc", 2);
    quorum_admits(&quorum, &table, 2, 3);
    table.number++;
    lose("a");
    CHECK_EQ(quorum.needed.old_members, 0);
    CHECK_EQ(quorum_watch(&quorum, &table), QUORUM_KEEPS);
    close_membership();
}

static void test_silence(void) {
    static const struct {
        const char *name, *members;
        uint8_t masters;
        uint32_t first, second;
        int64_t apart_s;
        enum quorum_verdict verdict;
    } rows[] = {
        {"half may go", "abcd", 2, 1, 1, 1, QUORUM_KEEPS},
        {"more may not, as they are a majority elsewhere", "abcd", 2, 2, 1, 1, QUORUM_GIVES_UP},
        {"but with long between them", "abcd", 2, 2, 1, 4, QUORUM_KEEPS},
        {"or where nobody knows another master", "abcd", 1, 2, 2, 1, QUORUM_KEEPS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(rows[i].name, rows[i].members, rows[i].masters);
        CHECK_EQ(quorum_unheard(&quorum, &table, rows[i].first), QUORUM_KEEPS);
        table.now_ns += rows[i].apart_s * SECOND_NS;
        CHECK_EQ(quorum_unheard(&quorum, &table, rows[i].second), rows[i].verdict);
        close_membership();
    }
}

// ---- what the signature of an epoch covers, and what it leaves to the word of a member ----

enum { MEMBERS = 3 };

static bool out_of_memory;
static unsigned verifications;

static bool sign(void *context, const void *bytes, size_t length, uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    CHECK(context == &out_of_memory);
    uint64_t hash = hash_xxh3_64(bytes, length);
    memset(signature, 0, WIRE_SIGNATURE_BYTES);
    memcpy(signature, &hash, sizeof hash);
    return !out_of_memory;
}

static bool verify(void *context, const void *bytes, size_t length, const uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    uint8_t right[WIRE_SIGNATURE_BYTES];
    verifications++;
    return sign(context, bytes, length, right) && memcmp(signature, right, sizeof right) == 0;
}

static const struct signer signer = {.context = &out_of_memory, .sign = sign, .verify = verify};
static const struct wire_header header = {.run = 7, .generation = 3};

static struct wire_member signed_members[MEMBERS];
static struct wire_epoch_commit commit;
static struct wire_resume resume;

// A member brings the epoch that the master has signed.
static void begin_signed(void) {
    for (uint8_t i = 0; i < MEMBERS; i++)
        signed_members[i] =
            (struct wire_member){.id = {{(uint8_t)(9 - i)}},
                                 .join_number = i + 1U,
                                 .group = i / 2,
                                 .lanes = 1,
                                 .address = {.family = 4, .bytes = {127, 0, 0, 1}, .port = (uint16_t)(40 + i)}};
    commit = (struct wire_epoch_commit){.epoch = {.number = 5, .count = MEMBERS, .members = signed_members},
                                        .quorum = {.members = 2, .old_members = 1, .newer = 3}};
    REQUIRE(quorum_sign(&signer, header, &commit));
    resume = (struct wire_resume){
        .generation = header.generation, .accepted = 1, .epoch = commit.epoch, .quorum = commit.quorum};
    memcpy(resume.signature, commit.signature, sizeof resume.signature);
}

static struct quorum_verified verified;

static bool believed(void) { return quorum_verify(&signer, &verified, header.run, &resume) == QUORUM_SIGNED; }

static void test_signature(void) {
    begin_signed();
    CHECK(believed());
    CHECK_EQ(quorum_verify(&signer, &verified, header.run + 1, &resume), QUORUM_UNSIGNED);
#define CHANGED(field, change) \
    do { \
        check_case("%s", #field); \
        begin_signed(); \
        field change; \
        CHECK(!believed()); \
    } while (0)
    CHANGED(resume.generation, ++);
    CHANGED(resume.epoch.number, ++);
    CHANGED(resume.epoch.count, --);
    CHANGED(resume.quorum.members, = 0);
    CHANGED(resume.quorum.old_members, ++);
    CHANGED(resume.quorum.newer, ++);
    CHANGED(signed_members[0].id.bytes[15], ++);
    CHANGED(signed_members[1].join_number, ++);
    CHANGED(signed_members[2].group, ++);
    CHANGED(signed_members[0].address.family, = 6);
    CHANGED(signed_members[1].address.bytes[0], ++);
    CHANGED(signed_members[2].address.port, ++);
    CHANGED(resume.signature[0], ^= 1);
    CHANGED(resume.signature[WIRE_SIGNATURE_BYTES - 1], ^= 128);
    check_case("%s", "");
}

static void test_the_members_word(void) {
    begin_signed();
    resume.epoch.lost_epoch = 4;
    resume.epoch.sync_round = 8;
    resume.last_vote.number = 2;
    signed_members[0].lanes = 4;
    CHECK(believed());
    // The ring order of an epoch is no part of who belongs to the run.
    struct wire_member first = signed_members[0];
    signed_members[0] = signed_members[1];
    signed_members[1] = first;
    CHECK(believed());
}

// All members bring one epoch. What differs from it anywhere is no epoch that was verified (test_signature).
static void test_verified_once(void) {
    begin_signed();
    verifications = 0;
    resume.epoch.number++;
    CHECK(!believed());
    CHECK(!believed());
    CHECK_EQ(verifications, 2);
    quorum_verified_fini(&verified);
    resume.epoch.number--;
    for (int i = 0; i < 3; i++) CHECK(believed());
    CHECK_EQ(verifications, 3);
}

static void test_without_keys(void) {
    static const struct signer none;
    begin_signed();
    memset(commit.signature, 0, sizeof commit.signature);
    CHECK(quorum_sign(&none, header, &commit));
    CHECK_EQ(commit.signature[0], 0);
    resume.epoch.number++;
    CHECK_EQ(quorum_verify(&none, &verified, header.run, &resume), QUORUM_SIGNED);
    resume.accepted = 0; // a newcomer brings no epoch
    CHECK(believed());
}

static void test_out_of_memory(void) {
    quorum_verified_fini(&verified);
    begin_signed();
    out_of_memory = true;
    CHECK(!quorum_sign(&signer, header, &commit));
    CHECK(!believed());
    out_of_memory = false;
}

int main(void) {
    test_taken_up();
    test_newcomers();
    test_silence();
    test_signature();
    test_the_members_word();
    test_verified_once();
    test_without_keys();
    test_out_of_memory();
    return check_status();
}
