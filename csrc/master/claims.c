#include "master/claims.h"

#include <stdlib.h>
#include <string.h>

#include "net/roster.h"

void claims_init(struct claims *claims, uint64_t key) {
    claims->key = key;
    claims->count = 0;
}

// ---- what makes two claims the same ----

static uint64_t mix(uint64_t digest, const void *bytes, size_t length) {
    for (size_t at = 0; at < length; at += sizeof digest) {
        uint64_t word = 0;
        memcpy(&word, (const uint8_t *)bytes + at, length - at < sizeof word ? length - at : sizeof word);
        digest = (digest ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        digest ^= digest >> 31;
    }
    return digest;
}

static uint64_t digest_of(const struct claims *claims, const struct wire_epoch *epoch) {
    uint64_t digest = claims->key;
    for (uint32_t i = 0; i < epoch->count; i++) {
        const struct wire_member *member = &epoch->members[i];
        uint64_t numbers[] = {member->join_number, (uint64_t)member->group << 32 | member->lanes,
                              (uint64_t)member->address.family << 16 | member->address.port};
        digest = mix(digest, member->id.bytes, sizeof member->id.bytes);
        digest = mix(digest, numbers, sizeof numbers);
        digest = mix(digest, member->address.bytes, sizeof member->address.bytes);
    }
    return digest;
}

static bool is_same_member(const struct wire_member *a, const struct wire_member *b) {
    return wire_id_equal(&a->id, &b->id) && a->join_number == b->join_number && a->group == b->group &&
           a->lanes == b->lanes && a->address.family == b->address.family && a->address.port == b->address.port &&
           memcmp(a->address.bytes, b->address.bytes, sizeof a->address.bytes) == 0;
}

static bool is_made(const struct claim *claim, const struct desk_run *run, const struct wire_resume *resume,
                    uint64_t digest) {
    const struct wire_epoch *epoch = &resume->epoch;
    const struct wire_quorum *a = &claim->quorum, *b = &resume->quorum;
    if (claim->digest != digest || claim->generation != resume->generation || claim->number != epoch->number ||
        claim->count != epoch->count)
        return false;
    if (!desk_run_equal(&claim->run, run) || a->members != b->members || a->elders != b->elders || a->newer != b->newer)
        return false;
    for (uint32_t i = 0; i < epoch->count; i++)
        if (!is_same_member(&claim->members[i], &epoch->members[i])) return false;
    return true;
}

struct claim *claims_find(const struct claims *claims, const struct desk_run *run, const struct wire_resume *resume) {
    uint64_t digest = digest_of(claims, &resume->epoch);
    for (uint32_t i = 0; i < claims->count; i++)
        if (is_made(claims->list[i], run, resume, digest)) return claims->list[i];
    return NULL;
}

// ---- coming and going ----

static bool is_newer(const struct claim *a, const struct claim *b) {
    return a->generation != b->generation ? a->generation > b->generation : a->number > b->number;
}

static void find_newest(struct claims *claims, const struct desk_run *run) {
    struct claim *newest = NULL;
    for (uint32_t i = 0; i < claims->count; i++) {
        struct claim *claim = claims->list[i];
        if (!desk_run_equal(&claim->run, run)) continue;
        claim->newest = false;
        if (newest == NULL || is_newer(claim, newest)) newest = claim;
    }
    if (newest != NULL) newest->newest = true;
}

static struct claim *make(struct claims *claims, const struct desk_run *run, const struct wire_resume *resume) {
    const struct wire_epoch *epoch = &resume->epoch;
    size_t bytes = epoch->count * sizeof *epoch->members;
    struct claim *claim = malloc(sizeof *claim + bytes + epoch->count * sizeof *claim->sorted);
    if (claim == NULL) return NULL;
    *claim = (struct claim){.run = *run,
                            .generation = resume->generation,
                            .number = epoch->number,
                            .digest = digest_of(claims, epoch),
                            .quorum = resume->quorum,
                            .count = epoch->count};
    memcpy(claim->members, epoch->members, bytes);
    claim->sorted = (uint16_t *)(void *)((uint8_t *)claim->members + bytes);
    roster_sort(claim->members, claim->count, claim->sorted);
    claims->list[claims->count++] = claim;
    find_newest(claims, run);
    return claim;
}

struct claim *claims_hold(struct claims *claims, const struct desk_run *run, const struct wire_resume *resume,
                          bool *made) {
    struct claim *claim = claims_find(claims, run, resume);
    *made = claim == NULL;
    if (claim == NULL) claim = make(claims, run, resume);
    if (claim != NULL) claim->holders++;
    return claim;
}

void claims_release(struct claims *claims, struct claim *claim) {
    if (--claim->holders > 0) return;
    uint32_t i = 0;
    while (claims->list[i] != claim) i++;
    memmove(&claims->list[i], &claims->list[i + 1], (--claims->count - i) * sizeof claims->list[0]);
    if (claim->newest) find_newest(claims, &claim->run);
    free(claim);
}

void claim_count_member(struct claim *claim, uint32_t member, int by) {
    claim->present += (uint32_t)by;
    if (claim->members[member].join_number < claim->quorum.newer) claim->elders += (uint32_t)by;
}

void claims_count(struct claims *claims, const struct desk_run *run, const struct wire_id *id, int by) {
    for (uint32_t i = 0; i < claims->count; i++) {
        struct claim *claim = claims->list[i];
        if (!desk_run_equal(&claim->run, run)) continue;
        uint32_t member = roster_find(claim->members, claim->sorted, claim->count, id);
        if (member != UINT32_MAX) claim_count_member(claim, member, by);
    }
}

// ---- majorities ----

uint32_t claim_quorum(const struct claim *claim) {
    uint32_t majority = claim->count / 2 + 1;
    return claim->quorum.members > majority ? claim->quorum.members : majority;
}

bool claim_has_majority(const struct claim *claim) {
    return claim != NULL && claim->present >= claim_quorum(claim) && claim->elders >= claim->quorum.elders;
}

struct claim *claims_best(const struct claims *claims) {
    struct claim *best = NULL;
    for (uint32_t i = 0; i < claims->count; i++) {
        struct claim *claim = claims->list[i];
        if (!claim->newest) continue;
        bool better = best == NULL || (claim_has_majority(claim) && !claim_has_majority(best)) ||
                      (claim_has_majority(claim) == claim_has_majority(best) && claim->present > best->present);
        if (better) best = claim;
    }
    return best;
}

uint32_t claim_group_end(const struct claim *claim, uint32_t begin) {
    uint32_t end = begin;
    while (end < claim->count && claim->members[end].group == claim->members[begin].group) end++;
    return end;
}
