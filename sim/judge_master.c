#include "sim/judge_master.h"

#include <string.h>

#include "sim/judge_ops.h"
#include "sim/trace.h"
#include "sim/truth.h"

enum { REPORTED_LIMITS = 6 }; // heartbeat limits after which a report is forgotten

// Nobody is admitted who has no link to a member of its group.
static void judge_newcomer(struct pccl_sim *s, const struct truth *truth, int slot) {
    const struct process *p = &s->processes[slot];
    if (!sim_alive(s, slot, truth->lives[slot]) || p->tainted) return;
    for (int other = 0; other < (int)s->peers; other++) {
        uint32_t life = truth->lives[other];
        if (other == slot || life == 0 || truth->groups[other] != truth->groups[slot] ||
            truth_is_tainted(s, other, life) || p->met[other] >= life) // an older master may speak late
            continue;
        sim_fail(s, "progress", "the master admits peer %d to epoch %ju, which has no link to peer %d", slot + 1,
                 truth->number, other + 1);
    }
}

// More than half of it.
static void judge_quorum(struct pccl_sim *s, const struct truth *truth) {
    const struct epoch_record *newest = truth_newest_entered(s, truth, true);
    if (newest == NULL) return;
    uint32_t members = 0, left = 0;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        members += newest->lives[slot] != 0;
        left += newest->lives[slot] != 0 && newest->lives[slot] == truth->lives[slot];
    }
    if (2 * left <= members)
        sim_fail(s, "agreement",
                 "a master takes the run up with %u of the %u members of epoch %ju, which is no majority", left,
                 members, newest->number);
}

// The epoch that was announced last, to another one of its members.
static bool is_told_again(const struct truth *truth, uint32_t master_life, const struct wire_header *header,
                          const struct wire_epoch *epoch) {
    bool same =
        truth->master_life == master_life && truth->generation == header->generation && truth->number == header->epoch;
    for (uint32_t i = 0; i < epoch->count && same; i++) {
        uint32_t life;
        int slot = sim_slot(&epoch->members[i].id, &life);
        same = slot < 0 || life <= truth->lives[slot];
    }
    return same;
}

static bool is_heard(const struct pccl_sim *s, uint64_t run, uint64_t generation) {
    for (int slot = 0; slot < (int)s->peers; slot++) {
        struct wire_header header = member_header(s->processes[slot].core);
        if (s->processes[slot].running && header.run == run && header.generation >= generation) return true;
    }
    return false;
}

// All members hear the same of who is gone, and nobody is said to have left who did not, or to be lost who did.
static void judge_gone(struct pccl_sim *s, uint32_t k, bool again, const struct wire_header *header,
                       const struct wire_epoch_commit *commit) {
    uint64_t digest = commit->gone_count;
    for (uint32_t i = 0; i < commit->gone_count; i++) {
        uint32_t life;
        int slot = sim_slot(&commit->gone[i].id, &life);
        uint8_t reason = commit->gone[i].reason;
        digest = sim_mix(digest + reason + 8 * (uint64_t)(slot + 1) + 4096 * (uint64_t)life);
        if (slot < 0 || slot >= (int)s->peers || truth_is_tainted(s, slot, life)) continue;
        const struct left_record *left = &s->said->left[slot];
        bool heard = left->life == life && left->run == header->run, expelled = s->said->expelled[slot] == life;
        bool ended = heard && left->ended && left->generation == header->generation;
        bool wrong = reason == WIRE_LOSS_UNKNOWN  ? header->generation <= 1
                     : reason == WIRE_LOSS_ENDED  ? !heard || !left->ended
                     : reason == WIRE_LOSS_LEFT   ? !heard
                     : reason == WIRE_LOSS_DIED   ? ended
                     : reason == WIRE_LOSS_SILENT ? !expelled || ended
                                                  : reason == WIRE_LOSS_EXPELLED && !expelled;
        if (wrong)
            sim_fail(s, "agreement", "the master says of peer %d that it %s, which is not so", slot + 1,
                     wire_loss_name(reason));
    }
    if (again && digest != s->said->gone[k])
        sim_fail(s, "agreement", "members of epoch %ju hear different reasons of a loss", header->epoch);
    s->said->gone[k] = digest;
}

static void on_epoch(struct pccl_sim *s, uint32_t k, uint32_t master_life, const struct connection *control,
                     const struct wire_header *header, const uint8_t *body) {
    struct wire_epoch_commit commit = {.epoch.members = s->said->members, .gone = s->said->gone_list};
    struct truth *truth = truth_for(s, header->run);
    if (!wire_decode_epoch_commit(body, header->length, &commit)) {
        sim_fail(s, "no trust in bytes", "the master made an EPOCH that cannot be read");
        return;
    }
    if (control->group < GROUPS && commit.epoch.group_epoch == commit.epoch.number) {
        s->said->regrouped_at[control->group] = s->now;
        s->said->regrouped[control->group] = header->epoch;
    }
    judge_gone(s, k,
               s->said->last[k].life == master_life && s->said->last[k].run == header->run &&
                   s->said->last[k].generation == header->generation && s->said->last[k].number == commit.epoch.number,
               header, &commit);
    s->said->last[k].life = master_life;
    s->said->last[k].run = header->run;
    s->said->last[k].generation = header->generation;
    s->said->last[k].number = commit.epoch.number;
    if (is_told_again(truth, master_life, header, &commit.epoch)) return;
    bool left = false;
    for (int slot = 0; slot < (int)s->peers; slot++)
        left |= truth->lives[slot] != 0 && sim_alive(s, slot, truth->lives[slot]);
    // The last announcement is lost if nobody is left who may have heard of it. A master that speaks late is not heard
    // by who has heard of a later generation.
    if ((left || is_heard(s, header->run, truth->generation)) && truth->generation > header->generation) return;
    if (left && truth->generation == header->generation && truth->master_life != master_life)
        sim_fail(s, "agreement", "two masters have taken the run up in generation %ju", header->generation);
    if (left && truth->generation == header->generation && truth->number >= header->epoch) {
        if (truth->number > header->epoch)
            sim_fail(s, "agreement", "the master announces epoch %ju after epoch %ju", header->epoch, truth->number);
        return;
    }
    bool another = truth->master_life != master_life || truth->number >= header->epoch;
    bool again = !left && another && truth->generation >= header->generation;
    if (again) judge_ops_forget(s, header->run, header->generation);
    bool taken_up = header->generation > 1 && truth->generation != header->generation;
    s->counts[COUNT_TAKEOVERS] += taken_up;
    struct epoch_record *record = &s->truths->epochs[s->truths->epoch_count++ % EPOCHS_MOST];
    *record = (struct epoch_record){
        .run = header->run, .generation = header->generation, .number = commit.epoch.number, .quorum = commit.quorum};
    uint32_t before[SLOTS];
    memcpy(before, truth->lives, sizeof before);
    memset(truth->lives, 0, sizeof truth->lives);
    truth->generation = header->generation;
    truth->number = commit.epoch.number;
    truth->master = k;
    truth->master_life = master_life;
    if (again) memset(truth->commits, 0, sizeof truth->commits);
    if (again) memset(truth->announced, 0, sizeof truth->announced);
    for (uint32_t i = 0; i < commit.epoch.count; i++) {
        uint32_t life;
        int slot = sim_slot(&commit.epoch.members[i].id, &life);
        if (slot < 0) continue; // of a changed HELLO
        if (truth->lives[slot] != 0 && !truth_is_tainted(s, slot, s->processes[slot].life) &&
            commit.reason == WIRE_REASON_UPDATE && truth->lives[slot] == life)
            sim_fail(s, "agreement", "peer %d is twice in epoch %ju", slot + 1, commit.epoch.number);
        if (life <= truth->lives[slot]) continue; // an old one that is not known to be lost
        truth->lives[slot] = life;
        truth->groups[slot] = commit.epoch.members[i].group;
        record->old[slot] |= commit.epoch.members[i].join_number < commit.quorum.newer;
    }
    if (s->limits.most != 0 && commit.epoch.count > s->limits.most)
        sim_fail(s, "agreement", "epoch %ju has %u members, and %u at most may be there", commit.epoch.number,
                 commit.epoch.count, s->limits.most);
    if (taken_up) judge_quorum(s, truth);
    memcpy(record->lives, truth->lives, sizeof record->lives);
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (truth->lives[slot] != 0 && before[slot] != truth->lives[slot]) {
            truth->since[slot] = s->now;
            judge_newcomer(s, truth, slot);
        }
}

static void on_verdict(struct pccl_sim *s, uint32_t group, const struct wire_header *header, const uint8_t *body) {
    struct wire_verdict *verdict = &s->said->verdict;
    if (!wire_decode_verdict(body, header->length, verdict)) {
        sim_fail(s, "no trust in bytes", "the master made a VERDICT that cannot be read");
        return;
    }
    if (verdict->kind == WIRE_VERDICT_COMMIT) judge_commit(s, header->run, header->generation, group, verdict);
}

// To one member. While somebody is left who took part in the last commit, the next one is of the same or of the next
// revision.
static void on_sync_end(struct pccl_sim *s, const struct connection *control, const struct wire_header *header,
                        const uint8_t *body) {
    struct wire_sync_end *end = &s->said->sync_end;
    struct truth *truth = judge_truth(s, header->run);
    if (!wire_decode_sync_end(body, header->length, end)) {
        sim_fail(s, "no trust in bytes", "the master made a SYNC_END that cannot be read");
        return;
    }
    // The epoch tells the group, also of a member whose RESUME was changed on this connection or an earlier one.
    uint32_t group = control->group;
    if (truth->lives[control->ends[0]] == control->lives[0]) group = truth->groups[control->ends[0]];
    if (end->code != 0 || group >= GROUPS || truth->run == 0 || header->generation < truth->generation) return;
    struct commit_record *last = &truth->commits[group], *announced = &truth->announced[group];
    if (announced->run != header->run || announced->round != end->round) {
        bool held = false, doubted = false;
        for (int slot = 0; slot < (int)s->peers; slot++) doubted |= truth_is_tainted(s, slot, announced->lives[slot]);
        // A peer that is not judged may have heard of that round without saying so, or not have heard: the next
        // revision tells.
        if (doubted && end->revision >= announced->revision && end->revision <= announced->revision + 1)
            *last = *announced;
        for (int slot = 0; slot < (int)s->peers; slot++)
            held |= last->run == header->run && last->lives[slot] != 0 && last->lives[slot] == truth->lives[slot];
        if (held && end->revision != last->revision && end->revision != last->revision + 1)
            sim_fail(s, "parity", "group %u commits revision %ju after revision %ju, of which members are left", group,
                     end->revision, last->revision);
        *announced = (struct commit_record){.run = header->run, .round = end->round, .revision = end->revision};
    }
    announced->lives[control->ends[0]] = control->lives[0];
    if (last->run == header->run && last->round == end->round) *last = *announced;
}

// Do the two miss each other's links since their group was formed last?
static bool is_broken(const struct pccl_sim *s, uint32_t group, int one, int other) {
    // one that came with the order is over
    return s->said->reported_at[other][one] > s->said->regrouped_at[group] ||
           s->said->reported_at[one][other] > s->said->regrouped_at[group];
}

// Checks an expulsion for broken links: by the master's own counts, the expelled member has at least as many broken
// pairs as the other end of its only one, and is reported by at least as many.
static void on_expelled(struct pccl_sim *s, const struct connection *control, const struct wire_header *header,
                        const uint8_t *body) {
    struct wire_text text;
    const struct truth *truth = judge_truth(s, header->run);
    int culprit = control->ends[0], other = -1;
    if (!wire_decode_text(body, header->length, &text) || control->group >= GROUPS ||
        memmem(text.chars, text.length, "links failed twice", 18) == NULL)
        return;
    uint32_t against = 0, against_other = 0;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        int64_t recently = s->now - REPORTED_LIMITS * s->limit_ns;
        against += s->said->reported_at[slot][culprit] > recently || s->said->unreached_at[slot][culprit] > recently;
        bool pair = is_broken(s, control->group, culprit, slot);
        if (pair && other >= 0) return; // which pair it is expelled for cannot be told from here
        if (pair) other = slot;
    }
    uint32_t pairs = 0;
    for (int slot = 0; slot < (int)s->peers && other >= 0; slot++) {
        bool counts = s->said->expelled[slot] != truth->lives[slot] &&
                      judge_alive_member(s, header->run, slot, truth->lives[slot]);
        against_other += counts && s->said->reported_at[slot][other] > s->said->regrouped_at[control->group];
        pairs += counts && is_broken(s, control->group, other, slot);
    }
    if (other >= 0 && judge_alive_member(s, header->run, other, truth->lives[other]) && pairs > 1)
        sim_fail(s, "progress", "the master expels peer %d, which has one broken pair, and not peer %d, which has %u",
                 culprit + 1, other + 1, pairs);
    if (other >= 0 && judge_alive_member(s, header->run, other, truth->lives[other]) && against < against_other)
        sim_fail(s, "progress", "the master expels peer %d, whom %u report, and not peer %d, whom %u report",
                 culprit + 1, against, other + 1, against_other);
}

// Whom a member of a candidate has no links to it reports only if that candidate is judged, which cannot be told from
// here.
static void note_unreachable(struct pccl_sim *s, const struct connection *control, const struct wire_header *header,
                             const uint8_t *body) {
    struct wire_linked linked;
    uint32_t life;
    if (!wire_decode_linked(body, header->length, &linked)) return;
    for (uint32_t i = 0; i < linked.count; i++) {
        int slot = sim_slot(&linked.unreachable[i], &life);
        if (slot >= 0 && slot < (int)s->peers && s->processes[slot].life == life)
            s->said->unreached_at[control->ends[0]][slot] = s->now;
    }
}

void judge_link_report(struct pccl_sim *s, const struct connection *control, const struct wire_header *header,
                       const uint8_t *body) {
    if (header->type == WIRE_LINKED) note_unreachable(s, control, header, body);
    if (header->type == WIRE_LEAVE || header->type == WIRE_LEAVING) {
        struct left_record *left = &s->said->left[control->ends[0]];
        bool ended = left->life == control->lives[0] && left->run == header->run && left->ended;
        if (!ended) // a master that was replaced may hear the LEAVING before it later
            *left =
                (struct left_record){control->lives[0], header->run, header->generation, header->type == WIRE_LEAVE};
    }
    struct wire_link_down down;
    uint32_t life;
    if (header->type != WIRE_LINK_DOWN || !wire_decode_link_down(body, header->length, &down)) return;
    // the links have been made again since
    if (control->group >= GROUPS || header->epoch < s->said->regrouped[control->group]) return;
    int slot = sim_slot(&down.id, &life);
    if (slot >= 0 && slot < (int)s->peers && slot != control->ends[0] && s->processes[slot].life == life)
        s->said->reported_at[control->ends[0]][slot] = s->now;
}

void judge_sends(struct pccl_sim *s, uint32_t master, uint32_t life, const struct actions *actions, size_t first,
                 size_t end) {
    size_t last = SIZE_MAX;
    for (size_t i = first; i < end; i++) {
        const struct actions_send *send = &actions->sends[i];
        struct wire_header header;
        if (!wire_header_decode(actions->bytes.bytes + send->offset, &header) ||
            (send->offset == last && header.type != WIRE_EPOCH))
            continue;
        last = send->offset;
        const uint8_t *body = actions->bytes.bytes + send->offset + WIRE_HEADER_BYTES;
        if (header.type == WIRE_EPOCH) on_epoch(s, master, life, &s->controls[send->conn], &header, body);
        if (header.type == WIRE_EXPELLED) {
            on_expelled(s, &s->controls[send->conn], &header, body);
            s->said->expelled[s->controls[send->conn].ends[0]] = s->controls[send->conn].lives[0];
        }
        if (header.type == WIRE_VERDICT) on_verdict(s, s->controls[send->conn].group, &header, body);
        if (header.type == WIRE_SYNC_END) on_sync_end(s, &s->controls[send->conn], &header, body);
    }
}
