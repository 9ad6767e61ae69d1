// The file of the flight recorder as a reader finds it: after wrap-around, while it is written, and after a crash.
#define _GNU_SOURCE
#include "base/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/platform.h"
#include "check.h"

enum { RECORDS = RECORDER_FILE_RECORDS, FEW = RECORDS / RECORDER_RARE_PART, MANY = RECORDS - FEW };

static char folder[] = "/tmp/pccl-recorder-XXXXXX";
static char path[64];

// A record as a reader sees it.
struct seen {
    uint64_t serial;
    int64_t at_ns, began_ns, ended_ns;
    uint16_t kind;
    uint8_t result, spans;
    uint32_t unused;
    uint64_t a, b; // of an event; tag and count of an operation
    uint8_t id[RECORDER_ID_BYTES];
    char text[RECORDER_TEXT_BYTES];
};
_Static_assert(sizeof(struct seen) == RECORDER_RECORD_BYTES, "as in the file");

static struct seen first[RECORDS], second[RECORDS], third[RECORDS];

static void copy(struct seen *out) {
    int fd = open(path, O_RDONLY);
    REQUIRE(fd >= 0);
    size_t at = 0, bytes = RECORDS * sizeof *out;
    for (ssize_t got; at < bytes; at += (size_t)got) {
        got = pread(fd, (char *)out + at, bytes - at, (off_t)(RECORDER_HEADER_BYTES + at));
        REQUIRE(got > 0);
    }
    close(fd);
}

static struct recorder *open_recorder(void) {
    struct recorder *r =
        recorder_new(&(struct recorder_options){.role = RECORDER_PEER, .path = path, .name = "a/b", .run = "night"});
    REQUIRE(r != NULL);
    return r;
}

static uint64_t add(struct recorder *r, uint64_t number) {
    return recorder_add(r, &(struct recorder_event){.kind = RECORDER_REPORT, .a = number, .text = "text"});
}

static uint64_t add_operation(struct recorder *r, uint64_t tag) {
    return recorder_add_operation(r, &(struct recorder_operation){.tag = tag, .count = 8}, platform_now_ns());
}

static void begin(struct recorder *r, uint64_t serial, uint64_t epoch, int64_t at_ns) {
    recorder_begin(r, serial, &(struct recorder_beginning){.epoch = epoch, .sequence = 9, .members = 4}, at_ns);
}

static void test_marks(void) {
    struct recorder *r = open_recorder();
    static const uint8_t id[RECORDER_ID_BYTES] = {1, 2, 3};
    recorder_identify(r, 7, id, 2);
    uint64_t serial = add_operation(r, 5);
    copy(first);
    struct seen *op = &first[serial % MANY];
    CHECK_EQ(op->serial, serial);
    CHECK_EQ(op->a, 5);
    CHECK_EQ(op->began_ns, 0);
    CHECK_EQ(op->ended_ns, 0);
    begin(r, serial, 3, platform_now_ns());
    recorder_end(r, serial, 2, platform_now_ns());
    recorder_end(r, serial, 5, platform_now_ns()); // it has ended: ignored
    recorder_end(r, 0, 5, platform_now_ns());
    recorder_end(r, serial + MANY, 5, platform_now_ns());
    copy(first);
    CHECK(op->began_ns > 0 && op->ended_ns >= op->began_ns);
    CHECK_EQ(op->result, 2);
    recorder_free(r);
    CHECK_EQ(access(path, F_OK), 0); // a file that was asked for stays
}

// The segments of a call begin one after another: the first tells when the call has begun, in each epoch.
static void test_segments(void) {
    struct recorder *r = open_recorder();
    int64_t now_ns = platform_now_ns();
    uint64_t serial = add_operation(r, 5);
    begin(r, serial, 3, now_ns + 100);
    begin(r, serial, 3, now_ns + 200);
    copy(first);
    begin(r, serial, 4, now_ns + 300);
    begin(r, serial, 4, now_ns + 400);
    copy(second);
    CHECK_EQ(second[serial % MANY].began_ns - first[serial % MANY].began_ns, 200);
    recorder_end(r, serial, 0, now_ns + 500);
    recorder_free(r);
}

static void test_wrap_around(void) {
    struct recorder *r = open_recorder();
    uint64_t open_op = add_operation(r, 1);
    uint64_t epoch = recorder_add(r, &(struct recorder_event){.kind = RECORDER_EPOCH, .a = 77});
    for (uint64_t i = 0; i < 3 * RECORDS; i++) add(r, i);
    copy(first);
    CHECK_EQ(first[MANY + epoch % FEW].a, 77);       // rare events are not pushed out
    CHECK_EQ(first[open_op % MANY].serial, open_op); // it has not ended, so it is still there
    uint64_t newest = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK(first[i].serial != 0 && first[i].serial % MANY == i);
        if (first[i].serial > newest) newest = first[i].serial;
    }
    CHECK_EQ(first[newest % MANY].a, 3 * RECORDS - 1);
    recorder_end(r, open_op, 0, platform_now_ns());
    for (uint64_t i = 0; i < RECORDS; i++) add(r, i);
    copy(first);
    CHECK(first[open_op % MANY].serial != open_op);
    // More that have not ended than the half: the oldest ones go, and their ends are ignored.
    uint64_t begun[2 * RECORDS];
    for (uint64_t i = 0; i < 2 * RECORDS; i++) begun[i] = add_operation(r, i);
    for (uint64_t i = 0; i < 2 * RECORDS; i++) recorder_end(r, begun[i], 0, platform_now_ns());
    copy(first);
    uint32_t ended = 0;
    for (uint32_t i = 0; i < RECORDS; i++) ended += first[i].kind == RECORDER_OPERATION && first[i].ended_ns != 0;
    CHECK(ended > RECORDS / 2);
    for (uint64_t i = 0; i < 2 * RECORDS; i++) recorder_end(r, add_operation(r, i), 0, platform_now_ns());
    recorder_free(r);
}

enum { WRITERS = 3, ROUNDS = 20000 };

// Every record of a writer has its letter in all of its bytes that a reader compares.
static void *write_many(void *argument) {
    struct recorder *r = argument;
    static atomic_int writers;
    char text[RECORDER_TEXT_BYTES];
    uint8_t id[RECORDER_ID_BYTES];
    for (int i = 0; i < ROUNDS; i++) {
        int letter = 'a' + (atomic_fetch_add(&writers, 1) % 26);
        memset(text, letter, sizeof text - 1);
        text[sizeof text - 1] = 0;
        memset(id, letter, sizeof id);
        uint64_t serial = recorder_add(
            r, &(struct recorder_event){.kind = RECORDER_CALL, .a = (uint64_t)letter, .id = id, .text = text});
        recorder_end(r, serial, (uint8_t)letter, platform_now_ns());
    }
    return NULL;
}

static uint32_t check_whole(void) {
    uint32_t whole = 0;
    copy(first);
    copy(second);
    copy(third);
    for (uint32_t i = 0; i < MANY; i++) {
        const struct seen *at = &second[i];
        if (at->serial == 0 || first[i].serial != at->serial || third[i].serial != at->serial) continue;
        whole++;
        bool good = at->kind == RECORDER_CALL && at->b == 0 && at->text[RECORDER_TEXT_BYTES - 1] == 0;
        for (int k = 0; k < RECORDER_ID_BYTES; k++) good = good && at->id[k] == at->a;
        for (int k = 0; k < RECORDER_TEXT_BYTES - 1; k++) good = good && (uint8_t)at->text[k] == at->a;
        good =
            good && (first[i].ended_ns == 0 || at->result == at->a); // the mark of the first copy, the rest of the next
        CHECK(good);
    }
    return whole;
}

static void test_reading_beside_writers(void) {
    struct recorder *r = open_recorder();
    pthread_t threads[WRITERS];
    uint32_t whole = 0;
    for (int i = 0; i < WRITERS; i++) REQUIRE(pthread_create(&threads[i], NULL, write_many, r) == 0);
    for (int i = 0; i < 20; i++) whole += check_whole();
    // All may be written over between two copies, until the writers have ended.
    AWAIT(whole > 0, whole += check_whole());
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(check_whole(), MANY); // nobody writes any more
    recorder_free(r);
}

static void test_crash(void) {
    int ends[2], status;
    char byte;
    REQUIRE(pipe(ends) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        struct recorder *r = open_recorder();
        write_many(r);
        if (write(ends[1], "x", 1) == 1)
            for (;;) write_many(r);
        _exit(1);
    }
    REQUIRE(read(ends[0], &byte, 1) == 1);
    int fd = open(path, O_RDONLY);
    CHECK(flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK); // it lives
    REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    CHECK_EQ(flock(fd, LOCK_SH | LOCK_NB), 0);
    close(fd);
    close(ends[0]);
    close(ends[1]);
    CHECK(check_whole() >= MANY - 1);     // at most the one that was being written is missing
    struct recorder *r = open_recorder(); // in its place
    CHECK_EQ(add(r, 1), 1);
    struct recorder *other =
        recorder_new(&(struct recorder_options){.role = RECORDER_PEER, .path = path, .name = "", .run = ""});
    CHECK(other == NULL); // in use
    recorder_free(r);
}

static bool is_there(const char *name) {
    char at[128];
    snprintf(at, sizeof at, "%s/%s", folder, name);
    return access(at, F_OK) == 0;
}

static void make(const char *name, const char *content, int64_t age_s) {
    char at[128];
    snprintf(at, sizeof at, "%s/%s", folder, name);
    int fd = open(at, O_WRONLY | O_CREAT, 0600);
    REQUIRE(fd >= 0 && write(fd, content, 8) == 8);
    struct timespec times[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};
    CHECK_EQ(futimens(fd, times), 0);
    close(fd);
}

static int open_folder(void) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY);
    REQUIRE(fd >= 0);
    return fd;
}

static void clean(void) {
    int fd = open_folder();
    recorder_clean(fd, time(NULL));
    close(fd);
}

static void test_cleaning(void) {
    char name[64];
    make("old.events", "pcclevt", RECORDER_KEEP_S + 5);
    make("new.events", "pcclevt", 60);
    make("foreign.events", "anybody", RECORDER_KEEP_S + 5);
    make("old.txt", "pcclevt", RECORDER_KEEP_S + 5);
    make("unfinished.events", "\0\0\0\0\0\0\0", RECORDER_KEEP_S + 5); // its process died before it wrote a header
    clean();
    CHECK(!is_there("old.events") && is_there("new.events") && is_there("foreign.events") && is_there("old.txt"));
    CHECK(!is_there("unfinished.events"));
    for (int i = 0; i < RECORDER_KEEP + 3; i++) {
        snprintf(name, sizeof name, "many-%d.events", i);
        make(name, "pcclevt", 1000 + i);
    }
    make("held.events", "pcclevt", 5000);
    snprintf(name, sizeof name, "%s/held.events", folder);
    int held = open(name, O_RDONLY);
    CHECK_EQ(flock(held, LOCK_EX | LOCK_NB), 0); // its process lives
    clean();
    CHECK(is_there("held.events") && is_there("new.events") && is_there("many-0.events"));
    snprintf(name, sizeof name, "many-%d.events", RECORDER_KEEP + 2);
    CHECK(!is_there(name)); // the oldest
    close(held);
}

static void test_places(void) {
    char old[sizeof path], at[128];
    strcpy(old, path);
    snprintf(path, sizeof path, "%s/%%n-%%%%-%%p-%%x", folder);
    struct recorder *r = open_recorder();
    snprintf(at, sizeof at, "%s/a_b-%%-%d-%%x", folder, (int)getpid());
    CHECK_STR(recorder_path(r), at);
    CHECK_EQ(access(at, F_OK), 0);
    recorder_free(r);
    strcpy(path, folder); // a directory
    r = open_recorder();
    CHECK(strncmp(recorder_path(r), folder, strlen(folder)) == 0 && strstr(recorder_path(r), ".events") != NULL);
    recorder_free(r);
    make("precious", "mine....", 0);
    static const char *const refused[] = {"off", "/nowhere/at/all", "precious"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(at, sizeof at, "%s%s%s", i == 2 ? folder : "", i == 2 ? "/" : "", refused[i]);
        CHECK(recorder_new(&(struct recorder_options){.role = RECORDER_PEER, .path = at, .name = "", .run = ""}) ==
              NULL);
    }
    CHECK(is_there("precious"));
    strcpy(path, old);
    // The default place: private, and removed by a clean end.
    unsetenv("PCCL_EVENTS");
    r = recorder_new(&(struct recorder_options){.role = RECORDER_MASTER, .name = "", .run = ""});
    if (r == NULL) return; // a machine without /dev/shm
    struct stat what;
    snprintf(at, sizeof at, "%s", recorder_path(r));
    CHECK(stat(at, &what) == 0 && (what.st_mode & 0777) == 0600);
    recorder_free(r);
    CHECK(access(at, F_OK) != 0);
}

// Another user has made the default place first: one warning says so.
static void test_foreign_place(void) {
    uid_t user = 1000000 + (uid_t)getpid();
    char at[64];
    snprintf(at, sizeof at, "/dev/shm/pccl-%u", user);
    if (getuid() != 0 || mkdir(at, 0700) != 0) return;
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        struct log_line line;
        int told = 0;
        unsetenv("PCCL_EVENTS");
        unsetenv("XDG_RUNTIME_DIR");
        if (log_capture_begin() < 0 || seteuid(user) != 0) _exit(100);
        for (int i = 0; i < 2; i++)
            if (recorder_new(&(struct recorder_options){.role = RECORDER_PEER, .name = "", .run = ""}) != NULL)
                _exit(101);
        while (log_capture_take(&line)) told += strstr(line.text, at) != NULL;
        _exit(told);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 1);
    rmdir(at);
}

static void test_none(void) {
    CHECK_EQ(add(NULL, 1), 0);
    CHECK_EQ(add_operation(NULL, 1), 0);
    recorder_begin(NULL, 1, &(struct recorder_beginning){0}, 0);
    recorder_end(NULL, 1, 0, 0);
    recorder_identify(NULL, 1, (const uint8_t[RECORDER_ID_BYTES]){0}, 0);
    recorder_free(NULL);
    CHECK_STR(recorder_path(NULL), "");
}

int main(void) {
    char command[128];
    REQUIRE(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/one", folder);
    test_none();
    test_marks();
    test_segments();
    test_wrap_around();
    test_reading_beside_writers();
    test_crash();
    test_cleaning();
    test_places();
    test_foreign_place();
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK_EQ(system(command), 0);
    return check_status();
}
