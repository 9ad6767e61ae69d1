// A master on 0.0.0.0:48148 that ends with status 0 on SIGINT and SIGTERM.
#include <signal.h>
#include <stdio.h>

#include "ccoip.h"
#include "pccl.h"

static pcclMasterInstance_t *master; // set before the handlers are installed

static void interrupt(int signal_number) {
    (void)signal_number;
    pcclInterruptMaster(master);
}

int main(void) {
    ccoip_socket_address_t address = {.inet = {.protocol = inetIPv4}, .port = CCOIP_PROTOCOL_PORT_MASTER};
    pcclResult_t result = pcclCreateMaster(address, &master);
    if (result == pcclSuccess) result = pcclRunMaster(master);
    if (result != pcclSuccess) {
        fprintf(stderr, "ccoip_master: cannot listen on 0.0.0.0:%d (code %d)\n", CCOIP_PROTOCOL_PORT_MASTER, (int)result);
        return 1;
    }
    struct sigaction action = {.sa_handler = interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    pcclMasterAwaitTermination(master);
    pcclDestroyMaster(master);
    return 0;
}
