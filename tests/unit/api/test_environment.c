// What the environment sets for a whole process, read once before its first communicator.
#include <stdlib.h>

#include "api/api.h"
#include "base/environment.h"
#include "base/memory.h"
#include "ops/plan.h"
#include "run.h"

enum { FOUR_MIB = 4 << 20 };

// Lines that are written of this value of PCCL_SAME_HOST_MEMORY, which stays set.
static int complaints_of(const char *value) {
    char byte;
    int ends[2], lines = 0, standard_error = dup(STDERR_FILENO);
    REQUIRE(standard_error >= 0 && pipe(ends) == 0);
    setenv("PCCL_SAME_HOST_MEMORY", value, 1);
    dup2(ends[1], STDERR_FILENO);
    environment_switch("PCCL_SAME_HOST_MEMORY", true);
    dup2(standard_error, STDERR_FILENO);
    close(standard_error);
    close(ends[1]);
    while (read(ends[0], &byte, 1) == 1) lines += byte == '\n';
    close(ends[0]);
    return lines;
}

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

    check_case("a number is digits, and in its range");
    const char *bad[] = {"", " 5000", "+5000", "-1", "5000 ", "0x10", "5e3", "10001"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("PCCL_MASTER_RECOVERY_MS", bad[i], 1);
        CHECK_EQ(environment_number("PCCL_MASTER_RECOVERY_MS", 0, 10000, 7), 7);
    }
    setenv("PCCL_MASTER_RECOVERY_MS", "10000", 1);
    CHECK_EQ(environment_number("PCCL_MASTER_RECOVERY_MS", 0, 10000, 7), 10000);

    check_case("memory of peers on this host is a matter of 0 and 1");
    unsetenv("PCCL_SAME_HOST_MEMORY");
    CHECK(environment_switch("PCCL_SAME_HOST_MEMORY", true));
    CHECK_EQ(complaints_of("1"), 0);
    CHECK(environment_switch("PCCL_SAME_HOST_MEMORY", true));
    CHECK_EQ(complaints_of("0"), 0);
    CHECK(!environment_switch("PCCL_SAME_HOST_MEMORY", true));
    const char *other[] = {"no", "false", "2", "00", ""};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        CHECK_EQ(complaints_of(other[i]), 1);
        CHECK(environment_switch("PCCL_SAME_HOST_MEMORY", true));
    }

    check_case("plain connections to other hosts are permitted by 1 alone");
    unsetenv("PCCL_INSECURE");
    CHECK(!api_transport_options().insecure);
    const char *wrong[] = {"0", "", "yes", "true", "01", "1 "};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv("PCCL_INSECURE", wrong[i], 1);
        CHECK(!api_transport_options().insecure);
    }
    setenv("PCCL_INSECURE", "1", 1);
    CHECK(api_transport_options().insecure);
    return check_status();
}
