// The invariants, and how a run tells that one does not hold. What master and peers say is checked as it is said; what
// is bounded is looked at now and then. A process whose frames were changed on the way is not judged, and neither is
// what it takes part in.
#include "sim/world.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DEAD_LIMITS = 3,     // ARRIVAL_STRETCH: where pauses are usual
    DEAD_SLACK_MS = 500, // a slow path
    CALL_LIMITS = 12,    // heartbeat limits that a call may take when nothing goes wrong any more
    MEASURE_MS = 130,    // what an optimisation takes longer for each pair
    TAKE_UP_LIMITS = 7,  // that members take to meet at a master, and it to take their run up
    ACCUSED_LIMITS = 6,  // after so many an accusation is forgotten
    INNOCENT_LIMITS = 6
}; // after so many the aftermath of a fault is over

// ---- telling ----

void sim_line(struct pccl_sim *s, const char *format, ...) {
    char text[TEXT_BYTES];
    int length = snprintf(text, sizeof text, "%10.3f ms  ", (double)(s->now - SECOND_NS) / (double)MS_NS);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    if (s->config.trace_lines > 0)
        memcpy(s->lines + s->line_count++ % s->config.trace_lines * TEXT_BYTES, text, sizeof text);
    if (s->config.trace_fd < 0) return;
    size_t end = strlen(text);
    text[end < TEXT_BYTES - 1 ? end : TEXT_BYTES - 2] = '\n';
    if (write(s->config.trace_fd, text, end + 1) < 0) s->config.trace_fd = -1; // nobody reads it any more
}

void sim_fail(struct pccl_sim *s, const char *invariant, const char *format, ...) {
    if (s->state != PCCL_SIM_RUNNING) return; // the first one tells
    s->state = PCCL_SIM_FAILED;
    int length = snprintf(s->failure, sizeof s->failure, "seed %llu, %.3f ms: %s: ", (unsigned long long)s->config.seed,
                          (double)(s->now - SECOND_NS) / (double)MS_NS, invariant);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->failure + length, sizeof s->failure - (size_t)length, format, arguments);
    va_end(arguments);
}

static const char *name_id(char out[32], const struct wire_id *id) {
    uint32_t life;
    int slot = sim_slot(id, &life);
    if (slot < 0)
        snprintf(out, 32, "nobody");
    else
        snprintf(out, 32, "%d.%u", slot + 1, life);
    return out;
}

static void name_epoch(char out[TEXT_BYTES], int at, const struct wire_epoch *epoch) {
    at += snprintf(out + at, TEXT_BYTES - (size_t)at, " %llu, group epoch %llu:", (unsigned long long)epoch->number,
                   (unsigned long long)epoch->group_epoch);
    for (uint32_t i = 0; i < epoch->count && at < TEXT_BYTES - 40; i++) {
        char id[32];
        bool first = i > 0 && epoch->members[i].group != epoch->members[i - 1].group;
        at +=
            snprintf(out + at, TEXT_BYTES - (size_t)at, "%s %s", first ? " |" : "", name_id(id, &epoch->members[i].id));
    }
}

static void name_op(char out[TEXT_BYTES], int at, const struct wire_op_name *name, const char *what) {
    snprintf(out + at, TEXT_BYTES - (size_t)at, " (%llu, %llu, %u) %s", (unsigned long long)name->epoch,
             (unsigned long long)name->tag, name->sequence, what);
}

static void name_report(char out[TEXT_BYTES], int at, const struct wire_report *report) {
    static const char *const states[] = {"?", "open", "done", "kept"};
    for (uint32_t i = 0; i < report->count && at < TEXT_BYTES - 60; i++) {
        name_op(out, at, &report->ops[i].name, states[report->ops[i].state]);
        at += (int)strlen(out + at);
    }
}

const char *judge_frame_name(const struct pccl_sim *s, char out[TEXT_BYTES], const struct wire_header *header,
                             const uint8_t *body) {
    static const char *const verdicts[] = {"?", "commit", "abort", "redo", "mismatch"},
                             *const votes[] = {"?", "update", "pending", "optimize"},
                             *const reasons[] = {"?", "update", "loss", "relink", "order"};
    int at = snprintf(out, TEXT_BYTES, "%s [%llu]", wire_type_name(header->type), (unsigned long long)header->epoch);
    struct wire_member *members = ((struct pccl_sim *)s)->members; // scratch
    struct wire_epoch_commit commit = {.epoch.members = members};
    struct wire_candidate candidate = {.epoch.members = members};
    struct wire_op_report ops[TAGS + KEPT_MOST];
    struct wire_report report = {.ops = ops};
    struct wire_verdict *verdict = &((struct pccl_sim *)s)->verdict;
    struct wire_op_done done;
    struct wire_vote vote;
    struct wire_outcome outcome;
    struct wire_text text;
    struct wire_link_down down;
    char id[32];
    switch (header->type) {
    case WIRE_EPOCH:
        if (!wire_decode_epoch_commit(body, header->length, &commit)) break;
        at += snprintf(out + at, TEXT_BYTES - (size_t)at, " %s", reasons[commit.reason]);
        name_epoch(out, at, &commit.epoch);
        break;
    case WIRE_CANDIDATE:
        if (!wire_decode_candidate(body, header->length, &candidate)) break;
        at += snprintf(out + at, TEXT_BYTES - (size_t)at, " attempt %u", candidate.attempt);
        name_epoch(out, at, &candidate.epoch);
        break;
    case WIRE_REPORT:
        if (header->length < sizeof ops && wire_decode_report(body, header->length, &report))
            name_report(out, at, &report);
        break;
    case WIRE_VERDICT:
        if (wire_decode_verdict(body, header->length, verdict))
            name_op(out, at, &verdict->name, verdicts[verdict->kind]);
        break;
    case WIRE_DONE:
        if (wire_decode_op_done(body, header->length, &done)) name_op(out, at, &done.name, "");
        break;
    case WIRE_VOTE:
        if (wire_decode_vote(body, header->length, &vote))
            snprintf(out + at, TEXT_BYTES - (size_t)at, " %s", votes[vote.kind]);
        break;
    case WIRE_OUTCOME:
        if (wire_decode_outcome(body, header->length, &outcome))
            snprintf(out + at, TEXT_BYTES - (size_t)at, " %s: code %u, value %llu", votes[outcome.kind], outcome.code,
                     (unsigned long long)outcome.value);
        break;
    case WIRE_LINK_DOWN:
        if (wire_decode_link_down(body, header->length, &down))
            snprintf(out + at, TEXT_BYTES - (size_t)at, " to %s", name_id(id, &down.id));
        break;
    case WIRE_EXPELLED:
    case WIRE_REFUSED:
        if (wire_decode_text(body, header->length, &text))
            snprintf(out + at, TEXT_BYTES - (size_t)at, " %.*s", (int)text.length, text.chars);
        break;
    default: break;
    }
    return out;
}

// ---- who is judged ----

static bool tainted(const struct pccl_sim *s, int slot, uint32_t life) { return s->tainted[slot] == life && life != 0; }

static bool instance_tainted(const struct pccl_sim *s, const struct instance *instance) {
    for (int slot = 0; slot < (int)s->peers; slot++)
        if ((instance->members >> slot & 1) != 0 && tainted(s, slot, instance->lives[slot])) return true;
    return false;
}

struct truth *judge_truth(const struct pccl_sim *s, uint64_t run) {
    static const struct truth nobody;
    for (uint32_t i = 0; i < RUNS_MOST; i++)
        if (s->truths[i].run == run) return (struct truth *)&s->truths[i];
    return (struct truth *)&nobody; // never written
}

// Lives, and is a member in the epoch of its run that was announced last.
bool judge_alive_member(const struct pccl_sim *s, uint64_t run, int slot, uint32_t life) {
    return sim_alive(s, slot, life) && judge_truth(s, run)->lives[slot] == life;
}

// ---- what the master says ----

// Nobody is admitted who has no link to a member of its group.
static void judge_newcomer(struct pccl_sim *s, const struct truth *truth, int slot) {
    const struct process *p = &s->processes[slot];
    if (!sim_alive(s, slot, truth->lives[slot]) || p->tainted) return;
    for (int other = 0; other < (int)s->peers; other++) {
        uint32_t life = truth->lives[other];
        if (other == slot || life == 0 || truth->groups[other] != truth->groups[slot] || tainted(s, other, life) ||
            p->met[other] == life)
            continue;
        sim_fail(s, "progress", "the master admits peer %d to epoch %llu, which has no link to peer %d", slot + 1,
                 (unsigned long long)truth->number, other + 1);
    }
}

// Where the truth of that run is kept; the run that was announced first of all makes room for a new one.
static struct truth *truth_for(struct pccl_sim *s, uint64_t run) {
    uint32_t i = 0;
    while (i < RUNS_MOST && s->truths[i].run != run) i++;
    if (i < RUNS_MOST) return &s->truths[i];
    memmove(&s->truths[1], &s->truths[0], (RUNS_MOST - 1) * sizeof s->truths[0]);
    s->truths[0] = (struct truth){.run = run};
    return &s->truths[0];
}

// The newest epoch that a member has entered who lives, or `told`: when it told a master of it; NULL: it is no longer
// known.
static const struct epoch_record *newest_entered(const struct pccl_sim *s, const struct truth *truth, bool told) {
    const struct epoch_record *newest = NULL;
    for (uint32_t i = 0; i < EPOCHS_MOST; i++) {
        const struct epoch_record *record = &s->epochs[i];
        bool entered = false;
        for (int slot = 0; slot < (int)s->peers && record->run == truth->run; slot++) {
            uint32_t life = truth->lives[slot];
            if (life == 0 || record->lives[slot] != life) continue;
            struct wire_header header =
                sim_alive(s, slot, life) ? member_header(s->processes[slot].mind) : (struct wire_header){0};
            if (told && s->resumed[slot].life != life) continue;
            uint64_t generation = told ? s->resumed[slot].generation : header.generation,
                     epoch = told ? s->resumed[slot].epoch : header.epoch;
            entered |= generation == record->generation && epoch == record->number;
        }
        bool newer = newest == NULL || record->generation > newest->generation ||
                     (record->generation == newest->generation && record->number > newest->number);
        if (entered && newer) newest = record;
    }
    return newest;
}

// More than half of it.
static void judge_quorum(struct pccl_sim *s, const struct truth *truth) {
    const struct epoch_record *newest = newest_entered(s, truth, true);
    if (newest == NULL) return;
    uint32_t members = 0, left = 0;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        members += newest->lives[slot] != 0;
        left += newest->lives[slot] != 0 && newest->lives[slot] == truth->lives[slot];
    }
    if (2 * left <= members)
        sim_fail(s, "agreement",
                 "a master takes the run up with %u of the %u members of epoch %llu, which is no majority", left,
                 members, (unsigned long long)newest->number);
}

// Nobody is left who may have heard of these generations, so they are given again.
static void forget_generations(struct pccl_sim *s, uint64_t run, uint64_t first) {
    for (uint32_t i = 0; i < RINGS_MOST; i++)
        if (s->rings[i].run == run && s->rings[i].generation >= first) s->rings[i] = (struct ring_record){0};
    for (uint32_t i = 0; i < ROUNDS_MOST; i++)
        if (s->rounds[i].run == run && s->rounds[i].round >> 32 >= first) s->rounds[i] = (struct round_record){0};
    for (uint32_t i = 0; i < INSTANCES_MOST && i < s->instance_count; i++)
        if (s->instances[i].run == run && s->instances[i].generation >= first) s->instances[i].run = 0;
}

static void on_epoch(struct pccl_sim *s, uint32_t k, const struct control *control, const struct wire_header *header,
                     const uint8_t *body) {
    struct wire_epoch_commit commit = {.epoch.members = s->members};
    struct master *master = &s->masters[k];
    struct truth *truth = truth_for(s, header->run);
    if (!wire_decode_epoch_commit(body, header->length, &commit)) {
        sim_fail(s, "no trust in bytes", "the master made an EPOCH that cannot be read");
        return;
    }
    if (control->group < GROUPS && commit.epoch.group_epoch == commit.epoch.number) {
        s->regrouped_at[control->group] = s->now;
        s->regrouped[control->group] = header->epoch;
    }
    master->run = header->run;
    master->generation = header->generation;
    master->number = commit.epoch.number;
    bool left = false;
    for (int slot = 0; slot < (int)s->peers; slot++)
        left |= truth->lives[slot] != 0 && sim_alive(s, slot, truth->lives[slot]);
    // What was announced last is lost when nobody is left who may have heard of it.
    // by a master that does not know yet that it has been left
    if (left && truth->generation > header->generation) return;
    if (left && truth->generation == header->generation && truth->master_life != master->life)
        sim_fail(s, "agreement", "two masters have taken the run up in generation %llu",
                 (unsigned long long)header->generation);
    if (left && truth->generation == header->generation && truth->number >= header->epoch) {
        if (truth->number > header->epoch)
            sim_fail(s, "agreement", "the master announces epoch %llu after epoch %llu",
                     (unsigned long long)header->epoch, (unsigned long long)truth->number);
        return;
    }
    bool another = truth->master_life != master->life || truth->number >= header->epoch;
    if (!left && another && truth->generation >= header->generation)
        forget_generations(s, header->run, header->generation);
    bool taken_up = header->generation > 1 && truth->generation != header->generation;
    struct truth before = *truth;
    uint32_t elders = 0;
    *truth = (struct truth){.run = header->run,
                            .generation = header->generation,
                            .number = commit.epoch.number,
                            .master = k,
                            .master_life = master->life};
    memcpy(truth->commits, before.commits, sizeof truth->commits);
    memcpy(truth->announced, before.announced, sizeof truth->announced);
    for (uint32_t i = 0; i < commit.epoch.count; i++) {
        uint32_t life;
        int slot = sim_slot(&commit.epoch.members[i].id, &life);
        if (slot < 0) continue; // of a changed HELLO
        if (truth->lives[slot] != 0 && !tainted(s, slot, s->processes[slot].life) &&
            commit.reason == WIRE_REASON_UPDATE && truth->lives[slot] == life)
            sim_fail(s, "agreement", "peer %d is twice in epoch %llu", slot + 1,
                     (unsigned long long)commit.epoch.number);
        if (life <= truth->lives[slot]) continue; // an old one that is not known to be lost
        truth->lives[slot] = life;
        truth->groups[slot] = commit.epoch.members[i].group;
        if (commit.epoch.members[i].join_number < commit.quorum.newer) elders |= 1U << slot;
    }
    if (taken_up) judge_quorum(s, truth);
    struct epoch_record *record = &s->epochs[s->epoch_count++ % EPOCHS_MOST];
    *record = (struct epoch_record){.run = truth->run,
                                    .generation = truth->generation,
                                    .number = truth->number,
                                    .quorum = commit.quorum,
                                    .elders = elders};
    memcpy(record->lives, truth->lives, sizeof record->lives);
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (truth->lives[slot] != 0 && before.lives[slot] == truth->lives[slot]) {
            truth->since[slot] = before.since[slot];
        } else if (truth->lives[slot] != 0) {
            truth->since[slot] = s->now;
            judge_newcomer(s, truth, slot);
        }
}

static void on_commit(struct pccl_sim *s, const struct instance *instance, bool supplied) {
    for (int slot = 0; slot < (int)s->peers && !supplied; slot++) {
        bool member =
            (instance->members >> slot & 1) != 0 && judge_alive_member(s, instance->run, slot, instance->lives[slot]);
        if (member && (instance->done >> slot & 1) == 0)
            sim_fail(s, "agreement", "the master commits op (%llu, %llu, %u), which is not complete at peer %d",
                     (unsigned long long)instance->name.epoch, (unsigned long long)instance->name.tag,
                     instance->name.sequence, slot + 1);
    }
}

static bool names_supplier(const struct wire_verdict *verdict) {
    bool named = false;
    for (uint32_t i = 0; i < WIRE_ID_BYTES; i++) named |= verdict->supplier.bytes[i] != 0;
    return named;
}

static void on_verdict(struct pccl_sim *s, uint32_t group, const struct wire_header *header, const uint8_t *body) {
    struct wire_verdict *verdict = &s->verdict;
    if (!wire_decode_verdict(body, header->length, verdict)) {
        sim_fail(s, "no trust in bytes", "the master made a VERDICT that cannot be read");
        return;
    }
    const struct instance *instance = judge_find(s, header->run, header->generation, group, &verdict->name);
    if (instance != NULL && !instance_tainted(s, instance) && verdict->kind == WIRE_VERDICT_COMMIT)
        on_commit(s, instance, names_supplier(verdict));
}

void judge_verdict(struct pccl_sim *s, int slot, const struct op *op, const struct wire_verdict *verdict) {
    static const char *const kinds[] = {"none", "COMMIT", "ABORT", "REDO", "MISMATCH"};
    const struct process *p = &s->processes[slot];
    struct instance *instance = judge_find(s, p->engine.run, p->engine.generation, p->group, &op->name);
    if (instance == NULL || instance_tainted(s, instance)) return;
    uint64_t generation = member_header(p->mind).generation;
    // A small op that is to be supplied is lost after all when everybody who has it is. Who had not begun a mismatched
    // op may begin the next one of that tag under the same name, before it enters the epoch in which nobody knows that
    // name.
    bool again =
        instance->supplied || (instance->verdict == WIRE_VERDICT_MISMATCH && verdict->kind != WIRE_VERDICT_COMMIT);
    // Nor does a verdict bind that was heard only by those who are gone.
    for (int other = 0; other < (int)s->peers && instance->verdict != 0; other++)
        if ((instance->heard >> other & 1) != 0 && !judge_alive_member(s, instance->run, other, instance->lives[other]))
            instance->heard &= ~(1U << other);
    if (instance->heard == 0) instance->verdict = 0;
    // A REDO that not all heard of before the master was lost may become an ABORT, if the op under its new name does.
    again |= instance->verdict != WIRE_VERDICT_COMMIT && verdict->kind != WIRE_VERDICT_COMMIT &&
             instance->verdict_generation != generation;
    if (instance->verdict != 0 && instance->verdict != verdict->kind && !again)
        sim_fail(s, "agreement", "op (%llu, %llu, %u) got the verdict %s and, at peer %d, %s",
                 (unsigned long long)verdict->name.epoch, (unsigned long long)verdict->name.tag, verdict->name.sequence,
                 kinds[instance->verdict], slot + 1, kinds[verdict->kind]);
    instance->verdict = verdict->kind;
    instance->verdict_generation = generation;
    instance->heard |= 1U << slot;
    instance->supplied |= names_supplier(verdict);
}

// To one member. While somebody is left who took part in the last commit, the next one is of the same or of the next
// revision.
static void on_sync_end(struct pccl_sim *s, const struct control *control, const struct wire_header *header,
                        const uint8_t *body) {
    struct wire_sync_end *end = &s->sync_end;
    struct truth *truth = judge_truth(s, header->run);
    if (!wire_decode_sync_end(body, header->length, end)) {
        sim_fail(s, "no trust in bytes", "the master made a SYNC_END that cannot be read");
        return;
    }
    if (end->code != 0 || control->group >= GROUPS || truth->run == 0 || header->generation < truth->generation) return;
    struct commit_record *last = &truth->commits[control->group], *announced = &truth->announced[control->group];
    if (announced->run != header->run || announced->round != end->round) {
        bool held = false, doubted = false;
        for (int slot = 0; slot < (int)s->peers; slot++) doubted |= tainted(s, slot, announced->lives[slot]);
        // Who is not judged may have heard of that round and not say so, or not have heard: the next revision tells.
        if (doubted && end->revision >= announced->revision && end->revision <= announced->revision + 1)
            *last = *announced;
        for (int slot = 0; slot < (int)s->peers; slot++)
            held |= last->run == header->run && last->lives[slot] != 0 && last->lives[slot] == truth->lives[slot];
        if (held && end->revision != last->revision && end->revision != last->revision + 1)
            sim_fail(s, "parity", "group %u commits revision %llu after revision %llu, of which members are left",
                     control->group, (unsigned long long)end->revision, (unsigned long long)last->revision);
        *announced = (struct commit_record){.run = header->run, .round = end->round, .revision = end->revision};
    }
    announced->lives[control->slot] = control->life;
    if (last->run == header->run && last->round == end->round) *last = *announced;
}

// Do the two miss each other's links since their group was formed last?
static bool is_broken(const struct pccl_sim *s, uint32_t group, int one, int other) {
    // one that came with the order is over
    return s->accused_at[other][one] > s->regrouped_at[group] || s->accused_at[one][other] > s->regrouped_at[group];
}

// As the master counts them, whoever it expels for broken links has at least as many broken pairs as the other end of
// its only one, and is accused by at least as many. `before`: slots of those that it expelled just before.
static void on_expelled(struct pccl_sim *s, const struct control *control, const struct wire_header *header,
                        const uint8_t *body, uint32_t before) {
    struct wire_text text;
    const struct truth *truth = judge_truth(s, header->run);
    int culprit = control->slot, other = -1;
    if (!wire_decode_text(body, header->length, &text) || control->group >= GROUPS ||
        memmem(text.chars, text.length, "links failed twice", 18) == NULL)
        return;
    uint32_t against = 0, against_other = 0;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        int64_t recently = s->now - ACCUSED_LIMITS * s->limit_ns;
        against += s->accused_at[slot][culprit] > recently || s->unreached_at[slot][culprit] > recently;
        bool pair = is_broken(s, control->group, culprit, slot);
        if (pair && other >= 0) return; // which pair it is expelled for cannot be told from here
        if (pair) other = slot;
    }
    uint32_t pairs = 0;
    for (int slot = 0; slot < (int)s->peers && other >= 0; slot++) {
        bool counts = (before >> slot & 1) == 0 && judge_alive_member(s, header->run, slot, truth->lives[slot]);
        against_other += counts && s->accused_at[slot][other] > s->regrouped_at[control->group];
        pairs += counts && is_broken(s, control->group, other, slot);
    }
    if (other >= 0 && judge_alive_member(s, header->run, other, truth->lives[other]) && pairs > 1)
        sim_fail(s, "progress", "the master expels peer %d, which has one broken pair, and not peer %d, which has %u",
                 culprit + 1, other + 1, pairs);
    if (other >= 0 && judge_alive_member(s, header->run, other, truth->lives[other]) && against < against_other)
        sim_fail(s, "progress", "the master expels peer %d, whom %u accuse, and not peer %d, whom %u accuse",
                 culprit + 1, against, other + 1, against_other);
}

// Whom a member of a candidate has no links to it accuses only if that candidate is judged, which cannot be told from
// here.
static void note_unreachable(struct pccl_sim *s, const struct control *control, const struct wire_header *header,
                             const uint8_t *body) {
    struct wire_linked linked;
    uint32_t life;
    if (!wire_decode_linked(body, header->length, &linked)) return;
    for (uint32_t i = 0; i < linked.count; i++) {
        int slot = sim_slot(&linked.unreachable[i], &life);
        if (slot >= 0 && slot < (int)s->peers && s->processes[slot].life == life)
            s->unreached_at[control->slot][slot] = s->now;
    }
}

void judge_accusation(struct pccl_sim *s, const struct control *control, const struct wire_header *header,
                      const uint8_t *body) {
    if (header->type == WIRE_LINKED) note_unreachable(s, control, header, body);
    struct wire_link_down down;
    uint32_t life;
    if (header->type != WIRE_LINK_DOWN || !wire_decode_link_down(body, header->length, &down)) return;
    // the links have been made again since
    if (control->group >= GROUPS || header->epoch < s->regrouped[control->group]) return;
    int slot = sim_slot(&down.id, &life);
    if (slot >= 0 && slot < (int)s->peers && slot != control->slot && s->processes[slot].life == life)
        s->accused_at[control->slot][slot] = s->now;
}

void judge_sends(struct pccl_sim *s, uint32_t master, const struct membership_actions *actions, size_t first,
                 size_t end) {
    size_t last = SIZE_MAX;
    uint32_t expelled = 0;
    for (size_t i = first; i < end; i++) {
        const struct membership_send *send = &actions->sends[i];
        struct wire_header header;
        if (!wire_header_decode(actions->bytes.bytes + send->offset, &header) ||
            (send->offset == last && header.type != WIRE_EPOCH))
            continue;
        last = send->offset;
        const uint8_t *body = actions->bytes.bytes + send->offset + WIRE_HEADER_BYTES;
        if (header.type == WIRE_EPOCH) on_epoch(s, master, &s->controls[send->conn], &header, body);
        if (header.type == WIRE_EXPELLED) {
            on_expelled(s, &s->controls[send->conn], &header, body, expelled);
            expelled |= 1U << s->controls[send->conn].slot;
        }
        if (header.type == WIRE_VERDICT) on_verdict(s, s->controls[send->conn].group, &header, body);
        if (header.type == WIRE_SYNC_END) on_sync_end(s, &s->controls[send->conn], &header, body);
    }
}

// ---- group epochs ----

void judge_ring(struct pccl_sim *s, int slot, const struct ring *ring) {
    const struct process *p = &s->processes[slot];
    struct wire_header header = member_header(p->mind);
    uint64_t hash = sim_mix(ring->latency_us) + sim_mix(ring->megabytes_per_s + 1);
    for (uint32_t i = 0; i < ring->count; i++) hash = sim_mix(hash + ring->slots[i] + ((uint64_t)ring->lives[i] << 8));
    if (p->tainted) return;
    for (uint32_t i = 0; i < RINGS_MOST; i++) {
        const struct ring_record *record = &s->rings[i];
        if (record->run != header.run || record->generation != header.generation || record->epoch != ring->epoch ||
            record->group != p->group || record->hash == hash)
            continue;
        sim_fail(s, "agreement",
                 "peer %d enters group epoch %llu of group %u with other members, another order or other figures than "
                 "another peer",
                 slot + 1, (unsigned long long)ring->epoch, p->group);
        return;
    }
    s->rings[s->ring_count++ % RINGS_MOST] =
        (struct ring_record){header.run, header.generation, ring->epoch, hash, p->group};
}

// ---- ops ----

static uint32_t *chain_of(struct pccl_sim *s, uint64_t run, uint32_t group, const struct wire_op_name *name) {
    uint64_t hash = sim_mix(run + group * 7919 + name->epoch * 31 + name->tag * 1000003 + name->sequence);
    return &s->instance_slots[hash % INSTANCE_SLOTS];
}

struct instance *judge_find(struct pccl_sim *s, uint64_t run, uint64_t generation, uint32_t group,
                            const struct wire_op_name *name) {
    struct instance *found = NULL;
    for (uint32_t next = *chain_of(s, run, group, name); next != 0;) {
        struct instance *instance = &s->instances[(next - 1) % INSTANCES_MOST];
        if (instance->id != next - 1) break; // the rest of the chain is older still
        bool meant = instance->run == run && instance->group == group && instance->generation <= generation &&
                     wire_op_name_equal(&instance->name, name);
        if (meant && (found == NULL || instance->generation > found->generation)) found = instance;
        next = instance->next;
    }
    return found;
}

// What the program of a peer may read of the epoch that it has adopted.
static uint64_t visible(const struct process *p) {
    const struct member_view *view = member_adopted(p->mind);
    return (uint64_t)view->global_world << 48 | (uint64_t)view->group_world << 32 | (uint64_t)view->groups << 16 |
           view->largest_group;
}

static struct instance *instance_new(struct pccl_sim *s, int slot, const struct op *op) {
    const struct process *p = &s->processes[slot];
    uint32_t *chain = chain_of(s, p->engine.run, p->group, &op->name), id = s->instance_count++;
    struct instance *instance = &s->instances[id % INSTANCES_MOST];
    *instance = (struct instance){.name = op->name,
                                  .run = p->engine.run,
                                  .generation = p->engine.generation,
                                  .view = visible(p),
                                  .group = p->group,
                                  .id = id,
                                  .next = *chain,
                                  .small = op->small};
    *chain = id + 1;
    for (uint32_t rank = 0; rank < p->engine.now.count; rank++) {
        instance->members |= 1U << p->engine.now.slots[rank];
        instance->lives[p->engine.now.slots[rank]] = p->engine.now.lives[rank];
    }
    return instance;
}

void judge_begins(struct pccl_sim *s, int slot, struct op *op) {
    const struct process *p = &s->processes[slot];
    struct instance *instance = judge_find(s, p->engine.run, p->engine.generation, p->group, &op->name);
    // A number that only those have entered who are gone is given again by the next master.
    if (instance == NULL || instance->generation != p->engine.generation) instance = instance_new(s, slot, op);
    instance->inputs[slot] = op->input;
    instance->calls[slot] = op->calls;
    bool again = (instance->began >> slot & 1) != 0;
    instance->began |= 1U << slot;
    if (p->tainted || instance_tainted(s, instance)) return;
    unsigned long long epoch = op->name.epoch, tag = op->name.tag;
    if (again)
        sim_fail(s, "no mixing", "peer %d begins op (%llu, %llu, %u) twice", slot + 1, epoch, tag, op->name.sequence);
    if (instance->lives[slot] != p->life)
        sim_fail(s, "no mixing", "peer %d begins op (%llu, %llu, %u), of which it is no member", slot + 1, epoch, tag,
                 op->name.sequence);
    if (instance->small != op->small)
        sim_fail(s, "agreement", "peer %d moves op (%llu, %llu, %u) as a %s op, others do not", slot + 1, epoch, tag,
                 op->name.sequence, op->small ? "small" : "large");
    if (instance->view != visible(p))
        sim_fail(s, "agreement",
                 "peer %d begins op (%llu, %llu, %u) with other world sizes (%llx) than another peer (%llx; "
                 "hexadecimal: all, group, groups, largest group)",
                 slot + 1, epoch, tag, op->name.sequence, (unsigned long long)visible(p),
                 (unsigned long long)instance->view);
}

void judge_reduced(struct pccl_sim *s, int slot, const struct op *op) {
    const struct process *p = &s->processes[slot];
    const struct instance *instance = judge_find(s, p->engine.run, p->engine.generation, p->group, &op->name);
    if (instance == NULL || instance_tainted(s, instance)) return;
    uint64_t value = 0;
    for (int other = 0; other < (int)s->peers; other++)
        if (instance->members >> other & 1) {
            value += instance->inputs[other];
            // The programs go alike, so an error that one of them got and another did not shows here.
            if (instance->calls[other] != op->calls)
                sim_fail(s, "agreement",
                         "call %u of peer %d with tag %llu meets call %u of peer %d in op (%llu, %llu, %u)", op->calls,
                         slot + 1, (unsigned long long)op->name.tag, instance->calls[other], other + 1,
                         (unsigned long long)op->name.epoch, (unsigned long long)op->name.tag, op->name.sequence);
        }
    if (op->results < op->shards)
        sim_fail(s, "exactness", "op (%llu, %llu, %u) is complete at peer %d with %u of %u shards",
                 (unsigned long long)op->name.epoch, (unsigned long long)op->name.tag, op->name.sequence, slot + 1,
                 op->results, op->shards);
    if (op->contributors != instance->members || op->value != value)
        sim_fail(s, "exactness",
                 "the result of op (%llu, %llu, %u) at peer %d holds the inputs of peers %x, its members are %x%s",
                 (unsigned long long)op->name.epoch, (unsigned long long)op->name.tag, op->name.sequence, slot + 1,
                 op->contributors, instance->members,
                 op->contributors == instance->members ? ", and is not their sum" : "");
}

void judge_ended(struct pccl_sim *s, int slot, const struct op *op) {
    static const char *const names[] = {"none", "success", "a loss", "a mismatch"};
    const struct process *p = &s->processes[slot];
    if (op->name.epoch == 0) return; // never begun
    struct instance *instance = judge_find(s, p->engine.run, p->engine.generation, p->group, &op->name);
    if (instance == NULL || (instance->began >> slot & 1) == 0 || instance_tainted(s, instance)) return;
    uint8_t mine = op->phase == OP_OK ? OUTCOME_OK : op->phase == OP_LOST ? OUTCOME_LOST : OUTCOME_MISMATCH;
    instance->outcomes[slot] = mine;
    if (mine == OUTCOME_LOST && s->only_naps)
        sim_fail(s, "progress", "op (%llu, %llu, %u) is lost at peer %d although only the master stood still",
                 (unsigned long long)op->name.epoch, (unsigned long long)op->name.tag, op->name.sequence, slot + 1);
    if (!judge_alive_member(s, instance->run, slot, p->life)) return;
    for (int other = 0; other < (int)s->peers; other++) {
        uint8_t theirs = instance->outcomes[other];
        bool differs = theirs != OUTCOME_NONE && theirs != mine && (theirs == OUTCOME_OK || mine == OUTCOME_OK);
        if (!differs || !judge_alive_member(s, instance->run, other, instance->lives[other])) continue;
        sim_fail(s, "agreement", "op (%llu, %llu, %u) ends at peer %d with %s, at peer %d with %s",
                 (unsigned long long)op->name.epoch, (unsigned long long)op->name.tag, op->name.sequence, slot + 1,
                 names[mine], other + 1, names[theirs]);
    }
}

// ---- votes ----

static bool same_end(const struct vote_record *a, const struct vote_record *b) {
    return a->value == b->value && a->epoch == b->epoch && a->kind == b->kind && a->code == b->code &&
           a->world == b->world && a->groups == b->groups;
}

static bool is_left(const struct pccl_sim *s, const struct vote_record *record) {
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (record->lives[slot] != 0 && judge_alive_member(s, record->run, slot, record->lives[slot])) return true;
    return false;
}

// Of one vote all hear the same end, and each of its later ones after it.
void judge_vote(struct pccl_sim *s, int slot, const struct member_action *action) {
    const struct process *p = &s->processes[slot];
    const struct wire_barrier *last = member_barrier(p->mind);
    struct vote_record mine = {.run = member_header(p->mind).run,
                               .number = last->number,
                               .value = action->value,
                               .epoch = action->view.number,
                               .kind = last->kind,
                               .code = (uint32_t)action->code,
                               .world = action->view.global_world,
                               .groups = action->view.groups};
    if (p->tainted) return;
    if (last->number <= s->voted[slot])
        sim_fail(s, "agreement", "peer %d hears the end of vote %llu after that of vote %llu", slot + 1,
                 (unsigned long long)last->number, (unsigned long long)s->voted[slot]);
    s->voted[slot] = last->number;
    struct vote_record *same = NULL;
    for (uint32_t i = 0; i < VOTES_MOST; i++) {
        struct vote_record *record = &s->votes[i];
        if (record->run != mine.run || record->number != mine.number) continue;
        if (same_end(record, &mine))
            same = record;
        else if (judge_alive_member(s, mine.run, slot, p->life) && is_left(s, record))
            sim_fail(s, "agreement",
                     "vote %llu ends at peer %d with code %u, value %llu, epoch %llu; at another peer with code %u, "
                     "value %llu, epoch %llu",
                     (unsigned long long)mine.number, slot + 1, mine.code, (unsigned long long)mine.value,
                     (unsigned long long)mine.epoch, record->code, (unsigned long long)record->value,
                     (unsigned long long)record->epoch);
    }
    if (same == NULL) *(same = &s->votes[s->vote_count++ % VOTES_MOST]) = mine;
    same->lives[slot] = p->life;
}

// ---- shared state ----

void judge_sync(struct pccl_sim *s, int slot, const struct wire_sync_end *end) {
    const struct process *p = &s->processes[slot];
    uint64_t run = member_header(p->mind).run, content = state_model_content(p->state.leaves);
    struct truth *truth = judge_truth(s, run);
    if (end->code == 0 && p->group < GROUPS && truth->run != 0 && truth->announced[p->group].round == end->round)
        truth->commits[p->group] = truth->announced[p->group];
    if (p->tainted) return;
    if (end->code == 0 && end->revision + 1 < p->state.revision)
        sim_fail(s, "parity", "round %llu takes peer %d back to revision %llu, from %llu",
                 (unsigned long long)end->round, slot + 1, (unsigned long long)end->revision,
                 (unsigned long long)p->state.revision);
    struct round_record *round = NULL;
    for (uint32_t i = 0; i < ROUNDS_MOST && round == NULL; i++)
        if (s->rounds[i].round == end->round && s->rounds[i].run == run) round = &s->rounds[i];
    if (round == NULL) {
        round = &s->rounds[s->round_count++ % ROUNDS_MOST];
        *round = (struct round_record){run, end->round, end->revision, content, end->code};
    }
    if (round->code != end->code)
        sim_fail(s, "parity", "round %llu of shared state ends with code %u at peer %d, with %u at another",
                 (unsigned long long)end->round, end->code, slot + 1, round->code);
    else if (end->code == 0 && (round->revision != end->revision || round->content != content))
        sim_fail(
            s, "parity",
            "after round %llu peer %d holds revision %llu, content %016llx; another one revision %llu, content %016llx",
            (unsigned long long)end->round, slot + 1, (unsigned long long)end->revision, (unsigned long long)content,
            (unsigned long long)round->revision, (unsigned long long)round->content);
}

// A state whose transfer was cut short must not win: somebody has to hold the content whole.
void judge_plan(struct pccl_sim *s, const struct wire_sync_plan *plan) {
    for (uint32_t i = 0; i < plan->donor_count; i++) {
        uint32_t life;
        int slot = sim_slot(&plan->donors[i], &life);
        if (slot < 0 || !sim_alive(s, slot, life) || tainted(s, slot, life) || !s->processes[slot].state.incomplete)
            return;
    }
    sim_fail(s, "parity", "the winner of round %llu is a state whose transfer was cut short",
             (unsigned long long)plan->round);
}

// ---- time ----

// Peers may give up a lost master only when no more than half of the last epoch is left.
static void judge_minority(struct pccl_sim *s, int slot, const char *text) {
    uint32_t members = 0, left = 0, elders = 0;
    uint64_t run = member_header(s->processes[slot].mind).run;
    const struct truth *truth = judge_truth(s, run);
    if (truth->lives[slot] != s->processes[slot].life) return; // the run goes on without it
    const struct epoch_record *newest = newest_entered(s, truth, false);
    for (int other = 0; other < (int)s->peers && newest != NULL; other++) {
        members += newest->lives[other] != 0;
        bool lives = newest->lives[other] != 0 && sim_alive(s, other, newest->lives[other]) &&
                     !tainted(s, other, newest->lives[other]);
        // who never heard that it was let in may have begun another one
        lives = lives && member_header(s->processes[other].mind).run == run;
        left += lives;
        elders += lives && (newest->elders >> other & 1) != 0;
    }
    bool time = false;
    for (uint32_t i = 0; i < s->master_count && s->now > s->calm_from + TAKE_UP_LIMITS * s->limit_ns; i++)
        time |= s->masters[i].running && s->now > s->masters[i].began_at + TAKE_UP_LIMITS * s->limit_ns;
    if (time && 2 * left > members && left >= newest->quorum.members && elders >= newest->quorum.elders)
        sim_fail(s, "progress", "peer %d gives up although %u of %u members are left: %s", slot + 1, left, members,
                 text);
}

// Of two that are apart at most one is lost, and nobody else; one whose report is slow may be, too.
static void judge_apart(struct pccl_sim *s, int slot, const char *text, const char *what) {
    const struct process *p = &s->processes[slot];
    int other = s->apart[slot].other - 1;
    if (strstr(text, "did not report its links in time") != NULL) return;
    bool apart = other >= 0 && s->processes[other].group == p->group &&
                 s->now <= s->apart[slot].until + INNOCENT_LIMITS * s->limit_ns;
    if (apart && s->apart[slot].cost == 0) s->apart[slot].cost = s->apart[other].cost = slot + 1;
    if (!apart)
        sim_fail(s, "progress", "peer %d is %s although it reaches everybody: %s", slot + 1, what, text);
    else if (s->apart[slot].cost != slot + 1)
        sim_fail(s, "progress", "peer %d is %s, as was peer %d, to which alone it has no link: %s", slot + 1, what,
                 other + 1, text);
}

void judge_dies(struct pccl_sim *s, int slot, const char *text, const char *what) {
    SIM_TRACE(s, "peer %d: %s: %s", slot + 1, what, text);
    const struct process *p = &s->processes[slot];
    if (p->tainted) return;
    if (strstr(text, "does not fit the run") != NULL)
        sim_fail(s, "agreement", "peer %d is %s for what it knows: %s", slot + 1, what, text);
    if (strstr(text, "it gave revision") != NULL && !p->misused)
        sim_fail(s, "parity", "peer %d is expelled for a revision that a sync gave it: %s", slot + 1, text);
    if (strstr(text, "shared state: ") != NULL) {
        if (s->apart[slot].other != 0) s->apart[slot].cost = s->apart[s->apart[slot].other - 1].cost = 0;
        return;
    }
    if (s->only_naps)
        sim_fail(s, "progress", "peer %d is %s although only the master stood still: %s", slot + 1, what, text);
    if (s->only_apart) judge_apart(s, slot, text, what);
    if (strstr(text, "no master took the run up") != NULL) {
        s->counts[COUNT_GIVEN_UP]++;
        judge_minority(s, slot, text);
        return;
    }
    if (s->now > s->calm_from + INNOCENT_LIMITS * s->limit_ns +
                     (s->now - s->sought_at < s->limit_ns ? (int64_t)s->recovery_ms * MS_NS : 0))
        sim_fail(s, "progress", "peer %d is %s although nothing went wrong for %lld ms: %s", slot + 1, what,
                 (long long)((s->now - s->calm_from) / MS_NS), text);
}

static void judge_dead(struct pccl_sim *s, struct truth *truth) {
    const struct master *master = &s->masters[truth->master];
    if (truth->run == 0 || !master->running || master->life != truth->master_life || master->run != truth->run ||
        s->now < master->stopped_until + s->limit_ns)
        return;
    // nobody was left to be told
    if (membership_epoch(master->mind) != truth->number) memset(truth->lives, 0, sizeof truth->lives);
    for (int slot = 0; slot < (int)s->peers; slot++) {
        const struct process *p = &s->processes[slot];
        uint32_t life = truth->lives[slot];
        if (life == 0 || sim_alive(s, slot, life) || tainted(s, slot, life)) continue;
        int64_t since = p->ended_at;
        if (s->cut_until[slot][MASTER + truth->master] > since) since = s->cut_until[slot][MASTER + truth->master];
        if (master->stopped_until > since) since = master->stopped_until; // then it hears what was said before
        if (truth->since[slot] > since) since = truth->since[slot];
        if (p->life != life) since = s->now; // it has a successor already
        if (s->now - since > DEAD_LIMITS * s->limit_ns + DEAD_SLACK_MS * MS_NS)
            sim_fail(s, "bounded time", "peer %d ended %lld ms ago, and the master counts it as a member", slot + 1,
                     (long long)((s->now - p->ended_at) / MS_NS));
    }
}

static bool serves(const struct pccl_sim *s, const struct master *master) {
    return master->running && s->now >= master->stopped_until && master->run != 0 &&
           membership_epoch(master->mind) == master->number && membership_peer_count(master->mind) > 0;
}

// A master that its peers have left for another one notices and gives the run up.
static void judge_masters(struct pccl_sim *s) {
    for (uint32_t i = 0; i < s->master_count; i++) {
        struct master *one = &s->masters[i];
        bool alone = true;
        for (uint32_t k = 0; k < s->master_count && serves(s, one); k++)
            alone &= k == i || !serves(s, &s->masters[k]) || s->masters[k].run != one->run;
        if (alone) one->alone_at = s->now;
        if (s->now - one->alone_at > JUDGE_LEFT_LIMITS * s->limit_ns)
            sim_fail(s, "agreement", "master %u has served the run in generation %llu beside another one for %lld ms",
                     i + 1, (unsigned long long)one->generation, (long long)((s->now - one->alone_at) / MS_NS));
    }
}

static void judge_calls(struct pccl_sim *s) {
    static const char *const steps[] = {"connect", "its own work", "a vote", "reduces", "a sync", "leaving"};
    int64_t bound = CALL_LIMITS * s->limit_ns;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        const struct program *program = &s->processes[slot].program;
        if (!s->processes[slot].running) continue;
        if (program->step == STEP_VOTING && program->vote == WIRE_VOTE_OPTIMIZE) s->measured_at = s->now;
        if (member_is_seeking(s->processes[slot].mind)) s->sought_at = s->now;
    }
    if (s->now - s->sought_at <= bound) bound += (int64_t)s->recovery_ms * MS_NS;
    if (s->now - s->measured_at <= bound) bound += (int64_t)(s->peers * s->peers) * MEASURE_MS * MS_NS;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        const struct process *p = &s->processes[slot];
        if (!p->running || p->tainted || p->program.since == INT64_MAX) continue;
        int64_t since = p->program.since > s->calm_from ? p->program.since : s->calm_from;
        if (s->now - since <= bound) continue;
        char ops[TEXT_BYTES] = "";
        for (uint32_t tag = 0, at = 0;
             tag < p->program.tags && p->program.step == STEP_REDUCING && at < TEXT_BYTES - 100; tag++) {
            const struct op *op = &p->engine.ops[tag];
            at += (uint32_t)snprintf(ops + at, TEXT_BYTES - at, "; op (%llu, %u, %u) in phase %d%s",
                                     (unsigned long long)op->name.epoch, tag, op->name.sequence, (int)op->phase,
                                     op->frozen ? ", frozen" : "");
        }
        sim_fail(s, "bounded time",
                 "peer %d has been in %s for %lld ms, %lld ms of it without a fault (limit %lld ms): epoch %llu "
                 "(master: %llu), group epoch %llu, %s, vote %u%s",
                 slot + 1, steps[p->program.step], (long long)((s->now - p->program.since) / MS_NS),
                 (long long)((s->now - since) / MS_NS), (long long)(s->limit_ns / MS_NS),
                 (unsigned long long)member_header(p->mind).epoch,
                 (unsigned long long)judge_truth(s, member_header(p->mind).run)->number,
                 (unsigned long long)p->engine.now.epoch, p->engine.now.ready ? "linked" : "not linked",
                 p->program.vote, ops);
        return;
    }
}

void judge_look(struct pccl_sim *s) {
    for (uint32_t i = 0; i < RUNS_MOST; i++) judge_dead(s, &s->truths[i]);
    if (s->master_count > 1) judge_masters(s);
    judge_calls(s);
}
