// Signs what decides who belongs to a run, so that its members can prove it to another master. Pure: the owner gives
// the functions that sign and verify.
//
// Signed are the run, the generation, the number and the quorum of an epoch, and the id, join number, group and address
// of each member. Everything else that a RESUME says is the word of the member that sends it.
#ifndef PCCL_MASTER_SIGNER_H
#define PCCL_MASTER_SIGNER_H

#include "net/wire_control.h"

struct signer {
    void *context;
    // False: memory was refused.
    bool (*sign)(void *context, const void *bytes, size_t length, uint8_t signature[WIRE_SIGNATURE_BYTES]);
    // Whether a master of the run has signed these bytes.
    bool (*verify)(void *context, const void *bytes, size_t length, const uint8_t signature[WIRE_SIGNATURE_BYTES]);
};

// Signs the epoch of `message`, which goes out with `header`. Does nothing without functions: the run has no keys.
// False: memory was refused.
bool signer_sign(const struct signer *signer, struct wire_header header, struct wire_epoch_commit *message);
// Whether a master of the run has signed the epoch that a member brings. True without functions, and for a newcomer.
bool signer_verify(const struct signer *signer, uint64_t run, const struct wire_resume *resume);

#endif
