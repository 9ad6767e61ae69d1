// A device that does whatever device/device.h allows: what it is asked for it does later, on a thread of its own or
// when somebody looks whether it is done; its views hold rubbish until then; what the wire receives lands apart from
// the tensor; and it fails on demand.
//
// Linked in with the CMake option PCCL_FAKES. PCCL_FAKE_DEVICE=seed in the environment lets it claim all memory, and
// PCCL_FAKE_DEVICE_FAILS=n lets the n-th thing that it is asked for fail, and all after it. Else it has what
// fake_device_new gives.
#define _GNU_SOURCE
#include "device.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"
#include "device/device.h"

enum {
    RANGES_MAX = 256,
    THREADS_MAX = 16,   // beyond that the work is done by whoever looks
    DELAY_MOST_US = 300 // before each piece of work of a thread
};

// ---- memory ----
static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;
static struct range {
    uint8_t *hidden, *bytes; // the same memory, at an address that cannot be touched and at one that can
    size_t length;
} ranges[RANGES_MAX];

static bool claims_all;
static atomic_uint_fast64_t seed = 1;

static struct range *range_of(const void *memory) {
    for (int i = 0; i < RANGES_MAX; i++)
        if (ranges[i].hidden != NULL && (const uint8_t *)memory >= ranges[i].hidden &&
            (const uint8_t *)memory < ranges[i].hidden + ranges[i].length)
            return &ranges[i];
    return NULL;
}

void *fake_device_bytes(const void *memory) {
    pthread_mutex_lock(&ranges_lock);
    const struct range *range = range_of(memory);
    void *bytes = range == NULL ? (void *)(uintptr_t)memory : range->bytes + ((const uint8_t *)memory - range->hidden);
    pthread_mutex_unlock(&ranges_lock);
    return bytes;
}

void *fake_device_new(size_t length) {
    int fd = memfd_create("fake device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)length + 1) != 0) return NULL;
    uint8_t *bytes = mmap(NULL, length + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *hidden = mmap(NULL, length + 1, PROT_NONE, MAP_SHARED, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED || hidden == MAP_FAILED) return NULL;
    pthread_mutex_lock(&ranges_lock);
    int i = 0;
    while (ranges[i].hidden != NULL) i++;
    ranges[i] = (struct range){hidden, bytes, length + 1};
    pthread_mutex_unlock(&ranges_lock);
    return hidden;
}

void fake_device_free(void *memory) {
    pthread_mutex_lock(&ranges_lock);
    struct range *range = range_of(memory);
    munmap(range->hidden, range->length);
    munmap(range->bytes, range->length);
    *range = (struct range){0};
    pthread_mutex_unlock(&ranges_lock);
}

static bool owns(const void *memory) {
    if (claims_all) return memory != NULL;
    pthread_mutex_lock(&ranges_lock);
    bool owned = range_of(memory) != NULL;
    pthread_mutex_unlock(&ranges_lock);
    return owned;
}

// ---- failing ----
static atomic_uint_fast32_t asked, fail_from, fail_until;

uint32_t fake_device_fail(uint32_t at, uint32_t count) {
    atomic_store(&fail_from, at);
    atomic_store(&fail_until, at + count);
    return (uint32_t)atomic_exchange(&asked, 0);
}

const char *const fake_device_words = "fake device: it was told to fail";
const bool fake_device_gets_over = false;

static bool fails(void) {
    uint32_t number = (uint32_t)atomic_fetch_add(&asked, 1) + 1;
    return atomic_load(&fail_from) != 0 && number >= atomic_load(&fail_from) && number < atomic_load(&fail_until);
}

// ---- queues ----
// A mapped view, a staging buffer, or room for what is saved.
struct place {
    struct place *before, *next;
    _Alignas(64) uint8_t bytes[];
};

enum work { WORK_OF_CALLER, WORK_COPY, WORK_REDUCE, WORK_FREE };

struct task {
    struct task *next;
    enum work work;
    void *to;
    const void *from, *input;
    size_t count;
    struct device_sum sum;
    struct place *frees; // when it is done, or NULL
};

struct fake {
    struct device_queue queue; // first
    int wake;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct task *first, **last;
    uint64_t asked, done; // fences
    struct place *places;
    uint64_t random;
    bool threaded, closing;
    pthread_t thread;
};

static atomic_int threads;
static atomic_bool held;

void fake_device_hold(bool hold) { atomic_store(&held, hold); }

static uint64_t next_random(struct fake *f) {
    f->random ^= f->random << 13;
    f->random ^= f->random >> 7;
    f->random ^= f->random << 17;
    return f->random;
}

static struct place *place_of(const void *bytes) {
    return (struct place *)(void *)((uint8_t *)(uintptr_t)bytes - offsetof(struct place, bytes));
}

// Lock held.
static void *place_new(struct fake *f, size_t length) {
    struct place *place = aligned_alloc(64, (sizeof *place + length + 63) / 64 * 64);
    if (place == NULL) abort();
    memset(place->bytes, 0xa5, length);
    *place = (struct place){.next = f->places};
    if (f->places != NULL) f->places->before = place;
    f->places = place;
    return place->bytes;
}

static void place_free(struct fake *f, struct place *place) {
    *(place->before == NULL ? &f->places : &place->before->next) = place->next;
    if (place->next != NULL) place->next->before = place->before;
    free(place);
}

static void fail(struct fake *f) {
    device_fail(&f->queue, "it was told to fail");
    if (f->wake >= 0) wake_signal(f->wake);
}

// Lock held. False: the queue fails.
static bool may(struct fake *f) {
    if (device_has_failed(&f->queue)) return false;
    if (!fails()) return true;
    fail(f);
    return false;
}

static void perform(const struct task *task) {
    void *to = fake_device_bytes(task->to);
    const void *from = fake_device_bytes(task->from);
    if (task->work == WORK_COPY) memcpy(to, from, task->count);
    if (task->work != WORK_REDUCE) return;
    unsigned mode = kernels_enter();
    const struct kernels *kernels = kernels_get();
    kernels->reduce[task->sum.op][task->sum.dtype](to, from, fake_device_bytes(task->input), task->count);
    if (task->sum.divisor != 0) kernels->divide[task->sum.dtype](to, task->count, task->sum.divisor);
    kernels_leave(mode);
}

// Lock held. Does what is next in the queue.
static void step(struct fake *f) {
    struct task *task = f->first;
    if (atomic_load(&held) && task->work != WORK_OF_CALLER) {
        if (f->wake >= 0) wake_signal(f->wake); // to look again
        return;
    }
    f->first = task->next;
    if (f->first == NULL) f->last = &f->first;
    bool works = task->work == WORK_COPY || task->work == WORK_REDUCE;
    if (works && may(f)) perform(task);
    if (task->frees != NULL) place_free(f, task->frees);
    free(task);
    f->done++;
    pthread_cond_broadcast(&f->changed);
    if (f->wake >= 0) wake_signal(f->wake);
}

static void *run(void *argument) {
    struct fake *f = argument;
    pthread_mutex_lock(&f->lock);
    while (!f->closing || f->first != NULL) {
        if (f->first == NULL) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        long delay_us = (long)(next_random(f) % DELAY_MOST_US);
        pthread_mutex_unlock(&f->lock);
        nanosleep(&(struct timespec){.tv_nsec = delay_us * US_NS}, NULL);
        pthread_mutex_lock(&f->lock);
        step(f);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

// Lock held. The fence behind it.
static uint64_t ask(struct fake *f, struct task what) {
    struct task *task = malloc(sizeof *task);
    if (task == NULL) abort();
    *task = what;
    task->next = NULL;
    *f->last = task;
    f->last = &task->next;
    pthread_cond_broadcast(&f->changed);
    return ++f->asked;
}

static const struct device fake;

static struct device_queue *fake_open(const void *tensor, int wake) {
    (void)tensor;
    if (fails()) return NULL;
    struct fake *f = calloc(1, sizeof *f);
    if (f == NULL) return NULL;
    f->queue.device = &fake;
    f->wake = wake;
    f->last = &f->first;
    f->random = atomic_fetch_add(&seed, 1) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    ask(f, (struct task){.work = WORK_OF_CALLER});
    f->asked = 0; // its fence is 0, all others come after it
    f->done = UINT64_MAX;
    bool room = atomic_fetch_add(&threads, 1) < THREADS_MAX;
    f->threaded = room && next_random(f) >> 63 && platform_thread_start(&f->thread, "fake:device", run, f);
    if (!f->threaded) atomic_fetch_sub(&threads, 1);
    return &f->queue;
}

static bool is_done(const struct fake *f, uint64_t fence) { return f->done != UINT64_MAX && f->done >= fence; }

// Lock held.
static void finish(struct fake *f) {
    while (f->first != NULL || !is_done(f, f->asked)) {
        if (f->threaded)
            pthread_cond_wait(&f->changed, &f->lock);
        else
            step(f);
    }
}

static void fake_close(struct device_queue *queue) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    finish(f);
    f->closing = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (f->threaded) {
        pthread_join(f->thread, NULL);
        atomic_fetch_sub(&threads, 1);
    }
    while (f->places != NULL) place_free(f, f->places);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static enum device_state fake_passed(struct device_queue *queue, uint64_t fence) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    bool done = is_done(f, fence);
    if (!done && !f->threaded) step(f);
    pthread_mutex_unlock(&f->lock);
    if (device_has_failed(queue)) return DEVICE_FAILED;
    return done ? DEVICE_DONE : DEVICE_BUSY;
}

static uint64_t fake_mark(struct device_queue *queue) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    uint64_t fence = f->asked;
    pthread_mutex_unlock(&f->lock);
    return fence;
}

static bool fake_await(struct device_queue *queue) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    finish(f);
    pthread_mutex_unlock(&f->lock);
    return !device_has_failed(queue);
}

static bool fake_await_fence(struct device_queue *queue, uint64_t fence) {
    enum device_state state;
    while ((state = fake_passed(queue, fence)) == DEVICE_BUSY)
        nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
    return state == DEVICE_DONE;
}

static void fake_set_wake(struct device_queue *queue, int wake) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    f->wake = wake;
    pthread_mutex_unlock(&f->lock);
}

static void *fake_place(struct device_queue *queue, size_t bytes) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    void *place = may(f) ? place_new(f, bytes) : NULL;
    pthread_mutex_unlock(&f->lock);
    return place;
}

static void fake_free(struct device_queue *queue, const void *place) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    ask(f, (struct task){.work = WORK_FREE, .frees = place_of(place)});
    pthread_mutex_unlock(&f->lock);
}

static void fake_give(struct device_queue *queue, void *room) { fake_free(queue, room); }

static const void *fake_map(struct device_queue *queue, const void *tensor, size_t bytes, uint64_t *fence) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    void *place = may(f) ? place_new(f, bytes) : NULL;
    if (place != NULL) *fence = ask(f, (struct task){.work = WORK_COPY, .to = place, .from = tensor, .count = bytes});
    pthread_mutex_unlock(&f->lock);
    return place;
}

static void fake_unstage(struct device_queue *queue, void *tensor, void *staging, size_t bytes) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    ask(f, (struct task){.work = WORK_COPY, .to = tensor, .from = staging, .count = bytes, .frees = place_of(staging)});
    pthread_mutex_unlock(&f->lock);
}

static void fake_reduce(struct device_queue *queue, void *result, void *staging, const void *input, size_t count,
                        const struct device_sum *sum) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    ask(f, (struct task){.work = WORK_REDUCE,
                         .to = result,
                         .from = staging,
                         .input = input,
                         .count = count,
                         .sum = *sum,
                         .frees = place_of(staging)});
    pthread_mutex_unlock(&f->lock);
}

static void fake_copy(struct device_queue *queue, void *to, const void *from, size_t bytes) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    ask(f, (struct task){.work = WORK_COPY, .to = to, .from = from, .count = bytes});
    pthread_mutex_unlock(&f->lock);
}

static bool fake_hash(struct device_queue *queue, uint64_t *leaves, const void *content, uint64_t bytes, uint64_t first,
                      uint64_t count) {
    struct fake *f = (struct fake *)queue;
    pthread_mutex_lock(&f->lock);
    finish(f);
    bool may_hash = may(f);
    pthread_mutex_unlock(&f->lock);
    if (may_hash) hash_leaves(leaves, fake_device_bytes(content), bytes, first, count);
    return may_hash;
}

static const struct device fake = {
    .name = "fake device",
    .owns = owns,
    .open = fake_open,
    .close = fake_close,
    .passed = fake_passed,
    .mark = fake_mark,
    .await = fake_await,
    .await_fence = fake_await_fence,
    .set_wake = fake_set_wake,
    .map = fake_map,
    .unmap = fake_free,
    .staging = fake_place,
    .unstage = fake_unstage,
    .reduce = fake_reduce,
    .take = fake_place,
    .give = fake_give,
    .copy = fake_copy,
    .hash = fake_hash,
};

__attribute__((constructor)) void fake_device(void);
void fake_device(void) {
    const char *wanted = getenv("PCCL_FAKE_DEVICE"), *failing = getenv("PCCL_FAKE_DEVICE_FAILS");
    claims_all = wanted != NULL;
    if (wanted != NULL) atomic_store(&seed, (uint64_t)strtoull(wanted, NULL, 10) << 16 | (uint64_t)getpid());
    if (failing != NULL) fake_device_fail((uint32_t)strtoul(failing, NULL, 10), UINT32_MAX / 2);
    device_add(&fake);
}
