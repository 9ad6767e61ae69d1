#include "peer/recovery.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/platform.h"

void recovery_init(struct recovery *r, uint32_t limit_ms, uint32_t masters) {
    memset(r, 0, offsetof(struct recovery, sizes));
    r->limit_ms = limit_ms;
    r->masters = masters;
    r->resumed.last_vote.sizes = r->sizes;
    r->resumed.losses = r->losses;
}

void recovery_begin(struct recovery *r, const char *why, int64_t now) {
    if (r->state == RECOVERY_NONE) {
        snprintf(r->lost_why, sizeof r->lost_why, "%s", why);
        r->waits_why.chars[0] = 0;
        r->deadline = now + (int64_t)r->limit_ms * MS_NS;
    }
    r->state = RECOVERY_SEEKING;
}

void recovery_tell(struct recovery *r, bool earlier, int64_t limit, int64_t now) {
    // A master answers at once; where one does not, and there are others, they are tried soon.
    int64_t soon = RECOVERY_ANSWER_MS * MS_NS;
    r->state = RECOVERY_TOLD;
    r->answer_by = now + (r->masters > 1 && soon < limit ? soon : limit);
    r->waits_until = earlier ? now + limit : INT64_MAX;
}

bool recovery_promise(struct recovery *r, uint64_t generation, int64_t limit, int64_t now) {
    if (generation <= r->promised) return false;
    r->promised = generation;
    // The master has, or will have, the promises of more than half, and waits up to a limit for the rest.
    if (r->waits_until != INT64_MAX) r->waits_until = now + 2 * limit;
    return true;
}

// Returns the rank in a missed epoch, of which a peer hears only the size. All members of `now` were in the group
// before. With the same size they were all of it; otherwise a loss follows, which the program meets before it can use a
// rank.
static uint32_t rank_before(const struct member_view *now, uint32_t group_world) {
    return group_world == now->group_world ? now->rank : MEMBER_NO_RANK;
}

// A group epoch from the last loss up to the end of the vote. The one in force at its end may be newer, which RESUMED
// does not tell; the losses that the program counts on are the same, and no op that begins after the vote has a verdict
// in an older one.
static uint64_t group_epoch_of(const struct wire_resumed *resumed, uint64_t known) {
    for (uint32_t i = 0; i < resumed->loss_count; i++)
        if (resumed->losses[i].epoch > known && resumed->losses[i].epoch <= resumed->last_vote.epoch)
            known = resumed->losses[i].epoch;
    return known == 0 || known > resumed->last_vote.epoch ? resumed->last_vote.epoch : known;
}

static struct member_view view_of_vote(const struct wire_resumed *resumed, uint32_t group, uint64_t known) {
    const struct wire_ended_vote *vote = &resumed->last_vote;
    struct member_view view = {.number = vote->epoch,
                               .group_epoch = group_epoch_of(resumed, known),
                               .groups = vote->count,
                               .rank = MEMBER_NO_RANK};
    for (uint32_t i = 0; i < vote->count; i++) {
        uint32_t size = vote->sizes[i].count;
        view.global_world += size;
        if (size > view.largest_group) view.largest_group = size;
        if (vote->sizes[i].group == group) view.group_world = size;
    }
    return view;
}

bool recovery_take_resumed(struct recovery *r, const uint8_t *body, size_t length, uint32_t group, uint64_t known) {
    if (!wire_decode_resumed(body, length, &r->resumed)) return false;
    r->state = RECOVERY_RESUMED;
    r->waits_until = INT64_MAX;
    r->late.vote = r->resumed.vote_ended;
    r->late.sync = r->resumed.sync_ended;
    r->late.view = view_of_vote(&r->resumed, group, known);
    return true;
}

bool recovery_take_waiting(struct recovery *r, const uint8_t *body, size_t length) {
    if (!wire_decode_text(body, length, &r->waits_why)) return false;
    r->waits_why.chars[r->waits_why.length < WIRE_MAX_TEXT ? r->waits_why.length : WIRE_MAX_TEXT - 1] = 0;
    return true;
}

void recovery_end(struct recovery *r) {
    r->state = RECOVERY_NONE;
    memset(&r->late, 0, sizeof r->late);
}

bool recovery_looks_again(const struct recovery *r, int64_t now) {
    return r->state == RECOVERY_TOLD && now >= r->waits_until;
}

bool recovery_is_unheard(const struct recovery *r) { return r->state == RECOVERY_SEEKING || r->state == RECOVERY_TOLD; }

struct member_view recovery_loss(const struct recovery *r, uint32_t at, const struct member_view *now) {
    const struct wire_loss *loss = &r->resumed.losses[at];
    return (struct member_view){loss->epoch,
                                loss->epoch,
                                loss->members,
                                loss->group_members,
                                loss->groups,
                                loss->largest_group,
                                rank_before(now, loss->group_members)};
}
