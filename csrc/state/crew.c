#define _GNU_SOURCE
#include "state/crew.h"

#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "base/platform.h"
#include "base/stream.h"
#include "compute/hash.h"
#include "device/device.h"
#include "device/reader.h"
#include "state/content.h"

enum { TELL_JOBS = CREW_JOBS_MOST / 4, PATIENCE_MS = 1000, LOOK_MS = 100 };

_Static_assert((int)HASH_LEAF_BYTES <= (int)READER_BYTES, "a leaf is read at once");

struct crew {
    void (*tell)(void *context);
    void *context;
    struct helper {
        struct crew *crew;
        pthread_t thread;
        struct reader *reader; // its own, once it was left behind
        struct slot *slot;     // at hand
        bool ended, left;
    } helpers[CONTENT_THREADS_MOST];
    unsigned helper_count, working; // of them those that have not ended and were not left behind

    pthread_mutex_t lock; // of what follows; `given` and `taken` are also read by their only writer without it
    pthread_cond_t work, ended;
    bool stopping;
    uint64_t given, begun, taken; // jobs so far; job n is in slot n % CREW_JOBS_MOST
    unsigned untold;              // done since the last call of `tell`
    struct slot {
        struct crew_job job;
        bool done;
    } slots[CREW_JOBS_MOST];
};

static struct slot *slot_of(struct crew *crew, uint64_t number) { return &crew->slots[number % CREW_JOBS_MOST]; }

// False: the device has failed.
static bool bring(const struct crew_job *job, const uint8_t *bytes) {
    uint8_t *landing = job->landing;
    if (landing == NULL && (landing = device_landing(job->queue, job->to, job->length)) == NULL) return false;
    if (landing != bytes) copy_bytes(landing, bytes, job->length);
    device_land(job->queue, job->to, landing, job->length);
    return device_await_fence(job->queue, device_mark(job->queue));
}

void crew_do(struct crew_job *job, struct reader *reader) {
    const uint8_t *bytes = job->landing;
    if (bytes == NULL) bytes = reader_read(reader, job->process, job->from, job->length);
    if (bytes == NULL)
        job->result = CREW_UNREADABLE;
    else if (hash_xxh3_64(bytes, job->length) != job->expected)
        job->result = CREW_WRONG;
    else
        job->result = bring(job, bytes) ? CREW_RIGHT : CREW_UNWRITABLE;
    if (job->result == CREW_WRONG) device_shut(job->queue, job->landing);
}

static void work(struct helper *helper) {
    struct crew *crew = helper->crew;
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        while (!crew->stopping && crew->begun == crew->given) pthread_cond_wait(&crew->work, &crew->lock);
        if (crew->stopping) break;
        struct slot *slot = helper->slot = slot_of(crew, crew->begun++);
        struct crew_job job = slot->job;
        pthread_mutex_unlock(&crew->lock);
        crew_do(&job, helper->reader);
        pthread_mutex_lock(&crew->lock);
        slot->job.result = job.result;
        slot->done = true;
        // Each telling takes the processor from somebody who works. Whoever does the last of the jobs finds no other,
        // so none is forgotten.
        if (++crew->untold < TELL_JOBS && crew->begun < crew->given) continue;
        crew->untold = 0;
        pthread_mutex_unlock(&crew->lock);
        crew->tell(crew->context);
        pthread_mutex_lock(&crew->lock);
    }
    helper->ended = true;
    crew->working--;
    pthread_cond_broadcast(&crew->ended);
    pthread_mutex_unlock(&crew->lock);
}

static void *run(void *context) {
    struct helper *helper = context;
    jmp_buf gone;
    if (setjmp(gone) != 0) return NULL; // it was left behind, and the crew may be no more
    reader_enter(helper->reader, &gone);
    work(helper);
    return NULL;
}

// False: the system refuses.
static bool add_helper(struct crew *crew) {
    lock_assert_held(&crew->lock);
    if (crew->helper_count == CONTENT_THREADS_MOST) return false;
    struct helper *helper = &crew->helpers[crew->helper_count];
    *helper = (struct helper){.crew = crew, .reader = reader_new()};
    if (helper->reader == NULL || !platform_thread_start(&helper->thread, "pccl:leaf", run, helper)) {
        reader_free(helper->reader);
        return false;
    }
    crew->helper_count++;
    crew->working++;
    return true;
}

// When to look again.
static int64_t leave_behind(struct crew *crew) {
    lock_assert_held(&crew->lock);
    int64_t now = platform_now_ns(), next = INT64_MAX, patience = PATIENCE_MS * MS_NS;
    for (unsigned i = 0; i < crew->helper_count; i++) {
        struct helper *helper = &crew->helpers[i];
        if (helper->ended || helper->left) continue;
        helper->left = reader_is_stuck(helper->reader, now, patience) && reader_abandon(helper->reader);
        if (helper->left) {
            pthread_detach(helper->thread);
            helper->slot->job.result = CREW_UNREADABLE;
            helper->slot->done = true;
            crew->working--;
            if (!crew->stopping) add_helper(crew);
        }
        int64_t at = helper->left ? INT64_MAX : reader_look_at(helper->reader, patience);
        if (at < next) next = at;
    }
    // Nobody is there to do the rest.
    while (crew->working == 0 && crew->begun < crew->given) {
        struct slot *slot = slot_of(crew, crew->begun++);
        slot->job.result = CREW_UNREADABLE;
        slot->done = true;
    }
    return next;
}

void crew_watch(struct crew *crew) {
    pthread_mutex_lock(&crew->lock);
    leave_behind(crew);
    pthread_mutex_unlock(&crew->lock);
}

struct crew *crew_new(void (*tell)(void *), void *context) {
    struct crew *crew = calloc(1, sizeof *crew);
    if (crew == NULL) return NULL;
    crew->tell = tell;
    crew->context = context;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->work, NULL);
    platform_cond_init(&crew->ended);
    pthread_mutex_lock(&crew->lock);
    unsigned limit = content_thread_limit();
    while (crew->helper_count < limit && add_helper(crew)) continue;
    pthread_mutex_unlock(&crew->lock);
    if (crew->helper_count > 0) return crew;
    crew_free(crew);
    return NULL;
}

bool crew_give(struct crew *crew, const struct crew_job *job) {
    pthread_mutex_lock(&crew->lock);
    bool room = crew->given - crew->taken < CREW_JOBS_MOST && crew->working > 0;
    if (room) {
        *slot_of(crew, crew->given++) = (struct slot){.job = *job};
        pthread_cond_signal(&crew->work);
    }
    pthread_mutex_unlock(&crew->lock);
    return room;
}

bool crew_take(struct crew *crew, struct crew_job *out) {
    pthread_mutex_lock(&crew->lock);
    struct slot *slot = slot_of(crew, crew->taken);
    bool done = crew->taken < crew->begun && slot->done;
    if (done) {
        *out = slot->job;
        crew->taken++;
    }
    pthread_mutex_unlock(&crew->lock);
    return done;
}

bool crew_has(const struct crew *crew, uint64_t leaf) {
    for (uint64_t n = crew->taken; n < crew->given; n++)
        if (crew->slots[n % CREW_JOBS_MOST].job.leaf == leaf) return true;
    return false;
}

bool crew_idle(const struct crew *crew) { return crew->taken == crew->given; }

void crew_stop(struct crew *crew) {
    pthread_mutex_lock(&crew->lock);
    crew->stopping = true;
    pthread_cond_broadcast(&crew->work);
    pthread_mutex_unlock(&crew->lock);
}

void crew_free(struct crew *crew) {
    if (crew == NULL) return;
    crew_stop(crew);
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        int64_t at = leave_behind(crew), soon = platform_now_ns() + LOOK_MS * MS_NS;
        if (crew->working == 0) break;
        platform_cond_wait(&crew->ended, &crew->lock, at < soon ? at : soon);
    }
    pthread_mutex_unlock(&crew->lock);
    for (unsigned i = 0; i < crew->helper_count; i++) {
        if (crew->helpers[i].left) continue;
        pthread_join(crew->helpers[i].thread, NULL);
        reader_free(crew->helpers[i].reader);
    }
    pthread_cond_destroy(&crew->ended);
    pthread_cond_destroy(&crew->work);
    pthread_mutex_destroy(&crew->lock);
    free(crew);
}
