// Replaces the modules that face the operating system for a page in a browser, where there is none.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/socket.h"
#include "sim/refuse.h"

int log_enabled(enum log_level level) {
    (void)level;
    return 0;
}

void log_write(enum log_level level, const char *component, const char *format, ...) {
    (void)level;
    (void)component;
    (void)format;
}

void *refuse_never(size_t bytes) {
    void *taken = malloc(bytes);
    if (taken == NULL) abort();
    return taken;
}

// The simulator has IPv4 addresses only.
const char *socket_address_format(char *out, size_t capacity, const struct wire_address *address) {
    const uint8_t *b = address->bytes;
    snprintf(out, capacity, "%u.%u.%u.%u:%u", b[0], b[1], b[2], b[3], address->port);
    return out;
}

bool socket_address_is_loopback(const struct wire_address *address) { return address->bytes[0] == 127; }
