// Pre-copies between two peers of this process, over a pair of sockets: what arrives, and how either side ends.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "check.h"
#include "net/wire_data.h"
#include "state/precopy.h"

enum {
    LEAVES = 140, // two ranges
    BYTES = (LEAVES - 1) * HASH_LEAF_BYTES + 1000,
    SMALL = 40,
};

// A state of two entries.
struct side {
    uint8_t *large;
    uint8_t small[SMALL];
    pcclTensorInfo_t infos[2];
    pcclSharedState_t state;
    struct precopy *precopy;
    int wake;
};

static struct transport_context *context;

static void open_side(struct side *side, uint8_t value, const char *name) {
    side->large = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(side->large != MAP_FAILED);
    for (size_t i = 0; i < BYTES / 8; i++) ((uint64_t *)(void *)side->large)[i] = value * i;
    memset(side->small, value, SMALL);
    side->infos[0] = (pcclTensorInfo_t){.name = name, .data = side->large, .count = BYTES, .datatype = pcclUint8};
    side->infos[1] = (pcclTensorInfo_t){.name = "small", .data = side->small, .count = SMALL, .datatype = pcclUint8};
    side->state = (pcclSharedState_t){.count = 2, .infos = side->infos};
    side->precopy = precopy_new();
    side->wake = wake_open();
    REQUIRE(side->precopy != NULL && side->wake >= 0);
    struct content *content;
    REQUIRE(content_new(&side->state, NULL, &content) == pcclSuccess);
    precopy_set_state(side->precopy, content, PRECOPY_GIVES_ONCE_SYNCED);
}

static void close_side(struct side *side) {
    precopy_free(side->precopy);
    struct content *content;
    REQUIRE(content_new(&side->state, NULL, &content) == pcclSuccess);
    content_clear_torn(&content->layout);
    content_free(content);
    munmap(side->large, BYTES);
    descriptor_close(side->wake);
}

static bool is_torn(const struct side *side) {
    struct content *content;
    REQUIRE(content_new(&side->state, NULL, &content) == pcclSuccess);
    bool torn = content_is_torn(&content->layout);
    content_free(content);
    return torn;
}

static void synced(struct side *side) {
    struct content *content;
    REQUIRE(content_new(&side->state, NULL, &content) == pcclSuccess);
    precopy_note_sync(side->precopy, &content->mask);
    content_free(content);
}

static void streams(struct transport *out[2]) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    for (int i = 0; i < 2; i++) {
        descriptor_begin();
        descriptor_end(pair[i]);
        out[i] = transport_new(context, pair[i], i == 0 ? TRANSPORT_DIALS : TRANSPORT_ACCEPTS);
        REQUIRE(out[i] != NULL);
    }
}

static struct wire_progress progress; // of the last news

static enum precopy_news next_news(struct side *side) {
    for (;;) {
        enum precopy_news news = precopy_take_news(side->precopy, &progress);
        CHECK(progress.done <= progress.total && progress.total <= BYTES + SMALL);
        if (news != PRECOPY_QUIET && news != PRECOPY_ADVANCED) return news;
        REQUIRE(poll(&(struct pollfd){.fd = side->wake, .events = POLLIN}, 1, CHECK_PATIENCE_S * 1000) == 1);
        wake_clear(side->wake);
    }
}

static void start(struct side *newcomer, struct side *donor) {
    struct transport *ends[2];
    streams(ends);
    precopy_give(donor->precopy, ends[1]);
    REQUIRE(precopy_receive(newcomer->precopy, ends[0], newcomer->wake));
}

// Looks at memory that a thread of the precopy may write meanwhile, as the program that owns it may.
__attribute__((no_sanitize("thread"))) static bool are_equal(const uint8_t *a, const uint8_t *b, size_t length) {
    size_t i = 0;
    while (i < length && a[i] == b[i]) i++;
    return i == length;
}

static void check_same(const struct side *a, const struct side *b) {
    CHECK(are_equal(a->large, b->large, BYTES));
    CHECK(are_equal(a->small, b->small, SMALL));
}

static void test_copy(void) {
    struct side donor, newcomer;
    check_case("copy");
    open_side(&donor, 3, "large");
    open_side(&newcomer, 5, "large");
    start(&newcomer, &donor);
    CHECK_EQ(next_news(&newcomer), PRECOPY_LOST); // the donor has passed no sync
    CHECK(!is_torn(&newcomer));
    synced(&donor);
    start(&newcomer, &donor);
    CHECK_EQ(next_news(&newcomer), PRECOPY_UP_TO_DATE);
    check_same(&newcomer, &donor);
    CHECK(is_torn(&newcomer)); // no candidate before its first sync
    // The newest stays.
    CHECK_EQ(precopy_take_news(newcomer.precopy, &progress), PRECOPY_QUIET);
    CHECK_EQ(progress.total, BYTES + SMALL);
    check_case("later passes bring what has changed since");
    donor.large[BYTES - 1] ^= 1;
    memset(donor.small, 9, SMALL);
    AWAIT(are_equal(newcomer.small, donor.small, 1), poll(NULL, 0, 10));
    precopy_end_receiving(newcomer.precopy);
    check_same(&newcomer, &donor);
    check_case("nothing is written after the end");
    memset(donor.small, 1, SMALL);
    poll(NULL, 0, 20);
    CHECK_EQ(newcomer.small[0], 9);
    close_side(&newcomer);
    close_side(&donor);
}

// A newcomer that is up to date copies each change of the whole state.
static void test_follows(void) {
    struct side donor, newcomer;
    open_side(&donor, 3, "large");
    open_side(&newcomer, 5, "large");
    synced(&donor);
    start(&newcomer, &donor);
    CHECK_EQ(next_news(&newcomer), PRECOPY_UP_TO_DATE);
    for (uint8_t change = 1; change <= 4; change++) {
        check_case("change %d of all", change);
        memset(donor.large, change, BYTES);
        memset(donor.small, change, SMALL);
        while (!are_equal(newcomer.large, donor.large, BYTES) || !are_equal(newcomer.small, donor.small, SMALL))
            poll(NULL, 0, 1);
    }
    close_side(&newcomer);
    close_side(&donor);
}

static atomic_bool changes;

__attribute__((no_sanitize("thread"))) static void *change_all(void *side) {
    struct side *donor = side;
    for (uint8_t value = 0; atomic_load(&changes); value++) {
        for (size_t at = 0; at < BYTES; at += HASH_LEAF_BYTES) donor->large[at] = value;
        poll(NULL, 0, 1);
    }
    return NULL;
}

// A newcomer tells what it holds, so that nobody counts on a copy that is always old.
static void test_held(void) {
    struct side donor, newcomer;
    pthread_t thread;
    check_case("a state that changes faster than it is copied");
    open_side(&donor, 3, "large");
    open_side(&newcomer, 5, "large");
    CHECK_EQ(precopy_take_news(newcomer.precopy, &progress), PRECOPY_QUIET);
    CHECK_EQ(progress.done, 0);
    CHECK_EQ(progress.total, BYTES + SMALL);
    synced(&donor);
    atomic_store(&changes, true);
    REQUIRE(pthread_create(&thread, NULL, change_all, &donor) == 0);
    start(&newcomer, &donor);
    CHECK_EQ(next_news(&newcomer), PRECOPY_UP_TO_DATE);
    CHECK(progress.done < progress.total / 10);
    check_case("it comes to rest");
    atomic_store(&changes, false);
    REQUIRE(pthread_join(thread, NULL) == 0);
    enum precopy_news news = PRECOPY_QUIET;
    AWAIT(progress.done == progress.total, (poll(NULL, 0, 5), news = precopy_take_news(newcomer.precopy, &progress)));
    CHECK_EQ(news, PRECOPY_ADVANCED);
    check_same(&newcomer, &donor);
    check_case("what has changed once is held after the next pass");
    memset(donor.small, 7, SMALL);
    AWAIT(are_equal(newcomer.small, donor.small, SMALL), poll(NULL, 0, 5));
    CHECK_EQ(precopy_take_news(newcomer.precopy, &progress), PRECOPY_QUIET);
    check_case("without a donor it is held no more");
    precopy_set_state(donor.precopy, NULL, PRECOPY_GIVES_NEVER);
    precopy_free(donor.precopy);
    donor.precopy = precopy_new();
    CHECK_EQ(next_news(&newcomer), PRECOPY_LOST);
    CHECK_EQ(progress.done, 0);
    CHECK_EQ(progress.total, BYTES + SMALL);
    close_side(&newcomer);
    close_side(&donor);
}

static void test_refusals(void) {
    struct side donor, other, newcomer;
    open_side(&donor, 3, "large");
    open_side(&newcomer, 5, "large");
    synced(&donor);
    check_case("another state");
    open_side(&other, 5, "another name");
    start(&other, &donor);
    CHECK_EQ(next_news(&other), PRECOPY_LOST);
    CHECK(!is_torn(&other));
    check_case("memory that cannot be written");
    struct transport *ends[2];
    streams(ends);
    REQUIRE(mprotect(newcomer.large, BYTES, PROT_READ) == 0);
    CHECK(!precopy_receive(newcomer.precopy, ends[0], newcomer.wake));
    transport_free(ends[1]);
    REQUIRE(mprotect(newcomer.large, BYTES, PROT_READ | PROT_WRITE) == 0);
    check_case("the donor frees a tensor");
    REQUIRE(mprotect(donor.large + 4096 * 100, 4096, PROT_NONE) == 0);
    start(&newcomer, &donor);
    CHECK_EQ(next_news(&newcomer), PRECOPY_LOST);
    REQUIRE(mprotect(donor.large + 4096 * 100, 4096, PROT_READ | PROT_WRITE) == 0);
    check_case("more newcomers than a member serves");
    struct transport *pairs[PRECOPY_DONATIONS_MOST + 1][2];
    for (size_t i = 0; i <= PRECOPY_DONATIONS_MOST; i++) {
        streams(pairs[i]);
        precopy_give(donor.precopy, pairs[i][1]);
    }
    uint8_t byte;
    transport_wait(pairs[PRECOPY_DONATIONS_MOST][0], EPOLLIN, 10000);
    CHECK_EQ(transport_receive(pairs[PRECOPY_DONATIONS_MOST][0], &byte, 1), 0);
    CHECK_EQ(transport_receive(pairs[0][0], &byte, 1), -EAGAIN);
    for (size_t i = 0; i <= PRECOPY_DONATIONS_MOST; i++) transport_free(pairs[i][0]);
    close_side(&other);
    close_side(&newcomer);
    close_side(&donor);
}

// A newcomer that sends `bytes` to a donor gets nothing, or the end of the stream.
static void test_hostile(void) {
    struct side donor;
    open_side(&donor, 3, "large");
    synced(&donor);
    struct content *content;
    REQUIRE(content_new(&donor.state, NULL, &content) == pcclSuccess);
    struct {
        const char *name;
        uint16_t type;
        struct wire_sync_ask ask;
    } rows[] = {
        {"more hashes than a range", WIRE_SYNC_ASK_HASHES, {content->mask.low, 0, 0, 129, 0}},
        {"a leaf beyond the last", WIRE_SYNC_ASK, {content->mask.low, LEAVES + 1, 0, 1, 0}},
        {"a leaf far beyond the last", WIRE_SYNC_ASK, {content->mask.low, UINT64_MAX, 0, 64, 0}},
        {"another state", WIRE_SYNC_ASK, {content->mask.low + 1, 0, 0, 1, 0}},
        {"what a donor sends", WIRE_SYNC_HASHES, {content->mask.low, 0, 0, 1, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        struct transport *ends[2];
        uint8_t bytes[WIRE_HEADER_BYTES + WIRE_HEAD_BYTES], byte;
        struct wire_header header = {.length = WIRE_HEAD_BYTES, .type = rows[i].type};
        struct wire_head head = {.sync_ask = rows[i].ask};
        streams(ends);
        precopy_give(donor.precopy, ends[1]);
        wire_header_encode(bytes, &header);
        wire_head_encode(bytes + WIRE_HEADER_BYTES, rows[i].type, &head);
        CHECK_EQ(transport_send(ends[0], bytes, sizeof bytes), sizeof bytes);
        transport_wait(ends[0], EPOLLIN, 10000);
        CHECK_EQ(transport_receive(ends[0], &byte, 1), 0);
        transport_free(ends[0]);
    }
    content_free(content);
    close_side(&donor);
}

// Either side ends in the middle.
static void test_ends(void) {
    for (int trial = 0; trial < 9; trial++) {
        check_case("end %d", trial);
        struct side donor, newcomer;
        open_side(&donor, 3, "large");
        open_side(&newcomer, 5, "large");
        synced(&donor);
        start(&newcomer, &donor);
        usleep((useconds_t)(trial * 2000));
        if (trial % 3 == 0) {
            precopy_set_state(donor.precopy, NULL, PRECOPY_GIVES_NEVER); // its tensors may be freed from here on
            CHECK(!precopy_has_state(donor.precopy));
        } else if (trial % 3 == 1) {
            precopy_free(donor.precopy);
            donor.precopy = NULL;
        } else {
            precopy_end_receiving(newcomer.precopy);
        }
        close_side(&newcomer);
        close_side(&donor);
    }
}

int main(void) {
    context = transport_context_new(NULL);
    REQUIRE(context != NULL);
    test_copy();
    test_follows();
    test_held();
    test_refusals();
    test_hostile();
    test_ends();
    transport_context_release(context);
    return check_status();
}
