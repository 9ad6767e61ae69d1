// Who waits for whom: told to those that wait, and to the log, after WAITS_WARN_MS and then ever more rarely. Nothing
// is decided here.
#ifndef PCCL_MASTER_WAITS_H
#define PCCL_MASTER_WAITS_H

#include "master/desk.h"
#include "master/strikes.h"

enum { WAITS_WARN_MS = 10000 };

struct waits {
    int64_t due_ns; // when it is looked who waits for whom; INT64_MAX: nobody waits
    struct waits_told {
        int64_t since_ns, next_ns; // the wait that began then is told of next
    } told[WIRE_MAX_MEMBERS];      // by the peer's slot
};

void waits_init(struct waits *waits);
void waits_forget(struct waits *waits, uint32_t slot); // of a peer
void waits_begin(struct waits *waits, int64_t now_ns); // somebody's wait, now
// Tells those that have waited long enough. `idle`: false while links are made or rates measured for all.
void waits_tick(struct waits *waits, struct desk *desk, struct strikes *strikes, bool idle);

#endif
