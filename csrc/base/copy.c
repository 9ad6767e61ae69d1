#include "base/copy.h"

#include <stdint.h>
#include <string.h>

enum { SLOW_LEAST = 4096 }; // bytes; libc does not use `rep movsb` for much less

#ifdef __SSE2__

#include <immintrin.h>

enum { LINE = 64 };

// Each copies whole lines to `out`, which is aligned to a line. Half a line per store is a third faster than a quarter.
__attribute__((target("avx"))) static void stream_halves(uint8_t *out, const uint8_t *in, size_t lines) {
    for (; lines > 0; lines--, in += LINE, out += LINE) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)in);
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)in + 1);
        _mm256_stream_si256((__m256i *)(void *)out, low);
        _mm256_stream_si256((__m256i *)(void *)out + 1, high);
    }
}

static void stream_quarters(uint8_t *out, const uint8_t *in, size_t lines) {
    for (; lines > 0; lines--, in += LINE, out += LINE) {
        __m128i parts[4];
        for (int i = 0; i < 4; i++) parts[i] = _mm_loadu_si128((const __m128i *)(const void *)in + i);
        for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)(void *)out + i, parts[i]);
    }
}

void copy_past_caches(void *to, const void *from, size_t bytes) {
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t head = (size_t)(-(uintptr_t)out % LINE);
    if (head > bytes) head = bytes;
    memcpy(out, in, head);
    size_t lines = (bytes - head) / LINE, at = head + lines * LINE;
    if (__builtin_cpu_supports("avx"))
        stream_halves(out + head, in + head, lines);
    else
        stream_quarters(out + head, in + head, lines);
    memcpy(out + at, in + at, bytes - at);
    _mm_sfence(); // whoever is told of these bytes next finds them
}

#else

void copy_past_caches(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

#endif

void copy_bytes(void *to, const void *from, size_t bytes) {
    if (bytes >= SLOW_LEAST && copy_is_slow(to, (uintptr_t)from))
        copy_past_caches(to, from, bytes);
    else
        memcpy(to, from, bytes);
}
