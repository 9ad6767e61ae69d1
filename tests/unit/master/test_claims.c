// Claims of runs: who makes the same one, which is the newest, which has a majority here.
#include "master/claims.h"

#include "check.h"

enum { MEMBERS = 5 };
static struct claims claims;
static struct wire_member members[MEMBERS];
static const struct desk_run RUN = {7, {1}}, OTHER = {7, {2}}; // told apart by the secret alone

static struct wire_resume resume(uint64_t generation, uint64_t number, uint32_t count) {
    return (struct wire_resume){
        .generation = generation, .accepted = 1, .epoch = {.number = number, .count = count, .members = members}};
}

static struct claim *hold(const struct desk_run *run, uint64_t generation, uint64_t number, uint32_t count,
                          bool *made) {
    struct wire_resume message = resume(generation, number, count);
    return claims_hold(&claims, run, &message, made);
}

static void begin(const char *name) {
    check_case("%s", name);
    claims_init(&claims, 11);
    for (uint32_t i = 0; i < MEMBERS; i++)
        members[i] = (struct wire_member){.id = {{(uint8_t)(i * 37 + 1)}}, .join_number = i + 1, .lanes = 1};
}

static void test_same(void) {
    bool made;
    begin("one claim for all that say the same");
    struct claim *claim = hold(&RUN, 1, 4, 3, &made);
    CHECK(made && claim->holders == 1);
    CHECK(hold(&RUN, 1, 4, 3, &made) == claim && !made && claim->holders == 2);
    struct wire_resume message = resume(1, 4, 3);
    CHECK(claims_find(&claims, &RUN, &message) == claim && claims_find(&claims, &OTHER, &message) == NULL);
    message.quorum.elders = 1;
    CHECK(claims_find(&claims, &RUN, &message) == NULL);
    message = resume(1, 4, 3);
    members[1].address.port = 5;
    CHECK(claims_find(&claims, &RUN, &message) == NULL);
    claims_release(&claims, claim);
    CHECK_EQ(claims.count, 1);
    claims_release(&claims, claim);
    CHECK_EQ(claims.count, 0);
}

static void test_newest(void) {
    bool made;
    begin("the newest of a run counts, by generation, then by number");
    struct claim *old = hold(&RUN, 1, 9, 3, &made), *new = hold(&RUN, 2, 3, 3, &made);
    struct claim *apart = hold(&OTHER, 1, 1, 1, &made);
    CHECK(!old->newest && new->newest && apart->newest);
    claims_release(&claims, new);
    CHECK(old->newest);
    claims_release(&claims, old);
    claims_release(&claims, apart);
}

static void test_majority(void) {
    bool made;
    begin("a majority, as the epoch asks for it");
    struct claim *claim = hold(&RUN, 1, 1, MEMBERS, &made), *other = hold(&OTHER, 1, 1, 2, &made);
    CHECK(!claim_has_majority(claim) && !claim_has_majority(NULL));
    for (uint32_t i = 0; i < 2; i++) claims_count(&claims, &RUN, &members[i].id, 1);
    CHECK(!claim_has_majority(claim) && claims_best(&claims) == claim);
    for (uint32_t i = 0; i < 2; i++) claims_count(&claims, &OTHER, &members[i].id, 1);
    CHECK(claim_has_majority(other) && claims_best(&claims) == other);
    claims_count(&claims, &RUN, &members[2].id, 1);
    CHECK(claim_has_majority(claim) && claims_best(&claims) == claim);
    claim->quorum.members = 4;
    CHECK(!claim_has_majority(claim));
    claims_count(&claims, &RUN, &members[4].id, 1);
    CHECK(claim_has_majority(claim));
    claim->quorum = (struct wire_quorum){.elders = 1, .newer = 3};
    CHECK(!claim_has_majority(claim)); // as if none of those had come yet
    claims_count(&claims, &RUN, &members[0].id, -1);
    claims_count(&claims, &RUN, &members[0].id, 1);
    claims_count(&claims, &RUN, &members[1].id, 1);
    CHECK(claim_has_majority(claim));
    struct wire_id stranger = {{99}};
    claims_count(&claims, &RUN, &stranger, 1);
    CHECK_EQ(claim->present, 5);
    claims_release(&claims, claim);
    claims_release(&claims, other);
}

int main(void) {
    test_same();
    test_newest();
    test_majority();
    return check_status();
}
