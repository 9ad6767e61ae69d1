// Certificates in place of secrets: files as they should be, and wrong ones; who may be who; renewal; vouchers.
#define _GNU_SOURCE
#include "net/keys.h"

#include "check.h"

#ifndef PCCL_HAVE_TLS

int main(void) {
    char reason[KEYS_REASON_BYTES];
    CHECK(keys_load_certificate("a", "b", "c", reason) == NULL);
    CHECK(strstr(reason, "no encryption") != NULL);
    return check_status();
}

#else

#include "certificate_files.h"
#include "net/tls_private.h"
#include "tls_ends.h"

#define BOTH_URIS CERTIFICATE_MASTER_URI "," CERTIFICATE_PEER_URI
#define OTHER_RUN "spiffe://test/other/pccl/peer"
#define TWO_RUNS CERTIFICATE_PEER_URI "," OTHER_RUN

static struct issued authority, stranger; // two authorities

static struct keys *load(const struct certificate_files *files, char reason[KEYS_REASON_BYTES]) {
    reason[0] = '\0';
    return keys_load_certificate(files->cert, files->key, files->ca, reason);
}

// ---- files ----

static void check_reason(const struct certificate_files *files, const char *part) {
    char reason[KEYS_REASON_BYTES];
    struct keys *keys = load(files, reason);
    if (part == NULL)
        CHECK_STR(reason[0] == '\0' || keys != NULL ? "" : reason, "");
    else if (!CHECK(keys == NULL && strstr(reason, part) != NULL))
        fprintf(stderr, "%s\n", reason);
    CHECK_EQ(keys != NULL, part == NULL);
    keys_release(keys);
}

static void write_text(const char *path, const char *text) {
    FILE *file = certificate_open(path, 0600);
    REQUIRE(fputs(text, file) >= 0 && fclose(file) == 0);
}

static void test_files(void) {
    struct issued leaf = certificate_leaf(&authority, CERTIFICATE_PEER_URI),
                  other = certificate_leaf(&authority, BOTH_URIS);
    X509 *const trusted[] = {authority.certificate, NULL};
    struct certificate_files files = certificate_files_new(&leaf, NULL, trusted);
    check_case("right files");
    check_reason(&files, NULL);
    check_case("a key that others can read");
    REQUIRE(chmod(files.key, 0644) == 0);
    check_reason(&files, "chmod 600");
    REQUIRE(chmod(files.key, 0600) == 0);
    static const mode_t writable[] = {0666, 0664, 0602};
    for (size_t i = 0; i < sizeof writable / sizeof writable[0]; i++) {
        check_case("authorities of mode %o", writable[i]);
        REQUIRE(chmod(files.ca, writable[i]) == 0);
        check_reason(&files, "other users can write it");
    }
    check_case("authorities that others can read, as Kubernetes mounts them");
    REQUIRE(chmod(files.ca, 0440) == 0);
    check_reason(&files, NULL);
    if (geteuid() == 0) {
        REQUIRE(chown(files.ca, 0, 12345) == 0);
        check_reason(&files, NULL);
        check_case("authorities of another user");
        REQUIRE(chown(files.ca, 12345, 0) == 0);
        check_reason(&files, "belongs to another user");
        REQUIRE(chown(files.ca, 0, 0) == 0);
    }
    REQUIRE(chmod(files.ca, 0644) == 0);
    check_case("a folder in place of a file");
    struct certificate_files folder = files;
    snprintf(folder.ca, sizeof folder.ca, "/tmp");
    check_reason(&folder, "it is not a regular file");
    check_case("a key behind a symbolic link, as Kubernetes mounts it");
    struct certificate_files linked = files;
    snprintf(linked.key, sizeof linked.key, "%s/link", files.folder);
    REQUIRE(symlink("tls.key", linked.key) == 0);
    check_reason(&linked, NULL);
    unlink(linked.key);
    check_reason(&linked, "No such file");

    static const char *const garbage[] = {"", "no PEM\n",
                                          "-----BEGIN CERTIFICATE-----\nabcd\n-----END CERTIFICATE-----\n",
                                          "-----BEGIN CERTIFICATE-----\nMIIB"};
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        check_case("garbage %zu", i);
        write_text(files.cert, garbage[i]);
        check_reason(&files, "cannot use the certificate in");
        certificate_write(files.cert, (X509 *const[]){leaf.certificate, NULL});
        write_text(files.key, garbage[i]);
        check_reason(&files, "cannot use the key in");
        certificate_write_key(files.key, leaf.key);
        write_text(files.ca, garbage[i]);
        check_reason(&files, "cannot use the authorities in");
        certificate_write(files.ca, trusted);
    }
    check_case("a damaged certificate behind a good one");
    FILE *file = fopen(files.ca, "a");
    REQUIRE(file != NULL && fputs(garbage[2], file) >= 0 && fclose(file) == 0);
    check_reason(&files, "damaged");
    certificate_write(files.ca, trusted);
    check_case("a long chain: 150 certificates behind the one of the process");
    X509 *chain[152] = {leaf.certificate};
    for (size_t i = 1; i < 151; i++) chain[i] = authority.certificate;
    certificate_write(files.cert, chain);
    check_reason(&files, NULL);
    certificate_write(files.cert, (X509 *const[]){leaf.certificate, NULL});
    check_case("a key of another certificate");
    certificate_write_key(files.key, other.key);
    check_reason(&files, "not the key of the certificate");
    check_case("a key with a password");
    file = certificate_open(files.key, 0600);
    REQUIRE(PEM_write_PrivateKey(file, leaf.key, EVP_aes_128_cbc(), (unsigned char *)"word", 4, NULL, NULL) == 1);
    REQUIRE(fclose(file) == 0);
    check_reason(&files, "with a password");
    certificate_files_remove(&files);
    certificate_free(&leaf);
    certificate_free(&other);
}

static void check_leaf(struct issued *leaf, const char *reason) {
    struct certificate_files files = certificate_files_new(leaf, NULL, (X509 *const[]){authority.certificate, NULL});
    check_reason(&files, reason);
    certificate_files_remove(&files);
    certificate_free(leaf);
}

static void test_certificate_of_its_own(void) {
    static const struct {
        const char *name, *uris;
        long from_s, to_s;
        const char *reason;
    } rows[] = {
        {"a peer", CERTIFICATE_PEER_URI, -CERTIFICATE_HOUR, CERTIFICATE_HOUR, NULL},
        {"both roles", BOTH_URIS, -CERTIFICATE_HOUR, CERTIFICATE_HOUR, NULL},
        {"two runs", TWO_RUNS, -CERTIFICATE_HOUR, CERTIFICATE_HOUR, "names two runs; issue one"},
        {"any scheme", "https://example.org/pccl/master", -CERTIFICATE_HOUR, CERTIFICATE_HOUR, NULL},
        {"expired", CERTIFICATE_PEER_URI, -2L * CERTIFICATE_HOUR, -CERTIFICATE_HOUR, "expired on 20"},
        {"of tomorrow", CERTIFICATE_PEER_URI, CERTIFICATE_HOUR, 2L * CERTIFICATE_HOUR, "is valid from 20"},
        {"no URI", NULL, -CERTIFICATE_HOUR, CERTIFICATE_HOUR, "has no role"},
        {"another URI", "spiffe://test/run", -CERTIFICATE_HOUR, CERTIFICATE_HOUR, "has no role"},
        {"no run", "/pccl/peer", -CERTIFICATE_HOUR, CERTIFICATE_HOUR, "has no role"},
        {"an unknown role", "spiffe://test/run/pccl/root", -CERTIFICATE_HOUR, CERTIFICATE_HOUR, "has no role"},
        {"a longer path", CERTIFICATE_PEER_URI "/x", -CERTIFICATE_HOUR, CERTIFICATE_HOUR, "has no role"},
        {"a query", "spiffe://test/?/pccl/peer", -CERTIFICATE_HOUR, CERTIFICATE_HOUR, "has no role"},
        {"a fragment", "spiffe://test/#/pccl/peer", -CERTIFICATE_HOUR, CERTIFICATE_HOUR, "has no role"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        struct issued leaf = certificate_issue(&authority, "EC", rows[i].uris, false, rows[i].from_s, rows[i].to_s);
        check_leaf(&leaf, rows[i].reason);
    }
    check_case("a weak key");
    struct issued weak =
        certificate_issue(&authority, "RSA512", CERTIFICATE_PEER_URI, false, -CERTIFICATE_HOUR, CERTIFICATE_HOUR);
    check_leaf(&weak, "key too small");
}

// ---- handshakes ----

struct side {
    struct certificate_files files;
    struct keys *keys;
    struct transport_context *context;
};

// A side with this certificate, which acts as this party, whatever its role.
static struct side side_of(const struct issued *leaf, X509 *between, X509 *const *trusted, enum transport_party party) {
    char reason[KEYS_REASON_BYTES];
    struct side side = {.files = certificate_files_new(leaf, between, trusted)};
    side.keys = load(&side.files, reason);
    if (side.keys == NULL) fprintf(stderr, "%s\n", reason);
    REQUIRE(side.keys != NULL);
    struct transport_options options = {.keys = side.keys, .party = party};
    side.context = tls_context_new(&options);
    REQUIRE(side.context != NULL);
    return side;
}

static void side_free(struct side *side) {
    transport_context_release(side->context);
    keys_release(side->keys);
    certificate_files_remove(&side->files);
}

static struct side side_with(const char *uris, enum transport_party party) {
    struct issued leaf = certificate_leaf(&authority, uris);
    struct side side = side_of(&leaf, NULL, (X509 *const[]){authority.certificate, NULL}, party);
    certificate_free(&leaf);
    return side;
}

static char why[2][512]; // what the ends of the last handshake tell

static void meet(struct wire *wire, struct transport_context *dials, struct transport_context *accepts) {
    open_wire(wire, dials, accepts);
    why[0][0] = why[1][0] = '\0';
    for (int idle = 0; idle < 3; idle++) {
        for (int i = 0; i < 2; i++) {
            if (wire->ends[i] != NULL && wire->results[i] == -EAGAIN) {
                wire->results[i] = transport_step(wire->ends[i]);
                if (wire->results[i] != 0 && wire->results[i] != -EAGAIN) {
                    snprintf(why[i], sizeof why[i], "%s", transport_why(wire->ends[i], wire->results[i]));
                    close_end(wire, i);
                }
            }
            while (pass(wire, i, NULL)) idle = 0;
        }
    }
}

static void check_why(int end, const char *part) {
    if (!CHECK(strstr(why[end], part) != NULL)) fprintf(stderr, "%s\n", why[end]);
}

static void check_meets(const struct side *dials, const struct side *accepts) {
    struct wire wire;
    meet(&wire, dials->context, accepts->context);
    for (int end = 0; end < 2; end++)
        if (!CHECK_EQ(wire.results[end], 0)) fprintf(stderr, "%s\n", why[end]);
    close_wire(&wire);
}

static void test_parties(void) {
    static const struct {
        const char *uris;
        enum transport_party party;
    } sides[] = {{CERTIFICATE_MASTER_URI, TRANSPORT_MASTER},
                 {CERTIFICATE_PEER_URI, TRANSPORT_PEER},
                 {CERTIFICATE_PEER_URI, TRANSPORT_OBSERVER},
                 {CERTIFICATE_MASTER_URI, TRANSPORT_OBSERVER},
                 {BOTH_URIS, TRANSPORT_MASTER},
                 {BOTH_URIS, TRANSPORT_PEER}};
    enum { SIDES = sizeof sides / sizeof sides[0] };
    struct side made[SIDES];
    for (int i = 0; i < SIDES; i++) made[i] = side_with(sides[i].uris, sides[i].party);
    for (int i = 0; i < SIDES * SIDES; i++) {
        struct wire wire;
        int ends[2] = {i / SIDES, i % SIDES};
        check_case("side %d dials side %d", ends[0], ends[1]);
        meet(&wire, made[ends[0]].context, made[ends[1]].context);
        for (int end = 0; end < 2; end++) {
            if (!CHECK_EQ(wire.results[end], 0)) fprintf(stderr, "%s\n", why[end]);
            REQUIRE(wire.results[end] == 0);
            const struct transport_identity *other = transport_peer(wire.ends[end]);
            CHECK_EQ(other->party, sides[ends[1 - end]].party);
            CHECK_MEM(other->id.bytes, tls_context_id(made[ends[1 - end]].context)->bytes, WIRE_ID_BYTES);
        }
        uint8_t heard[5];
        CHECK(far_end_write(wire.ends[0], "hello", 5));
        while (pass(&wire, 0, NULL)) continue;
        CHECK(far_end_read(wire.ends[1], heard, 5) && memcmp(heard, "hello", 5) == 0);
        close_wire(&wire);
    }
    for (int i = 0; i < SIDES; i++) side_free(&made[i]);
}

// A certificate that has not the role, or that is of another run. The other side refuses it whether it dials or not.
static void test_wrong_roles(void) {
    struct side master = side_with(CERTIFICATE_MASTER_URI, TRANSPORT_MASTER);
    struct side peer = side_with(CERTIFICATE_PEER_URI, TRANSPORT_PEER);
    struct side false_master = side_with(CERTIFICATE_PEER_URI, TRANSPORT_MASTER);
    struct side false_peer = side_with(CERTIFICATE_MASTER_URI, TRANSPORT_PEER);
    struct side other_run = side_with(OTHER_RUN, TRANSPORT_PEER);
    struct {
        const char *name;
        struct side *good, *bad;
        int error;
        const char *reason;
    } rows[] = {
        {"a peer that dials as a master", &master, &false_master, -EBADE, "acts as a master"},
        {"a peer that accepts as a master", &peer, &false_master, -EBADE, "acts as a master"},
        {"a master as a peer", &peer, &false_peer, -EBADE, "acts as a peer"},
        {"another run", &master, &other_run, -EKEYREJECTED, "of another run"},
    };
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        struct wire wire;
        int bad_end = (int)(i % 2), good_end = 1 - bad_end;
        check_case("%s, end %d", rows[i / 2].name, bad_end);
        struct side *sides[2] = {bad_end == 0 ? rows[i / 2].bad : rows[i / 2].good,
                                 bad_end == 0 ? rows[i / 2].good : rows[i / 2].bad};
        meet(&wire, sides[0]->context, sides[1]->context);
        // In another run, the dialler is the first to refuse, whichever it is.
        int refuses = rows[i / 2].bad == &other_run ? 0 : good_end;
        CHECK_EQ(wire.results[good_end], rows[i / 2].error);
        check_why(refuses, rows[i / 2].reason);
        close_wire(&wire);
    }
    side_free(&master);
    side_free(&peer);
    side_free(&false_master);
    side_free(&false_peer);
    side_free(&other_run);
}

static void test_authorities(void) {
    struct issued by_authority = certificate_leaf(&authority, CERTIFICATE_MASTER_URI);
    struct issued by_stranger = certificate_leaf(&stranger, CERTIFICATE_PEER_URI);
    struct issued between = certificate_issue(&authority, "EC", NULL, true, -CERTIFICATE_HOUR, CERTIFICATE_HOUR);
    struct issued chained = certificate_leaf(&between, CERTIFICATE_PEER_URI);
    X509 *const one[] = {authority.certificate, NULL}, *const two[] = {stranger.certificate, authority.certificate,
                                                                       NULL};
    struct side master = side_of(&by_authority, NULL, one, TRANSPORT_MASTER);
    struct side wrong = side_of(&by_stranger, NULL, two, TRANSPORT_PEER);
    for (int bad = 0; bad < 2; bad++) {
        struct wire wire;
        check_case("an authority that the other side does not trust, end %d", bad);
        meet(&wire, bad == 0 ? wrong.context : master.context, bad == 0 ? master.context : wrong.context);
        CHECK_EQ(wire.results[1 - bad], -EKEYREJECTED);
        CHECK_EQ(wire.results[bad], -EKEYREJECTED);
        check_why(1 - bad, "none of the authorities");
        check_why(bad, "it does not trust the authority");
        close_wire(&wire);
    }
    check_case("a bundle of two authorities");
    struct side trusting = side_of(&by_authority, NULL, two, TRANSPORT_MASTER);
    check_meets(&wrong, &trusting);
    check_meets(&trusting, &wrong);
    check_case("an authority between");
    struct side longer = side_of(&chained, between.certificate, one, TRANSPORT_PEER);
    check_meets(&longer, &master);
    struct side shorter = side_of(&chained, NULL, one, TRANSPORT_PEER);
    struct wire wire;
    check_case("an authority between that is not in the file");
    meet(&wire, shorter.context, master.context);
    CHECK_EQ(wire.results[1], -EKEYREJECTED);
    close_wire(&wire);
    for (int type = 0; type < 2; type++) {
        check_case("a key of type %d", type);
        struct issued leaf = certificate_issue(&authority, type == 0 ? "RSA" : "ED25519", CERTIFICATE_MASTER_URI, false,
                                               -CERTIFICATE_HOUR, CERTIFICATE_HOUR);
        struct side typed = side_of(&leaf, NULL, one, TRANSPORT_MASTER);
        check_meets(&longer, &typed);
        side_free(&typed);
        certificate_free(&leaf);
    }
    side_free(&master);
    side_free(&wrong);
    side_free(&trusting);
    side_free(&longer);
    side_free(&shorter);
    certificate_free(&by_authority);
    certificate_free(&by_stranger);
    certificate_free(&between);
    certificate_free(&chained);
}

// Each process dials and accepts: a certificate that cannot be used for both is refused before anybody is dialled.
static void test_usages(void) {
    static const struct {
        int kind;
        const char *usages, *reason;
    } rows[] = {
        {NID_ext_key_usage, "serverAuth", "server auth and client auth"},
        {NID_ext_key_usage, "clientAuth", "server auth and client auth"},
        {NID_ext_key_usage, "serverAuth,clientAuth", NULL},
        {NID_key_usage, "critical,keyEncipherment", "digital signature"},
        {NID_key_usage, "critical,digitalSignature", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct issued leaf = certificate_leaf(&authority, CERTIFICATE_PEER_URI);
        check_case("%s", rows[i].usages);
        certificate_extend(leaf.certificate, authority.certificate, rows[i].kind, rows[i].usages);
        REQUIRE(X509_sign(leaf.certificate, authority.key, EVP_sha256()) > 0);
        check_leaf(&leaf, rows[i].reason);
    }
    check_case("a curve that TLS 1.3 does not have");
    struct issued leaf =
        certificate_issue(&authority, "secp256k1", CERTIFICATE_PEER_URI, false, -CERTIFICATE_HOUR, CERTIFICATE_HOUR);
    check_leaf(&leaf, "P-256, Ed25519 or RSA");
}

// Files of keys and certificates do not meet, whoever dials.
static void test_secrets(void) {
    struct side peer = side_with(CERTIFICATE_PEER_URI, TRANSPORT_PEER);
    struct transport_context *secret = master_context();
    for (int dials = 0; dials < 2; dials++) {
        struct wire wire;
        check_case("a secret and a certificate, end %d", dials);
        meet(&wire, dials == 0 ? peer.context : secret, dials == 0 ? secret : peer.context);
        CHECK_EQ(wire.results[0], -EKEYREJECTED);
        CHECK_EQ(wire.results[1], -EKEYREJECTED);
        close_wire(&wire);
    }
    transport_context_release(secret);
    side_free(&peer);
}

// ---- renewal ----

static void replace(const struct side *side, const struct issued *leaf) {
    char fresh[80];
    snprintf(fresh, sizeof fresh, "%s.new", side->files.cert);
    certificate_write(fresh, (X509 *const[]){leaf->certificate, NULL});
    REQUIRE(rename(fresh, side->files.cert) == 0);
    snprintf(fresh, sizeof fresh, "%s.new", side->files.key);
    certificate_write_key(fresh, leaf->key);
    REQUIRE(rename(fresh, side->files.key) == 0);
}

static void test_renewal(void) {
    struct side master = side_with(CERTIFICATE_MASTER_URI, TRANSPORT_MASTER);
    struct side peer = side_with(CERTIFICATE_PEER_URI, TRANSPORT_PEER);
    struct issued untrusted = certificate_leaf(&stranger, CERTIFICATE_PEER_URI);
    struct issued renewed = certificate_leaf(&authority, CERTIFICATE_PEER_URI);
    struct wire wire, before;
    check_case("before");
    meet(&before, peer.context, master.context);
    REQUIRE(before.results[0] == 0 && before.results[1] == 0);
    check_case("an untrusted certificate is used at once");
    replace(&peer, &untrusted);
    meet(&wire, peer.context, master.context);
    CHECK_EQ(wire.results[1], -EKEYREJECTED);
    close_wire(&wire);
    check_case("the connection of before");
    uint8_t heard[4];
    CHECK(far_end_write(before.ends[0], "word", 4));
    while (pass(&before, 0, NULL)) continue;
    CHECK(far_end_read(before.ends[1], heard, 4) && memcmp(heard, "word", 4) == 0);
    close_wire(&before);
    check_case("a renewed one");
    replace(&peer, &renewed);
    check_meets(&peer, &master);
    check_case("files that do not fit leave the earlier ones in use");
    write_text(peer.files.cert, "half of a fi");
    check_meets(&peer, &master);
    unlink(peer.files.key);
    check_meets(&master, &peer);
    check_case("authorities that are replaced");
    X509 *const others[] = {stranger.certificate, NULL};
    certificate_write(master.files.ca, others);
    meet(&wire, peer.context, master.context);
    CHECK_EQ(wire.results[1], -EKEYREJECTED);
    close_wire(&wire);
    certificate_free(&untrusted);
    certificate_free(&renewed);
    side_free(&master);
    side_free(&peer);
}

// The one that was read before stays in use.
static void test_renewal_that_does_not_serve(void) {
    static const struct {
        const char *name, *type, *uris;
        long from_s, to_s;
    } rows[] = {
        {"expired", "EC", BOTH_URIS, -2L * CERTIFICATE_HOUR, -CERTIFICATE_HOUR},
        {"of tomorrow", "EC", BOTH_URIS, CERTIFICATE_HOUR, 2L * CERTIFICATE_HOUR},
        {"no role", "EC", NULL, -CERTIFICATE_HOUR, CERTIFICATE_HOUR},
        {"fewer roles", "EC", CERTIFICATE_PEER_URI, -CERTIFICATE_HOUR, CERTIFICATE_HOUR},
        {"another run", "EC", OTHER_RUN, -CERTIFICATE_HOUR, CERTIFICATE_HOUR},
        {"two runs", "EC", BOTH_URIS "," OTHER_RUN, -CERTIFICATE_HOUR, CERTIFICATE_HOUR},
        {"a weak key", "RSA512", BOTH_URIS, -CERTIFICATE_HOUR, CERTIFICATE_HOUR},
    };
    struct side master = side_with(CERTIFICATE_MASTER_URI, TRANSPORT_MASTER);
    struct side peer = side_with(BOTH_URIS, TRANSPORT_PEER);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        // Of an authority that the master does not trust, so that its use would show.
        struct issued leaf =
            certificate_issue(&stranger, rows[i].type, rows[i].uris, false, rows[i].from_s, rows[i].to_s);
        replace(&peer, &leaf);
        check_meets(&peer, &master);
        check_meets(&peer, &master);
        certificate_free(&leaf);
    }
    check_case("more roles than the master had, and an early one that is used once it is valid");
    struct issued early = certificate_issue(&stranger, "EC", BOTH_URIS, false, 2, CERTIFICATE_HOUR);
    replace(&master, &early);
    for (struct wire wire = {.results = {0}}; wire.results[0] == 0; close_wire(&wire)) {
        meet(&wire, peer.context, master.context);
        nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    }
    check_why(0, "none of the authorities");
    certificate_free(&early);
    side_free(&master);
    side_free(&peer);
}

// ---- vouchers ----

static const char epoch[] = "pccl epoch 1: members";

static void sign_epoch(const struct side *master, uint8_t out[ED25519_SIGNATURE]) {
    REQUIRE(ed25519_sign(keys_master_key(master->keys), epoch, sizeof epoch, out));
}

static bool believed(const struct side *master, const uint8_t signature[ED25519_SIGNATURE]) {
    return keys_verify(master->keys, epoch, sizeof epoch, signature);
}

// The master that takes a run over knows nothing of the one before but what a member brings.
static void test_takeover(void) {
    struct side first = side_with(CERTIFICATE_MASTER_URI, TRANSPORT_MASTER);
    struct side second = side_with(CERTIFICATE_MASTER_URI, TRANSPORT_MASTER);
    struct side third = side_with(BOTH_URIS, TRANSPORT_MASTER);
    struct side peer = side_with(CERTIFICATE_PEER_URI, TRANSPORT_PEER);
    uint8_t signature[ED25519_SIGNATURE];
    struct wire wire;
    sign_epoch(&first, signature);
    CHECK(believed(&first, signature) && !believed(&second, signature));
    check_case("a peer that has no epoch yet");
    check_meets(&peer, &second);
    CHECK(!believed(&second, signature));
    check_case("a peer with an epoch");
    meet(&wire, peer.context, first.context);
    REQUIRE(wire.results[0] == 0);
    transport_vouch(wire.ends[0]);
    close_wire(&wire);
    check_meets(&peer, &third); // which does not sign
    check_meets(&peer, &second);
    CHECK(believed(&second, signature) && believed(&third, signature));
    signature[5] ^= 1;
    CHECK(!believed(&second, signature));
    check_case("once more, by the second");
    sign_epoch(&second, signature);
    meet(&wire, peer.context, second.context);
    transport_vouch(wire.ends[0]);
    close_wire(&wire);
    CHECK(!believed(&first, signature));
    check_meets(&peer, &first);
    CHECK(believed(&first, signature));
    side_free(&first);
    side_free(&second);
    side_free(&third);
    side_free(&peer);
}

// Writes a voucher by which `leaf` is a master that signs with `signer`.
static size_t forge(const struct issued *leaf, X509 *between, const struct ed25519 *signer,
                    uint8_t out[CERTIFICATES_VOUCHER_BYTES]) {
    uint8_t text[13 + ED25519_KEY] = "pccl signer 1", *to;
    size_t length = CERTIFICATES_VOUCHER_BYTES - ED25519_KEY - 2;
    memcpy(text + 13, ed25519_public(signer), ED25519_KEY);
    memcpy(out, ed25519_public(signer), ED25519_KEY);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    REQUIRE(EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, leaf->key) == 1);
    REQUIRE(EVP_DigestSign(context, out + ED25519_KEY + 2, &length, text, sizeof text) == 1);
    EVP_MD_CTX_free(context);
    out[ED25519_KEY] = (uint8_t)length;
    out[ED25519_KEY + 1] = (uint8_t)(length >> 8);
    to = out + ED25519_KEY + 2 + length;
    REQUIRE(i2d_X509(leaf->certificate, &to) > 0 && (between == NULL || i2d_X509(between, &to) > 0));
    return (size_t)(to - out);
}

// Whether a master believes this voucher from a peer. The peer is connected in any case.
static bool takes(const uint8_t *voucher, size_t length, const uint8_t signature[ED25519_SIGNATURE]) {
    struct side master = side_with(CERTIFICATE_MASTER_URI, TRANSPORT_MASTER);
    struct side peer = side_with(CERTIFICATE_PEER_URI, TRANSPORT_PEER);
    struct tls_context *context = (struct tls_context *)(void *)peer.context;
    context->voucher = malloc(length + 1);
    memcpy(context->voucher, voucher, length);
    context->voucher_bytes = length;
    check_meets(&peer, &master);
    bool taken = believed(&master, signature);
    side_free(&master);
    side_free(&peer);
    return taken;
}

static void test_forged_vouchers(void) {
    uint8_t voucher[CERTIFICATES_VOUCHER_BYTES], signature[ED25519_SIGNATURE];
    struct ed25519 *signer = ed25519_new();
    REQUIRE(ed25519_sign(signer, epoch, sizeof epoch, signature));
    struct issued between = certificate_issue(&authority, "EC", NULL, true, -CERTIFICATE_HOUR, CERTIFICATE_HOUR);
    struct {
        const char *name;
        struct issued leaf;
        bool taken;
    } rows[] = {
        {"of a master", certificate_leaf(&authority, CERTIFICATE_MASTER_URI), true},
        {"of a master with both roles", certificate_leaf(&authority, BOTH_URIS), true},
        {"of a master whose certificate has expired since",
         certificate_issue(&authority, "EC", CERTIFICATE_MASTER_URI, false, -2L * CERTIFICATE_HOUR, -CERTIFICATE_HOUR),
         true},
        {"of a master of another authority between", certificate_leaf(&between, CERTIFICATE_MASTER_URI), true},
        {"of a peer", certificate_leaf(&authority, CERTIFICATE_PEER_URI), false},
        {"of a master of another run", certificate_leaf(&authority, "spiffe://test/other/pccl/master"), false},
        {"of a stranger", certificate_leaf(&stranger, CERTIFICATE_MASTER_URI), false},
        {"of nobody", certificate_issue(NULL, "EC", CERTIFICATE_MASTER_URI, false, -CERTIFICATE_HOUR, CERTIFICATE_HOUR),
         false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        bool chained = X509_check_issued(between.certificate, rows[i].leaf.certificate) == X509_V_OK;
        size_t length = forge(&rows[i].leaf, chained ? between.certificate : NULL, signer, voucher);
        CHECK_EQ(takes(voucher, length, signature), rows[i].taken);
    }
    size_t length = forge(&rows[0].leaf, NULL, signer, voucher);
    for (size_t at = 0; at < length; at += 1 + at / 8) {
        check_case("byte %zu of %zu changed", at, length);
        voucher[at] ^= 0x11;
        CHECK(!takes(voucher, length, signature));
        voucher[at] ^= 0x11;
        check_case("cut to %zu of %zu", at, length);
        CHECK(!takes(voucher, at, signature));
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) certificate_free(&rows[i].leaf);
    certificate_free(&between);
    ed25519_free(signer);
}

// Signatures for a relay: of a process of its run, whose chain ends at an authority of the relay, for one hash alone.
static void test_signatures(void) {
    X509 *const one[] = {authority.certificate, NULL}, *const two[] = {stranger.certificate, authority.certificate,
                                                                       NULL};
    struct issued between = certificate_issue(&authority, "EC", NULL, true, -CERTIFICATE_HOUR, CERTIFICATE_HOUR);
    struct {
        const char *name;
        struct issued leaf;
        X509 *between;
        X509 *const *trusts;
        bool good;
    } rows[] = {
        {"a peer", certificate_leaf(&authority, CERTIFICATE_PEER_URI), NULL, one, true},
        {"a master, with an authority between", certificate_leaf(&between, CERTIFICATE_MASTER_URI), between.certificate,
         one, true},
        {"without the authority between", certificate_leaf(&between, CERTIFICATE_PEER_URI), NULL, one, false},
        {"another run", certificate_leaf(&authority, OTHER_RUN), NULL, one, false},
        {"another authority", certificate_leaf(&stranger, CERTIFICATE_PEER_URI), NULL, two, false},
    };
    struct side relay = side_with(CERTIFICATE_PEER_URI, TRANSPORT_OBSERVER);
    struct certificates *checks = keys_certificates(relay.context->options.keys);
    const uint8_t hash[SHA256_BYTES] = {1}, other[SHA256_BYTES] = {2};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t bytes[CERTIFICATES_VOUCHER_BYTES];
        check_case("%s", rows[i].name);
        struct side peer = side_of(&rows[i].leaf, rows[i].between, rows[i].trusts, TRANSPORT_OBSERVER);
        size_t length = certificates_sign(keys_certificates(peer.context->options.keys), hash, bytes);
        REQUIRE(length > 0);
        CHECK_EQ(certificates_signed(checks, hash, bytes, length), rows[i].good);
        CHECK(!certificates_signed(checks, other, bytes, length));
        memcpy(bytes, other, sizeof other); // says that it is of that hash
        CHECK(!certificates_signed(checks, other, bytes, length));
        for (size_t cut = 0; cut < length; cut += 7) CHECK(!certificates_signed(checks, hash, bytes, cut));
        side_free(&peer);
        certificate_free(&rows[i].leaf);
    }
    side_free(&relay);
    certificate_free(&between);
}

int main(void) {
    authority = certificate_authority();
    stranger = certificate_authority();
    test_files();
    test_certificate_of_its_own();
    test_parties();
    test_wrong_roles();
    test_authorities();
    test_usages();
    test_secrets();
    test_renewal();
    test_renewal_that_does_not_serve();
    test_takeover();
    test_forged_vouchers();
    test_signatures();
    certificate_free(&authority);
    certificate_free(&stranger);
    return check_status();
}

#endif
