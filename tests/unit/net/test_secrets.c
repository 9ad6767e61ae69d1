// Secrets lie only in memory that core dumps leave out, also while streams are open that were made with them.
#define _GNU_SOURCE
#include "net/tls.h"

#include "check.h"

#ifndef PCCL_HAVE_TLS

int main(void) { return check_status(); }

#else

#include <string.h>
#include <sys/wait.h>

#include "base/memory.h"
#include "base/platform.h"
#include "tls_ends.h"

enum { SECRET = 32 };

// Written by the kernel, and never copied by this process.
struct patterns {
    uint8_t secret[SECRET], private_key[SECRET];
};

static void write_keys(const char *file, bool master, const struct patterns *patterns) {
    FILE *out = fopen(file, "w");
    uint8_t hash[SHA256_BYTES], public_key[ED25519_KEY];
    if (out == NULL || fchmod(fileno(out), 0600) != 0) _exit(1);
    if (!ed25519_hash("pccl secret 1", patterns->secret, hash) || !keys_public_of(patterns->private_key, public_key))
        _exit(1);
    fprintf(out, "pccl-keys 1 %s\nsecret ", master ? "master" : "peer");
    key_files_hex(out, hash, KEYS_SECRET_ID / 2);
    fprintf(out, " ");
    key_files_hex(out, patterns->secret, SECRET);
    if (master) fprintf(out, "\nmaster-key ");
    if (master) key_files_hex(out, patterns->private_key, SECRET);
    fprintf(out, "\nmaster-public ");
    key_files_hex(out, public_key, sizeof public_key);
    fprintf(out, "\n");
    if (fclose(out) != 0) _exit(1);
}

// Another process writes the file, so that its text is nowhere in this one.
static struct keys *load(bool master, const struct patterns *patterns) {
    char file[64], reason[KEYS_REASON_BYTES];
    snprintf(file, sizeof file, "/tmp/test_secrets-%d-%d", (int)getpid(), master);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        write_keys(file, master, patterns);
        _exit(0);
    }
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    struct keys *keys = keys_load(file, reason);
    unlink(file);
    REQUIRE(keys != NULL);
    return keys;
}

// How often the pattern lies in memory that a core dump has.
__attribute__((no_sanitize("address"))) static int count_dumped(const uint8_t *pattern) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long begin = 0, end = 0, from, to;
    char mode[5], is[5] = "";
    int found = 0;
    REQUIRE(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3) {
            begin = from;
            end = to;
            memcpy(is, mode, sizeof is);
        }
        if (strncmp(line, "VmFlags:", 8) != 0 || strncmp(is, "rw", 2) != 0 || strstr(line, " dd") != NULL) continue;
        for (const uint8_t *at = (const uint8_t *)begin; at + SECRET <= (const uint8_t *)end; at += 4)
            found += memcmp(at, pattern, SECRET) == 0;
    }
    fclose(maps);
    return found;
}

static void test_streams(void) {
    struct patterns *patterns = memory_secret_new(sizeof *patterns);
    REQUIRE(patterns != NULL && platform_random(patterns, sizeof *patterns));
    struct keys *peer = load(false, patterns), *master = load(true, patterns);
    struct wire_run run = {.chars = "alpha"};
    struct keys *of_run = keys_of_run(peer, &run);
    REQUIRE(of_run != NULL);
    const uint8_t *derived = keys_secret(of_run, 0)->bytes;
    struct keys *dials[] = {peer, of_run};
    for (int i = 0; i < 2; i++) {
        struct transport_context *a = context_of(keys_hold(dials[i]), TRANSPORT_PEER);
        struct transport_context *b = context_of(keys_hold(master), TRANSPORT_MASTER);
        struct wire wire;
        check_case(i == 0 ? "the secret of all runs" : "the secret of a named run");
        open_wire(&wire, a, b);
        shake_hands(&wire, NULL);
        REQUIRE(wire.results[0] == 0 && wire.results[1] == 0);
        CHECK_EQ(count_dumped(patterns->secret), 0);
        CHECK_EQ(count_dumped(patterns->private_key), 0);
        CHECK_EQ(count_dumped(derived), 0);
        close_wire(&wire);
        transport_context_release(a);
        transport_context_release(b);
    }
    keys_release(of_run);
    keys_release(peer);
    keys_release(master);
    memory_secret_free(patterns, sizeof *patterns);
}

// The search finds what it should.
static void test_search(void) {
    uint8_t *copy = aligned_alloc(16, SECRET), *pattern = memory_secret_new(SECRET);
    check_case("a copy elsewhere");
    REQUIRE(copy != NULL && pattern != NULL && platform_random(pattern, SECRET));
    CHECK_EQ(count_dumped(pattern), 0);
    memcpy(copy, pattern, SECRET);
    CHECK(count_dumped(pattern) > 0);
    CHECK_MEM(copy, pattern, SECRET); // else the compiler leaves the copy out
    free(copy);
    memory_secret_free(pattern, SECRET);
}

int main(void) {
    test_search();
    test_streams();
    return check_status();
}

#endif
