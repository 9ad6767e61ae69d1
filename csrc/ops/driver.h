// Driver of the op table (ops/call_table): the functions that it needs from the data plane (data/engine) or the
// simulator (sim/engine).
#ifndef PCCL_OPS_DRIVER_H
#define PCCL_OPS_DRIVER_H

#include "net/wire_control.h"
#include "net/wire_data.h"

enum { OP_ACKS_MAX = 32 }; // names in one ACK

// The bytes of an input or a result: the driver's, counted. The call table has one reference to each that it is given.
struct block;

// Another member, as the ops know it; part of what the driver keeps of it, from one epoch to the next. Made with its id
// and rank UINT32_MAX, the rest 0.
struct op_member {
    struct wire_id id;
    uint32_t rank;                         // in the epoch in force, or UINT32_MAX
    uint32_t unexpected_count;             // signals and inputs that came before the op was posted here, and
    uint64_t unexpected_bytes;             // the bytes of those inputs
    struct wire_op_name acks[OP_ACKS_MAX]; // of results that it keeps, not sent yet
    uint32_t ack_count;
    uint64_t ack_bytes; // of those results
    bool draining;      // about to leave: acks go out at once
    int64_t heard_ns;   // the driver's clock when the signal at hand came
};

struct op;

// Each is called from within a function of the call table, on its caller's thread and under its caller's lock, and must
// not block. Where nothing else is said, it must not call the call table.
struct op_driver {
    void *context; // first argument of each
    // The other member of this id, who is in the epoch that is entered. NULL: memory was refused.
    struct op_member *(*member)(void *context, const struct wire_id *id);
    // Moves the op from now on; if `op->restart`, its input has to be put back first. May complete it at once. False:
    // memory was refused.
    bool (*start)(void *context, struct op *op);
    // A signal or an input for an op that was started, with the same arguments. Takes the block, which may be NULL. May
    // complete the op. False: it is malformed.
    bool (*signal)(void *context, struct op *op, struct op_member *from, uint16_t type, const struct wire_head *head,
                   struct block *block);
    // No buffer of the op is touched from now on, nothing of it is sent, and what moves it is let go of. Also called of
    // ops that were not started.
    void (*release)(void *context, struct op *op);
    // The result of a small op came from a member that kept it. False: it has another size.
    bool (*fill)(void *context, struct op *op, struct block *result);
    void (*ended)(void *context, struct op *op); // the outcome of a call is there
    // Nobody looks at the op any more. `restore`: its input has to be put back first.
    void (*forget)(void *context, struct op *op, bool restore);
    // Tells a member which of its results have come here. `ask`: and asks it to do likewise, now and from now on.
    void (*acknowledge)(void *context, struct op_member *to, const struct wire_op_name *names, uint32_t count,
                        bool ask);
    void (*supply)(void *context, struct op_member *to, const struct wire_op_name *name, struct block *result);
    void (*drained)(void *context);                                               // no result is kept any more
    void (*report_mismatch)(void *context, const struct wire_mismatch *mismatch); // MISMATCH, for the master
    void (*request_epoch)(void *context);                                         // a fresh group epoch is wanted
    void (*put)(void *context, struct block *block);                              // lets go of a reference
    void (*failed)(void *context); // memory was refused, and others would wait for this member for ever
    void (*cancel)(void *context, const struct wire_op_name *name); // CANCEL, for the master
};

#endif
