// The data plane with neighbours that send whatever they like on links that were accepted: any frames of ops, whole,
// cut or torn, while ops are launched, committed, aborted and awaited and epochs come and go. Nobody's memory but what
// an op owns may be touched, and that only until it is awaited; what was sent is unchanged, and so are the residuals
// that an op adds, and after an error, what was reduced in place.
#include "bottle.h"

#include <pccl.h>

#include "compute/codec.h"
#include "net/rendezvous.h"
#include "link/pace.h"
#include "events.h"

enum { TAGS = 3 };

struct call {
    bool live, in_place, retry;
    size_t bytes;
    uint8_t *send, *recv; // recv == send: in place
    uint8_t *input;       // as launched
    uint8_t *residual_in; // as `input`; NULL: no error feedback
    uint8_t *residual_out;
};

static struct fuzz in;
static struct engine *engine;
static struct call calls[TAGS];
static uint64_t adopted;

static void on_frame(const struct wire_header *header, const uint8_t *body) {
    static struct wire_op_report ops[2 * WIRE_MAX_LIVE_OPS];
    struct wire_op_done done;
    struct wire_mismatch mismatch;
    struct wire_report report = {.ops = ops};
    struct wire_telemetry telemetry;
    if (header->type == WIRE_DONE)
        MUST(wire_decode_op_done(body, header->length, &done) &&
             done.name.epoch == engine->call_table.now->group_epoch);
    else if (header->type == WIRE_REPORT)
        MUST(wire_decode_report(body, header->length, &report) && header->epoch == engine->call_table.now->group_epoch);
    else if (header->type == WIRE_TELEMETRY)
        MUST(wire_decode_telemetry(body, header->length, &telemetry));
    else
        MUST(header->type == WIRE_MISMATCH && wire_decode_mismatch(body, header->length, &mismatch));
}
static void to_master(void *context, const struct wire_buffer *frames) {
    (void)context;
    bottle_told(frames, on_frame);
}
static void on_failed(void *context, const char *why) { (void)context, (void)why; }

static void on_link_down(void *context, const struct wire_id *id, uint32_t index, uint64_t serial,
                         enum wire_link_reason reason) {
    (void)context, (void)id, (void)index, (void)serial, (void)reason;
}

// ---- calls ----
static void free_call(struct call *call) {
    if (!call->in_place) free(call->recv);
    free(call->send);
    free(call->input);
    free(call->residual_in);
    free(call->residual_out);
    call->live = false;
}

// `what`: the codec in bits 5 and 6, the block in bits 0 to 2, stochastic rounding in bit 3.
static void quantise_in_blocks(struct call_args *reduce, uint32_t what) {
    static const uint8_t kinds[] = {CODEC_BLOCK_INT8, CODEC_BLOCK_INT4, CODEC_BLOCK_E3M0, CODEC_BLOCK_INT8};
    reduce->fingerprint.codec = (uint8_t)(kinds[what >> 5 & 3] + (what & 7));
    reduce->stochastic = what & 8;
    reduce->rounding.seed = what;
}

static void give_residuals(struct call_args *reduce, struct call *call) {
    call->residual_in = fuzz_copy(call->input, call->bytes);
    call->residual_out = fuzz_copy(call->input, call->bytes);
    reduce->residual_in = (const float *)(const void *)call->residual_in;
    reduce->residual_out = (float *)(void *)call->residual_out;
    reduce->fingerprint.op &= 1; // pcclSum or pcclAvg
}

static void post(void) {
    static const uint32_t counts[] = {0, 1, 100, 3001, 17, 64, 33, 500};
    uint32_t tag = fuzz_below(&in, TAGS), how = fuzz_u8(&in), what = fuzz_u8(&in);
    struct call *call = &calls[tag];
    if (call->live) return;
    *call = (struct call){.in_place = how & 1, .retry = how & 2};
    uint64_t count = counts[how >> 4 & 7];
    // Seldom, since they take their time: never small, and divided.
    if (what == 0xfe) count = PLAN_SMALL_MAX / sizeof(float) + 1;
    if (what == 0xff && call->retry) count = (plan_segmented_min + 100) / sizeof(float);
    struct call_args reduce = {.tag = tag,
                               .retry = call->retry,
                               .tell = how & 4,
                               .fingerprint = {.count = count, .dtype = pcclFloat, .op = (uint8_t)(what % 5)}};
    bool in_blocks = (how & 8) && (what & 0x10);
    if (in_blocks) {
        quantise_in_blocks(&reduce, what);
    } else if (how & 8) {
        static const uint8_t by_zero[] = {CODEC_ZERO_UINT8, CODEC_ZERO_INT8, CODEC_ZERO_UINT16, CODEC_MINMAX_UINT32},
                             min_max[] = {CODEC_MINMAX_UINT8, CODEC_MINMAX_INT8, CODEC_MINMAX_UINT16,
                                          CODEC_MINMAX_UINT32};
        reduce.fingerprint.codec = (what & 0x80 ? min_max : by_zero)[what >> 5 & 3];
    }
    call->bytes = count * sizeof(float);
    call->input = malloc(call->bytes + 1);
    if (call->input == NULL) return;
    memset(call->input, (int)(0x40 + tag), call->bytes);
    call->send = fuzz_copy(call->input, call->bytes);
    call->recv = call->in_place ? call->send : fuzz_copy(call->input, call->bytes);
    reduce.send = call->send;
    reduce.recv = call->recv;
    if (in_blocks && (how & 0x80)) give_residuals(&reduce, call);
    call->live = engine_post(engine, &reduce, adopted) == CALL_OK;
    if (!call->live) free_call(call);
}

static void check_and_free(struct call *call, bool good) {
    if (!call->in_place) MUST(memcmp(call->send, call->input, call->bytes) == 0);
    // In retry mode ranges of it may hold results.
    if (call->in_place && !call->retry && !good) MUST(memcmp(call->recv, call->input, call->bytes) == 0);
    if (call->residual_in != NULL) MUST(memcmp(call->residual_in, call->input, call->bytes) == 0);
    free_call(call);
}

static void take(uint32_t tag) {
    struct call_outcome outcome;
    engine_wait(engine, tag, 0, &outcome);
    if (outcome.result == CALL_IN_PROGRESS) return;
    free(outcome.contributors);
    MUST((outcome.result == CALL_UNKNOWN) == !calls[tag].live);
    if (outcome.result == CALL_LOST && !outcome.retry) adopted = outcome.epoch > adopted ? outcome.epoch : adopted;
    if (calls[tag].live) check_and_free(&calls[tag], outcome.result == CALL_OK);
}

// The name of what runs under this tag, or of what would.
static struct wire_op_name name_of(uint32_t tag, uint32_t segment) {
    struct wire_op_name name = {engine->call_table.now->group_epoch, tag, 1, 0, 0};
    for (struct op *op = engine->call_table.table[tag_slot(tag)]; op != NULL; op = op->chain)
        if (op->name.sequence != 0 && op->args.tag == tag && (op->parent == NULL || op->name.segment == segment))
            return op->name;
    return name;
}

static const struct op *op_of(uint32_t tag, uint32_t segment) {
    for (const struct op *op = engine->call_table.table[tag_slot(tag)]; op != NULL; op = op->chain)
        if (op->segments == NULL && op->args.tag == tag && (op->parent == NULL || op->name.segment == segment))
            return op;
    return NULL;
}

static void verdict(void) {
    static struct wire_verdict message;
    uint32_t tag = fuzz_below(&in, TAGS), kind = fuzz_below(&in, 5), how = fuzz_u8(&in);
    message = (struct wire_verdict){
        .name = name_of(tag, how >> 4), .kind = (uint8_t)(kind + WIRE_VERDICT_COMMIT), .text = {3, "why"}};
    if (how & 1) message.supplier = bottle_id(how >> 1 & 3);
    if (how & 8) message.needy[message.count++] = bottle_id(1);
    if (how & 4) message.name.epoch += fuzz_below(&in, 3) - 1u;
    engine_verdict(engine, &message);
}

// ---- frames ----
// As it should be, from here on.
static size_t right_payload(uint16_t type, const struct op *op, struct wire_head *head) {
    if (type == WIRE_MEMORY) return RENDEZVOUS_NAME_BYTES;
    if (type == WIRE_ACK) return WIRE_ACK_BYTES;
    if (op == NULL || engine->call_table.now->ring.count == 0) return 0;
    if (type == WIRE_SMALL || type == WIRE_SUPPLY) return op->bytes;
    const struct team *team = engine->call_table.team; // no call here names a list
    if (team == NULL || team->epoch != engine->call_table.now) return 0;
    bool chunks = type == WIRE_CHUNK || type == WIRE_EARLY || type == WIRE_CHUNK_IN;
    uint32_t owner = chunks ? head->chunk.shard : head->block.shard;
    struct plan_range shard = plan_weights_shard(team->weights, op->count, team->count, owner % team->count);
    if (chunks) {
        struct wire_chunk *chunk = &head->chunk;
        chunk->offset += shard.begin;
        if (chunk->offset >= shard.end) chunk->offset = shard.begin;
        uint64_t elements = shard.end - chunk->offset, most = PACE_CHUNK_MAX / op->element;
        size_t bytes = (elements < most ? elements : most) * op->element;
        if (type == WIRE_CHUNK || type == WIRE_EARLY) return bytes;
        chunk->bytes = (uint32_t)bytes;
        return WIRE_SLOT_BYTES;
    }
    if (type == WIRE_CODES || type == WIRE_RESULT) {
        uint64_t begin = shard.begin + head->block.index * CODEC_PIECE;
        uint64_t elements = begin < shard.end ? shard.end - begin : 0;
        const struct codec *codec = codec_find(op->args.fingerprint.codec);
        if (elements > CODEC_PIECE) elements = CODEC_PIECE;
        return codec == NULL ? elements * op->element : codec_bytes(codec, op->args.fingerprint.dtype, elements);
    }
    return 0;
}

static void change(struct wire_header *header, struct wire_head *head, size_t *length) {
    uint64_t value;
    switch (fuzz_below(&in, 15)) {
    case 0: header->epoch = engine->call_table.now->group_epoch + fuzz_below(&in, 4) - 1; break;
    case 1: header->run = fuzz_u8(&in); break;
    case 2: head->op.tag = fuzz_number(&in); break;
    case 3: head->op.fingerprint.count = fuzz_number(&in); break;
    case 4: head->op.fingerprint.dtype = fuzz_u8(&in); break;
    case 5: head->op.fingerprint.mode = fuzz_u8(&in); break;
    case 6: head->op.fingerprint.codec = fuzz_u8(&in); break;
    case 7: head->op.segment = (uint16_t)fuzz_number(&in); break;
    case 8: head->op.sequence += (uint32_t)fuzz_number(&in); break;
    case 9:
    case 10:
    case 11:
    case 12: fuzz_change(&in, &head->ready, sizeof *head - offsetof(struct wire_head, ready)); break;
    case 13:
        value = fuzz_number(&in) * sizeof(float);
        *length = value < WIRE_MAX_DATA_BYTES ? value : WIRE_MAX_DATA_BYTES;
        break;
    default: *length += fuzz_below(&in, 3) - (*length > 0); break;
    }
}

static struct wire_head head_of(uint16_t type, const struct wire_op_name *name, uint32_t where) {
    struct wire_head head;
    memset(&head, 0, sizeof head);
    head.op = (struct wire_op){.tag = name->tag, .segment = name->segment, .sequence = name->sequence};
    if (type == WIRE_SUPPLY) head.supply.name = *name;
    if (type == WIRE_CODES || type == WIRE_RESULT) head.block.shard = where & 3;
    if (type == WIRE_CHUNK || type == WIRE_CHUNK_IN || type == WIRE_EARLY)
        head.chunk = (struct wire_chunk){.shard = where & 3, .hop = where >> 2 & 7, .down = where >> 2 & 1};
    return head;
}

// Where in the tensor, or how far.
static void set_place(uint16_t type, struct wire_head *head, uint64_t place) {
    switch (type) {
    case WIRE_READY: head->ready.expected = place; break;
    case WIRE_GRANT: head->grant.blocks = place; break;
    case WIRE_SUPPLY: head->supply.name.epoch = place; break;
    case WIRE_TAKEN: head->taken.slots = (uint32_t)place; break;
    case WIRE_CODES:
    case WIRE_RESULT: head->block.index = place; break;
    case WIRE_CHUNK:
    case WIRE_CHUNK_IN:
    case WIRE_EARLY: head->chunk.offset = place; break;
    default: break;
    }
}

static void frame(void) {
    static const uint16_t types[] = {WIRE_READY,    WIRE_POSTED,         WIRE_GRANT,    WIRE_SMALL,  WIRE_SUPPLY,
                                     WIRE_ACK,      WIRE_CHUNK,          WIRE_CODES,    WIRE_RESULT, WIRE_MEMORY,
                                     WIRE_SMALL_IN, WIRE_LINK_HEARTBEAT, WIRE_CHUNK_IN, WIRE_TAKEN,  WIRE_EARLY};
    static uint8_t payload[WIRE_MAX_DATA_BYTES + 8];
    uint32_t link = fuzz_u8(&in), kind = fuzz_below(&in, 16), tag = fuzz_below(&in, TAGS), where = fuzz_u8(&in),
             how = fuzz_u8(&in);
    struct wire_header header = {.run = 7, .generation = 1, .epoch = engine->call_table.now->group_epoch};
    header.type = kind < sizeof types / sizeof types[0] ? types[kind] : (uint16_t)fuzz_u8(&in);
    struct wire_op_name name = name_of(tag, where >> 5);
    const struct op *op = op_of(tag, where >> 5);
    struct wire_head head = head_of(header.type, &name, where);
    if (op != NULL) head.op.fingerprint = op->args.fingerprint;
    if (header.type == WIRE_READY && (how & 1))
        head.ready = (struct wire_ready){.granted = 64, .in_slots = how >> 1 & 1};
    if (how & 2) set_place(header.type, &head, fuzz_number(&in));
    size_t length = right_payload(header.type, op, &head);
    for (uint32_t changes = how >> 2 & 3; changes > 0; changes--) change(&header, &head, &length);
    if (length > WIRE_MAX_DATA_BYTES) length = WIRE_MAX_DATA_BYTES;
    size_t own = how >> 4 & 7; // of the payload, from the program; the rest is all the same
    memset(payload, 0x3f, length);
    if (header.type == WIRE_ACK && length >= WIRE_ACK_BYTES) {
        memcpy(payload, &name.epoch, 8);
        memcpy(payload + 8, &name.tag, 8);
        memcpy(payload + 16, &name.sequence, 4);
    }
    if (header.type == WIRE_CHUNK_IN || header.type == WIRE_SMALL_IN) {
        wire_slot_encode(payload, where & 15, header.epoch);
        if (header.type == WIRE_SMALL_IN && op != NULL) head.small_in.bytes = (uint32_t)op->bytes;
        if (header.type == WIRE_SMALL_IN && length == 0) length = WIRE_SLOT_BYTES;
    }
    if (own > 0) fuzz_bytes(&in, payload, length < own * 8 ? length : own * 8);
    size_t cut = how & 0x80 ? 1 + fuzz_u8(&in) * (size_t)(fuzz_below(&in, 2) ? 1 : length / 256) : 0;
    bottle_frame(1 + link % (BOTTLE_PEERS - 1), link / 2 % BOTTLE_LANES, &header, &head, payload, length, cut);
}

static void raw(void) {
    uint8_t bytes[64];
    uint32_t link = fuzz_u8(&in);
    size_t length = fuzz_below(&in, sizeof bytes);
    fuzz_bytes(&in, bytes, length);
    bottle_send(1 + link % (BOTTLE_PEERS - 1), link / 2 % BOTTLE_LANES, bytes, length);
}

// ---- programs ----
static void enter(void) {
    uint32_t how = fuzz_u8(&in);
    bottle_enter(engine, how & 7, how >> 3 & 3, how & 0x20, how & 0x40 ? 1000 : 1);
    adopted = how & 0x80 ? adopted : bottle_epoch;
}

static void link_all(void) {
    for (uint32_t peer = 1; peer < BOTTLE_PEERS; peer++)
        for (uint32_t i = 0; i < BOTTLE_LANES; i++) bottle_link(engine, peer, i);
}

static void act(uint32_t event) {
    uint32_t link;
    struct wire_id id;
    switch (event) {
    case E_POST: post(); break;
    case E_TAKE: take(fuzz_below(&in, TAGS)); break;
    case E_VERDICT: verdict(); break;
    case E_FRAME: frame(); break;
    case E_RAW: raw(); break;
    case E_ENTER: enter(); break;
    case E_READY:
        if (bottle_epoch > 0) engine_links_ready(engine, bottle_epoch);
        break;
    case E_LINK:
        link = fuzz_u8(&in);
        bottle_link(engine, 1 + link % (BOTTLE_PEERS - 1), link / 2 % BOTTLE_LANES);
        break;
    case E_LINK_ALL: link_all(); break;
    case E_CLOSE:
        link = fuzz_u8(&in);
        bottle_close(1 + link % (BOTTLE_PEERS - 1), link / 2 % BOTTLE_LANES);
        break;
    case E_DROP:
        id = bottle_id(1 + fuzz_below(&in, BOTTLE_PEERS - 1));
        engine_drop_peer(engine, &id);
        break;
    case E_WAIT: bottle_now += (int64_t)fuzz_u8(&in) * 10 * MS_NS; break;
    case E_WATCH: engine_set_silence(engine, SECOND_NS); break;
    case E_SETTLE: engine_drain(engine, 0); break;
    case E_KILL: engine_kill(engine); break;
    case E_REFUSE: fuzz_refuse(1 + fuzz_u8(&in)); break;
    case E_WEIGHTS:
        link = fuzz_u8(&in);
        bottle_weights(link, fuzz_u8(&in));
        break;
    default: break;
    }
}

static bool step(void) {
    uint32_t event = NEXT_AT_ONCE;
    while (fuzz_more(&in) && (event & NEXT_AT_ONCE)) {
        event = fuzz_u8(&in);
        act((event & ~(uint32_t)NEXT_AT_ONCE) % E_EVENTS);
    }
    return fuzz_more(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct engine_callbacks callbacks = {.to_master = to_master, .link_down = on_link_down, .failed = on_failed};
    in = (struct fuzz){data, data + size};
    plan_segmented_min = 4 * PLAN_SEGMENT_MIN;
    adopted = 0;
    memset(calls, 0, sizeof calls);
    engine = bottle_new(&callbacks, NULL);
    bottle_run(engine, step);
    fuzz_refuse(0);
    for (uint32_t tag = 0; tag < TAGS; tag++) take(tag);
    bottle_free(engine);
    for (uint32_t tag = 0; tag < TAGS; tag++) MUST(!calls[tag].live);
    return 0;
}
