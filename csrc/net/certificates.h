// Certificates (X.509) in place of the shared secret of a run. docs/security.md has the form of the roles.
//
// A role is a URI among the subject alternative names: RUN/pccl/master or RUN/pccl/peer. RUN names the run. A
// certificate names one run, and two sides whose certificates name different runs refuse each other. Each side verifies
// the other one's chain; host names do not matter.
//
// A master makes a key that signs epochs, and its certificate signs the public half: that is its statement. A peer
// keeps statement and chain as a voucher, and shows it to the master that takes its run over. So that master knows by
// whose keys the epochs of its members may be signed, although the master that signed them is gone.
//
// Exists only with OpenSSL (PCCL_HAVE_TLS).
#ifndef PCCL_NET_CERTIFICATES_H
#define PCCL_NET_CERTIFICATES_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/ed25519.h"

enum certificates_role { CERTIFICATES_MASTER = 1, CERTIFICATES_PEER = 2 }; // bits

enum {
    CERTIFICATES_REASON_BYTES = 512,
    CERTIFICATES_VOUCHER_BYTES = 12 * 1024, // of a statement or voucher, at most
};

// Files in PEM: the certificate and those of authorities between it and `ca`; its private key; trusted authorities.
struct certificates_paths {
    const char *cert, *key, *ca;
};

struct certificates; // any thread may use it

// Reads the files. NULL, and why in `reason`: what is wrong with which file, and what to do.
struct certificates *certificates_load(const struct certificates_paths *paths, char reason[CERTIFICATES_REASON_BYTES]);
void certificates_free(struct certificates *certificates); // NULL is allowed
// The roles of the certificate when it was loaded; not 0.
unsigned certificates_own_roles(const struct certificates *certificates);

// Makes `ssl` show the certificate and trust the authorities of the files as they are now: reads them again if they
// have changed. What was read before stays if they cannot be used, or if the certificate has another run or fewer
// roles; a line of the log says why. False: no memory.
bool certificates_use(struct certificates *certificates, SSL *ssl);
// The roles of the other side's certificate in the run of this side's. 0: none, and `reason` says why.
unsigned certificates_roles(SSL *ssl, const X509 *other, char reason[CERTIFICATES_REASON_BYTES]);
// Writes why a certificate was not verified.
void certificates_problem(X509_STORE_CTX *context, char reason[CERTIFICATES_REASON_BYTES]);

// Writes the statement of this side's certificate about a key that signs epochs. Returns its length; 0: no memory.
size_t certificates_state(SSL *ssl, const uint8_t signer[ED25519_KEY], uint8_t out[CERTIFICATES_VOUCHER_BYTES]);
// Whether the other side's certificate has made this statement.
bool certificates_stated(SSL *ssl, const uint8_t signer[ED25519_KEY], const uint8_t *statement, size_t length);
// Writes a voucher for a signer whose statement has come from the other side, which this one has dialled. Returns its
// length; 0: it is too long, or there is no memory.
size_t certificates_vouch(SSL *ssl, const uint8_t signer[ED25519_KEY], const uint8_t *statement, size_t length,
                          uint8_t out[CERTIFICATES_VOUCHER_BYTES]);

// Takes epochs with this key's signature for those of a master.
void certificates_trust(struct certificates *certificates, const uint8_t signer[ED25519_KEY]);
// The same for the signer of a voucher, if a master of the run of this side's certificate has made its statement. The
// dates of the master's certificate do not count: an epoch may be older. False: the voucher is wrong.
bool certificates_believe(struct certificates *certificates, SSL *ssl, const uint8_t *voucher, size_t length);
// Whether one of the trusted signers has signed these bytes.
bool certificates_verify(struct certificates *certificates, const void *bytes, size_t length,
                         const uint8_t signature[ED25519_SIGNATURE]);

#endif
