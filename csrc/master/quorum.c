#include "master/quorum.h"

#include <string.h>

#include "net/cursor.h"

// Heartbeat limits, after which peers that fell silent have gone on elsewhere, or never will.
enum { UNHEARD_LIMITS = 3 };

// Peers that know other masters may go on there without this one, if they are more than half.
static bool know_others(const struct membership *table) {
    for (uint32_t i = 0; i < table->slots; i++)
        if (table->peers[i].used && table->peers[i].masters > 1) return true;
    return false;
}

static bool is_sure(const struct quorum *quorum) { return quorum->needed.members + quorum->needed.old_members == 0; }

static bool is_old_member(const struct quorum *quorum, const struct peer_record *peer) {
    return peer->member.join_number < quorum->needed.newer;
}

static void count_anew(struct quorum *quorum, const struct membership *table) {
    quorum->entered = quorum->old_members_entered = 0;
    quorum->since = table->number + 1;
    for (uint32_t i = 0; i < table->count; i++) table->order[i]->entered = false;
}

void quorum_take_up(struct quorum *quorum, const struct membership *table, const struct wire_quorum *needed) {
    quorum->needed = *needed;
    count_anew(quorum, table);
}

struct wire_quorum quorum_announced(const struct quorum *quorum, const struct membership *table) {
    return know_others(table) ? quorum->needed : (struct wire_quorum){0};
}

// Starts the joint quorum when newcomers are admitted. Members that have not entered the larger epoch can resume the
// run with more than half of the smaller one before, and newcomers may be most of the larger one. The run is therefore
// safe only when half of the old members have entered.
void quorum_admits(struct quorum *quorum, const struct membership *table, uint32_t members_before, uint64_t newer) {
    if (!know_others(table)) return;
    quorum->needed.old_members = (members_before + 1) / 2;
    quorum->needed.newer = newer;
    count_anew(quorum, table);
}

void quorum_entered(struct quorum *quorum, struct peer_record *peer, uint64_t epoch) {
    if (is_sure(quorum) || peer->entered || epoch < quorum->since) return;
    peer->entered = true;
    quorum->entered++;
    quorum->old_members_entered += is_old_member(quorum, peer);
}

// Notes that the peer will resume nothing elsewhere. For a peer that came with RESUME, the end of its connection does
// not show that: it may have gone on looking.
void quorum_ended(struct quorum *quorum, const struct peer_record *peer) {
    if (quorum->needed.members == 0 && quorum->needed.old_members > 0 && !peer->entered && is_old_member(quorum, peer))
        quorum->needed.old_members--;
}

// Raises the quorum before a loss. Lost peers may live and can resume the run elsewhere from the current epoch, if they
// and later lost ones are more than half of it. Later epochs are therefore safe only when so many have entered one that
// no more than half are left for that.
static void doubt(struct quorum *quorum, const struct membership *table) {
    uint32_t half = (table->count + 1) / 2;
    if (quorum->needed.members < half) quorum->needed.members = half; // else the epoch at hand is not sure itself
    count_anew(quorum, table);
}

static enum quorum_verdict give_up(struct membership *table, uint32_t gone, uint32_t of) {
    actions_log(&table->actions, LOG_ERR,
                "%u of %u peers are silent and may have continued with another master: gives up the run", gone, of);
    return QUORUM_GIVES_UP;
}

enum quorum_verdict quorum_unheard(struct quorum *quorum, struct membership *table, uint32_t count) {
    if (!know_others(table)) return QUORUM_KEEPS;
    doubt(quorum, table);
    if (quorum->unheard == 0 || table->now_ns > quorum->unheard_since + UNHEARD_LIMITS * table->limit_ns) {
        quorum->unheard = 0;
        quorum->unheard_of = table->count;
        quorum->unheard_since = table->now_ns;
    }
    quorum->unheard += count;
    if (2 * quorum->unheard <= quorum->unheard_of) return QUORUM_KEEPS;
    return give_up(table, quorum->unheard, quorum->unheard_of);
}

// Watches the entries into this generation. Members that have entered no epoch of it can resume the run elsewhere, from
// the epoch before, with members that never came here. Once a quorum of that epoch has entered this one, any other
// quorum hears of it. Until then the entered members are told that they cannot go on with fewer.
enum quorum_verdict quorum_watch(struct quorum *quorum, struct membership *table) {
    struct wire_quorum needed = quorum->needed;
    uint32_t most = quorum->entered, old_members = quorum->old_members_entered; // with those that may still
    if (is_sure(quorum)) return QUORUM_KEEPS;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct peer_record *peer = table->order[i];
        most += !peer->entered;
        old_members += !peer->entered && is_old_member(quorum, peer);
    }
    if (quorum->entered >= needed.members && quorum->old_members_entered >= needed.old_members) {
        quorum->needed = (struct wire_quorum){0};
        return know_others(table) ? QUORUM_IS_SURE : QUORUM_KEEPS;
    }
    if (!know_others(table)) return QUORUM_KEEPS;
    if (most < needed.members)
        return give_up(table, needed.members - most, needed.members); // also with newcomers alone
    if (old_members < needed.old_members) return give_up(table, needed.old_members - old_members, needed.old_members);
    return QUORUM_KEEPS;
}

// ---- signatures ----

static void add_address(struct cursor *c, struct wire_address *address) {
    cursor_u8(c, &address->family);
    cursor_bytes(c, address->bytes, sizeof address->bytes);
    cursor_u16(c, &address->port);
}

static bool encode_epoch(struct wire_buffer *out, uint64_t run, uint64_t generation, struct wire_epoch epoch,
                         struct wire_quorum quorum) {
    static char purpose[] = "pccl epoch 2"; // no other signature of this key begins so
    uint16_t sorted[WIRE_MAX_MEMBERS];
    struct cursor c = cursor_append(out);
    cursor_bytes(&c, purpose, sizeof purpose);
    cursor_u64(&c, &run);
    cursor_u64(&c, &generation);
    cursor_u64(&c, &epoch.number);
    cursor_u32(&c, &quorum.members);
    cursor_u32(&c, &quorum.old_members);
    cursor_u64(&c, &quorum.newer);
    cursor_u32(&c, &epoch.count);
    wire_sort_members(epoch.members, epoch.count, sorted);
    for (uint32_t i = 0; i < epoch.count; i++) {
        struct wire_member member = epoch.members[sorted[i]];
        cursor_bytes(&c, member.id.bytes, sizeof member.id.bytes);
        cursor_u64(&c, &member.join_number);
        cursor_u32(&c, &member.group);
        add_address(&c, &member.address);
        cursor_u8(&c, &member.reach.closed);
        cursor_u8(&c, &member.reach.relays);
        cursor_u8(&c, &member.reach.count);
        for (uint32_t k = 0; k < member.reach.count; k++) add_address(&c, &member.reach.addresses[k]);
    }
    return cursor_finish(&c);
}

bool quorum_sign(const struct signer *signer, struct wire_header header, struct wire_epoch_commit *message) {
    if (signer->sign == NULL) return true;
    struct wire_buffer bytes = {0};
    bool signed_ = encode_epoch(&bytes, header.run, header.generation, message->epoch, message->quorum) &&
                   signer->sign(signer->context, bytes.bytes, bytes.length, message->signature);
    wire_buffer_fini(&bytes);
    return signed_;
}

static bool is_last(const struct quorum_verified *last, const struct wire_buffer *bytes, const uint8_t *signature) {
    return bytes->length == last->bytes.length && memcmp(bytes->bytes, last->bytes.bytes, bytes->length) == 0 &&
           memcmp(signature, last->signature, sizeof last->signature) == 0;
}

enum quorum_proof quorum_verify(const struct signer *signer, struct quorum_verified *last, uint64_t run,
                                const struct wire_resume *resume) {
    if (signer->verify == NULL || !resume->accepted) return QUORUM_SIGNED;
    struct wire_buffer bytes = {0};
    enum quorum_proof proof = QUORUM_NO_MEMORY;
    bool known = false;
    if (encode_epoch(&bytes, run, resume->generation, resume->epoch, resume->quorum)) {
        known = is_last(last, &bytes, resume->signature);
        bool good = known || signer->verify(signer->context, bytes.bytes, bytes.length, resume->signature);
        proof = good ? QUORUM_SIGNED : QUORUM_UNSIGNED;
    }
    if (proof == QUORUM_SIGNED && !known) {
        quorum_verified_fini(last);
        *last = (struct quorum_verified){.bytes = bytes};
        memcpy(last->signature, resume->signature, sizeof last->signature);
    } else {
        wire_buffer_fini(&bytes);
    }
    return proof;
}
