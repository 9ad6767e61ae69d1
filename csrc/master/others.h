// What the other masters of the list do: all are asked at once (STATUS), and nothing waits for them. The owner's poller
// reports what happens on the connections.
#ifndef PCCL_MASTER_OTHERS_H
#define PCCL_MASTER_OTHERS_H

#include <stdbool.h>
#include <stdint.h>

#include "net/conn.h"
#include "net/wire_control.h"

enum {
    OTHERS_ASK_MS = 300,   // for an answer; who has not given one by then counts as idle
    OTHERS_BUSY_MS = 1000, // for so long it is known that one gathers or serves
    OTHERS_IDLE_MS = 100,  // or that all are idle: shorter, since a new run begins by that
};

struct others_ask {
    int fd; // -1: answered, or cannot be asked
    bool sent;
    struct conn_in answer;
};

struct others {
    struct wire_address masters[WIRE_MAX_MASTERS];
    uint32_t count;
    int poller; // borrowed
    uint64_t first_token;
    struct others_ask asks[WIRE_MAX_MASTERS];
    uint32_t open;
    enum wire_activity most; // of the answers
    int64_t until_ns;        // for the answers; INT64_MAX: nobody is asked
    int64_t known_until_ns;  // `most` holds
};

// The list is set before by the owner; tokens `first_token` up to `first_token` + WIRE_MAX_MASTERS - 1 are theirs in
// the poller.
void others_init(struct others *others, int poller, uint64_t first_token);
void others_fini(struct others *others);
// True: what was heard last still holds.
bool others_known(const struct others *others, int64_t now_ns);
// Unless it is under way.
void others_ask(struct others *others, int64_t now_ns);
void others_event(struct others *others, uint64_t token, int64_t now_ns);
// True, once: all have answered, or had their time; `most` is the activity of the busiest.
bool others_tick(struct others *others, int64_t now_ns);
int64_t others_deadline(const struct others *others);

#endif
