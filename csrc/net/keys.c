#include "net/keys.h"

#include <stdio.h>

#ifndef PCCL_HAVE_TLS

struct keys *keys_load(const char *path, char reason[KEYS_REASON_BYTES]) {
    snprintf(reason, KEYS_REASON_BYTES, "cannot use the keys in %s: " KEYS_MISSING, path);
    return NULL;
}

struct keys *keys_load_certificate(const char *cert, const char *key, const char *ca, char reason[KEYS_REASON_BYTES]) {
    (void)key, (void)ca;
    snprintf(reason, KEYS_REASON_BYTES, "cannot use the certificate in %s: " KEYS_MISSING, cert);
    return NULL;
}

// There are no keys, so nobody calls the following.
struct keys *keys_hold(struct keys *keys) { return keys; }
void keys_release(struct keys *keys) { (void)keys; }
const struct ed25519 *keys_master_key(const struct keys *keys) { return (void)keys, NULL; }
bool keys_serve_peer(const struct keys *keys) { return (void)keys, false; }
bool keys_take_run(const struct keys *keys, struct wire_run *run) { return (void)keys, (void)run, true; }
struct keys *keys_of_run(struct keys *keys, const struct wire_run *run) { return (void)run, keys; }
const struct wire_run *keys_run(const struct keys *keys) {
    static const struct wire_run all;
    return (void)keys, &all;
}
bool keys_verify(const struct keys *keys, const void *bytes, size_t length,
                 const uint8_t signature[ED25519_SIGNATURE]) {
    return (void)keys, (void)bytes, (void)length, (void)signature, false;
}
bool keys_public_of(const uint8_t private_key[ED25519_KEY], uint8_t out[ED25519_KEY]) {
    return (void)private_key, (void)out, false;
}
struct certificates *keys_certificates(const struct keys *keys) { return (void)keys, NULL; }
size_t keys_secret_count(const struct keys *keys) { return (void)keys, 0; }
bool keys_secret_of(const struct keys *keys, size_t index, const struct wire_run *run, struct keys_secret *out) {
    return (void)keys, (void)index, (void)run, (void)out, false;
}
size_t certificates_sign(struct certificates *certificates, const uint8_t hash[SHA256_BYTES],
                         uint8_t out[CERTIFICATES_VOUCHER_BYTES]) {
    return (void)certificates, (void)hash, (void)out, 0;
}
bool certificates_signed(struct certificates *certificates, const uint8_t hash[SHA256_BYTES], const uint8_t *bytes,
                         size_t length) {
    return (void)certificates, (void)hash, (void)bytes, (void)length, false;
}

#else

#include <errno.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

enum { FILE_BYTES = 4096, ITEM_BYTES = 32 }; // the longest file; of any key or secret

struct keys {
    _Atomic uint32_t references;
    size_t count;
    struct keys_secret secrets[KEYS_MAX_SECRETS];
    struct wire_run run; // without a name: of all runs
    uint8_t master_public[ED25519_KEY];
    struct ed25519 *master_key;
    struct certificates *certificates; // NULL: a file of keys
};

// ---- files of keys ----

static int hex_digit(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static bool parse_hex(const char *text, uint8_t out[ITEM_BYTES]) {
    if (text == NULL || strlen(text) != 2 * ITEM_BYTES) return false;
    for (size_t i = 0; i < ITEM_BYTES; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool secret_id(const uint8_t secret[KEYS_SECRET_BYTES], char out[KEYS_SECRET_ID + 1]) {
    uint8_t hash[ITEM_BYTES];
    if (!ed25519_hash("pccl secret 1", secret, hash)) return false;
    for (size_t i = 0; i < KEYS_SECRET_ID / 2; i++) snprintf(out + 2 * i, 3, "%02x", hash[i]);
    return true;
}

static const char *take_secret(struct keys *keys, char *rest) {
    if (keys->count == KEYS_MAX_SECRETS) return "it has more than two secrets";
    struct keys_secret *secret = &keys->secrets[keys->count];
    const char *id = strtok_r(NULL, " \t", &rest), *value = strtok_r(NULL, " \t", &rest);
    if (id == NULL || !parse_hex(value, secret->bytes)) return "a secret is cut or changed: copy the file again";
    if (!secret_id(secret->bytes, secret->id)) return "there is no memory";
    if (strcmp(secret->id, id) != 0) return "a secret is cut or changed: copy the file again";
    keys->count++;
    return NULL;
}

static const char *take_run(struct keys *keys, char *rest) {
    const char *name = strtok_r(NULL, " \t", &rest);
    bool good = keys->run.chars[0] == 0 && name != NULL && wire_is_run_name(name, strlen(name));
    if (good) memcpy(keys->run.chars, name, strlen(name));
    return good ? NULL : "its run is cut or changed: copy the file again";
}

static const char *take_master_key(struct keys *keys, char *rest) {
    uint8_t bytes[ITEM_BYTES];
    bool good = keys->master_key == NULL && parse_hex(strtok_r(NULL, " \t", &rest), bytes);
    if (good) keys->master_key = ed25519_from_private(bytes);
    OPENSSL_cleanse(bytes, sizeof bytes);
    return good && keys->master_key != NULL ? NULL : "its master-key is cut or changed: copy the file again";
}

static const char *take_line(struct keys *keys, char *line, bool *has_public) {
    char *rest;
    const char *item = strtok_r(line, " \t", &rest);
    if (item == NULL || item[0] == '#') return NULL;
    if (strcmp(item, "secret") == 0) return take_secret(keys, rest);
    if (strcmp(item, "run") == 0) return take_run(keys, rest);
    if (strcmp(item, "master-key") == 0) return take_master_key(keys, rest);
    if (strcmp(item, "master-public") != 0) return "it has an item that this version does not know";
    if (*has_public || !parse_hex(strtok_r(NULL, " \t", &rest), keys->master_public))
        return "its master-public is cut or changed: copy the file again";
    *has_public = true;
    return NULL;
}

// Returns why this is no file of keys, from the first words of its first line.
static const char *foreign(const char *magic, const char *version) {
    if (*magic == 0) return "it is empty: copy the file again";
    if (strncmp(magic, "-----BEGIN", 10) == 0) return "it is in PEM: name a certificate by PCCL_CERT, --cert or cert=";
    bool other = strcmp(magic, "pccl-keys") == 0 && strcmp(version, "1") != 0;
    return other ? "it is of another version of pccl: make new keys" : "it was not written by `pccl keys`";
}

// Lines may end as on Windows.
static const char *parse(struct keys *keys, char *text) {
    char *rest, magic[16] = "", version[16] = "", role[16] = "";
    const char *first = strtok_r(text, "\r\n", &rest);
    if (first != NULL) sscanf(first, "%15s %15s %15s", magic, version, role);
    bool ours = strcmp(magic, "pccl-keys") == 0 && strcmp(version, "1") == 0, master = strcmp(role, "master") == 0;
    if (!ours || (!master && strcmp(role, "peer") != 0)) return foreign(magic, version);
    bool has_public = false;
    for (char *line; (line = strtok_r(NULL, "\r\n", &rest)) != NULL;) {
        const char *problem = take_line(keys, line, &has_public);
        if (problem != NULL) return problem;
    }
    if (keys->count == 0 || !has_public || master != (keys->master_key != NULL))
        return "it is cut: copy the file again";
    if (master && keys->run.chars[0] != 0) return "a file for masters cannot be that of one run";
    if (master && memcmp(ed25519_public(keys->master_key), keys->master_public, ED25519_KEY) != 0)
        return "its master-key and master-public are not of one pair: copy the file again";
    return NULL;
}

static struct keys *keys_new(char reason[KEYS_REASON_BYTES]) {
    struct ed25519 *any = ed25519_new();
    struct keys *keys = any == NULL ? NULL : memory_secret_new(sizeof *keys);
    ed25519_free(any);
    if (keys != NULL) keys->references = 1;
    snprintf(reason, KEYS_REASON_BYTES, KEYS_REFUSED);
    return keys;
}

struct keys *keys_load(const char *path, char reason[KEYS_REASON_BYTES]) {
    char text[FILE_BYTES + 1] = "";
    struct keys *keys = keys_new(reason);
    if (keys == NULL) return NULL;
    const char *problem = key_file_read(path, true, text, sizeof text);
    if (problem == NULL) problem = parse(keys, text);
    OPENSSL_cleanse(text, sizeof text);
    if (problem == NULL) return keys;
    char ending[PATH_MAX];
    snprintf(ending, sizeof ending, "%s.peer", path);
    bool missing = strcmp(problem, strerror(ENOENT)) == 0, named = missing && access(ending, F_OK) == 0;
    int length = snprintf(reason, KEYS_REASON_BYTES, "cannot use the keys in %s: %s%s", path, problem,
                          named ? "; name the file with its ending, .peer or .master" : "");
    const char *dot = strrchr(path, '.');
    bool ends = dot != NULL && (strcmp(dot, ".peer") == 0 || strcmp(dot, ".master") == 0);
    if (missing && !named && length < KEYS_REASON_BYTES)
        snprintf(reason + length, (size_t)(KEYS_REASON_BYTES - length),
                 "; make them with `pccl keys %.*s`, or copy the file here",
                 ends ? (int)(dot - path) : (int)strlen(path), path);
    keys_release(keys);
    return NULL;
}

struct keys *keys_load_certificate(const char *cert, const char *key, const char *ca, char reason[KEYS_REASON_BYTES]) {
    struct keys *keys = keys_new(reason);
    if (keys == NULL) return NULL;
    keys->certificates = certificates_load(&(struct certificates_paths){cert, key, ca}, reason);
    bool good = keys->certificates != NULL;
    if (good && (certificates_own_roles(keys->certificates) & CERTIFICATES_MASTER) != 0) {
        keys->master_key = ed25519_new();
        good = keys->master_key != NULL;
        if (good) certificates_trust(keys->certificates, ed25519_public(keys->master_key));
    }
    if (good) return keys;
    keys_release(keys);
    return NULL;
}

struct keys *keys_hold(struct keys *keys) {
    atomic_fetch_add_explicit(&keys->references, 1, memory_order_relaxed);
    return keys;
}

void keys_release(struct keys *keys) {
    if (keys == NULL || atomic_fetch_sub_explicit(&keys->references, 1, memory_order_acq_rel) > 1) return;
    ed25519_free(keys->master_key);
    certificates_free(keys->certificates);
    memory_secret_free(keys, sizeof *keys);
}

size_t keys_secret_count(const struct keys *keys) { return keys->count; }

const struct keys_secret *keys_secret(const struct keys *keys, size_t index) { return &keys->secrets[index]; }

// ---- runs ----

const struct wire_run *keys_run(const struct keys *keys) { return &keys->run; }

static bool is_run(const struct keys *keys, const struct wire_run *run) {
    return strcmp(keys->run.chars, run->chars) == 0;
}

bool keys_take_run(const struct keys *keys, struct wire_run *run) {
    if (keys->run.chars[0] == 0) return true;
    if (run->chars[0] == 0) *run = keys->run;
    return is_run(keys, run);
}

// Derives the secret of a named run from one of all runs. False: no memory. No name has a space, so no two names give
// the same text.
static bool derive(const struct keys_secret *secret, const struct wire_run *run, struct keys_secret *out) {
    char purpose[32 + WIRE_MAX_RUN];
    snprintf(purpose, sizeof purpose, "pccl run secret 1 %s ", run->chars);
    return ed25519_hash(purpose, secret->bytes, out->bytes) && secret_id(out->bytes, out->id);
}

bool keys_secret_of(const struct keys *keys, size_t index, const struct wire_run *run, struct keys_secret *out) {
    *out = keys->secrets[index];
    return is_run(keys, run) || (keys->run.chars[0] == 0 && derive(&keys->secrets[index], run, out));
}

struct keys *keys_of_run(struct keys *keys, const struct wire_run *run) {
    if (keys->certificates != NULL || is_run(keys, run)) return keys_hold(keys);
    struct keys *own = memory_secret_new(sizeof *own);
    if (own == NULL) return NULL;
    own->references = 1;
    own->run = *run;
    memcpy(own->master_public, keys->master_public, sizeof own->master_public);
    for (; own->count < keys->count; own->count++) {
        if (keys_secret_of(keys, own->count, run, &own->secrets[own->count])) continue;
        keys_release(own);
        return NULL;
    }
    return own;
}

void keys_identity(const struct keys *keys, size_t index, char out[KEYS_IDENTITY_BYTES]) {
    const char *run = keys->run.chars;
    snprintf(out, KEYS_IDENTITY_BYTES, "%s%s%s", keys->secrets[index].id, *run != 0 ? "/" : "", run);
}

bool keys_find(const struct keys *keys, const char *identity, size_t length, bool derives, struct keys_secret *secret,
               struct wire_run *run) {
    *run = (struct wire_run){{0}};
    if (length < KEYS_SECRET_ID) return false;
    if (length > KEYS_SECRET_ID) {
        const char *name = identity + KEYS_SECRET_ID + 1;
        size_t bytes = length - KEYS_SECRET_ID - 1;
        if (identity[KEYS_SECRET_ID] != '/' || !wire_is_run_name(name, bytes)) return false;
        memcpy(run->chars, name, bytes);
    }
    if (!derives && !is_run(keys, run)) return false;
    for (size_t i = 0; i < keys->count; i++)
        if (keys_secret_of(keys, i, run, secret) && memcmp(identity, secret->id, KEYS_SECRET_ID) == 0) return true;
    return false;
}

const uint8_t *keys_master_public(const struct keys *keys) { return keys->master_public; }

const struct ed25519 *keys_master_key(const struct keys *keys) { return keys->master_key; }

struct certificates *keys_certificates(const struct keys *keys) { return keys->certificates; }

bool keys_serve_peer(const struct keys *keys) {
    return keys->certificates == NULL || (certificates_own_roles(keys->certificates) & CERTIFICATES_PEER) != 0;
}

bool keys_verify(const struct keys *keys, const void *bytes, size_t length,
                 const uint8_t signature[ED25519_SIGNATURE]) {
    return keys->certificates != NULL ? certificates_verify(keys->certificates, bytes, length, signature)
                                      : ed25519_verify(keys->master_public, bytes, length, signature);
}

bool keys_public_of(const uint8_t private_key[ED25519_KEY], uint8_t out[ED25519_KEY]) {
    struct ed25519 *key = ed25519_from_private(private_key);
    if (key != NULL) memcpy(out, ed25519_public(key), ED25519_KEY);
    ed25519_free(key);
    return key != NULL;
}

#endif
