#include "master/membership.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "net/socket.h"

void membership_init(struct membership *table, int64_t limit_ns, uint64_t id_key, int64_t now_ns) {
    memset(table, 0, offsetof(struct membership, peers));
    table->limit_ns = limit_ns;
    table->id_key = id_key;
    table->now_ns = table->heartbeat_at = table->survivors_until = now_ns;
    table->silence_at = table->warn_at = table->deadlock_at = INT64_MAX;
}

bool membership_same_run(const struct run_identity *a, const struct run_identity *b) {
    return a->id == b->id && memcmp(a->secret, b->secret, sizeof a->secret) == 0;
}

// ---- peers ----

uint32_t membership_bucket(uint64_t key, const struct wire_id *id) {
    uint64_t low, high;
    memcpy(&low, id->bytes, sizeof low);
    memcpy(&high, id->bytes + sizeof low, sizeof high);
    uint64_t mixed = (low ^ key) * UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ mixed >> 29 ^ high) * (key | 1);
    return (uint32_t)(mixed >> 40) & (MEMBERSHIP_ID_BUCKETS - 1);
}

struct peer_record *membership_by_id(struct membership *table, const struct wire_id *id) {
    for (uint16_t at = table->by_id[membership_bucket(table->id_key, id)]; at != 0;
         at = table->peers[at - 1].next_by_id)
        if (!table->peers[at - 1].gone && wire_id_equal(&table->peers[at - 1].member.id, id))
            return &table->peers[at - 1];
    return NULL;
}

bool membership_has_state(const struct membership *table, uint32_t group) {
    for (uint32_t i = 0; i < table->count; i++)
        if (table->order[i]->member.group == group && table->order[i]->state.kind != WIRE_STATE_NONE) return true;
    return false;
}

struct peer_record *membership_in_group(struct membership *table, const struct peer_group *group,
                                        const struct wire_id *id) {
    struct peer_record *peer = membership_by_id(table, id);
    return peer != NULL && peer->accepted && peer->group == group ? peer : NULL;
}

static struct peer_record *unused_peer(struct membership *table) {
    while (table->unused_from < table->slots && table->peers[table->unused_from].used) table->unused_from++;
    if (table->unused_from == table->slots) table->slots++;
    return &table->peers[table->unused_from++];
}

struct peer_record *membership_add(struct membership *table, uint32_t conn, const struct wire_member *member) {
    struct peer_record *peer = unused_peer(table);
    uint16_t *bucket = &table->by_id[membership_bucket(table->id_key, &member->id)];
    *peer = (struct peer_record){.used = true, .conn = conn, .member = *member, .masters = 1, .next_by_id = *bucket};
    *bucket = table->by_conn[conn] = (uint16_t)(membership_slot(table, peer) + 1);
    membership_heard(table, peer, table->now_ns);
    table->peer_count++;
    table->loopback_count += socket_address_is_loopback(&member->address);
    table->turnover = true;
    return peer;
}

void membership_remove(struct membership *table, struct peer_record *peer) {
    uint32_t slot = membership_slot(table, peer);
    uint16_t *link = &table->by_id[membership_bucket(table->id_key, &peer->member.id)];
    while (*link != slot + 1) link = &table->peers[*link - 1].next_by_id;
    *link = peer->next_by_id;
    if (slot < table->unused_from) table->unused_from = slot;
    table->loopback_count -= socket_address_is_loopback(&peer->member.address);
    *peer = (struct peer_record){0};
    table->peer_count--;
    table->turnover = true;
}

void membership_heard(struct membership *table, struct peer_record *peer, int64_t now_ns) {
    arrival_note(&peer->heard, now_ns, table->limit_ns);
    // it may have grown less patient
    table->silence_at = platform_earlier(table->silence_at, arrival_deadline_ns(&peer->heard, table->limit_ns));
}

void membership_begin_wait(struct membership *table, struct peer_record *peer) {
    peer->waits_since = table->now_ns;
    table->warn_at = platform_earlier(table->warn_at, table->now_ns + MEMBERSHIP_WARN_MS * MS_NS);
}

void membership_set_vote(struct membership *table, struct peer_record *peer, uint8_t kind) {
    if (peer->vote != 0) table->open[peer->vote]--;
    peer->vote = kind;
    if (kind == 0) return;
    table->open[kind]++;
    membership_begin_wait(table, peer);
    if (table->deadlock_ns > 0)
        table->deadlock_at = platform_earlier(table->deadlock_at, table->now_ns + table->deadlock_ns);
}

// The number of members of its group that joined before it. False: it is no member.
static bool find_rank(const struct peer_record *peer, uint32_t *rank) {
    const struct peer_group *group = peer->group;
    bool ranked = group != NULL && group->members != NULL && peer->rank < group->count;
    *rank = 0;
    for (uint32_t at = 0; ranked && at < group->count; at++)
        *rank += group->members[at]->member.join_number < peer->member.join_number;
    return ranked;
}

struct peer_label membership_label(const struct peer_record *peer) {
    char more[PEER_LABEL_MORE];
    uint32_t rank;
    int length = find_rank(peer, &rank) ? snprintf(more, sizeof more, "rank %u, ", rank) : 0;
    snprintf(more + length, sizeof more - (size_t)length, "join %llu", (unsigned long long)peer->member.join_number);
    return peer_label_with(&peer->member.id, &peer->member.name, more);
}

struct peer_text membership_foreign(uint16_t version) {
    struct peer_text text;
    snprintf(text.chars, sizeof text.chars,
             WIRE_FOREIGN "%u of the protocol (pccl " PCCL_VERSION
                          "), and this peer another version, %u; install one pccl on both",
             (unsigned)WIRE_VERSION, (unsigned)version);
    return text;
}

struct peer_text membership_label_at(const struct peer_record *peer) {
    char address[64];
    struct peer_text out;
    snprintf(out.chars, sizeof out.chars, "%s at %s", membership_label(peer).chars,
             socket_address_format(address, sizeof address, &peer->member.address));
    return out;
}

// ---- groups ----

struct peer_group *membership_groups(const struct membership *table) {
    return table->count > 0 ? table->order[0]->group : NULL;
}

struct peer_group *membership_next(const struct membership *table, const struct peer_group *group) {
    struct peer_record *const *next = group->members + group->count;
    return next < table->order + table->count ? (*next)->group : NULL;
}

struct peer_group *membership_ensure_group(struct membership *table, uint32_t id) {
    struct peer_group *unused = NULL;
    for (uint32_t i = 0; i < table->group_slots; i++) {
        struct peer_group *group = &table->groups[i];
        if (group->count > 0 && group->id == id) return group;
        if (group->count == 0 && unused == NULL) unused = group;
    }
    // There are as many groups as peers, so one is unused.
    if (unused == NULL) unused = &table->groups[table->group_slots++];
    *unused = (struct peer_group){.id = id, .count = 1};
    return unused;
}

void membership_rank(struct membership *table) {
    for (uint32_t begin = 0, end; begin < table->count; begin = end) {
        struct peer_group *group = table->order[begin]->group;
        for (end = begin; end < table->count && table->order[end]->member.group == group->id; end++)
            table->order[end]->rank = end - begin;
        group->members = &table->order[begin];
        group->count = end - begin;
    }
}

struct wire_epoch membership_epoch(struct membership *table, uint64_t number, struct peer_record *const *peers,
                                   uint32_t count) {
    for (uint32_t i = 0; i < count; i++) table->members[i] = peers[i]->member;
    return (struct wire_epoch){.number = number, .count = count, .members = table->members};
}

void membership_change_group(struct membership *table, struct peer_group *group) {
    group->changed = table->changed = true;
}

// ---- what is said ----

struct wire_header membership_header(const struct membership *table) {
    return (struct wire_header){.run = table->run.id, .generation = table->generation, .epoch = table->number};
}

void membership_send(struct membership *table, struct peer_record *peer) {
    if (peer->gone || table->out_of_memory) return; // who has missed something must not hear what comes after it
    if (actions_send(&table->actions, peer->conn)) return;
    if (peer->accepted)
        table->out_of_memory = true;
    else
        membership_drop(table, peer, WIRE_LOSS_EXPELLED, LOG_ERR, "the master is out of memory");
}

void membership_send_group(struct membership *table, const struct peer_group *group) {
    for (uint32_t rank = 0; rank < group->count; rank++) membership_send(table, group->members[rank]);
}

void membership_send_text(struct membership *table, struct peer_record *peer, enum wire_type type, const char *text) {
    wire_encode_text(membership_frame(table), membership_header(table), type, text);
    membership_send(table, peer);
}

void membership_note_lost(struct membership *table, const struct wire_member *member, uint32_t rank,
                          enum wire_loss_reason reason, const char *why) {
    struct wire_gone *gone = &table->lost_members[table->lost_count++];
    *gone = (struct wire_gone){.id = member->id, .reason = (uint8_t)reason};
    snprintf(gone->why, sizeof gone->why, "%s", why);
    struct membership_departure *departed = &table->departed[table->departed_count++ % WIRE_MAX_DEPARTURES];
    *departed =
        (struct membership_departure){{.group = member->group, .rank = rank, .reason = (int)reason}, table->now_ns};
    memcpy(departed->told.uuid.data, member->id.bytes, sizeof member->id.bytes);
    memcpy(departed->told.name, member->name.chars, sizeof member->name.chars);
    memcpy(departed->told.why, gone->why, sizeof gone->why);
}

static void leave(struct membership *table, struct peer_record *peer, enum wire_loss_reason reason,
                  enum log_level level, const char *why) {
    struct peer_text place = membership_label_at(peer);
    uint8_t told = (uint8_t)reason;
    if (peer->accepted) {
        uint32_t rank;
        find_rank(peer, &rank);
        membership_note_lost(table, &peer->member, rank, reason, why);
        actions_event(&table->actions, RECORDER_LEFT, table->number, told, &peer->member.id, why);
        bool failed = wire_loss_is_failure(told), ended = reason == WIRE_LOSS_ENDED;
        actions_log(&table->actions, level > LOG_NOTICE ? level : LOG_NOTICE, "%s %s%s%s: %s",
                    failed  ? "lost"
                    : ended ? "left"
                            : wire_loss_name(told),
                    place.chars, failed ? ", " : "", failed ? wire_loss_name(told) : "", why);
    } else {
        const char *word = level == LOG_WARN ? "refused" : reason >= WIRE_LOSS_DRAINED ? "left" : "lost";
        actions_log_stranger(&table->actions, level, "%s newcomer, %s: %s", word, place.chars, why);
    }
    peer->gone = true;
    table->gone_count++;
    if (table->by_conn[peer->conn] == 0) return; // the connection went first
    table->by_conn[peer->conn] = 0;
    actions_close(&table->actions, peer->conn);
}

void membership_drop(struct membership *table, struct peer_record *peer, enum wire_loss_reason reason,
                     enum log_level level, const char *why) {
    if (!peer->gone) leave(table, peer, reason, level, why);
}

void membership_expel_for(struct membership *table, struct peer_record *peer, enum wire_loss_reason reason,
                          const char *format, ...) {
    if (peer->gone) return;
    char why[WIRE_MAX_TEXT + 1];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    membership_send_text(table, peer, peer->accepted ? WIRE_EXPELLED : WIRE_REFUSED, why);
    if (peer->gone) return; // for want of memory
    leave(table, peer, reason, LOG_WARN, why);
}

// ---- hosts whose newcomers fail ----

enum {
    FREE_FAILURES = 1,   // of a host, before its newcomers wait
    FIRST_WAIT = 2,      // heartbeat limits since the last failure; twice as many with each further one
    DOUBLINGS = 5,       // at most
    FORGOTTEN_AFTER = 3, // times the wait
};

// An IPv6 host has a whole /64 to choose from.
static bool same_host(const struct wire_address *a, const struct wire_address *b) {
    return a->family == b->family && memcmp(a->bytes, b->bytes, a->family == 4 ? 4 : 8) == 0;
}

static int64_t wait_ns(const struct membership *table, const struct failed_host *host) {
    if (host->failures <= FREE_FAILURES) return FIRST_WAIT * table->limit_ns;
    uint32_t doublings = host->failures - FREE_FAILURES - 1;
    return FIRST_WAIT * table->limit_ns << (doublings < DOUBLINGS ? doublings : DOUBLINGS);
}

static struct failed_host *find_host(struct membership *table, const struct wire_address *address) {
    for (uint32_t i = 0; i < MEMBERSHIP_FAILED_HOSTS; i++) {
        struct failed_host *host = &table->failed_hosts[i];
        if (host->failures == 0 || !same_host(&host->address, address)) continue;
        if (table->now_ns >= host->at_ns + FORGOTTEN_AFTER * wait_ns(table, host)) host->failures = 0;
        return host->failures > 0 ? host : NULL;
    }
    return NULL;
}

void membership_host_failed(struct membership *table, const struct wire_address *address) {
    struct failed_host *host = find_host(table, address), *oldest = &table->failed_hosts[0];
    for (uint32_t i = 0; i < MEMBERSHIP_FAILED_HOSTS && host == NULL; i++) {
        struct failed_host *other = &table->failed_hosts[i];
        if (other->failures == 0) host = other;
        if (other->at_ns < oldest->at_ns) oldest = other;
    }
    if (host == NULL) {
        host = oldest;
        host->failures = 0;
    }
    host->address = *address;
    host->failures++;
    host->at_ns = table->now_ns;
}

void membership_host_admitted(struct membership *table, const struct wire_address *address) {
    struct failed_host *host = find_host(table, address);
    if (host != NULL) host->failures = 0;
}

int64_t membership_host_waits_until(struct membership *table, const struct wire_address *address) {
    const struct failed_host *host = find_host(table, address);
    return host == NULL || host->failures <= FREE_FAILURES ? 0 : host->at_ns + wait_ns(table, host);
}

// ---- who waits for whom ----

enum {
    NAMES = 3, // in one text
    WARN_AGAIN_MOST_MS = 600000,
};

const char *membership_call(uint8_t vote) {
    static const char *const calls[] = {"no call that waits for all members", "update_topology", "are_peers_pending",
                                        "optimize_topology", "sync_shared_state"};
    return calls[vote];
}

// Members that still have to call what a vote is about.
struct missing {
    uint32_t count, of;
    char names[NAMES * sizeof(struct peer_text)];
};

static void find_missing(const struct membership *table, uint8_t vote, const struct peer_group *group,
                         struct missing *out) {
    size_t at = 0;
    *out = (struct missing){0};
    for (uint32_t i = 0; i < table->count; i++) {
        const struct peer_record *peer = table->order[i];
        if (group != NULL && peer->group != group) continue;
        out->of++;
        if (peer->vote == vote || out->count++ >= NAMES) continue;
        at += (size_t)snprintf(out->names + at, sizeof out->names - at, "%s%s, in %s", at > 0 ? "; " : "",
                               membership_label_at(peer).chars, membership_call(peer->vote));
        if (at >= sizeof out->names) at = sizeof out->names - 1;
    }
    if (out->count > NAMES) snprintf(out->names + at, sizeof out->names - at, "; and %u more", out->count - NAMES);
}

static bool all_voted(const struct peer_group *group) {
    bool all = true;
    for (uint32_t rank = 0; rank < group->count; rank++) all &= group->members[rank]->vote == WIRE_VOTE_SYNC;
    return all;
}

// Since when a peer waits for others that have yet to make a call; INT64_MAX: it does not.
static int64_t waits_since(const struct membership *table, const struct peer_record *peer) {
    bool waits = !peer->accepted                ? table->count > 0
                 : peer->vote == WIRE_VOTE_SYNC ? !all_voted(peer->group)
                                                : peer->vote != 0;
    return waits ? peer->waits_since : INT64_MAX;
}

// All members are in update_topology, and there are too few of them.
static void describe_short(const struct membership *table, const char *who, unsigned seconds,
                           char text[WIRE_MAX_TEXT]) {
    snprintf(text, WIRE_MAX_TEXT, "%s has waited for more peers for %u s: %u of at least %u are there", who, seconds,
             table->peer_count, table->limits.least);
}

// False: there is nothing to tell.
static bool describe_newcomer(struct membership *table, const struct peer_record *peer, const struct missing *missing,
                              unsigned seconds, char text[WIRE_MAX_TEXT]) {
    int64_t behind_ns = membership_host_waits_until(table, &peer->member.address) - table->now_ns;
    if (peer->copies) return false;
    bool is_spare = table->limits.most != 0 && table->count >= table->limits.most;
    bool is_short = table->count < table->limits.least;
    if (is_spare)
        snprintf(text, WIRE_MAX_TEXT, "waiting as a spare for %u s: the run has its maximum of %u members", seconds,
                 table->limits.most);
    else if (behind_ns > 0)
        snprintf(text, WIRE_MAX_TEXT,
                 "waiting to be admitted: newcomers from this address failed to connect to members before, so others "
                 "come first for %u s more",
                 (unsigned)(behind_ns / SECOND_NS) + 1);
    else if (missing->count > 0)
        snprintf(text, WIRE_MAX_TEXT,
                 "waiting to be admitted: %u of %u members %s not called update_topology for %u s: %.380s",
                 missing->count, missing->of, missing->count == 1 ? "has" : "have", seconds, missing->names);
    else if (is_short)
        describe_short(table, "the run", seconds, text);
    return is_spare || behind_ns > 0 || missing->count > 0 || is_short;
}

static bool describe_member(const struct membership *table, const struct peer_record *peer, unsigned seconds,
                            char text[WIRE_MAX_TEXT]) {
    struct missing missing;
    find_missing(table, peer->vote, peer->vote == WIRE_VOTE_SYNC ? peer->group : NULL, &missing);
    bool is_short = peer->vote == WIRE_VOTE_UPDATE && table->count < table->limits.least;
    if (missing.count == 0 && is_short) describe_short(table, membership_call(peer->vote), seconds, text);
    if (missing.count == 0) return is_short;
    snprintf(text, WIRE_MAX_TEXT, "%s has waited for %u of %u members for %u s: %.380s", membership_call(peer->vote),
             missing.count, missing.of, seconds, missing.names);
    return true;
}

void membership_tell_waits(struct membership *table, bool idle) {
    static const int64_t first_ns = MEMBERSHIP_WARN_MS * MS_NS;
    struct missing missing;
    bool logged[WIRE_VOTE_SYNC + 1] = {false}; // by the vote that is open; 0: of a newcomer
    if (table->warn_at > table->now_ns) return;
    table->warn_at = INT64_MAX;
    find_missing(table, WIRE_VOTE_UPDATE, NULL, &missing);
    for (uint32_t slot = 0; slot < table->slots; slot++) {
        struct peer_record *peer = &table->peers[slot];
        struct wait_report *told = &peer->told;
        int64_t since = peer->used && !peer->gone ? waits_since(table, peer) : INT64_MAX;
        if (since == INT64_MAX) continue;
        if (told->since_ns != since) *told = (struct wait_report){since, since + first_ns}; // another wait
        if (told->next_ns <= table->now_ns) {
            char text[WIRE_MAX_TEXT];
            unsigned seconds = (unsigned)((table->now_ns - since) / SECOND_NS);
            bool tells = idle && (peer->accepted ? describe_member(table, peer, seconds, text)
                                                 : describe_newcomer(table, peer, &missing, seconds, text));
            if (tells) membership_send_text(table, peer, WIRE_WAITING, text);
            if (tells && !logged[peer->vote])
                actions_log(&table->actions, LOG_NOTICE, "%s: %s", membership_label_at(peer).chars, text);
            logged[peer->vote] |= tells;
            told->next_ns = table->now_ns +
                            (tells ? platform_earlier(table->now_ns - since, WARN_AGAIN_MOST_MS * MS_NS) : first_ns);
        }
        table->warn_at = platform_earlier(table->warn_at, told->next_ns);
    }
}
