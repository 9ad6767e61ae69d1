// What the signature of an epoch covers, and what it leaves to the word of a member.
#include "master/signer.h"

#include "check.h"
#include "compute/hash.h"

enum { MEMBERS = 3 };

static bool out_of_memory;

static bool sign(void *context, const void *bytes, size_t length, uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    CHECK(context == &out_of_memory);
    uint64_t hash = hash_xxh3_64(bytes, length);
    memset(signature, 0, WIRE_SIGNATURE_BYTES);
    memcpy(signature, &hash, sizeof hash);
    return !out_of_memory;
}

static bool verify(void *context, const void *bytes, size_t length, const uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    uint8_t right[WIRE_SIGNATURE_BYTES];
    return sign(context, bytes, length, right) && memcmp(signature, right, sizeof right) == 0;
}

static const struct signer signer = {.context = &out_of_memory, .sign = sign, .verify = verify};
static const struct wire_header header = {.run = 7, .generation = 3};

static struct wire_member members[MEMBERS];
static struct wire_epoch_commit commit;
static struct wire_resume resume;

// A member brings the epoch that the master has signed.
static void begin(void) {
    for (uint8_t i = 0; i < MEMBERS; i++)
        members[i] =
            (struct wire_member){.id = {{(uint8_t)(9 - i)}},
                                 .join_number = i + 1U,
                                 .group = i / 2,
                                 .lanes = 1,
                                 .address = {.family = 4, .bytes = {127, 0, 0, 1}, .port = (uint16_t)(40 + i)}};
    commit = (struct wire_epoch_commit){.epoch = {.number = 5, .count = MEMBERS, .members = members},
                                        .quorum = {.members = 2, .old_members = 1, .newer = 3}};
    REQUIRE(signer_sign(&signer, header, &commit));
    resume = (struct wire_resume){
        .generation = header.generation, .accepted = 1, .epoch = commit.epoch, .quorum = commit.quorum};
    memcpy(resume.signature, commit.signature, sizeof resume.signature);
}

static bool believed(void) { return signer_verify(&signer, header.run, &resume); }

static void test_covered(void) {
    begin();
    CHECK(believed());
    CHECK(!signer_verify(&signer, header.run + 1, &resume));
#define CHANGED(field, change) \
    do { \
        check_case("%s", #field); \
        begin(); \
        field change; \
        CHECK(!believed()); \
    } while (0)
    CHANGED(resume.generation, ++);
    CHANGED(resume.epoch.number, ++);
    CHANGED(resume.epoch.count, --);
    CHANGED(resume.quorum.members, = 0);
    CHANGED(resume.quorum.old_members, ++);
    CHANGED(resume.quorum.newer, ++);
    CHANGED(members[0].id.bytes[15], ++);
    CHANGED(members[1].join_number, ++);
    CHANGED(members[2].group, ++);
    CHANGED(members[0].address.family, = 6);
    CHANGED(members[1].address.bytes[0], ++);
    CHANGED(members[2].address.port, ++);
    CHANGED(resume.signature[0], ^= 1);
    CHANGED(resume.signature[WIRE_SIGNATURE_BYTES - 1], ^= 128);
    check_case("%s", "");
}

static void test_the_members_word(void) {
    begin();
    resume.epoch.lost_epoch = 4;
    resume.epoch.sync_round = 8;
    resume.last_vote.number = 2;
    members[0].lanes = 4;
    CHECK(believed());
    // The ring order of an epoch is no part of who belongs to the run.
    struct wire_member first = members[0];
    members[0] = members[1];
    members[1] = first;
    CHECK(believed());
}

static void test_without_keys(void) {
    static const struct signer none;
    begin();
    memset(commit.signature, 0, sizeof commit.signature);
    CHECK(signer_sign(&none, header, &commit));
    CHECK_EQ(commit.signature[0], 0);
    resume.epoch.number++;
    CHECK(signer_verify(&none, header.run, &resume));
    resume.accepted = 0; // a newcomer brings no epoch
    CHECK(believed());
}

static void test_out_of_memory(void) {
    begin();
    out_of_memory = true;
    CHECK(!signer_sign(&signer, header, &commit));
    CHECK(!believed());
    out_of_memory = false;
}

int main(void) {
    test_covered();
    test_the_members_word();
    test_without_keys();
    test_out_of_memory();
    return check_status();
}
