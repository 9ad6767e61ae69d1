#ifdef PCCL_HAVE_TLS
#include "net/certificate.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

enum {
    RUN_BYTES = 160,             // of a run's name, in an error
    HANDSHAKE_BYTES = 256 << 10, // more than OpenSSL takes of one side
};

// ---- dates ----

void certificate_write_when(const ASN1_TIME *time, char out[CERTIFICATE_WHEN_BYTES]) {
    struct tm when;
    if (ASN1_TIME_to_tm(time, &when) != 1 || strftime(out, CERTIFICATE_WHEN_BYTES, "%Y-%m-%d %H:%M:%S UTC", &when) == 0)
        snprintf(out, CERTIFICATE_WHEN_BYTES, "an unknown date");
}

bool certificate_out_of_date(const X509 *certificate, const char *whose, char reason[KEYS_REASON_BYTES]) {
    char when[CERTIFICATE_WHEN_BYTES];
    int side = X509_cmp_timeframe(NULL, X509_get0_notBefore(certificate), X509_get0_notAfter(certificate));
    if (side == 0) return false;
    certificate_write_when(side > 0 ? X509_get0_notAfter(certificate) : X509_get0_notBefore(certificate), when);
    if (side > 0)
        snprintf(reason, KEYS_REASON_BYTES, "%s expired on %s: renew it", whose, when);
    else
        snprintf(reason, KEYS_REASON_BYTES, "%s is valid from %s on: are the clocks right?", whose, when);
    return true;
}

// ---- run and roles ----

// Returns the length of RUN in a URI with a role, or 0.
static size_t run_of(const GENERAL_NAME *name, unsigned *role) {
    static const struct {
        const char *path;
        size_t length;
        unsigned role;
    } paths[] = {{"/pccl/master", 12, CERTIFICATES_MASTER}, {"/pccl/peer", 10, CERTIFICATES_PEER}};
    if (name->type != GEN_URI) return 0;
    const char *uri = (const char *)ASN1_STRING_get0_data(name->d.uniformResourceIdentifier);
    size_t length = (size_t)ASN1_STRING_length(name->d.uniformResourceIdentifier);
    if (memchr(uri, '?', length) != NULL || memchr(uri, '#', length) != NULL) return 0; // the end is not of its path
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        if (length <= paths[i].length) continue;
        size_t run = length - paths[i].length;
        if (memcmp(uri + run, paths[i].path, paths[i].length) != 0) continue;
        *role = paths[i].role;
        return run;
    }
    return 0;
}

// The roles that a certificate gives its owner in a run.
struct claim {
    const char *run; // NULL: it names none; lies in the certificate's names
    size_t length;
    unsigned roles;
    bool others; // it names another run, too
};

static int shown(const struct claim *claim) { return claim->length < RUN_BYTES ? (int)claim->length : RUN_BYTES; }

// Reads what a certificate says of this run; NULL: of the first one that it names.
static struct claim claim_of(const GENERAL_NAMES *names, const struct claim *of) {
    struct claim claim = {.run = of == NULL ? NULL : of->run, .length = of == NULL ? 0 : of->length};
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        unsigned role;
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        size_t length = run_of(name, &role);
        if (length == 0) continue;
        const char *run = (const char *)ASN1_STRING_get0_data(name->d.uniformResourceIdentifier);
        if (claim.run == NULL) claim = (struct claim){.run = run, .length = length};
        if (length == claim.length && memcmp(run, claim.run, length) == 0)
            claim.roles |= role;
        else
            claim.others = true;
    }
    return claim;
}

static GENERAL_NAMES *names_of(const X509 *certificate) {
    return X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
}

bool certificate_names_two_runs(const X509 *certificate) {
    GENERAL_NAMES *names = names_of(certificate);
    bool two = claim_of(names, NULL).others;
    GENERAL_NAMES_free(names);
    return two;
}

unsigned certificate_roles(const X509 *own, const X509 *other, char reason[KEYS_REASON_BYTES]) {
    GENERAL_NAMES *mine = names_of(own), *theirs = names_of(other);
    struct claim ours = claim_of(mine, NULL), first = claim_of(theirs, NULL), same = ours;
    if (ours.run != NULL) same = claim_of(theirs, &ours);
    if (first.run == NULL)
        snprintf(reason, KEYS_REASON_BYTES,
                 "its certificate has no role: none of the URIs in its subject alternative names ends in /pccl/master "
                 "or /pccl/peer");
    else if (same.roles == 0)
        snprintf(reason, KEYS_REASON_BYTES,
                 "its certificate is of another run: it names %.*s, and that of this process names %.*s", shown(&first),
                 first.run, shown(&ours), ours.run);
    GENERAL_NAMES_free(mine);
    GENERAL_NAMES_free(theirs);
    return same.roles;
}

// ---- use with TLS ----

// Notes in the data of the stream whether a purpose does not suit. Nothing else counts here.
static int note_purpose(int good, X509_STORE_CTX *context) {
    SSL *ssl = X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx());
    bool *unsuitable = SSL_get_app_data(ssl);
    bool leaf = X509_STORE_CTX_get_error_depth(context) == 0;
    if (good != 1 && leaf && X509_STORE_CTX_get_error(context) == X509_V_ERR_INVALID_PURPOSE) *unsuitable = true;
    return 1;
}

// Returns one end of a handshake in memory. NULL: TLS does not take the certificate, or there is no memory.
static SSL *end_of(SSL_CTX *context, const struct certificate_identity *identity, bool *unsuitable) {
    SSL *ssl = SSL_new(context);
    if (ssl == NULL) return NULL;
    SSL_set_app_data(ssl, unsuitable);
    SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, note_purpose);
    if (SSL_use_cert_and_key(ssl, identity->leaf, identity->key, identity->chain, 1) == 1) return ssl;
    SSL_free(ssl);
    return NULL;
}

static bool meet(SSL *dials, SSL *accepts) {
    BIO *one, *other;
    if (BIO_new_bio_pair(&one, HANDSHAKE_BYTES, &other, HANDSHAKE_BYTES) != 1) return false;
    SSL_set_bio(dials, one, one);
    SSL_set_bio(accepts, other, other);
    SSL_set_connect_state(dials);
    SSL_set_accept_state(accepts);
    for (;;) {
        SSL *const ends[2] = {dials, accepts};
        size_t pending = BIO_ctrl_pending(one) + BIO_ctrl_pending(other);
        int done = 0;
        for (int i = 0; i < 2; i++) {
            int result = SSL_do_handshake(ends[i]);
            if (result != 1 && SSL_get_error(ends[i], result) == SSL_ERROR_SSL) return false;
            done += result == 1;
        }
        if (done == 2) return true;
        if (pending == 0 && BIO_ctrl_pending(one) + BIO_ctrl_pending(other) == 0) return false;
    }
}

const char *certificate_problem(const struct certificate_identity *identity) {
    bool unsuitable = false;
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL); // as net/tls does
    ERR_set_mark();
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    bool good = context != NULL && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1;
    SSL *dials = good ? end_of(context, identity, &unsuitable) : NULL;
    SSL *accepts = good ? end_of(context, identity, &unsuitable) : NULL;
    bool taken = dials != NULL && accepts != NULL, met = taken && meet(dials, accepts);
    const char *reason = taken ? NULL : ERR_reason_error_string(ERR_peek_last_error());
    SSL_free(dials);
    SSL_free(accepts);
    SSL_CTX_free(context);
    ERR_pop_to_mark();
    if (unsuitable) return "its usages do not suffice: issue it with digital signature, server auth and client auth";
    if (taken) return met ? NULL : "TLS 1.3 does not have its kind of key: issue it for one of P-256, Ed25519 or RSA";
    return reason != NULL ? reason : "an unknown error of OpenSSL";
}

#endif
