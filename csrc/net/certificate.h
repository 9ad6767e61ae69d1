// The rules for one certificate: its dates, its run and roles, and whether TLS can use it.
#ifndef PCCL_NET_CERTIFICATE_H
#define PCCL_NET_CERTIFICATE_H

#include <openssl/x509.h>
#include <stdbool.h>

#include "net/keys.h"

enum { CERTIFICATE_WHEN_BYTES = 40 };

// A certificate with its private key, and those of authorities behind it. All borrowed.
struct certificate_identity {
    X509 *leaf;
    EVP_PKEY *key;
    STACK_OF(X509) * chain;
};

void certificate_write_when(const ASN1_TIME *time, char out[CERTIFICATE_WHEN_BYTES]);
// Writes that the certificate is out of its dates. False: it is not.
bool certificate_out_of_date(const X509 *certificate, const char *whose, char reason[KEYS_REASON_BYTES]);
// Returns the roles of one certificate in the run of the other one. 0: none, and `reason` says why.
unsigned certificate_roles(const X509 *own, const X509 *other, char reason[KEYS_REASON_BYTES]);
bool certificate_names_two_runs(const X509 *certificate);
// Returns why processes cannot dial and accept with it, such as a kind of key that TLS 1.3 does not have, or usages
// that do not suffice; NULL: they can. Both ends of a handshake in memory show it, so that no other process has to
// refuse it.
const char *certificate_problem(const struct certificate_identity *identity);

#endif
