// Reads files with keys and certificates, and judges who may read or write them.
#ifndef PCCL_NET_KEY_FILE_H
#define PCCL_NET_KEY_FILE_H

#include <stdbool.h>
#include <stddef.h>

// Reads the file at `path` as a string into `text`, which has room for `capacity` bytes. The file must belong to
// this user or root, and be writable by its owner alone. A `secret` file must be unreadable to other users, except for
// the group of a file of root. Returns NULL, or what is wrong and what to do.
const char *key_file_read(const char *path, bool secret, char *text, size_t capacity);

#endif
