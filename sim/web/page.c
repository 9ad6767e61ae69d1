// The simulator for a page in a browser: page.js calls the exported functions, and shows what they describe.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "master/core.h"
#include "sim/effect.h"
#include "sim/engine.h"
#include "sim/masters.h"
#include "sim/peers.h"
#include "sim/program.h"
#include "sim/queue.h"
#include "sim/state.h"
#include "sim/trace.h"

#ifdef __wasm__
#define EXPORT(name) __attribute__((export_name(#name)))
#else
#define EXPORT(name) // for its test
#endif

enum { LINES = 2048, EVENTS_AT_ONCE = 4096, TEXT = 1 << 19 };

static struct pccl_sim *sim;
static char text[TEXT];
static size_t length;
static uint64_t told; // lines of the trace

__attribute__((format(printf, 1, 2))) static void add(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(text + length, sizeof text - length, format, arguments);
    va_end(arguments);
    if (added > 0) length = length + (size_t)added < sizeof text ? length + (size_t)added : sizeof text - 1;
}

// A string of JSON, without what would end it.
static void add_string(const char *name, const char *value) {
    add("\"%s\":\"", name);
    for (; *value != 0; value++)
        if (*value >= ' ' && *value != '"' && *value != '\\') add("%c", *value);
    add("\"");
}

static bool is_peer(uint32_t slot) { return sim != NULL && slot < sim->peers; }

// Begins a run of so many peers, at 0 ms. False: there is no memory.
EXPORT(page_begin) bool page_begin(uint32_t seed, uint32_t peers);
bool page_begin(uint32_t seed, uint32_t peers) {
    if (sim == NULL) sim = pccl_sim_new();
    if (sim == NULL) return false;
    struct pccl_sim_config config = {.seed = seed,
                                     .peers = peers,
                                     .masters = 1,
                                     .faults = PCCL_SIM_CRASH,
                                     .trace_lines = LINES,
                                     .trace_fd = -1,
                                     .by_hand = 1};
    told = 0;
    return pccl_sim_begin(sim, &config) == PCCL_SIM_RUNNING;
}

// Goes on until so many virtual milliseconds after the beginning, or less far, if much happens. False: an invariant
// does not hold.
EXPORT(page_go) bool page_go(double until_ms);
bool page_go(double until_ms) {
    int64_t until = SECOND_NS + (int64_t)(until_ms * (double)MS_NS);
    for (int i = 0; i < EVENTS_AT_ONCE && sim->state == PCCL_SIM_RUNNING; i++) {
        const struct queue *queue = sim->queue;
        if (queue->heap_count == 0 || queue->heap[0].at > until) {
            sim->now = until > sim->now ? until : sim->now;
            break;
        }
        pccl_sim_go(sim, 1);
    }
    return sim->state == PCCL_SIM_RUNNING;
}

// ---- faults ----

// Ends the process of a peer, or starts it again. `told`: its kernel closes its connections; else they fall silent.
EXPORT(page_end_peer) void page_end_peer(uint32_t slot, bool tells);
void page_end_peer(uint32_t slot, bool tells) {
    if (!is_peer(slot)) return;
    effect_until(sim, sim->now);
    sim_end(sim, (int)slot, tells);
}

EXPORT(page_start_peer) void page_start_peer(uint32_t slot);
void page_start_peer(uint32_t slot) {
    if (is_peer(slot)) sim_start(sim, (int)slot);
}

// Stops a process for a while, as SIGSTOP does.
EXPORT(page_stop_peer) void page_stop_peer(uint32_t slot, double ms);
void page_stop_peer(uint32_t slot, double ms) {
    if (!is_peer(slot) || sim->now < sim->bodies[slot].stopped_until) return;
    sim->bodies[slot].stopped_until = sim->now + (int64_t)(ms * (double)MS_NS);
    effect_until(sim, sim->bodies[slot].stopped_until);
    SIM_TRACE(sim, "peer %u: is stopped for %.0f ms", slot + 1, ms);
}

EXPORT(page_end_master) void page_end_master(void);
void page_end_master(void) {
    effect_until(sim, sim->now);
    sim_end_master(sim, 0);
}

EXPORT(page_start_master) void page_start_master(void);
void page_start_master(void) {
    if (!sim->masters[0].running) sim_start_master(sim, 0);
}

// ---- what there is to see ----

static void describe_peer(int slot) {
    static const char *const steps[] = {"joins", "computes", "votes", "reduces", "syncs", "leaves"};
    static const char *const phases[] = {"joins", "joins", "waits to be let in", NULL, "is dead"};
    const struct process *p = &sim->processes[slot];
    add("{\"running\":%s,\"life\":%u", p->running ? "true" : "false", p->life);
    if (p->running) {
        enum member_phase phase = member_phase(p->core);
        const struct epoch *epoch = member_epoch(p->core);
        const char *does = phase != MEMBER_ACCEPTED ? phases[phase] : steps[p->program->step];
        add(",\"stopped\":%s,", sim->now < sim->bodies[slot].stopped_until ? "true" : "false");
        add_string("does", member_is_seeking(p->core) ? "looks for a master" : does);
        add(",\"member\":%s", phase == MEMBER_ACCEPTED ? "true" : "false");
        add(",\"epoch\":%ju,\"world\":%u", epoch != NULL ? epoch->number : UINT64_C(0),
            epoch != NULL ? epoch->ring.count : 0);
        add(",\"revision\":%ju,\"hash\":\"%08jx\",\"leaves\":[", p->state->revision,
            (state_model_content(p->state->leaves) & 0xffffffff));
        for (uint32_t i = 0; i < LEAVES; i++) add("%s%u", i > 0 ? "," : "", (unsigned)(p->state->leaves[i] % 360));
        add("],\"rounds\":%u,\"links\":[", p->program->rounds);
        bool first = true;
        for (int other = 0; other < (int)sim->peers; other++) {
            if (p->links[other][0] == 0) continue;
            add("%s%d", first ? "" : ",", other);
            first = false;
        }
        add("]");
    }
    add("}");
}

// The run as JSON, and the lines of its trace since the last call.
EXPORT(page_describe) const char *page_describe(void);
const char *page_describe(void) {
    static const char *const activities[] = {"has no run", "gathers the members of a lost master", "serves"};
    const struct master *master = &sim->masters[0];
    length = 0;
    add("{\"now\":%.3f,\"limit\":%.0f,", (double)(sim->now - SECOND_NS) / (double)MS_NS,
        (double)sim->limit_ns / (double)MS_NS);
    add_string("failure", sim->state == PCCL_SIM_FAILED ? sim->trace->failure : "");
    add(",\"committed\":%ju,\"lost\":%ju,\"redone\":%ju,\"fetched\":%ju", sim->counts[COUNT_OPS_OK],
        sim->counts[COUNT_OPS_LOST], sim->counts[COUNT_OPS_REDONE], sim->counts[COUNT_FETCHES]);
    add(",\"master\":{\"running\":%s", master->running ? "true" : "false");
    if (master->running) {
        enum wire_activity activity = core_activity(master->core);
        add(",\"epoch\":%ju,\"peers\":%u,", core_epoch(master->core), core_peer_count(master->core));
        add_string("does", activity <= 2 ? activities[activity] : "");
    }
    add("},\"peers\":[");
    for (int slot = 0; slot < (int)sim->peers; slot++) {
        if (slot > 0) add(",");
        describe_peer(slot);
    }
    add("],\"lines\":[");
    uint64_t lines = sim->trace->line_count;
    if (lines - told > LINES) told = lines - LINES;
    for (bool first = true; told < lines && length < sizeof text - (size_t)4 * TEXT_BYTES; told++, first = false) {
        add("%s{", first ? "" : ",");
        add_string("text", sim->trace->lines + told % LINES * TEXT_BYTES);
        add("}");
    }
    add("]}");
    return text;
}
