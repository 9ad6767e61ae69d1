#include "net/keys.h"

#ifdef PCCL_HAVE_TLS

#include <openssl/evp.h>
#include <string.h>

#include "base/memory.h"
#include "base/platform.h"

// In memory that core dumps leave out. OpenSSL has the private key while it signs.
struct ed25519 {
    uint8_t public_key[ED25519_KEY], private_key[ED25519_KEY];
};

static EVP_PKEY *pair_of(const struct ed25519 *key) {
    return EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, key->private_key, ED25519_KEY);
}

// Takes a key without its public half. NULL is allowed.
static struct ed25519 *complete(struct ed25519 *key) {
    size_t room = ED25519_KEY;
    EVP_PKEY *pair = key == NULL ? NULL : pair_of(key);
    bool good = pair != NULL && EVP_PKEY_get_raw_public_key(pair, key->public_key, &room) == 1 && room == ED25519_KEY;
    EVP_PKEY_free(pair);
    if (good) return key;
    ed25519_free(key);
    return NULL;
}

struct ed25519 *ed25519_new(void) {
    struct ed25519 *key = memory_secret_new(sizeof *key);
    bool random = key != NULL && platform_random(key->private_key, ED25519_KEY);
    if (random) return complete(key);
    ed25519_free(key);
    return NULL;
}

struct ed25519 *ed25519_from_private(const uint8_t private_key[ED25519_KEY]) {
    struct ed25519 *key = memory_secret_new(sizeof *key);
    if (key != NULL) memcpy(key->private_key, private_key, ED25519_KEY);
    return complete(key);
}

void ed25519_free(struct ed25519 *key) { memory_secret_free(key, sizeof *key); }

const uint8_t *ed25519_public(const struct ed25519 *key) { return key->public_key; }

bool ed25519_sign(const struct ed25519 *key, const void *bytes, size_t length, uint8_t signature[ED25519_SIGNATURE]) {
    EVP_PKEY *pair = pair_of(key);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    size_t room = ED25519_SIGNATURE;
    bool done = pair != NULL && context != NULL && EVP_DigestSignInit(context, NULL, NULL, NULL, pair) == 1 &&
                EVP_DigestSign(context, signature, &room, bytes, length) == 1 && room == ED25519_SIGNATURE;
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(pair);
    return done;
}

bool ed25519_verify(const uint8_t public_key[ED25519_KEY], const void *bytes, size_t length,
                    const uint8_t signature[ED25519_SIGNATURE]) {
    EVP_PKEY *key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, public_key, ED25519_KEY);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good = key != NULL && context != NULL && EVP_DigestVerifyInit(context, NULL, NULL, NULL, key) == 1 &&
                EVP_DigestVerify(context, signature, ED25519_SIGNATURE, bytes, length) == 1;
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(key);
    return good;
}

bool ed25519_id(const uint8_t public_key[ED25519_KEY], struct wire_id *out) {
    uint8_t hash[SHA256_BYTES];
    if (!ed25519_hash("pccl id 1", public_key, hash)) return false;
    memcpy(out->bytes, hash, WIRE_ID_BYTES);
    return true;
}

bool ed25519_hash(const char *purpose, const uint8_t bytes[ED25519_KEY], uint8_t out[SHA256_BYTES]) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool done = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1 &&
                EVP_DigestUpdate(context, purpose, strlen(purpose)) == 1 &&
                EVP_DigestUpdate(context, bytes, ED25519_KEY) == 1 && EVP_DigestFinal_ex(context, out, NULL) == 1;
    EVP_MD_CTX_free(context);
    return done;
}

#else

// There are no keys, so nobody calls these.
struct ed25519 *ed25519_new(void) { return NULL; }
bool ed25519_sign(const struct ed25519 *key, const void *bytes, size_t length, uint8_t signature[ED25519_SIGNATURE]) {
    return (void)key, (void)bytes, (void)length, (void)signature, false;
}
bool ed25519_verify(const uint8_t public_key[ED25519_KEY], const void *bytes, size_t length,
                    const uint8_t signature[ED25519_SIGNATURE]) {
    return (void)public_key, (void)bytes, (void)length, (void)signature, false;
}
bool ed25519_hash(const char *purpose, const uint8_t bytes[ED25519_KEY], uint8_t out[SHA256_BYTES]) {
    return (void)purpose, (void)bytes, (void)out, false;
}

#endif
