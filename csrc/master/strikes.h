// Hosts whose newcomers have failed to make their links: the members waited for those in vain, so from the second time
// on newcomers from there wait behind the others.
#ifndef PCCL_MASTER_STRIKES_H
#define PCCL_MASTER_STRIKES_H

#include <stdint.h>

#include "net/wire_control.h"

enum { STRIKES_MAX = 64 }; // hosts that are remembered; then the oldest is forgotten

struct strike {
    struct wire_address host; // any port
    uint32_t failures;        // 0: unused
    int64_t at_ns;            // of the last one
};

struct strikes {
    int64_t limit_ns; // of heartbeats: waits are told in these
    struct strike hosts[STRIKES_MAX];
};

void strikes_init(struct strikes *strikes, int64_t limit_ns);
void strikes_add(struct strikes *strikes, const struct wire_address *address, int64_t now_ns);     // one has failed
void strikes_forgive(struct strikes *strikes, const struct wire_address *address, int64_t now_ns); // one was admitted
// Until when newcomers from there are asked into no candidate while members wait; 0: they are.
int64_t strikes_until(struct strikes *strikes, const struct wire_address *address, int64_t now_ns);

#endif
