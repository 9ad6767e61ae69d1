// Verdicts of a mismatch that wait for the calls that they end: by tag, subgroup and order.
#include "ops/mismatches.h"

#include "check.h"

static struct mismatches mismatches;

static void add(uint64_t epoch, uint32_t subgroup, uint16_t other) {
    struct wire_verdict verdict = {.name = {.epoch = epoch, .tag = 7, .subgroup = subgroup}, .other = other};
    static const char text[WIRE_MAX_TEXT + 1] = "text";
    CHECK(mismatches_add(&mismatches, &verdict, text));
}

static bool take(uint64_t tag, uint32_t subgroup, uint64_t loss) {
    char text[WIRE_MAX_TEXT + 1];
    enum call_result result;
    bool taken = mismatches_take(&mismatches, tag, subgroup, loss, text, &result);
    CHECK(!taken || result == CALL_MISMATCH);
    return taken;
}

int main(void) {
    check_case("only calls over the lists of both sides end with it");
    add(3, 0x10005, 9);
    CHECK(!take(8, 0x10005, 0) && !take(7, 0, 0) && !take(7, 0x10006, 0));
    CHECK(take(7, 0x20009, 0) && !take(7, 0x20009, 0)); // the other side's, told by its lower half
    add(3, 0x10005, 9);
    CHECK(take(7, 0x10005, 0));
    check_case("a call of all");
    add(3, 0, 0);
    CHECK(!take(7, 5, 0) && !take(7, 0, 3) && take(7, 0, 4)); // a loss in that epoch came first
    check_case("the oldest of too many is dropped");
    for (uint64_t i = 0; i <= WIRE_MAX_LIVE_OPS; i++) add(1 + i, 1, 0);
    CHECK_EQ(mismatches.count, WIRE_MAX_LIVE_OPS);
    CHECK(take(7, 1, 2 + WIRE_MAX_LIVE_OPS));
    mismatches_clear(&mismatches);
    CHECK_EQ(mismatches.count, 0);
    return check_status();
}
