#define _GNU_SOURCE
#include "state/coding.h"

#include <string.h>
#ifdef PCCL_HAVE_LZ4
#include <lz4.h>
#endif

#include "base/environment.h"

enum { WAIT_LEAST = 16, WAIT_MOST = 1024 };

#define TRIALS_PART 0.01
#define PAYS_BELOW 0.9
#define UNPACK_PART 0.5 // of the time to pack
#define NEWEST_PART 0.25

#ifdef PCCL_HAVE_LZ4
bool coding_available(void) { return environment_switch("PCCL_LZ4", true); }

uint32_t coding_pack(uint8_t *to, const uint8_t *leaf, uint32_t length) {
    return (uint32_t)LZ4_compress_default((const char *)leaf, (char *)to, (int)length, (int)(length - length / 16));
}

bool coding_unpack(uint8_t *to, uint32_t length, const uint8_t *packed, uint32_t packed_length) {
    return LZ4_decompress_safe((const char *)packed, (char *)to, (int)packed_length, (int)length) == (int)length;
}
#else
bool coding_available(void) { return false; }

uint32_t coding_pack(uint8_t *to, const uint8_t *leaf, uint32_t length) {
    (void)to, (void)leaf, (void)length;
    return 0;
}

bool coding_unpack(uint8_t *to, uint32_t length, const uint8_t *packed, uint32_t packed_length) {
    (void)to, (void)length, (void)packed, (void)packed_length;
    return false;
}
#endif

static void average(double *value, double newest) {
    *value = *value == 0 ? newest : *value + NEWEST_PART * (newest - *value);
}

bool coding_pays(const struct coding_choice *choice, double speed) {
    if (speed == 0 || choice->pack == 0) return false;
    return choice->pack * (1 + UNPACK_PART) + choice->ratio / speed < PAYS_BELOW / speed;
}

bool coding_tries(struct coding_choice *choice, double speed) {
    if (speed == 0) return false;
    if (coding_pays(choice, speed)) return true;
    if (choice->wait > 0) choice->wait--;
    return choice->wait == 0;
}

void coding_tried(struct coding_choice *choice, double speed, uint32_t length, uint32_t packed_length, int64_t ns) {
    double pack = (double)ns / length, wait = pack * speed / TRIALS_PART;
    average(&choice->pack, pack > 0 ? pack : 1e-9);
    average(&choice->ratio, packed_length == 0 ? 1 : (double)packed_length / length);
    choice->wait = wait < WAIT_LEAST ? WAIT_LEAST : wait < WAIT_MOST ? (uint32_t)wait : WAIT_MOST;
}
