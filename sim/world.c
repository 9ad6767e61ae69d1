#include "sim/world.h"

#include <string.h>

enum { FAR = 0xff }; // first byte of an id whose slot takes two

uint64_t sim_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t sim_random(struct pccl_sim *s) { return sim_mix(s->random += UINT64_C(0x9E3779B97F4A7C15)); }

uint64_t sim_below(struct pccl_sim *s, uint64_t limit) { return ((sim_random(s) >> 32) * limit) >> 32; }

int64_t sim_delay(struct pccl_sim *s, int from, int to) {
    int64_t delay = 100000 + (int64_t)sim_below(s, 2000000);
    if (sim_chance(s, 16)) delay *= 1 + (int64_t)sim_below(s, 20);
    if (s->now < s->slow_until[from][to]) delay *= 10;
    return delay;
}

bool sim_cut(const struct pccl_sim *s, int a, int b) {
    return s->now < s->cut_until[a][b] || s->now < s->cut_until[b][a];
}

uint32_t sim_draw_master(struct pccl_sim *s) {
    return s->master_count > 1 ? (uint32_t)sim_below(s, s->master_count) : 0;
}

struct wire_id sim_id_of(int slot, uint32_t life) {
    struct wire_id id = {{(uint8_t)(slot + 1)}};
    if (slot >= DATA_SLOTS) id = (struct wire_id){{FAR, (uint8_t)slot, (uint8_t)(slot >> 8)}};
    memcpy(id.bytes + 4, &life, sizeof life);
    return id;
}

int sim_slot(const struct wire_id *id, uint32_t *life) {
    memcpy(life, id->bytes + 4, sizeof *life);
    int far = id->bytes[1] + 256 * id->bytes[2];
    if (id->bytes[0] == FAR && far >= DATA_SLOTS && far < SLOTS) return far;
    return id->bytes[0] <= DATA_SLOTS ? id->bytes[0] - 1 : -1;
}
