// What a lying member can show about the masters of its run. The first byte chooses one of three programs:
// - a voucher (net/certificates), put together from the keys, statements and certificates of several masters and
//   strangers, and changed anywhere. Believed are only the signers of masters of the run;
// - a proof over TLS (net/tls) from a member with a genuine certificate. Only a master opens a stream as a master;
// - a RESUME with a signed epoch (master/quorum), changed anywhere. What verifies is what a master has signed.
#include "fuzz.h"
#include "master/quorum.h"
#include "net/tls.h"

#ifdef PCCL_HAVE_TLS

#include <errno.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include "net/tls_private.h"
#include "tests/unit/certificate_files.h"

enum { VOUCHERS, PROOFS, EPOCHS, PROGRAMS };
enum { STATED = 13, EXPORTED = 32, SIGNED = 12 + 2 + ED25519_KEY + EXPORTED, TURNS = 6 };

static struct maker {
    struct issued leaf;
    struct ed25519 *signer;
    uint8_t statement[CERTIFICATES_VOUCHER_BYTES]; // of the leaf about the signer
    size_t statement_bytes;
    bool master; // of the run of these tests
} makers[6];
enum { MAKERS = sizeof makers / sizeof makers[0], MASTER = 0, CHAINED = 1, PEER = 2 };

static struct issued authority, between;
static struct party {
    struct certificate_files files;
    struct keys *keys;
    struct certificates *certificates, *of_context; // those of keys, whose pages the leak sanitizer does not read
    struct transport_context *context;
} honest[2], liars[2]; // a peer, and a master

static struct wire_member members[WIRE_MAX_MEMBERS], signed_members[3];
static struct wire_resume signed_resume;
static struct wire_buffer resume;
static struct quorum_verified verified; // the genuine epoch, or that of an earlier input
static const struct wire_header header = {.type = WIRE_RESUME, .run = 7, .generation = 2, .epoch = 4};

// ---- the run ----

static void state(struct maker *maker) {
    uint8_t text[STATED + ED25519_KEY] = "pccl signer 1";
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    memcpy(text + STATED, ed25519_public(maker->signer), ED25519_KEY);
    maker->statement_bytes = sizeof maker->statement;
    MUST(EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, maker->leaf.key) == 1);
    MUST(EVP_DigestSign(context, maker->statement, &maker->statement_bytes, text, sizeof text) == 1);
    EVP_MD_CTX_free(context);
}

static void make(struct maker *maker, const struct issued *by, const char *uris, bool master) {
    *maker = (struct maker){.leaf = certificate_leaf(by, uris), .signer = ed25519_new(), .master = master};
    MUST(maker->signer != NULL);
    state(maker);
}

static void load(struct party *party) {
    char reason[KEYS_REASON_BYTES];
    keys_release(party->keys);
    party->keys = keys_load_certificate(party->files.cert, party->files.key, party->files.ca, reason);
    MUST(party->keys != NULL);
    party->certificates = keys_certificates(party->keys);
}

static void found(struct party *party, const struct issued *leaf, enum transport_party which) {
    party->files = certificate_files_new(leaf, NULL, (X509 *const[]){authority.certificate, NULL});
    load(party);
    struct transport_options options = {.keys = party->keys, .party = which};
    party->context = tls_context_new(&options);
    MUST(party->context != NULL);
    party->of_context = party->certificates;
}

static bool sign(void *context, const void *bytes, size_t length, uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    return ed25519_sign(((const struct maker *)context)->signer, bytes, length, signature);
}

static bool verify(void *context, const void *bytes, size_t length, const uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    return ed25519_verify(ed25519_public(((const struct maker *)context)->signer), bytes, length, signature);
}

static const struct signer signer = {.context = &makers[MASTER], .sign = sign, .verify = verify};

static void sign_resume(void) {
    for (uint8_t i = 0; i < 3; i++)
        signed_members[i] = (struct wire_member){.id = {{(uint8_t)(9 - i)}},
                                                 .join_number = i + 1u,
                                                 .group = i / 2u,
                                                 .lanes = 1,
                                                 .address = {4, {127, 0, 0, 1}, 5}};
    struct wire_epoch epoch = {
        .number = 4, .group_epoch = 3, .latency_us = 1, .megabytes_per_s = 1, .count = 3, .members = signed_members};
    struct wire_epoch_commit commit = {.epoch = epoch, .quorum = {.members = 3, .old_members = 2, .newer = 1}};
    MUST(quorum_sign(&signer, header, &commit));
    signed_resume = (struct wire_resume){
        .hello = {.version = WIRE_VERSION, .id = signed_members[0].id, .lanes = 1, .port = 5, .masters = 1},
        .generation = header.generation,
        .join_number = 1,
        .accepted = 1,
        .epoch = epoch,
        .quorum = commit.quorum};
    memcpy(signed_resume.signature, commit.signature, sizeof commit.signature);
    wire_encode_resume(&resume, header, &signed_resume);
    MUST(quorum_verify(&signer, &verified, header.run, &signed_resume) == QUORUM_SIGNED);
}

static void begin(void) {
    if (authority.key != NULL) return;
    authority = certificate_authority();
    struct issued stranger = certificate_authority();
    between = certificate_issue(&authority, "EC", NULL, true, -CERTIFICATE_HOUR, CERTIFICATE_HOUR);
    make(&makers[MASTER], &authority, CERTIFICATE_MASTER_URI, true);
    make(&makers[CHAINED], &between, CERTIFICATE_MASTER_URI "," CERTIFICATE_PEER_URI, true);
    make(&makers[PEER], &authority, CERTIFICATE_PEER_URI, false);
    make(&makers[3], &authority, "spiffe://test/other/pccl/master", false);
    make(&makers[4], &stranger, CERTIFICATE_MASTER_URI, false);
    make(&makers[5], &makers[PEER].leaf, CERTIFICATE_MASTER_URI, false); // a member that plays the authority
    certificate_free(&stranger);
    found(&honest[0], &makers[PEER].leaf, TRANSPORT_PEER);
    found(&honest[1], &makers[MASTER].leaf, TRANSPORT_MASTER);
    found(&liars[0], &makers[PEER].leaf, TRANSPORT_PEER);
    found(&liars[1], &makers[MASTER].leaf, TRANSPORT_MASTER);
    sign_resume();
}

// ---- vouchers ----

static bool is_masters(const uint8_t *public_key) {
    for (int i = 0; i < MAKERS; i++)
        if (makers[i].master && memcmp(ed25519_public(makers[i].signer), public_key, ED25519_KEY) == 0) return true;
    return false;
}

static size_t put_certificate(uint8_t *out, size_t at, X509 *certificate) {
    uint8_t *to = out + at;
    if (at + (size_t)i2d_X509(certificate, NULL) > CERTIFICATES_VOUCHER_BYTES) return at;
    return at + (size_t)i2d_X509(certificate, &to);
}

static size_t put_together(struct fuzz *in, uint8_t out[CERTIFICATES_VOUCHER_BYTES], bool *genuine) {
    const struct maker *named = &makers[fuzz_below(in, MAKERS)], *states = &makers[fuzz_below(in, MAKERS)];
    uint32_t first = fuzz_below(in, MAKERS), more = fuzz_below(in, 8);
    size_t bytes = states->statement_bytes, at = ED25519_KEY + 2 + bytes;
    memcpy(out, ed25519_public(named->signer), ED25519_KEY);
    out[ED25519_KEY] = (uint8_t)bytes;
    out[ED25519_KEY + 1] = (uint8_t)(bytes >> 8);
    memcpy(out + ED25519_KEY + 2, states->statement, bytes);
    at = put_certificate(out, at, makers[first].leaf.certificate);
    if (more & 1) at = put_certificate(out, at, between.certificate);
    if (more & 2) at = put_certificate(out, at, authority.certificate);
    if (more & 4) at = put_certificate(out, at, makers[fuzz_below(in, MAKERS)].leaf.certificate);
    *genuine = named == states && &makers[first] == named && named->master && (named != &makers[CHAINED] || (more & 1));
    return at;
}

static void fuzz_vouchers(struct fuzz *in) {
    uint8_t voucher[CERTIFICATES_VOUCHER_BYTES];
    bool genuine;
    size_t length = put_together(in, voucher, &genuine);
    for (uint32_t changes = fuzz_below(in, 6); changes > 0; changes--) {
        size_t at = (fuzz_u8(in) | (size_t)fuzz_u8(in) << 8) % (length + 1);
        uint8_t change = fuzz_u8(in);
        if (at == length) at = 0;
        if (change == 0)
            length = at + 1;
        else if (change & 1)
            fuzz_bytes(in, voucher + at, change < length - at ? change : length - at);
        else
            voucher[at] ^= change;
        genuine = false;
    }
    uint8_t *copy = fuzz_copy(voucher, length);
    SSL *ssl = SSL_new(((struct tls_context *)(void *)honest[1].context)->ssl);
    struct certificates *certificates = keys_certificates(honest[1].keys);
    MUST(ssl != NULL && certificates_use(certificates, ssl));
    ERR_set_mark();
    bool believed = certificates_believe(certificates, ssl, copy, length);
    ERR_pop_to_mark();
    MUST(!believed || is_masters(copy));
    MUST(believed || !genuine);
    if (believed) MUST(certificates_believe(certificates, ssl, copy, length));
    SSL_free(ssl);
    free(copy);
    if (believed) load(&honest[1]); // which nobody has confirmed to yet
}

// ---- proofs ----

// The side of a liar: TLS without the library.
static SSL *liar_new(const struct party *liar, int fd, bool dials) {
    SSL *ssl = SSL_new(((struct tls_context *)(void *)liar->context)->ssl);
    MUST(ssl != NULL && certificates_use(keys_certificates(liar->keys), ssl) && SSL_set_fd(ssl, fd) == 1);
    SSL_set_verify(ssl, dials ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    SSL_set_msg_callback(ssl, NULL); // that of the context counts for a struct tls
    if (dials)
        SSL_set_connect_state(ssl);
    else
        SSL_set_accept_state(ssl);
    return ssl;
}

// Writes a proof, which the input may change, and what follows it. Returns its length. `right`: it has to be accepted.
static size_t prove(struct fuzz *in, SSL *ssl, bool dials, bool master, uint8_t *out, bool *right) {
    static const enum transport_party parties[] = {TRANSPORT_MASTER, TRANSPORT_PEER, TRANSPORT_OBSERVER};
    const struct maker *key = &makers[fuzz_below(in, MAKERS)], *stated = NULL;
    uint8_t text[SIGNED] = "pccl proof 1", *more = out + TLS_PROOF_BYTES;
    size_t bytes = 0;
    bool genuine; // of no interest: a peer with a wrong voucher is a peer
    memcpy(out, "pccl\1\0\0", 8);
    out[5] = (uint8_t)parties[fuzz_below(in, 3)];
    memcpy(out + 8, ed25519_public(key->signer), ED25519_KEY);
    text[12] = dials ? 0 : 1;
    text[13] = out[5];
    memcpy(text + 14, out + 8, ED25519_KEY);
    MUST(SSL_export_keying_material(ssl, text + 14 + ED25519_KEY, EXPORTED, "EXPORTER-pccl", 13, NULL, 0, 0) == 1);
    MUST(ed25519_sign(key->signer, text, sizeof text, out + 8 + ED25519_KEY));
    switch (fuzz_below(in, 3)) {
    case 0: break;
    case 1:
        stated = &makers[fuzz_below(in, MAKERS)];
        memcpy(more, stated->statement, bytes = stated->statement_bytes);
        break;
    case 2: bytes = put_together(in, more, &genuine); break;
    }
    out[6] = (uint8_t)bytes;
    out[7] = (uint8_t)(bytes >> 8);
    *right = out[5] == TRANSPORT_OBSERVER || out[5] == (master ? TRANSPORT_MASTER : TRANSPORT_PEER);
    if (out[5] == TRANSPORT_MASTER) *right = *right && key == &makers[MASTER] && stated == key;
    size_t length = TLS_PROOF_BYTES + bytes;
    for (uint32_t changes = fuzz_below(in, 4); changes > 0; changes--) {
        size_t at = (fuzz_u8(in) | (size_t)fuzz_u8(in) << 8) % length;
        out[at] ^= fuzz_u8(in);
        *right = false;
    }
    return length;
}

static void fuzz_proofs(struct fuzz *in) {
    uint8_t proof[TLS_PROOF_BYTES + CERTIFICATES_VOUCHER_BYTES];
    bool dials = fuzz_u8(in) & 1, master = fuzz_u8(in) & 1, right = false; // the liar, and its certificate
    int pair[2], error = -EAGAIN, done = 0;
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    struct transport *stream = transport_new(honest[dials ? 1 : fuzz_u8(in) & 1].context, pair[0],
                                             dials ? TRANSPORT_ACCEPTS : TRANSPORT_DIALS);
    SSL *ssl = liar_new(&liars[master], pair[1], dials);
    MUST(stream != NULL);
    ERR_set_mark();
    for (int turn = 0; turn < TURNS && error == -EAGAIN; turn++) {
        if (done != 1) done = SSL_do_handshake(ssl);
        error = transport_step(stream);
    }
    if (done == 1) {
        size_t length = prove(in, ssl, dials, master, proof, &right), at = 0, piece = 1 + (size_t)fuzz_u8(in) * 8;
        for (; at < length && error == -EAGAIN; at += piece) {
            if (SSL_write(ssl, proof + at, (int)(piece < length - at ? piece : length - at)) <= 0) break;
            error = transport_step(stream);
        }
    }
    ERR_pop_to_mark();
    MUST(done == 1 && (error == 0 || !right));
    if (error == 0) {
        const struct transport_identity *liar = transport_peer(stream);
        struct wire_id id;
        MUST(liar->party != TRANSPORT_MASTER ||
             (master && memcmp(proof + 8, ed25519_public(makers[MASTER].signer), ED25519_KEY) == 0));
        MUST(liar->party != TRANSPORT_PEER || !master);
        MUST(ed25519_id(proof + 8, &id) && wire_id_equal(&id, &liar->id));
    }
    transport_free(stream);
    SSL_free(ssl);
    close(pair[1]);
}

// ---- epochs ----

static bool same_member(const struct wire_member *one, const struct wire_member *other) {
    return one->join_number == other->join_number && one->group == other->group &&
           one->address.family == other->address.family && one->address.port == other->address.port &&
           memcmp(one->address.bytes, other->address.bytes, sizeof one->address.bytes) == 0;
}

static void check_signed(const struct wire_resume *got, uint64_t run) {
    const struct wire_resume *want = &signed_resume;
    MUST(run == header.run && got->generation == want->generation && got->epoch.number == want->epoch.number);
    MUST(got->quorum.members == want->quorum.members && got->quorum.old_members == want->quorum.old_members);
    MUST(got->quorum.newer == want->quorum.newer && got->epoch.count == want->epoch.count);
    for (uint32_t i = 0; i < got->epoch.count; i++) {
        uint32_t k = 0;
        while (k < 3 && !wire_id_equal(&got->epoch.members[i].id, &signed_members[k].id)) k++;
        MUST(k < 3 && same_member(&got->epoch.members[i], &signed_members[k]));
    }
}

static void fuzz_epochs(struct fuzz *in) {
    static struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    static struct wire_past past[WIRE_MAX_PAST];
    static struct wire_loss losses[WIRE_MAX_MEMBERS];
    struct wire_resume got = {.last_vote.sizes = sizes, .epoch.members = members, .past = past, .losses = losses};
    size_t length = resume.length - WIRE_HEADER_BYTES;
    uint8_t *body = fuzz_copy(resume.bytes + WIRE_HEADER_BYTES, length);
    uint64_t run = fuzz_u8(in) & 1 ? fuzz_number(in) : header.run;
    uint32_t changes = fuzz_below(in, 4);
    bool changed = changes > 0;
    for (; changes > 0; changes--) {
        size_t at = (fuzz_u8(in) | (size_t)fuzz_u8(in) << 8) % length;
        body[at] = fuzz_u8(in) & 1 ? fuzz_u8(in) : (uint8_t)(body[at] ^ 1u << fuzz_below(in, 8));
    }
    bool good = wire_decode_resume(body, length, &got);
    // What no decoder lets through has to fail as well.
    for (changes = good ? fuzz_below(in, 3) : 0; changes > 0; changes--) {
        struct wire_member *member = &members[fuzz_below(in, 3)];
        fuzz_change(in, member, sizeof *member);
        if (member->reach.count > WIRE_MAX_ADDRESSES) member->reach.count = WIRE_MAX_ADDRESSES; // its room
    }
    fuzz_refuse(fuzz_below(in, 4));
    if (good && quorum_verify(&signer, &verified, run, &got) == QUORUM_SIGNED && got.accepted) check_signed(&got, run);
    fuzz_refuse(0);
    free(body);
    MUST(good || changed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const programs[PROGRAMS])(struct fuzz *in) = {fuzz_vouchers, fuzz_proofs, fuzz_epochs};
    struct fuzz in = {data, data + size};
    begin();
    programs[fuzz_below(&in, PROGRAMS)](&in);
    return 0;
}

#else

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return data == NULL && size > 0; }

#endif
