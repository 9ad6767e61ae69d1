#define _GNU_SOURCE
#define LOG_COMPONENT "security"
#include "net/tls.h"

#include "base/platform.h"

#ifdef PCCL_HAVE_TLS

#include <errno.h>
#include <openssl/err.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "net/certificate.h"
#include "net/conn.h"
#include "net/relay.h"
#include "net/socket.h"
#include "net/tls_private.h"

static const char cipher_suites[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256", groups[] = "X25519:P-256";
static const char identity_prefix[] = "pccl1 "; // of a secret's id
static const char exporter_label[] = "EXPORTER-pccl";
static const uint8_t aes_128_gcm_sha256[2] = {0x13, 0x01};

enum {
    PREFIX_BYTES = sizeof identity_prefix - 1,
    EXPORTER_BYTES = 32,
    RECORD_HANDSHAKE = 22, // type of the first record of a handshake
    MAX_IDENTITIES = 4,    // that are looked up for a stranger; a dialler sends one, and once more if asked to
};

static const struct keys *keys_of(const struct tls *tls) { return tls->stream.context->options.keys; }

// ---- secrets as pre-shared keys ----

// TLS treats a key from outside as one that an earlier session left. NULL: no memory.
static SSL_SESSION *session_of(SSL *ssl, const struct keys_secret *secret) {
    SSL_SESSION *session = SSL_SESSION_new();
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256); // names the hash; any cipher of it serves
    if (session != NULL && cipher != NULL &&
        SSL_SESSION_set1_master_key(session, secret->bytes, sizeof secret->bytes) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

// For an acceptor. Without a session the handshake goes on, and fails, since there is no certificate. OpenSSL asks for
// one identity after the other, and uses the last one that it has asked for.
static int find_session(SSL *ssl, const unsigned char *identity, size_t length, SSL_SESSION **session) {
    struct tls *tls = SSL_get_app_data(ssl);
    *session = NULL;
    if (++tls->identities > MAX_IDENTITIES) return 1;
    if (length < PREFIX_BYTES || memcmp(identity, identity_prefix, PREFIX_BYTES) != 0) return 1;
    bool derives = tls->stream.context->options.party == TRANSPORT_MASTER;
    struct keys_secret secret;
    const char *name = (const char *)identity + PREFIX_BYTES;
    bool found = keys_find(keys_of(tls), name, length - PREFIX_BYTES, derives, &secret, &tls->run);
    if (found) *session = session_of(ssl, &secret);
    OPENSSL_cleanse(&secret, sizeof secret);
    return !found || *session != NULL;
}

// For a dialler. OpenSSL copies the identity before this function is called again.
static int use_session(SSL *ssl, const EVP_MD *hash, const unsigned char **identity, size_t *length,
                       SSL_SESSION **session) {
    static _Thread_local char text[PREFIX_BYTES + KEYS_IDENTITY_BYTES];
    const struct tls *tls = SSL_get_app_data(ssl);
    const struct keys_secret *secret = keys_secret(keys_of(tls), tls->secret);
    (void)hash;
    memcpy(text, identity_prefix, PREFIX_BYTES);
    keys_identity(keys_of(tls), tls->secret, text + PREFIX_BYTES);
    *identity = (const unsigned char *)text;
    *length = strlen(text);
    *session = session_of(ssl, secret);
    return *session != NULL;
}

// ---- contexts ----

static void tls_context_fini(struct transport_context *context) {
    struct tls_context *tls = (struct tls_context *)(void *)context;
    SSL_CTX_free(tls->ssl);
    BIO_meth_free(tls->bio);
    keys_release(context->options.keys);
    ed25519_free(tls->identity);
    free(tls->voucher);
    pthread_mutex_destroy(&tls->lock);
}

static bool set_up(SSL_CTX *ssl, bool has_secrets) {
    SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS); // a master may have a thousand streams, most of them quiet
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_msg_callback(ssl, tls_count_record);
    SSL_CTX_set_max_cert_list(ssl, TLS_CHAIN_BYTES);
    if (has_secrets) SSL_CTX_set_psk_find_session_callback(ssl, find_session);
    if (has_secrets) SSL_CTX_set_psk_use_session_callback(ssl, use_session);
    return SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(ssl, cipher_suites) == 1 && SSL_CTX_set1_groups_list(ssl, groups) == 1 &&
           SSL_CTX_set_num_tickets(ssl, 0) == 1 && SSL_CTX_set_max_early_data(ssl, 0) == 1 &&
           SSL_CTX_set_recv_max_early_data(ssl, 0) == 1;
}

// Owns `identity`, also after a failure.
static struct transport_context *context_with(const struct transport_options *options, struct ed25519 *identity) {
    struct tls_context *tls = calloc(1, sizeof *tls);
    if (tls == NULL) {
        ed25519_free(identity);
        return NULL;
    }
    transport_context_init(&tls->context, &transport_tls, options);
    keys_hold(options->keys);
    tls->identity = identity;
    tls->renewal = TLS_RENEWAL_RECORDS;
    pthread_mutex_init(&tls->lock, NULL);
    // OpenSSL's exit handler would take away what our threads use while the process exits.
    ERR_set_mark();
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
    tls->bio = tls_bio();
    tls->ssl = SSL_CTX_new(TLS_method());
    tls->key = identity != NULL ? identity : keys_master_key(options->keys);
    bool done = tls->bio != NULL && tls->ssl != NULL && set_up(tls->ssl, keys_certificates(options->keys) == NULL) &&
                ed25519_id(ed25519_public(tls->key), &tls->id);
    ERR_pop_to_mark();
    if (done) return &tls->context;
    transport_context_release(&tls->context);
    return NULL;
}

struct transport_context *tls_context_new(const struct transport_options *options) {
    if (options == NULL || options->keys == NULL) return transport_context_new(options);
    bool master = options->party == TRANSPORT_MASTER && keys_master_key(options->keys) != NULL;
    struct ed25519 *identity = master ? NULL : ed25519_new();
    return master || identity != NULL ? context_with(options, identity) : NULL;
}

const struct wire_id *tls_context_id(const struct transport_context *context) {
    return context->type == &transport_tls ? &((const struct tls_context *)(const void *)context)->id : NULL;
}

void tls_renew_after(struct transport_context *context, uint32_t records) {
    ((struct tls_context *)(void *)context)->renewal = records;
}

// ---- proofs ----
// "pccl", version 1, the party, and how many bytes follow the proof (2 bytes, little-endian); the public key; a
// signature over what signed_text returns. With certificates follow: from a master, the statement about its key; from a
// peer that has dialled a master, the voucher for the one that signed its epoch (net/certificates).

enum { SIGNED_PREFIX_BYTES = 12, SIGNED_BYTES = SIGNED_PREFIX_BYTES + 2 + ED25519_KEY + EXPORTER_BYTES };

static void proof_head(uint8_t out[8], enum transport_party party) {
    memcpy(out, "pccl\1\0\0", 8);
    out[5] = (uint8_t)party;
}

// Writes what the proof of one side of this stream signs. False: no memory.
static bool signed_text(const struct tls *tls, enum transport_role side, enum transport_party party,
                        const uint8_t public_key[ED25519_KEY], uint8_t out[SIGNED_BYTES]) {
    memcpy(out, "pccl proof 1", SIGNED_PREFIX_BYTES);
    out[SIGNED_PREFIX_BYTES] = side == TRANSPORT_DIALS ? 0 : 1;
    out[SIGNED_PREFIX_BYTES + 1] = (uint8_t)party;
    memcpy(out + SIGNED_PREFIX_BYTES + 2, public_key, ED25519_KEY);
    return SSL_export_keying_material(tls->ssl, out + SIGNED_PREFIX_BYTES + 2 + ED25519_KEY, EXPORTER_BYTES,
                                      exporter_label, sizeof exporter_label - 1, NULL, 0, 0) == 1;
}

static bool make_proof(const struct tls *tls, size_t more, uint8_t out[TLS_PROOF_BYTES]) {
    const struct ed25519 *key = tls_context_of(tls)->key;
    enum transport_party party = tls->stream.context->options.party;
    const uint8_t *public_key = ed25519_public(key);
    uint8_t text[SIGNED_BYTES], *signature = out + 8 + ED25519_KEY;
    proof_head(out, party);
    out[6] = (uint8_t)more;
    out[7] = (uint8_t)(more >> 8);
    memcpy(out + 8, public_key, ED25519_KEY);
    return signed_text(tls, tls->stream.role, party, public_key, text) &&
           ed25519_sign(key, text, sizeof text, signature);
}

// How many bytes follow the proof that was received.
static size_t more_bytes(const struct tls *tls) { return tls->proof[6] | (size_t)tls->proof[7] << 8; }

// Checks that the certificate of the other side permits it to be this party, and what follows its proof. 0 or -EBADE.
static int check_certificate(struct tls *tls, enum transport_party party, const uint8_t *public_key) {
    bool master = party == TRANSPORT_MASTER;
    unsigned needed = master ? CERTIFICATES_MASTER : party == TRANSPORT_PEER ? CERTIFICATES_PEER : tls->roles;
    if ((tls->roles & needed) == 0) {
        const char *role = master ? "master" : "peer";
        snprintf(tls->reason, sizeof tls->reason,
                 "it acts as a %s, and no URI of its certificate in this run ends in /pccl/%s", role, role);
        return -EBADE;
    }
    if (master && !certificates_stated(tls->ssl, public_key, tls->more, more_bytes(tls))) return -EBADE;
    bool vouches = party == TRANSPORT_PEER && tls->stream.context->options.party == TRANSPORT_MASTER;
    if (vouches && more_bytes(tls) > 0)
        certificates_believe(tls_certificates(tls), tls->ssl, tls->more, more_bytes(tls));
    return 0;
}

// Takes the proof of the other side. 0, -EBADE or -ENOMEM.
static int check_proof(struct tls *tls) {
    const uint8_t *public_key = tls->proof + 8, *signature = public_key + ED25519_KEY;
    enum transport_role other = tls->stream.role == TRANSPORT_DIALS ? TRANSPORT_ACCEPTS : TRANSPORT_DIALS;
    enum transport_party party = tls->proof[5];
    bool certificates = tls_certificates(tls) != NULL;
    uint8_t head[8], text[SIGNED_BYTES];
    struct wire_id id;
    proof_head(head, party);
    bool known = party == TRANSPORT_MASTER || party == TRANSPORT_PEER || party == TRANSPORT_OBSERVER;
    if (!known || memcmp(head, tls->proof, certificates ? 6 : sizeof head) != 0) return -EBADE;
    bool pinned = party == TRANSPORT_MASTER && !certificates;
    if (pinned && memcmp(public_key, keys_master_public(keys_of(tls)), ED25519_KEY) != 0) return -EBADE;
    if (!signed_text(tls, other, party, public_key, text) || !ed25519_id(public_key, &id)) return -ENOMEM;
    if (!ed25519_verify(public_key, text, sizeof text, signature)) return -EBADE;
    int error = certificates ? check_certificate(tls, party, public_key) : 0;
    if (error == 0) tls->stream.peer = (struct transport_identity){.party = party, .id = id, .run = tls->run};
    return error;
}

// ---- the handshake ----

// Judges each certificate of the other side's chain, from its authority down to its own.
static int judge(int good, X509_STORE_CTX *context) {
    SSL *ssl = X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct tls *tls = SSL_get_app_data(ssl);
    if (good != 1) {
        certificates_problem(context, tls->reason);
        tls->roles = 0;
        return 0;
    }
    if (X509_STORE_CTX_get_error_depth(context) > 0) return 1;
    tls->roles = certificate_roles(SSL_get_certificate(ssl), X509_STORE_CTX_get_current_cert(context), tls->reason);
    if (tls->roles == 0) X509_STORE_CTX_set_error(context, X509_V_ERR_APPLICATION_VERIFICATION);
    return tls->roles != 0;
}

static int begin(struct tls *tls) {
    struct tls_context *context = tls_context_of(tls);
    BIO *bio = BIO_new(context->bio);
    SSL *ssl = bio == NULL ? NULL : SSL_new(context->ssl);
    if (ssl == NULL) {
        BIO_free(bio);
        return -ENOMEM;
    }
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_app_data(ssl, tls);
    bool dials = tls->stream.role == TRANSPORT_DIALS;
    if (dials)
        SSL_set_connect_state(ssl);
    else
        SSL_set_accept_state(ssl);
    struct certificates *certificates = tls_certificates(tls);
    if (certificates != NULL) {
        SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, judge);
        if (!certificates_use(certificates, ssl)) {
            SSL_free(ssl);
            return -ENOMEM;
        }
    } else if (dials) {
        SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL); // no authority is trusted, so no certificate passes
    }
    if (tls->forks == 0) pthread_mutex_init(&tls->lock, NULL);
    tls->forks = descriptor_forks() + 1;
    tls->ssl = ssl;
    tls->phase = TLS_SHAKES_HANDS;
    return 0;
}

// For a dialler: the connection. Of an acceptor: the first byte, before which a stranger costs no memory.
static int connect_on(struct tls *tls) {
    struct transport *stream = &tls->stream;
    if (stream->role == TRANSPORT_DIALS) {
        int error = transport_plain.step(stream);
        if (error != 0) return error;
        if (!socket_remote_address(stream->fd, &tls->address)) tls->address.family = 0;
        return begin(tls);
    }
    uint8_t first;
    ssize_t got = recv(stream->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    stream->awaits = EPOLLIN;
    if (got < 0) return errno == EINTR ? -EAGAIN : -errno;
    if (got == 0) return -ECONNRESET;
    stream->speaks = true;
    if (first == RECORD_HANDSHAKE) return begin(tls);
    send(stream->fd, CONN_WANTS_KEYS, sizeof CONN_WANTS_KEYS - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    return -EPROTOTYPE;
}

// Writes what follows the proof of this side. False: no memory.
static bool write_more(struct tls *tls, uint8_t out[CERTIFICATES_VOUCHER_BYTES], size_t *length) {
    struct tls_context *context = tls_context_of(tls);
    enum transport_party party = context->context.options.party;
    *length = 0;
    if (tls_certificates(tls) == NULL) return true;
    if (party == TRANSPORT_MASTER)
        return (*length = certificates_state(tls->ssl, ed25519_public(context->key), out)) > 0;
    if (party != TRANSPORT_PEER || tls->stream.peer.party != TRANSPORT_MASTER) return true;
    pthread_mutex_lock(&context->lock);
    if (context->voucher != NULL) memcpy(out, context->voucher, *length = context->voucher_bytes);
    pthread_mutex_unlock(&context->lock);
    return true;
}

static int send_proof(struct tls *tls) {
    uint8_t proof[TLS_PROOF_BYTES + CERTIFICATES_VOUCHER_BYTES];
    size_t more, written;
    ERR_set_mark();
    bool made = write_more(tls, proof + TLS_PROOF_BYTES, &more) && make_proof(tls, more, proof);
    ERR_pop_to_mark();
    if (!made) return -ENOMEM;
    bool early = tls->stream.role == TRANSPORT_ACCEPTS && tls_certificates(tls) == NULL;
    if (!early) return tls_write(tls, proof, TLS_PROOF_BYTES + more);
    ERR_set_mark();
    if (SSL_write_early_data(tls->ssl, proof, TLS_PROOF_BYTES, &written) != 1) return tls_error(tls);
    ERR_pop_to_mark();
    return 0;
}

// An acceptor sends its proof with its part of the handshake, once the dialler has shown that it has the secret. That
// spares a round trip.
static int accept_proving(struct tls *tls) {
    uint8_t none;
    size_t got;
    tls->blocked = false;
    ERR_set_mark();
    int done = SSL_read_early_data(tls->ssl, &none, sizeof none, &got);
    if (done == SSL_READ_EARLY_DATA_ERROR && !tls->blocked) return tls_error(tls);
    ERR_pop_to_mark();
    if (done == SSL_READ_EARLY_DATA_ERROR) return -EAGAIN;
    if (done != SSL_READ_EARLY_DATA_FINISH || SSL_session_reused(tls->ssl) != 1) return -EKEYREJECTED;
    tls->proved = true;
    return send_proof(tls);
}

static int shake_hands(struct tls *tls) {
    bool dials = tls->stream.role == TRANSPORT_DIALS, certificates = tls_certificates(tls) != NULL;
    if (!dials && !tls->proved && !certificates) {
        int error = accept_proving(tls);
        if (error != 0) return error;
    }
    tls->blocked = false;
    ERR_set_mark();
    if (SSL_do_handshake(tls->ssl) != 1) {
        if (!tls->blocked) return tls_error(tls);
        ERR_pop_to_mark();
        return -EAGAIN;
    }
    ERR_pop_to_mark();
    if ((SSL_session_reused(tls->ssl) == 1) == certificates) return -EKEYREJECTED; // not by the secret
    if (certificates && (tls->roles == 0 || SSL_get_verify_result(tls->ssl) != X509_V_OK)) return -EKEYREJECTED;
    tls->phase = TLS_AWAITS_PROOF;
    // With certificates the acceptor proves first: the dialler sends nothing before it hears that its own is accepted.
    return dials != certificates ? send_proof(tls) : 0;
}

// Receives up to so many bytes of the proof and what follows it. 0: they are there.
static int receive_proof(struct tls *tls, uint8_t *to, size_t begin, size_t end) {
    while (tls->proof_bytes < end) {
        ptrdiff_t got = tls_read(tls, to + (tls->proof_bytes - begin), end - tls->proof_bytes);
        if (got <= 0) return got == 0 ? -ECONNRESET : (int)got;
        tls->proof_bytes += (size_t)got;
    }
    return 0;
}

static int await_proof(struct tls *tls) {
    bool certificates = tls_certificates(tls) != NULL;
    int error = receive_proof(tls, tls->proof, 0, sizeof tls->proof);
    if (error != 0) return error;
    size_t more = certificates ? more_bytes(tls) : 0;
    if (more > CERTIFICATES_VOUCHER_BYTES) return -EBADE;
    if (more > 0 && tls->more == NULL && (tls->more = malloc(more)) == NULL) return -ENOMEM;
    error = receive_proof(tls, tls->more, sizeof tls->proof, sizeof tls->proof + more);
    if (error != 0) return error;
    ERR_set_mark();
    error = check_proof(tls);
    ERR_pop_to_mark();
    if (error == 0 && certificates && tls->stream.role == TRANSPORT_DIALS) error = send_proof(tls);
    if (error != 0) return error;
    if (tls->stream.peer.party != TRANSPORT_MASTER) {
        free(tls->more);
        tls->more = NULL;
    }
    // The secret has done its work, and stays only in memory that core dumps leave out.
    static const uint8_t nothing[KEYS_SECRET_BYTES];
    if (!certificates) SSL_SESSION_set1_master_key(SSL_get0_session(tls->ssl), nothing, sizeof nothing);
    tls->phase = TLS_OPEN;
    if (tls->stream.role == TRANSPORT_DIALS) atomic_store(&tls_context_of(tls)->secret, tls->secret);
    tls->stream.buffered = true;
    return 0;
}

static void forget(struct tls *tls) {
    SSL_free(tls->ssl);
    free(tls->out);
    free(tls->more);
    tls->ssl = NULL;
    tls->out = NULL;
    tls->more = NULL;
    tls->roles = 0;
    tls->in_begin = tls->in_end = tls->proof_bytes = tls->records = tls->idle = 0;
    tls->send_error = tls->receive_error = 0;
    tls->ended = false;
    tls->phase = TLS_CONNECTS;
}

// Connects again, to try the next secret. -EAGAIN, or why that cannot be.
static int dial_again(struct tls *tls, int error) {
    struct transport *stream = &tls->stream;
    uint32_t count = (uint32_t)keys_secret_count(keys_of(tls));
    bool refused = error == -EKEYREJECTED || error == -ECONNABORTED;
    if (!refused || stream->role != TRANSPORT_DIALS || tls->address.family == 0 || ++tls->tried >= count) return error;
    int fd = socket_dial_from(stream->card, &tls->address), poller = stream->poller;
    if (fd < 0) return fd;
    forget(tls);
    if (stream->relay != NULL) relay_begin(stream->relay);
    tls->secret = (tls->secret + 1) % count;
    transport_unwatch(stream);
    descriptor_close(stream->fd);
    stream->fd = fd;
    stream->awaits = EPOLLOUT;
    return poller < 0 || transport_watch(stream, poller, EPOLLOUT, stream->data) ? -EAGAIN : -errno;
}

static int tls_step(struct transport *stream) {
    struct tls *tls = tls_of(stream);
    if (tls->phase == TLS_OPEN) return 0;
    int error = tls->phase == TLS_FAILED ? -ENOTCONN : tls_flush(tls);
    tls->taken = 0;
    tls->emptied = false;
    if (tls->phase == TLS_CONNECTS && tls->tried == 0 && stream->role == TRANSPORT_DIALS)
        tls->secret = atomic_load(&tls_context_of(tls)->secret);
    if (error == 0 && tls->phase == TLS_CONNECTS) error = connect_on(tls);
    if (error == -EAGAIN && tls->phase == TLS_CONNECTS) return error;
    if (error == 0 && tls->phase == TLS_SHAKES_HANDS) error = shake_hands(tls);
    if (error == 0 && tls->phase == TLS_AWAITS_PROOF) error = await_proof(tls);
    if (error == 0 || error == -EAGAIN) {
        stream->awaits = tls->out != NULL ? EPOLLIN | EPOLLOUT : EPOLLIN;
        return error;
    }
    error = dial_again(tls, error);
    if (error != -EAGAIN) tls->phase = TLS_FAILED;
    bool alone = tls->stream.context->options.party == TRANSPORT_OBSERVER; // nobody else tells its user
    if (error != -EAGAIN && alone && tls->reason[0] != '\0') LOG(LOG_WARN, "refuses the master: %s", tls->reason);
    return error;
}

static const char *tls_why(const struct transport *stream) {
    const struct tls *tls = (const struct tls *)(const void *)stream;
    return tls->phase == TLS_FAILED && tls->reason[0] != '\0' ? tls->reason : NULL;
}

static void tls_vouch(struct transport *stream) {
    struct tls *tls = tls_of(stream);
    struct tls_context *context = tls_context_of(tls);
    if (tls_certificates(tls) == NULL || tls->stream.peer.party != TRANSPORT_MASTER) return;
    uint8_t room[CERTIFICATES_VOUCHER_BYTES];
    pthread_mutex_lock(&tls->lock);
    ERR_set_mark();
    size_t length = certificates_vouch(tls->ssl, tls->proof + 8, tls->more, more_bytes(tls), room);
    ERR_pop_to_mark();
    pthread_mutex_unlock(&tls->lock);
    uint8_t *voucher = length == 0 ? NULL : malloc(length);
    if (voucher == NULL) {
        LOG(LOG_WARN, "the master's chain of certificates is too long, or memory ran out: if this master is lost, the "
                      "next one does not believe this peer");
        return;
    }
    memcpy(voucher, room, length);
    pthread_mutex_lock(&context->lock);
    uint8_t *before = context->voucher;
    context->voucher = voucher;
    context->voucher_bytes = length;
    pthread_mutex_unlock(&context->lock);
    free(before);
}

// An end without notice looks like a cut, so a process that just closes gives notice too. A forked child must not: the
// descriptor may be another's there.
static void tls_fini(struct transport *stream) {
    struct tls *tls = tls_of(stream);
    if (tls->forks == 0) return;
    ERR_set_mark();
    bool mine = tls->forks == descriptor_forks() + 1;
    if (mine && tls->phase == TLS_OPEN && tls->send_error == 0 && tls->out == NULL) SSL_shutdown(tls->ssl);
    ERR_pop_to_mark();
    forget(tls);
    pthread_mutex_destroy(&tls->lock);
}

const struct transport_type transport_tls = {
    .bytes = sizeof(struct tls),
    .proves = true,
    .step = tls_step,
    .sendv = tls_sendv,
    .recvv = tls_recvv,
    .finish = tls_finish,
    .fini = tls_fini,
    .why = tls_why,
    .vouch = tls_vouch,
    .context_fini = tls_context_fini,
};

#else

struct transport_context *tls_context_new(const struct transport_options *options) {
    return options == NULL || options->keys == NULL ? transport_context_new(options) : NULL;
}
const struct wire_id *tls_context_id(const struct transport_context *context) { return (void)context, NULL; }

#endif

bool tls_peer_id(const struct transport_context *context, struct wire_id *out) {
    const struct wire_id *id = tls_context_id(context);
    if (id == NULL) return platform_random(out->bytes, sizeof out->bytes);
    *out = *id;
    return true;
}
