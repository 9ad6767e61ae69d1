#include "master/gather.h"

#include <stdlib.h>
#include <string.h>

#include "net/socket.h"
#include "net/wire_control.h"

void survivors_init(struct survivors *survivors, uint64_t key) {
    memset(survivors, 0, offsetof(struct survivors, list));
    survivors->key = key;
    survivors->due_ns = INT64_MAX;
}

struct survivor *survivors_of_conn(const struct survivors *survivors, uint32_t conn) {
    return conn < ACTIONS_MAX_CONNS ? survivors->by_conn[conn] : NULL;
}

bool survivor_is_of(const struct survivor *survivor, const struct run_identity *run) {
    return survivor->resumes && membership_same_run(&survivor->run, run);
}

struct survivor *survivors_of_id(const struct survivors *survivors, const struct run_identity *run,
                                 const struct wire_id *id) {
    for (struct survivor *at = survivors->by_id[membership_bucket(survivors->key, id)]; at != NULL; at = at->next_by_id)
        if (wire_id_equal(&at->resume.hello.id, id) && membership_same_run(&at->run, run)) return at;
    return NULL;
}

// ---- equality of configurations ----

static uint64_t mix(uint64_t digest, const void *bytes, size_t length) {
    for (size_t at = 0; at < length; at += sizeof digest) {
        uint64_t word = 0;
        memcpy(&word, (const uint8_t *)bytes + at, length - at < sizeof word ? length - at : sizeof word);
        digest = (digest ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        digest ^= digest >> 31;
    }
    return digest;
}

static uint64_t digest_of(const struct survivors *survivors, const struct wire_epoch *epoch) {
    uint64_t digest = survivors->key;
    for (uint32_t i = 0; i < epoch->count; i++) {
        const struct wire_member *member = &epoch->members[i];
        uint64_t numbers[] = {member->join_number, (uint64_t)member->group << 32 | member->lanes,
                              (uint64_t)member->address.family << 16 | member->address.port,
                              (uint64_t)member->reach.relays << 48 | (uint64_t)member->reach.closed << 40 |
                                  (uint64_t)member->reach.count << 32 | (uint64_t)member->weight << 16 | member->site};
        digest = mix(digest, member->id.bytes, sizeof member->id.bytes);
        digest = mix(digest, numbers, sizeof numbers);
        digest = mix(digest, member->address.bytes, sizeof member->address.bytes);
        digest = mix(digest, (const uint8_t *)member->name.chars, sizeof member->name.chars);
        for (uint32_t k = 0; k < member->reach.count; k++)
            digest = mix(digest, member->reach.addresses[k].bytes, sizeof member->reach.addresses[k].bytes);
    }
    return digest;
}

static bool is_same_reach(const struct wire_reach *a, const struct wire_reach *b) {
    bool same = a->closed == b->closed && a->relays == b->relays && a->count == b->count;
    for (uint32_t i = 0; same && i < a->count; i++) same = socket_address_equal(&a->addresses[i], &b->addresses[i]);
    return same;
}

static bool is_same_member(const struct wire_member *a, const struct wire_member *b) {
    return wire_id_equal(&a->id, &b->id) && a->join_number == b->join_number && a->group == b->group &&
           a->lanes == b->lanes && a->weight == b->weight && a->site == b->site &&
           socket_address_equal(&a->address, &b->address) && is_same_reach(&a->reach, &b->reach) &&
           memcmp(a->name.chars, b->name.chars, sizeof a->name.chars) == 0;
}

static bool is_same_epoch(const struct configuration *config, const struct wire_resume *resume) {
    const struct wire_epoch *epoch = &resume->epoch;
    const struct wire_quorum *a = &config->quorum, *b = &resume->quorum;
    bool same = config->generation == resume->generation && config->number == epoch->number &&
                config->count == epoch->count && a->members == b->members && a->old_members == b->old_members &&
                a->newer == b->newer;
    for (uint32_t i = 0; i < epoch->count && same; i++) same = is_same_member(&config->members[i], &epoch->members[i]);
    return same;
}

struct configuration *survivors_find_configuration(const struct survivors *survivors, const struct run_identity *run,
                                                   const struct wire_resume *resume) {
    uint64_t digest = digest_of(survivors, &resume->epoch);
    for (uint32_t i = 0; i < survivors->configuration_count; i++) {
        struct configuration *config = survivors->configurations[i];
        if (config->digest == digest && membership_same_run(&config->run, run) && is_same_epoch(config, resume))
            return config;
    }
    return NULL;
}

// ---- configurations come and go ----

static bool is_newer(const struct configuration *a, const struct configuration *b) {
    return a->generation != b->generation ? a->generation > b->generation : a->number > b->number;
}

static void find_newest(struct survivors *survivors, const struct run_identity *run) {
    struct configuration *newest = NULL;
    for (uint32_t i = 0; i < survivors->configuration_count; i++) {
        struct configuration *config = survivors->configurations[i];
        if (!membership_same_run(&config->run, run)) continue;
        config->newest = false;
        if (newest == NULL || is_newer(config, newest)) newest = config;
    }
    if (newest != NULL) newest->newest = true;
}

static void count_member(struct configuration *config, uint32_t member, int by) {
    config->present += (uint32_t)by;
    if (config->members[member].join_number < config->quorum.newer) config->old_members += (uint32_t)by;
}

// A peer of that run came (by 1) or goes (by -1).
static void count(struct survivors *survivors, const struct run_identity *run, const struct wire_id *id, int by) {
    for (uint32_t i = 0; i < survivors->configuration_count; i++) {
        struct configuration *config = survivors->configurations[i];
        if (!membership_same_run(&config->run, run)) continue;
        uint32_t member = wire_find_member(config->members, config->sorted, config->count, id);
        if (member != UINT32_MAX) count_member(config, member, by);
    }
}

// NULL: memory was refused.
static struct configuration *make_configuration(struct survivors *survivors, const struct run_identity *run,
                                                const struct wire_resume *resume) {
    const struct wire_epoch *epoch = &resume->epoch;
    size_t bytes = epoch->count * sizeof *epoch->members;
    struct configuration *config = malloc(sizeof *config + bytes + epoch->count * sizeof *config->sorted);
    if (config == NULL) return NULL;
    *config = (struct configuration){.run = *run,
                                     .generation = resume->generation,
                                     .number = epoch->number,
                                     .digest = digest_of(survivors, epoch),
                                     .quorum = resume->quorum,
                                     .count = epoch->count};
    memcpy(config->members, epoch->members, bytes);
    config->sorted = (uint16_t *)(void *)((uint8_t *)config->members + bytes);
    wire_sort_members(config->members, config->count, config->sorted);
    survivors->configurations[survivors->configuration_count++] = config;
    find_newest(survivors, run);
    for (uint32_t i = 0; i < config->count; i++)
        if (survivors_member(survivors, config, i) != NULL) count_member(config, i, 1);
    return config;
}

static void release_configuration(struct survivors *survivors, struct configuration *config) {
    if (config == NULL || --config->holders > 0) return;
    uint32_t i = 0;
    while (survivors->configurations[i] != config) i++;
    memmove(&survivors->configurations[i], &survivors->configurations[i + 1],
            (--survivors->configuration_count - i) * sizeof survivors->configurations[0]);
    if (config->newest) find_newest(survivors, &config->run);
    free(config);
}

// ---- those that wait come and go ----

struct survivor *survivors_add(struct survivors *survivors, struct membership *table, uint32_t conn,
                               const struct wire_address *source) {
    struct survivor *survivor = survivors->count < WIRE_MAX_MEMBERS ? calloc(1, sizeof *survivor) : NULL;
    if (survivor == NULL) return NULL;
    survivor->conn = conn;
    survivor->source = *source;
    survivor->heard_ns = survivor->since_ns = table->now_ns;
    survivors->by_conn[conn] = survivor;
    survivors->due = true;
    survivors->due_ns = platform_earlier(survivors->due_ns, table->now_ns + table->limit_ns);
    if (survivors->count == 0 && table->peer_count == 0) table->heartbeat_at = table->now_ns + table->limit_ns / 5;
    survivors->list[survivors->count++] = survivor;
    return survivor;
}

static void *copy_of(const void *items, size_t bytes, bool *refused) {
    void *copy = bytes > 0 ? malloc(bytes) : NULL;
    if (copy != NULL) memcpy(copy, items, bytes);
    *refused |= copy == NULL && bytes > 0;
    return copy;
}

bool survivors_resume(struct survivors *survivors, struct survivor *survivor, const struct run_identity *run,
                      const struct wire_resume *resume) {
    struct wire_resume *mine = &survivor->resume;
    struct survivor **bucket = &survivors->by_id[membership_bucket(survivors->key, &resume->hello.id)];
    bool refused = false;
    *mine = *resume;
    mine->last_vote.sizes =
        copy_of(mine->last_vote.sizes, mine->last_vote.count * sizeof *mine->last_vote.sizes, &refused);
    mine->past = copy_of(mine->past, mine->past_count * sizeof *mine->past, &refused);
    mine->losses = copy_of(mine->losses, mine->loss_count * sizeof *mine->losses, &refused);
    if (refused) return false;
    survivor->run = *run;
    if (resume->accepted) {
        struct configuration *config = survivors_find_configuration(survivors, run, resume);
        if (config == NULL) config = make_configuration(survivors, run, resume);
        if (config == NULL) return false;
        config->holders++;
        survivor->config = config;
        mine->epoch.members = config->members;
    }
    survivor->next_by_id = *bucket;
    *bucket = survivor;
    survivor->resumes = true;
    count(survivors, run, &resume->hello.id, 1);
    return true;
}

void survivors_forget(struct survivors *survivors, struct survivor *survivor) {
    uint32_t i = 0;
    while (survivors->list[i] != survivor) i++;
    memmove(&survivors->list[i], &survivors->list[i + 1], (--survivors->count - i) * sizeof survivors->list[0]);
    survivors->by_conn[survivor->conn] = NULL;
    survivors->due = true;
    if (survivor->resumes) {
        const struct wire_id *id = &survivor->resume.hello.id;
        struct survivor **link = &survivors->by_id[membership_bucket(survivors->key, id)];
        while (*link != survivor) link = &(*link)->next_by_id;
        *link = survivor->next_by_id;
        count(survivors, &survivor->run, id, -1);
    }
    release_configuration(survivors, survivor->config);
    free(survivor->resume.last_vote.sizes);
    free(survivor->resume.past);
    free(survivor->resume.losses);
    free(survivor);
}

void survivors_fini(struct survivors *survivors) {
    while (survivors->count > 0) survivors_forget(survivors, survivors->list[survivors->count - 1]);
}

// ---- majorities ----

uint32_t configuration_quorum(const struct configuration *config) {
    uint32_t majority = config->count / 2 + 1;
    return config->quorum.members > majority ? config->quorum.members : majority;
}

bool configuration_has_majority(const struct configuration *config) {
    return config != NULL && config->present >= configuration_quorum(config) &&
           config->old_members >= config->quorum.old_members;
}

struct configuration *survivors_best_configuration(const struct survivors *survivors) {
    struct configuration *best = NULL;
    for (uint32_t i = 0; i < survivors->configuration_count; i++) {
        struct configuration *config = survivors->configurations[i];
        if (!config->newest) continue;
        bool better =
            best == NULL || (configuration_has_majority(config) && !configuration_has_majority(best)) ||
            (configuration_has_majority(config) == configuration_has_majority(best) && config->present > best->present);
        if (better) best = config;
    }
    return best;
}

uint32_t configuration_group_end(const struct configuration *config, uint32_t begin) {
    uint32_t end = begin;
    while (end < config->count && config->members[end].group == config->members[begin].group) end++;
    return end;
}
