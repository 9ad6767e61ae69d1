// The keys of a run. pccl/_run/keys.py has the format of the files, docs/threat-model.md the threat model.
//
// All peers and masters of a run share a secret, which opens connections. The masters alone have the key that signs for
// the run. Each peer makes a key of its own when it connects, and its id is a hash of the public half.
//
// From that secret follows one for each named run of the masters. A file may have that one alone, with the name: keys
// of one run. The peers of a named run use the secret of that run, also if their file has the one of all runs. So the
// holder of one run's keys can talk to masters, which derive the secret from the name, and to the members of that run.
//
// Certificates can take the place of the secret and of the masters' key.
#ifndef PCCL_NET_KEYS_H
#define PCCL_NET_KEYS_H

#ifdef PCCL_HAVE_TLS
#include <openssl/types.h>
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire.h"
#include "net/wire_control.h"

// ---- key pairs that sign, and the ids that belong to them ----

enum { ED25519_KEY = 32, ED25519_SIGNATURE = 64, SHA256_BYTES = 32 };

struct ed25519; // a key pair; never changes, and any thread may use it

struct ed25519 *ed25519_new(void); // NULL: no memory, or no random numbers
// NULL: no memory.
struct ed25519 *ed25519_from_private(const uint8_t private_key[ED25519_KEY]);
void ed25519_free(struct ed25519 *key); // NULL is allowed

const uint8_t *ed25519_public(const struct ed25519 *key); // ED25519_KEY bytes
// False: no memory.
bool ed25519_sign(const struct ed25519 *key, const void *bytes, size_t length, uint8_t signature[ED25519_SIGNATURE]);
// Whether the owner of the public key has signed these bytes. False also without memory.
bool ed25519_verify(const uint8_t public_key[ED25519_KEY], const void *bytes, size_t length,
                    const uint8_t signature[ED25519_SIGNATURE]);

// The id of a peer: the first bytes of a SHA-256 of its public key. False: no memory.
bool ed25519_id(const uint8_t public_key[ED25519_KEY], struct wire_id *out);
// The SHA-256 of a purpose and a key or secret, so that no hash serves two purposes. False: no memory.
bool ed25519_hash(const char *purpose, const uint8_t bytes[ED25519_KEY], uint8_t out[SHA256_BYTES]);

// ---- files with keys and certificates ----

// Reads the file at `path` as a string into `text`, which has room for `capacity` bytes. The file must belong to
// this user or root, and be writable by its owner alone. A `secret` file must be unreadable to other users, except for
// the group of a file of root. Returns NULL, or what is wrong and what to do.
const char *key_file_read(const char *path, bool secret, char *text, size_t capacity);

// ---- the keys of a run ----

enum {
    KEYS_MAX_SECRETS = 2, // while one replaces the other
    KEYS_SECRET_BYTES = 32,
    KEYS_SECRET_ID = 16,                                         // hexadecimal digits, of a SHA-256 of the secret
    KEYS_IDENTITY_BYTES = KEYS_SECRET_ID + 1 + WIRE_MAX_RUN + 1, // "ID" or "ID/RUN", and a 0
    KEYS_REASON_BYTES = 512,
};

#ifdef PCCL_HAVE_TLS
#define KEYS_WORK true
#else
#define KEYS_WORK false // built without OpenSSL: keys_load always fails, and nothing else here may be called
#endif
#define KEYS_MISSING \
    "this build of pccl has no encryption. Install OpenSSL 3 with its headers (Debian: libssl-dev), and build again"

// OpenSSL refuses what keys are made of.
#define KEYS_REFUSED \
    "OpenSSL makes no Ed25519 key: its configuration (OPENSSL_CONF) permits other algorithms alone, as in FIPS mode, " \
    "or there is no memory"

struct certificates;
struct keys; // any thread may use it

struct keys_secret {
    char id[KEYS_SECRET_ID + 1];
    uint8_t bytes[KEYS_SECRET_BYTES];
};

// Reads a file that `pccl keys` wrote. NULL, and why in `reason`: what is wrong with the file, and what to do. errno
// says so where the system refused memory or descriptors, as for keys_load_certificate.
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
// The run to which the keys are confined; without a name: they are those of all runs, or a certificate.
const struct wire_run *keys_run(const struct keys *keys);
// Whether the keys serve this run. A run without a name becomes the one to which the keys are confined.
bool keys_take_run(const struct keys *keys, struct wire_run *run);
// The error of keys that do not serve the run; takes the names of both runs.
#define KEYS_WRONG_RUN \
    "the key file is for run %s, and the address names run %s; use the key file of that run, or an address without a " \
    "name"
// The keys of a peer in this run; the caller holds them. With certificates, and for the run without a name, these
// keys. NULL: no memory, or these keys are confined to another run.
struct keys *keys_of_run(struct keys *keys, const struct wire_run *run);
// Secret number `index` for a run: one of the keys, or derived from it. False: the keys are confined to another run, or
// there is no memory.
bool keys_secret_of(const struct keys *keys, size_t index, const struct wire_run *run, struct keys_secret *out);
// Writes the identity of a secret, by which the other side of a handshake finds it.
void keys_identity(const struct keys *keys, size_t index, char out[KEYS_IDENTITY_BYTES]);
// Finds the secret of an identity, and the run that the identity names. `derives`: also secrets of runs that follow
// from these keys, as masters do. False: there is none, or no memory.
bool keys_find(const struct keys *keys, const char *identity, size_t length, bool derives, struct keys_secret *secret,
               struct wire_run *run);
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

// ---- certificates (X.509) in place of the shared secret ----
// docs/security.md has the form of the roles.
//
// A role is a URI among the subject alternative names: RUN/pccl/master or RUN/pccl/peer. RUN names the run. A
// certificate names one run, and two sides whose certificates name different runs refuse each other. Each side verifies
// the other one's chain; host names do not matter.
//
// A master makes a key that signs epochs, and its certificate signs the public half: that is its statement. A peer
// keeps statement and chain as a voucher, and shows it to the master that takes its run over. So that master knows by
// whose keys the epochs of its members may be signed, although the master that signed them is gone.

enum { CERTIFICATES_VOUCHER_BYTES = 12 * 1024 }; // of a statement or voucher, at most

// Signs a hash for a relay, and adds the chain. Returns the length; 0: it is too long, or there is no memory.
size_t certificates_sign(struct certificates *certificates, const uint8_t hash[SHA256_BYTES],
                         uint8_t out[CERTIFICATES_VOUCHER_BYTES]);
// Whether these bytes are such a signature of a process of this run.
bool certificates_signed(struct certificates *certificates, const uint8_t hash[SHA256_BYTES], const uint8_t *bytes,
                         size_t length);

#ifdef PCCL_HAVE_TLS

enum certificates_role { CERTIFICATES_MASTER = 1, CERTIFICATES_PEER = 2 }; // bits

// Files in PEM: the certificate and those of authorities between it and `ca`; its private key; trusted authorities.
struct certificates_paths {
    const char *cert, *key, *ca;
};

// Reads the files. NULL, and why in `reason`: what is wrong with which file, and what to do.
struct certificates *certificates_load(const struct certificates_paths *paths, char reason[KEYS_REASON_BYTES]);
void certificates_free(struct certificates *certificates); // NULL is allowed
// The roles of the certificate when it was loaded; not 0.
unsigned certificates_own_roles(const struct certificates *certificates);

// Makes `ssl` show the certificate and trust the authorities of the files as they are now: reads them again if they
// have changed. What was read before stays if they cannot be used, or if the certificate has another run or fewer
// roles; a line of the log says why. False: no memory.
bool certificates_use(struct certificates *certificates, SSL *ssl);
// Writes why a certificate was not verified.
void certificates_problem(X509_STORE_CTX *context, char reason[KEYS_REASON_BYTES]);

// Writes the statement of this side's certificate about a key that signs epochs. Returns its length; 0: no memory.
size_t certificates_state(SSL *ssl, const uint8_t signer[ED25519_KEY], uint8_t out[CERTIFICATES_VOUCHER_BYTES]);
// Whether the other side's certificate has made this statement.
bool certificates_stated(SSL *ssl, const uint8_t signer[ED25519_KEY], const uint8_t *statement, size_t length);
// Writes a voucher for a signer whose statement has come from the other side, which this one has dialled. Returns its
// length; 0: it is too long, or there is no memory.
size_t certificates_vouch(SSL *ssl, const uint8_t signer[ED25519_KEY], const uint8_t *statement, size_t length,
                          uint8_t out[CERTIFICATES_VOUCHER_BYTES]);

// Takes epochs with this key's signature for those of a master.
void certificates_trust(struct certificates *certificates, const uint8_t signer[ED25519_KEY]);
// The same for the signer of a voucher, if a master of the run of this side's certificate has made its statement. The
// dates of the master's certificate do not count: an epoch may be older. False: the voucher is wrong.
bool certificates_believe(struct certificates *certificates, SSL *ssl, const uint8_t *voucher, size_t length);
// Whether one of the trusted signers has signed these bytes.
bool certificates_verify(struct certificates *certificates, const void *bytes, size_t length,
                         const uint8_t signature[ED25519_SIGNATURE]);

#endif

#endif
