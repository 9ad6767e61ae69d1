#include "peer/recovery.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/platform.h"
#include "master/rounds.h"
#include "pccl.h"

// ---- the recovery record ----

void recovery_record_init(struct recovery_record *t) {
    memset(t, 0, offsetof(struct recovery_record, sizes));
    t->last_vote.sizes = t->sizes;
}

void recovery_record_fini(struct recovery_record *t) {
    while (t->epoch_count > 0) epoch_put(t->epochs[--t->epoch_count]);
}

static void drop_epoch(struct recovery_record *t, uint32_t at) {
    epoch_put(t->epochs[at]);
    memmove(&t->epochs[at], &t->epochs[at + 1], (--t->epoch_count - at) * sizeof *t->epochs);
}

static void keep_epoch(struct recovery_record *t, const struct epoch *epoch) {
    while (t->epoch_count > 1 && t->epochs[1]->group_epoch <= t->adopted.group_epoch) drop_epoch(t, 0);
    if (t->epoch_count > 0 && t->epochs[t->epoch_count - 1]->group_epoch == epoch->group_epoch) return;
    if (t->epoch_count == RECOVERY_RECORD_EPOCHS) drop_epoch(t, 1); // not the adopted one
    t->epochs[t->epoch_count++] = epoch_get(epoch);
}

void recovery_record_note_vote(struct recovery_record *t, uint64_t number, const struct wire_outcome *outcome,
                               const struct epoch *epoch) {
    struct wire_ended_vote *vote = &t->last_vote;
    vote->number = number;
    vote->kind = outcome->kind;
    vote->code = outcome->code;
    vote->value = outcome->value;
    vote->epoch = epoch == NULL ? 0 : epoch->number;
    vote->count = 0;
    for (uint32_t i = 0; epoch != NULL && i < epoch->count; i++) {
        uint32_t group = epoch->everyone[i].group;
        if (i == 0 || group != epoch->everyone[i - 1].group)
            vote->sizes[vote->count++] = (struct wire_group_size){.group = group};
        vote->sizes[vote->count - 1].count++;
    }
}

void recovery_record_note_epoch(struct recovery_record *t, const struct wire_epoch_commit *commit,
                                const struct epoch *epoch) {
    const struct wire_epoch *told = &commit->epoch;
    t->quorum = commit->quorum;
    memcpy(t->signature, commit->signature, sizeof t->signature);
    keep_epoch(t, epoch);
    if (told->lost_epoch > t->lost_epoch) t->lost_epoch = told->lost_epoch;
    if (told->sync_round > t->sync.round) {
        t->sync.round = told->sync_round;
        t->sync.expected = told->sync_expected;
    }
    uint8_t kind = commit->reason == WIRE_REASON_UPDATE  ? WIRE_VOTE_UPDATE
                   : commit->reason == WIRE_REASON_ORDER ? WIRE_VOTE_OPTIMIZE
                                                         : 0;
    struct wire_outcome outcome = {.kind = kind, .code = pcclSuccess};
    if (kind != 0 && told->votes_ended > t->last_vote.number)
        recovery_record_note_vote(t, told->votes_ended, &outcome, epoch);
}

void recovery_record_take_vote(struct recovery_record *t, const struct wire_ended_vote *vote) {
    t->last_vote = *vote;
    t->last_vote.sizes = t->sizes;
    memcpy(t->sizes, vote->sizes, vote->count * sizeof *t->sizes);
}

void recovery_record_note_sync(struct recovery_record *t, const struct wire_sync_end *end) {
    t->sync.round = end->round;
    t->sync.code = end->code;
    t->sync.revision = end->revision;
    if (end->code != pcclSuccess) return;
    t->sync.committed = true;
    t->sync.expected = rounds_expect(end->revision);
}

void recovery_record_note_verdict(struct recovery_record *t, const struct wire_verdict *verdict) {
    static const struct wire_id nobody;
    bool ends = verdict->kind == WIRE_VERDICT_COMMIT || verdict->kind == WIRE_VERDICT_MISMATCH ||
                verdict->kind == WIRE_VERDICT_CANCEL;
    // ABORT and REDO follow from what members report; a supplier is found anew.
    if (!ends || !wire_id_equal(&verdict->supplier, &nobody)) return;
    // COMMIT may follow CANCEL, and counts then.
    for (uint32_t i = 0; i < t->past_count; i++)
        if (wire_op_name_equal(&t->past[i].name, &verdict->name)) {
            if (t->past[i].kind == WIRE_VERDICT_CANCEL) t->past[i].kind = verdict->kind;
            return;
        }
    t->past[t->past_next] = (struct wire_past){verdict->name, verdict->kind, verdict->other};
    t->past_next = (t->past_next + 1) % WIRE_MAX_PAST;
    if (t->past_count < WIRE_MAX_PAST) t->past_count++;
}

void recovery_record_note_loss(struct recovery_record *t, const struct member_view *view) {
    // cannot be: there are no more members to lose before the next vote is adopted
    if (t->loss_count == WIRE_MAX_MEMBERS) {
        memmove(t->losses, t->losses + 1, (WIRE_MAX_MEMBERS - 1) * sizeof *t->losses);
        t->loss_count--;
    }
    t->losses[t->loss_count++] = *view;
}

void recovery_record_adopt(struct recovery_record *t, const struct member_view *view) {
    if (view->number < t->adopted.number) return;
    t->adopted = *view;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->loss_count; i++)
        if (t->losses[i].group_epoch > view->group_epoch) t->losses[kept++] = t->losses[i];
    t->loss_count = kept;
}

void recovery_record_adopt_loss(struct recovery_record *t, uint64_t group_epoch) {
    const struct member_view *found = NULL;
    for (uint32_t i = 0; i < t->loss_count && t->losses[i].group_epoch <= group_epoch; i++) found = &t->losses[i];
    if (found != NULL && found->number >= t->adopted.number) t->adopted = *found;
}

uint64_t recovery_record_newest(const struct recovery_record *t) {
    uint64_t entered = t->epoch_count == 0 ? 0 : t->epochs[t->epoch_count - 1]->group_epoch;
    return entered > t->lost_epoch ? entered : t->lost_epoch;
}

const struct epoch_ring *recovery_record_members(const struct recovery_record *t) {
    uint32_t i = t->epoch_count;
    while (i > 0 && t->epochs[i - 1]->group_epoch > t->adopted.group_epoch) i--;
    return i > 0 && t->epochs[i - 1]->ring.count == t->adopted.group_world ? &t->epochs[i - 1]->ring : NULL;
}

void recovery_record_tell(const struct recovery_record *t, struct wire_resume *resume,
                          struct wire_past past[WIRE_MAX_PAST], struct wire_loss losses[WIRE_MAX_MEMBERS]) {
    uint32_t first = t->past_count < WIRE_MAX_PAST ? 0 : t->past_next;
    for (uint32_t i = 0; i < t->past_count; i++) past[i] = t->past[(first + i) % WIRE_MAX_PAST];
    for (uint32_t i = 0; i < t->loss_count; i++) {
        const struct member_view *view = &t->losses[i];
        losses[i] =
            (struct wire_loss){view->number, view->global_world, view->group_world, view->groups, view->largest_group};
    }
    resume->sync_committed = t->sync.committed;
    resume->sync_code = t->sync.code;
    resume->sync_revision = t->sync.revision;
    resume->last_vote = t->last_vote;
    resume->epoch.lost_epoch = t->lost_epoch;
    resume->epoch.votes_ended = t->last_vote.number;
    resume->epoch.sync_round = t->sync.round;
    resume->epoch.sync_expected = t->sync.expected;
    resume->past_count = t->past_count;
    resume->past = past;
    resume->loss_count = t->loss_count;
    resume->losses = losses;
    resume->quorum = t->quorum;
    memcpy(resume->signature, t->signature, sizeof resume->signature);
}

// ---- the search for a master ----

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

// ---- dialling ----

void recovery_seek_begin(struct recovery_seek *seek, bool again, int64_t now) {
    seek->at = 0;
    seek->again = again;
    seek->began = seek->next = seek->told = now;
}

const struct wire_address *recovery_seek_master(const struct recovery_seek *seek) { return &seek->masters[seek->at]; }

bool recovery_seek_failed(struct recovery_seek *seek, int64_t now) {
    seek->next = now;
    if (++seek->at < seek->count) return true;
    seek->at = 0;
    seek->next = now + (now - seek->began < SEEK_FAST_FOR_MS * MS_NS ? SEEK_FAST_MS : SEEK_SLOW_MS) * MS_NS;
    return seek->again;
}

void recovery_seek_anew(struct recovery_seek *seek, int64_t now) {
    seek->at = 0;
    seek->next = now;
}

bool recovery_seek_tells(struct recovery_seek *seek, int64_t now) {
    if (now - seek->told < SEEK_TELL_MS * MS_NS) return false;
    seek->told = now;
    return true;
}
