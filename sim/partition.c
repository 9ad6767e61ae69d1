#include "sim/partition.h"

#include "sim/effect.h"
#include "sim/links.h"
#include "sim/trace.h"
#include "sim/truth.h"

enum {
    APART_LIMITS = 6, // heartbeat limits until a peer that was in a pair apart may be in another one
    DRAWN = 24,       // sides that are drawn; peers that follow take these once more
};

static void cut(struct pccl_sim *s, int from, int to, int64_t until) {
    if (from == to || s->cut_until[from][to] >= until) return;
    s->cut_until[from][to] = until;
    if (from < MASTER && to < MASTER && until > s->now + s->user_timeout_ns + 20 * MS_NS) sim_fall_silent(s, from, to);
}

static bool is_there(const struct pccl_sim *s, int place) {
    return place < MASTER ? place < (int)s->peers : place < MASTER + (int)s->master_count;
}

// Two sides; of the first `places` only.
static void cut_in_two(struct pccl_sim *s, const bool side[PROCESSES], int places, int64_t until) {
    for (int a = 0; a < places; a++)
        for (int b = 0; b < places && is_there(s, a); b++)
            if (is_there(s, b) && side[a] != side[b]) cut(s, a, b, until);
}

void partition_in_two(struct pccl_sim *s) {
    uint32_t bits = s->peers < DRAWN ? s->peers : DRAWN, draw = (uint32_t)sim_below(s, 1U << bits);
    bool side[PROCESSES] = {false};
    bool with_master = sim_chance(s, 2);
    int64_t until = s->now + effect_draw(s);
    for (uint32_t slot = 0; slot < s->peers; slot++) side[slot] = (draw >> slot % DRAWN & 1) != 0;
    cut_in_two(s, side, MASTER, until);
    for (uint32_t k = 1; k < s->master_count && with_master; k++) side[MASTER + k] = sim_chance(s, 2);
    if (with_master) cut_in_two(s, side, PROCESSES, until);
    s->counts[COUNT_PARTITIONS]++;
    effect_until(s, until);
    SIM_TRACE(s, "fault: partition, peers %x on one side, the master %s, for %jd ms", draw,
              with_master ? "on the other" : "reaches all", (until - s->now) / MS_NS);
}

void partition_at_admission(struct pccl_sim *s, uint32_t k, const struct actions *actions) {
    static _Thread_local struct wire_member members[WIRE_MAX_MEMBERS];
    struct wire_epoch_commit commit = {.epoch.members = members};
    struct wire_header header;
    if (!s->faulty || s->master_count == 1 || (s->faults & PCCL_SIM_PARTITION) == 0 || actions->send_count < 2) return;
    const uint8_t *frame = actions->bytes.bytes + actions->sends[actions->send_count - 1].offset;
    bool admits = wire_header_decode(frame, &header) && header.type == WIRE_EPOCH &&
                  wire_decode_epoch_commit(frame + WIRE_HEADER_BYTES, header.length, &commit) &&
                  commit.reason == WIRE_REASON_UPDATE;
    // Drawn by itself, so that what goes wrong otherwise stays what it is.
    uint64_t draw = sim_mix(s->config.seed ^ sim_mix(header.epoch) ^ UINT64_C(0x61646d6974));
    if (!admits || draw % 2 != 0) return;
    bool far[PROCESSES] = {false}, members_only = (draw >> 32 & 3) != 0;
    for (uint32_t slot = 0; slot < s->peers; slot++)
        far[slot] =
            (draw >> (8 + slot % DRAWN) & 1) != 0 && (!members_only || judge_truth(s, header.run)->lives[slot] != 0);
    for (uint32_t other = 0; other < s->master_count; other++) far[MASTER + other] = other != k;
    // to seek, and to be waited for, takes two
    int64_t until = s->now + 2 * s->limit_ns + (int64_t)((draw >> 34) % (uint64_t)(4 * s->limit_ns));
    cut_in_two(s, far, PROCESSES, until);
    s->counts[COUNT_PARTITIONS]++;
    effect_until(s, until);
    SIM_TRACE(s, "fault: partition while newcomers are let in, some peers on the side of the other masters, for %jd ms",
              ((until - s->now) / MS_NS));
}

void partition_pair(struct pccl_sim *s) {
    int a = (int)sim_below(s, s->peers), b = (int)sim_below(s, s->peers);
    int64_t until = sim_chance(s, 3) ? s->now + effect_draw(s) : s->faults_end;
    if (a == b || s->now < s->apart[a].until + APART_LIMITS * s->limit_ns ||
        s->now < s->apart[b].until + APART_LIMITS * s->limit_ns || until < s->now)
        return;
    s->apart[a].other = b + 1;
    s->apart[b].other = a + 1;
    s->apart[a].until = s->apart[b].until = until;
    s->apart[a].cost = s->apart[b].cost = 0;
    cut(s, a, b, until);
    cut(s, b, a, until);
    for (uint32_t i = 0; i < s->links->high; i++) {
        const struct connection *c = &s->links->all[i];
        if ((c->ends[0] == a && c->ends[1] == b) || (c->ends[0] == b && c->ends[1] == a)) sim_break(s, i);
    }
    s->counts[COUNT_APARTS]++;
    effect_until(s, until);
    SIM_TRACE(s, "fault: peers %d and %d cannot reach each other for %jd ms", a + 1, b + 1, (until - s->now) / MS_NS);
}

void partition_one_way(struct pccl_sim *s) {
    int from = (int)sim_below(s, s->peers + 1);
    if (from == (int)s->peers) from = MASTER + (int)sim_draw_master(s);
    int64_t until = s->now + effect_draw(s);
    for (int to = 0; to < (int)s->peers; to++)
        if (sim_chance(s, 2)) cut(s, from, to, until);
    if (sim_chance(s, 2)) cut(s, from, MASTER + (int)sim_draw_master(s), until);
    s->counts[COUNT_ONE_WAYS]++;
    effect_until(s, until);
    SIM_TRACE(s, "fault: %s %d is not heard by some, for %jd ms", SLOT_NAME(from), (until - s->now) / MS_NS);
}
