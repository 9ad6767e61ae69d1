// A survey of the links inside the groups, in rounds, and the order of the rings by the result. In one round no host
// takes part in two measurements (hosts are told apart by address), so that measurements do not disturb each other.
// Only links not known yet are measured; those of the ring in force come first.
#ifndef PCCL_MASTER_SURVEY_H
#define PCCL_MASTER_SURVEY_H

#include "master/membership.h"

enum {
    SURVEY_DEFAULT_LATENCY_US = 100, // until a link has been timed
    SURVEY_DEFAULT_MEGABYTES_PER_S = 1000,
};

struct survey_measurement {
    struct peer_record *from, *to;
    bool answered;
};

struct survey {
    uint64_t *rates;                   // [from slot][to slot], bytes/s, 0: unknown; made at the first survey
    uint32_t rate_slots;               // that it has room for; later ones are unknown
    uint32_t round, count, unanswered; // `round`: its number; the rest of the one at hand
    int64_t deadline_ns, end_ns;       // of the round, of the survey
    // From here on nothing is read before it is written.
    struct survey_measurement measurements[WIRE_MAX_MEMBERS];
    uint32_t hosts[WIRE_MAX_MEMBERS]; // by slot: the place in the order of the first member on its host
};

void survey_init(struct survey *survey);
void survey_fini(struct survey *survey);
void survey_forget(struct survey *survey, uint32_t slot); // the rates of a peer's links
// Bytes per second as measured; 0: unknown.
uint64_t survey_rate(const struct survey *survey, const struct membership *table, const struct peer_record *from,
                     const struct peer_record *to);
// The slowest link of a group's ring, or the default.
uint32_t survey_group_rate(const struct survey *survey, const struct membership *table, const struct peer_group *group);

// False: memory was refused.
bool survey_begin(struct survey *survey, const struct membership *table);
// Plans the next round and asks for it; false: what is unknown now stays so.
bool survey_next(struct survey *survey, struct membership *table);
void survey_measured(struct survey *survey, const struct membership *table, const struct peer_record *peer,
                     const struct wire_measured *measured);
// At deadline_ns: what is not answered cannot be measured.
void survey_give_up_round(struct survey *survey, const struct membership *table);
// Marks measurements that failed as unknown again. Used when members are lost in a survey; the order may still hold
// those.
void survey_end(struct survey *survey, const struct membership *table);
// The survey is over: the best order of all members, group by group. True when it differs from the one in force.
bool survey_order(struct survey *survey, const struct membership *table, struct peer_record **order);

#endif
