// What goes wrong, and when: drawn from the seed.
#include "sim/world.h"

#include <string.h>

enum {
    EFFECT_MOST_MS = 600, // of one fault
    APART_LIMITS = 6,     // heartbeat limits until a peer that was in a pair apart may be in another one
    BLOCK_MOST_MS = 3000,
    FLIPS_IN = 1500, // frames per changed bit
    BLOCKS_IN = 400, // events of a master or a peer per block in the middle of one
    BLOCKS_WEIGHTY_IN = 12,
    LATE_FAULTS = PCCL_SIM_FORK | PCCL_SIM_BLOCK | PCCL_SIM_MEMORY
};

// By themselves and for a third of the seeds only, so that the others stay what they were when these faults came.
static void draw_late_faults(struct pccl_sim *s) {
    uint64_t draw = sim_mix(s->config.seed ^ UINT64_C(0x6c6174650000dc35));
    if (s->config.faults != 0 || draw % 3 != 0) return;
    s->faults |= (1 + (uint32_t)(draw >> 8) % 7) * PCCL_SIM_FORK; // one of them at least
}

// Likewise.
static void draw_later_traits(struct pccl_sim *s) {
    uint64_t draw = sim_mix(s->config.seed ^ UINT64_C(0x7472616974735f31));
    s->prompt = draw % 4 == 0;
    s->in_part = (draw >> 8) % 4 == 0;
    if (s->config.faults == 0 && (draw >> 16) % 12 == 0)
        s->faults = (draw >> 32) % 4 == 0 ? PCCL_SIM_APART : s->faults | PCCL_SIM_APART;
}

void sim_draw_faults(struct pccl_sim *s) {
    const struct pccl_sim_config *config = &s->config;
    s->peers = config->peers != 0 ? config->peers : 2 + (uint32_t)sim_below(s, 4) + (uint32_t)sim_below(s, 4);
    s->limit_ns = (120 + (int64_t)sim_below(s, 200)) * MS_NS;
    s->user_timeout_ns = s->limit_ns;
    s->recovery_ms = sim_chance(s, 8) ? 0 : (uint32_t)((8 + (int64_t)sim_below(s, 8)) * s->limit_ns / MS_NS);
    s->fault_every_ns = (10 + (int64_t)sim_below(s, 120)) * MS_NS;
    s->faults = PCCL_SIM_CRASH | PCCL_SIM_BREAK;
    for (uint32_t bit = 1; bit <= PCCL_SIM_MASTER; bit *= 2) {
        if (sim_chance(s, bit == PCCL_SIM_FLIP ? 6 : bit == PCCL_SIM_MASTER ? 4 : 2)) s->faults |= bit;
    }
    if (config->faults != 0) s->faults = config->faults;
    draw_late_faults(s);
    draw_later_traits(s);
    // A list of masters is drawn by itself, so that the other seeds stay what they are.
    uint64_t list = sim_mix(config->seed ^ UINT64_C(0x6d617374657273)) % 8;
    s->master_count = config->masters != 0                                             ? config->masters
                      : (s->faults & (PCCL_SIM_MASTER | LATE_FAULTS)) == 0 || list < 3 ? 1
                      : list < 7                                                       ? 2
                                                                                       : 3;
    if (s->master_count > MASTERS_MOST) s->master_count = MASTERS_MOST;
    for (uint32_t i = 0; i < s->master_count; i++)
        s->addresses[i] = (struct wire_address){.family = 4, .bytes = {10, 0, 1, (uint8_t)(i + 1)}, .port = 48148};
    // And so are naps of a single master.
    uint64_t naps = sim_mix(config->seed ^ UINT64_C(0x6e617073)) % 12;
    s->only_naps = s->master_count == 1 && config->faults == 0 && naps == 0;
    if (s->only_naps) s->faults = PCCL_SIM_STALL;
    s->naps = s->master_count == 1 && (s->faults & PCCL_SIM_STALL) != 0 && naps < 4;
    if (s->only_naps && s->recovery_ms == 0) s->recovery_ms = (uint32_t)(8 * s->limit_ns / MS_NS);
    s->nap_from = 0;
    s->only_apart = s->faults == PCCL_SIM_APART;
    int64_t length = config->fault_ms != 0 ? config->fault_ms : 300 + (int64_t)sim_below(s, 900);
    s->end_at = s->now + length * MS_NS;
}

// The effects of a fault on this process are over at `until`.
static void touch(struct pccl_sim *s, int64_t until) {
    if (until > s->calm_from) s->calm_from = until;
}

static void cut(struct pccl_sim *s, int from, int to, int64_t until) {
    if (from == to || s->cut_until[from][to] >= until) return;
    s->cut_until[from][to] = until;
    if (from < MASTER && to < MASTER && until > s->now + s->user_timeout_ns + 20 * MS_NS) sim_fall_silent(s, from, to);
}

static int64_t draw_duration(struct pccl_sim *s) {
    return (int64_t)sim_below(s, sim_chance(s, 2) ? (uint64_t)s->limit_ns : EFFECT_MOST_MS * MS_NS);
}

// Without a draw where there is one.
static uint32_t draw_master(struct pccl_sim *s) {
    return s->master_count > 1 ? (uint32_t)sim_below(s, s->master_count) : 0;
}

static void stall(struct pccl_sim *s) {
    bool master = sim_chance(s, s->master_count > 1 ? 3 : 10);
    struct process *p = &s->processes[sim_below(s, s->peers)];
    uint32_t k = draw_master(s);
    int64_t until = s->now + draw_duration(s);
    int64_t *stopped = master ? &s->masters[k].stopped_until : &p->stopped_until;
    if (s->now < *stopped) return; // waking it earlier would reorder what waits for it
    *stopped = until;
    s->counts[COUNT_STALLS]++;
    touch(s, until);
    SIM_TRACE(s, "fault: %s %d stands still for %lld ms", master ? "master" : "peer",
              master ? (int)k + 1 : (int)(p - s->processes) + 1, (long long)((until - s->now) / MS_NS));
}

// Long enough for peers to leave it, often just about. Between two of them there is time to come back.
static void nap(struct pccl_sim *s) {
    int64_t least = s->limit_ns * 6 / 10,
            until = s->now + least +
                    (int64_t)sim_below(s, (uint64_t)(sim_chance(s, 2) ? s->limit_ns : 5 * s->limit_ns / 2));
    if (s->now < s->nap_from || s->now < s->masters[0].stopped_until || !s->masters[0].running) return;
    s->masters[0].stopped_until = until;
    s->nap_from = until + s->limit_ns;
    s->counts[COUNT_STALLS]++;
    touch(s, until + NAP_SKEW_MS * MS_NS);
    SIM_TRACE(s, "fault: the master stands still for %lld ms", (long long)((until - s->now) / MS_NS));
}

static void slow_down(struct pccl_sim *s) {
    int from = (int)sim_below(s, s->peers),
        to = sim_chance(s, 3) ? MASTER + (int)draw_master(s) : (int)sim_below(s, s->peers);
    int64_t until = s->now + draw_duration(s);
    s->slow_until[from][to] = s->slow_until[to][from] = until;
    s->counts[COUNT_DELAYS]++;
    touch(s, until);
    SIM_TRACE(s, "fault: the path between %d and %d is slow", from + 1, to + 1);
}

static void break_link(struct pccl_sim *s) {
    for (uint32_t tries = 0; tries < 50 && s->connection_high > 0; tries++) {
        uint32_t i = (uint32_t)sim_below(s, s->connection_high);
        const struct connection *c = &s->connections[i];
        if (!c->used || c->broken) continue;
        s->counts[COUNT_BREAKS]++;
        SIM_TRACE(s, "fault: link %u between %d and %d is reset", c->index, c->ends[0] + 1, c->ends[1] + 1);
        sim_break(s, i);
        return;
    }
}

static bool is_there(const struct pccl_sim *s, int place) {
    return place < MASTER ? place < (int)s->peers : place < MASTER + (int)s->master_count;
}

// Two sides, each with its masters; of the first `places` only.
static void cut_in_two(struct pccl_sim *s, uint32_t peers, uint32_t masters, int places, int64_t until) {
    uint64_t side = peers | (uint64_t)masters << MASTER;
    for (int a = 0; a < places; a++)
        for (int b = 0; b < places; b++)
            if (is_there(s, a) && is_there(s, b) && (side >> a & 1) != (side >> b & 1)) cut(s, a, b, until);
}

static void partition(struct pccl_sim *s) {
    uint32_t side = (uint32_t)sim_below(s, 1U << s->peers), masters = 0;
    bool with_master = sim_chance(s, 2);
    int64_t until = s->now + draw_duration(s);
    cut_in_two(s, side, 0, MASTER, until);
    for (uint32_t k = 1; k < s->master_count && with_master; k++) masters |= (uint32_t)sim_chance(s, 2) << k;
    if (with_master) cut_in_two(s, side, masters, PROCESSES, until);
    s->counts[COUNT_PARTITIONS]++;
    touch(s, until);
    SIM_TRACE(s, "fault: partition, peers %x on one side, the master %s, for %lld ms", side,
              with_master ? "on the other" : "reaches all", (long long)((until - s->now) / MS_NS));
}

void sim_admission_fault(struct pccl_sim *s, uint32_t k, const struct membership_actions *actions) {
    struct wire_epoch_commit commit = {.epoch.members = s->members};
    struct wire_header header;
    if (!s->faulty || s->master_count == 1 || (s->faults & PCCL_SIM_PARTITION) == 0 || actions->send_count < 2) return;
    const uint8_t *frame = actions->bytes.bytes + actions->sends[actions->send_count - 1].offset;
    bool admits = wire_header_decode(frame, &header) && header.type == WIRE_EPOCH &&
                  wire_decode_epoch_commit(frame + WIRE_HEADER_BYTES, header.length, &commit) &&
                  commit.reason == WIRE_REASON_UPDATE;
    // Drawn by itself, so that what goes wrong otherwise stays what it is.
    uint64_t draw = sim_mix(s->config.seed ^ sim_mix(header.epoch) ^ UINT64_C(0x61646d6974));
    if (!admits || draw % 2 != 0) return;
    uint32_t before = 0, far = (uint32_t)(draw >> 8) & ((1U << s->peers) - 1);
    for (int slot = 0; slot < (int)s->peers; slot++)
        before |= (uint32_t)(judge_truth(s, header.run)->lives[slot] != 0) << slot;
    if ((draw >> 32 & 3) != 0) far &= before;
    // to seek, and to be waited for, takes two
    int64_t until = s->now + 2 * s->limit_ns + (int64_t)((draw >> 34) % (uint64_t)(4 * s->limit_ns));
    cut_in_two(s, far, ~(1U << k), PROCESSES, until);
    s->counts[COUNT_PARTITIONS]++;
    touch(s, until);
    SIM_TRACE(s, "fault: partition while newcomers are let in, peers %x on the side of the other masters, for %lld ms",
              far, (long long)((until - s->now) / MS_NS));
}

// Two peers that reach everybody else lose their links to each other, and can make no others. A peer is in one such
// pair at a time.
static void set_apart(struct pccl_sim *s) {
    int a = (int)sim_below(s, s->peers), b = (int)sim_below(s, s->peers);
    int64_t until = sim_chance(s, 3) ? s->now + draw_duration(s) : s->faults_end;
    if (a == b || s->now < s->apart[a].until + APART_LIMITS * s->limit_ns ||
        s->now < s->apart[b].until + APART_LIMITS * s->limit_ns || until < s->now)
        return;
    s->apart[a].other = b + 1;
    s->apart[b].other = a + 1;
    s->apart[a].until = s->apart[b].until = until;
    s->apart[a].cost = s->apart[b].cost = 0;
    cut(s, a, b, until);
    cut(s, b, a, until);
    for (uint32_t i = 0; i < s->connection_high; i++) {
        const struct connection *c = &s->connections[i];
        if ((c->ends[0] == a && c->ends[1] == b) || (c->ends[0] == b && c->ends[1] == a)) sim_break(s, i);
    }
    s->counts[COUNT_APARTS]++;
    touch(s, until);
    SIM_TRACE(s, "fault: peers %d and %d cannot reach each other for %lld ms", a + 1, b + 1,
              (long long)((until - s->now) / MS_NS));
}

static void silence_one_way(struct pccl_sim *s) {
    int from = (int)sim_below(s, s->peers + 1);
    if (from == (int)s->peers) from = MASTER + (int)draw_master(s);
    int64_t until = s->now + draw_duration(s);
    for (int to = 0; to < (int)s->peers; to++)
        if (sim_chance(s, 2)) cut(s, from, to, until);
    if (sim_chance(s, 2)) cut(s, from, MASTER + (int)draw_master(s), until);
    s->counts[COUNT_ONE_WAYS]++;
    touch(s, until);
    SIM_TRACE(s, "fault: %s %d is not heard by some, for %lld ms", from >= MASTER ? "master" : "peer",
              from >= MASTER ? from - MASTER + 1 : from + 1, (long long)((until - s->now) / MS_NS));
}

// Somebody else has to be there, or to come.
static bool may_rest(const struct pccl_sim *s, uint32_t k) {
    for (uint32_t other = 0; other < s->master_count; other++)
        if (other != k && s->masters[other].running) return true;
    return false;
}

void sim_master_fault(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    if (!master->running) return;
    s->counts[COUNT_MASTERS]++;
    sim_end_master(s, k);
    if (s->master_count > 1 && may_rest(s, k) && sim_chance(s, 2)) {
        master->rests = true;
        touch(s, s->now);
        return;
    }
    int64_t after = sim_chance(s, 2) ? 0 : draw_duration(s);
    touch(s, s->now + after);
    struct event *event = sim_event(s, EVENT_MASTER_STARTS, s->now + after);
    event->from = (uint8_t)k;
    sim_push(s, event);
}

// A process ends, but a child that it forked lives on for a while with all its connections.
static void end_held(struct pccl_sim *s, int slot) {
    int64_t until = s->now + draw_duration(s);
    bool master = sim_chance(s, 6);
    uint32_t k = draw_master(s);
    if (master ? !s->masters[k].running : !s->processes[slot].running) return;
    s->counts[COUNT_HELD]++;
    touch(s, until);
    struct event *event = sim_event(s, master ? EVENT_MASTER_LET_GO : EVENT_LET_GO, until);
    event->slot = (uint8_t)slot;
    event->life = s->processes[slot].life;
    event->from = (uint8_t)k;
    sim_push(s, event);
    if (master)
        sim_hold_master(s, k);
    else
        sim_end_held(s, slot);
}

// From some allocation on, once or several times.
static void refuse_memory(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    uint32_t k = draw_master(s);
    struct shortage *shortage = sim_chance(s, 2) ? &s->masters[k].shortage : &p->shortage;
    shortage->granted = (uint32_t)sim_below(s, sim_chance(s, 2) ? 4 : 24);
    shortage->times = sim_chance(s, 2) ? 1 : 1 + (uint32_t)sim_below(s, 12);
    SIM_TRACE(s, "fault: after %u more allocations %u are refused to %s %d", shortage->granted, shortage->times,
              shortage == &p->shortage ? "peer" : "master", shortage == &p->shortage ? slot + 1 : (int)k + 1);
}

void sim_refused(struct pccl_sim *s) {
    s->counts[COUNT_REFUSALS]++;
    touch(s, s->now);
    SIM_TRACE(s, "fault: memory is refused");
}

int64_t sim_block_fault(struct pccl_sim *s, bool weighty) {
    if (!s->faulty || (s->faults & PCCL_SIM_BLOCK) == 0 || !sim_chance(s, weighty ? BLOCKS_WEIGHTY_IN : BLOCKS_IN))
        return 0;
    int64_t blocked = sim_chance(s, 8) ? (int64_t)sim_below(s, BLOCK_MOST_MS * MS_NS) : draw_duration(s);
    s->counts[COUNT_BLOCKS]++;
    touch(s, s->now + blocked + NAP_SKEW_MS * MS_NS);
    return blocked + MS_NS;
}

static void late_fault(struct pccl_sim *s, int slot) {
    if ((s->faults & PCCL_SIM_MEMORY) != 0 && ((s->faults & PCCL_SIM_FORK) == 0 || sim_chance(s, 2)))
        refuse_memory(s, slot);
    else if ((s->faults & PCCL_SIM_FORK) != 0)
        end_held(s, slot);
}

void sim_fault(struct pccl_sim *s) {
    int slot = (int)sim_below(s, s->peers);
    uint32_t kind = 1U << sim_below(s, 12);
    bool late = (s->faults & LATE_FAULTS) != 0 && sim_chance(s, 2);
    bool apart = (s->faults & PCCL_SIM_APART) != 0 && sim_chance(s, 4);
    bool naps = !late && !apart && s->naps && sim_chance(s, 4);
    touch(s, s->now);
    if (apart)
        set_apart(s);
    else if (late)
        late_fault(s, slot);
    else if (naps)
        nap(s);
    else if ((s->faults & kind) != 0 && !s->only_naps)
        switch (kind) {
        case PCCL_SIM_CRASH:
            s->counts[COUNT_CRASHES] += s->processes[slot].running;
            sim_end(s, slot, true);
            break;
        case PCCL_SIM_POWER_OFF:
            s->counts[COUNT_POWER_OFFS] += s->processes[slot].running;
            sim_end(s, slot, false);
            break;
        case PCCL_SIM_STALL: stall(s); break;
        case PCCL_SIM_DELAY: slow_down(s); break;
        case PCCL_SIM_BREAK: break_link(s); break;
        case PCCL_SIM_PARTITION: partition(s); break;
        case PCCL_SIM_ONE_WAY: silence_one_way(s); break;
        case PCCL_SIM_MASTER:
            if (sim_chance(s, 3)) sim_master_fault(s, draw_master(s));
            break;
        default: break; // where it happens: in connects, programs and frames
        }
    if (s->faulty)
        sim_push(s, sim_event(s, EVENT_FAULT, s->now + (int64_t)sim_below(s, 2 * (uint64_t)s->fault_every_ns)));
}

bool sim_flip(struct pccl_sim *s, struct control *control, struct event *event) {
    if (!s->faulty || (s->faults & PCCL_SIM_FLIP) == 0 || !sim_chance(s, FLIPS_IN)) return false;
    if (!sim_alive(s, control->slot, control->life) || s->processes[control->slot].tainted) return false;
    uint8_t header[WIRE_HEADER_BYTES];
    wire_header_encode(header, &event->header);
    uint64_t bit = sim_below(s, 8 * (WIRE_HEADER_BYTES + (uint64_t)event->header.length));
    if (bit < 8 * WIRE_HEADER_BYTES)
        header[bit / 8] ^= (uint8_t)(1U << bit % 8);
    else
        event->body[bit / 8 - WIRE_HEADER_BYTES] ^= (uint8_t)(1U << bit % 8);
    uint32_t length = event->header.length;
    // the master's may be another one
    if (event->header.type == WIRE_HELLO || event->header.type == WIRE_RESUME) control->group = UINT32_MAX;
    s->counts[COUNT_FLIPS]++;
    SIM_TRACE(s, "fault: bit %llu of a %s of %d %s the master changes", (unsigned long long)bit,
              wire_type_name(event->header.type), control->slot + 1, event->kind == EVENT_TO_MASTER ? "to" : "from");
    // Such a machine is taken out of service soon; until then nothing that it says is judged.
    s->processes[control->slot].tainted = true;
    s->tainted[control->slot] = control->life;
    sim_push_for(s, control->slot, EVENT_TAKEN_OUT, s->now + (int64_t)sim_below(s, 2 * (uint64_t)s->limit_ns));
    bool valid = wire_header_decode(header, &event->header);
    event->flag = !valid || event->header.length != length;
    return event->flag;
}
