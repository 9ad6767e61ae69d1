#define _GNU_SOURCE
#include "base/lock.h"

#ifdef PCCL_CHECKS

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef __GLIBC__
#error "PCCL_CHECKS reads the owner that glibc records in a mutex"
#endif

void lock_check(const pthread_mutex_t *mutex, const char *name, const char *file, int line) {
    if (mutex->__data.__owner == gettid()) return;
    fprintf(stderr, "%s:%d: this thread does not hold %s\n", file, line, name);
    abort();
}

#endif
