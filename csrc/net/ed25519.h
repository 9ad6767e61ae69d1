// Key pairs that sign, and the ids that belong to them. Without OpenSSL (PCCL_HAVE_TLS) nothing here may be called.
#ifndef PCCL_NET_ED25519_H
#define PCCL_NET_ED25519_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire.h"

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

#endif
