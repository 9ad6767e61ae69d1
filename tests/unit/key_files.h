// Keys of runs that exist only in a test: written to a file, and loaded from it, as a user's are.
#ifndef PCCL_TESTS_KEY_FILES_H
#define PCCL_TESTS_KEY_FILES_H

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "net/keys.h"

static inline void key_files_hex(FILE *file, const uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) fprintf(file, "%02x", bytes[i]);
}

// Adds a secret whose bytes are all `secret`.
static inline void key_files_add(FILE *file, uint8_t secret) {
    uint8_t bytes[KEYS_SECRET_BYTES], hash[SHA256_BYTES];
    memset(bytes, secret, sizeof bytes);
    REQUIRE(ed25519_hash("pccl secret 1", bytes, hash));
    fprintf(file, "secret ");
    key_files_hex(file, hash, KEYS_SECRET_ID / 2);
    fprintf(file, " ");
    key_files_hex(file, bytes, sizeof bytes);
    fprintf(file, "\n");
}

// Writes the file of a master or of a peer to `path`, which is a template of mkstemp. `run` chooses the signing key;
// the secrets are each a byte, and 0 is none.
static inline void key_files_write(char *path, bool master, uint8_t run, uint8_t first, uint8_t second) {
    int fd = mkstemp(path);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    uint8_t private_key[KEYS_SECRET_BYTES], public_key[ED25519_KEY];
    memset(private_key, run, sizeof private_key);
    REQUIRE(file != NULL && keys_public_of(private_key, public_key));
    fprintf(file, "pccl-keys 1 %s\n", master ? "master" : "peer");
    key_files_add(file, first);
    if (second != 0) key_files_add(file, second);
    if (master) {
        fprintf(file, "master-key ");
        key_files_hex(file, private_key, sizeof private_key);
        fprintf(file, "\n");
    }
    fprintf(file, "master-public ");
    key_files_hex(file, public_key, sizeof public_key);
    fprintf(file, "\n");
    REQUIRE(fclose(file) == 0);
}

static inline struct keys *key_files_load(bool master, uint8_t run, uint8_t first, uint8_t second) {
    char path[] = "/tmp/pccl-keys-XXXXXX", reason[KEYS_REASON_BYTES] = "";
    key_files_write(path, master, run, first, second);
    struct keys *keys = keys_load(path, reason);
    unlink(path);
    if (keys == NULL) fprintf(stderr, "%s\n", reason);
    REQUIRE(keys != NULL);
    return keys;
}

// The keys of peers in a named run, which follow from the same secrets.
static inline struct keys *key_files_of_run(const char *name, uint8_t first, uint8_t second) {
    struct keys *all = key_files_load(false, 1, first, second);
    struct wire_run run = {{0}};
    snprintf(run.chars, sizeof run.chars, "%s", name);
    struct keys *keys = keys_of_run(all, &run);
    keys_release(all);
    REQUIRE(keys != NULL);
    return keys;
}

#endif
