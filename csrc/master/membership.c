// Peers, votes and time: docs/protocol.md as code.
#include "master/membership_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/socket.h"

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- actions ----

struct wire_header membership_header(const struct membership *m) {
    return (struct wire_header){.run = m->run, .generation = m->generation, .epoch = m->number};
}

size_t membership_frame_begin(struct membership *m) {
    m->actions.bytes.failed = false; // what was refused before may be granted now
    return m->actions.bytes.length;
}

bool membership_frame_end(struct membership *m, size_t begin, size_t *length) {
    *length = m->actions.bytes.length - begin;
    return !m->actions.bytes.failed;
}

static void add_log(struct membership *m, enum log_level level, bool of_strangers, const char *format,
                    va_list arguments) {
    if (m->actions.log_count == MEMBERSHIP_MAX_LOGS) return;
    struct membership_log *line = &m->actions.logs[m->actions.log_count++];
    line->level = level;
    line->of_strangers = of_strangers;
    vsnprintf(line->text, sizeof line->text, format, arguments);
}

void membership_log(struct membership *m, enum log_level level, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_log(m, level, false, format, arguments);
    va_end(arguments);
}

void membership_log_stranger(struct membership *m, enum log_level level, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_log(m, level, true, format, arguments);
    va_end(arguments);
}

static bool append_send(struct membership_actions *actions, uint32_t conn, size_t begin, size_t length) {
    if (actions->send_count == actions->send_capacity) {
        size_t capacity = actions->send_capacity == 0 ? 64 : 2 * actions->send_capacity;
        struct membership_send *sends = realloc(actions->sends, capacity * sizeof *sends);
        if (sends == NULL) return false;
        actions->sends = sends;
        actions->send_capacity = capacity;
    }
    actions->sends[actions->send_count++] = (struct membership_send){conn, begin, length};
    return true;
}

void membership_starve(struct membership *m) { m->starved = true; }

void membership_send(struct membership *m, struct peer *peer, size_t begin, size_t length) {
    if (peer->gone || m->starved) return; // who has missed something must not hear what comes after it
    if (!m->actions.bytes.failed && append_send(&m->actions, peer->conn, begin, length)) return;
    if (peer->accepted)
        membership_starve(m);
    else
        membership_drop(m, peer, LOG_ERR, "the master is out of memory");
}

bool membership_send_to(struct membership *m, uint32_t conn, size_t begin, size_t length) {
    return !m->actions.bytes.failed && append_send(&m->actions, conn, begin, length);
}

void membership_close(struct membership *m, uint32_t conn) { m->actions.closes[m->actions.close_count++] = conn; }

void membership_turn_away(struct membership *m, uint32_t conn, struct wire_header header, enum wire_type type,
                          const char *why) {
    size_t begin = membership_frame_begin(m), length;
    wire_encode_text(&m->actions.bytes, header, type, why);
    if (membership_frame_end(m, begin, &length)) membership_send_to(m, conn, begin, length);
    membership_close(m, conn);
    membership_log_stranger(m, LOG_WARN, "refused a peer: %s", why);
}

const char *membership_name(char out[64], const struct peer *peer) {
    const uint8_t *id = peer->member.id.bytes;
    snprintf(out, 64, "peer %02x%02x%02x%02x (join %llu)", id[0], id[1], id[2], id[3],
             (unsigned long long)peer->member.join_number);
    return out;
}

const char *membership_name_and_address(char out[128], const struct peer *peer) {
    char name[64], address[64];
    snprintf(out, 128, "%s at %s", membership_name(name, peer),
             socket_address_format(address, sizeof address, &peer->member.address));
    return out;
}

static void log_departure(struct membership *m, const struct peer *peer, enum log_level level, const char *how,
                          const char *why) {
    char name[128];
    membership_name_and_address(name, peer);
    if (peer->accepted)
        membership_log(m, level > LOG_NOTICE ? level : LOG_NOTICE, "%s %s: %s", how, name, why);
    else
        membership_log_stranger(m, level, "%s newcomer, %s: %s", how, name, why);
}

static void drop(struct membership *m, struct peer *peer) {
    peer->gone = true;
    m->gone_count++;
    if (m->by_conn[peer->conn] == 0) return; // the connection went first
    m->by_conn[peer->conn] = 0;
    membership_close(m, peer->conn);
}

void membership_drop(struct membership *m, struct peer *peer, enum log_level level, const char *why) {
    if (peer->gone) return;
    log_departure(m, peer, level, "lost", why);
    drop(m, peer);
}

void membership_expel(struct membership *m, struct peer *peer, const char *format, ...) {
    if (peer->gone) return;
    char why[WIRE_MAX_TEXT + 1];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    size_t begin = membership_frame_begin(m), length;
    wire_encode_text(&m->actions.bytes, membership_header(m), peer->accepted ? WIRE_EXPELLED : WIRE_REFUSED, why);
    membership_frame_end(m, begin, &length);
    membership_send(m, peer, begin, length);
    if (peer->gone) return; // for want of memory
    log_departure(m, peer, LOG_WARN, peer->accepted ? "expelled" : "refused", why);
    drop(m, peer);
}

void membership_open_vote(struct membership *m, struct peer *peer, uint8_t kind) {
    peer->vote = kind;
    peer->voted_ns = m->now_ns;
    m->open_votes[kind]++;
    membership_wait_begins(m);
}

void membership_close_vote(struct membership *m, struct peer *peer) {
    m->open_votes[peer->vote]--;
    peer->vote = 0;
}

void membership_outcome(struct membership *m, uint8_t kind, uint8_t code, uint64_t value) {
    size_t begin = membership_frame_begin(m), length;
    struct wire_outcome outcome = {kind, code, value};
    wire_encode_outcome(&m->actions.bytes, membership_header(m), &outcome);
    membership_frame_end(m, begin, &length);
    for (uint32_t i = 0; i < m->count; i++) {
        m->order[i]->vote = 0;
        membership_send(m, m->order[i], begin, length);
    }
    m->open_votes[kind] = 0;
    m->barrier++;
    m->phase = PHASE_IDLE;
}

// ---- votes ----

static bool may_come(struct membership *m, const struct peer *peer) {
    return peer->used && !peer->accepted && membership_waits_behind_until(m, &peer->member.address) <= m->now_ns;
}

static bool newcomers_wait(struct membership *m) {
    for (uint32_t i = 0; i < m->slots && m->peer_count > m->count; i++)
        if (may_come(m, &m->peers[i])) return true;
    return false;
}

static void pass_votes(struct membership *m) {
    if (m->count == 0) {
        if (m->peer_count > 0) membership_form_update(m);
    } else if (m->open_votes[WIRE_VOTE_UPDATE] == m->count) {
        for (uint32_t i = 0; i < m->slots; i++) m->peers[i].invited = may_come(m, &m->peers[i]);
        membership_form_update(m);
    } else if (m->open_votes[WIRE_VOTE_PENDING] == m->count) {
        membership_outcome(m, WIRE_VOTE_PENDING, CODE_SUCCESS, newcomers_wait(m));
    } else if (m->open_votes[WIRE_VOTE_OPTIMIZE] == m->count) {
        membership_optimise(m);
    }
}

// ---- settling ----

uint32_t membership_bucket(const struct membership *m, const struct wire_id *id) {
    uint64_t low, high;
    memcpy(&low, id->bytes, sizeof low);
    memcpy(&high, id->bytes + sizeof low, sizeof high);
    uint64_t mixed = (low ^ m->id_key) * UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ mixed >> 29 ^ high) * (m->id_key | 1);
    return (uint32_t)(mixed >> 40) & (ID_BUCKETS - 1);
}

struct peer *membership_peer_of_id(struct membership *m, const struct wire_id *id) {
    for (uint16_t at = m->peers_by_id[membership_bucket(m, id)]; at != 0; at = m->peers[at - 1].next_by_id)
        if (!m->peers[at - 1].gone && wire_id_equal(&m->peers[at - 1].member.id, id)) return &m->peers[at - 1];
    return NULL;
}

void membership_forget_peer(struct membership *m, struct peer *peer) {
    uint32_t slot = (uint32_t)(peer - m->peers);
    uint16_t *link = &m->peers_by_id[membership_bucket(m, &peer->member.id)];
    while (*link != slot + 1) link = &m->peers[*link - 1].next_by_id;
    *link = peer->next_by_id;
    if (slot < m->unused_from) m->unused_from = slot;
    m->loopback_count -= socket_address_is_loopback(&peer->member.address);
    membership_rates_forget(m, peer);
    *peer = (struct peer){0};
    m->peer_count--;
    m->gather_due = true;
}

// Removes the peers that are gone. Nobody holds one after this: the order and the groups are rebuilt here, the
// measurements are cancelled, and a candidate with one is stale, so that its list is not read again.
static void reap(struct membership *m) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        struct peer *peer = m->order[i];
        peer->group->count = 0; // set again below, where members are left
        if (!peer->gone) {
            m->order[kept++] = peer;
            continue;
        }
        m->lost = true;
        peer->group->lost = true;
        membership_links_forget(m, peer->group, peer);
        if (peer->vote != 0) m->open_votes[peer->vote]--;
    }
    if (kept < m->count) {
        membership_measure_cancel(m);
        m->sync_due = true;
    }
    m->count = kept;
    membership_place(m);
    for (uint32_t i = 0; i < m->slots; i++) {
        struct peer *peer = &m->peers[i];
        if (!peer->gone) continue;
        if (peer->candidate) m->candidate_stale = true;
        if (peer->accepted && peer->group->count == 0) membership_group_fini(peer->group);
        membership_forget_peer(m, peer);
    }
    m->gone_count = 0;
}

static void progress(struct membership *m) {
    if (m->phase == PHASE_CANDIDATE && m->candidate_stale) {
        m->phase = PHASE_IDLE;
        if (m->candidate_kind == WIRE_VOTE_UPDATE) membership_form_update(m); // the vote has passed and stays so
    } else if (m->phase == PHASE_CANDIDATE && m->unanswered == 0 && !m->candidate_judged) {
        membership_judge_candidate(m);
    } else if (m->phase == PHASE_MEASURE && m->round_unanswered == 0) {
        membership_optimise(m);
    }
    if (m->phase == PHASE_IDLE && m->gone_count == 0) pass_votes(m);
    if (m->gone_count == 0) membership_sync_advance(m);
}

void membership_start_run(struct membership *m) {
    if (m->next_join > 1) {
        m->last_run = m->run;
        memcpy(m->last_secret, m->secret, sizeof m->last_secret);
    }
    memcpy(&m->run, m->random, sizeof m->run);
    memcpy(m->secret, m->random + sizeof m->run, sizeof m->secret);
    if (m->run == 0) m->run = 1; // 0 means: no run yet
    for (size_t i = 0; i < sizeof m->random; i++) m->random[i] = (uint8_t)(m->random[i] * 167 + i + 1);
    m->wants_random = true;
    m->generation = 1;
    m->number = 0;
    m->next_join = 1;
    m->barrier = 0;
    m->sync_round = 0;
    m->attempt = 0;
    m->quorum = (struct wire_quorum){0};
    m->heard_number = m->lost_number = 0;
    m->yields_until = 0;
    m->lost = m->changed = false;
    m->phase = PHASE_IDLE;
    m->warn_at = INT64_MAX;
    memset(m->open_votes, 0, sizeof m->open_votes);
}

const struct membership_actions *membership_settle(struct membership *m) {
    do {
        if (m->starved) membership_give_up_starved(m);
        if (m->gone_count > 0) reap(m);
        membership_watch_quorum(m);
        if (m->lost) membership_enter_epoch(m, WIRE_REASON_LOSS);
        if (m->changed) membership_enter_epoch(m, WIRE_REASON_RELINK);
        if (m->gone_count == 0) progress(m);
    } while (m->gone_count > 0 || m->lost || m->changed || m->starved);
    if (m->peer_count == 0 && m->next_join > 1) {
        membership_log(m, LOG_NOTICE, "the last peer is gone, so the run has ended: the next peer starts a new one");
        membership_start_run(m);
    }
    return m->survivor_count > 0 && m->gather_due && membership_gather(m) ? membership_settle(m) : &m->actions;
}

void membership_begin_event(struct membership *m, int64_t now_ns) {
    m->actions.bytes.length = 0;
    m->actions.send_count = m->actions.close_count = m->actions.log_count = 0;
    // Whoever has peers sends a heartbeat every fifth of the limit.
    bool woke = m->peer_count + m->survivor_count > 0 && now_ns > m->now_ns + m->limit_ns / 2;
    if (now_ns > m->now_ns) m->now_ns = now_ns;
    if (woke) membership_woke(m);
}

// ---- registration ----

static const char *reason_to_refuse(struct membership *m, const struct wire_address *source,
                                    const struct wire_hello *hello) {
    if (hello->version != WIRE_VERSION) return "the master speaks another version of the protocol";
    if (m->peer_count == WIRE_MAX_MEMBERS) return "the run is full";
    if (membership_peer_of_id(m, &hello->id) != NULL) return "a peer of this id is registered";
    bool here = socket_address_is_loopback(source);
    if (m->peer_count == 0 && !membership_suits_held(m, here))
        return "most peers that wait for the run to begin reached the master over the other kind of address, loopback "
               "or network; give all of them its network address";
    if (here && m->loopback_count < m->peer_count)
        return "this peer reached the master over loopback, others over the network, so they could not reach this "
               "peer; give it the master's network address";
    if (!here && m->loopback_count > 0)
        return "this peer reached the master over the network, others over loopback, so it could not reach them; give "
               "them the master's network address";
    return NULL;
}

static struct peer *unused_peer(struct membership *m) {
    while (m->unused_from < m->slots && m->peers[m->unused_from].used) m->unused_from++;
    if (m->unused_from == m->slots) m->slots++;
    return &m->peers[m->unused_from++];
}

void membership_note_heard(struct membership *m, struct peer *peer, int64_t now_ns) {
    arrival_note(&peer->heard, now_ns, m->limit_ns);
    // it may have grown less patient
    m->silence_at = earlier(m->silence_at, arrival_deadline_ns(&peer->heard, m->limit_ns));
}

struct peer *membership_add_peer(struct membership *m, uint32_t conn, const struct wire_member *member) {
    struct peer *peer = unused_peer(m);
    *peer = (struct peer){.used = true, .conn = conn, .member = *member, .masters = 1};
    uint16_t *bucket = &m->peers_by_id[membership_bucket(m, &member->id)];
    peer->next_by_id = *bucket;
    *bucket = m->by_conn[conn] = (uint16_t)(peer - m->peers + 1);
    membership_note_heard(m, peer, m->now_ns);
    m->peer_count++;
    m->loopback_count += socket_address_is_loopback(&member->address);
    m->gather_due = true;
    return peer;
}

void membership_register(struct membership *m, uint32_t conn, const struct wire_address *source,
                         const struct wire_hello *hello) {
    const char *why = reason_to_refuse(m, source, hello);
    if (why != NULL) {
        membership_turn_away(m, conn, membership_header(m), WIRE_REFUSED, why);
        return;
    }
    if (m->peer_count == 0) m->yields_until = m->now_ns + MEMBERSHIP_YOUNG_RUN_MS * MS_NS;
    struct wire_member member = {.id = hello->id,
                                 .join_number = m->next_join++,
                                 .group = hello->group,
                                 .lanes = hello->lanes,
                                 .address = *source};
    member.address.port = hello->port;
    struct peer *peer = membership_add_peer(m, conn, &member);
    peer->masters = hello->masters;
    peer->waits_since = m->now_ns;
    membership_wait_begins(m);

    struct wire_welcome welcome = {.join_number = peer->member.join_number,
                                   .heartbeat_limit_ms = (uint32_t)(m->limit_ns / MS_NS),
                                   .seen = *source};
    memcpy(welcome.secret, m->secret, sizeof welcome.secret);
    size_t begin = membership_frame_begin(m), length;
    wire_encode_welcome(&m->actions.bytes, membership_header(m), &welcome);
    membership_frame_end(m, begin, &length);
    membership_send(m, peer, begin, length);
    char name[128];
    membership_log_stranger(m, LOG_INFO, "registered %s, group %u", membership_name_and_address(name, peer),
                            hello->group);
}

const struct membership_actions *membership_peer_connected(struct membership *m, int64_t now_ns, uint32_t conn,
                                                           const struct wire_address *source,
                                                           const struct wire_hello *hello) {
    membership_begin_event(m, now_ns);
    if (!membership_hold(m, conn, source, hello)) membership_register(m, conn, source, hello);
    return membership_settle(m);
}

// ---- messages ----

static void on_vote(struct membership *m, struct peer *peer, const uint8_t *body, size_t length) {
    struct wire_vote vote;
    if (!wire_decode_vote(body, length, &vote))
        membership_expel(m, peer, "malformed VOTE");
    else if (peer->vote != 0)
        membership_expel(m, peer, "voted while its vote was open");
    else
        membership_open_vote(m, peer, vote.kind);
}

static void on_linked(struct membership *m, struct peer *peer, const struct wire_header *header, const uint8_t *body) {
    struct wire_linked linked;
    if (!wire_decode_linked(body, header->length, &linked)) {
        membership_expel(m, peer, "malformed LINKED");
        return;
    }
    if (linked.attempt > m->attempt || (linked.attempt == 0 && !peer->accepted)) {
        membership_expel(m, peer, "LINKED for a candidate that never was");
        return;
    }
    if (linked.latency_us > 0) peer->latency_us = linked.latency_us;
    peer->heard.round_trip_ns = 2 * (int64_t)peer->latency_us * US_NS;
    membership_note_heard(m, peer, m->now_ns);
    if (linked.attempt > 0)
        membership_on_candidate_linked(m, peer, &linked);
    else if (header->epoch >= peer->group->group_epoch)
        membership_on_linked(m, peer);
}

static void on_message(struct membership *m, struct peer *peer, const struct wire_header *header, const uint8_t *body) {
    if (header->run != m->run || header->generation != m->generation) return; // another master's, not ours to judge
    if (header->epoch > m->number) {
        membership_expel(m, peer, "%s of an epoch that never was", wire_type_name(header->type));
        return;
    }
    if (peer->accepted && header->epoch > m->heard_number) m->heard_number = header->epoch;
    if (peer->accepted) membership_on_entered(m, peer, header->epoch);
    switch (header->type) {
    case WIRE_HEARTBEAT: return;
    case WIRE_MOVED: membership_on_moved(m, peer); return;
    case WIRE_LEAVE:
        membership_on_end(m, peer);
        membership_drop(m, peer, LOG_INFO, "it left");
        return;
    case WIRE_LINKED: on_linked(m, peer, header, body); return;
    default: break;
    }
    if (!peer->accepted) {
        membership_expel(m, peer, "%s before it was accepted", wire_type_name(header->type));
        return;
    }
    switch (header->type) {
    case WIRE_VOTE: on_vote(m, peer, body, header->length); return;
    case WIRE_DONE: membership_on_done(m, peer, header, body); return;
    case WIRE_REPORT: membership_on_report(m, peer, header, body); return;
    case WIRE_MISMATCH: membership_on_mismatch(m, peer, header, body); return;
    case WIRE_LINK_DOWN: membership_on_link_down(m, peer, header, body); return;
    case WIRE_MEASURED: membership_on_measured(m, peer, body, header->length); return;
    case WIRE_SYNC_VOTE: membership_on_sync_vote(m, peer, body, header->length); return;
    case WIRE_SYNC_DONE: membership_on_sync_done(m, peer, body, header->length); return;
    default: membership_expel(m, peer, "%s is not for the master", wire_type_name(header->type)); return;
    }
}

static struct peer *peer_of(struct membership *m, uint32_t conn) {
    return conn < MEMBERSHIP_MAX_CONNS && m->by_conn[conn] != 0 ? &m->peers[m->by_conn[conn] - 1] : NULL;
}

const struct membership_actions *membership_message(struct membership *m, int64_t now_ns, uint32_t conn,
                                                    const struct wire_header *header, const uint8_t *body) {
    membership_begin_event(m, now_ns);
    struct peer *peer = peer_of(m, conn);
    if (peer == NULL && !membership_survivor_message(m, conn, header)) return &m->actions;
    if (peer != NULL) {
        membership_note_heard(m, peer, m->now_ns);
        on_message(m, peer, header, body);
    }
    return membership_settle(m);
}

static void lose(struct membership *m, uint32_t conn, const char *why) {
    struct peer *peer = peer_of(m, conn);
    if (peer == NULL) {
        membership_survivor_lost(m, conn);
        return;
    }
    m->by_conn[conn] = 0;
    membership_on_end(m, peer);
    membership_drop(m, peer, LOG_INFO, why);
}

const struct membership_actions *membership_peers_lost(struct membership *m, int64_t now_ns,
                                                       const struct membership_loss *losses, size_t count) {
    membership_begin_event(m, now_ns);
    for (size_t i = 0; i < count; i++) lose(m, losses[i].conn, losses[i].why);
    return membership_settle(m);
}

const struct membership_actions *membership_peer_lost(struct membership *m, int64_t now_ns, uint32_t conn,
                                                      const char *why) {
    return membership_peers_lost(m, now_ns, &(struct membership_loss){conn, why}, 1);
}

void membership_heard(struct membership *m, int64_t now_ns, uint32_t conn) {
    struct peer *peer = peer_of(m, conn);
    if (peer == NULL)
        membership_survivor_heard(m, now_ns, conn);
    else
        membership_note_heard(m, peer, now_ns);
}

// ---- time ----

static void send_heartbeats(struct membership *m) {
    m->heartbeat_at = m->now_ns + m->limit_ns / 5;
    membership_gather_beat(m);
    size_t begin = membership_frame_begin(m), length;
    wire_encode_empty(&m->actions.bytes, membership_header(m), WIRE_HEARTBEAT);
    membership_frame_end(m, begin, &length);
    for (uint32_t i = 0; i < m->slots; i++)
        if (m->peers[i].used) membership_send(m, &m->peers[i], begin, length);
}

const struct membership_actions *membership_tick(struct membership *m, int64_t now_ns) {
    membership_begin_event(m, now_ns);
    m->gather_due = true;
    uint32_t silent = 0;
    for (uint32_t i = 0; i < m->count; i++)
        silent += arrival_deadline_ns(&m->order[i]->heard, m->limit_ns) <= m->now_ns;
    if (silent > 0) membership_unheard(m, silent);
    m->silence_at = INT64_MAX;
    for (uint32_t i = 0; i < m->slots; i++) {
        if (!m->peers[i].used) continue;
        int64_t deadline = arrival_deadline_ns(&m->peers[i].heard, m->limit_ns);
        if (deadline <= m->now_ns)
            membership_expel(m, &m->peers[i], "no heartbeat for %.1f s",
                             (double)(m->now_ns - m->peers[i].heard.at_ns) / (double)SECOND_NS);
        else
            m->silence_at = earlier(m->silence_at, deadline);
    }
    for (uint32_t i = 0; i < m->count; i += m->order[i]->group->count)
        if (m->order[i]->group->relink_at <= m->now_ns) membership_links_tick(m, m->order[i]->group);
    // judged as it is
    if (m->phase == PHASE_CANDIDATE && !m->candidate_judged && m->phase_deadline <= m->now_ns) m->unanswered = 0;
    if (m->phase == PHASE_MEASURE && m->phase_deadline <= m->now_ns) membership_measure_tick(m);
    membership_waits_tick(m);
    membership_gather_tick(m);
    if (m->peer_count + m->survivor_count > 0 && m->heartbeat_at <= m->now_ns) send_heartbeats(m);
    return membership_settle(m);
}

int64_t membership_next_deadline(const struct membership *m) {
    int64_t next = membership_gather_deadline(m);
    if (m->peer_count == 0) return next;
    next = earlier(earlier(next, m->silence_at), earlier(m->heartbeat_at, m->warn_at));
    for (uint32_t i = 0; i < m->count; i += m->order[i]->group->count)
        next = earlier(next, m->order[i]->group->relink_at);
    if (m->phase == PHASE_MEASURE || (m->phase == PHASE_CANDIDATE && !m->candidate_judged))
        next = earlier(next, m->phase_deadline);
    return next;
}

// ---- life ----

struct membership *membership_new(uint32_t heartbeat_limit_ms, const uint8_t random[MEMBERSHIP_RANDOM_BYTES],
                                  int64_t now_ns) {
    struct membership *m = malloc(sizeof *m);
    if (m == NULL) return NULL;
    memset(m, 0, offsetof(struct membership, peers));
    m->now_ns = now_ns;
    m->limit_ns = heartbeat_limit_ms * MS_NS;
    m->heartbeat_at = m->young_until = now_ns;
    m->majority_at = m->silence_at = m->survivors_at = INT64_MAX;
    memcpy(&m->id_key, random + sizeof m->random - sizeof m->id_key, sizeof m->id_key);
    memcpy(m->random, random, sizeof m->random);
    membership_start_run(m);
    return m;
}

void membership_free(struct membership *m) {
    if (m == NULL) return;
    membership_gather_fini(m);
    for (uint32_t i = 0; i < m->group_slots; i++) membership_group_fini(&m->groups[i]);
    wire_buffer_fini(&m->actions.bytes);
    free(m->actions.sends);
    free(m->rates);
    free(m);
}

bool membership_wants_random(const struct membership *m) { return m->wants_random; }

void membership_set_random(struct membership *m, const uint8_t random[MEMBERSHIP_RANDOM_BYTES]) {
    memcpy(m->random, random, sizeof m->random);
    m->wants_random = false;
}

uint32_t membership_peer_count(const struct membership *m) { return m->peer_count; }

uint64_t membership_epoch(const struct membership *m) { return m->number; }
