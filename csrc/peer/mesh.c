#include "peer/mesh.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/platform.h"
#include "link/pace.h"

enum {
    PEERS_LEAST = 8,
    FAR_US = PACE_FAR_US / 2, // one way
    SPARE_PART = 8,           // of the spare lanes that there may be, one more of so many is dialled at first
    SPARE_EACH = 4,           // and so many more with each that is made
    SPARE_MAKING = 24,        // at once
    EXCUSE_LIMITS = 8,        // between two silences that are excused
};

enum link_state { LINK_ABSENT, LINK_MAKING, LINK_FAILED, LINK_UP };

struct mesh_link {
    uint8_t state;
    bool dialled_again; // one dial may fail: a reset in the middle of a hello tells little
    bool proved;        // LINK_MAKING: the other end has proved whose it is, and has been sent the hello
    uint64_t serial;    // LINK_UP: of the connection
    uint64_t made_in;   // number of the epoch in force when it came up; of a spare lane that is being made, the group
                        // epoch in which it was dialled
};

struct mesh_peer {
    struct wire_id id;
    uint64_t join_number;
    struct wire_reach reach; // at least one address
    bool in[MESH_MEMBERSHIPS];
    bool lanes[MESH_MEMBERSHIPS]; // tensors go there, or come from there: links beyond the direct one are required
    uint64_t reported_in;         // number of the epoch in which the master was told
    uint64_t malformed_in;        // the same, of malformed frames
    uint32_t latency_us;
    uint32_t link_count;                // direct link and lanes of the pair
    uint32_t link_end;                  // and spare lanes
    uint32_t spare_end;                 // and those of them that are made in the epoch in force
    bool refuses;                       // spare lanes
    bool narrow;                        // large packets seem to be lost on the way
    int64_t excuse_ends, excused_until; // silence of old links counts for nothing; is not excused again
    uint64_t spare_lost;                // number of the epoch in which one of them was lost; 0: none was
    struct mesh_link *links;
};

void mesh_init(struct mesh *mesh, const struct wire_id *self, uint32_t lanes) {
    memset(mesh, 0, offsetof(struct mesh, answer));
    mesh->self = *self;
    mesh->lanes = lanes;
}

void mesh_fini(struct mesh *mesh) {
    for (size_t i = 0; i < mesh->count; i++) free(mesh->peers[i].links);
    free(mesh->peers);
}

// ---- neighbours ----

static struct mesh_peer *find(const struct mesh *mesh, const struct wire_id *id) {
    for (size_t i = 0; i < mesh->count; i++)
        if (wire_id_equal(&mesh->peers[i].id, id)) return &mesh->peers[i];
    return NULL;
}

// The neighbour that has this link; NULL: nobody has.
static struct mesh_peer *find_link(const struct mesh *mesh, const struct wire_id *id, uint32_t index) {
    struct mesh_peer *n = find(mesh, id);
    return n == NULL || index >= n->link_end ? NULL : n;
}

static struct mesh_peer *add(struct mesh *mesh, const struct wire_member *from) {
    uint32_t lanes = from->lanes < mesh->lanes ? from->lanes : mesh->lanes;
    if (!GROW(mesh->peers, mesh->room, mesh->count, PEERS_LEAST)) return NULL;
    uint32_t room = WIRE_MAX_LANES - lanes, spare = mesh->spare < room ? mesh->spare : room;
    struct mesh_link *links = calloc((size_t)lanes + 1 + spare, sizeof *links);
    if (links == NULL) return NULL;
    struct mesh_peer *added = &mesh->peers[mesh->count++];
    *added = (struct mesh_peer){.id = from->id,
                                .join_number = from->join_number,
                                .link_count = lanes + 1,
                                .link_end = lanes + 1 + spare,
                                .reach = from->reach,
                                .links = links};
    if (added->reach.count == 0) added->reach.addresses[added->reach.count++] = from->address;
    return added;
}

static bool required_in(const struct mesh_peer *n, uint32_t index, enum mesh_membership membership) {
    return n->in[membership] && index < n->link_count && (index == 0 || n->lanes[membership]);
}

static bool required(const struct mesh_peer *n, uint32_t index) {
    return required_in(n, index, MESH_EPOCH) || required_in(n, index, MESH_CANDIDATE);
}

static bool is_spare(const struct mesh_peer *n, uint32_t index) {
    return index >= n->link_count && index < n->spare_end && n->lanes[MESH_EPOCH];
}

// Whether a link that the membership requires could not be made or, unless `failed`, is not there.
static bool misses(const struct mesh_peer *n, enum mesh_membership membership, bool failed) {
    for (uint32_t i = 0; i < n->link_count && required_in(n, i, membership); i++)
        if (failed ? n->links[i].state == LINK_FAILED : n->links[i].state != LINK_UP) return true;
    return false;
}

static bool is_complete(const struct mesh *mesh, enum mesh_membership membership) {
    for (size_t i = 0; i < mesh->count; i++)
        if (misses(&mesh->peers[i], membership, false)) return false;
    return true;
}

// ---- memberships ----

static void leave(struct mesh *mesh, enum mesh_membership membership) {
    for (size_t i = 0; i < mesh->count; i++) mesh->peers[i].in[membership] = mesh->peers[i].lanes[membership] = false;
}

static bool has_weights(const struct epoch_ring *ring) {
    uint32_t i = 0;
    while (i < ring->count && ring->members[i].weight == 0) i++;
    return i < ring->count;
}

static bool enter(struct mesh *mesh, enum mesh_membership membership, const struct epoch_ring *ring) {
    bool weighted = has_weights(ring); // tensors go from all to all
    leave(mesh, membership);
    mesh->closed = ring->members[ring->rank].reach.closed;
    mesh->several = ring->members[ring->rank].reach.count > 1;
    for (uint32_t i = 0; i < ring->count; i++) {
        if (i == ring->rank) continue;
        struct mesh_peer *n = find(mesh, &ring->members[i].id);
        if (n == NULL) n = add(mesh, &ring->members[i]);
        if (n == NULL) return false;
        n->in[membership] = true;
        n->lanes[membership] = weighted || (i + 1) % ring->count == ring->rank || (ring->rank + 1) % ring->count == i;
        // in a ring two neighbours have them
        uint32_t spare = n->link_end - n->link_count;
        if (weighted && ring->count > 3) spare = 2 * spare / (ring->count - 1);
        if (membership == MESH_EPOCH) n->spare_end = n->link_count + spare;
    }
    return true;
}

// Whoever of the ring before is not in the one now is gone for good, also from a candidate.
static void forget_lost(struct mesh *mesh, const struct epoch_ring *before, const struct epoch_ring *now) {
    for (uint32_t old = 0; old < before->count; old++) {
        const struct wire_id *id = &before->members[old].id;
        struct mesh_peer *n = epoch_ring_has(now, id) ? NULL : find(mesh, id);
        if (n != NULL) n->in[MESH_CANDIDATE] = false;
    }
}

bool mesh_begin_epoch(struct mesh *mesh, const struct mesh_event *at, const struct epoch *before,
                      const struct epoch *epoch, bool mends) {
    if (before != NULL) forget_lost(mesh, &before->ring, &epoch->ring);
    mesh->group_epoch = epoch->group_epoch;
    mesh->fresh_at = 0;
    mesh->linked = false;
    mesh->linked_deadline = at->now_ns + at->limit_ns;
    if (mends) mesh->relinked_until = mesh->linked_deadline;
    return enter(mesh, MESH_EPOCH, &epoch->ring);
}

bool mesh_begin_candidate(struct mesh *mesh, const struct mesh_event *at, uint32_t attempt,
                          const struct epoch_ring *ring) {
    mesh->candidate.open = true;
    mesh->candidate.attempt = attempt;
    mesh->candidate.deadline = at->now_ns + at->limit_ns;
    return enter(mesh, MESH_CANDIDATE, ring);
}

static void drop_strangers(struct mesh *mesh, struct member_output *out) {
    size_t kept = 0;
    for (size_t i = 0; i < mesh->count; i++) {
        struct mesh_peer *n = &mesh->peers[i];
        if (n->in[MESH_EPOCH] || n->in[MESH_CANDIDATE]) {
            mesh->peers[kept++] = *n;
            continue;
        }
        member_act(out, MEMBER_DROP_PEER)->id = n->id;
        free(n->links);
    }
    mesh->count = kept;
}

void mesh_end_candidate(struct mesh *mesh, struct member_output *out) {
    mesh->candidate.open = false;
    leave(mesh, MESH_CANDIDATE);
    drop_strangers(mesh, out);
}

void mesh_join(struct mesh *mesh, uint64_t join_number, struct member_output *out) {
    mesh_end_candidate(mesh, out);
    mesh->join_number = join_number;
}

static bool dials(const struct mesh *mesh, const struct mesh_peer *n) {
    return wire_dials(mesh->closed, mesh->join_number, n->reach.closed, n->join_number);
}

static bool relays(const struct mesh_peer *n, enum mesh_membership membership) {
    return n->in[membership] && (n->reach.relays & WIRE_RELAYS) != 0 && !n->reach.closed;
}

static uint64_t number_of(const struct wire_id *id) {
    uint64_t number;
    memcpy(&number, id->bytes, sizeof number); // of a hash
    return number;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

// Chooses the member that relays a link: each has a score from the ids of all three, the index and the epoch, and that
// with the highest is the first choice. Both ends find the same, links are spread, and a bad relay is not chosen for
// ever. NULL: there is no such choice.
static const struct mesh_peer *choose_relay(const struct mesh *mesh, const struct mesh_peer *n, uint32_t index,
                                            uint32_t choice) {
    enum mesh_membership membership = required_in(n, index, MESH_EPOCH) ? MESH_EPOCH : MESH_CANDIDATE;
    uint64_t salt = membership == MESH_EPOCH ? mesh->group_epoch : mesh->candidate.attempt;
    uint64_t link = mix(number_of(&mesh->self) ^ number_of(&n->id)) ^ mix(salt << 16 | index), below = UINT64_MAX;
    const struct mesh_peer *found = NULL;
    for (uint32_t place = 0; place <= choice; place++) {
        uint64_t most = 0;
        found = NULL;
        for (size_t i = 0; i < mesh->count; i++) {
            const struct mesh_peer *one = &mesh->peers[i];
            uint64_t score = mix(link ^ number_of(&one->id));
            if (one == n || !relays(one, membership) || score >= below || score < most) continue;
            most = score;
            found = one;
        }
        below = most;
    }
    return found;
}

// Finds the relay of a choice: `member`, or that of the settings if it is NULL. False: there is no such choice.
static bool has_relay(const struct mesh *mesh, const struct mesh_peer *n, uint32_t index, uint32_t choice,
                      const struct mesh_peer **member) {
    *member = NULL;
    if (mesh->relay && choice == 0) return true;
    *member = choose_relay(mesh, n, index, choice - mesh->relay);
    return *member != NULL;
}

// Whether neither of the two can be dialled, and there is a relay, which both dial.
static bool is_relayed(const struct mesh *mesh, const struct mesh_peer *n, uint32_t index) {
    const struct mesh_peer *member;
    return mesh->closed && n->reach.closed && has_relay(mesh, n, index, 0, &member);
}

static struct member_action *meet(const struct mesh_peer *n, uint32_t index, const struct mesh_peer *member,
                                  struct member_output *out) {
    struct member_action *action = member_act(out, MEMBER_RELAY);
    action->id = n->id;
    action->index = index;
    action->reach = member == NULL ? (struct wire_reach){0} : member->reach;
    return action;
}

static void dial_relay(const struct mesh *mesh, struct mesh_peer *n, uint32_t index, struct member_output *out) {
    const struct mesh_peer *first, *second;
    bool two = has_relay(mesh, n, index, 1, &second), last = n->links[index].dialled_again;
    has_relay(mesh, n, index, 0, &first);
    n->links[index].state = LINK_MAKING;
    meet(n, index, two && last ? second : first, out)->again = two && !last;
}

// Waits where the other end dials.
static void await_relay(const struct mesh *mesh, struct mesh_peer *n, uint32_t index, struct member_output *out) {
    const struct mesh_peer *member;
    for (uint32_t choice = 0; choice < 2 && has_relay(mesh, n, index, choice, &member); choice++)
        meet(n, index, member, out)->waits = true;
}

static void dial(const struct mesh *mesh, struct mesh_peer *n, uint32_t index, struct member_output *out) {
    if (is_relayed(mesh, n, index)) {
        dial_relay(mesh, n, index, out);
        return;
    }
    n->links[index].state = LINK_MAKING;
    n->links[index].proved = false;
    struct member_action *action = member_act(out, MEMBER_DIAL);
    action->id = n->id;
    action->index = index;
    action->reach = n->reach;
    action->spare = index >= n->link_count;
}

static void dial_missing(struct mesh *mesh, struct member_output *out) {
    for (size_t i = 0; i < mesh->count; i++) {
        struct mesh_peer *n = &mesh->peers[i];
        for (uint32_t index = 0; index < n->link_count; index++) {
            struct mesh_link *link = &n->links[index];
            if (!required(n, index) || link->state == LINK_UP || link->state == LINK_MAKING) continue;
            link->state = LINK_ABSENT;
            link->dialled_again = false;
            if (dials(mesh, n))
                dial(mesh, n, index, out);
            else if (is_relayed(mesh, n, index))
                await_relay(mesh, n, index, out);
        }
    }
}

// More of them with each that is made, and fewer at once where many members have some: a peer holds few connections
// that have not said yet whose they are. Of 60 all are there after four rounds. With keys, one that has proved whose it
// is counts as made, so the next are dialled a round trip earlier: the hello is on its way, ahead of them.
static void dial_spare(const struct mesh *mesh, const struct mesh_event *at, struct mesh_peer *n,
                       struct member_output *out) {
    uint32_t up = 0, making = 0;
    if (!at->accepted || !mesh->linked || n->refuses || n->latency_us < FAR_US || !dials(mesh, n) ||
        (mesh->closed && n->reach.closed))
        return;
    for (uint32_t i = n->link_count; i < n->link_end; i++) {
        bool made = n->links[i].state == LINK_UP || (n->links[i].state == LINK_MAKING && n->links[i].proved);
        up += made;
        making += n->links[i].state == LINK_MAKING && !made;
    }
    uint32_t room = n->spare_end > n->link_count ? n->spare_end - n->link_count : 0,
             most = 1 + room / SPARE_PART + SPARE_EACH * up;
    for (uint32_t i = n->link_count; i < n->link_end && i < n->link_count + most; i++)
        if (is_spare(n, i) && n->links[i].state == LINK_ABSENT && making++ < SPARE_MAKING) {
            n->links[i].made_in = mesh->group_epoch;
            dial(mesh, n, i, out);
        }
}

// The lost ones are made again.
static void dial_spares(struct mesh *mesh, const struct mesh_event *at, struct member_output *out) {
    for (size_t i = 0; i < mesh->count; i++) {
        struct mesh_peer *n = &mesh->peers[i];
        for (uint32_t index = n->link_count; index < n->link_end; index++)
            if (n->links[index].state == LINK_FAILED) n->links[index].state = LINK_ABSENT;
        dial_spare(mesh, at, n, out);
    }
}

// ---- telling the master ----

// The neighbours with a link that this membership requires and that could not be made or, unless `failed`, is not
// there.
static void name_missing(struct mesh *mesh, enum mesh_membership membership, bool failed) {
    mesh->answer.count = 0;
    for (size_t i = 0; i < mesh->count; i++)
        if (misses(&mesh->peers[i], membership, failed)) {
            mesh->answer.narrow[mesh->answer.count] = mesh->peers[i].narrow;
            mesh->answer.unreachable[mesh->answer.count++] = mesh->peers[i].id;
        }
}

static void send_linked(struct mesh *mesh, const struct mesh_event *at, uint32_t attempt, struct member_output *out) {
    mesh->answer.attempt = attempt;
    mesh->answer.latency_us = 1;
    for (size_t i = 0; i < mesh->count; i++)
        if (mesh->peers[i].latency_us > mesh->answer.latency_us) mesh->answer.latency_us = mesh->peers[i].latency_us;
    wire_encode_linked(&out->frames, at->header, &mesh->answer);
}

static void answer_candidate(struct mesh *mesh, const struct mesh_event *at, bool failed, struct member_output *out) {
    mesh->candidate.open = false;
    name_missing(mesh, MESH_CANDIDATE, failed);
    send_linked(mesh, at, mesh->candidate.attempt, out);
}

static void check_complete(struct mesh *mesh, const struct mesh_event *at, struct member_output *out) {
    if (at->accepted && !mesh->linked && is_complete(mesh, MESH_EPOCH)) {
        mesh->linked = true;
        member_act(out, MEMBER_LINKS_READY)->group_epoch = mesh->group_epoch;
        mesh->answer.count = 0;
        send_linked(mesh, at, 0, out);
        dial_spares(mesh, at, out);
    }
    if (mesh->candidate.open && is_complete(mesh, MESH_CANDIDATE)) answer_candidate(mesh, at, true, out);
}

void mesh_make(struct mesh *mesh, const struct mesh_event *at, bool dials, struct member_output *out) {
    drop_strangers(mesh, out);
    if (dials) dial_missing(mesh, out);
    check_complete(mesh, at, out);
}

static void send_link_down(const struct mesh_event *at, const struct wire_id *id, uint32_t index,
                           enum wire_link_reason reason, struct member_output *out) {
    struct wire_link_down down = {.id = *id, .index = index, .reason = (uint8_t)reason};
    wire_encode_link_down(&out->frames, at->header, &down);
}

// Reports a neighbour to the master, once per epoch: one failure of a pair is many broken connections. A malformed
// frame is reported in any case, so that a sender cannot hide it behind another break.
static void report(const struct mesh_event *at, struct mesh_peer *n, uint32_t index, enum wire_link_reason reason,
                   struct member_output *out) {
    bool malformed = reason == WIRE_LINK_MALFORMED;
    if ((malformed ? n->malformed_in : n->reported_in) == at->header.epoch) return;
    n->reported_in = at->header.epoch;
    if (malformed) n->malformed_in = at->header.epoch;
    send_link_down(at, &n->id, index, reason, out);
}

static void want_fresh_epoch(struct mesh *mesh, int64_t now) {
    if (mesh->fresh_at == 0) mesh->fresh_at = now + MESH_GRACE_MS * MS_NS;
}

// ---- links ----

void mesh_link_up(struct mesh *mesh, const struct mesh_event *at, const struct wire_id *id, uint32_t index,
                  uint64_t serial, uint32_t latency_us, struct member_output *out) {
    struct mesh_peer *n = find_link(mesh, id, index);
    if (n == NULL) {
        member_act(out, MEMBER_DROP_PEER)->id = *id;
        return;
    }
    struct mesh_link *link = &n->links[index];
    // The other side made it again before this side saw it break: what was sent on the old one may be lost.
    bool replaced = link->state == LINK_UP && at->accepted && n->in[MESH_EPOCH];
    link->state = LINK_UP;
    link->serial = serial;
    n->narrow = false;
    link->made_in = at->header.epoch;
    if (index == 0 || n->latency_us == 0) n->latency_us = latency_us;
    if (replaced) want_fresh_epoch(mesh, at->now_ns);
    dial_spare(mesh, at, n, out);
    check_complete(mesh, at, out);
}

void mesh_link_proved(struct mesh *mesh, const struct mesh_event *at, const struct wire_id *id, uint32_t index,
                      struct member_output *out) {
    struct mesh_peer *n = find_link(mesh, id, index);
    if (n == NULL || index < n->link_count || n->links[index].state != LINK_MAKING) return;
    n->links[index].proved = true;
    dial_spare(mesh, at, n, out);
}

void mesh_link_narrow(struct mesh *mesh, const struct wire_id *id) {
    struct mesh_peer *n = find(mesh, id);
    if (n != NULL) n->narrow = true;
}

void mesh_link_failed(struct mesh *mesh, const struct mesh_event *at, const struct wire_id *id, uint32_t index,
                      struct member_output *out) {
    struct mesh_peer *n = find_link(mesh, id, index);
    if (n == NULL || n->links[index].state != LINK_MAKING) return;
    if (required(n, index) && !n->links[index].dialled_again) {
        n->links[index].dialled_again = true;
        dial(mesh, n, index, out);
        return;
    }
    n->links[index].state = LINK_FAILED;
    // A link that was dialled in an earlier epoch may have waited at the peer for an epoch that never had it.
    if (index >= n->link_count) n->refuses |= n->links[index].made_in == mesh->group_epoch;
    if (at->accepted && required_in(n, index, MESH_EPOCH)) report(at, n, index, WIRE_LINK_BROKEN, out);
    if (mesh->candidate.open && required_in(n, index, MESH_CANDIDATE)) answer_candidate(mesh, at, true, out);
}

// With several cards, an old link that is found silent right after its pair was mended was silent then: the other end
// has found it first. Once in a while only, so that links to a hung thread end.
static bool excuses_silence(const struct mesh *mesh, const struct mesh_event *at, struct mesh_peer *n) {
    if (at->now_ns >= n->excused_until && (mesh->several || n->reach.count > 1)) {
        n->excuse_ends = at->now_ns + MESH_GRACE_MS * MS_NS; // its other links, too
        n->excused_until = at->now_ns + EXCUSE_LIMITS * at->limit_ns;
    }
    return at->now_ns < n->excuse_ends;
}

void mesh_link_lost(struct mesh *mesh, const struct mesh_event *at, const struct wire_id *id, uint32_t index,
                    uint64_t serial, enum wire_link_reason reason, struct member_output *out) {
    if (wire_id_equal(id, &mesh->self)) {
        send_link_down(at, id, index, WIRE_LINK_BROKEN, out);
        return;
    }
    struct mesh_peer *n = find_link(mesh, id, index);
    if (n != NULL && reason == WIRE_LINK_MALFORMED && at->accepted && n->in[MESH_EPOCH])
        report(at, n, index, WIRE_LINK_MALFORMED, out);
    if (n == NULL || n->links[index].state != LINK_UP || n->links[index].serial != serial) return;
    n->links[index].state = LINK_FAILED;
    if (at->accepted && required_in(n, index, MESH_EPOCH)) {
        if (mesh->linked) mesh->linked_deadline = at->now_ns + at->limit_ns;
        mesh->linked = false;
        bool older = at->now_ns < mesh->relinked_until && n->links[index].made_in < at->header.epoch;
        if (older && (reason == WIRE_LINK_BROKEN || (reason == WIRE_LINK_SILENT && excuses_silence(mesh, at, n))))
            want_fresh_epoch(mesh, at->now_ns);
        else
            report(at, n, index, reason, out);
    }
    // A link that is not required has carried bytes all the same. Spare lanes that break repeatedly are given up.
    if (at->accepted && n->in[MESH_EPOCH] && !required_in(n, index, MESH_EPOCH)) want_fresh_epoch(mesh, at->now_ns);
    if (index >= n->link_count) {
        n->refuses |= n->spare_lost != 0 && n->spare_lost != at->header.epoch;
        n->spare_lost = at->header.epoch;
    }
    if (mesh->candidate.open && required_in(n, index, MESH_CANDIDATE)) answer_candidate(mesh, at, true, out);
}

// The links of the epoch in force took too long: whoever is missing is reported, again if the master did nothing about
// it.
static void report_missing(struct mesh *mesh, const struct mesh_event *at, struct member_output *out) {
    mesh->linked_deadline = at->now_ns + at->limit_ns;
    for (size_t i = 0; i < mesh->count; i++) {
        struct mesh_peer *n = &mesh->peers[i];
        if (!misses(n, MESH_EPOCH, false)) continue;
        n->reported_in = 0;
        report(at, n, 0, WIRE_LINK_BROKEN, out);
    }
}

void mesh_tick(struct mesh *mesh, const struct mesh_event *at, struct member_output *out) {
    if (mesh->candidate.open && at->now_ns >= mesh->candidate.deadline) answer_candidate(mesh, at, false, out);
    if (at->accepted && !mesh->linked && at->now_ns >= mesh->linked_deadline) report_missing(mesh, at, out);
    if (mesh->fresh_at == 0 || at->now_ns < mesh->fresh_at) return;
    mesh->fresh_at = 0;
    send_link_down(at, &mesh->self, 0, WIRE_LINK_BROKEN, out);
}

int64_t mesh_deadline(const struct mesh *mesh, bool accepted) {
    int64_t at = INT64_MAX;
    if (mesh->candidate.open) at = mesh->candidate.deadline;
    if (accepted && !mesh->linked && mesh->linked_deadline < at) at = mesh->linked_deadline;
    return mesh->fresh_at != 0 && mesh->fresh_at < at ? mesh->fresh_at : at;
}

// ---- state ----

const struct wire_reach *mesh_reach(const struct mesh *mesh, const struct wire_id *id) {
    const struct mesh_peer *n = find(mesh, id);
    return n == NULL ? NULL : &n->reach;
}

enum member_judgement mesh_judge(const struct mesh *mesh, const struct wire_link_hello *hello) {
    const struct mesh_peer *n = find(mesh, &hello->from);
    if (n == NULL) return MEMBER_PARK;
    if (hello->kind == WIRE_LINK_PROBE) return n->in[MESH_EPOCH] ? MEMBER_ACCEPT : MEMBER_PARK;
    if (dials(mesh, n) || hello->index >= n->link_end) return MEMBER_REJECT;
    return required(n, hello->index) || is_spare(n, hello->index) ? MEMBER_ACCEPT : MEMBER_PARK;
}
