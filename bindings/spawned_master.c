// The master as a program of its own. `pccl master`, `pccl_master` and torch's init_process_group start it, because it
// listens within milliseconds. They check the options of the user and look names up before.
//
//     spawned_master --listen IP:PORT [--host TEXT] [--masters IP:PORT,... [--place N]] [--heartbeat-limit MS]
//                    [--until-empty MS] [--end-on-sigterm] [--new] [--background | --leave] [--log DESCRIPTOR]
//                    [--keys FILE [--own-keys] | --cert FILE --key FILE --ca FILE] [--insecure]
//
// --host is the name of the listen address in what it prints. --place is the index of this master in the list; without
// it, the list contains the listen address. With --new, nobody was ever at its address, so that newcomers do not wait
// for members of an earlier run. With --own-keys, the folder of the keys is that of one job, and each process that needs
// it locks it (pccl/_run/own_keys.py). The master holds the folder, and removes it at the end if nobody else holds it.
//
// The program prints `pccl master listening on HOST:PORT`. SIGINT ends the run. SIGTERM detaches the master; with
// --end-on-sigterm it ends the run. With --background it returns once the master listens. With --leave it returns at
// once, which spares a busy machine a change of processes: the caller learns from the output whether the master
// listens. The master continues in a session of its own with / as its directory. It keeps no open file but DESCRIPTOR,
// which gets its output once it listens, and the folder of its own keys.
//
// Exit status: 0 ended by a signal or by --until-empty, 1 cannot listen, 2 wrong arguments.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/ext.h"
#include "ccoip.h"

#define OWN_KEYS_PREFIX "pccl-keys-" // of the folders of pccl/_run/own_keys.py

enum {
    MOST_MASTERS = 16,
    FIRST_DESCRIPTOR = 3,
    MOST_DESCRIPTORS = 1 << 16,
    PRIVILEGED_PORTS = 1024, // ports below need a privilege
    MOST_ADDRESS = 272,      // a name and a port
    KEYS_BYTES = 3 * PATH_MAX,
    MOST_WORDS = 1 << 16, // bytes that a master in the background prints before it listens
};

struct options {
    const char *listen, *host, *masters, *place, *keys, *cert, *key, *ca;
    ccoip_socket_address_t address, list[MOST_MASTERS];
    size_t count, self;                             // masters in `list`, and the index of this one
    unsigned long heartbeat_ms, until_empty_ms;     // 0: not given
    unsigned long log;                              // 0: not given
    int new, own_keys, insecure, background, leave; // flags of getopt_long
};

static pcclMasterInstance_t *master; // set before the handlers are installed
static int sigterm_ends;             // a flag; otherwise it detaches

static void stop(int number) {
    if (number == SIGINT || sigterm_ends)
        pcclInterruptMaster(master);
    else
        pcclDetachMaster(master);
}

static bool read_number(const char *text, unsigned long most, unsigned long *out) {
    char *end;
    errno = 0;
    *out = strtoul(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0 && *out <= most;
}

// Reads 1.2.3.4:5 or [::1]:5 from `length` characters; the port may be 0.
static bool read_address(const char *text, size_t length, ccoip_socket_address_t *out) {
    char copy[80];
    unsigned long port;
    if (length >= sizeof copy) return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    char *host = copy, *colon = strrchr(copy, ':');
    if (colon == NULL || !read_number(colon + 1, UINT16_MAX, &port)) return false;
    *colon = 0;
    out->port = (uint16_t)port;
    size_t width = strlen(host);
    if (width < 2 || host[0] != '[' || host[width - 1] != ']') {
        out->inet.protocol = inetIPv4;
        return inet_pton(AF_INET, host, out->inet.ipv4.data) == 1;
    }
    host[width - 1] = 0;
    out->inet.protocol = inetIPv6;
    return inet_pton(AF_INET6, host + 1, out->inet.ipv6.data) == 1;
}

static bool read_list(struct options *options) {
    unsigned long place = MOST_MASTERS;
    for (const char *text = options->masters;; text++) {
        size_t length = strcspn(text, ",");
        if (options->count == MOST_MASTERS || !read_address(text, length, &options->list[options->count])) return false;
        if (strlen(options->listen) == length && memcmp(text, options->listen, length) == 0) place = options->count;
        options->count++;
        text += length;
        if (*text == 0) break;
    }
    if (options->place != NULL && !read_number(options->place, MOST_MASTERS, &place)) return false;
    options->self = place;
    return place < options->count;
}

static bool read_options(struct options *options, int count, char **words) {
    const struct option names[] = {
        {"listen", required_argument, NULL, 'l'},
        {"host", required_argument, NULL, 'h'},
        {"masters", required_argument, NULL, 'm'},
        {"place", required_argument, NULL, 'p'},
        {"until-empty", required_argument, NULL, 'u'},
        {"heartbeat-limit", required_argument, NULL, 'b'},
        {"log", required_argument, NULL, 'f'},
        {"keys", required_argument, NULL, 'k'},
        {"own-keys", no_argument, &options->own_keys, true},
        {"cert", required_argument, NULL, 'c'},
        {"key", required_argument, NULL, 'y'},
        {"ca", required_argument, NULL, 'a'},
        {"end-on-sigterm", no_argument, &sigterm_ends, true},
        {"new", no_argument, &options->new, true},
        {"insecure", no_argument, &options->insecure, true},
        {"background", no_argument, &options->background, true},
        {"leave", no_argument, &options->leave, true},
        {NULL, 0, NULL, 0},
    };
    bool fine = true;
    opterr = 0;
    for (int option; (option = getopt_long(count, words, "", names, NULL)) != -1;) switch (option) {
        case 'l': options->listen = optarg; break;
        case 'h': options->host = optarg; break;
        case 'm': options->masters = optarg; break;
        case 'p': options->place = optarg; break;
        case 'u': fine = fine && read_number(optarg, UINT32_MAX, &options->until_empty_ms); break;
        case 'b': fine = fine && read_number(optarg, UINT32_MAX, &options->heartbeat_ms); break;
        case 'f': fine = fine && read_number(optarg, INT32_MAX, &options->log); break;
        case 'k': options->keys = optarg; break;
        case 'c': options->cert = optarg; break;
        case 'y': options->key = optarg; break;
        case 'a': options->ca = optarg; break;
        case 0: break; // a flag
        default: fine = false;
        }
    if (!fine || optind < count || options->listen == NULL) return false;
    if (!read_address(options->listen, strlen(options->listen), &options->address)) return false;
    return options->masters == NULL || read_list(options);
}

// *misused: the options are wrong, or their files.
static pcclResult_t run(const struct options *options, bool *misused) {
    struct pccl_ext_master_settings settings = {.heartbeat_limit_ms = (uint32_t)options->heartbeat_ms,
                                                .idle_limit_ms = (uint32_t)options->until_empty_ms,
                                                .new = options->new,
                                                .insecure = options->insecure,
                                                .keys = options->keys,
                                                .masters = options->list,
                                                .master_count = options->count,
                                                .self = options->self};
    pcclResult_t result = pcclCreateMaster(options->address, &master);
    if (result == pcclSuccess) result = pccl_ext_master_configure(master, &settings);
    if (result == pcclSuccess) result = pccl_ext_master_check_command(master);
    *misused = result == pcclInvalidArgument;
    return result == pcclSuccess ? pcclRunMaster(master) : result;
}

static void print_failure(const struct options *options, bool misused) {
    const char *detail = pccl_ext_detail();
    uint16_t port = options->address.port;
    char address[MOST_ADDRESS];
    snprintf(address, sizeof address, "%s:%d", options->host, port);
    if (!misused && port > 0 && port < PRIVILEGED_PORTS && strstr(detail, strerror(EACCES)) != NULL)
        fprintf(stderr,
                "pccl master cannot listen on %s: Permission denied; a port below %d needs root or "
                "CAP_NET_BIND_SERVICE: choose a higher port, such as %d\n",
                address, PRIVILEGED_PORTS, CCOIP_PROTOCOL_PORT_MASTER);
    else if (strstr(detail, address) != NULL)
        fprintf(stderr, "pccl master cannot listen: %s\n", detail);
    else
        fprintf(stderr, "pccl master cannot listen on %s: %s\n", address, detail);
}

// Returns a descriptor that holds the folder of the job's own keys. -1: there is none, or it cannot be held. Its name
// must be that of such a folder, since its keys are removed.
static int hold_keys(const struct options *options, char folder[PATH_MAX]) {
    const char *slash = options->own_keys && options->keys != NULL ? strrchr(options->keys, '/') : NULL;
    if (slash == NULL || slash == options->keys) return -1;
    snprintf(folder, PATH_MAX, "%.*s", (int)(slash - options->keys), options->keys);
    const char *before = strrchr(folder, '/');
    if (before == NULL || strncmp(before + 1, OWN_KEYS_PREFIX, sizeof OWN_KEYS_PREFIX - 1) != 0) return -1;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_SH) == 0) return fd;
    close(fd);
    return -1;
}

static void release_keys(int fd, const char *folder) {
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        unlinkat(fd, "run.master", 0);
        unlinkat(fd, "run.peer", 0);
        rmdir(folder);
    }
    if (fd >= 0) close(fd);
}

// Returns the exit status, once the master has ended. `log` gets the output from when it listens; -1: it stays.
static int serve(const struct options *options, int log) {
    uint16_t port = 0;
    bool misused = false;
    char folder[PATH_MAX] = "";
    int keys = hold_keys(options, folder);
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); // until they are handled
    pcclResult_t result = run(options, &misused);
    if (result == pcclSuccess) result = pccl_ext_master_port(master, &port);
    if (result != pcclSuccess) {
        print_failure(options, misused);
        release_keys(keys, folder);
        return misused ? 2 : 1;
    }
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    bool told = printf("pccl master listening on %s:%d\n", options->host, port) >= 0 && fflush(stdout) == 0;
    if (log >= 0) {
        if (!told) { // who has started it waits no more
            release_keys(keys, folder);
            return 1;
        }
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        close(log);
    }
    pthread_sigmask(SIG_UNBLOCK, &ends, NULL);
    pcclMasterAwaitTermination(master);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); // the handler uses the master
    pcclDestroyMaster(master);
    release_keys(keys, folder);
    return 0;
}

static void close_from(int first) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0U, 0) == 0) return;
#endif
    for (int fd = first; fd < MOST_DESCRIPTORS; fd++) close(fd);
}

// Runs in the child, which prints to `words` until it listens.
static int serve_alone(const struct options *options, int words) {
    int null = open("/dev/null", O_RDWR);
    int log = fcntl(options->log > 0 ? (int)options->log : null, F_DUPFD, FIRST_DESCRIPTOR);
    setsid();
    dup2(words, STDOUT_FILENO);
    dup2(words, STDERR_FILENO);
    if (null < 0 || log < 0 || chdir("/") != 0) {
        fprintf(stderr, "pccl master cannot write its log: %s\n", strerror(errno));
        return 1;
    }
    dup2(null, STDIN_FILENO);
    dup2(log, FIRST_DESCRIPTOR);
    close_from(FIRST_DESCRIPTOR + 1);
    return serve(options, FIRST_DESCRIPTOR);
}

// Returns the exit status, once the master listens or has ended.
static int serve_in_background(const struct options *options) {
    char words[MOST_WORDS] = "", rest[512];
    size_t length = 0;
    ssize_t got = 1;
    int ends[2], status;
    pid_t child = pipe(ends) == 0 ? fork() : -1;
    if (child < 0) {
        perror("pccl master cannot start in the background");
        return 1;
    }
    if (child == 0) exit(serve_alone(options, ends[1]));
    close(ends[1]);
    while (got > 0 || (got < 0 && errno == EINTR)) {
        size_t room = sizeof words - 1 - length;
        got = read(ends[0], room > 0 ? words + length : rest, room > 0 ? room : sizeof rest);
        if (got > 0 && room > 0) length += (size_t)got;
    }
    bool listens = strstr(words, "pccl master listening on ") != NULL;
    fputs(words, listens ? stdout : stderr);
    if (listens) return 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && status != 0 ? WEXITSTATUS(status) : 1;
}

// A socket must not become a standard stream that the caller has closed.
static void open_standard_streams(void) {
    while (true) {
        int fd = open("/dev/null", O_RDWR);
        if (fd >= FIRST_DESCRIPTOR) close(fd);
        if (fd < 0 || fd >= FIRST_DESCRIPTOR) return;
    }
}

// Adds an absolute path to a text, on a line of its own. A symbolic link stays: the renewal of a certificate may turn it.
static void add_path(char out[KEYS_BYTES], const char *path) {
    char folder[PATH_MAX] = "";
    bool relative = path[0] != '/' && getcwd(folder, sizeof folder) != NULL;
    size_t length = strlen(out);
    snprintf(out + length, KEYS_BYTES - length, "%s%s%s%s", length > 0 ? "\n" : "", relative ? folder : "",
             relative ? "/" : "", path);
}

// Returns the value of an option, or of a variable; "" if there is none.
static const char *value_of(const char *option, bool given, const char *variable) {
    const char *value = given ? option : getenv(variable);
    return value == NULL ? "" : value;
}

// Names the files of the options or of the environment in `out`: the folder may change before they are read. What is
// wrong with the environment stays for the library to say.
static void name_keys(struct options *options, char out[KEYS_BYTES]) {
    bool given = options->keys != NULL || options->cert != NULL;
    const char *keys = value_of(options->keys, given, "PCCL_KEYS");
    const char *certificate[] = {value_of(options->cert, given, "PCCL_CERT"), value_of(options->key, given, "PCCL_KEY"),
                                 value_of(options->ca, given, "PCCL_CA")};
    int parts = 0;
    for (int i = 0; i < 3; i++) parts += certificate[i][0] != 0;
    out[0] = 0;
    if (keys[0] != 0 && parts == 0) add_path(out, keys);
    for (int i = 0; i < 3 && keys[0] == 0 && parts == 3; i++) add_path(out, certificate[i]);
    if (out[0] != 0) options->keys = out;
}

int main(int count, char **words) {
    struct options options = {0};
    open_standard_streams();
    if (!read_options(&options, count, words)) {
        fprintf(stderr, "pccl master: its arguments cannot be understood\n");
        return 2;
    }
    char keys[KEYS_BYTES];
    name_keys(&options, keys);
    char host[80] = "";
    snprintf(host, sizeof host, "%.*s", (int)(strrchr(options.listen, ':') - options.listen), options.listen);
    if (options.host == NULL) options.host = host;
    signal(SIGPIPE, SIG_IGN);
    if (options.background) return serve_in_background(&options);
    if (!options.leave) return serve(&options, -1);
    pid_t child = fork();
    return child == 0 ? serve_alone(&options, STDOUT_FILENO) : child < 0;
}
