// What goes out to the master: frames of the mind, and those of the engine, whose thread sends them itself, so that an
// op that is done is one system call away from the master. What the kernel does not take waits for the control thread.
//
// Any thread, if not said otherwise; nothing blocks but on the lock, which is taken last.
#ifndef PCCL_PEER_OUTPUT_H
#define PCCL_PEER_OUTPUT_H

#include <pthread.h>
#include <stdbool.h>

#include "net/conn.h"
#include "net/wire_control.h"

struct output {
    pthread_mutex_t lock;    // of the rest
    int fd;                  // opened and closed by the control thread; -1: what is sent is dropped
    int wake;                // of the control thread
    struct wire_header head; // of the frames that the engine causes
    struct conn_out waiting;
};

void output_init(struct output *output, int wake);
void output_fini(struct output *output);

void output_send(struct output *output, const struct wire_buffer *frames);
// Around the encoding of one frame of the engine into `waiting`: the first takes the lock and returns the frame's
// header, the second sends it and gives the lock back.
struct wire_header output_begin(struct output *output);
void output_end(struct output *output);
// The header of the engine's frames from now on.
void output_name(struct output *output, const struct wire_header *header);

// ---- the control thread ----
// What is sent from now on goes to `fd`. `first`, if not NULL, is swapped for what is waiting, and nothing goes out
// before it.
void output_open(struct output *output, int fd, struct wire_buffer *first);
// All that is waiting is dropped. Returns the connection, to be closed; -1: there is none.
int output_close(struct output *output);
// Sends what the kernel takes now. True: something is left.
bool output_flush(struct output *output);

#endif
