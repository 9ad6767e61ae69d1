// Authorities and certificates that exist only in a test, made by OpenSSL and written to files.
#ifndef PCCL_TESTS_CERTIFICATE_FILES_H
#define PCCL_TESTS_CERTIFICATE_FILES_H

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { CERTIFICATE_HOUR = 3600 };

#define CERTIFICATE_MASTER_URI "spiffe://test/run/pccl/master"
#define CERTIFICATE_PEER_URI "spiffe://test/run/pccl/peer"

struct issued {
    X509 *certificate;
    EVP_PKEY *key;
};

static inline void certificate_extend(X509 *certificate, X509 *issuer, int kind, const char *value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, kind, value);
    REQUIRE(extension != NULL && X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
}

// Makes a certificate that is valid from `from_s` to `to_s`, from now. `uris` are separated by commas, NULL: none. An
// authority is one without URIs. `issuer` NULL: it signs itself.
static inline struct issued certificate_issue(const struct issued *issuer, const char *type, const char *uris, bool ca,
                                              long from_s, long to_s) {
    static long number = 1;
    struct issued out = {X509_new(), strcmp(type, "RSA") == 0       ? EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)2048)
                                     : strcmp(type, "RSA512") == 0  ? EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)512)
                                     : strcmp(type, "ED25519") == 0 ? EVP_PKEY_Q_keygen(NULL, NULL, "ED25519")
                                     : strcmp(type, "EC") == 0      ? EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256")
                                                                    : EVP_PKEY_Q_keygen(NULL, NULL, "EC", type)};
    REQUIRE(out.certificate != NULL && out.key != NULL);
    const struct issued *by = issuer == NULL ? &out : issuer;
    char name[64], all[512] = "", copy[512];
    snprintf(name, sizeof name, "%s %ld", ca ? "authority" : "process", number);
    X509_set_version(out.certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(out.certificate), number++);
    X509_gmtime_adj(X509_getm_notBefore(out.certificate), from_s);
    X509_gmtime_adj(X509_getm_notAfter(out.certificate), to_s);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(out.certificate), "CN", MBSTRING_ASC, (unsigned char *)name, -1,
                               -1, 0);
    X509_set_issuer_name(out.certificate, X509_get_subject_name(by->certificate));
    X509_set_pubkey(out.certificate, out.key);
    certificate_extend(out.certificate, by->certificate, NID_basic_constraints, ca ? "critical,CA:TRUE" : "CA:FALSE");
    if (uris != NULL) {
        char *rest;
        snprintf(copy, sizeof copy, "%s", uris);
        for (char *uri = strtok_r(copy, ",", &rest); uri != NULL; uri = strtok_r(NULL, ",", &rest))
            snprintf(all + strlen(all), sizeof all - strlen(all), "%sURI:%s", all[0] == 0 ? "" : ",", uri);
        certificate_extend(out.certificate, by->certificate, NID_subject_alt_name, all);
    }
    bool plain = EVP_PKEY_is_a(by->key, "ED25519");
    REQUIRE(X509_sign(out.certificate, by->key, plain ? NULL : EVP_sha256()) > 0);
    return out;
}

static inline struct issued certificate_leaf(const struct issued *authority, const char *uris) {
    return certificate_issue(authority, "EC", uris, false, -CERTIFICATE_HOUR, CERTIFICATE_HOUR);
}

static inline struct issued certificate_authority(void) {
    return certificate_issue(NULL, "EC", NULL, true, -CERTIFICATE_HOUR, CERTIFICATE_HOUR);
}

static inline void certificate_free(struct issued *issued) {
    X509_free(issued->certificate);
    EVP_PKEY_free(issued->key);
}

// The three files of a process, in a folder of their own.
struct certificate_files {
    char folder[32], cert[64], key[64], ca[64];
};

static inline FILE *certificate_open(const char *path, mode_t mode) {
    FILE *file = fopen(path, "w");
    REQUIRE(file != NULL && fchmod(fileno(file), mode) == 0);
    return file;
}

// Writes the certificates of a list that ends with NULL.
static inline void certificate_write(const char *path, X509 *const *list) {
    FILE *file = certificate_open(path, 0644);
    for (; *list != NULL; list++) REQUIRE(PEM_write_X509(file, *list) == 1);
    REQUIRE(fclose(file) == 0);
}

static inline void certificate_write_key(const char *path, EVP_PKEY *key) {
    FILE *file = certificate_open(path, 0600);
    REQUIRE(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1);
    REQUIRE(fclose(file) == 0);
}

static inline struct certificate_files certificate_files_new(const struct issued *leaf, X509 *between,
                                                             X509 *const *authorities) {
    struct certificate_files files = {.folder = "/tmp/pccl-certificates-XXXXXX"};
    REQUIRE(mkdtemp(files.folder) != NULL);
    snprintf(files.cert, sizeof files.cert, "%s/tls.crt", files.folder);
    snprintf(files.key, sizeof files.key, "%s/tls.key", files.folder);
    snprintf(files.ca, sizeof files.ca, "%s/ca.crt", files.folder);
    certificate_write(files.cert, (X509 *const[]){leaf->certificate, between, NULL});
    certificate_write_key(files.key, leaf->key);
    certificate_write(files.ca, authorities);
    return files;
}

static inline void certificate_files_remove(const struct certificate_files *files) {
    unlink(files->cert);
    unlink(files->key);
    unlink(files->ca);
    rmdir(files->folder);
}

#endif
