// What the environment sets for a whole process, read once before its first communicator.
#include <stdlib.h>

#include "ops/plan.h"
#include "run.h"

enum { FOUR_MIB = 4 << 20 };

int main(void) {
    check_case("ops in retry mode are divided from PCCL_SEGMENTED_MIN_BYTES on");
    REQUIRE(pcclInit() == pcclSuccess);
    CHECK_EQ(plan_segments(FOUR_MIB, 1), 1);
    setenv("PCCL_SEGMENTED_MIN_BYTES", "4194304", 1);
    CHECK_EQ(pcclDestroyCommunicator(new_comm(1, 0)), pcclSuccess);
    CHECK_EQ(plan_segments(FOUR_MIB - 1, 1), 1);
    CHECK_EQ(plan_segments(FOUR_MIB, 1), 2);

    check_case("it does not change while ops may be under way");
    setenv("PCCL_SEGMENTED_MIN_BYTES", "8388608", 1);
    CHECK_EQ(pcclDestroyCommunicator(new_comm(1, 0)), pcclSuccess);
    CHECK_EQ(plan_segments(FOUR_MIB, 1), 2);
    return check_status();
}
