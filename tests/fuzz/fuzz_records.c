// TLS records after the handshake (net/tls_records), from somebody who has the keys: the input is a list of records of
// any type and content, which are encrypted as they should be. Whatever comes, the receiver gets the bytes of the
// records with data, in order, or an error for good; and more than 32 records in a row without data end the stream.
#include "net/tls_private.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "unit/key_files.h"

#ifdef PCCL_HAVE_TLS

enum { KEY = 16, IV = 12, TAG = 16, SECRET = 32, CONTENT = 1024, IDLE_MOST = 32, DATA = 23, HANDSHAKE = 22 };

static struct transport_context *contexts[2]; // a peer, and a master
static uint8_t traffic_secret[SECRET];        // of what the peer sends

// Keys of the sender.
struct sender {
    uint8_t secret[SECRET];
    uint64_t sequence;
};

static void note_secret(const SSL *ssl, const char *line) {
    static const char label[] = "CLIENT_TRAFFIC_SECRET_0 ";
    (void)ssl;
    if (strncmp(line, label, sizeof label - 1) != 0) return;
    const char *hex = strrchr(line, ' ') + 1;
    for (size_t i = 0; i < SECRET; i++) {
        unsigned byte;
        MUST(sscanf(hex + 2 * i, "%2x", &byte) == 1);
        traffic_secret[i] = (uint8_t)byte;
    }
}

static void make_contexts(void) {
    if (contexts[0] != NULL) return;
    for (int i = 0; i < 2; i++) {
        struct keys *keys = key_files_load(i == 1, 1, 1, 0);
        struct transport_options options = {.keys = keys, .party = i == 1 ? TRANSPORT_MASTER : TRANSPORT_PEER};
        contexts[i] = tls_context_new(&options);
        keys_release(keys);
        MUST(contexts[i] != NULL);
    }
    SSL_CTX_set_keylog_callback(((struct tls_context *)(void *)contexts[0])->ssl, note_secret);
}

// HKDF-Expand-Label of RFC 8446, without a context.
static void expand(const uint8_t secret[SECRET], const char *label, uint8_t *out, size_t length) {
    uint8_t info[64] = {0, (uint8_t)length, (uint8_t)(6 + strlen(label))};
    size_t at = 3 + (size_t)snprintf((char *)info + 3, sizeof info - 3, "tls13 %s", label) + 1;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, NULL);
    MUST(context != NULL && EVP_PKEY_derive_init(context) == 1 &&
         EVP_PKEY_CTX_set_hkdf_mode(context, EVP_PKEY_HKDEF_MODE_EXPAND_ONLY) == 1 &&
         EVP_PKEY_CTX_set_hkdf_md(context, EVP_sha256()) == 1 &&
         EVP_PKEY_CTX_set1_hkdf_key(context, secret, SECRET) == 1 &&
         EVP_PKEY_CTX_add1_hkdf_info(context, info, (int)at) == 1 && EVP_PKEY_derive(context, out, &length) == 1);
    EVP_PKEY_CTX_free(context);
}

// Encrypts a record whose content ends with its type, and returns its length.
static size_t seal(struct sender *sender, const uint8_t *content, size_t length, uint8_t *out) {
    uint8_t key[KEY], iv[IV];
    int done;
    expand(sender->secret, "key", key, sizeof key);
    expand(sender->secret, "iv", iv, sizeof iv);
    for (size_t i = 0; i < 8; i++) iv[IV - 1 - i] ^= (uint8_t)(sender->sequence >> (8 * i));
    sender->sequence++;
    memcpy(out, (const uint8_t[]){23, 3, 3, (uint8_t)((length + TAG) >> 8), (uint8_t)(length + TAG)}, 5);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    MUST(context != NULL && EVP_EncryptInit_ex(context, EVP_aes_128_gcm(), NULL, key, iv) == 1 &&
         EVP_EncryptUpdate(context, NULL, &done, out, 5) == 1 &&
         EVP_EncryptUpdate(context, out + 5, &done, content, (int)length) == 1 &&
         EVP_EncryptFinal_ex(context, out + 5 + length, &done) == 1 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, TAG, out + 5 + length) == 1);
    EVP_CIPHER_CTX_free(context);
    return 5 + length + TAG;
}

struct model {
    uint8_t data[1 << 16]; // that was sent, as the receiver has to get it
    size_t sent, received;
    uint32_t idle; // records without data since the last with some
    bool failed;
};

static size_t write_content(struct fuzz *in, struct model *model, uint8_t content[CONTENT], bool *updates) {
    static const uint8_t types[] = {DATA, HANDSHAKE, 21, 20, DATA};
    uint8_t what = fuzz_u8(in), type = types[what % 5];
    size_t length = 0;
    *updates = false;
    if (what % 8 == 7) { // a KeyUpdate
        memcpy(content, (const uint8_t[]){24, 0, 0, 1, what >> 7}, length = 5);
        type = HANDSHAKE;
        *updates = true;
    } else if (type == DATA) {
        length = what >> 6 == 0 ? 0 : fuzz_u8(in);
        for (size_t i = 0; i < length; i++) content[i] = (uint8_t)(model->sent + i);
        memcpy(model->data + model->sent, content, length);
        model->sent += length;
    } else {
        length = fuzz_u8(in) % 64;
        fuzz_bytes(in, content, length);
    }
    model->idle = type == DATA && length > 0 ? 0 : model->idle + 1;
    content[length++] = type;
    size_t padding = what >> 5 == 3 ? fuzz_u8(in) : 0;
    memset(content + length, 0, padding);
    return length + padding;
}

static void receive(struct transport *stream, struct model *model) {
    uint8_t bytes[512];
    ptrdiff_t got;
    while ((got = transport_receive(stream, bytes, sizeof bytes)) > 0) {
        MUST(!model->failed && model->received + (size_t)got <= model->sent);
        MUST(memcmp(bytes, model->data + model->received, (size_t)got) == 0);
        model->received += (size_t)got;
    }
    MUST(!model->failed || got != -EAGAIN);
    MUST(got != -EAGAIN || model->idle <= IDLE_MOST);
    model->failed |= got != -EAGAIN;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct model model;
    struct fuzz in = {data, data + size};
    struct transport *ends[2];
    int pair[2];
    make_contexts();
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    for (int i = 0; i < 2; i++) MUST((ends[i] = transport_new(contexts[i], pair[i], (enum transport_role)i)) != NULL);
    int results[2] = {-EAGAIN, -EAGAIN};
    for (int turn = 0; turn < 8; turn++)
        if (results[turn % 2] == -EAGAIN) results[turn % 2] = transport_step(ends[turn % 2]);
    MUST(results[0] == 0 && results[1] == 0);
    struct sender sender = {.sequence = 1}; // the proof of the peer was its first record
    memcpy(sender.secret, traffic_secret, SECRET);
    model = (struct model){0};
    struct fuzz_work before = fuzz_work_begin();
    for (int count = 1; fuzz_more(&in) && model.sent + 256 < sizeof model.data; count++) {
        uint8_t content[CONTENT], record[CONTENT + 64];
        bool updates;
        size_t length = seal(&sender, content, write_content(&in, &model, content, &updates), record);
        if (updates) {
            uint8_t next[SECRET];
            expand(sender.secret, "traffic upd", next, sizeof next);
            memcpy(sender.secret, next, SECRET);
            sender.sequence = 0;
        }
        MUST(send(pair[0], record, length, MSG_NOSIGNAL) == (ssize_t)length);
        if (count % 64 == 0 || fuzz_u8(&in) % 4 == 1) receive(ends[1], &model);
    }
    receive(ends[1], &model);
    fuzz_work_end(&before, size);
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
    return 0;
}

#else

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return data == NULL && size > 0; }

#endif
