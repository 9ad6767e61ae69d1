// The descriptors of the library. They are opened and closed here alone, so that no forked child keeps one of them.
//
// A child that kept a socket would hide the death of its parent from the peers, and hold the port of its parent's
// master. So all are closed by exec, and a handler of fork closes them in the child, before fork returns there. The
// handler only closes: to shut down, or to take out of an epoll set, would act on the parent's connections and sets.
// Opening and closing exclude a fork, so no descriptor is missed. Any thread may call these functions, in a forked
// child too.
//
// Not covered: a child made by clone() without the C library's fork handlers. It keeps what it has inherited. What the
// parent closes ends all the same, for a socket is shut down before it is closed; only the parent's own death stays
// hidden.
#ifndef PCCL_BASE_DESCRIPTOR_H
#define PCCL_BASE_DESCRIPTOR_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum { DESCRIPTORS_MAX = 1 << 20 }; // a higher descriptor is refused like one too many: -EMFILE

// Each returns a descriptor above the standard streams, or -errno; accepted sockets and epoll sets do not block.
int descriptor_socket(int family, int type, int protocol);
int descriptor_accept(int listener, struct sockaddr *from, socklen_t *length);
int descriptor_epoll(void);

// recv without waiting, from a UNIX socket. *shared is the descriptor that came along, or negative: none came, or it
// was refused. Of several the kernel keeps one.
ssize_t descriptor_receive(int socket, void *bytes, size_t room, int *shared);
// send without waiting, to a UNIX socket, with a copy of the descriptor `shared` unless that is -1.
ssize_t descriptor_deliver(int socket, const void *bytes, size_t length, int shared);

// For any other call that opens a descriptor: between the two comes that call, which must not block nor call anything
// of this header. `opened` is the new descriptor, with close-on-exec set, or -1, and errno tells why. Returns it, or a
// higher one in its place, or -errno.
void descriptor_begin(void);
int descriptor_end(int opened);

// Shuts a socket down, whoever else may have it open, and closes the descriptor. A negative one is allowed.
void descriptor_close(int fd);

// How many descriptors this process may have open: its soft limit, which the library leaves as it is. 0: unknown.
uint64_t descriptor_limit(void);

// How many forks lie between the process that opened the first descriptor and this one. What was made under another
// number belongs to a parent: its descriptors are closed here, and its threads do not exist. Async-signal-safe.
uint32_t descriptor_forks(void);

#endif
