#define _GNU_SOURCE
#include "data/same_host.h"

#include <stdlib.h>
#include <string.h>

#include "base/descriptor.h"
#include "base/environment.h"
#include "base/log.h"
#include "data/slots.h"
#include "data/core.h"
#include "link/connection.h"
#include "link/frame.h"
#include "net/socket.h"
#include "data/op_peer.h"

struct same_host {
    struct rendezvous *rendezvous; // thread; NULL: memory is shared with nobody
};

enum { CLAIMS_PER_TURN = 64, ADDRESS_BYTES = 1 + 16 + 2 };

// A link as a claim names it, with the addresses swapped between the two sides.
struct claimed_link {
    uint8_t here[ADDRESS_BYTES], there[ADDRESS_BYTES];
};

// Both sides are of one host, and of one version.
struct claim {
    uint64_t run, epoch;
    struct wire_id from, to;
    uint32_t version, count;
    struct claimed_link links[WIRE_MAX_LANES + 1];
};

_Static_assert(sizeof(struct claim) <= RENDEZVOUS_CLAIM_BYTES, "a claim fits");

struct same_host *same_host_new(int epoll) {
    struct same_host *host = calloc(1, sizeof *host);
    if (host == NULL) return NULL;
    if (environment_switch("PCCL_SAME_HOST_MEMORY", true)) host->rendezvous = rendezvous_open(epoll, host);
    return host;
}

void same_host_free(struct same_host *host) {
    if (host == NULL) return;
    rendezvous_close(host->rendezvous);
    free(host);
}

static size_t claim_length(uint32_t count) {
    return offsetof(struct claim, links) + count * sizeof(struct claimed_link);
}

static void write_address(uint8_t out[ADDRESS_BYTES], const struct wire_address *address) {
    out[0] = address->family;
    memcpy(out + 1, address->bytes, sizeof address->bytes);
    memcpy(out + 1 + sizeof address->bytes, &address->port, sizeof address->port);
}

// False: the link leaves the host.
static bool addresses_of(const struct lane *lane, struct claimed_link *out) {
    struct wire_address here, there;
    if (!transport_local_address(lane->stream, &here) || !transport_remote_address(lane->stream, &there)) return false;
    write_address(out->here, &here);
    write_address(out->there, &there);
    return socket_address_same_host(&here, &there);
}

bool same_host_may_come(const struct lane *lane) {
    struct claimed_link unused;
    return engine_of(lane)->same_host->rendezvous != NULL && addresses_of(lane, &unused);
}

static void claim_links(struct engine *engine, struct neighbour *peer) {
    struct wire_header now = engine_header(engine);
    struct claim claim = {
        .version = WIRE_VERSION, .run = now.run, .epoch = now.epoch, .from = *engine_self(engine), .to = peer->id};
    for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) {
        if (peer->lanes[i] == NULL) continue;
        if (!addresses_of(peer->lanes[i], &claim.links[claim.count++])) return;
    }
    if (claim.count == 0) return;
    int slots = slots_make(&op_peer_of(peer)->slots);
    bool brought = rendezvous_send(op_peer_of(peer)->rendezvous, &claim, claim_length(claim.count), slots);
    descriptor_close(slots);
    if (brought) return;
    if (slots >= 0) slots_drop_own(&op_peer_of(peer)->slots);
    LOG(LOG_DEBUG, "cannot reach the rendezvous socket of a neighbour: its chunks go through TCP");
}

void same_host_offer(struct engine *engine) {
    engine_assert_locked(engine);
    static const struct wire_head head; // MEMORY says nothing but its payload
    struct block *offer = engine->same_host->rendezvous == NULL ? NULL : block_new(engine->pool, RENDEZVOUS_NAME_BYTES);
    if (offer == NULL) return;
    memcpy(offer->bytes, rendezvous_name(engine->same_host->rendezvous), RENDEZVOUS_NAME_BYTES);
    for (struct neighbour *peer = engine->lanes->neighbours; peer != NULL; peer = peer->next) {
        if (op_peer_of(peer)->member.rank == UINT32_MAX) continue;
        lanes_signal(peer, WIRE_MEMORY, &head, offer);
        if (op_peer_of(peer)->offered) claim_links(engine, peer);
    }
    block_put(engine->pool, offer);
}

void same_host_offered(struct lane *lane) {
    struct engine *engine = engine_of(lane);
    struct neighbour *peer = lane->peer;
    engine_lock(engine);
    if (!op_peer_of(peer)->offered)
        memcpy(op_peer_of(peer)->rendezvous, lane->in.place, sizeof op_peer_of(peer)->rendezvous);
    // The other side has all links. If this one has not, they are claimed when it has.
    if (!op_peer_of(peer)->offered && engine->same_host->rendezvous != NULL && engine->call_table.ready)
        claim_links(engine, peer);
    op_peer_of(peer)->offered = true;
    engine_unlock(engine);
}

// ---- claims of others ----
static bool is_claimed(const struct lane *lane, const struct claim *claim) {
    struct claimed_link own;
    if (!addresses_of(lane, &own)) return false;
    for (uint32_t i = 0; i < claim->count; i++) {
        const struct claimed_link *link = &claim->links[i];
        if (memcmp(link->here, own.there, ADDRESS_BYTES) == 0 && memcmp(link->there, own.here, ADDRESS_BYTES) == 0)
            return true;
    }
    return false;
}

// True: the claimant holds the other end of each link to the peer.
static bool holds_links(const struct neighbour *peer, const struct claim *claim) {
    uint32_t count = 0;
    for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) {
        if (peer->lanes[i] == NULL) continue;
        if (!is_claimed(peer->lanes[i], claim)) return false;
        count++;
    }
    return count > 0;
}

// Maps the slots that come with a claim if the claimant holds the links to a peer.
static void believe(struct engine *engine, const struct rendezvous_claim *said) {
    engine_assert_locked(engine);
    struct claim claim;
    if (said->length < claim_length(0) || said->length > sizeof claim) return;
    memcpy(&claim, said->bytes, said->length);
    if (claim.version != WIRE_VERSION || claim.count > WIRE_MAX_LANES + 1 || said->length != claim_length(claim.count))
        return;
    struct wire_header now = engine_header(engine);
    if (claim.run != now.run || claim.epoch != now.epoch || !wire_id_equal(&claim.to, engine_self(engine))) return;
    struct neighbour *peer = neighbour_find(engine->lanes, &claim.from);
    if (peer == NULL || op_peer_of(peer)->member.rank == UINT32_MAX || !holds_links(peer, &claim)) return;
    if (said->shared >= 0) slots_map(&op_peer_of(peer)->slots, said->shared);
    slots_report(engine, peer);
}

void same_host_take_claims(struct engine *engine) {
    struct rendezvous_claim said;
    for (int i = 0; i < CLAIMS_PER_TURN && rendezvous_take(engine->same_host->rendezvous, &said); i++) {
        engine_lock(engine);
        believe(engine, &said);
        engine_unlock(engine);
        descriptor_close(said.shared);
    }
}
