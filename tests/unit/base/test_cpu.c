// What a processor has, from its own words.
#include "base/cpu.h"

#include "check.h"

#if defined(__x86_64__) || defined(__i386__)

#include <cpuid.h>

int main(void) {
    const uint32_t avx = bit_OSXSAVE | bit_AVX, avx2 = avx | bit_FMA | bit_F16C;
    const uint32_t avx512 = bit_AVX2 | bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    const uint64_t saves_avx = 0x7, saves_avx512 = 0xE7;
    CHECK_EQ(cpu_level_of(0, 0, 0), CPU_LEAST);
    CHECK_EQ(cpu_level_of(bit_AVX, 0, saves_avx), CPU_LEAST); // the system saves nothing
    CHECK_EQ(cpu_level_of(avx, 0, saves_avx), CPU_AVX);
    CHECK_EQ(cpu_level_of(avx, bit_AVX2, saves_avx), CPU_AVX); // no FMA
    CHECK_EQ(cpu_level_of(avx2, bit_AVX2, saves_avx), CPU_AVX2);
    CHECK_EQ(cpu_level_of(avx2, bit_AVX2, 0x3), CPU_LEAST); // the system saves SSE alone
    CHECK_EQ(cpu_level_of(avx2, avx512, saves_avx), CPU_AVX2);
    CHECK_EQ(cpu_level_of(avx2, avx512, saves_avx512), CPU_AVX512);
    CHECK_EQ(cpu_level_of(avx2, avx512 & ~bit_AVX512VL, saves_avx512), CPU_AVX2);

    // The compiler's runtime says the same of this machine.
    __builtin_cpu_init();
    CHECK_EQ(cpu_level() >= CPU_AVX, __builtin_cpu_supports("avx") != 0);
    CHECK_EQ(cpu_level() >= CPU_AVX2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    CHECK_EQ(cpu_level() >= CPU_AVX512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
    CHECK_EQ(cpu_level(), cpu_level());
    return check_status();
}

#else

int main(void) { return 0; } // all processors of a kind are alike to pccl

#endif
