#define _GNU_SOURCE
#ifdef PCCL_HAVE_TLS

#include <errno.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "net/socket.h"
#include "net/tls_private.h"

enum {
    RECORD_HEADER_BYTES = 5,
    LONG_BYTES = 4096, // what is awaited is the body of a record that is followed by others
    IDLE_MOST = 32,    // records without data in a row
};

// ---- the BIO: between OpenSSL and the socket ----

// Takes the bytes that have come already. If there are none, the kernel writes to where OpenSSL wants them, and what
// follows goes into `in`: of a large record the next header alone, so that few bytes are copied twice. A turn takes a
// bounded number of bytes from the kernel, whatever they decrypt to.
static int bio_read(BIO *bio, char *bytes, size_t capacity, size_t *got) {
    struct tls *tls = BIO_get_data(bio);
    size_t there = tls->in_end - tls->in_begin;
    BIO_clear_retry_flags(bio);
    if (tls->idle > IDLE_MOST) {
        tls->receive_error = -ENOMSG;
        return 0;
    }
    if (there > 0) {
        *got = there < capacity ? there : capacity;
        memcpy(bytes, tls->in + tls->in_begin, *got);
        tls->in_begin += *got;
        return 1;
    }
    struct iovec parts[2] = {{bytes, capacity},
                             {tls->in, capacity >= LONG_BYTES ? RECORD_HEADER_BYTES : sizeof tls->in}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t now = -1;
    errno = EAGAIN;
    bool asks = !tls->emptied && tls->taken < TLS_BATCH_BYTES;
    if (asks) do
            now = recvmsg(tls->stream.fd, &message, MSG_DONTWAIT);
        while (now < 0 && errno == EINTR);
    if (asks && (now < 0 || (size_t)now < capacity + parts[1].iov_len)) tls->emptied = true;
    if (now < 0 && errno == EAGAIN) {
        tls->blocked = true;
        BIO_set_retry_read(bio);
        return 0;
    }
    if (now < 0) tls->receive_error = -errno;
    if (now == 0) tls->ended = true;
    if (now <= 0) return 0;
    tls->taken += (size_t)now;
    *got = (size_t)now < capacity ? (size_t)now : capacity;
    tls->in_begin = 0;
    tls->in_end = (size_t)now - *got;
    return 1;
}

// Makes the room for bytes that wait. False: no memory.
static bool make_room(struct tls *tls, size_t bytes) {
    tls->out = malloc(bytes);
    tls->out_room = bytes;
    tls->out_begin = tls->out_end = 0;
    return tls->out != NULL;
}

// Keeps encrypted bytes for later. False: there is no room, or no memory.
static bool keep(struct tls *tls, const char *bytes, size_t length) {
    if (tls->out == NULL && !make_room(tls, TLS_OUT_BYTES)) return false;
    if (length > tls->out_room - tls->out_end) return false;
    memcpy(tls->out + tls->out_end, bytes, length);
    tls->out_end += length;
    return true;
}

static ssize_t send_now(const struct tls *tls, const void *bytes, size_t length, int flags) {
    ssize_t sent;
    do sent = send(tls->stream.fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL | flags);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}

// Takes all, so that OpenSSL never has to repeat a call with the same bytes.
static int bio_write(BIO *bio, const char *bytes, size_t length, size_t *taken) {
    struct tls *tls = BIO_get_data(bio);
    ssize_t sent = 0;
    BIO_clear_retry_flags(bio);
    if (tls->out == NULL) sent = send_now(tls, bytes, length, tls->follows ? MSG_MORE : 0);
    if (sent == -EAGAIN) sent = 0;
    if (sent >= 0 && (size_t)sent < length && !keep(tls, bytes + sent, length - (size_t)sent)) sent = -ENOBUFS;
    if (sent < 0) {
        tls->send_error = (int)sent;
        return 0;
    }
    *taken = length;
    return 1;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    (void)number, (void)pointer;
    if (command == BIO_CTRL_EOF) return ((struct tls *)BIO_get_data(bio))->ended;
    return command == BIO_CTRL_FLUSH;
}

BIO_METHOD *tls_bio(void) {
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "pccl");
    if (method == NULL) return NULL;
    BIO_meth_set_read_ex(method, bio_read);
    BIO_meth_set_write_ex(method, bio_write);
    BIO_meth_set_ctrl(method, bio_control);
    return method;
}

void tls_count_record(int sent, int version, int type, const void *bytes, size_t length, SSL *ssl, void *argument) {
    (void)version, (void)bytes, (void)length, (void)argument;
    if (!sent && type == SSL3_RT_INNER_CONTENT_TYPE) ((struct tls *)SSL_get_app_data(ssl))->idle++;
}

// The other side refuses this one's certificate. In TLS 1.3 a dialler hears that after its part of the handshake.
static int refused_by_alert(struct tls *tls, int reason) {
    snprintf(tls->reason, sizeof tls->reason, "it refuses the certificate of this process: %s",
             reason == SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED ? "the certificate has expired"
             : reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA        ? "it does not trust the authority that issued it"
                                                             : "its log says why");
    return -EKEYREJECTED;
}

static bool is_alert(int reason) { return reason >= SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256; }

int tls_error(struct tls *tls) {
    unsigned long code = ERR_peek_last_error();
    int reason = ERR_GET_REASON(code);
    ERR_pop_to_mark();
    if (tls->receive_error != 0) return tls->receive_error;
    bool handshake = tls->phase == TLS_SHAKES_HANDS;
    if (tls->ended) return handshake && tls->stream.role == TRANSPORT_DIALS ? -ECONNABORTED : -ECONNRESET;
    if (tls->send_error != 0) return tls->send_error;
    if (code == 0) return -ECONNRESET; // an alert has ended the stream before
    if (ERR_GET_LIB(code) != ERR_LIB_SSL) return -ENOMEM;
    bool opens = handshake || tls->phase == TLS_AWAITS_PROOF;
    if (is_alert(reason) && opens && tls_certificates(tls) != NULL) return refused_by_alert(tls, reason);
    if (!handshake) return -EBADMSG;
    return reason == SSL_R_WRONG_VERSION_NUMBER ? -EPROTOTYPE : -EKEYREJECTED;
}

// ---- sending ----

int tls_flush(struct tls *tls) {
    while (tls->out != NULL) {
        ssize_t sent = send_now(tls, tls->out + tls->out_begin, tls->out_end - tls->out_begin, 0);
        if (sent < 0) return (int)sent;
        tls->out_begin += (size_t)sent;
        if (tls->out_begin < tls->out_end) continue;
        free(tls->out);
        tls->out = NULL;
    }
    return 0;
}

int tls_write(struct tls *tls, const void *bytes, size_t length) {
    size_t written;
    ERR_set_mark();
    if (++tls->records == tls_context_of(tls)->renewal) {
        tls->records = 0;
        SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
    }
    int done = SSL_write_ex(tls->ssl, bytes, length, &written);
    if (done == 1) {
        ERR_pop_to_mark();
        return tls->send_error;
    }
    int error = tls_error(tls);
    return tls->send_error = error;
}

// A place in the parts of a message.
struct place {
    const struct iovec *part;
    size_t offset;
};

static void advance(struct place *place, size_t length) {
    for (place->offset += length; place->offset > 0 && place->offset >= place->part->iov_len; place->part++)
        place->offset -= place->part->iov_len;
}

// Returns the next `length` bytes, in one piece. Uses `room` if they lie in several parts.
static const void *gather(struct place place, uint8_t *room, size_t length) {
    if (place.part->iov_len - place.offset >= length) return (const uint8_t *)place.part->iov_base + place.offset;
    for (size_t done = 0; done < length;) {
        size_t left = place.part->iov_len - place.offset, now = left < length - done ? left : length - done;
        if (now > 0) memcpy(room + done, (const uint8_t *)place.part->iov_base + place.offset, now);
        done += now;
        place = (struct place){place.part + 1, 0};
    }
    return room;
}

// Several records are sent at once. After the kernel has refused some, one at a time: then a record waits at most.
static ptrdiff_t send_some(struct tls *tls, const struct iovec *parts, int count) {
    uint8_t room[TLS_RECORD_BYTES];
    struct place place = {parts, 0};
    size_t total = 0, taken = 0;
    bool waited = tls->out != NULL;
    int error = tls_flush(tls);
    if (error != 0) return error;
    for (int i = 0; i < count; i++) total += parts[i].iov_len;
    if (total > TLS_TURN_BYTES) total = TLS_TURN_BYTES;
    // A byte alone that waits here could not be told of, and who was told nothing may send something else instead.
    if (total == 1 && !tls->held && !transport_has_room(&tls->stream)) return -EAGAIN;
    if (total > 0 && tls->held) {
        tls->held = false;
        advance(&place, taken = 1);
    }
    bool batch = total > TLS_RECORD_BYTES && !waited && make_room(tls, TLS_BATCH_BYTES);
    while (taken < total && (batch || tls->out == NULL)) {
        size_t length = total - taken < TLS_RECORD_BYTES ? total - taken : TLS_RECORD_BYTES;
        tls->follows = taken + length < total;
        error = tls_write(tls, gather(place, room, length), length);
        if (error != 0) return error;
        advance(&place, length);
        taken += length;
    }
    tls->follows = false;
    error = batch ? tls_flush(tls) : 0;
    if (error != 0 && error != -EAGAIN) return error;
    tls->held = tls->out != NULL;
    taken -= tls->held;
    return taken > 0 ? (ptrdiff_t)taken : -EAGAIN;
}

ptrdiff_t tls_sendv(struct transport *stream, const struct iovec *parts, int count) {
    struct tls *tls = tls_of(stream);
    if (tls->ssl == NULL) return -ENOTCONN;
    pthread_mutex_lock(&tls->lock);
    ptrdiff_t sent = tls->phase != TLS_OPEN ? -ENOTCONN
                     : tls->send_error != 0 ? tls->send_error
                                            : send_some(tls, parts, count);
    if (sent < 0 && sent != -EAGAIN) tls->send_error = (int)sent;
    pthread_mutex_unlock(&tls->lock);
    return sent;
}

void tls_finish(struct transport *stream) {
    struct tls *tls = tls_of(stream);
    if (tls->ssl != NULL) {
        pthread_mutex_lock(&tls->lock);
        ERR_set_mark();
        if (tls->phase == TLS_OPEN && tls->send_error == 0 && tls_flush(tls) == 0) SSL_shutdown(tls->ssl);
        ERR_pop_to_mark();
        pthread_mutex_unlock(&tls->lock);
    }
    shutdown(stream->fd, SHUT_WR);
}

// ---- receiving ----

ptrdiff_t tls_read(struct tls *tls, void *bytes, size_t capacity) {
    size_t got;
    tls->blocked = false;
    ERR_set_mark();
    if (SSL_read_ex(tls->ssl, bytes, capacity, &got) == 1) {
        ERR_pop_to_mark();
        tls->idle = 0;
        return (ptrdiff_t)got;
    }
    bool refused = tls->phase == TLS_AWAITS_PROOF && is_alert(ERR_GET_REASON(ERR_peek_last_error()));
    if (tls->blocked || (!refused && (SSL_get_shutdown(tls->ssl) & SSL_RECEIVED_SHUTDOWN) != 0)) {
        ERR_pop_to_mark();
        return tls->blocked ? -EAGAIN : 0;
    }
    return tls_error(tls);
}

static ptrdiff_t receive_some(struct tls *tls, const struct iovec *parts, int count) {
    size_t total = 0;
    tls->taken = 0;
    tls->emptied = false;
    tls->stream.buffered = true;
    for (int i = 0; i < count; i++) {
        for (size_t at = 0; at < parts[i].iov_len;) {
            if (total >= TLS_TURN_BYTES) return (ptrdiff_t)total;
            ptrdiff_t got = tls_read(tls, (uint8_t *)parts[i].iov_base + at, parts[i].iov_len - at);
            if (got == -EAGAIN) tls->stream.buffered = !tls->emptied;
            if (got < 0 && got != -EAGAIN) tls->receive_error = (int)got;
            // The next call finds an end or an error again.
            if (got <= 0) return total > 0 ? (ptrdiff_t)total : got;
            at += (size_t)got;
            total += (size_t)got;
        }
    }
    tls->stream.buffered = SSL_pending(tls->ssl) > 0 || tls->in_begin < tls->in_end || !tls->emptied;
    return (ptrdiff_t)total;
}

ptrdiff_t tls_recvv(struct transport *stream, const struct iovec *parts, int count) {
    struct tls *tls = tls_of(stream);
    stream->buffered = false;
    if (tls->ssl == NULL) return -ENOTCONN;
    pthread_mutex_lock(&tls->lock);
    ptrdiff_t got = tls->phase != TLS_OPEN    ? -ENOTCONN
                    : tls->receive_error != 0 ? tls->receive_error
                                              : receive_some(tls, parts, count);
    pthread_mutex_unlock(&tls->lock);
    return got;
}

#endif
