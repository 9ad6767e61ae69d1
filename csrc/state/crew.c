#define _GNU_SOURCE
#include "crew.h"

#include <stdlib.h>

#include "../base/platform.h"
#include "../compute/hash.h"
#include "../data/memory.h"
#include "content.h"

enum { TELL_JOBS = CREW_JOBS_MOST / 4 };

struct crew {
    void (*tell)(void *context);
    void *context;
    pthread_t threads[CONTENT_THREADS_MOST];
    unsigned thread_count;

    pthread_mutex_t lock; // of what follows; `given` and `taken` are also read by their only writer without it
    pthread_cond_t work;
    bool stopping;
    uint64_t given, begun, taken; // jobs so far; job n is in slot n % CREW_JOBS_MOST
    unsigned untold;              // done since the last call of `tell`
    struct slot {
        struct crew_job job;
        bool done;
    } slots[CREW_JOBS_MOST];
};

static struct slot *slot_of(struct crew *crew, uint64_t number) { return &crew->slots[number % CREW_JOBS_MOST]; }

void crew_do(struct crew_job *job) {
    if (job->kind == CREW_PLACED && !memory_read(job->process, job->to, job->from, job->length)) {
        job->result = CREW_UNREADABLE;
        return;
    }
    job->result = hash_xxh3_64(job->to, job->length) == job->expected ? CREW_RIGHT : CREW_WRONG;
}

static void *work(void *context) {
    struct crew *crew = context;
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        while (!crew->stopping && crew->begun == crew->given) pthread_cond_wait(&crew->work, &crew->lock);
        if (crew->stopping) break;
        struct slot *slot = slot_of(crew, crew->begun++);
        pthread_mutex_unlock(&crew->lock);
        crew_do(&slot->job);
        pthread_mutex_lock(&crew->lock);
        slot->done = true;
        // Each telling takes the processor from somebody who works. Whoever does the last of the jobs finds no other, so none is forgotten.
        if (++crew->untold < TELL_JOBS && crew->begun < crew->given) continue;
        crew->untold = 0;
        pthread_mutex_unlock(&crew->lock);
        crew->tell(crew->context);
        pthread_mutex_lock(&crew->lock);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

struct crew *crew_new(void (*tell)(void *), void *context) {
    struct crew *crew = calloc(1, sizeof *crew);
    if (crew == NULL) return NULL;
    crew->tell = tell;
    crew->context = context;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->work, NULL);
    unsigned limit = content_thread_limit();
    while (crew->thread_count < limit && platform_thread_start(&crew->threads[crew->thread_count], "pccl:leaf", work, crew)) crew->thread_count++;
    if (crew->thread_count > 0) return crew;
    crew_free(crew);
    return NULL;
}

bool crew_give(struct crew *crew, const struct crew_job *job) {
    pthread_mutex_lock(&crew->lock);
    bool room = crew->given - crew->taken < CREW_JOBS_MOST;
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
    while (crew->thread_count > 0) pthread_join(crew->threads[--crew->thread_count], NULL);
    pthread_cond_destroy(&crew->work);
    pthread_mutex_destroy(&crew->lock);
    free(crew);
}
