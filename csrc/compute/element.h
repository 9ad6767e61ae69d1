// Functions of one element, which the kernels of the CPU and those of GPUs (cuda/kernels) share, so that there is one
// definition of each value.
#ifndef PCCL_COMPUTE_ELEMENT_H
#define PCCL_COMPUTE_ELEMENT_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ELEMENT static __device__ __forceinline__
#else
#define ELEMENT static inline
#endif

// ---- the two 16-bit float types ----
// Rounding is to nearest even, overflow gives infinity, every NaN becomes the canonical one. Needs the default
// floating-point mode of the thread (kernels_enter).

ELEMENT uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ELEMENT float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ELEMENT float float_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7FFFu;
    if (magnitude >= 0x7C00u) return float_from_bits(sign | 0x7F800000u | magnitude << 13);
    // The exponent bias of float is 112 larger; scaling instead of adding to the exponent makes denormals right too.
    return float_from_bits(sign | float_to_bits(float_from_bits(magnitude << 13) * 0x1p112f));
}

ELEMENT uint16_t float_to_f16(float value) {
    uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return 0x7E00u;
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7C00u); // 65536 and above
    if (magnitude < 0x38800000u) {
        // Denormal: floats in [0.5, 1) have the same last bit as a denormal float16, so the addition rounds.
        float aligned = float_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (float_to_bits(aligned) - 0x3F000000u));
    }
    magnitude += 0xFFFu + (magnitude >> 13 & 1u); // a carry out of the mantissa gives the next exponent, or infinity
    return (uint16_t)(sign | (magnitude - 0x38000000u) >> 13);
}

ELEMENT float float_from_bf16(uint16_t half) { return float_from_bits((uint32_t)half << 16); }

ELEMENT uint16_t float_to_bf16(float value) {
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0u;
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

#endif
