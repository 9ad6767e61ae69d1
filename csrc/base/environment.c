#define LOG_COMPONENT "config"
#include "base/environment.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

bool environment_allows(const char *name) {
    const char *value = getenv(name);
    bool off = value != NULL && strcmp(value, "0") == 0;
    if (value != NULL && !off && strcmp(value, "1") != 0)
        LOG(LOG_ERR, "%s=%s is ignored: neither 0 nor 1", name, value);
    return !off;
}
