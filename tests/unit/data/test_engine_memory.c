// Whom an engine reads: a neighbour played by the test says who it is in all sorts of ways, and READY tells whether it
// is believed.
#define _GNU_SOURCE
#include <errno.h>
#include <pccl.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/platform.h"
#include "check.h"
#include "far_end.h"
#include "deaf_owner.h"
#include "data/slots.h"
#include "data/core.h"
#include "data/engine.h"
#include "base/memory.h"
#include "enter_epoch.h"
#include "net/rendezvous.h"
#include "net/socket.h"
#include "net/wire_data.h"
#include "ops/plan.h"

enum {
    LINKS = 2, // the direct one and a lane
    COUNT = 1 << 20,
    NOBODY = 65534,
    WIRE_ANY = 0,
    RENDEZVOUS_NAME = 16,
    ADDRESS = 19,
    HEAD = WIRE_HEADER_BYTES + WIRE_HEAD_BYTES
};

// As docs/protocol.md has it.
struct claim {
    uint64_t run, epoch;
    struct wire_id from, to;
    uint32_t version, count;
    struct {
        uint8_t here[ADDRESS], there[ADDRESS];
    } links[LINKS + 1];
};

static const struct wire_id mine = {{2}}, theirs = {{1}}, other = {{3}};
static struct engine *engine;
static struct transport *links[LINKS]; // the test's ends
static int engine_ends[LINKS];         // borrowed
static uint64_t epoch = 1;
static uint8_t offered[RENDEZVOUS_NAME];
static float data[COUNT];
static uint64_t tag;
static int shared_slots;

static const struct wire_fingerprint fingerprint = {.count = COUNT, .dtype = pcclFloat, .op = pcclSum};

// ---- the link ----
// The next frame of this type on the direct link or the lane; its payload, if that is wanted.
static struct wire_head hear(uint16_t type, int index, void *payload, size_t room) {
    static uint8_t bytes[WIRE_MAX_DATA_BYTES];
    for (;;) {
        uint8_t before[HEAD];
        struct wire_header header;
        struct wire_head head = {0};
        REQUIRE(far_end_read(links[index], before, sizeof before) && wire_header_decode(before, &header));
        REQUIRE(wire_head_decode(before + WIRE_HEADER_BYTES, header.type, &head));
        size_t length = header.length - WIRE_HEAD_BYTES;
        REQUIRE(far_end_read(links[index], bytes, length));
        if (header.type != type && type != WIRE_ANY) continue;
        if (room > 0) memcpy(payload, bytes, length < room ? length : room);
        return head;
    }
}

static void encode(uint8_t before[HEAD], uint16_t type, const struct wire_head *head, size_t length) {
    struct wire_header header = {.length = (uint32_t)(WIRE_HEAD_BYTES + length),
                                 .type = type,
                                 .run = 7,
                                 .generation = 1,
                                 .epoch = frame_has_epoch(type) ? epoch : 0};
    wire_header_encode(before, &header);
    wire_head_encode(before + WIRE_HEADER_BYTES, type, head);
}

static void say(uint16_t type, const struct wire_head *head, const void *payload, size_t length) {
    uint8_t before[HEAD];
    encode(before, type, head, length);
    REQUIRE(far_end_write(links[0], before, sizeof before));
    far_end_write(links[0], payload, length); // fails where the head alone has made the engine close the link
}

static void post(uint64_t of) {
    struct call_args reduce = {.send = data, .recv = data, .tag = of, .fingerprint = fingerprint};
    REQUIRE(engine_post(engine, &reduce, 1) == CALL_OK);
}

// What an op that is posted now says in READY.
static bool is_believed(void) {
    post(++tag);
    struct wire_head head;
    AWAIT((head = hear(WIRE_READY, 0, NULL, 0)).op.tag == tag, continue);
    return head.ready.in_slots == 1;
}

// Sends a socket's name, and returns when the engine has taken it: it sends chunks of a reduce after READY alone, also
// over a link that it measured as slow, and frames are taken in order.
static void offer(const uint8_t name[RENDEZVOUS_NAME]) {
    struct wire_id ids[2] = {theirs, mine};
    struct call_args args = {.send = data, .tag = ++tag, .fingerprint = fingerprint, .root = 1};
    args.subgroup = subgroup_new(ids, 2, 0);
    args.fingerprint.kind = PLAN_REDUCE;
    REQUIRE(engine_post(engine, &args, 1) == CALL_OK);
    struct wire_head memory = {0}, ready;
    AWAIT((ready = hear(WIRE_READY, 0, NULL, 0)).op.tag == tag, continue);
    say(WIRE_MEMORY, &memory, name, RENDEZVOUS_NAME);
    say(WIRE_READY, &ready, NULL, 0);
    AWAIT(hear(WIRE_CHUNK, 1, NULL, 0).op.tag == tag, continue);
}

static void begin(void) {
    engine = engine_new(&theirs, &deaf_owner);
    REQUIRE(engine != NULL);
    for (uint32_t i = 0; i < LINKS; i++) {
        struct wire_address address = {.family = 4, .bytes = {127, 0, 0, 1}}, from;
        int listener = socket_listen(&address);
        REQUIRE(listener >= 0 && socket_local_address(listener, &address));
        links[i] = far_end_dial(&address);
        int end;
        AWAIT((end = socket_accept(listener, &from)) != -EAGAIN, usleep(100));
        REQUIRE(links[i] != NULL && end >= 0);
        close(listener);
        engine_ends[i] = end;
        engine_add_link(engine, &mine, i, far_end_new(end));
    }
    struct wire_member members[2] = {{.id = theirs}, {.id = mine}};
    enter_epoch(engine, 1, members, 2, 0);
    engine_links_ready(engine, 1);
    if (getenv("PCCL_SAME_HOST_MEMORY") == NULL) hear(WIRE_MEMORY, 0, offered, sizeof offered);
}

static void end(void) {
    engine_free(engine);
    for (int i = 0; i < LINKS; i++) transport_free(links[i]);
}

// ---- the rendezvous ----
static void write_address(uint8_t out[ADDRESS], const struct wire_address *address) {
    out[0] = address->family;
    memcpy(out + 1, address->bytes, 16);
    memcpy(out + 17, &address->port, 2);
}

static struct claim true_claim(void) {
    struct claim claim = {.run = 7, .epoch = 1, .from = mine, .to = theirs, .version = WIRE_VERSION, .count = LINKS};
    for (int i = 0; i < LINKS; i++) {
        struct wire_address here, there;
        REQUIRE(socket_local_address(links[i]->fd, &here) && socket_remote_address(links[i]->fd, &there));
        write_address(claim.links[i].here, &here);
        write_address(claim.links[i].there, &there);
    }
    return claim;
}

static size_t length_of(const struct claim *claim) {
    return offsetof(struct claim, links) + claim->count * sizeof claim->links[0];
}

static socklen_t rendezvous_address(struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path + 1, "pccl-", 5);
    char *at = out->sun_path + 6;
    for (size_t i = 0; i < sizeof offered; i++) at += sprintf(at, "%02x", offered[i]);
    return (socklen_t)(at - (char *)out);
}

// With a descriptor, unless that is -1.
static int claim_with(const void *said, size_t length, int shared) {
    struct sockaddr_un address;
    socklen_t address_length = rendezvous_address(&address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, address_length) != 0) return -1;
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof shared)];
    } control = {.head = {CMSG_LEN(sizeof shared), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.head), &shared, sizeof shared);
    struct iovec part = {(void *)(uintptr_t)said, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (shared >= 0) message.msg_control = &control;
    if (shared >= 0) message.msg_controllen = sizeof control;
    if (length > 0) sendmsg(fd, &message, MSG_NOSIGNAL);
    return fd;
}

static int claim_at(const void *said, size_t length) { return claim_with(said, length, shared_slots); }

// The engine ends each call with a closed connection. All that have called before it were answered then.
static void answered(int fd) {
    char byte;
    CHECK(fd >= 0 && recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

static void claim_as_child(uid_t user, const struct claim *claim) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        if (user != 0 && setuid(user) != 0) _exit(1);
        int fd = claim_at(claim, length_of(claim));
        char byte;
        _exit(fd < 0 || recv(fd, &byte, 1, 0) > 0);
    }
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
}

// ---- tests ----
static void test_claims(void) {
    static const struct {
        const char *name;
        bool run, epoch, from, to, version, count, here, there, lane, swapped, more;
        bool want;
    } rows[] = {
        {.name = "true", .want = true},
        {.name = "one link more", .more = true, .want = true},
        {.name = "another run", .run = true},
        {.name = "another epoch", .epoch = true},
        {.name = "in another's name", .from = true},
        {.name = "to another", .to = true},
        {.name = "another version", .version = true},
        {.name = "more links than are told", .count = true},
        {.name = "another link, here", .here = true},
        {.name = "another link, there", .there = true},
        {.name = "not the lane", .lane = true},
        {.name = "what the engine itself would say of its links", .swapped = true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        begin();
        struct claim claim = true_claim();
        claim.run += rows[i].run;
        claim.epoch -= rows[i].epoch;
        if (rows[i].from) claim.from = other;
        if (rows[i].to) claim.to = other;
        claim.version += rows[i].version;
        claim.links[0].here[17] ^= rows[i].here;
        claim.links[0].there[17] ^= rows[i].there;
        claim.count -= rows[i].lane;
        claim.count += rows[i].more;
        for (int link = 0; link < LINKS && rows[i].swapped; link++) {
            uint8_t here[ADDRESS];
            memcpy(here, claim.links[link].here, ADDRESS);
            memcpy(claim.links[link].here, claim.links[link].there, ADDRESS);
            memcpy(claim.links[link].there, here, ADDRESS);
        }
        size_t length = length_of(&claim);
        claim.count += rows[i].count ? 1000 : 0;
        CHECK(!is_believed());
        answered(claim_at(&claim, length));
        CHECK_EQ(is_believed(), rows[i].want);
        end();
    }
}

static void test_own_offer_sent_back(void) {
    check_case("the engine's own offer, sent back");
    begin();
    offer(offered);
    answered(claim_at("x", 1));
    CHECK(!is_believed());
    end();
}

static void test_users(void) {
    if (getuid() != 0) {
        fprintf(stderr, "test_users: skipped, it needs to be another user\n");
        return;
    }
    check_case("another user");
    begin();
    struct claim claim = true_claim();
    claim_as_child(NOBODY, &claim);
    CHECK(!is_believed());
    check_case("a child of our own user");
    claim_as_child(0, &claim); // it has the links; its slots stay when it is gone
    CHECK(is_believed());
    end();
}

// Connects as another user so many times; the socket takes none at times.
static void flood(int times) {
    struct sockaddr_un address;
    socklen_t length = rendezvous_address(&address);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        if (setuid(NOBODY) != 0) _exit(1);
        while (times > 0) {
            int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
            if (connect(fd, (struct sockaddr *)&address, length) == 0)
                times--;
            else if (errno == EAGAIN)
                usleep(1000);
            else
                _exit(2);
            close(fd);
        }
        _exit(0);
    }
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
}

static void test_flood(void) {
    if (getuid() != 0) return;
    check_case("a flood of another user");
    begin();
    CHECK(log_capture_begin() >= 0);
    flood(5000);
    struct claim claim = true_claim();
    answered(claim_at(&claim, length_of(&claim)));
    CHECK(is_believed());
    log_capture_end();
    struct log_line line;
    int told = 0;
    while (log_capture_take(&line)) told += strstr(line.text, "user with id 65534") != NULL;
    CHECK_EQ(told, 1);
    end();
}

// A neighbour whose socket is full when the engine claims its links: it claims them again.
static void test_full(void) {
    check_case("a socket that takes no more");
    begin();
    uint8_t own[RENDEZVOUS_NAME];
    memcpy(own, offered, sizeof own);
    memset(offered, 9, sizeof offered);
    memcpy(offered, &(pid_t){getpid()}, sizeof(pid_t));
    struct sockaddr_un address;
    socklen_t length = rendezvous_address(&address);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fillers[2], taken;
    char bytes[RENDEZVOUS_CLAIM_BYTES];
    REQUIRE(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    for (int i = 0; i < 2; i++) {
        fillers[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        REQUIRE(connect(fillers[i], (struct sockaddr *)&address, length) == 0);
    }
    offer(offered);
    for (int i = 0; i < 2; i++) {
        REQUIRE((taken = accept(listener, NULL, NULL)) >= 0);
        close(taken);
        close(fillers[i]);
    }
    REQUIRE(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 1000 * CHECK_PATIENCE_S) == 1);
    REQUIRE((taken = accept(listener, NULL, NULL)) >= 0);
    CHECK(recv(taken, bytes, sizeof bytes, 0) > (ssize_t)ADDRESS);
    close(taken);
    close(listener);
    memcpy(offered, own, sizeof own);
    end();
}

static void test_garbage(void) {
    check_case("garbage");
    begin();
    static uint8_t noise[20000];
    uint64_t seed = 5;
    for (int i = 0; i < 300; i++) {
        for (size_t at = 0; at < sizeof noise; at += 8) memcpy(noise + at, &(uint64_t){check_random(&seed)}, 8);
        int fd = claim_at(noise, check_random(&seed) % sizeof noise);
        if (i % 3 == 0) close(fd); // others hold on, and say nothing, or too much
    }
    struct claim claim = true_claim();
    answered(claim_at(&claim, length_of(&claim)));
    CHECK(is_believed());
    end();
}

// A child has the listening socket too, and outlives the engine.
static void test_fork(void) {
    check_case("fork");
    begin();
    int hold[2];
    REQUIRE(pipe(hold) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(hold[1]);
        _exit(read(hold[0], &byte, 1) > 0);
    }
    close(hold[0]);
    struct claim claim = true_claim();
    answered(claim_at(&claim, length_of(&claim)));
    CHECK(is_believed());
    end();
    int fd = claim_at(&claim, length_of(&claim)); // nobody listens at that socket any more
    if (fd >= 0) close(fd);
    begin(); // another engine has another one
    claim = true_claim();
    CHECK(!is_believed());
    answered(claim_at(&claim, length_of(&claim)));
    CHECK(is_believed());
    end();
    close(hold[1]);
    CHECK(waitpid(child, NULL, 0) == child);
}

// ---- slots ----
// A broadcast from the test to the engine: whether its READY takes what comes in slots.
static bool takes_slots(struct wire_head *head) {
    struct wire_id ids[2] = {theirs, mine};
    struct call_args args = {.send = data, .recv = data, .tag = ++tag, .fingerprint = fingerprint, .root = 1};
    args.subgroup = subgroup_new(ids, 2, 0);
    args.fingerprint.kind = PLAN_BROADCAST;
    args.fingerprint.op = 0;
    args.fingerprint.layout = 2;
    REQUIRE(engine_post(engine, &args, 1) == CALL_OK);
    AWAIT((*head = hear(WIRE_READY, 0, NULL, 0)).op.tag == tag, continue);
    return head->ready.in_slots == 1;
}

// The slots that the engine returns; its report that it has mapped them names none.
static uint64_t returned_slots(void) {
    uint64_t slots;
    AWAIT((slots = hear(WIRE_TAKEN, 0, NULL, 0).taken.slots) != 0, continue);
    return slots;
}

// An input of an all-reduce of two that lies in slots of the test.
static void test_small_inputs(int fd, uint8_t *slots) {
    enum { SMALL = PLAN_SMALL_MAX / sizeof(float) };
    static const struct {
        const char *name;
        uint64_t first;
        uint32_t bytes;
        bool early, good;
        uint8_t kind;
    } rows[] = {
        {"an input", 0, PLAN_SMALL_MAX, .good = true},
        {"an input in the last slots", SLOTS - 4, PLAN_SMALL_MAX, .good = true},
        {"an input before the call", 2, PLAN_SMALL_MAX, .early = true, .good = true},
        {"an input beyond the slots", SLOTS - 3, PLAN_SMALL_MAX, .good = false},
        {"an input far away", UINT64_MAX - 2, PLAN_SMALL_MAX, .good = false},
        {"an input before the call, beyond the slots", SLOTS - 3, PLAN_SMALL_MAX, .early = true},
        {"no bytes", 0, 0, .good = false},
        {"more than any small input", 0, PLAN_SMALL_MAX + 4, .good = false},
        {"the input of a reduce", 0, PLAN_SMALL_ANY, .kind = PLAN_REDUCE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("slots: %s", rows[i].name);
        begin();
        struct claim claim = true_claim();
        answered(claim_with(&claim, length_of(&claim), fd));
        CHECK_EQ(hear(WIRE_TAKEN, 0, NULL, 0).taken.slots, 0);
        struct wire_id ids[2] = {theirs, mine};
        bool reduce = rows[i].kind == PLAN_REDUCE;
        uint64_t count = reduce ? PLAN_SMALL_ANY / sizeof(float) : SMALL;
        struct call_args args = {.send = data, .recv = data, .tag = ++tag, .fingerprint = fingerprint};
        args.fingerprint.count = count;
        args.fingerprint.kind = rows[i].kind;
        if (reduce) args.subgroup = subgroup_new(ids, 2, 0);
        for (uint64_t k = 0; k < count; k++) data[k] = (float)k;
        float *theirs_in = (float *)(void *)(slots + (rows[i].first < SLOTS ? rows[i].first : 0) * SLOT_BYTES);
        for (uint64_t k = 0; rows[i].good && k < count; k++) theirs_in[k] = 0.5f;
        uint8_t place[WIRE_SLOT_BYTES];
        wire_slot_encode(place, rows[i].first, 1);
        struct wire_head head = {.op = {.tag = tag, .sequence = 1, .fingerprint = args.fingerprint},
                                 .small_in = {rows[i].bytes}};
        if (rows[i].early) say(WIRE_SMALL_IN, &head, place, sizeof place);
        if (!rows[i].early || rows[i].good) REQUIRE(engine_post(engine, &args, 1) == CALL_OK);
        if (!rows[i].early) say(WIRE_SMALL_IN, &head, place, sizeof place);
        if (rows[i].good) {
            struct call_outcome outcome;
            engine_wait(engine, tag, platform_now_ns() + 30 * SECOND_NS, &outcome);
            CHECK_EQ(outcome.result, CALL_OK);
            uint64_t wrong = 0;
            for (uint64_t k = 0; k < count; k++) wrong += data[k] != (float)k + 0.5f;
            CHECK_EQ(wrong, 0);
            // The engine keeps the input until this member is known to have the result.
            uint8_t ack[WIRE_ACK_BYTES];
            wire_ack_encode(ack, &(struct wire_op_name){.epoch = 1, .tag = tag, .sequence = 1});
            say(WIRE_ACK, &(struct wire_head){0}, ack, sizeof ack);
            CHECK_EQ(returned_slots(), UINT64_C(15) << rows[i].first);
        } else {
            CHECK(far_end_closes(links[0]));
        }
        end();
    }
}

// A chunk that comes twice would count for one that never came.
static void test_repeated(int fd) {
    check_case("slots: a chunk that is named twice");
    begin();
    struct wire_head head;
    struct claim claim = true_claim();
    answered(claim_with(&claim, length_of(&claim), fd));
    REQUIRE(takes_slots(&head));
    uint8_t place[WIRE_SLOT_BYTES];
    head.chunk = (struct wire_chunk){.bytes = SLOT_BYTES};
    for (uint64_t slot = 0; slot < 2; slot++) {
        wire_slot_encode(place, slot, 1);
        say(WIRE_CHUNK_IN, &head, place, sizeof place);
    }
    CHECK(far_end_closes(links[0]));
    end();
}

// Leaves of a round that is over, or has not begun here. They belong to no epoch, but their slots do.
static void test_leaves(int fd) {
    static const struct {
        const char *name;
        uint64_t slot, epoch;
        size_t length;
        bool good, returned;
    } rows[] = {
        {"a late leaf", SLOTS - 1, 1, WIRE_SLOT_BYTES, true, true},
        {"a leaf in slots of an epoch that is over", 5, 0, WIRE_SLOT_BYTES, true, false},
        {"a leaf in slots of an epoch to come", 5, 2, WIRE_SLOT_BYTES, true, false},
        {"a leaf in no slot", SLOTS, 1, WIRE_SLOT_BYTES, false, false},
        {"a leaf whose slot is cut short", 0, 1, WIRE_SLOT_BYTES - 1, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("slots: %s", rows[i].name);
        begin();
        struct claim claim = true_claim();
        answered(claim_with(&claim, length_of(&claim), fd));
        CHECK_EQ(hear(WIRE_TAKEN, 0, NULL, 0).taken.slots, 0);
        struct wire_head leaf = {.sync_leaf = {.round = 9, .coding = WIRE_SYNC_SLOT}};
        uint8_t place[WIRE_SLOT_BYTES];
        wire_slot_encode(place, rows[i].slot, rows[i].epoch);
        say(WIRE_SYNC_LEAF, &leaf, place, rows[i].length);
        // More late leaves, so that slots are returned at all.
        for (uint64_t slot = 0; rows[i].good && slot < 3; slot++) {
            wire_slot_encode(place, slot, 1);
            say(WIRE_SYNC_LEAF, &leaf, place, sizeof place);
        }
        uint64_t back = 0, known = 7 | UINT64_C(1) << (SLOTS - 1);
        while (rows[i].good && (back & 3) != 3) {
            back |= returned_slots();
            REQUIRE((back & ~known) == 0);
        }
        if (rows[i].good) CHECK_EQ(back >> (SLOTS - 1), rows[i].returned);
        if (!rows[i].good) CHECK(far_end_closes(links[0]));
        end();
    }
}

static void test_slots(void) {
    uint8_t *slots = NULL;
    int unsealed = memfd_create("test", MFD_CLOEXEC), fine = memory_shared_new(SLOTS_BYTES, &slots);
    REQUIRE(unsealed >= 0 && fine >= 0 && ftruncate(unsealed, SLOTS_BYTES) == 0);
    struct {
        const char *name;
        int fd;
        bool want;
    } rows[] = {{"no slots", -1, false},
                {"no memory", STDERR_FILENO, false},
                {"memory that can shrink", unsealed, false},
                {"slots", fine, true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        begin();
        struct wire_head ready;
        struct claim claim = true_claim();
        answered(claim_with(&claim, length_of(&claim), rows[i].fd));
        CHECK_EQ(takes_slots(&ready), rows[i].want);
        end();
    }
    static const struct {
        const char *name;
        uint64_t slot, offset;
        uint32_t bytes;
        bool good;
        uint64_t epoch;
    } said[] = {
        {"a chunk", SLOTS - 1, 0, SLOT_BYTES, true, 1},
        {"a chunk in two slots", SLOTS - 2, 0, 2 * SLOT_BYTES, true, 1},
        {"no slot", SLOTS, 0, SLOT_BYTES, false, 1},
        {"a chunk that ends behind the slots", SLOTS - 1, 0, SLOT_BYTES + 4, false, 1},
        {"a slot far away", UINT64_MAX, 0, 64, false, 1},
        {"a slot whose address wraps around", UINT64_MAX / SLOT_BYTES + 1, 0, 64, false, 1},
        {"more than all slots hold", 0, 0, SLOTS_BYTES + 4, false, 1},
        {"nothing", 0, 0, 0, false, 1},
        {"not whole elements", 0, 0, 6, false, 1},
        {"behind the end", 0, COUNT - 1, 8, false, 1},
        {"a slot of an epoch that is over", 0, 0, 64, false, UINT64_MAX},
        {"a slot of an epoch to come", 0, 0, 64, false, 2},
    };
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        check_case("slots: %s", said[i].name);
        begin();
        struct wire_head head;
        struct claim claim = true_claim();
        answered(claim_with(&claim, length_of(&claim), fine));
        REQUIRE(takes_slots(&head));
        memset(slots, 3, SLOTS_BYTES);
        data[0] = 0;
        uint8_t place[WIRE_SLOT_BYTES];
        wire_slot_encode(place, said[i].slot, said[i].epoch);
        head.chunk = (struct wire_chunk){.offset = said[i].offset, .bytes = said[i].bytes};
        say(WIRE_CHUNK_IN, &head, place, sizeof place);
        if (said[i].good) {
            // Slots of a frame that is discarded are returned as well; several are returned at once.
            struct wire_head unknown = head;
            unknown.op.tag += 1000;
            unknown.chunk.bytes = 3 * SLOT_BYTES;
            wire_slot_encode(place, 0, 1);
            say(WIRE_CHUNK_IN, &unknown, place, sizeof place);
            uint64_t named = ((UINT64_C(1) << said[i].bytes / SLOT_BYTES) - 1) << said[i].slot | 7;
            for (uint64_t back = 0; back != named;) {
                uint64_t more = returned_slots();
                CHECK((more & ~named) == 0 && (more & back) == 0);
                back |= more;
            }
            CHECK_MEM(data, slots, said[i].bytes);
        } else {
            CHECK(far_end_closes(links[0]));
        }
        end();
    }
    test_small_inputs(fine, slots);
    test_repeated(fine);
    test_leaves(fine);
    check_case("what was not given is given back");
    begin();
    struct wire_head head = {.taken = {1}};
    say(WIRE_TAKEN, &head, NULL, 0);
    CHECK(far_end_closes(links[0]));
    end();
    memory_shared_unmap(slots, SLOTS_BYTES);
    descriptor_close(fine);
    close(unsealed);
}

// Writes to the direct link, and returns when the engine has read it.
static void write_through(const uint8_t *bytes, size_t length) {
    int unread = 1, unsent = 1;
    REQUIRE(far_end_write(links[0], bytes, length));
    AWAIT(ioctl(links[0]->fd, SIOCOUTQ, &unsent) == 0 && unsent == 0 && ioctl(engine_ends[0], FIONREAD, &unread) == 0 &&
              unread == 0,
          usleep(100));
}

// A frame of an honest neighbour whose bytes come partly in the epoch in which it was sent, and partly in the next one.
static void test_cut_frames(void) {
    enum { PAYLOAD = 64 };
    static const size_t payloads[] = {
        [WIRE_SMALL] = PAYLOAD,
        [WIRE_ACK] = WIRE_ACK_BYTES,
        [WIRE_SUPPLY] = PAYLOAD,
        [WIRE_CHUNK] = PAYLOAD,
        [WIRE_CODES] = PAYLOAD,
        [WIRE_RESULT] = PAYLOAD,
        [WIRE_MEMORY] = RENDEZVOUS_NAME,
        [WIRE_SYNC_HASHES] = sizeof(uint64_t),
        [WIRE_SYNC_LEAF] = WIRE_SLOT_BYTES,
        [WIRE_CHUNK_IN] = WIRE_SLOT_BYTES,
        [WIRE_EARLY] = PAYLOAD,
        [WIRE_SMALL_IN] = WIRE_SLOT_BYTES,
    };
    static const char *const states[] = {"no operation", "an operation under way"};
    uint8_t *slots;
    int fd = memory_shared_new(SLOTS_BYTES, &slots);
    REQUIRE(fd >= 0);
    for (uint16_t type = WIRE_READY; type <= WIRE_SMALL_IN; type++) {
        if (type == WIRE_LINK_HEARD || type == WIRE_LINK_PADDING) continue;
        size_t payload = payloads[type], cuts[] = {WIRE_HEADER_BYTES, HEAD, HEAD + payload / 2};
        bool bulk = type == WIRE_CHUNK || type == WIRE_CHUNK_IN || type == WIRE_EARLY;
        for (int state = 0; state < (bulk ? 2 : 1); state++)
            for (size_t c = 0; c < (payload > 0 ? 3 : 2); c++) {
                check_case("a %s frame cut after %zu bytes, %s", wire_type_name(type), cuts[c], states[state]);
                epoch = 1;
                begin();
                struct claim claim = true_claim();
                answered(claim_with(&claim, length_of(&claim), fd));
                REQUIRE(hear(WIRE_TAKEN, 0, NULL, 0).taken.slots == 0);
                struct wire_head head = {.op = {.tag = 9, .sequence = 1, .fingerprint = fingerprint}}, decoded;
                if (state == 1) takes_slots(&head);
                if (type == WIRE_CHUNK_IN) head.chunk = (struct wire_chunk){.bytes = PAYLOAD};
                if (type == WIRE_SMALL_IN) head.small_in.bytes = PLAN_SMALL_MAX;
                if (type == WIRE_SYNC_HASHES) head.sync_hashes.count = 1;
                if (type == WIRE_SYNC_ASK_HASHES || type == WIRE_SYNC_ASK) head.sync_ask.count = 1;
                if (type == WIRE_SYNC_LEAF) head.sync_leaf.coding = WIRE_SYNC_SLOT;
                if (bulk && state == 1 && type != WIRE_CHUNK_IN) memset(&head.chunk, 0, sizeof head.chunk);
                uint8_t bytes[HEAD + PAYLOAD] = {0};
                encode(bytes, type, &head, payload);
                REQUIRE(wire_head_decode(bytes + WIRE_HEADER_BYTES, type, &decoded));
                if (slots_are_named(&(struct incoming){.header.type = type, .head = head}))
                    wire_slot_encode(bytes + HEAD, 0, 1);
                write_through(bytes, cuts[c]);
                struct wire_member members[2] = {{.id = theirs}, {.id = mine}};
                enter_epoch(engine, 2, members, 2, 0);
                engine_links_ready(engine, 2);
                hear(WIRE_MEMORY, 0, NULL, 0); // of epoch 2
                write_through(bytes + cuts[c], HEAD + payload - cuts[c]);
                epoch = 2;
                offer(offered); // whose frames are answered by the same link
                CHECK(engine_has_link(engine, &mine, 0));
                end();
            }
    }
    epoch = 1;
    memory_shared_unmap(slots, SLOTS_BYTES);
    descriptor_close(fd);
}

// It sends no socket name, and claims nothing at another's.
static void test_turned_off(void) {
    check_case("PCCL_SAME_HOST_MEMORY=0");
    setenv("PCCL_SAME_HOST_MEMORY", "0", 1);
    begin();
    unsetenv("PCCL_SAME_HOST_MEMORY");
    post(++tag);
    CHECK_EQ(hear(WIRE_ANY, 0, NULL, 0).op.tag, tag);
    memset(offered, 7, sizeof offered);
    memcpy(offered, &(pid_t){getpid()}, sizeof(pid_t)); // other runs of this test have theirs
    struct sockaddr_un address;
    socklen_t length = rendezvous_address(&address);
    int rendezvous = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    REQUIRE(bind(rendezvous, (struct sockaddr *)&address, length) == 0 && listen(rendezvous, 1) == 0);
    offer(offered);
    CHECK(accept(rendezvous, NULL, NULL) < 0 && errno == EAGAIN);
    close(rendezvous);
    CHECK(!is_believed());
    end();
}

int main(void) {
    uint8_t *slots;
    shared_slots = dup(memory_shared_new(SLOTS_BYTES, &slots)); // a child keeps it
    REQUIRE(shared_slots >= 0);
    test_claims();
    test_own_offer_sent_back();
    test_users();
    test_flood();
    test_full();
    test_garbage();
    test_fork();
    test_slots();
    test_cut_frames();
    test_turned_off();
    return check_status();
}
