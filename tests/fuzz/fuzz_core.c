// The master's state machine with peers that do as they like: arbitrary sequences of events and of messages,
// well-formed ones that mean anything and bytes that mean nothing. The input is a program of enum master_event. Each
// peer here notes what the master told it, so that a program can also behave well, and so that what the master says can
// be judged: - what it sends is well-formed, for a peer to decode, and goes to connections that it has not given up;
// each is closed once; - epochs only grow, those that get one get the same, and every accepted peer is in it; - what
// ends a vote goes to those that have such a vote open; - a plan of shared state names its receiver among the members,
// nobody twice, no donor that receives; - a tick at the deadline moves the deadline: the master cannot spin. A master
// may be lost: the next one knows nothing, and hears from each peer what that was told last, or something else.
#include "master/core.h"

#include "base/platform.h"
#include "events.h"
#include "fuzz.h"

enum { CONNS = 10, LIMIT_MS = 1000, NAMES = 4, VOTE_SYNC = WIRE_VOTE_OPTIMIZE + 1 };

static struct peer {
    bool open, accepted;
    bool registered; // this master has taken it in; else it waits
    bool resumed;    // by RESUMED, its EPOCH is to come
    uint64_t asked;  // for the promise of this generation, 0: not
    struct wire_id id;
    uint32_t group;
    uint8_t vote;     // open, 0: none
    uint32_t attempt; // of the CANDIDATE that is to be answered, or 0
    uint64_t number, group_epoch;
    uint64_t members; // hash of those of its newest epoch
    uint64_t epoch_run;
    struct wire_id target; // of the MEASURE at hand
    bool measures, receives;
    uint64_t round;
    struct wire_id donor;
} peers[CONNS];

// What a peer tells the next master.
static struct known {
    bool any;
    uint64_t run, promised;
    struct wire_resume resume;
    struct wire_member members[CONNS + 1];
    struct wire_group_size sizes[CONNS + 1];
    struct wire_past past[4];
    struct wire_loss losses[1];
} known[CONNS];

static struct master_core *master;
static int64_t now;
static uint64_t run, generation;
static struct wire_member members[WIRE_MAX_MEMBERS];

// ---- what the master says ----

static uint64_t hash_members(const struct wire_epoch *epoch) {
    uint64_t hash = epoch->count;
    for (uint32_t i = 0; i < epoch->count; i++) {
        const uint8_t *id = epoch->members[i].id.bytes;
        for (size_t k = 0; k < WIRE_ID_BYTES; k++) hash = (hash ^ id[k]) * 1099511628211u;
        hash = (hash ^ epoch->members[i].group) * 1099511628211u;
    }
    return hash;
}

static bool is_member(const struct wire_epoch *epoch, const struct wire_id *id) {
    uint32_t times = 0;
    for (uint32_t i = 0; i < epoch->count; i++) times += wire_id_equal(&epoch->members[i].id, id);
    MUST(times <= 1);
    return times == 1;
}

static struct known *known_of(const struct peer *peer) { return &known[peer - peers]; }

static void note_ended_vote(struct peer *peer, uint8_t kind, uint8_t code, uint64_t value) {
    struct known *mine = known_of(peer);
    struct wire_ended_vote *vote = &mine->resume.last_vote;
    const struct wire_epoch *epoch = &mine->resume.epoch;
    *vote = (struct wire_ended_vote){.number = vote->number + 1,
                                     .kind = kind,
                                     .code = code,
                                     .value = value,
                                     .epoch = epoch->number,
                                     .sizes = mine->sizes};
    for (uint32_t i = 0; i < epoch->count; i++) {
        if (i == 0 || epoch->members[i].group != epoch->members[i - 1].group)
            mine->sizes[vote->count++] = (struct wire_group_size){.group = epoch->members[i].group};
        mine->sizes[vote->count - 1].count++;
    }
}

static void note_epoch(struct peer *peer, const struct wire_header *header, const struct wire_epoch_commit *commit) {
    struct known *mine = known_of(peer);
    struct wire_resume *resume = &mine->resume;
    MUST(commit->epoch.count <= CONNS + 1);
    memcpy(mine->members, commit->epoch.members, commit->epoch.count * sizeof mine->members[0]);
    mine->run = header->run;
    mine->promised = resume->generation = header->generation;
    resume->accepted = 1;
    resume->epoch = commit->epoch;
    resume->epoch.members = mine->members;
    if (commit->reason != WIRE_REASON_UPDATE && commit->reason != WIRE_REASON_ORDER) return;
    resume->last_vote.number = commit->epoch.votes_ended - 1;
    note_ended_vote(peer, commit->reason == WIRE_REASON_UPDATE ? WIRE_VOTE_UPDATE : WIRE_VOTE_OPTIMIZE, 0, 0);
}

static void end_vote(struct peer *peer, uint8_t kind) {
    MUST(peer->vote == kind);
    peer->vote = 0;
}

static void hear_epoch(struct peer *peer, const struct wire_header *header, const struct wire_epoch_commit *commit) {
    const struct wire_epoch *epoch = &commit->epoch;
    MUST(is_member(epoch, &peer->id));
    MUST(epoch->number > peer->number && epoch->group_epoch >= peer->group_epoch);
    MUST(header->epoch == epoch->number);
    MUST(peer->registered && (commit->reason == WIRE_REASON_UPDATE || peer->accepted || peer->resumed));
    if (commit->reason == WIRE_REASON_UPDATE && peer->accepted) end_vote(peer, WIRE_VOTE_UPDATE);
    if (commit->reason == WIRE_REASON_ORDER) end_vote(peer, WIRE_VOTE_OPTIMIZE);
    peer->accepted = true;
    peer->resumed = false;
    note_epoch(peer, header, commit);
    peer->attempt = 0;
    peer->number = epoch->number;
    peer->group_epoch = epoch->group_epoch;
    peer->members = hash_members(epoch);
    peer->epoch_run = header->run;
    for (int i = 0; i < CONNS; i++)
        if (peers[i].registered && peers[i].accepted && peers[i].epoch_run == header->run &&
            peers[i].number == epoch->number)
            MUST(peers[i].members == peer->members);
}

static void hear_plan(struct peer *peer, const struct wire_sync_plan *plan) {
    MUST(peer->vote == VOTE_SYNC && plan->round != peer->round);
    peer->round = plan->round;
    peer->receives = false;
    peer->donor = plan->donors[0];
    for (uint32_t i = 0; i < plan->receiver_count; i++) {
        peer->receives |= wire_id_equal(&plan->receivers[i], &peer->id);
        for (uint32_t k = 0; k < plan->donor_count; k++) MUST(!wire_id_equal(&plan->receivers[i], &plan->donors[k]));
        for (uint32_t k = 0; k < i; k++) MUST(!wire_id_equal(&plan->receivers[i], &plan->receivers[k]));
    }
}

static void hear_welcome(struct peer *peer, const struct wire_header *header, const struct wire_welcome *welcome) {
    struct known *mine = known_of(peer);
    *mine = (struct known){.any = true, .run = header->run, .promised = header->generation};
    mine->resume = (struct wire_resume){.join_number = welcome->join_number, .generation = header->generation};
    memcpy(mine->resume.secret, welcome->secret, sizeof welcome->secret);
    *peer = (struct peer){.open = true, .registered = true, .id = peer->id, .group = peer->group};
}

static void hear_resumed(struct peer *peer, const struct wire_header *header, const uint8_t *body) {
    static struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    static struct wire_resumed resumed;
    static struct wire_loss losses[WIRE_MAX_MEMBERS];
    resumed.last_vote.sizes = sizes;
    resumed.losses = losses;
    MUST(wire_decode_resumed(body, header->length, &resumed));
    MUST(!peer->registered && header->generation == peer->asked &&
         header->generation > known_of(peer)->resume.generation);
    MUST(!resumed.vote_ended || !resumed.sync_ended);
    peer->registered = peer->resumed = true;
    peer->epoch_run = peer->asked = 0;
    if (resumed.sync_ended) end_vote(peer, VOTE_SYNC);
    if (!resumed.vote_ended) return;
    peer->vote = 0;
    known_of(peer)->resume.last_vote.number = resumed.last_vote.number - 1;
    note_ended_vote(peer, resumed.last_vote.kind, resumed.last_vote.code, resumed.last_vote.value);
}

static void hear(struct peer *peer, const struct wire_header *header, const uint8_t *body) {
    size_t length = header->length;
    static struct wire_verdict verdict;
    static struct wire_sync_plan plan;
    if (header->type == WIRE_WELCOME || header->type == WIRE_RESUMED) {
        run = header->run;
        generation = header->generation;
    }
    switch (header->type) {
    case WIRE_WELCOME: {
        struct wire_welcome welcome;
        MUST(wire_decode_welcome(body, length, &welcome));
        hear_welcome(peer, header, &welcome);
        return;
    }
    case WIRE_RESUMED: hear_resumed(peer, header, body); return;
    case WIRE_GENERATION:
        MUST(!peer->registered && length == 0 && header->generation > known_of(peer)->promised);
        peer->asked = header->generation;
        return;
    case WIRE_WAITING:
    case WIRE_REFUSED:
    case WIRE_EXPELLED: {
        struct wire_text text;
        MUST(wire_decode_text(body, length, &text) && text.length > 0);
        if (header->type == WIRE_WAITING)
            MUST(!peer->registered);
        else if (peer->registered)
            MUST((header->type == WIRE_EXPELLED) == (peer->accepted || peer->resumed));
        if (header->type == WIRE_EXPELLED) known_of(peer)->any = false;
        return;
    }
    case WIRE_CANDIDATE: {
        struct wire_candidate candidate = {.epoch.members = members};
        MUST(wire_decode_candidate(body, length, &candidate) && is_member(&candidate.epoch, &peer->id));
        MUST(candidate.epoch.number > peer->number);
        peer->attempt = candidate.attempt;
        return;
    }
    case WIRE_EPOCH: {
        struct wire_epoch_commit commit = {.epoch.members = members};
        MUST(wire_decode_epoch_commit(body, length, &commit));
        hear_epoch(peer, header, &commit);
        return;
    }
    case WIRE_OUTCOME: {
        struct wire_outcome outcome;
        MUST(wire_decode_outcome(body, length, &outcome));
        end_vote(peer, outcome.kind);
        note_ended_vote(peer, outcome.kind, outcome.code, outcome.value);
        peer->attempt = 0;
        return;
    }
    case WIRE_VERDICT:
        MUST(wire_decode_verdict(body, length, &verdict));
        MUST(peer->resumed ? verdict.kind == WIRE_VERDICT_MISMATCH
                           : peer->accepted && header->epoch == peer->group_epoch);
        return;
    case WIRE_MEASURE: {
        struct wire_measure measure;
        MUST(wire_decode_measure(body, length, &measure) && !wire_id_equal(&measure.target, &peer->id));
        peer->measures = true;
        peer->target = measure.target;
        return;
    }
    case WIRE_SYNC_PLAN:
        MUST(wire_decode_sync_plan(body, length, &plan));
        hear_plan(peer, &plan);
        return;
    case WIRE_SYNC_DIFFERS: {
        struct wire_sync_differs differs;
        MUST(wire_decode_sync_differs(body, length, &differs) && peer->accepted && peer->vote == VOTE_SYNC);
        return;
    }
    case WIRE_SYNC_END: {
        struct wire_sync_end end;
        MUST(wire_decode_sync_end(body, length, &end));
        end_vote(peer, VOTE_SYNC);
        peer->receives = false;
        return;
    }
    default: MUST(header->type == WIRE_HEARTBEAT || header->type == WIRE_BYE); return;
    }
}

static void carry_out(const struct actions *actions) {
    bool closed[CONNS] = {false}, words[CONNS] = {false};
    for (size_t i = 0; i < actions->send_count; i++) {
        const struct actions_send *send = &actions->sends[i];
        MUST(send->conn < CONNS && peers[send->conn].open);
        MUST(send->length >= WIRE_HEADER_BYTES && send->offset + send->length <= actions->bytes.length);
        struct wire_header header;
        const uint8_t *frame = actions->bytes.bytes + send->offset;
        MUST(wire_header_decode(frame, &header) && WIRE_HEADER_BYTES + header.length == send->length);
        MUST(!words[send->conn]); // nothing follows the last words
        words[send->conn] = header.type == WIRE_REFUSED || header.type == WIRE_EXPELLED;
        hear(&peers[send->conn], &header, frame + WIRE_HEADER_BYTES);
    }
    for (size_t i = 0; i < actions->close_count; i++) {
        uint32_t conn = actions->closes[i];
        MUST(conn < CONNS && peers[conn].open && !closed[conn]);
        closed[conn] = true;
        peers[conn] = (struct peer){0};
    }
    for (size_t i = 0; i < CONNS; i++) MUST(!words[i] || closed[i]);
    MUST(actions->log_count <= ACTIONS_MAX_LOGS);
    uint32_t open = 0;
    for (size_t i = 0; i < CONNS; i++) {
        open += peers[i].registered;
        // Nobody that is accepted is left behind: all are in the newest epoch.
        if (peers[i].registered && peers[i].accepted) MUST(peers[i].number == core_epoch(master));
    }
    MUST(core_peer_count(master) == open);
}

// ---- what peers say ----

static struct wire_id id_of(uint32_t conn) { return (struct wire_id){{(uint8_t)(conn + 1)}}; }

static void connect(struct fuzz *in, uint32_t conn) {
    uint8_t how = fuzz_u8(in), odd = fuzz_u8(in);
    if (peers[conn].open) return;
    struct wire_hello hello = {.version = odd == 1 ? 77 : WIRE_VERSION,
                               .id = id_of(odd == 2 ? 0 : conn),
                               .group = how & 1,
                               .lanes = 1 + (how >> 1 & 3),
                               .port = 48149};
    if (how & 64) hello.group = UINT32_MAX - conn;
    hello.masters = how & 128 ? 2 : 1;
    hello.join_only = conn % 4 == 3;
    // Hosts: some share one, which matters to measurements.
    struct wire_address source = {
        .family = odd == 3 ? 6 : 4, .bytes = {10, 0, 0, (uint8_t)(how & 8 ? 1 : conn)}, .port = 1};
    if (odd == 4) source.bytes[0] = 127;
    peers[conn] = (struct peer){.open = true, .id = hello.id, .group = hello.group};
    known[conn].any = false;
    carry_out(core_peer_connected(master, now, conn, &source, &hello));
}

static void lose(uint32_t conn) {
    if (!peers[conn].open) return;
    peers[conn] = (struct peer){0};
    carry_out(core_peer_lost(master, now, conn, "the connection is gone"));
}

// A vote counts from the moment at which the master reads it, so it is noted before.
static void note_vote(struct peer *peer, const struct wire_header *header, const uint8_t *body) {
    struct wire_vote vote;
    struct wire_sync_vote sync;
    if (header->run != run || header->generation != generation || !peer->registered || !peer->accepted ||
        peer->vote != 0)
        return;
    if (header->type == WIRE_VOTE && wire_decode_vote(body, header->length, &vote)) peer->vote = vote.kind;
    if (header->type == WIRE_SYNC_VOTE && wire_decode_sync_vote(body, header->length, &sync)) peer->vote = VOTE_SYNC;
}

static void deliver(uint32_t conn, const struct wire_header *header, const uint8_t *body) {
    uint8_t *exact = fuzz_copy(body, header->length);
    note_vote(&peers[conn], header, exact);
    carry_out(core_message(master, now, conn, header, exact));
    free(exact);
}

static void say(uint32_t conn, struct wire_buffer *frame) {
    struct wire_header header;
    if (peers[conn].open && frame->length > 0) {
        MUST(wire_header_decode(frame->bytes, &header));
        deliver(conn, &header, frame->bytes + WIRE_HEADER_BYTES);
    }
    wire_buffer_fini(frame);
}

static struct wire_header header_of(uint32_t conn) {
    return (struct wire_header){.run = run, .generation = generation, .epoch = peers[conn].number};
}

static struct wire_header op_header(uint32_t conn) {
    return (struct wire_header){.run = run, .generation = generation, .epoch = peers[conn].group_epoch};
}

static struct wire_op_name name_of(uint32_t conn, uint8_t op) {
    uint64_t epoch = peers[conn].group_epoch;
    return (struct wire_op_name){
        .epoch = op & 64 && epoch > 0 ? epoch - 1 : epoch + (op == 255), .tag = op % NAMES, .sequence = op >> 2 & 1};
}

static void linked(uint32_t conn, uint32_t attempt, uint8_t unreachable, uint8_t how) {
    static struct wire_linked message;
    message = (struct wire_linked){.attempt = attempt, .latency_us = how};
    for (uint32_t i = 0; i < 8; i++)
        if (unreachable >> i & 1) message.unreachable[message.count++] = id_of(i);
    struct wire_buffer frame = {0};
    wire_encode_linked(&frame, header_of(conn), &message);
    if (attempt != 0) peers[conn].attempt = 0;
    say(conn, &frame);
}

static void vote(uint32_t conn, uint8_t kind) {
    struct wire_buffer frame = {0};
    struct wire_vote message = {.kind = (uint8_t)(1 + kind % 3)};
    wire_encode_vote(&frame, header_of(conn), &message);
    say(conn, &frame);
}

static void done(uint32_t conn, uint8_t op) {
    struct wire_buffer frame = {0};
    struct wire_op_done message = {.name = name_of(conn, op)};
    wire_encode_op_done(&frame, op_header(conn), &message);
    say(conn, &frame);
}

static void report(uint32_t conn, struct fuzz in) {
    struct wire_op_report ops[16];
    struct wire_report message = {.count = fuzz_below(&in, 16), .ops = ops};
    for (uint32_t i = 0; i < message.count; i++) {
        ops[i].name = name_of(conn, fuzz_u8(&in));
        uint8_t state = fuzz_u8(&in);
        ops[i].small = state & 1;
        ops[i].state = !(state & 2) ? WIRE_OP_OPEN : ops[i].small ? WIRE_OP_RETAINED : WIRE_OP_DONE;
    }
    struct wire_buffer frame = {0};
    wire_encode_report(&frame, op_header(conn), &message);
    say(conn, &frame);
}

static void mismatch(uint32_t conn, struct fuzz *in) {
    struct wire_mismatch message = {.other = id_of(fuzz_below(in, CONNS)), .name = name_of(conn, fuzz_u8(in))};
    fuzz_bytes(in, &message.mine, 4);
    message.mine.dtype = fuzz_u8(in);
    message.mine.op = fuzz_u8(in);
    message.mine.codec = fuzz_u8(in);
    message.mine.kind = message.mine.codec >> 4;
    message.mine.layout = message.mine.codec & 1;
    struct wire_buffer frame = {0};
    wire_encode_mismatch(&frame, op_header(conn), &message);
    say(conn, &frame);
}

static void link_down(uint32_t conn, uint32_t other, uint8_t index) {
    struct wire_link_down message = {.id = id_of(other), .index = index & 63, .reason = (uint8_t)((index >> 6) % 3)};
    struct wire_buffer frame = {0};
    wire_encode_link_down(&frame, header_of(conn), &message);
    say(conn, &frame);
}

static void measured(uint32_t conn, const struct wire_id *target, uint64_t rate) {
    struct wire_measured message = {.from = peers[conn].id, .to = *target, .bytes_per_s = rate};
    struct wire_buffer frame = {0};
    wire_encode_measured(&frame, header_of(conn), &message);
    peers[conn].measures = false;
    say(conn, &frame);
}

static void sync_vote(uint32_t conn, uint8_t how, uint64_t revision, uint8_t content) {
    static const uint64_t entries[] = {3, 4, 0, 511, 513, 20000, UINT64_C(1) << 63, UINT64_MAX};
    struct wire_sync_vote message = {.strategy = how % 3,
                                     .incomplete = how >> 2 & 1,
                                     .revision = revision,
                                     .outline.entries = entries[content >> 2 & 7]};
    message.outline.hashes[content >> 5] = how >> 4;
    message.mask.low = how >> 3 & 1;
    message.content.low = content % 4;
    struct wire_buffer frame = {0};
    wire_encode_sync_vote(&frame, header_of(conn), &message);
    say(conn, &frame);
}

static void sync_done(uint32_t conn, uint8_t how, const struct wire_id *donor, uint64_t bytes) {
    static struct wire_sync_done message;
    message = (struct wire_sync_done){.round = peers[conn].round + (how == 255), .complete = how & 1, .count = 1};
    message.sources[0] = (struct wire_sync_source){.id = *donor, .bytes = bytes};
    struct wire_buffer frame = {0};
    wire_encode_sync_done(&frame, header_of(conn), &message);
    say(conn, &frame);
}

// ---- the loss of the master ----

static void replace_master(uint8_t how) {
    uint8_t random[CORE_RANDOM_BYTES] = {9, how, (uint8_t)(now / MS_NS)};
    for (uint32_t conn = 0; conn < CONNS; conn++) {
        if (peers[conn].open && known[conn].any) known[conn].resume.vote = peers[conn].vote;
        peers[conn] = (struct peer){0};
    }
    core_free(master);
    master = core_new(LIMIT_MS, random, now);
    if (master == NULL) master = core_new(LIMIT_MS, random, now); // one allocation is refused at most
    core_configure(
        master, &(struct core_settings){.survivors_until_ns = now + (how & 3) * 50 * MS_NS, .standby = (how & 4) != 0});
    MUST(core_activity(master) == WIRE_IDLE);
}

static void lie_of(struct wire_resume *resume, struct known *claimed, uint8_t lie, uint64_t what) {
    struct wire_epoch *epoch = &resume->epoch;
    switch (lie % 24) {
    case 1: claimed->run ^= 1; return;
    case 2: claimed->promised = what; return;
    case 3: resume->generation = what; return;
    case 4: epoch->number = what; return;
    case 5: resume->join_number = what; return;
    case 6: resume->last_vote.number = what; return;
    case 7: resume->last_vote.kind = (uint8_t)what; return;
    case 8: resume->accepted = !resume->accepted; return;
    case 9: resume->vote = (uint8_t)what; return;
    case 10: epoch->count -= epoch->count > 0; return;
    case 11: epoch->group_epoch = what; return;
    case 12: claimed->members[what % (CONNS + 1)].join_number = what; return;
    case 13: epoch->sync_round = what; return;
    case 14: resume->hello.version = (uint16_t)what; return;
    case 15: claimed->sizes[0].count = (uint32_t)what; return;
    case 16: epoch->lost_epoch = what; return;
    case 17: resume->hello.id = id_of((uint32_t)(what % CONNS)); return;
    case 18: claimed->members[0].id = id_of((uint32_t)(what % 64)); return;
    case 19: claimed->members[0].group = (uint32_t)what; return;
    case 20: resume->last_vote.epoch = what; return;
    case 21: epoch->sync_expected = what; return;
    default: return;
    }
}

static void resume_with(uint32_t conn, uint8_t how, uint8_t lie, uint64_t what) {
    static struct known claimed;
    if (peers[conn].open || !known[conn].any) return;
    claimed = known[conn];
    struct wire_resume *resume = &claimed.resume;
    struct wire_address source = {.family = 4, .bytes = {10, 0, 0, (uint8_t)conn}, .port = 1};
    resume->hello = (struct wire_hello){.version = WIRE_VERSION,
                                        .id = id_of(conn),
                                        .group = how & 1,
                                        .lanes = 1,
                                        .port = 48149,
                                        .masters = how & 2 ? 2 : 1};
    resume->epoch.members = claimed.members;
    resume->last_vote.sizes = claimed.sizes;
    resume->past = claimed.past;
    resume->past_count = how >> 2 & 3;
    for (uint32_t i = 0; i < resume->past_count; i++)
        claimed.past[i] =
            (struct wire_past){.name = {.epoch = resume->epoch.group_epoch, .tag = i, .sequence = how >> 4 & 1},
                               .kind = how & 128 ? WIRE_VERDICT_MISMATCH : WIRE_VERDICT_COMMIT};
    claimed.losses[0] = (struct wire_loss){
        .epoch = resume->epoch.lost_epoch, .members = 1, .group_members = 1, .groups = 1, .largest_group = 1};
    resume->losses = claimed.losses;
    resume->loss_count = how & 8 && resume->epoch.lost_epoch > 0;
    resume->sync_code = how & 64 ? 9 : 0;
    resume->sync_committed = how >> 5 & 1;
    lie_of(resume, &claimed, lie, what);
    struct wire_buffer frame = {0};
    wire_encode_resume(&frame, (struct wire_header){.run = claimed.run, .generation = claimed.promised}, resume);
    struct wire_header header;
    if (frame.length > 0 && wire_header_decode(frame.bytes, &header)) {
        known[conn] = claimed; // what it said is what it knows
        known[conn].resume.epoch.members = known[conn].members;
        peers[conn] =
            (struct peer){.open = true, .id = resume->hello.id, .accepted = resume->accepted, .vote = resume->vote};
        if (resume->accepted) peers[conn].number = resume->epoch.number;
        if (resume->accepted) peers[conn].group_epoch = resume->epoch.group_epoch;
        uint8_t *exact = fuzz_copy(frame.bytes + WIRE_HEADER_BYTES, header.length);
        carry_out(core_peer_resumed(master, now, conn, &source, &header, exact));
        free(exact);
    }
    wire_buffer_fini(&frame);
}

static void promise(uint32_t conn) {
    struct wire_buffer frame = {0};
    if (peers[conn].asked == 0) return;
    known[conn].promised = peers[conn].asked;
    wire_encode_empty(&frame, (struct wire_header){.run = known[conn].run, .generation = peers[conn].asked},
                      WIRE_PROMISE);
    say(conn, &frame);
}

static void raw(uint32_t conn, struct fuzz *in) {
    uint8_t type = fuzz_u8(in), how = fuzz_u8(in);
    struct wire_header header = how & 1 ? op_header(conn) : header_of(conn);
    if (how & 2) header.run = fuzz_number(in);
    if (how & 4) header.generation = fuzz_number(in);
    if (how & 8) header.epoch = fuzz_number(in);
    header.type = type;
    header.length = fuzz_u8(in);
    uint8_t bytes[256], head[WIRE_HEADER_BYTES];
    fuzz_bytes(in, bytes, header.length);
    wire_header_encode(head, &header);
    // The body of the master gives up a connection whose header makes no sense.
    if (!peers[conn].open)
        return;
    else if (wire_header_decode(head, &header))
        deliver(conn, &header, bytes);
    else
        lose(conn);
}

// ---- time ----

static void tick(int64_t to) {
    now = to > now ? to : now;
    carry_out(core_tick(master, now));
    MUST(core_next_deadline(master) > now);
}

static void hear_all(void) {
    for (uint32_t conn = 0; conn < CONNS; conn++) {
        struct wire_buffer frame = {0};
        wire_encode_empty(&frame, header_of(conn), WIRE_HEARTBEAT);
        say(conn, &frame);
    }
}

static void for_all(struct fuzz *in, uint8_t event) {
    uint8_t a = fuzz_u8(in), b = fuzz_u8(in), c = fuzz_u8(in);
    for (uint32_t conn = 0; conn < CONNS; conn++) {
        const struct peer *peer = &peers[conn];
        if (!peer->open) continue;
        switch (event) {
        case M_ALL_LINKED:
            if (peer->attempt != 0) linked(conn, peer->attempt, 0, a);
            break;
        case M_ALL_READY:
            if (peer->accepted) linked(conn, 0, 0, a);
            break;
        case M_ALL_VOTE:
            if (peer->accepted && peer->vote == 0) vote(conn, a);
            break;
        case M_ALL_DONE:
            if (peer->accepted) done(conn, a);
            break;
        case M_ALL_MEASURED:
            if (peer->measures) measured(conn, &peer->target, (uint64_t)(a + 1) * (conn + b) * 1000000);
            break;
        case M_ALL_SYNC_VOTE:
            if (peer->accepted && peer->vote == 0) sync_vote(conn, a, b, c >> (conn % 8) & 1);
            break;
        default:
            if (peer->receives) sync_done(conn, a, &peer->donor, b);
        }
    }
}

static void step(struct fuzz *in) {
    uint8_t event = (uint8_t)fuzz_below(in, M_EVENTS);
    uint32_t conn = 0;
    switch (event) {
    case M_WAIT: tick(now + fuzz_u8(in) * 8 * MS_NS); return;
    case M_DUE:
        if (core_next_deadline(master) < INT64_MAX) tick(core_next_deadline(master));
        return;
    case M_HEARTBEATS: hear_all(); return;
    case M_ALL_REPORT:
        for (; conn < CONNS; conn++)
            if (peers[conn].accepted) report(conn, *in);
        return;
    case M_ALL_LINKED:
    case M_ALL_READY:
    case M_ALL_VOTE:
    case M_ALL_DONE:
    case M_ALL_MEASURED:
    case M_ALL_SYNC_VOTE:
    case M_ALL_SYNC_DONE: for_all(in, event); return;
    case M_REFUSE: fuzz_refuse(fuzz_below(in, 64)); return;
    case M_MASTER: replace_master(fuzz_u8(in)); return;
    case M_ALL_RESUME: {
        uint8_t how = fuzz_u8(in);
        for (; conn < CONNS; conn++) resume_with(conn, how, 0, 0);
        return;
    }
    case M_ALL_PROMISE:
        for (; conn < CONNS; conn++) promise(conn);
        return;
    case M_RANDOM:
        if (core_wants_random(master)) {
            uint8_t random[CORE_RANDOM_BYTES];
            fuzz_bytes(in, random, sizeof random);
            core_set_random(master, random);
        }
        return;
    default: break;
    }
    conn = fuzz_below(in, CONNS);
    uint8_t a, b;
    switch (event) {
    case M_CONNECT: connect(in, conn); return;
    case M_LOST: lose(conn); return;
    case M_LEAVE: {
        struct wire_buffer frame = {0};
        wire_encode_empty(&frame, header_of(conn), WIRE_LEAVE);
        say(conn, &frame);
        return;
    }
    case M_RESUME:
        a = fuzz_u8(in);
        b = fuzz_u8(in);
        resume_with(conn, a, b, fuzz_number(in));
        return;
    case M_PROMISE: promise(conn); return;
    case M_MOVED: {
        struct wire_buffer frame = {0};
        wire_encode_empty(&frame, header_of(conn), WIRE_MOVED);
        say(conn, &frame);
        return;
    }
    case M_LINKED:
        a = fuzz_u8(in);
        b = fuzz_u8(in);
        linked(conn, b == 255 ? UINT32_MAX : peers[conn].attempt, a, b);
        return;
    case M_LINKS_READY: linked(conn, 0, 0, fuzz_u8(in)); return;
    case M_VOTE: vote(conn, fuzz_u8(in)); return;
    case M_DONE: done(conn, fuzz_u8(in)); return;
    case M_REPORT: report(conn, *in); return;
    case M_MISMATCH: mismatch(conn, in); return;
    case M_LINK_DOWN:
        a = fuzz_u8(in);
        link_down(conn, a % CONNS, fuzz_u8(in));
        return;
    case M_MEASURED: {
        struct wire_id target = id_of(fuzz_below(in, CONNS));
        measured(conn, &target, fuzz_number(in));
        return;
    }
    case M_SYNC_VOTE: {
        a = fuzz_u8(in);
        uint64_t revision = fuzz_number(in);
        sync_vote(conn, a, revision, fuzz_u8(in));
        return;
    }
    case M_SYNC_DONE: {
        a = fuzz_u8(in);
        struct wire_id donor = id_of(fuzz_below(in, CONNS));
        sync_done(conn, a, &donor, fuzz_number(in));
        return;
    }
    default: raw(conn, in); return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz in = {data, data + size};
    uint8_t random[CORE_RANDOM_BYTES] = {7, 7, 7};
    memset(peers, 0, sizeof peers);
    memset(known, 0, sizeof known);
    now = SECOND_NS;
    run = generation = 0;
    master = core_new(LIMIT_MS, random, now);
    MUST(master != NULL);
    while (fuzz_more(&in)) step(&in);
    fuzz_refuse(0);
    carry_out(core_farewell(master, now));
    core_free(master);
    return 0;
}
