#include "master/survivors.h"

#include <stdlib.h>
#include <string.h>

void survivors_init(struct survivors *survivors, uint64_t key) {
    memset(survivors, 0, offsetof(struct survivors, list));
    survivors->due_ns = INT64_MAX;
    claims_init(&survivors->claims, key);
}

static void survivor_free(struct survivor *survivor) {
    free(survivor->resume.barrier.sizes);
    free(survivor->resume.past);
    free(survivor->resume.losses);
    free(survivor);
}

void survivors_fini(struct survivors *survivors) {
    for (uint32_t i = 0; i < survivors->count; i++) {
        if (survivors->list[i]->claim != NULL) claims_release(&survivors->claims, survivors->list[i]->claim);
        survivor_free(survivors->list[i]);
    }
}

struct survivor *survivors_of_conn(const struct survivors *survivors, uint32_t conn) {
    return conn < ACTIONS_MAX_CONNS ? survivors->by_conn[conn] : NULL;
}

bool survivor_is_of(const struct survivor *survivor, const struct desk_run *run) {
    return survivor->resumes && desk_run_equal(&survivor->run, run);
}

struct survivor *survivors_of_id(const struct survivors *survivors, const struct desk *desk, const struct desk_run *run,
                                 const struct wire_id *id) {
    for (struct survivor *at = survivors->by_id[desk_bucket(desk, id)]; at != NULL; at = at->next_by_id)
        if (wire_id_equal(&at->resume.hello.id, id) && desk_run_equal(&at->run, run)) return at;
    return NULL;
}

struct survivor *survivors_member(const struct survivors *survivors, const struct desk *desk, const struct claim *claim,
                                  uint32_t member) {
    return survivors_of_id(survivors, desk, &claim->run, &claim->members[member].id);
}

struct survivor *survivors_add(struct survivors *survivors, struct desk *desk, uint32_t conn,
                               const struct wire_address *source) {
    struct survivor *survivor = survivors->count < WIRE_MAX_MEMBERS ? calloc(1, sizeof *survivor) : NULL;
    if (survivor == NULL) return NULL;
    survivor->conn = conn;
    survivor->source = *source;
    survivor->heard_ns = survivor->since_ns = desk->now_ns;
    survivors->by_conn[conn] = survivor;
    survivors->due = true;
    survivors->due_ns = platform_earlier(survivors->due_ns, desk->now_ns + desk->limit_ns);
    if (survivors->count == 0 && desk->peer_count == 0) desk->heartbeat_at = desk->now_ns + desk->limit_ns / 5;
    survivors->list[survivors->count++] = survivor;
    return survivor;
}

static void *copy_of(const void *items, size_t count, size_t each, bool *whole) {
    if (count == 0) return NULL;
    void *copy = malloc(count * each);
    if (copy == NULL)
        *whole = false;
    else
        memcpy(copy, items, count * each);
    return copy;
}

static bool keep(struct survivor *survivor, const struct wire_resume *resume) {
    bool whole = true;
    survivor->resume = *resume;
    survivor->resume.barrier.sizes =
        copy_of(resume->barrier.sizes, resume->barrier.count, sizeof *resume->barrier.sizes, &whole);
    survivor->resume.past = copy_of(resume->past, resume->past_count, sizeof *resume->past, &whole);
    survivor->resume.losses = copy_of(resume->losses, resume->loss_count, sizeof *resume->losses, &whole);
    return whole;
}

bool survivors_resume(struct survivors *survivors, const struct desk *desk, struct survivor *survivor,
                      const struct desk_run *run, const struct wire_resume *resume) {
    struct survivor **bucket = &survivors->by_id[desk_bucket(desk, &resume->hello.id)];
    if (!keep(survivor, resume)) return false;
    survivor->run = *run;
    if (resume->accepted) {
        bool made;
        struct claim *claim = survivor->claim = claims_hold(&survivors->claims, run, resume, &made);
        if (claim == NULL) return false;
        survivor->resume.epoch.members = claim->members;
        for (uint32_t i = 0; i < claim->count && made; i++)
            if (survivors_member(survivors, desk, claim, i) != NULL) claim_count_member(claim, i, 1);
    }
    survivor->next_by_id = *bucket;
    *bucket = survivor;
    survivor->resumes = true;
    claims_count(&survivors->claims, run, &resume->hello.id, 1);
    return true;
}

void survivors_forget(struct survivors *survivors, const struct desk *desk, struct survivor *survivor) {
    uint32_t i = 0;
    while (survivors->list[i] != survivor) i++;
    // who came first stays first
    memmove(&survivors->list[i], &survivors->list[i + 1], (--survivors->count - i) * sizeof survivors->list[0]);
    survivors->by_conn[survivor->conn] = NULL;
    survivors->due = true;
    if (survivor->resumes) {
        const struct wire_id *id = &survivor->resume.hello.id;
        struct survivor **link = &survivors->by_id[desk_bucket(desk, id)];
        while (*link != survivor) link = &(*link)->next_by_id;
        *link = survivor->next_by_id;
        claims_count(&survivors->claims, &survivor->run, id, -1);
    }
    if (survivor->claim != NULL) claims_release(&survivors->claims, survivor->claim);
    survivor_free(survivor);
}
