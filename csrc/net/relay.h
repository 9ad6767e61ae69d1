// The beginning of a stream that leads through a relay. Both ends dial it, and it joins the two that name the same
// link. From then on it copies bytes, and knows nothing of them: the ends shake hands through it.
//
//     peer:   "pccl relay?\n"                        at a member's port alone, which takes links, too
//     relay:  "pccl relay 2 " NONCE "\n"             32 hexadecimal digits
//     peer:   SELF " " OTHER " " INDEX " " PROOF " " PROOF " " LENGTH "\n"   ids of 32 digits, 8, 64, 64, 4
//             CERTIFICATE                            of LENGTH bytes
//     relay:  "+"                                    the other end is here
//
// A relay of `pccl relay` knows the keys of the run. A proof is the SHA-256 of the same words (SELF to INDEX) with the
// nonce before them and a key behind them, which is the SHA-256 of "pccl relay key" and a secret of the run: one proof
// for each secret, and 0 for none. With certificates CERTIFICATE is a signature of that hash with 0 as key, and the
// chain of the one who signed. With the secret of a named run (net/keys) it is the name of that run.
// A member knows the secret that the master gives to peers (WELCOME). It is the key of the first proof, or without
// keys the proof itself, as in LINK_HELLO.
#ifndef PCCL_NET_RELAY_H
#define PCCL_NET_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/keys.h"
#include "net/wire.h"

#define RELAY_QUESTION "pccl relay?\n"

enum {
    RELAY_QUESTION_BYTES = sizeof RELAY_QUESTION - 1,
    RELAY_GREETING_BYTES = 46,
    RELAY_HELLO_BYTES = 210,
    RELAY_NONCE_DIGITS = 32,
    RELAY_WORDS_BYTES = 74, // SELF to INDEX
    RELAY_PROOFS = 2,
    RELAY_SECRET_BYTES = 16, // of a run
    RELAY_CERTIFICATE_BYTES = 12 * 1024,
};

struct relay_hello {
    struct wire_id self, other;
    uint32_t index;
    enum relay_state { RELAY_CONNECTS, RELAY_GREETS, RELAY_WAITS, RELAY_JOINED } state;
    const struct keys *keys; // borrowed; NULL: none
    bool at_member;          // the relay is a member
    struct wire_address at;  // where it is dialled
    uint8_t secret[RELAY_SECRET_BYTES];
    uint8_t received; // of the greeting
    char greeting[RELAY_GREETING_BYTES];
};

// The next step is the first one on another connection.
static inline void relay_begin(struct relay_hello *hello) {
    hello->state = RELAY_CONNECTS;
    hello->received = 0;
}
// Makes the next step on a connection to a relay. 0: the other end is here. -EAGAIN: `awaits` (EPOLLIN or EPOLLOUT) is
// set. Else -errno.
int relay_step(struct relay_hello *hello, int fd, uint32_t *awaits);

// Returns why the relay is of no use after this error of a step, or -ETIMEDOUT. NULL: it does its part.
const char *relay_why(const struct relay_hello *hello, int error);

// ---- for both ends ----

// Writes `count` bytes as twice as many hexadecimal digits and a 0.
void relay_put_hex(char *out, const uint8_t *bytes, size_t count);
void relay_write_greeting(const uint8_t nonce[RELAY_NONCE_DIGITS / 2], char out[RELAY_GREETING_BYTES + 1]);
// The nonce in a greeting.
const char *relay_nonce(const char *greeting);
// The proof that a member of the run gives to another one. False: no memory.
bool relay_prove_run(const char *nonce, const char *words, const struct keys *keys,
                     const uint8_t secret[RELAY_SECRET_BYTES], uint8_t out[SHA256_BYTES]);
// The proof with secret number `index` of the keys, for a run; 0 if there is none. False: no memory, or the keys are
// confined to another run.
bool relay_prove_keys(const char *nonce, const char *words, const struct keys *keys, size_t index,
                      const struct wire_run *run, uint8_t out[SHA256_BYTES]);
// The hash that certificates sign. False: no memory.
bool relay_hash(const char *nonce, const char *words, uint8_t out[SHA256_BYTES]);

#endif
