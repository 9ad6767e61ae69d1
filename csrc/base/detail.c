#define _GNU_SOURCE
#include "base/detail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

static _Thread_local char text[DETAIL_CAPACITY];

pcclResult_t detail_fail(pcclResult_t code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    log_clean(text, strlen(text)); // others may have written parts of it, and it is printed
    va_end(arguments);
    return code;
}

const char *detail_get(void) { return text; }
