#include "peer/recovery.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/platform.h"
#include "master/rounds.h"
#include "pccl.h"

// ---- the record ----

void recovery_init(struct recovery *r) {
    memset(r, 0, offsetof(struct recovery, sizes));
    r->masters = 1;
    r->last_vote.sizes = r->sizes;
    r->resumed.last_vote.sizes = r->resumed_sizes;
    r->resumed.losses = r->resumed_losses;
}

void recovery_fini(struct recovery *r) {
    while (r->epoch_count > 0) epoch_put(r->epochs[--r->epoch_count]);
}

static void drop_epoch(struct recovery *r, uint32_t at) {
    epoch_put(r->epochs[at]);
    memmove(&r->epochs[at], &r->epochs[at + 1], (--r->epoch_count - at) * sizeof *r->epochs);
}

static void keep_epoch(struct recovery *r, const struct epoch *epoch) {
    while (r->epoch_count > 1 && r->epochs[1]->group_epoch <= r->adopted.group_epoch) drop_epoch(r, 0);
    if (r->epoch_count > 0 && r->epochs[r->epoch_count - 1]->group_epoch == epoch->group_epoch) return;
    if (r->epoch_count == RECOVERY_EPOCHS) drop_epoch(r, 1); // not the adopted one
    r->epochs[r->epoch_count++] = epoch_get(epoch);
}

void recovery_note_vote(struct recovery *r, uint64_t number, const struct wire_outcome *outcome,
                        const struct epoch *epoch) {
    struct wire_ended_vote *vote = &r->last_vote;
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

void recovery_note_epoch(struct recovery *r, const struct wire_epoch_commit *commit, const struct epoch *epoch) {
    const struct wire_epoch *told = &commit->epoch;
    r->quorum = commit->quorum;
    memcpy(r->signature, commit->signature, sizeof r->signature);
    keep_epoch(r, epoch);
    if (told->lost_epoch > r->lost_epoch) r->lost_epoch = told->lost_epoch;
    if (told->sync_round > r->sync.round) {
        r->sync.round = told->sync_round;
        r->sync.expected = told->sync_expected;
        r->sync.revision = told->sync_expected == 0 ? 0 : told->sync_expected - 1;
        r->sync.committed = r->sync.committed && told->sync_expected != 0;
    }
    uint8_t kind = commit->reason == WIRE_REASON_UPDATE  ? WIRE_VOTE_UPDATE
                   : commit->reason == WIRE_REASON_ORDER ? WIRE_VOTE_OPTIMIZE
                                                         : 0;
    struct wire_outcome outcome = {.kind = kind, .code = pcclSuccess};
    if (kind != 0 && told->votes_ended > r->last_vote.number) recovery_note_vote(r, told->votes_ended, &outcome, epoch);
}

void recovery_take_vote(struct recovery *r, const struct wire_ended_vote *vote) {
    r->last_vote = *vote;
    r->last_vote.sizes = r->sizes;
    memcpy(r->sizes, vote->sizes, vote->count * sizeof *r->sizes);
}

void recovery_note_sync(struct recovery *r, const struct wire_sync_end *end) {
    r->sync.round = end->round;
    r->sync.code = end->code;
    if (end->code != pcclSuccess) return;
    r->sync.committed = true;
    r->sync.revision = end->revision;
    r->sync.expected = rounds_expect(end->revision);
}

void recovery_note_verdict(struct recovery *r, const struct wire_verdict *verdict) {
    static const struct wire_id nobody;
    bool cancels = wire_verdict_cancels(verdict->kind);
    bool ends = verdict->kind == WIRE_VERDICT_COMMIT || verdict->kind == WIRE_VERDICT_MISMATCH || cancels;
    // ABORT and REDO follow from what members report; a supplier is found anew.
    if (!ends || !wire_id_equal(&verdict->supplier, &nobody)) return;
    // COMMIT may follow CANCEL, and counts then.
    for (uint32_t i = 0; i < r->past_count; i++)
        if (wire_op_name_equal(&r->past[i].name, &verdict->name)) {
            if (wire_verdict_cancels(r->past[i].kind)) r->past[i].kind = verdict->kind;
            return;
        }
    r->past[r->past_next] = (struct wire_past){verdict->name, verdict->kind, verdict->other};
    r->past_next = (r->past_next + 1) % WIRE_MAX_PAST;
    if (r->past_count < WIRE_MAX_PAST) r->past_count++;
}

void recovery_note_loss(struct recovery *r, const struct member_view *view) {
    // cannot be: there are no more members to lose before the next vote is adopted
    if (r->loss_count == WIRE_MAX_MEMBERS) {
        memmove(r->losses, r->losses + 1, (WIRE_MAX_MEMBERS - 1) * sizeof *r->losses);
        r->loss_count--;
    }
    r->losses[r->loss_count++] = *view;
}

void recovery_adopt(struct recovery *r, const struct member_view *view) {
    if (view->number < r->adopted.number) return;
    r->adopted = *view;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->loss_count; i++)
        if (r->losses[i].group_epoch > view->group_epoch) r->losses[kept++] = r->losses[i];
    r->loss_count = kept;
}

void recovery_adopt_loss(struct recovery *r, uint64_t group_epoch) {
    const struct member_view *found = NULL;
    for (uint32_t i = 0; i < r->loss_count && r->losses[i].group_epoch <= group_epoch; i++) found = &r->losses[i];
    if (found != NULL && found->number >= r->adopted.number) r->adopted = *found;
}

// The newest group epoch that is known, entered or of a loss; 0: none.
static uint64_t newest(const struct recovery *r) {
    uint64_t entered = r->epoch_count == 0 ? 0 : r->epochs[r->epoch_count - 1]->group_epoch;
    return entered > r->lost_epoch ? entered : r->lost_epoch;
}

const struct epoch_ring *recovery_members(const struct recovery *r) {
    uint32_t i = r->epoch_count;
    while (i > 0 && r->epochs[i - 1]->group_epoch > r->adopted.group_epoch) i--;
    return i > 0 && r->epochs[i - 1]->ring.count == r->adopted.group_world ? &r->epochs[i - 1]->ring : NULL;
}

static void write_record(const struct recovery *r, struct wire_resume *resume, struct wire_past past[WIRE_MAX_PAST],
                         struct wire_loss losses[WIRE_MAX_MEMBERS]) {
    uint32_t first = r->past_count < WIRE_MAX_PAST ? 0 : r->past_next;
    for (uint32_t i = 0; i < r->past_count; i++) past[i] = r->past[(first + i) % WIRE_MAX_PAST];
    for (uint32_t i = 0; i < r->loss_count; i++) {
        const struct member_view *view = &r->losses[i];
        losses[i] =
            (struct wire_loss){view->number, view->global_world, view->group_world, view->groups, view->largest_group};
    }
    resume->sync_committed = r->sync.committed;
    resume->sync_code = r->sync.code;
    resume->sync_revision = r->sync.revision;
    resume->last_vote = r->last_vote;
    resume->epoch.lost_epoch = r->lost_epoch;
    resume->epoch.votes_ended = r->last_vote.number;
    resume->epoch.sync_round = r->sync.round;
    resume->epoch.sync_expected = r->sync.expected;
    resume->past_count = r->past_count;
    resume->past = past;
    resume->loss_count = r->loss_count;
    resume->losses = losses;
    resume->quorum = r->quorum;
    memcpy(resume->signature, r->signature, sizeof resume->signature);
}

// ---- the search for a master ----

void recovery_begin(struct recovery *r, const char *why, int64_t now) {
    if (r->state == RECOVERY_NONE) {
        snprintf(r->lost_why, sizeof r->lost_why, "%s", why);
        r->waits_why.chars[0] = 0;
        r->deadline = now + (int64_t)r->limit_ms * MS_NS;
    }
    r->state = RECOVERY_SEEKING;
}

void recovery_resume(struct recovery *r, bool earlier, int64_t limit, int64_t now, struct wire_resume *resume,
                     struct wire_past past[WIRE_MAX_PAST], struct wire_loss losses[WIRE_MAX_MEMBERS]) {
    write_record(r, resume, past, losses);
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

bool recovery_take_resumed(struct recovery *r, const uint8_t *body, size_t length, uint32_t group) {
    if (!wire_decode_resumed(body, length, &r->resumed)) return false;
    r->state = RECOVERY_RESUMED;
    r->waits_until = INT64_MAX;
    r->late.vote = r->resumed.vote_ended;
    r->late.sync = r->resumed.sync_ended;
    r->late.view = view_of_vote(&r->resumed, group, newest(r));
    return true;
}

bool recovery_take_waiting(struct recovery *r, const uint8_t *body, size_t length) {
    if (!wire_decode_text(body, length, &r->waits_why)) return false;
    r->waits_why.chars[r->waits_why.length < WIRE_MAX_TEXT ? r->waits_why.length : WIRE_MAX_TEXT - 1] = 0;
    return true;
}

// Returns one of the losses that RESUMED reported, as far as `now`, the first view after them, shows it.
static struct member_view loss_of(const struct recovery *r, uint32_t at, const struct member_view *now) {
    const struct wire_loss *loss = &r->resumed.losses[at];
    return (struct member_view){loss->epoch,
                                loss->epoch,
                                loss->members,
                                loss->group_members,
                                loss->groups,
                                loss->largest_group,
                                rank_before(now, loss->group_members)};
}

void recovery_hear_losses(struct recovery *r, uint64_t before, const struct member_view *now,
                          struct member_output *out) {
    if (r->state != RECOVERY_RESUMED) return;
    r->late.view.rank = rank_before(now, r->late.view.group_world);
    for (uint32_t i = 0; i < r->resumed.loss_count; i++) {
        struct member_view view = loss_of(r, i, now);
        if (view.number <= before || view.number <= r->lost_epoch || view.number >= now->number) continue;
        recovery_note_loss(r, &view);
        r->lost_epoch = view.number;
        member_act(out, MEMBER_MISSED_LOSS)->group_epoch = view.number;
    }
}

bool recovery_has_lost(const struct recovery *r, const struct wire_epoch *epoch, bool newcomer) {
    uint64_t known = r->lost_epoch;
    if (newcomer && !r->late.vote) return false;
    if (r->late.vote && r->late.view.number > known) known = r->late.view.number;
    return epoch->lost_epoch > known;
}

// ---- dialling ----

void recovery_seek_begin(struct recovery_seek *seek, bool again, int64_t now) {
    seek->at = 0;
    seek->again = again;
    seek->began = seek->next = seek->told = now;
}

bool recovery_seek_failed(struct recovery_seek *seek, int64_t now) {
    seek->next = now;
    if (++seek->at < seek->count) return true;
    seek->at = 0;
    seek->next = now + (now - seek->began < SEEK_FAST_FOR_MS * MS_NS ? SEEK_FAST_MS : SEEK_SLOW_MS) * MS_NS;
    return seek->again;
}

bool recovery_seek_tells(struct recovery_seek *seek, int64_t now) {
    if (now - seek->told < SEEK_TELL_MS * MS_NS) return false;
    seek->told = now;
    return true;
}
