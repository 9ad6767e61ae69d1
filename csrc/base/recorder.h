// Flight recorder of a peer or a master: its last events, in a file that is mapped and shared. The events stay
// readable after the process has hung or died (`pccl dump`, pccl/_watch/recording.py).
//
// The file has a header and a ring of records of fixed size. One process writes it, others only read. Invariants:
//
// - A record is valid if its serial is not 0. A writer sets 0, writes, and sets the serial, which no other record ever
//   gets. So a reader that finds the same serial before and after its copy has a whole record.
// - The marks of a record (began, ended) are written later, each by one store. The result is written before `ended`.
// - A record that has not ended is not overwritten, unless half of the ring has not ended.
// - An eighth of the records are a ring of their own, for epochs, members and other rare events.
// - The writer holds a lock on the file (flock), which ends with the process. So a file without a lock is a dead one's.
//
// By default the file is in /dev/shm/pccl-UID or $XDG_RUNTIME_DIR/pccl, and recorder_free removes it.
// Files of processes that have died stay until RECORDER_KEEP_S have passed, or until there are more than RECORDER_KEEP.
// PCCL_EVENTS names another file, which stays, or is "off".
//
// All functions accept NULL for the recorder and do nothing then. Any thread may call them. None blocks, except
// recorder_new and recorder_free. A forked child has no recorder: its handles are not usable.
#ifndef PCCL_BASE_RECORDER_H
#define PCCL_BASE_RECORDER_H

#include <stdbool.h>
#include <stdint.h>

enum {
    RECORDER_FORMAT = 1,
    RECORDER_HEADER_BYTES = 4096,
    RECORDER_RECORD_BYTES = 128,
    RECORDER_RECORDS = 2048,       // of a file at the default place
    RECORDER_FILE_RECORDS = 16384, // of one that the user names
    RECORDER_RARE_PART = 8,        // one of so many records is for rare events
    RECORDER_TEXT_BYTES = 56,      // with a zero at the end
    RECORDER_ID_BYTES = 16,
    RECORDER_NAME_BYTES = 72, // likewise
    RECORDER_GROUP_MOST = 8,  // members of a subgroup that a record names
    RECORDER_PATH_BYTES = 1024,
    RECORDER_KEEP_S = 24 * 3600,
    RECORDER_KEEP = 64,
    RECORDER_TOUCH_S = 600, // between two renewals of the time of a file at the default place
    RECORDER_NAMES = 256,   // that are tried
    RECORDER_YOUNG_S = 10,  // such a file may not be locked yet
};

enum recorder_role { RECORDER_PEER = 1, RECORDER_MASTER = 2 };

enum recorder_kind {
    RECORDER_OPERATION = 1, // struct recorder_operation; ended by its outcome
    RECORDER_CALL,          // text: a call that waits for others, such as update_topology; ended by its answer
    RECORDER_EPOCH,         // a: its number; b: members
    RECORDER_JOINED,        // id, text: the name; a: the epoch
    RECORDER_LEFT,          // id, text: why or the name; a: the epoch; b: enum wire_loss_reason
    RECORDER_VOTE,          // of a master: a vote has ended. text: its name; a: members
    RECORDER_MASTER_LOST,   // text: why
    RECORDER_MASTER_FOUND,  // text: its address
    RECORDER_SELECTION,     // text: the algorithm or weights that were chosen; a: the group epoch
    RECORDER_REPORT,        // text: the name of a number of the program; a: the bits of a double
    RECORDER_TAKEOVER,      // of a master: it takes a run up. a: its generation; b: members
    RECORDER_DIED,          // text: why the communicator is dead
};

struct recorder_operation {
    uint64_t tag, count, bytes;
    uint32_t subgroup; // hash; 0: the whole peer group
    uint32_t root;
    uint16_t members; // of the subgroup; 0: all of the peer group
    uint8_t collective, dtype, op, codec;
    bool retry, background;
    const uint8_t (*ids)[RECORDER_ID_BYTES]; // of the members of a subgroup, or NULL
};

// Name of an operation in the epoch in which it begins.
struct recorder_beginning {
    uint64_t epoch;
    uint32_t sequence;
    uint16_t members; // that take part
    uint8_t algorithm;
};

struct recorder_event {
    enum recorder_kind kind;
    uint64_t a, b;
    const uint8_t *id; // RECORDER_ID_BYTES, or NULL
    const char *text;  // cut to RECORDER_TEXT_BYTES, or NULL
};

struct recorder_options {
    enum recorder_role role;
    const char *path; // as PCCL_EVENTS, in place of it; NULL: that of the environment
    const char *name; // of the peer
    const char *run;  // "": the run without a name
};

struct recorder;

// Makes the file. NULL: it is off, or cannot be made; the log says why if the user has named it.
struct recorder *recorder_new(const struct recorder_options *options);
// Removes the file if it is at the default place.
void recorder_free(struct recorder *recorder);
// Path of the file; "" for NULL.
const char *recorder_path(const struct recorder *recorder);
// Sets whose events they are from now on: the run, this member, and its peer group.
void recorder_identify(struct recorder *recorder, uint64_t run, const uint8_t id[RECORDER_ID_BYTES], uint32_t group);

// Each returns the serial of its record, for recorder_end. `at_ns`: as platform_now_ns.
uint64_t recorder_add(struct recorder *recorder, const struct recorder_event *event);
uint64_t recorder_add_operation(struct recorder *recorder, const struct recorder_operation *op, int64_t at_ns);
// The operation begins in an epoch. Calls for the epoch that it has begun in last are ignored: each segment of a call
// makes one, and the first counts. So is serial 0, or one that was overwritten.
void recorder_begin(struct recorder *recorder, uint64_t serial, const struct recorder_beginning *how, int64_t at_ns);
// The operation or call has ended; `result`: enum call_result, or pcclResult_t of a call. Likewise.
void recorder_end(struct recorder *recorder, uint64_t serial, uint8_t result, int64_t at_ns);

// Removes files of dead processes from a directory that was just opened, as at the top. recorder_new does so at the
// default place.
void recorder_clean(int directory, int64_t now_s);

#endif
