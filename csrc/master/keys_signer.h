// Signs epochs with the master-key of a run (net/keys).
#ifndef PCCL_MASTER_KEYS_SIGNER_H
#define PCCL_MASTER_KEYS_SIGNER_H

#include "master/core.h"
#include "net/keys.h"

// From now on the master signs its epochs with these keys, and believes only those that they have signed. Borrows the
// keys, which are those of a master. NULL: does nothing.
void keys_sign_epochs(const struct keys *keys, struct master_core *core);

#endif
