// A master that takes up a run which another one has left. It knows nothing; the run is what its members know. So while
// it has no run of its own it gathers those that come with RESUME, and when more than half of the newest epoch that any
// of them has entered are here - all of them, or after the heartbeat limit - it asks them for the promise to listen to
// no older generation. Two majorities share a member, so of two masters that gather at the same time one hears of the
// other's generation and takes a higher one.
//
// Then it goes on from the sum of what they know. The last vote of all, or the last round of a group, may have ended
// for some and not for others: those hear how. All groups begin a new group epoch, so all ops are frozen, reported and
// judged as after any other change. What no report can show is a verdict that some have and others lack: COMMITs and
// MISMATCHes are told with RESUME and given again.
#include "master/membership_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/roster.h"
#include "net/socket.h"

enum {
    SAY_MS = 10000,     // between two lines of the log, and two to whoever waits
    UNHEARD_LIMITS = 3, // heartbeat limits, after which peers that fell silent have gone on elsewhere, or never will
};

static const uint64_t NUMBERS_MOST = UINT64_C(1) << 62, GENERATIONS_MOST = UINT32_MAX - 1;

static const char STANDBY[] =
    "this master is a standby, and no run has come to it: new runs begin at the first master of the list";
static const char NO_ROOM[] = "has no place for one more that waits for a lost run to be taken up";
static const char WRONG_SECRET[] = "its secret is not that of the run";
static const char ANOTHER_RUN[] = "this master serves another run by now";

// Somebody who came while there was no run.
struct survivor {
    uint32_t conn;
    struct wire_address source;
    int64_t heard_ns, told_ns; // told: why it waits; 0: not yet
    int64_t since_ns;
    bool resumes;              // else a newcomer whose HELLO is held back
    uint64_t run, promised;    // promised: to any master
    bool asked, gave;          // the promise of the generation at hand
    struct wire_resume resume; // owns its arrays but for the members of its epoch
    // its epoch, owned together with others that were in it; NULL: it has been accepted nowhere
    struct claim *claim;
    struct survivor *next_by_id; // in its bucket, of those that resume
};

// An epoch that some were in when they lost their master. A run goes by its id and its secret: who has another secret
// speaks of another run.
struct claim {
    uint64_t run;
    uint8_t secret[16];
    uint64_t generation, number, digest; // digest: of the members
    struct wire_quorum quorum;
    bool newest;              // of its run; of two that are, the one that was made first
    uint32_t holders;         // those that make it
    uint32_t present, elders; // of its members, those that are here; elders: of these
    uint32_t count;
    uint16_t *sorted; // behind `members`: their places by id
    struct wire_member members[];
};

static void survivor_free(struct survivor *survivor) {
    free(survivor->resume.barrier.sizes);
    free(survivor->resume.past);
    free(survivor->resume.losses);
    free(survivor);
}

static struct survivor *survivor_of(const struct membership *m, uint32_t conn) {
    return conn < MEMBERSHIP_MAX_CONNS ? m->survivor_by_conn[conn] : NULL;
}

static bool is_same_run(uint64_t run_a, const uint8_t secret_a[16], uint64_t run_b, const uint8_t secret_b[16]) {
    return run_a == run_b && memcmp(secret_a, secret_b, 16) == 0;
}

static bool is_of(const struct survivor *survivor, const struct claim *claim) {
    return survivor->resumes && is_same_run(survivor->run, survivor->resume.secret, claim->run, claim->secret);
}

// ---- claims: counted as their members come and go, so that an event costs a search in each claim of its run, and no
// comparison of all with all ----

static struct survivor *survivor_of_id(const struct membership *m, uint64_t run, const uint8_t secret[16],
                                       const struct wire_id *id) {
    for (struct survivor *at = m->survivors_by_id[membership_bucket(m, id)]; at != NULL; at = at->next_by_id)
        if (wire_id_equal(&at->resume.hello.id, id) && is_same_run(at->run, at->resume.secret, run, secret)) return at;
    return NULL;
}

static struct survivor *member_here(const struct membership *m, const struct claim *claim, uint32_t member) {
    return survivor_of_id(m, claim->run, claim->secret, &claim->members[member].id);
}

static bool is_newer(const struct claim *a, const struct claim *b) {
    return a->generation != b->generation ? a->generation > b->generation : a->number > b->number;
}

static void count_member(struct claim *claim, uint32_t member, int by) {
    claim->present += (uint32_t)by;
    if (claim->members[member].join_number < claim->quorum.newer) claim->elders += (uint32_t)by;
}

// A survivor came (by 1) or goes (by -1).
static void count_survivor(struct membership *m, const struct survivor *survivor, int by) {
    for (uint32_t i = 0; i < m->claim_count; i++) {
        struct claim *claim = m->claims[i];
        if (!is_of(survivor, claim)) continue;
        uint32_t member = roster_find(claim->members, claim->sorted, claim->count, &survivor->resume.hello.id);
        if (member != UINT32_MAX) count_member(claim, member, by);
    }
}

static void find_newest(struct membership *m, uint64_t run, const uint8_t secret[16]) {
    struct claim *newest = NULL;
    for (uint32_t i = 0; i < m->claim_count; i++) {
        struct claim *claim = m->claims[i];
        if (!is_same_run(claim->run, claim->secret, run, secret)) continue;
        claim->newest = false;
        if (newest == NULL || is_newer(claim, newest)) newest = claim;
    }
    if (newest != NULL) newest->newest = true;
}

static uint64_t mix(uint64_t digest, const void *bytes, size_t length) {
    for (size_t at = 0; at < length; at += sizeof digest) {
        uint64_t word = 0;
        memcpy(&word, (const uint8_t *)bytes + at, length - at < sizeof word ? length - at : sizeof word);
        digest = (digest ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        digest ^= digest >> 31;
    }
    return digest;
}

static uint64_t digest_of(const struct membership *m, const struct wire_epoch *epoch) {
    uint64_t digest = m->id_key;
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

static bool is_claimed(const struct claim *claim, const struct wire_resume *resume, uint64_t run, uint64_t digest) {
    const struct wire_epoch *epoch = &resume->epoch;
    const struct wire_quorum *a = &claim->quorum, *b = &resume->quorum;
    if (claim->digest != digest || claim->generation != resume->generation || claim->number != epoch->number ||
        claim->count != epoch->count)
        return false;
    if (!is_same_run(claim->run, claim->secret, run, resume->secret) || a->members != b->members ||
        a->elders != b->elders || a->newer != b->newer)
        return false;
    for (uint32_t i = 0; i < epoch->count; i++)
        if (!is_same_member(&claim->members[i], &epoch->members[i])) return false;
    return true;
}

static struct claim *find_claim(const struct membership *m, const struct wire_resume *resume, uint64_t run) {
    uint64_t digest = digest_of(m, &resume->epoch);
    for (uint32_t i = 0; i < m->claim_count; i++)
        if (is_claimed(m->claims[i], resume, run, digest)) return m->claims[i];
    return NULL;
}

// NULL when memory is refused.
static struct claim *make_claim(struct membership *m, const struct wire_resume *resume, uint64_t run) {
    const struct wire_epoch *epoch = &resume->epoch;
    size_t bytes = epoch->count * sizeof *epoch->members;
    struct claim *claim = malloc(sizeof *claim + bytes + epoch->count * sizeof *claim->sorted);
    if (claim == NULL) return NULL;
    *claim = (struct claim){.run = run,
                            .generation = resume->generation,
                            .number = epoch->number,
                            .digest = digest_of(m, epoch),
                            .quorum = resume->quorum,
                            .count = epoch->count};
    memcpy(claim->secret, resume->secret, sizeof claim->secret);
    memcpy(claim->members, epoch->members, bytes);
    claim->sorted = (uint16_t *)(void *)((uint8_t *)claim->members + bytes);
    roster_sort(claim->members, claim->count, claim->sorted);
    for (uint32_t i = 0; i < claim->count; i++)
        if (member_here(m, claim, i) != NULL) count_member(claim, i, 1);
    m->claims[m->claim_count++] = claim;
    find_newest(m, run, claim->secret);
    return claim;
}

static void drop_claim(struct membership *m, struct claim *claim) {
    if (--claim->holders > 0) return;
    uint32_t i = 0;
    while (m->claims[i] != claim) i++;
    memmove(&m->claims[i], &m->claims[i + 1], (--m->claim_count - i) * sizeof m->claims[0]);
    if (claim->newest) find_newest(m, claim->run, claim->secret);
    free(claim);
}

// From now on it counts. False when memory is refused.
static bool count_in(struct membership *m, struct survivor *survivor) {
    struct survivor **bucket = &m->survivors_by_id[membership_bucket(m, &survivor->resume.hello.id)];
    if (survivor->resume.accepted) {
        survivor->claim = find_claim(m, &survivor->resume, survivor->run);
        if (survivor->claim == NULL) survivor->claim = make_claim(m, &survivor->resume, survivor->run);
        if (survivor->claim == NULL) return false;
        survivor->claim->holders++;
        survivor->resume.epoch.members = survivor->claim->members;
    }
    survivor->next_by_id = *bucket;
    *bucket = survivor;
    survivor->resumes = true;
    count_survivor(m, survivor, 1);
    return true;
}

static void count_out(struct membership *m, struct survivor *survivor) {
    struct survivor **link = &m->survivors_by_id[membership_bucket(m, &survivor->resume.hello.id)];
    while (*link != survivor) link = &(*link)->next_by_id;
    *link = survivor->next_by_id;
    count_survivor(m, survivor, -1);
    if (survivor->claim != NULL) drop_claim(m, survivor->claim);
}

static void forget(struct membership *m, struct survivor *survivor) {
    uint32_t i = 0;
    while (m->survivors[i] != survivor) i++;
    // who came first stays first
    memmove(&m->survivors[i], &m->survivors[i + 1], (--m->survivor_count - i) * sizeof m->survivors[0]);
    m->survivor_by_conn[survivor->conn] = NULL;
    m->gather_due = true;
    if (survivor->resumes) count_out(m, survivor);
    survivor_free(survivor);
}

static bool tell(struct membership *m, const struct survivor *survivor, enum wire_type type, uint64_t generation) {
    struct wire_header header = {.run = survivor->run, .generation = generation};
    size_t begin = membership_frame_begin(m), length;
    wire_encode_empty(&m->actions.bytes, header, type);
    return membership_frame_end(m, begin, &length) && membership_send_to(m, survivor->conn, begin, length);
}

static void turn_away(struct membership *m, struct survivor *survivor, enum wire_type type, const char *why) {
    uint32_t conn = survivor->conn;
    struct wire_header header = {.run = survivor->run, .generation = survivor->promised};
    forget(m, survivor);
    membership_turn_away(m, conn, header, type, why);
}

// Without an end: it tries again, here or at another master, until its own limit has passed.
static void send_back(struct membership *m, uint32_t conn, uint64_t run, const char *why) {
    struct wire_header header = {.run = run};
    size_t begin = membership_frame_begin(m), length;
    wire_encode_text(&m->actions.bytes, header, WIRE_WAITING, why);
    if (membership_frame_end(m, begin, &length)) membership_send_to(m, conn, begin, length);
    membership_close(m, conn);
    membership_log(m, LOG_WARN, "sent a peer back, to try again: it %s", why);
}

static void let_go(struct membership *m, struct survivor *survivor, const char *why) {
    uint32_t conn = survivor->conn;
    uint64_t run = survivor->run;
    forget(m, survivor);
    send_back(m, conn, run, why);
}

static void register_held(struct membership *m, struct survivor *survivor) {
    uint32_t conn = survivor->conn;
    struct wire_address source = survivor->source;
    struct wire_hello hello = survivor->resume.hello;
    forget(m, survivor);
    membership_register(m, conn, &source, &hello);
}

// ---- who is here ----

static uint32_t quorum_of(const struct claim *claim) {
    uint32_t majority = claim->count / 2 + 1;
    return claim->quorum.members > majority ? claim->quorum.members : majority;
}

static bool has_majority(const struct claim *claim) {
    return claim != NULL && claim->present >= quorum_of(claim) && claim->elders >= claim->quorum.elders;
}

// Of all runs that somebody resumes the one with a majority, else the one with most members here; NULL: nobody that is
// here has been accepted.
static struct claim *best_claim(const struct membership *m) {
    struct claim *best = NULL;
    for (uint32_t i = 0; i < m->claim_count; i++) {
        struct claim *claim = m->claims[i];
        if (!claim->newest) continue;
        bool better = best == NULL || (has_majority(claim) && !has_majority(best)) ||
                      (has_majority(claim) == has_majority(best) && claim->present > best->present);
        if (better) best = claim;
    }
    return best;
}

// ---- taking the run up ----

// The last vote of all that any member knows the end of.
static struct wire_barrier newest_barrier(const struct membership *m, const struct claim *claim) {
    struct wire_barrier newest = {0};
    for (uint32_t i = 0; i < claim->count; i++) {
        const struct survivor *member = member_here(m, claim, i);
        if (member != NULL && member->resume.accepted && member->resume.barrier.number > newest.number)
            newest = member->resume.barrier;
    }
    return newest;
}

// Has the last vote of all ended without it?
static bool missed_barrier(const struct survivor *survivor, const struct wire_barrier *last) {
    return !survivor->resume.accepted || survivor->resume.barrier.number < last->number;
}

// Whoever missed more than that cannot have taken part in what the others did: no master can have left it so.
static bool fits(const struct survivor *survivor, const struct wire_barrier *last) {
    if (!missed_barrier(survivor, last)) return true;
    if (!survivor->resume.accepted) return last->kind == WIRE_VOTE_UPDATE;
    return survivor->resume.barrier.number + 1 == last->number && survivor->resume.vote == last->kind;
}

static void begin_run(struct membership *m, const struct claim *claim) {
    m->run = claim->run;
    memcpy(m->secret, claim->secret, sizeof m->secret);
    m->number = claim->number;
    for (uint32_t i = 0; i < m->survivor_count; i++) {
        const struct survivor *survivor = m->survivors[i];
        if (!is_of(survivor, claim)) continue;
        if (survivor->resume.join_number >= m->next_join) m->next_join = survivor->resume.join_number + 1;
        if (survivor->resume.accepted && survivor->resume.epoch.number > m->number)
            m->number = survivor->resume.epoch.number;
    }
    for (uint32_t i = 0; i < claim->count; i++)
        if (claim->members[i].join_number >= m->next_join) m->next_join = claim->members[i].join_number + 1;
    m->generation = m->gather_generation;
    m->quorum = claim->quorum;
    m->quorum.members = quorum_of(claim);
    m->entered = m->elders_entered = 0;
    m->yields_until = 0;
    m->sync_round = m->generation << 32; // rounds have other numbers than those of masters before
}

// What one member knows of its group.
static void add_knowledge(struct group *group, const struct survivor *survivor) {
    const struct wire_resume *resume = &survivor->resume;
    if (!resume->accepted) return;
    if (resume->epoch.lost_epoch > group->lost_epoch) {
        group->lost_epoch = resume->epoch.lost_epoch;
        group->witness = survivor;
    }
    if (resume->epoch.sync_round <= group->sync.last.round) return;
    group->sync.last = (struct wire_sync_end){
        .round = resume->epoch.sync_round, .code = resume->sync_code, .revision = resume->sync_revision};
    group->sync.expected = resume->epoch.sync_expected;
    group->sync.committed = resume->epoch.sync_expected != 0;
}

static uint32_t group_end(const struct claim *claim, uint32_t begin) {
    uint32_t end = begin;
    while (end < claim->count && claim->members[end].group == claim->members[begin].group) end++;
    return end;
}

// Those that made this claim knew a member of the group that is no longer in it, and of no loss since.
static void lose_unheard(struct membership *m, const struct claim *claim, struct group *group) {
    for (uint32_t i = group->begin; i < group->begin + group->count && group->lost_epoch <= claim->number; i++)
        group->lost |= survivor_of(m, m->order[i]->conn)->claim == claim;
}

// A loss that only members of other groups had heard of: for this group it happens now.
static void find_unheard_losses(struct membership *m, const struct claim *taken, const struct wire_barrier *last) {
    for (uint32_t i = 0; i < m->count; i += m->order[i]->group->count) {
        struct group *group = m->order[i]->group;
        // Also of somebody who came with the last vote, which members here missed.
        for (uint32_t k = 0; k < last->count; k++)
            if (last->sizes[k].group == group->id && last->sizes[k].count > group->count &&
                group->lost_epoch <= last->epoch)
                group->lost = true;
    }
    for (uint32_t i = 0; i < m->claim_count; i++) {
        const struct claim *claim = m->claims[i];
        if (!is_same_run(claim->run, claim->secret, taken->run, taken->secret)) continue;
        for (uint32_t begin = 0, end; begin < claim->count; begin = end) {
            struct group *group = NULL;
            bool absent = false;
            end = group_end(claim, begin);
            for (uint32_t k = begin; k < end; k++) {
                struct peer *peer = membership_peer_of_id(m, &claim->members[k].id);
                // it may be here, left behind
                bool here = peer != NULL && peer->accepted && peer->group->id == claim->members[k].group;
                if (here) group = peer->group;
                absent |= !here;
            }
            if (absent && group != NULL && !group->lost) lose_unheard(m, claim, group);
        }
    }
}

// The members of one group, which are claim->members[begin..end). A group of which nobody is here is gone.
static void take_group(struct membership *m, const struct claim *claim, uint32_t begin, uint32_t end) {
    uint32_t here = 0;
    for (uint32_t i = begin; i < end; i++) here += member_here(m, claim, i) != NULL;
    if (here == 0) return;
    struct group *group = membership_group_for(m, claim->members[begin].group);
    group->lost |= here < end - begin;
    group->changed = true;
    for (uint32_t i = begin; i < end; i++) {
        const struct survivor *survivor = member_here(m, claim, i);
        if (survivor == NULL) continue;
        struct peer *peer = membership_add_peer(m, survivor->conn, &claim->members[i]);
        peer->accepted = true;
        peer->masters = survivor->resume.hello.masters;
        peer->group = group;
        peer->sync.committed = survivor->resume.accepted && survivor->resume.sync_committed;
        add_knowledge(group, survivor);
        m->order[m->count++] = peer;
    }
}

static void take_members(struct membership *m, const struct claim *claim, const struct wire_barrier *last) {
    m->count = 0;
    for (uint32_t begin = 0, end; begin < claim->count; begin = end) {
        end = group_end(claim, begin);
        take_group(m, claim, begin, end);
    }
    membership_place(m);
    find_unheard_losses(m, claim, last);
}

// Verdicts that somebody has.
static void take_past(struct membership *m) {
    for (uint32_t i = 0; i < m->count; i += m->order[i]->group->count)
        op_table_reset(&m->order[i]->group->past, m->order[i]->group->count, WIRE_MAX_PAST);
    for (uint32_t i = 0; i < m->count; i++) {
        struct peer *peer = m->order[i];
        const struct survivor *survivor = survivor_of(m, peer->conn);
        for (uint32_t k = 0; k < survivor->resume.past_count; k++) {
            struct op_entry *entry;
            enum wire_op_state state =
                survivor->resume.past[k].kind == WIRE_VERDICT_COMMIT ? WIRE_OP_DONE : WIRE_OP_OPEN;
            if (op_table_note(&peer->group->past, &survivor->resume.past[k].name, peer->rank, state, &entry) ==
                OP_TABLE_NO_MEMORY)
                membership_starve(m);
        }
    }
}

// Some ended calls with losses that others have not heard of: those hear of them one by one, too.
static void tell_losses(const struct peer *peer, const struct survivor *survivor, const struct wire_barrier *last,
                        struct wire_resumed *resumed) {
    const struct survivor *witness = peer->group->witness;
    uint64_t heard = survivor->resume.accepted ? survivor->resume.epoch.number : last->epoch;
    if (witness == NULL || witness->resume.loss_count == 0) return;
    uint32_t first = 0;
    while (first < witness->resume.loss_count && witness->resume.losses[first].epoch <= heard) first++;
    resumed->loss_count = witness->resume.loss_count - first;
    resumed->losses = witness->resume.losses + first;
}

static void send_resumed(struct membership *m, struct peer *peer, const struct survivor *survivor,
                         const struct wire_barrier *last) {
    static const char ended[] = "the round ended so for other members, before the master was lost";
    const struct group_sync *sync = &peer->group->sync;
    struct wire_resumed resumed = {.heartbeat_limit_ms = (uint32_t)(m->limit_ns / MS_NS), .barrier = *last};
    resumed.barrier_ended = missed_barrier(survivor, last);
    tell_losses(peer, survivor, last, &resumed);
    resumed.sync_ended = !resumed.barrier_ended && survivor->resume.vote == WIRE_VOTE_SYNC &&
                         survivor->resume.epoch.sync_round < sync->last.round;
    if (resumed.sync_ended) {
        resumed.sync = sync->last;
        resumed.sync.text.length = sync->last.code == CODE_SUCCESS ? 0 : sizeof ended - 1;
        memcpy(resumed.sync.text.chars, ended, resumed.sync.text.length);
        peer->sync.committed |= sync->last.code == CODE_SUCCESS;
    }
    size_t begin = membership_frame_begin(m), length;
    wire_encode_resumed(&m->actions.bytes, membership_header(m), &resumed);
    membership_frame_end(m, begin, &length);
    membership_send(m, peer, begin, length);
    if (resumed.barrier_ended || resumed.sync_ended) return;
    if (survivor->resume.vote == WIRE_VOTE_SYNC)
        membership_take_sync_vote(m, peer, &survivor->resume.sync_vote);
    else if (survivor->resume.vote != 0)
        membership_open_vote(m, peer, survivor->resume.vote);
}

// A MISMATCH was followed by a new group epoch at once, so whoever has entered one since had heard of it.
static bool lacks_mismatch(const struct peer *peer, const struct survivor *survivor, const struct wire_barrier *last,
                           const struct op_entry *entry) {
    if (op_entry_has(&peer->group->past, entry, peer->rank)) return false;
    if (!survivor->resume.accepted) return entry->name.epoch >= last->epoch;
    return survivor->resume.epoch.group_epoch <= entry->name.epoch;
}

static void send_mismatches(struct membership *m, struct peer *peer, const struct survivor *survivor,
                            const struct wire_barrier *last) {
    static const char why[] = "members gave different arguments for this op, as was found before the master was lost";
    uint32_t cursor = 0;
    for (struct op_entry *entry; (entry = op_table_next(&peer->group->past, &cursor)) != NULL;) {
        if (entry->open == 0 || !lacks_mismatch(peer, survivor, last, entry)) continue;
        struct wire_verdict verdict = {
            .name = entry->name, .kind = WIRE_VERDICT_MISMATCH, .text.length = sizeof why - 1};
        memcpy(verdict.text.chars, why, sizeof why - 1);
        size_t begin = membership_frame_begin(m), length;
        wire_encode_verdict(&m->actions.bytes, membership_header(m), &verdict);
        membership_frame_end(m, begin, &length);
        membership_send(m, peer, begin, length);
    }
}

// Those that are no members: newcomers begin anew, everybody else has been left behind.
static void dismiss_rest(struct membership *m) {
    while (m->survivor_count > 0) {
        struct survivor *survivor = m->survivors[0];
        if (survivor->resumes && survivor->resume.accepted)
            turn_away(m, survivor, WIRE_EXPELLED,
                      survivor->run != m->run ? ANOTHER_RUN
                      : is_same_run(m->run, m->secret, survivor->run, survivor->resume.secret)
                          ? "the run went on without this peer"
                          : WRONG_SECRET);
        else
            register_held(m, survivor);
    }
    m->said_epoch = 0;
}

static void take_member(struct membership *m, struct peer *peer, struct survivor *survivor,
                        const struct wire_barrier *last) {
    if (fits(survivor, last)) {
        send_resumed(m, peer, survivor, last);
        send_mismatches(m, peer, survivor, last);
    } else {
        membership_expel(m, peer, "what it knows does not fit the run");
    }
}

static void take_up(struct membership *m, const struct claim *claim) {
    struct wire_barrier last = newest_barrier(m, claim);
    memcpy(m->sizes, last.sizes, last.count * sizeof *last.sizes); // it goes with its survivor
    last.sizes = m->sizes;
    begin_run(m, claim);
    m->barrier = last.number;
    take_members(m, claim, &last);
    take_past(m);
    membership_log(m, LOG_NOTICE, "takes the run up, generation %llu: %u of %u members of epoch %llu are here",
                   (unsigned long long)m->generation, claim->present, claim->count, (unsigned long long)claim->number);
    for (uint32_t i = 0; i < m->count; i++) take_member(m, m->order[i], survivor_of(m, m->order[i]->conn), &last);
    for (uint32_t i = 0; i < m->count; i++) {
        m->order[i]->group->witness = NULL;
        forget(m, survivor_of(m, m->order[i]->conn));
    }
    m->taken_number = m->number + 1;
    membership_enter_resumed(m);
    m->gather_generation = 0;
    m->majority_at = INT64_MAX;
    dismiss_rest(m);
}

// ---- gathering ----

static void ask_promises(struct membership *m, const struct claim *claim) {
    uint64_t run = claim->run, highest = 0;
    for (uint32_t i = 0; i < m->survivor_count; i++) {
        const struct survivor *survivor = m->survivors[i];
        if (is_of(survivor, claim) && !survivor->asked && survivor->promised > highest) highest = survivor->promised;
    }
    // the first time, or another master was at work meanwhile
    if (m->gather_generation <= highest || m->gather_run != run) {
        for (uint32_t i = 0; i < m->survivor_count; i++) {
            if (is_of(m->survivors[i], claim) && m->survivors[i]->promised > highest)
                highest = m->survivors[i]->promised;
            m->survivors[i]->asked = m->survivors[i]->gave = false;
        }
        m->gather_generation = highest + 1;
        m->gather_run = run;
    }
    for (uint32_t i = 0; i < m->survivor_count; i++) {
        struct survivor *survivor = m->survivors[i];
        if (!is_of(survivor, claim) || survivor->asked) continue;
        survivor->asked = tell(m, survivor, WIRE_GENERATION, m->gather_generation); // else with the next event
    }
}

static bool all_promised(const struct membership *m, const struct claim *claim) {
    for (uint32_t i = 0; i < m->survivor_count; i++)
        if (is_of(m->survivors[i], claim) && !m->survivors[i]->gave) return false;
    return true;
}

bool membership_suits_held(const struct membership *m, bool loopback) {
    uint32_t like = 1, unlike = 0; // with itself
    for (uint32_t i = 0; i < m->survivor_count; i++) {
        const struct survivor *survivor = m->survivors[i];
        bool same = socket_address_is_loopback(&survivor->source) == loopback;
        like += !survivor->resumes && same;
        unlike += !survivor->resumes && !same;
    }
    return like >= unlike;
}

static void start_new_run(struct membership *m) {
    while (m->survivor_count > 0 && m->standby) turn_away(m, m->survivors[0], WIRE_REFUSED, STANDBY);
    while (m->survivor_count > 0) register_held(m, m->survivors[0]);
}

// To the log, and to all that wait, newcomers as well: theirs is a call that does not return.
static void say(struct membership *m, const struct claim *claim) {
    char why[MEMBERSHIP_LOG_BYTES], others[64] = "", elders[96] = "";
    uint32_t newcomers = 0, least = claim->quorum.elders;
    for (uint32_t i = 0; i < m->survivor_count; i++) newcomers += !m->survivors[i]->resumes;
    if (m->peer_count > 0) snprintf(others, sizeof others, "; until then %u peers have begun a new one", m->peer_count);
    if (newcomers > 0) snprintf(others, sizeof others, "; newcomers wait with them: %u", newcomers);
    if (claim->elders < least)
        snprintf(elders, sizeof elders, ", and %u more of those that were members before newcomers came",
                 least - claim->elders);
    snprintf(why, sizeof why,
             "waits to take up the run whose master was lost: %u of the %u members of epoch %llu are here, %u are "
             "needed%s%s",
             claim->present, claim->count, (unsigned long long)claim->number, quorum_of(claim), elders, others);
    m->said_epoch = claim->number;
    if (m->now_ns >= m->say_at) {
        m->say_at = m->now_ns + SAY_MS * MS_NS;
        membership_log(m, LOG_ERR, "%s", why); // nothing goes on meanwhile
    }
    for (uint32_t i = 0; i < m->survivor_count; i++) {
        struct survivor *survivor = m->survivors[i];
        if (survivor->told_ns != 0 && m->now_ns < survivor->told_ns + SAY_MS * MS_NS) continue;
        survivor->told_ns = m->now_ns;
        struct wire_header header = {.run = survivor->run};
        size_t begin = membership_frame_begin(m), length;
        wire_encode_text(&m->actions.bytes, header, WIRE_WAITING, why);
        if (membership_frame_end(m, begin, &length)) membership_send_to(m, survivor->conn, begin, length);
    }
}

// Whoever was waited for has given up, or was let go.
static void say_end(struct membership *m) {
    if (m->said_epoch != 0)
        membership_log(m, LOG_NOTICE,
                       "nobody waits any more for the run of epoch %llu to be taken up: newcomers begin a new one",
                       (unsigned long long)m->said_epoch);
    m->said_epoch = 0;
}

// A run that this master has begun while the members of an older one were on their way.
static bool yield(struct membership *m) {
    const struct claim *claim = best_claim(m);
    if (!has_majority(claim)) {
        if (m->now_ns >= m->yields_until)
            dismiss_rest(m);
        else if (claim != NULL)
            say(m, claim);
        return m->survivor_count == 0;
    }
    membership_log(m, LOG_NOTICE,
                   "lets the young run of %u peers go: %u of the %u members of epoch %llu of an older one have come",
                   m->peer_count, claim->present, claim->count, (unsigned long long)claim->number);
    for (uint32_t i = 0; i < m->slots; i++) {
        struct peer *peer = &m->peers[i];
        if (!peer->used) continue;
        if (peer->accepted)
            membership_expel(m, peer,
                             "the members of an older run have come, whose master this one replaces, and that run goes "
                             "on: connect again to be in it");
        else
            // by itself, since nobody has told it why
            membership_drop(m, peer, LOG_INFO, "it comes again, for the older run");
    }
    return true;
}

bool membership_gather(struct membership *m) {
    m->gather_due = false;
    if (m->peer_count > 0) return yield(m);
    const struct claim *claim = best_claim(m);
    if (claim == NULL) {
        m->majority_at = INT64_MAX;
        say_end(m);
        if (m->now_ns >= m->young_until && !m->others_awaited) start_new_run(m);
        return m->peer_count > 0;
    }
    if (!has_majority(claim)) {
        m->majority_at = INT64_MAX;
        if (m->now_ns >= m->young_until) say(m, claim);
        return false;
    }
    if (m->majority_at == INT64_MAX) m->majority_at = m->now_ns;
    ask_promises(m, claim); // at once: who has promised waits for the rest, too
    if (claim->present < claim->count && m->now_ns < m->majority_at + m->limit_ns) return false;
    if (all_promised(m, claim)) take_up(m, claim);
    return m->peer_count > 0;
}

// ---- events ----

// As if this master had ended and another one begun: its members come with RESUME.
static void give_up_run(struct membership *m) {
    for (uint32_t i = 0; i < m->slots; i++) {
        struct peer *peer = &m->peers[i];
        if (!peer->used) continue;
        if (!peer->gone && m->by_conn[peer->conn] != 0) {
            m->by_conn[peer->conn] = 0;
            membership_close(m, peer->conn);
        }
        membership_forget_peer(m, peer);
    }
    for (uint32_t i = 0; i < m->group_slots; i++)
        if (m->groups[i].count > 0) membership_group_fini(&m->groups[i]);
    m->gone_count = m->count = m->candidate_count = m->round_count = 0;
    m->unheard = 0;
    membership_start_run(m);
    m->young_until = m->now_ns + m->limit_ns; // its members may come back, and newcomers be the first
}

void membership_give_up_starved(struct membership *m) {
    m->starved = false;
    membership_log(m, LOG_ERR, "the system refuses memory: gives the run of %u peers up, for all to come back",
                   m->count);
    give_up_run(m);
}

static struct survivor *add(struct membership *m, uint32_t conn, const struct wire_address *source) {
    struct survivor *survivor = m->survivor_count < WIRE_MAX_MEMBERS ? calloc(1, sizeof *survivor) : NULL;
    if (survivor == NULL) return NULL;
    survivor->conn = conn;
    survivor->source = *source;
    survivor->heard_ns = survivor->since_ns = m->now_ns;
    m->survivor_by_conn[conn] = survivor;
    m->gather_due = true;
    if (m->survivors_at > m->now_ns + m->limit_ns) m->survivors_at = m->now_ns + m->limit_ns;
    if (m->survivor_count == 0 && m->peer_count == 0) m->heartbeat_at = m->now_ns + m->limit_ns / 5;
    m->survivors[m->survivor_count++] = survivor;
    return survivor;
}

static void *copy_of(const void *items, size_t count, size_t each, bool *whole) {
    if (count == 0) return NULL;
    void *copy = malloc(count * each);
    if (copy == NULL)
        *whole = false;
    else
        memcpy(copy, items, count * each);
    return copy;
}

static bool keep_resume(struct survivor *survivor, const struct wire_resume *resume) {
    bool whole = true;
    survivor->resume = *resume;
    survivor->resume.barrier.sizes =
        copy_of(resume->barrier.sizes, resume->barrier.count, sizeof *resume->barrier.sizes, &whole);
    survivor->resume.past = copy_of(resume->past, resume->past_count, sizeof *resume->past, &whole);
    survivor->resume.losses = copy_of(resume->losses, resume->loss_count, sizeof *resume->losses, &whole);
    return whole;
}

// Numbers that no run comes near would overflow in what follows.
static bool is_sound(const struct wire_header *header, const struct wire_resume *resume) {
    if (header->run == 0 || header->generation < resume->generation || header->generation > GENERATIONS_MOST ||
        resume->join_number > NUMBERS_MOST)
        return false;
    if (!resume->accepted) return true;
    if (resume->epoch.number > NUMBERS_MOST || resume->barrier.number > NUMBERS_MOST ||
        resume->epoch.sync_round >> 32 > resume->generation)
        return false;
    if (resume->barrier.number == 0 || resume->barrier.epoch > resume->epoch.number) return false; // a vote let it in
    if (resume->loss_count > 0 && resume->losses[resume->loss_count - 1].epoch > resume->epoch.lost_epoch) return false;
    for (uint32_t i = 0; i < resume->epoch.count; i++)
        if (resume->epoch.members[i].join_number > NUMBERS_MOST) return false;
    for (uint32_t i = 0; i < resume->epoch.count; i++)
        if (wire_id_equal(&resume->epoch.members[i].id, &resume->hello.id)) return true;
    return false;
}

// A run that may have to give way to the one that is resumed.
static bool is_young(const struct membership *m, uint64_t run) { return run != m->run && m->now_ns < m->yields_until; }

// A member of the run that this master serves comes as one that has lost it. Nobody is left behind before a member is
// known to have entered an epoch without it: as long as none is, the others may have left as well, and what all of them
// know together decides.
static bool take_back(struct membership *m, const struct wire_header *header, const struct wire_resume *resume) {
    if (header->run != m->run || header->generation < m->generation ||
        memcmp(resume->secret, m->secret, sizeof m->secret) != 0)
        return false;
    const struct peer *peer = membership_peer_of_id(m, &resume->hello.id);
    bool missed = peer != NULL ? peer->accepted || m->now_ns < m->woken_until
                               : resume->accepted && m->heard_number < m->lost_number;
    if (!missed) return false;
    membership_log(m, LOG_NOTICE,
                   "a member has come back that had lost this master: gives the run up, for all to come back");
    give_up_run(m);
    return true;
}

// This master serves a run.
static void refuse_resume(struct membership *m, uint32_t conn, const struct wire_address *source,
                          const struct wire_header *header, const struct wire_resume *resume) {
    struct peer *before = membership_peer_of_id(m, &resume->hello.id);
    // the run that it waited in is over, or has not seen it go
    if (!resume->accepted && (before == NULL || !before->accepted)) {
        struct wire_hello hello = resume->hello;
        if (before != NULL) {
            membership_drop(m, before, LOG_INFO, "it comes again");
            membership_settle(m);
        }
        membership_register(m, conn, source, &hello);
        return;
    }
    const char *why =
        header->run == m->run ? "the connection broke, and the run went on without this peer" : ANOTHER_RUN;
    membership_turn_away(m, conn, *header, resume->accepted ? WIRE_EXPELLED : WIRE_REFUSED, why);
}

static bool is_secret(const struct membership *m, uint64_t run, const uint8_t secret[16]) {
    if (run == m->run && m->peer_count > 0) return is_same_run(run, secret, m->run, m->secret);
    return run != m->last_run || is_same_run(run, secret, m->last_run, m->last_secret);
}

// How many speak for what it says; 0: a newcomer.
static uint32_t support_of(const struct survivor *survivor) {
    return survivor->claim != NULL ? survivor->claim->present : 0;
}

// All places are taken. Who has the fewest beside itself goes, of those who has waited longest, so that many runs of
// one member each keep no other run out.
static bool make_room(struct membership *m, const struct wire_header *header, const struct wire_resume *resume) {
    const struct claim *claim = resume->accepted ? find_claim(m, resume, header->run) : NULL;
    uint32_t support = claim != NULL ? claim->present + 1 : resume->accepted;
    struct survivor *least = m->survivors[0];
    for (uint32_t i = 1; i < m->survivor_count; i++)
        if (support_of(m->survivors[i]) < support_of(least)) least = m->survivors[i];
    if (support_of(least) > support) return false;
    if (least->resumes)
        let_go(m, least, NO_ROOM);
    else
        turn_away(m, least, WIRE_REFUSED,
                  "members of a lost run take all places while they wait for it to be taken up");
    return true;
}

static struct survivor *gather_in(struct membership *m, uint32_t conn, const struct wire_address *source,
                                  const struct wire_header *header, const struct wire_resume *resume) {
    struct survivor *before = survivor_of_id(m, header->run, resume->secret, &resume->hello.id), *survivor;
    if (before != NULL) { // it has left that connection, whose end is still to come
        membership_close(m, before->conn);
        forget(m, before);
    }
    if (m->survivor_count == WIRE_MAX_MEMBERS && !make_room(m, header, resume)) return NULL;
    survivor = add(m, conn, source);
    if (survivor == NULL) return NULL;
    survivor->run = header->run;
    survivor->promised = header->generation;
    if (keep_resume(survivor, resume) && count_in(m, survivor)) return survivor;
    forget(m, survivor);
    return NULL;
}

const struct membership_actions *membership_peer_resumed(struct membership *m, int64_t now_ns, uint32_t conn,
                                                         const struct wire_address *source,
                                                         const struct wire_header *header, const uint8_t *body) {
    membership_begin_event(m, now_ns);
    struct wire_resume resume = {
        .barrier.sizes = m->sizes, .epoch.members = m->members, .past = m->past, .losses = m->losses};
    const struct survivor *survivor;
    bool sound = wire_decode_resume(body, header->length, &resume);
    if (sound && resume.hello.version != WIRE_VERSION)
        membership_turn_away(m, conn, *header, WIRE_REFUSED, "the master speaks another version of the protocol");
    else if (!sound || !is_sound(header, &resume))
        membership_turn_away(m, conn, *header, WIRE_REFUSED, "malformed RESUME");
    else if (!is_secret(m, header->run, resume.secret))
        membership_turn_away(m, conn, *header, WIRE_REFUSED, WRONG_SECRET);
    else if (m->peer_count > 0 && !is_young(m, header->run) && !take_back(m, header, &resume))
        refuse_resume(m, conn, source, header, &resume);
    else if ((survivor = gather_in(m, conn, source, header, &resume)) == NULL)
        send_back(m, conn, header->run, NO_ROOM);
    else
        tell(m, survivor, WIRE_HEARTBEAT, 0); // it is heard
    return membership_settle(m);
}

bool membership_hold(struct membership *m, uint32_t conn, const struct wire_address *source,
                     const struct wire_hello *hello) {
    bool holds = m->peer_count == 0 && (m->survivor_count > 0 || m->now_ns < m->young_until || m->others_awaited);
    struct survivor *survivor = holds ? add(m, conn, source) : NULL;
    if (survivor != NULL) survivor->resume.hello = *hello;
    if (survivor == NULL && holds && m->survivor_count > 0) {
        membership_turn_away(m, conn, membership_header(m), WIRE_REFUSED,
                             "members of a lost run take all places while they wait for it to be taken up");
        return true;
    }
    if (survivor == NULL && m->standby && m->peer_count == 0) {
        membership_turn_away(m, conn, membership_header(m), WIRE_REFUSED, STANDBY);
        return true;
    }
    return survivor != NULL;
}

// ---- a master that is left ----

void membership_set_standby(struct membership *m, bool standby) { m->standby = standby; }

void membership_await_others(struct membership *m) { m->others_awaited = true; }

const struct membership_actions *membership_others_are(struct membership *m, int64_t now_ns, enum wire_activity most) {
    membership_begin_event(m, now_ns);
    m->others_awaited = false;
    m->gather_due = true; // newcomers wait for this
    m->standby = most != WIRE_IDLE;
    return membership_settle(m);
}

enum wire_activity membership_activity(const struct membership *m) {
    return m->peer_count > 0 ? WIRE_SERVES : m->survivor_count > 0 ? WIRE_GATHERS : WIRE_IDLE;
}

const struct membership_actions *membership_send_on(struct membership *m, int64_t now_ns) {
    membership_begin_event(m, now_ns);
    if (m->peer_count > 0 || has_majority(best_claim(m))) return membership_settle(m);
    while (m->survivor_count > 0) {
        struct survivor *survivor = m->survivors[0];
        if (!survivor->resumes) {
            turn_away(m, survivor, WIRE_REFUSED, STANDBY);
            continue;
        }
        membership_close(m, survivor->conn); // without a word: it looks further down its list
        forget(m, survivor);
    }
    return membership_settle(m);
}

// Peers that know other masters may go on there without this one, if they are more than half.
static bool know_others(const struct membership *m) {
    for (uint32_t i = 0; i < m->slots; i++)
        if (m->peers[i].used && m->peers[i].masters > 1) return true;
    return false;
}

static void give_up_unheard(struct membership *m, uint32_t gone, uint32_t of) {
    membership_log(m, LOG_ERR,
                   "%u of %u peers were not heard of any more: they may have gone on with another master, so this one "
                   "gives the run up",
                   gone, of);
    give_up_run(m);
}

static void count_anew(struct membership *m) {
    m->entered = m->elders_entered = 0;
    m->taken_number = m->number + 1;
    for (uint32_t i = 0; i < m->count; i++) m->order[i]->entered = false;
}

// Those that are about to be lost live, perhaps, and can take the run up elsewhere from the epoch at hand, if they and
// others that are lost later are more than half of it. So the epochs after it are sure of themselves only when so many
// have entered one that no more than half are left for that.
static void doubt(struct membership *m) {
    uint32_t half = (m->count + 1) / 2;
    if (m->quorum.members < half) m->quorum.members = half; // else the epoch at hand is not sure itself
    count_anew(m);
}

// Those that have not entered the larger epoch can take the run up from the one before with more than half of that, few
// as they may be of the larger one, and newcomers may be most of it. So it is sure of itself only when half of those
// that were members before have entered it.
void membership_admits(struct membership *m, uint32_t members_before, uint64_t newer) {
    if (!know_others(m)) return;
    m->quorum.elders = (members_before + 1) / 2;
    m->quorum.newer = newer;
    count_anew(m);
}

static bool is_sure(const struct membership *m) { return m->quorum.members + m->quorum.elders == 0; }

static bool is_elder(const struct membership *m, const struct peer *peer) {
    return peer->member.join_number < m->quorum.newer;
}

void membership_on_entered(struct membership *m, struct peer *peer, uint64_t epoch) {
    if (is_sure(m) || peer->entered || epoch < m->taken_number) return;
    peer->entered = true;
    m->entered++;
    m->elders_entered += is_elder(m, peer);
}

// It will take nothing up elsewhere. Of one that came with RESUME the end of a connection does not tell that: it may
// have gone on looking.
void membership_on_end(struct membership *m, const struct peer *peer) {
    if (m->quorum.members == 0 && m->quorum.elders > 0 && !peer->entered && is_elder(m, peer)) m->quorum.elders--;
}

bool membership_unheard(struct membership *m, uint32_t count) {
    if (!know_others(m)) return false;
    doubt(m);
    if (m->unheard == 0 || m->now_ns > m->unheard_since + UNHEARD_LIMITS * m->limit_ns) {
        m->unheard = 0;
        m->unheard_of = m->count;
        m->unheard_since = m->now_ns;
    }
    m->unheard += count;
    if (2 * m->unheard <= m->unheard_of) return false;
    give_up_unheard(m, m->unheard, m->unheard_of);
    return true;
}

void membership_on_moved(struct membership *m, struct peer *peer) {
    char name[64];
    if (m->now_ns < m->woken_until) { // the others have left as well, or are about to: nobody needs to be lost
        membership_log(m, LOG_NOTICE, "stood still, and %s looks for a master: gives the run up, for all to come back",
                       membership_name(name, peer));
        give_up_run(m);
    } else if (!peer->accepted || !membership_unheard(m, 1)) {
        membership_drop(m, peer, LOG_WARN, "it looks for another master, since this one was silent");
    }
}

void membership_woke(struct membership *m) {
    m->gather_due = true;
    m->woken_until = m->now_ns + m->limit_ns;
    if (m->majority_at != INT64_MAX) m->majority_at = m->now_ns; // the rest has not had its time yet
    // those that gather have left, and come again
    if (m->survivor_count > 0 && m->young_until < m->woken_until) m->young_until = m->woken_until;
}

struct wire_quorum membership_quorum(const struct membership *m) {
    return know_others(m) ? m->quorum : (struct wire_quorum){0};
}

// Those that have entered no epoch of this generation can take the run up elsewhere, from the epoch before, with
// members that never came here. Once a quorum of that epoch has entered this one, any other quorum hears of it. Until
// then those who have are told that they cannot go on with fewer.
void membership_watch_quorum(struct membership *m) {
    uint32_t most = m->entered, elders = m->elders_entered; // with those that may still
    if (is_sure(m)) return;
    for (uint32_t i = 0; i < m->count; i++) {
        most += !m->order[i]->entered;
        elders += !m->order[i]->entered && is_elder(m, m->order[i]);
    }
    if (m->entered >= m->quorum.members && m->elders_entered >= m->quorum.elders) {
        m->quorum = (struct wire_quorum){0};
        if (know_others(m) && !m->lost) m->changed = true;   // an epoch tells them
    } else if (know_others(m) && most < m->quorum.members) { // also with newcomers alone
        give_up_unheard(m, m->quorum.members - most, m->quorum.members);
    } else if (know_others(m) && elders < m->quorum.elders) {
        give_up_unheard(m, m->quorum.elders - elders, m->quorum.elders);
    }
}

bool membership_survivor_message(struct membership *m, uint32_t conn, const struct wire_header *header) {
    struct survivor *survivor = survivor_of(m, conn);
    if (survivor == NULL) return false;
    survivor->heard_ns = m->now_ns;
    if (header->type == WIRE_PROMISE && survivor->asked && header->run == survivor->run &&
        header->generation == m->gather_generation) {
        survivor->gave = true;
        survivor->promised = header->generation;
        m->gather_due = true;
    }
    if (header->type == WIRE_LEAVE) {
        forget(m, survivor);
        membership_close(m, conn);
    }
    return true;
}

bool membership_survivor_lost(struct membership *m, uint32_t conn) {
    struct survivor *survivor = survivor_of(m, conn);
    if (survivor != NULL) forget(m, survivor);
    return survivor != NULL;
}

void membership_survivor_heard(struct membership *m, int64_t now_ns, uint32_t conn) {
    struct survivor *survivor = survivor_of(m, conn);
    if (survivor != NULL && now_ns > survivor->heard_ns) survivor->heard_ns = now_ns;
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

// A newcomer says nothing before its WELCOME, and waits no longer than this; members wait as long as they say
// something.
static int64_t survivor_deadline(const struct membership *m, const struct survivor *survivor) {
    return survivor->resumes ? survivor->heard_ns + m->limit_ns : survivor->since_ns + MEMBERSHIP_HOLD_MS * MS_NS;
}

void membership_gather_tick(struct membership *m) {
    m->survivors_at = INT64_MAX;
    for (uint32_t i = m->survivor_count; i-- > 0;) {
        struct survivor *survivor = m->survivors[i];
        int64_t deadline = survivor_deadline(m, survivor);
        if (deadline > m->now_ns)
            m->survivors_at = earlier(m->survivors_at, deadline);
        else if (survivor->resumes)
            let_go(m, survivor, "had heard nothing of it for the heartbeat limit");
        else
            turn_away(m, survivor, WIRE_REFUSED,
                      "members of a lost run wait for the rest of them, and have not become enough to take it up while "
                      "this peer waited: start the rest again, or end those that wait, for a new run");
    }
}

void membership_gather_beat(struct membership *m) {
    for (uint32_t i = 0; i < m->survivor_count; i++) tell(m, m->survivors[i], WIRE_HEARTBEAT, 0);
}

int64_t membership_gather_deadline(const struct membership *m) {
    if (m->survivor_count == 0) return INT64_MAX;
    int64_t next = earlier(m->heartbeat_at, m->survivors_at);
    if (m->peer_count > 0) next = earlier(next, m->yields_until);
    if (m->now_ns < m->young_until) next = earlier(next, m->young_until);
    if (m->majority_at != INT64_MAX && m->now_ns < m->majority_at + m->limit_ns)
        next = earlier(next, m->majority_at + m->limit_ns);
    return next;
}

void membership_expect_survivors(struct membership *m, int64_t until_ns) { m->young_until = until_ns; }

void membership_gather_fini(struct membership *m) {
    while (m->survivor_count > 0) forget(m, m->survivors[m->survivor_count - 1]);
}

const struct membership_actions *membership_farewell(struct membership *m, int64_t now_ns) {
    membership_begin_event(m, now_ns);
    size_t begin = membership_frame_begin(m), length;
    wire_encode_empty(&m->actions.bytes, membership_header(m), WIRE_BYE);
    if (!membership_frame_end(m, begin, &length)) return &m->actions;
    for (uint32_t i = 0; i < m->slots; i++)
        if (m->peers[i].used) membership_send_to(m, m->peers[i].conn, begin, length);
    for (uint32_t i = 0; i < m->survivor_count; i++) membership_send_to(m, m->survivors[i]->conn, begin, length);
    return &m->actions;
}
