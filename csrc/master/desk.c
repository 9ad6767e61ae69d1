#include "master/desk.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "net/socket.h"

void desk_init(struct desk *desk, int64_t limit_ns, uint64_t id_key, int64_t now_ns) {
    memset(desk, 0, offsetof(struct desk, peers));
    desk->limit_ns = limit_ns;
    desk->id_key = id_key;
    desk->now_ns = desk->heartbeat_at = desk->survivors_until = now_ns;
    desk->silence_at = desk->warn_at = INT64_MAX;
}

void desk_fini(struct desk *desk) { actions_fini(&desk->actions); }

bool desk_run_equal(const struct desk_run *a, const struct desk_run *b) {
    return a->id == b->id && memcmp(a->secret, b->secret, sizeof a->secret) == 0;
}

void desk_leave_run(struct desk *desk) {
    desk->left_run = desk->run;
    desk->left_count = 0;
    for (uint32_t i = 0; i < desk->count; i++)
        if (!desk->order[i]->gone) desk->left[desk->left_count++] = desk->order[i]->member.id;
}

// ---- peers ----

uint32_t desk_bucket(uint64_t key, const struct wire_id *id) {
    uint64_t low, high;
    memcpy(&low, id->bytes, sizeof low);
    memcpy(&high, id->bytes + sizeof low, sizeof high);
    uint64_t mixed = (low ^ key) * UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ mixed >> 29 ^ high) * (key | 1);
    return (uint32_t)(mixed >> 40) & (DESK_ID_BUCKETS - 1);
}

struct desk_peer *desk_of_id(struct desk *desk, const struct wire_id *id) {
    for (uint16_t at = desk->by_id[desk_bucket(desk->id_key, id)]; at != 0; at = desk->peers[at - 1].next_by_id)
        if (!desk->peers[at - 1].gone && wire_id_equal(&desk->peers[at - 1].member.id, id)) return &desk->peers[at - 1];
    return NULL;
}

struct desk_peer *desk_of_conn(struct desk *desk, uint32_t conn) {
    return conn < ACTIONS_MAX_CONNS && desk->by_conn[conn] != 0 ? &desk->peers[desk->by_conn[conn] - 1] : NULL;
}

struct desk_peer *desk_member(struct desk *desk, const struct desk_group *group, const struct wire_id *id) {
    struct desk_peer *peer = desk_of_id(desk, id);
    return peer != NULL && peer->accepted && peer->group == group ? peer : NULL;
}

static struct desk_peer *unused_peer(struct desk *desk) {
    while (desk->unused_from < desk->slots && desk->peers[desk->unused_from].used) desk->unused_from++;
    if (desk->unused_from == desk->slots) desk->slots++;
    return &desk->peers[desk->unused_from++];
}

struct desk_peer *desk_add(struct desk *desk, uint32_t conn, const struct wire_member *member) {
    struct desk_peer *peer = unused_peer(desk);
    uint16_t *bucket = &desk->by_id[desk_bucket(desk->id_key, &member->id)];
    *peer = (struct desk_peer){.used = true, .conn = conn, .member = *member, .masters = 1, .next_by_id = *bucket};
    *bucket = desk->by_conn[conn] = (uint16_t)(desk_slot(desk, peer) + 1);
    desk_heard(desk, peer, desk->now_ns);
    desk->peer_count++;
    desk->loopback_count += socket_address_is_loopback(&member->address);
    desk->turnover = true;
    return peer;
}

void desk_forget(struct desk *desk, struct desk_peer *peer) {
    uint32_t slot = desk_slot(desk, peer);
    uint16_t *link = &desk->by_id[desk_bucket(desk->id_key, &peer->member.id)];
    while (*link != slot + 1) link = &desk->peers[*link - 1].next_by_id;
    *link = peer->next_by_id;
    if (slot < desk->unused_from) desk->unused_from = slot;
    desk->loopback_count -= socket_address_is_loopback(&peer->member.address);
    *peer = (struct desk_peer){0};
    desk->peer_count--;
    desk->turnover = true;
}

void desk_heard(struct desk *desk, struct desk_peer *peer, int64_t now_ns) {
    arrival_note(&peer->heard, now_ns, desk->limit_ns);
    // it may have grown less patient
    desk->silence_at = platform_earlier(desk->silence_at, arrival_deadline_ns(&peer->heard, desk->limit_ns));
}

void desk_begin_wait(struct desk *desk, struct desk_peer *peer) {
    peer->waits_since = desk->now_ns;
    desk->warn_at = platform_earlier(desk->warn_at, desk->now_ns + DESK_WARN_MS * MS_NS);
}

void desk_set_vote(struct desk *desk, struct desk_peer *peer, uint8_t kind) {
    if (peer->vote != 0) desk->open[peer->vote]--;
    peer->vote = kind;
    if (kind == 0) return;
    desk->open[kind]++;
    desk_begin_wait(desk, peer);
}

struct peer_label desk_name(const struct desk_peer *peer) {
    char join[PEER_LABEL_MORE];
    snprintf(join, sizeof join, "join %llu", (unsigned long long)peer->member.join_number);
    return peer_label_with(&peer->member.id, &peer->member.name, join);
}

struct desk_text desk_place(const struct desk_peer *peer) {
    char address[64];
    struct desk_text out;
    snprintf(out.chars, sizeof out.chars, "%s at %s", desk_name(peer).chars,
             socket_address_format(address, sizeof address, &peer->member.address));
    return out;
}

// ---- groups ----

struct desk_group *desk_first(const struct desk *desk) { return desk->count > 0 ? desk->order[0]->group : NULL; }

struct desk_group *desk_after(const struct desk *desk, const struct desk_group *group) {
    struct desk_peer *const *next = group->members + group->count;
    return next < desk->order + desk->count ? (*next)->group : NULL;
}

struct desk_group *desk_group_for(struct desk *desk, uint32_t id) {
    struct desk_group *unused = NULL;
    for (uint32_t i = 0; i < desk->group_slots; i++) {
        struct desk_group *group = &desk->groups[i];
        if (group->count > 0 && group->id == id) return group;
        if (group->count == 0 && unused == NULL) unused = group;
    }
    // There are as many groups as peers, so one is unused.
    if (unused == NULL) unused = &desk->groups[desk->group_slots++];
    *unused = (struct desk_group){.id = id, .count = 1};
    return unused;
}

void desk_rank(struct desk *desk) {
    for (uint32_t begin = 0, end; begin < desk->count; begin = end) {
        struct desk_group *group = desk->order[begin]->group;
        for (end = begin; end < desk->count && desk->order[end]->member.group == group->id; end++)
            desk->order[end]->rank = end - begin;
        group->members = &desk->order[begin];
        group->count = end - begin;
    }
}

struct wire_epoch desk_describe(struct desk *desk, struct desk_peer *const *peers, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) desk->members[i] = peers[i]->member;
    return (struct wire_epoch){.count = count, .members = desk->members};
}

void desk_change(struct desk *desk, struct desk_group *group) { group->changed = desk->changed = true; }

// ---- what is said ----

const char DESK_NO_RUN[] =
    "no run goes on here, and this peer may only join one; first start a peer that may begin one";

struct wire_header desk_header(const struct desk *desk) {
    return (struct wire_header){.run = desk->run.id, .generation = desk->generation, .epoch = desk->number};
}

void desk_send(struct desk *desk, struct desk_peer *peer) {
    if (peer->gone || desk->out_of_memory) return; // who has missed something must not hear what comes after it
    if (actions_send(&desk->actions, peer->conn)) return;
    if (peer->accepted)
        desk->out_of_memory = true;
    else
        desk_drop(desk, peer, LOG_ERR, "the master is out of memory");
}

void desk_send_group(struct desk *desk, const struct desk_group *group) {
    for (uint32_t rank = 0; rank < group->count; rank++) desk_send(desk, group->members[rank]);
}

void desk_send_text(struct desk *desk, struct desk_peer *peer, enum wire_type type, const char *text) {
    wire_encode_text(desk_frame(desk), desk_header(desk), type, text);
    desk_send(desk, peer);
}

static void leave(struct desk *desk, struct desk_peer *peer, enum log_level level, const char *how, const char *why) {
    struct desk_text place = desk_place(peer);
    if (peer->accepted)
        actions_log(&desk->actions, level > LOG_NOTICE ? level : LOG_NOTICE, "%s %s: %s", how, place.chars, why);
    else
        actions_log_stranger(&desk->actions, level, "%s newcomer, %s: %s", how, place.chars, why);
    peer->gone = true;
    desk->gone_count++;
    if (desk->by_conn[peer->conn] == 0) return; // the connection went first
    desk->by_conn[peer->conn] = 0;
    actions_close(&desk->actions, peer->conn);
}

void desk_drop(struct desk *desk, struct desk_peer *peer, enum log_level level, const char *why) {
    if (!peer->gone) leave(desk, peer, level, "lost", why);
}

void desk_expel(struct desk *desk, struct desk_peer *peer, const char *format, ...) {
    if (peer->gone) return;
    char why[WIRE_MAX_TEXT + 1];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    desk_send_text(desk, peer, peer->accepted ? WIRE_EXPELLED : WIRE_REFUSED, why);
    if (peer->gone) return; // for want of memory
    leave(desk, peer, LOG_WARN, peer->accepted ? "expelled" : "refused", why);
}

void desk_refuse_join_only(struct desk *desk) {
    for (uint32_t i = 0; i < desk->slots; i++)
        if (desk->peers[i].used && !desk->peers[i].gone && !desk->peers[i].join_only) return;
    for (uint32_t i = 0; i < desk->slots; i++)
        if (desk->peers[i].used) desk_expel(desk, &desk->peers[i], "%s", DESK_NO_RUN);
}
