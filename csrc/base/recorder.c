#define _GNU_SOURCE
#define LOG_COMPONENT "events"
#include "base/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/platform.h"

static const char magic[8] = "pcclevt";

// All numbers are those of this machine; a file with another magic or format is refused by readers.
struct header {
    char magic[8];
    uint32_t format, header_bytes, record_bytes, records;
    uint64_t process;
    int64_t opened_since_1970_ns; // at which the times of records are 0
    uint32_t role;
    uint32_t closed; // 1: the process has closed it
    // The next three are valid if `changes` is even, and the same before and after they are read.
    _Atomic uint32_t changes;
    uint32_t group;
    uint64_t run;
    uint8_t id[RECORDER_ID_BYTES];
    char host[RECORDER_NAME_BYTES], name[RECORDER_NAME_BYTES], run_name[RECORDER_NAME_BYTES];
    int64_t opened_monotonic_ns; // the same time by the clock that nobody sets
};

struct operation {
    uint64_t tag, count, bytes;
    _Atomic uint64_t epoch;
    _Atomic uint32_t sequence;
    uint32_t subgroup, root;
    uint16_t members;             // of the subgroup
    _Atomic uint16_t taking_part; // in the epoch
    uint8_t collective, dtype, op, codec;
    _Atomic uint8_t algorithm;
    uint8_t flags;                       // 1: retry, 2: background
    uint8_t ids[RECORDER_GROUP_MOST][4]; // the beginnings; of a larger subgroup 0
};

struct event {
    uint64_t a, b;
    uint8_t id[RECORDER_ID_BYTES];
    char text[RECORDER_TEXT_BYTES];
};

struct record {
    _Atomic uint64_t serial;
    int64_t at_ns;                      // since the file was opened
    _Atomic int64_t began_ns, ended_ns; // likewise; 0: not yet
    uint16_t kind;
    _Atomic uint8_t result;
    uint8_t spans; // 1: it has an end
    uint32_t unused;
    union {
        struct operation operation;
        struct event event;
    };
};

_Static_assert(sizeof(struct header) <= RECORDER_HEADER_BYTES, "the header fits");
_Static_assert(sizeof(struct record) == RECORDER_RECORD_BYTES, "records have the size that readers expect");
_Static_assert(offsetof(struct record, operation) == 40 && offsetof(struct record, event) == 40, "readers expect it");
_Static_assert(offsetof(struct header, host) == 80 && offsetof(struct header, opened_monotonic_ns) == 296,
               "readers expect it");
_Static_assert(offsetof(struct operation, ids) == 54, "readers expect it");

struct recorder {
    pthread_mutex_t lock; // of what follows and of all writes; a leaf
    uint64_t last[2];     // serials, of records at the beginning and of those of rare events at the end
    uint32_t live;        // records that have an end, and have not ended

    struct header *header; // the mapping
    struct record *records;
    size_t length;
    int64_t opened_ns, touched_ns;
    int fd;
    bool kept; // not removed when it is closed
    char path[RECORDER_PATH_BYTES];
};

static atomic_uint made; // files of this process

// ---- the place ----

// Opens a directory of this user that nobody else can read or write, and makes it first. A negative number: there is
// none.
static int open_directory(const char *path) {
    if (mkdir(path, 0700) != 0 && errno != EEXIST) return -errno;
    descriptor_begin();
    int fd = descriptor_end(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat what;
    if (fd < 0 || (fstat(fd, &what) == 0 && what.st_uid == geteuid() && (what.st_mode & 077) == 0)) return fd;
    descriptor_close(fd);
    return -EACCES;
}

static int open_default(char *path, size_t room) {
    snprintf(path, room, "/dev/shm/pccl-%u", (unsigned)geteuid());
    int fd = open_directory(path);
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    bool foreign = fd == -EACCES; // another user has made it, or may read it
    if (fd < 0 && runtime != NULL && runtime[0] == '/') {
        snprintf(path, room, "%s/pccl", runtime);
        fd = open_directory(path);
    }
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (fd < 0 && foreign && !atomic_flag_test_and_set(&told))
        LOG(LOG_WARN,
            "the flight recorder is off: /dev/shm/pccl-%u belongs to another user, or is open to others; have it "
            "removed, or set PCCL_EVENTS to a directory",
            (unsigned)geteuid());
    return fd;
}

static int create(int directory, const char *name) {
    descriptor_begin();
    return descriptor_end(openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
}

// Whether the file is one of a recorder whose process has died; then it is locked by *fd, which the caller closes.
// `unfinished`: also if it died before it had written the header, which takes it no second.
static bool is_dead(int directory, const char *name, bool unfinished, int *fd) {
    static const char nothing[sizeof magic];
    char begin[sizeof magic] = {0};
    descriptor_begin();
    *fd = descriptor_end(openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    return *fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) == 0 && pread(*fd, begin, sizeof begin, 0) >= 0 &&
           (memcmp(begin, magic, sizeof magic) == 0 || (unfinished && memcmp(begin, nothing, sizeof nothing) == 0));
}

static bool remove_dead(int directory, const char *name, bool unfinished) {
    int fd;
    bool dead = is_dead(directory, name, unfinished, &fd) && unlinkat(directory, name, 0) == 0;
    descriptor_close(fd);
    return dead;
}

// Makes a file, in place of one that a dead process has left.
static int replace_dead(int directory, const char *name) {
    int fd = create(directory, name);
    return fd == -EEXIST && remove_dead(directory, name, false) ? create(directory, name) : fd;
}

struct old_file {
    int64_t at_s;
    char name[64];
};

static int by_age(const void *a, const void *b) {
    const struct old_file *x = a, *y = b;
    return x->at_s < y->at_s ? -1 : x->at_s > y->at_s;
}

// Entry of a directory, as the kernel writes it (getdents64). No fork handler closes the descriptor of a DIR.
struct entry {
    uint64_t inode;
    int64_t next;
    uint16_t length;
    uint8_t type;
    char name[];
};

enum { ENTRIES_BYTES = 8192 };

static bool note_file(int directory, const char *name, struct old_file *out) {
    struct stat what;
    const char *end = strrchr(name, '.');
    if (end == NULL || strcmp(end, ".events") != 0 || strlen(name) >= sizeof out->name) return false;
    if (fstatat(directory, name, &what, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(what.st_mode)) return false;
    out->at_s = what.st_mtime;
    snprintf(out->name, sizeof out->name, "%s", name);
    return true;
}

static size_t list_files(int directory, struct old_file **out) {
    _Alignas(struct entry) char bytes[ENTRIES_BYTES];
    size_t count = 0, room = 0;
    long got;
    while ((got = syscall(SYS_getdents64, directory, bytes, sizeof bytes)) > 0)
        for (long at = 0; at < got; at += ((const struct entry *)(bytes + at))->length) {
            if (!GROW(*out, room, count, RECORDER_KEEP)) return count;
            count += note_file(directory, ((const struct entry *)(bytes + at))->name, &(*out)[count]);
        }
    return count;
}

void recorder_clean(int directory, int64_t now_s) {
    struct old_file *files = NULL;
    size_t count = list_files(directory, &files), left = count;
    if (count > 0) qsort(files, count, sizeof *files, by_age);
    for (size_t i = 0; i < count; i++) {
        int64_t age_s = now_s - files[i].at_s;
        bool due = age_s >= RECORDER_KEEP_S || (left > RECORDER_KEEP && age_s >= RECORDER_YOUNG_S);
        if (due && remove_dead(directory, files[i].name, true)) left--;
    }
    free(files);
}

static void append(char *out, size_t *at, const char *text, size_t length) {
    for (size_t i = 0; i < length && *at + 1 < RECORDER_PATH_BYTES; i++) out[(*at)++] = text[i];
    out[*at] = 0;
}

// %p: the number of the process; %n: the peer's name, with '/' replaced; %%.
static void expand(const char *path, const char *name, char *out) {
    char number[16], clean[RECORDER_NAME_BYTES];
    size_t at = 0;
    snprintf(number, sizeof number, "%d", (int)getpid());
    snprintf(clean, sizeof clean, "%s", name);
    for (char *c = clean; *c != 0; c++)
        if (*c == '/') *c = '_';
    out[0] = 0;
    for (; *path != 0; path++) {
        bool expands = path[0] == '%' && (path[1] == 'p' || path[1] == 'n' || path[1] == '%');
        if (expands) path++;
        if (expands && *path == 'p')
            append(out, &at, number, strlen(number));
        else if (expands && *path == 'n')
            append(out, &at, clean, strlen(clean));
        else
            append(out, &at, path, 1);
    }
}

static void name_file(char *out, size_t room) {
    snprintf(out, room, "%d-%u.events", (int)getpid(), atomic_fetch_add(&made, 1) + 1);
}

// Makes the file that the user names. In a directory it gets a name.
static int create_named(struct recorder *r, const char *path, const char *name) {
    struct stat what;
    expand(path, name, r->path);
    size_t at = strlen(r->path);
    if (stat(r->path, &what) == 0 && S_ISDIR(what.st_mode) && at + 1 < sizeof r->path) {
        r->path[at++] = '/';
        name_file(r->path + at, sizeof r->path - at);
    }
    int fd = replace_dead(AT_FDCWD, r->path);
    if (fd < 0)
        LOG(LOG_WARN, "cannot write events to %s: %s; set PCCL_EVENTS to a path with %%p, or to a directory", r->path,
            fd == -EEXIST ? "another process writes it, or it is another file" : strerror(-fd));
    return fd;
}

static int create_default(struct recorder *r) {
    char name[48];
    int directory = open_default(r->path, sizeof r->path);
    if (directory < 0) return directory;
    recorder_clean(directory, time(NULL));
    int fd = -EEXIST;
    // Containers that share the place number their processes alike.
    for (int i = 0; fd == -EEXIST && i < RECORDER_NAMES; i++) {
        name_file(name, sizeof name);
        fd = replace_dead(directory, name);
    }
    descriptor_close(directory);
    size_t at = strlen(r->path);
    snprintf(r->path + at, sizeof r->path - at, "/%s", name);
    return fd;
}

// Gives the file its blocks now: a write to a mapping for which there is no room would end the process.
static bool reserve(int fd, size_t length) {
    static const char zeros[RECORDER_HEADER_BYTES];
    errno = EFBIG;
    if (!memory_file_may_have(length)) return false;
    if (fallocate(fd, 0, 0, (off_t)length) == 0) return true;
    if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
    for (size_t at = 0; at < length; at += sizeof zeros)
        if (pwrite(fd, zeros, sizeof zeros, (off_t)at) != sizeof zeros) return false;
    return true;
}

// ---- life ----

static bool map(struct recorder *r, uint32_t records) {
    r->length = RECORDER_HEADER_BYTES + (size_t)records * sizeof(struct record);
    if (flock(r->fd, LOCK_EX | LOCK_NB) != 0 || !reserve(r->fd, r->length)) return false;
    void *bytes = mmap(NULL, r->length, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (bytes == MAP_FAILED) return false;
    madvise(bytes, r->length, MADV_DONTFORK);
    r->header = bytes;
    r->records = (struct record *)((uint8_t *)bytes + RECORDER_HEADER_BYTES);
    return true;
}

static void describe(struct recorder *r, const struct recorder_options *options, uint32_t records) {
    struct header *h = r->header;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    r->opened_ns = r->touched_ns = platform_now_ns();
    h->format = RECORDER_FORMAT;
    h->header_bytes = RECORDER_HEADER_BYTES;
    h->record_bytes = sizeof(struct record);
    h->records = records;
    h->process = (uint64_t)getpid();
    h->opened_since_1970_ns = (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
    h->opened_monotonic_ns = r->opened_ns;
    h->role = options->role;
    gethostname(h->host, sizeof h->host - 1);
    snprintf(h->name, sizeof h->name, "%s", options->name);
    snprintf(h->run_name, sizeof h->run_name, "%s", options->run);
    memcpy(h->magic, magic, sizeof magic);
}

struct recorder *recorder_new(const struct recorder_options *options) {
    const char *path = options->path != NULL ? options->path : getenv("PCCL_EVENTS");
    if (path != NULL && strcmp(path, "off") == 0) return NULL;
    struct recorder *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->kept = path != NULL && path[0] != 0;
    uint32_t records = r->kept ? RECORDER_FILE_RECORDS : RECORDER_RECORDS;
    r->fd = r->kept ? create_named(r, path, options->name) : create_default(r);
    if (r->fd < 0) {
        free(r);
        return NULL;
    }
    if (!map(r, records)) {
        LOG(r->kept ? LOG_WARN : LOG_DEBUG, "cannot write events to %s: %s", r->path, strerror(errno));
        unlink(r->path);
        descriptor_close(r->fd);
        free(r);
        return NULL;
    }
    pthread_mutex_init(&r->lock, NULL);
    describe(r, options, records);
    return r;
}

void recorder_free(struct recorder *r) {
    if (r == NULL) return;
    r->header->closed = 1;
    if (!r->kept) unlink(r->path);
    munmap(r->header, r->length);
    descriptor_close(r->fd);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

const char *recorder_path(const struct recorder *r) { return r == NULL ? "" : r->path; }

void recorder_identify(struct recorder *r, uint64_t run, const uint8_t id[RECORDER_ID_BYTES], uint32_t group) {
    if (r == NULL) return;
    pthread_mutex_lock(&r->lock);
    atomic_fetch_add_explicit(&r->header->changes, 1, memory_order_acq_rel);
    r->header->run = run;
    r->header->group = group;
    memcpy(r->header->id, id, RECORDER_ID_BYTES);
    atomic_fetch_add_explicit(&r->header->changes, 1, memory_order_acq_rel);
    pthread_mutex_unlock(&r->lock);
}

// ---- records ----

static bool is_live(const struct record *record) {
    return atomic_load_explicit(&record->serial, memory_order_relaxed) != 0 && record->spans != 0 &&
           atomic_load_explicit(&record->ended_ns, memory_order_relaxed) == 0;
}

// Scale with the steps of a program: they would push out what has happened rarely.
static bool is_frequent(enum recorder_kind kind) {
    return kind == RECORDER_OPERATION || kind == RECORDER_CALL || kind == RECORDER_REPORT || kind == RECORDER_VOTE;
}

static struct record *place_of(const struct recorder *r, bool rare, uint64_t serial) {
    uint32_t few = r->header->records / RECORDER_RARE_PART, many = r->header->records - few;
    return &r->records[rare ? many + serial % few : serial % many];
}

// Writes to a mapping leave the file's time alone once all pages are there; recorder_clean goes by it.
static void touch(struct recorder *r, int64_t at_ns) {
    if (r->kept || at_ns - r->touched_ns < RECORDER_TOUCH_S * SECOND_NS) return;
    r->touched_ns = at_ns;
    futimens(r->fd, NULL);
}

// The record to write next, which is invalid until `put`.
static struct record *take(struct recorder *r, enum recorder_kind kind, int64_t at_ns) {
    lock_assert_held(&r->lock);
    touch(r, at_ns);
    bool rare = !is_frequent(kind);
    uint64_t *last = &r->last[rare];
    do ++*last;
    while (is_live(place_of(r, rare, *last)) && r->live <= r->header->records / 2);
    struct record *record = place_of(r, rare, *last);
    if (is_live(record)) r->live--;
    atomic_exchange_explicit(&record->serial, 0, memory_order_acq_rel);
    record->at_ns = at_ns - r->opened_ns;
    record->kind = (uint16_t)kind;
    record->spans = kind == RECORDER_OPERATION || kind == RECORDER_CALL;
    r->live += record->spans;
    atomic_store_explicit(&record->began_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&record->ended_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&record->result, 0, memory_order_relaxed);
    return record;
}

static uint64_t put(struct recorder *r, struct record *record) {
    uint64_t serial = r->last[!is_frequent((enum recorder_kind)record->kind)];
    atomic_store_explicit(&record->serial, serial, memory_order_release);
    pthread_mutex_unlock(&r->lock);
    return serial;
}

uint64_t recorder_add(struct recorder *r, const struct recorder_event *event) {
    if (r == NULL) return 0;
    int64_t now_ns = platform_now_ns();
    pthread_mutex_lock(&r->lock);
    struct record *record = take(r, event->kind, now_ns);
    record->event = (struct event){.a = event->a, .b = event->b};
    if (event->id != NULL) memcpy(record->event.id, event->id, RECORDER_ID_BYTES);
    if (event->text != NULL) snprintf(record->event.text, RECORDER_TEXT_BYTES, "%s", event->text);
    return put(r, record);
}

uint64_t recorder_add_operation(struct recorder *r, const struct recorder_operation *op, int64_t at_ns) {
    if (r == NULL) return 0;
    pthread_mutex_lock(&r->lock);
    struct record *record = take(r, RECORDER_OPERATION, at_ns);
    record->operation = (struct operation){.tag = op->tag,
                                           .count = op->count,
                                           .bytes = op->bytes,
                                           .subgroup = op->subgroup,
                                           .root = op->root,
                                           .members = op->members,
                                           .collective = op->collective,
                                           .dtype = op->dtype,
                                           .op = op->op,
                                           .codec = op->codec,
                                           .flags = (uint8_t)(op->retry | op->background << 1)};
    for (uint32_t i = 0; op->ids != NULL && op->members <= RECORDER_GROUP_MOST && i < op->members; i++)
        memcpy(record->operation.ids[i], op->ids[i], sizeof record->operation.ids[i]);
    return put(r, record);
}

// Locks the recorder and returns the record, or NULL without the lock if it was overwritten.
static struct record *find_live(struct recorder *r, uint64_t serial) {
    if (r == NULL || serial == 0) return NULL;
    pthread_mutex_lock(&r->lock);
    struct record *record = place_of(r, false, serial);
    if (atomic_load_explicit(&record->serial, memory_order_relaxed) == serial && is_live(record)) return record;
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static int64_t mark(const struct recorder *r, int64_t at_ns) { return at_ns > r->opened_ns ? at_ns - r->opened_ns : 1; }

void recorder_begin(struct recorder *r, uint64_t serial, const struct recorder_beginning *how, int64_t at_ns) {
    struct record *record = find_live(r, serial);
    if (record == NULL) return;
    struct operation *op = &record->operation;
    bool begins = atomic_load_explicit(&record->began_ns, memory_order_relaxed) == 0 ||
                  atomic_load_explicit(&op->epoch, memory_order_relaxed) != how->epoch;
    if (begins) {
        atomic_store_explicit(&op->epoch, how->epoch, memory_order_relaxed);
        atomic_store_explicit(&op->sequence, how->sequence, memory_order_relaxed);
        atomic_store_explicit(&op->taking_part, how->members, memory_order_relaxed);
        atomic_store_explicit(&op->algorithm, how->algorithm, memory_order_relaxed);
        atomic_store_explicit(&record->began_ns, mark(r, at_ns), memory_order_release);
    }
    pthread_mutex_unlock(&r->lock);
}

void recorder_end(struct recorder *r, uint64_t serial, uint8_t result, int64_t at_ns) {
    struct record *record = find_live(r, serial);
    if (record == NULL) return;
    atomic_store_explicit(&record->result, result, memory_order_relaxed);
    atomic_store_explicit(&record->ended_ns, mark(r, at_ns), memory_order_release);
    r->live--;
    pthread_mutex_unlock(&r->lock);
}
