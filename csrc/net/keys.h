// The keys of a run. docs/security.md has the format of the files and the threat model.
//
// All peers and masters of a run share a secret, which opens connections. The masters alone have the key that signs for
// the run. Each peer makes a key of its own when it connects (net/ed25519), and its id is a hash of the public half.
//
// Certificates (net/certificates) can take the place of the secret and of the masters' key.
#ifndef PCCL_NET_KEYS_H
#define PCCL_NET_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/ed25519.h"

enum {
    KEYS_MAX_SECRETS = 2, // while one replaces the other
    KEYS_SECRET_BYTES = 32,
    KEYS_SECRET_ID = 16, // hexadecimal digits, of a SHA-256 of the secret
    KEYS_REASON_BYTES = 512,
};

#ifdef PCCL_HAVE_TLS
#define KEYS_WORK true
#else
#define KEYS_WORK false // built without OpenSSL: keys_load always fails, and nothing else here may be called
#endif
#define KEYS_MISSING \
    "this build of pccl has no encryption. Install OpenSSL 3 with its headers (Debian: libssl-dev), and build again"

struct certificates;
struct keys; // any thread may use it

struct keys_secret {
    char id[KEYS_SECRET_ID + 1];
    uint8_t bytes[KEYS_SECRET_BYTES];
};

// Reads a file that `pccl keys` wrote. NULL, and why in `reason`: what is wrong with the file, and what to do.
struct keys *keys_load(const char *path, char reason[KEYS_REASON_BYTES]);
// The same for a certificate, its private key and the authorities that are trusted, each a file in PEM. The files are
// read again when they have changed.
struct keys *keys_load_certificate(const char *cert, const char *key, const char *ca, char reason[KEYS_REASON_BYTES]);
struct keys *keys_hold(struct keys *keys);
void keys_release(struct keys *keys); // NULL is allowed; the last one wipes the secrets

// The certificates in place of secrets; NULL: there are secrets.
struct certificates *keys_certificates(const struct keys *keys);
size_t keys_secret_count(const struct keys *keys); // 0: there is a certificate
const struct keys_secret *keys_secret(const struct keys *keys, size_t index);
const struct keys_secret *keys_find_secret(const struct keys *keys, const char *id, size_t length); // NULL: none
// The key by which peers know the masters of the run, ED25519_KEY bytes; not with certificates.
const uint8_t *keys_master_public(const struct keys *keys);
// The key that signs epochs: the pair of that key, or one that a master with a certificate has made. NULL: these keys
// do not serve a master.
const struct ed25519 *keys_master_key(const struct keys *keys);
bool keys_serve_peer(const struct keys *keys);
// Whether a master of the run has signed these bytes. Certificates: a master that a member has confirmed.
bool keys_verify(const struct keys *keys, const void *bytes, size_t length, const uint8_t signature[ED25519_SIGNATURE]);

// The public half of a private key. False: no memory.
bool keys_public_of(const uint8_t private_key[ED25519_KEY], uint8_t out[ED25519_KEY]);

#endif
