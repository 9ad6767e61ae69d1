#include "sim/masters.h"

#include <stdlib.h>
#include <string.h>

#include "compute/hash.h"
#include "master/quorum.h"
#include "sim/controls.h"
#include "sim/judge_master.h"
#include "sim/partition.h"
#include "sim/trace.h"

enum {
    YOUNG_MS = 150, // as in master/master
    LOOK_MS = 200,  // shorter, as the other limits are
    ASK_MS = 60,
    BUSY_MS = 200,
    IDLE_MS = 20,
    PART_MS = 20,         // within which what a master said that ends is lost
    ENDS_IN = 800,        // of a master, in the middle of what it says
    ENDS_AT_ONCE_IN = 16, // when that takes a run up
};

const char *master_name(const struct pccl_sim *s, uint32_t master) {
    static const char *const names[MASTERS_MOST] = {"master 1", "master 2", "master 3"};
    return s->master_count > 1 ? names[master] : "master";
}

static struct event *of_master(struct pccl_sim *s, uint32_t k, enum event_kind kind, int64_t at) {
    struct event *event = sim_event(s, kind, at);
    event->slot = (uint16_t)(MASTER + k);
    event->life = s->masters[k].life;
    return event;
}

static void plan_master_tick(struct pccl_sim *s, uint32_t k) {
    sim_plan_tick(s, MASTER + (int)k, s->masters[k].life, core_next_deadline(s->masters[k].core));
}

static void plan_look(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    if (s->master_count == 1 || master->looks || core_activity(master->core) != WIRE_GATHERS) return;
    master->looks = true;
    sim_push(s, of_master(s, k, EVENT_LOOKS, s->now + LOOK_MS * MS_NS));
}

static bool takes_up(const struct actions *actions) {
    struct wire_header header;
    return actions->send_count > 0 && wire_header_decode(actions->bytes.bytes + actions->sends[0].offset, &header) &&
           header.type == WIRE_RESUMED;
}

static void say(struct pccl_sim *s, uint32_t k, const struct actions *actions, size_t first, size_t end) {
    judge_sends(s, k, s->masters[k].life, actions, first, end);
    for (size_t i = first; i < end && s->state == PCCL_SIM_RUNNING; i++)
        control_to_peer(s, actions->sends[i].conn, actions->bytes.bytes + actions->sends[i].offset);
}

// A state machine that is short of memory keeps none from one event to the next, so that it has to ask for it again.
static void take_buffers(struct actions *actions) {
    wire_buffer_fini(&actions->bytes);
    free(actions->sends);
    actions->sends = NULL;
    actions->send_count = actions->send_capacity = 0;
}

// All is said.
static void end_event(struct pccl_sim *s, uint32_t k, const struct actions *actions) {
    struct master *master = &s->masters[k];
    for (size_t i = 0; i < actions->close_count; i++) links_close_end(s, &s->controls[actions->closes[i]], 1, true);
    if (s->bodies[MASTER + k].shortage.times > 0) take_buffers((struct actions *)actions);
    if (core_wants_random(master->core)) {
        uint8_t random[CORE_RANDOM_BYTES] = {0};
        for (size_t i = 0; i < sizeof random - CORE_KEY_BYTES; i++) random[i] = (uint8_t)sim_random(s);
        core_set_random(master->core, random);
    }
    plan_look(s, k);
    plan_master_tick(s, k);
}

// ---- its end ----

// A signature that nothing but these two functions can make.
static bool sign(void *context, const void *bytes, size_t length, uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    (void)context;
    memset(signature, 0, WIRE_SIGNATURE_BYTES);
    uint64_t hash = hash_xxh3_64(bytes, length);
    memcpy(signature, &hash, sizeof hash);
    return true;
}

static bool verify(void *context, const void *bytes, size_t length, const uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    uint8_t right[WIRE_SIGNATURE_BYTES];
    return sign(context, bytes, length, right) && memcmp(signature, right, sizeof right) == 0;
}

void sim_start_master(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    if (master->running) return;
    uint8_t random[CORE_RANDOM_BYTES] = {0};
    for (size_t i = 0; i < sizeof random - CORE_KEY_BYTES; i++) random[i] = (uint8_t)sim_random(s);
    *master = (struct master){.running = true, .life = ++s->master_lives, .began_at = s->now};
    s->bodies[MASTER + k].tick_at = INT64_MAX;
    s->bodies[MASTER + k].shortage = (struct shortage){0};
    master->core = core_new((uint32_t)(s->limit_ns / MS_NS), random, s->now);
    if (master->core == NULL) abort(); // a test that cannot go on
    static const struct signer signer = {.sign = sign, .verify = verify};
    bool expects = master->life > s->master_count || sim_chance(s, 8);
    core_configure(master->core,
                   &(struct core_settings){.survivors_until_ns = expects ? s->now + YOUNG_MS * MS_NS : s->now,
                                           // Programs vote alike, unless one has heard something else: it ends none.
                                           .deadlock_ns = (s->faults & PCCL_SIM_FLIP) != 0 ? 0 : s->limit_ns,
                                           .standby = k > 0,
                                           .signer = &signer});
    SIM_TRACE(s, "%s: starts", master_name(s, k));
}

static void end_core(struct master *master) {
    master->running = false;
    core_free(master->core);
    master->core = NULL;
    master->unsaid = NULL;
}

static void close_all_at_master(struct pccl_sim *s, uint32_t k) {
    for (uint32_t i = 0; i < controls_most(s); i++) {
        struct connection *control = &s->controls[i];
        if (!control->used || !control->open[1] || control->ends[1] != MASTER + k) continue;
        // The kernel had something unread, and takes back what was said, or the later part of it.
        uint64_t part = sim_mix(s->config.seed ^ sim_mix(control->serial)) % (2 * PART_MS * MS_NS);
        if (sim_chance(s, 3))
            control->lost_from = control->last[0] = s->now + (s->in_part && part < PART_MS * MS_NS ? (int64_t)part : 0);
        links_close_end(s, control, 1, true);
    }
}

static void end_master(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    if (!master->running) return;
    SIM_TRACE(s, "%s: ends", master_name(s, k));
    end_core(master);
    close_all_at_master(s, k);
}

// Somebody else has to be there, or to come.
static bool may_rest(const struct pccl_sim *s, uint32_t k) {
    for (uint32_t other = 0; other < s->master_count; other++)
        if (other != k && s->masters[other].running) return true;
    return false;
}

void sim_end_master(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    if (!master->running) return;
    s->counts[COUNT_MASTERS]++;
    end_master(s, k);
    if (s->config.by_hand != 0) return;
    if (s->master_count > 1 && may_rest(s, k) && sim_chance(s, 2)) {
        master->rests = true;
        effect_until(s, s->now);
        return;
    }
    int64_t after = sim_chance(s, 2) ? 0 : effect_draw(s);
    effect_until(s, s->now + after);
    sim_push(s, of_master(s, k, EVENT_START, s->now + after));
}

void sim_hold_master(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    SIM_TRACE(s, "%s: ends, and a child holds its connections and its port", master_name(s, k));
    end_core(master);
    master->held = true;
}

void sim_let_go_master(struct pccl_sim *s, uint32_t k) {
    SIM_TRACE(s, "%s: its child ends", master_name(s, k));
    s->masters[k].held = false;
    close_all_at_master(s, k);
    sim_start_master(s, k);
}

// ---- what it says ----

static void carry_out(struct pccl_sim *s, uint32_t k, const struct actions *actions) {
    struct master *master = &s->masters[k];
    for (size_t i = 0; i < actions->log_count && s->tracing; i++)
        sim_line(s, "%s: %s", master_name(s, k), actions->logs[i].text);
    partition_at_admission(s, k, actions);
    size_t count = actions->send_count;
    int64_t blocked = effect_block(s, takes_up(actions));
    if (blocked > 0) {
        SIM_TRACE(s, "fault: the thread of %s blocks for %jd ms", master_name(s, k), blocked / MS_NS);
        count = sim_below(s, count + 1);
        say(s, k, actions, 0, count);
        master->unsaid = actions;
        master->said = count;
        s->bodies[MASTER + k].stopped_until = s->now + blocked;
        // before what came meanwhile
        sim_push(s, of_master(s, k, EVENT_GOES_ON, s->now + blocked - 1));
        return;
    }
    bool ends = count > 1 && s->faulty && (s->faults & PCCL_SIM_MASTER) != 0 &&
                sim_chance(s, takes_up(actions) ? ENDS_AT_ONCE_IN : ENDS_IN);
    if (ends) count = sim_below(s, count); // in the middle of what it says
    say(s, k, actions, 0, count);
    if (ends)
        sim_end_master(s, k);
    else
        end_event(s, k, actions);
}

static void master_goes_on(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    const struct actions *actions = master->unsaid;
    if (actions == NULL) return;
    master->unsaid = NULL;
    say(s, k, actions, master->said, actions->send_count);
    end_event(s, k, actions);
}

// ---- what happens ----

// STATUS. The answers are of this moment, and are heard later: by then they may be wrong.
static void ask_others(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    enum wire_activity most = WIRE_IDLE;
    int64_t at = s->now;
    if (master->asks) return;
    for (uint32_t i = 0; i < s->master_count; i++) {
        const struct master *other = &s->masters[i];
        if (i == k) continue;
        bool hears = s->now >= s->bodies[MASTER + i].stopped_until && !sim_cut(s, MASTER + (int)k, MASTER + (int)i);
        int64_t end = s->now + (hears ? sim_delay(s, MASTER + (int)k, MASTER + (int)i) : ASK_MS * MS_NS);
        if (end > at) at = end;
        if (hears && other->running && core_activity(other->core) > most) most = core_activity(other->core);
    }
    master->asks = true;
    struct event *event = of_master(s, k, EVENT_HEARS, at);
    event->number = most;
    sim_push(s, event);
}

static void on_frame_to_master(struct pccl_sim *s, struct connection *control, const struct event *event) {
    uint32_t conn = (uint32_t)(control - s->controls), k = control->ends[1] - (uint32_t)MASTER;
    struct master_core *core = s->masters[k].core;
    if (s->tracing) {
        char text[TEXT_BYTES];
        if (event->header.type != WIRE_HEARTBEAT)
            sim_line(s, "%s <- %d: %s", master_name(s, k), event->from + 1,
                     trace_frame_name(s, text, &event->header, event->body));
    }
    struct wire_address source = {.family = 4,
                                  .bytes = {10, 0, (uint8_t)((event->from + 1) >> 8), (uint8_t)(event->from + 1)}};
    if (control->known) {
        judge_link_report(s, control, &event->header, event->body);
        carry_out(s, k, core_message(core, s->now, conn, &event->header, event->body));
        return;
    }
    control->known = true;
    if (event->header.type == WIRE_RESUME) {
        carry_out(s, k, core_peer_resumed(core, s->now, conn, &source, &event->header, event->body));
        return;
    }
    struct wire_hello hello;
    if (event->header.type != WIRE_HELLO || !wire_decode_hello(event->body, event->header.length, &hello)) {
        links_close_end(s, control, 1, true);
        return;
    }
    if (k == 0 && s->master_count > 1 && core_activity(core) != WIRE_SERVES && s->now >= s->masters[k].known_until) {
        ask_others(s, k);
        core_await_others(core);
    }
    carry_out(s, k, core_peer_connected(core, s->now, conn, &source, &hello));
}

static void on_look(struct pccl_sim *s, uint32_t k) {
    s->masters[k].looks = false;
    if (core_activity(s->masters[k].core) == WIRE_GATHERS) ask_others(s, k);
}

static void on_others_heard(struct pccl_sim *s, uint32_t k, enum wire_activity most) {
    struct master *master = &s->masters[k];
    master->asks = false;
    master->known_until = s->now + (most == WIRE_IDLE ? IDLE_MS : BUSY_MS) * MS_NS;
    carry_out(s, k, core_others_are(master->core, s->now, most));
}

static void on_master_tick(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    s->bodies[MASTER + k].tick_at = INT64_MAX;
    if (core_next_deadline(master->core) <= s->now)
        carry_out(s, k, core_tick(master->core, s->now));
    else
        plan_master_tick(s, k);
}

// Handles an event that the master has planned itself.
static void on_plan(struct pccl_sim *s, uint32_t k, const struct event *event) {
    const struct master *master = &s->masters[k];
    if (!master->running || event->life != master->life) return;
    if (event->kind == EVENT_GOES_ON) master_goes_on(s, k);
    if (event->kind == EVENT_LOOKS) on_look(s, k);
    if (event->kind == EVENT_HEARS) on_others_heard(s, k, (enum wire_activity)event->number);
    if (event->kind == EVENT_TICK && event->at == s->bodies[MASTER + k].tick_at) on_master_tick(s, k);
}

static void on_control(struct pccl_sim *s, uint32_t k, struct connection *control, const struct event *event) {
    if (!control->used || control->serial != event->serial || !control->open[1]) return;
    if (s->masters[k].held && event->kind == EVENT_CONTROL) return; // nobody reads
    if (!s->masters[k].running) {
        links_close_end(s, control, 1, true); // nobody listens
        return;
    }
    if (event->kind == EVENT_CONTROL && !event->flag) {
        on_frame_to_master(s, control, event);
        return;
    }
    // The connection has ended, or carries garbage from here on.
    if (event->flag && control->open[0])
        sim_push(s, links_event(s, control, EVENT_CONTROL_ENDS, 0,
                                s->now + sim_delay(s, MASTER + (int)k, control->ends[0])));
    struct master_core *core = s->masters[k].core;
    const struct actions *expelled = event->flag ? core_expel(core, s->now, event->index, "garbage") : NULL;
    carry_out(s, k, expelled != NULL ? expelled : core_peer_lost(core, s->now, event->index, "closed"));
    links_close_end(s, control, 1, false);
}

void sim_master_event(struct pccl_sim *s, struct event *event) {
    uint32_t k = event->slot - (uint32_t)MASTER;
    if (event->kind <= EVENT_CONTROL_ENDS)
        on_control(s, k, &s->controls[event->index], event);
    else
        on_plan(s, k, event);
}
