// Forked children have no descriptor of ours, and what is closed has ended, whoever else has it open.
#include "base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "net/socket.h"

enum { PATIENCE_MS = 20000, KINDS = 6, OPENERS = 4, FORKS = 200, LOOKED_AT = 1024 };

static bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

static bool closes_on_exec(int fd) { return (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0; }

static int status_of(pid_t child) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static bool readable(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    return poll(&polled, 1, PATIENCE_MS) == 1;
}

static bool at_end(int fd) {
    uint8_t byte;
    return readable(fd) && read(fd, &byte, 1) == 0;
}

// A listener, and a connection through it.
struct pair {
    int listener, dialed, accepted;
    struct wire_address address;
};

static struct pair pair_open(void) {
    struct wire_address from, any = {.family = 4, .bytes = {127, 0, 0, 1}};
    struct pair pair = {.listener = socket_listen(&any)};
    REQUIRE(pair.listener >= 0 && socket_local_address(pair.listener, &pair.address));
    pair.dialed = socket_dial(&pair.address);
    REQUIRE(pair.dialed >= 0 && readable(pair.listener));
    pair.accepted = socket_accept(pair.listener, &from);
    REQUIRE(pair.accepted >= 0);
    return pair;
}

static void pair_close(struct pair *pair) {
    descriptor_close(pair->dialed);
    descriptor_close(pair->accepted);
    descriptor_close(pair->listener);
}

static bool speaks(const struct pair *pair) {
    uint8_t byte = 0;
    return write(pair->dialed, "x", 1) == 1 && readable(pair->accepted) && read(pair->accepted, &byte, 1) == 1 &&
           byte == 'x';
}

static int open_other(void) {
    descriptor_begin();
    return descriptor_end(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

static int child_sees(const int fds[KINDS], int foreign, uint32_t forks) {
    for (int i = 0; i < KINDS; i++)
        if (is_open(fds[i])) return 10 + i;
    if (!is_open(foreign)) return 1;
    if (descriptor_forks() != forks + 1) return 2;
    struct pair own = pair_open();
    bool works = speaks(&own);
    pair_close(&own);
    return works ? 0 : 3;
}

static void test_a_child_has_none(void) {
    struct pair pair = pair_open();
    int fds[KINDS] = {pair.listener, pair.dialed, pair.accepted, descriptor_epoll(), wake_open(), open_other()},
        foreign = dup(STDERR_FILENO);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = pair.accepted};
    REQUIRE(epoll_ctl(fds[3], EPOLL_CTL_ADD, pair.accepted, &event) == 0);
    for (int i = 0; i < KINDS; i++) CHECK(closes_on_exec(fds[i]));
    uint32_t forks = descriptor_forks();
    pid_t child = fork();
    if (child == 0) _exit(child_sees(fds, foreign, forks));
    REQUIRE(child > 0);
    CHECK_EQ(status_of(child), 0);
    CHECK_EQ(descriptor_forks(), forks);
    CHECK(write(pair.dialed, "x", 1) == 1);
    CHECK_EQ(epoll_wait(fds[3], &event, 1, PATIENCE_MS), 1); // the child has taken nothing out of the set
    CHECK(write(pair.accepted, "y", 1) == 1 && readable(pair.dialed));
    for (int i = 3; i < KINDS; i++) descriptor_close(fds[i]);
    pair_close(&pair);
    close(foreign);
}

// What somebody prints in a program that has closed its standard streams must reach no connection.
static int numbers_without_standard_streams(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++) close(fd);
    struct pair pair = pair_open();
    int fds[KINDS] = {pair.listener, pair.dialed, pair.accepted, descriptor_epoll(), wake_open(), open_other()};
    for (int i = 0; i < KINDS; i++)
        if (fds[i] <= STDERR_FILENO || !closes_on_exec(fds[i])) return 10 + i;
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (is_open(fd)) return 1;
    return speaks(&pair) ? 0 : 2;
}

static void test_standard_streams_stay_closed(void) {
    pid_t child = fork();
    if (child == 0) _exit(numbers_without_standard_streams());
    REQUIRE(child > 0);
    CHECK_EQ(status_of(child), 0);
}

// The child of a process that is killed goes on; the other end hears of the death all the same.
static void test_a_death_shows_though_a_child_lives(void) {
    struct wire_address from, any = {.family = 4, .bytes = {127, 0, 0, 1}};
    int listener = socket_listen(&any), told[2];
    REQUIRE(listener >= 0 && socket_local_address(listener, &any) && pipe(told) == 0);
    pid_t victim = fork();
    if (victim == 0) {
        int fd = socket_dial(&any);
        pid_t child = fork();
        if (child == 0)
            for (;;) pause();
        bool ready = fd >= 0 && child > 0 && write(told[1], &child, sizeof child) == sizeof child;
        while (ready) pause();
        _exit(1);
    }
    pid_t child = 0;
    REQUIRE(read(told[0], &child, sizeof child) == sizeof child);
    REQUIRE(readable(listener));
    int fd = socket_accept(listener, &from);
    CHECK(!socket_has_ended(fd));
    CHECK(kill(victim, SIGKILL) == 0);
    CHECK_EQ(status_of(victim), 1000 + SIGKILL);
    CHECK(at_end(fd));
    CHECK(kill(child, 0) == 0);
    kill(child, SIGKILL);
    descriptor_close(fd);
    descriptor_close(listener);
    close(told[0]);
    close(told[1]);
}

// A duplicate stands for a child that was made without the handlers of fork.
static void test_what_is_closed_has_ended(void) {
    struct pair pair = pair_open();
    int kept = dup(pair.dialed), kept_listener = dup(pair.listener);
    descriptor_close(pair.dialed);
    CHECK(at_end(pair.accepted));
    descriptor_close(pair.listener);
    descriptor_close(pair.accepted);
    int again = socket_listen(&pair.address);
    CHECK(again >= 0);
    descriptor_close(again);
    close(kept);
    close(kept_listener);
}

static void test_what_is_refused(void) {
    CHECK_EQ(descriptor_socket(AF_INET, SOCK_STREAM, 9999), -EINVAL);
    CHECK_EQ(descriptor_accept(STDERR_FILENO, NULL, NULL), -ENOTSOCK);
    descriptor_begin();
    CHECK_EQ(descriptor_end(DESCRIPTORS_MAX), -EMFILE);
    descriptor_close(-1);
}

// ---- forks while threads open and close ----

static atomic_bool stop;
static atomic_uint rounds;

static void *open_and_close(void *context) {
    struct wire_address from, address = *(const struct wire_address *)context;
    int listener = socket_listen(&address);
    REQUIRE(listener >= 0 && socket_local_address(listener, &address));
    while (!atomic_load(&stop)) {
        int fds[4] = {socket_dial(&address), wake_open(), descriptor_epoll(), socket_accept(listener, &from)};
        for (int i = 0; i < 4; i++) descriptor_close(fds[i]);
        atomic_fetch_add(&rounds, 1);
    }
    descriptor_close(listener);
    return NULL;
}

static int child_counts(const bool *known) {
    for (int fd = 0; fd < LOOKED_AT; fd++)
        if (is_open(fd) && !known[fd]) return 1;
    return 0;
}

static void test_forks_beside_threads(void) {
    static bool known[LOOKED_AT];
    for (int fd = 0; fd < LOOKED_AT; fd++) known[fd] = is_open(fd);
    struct wire_address any = {.family = 4, .bytes = {127, 0, 0, 1}};
    pthread_t threads[OPENERS];
    for (int i = 0; i < OPENERS; i++) REQUIRE(pthread_create(&threads[i], NULL, open_and_close, &any) == 0);
    for (int i = 0; i < FORKS; i++) {
        check_case("fork %d", i);
        pid_t child = fork();
        if (child == 0) _exit(child_counts(known));
        REQUIRE(child > 0);
        CHECK_EQ(status_of(child), 0);
    }
    check_case("%s", "");
    atomic_store(&stop, true);
    for (int i = 0; i < OPENERS; i++) pthread_join(threads[i], NULL);
    CHECK(atomic_load(&rounds) > FORKS);
}

int main(void) {
    test_a_child_has_none();
    test_standard_streams_stay_closed();
    test_a_death_shows_though_a_child_lives();
    test_what_is_closed_has_ended();
    test_what_is_refused();
    test_forks_beside_threads();
    return check_status();
}
