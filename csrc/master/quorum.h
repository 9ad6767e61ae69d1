// Fencing: whether this master's run can be taken up elsewhere, by peers that it does not hear of, and who has to be
// here for it to be sure that it cannot. Peers that know no other master stay.
//
// A run with keys is taken up only from an epoch that one of its masters has signed. Signed are the run, the
// generation, the number and the quorum of an epoch, and the id, join number, group and address of each member.
// Everything else that a RESUME says is the word of the member that sends it.
#ifndef PCCL_MASTER_QUORUM_H
#define PCCL_MASTER_QUORUM_H

#include "master/membership.h"

// All 0 for a run that begins.
struct quorum {
    // Members that have to enter an epoch from `since` on, until nobody can take the run up from one before; then 0.
    struct wire_quorum needed;
    uint32_t entered, old_members_entered; // those that have, gone or not
    // The first epoch of this generation, or after a loss of peers that may live, or with newcomers.
    uint64_t since;
    // Peers that fell silent one after another, and the size of the epoch before the first.
    uint32_t unheard, unheard_of;
    int64_t unheard_since;
};

// The run is taken up, and begins with the next epoch.
void quorum_take_up(struct quorum *quorum, const struct membership *table, const struct wire_quorum *needed);
struct wire_quorum quorum_announced(const struct quorum *quorum, const struct membership *table); // in EPOCH

// The next epoch lets newcomers in, the first of them with that join number.
void quorum_admits(struct quorum *quorum, const struct membership *table, uint32_t members_before, uint64_t newer);
// A member has said that it is in that epoch.
void quorum_entered(struct quorum *quorum, struct peer_record *peer, uint64_t epoch);
// The peer's connection has ended, or it leaves the run; it is about to be dropped.
void quorum_ended(struct quorum *quorum, const struct peer_record *peer);

enum quorum_verdict { QUORUM_KEEPS, QUORUM_IS_SURE, QUORUM_GIVES_UP };
// Peers fell silent, or left for another master: they may be the majority of a run elsewhere. GIVES_UP: so this master
// gives its own up, as was logged.
enum quorum_verdict quorum_unheard(struct quorum *quorum, struct membership *table, uint32_t count);
// While it is not sure that no other master can take the run up: looks whether it is (an epoch has to tell the
// members), or whether too few are left.
enum quorum_verdict quorum_watch(struct quorum *quorum, struct membership *table);

// ---- signatures ----

// How the owner signs and verifies. All 0: the run has no keys.
struct signer {
    void *context;
    // False: memory was refused.
    bool (*sign)(void *context, const void *bytes, size_t length, uint8_t signature[WIRE_SIGNATURE_BYTES]);
    // Whether a master of the run has signed these bytes.
    bool (*verify)(void *context, const void *bytes, size_t length, const uint8_t signature[WIRE_SIGNATURE_BYTES]);
};

// Signs the epoch of `message`, which goes out with `header`. Does nothing without functions: the run has no keys.
// False: memory was refused.
bool quorum_sign(const struct signer *signer, struct wire_header header, struct wire_epoch_commit *message);
// The signed epoch that was verified last: after the loss of a master all members bring the same. All 0: none.
struct quorum_verified {
    struct wire_buffer bytes; // owned
    uint8_t signature[WIRE_SIGNATURE_BYTES];
};

static inline void quorum_verified_fini(struct quorum_verified *verified) { wire_buffer_fini(&verified->bytes); }
enum quorum_proof { QUORUM_SIGNED, QUORUM_UNSIGNED, QUORUM_NO_MEMORY };

// Whether a master of the run has signed the epoch that a member brings. SIGNED without functions, and for a newcomer;
// NO_MEMORY: nobody can say, so the member may come again.
enum quorum_proof quorum_verify(const struct signer *signer, struct quorum_verified *last, uint64_t run,
                                const struct wire_resume *resume);

#endif
