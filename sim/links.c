#include "sim/links.h"

#include <string.h>

#include "link/failure_detector.h"
#include "sim/trace.h"

void links_begin(struct pccl_sim *s) {
    memset(s->links->all, 0, s->links->high * sizeof s->links->all[0]);
    s->links->high = s->links->first = 0;
}

static uint32_t end_of(const struct connection *c, int slot, uint32_t life) {
    return c->ends[0] == slot && c->lives[0] == life ? 0 : 1;
}

static void drop_parked(struct pccl_sim *s, struct connection *c, uint32_t end) {
    while (c->parked_first[end] != 0) {
        struct event *event = &s->queue->events[c->parked_first[end] - 1];
        c->parked_first[end] = event->next;
        sim_event_free(s, event);
    }
    c->parked_last[end] = 0;
}

static struct connection *connection_new(struct pccl_sim *s) {
    uint32_t most = s->only_votes ? CONNECTIONS_MOST : CONNECTIONS_OF_FEW;
    for (uint32_t i = s->links->first; i < most; i++) {
        if (s->links->all[i].used) continue;
        if (i == s->links->high) s->links->high++;
        s->links->first = i + 1;
        s->links->all[i] = (struct connection){.used = true, .serial = ++s->serial};
        return &s->links->all[i];
    }
    sim_fail(s, "bounded memory", "more than %u links are open", most);
    return NULL;
}

static void connection_free(struct pccl_sim *s, struct connection *c) {
    c->used = false;
    if (c->ends[1] >= MASTER) return;
    uint32_t index = (uint32_t)(c - s->links->all);
    struct process *dialler = &s->processes[c->ends[0]];
    if (index < s->links->first) s->links->first = index;
    if (dialler->life != c->lives[0]) return;
    uint32_t *at = &dialler->dialled[c->ends[1]];
    while (*at != 0 && *at != index + 1) at = &s->links->all[*at - 1].next;
    if (*at != 0) *at = c->next;
}

static bool is_control(const struct connection *c) { return c->ends[1] >= MASTER; }

struct event *links_event(struct pccl_sim *s, const struct connection *c, enum event_kind kind, uint32_t end,
                          int64_t at) {
    struct event *event = sim_event(s, kind, at);
    event->slot = c->ends[end];
    event->from = c->ends[!end];
    event->life = c->lives[end];
    event->other_life = c->lives[!end];
    event->index = (uint32_t)(c - (is_control(c) ? s->controls : s->links->all));
    event->serial = c->serial;
    return event;
}

static void push(struct pccl_sim *s, const struct connection *c, enum event_kind kind, uint32_t end, int64_t at,
                 bool flag) {
    struct event *event = links_event(s, c, kind, end, at);
    event->flag = flag;
    sim_push(s, event);
}

int64_t links_arrival(struct pccl_sim *s, struct connection *c, uint32_t end) {
    int64_t at = s->now + sim_delay(s, c->ends[!end], c->ends[end]);
    return c->last[end] = platform_later(at, c->last[end]);
}

void links_close_end(struct pccl_sim *s, struct connection *c, uint32_t end, bool told) {
    if (!c->open[end]) return;
    c->open[end] = false;
    drop_parked(s, c, end);
    if (c->open[!end] && told && !c->broken)
        push(s, c, is_control(c) ? EVENT_CONTROL_ENDS : EVENT_LINK_ENDS, !end, links_arrival(s, c, !end), false);
    if (!c->open[0] && !c->open[1]) connection_free(s, c);
}

void links_close_life(struct pccl_sim *s, struct connection *table, uint32_t count, int slot, uint32_t life,
                      bool told) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t end = 0; end < 2 && table[i].used; end++)
            if (table[i].ends[end] == slot && table[i].lives[end] == life) links_close_end(s, &table[i], end, told);
}

void sim_break(struct pccl_sim *s, uint32_t connection) {
    struct connection *c = &s->links->all[connection];
    if (!c->used || c->broken) return;
    c->broken = true;
    // An unaware side learns it from what it sends, a heartbeat at the latest (link/failure_detector).
    int unaware = (int)sim_below(s, 6);
    for (uint32_t end = 0; end < 2; end++) {
        int64_t quiet =
            (int)end == unaware ? (int64_t)sim_below(s, 2 * (uint64_t)s->limit_ns / FAILURE_DETECTOR_CHECKS) : 0;
        // overtakes what is lost
        if (c->open[end])
            push(s, c, EVENT_LINK_ENDS, end, s->now + quiet + sim_delay(s, c->ends[!end], c->ends[end]), false);
    }
}

// Nothing will be heard between these two for so long that both sides give their links up.
void sim_fall_silent(struct pccl_sim *s, int from, int to) {
    for (uint32_t i = 0; i < s->links->high; i++) {
        const struct connection *c = &s->links->all[i];
        bool between = c->used && c->open[0] && c->open[1] &&
                       ((c->ends[0] == from && c->ends[1] == to) || (c->ends[0] == to && c->ends[1] == from));
        for (uint32_t end = 0; end < 2 && between; end++)
            push(s, c, EVENT_LINK_ENDS, end, s->now + s->user_timeout_ns + (int64_t)sim_below(s, 20 * MS_NS), true);
    }
}

static void use_link(struct pccl_sim *s, int slot, int other, uint32_t index, struct connection *c) {
    uint32_t *link = &s->processes[slot].links[other][index];
    if (*link != 0) {
        struct connection *old = &s->links->all[*link - 1];
        links_close_end(s, old, end_of(old, slot, s->processes[slot].life), true);
        s->processes[slot].ended = other + 1;
    }
    *link = (uint32_t)(c - s->links->all) + 1;
    s->processes[slot].met[other] = c->lives[!end_of(c, slot, s->processes[slot].life)];
}

static void dial_once(struct pccl_sim *s, int slot, const struct member_action *action, int other, uint32_t life,
                      bool ghost) {
    struct connection *c = connection_new(s);
    if (c == NULL) return;
    c->ends[0] = (uint16_t)slot;
    c->ends[1] = (uint16_t)other;
    c->lives[0] = s->processes[slot].life;
    c->lives[1] = life;
    c->to = action->id;
    c->index = action->index;
    c->open[0] = true; // being made
    c->ghost = ghost;
    uint32_t *at = &s->processes[slot].dialled[other], name = (uint32_t)(c - s->links->all) + 1;
    while (*at != 0 && *at < name) at = &s->links->all[*at - 1].next;
    c->next = *at;
    *at = name;
    if (life != 0) push(s, c, EVENT_DIAL_ARRIVES, 1, s->now + sim_delay(s, slot, other), false);
    push(s, c, EVENT_DIAL_LATE, 0,
         s->now + (ghost ? 2 * sim_delay(s, slot, other) : member_link_limit_ns(s->processes[slot].core)), false);
}

void sim_dial(struct pccl_sim *s, int slot, const struct member_action *action) {
    uint32_t life;
    int other = sim_slot(&action->id, &life);
    if (other < 0) {
        dial_once(s, slot, action, slot, 0, false); // of a changed HELLO
        return;
    }
    if (s->faulty && (s->faults & PCCL_SIM_DUPLICATE) != 0 && sim_chance(s, 8)) {
        s->counts[COUNT_DUPLICATES]++;
        SIM_TRACE(s, "fault: peer %d dials link %u to %d twice", slot + 1, action->index, other + 1);
        dial_once(s, slot, action, other, life, true);
    }
    dial_once(s, slot, action, other, life, false);
}

static struct connection *connection_of(struct pccl_sim *s, const struct event *event) {
    struct connection *c = &s->links->all[event->index];
    return c->used && c->serial == event->serial ? c : NULL;
}

// The acceptor's verdict on a hello. True: it stays parked.
static bool accept_dial(struct pccl_sim *s, int slot, const struct wire_link_hello *hello, struct connection *c,
                        int64_t until) {
    struct process *p = &s->processes[slot];
    enum member_judgement judgement = member_judge_hello(p->core, hello);
    if (judgement == MEMBER_PARK && s->now < until && p->parked_count < (s->only_votes ? PARKED_MOST : PARKED_OF_FEW)) {
        p->parked[p->parked_count].hello = *hello;
        p->parked[p->parked_count].connection = (uint32_t)(c - s->links->all);
        p->parked[p->parked_count].serial = c->serial;
        p->parked[p->parked_count++].until = until;
        return true;
    }
    bool accepted = judgement == MEMBER_ACCEPT;
    SIM_TRACE(s, "peer %d: link %u of %d is %s", slot + 1, hello->index, c->ends[0] + 1,
              accepted ? "accepted" : "refused");
    push(s, c, EVENT_DIAL_ENDS, 0, links_arrival(s, c, 0), accepted); // frames follow it
    if (!accepted) return false;
    c->open[1] = true;
    use_link(s, slot, c->ends[0], hello->index, c);
    member_link_up(p->core, &hello->from, hello->index, c->serial, 100 + (uint32_t)sim_below(s, 100), s->now, &p->out);
    return false;
}

void sim_dial_arrives(struct pccl_sim *s, struct event *event) {
    struct connection *c = connection_of(s, event);
    if (c == NULL || !sim_alive(s, event->from, event->other_life)) return;
    struct wire_link_hello hello = {.version = WIRE_VERSION,
                                    .kind = WIRE_LINK_DATA,
                                    .from = sim_id_of(event->from, event->other_life),
                                    .to = sim_id(s, event->slot),
                                    .index = c->index};
    memcpy(hello.secret, member_welcome(s->processes[event->from].core)->secret, sizeof hello.secret);
    accept_dial(s, event->slot, &hello, c, s->now + member_link_limit_ns(s->processes[event->from].core));
}

uint32_t links_take_parked(struct pccl_sim *s, int slot) {
    uint32_t count = s->processes[slot].parked_count;
    s->processes[slot].parked_count = 0;
    return count;
}

void links_judge_parked(struct pccl_sim *s, int slot, uint32_t i) {
    struct process *p = &s->processes[slot];
    struct wire_link_hello hello = p->parked[i].hello;
    struct connection *c = &s->links->all[p->parked[i].connection];
    if (!c->used || c->serial != p->parked[i].serial) return; // the dialler has given up
    accept_dial(s, slot, &hello, c, p->parked[i].until);
}

void sim_expire_parked(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    for (uint32_t i = 0; i < p->parked_count; i++)
        if (s->now >= p->parked[i].until) p->parked[i--] = p->parked[--p->parked_count];
}

static void dial_failed(struct pccl_sim *s, struct connection *c, int slot) {
    struct wire_id other = c->to;
    uint32_t index = c->index;
    bool ghost = c->ghost;
    links_close_end(s, c, 0, true);
    if (ghost) return; // its dialler has forgotten it
    member_link_failed(s->processes[slot].core, &other, index, &s->processes[slot].out);
}

void sim_dial_ends(struct pccl_sim *s, struct event *event) {
    struct connection *c = connection_of(s, event);
    if (c == NULL || !c->open[0]) return; // given up
    uint32_t link = (uint32_t)(c - s->links->all) + 1;
    if (!event->flag || c->broken || !c->open[1] || c->ghost) {
        dial_failed(s, c, event->slot);
        return;
    }
    struct process *p = &s->processes[event->slot];
    if (p->links[event->from][c->index] == link) return;
    struct wire_id other = sim_id_of(event->from, event->other_life);
    use_link(s, event->slot, event->from, c->index, c);
    member_link_up(p->core, &other, c->index, c->serial, 100 + (uint32_t)sim_below(s, 100), s->now, &p->out);
}

void sim_refuse_dial(struct pccl_sim *s, const struct event *event) {
    struct connection *c = connection_of(s, event);
    if (c != NULL && s->prompt && !s->processes[event->slot].dark)
        push(s, c, EVENT_DIAL_ENDS, 0, links_arrival(s, c, 0), false);
}

void sim_dial_late(struct pccl_sim *s, struct event *event) {
    struct connection *c = connection_of(s, event);
    if (c == NULL || !c->open[0] || s->processes[event->slot].links[event->from][c->index] == event->index + 1) return;
    dial_failed(s, c, event->slot);
}

void sim_link_ends(struct pccl_sim *s, struct event *event) {
    struct connection *c = connection_of(s, event);
    if (c == NULL) return;
    uint32_t end = end_of(c, event->slot, event->life), index = c->index;
    bool ghost = c->ghost;
    if (!c->open[end]) return;
    uint64_t serial = c->serial;
    struct process *p = &s->processes[event->slot];
    bool current = p->links[event->from][index] == event->index + 1;
    c->open[end] = false;
    drop_parked(s, c, end);
    if (event->flag && c->open[!end] && !c->broken) push(s, c, EVENT_LINK_ENDS, !end, links_arrival(s, c, !end), false);
    if (!c->open[!end]) connection_free(s, c);
    if (!current) {
        // A dial whose answer did not come.
        struct wire_id other = sim_id_of(event->from, event->other_life);
        if (end == 0 && !ghost) member_link_failed(p->core, &other, index, &p->out);
        return;
    }
    p->links[event->from][index] = 0;
    p->ended = event->from + 1;
    struct wire_id other = sim_id_of(event->from, event->other_life);
    SIM_TRACE(s, "peer %d: link %u to %d is lost", event->slot + 1, index, event->from + 1);
    member_link_lost(p->core, &other, index, serial, event->flag ? WIRE_LINK_SILENT : WIRE_LINK_BROKEN, s->now,
                     &p->out);
}

// Cancels everything under way with that peer, as links_cancel does.
static void cancel(struct pccl_sim *s, int slot, int other, uint32_t other_life) {
    struct process *p = &s->processes[slot];
    struct wire_id id = sim_id_of(other, other_life);
    for (uint32_t name = p->dialled[other], next; name != 0; name = next) {
        struct connection *c = &s->links->all[name - 1];
        next = c->next;
        if (c->open[0] && wire_id_equal(&c->to, &id) && p->links[other][c->index] != name)
            links_close_end(s, c, 0, true);
    }
    for (uint32_t i = 0; i < p->parked_count; i++) {
        struct connection *c = &s->links->all[p->parked[i].connection];
        if (!wire_id_equal(&p->parked[i].hello.from, &id)) continue;
        if (c->used && c->serial == p->parked[i].serial) push(s, c, EVENT_DIAL_ENDS, 0, links_arrival(s, c, 0), false);
        p->parked[i--] = p->parked[--p->parked_count];
    }
}

void sim_drop_links(struct pccl_sim *s, int slot, int other, uint32_t other_life) {
    struct process *p = &s->processes[slot];
    cancel(s, slot, other, other_life);
    for (uint32_t index = 0; index <= LANES; index++) {
        uint32_t link = p->links[other][index];
        if (link == 0) continue;
        struct connection *c = &s->links->all[link - 1];
        uint32_t end = end_of(c, slot, p->life);
        if (c->lives[!end] != other_life) continue;
        p->links[other][index] = 0;
        links_close_end(s, c, end, true);
    }
}

void sim_close_links(struct pccl_sim *s, int slot, bool told) {
    links_close_life(s, s->links->all, s->links->high, slot, s->processes[slot].life, told);
    memset(s->processes[slot].links, 0, sizeof s->processes[slot].links);
}

// The other ends hear nothing, and some find that out by themselves.
void sim_hold(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    for (uint32_t i = 0; i < s->links->high; i++) {
        const struct connection *c = &s->links->all[i];
        if (!c->used || !c->open[0] || !c->open[1]) continue;
        for (uint32_t end = 0; end < 2; end++)
            if (c->ends[end] == slot && c->lives[end] == p->life && sim_chance(s, 2))
                push(s, c, EVENT_LINK_ENDS, !end, s->now + s->user_timeout_ns + (int64_t)sim_below(s, 20 * MS_NS),
                     true);
    }
    memset(p->links, 0, sizeof p->links);
    p->control = 0;
}

void sim_let_go(struct pccl_sim *s, int slot, uint32_t life) {
    SIM_TRACE(s, "peer %d.%u: its child ends", slot + 1, life);
    for (uint32_t i = 0; i < s->links->high; i++) { // dials that nobody has taken
        struct connection *c = &s->links->all[i];
        if (c->used && c->open[0] && !c->open[1] && c->ends[1] == slot && c->lives[1] == life)
            push(s, c, EVENT_DIAL_ENDS, 0, links_arrival(s, c, 0), false);
    }
    links_close_life(s, s->controls, controls_most(s), slot, life, true);
    links_close_life(s, s->links->all, s->links->high, slot, life, true);
}

// ---- frames on links ----

bool sim_has_link(const struct pccl_sim *s, int slot, int other) { return s->processes[slot].links[other][0] != 0; }

bool sim_send(struct pccl_sim *s, int slot, int other, uint32_t index, const struct frame *frame) {
    const uint32_t *links = s->processes[slot].links[other];
    uint32_t link = links[index] != 0 ? links[index] : links[0];
    if (link == 0) return false;
    struct connection *c = &s->links->all[link - 1];
    uint32_t end = !end_of(c, slot, s->processes[slot].life);
    if (c->broken) { // not known yet
        push(s, c, EVENT_LINK_ENDS, !end, s->now + sim_delay(s, other, slot), false);
        return true;
    }
    if (s->cut_until[slot][other] > s->now + s->user_timeout_ns)
        push(s, c, EVENT_LINK_ENDS, !end, s->now + s->user_timeout_ns, true);
    struct event *event = links_event(s, c, EVENT_LINK_FRAME, end, links_arrival(s, c, end));
    event->frame = *frame;
    sim_push(s, event);
    return true;
}

bool sim_link_frame(struct pccl_sim *s, struct event *event, uint64_t epoch, bool *kept) {
    struct connection *c = connection_of(s, event);
    if (c == NULL || c->broken) return false;
    uint32_t end = end_of(c, event->slot, event->life);
    const struct process *p = &s->processes[event->slot];
    if (!c->open[end] || p->links[event->from][c->index] != event->index + 1) return false;
    if (c->parked_first[end] == 0 && event->frame.epoch <= epoch) return true;
    *kept = true;
    event->next = 0;
    uint32_t name = (uint32_t)(event - s->queue->events) + 1;
    if (c->parked_first[end] == 0)
        c->parked_first[end] = name;
    else
        s->queue->events[c->parked_last[end] - 1].next = name;
    c->parked_last[end] = name;
    return false;
}

struct event *links_next_parked(struct pccl_sim *s, int slot, int other, uint32_t index, uint64_t epoch) {
    struct process *p = &s->processes[slot];
    uint32_t link = p->links[other][index];
    if (link == 0) return NULL;
    struct connection *c = &s->links->all[link - 1];
    uint32_t end = end_of(c, slot, p->life), first = c->parked_first[end];
    if (first == 0 || s->queue->events[first - 1].frame.epoch > epoch) return NULL;
    struct event *event = &s->queue->events[first - 1];
    c->parked_first[end] = event->next;
    if (event->next == 0) c->parked_last[end] = 0;
    return event;
}
