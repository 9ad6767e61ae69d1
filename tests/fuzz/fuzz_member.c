// A peer's control state machine with a master and links that do as they like. The input is a program of enum
// peer_event. Checked: - what it sends is well-formed, for a master to decode; a dead state machine says nothing more;
// - connect ends once, a vote ends once, and only when it is open; death comes once; - group epochs only grow, the own
// place in the ring is its own, the adopted epoch never goes back; - it dials nobody twice at once, and not itself; - a
// tick at the deadline moves the deadline: the control thread cannot spin; - it promises no generation below one that
// it promised before, and tells the next master an epoch that it is in.
#include "peer/member.h"

#include "base/platform.h"
#include "events.h"
#include "fuzz.h"

enum {
    OTHERS = 7, // ids 2..8; 1 is the own one
    LANES = 2,
    SPARE_LANES = 3,
    LIMIT_MS = 1000,
    DIALS_MAX = OTHERS * (WIRE_MAX_LANES + 1)
};

static struct member *core;
static struct member_output out;
static int64_t now;
static struct wire_id self;
static bool joined, connected, dead; // joined: HELLO was sent; connected: connect has ended
static bool seeking, there;          // the master is lost; there: one is connected
static uint64_t promised;
static uint8_t vote;
static uint64_t run, number, group_epoch, generation, adopted, loss;
static struct member_view newest;
static struct dial {
    struct wire_id id;
    uint32_t index;
} dials[DIALS_MAX];
static uint32_t dial_count;

static struct wire_id id_of(uint32_t other) { return (struct wire_id){{(uint8_t)(1 + other % (OTHERS + 1))}}; }

// ---- what the state machine says ----

static void check_resume(const struct wire_header *header, const uint8_t *body) {
    static struct wire_member members[WIRE_MAX_MEMBERS];
    static struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    static struct wire_past past[WIRE_MAX_PAST];
    static struct wire_loss losses[WIRE_MAX_MEMBERS];
    struct wire_resume resume = {.last_vote.sizes = sizes, .epoch.members = members, .past = past, .losses = losses};
    MUST(seeking && wire_decode_resume(body, header->length, &resume) && wire_id_equal(&resume.hello.id, &self));
    MUST(header->generation >= promised && header->generation >= resume.generation && resume.vote == vote);
    MUST(resume.accepted == (member_phase(core) == MEMBER_ACCEPTED));
    bool in_it = !resume.accepted;
    for (uint32_t i = 0; i < resume.epoch.count && resume.accepted; i++)
        in_it |= wire_id_equal(&resume.epoch.members[i].id, &self);
    MUST(in_it);
}

static void check_frame(const struct wire_header *header, const uint8_t *body) {
    size_t length = header->length;
    struct wire_hello hello;
    struct wire_vote pending_vote;
    struct wire_link_down down;
    struct wire_leaving leaving;
    struct wire_measured measured;
    struct wire_sync_vote sync;
    static struct wire_linked linked;
    switch (header->type) {
    case WIRE_HELLO: MUST(wire_decode_hello(body, length, &hello) && wire_id_equal(&hello.id, &self)); return;
    case WIRE_LINKED: MUST(wire_decode_linked(body, length, &linked)); return;
    case WIRE_VOTE: MUST(wire_decode_vote(body, length, &pending_vote)); return;
    case WIRE_LEAVING: MUST(wire_decode_leaving(body, length, &leaving)); return;
    case WIRE_LINK_DOWN: MUST(wire_decode_link_down(body, length, &down)); return;
    case WIRE_MEASURED: MUST(wire_decode_measured(body, length, &measured)); return;
    case WIRE_SYNC_VOTE: MUST(wire_decode_sync_vote(body, length, &sync)); return;
    case WIRE_RESUME: check_resume(header, body); return;
    case WIRE_PROMISE:
        MUST(seeking && header->generation > promised);
        promised = header->generation;
        return;
    default: MUST(header->type == WIRE_HEARTBEAT || header->type == WIRE_LEAVE);
    }
}

static void check_ring(void) {
    const struct wire_member *ring = member_epoch(core)->ring.members;
    uint32_t count = member_epoch(core)->ring.count, rank = member_epoch(core)->ring.rank;
    MUST(count > 0 && rank < count && wire_id_equal(&ring[rank].id, &self));
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < i; k++) MUST(!wire_id_equal(&ring[i].id, &ring[k].id));
}

static void note_dial(const struct member_action *action) {
    MUST(!wire_id_equal(&action->id, &self) && action->index <= LANES + SPARE_LANES);
    for (uint32_t i = 0; i < dial_count; i++)
        MUST(!wire_id_equal(&dials[i].id, &action->id) || dials[i].index != action->index);
    MUST(dial_count < DIALS_MAX);
    dials[dial_count++] = (struct dial){action->id, action->index};
}

static void forget_dial(const struct wire_id *id, uint32_t index) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < dial_count; i++)
        if (!wire_id_equal(&dials[i].id, id) || dials[i].index != index) dials[kept++] = dials[i];
    dial_count = kept;
}

static void drop(const struct wire_id *id) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < dial_count; i++)
        if (!wire_id_equal(&dials[i].id, id)) dials[kept++] = dials[i];
    dial_count = kept;
}

static void hear(const struct member_action *action) {
    switch (action->kind) {
    case MEMBER_DIAL: note_dial(action); return;
    case MEMBER_DROP_PEER: drop(&action->id); return;
    case MEMBER_MISSED_LOSS:
        MUST(action->group_epoch > group_epoch && action->group_epoch > loss);
        loss = action->group_epoch;
        return;
    case MEMBER_ENTER_EPOCH:
        MUST(action->epoch->group_epoch > group_epoch && (!action->epoch->lost || action->epoch->group_epoch > loss) &&
             action->epoch->latency_us > 0 && action->epoch->megabytes_per_s > 0);
        group_epoch = action->epoch->group_epoch;
        if (action->epoch->lost) loss = group_epoch;
        check_ring();
        return;
    case MEMBER_LINKS_READY: MUST(action->group_epoch == group_epoch); return;
    case MEMBER_VERDICT: MUST(action->verdict != NULL); return;
    case MEMBER_PROBE:
        MUST(!wire_id_equal(&action->id, &self) && action->duration_ms > 0 &&
             action->duration_ms <= WIRE_MAX_MEASURE_MS);
        return;
    case MEMBER_CONNECT_END:
        MUST(joined && !connected);
        connected = true;
        if (action->code == 0)
            newest = action->view;
        else
            dead = true;
        return;
    case MEMBER_VOTE_END:
        MUST(vote != 0);
        if (action->code == 0) newest = action->view;
        vote = 0;
        return;
    case MEMBER_SYNC_PLAN: MUST(action->plan != NULL && vote == WIRE_VOTE_SYNC); return;
    case MEMBER_RECHECK: return;
    case MEMBER_RELAY: return;
    case MEMBER_DONORS: MUST(!connected && action->donors->count <= WIRE_MAX_DONORS); return;
    case MEMBER_SEEK:
        MUST(joined && !dead);
        seeking = true;
        there = false;
        return;
    case MEMBER_FOUND:
        MUST(seeking);
        seeking = false;
        return;
    case MEMBER_WAITING: MUST(member_waits_why(core) != NULL); return;
    case MEMBER_DIE:
        MUST(connected && !dead);
        dead = true;
        return;
    }
}

static void carry_out(void) {
    if (out.failed) return;
    const struct wire_sync_differs *differs = member_sync_differs(core);
    MUST(differs == NULL || differs->first <= differs->last);
    bool was_dead = dead;
    for (size_t i = 0; i < out.count; i++) {
        MUST(!was_dead || out.actions[i].kind == MEMBER_DROP_PEER); // a link that comes up now is closed
        hear(&out.actions[i]);
    }
    for (size_t at = 0; at < out.frames.length;) {
        struct wire_header header;
        MUST(out.frames.length - at >= WIRE_HEADER_BYTES && wire_header_decode(out.frames.bytes + at, &header));
        MUST(out.frames.length - at - WIRE_HEADER_BYTES >= header.length);
        check_frame(&header, out.frames.bytes + at + WIRE_HEADER_BYTES);
        at += WIRE_HEADER_BYTES + header.length;
    }
    MUST(!was_dead || out.frames.length == 0);
    MUST((member_phase(core) == MEMBER_DEAD) == dead);
    if (dead) MUST(member_deadline(core) == INT64_MAX && member_text(core)[0] != 0 && vote == 0);
    MUST(member_adopted(core)->number >= adopted);
    adopted = member_adopted(core)->number;
    member_output_clear(&out);
}

// ---- what the master says ----

static void deliver(struct wire_buffer *frame) {
    struct wire_header header;
    if (frame->length == 0 || !there) { // memory was refused here, or nobody says it
        wire_buffer_fini(frame);
        return;
    }
    MUST(wire_header_decode(frame->bytes, &header));
    uint8_t *exact = fuzz_copy(frame->bytes + WIRE_HEADER_BYTES, header.length);
    member_frame(core, &header, exact, now, &out);
    carry_out();
    free(exact);
    wire_buffer_fini(frame);
}

static struct wire_header header_now(void) {
    return (struct wire_header){.run = run, .generation = generation, .epoch = number};
}

// The members whose bits are set, from the `rotation`-th on, in two groups if `how` says so.
static struct wire_epoch epoch_of(uint8_t mask, uint8_t rotation, uint8_t how) {
    static struct wire_member members[2 * (OTHERS + 1)];
    struct wire_epoch epoch = {
        .number = number + (how & 1 ? 0 : 1), .latency_us = 100, .megabytes_per_s = 100, .members = members};
    if (!(how & 2)) mask |= 1; // with this peer
    for (uint32_t group = 0; group < 2; group++)
        for (uint32_t i = 0; i <= OTHERS; i++) {
            uint32_t other = (i + rotation) % (OTHERS + 1), in = how & 4 ? other >> 2 : 0;
            if (!(mask >> other & 1) || in != group) continue;
            members[epoch.count++] = (struct wire_member){.id = id_of(other),
                                                          .join_number = other + 1,
                                                          .group = group,
                                                          .lanes = 1 + (how >> 3 & 3),
                                                          .address = {.family = 4, .port = 1}};
        }
    if (how & 32 && epoch.count > 0) { // a master that names somebody twice
        members[epoch.count] = members[epoch.count - 1];
        epoch.count++;
    }
    epoch.group_epoch = how & 64 ? group_epoch : epoch.number;
    if (epoch.group_epoch > epoch.number) epoch.group_epoch = epoch.number;
    return epoch;
}

static void take_epoch(struct fuzz *in, uint8_t event) {
    uint8_t reason = fuzz_u8(in), mask = fuzz_u8(in), rotation = fuzz_u8(in), how = fuzz_u8(in);
    struct wire_epoch epoch = epoch_of(mask, rotation, how);
    struct wire_buffer frame = {0};
    if (epoch.count == 0) return;
    if (event == P_CANDIDATE) {
        struct wire_candidate message = {.attempt = 1 + reason, .epoch = epoch};
        wire_encode_candidate(&frame, header_now(), &message);
    } else {
        struct wire_epoch_commit message = {.reason = (uint8_t)(WIRE_REASON_UPDATE + reason % 4), .epoch = epoch};
        wire_encode_epoch_commit(&frame, header_now(), &message);
        number = epoch.number;
    }
    deliver(&frame);
}

static void take_verdict(struct fuzz *in, struct wire_buffer *frame) {
    static struct wire_verdict message;
    uint8_t op = fuzz_u8(in);
    message =
        (struct wire_verdict){.name = {.epoch = group_epoch, .tag = op}, .kind = (uint8_t)(1 + fuzz_below(in, 4))};
    message.supplier = id_of(fuzz_u8(in));
    message.count = fuzz_below(in, 4);
    for (uint32_t i = 0; i < message.count; i++) message.needy[i] = id_of(i);
    wire_encode_verdict(frame, header_now(), &message);
}

static void take_plan(struct fuzz *in, struct wire_buffer *frame) {
    static struct wire_sync_plan message;
    uint8_t how = fuzz_u8(in);
    message = (struct wire_sync_plan){.round = 1 + how, .receiver_count = 1, .donor_count = 1};
    message.receivers[0] = id_of(how & 1);
    message.donors[0] = id_of(how >> 1 & 1);
    wire_encode_sync_plan(frame, header_now(), &message);
}

static void take_raw(struct fuzz *in) {
    uint8_t type = fuzz_u8(in), how = fuzz_u8(in);
    struct wire_header header = header_now();
    if (how & 1) header.run = fuzz_number(in);
    if (how & 2) header.generation = fuzz_number(in);
    if (how & 4) header.epoch = fuzz_number(in);
    header.type = type;
    header.length = fuzz_u8(in);
    uint8_t bytes[WIRE_HEADER_BYTES + 256];
    fuzz_bytes(in, bytes + WIRE_HEADER_BYTES, header.length);
    wire_header_encode(bytes, &header);
    if (!wire_header_decode(bytes, &header)) return; // the body gives up the master
    struct wire_buffer frame = {.bytes = fuzz_copy(bytes, sizeof bytes), .length = sizeof bytes};
    deliver(&frame);
}

static void take_resumed(struct fuzz *in, struct wire_buffer *frame) {
    static struct wire_resumed message;
    uint8_t how = fuzz_u8(in);
    struct wire_group_size sizes[] = {{.group = 0, .count = 1 + (how >> 2 & 3)}, {.group = 1, .count = 2}};
    message = (struct wire_resumed){
        .heartbeat_limit_ms = LIMIT_MS, .vote_ended = how & 1, .sync_ended = how >> 1 & 1, .last_vote.sizes = sizes};
    struct wire_loss losses[] = {
        {.epoch = 1 + (how >> 6), .members = 3, .group_members = 2, .groups = 1, .largest_group = 2},
        {.epoch = number, .members = 2, .group_members = 1, .groups = 1, .largest_group = 1}};
    message.losses = losses;
    message.loss_count = how >> 5 & 1 ? 1 + (losses[1].epoch > losses[0].epoch) : 0;
    message.last_vote.kind = (uint8_t)fuzz_below(in, 4);
    message.last_vote.number = message.last_vote.kind == 0 ? 0 : 1 + (how >> 4);
    message.last_vote.count = message.last_vote.kind == 0 ? 0 : 2;
    message.last_vote.code = message.sync.code = fuzz_u8(in);
    message.last_vote.epoch = number;
    message.sync.round = message.sync.revision = fuzz_number(in);
    wire_encode_resumed(frame, header_now(), &message);
}

static void master_says(struct fuzz *in, uint8_t event) {
    struct wire_buffer frame = {0};
    switch (event) {
    case P_GENERATION:
        generation += fuzz_number(in);
        wire_encode_empty(&frame, header_now(), WIRE_GENERATION);
        break;
    case P_RESUMED: take_resumed(in, &frame); break;
    case P_WAITING: wire_encode_text(&frame, header_now(), WIRE_WAITING, "waits for others"); break;
    case P_BYE: wire_encode_empty(&frame, header_now(), WIRE_BYE); break;
    case P_WELCOME: {
        struct wire_welcome message = {
            .join_number = fuzz_u8(in), .heartbeat_limit_ms = LIMIT_MS, .seen = {.family = 4}};
        wire_encode_welcome(&frame, (struct wire_header){.run = run, .generation = generation}, &message);
        break;
    }
    case P_END:
        wire_encode_text(&frame, header_now(), fuzz_u8(in) & 1 ? WIRE_EXPELLED : WIRE_REFUSED, "go away");
        break;
    case P_OUTCOME: {
        struct wire_outcome message = {.kind = (uint8_t)(1 + fuzz_below(in, 3)), .code = fuzz_u8(in)};
        message.value = fuzz_u8(in);
        wire_encode_outcome(&frame, header_now(), &message);
        break;
    }
    case P_VERDICT: take_verdict(in, &frame); break;
    case P_MEASURE: {
        struct wire_measure message = {.round = 1, .target = id_of(fuzz_u8(in)), .duration_ms = 100};
        wire_encode_measure(&frame, header_now(), &message);
        break;
    }
    case P_SYNC_PLAN: take_plan(in, &frame); break;
    case P_SYNC_DIFFERS: {
        struct wire_sync_differs message = {.first = fuzz_number(in)};
        message.last = message.first + fuzz_u8(in);
        wire_encode_sync_differs(&frame, header_now(), &message);
        break;
    }
    case P_SYNC_END: {
        static struct wire_sync_end message;
        message = (struct wire_sync_end){.round = 1, .code = fuzz_u8(in)};
        message.revision = fuzz_u8(in);
        wire_encode_sync_end(&frame, header_now(), &message);
        break;
    }
    default: wire_encode_empty(&frame, header_now(), WIRE_HEARTBEAT); break;
    }
    deliver(&frame);
}

// ---- links ----

static void incoming(struct fuzz *in) {
    uint8_t other = fuzz_u8(in), index = fuzz_u8(in), how = fuzz_u8(in);
    struct wire_link_hello hello = {.version = how == 1 ? 0 : WIRE_VERSION,
                                    .kind = how & 2 ? WIRE_LINK_PROBE : WIRE_LINK_DATA,
                                    .from = id_of(other),
                                    .to = id_of(how >> 2 & 1),
                                    .index = index};
    hello.secret[0] = how == 9;
    if (member_judge_hello(core, &hello) != MEMBER_ACCEPT) return;
    MUST(wire_id_equal(&hello.to, &self) && hello.secret[0] == 0 && member_phase(core) >= MEMBER_REGISTERED && !dead);
    if (hello.kind == WIRE_LINK_DATA) member_link_up(core, &hello.from, hello.index, 1, (uint32_t)how << 4, now, &out);
    carry_out();
}

static void dialled(uint8_t how) {
    if (dial_count == 0) return;
    struct dial dial = dials[0];
    memmove(dials, dials + 1, --dial_count * sizeof dials[0]);
    if (how & 1)
        member_link_failed(core, &dial.id, dial.index, &out);
    else
        member_link_up(core, &dial.id, dial.index, 1, (uint32_t)how << 4, now, &out);
    carry_out();
}

static void tick(int64_t to) {
    now = to > now ? to : now;
    member_tick(core, now, &out);
    MUST(out.failed || member_deadline(core) > now);
    carry_out();
}

static void resume(uint8_t how) {
    struct wire_hash content = {how, how};
    if (!seeking || there || dead) return;
    there = true;
    member_resume(core, 48149, how & 64, how % 3, &content, now, &out);
    carry_out();
}

static void step(struct fuzz *in) {
    uint8_t event = (uint8_t)fuzz_below(in, P_EVENTS), index, a, b;
    struct wire_id id;
    switch (event) {
    case P_JOIN:
        there |= !joined;
        joined = true;
        member_join(core, 48149, now, &out);
        break;
    case P_DISCONNECTED:
        there = false;
        member_disconnected(core, "the connection is gone", now, &out);
        break;
    case P_WAIT: tick(now + fuzz_u8(in) * 8 * MS_NS); return;
    case P_DUE:
        if (member_deadline(core) < INT64_MAX) tick(member_deadline(core));
        return;
    case P_CANDIDATE:
    case P_EPOCH: take_epoch(in, event); return;
    case P_RAW: take_raw(in); return;
    case P_HELLO: incoming(in); return;
    case P_DIALLED: dialled(fuzz_u8(in)); return;
    case P_ALL_DIALLED:
        for (uint32_t left = dial_count; left > 0 && !out.failed; left--) dialled(0);
        return;
    case P_LINK_UP:
        id = id_of(fuzz_u8(in));
        index = fuzz_u8(in);
        forget_dial(&id, index); // if there was one, it has come up
        member_link_up(core, &id, index, 1, 1, now, &out);
        break;
    case P_LINK_LOST:
        id = id_of(fuzz_u8(in));
        a = fuzz_u8(in);
        member_link_lost(core, &id, a & 63, 1, (enum wire_link_reason)((a >> 6) % 3), now, &out);
        break;
    case P_MEASURED:
        id = id_of(fuzz_u8(in));
        member_measured(core, &id, &self, fuzz_number(in), &out);
        break;
    case P_VOTE:
        a = (uint8_t)(1 + fuzz_below(in, 3));
        if (member_phase(core) == MEMBER_ACCEPTED && vote == 0) {
            vote = a;
            member_vote(core, a, NULL, &out);
        }
        break;
    case P_SYNC: {
        struct wire_sync_vote state = {.strategy = (uint8_t)fuzz_below(in, 3)};
        if (member_phase(core) == MEMBER_ACCEPTED && vote == 0) {
            vote = WIRE_VOTE_SYNC;
            member_vote(core, WIRE_VOTE_SYNC, &state, &out);
        }
        break;
    }
    case P_LEAVE: member_leave(core, &out); break;
    case P_ADOPT: member_adopt(core, &newest); break;
    case P_ADOPT_LOSS:
        b = fuzz_u8(in);
        member_adopt_loss(core, b < 200 ? loss - (b < loss ? b : loss) : fuzz_number(in));
        break;
    case P_REFUSE: fuzz_refuse(fuzz_below(in, 32)); return;
    case P_RECOVERY:
        a = fuzz_u8(in);
        if (!joined)
            member_configure(core, &(struct member_settings){.spare_lanes = SPARE_LANES,
                                                             .recovery_limit_ms = 64 * a,
                                                             .masters = 1 + fuzz_below(in, WIRE_MAX_MASTERS)});
        return;
    case P_RESUME: resume(fuzz_u8(in)); return;
    case P_ROUND_TRIP: member_round_trip(core, (int64_t)fuzz_u8(in) * MS_NS); return;
    default: master_says(in, event); return;
    }
    carry_out();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz in = {data, data + size};
    now = SECOND_NS;
    self = id_of(0);
    joined = connected = dead = seeking = there = false;
    promised = 0;
    vote = 0;
    number = group_epoch = adopted = loss = 0;
    run = generation = 1;
    newest = (struct member_view){0};
    dial_count = 0;
    core = member_new(&self, 0, LANES);
    MUST(core != NULL);
    member_configure(core, &(struct member_settings){.spare_lanes = SPARE_LANES});
    while (fuzz_more(&in) && !out.failed) step(&in); // when memory was refused, the body lets the communicator die
    fuzz_refuse(0);
    member_free(core);
    member_output_fini(&out);
    return 0;
}
