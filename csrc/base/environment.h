// The variables of the environment that have a meaning here, for all parts of the project, and switches among them.
#ifndef PCCL_BASE_ENVIRONMENT_H
#define PCCL_BASE_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct environment_variable {
    const char *name, *meaning;
};

// The variable at this index, in alphabetical order; NULL beyond the last.
const struct environment_variable *environment_variable(size_t index);

// Logs each variable that begins with PCCL_ and has no meaning, with the name that it resembles. Once per process.
void environment_report_unknown(void);

// Returns whether this variable is 1 and not 0, or `otherwise` if it is unset. Any other value is reported and ignored.
bool environment_switch(const char *name, bool otherwise);

// Returns the number in this variable, or `otherwise` if it is unset. A value that is no number from `least` to `most`
// is reported and ignored.
uint32_t environment_number(const char *name, uint32_t least, uint32_t most, uint32_t otherwise);

#endif
