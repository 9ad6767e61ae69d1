#ifdef PCCL_HAVE_TLS
#define LOG_COMPONENT "security"
#include "net/keys.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/platform.h"
#include "net/certificate.h"

enum {
    FILES = 3,
    FILE_BYTES = 1 << 20, // the longest: bundles of all public authorities have a quarter of it
    ISSUER_BYTES = 160,
    MOST_SIGNERS = 64, // masters of one run, dead or alive; a new one replaces the oldest
};

// Result of reading the files once.
struct reading {
    X509 *leaf;
    STACK_OF(X509) * chain; // between the leaf and the authorities
    EVP_PKEY *key;
    X509_STORE *authorities;
};

// Tells whether a file has changed: all 0 if it is not there.
struct mark {
    dev_t device;
    ino_t number;
    off_t bytes;
    struct timespec changed;
};

struct certificates {
    pthread_mutex_t lock; // of everything below
    char *paths[FILES];   // cert, key, ca
    struct mark marks[FILES];
    int64_t read_ns; // when the files were read last
    bool early;      // the certificate was valid from a later time on, and so is not in use
    struct reading now;
    unsigned roles; // of the certificate when it was loaded
    uint8_t signers[MOST_SIGNERS][ED25519_KEY];
    size_t signer_count;
};

// ---- files ----

static void reading_fini(struct reading *reading) {
    X509_free(reading->leaf);
    sk_X509_pop_free(reading->chain, X509_free);
    EVP_PKEY_free(reading->key);
    X509_STORE_free(reading->authorities);
}

static int no_password(char *out, int capacity, int writes, void *context) {
    (void)out, (void)capacity, (void)writes, (void)context;
    return -1;
}

// Returns the certificates of a text, in their order; NULL: there are none, or one is damaged.
static STACK_OF(X509) * parse_certificates(const char *text) {
    STACK_OF(X509) *found = sk_X509_new_null();
    BIO *bio = BIO_new_mem_buf(text, -1);
    bool good = found != NULL && bio != NULL;
    for (X509 *one; good && (one = PEM_read_bio_X509(bio, NULL, no_password, NULL)) != NULL;)
        if (!(good = sk_X509_push(found, one) > 0)) X509_free(one);
    unsigned long end = ERR_peek_last_error();
    BIO_free(bio);
    if (good && ERR_GET_REASON(end) == PEM_R_NO_START_LINE && sk_X509_num(found) > 0) return found;
    sk_X509_pop_free(found, X509_free);
    return NULL;
}

static EVP_PKEY *parse_key(const char *text) {
    BIO *bio = BIO_new_mem_buf(text, -1);
    EVP_PKEY *key = bio == NULL ? NULL : PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL);
    BIO_free(bio);
    return key;
}

static const char *read_leaf(const char *text, struct reading *out) {
    out->chain = parse_certificates(text);
    out->leaf = out->chain == NULL ? NULL : sk_X509_shift(out->chain);
    return out->leaf != NULL ? NULL : "it holds no certificate in PEM, or a damaged one";
}

static const char *read_key(const char *text, struct reading *out) {
    out->key = parse_key(text);
    if (out->key == NULL) return "it holds no private key in PEM, or one with a password: write it without one";
    return X509_check_private_key(out->leaf, out->key) == 1 ? NULL : "it is not the key of the certificate";
}

static const char *read_authorities(const char *text, struct reading *out) {
    STACK_OF(X509) *found = parse_certificates(text);
    if (found == NULL) return "it holds no certificate in PEM, or a damaged one";
    out->authorities = X509_STORE_new();
    bool done = out->authorities != NULL;
    // An authority in the file is trusted even if another one has certified it.
    if (done) X509_STORE_set_flags(out->authorities, X509_V_FLAG_PARTIAL_CHAIN);
    for (int i = 0; done && i < sk_X509_num(found); i++)
        done = X509_STORE_add_cert(out->authorities, sk_X509_value(found, i)) == 1;
    sk_X509_pop_free(found, X509_free);
    return done ? NULL : "there is no memory";
}

// False, and why in `reason`. The caller releases `out` in any case.
static bool read_files(const struct certificates *c, struct reading *out, char reason[KEYS_REASON_BYTES]) {
    static const struct {
        const char *noun;
        bool secret;
        const char *(*take)(const char *text, struct reading *out);
    } kinds[FILES] = {
        {"certificate", false, read_leaf}, {"key", true, read_key}, {"authorities", false, read_authorities}};
    char *text = malloc(FILE_BYTES);
    const char *problem = text == NULL ? "there is no memory" : NULL;
    for (int i = 0; i < FILES && problem == NULL; i++) {
        problem = key_file_read(c->paths[i], kinds[i].secret, text, FILE_BYTES);
        ERR_set_mark();
        if (problem == NULL) problem = kinds[i].take(text, out);
        ERR_pop_to_mark();
        if (problem != NULL)
            snprintf(reason, KEYS_REASON_BYTES, "cannot use the %s in %s: %s", kinds[i].noun, c->paths[i], problem);
        if (kinds[i].secret) OPENSSL_cleanse(text, FILE_BYTES);
    }
    if (text == NULL) snprintf(reason, KEYS_REASON_BYTES, "there is no memory for certificates");
    free(text);
    return problem == NULL;
}

static void look(const struct certificates *c, struct mark marks[FILES]) {
    memset(marks, 0, FILES * sizeof *marks);
    for (int i = 0; i < FILES; i++) {
        struct stat status;
        if (stat(c->paths[i], &status) != 0) continue;
        marks[i].device = status.st_dev;
        marks[i].number = status.st_ino;
        marks[i].bytes = status.st_size;
        marks[i].changed = status.st_mtim;
    }
}

// ---- what others see ----

void certificates_problem(X509_STORE_CTX *context, char reason[KEYS_REASON_BYTES]) {
    int error = X509_STORE_CTX_get_error(context);
    const X509 *certificate = X509_STORE_CTX_get_current_cert(context);
    bool leaf = X509_STORE_CTX_get_error_depth(context) == 0;
    bool dates = error == X509_V_ERR_CERT_HAS_EXPIRED || error == X509_V_ERR_CERT_NOT_YET_VALID;
    const char *whose = leaf ? "its certificate" : "the certificate of an authority of its certificate";
    if (dates && certificate != NULL && certificate_out_of_date(certificate, whose, reason)) return;
    bool unknown = error == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY ||
                   error == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN || error == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT ||
                   error == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE;
    if (!unknown || certificate == NULL) {
        snprintf(reason, KEYS_REASON_BYTES, "its certificate cannot be trusted: %s",
                 X509_verify_cert_error_string(error));
        return;
    }
    char issuer[ISSUER_BYTES];
    X509_NAME_oneline(X509_get_issuer_name(certificate), issuer, sizeof issuer);
    snprintf(
        reason, KEYS_REASON_BYTES,
        "none of the authorities that this process trusts has issued its certificate: %s is missing in the file of "
        "authorities here, or behind the certificate in the file there",
        issuer);
}

// ---- life ----

// The folder of the process may change before the files are read again. Symbolic links stay: a renewal may turn them.
static bool take_paths(struct certificates *c, const struct certificates_paths *paths) {
    const char *given[FILES] = {paths->cert, paths->key, paths->ca};
    char folder[PATH_MAX];
    bool known = getcwd(folder, sizeof folder) != NULL;
    for (int i = 0; i < FILES; i++) {
        bool relative = given[i][0] != '/' && known;
        int length = asprintf(&c->paths[i], "%s%s%s", relative ? folder : "", relative ? "/" : "", given[i]);
        if (length < 0) {
            c->paths[i] = NULL;
            return false;
        }
    }
    return true;
}

// Judges the certificate that has been read: its dates, its run and roles, and whether TLS accepts it. A renewed one
// needs the run and roles of the one in use.
static bool judge_own(const struct certificates *c, const struct reading *read, char reason[KEYS_REASON_BYTES]) {
    char whose[KEYS_REASON_BYTES / 2];
    snprintf(whose, sizeof whose, "the certificate in %s", c->paths[0]);
    if (certificate_out_of_date(read->leaf, whose, reason)) return false;
    const char *problem = certificate_problem(&(struct certificate_identity){read->leaf, read->key, read->chain});
    if (problem != NULL)
        snprintf(reason, KEYS_REASON_BYTES, "%s cannot be used with TLS: %s", whose, problem);
    else if (certificate_roles(read->leaf, read->leaf, reason) == 0)
        snprintf(reason, KEYS_REASON_BYTES,
                 "%s has no role: issue one with a URI among its subject alternative names that ends in /pccl/master "
                 "or /pccl/peer (docs/security.md)",
                 whose);
    else if (certificate_names_two_runs(read->leaf))
        snprintf(reason, KEYS_REASON_BYTES, "%s names two runs; issue one certificate per run", whose);
    else if (c->roles != 0 && (certificate_roles(c->now.leaf, read->leaf, reason) & c->roles) != c->roles)
        snprintf(reason, KEYS_REASON_BYTES,
                 "%s has another run or fewer roles than the one that it replaces: issue it for the same run and roles",
                 whose);
    else
        return true;
    return false;
}

// Reads the files for the first time.
static bool begin(struct certificates *c, char reason[KEYS_REASON_BYTES]) {
    look(c, c->marks);
    if (!read_files(c, &c->now, reason) || !judge_own(c, &c->now, reason)) return false;
    c->roles = certificate_roles(c->now.leaf, c->now.leaf, reason);
    return true;
}

struct certificates *certificates_load(const struct certificates_paths *paths, char reason[KEYS_REASON_BYTES]) {
    struct certificates *c = calloc(1, sizeof *c);
    snprintf(reason, KEYS_REASON_BYTES, "there is no memory for certificates");
    if (c == NULL) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    if (take_paths(c, paths) && begin(c, reason)) return c;
    certificates_free(c);
    return NULL;
}

void certificates_free(struct certificates *c) {
    if (c == NULL) return;
    reading_fini(&c->now);
    for (int i = 0; i < FILES; i++) free(c->paths[i]);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

unsigned certificates_own_roles(const struct certificates *c) { return c->roles; }

// Reads the files again. Writes what there is to say about it, or "".
static enum log_level read_again(struct certificates *c, bool changed, char text[KEYS_REASON_BYTES]) {
    struct reading fresh = {0};
    bool good = read_files(c, &fresh, text) && judge_own(c, &fresh, text);
    c->early = !good && fresh.authorities != NULL && X509_cmp_current_time(X509_get0_notBefore(fresh.leaf)) > 0;
    if (!good && !changed) text[0] = '\0'; // it was said before
    if (good) {
        struct reading before = c->now;
        char when[CERTIFICATE_WHEN_BYTES];
        c->now = fresh;
        fresh = before;
        certificate_write_when(X509_get0_notAfter(c->now.leaf), when);
        snprintf(text, KEYS_REASON_BYTES, "read the certificate in %s again: it expires on %s", c->paths[0], when);
    }
    reading_fini(&fresh);
    return good ? LOG_NOTICE : LOG_WARN;
}

// Reads the files again if they have changed, or if the certificate may have become valid.
static void refresh(struct certificates *c) {
    struct mark marks[FILES];
    enum log_level level = LOG_NOTICE;
    char text[KEYS_REASON_BYTES] = "";
    pthread_mutex_lock(&c->lock);
    look(c, marks);
    bool changed = memcmp(marks, c->marks, sizeof marks) != 0;
    int64_t now_ns = platform_now_ns();
    if (changed || (c->early && now_ns - c->read_ns >= SECOND_NS)) { // others may connect as often as they like
        memcpy(c->marks, marks, sizeof marks);
        c->read_ns = now_ns;
        level = read_again(c, changed, text);
    }
    pthread_mutex_unlock(&c->lock);
    if (text[0] != '\0')
        LOG(level, "%s%s", text, level == LOG_WARN ? "; the one that was read before stays in use" : "");
}

bool certificates_use(struct certificates *c, SSL *ssl) {
    SSL_set_mode(ssl, SSL_MODE_NO_AUTO_CHAIN);
    refresh(c);
    pthread_mutex_lock(&c->lock);
    ERR_set_mark();
    bool done = SSL_use_cert_and_key(ssl, c->now.leaf, c->now.key, c->now.chain, 1) == 1 &&
                SSL_set1_verify_cert_store(ssl, c->now.authorities) == 1;
    ERR_pop_to_mark();
    pthread_mutex_unlock(&c->lock);
    return done;
}

// ---- who signs epochs ----

enum { PURPOSE_BYTES = 13, STATED_BYTES = PURPOSE_BYTES + 32, HEAD_BYTES = 32 + 2 };
static const char of_signer[] = "pccl signer 1", of_relay[] = "pccl relay  1";

static void stated_text(const char *purpose, const uint8_t subject[32], uint8_t out[STATED_BYTES]) {
    memcpy(mempcpy(out, purpose, PURPOSE_BYTES), subject, 32);
}

static const EVP_MD *digest_for(const EVP_PKEY *key) {
    return EVP_PKEY_is_a(key, "ED25519") || EVP_PKEY_is_a(key, "ED448") ? NULL : EVP_sha256();
}

static size_t state(EVP_PKEY *key, const char *purpose, const uint8_t subject[32],
                    uint8_t out[CERTIFICATES_VOUCHER_BYTES]) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    uint8_t text[STATED_BYTES];
    size_t length = CERTIFICATES_VOUCHER_BYTES;
    stated_text(purpose, subject, text);
    bool done = context != NULL && EVP_DigestSignInit(context, NULL, digest_for(key), NULL, key) == 1 &&
                EVP_DigestSign(context, out, &length, text, sizeof text) == 1;
    EVP_MD_CTX_free(context);
    return done ? length : 0;
}

size_t certificates_state(SSL *ssl, const uint8_t signer[ED25519_KEY], uint8_t out[CERTIFICATES_VOUCHER_BYTES]) {
    return state(SSL_get_privatekey(ssl), of_signer, signer, out);
}

static bool stated_by(const X509 *certificate, const char *purpose, const uint8_t subject[32], const uint8_t *statement,
                      size_t length) {
    EVP_PKEY *key = X509_get0_pubkey(certificate);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    uint8_t text[STATED_BYTES];
    stated_text(purpose, subject, text);
    bool good = key != NULL && context != NULL &&
                EVP_DigestVerifyInit(context, NULL, digest_for(key), NULL, key) == 1 &&
                EVP_DigestVerify(context, statement, length, text, sizeof text) == 1;
    EVP_MD_CTX_free(context);
    return good;
}

bool certificates_stated(SSL *ssl, const uint8_t signer[ED25519_KEY], const uint8_t *statement, size_t length) {
    const X509 *certificate = SSL_get0_peer_certificate(ssl);
    return certificate != NULL && stated_by(certificate, of_signer, signer, statement, length);
}

// Appends a certificate in DER. Returns where it ends; 0: there is no room.
static size_t append(const X509 *certificate, uint8_t out[CERTIFICATES_VOUCHER_BYTES], size_t at) {
    int bytes = at == 0 ? 0 : i2d_X509(certificate, NULL);
    uint8_t *to = out + at;
    if (bytes <= 0 || (size_t)bytes > CERTIFICATES_VOUCHER_BYTES - at) return 0;
    return at + (size_t)i2d_X509(certificate, &to);
}

// A voucher: the signer, or the hash; the length of the statement (2 bytes, little-endian), the statement, the chain in
// DER. Begins one; returns where the chain is to follow, 0: it is too long.
static size_t begin_voucher(const uint8_t subject[32], const uint8_t *statement, size_t length,
                            uint8_t out[CERTIFICATES_VOUCHER_BYTES]) {
    if (length == 0 || HEAD_BYTES + length > CERTIFICATES_VOUCHER_BYTES) return 0;
    memmove(out + HEAD_BYTES, statement, length);
    memcpy(out, subject, 32);
    out[32] = (uint8_t)length;
    out[33] = (uint8_t)(length >> 8);
    return HEAD_BYTES + length;
}

size_t certificates_vouch(SSL *ssl, const uint8_t signer[ED25519_KEY], const uint8_t *statement, size_t length,
                          uint8_t out[CERTIFICATES_VOUCHER_BYTES]) {
    const STACK_OF(X509) *chain = SSL_get_peer_cert_chain(ssl);
    size_t at = begin_voucher(signer, statement, length, out);
    for (int i = 0; i < sk_X509_num(chain); i++) at = append(sk_X509_value(chain, i), out, at);
    return at;
}

static size_t find_signer(const struct certificates *c, const uint8_t signer[ED25519_KEY]) {
    size_t at = 0;
    while (at < c->signer_count && memcmp(c->signers[at], signer, ED25519_KEY) != 0) at++;
    return at;
}

void certificates_trust(struct certificates *c, const uint8_t signer[ED25519_KEY]) {
    pthread_mutex_lock(&c->lock);
    if (find_signer(c, signer) == c->signer_count) {
        if (c->signer_count == MOST_SIGNERS) // the first is this process's own
            memmove(c->signers[1], c->signers[2], (--c->signer_count - 1) * ED25519_KEY);
        memcpy(c->signers[c->signer_count++], signer, ED25519_KEY);
    }
    pthread_mutex_unlock(&c->lock);
}

// Whether the chain leads to one of the authorities.
static bool leads_to(X509_STORE *authorities, STACK_OF(X509) * chain, unsigned long flags) {
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    bool good = context != NULL && sk_X509_num(chain) > 0 &&
                X509_STORE_CTX_init(context, authorities, sk_X509_value(chain, 0), chain) == 1;
    if (good) X509_STORE_CTX_set_flags(context, flags | X509_V_FLAG_PARTIAL_CHAIN);
    good = good && X509_verify_cert(context) == 1;
    X509_STORE_CTX_free(context);
    return good;
}

// Whether the chain leads to an authority of this side, and begins with the certificate of a master of its run.
static bool is_masters(SSL *ssl, STACK_OF(X509) * chain) {
    char reason[KEYS_REASON_BYTES];
    X509_STORE *authorities = NULL;
    return SSL_get0_verify_cert_store(ssl, &authorities) == 1 &&
           leads_to(authorities, chain, X509_V_FLAG_NO_CHECK_TIME) &&
           (certificate_roles(SSL_get_certificate(ssl), sk_X509_value(chain, 0), reason) & CERTIFICATES_MASTER) != 0;
}

// Reads the chain of a voucher, and finds its statement. NULL: it is malformed, or there is no memory.
static STACK_OF(X509) * read_voucher(const uint8_t *voucher, size_t length, size_t *statement_bytes) {
    if (length < HEAD_BYTES) return NULL;
    *statement_bytes = voucher[32] | (size_t)voucher[33] << 8;
    if (*statement_bytes > length - HEAD_BYTES) return NULL;
    const uint8_t *at = voucher + HEAD_BYTES + *statement_bytes, *end = voucher + length;
    STACK_OF(X509) *chain = sk_X509_new_null();
    bool good = chain != NULL;
    while (good && at < end) {
        X509 *one = d2i_X509(NULL, &at, end - at);
        good = one != NULL && sk_X509_push(chain, one) > 0;
        if (!good) X509_free(one);
    }
    if (good) return chain;
    sk_X509_pop_free(chain, X509_free);
    return NULL;
}

bool certificates_believe(struct certificates *c, SSL *ssl, const uint8_t *voucher, size_t length) {
    size_t bytes;
    if (length < HEAD_BYTES) return false;
    pthread_mutex_lock(&c->lock);
    bool known = find_signer(c, voucher) < c->signer_count;
    pthread_mutex_unlock(&c->lock);
    if (known) return true;
    STACK_OF(X509) *chain = read_voucher(voucher, length, &bytes);
    bool good = chain != NULL && is_masters(ssl, chain) &&
                stated_by(sk_X509_value(chain, 0), of_signer, voucher, voucher + HEAD_BYTES, bytes);
    if (good) certificates_trust(c, voucher);
    sk_X509_pop_free(chain, X509_free);
    return good;
}

// ---- who may use a relay ----

size_t certificates_sign(struct certificates *c, const uint8_t hash[SHA256_BYTES],
                         uint8_t out[CERTIFICATES_VOUCHER_BYTES]) {
    refresh(c);
    pthread_mutex_lock(&c->lock);
    size_t at = begin_voucher(hash, out, state(c->now.key, of_relay, hash, out), out);
    at = append(c->now.leaf, out, at);
    for (int i = 0; i < sk_X509_num(c->now.chain); i++) at = append(sk_X509_value(c->now.chain, i), out, at);
    pthread_mutex_unlock(&c->lock);
    return at;
}

bool certificates_signed(struct certificates *c, const uint8_t hash[SHA256_BYTES], const uint8_t *bytes,
                         size_t length) {
    char reason[KEYS_REASON_BYTES];
    size_t statement;
    STACK_OF(X509) *chain = read_voucher(bytes, length, &statement);
    if (chain == NULL) return false;
    refresh(c);
    pthread_mutex_lock(&c->lock);
    const X509 *leaf = sk_X509_value(chain, 0);
    bool good = memcmp(bytes, hash, SHA256_BYTES) == 0 && leads_to(c->now.authorities, chain, 0) &&
                certificate_roles(c->now.leaf, leaf, reason) != 0 &&
                stated_by(leaf, of_relay, hash, bytes + HEAD_BYTES, statement);
    pthread_mutex_unlock(&c->lock);
    sk_X509_pop_free(chain, X509_free);
    return good;
}

bool certificates_verify(struct certificates *c, const void *bytes, size_t length,
                         const uint8_t signature[ED25519_SIGNATURE]) {
    bool good = false;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->signer_count && !good; i++)
        good = ed25519_verify(c->signers[i], bytes, length, signature);
    pthread_mutex_unlock(&c->lock);
    return good;
}

#endif
