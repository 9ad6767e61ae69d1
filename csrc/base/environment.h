// Switches in the environment.
#ifndef PCCL_BASE_ENVIRONMENT_H
#define PCCL_BASE_ENVIRONMENT_H

#include <stdbool.h>

// False: this variable is 0. Unset and 1 are true, as is anything else, which is reported and ignored.
bool environment_allows(const char *name);

#endif
