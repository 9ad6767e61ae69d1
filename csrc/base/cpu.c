#include "base/cpu.h"

#if defined(__x86_64__) || defined(__i386__)

#include <cpuid.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { SAVES_AVX = 0x6, SAVES_AVX512 = 0xE6 };

static bool has(uint64_t bits, uint64_t wanted) { return (bits & wanted) == wanted; }

enum cpu_level cpu_level_of(uint32_t leaf_1, uint32_t leaf_7, uint64_t saved) {
    if (!has(leaf_1, bit_OSXSAVE | bit_AVX) || !has(saved, SAVES_AVX)) return CPU_LEAST;
    if (!has(leaf_1, bit_FMA | bit_F16C) || !has(leaf_7, bit_AVX2)) return CPU_AVX;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return has(leaf_7, avx512) && has(saved, SAVES_AVX512) ? CPU_AVX512 : CPU_AVX2;
}

static enum cpu_level ask(void) {
    uint32_t a, b, leaf_1, d, leaf_7, c, low, high;
    if (!__get_cpuid(1, &a, &b, &leaf_1, &d) || !has(leaf_1, bit_OSXSAVE)) return CPU_LEAST;
    if (!__get_cpuid_count(7, 0, &a, &leaf_7, &c, &d)) leaf_7 = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return cpu_level_of(leaf_1, leaf_7, (uint64_t)high << 32 | low);
}

enum cpu_level cpu_level(void) {
    static atomic_int known = -1; // virtual machines are slow to answer
    int level = atomic_load_explicit(&known, memory_order_relaxed);
    if (level < 0) {
        level = (int)ask();
        atomic_store_explicit(&known, level, memory_order_relaxed);
    }
    return (enum cpu_level)level;
}

#endif
