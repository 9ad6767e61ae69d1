#include "link/bucket.h"

#include "base/platform.h"
#include "check.h"

// Sends frames for so many milliseconds, whenever the bucket has room, and returns the bytes.
static double send_for(struct bucket *bucket, int64_t *now_ns, int ms, size_t frame) {
    double sent = 0;
    for (int i = 0; i < ms; i++, *now_ns += BUCKET_TICK_MS * MS_NS) {
        while (bucket_has_room(bucket, *now_ns)) {
            bucket_take(bucket, frame);
            sent += (double)frame;
        }
        CHECK(bucket->waits && bucket->empty_ns == *now_ns);
    }
    return sent;
}

static void test_rate(void) {
    check_case("as much goes as the rate lets, whatever the frames are");
    static const size_t frames[] = {1000, 16 << 10, 256 << 10};
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct bucket bucket = {.rate = 0.125};
        int64_t now_ns = 5 * SECOND_NS;
        double sent = send_for(&bucket, &now_ns, 1000, frames[i]);
        CHECK(sent > 0.99 * 0.125e9 && sent < 0.125e9 + 1e6);
    }
    check_case("a pause lets out no more than a short burst");
    struct bucket bucket = {.rate = 0.125};
    int64_t now_ns = SECOND_NS;
    send_for(&bucket, &now_ns, 10, 1000);
    now_ns += 60 * SECOND_NS;
    CHECK(send_for(&bucket, &now_ns, 1, 1000) <= 0.125e9 * 0.002 + 1000);
    check_case("a slow one lets out whole frames, later");
    bucket = (struct bucket){.rate = 1e-4};
    CHECK(bucket_has_room(&bucket, now_ns));
    bucket_take(&bucket, 256 << 10);
    CHECK(!bucket_has_room(&bucket, now_ns + SECOND_NS) && bucket.waits);
    CHECK(bucket_has_room(&bucket, now_ns + 3 * SECOND_NS) && !bucket.waits);
}

static void test_no_rate(void) {
    check_case("without a rate nobody waits");
    struct bucket bucket = {0};
    for (int i = 0; i < 1000; i++) {
        CHECK(bucket_has_room(&bucket, SECOND_NS));
        bucket_take(&bucket, 1 << 20);
    }
    check_case("and nothing is owed for that later");
    bucket.rate = 0.125;
    CHECK(bucket_has_room(&bucket, SECOND_NS + MS_NS));
    check_case("who waits goes on when the rate is taken away");
    bucket_take(&bucket, 1 << 30);
    CHECK(!bucket_has_room(&bucket, 2 * SECOND_NS));
    bucket.rate = 0;
    CHECK(bucket_has_room(&bucket, 2 * SECOND_NS) && !bucket.waits);
    bucket.rate = 0.125;
    CHECK(bucket_has_room(&bucket, 2 * SECOND_NS));
}

int main(void) {
    test_rate();
    test_no_rate();
    return check_status();
}
