// Clock, threads, locks, wake-ups, randomness: the only header behind which the operating system's threads live.
//
// Not promised: use in a forked child of what was made before the fork, calls from signal handlers (except wake_signal,
// which is async-signal-safe), any system but Linux.
#ifndef PCCL_BASE_PLATFORM_H
#define PCCL_BASE_PLATFORM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MS_NS INT64_C(1000000)
#define US_NS INT64_C(1000)
#define SECOND_NS INT64_C(1000000000)

// Monotonic time in nanoseconds. Never fails, never goes back.
int64_t platform_now_ns(void);
static inline int64_t platform_earlier(int64_t a_ns, int64_t b_ns) { return a_ns < b_ns ? a_ns : b_ns; }
static inline int64_t platform_later(int64_t a_ns, int64_t b_ns) { return a_ns > b_ns ? a_ns : b_ns; }

// Returns the timeout for poll, in milliseconds, that ends at `at_ns` (INT64_MAX: never) and not before. At most a
// minute.
int platform_wait_ms(int64_t now_ns, int64_t at_ns);

// Whether a wait that began at `began_ns` and might take `wait_ms` ended so late that the process stood still. Then
// other processes spoke meanwhile, and that is to be read before their silence is judged.
bool platform_overslept(int64_t began_ns, int wait_ms, int64_t now_ns);

// Processor time of the calling thread in nanoseconds.
int64_t platform_thread_ns(void);

// Fills `out` with unpredictable bytes. False when the kernel refuses.
bool platform_random(void *out, size_t bytes);

// Number of processors this process may run on, at least 1.
unsigned platform_cpu_count(void);

// Starts a joinable thread called `name` (at most 15 characters) with every signal blocked, so that the
// host program's handlers never run on our threads, and a stack of 1 MiB at least. False when the system refuses.
bool platform_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *arg);

// Lets other threads of the machine go first, from now on, where they want the processor of the calling one.
void platform_thread_lower_priority(void);

// A condition variable that waits on the monotonic clock.
bool platform_cond_init(pthread_cond_t *cond);
// Waits until signalled or `deadline_ns` (monotonic; INT64_MAX = for ever). False on time-out.
bool platform_cond_wait(pthread_cond_t *cond, pthread_mutex_t *held, int64_t deadline_ns);

// A wake-up: a descriptor that polls readable after wake_signal until wake_clear.
int wake_open(void);        // negative when the system refuses; closed by descriptor_close
void wake_signal(int wake); // async-signal-safe, never blocks; ignores a negative one
void wake_clear(int wake);

// Checks who holds a mutex, in builds with PCCL_CHECKS: those with sanitizers, and those with the fakes.
//
// A function that is called with a lock held begins with lock_assert_held, or with the name that a module gives it
// (engine_assert_locked): so its contract is checked, and needs no sentence. In other builds the check is empty.
#ifdef PCCL_CHECKS
// Ends the process with a message unless the calling thread owns the mutex.
#define lock_assert_held(mutex) platform_check_held(mutex, #mutex, __FILE__, __LINE__)
void platform_check_held(const pthread_mutex_t *mutex, const char *name, const char *file, int line);
#else
#define lock_assert_held(mutex) ((void)(mutex))
#endif

#endif
