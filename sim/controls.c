#include "sim/controls.h"

#include <string.h>

#include "sim/effect.h"
#include "sim/refuse.h"
#include "sim/trace.h"

enum { FLIPS_IN = 1500, RESUME_FLIPS_IN = 4 }; // frames per changed bit; RESUMEs per changed or forged one

struct connection *control_open(struct pccl_sim *s, int slot, uint32_t master) {
    for (uint32_t i = 0; i < controls_most(s); i++) {
        if (s->controls[i].used) continue;
        s->controls[i] = (struct connection){.used = true,
                                             .open = {true, true},
                                             .ends = {(uint16_t)slot, (uint16_t)(MASTER + master)},
                                             .lives = {s->processes[slot].life},
                                             .group = s->processes[slot].group,
                                             .serial = ++s->serial,
                                             .lost_from = INT64_MAX};
        return &s->controls[i];
    }
    sim_fail(s, "bounded memory", "more than %u connections to masters are open", controls_most(s));
    return NULL;
}

// A member claims a later epoch of fewer members, with the signature of its own. False: it is no member, or cannot.
static bool forge(struct event *event, uint64_t draw) {
    static struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    static struct wire_member members[WIRE_MAX_MEMBERS];
    static struct wire_past past[WIRE_MAX_PAST];
    static struct wire_loss losses[WIRE_MAX_MEMBERS];
    struct wire_resume resume = {.last_vote.sizes = sizes, .epoch.members = members, .past = past, .losses = losses};
    if (!wire_decode_resume(event->body, event->header.length, &resume) || !resume.accepted) return false;
    resume.epoch.number += 1 + draw % 3;
    resume.epoch.count = 1;
    for (uint32_t i = 0; i < WIRE_MAX_MEMBERS; i++)
        if (wire_id_equal(&members[i].id, &resume.hello.id)) members[0] = members[i];
    resume.quorum = (struct wire_quorum){0};
    struct wire_buffer forged = {0};
    wire_encode_resume(&forged, event->header, &resume);
    if (forged.failed || !wire_header_decode(forged.bytes, &event->header)) {
        wire_buffer_fini(&forged);
        return false;
    }
    memcpy(event->body, forged.bytes + WIRE_HEADER_BYTES, event->header.length); // fewer members, so no longer
    wire_buffer_fini(&forged);
    return true;
}

// True: the stream is garbage from here on.
static bool flip(struct pccl_sim *s, struct connection *control, struct event *event) {
    int slot = control->ends[0];
    if (!s->faulty || (s->faults & PCCL_SIM_FLIP) == 0) return false;
    if (!sim_chance(s, event->header.type == WIRE_RESUME ? RESUME_FLIPS_IN : FLIPS_IN)) return false;
    if (!sim_alive(s, slot, control->lives[0]) || s->processes[slot].tainted) return false;
    uint8_t header[WIRE_HEADER_BYTES];
    uint64_t bit = sim_below(s, 8 * (WIRE_HEADER_BYTES + (uint64_t)event->header.length));
    bool forged = event->header.type == WIRE_RESUME && bit % 2 == 0 && forge(event, bit);
    wire_header_encode(header, &event->header);
    if (!forged && bit < 8 * WIRE_HEADER_BYTES)
        header[bit / 8] ^= (uint8_t)(1U << bit % 8);
    else if (!forged)
        event->body[bit / 8 - WIRE_HEADER_BYTES] ^= (uint8_t)(1U << bit % 8);
    uint32_t length = event->header.length;
    // the master's may be another one
    if (event->header.type == WIRE_HELLO || event->header.type == WIRE_RESUME) control->group = UINT32_MAX;
    s->counts[COUNT_FLIPS]++;
    SIM_TRACE(s, "fault: %s %ju of a %s of %d %s the master changes", forged ? "epoch" : "bit", bit,
              wire_type_name(event->header.type), slot + 1, event->slot >= MASTER ? "to" : "from");
    // Such a machine is taken out of service soon; until then nothing that it says is judged.
    s->processes[slot].tainted = true;
    s->tainted[slot] = control->lives[0];
    sim_push_for(s, slot, EVENT_TAKEN_OUT, s->now + (int64_t)sim_below(s, 2 * (uint64_t)s->limit_ns));
    bool valid = wire_header_decode(header, &event->header);
    event->flag = !valid || event->header.length != length;
    return event->flag;
}

// Sends `frames` on the peer's connection to a master.
static void say(struct pccl_sim *s, struct connection *control, const struct wire_buffer *frames) {
    for (size_t at = 0; at < frames->length;) {
        struct event *event = links_event(s, control, EVENT_CONTROL, 1, 0);
        if (!wire_header_decode(frames->bytes + at, &event->header)) {
            sim_fail(s, "no trust in bytes", "peer %d made a frame without a valid header", control->ends[0] + 1);
            return;
        }
        event->body = refuse_never(event->header.length + 1);
        memcpy(event->body, frames->bytes + at + WIRE_HEADER_BYTES, event->header.length);
        at += WIRE_HEADER_BYTES + event->header.length;
        event->at = links_arrival(s, control, 1);
        bool garbage = flip(s, control, event);
        sim_push(s, event);
        if (garbage) return;
    }
}

void sim_to_master(struct pccl_sim *s, int slot, struct wire_buffer *frames) {
    struct process *p = &s->processes[slot];
    p->out.failed |= frames->failed; // the communicator dies of it
    if (p->control != 0 && frames->length > 0) say(s, &s->controls[p->control - 1], frames);
    frames->length = 0;
}

void sim_send_master(struct pccl_sim *s, int slot, struct wire_buffer *frame) {
    sim_to_master(s, slot, frame);
    wire_buffer_fini(frame);
}

void control_double(struct pccl_sim *s, int slot, uint32_t master, const struct wire_buffer *hello) {
    struct connection *ghost = control_open(s, slot, master);
    if (ghost == NULL) return;
    s->counts[COUNT_DUPLICATES]++;
    ghost->ghost = true;
    SIM_TRACE(s, "fault: peer %d connects twice", slot + 1);
    say(s, ghost, hello);
    links_close_end(s, ghost, 0, true);
}

void control_to_peer(struct pccl_sim *s, uint32_t conn, const uint8_t *frame) {
    struct connection *control = &s->controls[conn];
    if (conn >= controls_most(s) || !control->used || !control->open[1]) {
        sim_fail(s, "bounded memory", "the master sends on a connection that it has closed");
        return;
    }
    struct event *event = links_event(s, control, EVENT_CONTROL, 0, links_arrival(s, control, 0));
    if (!wire_header_decode(frame, &event->header)) {
        sim_fail(s, "no trust in bytes", "the master made a frame without a valid header");
        return;
    }
    event->body = refuse_never(event->header.length + 1);
    memcpy(event->body, frame + WIRE_HEADER_BYTES, event->header.length);
    flip(s, control, event);
    sim_push(s, event);
}

void sim_close_controls(struct pccl_sim *s, int slot, bool told) {
    links_close_life(s, s->controls, controls_most(s), slot, s->processes[slot].life, told);
    s->processes[slot].control = 0;
}
