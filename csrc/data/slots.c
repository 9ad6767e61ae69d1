#include "data/slots.h"

#include <errno.h>
#include <string.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/memory.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/algorithm.h"
#include "link/frame.h"
#include "net/rendezvous.h"
#include "net/socket.h"

enum {
    ALL = (1 << SLOTS) - 1,
    INPUTS_FROM = SLOTS / 2, // inputs are held for long; chunks need not wait for them
    RETURN_LEAST = 2,        // slots that are returned together, since each frame wakes the neighbour
};

// The receiver keeps fewer than RETURN_LEAST slots, so a chunk fits between them.
_Static_assert(INPUTS_FROM / RETURN_LEAST * SLOT_BYTES >= SLOTS_CHUNK_MAX, "it fits");

// The lengths that frames name for slots were bounded where they were decoded.
_Static_assert((size_t)WIRE_MAX_DATA_BYTES <= SLOTS_BYTES && (size_t)WIRE_MAX_DATA_BYTES <= PLAN_SMALL_MAX,
               "slots_find can trust it");

static uint32_t slots_of(uint64_t bytes) { return (uint32_t)((bytes + SLOT_BYTES - 1) / SLOT_BYTES); }

static uint32_t mask_of(uint32_t first, uint64_t bytes) { return ((1u << slots_of(bytes)) - 1) << first; }

// ---- life ----
// Creates the slots for chunks that go to a neighbour. Returns a descriptor that the caller sends to the neighbour and
// closes. Returns -1 if they exist already in this epoch, or the system refused.
static int make(struct slots *slots) {
    if (slots->own != NULL) return -1; // it was handed over in this epoch, and is in use
    int fd = memory_shared_new(SLOTS_BYTES, &slots->own);
    if (fd < 0) slots->own = NULL;
    slots->free = ALL;
    return fd;
}

// Drops the own slots, whose descriptor did not reach the neighbour.
static void drop_own(struct slots *slots) {
    memory_shared_unmap(slots->own, SLOTS_BYTES);
    slots->own = NULL;
    slots->populated = slots->mapped = false;
}

void slots_end(struct slots *slots) {
    drop_own(slots);
    memory_shared_unmap(slots->other, SLOTS_BYTES);
    slots->other = NULL;
    slots->to_return = 0;
}

// ---- what goes out ----
struct wire_ready slots_offer(const struct neighbour *to, const struct op *op) {
    return (struct wire_ready){.in_slots = op->args.queue == NULL && op_peer_of(to)->slots.other != NULL};
}

static bool has_pages(struct slots *slots) {
    if (slots->own == NULL) return false;
    slots->populated = slots->populated || memory_shared_populate(slots->own, SLOTS_BYTES);
    return slots->populated;
}

bool slots_serve(struct neighbour *to, const struct op *op, const struct wire_ready *ready) {
    return ready->in_slots == 1 && op->args.queue == NULL && has_pages(&op_peer_of(to)->slots);
}

// Takes consecutive slots from `from` on. Returns false if they are not free.
static bool reserve(struct slots *slots, uint32_t from, uint64_t bytes, uint32_t *first, uint8_t **room) {
    for (uint32_t at = from; at + slots_of(bytes) <= SLOTS; at++) {
        uint32_t mask = mask_of(at, bytes);
        if ((slots->free & mask) != mask) continue;
        slots->free &= ~mask;
        *first = at;
        *room = slots->own + (size_t)at * SLOT_BYTES;
        return true;
    }
    return false;
}

void slots_write(struct engine *engine, struct frame *frame, uint32_t first) {
    engine_assert_locked(engine);
    wire_slot_encode(frame->note, first, engine_header(engine).epoch);
    frame->payload = frame->note;
    frame->length = WIRE_SLOT_BYTES;
}

struct frame *slots_frame(struct engine *engine, struct op *op, struct neighbour *to, struct wire_head *head,
                          size_t bytes, uint8_t **room) {
    uint32_t first;
    head->chunk.bytes = (uint32_t)bytes;
    engine_lock(engine);
    bool taken = reserve(&op_peer_of(to)->slots, 0, bytes, &first, room);
    struct frame *frame = taken ? algorithm_frame(engine, op, WIRE_CHUNK_IN, head, WIRE_SLOT_BYTES) : NULL;
    if (frame != NULL) slots_write(engine, frame, first);
    engine_unlock(engine);
    if (frame == NULL) return NULL; // without memory the engine is dead
    frame->bytes = frame->copied = (uint32_t)bytes;
    return frame;
}

struct frame *slots_chunk(struct engine *engine, struct op *op, struct neighbour *to, struct wire_head *head,
                          const uint8_t *chunk, size_t bytes) {
    uint8_t *room;
    struct frame *frame = slots_frame(engine, op, to, head, bytes, &room);
    if (frame != NULL) memory_copy_past_caches(room, chunk, bytes);
    return frame;
}

bool slots_returned(struct engine *engine, struct incoming *in) {
    engine_assert_locked(engine);
    struct slots *slots = &op_peer_of(in->from)->slots;
    uint32_t taken = in->head.taken.slots;
    if (taken == 0) {
        slots->mapped = slots->own != NULL;
        return true;
    }
    if (slots->own == NULL || taken > ALL || (taken & slots->free) != 0) return false;
    slots->free |= taken;
    neighbour_schedule(in->from);
    return true;
}

// ---- what comes in ----
bool slots_are_named(const struct incoming *in) {
    uint16_t type = in->header.type;
    return type == WIRE_CHUNK_IN || type == WIRE_SMALL_IN ||
           (type == WIRE_SYNC_LEAF && in->head.sync_leaf.coding == WIRE_SYNC_SLOT);
}

// Returns how many bytes lie in the slots that the frame names, at most.
static uint32_t named_bytes(const struct incoming *in) {
    if (in->header.type == WIRE_SYNC_LEAF) return SLOT_BYTES;
    return in->header.type == WIRE_SMALL_IN ? in->head.small_in.bytes : in->head.chunk.bytes;
}

bool slots_find(struct engine *engine, struct incoming *in) {
    bool leaf = in->header.type == WIRE_SYNC_LEAF;
    uint64_t first, epoch, bytes = named_bytes(in);
    wire_slot_decode(in->note, &first, &epoch);
    in->slot = NULL;
    const uint8_t *other = op_peer_of(in->from)->slots.other;
    if (first > SLOTS - slots_of(bytes)) return false;
    // A round of shared state outlives epochs, so a leaf may lie in slots that are no more, or not mapped yet.
    if (epoch != engine_header(engine).epoch || other == NULL) return leaf;
    in->slot = other + first * SLOT_BYTES;
    in->slots = mask_of((uint32_t)first, bytes);
    return true;
}

static void give_back(struct engine *engine, struct neighbour *from, uint32_t mask) {
    op_peer_of(from)->slots.to_return |= mask;
    if (__builtin_popcount(op_peer_of(from)->slots.to_return) >= RETURN_LEAST) slots_return(engine, from);
}

void slots_release(struct engine *engine, struct incoming *in) {
    if (in->slot == NULL) return;
    engine_lock(engine);
    give_back(engine, in->from, in->slots);
    engine_unlock(engine);
    in->slot = NULL;
}

void slots_return(struct engine *engine, struct neighbour *from) {
    engine_assert_locked(engine);
    struct wire_head head = {.taken = {op_peer_of(from)->slots.to_return}};
    if (head.taken.slots != 0) lanes_signal(from, WIRE_TAKEN, &head, NULL);
    op_peer_of(from)->slots.to_return = 0;
}

// ---- inputs of small all-reduces ----
// Reports to the neighbour that its slots are mapped here, if they are. Lock held.
static void report_mapped(struct engine *engine, struct neighbour *from) {
    engine_assert_locked(engine);
    static const struct wire_head head;
    if (op_peer_of(from)->slots.other != NULL) lanes_signal(from, WIRE_TAKEN, &head, NULL);
}

struct frame *slots_input_frame(struct engine *engine, struct neighbour *to, const struct op *op,
                                struct wire_head *head, uint8_t **room) {
    engine_assert_locked(engine);
    struct slots *slots = &op_peer_of(to)->slots;
    uint32_t first;
    if (op->in_bytes < SLOTS_INPUT_LEAST || op->args.queue != NULL || !slots->mapped || !has_pages(slots) ||
        !reserve(slots, INPUTS_FROM, op->in_bytes, &first, room))
        return NULL;
    head->small_in.bytes = (uint32_t)op->in_bytes;
    struct frame *frame = frame_new(&engine->lanes->frames, WIRE_SMALL_IN, head, WIRE_SLOT_BYTES);
    if (frame != NULL) slots_write(engine, frame, first);
    return frame;
}

static void return_input(const struct block *block) { give_back(block->from->all->context, block->from, block->slots); }

struct block *slots_input(struct engine *engine, struct incoming *in) {
    engine_assert_locked(engine);
    struct block *block = block_new(engine->pool, 0);
    if (block == NULL) return NULL;
    block->length = in->head.small_in.bytes;
    block->in_slots = in->slot;
    block->from = in->from;
    block->slots = in->slots;
    block->return_slots = return_input;
    in->slot = NULL;
    return block;
}

// ---- leaves of a shared state ----
enum slots_leaf slots_reserve_leaf(struct neighbour *to, size_t bytes, uint32_t *first, uint8_t **room) {
    struct slots *slots = &op_peer_of(to)->slots;
    if (!slots->mapped || bytes > SLOT_BYTES || !has_pages(slots)) return SLOTS_LEAF_SENT;
    return reserve(slots, 0, bytes, first, room) ? SLOTS_LEAF : SLOTS_LEAF_LATER;
}

// ---- members of one host find each other and hand over their slots ----
enum {
    CLAIMS_PER_TURN = 64,
    CLAIM_AGAIN_MS = 1000, // after too many connections have waited at a neighbour's socket
    ADDRESS_BYTES = 1 + 16 + 2,
};

// A link as a claim names it, with the addresses swapped between the two sides.
struct claimed_link {
    uint8_t here[ADDRESS_BYTES], there[ADDRESS_BYTES];
};

// Both sides are of one host, and of one version.
struct claim {
    uint64_t run, epoch;
    struct wire_id from, to;
    uint32_t version, count;
    struct claimed_link links[WIRE_MAX_LANES + 1];
};

_Static_assert(sizeof(struct claim) <= RENDEZVOUS_CLAIM_BYTES, "a claim fits");

static size_t claim_length(uint32_t count) {
    return offsetof(struct claim, links) + count * sizeof(struct claimed_link);
}

static void write_address(uint8_t out[ADDRESS_BYTES], const struct wire_address *address) {
    out[0] = address->family;
    memcpy(out + 1, address->bytes, sizeof address->bytes);
    memcpy(out + 1 + sizeof address->bytes, &address->port, sizeof address->port);
}

// False: the link leaves the host.
static bool addresses_of(const struct lane *lane, struct claimed_link *out) {
    struct wire_address here, there;
    if (!transport_local_address(lane->stream, &here) || !transport_remote_address(lane->stream, &there)) return false;
    write_address(out->here, &here);
    write_address(out->there, &there);
    return socket_address_same_host(&here, &there);
}

bool slots_may_come(const struct lane *lane) {
    struct claimed_link unused;
    return engine_of(lane)->rendezvous != NULL && addresses_of(lane, &unused);
}

static void claim_links(struct engine *engine, struct neighbour *peer) {
    struct wire_header now = engine_header(engine);
    struct claim claim = {
        .version = WIRE_VERSION, .run = now.run, .epoch = now.epoch, .from = engine->self, .to = peer->id};
    for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) {
        if (peer->lanes[i] == NULL) continue;
        if (!addresses_of(peer->lanes[i], &claim.links[claim.count++])) return;
    }
    if (claim.count == 0) return;
    int slots = make(&op_peer_of(peer)->slots);
    int error = rendezvous_send(op_peer_of(peer)->rendezvous, &claim, claim_length(claim.count), slots);
    descriptor_close(slots);
    op_peer_of(peer)->claims_again = error == -EAGAIN;
    if (error == 0) return;
    if (error == -EAGAIN) engine->claims_ns = platform_now_ns() + CLAIM_AGAIN_MS * MS_NS;
    if (slots >= 0) drop_own(&op_peer_of(peer)->slots);
    LOG(LOG_DEBUG, "cannot reach the rendezvous socket of a neighbour: its chunks go through TCP");
}

int slots_step(struct engine *engine, int timeout_ms) {
    engine_assert_thread(engine);
    int64_t at_ns = engine->rendezvous == NULL ? INT64_MAX : rendezvous_tick(engine->rendezvous);
    if (platform_earlier(at_ns, engine->claims_ns) == INT64_MAX) return timeout_ms; // mostly, without the time
    int64_t now_ns = platform_now_ns();
    engine_lock(engine);
    if (now_ns >= engine->claims_ns) {
        engine->claims_ns = INT64_MAX;
        for (struct neighbour *peer = engine->lanes->neighbours; peer != NULL; peer = peer->next)
            if (op_peer_of(peer)->claims_again && op_peer_of(peer)->offered && engine->call_table.ready)
                claim_links(engine, peer);
    }
    at_ns = platform_earlier(at_ns, engine->claims_ns);
    engine_unlock(engine);
    int ms = platform_wait_ms(now_ns, at_ns);
    return timeout_ms < 0 || (ms >= 0 && ms < timeout_ms) ? ms : timeout_ms;
}

void slots_announce(struct engine *engine) {
    engine_assert_locked(engine);
    static const struct wire_head head; // MEMORY says nothing but its payload
    struct block *offer = engine->rendezvous == NULL ? NULL : block_new(engine->pool, RENDEZVOUS_NAME_BYTES);
    if (offer == NULL) return;
    memcpy(offer->bytes, rendezvous_name(engine->rendezvous), RENDEZVOUS_NAME_BYTES);
    for (struct neighbour *peer = engine->lanes->neighbours; peer != NULL; peer = peer->next) {
        if (op_peer_of(peer)->member.rank == UINT32_MAX) continue;
        lanes_signal(peer, WIRE_MEMORY, &head, offer);
        if (op_peer_of(peer)->offered) claim_links(engine, peer);
    }
    block_put(engine->pool, offer);
}

void slots_announced(struct lane *lane) {
    struct engine *engine = engine_of(lane);
    struct neighbour *peer = lane->peer;
    engine_assert_thread(engine);
    engine_lock(engine);
    if (!op_peer_of(peer)->offered)
        memcpy(op_peer_of(peer)->rendezvous, lane->in.note, sizeof op_peer_of(peer)->rendezvous);
    // The other side has all links. If this one has not, they are claimed when it has.
    if (!op_peer_of(peer)->offered && engine->rendezvous != NULL && engine->call_table.ready) claim_links(engine, peer);
    op_peer_of(peer)->offered = true;
    engine_unlock(engine);
}

// ---- claims of others ----
static bool is_claimed(const struct lane *lane, const struct claim *claim) {
    struct claimed_link own;
    if (!addresses_of(lane, &own)) return false;
    for (uint32_t i = 0; i < claim->count; i++) {
        const struct claimed_link *link = &claim->links[i];
        if (memcmp(link->here, own.there, ADDRESS_BYTES) == 0 && memcmp(link->there, own.here, ADDRESS_BYTES) == 0)
            return true;
    }
    return false;
}

// True: the claimant holds the other end of each link to the peer.
static bool holds_links(const struct neighbour *peer, const struct claim *claim) {
    uint32_t count = 0;
    for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) {
        if (peer->lanes[i] == NULL) continue;
        if (!is_claimed(peer->lanes[i], claim)) return false;
        count++;
    }
    return count > 0;
}

// Maps the slots that come with a claim if the claimant holds the links to a peer.
static void believe(struct engine *engine, const struct rendezvous_claim *said) {
    engine_assert_locked(engine);
    struct claim claim;
    if (said->length < claim_length(0) || said->length > sizeof claim) return;
    memcpy(&claim, said->bytes, said->length);
    if (claim.version != WIRE_VERSION || claim.count > WIRE_MAX_LANES + 1 || said->length != claim_length(claim.count))
        return;
    struct wire_header now = engine_header(engine);
    if (claim.run != now.run || claim.epoch != now.epoch || !wire_id_equal(&claim.to, &engine->self)) return;
    struct neighbour *peer = neighbour_find(engine->lanes, &claim.from);
    if (peer == NULL || op_peer_of(peer)->member.rank == UINT32_MAX || !holds_links(peer, &claim)) return;
    struct slots *slots = &op_peer_of(peer)->slots;
    if (said->shared >= 0 && slots->other == NULL) // else blocks may lie in it
        slots->other = memory_shared_map(said->shared, SLOTS_BYTES);
    report_mapped(engine, peer);
}

void slots_take_claims(struct engine *engine) {
    engine_assert_thread(engine);
    struct rendezvous_claim said;
    for (int i = 0; i < CLAIMS_PER_TURN && rendezvous_take(engine->rendezvous, &said); i++) {
        engine_lock(engine);
        believe(engine, &said);
        engine_unlock(engine);
        descriptor_close(said.shared);
    }
}
