// Checks who holds a mutex, in builds with PCCL_CHECKS: those with sanitizers, and those with the fakes.
//
// A function that is called with a lock held begins with lock_assert_held, or with the name that a module gives it
// (engine_assert_locked): so its contract is checked, and needs no sentence. In other builds the check is empty.
#ifndef PCCL_BASE_LOCK_H
#define PCCL_BASE_LOCK_H

#include <pthread.h>

#ifdef PCCL_CHECKS
// Ends the process with a message unless the calling thread owns the mutex.
#define lock_assert_held(mutex) lock_check(mutex, #mutex, __FILE__, __LINE__)
void lock_check(const pthread_mutex_t *mutex, const char *name, const char *file, int line);
#else
#define lock_assert_held(mutex) ((void)(mutex))
#endif

#endif
