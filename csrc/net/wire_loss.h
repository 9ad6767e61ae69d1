// Reasons of losses, as EPOCH tells them. See net/wire_control.h.
#ifndef PCCL_NET_WIRE_LOSS_H
#define PCCL_NET_WIRE_LOSS_H

#include "net/wire.h"

// Reason why a member was taken out of a run. The numbers are those of pccl_ext_loss.
enum wire_loss_reason {
    WIRE_LOSS_UNKNOWN,     // another master served the run then
    WIRE_LOSS_DIED,        // its connection to the master ended
    WIRE_LOSS_SILENT,      // it hangs, or nothing of it reaches the master
    WIRE_LOSS_UNREACHABLE, // its links to other members failed, or it lost this master
    WIRE_LOSS_EXPELLED,    // by the operator, or because it broke a rule
    WIRE_LOSS_DRAINED,     // the operator asked for it, and an update vote took it out
    WIRE_LOSS_LEFT,        // as it had announced
    WIRE_LOSS_ENDED,       // its program closed the communicator
};

// A member that the run has lost since the epoch before.
struct wire_gone {
    struct wire_id id;
    uint8_t reason; // wire_loss_reason
    char why[WIRE_MAX_WHY + 1];
};

// Returns "died", "silent" and so on.
const char *wire_loss_name(uint8_t reason);
// Returns whether the member is gone by a fault, rather than by a decision.
static inline bool wire_loss_is_failure(uint8_t reason) { return reason <= WIRE_LOSS_UNREACHABLE; }

#endif
