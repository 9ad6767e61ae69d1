#include "master/keys_signer.h"

#include "master/quorum.h"

static bool keys_signer_sign(void *keys, const void *bytes, size_t length, uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    _Static_assert((int)WIRE_SIGNATURE_BYTES == (int)ED25519_SIGNATURE, "a message has room for a signature");
    return ed25519_sign(keys_master_key(keys), bytes, length, signature);
}

static bool keys_signer_verify(void *keys, const void *bytes, size_t length,
                               const uint8_t signature[WIRE_SIGNATURE_BYTES]) {
    return keys_verify(keys, bytes, length, signature);
}

void keys_sign_epochs(const struct keys *keys, struct master_core *core) {
    struct signer signer = {.context = (void *)(uintptr_t)keys, .sign = keys_signer_sign, .verify = keys_signer_verify};
    if (keys != NULL) core_set_signer(core, &signer);
}
