// Handshakes of TLS: strangers, holders of an old secret, members that pose as others, and whoever sits between the two
// ends, get no byte through.
#define _GNU_SOURCE
#include "net/tls.h"

#include "check.h"

#ifndef PCCL_HAVE_TLS

int main(void) {
    struct transport_context *context = tls_context_new(NULL);
    REQUIRE(context != NULL);
    CHECK(tls_context_id(context) == NULL && context->type == &transport_plain);
    transport_context_release(context);
    return check_status();
}

#else

#include <malloc.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "tls_ends.h"

// ---- handshakes ----

static void test_good(void) {
    struct transport_context *master = master_context(), *peer = peer_context();
    struct transport_context *observer = context_of(key_files_load(false, 1, 1, 0), TRANSPORT_OBSERVER);
    struct transport_context *contexts[] = {master, peer, observer};
    static const enum transport_party parties[] = {TRANSPORT_MASTER, TRANSPORT_PEER, TRANSPORT_OBSERVER};
    for (int i = 0; i < 9; i++) {
        struct wire wire;
        int sides[2] = {i / 3, i % 3};
        check_case("party %d dials party %d", parties[sides[0]], parties[sides[1]]);
        open_wire(&wire, contexts[sides[0]], contexts[sides[1]]);
        shake_hands(&wire, NULL);
        for (int end = 0; end < 2; end++) {
            REQUIRE(CHECK_EQ(wire.results[end], 0));
            const struct transport_identity *other = transport_peer(wire.ends[end]);
            CHECK_EQ(other->party, parties[sides[1 - end]]);
            CHECK_MEM(other->id.bytes, tls_context_id(contexts[sides[1 - end]])->bytes, WIRE_ID_BYTES);
        }
        CHECK(far_end_write(wire.ends[0], "hello", 5));
        while (pass(&wire, 0, NULL)) continue;
        uint8_t heard[5];
        CHECK(far_end_read(wire.ends[1], heard, 5) && memcmp(heard, "hello", 5) == 0);
        close_wire(&wire);
    }
    for (int i = 0; i < 3; i++) transport_context_release(contexts[i]);
}

// The first flight of the dialler, one of the acceptor, and the rest: one round trip more than TCP alone.
static void test_round_trips(void) {
    struct wire wire;
    struct transport_context *dials = peer_context(), *accepts = master_context();
    open_wire(&wire, dials, accepts);
    step_end(&wire, 0);
    while (pass(&wire, 0, NULL)) continue;
    step_end(&wire, 1);
    while (pass(&wire, 1, NULL)) continue;
    step_end(&wire, 0);
    CHECK_EQ(wire.results[0], 0);
    while (pass(&wire, 0, NULL)) continue;
    step_end(&wire, 1);
    CHECK_EQ(wire.results[1], 0);
    CHECK(wire.passed[0] < 1000 && wire.passed[1] < 1000);
    close_wire(&wire);
    transport_context_release(dials);
    transport_context_release(accepts);
}

static void test_wrong_secret(void) {
    struct wire wire;
    struct transport_context *accepts = master_context();
    for (int i = 0; i < 2; i++) {
        check_case(i == 0 ? "a secret that the master does not have" : "the id of its secret with another secret");
        struct transport_context *dials = context_of(key_files_load(false, 1, 2, 0), TRANSPORT_PEER);
        if (i == 1) { // a stranger who has seen a handshake knows the id
            struct keys *keys = key_files_load(false, 1, 1, 0);
            ((struct keys_secret *)(uintptr_t)keys_secret(keys, 0))->bytes[3] ^= 1;
            transport_context_release(dials);
            dials = context_of(keys, TRANSPORT_PEER);
        }
        open_wire(&wire, dials, accepts);
        shake_hands(&wire, NULL);
        CHECK_EQ(wire.results[0], -EKEYREJECTED);
        CHECK_EQ(wire.results[1], -EKEYREJECTED);
        close_wire(&wire);
        transport_context_release(dials);
    }
    transport_context_release(accepts);
}

// Another run's keys, even with the secret of this one: its masters do not pass here.
static void test_other_master(void) {
    struct wire wire;
    struct transport_context *dials = peer_context();
    struct transport_context *accepts = context_of(key_files_load(true, 2, 1, 0), TRANSPORT_MASTER);
    open_wire(&wire, dials, accepts);
    shake_hands(&wire, NULL);
    CHECK_EQ(wire.results[0], -EBADE);
    close_wire(&wire);
    transport_context_release(dials);
    transport_context_release(accepts);
}

// ---- rotation of secrets, over TCP: the dialler connects again ----

static void test_rotation(void) {
    static const struct {
        const char *name;
        uint8_t dials[2], accepts[2];
        int result, connections, connections_again;
    } rows[] = {
        {"both have both", {1, 2}, {2, 1}, 0, 1, 1},
        {"the dialler has the old one alone", {1, 0}, {2, 1}, 0, 1, 1},
        {"the dialler has the new one alone", {2, 0}, {1, 2}, 0, 1, 1},
        {"the acceptor has the old one alone", {2, 1}, {1, 0}, 0, 2, 1},
        {"the acceptor has the new one alone", {1, 2}, {2, 0}, 0, 2, 1},
        {"none in common", {1, 2}, {3, 4}, -EKEYREJECTED, 2, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct transport_context *dials =
            context_of(key_files_load(false, 1, rows[i].dials[0], rows[i].dials[1]), TRANSPORT_PEER);
        struct transport_context *accepts =
            context_of(key_files_load(true, 1, rows[i].accepts[0], rows[i].accepts[1]), TRANSPORT_MASTER);
        for (int again = 0; again < 2; again++) {
            struct transport *ends[2];
            int results[2], connections;
            check_case("%s, time %d", rows[i].name, again);
            far_end_connect(dials, accepts, results, ends, &connections);
            CHECK_EQ(results[0], rows[i].result);
            CHECK_EQ(connections, again == 0 ? rows[i].connections : rows[i].connections_again);
            if (results[0] == 0) {
                uint8_t heard[4];
                CHECK(far_end_write(ends[0], "word", 4) && far_end_read(ends[1], heard, 4));
                CHECK(memcmp(heard, "word", 4) == 0);
            }
            for (int end = 0; end < 2; end++) transport_free(ends[end]);
        }
        transport_context_release(dials);
        transport_context_release(accepts);
    }
}

// ---- keys of one run ----

static void test_runs(void) {
    enum { ALL_MASTER, ALL, ALPHA, BETA, ALPHA_NEWER };
    struct transport_context *contexts[] = {
        context_of(key_files_load(true, 1, 1, 2), TRANSPORT_MASTER),
        context_of(key_files_load(false, 1, 1, 2), TRANSPORT_PEER),
        context_of(key_files_of_run("alpha", 1, 2), TRANSPORT_PEER),
        context_of(key_files_of_run("beta", 1, 2), TRANSPORT_PEER),
        context_of(key_files_of_run("alpha", 2, 0), TRANSPORT_PEER),
    };
    static const struct {
        int dials, accepts;
        bool open;
        const char *run; // that the acceptor sees
    } rows[] = {
        {ALL, ALL_MASTER, true, ""},
        {ALPHA, ALL_MASTER, true, "alpha"},
        {ALPHA_NEWER, ALL_MASTER, true, "alpha"},
        {ALL_MASTER, ALL, true, ""},
        {ALL_MASTER, ALPHA, false, ""}, // masters do not dial members
        {ALPHA, ALPHA, true, "alpha"},
        {ALPHA_NEWER, ALPHA, true, "alpha"},
        {ALPHA, ALPHA_NEWER, true, "alpha"},
        {ALPHA, BETA, false, ""},
        {ALPHA, ALL, false, ""},
        {ALL, ALPHA, false, ""},
        {ALL, ALL, true, ""},
        {BETA, ALPHA, false, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct transport *ends[2];
        int results[2], connections;
        check_case("%d dials %d", rows[i].dials, rows[i].accepts);
        far_end_connect(contexts[rows[i].dials], contexts[rows[i].accepts], results, ends, &connections);
        CHECK_EQ(results[0], rows[i].open ? 0 : -EKEYREJECTED);
        if (results[0] == 0) CHECK_STR(transport_peer(ends[1])->run.chars, rows[i].run);
        for (int end = 0; end < 2; end++) transport_free(ends[end]);
    }
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) transport_context_release(contexts[i]);
}

// ---- one side without keys ----

static void test_plain(void) {
    struct wire wire;
    struct transport_context *tls = peer_context(), *plain = transport_context_new(NULL);
    uint8_t heard[1000];
    check_case("plain bytes to a TLS side");
    open_wire(&wire, plain, tls);
    step_end(&wire, 0);
    CHECK_EQ(wire.results[0], 0);
    CHECK(far_end_write(wire.ends[0], "HELLO, here is a peer without keys", 34));
    shake_hands(&wire, NULL);
    CHECK_EQ(wire.results[1], -EPROTOTYPE);
    close_wire(&wire);

    check_case("a TLS handshake to a plain side");
    open_wire(&wire, tls, plain);
    step_end(&wire, 0);
    while (pass(&wire, 0, NULL)) continue;
    step_end(&wire, 1);
    CHECK_EQ(wire.results[1], 0);
    CHECK(far_end_read_some(wire.ends[1], heard, sizeof heard) > 0 && heard[0] == 22);
    CHECK(far_end_write(wire.ends[1], "what is that?", 13));
    shake_hands(&wire, NULL);
    CHECK_EQ(wire.results[0], -EPROTOTYPE);
    close_wire(&wire);

    check_case("a TLS handshake to a plain side that closes");
    open_wire(&wire, tls, plain);
    step_end(&wire, 0);
    close_end(&wire, 1);
    shake_hands(&wire, NULL);
    CHECK_EQ(wire.results[0], -ECONNABORTED);
    close_wire(&wire);
    transport_context_release(tls);
    transport_context_release(plain);
}

// ---- a member that knows the secret, and lies: OpenSSL by hand ----

struct liar {
    SSL_CTX *context;
    SSL *ssl;
};

static int liars_session(SSL *ssl, const EVP_MD *hash, const unsigned char **id, size_t *length, SSL_SESSION **out) {
    static char text[64];
    const struct keys_secret *secret = SSL_get_app_data(ssl);
    (void)hash;
    snprintf(text, sizeof text, "pccl1 %s", secret->id);
    *id = (const unsigned char *)text;
    *length = strlen(text);
    *out = SSL_SESSION_new();
    return SSL_SESSION_set1_master_key(*out, secret->bytes, sizeof secret->bytes) &&
           SSL_SESSION_set_cipher(*out, SSL_CIPHER_find(ssl, (const unsigned char[2]){0x13, 1})) &&
           SSL_SESSION_set_protocol_version(*out, TLS1_3_VERSION);
}

static int liars_find(SSL *ssl, const unsigned char *id, size_t length, SSL_SESSION **out) {
    const unsigned char *mine;
    (void)id, (void)length;
    return liars_session(ssl, NULL, &mine, &length, out);
}

static struct liar liar_new(struct keys *keys, bool dials, int fd) {
    struct liar liar = {.context = SSL_CTX_new(TLS_method())};
    SSL_CTX_set_min_proto_version(liar.context, TLS1_3_VERSION);
    SSL_CTX_set_psk_use_session_callback(liar.context, liars_session);
    SSL_CTX_set_psk_find_session_callback(liar.context, liars_find);
    SSL_CTX_set_num_tickets(liar.context, 0);
    liar.ssl = SSL_new(liar.context);
    SSL_set_app_data(liar.ssl, (void *)(uintptr_t)keys_secret(keys, 0));
    SSL_set_fd(liar.ssl, fd);
    if (dials)
        SSL_set_connect_state(liar.ssl);
    else
        SSL_set_accept_state(liar.ssl);
    return liar;
}

static void liar_free(struct liar *liar) {
    SSL_free(liar->ssl);
    SSL_CTX_free(liar->context);
    ERR_clear_error();
}

// An honest stream whose other end is a liar's; `dials`: the liar does.
struct meeting {
    struct transport *stream;
    struct liar liar;
    int fd; // the liar's
};

static struct meeting meeting_new(struct transport_context *honest, struct keys *keys, bool dials) {
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0);
    struct transport *stream = transport_new(honest, sockets[0], dials ? TRANSPORT_ACCEPTS : TRANSPORT_DIALS);
    return (struct meeting){stream, liar_new(keys, dials, sockets[1]), sockets[1]};
}

// Checks that the handshake fails at the honest side, and ends both.
static void meeting_fails(struct meeting *meeting) {
    int error = -EAGAIN;
    for (int turn = 0; turn < 20 && error == -EAGAIN; turn++) {
        SSL_do_handshake(meeting->liar.ssl);
        error = transport_step(meeting->stream);
    }
    CHECK_EQ(error, -EKEYREJECTED);
    liar_free(&meeting->liar);
    close(meeting->fd);
    transport_free(meeting->stream);
}

enum { PROOF_BYTES = 8 + ED25519_KEY + ED25519_SIGNATURE, SIGNED_BYTES = 12 + 2 + 32 + 32 };

// A proof as net/tls makes one, with what it says and what it signs chosen apart.
static void make_proof(SSL *ssl, uint8_t out[PROOF_BYTES], uint8_t party, const uint8_t *public_key,
                       const struct ed25519 *signer, uint8_t side, uint8_t signed_party) {
    uint8_t text[SIGNED_BYTES] = "pccl proof 1";
    memcpy(out, "pccl\1\0\0", 8);
    out[5] = party;
    memcpy(out + 8, public_key, 32);
    text[12] = side;
    text[13] = signed_party;
    memcpy(text + 14, public_key, 32);
    REQUIRE(SSL_export_keying_material(ssl, text + 46, 32, "EXPORTER-pccl", 13, NULL, 0, 0) == 1);
    REQUIRE(ed25519_sign(signer, text, sizeof text, out + 40));
}

enum lie {
    TRUTH,
    AS_MASTER,   // its own key, as the master's
    MASTERS_KEY, // the public key of the master, signed with its own
    ANOTHERS_ID, // the public key of another member, signed with its own
    OTHER_SIDE,  // signs as the side that it is not
    OTHER_PARTY, // signed as a peer, told as an observer
    NO_PARTY,    // a role that there is not
    VERSION_2,   //
    REPLAYED,    // a proof of another connection
    REFLECTED,   // what the other side has proved itself
    CUT,         // and then the end
    OBSERVES,    // true, but no peer: for the layer above to refuse
    LIES
};

static const char *const lies[LIES] = {
    "truth",    "own key as master", "the master's key", "another's id", "other side", "other party",
    "no party", "version 2",         "replayed",         "reflected",    "cut",        "observer"};

// Returns what the honest side's steps come to when the other one tells this lie.
static int hear_lie(enum lie lie, bool liar_dials, struct transport_identity *peer) {
    struct keys *keys = key_files_load(false, 1, 1, 0);
    struct ed25519 *own = ed25519_new(), *other = ed25519_new();
    struct transport_context *honest = peer_context();
    static uint8_t old[2][PROOF_BYTES]; // of TRUTH, by side
    uint8_t proof[PROOF_BYTES], heard[PROOF_BYTES];
    int sockets[2], error = -EAGAIN, side = liar_dials ? 0 : 1, told = 0, done = 0;
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0);
    struct transport *stream = transport_new(honest, sockets[0], liar_dials ? TRANSPORT_ACCEPTS : TRANSPORT_DIALS);
    struct liar liar = liar_new(keys, liar_dials, sockets[1]);
    for (int turn = 0; turn < 20 && error == -EAGAIN; turn++) {
        if (done != 1) done = SSL_do_handshake(liar.ssl);
        if (done == 1 && !told) {
            const uint8_t *key = ed25519_public(lie == ANOTHERS_ID ? other : own);
            if (lie == MASTERS_KEY) key = keys_master_public(keys);
            uint8_t party = lie == AS_MASTER || lie == MASTERS_KEY ? TRANSPORT_MASTER
                            : lie == OBSERVES                      ? TRANSPORT_OBSERVER
                            : lie == NO_PARTY                      ? 4
                                                                   : TRANSPORT_PEER;
            make_proof(liar.ssl, proof, party, key, own, (uint8_t)(lie == OTHER_SIDE ? 1 - side : side), party);
            if (lie == OTHER_PARTY) proof[5] = TRANSPORT_OBSERVER;
            if (lie == VERSION_2) proof[4] = 2;
            if (lie == TRUTH) memcpy(old[side], proof, sizeof proof);
            if (lie == REPLAYED) memcpy(proof, old[side], sizeof proof);
            if (lie == REFLECTED) {
                told = SSL_read(liar.ssl, heard, sizeof heard) == sizeof heard;
                memcpy(proof, heard, sizeof proof);
                if (!told && turn < 10) {
                    error = transport_step(stream);
                    continue;
                }
            }
            told = SSL_write(liar.ssl, proof, lie == CUT ? 50 : (int)sizeof proof) > 0;
            if (lie == CUT) SSL_shutdown(liar.ssl);
        }
        error = transport_step(stream);
    }
    *peer = *transport_peer(stream);
    if (error == 0)
        CHECK(peer->party != TRANSPORT_STRANGER);
    else
        CHECK_EQ(peer->party, TRANSPORT_STRANGER);
    uint8_t byte;
    if (error != 0) CHECK(transport_receive(stream, &byte, 1) < 0 && transport_send(stream, "x", 1) < 0);
    liar_free(&liar);
    close(sockets[1]);
    transport_free(stream);
    transport_context_release(honest);
    ed25519_free(own);
    ed25519_free(other);
    keys_release(keys);
    return error;
}

static void test_lies(void) {
    for (int lie = TRUTH; lie < LIES; lie++) {
        for (int dials = 0; dials < 2; dials++) {
            struct transport_identity peer;
            check_case("%s, of the %s", lies[lie], dials ? "dialler" : "acceptor");
            if (lie == REFLECTED && !dials) continue; // the dialler proves nothing before it has heard a proof
            int error = hear_lie((enum lie)lie, dials, &peer);
            CHECK_EQ(error, lie == TRUTH || lie == OBSERVES ? 0 : lie == CUT ? -ECONNRESET : -EBADE);
            if (lie == OBSERVES) CHECK_EQ(peer.party, TRANSPORT_OBSERVER);
        }
    }
}

// A side that has a certificate instead of the secret gets nowhere: nobody trusts any authority.
static void test_certificate(void) {
    struct keys *keys = key_files_load(false, 1, 1, 0);
    struct transport_context *honest = peer_context();
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    X509 *certificate = X509_new();
    REQUIRE(key != NULL && certificate != NULL);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    REQUIRE(X509_sign(certificate, key, EVP_sha256()) > 0);
    for (int dials = 0; dials < 2; dials++) {
        check_case("a certificate of the %s", dials ? "dialler" : "acceptor");
        struct meeting meeting = meeting_new(honest, keys, dials);
        SSL_set_psk_use_session_callback(meeting.liar.ssl, NULL);
        SSL_set_psk_find_session_callback(meeting.liar.ssl, NULL);
        REQUIRE(SSL_use_certificate(meeting.liar.ssl, certificate) == 1 &&
                SSL_use_PrivateKey(meeting.liar.ssl, key) == 1);
        meeting_fails(&meeting);
    }
    X509_free(certificate);
    EVP_PKEY_free(key);
    transport_context_release(honest);
    keys_release(keys);
}

// ---- somebody in the middle ----

static struct {
    size_t place; // in the stream of one direction
    int direction;
    int kind;
    size_t seen;
    bool done;
} attack;

enum { FLIP, DROP, INSERT, DOUBLE, KINDS };
static const char *const kinds[KINDS] = {"a bit flipped", "a byte dropped", "a byte inserted", "a byte doubled"};

static void tamper(int direction, uint8_t *bytes, size_t *length, size_t capacity) {
    if (direction != attack.direction || attack.done) return;
    if (attack.seen + *length <= attack.place) {
        attack.seen += *length;
        return;
    }
    size_t at = attack.place - attack.seen;
    uint8_t byte = attack.kind == DOUBLE ? bytes[at] : 0x55;
    attack.done = true;
    if (attack.kind == FLIP) bytes[at] ^= 0x10;
    if (attack.kind == DROP) memmove(bytes + at, bytes + at + 1, --*length - at);
    if (attack.kind == INSERT || attack.kind == DOUBLE) {
        REQUIRE(*length < capacity);
        memmove(bytes + at + 1, bytes + at, (*length)++ - at);
        bytes[at] = byte;
    }
}

// Every byte of the handshake is guarded: no end takes a changed one for good, and lets data of the other through.
static void test_tampered_handshake(void) {
    struct transport_context *dials = peer_context(), *accepts = master_context();
    for (int kind = 0; kind < KINDS; kind++) {
        for (int direction = 0; direction < 2; direction++) {
            attack.done = true;
            for (size_t place = 0; place == 0 || attack.done; place += 1 + place / 16) {
                struct wire wire;
                memset(&attack, 0, sizeof attack);
                attack.kind = kind;
                attack.direction = direction;
                attack.place = place;
                check_case("%s, byte %zu of end %d", kinds[kind], place, direction);
                open_wire(&wire, dials, accepts);
                shake_hands(&wire, tamper);
                // The end whose bytes are changed may have seen nothing wrong; the other end has. TLS ignores the minor
                // version in the header of a record that is not encrypted.
                bool ignored = kind == FLIP && place == 2;
                if (attack.done && !ignored) CHECK(wire.results[1 - direction] != 0);
                for (int end = 0; end < 2; end++)
                    if (wire.ends[end] != NULL && wire.results[end] != 0)
                        CHECK(transport_send(wire.ends[end], "x", 1) < 0);
                close_wire(&wire);
            }
        }
    }
    transport_context_release(dials);
    transport_context_release(accepts);
}

// It has the peers' file, ends both connections itself, and passes the proof of the master on to the peer.
static void test_relayed_proof(void) {
    struct keys *keys = key_files_load(false, 1, 1, 0);
    struct transport_context *dials = peer_context(), *accepts = master_context();
    int near[2], far[2], error = -EAGAIN, mine = -EAGAIN, got = 0, sent = 0;
    uint8_t proof[PROOF_BYTES];
    check_case("the proof of the master, relayed");
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, near) == 0);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, far) == 0);
    struct transport *peer = transport_new(dials, near[0], TRANSPORT_DIALS);
    struct transport *master = transport_new(accepts, far[0], TRANSPORT_ACCEPTS);
    struct liar as_master = liar_new(keys, false, near[1]), as_peer = liar_new(keys, true, far[1]);
    for (int turn = 0; turn < 20 && error == -EAGAIN; turn++) {
        SSL_do_handshake(as_master.ssl);
        SSL_do_handshake(as_peer.ssl);
        if (mine == -EAGAIN) mine = transport_step(master);
        if (got != PROOF_BYTES) got = SSL_read(as_peer.ssl, proof, sizeof proof);
        if (got == PROOF_BYTES && !sent) sent = SSL_write(as_master.ssl, proof, sizeof proof) > 0;
        error = transport_step(peer);
    }
    CHECK(sent && proof[5] == TRANSPORT_MASTER);
    CHECK_EQ(error, -EBADE);
    CHECK_EQ(mine, -EAGAIN); // the master waits for a proof, too
    liar_free(&as_master);
    liar_free(&as_peer);
    transport_free(peer);
    transport_free(master);
    close(near[1]);
    close(far[1]);
    transport_context_release(dials);
    transport_context_release(accepts);
    keys_release(keys);
}

static uint8_t recorded[1 << 16];
static size_t recorded_length;

static void record(int direction, uint8_t *bytes, size_t *length, size_t capacity) {
    (void)capacity;
    if (direction != 0) return;
    REQUIRE(recorded_length + *length <= sizeof recorded);
    memcpy(recorded + recorded_length, bytes, *length);
    recorded_length += *length;
}

// All that a peer has sent, to a master with the same keys.
static void test_replayed_connection(void) {
    struct transport_context *dials = peer_context(), *accepts = master_context();
    struct wire wire;
    uint8_t heard[5];
    check_case("a connection is recorded");
    open_wire(&wire, dials, accepts);
    recorded_length = 0;
    shake_hands(&wire, record);
    CHECK_EQ(wire.results[1], 0);
    CHECK(far_end_write(wire.ends[0], "hello", 5) && pass(&wire, 0, record));
    CHECK(far_end_read(wire.ends[1], heard, 5));
    close_wire(&wire);

    check_case("and replayed");
    open_wire(&wire, dials, accepts);
    CHECK_EQ(send(wire.middle[1], recorded, recorded_length, MSG_NOSIGNAL), (ssize_t)recorded_length);
    for (int turn = 0; turn < 3; turn++) step_end(&wire, 1);
    CHECK_EQ(wire.results[1], -EKEYREJECTED);
    CHECK(wire.ends[1] == NULL);
    close_wire(&wire);
    transport_context_release(dials);
    transport_context_release(accepts);
}

// A member that would rather speak TLS 1.2, which has no place for the secret here.
static void test_older_version(void) {
    struct keys *keys = key_files_load(false, 1, 1, 0);
    struct transport_context *honest = peer_context();
    for (int dials = 0; dials < 2; dials++) {
        check_case("TLS 1.2 of the %s", dials ? "dialler" : "acceptor");
        struct meeting meeting = meeting_new(honest, keys, dials);
        REQUIRE(SSL_set_min_proto_version(meeting.liar.ssl, TLS1_2_VERSION) == 1);
        REQUIRE(SSL_set_max_proto_version(meeting.liar.ssl, TLS1_2_VERSION) == 1);
        meeting_fails(&meeting);
    }
    transport_context_release(honest);
    keys_release(keys);
}

// ---- strangers by the thousand ----

static void test_half_handshakes(void) {
    enum { OPEN = 200, TURNS = 10 };
    struct transport_context *accepts = master_context(), *dials = peer_context();
    size_t before = mallinfo2().uordblks, most = 0;
    check_case("half handshakes");
    for (int turn = 0; turn < TURNS; turn++) {
        struct wire wires[OPEN];
        for (int i = 0; i < OPEN; i++) {
            open_wire(&wires[i], dials, accepts);
            if (i % 4 == 1) CHECK_EQ(send(wires[i].middle[1], "\26\3\1\2\0\1", 6, MSG_NOSIGNAL), 6);
            if (i % 4 == 2) CHECK_EQ(send(wires[i].middle[1], "\26\3\1\377\377", 5, MSG_NOSIGNAL), 5);
            if (i % 4 == 3) step_end(&wires[i], 0);
            if (i % 4 == 3) pass(&wires[i], 0, NULL); // all but the dialler's last flight
            step_end(&wires[i], 1);
        }
        size_t now = mallinfo2().uordblks;
        if (now - before > most) most = now - before;
        for (int i = 0; i < OPEN; i++) close_wire(&wires[i]);
    }
    CHECK(most / OPEN < 64 * 1024);
    CHECK(mallinfo2().uordblks - before < 64 * 1024); // nothing stays
    transport_context_release(accepts);
    transport_context_release(dials);
}

int main(void) {
    test_good();
    test_round_trips();
    test_wrong_secret();
    test_other_master();
    test_rotation();
    test_runs();
    test_plain();
    test_lies();
    test_certificate();
    test_tampered_handshake();
    test_relayed_proof();
    test_replayed_connection();
    test_older_version();
    test_half_handshakes();
    return check_status();
}

#endif
