// Members that have announced that they leave: this one, and others as the master tells. Pure; part of the peer's state
// machine.
#ifndef PCCL_PEER_LEAVING_H
#define PCCL_PEER_LEAVING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ops/members.h"

struct leaving_member {
    struct wire_id id;
    int64_t at_ns; // when it has to be gone; INT64_MAX: not known
};

struct leaving {
    bool announced, at_update; // of this member: it leaves; the next update vote takes it out
    int64_t at_ns;
    bool left; // the master has taken it out
    uint32_t count;
    struct leaving_member others[WIRE_MAX_MEMBERS]; // of the epoch in force; this member too, once the master tells
};

static inline void leaving_init(struct leaving *leaving) { memset(leaving, 0, offsetof(struct leaving, others)); }
// Notes that this member leaves; `within_ms` may be WIRE_WITHIN_UNKNOWN.
void leaving_announce(struct leaving *leaving, uint32_t within_ms, bool at_update, int64_t now_ns);
// Appends LEAVING if this member has announced that it leaves: to each master that it comes to.
void leaving_tell(const struct leaving *leaving, const struct wire_id *self, struct wire_header header, int64_t now_ns,
                  struct wire_buffer *out);
// Takes what the master tells of a member of `epoch`; of others it is ignored.
void leaving_note(struct leaving *leaving, const struct wire_leaving *told, const struct epoch *epoch, int64_t now_ns);
// The same, of a body. If it is of `self`, which has announced nothing, an operator wants it to leave: that counts as
// its announcement. False: it is malformed.
bool leaving_take(struct leaving *leaving, const struct wire_id *self, const uint8_t *body, size_t length,
                  const struct epoch *epoch, int64_t now_ns);
// Forgets those that are not in the new epoch.
void leaving_enter(struct leaving *leaving, const struct epoch *epoch);

#endif
