// A master on 0.0.0.0:48148 that stops with status 0 on SIGINT, which ends the run, and on SIGTERM, after which the
// peers look for another master, or wait for this one to come back; unless PCCL_MASTER_ON_SIGTERM is "end".
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ccoip.h"
#include "pccl.h"

static pcclMasterInstance_t *master; // set before the handlers are installed
static volatile sig_atomic_t sigterm_ends;

static void stop(int signal_number) {
    if (signal_number == SIGINT || sigterm_ends)
        pcclInterruptMaster(master);
    else
        pcclDetachMaster(master);
}

static int read_environment(void) {
    const char *wanted = getenv("PCCL_MASTER_ON_SIGTERM");
    if (wanted == NULL || *wanted == 0 || strcmp(wanted, "detach") == 0) return 1;
    sigterm_ends = strcmp(wanted, "end") == 0;
    if (!sigterm_ends) fprintf(stderr, "ccoip_master: PCCL_MASTER_ON_SIGTERM=%s is neither detach nor end\n", wanted);
    return sigterm_ends;
}

int main(void) {
    ccoip_socket_address_t address = {.inet = {.protocol = inetIPv4}, .port = CCOIP_PROTOCOL_PORT_MASTER};
    if (!read_environment()) return 1;
    pcclResult_t result = pcclCreateMaster(address, &master);
    if (result == pcclSuccess) result = pcclRunMaster(master);
    if (result != pcclSuccess) {
        fprintf(stderr, "ccoip_master: cannot listen on 0.0.0.0:%d (code %d)\n", CCOIP_PROTOCOL_PORT_MASTER,
                (int)result);
        return 1;
    }
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    pcclMasterAwaitTermination(master);
    pcclDestroyMaster(master);
    return 0;
}
