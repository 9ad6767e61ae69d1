// A reader of another process's memory. A thread may be left behind in it.
//
// The kernel fetches pages of the other process while it reads. They may lie in a file of a server that does not
// answer, and nothing ends that wait but an answer, or the end of a process. So the bytes come into the reader's own
// memory, and somebody else watches: a thread that does not come back is abandoned. It touches nothing but its reader
// from then on, and ends when the kernel lets it.
#ifndef PCCL_DEVICE_READER_H
#define PCCL_DEVICE_READER_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { READER_BYTES = 256 * 1024 };

struct reader;

struct reader *reader_new(void);         // NULL: no memory
void reader_free(struct reader *reader); // NULL is allowed; no thread is in it

// The thread that reads. When it was abandoned, reader_read does not return: it frees the reader and jumps to `gone`.
void reader_enter(struct reader *reader, jmp_buf *gone);
// READER_BYTES at most from the memory of that process; they stand until the next read. NULL when that is not possible
// (any more).
uint8_t *reader_read(struct reader *reader, pid_t process, uint64_t from, size_t length);

// Called by the one thread that watches. Returns true if the current read had begun by an earlier look, at least
// `patience_ns` ago, and its thread sleeps in the kernel.
bool reader_is_stuck(struct reader *reader, int64_t now_ns, int64_t patience_ns);
// When to look again: INT64_MAX without a read at hand.
int64_t reader_look_at(const struct reader *reader, int64_t patience_ns);
// False: the thread has come back since. True: it will not, and the reader is its own.
bool reader_abandon(struct reader *reader);

#endif
