// Pre-copy of a shared state, as live migration of virtual machines has it (Clark and others 2005): a newcomer copies
// the state from a member, its donor, while the members train on, and is admitted when that is done. The next sync then
// fetches only the leaves that have changed since.
//
// The donor reads tensors while its program writes them. So what arrives may be of several steps, or torn, and is only
// a guess: the sync hashes all of it again, and replaces what differs. No failure here does more harm than a longer
// sync.
//
// The newcomer makes passes: it asks for the hashes of the donor's leaves, and for the leaves whose hashes are not its
// own. It is up to date when a pass finds no difference, or when a pass finds more than half of what the pass before
// found: then the members change the state as fast as it is copied. Until it is admitted it probes one leaf, and makes
// a pass right after each change, so that members that admit it shortly before the next change find it up to date.
// After ten of these it makes a pass now and then, for a spare may wait for days.
//
// Streams are the wireup's, with LINK_HELLO of kind PRECOPY. Behind it they carry the SYNC frames of net/wire_data,
// whose round is the lower half of the mask. A donor that has another mask, or no state yet, closes the stream.
//
// One thread for each stream: `pccl:donor` at a member, `pccl:precopy` at a newcomer. Both have low priority.
#ifndef PCCL_STATE_PRECOPY_H
#define PCCL_STATE_PRECOPY_H

#include <stdbool.h>

#include "net/transport.h"
#include "net/wire_control.h"
#include "state/content.h"

enum {
    PRECOPY_DONATIONS_MOST = 4, // newcomers that copy from one member at a time
    PRECOPY_STALL_MS = 10000,   // without a byte, after which a stream is given up
    PRECOPY_TELL_MS = 1000,     // between two news of how far a newcomer is, at least
    PRECOPY_REFRESH_MS = 1000,  // between two passes of a newcomer that is up to date, at least
};

struct precopy;

enum precopy_news {
    PRECOPY_QUIET,
    PRECOPY_ADVANCED,   // before that, about once a second; later, it holds more or less after a pass
    PRECOPY_LOST,       // the donor is gone, or gives nothing: try another one
    PRECOPY_UP_TO_DATE, // for the first time over this stream, or it cannot catch up: see the progress
};

enum precopy_gives {
    PRECOPY_GIVES_ONCE_SYNCED,
    PRECOPY_GIVES_AT_ONCE, // it is the state of the run
    PRECOPY_GIVES_NEVER,   // this peer only copies it
};

// No thread, no state. NULL: memory was refused.
struct precopy *precopy_new(void);
// Ends all streams, and joins their threads. NULL is allowed.
void precopy_free(struct precopy *precopy);
// The state that this peer copies or gives from now on; NULL: none. Takes the content, and frees the one before when no
// thread reads it. Not while this peer receives.
void precopy_set_state(struct precopy *precopy, struct content *content, enum precopy_gives gives);
bool precopy_has_state(struct precopy *precopy);
// Whether there is a state, of which no sync has succeeded yet.
bool precopy_is_new(struct precopy *precopy);
// A sync of a state with this mask has succeeded: from now on this peer gives its state, unless it never does.
void precopy_note_sync(struct precopy *precopy, const struct wire_hash *mask);

// Gives the state to the newcomer at the other end of the stream, which it takes in any case.
void precopy_give(struct precopy *precopy, struct transport *stream);

// Copies the state from the donor at the other end of the stream, which it takes in any case. `wake` is signalled when
// there is news (base/platform). False: there is no state, one of its entries cannot be written, or the system refuses.
bool precopy_receive(struct precopy *precopy, struct transport *stream, int wake);
// The newest news that was not taken yet, and how much of the state the newcomer holds.
enum precopy_news precopy_take_news(struct precopy *precopy, struct wire_progress *progress);
// Ends the receiving, if any: when it returns, no tensor is written any more. Blocks for a moment.
void precopy_end_receiving(struct precopy *precopy);
// The same, from any thread and without blocking: precopy_end_receiving then finds it ended.
void precopy_hurry(struct precopy *precopy);

#endif
