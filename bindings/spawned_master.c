// A master in a process of its own, for pccl.distributed: an interpreter would take many times as long to start, which
// counts on a machine whose processors are all busy.
//
//     spawned_master --log DESCRIPTOR --until-empty MILLISECONDS --listen IP:PORT --masters IP:PORT,... [--new]
//
// With --new, nobody was ever at its address, so that newcomers do not wait for members of an earlier run.
// Returns at once. The master continues in a session of its own: SIGTERM detaches it, SIGINT ends the run. Its output
// is that of the program until it listens, then the descriptor: one line "pccl master listens", or the reason why it
// cannot.
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/ext.h"
#include "net/socket.h"

enum { MOST_MASTERS = 16 };

struct options {
    int log;
    uint32_t until_empty_ms;
    bool new;
    const char *listen;
    ccoip_socket_address_t masters[MOST_MASTERS];
    size_t count, place; // of this one
};

static pcclMasterInstance_t *master; // set before the handlers are installed

static void stop(int number) {
    if (number == SIGINT)
        pcclInterruptMaster(master);
    else
        pcclDetachMaster(master);
}

static bool take_masters(struct options *options, const char *list) {
    options->place = MOST_MASTERS;
    for (const char *text = list; options->count < MOST_MASTERS; text++) {
        size_t length = strcspn(text, ",");
        struct wire_address found;
        if (!socket_address_parse(text, length, &found)) return false;
        if (strlen(options->listen) == length && memcmp(text, options->listen, length) == 0)
            options->place = options->count;
        ccoip_socket_address_t *address = &options->masters[options->count++];
        address->port = found.port;
        address->inet.protocol = found.family == 6 ? inetIPv6 : inetIPv4;
        memcpy(address->inet.ipv4.data, found.bytes, sizeof address->inet.ipv4.data);
        memcpy(address->inet.ipv6.data, found.bytes, sizeof address->inet.ipv6.data);
        text += length;
        if (*text == 0) return options->place < MOST_MASTERS;
    }
    return false;
}

static bool take_options(struct options *options, int count, char **words) {
    options->new = count == 10 && strcmp(words[9], "--new") == 0;
    if (count != 9 + options->new || strcmp(words[1], "--log") != 0 || strcmp(words[3], "--until-empty") != 0 ||
        strcmp(words[5], "--listen") != 0 || strcmp(words[7], "--masters") != 0)
        return false;
    options->log = atoi(words[2]);
    options->until_empty_ms = (uint32_t)strtoul(words[4], NULL, 10);
    options->listen = words[6];
    return take_masters(options, words[8]);
}

static int serve(const struct options *options) {
    pcclResult_t result = pcclCreateMaster(options->masters[options->place], &master);
    if (result == pcclSuccess)
        result = pccl_ext_master_set_list(master, options->masters, options->count, options->place);
    if (result == pcclSuccess) result = pccl_ext_master_set_idle_limit(master, options->until_empty_ms);
    if (result == pcclSuccess && options->new) result = pccl_ext_master_set_new(master);
    if (result == pcclSuccess) result = pcclRunMaster(master);
    if (result != pcclSuccess) {
        const char *detail = pccl_ext_detail();
        printf(*detail != 0 ? "%s\n" : "it cannot listen (code %2$d)\n", detail, (int)result);
        return 1;
    }
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    bool told = puts("pccl master listens") >= 0 && fflush(stdout) == 0;
    if (!told) return 1; // who has started it waits no more
    dup2(options->log, STDOUT_FILENO);
    dup2(options->log, STDERR_FILENO);
    pcclMasterAwaitTermination(master);
    pcclDestroyMaster(master);
    return 0;
}

int main(int count, char **words) {
    struct options options = {0};
    if (!take_options(&options, count, words)) {
        puts("its arguments cannot be understood");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    pid_t child = fork();
    if (child != 0) return child < 0;
    setsid();
    return serve(&options);
}
