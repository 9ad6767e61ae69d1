#include "sim/reports.h"

#include "sim/controls.h"
#include "sim/algorithm.h"
#include "sim/process.h"

enum { REPORTS = 4, CITIES = 3 };

static uint64_t drawn(const struct pccl_sim *s, uint64_t epoch, uint64_t what) {
    return sim_mix(sim_mix(s->config.seed ^ sim_mix(epoch)) + what);
}

// Some members are slow, in some epochs; some are far from each other, always.
static struct wire_seen see(const struct pccl_sim *s, uint64_t epoch, int from, int to, bool next) {
    bool slow = drawn(s, epoch, 100 + (uint64_t)from) % 4 == 0 || drawn(s, epoch, 100 + (uint64_t)to) % 4 == 0;
    bool near = drawn(s, 0, (uint64_t)from) % CITIES == drawn(s, 0, (uint64_t)to) % CITIES;
    bool carries = next || drawn(s, epoch, 1) % 2 == 0;
    return (struct wire_seen){.acked = carries ? (slow ? 4u : 16u) << 20 : 1000u,
                              .busy_us = 1000000,
                              .samples = 100,
                              .backlogged = carries && slow ? 90 : 5,
                              .round_trip_us = near ? 300 : 40000};
}

void reports_tell(struct pccl_sim *s, int slot) {
    static _Thread_local struct wire_telemetry told;
    struct engine_model *e = s->processes[slot].engine;
    const struct epoch_ring *ring = &e->call_table.now->ring;
    uint64_t epoch = e->call_table.now->group_epoch;
    if (ring->count < 3 || drawn(s, epoch, 0) % 2 == 0) return;
    told = (struct wire_telemetry){.ops = {.span_us = 1000000, .ops = 1, .op_us = 1000, .epoch = epoch}};
    for (uint32_t i = 1; i < ring->count; i++) {
        uint32_t life, rank = (ring->rank + i) % ring->count;
        int other = sim_slot(&ring->members[rank].id, &life);
        if (other < 0) continue;
        told.others[told.count].id = ring->members[rank].id;
        told.others[told.count++].seen = see(s, epoch, slot, other, i == 1);
    }
    for (int i = 0; i < REPORTS; i++) {
        struct wire_buffer frame = {0};
        wire_encode_telemetry(&frame, sim_algorithm_header(e), &told);
        sim_send_master(s, &s->processes[slot], &frame);
    }
}
