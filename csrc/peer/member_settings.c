// Settings of a state machine that has not joined yet.
#include "peer/member_private.h"

void member_set_spare_lanes(struct member *m, uint32_t spare) { mesh_set_spare(&m->mesh, spare); }
void member_set_join_only(struct member *m, bool join_only) { m->hello.join_only = join_only; }
void member_set_limits(struct member *m, const struct wire_limits *limits) { m->hello.limits = *limits; }
void member_set_precopy(struct member *m, bool precopy) { m->precopy = precopy; }
void member_set_name(struct member *m, const struct wire_name *name) { m->hello.name = *name; }

void member_set_reach(struct member *m, const struct wire_reach *reach, uint32_t cards) {
    m->hello.reach = *reach;
    m->cards = cards;
}

void member_set_relay(struct member *m, bool relay) { m->mesh.relay = relay; }

void member_set_local(struct member *m, const struct wire_address *local) { m->hello.local = *local; }

void member_set_recovery(struct member *m, uint32_t limit_ms, uint32_t masters) {
    m->recovery.limit_ms = limit_ms;
    m->recovery.masters = masters;
}
