#include "sim/controls.h"

#include <string.h>

#include "sim/effect.h"
#include "sim/refuse.h"
#include "sim/trace.h"

enum { FLIPS_IN = 1500, RESUME_FLIPS_IN = 4 }; // frames per changed bit; RESUMEs per changed or forged one

void controls_begin(struct pccl_sim *s) { memset(s->controls, 0, controls_most(s) * sizeof s->controls[0]); }

static void control_free(struct control *control) {
    if (!control->at_peer && !control->at_master) control->used = false;
}

struct control *control_open(struct pccl_sim *s, int slot, uint32_t master) {
    for (uint32_t i = 0; i < controls_most(s); i++) {
        struct control *control = &s->controls[i];
        if (control->used) continue;
        *control = (struct control){.used = true,
                                    .slot = (uint16_t)slot,
                                    .master = (uint8_t)master,
                                    .life = s->processes[slot].life,
                                    .group = s->processes[slot].group,
                                    .serial = ++s->serial,
                                    .lost_from = INT64_MAX,
                                    .at_peer = true,
                                    .at_master = true};
        return control;
    }
    sim_fail(s, "bounded memory", "more than %u connections to masters are open", controls_most(s));
    return NULL;
}

static struct event *event_on(struct pccl_sim *s, const struct control *control, enum event_kind kind, int64_t at) {
    struct event *event = sim_event(s, kind, at);
    event->slot = control->slot;
    event->from = control->master;
    event->life = control->life;
    event->index = (uint32_t)(control - s->controls);
    event->serial = control->serial;
    return event;
}

// When something that the peer sends now is at the master.
static int64_t arrival(struct pccl_sim *s, struct control *control) {
    int64_t at = s->now + sim_delay(s, control->slot, MASTER + control->master);
    return control->up_at = platform_later(at, control->up_at);
}

static void end_at_master(struct pccl_sim *s, struct control *control) {
    sim_push(s, event_on(s, control, EVENT_MASTER_LOSES, arrival(s, control)));
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
static bool flip(struct pccl_sim *s, struct control *control, struct event *event) {
    if (!s->faulty || (s->faults & PCCL_SIM_FLIP) == 0) return false;
    if (!sim_chance(s, event->header.type == WIRE_RESUME ? RESUME_FLIPS_IN : FLIPS_IN)) return false;
    if (!sim_alive(s, control->slot, control->life) || s->processes[control->slot].tainted) return false;
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
    SIM_TRACE(s, "fault: %s %llu of a %s of %d %s the master changes", forged ? "epoch" : "bit",
              (unsigned long long)bit, wire_type_name(event->header.type), control->slot + 1,
              event->kind == EVENT_TO_MASTER ? "to" : "from");
    // Such a machine is taken out of service soon; until then nothing that it says is judged.
    s->processes[control->slot].tainted = true;
    s->tainted[control->slot] = control->life;
    sim_push_for(s, control->slot, EVENT_TAKEN_OUT, s->now + (int64_t)sim_below(s, 2 * (uint64_t)s->limit_ns));
    bool valid = wire_header_decode(header, &event->header);
    event->flag = !valid || event->header.length != length;
    return event->flag;
}

// Sends `frames` on the peer's connection to a master.
static void say(struct pccl_sim *s, struct control *control, const struct wire_buffer *frames) {
    for (size_t at = 0; at < frames->length;) {
        struct event *event = event_on(s, control, EVENT_TO_MASTER, 0);
        if (!wire_header_decode(frames->bytes + at, &event->header)) {
            sim_fail(s, "no trust in bytes", "peer %d made a frame without a valid header", control->slot + 1);
            return;
        }
        event->body = refuse_never(event->header.length + 1);
        memcpy(event->body, frames->bytes + at + WIRE_HEADER_BYTES, event->header.length);
        at += WIRE_HEADER_BYTES + event->header.length;
        event->at = arrival(s, control);
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

void sim_send_master(struct pccl_sim *s, struct process *p, struct wire_buffer *frame) {
    sim_to_master(s, (int)(p - s->processes), frame);
    wire_buffer_fini(frame);
}

void control_double(struct pccl_sim *s, int slot, uint32_t master, const struct wire_buffer *hello) {
    struct control *ghost = control_open(s, slot, master);
    if (ghost == NULL) return;
    s->counts[COUNT_DUPLICATES]++;
    ghost->ghost = true;
    SIM_TRACE(s, "fault: peer %d connects twice", slot + 1);
    say(s, ghost, hello);
    ghost->at_peer = false;
    end_at_master(s, ghost);
}

static struct event *event_for_peer(struct pccl_sim *s, const struct control *control, enum event_kind kind) {
    return event_on(s, control, kind, s->now + sim_delay(s, MASTER + control->master, control->slot));
}

void control_to_peer(struct pccl_sim *s, uint32_t conn, const uint8_t *frame) {
    struct control *control = &s->controls[conn];
    if (conn >= CONTROLS_MOST || !control->used || !control->at_master) {
        sim_fail(s, "bounded memory", "the master sends on a connection that it has closed");
        return;
    }
    struct event *event = event_for_peer(s, control, EVENT_TO_PEER);
    if (!wire_header_decode(frame, &event->header)) {
        sim_fail(s, "no trust in bytes", "the master made a frame without a valid header");
        return;
    }
    event->body = refuse_never(event->header.length + 1);
    memcpy(event->body, frame + WIRE_HEADER_BYTES, event->header.length);
    if (event->at < control->down_at) event->at = control->down_at;
    control->down_at = event->at;
    flip(s, control, event);
    sim_push(s, event);
}

void control_close_at_master(struct pccl_sim *s, struct control *control) {
    control->at_master = false;
    if (!control->at_peer) {
        control->used = false;
        return;
    }
    struct event *event = event_for_peer(s, control, EVENT_PEER_LOSES);
    if (event->at < control->down_at) event->at = control->down_at;
    sim_push(s, event);
}

void control_lose(struct control *control, int64_t from) { control->lost_from = control->down_at = from; }

void control_tell_peer(struct pccl_sim *s, const struct control *control) {
    sim_push(s, event_for_peer(s, control, EVENT_PEER_LOSES));
}

void control_close_life(struct pccl_sim *s, int slot, uint32_t life, bool told) {
    for (uint32_t i = 0; i < controls_most(s); i++) {
        struct control *control = &s->controls[i];
        if (!control->used || !control->at_peer || control->slot != slot || control->life != life) continue;
        control->at_peer = false;
        if (control->at_master && told) end_at_master(s, control);
        control_free(control);
    }
}

void sim_close_controls(struct pccl_sim *s, int slot, bool told) {
    control_close_life(s, slot, s->processes[slot].life, told);
    s->processes[slot].control = 0;
}
