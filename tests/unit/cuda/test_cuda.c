// Memory of GPUs (csrc/device/cuda) on the fake driver: order, views of what was unstaged last, streams of the program,
// several GPUs, errors of each call and of the GPU itself, and what is left over.
#include "device/device.h"

#include <pccl.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/detail.h"
#include "base/platform.h"
#include "check.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_driver.h"
#include "cuda/gpu.h"
#include "fakes/cuda/driver.h"

enum { COUNT = 30000, BYTES = COUNT * sizeof(float), ILLEGAL_ADDRESS = 700, OUT_OF_MEMORY = 2 };

static const struct device_sum sum = {.op = pcclSum, .dtype = pcclFloat}, mean = {pcclAvg, pcclFloat, 4};

static struct device_queue *open_at(const void *tensor, void *stream) {
    struct device_queue *queue = NULL;
    REQUIRE(device_open(tensor, -1, &queue) && queue != NULL);
    REQUIRE(device_follow(queue, stream));
    return queue;
}

static enum device_state settled(struct device_queue *queue, uint64_t fence) {
    enum device_state state = DEVICE_BUSY;
    for (int i = 0; i < 20000 && (state = device_passed(queue, fence)) == DEVICE_BUSY; i++)
        nanosleep(&(struct timespec){.tv_nsec = MS_NS}, NULL);
    return state;
}

static void fill(const void *tensor, float value) {
    float *bytes = fake_cuda_bytes(tensor);
    for (size_t i = 0; i < COUNT; i++) bytes[i] = value;
}

static bool is_all(const float *bytes, float value) {
    for (size_t i = 0; i < COUNT; i++)
        if (bytes[i] != value) return false;
    return true;
}

static void test_driver(void) {
    check_case("driver");
    char why[CUDA_WHY_BYTES];
    CHECK_EQ(cuda_driver_open(why), FAKE_GPUS);
    CHECK(cuda_driver_present() != NULL);
    float plain = 0;
    float *one = fake_cuda_new(0, BYTES), *other = fake_cuda_new(0, BYTES), *far = fake_cuda_new(1, BYTES);
    CHECK(device_of(&plain) == NULL && device_of(one) == &cuda_device && device_of(one + COUNT) == &cuda_device);
    CHECK(device_is_one(one, other) && !device_is_one(one, far) && !device_is_one(one, &plain));
    fake_cuda_break(ILLEGAL_ADDRESS); // the driver tells nothing any more, and nobody may touch the memory
    CHECK(device_of(&plain) == NULL && device_of(one) == &cuda_device);
    fake_cuda_break(0);
    fake_cuda_free(one);
    fake_cuda_free(other);
    fake_cuda_free(far);
}

static void test_order(int gpu) {
    check_case("order at GPU %d", gpu);
    float *tensor = fake_cuda_new(gpu, BYTES);
    fill(tensor, 1);
    struct device_queue *queue = open_at(tensor, NULL);
    float *room = device_take(queue, BYTES);
    device_copy(queue, room, tensor, BYTES);
    uint64_t fences[3];
    const float *views[3];
    views[0] = device_map(queue, tensor, BYTES, &fences[0]);
    float *staging = device_staging(queue, tensor, BYTES);
    for (size_t i = 0; i < COUNT; i++) staging[i] = 7;
    device_reduce(queue, tensor, staging, tensor, COUNT, &mean);
    views[1] = device_map(queue, tensor, BYTES, &fences[1]); // of the host's memory, as it becomes ready
    staging = device_staging(queue, tensor, BYTES / 2);
    for (size_t i = 0; i < COUNT / 2; i++) staging[i] = -1;
    device_unstage(queue, tensor, staging, BYTES / 2);
    views[2] = device_map(queue, tensor, BYTES, &fences[2]);
    for (int i = 0; i < 3; i++) CHECK_EQ(settled(queue, fences[i]), DEVICE_DONE);
    CHECK(is_all(views[0], 1) && is_all(views[1], 2));
    CHECK(views[2][0] == -1 && views[2][COUNT / 2 - 1] == -1 && views[2][COUNT - 1] == 2);
    for (int i = 0; i < 2; i++) device_unmap(queue, views[i]); // the third is left to the queue
    device_copy(queue, tensor, room, BYTES);
    device_give(queue, room);
    CHECK_EQ(settled(queue, device_mark(queue)), DEVICE_DONE);
    CHECK(device_await(queue) && is_all(fake_cuda_bytes(tensor), 1));
    device_close(queue);
    fake_cuda_free(tensor);
}

// What has just come is sent on without another copy.
static void test_recent(void) {
    check_case("recent");
    float *tensor = fake_cuda_new(0, BYTES);
    struct device_queue *queue = open_at(tensor, NULL);
    uint64_t fence;
    float *staging = device_staging(queue, tensor, BYTES);
    for (size_t i = 0; i < COUNT; i++) staging[i] = 5;
    device_unstage(queue, tensor, staging, BYTES);
    size_t copied = fake_cuda_counts().copied;
    const float *view = device_map(queue, tensor, BYTES, &fence);
    CHECK(fence != 0 && settled(queue, fence) == DEVICE_DONE && is_all(view, 5) && device_await(queue));
    CHECK(fake_cuda_counts().copied - copied <= BYTES); // the staging itself
    device_copy(queue, tensor + 1, tensor, 4);          // makes it old
    device_unmap(queue, view);
    view = device_map(queue, tensor, BYTES, &fence);
    CHECK(settled(queue, fence) == DEVICE_DONE && is_all(view, 5) && device_await(queue));
    CHECK(fake_cuda_counts().copied - copied >= BYTES);
    device_close(queue);
    fake_cuda_free(tensor);
}

static const float *awaited;
static void write_nine(void *data) { fill(data, 9); }
static void look_for_sum(void *data) { *(bool *)data = is_all(awaited, 18); }

// The op begins after the caller's kernel; a kernel that the stream has behind device_hold sees what the op wrote.
static void test_streams(bool is_default) {
    check_case("streams, default: %d", is_default);
    float *tensor = fake_cuda_new(0, BYTES);
    void *stream = fake_cuda_stream(0), *follows = is_default ? NULL : stream;
    bool saw = false;
    fill(tensor, 1);
    fake_cuda_launch(0, follows, 30000, write_nine, tensor);
    struct device_queue *queue = open_at(tensor, follows);
    CHECK_EQ(device_passed(queue, 0), DEVICE_BUSY);
    CHECK_EQ(settled(queue, 0), DEVICE_DONE);
    CHECK(device_hold(queue, stream));
    awaited = fake_cuda_bytes(tensor);
    fake_cuda_launch(0, stream, 0, look_for_sum, &saw);
    float *staging = device_staging(queue, tensor, BYTES);
    for (size_t i = 0; i < COUNT; i++) staging[i] = 9;
    device_reduce(queue, tensor, staging, tensor, COUNT, &sum);
    device_release(queue);
    fake_cuda_synchronize(stream);
    CHECK(saw);
    device_close(queue);
    queue = open_at(tensor, NULL);
    CHECK(device_hold(queue, stream));
    device_close(queue); // which lets go of it
    fake_cuda_synchronize(stream);
    fake_cuda_stream_free(stream);
    fake_cuda_free(tensor);
}

static void await_word(void *word) { AWAIT(atomic_load((atomic_bool *)word), usleep(1000)); }

// Until all that streams have is done.
static void settle_streams(void) {
    for (int i = 0; i < 20000 && fake_cuda_counts().pending > 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = MS_NS}, NULL);
}

// A queue that nothing was asked of is closed without waiting for the program, and the next one does not wait for it.
static void test_left(void) {
    check_case("left");
    float *tensor = fake_cuda_new(0, BYTES);
    void *stream = fake_cuda_stream(0);
    atomic_bool word = false;
    fake_cuda_launch(0, stream, 0, await_word, &word);
    device_close(open_at(tensor, stream));
    struct device_queue *queue = open_at(tensor, NULL);
    CHECK_EQ(settled(queue, 0), DEVICE_DONE);
    device_close(queue);
    atomic_store(&word, true);
    fake_cuda_synchronize(stream);
    fake_cuda_stream_free(stream);
    fake_cuda_free(tensor);
}

static void check_refused(struct device_queue *queue, void *stream, const char *why) {
    CHECK(!device_follow(queue, stream));
    CHECK(strstr(detail_get(), "the operation cannot follow the work of its stream: ") != NULL);
    CHECK(strstr(detail_get(), why) != NULL);
    CHECK(!device_hold(queue, stream));
    CHECK(strstr(detail_get(), "the stream cannot wait for the operation: ") != NULL &&
          strstr(detail_get(), why) != NULL);
    CHECK(!device_has_failed(queue));
}

// A stream that captures a graph, one that would become a part of it, or one of another GPU, is refused, and the queue
// can be used. What the library does meanwhile does not end the capture.
static void test_capture(void) {
    check_case("capture");
    float *tensor = fake_cuda_new(0, 4 * BYTES);
    void *capturing = fake_cuda_stream(0), *stream = fake_cuda_stream(0), *far = fake_cuda_stream(1);
    fill(tensor, 1);
    fake_cuda_capture(capturing);
    struct device_queue *queue = NULL;
    REQUIRE(device_open(tensor, -1, &queue) && queue != NULL);
    check_refused(queue, capturing, "it is capturing a CUDA graph, and operations cannot be part of one");
    check_refused(queue, NULL, "a stream that waits for it is capturing a CUDA graph");
    check_refused(queue, far, "error 400");
    CHECK(device_follow(queue, stream) && device_hold(queue, stream));
    float *room = device_take(queue, 4 * BYTES), *staging = device_staging(queue, tensor, 20 * BYTES);
    for (size_t i = 0; i < COUNT; i++) staging[i] = 2;
    device_copy(queue, room, tensor, BYTES);
    device_reduce(queue, tensor, staging, tensor, COUNT, &sum);
    device_give(queue, room);
    CHECK(device_await(queue) && is_all(fake_cuda_bytes(tensor), 3));
    device_close(queue);
    CHECK(fake_cuda_capture_end(capturing) && fake_cuda_counts().misuses == 0);
    fake_cuda_synchronize(stream);
    fake_cuda_stream_free(far);
    fake_cuda_stream_free(stream);
    fake_cuda_stream_free(capturing);
    fake_cuda_free(tensor);
}

// While a stream waits for the library, nothing is called that may wait for the whole GPU, whether that has memory
// pools or not; and what is left over then is given back later.
static void test_memory_while_waiting(int gpu) {
    enum { ROOMS = GPU_ROOMS_KEPT + 3 };
    check_case("memory while a stream waits, GPU %d", gpu);
    struct fake_cuda_counts before = fake_cuda_counts();
    float *tensor = fake_cuda_new(gpu, BYTES), *rooms[ROOMS], *stagings[ROOMS];
    void *stream = fake_cuda_stream(gpu);
    struct device_queue *queue = open_at(tensor, NULL);
    for (int i = 0; i < ROOMS; i++) REQUIRE((rooms[i] = device_take(queue, BYTES)) != NULL);
    fill(tensor, 1);
    CHECK(device_hold(queue, stream) && device_hold(queue, stream));
    for (size_t i = 0; i < ROOMS; i++) REQUIRE((stagings[i] = device_staging(queue, tensor, (1 << 20) - i)) != NULL);
    for (int i = 0; i < ROOMS; i++) device_copy(queue, rooms[i], tensor, BYTES);
    for (int i = 0; i < ROOMS; i++) device_give(queue, rooms[i]);
    float *room = device_take(queue, 10 * BYTES);
    device_copy(queue, room, tensor, BYTES);
    device_copy(queue, tensor, room, BYTES);
    device_give(queue, room);
    CHECK(device_await(queue) && is_all(fake_cuda_bytes(tensor), 1));
    for (int i = 0; i < ROOMS; i++) device_unmap(queue, stagings[i]);
    device_release(queue);
    fake_cuda_synchronize(stream);
    room = device_take(queue, BYTES);
    device_give(queue, room);
    CHECK(device_await(queue));
    device_close(queue);
    settle_streams();
    struct fake_cuda_counts now = fake_cuda_counts();
    CHECK(now.risks == before.risks && now.misuses == 0 &&
          now.device_blocks <= before.device_blocks + 1 + GPU_ROOMS_KEPT);
    fake_cuda_stream_free(stream);
    fake_cuda_free(tensor);
}

// What the driver counts as risks while this memory is allocated.
static int risks_of_memory(const struct gpu *gpu) {
    CUdeviceptr made = 0;
    int before = fake_cuda_counts().risks;
    REQUIRE(gpu_enter(gpu) == CUDA_SUCCESS);
    CHECK_EQ(gpu->driver->alloc(&made, BYTES), CUDA_SUCCESS);
    gpu_leave(gpu);
    fake_cuda_free((void *)(uintptr_t)made);
    return fake_cuda_counts().risks - before;
}

// The fake driver counts a risk from the call that lets a stream wait to the release, and none after that, although the
// stream is late to see its value.
static void test_risks(void) {
    check_case("risks");
    char why[CUDA_WHY_BYTES];
    float *tensor = fake_cuda_new(0, BYTES);
    void *stream = fake_cuda_stream(0);
    const struct gpu *gpu = gpu_of(tensor, why);
    REQUIRE(gpu != NULL);
    struct device_queue *queue = open_at(tensor, NULL);
    CHECK_EQ(risks_of_memory(gpu), 0);
    fake_cuda_hold(1);
    CHECK(device_hold(queue, stream));
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(risks_of_memory(gpu), 1);
        nanosleep(&(struct timespec){.tv_nsec = MS_NS / 10}, NULL); // the stream gets to its wait
    }
    device_release(queue);
    CHECK(device_await(queue));
    CHECK(fake_cuda_counts().pending > 0);
    CHECK_EQ(risks_of_memory(gpu), 0);
    fake_cuda_hold(0);
    fake_cuda_synchronize(stream);
    device_close(queue);
    fake_cuda_stream_free(stream);
    fake_cuda_free(tensor);
}

// A wait that the driver refuses, after others that are over: those are used again, and nothing waits.
static void test_refused_wait(void) {
    check_case("refused wait");
    float *tensor = fake_cuda_new(0, BYTES);
    void *stream = fake_cuda_stream(0);
    for (unsigned at = 1; at < 6; at++) { // the check of the stream, the event, the wait, the record, nothing
        struct device_queue *queue = open_at(tensor, NULL);
        for (int i = 0; i < 3; i++) CHECK(device_hold(queue, stream));
        device_release(queue);
        CHECK(device_await(queue));
        fake_cuda_synchronize(stream);
        fake_cuda_fail(at, 1, OUT_OF_MEMORY);
        CHECK(device_hold(queue, stream) == (at != 1 && at != 3));
        fake_cuda_fail(0, 0, 0);
        device_close(queue);
        fake_cuda_synchronize(stream);
        bool is_quiet = gpu_quiet_begin(); // no wait is left over
        CHECK(is_quiet);
        if (is_quiet) gpu_quiet_end();
    }
    fake_cuda_stream_free(stream);
    fake_cuda_free(tensor);
}

// A GPU with one hardware queue for each priority: a stream that waits for an op, and one that waits for that one, hold
// up neither the op nor those that begin later.
static void test_shared_hardware(void) {
    check_case("shared hardware queues");
    float *tensor = fake_cuda_new(0, BYTES), *other = fake_cuda_new(0, BYTES);
    void *stream = fake_cuda_stream(0);
    fill(tensor, 1);
    fake_cuda_share_queues(1);
    struct device_queue *queue = open_at(tensor, stream);
    CHECK_EQ(settled(queue, 0), DEVICE_DONE);
    CHECK(device_hold(queue, stream));
    struct device_queue *follows = open_at(other, stream);
    float *staging = device_staging(queue, tensor, BYTES);
    for (size_t i = 0; i < COUNT; i++) staging[i] = 2;
    device_reduce(queue, tensor, staging, tensor, COUNT, &sum);
    CHECK_EQ(settled(queue, device_mark(queue)), DEVICE_DONE);
    CHECK(is_all(fake_cuda_bytes(tensor), 3));
    CHECK_EQ(device_passed(follows, 0), DEVICE_BUSY);
    device_release(queue);
    CHECK_EQ(settled(follows, 0), DEVICE_DONE);
    device_close(follows);
    device_close(queue);
    fake_cuda_synchronize(stream);
    fake_cuda_share_queues(0);
    fake_cuda_stream_free(stream);
    fake_cuda_free(other);
    fake_cuda_free(tensor);
}

static struct device_queue *hashed_by(const uint8_t *content, uint64_t bytes, uint64_t first, uint64_t count) {
    enum { MOST = 64 };
    uint64_t leaves[MOST] = {0}, want[MOST];
    REQUIRE(count <= MOST);
    hash_leaves(want, fake_cuda_bytes(content), bytes, first, count);
    struct device_queue *queue = open_at(content, NULL);
    CHECK(device_hash(queue, leaves, content, bytes, first, count));
    CHECK_MEM(leaves, want, count * sizeof *leaves);
    return queue;
}

// Few leaves are hashed on the host, many at the GPU; their last one may be short, and of any length.
static void test_hash(void) {
    enum { MOST = 11 * HASH_LEAF_BYTES };
    uint8_t *content = fake_cuda_new(1, MOST), *bytes = fake_cuda_bytes(content);
    for (size_t i = 0; i < MOST; i++) bytes[i] = (uint8_t)(i * 7 + i / HASH_LEAF_BYTES + (i >> 13));
    static const size_t lasts[] = {1, 240, 241, 1000, 1024, 1025, 2048 + 63, 4096 + 64, 100003, HASH_LEAF_BYTES};
    for (size_t i = 0; i < sizeof lasts / sizeof lasts[0]; i++) {
        check_case("hash, last leaf of %zu", lasts[i]);
        unsigned launches = fake_cuda_counts().launches;
        device_close(hashed_by(content, 8 * HASH_LEAF_BYTES + lasts[i], i % 2, 9 - i % 2));
        CHECK_EQ(fake_cuda_counts().launches, launches + 1);
        device_close(hashed_by(content, 2 * HASH_LEAF_BYTES + lasts[i], 0, 3));
        CHECK_EQ(fake_cuda_counts().launches, launches + 1);
    }
    for (size_t at = 1; at <= 8; at *= 2) { // in steps of one byte, and of four
        check_case("hash, at %zu", at);
        device_close(hashed_by(content + at, 8 * HASH_LEAF_BYTES + 5000, 0, 9));
    }
    check_case("hash, a launch that fails");
    uint64_t leaves[8];
    struct device_queue *queue = open_at(content, NULL);
    CHECK(device_await(queue));
    fake_cuda_fail(1, 1, OUT_OF_MEMORY);
    CHECK(!device_hash(queue, leaves, content, MOST, 0, 8));
    CHECK_MEM(device_error(queue), "CUDA: cuLaunchKernel: ", 22);
    fake_cuda_fail(0, 0, 0);
    device_close(queue);
    fake_cuda_free(content);
}

struct hashing {
    struct device_queue *queue;
    const uint8_t *content;
    uint64_t leaves[9];
    bool good;
};

static void *hash_all(void *argument) {
    struct hashing *hashing = argument;
    hashing->good = device_hash(hashing->queue, hashing->leaves, hashing->content, 9 * HASH_LEAF_BYTES, 0, 9);
    return NULL;
}

static void test_hash_by_many(void) {
    enum { MANY = 3 };
    check_case("hash by many threads");
    uint8_t *content = fake_cuda_new(0, 9 * HASH_LEAF_BYTES), *bytes = fake_cuda_bytes(content);
    for (size_t i = 0; i < 9 * HASH_LEAF_BYTES; i++) bytes[i] = (uint8_t)(i * 5 + (i >> 11));
    uint64_t want[9];
    hash_leaves(want, bytes, 9 * HASH_LEAF_BYTES, 0, 9);
    struct device_queue *queue = open_at(content, NULL);
    pthread_t threads[MANY];
    struct hashing hashings[MANY];
    for (int i = 0; i < MANY; i++) {
        hashings[i] = (struct hashing){.queue = queue, .content = content};
        REQUIRE(platform_thread_start(&threads[i], "hash", hash_all, &hashings[i]));
    }
    for (int i = 0; i < MANY; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < MANY; i++) CHECK(hashings[i].good && memcmp(hashings[i].leaves, want, sizeof want) == 0);
    device_close(queue);
    fake_cuda_free(content);
}

// The GPU is full: the input is saved in memory of the host.
static void test_full(void) {
    check_case("full");
    float *tensor = fake_cuda_new(0, 4 * BYTES); // larger than a room that is kept
    fill(tensor, 3);
    struct device_queue *queue = open_at(tensor, NULL);
    fake_cuda_refuse_memory(1);
    float *room = device_take(queue, 4 * BYTES);
    CHECK(room != NULL && device_of(room) == NULL);
    device_copy(queue, room, tensor, 4 * BYTES);
    CHECK(device_await(queue));
    fill(tensor, 4);
    device_copy(queue, tensor, room, 4 * BYTES);
    device_give(queue, room);
    CHECK(device_await(queue) && is_all(fake_cuda_bytes(tensor), 3));
    fake_cuda_refuse_memory(0);
    device_close(queue);
    fake_cuda_free(tensor);
}

// A GPU that keeps the driver from giving page-locked memory holds up nobody who asks for what is not there yet.
static void test_slow_pinning(void) {
    enum { MOST = 256 };
    check_case("slow pinning");
    float *tensor = fake_cuda_new(0, BYTES);
    fill(tensor, 1);
    struct device_queue *queue = open_at(tensor, NULL);
    void *stagings[MOST];
    int count = 0;
    size_t before = gpu_host_bytes();
    fake_cuda_hold_pinning(1);
    do stagings[count++] = device_staging(queue, tensor, BYTES);
    while (count < MOST && gpu_host_is_pinned(stagings[count - 1]));
    CHECK(!gpu_host_is_pinned(stagings[count - 1]));
    CHECK_EQ(fake_cuda_hold_pinning(1), 1);
    float *staging = stagings[--count];
    for (size_t i = 0; i < COUNT; i++) staging[i] = 2;
    device_reduce(queue, tensor, staging, tensor, COUNT, &sum);
    uint64_t fence;
    CHECK(device_map(queue, tensor, BYTES, &fence) != NULL);
    CHECK_EQ(device_passed(queue, fence), DEVICE_BUSY);
    CHECK_EQ(fake_cuda_hold_pinning(0), 1);
    CHECK(device_await(queue) && is_all(fake_cuda_bytes(tensor), 3));
    void *more = device_staging(queue, tensor, BYTES);
    CHECK(gpu_host_is_pinned(more) && gpu_host_bytes() > before);
    device_unmap(queue, more);
    while (count > 0) device_unmap(queue, stagings[--count]);
    device_close(queue);
    fake_cuda_free(tensor);
}

// Everything that is asked of a queue, for the tests of failures. True: all of it was done.
static bool use(float *tensor, void *stream) {
    struct device_queue *queue = open_at(tensor, NULL);
    uint64_t fence = 0, leaf;
    float *room = device_take(queue, BYTES);
    if (room != NULL) device_copy(queue, room, tensor, BYTES);
    float *staging = device_staging(queue, tensor, BYTES);
    if (staging != NULL)
        for (size_t i = 0; i < COUNT; i++) staging[i] = 2;
    if (staging != NULL) device_reduce(queue, tensor, staging, tensor, COUNT, &sum);
    const float *view = device_map(queue, tensor, BYTES, &fence);
    bool held = device_hold(queue, stream);
    if (!held) CHECK(strlen(detail_get()) > 0);
    bool hashed = device_hash(queue, &leaf, tensor, BYTES, 0, 1);
    if (held) device_release(queue);
    bool done = device_await(queue);
    CHECK(done == !device_has_failed(queue) && (hashed || !done) && (view != NULL || !done));
    if (!done) CHECK_MEM(device_error(queue), "CUDA: cu", 8);
    if (!done) CHECK_EQ(device_passed(queue, fence), DEVICE_FAILED);
    if (done) CHECK(leaf == hash_xxh3_64(fake_cuda_bytes(tensor), BYTES));
    device_close(queue);
    return done;
}

// Of each call in turn. What fails has written nothing, and the next queue works.
static void test_failures(void) {
    float *tensor = fake_cuda_new(0, BYTES), *bytes = fake_cuda_bytes(tensor);
    void *stream = fake_cuda_stream(0);
    unsigned failed = 0, calls = 0;
    for (unsigned at = 1; at == 1 || calls >= at - 1; at++) {
        check_case("failure %u", at);
        fill(tensor, 1);
        fake_cuda_fail(at, 1, OUT_OF_MEMORY);
        bool done = use(tensor, stream);
        calls = fake_cuda_counts().calls;
        failed += !done;
        CHECK(done || calls >= at);
        CHECK(is_all(bytes, bytes[0]) && (bytes[0] == 3 || (bytes[0] == 1 && !done)));
        fake_cuda_fail(0, 0, 0);
        fake_cuda_synchronize(stream);
        CHECK(use(tensor, stream));
    }
    CHECK(failed > 5);
    fake_cuda_stream_free(stream);
    fake_cuda_free(tensor);
}

static void break_now(void *error) { fake_cuda_break(*(int *)error); }

// A kernel of the caller fails, or the GPU while the queue is at work.
static void test_broken(unsigned microseconds) {
    check_case("broken after %u us", microseconds);
    static int error = ILLEGAL_ADDRESS;
    float *tensor = fake_cuda_new(0, BYTES);
    void *stream = fake_cuda_stream(0), *other = fake_cuda_stream(0);
    fake_cuda_launch(0, other, microseconds, break_now, &error);
    struct device_queue *queue = open_at(tensor, microseconds == 0 ? other : NULL);
    bool done = true;
    for (int i = 0; i < 1000 && done; i++) {
        uint64_t fence;
        const void *view = device_map(queue, tensor, BYTES, &fence);
        done = view != NULL && settled(queue, fence) == DEVICE_DONE;
        if (view != NULL) device_unmap(queue, view);
    }
    CHECK(!done && !device_await(queue));
    CHECK(strstr(device_error(queue), "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered") != NULL);
    device_close(queue);
    queue = open_at(tensor, NULL); // does not crash, and says why
    CHECK(!device_await(queue) && device_take(queue, BYTES) == NULL);
    CHECK_MEM(device_error(queue), "CUDA: cu", 8);
    device_close(queue);
    settle_streams(); // what is skipped while it is broken would be waited for afterwards
    fake_cuda_break(0);
    fake_cuda_stream_free(other);
    fake_cuda_stream_free(stream);
    fake_cuda_free(tensor);
}

// A wake-up comes for each queue that gets on.
static void test_wake(void) {
    check_case("wake");
    float *tensor = fake_cuda_new(0, BYTES);
    struct device_queue *queue = NULL;
    int wake = wake_open(), looks = 0;
    REQUIRE(wake >= 0 && device_open(tensor, wake, &queue));
    uint64_t fence;
    REQUIRE(device_map(queue, tensor, BYTES, &fence) != NULL);
    while (device_passed(queue, fence) == DEVICE_BUSY) {
        uint64_t count;
        if (read(wake, &count, sizeof count) < 0) nanosleep(&(struct timespec){.tv_nsec = MS_NS}, NULL);
        REQUIRE(++looks < 20000);
    }
    device_close(queue);
    descriptor_close(wake);
    fake_cuda_free(tensor);
}

enum { THREADS = 4, ROUNDS = 20 };

static void *use_often(void *argument) {
    float *tensor = argument;
    void *stream = fake_cuda_stream(0);
    for (int i = 0; i < ROUNDS; i++) {
        fill(tensor, (float)i);
        CHECK(use(tensor, stream) && is_all(fake_cuda_bytes(tensor), (float)i + 2));
        fake_cuda_synchronize(stream);
    }
    fake_cuda_stream_free(stream);
    return NULL;
}

// Several queues at once; a second time nothing more is taken of the driver.
static void test_leaks(void) {
    check_case("leaks");
    struct fake_cuda_counts before = {0};
    float *tensors[THREADS];
    for (int i = 0; i < THREADS; i++) tensors[i] = fake_cuda_new(0, BYTES);
    for (int round = 0; round < 3; round++) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) REQUIRE(platform_thread_start(&threads[i], "use", use_often, tensors[i]));
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        settle_streams();
        struct fake_cuda_counts now = fake_cuda_counts();
        CHECK(now.streams <= 3 * (THREADS + 3) && now.pending == 0);
        CHECK(gpu_host_bytes() <= 16 * BYTES * THREADS && now.device_blocks <= THREADS + FAKE_GPUS * GPU_ROOMS_KEPT);
        if (round == 2) CHECK(now.host_blocks <= before.host_blocks + THREADS);
        before = now;
    }
    for (int i = 0; i < THREADS; i++) fake_cuda_free(tensors[i]);
    CHECK_EQ(fake_cuda_counts().misuses, 0);
}

int main(void) {
    cuda_library_use(&cuda_library);
    test_driver();
    for (int i = 0; i < 10; i++) {
        fake_cuda_delay(i % 2 == 0 ? 300 : 0);
        test_order(i % FAKE_GPUS);
        test_recent();
    }
    test_streams(false);
    test_streams(true);
    test_left();
    test_capture();
    for (int gpu = 0; gpu < FAKE_GPUS; gpu++) test_memory_while_waiting(gpu);
    test_risks();
    test_refused_wait();
    test_shared_hardware();
    test_hash();
    test_hash_by_many();
    test_full();
    test_slow_pinning();
    test_wake();
    fake_cuda_delay(20);
    test_failures();
    test_broken(0);
    test_broken(3000);
    test_leaks();
    return check_status();
}
