// Shared by the two files of net/tls: net/tls has contexts and the handshake, net/tls_records carries bytes.
#ifndef PCCL_NET_TLS_PRIVATE_H
#define PCCL_NET_TLS_PRIVATE_H

#include <openssl/ssl.h>
#include <pthread.h>

#include "net/keys.h"
#include "net/tls.h"

enum {
    TLS_RECORD_BYTES = 16 * 1024, // of plain text, at most
    TLS_IN_BYTES = 9 * 1024,      // two records of 4 KiB: small operations take no more system calls than in plain
    // A whole record that the kernel did not take, and short messages of the receiving thread.
    TLS_OUT_BYTES = TLS_RECORD_BYTES + 2048,
    TLS_TURN_BYTES = 4 * TLS_RECORD_BYTES,          // with the lock held
    TLS_BATCH_BYTES = TLS_TURN_BYTES + 1024 + 2048, // of the records of a turn, and what follows them
    TLS_CHAIN_BYTES = 32 * 1024,                    // of the other side's certificates, which take time to verify
    TLS_PROOF_BYTES = 8 + ED25519_KEY + ED25519_SIGNATURE,
    TLS_REASON_BYTES = KEYS_REASON_BYTES,
};

struct tls_context {
    struct transport_context context; // first; holds the keys of its options
    SSL_CTX *ssl;
    BIO_METHOD *bio;
    struct ed25519 *identity;  // owned; NULL: a master
    const struct ed25519 *key; // that signs
    struct wire_id id;
    uint32_t renewal;
    _Atomic uint32_t secret; // index of the one that opened the last handshake
    pthread_mutex_t lock;    // of what follows
    uint8_t *voucher;        // for the master that signed this peer's epoch; NULL: none
    size_t voucher_bytes;
};

enum tls_phase {
    TLS_CONNECTS, // or waits for the first byte
    TLS_SHAKES_HANDS,
    TLS_AWAITS_PROOF,
    TLS_OPEN,
    TLS_FAILED,
};

struct tls {
    struct transport stream; // first
    // Guards all of the following once the handshake is over: one thread sends, another one receives, and OpenSSL
    // permits one at a time. Held for at most 64 KiB, encrypted or not.
    pthread_mutex_t lock;
    SSL *ssl; // NULL until the first byte has come; the lock exists with it
    enum tls_phase phase;
    uint32_t forks; // of the process that made `ssl`
    int send_error, receive_error;

    // the handshake's
    struct wire_address address; // of a dialler; family 0: it cannot connect again
    uint32_t secret;             // index of the one in use
    uint32_t tried;              // secrets so far
    struct wire_run run;         // that the identity names which the other side has used
    uint32_t identities;         // that it has named
    bool proved;                 // an acceptor has sent its proof
    uint8_t proof[TLS_PROOF_BYTES];
    size_t proof_bytes; // received, with those of `more`
    // With certificates:
    uint8_t *more;  // what follows the proof: a statement of a master, which stays, or the voucher of a peer
    unsigned roles; // of the other side's certificate; 0: it was not verified
    char reason[TLS_REASON_BYTES];

    // Encrypted bytes that came with others.
    uint8_t in[TLS_IN_BYTES];
    size_t in_begin, in_end;
    size_t taken; // from the kernel, in this call
    bool emptied; // the kernel had no more, in this call
    bool blocked; // OpenSSL asked for bytes that have not come
    bool ended;   // the socket has

    // Encrypted bytes that the kernel did not take, or that wait for the other records of a turn; NULL: none.
    uint8_t *out;
    size_t out_begin, out_end, out_room;
    bool held;    // the last byte of them, of the plain text, was left out of the count
    bool follows; // another record of the same call follows
    uint32_t records;
    uint32_t
        idle; // records received since the last one with data: KeyUpdates, alerts, empty ones, those of a handshake
};

static inline struct tls *tls_of(struct transport *stream) { return (struct tls *)(void *)stream; }

static inline struct tls_context *tls_context_of(const struct tls *tls) {
    return (struct tls_context *)(void *)tls->stream.context;
}

// The certificates of a stream; NULL: it uses secrets.
static inline struct certificates *tls_certificates(const struct tls *tls) {
    return keys_certificates(tls->stream.context->options.keys);
}

// The functions of the BIO under OpenSSL. NULL: no memory.
BIO_METHOD *tls_bio(void);
// For SSL_CTX_set_msg_callback: counts the records that arrive.
void tls_count_record(int sent, int version, int type, const void *bytes, size_t length, SSL *ssl, void *argument);
// Sends what waits. 0, -EAGAIN or -errno.
int tls_flush(struct tls *tls);
// Encrypts one record and sends it, or keeps what the kernel does not take. 0 or -errno.
int tls_write(struct tls *tls, const void *bytes, size_t length);
// Decrypts some bytes: as recvv, which leaves `buffered` alone.
ptrdiff_t tls_read(struct tls *tls, void *bytes, size_t capacity);
// Returns the error that OpenSSL has just reported for a call that was not blocked, and empties its queue down to the
// mark that the caller has set.
int tls_error(struct tls *tls);

ptrdiff_t tls_sendv(struct transport *stream, const struct iovec *parts, int count);
ptrdiff_t tls_recvv(struct transport *stream, const struct iovec *parts, int count);
void tls_finish(struct transport *stream);

#endif
