// The contract of device/device.h: plain memory, and the fake device.
#include "device/device.h"

#include <pccl.h>

#include "../../fakes/device.h"
#include <unistd.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "check.h"

enum { COUNT = 1000, BYTES = COUNT * sizeof(float) };

static const struct device_sum sum = {.op = pcclSum, .dtype = pcclFloat}, mean = {pcclAvg, pcclFloat, 4};

static struct device_queue *open_for(const void *tensor) {
    struct device_queue *queue = NULL;
    REQUIRE(device_open(tensor, -1, &queue));
    return queue;
}

static bool is_passed(struct device_queue *queue, uint64_t fence) {
    enum device_state state = DEVICE_BUSY;
    for (int i = 0; i < 10000 && state == DEVICE_BUSY; i++) {
        state = device_passed(queue, fence);
        if (state == DEVICE_BUSY) nanosleep(&(struct timespec){.tv_nsec = MS_NS}, NULL);
    }
    return state == DEVICE_DONE;
}

static void test_plain(void) {
    check_case("plain");
    float tensor[] = {1, 2}, other[] = {10, 20}, saved[2];
    uint64_t fence = 1;
    CHECK(device_of(tensor) == NULL && device_of(NULL) == NULL);
    struct device_queue *queue = open_for(tensor);
    CHECK(queue == NULL);
    CHECK(device_map(queue, tensor, sizeof tensor, &fence) == tensor && fence == 0);
    CHECK(device_staging(queue, tensor, sizeof tensor) == tensor);
    CHECK(device_passed(queue, device_mark(queue)) == DEVICE_DONE && device_await(queue) && !device_has_failed(queue));
    device_copy(queue, saved, tensor, sizeof tensor);
    device_reduce(queue, tensor, other, tensor, 2, &mean);
    CHECK(tensor[0] == 2.75F && tensor[1] == 5.5F && saved[0] == 1 && saved[1] == 2);
    uint64_t leaf = 0, want = hash_xxh3_64(tensor, sizeof tensor);
    CHECK(device_hash(queue, &leaf, tensor, sizeof tensor, 0, 1) && leaf == want);
    static const float constant[2] = {1, 2};
    CHECK(device_is_writable(queue, tensor, sizeof tensor));
    CHECK(!device_is_writable(queue, (void *)(uintptr_t)constant, sizeof constant));
    device_close(queue);
}

// What is asked for happens in order, whenever that is.
static void test_order(void) {
    float *tensor = fake_device_new(BYTES), *bytes = fake_device_bytes(tensor);
    REQUIRE(tensor != NULL && bytes != tensor);
    check_case("order");
    CHECK(device_of(tensor) != NULL && device_of(tensor) == device_of(tensor + COUNT - 1));
    CHECK(device_of(bytes) == NULL);
    for (size_t i = 0; i < COUNT; i++) bytes[i] = (float)i;
    struct device_queue *queue = open_for(tensor);
    REQUIRE(queue != NULL);
    CHECK(is_passed(queue, 0));
    float *room = device_take(queue, BYTES);
    device_copy(queue, room, tensor, BYTES);
    uint64_t fences[3];
    const float *views[3];
    views[0] = device_map(queue, tensor, BYTES, &fences[0]);
    float *staging = device_staging(queue, tensor, BYTES);
    for (size_t i = 0; i < COUNT; i++) staging[i] = 1000;
    device_reduce(queue, tensor, staging, tensor, COUNT, &sum);
    views[1] = device_map(queue, tensor, BYTES, &fences[1]);
    staging = device_staging(queue, tensor, BYTES);
    for (size_t i = 0; i < COUNT; i++) staging[i] = -1;
    device_unstage(queue, tensor, staging, BYTES);
    views[2] = device_map(queue, tensor, BYTES, &fences[2]);
    CHECK(fences[0] < fences[1] && fences[1] < fences[2] && fences[2] == device_mark(queue));
    CHECK(is_passed(queue, fences[2]));
    for (size_t i = 0; i < COUNT; i++)
        CHECK(views[0][i] == (float)i && views[1][i] == (float)i + 1000 && views[2][i] == -1);
    device_unmap(queue, views[0]);
    device_copy(queue, tensor, room, BYTES);
    device_give(queue, room);
    uint64_t leaf = 0;
    CHECK(device_hash(queue, &leaf, tensor, BYTES, 0, 1));
    CHECK(device_await(queue) && bytes[7] == 7 && leaf == hash_xxh3_64(bytes, BYTES));
    device_close(queue);
    fake_device_free(tensor);
}

// A wake-up comes for each queue that gets on.
static void test_wake(void) {
    check_case("wake");
    float *tensor = fake_device_new(BYTES);
    struct device_queue *queue = NULL;
    int wake = wake_open();
    REQUIRE(wake >= 0 && device_open(tensor, wake, &queue));
    uint64_t fence;
    REQUIRE(device_map(queue, tensor, BYTES, &fence) != NULL);
    int looks = 0;
    while (device_passed(queue, fence) == DEVICE_BUSY) {
        uint64_t count;
        looks++;
        if (read(wake, &count, sizeof count) < 0) nanosleep(&(struct timespec){.tv_nsec = MS_NS}, NULL);
        REQUIRE(looks < 10000);
    }
    device_close(queue);
    descriptor_close(wake);
    fake_device_free(tensor);
}

// After the first failure nothing is written any more; what fails has written nothing.
static void test_failure(void) {
    float *tensor = fake_device_new(BYTES), *bytes = fake_device_bytes(tensor);
    for (uint32_t at = 1;; at++) {
        check_case("failure %u", at);
        for (size_t i = 0; i < COUNT; i++) bytes[i] = 1;
        struct device_queue *queue = open_for(tensor);
        fake_device_fail(at, 1);
        float *staging = device_staging(queue, tensor, BYTES);
        if (staging != NULL) {
            for (size_t i = 0; i < COUNT; i++) staging[i] = 2;
            device_reduce(queue, tensor, staging, tensor, COUNT, &sum);
        }
        uint64_t fence = 0, leaf;
        const void *view = device_map(queue, tensor, BYTES, &fence);
        bool hashed = device_hash(queue, &leaf, tensor, BYTES, 0, 1), done = device_await(queue);
        CHECK(view != NULL || device_has_failed(queue));
        CHECK(done == !device_has_failed(queue) && (hashed || !done));
        CHECK(bytes[0] == bytes[COUNT - 1] && (bytes[0] == 3 || (bytes[0] == 1 && !done)));
        if (!done) CHECK_STR(device_error(queue), "fake device: it was told to fail");
        if (!done) CHECK(device_passed(queue, device_mark(queue)) == DEVICE_FAILED);
        device_close(queue);
        if (done) break;
    }
    fake_device_fail(0, 0);
    fake_device_free(tensor);
}

int main(void) {
    test_plain();
    for (int i = 0; i < 8; i++) { // a device of either kind
        test_order();
        test_wake();
        test_failure();
    }
    return check_status();
}
