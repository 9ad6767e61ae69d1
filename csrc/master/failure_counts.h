// Hosts whose newcomers have failed to make their links: the members waited for those in vain, so from the second time
// on newcomers from there wait behind the others.
#ifndef PCCL_MASTER_FAILURE_COUNTS_H
#define PCCL_MASTER_FAILURE_COUNTS_H

#include <stdint.h>

#include "net/wire_control.h"

enum { FAILURE_COUNTS_MAX = 64 }; // hosts that are remembered; then the oldest is forgotten

struct failure_count {
    struct wire_address host; // any port
    uint32_t failures;        // 0: unused
    int64_t at_ns;            // of the last one
};

struct failure_counts {
    int64_t limit_ns; // of heartbeats: waits are told in these
    struct failure_count hosts[FAILURE_COUNTS_MAX];
};

void failure_counts_init(struct failure_counts *failure_counts, int64_t limit_ns);
void failure_counts_add(struct failure_counts *failure_counts, const struct wire_address *address,
                        int64_t now_ns); // one has failed
void failure_counts_forgive(struct failure_counts *failure_counts, const struct wire_address *address,
                            int64_t now_ns); // one was admitted
// Until when newcomers from there are asked into no candidate while members wait; 0: they are.
int64_t failure_counts_until(struct failure_counts *failure_counts, const struct wire_address *address, int64_t now_ns);

#endif
