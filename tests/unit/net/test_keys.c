// Files of keys as they should be, cut, changed or open to others; signatures and ids.
#include "net/keys.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

#ifndef PCCL_HAVE_TLS

int main(void) {
    char reason[KEYS_REASON_BYTES];
    CHECK(keys_load("/dev/null", reason) == NULL);
    CHECK(strstr(reason, "no encryption") != NULL);
    return check_status();
}

#else

// The SHA-256 of "pccl secret 1" and 32 bytes of 0x11 or 0x22, and the public key of 32 bytes of 0x33: by Python's
// hashlib, and by `openssl pkey`.
#define S1 "1111111111111111111111111111111111111111111111111111111111111111"
#define S2 "2222222222222222222222222222222222222222222222222222222222222222"
#define ID1 "571bb9ce419f05f2"
#define ID2 "10248938d4ad796e"
#define PRIVATE "3333333333333333333333333333333333333333333333333333333333333333"
#define PUBLIC "17cb79fb2b4120f2b1ec65e4198d6e08b28e813feb01e4a400839b85e18080ce"
#define OTHER "0000000000000000000000000000000000000000000000000000000000000001"

#define PEER "pccl-keys 1 peer\n"
#define MASTER "pccl-keys 1 master\n"
#define SECRET1 "secret " ID1 " " S1 "\n"
#define SECRET2 "secret " ID2 " " S2 "\n"
#define RUN "run alpha\n"
#define MASTER_KEY "master-key " PRIVATE "\n"
#define MASTER_PUBLIC "master-public " PUBLIC "\n"

static char path[] = "/tmp/test_keys_XXXXXX";

static void write_file(const char *text, size_t length, mode_t mode) {
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    REQUIRE(fd >= 0);
    REQUIRE(write(fd, text, length) == (ssize_t)length);
    REQUIRE(fchmod(fd, mode) == 0);
    close(fd);
}

static const struct {
    const char *name, *text;
    const char *reason; // part of it; NULL: it can be loaded
    size_t secrets;
} files[] = {
    {"of a peer", PEER SECRET1 MASTER_PUBLIC, NULL, 1},
    {"of a master", MASTER SECRET1 MASTER_KEY MASTER_PUBLIC, NULL, 1},
    {"two secrets", PEER SECRET1 SECRET2 MASTER_PUBLIC, NULL, 2},
    {"comments, empty lines, spaces", PEER "# a comment\n\n  secret \t" ID1 "  " S1 "\n" MASTER_PUBLIC, NULL, 1},
    {"no newline at the end", PEER SECRET1 "master-public " PUBLIC, NULL, 1},
    {"lines as on Windows", "pccl-keys 1 peer\r\nsecret " ID1 " " S1 "\r\nmaster-public " PUBLIC "\r\n", NULL, 1},
    {"empty", "", "empty", 0},
    {"an empty line", "\r\n", "empty", 0},
    {"another version", "pccl-keys 2 peer\n" SECRET1 MASTER_PUBLIC, "another version", 0},
    {"another role", "pccl-keys 1 admin\n" SECRET1 MASTER_PUBLIC, "written by", 0},
    {"a certificate", "-----BEGIN CERTIFICATE-----\n", "PCCL_CERT", 0},
    {"something else", "[run]\nsecret = 1\n", "written by", 0},
    {"no secret", PEER MASTER_PUBLIC, "cut", 0},
    {"three secrets", PEER SECRET1 SECRET2 SECRET1 MASTER_PUBLIC, "more than two", 0},
    {"no public key", PEER SECRET1, "cut", 0},
    {"two public keys", PEER SECRET1 MASTER_PUBLIC MASTER_PUBLIC, "master-public", 0},
    {"a secret without id", PEER "secret " S1 "\n" MASTER_PUBLIC, "secret is cut", 0},
    {"a secret alone", PEER "secret\n" MASTER_PUBLIC, "secret is cut", 0},
    {"a secret of another id", PEER "secret " ID2 " " S1 "\n" MASTER_PUBLIC, "secret is cut", 0},
    {"a short secret", PEER "secret " ID1 " 11\n" MASTER_PUBLIC, "secret is cut", 0},
    {"a secret of other letters",
     PEER "secret " ID1 " zz11111111111111111111111111111111111111111111111111111111111111\n" MASTER_PUBLIC,
     "secret is cut", 0},
    {"a peer with the master's key", PEER SECRET1 MASTER_KEY MASTER_PUBLIC, "cut", 0},
    {"a master without a key", MASTER SECRET1 MASTER_PUBLIC, "cut", 0},
    {"a master with two keys", MASTER SECRET1 MASTER_KEY MASTER_KEY MASTER_PUBLIC, "master-key", 0},
    {"keys of two pairs", MASTER SECRET1 MASTER_KEY "master-public " OTHER "\n", "one pair", 0},
    {"of two runs", PEER RUN RUN SECRET1 MASTER_PUBLIC, "run is cut", 0},
    {"of a run without a name", PEER "run\n" SECRET1 MASTER_PUBLIC, "run is cut", 0},
    {"of a run that cannot be", PEER "run a/b\n" SECRET1 MASTER_PUBLIC, "run is cut", 0},
    {"of a master for one run", MASTER RUN SECRET1 MASTER_KEY MASTER_PUBLIC, "cannot be that of one run", 0},
    {"an unknown item", PEER SECRET1 "token 5\n" MASTER_PUBLIC, "does not know", 0},
};

static bool finds(const struct keys *keys, const char *identity, bool derives) {
    struct keys_secret secret;
    struct wire_run run;
    return keys_find(keys, identity, strlen(identity), derives, &secret, &run);
}

static void test_files(void) {
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        check_case("%s", files[i].name);
        write_file(files[i].text, strlen(files[i].text), 0600);
        char reason[KEYS_REASON_BYTES] = "";
        struct keys *keys = keys_load(path, reason);
        if (files[i].reason != NULL) {
            CHECK(keys == NULL);
            if (!CHECK(strstr(reason, files[i].reason) != NULL)) fprintf(stderr, "%s\n", reason);
            CHECK(strstr(reason, path) != NULL);
        } else if (CHECK(keys != NULL)) {
            CHECK_EQ(keys_secret_count(keys), files[i].secrets);
            CHECK_STR(keys_run(keys)->chars, "");
            CHECK_STR(keys_secret(keys, 0)->id, ID1);
            CHECK_EQ(keys_secret(keys, 0)->bytes[31], 0x11);
            CHECK(finds(keys, ID1, false) && !finds(keys, ID1 "0", true));
            CHECK(!finds(keys, "571bb9ce419f05f", true));
            CHECK_EQ(finds(keys, ID2, false), files[i].secrets == 2);
            CHECK_EQ(keys_master_key(keys) != NULL, files[i].text[10 + 2] == 'm');
        }
        keys_release(keys);
    }
    check_case("%s", "");
}

// The SHA-256 of "pccl run secret 1 alpha " and 32 bytes of 0x11, and its id, by Python's hashlib.
#define S_ALPHA "a96cc8d96f1cf8a75c534a92eb7e6c0c452d5bef26e24769984811c93bfe705d"
#define ID_ALPHA "822641f0c2edb8d5"

static void test_runs(void) {
    char reason[KEYS_REASON_BYTES], identity[KEYS_IDENTITY_BYTES];
    const char *text = MASTER SECRET1 SECRET2 MASTER_KEY MASTER_PUBLIC;
    const struct wire_run alpha = {"alpha"}, beta = {"beta"};
    struct wire_run run = {{0}};
    write_file(text, strlen(text), 0600);
    struct keys *all = keys_load(path, reason);
    REQUIRE(all != NULL);
    struct keys *one = keys_of_run(all, &alpha), *same = keys_of_run(all, &run);
    REQUIRE(one != NULL);
    CHECK(same == all && keys_of_run(one, &beta) == NULL);
    keys_release(same);
    text = PEER RUN "secret " ID_ALPHA " " S_ALPHA "\n" MASTER_PUBLIC;
    write_file(text, strlen(text), 0600);
    struct keys *file = keys_load(path, reason);
    REQUIRE(file != NULL);
    CHECK_STR(keys_run(file)->chars, "alpha");
    CHECK_EQ(keys_secret_count(one), 2);
    CHECK_MEM(keys_secret(one, 0)->bytes, keys_secret(file, 0)->bytes, KEYS_SECRET_BYTES);
    CHECK(keys_master_key(one) == NULL && keys_master_key(file) == NULL);
    keys_release(file);
    CHECK_MEM(keys_master_public(one), keys_master_public(all), ED25519_KEY);
    keys_identity(all, 0, identity);
    CHECK_STR(identity, ID1);
    keys_identity(one, 0, identity);
    CHECK_STR(identity, ID_ALPHA "/alpha");

    struct {
        const char *identity;
        bool by_master, by_peer, by_one; // of all runs, and of alpha
    } rows[] = {
        {ID1, true, true, false},
        {ID1 "/alpha", false, false, false},
        {ID1 "/", false, false, false},
        {ID_ALPHA "/alpha", true, false, true},
        {ID_ALPHA, false, false, false},
        {ID_ALPHA "/beta", false, false, false},
        {ID_ALPHA "/alpha/", false, false, false},
        {ID_ALPHA "-alpha", false, false, false},
        {"", false, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("identity %s", rows[i].identity);
        CHECK_EQ(finds(all, rows[i].identity, true), rows[i].by_master);
        CHECK_EQ(finds(all, rows[i].identity, false), rows[i].by_peer);
        CHECK_EQ(finds(one, rows[i].identity, false), rows[i].by_one);
        CHECK_EQ(finds(one, rows[i].identity, true), rows[i].by_one); // what follows from these are no keys
    }
    check_case("%s", "");
    char longest[KEYS_IDENTITY_BYTES + 1];
    memset(longest, 'a', sizeof longest);
    memcpy(longest, ID1 "/", sizeof ID1);
    struct keys_secret secret;
    CHECK(!keys_find(all, longest, sizeof longest, true, &secret, &run));

    run = (struct wire_run){{0}};
    CHECK(keys_take_run(all, &run) && run.chars[0] == 0);
    CHECK(keys_take_run(one, &run));
    CHECK_STR(run.chars, "alpha");
    CHECK(keys_take_run(one, &run));
    run = beta;
    CHECK(keys_take_run(all, &run) && !keys_take_run(one, &run));
    CHECK_STR(run.chars, "beta");
    keys_release(one);
    keys_release(all);
}

static void test_size_and_nul_bytes(void) {
    static char text[8192];
    memset(text, '#', sizeof text);
    memcpy(text, PEER, sizeof PEER - 1);
    char reason[KEYS_REASON_BYTES];
    write_file(text, sizeof text, 0600);
    CHECK(keys_load(path, reason) == NULL && strstr(reason, "too long") != NULL);
    write_file("pccl-keys 1 peer\n\0\n", 19, 0600);
    CHECK(keys_load(path, reason) == NULL && strstr(reason, "NUL byte") != NULL);
}

static void test_access(void) {
    static const struct {
        mode_t mode;
        bool root; // whether a file of root's may be used with it
    } rows[] = {{0600, true},  {0400, true},  {0440, true},  {0640, true},
                {0660, false}, {0604, false}, {0602, false}, {0644, false}};
    const char *text = PEER SECRET1 MASTER_PUBLIC;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("mode %o", rows[i].mode);
        write_file(text, strlen(text), rows[i].mode);
        char reason[KEYS_REASON_BYTES];
        struct keys *keys = keys_load(path, reason);
        bool only_owner = (rows[i].mode & 077) == 0;
        CHECK_EQ(keys != NULL, geteuid() == 0 ? rows[i].root : only_owner);
        keys_release(keys);
        if (geteuid() == 0 && chown(path, 12345, 12345) == 0) {
            keys = keys_load(path, reason);
            CHECK(keys == NULL && strstr(reason, "another user") != NULL);
        }
    }
    check_case("%s", "");
    char reason[KEYS_REASON_BYTES];
    CHECK(keys_load("/tmp", reason) == NULL && strstr(reason, "not a regular file") != NULL);
    unlink(path);
    CHECK(keys_load(path, reason) == NULL && strstr(reason, "No such file") != NULL);
    REQUIRE(mkfifo(path, 0600) == 0); // opening it must not wait for a writer
    CHECK(keys_load(path, reason) == NULL && strstr(reason, "not a regular file") != NULL);
}

static void test_signatures(void) {
    char reason[KEYS_REASON_BYTES];
    const char *text = MASTER SECRET1 MASTER_KEY MASTER_PUBLIC;
    write_file(text, strlen(text), 0600);
    struct keys *keys = keys_load(path, reason);
    REQUIRE(keys != NULL);
    struct ed25519 *mine = ed25519_new(), *another = ed25519_new();
    REQUIRE(mine != NULL && another != NULL);
    uint8_t by_master[ED25519_SIGNATURE], by_me[ED25519_SIGNATURE];
    REQUIRE(ed25519_sign(keys_master_key(keys), "epoch 7", 7, by_master) && ed25519_sign(mine, "epoch 7", 7, by_me));
    const uint8_t *master = keys_master_public(keys), *me = ed25519_public(mine);
    CHECK(ed25519_verify(master, "epoch 7", 7, by_master));
    CHECK(ed25519_verify(me, "epoch 7", 7, by_me));
    CHECK(!ed25519_verify(master, "epoch 8", 7, by_master));
    CHECK(!ed25519_verify(master, "epoch 7", 6, by_master));
    CHECK(!ed25519_verify(me, "epoch 7", 7, by_master));
    CHECK(!ed25519_verify(ed25519_public(another), "epoch 7", 7, by_me));
    for (size_t bit = 0; bit < 8 * sizeof by_me; bit += 37) {
        by_me[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!ed25519_verify(me, "epoch 7", 7, by_me));
        by_me[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    struct wire_id id, again, other, none = {0};
    REQUIRE(ed25519_id(me, &id) && ed25519_id(me, &again) && ed25519_id(ed25519_public(another), &other));
    CHECK(wire_id_equal(&id, &again) && !wire_id_equal(&id, &other) && !wire_id_equal(&id, &none));
    ed25519_free(mine);
    ed25519_free(another);
    keys_release(keys_hold(keys));
    keys_release(keys);
}

int main(void) {
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    test_files();
    test_runs();
    test_size_and_nul_bytes();
    test_access();
    test_signatures();
    unlink(path);
    return check_status();
}

#endif
