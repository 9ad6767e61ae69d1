/* Commands to an emulator, one a line: what its links are like from now on. */
#ifndef LONGLINK_COMMAND_H
#define LONGLINK_COMMAND_H

#include "link.h"

struct commands {
    char line[256];
    size_t length; /* of what has come of the next one */
};

/* Reads once from the descriptor, and passes each line that has ended to `apply`, which is false for what is no command;
 * answers "ok" or "what?" on stdout. False: nobody commands any more. */
bool commands_hear(struct commands *commands, int descriptor, bool (*apply)(const char *line));

/* Reads "MBIT LOSS", with which a command ends, into the rate and the loss of the shape. False: it is something else,
 * and nothing has changed. */
bool command_shape(const char *text, struct link_shape *shape);

#endif
