#include "data/core.h"

#include <string.h>

#include "base/platform.h"
#include "data/slots.h"
#include "data/algorithm.h"
#include "link/frame.h"
#include "data/service.h"
#include "device/device.h"
#include "net/rendezvous.h"
#include "link/connection.h"

// ---- frames of links ----
static bool route_locate_nothing(struct engine *engine, struct incoming *in) {
    (void)engine;
    return in->length == 0;
}

static bool route_locate_rendezvous(struct engine *engine, struct incoming *in) {
    (void)engine;
    in->to = in->note;
    return in->length == RENDEZVOUS_NAME_BYTES;
}

static bool route_take_rendezvous(struct engine *engine, struct incoming *in) {
    (void)engine;
    slots_announced(in->lane);
    return true;
}

// ---- frames by which members agree on ops ----
static bool locate_block(struct engine *engine, struct incoming *in) {
    in->block = block_new(engine->pool, in->length);
    if (in->block == NULL) return false;
    in->to = in->block->bytes;
    return true;
}

static bool route_locate_input(struct engine *engine, struct incoming *in) {
    return in->length <= PLAN_SMALL_MAX && locate_block(engine, in);
}

static bool route_locate_acks(struct engine *engine, struct incoming *in) {
    return in->length <= OP_ACKS_MAX * WIRE_ACK_BYTES && locate_block(engine, in);
}

// Each of these owns the block.
static bool route_hear_signal(struct engine *engine, struct incoming *in, struct block *block) {
    engine_assert_locked(engine);
    op_peer_of(in->from)->member.heard_ns = platform_now_ns();
    bool good = call_table_signal(&engine->call_table, &op_peer_of(in->from)->member, in->header.type, &in->head, block,
                                  block == NULL ? 0 : block->length);
    if (in->header.type == WIRE_READY || in->header.type == WIRE_GRANT) neighbour_schedule(in->from);
    return good;
}

// A large input that does not come in slots is one for which the sender had no free slots.
static bool route_hear_input(struct engine *engine, struct incoming *in, struct block *block) {
    if (block->length >= SLOTS_INPUT_LEAST) slots_return(engine, in->from);
    return route_hear_signal(engine, in, block);
}

static bool route_locate_in_slots(struct engine *engine, struct incoming *in) {
    (void)engine, (void)in;
    return true; // route_head does it
}

// From here on it is a SMALL like others.
static bool route_hear_in_slots(struct engine *engine, struct incoming *in, struct block *block) {
    block = slots_input(engine, in);
    in->header.type = WIRE_SMALL;
    return block != NULL && route_hear_signal(engine, in, block);
}

static bool route_hear_supply(struct engine *engine, struct incoming *in, struct block *block) {
    engine_assert_locked(engine);
    call_table_supplied(&engine->call_table, &in->head.supply.name, block);
    return true;
}

static bool route_hear_acks(struct engine *engine, struct incoming *in, struct block *block) {
    engine_assert_locked(engine);
    struct wire_op_name names[OP_ACKS_MAX];
    uint32_t count = 0;
    for (size_t at = 0; at + WIRE_ACK_BYTES <= block->length; at += WIRE_ACK_BYTES, count++)
        names[count] = wire_ack_decode(block->bytes + at);
    call_table_acked(&engine->call_table, &op_peer_of(in->from)->member, names, count, in->head.ack.leaving == 1);
    block_put(engine->pool, block);
    return true;
}

// ---- frames of ops under way ----
static bool is_of_member(const struct incoming *in) { return op_peer_of(in->from)->member.rank != UINT32_MAX; }

static struct op *find_running(const struct engine *engine, const struct incoming *in) {
    struct op *op = call_table_find_running(&engine->call_table, &in->head.op);
    return op != NULL && op->phase == OP_RUNNING ? op : NULL;
}

static bool route_locate_bulk(struct engine *engine, struct incoming *in) {
    struct op *op = find_running(engine, in);
    if (op == NULL || !wire_fingerprint_equal(&op->args.fingerprint, &in->head.op.fingerprint)) return true;
    const struct algorithm *algorithm = algorithm_of(op);
    if (in->header.type != algorithm->types[0] && in->header.type != algorithm->types[1]) return false;
    if (!algorithm->locate(engine, op, in)) return false;
    in->op = op;
    return true;
}

static bool route_take_bulk(struct engine *engine, struct incoming *in) {
    struct op *op = in->op;
    in->op = NULL;
    if (op == NULL) return true;
    bool good = algorithm_arrived(engine, op, in);
    if (good) algorithm_check(engine, op);
    return good;
}

// Is a CHUNK if its op runs here, and is kept otherwise.
static bool route_locate_early(struct engine *engine, struct incoming *in) {
    if (find_running(engine, in) == NULL) return in->length <= PACE_CHUNK_MAX && locate_block(engine, in);
    in->header.type = WIRE_CHUNK;
    return route_locate_bulk(engine, in);
}

static bool route_take_early(struct engine *engine, struct incoming *in) {
    engine_lock(engine);
    struct block *block = in->block;
    in->block = NULL;
    bool member = is_of_member(in), good = true;
    struct op *op = member ? find_running(engine, in) : NULL; // begun while the chunk came
    if (op == NULL && member)
        good = route_hear_signal(engine, in, block);
    else if (op == NULL)
        block_put(engine->pool, block);
    engine_unlock(engine);
    if (op == NULL) return good;
    good = algorithm_take_early(engine, op, in->from, &in->head, block);
    if (good) algorithm_check(engine, op);
    return good;
}

static bool route_take_taken(struct engine *engine, struct incoming *in) {
    engine_lock(engine);
    bool good = slots_returned(engine, in);
    engine_unlock(engine);
    return good;
}

// ---- frames of the service ----
static bool route_locate_for_service(struct engine *engine, struct incoming *in) {
    struct service *service = engine->service;
    if (in->header.epoch != 0 || in->header.run != engine_header(engine).run) return false;
    return service == NULL || service->type->locate(service, in);
}

static bool route_take_for_service(struct engine *engine, struct incoming *in) {
    struct service *service = engine->service;
    in->service = false;
    bool good = service == NULL || service->type->arrived(service, in);
    in->to = NULL;
    return good;
}

// ---- by type ----
struct owner {
    bool (*locate)(struct engine *engine, struct incoming *in);
    bool (*arrived)(struct engine *engine, struct incoming *in);
    // Instead of `arrived`, for members in the epoch in force.
    bool (*hear)(struct engine *engine, struct incoming *in, struct block *block);
};

static const struct owner *owner_of(uint16_t type) {
    static const struct owner owners[] = {
        [WIRE_READY] = {.locate = route_locate_nothing, .hear = route_hear_signal},
        [WIRE_POSTED] = {.locate = route_locate_nothing, .hear = route_hear_signal},
        [WIRE_SMALL] = {.locate = route_locate_input, .hear = route_hear_input},
        [WIRE_SMALL_IN] = {.locate = route_locate_in_slots, .hear = route_hear_in_slots},
        [WIRE_ACK] = {.locate = route_locate_acks, .hear = route_hear_acks},
        [WIRE_SUPPLY] = {.locate = route_locate_input, .hear = route_hear_supply},
        [WIRE_CHUNK] = {.locate = route_locate_bulk, .arrived = route_take_bulk},
        [WIRE_CODES] = {.locate = route_locate_bulk, .arrived = route_take_bulk},
        [WIRE_RESULT] = {.locate = route_locate_bulk, .arrived = route_take_bulk},
        [WIRE_GRANT] = {.locate = route_locate_nothing, .hear = route_hear_signal},
        [WIRE_MEMORY] = {.locate = route_locate_rendezvous, .arrived = route_take_rendezvous},
        [WIRE_CHUNK_IN] = {.locate = route_locate_bulk, .arrived = route_take_bulk},
        [WIRE_TAKEN] = {.locate = route_locate_nothing, .arrived = route_take_taken},
        [WIRE_EARLY] = {.locate = route_locate_early, .arrived = route_take_early},
        [WIRE_SYNC_ASK_HASHES] = {.locate = route_locate_for_service, .arrived = route_take_for_service},
        [WIRE_SYNC_HASHES] = {.locate = route_locate_for_service, .arrived = route_take_for_service},
        [WIRE_SYNC_ASK] = {.locate = route_locate_for_service, .arrived = route_take_for_service},
        [WIRE_SYNC_LEAF] = {.locate = route_locate_for_service, .arrived = route_take_for_service},
    };
    return type < sizeof owners / sizeof owners[0] && owners[type].locate != NULL ? &owners[type] : NULL;
}

// ---- events of the connections ----
static bool route_head(void *context, struct incoming *in) {
    struct engine *engine = context;
    engine_assert_locked(engine);
    const struct owner *owner = owner_of(in->header.type);
    if (owner == NULL) return false;
    in->stands_for_chunk = in->header.type == WIRE_CHUNK_IN;
    bool named = slots_are_named(in);
    if ((named && in->length != WIRE_SLOT_BYTES) || !owner->locate(engine, in)) return false;
    if (named) in->to = in->note; // also of a frame that is discarded: its slots are returned
    return true;
}

static bool deliver(struct engine *engine, struct incoming *in) {
    const struct owner *owner = owner_of(in->header.type);
    if (owner->hear == NULL) return owner->arrived(engine, in);
    engine_lock(engine);
    struct block *block = in->block;
    in->block = NULL;
    bool good = true;
    if (is_of_member(in))
        good = owner->hear(engine, in, block);
    else
        block_put(engine->pool, block);
    engine_unlock(engine);
    return good;
}

static bool route_frame(void *context, struct incoming *in) {
    struct engine *engine = context;
    in->slot = NULL;
    if (in->to != NULL && slots_are_named(in) && !slots_find(engine, in)) return false;
    bool good = deliver(engine, in);
    slots_release(engine, in);
    return good;
}

static struct frame *route_want(void *context, struct lane *lane, bool idle) {
    struct engine *engine = context;
    for (struct op *op = engine->running.first; op != NULL; op = op->next) {
        struct frame *frame = algorithm_of(op)->next(engine, op, lane, idle);
        if (frame != NULL) return frame;
    }
    struct service *service = engine->service;
    return service == NULL ? NULL : service->type->next(service, lane);
}

static void route_sent(void *context, const struct frame *frame) { algorithm_sent(context, frame); }

static void route_state(void *context, struct neighbour *peer, enum neighbour_change change) {
    struct engine *engine = context;
    if (change == NEIGHBOUR_NEW) {
        op_peer_of(peer)->member.id = peer->id;
        op_peer_of(peer)->member.rank = UINT32_MAX;
        return;
    }
    enum service_change told = change == NEIGHBOUR_LINK_UP     ? SERVICE_LINK_UP
                               : change == NEIGHBOUR_LINK_DOWN ? SERVICE_LINK_DOWN
                                                               : SERVICE_PEER_FREED;
    service_changed(engine, peer, told);
    if (change != NEIGHBOUR_FREED) return;
    call_table_forget(&engine->call_table, &op_peer_of(peer)->member);
    slots_end(&op_peer_of(peer)->slots);
}

static void route_lost(void *context, const struct wire_id *id, uint32_t index, uint64_t serial,
                       enum wire_link_reason reason) {
    struct engine *engine = context;
    engine_lock(engine);
    bool dead = engine->dead;
    engine_unlock(engine);
    if (!dead) engine->callbacks.link_down(engine->callbacks.context, id, index, serial, reason);
}

static bool route_keeps(void *context, const struct neighbour *peer) {
    const struct op_member *member = &op_peer_of(peer)->member;
    return member->rank != UINT32_MAX || engine_awaits(context, member);
}

// The owner's thread alone uses shared memory.
static bool route_may_share(void *context, const struct lane *lane) {
    (void)context;
    return !slots_may_come(lane);
}

static void route_wake(void *context) { engine_wake(context); }
static void route_refused(void *context) { engine_fail(context); }

const struct link_events route_events = {
    .head = route_head,
    .frame = route_frame,
    .want = route_want,
    .sent = route_sent,
    .state = route_state,
    .lost = route_lost,
    .keeps = route_keeps,
    .may_share = route_may_share,
    .wake = route_wake,
    .refused = route_refused,
};
