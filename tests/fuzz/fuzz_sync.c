// Rounds of shared state with members that send whatever they like: hash lists, leaves in every coding, questions. What
// is said to be complete is what was elected, byte for byte, and stays so; a member that gives is never written; and
// whatever is asked and answered is well-formed.
#include "bottle.h"
#include "state/leaf.h"
#include "state/sync.h"

#include <pccl.h>

#include "compute/hash.h"
#include "events.h"
#include "state/content.h"
#include "state/delta.h"

enum { ENTRIES = 4, LEAVES_MAX = 8, STATE_BYTES = HASH_LEAF_BYTES + 40000, STALL_NS = 1000000000 };

static struct fuzz in;
static struct engine *engine;
static uint8_t winner[STATE_BYTES], before[STATE_BYTES], *mine;
static pcclTensorInfo_t infos[ENTRIES];
static struct content *content, *elected; // `elected` is of `winner`
static uint64_t round_number;
static bool open, planned, true_plan, receives, complete;
static struct wire_sync_ask asked[BOTTLE_PEERS][2]; // last: hashes, leaves

static void on_failed(void *context, const char *why) { (void)context, (void)why; }

static void on_link_down(void *context, const struct wire_id *id, uint32_t index, uint64_t serial,
                         enum wire_link_reason reason) {
    (void)context, (void)id, (void)index, (void)serial, (void)reason;
}

static size_t state_bytes(void) {
    size_t bytes = 0;
    for (int i = 0; i < ENTRIES; i++) bytes += infos[i].count;
    return bytes;
}

static void on_frame(const struct wire_header *header, const uint8_t *body) {
    struct wire_sync_done done;
    if (header->type != WIRE_SYNC_DONE) return;
    MUST(wire_decode_sync_done(body, header->length, &done));
    MUST(open && planned && receives && !complete && done.round == round_number);
    complete = done.complete == WIRE_SYNC_COMPLETE;
    MUST(!complete || !true_plan || memcmp(mine, winner, state_bytes()) == 0);
}

static void to_master(void *context, const struct wire_buffer *frames) {
    (void)context;
    bottle_told(frames, on_frame);
}

static void on_heard(uint32_t peer, const struct wire_header *header, const struct wire_head *head) {
    const struct wire_sync_ask *ask = &head->sync_ask;
    const struct wire_sync_leaf *leaf = &head->sync_leaf;
    bool leaves = header->type == WIRE_SYNC_ASK;
    if (leaves || header->type == WIRE_SYNC_ASK_HASHES) {
        MUST(ask->round <= round_number && ask->first + ask->count <= content->layout.leaf_count);
        if (ask->round < round_number) return; // it was under way when its round ended
        MUST(receives);
        asked[peer][leaves] = *ask;
    }
    if (header->type == WIRE_SYNC_LEAF)
        MUST(leaf->round < round_number || (!receives && leaf->leaf < content->layout.leaf_count));
}

// ---- the state ----
static void describe(pcclTensorInfo_t out[ENTRIES], uint8_t *bytes, uint32_t sizes) {
    static const uint32_t counts[] = {0, 1, 300, 9000, 5, HASH_LEAF_BYTES + 17, 4097, 64};
    static const char *const names[ENTRIES] = {"a", "b", "c", "d"};
    bool large = false; // one at most
    for (int i = 0; i < ENTRIES; i++) {
        uint32_t count = counts[sizes >> 3 * i & 7];
        if (count > HASH_LEAF_BYTES && large) count = 2;
        large |= count > HASH_LEAF_BYTES;
        out[i] = (pcclTensorInfo_t){.name = names[i], .data = bytes, .count = count, .datatype = pcclUint8};
        bytes += count;
    }
}

static struct content *content_of(pcclTensorInfo_t list[ENTRIES]) {
    pcclSharedState_t state = {.count = ENTRIES, .infos = list};
    struct content *made = NULL;
    if (content_new(&state, NULL, &made) != pcclSuccess) abort();
    MUST(made != NULL && content_hash(made, INT64_MAX));
    return made;
}

static void make_state(void) {
    pcclTensorInfo_t theirs[ENTRIES];
    uint32_t sizes = fuzz_u8(&in) | (uint32_t)fuzz_u8(&in) << 8;
    if (winner[sizeof winner - 1] == 0)
        for (size_t i = 0; i < sizeof winner; i++) winner[i] = (uint8_t)(1 + i / 13 % 200); // packs
    describe(theirs, winner, sizes);
    memcpy(infos, theirs, sizeof infos);
    mine = fuzz_copy(winner, state_bytes()); // so that each byte beyond it is seen to be touched
    describe(infos, mine, sizes);
    elected = content_of(theirs);
    // What differs, by leaf.
    uint32_t differ = fuzz_u8(&in);
    for (uint64_t leaf = 0; leaf < elected->layout.leaf_count && leaf < LEAVES_MAX; leaf++) {
        struct delta_piece piece = delta_layout_find(&elected->layout, leaf);
        if (differ >> leaf & 1)
            mine[(uint8_t *)elected->layout.entries[piece.entry].data - winner + (ptrdiff_t)piece.offset +
                 piece.length / 2] ^= 0x55;
    }
    content = content_of(infos);
}

// ---- the round ----
static void begin(void) {
    if (open) return;
    open = sync_begin(engine, content, STALL_NS);
    planned = receives = complete = false;
    memcpy(before, mine, state_bytes());
}

static void plan(void) {
    static struct wire_sync_plan message;
    uint32_t how = fuzz_u8(&in);
    if (planned || !open) return;
    message = (struct wire_sync_plan){
        .round = ++round_number, .revision = 1, .mask = content->mask, .content = elected->hash};
    planned = true;
    receives = how & 1;
    true_plan = !(how & 8);
    if (!true_plan) message.content.low ^= 1;
    message.receivers[message.receiver_count++] = bottle_id(receives ? 0 : 1);
    for (uint32_t peer = 1; peer < BOTTLE_PEERS; peer++)
        if (how >> peer & 1 && (receives || peer != 1)) message.donors[message.donor_count++] = bottle_id(peer);
    if (message.donor_count == 0) message.donors[message.donor_count++] = bottle_id(receives ? 1 : 0);
    sync_plan(engine, &message);
}

static void end(void) {
    struct sync_report report;
    if (!open) return;
    sync_end(engine, &report);
    open = false;
    if (!report.wrote) MUST(memcmp(mine, before, state_bytes()) == 0);
    if (complete && true_plan) MUST(memcmp(mine, winner, state_bytes()) == 0);
    content_free(content);
    content = content_of(infos);
}

static void restart(void) {
    struct sync_report report;
    bool torn;
    if (!open) return;
    open = sync_restart(engine, &report, &torn);
    planned = receives = complete = false;
    if (report.wrote) memcpy(before, mine, state_bytes());
}

// ---- frames ----
static const uint8_t *bytes_of(uint64_t leaf, uint32_t *length) {
    *length = 0;
    if (leaf >= elected->layout.leaf_count) return winner;
    struct delta_piece piece = delta_layout_find(&elected->layout, leaf);
    *length = piece.length;
    return (const uint8_t *)elected->layout.entries[piece.entry].data + piece.offset;
}

static size_t leaf_payload(struct wire_sync_leaf *leaf, uint8_t *payload, uint32_t how) {
    uint32_t length;
    const uint8_t *bytes = bytes_of(leaf->leaf, &length);
    leaf->coding = how & 3;
    if (leaf->coding == WIRE_SYNC_LZ4) {
        uint32_t packed = length > 0 ? leaf_pack(payload, bytes, length) : 0;
        return packed > 0 ? packed : length / 2;
    }
    if (leaf->coding == WIRE_SYNC_SLOT) {
        uint64_t slot = fuzz_number(&in) % (SLOTS + 1);
        if (slot < SLOTS && bottle_slots != NULL) memcpy(bottle_slots + slot * SLOT_BYTES, bytes, length);
        wire_slot_encode(payload, slot, 1 + (how >> 2 & 1) * fuzz_u8(&in));
        return WIRE_SLOT_BYTES;
    }
    memcpy(payload, bytes, length);
    return length;
}

static void change(struct wire_header *header, struct wire_head *head, uint8_t *payload, size_t *length) {
    uint64_t value;
    switch (fuzz_below(&in, 10)) {
    case 0: header->epoch = fuzz_u8(&in); break;
    case 1: header->run = fuzz_u8(&in); break;
    case 2:
    case 3:
    case 4:
    case 5:
    case 6: fuzz_change(&in, &head->sync_ask, sizeof *head - offsetof(struct wire_head, sync_ask)); break;
    case 7:
        value = fuzz_number(&in) + (uint64_t)fuzz_u8(&in) * 256;
        *length = value < HASH_LEAF_BYTES + 8 ? value : HASH_LEAF_BYTES + 8;
        break;
    default:
        value = fuzz_number(&in);
        if (*length > 0) payload[value % *length] ^= (uint8_t)(1 + fuzz_u8(&in) % 255);
        break;
    }
}

// Right, but for what is changed.
static void frame(uint16_t type) {
    static uint8_t payload[HASH_LEAF_BYTES + 64];
    uint32_t link = fuzz_u8(&in), where = fuzz_u8(&in), how = fuzz_u8(&in), peer = 1 + link % (BOTTLE_PEERS - 1);
    struct wire_header header = {.type = type, .run = 7, .generation = 1};
    const struct wire_sync_ask *ask;
    struct wire_head head;
    size_t length = 0;
    memset(&head, 0, sizeof head);
    switch (type) {
    case WIRE_SYNC_HASHES:
        ask = &asked[peer][false];
        head.sync_hashes = (struct wire_sync_hashes){ask->round, ask->first, ask->sequence, ask->count};
        if (ask->first + ask->count > elected->layout.leaf_count) head.sync_hashes.count = 0;
        length = head.sync_hashes.count * sizeof(uint64_t);
        memcpy(payload, elected->leaves + ask->first, length);
        break;
    case WIRE_SYNC_LEAF:
        head.sync_leaf =
            (struct wire_sync_leaf){.round = round_number, .leaf = where, .sequence = asked[peer][true].sequence};
        length = leaf_payload(&head.sync_leaf, payload, how);
        break;
    default:
        head.sync_ask = (struct wire_sync_ask){
            .round = round_number + !planned, .first = where & 7, .count = 1 + (where >> 3 & 7), .codings = how & 7};
        break;
    }
    for (uint32_t changes = how >> 4 & 3; changes > 0; changes--) change(&header, &head, payload, &length);
    size_t cut = how & 0x80 ? 1 + fuzz_u8(&in) * (size_t)(fuzz_below(&in, 2) ? 1 : length / 256) : 0;
    bottle_frame(peer, link / 2 % BOTTLE_LANES, &header, &head, payload, length, cut);
}

// ---- programs ----
static void enter(uint32_t how) {
    bottle_enter(engine, how & 7, how >> 3 & 3, true, 1000);
    engine_links_ready(engine, bottle_epoch);
}

static void act(uint32_t event) {
    uint32_t link;
    switch (event) {
    case S_BEGIN: begin(); break;
    case S_PLAN: plan(); break;
    case S_END: end(); break;
    case S_RESTART: restart(); break;
    case S_HASHES: frame(WIRE_SYNC_HASHES); break;
    case S_LEAF: frame(WIRE_SYNC_LEAF); break;
    case S_ASK: frame(WIRE_SYNC_ASK); break;
    case S_ASK_HASHES: frame(WIRE_SYNC_ASK_HASHES); break;
    case S_ENTER: enter(fuzz_u8(&in)); break;
    case S_LINK:
        link = fuzz_u8(&in);
        bottle_link(engine, 1 + link % (BOTTLE_PEERS - 1), link / 2 % BOTTLE_LANES);
        break;
    case S_CLOSE:
        link = fuzz_u8(&in);
        bottle_close(1 + link % (BOTTLE_PEERS - 1), link / 2 % BOTTLE_LANES);
        break;
    case S_WAIT: bottle_now += (int64_t)fuzz_u8(&in) * 10 * MS_NS; break;
    case S_REFUSE: fuzz_refuse(1 + fuzz_u8(&in)); break;
    default: break;
    }
}

static bool step(void) {
    uint32_t event = NEXT_AT_ONCE;
    while (fuzz_more(&in) && (event & NEXT_AT_ONCE)) {
        event = fuzz_u8(&in);
        act((event & ~(uint32_t)NEXT_AT_ONCE) % S_EVENTS);
        if ((event & ~(uint32_t)NEXT_AT_ONCE) % S_EVENTS != S_REFUSE) continue;
        act(fuzz_u8(&in) % S_END); // what it is meant for; never what the target itself needs memory for
        fuzz_refuse(0);
    }
    return fuzz_more(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct engine_callbacks callbacks = {.to_master = to_master, .link_down = on_link_down, .failed = on_failed};
    in = (struct fuzz){data, data + size};
    round_number = 0;
    open = planned = receives = complete = false;
    memset(asked, 0, sizeof asked);
    make_state();
    engine = bottle_new(&callbacks, on_heard);
    bottle_enter(engine, 6, 0, false, 1000);
    engine_links_ready(engine, bottle_epoch);
    for (uint32_t peer = 1; peer < BOTTLE_PEERS; peer++)
        for (uint32_t i = 0; i < BOTTLE_LANES; i++) bottle_link(engine, peer, i);
    bottle_run(engine, step);
    fuzz_refuse(0);
    end();
    bottle_free(engine);
    content_free(content);
    content_free(elected);
    free(mine);
    return 0;
}
