#include "command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool commands_hear(struct commands *commands, int descriptor, bool (*apply)(const char *line)) {
    char *line = commands->line;
    ssize_t got = read(descriptor, line + commands->length, sizeof commands->line - 1 - commands->length);
    if (got <= 0) return got < 0 && (errno == EINTR || errno == EAGAIN);
    commands->length += (size_t)got;
    line[commands->length] = 0;
    for (char *end; (end = strchr(line, '\n')) != NULL;) {
        *end = 0;
        puts(apply(line) ? "ok" : "what?");
        fflush(stdout);
        commands->length -= (size_t)(end + 1 - line);
        memmove(line, end + 1, commands->length + 1);
    }
    return commands->length < sizeof commands->line - 1;
}

bool command_shape(const char *text, struct link_shape *shape) {
    double megabits, loss;
    int end = 0;
    if (sscanf(text, "%lf %lf %n", &megabits, &loss, &end) != 2 || text[end] != 0) return false;
    if (!(megabits >= 0 && megabits <= 1e6 && loss >= 0 && loss <= 1)) return false;
    shape->rate_bits = megabits * 1e6;
    shape->loss = loss;
    return true;
}
