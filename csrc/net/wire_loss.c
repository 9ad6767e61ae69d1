#include "net/wire_loss.h"

const char *wire_loss_name(uint8_t reason) {
    static const char *const names[] = {"unknown",  "died",    "silent", "unreachable",
                                        "expelled", "drained", "left",   "ended"};
    return names[reason];
}
