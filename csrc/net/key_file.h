// Reads files with keys and certificates, and judges who may read or write them.
#ifndef PCCL_NET_KEY_FILE_H
#define PCCL_NET_KEY_FILE_H

#include <stdbool.h>
#include <stddef.h>

// Reads the file at `path` as a string into `text`, which has room for `capacity` bytes. A `secret` file must be
// unreadable to other users; any file must not be writable by them. Returns NULL, or what is wrong and what to do.
const char *key_file_read(const char *path, bool secret, char *text, size_t capacity);

#endif
