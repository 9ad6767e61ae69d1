// The state machine of a peer, and its settings: what peer/member knows of the run.
#ifndef PCCL_PEER_MEMBER_PRIVATE_H
#define PCCL_PEER_MEMBER_PRIVATE_H

#include "net/arrival.h"
#include "peer/member.h"
#include "peer/mesh.h"
#include "peer/recovery.h"

struct member {
    enum member_phase phase;
    struct wire_id id;
    struct wire_hello hello; // what masters are told; `port`, ports of 0, and `masters` are set then
    uint32_t cards;
    uint64_t run, generation; // of the epoch in force
    struct wire_welcome welcome;
    bool precopy; // as a newcomer, it copies the state first
    char text[MEMBER_TEXT];
    bool gave_up;

    // the epoch in force
    struct epoch *epoch; // NULL before the first
    struct member_view view;

    struct pending_vote vote;

    int64_t join_deadline, beat_at;
    struct arrival master; // what was heard of it

    // From here on nothing is read before it is written, so that nobody pays for clearing it.
    struct mesh mesh;
    struct recovery recovery;
    struct leaving leaving;
    // decoding
    struct wire_member members[WIRE_MAX_MEMBERS];
    struct wire_gone gone[WIRE_MAX_MEMBERS]; // of the last EPOCH
    struct wire_verdict verdict;
    struct wire_sync_plan plan;
    struct wire_sync_end end;
    struct wire_donors donors;
};

#endif
