// Leaves made shorter for slow links: LZ4, where the build has found it, and when it pays.
//
// It pays on a link if packing and unpacking a leaf and sending what is left takes less than nine tenths of the time to
// send the leaf as it is. The speed of the link is what the kernel measures on its connections while they are busy
// (link/pace); ratio and time of packing come from a leaf tried now and then, so rarely that trying costs at most a
// hundredth of the transfer. While it pays, each leaf is such a trial.
#ifndef PCCL_STATE_CODING_H
#define PCCL_STATE_CODING_H

#include <stdbool.h>
#include <stdint.h>

enum { CODING_LEAST_BYTES = 4096 }; // a leaf that is worth trying

// Built in, and not turned off (PCCL_LZ4=0 in the environment).
bool coding_available(void);
// The length of the packed leaf in `to`, or 0: it would not be shorter than 15/16 of the leaf. `to` has room for a
// leaf.
uint32_t coding_pack(uint8_t *to, const uint8_t *leaf, uint32_t length);
// Writes `length` bytes at most, whatever the packed bytes are. False: they are not a leaf of exactly this length.
bool coding_unpack(uint8_t *to, uint32_t length, const uint8_t *packed, uint32_t packed_length);

// ---- the choice, of one link ----
// `speed` is that of the link, in bytes per ns; 0: unknown.
struct coding_choice { // all 0 at the beginning
    double pack;       // ns per byte of the leaf, 0 = unknown
    double ratio;      // packed to plain
    uint32_t wait;     // leaves until the next trial
};

// Whether the next leaf is to be packed, to send it so or as a trial.
bool coding_tries(struct coding_choice *choice, double speed);
void coding_tried(struct coding_choice *choice, double speed, uint32_t length, uint32_t packed_length, int64_t ns);
bool coding_pays(const struct coding_choice *choice, double speed);

#endif
