// Instruction sets of x86-64 processors beyond the least one. Zig's runtime answers __builtin_cpu_supports with no, so
// this asks the processor.
#ifndef PCCL_BASE_CPU_H
#define PCCL_BASE_CPU_H

#include <stdint.h>

enum cpu_level {
    CPU_LEAST,
    CPU_AVX,
    CPU_AVX2,   // with FMA and F16C
    CPU_AVX512, // with F, BW, DQ and VL
};

// Returns the level of this machine: the processor has it, and the system saves its registers. Any thread.
enum cpu_level cpu_level(void);

// Returns the level of a processor by ECX of CPUID leaf 1, EBX of leaf 7, and XCR0: what the system saves.
enum cpu_level cpu_level_of(uint32_t leaf_1, uint32_t leaf_7, uint64_t saved);

#endif
