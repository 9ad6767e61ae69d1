// Tickets: calls that are begun once and waited for in pieces, by the functions of ext.h.
#include <poll.h>

#include "api/api.h"
#include "base/platform.h"
#include "peer/communicator_private.h"
#include "run.h"

enum { SOON = 30 };

// Waits for a ticket to the end, in pieces; `begun` is what its begin gave.
static pcclResult_t end(pcclResult_t begun, struct pccl_ticket *ticket) {
    if (begun != pcclSuccess) return begun;
    AWAIT(pccl_ticket_wait(ticket, SOON) != pcclTimedOut, continue);
    CHECK_EQ(pccl_ticket_wait(ticket, SOON), ticket->result); // it is kept
    pccl_ticket_free(ticket);
    return ticket->result;
}

static void join_by_tickets(pcclComm_t *member, pcclComm_t *newcomer) {
    struct pccl_ticket connect, other;
    REQUIRE(pccl_begin_connect(newcomer, &connect) == pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&connect, SOON), pcclTimedOut);
    wait_for_state(newcomer, "registered");
    CHECK_EQ(end(pccl_begin_pending(member, &other), &other), pcclSuccess);
    CHECK_EQ(other.value, 1);
    CHECK_EQ(end(pccl_begin_update(member, &other), &other), pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &connect), pcclSuccess);
    CHECK_EQ(world(member), 2);
    CHECK_EQ(world(newcomer), 2);
}

static void test_tickets(void) {
    struct run run;
    check_case("tickets");
    start_master(&run);
    pcclComm_t *a = new_comm(run.port, 0), *b = new_comm(run.port, 0);
    REQUIRE(pcclConnect(a) == pcclSuccess);
    struct pccl_ticket at_a, at_b, other;
    CHECK_EQ(pccl_begin_update(NULL, &other), pcclInvalidArgument);
    CHECK_EQ(pccl_begin_update(b, &other), pcclInvalidUsage); // not connected
    join_by_tickets(a, b);

    check_case("one call at a time");
    REQUIRE(pccl_begin_update(a, &at_a) == pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&at_a, SOON), pcclTimedOut);
    CHECK_EQ(pccl_begin_pending(a, &other), pcclInvalidUsage);
    float x = 1, y = 2;
    pcclReduceDescriptor_t descriptor = sum_of(1, 3);
    CHECK_EQ(pccl_begin_reduce(&x, &x, &descriptor, a, NULL, &other), pcclInvalidUsage);

    check_case("a ticket that was forgotten");
    struct pccl_ticket forgotten = at_a;
    REQUIRE(pccl_begin_update(a, &at_a) == pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&forgotten, SOON), pcclInvalidUsage);
    CHECK(strstr(forgotten.text, "continued it") != NULL);
    CHECK_EQ(end(pccl_begin_update(b, &at_b), &at_b), pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &at_a), pcclSuccess);

    check_case("ops beside a vote");
    REQUIRE(pccl_begin_reduce(&x, &x, &descriptor, a, NULL, &at_a) == pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&at_a, SOON), pcclTimedOut);
    CHECK_EQ(pccl_begin_reduce(&x, &x, &descriptor, a, NULL, &other), pcclInvalidArgument); // its tag is live
    REQUIRE(pccl_begin_pending(a, &other) == pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&other, SOON), pcclTimedOut);
    CHECK_EQ(end(pccl_begin_pending(b, &at_b), &at_b), pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &other), pcclSuccess);
    REQUIRE(pccl_begin_reduce(&y, &y, &descriptor, b, NULL, &at_b) == pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &at_a), pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &at_b), pcclSuccess);
    CHECK(x == 3 && y == 3);
    CHECK_EQ(at_a.info.local_world_size, 2);

    check_case("a multi");
    pcclReduceOpDescriptor_t op = {&x, &x, sum_of(1, 4)};
    REQUIRE(pccl_begin_multi(&op, NULL, 1, a, 1, &at_a) == pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&at_a, SOON), pcclTimedOut);
    CHECK_EQ(pccl_begin_update(a, &other), pcclPendingAsyncOps);
    CHECK_EQ(pcclDestroyCommunicator(b), pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &at_a), pcclTooFewPeers);
    CHECK_EQ(at_a.info.local_world_size, 1);
    CHECK(x == 3);

    check_case("a multi that outlives its communicator");
    b = new_comm(run.port, 0);
    join_by_tickets(a, b);
    REQUIRE(pccl_begin_multi(&op, NULL, 1, a, 1, &at_a) == pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&at_a, SOON), pcclTimedOut);
    CHECK_EQ(pcclDestroyCommunicator(a), pcclSuccess);
    pccl_ticket_free(&at_a); // what it touches is seen by the address sanitizer
    pccl_ticket_free(&at_a);
    pccl_ticket_free(NULL);

    check_case("a master");
    REQUIRE(pccl_begin_master_end(run.master, &other) == pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&other, SOON), pcclTimedOut);
    CHECK_EQ(pcclInterruptMaster(run.master), pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &other), pcclSuccess);
    CHECK_EQ(pcclDestroyCommunicator(b), pcclSuccess);
    CHECK_EQ(pcclDestroyMaster(run.master), pcclSuccess);
}

enum { WAITERS = 4 };

static void *wait_for_op(void *ticket) {
    pcclResult_t result;
    AWAIT((result = pccl_ticket_wait(ticket, SOON)) != pcclTimedOut, continue);
    return (void *)(uintptr_t)result;
}

static void test_several_waiters(void) {
    struct run run;
    check_case("several threads wait for an operation, and all of them see its end");
    start_run(&run, 2);
    float x = 1, y = 2;
    pcclReduceDescriptor_t descriptor = sum_of(1, 3);
    struct pccl_ticket at_a, at_b;
    pthread_t threads[WAITERS];
    REQUIRE(pccl_begin_reduce(&x, &x, &descriptor, run.comms[0], NULL, &at_a) == pcclSuccess);
    for (size_t i = 0; i < WAITERS; i++) REQUIRE(pthread_create(&threads[i], NULL, wait_for_op, &at_a) == 0);
    CHECK_EQ(pccl_ticket_wait(&at_a, SOON), pcclTimedOut);
    REQUIRE(pccl_begin_reduce(&y, &y, &descriptor, run.comms[1], NULL, &at_b) == pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &at_b), pcclSuccess);
    for (size_t i = 0; i < WAITERS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        CHECK_EQ((uintptr_t)result, pcclSuccess);
    }
    CHECK(x == 3 && y == 3);
    end_run(&run);
}

static pcclResult_t begin_barrier(pcclComm_t *comm, const pcclGroup_t *group, size_t size, int sequence,
                                  struct pccl_ticket *ticket) {
    pcclCollective_t barrier = {.size = size, .kind = pcclCollectiveBarrier, .group = group, .tag = 5 << 16};
    return pccl_begin_collective(&barrier, comm, sequence, ticket);
}

static void test_numbers(void) {
    struct run run;
    check_case("calls are numbered by what was launched");
    start_run(&run, 2);
    pcclRankUuid_t members[2];
    size_t count;
    struct pccl_ticket tickets[2];
    pcclGroup_t *groups[2];
    REQUIRE(pcclGetMembers(run.comms[0], members, 2, &count) == pcclSuccess);
    for (size_t i = 0; i < 2; i++) REQUIRE(pcclCreateGroup(run.comms[i], members, 2, &groups[i]) == pcclSuccess);
    for (int sequence = 1; sequence <= 2; sequence++)
        for (uint64_t number = 0; number < 3; number++) {
            CHECK_EQ(begin_barrier(run.comms[0], groups[0], 1, sequence, &tickets[0]), pcclInvalidArgument); // no size
            for (size_t i = 0; i < 2; i++)
                REQUIRE(begin_barrier(run.comms[i], groups[i], sizeof(pcclCollective_t), sequence, &tickets[i]) ==
                        pcclSuccess);
            for (size_t i = 0; i < 2; i++) {
                CHECK_EQ(tickets[i].number, 5 << 16 | number);
                CHECK_EQ(end(pcclSuccess, &tickets[i]), pcclSuccess);
            }
        }
    uint32_t launched;
    CHECK_EQ(pccl_ext_launched(run.comms[0], 5 << 16, &launched), pcclSuccess);
    CHECK_EQ(launched, 3);
    CHECK_EQ(pccl_ext_launched(run.comms[0], 6 << 16, &launched), pcclSuccess);
    CHECK_EQ(launched, 0);
    check_case("of all members from an update of the topology on");
    for (size_t i = 0; i < 2; i++) REQUIRE(pccl_begin_update(run.comms[i], &tickets[i]) == pcclSuccess);
    for (size_t i = 0; i < 2; i++) CHECK_EQ(end(pcclSuccess, &tickets[i]), pcclSuccess);
    for (int sequence = 1; sequence <= 2; sequence++) {
        for (size_t i = 0; i < 2; i++)
            REQUIRE(begin_barrier(run.comms[i], groups[i], sizeof(pcclCollective_t), sequence, &tickets[i]) ==
                    pcclSuccess);
        CHECK_EQ(tickets[0].number, 5 << 16 | (sequence == 1 ? 3 : 0));
        for (size_t i = 0; i < 2; i++) CHECK_EQ(end(pcclSuccess, &tickets[i]), pcclSuccess);
    }
    for (size_t i = 0; i < 2; i++) pcclDestroyGroup(groups[i]);
    end_run(&run);
}

static void *ticket_main(void *ticket) { return (void *)(uintptr_t)pccl_ticket_wait(ticket, -1); }

static bool is_inside(struct communicator *c) {
    pthread_mutex_lock(&c->lock);
    bool inside = c->ticket.inside;
    pthread_mutex_unlock(&c->lock);
    return inside;
}

static void test_tickets_in_threads(void) {
    struct run run;
    check_case("two threads and one call");
    start_run(&run, 2);
    struct pccl_ticket ticket, copy, other;
    REQUIRE(pccl_begin_update(run.comms[0], &ticket) == pcclSuccess);
    copy = ticket;
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, ticket_main, &ticket) == 0);
    AWAIT(is_inside(run.comms[0]->communicator), usleep(1000));
    CHECK_EQ(pccl_ticket_wait(&copy, SOON), pcclInvalidUsage);
    CHECK(strstr(copy.text, "another thread is waiting") != NULL);
    CHECK_EQ(pccl_begin_update(run.comms[0], &other), pcclInvalidUsage);

    check_case("destroyed while a thread waits for a ticket");
    CHECK_EQ(pcclDestroyCommunicator(run.comms[0]), pcclSuccess);
    run.comms[0] = NULL;
    void *code;
    pthread_join(thread, &code);
    CHECK_EQ((uintptr_t)code, pcclMasterConnectionFailed);
    end_run(&run);
}

struct begin_sync {
    pcclComm_t *comm;
    const pcclSharedState_t *state;
    struct pccl_ticket ticket;
    pcclResult_t code;
};

static void *begin_sync_main(void *context) {
    struct begin_sync *begin = context;
    begin->code = pccl_begin_sync(begin->comm, begin->state, 0, NULL, &begin->ticket);
    return NULL;
}

// Two threads go on with the same round while its names are wrong: neither begins another one with them.
static void test_names_are_checked_by_every_begin(void) {
    struct run run;
    check_case("names of a round that is taken up");
    start_run(&run, 2);
    float x[2] = {1, 2};
    pcclTensorInfo_t infos[2] = {{.name = "a", .data = &x[0], .count = 1, .datatype = pcclFloat},
                                 {.name = "b", .data = &x[1], .count = 1, .datatype = pcclFloat}};
    pcclSharedState_t state = {.revision = 1, .count = 2, .infos = infos};
    struct begin_sync begins[2] = {{.comm = run.comms[0], .state = &state}, {.comm = run.comms[0], .state = &state}};
    begin_sync_main(&begins[0]);
    REQUIRE(begins[0].code == pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&begins[0].ticket, SOON), pcclTimedOut);
    infos[1].name = "a";
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, begin_sync_main, &begins[i]) == 0);
    for (size_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(begins[0].code, pcclInvalidArgument);
    CHECK_EQ(begins[1].code, pcclInvalidArgument);
    infos[1].name = "b";
    state.revision = 2;
    begin_sync_main(&begins[0]);
    CHECK_EQ(begins[0].code, pcclInvalidUsage); // of another revision
    state.revision = 1;
    begin_sync_main(&begins[0]);
    REQUIRE(begins[0].code == pcclSuccess);
    struct begin_sync there = {.comm = run.comms[1], .state = &state};
    begin_sync_main(&there);
    REQUIRE(there.code == pcclSuccess);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, ticket_main, &there.ticket) == 0);
    CHECK_EQ(end(pcclSuccess, &begins[0].ticket), pcclSuccess);
    CHECK_EQ(begins[0].ticket.value, 1);
    void *code;
    pthread_join(thread, &code);
    CHECK_EQ((uintptr_t)code, pcclSuccess);
    end_run(&run);
}

static bool is_readable(int fd, int milliseconds) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, milliseconds) == 1;
}

static void take_event(int fd) {
    REQUIRE(is_readable(fd, CALM_MS));
    wake_clear(fd);
}

// Ends a ticket as an event loop does: it looks at the ticket only after an event, and never blocks in it.
static pcclResult_t end_by_events(int fd, struct pccl_ticket *ticket) {
    AWAIT(pccl_ticket_wait(ticket, 0) != pcclTimedOut, take_event(fd));
    return ticket->result;
}

static void test_events(void) {
    struct run run;
    check_case("events of calls");
    start_master(&run);
    pcclComm_t *a = new_comm(run.port, 0), *b = new_comm(run.port, 0);
    int fd = -1, again = -1;
    CHECK_EQ(pccl_ext_comm_event_fd(a, NULL), pcclInvalidArgument);
    CHECK_EQ(pccl_ext_comm_event_fd(NULL, &fd), pcclInvalidArgument);
    REQUIRE(pccl_ext_comm_event_fd(a, &fd) == pcclSuccess);
    REQUIRE(pccl_ext_comm_event_fd(a, &again) == pcclSuccess);
    CHECK_EQ(again, fd);
    CHECK(is_readable(fd, 0)); // calls may have ended before
    wake_clear(fd);
    CHECK(!is_readable(fd, 0));

    struct pccl_ticket at_a, at_b, vote;
    REQUIRE(pccl_begin_connect(a, &at_a) == pcclSuccess);
    CHECK_EQ(end_by_events(fd, &at_a), pcclSuccess);
    join_by_tickets(a, b);

    check_case("events of operations that end in another order than they began");
    float x[2] = {1, 2}, y[2] = {10, 20};
    pcclReduceDescriptor_t first = sum_of(1, 1), second = sum_of(1, 2);
    struct pccl_ticket other;
    REQUIRE(pccl_begin_reduce(&x[0], &x[0], &first, a, NULL, &at_a) == pcclSuccess);
    REQUIRE(pccl_begin_reduce(&x[1], &x[1], &second, a, NULL, &other) == pcclSuccess);
    while (is_readable(fd, 0)) wake_clear(fd);
    CHECK_EQ(pccl_ticket_wait(&at_a, 0), pcclTimedOut);
    REQUIRE(pccl_begin_reduce(&y[1], &y[1], &second, b, NULL, &at_b) == pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &at_b), pcclSuccess);
    CHECK_EQ(end_by_events(fd, &other), pcclSuccess);
    CHECK_EQ(pccl_ticket_wait(&at_a, 0), pcclTimedOut);
    REQUIRE(pccl_begin_reduce(&y[0], &y[0], &first, b, NULL, &at_b) == pcclSuccess);
    CHECK_EQ(end_by_events(fd, &at_a), pcclSuccess);
    CHECK_EQ(end(pcclSuccess, &at_b), pcclSuccess);
    CHECK(x[0] == 11 && x[1] == 22);

    check_case("events of a multi");
    pcclReduceOpDescriptor_t ops[2] = {{&x[0], &x[0], first}, {&x[1], &x[1], second}};
    REQUIRE(pccl_begin_multi(ops, NULL, 2, a, 1, &other) == pcclSuccess);
    for (uint64_t i = 0; i < 2; i++) {
        pcclReduceOptions_t retry = {.size = sizeof retry, .retry = true};
        REQUIRE(pccl_begin_reduce(&y[i], &y[i], i == 0 ? &first : &second, b, &retry, &at_b) == pcclSuccess);
        while (pccl_ticket_wait(&at_b, 0) == pcclTimedOut) {
            if (is_readable(fd, SOON)) wake_clear(fd);
            pccl_ticket_wait(&other, 0);
        }
        CHECK_EQ(at_b.result, pcclSuccess);
    }
    CHECK_EQ(end_by_events(fd, &other), pcclSuccess);
    pccl_ticket_free(&other);

    check_case("events of an operation that the loss of a member ends, and of a vote that a stop ends");
    REQUIRE(pccl_begin_reduce(&x[0], &x[0], &first, a, NULL, &at_a) == pcclSuccess);
    CHECK_EQ(pcclDestroyCommunicator(b), pcclSuccess);
    CHECK_EQ(end_by_events(fd, &at_a), pcclRankConnectionLost);
    REQUIRE(pcclUpdateTopology(a) == pcclSuccess);
    b = new_comm(run.port, 0);
    join_by_tickets(a, b);
    REQUIRE(pccl_begin_reduce(&x[0], &x[0], &first, a, NULL, &at_a) == pcclSuccess);
    REQUIRE(pccl_begin_pending(a, &vote) == pcclSuccess);
    while (is_readable(fd, 0)) wake_clear(fd);
    CHECK_EQ(pccl_ext_comm_stop(a), pcclSuccess);
    CHECK_EQ(end_by_events(fd, &at_a), pcclRankConnectionLost);
    CHECK_EQ(end_by_events(fd, &vote), pcclMasterConnectionFailed);
    CHECK_EQ(pcclDestroyCommunicator(a), pcclSuccess);
    CHECK_EQ(pcclDestroyCommunicator(b), pcclSuccess);
    CHECK_EQ(pcclDestroyMaster(run.master), pcclSuccess);
}

int main(void) {
    REQUIRE(pcclInit() == pcclSuccess);
    test_tickets();
    test_several_waiters();
    test_numbers();
    test_tickets_in_threads();
    test_names_are_checked_by_every_begin();
    test_events();
    return check_status();
}
