#include "sparse.h"

#include "compute/kernels.h" // only what is inline

#include <float.h>
#include <math.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "forms are sent as they lie in memory");

typedef float any_f32 __attribute__((aligned(1), may_alias));

enum {
    INDEX_BITS = 12,
    CODE_BITS = 2,
    LARGE = 1, // of a code
    NEGATIVE = 2,
    LLOYD_ROUNDS = 8,
    MAGNITUDE = INT32_MAX,
    INFINITE = 0x7F800000,
    NOT_A_NUMBER = 0x7FC00000,
};

// An unpacked chunk.
struct entries {
    float scale;
    size_t used;
    uint16_t index[SPARSE_CHUNK];
    uint8_t code[SPARSE_CHUNK];
};

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static size_t index_bytes(size_t entries) { return (INDEX_BITS * entries + 7) / 8; }

static size_t chunk_bytes(size_t entries) {
    return sizeof(float) + index_bytes(entries) + (CODE_BITS * entries + 7) / 8;
}

size_t sparse_bytes(size_t count, size_t k) {
    size_t rest = count % SPARSE_CHUNK;
    return count / SPARSE_CHUNK * chunk_bytes(k) + (rest > 0 ? chunk_bytes(smaller(k, rest)) : 0);
}

static float float_of_bits(uint32_t bits) {
    float value;
    return memcpy(&value, &bits, sizeof value), value;
}

// ---- what is sent

static size_t count_from(const int32_t *magnitudes, size_t length, int32_t least) {
    int32_t found = 0;
    for (size_t i = 0; i < length; i++) found += magnitudes[i] >= least;
    return (size_t)found;
}

// The indices of the `most` largest magnitudes but zeros, ascending; returns how many. Magnitudes are floats as
// integers, which have the same order. The least one that is taken is found by bisection: each step is a loop that
// compilers turn into vectors, and most chunks need half of the steps.
static size_t select_largest(uint16_t *index, const int32_t *magnitudes, size_t length, size_t most, int32_t largest) {
    int64_t least = 0, beyond = (int64_t)largest + 1; // at least `most` are from `least` on, fewer from `beyond` on
    size_t equals = 0, before = 0;                    // to take of those that are equal to `least`; from `beyond` on
    while (beyond - least > 1) {
        int64_t middle = least + (beyond - least) / 2;
        size_t found = count_from(magnitudes, length, (int32_t)middle);
        if (found >= most) least = middle;
        if (found < most) beyond = middle, before = found;
        if (found == most) break;
    }
    equals = beyond - least > 1 ? most : least > 0 ? most - before : 0;
    size_t taken = 0;
    for (size_t i = 0; i < length; i++) {
        if (magnitudes[i] < least || (magnitudes[i] == least && equals == 0)) continue;
        equals -= magnitudes[i] == least;
        index[taken++] = (uint16_t)i;
    }
    return taken;
}

static int level_of(double magnitude, double scale) {
    return magnitude >= 1.5 * scale ? 2 : magnitude >= 0.5 * scale ? 1 : 0;
}

// Lloyd's algorithm for the levels 0, scale and 2 * scale; *gain is by how much they lessen the sum of squares.
static double refine_scale(const double *magnitudes, size_t count, double scale, double *gain) {
    double product = 0, square = 1;
    for (int round = 0; round < LLOYD_ROUNDS; round++) {
        product = 0, square = 0;
        for (size_t i = 0; i < count; i++) {
            int level = level_of(magnitudes[i], scale);
            product += level * magnitudes[i];
            square += level * level;
        }
        scale = product / square; // never by 0: the largest magnitude is never nearer to 0 than to the scale
    }
    *gain = product / square * product;
    return scale;
}

// From the mean for chunks whose magnitudes are alike, from the largest for those with a few that stand out.
static float choose_scale(const double *magnitudes, size_t count) {
    double sum = 0, largest = 0, from_mean, from_largest;
    for (size_t i = 0; i < count; i++) {
        sum += magnitudes[i];
        largest = magnitudes[i] > largest ? magnitudes[i] : largest;
    }
    double low = refine_scale(magnitudes, count, sum / (double)count, &from_mean);
    double high = refine_scale(magnitudes, count, largest / 2, &from_largest);
    double scale = from_largest > from_mean ? high : low;
    return (float)(scale > FLT_MAX / 2 ? scale / 2 : scale); // twice of it is a float, too
}

// Takes from *entries what is nearer to 0 than to the scale.
static void choose_codes(struct entries *entries, const float *values) {
    double magnitudes[SPARSE_CHUNK];
    for (size_t i = 0; i < entries->used; i++) magnitudes[i] = fabs((double)values[entries->index[i]]);
    entries->scale = choose_scale(magnitudes, entries->used);
    size_t kept = 0;
    for (size_t i = 0; i < entries->used && entries->scale > 0; i++) {
        int level = level_of(magnitudes[i], (double)entries->scale);
        if (level == 0) continue;
        entries->code[kept] = (uint8_t)((level == 2 ? LARGE : 0) | (values[entries->index[i]] < 0 ? NEGATIVE : 0));
        entries->index[kept++] = entries->index[i];
    }
    entries->used = kept;
}

static void encode_entries(struct entries *entries, const float *values, size_t length, size_t most) {
    int32_t magnitudes[SPARSE_CHUNK], largest = 0;
    memcpy(magnitudes, values, length * sizeof *values);
    for (size_t i = 0; i < length; i++) {
        magnitudes[i] &= MAGNITUDE;
        largest = magnitudes[i] > largest ? magnitudes[i] : largest;
    }
    entries->scale = 0;
    entries->used = largest > 0 ? select_largest(entries->index, magnitudes, length, most, largest) : 0;
    if (largest >= INFINITE) {
        entries->scale = float_of_bits(NOT_A_NUMBER);
        memset(entries->code, 0, entries->used);
    } else if (entries->used > 0) {
        choose_codes(entries, values);
    }
}

static float value_of(const struct entries *entries, size_t i) {
    float magnitude = entries->code[i] & LARGE ? 2 * entries->scale : entries->scale;
    return entries->code[i] & NEGATIVE ? -magnitude : magnitude;
}

static void take_off(any_f32 *residual, const float *values, size_t length, const struct entries *entries) {
    bool finite = !isnan(entries->scale);
    for (size_t i = 0; i < length; i++) residual[i] = finite || isfinite(values[i]) ? values[i] : 0;
    for (size_t i = 0; i < entries->used; i++) {
        size_t at = entries->index[i];
        residual[at] = finite ? values[at] - value_of(entries, i) : 0;
    }
}

// ---- bytes

static void put_bits(uint8_t *bytes, size_t at, unsigned bits) {
    bytes[at / 8] = (uint8_t)(bytes[at / 8] | bits << at % 8);
    if (bits << at % 8 > UINT8_MAX) bytes[at / 8 + 1] = (uint8_t)(bytes[at / 8 + 1] | bits << at % 8 >> 8);
}

// An index lies in two bytes: it begins at bit 0 or 4 of the first.
static uint16_t get_index(const uint8_t *bytes, size_t i) {
    size_t at = INDEX_BITS * i;
    unsigned word = bytes[at / 8] | (unsigned)bytes[at / 8 + 1] << 8;
    return (uint16_t)(word >> at % 8 & (SPARSE_CHUNK - 1));
}

static void write_entries(uint8_t *form, const struct entries *entries, size_t most) {
    memset(form, 0, chunk_bytes(most));
    memcpy(form, &entries->scale, sizeof entries->scale);
    uint8_t *indices = form + sizeof entries->scale, *codes = indices + index_bytes(most);
    for (size_t i = 0; i < most && entries->used > 0; i++)
        put_bits(indices, INDEX_BITS * i, entries->index[smaller(i, entries->used - 1)]);
    for (size_t i = 0; i < entries->used; i++) put_bits(codes, CODE_BITS * i, entries->code[i]);
}

static void read_entries(struct entries *entries, const uint8_t *form, size_t most) {
    memcpy(&entries->scale, form, sizeof entries->scale);
    const uint8_t *indices = form + sizeof entries->scale, *codes = indices + index_bytes(most);
    size_t used = 0;
    for (; used < most; used++) {
        entries->index[used] = get_index(indices, used);
        if (used > 0 && entries->index[used] == entries->index[used - 1]) break;
        entries->code[used] = codes[used / 4] >> CODE_BITS * (used % 4) & (LARGE | NEGATIVE);
    }
    entries->used = entries->scale == 0 ? 0 : used;
}

// ---- tensors

void sparse_encode(uint8_t *form, const float *values, const float *residual_in, float decay, size_t count, size_t k,
                   float *residual_out) {
    const any_f32 *input = values, *before = residual_in;
    any_f32 *after = residual_out;
    struct entries entries;
    float wanted[SPARSE_CHUNK];
    unsigned mode = kernels_enter();
    for (size_t at = 0; at < count; at += SPARSE_CHUNK) {
        size_t length = smaller(count - at, SPARSE_CHUNK), most = smaller(k, length);
        for (size_t i = 0; i < length && before == NULL; i++) wanted[i] = input[at + i];
        for (size_t i = 0; i < length && before != NULL; i++) wanted[i] = input[at + i] + decay * before[at + i];
        encode_entries(&entries, wanted, length, most);
        write_entries(form, &entries, most);
        if (after != NULL) take_off(after + at, wanted, length, &entries);
        form += chunk_bytes(most);
    }
    kernels_leave(mode);
}

static bool scale_valid(float scale) { return isnan(scale) || (!signbit(scale) && scale <= FLT_MAX / 2); }

static bool chunk_valid(const uint8_t *form, size_t length, size_t most) {
    float scale;
    memcpy(&scale, form, sizeof scale);
    const uint8_t *indices = form + sizeof scale;
    bool ended = false;
    for (size_t i = 0; i < most; i++) {
        uint16_t index = get_index(indices, i), before = i > 0 ? get_index(indices, i - 1) : 0;
        if (index >= length || index < before || (ended && index != before)) return false;
        ended = i > 0 && index == before;
    }
    return scale_valid(scale);
}

bool sparse_valid(const uint8_t *form, size_t count, size_t k) {
    for (size_t at = 0; at < count; at += SPARSE_CHUNK) {
        size_t length = smaller(count - at, SPARSE_CHUNK), most = smaller(k, length);
        if (!chunk_valid(form, length, most)) return false;
        form += chunk_bytes(most);
    }
    return true;
}

void sparse_add(float *sum, const uint8_t *form, double weight, size_t count, size_t k) {
    any_f32 *out = sum;
    struct entries entries;
    unsigned mode = kernels_enter();
    for (size_t at = 0; at < count && weight != 0; at += SPARSE_CHUNK) {
        size_t most = smaller(k, smaller(count - at, SPARSE_CHUNK));
        read_entries(&entries, form, most);
        for (size_t i = 0; i < entries.used; i++) {
            any_f32 *element = &out[at + entries.index[i]];
            float value = (float)((double)*element + weight * (double)value_of(&entries, i));
            *element = isnan(value) ? float_of_bits(NOT_A_NUMBER) : value;
        }
        form += chunk_bytes(most);
    }
    kernels_leave(mode);
}
